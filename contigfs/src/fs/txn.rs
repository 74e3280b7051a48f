//! Transactions: what an operation changes, gathered, committed as one batch, and only then applied to memory.

use std::sync::{Arc, MutexGuard};

use ftl::{AtomicBatch, GRAIN_BYTES, Lba, LbaRange};

use super::xattr::XattrCache;
use super::{Fs, Inode, lock};
use crate::dir::{DirIndex, DirPlan};
use crate::error::FsError;
use crate::format::{
    COLD_BYTES, COLD_PER_GRAIN, COLD_RANGE, Features, HOT_BYTES, HOT_PER_GRAIN, HOT_RANGE,
    InodeRecord, TableRecord,
};
use crate::inode::InodeNo;
use crate::planted::Bug;
use crate::store::{BlockStore, StoreError};
use crate::table::FreePlan;
use crate::xattr::XattrSet;

/// The changes of one operation.
#[derive(Clone, Debug, Default)]
pub(super) struct Txn {
    pub(super) batch: AtomicBatch,
    edits: Vec<Edit>,
    /// Changed extended attributes; what changes on media is in `batch`.
    pub(super) xattrs: Vec<(Arc<Inode>, Arc<XattrSet>)>,
    /// Whatever the mount says of its metadata, nobody waits until this is durable.
    pub(super) unhurried: bool,
}

#[derive(Clone, Debug)]
struct Edit {
    inode: Arc<Inode>,
    before: InodeRecord,
    after: InodeRecord,
    fate: Fate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Create,
    Keep,
    Free,
}

impl Txn {
    /// For what is made good after a crash.
    pub(super) fn unhurried() -> Self {
        Self {
            unhurried: true,
            ..Self::default()
        }
    }

    /// Changes the record of an inode; the caller holds its `change`.
    pub(super) fn edit(&mut self, inode: &Arc<Inode>, change: impl FnOnce(&mut InodeRecord)) {
        let at = self
            .edits
            .iter()
            .position(|edit| edit.inode.ino == inode.ino)
            .unwrap_or_else(|| {
                let record = inode.state().record;
                self.edits.push(Edit {
                    inode: Arc::clone(inode),
                    before: record,
                    after: record,
                    fate: Fate::Keep,
                });
                self.edits.len() - 1
            });
        change(&mut self.edits[at].after);
    }

    /// Writes the record of a new inode, as it is in memory.
    pub(super) fn create(&mut self, inode: &Arc<Inode>) {
        self.edit(inode, |_| {});
        self.edits.last_mut().expect("just pushed").fate = Fate::Create;
    }

    /// Frees an inode: its record, its range, its number.
    pub(super) fn free(&mut self, inode: &Arc<Inode>) {
        self.edit(inode, |record| record.nlink = 0);
        let edit = self
            .edits
            .iter_mut()
            .find(|edit| edit.inode.ino == inode.ino);
        edit.expect("just edited").fate = Fate::Free;
    }

    /// Changes memory alone: for an inode whose record is gone.
    pub(super) fn apply_to_memory(self, inode: &Arc<Inode>) {
        for edit in self.edits.iter().filter(|edit| edit.inode.ino == inode.ino) {
            inode.state().record = edit.after;
        }
        for (_, set) in self
            .xattrs
            .into_iter()
            .filter(|(of, _)| of.ino == inode.ino)
        {
            *lock(&inode.xattrs) = XattrCache::Whole(set);
        }
    }

    /// Adds changes of a directory's entries, its size, and its times.
    pub(super) fn change_dir(
        &mut self,
        inode: &Arc<Inode>,
        index: &DirIndex,
        plan: &DirPlan,
        now: crate::time::Timestamp,
    ) {
        let size = index.emit(plan, &mut self.batch);
        self.edit(inode, |record| {
            record.size = size;
            record.mtime = now;
            record.ctime = now;
        });
    }
}

