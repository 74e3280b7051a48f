//! `umount`: unmounts a volume, and waits until its target has closed it. umount(2) alone returns before that, and
//! whoever checks or mounts the volume next would find it in use.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ftl::FileDevice;
use ftl::device::DeviceOpenError;

use crate::cli;
use crate::devices;
use crate::target::take_down;

const MOUNT_TABLE: &str = "/proc/self/mountinfo";
const TYPE: &[u8] = b"fuse.contigfs";
/// With the option `syncfs`.
const BLOCK_TYPE: &[u8] = b"fuseblk.contigfs";
/// Longest wait. A target that serves a volume to remote clients, too, keeps it.
const PATIENCE: Duration = Duration::from_secs(30);

/// Runs the command.
pub(super) fn run(options: &cli::mount::Umount) -> Result<()> {
    let dir = match options.dir.canonicalize() {
        Ok(dir) => dir,
        // A mount whose target has died can not be looked at.
        Err(_) => std::path::absolute(&options.dir)?,
    };
    let Some(source) = source(&dir)? else {
        bail!("no volume is mounted on {}", dir.display());
    };
    let flags = if options.lazy { libc::MNT_DETACH } else { 0 }
        | if options.force { libc::MNT_FORCE } else { 0 };
    match take_down(&dir, flags) {
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => bail!(
            "{} is in use: a process has a file open there or works in it (-l takes it out of sight \
             now, and it is served until the last file is closed)",
            dir.display()
        ),
        result => result.with_context(|| format!("cannot unmount {}", dir.display()))?,
    }
    if !options.lazy && !is_over(&source)? {
        eprintln!(
            "{} is unmounted; the volume on {} is still in use, which it is if it is served to remote clients, too",
            dir.display(),
            source.display()
        );
    }
    if options.verbose {
        println!("{} unmounted from {}", source.display(), dir.display());
    }
    Ok(())
}

/// Waits until nobody has the devices of a volume open any more, or it is mounted all the same: it was bound to another place,
/// too, or somebody has mounted it again.
fn is_over(source: &Path) -> Result<bool> {
    let devices = devices::from_spec(source);
    let is_open = |device: &PathBuf| {
        // Or it is not to be opened by whoever calls this.
        let opened = FileDevice::open_read_only(device);
        matches!(opened, Err(DeviceOpenError::InUse { .. }))
    };
    let start = Instant::now();
    loop {
        let mounted = mounts()?.iter().any(|mount| mount.source == source);
        if mounted || !devices.iter().any(is_open) {
            return Ok(true);
        }
        if start.elapsed() > PATIENCE {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Source of the last mount of a volume on `dir`, as the mount table has it.
pub(super) fn source(dir: &Path) -> Result<Option<PathBuf>> {
    let mut mounts = mounts()?.into_iter();
    let last = mounts.rfind(|mount| mount.dir == dir);
    Ok(last.map(|mount| mount.source))
}

/// A line of the mount table.
pub(super) struct Mount {
    /// Where.
    pub(super) dir: PathBuf,
    /// Devices of the volume; one of them, if the mount is on a loop device.
    pub(super) source: PathBuf,
}

/// Mounts of volumes, in the order of the mount table.
pub(super) fn mounts() -> Result<Vec<Mount>> {
    let table = std::fs::read(MOUNT_TABLE)
        .with_context(|| format!("cannot read the mount table {MOUNT_TABLE}"))?;
    let path = |field: &[u8]| PathBuf::from(OsString::from_vec(unescape(field)));
    let lines = table.split(|&byte| byte == b'\n');
    let mounts = lines.filter_map(|line| {
        let fields: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
        let dash = fields.iter().position(|field| *field == b"-")?;
        let source = path(fields.get(dash + 2)?);
        let source = match *fields.get(dash + 1)? {
            TYPE => source,
            BLOCK_TYPE => behind_loop(&source).unwrap_or(source),
            _ => return None,
        };
        let dir = path(fields.get(4)?);
        Some(Mount { dir, source })
    });
    Ok(mounts.collect())
}

/// What a loop device shows.
fn behind_loop(device: &Path) -> Option<PathBuf> {
    let known = Path::new("/sys/block").join(device.file_name()?);
    let mut shown = std::fs::read(known.join("loop/backing_file")).ok()?;
    shown.pop_if(|last| *last == b'\n');
    Some(PathBuf::from(OsString::from_vec(shown)))
}

/// A field of the mount table, which has blanks and backslashes in octal.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, behind)) = rest.split_first() {
        let octal = behind.get(..3).filter(|_| byte == b'\\');
        let octal = octal.and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &behind[3..];
            }
            None => {
                bytes.push(byte);
                rest = behind;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_the_mount_table() {
        assert_eq!(unescape(b"/a\\040b\\134c\\"), b"/a b\\c\\");
        assert_eq!(unescape(b"/plain"), b"/plain");
        assert!(source(Path::new("/proc")).unwrap().is_none());
    }
}
