//! Is the history of an object that of a register, one operation at a time? (M7, I13)
//!
//! The search of Wing and Gong with Lowe's memory of what was tried: which operations have taken effect, and the value then.
//! Operations whose outcome is unknown may take effect at any time after they began, or never.

use std::collections::HashSet;
use std::time::Duration;

/// What was asked of an object, and answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// This was read; also by a compare-and-swap that did not swap.
    Read(u64),
    /// This was written.
    Write(u64),
    /// The first was swapped for the second.
    Swap(u64, u64),
}

/// One operation. Without `end`, its outcome is unknown.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    pub object: usize,
    pub client: usize,
    pub kind: Kind,
    pub begin: Duration,
    pub end: Option<Duration>,
}

/// Steps of a search, after which it is given up.
const STEPS_MAX: usize = 2_000_000;

/// What is wrong with the history of one object that starts with the value 0, if anything is.
pub fn check(history: &[Operation]) -> Result<(), String> {
    // What nobody has seen may be taken not to have happened.
    let seen = |value: u64| {
        history.iter().any(|one| match one.kind {
            Kind::Read(found) => found == value,
            Kind::Swap(old, _) => old == value,
            Kind::Write(_) => false,
        })
    };
    let mut operations: Vec<&Operation> = history
        .iter()
        .filter(|one| match (one.end, one.kind) {
            (None, Kind::Read(_)) => false,
            (None, Kind::Write(new) | Kind::Swap(_, new)) => seen(new),
            (Some(_), _) => true,
        })
        .collect();
    operations.sort_by_key(|one| one.begin);
    let known = operations.iter().filter(|one| one.end.is_some()).count();
    let words = operations.len().div_ceil(64);
    let mut tried: HashSet<(Vec<u64>, u64)> = HashSet::new();
    let mut stack = vec![(vec![0u64; words], 0u64, 0usize)];
    let mut furthest = (0, 0);
    while let Some((done, value, count)) = stack.pop() {
        if count == known {
            return Ok(());
        }
        if count > furthest.0 {
            furthest = (count, value);
        }
        let is_done = |at: usize| done[at / 64] >> (at % 64) & 1 == 1;
        // Nothing may take effect after something that ended before it began.
        let open = (0..operations.len()).filter(|at| !is_done(*at));
        let deadline = open
            .clone()
            .filter_map(|at| operations[at].end)
            .min()
            .unwrap_or(Duration::MAX);
        for at in open {
            let one = operations[at];
            if one.begin > deadline {
                break;
            }
            let next = match one.kind {
                Kind::Read(found) if found == value => value,
                Kind::Write(new) => new,
                Kind::Swap(old, new) if old == value => new,
                _ => continue,
            };
            let mut done = done.clone();
            done[at / 64] |= 1 << (at % 64);
            if tried.insert((done.clone(), next)) {
                stack.push((done, next, count + usize::from(one.end.is_some())));
            }
        }
        if tried.len() > STEPS_MAX {
            return Err(format!("not decided in {STEPS_MAX} steps"));
        }
    }
    let (count, value) = furthest;
    let mut said = format!("not linearizable: at best {count} of {known}, then {value}\n");
    for one in &operations {
        said += &format!(
            "  {:?}..{:?} client {} {:?}\n",
            one.begin, one.end, one.client, one.kind
        );
    }
    Err(said)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(kind: Kind, begin: u64, end: Option<u64>) -> Operation {
        Operation {
            object: 0,
            client: 0,
            kind,
            begin: Duration::from_micros(begin),
            end: end.map(Duration::from_micros),
        }
    }

    #[test]
    fn histories_that_are_and_are_not() {
        use Kind::{Read, Swap, Write};
        let good = [
            vec![
                at(Write(1), 0, Some(9)),
                at(Read(0), 1, Some(2)),
                at(Read(1), 3, Some(4)),
            ],
            vec![
                at(Write(1), 0, None),
                at(Read(0), 1, Some(2)),
                at(Read(1), 3, Some(4)),
            ],
            vec![at(Write(1), 0, None), at(Read(0), 5, Some(6))],
            vec![
                at(Swap(0, 1), 0, Some(5)),
                at(Swap(1, 2), 0, Some(5)),
                at(Read(2), 6, Some(7)),
            ],
        ];
        for history in good {
            assert_eq!(check(&history), Ok(()));
        }
        let bad = [
            // Lost, old, new and old again, out of nothing, twice.
            vec![at(Write(1), 0, Some(1)), at(Read(0), 2, Some(3))],
            vec![
                at(Write(1), 0, Some(9)),
                at(Read(1), 1, Some(2)),
                at(Read(0), 3, Some(4)),
            ],
            vec![
                at(Write(1), 0, None),
                at(Read(1), 1, Some(2)),
                at(Read(0), 3, Some(4)),
            ],
            vec![at(Read(7), 0, Some(1))],
            vec![at(Swap(0, 1), 0, Some(1)), at(Swap(0, 2), 0, Some(1))],
        ];
        for history in bad {
            assert!(check(&history).is_err(), "{history:?}");
        }
    }
}
