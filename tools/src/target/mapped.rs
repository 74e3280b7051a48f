//! Files that a local program has mapped and a remote peer has registered: a remote WRITE to one of their pages goes
//! through the [`PageCache`].
//!
//! The data path knows a file by the backing of its regions, the mount by its inode. A file that is both mapped and
//! registered is in `files`; whether it may be is one load for those that are not.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

use contigfs::InodeNo;
use contigfs::fuse::{CacheListener, PageCache, Window};
use softrdma::BackingId;

use super::job::{Job, barrier, waiter};
use crate::reactor::Inbox;

/// Counts of files by a hash of their backing; with so many, few files that are not mapped share one with a file that is.
const SLOTS: usize = 1024;

/// Behind the end of every file.
const FILE_END: u64 = 1 << 62;

#[derive(Debug, Default)]
struct Table {
    /// Files that are mapped.
    cached: HashSet<InodeNo>,
    /// Files that have regions: their backing, and how many regions.
    registered: HashMap<InodeNo, (BackingId, usize)>,
}

/// Files that are mapped and registered.
#[derive(Debug)]
pub(super) struct Mapped {
    slots: Box<[AtomicU32]>,
    files: RwLock<HashMap<BackingId, InodeNo>>,
    table: Mutex<Table>,
    /// The reactors, which may be in the middle of a store.
    inboxes: Vec<Arc<Inbox<Job>>>,
    /// There from the mount on.
    cache: OnceLock<Arc<PageCache>>,
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
        })
    }

    /// The page cache of a mount that is about to be made.
    pub(super) fn page_cache(self: &Arc<Self>) -> Arc<PageCache> {
        let new = || PageCache::new(Box::new(Listener(Arc::clone(self))));
        Arc::clone(self.cache.get_or_init(new))
    }

    /// The file behind a backing, if it is mapped. For those that are not, one relaxed load in most cases: who sets the
    /// mark waits until every reactor has been through a barrier.
    pub(super) fn find(&self, backing: BackingId) -> Option<InodeNo> {
        if self.slots[slot(backing)].load(Ordering::Relaxed) == 0 {
            return None;
        }
        let files = self.files.read().unwrap_or_else(PoisonError::into_inner);
        files.get(&backing).copied()
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

    /// Makes a change of the whole content of a file, which mappings see when this returns. Waits for the kernel, so no
    /// thread may call it that the kernel waits for.
    pub(super) fn change_all<T>(&self, ino: InodeNo, change: impl FnOnce() -> T) -> T {
        let Some(cache) = self.cache.get() else {
            return change();
        };
        let all = 0..FILE_END;
        let (recalled, window) = waiter();
        cache.recall(ino, all.clone(), move |window| {
            let _ = recalled.send(window);
        });
        // The recaller outlives everybody who waits for it, or answers when it ends.
        let window = window.recv().ok();
        let result = change();
        if let Some(stale) = window.and_then(|window| window.stored(all)) {
            let (told, done) = waiter();
            stale.recall(move || {
                let _ = told.send(());
            });
            let _ = done.recv();
        }
        result
    }

    /// A region of a file is about to be registered; as long as it has any, their backing stays the same.
    pub(super) fn registering(&self, ino: InodeNo, backing: BackingId) {
        let mut table = self.table();
        let (_, regions) = table.registered.entry(ino).or_insert((backing, 0));
        *regions += 1;
        if *regions == 1 && table.cached.contains(&ino) {
            self.mark(ino, backing);
        }
    }

    /// A region of a file has ended.
    pub(super) fn deregistered(&self, ino: InodeNo) {
        let mut table = self.table();
        let Some((backing, regions)) = table.registered.get_mut(&ino) else {
            return;
        };
        *regions -= 1;
        if *regions == 0 {
            let backing = *backing;
            table.registered.remove(&ino);
            if table.cached.contains(&ino) {
                self.unmark(backing);
            }
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn mark(&self, ino: InodeNo, backing: BackingId) {
        let mut files = self.files.write().unwrap_or_else(PoisonError::into_inner);
        if files.insert(backing, ino).is_none() {
            self.slots[slot(backing)].fetch_add(1, Ordering::Relaxed);
        }
    }

    fn unmark(&self, backing: BackingId) {
        let mut files = self.files.write().unwrap_or_else(PoisonError::into_inner);
        if files.remove(&backing).is_some() {
            self.slots[slot(backing)].fetch_sub(1, Ordering::Relaxed);
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
        if let Some((backing, _)) = table.registered.get(&ino) {
            self.0.mark(ino, *backing);
            drop(table);
            barrier(&self.0.inboxes);
        }
    }

    fn uncached(&self, ino: InodeNo) {
        let mut table = self.0.table();
        table.cached.remove(&ino);
        if let Some((backing, _)) = table.registered.get(&ino) {
            self.0.unmark(*backing);
        }
    }
}
