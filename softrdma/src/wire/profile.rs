//! The private profile: FLUSH, VERIFY and ATOMIC WRITE, which have no registered code points.
//!
//! Their only specification is an expired draft (RDMA Extensions for Enhanced Memory Placement). All numbers are in this
//! file; they are spoken only when both sides have announced this version of the profile in their
//! [hello](crate::wire::hello). Towards everybody else the four opcodes are unexpected ones, and so is the operation
//! code of an ATOMIC WRITE.
//!
//! | message | opcode | queue | body |
//! |---|---|---|---|
//! | Flush Request | 1100b | 1, with READs and atomic operations | request 4, STag 4, length 4, TO 8, disposition 4 |
//! | Flush Response | 1101b | 3, with Atomic Responses | request 4 |
//! | Verify Request | 1110b | 1 | request 4, STag 4, length 4, TO 8 |
//! | Verify Response | 1111b | 3 | request 4, CRC-32C of the range 4 |
//! | Atomic Write | Atomic Request, operation code 3 | 1 | the eight bytes as swap data, other fields as for FetchAdd |
//! | its response | Atomic Response | 3 | original value 0: writing does not entitle to read |
//!
//! Disposition: bits 0-3 how far (1 visible, 2 persistent), bits 4-5 which bytes (0 the range, 1 the whole region; the
//! range then is not looked at), as in InfiniBand. All other bits are reserved: sent as 0, and refused.

use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::addr::{RemoteAddr, Stag, TaggedOffset};

/// Number of this profile in the hello. A later one that does not understand this one takes another.
pub const PROFILE_VERSION: u8 = 1;
/// Opcode of a Flush Request.
pub const FLUSH_REQUEST: u8 = 0b1100;
/// Opcode of a Flush Response.
pub const FLUSH_RESPONSE: u8 = 0b1101;
/// Opcode of a Verify Request.
pub const VERIFY_REQUEST: u8 = 0b1110;
/// Opcode of a Verify Response.
pub const VERIFY_RESPONSE: u8 = 0b1111;
/// Operation code of an ATOMIC WRITE in an Atomic Request.
pub const ATOMIC_WRITE: u32 = 3;

/// Longest range of one VERIFY: it is computed in one go, between two segments of a connection.
pub const VERIFY_BYTES_MAX: u32 = 1 << 20;

const VISIBLE: u32 = 0x01;
const PERSISTENT: u32 = 0x02;
const WHOLE_REGION: u32 = 0x10;

/// Body of a Flush Request.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct RawFlushRequest {
    request: U32,
    stag: U32,
    len: U32,
    to: U64,
    disposition: U32,
}
/// Bytes of a Flush Request's body.
pub const FLUSH_REQUEST_BYTES: usize = size_of::<RawFlushRequest>();
const _: () = assert!(FLUSH_REQUEST_BYTES == 24);

/// Body of a Verify Request.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct RawVerifyRequest {
    request: U32,
    stag: U32,
    len: U32,
    to: U64,
}
/// Bytes of a Verify Request's body.
pub const VERIFY_REQUEST_BYTES: usize = size_of::<RawVerifyRequest>();
const _: () = assert!(VERIFY_REQUEST_BYTES == 20);

/// Body of a Verify Response.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct RawVerifyResponse {
    request: U32,
    crc: U32,
}
/// Bytes of a Verify Response's body.
pub const VERIFY_RESPONSE_BYTES: usize = size_of::<RawVerifyResponse>();
const _: () = assert!(VERIFY_RESPONSE_BYTES == 8);

/// How far a FLUSH brings the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Placement {
    /// Visible to every reader, local or remote.
    Visible,
    /// Surviving a loss of power.
    Persistent,
}

/// Which bytes a FLUSH is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Selectivity {
    /// So many from the address on.
    Range(u32),
    /// The whole region that the STag names.
    Region,
}

/// A Flush Request: every value is legal until the region is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlushRequest {
    /// The requester's number of it, which the response repeats.
    pub request: u32,
    /// Where the bytes are.
    pub target: RemoteAddr,
    /// Which of them.
    pub selectivity: Selectivity,
    /// How far.
    pub placement: Placement,
}

impl FlushRequest {
    /// Reads the body; `None` if it is not of the one legal length, or asks for what the profile does not know.
    #[must_use]
    pub fn parse(body: &[u8]) -> Option<Self> {
        let raw = RawFlushRequest::ref_from_bytes(body).ok()?;
        let disposition = raw.disposition.get();
        // Persistent bytes are visible: asking for both is asking for the former.
        let placement = match disposition & !WHOLE_REGION {
            VISIBLE => Placement::Visible,
            far if far & !VISIBLE == PERSISTENT => Placement::Persistent,
            _ => return None,
        };
        let selectivity = match disposition & WHOLE_REGION {
            0 => Selectivity::Range(raw.len.get()),
            _ => Selectivity::Region,
        };
        Some(Self {
            request: raw.request.get(),
            target: RemoteAddr {
                stag: Stag(raw.stag.get()),
                to: TaggedOffset(raw.to.get()),
            },
            selectivity,
            placement,
        })
    }

