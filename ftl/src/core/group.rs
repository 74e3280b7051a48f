//! The forming group: batches that have taken effect and wait for the header that carries them.

use crate::addr::{Lba, LbaRange};
use crate::ids::{Port, Token};
use crate::map::{FrameId, ZeroId};
use crate::remap::Renaming;
use std::collections::BTreeMap;

/// A trim, zero, remap or clone of the forming group.
#[derive(Clone, Copy, Debug)]
pub(super) enum GroupRecord {
    Trim(LbaRange),
    Zero(ZeroId),
    Rename(Renaming),
}

/// Batches that have taken effect and wait for their write-out.
#[derive(Debug, Default)]
pub(super) struct Group {
    pub(super) pages: BTreeMap<Lba, FrameId>,
    /// Pins on the pages.
    pub(super) pins: Vec<(Lba, FrameId)>,
    /// In the order they took effect.
    pub(super) records: Vec<GroupRecord>,
    pub(super) waiters: Vec<(Port, Token)>,
    /// Goes out although nobody waits for it: it has been there long enough, or was in the way of pages.
    pub(super) wanted: bool,
}

impl Group {
    pub(super) fn is_empty(&self) -> bool {
        self.pages.is_empty() && self.records.is_empty()
    }

    /// Places its records take in a header.
    pub(super) fn slots(&self) -> usize {
        self.records.len() + self.renamings().count()
    }

    /// Its remaps and clones, in the order they took effect.
    pub(super) fn renamings(&self) -> impl Iterator<Item = Renaming> + '_ {
        self.records.iter().filter_map(|record| match record {
            GroupRecord::Rename(renaming) => Some(*renaming),
            GroupRecord::Trim(_) | GroupRecord::Zero(_) => None,
        })
    }

    pub(super) fn take_waiters(&mut self) -> Vec<(Port, Token)> {
        std::mem::take(&mut self.waiters)
    }

    /// Takes a trimmed page out; true if the group held a pin on it.
    pub(super) fn remove_page(&mut self, lba: Lba) -> bool {
        self.pins.retain(|&(l, _)| l != lba);
        self.pages.remove(&lba).is_some()
    }
}
