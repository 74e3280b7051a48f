//! Mounting: rebuilds what is free from the inode table, and ends what a crash left half done.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};
use std::sync::{Mutex, OnceLock, RwLock};

use ftl::snapshot::Snapshots;
use ftl::{GRAIN_BYTES, Lba, LbaRange};

use super::cache::Cache;
use super::features::FeaturesInUse;
use super::metadata_sync::MetadataSync;
use super::missed::{Search, missed_inodes};
use super::project::Charges;
use super::range::FILE_ORDER;
use super::txn::{cold_place, hot_place};
use super::{Alloc, Clock, Fs, Inode, Tail, Txn};
use crate::buddy::{Buddy, Order};
use crate::check::read_xattrs;
use crate::error::FsError;
use crate::format::{
    COLD_BYTES, COLD_PER_GRAIN, COLD_RANGE, Features, HOT_BYTES, HOT_PER_GRAIN, HOT_RANGE,
    HotRecord, InodeRecord, METADATA_ORDER, ROOT_COPY_LBA, ROOT_DIR_RANGE, ROOT_LBA, Range,
    RootRecord, TableRecord, XATTR_HEADS, XATTR_SPACE,
};
use crate::inode::{FileKind, InodeNo};
use crate::planted::Bug;
use crate::store::{BlockStore, ByteAddr};
use crate::strays;
use crate::table::Table;
use crate::time::Timestamp;

/// What the scan of the inode table found.
struct Scan {
    alloc: Alloc,
    grains: u64,
    has_xattr_space: bool,
    degraded: bool,
    /// Grains are mapped that nobody owns.
    has_leftovers: bool,
    bad: HashSet<InodeNo>,
    orphans: Vec<InodeNo>,
    /// Files on their way to another range.
    relocating: Vec<InodeNo>,
    projects: Charges,
}

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
        let scan = scan(&store, root.features, options.planted)?;
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

/// How long the inode table is.
struct TableLength {
    /// Hot grains in use.
    grains: u64,
    /// The table's record can be read, and says less.
    is_more_than_recorded: bool,
}

/// All grains of the table up to what its record says, and to the last that is mapped: the record grows with the first
/// inode that lies behind, in one batch, and never shrinks, so when it is too short it is wrong.
fn table_length(store: &impl BlockStore) -> TableLength {
    let mut bytes = [0; HOT_BYTES];
    let (lba, offset) = hot_place(InodeNo::TABLE);
    let read = store.read(ByteAddr::new(lba, u64::from(offset)), &mut bytes);
    let recorded = match read.map(|()| TableRecord::parse(&bytes)) {
        Ok(Ok(table)) => Some(table.grains),
        _ => None,
    };
    let cold_per_hot = HOT_PER_GRAIN / COLD_PER_GRAIN;
    // The record itself is in the first.
    let first = recorded.unwrap_or(1);
    let hot = grains_used(store, HOT_RANGE, first);
    let cold = grains_used(store, COLD_RANGE, first * cold_per_hot).div_ceil(cold_per_hot);
    let grains = hot.max(cold);
    TableLength {
        grains,
        is_more_than_recorded: recorded.is_some_and(|recorded| recorded < grains),
    }
}

/// Number of grains of a range up to the last that is mapped, and no less than `grains`.
fn grains_used(store: &impl BlockStore, range: Range, mut grains: u64) -> u64 {
    let all = range.lbas();
    while grains < all.count {
        let rest = LbaRange::new(all.start.offset(grains), all.count - grains);
        let Some(lba) = store.next_mapped(rest) else {
            break;
        };
        grains = lba.0 - all.start.0 + 1;
    }
    grains
}

