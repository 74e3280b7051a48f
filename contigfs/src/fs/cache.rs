//! Inodes in memory.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, RwLock};

use super::lock;
use super::sharing::Sharing;
use super::xattr::XattrCache;
use crate::dir::DirIndex;
use crate::error::FsError;
use crate::format::{InodeRecord, Range};
use crate::inode::{Attr, FileKind, InodeNo};
use crate::store::StoreError;

const SHARDS: usize = 64;
/// A shard with fewer inodes is not searched for some that nobody uses.
const SWEEP_MIN: usize = 1024;

/// An inode in memory. The lock order is in the parent module.
#[derive(Debug)]
pub(crate) struct Inode {
    pub(crate) ino: InodeNo,
    pub(crate) kind: FileKind,
    /// Guards the content; a directory keeps its index here once it was read.
    pub(crate) content: RwLock<Option<DirIndex>>,
    /// Held by whoever writes the record, until it is durable.
    pub(crate) change: Mutex<()>,
    /// Extended attributes, if they were read; held while they change on media.
    pub(crate) xattrs: Mutex<XattrCache>,
    /// The memory that the pages of a file lie in, if they are shared. Changed by whoever holds `content` exclusively.
    pub(super) sharing: Mutex<Option<Sharing>>,
    state: Mutex<State>,
}

/// The part of an inode that changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct State {
    /// As on media, except that times may be newer (`times_dirty`). Its `size` is the durable one.
    pub(crate) record: InodeRecord,
    /// Size that readers see.
    pub(crate) size: u64,
    /// The times of `record` are not on media yet.
    pub(crate) times_dirty: bool,
    /// What is known of the bytes behind the end.
    pub(crate) tail: Tail,
    /// Opens without close: the inode outlives its last name.
    pub(crate) opens: u64,
    /// Made without a name, and may still get one.
    pub(crate) linkable: bool,
    /// How often the kernel was told the number: the number is not reused.
    pub(crate) lookups: u64,
    /// Its last name was given to another by a rename: whoever looked the name up before still finds this one.
    pub(crate) replaced: bool,
    /// Holders of the extent: the file does not move.
    pub(crate) holds: u64,
    /// The record is gone, or about to go.
    pub(crate) dead: bool,
    /// Mapped grains, if counted since the last change.
    pub(crate) grains: Option<u64>,
    /// Whether and how often the file has been relocated.
    pub(crate) journey: Journey,
}

/// Whether and how often a file has been relocated since it was loaded. Who looks at the place of a file without
/// holding `content` compares it before and after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Journey {
    /// At its place, after so many relocations.
    Settled(u64),
    /// On its way, after so many.
    Relocating(u64),
}

/// What is known of the bytes behind the end of a file, in its last grain and in the grains after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tail {
    /// A write that made the file longer may have been cut off by a crash or an error: there may be anything.
    Unknown,
    /// They read as zeros.
    Zeros,
}

impl Inode {
    pub(crate) fn new(
        ino: InodeNo,
        record: InodeRecord,
        tail: Tail,
        index: Option<DirIndex>,
    ) -> Self {
        Self {
            ino,
            kind: record.kind,
            content: RwLock::new(index),
            change: Mutex::new(()),
            xattrs: Mutex::default(),
            sharing: Mutex::default(),
            state: Mutex::new(State {
                record,
                size: record.size,
                times_dirty: false,
                tail,
                opens: 0,
                linkable: false,
                lookups: 0,
                replaced: false,
                holds: 0,
                dead: false,
                grains: None,
                journey: Journey::Settled(0),
            }),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The range of a file, directory or link.
    pub(crate) fn range(&self) -> Result<Range, FsError> {
        self.state().place().map(|(range, _)| range)
    }

    /// Fails unless this is a live directory. Meaningful while `content` is held.
    pub(crate) fn live_directory(&self) -> Result<(), FsError> {
        if self.kind != FileKind::Directory {
            return Err(FsError::NotDirectory);
        }
        if self.state().dead {
            Err(FsError::NotFound)
        } else {
            Ok(())
        }
    }

    /// Fails unless this is a live regular file. Meaningful while `content` is held.
    pub(crate) fn live_file(&self) -> Result<(), FsError> {
        match self.kind {
            FileKind::File if self.state().dead => Err(FsError::NotFound),
            FileKind::File => Ok(()),
            FileKind::Directory => Err(FsError::IsDirectory),
            _ => Err(FsError::Invalid),
        }
    }
}

impl State {
    /// Whether a crash would lose something of the record.
    pub(crate) fn dirty(&self) -> bool {
        !self.dead && (self.times_dirty || self.size != self.record.size)
    }

    /// Where a file, directory or link lies and how long it is for readers. Meaningful while `content` is held.
    ///
    /// # Errors
    /// [`StoreError::Failed`] when a relocation could not be carried on: then the volume takes no changes, and part of
    /// the file is at one place, part at another.
    pub(crate) fn place(&self) -> Result<(Range, u64), FsError> {
        if self.record.relocation.is_some() {
            return Err(StoreError::Failed.into());
        }
        Ok((self.record.range.ok_or(FsError::Invalid)?, self.size))
    }

    /// The attributes; `grains` is filled in by the caller.
    pub(crate) fn attr(&self, ino: InodeNo, grains: u64) -> Attr {
        let record = &self.record;
        Attr {
            ino,
            generation: record.generation,
            kind: record.kind,
            mode: u32::from(record.kind.code()) << 12 | u32::from(record.perm),
            nlink: record.nlink,
            uid: record.uid,
            gid: record.gid,
            rdev: record.rdev,
            size: self.size,
            grains,
            atime: record.atime,
            mtime: record.mtime,
            ctime: record.ctime,
            btime: record.btime,
        }
    }
}

/// All inodes in memory.
#[derive(Debug)]
pub(super) struct Cache {
    shards: Vec<Mutex<Shard>>,
}

#[derive(Debug)]
struct Shard {
    inodes: HashMap<InodeNo, Arc<Inode>>,
    /// With so many inodes it is searched for some that nobody uses. Twice as many as were in use the last time, so
    /// that each inode added pays for looking at two, however many the kernel remembers.
    sweep_at: usize,
}

impl Default for Shard {
    fn default() -> Self {
        Self {
            inodes: HashMap::new(),
            sweep_at: SWEEP_MIN,
        }
    }
}

impl Shard {
    fn insert(&mut self, inode: Arc<Inode>) -> Option<Arc<Inode>> {
        if self.inodes.len() >= self.sweep_at {
            self.inodes
                .retain(|_, inode| Arc::strong_count(inode) > 1 || !inode.state().idle());
            self.sweep_at = SWEEP_MIN.max(self.inodes.len() * 2);
        }
        self.inodes.insert(inode.ino, inode)
    }
}

impl Cache {
    pub(super) fn new() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
        }
    }

