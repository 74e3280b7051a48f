//! New names: files, directories, devices, symbolic links, hard links.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use super::format::DIRECTORY_ORDER;
use super::lookup::{Remember, check_new_name, index_of_mut};
use super::privileges::SET_GID;
use super::{Fs, Inode, Tail, Txn, lock, shared};
use crate::buddy::Order;
use crate::dir::{DirIndex, DirPlan};
use crate::error::FsError;
use crate::format::{InodeRecord, Range, TARGET_MAX};
use crate::inode::{Attr, FileKind, InodeNo};
use crate::store::BlockStore;
use crate::time::Timestamp;
use crate::xattr::XattrSet;

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

    /// Makes a file without a name and opens it, as `O_TMPFILE` does: it inherits from `dir` as a new entry would. With
    /// `linkable`, [`link`](Self::link) can give it a name as long as it is open; else, or if nobody does, the last
    /// [`close`](Self::close) frees it. So does the next mount after a crash.
    pub fn create_unnamed(
        &self,
        dir: InodeNo,
        node: &NewNode,
        linkable: bool,
    ) -> Result<Attr, FsError> {
        self.create_unnamed_remember(dir, node, linkable, Remember::No)
    }

    /// As [`create_unnamed`](Self::create_unnamed).
    pub(crate) fn create_unnamed_remember(
        &self,
        dir: InodeNo,
        node: &NewNode,
        linkable: bool,
        remember: Remember,
    ) -> Result<Attr, FsError> {
        if node.kind != FileKind::File {
            return Err(FsError::Invalid);
        }
        let dir = self.inode(dir)?;
        let _content = shared(&dir.content);
        dir.live_directory()?;
        let _change = lock(&dir.change);
        let (inode, xattrs) = self.new_inode(&dir, node, None, self.now())?;
        {
            let mut state = inode.state();
            state.record.nlink = 0;
            state.record.orphan = true;
            state.linkable = linkable;
            state.opens = 1;
            state.lookups = u64::from(remember == Remember::Yes);
        }
        let created = self.create_txn(&inode, xattrs);
        if let Err(error) = created.and_then(|txn| self.commit(txn)) {
            self.unreserve_inode(&inode);
            return Err(error);
        }
        Ok(self.attr_of(&inode))
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
        let content = shared(&inode.content);
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
        drop(content);
        self.note_read(&inode);
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
        self.check_same_project(&inode, &dir)?;
        {
            let state = inode.state();
            if state.dead || state.record.nlink == 0 && !state.linkable {
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
            record.orphan = false;
            record.ctime = now;
        });
        self.commit(txn)?;
        index.apply(plan);
        inode.state().linkable = false;
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
        if is_dir && dir.state().record.nlink >= LINKS_MAX {
            return Err(FsError::TooManyLinks);
        }
        let now = self.now();
        let (inode, xattrs) = self.new_inode(&dir, node, target, now)?;
        let mut plan = DirPlan::default();
        let planned = index.plan_add(&mut plan, name, inode.ino, node.kind);
        let committed = planned.and_then(|()| {
            let mut txn = self.create_txn(&inode, xattrs)?;
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

    /// An inode with what it inherits from the directory, whose `change` the caller holds: in memory, dead until the
    /// commit.
    fn new_inode(
        &self,
        dir: &Inode,
        node: &NewNode,
        target: Option<&[u8]>,
        now: Timestamp,
    ) -> Result<(Arc<Inode>, XattrSet), FsError> {
        let (mode, umask) = (node.mode & 0o7777, node.umask & 0o777);
        let (perm, xattrs) = self.inherit_acl(dir, node.kind, mode as u16, umask as u16)?;
        let parent = dir.state().record;
        let inode = self.reserve_inode(&parent, dir.ino, node, perm, target, now)?;
        Ok((inode, xattrs))
    }

    /// A transaction that writes a new inode.
    fn create_txn(&self, inode: &Arc<Inode>, xattrs: XattrSet) -> Result<Txn, FsError> {
        let mut txn = Txn::default();
        txn.create(inode);
        self.edit_xattrs(&mut txn, inode, |set| {
            *set = xattrs;
            Ok(())
        })?;
        Ok(txn)
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
            FileKind::File => Some(self.file_order),
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
            relocation: None,
            project: parent.project,
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
        if let Err(error) = self.join_project(ino, &record) {
            self.release_range(range);
            self.alloc().table.give_back(ino);
            return Err(error);
        }
        let index = range
            .filter(|_| is_dir)
            .map(|range| DirIndex::empty(ino, range));
        let inode = Arc::new(Inode::new(ino, record, Tail::Zeros, index));
        inode.state().dead = true;
        self.cache.insert(&inode);
        Ok(inode)
    }

    fn unreserve_inode(&self, inode: &Arc<Inode>) {
        self.cache.remove(inode);
        let record = inode.state().record;
        self.leave_project(inode.ino, &record);
        self.release_range(record.range);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::FormatOptions;
    use crate::mem_store::MemStore;

    /// A file without a name is given one once: when that is gone, it is like any other whose last name went. Nor has it ever been
    /// for names if it was made so (linkat(2), open(2)).
    #[test]
    fn a_first_name() {
        let store = MemStore::new(100);
        Fs::format(&store, &FormatOptions::default()).unwrap();
        let fs = Fs::mount(&store).unwrap();
        let (root, name) = (InodeNo::ROOT, OsStr::new);
        let unnamed = |linkable| fs.create_unnamed(root, &NewNode::file(), linkable).unwrap();
        let (file, never) = (unnamed(true).ino, unnamed(false).ino);
        fs.link(file, root, name("a")).unwrap();
        fs.unlink(root, name("a")).unwrap();
        for ino in [file, never] {
            assert_eq!(fs.link(ino, root, name("b")), Err(FsError::NotFound));
            fs.close(ino).unwrap();
        }
        assert_eq!(fs.lookup(root, name("b")), Err(FsError::NotFound));
    }

    /// The last link and the last subdirectory that fit are made; one more is an answer, and changes nothing.
    #[test]
    fn too_many_links() {
        let store = MemStore::new(100);
        Fs::format(&store, &FormatOptions::default()).unwrap();
        let fs = Fs::mount(&store).unwrap();
        let (root, name) = (InodeNo::ROOT, OsStr::new);
        let file = fs.create(root, name("f"), &NewNode::file()).unwrap().ino;
        let dir = fs
            .create(root, name("d"), &NewNode::directory())
            .unwrap()
            .ino;
        for ino in [file, dir] {
            fs.inode(ino).unwrap().state().record.nlink = LINKS_MAX - 1;
        }
        assert_eq!(fs.link(file, root, name("l")).unwrap().nlink, LINKS_MAX);
        fs.create(dir, name("s"), &NewNode::directory()).unwrap();
        let calls = store.calls();
        assert_eq!(fs.link(file, root, name("m")), Err(FsError::TooManyLinks));
        let more = fs.create(dir, name("t"), &NewNode::directory());
        assert_eq!(more, Err(FsError::TooManyLinks));
        assert!(fs.create(dir, name("t"), &NewNode::file()).is_ok());
        assert_eq!(store.calls(), calls + 1);
        assert_eq!(fs.lookup(root, name("m")), Err(FsError::NotFound));
    }
}
