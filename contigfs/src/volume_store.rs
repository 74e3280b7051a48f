//! A volume of the translation layer as a store.

use std::fs::File;

use ftl::device::MediaError;
use ftl::{
    AccountId, AccountUse, AtomicBatch, Device, Intent, Lba, LbaRange, Space, Volume, VolumeError,
};

use crate::store::{BlockStore, ByteAddr, ShareError, StoreError, share_on};

impl From<VolumeError> for StoreError {
    fn from(error: VolumeError) -> Self {
        match error {
            VolumeError::NoSpace => Self::NoSpace,
            VolumeError::Quota => Self::Quota,
            // What a device held that the volume goes on without is not there any more.
            VolumeError::Damaged { lba }
            | VolumeError::Media {
                lba,
                error: MediaError::Missing,
            } => Self::Damaged { lba },
            VolumeError::Media { lba, .. } => Self::Unreadable { lba },
            VolumeError::BatchTooLarge => Self::BatchTooLarge,
            VolumeError::ManyAlong => Self::ManyAlong,
            VolumeError::Failed(_)
            | VolumeError::Shutdown
            | VolumeError::OutOfRange
            | VolumeError::Unreadable { .. }
            | VolumeError::Resize(_)
            | VolumeError::Overlap => Self::Failed,
        }
    }
}

impl<D: Device> BlockStore for Volume<D> {
    fn read(&self, at: ByteAddr, buf: &mut [u8]) -> Result<(), StoreError> {
        Ok(self.read(at.0, buf)?)
    }

    fn write(&self, at: ByteAddr, data: &[u8]) -> Result<(), StoreError> {
        Ok(self.write(at.0, data)?)
    }

    fn commit(&self, batch: AtomicBatch) -> Result<(), StoreError> {
        Ok(self.commit(batch)?)
    }

    fn commit_relaxed(&self, batch: AtomicBatch) -> Result<(), StoreError> {
        Ok(self.commit_relaxed(batch)?)
    }

    fn sync(&self, range: LbaRange) -> Result<(), StoreError> {
        Ok(self.sync(range)?)
    }

    fn next_mapped(&self, range: LbaRange) -> Option<Lba> {
        self.next_mapped(range)
    }

    fn space(&self) -> Space {
        self.space()
    }

    fn mapped_count(&self, range: LbaRange) -> u64 {
        self.mapped_count(range)
    }

    fn share(&self, memory: &File, at: u64, range: LbaRange) -> Result<(), ShareError> {
        self.load(range).map_err(StoreError::from)?;
        share_on(self, self.ftl(), (memory, at), range)
    }

    fn bring_back(&self, range: LbaRange) -> Result<(), StoreError> {
        for n in 0..range.count {
            drop(self.page(range.start.offset(n), Intent::Write)?);
        }
        Ok(())
    }

    fn find_stores(&self, range: LbaRange) -> u64 {
        self.ftl().find_stores(range)
    }

    fn unshare(&self, range: LbaRange) {
        self.ftl().unshare(range);
    }

    fn let_leave(&self, range: LbaRange) -> bool {
        self.ftl().let_leave(range)
    }

    fn assign(&self, ranges: &[LbaRange], account: Option<AccountId>) {
        self.ftl().assign(ranges, account);
    }

    fn assign_if_room(&self, ranges: &[LbaRange], account: AccountId) -> bool {
        // Should this fail, the volume has, and takes no changes anyway.
        let _ = self.load(LbaRange::ALL);
        self.ftl().assign_if_room(ranges, account)
    }

    fn limit_account(&self, account: AccountId, limit: Option<u64>) {
        self.ftl().limit_account(account, limit);
    }

    fn snapshot_host(&self) -> Option<&dyn ftl::snapshot::Host> {
        Some(self)
    }

    fn account(&self, account: AccountId) -> AccountUse {
        let _ = self.load(LbaRange::ALL);
        self.ftl().account(account)
    }
}
