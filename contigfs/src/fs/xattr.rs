//! Extended attributes: reading and changing them, and what changes them by the way.
//!
//! The attributes of an inode are read once and kept while they are few. A change is written as the difference of the
//! old grains and the new ones, in the batch of the operation that wants it. Two kinds mean something here: the access
//! control lists, which the permission bits follow, and `security.capability`, which ends when a file is changed.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use ftl::{AtomicBatch, GRAIN_BYTES, LbaRange};

use super::privileges::SET_GID;
use super::{Fs, Inode, Txn, lock};
use crate::acl::Acl;
use crate::error::{Corruption, FsError};
use crate::format::{
    Features, XATTR_BYTES_MAX, emit_xattrs, parse_xattrs, set_bytes, xattr_grain, xattr_grains,
    xattr_head, xattr_rest,
};
use crate::inode::{FileKind, InodeNo, SetAttr};
use crate::store::{BlockStore, ByteAddr, StoreError};
use crate::xattr::{NameSpace, XattrMode, XattrName, XattrSet};

/// Sets that take more bytes are read anew each time.
const KEPT_BYTES_MAX: usize = GRAIN_BYTES;

/// What memory knows of the attributes of an inode.
#[derive(Debug, Default)]
pub(crate) enum XattrCache {
    /// Not looked at yet.
    #[default]
    Unread,
    /// All of them.
    Whole(Arc<XattrSet>),
    /// There are too many to keep.
    Large {
        /// One of them is `security.capability`.
        capability: bool,
    },
}

impl XattrCache {
    pub(super) fn of(set: &Arc<XattrSet>) -> Self {
        if set_bytes(set) <= KEPT_BYTES_MAX {
            Self::Whole(Arc::clone(set))
        } else {
            Self::Large {
                capability: set.get(&XattrName::capability()).is_some(),
            }
        }
    }
}

impl<S: BlockStore> Fs<S> {
    /// Value of an extended attribute.
    ///
    /// # Errors
    /// [`FsError::NoXattr`] when there is none, [`FsError::NotSupported`] for names that begin with anything but
    /// `user.`, `trusted.` and `security.` and are not those of the two access control lists.
    pub fn xattr(&self, ino: InodeNo, name: &OsStr) -> Result<Vec<u8>, FsError> {
        let name = XattrName::parse(name.as_bytes())?;
        let inode = self.inode_or_memory(ino)?;
        let set = self.xattr_set(&inode)?;
        set.get(&name).map(Vec::from).ok_or(FsError::NoXattr)
    }

    /// Names of all extended attributes, in the order in which they were made.
    pub fn xattrs(&self, ino: InodeNo) -> Result<Vec<OsString>, FsError> {
        let inode = self.inode_or_memory(ino)?;
        let set = self.xattr_set(&inode)?;
        Ok(set.iter().map(|(name, _)| name.whole()).collect())
    }

    /// Sets an extended attribute. An access control list changes the permission bits with it; one that says no more
    /// than they do is not kept.
    ///
    /// # Errors
    /// Beside those of [`xattr`](Self::xattr): [`FsError::Exists`] and [`FsError::NoXattr`] as `mode` demands,
    /// [`FsError::XattrTooLong`] beyond 64 KiB, [`FsError::NoSpace`] when the attributes of the inode would take more
    /// than 192 KiB or their names more than 64 KiB, [`FsError::Invalid`] for an illegal access control list,
    /// [`FsError::NotPermitted`] for `user.` on anything but files and directories and for a default list on anything
    /// but a directory.
    pub fn set_xattr(
        &self,
        ino: InodeNo,
        name: &OsStr,
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), FsError> {
        self.set_xattr_as(ino, name, value, mode, true)
    }

