//! Other mount namespaces, as containers have them. Alone in its program: a new one has copies of the mounts of all tests.

use std::fs;
use std::io::Read;
use std::process::{Command, Stdio};

use crate::common::{Image, can_mount, can_serve, good, skip, tool};

/// A container that was started while a volume was mounted has a copy of the mount, which no unmounting here takes away. A target
/// that is told to end does so all the same, in order (I1).
#[test]
fn a_copy_of_the_mount_holds_up_no_end() {
    if !can_serve() || !can_mount() {
        return;
    }
    // SAFETY: the call has no arguments and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return skip("a mount namespace needs root");
    }
    let Some(unshare) = tool("unshare") else {
        return;
    };
    let image = Image::new("64MiB");
    let dir = image.beside("mnt");
    fs::create_dir(&dir).unwrap();
    let target = image.serve(&["--mount", dir.to_str().unwrap()]);
    fs::write(dir.join("file"), b"content").unwrap();
    let mut container = Command::new(unshare)
        .args(["--mount", "--propagation", "private"])
        .args(["sh", "-c", "echo up; exec sleep 600"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = container.stdout.as_mut().unwrap();
    output.read_exact(&mut [0; 3]).unwrap();
    let ended = std::panic::catch_unwind(|| target.stop());
    container.kill().unwrap();
    container.wait().unwrap();
    assert!(ended.unwrap().success());
    assert!(fs::read_dir(&dir).unwrap().next().is_none(), "mounted");
    let report = good(&["fsck", image.path().to_str().unwrap()]);
    assert!(report.contains("0 problems"), "{report}");
    let target = image.serve(&["--mount", dir.to_str().unwrap()]);
    assert_eq!(fs::read(dir.join("file")).unwrap(), b"content");
    assert!(target.stop().success());
}
