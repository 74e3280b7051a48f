//! Mounting as mount(8), fstab and people do it: `mount.contigfs` and its options, and every way in which a mount ends.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::common::{FLASHNET, Image, bad, can_mount, can_serve, good, skip};

/// Whether this process may mount with mount(2); if not, the test has been skipped.
fn can_mount_as_root() -> bool {
    // SAFETY: no arguments.
    if unsafe { libc::geteuid() } != 0 {
        skip("umount(8) needs root");
        return false;
    }
    can_serve() && can_mount()
}

/// An image, a directory for its mount, and links to the program; nothing is mounted when it is dropped.
struct Place {
    image: Image,
    dir: PathBuf,
}

impl Place {
    fn new() -> Self {
        let image = Image::new("64MiB");
        let dir = image.beside("mnt");
        fs::create_dir(&dir).unwrap();
        for name in [
            "mount.contigfs",
            "mount.fuse.contigfs",
            "umount.fuse.contigfs",
            "mount.fuseblk.contigfs",
            "umount.fuseblk.contigfs",
            "fsck.contigfs",
        ] {
            symlink(FLASHNET, image.beside(name)).unwrap();
        }
        Self { image, dir }
    }

    fn call(&self, name: &str, arguments: &[&str]) -> Output {
        let mut command = Command::new(self.image.beside(name));
        command.args(arguments).stdin(Stdio::null());
        command.output().unwrap()
    }

    /// Mounts with options.
    fn try_mount(&self, options: &str) -> Output {
        let (image, dir) = (self.image.path(), &self.dir);
        let arguments = [image.to_str().unwrap(), dir.to_str().unwrap(), "-o"];
        self.call("mount.contigfs", &[&arguments[..], &[options]].concat())
    }

    fn mount(&self, options: &str) {
        let output = self.try_mount(options);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {errors}", output.status);
        assert_eq!(errors, "");
    }

    /// Exit status and message of a mount that must fail.
    fn mount_fails(&self, options: &str) -> (i32, String) {
        let output = self.try_mount(options);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code().unwrap(), errors)
    }

    /// Unmounts, and returns when the volume is closed.
    fn unmount(&self) {
        let output = free(|| self.call("umount.fuse.contigfs", &[self.dir.to_str().unwrap()]));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && errors.is_empty(), "{errors}");
    }

    /// Checks the volume, which must have been closed in order.
    fn assert_clean(&self) {
        let output = self.call("fsck.contigfs", &[self.image.path().to_str().unwrap()]);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}");
        assert!(!text.contains("had not been shut down"), "{text}");
    }

    /// Type, source and options of the mount, from the mount table.
    fn entry(&self) -> Option<(String, String, String)> {
        let table = fs::read_to_string("/proc/self/mounts").unwrap();
        let line = table.lines().rfind(|line| {
            let mut fields = line.split(' ');
            fields.nth(1) == self.dir.to_str()
        })?;
        let fields: Vec<&str> = line.split(' ').collect();
        Some((fields[2].into(), fields[0].into(), fields[3].into()))
    }

    /// The process that serves the mount.
    fn server(&self) -> Option<u32> {
        let image = self.image.path();
        let mut processes = fs::read_dir("/proc").unwrap().filter_map(|entry| {
            let pid: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            let mut words = line.split(|&byte| byte == 0);
            words
                .any(|word| word == image.to_str().unwrap().as_bytes())
                .then_some(pid)
        });
        processes.next()
    }

    fn signal(&self, signal: i32) {
        let pid = self.server().expect("a target runs");
        // SAFETY: sends a signal.
        assert_eq!(unsafe { libc::kill(pid as i32, signal) }, 0);
    }

    fn wait_for_end(&self) {
        let start = Instant::now();
        while self.server().is_some() {
            assert!(start.elapsed() < Duration::from_secs(60), "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(pid) = self.server() {
            // SAFETY: sends a signal.
            unsafe { libc::kill(pid as i32, libc::SIGKILL) };
        }
        while self.entry().is_some() && tools::target::detach(&self.dir).is_ok() {}
    }
}

