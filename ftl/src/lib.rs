//! Log-structured flash translation layer: pages, mapping, log, garbage collection, recovery, devices.

mod addr;
mod batch;
pub mod device;

pub use addr::{GRAIN_BYTES, Lba, LbaRange, Pba, SegmentId};
pub use batch::AtomicBatch;
pub use device::{Action, ActionId, Device, IoBuf, MediaError, MediaOp};

/// Logical space of a volume, in grains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Grains that may be mapped at the same time.
    pub capacity: u64,
    /// Grains mapped now (data or reserved as zeros).
    pub mapped: u64,
}