/// Where the hot record of an inode lies.
pub(crate) fn hot_place(ino: InodeNo) -> (Lba, u16) {
    let lba = HOT_RANGE.start.offset(ino.0 / HOT_PER_GRAIN);
    (lba, (ino.0 % HOT_PER_GRAIN) as u16 * HOT_BYTES as u16)
}

/// Where the cold record of an inode lies.
pub(crate) fn cold_place(ino: InodeNo) -> (Lba, u16) {
    let lba = COLD_RANGE.start.offset(ino.0 / COLD_PER_GRAIN);
    (lba, (ino.0 % COLD_PER_GRAIN) as u16 * COLD_BYTES as u16)
}

const _: () = assert!(HOT_BYTES * HOT_PER_GRAIN as usize == GRAIN_BYTES);
const _: () = assert!(COLD_BYTES * COLD_PER_GRAIN as usize == GRAIN_BYTES);

impl<S: BlockStore> Fs<S> {
    /// Carries out a transaction, and makes it visible in memory. When it fails, nothing was changed.
    pub(super) fn commit(&self, txn: Txn) -> Result<(), FsError> {
        match txn.unhurried {
            false => self.commit_by(txn, |batch| self.carry_out(batch)),
            true => self.commit_by(txn, |batch| self.store.commit_relaxed(batch)),
        }
    }

    /// As [`commit`](Self::commit); it is durable on return, and so are all before it.
    pub(super) fn commit_durably(&self, txn: Txn) -> Result<(), FsError> {
        self.commit_by(txn, |batch| self.store.commit(batch))
    }

    fn commit_by(
        &self,
        mut txn: Txn,
        carry_out: impl Fn(AtomicBatch) -> Result<(), StoreError>,
    ) -> Result<(), FsError> {
        if txn.xattrs.iter().any(|(_, set)| !set.is_empty()) {
            self.use_feature(Features::XATTRS)?;
        }
        self.tell_privileges_of(&txn);
        let mut frees = Vec::new();
        for edit in &txn.edits {
            if edit.fate == Fate::Free {
                self.end_project_of(&edit.inode, &mut txn.batch);
            }
            let plan =
                (edit.fate == Fate::Free).then(|| self.alloc().table.plan_free(edit.inode.ino));
            frees.extend(plan.map(|plan| (edit.inode.ino, plan)));
            edit.emit(plan, &mut txn.batch);
        }
        // Held until memory follows: nobody reads some grains before and some after the batch.
        txn.xattrs.sort_by_key(|(inode, _)| inode.ino);
        let mut caches: Vec<_> = txn
            .xattrs
            .iter()
            .map(|(inode, _)| lock(&inode.xattrs))
            .collect();
        let grow = self.plan_growth(&txn.edits, &mut txn.batch);
        if self.has_bug(Bug::BatchNotAtomic) {
            while txn.batch.patches.len() > 1 {
                carry_out(AtomicBatch {
                    patches: txn.batch.patches.drain(..1).collect(),
                    ..AtomicBatch::default()
                })?;
            }
        }
        if let Err(error) = carry_out(txn.batch) {
            for (ino, plan) in frees {
                self.alloc().table.finish_free(ino, plan, false);
            }
            return Err(error.into());
        }
        if let Some((mut covered, grains)) = grow {
            *covered = grains;
        }
        for (cache, (_, set)) in caches.iter_mut().zip(&txn.xattrs) {
            **cache = XattrCache::of(set);
        }
        drop(caches);
        for edit in txn.edits {
            self.apply(edit, &frees);
        }
        for (ino, plan) in frees {
            let sweep = self.alloc().table.plan_sweep(ino, plan);
            if let Some(sweep) = sweep {
                let mut batch = AtomicBatch::default();
                trim_records(ino, sweep, &mut batch);
                // If that fails the grains stay, and hold nothing.
                let _ = carry_out(batch);
                self.alloc().table.finish_sweep(ino, sweep);
            }
        }
        Ok(())
    }

    /// What programs give from this transaction on, before it takes effect. The caller holds their `change`.
    pub(super) fn tell_privileges_of(&self, txn: &Txn) {
        for edit in &txn.edits {
            self.tell_privileges(&edit.inode, edit.after.perm, None);
        }
        for (inode, set) in &txn.xattrs {
            self.tell_privileges(inode, 0, Some(set));
        }
    }