    /// Appends the body.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let (len, region) = match self.selectivity {
            Selectivity::Range(len) => (len, 0),
            Selectivity::Region => (0, WHOLE_REGION),
        };
        let placement = match self.placement {
            Placement::Visible => VISIBLE,
            Placement::Persistent => PERSISTENT,
        };
        let raw = RawFlushRequest {
            request: U32::new(self.request),
            stag: U32::new(self.target.stag.0),
            len: U32::new(len),
            to: U64::new(self.target.to.0),
            disposition: U32::new(placement | region),
        };
        out.extend_from_slice(raw.as_bytes());
    }
}

/// A Verify Request: every value is legal until the region is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VerifyRequest {
    /// The requester's number of it, which the response repeats.
    pub request: u32,
    /// Where the bytes are.
    pub source: RemoteAddr,
    /// How many.
    pub len: u32,
}

impl VerifyRequest {
    /// Reads the body; `None` if it is not of the one legal length.
    #[must_use]
    pub fn parse(body: &[u8]) -> Option<Self> {
        let raw = RawVerifyRequest::ref_from_bytes(body).ok()?;
        Some(Self {
            request: raw.request.get(),
            source: RemoteAddr {
                stag: Stag(raw.stag.get()),
                to: TaggedOffset(raw.to.get()),
            },
            len: raw.len.get(),
        })
    }

    /// Appends the body.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let raw = RawVerifyRequest {
            request: U32::new(self.request),
            stag: U32::new(self.source.stag.0),
            len: U32::new(self.len),
            to: U64::new(self.source.to.0),
        };
        out.extend_from_slice(raw.as_bytes());
    }
}

/// A Verify Response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VerifyResponse {
    /// The number in the request.
    pub request: u32,
    /// CRC-32C of the range.
    pub crc: u32,
}

impl VerifyResponse {
    /// Reads the body; `None` if it is not of the one legal length.
    #[must_use]
    pub fn parse(body: &[u8]) -> Option<Self> {
        let raw = RawVerifyResponse::ref_from_bytes(body).ok()?;
        Some(Self {
            request: raw.request.get(),
            crc: raw.crc.get(),
        })
    }

    /// Appends the body.
    pub fn emit(self, out: &mut Vec<u8>) {
        let raw = RawVerifyResponse {
            request: U32::new(self.request),
            crc: U32::new(self.crc),
        };
        out.extend_from_slice(raw.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: RemoteAddr = RemoteAddr {
        stag: Stag(0x0102_0304),
        to: TaggedOffset(0x1122_3344_5566_7788),
    };

    #[test]
    fn golden_flush() {
        let bytes = |len: u8, disposition: u8| {
            [
                0,
                0,
                0,
                9,
                1,
                2,
                3,
                4,
                0,
                0,
                0,
                len,
                0x11,
                0x22,
                0x33,
                0x44,
                0x55,
                0x66,
                0x77,
                0x88,
                0,
                0,
                0,
                disposition,
            ]
        };
        for (bytes, selectivity, placement) in [
            (bytes(7, 0x01), Selectivity::Range(7), Placement::Visible),
            (bytes(7, 0x02), Selectivity::Range(7), Placement::Persistent),
            (bytes(0, 0x11), Selectivity::Region, Placement::Visible),
            (bytes(0, 0x12), Selectivity::Region, Placement::Persistent),
        ] {
            let request = FlushRequest {
                request: 9,
                target: TARGET,
                selectivity,
                placement,
            };
            assert_eq!(FlushRequest::parse(&bytes), Some(request));
            let mut out = Vec::new();
            request.emit(&mut out);
            assert_eq!(out, bytes);
            assert_eq!(FlushRequest::parse(&bytes[1..]), None);
        }
        let both = FlushRequest::parse(&bytes(7, 0x03)).unwrap();
        assert_eq!(both.placement, Placement::Persistent);
        for wrong in [0x00, 0x10, 0x04, 0x21, 0x42, 0x31, 0x80] {
            assert_eq!(FlushRequest::parse(&bytes(7, wrong)), None, "{wrong:x}");
        }
    }

    #[test]
    fn golden_verify() {
        let bytes = [
            0, 0, 0, 9, 1, 2, 3, 4, 0, 0, 0, 7, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88,
        ];
        let request = VerifyRequest {
            request: 9,
            source: TARGET,
            len: 7,
        };
        assert_eq!(VerifyRequest::parse(&bytes), Some(request));
        let mut out = Vec::new();
        request.emit(&mut out);
        assert_eq!(out, bytes);
        assert_eq!(VerifyRequest::parse(&bytes[1..]), None);
        let bytes = [0, 0, 0, 9, 1, 2, 3, 4];
        let response = VerifyResponse {
            request: 9,
            crc: 0x0102_0304,
        };
        assert_eq!(VerifyResponse::parse(&bytes), Some(response));
        let mut out = Vec::new();
        response.emit(&mut out);
        assert_eq!(out, bytes);
        assert_eq!(VerifyResponse::parse(&bytes[1..]), None);
    }
}
