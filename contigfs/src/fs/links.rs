//! Taking names away: unlink and rmdir; and the opens that keep a file without names alive.

use std::ffi::OsStr;
use std::sync::Arc;

use super::cache::State;
use super::create::lock_changes;
use super::lookup::{find_old_name, index_of, index_of_mut};
use super::{Fs, Inode, Txn, shared};
use crate::dir::DirPlan;
use crate::error::FsError;
use crate::inode::{FileKind, InodeNo};
use crate::planted::Bug;
use crate::store::BlockStore;
use crate::time::Timestamp;

/// How an inode loses a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NameGoes {
    /// It leads nowhere any more.
    Removed,
    /// It leads to another. It has always led somewhere: who was led here before, and opens it only now, may.
    Replaced,
}

impl State {
    /// Whether nobody will miss an inode that has lost its last name.
    pub(super) fn is_unused(&self) -> bool {
        let found = self.replaced && self.lookups > 0;
        self.record.orphan && !self.dead && self.opens == 0 && !found
    }
}

impl<S: BlockStore> Fs<S> {
    /// Removes a name of anything but a directory. With its last name a file goes away, unless it is open: then with
    /// its last close.
    pub fn unlink(&self, parent: InodeNo, name: &OsStr) -> Result<(), FsError> {
        let _namespace = shared(&self.namespace);
        let dir = self.inode(parent)?;
        let mut content = self.write_dir_index(&dir)?;
        let index = index_of_mut(&mut content);
        let (name, slot) = find_old_name(index, name)?;
        if slot.kind == FileKind::Directory {
            return Err(FsError::IsDirectory);
        }
        let inode = self.child(parent, slot)?;
        let _child_content = inode.change_content();
        let _changes = lock_changes([&dir, &inode]);
        let now = self.now();
        let mut plan = DirPlan::default();
        index.plan_remove(&mut plan, name);
        let mut txn = Txn::default();
        txn.change_dir(&dir, index, &plan, now);
        self.drop_name(&inode, txn, now, NameGoes::Removed)?;
        index.apply(plan);
        Ok(())
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, parent: InodeNo, name: &OsStr) -> Result<(), FsError> {
        let _namespace = shared(&self.namespace);
        let dir = self.inode(parent)?;
        let mut content = self.write_dir_index(&dir)?;
        let index = index_of_mut(&mut content);
        if name == ".." {
            return Err(FsError::NotEmpty);
        }
        let (name, slot) = find_old_name(index, name)?;
        if slot.kind != FileKind::Directory {
            return Err(FsError::NotDirectory);
        }
        let inode = self.child(parent, slot)?;
        let child_content = self.write_dir_index(&inode)?;
        if !index_of(&child_content).is_empty() {
            return Err(FsError::NotEmpty);
        }
        let _changes = lock_changes([&dir, &inode]);
        let now = self.now();
        let mut plan = DirPlan::default();
        index.plan_remove(&mut plan, name);
        let mut txn = Txn::default();
        txn.change_dir(&dir, index, &plan, now);
        txn.edit(&dir, |record| record.nlink = record.nlink.saturating_sub(1));
        self.drop_name(&inode, txn, now, NameGoes::Removed)?;
        index.apply(plan);
        Ok(())
    }

    /// Commits `txn` with one name of `inode` less. The caller holds `content` exclusively and `change`.
    pub(super) fn drop_name(
        &self,
        inode: &Arc<Inode>,
        mut txn: Txn,
        now: Timestamp,
        goes: NameGoes,
    ) -> Result<(), FsError> {
        let is_dir = inode.kind == FileKind::Directory;
        let (last, stays) = {
            let mut state = inode.state();
            let last = is_dir || state.record.nlink <= 1;
            state.replaced = last && goes == NameGoes::Replaced;
            let found = state.replaced && state.lookups > 0;
            let stays = match inode.kind {
                FileKind::File => state.opens > 0 || found,
                FileKind::Symlink => found,
                _ => false,
            };
            // From here on nobody can open it.
            state.dead = last && !stays;
            (last, stays)
        };
        if !last || stays {
            txn.edit(inode, |record| {
                if !self.has_bug(Bug::LinkUncounted) || last {
                    record.nlink = record.nlink.saturating_sub(1);
                }
                record.orphan = last && !self.has_bug(Bug::OrphanUnmarked);
                record.ctime = now;
            });
            self.commit(txn)?;
            // Whoever closed or forgot it meanwhile saw no orphan.
            let unused = {
                let mut state = inode.state();
                let unused = state.is_unused();
                state.dead |= unused;
                unused
            };
            if unused && let Err(error) = self.free_unused(inode) {
                tracing::warn!(%error, ino = %inode.ino, "a file without names stays until the next mount");
            }
            return Ok(());
        }
        txn.edit(inode, |record| record.ctime = now);
        let result = self.free_with_data(inode, txn);
        if result.is_err() {
            inode.state().dead = false;
        }
        result
    }

    /// Keeps an inode and its data until [`close`](Self::close), names or not.
    pub fn open(&self, ino: InodeNo) -> Result<(), FsError> {
        let inode = self.inode(ino)?;
        let mut state = inode.state();
        // A removed directory that somebody still works in can be opened, and is empty.
        let remembered = state.lookups > 0 && inode.kind == FileKind::Directory;
        if state.dead && !remembered {
            return Err(FsError::NotFound);
        }
        state.opens += 1;
        Ok(())
    }

    /// Ends an [`open`](Self::open). The last one of a file without names frees it.
    pub fn close(&self, ino: InodeNo) -> Result<(), FsError> {
        let inode = self.inode(ino)?;
        let (reap, gives_back) = {
            let mut state = inode.state();
            assert!(state.opens > 0, "{ino:?} was closed more often than opened");
            state.opens -= 1;
            (state.is_unused(), state.gives_back())
        };
        if reap {
            self.reap(&inode)?;
        } else if gives_back {
            self.give_back_number(&inode);
        }
        Ok(())
    }
}
