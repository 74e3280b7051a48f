//! How many operations there were, how long they took, and how many bytes they moved. Whoever has a clock says how long.

use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Classes of durations: up to 1 µs, 2 µs, 4 µs, and so on to 2^24 µs (16.8 s), and the rest.
pub const DURATION_CLASSES: usize = 26;

/// Counts operations of one kind. Threads share it.
#[derive(Debug, Default)]
pub struct Meter {
    failed: AtomicU64,
    bytes: AtomicU64,
    nanoseconds: AtomicU64,
    classes: [AtomicU64; DURATION_CLASSES],
}

/// What a [`Meter`] has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Metered {
    /// Operations that failed.
    pub failed: u64,
    /// Bytes that the others moved.
    pub bytes: u64,
    /// How long all of them took together.
    pub time: Duration,
    /// Operations by how long they took, in the classes that [`class_limit`] names.
    pub classes: [u64; DURATION_CLASSES],
}

/// The longest duration of a class; none of the last.
pub fn class_limit(class: usize) -> Option<Duration> {
    (class < DURATION_CLASSES - 1).then(|| Duration::from_micros(1 << class))
}

fn nanoseconds(took: Duration) -> u64 {
    u64::try_from(took.as_nanos()).unwrap_or(u64::MAX)
}

fn class_of(nanoseconds: u64) -> usize {
    let microseconds = nanoseconds.div_ceil(1000).max(1);
    let class = microseconds.next_power_of_two().trailing_zeros() as usize;
    class.min(DURATION_CLASSES - 1)
}

impl Meter {
    /// An operation has ended: it moved so many bytes, or failed.
    pub fn note(&self, took: Duration, moved: Option<u64>) {
        self.add(took, moved, |count, more| {
            count.fetch_add(more, Ordering::Relaxed);
        });
    }

    /// The same by the only thread that ever notes anything here: it costs less.
    pub fn note_alone(&self, took: Duration, moved: Option<u64>) {
        self.add(took, moved, |count, more| {
            let sum = count.load(Ordering::Relaxed).wrapping_add(more);
            count.store(sum, Ordering::Relaxed);
        });
    }

    fn add(&self, took: Duration, moved: Option<u64>, add: impl Fn(&AtomicU64, u64)) {
        match moved {
            Some(bytes) => add(&self.bytes, bytes),
            None => add(&self.failed, 1),
        }
        let nanoseconds = nanoseconds(took);
        add(&self.nanoseconds, nanoseconds);
        add(&self.classes[class_of(nanoseconds)], 1);
    }

    /// What has been counted so far.
    pub fn read(&self) -> Metered {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Metered {
            failed: load(&self.failed),
            bytes: load(&self.bytes),
            time: Duration::from_nanos(load(&self.nanoseconds)),
            classes: self.classes.each_ref().map(load),
        }
    }
}

impl Metered {
    /// How many operations there were.
    pub fn count(&self) -> u64 {
        self.classes.iter().sum()
    }
}

impl AddAssign for Metered {
    fn add_assign(&mut self, more: Self) {
        self.failed += more.failed;
        self.bytes += more.bytes;
        self.time += more.time;
        for (count, more) in self.classes.iter_mut().zip(more.classes) {
            *count += more;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each duration is in the first class whose limit it does not exceed.
    #[test]
    fn classes() {
        let short = [0, 1, 999, 1000, 1001, 2000, 2001, 4000, 1 << 24];
        let all = short.map(Duration::from_nanos);
        let class_of = |took| class_of(nanoseconds(took));
        let long = [1 << 23, (1 << 24) - 1, 1 << 24].map(Duration::from_micros);
        for took in all.into_iter().chain(long) {
            let class = class_of(took);
            assert!(class_limit(class).unwrap() >= took, "{took:?}");
            let below = class.checked_sub(1).and_then(class_limit);
            assert!(below.is_none_or(|below| below < took), "{took:?}");
        }
        assert_eq!(class_of(Duration::from_micros((1 << 24) + 1)), 25);
        assert_eq!(class_of(Duration::MAX), 25);
        assert_eq!(class_limit(25), None);
    }

    #[test]
    fn what_is_noted_is_read() {
        let meter = Meter::default();
        meter.note(Duration::from_micros(3), Some(4096));
        meter.note_alone(Duration::from_micros(4), Some(512));
        meter.note(Duration::from_secs(60), None);
        let read = meter.read();
        assert_eq!((read.count(), read.failed, read.bytes), (3, 1, 4608));
        assert_eq!(read.time, Duration::from_micros(60_000_007));
        assert_eq!((read.classes[2], read.classes[25]), (2, 1));
        let mut sum = read;
        sum += Metered::default();
        assert_eq!(sum, read);
        sum += read;
        assert_eq!((sum.count(), sum.failed, sum.bytes), (6, 2, 9216));
        assert_eq!(sum.time, 2 * read.time);
        assert_eq!((sum.classes[2], sum.classes[25]), (4, 2));
    }
}