/// Reads all hot records. One that makes no sense, or is missing, marks its inode bad and the mount goes on.
fn scan(
    store: &impl BlockStore,
    features: Features,
    planted: Option<Bug>,
) -> Result<Scan, FsError> {
    let forgetful = planted == Some(Bug::RangesForgotten);
    let TableLength {
        grains,
        is_more_than_recorded,
    } = table_length(store);
    if is_more_than_recorded {
        tracing::error!(
            grains,
            "there are inode records behind the end of the inode table"
        );
    }
    let mut table = Table::default();
    let mut buddy = Buddy::new();
    let mut bad = HashSet::new();
    let mut disputed = Vec::new();
    let (mut orphans, mut relocating) = (Vec::new(), Vec::new());
    let metadata = buddy.allocate(METADATA_ORDER);
    assert!(
        metadata.is_some_and(|range| range.start == ROOT_LBA),
        "the first allocation is at the start"
    );
    // Its place is known and its content speaks for itself, whatever its record says.
    buddy.reserve(ROOT_DIR_RANGE);
    // Only a volume from before there were attributes may have a file there: it keeps it, and gets no attributes.
    let reserved_first = features.contains(Features::XATTRS) && buddy.reserve(XATTR_SPACE);
    table.note(InodeNo::TABLE);
    // There is always one: see `make_up_root`.
    table.note(InodeNo::ROOT);
    let mut projects = Charges::default();
    let mut has_root = false;
    for number in hot_grains(store, grains) {
        let mut bytes = [0; GRAIN_BYTES];
        let lba = HOT_RANGE.start.offset(number);
        let read = store.read(ByteAddr::new(lba, 0), &mut bytes);
        let (records, _) = bytes.as_chunks::<HOT_BYTES>();
        for (ino, hot) in (number * HOT_PER_GRAIN..)
            .map(InodeNo)
            .zip(records)
            .skip(usize::from(number == 0))
        {
            let parsed = read
                .map_err(FsError::from)
                .and_then(|()| Ok(HotRecord::parse(ino, hot)?));
            let mut takes = |range: Range| {
                let taken = forgetful || buddy.reserve(range);
                if !taken {
                    disputed.push(range);
                }
                taken
            };
            let found = match parsed {
                Ok(None) => continue,
                Ok(Some(record)) if ino == InodeNo::ROOT => record.is_of_root().then_some(record),
                Ok(Some(record)) => record.range.is_none_or(&mut takes).then_some(record),
                Err(_) => None,
            };
            if ino == InodeNo::ROOT {
                has_root = found.is_some();
            } else {
                table.note(ino);
            }
            let Some(record) = found else {
                bad.insert(ino);
                continue;
            };
            if record.relocating {
                let target = target_of(store, ino, hot);
                if !target.is_some_and(&mut takes) {
                    bad.insert(ino);
                    continue;
                }
                relocating.push(ino);
            }
            if record.in_project && planted != Some(Bug::ProjectsForgotten) {
                match read_whole(store, ino, hot) {
                    Some(record) => projects.note(ino, &record),
                    None => {
                        tracing::warn!(%ino, "nobody is charged for an inode that can not be read")
                    }
                }
            }
            if record.orphan && ino != InodeNo::ROOT {
                orphans.push(ino);
            }
        }
    }
    let disputed = merged(disputed);
    bad.extend(claimants(store, grains, &disputed));
    // Nor does a new file get what only one of them claims.
    let free = buddy.free_blocks();
    let free: Vec<Range> = free.filter(|&block| is_in(&disputed, block)).collect();
    for block in free {
        buddy.reserve(block);
    }
    bad.remove(&InodeNo::ROOT);
    let mut free = buddy.free_blocks();
    let has_leftovers = free.any(|block| store.next_mapped(block.lbas()).is_some());
    drop(free);
    let search = match has_leftovers {
        true => Search::All,
        false => Search::Deserted,
    };
    for ino in missed_inodes(store, &table, grains, search) {
        table.note(ino);
        bad.insert(ino);
    }
    let are_missed = || {
        let files = settled_files(store, grains);
        has_leftovers && strays::are_missed(store, &buddy, files)
    };
    let degraded = !bad.is_empty() || !has_root || is_more_than_recorded || are_missed();
    let nothing_unknown = !degraded || store.next_mapped(XATTR_SPACE.lbas()).is_none();
    let has_xattr_space = reserved_first || nothing_unknown && buddy.reserve(XATTR_SPACE);
    Ok(Scan {
        alloc: Alloc { table, buddy },
        grains,
        has_xattr_space,
        degraded,
        has_leftovers,
        bad,
        orphans,
        relocating,
        projects,
    })
}

/// Places and sizes of files that are not on their way to another place, or to be freed.
fn settled_files(store: &impl BlockStore, grains: u64) -> impl Iterator<Item = (Range, u64)> {
    hot_grains(store, grains).flat_map(move |number| {
        let settled = |(_, record): (InodeNo, HotRecord)| {
            let settled = !record.relocating && !record.orphan;
            Some((record.range.filter(|_| settled)?, record.size))
        };
        hot_records(store, number).into_iter().filter_map(settled)
    })
}

