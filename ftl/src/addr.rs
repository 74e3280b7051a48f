//! Address newtypes: every address counts grains, and no bare integer crosses a module boundary.

use std::fmt;

/// Size of a grain, the unit of mapping and of a page in memory.
pub const GRAIN_BYTES: usize = 4096;

/// Logical block address: a grain of the 64-bit byte space, hence below 2^52. Beyond lie the images of grains that
/// snapshots have kept (`docs/snapshots.md`); no byte address leads there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lba(pub u64);

/// Physical block address: a grain of the device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pba(pub u64);

/// Index of a segment on the device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentId(pub u32);

/// A run of LBAs: `start` and the `count - 1` grains after it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LbaRange {
    /// First grain.
    pub start: Lba,
    /// Number of grains; may be 0.
    pub count: u64,
}

impl Lba {
    /// First LBA beyond the space that a 64-bit byte address can reach.
    pub const END: Self = Self(1 << 52);
    /// First LBA beyond everything there is, images of snapshots and all.
    pub(crate) const SPACE_END: Self = Self(1 << 58);

    /// The LBA `grains` further on.
    pub const fn offset(self, grains: u64) -> Self {
        Self(self.0 + grains)
    }
}

impl LbaRange {
    /// Every LBA that has a byte address. Whoever loads the map of it, or syncs it, means what lies beyond as well.
    pub const ALL: Self = Self {
        start: Lba(0),
        count: Lba::END.0,
    };
    /// Every LBA there is, those of images of snapshots among them.
    pub const SPACE: Self = Self {
        start: Lba(0),
        count: Lba::SPACE_END.0,
    };

    /// The run of `count` grains at `start`.
    pub const fn new(start: Lba, count: u64) -> Self {
        Self { start, count }
    }

    /// First LBA behind the run.
    pub const fn end(self) -> Lba {
        Lba(self.start.0 + self.count)
    }

    /// Whether two runs have grains in common.
    pub(crate) const fn meets(self, other: Self) -> bool {
        self.count > 0
            && other.count > 0
            && self.start.0 < other.end().0
            && other.start.0 < self.end().0
    }

    /// What is left of the run without others.
    pub(crate) fn without(self, others: impl Iterator<Item = Self>) -> Vec<Self> {
        let mut left = vec![self];
        for other in others {
            if !self.meets(other) {
                continue;
            }
            let parts = left.into_iter().flat_map(|part| {
                let end = other.start.clamp(part.start, part.end());
                let start = other.end().clamp(part.start, part.end());
                let before = Self::new(part.start, end.0 - part.start.0);
                [before, Self::new(start, part.end().0 - start.0)]
            });
            left = parts.filter(|part| part.count > 0).collect();
        }
        left
    }

    /// Whether `lba` lies in the run.
    pub const fn contains(self, lba: Lba) -> bool {
        self.start.0 <= lba.0 && lba.0 < self.end().0
    }
}

macro_rules! show {
    ($type:ident, $prefix:literal) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

show!(Lba, "LBA ");
show!(Pba, "PBA ");
show!(SegmentId, "segment ");

impl fmt::Debug for LbaRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LBA {}..{}", self.start.0, self.end().0)
    }
}
