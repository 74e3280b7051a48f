//! Privileges through the kernel: setgid and sticky directories, and what ends setuid and setgid bits, as on other Linux
//! file systems.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{
    DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown,
};
use std::path::{Path, PathBuf};

use support::mounted::Mount;
use support::syscalls::{answer, as_user, errno, mknod, rename};

const GRAINS: u64 = 10_000;
const SOMEBODY: u32 = 1001;
const ELSE: u32 = 1002;
const GROUP: u32 = 2001;

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

/// A setgid directory hands its group down to everything, and the bit to directories; who is not in the group gets no
/// setgid program there.
#[test]
fn setgid_directories() {
    let Some(mut mount) = Mount::new_as_root(GRAINS) else {
        return;
    };
    let dir = mount.path().join("shared");
    fs::create_dir(&dir).unwrap();
    chown(&dir, None, Some(GROUP)).unwrap();
    chmod(&dir, 0o2777);
    let make = |groups: &[u32], suffix: &str| {
        let at = |name: &str| dir.join(format!("{name}-{suffix}"));
        let paths = [at("dir"), at("file"), at("pipe"), at("program")];
        as_user(SOMEBODY, SOMEBODY, groups, || {
            fs::DirBuilder::new().mode(0o755).create(&paths[0]).unwrap();
            File::create(&paths[1]).unwrap();
            mknod(&paths[2], libc::S_IFIFO | 0o644, 0).unwrap();
            let mut options = OpenOptions::new();
            options.write(true).create(true).mode(0o2755);
            options.open(&paths[3]).unwrap();
        });
        for path in &paths {
            let attr = fs::symlink_metadata(path).unwrap();
            assert_eq!((attr.uid(), attr.gid()), (SOMEBODY, GROUP), "{path:?}");
        }
        paths.map(|path| mode(&path))
    };
    assert_eq!(make(&[GROUP], "member"), [0o2755, 0o644, 0o644, 0o2755]);
    assert_eq!(make(&[], "other"), [0o2755, 0o644, 0o644, 0o755]);
    let plain = mount.path().join("plain");
    fs::create_dir(&plain).unwrap();
    chmod(&plain, 0o777);
    as_user(SOMEBODY, GROUP, &[], || {
        fs::create_dir(plain.join("d")).unwrap()
    });
    let attr = fs::metadata(plain.join("d")).unwrap();
    assert_eq!((attr.gid(), attr.mode() & 0o2000), (GROUP, 0));
    mount.unmount();
}

/// In a sticky directory only the owner of a name, the owner of the directory and root take a name away.
#[test]
fn sticky_directories() {
    let Some(mut mount) = Mount::new_as_root(GRAINS) else {
        return;
    };
    let dir = mount.path().join("tmp");
    fs::create_dir(&dir).unwrap();
    chown(&dir, Some(GROUP), None).unwrap();
    chmod(&dir, 0o1777);
    let path = |name: &str| -> PathBuf { dir.join(name) };
    let make = |name: &str| {
        as_user(SOMEBODY, SOMEBODY, &[], || {
            fs::write(dir.join(name), "x").unwrap()
        })
    };
    make("f");
    as_user(ELSE, ELSE, &[], || {
        assert_eq!(errno(fs::remove_file(path("f"))), libc::EPERM);
        assert_eq!(errno(fs::rename(path("f"), path("g"))), libc::EPERM);
        fs::write(path("mine"), "x").unwrap();
        assert_eq!(errno(fs::rename(path("mine"), path("f"))), libc::EPERM);
        let exchanged = rename(&path("mine"), &path("f"), libc::RENAME_EXCHANGE);
        assert_eq!(errno(exchanged), libc::EPERM);
        fs::remove_file(path("mine")).unwrap();
    });
    for uid in [SOMEBODY, GROUP, 0] {
        make("f");
        as_user(uid, uid, &[], || fs::remove_file(path("f")).unwrap());
    }
    chmod(&dir, 0o777);
    make("f");
    as_user(ELSE, ELSE, &[], || fs::remove_file(path("f")).unwrap());
    mount.unmount();
}

fn write(path: &Path) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(b"y", 0).unwrap();
}

fn truncate(path: &Path) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(1).unwrap();
}

fn open_truncating(path: &Path) {
    drop(File::create(path).unwrap());
}

fn allocate(path: &Path) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    // SAFETY: no memory is involved.
    answer(unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, 10_000) }).unwrap();
}

fn punch(path: &Path) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: no memory is involved.
    answer(unsafe { libc::fallocate(file.as_raw_fd(), mode, 0, 4096) }).unwrap();
}

/// Any change of content by somebody without privileges takes setuid, and setgid where the group may execute, or who is not
/// in it makes the change; root takes nothing. A change of owner takes both, whoever makes it, but not from directories.
#[test]
fn setuid_and_setgid_end_with_a_change() {
    let Some(mut mount) = Mount::new_as_root(GRAINS) else {
        return;
    };
    let path = mount.path().join("program");
    type Change = fn(&Path);
    let changes: [(&str, Change); 5] = [
        ("write", write),
        ("truncate", truncate),
        ("open with O_TRUNC", open_truncating),
        ("fallocate", allocate),
        ("punch", punch),
    ];
    for (what, change) in changes {
        let after_by = |uid, groups: &[u32], before| {
            fs::write(&path, "program").unwrap();
            chown(&path, None, Some(GROUP)).unwrap();
            chmod(&path, before);
            as_user(uid, uid, groups, || change(&path));
            mode(&path)
        };
        let after = |uid, before| after_by(uid, &[], before);
        assert_eq!(after(SOMEBODY, 0o6777), 0o777, "{what}");
        assert_eq!(after(SOMEBODY, 0o4666), 0o666, "{what}");
        assert_eq!(after(SOMEBODY, 0o6666), 0o666, "{what}");
        assert_eq!(after_by(SOMEBODY, &[ELSE, GROUP], 0o6666), 0o2666, "{what}");
        assert_eq!(after(0, 0o6777), 0o6777, "{what} by root");
        assert_eq!(after(0, 0o6666), 0o6666, "{what} by root");
    }
    let after_chown = |path: &Path, before| {
        chmod(path, before);
        chown(path, Some(SOMEBODY), Some(GROUP)).unwrap();
        mode(path)
    };
    assert_eq!(after_chown(&path, 0o6755), 0o755);
    let dir = mount.path().join("d");
    fs::create_dir(&dir).unwrap();
    assert_eq!(after_chown(&dir, 0o6755), 0o6755);
    mount.remount();
    assert_eq!(mode(&mount.path().join("program")), 0o755);
    mount.unmount();
}
