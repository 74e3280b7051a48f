//! A snapshot as a store: what the volume held at a moment. Nothing can be written to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use ftl::snapshot::{Slot, Snapshot, SnapshotError, Snapshots};
use ftl::{AtomicBatch, Lba, LbaRange, Space};

use crate::fs::Fs;
use crate::store::{BlockStore, ByteAddr, StoreError};

/// Name, in the root directory of a mount, of the directory where snapshots are. It is nowhere on media, and a file of this name
/// would hide it.
pub const SNAPSHOTS: &str = ".snapshots";
/// Numbers of inodes as they are told: those of a snapshot have its number above this many bits.
pub const SNAPSHOT_NUMBER_SHIFT: u32 = 32;
/// Pause between pieces of giving back what a snapshot held, for everybody else.
const SWEEP_PAUSE: Duration = Duration::from_millis(1);
/// After an error.
const SWEEP_RETRY: Duration = Duration::from_secs(1);

/// What a volume held when a snapshot was made. When the snapshot is deleted nothing can be read any more.
#[derive(Debug)]
pub struct SnapshotView<S> {
    fs: Arc<Fs<S>>,
    slot: Slot,
    number: u64,
}

impl<S: BlockStore> SnapshotView<S> {
    pub(crate) fn new(fs: Arc<Fs<S>>, snapshot: &Snapshot) -> Self {
        Self {
            fs,
            slot: snapshot.slot,
            number: snapshot.number,
        }
    }

    /// Its place may be another snapshot's by now.
    fn check(&self) -> Result<(), StoreError> {
        match self.fs.is_there(self.number) {
            true => Ok(()),
            false => Err(StoreError::Failed),
        }
    }
}

fn store_error(error: SnapshotError) -> StoreError {
    match error {
        SnapshotError::NoSpace => StoreError::NoSpace,
        SnapshotError::Damaged { lba } => StoreError::Damaged { lba },
        SnapshotError::Unreadable { lba } => StoreError::Unreadable { lba },
        _ => StoreError::Failed,
    }
}

impl<S: BlockStore> BlockStore for SnapshotView<S> {
    fn read(&self, at: ByteAddr, buf: &mut [u8]) -> Result<(), StoreError> {
        let host = self.fs.store().snapshot_host().ok_or(StoreError::Failed)?;
        Snapshots::read(host, self.slot, at.0, buf).map_err(store_error)?;
        self.check()
    }

    fn write(&self, _at: ByteAddr, _data: &[u8]) -> Result<(), StoreError> {
        Err(StoreError::Failed)
    }

    fn commit(&self, _batch: AtomicBatch) -> Result<(), StoreError> {
        Err(StoreError::Failed)
    }

    fn sync(&self, _range: LbaRange) -> Result<(), StoreError> {
        Ok(())
    }

    fn next_mapped(&self, range: LbaRange) -> Option<Lba> {
        let host = self.fs.store().snapshot_host()?;
        let table = self.fs.snapshot_table();
        // What can not be read of the map seems unmapped; then the volume has failed, and says so to whoever reads.
        let next = table.next_mapped(host, self.slot, range).ok().flatten();
        next.filter(|_| self.check().is_ok())
    }

    fn mapped_count(&self, range: LbaRange) -> u64 {
        let host = self.fs.store().snapshot_host();
        let table = self.fs.snapshot_table();
        // As above.
        let count = host.and_then(|host| table.mapped_count(host, self.slot, range).ok());
        count.filter(|_| self.check().is_ok()).unwrap_or(0)
    }

    fn space(&self) -> Space {
        self.fs.store().space()
    }
}

/// Gives back what deleted snapshots hold, on a thread of its own; ends when it is dropped. A mount that can be written to has one; a
/// file system has one at a time.
#[derive(Debug)]
pub struct Sweeper {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Sweeper {
    /// Starts the thread.
    ///
    /// # Errors
    /// If there can be no more threads.
    pub fn start<S: BlockStore + 'static>(fs: Arc<Fs<S>>) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let builder = std::thread::Builder::new().name("snapshots".into());
        let thread = builder.spawn(move || {
            fs.set_sweeper(Some(std::thread::current()));
            while !stopped.load(Ordering::SeqCst) {
                match fs.sweep_snapshots() {
                    Ok(true) => std::thread::sleep(SWEEP_PAUSE),
                    Ok(false) => std::thread::park(),
                    Err(error) => {
                        tracing::warn!(%error, "what a deleted snapshot held is not given back yet");
                        std::thread::park_timeout(SWEEP_RETRY);
                    }
                }
            }
            fs.set_sweeper(None);
        })?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}
