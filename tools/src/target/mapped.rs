//! Registered files of which a page may not just be written to by a peer: those that a local program has mapped, where a
//! remote WRITE goes through the [`PageCache`], and programs that give privileges to whoever runs them, which end first.
//!
//! The data path knows a file by the backing of its regions, the mount by its inode. A file that is registered and one of
//! those is in `files`; whether it may be is one load for those that are not.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

use contigfs::fuse::{CacheListener, PageCache, Window};
use contigfs::{FsError, InodeNo};
use softrdma::BackingId;

use super::job::{Job, barrier};
use super::privileges::Ender;
use crate::reactor::Inbox;

/// Counts of files by a hash of their backing; with so many, few files share one with a file that is watched.
const SLOTS: usize = 1024;

/// What has to be done before a page of a file is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Before {
    /// The file gives privileges, which end; then ask again.
    EndPrivileges(InodeNo),
    /// The kernel's copies are recalled.
    Recall(InodeNo),
}

/// A file that has regions.
#[derive(Debug)]
struct Registered {
    backing: BackingId,
    regions: usize,
    /// It may give privileges to whoever runs it.
    privileged: bool,
}

#[derive(Debug, Default)]
struct Table {
    /// Files that are mapped.
    cached: HashSet<InodeNo>,
    registered: HashMap<InodeNo, Registered>,
}

/// Files that are registered and watched.
#[derive(Debug)]
pub(super) struct Mapped {
    slots: Box<[AtomicU32]>,
    files: RwLock<HashMap<BackingId, Before>>,
    table: Mutex<Table>,
    /// The reactors, which may be in the middle of a store.
    inboxes: Vec<Arc<Inbox<Job>>>,
    /// There from the mount on.
    cache: OnceLock<Arc<PageCache>>,
    /// There before any region is.
    ender: OnceLock<Ender>,
}

impl Mapped {
    /// No files.
    pub(super) fn new(inboxes: Vec<Arc<Inbox<Job>>>) -> Arc<Self> {
        Arc::new(Self {
            slots: (0..SLOTS).map(|_| AtomicU32::new(0)).collect(),
            files: RwLock::default(),
            table: Mutex::default(),
            inboxes,
            cache: OnceLock::new(),
            ender: OnceLock::new(),
        })
    }

    /// The page cache of a mount that is about to be made.
    pub(super) fn page_cache(self: &Arc<Self>) -> Arc<PageCache> {
        let new = || PageCache::new(Box::new(Listener(Arc::clone(self))));
        Arc::clone(self.cache.get_or_init(new))
    }

    /// Who ends privileges from now on; there is one.
    pub(super) fn set_ender(&self, ender: Ender) {
        let _ = self.ender.set(ender);
    }

    /// What comes before a page with this backing is written. For most files one relaxed load: who sets the mark waits until
    /// every reactor has been through a barrier.
    pub(super) fn find(&self, backing: BackingId) -> Option<Before> {
        if self.slots[slot(backing)].load(Ordering::Relaxed) == 0 {
            return None;
        }
        let files = self.files.read().unwrap_or_else(PoisonError::into_inner);
        files.get(&backing).copied()
    }

    /// Ends the privileges that a file with regions gives, then calls `then`, on another thread.
    pub(super) fn end_privileges(
        &self,
        ino: InodeNo,
        then: impl FnOnce(Result<(), FsError>) + Send + 'static,
    ) {
        let ender = self.ender.get().expect("there is one before any region");
        ender.end(ino, Box::new(then));
    }

    /// A file gives privileges, or is about to. On return, no peer writes to it who does not end them first.
    pub(super) fn privileged(&self, ino: InodeNo) {
        let mut table = self.table();
        // One that is registered later is looked at then.
        if let Some(file) = table.registered.get_mut(&ino)
            && !file.privileged
        {
            file.privileged = true;
            self.mark(&table, ino);
            drop(table);
            barrier(&self.inboxes);
        }
    }

    /// Whether a file with regions gives privileges, as far as is known.
    pub(super) fn is_privileged(&self, ino: InodeNo) -> bool {
        let table = self.table();
        table.registered.get(&ino).is_some_and(|f| f.privileged)
    }

