//! DDP segment headers (RFC 5041 §4) and the RDMAP control byte in them (RFC 5040 §4.1).

use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::addr::{Msn, Stag, TaggedOffset};
use crate::wire::rdmap::{Opcode, RDMAP_VERSION};
use crate::wire::terminate::TerminateCode;

const TAGGED: u8 = 0x80;
const LAST: u8 = 0x40;
const VERSION_MASK: u8 = 0x03;
const DDP_VERSION: u8 = 0x01;

/// Header of a tagged segment.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct RawTagged {
    control: u8,
    rdmap: u8,
    stag: U32,
    to: U64,
}
/// Bytes of a tagged header.
pub const TAGGED_BYTES: usize = size_of::<RawTagged>();
const _: () = assert!(TAGGED_BYTES == 14);

/// Header of an untagged segment.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct RawUntagged {
    control: u8,
    rdmap: u8,
    invalidate: U32,
    queue: U32,
    msn: U32,
    offset: U32,
}
/// Bytes of an untagged header.
pub const UNTAGGED_BYTES: usize = size_of::<RawUntagged>();
const _: () = assert!(UNTAGGED_BYTES == 18);

/// Untagged buffer queues (RFC 5040 §5.1, RFC 7306 §4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QueueNum {
    /// Sends and Immediate Data.
    Send,
    /// Read and Atomic Requests, which share their message numbers; those of the private profile.
    ReadRequest,
    /// Terminate.
    Terminate,
    /// Atomic Responses; those of the private profile.
    AtomicResponse,
}

impl QueueNum {
    const fn number(self) -> u32 {
        match self {
            Self::Send => 0,
            Self::ReadRequest => 1,
            Self::Terminate => 2,
            Self::AtomicResponse => 3,
        }
    }
}

/// A segment for a tagged buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tagged<'a> {
    /// [`Opcode::Write`] or [`Opcode::ReadResponse`].
    pub opcode: Opcode,
    /// Ends its message.
    pub last: bool,
    /// Buffer.
    pub stag: Stag,
    /// Address of the first byte.
    pub to: TaggedOffset,
    /// Bytes.
    pub payload: &'a [u8],
}

/// A segment for an untagged buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Untagged<'a> {
    /// Any of the others.
    pub opcode: Opcode,
    /// Ends its message.
    pub last: bool,
    /// Send with Invalidate: the STag. Otherwise reserved.
    pub invalidate: Stag,
    /// Message number in the opcode's queue.
    pub msn: Msn,
    /// Offset of the first byte in the message.
    pub offset: u32,
    /// Bytes.
    pub payload: &'a [u8],
}

/// One DDP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segment<'a> {
    /// For a tagged buffer.
    Tagged(Tagged<'a>),
    /// For an untagged buffer.
    Untagged(Untagged<'a>),
}

/// Why a ULPDU is no segment that we understand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum SegmentError {
    /// Shorter than its header.
    #[error("ULPDU shorter than its header")]
    Truncated,
    /// DDP version of a tagged segment.
    #[error("DDP version of a tagged segment")]
    TaggedVersion,
    /// DDP version of an untagged segment.
    #[error("DDP version of an untagged segment")]
    UntaggedVersion,
    /// RDMAP version.
    #[error("RDMAP version")]
    RdmapVersion,
    /// Opcode unknown, unsupported, or not for this kind of buffer.
    #[error("unexpected opcode")]
    Opcode,
    /// Queue unknown or not that of the opcode.
    #[error("invalid queue number")]
    Queue,
}

impl SegmentError {
    /// The code for it.
    #[must_use]
    pub const fn terminate(self) -> TerminateCode {
        match self {
            Self::Truncated => TerminateCode::MpaFraming,
            Self::TaggedVersion => TerminateCode::TaggedVersion,
            Self::UntaggedVersion => TerminateCode::UntaggedVersion,
            Self::RdmapVersion => TerminateCode::OperationVersion,
            Self::Opcode => TerminateCode::OperationUnexpectedOpcode,
            Self::Queue => TerminateCode::UntaggedQueue,
        }
    }
}

