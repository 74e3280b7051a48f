//! How long a member waits to join again that was left out of a chain while it lived.
//!
//! Each join is a pause for all, and one that fails a long one. A member that is slow, or whose links are bad, would join, hold the others
//! up, be left out, and be back as soon as it has caught up. So it comes back at once the first time, and then after twice as long each
//! time, until it was in the chain for long.

use std::time::Duration;

/// The first wait, in heartbeats.
const FIRST: u32 = 20;
/// The longest wait, in heartbeats; and for how long it has to be in the chain until it is as if it had never been left out.
const LONGEST: u32 = 1200;

/// What happened to a member, and what it does about it.
#[derive(Clone, Debug)]
pub(super) struct LeftOut {
    period: Duration,
    times: u32,
    /// Since when it is in the chain of an active epoch.
    serves_since: Option<Duration>,
    wait_until: Duration,
}

impl LeftOut {
    /// Nothing happened yet.
    pub(super) fn new(period: Duration) -> Self {
        Self {
            period,
            times: 0,
            serves_since: None,
            wait_until: Duration::ZERO,
        }
    }

    /// It is in the chain of an active epoch.
    pub(super) fn serves(&mut self, now: Duration) {
        self.serves_since.get_or_insert(now);
    }

    /// It was in a chain, or should have been, and is not any more.
    pub(super) fn left_out(&mut self, now: Duration) {
        let healed = self.period * LONGEST;
        let since = self.serves_since.take();
        if since.is_some_and(|since| now >= since + healed) {
            self.times = 0;
        }
        let wait = match self.times {
            0 => Duration::ZERO,
            times => self.period * FIRST.saturating_mul(1 << (times - 1).min(16)).min(LONGEST),
        };
        self.times = self.times.saturating_add(1);
        self.wait_until = now + wait;
    }

    /// Whether it may join now.
    pub(super) fn may_join(&self, now: Duration) -> bool {
        now >= self.wait_until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_until_it_was_in_for_long() {
        let period = Duration::from_millis(50);
        let mut left_out = LeftOut::new(period);
        let mut now = Duration::from_secs(1);
        assert!(left_out.may_join(now));
        for wait in [0, 1, 2, 4, 8, 16, 32, 60, 60] {
            left_out.serves(now);
            now += Duration::from_secs(1);
            left_out.left_out(now);
            let wait = Duration::from_secs(wait);
            assert!(left_out.may_join(now + wait));
            assert!(wait.is_zero() || !left_out.may_join(now + wait - period));
            now += wait;
        }
        left_out.serves(now);
        now += Duration::from_secs(60);
        left_out.serves(now);
        left_out.left_out(now);
        assert!(left_out.may_join(now), "long ago");
        // It did not even get in.
        left_out.left_out(now);
        assert!(!left_out.may_join(now));
    }
}
