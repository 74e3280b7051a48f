//! The file that has the memory of a member, and which of its chunks changed when.
//!
//! Threads change it in turns: the engine's while an epoch is open ([`FilePages`](super::file::FilePages)), those of the agent while it is
//! closed ([`FileMemory`]); the agent also reads while the engine writes, to let a joiner catch up, and a flush that the engine asked for may
//! still be under way when it is closed.
//!
//! # Invariants
//! - A change is stamped after its bytes are in the file and before the generation says so. So who reads the generation,
//!   then bytes, and later asks what changed since, misses nothing: bytes that were not there yet have a later stamp.
//! - There is one writer at a time.
//! - After a failure nothing is read or written any more. Of a write or flush nobody knows what is on media (I8). A member that
//!   cannot read a part of its memory would be let into each epoch by what it can read, and its clients' READs would end each.

use rustix::fs::Advice;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use softrdma::PAGE_BYTES;

use crate::memory::{CHUNK_BYTES, Memory, MemoryError};

const _: () = assert!(CHUNK_BYTES == PAGE_BYTES as u64);

/// How long a file that another process has is waited for.
const LOCK_WAIT: Duration = Duration::from_secs(2);

/// A file, its size in whole pages, and stamps.
#[derive(Debug)]
pub struct MemberFile {
    file: File,
    path: PathBuf,
    size: u64,
    generation: AtomicU64,
    /// Generation of the last change of each chunk; 0: none in this life.
    stamps: Vec<AtomicU64>,
    /// What the system said when something failed first.
    failed: OnceLock<String>,
    flushing: Mutex<()>,
}

impl MemberFile {
    /// Opens or makes a file of at least `size` bytes, rounded up to pages. It is this process' alone for as long as it is open: what
    /// another did to it would be neither in what this one says of its log nor stopped by its epochs.
    ///
    /// # Errors
    /// What the system says; that another process has it.
    pub fn open(path: &Path, size: u64) -> io::Result<Arc<Self>> {
        let is_new = !path.exists();
        let mut options = OpenOptions::new();
        let file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)?;
        lock(&file)?;
        if is_new {
            // Its name has to be there after a crash, too.
            let directory = path.parent().filter(|path| path.as_os_str() != "");
            File::open(directory.unwrap_or(Path::new(".")))?.sync_all()?;
        }
        Self::over(file, path, size)
    }

    /// Uses an open file, which may have no name.
    ///
    /// # Errors
    /// What the system says.
    pub fn over(file: File, path: &Path, size: u64) -> io::Result<Arc<Self>> {
        let size = size.next_multiple_of(CHUNK_BYTES);
        if file.metadata()?.len() < size {
            file.set_len(size)?;
            file.sync_all()?;
        }
        // The system may still have what a write-back before did not bring to media, and take it for clean (I8): what this process
        // vouches for is read from there.
        file.sync_data()?;
        rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?;
        let chunks = usize::try_from(size / CHUNK_BYTES).map_err(io::Error::other)?;
        Ok(Arc::new(Self {
            file,
            path: path.to_owned(),
            size,
            generation: AtomicU64::new(1),
            stamps: (0..chunks).map(|_| AtomicU64::new(0)).collect(),
            failed: OnceLock::new(),
            flushing: Mutex::new(()),
        }))
    }

    /// Pages.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.stamps.len() as u64
    }

    /// Whether nobody knows what is on media.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.failed.get().is_some()
    }

    /// What the system said of that.
    #[must_use]
    pub fn why_failed(&self) -> Option<&str> {
        self.failed.get().map(String::as_str)
    }

    pub(super) fn read_at(&self, offset: u64, to: &mut [u8]) -> io::Result<()> {
        self.check()?;
        let read = self.file.read_exact_at(to, offset);
        self.note(&read);
        read
    }

    pub(super) fn write_at(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        self.check()?;
        let written = self.file.write_all_at(from, offset);
        self.note(&written);
        if !from.is_empty() {
            let next = self.generation.load(Ordering::Relaxed) + 1;
            let last = (offset + from.len() as u64 - 1) / CHUNK_BYTES;
            for chunk in offset / CHUNK_BYTES..=last {
                if let Some(stamp) = self.stamps.get(chunk as usize) {
                    stamp.store(next, Ordering::Release);
                }
            }
            self.generation.store(next, Ordering::Release);
        }
        written
    }

    pub(super) fn flush(&self) -> io::Result<()> {
        // The system tells of a failure once: two at a time, and one would be told that all is well.
        let _alone = (self.flushing.lock()).unwrap_or_else(PoisonError::into_inner);
        self.check()?;
        let flushed = self.file.sync_data();
        self.note(&flushed);
        flushed
    }

    fn note(&self, result: &io::Result<()>) {
        if let Err(error) = result {
            self.failed
                .get_or_init(|| format!("{}: {error}", self.path.display()));
        }
    }

    fn check(&self) -> io::Result<()> {
        match self.has_failed() {
            true => Err(io::Error::other("an earlier read, write or flush failed")),
            false => Ok(()),
        }
    }
}

/// Takes a file for this process. One that was killed has it until the kernel has taken it apart, which is waited for.
fn lock(file: &File) -> io::Result<()> {
    let since = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) if since.elapsed() < LOCK_WAIT => {
                std::thread::sleep(Duration::from_millis(2));
            }
            Err(TryLockError::WouldBlock) => {
                let why = "another process has it (does the member run already?)";
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, why));
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
}

/// A member's memory in a file, for its agent.
#[derive(Clone, Debug)]
pub struct FileMemory(pub Arc<MemberFile>);

