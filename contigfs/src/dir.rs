//! A directory in memory: names to places, and which units of its grains are free.
//!
//! The media hold entries in no particular order; this index makes lookups and finding room fast. It is read once,
//! when the directory is first used, and follows every committed change. Changes are planned first ([`DirPlan`]),
//! committed, and only then applied, so a failed commit leaves the index as it was.

use std::collections::{BTreeSet, HashMap};

use ftl::{AtomicBatch, GRAIN_BYTES, Lba, LbaRange};

use crate::error::{Corruption, FsError};
use crate::format::{DIRENT_UNIT, Dirent, GRAIN_UNITS, Range, UNITS_MAX, parse_grain, units_for};
use crate::inode::{FileKind, InodeNo};
use crate::room::{Room, RoomAfter, Units, split};
use crate::store::{BlockStore, ByteAddr};

/// Units of the largest directory; beyond, a new name finds no space.
const UNITS_LIMIT: u64 = 1 << 28;

/// Where an entry lies and what it leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    /// First unit, counted through the whole directory.
    pub(crate) unit: u32,
    pub(crate) ino: InodeNo,
    pub(crate) kind: FileKind,
}

/// Index of one directory.
#[derive(Debug)]
pub(crate) struct DirIndex {
    ino: InodeNo,
    range: Range,
    names: HashMap<Box<[u8]>, Slot>,
    room: Room,
}

/// Changes of one directory that go into one batch.
#[derive(Debug, Default)]
pub(crate) struct DirPlan {
    removed: Vec<(Box<[u8]>, Slot)>,
    added: Vec<(Box<[u8]>, Slot)>,
}

/// Grains of a directory of this size.
///
/// # Errors
/// No directory is that large: its record is damaged, and numbers of units would not fit their type.
pub(crate) fn directory_grains(ino: InodeNo, size: u64) -> Result<u64, Corruption> {
    let grains = size.div_ceil(GRAIN_BYTES as u64);
    if grains > UNITS_LIMIT / GRAIN_UNITS as u64 {
        return Err(Corruption::Inode {
            ino,
            what: "directory larger than a directory may be",
        });
    }
    Ok(grains)
}

impl DirIndex {
    /// Reads a directory; `size` is how many bytes of its range are in use.
    pub(crate) fn load(
        store: &impl BlockStore,
        ino: InodeNo,
        range: Range,
        size: u64,
    ) -> Result<Self, FsError> {
        let grains = directory_grains(ino, size)?;
        let mut index = Self {
            ino,
            range,
            names: HashMap::new(),
            room: Room::default(),
        };
        let mut grain = [0; GRAIN_BYTES];
        let mut next = 0;
        while next < grains {
            let rest = LbaRange::new(range.start.offset(next), grains - next);
            let Some(lba) = store.next_mapped(rest) else {
                break;
            };
            let number = lba.0 - range.start.0;
            next = number + 1;
            store.read(ByteAddr::new(range.start.offset(number), 0), &mut grain)?;
            let first = number as u32 * GRAIN_UNITS as u32;
            let mut units = Units::default();
            let mut twice = None;
            parse_grain(ino, first, &grain, |unit, entry| {
                units.set(unit, units_for(entry.name.len()), true);
                let slot = Slot {
                    unit: first + unit as u32,
                    ino: entry.ino,
                    kind: entry.kind,
                };
                if index.names.insert(entry.name.into(), slot).is_some() {
                    twice = Some(slot.unit);
                }
            })?;
            if let Some(unit) = twice {
                return Err(Corruption::Entry {
                    dir: ino,
                    unit,
                    what: "the name occurs twice",
                }
                .into());
            }
            index.room.push(number as usize, units);
        }
        Ok(index)
    }

    /// A new directory.
    pub(crate) fn empty(ino: InodeNo, range: Range) -> Self {
        Self {
            ino,
            range,
            names: HashMap::new(),
            room: Room::default(),
        }
    }

    /// The entry of this name.
    pub(crate) fn get(&self, name: &[u8]) -> Option<Slot> {
        self.names.get(name).copied()
    }