    /// As [`set_xattr`](Self::set_xattr); unless `keep_setgid`, an access control list clears the setgid bit: who sets
    /// it is not in the group of the file.
    pub(crate) fn set_xattr_as(
        &self,
        ino: InodeNo,
        name: &OsStr,
        value: &[u8],
        mode: XattrMode,
        keep_setgid: bool,
    ) -> Result<(), FsError> {
        let name = XattrName::parse(name.as_bytes())?;
        if value.len() > XattrSet::VALUE_MAX {
            return Err(FsError::XattrTooLong);
        }
        let inode = self.inode_or_memory(ino)?;
        check_kind(inode.kind, name.space())?;
        let (value, acl) = match name.space() {
            NameSpace::AccessAcl | NameSpace::DefaultAcl => {
                match Acl::parse(value).map_err(|_| FsError::Invalid)? {
                    Some(acl) => (acl.emit(), Some(acl)),
                    None => return self.remove(&inode, &name),
                }
            }
            _ => (value.to_vec(), None),
        };
        // As in Linux, lists are always set, never only made or only replaced.
        let mode = acl.as_ref().map_or(mode, |_| XattrMode::Set);
        let access = acl.filter(|_| name.space() == NameSpace::AccessAcl);
        self.change_xattrs(&inode, |txn| {
            self.edit_xattrs(txn, &inode, |set| {
                match (&access, mode, set.get(&name)) {
                    (Some(acl), ..) if acl.is_minimal() => drop(set.remove(&name)),
                    (_, XattrMode::Create, Some(_)) => return Err(FsError::Exists),
                    (_, XattrMode::Replace, None) => return Err(FsError::NoXattr),
                    _ => drop(set.put(name, &value)),
                }
                Ok(())
            })?;
            txn.edit(&inode, |record| {
                if let Some(acl) = &access {
                    let kept = if keep_setgid {
                        !0o777
                    } else {
                        !(0o777 | SET_GID)
                    };
                    record.perm = record.perm & kept | acl.perm_bits();
                }
            });
            Ok(true)
        })
    }

    /// Takes an extended attribute away. The permission bits stay as they are when it is an access control list.
    ///
    /// Attributes that can not be read any more all go when any of them is taken away.
    ///
    /// # Errors
    /// [`FsError::NoXattr`] when there is none; not for access control lists, as on other Linux file systems.
    pub fn remove_xattr(&self, ino: InodeNo, name: &OsStr) -> Result<(), FsError> {
        let name = XattrName::parse(name.as_bytes())?;
        self.remove(&self.inode_or_memory(ino)?, &name)
    }

    fn remove(&self, inode: &Arc<Inode>, name: &XattrName) -> Result<(), FsError> {
        let optional = matches!(name.space(), NameSpace::AccessAcl | NameSpace::DefaultAcl);
        self.change_xattrs(inode, |txn| {
            let set = match self.xattr_set(inode) {
                Err(
                    FsError::Corrupt(Corruption::Xattrs { .. })
                    | FsError::Store(StoreError::Damaged { .. }),
                ) => {
                    self.trim_xattrs(inode.ino, &mut txn.batch);
                    txn.xattrs.push((Arc::clone(inode), Arc::default()));
                    return Ok(true);
                }
                set => set?,
            };
            match (set.get(name), optional) {
                (None, false) => Err(FsError::NoXattr),
                (None, true) => Ok(false),
                (Some(_), _) => {
                    self.edit_xattrs(txn, inode, |set| {
                        set.remove(name);
                        Ok(())
                    })?;
                    Ok(true)
                }
            }
        })
    }

    /// An inode that exists, or that somebody still remembers.
    fn inode_or_memory(&self, ino: InodeNo) -> Result<Arc<Inode>, FsError> {
        let inode = self.inode(ino)?;
        let state = *inode.state();
        if state.dead && state.opens == 0 && state.lookups == 0 {
            return Err(FsError::NotFound);
        }
        Ok(inode)
    }

    /// Commits a change of attributes, with the time of it, unless `change` says that there is none. For an inode that is gone but
    /// remembered, memory changes alone.
    fn change_xattrs(
        &self,
        inode: &Arc<Inode>,
        change: impl FnOnce(&mut Txn) -> Result<bool, FsError>,
    ) -> Result<(), FsError> {
        let _change = lock(&inode.change);
        let mut txn = Txn::default();
        if !change(&mut txn)? {
            return Ok(());
        }
        if inode.state().dead {
            self.tell_privileges_of(&txn);
            txn.apply_to_memory(inode);
            return Ok(());
        }
        let now = self.now();
        txn.edit(inode, |record| record.ctime = now);
        self.commit(txn)?;
        inode.state().count_anew();
        Ok(())
    }

    /// The attributes of an inode, from memory or from media.
    pub(super) fn xattr_set(&self, inode: &Inode) -> Result<Arc<XattrSet>, FsError> {
        let mut cache = lock(&inode.xattrs);
        if let XattrCache::Whole(set) = &*cache {
            return Ok(Arc::clone(set));
        }
        // Nothing that is remembered: if its end fails, it has them again.
        if inode.state().dead {
            return Ok(Arc::default());
        }
        let set = Arc::new(self.read_xattrs(inode)?);
        *cache = XattrCache::of(&set);
        Ok(set)
    }

    /// The generation that the attributes of an inode claim, for want of a record; 0 when there are none. Whether they are
    /// whole is found when they are read.
    pub(super) fn generation_by_xattrs(&self, ino: InodeNo) -> u64 {
        let head = xattr_head(ino);
        let mut bytes = [0; 8];
        let is_there = self.uses_xattrs()
            && self.store.next_mapped(LbaRange::new(head, 1)).is_some()
            && self.store.read(ByteAddr::new(head, 0), &mut bytes).is_ok();
        match is_there {
            true => u64::from_le_bytes(bytes),
            false => 0,
        }
    }

