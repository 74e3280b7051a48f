//! `lost+found`: the directory in which files without a name are given one.

use std::ffi::OsStr;

use ftl::AtomicBatch;

use super::{Done, Surgeon, put_record};
use crate::check::Problem;
use crate::dir::{DirIndex, DirPlan};
use crate::error::FsError;
use crate::format::InodeRecord;
use crate::fs::{Fs, NewNode};
use crate::inode::{FileKind, InodeNo};
use crate::store::BlockStore;

/// In the root directory.
const NAME: &str = "lost+found";
/// Names tried for it, and for each file in it; another one only if somebody has taken the first.
const NAMES_MAX: usize = 100;

/// The directory, while files are added.
struct LostFound {
    ino: InodeNo,
    record: InodeRecord,
    index: DirIndex,
}

impl<S: BlockStore> Surgeon<'_, S> {
    /// Gives every inode without a name one: its number.
    pub(super) fn nameless(&self) -> Result<Done, FsError> {
        let mut done = Done::default();
        if !self.knows_names() {
            return Ok(done);
        }
        let mut all = self
            .problems()
            .filter(|problem| matches!(problem, Problem::Unreachable { .. }))
            .peekable();
        if all.peek().is_none() {
            return Ok(done);
        }
        let mut opened = self.lost_found();
        for problem in all {
            let Problem::Unreachable { ino } = problem else {
                continue;
            };
            let adopted = match &mut opened {
                Ok(Some(dir)) => self.adopt(dir, ino),
                // It has been made: the next pass knows it.
                Ok(None) => return Ok(Done::again()),
                Err(error) => Err(*error),
            };
            done.note(problem, adopted)?;
        }
        Ok(done)
    }

    /// Finds the directory; `None` when it had to be made. Who has called something else so keeps it.
    fn lost_found(&self) -> Result<Option<LostFound>, FsError> {
        let load = |ino: InodeNo, record: &InodeRecord| {
            let range = record.range.ok_or(FsError::NotDirectory)?;
            DirIndex::load(self.store, ino, range, record.size)
        };
        let root = load(InodeNo::ROOT, &self.record(InodeNo::ROOT)?)?;
        for name in numbered(NAME) {
            let Some(slot) = root.get(name.as_bytes()) else {
                let private = NewNode {
                    mode: 0o700,
                    ..NewNode::directory()
                };
                let fs = Fs::mount(self.store)?;
                fs.create(InodeNo::ROOT, OsStr::new(&name), &private)?;
                return Ok(None);
            };
            if slot.kind == FileKind::Directory {
                let record = self.record(slot.ino)?;
                let index = load(slot.ino, &record)?;
                return Ok(Some(LostFound {
                    ino: slot.ino,
                    record,
                    index,
                }));
            }
        }
        Err(FsError::Exists)
    }

    fn adopt(&self, dir: &mut LostFound, ino: InodeNo) -> Result<(), FsError> {
        if ino == dir.ino {
            return Err(FsError::Invalid);
        }
        let mut record = self.record(ino)?;
        let number = format!("#{ino}");
        let mut free = numbered(&number).filter(|name| dir.index.get(name.as_bytes()).is_none());
        let name = free.next().ok_or(FsError::Exists)?;
        let mut plan = DirPlan::default();
        dir.index
            .plan_add(&mut plan, name.as_bytes(), ino, record.kind)?;
        let mut batch = AtomicBatch::new();
        let mut after = dir.record;
        after.size = dir.index.emit(&plan, &mut batch);
        (after.mtime, after.ctime) = (self.now, self.now);
        match record.kind {
            FileKind::Directory => {
                after.nlink = after.nlink.saturating_add(1);
                record.parent = Some(dir.ino);
            }
            _ => record.nlink = 1,
        }
        put_record(dir.ino, &after, &mut batch);
        put_record(ino, &record, &mut batch);
        self.commit(batch)?;
        dir.record = after;
        dir.index.apply(plan);
        Ok(())
    }
}

/// A name, and what is tried if it is taken.
fn numbered(name: &str) -> impl Iterator<Item = String> + use<'_> {
    (0..NAMES_MAX).map(move |n| match n {
        0 => name.to_owned(),
        n => format!("{name}.{n}"),
    })
}
