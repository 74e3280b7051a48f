//! The checker: reads a whole volume and says what is wrong with it.
//!
//! It shares the format parsers with the file system, but none of its state: it reads the store alone, so it judges
//! what a mount would find. It changes nothing.

mod names;
mod report;

use std::collections::{HashMap, HashSet};

use ftl::snapshot::Snapshots;
use ftl::{GRAIN_BYTES, Lba, LbaRange};

use crate::acl::Acl;
use crate::error::{Corruption, FsError};
use crate::format::{
    COLD_BYTES, COLD_PER_GRAIN, COLD_RANGE, Features, HOT_BYTES, HOT_PER_GRAIN, HOT_RANGE,
    HotRecord, INODES_MAX, InodeRecord, METADATA_ORDER, PROJECT_RANGE, ROOT_COPY_LBA, ROOT_LBA,
    Range, RootRecord, TableRecord, XATTR_HEADS, XATTR_SPACE, parse_xattrs, xattr_grain,
    xattr_grains, xattr_head, xattr_owner, xattr_rest,
};
use crate::fs::read_projects;
use crate::inode::{FileKind, InodeNo};
use crate::lost_root;
use crate::store::{BlockStore, ByteAddr};
use crate::strays;
use crate::volume_check::Stage;
use crate::xattr::{XattrName, XattrSet};

use names::Links;

pub use report::{CheckReport, Problem};

/// What the checker knows when it is done.
pub(crate) struct Survey {
    pub(crate) report: CheckReport,
    /// Records that can be read.
    pub(crate) inodes: HashMap<InodeNo, InodeRecord>,
    links: HashMap<InodeNo, Links>,
    /// What the root records should announce.
    pub(crate) features: Features,
}

impl Survey {
    /// Directories that hold the names of a directory, one for each name.
    pub(crate) fn holders(&self, ino: InodeNo) -> &[InodeNo] {
        self.links.get(&ino).map_or(&[], |links| &links.holders)
    }

    /// Whether some entry leads there.
    pub(crate) fn is_named(&self, ino: InodeNo) -> bool {
        self.links.get(&ino).is_some_and(|links| links.names > 0)
    }

    /// What entries say it is.
    pub(crate) fn kind_of_entries(&self, ino: InodeNo) -> Option<FileKind> {
        self.links.get(&ino)?.kind
    }
}

/// Checks the metadata of a volume, for who wants to know more.
pub(crate) fn survey<S: BlockStore>(store: &S) -> Survey {
    let mut quiet = |_, _, _| {};
    let mut checker = Checker::new(store, &mut quiet);
    checker.run(false);
    Survey {
        report: checker.report,
        inodes: checker.inodes,
        links: checker.links,
        features: checker.features,
    }
}

/// Hears how far a check is: of this part so much, of so much.
pub type Progress<'a> = &'a mut dyn FnMut(Stage, u64, u64);

struct Checker<'a, S> {
    store: &'a S,
    progress: Progress<'a>,
    report: CheckReport,
    /// What some root record announces, or is there.
    features: Features,
    /// What all of them announce.
    announced: Features,
    inodes: HashMap<InodeNo, InodeRecord>,
    unreadable: HashSet<InodeNo>,
    links: HashMap<InodeNo, Links>,
}

/// Checks the metadata of a volume.
pub fn check<S: BlockStore>(store: &S) -> CheckReport {
    survey(store).report
}

/// As [`check()`], and reads all data too.
pub fn check_with_data<S: BlockStore>(store: &S) -> CheckReport {
    check_telling(store, true, &mut |_, _, _| {})
}

/// Either of both, for who shows how far it is.
pub(crate) fn check_telling<S: BlockStore>(
    store: &S,
    data: bool,
    progress: Progress<'_>,
) -> CheckReport {
    let mut checker = Checker::new(store, progress);
    checker.run(data);
    checker.report
}

impl<'a, S: BlockStore> Checker<'a, S> {
    fn new(store: &'a S, progress: Progress<'a>) -> Self {
        Self {
            store,
            progress,
            report: CheckReport::default(),
            features: Features::default(),
            announced: Features::default(),
            inodes: HashMap::new(),
            unreadable: HashSet::new(),
            links: HashMap::new(),
        }
    }

    fn run(&mut self, data: bool) {
        if let Some(problem) = check_snapshots(self.store) {
            self.problem(problem);
        }
        if !self.check_roots() {
            return;
        }
        let grains = self.check_table_record();
        self.read_records(grains);
        self.check_features();
        if self.features.contains(Features::XATTRS) {
            self.check_xattrs();
        }
        self.check_projects();
        self.check_ranges();
        self.check_strays();
        self.walk_directories();
        self.check_links();
        if data {
            self.check_data();
        }
    }

    fn problem(&mut self, problem: Problem) {
        self.report.problems.push(problem);
    }