    /// Makes the table's own record cover new inodes. The lock is kept until the record is durable, so that a larger
    /// size is never overwritten by a smaller one.
    fn plan_growth(
        &self,
        edits: &[Edit],
        batch: &mut AtomicBatch,
    ) -> Option<(MutexGuard<'_, u64>, u64)> {
        let created = edits.iter().filter(|edit| edit.fate == Fate::Create);
        let grains = created
            .map(|edit| edit.inode.ino.0 / HOT_PER_GRAIN + 1)
            .max()?;
        let covered = lock(&self.grow);
        if grains <= *covered {
            return None;
        }
        let (lba, offset) = hot_place(InodeNo::TABLE);
        batch.patch(lba, offset, TableRecord { grains }.emit());
        Some((covered, grains))
    }

    fn apply(&self, edit: Edit, frees: &[(InodeNo, FreePlan)]) {
        let inode = edit.inode;
        let mut state = inode.state();
        let live = state.record;
        state.record = edit.after;
        // Times that a concurrent read or write has touched since stay, and stay to be written.
        let written = live.mtime == edit.before.mtime;
        let read = live.atime == edit.before.atime;
        if !written {
            state.record.mtime = live.mtime;
            state.record.ctime = live.ctime.max(edit.after.ctime);
        }
        if !read {
            state.record.atime = live.atime;
        }
        state.times_dirty = !written || !read;
        if inode.kind == crate::inode::FileKind::Directory {
            state.size = state.record.size;
            state.count_anew();
        }
        match edit.fate {
            Fate::Keep => return,
            Fate::Create => {
                state.dead = false;
                return;
            }
            Fate::Free => {}
        }
        state.dead = true;
        state.grains = Some(0);
        let range = edit.after.range;
        drop(state);
        // Before anybody else can get its number or its range.
        self.leave_project(inode.ino, &edit.after);
        let plan = frees
            .iter()
            .find(|(ino, _)| *ino == inode.ino)
            .expect("every free was planned")
            .1;
        {
            let mut alloc = self.alloc();
            alloc.table.finish_free(inode.ino, plan, true);
            if let Some(range) = range {
                alloc.buddy.release(range);
            }
        }
        // Only now whoever forgets or closes it may give the number back: one that the table did not keep yet would be kept
        // for good. Who did so before leaves it to us.
        let gives_back = {
            let mut state = inode.state();
            state.has_gone();
            state.gives_back()
        };
        if gives_back {
            self.give_back_number(&inode);
        }
    }
}

impl Edit {
    fn emit(&self, plan: Option<FreePlan>, batch: &mut AtomicBatch) {
        let ino = self.inode.ino;
        let (hot_lba, hot_offset) = hot_place(ino);
        let (cold_lba, cold_offset) = cold_place(ino);
        let Some(plan) = plan else {
            let hot = self.after.emit_hot(ino);
            if self.fate == Fate::Create || hot != self.before.emit_hot(ino) {
                batch.patch(hot_lba, hot_offset, hot);
            }
            batch.patch(cold_lba, cold_offset, self.after.emit_cold(ino));
            return;
        };
        trim_records(ino, plan, batch);
        if !plan.trim_hot {
            batch.patch(hot_lba, hot_offset, [0; HOT_BYTES]);
        }
        if !plan.trim_cold {
            batch.patch(cold_lba, cold_offset, [0; COLD_BYTES]);
        }
    }
}

/// Trims the grains of the records of an inode that hold nothing else.
fn trim_records(ino: InodeNo, plan: FreePlan, batch: &mut AtomicBatch) {
    let places = [
        (plan.trim_hot, hot_place(ino)),
        (plan.trim_cold, cold_place(ino)),
    ];
    for (_, (lba, _)) in places.into_iter().filter(|(trim, _)| *trim) {
        batch.trim(LbaRange::new(lba, 1));
    }
}
