//! Whose grains are, for people who are told that some are damaged.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use ftl::{GRAIN_BYTES, Lba, LbaRange};

use crate::check::{Survey, survey};
use crate::format::parse_grain;
use crate::inode::{FileKind, InodeNo};
use crate::store::{BlockStore, ByteAddr};

/// A file or directory to whose content a grain belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Its inode.
    pub ino: InodeNo,
    /// Byte of the content at which the grain begins.
    pub offset: u64,
    /// One of its names, from the root of the volume on; none if it has none, or none can be read.
    pub path: Option<PathBuf>,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = &self.path {
            for c in path.to_string_lossy().chars() {
                // What a terminal would obey.
                match c.is_control() {
                    true => write!(f, "{}", c.escape_default())?,
                    false => write!(f, "{c}")?,
                }
            }
            f.write_str(", ")?;
        }
        write!(f, "inode {}, from byte {} on", self.ino, self.offset)
    }
}

/// What of many grains is one owner's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    /// Whose, and where the first of them begins; none of what belongs to no content, or to one whose records can not be read.
    pub(crate) owner: Option<Owner>,
    /// The first of them.
    pub(crate) first: Lba,
    /// How many.
    pub(crate) grains: u64,
}

/// Whose each of these grains is; none of what belongs to no content, or to one whose records can not be read. All records and
/// names are read for it.
pub fn owners(store: &impl BlockStore, lbas: &[Lba]) -> Vec<Option<Owner>> {
    if lbas.is_empty() {
        return Vec::new();
    }
    let known = survey(store);
    let places = Contents::of(&known);
    let found: Vec<_> = lbas.iter().map(|&lba| places.find(lba)).collect();
    named(store, &known, &found)
}

/// The same of many, for each owner together; what is nobody's comes first.
pub(crate) fn shares(store: &impl BlockStore, lbas: &[Lba]) -> Vec<Share> {
    if lbas.is_empty() {
        return Vec::new();
    }
    let known = survey(store);
    let places = Contents::of(&known);
    let mut shares: BTreeMap<Option<InodeNo>, (u64, Lba, u64)> = BTreeMap::new();
    for &lba in lbas {
        let found = places.find(lba);
        let (ino, offset) = found.unzip();
        let share = shares.entry(ino).or_insert((offset.unwrap_or(0), lba, 0));
        share.2 += 1;
    }
    let found: Vec<_> = shares
        .iter()
        .map(|(ino, &(offset, ..))| ino.map(|ino| (ino, offset)))
        .collect();
    let owners = named(store, &known, &found);
    let shares = shares.into_values().zip(owners);
    let share = |((_, first, grains), owner)| Share {
        owner,
        first,
        grains,
    };
    shares.map(share).collect()
}

/// Where the content of each inode lies.
struct Contents {
    /// By the first grain.
    ranges: Vec<(LbaRange, InodeNo)>,
}

impl Contents {
    fn of(known: &Survey) -> Self {
        let ranges = known.inodes.iter().flat_map(|(&ino, record)| {
            let ranges = [
                record.range,
                record.relocation.map(|on_its_way| on_its_way.to),
            ];
            let ranges = ranges.into_iter().flatten();
            ranges.map(move |range| (range.lbas(), ino))
        });
        let mut ranges: Vec<(LbaRange, InodeNo)> = ranges.collect();
        ranges.sort_unstable_by_key(|(range, _)| range.start);
        Self { ranges }
    }

    /// To whom a grain belongs, and the byte of the content at which it begins.
    fn find(&self, lba: Lba) -> Option<(InodeNo, u64)> {
        let behind = self.ranges.partition_point(|(range, _)| range.start <= lba);
        let before = self.ranges[..behind].last();
        let (range, ino) = before.filter(|(range, _)| range.contains(lba))?;
        Some((*ino, (lba.0 - range.start.0) * GRAIN_BYTES as u64))
    }
}

/// With their names.
fn named(
    store: &impl BlockStore,
    known: &Survey,
    found: &[Option<(InodeNo, u64)>],
) -> Vec<Option<Owner>> {
    let wanted = found.iter().flatten().map(|&(ino, _)| ino).collect();
    let names = names(store, known, &wanted);
    let owners = found.iter().map(|found| {
        found.map(|(ino, offset)| Owner {
            ino,
            offset,
            path: path(&names, ino),
        })
    });
    owners.collect()
}

/// A directory and a name in it.
type Name = (InodeNo, Vec<u8>);

/// Names of the inodes that are wanted, and of all directories.
fn names(
    store: &impl BlockStore,
    known: &Survey,
    wanted: &HashSet<InodeNo>,
) -> HashMap<InodeNo, Name> {
    let mut names = HashMap::new();
    let is_directory = |ino| {
        let record = known.inodes.get(&ino);
        record.is_some_and(|record| record.kind == FileKind::Directory)
    };
    let mut grain = [0; GRAIN_BYTES];
    for (&dir, record) in &known.inodes {
        let range = record.range.filter(|_| is_directory(dir));
        let Some(range) = range.map(|range| range.lbas()) else {
            continue;
        };
        let mut next = range.start;
        while let Some(lba) = store.next_mapped(LbaRange::new(next, range.end().0 - next.0)) {
            next = lba.offset(1);
            if store.read(ByteAddr::new(lba, 0), &mut grain).is_err() {
                continue;
            }
            // What is damaged of it is named by whoever checks directories.
            let _ = parse_grain(dir, 0, &grain, |_, entry| {
                if wanted.contains(&entry.ino) || is_directory(entry.ino) {
                    names.insert(entry.ino, (dir, entry.name.to_vec()));
                }
            });
        }
    }
    names
}

fn path(names: &HashMap<InodeNo, Name>, mut ino: InodeNo) -> Option<PathBuf> {
    let mut parts = Vec::new();
    while ino != InodeNo::ROOT {
        let (dir, name) = names.get(&ino)?;
        // On a damaged volume directories may lie in one another.
        if parts.len() > names.len() {
            return None;
        }
        parts.push(OsString::from_vec(name.clone()));
        ino = *dir;
    }
    let root = OsString::from("/");
    Some(
        std::iter::once(root)
            .chain(parts.into_iter().rev())
            .collect(),
    )
}
