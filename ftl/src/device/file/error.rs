//! Why an image or block device could not be opened or created.

use std::io;
use std::path::{Path, PathBuf};

use crate::GRAIN_BYTES;

/// Why a [`super::FileDevice`] could not be had. Every message names the path.
#[derive(Debug, thiserror::Error)]
pub enum DeviceOpenError {
    /// Another process (or this one) has it open, or it is mounted.
    #[error("{}: in use: another process has it open, or it is mounted", path.display())]
    InUse {
        /// What was to be opened.
        path: PathBuf,
    },
    /// There is no such file.
    #[error("{}: no such file or device", path.display())]
    NotFound {
        /// What was to be opened.
        path: PathBuf,
    },
    /// A new image was asked for, but there is something.
    #[error("{}: exists already", path.display())]
    Exists {
        /// What was to be created.
        path: PathBuf,
    },
    /// The caller may not read and write it.
    #[error("{}: permission denied", path.display())]
    Denied {
        /// What was to be opened.
        path: PathBuf,
    },
    /// A directory, pipe, socket or the like.
    #[error("{}: neither a regular file nor a block device", path.display())]
    WrongKind {
        /// What was to be opened.
        path: PathBuf,
    },
    /// The file system has no room for the image.
    #[error("{}: no room for an image of {bytes} bytes", path.display())]
    NoSpace {
        /// What was to be created.
        path: PathBuf,
        /// Its size.
        bytes: u64,
    },
    /// It does not hold a single grain.
    #[error("{}: {bytes} bytes are too few for a device, a grain has {GRAIN_BYTES}", path.display())]
    TooSmall {
        /// What was to be opened.
        path: PathBuf,
        /// Its size.
        bytes: u64,
    },
    /// Anything else the system said.
    #[error("{}: cannot {step}", path.display())]
    System {
        /// What was to be opened.
        path: PathBuf,
        /// What was being done.
        step: Step,
        /// What the system said.
        source: io::Error,
    },
}

/// The steps of opening, for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// `open(2)`.
    Open,
    /// `stat(2)`, `BLKGETSIZE64`.
    Measure,
    /// `flock(2)`.
    Lock,
    /// `fallocate(2)`, `ftruncate(2)`.
    Allocate,
    /// Making the new name durable.
    SyncDirectory,
}

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::Measure => "determine the size",
            Self::Lock => "lock",
            Self::Allocate => "allocate space",
            Self::SyncDirectory => "sync the directory",
        })
    }
}

impl DeviceOpenError {
    /// Gives what the system said its meaning: the one place where `errno` is looked at.
    pub(super) fn from_system(path: &Path, step: Step, source: io::Error) -> Self {
        let path = path.to_path_buf();
        match (step, source.raw_os_error()) {
            (Step::Open, Some(libc::EBUSY)) | (Step::Lock, Some(libc::EWOULDBLOCK)) => {
                Self::InUse { path }
            }
            (_, Some(libc::ENOENT)) => Self::NotFound { path },
            (_, Some(libc::EEXIST)) => Self::Exists { path },
            (_, Some(libc::EACCES | libc::EPERM)) => Self::Denied { path },
            (Step::Open, Some(libc::EISDIR | libc::ENXIO)) => Self::WrongKind { path },
            _ => Self::System { path, step, source },
        }
    }
}
