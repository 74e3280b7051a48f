//! Ranges of the LBA space: finding, enlarging, cutting and trimming them.

use std::sync::Arc;

use ftl::{AtomicBatch, GRAIN_BYTES, LbaRange};

use super::{Fs, Inode, Txn};
use crate::buddy::Order;
use crate::error::FsError;
use crate::format::{Range, Relocation, Splice};
use crate::planted::Bug;
use crate::store::{BlockStore, StoreError};

/// Order of the range of a new file unless the mount says otherwise: 64 GiB of address space.
pub(super) const FILE_ORDER: Order = Order(24);
/// Largest file.
pub(super) const FILE_BYTES_MAX: u64 = Order::FILE_MAX.grains() * GRAIN_BYTES as u64;
/// Most grains of one trim or reservation.
pub(super) const PIECE_MAX: u64 = 1 << 31;
/// Most ranges that an operation adds to a batch for one file.
const PIECES_MAX: usize = 24;
/// Grains from which on mapped ones that are to be trimmed are counted, and that many are left to the next batch: a store takes a
/// batch in one go, grain by grain, and everybody waits meanwhile.
const TRIMMED_MAX: u64 = 1 << 18;
/// Grains that are trimmed without taking space, whatever is kept of them for snapshots.
const KEPT_MAX: u64 = 32;
/// Most grains of one trim where they are counted.
const COUNTED_MAX: u64 = 1 << 16;

