//! Crafted and damaged file systems: root records, inode records, directory entries, attributes.

use contigfs::{BlockStore, ByteAddr};
use ftl::{AtomicBatch, GRAIN_BYTES, Lba, LbaRange};

use super::log_damage::value;
use support::Dice;

/// First grain of the inode table's hot and of its cold records, and of attributes.
pub const HOT: Lba = Lba(1 << 26);
pub const COLD: Lba = Lba(1 << 28);
pub const XATTRS: Lba = Lba((1 << 52) - (1 << 39));
pub const HOT_BYTES: usize = 32;
pub const COLD_BYTES: usize = 128;
/// Numbers that the images use.
pub const INODES: u64 = 160;

type Grain = [u8; GRAIN_BYTES];

fn get(store: &impl BlockStore, lba: Lba) -> Option<Grain> {
    let mut grain = [0; GRAIN_BYTES];
    store.read(ByteAddr::new(lba, 0), &mut grain).ok()?;
    Some(grain)
}

pub fn put(store: &impl BlockStore, lba: Lba, grain: &Grain) {
    store.write(ByteAddr::new(lba, 0), grain).expect("room");
}

/// Changes a file system in a few places.
pub fn damage(dice: &mut Dice, store: &impl BlockStore) -> String {
    let mut done = String::new();
    for _ in 0..1 + dice.below(3) {
        let told = match dice.below(13) {
            0 => root(dice, store),
            1..5 => record(dice, store, HOT, HOT_BYTES),
            5..8 => record(dice, store, COLD, COLD_BYTES),
            8..10 => entry(dice, store),
            10 => attributes(dice, store),
            11 => place(dice, store),
            _ => grain(dice, store),
        };
        done += &told.unwrap_or_default();
    }
    done
}

fn root(dice: &mut Dice, store: &impl BlockStore) -> Option<String> {
    let lba = Lba(dice.below(2));
    let mut grain = get(store, lba)?;
    let at = *dice.pick(&[8, 16, 24, 32, 33, 34, 36, 40, 48, 56]);
    let new = value(dice, u64::from(grain[at]));
    let width = if at < 36 { 1 } else { 4 };
    grain[at..at + width].copy_from_slice(&new.to_le_bytes()[..width]);
    grain[12..16].fill(0);
    let crc = crc32fast::hash(&grain[..64]);
    grain[12..16].copy_from_slice(&crc.to_le_bytes());
    put(store, lba, &grain);
    Some(format!("root {lba} at {at} -> {new:#x}; "))
}

/// Where the fields of a record are, and how wide: those of hot ones, and of cold ones.
const HOT_FIELDS: [(usize, usize); 6] = [(0, 8), (8, 8), (16, 8), (24, 2), (26, 1), (27, 1)];
const COLD_FIELDS: [(usize, usize); 14] = [
    (0, 8),
    (8, 8),
    (16, 4),
    (20, 4),
    (24, 4),
    (28, 4),
    (32, 8),
    (40, 4),
    (56, 8),
    (96, 8),
    (104, 8),
    (112, 8),
    (120, 1),
    (121, 1),
];

fn record(dice: &mut Dice, store: &impl BlockStore, table: Lba, len: usize) -> Option<String> {
    let per_grain = (GRAIN_BYTES / len) as u64;
    let ino = match dice.below(6) {
        0 => dice.below(3),
        _ => dice.below(INODES),
    };
    let lba = table.offset(ino / per_grain);
    let mut grain = get(store, lba)?;
    let start = (ino % per_grain) as usize * len;
    let mut told = format!("record {len} of {ino}: ");
    match dice.below(10) {
        0 => {
            // Of another inode, sealed as if it were this one's.
            let other = dice.below(INODES);
            let from = get(store, table.offset(other / per_grain))?;
            let at = (other % per_grain) as usize * len;
            grain[start..start + len].copy_from_slice(&from[at..at + len]);
            told += &format!("that of {other}; ");
        }
        1 => {
            grain[start..start + len].fill(0);
            put(store, lba, &grain);
            return Some(told + "none; ");
        }
        _ => {
            let fields: &[(usize, usize)] = match len {
                HOT_BYTES => &HOT_FIELDS,
                _ => &COLD_FIELDS,
            };
            for _ in 0..1 + dice.below(3) {
                let &(at, width) = dice.pick(fields);
                let at = start + at;
                let mut old = [0; 8];
                old[..width].copy_from_slice(&grain[at..at + width]);
                let old = u64::from_le_bytes(old);
                let new = match dice.below(4) {
                    0 => special(dice, store),
                    _ => value(dice, old),
                };
                grain[at..at + width].copy_from_slice(&new.to_le_bytes()[..width]);
                told += &format!("{width} bytes at {} {old:#x} -> {new:#x}; ", at - start);
            }
        }
    }
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&ino.to_le_bytes());
    hasher.update(&grain[start..start + len - 4]);
    let crc = hasher.finalize();
    grain[start + len - 4..start + len].copy_from_slice(&crc.to_le_bytes());
    put(store, lba, &grain);
    Some(told)
}

