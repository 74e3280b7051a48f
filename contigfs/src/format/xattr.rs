//! Extended attributes on media: all of an inode's, packed behind one header, in a grain of their own or a few.
//!
//! Where they lie follows from the inode number alone, so no record leads there and mounting does not look at them:
//! the first grain in a dense column beside the inode table, what does not fit in a slot of 64 grains. An inode
//! without attributes has neither mapped.

use ftl::{GRAIN_BYTES, Lba, LbaRange};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{XATTR_HEADS, XATTR_RESTS};
use crate::error::Corruption;
use crate::inode::InodeNo;
use crate::xattr::{NameSpace, XattrName, XattrSet};

/// Grains that the attributes of one inode may take: so many that an atomic batch can write them all with the records.
pub(crate) const XATTR_GRAINS_MAX: usize = 48;
/// The same in bytes.
pub(crate) const XATTR_BYTES_MAX: usize = XATTR_GRAINS_MAX * GRAIN_BYTES;
/// Grains of the slot behind the first grain.
const REST_GRAINS: u64 = 64;
const HEADER: usize = size_of::<RawXattrs>();
const ENTRY: usize = size_of::<RawXattr>();

/// First bytes of the first grain; the entries follow.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawXattrs {
    /// Generation of the inode, so that attributes of an earlier inode of this number are not taken for good.
    generation: U64,
    /// Bytes of header and entries.
    bytes: U32,
    /// CRC-32 of the inode number (8 bytes), the 12 bytes before, and the entries.
    crc: U32,
}
const _: () = assert!(HEADER == 16);

/// An entry; the name without its prefix and the value follow.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawXattr {
    space: u8,
    name_len: u8,
    reserved: U16,
    value_len: U32,
}
const _: () = assert!(ENTRY == 8);
const _: () = assert!(XATTR_GRAINS_MAX as u64 - 1 <= REST_GRAINS);
const _: () = assert!(XATTR_HEADS.order.0 == 32);
const _: () = assert!(XATTR_RESTS.order.grains() == (1 << 32) * REST_GRAINS);

/// The first grain of the attributes of an inode.
pub(crate) fn xattr_head(ino: InodeNo) -> Lba {
    XATTR_HEADS.start.offset(ino.0)
}

/// The grains for what does not fit the first.
pub(crate) fn xattr_rest(ino: InodeNo) -> LbaRange {
    LbaRange::new(XATTR_RESTS.start.offset(ino.0 * REST_GRAINS), REST_GRAINS)
}

/// Grain number `at` of the attributes of an inode.
pub(crate) fn xattr_grain(ino: InodeNo, at: usize) -> Lba {
    match at {
        0 => xattr_head(ino),
        _ => xattr_rest(ino).start.offset(at as u64 - 1),
    }
}

/// The inode whose attributes lie in this grain, if it is one of those.
pub(crate) fn xattr_owner(lba: Lba) -> Option<InodeNo> {
    if XATTR_HEADS.lbas().contains(lba) {
        Some(InodeNo(lba.0 - XATTR_HEADS.start.0))
    } else if XATTR_RESTS.lbas().contains(lba) {
        Some(InodeNo((lba.0 - XATTR_RESTS.start.0) / REST_GRAINS))
    } else {
        None
    }
}

/// Bytes that an entry takes.
pub(crate) fn entry_bytes(name: &XattrName, value: &[u8]) -> usize {
    ENTRY + name.suffix().len() + value.len()
}

/// Bytes that a set takes; none when it is empty.
pub(crate) fn set_bytes(set: &XattrSet) -> usize {
    let entries: usize = set
        .iter()
        .map(|(name, value)| entry_bytes(name, value))
        .sum();
    if entries == 0 { 0 } else { HEADER + entries }
}

