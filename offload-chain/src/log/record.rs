//! Redo records: what they say, and their bytes in the ring.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::layout::RECORD_ALIGN;
use crate::epoch::Epoch;

const MAGIC: u32 = u32::from_le_bytes(*b"RLOG");

/// Bytes of a record's header.
pub const RECORD_HEADER_BYTES: usize = 40;
/// Bytes before those of an entry.
const ENTRY_HEADER_BYTES: usize = 16;
/// Most entries a record can have.
pub const ENTRIES_MAX: usize = 256;

#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
struct RawRecord {
    magic: U32,
    crc: U32,
    sequence: U64,
    term: U64,
    bytes: U32,
    kind: U32,
    token: U64,
}
const _: () = assert!(size_of::<RawRecord>() == RECORD_HEADER_BYTES);

#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
struct RawEntry {
    offset: U64,
    length: U64,
}
const _: () = assert!(size_of::<RawEntry>() == ENTRY_HEADER_BYTES);

/// What a record is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Its entries are to be carried out.
    Redo = 1,
    /// The log goes on at the start of the ring.
    Skip = 2,
}

/// Bytes that belong at an offset of the data.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// Where, from the start of the data.
    pub offset: u64,
    /// What.
    pub bytes: Vec<u8>,
}

/// An entry without its bytes: from where in the record to where in the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Copy {
    /// From the start of the record.
    pub from: u64,
    /// From the start of the data.
    pub to: u64,
    /// Bytes.
    pub length: u64,
}

/// A record that was found whole.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    /// Its number.
    pub sequence: u64,
    /// Epoch it was appended in.
    pub term: Epoch,
    /// Generation of the log's lock it was appended under.
    pub token: u64,
    /// What it is for.
    pub kind: Kind,
    /// Bytes it takes of the ring.
    pub extent: u64,
    /// What is to be copied.
    pub copies: Vec<Copy>,
}

/// The bytes a record with these entries takes.
#[must_use]
pub fn extent(entries: &[Entry]) -> u64 {
    let entries: u64 = entries
        .iter()
        .map(|entry| (ENTRY_HEADER_BYTES + entry.bytes.len().next_multiple_of(8)) as u64)
        .sum();
    (RECORD_HEADER_BYTES as u64 + entries).next_multiple_of(RECORD_ALIGN)
}

/// The bytes of a record.
#[must_use]
pub(super) fn emit(
    salt: u64,
    (kind, sequence, term, token): (Kind, u64, Epoch, u64),
    entries: &[Entry],
) -> Vec<u8> {
    let mut bytes = vec![0; RECORD_HEADER_BYTES];
    for entry in entries {
        let header = RawEntry {
            offset: entry.offset.into(),
            length: (entry.bytes.len() as u64).into(),
        };
        bytes.extend(header.as_bytes());
        bytes.extend(&entry.bytes);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
    }
    let mut raw = RawRecord {
        magic: MAGIC.into(),
        crc: 0.into(),
        sequence: sequence.into(),
        term: term.0.into(),
        bytes: ((bytes.len() - RECORD_HEADER_BYTES) as u32).into(),
        kind: (kind as u32).into(),
        token: token.into(),
    };
    raw.crc = crc(salt, &raw, &bytes[RECORD_HEADER_BYTES..]).into();
    bytes[..RECORD_HEADER_BYTES].copy_from_slice(raw.as_bytes());
    bytes.resize(bytes.len().next_multiple_of(RECORD_ALIGN as usize), 0);
    bytes
}

/// What the bytes from here to the end of the ring start with; nothing, unless it is a whole record of this life whose
/// entries fit `data_bytes`.
#[must_use]
pub(super) fn parse(salt: u64, bytes: &[u8], data_bytes: u64) -> Option<Record> {
    let (raw, rest) = RawRecord::ref_from_prefix(bytes).ok()?;
    let payload = rest.get(..raw.bytes.get() as usize)?;
    if raw.magic.get() != MAGIC || raw.crc.get() != crc(salt, raw, payload) {
        return None;
    }
    let kind = match raw.kind.get() {
        1 => Kind::Redo,
        2 => Kind::Skip,
        _ => return None,
    };
    let mut copies = Vec::new();
    let mut left = payload;
    while !left.is_empty() {
        let (entry, rest) = RawEntry::ref_from_prefix(left).ok()?;
        let (to, length) = (entry.offset.get(), entry.length.get());
        let padded = usize::try_from(length).ok()?.checked_next_multiple_of(8)?;
        if to.checked_add(length)? > data_bytes || copies.len() == ENTRIES_MAX {
            return None;
        }
        let from = RECORD_HEADER_BYTES + (payload.len() - rest.len());
        copies.push(Copy {
            from: from as u64,
            to,
            length,
        });
        left = rest.get(padded..)?;
    }
    let extent = (RECORD_HEADER_BYTES + payload.len()).next_multiple_of(RECORD_ALIGN as usize);
    Some(Record {
        sequence: raw.sequence.get(),
        term: Epoch(raw.term.get()),
        token: raw.token.get(),
        kind,
        extent: extent as u64,
        copies,
    })
}

