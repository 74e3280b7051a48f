//! Giving a file another range without writing its data; the crash argument is in `docs/layout.md`, Relocation.

use std::sync::Arc;

use ftl::{AtomicBatch, Lba, LbaRange, Remap};

use super::cache::Journey;
use super::{Fs, Inode, Txn, lock};
use crate::error::FsError;
use crate::format::{Features, InodeRecord, Range, Relocation, Splice};
use crate::planted::Bug;
use crate::store::{BlockStore, StoreError};

/// Most ranges that one batch remaps.
const REMAPS_MAX: usize = 24;
/// Grains remapped for the sake of one mapped one. Holes are cheap, but they count against what a batch may move; so
/// grains that lie further apart than this get ranges of their own.
const WINDOW: u64 = AtomicBatch::MOVED_MAX / REMAPS_MAX as u64;
/// Trims that go with the last batch, beside the remaps.
const TRIMS_MAX: usize = AtomicBatch::RANGES_MAX - REMAPS_MAX;

/// What one batch remaps.
#[derive(Debug, Default)]
struct Leg {
    remaps: Vec<Remap>,
    /// Nothing is left to remap afterwards.
    last: bool,
}

impl<S: BlockStore> Fs<S> {
    /// Gives a file another range, which the caller has allocated and gets back when this fails. `change` alters the
    /// record with the first batch. The caller holds `content` exclusively.
    pub(super) fn relocate(
        &self,
        inode: &Arc<Inode>,
        relocation: Relocation,
        change: impl FnOnce(&mut InodeRecord),
    ) -> Result<(), FsError> {
        if self.is_shared(inode) {
            self.alloc().buddy.release(relocation.to);
            return Err(FsError::Busy);
        }
        let _moves = self.moves(inode);
        if !self.has_bug(Bug::ProjectLeftBehind) {
            self.charge_range(inode, relocation.to.lbas());
        }
        let result = self.travel(inode, relocation, Some(change));
        if result.is_err() && inode.state().record.relocation.is_none() {
            self.charge_nobody(inode, relocation.to.lbas());
            self.alloc().buddy.release(relocation.to);
        }
        result
    }

    /// Carries on a relocation that was cut off. The caller holds `content` exclusively.
    pub(super) fn carry_on(&self, inode: &Arc<Inode>) -> Result<(), FsError> {
        let Some(relocation) = inode.state().record.relocation else {
            return Ok(());
        };
        let result = self.travel(inode, relocation, None::<fn(&mut InodeRecord)>);
        if result.is_err() && inode.state().record.relocation.is_none() {
            // It is where it was.
            self.charge_nobody(inode, relocation.to.lbas());
            self.alloc().buddy.release(relocation.to);
            return Ok(());
        }
        result
    }

    fn travel(
        &self,
        inode: &Arc<Inode>,
        relocation: Relocation,
        change: Option<impl FnOnce(&mut InodeRecord)>,
    ) -> Result<(), FsError> {
        let _journey = super::shared(&self.journeys);
        let number = {
            let mut state = inode.state();
            let (Journey::Settled(number) | Journey::Relocating(number)) = state.journey;
            state.journey = Journey::Relocating(number);
            number
        };
        let result = self.legs(inode, relocation, change);
        // A volume that has failed does not take it back either: the next mount carries on.
        let is_stuck = result
            .as_ref()
            .is_err_and(|error| *error != FsError::Store(StoreError::Failed));
        if is_stuck
            && inode.state().record.relocation.is_some()
            && let Err(error) = self.go_back(inode, relocation)
        {
            tracing::warn!(%error, ino = %inode.ino, "a file stays half relocated");
        }
        // Whether it has arrived or not: who waits for the end of the journey looks at the record next.
        inode.state().journey = Journey::Settled(number + 1);
        result
    }

