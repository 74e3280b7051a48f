//! Inodes in memory.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, RwLock, RwLockWriteGuard};

use super::sharing::Sharing;
use super::xattr::XattrCache;
use super::{exclusive, lock};
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
    /// Guards the content; a directory keeps its index here once it was read. Apart, since most inodes have none.
    pub(crate) content: RwLock<Option<Box<DirIndex>>>,
    /// How often somebody has held `content` to change it, other than by writing behind the end.
    changes: AtomicU64,
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
    /// How often it was cut off.
    pub(super) cuts: u64,
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
    /// It has gone, and the table keeps the number, which is still to be given back.
    freed: bool,
    /// Mapped grains, if counted since the last change.
    pub(crate) grains: Option<u64>,
    /// How often that was to be counted anew: a count that was begun before is not kept.
    pub(super) recounts: u64,
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

/// How much of a file is durable: so many bytes, unless it has been cut off since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Synced {
    size: u64,
    cuts: u64,
}

/// A moment at which nobody changed where the bytes of a file are, and how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    changes: u64,
    journey: Journey,
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
            content: RwLock::new(index.map(Box::new)),
            changes: AtomicU64::new(0),
            change: Mutex::new(()),
            xattrs: Mutex::default(),
            sharing: Mutex::default(),
            state: Mutex::new(State {
                record,
                size: record.size,
                cuts: 0,
                times_dirty: false,
                tail,
                opens: 0,
                linkable: false,
                lookups: 0,
                replaced: false,
                holds: 0,
                dead: false,
                freed: false,
                grains: None,
                recounts: 0,
                journey: Journey::Settled(0),
            }),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Holds the content to change it.
    pub(crate) fn change_content(&self) -> RwLockWriteGuard<'_, Option<Box<DirIndex>>> {
        let content = exclusive(&self.content);
        self.changes.fetch_add(1, Ordering::Relaxed);
        // Whoever copies a byte of what is changed from now on finds that counted.
        fence(Ordering::Release);
        content
    }

    /// This moment, of which [`is_as_at`](Self::is_as_at) can be asked. Meaningful while `content` is held.
    pub(crate) fn moment(&self) -> Moment {
        Moment {
            changes: self.changes.load(Ordering::Relaxed),
            journey: self.state().journey,
        }
    }

    /// Whether bytes that were copied before this are those of the file, from where they were at that moment. `content` need not
    /// be held.
    pub(crate) fn is_as_at(&self, moment: Moment) -> bool {
        fence(Ordering::Acquire);
        self.moment() == moment
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

    /// What a sync that begins now makes durable.
    pub(super) fn synced(&self) -> Synced {
        Synced {
            size: self.size,
            cuts: self.cuts,
        }
    }

    /// The size that the media may have when so much is durable, and at least that which they have.
    pub(super) fn size_to_record(&self, synced: Synced) -> u64 {
        // Who cut it off has written the size that it had then. What came behind that since was not synced.
        let size = match synced.cuts == self.cuts {
            true => synced.size,
            false => 0,
        };
        size.max(self.record.size).min(self.size)
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

    /// What is mapped has changed.
    pub(super) fn count_anew(&mut self) {
        self.grains = None;
        self.recounts += 1;
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
    /// So many were forgotten by the kernel since then. With as many as half of the inodes it is searched, too: each that
    /// is forgotten pays for two, and what the kernel gives up when it is short of memory, the shard does not keep.
    forgotten: usize,
}

impl Default for Shard {
    fn default() -> Self {
        Self {
            inodes: HashMap::new(),
            sweep_at: SWEEP_MIN,
            forgotten: 0,
        }
    }
}

impl Shard {
    fn insert(&mut self, inode: Arc<Inode>) -> Option<Arc<Inode>> {
        if self.inodes.len() >= self.sweep_at {
            self.sweep();
        }
        self.inodes.insert(inode.ino, inode)
    }

    fn forgotten(&mut self) {
        self.forgotten += 1;
        if self.forgotten >= SWEEP_MIN.max(self.inodes.len() / 2) {
            self.sweep();
        }
    }

    fn sweep(&mut self) {
        self.inodes
            .retain(|_, inode| Arc::strong_count(inode) > 1 || !inode.state().idle());
        self.sweep_at = SWEEP_MIN.max(self.inodes.len() * 2);
        self.inodes.shrink_to(self.sweep_at);
        self.forgotten = 0;
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

    /// Forgets this inode. Another one that has got its number meanwhile stays.
    pub(super) fn remove(&self, inode: &Arc<Inode>) {
        let mut shard = self.shard(inode.ino);
        let found = shard.inodes.get(&inode.ino);
        if found.is_some_and(|found| Arc::ptr_eq(found, inode)) {
            shard.inodes.remove(&inode.ino);
        }
    }

    /// The kernel does not know the number of this inode any more.
    pub(super) fn forgotten(&self, ino: InodeNo) {
        self.shard(ino).forgotten();
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
    /// The record of a dead inode has gone, and the table keeps the number.
    pub(super) fn has_gone(&mut self) {
        self.freed = true;
    }

    /// Whether to give the number back to the table: when the record has gone, since a batch under way would take that of the
    /// next inode of this number, and nobody remembers it. True once: the next time the number may be another inode's.
    pub(super) fn gives_back(&mut self) -> bool {
        let now = self.freed && self.opens == 0 && self.lookups == 0;
        self.freed &= !now;
        now
    }

    /// Whether nothing is lost when memory forgets the inode. One without names waits to be freed.
    fn idle(&self) -> bool {
        let in_use = self.opens > 0 || self.lookups > 0 || self.holds > 0;
        !self.dirty() && !self.dead && !self.record.orphan && !in_use
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::{FormatOptions, Fs, NewNode, Remember};
    use crate::inode::ProjectId;
    use crate::mem_store::MemStore;
    use crate::store::{BlockStore, ByteAddr};
    use ftl::{AccountId, AtomicBatch, Lba, LbaRange, Space};
    use std::ffi::OsStr;

    /// When something comes in between.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Moment {
        /// The batch that takes the record is about to be carried out.
        Before,
        /// It has been.
        Carried,
        /// Nobody is charged for the inode any more.
        Uncharged,
    }

    type Act = Box<dyn FnOnce() + Send>;

    /// A store under which something is done once, in the middle of an operation.
    struct Between {
        inner: MemStore,
        what: Mutex<Option<(Moment, Act)>>,
    }

    impl Between {
        fn comes(&self, now: Moment) {
            let what = lock(&self.what).take_if(|(moment, _)| *moment == now);
            if let Some((_, act)) = what {
                act();
            }
        }
    }

    impl BlockStore for Between {
        fn read(&self, at: ByteAddr, buf: &mut [u8]) -> Result<(), StoreError> {
            self.inner.read(at, buf)
        }

        fn write(&self, at: ByteAddr, data: &[u8]) -> Result<(), StoreError> {
            self.inner.write(at, data)
        }

        fn commit(&self, batch: AtomicBatch) -> Result<(), StoreError> {
            self.comes(Moment::Before);
            let result = self.inner.commit(batch);
            self.comes(Moment::Carried);
            result
        }

        fn sync(&self, range: LbaRange) -> Result<(), StoreError> {
            self.inner.sync(range)
        }

        fn next_mapped(&self, range: LbaRange) -> Option<Lba> {
            self.inner.next_mapped(range)
        }

        fn space(&self) -> Space {
            self.inner.space()
        }

        fn assign(&self, ranges: &[LbaRange], account: Option<AccountId>) {
            self.inner.assign(ranges, account);
            if account.is_none() {
                self.comes(Moment::Uncharged);
            }
        }
    }

    /// T1: whenever the kernel forgets a file that is being removed, the number stays with it until the record has gone, and is
    /// given back then, once.
    #[test]
    fn a_number_is_free_when_the_record_has_gone() {
        for moment in [Moment::Before, Moment::Carried, Moment::Uncharged] {
            let store = Arc::new(Between {
                inner: MemStore::new(1000),
                what: Mutex::new(None),
            });
            Fs::format(&store, &FormatOptions::default()).unwrap();
            let fs = Arc::new(Fs::mount(Arc::clone(&store)).unwrap());
            let make = |name: &str| {
                let (name, node) = (OsStr::new(name), NewNode::file());
                let made = fs.create_remember(InodeNo::ROOT, name, &node, Remember::Yes, false);
                made.unwrap().ino
            };
            let ino = make("old");
            fs.set_project(ino, ProjectId::new(1)).unwrap();
            let old = fs.inode(ino).unwrap();
            let forget = {
                let (fs, old) = (Arc::clone(&fs), Arc::clone(&old));
                move || {
                    fs.forget(ino, 1);
                    assert!(fs.alloc().table.allocate() > Some(ino), "{moment:?}");
                    let now = fs.inode(ino).unwrap();
                    assert!(Arc::ptr_eq(&now, &old), "{moment:?}: it is there twice");
                }
            };
            *lock(&store.what) = Some((moment, Box::new(forget)));
            fs.unlink(InodeNo::ROOT, OsStr::new("old")).unwrap();
            assert!(lock(&store.what).is_none(), "{moment:?}");
            assert!(fs.inode(ino).is_err(), "{moment:?}");
            assert_eq!(make("new"), ino, "{moment:?}: the number is lost");
            // Who had the old one and is late takes nothing from the new one.
            assert!(!old.state().gives_back(), "{moment:?}");
            fs.cache.remove(&old);
            assert_eq!(fs.inode(ino).unwrap().state().lookups, 1, "{moment:?}");
            assert!(make("next") > ino, "{moment:?}: two have the number");
        }
    }

    /// The same, whoever is the last to have it open or in memory.
    #[test]
    fn a_number_waits_for_the_last_who_uses_it() {
        let store = MemStore::new(100);
        Fs::format(&store, &FormatOptions::default()).unwrap();
        let fs = Fs::mount(&store).unwrap();
        let inode = fs.inode(InodeNo::ROOT).unwrap();
        let mut state = inode.state();
        (state.opens, state.lookups, state.dead) = (1, 1, true);
        assert!(!state.gives_back());
        state.has_gone();
        assert!(!state.gives_back());
        state.opens = 0;
        assert!(!state.gives_back());
        state.lookups = 0;
        assert!(state.gives_back() && !state.gives_back());
    }

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

    /// What the kernel forgets, memory forgets, too, though no other inode comes: the kernel gives up what it knows when
    /// the machine is short of memory, which does not help where the target keeps it.
    #[test]
    fn what_the_kernel_forgets_is_forgotten() {
        let store = MemStore::new(1_000_000);
        Fs::format(&store, &FormatOptions::default()).unwrap();
        let fs = Fs::mount(&store).unwrap();
        let made = 4 * (SHARDS * SWEEP_MIN) as u64;
        let known: Vec<_> = (0..made)
            .map(|n| {
                let (name, node) = (n.to_string(), NewNode::file());
                let name = OsStr::new(&name);
                let made = fs.create_remember(InodeNo::ROOT, name, &node, Remember::Yes, false);
                made.unwrap().ino
            })
            .collect();
        let kept = || -> usize { fs.cache.shards.iter().map(|s| lock(s).inodes.len()).sum() };
        assert!(kept() >= known.len());
        // It is told twice of half of them, and forgets that in one go.
        let twice = |ino: InodeNo| ino.0 / SHARDS as u64 % 2;
        for &ino in &known {
            if twice(ino) == 1 {
                fs.remember(ino).unwrap();
            }
        }
        let (last, others) = known.split_last().unwrap();
        others
            .iter()
            .for_each(|&ino| fs.forget(ino, 1 + twice(ino)));
        assert!(kept() <= 2 * SHARDS * SWEEP_MIN, "{} in memory", kept());
        assert_eq!(fs.inode(*last).unwrap().state().lookups, 1);
    }

    /// The kernel decides how many inodes there are in memory; what each takes is theirs to decide.
    #[test]
    fn an_inode_takes_little_memory() {
        assert!(size_of::<Inode>() <= 512, "{} bytes", size_of::<Inode>());
    }
}
