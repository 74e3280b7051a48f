//! Ranges of the LBA space: finding, enlarging and trimming them.

use std::sync::Arc;

use ftl::{AtomicBatch, GRAIN_BYTES, LbaRange};

use super::{Fs, Inode, Txn};
use crate::buddy::Order;
use crate::error::FsError;
use crate::format::Range;
use crate::store::{BlockStore, ByteAddr};

/// Order of the range of a new file: 64 GiB of address space.
pub(super) const FILE_ORDER: Order = Order(24);
/// Largest file.
pub(super) const FILE_BYTES_MAX: u64 = Order::FILE_MAX.grains() * GRAIN_BYTES as u64;
/// Most grains of one trim or reservation.
pub(super) const PIECE_MAX: u64 = 1 << 31;
/// Most ranges that an operation adds to a batch for one file.
const PIECES_MAX: usize = 24;
/// Bytes copied at a time when a file moves.
const COPY_BYTES: u64 = 1 << 20;

/// Trims that free a range.
#[derive(Debug)]
pub(super) struct Trims {
    pub(super) ranges: Vec<LbaRange>,
    /// There is more than fits a batch.
    pub(super) more: bool,
}

impl<S: BlockStore> Fs<S> {
    /// Hands out a range. After damage was found at mount, only where nothing is mapped: there may be a file that
    /// nobody knows the place of.
    pub(super) fn allocate_range(&self, order: Order) -> Result<Range, FsError> {
        let mut refused = Vec::new();
        let found = loop {
            let range = self.alloc().buddy.allocate(order);
            match range {
                Some(range) if self.degraded && self.store.next_mapped(range.lbas()).is_some() => {
                    refused.push(range)
                }
                found => break found,
            }
        };
        refused
            .into_iter()
            .for_each(|range| self.alloc().buddy.release(range));
        found.ok_or(FsError::NoSpace)
    }

    /// The trims that free `range`, skipping what is not mapped.
    pub(super) fn trims_of(&self, range: LbaRange) -> Trims {
        let mut trims = Trims {
            ranges: Vec::new(),
            more: false,
        };
        let mut from = range.start;
        while from < range.end() {
            let Some(lba) = self
                .store
                .next_mapped(LbaRange::new(from, range.end().0 - from.0))
            else {
                break;
            };
            if trims.ranges.len() == PIECES_MAX {
                trims.more = true;
                break;
            }
            let piece = LbaRange::new(lba, PIECE_MAX.min(range.end().0 - lba.0));
            trims.ranges.push(piece);
            from = piece.end();
        }
        trims
    }

    /// Trims a range at once, in as many batches as it takes.
    pub(super) fn trim_now(&self, range: LbaRange) -> Result<(), FsError> {
        loop {
            let trims = self.trims_of(range);
            if trims.ranges.is_empty() {
                return Ok(());
            }
            self.store.commit(AtomicBatch {
                trims: trims.ranges,
                ..AtomicBatch::default()
            })?;
            if !trims.more {
                return Ok(());
            }
        }
    }

    /// Makes sure that the range of a file reaches `bytes`, moving the file if it must. The caller holds `content`
    /// exclusively.
    pub(super) fn ensure_range(&self, inode: &Arc<Inode>, bytes: u64) -> Result<Range, FsError> {
        let range = inode.range()?;
        if bytes <= range.bytes() {
            return Ok(range);
        }
        if bytes > FILE_BYTES_MAX {
            return Err(FsError::FileTooLarge);
        }
        if inode.state().holds > 0 {
            return Err(FsError::Busy);
        }
        let order =
            Order::for_grains(bytes.div_ceil(GRAIN_BYTES as u64)).ok_or(FsError::FileTooLarge)?;
        let larger = self.allocate_range(order)?;
        self.observe(|observer| observer.moving(inode.ino));
        let moved = self
            .copy_range(range, larger)
            .and_then(|()| self.switch_range(inode, range, larger));
        if moved.is_err() {
            // What was copied is trimmed; should that fail too, the next mount does it.
            let trimmed = self.trim_now(larger.lbas());
            if trimmed.is_ok() {
                self.alloc().buddy.release(larger);
            }
        }
        moved.map(|()| larger)
    }

    fn copy_range(&self, from: Range, to: Range) -> Result<(), FsError> {
        let mut buf = vec![0; COPY_BYTES as usize];
        let mut next = from.start;
        let end = from.lbas().end();
        while let Some(lba) = self.store.next_mapped(LbaRange::new(next, end.0 - next.0)) {
            let mut grains = 1;
            let most = (COPY_BYTES / GRAIN_BYTES as u64).min(end.0 - lba.0);
            while grains < most
                && self
                    .store
                    .next_mapped(LbaRange::new(lba.offset(grains), 1))
                    .is_some()
            {
                grains += 1;
            }
            let bytes = &mut buf[..grains as usize * GRAIN_BYTES];
            self.store.read(ByteAddr::new(lba, 0), bytes)?;
            self.store.write(
                ByteAddr::new(to.start.offset(lba.0 - from.start.0), 0),
                bytes,
            )?;
            next = lba.offset(grains);
            if next == end {
                break;
            }
        }
        self.store
            .sync(LbaRange::new(to.start, from.order.grains()))?;
        Ok(())
    }

    /// The file is at its new place from this batch on.
    fn switch_range(&self, inode: &Arc<Inode>, old: Range, new: Range) -> Result<(), FsError> {
        let _change = super::lock(&inode.change);
        let mut txn = Txn::default();
        txn.edit(inode, |record| record.range = Some(new));
        let trims = self.trims_of(old.lbas());
        txn.batch.trims.extend(trims.ranges);
        self.commit(txn)?;
        if trims.more {
            self.trim_now(old.lbas())?;
        }
        self.alloc().buddy.release(old);
        Ok(())
    }

    /// Frees an inode with its data; `txn` may hold the change that takes its last name away. The caller holds its
    /// `content` and `change` exclusively and has marked it dead.
    pub(super) fn free_with_data(&self, inode: &Arc<Inode>, mut txn: Txn) -> Result<(), FsError> {
        self.observe(|observer| observer.freed(inode.ino));
        let range = inode.state().record.range;
        if let Some(range) = range {
            let mut trims = self.trims_of(range.lbas());
            if trims.more {
                // More than a batch can trim: first without a name, then piece by piece, then gone. A crash in between
                // leaves an orphan.
                txn.edit(inode, |record| {
                    record.nlink = 0;
                    record.orphan = true;
                });
                self.commit(std::mem::take(&mut txn))?;
                self.trim_now(range.lbas())?;
                trims = self.trims_of(range.lbas());
            }
            txn.batch.trims.extend(trims.ranges);
        }
        self.trim_xattrs(inode.ino, &mut txn.batch);
        txn.free(inode);
        self.commit(txn)
    }
}
