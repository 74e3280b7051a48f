//! The mount, through the kernel: what POSIX programs see.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use contigfs::WriteOptions;
use contigfs::fuse::UnmountError;
use memmap2::{MmapMut, MmapOptions};
use support::mounted::{Mount, tool};
use tempfile::TempDir;

const GRAINS: u64 = 100_000;
/// Seeds of fsx runs with mappings. Its unmapped mappings pile up in the kernel, so several short runs are faster.
const FSX_SEEDS: [u32; 5] = [1, 2, 3, 4, 5];
const FSX_MAPPED_STEPS: u32 = 20_000;
const FSX_PLAIN_STEPS: u32 = 100_000;

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {text}");
    text
}

/// A tree with everything a copy must preserve.
fn make_tree(dir: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    run(Command::new("cp")
        .arg("-a")
        .arg(source)
        .arg(dir.join("src")));
    fs::create_dir(dir.join("many")).unwrap();
    for i in 0..2000 {
        fs::write(dir.join(format!("many/file-{i}")), format!("content {i}")).unwrap();
    }
    fs::set_permissions(dir.join("many/file-7"), PermissionsExt::from_mode(0o4711)).unwrap();
    fs::hard_link(dir.join("many/file-1"), dir.join("hard")).unwrap();
    symlink("many/file-2", dir.join("soft")).unwrap();
    let sparse = File::create(dir.join("sparse")).unwrap();
    sparse.write_all_at(b"end", 50_000_000).unwrap();
    sparse.write_all_at(&vec![7; 300_000], 1_000_000).unwrap();
}

/// I9 through the kernel: a tree copied in is the same after unmount and mount, with modes, times, links and holes.
#[test]
fn a_copied_tree_survives_a_remount() {
    let Some(mut mount) = Mount::new(GRAINS) else {
        return;
    };
    let original = TempDir::new().unwrap();
    make_tree(original.path());
    let copy = mount.path().join("copy");
    run(Command::new("cp").arg("-a").arg(original.path()).arg(&copy));
    mount.remount();
    run(Command::new("diff")
        .arg("-r")
        .arg(original.path())
        .arg(&copy));
    let listing = |dir: &Path| {
        run(Command::new("find")
            .current_dir(dir)
            .args([".", "-printf", "%p %m %s %T@ %n %y %l\n"]))
        .lines()
        .filter(|line| !line.contains(" d ") && !line.ends_with(" d"))
        .map(str::to_owned)
        .collect::<std::collections::BTreeSet<_>>()
    };
    let strip_dir_sizes = |listing: std::collections::BTreeSet<String>| {
        listing
            .into_iter()
            .filter(|line| line.split(' ').nth(5) != Some("d"))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        strip_dir_sizes(listing(original.path())),
        strip_dir_sizes(listing(&copy))
    );
    let sparse = fs::metadata(copy.join("sparse")).unwrap();
    assert!(
        sparse.blocks() * 512 < 1_000_000,
        "holes stay holes: {} blocks",
        sparse.blocks()
    );
    run(Command::new("rm").arg("-rf").arg(&copy));
    assert_eq!(fs::read_dir(mount.path()).unwrap().count(), 0);
    mount.unmount();
}

