//! A user who is not root mounts with the help of `fusermount3`: how that begins, ends, and is refused.
//!
//! A machine may keep `/dev/fuse` to root. So all happens in a mount namespace where a device that everybody may open lies over it;
//! nobody else sees that, nor the mounts.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::process::{Command, Stdio};

use crate::common::{FLASHNET, can_mount, can_serve, skip};
use tempfile::TempDir;

/// `nobody` of Linux.
const USER: u32 = 65534;

/// What root does in the namespace before the user comes, and what is left behind when he has gone; the first argument is who may
/// open the device.
const NAMESPACE: &str = r#"
mknod -m $0 fuse c 10 229 && mount --bind fuse /dev/fuse || exit
setpriv --reuid=65534 --regid=65534 --clear-groups sh user.sh
status=$?
for pid in $(pgrep -f "$PWD/volume.img"); do kill -9 $pid; echo "left behind: $pid"; done
exit $status
"#;

/// What he may call, in all scripts.
const USERS: &str = r#"
mount_it() { ./mount.contigfs $PWD/volume.img mnt -o "pool=8MiB$1"; }
served_by() { pgrep -f "$PWD/volume.img"; }
until_it_ends() { timeout 60 sh -c "while pgrep -f $PWD/[v]olume.img; do sleep 0.02; done" >/dev/null; }
set -e
./mkfs.contigfs --size 64MiB volume.img >/dev/null
mkdir mnt
"#;

/// Whether a mount can be tried as an ordinary user; if not, the test has been skipped.
fn can_be_ordinary() -> bool {
    // SAFETY: no arguments.
    if unsafe { libc::geteuid() } != 0 {
        skip("becoming another user needs root");
        return false;
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = |name: &str| std::env::split_paths(&path).any(|dir| dir.join(name).exists());
    for program in ["fusermount3", "setpriv", "unshare", "pgrep"] {
        if !is_there(program) {
            skip(&format!("{program} is not installed"));
            return false;
        }
    }
    can_serve() && can_mount()
}

/// The user has a directory with `volume.img`, the programs, and the empty directory `mnt`, and runs `script` there. What it
/// printed; it must end well, and leave nothing running.
fn as_user(script: &str) -> String {
    as_user_with("666", script)
}

/// The same with a device of this mode.
fn as_user_with(device: &str, script: &str) -> String {
    let dir = TempDir::with_prefix("flashnet-user-").unwrap();
    let beside = |name: &str| dir.path().join(name);
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    // Where it was built he may not be let in.
    fs::copy(FLASHNET, beside("flashnet")).unwrap();
    for name in [
        "mkfs.contigfs",
        "mount.contigfs",
        "umount.fuse.contigfs",
        "fsck.contigfs",
    ] {
        symlink("flashnet", beside(name)).unwrap();
    }
    fs::write(beside("user.sh"), format!("{USERS}{script}")).unwrap();
    chown(dir.path(), Some(USER), Some(USER)).unwrap();
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", NAMESPACE, device])
        .current_dir(dir.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{errors}");
    assert!(!said.contains("left behind"), "{said}\n{errors}");
    said
}

/// He mounts, and owns what he finds; the mount gives nobody a privilege. He unmounts with the
/// program of the system as well as with ours, and the volume has been closed in order.
#[test]
fn mounts_and_unmounts() {
    if !can_be_ordinary() {
        return;
    }
    let said = as_user(
        r#"
mount_it
grep "$PWD/mnt" /proc/self/mounts | cut -d ' ' -f 3,4
echo content >mnt/file; ln mnt/file mnt/link; stat -c '%u %g %h' mnt/file
head -c 9000000 flashnet >large; cp large mnt; cmp large mnt/large && echo same
fusermount3 -u mnt
until_it_ends
./fsck.contigfs volume.img | grep -c ', 0 problems'
mount_it ,ro
cat mnt/link
echo more 2>/dev/null >mnt/file || echo read-only
./umount.fuse.contigfs mnt
served_by || echo ended
"#,
    );
    let lines: Vec<&str> = said.lines().collect();
    let (mount, rest) = lines.split_first().expect("something is printed");
    let (kind, options) = mount.split_once(' ').expect("two fields");
    assert_eq!(kind, "fuse.contigfs");
    let has = |wanted: &str| options.split(',').any(|option| option == wanted);
    for wanted in ["rw", "nosuid", "nodev", "default_permissions"] {
        assert!(has(wanted), "{wanted}: {options}");
    }
    assert!(has("user_id=65534") && !has("allow_other"), "{options}");
    let expected = [
        "65534 65534 2",
        "same",
        "1",
        "content",
        "read-only",
        "ended",
    ];
    assert_eq!(rest, expected);
}

/// A target of his that is told to end takes its mount along; one that is killed leaves a dead mount, in whose place the next one
/// comes, with what was synced.
#[test]
fn ends_and_begins_again() {
    if !can_be_ordinary() {
        return;
    }
    let said = as_user(
        r#"
mount_it
echo synced >mnt/file; sync mnt/file
kill -9 $(served_by)
until_it_ends
cat mnt/file 2>/dev/null || echo dead
mount_it
cat mnt/file
kill -TERM $(served_by)
until_it_ends
grep -q "$PWD/mnt" /proc/self/mounts || echo gone
./fsck.contigfs volume.img | grep -c ', 0 problems'
"#,
    );
    assert_eq!(said, "dead\nsynced\ngone\n1\n");
}

/// What he may not do he is told, with the reason, and nothing stays mounted.
#[test]
fn is_refused_in_words() {
    if !can_be_ordinary() {
        return;
    }
    let said = as_user(
        r#"
refused() { "$@" >said 2>&1 && echo allowed || echo "$? $(cat said)"; }
refused ./mount.contigfs volume.img /usr
refused mount_it ,allow_other
refused mount_it ,syncfs
refused env FUSERMOUNT_PATH=/no/helper ./mount.contigfs volume.img mnt
chmod 400 volume.img
refused mount_it
grep -c "$PWD" /proc/self/mounts || true
served_by || echo nobody
"#,
    );
    let lines: Vec<&str> = said.lines().collect();
    let [refused @ .., mounts, servers] = &lines[..] else {
        panic!("{said}");
    };
    assert_eq!([*mounts, *servers], ["0", "nobody"]);
    let reasons = [
        "no write access to mountpoint /usr",
        "user_allow_other",
        "`syncfs` takes a loop device",
        "/no/helper: No such file",
        "permission denied",
    ];
    assert_eq!(refused.len(), reasons.len(), "{said}");
    for (line, reason) in refused.iter().zip(reasons) {
        // Of mount(8): the mount failed.
        assert!(line.starts_with("32 ") && line.contains(reason), "{line}");
    }
}

/// Where the device is root's alone nobody else can mount, with whatever help: he is told so, and whoever can do without a mount does.
#[test]
fn a_device_that_he_may_not_open() {
    if !can_be_ordinary() {
        return;
    }
    let said = as_user_with(
        "600",
        r#"
echo x >input
TMPDIR=$PWD ./flashnet demo --size 64MiB --input input >said 2>&1 || cat said
grep -c "files go through the library" said
mount_it 2>said || cat said
"#,
    );
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[0], "1", "{said}");
    assert!(lines[1].contains("/dev/fuse can not be opened"), "{said}");
}
