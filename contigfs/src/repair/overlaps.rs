//! Files that claim the same place.
//!
//! Ranges are blocks of the buddy allocator, so one of two that overlap contains the other. Who changed its record last
//! keeps the place: a record that has come back from the past claims what somebody else was given since. The other one
//! gets a range of its own and in it a clone of all that it claimed, which writes no data. What it holds may be somebody
//! else's now, so it is root's, and only root may read it, until somebody has looked; a link becomes a file for that.

use ftl::{AtomicBatch, Lba, LbaRange};

use super::{Done, Surgeon, put_record};
use crate::buddy::{Buddy, Order};
use crate::check::Problem;
use crate::error::FsError;
use crate::format::{GRAIN, InodeRecord, Range};
use crate::inode::{FileKind, InodeNo};
use crate::store::{BlockStore, StoreError};
use crate::strays;

/// Ranges that one batch clones.
const CLONES_MAX: usize = 16;
/// Room that new files have.
const ROOM_ORDER: Order = Order(24);
/// Free ranges that are passed over because something lies there, before the store counts as full.
const TRIES_MAX: usize = 1000;

impl<S: BlockStore> Surgeon<'_, S> {
    /// Ends one overlap; the next pass sees what is left of the others.
    pub(super) fn overlaps(&self) -> Result<Done, FsError> {
        let mut done = Done::default();
        if !self.is_full() {
            return Ok(done);
        }
        for problem in self.problems() {
            let Problem::Overlap { ino, other } = problem else {
                continue;
            };
            let Some(loser) = self.who_leaves(ino, other) else {
                continue;
            };
            done.note(problem, self.give_own_range(loser))?;
            break;
        }
        Ok(done)
    }

    /// Who of two does not keep its place. The root directory always lies where it lies, and so do attributes; who is on
    /// the way to another range stays, because part of it is there.
    fn who_leaves(&self, ino: InodeNo, other: InodeNo) -> Option<InodeNo> {
        let can_leave = |ino: &InodeNo| {
            *ino != InodeNo::ROOT
                && *ino != InodeNo::TABLE
                && self
                    .record(*ino)
                    .is_ok_and(|record| record.relocation.is_none())
        };
        let changed = |ino: &InodeNo| {
            let ctime = self.record(*ino).map(|record| record.ctime);
            ctime
                .map(|time| (time.secs, time.nanos))
                .unwrap_or_default()
        };
        // Of two that say the same the lower number stays.
        let mut both = [ino.min(other), ino.max(other)];
        both.sort_by_key(|ino| std::cmp::Reverse(changed(ino)));
        both.into_iter().rev().find(can_leave)
    }

    fn give_own_range(&self, ino: InodeNo) -> Result<(), FsError> {
        let mut record = self.record(ino)?;
        let from = record.range.ok_or(FsError::Invalid)?;
        let used = self.grains_used(from.lbas());
        let size = record.size.div_ceil(GRAIN);
        let needed = Order::for_grains(used.max(size)).ok_or(FsError::NoSpace)?;
        // Room to grow as it had, but a range that says it is huge need not be that again.
        let order = from.order.min(ROOM_ORDER).max(needed);
        let to = self.free_range(order)?;
        self.clone_all(from.lbas(), to)
            .inspect_err(|_| self.take_back(to))?;
        record.range = Some(to);
        (record.uid, record.gid, record.ctime) = (0, 0, self.now);
        record.perm = match record.kind {
            FileKind::Directory => 0o700,
            _ => 0o600,
        };
        if record.kind == FileKind::Symlink {
            // Nothing keeps anybody from reading a link.
            record.kind = FileKind::File;
        }
        let mut batch = AtomicBatch::new();
        put_record(ino, &record, &mut batch);
        self.commit(batch)
    }

    /// A range that no file has and in which nothing lies.
    pub(super) fn free_range(&self, order: Order) -> Result<Range, FsError> {
        let mut buddy = self.free_space();
        for _ in 0..TRIES_MAX {
            let range = buddy.allocate(order).ok_or(FsError::NoSpace)?;
            if self.store.next_mapped(range.lbas()).is_none() {
                return Ok(range);
            }
        }
        Err(FsError::NoSpace)
    }

    /// What no file claims.
    pub(super) fn free_space(&self) -> Buddy {
        let claims = |record: &InodeRecord| {
            let target = record.relocation.map(|on_its_way| on_its_way.to);
            record.range.into_iter().chain(target)
        };
        strays::free_space(self.survey.inodes.values().flat_map(claims))
    }

    /// Gives all that is mapped in a range a second name.
    fn clone_all(&self, from: LbaRange, to: Range) -> Result<(), StoreError> {
        let mut next = from.start;
        let end = from.start.offset(from.count.min(to.order.grains()));
        while next < end {
            let mut batch = AtomicBatch::new();
            let mut left = AtomicBatch::MOVED_MAX;
            while next < end && left > 0 && batch.clones.len() < CLONES_MAX {
                let Some(run) = self.mapped_run(LbaRange::new(next, end.0 - next.0), left) else {
                    next = end;
                    break;
                };
                let target = Lba(to.start.0 + (run.start.0 - from.start.0));
                batch.clone_range(run.start, target, run.count);
                left -= run.count;
                next = run.end();
            }
            if !batch.clones.is_empty() {
                self.store.commit(batch)?;
            }
        }
        Ok(())
    }

    /// The first grains of a range that are mapped without a gap, at most so many.
    fn mapped_run(&self, range: LbaRange, most: u64) -> Option<LbaRange> {
        let first = self.store.next_mapped(range)?;
        let room = (range.end().0 - first.0).min(most);
        let mut count = 1;
        while count < room && self.is_mapped(first.offset(count)) {
            count += 1;
        }
        Some(LbaRange::new(first, count))
    }

    /// What was cloned in vain goes.
    fn take_back(&self, range: Range) {
        let all = range.lbas();
        while let Some(run) = self.mapped_run(all, AtomicBatch::MOVED_MAX) {
            let mut batch = AtomicBatch::new();
            batch.trim(run);
            if let Err(error) = self.store.commit(batch) {
                tracing::warn!(%error, "clones stay until the next mount");
                return;
            }
        }
    }
}
