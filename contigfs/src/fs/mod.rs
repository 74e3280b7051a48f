//! The file system: inodes in memory, the locks around them, mounting.
//!
//! # Locks
//! Each is taken in this order; a thread that holds one never takes one further up.
//!
//! 0. `quota`: held while somebody makes a tree a project or changes its limits; tried, never waited for.
//! 1. `namespace`: shared by everything that changes names; exclusive for renames between directories, so that the
//!    shape of the tree stands still while a directory moves.
//! 2. `Inode::content`: of a file, shared for reading and for writing inside the file, exclusive for anything that
//!    changes size or place; of a directory, shared for looking up, exclusive for changing entries. Parents before
//!    children; several children in ascending order of number.
//! 3. `Inode::change`: whoever writes the inode's record holds it until the record is durable. Several in ascending
//!    order of number.
//! 4. `Inode::xattrs`: held while extended attributes are read from media, and while a batch that changes them is
//!    written. Several in ascending order of number.
//! 5. `journeys`: shared while a file is on its way to another range, exclusive while a snapshot is made, which takes no
//!    other lock of these.
//! 6. `grow`: held while the record of the inode table is written.
//! 7. a shard of the inode cache; it is held while a record is read from media.
//! 8. `Inode::sharing`, which is held while memory changes its size, and `Fs::shared`
//! 9. `Inode::state`, `alloc` and `projects`: short, never across a call of the store, never two at once.
//!
//! Reads that no thread waits for hold nothing meanwhile; who holds `content` to change it is counted, so that they notice
//! (`later`). Other reads and writes of a file hold only its `content`, hence files are independent, readers of one file are
//! parallel, and so are writers that do not make it longer. Commits of operations in different directories are in
//! flight at the same time and share flushes below.

mod atime;
mod attr;
mod cache;
mod claims;
mod copy;
mod create;
mod data;
mod extent;
mod features;
mod format;
mod later;
mod links;
mod lookup;
mod metadata_sync;
mod missed;
mod mount;
mod observer;
mod privileges;
mod project;
mod quota;
mod range;
mod readdir;
mod records;
mod relocate;
mod rename;
mod renew;
mod scan;
mod sharing;
mod size;
mod snapshot;
mod space;
mod splice;
mod txn;
mod xattr;

use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{
    Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
};
use std::thread::Thread;

use ftl::snapshot::Snapshots;

use crate::buddy::{Buddy, Order};
use crate::error::{Corruption, FsError};
use crate::inode::InodeNo;
use crate::planted::Bug;
use crate::store::BlockStore;
use crate::table::Table;
use crate::time::Timestamp;

pub use atime::AtimePolicy;
pub use attr::StatFs;
pub use copy::CopyRange;
pub use create::NewNode;
pub(crate) use data::ReadOptions;
pub use data::{SeekTo, SyncScope, WriteOptions};
pub use extent::Extent;
pub use format::FormatOptions;
pub use metadata_sync::{MetadataSync, UnknownMetadataSync};
pub use mount::FsOptions;
pub use observer::{ExtentObserver, Settled};
pub use quota::{NewLimits, Quota};
pub use readdir::DirEntry;
pub use rename::RenameMode;
pub use snapshot::open_snapshot;
pub use space::FallocMode;

use cache::Cache;
use cache::{Inode, Tail};
use features::FeaturesInUse;
use project::Projects;
use txn::Txn;

pub(crate) use lookup::Remember;
pub(crate) use mount::read_root;
pub(crate) use privileges::gives_privileges;
pub(crate) use project::read_projects;
pub(crate) use records::{hot_grains, hot_records};
pub(crate) use txn::{cold_place, hot_place};

/// Where "now" comes from.
pub type Clock = fn() -> Timestamp;

/// A mounted file system. Shared by any number of threads; see the module for what runs in parallel.
///
/// Numbers of inodes come from [`lookup`](Self::lookup) and friends. A program that keeps using a number while others
/// may unlink the file brackets the use with [`open`](Self::open) and [`close`](Self::close). Permissions are not
/// checked here: the caller (the kernel, for a mount) does.
pub struct Fs<S> {
    store: S,
    clock: Clock,
    /// Order of the range of a new file.
    file_order: Order,
    planted: Option<Bug>,
    namespace: RwLock<()>,
    cache: Cache,
    /// Hot grains of the inode table that the table's own record covers.
    grow: Mutex<u64>,
    /// From the root record: when it was made, and what it says that the file system uses.
    created: Timestamp,
    features: FeaturesInUse,
    /// The place of extended attributes is not taken by files of a volume made before there were any.
    has_xattr_space: bool,
    alloc: Mutex<Alloc>,
    /// Inodes whose records make no sense.
    bad: HashSet<InodeNo>,
    /// Some record could not be read or is missing, so there may be data whose range is unknown.
    degraded: bool,
    generation: AtomicU64,
    /// Inodes that became dirty since the last [`sync_all`](Self::sync_all), about.
    dirty: AtomicU64,
    /// Files whose pages are shared with mappings.
    shared: Mutex<Vec<Arc<Inode>>>,
    /// An [`AtimePolicy`].
    atime_policy: AtomicU8,
    directory_atimes: AtomicBool,
    metadata_sync: MetadataSync,
    observer: OnceLock<Box<dyn ExtentObserver>>,
    projects: Mutex<Projects>,
    quota: Mutex<()>,
    snapshots: Snapshots,
    /// Shared by whoever changes something in several batches between which it can not be used; exclusive for making a
    /// snapshot, in which nothing is half way.
    journeys: RwLock<()>,
    /// Who gives back what deleted snapshots hold.
    sweeper: Mutex<Option<Thread>>,
}

/// What is free.
#[derive(Debug)]
struct Alloc {
    table: Table,
    buddy: Buddy,
}

impl<S: BlockStore> Fs<S> {
    /// The store below.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Whether a test asked for this bug.
    fn has_bug(&self, bug: Bug) -> bool {
        self.planted == Some(bug)
    }

    fn now(&self) -> Timestamp {
        (self.clock)()
    }

    /// A generation that no inode had before: the time, but always growing.
    fn next_generation(&self, now: Timestamp) -> u64 {
        let now = now.as_unix_ns();
        let previous = self
            .generation
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| {
                Some(now.max(last + 1))
            })
            .unwrap_or_else(|last| last);
        now.max(previous + 1)
    }

    /// Whether the mount has found records that are damaged or missing: what they belong to answers `EIO`. Nothing was
    /// trimmed, so a repair finds what it would have found before.
    pub fn is_damaged(&self) -> bool {
        self.degraded
    }

    fn alloc(&self) -> MutexGuard<'_, Alloc> {
        lock(&self.alloc)
    }

    /// The inode of this number, from memory or from media.
    fn inode(&self, ino: InodeNo) -> Result<Arc<Inode>, FsError> {
        if self.bad.contains(&ino) {
            return Err(Corruption::Inode {
                ino,
                what: "record was found damaged at mount",
            }
            .into());
        }
        self.cache.get(ino, || self.load(ino))
    }
}

impl<S> fmt::Debug for Fs<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fs")
            .field("cache", &self.cache)
            .field("degraded", &self.degraded)
            .finish_non_exhaustive()
    }
}

/// Locks; a panic of another holder does not poison the file system, because memory is changed after the commit only.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn shared<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn exclusive<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}
