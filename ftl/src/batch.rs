//! Atomic batches: changes that reach the media all or not at all.

use crate::addr::{Lba, LbaRange};
use crate::remap::Remap;

/// A set of changes that becomes visible at once and survives a crash as a whole or not at all.
///
/// Patches are applied in order; trims and zeros take effect after the patches, on grains the patches do not touch.
/// The ranges of a remap or clone have nothing in common with anything else in the batch.
#[derive(Clone, Debug, Default)]
pub struct AtomicBatch {
    /// Bytes to put inside single grains: (grain, byte offset in it, bytes). A patch never crosses a grain.
    pub patches: Vec<(Lba, u16, Vec<u8>)>,
    /// Ranges to forget: they read as zeros and cost no space.
    pub trims: Vec<LbaRange>,
    /// Ranges to reserve: unmapped grains in them count as used and read as zeros; mapped ones keep their content.
    pub zeros: Vec<LbaRange>,
    /// Ranges to move without writing their data.
    pub remaps: Vec<Remap>,
    /// Ranges to clone without writing their data.
    pub clones: Vec<Remap>,
    /// What has been put in this range goes along: it is durable no later than the rest of the batch.
    pub along: Option<LbaRange>,
}

impl AtomicBatch {
    /// Most grains that the patches of one batch may touch.
    pub const GRAINS_MAX: usize = 64;
    /// Most pages that have been put and go along with one batch.
    pub const ALONG_MAX: usize = 32;
    /// Most trims, zeros, remaps and clones of one batch together.
    pub const RANGES_MAX: usize = 32;
    /// Most grains that the ranges one batch moves and clones may have together: 256 MiB. All of them get their names
    /// under the core's lock in one go, at 0.2 to 0.3 us each.
    pub const MOVED_MAX: u64 = 1 << 16;

    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds `bytes` at `offset` inside `lba`.
    pub fn patch(&mut self, lba: Lba, offset: u16, bytes: impl Into<Vec<u8>>) -> &mut Self {
        self.patches.push((lba, offset, bytes.into()));
        self
    }

    /// Adds a range to forget.
    pub fn trim(&mut self, range: LbaRange) -> &mut Self {
        self.trims.push(range);
        self
    }

    /// Adds a range to reserve as zeros.
    pub fn zero(&mut self, range: LbaRange) -> &mut Self {
        self.zeros.push(range);
        self
    }

    /// Adds a range to move: the `count` grains from `from` become those from `to`.
    pub fn remap(&mut self, from: Lba, to: Lba, count: u64) -> &mut Self {
        self.remaps.push(Remap { from, to, count });
        self
    }

    /// Adds a range to clone: the `count` grains from `to` become those from `from`, which keeps them.
    pub fn clone_range(&mut self, from: Lba, to: Lba, count: u64) -> &mut Self {
        self.clones.push(Remap { from, to, count });
        self
    }

    /// Lets what has been put in a range go along.
    pub fn along(&mut self, range: LbaRange) -> &mut Self {
        self.along = Some(range);
        self
    }

    /// The ranges it moves and clones.
    pub(crate) fn renamed(&self) -> impl Iterator<Item = Remap> + '_ {
        self.remaps.iter().chain(&self.clones).copied()
    }
}