    /// A file gives none any more.
    pub(super) fn unprivileged(&self, ino: InodeNo) {
        let mut table = self.table();
        if let Some(file) = table.registered.get_mut(&ino)
            && std::mem::take(&mut file.privileged)
        {
            self.mark(&table, ino);
        }
    }

    /// Takes the kernel's copies of bytes of a file back, then calls `then`, on another thread.
    pub(super) fn recall(
        &self,
        ino: InodeNo,
        bytes: Range<u64>,
        then: impl FnOnce(Window) + Send + 'static,
    ) {
        let cache = self.cache.get().expect("files are mapped on a mount");
        cache.recall(ino, bytes, then);
    }

    /// As [`PageCache::change_all`], whether there is a mount or not.
    pub(super) fn change_all<T>(&self, ino: InodeNo, change: impl FnOnce() -> T) -> T {
        match self.cache.get() {
            Some(cache) => cache.change_all(ino, change),
            None => change(),
        }
    }

    /// As [`PageCache::changed_names`].
    pub(super) fn changed_names(&self, parent: InodeNo, names: &[&OsStr]) {
        if let Some(cache) = self.cache.get() {
            cache.changed_names(parent, names);
        }
    }

    /// As [`PageCache::changed_attributes`].
    pub(super) fn changed_attributes(&self, ino: InodeNo) {
        if let Some(cache) = self.cache.get() {
            cache.changed_attributes(ino);
        }
    }

    /// A region of a file is about to be registered; as long as it has any, their backing stays the same.
    pub(super) fn registering(&self, ino: InodeNo, backing: BackingId) {
        let mut table = self.table();
        let file = table.registered.entry(ino).or_insert(Registered {
            backing,
            regions: 0,
            privileged: false,
        });
        file.regions += 1;
        if file.regions == 1 {
            self.mark(&table, ino);
        }
    }

    /// A region of a file has ended.
    pub(super) fn deregistered(&self, ino: InodeNo) {
        let mut table = self.table();
        let Some(file) = table.registered.get_mut(&ino) else {
            return;
        };
        file.regions -= 1;
        if file.regions == 0 {
            let backing = file.backing;
            table.registered.remove(&ino);
            self.set_mark(backing, None);
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks a file, or takes its mark away, as what is known of it now says.
    fn mark(&self, table: &Table, ino: InodeNo) {
        let Some(file) = table.registered.get(&ino) else {
            return;
        };
        let before = match (file.privileged, table.cached.contains(&ino)) {
            (true, _) => Some(Before::EndPrivileges(ino)),
            (false, true) => Some(Before::Recall(ino)),
            (false, false) => None,
        };
        self.set_mark(file.backing, before);
    }

    fn set_mark(&self, backing: BackingId, before: Option<Before>) {
        let mut files = self.files.write().unwrap_or_else(PoisonError::into_inner);
        let slot = &self.slots[slot(backing)];
        match before {
            Some(before) => {
                if files.insert(backing, before).is_none() {
                    slot.fetch_add(1, Ordering::Relaxed);
                }
            }
            None => {
                if files.remove(&backing).is_some() {
                    slot.fetch_sub(1, Ordering::Relaxed);
                }
            }
        }
    }
}

fn slot(backing: BackingId) -> usize {
    // Spread over all of them, whatever backings are made of.
    (backing.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54) as usize % SLOTS
}

/// Hears of the mount's files.
#[derive(Debug)]
struct Listener(Arc<Mapped>);

impl CacheListener for Listener {
    fn cached(&self, ino: InodeNo) {
        let mut table = self.0.table();
        table.cached.insert(ino);
        // A file that is registered later is marked before its STags are known to anybody.
        if table.registered.contains_key(&ino) {
            self.0.mark(&table, ino);
            drop(table);
            barrier(&self.0.inboxes);
        }
    }

    fn uncached(&self, ino: InodeNo) {
        let mut table = self.0.table();
        table.cached.remove(&ino);
        self.0.mark(&table, ino);
    }
}
