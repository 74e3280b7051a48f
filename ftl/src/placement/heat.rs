//! What a map entry remembers of the updates of its grain: 22 bits that only the policy interprets.

use std::fmt;

/// 22 bits about the past of a grain; all zeros: nothing known.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Heat(u32);

impl Heat {
    /// Width of the field.
    pub const BITS: u32 = 22;
    /// Nothing known.
    pub const UNKNOWN: Self = Self(0);

    /// The lowest bits of `bits`.
    pub const fn new(bits: u32) -> Self {
        Self(bits & ((1 << Self::BITS) - 1))
    }

    /// The field.
    pub const fn bits(self) -> u32 {
        self.0
    }
}

/// What the bits of a [`Heat`] mean: to a policy, those of another meaning say nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeatMeaning(pub u32);

impl HeatMeaning {
    /// Nothing: the policy remembers nothing.
    pub const NONE: Self = Self(0);

    /// That of what is described so, and of nothing else.
    pub(super) fn of(description: &[u8]) -> Self {
        Self(crc32fast::hash(description).max(1))
    }
}

impl fmt::Debug for Heat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Heat({:#x})", self.0)
    }
}
