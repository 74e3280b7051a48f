//! Which member holds the others up.

use std::collections::BTreeMap;
use std::time::Duration;

use super::configuration::MemberId;

/// When a member is slow, and what is done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlowPolicy {
    /// Slow is: so many times the median of the chain,
    pub factor: u64,
    /// and at least this,
    pub floor: Duration,
    /// for so long.
    pub during: Duration,
    /// Whether it is removed; reported it is anyway.
    pub remove: bool,
    /// A chain is not made shorter than this for being slow.
    pub members_min: usize,
}

impl Default for SlowPolicy {
    fn default() -> Self {
        Self {
            factor: 8,
            floor: Duration::from_millis(100),
            during: Duration::from_secs(2),
            remove: false,
            members_min: 2,
        }
    }
}

impl SlowPolicy {
    /// Whose lag is above this is slow, in milliseconds. None, if there is nobody.
    fn bound(&self, lags: &[(MemberId, u64)]) -> Option<u64> {
        let mut sorted: Vec<u64> = lags.iter().map(|(_, lag)| *lag).collect();
        sorted.sort_unstable();
        // The lower median: of two members, the better one sets the measure.
        let median = *sorted.get(sorted.len().saturating_sub(1) / 2)?;
        let floor = self.floor.as_millis() as u64;
        Some(median.saturating_mul(self.factor).max(floor))
    }

    /// The slowest of a chain now, if it is slow.
    pub(super) fn slowest(&self, lags: &[(MemberId, u64)]) -> Option<MemberId> {
        let bound = self.bound(lags)?;
        let slow = lags.iter().filter(|(_, lag)| *lag > bound);
        slow.max_by_key(|(_, lag)| *lag).map(|(member, _)| *member)
    }
}

/// Remembers since when members are slow.
#[derive(Clone, Debug, Default)]
pub(super) struct SlowWatch {
    since: BTreeMap<MemberId, Duration>,
}

/// A member that is slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slow {
    pub(super) member: MemberId,
    pub(super) lag_ms: u64,
    pub(super) remove: bool,
}

impl SlowWatch {
    /// Looks at the lags of a chain. Tells of a member once, when it has been slow for long enough.
    pub(super) fn look(
        &mut self,
        policy: &SlowPolicy,
        now: Duration,
        lags: &[(MemberId, u64)],
    ) -> Option<Slow> {
        let bound = policy.bound(lags)?;
        self.since
            .retain(|member, _| lags.iter().any(|(id, lag)| id == member && *lag > bound));
        for (member, lag_ms) in lags.iter().copied().filter(|(_, lag)| *lag > bound) {
            let since = *self.since.entry(member).or_insert(now);
            if now >= since.saturating_add(policy.during) {
                self.since.insert(member, Duration::MAX);
                let remove = policy.remove && lags.len() > policy.members_min;
                return Some(Slow {
                    member,
                    lag_ms,
                    remove,
                });
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lags(values: &[u64]) -> Vec<(MemberId, u64)> {
        let ids = (0..).map(MemberId);
        ids.zip(values.iter().copied()).collect()
    }

    #[test]
    fn slow_for_long_enough_and_told_once() {
        let policy = SlowPolicy {
            during: Duration::from_secs(1),
            remove: true,
            ..SlowPolicy::default()
        };
        assert_eq!(policy.slowest(&lags(&[1, 900, 901])), None, "half are");
        assert_eq!(policy.slowest(&lags(&[901, 2, 3])), Some(MemberId(0)));
        assert_eq!(policy.slowest(&[]), None);
        let mut watch = SlowWatch::default();
        let at = Duration::from_millis;
        assert_eq!(watch.look(&policy, at(0), &lags(&[1, 900, 2])), None);
        assert_eq!(
            watch.look(&policy, at(500), &lags(&[1, 9, 2])),
            None,
            "better"
        );
        assert_eq!(watch.look(&policy, at(600), &lags(&[1, 900, 2])), None);
        let slow = Slow {
            member: MemberId(1),
            lag_ms: 901,
            remove: true,
        };
        assert_eq!(
            watch.look(&policy, at(1600), &lags(&[1, 901, 2])),
            Some(slow)
        );
        assert_eq!(watch.look(&policy, at(9600), &lags(&[1, 901, 2])), None);
    }

    /// All alike are not slow, two are not made one, and nobody is removed if the policy does not say so.
    #[test]
    fn removal_has_bounds() {
        let policy = SlowPolicy {
            remove: true,
            during: Duration::ZERO,
            ..SlowPolicy::default()
        };
        let look = |policy: &SlowPolicy, values: &[u64]| {
            SlowWatch::default().look(policy, Duration::ZERO, &lags(values))
        };
        assert_eq!(look(&policy, &[500, 500, 500]), None);
        assert_eq!(look(&policy, &[]), None);
        assert!(!look(&policy, &[1, 500]).unwrap().remove);
        assert!(look(&policy, &[1, 1, 500]).unwrap().remove);
        let tells = SlowPolicy {
            remove: false,
            ..policy
        };
        assert!(!look(&tells, &[1, 1, 500]).unwrap().remove);
    }
}
