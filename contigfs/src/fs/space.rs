//! fallocate: reserving grains, and giving them back in the middle of a file.

use std::sync::Arc;

use ftl::{AtomicBatch, GRAIN_BYTES, LbaRange};

use super::range::{FILE_BYTES_MAX, PIECE_MAX};
use super::{Fs, Inode, Txn, exclusive, lock};
use crate::error::FsError;
use crate::format::Range;
use crate::inode::InodeNo;
use crate::store::BlockStore;

const GRAIN: u64 = GRAIN_BYTES as u64;

/// What `fallocate` does with its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FallocMode {
    /// Reserve it: writing there will not run out of space.
    Allocate {
        /// Leave the size as it is even if the range ends behind it.
        keep_size: bool,
    },
    /// Make it a hole; the size stays.
    PunchHole,
    /// Make it zeros, and reserve it.
    ZeroRange {
        /// Leave the size as it is even if the range ends behind it.
        keep_size: bool,
    },
}

impl<S: BlockStore> Fs<S> {
    /// Reserves or frees the grains of a byte range.
    pub fn fallocate(
        &self,
        ino: InodeNo,
        offset: u64,
        len: u64,
        mode: FallocMode,
    ) -> Result<(), FsError> {
        let inode = self.inode(ino)?;
        if inode.kind != crate::inode::FileKind::File {
            return Err(inode.live_file().err().unwrap_or(FsError::Invalid));
        }
        if len == 0 {
            return Err(FsError::Invalid);
        }
        let end = offset
            .checked_add(len)
            .filter(|&end| end <= FILE_BYTES_MAX)
            .ok_or(FsError::FileTooLarge)?;
        let _content = exclusive(&inode.content);
        inode.live_file()?;
        inode.state().grains = None;
        match mode {
            FallocMode::Allocate { keep_size } => self.reserve(&inode, offset, end, keep_size),
            FallocMode::PunchHole => self.punch(&inode, offset, end),
            FallocMode::ZeroRange { keep_size } => {
                self.punch(&inode, offset, end)?;
                self.reserve(&inode, offset, end, keep_size)
            }
        }
    }

    fn reserve(
        &self,
        inode: &Arc<Inode>,
        offset: u64,
        end: u64,
        keep_size: bool,
    ) -> Result<(), FsError> {
        let range = self.ensure_range(inode, end)?;
        let size = inode.state().size;
        let grows = end > size && !keep_size;
        if grows {
            self.clean_tail(inode)?;
        }
        let mut grains = LbaRange::new(
            range.start.offset(offset / GRAIN),
            end.div_ceil(GRAIN) - offset / GRAIN,
        );
        // More than one batch reserves only for ranges of many terabytes.
        while grains.count > PIECE_MAX {
            let piece = LbaRange::new(grains.start, PIECE_MAX);
            self.store.commit(AtomicBatch {
                zeros: vec![piece],
                ..AtomicBatch::default()
            })?;
            grains = LbaRange::new(piece.end(), grains.count - PIECE_MAX);
        }
        let now = self.now();
        let _change = lock(&inode.change);
        let mut txn = Txn::default();
        txn.batch.zeros.push(grains);
        txn.edit(inode, |record| {
            record.reserved |= keep_size && end > size;
            record.ctime = now;
            if grows {
                record.size = end;
                record.mtime = now;
            }
        });
        self.commit(txn)?;
        if grows {
            inode.state().size = end;
        }
        inode.state().grains = None;
        Ok(())
    }

    fn punch(&self, inode: &Arc<Inode>, offset: u64, end: u64) -> Result<(), FsError> {
        let range = inode.range()?;
        let end = end.min(range.bytes());
        if offset >= end {
            return Ok(());
        }
        let (first, last) = (offset.div_ceil(GRAIN), end / GRAIN);
        let mut batch = AtomicBatch::new();
        if first > last {
            self.patch_zeros(&mut batch, range, offset, end);
        } else {
            self.patch_zeros(&mut batch, range, offset, first * GRAIN);
            self.patch_zeros(&mut batch, range, last * GRAIN, end);
        }
        let whole = grains(range, first, last.max(first));
        let trims = self.trims_of(whole);
        batch.trims = trims.ranges;
        let now = self.now();
        let _change = lock(&inode.change);
        let mut txn = Txn::default();
        txn.batch = batch;
        txn.edit(inode, |record| {
            record.mtime = now;
            record.ctime = now;
        });
        self.commit(txn)?;
        if trims.more {
            self.trim_now(whole)?;
        }
        inode.state().grains = None;
        Ok(())
    }
}

/// The grains `first..last` of a range.
fn grains(range: Range, first: u64, last: u64) -> LbaRange {
    LbaRange::new(range.start.offset(first), last - first)
}
