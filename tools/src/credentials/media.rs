//! The file on the volume: made once, then read and written where it lies.

use std::ffi::OsStr;
use std::sync::Arc;

use contigfs::{
    BlockStore, ByteAddr, FallocMode, FileKind, Fs, FsError, InodeNo, NewNode, StoreError,
    SyncScope,
};
use ftl::{AtomicBatch, GRAIN_BYTES, Lba, LbaRange};
use tracing::warn;

use super::SYSTEM_DIRECTORY;
use super::record::{self, FILE_BYTES};

const NAME: &str = "credentials";

/// The file; held, so that it stays where it is.
#[derive(Debug)]
pub(super) struct Media<S: BlockStore> {
    fs: Arc<Fs<S>>,
    /// Its number.
    pub(super) ino: InodeNo,
    start: Lba,
}

impl<S: BlockStore> Media<S> {
    /// The file, if there is one.
    pub(super) fn find(fs: &Arc<Fs<S>>) -> Result<Option<Self>, FsError> {
        match fs.lookup_path(format!("{SYSTEM_DIRECTORY}/{NAME}")) {
            Ok(ino) => Self::prepare(fs, ino).map(Some),
            Err(FsError::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The file, made if there is none.
    pub(super) fn make(fs: &Arc<Fs<S>>) -> Result<Self, FsError> {
        let node = |kind, mode| NewNode {
            kind,
            mode,
            umask: 0,
            // SAFETY: neither call has arguments or can fail.
            uid: unsafe { libc::geteuid() },
            // SAFETY: as above.
            gid: unsafe { libc::getegid() },
            rdev: 0,
        };
        let name = OsStr::new(&SYSTEM_DIRECTORY[1..]);
        let dir = made(fs, InodeNo::ROOT, name, &node(FileKind::Directory, 0o700))?;
        let file = made(fs, dir, OsStr::new(NAME), &node(FileKind::File, 0o600))?;
        Self::prepare(fs, file)
    }

    /// Gives the file all of its space. One that was cut off by a crash is completed.
    fn prepare(fs: &Arc<Fs<S>>, ino: InodeNo) -> Result<Self, FsError> {
        let attr = fs.attr(ino)?;
        if attr.kind != FileKind::File {
            return Err(FsError::Invalid);
        }
        if attr.size != FILE_BYTES {
            let reserve = FallocMode::Allocate { keep_size: false };
            fs.fallocate(ino, 0, FILE_BYTES, reserve)?;
        }
        let extent = fs.hold_extent(ino)?;
        let media = Self {
            fs: Arc::clone(fs),
            ino,
            start: extent.range.start,
        };
        let header = media.read(0, 1).pop().flatten();
        if !header.is_some_and(|grain| record::is_header(&grain)) {
            media.write(0, &record::emit_header())?;
            fs.fsync(ino, SyncScope::All)?;
        }
        Ok(media)
    }

    /// `count` grains of the file from grain `first` on; none for one that cannot be read.
    pub(super) fn read(&self, first: u64, count: usize) -> Vec<Option<Vec<u8>>> {
        let store = self.fs.store();
        let mut bytes = vec![0; count * GRAIN_BYTES];
        let at = |n: u64| ByteAddr::new(self.start, n * GRAIN_BYTES as u64);
        if store.read(at(first), &mut bytes).is_ok() {
            let grains = bytes.chunks(GRAIN_BYTES);
            return grains.map(|grain| Some(grain.to_vec())).collect();
        }
        // One by one, so that one damaged grain takes no others along.
        let one = |n| match store.read(at(n), &mut bytes[..GRAIN_BYTES]) {
            Ok(()) => Some(bytes[..GRAIN_BYTES].to_vec()),
            Err(error) => {
                warn!(%error, grain = n, "stored credentials cannot be read");
                None
            }
        };
        (first..first + count as u64).map(one).collect()
    }

    /// Writes inside one grain.
    pub(super) fn write(&self, at: u64, bytes: &[u8]) -> Result<(), StoreError> {
        self.fs.store().write(ByteAddr::new(self.start, at), bytes)
    }

    /// The same of what has to be written also when the volume is full. Beside a snapshot there is no room then for what data
    /// overwrite, but some is held back for what a batch patches (`ftl/docs/snapshots.md`, S9).
    pub(super) fn write_in_any_case(&self, at: u64, bytes: &[u8]) -> Result<(), StoreError> {
        match self.write(at, bytes) {
            Err(StoreError::NoSpace | StoreError::Quota) => {
                let place = ByteAddr::new(self.start, at);
                let mut batch = AtomicBatch::new();
                batch.patch(place.lba(), place.in_grain() as u16, bytes);
                self.fs.store().commit(batch)
            }
            written => written,
        }
    }

    /// Makes these grains durable, by the offset of a byte in each.
    pub(super) fn sync(&self, places: &[u64]) -> Result<(), StoreError> {
        let mut grains: Vec<u64> = places.iter().map(|at| at / GRAIN_BYTES as u64).collect();
        grains.sort_unstable();
        grains.dedup();
        grains.iter().try_for_each(|&grain| {
            let range = LbaRange::new(self.start.offset(grain), 1);
            self.fs.store().sync(range)
        })
    }
}

impl<S: BlockStore> Drop for Media<S> {
    fn drop(&mut self) {
        self.fs.release_extent(self.ino);
    }
}

fn made<S: BlockStore>(
    fs: &Fs<S>,
    parent: InodeNo,
    name: &OsStr,
    node: &NewNode,
) -> Result<InodeNo, FsError> {
    let found = match fs.lookup(parent, name) {
        Err(FsError::NotFound) => fs.create(parent, name, node)?,
        found => found?,
    };
    match found.kind == node.kind {
        true => Ok(found.ino),
        false => Err(FsError::Exists),
    }
}
