//! Directories: grains in which something makes no sense, sizes, and entries that are wrong.

use std::collections::HashSet;

use ftl::{AtomicBatch, GRAIN_BYTES, Lba, LbaRange};

use super::{Done, Surgeon, put_record};
use crate::check::Problem;
use crate::error::FsError;
use crate::format::{DIRENT_UNIT, Dirent, GRAIN_UNITS, parse_unit, units_for};
use crate::inode::{FileKind, InodeNo};
use crate::store::{BlockStore, ByteAddr, StoreError};

/// An entry and its place in a grain.
struct Entry {
    unit: usize,
    ino: InodeNo,
    kind: FileKind,
    name: Vec<u8>,
}

/// Whether the first thing in a grain is an entry of this directory: one look, where a grain may be of any of many.
pub(super) fn begins_with_entry(dir: InodeNo, grain: &[u8; GRAIN_BYTES]) -> bool {
    let mut units = (0..GRAIN_UNITS).map(|unit| parse_unit(dir, unit, grain));
    let first = units.find(|found| !matches!(found, Ok(None)));
    matches!(first, Some(Ok(Some(_))))
}

/// What a grain of a directory holds.
pub(super) struct DirGrain {
    lba: Lba,
    entries: Vec<Entry>,
    /// It holds nothing else.
    whole: bool,
}

impl DirGrain {
    /// Finds every entry whose checksum is right. A grain that the media have lost has none.
    pub(super) fn read(
        store: &impl BlockStore,
        dir: InodeNo,
        lba: Lba,
    ) -> Result<Self, StoreError> {
        let mut grain = [0; GRAIN_BYTES];
        let mut found = Self {
            lba,
            entries: Vec::new(),
            whole: true,
        };
        match store.read(ByteAddr::new(lba, 0), &mut grain) {
            Err(StoreError::Damaged { .. }) => {
                found.whole = false;
                return Ok(found);
            }
            result => result?,
        }
        let mut unit = 0;
        while unit < GRAIN_UNITS {
            match parse_unit(dir, unit, &grain) {
                Ok(Some(entry)) => {
                    found.entries.push(Entry {
                        unit,
                        ino: entry.ino,
                        kind: entry.kind,
                        name: entry.name.to_vec(),
                    });
                    unit += units_for(entry.name.len());
                    continue;
                }
                Ok(None) => {}
                Err(_) => found.whole = false,
            }
            unit += 1;
        }
        Ok(found)
    }

    /// It is certainly of this directory.
    pub(super) fn is_whole_and_used(&self) -> bool {
        self.whole && !self.entries.is_empty()
    }

    /// Writes the entries and nothing else, each at its place.
    fn write(&self, dir: InodeNo, batch: &mut AtomicBatch) {
        if self.entries.is_empty() {
            batch.trim(LbaRange::new(self.lba, 1));
            return;
        }
        let mut grain = vec![0; GRAIN_BYTES];
        for entry in &self.entries {
            let bytes = Dirent {
                ino: entry.ino,
                kind: entry.kind,
                name: &entry.name,
            }
            .emit(dir);
            grain[entry.unit * DIRENT_UNIT..][..bytes.len()].copy_from_slice(&bytes);
        }
        batch.patch(self.lba, 0, grain);
    }
}

