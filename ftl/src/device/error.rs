//! What a media operation can fail with, and the one place where `errno` becomes that.

use std::io;

/// Why a media operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum MediaError {
    /// The device could not read or write the range, or could not flush.
    #[error("input/output error")]
    Io,
    /// The file system below the image is full, or a quota is reached.
    #[error("no space left below the image")]
    NoSpace,
    /// The device has disappeared.
    #[error("the device is gone")]
    Gone,
    /// The device of an array that has this was not there when the volume was opened without it: what it holds is given up.
    #[error("the device is missing")]
    Missing,
    /// The device stopped in the middle of a transfer and does not go on.
    #[error("short transfer")]
    Short,
    /// The device can not be written.
    #[error("the device is read-only")]
    ReadOnly,
    /// The request is none that the device can carry out: outside of the device or misaligned.
    #[error("request outside of the device or misaligned")]
    Invalid,
}

impl MediaError {
    /// Maps an `errno` value. Everything unknown is [`MediaError::Io`].
    pub const fn from_errno(errno: i32) -> Self {
        match errno {
            libc::ENOSPC | libc::EDQUOT | libc::EFBIG => Self::NoSpace,
            libc::ENODEV | libc::ENXIO | libc::ENOTCONN | libc::EBADF | libc::ESHUTDOWN => {
                Self::Gone
            }
            libc::EROFS | libc::EPERM | libc::EACCES => Self::ReadOnly,
            libc::EINVAL => Self::Invalid,
            _ => Self::Io,
        }
    }
}

impl From<&io::Error> for MediaError {
    fn from(error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::UnexpectedEof || error.kind() == io::ErrorKind::WriteZero
        {
            return Self::Short;
        }
        error.raw_os_error().map_or(Self::Io, Self::from_errno)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each errno a device can answer with has one meaning; unknown ones are EIO, never success (I18).
    #[test]
    fn errno_table() {
        for (errno, want) in [
            (libc::EIO, MediaError::Io),
            (libc::ENOSPC, MediaError::NoSpace),
            (libc::EDQUOT, MediaError::NoSpace),
            (libc::ENODEV, MediaError::Gone),
            (libc::EROFS, MediaError::ReadOnly),
            (libc::EINVAL, MediaError::Invalid),
            (libc::EREMOTEIO, MediaError::Io),
        ] {
            assert_eq!(MediaError::from_errno(errno), want, "errno {errno}");
            assert_eq!(MediaError::from(&io::Error::from_raw_os_error(errno)), want);
        }
        let short = io::Error::from(io::ErrorKind::UnexpectedEof);
        assert_eq!(MediaError::from(&short), MediaError::Short);
    }
}
