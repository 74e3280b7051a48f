//! What damage does not touch: inodes both of whose records, data and attributes are as they were. Neither a repair nor
//! whoever uses the rest may change what they hold.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use contigfs::{
    BlockStore, ByteAddr, CopyRange, FallocMode, Fs, InodeNo, MemStore, NewNode, Problem,
    RenameMode, SetAttr, WriteOptions, XattrMode,
};
use ftl::{GRAIN_BYTES, Lba, LbaRange};
use support::{Dice, name};

use super::fs_damage::{COLD, COLD_BYTES, HOT, HOT_BYTES, INODES, XATTRS};
use super::use_it::names_of;

/// Kinds of inodes with content that is their own business: `st_mode >> 12`.
const KINDS: [u8; 2] = [8, 10];
const ORPHAN_OR_RELOCATING: u8 = 1 | 4;
const RESTS: Lba = Lba((1 << 52) - (1 << 38));
const RESTS_EACH: u64 = 64;

type Grains = BTreeMap<u64, Vec<u8>>;

/// What an inode holds, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Held {
    kind: u8,
    size: u64,
    content: Grains,
    attributes: Grains,
}

/// All inodes that damage has not touched.
pub struct Untouched {
    all: BTreeMap<u64, Held>,
    /// All others that have records.
    touched: Vec<u64>,
    parted: BTreeSet<u64>,
}

fn bytes<const N: usize>(store: &impl BlockStore, table: Lba, ino: u64) -> [u8; N] {
    let mut bytes = [0; N];
    let at = ByteAddr::new(table, ino * N as u64);
    store.read(at, &mut bytes).expect("the media are well");
    bytes
}

fn hot(store: &impl BlockStore, ino: u64) -> [u8; HOT_BYTES] {
    bytes(store, HOT, ino)
}

fn cold(store: &impl BlockStore, ino: u64) -> [u8; COLD_BYTES] {
    bytes(store, COLD, ino)
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"))
}

/// What is mapped in a range, by the distance from its start.
fn grains(store: &impl BlockStore, range: LbaRange) -> Grains {
    let mut grains = Grains::new();
    let mut next = range.start;
    while next < range.end() {
        let rest = LbaRange::new(next, range.end().0 - next.0);
        let Some(lba) = store.next_mapped(rest) else {
            break;
        };
        let mut bytes = vec![0; GRAIN_BYTES];
        let read = store.read(ByteAddr::new(lba, 0), &mut bytes);
        read.expect("the media are well");
        grains.insert(lba.0 - range.start.0, bytes);
        next = lba.offset(1);
    }
    grains
}

fn held(store: &impl BlockStore, ino: u64) -> Held {
    let hot = hot(store, ino);
    let range = LbaRange::new(Lba(number(&hot)), 1 << hot[26].min(50));
    let mut attributes = grains(store, LbaRange::new(XATTRS.offset(ino), 1));
    let rest = LbaRange::new(RESTS.offset(ino * RESTS_EACH), RESTS_EACH);
    let rest = grains(store, rest);
    attributes.extend(rest.into_iter().map(|(at, bytes)| (at + 1, bytes)));
    Held {
        kind: hot[25] >> 4,
        size: number(&hot[8..]),
        content: grains(store, range),
        attributes,
    }
}

impl Untouched {
    /// What is in `damaged` as in `before`.
    pub fn by(before: &impl BlockStore, damaged: &impl BlockStore) -> Self {
        let mut all = BTreeMap::new();
        let mut touched = Vec::new();
        for ino in InodeNo::ROOT.0 + 1..INODES {
            let (hot_before, hot_now) = (hot(before, ino), hot(damaged, ino));
            let is_same = hot_before == hot_now && cold(before, ino) == cold(damaged, ino);
            let is_used = hot_before != [0; HOT_BYTES];
            let is_settled = hot_before[27] & ORPHAN_OR_RELOCATING == 0;
            if !is_same {
                touched.push(ino);
            } else if is_used && is_settled && KINDS.contains(&(hot_before[25] >> 4)) {
                let held_before = held(before, ino);
                if held_before == held(damaged, ino) {
                    all.insert(ino, held_before);
                }
            }
        }
        Self {
            all,
            touched,
            parted: BTreeSet::new(),
        }
    }

