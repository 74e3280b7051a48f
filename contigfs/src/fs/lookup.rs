//! Finding inodes by name.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};
use std::sync::{Arc, RwLockReadGuard, RwLockWriteGuard};

use super::{Fs, Inode, shared};
use crate::dir::{DirIndex, Slot};
use crate::error::{Corruption, FsError};
use crate::format::NAME_MAX;
use crate::inode::{Attr, FileKind, InodeNo};
use crate::store::BlockStore;

/// Whether the kernel is told the number of the inode, and will say when it has forgotten it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remember {
    Yes,
    No,
}

/// Symbolic links that a path may lead through.
const FOLLOWED_MAX: usize = 40;

/// A directory locked for looking up.
pub(super) type DirRead<'a> = RwLockReadGuard<'a, Option<Box<DirIndex>>>;
/// A directory locked for changing.
pub(super) type DirWrite<'a> = RwLockWriteGuard<'a, Option<Box<DirIndex>>>;

impl<S: BlockStore> Fs<S> {
    /// Attributes of the inode that `name` in `parent` leads to. `.` and `..` work.
    pub fn lookup(&self, parent: InodeNo, name: &OsStr) -> Result<Attr, FsError> {
        self.lookup_remember(parent, name, Remember::No)
    }

    /// As [`lookup`](Self::lookup); with [`Remember::Yes`] to be answered by [`forget`](Self::forget).
    pub(crate) fn lookup_remember(
        &self,
        parent: InodeNo,
        name: &OsStr,
        remember: Remember,
    ) -> Result<Attr, FsError> {
        let dir = self.inode(parent)?;
        if dir.kind != FileKind::Directory {
            return Err(FsError::NotDirectory);
        }
        let name = name.as_bytes();
        if name.len() > NAME_MAX {
            return Err(FsError::NameTooLong);
        }
        let index = self.read_dir_index(&dir)?;
        let inode = match name {
            b"." => Arc::clone(&dir),
            b".." => self.inode(dir.state().record.parent.ok_or(FsError::NotFound)?)?,
            _ => {
                let slot = index_of(&index).get(name).ok_or(FsError::NotFound)?;
                self.child(parent, slot)?
            }
        };
        if remember == Remember::Yes {
            inode.state().lookups += 1;
        }
        Ok(self.attr_of(&inode))
    }

    /// Attributes of an inode that has a name, or is open, to be answered by [`forget`](Self::forget).
    pub(crate) fn remember(&self, ino: InodeNo) -> Result<Attr, FsError> {
        let inode = self.inode(ino)?;
        {
            let mut state = inode.state();
            if state.dead || state.record.nlink == 0 && state.opens == 0 {
                return Err(FsError::NotFound);
            }
            state.lookups += 1;
        }
        Ok(self.attr_of(&inode))
    }

    /// The inode that a path leads to, from the root; symbolic links are followed.
    pub fn lookup_path(&self, path: impl AsRef<Path>) -> Result<InodeNo, FsError> {
        let mut links = 0;
        self.walk(InodeNo::ROOT, path.as_ref(), &mut links)
    }

    fn walk(&self, mut at: InodeNo, path: &Path, links: &mut usize) -> Result<InodeNo, FsError> {
        for component in path.components() {
            let name = match component {
                Component::RootDir | Component::Prefix(_) => {
                    at = InodeNo::ROOT;
                    continue;
                }
                Component::CurDir => OsStr::new("."),
                Component::ParentDir => OsStr::new(".."),
                Component::Normal(name) => name,
            };
            let found = self.lookup(at, name)?;
            at = if found.kind == FileKind::Symlink {
                *links += 1;
                if *links > FOLLOWED_MAX {
                    return Err(FsError::LinkLoop);
                }
                let target = self.readlink(found.ino)?;
                self.walk(at, Path::new(OsStr::from_bytes(&target)), links)?
            } else {
                found.ino
            };
        }
        Ok(at)
    }