/// The records of a grain that can be read; that of the table is none.
pub(crate) fn hot_records(store: &impl BlockStore, number: u64) -> Vec<(InodeNo, HotRecord)> {
    let mut bytes = [0; GRAIN_BYTES];
    let at = ByteAddr::new(HOT_RANGE.start.offset(number), 0);
    let is_read = store.read(at, &mut bytes).is_ok();
    let (records, _) = bytes.as_chunks::<HOT_BYTES>();
    let numbers = (number * HOT_PER_GRAIN..).map(InodeNo);
    let parse = |(ino, hot)| Some((ino, HotRecord::parse(ino, hot).ok()??));
    let all = numbers.zip(records).filter(|_| is_read);
    all.filter(|(ino, _)| *ino != InodeNo::TABLE)
        .filter_map(parse)
        .collect()
}

/// Which of the first so many grains of hot records are there.
pub(crate) fn hot_grains(store: &impl BlockStore, grains: u64) -> impl Iterator<Item = u64> {
    let next = move |from: u64| {
        let rest = LbaRange::new(HOT_RANGE.start.offset(from), grains.checked_sub(from)?);
        Some(store.next_mapped(rest)?.0 - HOT_RANGE.start.0)
    };
    std::iter::successors(next(0), move |number| next(number + 1))
}

/// Who claims a part of what two claim. Each of them may be a record that has come back from the past, and writing to its
/// place, or freeing it, would be at the cost of the other one.
fn claimants(store: &impl BlockStore, grains: u64, disputed: &[(Lba, Lba)]) -> Vec<InodeNo> {
    let mut found = Vec::new();
    if disputed.is_empty() {
        return found;
    }
    for number in hot_grains(store, grains) {
        let mut bytes = [0; GRAIN_BYTES];
        let lba = HOT_RANGE.start.offset(number);
        if store.read(ByteAddr::new(lba, 0), &mut bytes).is_err() {
            continue;
        }
        let (records, _) = bytes.as_chunks::<HOT_BYTES>();
        let numbers = (number * HOT_PER_GRAIN..).map(InodeNo);
        for (ino, hot) in numbers.zip(records) {
            let Ok(Some(record)) = HotRecord::parse(ino, hot) else {
                continue;
            };
            let target = record.relocating.then(|| target_of(store, ino, hot));
            let mut places = record.range.into_iter().chain(target.flatten());
            if places.any(|place| is_in(disputed, place)) {
                found.push(ino);
            }
        }
    }
    found
}

/// Whether part of a range is in one of these stretches, which are ascending.
fn is_in(stretches: &[(Lba, Lba)], range: Range) -> bool {
    let next = stretches.partition_point(|(_, end)| *end <= range.start);
    let next = stretches.get(next);
    next.is_some_and(|(first, _)| *first < range.lbas().end())
}

/// The same grains, in ascending stretches that do not touch each other: first, and first behind.
fn merged(mut ranges: Vec<Range>) -> Vec<(Lba, Lba)> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut merged: Vec<(Lba, Lba)> = Vec::new();
    for range in ranges.into_iter().map(Range::lbas) {
        match merged.last_mut() {
            Some((_, end)) if range.start <= *end => *end = range.end().max(*end),
            _ => merged.push((range.start, range.end())),
        }
    }
    merged
}

/// The range that a file is on its way to; `None` when the cold record does not say.
fn target_of(store: &impl BlockStore, ino: InodeNo, hot: &[u8; HOT_BYTES]) -> Option<Range> {
    Some(read_whole(store, ino, hot)?.relocation?.to)
}

/// What both records say together; `None` when the cold one can not be read.
fn read_whole(store: &impl BlockStore, ino: InodeNo, hot: &[u8; HOT_BYTES]) -> Option<InodeRecord> {
    let mut cold = [0; COLD_BYTES];
    let (lba, offset) = cold_place(ino);
    store
        .read(ByteAddr::new(lba, u64::from(offset)), &mut cold)
        .ok()?;
    InodeRecord::parse(ino, hot, &cold).ok()?
}
