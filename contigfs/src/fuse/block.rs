//! A block device for a mount to be on: only then does the kernel tell a FUSE file system of `sync` and `syncfs`.
//!
//! It is a loop device over the first bytes of the volume, which is how people find out what is mounted (`losetup`). Nobody
//! reads or writes it. It goes with the mount.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Where devices that are free are asked for.
const CONTROL: &str = "/dev/loop-control";
/// Size of the device, and of its blocks.
pub(super) const BYTES: u32 = 4096;
/// Others take a device that is free, too.
const TRIES: usize = 32;

/// `LOOP_CTL_GET_FREE`
const GET_FREE: libc::Ioctl = 0x4c82;
/// `LOOP_CONFIGURE`
const CONFIGURE: libc::Ioctl = 0x4c0a;
/// `LO_FLAGS_AUTOCLEAR`: gone when nobody has it open any more.
const AUTOCLEAR: u32 = 4;
const NAME_BYTES: usize = 64;

/// `struct loop_info64` of `linux/loop.h`.
#[repr(C)]
struct Info {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; NAME_BYTES],
    crypt_name: [u8; NAME_BYTES],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config`.
#[repr(C)]
struct Config {
    fd: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}
const _: () = assert!(size_of::<Info>() == 232 && size_of::<Config>() == 304);

/// A loop device. It stays as long as this, or something that is mounted on it.
#[derive(Debug)]
pub(super) struct BlockDevice {
    path: PathBuf,
    _open: File,
}

impl BlockDevice {
    /// One that shows the beginning of `volume`.
    ///
    /// # Errors
    /// Whatever is in the way, in words.
    pub(super) fn over(volume: &Path) -> io::Result<Self> {
        let because = |what: &Path, error: io::Error| {
            let text = format!(
                "`syncfs` takes a loop device, and there is none: {}: {error}",
                what.display()
            );
            io::Error::other(text)
        };
        let open = |path: &Path| {
            let opened = OpenOptions::new().read(true).write(true).open(path);
            opened.map_err(|error| because(path, error))
        };
        let (control, volume_open) = (open(Path::new(CONTROL))?, open(volume)?);
        let config = config(volume, volume_open.as_raw_fd());
        for _ in 0..TRIES {
            // SAFETY: no memory is passed.
            let number = unsafe { libc::ioctl(control.as_raw_fd(), GET_FREE) };
            if number < 0 {
                return Err(because(Path::new(CONTROL), io::Error::last_os_error()));
            }
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let device = open(&path)?;
            // SAFETY: the kernel reads such a structure from `config`.
            let done = unsafe { libc::ioctl(device.as_raw_fd(), CONFIGURE, &raw const config) };
            if done == 0 {
                return Ok(Self {
                    path,
                    _open: device,
                });
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::ResourceBusy {
                return Err(because(&path, error));
            }
        }
        Err(because(
            Path::new(CONTROL),
            io::ErrorKind::ResourceBusy.into(),
        ))
    }

    /// Its path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

fn config(volume: &Path, fd: RawFd) -> Config {
    let mut file_name = [0; NAME_BYTES];
    let name = volume.as_os_str().as_bytes();
    let len = name.len().min(NAME_BYTES - 1);
    file_name[..len].copy_from_slice(&name[..len]);
    Config {
        fd: fd as u32,
        block_size: BYTES,
        info: Info {
            device: 0,
            inode: 0,
            rdevice: 0,
            offset: 0,
            size_limit: BYTES.into(),
            number: 0,
            encrypt_type: 0,
            encrypt_key_size: 0,
            flags: AUTOCLEAR,
            file_name,
            crypt_name: [0; NAME_BYTES],
            encrypt_key: [0; 32],
            init: [0; 2],
        },
        reserved: [0; 8],
    }
}
