//! How long a loop looks for what arrives before it goes to sleep.
//!
//! What sleeps takes time to come back: a few microseconds for the scheduler, tens of them where a hypervisor has given the
//! processor to somebody else meanwhile. An answer that is a few microseconds away is looked for instead, for less time than
//! sleeping would be worth. Nobody knows when the next answer comes; that it comes as soon as the one before is a good guess.
//! Linux guesses so for its idle processors (Documentation/virt/kvm/halt-polling.rst).

use std::time::{Duration, Instant};

/// Decides before each wait whether to look for a while or to sleep at once.
///
/// News that came sooner than [`most`](Self::new) are taken for a sign that the next ones do, too. After later ones nothing is
/// looked for until some came soon again, so who is idle, or is asked for something now and then, pays nothing. Nor does who
/// shares its processor with others who want it: a thread that waits for a processor for more than a twentieth of the time, by the
/// kernel's count, looks for nothing.
#[derive(Clone, Debug)]
pub struct Spin {
    most: Duration,
    was_short: bool,
    /// Since when news are waited for. What else ends a wait, like the end of what the waiter did itself, says nothing of when
    /// they come.
    since: Option<Instant>,
    crowd: Crowd,
}

impl Spin {
    /// What is looked for at most if nobody says otherwise: more than a read of flash takes, and ten thousand events in a second
    /// for each that keep a processor busy.
    pub const MOST: Duration = Duration::from_micros(100);
    /// Whoever wants to look longer than that wants to poll.
    pub const LONGEST: Duration = Duration::from_secs(1);

    /// Looks for `most` at most, and never longer than [`LONGEST`](Self::LONGEST); zero: not at all.
    #[must_use]
    pub fn new(most: Duration) -> Self {
        Self {
            most: most.min(Self::LONGEST),
            was_short: false,
            since: None,
            crowd: Crowd::default(),
        }
    }

    /// A wait begins at `now`, of no more than `timeout`; until when to look before sleeping.
    #[must_use]
    pub fn wait(&mut self, now: Instant, timeout: Option<Duration>) -> Instant {
        self.wait_beside(now, timeout, run_delay)
    }

    fn wait_beside(
        &mut self,
        now: Instant,
        timeout: Option<Duration>,
        run_delay: impl FnOnce() -> Option<Duration>,
    ) -> Instant {
        let until = *self.since.get_or_insert(now) + self.most;
        if !self.was_short || until <= now || self.crowd.is_there(now, run_delay) {
            return now;
        }
        let end = timeout.and_then(|timeout| now.checked_add(timeout));
        end.map_or(until, |end| until.min(end))
    }

    /// What was waited for came at `now`.
    pub fn news(&mut self, now: Instant) {
        if let Some(since) = self.since.take() {
            self.was_short = now.duration_since(since) < self.most;
        }
    }
}

/// Whether others want the processors that this thread runs on: whoever only waits leaves them to those who have work, and has
/// a claim to them when there is something to do.
#[derive(Clone, Copy, Debug, Default)]
struct Crowd {
    is_there: bool,
    /// When that was found, and how long the thread had waited for a processor until then.
    found: Option<(Instant, Duration)>,
}

impl Crowd {
    /// How often the kernel is asked.
    const PERIOD: Duration = Duration::from_millis(20);
    /// The share of time, as 1 / `SHARE`, that a thread which has a processor to itself does not wait for one.
    const SHARE: u32 = 20;

    fn is_there(&mut self, now: Instant, run_delay: impl FnOnce() -> Option<Duration>) -> bool {
        if let Some((at, before)) = self.found {
            let period = now.duration_since(at);
            if period < Self::PERIOD {
                return self.is_there;
            }
            // Without a kernel that counts, or on another thread than before, nothing is known.
            let delay = run_delay().unwrap_or_default();
            self.is_there = delay.saturating_sub(before) > period / Self::SHARE;
            self.found = Some((now, delay));
        } else {
            self.found = Some((now, run_delay().unwrap_or_default()));
        }
        self.is_there
    }
}

