//! What one reactor has asked for of files that others want to move: what is outstanding, and what waits until a file has
//! settled.
//!
//! # Invariants
//! - S1. A reactor says that it is drained of a backing when nothing asked for through it is outstanding. What comes for a
//!   held file is given back before that is said, and asked for anew behind [`Stalls::resume`].
//! - S2. What is outstanding and what stalls belongs to operations of connections, whose number is bounded by their windows.

use std::collections::HashMap;
use std::sync::Arc;

use softrdma::BackingId;

/// Tells that a reactor is drained. Dropping it tells the same: a reactor that has ended holds nothing.
pub(super) trait Drained {
    /// It is.
    fn tell(self);
}

/// Of which files.
#[derive(Clone, Debug)]
pub(super) enum Of {
    /// Of these.
    Some(Arc<[BackingId]>),
    /// Of all.
    All,
}

impl From<&[BackingId]> for Of {
    fn from(some: &[BackingId]) -> Self {
        Self::Some(some.into())
    }
}

impl Of {
    /// Whether this is one of them.
    pub(super) fn has(&self, backing: BackingId) -> bool {
        match self {
            Self::Some(some) => some.contains(&backing),
            Self::All => true,
        }
    }
}

#[derive(Debug)]
struct Drain<D> {
    of: Of,
    done: D,
}

/// See the module's description. `T` is what stalls, `D` who is told.
#[derive(Debug)]
pub(super) struct Stalls<T, D> {
    outstanding: HashMap<BackingId, usize>,
    stalled: Vec<(BackingId, T)>,
    drains: Vec<Drain<D>>,
}

impl<T, D: Drained> Stalls<T, D> {
    /// Nothing.
    pub(super) fn new() -> Self {
        Self {
            outstanding: HashMap::new(),
            stalled: Vec::new(),
            drains: Vec::new(),
        }
    }

    /// Something has been asked for, and comes later.
    pub(super) fn asked(&mut self, backing: BackingId) {
        *self.outstanding.entry(backing).or_default() += 1;
    }

    /// It has come, and been given back if its file is held.
    pub(super) fn came(&mut self, backing: BackingId) {
        let count = self.outstanding.get_mut(&backing);
        let count = count.expect("what comes has been asked for");
        *count -= 1;
        if *count == 0 {
            self.outstanding.remove(&backing);
            self.tell_drained();
        }
    }

    /// Something has to wait until its file has settled.
    pub(super) fn stall(&mut self, backing: BackingId, what: T) {
        self.stalled.push((backing, what));
    }

    /// Somebody wants to know when nothing is outstanding of these backings.
    pub(super) fn drain(&mut self, of: Of, done: D) {
        self.drains.push(Drain { of, done });
        self.tell_drained();
    }

    /// These files have settled, or gone: what has waited for that.
    pub(super) fn resume(&mut self, of: &Of) -> Vec<T> {
        self.stalled
            .extract_if(.., |(backing, _)| of.has(*backing))
            .map(|(_, what)| what)
            .collect()
    }

    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.outstanding.is_empty() && self.stalled.is_empty()
    }

    fn tell_drained(&mut self) {
        let outstanding = &self.outstanding;
        let drained = |drain: &mut Drain<D>| match &drain.of {
            Of::Some(some) => !some.iter().any(|backing| outstanding.contains_key(backing)),
            Of::All => outstanding.is_empty(),
        };
        for drain in self.drains.extract_if(.., drained) {
            drain.done.tell();
        }
    }
}
