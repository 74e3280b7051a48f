//! Regular files and block devices.
//!
//! The file is opened for direct I/O, so that success of a write means the device took it and the page cache holds
//! no second copy; where the file system refuses that, buffered I/O and `fdatasync` mean the same, and what is in the page cache when the
//! file is opened is forgotten. Operations go over
//! an io_uring of the device's own, or, where the system has none, one system call at a time. A reactor with a ring
//! of its own takes the file with [`FileDevice::into_parts`] and keeps the rules of [`crate::device`] itself.
//!
//! # Exclusion
//! An image has one user at a time: `flock` on the open file, for block devices also `O_EXCL`, which excludes mounts.
//! The lock lives exactly as long as the file is open. Read-only users share it among themselves. Of a loop device the file below
//! is locked, too: under whichever of the two names it is asked for, the image is in use.

mod blocking;
mod discard;
mod enlarge;
mod error;
mod looped;
mod reserve;
mod ring;
mod transfer;

pub use enlarge::{EnlargeError, enlarge};
pub use error::{DeviceOpenError, Step};

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use super::{Action, ActionId, Device, MediaError, MediaOp, check};
use crate::GRAIN_BYTES;
use blocking::Blocking;
use ring::Ring;

/// `_IOR(0x12, 114, size_t)`: size of a block device in bytes.
const BLKGETSIZE64: libc::c_ulong = 0x8008_1272;

/// How long a device that is in use is waited for.
const PATIENCE: Duration = Duration::from_millis(500);
/// The first rest; each is twice as long as the one before it.
const FIRST_REST: Duration = Duration::from_millis(10);
/// Rests, 2.6 seconds together.
const RESTS: u32 = 8;

/// How much of a new image's space is claimed at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocation {
    /// All of it, so that the image can not run out of space later (where the file system can do that).
    Reserve,
    /// All of it, and every block is written once: no later write waits for the file system to note that a block has
    /// come into use, which for durable writes takes a commit of its journal.
    Written,
    /// Only what is written.
    Sparse,
}

/// An open image, taken apart by [`FileDevice::into_parts`].
#[derive(Debug)]
pub struct FileParts {
    /// The open and locked file.
    pub file: File,
    /// Whether it is open for direct I/O: offsets, lengths and addresses must be aligned.
    pub direct: bool,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Size of the device.
    pub len_bytes: u64,
    /// Of a loop device the file below it, locked; as long as it is open.
    pub below: Option<File>,
}

/// A regular file or block device.
#[derive(Debug)]
pub struct FileDevice {
    // Declared before `parts` and drained on drop: no request outlives the file.
    driver: Driver,
    parts: Option<FileParts>,
    /// It has rested so often.
    rests: u32,
}

#[derive(Debug)]
enum Driver {
    Ring(Box<Ring>),
    Blocking(Blocking),
}

/// What the opener is going to do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Create,
    ReadWrite,
    ReadOnly,
}

impl FileDevice {
    /// Creates an image file that does not exist yet, with `len_bytes` rounded down to a whole grain.
    ///
    /// # Errors
    /// See [`DeviceOpenError`]; nothing is left behind.
    pub fn create(
        path: impl AsRef<Path>,
        len_bytes: u64,
        allocation: Allocation,
    ) -> Result<Self, DeviceOpenError> {
        let path = path.as_ref();
        let asked_bytes = len_bytes;
        let len_bytes = len_bytes - len_bytes % GRAIN_BYTES as u64;
        if len_bytes == 0 {
            return Err(DeviceOpenError::TooSmall {
                path: path.to_path_buf(),
                bytes: asked_bytes,
            });
        }
        let file = open_file(path, Access::Create, false)?;
        let made = lock(path, &file, libc::LOCK_EX)
            .and_then(|()| allocate(path, &file, len_bytes, allocation))
            .and_then(|()| sync_directory(path))
            .and_then(|()| Self::measured(path, file, None, false));
        if made.is_err() {
            // The name is ours: it did not exist before. An error here hides nothing, the first one is reported.
            let _ = std::fs::remove_file(path);
        }
        made
    }