    /// Whether there is a file system at all.
    fn check_roots(&mut self) -> bool {
        let read = |lba| -> Result<RootRecord, FsError> {
            let mut bytes = [0; RootRecord::BYTES];
            self.store.read(ByteAddr::new(lba, 0), &mut bytes)?;
            Ok(RootRecord::parse(&bytes)?)
        };
        let (first, second) = (read(ROOT_LBA), read(ROOT_COPY_LBA));
        for (copy, result) in [(false, first), (true, second)] {
            if let Err(error) = result {
                self.problem(Problem::Root { copy, error });
            }
        }
        let features = |root: Result<RootRecord, FsError>| root.map(|root| root.features);
        let (first, second) = match (features(first), features(second)) {
            (Ok(first), Ok(second)) => (first, second),
            (Ok(only), Err(_)) | (Err(_), Ok(only)) => (only, only),
            // What it would be made up of is looked at all the same.
            (Err(_), Err(_)) => match lost_root::made_up(self.store) {
                Some(root) => (root.features, root.features),
                None => return false,
            },
        };
        self.features = first.with(second);
        self.announced = first.common(second);
        true
    }

    /// What is there is announced, by both copies.
    fn check_features(&mut self) {
        let table = self.store.next_mapped(PROJECT_RANGE.lbas());
        let mut inodes = self.inodes.values();
        if table.is_some() || inodes.any(|record| record.project.is_some()) {
            self.features = self.features.with(Features::PROJECTS);
        }
        if !self.features.contains(Features::XATTRS) && self.are_attributes_there() {
            self.features = self.features.with(Features::XATTRS);
        }
        if self.features != self.announced {
            self.problem(Problem::Unannounced);
        }
    }

    /// Whether some inode has attributes that can be read.
    fn are_attributes_there(&self) -> bool {
        let mut next = XATTR_HEADS.start;
        let end = XATTR_HEADS.lbas().end();
        while next < end {
            let rest = LbaRange::new(next, end.0 - next.0);
            let Some(head) = self.store.next_mapped(rest) else {
                return false;
            };
            next = head.offset(1);
            let ino = InodeNo(head.0 - XATTR_HEADS.start.0);
            let record = self.inodes.get(&ino);
            if record.is_some_and(|record| read_xattrs(self.store, ino, record.generation).is_ok())
            {
                return true;
            }
        }
        false
    }

    /// Number of hot grains to look at.
    fn check_table_record(&mut self) -> u64 {
        let mut bytes = [0; HOT_BYTES];
        let read = self
            .store
            .read(ByteAddr::new(HOT_RANGE.start, 0), &mut bytes);
        let parsed = read
            .map_err(FsError::from)
            .and_then(|()| Ok(TableRecord::parse(&bytes)?));
        let behind = match parsed {
            Ok(table) => table.grains,
            Err(error) => {
                self.problem(Problem::Record {
                    ino: InodeNo::TABLE,
                    error,
                });
                return INODES_MAX / HOT_PER_GRAIN;
            }
        };
        for (table, first) in [
            (HOT_RANGE, behind),
            (COLD_RANGE, behind * HOT_PER_GRAIN / COLD_PER_GRAIN),
        ] {
            let rest = LbaRange::new(table.start.offset(first), table.order.grains() - first);
            if let Some(lba) = self.store.next_mapped(rest) {
                self.problem(Problem::BehindTable { lba });
            }
        }
        behind
    }

    fn read_records(&mut self, grains: u64) {
        let mut next = 0;
        while next < grains {
            let hot_rest = LbaRange::new(HOT_RANGE.start.offset(next), grains - next);
            let hot = self
                .store
                .next_mapped(hot_rest)
                .map(|lba| lba.0 - HOT_RANGE.start.0);
            let cold_per_hot = HOT_PER_GRAIN / COLD_PER_GRAIN;
            let cold_rest = LbaRange::new(
                COLD_RANGE.start.offset(next * cold_per_hot),
                (grains - next) * cold_per_hot,
            );
            let cold = self
                .store
                .next_mapped(cold_rest)
                .map(|lba| (lba.0 - COLD_RANGE.start.0) / cold_per_hot);
            let Some(number) = hot.into_iter().chain(cold).min() else {
                return;
            };
            for ino in number * HOT_PER_GRAIN..(number + 1) * HOT_PER_GRAIN {
                if ino != InodeNo::TABLE.0 {
                    self.read_record(InodeNo(ino));
                }
            }
            next = number + 1;
            (self.progress)(Stage::Files, next, grains);
        }
    }

