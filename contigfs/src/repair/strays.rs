//! Grains that belong to no file, but one may miss them: they become files.
//!
//! A directory whose place is lost in this way is found by its entries. Of the data of files nobody knows whose they are: they
//! are given a name in `lost+found` later, and the file that misses them stays as it is.

use super::{Done, Surgeon};
use crate::check::Problem;
use crate::error::FsError;
use crate::format::{GRAIN, InodeRecord};
use crate::inode::{FileKind, InodeNo};
use crate::store::BlockStore;

impl<S: BlockStore> Surgeon<'_, S> {
    /// Before anything is concluded from ranges that are empty, and before somebody is given another one.
    pub(super) fn strays(&self) -> Result<Done, FsError> {
        let mut done = Done::default();
        let is_record = |problem: &Problem| matches!(problem, Problem::Record { .. });
        if !self.is_full() || !self.knows_inodes() || self.all.iter().any(is_record) {
            return Ok(done);
        }
        let is_of_strays = |problem: &Problem| matches!(problem, Problem::Strays { .. });
        let Some(problem) = self.problems().find(is_of_strays) else {
            return Ok(done);
        };
        let finds = self.finds();
        let places = self.find_directories(&self.empty_directories(), &finds)?;
        for (&ino, &range) in &places {
            let record = InodeRecord {
                range: Some(range),
                size: self.grains_used(range.lbas()) * GRAIN,
                ..self.record(ino)?
            };
            done.note(problem, self.put_found(ino, &record))?;
        }
        if !done.is_nothing() {
            return Ok(done);
        }
        for find in finds {
            let made = self.free_number().and_then(|ino| {
                let size = find.grains() * GRAIN;
                let record = self.made_up_file(FileKind::File, find.block, size);
                self.put_found(ino, &record)
            });
            done.note(problem, made)?;
        }
        Ok(done)
    }

    /// Directories that say that they have entries, and have nothing.
    fn empty_directories(&self) -> Vec<InodeNo> {
        let all = self.survey.inodes.iter();
        let is_empty = |record: &InodeRecord| {
            let lies_bare = record.range.is_some_and(|range| {
                let range = range.lbas();
                self.store.next_mapped(range).is_none()
            });
            record.kind == FileKind::Directory && record.size > 0 && lies_bare
        };
        let empty = all.filter(|(_, record)| is_empty(record));
        let mut empty: Vec<InodeNo> = empty.map(|(&ino, _)| ino).collect();
        empty.sort_unstable();
        empty
    }
}