/// How an attempt to unmount ends that finds nobody in its way. A child of another test has what this process had open, until it has
/// become another program, which is soon.
fn free(attempt: impl Fn() -> Output) -> Output {
    let start = Instant::now();
    loop {
        let output = attempt();
        let errors = String::from_utf8_lossy(&output.stderr);
        let is_busy = errors.contains("busy") || errors.contains("is in use");
        if output.status.success() || !is_busy || start.elapsed() > Duration::from_secs(60) {
            return output;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn umount(arguments: &[&str], dir: &Path) {
    let output = free(|| {
        let umount = Command::new("umount").args(arguments).arg(dir).output();
        umount.unwrap()
    });
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
}

/// All devices but one may be named by options: systemd takes the first field of an entry of fstab for one device, and waits for it.
#[test]
fn devices_by_options() {
    if !can_mount_as_root() {
        return;
    }
    let place = Place::new();
    let (first, second) = (place.image.path(), place.image.beside("second.img"));
    let (first, second) = (first.to_str().unwrap(), second.to_str().unwrap());
    good(&["mkfs", "--force", "--size", "64MiB", first, second]);
    let (status, said) = place.mount_fails("noatime");
    assert_eq!(status, 32);
    assert!(said.contains("missing"), "{said}");
    place.mount(&format!("noatime,device={second},nofail"));
    fs::write(place.dir.join("file"), b"content").unwrap();
    let (_, source, _) = place.entry().expect("it is mounted");
    assert_eq!(source, format!("{first},{second}"));
    place.unmount();
    let list = format!("{first},{second}");
    let checked = place.call("fsck.contigfs", &[&list]);
    assert!(checked.status.success());
}

/// The mount is there when the command returns; umount(8) from outside ends the target, and everything is in order.
#[test]
fn mount_and_umount() {
    if !can_mount_as_root() {
        return;
    }
    let place = Place::new();
    place.mount("defaults,nofail,_netdev,x-systemd.automount,pool=8MiB");
    fs::write(place.dir.join("file"), b"content").unwrap();
    let (kind, source, options) = place.entry().expect("it is mounted");
    assert_eq!(kind, "fuse.contigfs");
    assert_eq!(Path::new(&source), place.image.path());
    let has = |wanted: &str| options.split(',').any(|option| option == wanted);
    assert!(has("rw") && has("relatime") && has("default_permissions"));
    // Nothing is offered to the network unless asked for, so several volumes can be mounted.
    let second = Place::new();
    second.mount("ro");
    second.unmount();

    // What was bound to another place is unmounted there, and nothing is waited for.
    let bound = place.image.beside("bound");
    fs::create_dir(&bound).unwrap();
    let done = Command::new("mount")
        .arg("--bind")
        .args([&place.dir, &bound])
        .status();
    assert!(done.unwrap().success());
    let output = free(|| place.call("umount.fuse.contigfs", &[bound.to_str().unwrap()]));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{errors}");
    assert_eq!(fs::read(place.dir.join("file")).unwrap(), b"content");
    assert!(fs::read_dir(&bound).unwrap().next().is_none());

    umount(&["-i"], &place.dir);
    place.wait_for_end();
    place.assert_clean();
    place.mount("");
    assert_eq!(fs::read(place.dir.join("file")).unwrap(), b"content");
    // The helper waits for the end of the target, so that the volume can be used at once.
    place.unmount();
    place.assert_clean();
    assert!(place.entry().is_none());
}

/// umount(8) waits for the end of the target as its helper does: told the whole path of a directory it looks for no helper by
/// itself, so the mount tells it of one. It is told once, whatever became of the target before, and no longer than there is the mount.
#[test]
fn umount_is_told_of_its_helper() {
    if !can_mount_as_root() {
        return;
    }
    let place = Place::new();
    let table = place.image.beside("utab");
    let call = |name: &str, arguments: &[&Path]| {
        let mut command = Command::new(place.image.beside(name));
        command.env("LIBMOUNT_UTAB", &table).args(arguments);
        command.stdin(Stdio::null()).output().unwrap()
    };
    let told = || fs::read_to_string(&table).unwrap_or_default();
    let (image, dir) = (place.image.path(), place.dir.as_path());
    for (options, kind) in [("rw", "fuse.contigfs"), ("syncfs", "fuseblk.contigfs")] {
        let mount = || {
            let options = [Path::new("-o"), Path::new(options)];
            let output = call("mount.contigfs", &[&image, dir, options[0], options[1]]);
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && errors.is_empty(), "{errors}");
            let text = told();
            let helper = format!(" OPTS=uhelper={kind}\n");
            assert!(
                text.ends_with(&helper) && text.lines().count() == 1,
                "{text}"
            );
            let target = format!(" TARGET={} ", dir.canonicalize().unwrap().display());
            assert!(text.contains(&target), "{text}");
        };
        mount();
        place.signal(libc::SIGKILL);
        place.wait_for_end();
        mount();
        let name = format!("umount.{kind}");
        let output = free(|| call(&name, &[dir]));
        assert!(output.status.success(), "{output:?}");
        assert_eq!(told(), "");
    }
}

/// What somebody has mounted over a volume is not taken away with it: neither by the command, which refuses, nor by the target's end,
/// which leaves a dead mount beneath that the next target removes.
#[test]
fn what_covers_a_mount_stays() {
    if !can_mount_as_root() {
        return;
    }
    let place = Place::new();
    place.mount("");
    fs::write(place.dir.join("file"), b"content").unwrap();
    let cover = || {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "cover"]).arg(&place.dir);
        assert!(mount.status().unwrap().success());
        fs::write(place.dir.join("other"), b"others'").unwrap();
    };
    let is_there = || fs::read(place.dir.join("other")).is_ok_and(|found| found == b"others'");
    cover();
    let output = place.call("umount.fuse.contigfs", &[place.dir.to_str().unwrap()]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && errors.contains("covered"),
        "{errors}"
    );
    assert!(is_there());
    // Nor does another target end this one, only to find no place to mount.
    let server = place.server();
    let mut replacement = Command::new(env!("CARGO_BIN_EXE_flashnet"));
    replacement.args(["serve", "--replace", "--mount"]);
    let replacement = replacement.arg(&place.dir).arg(place.image.path());
    let output = replacement.stdin(Stdio::null()).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && errors.contains("(tmpfs)"),
        "{errors}"
    );
    assert!(is_there() && place.server() == server);
    place.signal(libc::SIGTERM);
    place.wait_for_end();
    assert!(is_there());
    umount(&[], &place.dir);
    place.mount("");
    assert_eq!(fs::read(place.dir.join("file")).unwrap(), b"content");
    place.unmount();
    place.assert_clean();
}

