//! How much of the guarantees a group wants to pay for.

use crate::group::Durability;

/// How objects are read without locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReadMode {
    /// Linearizable: a clean object at any member, a dirty one at the tail.
    Clean,
    /// Whole, but maybe old: any member, whatever it is doing.
    Eventual,
}

/// A choice of guarantees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Preset {
    /// What an acknowledged append promises.
    pub durability: Durability,
    /// Whether records are carried out on the data.
    pub executes: bool,
    /// How objects are read.
    pub reads: ReadMode,
}

impl Preset {
    /// Everything: durable on all members, carried out, linearizable reads.
    pub const STRICT: Self = Self {
        durability: Durability::Durable,
        executes: true,
        reads: ReadMode::Clean,
    };
    /// No durability: survives as long as one member does not restart.
    pub const VOLATILE: Self = Self {
        durability: Durability::Visible,
        ..Self::STRICT
    };
    /// No log processing: whoever reads the log does with it what it wants, and truncates.
    pub const REPLICATED: Self = Self {
        executes: false,
        ..Self::STRICT
    };
    /// Reads anywhere, of anything whole.
    pub const EVENTUAL: Self = Self {
        reads: ReadMode::Eventual,
        ..Self::STRICT
    };
}
