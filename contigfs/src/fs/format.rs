//! Making a file system.

use ftl::{AtomicBatch, LbaRange};

use super::Fs;
use super::mount::read_root;
use super::txn::{cold_place, hot_place};
use crate::buddy::Order;
use crate::error::{Corruption, FsError};
use crate::format::{
    Features, InodeRecord, ROOT_COPY_LBA, ROOT_DIR_RANGE, ROOT_LBA, RootRecord, TableRecord,
};
use crate::inode::{FileKind, InodeNo};
use crate::store::BlockStore;
use crate::time::Timestamp;

/// Order of the range of a directory: 2^28 units of entries.
pub(super) const DIRECTORY_ORDER: Order = Order(20);
const _: () = assert!(ROOT_DIR_RANGE.order.0 == DIRECTORY_ORDER.0);

/// How to make a file system.
#[derive(Clone, Copy, Debug)]
pub struct FormatOptions {
    /// Owner of the root directory.
    pub uid: u32,
    /// Group of the root directory.
    pub gid: u32,
    /// Permissions of the root directory.
    pub mode: u16,
    /// Overwrite a file system that exists on the volume.
    pub force: bool,
    /// Time of birth.
    pub now: Timestamp,
}

impl Default for FormatOptions {
    fn default() -> Self {
        Self {
            uid: 0,
            gid: 0,
            mode: 0o755,
            force: false,
            now: Timestamp::now(),
        }
    }
}

impl<S: BlockStore> Fs<S> {
    /// Makes an empty file system. Everything else on the volume is trimmed.
    ///
    /// # Errors
    /// [`FsError::Exists`] when there is a file system already, of whatever version, and `force` is not set.
    pub fn format(store: &S, options: &FormatOptions) -> Result<(), FsError> {
        let newer = |error| matches!(error, Corruption::Version(_) | Corruption::Features(_));
        let exists = match read_root(store) {
            Ok(_) => true,
            Err(FsError::Corrupt(error)) => newer(error),
            Err(_) => false,
        };
        if exists && !options.force {
            return Err(FsError::Exists);
        }
        // First the root records go, so that a half-made file system is none.
        let mut batch = AtomicBatch::new();
        batch.trim(LbaRange::new(ROOT_LBA, 2));
        store.commit(batch)?;
        while let Some(lba) = store.next_mapped(LbaRange::ALL) {
            let mut batch = AtomicBatch::new();
            batch.trim(LbaRange::new(
                lba,
                super::range::PIECE_MAX.min(LbaRange::ALL.end().0 - lba.0),
            ));
            store.commit(batch)?;
        }
        store.commit(first_batch(options))?;
        Ok(())
    }
}

fn first_batch(options: &FormatOptions) -> AtomicBatch {
    let now = options.now;
    let root = InodeRecord {
        kind: FileKind::Directory,
        perm: options.mode & 0o7777,
        range: Some(ROOT_DIR_RANGE),
        size: 0,
        generation: now.as_unix_ns(),
        orphan: false,
        reserved: false,
        relocation: None,
        project: None,
        nlink: 2,
        uid: options.uid,
        gid: options.gid,
        rdev: 0,
        parent: Some(InodeNo::ROOT),
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
    };
    let mut batch = AtomicBatch::new();
    let record = RootRecord {
        created: now,
        features: Features::default(),
    }
    .emit();
    batch
        .patch(ROOT_LBA, 0, record)
        .patch(ROOT_COPY_LBA, 0, record);
    let (lba, offset) = hot_place(InodeNo::TABLE);
    batch.patch(lba, offset, TableRecord { grains: 1 }.emit());
    let (lba, offset) = hot_place(InodeNo::ROOT);
    batch.patch(lba, offset, root.emit_hot(InodeNo::ROOT));
    let (lba, offset) = cold_place(InodeNo::ROOT);
    batch.patch(lba, offset, root.emit_cold(InodeNo::ROOT));
    batch
}