/// With `syncfs` a mount is on a loop device that shows the volume, and `sync` is enough: no byte is lost by a crash although
/// nobody has called fsync. Such a mount ends, and is found by the commands, as any other.
#[test]
fn sync_is_heard() {
    if !can_mount_as_root() {
        return;
    }
    let place = Place::new();
    let umount_fuseblk = || {
        let output = place.call("umount.fuseblk.contigfs", &[place.dir.to_str().unwrap()]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && errors.is_empty(), "{errors}");
        place.assert_clean();
    };
    place.mount("syncfs");
    let (kind, source, options) = place.entry().expect("it is mounted");
    assert_eq!(kind, "fuseblk.contigfs");
    let losetup = Command::new("losetup").arg(&source).output().unwrap();
    let shown = String::from_utf8_lossy(&losetup.stdout).into_owned();
    assert!(
        shown.contains(place.image.path().to_str().unwrap()),
        "{shown}"
    );
    fs::write(place.dir.join("file"), vec![7; 3 << 20]).unwrap();
    let synced = Command::new("sync").arg("-f").arg(&place.dir).status();
    assert!(synced.unwrap().success());
    place.signal(libc::SIGKILL);
    place.wait_for_end();

    place.mount("syncfs");
    assert!(fs::read(place.dir.join("file")).unwrap() == vec![7; 3 << 20]);
    let now = place.entry().expect("it is mounted").1;
    let merged = format!("{options},remount,nosuid");
    let dir = place.dir.to_str().unwrap();
    let output = place.call("mount.fuseblk.contigfs", &[&now, dir, "-o", &merged]);
    assert!(output.status.success(), "{output:?}");
    assert!(place.entry().unwrap().2.contains("nosuid"));
    // By the volume as well as by the directory.
    let image = place.image.path();
    for named in [image.to_str().unwrap(), dir] {
        let said = good(&["resize", named]);
        assert!(!said.is_empty());
    }
    umount_fuseblk();
    place.mount("syncfs,ro");
    umount_fuseblk();
    // The signal ends it, too.
    place.mount("syncfs");
    fs::write(place.dir.join("file"), b"new").unwrap();
    place.signal(libc::SIGTERM);
    place.wait_for_end();
    assert!(place.entry().is_none());
    place.assert_clean();
}

