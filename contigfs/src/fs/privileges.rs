//! What a program file gives to whoever runs it (setuid, setgid, file capabilities), and that it ends with its content.

use std::sync::Arc;

use super::data::WriteOptions;
use super::xattr::XattrCache;
use super::{Fs, Inode, Txn, lock};
use crate::error::FsError;
use crate::store::BlockStore;
use crate::xattr::XattrName;

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
        let clears_bits = options.clear_privileges && without_privileges(perm) != perm;
        if !clears_bits && !self.has_capability(inode) {
            return Ok(());
        }
        let _change = lock(&inode.change);
        if inode.state().dead {
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
        if self.has_capability(inode) {
            self.edit_xattrs(&mut txn, inode, |set| {
                set.remove(&XattrName::capability());
                Ok(())
            })?;
        }
        self.commit(txn)
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

/// Permissions after a write or a change of owner: without setuid, and without setgid where it means privileges.
pub(super) fn without_privileges(perm: u16) -> u16 {
    let gid = if perm & GROUP_EXECUTE != 0 {
        SET_GID
    } else {
        0
    };
    perm & !(SET_UID | gid)
}