impl<S: BlockStore> Surgeon<'_, S> {
    /// Directories that can not be read keep the entries that make sense; sizes follow the content.
    pub(super) fn directories(&self) -> Result<Done, FsError> {
        let mut done = Done::default();
        for problem in self.problems() {
            match problem {
                Problem::Directory { ino, .. } if self.is_full() => {
                    done.note(problem, self.clear_rubbish(ino))?;
                }
                Problem::DirectorySize { ino } => done.note(problem, self.fit_size(ino))?,
                _ => {}
            }
        }
        Ok(done)
    }

    fn clear_rubbish(&self, dir: InodeNo) -> Result<(), FsError> {
        self.change_grains(dir, |grain| !grain.whole)
    }

    fn fit_size(&self, dir: InodeNo) -> Result<(), FsError> {
        let mut record = self.record(dir)?;
        let range = record.range.ok_or(FsError::NotDirectory)?.lbas();
        let mut next = range.start;
        while let Some(lba) = (self.store).next_mapped(LbaRange::new(next, range.end().0 - next.0))
        {
            let grain = DirGrain::read(self.store, dir, lba)?;
            if grain.whole && grain.entries.is_empty() {
                let mut batch = AtomicBatch::new();
                grain.write(dir, &mut batch);
                self.commit(batch)?;
            }
            next = lba.offset(1);
            if next == range.end() {
                break;
            }
        }
        record.size = self.grains_used(range) * GRAIN_BYTES as u64;
        let mut batch = AtomicBatch::new();
        put_record(dir, &record, &mut batch);
        self.commit(batch)
    }

    /// Looks at every grain of a directory and writes those that `change` has changed, one batch each.
    fn change_grains(
        &self,
        dir: InodeNo,
        mut change: impl FnMut(&mut DirGrain) -> bool,
    ) -> Result<(), FsError> {
        let record = self.record(dir)?;
        let range = record.range.ok_or(FsError::NotDirectory)?.lbas();
        let grains = record.size.div_ceil(GRAIN_BYTES as u64).min(range.count);
        let end = range.start.offset(grains);
        let mut next = range.start;
        while next < end {
            let Some(lba) = self.store.next_mapped(LbaRange::new(next, end.0 - next.0)) else {
                break;
            };
            next = lba.offset(1);
            let mut grain = DirGrain::read(self.store, dir, lba)?;
            if change(&mut grain) {
                let mut batch = AtomicBatch::new();
                grain.write(dir, &mut batch);
                self.commit(batch)?;
            }
        }
        Ok(())
    }

    /// Removes names that lead nowhere and the second of two equal ones; entries say the kind that the inode says.
    pub(super) fn entries(&self) -> Result<Done, FsError> {
        let mut done = Done::default();
        for problem in self.problems() {
            match problem {
                Problem::Dangling { dir, ino } if self.knows_inodes() => {
                    done.note(problem, self.remove_entries(dir, ino, 0))?;
                }
                Problem::KindDiffers { dir, ino } => {
                    done.note(problem, self.correct_kind(dir, ino))?;
                }
                Problem::NameTwice { dir, .. } if self.is_full() => {
                    done.note(problem, self.remove_second_names(dir))?;
                }
                _ => {}
            }
        }
        Ok(done)
    }

    /// Removes the entries of an inode from a directory, except the first `keep`.
    pub(super) fn remove_entries(
        &self,
        dir: InodeNo,
        ino: InodeNo,
        keep: usize,
    ) -> Result<(), FsError> {
        let mut seen = 0;
        self.change_grains(dir, |grain| {
            let before = grain.entries.len();
            grain.entries.retain(|entry| {
                let of_it = entry.ino == ino;
                seen += usize::from(of_it);
                !of_it || seen <= keep
            });
            grain.whole && grain.entries.len() < before
        })
    }

    fn correct_kind(&self, dir: InodeNo, ino: InodeNo) -> Result<(), FsError> {
        let kind = self.record(ino)?.kind;
        self.change_grains(dir, |grain| {
            let mut changed = false;
            for entry in grain.entries.iter_mut().filter(|entry| entry.ino == ino) {
                changed |= entry.kind != kind;
                entry.kind = kind;
            }
            grain.whole && changed
        })
    }

    fn remove_second_names(&self, dir: InodeNo) -> Result<(), FsError> {
        let mut names = HashSet::new();
        self.change_grains(dir, |grain| {
            let before = grain.entries.len();
            grain
                .entries
                .retain(|entry| names.insert(entry.name.clone()));
            grain.whole && grain.entries.len() < before
        })
    }
}
