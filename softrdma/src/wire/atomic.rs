//! Atomic Request and Response (RFC 7306 §5.2).
//!
//! Figure 6 and the appendix of the RFC give the response 12 bytes, one sentence of its text 32; peers and dissectors
//! use 12.

use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::addr::{RemoteAddr, Stag, TaggedOffset};
use crate::mem::Atomic;
use crate::wire::profile::ATOMIC_WRITE;

/// Low four bits of the first word: which operation.
const CODE_MASK: u32 = 0x0f;
const FETCH_ADD: u32 = 0;
const COMPARE_SWAP: u32 = 2;

/// Body of an Atomic Request.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct RawAtomicRequest {
    code: U32,
    request: U32,
    stag: U32,
    to: U64,
    add_or_swap: U64,
    add_or_swap_mask: U64,
    compare: U64,
    compare_mask: U64,
}
/// Bytes of an Atomic Request's body.
pub const ATOMIC_REQUEST_BYTES: usize = size_of::<RawAtomicRequest>();
const _: () = assert!(ATOMIC_REQUEST_BYTES == 52);

/// Body of an Atomic Response.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct RawAtomicResponse {
    request: U32,
    original: U64,
}
/// Bytes of an Atomic Response's body.
pub const ATOMIC_RESPONSE_BYTES: usize = size_of::<RawAtomicResponse>();
const _: () = assert!(ATOMIC_RESPONSE_BYTES == 12);

/// An Atomic Request: every value is legal until the target is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AtomicRequest {
    /// The requester's number of it, which the response repeats.
    pub request: u32,
    /// The eight bytes.
    pub target: RemoteAddr,
    /// What becomes of them.
    pub op: Atomic,
}

/// Why a body is no Atomic Request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum AtomicError {
    /// Not of the one legal length.
    #[error("Atomic Request of a wrong length")]
    Length,
    /// Operation code 1 is reserved, as are all above 2.
    #[error("reserved atomic operation code")]
    Code,
}

impl AtomicRequest {
    /// Reads the body of the standard.
    ///
    /// # Errors
    /// If it has another length, or names a reserved operation.
    pub fn parse(body: &[u8]) -> Result<Self, AtomicError> {
        Self::parse_as(body, false)
    }

    /// Reads the body, which with `profile` may be an ATOMIC WRITE of the private profile.
    ///
    /// # Errors
    /// As `parse`.
    pub fn parse_as(body: &[u8], profile: bool) -> Result<Self, AtomicError> {
        let raw = RawAtomicRequest::ref_from_bytes(body).map_err(|_| AtomicError::Length)?;
        let op = match raw.code.get() & CODE_MASK {
            FETCH_ADD => Atomic::FetchAdd {
                add: raw.add_or_swap.get(),
                mask: raw.add_or_swap_mask.get(),
            },
            COMPARE_SWAP => Atomic::CompareSwap {
                compare: raw.compare.get(),
                compare_mask: raw.compare_mask.get(),
                swap: raw.add_or_swap.get(),
                swap_mask: raw.add_or_swap_mask.get(),
            },
            ATOMIC_WRITE if profile => Atomic::Write {
                value: raw.add_or_swap.get(),
            },
            _ => return Err(AtomicError::Code),
        };
        Ok(Self {
            request: raw.request.get(),
            target: RemoteAddr {
                stag: Stag(raw.stag.get()),
                to: TaggedOffset(raw.to.get()),
            },
            op,
        })
    }

    /// Appends the body. Fields that the operation does not use are sent as the RFC says: compare data 0, compare mask
    /// all ones.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let (code, add_or_swap, add_or_swap_mask, compare, compare_mask) = match self.op {
            Atomic::FetchAdd { add, mask } => (FETCH_ADD, add, mask, 0, u64::MAX),
            Atomic::CompareSwap {
                compare,
                compare_mask,
                swap,
                swap_mask,
            } => (COMPARE_SWAP, swap, swap_mask, compare, compare_mask),
            Atomic::Write { value } => (ATOMIC_WRITE, value, 0, 0, u64::MAX),
        };
        let raw = RawAtomicRequest {
            code: U32::new(code),
            request: U32::new(self.request),
            stag: U32::new(self.target.stag.0),
            to: U64::new(self.target.to.0),
            add_or_swap: U64::new(add_or_swap),
            add_or_swap_mask: U64::new(add_or_swap_mask),
            compare: U64::new(compare),
            compare_mask: U64::new(compare_mask),
        };
        out.extend_from_slice(raw.as_bytes());
    }
}

/// An Atomic Response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AtomicResponse {
    /// The number in the request.
    pub request: u32,
    /// What the eight bytes were before.
    pub original: u64,
}

impl AtomicResponse {
    /// Reads the body; `None` if it is not of the one legal length.
    #[must_use]
    pub fn parse(body: &[u8]) -> Option<Self> {
        let raw = RawAtomicResponse::ref_from_bytes(body).ok()?;
        Some(Self {
            request: raw.request.get(),
            original: raw.original.get(),
        })
    }

    /// Appends the body.
    pub fn emit(self, out: &mut Vec<u8>) {
        let raw = RawAtomicResponse {
            request: U32::new(self.request),
            original: U64::new(self.original),
        };
        out.extend_from_slice(raw.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_be_bytes()).collect()
    }

    #[test]
    fn golden_requests() {
        let target = RemoteAddr {
            stag: Stag(0x0102_0304),
            to: TaggedOffset(0x1122_3344_5566_7788),
        };
        let head = [
            0, 0, 0, 0, 0, 0, 0, 9, 1, 2, 3, 4, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88,
        ];
        let add = Atomic::FetchAdd { add: 5, mask: 6 };
        let swap = Atomic::CompareSwap {
            compare: 1,
            compare_mask: 2,
            swap: 3,
            swap_mask: 4,
        };
        for (op, code, tail) in [(add, 0, [5, 6, 0, u64::MAX]), (swap, 2, [3, 4, 1, 2])] {
            let mut bytes = [&head[..], &words(&tail)].concat();
            bytes[3] = code;
            let request = AtomicRequest {
                request: 9,
                target,
                op,
            };
            let mut out = Vec::new();
            request.emit(&mut out);
            assert_eq!(out, bytes);
            // The reserved bits are not looked at.
            bytes[0] = 0xff;
            bytes[3] |= 0xf0;
            assert_eq!(AtomicRequest::parse(&bytes), Ok(request));
            assert_eq!(AtomicRequest::parse(&bytes[1..]), Err(AtomicError::Length));
        }
    }

    #[test]
    fn reserved_codes() {
        for code in 0..16 {
            let mut bytes = [0; ATOMIC_REQUEST_BYTES];
            bytes[3] = code;
            let known = code == 0 || code == 2;
            assert_eq!(
                AtomicRequest::parse(&bytes).err(),
                (!known).then_some(AtomicError::Code)
            );
            let known = known || code == 3;
            assert_eq!(
                AtomicRequest::parse_as(&bytes, true).err(),
                (!known).then_some(AtomicError::Code)
            );
        }
    }

    /// The FPDU of the protocol note, §4: id 1, value 41.
    #[test]
    fn golden_response() {
        let bytes = [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 41];
        let response = AtomicResponse {
            request: 1,
            original: 41,
        };
        assert_eq!(AtomicResponse::parse(&bytes), Some(response));
        let mut out = Vec::new();
        response.emit(&mut out);
        assert_eq!(out, bytes);
        assert_eq!(AtomicResponse::parse(&bytes[..11]), None);
    }
}