impl<'a> Segment<'a> {
    /// Reads a ULPDU of the standard.
    ///
    /// # Errors
    /// If it is not a segment of an opcode that we support.
    pub fn parse(ulpdu: &'a [u8]) -> Result<Self, SegmentError> {
        Self::parse_as(ulpdu, false)
    }

    /// Reads a ULPDU, which with `profile` may be one of the [private profile](crate::wire::profile).
    ///
    /// # Errors
    /// As `parse`.
    pub fn parse_as(ulpdu: &'a [u8], profile: bool) -> Result<Self, SegmentError> {
        let Some(&[control, rdmap]) = ulpdu.first_chunk::<2>() else {
            return Err(SegmentError::Truncated);
        };
        let tagged = control & TAGGED != 0;
        if control & VERSION_MASK != DDP_VERSION {
            return Err(if tagged {
                SegmentError::TaggedVersion
            } else {
                SegmentError::UntaggedVersion
            });
        }
        if rdmap & 0xc0 != RDMAP_VERSION {
            return Err(SegmentError::RdmapVersion);
        }
        let opcode = Opcode::from_bits(rdmap & 0x0f, profile).ok_or(SegmentError::Opcode)?;
        if opcode.is_tagged() != tagged {
            return Err(SegmentError::Opcode);
        }
        let last = control & LAST != 0;
        let Some(queue) = opcode.queue() else {
            let (raw, payload) =
                RawTagged::ref_from_prefix(ulpdu).map_err(|_| SegmentError::Truncated)?;
            let (stag, to) = (Stag(raw.stag.get()), TaggedOffset(raw.to.get()));
            return Ok(Self::Tagged(Tagged {
                opcode,
                last,
                stag,
                to,
                payload,
            }));
        };
        let (raw, payload) =
            RawUntagged::ref_from_prefix(ulpdu).map_err(|_| SegmentError::Truncated)?;
        if raw.queue.get() != queue.number() {
            return Err(SegmentError::Queue);
        }
        Ok(Self::Untagged(Untagged {
            opcode,
            last,
            invalidate: Stag(raw.invalidate.get()),
            msn: Msn(raw.msn.get()),
            offset: raw.offset.get(),
            payload,
        }))
    }

    /// Appends header and payload.
    pub fn emit(&self, out: &mut Vec<u8>) {
        match self {
            Self::Tagged(segment) => {
                segment.emit_header(out);
                out.extend_from_slice(segment.payload);
            }
            Self::Untagged(segment) => {
                segment.emit_header(out);
                out.extend_from_slice(segment.payload);
            }
        }
    }
}

const fn control(tagged: bool, last: bool) -> u8 {
    (if tagged { TAGGED } else { 0 }) | (if last { LAST } else { 0 }) | DDP_VERSION
}

impl Tagged<'_> {
    /// Appends the header alone.
    pub fn emit_header(&self, out: &mut Vec<u8>) {
        let raw = RawTagged {
            control: control(true, self.last),
            rdmap: RDMAP_VERSION | self.opcode as u8,
            stag: U32::new(self.stag.0),
            to: U64::new(self.to.0),
        };
        out.extend_from_slice(raw.as_bytes());
    }
}

impl Untagged<'_> {
    /// Appends the header alone.
    ///
    /// # Panics
    /// If the opcode is one of tagged segments.
    pub fn emit_header(&self, out: &mut Vec<u8>) {
        let queue = self.opcode.queue().expect("opcode of an untagged segment");
        let raw = RawUntagged {
            control: control(false, self.last),
            rdmap: RDMAP_VERSION | self.opcode as u8,
            invalidate: U32::new(self.invalidate.0),
            queue: U32::new(queue.number()),
            msn: U32::new(self.msn.0),
            offset: U32::new(self.offset),
        };
        out.extend_from_slice(raw.as_bytes());
    }
}

