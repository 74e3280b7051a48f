//! Reserving the space of an image file.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use crate::GRAIN_BYTES;

/// Makes the bytes `from..from + count` part of the file, with their space if the file system can reserve any.
///
/// More than is free is refused before it is tried: `fallocate(2)` takes all there is before it fails, and giving that back
/// takes minutes, in which nobody else on that file system can write.
///
/// # Errors
/// `ENOSPC`, `EFBIG` or what else the system says; the caller gives the file its old size again.
pub(super) fn reserve(file: &File, from: u64, count: u64) -> io::Result<()> {
    let end = from.checked_add(count).map(i64::try_from);
    let Some(Ok(end)) = end else {
        return Err(io::Error::from_raw_os_error(libc::EFBIG));
    };
    if count == 0 {
        return file.set_len(from);
    }
    // What is free only counts where space can be reserved, which a little of it tells.
    let first = count.min(GRAIN_BYTES as u64);
    match allocate(file, from, first) {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            return file.set_len(end.cast_unsigned());
        }
        done => done?,
    }
    if count - first > available_bytes(file)? {
        return Err(io::Error::from_raw_os_error(libc::ENOSPC));
    }
    allocate(file, from, count)
}

fn allocate(file: &File, from: u64, count: u64) -> io::Result<()> {
    let (from, count) = (from.cast_signed(), count.cast_signed());
    // SAFETY: no memory is involved.
    match unsafe { libc::fallocate64(file.as_raw_fd(), 0, from, count) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// What df(1) calls available.
fn available_bytes(file: &File) -> io::Result<u64> {
    // SAFETY: a structure of integers, for which zeros are values.
    let mut found: libc::statvfs64 = unsafe { std::mem::zeroed() };
    // SAFETY: the structure lives over the call.
    if unsafe { libc::fstatvfs64(file.as_raw_fd(), &raw mut found) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(found.f_bavail.saturating_mul(found.f_frsize))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    /// What the file system does not have is refused without taking what it has: at most the block that was tried is there.
    #[test]
    fn more_than_is_free() {
        let file = tempfile::tempfile().expect("a file");
        let free = available_bytes(&file).expect("statvfs");
        let Err(refused) = reserve(&file, 0, free + (64 << 30)) else {
            eprintln!("skipped: the file system of temporary files reserves nothing");
            return;
        };
        assert_eq!(refused.raw_os_error(), Some(libc::ENOSPC));
        let bytes = file.metadata().expect("metadata").blocks() * 512;
        assert!(bytes <= 1 << 20, "{bytes} bytes were taken");
    }

    /// No size that a file can not have.
    #[test]
    fn more_than_a_file_can_have() {
        let file = tempfile::tempfile().expect("a file");
        for (from, count) in [(0, u64::MAX), (8192, u64::MAX), (8192, i64::MAX as u64)] {
            let refused = reserve(&file, from, count).map_err(|error| error.raw_os_error());
            assert_eq!(refused, Err(Some(libc::EFBIG)));
        }
    }
}
