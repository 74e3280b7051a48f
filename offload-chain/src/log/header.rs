//! The header of a member's memory: what the layout is, and from where on the log is needed.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::layout::{HEADER_SLOTS, Layout};
use crate::epoch::Epoch;

const MAGIC: u64 = u64::from_le_bytes(*b"FLCHAIN1");
const EXECUTES: u32 = 1;

/// Bytes of a header.
pub const HEADER_BYTES: usize = 96;

/// As it is in memory. Little-endian.
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
struct RawHeader {
    magic: U64,
    salt: U64,
    ring_bytes: U64,
    data_bytes: U64,
    term: U64,
    count: U64,
    sequence: U64,
    place: U64,
    locks: U32,
    flags: U32,
    reserved: [U32; 5],
    crc: U32,
}
const _: () = assert!(size_of::<RawHeader>() == HEADER_BYTES);

/// A header that was found whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Header {
    /// How the memory is divided.
    pub layout: Layout,
    /// Random, new with each initialisation. Records of another life do not match it.
    pub salt: u64,
    /// The epoch all records have that are still needed; others are not there.
    pub term: Epoch,
    /// Counts headers of a term.
    pub count: u64,
    /// Sequence number of the first record that is still needed.
    pub sequence: u64,
    /// Where it is: bytes of log before it, from the beginning of time.
    pub place: u64,
    /// Whether records are carried out on the data.
    pub executes: bool,
}

impl Header {
    /// The first header of a new life.
    #[must_use]
    pub fn first(layout: Layout, salt: u64, executes: bool) -> Self {
        Self {
            layout,
            salt,
            term: Epoch(0),
            count: 0,
            sequence: 1,
            place: 0,
            executes,
        }
    }

    /// Where this header goes, and the one after it does not.
    #[must_use]
    pub fn at(&self) -> u64 {
        Layout::header_at(self.count % HEADER_SLOTS)
    }

    /// The next one, with a new mark.
    #[must_use]
    pub fn advanced(self, sequence: u64, place: u64) -> Self {
        Self {
            count: self.count + 1,
            sequence,
            place,
            ..self
        }
    }

    /// The bytes.
    #[must_use]
    pub fn emit(&self) -> [u8; HEADER_BYTES] {
        let mut raw = RawHeader {
            magic: MAGIC.into(),
            salt: self.salt.into(),
            ring_bytes: self.layout.ring_bytes().into(),
            data_bytes: self.layout.data_bytes().into(),
            term: self.term.0.into(),
            count: self.count.into(),
            sequence: self.sequence.into(),
            place: self.place.into(),
            locks: self.layout.locks().into(),
            flags: (if self.executes { EXECUTES } else { 0 }).into(),
            reserved: [0.into(); 5],
            crc: 0.into(),
        };
        raw.crc = crc(&raw).into();
        zerocopy::transmute!(raw)
    }

    /// What the bytes mean; nothing, unless they are a whole header.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (raw, _) = RawHeader::ref_from_prefix(bytes).ok()?;
        let flags = raw.flags.get();
        if raw.magic.get() != MAGIC || raw.crc.get() != crc(raw) || flags & !EXECUTES != 0 {
            return None;
        }
        let (ring, data) = (raw.ring_bytes.get(), raw.data_bytes.get());
        let layout = Layout::new(raw.locks.get(), ring, data).ok()?;
        Some(Self {
            layout,
            salt: raw.salt.get(),
            term: Epoch(raw.term.get()),
            count: raw.count.get(),
            sequence: raw.sequence.get(),
            place: raw.place.get(),
            executes: flags & EXECUTES != 0,
        })
    }

    /// The newer of two slots, if one of them has a header.
    #[must_use]
    pub fn newest(slots: [&[u8]; 2]) -> Option<Self> {
        slots
            .into_iter()
            .filter_map(Self::parse)
            .max_by_key(|header| (header.term, header.count))
    }
}

/// Whether the beginning of a memory is that of something else: it has bytes, and no header was ever in any slot.
#[must_use]
pub(crate) fn is_foreign(first: &[u8]) -> bool {
    let has_magic = |slot| {
        let header = first.get(Layout::header_at(slot) as usize..);
        header.is_some_and(|bytes| bytes.starts_with(&MAGIC.to_le_bytes()))
    };
    first.iter().any(|&byte| byte != 0) && !(0..HEADER_SLOTS).any(has_magic)
}

fn crc(raw: &RawHeader) -> u32 {
    crc32fast::hash(&raw.as_bytes()[..HEADER_BYTES - 4])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            term: Epoch(5),
            count: 3,
            sequence: 0x11,
            place: 0x240,
            ..Header::first(
                Layout::new(2, 256, 64).unwrap(),
                0x0102_0304_0506_0708,
                true,
            )
        }
    }

    #[test]
    fn something_else() {
        let mut first = vec![0; 2 * Layout::header_at(1) as usize];
        assert!(!is_foreign(&[]) && !is_foreign(&first));
        assert!(is_foreign(b"a") && is_foreign(&header().emit()[1..]));
        let second = Layout::header_at(1) as usize;
        first[second..second + HEADER_BYTES].copy_from_slice(&header().emit());
        // Damaged, as a power cut leaves it.
        first[second + 20] ^= 1;
        first[..HEADER_BYTES].fill(0xa5);
        assert!(!is_foreign(&first));
    }

    #[test]
    fn golden_bytes() {
        let mut golden = Vec::new();
        golden.extend(b"FLCHAIN1");
        golden.extend([8, 7, 6, 5, 4, 3, 2, 1]);
        for word in [256u64, 64, 5, 3, 0x11, 0x240] {
            golden.extend(word.to_le_bytes());
        }
        golden.extend([2, 0, 0, 0, 1, 0, 0, 0]);
        golden.extend([0; 20]);
        golden.extend(crc32fast::hash(&golden).to_le_bytes());
        assert_eq!(header().emit().as_slice(), golden);
        assert_eq!(Header::parse(&golden), Some(header()));
    }

    /// I14: a header with any bit wrong is no header.
    #[test]
    fn damage_is_noticed() {
        let whole = header().emit();
        for bit in 0..whole.len() * 8 {
            let mut damaged = whole;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Header::parse(&damaged), None, "bit {bit}");
        }
        assert_eq!(Header::parse(&whole[..95]), None);
    }

    #[test]
    fn the_newer_one_counts() {
        let (old, new) = (header(), header().advanced(0x12, 0x280));
        assert_ne!(old.at(), new.at());
        assert_eq!(Header::newest([&old.emit(), &new.emit()]), Some(new));
        assert_eq!(Header::newest([&old.emit(), &[0; 96]]), Some(old));
        let newer = Header {
            term: Epoch(6),
            count: 0,
            ..old
        };
        assert_eq!(Header::newest([&newer.emit(), &new.emit()]), Some(newer));
        assert_eq!(Header::newest([&[0; 96], &[1; 96]]), None);
    }
}
