//! fallocate: reserving grains, and giving them back in the middle of a file.

use std::sync::Arc;

use ftl::{AtomicBatch, GRAIN_BYTES, LbaRange};

use super::data::WriteOptions;
use super::range::{FILE_BYTES_MAX, PIECE_MAX};
use super::{Fs, Inode, Txn, lock};
use crate::error::FsError;
use crate::format::{InodeRecord, Range};
use crate::inode::InodeNo;
use crate::planted::Bug;
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
    /// Remove it: what is behind closes up, and the file gets shorter. Whole grains, and not up to the end.
    CollapseRange,
    /// Insert a hole of this length before the offset: the file gets longer. Whole grains, and not at the end.
    InsertRange,
}

impl FallocMode {
    /// The mode that the flags of `fallocate(2)` ask for.
    ///
    /// # Errors
    /// [`FsError::NotSupported`] for flags that contradict each other or that are not known, as in Linux 6.18.
    pub const fn from_flags(flags: i32) -> Result<Self, FsError> {
        const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
        const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE;
        const ZERO_KEEP: i32 = ZERO | KEEP;
        const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | KEEP;
        let keep_size = flags & KEEP != 0;
        Ok(match flags {
            0 | KEEP => Self::Allocate { keep_size },
            PUNCH => Self::PunchHole,
            ZERO | ZERO_KEEP => Self::ZeroRange { keep_size },
            libc::FALLOC_FL_COLLAPSE_RANGE => Self::CollapseRange,
            libc::FALLOC_FL_INSERT_RANGE => Self::InsertRange,
            _ => return Err(FsError::NotSupported),
        })
    }
}

impl<S: BlockStore> Fs<S> {
    /// Reserves, frees, zeroes, removes or inserts a byte range.
    ///
    /// # Errors
    /// As ext4 has them: [`FsError::Invalid`] for an empty range, for a collapse or insert that is not of whole grains,
    /// and for one that reaches the end; [`FsError::FileTooLarge`]; [`FsError::NoSpace`], also when there is no range
    /// to relocate to. [`FsError::Busy`] if the file would have to relocate but is held.
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
        let _content = inode.change_content();
        inode.live_file()?;
        inode.state().count_anew();
        let is_shared = self.is_shared(&inode);
        match mode {
            // What is mapped does not change its place.
            FallocMode::CollapseRange | FallocMode::InsertRange if is_shared => {
                return Err(FsError::Busy);
            }
            FallocMode::CollapseRange | FallocMode::InsertRange => {}
            _ => self.end_privileges(&inode, WriteOptions::default())?,
        }
        let _sharing = self.fit_sharing(&inode);
        let keeps_size = match mode {
            FallocMode::Allocate { keep_size } | FallocMode::ZeroRange { keep_size } => keep_size,
            _ => true,
        };
        if is_shared && !keeps_size && end > inode.state().size {
            self.ensure_range(&inode, end)?;
            self.clean_tail(&inode)?;
            self.share_more(&inode, end)?;
        }
        match mode {
            FallocMode::Allocate { keep_size } => self.reserve(&inode, offset, end, keep_size),
            FallocMode::PunchHole if is_shared => self.punch_shared(&inode, offset, end),
            FallocMode::PunchHole => self.punch(&inode, offset, end),
            FallocMode::ZeroRange { keep_size } => {
                self.zero(&inode, offset, end, keep_size)?;
                self.bring_back(&inode, offset, end)
            }
            FallocMode::CollapseRange => self.collapse(&inode, offset, end),
            FallocMode::InsertRange => self.insert(&inode, offset, len),
        }
    }

    /// A file whose pages are shared has no holes: what is punched becomes zeros and keeps its space.
    fn punch_shared(&self, inode: &Arc<Inode>, offset: u64, end: u64) -> Result<(), FsError> {
        let size = inode.state().size;
        let middle = end.min(size.next_multiple_of(GRAIN));
        if offset < middle {
            self.zero(inode, offset, middle, true)?;
            self.bring_back(inode, offset, middle)?;
        }
        if middle < end {
            self.punch(inode, offset.max(middle), end)?;
        }
        Ok(())
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
            reaches(record, end, keep_size);
            record.mtime = now;
            record.ctime = now;
        });
        self.commit(txn)?;
        if grows {
            inode.state().size = end;
            self.has_grown(inode);
        }
        inode.state().count_anew();
        Ok(())
    }

    /// Makes a byte range zeros, and maps all of it, in one batch.
    fn zero(
        &self,
        inode: &Arc<Inode>,
        offset: u64,
        end: u64,
        keep_size: bool,
    ) -> Result<(), FsError> {
        if end.div_ceil(GRAIN) - offset / GRAIN > PIECE_MAX {
            self.punch(inode, offset, end)?;
            return self.reserve(inode, offset, end, keep_size);
        }
        let range = self.ensure_range(inode, end)?;
        let size = inode.state().size;
        let grows = end > size && !keep_size;
        if grows {
            self.clean_tail(inode)?;
        }
        let mut txn = Txn::default();
        let parts = Parts::of(offset, end);
        for (from, to) in parts.edges() {
            if !self.patch_zeros(&mut txn.batch, range, from, to) {
                let lba = range.start.offset(from / GRAIN);
                txn.batch.zero(LbaRange::new(lba, 1));
            }
        }
        if let Some(whole) = parts.whole(range) {
            if self.store.next_mapped(whole).is_some() {
                txn.batch.trims = vec![whole];
            }
            txn.batch.zero(whole);
        }
        let now = self.now();
        let _change = lock(&inode.change);
        txn.edit(inode, |record| {
            reaches(record, end, keep_size);
            record.mtime = now;
            record.ctime = now;
        });
        self.commit(txn)?;
        {
            let mut state = inode.state();
            if grows {
                state.size = end;
            }
            state.count_anew();
        }
        if grows {
            self.has_grown(inode);
        }
        Ok(())
    }

    fn punch(&self, inode: &Arc<Inode>, offset: u64, end: u64) -> Result<(), FsError> {
        let range = inode.range()?;
        let end = end.min(range.bytes());
        if offset >= end {
            return Ok(());
        }
        let mut txn = Txn::default();
        let parts = Parts::of(offset, end);
        if !self.has_bug(Bug::PunchSkipsEdges) {
            for (from, to) in parts.edges() {
                self.patch_zeros(&mut txn.batch, range, from, to);
            }
        }
        let trims = parts.whole(range).map(|whole| self.trims_of(whole));
        let mut more = trims.as_ref().is_some_and(|trims| trims.more);
        let now = self.now();
        let _change = lock(&inode.change);
        txn.edit(inode, |record| {
            record.mtime = now;
            record.ctime = now;
        });
        let mut all = txn.clone();
        all.batch.trims = trims.map_or(Vec::new(), |trims| trims.ranges);
        match self.commit(all) {
            // More of it has to be kept for a snapshot than there is space for: piece by piece, then.
            Err(FsError::NoSpace) if parts.whole(range).is_some() => {
                more = true;
                self.commit(txn)?;
            }
            result => result?,
        }
        if let Some(whole) = parts.whole(range).filter(|_| more) {
            self.trim_now(whole)?;
        }
        inode.state().count_anew();
        Ok(())
    }
}

