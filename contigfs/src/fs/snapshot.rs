//! Snapshots of the file system: made, listed, deleted, and opened. `docs/snapshots.md` says what they promise.

use std::sync::Arc;

use ftl::snapshot::{Host, Snapshot};

use super::cache::State;
use super::{Fs, FsOptions, exclusive, lock};
use crate::error::FsError;
use crate::format::Features;
use crate::fs::AtimePolicy;
use crate::snapshot::SnapshotView;
use crate::store::BlockStore;

impl<S: BlockStore> Fs<S> {
    fn snapshot_host(&self) -> Result<&dyn Host, FsError> {
        self.store.snapshot_host().ok_or(FsError::NotSupported)
    }

    /// Whether there can be snapshots.
    pub fn has_snapshots(&self) -> bool {
        self.store.snapshot_host().is_some()
    }

    /// The snapshots that there are, oldest first.
    pub fn snapshots(&self) -> Vec<Snapshot> {
        self.snapshots.list()
    }

    /// Makes a read-only image of everything as it is now, in constant time. What was acknowledged before is in it, and what
    /// is in it was durable then.
    ///
    /// # Errors
    /// [`FsError::Exists`], [`FsError::Invalid`] for a name that can not be, [`FsError::TooManySnapshots`],
    /// [`FsError::NoSpace`] if too little would be left to delete anything, [`FsError::NotSupported`] if the store has none.
    pub fn make_snapshot(&self, name: &[u8]) -> Result<Snapshot, FsError> {
        let host = self.snapshot_host()?;
        self.use_feature(Features::SNAPSHOTS)?;
        self.sync_all()?;
        let _journeys = exclusive(&self.journeys);
        let now = self.now().as_unix_ns();
        Ok(self.snapshots.make(host, name, now)?)
    }

    /// Deletes a snapshot. It is gone on return, and never fails for want of space; what it alone held comes back in the
    /// background.
    ///
    /// # Errors
    /// [`FsError::NotFound`]
    pub fn delete_snapshot(&self, name: &[u8]) -> Result<(), FsError> {
        let host = self.snapshot_host()?;
        self.snapshots.delete(host, name)?;
        if let Some(sweeper) = &*lock(&self.sweeper) {
            sweeper.unpark();
        }
        Ok(())
    }

    /// Gives back a piece of what deleted snapshots hold; whether there may be more.
    pub fn sweep_snapshots(&self) -> Result<bool, FsError> {
        match self.store.snapshot_host() {
            Some(host) if self.snapshots.is_sweeping() => {
                let more = self.snapshots.sweep(host)?;
                if !self.snapshots.is_sweeping() {
                    self.reap_leftovers();
                }
                Ok(more)
            }
            _ => Ok(false),
        }
    }

    /// Frees files without names for which there was no space, because they had to be kept.
    fn reap_leftovers(&self) {
        for inode in self.cache.all(State::is_unused) {
            if let Err(error) = self.reap(&inode) {
                tracing::warn!(%error, ino = %inode.ino, "a file without names stays until the next mount");
            }
        }
    }

    /// Who is woken when a snapshot has been deleted.
    pub(crate) fn set_sweeper(&self, thread: Option<std::thread::Thread>) {
        *lock(&self.sweeper) = thread;
    }

    /// The snapshot of this name, if it is there.
    pub fn find_snapshot(&self, name: &[u8]) -> Option<Snapshot> {
        self.snapshots.find(name)
    }

    /// Whether the snapshot of this number is there.
    pub fn is_there(&self, number: u64) -> bool {
        self.snapshots.list().iter().any(|s| s.number == number)
    }

    pub(crate) fn snapshot_table(&self) -> &ftl::snapshot::Snapshots {
        &self.snapshots
    }
}

/// Opens a snapshot: a file system of its own, of which nothing can be changed. Takes a look at every inode.
///
/// # Errors
/// As mounting.
pub fn open_snapshot<S: BlockStore>(
    fs: &Arc<Fs<S>>,
    snapshot: &Snapshot,
) -> Result<Fs<SnapshotView<S>>, FsError> {
    let view = SnapshotView::new(Arc::clone(fs), snapshot);
    let options = FsOptions {
        read_only: true,
        clock: fs.clock,
        ..FsOptions::default()
    };
    let opened = Fs::mount_with(view, &options)?;
    opened.set_atime_policy(AtimePolicy::Never);
    Ok(opened)
}