/// The whole grains that hold a set; none when it is empty.
pub(crate) fn emit_xattrs(ino: InodeNo, generation: u64, set: &XattrSet) -> Vec<u8> {
    let len = set_bytes(set);
    let mut bytes = Vec::with_capacity(len.next_multiple_of(GRAIN_BYTES));
    if len == 0 {
        return bytes;
    }
    assert!(len <= XATTR_BYTES_MAX, "sets are checked when they grow");
    let mut header = RawXattrs {
        generation: U64::new(generation),
        bytes: U32::new(len as u32),
        crc: U32::ZERO,
    };
    bytes.extend(header.as_bytes());
    for (name, value) in set.iter() {
        let raw = RawXattr {
            space: name.space().code(),
            name_len: name.suffix().len() as u8,
            reserved: U16::ZERO,
            value_len: U32::new(value.len() as u32),
        };
        bytes.extend(raw.as_bytes());
        bytes.extend(name.suffix());
        bytes.extend(value);
    }
    header.crc = U32::new(crc(ino, &bytes));
    bytes[..HEADER].copy_from_slice(header.as_bytes());
    bytes.resize(len.next_multiple_of(GRAIN_BYTES), 0);
    bytes
}

/// How many grains the first grain says that there are.
pub(crate) fn xattr_grains(ino: InodeNo, head: &[u8; GRAIN_BYTES]) -> Result<usize, Corruption> {
    let wrong = |what| Corruption::Xattrs { ino, what };
    let (raw, _) = RawXattrs::ref_from_prefix(head).map_err(|_| wrong("header"))?;
    match raw.bytes.get() as usize {
        len if (HEADER + ENTRY..=XATTR_BYTES_MAX).contains(&len) => Ok(len.div_ceil(GRAIN_BYTES)),
        _ => Err(wrong("impossible length")),
    }
}

/// Judges the grains of a set.
pub(crate) fn parse_xattrs(
    ino: InodeNo,
    generation: u64,
    grains: &[u8],
) -> Result<XattrSet, Corruption> {
    let wrong = |what| Corruption::Xattrs { ino, what };
    let (raw, _) = RawXattrs::ref_from_prefix(grains).map_err(|_| wrong("header"))?;
    let bytes = grains
        .get(..raw.bytes.get() as usize)
        .filter(|bytes| bytes.len() > HEADER)
        .ok_or(wrong("impossible length"))?;
    if crc(ino, bytes) != raw.crc.get() {
        return Err(wrong("checksum"));
    }
    if raw.generation.get() != generation {
        return Err(wrong("of another generation than the inode"));
    }
    let mut entries = Vec::new();
    let mut rest = &bytes[HEADER..];
    while !rest.is_empty() {
        let (raw, behind) = RawXattr::ref_from_prefix(rest).map_err(|_| wrong("cut-off entry"))?;
        let (suffix, behind) = behind
            .split_at_checked(usize::from(raw.name_len))
            .ok_or(wrong("cut-off name"))?;
        let (value, behind) = behind
            .split_at_checked(raw.value_len.get() as usize)
            .ok_or(wrong("cut-off value"))?;
        let space = NameSpace::from_code(raw.space).ok_or(wrong("unknown kind of name"))?;
        let name = XattrName::new(space, suffix).ok_or(wrong("impossible name"))?;
        if value.len() > XattrSet::VALUE_MAX {
            return Err(wrong("value too long"));
        }
        entries.push((name, value.to_vec()));
        rest = behind;
    }
    let set = XattrSet::from_entries(entries).ok_or(wrong("a name occurs twice"))?;
    if set.names_bytes() > XattrSet::NAMES_MAX {
        return Err(wrong("too many names"));
    }
    Ok(set)
}

