//! Rename: one batch, whatever moves and whatever it replaces.

use std::ffi::OsStr;
use std::sync::Arc;

use super::create::lock_changes;
use super::links::NameGoes;
use super::lookup::{check_new_name, find_old_name, index_of, index_of_mut};
use super::{Fs, Inode, SyncScope, Txn, exclusive, shared};
use crate::dir::{DirPlan, Slot};
use crate::error::{Corruption, FsError};
use crate::inode::{FileKind, InodeNo};
use crate::planted::Bug;
use crate::store::{BlockStore, StoreError};

/// What to do with an existing target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    /// It is replaced.
    Replace,
    /// The rename fails.
    NoReplace,
    /// Both names change places.
    Exchange,
}

/// More directories than any path has; a longer chain of parents is a loop.
const DEPTH_MAX: usize = 1 << 20;

impl<S: BlockStore> Fs<S> {
    /// Renames `name` in `parent` to `new_name` in `new_parent`.
    pub fn rename(
        &self,
        parent: InodeNo,
        name: &OsStr,
        new_parent: InodeNo,
        new_name: &OsStr,
        mode: RenameMode,
    ) -> Result<(), FsError> {
        check_new_name(new_name).map_err(|error| match error {
            FsError::Exists => FsError::Invalid,
            other => other,
        })?;
        self.sync_before_replacing(parent, name, new_parent, new_name, mode)?;
        if parent == new_parent {
            let _namespace = shared(&self.namespace);
            return self.rename_within(parent, name, new_name, mode);
        }
        let _namespace = exclusive(&self.namespace);
        self.rename_across(parent, name, new_parent, new_name, mode)
    }

    /// A file that replaces another gets its data durable first: programs that write a new version aside and rename
    /// it expect the one or the other after a crash. It is a courtesy, so errors do not matter here, but for one that the store
    /// tells only once: what was written is lost, and must not replace anything.
    fn sync_before_replacing(
        &self,
        parent: InodeNo,
        name: &OsStr,
        new_parent: InodeNo,
        new_name: &OsStr,
        mode: RenameMode,
    ) -> Result<(), FsError> {
        if mode != RenameMode::Replace || self.lookup(new_parent, new_name).is_err() {
            return Ok(());
        }
        let Ok(source) = self.lookup(parent, name) else {
            return Ok(());
        };
        let Ok(inode) = self.inode(source.ino) else {
            return Ok(());
        };
        let unsynced = {
            let state = inode.state();
            state.size != state.record.size
        };
        if !unsynced {
            return Ok(());
        }
        match self.fsync(source.ino, SyncScope::Data) {
            Err(
                lost @ FsError::Store(StoreError::Damaged { .. } | StoreError::Unreadable { .. }),
            ) => Err(lost),
            _ => Ok(()),
        }
    }

    fn rename_within(
        &self,
        parent: InodeNo,
        name: &OsStr,
        new_name: &OsStr,
        mode: RenameMode,
    ) -> Result<(), FsError> {
        let dir = self.inode(parent)?;
        let mut content = self.write_dir_index(&dir)?;
        let index = index_of_mut(&mut content);
        let (name, slot) = find_old_name(index, name)?;
        let new_name = check_new_name(new_name)?;
        let old = self.child(parent, slot)?;
        let Some(target) = index.get(new_name) else {
            if mode == RenameMode::Exchange {
                return Err(FsError::NotFound);
            }
            let now = self.now();
            let _changes = lock_changes([&dir, &old]);
            let mut plan = DirPlan::default();
            index.plan_remove(&mut plan, name);
            index.plan_add(&mut plan, new_name, slot.ino, slot.kind)?;
            let mut txn = Txn::default();
            txn.change_dir(&dir, index, &plan, now);
            txn.edit(&old, |record| record.ctime = now);
            self.commit(txn)?;
            index.apply(plan);
            return Ok(());
        };
        if self.settled(slot, target, mode)? {
            return Ok(());
        }
        let new = self.child(parent, target)?;
        let now = self.now();
        let mut plan = DirPlan::default();
        if mode == RenameMode::Exchange {
            let _changes = lock_changes([&dir, &old, &new]);
            let mut plan = DirPlan::default();
            index.plan_replace(&mut plan, name, target.ino, target.kind);
            index.plan_replace(&mut plan, new_name, slot.ino, slot.kind);
            let mut txn = Txn::default();
            txn.change_dir(&dir, index, &plan, now);
            txn.edit(&old, |record| record.ctime = now);
            txn.edit(&new, |record| record.ctime = now);
            self.commit(txn)?;
            index.apply(plan);
            return Ok(());
        }
        let _target_content = self.lock_replaced(&new)?;
        let _changes = lock_changes([&dir, &old, &new]);
        index.plan_remove(&mut plan, name);
        index.plan_replace(&mut plan, new_name, slot.ino, slot.kind);
        let mut txn = Txn::default();
        txn.change_dir(&dir, index, &plan, now);
        txn.edit(&old, |record| record.ctime = now);
        if slot.kind == FileKind::Directory {
            txn.edit(&dir, |record| record.nlink = record.nlink.saturating_sub(1));
        }
        self.drop_name(&new, txn, now, NameGoes::Replaced)?;
        index.apply(plan);
        Ok(())
    }

