//! Extended attributes: those that can not be read, and what is left of some.

use ftl::{AtomicBatch, LbaRange};

use super::{Done, Surgeon};
use crate::check::Problem;
use crate::error::FsError;
use crate::format::{xattr_head, xattr_rest};
use crate::store::BlockStore;

impl<S: BlockStore> Surgeon<'_, S> {
    /// Removes what nobody owns, and attributes that can not be read.
    pub(super) fn attributes(&self) -> Result<Done, FsError> {
        let mut done = Done::default();
        for problem in self.problems() {
            let mut batch = AtomicBatch::new();
            match problem {
                Problem::XattrsLeft { ino, lba } if self.knows_inodes() => {
                    let rest = xattr_rest(ino);
                    // What is behind it is left over as well.
                    let count = match rest.contains(lba) {
                        true => rest.end().0 - lba.0,
                        false => 1,
                    };
                    batch.trim(LbaRange::new(lba, count));
                }
                Problem::Xattrs { ino, .. } if self.is_full() => {
                    batch.trim(LbaRange::new(xattr_head(ino), 1));
                    batch.trim(xattr_rest(ino));
                }
                _ => continue,
            }
            done.note(problem, self.commit(batch))?;
        }
        Ok(done)
    }
}
