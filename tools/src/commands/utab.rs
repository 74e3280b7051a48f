//! What umount(8) goes by besides the mount table of the kernel. Of a directory that it is told by its whole path it asks
//! statfs(2) for the type, which is `fuse` whatever is behind it, and so does not find the helper that waits for the end of
//! the target; unless its own table has the directory, and the helper with it. mount(8) alone knows how to write there.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};

use contigfs::fuse::MountEntry;

/// Has umount(8) call the helper for the volume on `dir`. Where that can not be, it does not wait.
pub(super) fn enter(dir: &Path) {
    let Ok(dir) = dir.canonicalize() else {
        return;
    };
    let Ok(Some(seen)) = MountEntry::on(&dir) else {
        return;
    };
    if !seen.is_contigfs() {
        return;
    }
    // Of a mount whose target has died.
    remove(&dir);
    let kind = OsStr::from_bytes(&seen.kind);
    let mut helper = OsStr::new("uhelper=").to_owned();
    helper.push(kind);
    call(
        Command::new("mount")
            .args(["--no-canonicalize", "--internal-only", "--fake", "-t"])
            .args([kind, OsStr::new("-o"), &helper])
            .args([&seen.source, &dir]),
    );
}

/// The volume on `dir`, by its canonical path, is unmounted.
pub(super) fn remove(dir: &Path) {
    call(
        Command::new("umount")
            .args(["--no-canonicalize", "--internal-only", "--fake"])
            .arg(dir),
    );
}

/// Only root may.
fn call(command: &mut Command) {
    // SAFETY: no arguments, cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return;
    }
    let silent = command.stdin(Stdio::null()).stdout(Stdio::null());
    let _ = silent.stderr(Stdio::null()).status();
}