    fn rename_across(
        &self,
        parent: InodeNo,
        name: &OsStr,
        new_parent: InodeNo,
        new_name: &OsStr,
        mode: RenameMode,
    ) -> Result<(), FsError> {
        let (from, to) = (self.inode(parent)?, self.inode(new_parent)?);
        // Nobody else changes names now, so the order of these two does not matter; lookups hold one lock at a time.
        let mut from_content = self.write_dir_index(&from)?;
        let mut to_content = self.write_dir_index(&to)?;
        let from_index = index_of_mut(&mut from_content);
        let to_index = index_of_mut(&mut to_content);
        let (name, slot) = find_old_name(from_index, name)?;
        let new_name = check_new_name(new_name)?;
        let target = to_index.get(new_name);
        if mode == RenameMode::NoReplace && target.is_some() {
            return Err(FsError::Exists);
        }
        if slot.kind == FileKind::Directory {
            self.check_not_below(slot.ino, new_parent)?;
        }
        match target {
            None if mode == RenameMode::Exchange => return Err(FsError::NotFound),
            Some(target) if target.kind == FileKind::Directory && mode == RenameMode::Exchange => {
                self.check_not_below(target.ino, parent)?;
            }
            // The target may be an ancestor of the source, whose lock is taken: it is not empty then.
            Some(target)
                if target.kind == FileKind::Directory && self.is_below(target.ino, parent)? =>
            {
                return Err(match slot.kind {
                    FileKind::Directory => FsError::NotEmpty,
                    _ => FsError::IsDirectory,
                });
            }
            _ => {}
        }
        if let Some(target) = target
            && self.settled(slot, target, mode)?
        {
            return Ok(());
        }
        let old = self.child(parent, slot)?;
        let new = target
            .map(|target| self.child(new_parent, target))
            .transpose()?;
        let _target_content = match &new {
            Some(new) if mode == RenameMode::Replace => Some(self.lock_replaced(new)?),
            _ => None,
        };
        let _changes = lock_changes([&from, &to, &old].into_iter().chain(&new));
        if !self.has_bug(Bug::ProjectsMixed) {
            self.check_same_project(&old, &to)?;
        }
        if let (Some(new), RenameMode::Exchange) = (&new, mode) {
            self.check_same_project(new, &from)?;
        }
        let now = self.now();
        let (mut from_plan, mut to_plan) = (DirPlan::default(), DirPlan::default());
        match target {
            Some(target) if mode == RenameMode::Exchange => {
                from_index.plan_replace(&mut from_plan, name, target.ino, target.kind);
                to_index.plan_replace(&mut to_plan, new_name, slot.ino, slot.kind);
            }
            Some(_) => {
                from_index.plan_remove(&mut from_plan, name);
                to_index.plan_replace(&mut to_plan, new_name, slot.ino, slot.kind);
            }
            None => {
                from_index.plan_remove(&mut from_plan, name);
                to_index.plan_add(&mut to_plan, new_name, slot.ino, slot.kind)?;
            }
        }
        let mut txn = Txn::default();
        txn.change_dir(&from, from_index, &from_plan, now);
        txn.change_dir(&to, to_index, &to_plan, now);
        self.note_move(&mut txn, &old, &from, &to, now);
        match (&new, mode) {
            (Some(new), RenameMode::Exchange) => {
                self.note_move(&mut txn, new, &to, &from, now);
                self.commit(txn)?;
            }
            (Some(new), _) => {
                if new.kind == FileKind::Directory {
                    txn.edit(&to, |record| record.nlink = record.nlink.saturating_sub(1));
                }
                self.drop_name(new, txn, now, NameGoes::Replaced)?;
            }
            (None, _) => self.commit(txn)?,
        }
        from_index.apply(from_plan);
        to_index.apply(to_plan);
        Ok(())
    }

