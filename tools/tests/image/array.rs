//! Several image files as one volume, end to end: made, served, killed, assembled in another order, checked, and served
//! without one of them.
//!
//! Defends I1 (what `put` acknowledged survives a kill, whatever order the devices are named in), and for people: a device
//! that is missing, foreign, named twice or out of date is named.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::common::fault_disk::FaultDisk;
use crate::common::{self, FLASHNET, Target, bad, can_mount, can_serve, good, pattern};
use serde_json::Value;
use tempfile::TempDir;

/// Three images of different sizes that are one volume.
struct Disks {
    dir: TempDir,
}

const SIZES: [u64; 3] = [24 << 20, 64 << 20, 40 << 20];

impl Disks {
    fn new() -> Self {
        let disks = Self {
            dir: tempfile::tempdir().expect("a temporary directory"),
        };
        for (n, size) in SIZES.into_iter().enumerate() {
            let file = File::create(disks.path(n)).unwrap();
            file.set_len(size).unwrap();
        }
        disks
    }

    fn path(&self, n: usize) -> PathBuf {
        self.dir.path().join(format!("disk{n}.img"))
    }

    fn beside(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// `command` with some of them.
    fn with(&self, command: &[&str], which: &[usize]) -> Vec<String> {
        let mut arguments: Vec<String> = command.iter().map(|&word| word.to_owned()).collect();
        arguments.extend(which.iter().map(|&n| self.path(n).display().to_string()));
        arguments
    }

    fn serve(&self, which: &[usize], more: &[&str]) -> Target {
        let paths: Vec<PathBuf> = which.iter().map(|&n| self.path(n)).collect();
        Target::start_on(&paths, more)
    }
}

fn answer(arguments: &[String]) -> Value {
    serde_json::from_str(&good(arguments)).unwrap()
}

#[test]
fn one_volume_of_three_files() {
    if !can_serve() {
        return;
    }
    let disks = Disks::new();
    let made = answer(&disks.with(&["--json", "mkfs"], &[0, 1, 2]));
    assert_eq!(made["device_bytes"], SIZES.iter().sum::<u64>());
    assert_eq!(made["device"].as_array().unwrap().len(), 3);
    let said = bad(&disks.with(&["mkfs"], &[1]));
    assert!(said.contains("holds a volume already"), "{said}");

    // What is there after each kill is what was acknowledged, with the devices in ever other orders.
    let files: Vec<Vec<u8>> = (0..6).map(|n| pattern(5 << 20, n + 1)).collect();
    let local = disks.beside("local");
    let back = disks.beside("back");
    let orders = [[0, 1, 2], [2, 0, 1], [1, 2, 0], [2, 1, 0]];
    for (round, order) in orders.iter().enumerate() {
        let target = disks.serve(order, &["--discard", "always"]);
        for (n, file) in files.iter().enumerate().take(round) {
            let url = target.url(&format!("/file{n}"));
            good(&["get", &url, back.to_str().unwrap()]);
            assert!(
                std::fs::read(&back).unwrap() == *file,
                "file {n} in round {round}"
            );
        }
        std::fs::write(&local, &files[round]).unwrap();
        let url = target.url(&format!("/file{round}"));
        good(&["put", local.to_str().unwrap(), &url]);
        target.kill();
    }
    good(&disks.with(&["fsck"], &[1, 0, 2]));
    good(&disks.with(&["fsck", "--rebuild"], &[0, 2, 1]));
    good(&disks.with(&["scrub"], &[2, 1, 0]));
    let view = answer(&disks.with(&["--json", "inspect"], &[2, 1, 0]));
    let listed = view["devices"].as_array().unwrap();
    let grains: Vec<u64> = listed
        .iter()
        .map(|d| d["grains"].as_u64().unwrap())
        .collect();
    assert_eq!(grains, SIZES.map(|size| size / 4096));
    assert_eq!(view["superblock_copies"].as_array().unwrap().len(), 6);
    assert!(view["created_ns"].as_u64().unwrap() > 0, "{view}");
    // The log is striped: live grains on every device.
    let view = answer(&disks.with(&["--json", "inspect", "--segments"], &[0, 1, 2]));
    let segments = view["segments"].as_array().unwrap();
    for device in listed {
        let first = device["first_segment"].as_u64().unwrap() as usize;
        let count = device["segments"].as_u64().unwrap() as usize;
        let here = segments[first..first + count].iter();
        let live: u64 = here.map(|s| s["live"].as_u64().unwrap()).sum();
        assert!(live > 0, "nothing on {}", device["path"]);
    }
}

#[test]
fn what_does_not_fit_is_named() {
    let disks = Disks::new();
    good(&disks.with(&["mkfs"], &[0, 1, 2]));
    for command in ["fsck", "inspect", "scrub", "serve"] {
        let said = bad(&disks.with(&[command], &[2, 0]));
        assert!(
            said.contains("disk1.img") && said.contains("missing"),
            "{said}"
        );
        assert!(said.contains("UUID"), "{said}");
        let said = bad(&disks.with(&[command], &[2, 0, 1, 0]));
        assert!(said.contains("disk0.img is named twice"), "{said}");
    }
    let other = Disks::new();
    good(&other.with(&["mkfs"], &[0, 1]));
    let mut mixed = disks.with(&["fsck"], &[0, 1]);
    mixed.push(other.path(0).display().to_string());
    let said = bad(&mixed);
    assert!(said.contains("another volume"), "{said}");
    assert!(
        said.contains(&other.path(0).display().to_string()),
        "{said}"
    );
    let copy = disks.beside("copy.img");
    std::fs::copy(disks.path(1), &copy).unwrap();
    let mut twice = disks.with(&["fsck"], &[0, 1, 2]);
    twice.push(copy.display().to_string());
    let said = bad(&twice);
    assert!(
        said.contains("copy.img") && said.contains("disk1.img"),
        "{said}"
    );
    let file = std::fs::OpenOptions::new().write(true).open(disks.path(1));
    file.unwrap().set_len(SIZES[1] / 2).unwrap();
    let said = bad(&disks.with(&["fsck"], &[0, 1, 2]));
    assert!(said.contains("disk1.img has 8192 grains"), "{said}");
    let said = bad(&disks.with(&["mkfs", "--force"], &[0, 0]));
    assert!(said.contains("named twice"), "{said}");
}

/// Without a device, when that is asked for: what lies on the others is there, the rest is an error; and the device is not
/// believed when it comes back.
#[test]
fn going_on_without_a_device() {
    if !can_serve() {
        return;
    }
    let disks = Disks::new();
    good(&disks.with(&["mkfs"], &[0, 1, 2]));
    let local = disks.beside("local");
    let target = disks.serve(&[0, 1, 2], &[]);
    for n in 0..8_u64 {
        std::fs::write(&local, pattern(1 << 20, n + 1)).unwrap();
        let url = target.url(&format!("/file{n}"));
        good(&["put", local.to_str().unwrap(), &url]);
    }
    // What files are found by is written once more, together, and so lies on one device; the root records on another, or on the same.
    good(&["mkdir", &target.url("/directory")]);
    assert!(target.stop().success());
    // Which devices these are is up to the log: one of the three can be done without.
    let mut served = Vec::new();
    for lost in 0..3 {
        let copies = Disks::new();
        for n in 0..3 {
            std::fs::copy(disks.path(n), copies.path(n)).unwrap();
        }
        let rest: Vec<usize> = (0..3).filter(|&n| n != lost).collect();
        let said = bad(&copies.with(&["serve"], &rest));
        assert!(said.contains("--degraded"), "{said}");
        let output = Command::new(FLASHNET)
            .args(copies.with(&["--json", "scrub", "--degraded"], &rest))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let damaged = report["damaged"].as_array().unwrap();
        let grains = report["grains"].as_u64().unwrap();
        assert!(
            !damaged.is_empty() && (damaged.len() as u64) < grains,
            "{report}"
        );
        let path = format!("disk{lost}.img");
        for fault in damaged {
            assert!(fault["device"].as_str().unwrap().contains(&path), "{fault}");
        }
        // That was a look: with it, all is as before.
        let target = copies.serve(&[0, 1, 2], &[]);
        assert!(target.stop().success());
        let Some(found) = read_rest(&copies, &rest) else {
            continue;
        };
        // It was left out once: what is on it is out of date.
        let said = bad(&copies.with(&["serve"], &[0, 1, 2]));
        assert!(
            said.contains(&path) && said.contains("out of date"),
            "{said}"
        );
        served.push(found);
    }
    let some_of_each = |&(whole, torn): &(_, _)| whole > 0 && torn > 0;
    assert!(
        served.iter().any(some_of_each),
        "files that are whole and those that are not: {served:?}"
    );
}

/// Whether the file system can be read without a device is found out before that is marked as failed: a target that can not come
/// up has changed nothing, and with the device everything is there.
#[test]
fn what_can_not_be_done_without() {
    if !can_serve() {
        return;
    }
    let disks = Disks::new();
    good(&disks.with(&["mkfs"], &[0, 1, 2]));
    // The root record is in two grains, which were written together.
    let map = answer(&disks.with(&["--json", "inspect", "--map", "0+2"], &[0, 1, 2]));
    let segments: Vec<_> = map["map"].as_array().unwrap().iter().collect();
    let segment = segments[0]["segment"].as_u64().unwrap();
    assert!(segments.iter().all(|grain| grain["segment"] == segment));
    let all = answer(&disks.with(&["--json", "inspect"], &[0, 1, 2]));
    let begins = |n: usize| all["devices"][n]["first_segment"].as_u64().unwrap();
    let lost = (0..3).rfind(|&n| begins(n) <= segment).unwrap();
    let rest: Vec<usize> = (0..3).filter(|&n| n != lost).collect();
    let mut without = disks.with(&["serve", "--degraded", "--listen"], &[]);
    without.extend(disks.with(&["127.0.0.1:0"], &rest));
    let said = bad(&without);
    let named = said.contains(&format!("disk{lost}.img"));
    assert!(named && said.contains("nothing was written"), "{said}");
    let target = disks.serve(&[0, 1, 2], &[]);
    assert!(target.stop().success());
}

/// `fsck --degraded`: says what is lost with a device and writes nothing; with `-y` what is left becomes a file system again,
/// whatever was lost, the root records too. No file that is there by then reads as anything that it was not: whole, or an error; and
/// when those that miss something are deleted, the volume is whole.
#[test]
fn what_is_left_is_checked_and_repaired() {
    if !can_serve() {
        return;
    }
    let disks = Disks::new();
    good(&disks.with(&["mkfs"], &[0, 1, 2]));
    let target = disks.serve(&[0, 1, 2], &[]);
    let contents: Vec<Vec<u8>> = (0..16).map(|n| pattern(256 << 10, n + 1)).collect();
    let local = disks.beside("local");
    let put = |n: usize| {
        std::fs::write(&local, &contents[n]).unwrap();
        let url = target.url(&format!("/d{}/file{n}", n % 4));
        good(&["put", local.to_str().unwrap(), &url]);
    };
    // So that grains of the table and of directories lie on several devices.
    for n in 0..16 {
        if n < 4 {
            good(&["mkdir", &target.url(&format!("/d{n}"))]);
        }
        put(n);
    }
    assert!(target.stop().success());
    let link = disks.beside("fsck.contigfs");
    std::os::unix::fs::symlink(FLASHNET, &link).unwrap();
    let mut repaired = 0;
    for lost in 0..3 {
        let copies = Disks::new();
        for n in 0..3 {
            std::fs::copy(disks.path(n), copies.path(n)).unwrap();
        }
        let rest: Vec<usize> = (0..3).filter(|&n| n != lost).collect();
        let images = || rest.iter().map(|&n| std::fs::read(copies.path(n)).unwrap());
        let before: Vec<Vec<u8>> = images().collect();
        let said = bad(&copies.with(&["fsck"], &rest));
        assert!(said.contains("fsck --degraded"), "{said}");
        let (looked, _) = report(&copies.with(&["--json", "fsck", "--degraded"], &rest));
        let (scrubbed, _) = report(&copies.with(&["--json", "scrub", "--degraded"], &rest));
        let damaged = scrubbed["damaged"].as_array().unwrap();
        assert_eq!(looked["missing_grains"], damaged.len(), "{looked}");
        let path = disks.path(lost).display().to_string();
        assert_eq!(looked["missing"], serde_json::json!([path]));
        // Each file that misses something is named.
        let text = looked["problems"].to_string();
        for file in damaged.iter().filter_map(|fault| fault["path"].as_str()) {
            assert!(text.contains(&format!("{file}, inode")), "{file}: {text}");
        }
        let names: Vec<String> = copies.with(&[], &rest);
        let called = |options: &[&str]| {
            let mut command = Command::new(&link);
            command.args(options).arg(names.join(","));
            command.stdin(Stdio::null()).output().unwrap().status.code()
        };
        assert_eq!(called(&["-p"]), Some(8));
        assert_eq!(called(&["-n", "--degraded"]), Some(4));
        assert!(images().eq(before), "that was a look");
        good(&copies.with(&["fsck"], &[0, 1, 2]));

        let (first, status) = report(&copies.with(&["--json", "fsck", "-y", "--degraded"], &rest));
        repaired += first["repaired"].as_array().unwrap().len();
        let (second, _) = report(&copies.with(&["--json", "fsck", "-y", "--degraded"], &rest));
        assert_eq!(second["repaired"], serde_json::json!([]), "{first}");
        assert_eq!(second["problems"], first["problems"], "{first}");
        assert_eq!(status, Some(1), "data are lost");
        for problem in second["problems"].as_array().unwrap() {
            let problem = problem.as_str().unwrap();
            assert!(problem.contains("lost with a device"), "{problem}");
        }
        // It was left out: what is on it is out of date.
        let said = bad(&copies.with(&["fsck"], &[0, 1, 2]));
        assert!(said.contains("out of date"), "{said}");

        let target = copies.serve(&rest, &["--degraded"]);
        let back = disks.beside("back");
        let (mut whole, mut torn) = (0, 0);
        for path in files_below(&target, "") {
            let url = target.url(&path);
            let got = common::flashnet(&["get", &url, back.to_str().unwrap()]);
            if !got.status.success() {
                torn += 1;
                good(&["rm", &url]);
                continue;
            }
            whole += 1;
            let content = std::fs::read(&back).unwrap();
            let number = path.rsplit_once("/file").map(|(_, n)| n.parse::<usize>());
            match number {
                Some(n) => assert!(content == contents[n.unwrap()], "{path}"),
                None => assert!(contents.contains(&content), "{path}"),
            }
        }
        assert!(target.stop().success());
        println!("without disk{lost}: {whole} files are whole, {torn} are not: {first}");
        assert!(whole > 0 && torn > 0);
        let (end, status) = report(&copies.with(&["--json", "fsck", "--degraded"], &rest));
        assert_eq!(
            (end["missing_grains"].as_u64(), status),
            (Some(0), Some(0)),
            "{end}"
        );
        assert_eq!(called(&["-p", "--degraded"]), Some(0));
    }
    assert!(repaired > 0, "nothing was lost that files are found by");
}

/// Every file in a directory and below.
fn files_below(target: &Target, dir: &str) -> Vec<String> {
    let url = target.url(&format!("{dir}/"));
    let list: Value = serde_json::from_str(&good(&["--json", "ls", &url])).unwrap();
    let mut files = Vec::new();
    for entry in list["entries"].as_array().unwrap() {
        let path = format!("{dir}/{}", entry["name"].as_str().unwrap());
        match entry["mode"].as_str().unwrap().strip_prefix("40") {
            Some(_) => files.extend(files_below(target, &path)),
            None => files.push(path),
        }
    }
    files
}

/// What a command prints, and how it ends.
fn report(arguments: &[String]) -> (Value, Option<i32>) {
    let output = common::flashnet(arguments);
    let printed = serde_json::from_slice(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr);
    (
        printed.unwrap_or_else(|error| panic!("{error}: {said}")),
        output.status.code(),
    )
}

/// A target that loses the device with the root records goes on, since it knows what they say; it leaves a volume that others can go
/// on with, too, and not one in which nothing is found any more.
#[test]
fn root_records_are_not_lost_with_their_device() {
    if !can_serve() || !can_mount() {
        return;
    }
    let disks: Vec<FaultDisk> = (0..3)
        .map(|n| FaultDisk::new(48 << 20, n).unwrap())
        .collect();
    let paths: Vec<PathBuf> = disks.iter().map(FaultDisk::path).collect();
    let names: Vec<&str> = paths.iter().map(|path| path.to_str().unwrap()).collect();
    let with = |command: &[&'static str]| [command, &names[..]].concat();
    good(&with(&["mkfs"]));
    let inspected = |command: &[&'static str]| -> Value {
        serde_json::from_str(&good(&with(command))).unwrap()
    };
    let map = inspected(&["--json", "inspect", "--map", "0+1"]);
    let segment = map["map"][0]["segment"].as_u64().unwrap();
    let all = inspected(&["--json", "inspect"]);
    let begins = |n: usize| all["devices"][n]["first_segment"].as_u64().unwrap();
    let lost = (0..3).rfind(|&n| begins(n) <= segment).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let local = dir.path().join("local");
    std::fs::write(&local, pattern(1 << 20, 1)).unwrap();
    // With little memory: what is in it is rescued in any case.
    let target = Target::start_on(&names, &["--pool", "4MiB"]);
    let put = |name: &str| common::flashnet(&["put", local.to_str().unwrap(), &target.url(name)]);
    for n in 0..16 {
        assert!(put(&format!("/before{n}")).status.success());
    }
    disks[lost].cut();
    // Writes meet the device, by the log's round.
    let mut tries = 0;
    let is_lost = || good(&with(&["top", "--once"])).contains("is failed");
    while !is_lost() {
        let _ = put("/file");
        tries += 1;
        assert!(tries < 100, "the device is lost by then");
    }
    // Who would not go on without the device ends nobody who does.
    let said = bad(&with(&["serve", "--replace", "--listen", "127.0.0.1:0"]));
    assert!(
        said.contains(names[lost]) && said.contains("--degraded"),
        "{said}"
    );
    good(&["stat", &target.url("/")]);
    assert!(target.stop().success());
    let mut rest = names.clone();
    rest.remove(lost);
    let target = Target::start_on(&rest, &["--degraded"]);
    assert!(target.stop().success());
}

/// What a running target knows of files that are open is not lost with the device that has their records, or their names, either: they
/// are written again while it runs, and whoever goes on without the device finds the files by name, and how large they are (I4).
#[test]
fn records_and_names_are_not_lost_with_their_device() {
    if !can_serve() || !can_mount() {
        return;
    }
    // The first grain of the inode table's hot records, of its cold ones, and of the root directory (contigfs/docs/layout.md).
    for lba in [1_u64 << 26, 1 << 28, 1 << 32] {
        let disks: Vec<FaultDisk> = (0..3)
            .map(|n| FaultDisk::new(48 << 20, n).unwrap())
            .collect();
        let paths: Vec<PathBuf> = disks.iter().map(FaultDisk::path).collect();
        let names: Vec<&str> = paths.iter().map(|path| path.to_str().unwrap()).collect();
        let with = |command: &[&str]| -> Vec<String> {
            let all = command.iter().chain(&names);
            all.map(|&word| word.to_owned()).collect()
        };
        good(&with(&["mkfs"]));
        let dir = tempfile::tempdir().unwrap();
        // With little memory: what lies there only because it was read is rescued in any case.
        let options = ["--mount", dir.path().to_str().unwrap(), "--pool", "4MiB"];
        let at = |n: usize| dir.path().join(format!("file{n}"));
        let target = Target::start_on(&names, &options);
        for n in 0..8 {
            std::fs::write(at(n), pattern(1 << 20, 1)).unwrap();
        }
        assert!(target.stop().success());
        let map = answer(&with(&["--json", "inspect", "--map", &format!("{lba}+1")]));
        let segment = map["map"][0]["segment"].as_u64().unwrap();
        let all = answer(&with(&["--json", "inspect"]));
        let begins = |n: usize| all["devices"][n]["first_segment"].as_u64().unwrap();
        let lost = (0..3).rfind(|&n| begins(n) <= segment).unwrap();
        let target = Target::start_on(&names, &options);
        let open = |n| File::options().write(true).open(at(n)).unwrap();
        let files: Vec<File> = (0..8).map(open).collect();
        let read = |n| std::fs::read(at(n)).unwrap().len();
        assert_eq!((0..8).map(read).sum::<usize>(), 8 << 20);
        disks[lost].cut();
        let mut writes = 0;
        while !good(&with(&["top", "--once"])).contains("is failed") {
            let _ = files[0].write_all_at(&pattern(1 << 20, 1), 0);
            let _ = files[0].sync_data();
            writes += 1;
            assert!(writes < 100, "the device is lost by then");
        }
        drop(files);
        assert!(target.stop().success());
        let mut rest = names.clone();
        rest.remove(lost);
        let target = Target::start_on(&rest, &["--degraded"]);
        for n in 0..8 {
            let said = good(&["--json", "stat", &target.url(&format!("/file{n}"))]);
            assert!(said.contains("1048576"), "{lba:#x}: {said}");
        }
        assert!(target.stop().success());
    }
}

/// Snapshots of a volume that has lost a device: of what lay on it every page is an error, in the snapshot as in the files of now,
/// and never anything else than it was; the rest is there. Snapshots are made and deleted as ever, also over a kill, and what they
/// alone held is given back (I2, I4, I9).
#[test]
fn snapshots_without_a_device() {
    if !can_serve() || !can_mount() {
        return;
    }
    let disks = Disks::new();
    good(&disks.with(&["mkfs"], &[0, 1, 2]));
    let mount = disks.beside("mnt");
    std::fs::create_dir(&mount).unwrap();
    let options = ["--mount", mount.to_str().unwrap()];
    let (then, now): (Vec<_>, Vec<_>) = (0..8)
        .map(|n| (pattern(1 << 20, n + 1), pattern(1 << 19, n + 101)))
        .unzip();
    let target = disks.serve(&[0, 1, 2], &options);
    let file = |n: usize| format!("file{n}");
    let write = |dir: &std::path::Path, n: usize, content: &[u8]| {
        let made = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .open(dir.join(file(n)));
        let made = made.unwrap();
        made.write_all_at(content, 0).unwrap();
        made.sync_all().unwrap();
    };
    (0..8).for_each(|n| write(&mount, n, &then[n]));
    good(&["snapshot", "create", options[1], "before"]);
    (0..8).for_each(|n| write(&mount, n, &now[n]));
    assert!(target.stop().success());

    let mut served = false;
    for lost in 0..3 {
        let copies = Disks::new();
        for n in 0..3 {
            std::fs::copy(disks.path(n), copies.path(n)).unwrap();
        }
        let rest: Vec<String> = (0..3)
            .filter(|&n| n != lost)
            .map(|n| copies.path(n).display().to_string())
            .collect();
        let serve = || {
            let degraded = ["--degraded", "--mount", options[1]];
            let devices = rest.iter().map(String::as_str);
            Target::try_start(&devices.chain(degraded).collect::<Vec<_>>())
        };
        // What files are found by may lie on the device that is lost.
        let Some(target) = serve() else { continue };
        let before = mount.join(".snapshots/before");
        let is = |n: usize| [&now[n][..], &then[n][1 << 19..]].concat();
        let found: Option<Vec<_>> = (0..8)
            .map(|n| {
                let of_now = pages(&mount.join(file(n)), &is(n))?;
                Some((of_now, pages(&before.join(file(n)), &then[n])?))
            })
            .collect();
        let Some(found) = found else {
            assert!(target.stop().success());
            continue;
        };
        let (of_now, of_then): (Vec<_>, Vec<_>) = found.into_iter().unzip();
        for all in [&of_now, &of_then] {
            let (whole, gone) = all.iter().copied().fold((0, 0), add);
            assert!(whole > 0 && gone > 0, "{whole} pages, {gone} are gone");
        }
        let (whole, gone) = of_then.into_iter().fold((0, 0), add);
        // Another one, of this state; and both go.
        write(&mount, 100, &then[0]);
        good(&["snapshot", "create", options[1], "after"]);
        write(&mount, 100, &now[0]);
        let after = mount.join(".snapshots/after");
        assert_eq!(pages(&after.join(file(100)), &then[0]), Some((256, 0)));
        target.kill();
        let target = serve().expect("it came up before");
        let again = (0..8).map(|n| pages(&before.join(file(n)), &then[n]).unwrap());
        assert_eq!(again.fold((0, 0), add), (whole, gone));
        assert_eq!(pages(&after.join(file(100)), &then[0]), Some((256, 0)));
        let free = || nix::sys::statvfs::statvfs(&mount).unwrap().blocks_free();
        let held = free();
        good(&["snapshot", "delete", options[1], "before"]);
        good(&["snapshot", "delete", options[1], "after"]);
        assert!(!before.exists() && !after.exists());
        // At least what `before` alone held of files that are there, half of each of them.
        while free() < held + whole as u64 / 4 {
            std::thread::yield_now();
        }
        target.kill();
        let target = serve().expect("it came up before");
        assert!(!before.exists() && !after.exists());
        assert_eq!(pages(&mount.join(file(100)), &is(0)), Some((256, 0)));
        assert!(target.stop().success());
        println!("without disk{lost}: {whole} pages of the snapshot, {gone} are gone");
        served = true;
    }
    assert!(served, "no target came up without a device");
}

fn add(a: (usize, usize), b: (usize, usize)) -> (usize, usize) {
    (a.0 + b.0, a.1 + b.1)
}

/// How many pages of a file are as they should be, and how many are errors; there is no third kind. None: the file can not be
/// opened.
fn pages(path: &std::path::Path, is: &[u8]) -> Option<(usize, usize)> {
    let file = File::open(path).ok()?;
    let (mut whole, mut gone) = (0, 0);
    for (n, is) in is.chunks(4096).enumerate() {
        let mut found = [0; 4096];
        let at = n as u64 * 4096;
        match std::os::unix::fs::FileExt::read_exact_at(&file, &mut found, at) {
            Ok(()) => {
                assert!(found == is, "page {n} of {}", path.display());
                whole += 1;
            }
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}");
                gone += 1;
            }
        }
    }
    Some((whole, gone))
}

/// How many files can be read, and how many not, if what they are found by is there.
fn read_rest(disks: &Disks, which: &[usize]) -> Option<(usize, usize)> {
    let config = disks.beside("target.toml");
    let paths: Vec<String> = which
        .iter()
        .map(|&n| format!("{:?}", disks.path(n)))
        .collect();
    let text = format!("devices = [{}]\ndegraded = true\n", paths.join(", "));
    std::fs::write(&config, text).unwrap();
    let target = Target::try_start(&["--config", config.to_str().unwrap()])?;
    let back = disks.beside("back");
    let (mut whole, mut torn) = (0, 0);
    for n in 0..8_u64 {
        let url = target.url(&format!("/file{n}"));
        let got = common::flashnet(&["get", &url, back.to_str().unwrap()]);
        if got.status.success() {
            assert!(
                std::fs::read(&back).unwrap() == pattern(1 << 20, n + 1),
                "file {n}"
            );
            whole += 1;
        } else {
            torn += 1;
        }
    }
    Some((whole, torn))
}