/// A shared mapping writes to the file and sees writes to it, of the kernel and, after `invalidate`, of others.
#[test]
fn shared_and_private_mappings() {
    let Some(mut mount) = Mount::new(GRAINS) else {
        return;
    };
    let path = mount.path().join("mapped");
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .unwrap();
    file.set_len(10_000).unwrap();
    // SAFETY: the file is used by this test alone, and is not truncated while mapped.
    let mut shared = unsafe { MmapMut::map_mut(&file) }.unwrap();
    shared[5000..5005].copy_from_slice(b"hello");
    shared.flush().unwrap();
    let mut buf = [0; 5];
    file.read_exact_at(&mut buf, 5000).unwrap();
    assert_eq!(&buf, b"hello");
    file.write_all_at(b"HELLO", 5000).unwrap();
    assert_eq!(&shared[5000..5005], b"HELLO");
    // Behind the kernel's back, as a remote peer would.
    let ino = mount.fs().lookup_path("/mapped").unwrap();
    mount
        .fs()
        .write(ino, 5000, b"peer!", WriteOptions::default())
        .unwrap();
    mount.mounted().invalidate(ino, 4096, 4096).unwrap();
    assert_eq!(&shared[5000..5005], b"peer!");
    // SAFETY: as above.
    let mut private = unsafe { MmapOptions::new().map_copy(&file) }.unwrap();
    private[0..4].copy_from_slice(b"mine");
    assert_eq!(&shared[0..4], [0; 4]);
    // A mapping outlives name and descriptor.
    fs::remove_file(&path).unwrap();
    drop(file);
    shared[9000] = 1;
    shared.flush().unwrap();
    drop((shared, private));
    mount.unmount();
}

/// What `fsync` and `O_DSYNC` promised is there after a power cut; a plain write may be lost.
#[test]
fn synced_data_survive_a_power_cut() {
    let Some(mount) = Mount::new(GRAINS) else {
        return;
    };
    let path = mount.path().join("synced");
    let mut file = File::create(&path).unwrap();
    file.write_all(b"synced").unwrap();
    file.sync_all().unwrap();
    let mut log = OpenOptions::new()
        .append(true)
        .create_new(true)
        .custom_flags(0o10000 /* O_DSYNC */)
        .open(mount.path().join("log"))
        .unwrap();
    log.write_all(b"one ").unwrap();
    log.write_all(b"two").unwrap();
    File::create(mount.path().join("plain"))
        .unwrap()
        .write_all(b"plain")
        .unwrap();
    let cut = std::sync::Arc::new(mount.store.after_power_cut(|_| 0));
    let fs = contigfs::Fs::mount(cut).unwrap();
    let content = |path: &str| support::content(&fs, fs.lookup_path(path).unwrap()).unwrap();
    assert_eq!(content("/synced"), b"synced");
    assert_eq!(content("/log"), b"one two");
    assert_eq!(content("/plain"), b"");
}

/// `ENOSPC` is what a program sees on a full volume, and deleting frees all of it; `statfs` follows.
#[test]
fn a_full_volume() {
    let Some(mut mount) = Mount::new(1000) else {
        return;
    };
    let path = mount.path().join("big");
    let mut file = File::create(&path).unwrap();
    let error = loop {
        if let Err(error) = file.write_all(&[1; 100_000]) {
            break error;
        }
    };
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    let df = |mount: &Mount| {
        run(Command::new("stat")
            .args(["-f", "-c", "%f"])
            .arg(mount.path()))
    };
    assert_eq!(df(&mount).trim(), "0");
    let denied = fs::create_dir(mount.path().join("no room"));
    assert_eq!(
        denied.map_err(|error| error.kind()),
        Ok(()),
        "the root's directory grain and table have room"
    );
    fs::remove_dir(mount.path().join("no room")).unwrap();
    drop(file);
    fs::remove_file(&path).unwrap();
    assert_eq!(df(&mount).trim(), "996");
    mount.unmount();
}

/// Holes are found, made and filled.
#[test]
fn holes() {
    let Some(mut mount) = Mount::new(GRAINS) else {
        return;
    };
    let path = mount.path().join("holes");
    fs::write(&path, vec![5; 40_960]).unwrap();
    run(Command::new("fallocate")
        .args(["-p", "-o", "8192", "-l", "12288"])
        .arg(&path));
    let mut bytes = Vec::new();
    File::open(&path).unwrap().read_to_end(&mut bytes).unwrap();
    assert!(bytes[8192..20_480].iter().all(|&byte| byte == 0) && bytes[20_480] == 5);
    assert_eq!(fs::metadata(&path).unwrap().blocks(), 7 * 8);
    run(Command::new("fallocate").args(["-l", "100000"]).arg(&path));
    assert_eq!(fs::metadata(&path).unwrap().len(), 100_000);
    let mut file = File::open(&path).unwrap();
    assert_eq!(file.seek(SeekFrom::End(0)).unwrap(), 100_000);
    drop(file);
    mount.unmount();
}

