//! A batch that has been accepted and has not taken effect.

use crate::addr::{GRAIN_BYTES, Lba, LbaRange};
use crate::batch::AtomicBatch;
use crate::error::{CommitError, DurableError};
use crate::ids::{Port, Token};
use crate::map::FrameId;
use crate::snapshot::{Marks, Slot, SnapshotChange};
use std::collections::BTreeMap;

/// A page of a waiting batch.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) lba: Lba,
    /// All of its bytes are replaced.
    pub(super) whole: bool,
    pub(super) got: Got,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Got {
    Nothing,
    Asked,
    Pinned(FrameId),
    Exclusive(FrameId),
}

/// What a batch of the engine's own keeps for a snapshot.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) slot: Slot,
    pub(super) lbas: Vec<Lba>,
    pub(super) marks: Marks,
    /// For what batches patch; else for data.
    pub(super) of_batches: bool,
}

/// A batch that has not taken effect.
#[derive(Debug)]
pub(crate) struct PendingCommit {
    pub(super) port: Port,
    pub(super) token: Token,
    pub(super) batch: AtomicBatch,
    pub(super) wanted: Vec<Wanted>,
    pub(super) failed: Option<DurableError>,
    /// How often the sources of its clones were made urgent.
    pub(super) urged: u32,
    /// Answered when it takes effect, not when it is durable.
    pub(super) relaxed: bool,
    /// If it is the engine's own: nobody is answered.
    pub(super) kept: Option<Kept>,
    /// What becomes of snapshots with it.
    pub(super) change: Option<SnapshotChange>,
}

impl PendingCommit {
    /// A batch of the engine's own. It is as large as such batches are.
    pub(super) fn keeping(batch: AtomicBatch, kept: Kept) -> Self {
        let own = (Port(0), Token(u64::MAX));
        let wanted = wanted(&batch);
        Self {
            kept: Some(kept),
            ..Self::with(own, batch, wanted)
        }
    }

    /// The same, with which something becomes of snapshots.
    pub(crate) fn changing(self, change: SnapshotChange) -> Self {
        let change = Some(change);
        Self { change, ..self }
    }

    /// The same, answered when it takes effect.
    pub(crate) fn relaxed(self) -> Self {
        Self {
            relaxed: true,
            ..self
        }
    }

    /// Checks a batch and notes which pages it needs. `grains_max` is the volume's limit.
    pub(crate) fn new(
        port: Port,
        token: Token,
        batch: AtomicBatch,
        grains_max: usize,
    ) -> Result<Self, CommitError> {
        Self::below(Lba::END, (port, token), batch, grains_max)
    }

    /// As `new`, of a batch that may name images.
    pub(crate) fn of_images(
        asker: (Port, Token),
        batch: AtomicBatch,
        grains_max: usize,
    ) -> Result<Self, CommitError> {
        Self::below(Lba::SPACE_END, asker, batch, grains_max)
    }

    fn below(
        end_of_all: Lba,
        asker: (Port, Token),
        batch: AtomicBatch,
        grains_max: usize,
    ) -> Result<Self, CommitError> {
        let ranges = batch.trims.len() + batch.zeros.len() + batch.renamed().count();
        if ranges > AtomicBatch::RANGES_MAX {
            return Err(CommitError::TooLarge);
        }
        for range in batch.trims.iter().chain(&batch.zeros) {
            let end = range.start.0.checked_add(range.count);
            if end.is_none_or(|end| end > end_of_all.0) {
                return Err(CommitError::OutOfRange);
            }
            if range.count > u64::from(u32::MAX) {
                return Err(CommitError::TooLarge);
            }
        }
        let mut moved: u64 = 0;
        for remap in batch.renamed() {
            moved = moved.saturating_add(remap.count);
            if moved > AtomicBatch::MOVED_MAX {
                return Err(CommitError::TooLarge);
            }
            let inside = |lba: Lba| lba.0 <= end_of_all.0 - remap.count;
            if !inside(remap.from) || !inside(remap.to) {
                return Err(CommitError::OutOfRange);
            }
        }
        if overlaps(&batch) {
            return Err(CommitError::Overlap);
        }
        for (lba, offset, bytes) in &batch.patches {
            if *lba >= end_of_all || usize::from(*offset) + bytes.len() > GRAIN_BYTES {
                return Err(CommitError::OutOfRange);
            }
        }
        let wanted = wanted(&batch);
        if wanted.len() > grains_max {
            return Err(CommitError::TooLarge);
        }
        Ok(Self::with(asker, batch, wanted))
    }

    fn with((port, token): (Port, Token), batch: AtomicBatch, wanted: Vec<Wanted>) -> Self {
        Self {
            port,
            token,
            batch,
            wanted,
            failed: None,
            urged: 0,
            relaxed: false,
            kept: None,
            change: None,
        }
    }
}

/// The pages that the patches of a batch need.
fn wanted(batch: &AtomicBatch) -> Vec<Wanted> {
    let mut wanted: BTreeMap<Lba, bool> = BTreeMap::new();
    for (lba, _, bytes) in &batch.patches {
        *wanted.entry(*lba).or_default() |= bytes.len() == GRAIN_BYTES;
    }
    let wanted = wanted.into_iter().map(|(lba, whole)| Wanted {
        lba,
        whole,
        got: Got::Nothing,
    });
    wanted.collect()
}

/// Whether what a batch moves or clones has grains in common with anything else in it.
fn overlaps(batch: &AtomicBatch) -> bool {
    let moved: Vec<LbaRange> = batch
        .renamed()
        .flat_map(|r| [r.source(), r.target()])
        .collect();
    let patched = batch.patches.iter().map(|p| LbaRange::new(p.0, 1));
    let others = batch.trims.iter().chain(&batch.zeros).copied();
    let others: Vec<LbaRange> = others.chain(patched).collect();
    let meets = |(n, range): (usize, &LbaRange)| {
        let rest = moved[n + 1..].iter().chain(&others);
        rest.into_iter().any(|other| range.meets(*other))
    };
    moved.iter().enumerate().any(meets)
}
