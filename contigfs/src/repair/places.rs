//! Inodes whose hot record is lost: nobody knows where their data are.
//!
//! A directory says itself whose it is: the checksum of every entry includes its number. So grains that belong to nobody
//! are looked through for entries of the directories that are missing. Of other files only that is known: what lies
//! outside of all ranges was theirs, or was left behind by a crash. If one file is missing, and one place is nobody's, the
//! two are put together; else each place becomes a file of its own, which is given a name in `lost+found` later, and the
//! inodes go, and with them their names. As their owner is not certain, all but directories are root's, and only root may
//! read them.
//!
//! In this order, because as long as a record is unreadable a mount frees nothing: it goes last.

use std::collections::BTreeMap;

use ftl::{AtomicBatch, GRAIN_BYTES, Lba, LbaRange};

use super::directory::{DirGrain, begins_with_entry};
use super::{Done, Surgeon, put_record, read_cold, read_hot};
use crate::buddy::Order;
use crate::check::Problem;
use crate::error::FsError;
use crate::format::{
    COLD_BYTES, COLD_PROJECT, GRAIN, HOT_BYTES, HOT_PER_GRAIN, HOT_RANGE, INODES_MAX, InodeRecord,
    LOST_RECORD, Range, TARGET_MAX, TableRecord,
};
use crate::fs::{cold_place, hot_place};
use crate::inode::{FileKind, InodeNo, ProjectId};
use crate::store::{BlockStore, ByteAddr, StoreError};

/// What is mapped in one block of so many grains (4 GiB), and is nobody's, is taken for one file. No file has less than
/// that for its own unless somebody wants it so.
const BLOCK_ORDER: Order = Order(20);

/// Grains outside of all ranges, close together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Find {
    /// The part of a free block that they lie in.
    pub(super) block: Range,
    first: Lba,
    last: Lba,
}

impl Find {
    /// Grains from the beginning of the block to the last.
    pub(super) fn grains(&self) -> u64 {
        self.last.0 - self.block.start.0 + 1
    }
}

