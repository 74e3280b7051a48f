//! Limits of projects: making the tree below a directory a project, and undoing that. What a crash leaves is said in
//! `docs/quotas.md`; the same command goes on from there.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;

use super::lookup::index_of;
use super::project::{Limit, account, grains, read_projects};
use super::{Fs, Inode, Txn, lock};
use crate::error::FsError;
use crate::format::{Features, InodeRecord, PROJECT_BYTES, ProjectRecord, project_place};
use crate::inode::{FileKind, InodeNo, Limits, ProjectId};
use crate::store::{BlockStore, StoreError};

/// Files that are given to a project by one batch.
const GROUP: usize = 16;
/// Times that a tree is gone through until nothing is left of a project that somebody goes on moving around.
const PASSES_MAX: usize = 64;
/// More directories than any path has.
const DEPTH_MAX: usize = 4096;

/// Limits to set; what is `None` stays, `Some(None)` is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewLimits {
    /// Bytes.
    pub bytes: Option<Option<u64>>,
    /// Inodes.
    pub inodes: Option<Option<u64>>,
}

/// What a project has, and may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quota {
    /// The project.
    pub project: ProjectId,
    /// What it may have.
    pub limits: Limits,
    /// Grains mapped.
    pub grains: u64,
    /// Inodes.
    pub inodes: u64,
    /// The directory that was made a project, from the root of the volume; none for a project without limits.
    pub path: Option<OsString>,
}

impl<S: BlockStore> Fs<S> {
    /// Makes the tree below a directory a project, unless the directory is the top of one already, and sets its limits.
    /// Trees in it that were made projects of their own stay so. What there is already may be more than the limits.
    ///
    /// # Errors
    /// [`FsError::NotDirectory`]; [`FsError::Exists`] if it has a project and another one is wanted, or the wanted one is
    /// that of another directory; [`FsError::NoSpace`] when there is no room for the record of it; [`FsError::Busy`] while
    /// limits are being changed.
    pub fn set_quota(
        &self,
        dir: InodeNo,
        limits: NewLimits,
        wanted: Option<ProjectId>,
    ) -> Result<Quota, FsError> {
        let _quota = self.try_quota()?;
        let top = self.inode(dir)?;
        top.live_directory()?;
        self.use_feature(Features::PROJECTS)?;
        let (slot, mut record) = self.project_to_be(&top, wanted)?;
        let kept = record.limits;
        record.limits = Limits {
            bytes: limits.bytes.unwrap_or(kept.bytes),
            inodes: limits.inodes.unwrap_or(kept.inodes),
        };
        let project = record.id;
        {
            let _content = self.write_dir_index(&top)?;
            let _change = lock(&top.change);
            let mut txn = Txn::default();
            let group = [Arc::clone(&top)];
            let to = Some(project);
            let given = self.plan_giving(&mut txn, &group, to, Limit::Ignored, |_| true)?;
            let (lba, offset) = project_place(slot);
            txn.batch.patch(lba, offset, record.emit(slot));
            self.commit(txn)
                .inspect_err(|_| self.take_back(&given, to))?;
            lock(&self.projects).set_record(project, Some((slot, record)));
            let limit = record.limits.bytes.map(grains);
            self.store.limit_account(account(project), limit);
        }
        self.give_tree(&top, Some(project), |_| true)?;
        self.quota_of(project)
    }

    /// The record that a directory has as the top of a project, or gets.
    fn project_to_be(
        &self,
        top: &Inode,
        wanted: Option<ProjectId>,
    ) -> Result<(u32, ProjectRecord), FsError> {
        let bad: Vec<u32> = read_projects(&self.store)
            .into_iter()
            .filter_map(|(slot, found)| found.is_err().then_some(slot))
            .collect();
        let projects = lock(&self.projects);
        if let Some(known) = projects.of_top(top.ino) {
            let same = wanted.is_none_or(|wanted| wanted == known.1.id);
            return same.then_some(known).ok_or(FsError::Exists);
        }
        let id = wanted
            .or_else(|| projects.unused())
            .ok_or(FsError::NoSpace)?;
        if projects.get(id).record.is_some() {
            return Err(FsError::Exists);
        }
        let slot = projects.free_slot(&bad).ok_or(FsError::NoSpace)?;
        let record = ProjectRecord {
            id,
            limits: Limits::default(),
            top: top.ino,
            generation: top.state().record.generation,
        };
        Ok((slot, record))
    }