/// Number and term of a record, as far as its header tells.
pub(super) fn begins(header: &[u8]) -> Option<(u64, Epoch)> {
    let (raw, _) = RawRecord::ref_from_prefix(header).ok()?;
    (raw.magic.get() == MAGIC).then(|| (raw.sequence.get(), Epoch(raw.term.get())))
}

/// Bytes that the header says follow it.
pub(super) fn payload_bytes(header: &[u8; RECORD_HEADER_BYTES]) -> u32 {
    let raw: &RawRecord = zerocopy::transmute_ref!(header);
    raw.bytes.get()
}

/// Makes any bytes match their checksum, for a recovery that is planted not to compare it.
pub(super) fn forge(salt: u64, bytes: &mut [u8]) {
    let (head, payload) = bytes.split_at_mut(RECORD_HEADER_BYTES);
    if let Ok((raw, _)) = RawRecord::mut_from_prefix(head) {
        raw.crc = crc(salt, raw, payload).into();
    }
}

fn crc(salt: u64, raw: &RawRecord, payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&salt.to_le_bytes());
    hasher.update(&raw.as_bytes()[8..]);
    hasher.update(payload);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SALT: u64 = 99;

    fn sample() -> Vec<u8> {
        let entries = [
            Entry {
                offset: 8,
                bytes: b"abc".to_vec(),
            },
            Entry {
                offset: 100,
                bytes: vec![7; 16],
            },
        ];
        emit(SALT, (Kind::Redo, 3, Epoch(2), 9), &entries)
    }

    #[test]
    fn golden_bytes() {
        let bytes = emit(
            0,
            (Kind::Redo, 0x0102, Epoch(3), 4),
            &[Entry {
                offset: 5,
                bytes: vec![6],
            }],
        );
        let mut golden = b"RLOG".to_vec();
        let mut covered = vec![2, 1, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0];
        covered.extend([24, 0, 0, 0, 1, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0]);
        covered.extend([
            5, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0,
        ]);
        let salted = [&[0; 8], covered.as_slice()].concat();
        golden.extend(crc32fast::hash(&salted).to_le_bytes());
        golden.extend(covered);
        assert_eq!(bytes, golden);
    }

    #[test]
    fn what_is_emitted_is_parsed() {
        let bytes = sample();
        assert_eq!(bytes.len(), 128);
        let record = parse(SALT, &bytes, 116).unwrap();
        assert_eq!(
            (record.sequence, record.term, record.token),
            (3, Epoch(2), 9)
        );
        assert_eq!((record.kind, record.extent), (Kind::Redo, 128));
        let copies = [
            Copy {
                from: 56,
                to: 8,
                length: 3,
            },
            Copy {
                from: 80,
                to: 100,
                length: 16,
            },
        ];
        assert_eq!(record.copies, copies);
    }

    /// I1, I14: no torn record is taken for one, wherever it is torn and whatever is in the place of the rest; and none of
    /// another life, and none that reaches beyond the data.
    #[test]
    fn torn_records_are_none() {
        let whole = sample();
        for cut in 0..96 {
            for fill in [0u8, 0xff, 0x5a] {
                let mut torn = whole.clone();
                torn[cut..96].fill(fill);
                let same = torn == whole;
                assert_eq!(parse(SALT, &torn, 116).is_some(), same, "cut at {cut}");
            }
            assert_eq!(parse(SALT, &whole[..cut], 116), None);
        }
        assert_eq!(parse(SALT + 1, &whole, 116), None);
        assert_eq!(parse(SALT, &whole, 115), None);
    }

    /// Lengths that lie, with a right checksum: refused, not believed.
    #[test]
    fn lengths_from_outside_are_checked() {
        for length in [4u64, 9, u64::MAX, u64::MAX - 7] {
            let mut bytes = emit(
                SALT,
                (Kind::Redo, 1, Epoch(1), 0),
                &[Entry {
                    offset: 0,
                    bytes: vec![1; 3],
                }],
            );
            bytes[48..56].copy_from_slice(&length.to_le_bytes());
            let raw = *RawRecord::ref_from_prefix(&bytes).unwrap().0;
            let crc = super::crc(SALT, &raw, &bytes[40..64]);
            bytes[4..8].copy_from_slice(&crc.to_le_bytes());
            let found = parse(SALT, &bytes, 1 << 20);
            assert_eq!(found.is_some(), length == 4, "length {length}");
        }
    }
}
