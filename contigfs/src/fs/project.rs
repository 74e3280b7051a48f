//! Projects: who is charged for an inode, and keeping what is charged where the inode's grains are.
//!
//! The store counts the grains of each project, because it alone sees all that get mapped; the number of inodes is
//! counted here. Both are worked out anew by each mount, from the records. See `docs/quotas.md`.

use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard, TryLockError};

use ftl::{AccountId, AtomicBatch, GRAIN_BYTES, LbaRange};

use super::create::lock_changes;
use super::{Fs, Inode, StatFs, Txn, lock};
use crate::error::FsError;
use crate::format::{
    Features, InodeRecord, PROJECT_BYTES, PROJECT_RANGE, PROJECTS_MAX, PROJECTS_PER_GRAIN,
    ProjectRecord, Range, project_place, xattr_head, xattr_rest,
};
use crate::inode::{FileKind, InodeNo, Limits, ProjectId};
use crate::store::{BlockStore, ByteAddr};

/// Projects that have inodes or limits.
#[derive(Debug, Default)]
pub(super) struct Projects {
    known: BTreeMap<ProjectId, Project>,
}

/// A project.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Project {
    /// How many it has.
    pub(super) inodes: u64,
    /// Its record, and the slot of that; without one it has no limits.
    pub(super) record: Option<(u32, ProjectRecord)>,
}

impl Project {
    pub(super) fn limits(&self) -> Limits {
        self.record
            .map_or_else(Limits::default, |(_, record)| record.limits)
    }
}

impl Projects {
    pub(super) fn get(&self, project: ProjectId) -> Project {
        self.known.get(&project).copied().unwrap_or_default()
    }

    /// The first project behind this one.
    pub(super) fn behind(&self, project: Option<ProjectId>) -> Option<ProjectId> {
        let mut known = self.known.keys();
        known.find(|&&id| Some(id) > project).copied()
    }

    /// The record of the project that this directory is the top of.
    pub(super) fn of_top(&self, top: InodeNo) -> Option<(u32, ProjectRecord)> {
        let mut records = self.known.values().filter_map(|project| project.record);
        records.find(|(_, record)| record.top == top)
    }

    /// The lowest project that has nothing.
    pub(super) fn unused(&self) -> Option<ProjectId> {
        let ids = (1..=u32::MAX).filter_map(ProjectId::new);
        ids.into_iter().find(|id| !self.known.contains_key(id))
    }

    /// The lowest slot without a record, beside those that can not be read.
    pub(super) fn free_slot(&self, bad: &[u32]) -> Option<u32> {
        let records = self.known.values().filter_map(|project| project.record);
        let mut used: Vec<u32> = records
            .map(|(slot, _)| slot)
            .chain(bad.iter().copied())
            .collect();
        used.sort_unstable();
        let free = (0..).zip(&used).find(|(slot, used)| slot < *used);
        let free = free.map_or(used.len() as u32, |(slot, _)| slot);
        (free < PROJECTS_MAX).then_some(free)
    }

    pub(super) fn set_record(&mut self, project: ProjectId, record: Option<(u32, ProjectRecord)>) {
        self.known.entry(project).or_default().record = record;
        self.forget_if_idle(project);
    }

    fn forget_if_idle(&mut self, project: ProjectId) {
        let known = self.get(project);
        if known.inodes == 0 && known.record.is_none() {
            self.known.remove(&project);
        }
    }

    /// `more` inodes, if they fit.
    fn admit(&mut self, project: ProjectId, more: u64) -> bool {
        let known = self.known.entry(project).or_default();
        let limit = known.limits().inodes.unwrap_or(u64::MAX);
        let fits = known.inodes.saturating_add(more) <= limit;
        if fits {
            known.inodes += more;
        }
        self.forget_if_idle(project);
        fits
    }

    /// `more` inodes, whatever the limit.
    fn add(&mut self, project: ProjectId, more: u64) {
        self.known.entry(project).or_default().inodes += more;
    }

    fn leave(&mut self, project: ProjectId, count: u64) {
        let known = self.known.entry(project).or_default();
        known.inodes = known.inodes.saturating_sub(count);
        self.forget_if_idle(project);
    }
}

/// What the records say at mount.
#[derive(Debug, Default)]
pub(super) struct Charges {
    projects: BTreeMap<ProjectId, Charge>,
}