    /// Opens an image or block device for reading and writing.
    ///
    /// # Errors
    /// See [`DeviceOpenError`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, DeviceOpenError> {
        Self::open_as(path.as_ref(), Access::ReadWrite)
    }

    /// Opens an image or block device for reading; shares it with other readers. Writes fail.
    ///
    /// # Errors
    /// See [`DeviceOpenError`].
    pub fn open_read_only(path: impl AsRef<Path>) -> Result<Self, DeviceOpenError> {
        Self::open_as(path.as_ref(), Access::ReadOnly)
    }

    fn open_as(path: &Path, access: Access) -> Result<Self, DeviceOpenError> {
        let kind = std::fs::metadata(path)
            .map_err(|error| DeviceOpenError::from_system(path, Step::Open, error))?
            .file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(DeviceOpenError::WrongKind {
                path: path.to_path_buf(),
            });
        }
        let file = patiently(|| open_file(path, access, kind.is_block_device()))?;
        let (operation, read_only) = match access {
            Access::ReadOnly => (libc::LOCK_SH, true),
            Access::Create | Access::ReadWrite => (libc::LOCK_EX, false),
        };
        lock(path, &file, operation)?;
        let below = looped::file_below(&file);
        // Where a file system locks nothing, nobody else has a lock.
        if let Some(below) = &below
            && let Err(error @ DeviceOpenError::InUse { .. }) = lock(path, below, operation)
        {
            return Err(error);
        }
        Self::measured(path, file, below, read_only)
    }

    fn measured(
        path: &Path,
        file: File,
        below: Option<File>,
        read_only: bool,
    ) -> Result<Self, DeviceOpenError> {
        let bytes = size_of_device(&file)
            .map_err(|error| DeviceOpenError::from_system(path, Step::Measure, error))?;
        let len_bytes = bytes - bytes % GRAIN_BYTES as u64;
        if len_bytes == 0 {
            return Err(DeviceOpenError::TooSmall {
                path: path.to_path_buf(),
                bytes,
            });
        }
        let direct = switch_to_direct(&file);
        if !direct {
            forget_cached(&file);
        }
        let driver = Ring::new().map_or_else(
            |_| Driver::Blocking(Blocking::default()),
            |ring| Driver::Ring(Box::new(ring)),
        );
        Ok(Self {
            driver,
            parts: Some(FileParts {
                file,
                direct,
                read_only,
                len_bytes,
                below,
            }),
            rests: 0,
        })
    }

    /// Looks again how large the device is, which may have been made larger meanwhile.
    ///
    /// # Errors
    /// When the system does not tell; the size stays what it was.
    pub fn measure_again(&mut self) -> io::Result<()> {
        let bytes = size_of_device(self.file())?;
        if let Some(parts) = &mut self.parts {
            parts.len_bytes = bytes - bytes % GRAIN_BYTES as u64;
        }
        Ok(())
    }

    /// Does without io_uring from now on, as on systems that have none.
    #[must_use]
    pub fn without_ring(mut self) -> Self {
        self.drain();
        self.driver = Driver::Blocking(Blocking::default());
        self
    }

    /// The open file; its lock lives as long as it is open.
    pub fn file(&self) -> &File {
        &self.parts().file
    }

    /// Descriptor of the open file.
    pub fn raw_fd(&self) -> RawFd {
        self.file().as_raw_fd()
    }

    /// Whether the page cache is bypassed.
    pub fn is_direct(&self) -> bool {
        self.parts().direct
    }

    /// Whether writes are refused.
    pub fn is_read_only(&self) -> bool {
        self.parts().read_only
    }

    /// Whether operations go over io_uring.
    pub fn has_ring(&self) -> bool {
        matches!(self.driver, Driver::Ring(_))
    }

    /// Waits for everything in flight, forgets its completions, and hands the file out, still locked.
    pub fn into_parts(mut self) -> FileParts {
        self.drain();
        self.parts.take().expect("taken only here, by value")
    }

    fn parts(&self) -> &FileParts {
        self.parts
            .as_ref()
            .expect("taken only by `into_parts`, by value")
    }

    fn drain(&mut self) {
        if let (Driver::Ring(ring), Some(parts)) = (&mut self.driver, &self.parts) {
            ring.drain(&parts.file);
        }
    }

    fn refusal(&self, op: &MediaOp) -> Result<(), MediaError> {
        let parts = self.parts();
        check(op, parts.len_bytes)?;
        match op {
            MediaOp::Write { .. } | MediaOp::Discard { .. } if parts.read_only => {
                Err(MediaError::ReadOnly)
            }
            _ => Ok(()),
        }
    }
}

