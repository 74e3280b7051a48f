//! Mounting: rebuilds what is free from the inode table, and ends what a crash left half done.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};
use std::sync::{Mutex, OnceLock, RwLock};

use ftl::snapshot::Snapshots;
use ftl::{GRAIN_BYTES, LbaRange};

use super::cache::Cache;
use super::features::FeaturesInUse;
use super::metadata_sync::MetadataSync;
use super::range::FILE_ORDER;
use super::records::{grains_used, read_whole};
use super::scan::scan;
use super::txn::{cold_place, hot_place};
use super::{Clock, Fs, Inode, Tail, Txn};
use crate::buddy::Order;
use crate::check::read_xattrs;
use crate::error::FsError;
use crate::format::{
    COLD_BYTES, Features, HOT_BYTES, InodeRecord, ROOT_COPY_LBA, ROOT_DIR_RANGE, ROOT_LBA,
    RootRecord, XATTR_HEADS, XATTR_SPACE,
};
use crate::inode::{FileKind, InodeNo};
use crate::planted::Bug;
use crate::store::{BlockStore, ByteAddr};
use crate::time::Timestamp;

/// How a file system is run, beside what is on media.
#[derive(Clone, Copy, Debug)]
pub struct FsOptions {
    /// Where "now" comes from.
    pub clock: Clock,
    /// Binary logarithm of the grains in the range of a new file; at most 50. A file that needs more gets more, at its
    /// place or at another, so a small value costs relocations, and a large one address space.
    pub file_order: u8,
    /// When changes of metadata are durable.
    pub metadata_sync: MetadataSync,
    /// Nothing is changed: what a crash left half done stays as it is.
    pub read_only: bool,
    /// Bug to have, in tests.
    #[doc(hidden)]
    pub planted: Option<Bug>,
}

impl Default for FsOptions {
    fn default() -> Self {
        Self {
            clock: Timestamp::now,
            file_order: FILE_ORDER.0,
            metadata_sync: MetadataSync::default(),
            read_only: false,
            planted: None,
        }
    }
}

impl<S: BlockStore> Fs<S> {
    /// Mounts the file system of a volume.
    pub fn mount(store: S) -> Result<Self, FsError> {
        Self::mount_with_clock(store, Timestamp::now)
    }

    /// As [`mount`](Self::mount), with another source of time.
    pub fn mount_with_clock(store: S, clock: Clock) -> Result<Self, FsError> {
        let options = FsOptions {
            clock,
            ..FsOptions::default()
        };
        Self::mount_with(store, &options)
    }

    /// As [`mount`](Self::mount), with options.
    ///
    /// # Errors
    /// [`FsError::Invalid`] when `file_order` is too large; else as `mount`.
    pub fn mount_with(store: S, options: &FsOptions) -> Result<Self, FsError> {
        let file_order = Order::new(options.file_order).ok_or(FsError::Invalid)?;
        // What is changed from now on may have to be kept.
        let snapshots = match store.snapshot_host() {
            Some(host) => Snapshots::open(host)?,
            None => Snapshots::default(),
        };
        let mut root = read_root(&store)?;
        let xattrs = Features::XATTRS;
        let is_announced = root.features.contains(xattrs) || !are_attributes_there(&store);
        if !is_announced {
            tracing::error!("there are attributes, which the root record does not announce");
            root.features = root.features.with(xattrs);
        }
        let scan = scan(&store, root.features, options.planted);
        let fs = Self {
            store,
            clock: options.clock,
            file_order,
            planted: options.planted,
            namespace: RwLock::new(()),
            cache: Cache::new(),
            grow: Mutex::new(scan.grains),
            created: root.created,
            features: FeaturesInUse::new(root.features),
            has_xattr_space: scan.has_xattr_space,
            alloc: Mutex::new(scan.alloc),
            degraded: scan.degraded || !is_announced,
            bad: scan.bad,
            generation: AtomicU64::new(0),
            dirty: AtomicU64::new(0),
            shared: Mutex::default(),
            atime_policy: AtomicU8::default(),
            directory_atimes: AtomicBool::new(true),
            metadata_sync: options.metadata_sync,
            observer: OnceLock::new(),
            projects: Mutex::default(),
            quota: Mutex::default(),
            snapshots,
            journeys: RwLock::new(()),
            sweeper: Mutex::default(),
        };
        if options.read_only {
            return Ok(fs);
        }
        fs.begin_projects(&scan.projects);
        // A volume that can not be changed any more can still be read, so errors here are not the end.
        if scan.has_leftovers
            && !fs.degraded
            && let Err(error) = fs.trim_what_nobody_owns()
        {
            tracing::warn!(%error, "leftovers of a crash stay until the next mount");
        }
        for ino in scan.relocating {
            let arrived = fs.inode(ino).and_then(|inode| {
                let _content = inode.change_content();
                fs.carry_on(&inode)
            });
            if let Err(error) = arrived {
                tracing::warn!(%error, %ino, "a file that is half relocated can not be used until the next mount");
            }
        }
        for ino in scan.orphans {
            if let Err(error) = fs.inode(ino).and_then(|inode| fs.reap(&inode)) {
                tracing::warn!(%error, %ino, "a file without names stays until the next mount");
            }
        }
        Ok(fs)
    }