/// An inode claims the place of another one, as a record that has come back from the past does; it may be on the list of
/// those to be freed.
fn place(dice: &mut Dice, store: &impl BlockStore) -> Option<String> {
    let (ino, other) = (1 + dice.below(INODES - 1), 1 + dice.below(INODES - 1));
    let hot = |ino: u64| (HOT.offset(ino / 128), (ino % 128) as usize * HOT_BYTES);
    let (lba, at) = hot(other);
    let from = get(store, lba)?;
    let from = &from[at..at + HOT_BYTES];
    let (lba, at) = hot(ino);
    let mut grain = get(store, lba)?;
    let record = &mut grain[at..at + HOT_BYTES];
    // The place, the size, and 2^order grains.
    record[..16].copy_from_slice(&from[..16]);
    record[26] = from[26];
    record[27] |= dice.below(2) as u8;
    let crc = sealed(ino, &[&record[..HOT_BYTES - 4]]);
    record[HOT_BYTES - 4..].copy_from_slice(&crc);
    put(store, lba, &grain);
    Some(format!("{ino} at the place of {other}; "))
}

/// Numbers that mean something: places of files and tables, inodes, large sizes.
fn special(dice: &mut Dice, store: &impl BlockStore) -> u64 {
    match dice.below(6) {
        0 => *dice.pick(&[
            0,
            1,
            HOT.0,
            COLD.0,
            1 << 32,
            XATTRS.0,
            (1 << 52) - 1,
            1 << 52,
        ]),
        1 => (1 << 48) - dice.below(3),
        2 => dice.below(INODES),
        3 => (1 << 32) - dice.below(3),
        _ => {
            let ino = dice.below(INODES);
            let grain = get(store, HOT.offset(ino / 128)).unwrap_or([0; GRAIN_BYTES]);
            let at = (ino % 128) as usize * HOT_BYTES;
            u64::from_le_bytes(grain[at..at + 8].try_into().expect("eight bytes"))
        }
    }
}

/// Directories as the hot records say: number and place.
fn directories(store: &impl BlockStore) -> Vec<(u64, Lba)> {
    let records = (0..INODES).filter_map(|ino| {
        let grain = get(store, HOT.offset(ino / 128))?;
        let hot = &grain[(ino % 128) as usize * HOT_BYTES..][..HOT_BYTES];
        let is_dir = hot[25] >> 4 == 4;
        let lba = u64::from_le_bytes(hot[..8].try_into().expect("eight bytes"));
        (is_dir && lba < 1 << 51).then_some((ino, Lba(lba)))
    });
    records.collect()
}

fn entry(dice: &mut Dice, store: &impl BlockStore) -> Option<String> {
    let all = directories(store);
    if all.is_empty() {
        return None;
    }
    let &(dir, lba) = dice.pick(&all);
    let mut grain = get(store, lba)?;
    let mut units = Vec::new();
    let mut unit = 0;
    while unit < 256 {
        let at = unit * 16;
        if grain[at..at + 8] == [0; 8] {
            unit += 1;
            continue;
        }
        units.push(unit);
        unit += 1 + usize::from(grain[at + 8]).div_ceil(16);
    }
    let mut told = format!("entry of {dir}: ");
    let unit = match units.is_empty() || dice.below(8) == 0 {
        true => dice.below(256) as usize,
        false => *dice.pick(&units),
    };
    let at = unit * 16;
    match dice.below(6) {
        0 => {
            grain[at + 8] = value(dice, u64::from(grain[at + 8])) as u8;
            told += &format!("unit {unit} length {}; ", grain[at + 8]);
        }
        1 => {
            grain[at + 9] = dice.below(17) as u8;
            told += &format!("unit {unit} kind {}; ", grain[at + 9]);
        }
        2 if at + 16 < GRAIN_BYTES => {
            grain[at + 16] = *dice.pick(b"./\0ab\xff");
            told += &format!("unit {unit} name {:#x}; ", grain[at + 16]);
        }
        _ => {
            let ino = match dice.below(4) {
                0 => special(dice, store),
                1 => all[dice.below(all.len() as u64) as usize].0,
                2 => value(dice, u64::from(grain[at])),
                _ => dice.below(INODES),
            };
            grain[at..at + 8].copy_from_slice(&ino.to_le_bytes());
            told += &format!("unit {unit} leads to {ino:#x}; ");
        }
    }
    let end = (at + 16 + usize::from(grain[at + 8])).min(GRAIN_BYTES);
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&dir.to_le_bytes());
    hasher.update(&grain[at..at + 12]);
    hasher.update(&grain[at + 16..end]);
    grain[at + 12..at + 16].copy_from_slice(&hasher.finalize().to_le_bytes());
    put(store, lba, &grain);
    Some(told)
}

