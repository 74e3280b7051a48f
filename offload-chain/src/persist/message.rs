//! What a SEND of a recipe carries: where changes were written, or the changes themselves.
//!
//! ```text
//! offset size
//!      0    4  magic "PRS1"
//!      4    4  CRC-32 of everything behind it
//!      8    8  sequence number of the update
//!     16    1  parts, 0 to 2; none: the acknowledgement of this update, or of these immediate data
//!     17    7  zero
//!     24   16  each part: address 8, length 4, item 1 (0 a, 1 b), carried 1, zero 2
//!              then the bytes of the carried parts, one behind the other
//! ```
//!
//! Little-endian. A message found in a receive buffer after a restart is whole if its checksum fits; behind it lies
//! what earlier messages left.

use std::mem::size_of;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::recipe::Item;

const MAGIC: u32 = u32::from_le_bytes(*b"PRS1");
const PARTS_MAX: usize = 2;
/// Bytes of a message without parts.
pub const HEADER_BYTES: usize = size_of::<RawHeader>();

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawHeader {
    magic: U32,
    crc: U32,
    sequence: U64,
    parts: u8,
    zero: [u8; 7],
}
const _: () = assert!(size_of::<RawHeader>() == 24);

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawPart {
    at: U64,
    len: U32,
    item: u8,
    carried: u8,
    zero: [u8; 2],
}
const _: () = assert!(size_of::<RawPart>() == 16);

/// A change, or where it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part<'a> {
    /// Which.
    pub item: Item,
    /// First byte, in the region.
    pub at: u64,
    /// Number of bytes.
    pub len: u32,
    /// The bytes, if the message carries them.
    pub bytes: Option<&'a [u8]>,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// Which update it is about.
    pub sequence: u64,
    /// At most one for each item.
    pub parts: Vec<Part<'a>>,
}

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum MessageError {
    /// Shorter than it says, or than any.
    #[error("message is cut off")]
    Short,
    /// Not one of these.
    #[error("not a message of a persistence recipe")]
    Magic,
    /// Damaged, or only a part of it is there.
    #[error("message does not fit its checksum")]
    Checksum,
    /// It says what cannot be.
    #[error("message is malformed")]
    Malformed,
    /// Something follows.
    #[error("{0} bytes behind the message")]
    Trailing(usize),
}

impl<'a> Message<'a> {
    /// The acknowledgement of an update.
    #[must_use]
    pub const fn acknowledgement(sequence: u64) -> Self {
        Self {
            sequence,
            parts: Vec::new(),
        }
    }

    /// Reads a message that is all of `bytes`.
    ///
    /// # Errors
    /// See [`MessageError`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, MessageError> {
        let (message, len) = Self::parse_front(bytes)?;
        match bytes.len() - len {
            0 => Ok(message),
            more => Err(MessageError::Trailing(more)),
        }
    }

    /// Reads a message at the beginning of `bytes`, and says how long it is.
    ///
    /// # Errors
    /// See [`MessageError`].
    pub fn parse_front(bytes: &'a [u8]) -> Result<(Self, usize), MessageError> {
        let (header, mut rest) =
            RawHeader::ref_from_prefix(bytes).map_err(|_| MessageError::Short)?;
        if header.magic.get() != MAGIC {
            return Err(MessageError::Magic);
        }
        let count = usize::from(header.parts);
        if count > PARTS_MAX || header.zero != [0; 7] {
            return Err(MessageError::Malformed);
        }
        let mut raw = Vec::with_capacity(count);
        for _ in 0..count {
            let (part, behind) = RawPart::ref_from_prefix(rest).map_err(|_| MessageError::Short)?;
            raw.push(part);
            rest = behind;
        }
        let mut parts: Vec<Part<'a>> = Vec::with_capacity(count);
        for part in raw {
            let item = match part.item {
                0 => Item::A,
                1 => Item::B,
                _ => return Err(MessageError::Malformed),
            };
            let len = part.len.get();
            let carried = match part.carried {
                0 => None,
                1 => {
                    let (carried, behind) = usize::try_from(len)
                        .ok()
                        .and_then(|len| rest.split_at_checked(len))
                        .ok_or(MessageError::Short)?;
                    rest = behind;
                    Some(carried)
                }
                _ => return Err(MessageError::Malformed),
            };
            if part.zero != [0; 2] || parts.iter().any(|other| other.item == item) {
                return Err(MessageError::Malformed);
            }
            parts.push(Part {
                item,
                at: part.at.get(),
                len,
                bytes: carried,
            });
        }
        let len = bytes.len() - rest.len();
        if crc32fast::hash(&bytes[8..len]) != header.crc.get() {
            return Err(MessageError::Checksum);
        }
        let sequence = header.sequence.get();
        Ok((Self { sequence, parts }, len))
    }

    /// The message as bytes.
    ///
    /// # Panics
    /// If it has more than two parts, or one carries another number of bytes than it says.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        assert!(self.parts.len() <= PARTS_MAX, "one part for each item");
        let mut header = RawHeader {
            magic: U32::new(MAGIC),
            crc: U32::new(0),
            sequence: U64::new(self.sequence),
            parts: self.parts.len() as u8,
            zero: [0; 7],
        };
        let mut out = header.as_bytes().to_vec();
        for part in &self.parts {
            let raw = RawPart {
                at: U64::new(part.at),
                len: U32::new(part.len),
                item: u8::from(part.item == Item::B),
                carried: u8::from(part.bytes.is_some()),
                zero: [0; 2],
            };
            out.extend_from_slice(raw.as_bytes());
        }
        for part in &self.parts {
            if let Some(bytes) = part.bytes {
                assert_eq!(bytes.len(), part.len as usize, "bytes as announced");
                out.extend_from_slice(bytes);
            }
        }
        header.crc = U32::new(crc32fast::hash(&out[8..]));
        out[..HEADER_BYTES].copy_from_slice(header.as_bytes());
        out
    }
}