    fn read_record(&mut self, ino: InodeNo) {
        let (mut hot, mut cold) = ([0; HOT_BYTES], [0; COLD_BYTES]);
        let hot_at = ByteAddr::new(HOT_RANGE.start, ino.0 * HOT_BYTES as u64);
        let cold_at = ByteAddr::new(COLD_RANGE.start, ino.0 * COLD_BYTES as u64);
        let read = self
            .store
            .read(hot_at, &mut hot)
            .and_then(|()| self.store.read(cold_at, &mut cold));
        let parsed = read
            .map_err(FsError::from)
            .and_then(|()| Ok(InodeRecord::parse(ino, &hot, &cold)?));
        match parsed {
            Ok(None) => {}
            Ok(Some(record)) => {
                self.inodes.insert(ino, record);
            }
            Err(error) => {
                self.problem(Problem::Record { ino, error });
                self.unreadable.insert(ino);
            }
        }
    }

    /// Every mapped grain in the place of extended attributes belongs to those of an inode that exists.
    fn check_xattrs(&mut self) {
        let mut next = XATTR_SPACE.start;
        let end = XATTR_SPACE.lbas().end();
        while next < end {
            let rest = LbaRange::new(next, end.0 - next.0);
            let Some(lba) = self.store.next_mapped(rest) else {
                return;
            };
            next = lba.offset(1);
            let Some(ino) = xattr_owner(lba) else {
                self.report.ownerless_grains += 1;
                continue;
            };
            match (lba == xattr_head(ino), self.inodes.get(&ino)) {
                // Whether the inode exists is not known.
                _ if self.unreadable.contains(&ino) => {}
                (true, Some(&record)) => self.check_xattrs_of(ino, &record),
                // What follows a head was checked with it.
                (false, Some(_)) if self.is_mapped(xattr_head(ino)) => {}
                _ => self.problem(Problem::XattrsLeft { ino, lba }),
            }
        }
    }

    /// Each record of limits can be read and belongs to a directory of that project, no two to the
    /// same one or to the same project.
    fn check_projects(&mut self) {
        let (mut ids, mut tops) = (HashSet::new(), HashSet::new());
        for (slot, found) in read_projects(self.store) {
            let judged = found.and_then(|record| {
                let wrong = |what| Err(Corruption::Project { slot, what }.into());
                if !ids.insert(record.id) || !tops.insert(record.top) {
                    return wrong("there is another one of the project or directory");
                }
                match self.inodes.get(&record.top) {
                    None if self.unreadable.contains(&record.top) => Ok(()),
                    Some(top)
                        if top.kind == FileKind::Directory
                            && top.generation == record.generation
                            && top.project == Some(record.id) =>
                    {
                        Ok(())
                    }
                    _ => wrong("its directory does not exist, or belongs to another project"),
                }
            });
            if let Err(error) = judged {
                self.problem(Problem::Limits { slot, error });
            }
        }
    }

    fn is_mapped(&self, lba: Lba) -> bool {
        self.store.next_mapped(LbaRange::new(lba, 1)).is_some()
    }

    fn check_xattrs_of(&mut self, ino: InodeNo, record: &InodeRecord) {
        self.report.with_xattrs += 1;
        let (set, grains) = match read_xattrs(self.store, ino, record.generation) {
            Ok(found) => found,
            Err(error) => return self.problem(Problem::Xattrs { ino, error }),
        };
        if !lists_are_good(&set, record) {
            self.problem(Problem::AccessList { ino });
        }
        let behind = xattr_grain(ino, grains);
        let left = LbaRange::new(behind, xattr_rest(ino).end().0 - behind.0);
        if let Some(lba) = self.store.next_mapped(left) {
            self.problem(Problem::XattrsLeft { ino, lba });
        }
    }

    /// No two files share LBAs; what is mapped belongs to somebody.
    fn check_ranges(&mut self) {
        let mut ranges: Vec<(LbaRange, InodeNo)> = self
            .inodes
            .iter()
            .flat_map(|(&ino, record)| {
                let ranges = [
                    record.range,
                    record.relocation.map(|on_its_way| on_its_way.to),
                ];
                let ranges = ranges.into_iter().flatten();
                ranges.map(move |range| (range.lbas(), ino))
            })
            .chain(
                self.unreadable
                    .iter()
                    .filter_map(|&ino| Some((self.hot_range(ino)?.lbas(), ino))),
            )
            .collect();
        if self.features.contains(Features::XATTRS) {
            ranges.push((XATTR_SPACE.lbas(), InodeNo::TABLE));
        }
        ranges.sort_by_key(|(range, ino)| (range.start, *ino));
        let mut end = Lba(METADATA_ORDER.grains());
        let mut last = InodeNo::TABLE;
        for (range, ino) in ranges {
            if range.start < end {
                self.problem(Problem::Overlap { ino, other: last });
            } else {
                self.report.ownerless_grains += self
                    .store
                    .mapped_count(LbaRange::new(end, range.start.0 - end.0));
            }
            if range.end() > end {
                (end, last) = (range.end(), ino);
            }
        }
        self.report.ownerless_grains += self
            .store
            .mapped_count(LbaRange::new(end, Lba::END.0 - end.0));
    }