impl<S: BlockStore> Surgeon<'_, S> {
    /// Finds the places of inodes whose hot record is lost, and lets go of those that have none.
    pub(super) fn places(&self) -> Result<Done, FsError> {
        let mut done = Done::default();
        if !self.is_full() || !self.knows_inodes() {
            return Ok(done);
        }
        let is_lost = |problem: &Problem| match *problem {
            Problem::Record { ino, .. } => ino != InodeNo::TABLE && ino != InodeNo::ROOT,
            _ => false,
        };
        let problems: Vec<Problem> = self.problems().filter(is_lost).collect();
        let lost: Vec<InodeNo> = problems.iter().filter_map(ino_of).collect();
        if lost.is_empty() {
            return Ok(done);
        }
        if self.clear_cold_grains(&lost)? {
            return Ok(Done::again());
        }
        let mut finds = self.finds();
        let directories = self.find_directories(&lost, &finds)?;
        for &problem in &problems {
            let range = ino_of(&problem).and_then(|ino| directories.get(&ino));
            if let (Some(range), Some(ino)) = (range, ino_of(&problem)) {
                let record = self.directory_at(ino, *range);
                done.note(problem, self.put_found(ino, &record))?;
            }
        }
        if !done.is_nothing() {
            return Ok(done);
        }
        if let ([problem], [ino], [find]) = (&problems[..], &lost[..], &finds[..])
            && let Some(record) = self.file_at(*ino, find)
        {
            done.note(*problem, self.put_found(*ino, &record))?;
            return Ok(done);
        }
        if let Some(find) = finds.pop() {
            let ino = self.free_number()?;
            let record = self.made_up_file(FileKind::File, find.block, find.grains() * GRAIN);
            self.put_found(ino, &record)?;
            return Ok(Done::again());
        }
        for (problem, ino) in problems.into_iter().zip(lost) {
            let mut batch = AtomicBatch::new();
            let (lba, offset) = hot_place(ino);
            batch.patch(lba, offset, [0; HOT_BYTES]);
            let (lba, offset) = cold_place(ino);
            batch.patch(lba, offset, [0; COLD_BYTES]);
            done.note(problem, self.commit(batch))?;
        }
        Ok(done)
    }

    /// Grains of the table that the media have lost can not be changed in part: they are written anew. Of the hot records
    /// in them it is said that they are lost, so that a mount frees nothing; who has no cold record and no name does not
    /// exist.
    pub(super) fn table_grains(&self) -> Result<Done, FsError> {
        if !self.is_full() {
            return Ok(Done::default());
        }
        for ino in self.problems().filter_map(|problem| ino_of(&problem)) {
            let (lba, _) = hot_place(ino);
            if !matches!(read_hot(self.store, ino), Err(StoreError::Damaged { .. })) {
                continue;
            }
            let first = (lba.0 - HOT_RANGE.start.0) * HOT_PER_GRAIN;
            let mut grain = vec![0; GRAIN_BYTES];
            for (ino, hot) in (first..).map(InodeNo).zip(grain.chunks_mut(HOT_BYTES)) {
                let has_cold = read_cold(self.store, ino) != Ok([0; COLD_BYTES]);
                if has_cold || self.survey.is_named(ino) || ino == InodeNo::ROOT {
                    hot.fill(LOST_RECORD);
                }
            }
            if first == InodeNo::TABLE.0 {
                let grains = self.grains_used(HOT_RANGE.lbas());
                grain[..HOT_BYTES].copy_from_slice(&TableRecord { grains }.emit());
            }
            let mut batch = AtomicBatch::new();
            batch.patch(lba, 0, grain);
            self.commit(batch)?;
            return Ok(Done::again());
        }
        Ok(Done::default())
    }

    /// The same with their cold records, of which there is nothing left to say.
    fn clear_cold_grains(&self, lost: &[InodeNo]) -> Result<bool, FsError> {
        for &ino in lost {
            if let Err(StoreError::Damaged { .. }) = read_cold(self.store, ino) {
                let mut batch = AtomicBatch::new();
                batch.trim(LbaRange::new(cold_place(ino).0, 1));
                self.commit(batch)?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// What lies outside of all ranges.
    pub(super) fn finds(&self) -> Vec<Find> {
        let free: Vec<Range> = self.free_space().free_blocks().collect();
        let mut finds: Vec<Find> = Vec::new();
        for block in free {
            let all = block.lbas();
            let mut next = all.start;
            while next < all.end() {
                let rest = LbaRange::new(next, all.end().0 - next.0);
                let Some(lba) = self.store.next_mapped(rest) else {
                    break;
                };
                next = lba.offset(1);
                match finds.last_mut() {
                    Some(find) if find.block.lbas().contains(lba) => find.last = lba,
                    _ => finds.push(Find {
                        block: part_of(block, lba),
                        first: lba,
                        last: lba,
                    }),
                }
            }
        }
        finds
    }

    /// The places of missing directories: all grains there hold entries of one of them.
    pub(super) fn find_directories(
        &self,
        lost: &[InodeNo],
        finds: &[Find],
    ) -> Result<BTreeMap<InodeNo, Range>, FsError> {
        let mut found: BTreeMap<InodeNo, Vec<Lba>> = BTreeMap::new();
        for find in finds {
            let mut next = find.first;
            while next <= find.last {
                let rest = LbaRange::new(next, find.last.0 - next.0 + 1);
                let Some(lba) = self.store.next_mapped(rest) else {
                    break;
                };
                next = lba.offset(1);
                let mut grain = [0; GRAIN_BYTES];
                match self.store.read(ByteAddr::new(lba, 0), &mut grain) {
                    // Nothing says whose it is.
                    Err(StoreError::Damaged { .. }) => continue,
                    read => read?,
                }
                for &ino in lost.iter().filter(|&&ino| begins_with_entry(ino, &grain)) {
                    let grain = DirGrain::read(self.store, ino, lba)?;
                    if grain.is_whole_and_used() {
                        found.entry(ino).or_default().push(lba);
                        break;
                    }
                }
            }
        }
        let mut places = BTreeMap::new();
        for (ino, lbas) in found {
            let Some(find) = finds
                .iter()
                .find(|find| find.block.lbas().contains(lbas[0]))
            else {
                continue;
            };
            let (first, last) = (lbas[0], lbas[lbas.len() - 1]);
            let is_all_its_own =
                |range: &Range| self.store.mapped_count(range.lbas()) == lbas.len() as u64;
            // All of the block, so that it can grow there.
            let ranges = [Some(find.block), smallest_with(first, last)];
            let range = ranges.into_iter().flatten().find(is_all_its_own);
            if let Some(range) = range.filter(|_| find.block.lbas().contains(last)) {
                places.insert(ino, range);
            }
        }
        Ok(places)
    }

    fn directory_at(&self, ino: InodeNo, range: Range) -> InodeRecord {
        let size = self.grains_used(range.lbas()) * GRAIN;
        let holder = self.survey.holders(ino).first().copied();
        let made_up = InodeRecord {
            perm: 0o700,
            nlink: 2,
            parent: Some(holder.unwrap_or(InodeNo::ROOT)),
            ..self.made_up_file(FileKind::Directory, range, size)
        };
        self.with_cold(ino, made_up).unwrap_or(made_up)
    }

    /// What the only missing inode is if the only place that is nobody's is its own. None: it is something else.
    fn file_at(&self, ino: InodeNo, find: &Find) -> Option<InodeRecord> {
        let kind = self.survey.kind_of_entries(ino)?;
        let (range, size) = match kind {
            FileKind::File => (find.block, find.grains() * GRAIN),
            FileKind::Symlink if find.first == find.last => {
                let range = smallest_with(find.first, find.last)?;
                let mut grain = [0; GRAIN_BYTES];
                let at = ByteAddr::new(range.start, 0);
                self.store.read(at, &mut grain).ok()?;
                let end = grain.iter().position(|&byte| byte == 0)?;
                (0 < end && end <= TARGET_MAX).then_some((range, end as u64))?
            }
            _ => return None,
        };
        let made_up = self.made_up_file(kind, range, size);
        let known = self.with_cold(ino, made_up);
        Some(InodeRecord {
            uid: 0,
            gid: 0,
            ..known.unwrap_or(made_up)
        })
    }

    /// What the cold record says, if it fits the rest.
    fn with_cold(&self, ino: InodeNo, made_up: InodeRecord) -> Option<InodeRecord> {
        let cold = read_cold(self.store, ino).ok()?;
        let generation = u64::from_le_bytes(*cold.first_chunk()?);
        let project = u32::from_le_bytes(*cold[COLD_PROJECT..].first_chunk()?);
        let hot = InodeRecord {
            generation,
            project: ProjectId::new(project),
            ..made_up
        };
        InodeRecord::parse(ino, &hot.emit_hot(ino), &cold).ok()?
    }

    pub(super) fn made_up_file(&self, kind: FileKind, range: Range, size: u64) -> InodeRecord {
        InodeRecord {
            kind,
            perm: if kind == FileKind::Symlink {
                0o777
            } else {
                0o600
            },
            range: Some(range),
            size,
            generation: 0,
            orphan: false,
            reserved: false,
            relocation: None,
            project: None,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            parent: None,
            atime: self.now,
            mtime: self.now,
            ctime: self.now,
            btime: self.now,
        }
    }

    pub(super) fn put_found(&self, ino: InodeNo, record: &InodeRecord) -> Result<(), FsError> {
        let mut batch = AtomicBatch::new();
        put_record(ino, record, &mut batch);
        self.commit(batch)
    }

    /// An inode that does not exist, and that nothing speaks of.
    pub(super) fn free_number(&self) -> Result<InodeNo, FsError> {
        let mut table = [0; HOT_BYTES];
        let at = ByteAddr::new(HOT_RANGE.start, 0);
        self.store.read(at, &mut table)?;
        let grains = TableRecord::parse(&table)?.grains;
        let is_free = |ino: &InodeNo| {
            read_hot(self.store, *ino) == Ok([0; HOT_BYTES])
                && read_cold(self.store, *ino) == Ok([0; COLD_BYTES])
                && !self.survey.is_named(*ino)
        };
        let mut numbers = (InodeNo::ROOT.0 + 1..grains * HOT_PER_GRAIN).map(InodeNo);
        if let Some(ino) = numbers.find(is_free) {
            return Ok(ino);
        }
        let ino = InodeNo(grains * HOT_PER_GRAIN);
        if ino.0 >= INODES_MAX {
            return Err(FsError::NoSpace);
        }
        let mut batch = AtomicBatch::new();
        let (lba, offset) = hot_place(InodeNo::TABLE);
        let longer = TableRecord { grains: grains + 1 };
        batch.patch(lba, offset, longer.emit());
        self.commit(batch)?;
        Ok(ino)
    }
}

fn ino_of(problem: &Problem) -> Option<InodeNo> {
    match *problem {
        Problem::Record { ino, .. } => Some(ino),
        _ => None,
    }
}

/// The part of a free block that a file would have that lies there.
fn part_of(block: Range, lba: Lba) -> Range {
    let order = block.order.min(BLOCK_ORDER);
    Range {
        start: Lba(lba.0 & !(order.grains() - 1)),
        order,
    }
}

/// The smallest range that a file may have with these grains in it.
fn smallest_with(first: Lba, last: Lba) -> Option<Range> {
    let order = Order::new((u64::BITS - (first.0 ^ last.0).leading_zeros()) as u8)?;
    Some(Range {
        start: Lba(first.0 & !(order.grains() - 1)),
        order,
    })
}