/// A file or directory that was removed while in use is still there for who uses it.
#[test]
fn removed_but_in_use() {
    let Some(mut mount) = Mount::new(GRAINS) else {
        return;
    };
    let (path, dir) = (mount.path().join("f"), mount.path().join("d"));
    fs::write(&path, b"content").unwrap();
    fs::create_dir(&dir).unwrap();
    let (mut file, handle) = (File::open(&path).unwrap(), File::open(&dir).unwrap());
    fs::remove_file(&path).unwrap();
    fs::remove_dir(&dir).unwrap();
    assert_eq!(
        (
            file.metadata().unwrap().nlink(),
            handle.metadata().unwrap().nlink()
        ),
        (0, 0)
    );
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "content");
    // A new file may not be taken for the old one.
    fs::write(&path, b"new").unwrap();
    assert_ne!(
        fs::metadata(&path).unwrap().ino(),
        file.metadata().unwrap().ino()
    );
    drop((file, handle));
    mount.unmount();
}

/// I18: a mount that goes while the kernel's last words are being taken (nobody waits for the end of a closed file) has gone in order.
#[test]
fn mounts_go_with_files_just_closed() {
    const ROUNDS: usize = 200;
    const FILES: usize = 24;
    let Some(mut mount) = Mount::new(1000) else {
        return;
    };
    for _ in 0..ROUNDS {
        let open = |n: usize| File::create(mount.path().join(n.to_string())).unwrap();
        drop((0..FILES).map(open).collect::<Vec<_>>());
        mount.remount();
    }
    mount.unmount();
}

/// A busy mount says so and stays; a second mount on it is refused with a reason.
#[test]
fn busy_mounts() {
    let Some(mut mount) = Mount::new(GRAINS) else {
        return;
    };
    let file = File::create(mount.path().join("open")).unwrap();
    let (store, fs) = support::fresh(100);
    drop(store);
    let second = contigfs::fuse::mount(std::sync::Arc::new(fs), mount.path(), &Default::default());
    assert!(matches!(second, Err(contigfs::fuse::MountError::Busy(_))));
    assert!(matches!(mount.try_unmount(), Err(UnmountError::Busy(_))));
    drop(file);
    mount.unmount();
}

/// What fsx does most.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fsx {
    /// Reading and writing.
    Plain,
    /// Shared mappings as well.
    Mapped,
    /// Changing size and space, and copying.
    Space,
}

fn fsx(mount: &Mount, seed: u32, steps: u32, what: Fsx) {
    let Some(fsx) = tool("fsx") else { return };
    let config = tempfile::NamedTempFile::new().unwrap();
    let map = if what == Fsx::Mapped { 10 } else { 0 };
    let space = if what == Fsx::Space { 8 } else { 1 };
    let weights = format!(
        "[weights]\nclose_open = 1\nread = 10\nwrite = 10\nmapread = {map}\nmapwrite = {map}\n\
         invalidate = {}\ntruncate = {}\nfsync = 1\nfdatasync = 1\nposix_fallocate = {space}\n\
         punch_hole = {space}\ncopy_file_range = {space}\n",
        map / 10,
        space + 1
    );
    fs::write(config.path(), weights).unwrap();
    let artifacts = TempDir::new().unwrap();
    run(Command::new(fsx)
        .env("RUST_LOG", "error")
        .args(["-N", &steps.to_string(), "-S", &seed.to_string(), "-f"])
        .arg(config.path())
        .arg("-P")
        .arg(artifacts.path())
        .arg(mount.path().join("fsx")));
}

/// I9 as fsx sees it: 100,000 operations with read, write, truncate, fallocate, punch, copy.
#[test]
fn fsx_without_mappings() {
    let Some(mut mount) = Mount::new(GRAINS) else {
        return;
    };
    fsx(&mount, 7, FSX_PLAIN_STEPS, Fsx::Plain);
    mount.unmount();
}

