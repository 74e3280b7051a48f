//! Attributes of inodes and of the whole.

use std::sync::Arc;

use super::privileges::without_privileges;
use super::{Fs, Inode, Txn, lock};
use crate::error::FsError;
use crate::format::{INODES_MAX, InodeRecord, NAME_MAX};
use crate::inode::{Attr, FileKind, InodeNo, SetAttr, SetTime};
use crate::store::BlockStore;
use crate::time::Timestamp;

/// A grain has room for this many new inodes, entries and records counted together; an estimate.
const INODES_PER_GRAIN: u64 = 16;

/// How full the file system is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatFs {
    /// Grains that can be mapped.
    pub grains: u64,
    /// Grains that are not mapped.
    pub grains_free: u64,
    /// Those of them that can be had.
    pub grains_available: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// Inodes that could still be made; an estimate, since they share the space with data.
    pub inodes_free: u64,
    /// Longest name.
    pub name_max: u32,
}

impl<S: BlockStore> Fs<S> {
    /// Attributes of an inode.
    pub fn attr(&self, ino: InodeNo) -> Result<Attr, FsError> {
        let inode = self.inode(ino)?;
        let state = *inode.state();
        if state.dead && state.opens == 0 && state.lookups == 0 {
            return Err(FsError::NotFound);
        }
        Ok(self.attr_of(&inode))
    }

    /// Size of a file that somebody remembers. Unlike [`attr`](Self::attr) it does not count what is mapped.
    pub(crate) fn size(&self, ino: InodeNo) -> Result<u64, FsError> {
        Ok(self.inode(ino)?.state().size)
    }

    /// Attributes with the number of mapped grains, counted anew after a change.
    pub(super) fn attr_of(&self, inode: &Arc<Inode>) -> Attr {
        let state = *inode.state();
        let grains = state.grains.unwrap_or_else(|| {
            let on_its_way = state.record.relocation.map(|relocation| relocation.to);
            let ranges = [state.record.range, on_its_way].into_iter().flatten();
            let data = ranges.map(|range| self.store.mapped_count(range.lbas()));
            let grains = data.sum::<u64>() + self.xattr_grains_mapped(inode.ino);
            let mut now = inode.state();
            if now.recounts == state.recounts && now.record == state.record {
                now.grains = Some(grains);
            }
            grains
        });
        state.attr(inode.ino, grains)
    }

    /// Changes attributes, all in one batch.
    pub fn set_attr(&self, ino: InodeNo, set: &SetAttr) -> Result<Attr, FsError> {
        let inode = self.inode(ino)?;
        let now = self.now();
        let apply = |record: &mut InodeRecord| apply_set(record, set, now);
        if let Some(size) = set.size {
            self.truncate(&inode, size, now, |txn| {
                self.xattrs_follow(txn, &inode, set)?;
                txn.edit(&inode, apply);
                Ok(())
            })?;
            return Ok(self.attr_of(&inode));
        }
        let _change = lock(&inode.change);
        {
            let mut state = inode.state();
            match (state.dead, state.opens > 0 || state.lookups > 0) {
                (true, false) => return Err(FsError::NotFound),
                (true, true) => {
                    // Without a name and without a record: memory is all there is of it.
                    apply(&mut state.record);
                    let attr = state.attr(ino, 0);
                    drop(state);
                    self.tell_privileges(&inode, attr.mode as u16 & 0o7777, None);
                    return Ok(attr);
                }
                (false, _) => {}
            }
        }
        let mut txn = Txn::default();
        self.xattrs_follow(&mut txn, &inode, set)?;
        txn.edit(&inode, apply);
        self.commit(txn)?;
        Ok(self.attr_of(&inode))
    }

    /// Grains that a file may have in place of what it holds, and why not more: [`FsError::NoSpace`] or
    /// [`FsError::Quota`].
    pub fn room_in_place_of(&self, ino: InodeNo) -> Result<(u64, FsError), FsError> {
        let inode = self.inode(ino)?;
        let held = self.attr_of(&inode).grains;
        let space = self.store.space();
        let free = space.available + held;
        let project = inode.state().record.project;
        let room = project.and_then(|project| self.room_of_project(project, held));
        Ok(match room {
            Some(room) if room < free => (room, FsError::Quota),
            _ => (free, FsError::NoSpace),
        })
    }

    /// How full the file system is for who looks from this inode: if it belongs to a project with limits, they are the
    /// size.
    pub fn statfs_at(&self, ino: InodeNo) -> StatFs {
        let all = self.statfs();
        let project = self.inode(ino).ok();
        let project = project.and_then(|inode| inode.state().record.project);
        match project {
            Some(project) => self.within_limits(project, all),
            None => all,
        }
    }

    /// Inodes in use, unless somebody is changing that just now, who may wait for the media.
    pub fn inodes_now(&self) -> Option<u64> {
        Some(self.alloc.try_lock().ok()?.table.inodes())
    }

    /// How full the file system is.
    pub fn statfs(&self) -> StatFs {
        let space = self.store.space();
        let grains_free = space.capacity.saturating_sub(space.mapped);
        let inodes = self.alloc().table.inodes();
        StatFs {
            grains: space.capacity,
            grains_free,
            grains_available: space.available,
            inodes,
            inodes_free: (space.available.saturating_mul(INODES_PER_GRAIN))
                .min(INODES_MAX - inodes),
            name_max: NAME_MAX as u32,
        }
    }
}

fn apply_set(record: &mut InodeRecord, set: &SetAttr, now: Timestamp) {
    let time = |set: SetTime| match set {
        SetTime::Now => now,
        SetTime::At(time) => time,
    };
    if (set.uid.is_some() || set.gid.is_some()) && record.kind != FileKind::Directory {
        record.perm = without_privileges(record.perm);
    }
    record.uid = set.uid.unwrap_or(record.uid);
    record.gid = set.gid.unwrap_or(record.gid);
    record.perm = set.perm.map_or(record.perm, |perm| perm & 0o7777);
    record.atime = set.atime.map_or(record.atime, time);
    record.mtime = set.mtime.map_or(record.mtime, time);
    record.ctime = now;
}
