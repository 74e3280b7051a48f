//! Changing the size of a file, and keeping the bytes behind its end out of sight.
//!
//! A write that makes a file longer maps grains before the new size is durable; after a crash they lie behind the end
//! with data that was never acknowledged. So the first operation of a mount that makes a file longer looks behind the
//! end and clears what it finds (`clean_tail`), before anything there can become visible.

use std::sync::Arc;

use ftl::{AtomicBatch, GRAIN_BYTES, LbaRange};

use super::data::place;
use super::{Fs, Inode, Tail, Txn, lock};
use crate::error::FsError;
use crate::format::Range;
use crate::planted::Bug;
use crate::store::{BlockStore, ByteAddr};
use crate::time::Timestamp;

const GRAIN: u64 = GRAIN_BYTES as u64;
/// Runs of grains that one batch clears behind the end.
const RUNS_MAX: usize = 16;

impl<S: BlockStore> Fs<S> {
    /// Sets the size, and with `also`, called while `change` is held, other things in the same batch.
    pub(super) fn truncate(
        &self,
        inode: &Arc<Inode>,
        size: u64,
        now: Timestamp,
        also: impl FnOnce(&mut Txn) -> Result<(), FsError>,
    ) -> Result<(), FsError> {
        let _content = inode.change_content();
        inode.live_file()?;
        let old = inode.state().size;
        // Also of what fails below when it would get longer, nothing behind the end stays shared.
        let _sharing = self.fit_sharing(inode);
        let mut txn = Txn::default();
        let mut trims = Vec::new();
        let mut more = None;
        let mut smaller = None;
        let mut _shrinks = None;
        let range = if size > old {
            let range = self.ensure_range(inode, size)?;
            self.clean_tail(inode)?;
            self.share_more(inode, size)?;
            range
        } else {
            inode.range()?
        };
        let _change = lock(&inode.change);
        if size < old {
            _shrinks = Some(self.shrinks(inode, size));
            let kept = size.div_ceil(GRAIN);
            let behind = LbaRange::new(range.start.offset(kept), range.order.grains() - kept);
            let found = self.trims_of(behind);
            more = found.more.then_some(behind);
            trims = found.ranges;
            if !self.has_bug(Bug::TruncationKeepsBytes) {
                self.patch_zeros(&mut txn.batch, range, size, kept * GRAIN);
            }
            if more.is_none() {
                smaller = self.smaller_range(inode, size);
            }
        }
        txn.edit(inode, |record| {
            record.size = size;
            record.reserved &= size >= old;
            record.mtime = now;
            record.ctime = now;
        });
        also(&mut txn)?;
        let mut whole = txn.clone();
        whole.batch.trims.extend(trims);
        whole.edit(inode, |record| record.range = smaller.or(record.range));
        match self.commit(whole) {
            // More of what is behind has to be kept for a snapshot than there is space for: piece by piece, then.
            Err(FsError::NoSpace) if size < old => {
                let kept = size.div_ceil(GRAIN);
                let grains = range.order.grains() - kept;
                more = Some(LbaRange::new(range.start.offset(kept), grains));
                smaller = None;
                self.commit(txn)?;
            }
            result => result?,
        }
        // Before somebody else can get what is cut off. If the file stays as long, it stays shared.
        self.share_less(inode, size);
        {
            let mut state = inode.state();
            state.size = size;
            state.count_anew();
            if size < old {
                state.cuts += 1;
                state.tail = if more.is_some() {
                    Tail::Unknown
                } else {
                    Tail::Zeros
                };
            }
        }
        if size > old {
            self.has_grown(inode);
        }
        if let Some(smaller) = smaller {
            let (kept, all) = (smaller.order.grains(), range.order.grains());
            let rest = LbaRange::new(range.start.offset(kept), all - kept);
            self.charge_nobody(inode, rest);
            self.alloc().buddy.cut(range, smaller.order);
        }
        if let Some(behind) = more {
            match self.trim_now(behind) {
                Ok(()) => inode.state().tail = Tail::Zeros,
                Err(error) => {
                    tracing::warn!(%error, ino = %inode.ino, "what was cut off is not freed yet");
                }
            }
            // Who has asked for attributes meanwhile has counted part of it.
            inode.state().count_anew();
        }
        Ok(())
    }

    /// Adds zeros for the bytes `from..to`, which lie in one grain, unless that is not mapped and so reads as zeros;
    /// true if it is mapped.
    pub(super) fn patch_zeros(
        &self,
        batch: &mut AtomicBatch,
        range: Range,
        from: u64,
        to: u64,
    ) -> bool {
        let lba = range.start.offset(from / GRAIN);
        let mapped = from < to && self.store.next_mapped(LbaRange::new(lba, 1)).is_some();
        if mapped {
            batch.patch(lba, (from % GRAIN) as u16, vec![0; (to - from) as usize]);
        }
        mapped
    }

    /// Makes the bytes behind the end zeros, if it is not known that they are. The caller holds `content` exclusively.
    pub(super) fn clean_tail(&self, inode: &Arc<Inode>) -> Result<(), FsError> {
        // A mapping can store behind the end without telling anybody.
        let is_known = inode.state().tail == Tail::Zeros && !self.is_shared(inode);
        if is_known || self.has_bug(Bug::TailUncleaned) {
            return Ok(());
        }
        let (range, size) = place(inode)?;
        let reserved = inode.state().record.reserved;
        let kept = size.div_ceil(GRAIN);
        self.clean_last_grain(range, size)?;
        let mut next = range.start.offset(kept);
        let end = range.lbas().end();
        while next < end {
            let mut runs: Vec<LbaRange> = Vec::new();
            while runs.len() < RUNS_MAX && next < end {
                let Some(lba) = self.store.next_mapped(LbaRange::new(next, end.0 - next.0)) else {
                    next = end;
                    break;
                };
                next = lba.offset(1);
                let mut grain = [0; GRAIN_BYTES];
                // A grain that can not be read goes too: nobody was promised anything behind the end.
                let zeros = self.store.read(ByteAddr::new(lba, 0), &mut grain).is_ok()
                    && grain == [0; GRAIN_BYTES];
                match runs.last_mut() {
                    _ if zeros => {}
                    Some(run) if run.end() == lba => run.count += 1,
                    _ => runs.push(LbaRange::new(lba, 1)),
                }
            }
            if runs.is_empty() {
                continue;
            }
            // What was reserved stays so, in the same batch: nobody else gets the space, and it is no more than before.
            self.store.commit(AtomicBatch {
                zeros: if reserved { runs.clone() } else { Vec::new() },
                trims: runs,
                ..AtomicBatch::default()
            })?;
        }
        inode.state().tail = Tail::Zeros;
        Ok(())
    }

    fn clean_last_grain(&self, range: Range, size: u64) -> Result<(), FsError> {
        let behind = (size.next_multiple_of(GRAIN) - size) as usize;
        let mut tail = vec![0; behind];
        self.store
            .read(ByteAddr::new(range.start, size), &mut tail)?;
        if tail.iter().any(|&byte| byte != 0) {
            let mut batch = AtomicBatch::new();
            self.patch_zeros(&mut batch, range, size, size.next_multiple_of(GRAIN));
            self.store.commit(batch)?;
        }
        Ok(())
    }
}