    /// Undoes [`set_quota`](Self::set_quota): the tree belongs to the project of the directory above, if that has one.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if the directory is not the top of a project; [`FsError::Busy`] while limits
    /// are being changed, or if somebody does not stop moving things around in it.
    pub fn remove_quota(&self, dir: InodeNo) -> Result<(), FsError> {
        let _quota = self.try_quota()?;
        let top = self.inode(dir)?;
        let known = lock(&self.projects).of_top(dir);
        let (slot, record) = known.ok_or(FsError::NotFound)?;
        let above = top.state().record.parent.filter(|&above| above != dir);
        let above = above.map(|above| self.inode(above)).transpose()?;
        let to = above.and_then(|above| above.state().record.project);
        let is_ours = |other: &InodeRecord| other.project == Some(record.id);
        for _ in 0..PASSES_MAX {
            // What is new in the top meanwhile belongs to the project as before, so that goes last.
            if self.give_tree(&top, to, is_ours)? > 0 {
                continue;
            }
            let content = self.write_dir_index(&top)?;
            let left = index_of(&content).slots().any(|slot| {
                let inode = self.inode(slot.ino);
                inode.is_ok_and(|inode| is_ours(&inode.state().record))
            });
            if left {
                continue;
            }
            let _change = lock(&top.change);
            let mut txn = Txn::default();
            let group = [Arc::clone(&top)];
            let given = self.plan_giving(&mut txn, &group, to, Limit::Ignored, |_| true)?;
            let (lba, offset) = project_place(slot);
            txn.batch.patch(lba, offset, [0; PROJECT_BYTES]);
            self.commit(txn)
                .inspect_err(|_| self.take_back(&given, to))?;
            lock(&self.projects).set_record(record.id, None);
            self.store.limit_account(account(record.id), None);
            return Ok(());
        }
        Err(FsError::Busy)
    }

    /// What a project has, and may have.
    ///
    /// # Errors
    /// [`FsError::NotFound`] when nothing belongs to it.
    pub fn quota_of(&self, project: ProjectId) -> Result<Quota, FsError> {
        let known = lock(&self.projects).get(project);
        if known.inodes == 0 && known.record.is_none() {
            return Err(FsError::NotFound);
        }
        Ok(Quota {
            project,
            limits: known.limits(),
            grains: self.store.account(account(project)).used,
            inodes: known.inodes,
            path: known.record.map(|(_, record)| self.path_of(record.top)),
        })
    }

    /// The first project behind this one, if there is one.
    pub fn quota_behind(&self, project: Option<ProjectId>) -> Option<Quota> {
        let next = lock(&self.projects).behind(project)?;
        self.quota_of(next).ok()
    }

    /// The path of a directory from the root of the volume; as much of it as can be read.
    fn path_of(&self, dir: InodeNo) -> OsString {
        let mut names: Vec<Vec<u8>> = Vec::new();
        let mut at = dir;
        for _ in 0..DEPTH_MAX {
            if at == InodeNo::ROOT {
                break;
            }
            let above = self
                .inode(at)
                .ok()
                .and_then(|inode| inode.state().record.parent);
            let above = above.and_then(|above| self.inode(above).ok());
            let name = above.as_ref().and_then(|above| {
                let content = self.read_dir_index(above).ok()?;
                index_of(&content).name_of(at).map(<[u8]>::to_vec)
            });
            let (Some(above), Some(name)) = (above, name) else {
                break;
            };
            names.push(name);
            at = above.ino;
        }
        let path: Vec<u8> = names
            .iter()
            .rev()
            .flat_map(|name| [b"/", &name[..]].concat())
            .collect();
        OsString::from_vec(if path.is_empty() { b"/".to_vec() } else { path })
    }

    /// Gives everything below `top`, of which `which` chooses, to a project, except the tops of other projects and what is
    /// below them; answers how many inodes it were. `top` itself stays as it is.
    ///
    /// A directory is given first, and its entries are looked at while nobody can change them: what comes in later belongs
    /// to the project already, because it inherits that or would be refused.
    fn give_tree(
        &self,
        top: &Arc<Inode>,
        project: Option<ProjectId>,
        which: impl Fn(&InodeRecord) -> bool + Copy,
    ) -> Result<u64, FsError> {
        let mut given = 0;
        let mut waiting = vec![Arc::clone(top)];
        while let Some(dir) = waiting.pop() {
            let slots: Vec<_> = {
                let content = match self.write_dir_index(&dir) {
                    Err(FsError::NotFound) => continue,
                    Err(error) if is_damage(error) && dir.ino != top.ino => {
                        tracing::warn!(%error, "a damaged directory stays where it is charged");
                        continue;
                    }
                    content => content?,
                };
                if dir.ino != top.ino {
                    let _change = lock(&dir.change);
                    let mut txn = Txn::default();
                    let group = [Arc::clone(&dir)];
                    let plan =
                        self.plan_giving(&mut txn, &group, project, Limit::Ignored, which)?;
                    if !plan.is_empty() {
                        self.commit(txn)
                            .inspect_err(|_| self.take_back(&plan, project))?;
                    }
                    given += plan.len() as u64;
                }
                index_of(&content).slots().collect()
            };
            let mut files = Vec::new();
            for slot in slots {
                let inode = match self.child(dir.ino, slot) {
                    Ok(inode) => inode,
                    Err(error) if is_damage(error) => {
                        tracing::warn!(%error, "a damaged file stays where it is charged");
                        continue;
                    }
                    // It has gone meanwhile.
                    Err(FsError::NotFound) => continue,
                    Err(error) => return Err(error),
                };
                if inode.kind != FileKind::Directory {
                    files.push(inode);
                } else if lock(&self.projects).of_top(inode.ino).is_none() {
                    waiting.push(inode);
                }
            }
            for group in files.chunks(GROUP) {
                given += self.give_to_project(group, project, Limit::Ignored, which)?;
            }
        }
        Ok(given)
    }
}

/// Whether something can not be read, and nothing else is concerned.
const fn is_damage(error: FsError) -> bool {
    matches!(
        error,
        FsError::Corrupt(_)
            | FsError::Store(StoreError::Damaged { .. } | StoreError::Unreadable { .. })
    )
}