/// Nothing of whoever has mounted stays in use by the target: neither files nor the directory it was in.
#[test]
fn the_caller_is_left_behind() {
    if !can_mount_as_root() {
        return;
    }
    let place = Place::new();
    let lock = place.image.beside("lock");
    let script = "exec 9>lock; ./mount.contigfs volume.img mnt";
    let status = Command::new("sh")
        .args(["-c", script])
        .current_dir(lock.parent().unwrap())
        .status();
    assert!(status.unwrap().success());
    let process = PathBuf::from(format!("/proc/{}", place.server().unwrap()));
    assert_eq!(fs::read_link(process.join("cwd")).unwrap(), Path::new("/"));
    for entry in fs::read_dir(process.join("fd")).unwrap() {
        // Some are not open any more.
        let file = fs::read_link(entry.unwrap().path());
        assert_ne!(file.ok(), Some(lock.clone()));
    }
    for stream in ["fd/0", "fd/1", "fd/2"] {
        let file = fs::read_link(process.join(stream)).unwrap();
        assert_eq!(file, Path::new("/dev/null"));
    }
    place.unmount();
}

/// What options do, by the mount table and by their effect.
#[test]
fn options_have_effects() {
    if !can_mount_as_root() {
        return;
    }
    let place = Place::new();
    let file = place.dir.join("file");
    place.mount("strictatime");
    fs::write(&file, b"x").unwrap();
    let accessed = || {
        let metadata = fs::metadata(&file).unwrap();
        (metadata.atime(), metadata.atime_nsec())
    };
    // The kernel believes attributes for a second.
    let pause = || std::thread::sleep(Duration::from_millis(1100));
    let read = || File::open(&file).unwrap().read_exact(&mut [0]).unwrap();
    read();
    pause();
    let before = accessed();
    read();
    pause();
    assert!(accessed() > before, "strictatime renews each time");
    place.unmount();

    place.mount("noatime,nosuid,nodev,noexec,nosymfollow,sync,uid=12,gid=34");
    let options = place.entry().unwrap().2;
    for wanted in [
        "noatime",
        "nosuid",
        "nodev",
        "noexec",
        "nosymfollow",
        "sync",
    ] {
        assert!(
            options.split(',').any(|option| option == wanted),
            "{options}"
        );
    }
    let metadata = fs::metadata(&file).unwrap();
    assert_eq!((metadata.uid(), metadata.gid()), (12, 34));
    symlink("file", place.dir.join("link")).unwrap();
    let refused = File::open(place.dir.join("link")).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::ELOOP));
    let before = accessed();
    read();
    pause();
    assert_eq!(accessed(), before);
    // sync: no byte is lost by a crash, although nobody has called fsync.
    File::create(place.dir.join("synced"))
        .unwrap()
        .write_all(b"kept")
        .unwrap();
    place.signal(libc::SIGKILL);
    place.wait_for_end();

    place.mount("ro");
    assert_eq!(fs::read(place.dir.join("synced")).unwrap(), b"kept");
    assert_eq!(fs::metadata(&file).unwrap().uid(), 0, "it is not on media");
    let refused = fs::write(place.dir.join("new"), b"").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    // Nor by the requests that the kernel does not know.
    let dir = place.dir.to_str().unwrap();
    for change in [
        &["quota", "set", dir, "--bytes", "1MiB"][..],
        &["quota", "remove", dir],
        &["resize", dir, "1GiB"],
    ] {
        let said = bad(change);
        assert!(said.contains("read-only"), "{said}");
    }
    assert_eq!(good(&["--json", "quota", "show", "--all", dir]), "[]\n");
    place.unmount();
    place.assert_clean();
}

