//! A batch that has been accepted and has not taken effect.

use crate::addr::{GRAIN_BYTES, Lba, LbaRange};
use crate::batch::AtomicBatch;
use crate::error::{CommitError, DurableError};
use crate::ids::{Port, Token};
use crate::map::FrameId;
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
}

impl PendingCommit {
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
        let ranges = batch.trims.len() + batch.zeros.len() + batch.renamed().count();
        if ranges > AtomicBatch::RANGES_MAX {
            return Err(CommitError::TooLarge);
        }
        for range in batch.trims.iter().chain(&batch.zeros) {
            let end = range.start.0.checked_add(range.count);
            if end.is_none_or(|end| end > Lba::END.0) {
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
            let inside = |lba: Lba| lba.0 <= Lba::END.0 - remap.count;
            if !inside(remap.from) || !inside(remap.to) {
                return Err(CommitError::OutOfRange);
            }
        }
        if overlaps(&batch) {
            return Err(CommitError::Overlap);
        }
        let mut wanted: BTreeMap<Lba, bool> = BTreeMap::new();
        for (lba, offset, bytes) in &batch.patches {
            if *lba >= Lba::END || usize::from(*offset) + bytes.len() > GRAIN_BYTES {
                return Err(CommitError::OutOfRange);
            }
            *wanted.entry(*lba).or_default() |= bytes.len() == GRAIN_BYTES;
        }
        if wanted.len() > grains_max {
            return Err(CommitError::TooLarge);
        }
        let wanted = wanted
            .into_iter()
            .map(|(lba, whole)| Wanted {
                lba,
                whole,
                got: Got::Nothing,
            })
            .collect();
        Ok(Self {
            port,
            token,
            batch,
            wanted,
            failed: None,
            urged: 0,
            relaxed: false,
        })
    }
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