/// The same with shared mappings, 100,000 operations over all seeds.
#[test]
fn fsx_with_mappings() {
    let Some(mut mount) = Mount::new(GRAINS) else {
        return;
    };
    for seed in FSX_SEEDS {
        fsx(&mount, seed, FSX_MAPPED_STEPS, Fsx::Mapped);
    }
    mount.unmount();
}

/// The same with many changes of size and space, on ranges so small that the file moves all the time.
#[test]
fn fsx_with_changes_of_space() {
    let Some(mut mount) = Mount::with(GRAINS, support::tight()) else {
        return;
    };
    fsx(&mount, 8, FSX_PLAIN_STEPS, Fsx::Space);
    mount.unmount();
}

/// Two ordinary users with their groups, as the suite wants them.
fn two_users() -> Option<Vec<[String; 2]>> {
    let passwd = fs::read_to_string("/etc/passwd").ok()?;
    let groups = fs::read_to_string("/etc/group").ok()?;
    let group_of = |gid: &str| {
        let mut groups = groups
            .lines()
            .map(|line| line.split(':').collect::<Vec<_>>());
        groups
            .find(|fields| fields.get(2) == Some(&gid))
            .map(|fields| fields[0].to_owned())
    };
    let users: Vec<_> = passwd
        .lines()
        .map(|line| line.split(':').collect::<Vec<_>>())
        .filter(|fields| fields.len() > 3 && fields[2] != "0" && fields[3] != "0")
        .filter_map(|fields| Some([fields[0].to_owned(), group_of(fields[3])?]))
        .take(2)
        .collect();
    (users.len() == 2).then_some(users)
}

/// A directory to be searched before `path`, where `mount` asks no helper: what remounts here is the kernel, whether the machine
/// has the `mount.fuse` of the package fuse3, which knows only file systems that are a program of their name, or not.
fn mount_without_helpers(path: &OsStr) -> (TempDir, OsString) {
    let dir = TempDir::new().unwrap();
    let script = dir.path().join("mount");
    let path = path.to_str().unwrap();
    fs::write(
        &script,
        format!("#!/bin/sh\nPATH='{path}' exec mount -i \"$@\"\n"),
    )
    .unwrap();
    fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    let searched = format!("{}:{path}", dir.path().display());
    (dir, searched.into())
}

/// The POSIX test suite, whole. Its read-only tests run alone: others of the suite leave descriptors open, which keeps
/// any file system from being remounted.
#[test]
fn pjdfstest() {
    let Some(mut mount) = Mount::new(GRAINS) else {
        return;
    };
    let Some(suite) = tool("pjdfstest") else {
        return;
    };
    if fs::metadata("/proc/self").unwrap().uid() != 0 {
        return support::mounted::skip("pjdfstest needs root");
    }
    let Some(users) = two_users() else {
        return support::mounted::skip("pjdfstest needs two ordinary users");
    };
    fs::set_permissions(mount.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let second = TempDir::new_in("/dev/shm").unwrap();
    let (_kept, searched) = mount_without_helpers(&std::env::var_os("PATH").unwrap());
    for (remount, only) in [(false, None), (true, Some("erofs"))] {
        let config = tempfile::NamedTempFile::new().unwrap();
        let text = format!(
            "[features]\nposix_fallocate = {{}}\nrename_ctime = {{}}\nutimensat = {{}}\nutime_now = {{}}\n\
             [settings]\nnaptime = 0.02\nallow_remount = {remount}\n\
             [dummy_auth]\nentries = {users:?}\n"
        );
        fs::write(config.path(), text).unwrap();
        let output = run(Command::new(&suite)
            .env("PATH", &searched)
            .arg("-c")
            .arg(config.path())
            .arg("-p")
            .arg(mount.path())
            .arg("-s")
            .arg(second.path())
            .args(only));
        assert!(output.contains("Summary: 0 failed"), "{output}");
    }
    mount.unmount();
}
