//! A blocking volume has snapshots.

use super::{Host, SnapshotChange, SnapshotError};
use crate::addr::{Lba, LbaRange};
use crate::batch::AtomicBatch;
use crate::blocking::{Volume, VolumeError};
use crate::device::{Device, MediaError};
use crate::engine::Ftl;
use crate::ids::Intent;

impl From<VolumeError> for SnapshotError {
    fn from(error: VolumeError) -> Self {
        match error {
            VolumeError::NoSpace | VolumeError::Quota => Self::NoSpace,
            VolumeError::Damaged { lba }
            | VolumeError::Media {
                lba,
                error: MediaError::Missing,
            } => Self::Damaged { lba },
            VolumeError::Media { lba, .. } => Self::Unreadable { lba },
            _ => Self::Failed,
        }
    }
}

impl<D: Device> Host for Volume<D> {
    fn engine(&self) -> &Ftl {
        self.ftl()
    }

    fn read_grains(&self, lbas: &[Lba], into: &mut [&mut [u8]]) -> Result<(), SnapshotError> {
        for (&lba, bytes) in lbas.iter().zip(into) {
            self.page(lba, Intent::Read)?.copy_out(0, bytes);
        }
        Ok(())
    }

    fn commit_images(
        &self,
        batch: AtomicBatch,
        change: Option<SnapshotChange>,
    ) -> Result<(), SnapshotError> {
        Ok(self.commit_snapshot(batch, change)?)
    }

    fn admit_images(&self) -> Result<(), SnapshotError> {
        Ok(self.admit_images()?)
    }

    fn load_map(&self, range: LbaRange) -> Result<(), SnapshotError> {
        Ok(self.load(range)?)
    }

    fn sync_all(&self) -> Result<(), SnapshotError> {
        Ok(self.sync(LbaRange::ALL)?)
    }
}
