//! Repairs: puts in order what the checker finds wrong, where there is one right answer, and leaves the rest alone.
//!
//! A pass asks the checker, takes the first kind of problem that it knows how to end, and ends each of them with one
//! atomic batch; then the checker is asked again. What a problem hides shows in a later pass: an entry that is removed
//! leaves an inode without a name, which is then given one in `lost+found`. It ends when nothing changes any more, so
//! repairing again changes nothing.
//!
//! # What is never done
//! - Data are not written, and none that a file may have had is let go of. A file that gets another place than it says, or
//!   data of which nobody knows whose they are, is for root alone to read.
//! - Nothing is concluded from what can not be read: as long as a record or a directory is unreadable, nobody is given
//!   a name or another link count.
//! - While the device gives errors instead of metadata, which may be whole, there are no repairs but that of a root record,
//!   of which the other one says all.
//!
//! # Failure
//! A crash leaves the batches that were committed, each of which leaves the volume no worse; the next repair goes on.

mod directory;
mod links;
mod lost_found;
mod overlaps;
mod places;
mod projects;
mod records;
mod strays;
mod xattrs;

use std::collections::{HashMap, HashSet};

use ftl::{AtomicBatch, Lba, LbaRange};

use crate::check::{CheckReport, Problem, Survey, check_snapshots, survey};
use crate::error::FsError;
use crate::format::{COLD_BYTES, HOT_BYTES, InodeRecord};
use crate::fs::{cold_place, hot_place};
use crate::inode::InodeNo;
use crate::store::{BlockStore, ByteAddr, StoreError};
use crate::time::Timestamp;

/// Passes at most; each ends a problem.
const PASSES_MAX: usize = 1000;
/// Times that the same problem is ended: another repair may have brought it back, but not for ever.
const TRIES_MAX: u32 = 8;

/// How far repairs may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Care {
    /// Only what loses nothing that could be found otherwise (`fsck -p`).
    Safe,
    /// Also what gives up what is damaged anyway: entries and attributes that make no sense, one of two equal names; and
    /// what somebody should look at afterwards: files whose place is lost or claimed by another one (`fsck -y`).
    Full,
}

/// What was repaired, and what is left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepairReport {
    /// Problems that were ended, in this order.
    pub repaired: Vec<Problem>,
    /// The checker's opinion afterwards.
    pub after: CheckReport,
}

/// Repairs a volume that nobody uses.
///
/// # Errors
/// Only when the store takes no more changes; what was repaired before stays so.
pub fn repair<S: BlockStore>(store: &S, care: Care) -> Result<RepairReport, FsError> {
    let given_up = check_snapshots(store);
    if given_up.is_some_and(|problem| problem.is_unreadable()) {
        let after = survey(store).report;
        return Ok(RepairReport {
            repaired: Vec::new(),
            after,
        });
    }
    // What is changed may have to be kept for snapshots.
    if let Some(host) = store.snapshot_host() {
        ftl::snapshot::Snapshots::open(host)?;
    }
    let mut repaired: Vec<Problem> = given_up.into_iter().collect();
    let mut tried: HashMap<String, u32> = HashMap::new();
    // What could not be ended, and whether something else has been since: then it is worth another try.
    let mut failed: HashSet<String> = HashSet::new();
    let mut is_changed = false;
    for _ in 0..PASSES_MAX {
        let mut survey = survey(store);
        let all = survey.report.problems.clone();
        let tries = |problem: &Problem| tried.get(&key(problem)).copied().unwrap_or(0);
        let fresh =
            |problem: &Problem| tries(problem) < TRIES_MAX && !failed.contains(&key(problem));
        survey.report.problems.retain(fresh);
        let surgeon = Surgeon {
            store,
            care,
            all: &all,
            now: Timestamp::now(),
            survey,
        };
        let done = surgeon.operate()?;
        if done.is_nothing() && is_changed && !failed.is_empty() {
            failed.clear();
            is_changed = false;
            continue;
        }
        if done.is_nothing() {
            let mut after = surgeon.survey.report;
            repaired.retain(|problem| !all.contains(problem));
            after.problems = all;
            return Ok(RepairReport { repaired, after });
        }
        if !done.failed.is_empty() {
            failed.extend(done.failed.iter().map(key));
            is_changed = false;
        }
        is_changed |= !done.repaired.is_empty();
        for problem in done.repaired {
            *tried.entry(key(&problem)).or_default() += 1;
            if !repaired.contains(&problem) {
                repaired.push(problem);
            }
        }
    }
    let after = survey(store).report;
    Ok(RepairReport { repaired, after })
}

/// What tells two problems apart.
fn key(problem: &Problem) -> String {
    format!("{problem:?}")
}

