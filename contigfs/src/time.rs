//! Points in time as files carry them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Seconds and nanoseconds since 1970-01-01 UTC; nanoseconds always count forward.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    /// Whole seconds, negative before 1970.
    pub secs: i64,
    /// Nanoseconds, below 10^9.
    pub nanos: u32,
}

impl Timestamp {
    /// The wall clock.
    pub fn now() -> Self {
        Self::from(SystemTime::now())
    }

    /// So many nanoseconds after the beginning of 1970.
    pub const fn from_unix_ns(ns: u64) -> Self {
        Self {
            secs: (ns / 1_000_000_000) as i64,
            nanos: (ns % 1_000_000_000) as u32,
        }
    }

    /// Nanoseconds since 1970, saturating; used where a growing number is wanted.
    pub fn as_unix_ns(self) -> u64 {
        u64::try_from(self.secs)
            .unwrap_or(0)
            .saturating_mul(1_000_000_000)
            .saturating_add(u64::from(self.nanos))
    }
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        match time.duration_since(UNIX_EPOCH) {
            Ok(after) => Self {
                secs: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
                nanos: after.subsec_nanos(),
            },
            Err(before) => {
                let before = before.duration();
                let secs = -i64::try_from(before.as_secs()).unwrap_or(i64::MAX);
                match before.subsec_nanos() {
                    0 => Self { secs, nanos: 0 },
                    nanos => Self {
                        secs: secs - 1,
                        nanos: 1_000_000_000 - nanos,
                    },
                }
            }
        }
    }
}

impl From<Timestamp> for SystemTime {
    fn from(time: Timestamp) -> Self {
        let nanos = Duration::from_nanos(u64::from(time.nanos));
        let whole = Duration::from_secs(time.secs.unsigned_abs());
        let base = if time.secs < 0 {
            UNIX_EPOCH.checked_sub(whole)
        } else {
            UNIX_EPOCH.checked_add(whole)
        };
        base.and_then(|base| base.checked_add(nanos))
            .unwrap_or(UNIX_EPOCH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Conversion keeps every nanosecond on both sides of 1970.
    #[test]
    fn round_trip() {
        for (secs, nanos) in [
            (0, 0),
            (-1, 1),
            (-1, 999_999_999),
            (-7, 0),
            (4_294_967_296, 5),
        ] {
            let time = Timestamp { secs, nanos };
            assert_eq!(Timestamp::from(SystemTime::from(time)), time);
        }
    }
}
