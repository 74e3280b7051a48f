//! The ioctls that reach a FUSE file system and mean something here.
//!
//! The kernel handles `FICLONE` and `FICLONERANGE` itself and refuses them for every FUSE file system (`EOPNOTSUPP`),
//! because FUSE has no operation for them; `copy_file_range` clones instead. `FITRIM` does arrive.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `FITRIM` of `linux/fs.h`: `_IOWR('X', 121, struct fstrim_range)`.
pub(super) const FITRIM: u32 = 0xc018_5879;

/// `struct fstrim_range`, in the byte order of the machine.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Clone, Copy)]
#[repr(C)]
struct TrimRange {
    start: u64,
    /// Bytes to look at; in the answer, bytes that were discarded.
    len: u64,
    minlen: u64,
}
const _: () = assert!(size_of::<TrimRange>() == 24);
const _: () = assert!((FITRIM >> 16) & 0x3fff == size_of::<TrimRange>() as u32);

/// Answers `FITRIM`: everything that is free has been trimmed when it became free, so nothing is left to do.
///
/// # Errors
/// Errno: `EPERM` for ordinary users; `EINVAL` for a range that begins behind the end of the volume (`bytes` long) or is
/// shorter than a grain; as ext4.
pub(super) fn trim(uid: u32, bytes: u64, argument: &[u8]) -> Result<[u8; 24], i32> {
    if uid != 0 {
        return Err(libc::EPERM);
    }
    let mut range = TrimRange::read_from_bytes(argument).map_err(|_| libc::EINVAL)?;
    if range.start >= bytes || range.len < ftl::GRAIN_BYTES as u64 || range.minlen > bytes {
        return Err(libc::EINVAL);
    }
    range.len = 0;
    let mut answer = [0; 24];
    answer.copy_from_slice(range.as_bytes());
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trim_judges_its_range() {
        let ask = |uid, start, len| {
            let range = TrimRange {
                start,
                len,
                minlen: 0,
            };
            trim(uid, 1 << 20, range.as_bytes())
        };
        let done = ask(0, 0, u64::MAX).map(|bytes| TrimRange::read_from_bytes(&bytes).unwrap().len);
        assert_eq!(done.ok(), Some(0));
        assert!(matches!(ask(1000, 0, u64::MAX), Err(libc::EPERM)));
        for (start, len) in [(1 << 20, 4096), (0, 4095)] {
            assert!(matches!(ask(0, start, len), Err(libc::EINVAL)));
        }
        assert!(trim(0, 1 << 20, &[0; 23]).is_err());
    }
}