impl FileMemory {
    fn check(&self, offset: u64, length: usize) -> Result<(), MemoryError> {
        let (length, size) = (length as u64, self.0.size);
        match offset.checked_add(length) {
            Some(end) if end <= size => Ok(()),
            _ => Err(MemoryError::Range {
                offset,
                length,
                size,
            }),
        }
    }

    fn failed(&self, error: &io::Error) -> MemoryError {
        MemoryError::Device(format!("{}: {error}", self.0.path.display()))
    }
}

impl Memory for FileMemory {
    fn size(&self) -> u64 {
        self.0.size
    }

    fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), MemoryError> {
        self.check(offset, to.len())?;
        let read = self.0.read_at(offset, to);
        read.map_err(|error| self.failed(&error))
    }

    fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), MemoryError> {
        self.check(offset, from.len())?;
        let written = self.0.write_at(offset, from);
        written.map_err(|error| self.failed(&error))
    }

    fn flush(&mut self) -> Result<(), MemoryError> {
        self.0.flush().map_err(|error| self.failed(&error))
    }

    fn generation(&self) -> u64 {
        self.0.generation.load(Ordering::Acquire)
    }

    fn changed_since(&self, generation: u64) -> Vec<u64> {
        let stamps = self.0.stamps.iter().enumerate();
        let newer = stamps.filter(|(_, stamp)| stamp.load(Ordering::Acquire) > generation);
        newer.map(|(chunk, _)| chunk as u64).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSliceMut;

    use rustix::io::{Errno, ReadWriteFlags};

    use super::*;

    /// I14: what a joiner is told is all that changed, by whomever, and no more.
    #[test]
    fn changes_are_stamped() {
        let directory = tempfile::tempdir().unwrap();
        let file = MemberFile::open(&directory.path().join("memory"), 10_000).unwrap();
        let mut memory = FileMemory(Arc::clone(&file));
        assert_eq!((memory.size(), file.pages()), (12_288, 3));
        let start = memory.generation();
        assert_eq!(memory.changed_since(start), Vec::<u64>::new());
        memory.write(4090, &[1; 10]).unwrap();
        assert_eq!(memory.changed_since(start), [0, 1]);
        let later = memory.generation();
        file.write_at(8192, &[2; 4096]).unwrap();
        assert_eq!(memory.changed_since(later), [2]);
        assert_eq!(memory.changed_since(start), [0, 1, 2]);
        let mut bytes = [0; 2];
        memory.read(4099, &mut bytes).unwrap();
        assert_eq!(bytes, [1, 0]);
        assert!(matches!(
            memory.read(12_280, &mut [0; 9]),
            Err(MemoryError::Range { .. })
        ));
    }

    /// I12: two processes with one memory would each execute what the other does not know of.
    #[test]
    fn a_file_is_one_members() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("memory");
        let file = MemberFile::open(&path, 4096).unwrap();
        let error = MemberFile::open(&path, 4096).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
        assert!(error.to_string().contains("another process"), "{error}");
        drop(file);
        MemberFile::open(&path, 4096).unwrap();
    }

    /// I8: what is read is what media have, not what a former process had in the cache of the system.
    #[test]
    fn nothing_is_left_of_a_former_process() {
        const TMPFS: i64 = 0x0102_1994;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("memory");
        std::fs::write(&path, [5; 8192]).unwrap();
        let file = File::open(&path).unwrap();
        file.sync_all().unwrap();
        if rustix::fs::fstatfs(&file).unwrap().f_type == TMPFS {
            eprintln!("skipped: {} has no media", directory.path().display());
            return;
        }
        let cached = |at: u64| {
            let mut bytes = [0; 16];
            let mut to = [IoSliceMut::new(&mut bytes)];
            rustix::io::preadv2(&file, &mut to, at, ReadWriteFlags::NOWAIT)
        };
        assert_eq!(cached(4096), Ok(16));
        // To ask starts to read ahead, and media may be quicker than the answer. What was left in the cache would be there each time.
        let mut openings = (0..10).map(|_| {
            let memory = MemberFile::open(&path, 8192).unwrap();
            let cached = cached(4096);
            let mut bytes = [0; 4096];
            memory.read_at(4096, &mut bytes).unwrap();
            assert_eq!(bytes, [5; 4096]);
            cached
        });
        assert!(openings.any(|cached| cached == Err(Errno::AGAIN)));
    }

    /// I8: after one failure everything fails.
    #[test]
    fn failure_is_for_good() {
        let directory = tempfile::tempdir().unwrap();
        let file = MemberFile::open(&directory.path().join("memory"), 4096).unwrap();
        let mut memory = FileMemory(Arc::clone(&file));
        memory.write(0, b"once").unwrap();
        file.note(&Err(io::Error::other("gone")));
        assert!(matches!(memory.flush(), Err(MemoryError::Device(_))));
        assert!(matches!(
            memory.read(0, &mut [0; 4]),
            Err(MemoryError::Device(_))
        ));
    }

    /// I14: also after one failed read, though the bytes are there again.
    #[test]
    fn failure_to_read_is_for_good() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("memory");
        let memory = FileMemory(MemberFile::open(&path, 4096).unwrap());
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        for length in [0, 4096] {
            file.set_len(length).unwrap();
            assert!(matches!(
                memory.read(0, &mut [0; 4]),
                Err(MemoryError::Device(_))
            ));
        }
        assert!(memory.0.has_failed());
        let why = memory.0.why_failed().unwrap();
        let path = memory.0.path.display().to_string();
        assert!(why.starts_with(&path), "{why}");
    }
}