    /// Reads the records of an inode.
    pub(super) fn load(&self, ino: InodeNo) -> Result<Inode, FsError> {
        if ino == InodeNo::TABLE || ino.0 >= crate::format::INODES_MAX {
            return Err(FsError::NotFound);
        }
        // What the table does not have can not be freed, and its range may be somebody else's.
        if !self.alloc().table.has(ino) {
            return Err(FsError::NotFound);
        }
        let record = match self.read_record(ino) {
            Err(error) if ino == InodeNo::ROOT => self.make_up_root(error),
            Ok(record) if ino == InodeNo::ROOT && !record.is_of_root() => {
                self.make_up_root(FsError::NotDirectory)
            }
            // Nothing frees it.
            Ok(record) if ino == InodeNo::ROOT => InodeRecord {
                orphan: false,
                ..record
            },
            // One that has names is freed by nobody: one of its two records is of the past.
            result => {
                let record = result?;
                InodeRecord {
                    orphan: record.orphan && record.nlink == 0,
                    ..record
                }
            }
        };
        Ok(Inode::new(ino, record, Tail::Unknown, None))
    }

    fn read_record(&self, ino: InodeNo) -> Result<InodeRecord, FsError> {
        let mut hot = [0; HOT_BYTES];
        let (lba, offset) = hot_place(ino);
        self.store
            .read(ByteAddr::new(lba, u64::from(offset)), &mut hot)?;
        let mut cold = [0; COLD_BYTES];
        let (lba, offset) = cold_place(ino);
        self.store
            .read(ByteAddr::new(lba, u64::from(offset)), &mut cold)?;
        InodeRecord::parse(ino, &hot, &cold)?.ok_or(FsError::NotFound)
    }

    /// A record for the root directory when its own is damaged: without it nothing else could be reached.
    fn make_up_root(&self, error: FsError) -> InodeRecord {
        tracing::error!(%error, "the root directory's record is damaged; its attributes are made up");
        let grains = grains_used(&self.store, ROOT_DIR_RANGE, 0);
        let now = self.now();
        InodeRecord {
            kind: FileKind::Directory,
            perm: 0o755,
            range: Some(ROOT_DIR_RANGE),
            size: grains * GRAIN_BYTES as u64,
            // Else its attributes would be those of another inode.
            generation: self.generation_by_xattrs(InodeNo::ROOT),
            orphan: false,
            reserved: false,
            relocation: None,
            project: None,
            nlink: 2,
            uid: 0,
            gid: 0,
            rdev: 0,
            parent: Some(InodeNo::ROOT),
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
        }
    }

    /// Trims mapped grains outside all ranges: what is left of something that takes several batches to trim, or of a file
    /// that a program which copied such files was moving.
    fn trim_what_nobody_owns(&self) -> Result<(), FsError> {
        let free: Vec<_> = self.alloc().buddy.free_blocks().collect();
        for block in free {
            self.trim_now(block.lbas())?;
        }
        if self.has_xattr_space && !self.uses_xattrs() {
            self.trim_now(XATTR_SPACE.lbas())?;
        }
        Ok(())
    }

    /// Frees the records and the data of an inode without names that nobody uses.
    pub(super) fn reap(&self, inode: &std::sync::Arc<Inode>) -> Result<(), FsError> {
        let _content = inode.change_content();
        let _change = super::lock(&inode.change);
        {
            let mut state = inode.state();
            if !state.is_unused() {
                return Ok(());
            }
            state.dead = true;
        }
        self.free_unused(inode)
    }

    /// Frees a file without names that was marked dead. The caller holds its `content` and `change`. Nobody waits until that is
    /// durable: after a crash the next mount does it.
    pub(super) fn free_unused(&self, inode: &std::sync::Arc<Inode>) -> Result<(), FsError> {
        let result = self.free_with_data(inode, Txn::unhurried());
        if result.is_err() {
            inode.state().dead = false;
        }
        result
    }
}

/// Finds a root record: the first, or its copy when the first can not be read. What either of them announces counts: one
/// that says less is of the past.
pub(crate) fn read_root(store: &impl BlockStore) -> Result<RootRecord, FsError> {
    let read = |lba| -> Result<RootRecord, FsError> {
        let mut bytes = [0; RootRecord::BYTES];
        store.read(ByteAddr::new(lba, 0), &mut bytes)?;
        Ok(RootRecord::parse(&bytes)?)
    };
    match (read(ROOT_LBA), read(ROOT_COPY_LBA)) {
        (Ok(first), Ok(second)) => Ok(RootRecord {
            features: first.features.with(second.features),
            ..first
        }),
        (first, second) => first.or_else(|error| second.map_err(|_| error)),
    }
}

/// Whether attributes of some inode are there.
fn are_attributes_there(store: &impl BlockStore) -> bool {
    let mut next = XATTR_HEADS.start;
    let end = XATTR_HEADS.lbas().end();
    while next < end {
        let Some(head) = store.next_mapped(LbaRange::new(next, end.0 - next.0)) else {
            return false;
        };
        next = head.offset(1);
        let ino = InodeNo(head.0 - XATTR_HEADS.start.0);
        let (lba, offset) = hot_place(ino);
        let mut hot = [0; HOT_BYTES];
        let is_read = store.read(ByteAddr::new(lba, u64::from(offset)), &mut hot);
        let record = is_read.ok().and_then(|()| read_whole(store, ino, &hot));
        if record.is_some_and(|record| read_xattrs(store, ino, record.generation).is_ok()) {
            return true;
        }
    }
    false
}