/// Immediate data say where a change was written: address 47 bits, length 16, item 1, from the high end.
#[must_use]
pub(super) fn immediate(item: Item, at: u64, len: usize) -> Option<u64> {
    let len = u64::from(u16::try_from(len).ok()?);
    (at < 1 << 47).then_some(at << 17 | len << 1 | u64::from(item == Item::B))
}

/// What immediate data say: item, address, length.
#[must_use]
pub(super) const fn parse_immediate(data: u64) -> (Item, u64, u32) {
    let item = if data & 1 == 0 { Item::A } else { Item::B };
    (item, data >> 17, (data >> 1 & 0xffff) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both() -> Message<'static> {
        let part = |item, at, bytes: &'static [u8]| Part {
            item,
            at,
            len: bytes.len() as u32,
            bytes: Some(bytes),
        };
        Message {
            sequence: 7,
            parts: vec![part(Item::A, 0x1000, b"abc"), part(Item::B, 8, b"d")],
        }
    }

    #[test]
    fn golden_bytes() {
        let message = Message {
            sequence: 0x0102,
            parts: vec![Part {
                item: Item::B,
                at: 0x0304,
                len: 64,
                bytes: None,
            }],
        };
        let bytes = message.emit();
        let crc = crc32fast::hash(&bytes[8..]).to_le_bytes();
        let mut golden = b"PRS1".to_vec();
        golden.extend(crc);
        golden.extend([2, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        golden.extend([4, 3, 0, 0, 0, 0, 0, 0, 64, 0, 0, 0, 1, 0, 0, 0]);
        assert_eq!(bytes, golden);
        assert_eq!(Message::parse(&bytes), Ok(message));
        let ack = Message::acknowledgement(9).emit();
        assert_eq!(ack.len(), HEADER_BYTES);
        assert_eq!(Message::parse(&ack), Ok(Message::acknowledgement(9)));
    }

    /// A receive buffer holds a whole message or none: each byte that is missing or wrong is noticed (defends I1).
    #[test]
    fn torn_messages_are_no_messages() {
        let bytes = both().emit();
        assert_eq!(Message::parse(&bytes), Ok(both()));
        for end in 0..bytes.len() {
            let mut torn = bytes.clone();
            torn[end..].fill(0);
            assert_ne!(Message::parse_front(&torn).map(|(m, _)| m), Ok(both()));
            assert_eq!(Message::parse(&bytes[..end]), Err(MessageError::Short));
            for bit in 0..8 {
                let mut wrong = bytes.clone();
                wrong[end] ^= 1 << bit;
                assert!(Message::parse(&wrong).is_err(), "bit {bit} of byte {end}");
            }
        }
    }

    #[test]
    fn a_message_is_found_before_older_bytes() {
        let mut buffer = both().emit();
        let len = buffer.len();
        buffer.extend([0xee; 100]);
        assert_eq!(Message::parse_front(&buffer), Ok((both(), len)));
        assert_eq!(Message::parse(&buffer), Err(MessageError::Trailing(100)));
    }

    /// With the checksum right, what cannot be is still refused.
    #[test]
    fn malformed_messages_are_refused() {
        let edits: [(usize, u8); 6] = [(16, 3), (17, 1), (36, 2), (37, 2), (38, 1), (52, 0)];
        for (at, value) in edits {
            let mut bytes = both().emit();
            assert_ne!(bytes[at], value, "byte {at} changes");
            bytes[at] = value;
            let crc = crc32fast::hash(&bytes[8..]).to_le_bytes();
            bytes[4..8].copy_from_slice(&crc);
            assert_eq!(
                Message::parse(&bytes),
                Err(MessageError::Malformed),
                "byte {at}"
            );
        }
    }

    #[test]
    fn immediates_hold_where() {
        for (item, at, len) in [(Item::A, 0, 64), (Item::B, (1 << 47) - 1, 65_535)] {
            let data = immediate(item, at, len).unwrap();
            assert_eq!(parse_immediate(data), (item, at, len as u32));
        }
        assert_eq!(immediate(Item::A, 1 << 47, 1), None);
        assert_eq!(immediate(Item::A, 0, 65_536), None);
    }
}