#[derive(Debug, Default)]
struct Charge {
    inodes: u64,
    data: Vec<LbaRange>,
    /// Places of extended attributes.
    heads: Vec<LbaRange>,
    rests: Vec<LbaRange>,
}

impl Charges {
    pub(super) fn note(&mut self, ino: InodeNo, record: &InodeRecord) {
        let Some(project) = record.project else {
            return;
        };
        let charge = self.projects.entry(project).or_default();
        charge.inodes += 1;
        ranges_of(record).for_each(|range| push(&mut charge.data, range));
        push(&mut charge.heads, LbaRange::new(xattr_head(ino), 1));
        push(&mut charge.rests, xattr_rest(ino));
    }
}

/// Adds a range; neighbours, which are usual, become one.
fn push(ranges: &mut Vec<LbaRange>, range: LbaRange) {
    match ranges.last_mut() {
        Some(last) if last.end() == range.start => last.count += range.count,
        _ => ranges.push(range),
    }
}

fn ranges_of(record: &InodeRecord) -> impl Iterator<Item = LbaRange> {
    let on_its_way = record.relocation.map(|relocation| relocation.to);
    let ranges = [record.range, on_its_way].into_iter().flatten();
    ranges.map(Range::lbas)
}

/// The account of a project in the store.
pub(super) fn account(project: ProjectId) -> AccountId {
    AccountId(project.get())
}

/// Bytes as whole grains.
pub(super) fn grains(bytes: u64) -> u64 {
    bytes / GRAIN_BYTES as u64
}

impl<S: BlockStore> Fs<S> {
    /// Tells the store who is charged for what, and which limits there are; for the mount.
    pub(super) fn begin_projects(&self, charges: &Charges) {
        self.store.assign(&[LbaRange::ALL], None);
        let mut projects = lock(&self.projects);
        for (&project, charge) in &charges.projects {
            projects.add(project, charge.inodes);
            // Of an earlier mount of the same store, whose record can not be read any more.
            self.store.limit_account(account(project), None);
            let account = Some(account(project));
            self.store.assign(&charge.data, account);
            if self.has_xattr_space {
                self.store.assign(&charge.heads, account);
                self.store.assign(&charge.rests, account);
            }
        }
        if !self.uses(Features::PROJECTS) {
            return;
        }
        for (slot, found) in read_projects(&self.store) {
            match found {
                Ok(record) => {
                    let limit = record.limits.bytes.map(grains);
                    self.store.limit_account(account(record.id), limit);
                    projects.set_record(record.id, Some((slot, record)));
                }
                Err(error) => tracing::error!(%error, slot, "the limits of a project are lost"),
            }
        }
    }

    /// Every place where grains of an inode may be mapped.
    fn places(&self, ino: InodeNo, record: &InodeRecord) -> Vec<LbaRange> {
        let mut places: Vec<LbaRange> = ranges_of(record).collect();
        if self.has_xattr_space {
            places.extend([LbaRange::new(xattr_head(ino), 1), xattr_rest(ino)]);
        }
        places
    }

    /// A new inode is charged to the project that it inherited.
    ///
    /// # Errors
    /// [`FsError::Quota`] when the project has as many inodes as it may have.
    pub(super) fn join_project(&self, ino: InodeNo, record: &InodeRecord) -> Result<(), FsError> {
        let Some(project) = record.project else {
            return Ok(());
        };
        if !lock(&self.projects).admit(project, 1) {
            return Err(FsError::Quota);
        }
        self.store
            .assign(&self.places(ino, record), Some(account(project)));
        Ok(())
    }

    /// An inode is gone, or was never made.
    pub(super) fn leave_project(&self, ino: InodeNo, record: &InodeRecord) {
        let Some(project) = record.project else {
            return;
        };
        self.store.assign(&self.places(ino, record), None);
        let mut projects = lock(&self.projects);
        projects.leave(project, 1);
        let Some((_, ended)) = projects
            .of_top(ino)
            .filter(|_| record.kind == FileKind::Directory)
        else {
            return;
        };
        projects.set_record(ended.id, None);
        drop(projects);
        self.store.limit_account(account(ended.id), None);
    }

