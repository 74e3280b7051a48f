//! `umount`: unmounts a volume, and waits until its target has closed it. umount(2) alone returns before that, and
//! whoever checks or mounts the volume next would find it in use.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use contigfs::fuse::MountEntry;
use ftl::FileDevice;
use ftl::device::DeviceOpenError;

use super::utab;
use crate::cli;
use crate::devices;
use crate::target::take_down;

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
    if !options.no_mtab {
        utab::remove(&dir);
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

/// Source of the volume that is seen on `dir`, as the mount table has it.
///
/// # Errors
/// Also if something else is mounted over a volume there.
pub(super) fn source(dir: &Path) -> Result<Option<PathBuf>> {
    let here = table()?.into_iter().filter(|entry| entry.dir == dir);
    let here: Vec<MountEntry> = here.collect();
    match here.last() {
        Some(seen) if seen.is_contigfs() => Ok(Some(source_of(seen))),
        Some(seen) if here.iter().any(MountEntry::is_contigfs) => bail!(
            "the volume on {} is covered by what was mounted over it ({}): unmount that first",
            dir.display(),
            String::from_utf8_lossy(&seen.kind)
        ),
        _ => Ok(None),
    }
}

/// A mounted volume.
pub(super) struct Mount {
    /// Where.
    pub(super) dir: PathBuf,
    /// Devices of the volume; one of them, if the mount is on a loop device.
    pub(super) source: PathBuf,
}

fn table() -> Result<Vec<MountEntry>> {
    MountEntry::all().context("cannot read the mount table")
}

/// Mounts of volumes, in the order of the mount table.
pub(super) fn mounts() -> Result<Vec<Mount>> {
    let volumes = table()?.into_iter().filter(MountEntry::is_contigfs);
    let mounts = volumes.map(|entry| Mount {
        source: source_of(&entry),
        dir: entry.dir,
    });
    Ok(mounts.collect())
}

fn source_of(entry: &MountEntry) -> PathBuf {
    let behind = match entry.is_on_block_device() {
        true => behind_loop(&entry.source),
        false => None,
    };
    behind.unwrap_or_else(|| entry.source.clone())
}

/// What a loop device shows.
fn behind_loop(device: &Path) -> Option<PathBuf> {
    let known = Path::new("/sys/block").join(device.file_name()?);
    let mut shown = std::fs::read(known.join("loop/backing_file")).ok()?;
    shown.pop_if(|last| *last == b'\n');
    Some(PathBuf::from(OsString::from_vec(shown)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_no_volumes() {
        assert!(source(Path::new("/proc")).unwrap().is_none());
    }
}
