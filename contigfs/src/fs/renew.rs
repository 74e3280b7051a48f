//! What files are found by, written again from memory when it may be lost with a device.
//!
//! Of an inode in memory the records are known, and of a directory that has been read every entry. Where a grain of them is lost, it
//! is written whole, from what is known: else what is known now is lost at the end, and until then nothing in the grain can be
//! changed. What is not known of it is lost already, and is said to be lost, so that nobody takes it for nothing.
//!
//! A grain that was lost when the file system was mounted stays as it is: nothing more is known of it than a repair finds.

use std::collections::BTreeMap;
use std::sync::Arc;

use ftl::{AtomicBatch, GRAIN_BYTES, Lba};

use super::txn::{cold_place, hot_place};
use super::{Fs, Inode, lock, shared};
use crate::error::FsError;
use crate::format::{
    COLD_BYTES, COLD_PER_GRAIN, HOT_BYTES, HOT_PER_GRAIN, InodeRecord, LOST_RECORD, TableRecord,
};
use crate::inode::{FileKind, InodeNo};
use crate::store::{BlockStore, ByteAddr, StoreError};

/// Inodes by number.
type Known = BTreeMap<InodeNo, Arc<Inode>>;

impl<S: BlockStore> Fs<S> {
    /// Writes grains of the inode table and of directories again that the media have lost, as far as memory knows what they held;
    /// durable on return. Says how many. For when a device of the volume has been lost since the file system was mounted.
    ///
    /// # Errors
    /// When one can not be written; the others may have been.
    pub fn renew_what_is_known(&self) -> Result<usize, FsError> {
        let mut grains: BTreeMap<u64, Known> = BTreeMap::new();
        for inode in self.cache.all(|state| !state.dead) {
            let number = inode.ino.0 / HOT_PER_GRAIN;
            grains.entry(number).or_default().insert(inode.ino, inode);
        }
        let mut renewed = 0;
        for (&number, known) in &grains {
            renewed += self.renew_records(number, known)?;
        }
        for inode in grains.values().flat_map(BTreeMap::values) {
            if inode.kind == FileKind::Directory {
                renewed += self.renew_entries(inode)?;
            }
        }
        Ok(renewed)
    }

    /// The records of a hot grain, and of the cold grains beside it.
    fn renew_records(&self, number: u64, known: &Known) -> Result<usize, FsError> {
        let all = number * HOT_PER_GRAIN..(number + 1) * HOT_PER_GRAIN;
        let first = InodeNo(all.start);
        let colds = (all.clone().map(InodeNo)).step_by(COLD_PER_GRAIN as usize);
        let is_any_lost = self.is_lost(hot_place(first).0)
            || (colds.clone()).any(|first| self.is_lost(cold_place(first).0));
        if !is_any_lost || all.clone().map(InodeNo).any(|ino| self.bad.contains(&ino)) {
            return Ok(0);
        }
        // Nobody writes any of these records meanwhile, or frees the last of a grain and with it the grain.
        let _changes: Vec<_> = known.values().map(|inode| lock(&inode.change)).collect();
        let grow = lock(&self.grow);
        let has = |ino: InodeNo| self.alloc().table.has(ino);
        let record = |ino: InodeNo| -> Option<InodeRecord> {
            let state = known.get(&ino)?.state();
            (!state.dead).then_some(state.record)
        };
        // One that is about to be made is known to the table first: then it writes its record after this, or has failed.
        let is_known = |ino: &InodeNo| record(*ino).is_some() && has(*ino);
        let mut batch = AtomicBatch::new();
        let lba = hot_place(first).0;
        if self.is_lost(lba) && (all.clone()).map(InodeNo).any(|ino| is_known(&ino)) {
            let mut grain = vec![0; GRAIN_BYTES];
            for (ino, hot) in all.map(InodeNo).zip(grain.chunks_mut(HOT_BYTES)) {
                match record(ino) {
                    _ if ino == InodeNo::TABLE => {
                        hot.copy_from_slice(&TableRecord { grains: *grow }.emit());
                    }
                    Some(record) => hot.copy_from_slice(&record.emit_hot(ino)),
                    None if has(ino) => hot.fill(LOST_RECORD),
                    None => {}
                }
            }
            batch.patch(lba, 0, grain);
        }
        for first in colds {
            let lba = cold_place(first).0;
            let inodes = (first.0..first.0 + COLD_PER_GRAIN).map(InodeNo);
            if !self.is_lost(lba) || !inodes.clone().any(|ino| is_known(&ino)) {
                continue;
            }
            let mut grain = vec![0; GRAIN_BYTES];
            for (ino, cold) in inodes.zip(grain.chunks_mut(COLD_BYTES)) {
                match record(ino) {
                    _ if ino == InodeNo::TABLE => {}
                    Some(record) => cold.copy_from_slice(&record.emit_cold(ino)),
                    None if has(ino) => cold.fill(LOST_RECORD),
                    None => {}
                }
            }
            batch.patch(lba, 0, grain);
        }
        let renewed = batch.patches.len();
        if renewed > 0 {
            self.store.commit(batch)?;
        }
        drop(grow);
        Ok(renewed)
    }

    /// The entries of a directory, if it has been read.
    fn renew_entries(&self, inode: &Inode) -> Result<usize, FsError> {
        // Nobody changes an entry meanwhile.
        let content = shared(&inode.content);
        let Some(index) = content.as_ref().filter(|_| !inode.state().dead) else {
            return Ok(0);
        };
        let grains = index.grains().into_iter();
        let lost: Vec<u64> = grains
            .filter(|&grain| self.is_lost(index.lba(grain)))
            .collect();
        for &grain in &lost {
            let mut batch = AtomicBatch::new();
            batch.patch(index.lba(grain), 0, index.emit_grain(grain));
            self.store.commit(batch)?;
        }
        Ok(lost.len())
    }

    /// Whether the media have lost a grain; one that the device gives an error for may be whole.
    fn is_lost(&self, lba: Lba) -> bool {
        let read = self.store.read(ByteAddr::new(lba, 0), &mut [0]);
        matches!(read, Err(StoreError::Damaged { .. }))
    }
}