    /// The inode of an entry of `dir`: there must be one, of the kind that the entry says, and another than `dir`, which
    /// is locked.
    pub(super) fn child(&self, dir: InodeNo, slot: Slot) -> Result<Arc<Inode>, FsError> {
        let wrong = |what| Corruption::Entry {
            dir,
            unit: slot.unit,
            what,
        };
        if slot.ino == dir {
            return Err(wrong("leads to its own directory").into());
        }
        let inode = self.inode(slot.ino).map_err(|error| match error {
            FsError::NotFound => wrong("leads to an inode that does not exist").into(),
            other => other,
        })?;
        if inode.kind != slot.kind {
            return Err(wrong("leads to an inode of another kind").into());
        }
        Ok(inode)
    }

    /// Locks a live directory for looking up.
    pub(super) fn read_dir_index<'a>(&self, dir: &'a Arc<Inode>) -> Result<DirRead<'a>, FsError> {
        loop {
            {
                let content = shared(&dir.content);
                dir.live_directory()?;
                if content.is_some() {
                    return Ok(content);
                }
            }
            drop(self.write_dir_index(dir)?);
        }
    }

    /// Locks a live directory for changing.
    pub(super) fn write_dir_index<'a>(&self, dir: &'a Arc<Inode>) -> Result<DirWrite<'a>, FsError> {
        let mut content = dir.change_content();
        dir.live_directory()?;
        if content.is_none() {
            let record = dir.state().record;
            let range = record.range.ok_or(FsError::NotDirectory)?;
            let index = DirIndex::load(&self.store, dir.ino, range, record.size)?;
            *content = Some(Box::new(index));
        }
        Ok(content)
    }

    /// The kernel has forgotten the number `times` times.
    pub(crate) fn forget(&self, ino: InodeNo, times: u64) {
        let Ok(inode) = self.inode(ino) else { return };
        let mut state = inode.state();
        state.lookups = state.lookups.saturating_sub(times);
        let is_forgotten = state.lookups == 0;
        let gives_back = state.gives_back();
        let unused = state.is_unused();
        drop(state);
        if gives_back {
            self.give_back_number(&inode);
        } else if unused && let Err(error) = self.reap(&inode) {
            tracing::warn!(%error, %ino, "a file without names stays until the next mount");
        }
        if is_forgotten {
            self.cache.forgotten(ino);
        }
    }

    /// The kernel has gone, and does not say what it has forgotten with that.
    pub(crate) fn forget_replaced(&self) {
        for inode in self.cache.all(|state| state.replaced && state.lookups > 0) {
            let times = inode.state().lookups;
            self.forget(inode.ino, times);
        }
    }

    /// The number of an inode is free. The caller was told to by [`State::gives_back`](super::cache::State::gives_back).
    pub(super) fn give_back_number(&self, inode: &Arc<Inode>) {
        // First, because the next inode of this number is put there.
        self.cache.remove(inode);
        self.alloc().table.forget(inode.ino);
    }
}

/// The index in a locked directory.
pub(super) fn index_of(content: &Option<Box<DirIndex>>) -> &DirIndex {
    content
        .as_ref()
        .expect("a directory is locked only after its index was read")
}

/// As [`index_of`], to change it.
pub(super) fn index_of_mut(content: &mut Option<Box<DirIndex>>) -> &mut DirIndex {
    content
        .as_mut()
        .expect("a directory is locked only after its index was read")
}

/// Refuses what can not be the name of a new entry.
pub(super) fn check_new_name(name: &OsStr) -> Result<&[u8], FsError> {
    let name = name.as_bytes();
    if name.len() > NAME_MAX {
        return Err(FsError::NameTooLong);
    }
    match name {
        b"" => Err(FsError::NotFound),
        b"." | b".." => Err(FsError::Exists),
        _ if name.iter().any(|&byte| byte == b'/' || byte == 0) => Err(FsError::Invalid),
        _ => Ok(name),
    }
}

/// The entry of an existing name that is to be removed or renamed.
pub(super) fn find_old_name<'a>(
    index: &DirIndex,
    name: &'a OsStr,
) -> Result<(&'a [u8], Slot), FsError> {
    let name = name.as_bytes();
    if name.len() > NAME_MAX {
        return Err(FsError::NameTooLong);
    }
    if name == b"." || name == b".." {
        return Err(FsError::Invalid);
    }
    Ok((name, index.get(name).ok_or(FsError::NotFound)?))
}
