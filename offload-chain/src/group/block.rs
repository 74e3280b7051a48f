//! Metadata of a primitive: one block of 32 bytes per member, in the message that runs down the group.
//!
//! A client writes a block for each member; each member's receive scatters its own block into descriptors and hands the
//! whole message on. Little-endian. What all kinds have in front is [`RawCommon`]; the
//! switches between *posted* and NOP are opcodes of [`softrdma::offload::Opcode`].

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of metadata per member and operation.
pub const BLOCK_BYTES: usize = 32;

/// Kinds of blocks: which scatter list takes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// gWRITE.
    Write = 1,
    /// gCAS.
    Cas = 2,
    /// gMEMCPY.
    Memcpy = 3,
    /// gFLUSH.
    Flush = 4,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Write, Self::Cas, Self::Memcpy, Self::Flush];
}

/// What every block begins with.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(C)]
pub struct RawCommon {
    /// A [`Kind`].
    pub kind: u8,
    /// gCAS: CAS where the member executes it, else NOP. The only byte that differs from member to member.
    pub execute: u8,
    /// Who asks, and where the answer goes.
    pub client: U16,
    /// Low half of the epoch.
    pub fence: U32,
}

/// Block of a gWRITE.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(C)]
pub struct RawWrite {
    /// Front.
    pub common: RawCommon,
    /// Where the bytes go.
    pub offset: U64,
    /// Where they were staged.
    pub staging: U64,
    /// How many.
    pub length: U32,
    /// WRITE, or NOP if there are none.
    pub put: u8,
    /// FLUSH or NOP.
    pub flush: u8,
    /// Slot of the result ([`slot_byte`]).
    pub slot: u8,
    /// 0.
    pub reserved: u8,
}

/// Block of a gCAS.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(C)]
pub struct RawCas {
    /// Front.
    pub common: RawCommon,
    /// Where the eight bytes are: 48 bits.
    pub offset: [u8; 6],
    /// Slot of the result ([`slot_byte`]).
    pub slot: u8,
    /// FLUSH or NOP.
    pub flush: u8,
    /// Compared with. In the answer: what the member had.
    pub old: U64,
    /// Put in its place.
    pub new: U64,
}

/// Block of a gMEMCPY.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(C)]
pub struct RawMemcpy {
    /// Front.
    pub common: RawCommon,
    /// Where the bytes go.
    pub destination: U64,
    /// Where they are.
    pub source: U64,
    /// How many.
    pub length: U32,
    /// COPY, or NOP if there are none.
    pub copy: u8,
    /// FLUSH or NOP.
    pub flush: u8,
    /// Slot of the result ([`slot_byte`]).
    pub slot: u8,
    /// 0.
    pub reserved: u8,
}

/// Block of a gFLUSH.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(C)]
pub struct RawFlush {
    /// Front.
    pub common: RawCommon,
    /// First byte.
    pub offset: U64,
    /// 0.
    pub reserved: U64,
    /// How many; all ones for everything.
    pub length: U32,
    /// 0.
    pub reserved_too: u8,
    /// FLUSH or NOP.
    pub flush: u8,
    /// Slot of the result ([`slot_byte`]).
    pub slot: u8,
    /// 0.
    pub reserved_end: u8,
}

const _: () = assert!(size_of::<RawCommon>() == 8);
const _: () = assert!(size_of::<RawWrite>() == BLOCK_BYTES);
const _: () = assert!(size_of::<RawCas>() == BLOCK_BYTES);
const _: () = assert!(size_of::<RawMemcpy>() == BLOCK_BYTES);
const _: () = assert!(size_of::<RawFlush>() == BLOCK_BYTES);

/// First byte that may differ from member to member, and how many.
pub const UNLIKE: (usize, usize) = (1, 1);
/// From one slot of results to the next: a message of the largest group. The second byte of its address says which.
pub const RESULT_BYTES: usize = 512;
/// Most slots a client can have.
pub const SLOTS_MAX: usize = 128;

/// What a block holds of a slot: its address without the low byte.
#[must_use]
pub const fn slot_byte(slot: usize) -> u8 {
    (slot * (RESULT_BYTES >> 8)) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    fn common(kind: Kind, execute: u8) -> RawCommon {
        RawCommon {
            kind: kind as u8,
            execute,
            client: 0x0203.into(),
            fence: 0x0405_0607.into(),
        }
    }

    /// Members of different versions would read each other's blocks wrongly if these moved.
    #[test]
    fn golden_bytes() {
        let write = RawWrite {
            common: common(Kind::Write, 0),
            offset: 0x1000.into(),
            staging: 0x0102_0304_0506_0708.into(),
            length: 0x0a0b_0c0d.into(),
            put: 2,
            flush: 6,
            slot: slot_byte(3),
            reserved: 0,
        };
        let front = |kind, execute| vec![kind, execute, 3, 2, 7, 6, 5, 4];
        let tail: &[u8] = &[
            0, 0x10, 0, 0, 0, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1, 0xd, 0xc, 0xb, 0xa, 2, 6, 6, 0,
        ];
        assert_eq!(write.as_bytes(), [front(1, 0), tail.to_vec()].concat());
        let cas = RawCas {
            common: common(Kind::Cas, 5),
            offset: [1, 2, 3, 4, 5, 6],
            slot: slot_byte(127),
            flush: 6,
            old: 0x11.into(),
            new: 0x22.into(),
        };
        let tail: &[u8] = &[
            1, 2, 3, 4, 5, 6, 254, 6, 0x11, 0, 0, 0, 0, 0, 0, 0, 0x22, 0, 0, 0, 0, 0, 0, 0,
        ];
        assert_eq!(cas.as_bytes(), [front(2, 5), tail.to_vec()].concat());
        let copy = RawMemcpy {
            common: common(Kind::Memcpy, 0),
            destination: 0x10.into(),
            source: 0x20.into(),
            length: 0x30.into(),
            copy: 7,
            flush: 0,
            slot: 2,
            reserved: 0,
        };
        let tail: &[u8] = &[
            0x10, 0, 0, 0, 0, 0, 0, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0x30, 0, 0, 0, 7, 0, 2, 0,
        ];
        assert_eq!(copy.as_bytes(), [front(3, 0), tail.to_vec()].concat());
        let flush = RawFlush {
            common: common(Kind::Flush, 0),
            offset: 0x10.into(),
            length: u32::MAX.into(),
            flush: 6,
            slot: 4,
            ..RawFlush::default()
        };
        let tail: &[u8] = &[
            0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 0, 6, 4, 0,
        ];
        assert_eq!(flush.as_bytes(), [front(4, 0), tail.to_vec()].concat());
    }
}
