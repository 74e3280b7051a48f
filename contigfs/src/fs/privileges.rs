//! What a program file gives to whoever runs it (setuid, setgid, file capabilities), and that it ends with its content.
//!
//! The kernel says whose writes end what (`file_remove_privs`). Who changes content past the file system asks for it himself:
//! [`ExtentObserver::privileged`](super::ExtentObserver::privileged) tells when there is something to end.

use std::sync::Arc;

use super::data::WriteOptions;
use super::xattr::XattrCache;
use super::{Fs, Inode, Txn, lock};
use crate::error::FsError;
use crate::inode::{FileKind, InodeNo};
use crate::store::BlockStore;
use crate::xattr::{XattrName, XattrSet};

const SET_UID: u16 = 0o4000;
pub(super) const SET_GID: u16 = 0o2000;
const GROUP_EXECUTE: u16 = 0o010;

impl<S: BlockStore> Fs<S> {
    /// Takes from a file, before its content changes, what would give privileges to the new content: setuid and setgid
    /// if the writer has none itself, file capabilities whoever writes.
    pub(super) fn end_privileges(
        &self,
        inode: &Arc<Inode>,
        options: WriteOptions,
    ) -> Result<(), FsError> {
        let perm = inode.state().record.perm;
        let clears_bits = options.clear_privileges && gives_privileges(perm);
        if !clears_bits && !self.has_capability(inode) {
            return Ok(());
        }
        let _change = lock(&inode.change);
        self.end_privileges_now(inode, options)
    }

    /// The same for who changes content past the file system, as somebody without privileges. Durable on return as other
    /// metadata are. `ended` is called while nobody can give the file new ones; it must not call the file system.
    pub fn end_privileges_past(&self, ino: InodeNo, ended: impl FnOnce()) -> Result<(), FsError> {
        let inode = self.inode(ino)?;
        let _change = lock(&inode.change);
        let options = WriteOptions {
            clear_privileges: true,
            ..WriteOptions::default()
        };
        self.end_privileges_now(&inode, options)?;
        ended();
        Ok(())
    }

    /// Takes setgid from a file that its group can not execute, where it gives nothing: as other Linux file systems do when
    /// somebody changes the content who has no privileges and is not in that group. `keeps` says of a group whether the caller
    /// is. True: it is gone.
    pub fn end_setgid_unless(
        &self,
        ino: InodeNo,
        keeps: impl FnOnce(u32) -> bool,
    ) -> Result<bool, FsError> {
        let inode = self.inode(ino)?;
        let record = inode.state().record;
        let is_mark = record.perm & (SET_GID | GROUP_EXECUTE) == SET_GID;
        if inode.kind != FileKind::File || !is_mark || keeps(record.gid) {
            return Ok(false);
        }
        let now = self.now();
        let _change = lock(&inode.change);
        let mut txn = Txn::default();
        txn.edit(&inode, |record| {
            record.perm &= !SET_GID;
            record.ctime = now;
        });
        if inode.state().dead {
            txn.apply_to_memory(&inode);
        } else {
            self.commit(txn)?;
        }
        Ok(true)
    }

    /// Calls `f` with whether a file gives privileges. Until it returns, that stays so; it must not call the file system.
    pub fn with_privileges<R>(
        &self,
        ino: InodeNo,
        f: impl FnOnce(bool) -> R,
    ) -> Result<R, FsError> {
        let inode = self.inode(ino)?;
        let _change = lock(&inode.change);
        let gives = gives_privileges(inode.state().record.perm) || self.has_capability(&inode);
        Ok(f(gives))
    }

    /// The caller holds `change`.
    fn end_privileges_now(&self, inode: &Arc<Inode>, options: WriteOptions) -> Result<(), FsError> {
        let has_capability = self.has_capability(inode);
        let clears_bits = options.clear_privileges && gives_privileges(inode.state().record.perm);
        if !clears_bits && !has_capability {
            return Ok(());
        }
        let now = self.now();
        let mut txn = Txn::default();
        txn.edit(inode, |record| {
            record.ctime = now;
            if clears_bits {
                record.perm = without_privileges(record.perm);
            }
        });
        if has_capability {
            self.edit_xattrs(&mut txn, inode, |set| {
                set.remove(&XattrName::capability());
                Ok(())
            })?;
        }
        if inode.state().dead {
            // Without a name it can still be executed by who has it open.
            txn.apply_to_memory(inode);
            return Ok(());
        }
        self.commit(txn)
    }

    /// Tells that a file gives privileges from now on, or went on to. The caller holds its `change`.
    pub(super) fn tell_privileges(&self, inode: &Inode, perm: u16, xattrs: Option<&XattrSet>) {
        let has_capability =
            || xattrs.is_some_and(|set| set.get(&XattrName::capability()).is_some());
        if inode.kind == FileKind::File && (gives_privileges(perm) || has_capability()) {
            self.observe(|observer| observer.privileged(inode.ino));
        }
    }

    /// Whether a program file gives privileges beyond setuid and setgid. Attributes that can not be read give none.
    pub(super) fn has_capability(&self, inode: &Inode) -> bool {
        if let XattrCache::Large { capability } = *lock(&inode.xattrs) {
            return capability;
        }
        self.xattr_set(inode)
            .is_ok_and(|set| set.get(&XattrName::capability()).is_some())
    }
}

/// Whether these permissions give something that [`without_privileges`] takes away.
pub(crate) fn gives_privileges(perm: u16) -> bool {
    without_privileges(perm) != perm
}

/// Permissions after a write or a change of owner: without setuid, and without setgid where it means privileges.
pub(super) fn without_privileges(perm: u16) -> u16 {
    let gid = if perm & GROUP_EXECUTE != 0 {
        SET_GID
    } else {
        0
    };
    perm & !(SET_UID | gid)
}
