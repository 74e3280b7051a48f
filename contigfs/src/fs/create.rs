//! New names: files, directories, devices, symbolic links, hard links.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use super::attr::SET_GID;
use super::format::DIRECTORY_ORDER;
use super::lookup::{Remember, check_new_name, index_of_mut};
use super::range::FILE_ORDER;
use super::{Fs, Inode, Tail, Txn, lock, shared};
use crate::buddy::Order;
use crate::dir::{DirIndex, DirPlan};
use crate::error::FsError;
use crate::format::{InodeRecord, Range, TARGET_MAX};
use crate::inode::{Attr, FileKind, InodeNo};
use crate::store::BlockStore;
use crate::time::Timestamp;

/// Most links of an inode.
const LINKS_MAX: u32 = i32::MAX as u32;

/// What to make.
#[derive(Clone, Copy, Debug)]
pub struct NewNode {
    /// Kind; symbolic links have [`Fs::symlink`].
    pub kind: FileKind,
    /// Permissions, before the umask; other bits are ignored.
    pub mode: u32,
    /// Permissions to take away, unless the directory has a default access control list: that decides then.
    pub umask: u32,
    /// Owner.
    pub uid: u32,
    /// Group, unless the directory hands its own down (setgid).
    pub gid: u32,
    /// Device number of a device file.
    pub rdev: u32,
}

impl NewNode {
    /// A regular file of root, readable by all.
    pub const fn file() -> Self {
        Self {
            kind: FileKind::File,
            mode: 0o644,
            umask: 0,
            uid: 0,
            gid: 0,
            rdev: 0,
        }
    }

    /// A directory of root, open to all.
    pub const fn directory() -> Self {
        Self {
            kind: FileKind::Directory,
            mode: 0o755,
            umask: 0,
            uid: 0,
            gid: 0,
            rdev: 0,
        }
    }
}

impl<S: BlockStore> Fs<S> {
    /// Makes a file, directory, device, pipe or socket.
    pub fn create(&self, parent: InodeNo, name: &OsStr, node: &NewNode) -> Result<Attr, FsError> {
        self.create_remember(parent, name, node, Remember::No, false)
    }

    /// As [`create`](Self::create); may also open the file at once.
    pub(crate) fn create_remember(
        &self,
        parent: InodeNo,
        name: &OsStr,
        node: &NewNode,
        remember: Remember,
        open: bool,
    ) -> Result<Attr, FsError> {
        if node.kind == FileKind::Symlink {
            return Err(FsError::Invalid);
        }
        self.make(parent, name, node, None, remember, open)
    }

    /// Makes a symbolic link.
    pub fn symlink(
        &self,
        parent: InodeNo,
        name: &OsStr,
        target: &OsStr,
        uid: u32,
        gid: u32,
    ) -> Result<Attr, FsError> {
        self.symlink_remember(parent, name, target, (uid, gid), Remember::No)
    }

    /// As [`symlink`](Self::symlink), for (uid, gid).
    pub(crate) fn symlink_remember(
        &self,
        parent: InodeNo,
        name: &OsStr,
        target: &OsStr,
        (uid, gid): (u32, u32),
        remember: Remember,
    ) -> Result<Attr, FsError> {
        let target = target.as_bytes();
        if target.is_empty() {
            return Err(FsError::NotFound);
        }
        if target.len() > TARGET_MAX {
            return Err(FsError::NameTooLong);
        }
        let node = NewNode {
            kind: FileKind::Symlink,
            mode: 0o777,
            umask: 0,
            uid,
            gid,
            rdev: 0,
        };
        self.make(parent, name, &node, Some(target), remember, false)
    }

    /// Target of a symbolic link.
    pub fn readlink(&self, ino: InodeNo) -> Result<Vec<u8>, FsError> {
        let inode = self.inode(ino)?;
        if inode.kind != FileKind::Symlink {
            return Err(FsError::Invalid);
        }
        let _content = shared(&inode.content);
        let record = {
            let state = inode.state();
            if state.dead {
                return Err(FsError::NotFound);
            }
            state.record
        };
        let mut target = vec![0; record.size as usize];
        let range = record.range.ok_or(FsError::Invalid)?;
        self.store
            .read(crate::store::ByteAddr::new(range.start, 0), &mut target)?;
        Ok(target)
    }

    /// Gives an inode another name.
    pub fn link(&self, ino: InodeNo, parent: InodeNo, name: &OsStr) -> Result<Attr, FsError> {
        self.link_remember(ino, parent, name, Remember::No)
    }

    pub(crate) fn link_remember(
        &self,
        ino: InodeNo,
        parent: InodeNo,
        name: &OsStr,
        remember: Remember,
    ) -> Result<Attr, FsError> {
        let name = check_new_name(name)?;
        let inode = self.inode(ino)?;
        if inode.kind == FileKind::Directory {
            return Err(FsError::NotPermitted);
        }
        let _namespace = shared(&self.namespace);
        let dir = self.inode(parent)?;
        let mut content = self.write_dir_index(&dir)?;
        let index = index_of_mut(&mut content);
        if index.get(name).is_some() {
            return Err(FsError::Exists);
        }
        let _changes = lock_changes([&dir, &inode]);
        {
            let state = inode.state();
            if state.dead || state.record.nlink == 0 {
                return Err(FsError::NotFound);
            }
            if state.record.nlink >= LINKS_MAX {
                return Err(FsError::TooManyLinks);
            }
        }
        let now = self.now();
        let mut plan = DirPlan::default();
        index.plan_add(&mut plan, name, ino, inode.kind)?;
        let mut txn = Txn::default();
        txn.change_dir(&dir, index, &plan, now);
        txn.edit(&inode, |record| {
            record.nlink += 1;
            record.ctime = now;
        });
        self.commit(txn)?;
        index.apply(plan);
        if remember == Remember::Yes {
            inode.state().lookups += 1;
        }
        Ok(self.attr_of(&inode))
    }

