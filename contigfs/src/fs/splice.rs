//! Removing grains from the middle of a file, and inserting some: a relocation, since the rest keeps its data.

use std::sync::Arc;

use ftl::{GRAIN_BYTES, LbaRange};

use super::data::WriteOptions;
use super::range::FILE_BYTES_MAX;
use super::{Fs, Inode};
use crate::buddy::Order;
use crate::error::FsError;
use crate::format::{Relocation, Splice};
use crate::store::BlockStore;

const GRAIN: u64 = GRAIN_BYTES as u64;

impl<S: BlockStore> Fs<S> {
    /// Removes the bytes `offset..end`. The caller holds `content` exclusively.
    pub(super) fn collapse(
        &self,
        inode: &Arc<Inode>,
        offset: u64,
        end: u64,
    ) -> Result<(), FsError> {
        let (range, size) = inode.state().place()?;
        let whole = offset.is_multiple_of(GRAIN) && end.is_multiple_of(GRAIN);
        if !whole || end >= size {
            return Err(FsError::Invalid);
        }
        let _shrinks = self.shrinks(inode, size - (end - offset));
        let splice = Splice::Collapse {
            at: offset / GRAIN,
            count: (end - offset) / GRAIN,
        };
        self.splice(inode, splice, range.order)
    }

    /// Inserts a hole of `len` bytes at `offset`. The caller holds `content` exclusively.
    pub(super) fn insert(&self, inode: &Arc<Inode>, offset: u64, len: u64) -> Result<(), FsError> {
        let (range, size) = inode.state().place()?;
        if !offset.is_multiple_of(GRAIN) || !len.is_multiple_of(GRAIN) || offset >= size {
            return Err(FsError::Invalid);
        }
        let size_after = size.checked_add(len).filter(|&n| n <= FILE_BYTES_MAX);
        let grains_after = size_after.ok_or(FsError::FileTooLarge)?.div_ceil(GRAIN);
        let (at, count) = (offset / GRAIN, len / GRAIN);
        let enough = Order::for_grains(grains_after).ok_or(FsError::FileTooLarge)?;
        let mut order = enough.max(range.order);
        // What is reserved behind the end moves as well, and must have room.
        let room = (order.grains() - count).min(range.order.grains());
        let behind = LbaRange::new(range.start.offset(room), range.order.grains() - room);
        if self.store.next_mapped(behind).is_some() {
            order = Order::new(order.0 + 1).ok_or(FsError::FileTooLarge)?;
        }
        self.splice(inode, Splice::Insert { at, count }, order)?;
        self.has_grown(inode);
        Ok(())
    }

    fn splice(&self, inode: &Arc<Inode>, splice: Splice, order: Order) -> Result<(), FsError> {
        let (range, size) = {
            let state = inode.state();
            if state.holds > 0 {
                return Err(FsError::Busy);
            }
            state.place()?
        };
        self.end_privileges(inode, WriteOptions::default())?;
        // Nobody writes past the file system from here on.
        let _still = self.moves(inode);
        // Else a crash could leave what was there before the last writes, at the places of now.
        self.store
            .sync(LbaRange::new(range.start, size.div_ceil(GRAIN).max(1)))?;
        let relocation = Relocation {
            to: self.allocate_range(order)?,
            splice,
        };
        let now = self.now();
        self.relocate(inode, relocation, |record| {
            record.size = size;
            record.mtime = now;
            record.ctime = now;
        })
    }
}
