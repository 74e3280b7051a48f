//! Until when a member may answer READs.
//!
//! Membership extends the lease with every heartbeat that finds the epoch active (docs/membership.md); the engine looks at it. The
//! two may be in different threads, so it is one atomic number. Time is that of a clock which is handed in: whoever computes
//! `until` has to read the same one.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::time::Duration;

use crate::planted::Bug;

/// Nobody can extend it any more.
const WITHDRAWN: u64 = u64::MAX;

/// A member's right to answer READs, in one epoch.
///
/// # Invariants
/// - The time it lasts until only grows; once withdrawn it never holds again. So a late answer of the store can not revive a
///   lease of an epoch that was closed: the next epoch has another one.
pub struct ReadLease {
    clock: Box<dyn Fn() -> Duration + Send + Sync>,
    /// In nanoseconds of the clock.
    until: AtomicU64,
    planted: Option<Bug>,
    /// What a look found, for a bug that uses it later.
    early: AtomicBool,
}

impl ReadLease {
    /// One that does not hold yet.
    pub fn new(clock: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self::with_bug(clock, None)
    }

    /// For tests that want to notice.
    #[doc(hidden)]
    pub fn with_bug(
        clock: impl Fn() -> Duration + Send + Sync + 'static,
        planted: Option<Bug>,
    ) -> Self {
        Self {
            clock: Box::new(clock),
            until: AtomicU64::new(0),
            planted,
            early: AtomicBool::new(false),
        }
    }

    /// It holds until then, at least.
    pub fn extend(&self, until: Duration) {
        // 584 years; and nothing but `withdraw` withdraws.
        let until = u64::try_from(until.as_nanos()).unwrap_or(WITHDRAWN);
        self.until
            .fetch_max(until.min(WITHDRAWN - 1), Ordering::Release);
    }

    /// It does not hold any more, and never will.
    pub fn withdraw(&self) {
        self.until.store(WITHDRAWN, Ordering::Release);
    }

    /// Does it hold at this moment?
    pub fn holds(&self) -> bool {
        let until = self.until.load(Ordering::Acquire);
        let holds = until != WITHDRAWN && (self.clock)().as_nanos() < u128::from(until);
        match self.planted {
            Some(Bug::LeaseLookedAtEarly) => self.early.swap(holds, Ordering::Relaxed),
            _ => holds,
        }
    }

    /// Does it hold still, now that bytes were taken? If so, it held when they were.
    pub(super) fn still_holds(&self) -> bool {
        if self.planted == Some(Bug::LeaseLookedAtEarly) {
            return true;
        }
        // The bytes first, then the clock.
        fence(Ordering::SeqCst);
        self.holds()
    }
}

impl fmt::Debug for ReadLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let until = self.until.load(Ordering::Relaxed);
        let until = (until != WITHDRAWN).then(|| Duration::from_nanos(until));
        f.debug_struct("ReadLease")
            .field("until", &until)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn lease() -> (ReadLease, Arc<AtomicU64>) {
        let now = Arc::new(AtomicU64::new(100));
        let clock = Arc::clone(&now);
        let lease = ReadLease::new(move || Duration::from_millis(clock.load(Ordering::Relaxed)));
        (lease, now)
    }

    /// Defends I13: a lease ends at its time, an old answer of the store does not make it shorter, and none revives it.
    #[test]
    fn it_grows_and_ends() {
        let (lease, now) = lease();
        assert!(!lease.holds(), "nobody has given it");
        lease.extend(Duration::from_millis(150));
        lease.extend(Duration::from_millis(120));
        now.store(149, Ordering::Relaxed);
        assert!(lease.holds() && lease.still_holds());
        now.store(150, Ordering::Relaxed);
        assert!(!lease.holds() && !lease.still_holds());
        lease.extend(Duration::MAX);
        assert!(lease.holds());
        lease.withdraw();
        lease.extend(Duration::MAX);
        assert!(!lease.holds() && !lease.still_holds());
    }
}
