//! Dirty pages: which there are, and which of them must go out soon.

use crate::addr::{Lba, LbaRange};
use crate::remap::Remap;
use std::collections::{BTreeSet, VecDeque};

/// The dirty pages the core knows of.
#[derive(Debug, Default)]
pub(crate) struct Dirty {
    /// In order of address, so that neighbours travel together.
    set: BTreeSet<Lba>,
    /// Asked for by a sync, in the order of the asking.
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
        self.set.insert(lba);
    }

    pub(crate) fn remove(&mut self, lba: Lba) {
        self.set.remove(&lba);
    }

    pub(crate) fn len(&self) -> usize {
        self.set.len()
    }

    /// Whether a page of `range` is dirty.
    pub(crate) fn is_in(&self, range: LbaRange) -> bool {
        self.within(range).next().is_some()
    }

    /// The dirty pages of `range`.
    pub(crate) fn within(&self, range: LbaRange) -> impl Iterator<Item = Lba> + '_ {
        self.set.range(range.start..range.end()).copied()
    }

    /// Makes the dirty pages of `range` urgent; returns the mark to wait for.
    pub(crate) fn urge(&mut self, range: LbaRange) -> u64 {
        if range.count > 0 {
            for &lba in self.set.range(range.start..range.end()) {
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
        self.set.remove(&lba);
        Some(lba)
    }

    /// The next page for a background write-out. The caller puts it back if it can not be taken now.
    pub(crate) fn pop_background(&mut self) -> Option<Lba> {
        if self.background == 0 {
            return None;
        }
        let next = self.set.range(Lba(self.cursor)..).next().copied();
        let Some(lba) = next.or_else(|| self.set.first().copied()) else {
            self.background = 0;
            return None;
        };
        self.background -= 1;
        self.cursor = lba.0 + 1;
        self.set.remove(&lba);
        Some(lba)
    }
}
