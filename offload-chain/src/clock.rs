//! The clock that leases and epochs are counted in.

use std::time::{Duration, Instant};

/// Time since the machine booted, suspended or not: alike for all processes of a machine, and nobody can set it.
#[must_use]
pub(crate) fn since_boot() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}

/// Further away than anybody waits.
const FAR: Duration = Duration::from_secs(1 << 30);

/// When so much time is over; also for a caller who waits for ever ([`Duration::MAX`]).
#[must_use]
pub(crate) fn until(timeout: Duration) -> Instant {
    Instant::now() + timeout.min(FAR)
}
