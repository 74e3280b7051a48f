//! What became of the peer's atomic operations, for an owner who tells a peer that has lost its connection, and the answers with
//! it.
//!
//! Atomic operations are executed in the order in which they were posted, each as a whole and before anything behind it. So
//! how many were executed says of each of them whether it was, without a number in the request, and what is kept of the last of
//! them are the answers that can have been lost. It is counted in the step in which the memory changes: not when the answer is queued,
//! which may never be if the connection ends before everybody has been told.

use std::collections::VecDeque;

use crate::connection::Connection;
use crate::page::PageStore;

/// Atomic operations of a peer that were executed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AtomicOutcomes {
    /// How many, since the connection began.
    pub executed: u64,
    /// What the words were before the last of them, the last one last; as many as
    /// [`Config::atomics_kept`](crate::Config::atomics_kept). 0 for ATOMIC WRITEs, which do not entitle to read.
    pub last: VecDeque<u64>,
}

impl AtomicOutcomes {
    /// What the word was before operation `n`, from 0, if it was executed and is kept.
    #[must_use]
    pub fn original(&self, n: u64) -> Option<u64> {
        let behind = self.executed.checked_sub(n).filter(|&behind| behind > 0)?;
        let at = (self.last.len() as u64).checked_sub(behind)?;
        self.last.get(at as usize).copied()
    }

    /// One more was executed; at most `kept` are remembered.
    pub(super) fn note(&mut self, original: u64, kept: usize) {
        self.executed += 1;
        if kept == 0 {
            return;
        }
        if self.last.len() >= kept {
            self.last.pop_front();
        }
        self.last.push_back(original);
    }
}

impl<S: PageStore> Connection<S> {
    /// What became of the peer's atomic operations so far. After [`abort`](Self::abort) none is executed any more.
    #[must_use]
    pub fn atomic_outcomes(&self) -> &AtomicOutcomes {
        &self.outcomes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each operation is found by its number, as long as it is kept, and none that was not executed is.
    #[test]
    fn operations_are_found_by_their_number() {
        let mut outcomes = AtomicOutcomes::default();
        assert_eq!(outcomes.original(0), None);
        for n in 0..10 {
            outcomes.note(100 + n, 4);
            for before in 0..12 {
                let kept = before <= n && before + 4 > n;
                assert_eq!(outcomes.original(before), kept.then_some(100 + before));
            }
        }
        let mut counted = AtomicOutcomes::default();
        counted.note(5, 0);
        assert_eq!((counted.executed, counted.original(0)), (1, None));
    }
}