    /// Everything that the entries lead to.
    pub(crate) fn slots(&self) -> impl Iterator<Item = Slot> + '_ {
        self.names.values().copied()
    }

    /// A name that leads to this inode.
    pub(crate) fn name_of(&self, ino: InodeNo) -> Option<&[u8]> {
        let mut names = self.names.iter();
        names.find_map(|(name, slot)| (slot.ino == ino).then_some(&name[..]))
    }

    /// The grains that have entries, by number.
    pub(crate) fn grains(&self) -> BTreeSet<u64> {
        let slots = self.names.values();
        slots.map(|slot| split(slot.unit).0 as u64).collect()
    }

    /// Where a grain lies.
    pub(crate) fn lba(&self, grain: u64) -> Lba {
        self.range.start.offset(grain)
    }

    /// A whole grain. All names are looked through for it.
    pub(crate) fn emit_grain(&self, grain: u64) -> Vec<u8> {
        let mut bytes = vec![0; GRAIN_BYTES];
        for (name, slot) in &self.names {
            let (of, in_grain) = split(slot.unit);
            if of as u64 == grain {
                let entry = Dirent {
                    ino: slot.ino,
                    kind: slot.kind,
                    name,
                };
                let entry = entry.emit(self.ino);
                bytes[in_grain * DIRENT_UNIT..][..entry.len()].copy_from_slice(&entry);
            }
        }
        bytes
    }

    /// Whether there are no entries.
    pub(crate) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Plans a new entry. The caller has checked that the name is legal and absent.
    pub(crate) fn plan_add(
        &self,
        plan: &mut DirPlan,
        name: &[u8],
        ino: InodeNo,
        kind: FileKind,
    ) -> Result<(), FsError> {
        let count = units_for(name.len());
        assert!(count <= UNITS_MAX, "the caller checks the length of names");
        assert!(
            plan.added.is_empty(),
            "one new entry per directory and batch"
        );
        let reusable = plan
            .removed
            .iter()
            .find(|(_, slot)| self.fits_at(*slot, name.len(), plan));
        let unit = match reusable {
            Some((_, slot)) => u64::from(slot.unit),
            None => self.room.find(count),
        };
        if unit + count as u64 > UNITS_LIMIT {
            return Err(FsError::NoSpace);
        }
        plan.added.push((
            name.into(),
            Slot {
                unit: unit as u32,
                ino,
                kind,
            },
        ));
        Ok(())
    }

    /// Whether a removed entry leaves room for a name of this length.
    fn fits_at(&self, removed: Slot, name_len: usize, plan: &DirPlan) -> bool {
        let old = plan.removed.iter().find(|(_, slot)| *slot == removed);
        old.is_some_and(|(name, _)| units_for(name.len()) >= units_for(name_len))
    }

    /// Plans the end of an entry.
    pub(crate) fn plan_remove(&self, plan: &mut DirPlan, name: &[u8]) {
        let slot = self
            .get(name)
            .expect("the caller has looked the name up under the same lock");
        plan.removed.push((name.into(), slot));
    }

    /// Plans that an existing entry leads elsewhere; needs no space.
    pub(crate) fn plan_replace(
        &self,
        plan: &mut DirPlan,
        name: &[u8],
        ino: InodeNo,
        kind: FileKind,
    ) {
        let slot = self
            .get(name)
            .expect("the caller has looked the name up under the same lock");
        plan.removed.push((name.into(), slot));
        plan.added.push((
            name.into(),
            Slot {
                unit: slot.unit,
                ino,
                kind,
            },
        ));
    }

    /// Puts the planned changes into `batch` and tells the size of the directory after them.
    pub(crate) fn emit(&self, plan: &DirPlan, batch: &mut AtomicBatch) -> u64 {
        let after = self.room_after(plan);
        for (name, slot) in &plan.removed {
            let bytes = vec![0; units_for(name.len()) * DIRENT_UNIT];
            self.patch_unless_empty(&after, slot.unit, bytes, batch);
        }
        for (name, slot) in &plan.added {
            let entry = Dirent {
                ino: slot.ino,
                kind: slot.kind,
                name,
            };
            self.patch_unless_empty(&after, slot.unit, entry.emit(self.ino), batch);
        }
        for grain in self.room.emptied_by(&after) {
            batch.trim(LbaRange::new(self.range.start.offset(grain as u64), 1));
        }
        (after.len() * GRAIN_BYTES) as u64
    }

    fn patch_unless_empty(
        &self,
        after: &RoomAfter,
        unit: u32,
        bytes: Vec<u8>,
        batch: &mut AtomicBatch,
    ) {
        let (grain, in_grain) = split(unit);
        if after.is_used(grain) {
            batch.patch(
                self.range.start.offset(grain as u64),
                (in_grain * DIRENT_UNIT) as u16,
                bytes,
            );
        }
    }

    /// Applies what was committed.
    pub(crate) fn apply(&mut self, plan: DirPlan) {
        let after = self.room_after(&plan);
        self.room.apply(&after);
        for (name, _) in plan.removed {
            self.names.remove(&name);
        }
        for (name, slot) in plan.added {
            self.names.insert(name, slot);
        }
    }

    fn room_after(&self, plan: &DirPlan) -> RoomAfter {
        let runs = |entries: &[(Box<[u8]>, Slot)]| -> Vec<(u32, usize)> {
            let run = |(name, slot): &(Box<[u8]>, Slot)| (slot.unit, units_for(name.len()));
            entries.iter().map(run).collect()
        };
        let (freed, taken) = (runs(&plan.removed), runs(&plan.added));
        self.room.after(freed.into_iter(), taken.into_iter())
    }
}
