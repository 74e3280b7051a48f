//! The place where a target mounts: what is there before, and how it is left.

use std::path::Path;
use std::{fs, io};

use anyhow::{Context, Result, bail};
use contigfs::fuse::{MountEntry, Mounted, UnmountError, unmount_by_helper};
use nix::errno::Errno;
use nix::sys::statvfs::statvfs;
use tracing::{info, warn};

/// Whether a target can mount on `dir`, as far as that is seen while another one has it.
pub(super) fn check(dir: &Path) -> Result<()> {
    contigfs::fuse::available()?;
    if let Some(other) = seen_on(dir).filter(|seen| !seen.is_contigfs()) {
        bail!(
            "cannot mount on {}: something else is mounted there ({}); unmount that first",
            dir.display(),
            String::from_utf8_lossy(&other.kind)
        );
    }
    match fs::metadata(dir) {
        Ok(found) if !found.is_dir() => {
            bail!("cannot mount on {}: it is no directory", dir.display());
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            bail!(
                "cannot mount on {}: there is no such directory; make it first",
                dir.display()
            );
        }
        // What a killed target left mounted there is removed.
        _ => {}
    }
    Ok(())
}

/// Unmounts; a mount that somebody uses is taken away from under them rather than left behind dead.
pub(super) fn unmount(mut mounted: Mounted) -> Result<()> {
    match mounted.unmount() {
        Err(UnmountError::Busy(dir)) => {
            warn!(dir = %dir.display(), "the mount is in use; it is taken away from its users");
            let taken = mounted.take_away(detach);
            taken.with_context(|| format!("cannot unmount {}", dir.display()))
        }
        Err(error @ UnmountError::Covered(_)) => {
            warn!("{error}; what is beneath it is dead from now on");
            mounted.refuse();
            Ok(())
        }
        Err(error @ UnmountError::Elsewhere(_)) => {
            warn!("{error}; it is taken away from there");
            // It may be there for ever, and what is in memory has to be written.
            mounted.refuse();
            Ok(())
        }
        result => result.context("cannot unmount"),
    }
}

/// What is seen on `dir`, if something is mounted there and the mount table can be read.
fn seen_on(dir: &Path) -> Option<MountEntry> {
    // What is dead can not be looked at.
    let dir = dir.canonicalize().or_else(|_| std::path::absolute(dir));
    MountEntry::on(&dir.ok()?).ok()?
}

/// Removes what a killed target left mounted at `dir`.
pub(super) fn detach_stale(dir: &Path) {
    // Attributes would do for a second more: the kernel has them from somebody who asked before the target died. The second
    // error is that of a request that was on its way then.
    let is_stale = || matches!(statvfs(dir), Err(Errno::ENOTCONN | Errno::ECONNABORTED));
    // Not what others have left.
    let is_ours = seen_on(dir).is_none_or(|seen| seen.is_contigfs());
    if is_ours && is_stale() {
        match detach(dir) {
            Ok(()) => info!(dir = %dir.display(), "removed the mount of a target that has died"),
            Err(error) => warn!(dir = %dir.display(), %error, "cannot remove a dead mount"),
        }
    }
}

/// Unmounts `dir` even if it is in use.
pub fn detach(dir: &Path) -> io::Result<()> {
    take_down(dir, libc::MNT_DETACH)
}

/// Unmounts what somebody else has mounted on `dir`, with `flags` of umount(2), or with the help that ordinary users
/// need.
pub fn take_down(dir: &Path, flags: libc::c_int) -> io::Result<()> {
    let path = std::ffi::CString::new(dir.as_os_str().as_encoded_bytes())?;
    // SAFETY: a NUL-terminated path that lives over the call.
    if unsafe { libc::umount2(path.as_ptr(), flags) } == 0 {
        return Ok(());
    }
    let denied = io::Error::last_os_error();
    if denied.raw_os_error() != Some(libc::EPERM) {
        return Err(denied);
    }
    match unmount_by_helper(dir, flags & libc::MNT_DETACH != 0) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(denied),
        helped => helped,
    }
}
