//! A directory in memory: names to places, and which units of its grains are free.
//!
//! The media hold entries in no particular order; this index makes lookups and finding room fast. It is read once,
//! when the directory is first used, and follows every committed change. Changes are planned first ([`DirPlan`]),
//! committed, and only then applied, so a failed commit leaves the index as it was.

use std::collections::HashMap;

use ftl::{AtomicBatch, GRAIN_BYTES, LbaRange};

use crate::error::{Corruption, FsError};
use crate::format::{DIRENT_UNIT, Dirent, GRAIN_UNITS, Range, UNITS_MAX, parse_grain, units_for};
use crate::inode::{FileKind, InodeNo};
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
    grains: Vec<Units>,
}

/// Used units of a grain, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Units {
    used: [u64; GRAIN_UNITS / 64],
}

impl Units {
    fn get(&self, unit: usize) -> bool {
        self.used[unit / 64] & (1 << (unit % 64)) != 0
    }

    fn set(&mut self, first: usize, count: usize, used: bool) {
        for unit in first..first + count {
            let bit = 1 << (unit % 64);
            if used {
                self.used[unit / 64] |= bit;
            } else {
                self.used[unit / 64] &= !bit;
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.used == [0; GRAIN_UNITS / 64]
    }

    fn count(&self) -> usize {
        self.used
            .iter()
            .map(|word| word.count_ones() as usize)
            .sum()
    }

    /// First run of `count` free units.
    fn find(&self, count: usize) -> Option<usize> {
        if GRAIN_UNITS - self.count() < count {
            return None;
        }
        let mut run = 0;
        for unit in 0..GRAIN_UNITS {
            run = if self.get(unit) { 0 } else { run + 1 };
            if run == count {
                return Some(unit + 1 - count);
            }
        }
        None
    }
}

/// Changes of one directory that go into one batch.
#[derive(Debug, Default)]
pub(crate) struct DirPlan {
    removed: Vec<(Box<[u8]>, Slot)>,
    added: Vec<(Box<[u8]>, Slot)>,
}

impl DirIndex {
    /// Reads a directory; `size` is how many bytes of its range are in use.
    pub(crate) fn load(
        store: &impl BlockStore,
        ino: InodeNo,
        range: Range,
        size: u64,
    ) -> Result<Self, FsError> {
        let grains = size.div_ceil(GRAIN_BYTES as u64);
        if grains * GRAIN_UNITS as u64 > UNITS_LIMIT {
            return Err(Corruption::Inode {
                ino,
                what: "directory larger than a directory may be",
            }
            .into());
        }
        let mut index = Self {
            ino,
            range,
            names: HashMap::new(),
            grains: Vec::new(),
        };
        let mut grain = [0; GRAIN_BYTES];
        while (index.grains.len() as u64) < grains {
            let next = index.grains.len() as u64;
            let rest = LbaRange::new(range.start.offset(next), grains - next);
            let number = store
                .next_mapped(rest)
                .map_or(grains, |lba| lba.0 - range.start.0);
            index.grains.resize(number as usize, Units::default());
            if number == grains {
                break;
            }
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
            index.grains.push(units);
        }
        Ok(index)
    }

    /// A new directory.
    pub(crate) fn empty(ino: InodeNo, range: Range) -> Self {
        Self {
            ino,
            range,
            names: HashMap::new(),
            grains: Vec::new(),
        }
    }

    /// The entry of this name.
    pub(crate) fn get(&self, name: &[u8]) -> Option<Slot> {
        self.names.get(name).copied()
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
        // Grains in use first: a new name must not cost a grain while an old one has room.
        let reusable = plan
            .removed
            .iter()
            .find(|(_, slot)| self.fits_at(*slot, name.len(), plan));
        let in_use = (0..)
            .zip(&self.grains)
            .filter(|(_, units)| !units.is_empty());
        let emptied = (0..)
            .zip(&self.grains)
            .filter(|(_, units)| units.is_empty());
        let unit = match reusable {
            Some((_, slot)) => u64::from(slot.unit),
            None => in_use
                .chain(emptied)
                .find_map(|(grain, units)| {
                    Some(grain * GRAIN_UNITS as u64 + units.find(count)? as u64)
                })
                .unwrap_or(self.grains.len() as u64 * GRAIN_UNITS as u64),
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
        let after = self.grains_after(plan);
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
        for (number, units) in self.grains.iter().enumerate() {
            let now_empty = after.get(number).is_none_or(Units::is_empty);
            if now_empty && !units.is_empty() {
                batch.trim(LbaRange::new(self.range.start.offset(number as u64), 1));
            }
        }
        (after.len() * GRAIN_BYTES) as u64
    }

    fn patch_unless_empty(
        &self,
        after: &[Units],
        unit: u32,
        bytes: Vec<u8>,
        batch: &mut AtomicBatch,
    ) {
        let (grain, in_grain) = split(unit);
        if after.get(grain).is_some_and(|units| !units.is_empty()) {
            batch.patch(
                self.range.start.offset(grain as u64),
                (in_grain * DIRENT_UNIT) as u16,
                bytes,
            );
        }
    }

    /// Applies what was committed.
    pub(crate) fn apply(&mut self, plan: DirPlan) {
        self.grains = self.grains_after(&plan);
        for (name, _) in plan.removed {
            self.names.remove(&name);
        }
        for (name, slot) in plan.added {
            self.names.insert(name, slot);
        }
    }

    /// Used units after the plan, without empty grains at the end.
    fn grains_after(&self, plan: &DirPlan) -> Vec<Units> {
        let mut grains = self.grains.clone();
        for (name, slot) in &plan.removed {
            let (grain, unit) = split(slot.unit);
            grains[grain].set(unit, units_for(name.len()), false);
        }
        for (name, slot) in &plan.added {
            let (grain, unit) = split(slot.unit);
            if grain >= grains.len() {
                grains.resize(grain + 1, Units::default());
            }
            grains[grain].set(unit, units_for(name.len()), true);
        }
        while grains.last().is_some_and(Units::is_empty) {
            grains.pop();
        }
        grains
    }
}

fn split(unit: u32) -> (usize, usize) {
    (unit as usize / GRAIN_UNITS, unit as usize % GRAIN_UNITS)
}