    fn read_xattrs(&self, inode: &Inode) -> Result<XattrSet, FsError> {
        let ino = inode.ino;
        let state = *inode.state();
        let head = LbaRange::new(xattr_head(ino), 1);
        if !self.uses_xattrs() || self.store.next_mapped(head).is_none() {
            return Ok(XattrSet::default());
        }
        let mut bytes = vec![0; GRAIN_BYTES];
        self.store.read(ByteAddr::new(head.start, 0), &mut bytes)?;
        let head = bytes.first_chunk().expect("a whole grain was read");
        bytes.resize(xattr_grains(ino, head)? * GRAIN_BYTES, 0);
        if bytes.len() > GRAIN_BYTES {
            let rest = ByteAddr::new(xattr_rest(ino).start, 0);
            self.store.read(rest, &mut bytes[GRAIN_BYTES..])?;
        }
        Ok(parse_xattrs(ino, state.record.generation, &bytes)?)
    }

    /// Puts changed attributes into a transaction; once for each inode. The caller holds `change`.
    pub(super) fn edit_xattrs(
        &self,
        txn: &mut Txn,
        inode: &Arc<Inode>,
        edit: impl FnOnce(&mut XattrSet) -> Result<(), FsError>,
    ) -> Result<(), FsError> {
        let before = self.xattr_set(inode)?;
        let mut after = XattrSet::clone(&before);
        edit(&mut after)?;
        if after == *before {
            return Ok(());
        }
        if set_bytes(&after) > XATTR_BYTES_MAX || after.names_bytes() > XattrSet::NAMES_MAX {
            return Err(FsError::NoSpace);
        }
        if !self.has_xattr_space {
            return Err(FsError::NotSupported);
        }
        assert!(
            txn.xattrs.iter().all(|(other, _)| other.ino != inode.ino),
            "one change of attributes per inode and batch"
        );
        let generation = inode.state().record.generation;
        let old = emit_xattrs(inode.ino, generation, &before);
        let new = emit_xattrs(inode.ino, generation, &after);
        emit_difference(inode.ino, &old, &new, &mut txn.batch);
        txn.xattrs.push((Arc::clone(inode), Arc::new(after)));
        Ok(())
    }

    /// Adds what ends the attributes of an inode, without a look at them.
    pub(super) fn trim_xattrs(&self, ino: InodeNo, batch: &mut AtomicBatch) {
        if !self.uses_xattrs() {
            return;
        }
        for grains in [LbaRange::new(xattr_head(ino), 1), xattr_rest(ino)] {
            if self.store.next_mapped(grains).is_some() {
                batch.trim(grains);
            }
        }
    }

    /// Grains that the attributes of an inode take.
    pub(super) fn xattr_grains_mapped(&self, ino: InodeNo) -> u64 {
        if !self.uses_xattrs() {
            return 0;
        }
        let head = LbaRange::new(xattr_head(ino), 1);
        match self.store.mapped_count(head) {
            0 => 0,
            head => head + self.store.mapped_count(xattr_rest(ino)),
        }
    }

    /// Whether anything lies where attributes lie.
    pub(super) fn uses_xattrs(&self) -> bool {
        self.uses(Features::XATTRS)
    }

    /// What a change of attributes of the `stat` kind means for the extended ones: an access control list follows the
    /// permission bits, and capabilities end with a new owner or size, but for those of a directory, which nobody runs. The caller
    /// holds `change`.
    pub(super) fn xattrs_follow(
        &self,
        txn: &mut Txn,
        inode: &Arc<Inode>,
        set: &SetAttr,
    ) -> Result<(), FsError> {
        let ends_capability = inode.kind != FileKind::Directory
            && (set.uid.is_some() || set.gid.is_some() || set.size.is_some());
        if set.perm.is_none() && !ends_capability {
            return Ok(());
        }
        let xattrs = match self.xattr_set(inode) {
            // What can not be read gives nobody anything, so only a list that has to follow must be there.
            Err(
                FsError::Corrupt(_)
                | FsError::Store(StoreError::Damaged { .. } | StoreError::Unreadable { .. }),
            ) if set.perm.is_none() => {
                return Ok(());
            }
            found => found?,
        };
        if xattrs.is_empty() {
            return Ok(());
        }
        let name = XattrName::access_acl();
        let list = set.perm.and_then(|perm| {
            let acl = Acl::parse(xattrs.get(&name)?).ok()??;
            Some(acl.with_perm_bits(perm).emit())
        });
        self.edit_xattrs(txn, inode, |xattrs| {
            if let Some(list) = list {
                xattrs.put(name, &list);
            }
            if ends_capability {
                xattrs.remove(&XattrName::capability());
            }
            Ok(())
        })
    }

