//! When changes of metadata become durable.

use std::str::FromStr;

use ftl::{AtomicBatch, Lba, LbaRange};

use super::Fs;
use crate::error::FsError;
use crate::store::{BlockStore, StoreError};

/// When a change of metadata (a name, a mode, a size that was asked for) is durable. Each is atomic in either case, and
/// what a crash leaves has every change before the last one that it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MetadataSync {
    /// When the call returns.
    #[default]
    Strict,
    /// With the next `fsync` of any file or directory, or a few seconds later by itself: many changes share a write.
    Relaxed,
}

/// Neither `strict` nor `relaxed`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is neither strict nor relaxed")]
pub struct UnknownMetadataSync(String);

impl FromStr for MetadataSync {
    type Err = UnknownMetadataSync;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "strict" => Ok(Self::Strict),
            "relaxed" => Ok(Self::Relaxed),
            _ => Err(UnknownMetadataSync(text.to_owned())),
        }
    }
}

impl<S: BlockStore> Fs<S> {
    /// Carries out the batch of an operation.
    pub(super) fn carry_out(&self, batch: AtomicBatch) -> Result<(), StoreError> {
        match self.metadata_sync {
            MetadataSync::Strict => self.store.commit(batch),
            MetadataSync::Relaxed => self.store.commit_relaxed(batch),
        }
    }

    /// Makes every change of metadata durable that has returned (`fsync` of a directory).
    pub fn sync_metadata(&self) -> Result<(), FsError> {
        match self.metadata_sync {
            MetadataSync::Strict => Ok(()),
            // Whatever the range: a sync covers all batches before it.
            MetadataSync::Relaxed => Ok(self.store.sync(LbaRange::new(Lba(0), 1))?),
        }
    }
}