/// The DDP header at the start of a ULPDU, as a Terminate encloses it; `None` when the ULPDU is too short.
#[must_use]
pub fn header_bytes(ulpdu: &[u8]) -> Option<&[u8]> {
    let len = if ulpdu.first()? & TAGGED != 0 {
        TAGGED_BYTES
    } else {
        UNTAGGED_BYTES
    };
    ulpdu.get(..len)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both_ways(bytes: &[u8], segment: Segment<'_>) {
        assert_eq!(Segment::parse(bytes), Ok(segment));
        let mut out = Vec::new();
        segment.emit(&mut out);
        assert_eq!(out, bytes);
    }

    /// Golden bytes, both ways, one per supported opcode (protocol note §8).
    #[test]
    fn golden() {
        let tagged = [0xc1, 0x40, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, b'x'];
        let segment = Tagged {
            opcode: Opcode::Write,
            last: true,
            stag: Stag(0x0102_0304),
            to: TaggedOffset(0x0506_0708_090a_0b0c),
            payload: b"x",
        };
        both_ways(&tagged, Segment::Tagged(segment));
        let mut response = tagged;
        response[..2].copy_from_slice(&[0x81, 0x42]);
        both_ways(
            &response,
            Segment::Tagged(Tagged {
                opcode: Opcode::ReadResponse,
                last: false,
                ..segment
            }),
        );

        for (opcode, code, queue) in [
            (Opcode::ReadRequest, 0x41, 1),
            (Opcode::Send, 0x43, 0),
            (Opcode::SendInvalidate, 0x44, 0),
            (Opcode::SendSolicited, 0x45, 0),
            (Opcode::SendSolicitedInvalidate, 0x46, 0),
            (Opcode::Terminate, 0x47, 2),
            (Opcode::ImmediateData, 0x48, 0),
            (Opcode::ImmediateDataSolicited, 0x49, 0),
            (Opcode::AtomicRequest, 0x4a, 1),
            (Opcode::AtomicResponse, 0x4b, 3),
        ] {
            let bytes = [
                0x41, code, 0xaa, 0xbb, 0xcc, 0xdd, 0, 0, 0, queue, 0, 0, 1, 2, 0, 0, 3, 4, b'p',
            ];
            let segment = Untagged {
                opcode,
                last: true,
                invalidate: Stag(0xaabb_ccdd),
                msn: Msn(0x102),
                offset: 0x304,
                payload: b"p",
            };
            both_ways(&bytes, Segment::Untagged(segment));
        }
    }

    #[test]
    fn refusals() {
        let good = [0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0];
        let with = |changes: &[(usize, u8)]| {
            let mut bytes = good;
            for &(at, byte) in changes {
                bytes[at] = byte;
            }
            Segment::parse(&bytes).map(|_| ()).unwrap_err().terminate()
        };
        assert_eq!(with(&[(0, 0x42)]), TerminateCode::UntaggedVersion);
        assert_eq!(with(&[(0, 0xc2)]), TerminateCode::TaggedVersion);
        assert_eq!(with(&[(1, 0x83)]), TerminateCode::OperationVersion);
        assert_eq!(with(&[(1, 0x40)]), TerminateCode::OperationUnexpectedOpcode);
        assert_eq!(with(&[(0, 0xc1)]), TerminateCode::OperationUnexpectedOpcode);
        for opcode in 12..=15 {
            assert_eq!(
                with(&[(1, 0x40 | opcode)]),
                TerminateCode::OperationUnexpectedOpcode
            );
        }
        assert_eq!(with(&[(9, 1)]), TerminateCode::UntaggedQueue);
        assert_eq!(with(&[(9, 3)]), TerminateCode::UntaggedQueue);
        for n in 0..good.len() {
            assert_eq!(
                Segment::parse(&good[..n]).unwrap_err().terminate(),
                TerminateCode::MpaFraming
            );
        }
    }
}
