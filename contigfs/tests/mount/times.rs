//! Times through the kernel, when reading renews them, and mounts that nothing can be changed through.

use std::fs::{self, File, FileTimes, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use contigfs::AtimePolicy;
use contigfs::fuse::MountOptions;
use support::mounted::Mount;
use support::syscalls::{errno, mknod, remove_xattr, rename, set_xattr, some_names};

const GRAINS: u64 = 10_000;
/// The clock of a file system may be coarse; two times this far apart differ.
const TICK: Duration = Duration::from_millis(20);

fn options(atime: AtimePolicy) -> MountOptions {
    MountOptions {
        atime,
        ..MountOptions::default()
    }
}

/// Every nanosecond, before 1970 and far ahead too, is the same after a remount.
#[test]
fn times_are_exact() {
    let Some(mut mount) = Mount::new(GRAINS) else {
        return;
    };
    let path = mount.path().join("f");
    File::create(&path).unwrap();
    let after = |secs, nanos| UNIX_EPOCH + Duration::new(secs, nanos);
    let before = |secs, nanos| UNIX_EPOCH - Duration::new(secs, nanos);
    for time in [
        after(0, 0),
        after(1, 1),
        after(1_700_000_000, 123_456_789),
        after(1 << 32, 999_999_999),
        after(253_402_300_799, 1),
        before(0, 1),
        before(86_400, 500_000_001),
        before(1 << 31, 0),
    ] {
        let set = FileTimes::new()
            .set_accessed(time)
            .set_modified(time + Duration::from_nanos(1));
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.set_times(set).unwrap();
        drop(file);
        mount.remount();
        let attr = fs::metadata(&path).unwrap();
        assert_eq!(attr.accessed().unwrap(), time);
        assert_eq!(attr.modified().unwrap(), time + Duration::from_nanos(1));
        assert!(
            attr.ctime() > 1_700_000_000,
            "the time of change is that of the call"
        );
    }
    mount.unmount();
}

/// A file, a directory and a link, each older than its last access is said to be.
fn make_old(root: &Path) {
    fs::write(root.join("file"), "content").unwrap();
    fs::create_dir(root.join("dir")).unwrap();
    fs::write(root.join("dir/entry"), "").unwrap();
    symlink("file", root.join("link")).unwrap();
}

/// Reads all three; `keep` asks for the access time to stay.
fn read_all(root: &Path, keep: bool) {
    let flags = if keep { libc::O_NOATIME } else { 0 };
    let mut options = OpenOptions::new();
    let mut file = options
        .read(true)
        .custom_flags(flags)
        .open(root.join("file"))
        .unwrap();
    file.read_to_string(&mut String::new()).unwrap();
    let mut options = OpenOptions::new();
    let dir = options.read(true).custom_flags(flags);
    assert!(!some_names(&dir.open(root.join("dir")).unwrap(), 1000).is_empty());
    if !keep {
        fs::read_link(root.join("link")).unwrap();
    }
}

fn accessed(root: &Path) -> [SystemTime; 3] {
    ["file", "dir", "link"].map(|name| {
        let attr = fs::symlink_metadata(root.join(name)).unwrap();
        attr.accessed().unwrap()
    })
}

/// mount(8): `relatime` renews once after a change, `strictatime` each time, `noatime` and `O_NOATIME` never; with
/// `nodiratime` directories stay behind.
#[test]
fn access_times() {
    let Some(mut mount) = Mount::new(GRAINS) else {
        return;
    };
    let root = mount.path().to_owned();
    make_old(&root);
    let read_after = |keep| {
        std::thread::sleep(TICK);
        let before = accessed(&root);
        read_all(&root, keep);
        // The kernel may believe what it knows for a moment.
        let after = accessed(&root);
        [0, 1, 2].map(|which| after[which] > before[which])
    };
    assert_eq!(read_after(true), [false; 3]);
    let first = read_after(false);
    assert_eq!(first[..2], [true; 2]);
    assert_eq!(read_after(false), [false; 3]);
    std::thread::sleep(TICK);
    OpenOptions::new()
        .append(true)
        .open(root.join("file"))
        .unwrap()
        .write_all(b"more")
        .unwrap();
    assert_eq!(read_after(false), [true, false, false]);
    mount.remount_with(options(AtimePolicy::Strict));
    assert_eq!(read_after(false), [true; 3]);
    assert_eq!(read_after(false)[..2], [true; 2]);
    assert_eq!(read_after(true), [false; 3]);
    mount.remount_with(MountOptions {
        directory_atimes: false,
        ..options(AtimePolicy::Strict)
    });
    assert_eq!(read_after(false)[..2], [true, false]);
    let last = accessed(&root);
    mount.remount_with(options(AtimePolicy::Never));
    assert_eq!(read_after(false), [false; 3]);
    assert_eq!(accessed(&root), last, "the times were kept");
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = table
        .lines()
        .find(|line| line.contains(root.to_str().unwrap()));
    assert!(line.unwrap().contains("noatime"), "{line:?}");
    mount.unmount();
}

/// POSIX, read(2): a read that finds the end of the file renews the time of access, too.
#[test]
fn access_at_the_end() {
    let Some(mut mount) = Mount::new(GRAINS) else {
        return;
    };
    let path = mount.path().join("file");
    fs::write(&path, "content").unwrap();
    std::thread::sleep(TICK);
    let before = fs::metadata(&path).unwrap().accessed().unwrap();
    let file = File::open(&path).unwrap();
    assert_eq!(file.read_at(&mut [0; 10], 7).unwrap(), 0);
    assert!(file.metadata().unwrap().accessed().unwrap() > before);
    drop(file);
    mount.unmount();
}

/// As on ext4: reserving what is there already renews `mtime` and `ctime`, and removing an access control list that is not there
/// renews nothing.
#[test]
fn changes_that_change_nothing() {
    let Some(mut mount) = Mount::new(GRAINS) else {
        return;
    };
    let path = mount.path().join("file");
    fs::write(&path, [1; 9000]).unwrap();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    let changed = || {
        let attr = file.metadata().unwrap();
        (attr.modified().unwrap(), (attr.ctime(), attr.ctime_nsec()))
    };
    let before = changed();
    std::thread::sleep(TICK);
    remove_xattr(&path, "system.posix_acl_access").unwrap();
    assert_eq!(changed(), before);
    // SAFETY: numbers alone.
    assert_eq!(unsafe { libc::fallocate(file.as_raw_fd(), 0, 100, 500) }, 0);
    let after = changed();
    assert!(after.0 > before.0 && after.1 > before.1);
    drop(file);
    mount.unmount();
}

/// Through a read-only mount everything can be read and nothing changed; the volume is not written at all.
#[test]
fn read_only() {
    let Some(mut mount) = Mount::new(GRAINS) else {
        return;
    };
    let root = mount.path().to_owned();
    make_old(&root);
    mount.remount_with(MountOptions {
        read_only: true,
        ..MountOptions::default()
    });
    let calls = mount.store.calls();
    let at = |name: &str| root.join(name);
    let mut write = OpenOptions::new();
    let write = write.write(true);
    let answers = [
        errno(write.open(at("file"))),
        errno(File::create(at("new"))),
        errno(fs::create_dir(at("new"))),
        errno(mknod(&at("new"), libc::S_IFIFO, 0)),
        errno(symlink("x", at("new"))),
        errno(fs::hard_link(at("file"), at("new"))),
        errno(fs::remove_file(at("file"))),
        errno(fs::remove_dir(at("dir"))),
        errno(fs::rename(at("file"), at("new"))),
        errno(rename(&at("file"), &at("dir"), libc::RENAME_EXCHANGE)),
        errno(fs::set_permissions(
            at("file"),
            PermissionsExt::from_mode(0o0),
        )),
        errno(std::os::unix::fs::chown(at("file"), Some(1), None)),
        errno(set_xattr(&at("file"), "user.a", b"", 0)),
    ];
    assert_eq!(answers, [libc::EROFS; 13]);
    let before = accessed(&root);
    std::thread::sleep(TICK);
    read_all(&root, false);
    assert_eq!(accessed(&root), before);
    let mut bytes = [0; 7];
    File::open(at("file"))
        .unwrap()
        .read_exact_at(&mut bytes, 0)
        .unwrap();
    assert_eq!(&bytes, b"content");
    // The one call of the end is the flush of an orderly unmount, which has nothing to write.
    mount.try_unmount().unwrap();
    assert!(mount.store.calls() <= calls + 2, "nothing is written");
    assert_eq!(
        mount
            .fs()
            .attr(mount.fs().lookup_path("/file").unwrap())
            .unwrap()
            .size,
        7
    );
}

/// The earliest and the latest time there is can be set, and everything goes on.
#[test]
fn times_at_the_ends() {
    let Some(mut mount) = Mount::new(GRAINS) else {
        return;
    };
    let path = mount.path().join("f");
    let file = File::create(&path).unwrap();
    let time = |tv_sec, tv_nsec| libc::timespec { tv_sec, tv_nsec };
    let times = [time(i64::MIN, 999_999_999), time(i64::MAX, 1)];
    // SAFETY: `times` is what the call reads.
    let set = unsafe { libc::futimens(file.as_raw_fd(), times.as_ptr()) };
    assert_eq!(set, 0);
    drop(file);
    mount.remount();
    let attr = fs::metadata(&path).unwrap();
    // The kernel takes whole seconds there.
    assert_eq!((attr.atime(), attr.atime_nsec()), (i64::MIN, 0));
    assert_eq!((attr.mtime(), attr.mtime_nsec()), (i64::MAX, 0));
    mount.unmount();
}

/// `statx` shows the birth of a file, which no change changes.
#[test]
fn birth() {
    let Some(mut mount) = Mount::new(GRAINS) else {
        return;
    };
    let path = mount.path().join("f");
    fs::write(&path, "x").unwrap();
    let birth = |path: &Path| fs::metadata(path).unwrap().created().unwrap();
    let born = birth(&path);
    let age = born.elapsed().unwrap();
    assert!(age < Duration::from_secs(60), "{age:?}");
    std::thread::sleep(TICK);
    fs::write(&path, "changed").unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    mount.remount();
    assert_eq!(birth(&path), born);
    std::thread::sleep(TICK);
    fs::write(mount.path().join("g"), "x").unwrap();
    assert!(birth(&mount.path().join("g")) > born);
    mount.unmount();
}
