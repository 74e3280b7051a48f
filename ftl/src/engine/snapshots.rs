//! What snapshots need: images of grains, and batches with which something becomes of a snapshot. See `docs/snapshots.md`.

use super::Ftl;
use crate::addr::{Lba, LbaRange};
use crate::batch::AtomicBatch;
use crate::core::{Held, PendingCommit};
use crate::error::CommitError;
use crate::ids::{Port, Token};
#[cfg(doc)]
use crate::port::Event;
use crate::shared::Shared;
use crate::snapshot::{Marks, Slot, SnapshotChange};

impl Ftl {
    /// As [`commit`](Self::commit), of a batch that may name images and tables of snapshots, and with which something may
    /// become of one. Whoever makes one has synced everything, and its slot is not in use; whoever forgets one has left
    /// nothing of it. See `docs/snapshots.md`.
    pub fn commit_snapshot(
        &self,
        port: Port,
        batch: AtomicBatch,
        change: Option<SnapshotChange>,
        token: Token,
    ) -> Result<(), CommitError> {
        let grains_max = self.batch_grains_max();
        let commit = PendingCommit::of_images((port, token), batch, grains_max)?;
        let commit = match change {
            Some(change) => commit.changing(change),
            None => commit,
        };
        self.core(port, |core, cx| core.commit(cx, commit));
        Ok(())
    }

    /// The superblock says that there may be snapshots; [`Event::Durable`] when it does. Before, no batch may name an image.
    pub fn admit_images(&self, port: Port, token: Token) {
        self.core(port, |core, cx| core.admit_images(cx, token));
    }

    /// Whether there may be snapshots.
    pub fn admits_images(&self) -> bool {
        self.core(Shared::BACKGROUND, |core, _| core.admits_images())
    }

    /// The snapshots that have been found on the media, oldest first: slot, marks, places given to marks, and whether it is
    /// being deleted. Before anybody changes anything.
    pub fn set_snapshots(&self, found: Vec<(Slot, Marks, u32, bool)>) {
        self.core(Shared::BACKGROUND, |core, cx| core.set_snapshots(cx, found));
    }

    /// What a grain was at a snapshot. The answer holds until the grain changes: whoever reads what it names asks again
    /// afterwards.
    pub fn held(&self, slot: Slot, lba: Lba) -> Held {
        self.core(Shared::BACKGROUND, |core, cx| core.held(cx, slot, lba))
    }

    /// As [`held`](Self::held), of several grains.
    pub fn held_all(&self, slot: Slot, lbas: &[Lba]) -> Vec<Held> {
        self.core(Shared::BACKGROUND, |core, cx| {
            lbas.iter().map(|&lba| core.held(cx, slot, lba)).collect()
        })
    }

    /// First grain of a range that was mapped at a snapshot, of what is in memory of the range and its images.
    pub fn next_held(&self, slot: Slot, range: LbaRange) -> Option<Lba> {
        self.core(Shared::BACKGROUND, |core, cx| {
            core.next_held(cx, slot, range)
        })
    }

    /// Number of grains at the beginning of a range that were mapped at a snapshot, and what is left of the range to be asked
    /// for; of what is in memory of the range and its images.
    pub fn held_count(&self, slot: Slot, range: LbaRange) -> (u64, LbaRange) {
        self.core(Shared::BACKGROUND, |core, cx| {
            core.held_count(cx, slot, range)
        })
    }

    /// Whether a snapshot has an image or a mark of its own for a grain.
    pub(crate) fn has_own(&self, slot: Slot, lba: Lba) -> bool {
        self.core(Shared::BACKGROUND, |core, cx| core.has_own(cx, slot, lba))
    }

    /// A grain for marks of a slot in which there are none.
    pub(crate) fn give_mark_grain(&self, slot: Slot) -> Option<Lba> {
        self.core(Shared::BACKGROUND, |core, _| core.give_mark_grain(slot))
    }
}
