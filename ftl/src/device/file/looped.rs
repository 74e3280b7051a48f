//! The file below a loop device. The device is another name for it, so who has one of them keeps others from both.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

/// Major number of loop devices. Their partitions have another, and are parts of the file.
const LOOP_MAJOR: u32 = 7;
/// Tells of a loop device, in a [`LoopInfo`].
const LOOP_GET_STATUS64: libc::c_ulong = 0x4C05;

/// `struct loop_info64`.
#[repr(C)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}
const _: () = assert!(size_of::<LoopInfo>() == 232);

/// The file that `device` shows from its beginning on, if that is a loop device and its file can be found by its name here: other
/// namespaces have other names, and a file may have none any more. What begins in the middle of a file is another volume's place.
pub(super) fn file_below(device: &File) -> Option<File> {
    let meta = device.metadata().ok()?;
    let (major, minor) = (libc::major(meta.rdev()), libc::minor(meta.rdev()));
    if !meta.file_type().is_block_device() || major != LOOP_MAJOR {
        return None;
    }
    let info = info(device)?;
    if info.offset != 0 {
        return None;
    }
    let name = format!("/sys/dev/block/{major}:{minor}/loop/backing_file");
    let mut name = fs::read(name).ok()?;
    name.pop_if(|last| *last == b'\n');
    let path = PathBuf::from(OsString::from_vec(name));
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_CLOEXEC | libc::O_NONBLOCK)
        .open(path)
        .ok()?;
    let found = file.metadata().ok()?;
    let is_it = (found.dev(), found.ino()) == (info.device, info.inode);
    is_it.then_some(file)
}

fn info(device: &File) -> Option<LoopInfo> {
    // SAFETY: zeros are a value of each field.
    let mut info: LoopInfo = unsafe { std::mem::zeroed() };
    // SAFETY: LOOP_GET_STATUS64 writes one `loop_info64` to the pointer.
    let told = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_GET_STATUS64, &raw mut info) };
    (told == 0).then_some(info)
}
