//! Root records, the record of the inode table, and records of inodes of which enough is left.

use ftl::{AtomicBatch, GRAIN_BYTES, LbaRange};

use super::{Done, Surgeon, put_record, read_cold, read_hot};
use crate::check::Problem;
use crate::error::{Corruption, FsError};
use crate::format::{
    COLD_PER_GRAIN, COLD_RANGE, HOT_PER_GRAIN, HOT_RANGE, HotRecord, InodeRecord, ROOT_COPY_LBA,
    ROOT_DIR_RANGE, ROOT_LBA, RootRecord, TableRecord, xattr_head,
};
use crate::fs::{cold_place, hot_place};
use crate::inode::{FileKind, InodeNo};
use crate::lost_root;
use crate::store::{BlockStore, ByteAddr, StoreError};
use crate::time::Timestamp;

/// Bits that a file whose owner is not known must not keep.
const SET_ID: u16 = 0o6000;

impl<S: BlockStore> Surgeon<'_, S> {
    /// Writes the damaged one of the two root records anew, from the other. If both are lost, one is made up.
    pub(super) fn roots(&self) -> Result<Done, FsError> {
        let mut done = Done::default();
        for problem in self.problems() {
            let Problem::Root { copy, error } = problem else {
                continue;
            };
            // Written by a later version: nothing here knows better.
            let newer = Corruption::is_newer;
            if matches!(error, FsError::Corrupt(corruption) if newer(corruption)) {
                continue;
            }
            let (lba, other) = match copy {
                false => (ROOT_LBA, ROOT_COPY_LBA),
                true => (ROOT_COPY_LBA, ROOT_LBA),
            };
            let mut bytes = [0; RootRecord::BYTES];
            let read = self.store.read(ByteAddr::new(other, 0), &mut bytes);
            if read.is_err() || RootRecord::parse(&bytes).is_err() {
                let may_be_whole = self.all.iter().any(Problem::is_unreadable);
                let made_up = match self.is_full() && !may_be_whole {
                    true => lost_root::made_up(self.store),
                    false => None,
                };
                match made_up {
                    Some(record) => bytes = record.emit(),
                    None => continue,
                }
            }
            // All of it: a grain that the media have lost can not be changed in part.
            let mut grain = vec![0; GRAIN_BYTES];
            grain[..RootRecord::BYTES].copy_from_slice(&bytes);
            let mut batch = AtomicBatch::new();
            batch.patch(lba, 0, grain);
            done.note(problem, self.commit(batch))?;
        }
        Ok(done)
    }

    /// Makes the record of the table cover every record there is.
    pub(super) fn table(&self) -> Result<Done, FsError> {
        let mut done = Done::default();
        for problem in self.problems() {
            let of_table = match problem {
                Problem::Record { ino, .. } => ino == InodeNo::TABLE,
                Problem::BehindTable { .. } => true,
                _ => false,
            };
            if !of_table {
                continue;
            }
            let hot = self.grains_used(HOT_RANGE.lbas());
            let cold = self.grains_used(COLD_RANGE.lbas());
            let grains = hot.max(cold.div_ceil(HOT_PER_GRAIN / COLD_PER_GRAIN));
            let (lba, offset) = hot_place(InodeNo::TABLE);
            let mut batch = AtomicBatch::new();
            batch.patch(lba, offset, TableRecord { grains }.emit());
            done.note(problem, self.commit(batch))?;
            break;
        }
        Ok(done)
    }

    /// Makes up what is lost of an inode whose place is known: the hot record says where the data are. Its owner, times
    /// and links are gone with the cold record: it is root's, and nobody gets the rights of its owner by running it. If its
    /// place is claimed by another one, that one keeps it: a hot record without its cold one may be of the past.
    pub(super) fn records(&self) -> Result<Done, FsError> {
        let mut done = Done::default();
        if !self.is_full() {
            return Ok(done);
        }
        for problem in self.problems() {
            let Problem::Record { ino, .. } = problem else {
                continue;
            };
            let Some(record) = self.made_up(ino) else {
                continue;
            };
            let (lba, _) = cold_place(ino);
            let mut batch = AtomicBatch::new();
            if matches!(read_cold(self.store, ino), Err(StoreError::Damaged { .. })) {
                // The whole grain is lost, and has to go before anything can be written there.
                batch.trim(LbaRange::new(lba, 1));
            } else {
                put_record(ino, &record, &mut batch);
            }
            done.note(problem, self.commit(batch))?;
        }
        Ok(done)
    }

    fn made_up(&self, ino: InodeNo) -> Option<InodeRecord> {
        let hot = read_hot(self.store, ino).ok()?;
        let hot = match HotRecord::parse(ino, &hot) {
            Ok(Some(hot)) if !hot.relocating && (ino != InodeNo::ROOT || hot.is_of_root()) => hot,
            // Its place is always the same, and its content speaks for itself.
            _ if ino == InodeNo::ROOT => self.hot_root(),
            _ => return None,
        };
        let links = match hot.kind {
            FileKind::Directory => 2,
            _ => u32::from(!hot.orphan),
        };
        let holder = self.survey.holders(ino).first().copied();
        let ctime = match self.is_claimed_twice(ino) {
            // Who changed last keeps the place, and when this one did is not known.
            true => Timestamp::default(),
            false => self.now,
        };
        // A directory is charged as the one that holds it; for others `quota set` has to be given again.
        let above = holder.filter(|_| hot.in_project);
        let project = above.and_then(|dir| self.survey.inodes.get(&dir)?.project);
        Some(InodeRecord {
            kind: hot.kind,
            perm: hot.perm & !SET_ID,
            range: hot.range,
            size: hot.size,
            generation: hot.generation,
            orphan: hot.orphan,
            reserved: hot.reserved,
            relocation: None,
            project,
            nlink: links,
            uid: 0,
            gid: 0,
            rdev: 0,
            parent: (hot.kind == FileKind::Directory).then_some(match ino {
                InodeNo::ROOT => InodeNo::ROOT,
                _ => holder.unwrap_or(InodeNo::ROOT),
            }),
            atime: self.now,
            mtime: self.now,
            ctime,
            btime: self.now,
        })
    }

    fn is_claimed_twice(&self, ino: InodeNo) -> bool {
        self.all.iter().any(|problem| match *problem {
            Problem::Overlap { ino: one, other } => one == ino || other == ino,
            _ => false,
        })
    }

    fn hot_root(&self) -> HotRecord {
        // Else its attributes would be those of another inode.
        let mut generation = [0; 8];
        let head = xattr_head(InodeNo::ROOT);
        if self.is_mapped(head) {
            let _ = self.store.read(ByteAddr::new(head, 0), &mut generation);
        }
        HotRecord {
            kind: FileKind::Directory,
            perm: 0o755,
            range: Some(ROOT_DIR_RANGE),
            size: self.grains_used(ROOT_DIR_RANGE.lbas()) * GRAIN_BYTES as u64,
            generation: u64::from_le_bytes(generation),
            orphan: false,
            reserved: false,
            relocating: false,
            in_project: false,
        }
    }
}
