//! The translation layer against its device: the same accesses through the engine and bare, on files side by side,
//! one thread, the same ring code on both sides.

mod bare;
mod engine;
mod resident;
mod slots;

pub use bare::{APPENDS, Bare};
pub use engine::Engine;
pub use resident::pairs_per_second;

use std::time::Duration;

/// Bytes of the random accesses.
pub const BLOCK: usize = ftl::GRAIN_BYTES;
/// Bytes of the sequential accesses of the bare side: what the engine puts into one write-out.
pub const CHUNK: usize = 512 << 10;

/// What one run does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Random reads of blocks, so many in flight.
    Read {
        /// In flight.
        depth: usize,
    },
    /// Blocks one behind the other, durable at the end.
    Append,
    /// Random overwrites of blocks, each durable before its writer goes on.
    Sync {
        /// Writers.
        writers: usize,
    },
}

impl Access {
    /// Pages in the engine's memory: few where reads shall go to the device.
    pub const fn frames(self) -> usize {
        match self {
            Self::Read { .. } => 1024,
            Self::Append | Self::Sync { .. } => 4096,
        }
    }
}

/// Bounds of one run.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// What to do.
    pub access: Access,
    /// Time measured; appends end earlier when `bytes` have been written.
    pub time: Duration,
    /// Bytes of the space that is accessed.
    pub bytes: u64,
    /// Seed of the offsets.
    pub seed: u64,
}
