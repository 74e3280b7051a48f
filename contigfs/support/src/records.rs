//! Records of the inode table, from outside: as `docs/layout.md` has them.

use contigfs::{BlockStore, ByteAddr, InodeNo};
use ftl::Lba;

/// First grain of the inode table's hot and of its cold records.
pub const TABLES: [Lba; 2] = [Lba(1 << 26), Lba(1 << 28)];
/// Bytes of a hot record.
const HOT_BYTES: u64 = 32;

fn hot_place(ino: InodeNo) -> ByteAddr {
    ByteAddr::new(TABLES[0], ino.0 * HOT_BYTES)
}

/// Changes a hot record, and its checksum with it.
pub fn craft_record(store: &impl BlockStore, ino: InodeNo, change: impl FnOnce(&mut [u8])) {
    let mut record = [0; HOT_BYTES as usize];
    store.read(hot_place(ino), &mut record).unwrap();
    change(&mut record[..28]);
    let crc = crc32fast::hash(&[&ino.0.to_le_bytes(), &record[..28]].concat());
    record[28..].copy_from_slice(&crc.to_le_bytes());
    store.write(hot_place(ino), &record).unwrap();
}

/// Makes a hot record say that the inode does not exist.
pub fn zero_record(store: &impl BlockStore, ino: InodeNo) {
    let zeros = [0; HOT_BYTES as usize];
    store.write(hot_place(ino), &zeros).unwrap();
}