    /// A mount may trim what nobody owns.
    fn check_strays(&mut self) {
        if self.report.ownerless_grains == 0 {
            return;
        }
        let claims = |record: &InodeRecord| {
            let target = record.relocation.map(|on_its_way| on_its_way.to);
            record.range.into_iter().chain(target)
        };
        let unreadable = self.unreadable.iter();
        let unreadable = unreadable.filter_map(|&ino| self.hot_range(ino));
        let claimed = self.inodes.values().flat_map(claims).chain(unreadable);
        let free = strays::free_space(claimed);
        let Some((lba, grains)) = strays::strays(self.store, &free) else {
            return;
        };
        let settled = self.inodes.values();
        let settled = settled.filter(|record| record.relocation.is_none() && !record.orphan);
        let files = settled.filter_map(|record| Some((record.range?, record.size)));
        let is_overlap = |problem: &Problem| matches!(problem, Problem::Overlap { .. });
        let problems = &self.report.problems;
        if problems.iter().any(is_overlap) || strays::are_missed(self.store, &free, files) {
            self.problem(Problem::Strays { lba, grains });
        }
    }

    /// Range of an inode whose cold record alone is damaged.
    fn hot_range(&self, ino: InodeNo) -> Option<Range> {
        let mut hot = [0; HOT_BYTES];
        let at = ByteAddr::new(HOT_RANGE.start, ino.0 * HOT_BYTES as u64);
        self.store.read(at, &mut hot).ok()?;
        HotRecord::parse(ino, &hot).ok()??.range
    }

    fn count_kind(&mut self, kind: FileKind) {
        match kind {
            FileKind::File => self.report.files += 1,
            FileKind::Directory => self.report.directories += 1,
            _ => self.report.others += 1,
        }
    }

    fn check_data(&mut self) {
        let mut files: Vec<_> = self
            .inodes
            .iter()
            .flat_map(|(&ino, r)| {
                let ranges = [r.range, r.relocation.map(|on_its_way| on_its_way.to)];
                let ranges = ranges.into_iter().flatten();
                ranges.map(move |range| (ino, range.lbas()))
            })
            .collect();
        files.sort_unstable_by_key(|(ino, _)| *ino);
        let mut grain = [0; GRAIN_BYTES];
        let all = files.len() as u64;
        for (done, (ino, range)) in (1..).zip(files) {
            (self.progress)(Stage::Data, done, all);
            let mut next = range.start;
            while next < range.end() {
                let rest = LbaRange::new(next, range.end().0 - next.0);
                let Some(lba) = self.store.next_mapped(rest) else {
                    break;
                };
                next = lba.offset(1);
                if let Err(error) = self.store.read(ByteAddr::new(lba, 0), &mut grain) {
                    self.problem(Problem::Data { ino, error });
                }
            }
        }
    }
}

/// What is wrong with snapshots.
pub(crate) fn check_snapshots(store: &impl BlockStore) -> Option<Problem> {
    match Snapshots::are_damaged(store.snapshot_host()?) {
        Ok(false) => None,
        Ok(true) => Some(Problem::Snapshots { error: None }),
        Err(error) => Some(Problem::Snapshots { error: Some(error) }),
    }
}

/// Reads the attributes of an inode, and how many grains they have.
pub(crate) fn read_xattrs(
    store: &impl BlockStore,
    ino: InodeNo,
    generation: u64,
) -> Result<(XattrSet, usize), FsError> {
    let mut bytes = vec![0; GRAIN_BYTES];
    store.read(ByteAddr::new(xattr_head(ino), 0), &mut bytes)?;
    let head = bytes.first_chunk().expect("a whole grain was read");
    let grains = xattr_grains(ino, head)?;
    bytes.resize(grains * GRAIN_BYTES, 0);
    if grains > 1 {
        let rest = ByteAddr::new(xattr_rest(ino).start, 0);
        store.read(rest, &mut bytes[GRAIN_BYTES..])?;
    }
    Ok((parse_xattrs(ino, generation, &bytes)?, grains))
}

/// Whether the access control lists are legal, and the mode says what the access list says.
fn lists_are_good(set: &XattrSet, record: &InodeRecord) -> bool {
    let list = |name| set.get(&name).map(|value| Acl::parse(value).ok().flatten());
    let access = match list(XattrName::access_acl()) {
        None => true,
        Some(None) => false,
        Some(Some(acl)) => {
            let agrees = acl.perm_bits() == record.perm & 0o777;
            agrees && !acl.is_minimal() && record.kind != FileKind::Symlink
        }
    };
    let default = match list(XattrName::default_acl()) {
        None => true,
        Some(acl) => acl.is_some() && record.kind == FileKind::Directory,
    };
    access && default
}