    fn legs(
        &self,
        inode: &Arc<Inode>,
        relocation: Relocation,
        mut change: Option<impl FnOnce(&mut InodeRecord)>,
    ) -> Result<(), FsError> {
        let (old, size) = {
            let state = inode.state();
            (state.record.range.ok_or(FsError::Invalid)?, state.size)
        };
        let new_size = relocation.size_after(size).ok_or(FsError::Invalid)?;
        let ways: Vec<Remap> = relocation
            .stretches(old)
            .map(|stretch| Remap {
                from: old.start.offset(stretch.from),
                to: relocation.target(stretch.to),
                count: stretch.count,
            })
            .collect();
        let mut next = old.start;
        loop {
            let leg = self.next_leg(&ways, &mut next);
            if !leg.last {
                self.use_feature(Features::RELOCATIONS)?;
            }
            let _change = lock(&inode.change);
            let mut txn = Txn::default();
            txn.batch.remaps = leg.remaps;
            let first = change.take();
            let begins = first.is_some();
            if let Some(change) = first {
                txn.edit(inode, change);
            }
            if leg.last {
                txn.batch.trims = self.trims_of_collapsed(old, relocation);
                txn.edit(inode, |record| {
                    record.size = relocation.size_after(record.size).unwrap_or(new_size);
                    record.range = Some(relocation.to);
                    record.relocation = None;
                });
            } else if begins {
                txn.edit(inode, |record| record.relocation = Some(relocation));
            }
            self.commit(txn)?;
            if leg.last {
                // Before `change` is free: who writes the record next goes by this size.
                let mut state = inode.state();
                state.size = new_size;
                state.count_anew();
                break;
            }
        }
        // What is removed may be more than the last batch trims; nobody owns it any more.
        // The file has arrived either way: should this fail, the next mount trims it.
        match self.trim_now(old.lbas()) {
            Ok(()) => {
                self.charge_nobody(inode, old.lbas());
                self.alloc().buddy.release(old);
            }
            Err(error) => tracing::warn!(%error, ino = %inode.ino, "leftovers at the old place"),
        }
        Ok(())
    }

    /// Takes a file that can not arrive back to where it was. Part of what says where it lies may be damaged. Or there is a
    /// snapshot: what is moved has to be kept for it first, which takes space; what has been moved is kept, so this takes none.
    fn go_back(&self, inode: &Arc<Inode>, relocation: Relocation) -> Result<(), FsError> {
        let old = inode.state().record.range.ok_or(FsError::Invalid)?;
        let ways: Vec<Remap> = relocation
            .stretches(old)
            .map(|stretch| {
                let from = LbaRange::new(old.start.offset(stretch.from), stretch.count);
                // Grains go in ascending order: up to the first that is still there, all have gone.
                let left = self.store.next_mapped(from);
                Remap {
                    from: relocation.target(stretch.to),
                    to: from.start,
                    count: left.map_or(from.count, |lba| lba.0 - from.start.0),
                }
            })
            .collect();
        let mut next = relocation.to.start;
        loop {
            let leg = self.next_leg(&ways, &mut next);
            let _change = lock(&inode.change);
            let mut txn = Txn::default();
            txn.batch.remaps = leg.remaps;
            if leg.last {
                txn.edit(inode, |record| record.relocation = None);
            }
            self.commit(txn)?;
            if leg.last {
                return Ok(());
            }
        }
    }

    /// What to remap next of `ways`, which are ascending; `next` is the first grain of their sources that was not looked at.
    fn next_leg(&self, ways: &[Remap], next: &mut Lba) -> Leg {
        let mut leg = Leg::default();
        let mut room = AtomicBatch::MOVED_MAX;
        for way in ways {
            let end = way.source().end();
            *next = (*next).max(way.from);
            while *next < end {
                let rest = LbaRange::new(*next, end.0 - next.0);
                let Some(from) = self.store.next_mapped(rest) else {
                    *next = end;
                    break;
                };
                let to = way.renamed(from);
                let count = WINDOW.min(end.0 - from.0).min(room);
                if room == 0 {
                    return leg;
                }
                let full = leg.remaps.len() == REMAPS_MAX;
                match leg.remaps.last_mut() {
                    Some(last) if last.source().end() == from && last.target().end() == to => {
                        last.count += count;
                    }
                    _ if full => return leg,
                    _ => leg.remaps.push(Remap { from, to, count }),
                }
                room -= count;
                *next = from.offset(count);
            }
        }
        leg.last = true;
        leg
    }

    /// Trims for what a collapse removes, as far as they go with the last batch.
    fn trims_of_collapsed(&self, old: Range, relocation: Relocation) -> Vec<LbaRange> {
        let Splice::Collapse { at, count } = relocation.splice else {
            return Vec::new();
        };
        let mut trims = self
            .trims_of(LbaRange::new(old.start.offset(at), count))
            .ranges;
        trims.truncate(TRIMS_MAX);
        trims
    }
}
