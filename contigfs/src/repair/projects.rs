//! Repairs of projects: announcing them, as everything that is there, and taking away limits that nobody can read.

use ftl::{AtomicBatch, LbaRange};

use super::{Done, Surgeon};
use crate::check::Problem;
use crate::error::FsError;
use crate::format::{PROJECT_BYTES, ROOT_COPY_LBA, ROOT_LBA, RootRecord, project_place};
use crate::fs::read_root;
use crate::store::{BlockStore, StoreError};

impl<S: BlockStore> Surgeon<'_, S> {
    /// Makes the root records say what is there.
    pub(super) fn announce(&self) -> Result<Done, FsError> {
        let mut done = Done::default();
        if self
            .problems()
            .any(|problem| problem == Problem::Unannounced)
        {
            let root = read_root(self.store)?;
            let bytes = RootRecord {
                features: root.features.with(self.survey.features),
                ..root
            }
            .emit();
            let mut batch = AtomicBatch::new();
            batch
                .patch(ROOT_LBA, 0, bytes)
                .patch(ROOT_COPY_LBA, 0, bytes);
            done.note(Problem::Unannounced, self.commit(batch))?;
        }
        Ok(done)
    }

    /// Takes away records of limits that make no sense: what belongs to the project is as it was, and without limits.
    pub(super) fn limits(&self) -> Result<Done, FsError> {
        let mut done = Done::default();
        if !self.is_full() {
            return Ok(done);
        }
        for problem in self.problems() {
            let Problem::Limits { slot, error } = problem else {
                continue;
            };
            let (lba, offset) = project_place(slot);
            let mut batch = AtomicBatch::new();
            match error {
                // All of the grain is lost, and has to go before anything can be written there.
                FsError::Store(StoreError::Damaged { .. }) => batch.trim(LbaRange::new(lba, 1)),
                _ => batch.patch(lba, offset, [0; PROJECT_BYTES]),
            };
            done.note(problem, self.commit(batch))?;
        }
        Ok(done)
    }
}
