//! What programs that serve tell of themselves in the same way: their process, and how long operations took. JSON on the way, for
//! programs of other versions, too.

mod process;

use std::time::Duration;

use ftl::Metered;
use serde::{Deserialize, Serialize};
use softrdma::Served;

pub use process::Process;

/// Operations of one kind, and how long they took.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Operations {
    /// How many.
    pub count: u64,
    /// How many of them failed.
    pub failed: u64,
    /// Bytes that were moved.
    pub bytes: u64,
    /// Seconds that they took together.
    pub seconds: f64,
    /// How many took up to 1 µs, how many of the others up to 2 µs, 4 µs and so on; the last number is of the rest.
    pub classes: Vec<u64>,
}

impl From<Metered> for Operations {
    fn from(metered: Metered) -> Self {
        Self {
            count: metered.count(),
            failed: metered.failed,
            bytes: metered.bytes,
            seconds: metered.time.as_secs_f64(),
            classes: metered.classes.to_vec(),
        }
    }
}

impl Operations {
    /// Those since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let classes = self.classes.iter().enumerate().map(|(class, count)| {
            let before = before.classes.get(class).copied().unwrap_or(0);
            count.saturating_sub(before)
        });
        Self {
            count: self.count.saturating_sub(before.count),
            failed: self.failed.saturating_sub(before.failed),
            bytes: self.bytes.saturating_sub(before.bytes),
            seconds: (self.seconds - before.seconds).max(0.0),
            classes: classes.collect(),
        }
    }

    /// How long one took on average, if there was any.
    pub fn mean(&self) -> Option<Duration> {
        // Whoever has told it may have told nonsense.
        let seconds = (self.count > 0).then(|| self.seconds / self.count as f64);
        seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
    }

    /// How long those took at most that are not among the slowest: of `part` 0.99 that is all but one in a hundred. A power of two,
    /// which what was counted does not exceed; none if there is none, or if they took longer than can be told.
    pub fn quantile(&self, part: f64) -> Option<Duration> {
        let wanted = (self.count as f64 * part).ceil().max(1.0) as u64;
        let mut counted = 0_u64;
        let reaches = |count: &u64| {
            // As in `mean`.
            counted = counted.saturating_add(*count);
            counted >= wanted
        };
        let class = self.classes.iter().position(reaches)?;
        ftl::class_limit(class)
    }
}

/// What operations of peers are called.
pub fn name(what: Served) -> &'static str {
    match what {
        Served::Write => "write",
        Served::Read => "read",
        Served::Send => "send",
        Served::Atomic => "atomic",
        Served::Flush => "flush",
        Served::Verify => "verify",
    }
}

#[cfg(test)]
mod tests {
    use ftl::Meter;

    use super::*;

    #[test]
    fn times_of_operations() {
        let meter = Meter::default();
        let before = Operations::from(meter.read());
        assert_eq!((before.mean(), before.quantile(0.99)), (None, None));
        for _ in 0..99 {
            meter.note(Duration::from_micros(3), Some(10));
        }
        meter.note(Duration::from_micros(703), None);
        let now = Operations::from(meter.read()).since(&before);
        assert_eq!((now.count, now.failed, now.bytes), (100, 1, 990));
        assert_eq!(now.mean(), Some(Duration::from_micros(10)));
        assert_eq!(now.quantile(0.99), Some(Duration::from_micros(4)));
        assert_eq!(now.quantile(0.999), Some(Duration::from_micros(1024)));
        let none = now.since(&now);
        assert_eq!((none.count, none.quantile(0.5)), (0, None));
    }
}
