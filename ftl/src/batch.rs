//! Atomic batches: changes that reach the media all or not at all.

use crate::addr::{Lba, LbaRange};

/// A set of changes that becomes visible at once and survives a crash as a whole or not at all.
///
/// Patches are applied in order; trims and zeros take effect after the patches, on grains the patches do not touch.
#[derive(Clone, Debug, Default)]
pub struct AtomicBatch {
    /// Bytes to put inside single grains: (grain, byte offset in it, bytes). A patch never crosses a grain.
    pub patches: Vec<(Lba, u16, Vec<u8>)>,
    /// Ranges to forget: they read as zeros and cost no space.
    pub trims: Vec<LbaRange>,
    /// Ranges to reserve: unmapped grains in them count as used and read as zeros; mapped ones keep their content.
    pub zeros: Vec<LbaRange>,
}

impl AtomicBatch {
    /// Most grains that the patches of one batch may touch.
    pub const GRAINS_MAX: usize = 64;
    /// Most trims and zeros of one batch together.
    pub const RANGES_MAX: usize = 32;

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
}