/// The flags that the kernel keeps can be changed, one by one, in the words of mount(8), which repeats what the mount table
/// has and calls by the type there.
#[test]
fn flags_change_while_mounted() {
    if !can_mount_as_root() {
        return;
    }
    let place = Place::new();
    place.mount("noatime,nodiratime,nosymfollow");
    let file = place.dir.join("file");
    fs::write(&file, b"before").unwrap();
    let remount = |options: &str| {
        let (_, source, now) = place.entry().expect("it is mounted");
        let merged = format!("{now},remount,{options}");
        place.call(
            "mount.fuse.contigfs",
            &[&source, place.dir.to_str().unwrap(), "-o", &merged],
        )
    };
    let has = |wanted: &str| {
        let (_, _, options) = place.entry().expect("it is mounted");
        options.split(',').any(|option| option == wanted)
    };
    assert!(remount("nosuid,ro").status.success());
    assert!(has("ro") && has("nosuid") && has("noatime") && !has("nodev"));
    let error = fs::write(&file, b"refused").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EROFS));
    assert_eq!(fs::read(&file).unwrap(), b"before");
    assert!(remount("rw").status.success());
    assert!(has("rw") && has("nosuid") && has("noatime"));
    fs::write(&file, b"after").unwrap();
    assert!(remount("suid").status.success());
    assert!(!has("nosuid"));
    // The target would not know of it.
    let refused = remount("relatime");
    let message = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(32));
    assert!(message.contains("mount it again"), "{message}");
    assert_eq!(remount("diratime").status.code(), Some(32));
    assert!(has("noatime") && has("nodiratime") && has("nosymfollow"));
    assert!(remount("symfollow").status.success());
    assert!(!has("nosymfollow") && has("nodiratime"));
    place.unmount();
    place.assert_clean();
}

