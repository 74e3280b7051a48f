//! `/dev/fuse`: each `read` takes a request, each `write` gives an answer.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use zerocopy::IntoBytes;

use super::reply::{Outlet, header};
use super::wire::BackingMap;
use crate::span::Span;

/// Its path.
pub(super) const PATH: &str = "/dev/fuse";
/// `FUSE_DEV_IOC_CLONE`: `_IOR(229, 0, uint32_t)`.
const CLONE: libc::Ioctl = 0x8004_e500_u32 as libc::Ioctl;

/// `FUSE_DEV_IOC_BACKING_OPEN`: `_IOW(229, 1, struct fuse_backing_map)`.
const BACKING_OPEN: libc::Ioctl = 0x4010_e501_u32 as libc::Ioctl;
/// `FUSE_DEV_IOC_BACKING_CLOSE`: `_IOW(229, 2, uint32_t)`.
const BACKING_CLOSE: libc::Ioctl = 0x4004_e502_u32 as libc::Ioctl;

/// What the kernel calls a file that it may map in place of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BackingId(pub(super) i32);

/// An open descriptor. A request is answered where it was taken.
#[derive(Debug)]
pub(super) struct Device(File);

impl From<OwnedFd> for Device {
    fn from(fd: OwnedFd) -> Self {
        Self(File::from(fd))
    }
}

impl AsRawFd for Device {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Device {
    /// Opens it; what is served by it is decided by a mount.
    pub(super) fn open() -> io::Result<File> {
        OpenOptions::new().read(true).write(true).open(PATH)
    }

    /// Another descriptor for the same mount, with a list of its own of requests under way.
    pub(super) fn another(&self) -> io::Result<Self> {
        let other = Self::open()?;
        let mut mount = self.0.as_raw_fd() as u32;
        // SAFETY: the kernel reads a descriptor from `mount`.
        let done = unsafe { libc::ioctl(other.as_raw_fd(), CLONE, &raw mut mount) };
        match done {
            0 => Ok(Self(other)),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Tells the kernel of a file that it may map in place of others.
    ///
    /// # Errors
    /// `EPERM` without `CAP_SYS_ADMIN`.
    pub(super) fn open_backing(&self, file: &File) -> io::Result<BackingId> {
        let map = BackingMap {
            fd: file.as_raw_fd(),
            ..BackingMap::default()
        };
        // SAFETY: the kernel reads such a structure from `map`.
        let id = unsafe { libc::ioctl(self.0.as_raw_fd(), BACKING_OPEN, &raw const map) };
        match id {
            1.. => Ok(BackingId(id)),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Takes that back. Open files and mappings keep what they have.
    pub(super) fn close_backing(&self, id: BackingId) -> io::Result<()> {
        let id = id.0 as u32;
        // SAFETY: the kernel reads a number from `id`.
        let done = unsafe { libc::ioctl(self.0.as_raw_fd(), BACKING_CLOSE, &raw const id) };
        match done {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Waits for a request; `None` if the mount has gone.
    pub(super) fn receive<'a>(&self, buffer: &'a mut [u8]) -> io::Result<Option<&'a [u8]>> {
        loop {
            match (&self.0).read(buffer) {
                Ok(len) => return Ok(Some(&buffer[..len])),
                Err(error) if has_gone(&error) => return Ok(None),
                Err(error) => match error.raw_os_error() {
                    // The second if who asked was interrupted and has gone.
                    Some(libc::EINTR | libc::ENOENT | libc::EAGAIN) => {}
                    _ => return Err(error),
                },
            }
        }
    }

    /// Gives an answer, or tells the kernel something by itself (`unique` is 0, `error` says what).
    pub(super) fn send(&self, unique: u64, error: i32, parts: &[Span<'_>]) -> io::Result<()> {
        let header = header(unique, error, parts);
        let mut places = Vec::with_capacity(1 + parts.len());
        places.push(Span::of(header.as_bytes()).iovec());
        places.extend(parts.iter().map(Span::iovec));
        // SAFETY: the kernel reads what is there, which may be done while they are held, as they are here.
        let done = unsafe {
            libc::writev(
                self.0.as_raw_fd(),
                places.as_ptr(),
                places.len() as libc::c_int,
            )
        };
        // All or nothing.
        match done {
            0.. => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Whether the kernel says that the mount has gone: the second if a request was just being taken that nobody waits for, a
/// `RELEASE` say.
fn has_gone(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENODEV | libc::ECONNABORTED)
    )
}

impl Outlet for Device {
    fn answer(&self, unique: u64, error: i32, parts: &[Span<'_>]) {
        match self.send(unique, error, parts) {
            Ok(()) => {}
            // Who asked has gone, or the mount has.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) if has_gone(&error) => {}
            Err(refused) => {
                tracing::error!(%refused, unique, "the kernel refused an answer");
                // Whoever waits must not wait for ever.
                let _ = self.send(unique, -libc::EIO, &[]);
            }
        }
    }
}
