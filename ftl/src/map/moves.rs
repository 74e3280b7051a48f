//! Names of grains that change while somebody looks without the lock.
//!
//! A remap or clone unmaps its target before it names it again, entry by entry. Whoever looks meanwhile finds nothing
//! where there was something all the time. So what a batch with new names does to the map is one *move*.
//!
//! # Why an unmapped entry can be believed
//! The holder of the lock makes the count odd, changes entries and leaves, and makes it even again. A reader loads it,
//! looks, and loads it again; an entry counts as unmapped if both loads saw the same even number. Say that the reader
//! found what a move has unmapped for the moment: an entry that it emptied, a leaf that it removed, or one that it made.
//! The look acquires what the move released behind its first step, so the second load sees that step, and hence the
//! first load saw a number not below it. An even one of these is of the second step or later, and acquires all of the
//! move: the look came after it, and finds the leaf and the entry as the move left them. So what was found is not of the
//! moment.
//!
//! A reader writes nothing. Who has found the count odd, or another, does not try again but asks the core, which is
//! behind the lock and hence behind the move. Pages that are found need none of this: a pin holds what the grain was
//! at the moment of the pin.

use std::sync::atomic::{AtomicU64, Ordering};

/// A count that is odd while names change.
#[derive(Debug, Default)]
pub(crate) struct Moves(AtomicU64);

/// What a reader saw before it looked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen(u64);

impl Moves {
    /// Before the first entry changes. Lock held.
    pub(crate) fn begin(&self) {
        let before = self.0.fetch_add(1, Ordering::SeqCst);
        assert!(before.is_multiple_of(2), "one move at a time");
    }

    /// The last name is there. Lock held.
    pub(crate) fn end(&self) {
        let before = self.0.fetch_add(1, Ordering::SeqCst);
        assert!(!before.is_multiple_of(2), "a move has begun");
    }

    /// Before looking.
    pub(crate) fn look(&self) -> Seen {
        Seen(self.0.load(Ordering::SeqCst))
    }

    /// After looking: whether no name has changed since.
    pub(crate) fn is_still(&self, seen: Seen) -> bool {
        seen.0.is_multiple_of(2) && self.0.load(Ordering::SeqCst) == seen.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A look during a move, over its beginning or over its end is not believed; one before and one after are (I2).
    #[test]
    fn looks() {
        let moves = Moves::default();
        let before = moves.look();
        assert!(moves.is_still(before));
        moves.begin();
        let during = moves.look();
        assert!(!moves.is_still(before) && !moves.is_still(during));
        moves.end();
        assert!(!moves.is_still(before) && !moves.is_still(during));
        assert!(moves.is_still(moves.look()));
    }
}
