//! Did each gCAS of a write lock take effect once? (I1, K1, K3)
//!
//! A lock's generation counts, in the members' memory, the writers that have had it. In one epoch it goes up by one with each gCAS that took
//! the lock, and a lock that was taken without anybody being told so is not given again before the next epoch. So those who were
//! granted a lock in an epoch have generations without repetition and without gaps, in the order of their grants; and the
//! word that is left in the end is that of the last of them, free. A new epoch may begin with an older generation,
//! since words need not be durable.

use std::collections::BTreeMap;
use std::time::Duration;

use offload_chain::Epoch;
use offload_chain::lock::{LockId, Word};

/// A client has the write lock from now on, as it was told; or has kept it, as it finds in a new epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    pub at: Duration,
    pub client: usize,
    pub epoch: Epoch,
    pub lock: LockId,
    pub generation: u64,
}

/// What is wrong with the grants of a run that ended in this epoch, with these words, if anything is.
pub fn check(grants: &[Grant], last: Epoch, words: &[Word]) -> Result<(), String> {
    let mut sorted = grants.to_vec();
    // What a client is told in one moment stays in order; two clients never have a lock in the same.
    sorted.sort_by_key(|grant| grant.at);
    let mut newest: BTreeMap<(Epoch, LockId), Grant> = BTreeMap::new();
    for grant in sorted {
        let before = newest.insert((grant.epoch, grant.lock), grant);
        if let Some(before) = before.filter(|one| grant.generation != one.generation + 1) {
            return Err(format!("granted {before:?}, and then {grant:?}"));
        }
    }
    for (lock, word) in (0..).map(LockId).zip(words) {
        let newest = newest.get(&(last, lock));
        let generation = newest.map_or(word.generation(), |grant| grant.generation);
        if *word != Word::free(generation) {
            return Err(format!("{lock:?} is {word:?} after {newest:?}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use offload_chain::lock::Slot;

    use super::*;

    fn grant(at: u64, client: usize, epoch: u64, generation: u64) -> Grant {
        Grant {
            at: Duration::from_micros(at),
            client,
            epoch: Epoch(epoch),
            lock: LockId::LOG,
            generation,
        }
    }

    #[test]
    fn grants_that_are_and_are_not() {
        let end = |grants: &[Grant], word| check(grants, Epoch(2), &[word]);
        let good = [grant(1, 0, 1, 7), grant(2, 1, 1, 8), grant(3, 1, 2, 8)];
        assert_eq!(end(&good, Word::free(8)), Ok(()));
        // An answer of an old epoch is late; another lock; nobody was granted it in the last epoch.
        let late = [grant(3, 0, 1, 9), grant(2, 1, 2, 9), grant(4, 0, 2, 10)];
        assert_eq!(end(&late, Word::free(10)), Ok(()));
        let lock = LockId(1);
        let other = [grant(1, 0, 2, 3), Grant { lock, ..good[0] }];
        assert_eq!(end(&other, Word::free(3)), Ok(()));
        assert_eq!(end(&good[..2], Word::free(20)), Ok(()));
        let bad = [
            // Twice, to another and to the same; taken without being granted; out of order.
            [grant(1, 0, 2, 7), grant(2, 1, 2, 7)],
            [grant(1, 0, 2, 7), grant(2, 0, 2, 7)],
            [grant(1, 0, 2, 7), grant(2, 1, 2, 9)],
            [grant(2, 0, 2, 7), grant(1, 1, 2, 8)],
        ];
        for grants in bad {
            let last = grants.iter().map(|grant| grant.generation).max().unwrap();
            assert!(end(&grants, Word::free(last)).is_err(), "{grants:?}");
        }
        // Taken after the last grant, and not given back; given back, but not by whom it was granted to.
        let slot = Slot::new(5).unwrap();
        for word in [
            Word::written(9, slot),
            Word::written(8, slot),
            Word::free(9),
        ] {
            assert!(end(&good, word).is_err(), "{word:?}");
        }
        assert!(end(&[], Word::free(3).with_reader(slot)).is_err());
    }
}
