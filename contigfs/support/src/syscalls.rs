//! System calls that the standard library lacks, as safe functions; and acting as somebody else.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Room for any value and any list of names.
const XATTR_MAX: usize = 65_536;

pub fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

pub fn c_string(text: &str) -> CString {
    CString::new(text).unwrap()
}

/// The answer of a call: -1 and `errno`, or a number.
pub fn answer(result: impl TryInto<i64>) -> io::Result<usize> {
    match result.try_into().ok() {
        Some(result) if result >= 0 => Ok(result as usize),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The error number that POSIX programs see; 0 for success.
pub fn errno<T>(result: io::Result<T>) -> i32 {
    result.map_or_else(|error| error.raw_os_error().unwrap(), |_| 0)
}

pub fn set_xattr(path: &Path, name: &str, value: &[u8], flags: i32) -> io::Result<()> {
    let (path, name) = (c_path(path), c_string(name));
    let (data, len) = (value.as_ptr().cast(), value.len());
    // SAFETY: strings end with NUL, and the value has the length said.
    answer(unsafe { libc::lsetxattr(path.as_ptr(), name.as_ptr(), data, len, flags) }).map(drop)
}

/// Asks with room for `size` bytes; 0 asks for the length.
pub fn get_xattr_sized(path: &Path, name: &str, size: usize) -> io::Result<Vec<u8>> {
    let (path, name) = (c_path(path), c_string(name));
    let mut value = vec![0; size];
    let data = value.as_mut_ptr().cast();
    // SAFETY: strings end with NUL, and the buffer has the length said.
    let len = answer(unsafe { libc::lgetxattr(path.as_ptr(), name.as_ptr(), data, size) })?;
    value.resize(len, 0);
    Ok(value)
}

pub fn get_xattr(path: &Path, name: &str) -> io::Result<Vec<u8>> {
    get_xattr_sized(path, name, XATTR_MAX)
}

pub fn list_xattrs_sized(path: &Path, size: usize) -> io::Result<Vec<u8>> {
    let path = c_path(path);
    let mut names = vec![0u8; size];
    // SAFETY: the path ends with NUL, and the buffer has the length said.
    let len = answer(unsafe { libc::llistxattr(path.as_ptr(), names.as_mut_ptr().cast(), size) })?;
    names.resize(len, 0);
    Ok(names)
}

pub fn list_xattrs(path: &Path) -> io::Result<Vec<String>> {
    let names = list_xattrs_sized(path, XATTR_MAX)?;
    let names = names
        .split(|&byte| byte == 0)
        .filter(|name| !name.is_empty());
    Ok(names
        .map(|name| String::from_utf8(name.to_vec()).unwrap())
        .collect())
}

pub fn remove_xattr(path: &Path, name: &str) -> io::Result<()> {
    let (path, name) = (c_path(path), c_string(name));
    // SAFETY: both end with NUL.
    answer(unsafe { libc::lremovexattr(path.as_ptr(), name.as_ptr()) }).map(drop)
}

pub fn mknod(path: &Path, mode: u32, device: u64) -> io::Result<()> {
    let path = c_path(path);
    // SAFETY: the path ends with NUL.
    answer(unsafe { libc::mknod(path.as_ptr(), mode, device) }).map(drop)
}

pub fn rename(from: &Path, to: &Path, flags: u32) -> io::Result<()> {
    let (from, to) = (c_path(from), c_path(to));
    let cwd = libc::AT_FDCWD;
    // SAFETY: both end with NUL.
    answer(unsafe { libc::renameat2(cwd, from.as_ptr(), cwd, to.as_ptr(), flags) }).map(drop)
}

/// Runs `act` in a thread of its own that is this user, with this group and these further ones, and without
/// capabilities unless it is root.
pub fn as_user<T: Send>(uid: u32, gid: u32, groups: &[u32], act: impl FnOnce() -> T + Send) -> T {
    in_thread(
        || {
            let (count, list) = (groups.len(), groups.as_ptr());
            // SAFETY: the raw calls, unlike the library's, change the calling thread alone; the list has the length
            // said.
            unsafe {
                answer(libc::syscall(libc::SYS_setgroups, count, list)).unwrap();
                answer(libc::syscall(libc::SYS_setresgid, gid, gid, gid)).unwrap();
                answer(libc::syscall(libc::SYS_setresuid, uid, uid, uid)).unwrap();
            }
        },
        act,
    )
}

/// Runs `act` in a thread of its own with this umask.
pub fn with_umask<T: Send>(mask: u32, act: impl FnOnce() -> T + Send) -> T {
    in_thread(
        || {
            // SAFETY: no memory is involved; the thread gets a umask of its own first.
            unsafe {
                answer(libc::unshare(libc::CLONE_FS)).unwrap();
                libc::umask(mask);
            }
        },
        act,
    )
}

fn in_thread<T: Send>(prepare: impl FnOnce() + Send, act: impl FnOnce() -> T + Send) -> T {
    let run = || {
        prepare();
        act()
    };
    std::thread::scope(|scope| scope.spawn(run).join())
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// A handle as name_to_handle_at(2) gives it, of a link itself.
#[repr(C, align(8))]
pub struct Handle {
    bytes: u32,
    kind: i32,
    handle: [u8; 128],
}

pub fn handle(path: &Path) -> io::Result<Handle> {
    let path = c_path(path);
    let (mut mount, mut handle) = (
        0,
        Handle {
            bytes: 128,
            kind: 0,
            handle: [0; 128],
        },
    );
    // SAFETY: a path that ends, room for a handle of the size that it says, and for a number.
    answer(unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            libc::AT_FDCWD,
            path.as_ptr(),
            &raw mut handle,
            &raw mut mount,
            0,
        )
    })?;
    Ok(handle)
}

/// open_by_handle_at(2), on the file system of a path.
pub fn open_handle(mount: &Path, handle: &Handle, flags: i32) -> io::Result<File> {
    let mount = File::open(mount)?;
    // SAFETY: a descriptor and a handle, which it only reads.
    let fd = answer(unsafe {
        libc::syscall(
            libc::SYS_open_by_handle_at,
            mount.as_raw_fd(),
            &raw const *handle,
            flags | libc::O_CLOEXEC,
        )
    })?;
    // SAFETY: it was opened for this.
    Ok(unsafe { File::from_raw_fd(fd as i32) })
}

/// The next names of a directory, as many as getdents64(2) puts into so many bytes.
#[expect(clippy::host_endian_bytes, reason = "what the kernel writes")]
pub fn some_names(directory: &File, bytes: usize) -> Vec<String> {
    /// Bytes before the name: inode, offset, length, kind.
    const NAME_AT: usize = 19;
    let mut buffer = vec![0_u8; bytes];
    let (fd, place) = (directory.as_raw_fd(), buffer.as_mut_ptr());
    // SAFETY: the kernel writes at most so many bytes to the buffer.
    let len = unsafe { libc::syscall(libc::SYS_getdents64, fd, place, bytes) };
    let mut rest = &buffer[..usize::try_from(len).expect("a directory can be listed")];
    let mut names = Vec::new();
    while !rest.is_empty() {
        let len = usize::from(u16::from_ne_bytes([rest[16], rest[17]]));
        let name = rest[NAME_AT..len].split(|&byte| byte == 0).next();
        names.extend(name.map(|name| String::from_utf8_lossy(name).into_owned()));
        rest = &rest[len..];
    }
    names
}
