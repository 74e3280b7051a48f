//! Directory entries: a grain is 256 units of 16 bytes; an entry is a header unit and its name in the units behind.
//!
//! A unit whose inode number is zero is free; an unmapped grain reads as zeros and is hence all free. Entries never
//! cross a grain and never move, so the number of an entry's first unit serves as readdir cookie.

use ftl::GRAIN_BYTES;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{INODES_MAX, NAME_MAX};
use crate::error::Corruption;
use crate::inode::{FileKind, InodeNo};

/// Bytes in a unit.
pub(crate) const DIRENT_UNIT: usize = 16;
/// Units in a grain.
pub(crate) const GRAIN_UNITS: usize = GRAIN_BYTES / DIRENT_UNIT;
/// Units of the longest entry.
pub(crate) const UNITS_MAX: usize = units_for(NAME_MAX);

/// Header of an entry; the name follows, padded with zeros to a multiple of the unit.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawDirent {
    ino: U64,
    name_len: u8,
    /// Kind of the inode, as in `st_mode >> 12`.
    kind: u8,
    reserved: U16,
    /// CRC-32 of the directory's inode number (8 bytes), the 12 bytes before and the name.
    crc: U32,
}
const _: () = assert!(size_of::<RawDirent>() == DIRENT_UNIT);

/// A parsed entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dirent<'a> {
    pub(crate) ino: InodeNo,
    pub(crate) kind: FileKind,
    pub(crate) name: &'a [u8],
}

/// Units that an entry with a name of this length takes.
pub(crate) const fn units_for(name_len: usize) -> usize {
    1 + name_len.div_ceil(DIRENT_UNIT)
}

impl Dirent<'_> {
    /// The bytes of the entry in directory `dir`: a whole number of units.
    pub(crate) fn emit(&self, dir: InodeNo) -> Vec<u8> {
        let name_len = u8::try_from(self.name.len())
            .expect("names are checked when they enter the file system");
        let mut raw = RawDirent {
            ino: U64::new(self.ino.0),
            name_len,
            kind: self.kind.code(),
            reserved: U16::ZERO,
            crc: U32::ZERO,
        };
        raw.crc = U32::new(crc(dir, &raw.as_bytes()[..12], self.name));
        let mut bytes = vec![0; units_for(self.name.len()) * DIRENT_UNIT];
        bytes[..DIRENT_UNIT].copy_from_slice(raw.as_bytes());
        bytes[DIRENT_UNIT..DIRENT_UNIT + self.name.len()].copy_from_slice(self.name);
        bytes
    }
}

/// The entry that begins at a unit of a grain of directory `dir`; none when the unit is free.
pub(crate) fn parse_unit<'a>(
    dir: InodeNo,
    unit: usize,
    grain: &'a [u8; GRAIN_BYTES],
) -> Result<Option<Dirent<'a>>, &'static str> {
    let at = unit * DIRENT_UNIT;
    let (raw, rest) = RawDirent::ref_from_prefix(&grain[at..]).map_err(|_| "header")?;
    if raw.ino.get() == 0 {
        return Ok(None);
    }
    let name = rest
        .get(..usize::from(raw.name_len))
        .ok_or("name crosses the grain")?;
    if crc(dir, &grain[at..at + 12], name) != raw.crc.get() {
        return Err("checksum");
    }
    if raw.ino.get() >= INODES_MAX || raw.reserved.get() != 0 {
        return Err("impossible inode number");
    }
    if name.is_empty()
        || name == b"."
        || name == b".."
        || name.iter().any(|&byte| byte == 0 || byte == b'/')
    {
        return Err("impossible name");
    }
    let kind = FileKind::from_code(raw.kind).ok_or("unknown kind")?;
    Ok(Some(Dirent {
        ino: InodeNo(raw.ino.get()),
        kind,
        name,
    }))
}

/// Walks the entries of one grain of directory `dir`: calls `visit` with the unit in the grain and the entry.
///
/// `first_unit` is the unit number of the grain's first unit; it only serves error messages.
pub(crate) fn parse_grain<'a>(
    dir: InodeNo,
    first_unit: u32,
    grain: &'a [u8; GRAIN_BYTES],
    mut visit: impl FnMut(usize, Dirent<'a>),
) -> Result<(), Corruption> {
    let mut unit = 0;
    while unit < GRAIN_UNITS {
        let entry = parse_unit(dir, unit, grain).map_err(|what| Corruption::Entry {
            dir,
            unit: first_unit + unit as u32,
            what,
        })?;
        let Some(entry) = entry else {
            unit += 1;
            continue;
        };
        visit(unit, entry);
        unit += units_for(entry.name.len());
    }
    Ok(())
}

fn crc(dir: InodeNo, header: &[u8], name: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&dir.0.to_le_bytes());
    hasher.update(header);
    hasher.update(name);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIR: InodeNo = InodeNo(1);

    fn entries(grain: &[u8; GRAIN_BYTES]) -> Result<Vec<(usize, u64, Vec<u8>)>, Corruption> {
        let mut all = Vec::new();
        parse_grain(DIR, 0, grain, |unit, entry| {
            all.push((unit, entry.ino.0, entry.name.to_vec()))
        })?;
        Ok(all)
    }

    fn grain_with(entries: &[(usize, &[u8])]) -> [u8; GRAIN_BYTES] {
        let mut grain = [0; GRAIN_BYTES];
        for &(unit, name) in entries {
            let bytes = Dirent {
                ino: InodeNo(7),
                kind: FileKind::File,
                name,
            }
            .emit(DIR);
            grain[unit * DIRENT_UNIT..][..bytes.len()].copy_from_slice(&bytes);
        }
        grain
    }

    #[test]
    fn golden() {
        let bytes = Dirent {
            ino: InodeNo(7),
            kind: FileKind::File,
            name: b"ab",
        }
        .emit(DIR);
        assert_eq!(&bytes[..12], b"\x07\0\0\0\0\0\0\0\x02\x08\0\0");
        assert_eq!(&bytes[16..], b"ab\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
    }

    #[test]
    fn round_trip_with_gaps() {
        let long = [b'x'; 255];
        let grain = grain_with(&[(0, b"a"), (5, b"sixteen bytes ok"), (239, &long)]);
        let all = entries(&grain).unwrap();
        assert_eq!(all.iter().map(|e| e.0).collect::<Vec<_>>(), [0, 5, 239]);
        assert_eq!(all[2].2, long);
    }

    /// A crafted length, kind, name or a foreign directory is a typed error.
    #[test]
    fn crafted_grains_are_refused() {
        let mut grain = grain_with(&[(255, b"")]);
        grain[255 * DIRENT_UNIT + 8] = 200;
        assert!(entries(&grain).is_err());
        for name in [&b""[..], b".", b"..", b"a/b", b"a\0"] {
            assert!(entries(&grain_with(&[(0, name)])).is_err(), "{name:?}");
        }
        let grain = grain_with(&[(0, b"a")]);
        assert!(parse_grain(InodeNo(2), 0, &grain, |_, _| {}).is_err());
        for at in 0..17 {
            let mut damaged = grain;
            damaged[at] ^= 0x10;
            assert!(entries(&damaged).is_err(), "byte {at}");
        }
    }
}