    fn shard(&self, ino: InodeNo) -> MutexGuard<'_, Shard> {
        lock(&self.shards[ino.0 as usize % SHARDS])
    }

    /// The inode, loaded if necessary. The shard stays locked meanwhile, so nobody loads a record twice or while
    /// another copy of it is changed and dropped.
    pub(super) fn get(
        &self,
        ino: InodeNo,
        load: impl FnOnce() -> Result<Inode, FsError>,
    ) -> Result<Arc<Inode>, FsError> {
        let mut shard = self.shard(ino);
        if let Some(inode) = shard.inodes.get(&ino) {
            return Ok(Arc::clone(inode));
        }
        let inode = Arc::new(load()?);
        shard.insert(Arc::clone(&inode));
        Ok(inode)
    }

    /// Adds an inode that was just created.
    pub(super) fn insert(&self, inode: &Arc<Inode>) {
        let previous = self.shard(inode.ino).insert(Arc::clone(inode));
        assert!(previous.is_none(), "{:?} was created twice", inode.ino);
    }

    pub(super) fn remove(&self, ino: InodeNo) {
        self.shard(ino).inodes.remove(&ino);
    }

    /// Every inode in memory that has something to write.
    pub(super) fn dirty(&self) -> Vec<Arc<Inode>> {
        self.all(State::dirty)
    }

    /// Every inode in memory that is so.
    pub(super) fn all(&self, is: impl Fn(&State) -> bool) -> Vec<Arc<Inode>> {
        let mut found = Vec::new();
        for shard in &self.shards {
            let shard = lock(shard);
            let inodes = shard.inodes.values();
            found.extend(inodes.filter(|inode| is(&inode.state())).cloned());
        }
        found
    }
}

impl State {
    /// Whether nothing is lost when memory forgets the inode. One without names waits to be freed.
    fn idle(&self) -> bool {
        let in_use = self.opens > 0 || self.lookups > 0 || self.holds > 0;
        !self.dirty() && !self.dead && !self.record.orphan && !in_use
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::{FormatOptions, Fs, NewNode};
    use crate::mem_store::MemStore;
    use std::ffi::OsStr;

    /// Memory forgets inodes that nobody uses, also those that were just made, and keeps the others.
    #[test]
    fn idle_inodes_are_forgotten() {
        let store = MemStore::new(1_000_000);
        Fs::format(&store, &FormatOptions::default()).unwrap();
        let fs = Fs::mount(&store).unwrap();
        let make = |label: String| {
            let made = fs.create(InodeNo::ROOT, OsStr::new(&label), &NewNode::file());
            made.unwrap().ino
        };
        let held = (SHARDS * SWEEP_MIN) as u64;
        let opened: Vec<_> = (0..held).map(|n| make(format!("open-{n}"))).collect();
        opened.iter().for_each(|&ino| fs.open(ino).unwrap());
        for n in 0..3 * held {
            make(format!("idle-{n}"));
        }
        let kept: usize = fs.cache.shards.iter().map(|s| lock(s).inodes.len()).sum();
        assert!(kept as u64 <= 2 * held + SHARDS as u64, "{kept} in memory");
        opened.iter().for_each(|&ino| fs.close(ino).unwrap());
    }
}