    /// Adds the end of the limits of a project whose top goes.
    pub(super) fn end_project_of(&self, inode: &Inode, batch: &mut AtomicBatch) {
        if inode.kind != FileKind::Directory || inode.state().record.project.is_none() {
            return;
        }
        if let Some((slot, _)) = lock(&self.projects).of_top(inode.ino) {
            let (lba, offset) = project_place(slot);
            batch.patch(lba, offset, [0; PROJECT_BYTES]);
        }
    }

    /// A range that an inode is about to use is charged to its project.
    pub(super) fn charge_range(&self, inode: &Inode, range: LbaRange) {
        let project = inode.state().record.project;
        if let Some(project) = project {
            self.store.assign(&[range], Some(account(project)));
        }
    }

    /// An inode does not use a range any more; before anybody else can get it.
    pub(super) fn charge_nobody(&self, inode: &Inode, range: LbaRange) {
        let project = inode.state().record.project;
        if project.is_some() {
            self.store.assign(&[range], None);
        }
    }

    /// Refuses to bring into the directory of a project what belongs to another one, or to none, as ext4 and XFS do: it
    /// would be charged to the wrong one. The caller holds `change` of both.
    pub(super) fn check_same_project(&self, inode: &Inode, dir: &Inode) -> Result<(), FsError> {
        let (project, of_dir) = (inode.state().record.project, dir.state().record.project);
        match of_dir {
            Some(_) if of_dir != project => Err(FsError::OtherProject),
            _ => Ok(()),
        }
    }

    /// The project of an inode.
    pub fn project(&self, ino: InodeNo) -> Result<Option<ProjectId>, FsError> {
        Ok(self.inode(ino)?.state().record.project)
    }

    /// Gives one inode to a project, with what it holds; what is below a directory stays where it is.
    ///
    /// # Errors
    /// [`FsError::Quota`] if the project would grow beyond a limit; [`FsError::Busy`] for the top of a project with
    /// limits, and while limits are being changed.
    pub fn set_project(&self, ino: InodeNo, project: Option<ProjectId>) -> Result<(), FsError> {
        let inode = self.inode(ino)?;
        if inode.state().dead {
            return Err(FsError::NotFound);
        }
        if inode.state().record.project == project {
            return Ok(());
        }
        let _quota = self.try_quota()?;
        if lock(&self.projects).of_top(ino).is_some() {
            return Err(FsError::Busy);
        }
        self.use_feature(Features::PROJECTS)?;
        self.give_to_project(&[inode], project, Limit::Counts, |_| true)?;
        Ok(())
    }

