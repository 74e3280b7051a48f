//! Which entries of the map have changed since the last checkpoint.

use crate::addr::Lba;
use crate::map::LeafHasher;
use std::collections::HashMap;
use std::hash::BuildHasherDefault;

/// Grains that share a word.
const WORD_GRAINS: u64 = 64;

/// A bit for each changed grain.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    masks: HashMap<u64, u64, BuildHasherDefault<LeafHasher>>,
    count: u64,
    /// Nobody will ask: the volume takes no checkpoints.
    ignored: bool,
}

impl Changes {
    pub(crate) fn new(ignored: bool) -> Self {
        Self {
            ignored,
            ..Self::default()
        }
    }

    pub(crate) fn note(&mut self, lba: Lba) {
        if self.ignored {
            return;
        }
        let mask = self.masks.entry(lba.0 / WORD_GRAINS).or_default();
        let bit = 1 << (lba.0 % WORD_GRAINS);
        self.count += u64::from(*mask & bit == 0);
        *mask |= bit;
    }

    /// Changed grains.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Every changed grain, ascending; none are changed any more.
    pub(crate) fn take(&mut self) -> Vec<Lba> {
        let mut masks: Vec<(u64, u64)> = self.masks.drain().collect();
        masks.sort_unstable();
        let mut changed = Vec::with_capacity(self.count as usize);
        self.count = 0;
        for (word, mut mask) in masks {
            while mask != 0 {
                changed.push(Lba(word * WORD_GRAINS + u64::from(mask.trailing_zeros())));
                mask &= mask - 1;
            }
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each grain once, in order of address.
    #[test]
    fn once_and_ascending() {
        let mut changes = Changes::new(false);
        for lba in [700, 3, 64, 63, 3, (1 << 52) - 1] {
            changes.note(Lba(lba));
        }
        assert_eq!(changes.count(), 5);
        let taken: Vec<u64> = changes.take().into_iter().map(|l| l.0).collect();
        assert_eq!(taken, [3, 63, 64, 700, (1 << 52) - 1]);
        assert_eq!((changes.count(), changes.take().len()), (0, 0));
    }
}