/// Trims that free a range.
#[derive(Debug)]
pub(super) struct Trims {
    pub(super) ranges: Vec<LbaRange>,
    /// There is more than fits a batch, or than should be in one.
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
        let is_long = range.count > TRIMMED_MAX;
        let piece_max = if is_long { COUNTED_MAX } else { PIECE_MAX };
        let mut from = range.start;
        let mut grains = 0;
        while from < range.end() {
            let Some(lba) = self
                .store
                .next_mapped(LbaRange::new(from, range.end().0 - from.0))
            else {
                break;
            };
            if trims.ranges.len() == PIECES_MAX || grains >= TRIMMED_MAX {
                trims.more = true;
                break;
            }
            let piece = LbaRange::new(lba, piece_max.min(range.end().0 - lba.0));
            from = piece.end();
            if is_long {
                grains += self.store.mapped_count(piece);
            }
            // Over what is not mapped, too.
            match trims.ranges.last_mut() {
                Some(last) if from.0 - last.start.0 <= PIECE_MAX => {
                    last.count = from.0 - last.start.0;
                }
                _ => trims.ranges.push(piece),
            }
        }
        trims
    }

    /// Trims a range at once, in as many batches as it takes.
    pub(super) fn trim_now(&self, range: LbaRange) -> Result<(), FsError> {
        let mut most = u64::MAX;
        loop {
            let trims = match most < TRIMMED_MAX {
                true => self.trims_of_first(range, most),
                false => self.trims_of(range),
            };
            if trims.ranges.is_empty() {
                return Ok(());
            }
            let trimmed = self.store.commit(AtomicBatch {
                trims: trims.ranges,
                ..AtomicBatch::default()
            });
            match trimmed {
                // What a snapshot shares of it lies in many pieces.
                Err(StoreError::NoSpace) if most > KEPT_MAX => {
                    most = KEPT_MAX;
                    continue;
                }
                trimmed => trimmed?,
            }
            if !trims.more {
                return Ok(());
            }
            most = most.saturating_mul(2);
        }
    }

    /// One trim for the first `most` mapped grains of a range.
    fn trims_of_first(&self, range: LbaRange, most: u64) -> Trims {
        let mut found: Option<LbaRange> = None;
        let mut rest = range;
        let mut more = true;
        for _ in 0..most {
            let Some(lba) = self.store.next_mapped(rest) else {
                more = false;
                break;
            };
            let start = found.map_or(lba, |found| found.start);
            found = Some(LbaRange::new(start, lba.0 + 1 - start.0));
            rest = LbaRange::new(lba.offset(1), range.end().0 - lba.0 - 1);
        }
        let ranges = found.into_iter().collect();
        Trims { ranges, more }
    }

    /// Makes sure that the range of a file reaches `bytes`, relocating the file if it must. The caller holds `content`
    /// exclusively.
    pub(super) fn ensure_range(&self, inode: &Arc<Inode>, bytes: u64) -> Result<Range, FsError> {
        let range = inode.range()?;
        if bytes <= range.bytes() {
            return Ok(range);
        }
        if bytes > FILE_BYTES_MAX {
            return Err(FsError::FileTooLarge);
        }
        let order =
            Order::for_grains(bytes.div_ceil(GRAIN_BYTES as u64)).ok_or(FsError::FileTooLarge)?;
        if let Some(grown) = self.grow_in_place(inode, range, order)? {
            return Ok(grown);
        }
        if inode.state().holds > 0 {
            return Err(FsError::Busy);
        }
        let relocation = Relocation {
            to: self.allocate_range(order)?,
            splice: Splice::None,
        };
        self.relocate(inode, relocation, |_| {})?;
        Ok(relocation.to)
    }

    /// Enlarges the range of a file where it is, if nobody is in the way.
    fn grow_in_place(
        &self,
        inode: &Arc<Inode>,
        range: Range,
        order: Order,
    ) -> Result<Option<Range>, FsError> {
        let Some(grown) = self.alloc().buddy.extend(range, order) else {
            return Ok(None);
        };
        let behind = LbaRange::new(
            range.lbas().end(),
            grown.order.grains() - range.order.grains(),
        );
        if self.degraded && self.store.next_mapped(behind).is_some() {
            self.alloc().buddy.cut(grown, range.order);
            return Ok(None);
        }
        let _change = super::lock(&inode.change);
        self.charge_range(inode, behind);
        let mut txn = Txn::default();
        txn.edit(inode, |record| record.range = Some(grown));
        match self.commit(txn) {
            Ok(()) => Ok(Some(grown)),
            Err(error) => {
                self.charge_nobody(inode, behind);
                self.alloc().buddy.cut(grown, range.order);
                Err(error)
            }
        }
    }

    /// The range that is enough for `size` bytes of a file, if less than what it has.
    pub(super) fn smaller_range(&self, inode: &Inode, size: u64) -> Option<Range> {
        let state = inode.state();
        let range = state.record.range?;
        let order = Order::for_grains(size.div_ceil(GRAIN_BYTES as u64))?.max(self.file_order);
        (order < range.order && state.holds == 0).then_some(Range { order, ..range })
    }

    /// Frees an inode with its data; `txn` may hold the change that takes its last name away. The caller holds its
    /// `content` and `change` exclusively and has marked it dead.
    ///
    /// More than a batch can trim goes first without a name, then piece by piece, then the rest: a crash in between leaves an
    /// orphan, and so does an error.
    pub(super) fn free_with_data(&self, inode: &Arc<Inode>, mut txn: Txn) -> Result<(), FsError> {
        let record = inode.state().record;
        if record.relocation.is_some() {
            return Err(StoreError::Failed.into());
        }
        self.observe(|observer| observer.freed(inode.ino));
        let range = record.range.filter(|_| !self.has_bug(Bug::DataUnfreed));
        let Some(data) = range.map(Range::lbas) else {
            return self.free_at_once(inode, txn, Vec::new());
        };
        let trims = self.trims_of(data);
        if !trims.more {
            match self.free_at_once(inode, txn.clone(), trims.ranges) {
                // What has to be kept of it for a snapshot is more than there is space for.
                Err(FsError::NoSpace) if self.store.next_mapped(data).is_some() => {}
                result => return result,
            }
        }
        let unhurried = txn.unhurried;
        txn.edit(inode, |record| {
            record.nlink = 0;
            record.orphan = true;
        });
        self.commit(txn)?;
        let freed = self.trim_now(data).and_then(|()| {
            let rest = match unhurried {
                true => Txn::unhurried(),
                false => Txn::default(),
            };
            self.free_at_once(inode, rest, self.trims_of(data).ranges)
        });
        if let Err(error) = freed {
            // Without its name it is, so whoever took that is not refused.
            tracing::warn!(%error, ino = %inode.ino, "a file without names is not freed yet");
            inode.state().dead = false;
        }
        Ok(())
    }

    fn free_at_once(
        &self,
        inode: &Arc<Inode>,
        mut txn: Txn,
        trims: Vec<LbaRange>,
    ) -> Result<(), FsError> {
        txn.batch.trims.extend(trims);
        if !self.has_bug(Bug::AttributesUnfreed) {
            self.trim_xattrs(inode.ino, &mut txn.batch);
        }
        txn.free(inode);
        self.commit(txn)
    }
}
