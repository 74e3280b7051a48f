//! Capacity and use of a volume.

/// Logical space of a volume, in grains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Grains that may be mapped at the same time.
    pub capacity: u64,
    /// Grains mapped now (data or reserved as zeros).
    pub mapped: u64,
    /// Grains that can be mapped now: fewer than are not mapped, while there is a snapshot (`docs/snapshots.md`, S9) or a device
    /// has failed.
    pub available: u64,
}