/// How long this thread has waited for a processor, ready to run (proc_pid_schedstat(5)).
fn run_delay() -> Option<Duration> {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let nanos = stat.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(Duration::from_nanos(nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    /// A thread that does nothing but wait, and how long it has waited for a processor.
    struct Waiter {
        spin: Spin,
        now: Instant,
        run_delay: Option<Duration>,
    }

    impl Waiter {
        fn new(most: Duration) -> Self {
            let (spin, now) = (Spin::new(most), Instant::now());
            Self {
                spin,
                now,
                run_delay: Some(Duration::ZERO),
            }
        }

        /// A wait in which something comes after `length`, looked for each microsecond; how long it was looked for.
        fn wait(&mut self, length: Duration) -> Duration {
            let begun = self.now;
            let until = self.spin.wait_beside(begun, None, || self.run_delay);
            self.now = begun + length;
            self.spin.news(self.now);
            until.min(self.now) - begun
        }

        /// The same again and again for `time`, `delay` of which no processor was to be had; how long it was looked for.
        fn waits(&mut self, time: Duration, length: Duration, delay: Duration) -> Duration {
            let mut looked = Duration::ZERO;
            let mut left = time;
            while left > Duration::ZERO {
                looked += self.wait(length);
                left = left.saturating_sub(length);
            }
            self.run_delay = self.run_delay.map(|before| before + delay);
            looked
        }
    }

    /// What is idle costs nothing (a target at rest uses no processor), what is busy does not sleep.
    #[test]
    fn looks_after_short_waits_only() {
        let mut waiter = Waiter::new(100 * US);
        assert_eq!(waiter.wait(60 * US), Duration::ZERO);
        assert_eq!(waiter.wait(60 * US), 60 * US);
        assert_eq!(waiter.wait(99 * US), 99 * US);
        assert_eq!(waiter.wait(5_000 * US), 100 * US);
        for _ in 0..3 {
            assert_eq!(waiter.wait(5_000 * US), Duration::ZERO);
        }
        assert_eq!(waiter.wait(100 * US), Duration::ZERO);
        assert_eq!(waiter.wait(US), Duration::ZERO);
        assert_eq!(waiter.wait(US), US);
    }

    /// A timer is not late for looking.
    #[test]
    fn looks_no_longer_than_the_time_out() {
        let mut waiter = Waiter::new(100 * US);
        waiter.wait(US);
        let now = waiter.now;
        assert_eq!(waiter.spin.wait(now, Some(30 * US)), now + 30 * US);
    }

    /// The end of a send, say, is no answer, and does not lengthen the time that an answer is looked for.
    #[test]
    fn what_is_no_news_changes_nothing() {
        let mut waiter = Waiter::new(100 * US);
        waiter.wait(US);
        let begun = waiter.now;
        for part in [0, 40, 99] {
            let until = waiter.spin.wait(begun + part * US, None);
            assert_eq!(until, begun + 100 * US);
        }
        let late = begun + 120 * US;
        assert_eq!(waiter.spin.wait(late, None), late);
        waiter.spin.news(late);
        assert_eq!(waiter.spin.wait(late, None), late);
    }

    /// Whoever has work is not kept from it by somebody who waits, and who was crowded looks again when nobody is there.
    #[test]
    fn who_shares_its_processor_sleeps() {
        let mut waiter = Waiter::new(100 * US);
        // What is asked at the beginning of a round is the delay of the round before.
        let round = Crowd::PERIOD;
        let (none, much) = (Duration::ZERO, round / 4);
        waiter.wait(50 * US);
        waiter.waits(round, 50 * US, none);
        assert_eq!(waiter.waits(round, 50 * US, much), round);
        assert_eq!(waiter.waits(round, 50 * US, much), none);
        assert_eq!(waiter.waits(round, 50 * US, none), none);
        assert_eq!(waiter.waits(round, 50 * US, none), round);
    }

    /// A thread waits for a processor a little whenever it is woken; a kernel need not count.
    #[test]
    fn alone_or_unknown_is_no_crowd() {
        let mut waiter = Waiter::new(100 * US);
        waiter.wait(US);
        let round = 2 * Crowd::PERIOD;
        for _ in 0..4 {
            assert_eq!(waiter.waits(round, 50 * US, round / 50), round);
        }
        waiter.run_delay = None;
        assert_eq!(waiter.waits(round, 50 * US, Duration::ZERO), round);
        waiter.run_delay = Some(Duration::from_secs(1));
        waiter.waits(round, 50 * US, Duration::ZERO);
        waiter.run_delay = Some(Duration::ZERO);
        assert_eq!(waiter.waits(round, 50 * US, Duration::ZERO), round);
    }

    /// Any length can be asked for.
    #[test]
    fn no_length_is_too_long() {
        let mut waiter = Waiter::new(Duration::MAX);
        waiter.wait(US);
        let looked = waiter.wait(2 * Spin::LONGEST);
        assert_eq!(looked, Spin::LONGEST);
    }

    /// `--spin 0s` sleeps at once, always.
    #[test]
    fn zero_never_looks() {
        let mut waiter = Waiter::new(Duration::ZERO);
        for _ in 0..5 {
            assert_eq!(waiter.wait(US), Duration::ZERO);
        }
    }

    /// The kernel's count is where it is looked for.
    #[test]
    fn this_kernel_counts() {
        assert!(run_delay().is_some());
    }
}