impl Drop for FileDevice {
    /// Waits for what is in flight: its buffers belong to the kernel until then.
    fn drop(&mut self) {
        self.drain();
    }
}

impl Device for FileDevice {
    fn len_bytes(&self) -> u64 {
        self.parts().len_bytes
    }

    fn submit(&mut self, action: Action) {
        let refusal = self.refusal(&action.op);
        let file = &self.parts.as_ref().expect("as in `parts`").file;
        match (&mut self.driver, refusal) {
            (Driver::Ring(ring), Ok(())) => ring.submit(file, action),
            (Driver::Ring(ring), refused) => ring.report(action.id, refused),
            (Driver::Blocking(calls), Ok(())) => calls.submit(file, action),
            (Driver::Blocking(calls), refused) => calls.report(action.id, refused),
        }
    }

    fn poll(&mut self, wait: bool) -> Option<(ActionId, Result<(), MediaError>)> {
        let file = &self.parts.as_ref().expect("as in `parts`").file;
        match &mut self.driver {
            Driver::Ring(ring) => ring.poll(file, wait),
            Driver::Blocking(calls) => calls.poll(),
        }
    }

    fn rest(&mut self) -> bool {
        if self.rests == RESTS {
            return false;
        }
        std::thread::sleep(FIRST_REST * (1 << self.rests));
        self.rests += 1;
        true
    }
}

fn open_file(path: &Path, access: Access, is_block: bool) -> Result<File, DeviceOpenError> {
    // O_EXCL without O_CREAT has a meaning only for block devices: refuse if mounted or held by another.
    let exclusive = is_block && access == Access::ReadWrite;
    OpenOptions::new()
        .read(true)
        .write(access != Access::ReadOnly)
        .create_new(access == Access::Create)
        .custom_flags(libc::O_CLOEXEC | if exclusive { libc::O_EXCL } else { 0 })
        .open(path)
        .map_err(|error| DeviceOpenError::from_system(path, Step::Open, error))
}

fn lock(path: &Path, file: &File, operation: i32) -> Result<(), DeviceOpenError> {
    patiently(|| {
        // SAFETY: no memory is involved.
        let locked = unsafe { libc::flock(file.as_raw_fd(), operation | libc::LOCK_NB) };
        if locked == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        Err(DeviceOpenError::from_system(path, Step::Lock, error))
    })
}

/// Tries for a while what fails because the device is in use. A process that was killed holds its files until the
/// kernel is done with its last requests, a little longer than it is there to be seen.
fn patiently<T>(
    mut attempt: impl FnMut() -> Result<T, DeviceOpenError>,
) -> Result<T, DeviceOpenError> {
    let start = Instant::now();
    loop {
        match attempt() {
            Err(DeviceOpenError::InUse { .. }) if start.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(2));
            }
            result => return result,
        }
    }
}

