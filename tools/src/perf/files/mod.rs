//! Loads on the files of a mounted file system, whichever it is: direct I/O, nothing between generator and kernel.

mod names;
mod ring;
mod serial;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use memmap2::MmapMut;

use super::figures::{Figures, Latencies};

/// Bytes of the random accesses.
pub const BLOCK: usize = 4 << 10;
/// Bytes of the sequential accesses.
pub const CHUNK: usize = 1 << 20;

/// What a run does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Random reads of blocks by so many threads, one at a time each.
    Read {
        /// Threads.
        threads: usize,
    },
    /// Random reads of blocks through io_uring, so many in flight.
    ReadDeep {
        /// In flight.
        depth: usize,
    },
    /// Chunks, one behind the other.
    ReadChunks,
    /// Chunks over what is there, one behind the other, durable at the end.
    WriteChunks,
    /// Random overwrites of blocks by so many threads, each durable before the next (`fdatasync`).
    WriteDurably {
        /// Threads.
        threads: usize,
    },
    /// Random writes of blocks by so many threads, each durable before the next (`fdatasync`), to a new file each, whose space is
    /// reserved (`fallocate`) and not written: what fio does if nothing else is said. Together they have [`new_bytes`].
    WriteNewDurably {
        /// Threads.
        threads: usize,
    },
    /// So many new files, each durable (`fsync`) before the next, then all removed, durably at the end.
    Names {
        /// Files.
        files: u32,
    },
}

impl Access {
    /// Bytes of one operation.
    pub fn bytes(self) -> usize {
        match self {
            Self::ReadChunks | Self::WriteChunks => CHUNK,
            Self::Names { .. } => 0,
            _ => BLOCK,
        }
    }
}

/// Bytes of the new files of a run together, beside a file of `bytes`.
pub fn new_bytes(bytes: u64) -> u64 {
    bytes / 4
}

/// Bounds of one run.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// What to do.
    pub access: Access,
    /// Time measured.
    pub time: Duration,
    /// Bytes of the file that is accessed.
    pub bytes: u64,
    /// Start of all chance; where sequential runs begin.
    pub seed: u64,
    /// Set, it ends the run before its time: there are no figures of it.
    pub stop: &'a AtomicBool,
}

impl Run<'_> {
    fn is_off(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

impl Access {
    /// Whether it makes files of its own, in a directory.
    pub fn makes_files(self) -> bool {
        matches!(self, Self::WriteNewDurably { .. } | Self::Names { .. })
    }
}

/// Carries out a run on the file at `path`, or in the directory that it is.
pub fn run(path: &Path, run: &Run<'_>) -> io::Result<Figures> {
    match run.access {
        Access::Read { threads } => serial::read(path, run, threads),
        Access::ReadDeep { depth } => ring::read(path, run, depth),
        Access::ReadChunks => serial::read_chunks(path, run),
        Access::WriteChunks => serial::write_chunks(path, run),
        Access::WriteDurably { threads } => serial::write_durably(path, run, threads),
        Access::WriteNewDurably { threads } => serial::write_new_durably(path, run, threads),
        Access::Names { files } => names::create_and_remove(path, run, files),
    }
}

/// Makes a file of `bytes`, written in chunks and durable, of which the kernel keeps nothing. `tell` hears of every chunk, and may
/// end it.
pub fn fill(
    path: &Path,
    bytes: u64,
    mut tell: impl FnMut(u64) -> io::Result<()>,
) -> io::Result<()> {
    let file = open(path, true)?;
    let mut chunk = buffer(CHUNK)?;
    for offset in (0..bytes).step_by(CHUNK) {
        stamp(&mut chunk, offset);
        file.write_all_at(&chunk, offset)?;
        tell(CHUNK as u64)?;
    }
    file.sync_all()?;
    // SAFETY: advice about an open file; no memory is involved.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    Ok(())
}

/// Reads all of a file once.
pub fn read_through(path: &Path, bytes: u64) -> io::Result<()> {
    let file = open(path, false)?;
    let mut chunk = buffer(CHUNK)?;
    for offset in (0..bytes).step_by(CHUNK) {
        let len = CHUNK.min((bytes - offset) as usize);
        file.read_exact_at(&mut chunk[..len], offset)?;
    }
    Ok(())
}

fn open(path: &Path, write: bool) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(write)
        .create(write)
        .truncate(false)
        .custom_flags(libc::O_DIRECT)
        .open(path)
}

/// Memory as direct I/O wants it, brought in, of bytes that no device takes for zeros.
fn buffer(bytes: usize) -> io::Result<MmapMut> {
    let mut map = MmapMut::map_anon(bytes)?;
    map.fill(0x5a);
    Ok(map)
}

/// Makes the blocks of a chunk differ from all others.
fn stamp(chunk: &mut [u8], offset: u64) {
    for (n, block) in chunk.chunks_mut(BLOCK).enumerate() {
        block[..8].copy_from_slice(&(offset + n as u64).to_le_bytes());
    }
}

/// The figures of a run that began at `start`, when the process had used `used`.
fn figures(latencies: Latencies, size: usize, start: Instant, used: Duration) -> Figures {
    let elapsed = start.elapsed();
    let client = super::cpu::used(None)
        .unwrap_or_default()
        .saturating_sub(used);
    Figures::new(latencies, size, elapsed, client, None)
}