/// Mistakes have the exit status of mount(8) and a message that names them; nothing stays behind.
#[test]
fn mistakes() {
    if !can_mount_as_root() {
        return;
    }
    let place = Place::new();
    let (status, message) = place.mount_fails("ro,nonsense");
    assert!(status == 1 && message.contains("\"nonsense\""), "{message}");
    let (status, message) = place.mount_fails("remount,ro");
    assert!(
        status == 32 && message.contains("no volume is mounted"),
        "{message}"
    );
    let (status, message) = place.mount_fails("pool=1KiB");
    assert!(status == 32 && message.contains("1MiB"), "{message}");
    let (status, message) = place.mount_fails("listen=0.0.0.0:0");
    assert!(status == 32 && message.contains("insecure"), "{message}");
    assert_eq!(
        place.call("mount.contigfs", &["one"]).status.code(),
        Some(1)
    );
    let missing = place.image.beside("missing.img");
    let output = place.call(
        "mount.contigfs",
        &[missing.to_str().unwrap(), place.dir.to_str().unwrap()],
    );
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(32));
    assert!(message.contains("missing.img"), "{message}");
    let nowhere = place.image.beside("nowhere");
    let image = place.image.path();
    let output = place.call(
        "mount.contigfs",
        &[image.to_str().unwrap(), nowhere.to_str().unwrap()],
    );
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(32));
    assert!(
        message.contains("nowhere") && message.contains("make it first"),
        "{message}"
    );
    assert!(place.entry().is_none() && place.server().is_none());

    place.mount("");
    let (status, message) = place.mount_fails("");
    assert!(status == 32 && message.contains("in use"), "{message}");
    let busy = File::create(place.dir.join("open")).unwrap();
    let output = place.call("umount.fuse.contigfs", &[place.dir.to_str().unwrap()]);
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && message.contains("in use"),
        "{message}"
    );
    drop(busy);
    let nowhere = place.dir.join("nowhere");
    let said = bad(&["quota", "show", nowhere.to_str().unwrap()]);
    assert!(said.contains("nowhere does not exist"), "{said}");
    place.unmount();
    let output = place.call("fsck.contigfs", &[]);
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.contains("Usage: fsck.contigfs <DEV>"), "{message}");
    let output = place.call("umount.fuse.contigfs", &[place.dir.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(32));
    let message = String::from_utf8_lossy(&output.stderr);
    // Who reads it in a log looks for the program that was called.
    assert!(
        message.starts_with("umount.fuse.contigfs: no volume"),
        "{message}"
    );

    // A boot goes on without a device that may be missing, if all entries of fstab are mounted by one command.
    fs::remove_file(place.image.path()).unwrap();
    let (status, message) = place.mount_fails("noatime");
    assert!(
        status == 32 && message.contains("no such file"),
        "{message}"
    );
    place.mount("noatime,nofail");
    assert!(place.entry().is_none() && place.server().is_none());
}

/// A target that is told to end closes everything in order, with its mount in use or not.
#[test]
fn signals_end_in_order() {
    if !can_mount_as_root() {
        return;
    }
    let place = Place::new();
    place.mount("");
    fs::write(place.dir.join("file"), b"content").unwrap();
    place.signal(libc::SIGTERM);
    place.wait_for_end();
    assert!(place.entry().is_none());
    place.assert_clean();

    place.mount("");
    let mut open = File::open(place.dir.join("file")).unwrap();
    place.signal(libc::SIGTERM);
    place.wait_for_end();
    assert!(place.entry().is_none(), "it is taken away");
    assert!(open.read(&mut [0]).is_err());
    place.assert_clean();
}

/// `umount -l`: out of sight at once, and served until the last file is closed.
#[test]
fn lazy_unmount() {
    if !can_mount_as_root() {
        return;
    }
    let place = Place::new();
    place.mount("");
    let mut open = File::create(place.dir.join("file")).unwrap();
    umount(&["-l"], &place.dir);
    assert!(place.entry().is_none());
    std::thread::sleep(Duration::from_millis(300));
    open.write_all(b"after the unmount").unwrap();
    open.sync_all().unwrap();
    assert!(place.server().is_some());
    drop(open);
    place.wait_for_end();
    place.assert_clean();
    place.mount("ro");
    let content = fs::read(place.dir.join("file")).unwrap();
    assert_eq!(content, b"after the unmount");
    place.unmount();
}

