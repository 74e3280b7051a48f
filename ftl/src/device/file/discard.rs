//! Telling the media that a range holds nothing of value.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileTypeExt;

/// `_IO(0x12, 119)`: discard the sectors of a byte range.
const BLKDISCARD: libc::c_ulong = 0x1277;

/// Mode of `fallocate` that frees a range and leaves the size alone.
pub(super) const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;

/// Discards a range. Failure has no consequence but wear, so it is not reported.
pub(super) fn discard(file: &File, offset: u64, len: u64) {
    let is_block = file
        .metadata()
        .is_ok_and(|meta| meta.file_type().is_block_device());
    if is_block {
        let range = [offset, len];
        // SAFETY: BLKDISCARD reads two u64 from the pointer.
        unsafe { libc::ioctl(file.as_raw_fd(), BLKDISCARD, range.as_ptr()) };
    } else {
        // SAFETY: `file` is open; no memory is involved.
        unsafe {
            libc::fallocate64(
                file.as_raw_fd(),
                PUNCH,
                offset.cast_signed(),
                len.cast_signed(),
            )
        };
    }
}
