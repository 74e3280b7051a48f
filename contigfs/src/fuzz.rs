//! Entry points for fuzzing: what lies in the space of the file system, as anybody may have written it. Plain functions,
//! which a test calls as well as a fuzzer.
//!
//! Bytes are taken as they are and with the checksums put right: who crafts an image can count. What is accepted must be
//! possible, so it can be written, and then says the same.

use ftl::GRAIN_BYTES;

use crate::acl::Acl;
use crate::format::{
    COLD_BYTES, DIRENT_UNIT, Dirent, GRAIN_UNITS, HOT_BYTES, HotRecord, InodeRecord, RootRecord,
    TableRecord, XATTR_BYTES_MAX, emit_xattrs, parse_grain, parse_xattrs, units_for, xattr_grains,
};
use crate::inode::InodeNo;

/// An entry point.
pub type Entry = fn(&[u8]);

/// All of them, by name.
pub const ENTRIES: [(&str, Entry); 4] = [
    ("root_record", root_record),
    ("inode_records", inode_records),
    ("directory_grain", directory_grain),
    ("xattr_grains", xattrs),
];

/// Inodes that the bytes may belong to.
const INODES: [InodeNo; 3] = [InodeNo::TABLE, InodeNo::ROOT, InodeNo(77)];

fn padded<const N: usize>(data: &[u8]) -> [u8; N] {
    let mut bytes = [0; N];
    let len = data.len().min(N);
    bytes[..len].copy_from_slice(&data[..len]);
    bytes
}

/// The checksum of something that belongs to an inode.
fn crc(ino: InodeNo, parts: &[&[u8]]) -> [u8; 4] {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&ino.0.to_le_bytes());
    parts.iter().for_each(|part| hasher.update(part));
    hasher.finalize().to_le_bytes()
}

/// A root record.
pub fn root_record(data: &[u8]) {
    let plain: [u8; RootRecord::BYTES] = padded(data);
    let mut sealed = plain;
    sealed[12..16].fill(0);
    let crc = crc32fast::hash(&sealed);
    sealed[12..16].copy_from_slice(&crc.to_le_bytes());
    for bytes in [plain, sealed] {
        if let Ok(found) = RootRecord::parse(&bytes) {
            assert_eq!(RootRecord::parse(&found.emit()), Ok(found));
        }
    }
}

/// The two records of an inode, one behind the other.
pub fn inode_records(data: &[u8]) {
    let both: [u8; HOT_BYTES + COLD_BYTES] = padded(data);
    for ino in INODES {
        let mut hot: [u8; HOT_BYTES] = padded(&both[..HOT_BYTES]);
        let mut cold: [u8; COLD_BYTES] = padded(&both[HOT_BYTES..]);
        records(ino, &hot, &cold);
        let seal = crc(ino, &[&hot[..HOT_BYTES - 4]]);
        hot[HOT_BYTES - 4..].copy_from_slice(&seal);
        let seal = crc(ino, &[&cold[..COLD_BYTES - 4]]);
        cold[COLD_BYTES - 4..].copy_from_slice(&seal);
        records(ino, &hot, &cold);
        // Both of one generation.
        cold[..8].copy_from_slice(&padded::<8>(&hot[16..24]));
        let seal = crc(ino, &[&cold[..COLD_BYTES - 4]]);
        cold[COLD_BYTES - 4..].copy_from_slice(&seal);
        records(ino, &hot, &cold);
    }
}

fn records(ino: InodeNo, hot: &[u8; HOT_BYTES], cold: &[u8; COLD_BYTES]) {
    if let Ok(table) = TableRecord::parse(hot) {
        assert_eq!(TableRecord::parse(&table.emit()), Ok(table));
    }
    let of_hot = HotRecord::parse(ino, hot);
    if let Ok(Some(found)) = InodeRecord::parse(ino, hot, cold) {
        assert!(of_hot.is_ok_and(|hot| hot.is_some_and(|hot| hot.range == found.range)));
        let (hot, cold) = (found.emit_hot(ino), found.emit_cold(ino));
        assert_eq!(InodeRecord::parse(ino, &hot, &cold), Ok(Some(found)));
    }
}

/// A grain of a directory.
pub fn directory_grain(data: &[u8]) {
    let plain: [u8; GRAIN_BYTES] = padded(data);
    for dir in INODES {
        entries(dir, &plain);
        let mut sealed = plain;
        let mut unit = 0;
        while unit < GRAIN_UNITS {
            let at = unit * DIRENT_UNIT;
            if sealed[at..at + 8] == [0; 8] {
                unit += 1;
                continue;
            }
            let len = usize::from(sealed[at + 8]);
            let end = (at + DIRENT_UNIT + len).min(GRAIN_BYTES);
            let name = &sealed[at + DIRENT_UNIT..end];
            let seal = crc(dir, &[&sealed[at..at + 12], name]);
            sealed[at + 12..at + 16].copy_from_slice(&seal);
            unit += units_for(len);
        }
        entries(dir, &sealed);
    }
}

fn entries(dir: InodeNo, grain: &[u8; GRAIN_BYTES]) {
    let mut end = 0;
    let _ = parse_grain(dir, 0, grain, |unit, entry| {
        assert!(unit >= end && unit < GRAIN_UNITS, "entries do not overlap");
        end = unit + units_for(entry.name.len());
        assert!(end <= GRAIN_UNITS, "nor cross the grain");
        let same = Dirent { ..entry };
        let bytes = same.emit(dir);
        let mut alone = [0; GRAIN_BYTES];
        alone[unit * DIRENT_UNIT..][..bytes.len()].copy_from_slice(&bytes);
        let mut again = 0;
        let parsed = parse_grain(dir, 0, &alone, |_, found| {
            assert_eq!(found, entry);
            again += 1;
        });
        assert!(parsed.is_ok() && again == 1);
    });
}

/// The grains of extended attributes.
pub fn xattrs(data: &[u8]) {
    let len = data.len().min(XATTR_BYTES_MAX);
    let mut grains = data[..len].to_vec();
    grains.resize(len.max(1).next_multiple_of(GRAIN_BYTES), 0);
    for ino in INODES {
        set(ino, &grains);
        let said = u32::from_le_bytes(padded(&grains[8..12])) as usize;
        if (16..=grains.len()).contains(&said) {
            let seal = crc(ino, &[&grains[..12], &grains[16..said]]);
            grains[12..16].copy_from_slice(&seal);
            set(ino, &grains);
        }
    }
}

fn set(ino: InodeNo, grains: &[u8]) {
    let head = grains.first_chunk().expect("a grain at least");
    let generation = u64::from_le_bytes(padded(&grains[..8]));
    let Ok(count) = xattr_grains(ino, head) else {
        return;
    };
    let there = &grains[..grains.len().min(count * GRAIN_BYTES)];
    if let Ok(set) = parse_xattrs(ino, generation, there) {
        for (_, value) in set.iter() {
            let _ = Acl::parse(value);
        }
        let bytes = emit_xattrs(ino, generation, &set);
        assert_eq!(parse_xattrs(ino, generation, &bytes), Ok(set));
    }
}