/// A target that was killed leaves a dead mount behind; the next one takes its place, and what was synced is there.
#[test]
fn killed_and_mounted_again() {
    if !can_mount_as_root() {
        return;
    }
    let place = Place::new();
    place.mount("");
    let mut file = File::create(place.dir.join("file")).unwrap();
    file.write_all(b"synced").unwrap();
    file.sync_all().unwrap();
    drop(file);
    place.signal(libc::SIGKILL);
    place.wait_for_end();
    // The latter while the kernel is still busy with the end of the target.
    let dead = fs::metadata(&place.dir).unwrap_err().raw_os_error();
    assert!(
        matches!(dead, Some(libc::ENOTCONN | libc::ECONNABORTED)),
        "{dead:?}"
    );
    let dir = place.dir.to_str().unwrap();
    for asked in [&["quota", "show", dir][..], &["snapshot", "list", dir]] {
        let said = bad(asked);
        assert!(said.contains("has ended without unmounting"), "{said}");
    }
    place.mount("");
    assert_eq!(fs::read(place.dir.join("file")).unwrap(), b"synced");
    place.unmount();
    assert!(place.entry().is_none(), "the dead mount is gone, too");
    place.assert_clean();
    // A dead mount can be unmounted as well.
    place.mount("");
    place.signal(libc::SIGKILL);
    place.wait_for_end();
    place.unmount();
    assert!(place.entry().is_none());
}

/// A mount that is dead is found to be so although the kernel still has the attributes of its root, for whoever asked for
/// them in the last second of the target.
#[test]
fn killed_and_mounted_again_at_once() {
    if !can_mount_as_root() {
        return;
    }
    let place = Place::new();
    place.mount("");
    for _ in 0..3 {
        let _asked = fs::metadata(&place.dir).unwrap();
        place.signal(libc::SIGKILL);
        place.wait_for_end();
        place.mount("");
    }
    place.unmount();
    assert!(place.entry().is_none(), "nothing is left beneath");
}

/// systemd is told when everything is there, and when the end has begun.
#[test]
fn the_service_manager_is_told() {
    if !can_mount_as_root() {
        return;
    }
    let place = Place::new();
    let path = place.image.beside("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let mut target = Command::new(FLASHNET)
        .args(["serve", "-o", "listen=none", "--mount"])
        .args([&place.dir, &place.image.path()])
        .env("NOTIFY_SOCKET", &path)
        .env("FLASHNET_LOG", "warn")
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let hear = |word: &str| {
        let mut bytes = [0; 4096];
        loop {
            let len = match manager.recv(&mut bytes) {
                Ok(len) => len,
                // A machine that was frozen and thawed: waits with a time limit end then (signal(7)).
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => panic!("nothing says {word}: {error}"),
            };
            let text = String::from_utf8_lossy(&bytes[..len]).into_owned();
            if text.lines().any(|line| line == word) {
                return text;
            }
        }
    };
    let text = hear("READY=1");
    assert!(text.contains("STATUS=serving"), "{text}");
    assert!(place.entry().is_some());
    place.signal(libc::SIGTERM);
    hear("STOPPING=1");
    assert!(target.wait().unwrap().success());
}

/// The options also come with `serve` and from its file; a target that serves nothing but a mount ends with it.
#[test]
fn serve_takes_the_same_options() {
    if !can_mount_as_root() {
        return;
    }
    let place = Place::new();
    let config = place.image.beside("target.toml");
    let text = format!(
        "devices = [{:?}]\nmount = {:?}\noptions = \"ro,noatime\"\nlisten = \"none\"\n",
        place.image.path(),
        place.dir
    );
    fs::write(&config, text).unwrap();
    let mut target = Command::new(FLASHNET)
        .args(["serve", "-o", "rw", "--config"])
        .arg(&config)
        .env("FLASHNET_LOG", "warn")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = [0; 8];
    let output = target.stdout.as_mut().unwrap();
    output.read_exact(&mut line).unwrap();
    assert_eq!(&line, b"serving ");
    let options = place.entry().expect("it is mounted").2;
    assert!(
        options.starts_with("rw") && options.contains("noatime"),
        "{options}"
    );
    umount(&["-i"], &place.dir);
    assert!(target.wait().unwrap().success());
    place.assert_clean();
}
