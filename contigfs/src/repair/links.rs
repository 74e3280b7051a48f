//! Links: what says how often an inode is named, and where a directory belongs.

use ftl::AtomicBatch;

use super::{Done, Surgeon, put_record};
use crate::check::Problem;
use crate::error::FsError;
use crate::inode::InodeNo;
use crate::store::BlockStore;

/// What is wrong about the place of a directory.
enum Misplaced {
    /// Its record names another parent than the directory that holds its only name.
    Record { parent: InodeNo },
    /// Names that are too many.
    Names { keep: Option<InodeNo> },
}

impl<S: BlockStore> Surgeon<'_, S> {
    /// An inode that has names is no orphan: the next mount would free it.
    pub(super) fn named_orphans(&self) -> Result<Done, FsError> {
        let mut done = Done::default();
        for problem in self.problems() {
            let Problem::NamedOrphan { ino } = problem else {
                continue;
            };
            let mut record = self.record(ino)?;
            record.orphan = false;
            done.note(problem, self.put(ino, &record))?;
        }
        Ok(done)
    }

    /// Link counts are what was counted.
    pub(super) fn link_counts(&self) -> Result<Done, FsError> {
        let mut done = Done::default();
        if !self.knows_names() {
            return Ok(done);
        }
        for problem in self.problems() {
            let Problem::LinkCount { ino, counted, .. } = problem else {
                continue;
            };
            let mut record = self.record(ino)?;
            record.nlink = u32::try_from(counted).unwrap_or(u32::MAX);
            done.note(problem, self.put(ino, &record))?;
        }
        Ok(done)
    }

    fn put(&self, ino: InodeNo, record: &crate::format::InodeRecord) -> Result<(), FsError> {
        let mut batch = AtomicBatch::new();
        put_record(ino, record, &mut batch);
        self.commit(batch)
    }

    /// Every directory has one name, in the directory that is its parent, and the root has none. One that has lost its
    /// only name in this way is given another one later.
    pub(super) fn parents(&self) -> Result<Done, FsError> {
        let mut done = Done::default();
        if !self.knows_names() {
            return Ok(done);
        }
        for problem in self.problems() {
            let Problem::Parent { ino } = problem else {
                continue;
            };
            let result = match self.misplaced(ino) {
                Some(Misplaced::Record { parent }) => {
                    let mut record = self.record(ino)?;
                    record.parent = Some(parent);
                    self.put(ino, &record)
                }
                Some(Misplaced::Names { keep }) if self.is_full() => self.remove_names(ino, keep),
                _ => continue,
            };
            done.note(problem, result)?;
        }
        Ok(done)
    }

    fn misplaced(&self, ino: InodeNo) -> Option<Misplaced> {
        let holders = self.survey.holders(ino);
        let parent = self.record(ino).ok()?.parent;
        if ino == InodeNo::ROOT {
            return Some(match holders {
                [] => Misplaced::Record { parent: ino },
                _ => Misplaced::Names { keep: None },
            });
        }
        match *holders {
            [] => None,
            [holder] if Some(holder) == parent => {
                let lowest = self.circle(ino)?.into_iter().min();
                (lowest == Some(ino)).then_some(Misplaced::Names { keep: None })
            }
            [holder] if self.is_below_root(holder, ino) => {
                Some(Misplaced::Record { parent: holder })
            }
            [_] => Some(Misplaced::Names { keep: None }),
            _ => {
                let good = |holder: &&InodeNo| self.is_below_root(**holder, ino);
                let of_record = holders.iter().find(|holder| Some(**holder) == parent);
                let keep = of_record
                    .filter(good)
                    .or_else(|| holders.iter().find(good))
                    .copied();
                Some(Misplaced::Names { keep })
            }
        }
    }

    /// Removes all names of a directory but one in `keep`.
    fn remove_names(&self, ino: InodeNo, keep: Option<InodeNo>) -> Result<(), FsError> {
        let mut holders = self.survey.holders(ino).to_vec();
        holders.sort_unstable();
        holders.dedup();
        for holder in holders {
            self.remove_entries(holder, ino, usize::from(keep == Some(holder)))?;
        }
        Ok(())
    }

    /// Whether the parents of `dir` lead to the root, and not through `avoid`.
    fn is_below_root(&self, mut dir: InodeNo, avoid: InodeNo) -> bool {
        for _ in 0..=self.survey.inodes.len() {
            if dir == avoid {
                return false;
            }
            if dir == InodeNo::ROOT {
                return true;
            }
            match self.record(dir).ok().and_then(|record| record.parent) {
                Some(parent) => dir = parent,
                None => return false,
            }
        }
        false
    }

    /// The directories from this one by its parents back to itself.
    fn circle(&self, ino: InodeNo) -> Option<Vec<InodeNo>> {
        let mut members = vec![ino];
        for _ in 0..self.survey.inodes.len() {
            let last = members[members.len() - 1];
            let parent = self.record(last).ok()?.parent?;
            if parent == ino {
                return Some(members);
            }
            members.push(parent);
        }
        None
    }
}