    /// Judges a rename onto an existing name: true when there is nothing to do.
    fn settled(&self, old: Slot, target: Slot, mode: RenameMode) -> Result<bool, FsError> {
        if mode == RenameMode::NoReplace {
            return Err(FsError::Exists);
        }
        if old.ino == target.ino {
            return Ok(true);
        }
        let dirs = (
            old.kind == FileKind::Directory,
            target.kind == FileKind::Directory,
        );
        match (mode, dirs) {
            (RenameMode::Replace, (true, false)) => Err(FsError::NotDirectory),
            (RenameMode::Replace, (false, true)) => Err(FsError::IsDirectory),
            _ => Ok(false),
        }
    }

    /// Locks the content of an inode that is to lose a name; a directory must be empty.
    fn lock_replaced<'a>(
        &self,
        inode: &'a Arc<Inode>,
    ) -> Result<super::lookup::DirWrite<'a>, FsError> {
        if inode.kind != FileKind::Directory {
            return Ok(inode.change_content());
        }
        let content = self.write_dir_index(inode)?;
        if index_of(&content).is_empty() {
            Ok(content)
        } else {
            Err(FsError::NotEmpty)
        }
    }

    /// Fails when directory `dir` is `at` or above it.
    fn check_not_below(&self, dir: InodeNo, at: InodeNo) -> Result<(), FsError> {
        if self.is_below(dir, at)? {
            Err(FsError::Invalid)
        } else {
            Ok(())
        }
    }

    /// Whether `at` is `dir` or below it. The caller holds `namespace` exclusively.
    fn is_below(&self, dir: InodeNo, mut at: InodeNo) -> Result<bool, FsError> {
        for _ in 0..DEPTH_MAX {
            if at == dir {
                return Ok(true);
            }
            if at == InodeNo::ROOT {
                return Ok(false);
            }
            at = self
                .inode(at)?
                .state()
                .record
                .parent
                .ok_or(FsError::NotDirectory)?;
        }
        Err(Corruption::Inode {
            ino: at,
            what: "its parents form a loop",
        }
        .into())
    }

    /// Notes in the records that `inode` went from one directory to another.
    fn note_move(
        &self,
        txn: &mut Txn,
        inode: &Arc<Inode>,
        from: &Arc<Inode>,
        to: &Arc<Inode>,
        now: crate::time::Timestamp,
    ) {
        let is_dir = inode.kind == FileKind::Directory;
        let new_parent = to.ino;
        txn.edit(inode, |record| {
            record.ctime = now;
            if is_dir && !self.has_bug(Bug::ParentUnmoved) {
                record.parent = Some(new_parent);
            }
        });
        if is_dir {
            txn.edit(from, |record| record.nlink = record.nlink.saturating_sub(1));
            txn.edit(to, |record| record.nlink = record.nlink.saturating_add(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::{FormatOptions, NewNode};
    use crate::mem_store::MemStore;

    /// The kernel sees to that for those who come by it; nobody else gets a directory below itself either, in whichever direction
    /// two names change places (I9).
    #[test]
    fn nothing_gets_below_itself() {
        let store = MemStore::new(100);
        Fs::format(&store, &FormatOptions::default()).unwrap();
        let fs = Fs::mount(&store).unwrap();
        let (root, name) = (InodeNo::ROOT, OsStr::new);
        let make = |dir, label, node| fs.create(dir, name(label), &node).unwrap().ino;
        let top = make(root, "top", NewNode::directory());
        let sub = make(top, "sub", NewNode::directory());
        let deep = make(sub, "deep", NewNode::directory());
        let file = make(sub, "file", NewNode::file());
        let rename = |from, old, to, new, mode| fs.rename(from, name(old), to, name(new), mode);
        let refused = Err(FsError::Invalid);
        let exchange = RenameMode::Exchange;
        assert_eq!(rename(root, "top", sub, "deep", exchange), refused);
        assert_eq!(rename(sub, "deep", root, "top", exchange), refused);
        assert_eq!(rename(root, "top", sub, "file", exchange), refused);
        assert_eq!(rename(sub, "file", root, "top", exchange), refused);
        let replace = RenameMode::Replace;
        assert_eq!(rename(root, "top", sub, "new", replace), refused);
        let found = |dir, label| fs.lookup(dir, name(label)).unwrap().ino;
        assert_eq!((found(root, "top"), found(top, "sub")), (top, sub));
        assert_eq!((found(sub, "deep"), found(sub, "file")), (deep, file));
        assert_eq!(fs.lookup(sub, name("new")), Err(FsError::NotFound));
    }
}
