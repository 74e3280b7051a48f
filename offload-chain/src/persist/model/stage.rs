//! How far data have come, and sets of pieces of them.

use std::fmt;

/// How far a piece of data has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// Nowhere.
    Absent,
    /// Taken over by the requester's transport.
    Transport,
    /// In a buffer of the responder's NIC, or of its kernel's TCP.
    Nic,
    /// On the way over the bus.
    Bus,
    /// Visible: in the cache, or in the bus controller's write buffer.
    Coherent,
    /// In the queue of the memory controller.
    MemoryController,
    /// In the memory module.
    Module,
}

pub(super) const STAGES: [Stage; 7] = [
    Stage::Absent,
    Stage::Transport,
    Stage::Nic,
    Stage::Bus,
    Stage::Coherent,
    Stage::MemoryController,
    Stage::Module,
];

/// A set of pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub(in crate::persist) struct Pieces(pub(in crate::persist) u8);

impl Pieces {
    pub(super) fn with(self, piece: usize) -> Self {
        Self(self.0 | 1 << piece)
    }

    pub(super) fn has(self, piece: usize) -> bool {
        self.0 & 1 << piece != 0
    }

    pub(in crate::persist) fn includes(self, others: Self) -> bool {
        self.0 & others.0 == others.0
    }

    pub(in crate::persist) fn meets(self, others: Self) -> bool {
        self.0 & others.0 != 0
    }

    pub(in crate::persist) fn and(self, others: Self) -> Self {
        Self(self.0 & others.0)
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Absent => "nowhere",
            Self::Transport => "requester's transport",
            Self::Nic => "NIC",
            Self::Bus => "bus",
            Self::Coherent => "cache",
            Self::MemoryController => "memory controller",
            Self::Module => "PM",
        })
    }
}
