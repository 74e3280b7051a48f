//! Names and numbers of the endpoint, one type each.

use std::fmt;
use std::ops::Add;
use std::time::Duration;

/// A steering tag: 24-bit index and 8-bit key. The key's high bit says *sync* (DESIGN §3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Stag(pub u32);

impl Stag {
    /// Bit of the key byte that marks the sync flavour.
    pub const SYNC: u8 = 0x80;

    /// Joins an index (its low 24 bits) and a key.
    #[must_use]
    pub const fn new(index: u32, key: u8) -> Self {
        Self((index << 8) | key as u32)
    }

    /// The 24-bit index.
    #[must_use]
    pub const fn index(self) -> u32 {
        self.0 >> 8
    }

    /// The consumer key, low 8 bits.
    #[must_use]
    pub const fn key(self) -> u8 {
        (self.0 & 0xff) as u8
    }

    /// Does the key say sync? Only meaningful for an STag that matched in full.
    #[must_use]
    pub const fn is_sync(self) -> bool {
        self.key() & Self::SYNC != 0
    }
}

impl fmt::Debug for Stag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stag({self})")
    }
}

impl fmt::Display for Stag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

/// A byte address inside a tagged buffer, as the peer names it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct TaggedOffset(pub u64);

impl TaggedOffset {
    /// The address `bytes` further on, or `None` when it would wrap.
    #[must_use]
    pub const fn checked_add(self, bytes: u64) -> Option<Self> {
        match self.0.checked_add(bytes) {
            Some(to) => Some(Self(to)),
            None => None,
        }
    }

    /// The address `bytes` further on, modulo 2^64 (for numbers the peer chose and only the peer reads).
    #[must_use]
    pub const fn wrapping_add(self, bytes: u64) -> Self {
        Self(self.0.wrapping_add(bytes))
    }
}

impl fmt::Debug for TaggedOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TaggedOffset({:#x})", self.0)
    }
}

impl fmt::Display for TaggedOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// Where remote memory is: what a peer hands out so that it can be read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteAddr {
    /// Which region.
    pub stag: Stag,
    /// Which byte.
    pub to: TaggedOffset,
}

/// Message sequence number: 1 for the first message of a queue, wraps through 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Msn(pub u32);

impl Msn {
    /// Number of the first message.
    pub const FIRST: Self = Self(1);

    /// The number after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

/// The eight bytes of an Immediate Data message (RFC 7306 §6).
///
/// The RFC does not say how the 32 bits of the verbs lie in them; we do as other iWARP endpoints: in front, big-endian,
/// zeros behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Immediate(pub [u8; 8]);

impl Immediate {
    /// The `imm_data` of the verbs.
    #[must_use]
    pub const fn value(self) -> u32 {
        let [a, b, c, d, ..] = self.0;
        u32::from_be_bytes([a, b, c, d])
    }
}

impl From<u32> for Immediate {
    fn from(value: u32) -> Self {
        let [a, b, c, d] = value.to_be_bytes();
        Self([a, b, c, d, 0, 0, 0, 0])
    }
}

/// The caller's cookie of a work request, returned in its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct WrId(pub u64);

/// A protection domain: regions and connections of one tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ProtectionDomain(pub u32);

/// One connection, for regions bound to a single stream. Unique within a [`RegionTable`](crate::RegionTable).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(pub u64);

/// Which object of the [`PageStore`](crate::PageStore) backs a region; the store gives it its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BackingId(pub u64);

/// A pending page or durability request. The upper half is the [`Config::tag`](crate::Config::tag) of the connection
/// that asked, so that a driver finds it; the lower half is the connection's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

impl Ticket {
    pub(crate) const fn new(tag: u32, number: u32) -> Self {
        Self(((tag as u64) << 32) | number as u64)
    }

    /// Tag of the connection that asked.
    #[must_use]
    pub const fn tag(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The ticket drawn `count` later by the same connection for the same purpose. The number has 30 bits; the two
    /// above say what it is for.
    pub(crate) const fn advanced(self, count: usize) -> Self {
        let number = self.number();
        let next = number.wrapping_add(count as u32) & 0x3fff_ffff;
        Self::new(self.tag(), (number & 0xc000_0000) | next)
    }

    pub(crate) const fn number(self) -> u32 {
        (self.0 & 0xffff_ffff) as u32
    }
}

/// A moment on the caller's monotonic clock, in nanoseconds. The core has no clock of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Time(pub u64);

impl Add<Duration> for Time {
    type Output = Self;

    fn add(self, by: Duration) -> Self {
        Self(
            self.0
                .saturating_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)),
        )
    }
}