/// Checksum of header and entries, whatever the header says of it.
fn crc(ino: InodeNo, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&ino.0.to_le_bytes());
    hasher.update(&bytes[..HEADER - 4]);
    hasher.update(&bytes[HEADER..]);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    const INO: InodeNo = InodeNo(5);
    const GENERATION: u64 = 9;

    fn name(text: &str) -> XattrName {
        XattrName::parse(text.as_bytes()).unwrap()
    }

    fn sample() -> XattrSet {
        let mut set = XattrSet::default();
        set.put(name("user.ab"), b"xyz");
        set.put(name("system.posix_acl_access"), b"");
        set
    }

    #[test]
    fn golden() {
        let bytes = emit_xattrs(INO, GENERATION, &sample());
        assert_eq!(bytes.len(), GRAIN_BYTES);
        assert_eq!(&bytes[..12], b"\x09\0\0\0\0\0\0\0\x25\0\0\0");
        assert_eq!(
            &bytes[16..37],
            b"\x01\x02\0\0\x03\0\0\0abxyz\x04\0\0\0\0\0\0\0"
        );
        assert!(bytes[37..].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn round_trip_over_several_grains() {
        let mut set = sample();
        set.put(name("trusted.large"), &[7; 65_536]);
        let bytes = emit_xattrs(INO, GENERATION, &set);
        let head = bytes.first_chunk().unwrap();
        assert_eq!(xattr_grains(INO, head), Ok(bytes.len() / GRAIN_BYTES));
        assert_eq!(parse_xattrs(INO, GENERATION, &bytes), Ok(set));
        assert!(emit_xattrs(INO, GENERATION, &XattrSet::default()).is_empty());
    }

    /// I4: neither another inode's attributes, nor an earlier one's, nor damaged ones are taken for good.
    #[test]
    fn damage_and_misplacement_are_noticed() {
        let bytes = emit_xattrs(INO, GENERATION, &sample());
        assert!(parse_xattrs(InodeNo(6), GENERATION, &bytes).is_err());
        assert!(parse_xattrs(INO, GENERATION + 1, &bytes).is_err());
        for at in 0..37 {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(
                parse_xattrs(INO, GENERATION, &damaged).is_err(),
                "byte {at}"
            );
        }
    }

    /// Entries with a good checksum but impossible content (a crafted image) are refused.
    #[test]
    fn crafted_sets_are_refused() {
        let crafted = |change: fn(&mut Vec<u8>)| {
            let mut bytes = emit_xattrs(INO, GENERATION, &sample());
            bytes.truncate(37);
            change(&mut bytes);
            let len = (bytes.len() as u32).to_le_bytes();
            bytes[8..12].copy_from_slice(&len);
            let crc = crc(INO, &bytes).to_le_bytes();
            bytes[12..16].copy_from_slice(&crc);
            parse_xattrs(INO, GENERATION, &bytes)
        };
        assert!(crafted(|_| {}).is_ok());
        assert!(crafted(|bytes| bytes[16] = 6).is_err(), "kind");
        assert!(crafted(|bytes| bytes[17] = 0).is_err(), "name");
        assert!(crafted(|bytes| bytes[20] = 200).is_err(), "value");
        assert!(crafted(|bytes| bytes[24] = 0).is_err(), "NUL in a name");
        assert!(crafted(|bytes| bytes.truncate(30)).is_err(), "cut off");
        assert!(
            crafted(|bytes| bytes.extend(bytes.clone().drain(29..37))).is_err(),
            "twice"
        );
        assert!(parse_xattrs(INO, GENERATION, &[0; GRAIN_BYTES]).is_err());
        assert!(xattr_grains(INO, &[0xff; GRAIN_BYTES]).is_err());
    }

    /// The places of all inodes are disjoint, and lead back to their owners.
    #[test]
    fn places() {
        for ino in [0, 1, 5, (1 << 32) - 1].map(InodeNo) {
            for at in 0..XATTR_GRAINS_MAX {
                assert_eq!(xattr_owner(xattr_grain(ino, at)), Some(ino));
            }
        }
        assert_eq!(xattr_owner(Lba(XATTR_HEADS.start.0 - 1)), None);
    }
}
