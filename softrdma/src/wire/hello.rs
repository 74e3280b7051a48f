//! Eight bytes in front of the private data by which two of our own endpoints recognise each other.
//!
//! They allow FPDUs far larger than a TCP segment, which RFC 5044 permits but a foreign peer may handle badly, and the
//! private profile. A peer that does not know the hello sees eight more bytes of private data.

use zerocopy::big_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::config::{ULPDU_FLOOR, ULPDU_LIMIT};

const MAGIC: [u8; 4] = *b"fnet";
const VERSION: u8 = 1;

/// Bytes of a hello.
pub const HELLO_BYTES: usize = size_of::<RawHello>();

/// As it lies on the wire.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct RawHello {
    magic: [u8; 4],
    version: u8,
    profile: u8,
    ulpdu_max: U16,
}
const _: () = assert!(size_of::<RawHello>() == 8);

/// What an endpoint of ours says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hello {
    /// Largest ULPDU it likes to receive.
    pub ulpdu_max: u16,
    /// The [private profile](crate::wire::profile) that it speaks; 0 for none.
    pub profile: u8,
}

impl Hello {
    /// Splits a hello off the front of the private data, if there is one.
    #[must_use]
    pub fn split(private_data: &[u8]) -> (Option<Self>, &[u8]) {
        match RawHello::ref_from_prefix(private_data) {
            Ok((raw, rest)) if raw.magic == MAGIC && raw.version == VERSION => (
                Some(Self {
                    ulpdu_max: raw.ulpdu_max.get().clamp(ULPDU_FLOOR, ULPDU_LIMIT),
                    profile: raw.profile,
                }),
                rest,
            ),
            _ => (None, private_data),
        }
    }

    /// Appends it.
    pub fn emit(self, out: &mut Vec<u8>) {
        let ulpdu_max = U16::new(self.ulpdu_max);
        out.extend_from_slice(
            RawHello {
                magic: MAGIC,
                version: VERSION,
                profile: self.profile,
                ulpdu_max,
            }
            .as_bytes(),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden() {
        let bytes = b"fnet\x01\x07\xf0\x0exyz";
        let (hello, rest) = Hello::split(bytes);
        assert_eq!(
            (hello, rest),
            (
                Some(Hello {
                    ulpdu_max: 0xf00e,
                    profile: 7,
                }),
                &b"xyz"[..]
            )
        );
        let mut out = Vec::new();
        hello.unwrap().emit(&mut out);
        assert_eq!(out, bytes[..8]);
        assert_eq!(Hello::split(b"fnet\x02\x00\xf0\x0e").0, None);
        assert_eq!(Hello::split(b"fnet"), (None, &b"fnet"[..]));
        assert_eq!(
            Hello::split(b"fnet\x01\x00\x00\x01").0,
            Some(Hello {
                ulpdu_max: ULPDU_FLOOR,
                profile: 0,
            })
        );
    }
}