fn allocate(
    path: &Path,
    file: &File,
    len_bytes: u64,
    allocation: Allocation,
) -> Result<(), DeviceOpenError> {
    let mut result = match allocation {
        Allocation::Sparse => file.set_len(len_bytes),
        Allocation::Reserve | Allocation::Written => reserve::reserve(file, 0, len_bytes),
    };
    if allocation == Allocation::Written {
        result = result.and_then(|()| write_zeros(file, len_bytes));
    }
    // The size and the reservation are metadata of the file; they must not depend on a later flush.
    result
        .and_then(|()| file.sync_all())
        .map_err(|error| match MediaError::from(&error) {
            MediaError::NoSpace => DeviceOpenError::NoSpace {
                path: path.to_path_buf(),
                bytes: len_bytes,
            },
            _ => DeviceOpenError::from_system(path, Step::Allocate, error),
        })
}

/// Writes every block, in steps that leave no heap of dirty pages.
fn write_zeros(file: &File, len_bytes: u64) -> io::Result<()> {
    const STEP: usize = 1 << 20;
    const SYNC_EVERY: u64 = 64 << 20;
    let zeros = vec![0; STEP];
    for offset in (0..len_bytes).step_by(STEP) {
        let len = STEP.min((len_bytes - offset) as usize);
        file.write_all_at(&zeros[..len], offset)?;
        if (offset + len as u64).is_multiple_of(SYNC_EVERY) {
            file.sync_data()?;
        }
    }
    file.sync_data()?;
    let_go(file);
    Ok(())
}

/// What is read from now on comes from the device. Where writing back has failed, the page cache goes on showing what the device does
/// not have, also to who opens the file next; recovery must not stand on that (I8).
fn forget_cached(file: &File) {
    // What has not been written back yet is not let go of. If that fails here, it is, or it is tried again by the first flush.
    let _ = file.sync_data();
    let_go(file);
}

/// Pages of the cache that are on the device, or should be, leave it.
fn let_go(file: &File) {
    // SAFETY: advice about an open file; no memory is involved.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
}

/// Makes the name of a new image survive a power cut.
fn sync_directory(path: &Path) -> Result<(), DeviceOpenError> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    File::open(parent)
        .and_then(|directory| directory.sync_all())
        .map_err(|error| DeviceOpenError::from_system(path, Step::SyncDirectory, error))
}

fn size_of_device(file: &File) -> io::Result<u64> {
    let meta = file.metadata()?;
    if !meta.file_type().is_block_device() {
        return Ok(meta.len());
    }
    let mut bytes = 0_u64;
    // SAFETY: BLKGETSIZE64 writes one u64 to the pointer.
    if unsafe { libc::ioctl(file.as_raw_fd(), BLKGETSIZE64, &raw mut bytes) } == 0 {
        Ok(bytes)
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Asks for direct I/O and proves with one read that it works; otherwise the file stays buffered.
fn switch_to_direct(file: &File) -> bool {
    let fd = file.as_raw_fd();
    // SAFETY: no memory is involved.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    // SAFETY: no memory is involved.
    if flags < 0 || unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_DIRECT) } != 0 {
        return false;
    }
    if probe_read(file) {
        return true;
    }
    // SAFETY: no memory is involved.
    let restored = unsafe { libc::fcntl(fd, libc::F_SETFL, flags) };
    assert_eq!(restored, 0, "flags the file had a moment ago");
    false
}

/// Whether an aligned read of the first grain is not refused as such.
fn probe_read(file: &File) -> bool {
    #[repr(C, align(4096))]
    struct Probe([u8; GRAIN_BYTES]);
    let mut probe = Box::new(Probe([0; GRAIN_BYTES]));
    let ptr = NonNull::from(&mut probe.0).cast::<u8>();
    let fd = file.as_raw_fd();
    // SAFETY: the memory is `probe`'s, which lives until the call has returned.
    let got = unsafe { libc::pread64(fd, ptr.as_ptr().cast(), GRAIN_BYTES, 0) };
    got >= 0 || io::Error::last_os_error().raw_os_error() != Some(libc::EINVAL)
}

#[cfg(test)]
mod tests;