fn attributes(dice: &mut Dice, store: &impl BlockStore) -> Option<String> {
    let heads = LbaRange::new(XATTRS, INODES);
    let mut from = heads;
    let mut mapped = Vec::new();
    while let Some(lba) = store.next_mapped(from) {
        mapped.push(lba);
        from = LbaRange::new(lba.offset(1), heads.end().0 - lba.0 - 1);
        if from.count == 0 {
            break;
        }
    }
    if mapped.is_empty() {
        return None;
    }
    let lba = *dice.pick(&mapped);
    let ino = lba.0 - XATTRS.0;
    let mut grain = get(store, lba)?;
    let at = *dice.pick(&[0, 8, 9, 10, 16, 17, 18, 20, 21, 24, 30]);
    grain[at] = value(dice, u64::from(grain[at])) as u8;
    let len = u32::from_le_bytes(grain[8..12].try_into().expect("four bytes")) as usize;
    if (16..=GRAIN_BYTES).contains(&len) {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&ino.to_le_bytes());
        hasher.update(&grain[..12]);
        hasher.update(&grain[16..len]);
        grain[12..16].copy_from_slice(&hasher.finalize().to_le_bytes());
    }
    put(store, lba, &grain);
    Some(format!("attributes of {ino} at {at} -> {}; ", grain[at]))
}

/// A grain of metadata is gone, or somebody else's, or there are some where none should be.
fn grain(dice: &mut Dice, store: &impl BlockStore) -> Option<String> {
    let places = [
        Lba(dice.below(2)),
        HOT.offset(dice.below(3)),
        COLD.offset(dice.below(6)),
        Lba((1 << 32) + dice.below(2)),
        XATTRS.offset(dice.below(INODES)),
        HOT.offset(special(dice, store) % (1 << 25)),
    ];
    let (to, from) = (*dice.pick(&places), *dice.pick(&places));
    match dice.below(3) {
        0 => {
            let mut batch = AtomicBatch::new();
            batch.trim(LbaRange::new(to, 1));
            store.commit(batch).ok()?;
            Some(format!("{to} unmapped; "))
        }
        1 => {
            let grain = get(store, from)?;
            put(store, to, &grain);
            Some(format!("{to} copied from {from}; "))
        }
        _ => {
            let mut garbage = [0; GRAIN_BYTES];
            garbage.fill_with(|| dice.roll() as u8);
            put(store, to, &garbage);
            Some(format!("{to} garbage; "))
        }
    }
}

/// Puts the checksums right of what lies in a grain; of a directory, those of the entries of inode `dir`.
pub fn seal(lba: Lba, dir: u8, grain: &mut Grain) {
    let (hot, cold) = (HOT.0..HOT.0 + (1 << 25), COLD.0..COLD.0 + (1 << 27));
    let table = [(hot, HOT.0, HOT_BYTES), (cold, COLD.0, COLD_BYTES)];
    let part = table.iter().find(|(range, ..)| range.contains(&lba.0));
    if lba.0 < 2 {
        grain[12..16].fill(0);
        let crc = crc32fast::hash(&grain[..64]);
        grain[12..16].copy_from_slice(&crc.to_le_bytes());
    } else if let Some((_, first, len)) = part {
        let per_grain = (GRAIN_BYTES / len) as u64;
        let numbers = (lba.0 - first) * per_grain..;
        for (ino, record) in numbers.zip(grain.chunks_exact_mut(*len)) {
            if record.iter().any(|&byte| byte != 0) {
                let crc = sealed(ino, &[&record[..len - 4]]);
                record[len - 4..].copy_from_slice(&crc);
            }
        }
    } else if lba >= XATTRS {
        let len = u32::from_le_bytes(grain[8..12].try_into().expect("four bytes")) as usize;
        if (16..=GRAIN_BYTES).contains(&len) {
            let crc = sealed(lba.0 - XATTRS.0, &[&grain[..12], &grain[16..len]]);
            grain[12..16].copy_from_slice(&crc);
        }
    } else {
        for at in (0..GRAIN_BYTES).step_by(16) {
            let end = (at + 16 + usize::from(grain[at + 8])).min(GRAIN_BYTES);
            let is_entry = grain[at..at + 8] != [0; 8] && [4, 8, 10].contains(&grain[at + 9]);
            if is_entry && grain[at + 10..at + 12] == [0; 2] {
                let parts: [&[u8]; 2] = [&grain[at..at + 12], &grain[at + 16..end]];
                let crc = sealed(u64::from(dir), &parts);
                grain[at + 12..at + 16].copy_from_slice(&crc);
            }
        }
    }
}

fn sealed(ino: u64, parts: &[&[u8]]) -> [u8; 4] {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&ino.to_le_bytes());
    parts.iter().for_each(|part| hasher.update(part));
    hasher.finalize().to_le_bytes()
}
