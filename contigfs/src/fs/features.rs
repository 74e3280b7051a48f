//! What the root record says that older programs must know before they touch the volume.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use ftl::{AtomicBatch, GRAIN_BYTES, LbaRange};

use super::{Fs, lock};
use crate::error::FsError;
use crate::format::{Features, ROOT_COPY_LBA, ROOT_LBA, RootRecord};
use crate::store::{BlockStore, ByteAddr};

/// The features in use. One more at a time, or two would undo each other's bits.
#[derive(Debug)]
pub(super) struct FeaturesInUse {
    bits: AtomicU64,
    change: Mutex<()>,
}

impl FeaturesInUse {
    pub(super) fn new(features: Features) -> Self {
        Self {
            bits: AtomicU64::new(features.0),
            change: Mutex::new(()),
        }
    }

    fn get(&self) -> Features {
        Features(self.bits.load(Ordering::Acquire))
    }
}

impl<S: BlockStore> Fs<S> {
    /// Whether the root record names a feature.
    pub(super) fn uses(&self, feature: Features) -> bool {
        self.features.get().contains(feature)
    }

    /// Makes the root record name a feature; durable on return, so before the first that needs it. Takes no space.
    pub(super) fn use_feature(&self, feature: Features) -> Result<(), FsError> {
        if self.uses(feature) {
            return Ok(());
        }
        let _change = lock(&self.features.change);
        let record = RootRecord {
            created: self.created,
            features: self.features.get().with(feature),
        };
        let bytes = record.emit();
        let mut batch = AtomicBatch::new();
        batch
            .patch(ROOT_LBA, 0, bytes)
            .patch(ROOT_COPY_LBA, 0, bytes);
        self.store.commit(batch)?;
        let bits = &self.features.bits;
        bits.fetch_or(feature.0, Ordering::AcqRel);
        Ok(())
    }

    /// Writes both root records again, each in a write of its own; durable on return. What they say is known, and without either the
    /// next mount finds no file system: so this is for when they may be lost with a device. They may lie on one device
    /// again, if the log has it so.
    pub fn renew_root(&self) -> Result<(), FsError> {
        let _change = lock(&self.features.change);
        let record = RootRecord {
            created: self.created,
            features: self.features.get(),
        };
        // Whole grains, since what is there may not be readable.
        let mut grain = [0; GRAIN_BYTES];
        let bytes = record.emit();
        grain[..bytes.len()].copy_from_slice(&bytes);
        for lba in [ROOT_LBA, ROOT_COPY_LBA] {
            self.store.write(ByteAddr::new(lba, 0), &grain)?;
            self.store.sync(LbaRange::new(lba, 1))?;
        }
        Ok(())
    }
}