/// What a step has done.
#[derive(Default)]
struct Done {
    repaired: Vec<Problem>,
    failed: Vec<Problem>,
    /// Something was made ready for the next pass.
    again: bool,
}

impl Done {
    fn again() -> Self {
        Self {
            again: true,
            ..Self::default()
        }
    }

    fn is_nothing(&self) -> bool {
        self.repaired.is_empty() && self.failed.is_empty() && !self.again
    }

    /// Notes how a repair went. Whatever keeps one problem from being ended leaves it to people; only a store that
    /// takes no more changes is the end.
    fn note(&mut self, problem: Problem, result: Result<(), FsError>) -> Result<(), FsError> {
        match result {
            Err(error @ FsError::Store(StoreError::Failed)) => return Err(error),
            Err(error) => {
                tracing::warn!(%problem, %error, "can not be repaired");
                self.failed.push(problem);
            }
            Ok(()) => self.repaired.push(problem),
        }
        Ok(())
    }
}

/// One pass.
struct Surgeon<'a, S> {
    store: &'a S,
    care: Care,
    now: Timestamp,
    /// Every problem there is.
    all: &'a [Problem],
    /// In its report, only the problems that are worth a try.
    survey: Survey,
}

impl<S: BlockStore> Surgeon<'_, S> {
    /// Ends the problems of the first kind that there is something to do about.
    fn operate(&self) -> Result<Done, FsError> {
        let steps = [
            Self::roots,
            Self::table_grains,
            Self::table,
            Self::announce,
            Self::records,
            Self::places,
            Self::strays,
            Self::overlaps,
            Self::directories,
            Self::entries,
            Self::named_orphans,
            Self::parents,
            // Before the first new name: who makes `lost+found` asks the root directory what it inherits.
            Self::attributes,
            Self::limits,
            Self::nameless,
            Self::link_counts,
        ];
        let is_unreadable = self.all.iter().any(Problem::is_unreadable);
        for step in &steps[..if is_unreadable { 1 } else { steps.len() }] {
            let done = step(self)?;
            if !done.is_nothing() {
                return Ok(done);
            }
        }
        Ok(Done::default())
    }

    fn problems(&self) -> impl Iterator<Item = Problem> {
        self.survey.report.problems.iter().copied()
    }

    fn is_full(&self) -> bool {
        self.care == Care::Full
    }

    /// Whether every inode that exists is known to exist.
    fn knows_inodes(&self) -> bool {
        !self.all.iter().any(|problem| {
            matches!(
                problem,
                Problem::Record {
                    ino: InodeNo::TABLE,
                    ..
                } | Problem::BehindTable { .. }
            )
        })
    }

    /// Whether every name is known, hence how many each inode has.
    fn knows_names(&self) -> bool {
        !self.all.iter().any(|problem| {
            matches!(
                problem,
                Problem::Record { .. } | Problem::BehindTable { .. } | Problem::Directory { .. }
            )
        })
    }

    fn commit(&self, batch: AtomicBatch) -> Result<(), FsError> {
        Ok(self.store.commit(batch)?)
    }

    fn record(&self, ino: InodeNo) -> Result<InodeRecord, FsError> {
        let known = self.survey.inodes.get(&ino);
        known.copied().ok_or(FsError::NotFound)
    }

    /// Number of grains of a range up to the last that is mapped.
    fn grains_used(&self, range: LbaRange) -> u64 {
        let mut grains = 0;
        while grains < range.count {
            let rest = LbaRange::new(range.start.offset(grains), range.count - grains);
            let Some(lba) = self.store.next_mapped(rest) else {
                break;
            };
            grains = lba.0 - range.start.0 + 1;
        }
        grains
    }

    fn is_mapped(&self, lba: Lba) -> bool {
        self.store.next_mapped(LbaRange::new(lba, 1)).is_some()
    }
}

/// Writes both records of an inode.
fn put_record(ino: InodeNo, record: &InodeRecord, batch: &mut AtomicBatch) {
    let (lba, offset) = hot_place(ino);
    batch.patch(lba, offset, record.emit_hot(ino));
    let (lba, offset) = cold_place(ino);
    batch.patch(lba, offset, record.emit_cold(ino));
}

fn read_hot(store: &impl BlockStore, ino: InodeNo) -> Result<[u8; HOT_BYTES], StoreError> {
    let mut hot = [0; HOT_BYTES];
    let (lba, offset) = hot_place(ino);
    store.read(ByteAddr::new(lba, u64::from(offset)), &mut hot)?;
    Ok(hot)
}

fn read_cold(store: &impl BlockStore, ino: InodeNo) -> Result<[u8; COLD_BYTES], StoreError> {
    let mut cold = [0; COLD_BYTES];
    let (lba, offset) = cold_place(ino);
    store.read(ByteAddr::new(lba, u64::from(offset)), &mut cold)?;
    Ok(cold)
}