/// Notes that grains up to `end` are mapped. What the record says of the size counts: that the file is as long already the
/// media may not know yet, and what lies behind the end that they know would be taken for leftovers of a crash.
fn reaches(record: &mut InodeRecord, end: u64, keep_size: bool) {
    if keep_size {
        record.reserved |= end > record.size;
    } else {
        record.size = record.size.max(end);
    }
}

/// A byte range cut at the borders of grains; positions are bytes of the file.
#[derive(Clone, Copy, Debug)]
struct Parts {
    offset: u64,
    end: u64,
    /// First byte of the first whole grain, and first byte behind the last; equal when there is none.
    whole: (u64, u64),
}

impl Parts {
    fn of(offset: u64, end: u64) -> Self {
        let (first, last) = (offset.next_multiple_of(GRAIN), end - end % GRAIN);
        Self {
            offset,
            end,
            whole: if first < last {
                (first, last)
            } else {
                (end, end)
            },
        }
    }

    /// What covers part of a grain; each piece lies in one grain.
    fn edges(self) -> impl Iterator<Item = (u64, u64)> {
        let (first, last) = self.whole;
        // Without a whole grain between them the bytes before and behind a border still lie in two grains.
        let border = self.offset.next_multiple_of(GRAIN).min(first);
        [(self.offset, border), (border, first), (last, self.end)]
            .into_iter()
            .filter(|(from, to)| from < to)
    }

    /// The whole grains, if there are any.
    fn whole(self, range: Range) -> Option<LbaRange> {
        let (first, last) = self.whole;
        let grains = (last - first) / GRAIN;
        (grains > 0).then(|| LbaRange::new(range.start.offset(first / GRAIN), grains))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ftl::Lba;

    use crate::buddy::Order;

    /// Edges and whole grains partition the range, and no edge crosses a grain.
    #[test]
    fn parts_partition_the_range() {
        let range = Range {
            start: Lba(0),
            order: Order(8),
        };
        for offset in [0, 1, 4095, 4096, 5000, 8191, 8192] {
            for len in [1, 2, 100, 4095, 4096, 4097, 8192, 9000, 12_288, 20_000] {
                let parts = Parts::of(offset, offset + len);
                let mut pieces: Vec<_> = parts.edges().collect();
                let in_one = |(from, to): &(u64, u64)| from / GRAIN == (to - 1) / GRAIN;
                assert!(pieces.iter().all(in_one), "{offset} + {len}");
                let whole = parts.whole(range);
                pieces.extend(whole.map(|w| (w.start.0 * GRAIN, w.end().0 * GRAIN)));
                pieces.sort_unstable();
                let mut at = offset;
                for (from, to) in pieces {
                    assert_eq!(from, at, "{offset} + {len}");
                    at = to;
                }
                assert_eq!(at, offset + len);
            }
        }
    }

    /// Every combination of flags: the ones ext4 knows are told apart, every other one is refused as it refuses it.
    #[test]
    fn flags_as_ext4_has_them() {
        let mut known = Vec::new();
        for flags in 0..=0xff {
            match FallocMode::from_flags(flags) {
                Ok(mode) => known.push((flags, mode)),
                Err(error) => assert_eq!(error, FsError::NotSupported),
            }
        }
        let allocate = |keep_size| FallocMode::Allocate { keep_size };
        let zero = |keep_size| FallocMode::ZeroRange { keep_size };
        assert_eq!(
            known,
            [
                (0x00, allocate(false)),
                (0x01, allocate(true)),
                (0x03, FallocMode::PunchHole),
                (0x08, FallocMode::CollapseRange),
                (0x10, zero(false)),
                (0x11, zero(true)),
                (0x20, FallocMode::InsertRange),
            ]
        );
    }
}
