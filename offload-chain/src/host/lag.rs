//! How long operations waited at a member, as it is reported.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::since_boot;

/// What is reported is the longest wait within so long: who waits for media again and again is slow all the time.
const WINDOW: Duration = Duration::from_secs(1);

/// What the engine's thread tells of its operations, in milliseconds since the machine booted.
#[derive(Debug, Default)]
pub(super) struct Waits {
    /// The longest since it was taken.
    longest: AtomicU64,
    /// Since when the oldest operation waits; 0, if none does.
    since: AtomicU64,
}

impl Waits {
    /// Told after each turn: the longest wait that was seen, and for how long the oldest operation waits already.
    pub(super) fn tell(&self, longest: Duration, waiting: Option<Duration>) {
        let longest = longest.as_millis() as u64;
        self.longest.fetch_max(longest, Ordering::AcqRel);
        let since = waiting.map_or(0, |waiting| {
            let since = since_boot().saturating_sub(waiting).as_millis() as u64;
            since.max(1)
        });
        self.since.store(since, Ordering::Release);
    }

    /// The longest since this was last asked, also of a wait that is not over: the thread itself may be held up.
    pub(super) fn take(&self) -> Duration {
        let since = match self.since.load(Ordering::Acquire) {
            0 => Duration::ZERO,
            since => since_boot().saturating_sub(Duration::from_millis(since)),
        };
        let longest = Duration::from_millis(self.longest.swap(0, Ordering::AcqRel));
        longest.max(since)
    }
}

/// The longest of the last second.
#[derive(Debug, Default)]
pub(super) struct Lag(VecDeque<(Duration, Duration)>);

impl Lag {
    /// Takes what was found now.
    pub(super) fn add(&mut self, now: Duration, wait: Duration) {
        // What is shorter and older than another will never be the longest.
        while self.0.back().is_some_and(|(_, shorter)| *shorter <= wait) {
            self.0.pop_back();
        }
        self.0.push_back((now, wait));
        while self.0.front().is_some_and(|(at, _)| *at + WINDOW < now) {
            self.0.pop_front();
        }
    }

    pub(super) fn longest(&self) -> Duration {
        self.0.front().map_or(Duration::ZERO, |(_, wait)| *wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn the_longest_of_a_second() {
        let mut lag = Lag::default();
        assert_eq!(lag.longest(), Duration::ZERO);
        for (now, wait, longest) in [
            (0, 5, 5),
            (100, 900, 900),
            (200, 7, 900),
            (700, 50, 900),
            (1100, 0, 900),
            (1101, 0, 50),
            (1702, 0, 0),
            (9000, 3, 3),
        ] {
            lag.add(MS(now), MS(wait));
            assert_eq!(lag.longest(), MS(longest), "at {now} ms");
        }
    }

    /// A thread that is held up tells nothing more, and its operation waits all the same.
    #[test]
    fn a_wait_that_is_not_over_counts() {
        let waits = Waits::default();
        assert_eq!(waits.take(), Duration::ZERO);
        waits.tell(MS(3), Some(MS(40)));
        assert!(waits.take() >= MS(39));
        assert!(waits.take() >= MS(39), "it still waits");
        waits.tell(MS(60), None);
        assert_eq!(waits.take(), MS(60));
        assert_eq!(waits.take(), Duration::ZERO);
    }
}
