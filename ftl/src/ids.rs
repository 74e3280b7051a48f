//! Small words of the interface: who asks, with which cookie, for what, and when.

use std::fmt;

/// A driver of the engine: a reactor thread or a blocking front end.
///
/// Media operations and events appear on the port whose call caused them, and only that port's driver carries them
/// out. A driver keeps going until its port is quiet: others may wait for what it has been given.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Port(pub u16);

/// The caller's cookie; it comes back in the event that answers the call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Token(pub u64);

/// Monotonic time of the driver, in nanoseconds from an origin of its choice (one origin for all ports).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(pub u64);

impl Time {
    /// The time `ns` nanoseconds later.
    pub const fn after_ns(self, ns: u64) -> Self {
        Self(self.0.saturating_add(ns))
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ns", self.0)
    }
}

/// What a page is wanted for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Intent {
    /// Only reading.
    Read,
    /// Changing some bytes; the rest of the content is kept, so a grain on the media is read first.
    Write,
    /// Replacing the whole grain; nothing is read. On a grain that is not resident the page is exclusive until it
    /// is put, and counts as changed only when all of it has been filled in ascending order; until then its bytes are
    /// anything.
    Overwrite,
}

/// What an LBA holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum GrainState {
    /// Nothing: reads as zeros, costs nothing.
    Unmapped,
    /// Reserved: reads as zeros, counts against the capacity.
    Zero,
    /// Written.
    Data,
}