    /// Begins a change of limits, or of what they concern. Nobody waits for another one, which may take long.
    pub(super) fn try_quota(&self) -> Result<MutexGuard<'_, ()>, FsError> {
        match self.quota.try_lock() {
            Ok(guard) => Ok(guard),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err(FsError::Busy),
        }
    }

    /// Gives inodes, of which `which` chooses by their records, to a project, in one batch; answers how many it were. There
    /// is at most one directory among them, and then nothing else.
    pub(super) fn give_to_project(
        &self,
        group: &[Arc<Inode>],
        project: Option<ProjectId>,
        limit: Limit,
        which: impl Fn(&InodeRecord) -> bool,
    ) -> Result<u64, FsError> {
        let mut group = group.to_vec();
        group.sort_by_key(|inode| inode.ino);
        group.dedup_by_key(|inode| inode.ino);
        // So that nobody has a new range meanwhile.
        let _contents: Vec<_> = group.iter().map(|inode| inode.change_content()).collect();
        let _changes = lock_changes(&group);
        let mut txn = Txn::default();
        self.plan_giving(&mut txn, &group, project, limit, which)
            .and_then(|given| {
                if given.is_empty() {
                    return Ok(0);
                }
                self.commit(txn)
                    .inspect_err(|_| self.take_back(&given, project))?;
                Ok(given.len() as u64)
            })
    }

    /// Charges inodes to a project, and adds the change of their records to `txn`; should that fail, `take_back` undoes it.
    /// The caller holds `content` exclusively, and `change`.
    pub(super) fn plan_giving(
        &self,
        txn: &mut Txn,
        group: &[Arc<Inode>],
        project: Option<ProjectId>,
        limit: Limit,
        which: impl Fn(&InodeRecord) -> bool,
    ) -> Result<Vec<(InodeNo, InodeRecord)>, FsError> {
        let now = self.now();
        let mut given = Vec::new();
        for inode in group {
            let (record, dead) = {
                let state = inode.state();
                (state.record, state.dead)
            };
            if dead || record.project == project || !which(&record) {
                continue;
            }
            if let Err(error) = self.recharge(inode.ino, &record, project, limit) {
                self.take_back(&given, project);
                return Err(error);
            }
            given.push((inode.ino, record));
            txn.edit(inode, |record| {
                record.project = project;
                record.ctime = now;
            });
        }
        Ok(given)
    }

    /// Charges somebody else for an inode.
    fn recharge(
        &self,
        ino: InodeNo,
        record: &InodeRecord,
        project: Option<ProjectId>,
        limit: Limit,
    ) -> Result<(), FsError> {
        let places = self.places(ino, record);
        let mut projects = lock(&self.projects);
        match (project, limit) {
            (Some(project), Limit::Counts) => {
                if !projects.admit(project, 1) {
                    return Err(FsError::Quota);
                }
                drop(projects);
                if !self.store.assign_if_room(&places, account(project)) {
                    lock(&self.projects).leave(project, 1);
                    return Err(FsError::Quota);
                }
                projects = lock(&self.projects);
            }
            (project, _) => {
                project.into_iter().for_each(|id| projects.add(id, 1));
                drop(projects);
                self.store.assign(&places, project.map(account));
                projects = lock(&self.projects);
            }
        }
        if let Some(before) = record.project {
            projects.leave(before, 1);
        }
        Ok(())
    }

    /// Charges those again that were charged before.
    pub(super) fn take_back(&self, given: &[(InodeNo, InodeRecord)], project: Option<ProjectId>) {
        for (ino, record) in given {
            let now = InodeRecord { project, ..*record };
            let back = self.recharge(*ino, &now, record.project, Limit::Ignored);
            back.expect("nothing is refused");
        }
    }

    /// Grains that may be mapped in a project which gives back `freed` before; none if it has no limit.
    pub(super) fn room_of_project(&self, project: ProjectId, freed: u64) -> Option<u64> {
        let limit = lock(&self.projects).get(project).limits().bytes?;
        let used = self.store.account(account(project)).used;
        Some((grains(limit) + freed).saturating_sub(used))
    }

    /// How full a project with limits is.
    pub(super) fn within_limits(&self, project: ProjectId, all: StatFs) -> StatFs {
        let known = lock(&self.projects).get(project);
        let limits = known.limits();
        let mut stat = all;
        if let Some(bytes) = limits.bytes {
            let used = self.store.account(account(project)).used;
            stat.grains = grains(bytes).min(all.grains);
            stat.grains_free = stat.grains.saturating_sub(used).min(all.grains_free);
            stat.grains_available = stat.grains_free.min(all.grains_available);
        }
        if let Some(most) = limits.inodes {
            stat.inodes = known.inodes;
            stat.inodes_free = most.saturating_sub(known.inodes).min(all.inodes_free);
        }
        stat
    }
}

/// Whether limits count when an inode is given to a project.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Limit {
    Counts,
    /// Who sets limits may put them below what there is.
    Ignored,
}

/// The records of the table of projects, and what can not be read of it.
pub(crate) fn read_projects<S: BlockStore>(
    store: &S,
) -> Vec<(u32, Result<ProjectRecord, FsError>)> {
    let mut found = Vec::new();
    let all = PROJECT_RANGE.lbas();
    let mut next = all.start;
    while next < all.end() {
        let rest = LbaRange::new(next, all.end().0 - next.0);
        let Some(lba) = store.next_mapped(rest) else {
            break;
        };
        next = lba.offset(1);
        let first = (lba.0 - all.start.0) as u32 * PROJECTS_PER_GRAIN;
        let mut bytes = [0; GRAIN_BYTES];
        let read = store.read(ByteAddr::new(lba, 0), &mut bytes);
        let (records, _) = bytes.as_chunks::<PROJECT_BYTES>();
        for (slot, record) in (first..).zip(records) {
            match read {
                Ok(()) => match ProjectRecord::parse(slot, record) {
                    Ok(None) => {}
                    Ok(Some(record)) => found.push((slot, Ok(record))),
                    Err(error) => found.push((slot, Err(error.into()))),
                },
                Err(error) => found.push((slot, Err(error.into()))),
            }
        }
    }
    found
}
