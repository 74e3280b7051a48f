//! The scan of the inode table by which a mount knows what is free, what is damaged, and what a crash left half done.

use std::collections::HashSet;

use ftl::GRAIN_BYTES;

use super::Alloc;
use super::claims::{claimants, is_in, merged};
use super::missed::{Search, missed_inodes};
use super::project::Charges;
use super::records::{TableLength, hot_grains, hot_records, read_whole, table_length, target_of};
use crate::buddy::Buddy;
use crate::error::FsError;
use crate::format::{
    Features, HOT_BYTES, HOT_PER_GRAIN, HOT_RANGE, HotRecord, METADATA_ORDER, ROOT_DIR_RANGE,
    ROOT_LBA, Range, XATTR_SPACE,
};
use crate::inode::InodeNo;
use crate::planted::Bug;
use crate::store::{BlockStore, ByteAddr};
use crate::strays;
use crate::table::Table;

/// What the scan of the inode table found.
pub(super) struct Scan {
    pub(super) alloc: Alloc,
    pub(super) grains: u64,
    pub(super) has_xattr_space: bool,
    pub(super) degraded: bool,
    /// Grains are mapped that nobody owns.
    pub(super) has_leftovers: bool,
    pub(super) bad: HashSet<InodeNo>,
    pub(super) orphans: Vec<InodeNo>,
    /// Files on their way to another range.
    pub(super) relocating: Vec<InodeNo>,
    pub(super) projects: Charges,
}

/// Reads all hot records. One that makes no sense, or is missing, marks its inode bad and the mount goes on.
pub(super) fn scan(store: &impl BlockStore, features: Features, planted: Option<Bug>) -> Scan {
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
    let mut scanner = Scanner::new(store, planted);
    // Only a volume from before there were attributes may have a file there: it keeps it, and gets no attributes.
    let reserved_first = features.contains(Features::XATTRS) && scanner.buddy.reserve(XATTR_SPACE);
    for number in hot_grains(store, grains) {
        scanner.note_grain(number);
    }
    scanner.settle_disputes(grains);
    let has_leftovers = scanner.has_leftovers();
    let search = match has_leftovers {
        true => Search::All,
        false => Search::Deserted,
    };
    for ino in missed_inodes(store, &scanner.table, grains, search) {
        scanner.table.note(ino);
        scanner.bad.insert(ino);
    }
    let are_missed = || {
        let files = settled_files(store, grains);
        has_leftovers && strays::are_missed(store, &scanner.buddy, files)
    };
    let has_flaw = !scanner.bad.is_empty() || !scanner.has_root || is_more_than_recorded;
    let degraded = has_flaw || are_missed();
    let nothing_unknown = !degraded || store.next_mapped(XATTR_SPACE.lbas()).is_none();
    let has_xattr_space = reserved_first || nothing_unknown && scanner.buddy.reserve(XATTR_SPACE);
    Scan {
        alloc: Alloc {
            table: scanner.table,
            buddy: scanner.buddy,
        },
        grains,
        has_xattr_space,
        degraded,
        has_leftovers,
        bad: scanner.bad,
        orphans: scanner.orphans,
        relocating: scanner.relocating,
        projects: scanner.projects,
    }
}

/// What is known so far.
struct Scanner<'a, S> {
    store: &'a S,
    planted: Option<Bug>,
    table: Table,
    buddy: Buddy,
    bad: HashSet<InodeNo>,
    /// Claimed again, after somebody else had claimed a part of it.
    disputed: Vec<Range>,
    orphans: Vec<InodeNo>,
    relocating: Vec<InodeNo>,
    projects: Charges,
    has_root: bool,
}

impl<'a, S: BlockStore> Scanner<'a, S> {
    fn new(store: &'a S, planted: Option<Bug>) -> Self {
        let mut table = Table::default();
        let mut buddy = Buddy::new();
        let metadata = buddy.allocate(METADATA_ORDER);
        assert!(
            metadata.is_some_and(|range| range.start == ROOT_LBA),
            "the first allocation is at the start"
        );
        // Its place is known and its content speaks for itself, whatever its record says.
        buddy.reserve(ROOT_DIR_RANGE);
        table.note(InodeNo::TABLE);
        // There is always one: see `make_up_root`.
        table.note(InodeNo::ROOT);
        Self {
            store,
            planted,
            table,
            buddy,
            bad: HashSet::new(),
            disputed: Vec::new(),
            orphans: Vec::new(),
            relocating: Vec::new(),
            projects: Charges::default(),
            has_root: false,
        }
    }

    /// All records of a grain.
    fn note_grain(&mut self, number: u64) {
        let mut bytes = [0; GRAIN_BYTES];
        let lba = HOT_RANGE.start.offset(number);
        let read = self.store.read(ByteAddr::new(lba, 0), &mut bytes);
        let (records, _) = bytes.as_chunks::<HOT_BYTES>();
        let numbers = (number * HOT_PER_GRAIN..).map(InodeNo);
        for (ino, hot) in numbers.zip(records).skip(usize::from(number == 0)) {
            let parsed = read
                .map_err(FsError::from)
                .and_then(|()| Ok(HotRecord::parse(ino, hot)?));
            if let Some(parsed) = parsed.transpose() {
                self.note(ino, hot, parsed);
            }
        }
    }

    /// A record that is there, or can not be read.
    fn note(&mut self, ino: InodeNo, hot: &[u8; HOT_BYTES], parsed: Result<HotRecord, FsError>) {
        let found = match parsed {
            Ok(record) if ino == InodeNo::ROOT => record.is_of_root().then_some(record),
            Ok(record) => {
                let takes = record.range.is_none_or(|range| self.takes(range));
                takes.then_some(record)
            }
            Err(_) => None,
        };
        if ino == InodeNo::ROOT {
            self.has_root = found.is_some();
        } else {
            self.table.note(ino);
        }
        let Some(record) = found else {
            self.bad.insert(ino);
            return;
        };
        if record.relocating {
            let target = target_of(self.store, ino, hot);
            if !target.is_some_and(|range| self.takes(range)) {
                self.bad.insert(ino);
                return;
            }
            self.relocating.push(ino);
        }
        if record.in_project && self.planted != Some(Bug::ProjectsForgotten) {
            match read_whole(self.store, ino, hot) {
                Some(record) => self.projects.note(ino, &record),
                None => {
                    tracing::warn!(%ino, "nobody is charged for an inode that can not be read");
                }
            }
        }
        if record.orphan && ino != InodeNo::ROOT {
            self.orphans.push(ino);
        }
    }

    /// Whether nobody else claims a part of a range; it is the claimant's from now on.
    fn takes(&mut self, range: Range) -> bool {
        let taken = self.planted == Some(Bug::RangesForgotten) || self.buddy.reserve(range);
        if !taken {
            self.disputed.push(range);
        }
        taken
    }

    /// What two claim neither of them has, nor does a new file get what only one of them claims.
    fn settle_disputes(&mut self, grains: u64) {
        let disputed = merged(std::mem::take(&mut self.disputed));
        self.bad.extend(claimants(self.store, grains, &disputed));
        let free = self.buddy.free_blocks();
        let free: Vec<Range> = free.filter(|&block| is_in(&disputed, block)).collect();
        for block in free {
            self.buddy.reserve(block);
        }
        self.bad.remove(&InodeNo::ROOT);
    }

    /// Whether grains are mapped that nobody owns.
    fn has_leftovers(&self) -> bool {
        let mut free = self.buddy.free_blocks();
        free.any(|block| self.store.next_mapped(block.lbas()).is_some())
    }
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