    fn make(
        &self,
        parent: InodeNo,
        name: &OsStr,
        node: &NewNode,
        target: Option<&[u8]>,
        remember: Remember,
        open: bool,
    ) -> Result<Attr, FsError> {
        let name = check_new_name(name)?;
        let _namespace = shared(&self.namespace);
        let dir = self.inode(parent)?;
        let mut content = self.write_dir_index(&dir)?;
        let index = index_of_mut(&mut content);
        if index.get(name).is_some() {
            return Err(FsError::Exists);
        }
        let is_dir = node.kind == FileKind::Directory;
        let _change = lock(&dir.change);
        let parent_record = dir.state().record;
        if is_dir && parent_record.nlink >= LINKS_MAX {
            return Err(FsError::TooManyLinks);
        }
        let now = self.now();
        let (mode, umask) = (node.mode & 0o7777, node.umask & 0o777);
        let (perm, xattrs) = self.inherit_acl(&dir, node.kind, mode as u16, umask as u16)?;
        let inode = self.reserve_inode(&parent_record, parent, node, perm, target, now)?;
        let mut plan = DirPlan::default();
        let planned = index.plan_add(&mut plan, name, inode.ino, node.kind);
        let committed = planned.and_then(|()| {
            let mut txn = Txn::default();
            txn.create(&inode);
            self.edit_xattrs(&mut txn, &inode, |set| {
                *set = xattrs;
                Ok(())
            })?;
            if let (Some(target), Ok(range)) = (target, inode.range()) {
                txn.batch.patch(range.start, 0, target);
            }
            txn.change_dir(&dir, index, &plan, now);
            txn.edit(&dir, |record| record.nlink += u32::from(is_dir));
            self.commit(txn)
        });
        if let Err(error) = committed {
            self.unreserve_inode(&inode);
            return Err(error);
        }
        index.apply(plan);
        let mut state = inode.state();
        state.lookups += u64::from(remember == Remember::Yes);
        state.opens += u64::from(open);
        drop(state);
        Ok(self.attr_of(&inode))
    }

    /// An inode in memory with number and range, but without record: dead until the commit.
    fn reserve_inode(
        &self,
        parent: &InodeRecord,
        parent_ino: InodeNo,
        node: &NewNode,
        perm: u16,
        target: Option<&[u8]>,
        now: Timestamp,
    ) -> Result<Arc<Inode>, FsError> {
        let order = match node.kind {
            FileKind::File => Some(FILE_ORDER),
            FileKind::Directory => Some(DIRECTORY_ORDER),
            FileKind::Symlink => Some(Order(0)),
            _ => None,
        };
        let range = order.map(|order| self.allocate_range(order)).transpose()?;
        let Some(ino) = self.alloc().table.allocate() else {
            self.release_range(range);
            return Err(FsError::NoSpace);
        };
        let is_dir = node.kind == FileKind::Directory;
        let inherits_group = parent.perm & SET_GID != 0;
        let record = InodeRecord {
            kind: node.kind,
            perm: perm | if is_dir && inherits_group { SET_GID } else { 0 },
            range,
            size: target.map_or(0, |target| target.len() as u64),
            generation: self.next_generation(now),
            orphan: false,
            reserved: false,
            nlink: if is_dir { 2 } else { 1 },
            uid: node.uid,
            gid: if inherits_group { parent.gid } else { node.gid },
            rdev: if matches!(node.kind, FileKind::CharDevice | FileKind::BlockDevice) {
                node.rdev
            } else {
                0
            },
            parent: is_dir.then_some(parent_ino),
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
        };
        let index = range
            .filter(|_| is_dir)
            .map(|range| DirIndex::empty(ino, range));
        let inode = Arc::new(Inode::new(ino, record, Tail::Zeros, index));
        inode.state().dead = true;
        self.cache.insert(&inode);
        Ok(inode)
    }

    fn unreserve_inode(&self, inode: &Arc<Inode>) {
        self.cache.remove(inode.ino);
        self.release_range(inode.state().record.range);
        self.alloc().table.give_back(inode.ino);
    }

    fn release_range(&self, range: Option<Range>) {
        if let Some(range) = range {
            self.alloc().buddy.release(range);
        }
    }
}

/// Locks the `change` of several inodes in the one legal order.
pub(super) fn lock_changes<'a>(
    inodes: impl IntoIterator<Item = &'a Arc<Inode>>,
) -> Vec<std::sync::MutexGuard<'a, ()>> {
    let mut inodes: Vec<_> = inodes.into_iter().collect();
    inodes.sort_by_key(|inode| inode.ino);
    inodes.dedup_by_key(|inode| inode.ino);
    inodes
        .into_iter()
        .map(|inode| lock(&inode.change))
        .collect()
}
