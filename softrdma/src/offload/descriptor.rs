//! Descriptors as they lie in ring memory. The table is in `docs/offload.md`; nothing here judges.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a descriptor.
pub const DESCRIPTOR_BYTES: usize = 64;

/// What a descriptor does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Opcode {
    /// Nothing.
    Nop = 0,
    /// Holds its queue until a completion queue has counted so far, then grants descriptors.
    Wait = 1,
    /// RDMA WRITE.
    Write = 2,
    /// RDMA WRITE with immediate data.
    WriteImmediate = 3,
    /// SEND.
    Send = 4,
    /// Compare-and-swap of eight bytes.
    CompareSwap = 5,
    /// FLUSH up to persistence.
    Flush = 6,
    /// From a region of the member to a region of the member.
    Copy = 7,
}

impl Opcode {
    /// The opcode with this number.
    #[must_use]
    pub const fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            0 => Self::Nop,
            1 => Self::Wait,
            2 => Self::Write,
            3 => Self::WriteImmediate,
            4 => Self::Send,
            5 => Self::CompareSwap,
            6 => Self::Flush,
            7 => Self::Copy,
            _ => return None,
        })
    }
}

/// Every request but WAIT.
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
pub struct RawDescriptor {
    /// Lap of the ring if granted, else 0.
    pub owner: U32,
    /// An [`Opcode`].
    pub opcode: u8,
    /// 0.
    pub reserved: u8,
    /// Entry of the queue's table of destinations.
    pub destination: U16,
    /// Bytes moved.
    pub length: U32,
    /// Region of the local address.
    pub local_stag: U32,
    /// Source; of CAS: where the old value goes.
    pub local_to: U64,
    /// Region of the remote address; links take it from the destination.
    pub remote_stag: U32,
    /// 0.
    pub reserved_too: U32,
    /// Target.
    pub remote_to: U64,
    /// CAS: compared with.
    pub compare: U64,
    /// CAS: put in its place.
    pub swap: U64,
    /// WRITE with immediate: its eight bytes.
    pub immediate: [u8; 8],
}

/// A WAIT.
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
pub struct RawWait {
    /// As in [`RawDescriptor`].
    pub owner: U32,
    /// [`Opcode::Wait`].
    pub opcode: u8,
    /// 0.
    pub reserved: u8,
    /// Queue of which descriptors are granted.
    pub queue: U16,
    /// How many.
    pub releases: U32,
    /// Completion queue: of a work queue, or with the high bit of a receive queue.
    pub source: U32,
    /// Completions that it must have counted.
    pub count: U64,
    /// 0.
    pub reserved_too: [U64; 5],
}

const _: () = assert!(size_of::<RawDescriptor>() == DESCRIPTOR_BYTES);
const _: () = assert!(size_of::<RawWait>() == DESCRIPTOR_BYTES);

/// Places of the fields that scatter lists name.
pub mod field {
    use core::mem::offset_of;

    use super::RawDescriptor;

    /// Of [`RawDescriptor::owner`].
    pub const OWNER: usize = offset_of!(RawDescriptor, owner);
    /// Of [`RawDescriptor::opcode`].
    pub const OPCODE: usize = offset_of!(RawDescriptor, opcode);
    /// Of [`RawDescriptor::destination`].
    pub const DESTINATION: usize = offset_of!(RawDescriptor, destination);
    /// Of [`RawDescriptor::length`].
    pub const LENGTH: usize = offset_of!(RawDescriptor, length);
    /// Of [`RawDescriptor::local_stag`].
    pub const LOCAL_STAG: usize = offset_of!(RawDescriptor, local_stag);
    /// Of [`RawDescriptor::local_to`].
    pub const LOCAL_TO: usize = offset_of!(RawDescriptor, local_to);
    /// Of [`RawDescriptor::remote_stag`].
    pub const REMOTE_STAG: usize = offset_of!(RawDescriptor, remote_stag);
    /// Of [`RawDescriptor::remote_to`].
    pub const REMOTE_TO: usize = offset_of!(RawDescriptor, remote_to);
    /// Of [`RawDescriptor::compare`].
    pub const COMPARE: usize = offset_of!(RawDescriptor, compare);
    /// Of [`RawDescriptor::swap`].
    pub const SWAP: usize = offset_of!(RawDescriptor, swap);
    /// Of [`RawDescriptor::immediate`].
    pub const IMMEDIATE: usize = offset_of!(RawDescriptor, immediate);

    const _: () = assert!(
        OWNER == 0
            && OPCODE == 4
            && DESTINATION == 6
            && LENGTH == 8
            && LOCAL_STAG == 12
            && LOCAL_TO == 16
            && REMOTE_STAG == 24
            && REMOTE_TO == 32
            && COMPARE == 40
            && SWAP == 48
            && IMMEDIATE == 56
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The layout is a contract with whoever computes patches; both directions.
    #[test]
    fn golden_bytes() {
        let raw = RawDescriptor {
            owner: 0x0403_0201.into(),
            opcode: Opcode::CompareSwap as u8,
            reserved: 0,
            destination: 0x0807.into(),
            length: 0x0c0b_0a09.into(),
            local_stag: 0x100f_0e0d.into(),
            local_to: 0x1817_1615_1413_1211.into(),
            remote_stag: 0x1c1b_1a19.into(),
            reserved_too: 0.into(),
            remote_to: 0x2827_2625_2423_2221.into(),
            compare: 0x302f_2e2d_2c2b_2a29.into(),
            swap: 0x3837_3635_3433_3231.into(),
            immediate: [0x39, 0x3a, 0x3b, 0x3c, 0x3d, 0x3e, 0x3f, 0x40],
        };
        let mut bytes: [u8; 64] = std::array::from_fn(|at| at as u8 + 1);
        (bytes[4], bytes[5]) = (5, 0);
        bytes[28..32].fill(0);
        assert_eq!(raw.as_bytes(), bytes);
        assert_eq!(RawDescriptor::read_from_bytes(&bytes).unwrap(), raw);
    }

    #[test]
    fn golden_bytes_of_a_wait() {
        let raw = RawWait {
            owner: 1.into(),
            opcode: Opcode::Wait as u8,
            queue: 2.into(),
            releases: 4.into(),
            source: 0x8000_0003.into(),
            count: 0x0102_0304_0506_0708.into(),
            ..RawWait::default()
        };
        let mut bytes = [0; 64];
        bytes[..24].copy_from_slice(&[
            1, 0, 0, 0, 1, 0, 2, 0, 4, 0, 0, 0, 3, 0, 0, 0x80, 8, 7, 6, 5, 4, 3, 2, 1,
        ]);
        assert_eq!(raw.as_bytes(), bytes);
        assert_eq!(RawWait::read_from_bytes(&bytes).unwrap(), raw);
    }

    #[test]
    fn opcodes_are_their_numbers() {
        for byte in 0..=u8::MAX {
            let opcode = Opcode::from_byte(byte);
            assert_eq!(
                opcode.map(|opcode| opcode as u8),
                (byte < 8).then_some(byte)
            );
        }
    }
}