    /// Whose place was claimed by another one is root's if that has kept it: lists follow the mode, and links are files.
    pub fn part(&mut self, repaired: &[Problem]) {
        for problem in repaired {
            if let Problem::Overlap { ino, other } = problem {
                for ino in [ino, other] {
                    self.parted.insert(ino.0);
                }
            }
        }
    }

    /// They hold what they held. Where that lies may have changed.
    pub fn assert_in(&self, store: &impl BlockStore, when: &str) {
        for (&ino, before) in &self.all {
            let now = held(store, ino);
            let told = format!("{when}, inode {ino}");
            let is_parted = self.parted.contains(&ino);
            assert!(now.kind == before.kind || is_parted, "{told}: kind");
            assert_eq!(now.size, before.size, "{told}: size");
            assert!(now.content == before.content, "{told}: content");
            let is_same = now.attributes == before.attributes;
            assert!(is_same || is_parted, "{told}: attributes");
        }
    }

    /// Mounts it and uses what damage has touched, and new files.
    pub fn use_others(&self, store: &Arc<MemStore>, dice: &mut Dice) {
        let Ok(fs) = Fs::mount_with(Arc::clone(store), &support::tight()) else {
            return;
        };
        for n in 0..4 {
            let label = format!("new-{n}");
            if let Ok(new) = fs.create(InodeNo::ROOT, name(&label), &NewNode::file()) {
                let _ = fs.write(new.ino, n * 5000, &[0xee; 9000], WriteOptions::default());
            }
        }
        for &ino in &self.touched {
            for _ in 0..3 {
                self.change(&fs, InodeNo(ino), dice);
            }
        }
        for dir in InodeNo::ROOT.0..INODES {
            for (label, ino) in names_of(&fs, InodeNo(dir)).unwrap_or_default() {
                if self.touched.contains(&ino.0) {
                    let (dir, label) = (InodeNo(dir), name(&label));
                    let _ = match dice.below(3) {
                        0 => fs.unlink(dir, label),
                        1 => fs.rmdir(dir, label),
                        _ => {
                            let to = format!("moved-{ino}");
                            fs.rename(dir, label, InodeNo::ROOT, name(&to), RenameMode::Replace)
                        }
                    };
                }
            }
        }
        let _ = fs.sync_all();
    }

    fn change(&self, fs: &Fs<Arc<MemStore>>, ino: InodeNo, dice: &mut Dice) {
        let size = fs.attr(ino).map_or(0, |attr| attr.size);
        let at = *dice.pick(&[0, 3000, 20_000, size]);
        let _ = match dice.below(7) {
            0 => fs
                .write(ino, at, &[0xdd; 70_000], WriteOptions::default())
                .map(drop),
            1 => {
                let size = SetAttr {
                    size: Some(*dice.pick(&[0, 1, size / 2, size.saturating_add(9000)])),
                    ..SetAttr::default()
                };
                fs.set_attr(ino, &size).map(drop)
            }
            2 => {
                let len = *dice.pick(&[1 << 14, 1 << 40]);
                fs.fallocate(ino, at & !4095, len, FallocMode::PunchHole)
            }
            3 => fs.fallocate(ino, 0, 4096, FallocMode::CollapseRange),
            4 => fs.fallocate(ino, 4096, 8192, FallocMode::InsertRange),
            5 => fs.set_xattr(ino, name("user.b"), &[0xcc; 5000], XattrMode::Set),
            _ => {
                let copy = CopyRange {
                    from: ino,
                    from_offset: 0,
                    to: ino,
                    to_offset: size.saturating_add(8192) & !4095,
                    len: 8192,
                };
                fs.copy_range(&copy).map(drop)
            }
        };
        let _ = fs.fsync(ino, contigfs::SyncScope::All);
    }
}
