//! Dirty pages: which there are, and which of them must go out soon.
//!
//! A page that a sync has asked for is in the queue once, however many syncs ask for it before it is taken: each of them
//! waits for all that is in the queue when it asks. So neither memory nor the time of a sync grows with how many wait.

use crate::addr::{Lba, LbaRange};
use crate::remap::Remap;
use std::collections::{BTreeSet, VecDeque};

/// The dirty pages the core knows of.
#[derive(Debug, Default)]
pub(crate) struct Dirty {
    /// Nobody has asked for these. In order of address, so that neighbours travel together.
    calm: BTreeSet<Lba>,
    /// A sync has asked for these: all of them are in the queue.
    urged: BTreeSet<Lba>,
    /// The queue, in the order of the asking. Some are dirty no more.
    urgent: VecDeque<Lba>,
    pushed: u64,
    popped: u64,
    /// So many may be written out now for other reasons (age, pressure).
    pub(crate) background: usize,
    /// Where the last background write-out stopped.
    cursor: u64,
}

impl Dirty {
    pub(crate) fn insert(&mut self, lba: Lba) {
        if !self.urged.contains(&lba) {
            self.calm.insert(lba);
        }
    }

    pub(crate) fn remove(&mut self, lba: Lba) {
        if !self.calm.remove(&lba) {
            self.urged.remove(&lba);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.calm.len() + self.urged.len()
    }

    /// Whether a page of `range` is dirty.
    pub(crate) fn is_in(&self, range: LbaRange) -> bool {
        self.within(range).next().is_some()
    }

    /// The dirty pages of `range`, in no order.
    pub(crate) fn within(&self, range: LbaRange) -> impl Iterator<Item = Lba> + '_ {
        let range = range.start..range.end();
        let calm = self.calm.range(range.clone());
        calm.chain(self.urged.range(range)).copied()
    }

    /// Makes the dirty pages of `range` urgent; returns the mark to wait for.
    pub(crate) fn urge(&mut self, range: LbaRange) -> u64 {
        if range.count > 0 {
            for lba in self.calm.extract_if(range.start..range.end(), |_| true) {
                self.urged.insert(lba);
                self.urgent.push_back(lba);
                self.pushed += 1;
            }
        }
        self.pushed
    }

    /// Pages have another name: who waits for one waits for the same page.
    pub(crate) fn rename(&mut self, remap: Remap) {
        for lba in &mut self.urgent {
            if remap.source().contains(*lba) {
                *lba = remap.renamed(*lba);
            }
        }
        // With those in the queue: what says that it is there must be.
        let source = remap.source();
        let moved = self.urged.extract_if(source.start..source.end(), |_| true);
        let moved: Vec<Lba> = moved.collect();
        self.urged
            .extend(moved.into_iter().map(|lba| remap.renamed(lba)));
    }

    /// Whether everything urged up to `mark` has been taken.
    pub(crate) fn reached(&self, mark: u64) -> bool {
        self.popped >= mark
    }

    pub(crate) fn has_urgent(&self) -> bool {
        !self.urgent.is_empty()
    }

    pub(crate) fn urgent_count(&self) -> usize {
        self.urgent.len()
    }

    pub(crate) fn first_urgent(&self) -> Option<Lba> {
        self.urgent.front().copied()
    }

    pub(crate) fn pop_urgent(&mut self) -> Option<Lba> {
        let lba = self.urgent.pop_front()?;
        self.popped += 1;
        self.remove(lba);
        Some(lba)
    }

    /// The next page for a background write-out. The caller puts it back if it can not be taken now.
    pub(crate) fn pop_background(&mut self) -> Option<Lba> {
        if self.background == 0 {
            return None;
        }
        let next = self.first_from(Lba(self.cursor));
        let Some(lba) = next.or_else(|| self.first_from(Lba(0))) else {
            self.background = 0;
            return None;
        };
        self.background -= 1;
        self.cursor = lba.0 + 1;
        self.remove(lba);
        Some(lba)
    }

    fn first_from(&self, lba: Lba) -> Option<Lba> {
        let calm = self.calm.range(lba..).next();
        let urged = self.urged.range(lba..).next();
        calm.into_iter().chain(urged).min().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dirty(lbas: std::ops::Range<u64>) -> Dirty {
        let mut dirty = Dirty::default();
        lbas.for_each(|lba| dirty.insert(Lba(lba)));
        dirty
    }

    fn taken(dirty: &mut Dirty) -> Vec<u64> {
        std::iter::from_fn(|| dirty.pop_urgent())
            .map(|lba| lba.0)
            .collect()
    }

    /// Many who sync the same queue each page once, and each waits for all of them (I1, I16).
    #[test]
    fn once_in_the_queue() {
        let mut dirty = dirty(0..10);
        let first = dirty.urge(LbaRange::new(Lba(0), 5));
        let marks: Vec<u64> = (0..100).map(|_| dirty.urge(LbaRange::SPACE)).collect();
        assert_eq!(dirty.urgent_count(), 10);
        assert_eq!(dirty.len(), 10);
        for _ in 0..5 {
            assert!(!dirty.reached(first));
            dirty.pop_urgent();
        }
        assert!(dirty.reached(first) && !dirty.reached(marks[0]));
        assert_eq!(taken(&mut dirty), [5, 6, 7, 8, 9]);
        assert!(marks.iter().all(|&mark| dirty.reached(mark)));
        assert_eq!(dirty.len(), 0);
    }

    /// What is dirtied again after it was taken is asked for again (I1).
    #[test]
    fn asked_for_again() {
        let mut dirty = dirty(0..2);
        dirty.urge(LbaRange::SPACE);
        assert_eq!(dirty.pop_urgent(), Some(Lba(0)));
        dirty.insert(Lba(0));
        let mark = dirty.urge(LbaRange::SPACE);
        assert_eq!(taken(&mut dirty), [1, 0]);
        assert!(dirty.reached(mark));
    }

    /// A page that leaves the books while it is in the queue, and comes back, is in the queue when it is asked for.
    #[test]
    fn comes_back() {
        let mut dirty = dirty(0..3);
        dirty.urge(LbaRange::SPACE);
        dirty.remove(Lba(1));
        dirty.insert(Lba(1));
        let mark = dirty.urge(LbaRange::SPACE);
        assert_eq!(taken(&mut dirty), [0, 1, 2, 1]);
        assert!(dirty.reached(mark));
    }

    /// A page that gets another name is waited for under that one, by those who asked for it before and after.
    #[test]
    fn renamed() {
        let mut dirty = dirty(0..3);
        dirty.urge(LbaRange::SPACE);
        dirty.rename(Remap {
            from: Lba(1),
            to: Lba(50),
            count: 1,
        });
        dirty.remove(Lba(1));
        dirty.insert(Lba(50));
        dirty.urge(LbaRange::SPACE);
        assert_eq!(taken(&mut dirty), [0, 50, 2]);
        assert_eq!(dirty.len(), 0);
    }

    /// The background takes from both, in order of address, and begins again at the end.
    #[test]
    fn background() {
        let mut dirty = dirty(0..6);
        dirty.urge(LbaRange::new(Lba(2), 2));
        dirty.cursor = 4;
        dirty.background = 10;
        let all = std::iter::from_fn(|| dirty.pop_background());
        let all: Vec<u64> = all.map(|lba| lba.0).collect();
        assert_eq!(all, [4, 5, 0, 1, 2, 3]);
    }
}