    /// What the default access control list of a directory gives to a new entry with these permission bits: the bits
    /// that it gets, and its attributes.
    pub(super) fn inherit_acl(
        &self,
        dir: &Inode,
        kind: FileKind,
        perm: u16,
        umask: u16,
    ) -> Result<(u16, XattrSet), FsError> {
        let mut xattrs = XattrSet::default();
        if kind == FileKind::Symlink {
            return Ok((perm, xattrs));
        }
        let set = self.xattr_set(dir)?;
        let Some(list) = set.get(&XattrName::default_acl()) else {
            return Ok((perm & !umask, xattrs));
        };
        let wrong = Corruption::Xattrs {
            ino: dir.ino,
            what: "illegal access control list",
        };
        let acl = Acl::parse(list).ok().flatten().ok_or(wrong)?;
        let inherited = acl.inherit(perm);
        if let Some(access) = inherited.access {
            xattrs.put(XattrName::access_acl(), &access.emit());
        }
        if kind == FileKind::Directory {
            xattrs.put(XattrName::default_acl(), list);
        }
        Ok((perm & !0o777 | inherited.perm, xattrs))
    }
}

/// Which kinds of files may have which attributes.
fn check_kind(kind: FileKind, space: NameSpace) -> Result<(), FsError> {
    match (space, kind) {
        (NameSpace::User, FileKind::File | FileKind::Directory) => Ok(()),
        (NameSpace::User, _) => Err(FsError::NotPermitted),
        (NameSpace::AccessAcl | NameSpace::DefaultAcl, FileKind::Symlink) => {
            Err(FsError::NotSupported)
        }
        (NameSpace::DefaultAcl, FileKind::Directory) => Ok(()),
        (NameSpace::DefaultAcl, _) => Err(FsError::NotPermitted),
        _ => Ok(()),
    }
}

/// Adds the bytes that differ, and trims the grains that are needed no more.
fn emit_difference(ino: InodeNo, old: &[u8], new: &[u8], batch: &mut AtomicBatch) {
    const UNMAPPED: &[u8] = &[0; GRAIN_BYTES];
    let mut old_grains = old.chunks_exact(GRAIN_BYTES);
    for (at, new) in new.chunks_exact(GRAIN_BYTES).enumerate() {
        let old = old_grains.next().unwrap_or(UNMAPPED);
        let differs = |(_, (a, b)): &(usize, (&u8, &u8))| a != b;
        let pairs = || old.iter().zip(new).enumerate();
        let Some((first, _)) = pairs().find(differs) else {
            continue;
        };
        let last = pairs().rev().find(differs).map_or(first, |(last, _)| last);
        batch.patch(xattr_grain(ino, at), first as u16, &new[first..=last]);
    }
    let (old, new) = (old.len() / GRAIN_BYTES, new.len() / GRAIN_BYTES);
    if new == 0 && old > 0 {
        batch.trim(LbaRange::new(xattr_head(ino), 1));
    }
    if old > new.max(1) {
        let first = xattr_grain(ino, new.max(1));
        batch.trim(LbaRange::new(first, (old - new.max(1)) as u64));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INO: InodeNo = InodeNo(3);

    fn difference(old: &[u8], new: &[u8]) -> AtomicBatch {
        let mut batch = AtomicBatch::new();
        emit_difference(INO, old, new, &mut batch);
        batch
    }

    /// Only what changed is written; grains that end are trimmed, the first with the last attribute.
    #[test]
    fn differences() {
        let zeros = vec![0; 3 * GRAIN_BYTES];
        let mut changed = zeros.clone();
        changed[GRAIN_BYTES + 5..GRAIN_BYTES + 8].copy_from_slice(b"abc");
        let batch = difference(&zeros, &changed);
        assert_eq!(batch.patches, [(xattr_grain(INO, 1), 5, b"abc".to_vec())]);
        assert!(batch.trims.is_empty());
        let batch = difference(&zeros, &zeros[..GRAIN_BYTES]);
        assert_eq!(batch.trims, [LbaRange::new(xattr_rest(INO).start, 2)]);
        let batch = difference(&zeros, &[]);
        let head = LbaRange::new(xattr_head(INO), 1);
        assert_eq!(batch.trims, [head, LbaRange::new(xattr_rest(INO).start, 2)]);
        assert!(difference(&zeros, &zeros).patches.is_empty());
    }
}
