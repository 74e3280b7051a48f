//! Block devices as the devices of a volume, real ones of the kernel: loop devices, with sectors of 512 and of 4,096 bytes, and
//! one whose disk fails while it is served.
//!
//! Defends I1 (what was synced survives kills, whatever order the devices are named in) and I9 (what can not be read is an error,
//! never other bytes) where the device is not a file; and for people: a device has many names, and may be in use.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;
use std::time::Duration;

use crate::common::fault_disk::FaultDisk;
use crate::common::{Target, bad, can_mount, can_serve, good, pattern, skip};
use serde_json::Value;
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

/// A loop device, which goes with it.
struct Loop(PathBuf);

impl Loop {
    /// Of `file`; none if this machine has no loop devices for us.
    fn new(file: &Path, more: &[&str]) -> Option<Self> {
        // SAFETY: no arguments.
        if unsafe { libc::geteuid() } != 0 {
            skip("loop devices need root");
            return None;
        }
        let output = losetup(&[&["--find", "--show"], more, &[file.to_str().unwrap()]].concat());
        if !output.status.success() {
            skip(&format!(
                "no loop device: {}",
                String::from_utf8_lossy(&output.stderr)
            ));
            return None;
        }
        let path = String::from_utf8(output.stdout).unwrap();
        Some(Self(path.trim().into()))
    }

    fn name(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        losetup(&["--detach", self.name()]);
    }
}

fn losetup(arguments: &[&str]) -> Output {
    Command::new("losetup").args(arguments).output().unwrap()
}

/// A file of so many bytes, none of them written.
fn blank(dir: &TempDir, name: &str, bytes: u64) -> PathBuf {
    let path = dir.path().join(name);
    File::create(&path).unwrap().set_len(bytes).unwrap();
    path
}

fn mount_point(dir: &TempDir) -> PathBuf {
    let mount = dir.path().join("mnt");
    fs::create_dir(&mount).unwrap();
    mount
}

fn write(path: &Path, content: &[u8]) {
    let file = File::create(path).unwrap();
    file.write_all_at(content, 0).unwrap();
    file.sync_all().unwrap();
}

fn call<'a>(command: &[&'a str], devices: &[&'a str]) -> Vec<&'a str> {
    [command, devices].concat()
}

#[test]
fn a_volume_of_block_devices() {
    if !can_serve() || !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    // The last does not end where a grain does.
    let files = [24 * MIB, 64 * MIB, 40 * MIB + 1536]
        .iter()
        .enumerate()
        .map(|(n, &bytes)| blank(&dir, &format!("disk{n}"), bytes));
    let files: Vec<PathBuf> = files.collect();
    let options: [&[&str]; 3] = [
        &[],
        &["--sector-size", "4096"],
        &["--direct-io=on", "--sector-size", "512"],
    ];
    let loops: Option<Vec<Loop>> = files
        .iter()
        .zip(options)
        .map(|(file, more)| Loop::new(file, more))
        .collect();
    let Some(loops) = loops else { return };
    let [a, b, c] = [0, 1, 2].map(|n: usize| loops[n].name());
    let link = dir.path().join("by-name");
    symlink(a, &link).unwrap();
    let link = link.to_str().unwrap();

    let made: Value = serde_json::from_str(&good(&["--json", "mkfs", a, b, c])).unwrap();
    assert_eq!(made["device_bytes"], 128 * MIB, "whole grains");
    let said = bad(&["mkfs", b]);
    assert!(said.contains("holds a volume already"), "{said}");
    // By whatever name, it is the same device; and one that is missing is missed.
    let said = bad(&["fsck", a, b, c, link]);
    assert!(said.contains("named twice"), "{said}");
    let said = bad(&["fsck", link, c]);
    assert!(said.contains("missing") && said.contains(b), "{said}");

    let mount = mount_point(&dir);
    let is: Vec<Vec<u8>> = (0..4).map(|n| pattern(5 << 20, n + 1)).collect();
    for (round, order) in [[link, b, c], [c, a, b], [b, c, link], [c, b, a]]
        .iter()
        .enumerate()
    {
        let target = Target::start_on(order, &["--mount", mount.to_str().unwrap()]);
        for (n, is) in is.iter().enumerate().take(round) {
            let found = fs::read(mount.join(format!("file{n}"))).unwrap();
            assert!(found == *is, "file {n} in round {round}");
        }
        // While it is served nobody else gets it: neither our commands nor those of others.
        let used = |arguments: &[&str]| {
            let said = bad(arguments);
            assert!(said.contains("in use"), "{said}");
        };
        used(&["mkfs", "--force", a]);
        used(&["fsck", "-y", a, b, c]);
        used(&["serve", "--listen", "127.0.0.1:0", a, b, c]);
        let mut exclusively = File::options();
        let taken = exclusively.read(true).custom_flags(libc::O_EXCL).open(b);
        assert_eq!(taken.unwrap_err().raw_os_error(), Some(libc::EBUSY));
        // What was overwritten is discarded, as on block devices it is if nothing else is said, and takes no room: the log alone
        // comes past every segment.
        for _ in 0..4 {
            let other = mount.join("other");
            write(&other, &pattern(24 << 20, round as u64 + 9));
            fs::remove_file(&other).unwrap();
        }
        write(&mount.join(format!("file{round}")), &is[round]);
        let room = |file: &PathBuf| fs::metadata(file).unwrap().blocks() * 512;
        let held = || files.iter().map(room).sum::<u64>();
        // One segment after the other, beside whatever else the machine does.
        for _ in 0..200 {
            if held() < 90 * MIB {
                break;
            }
            thread::sleep(Duration::from_millis(100));
        }
        assert!(held() < 90 * MIB, "{} MiB are held", held() / MIB);
        target.kill();
    }
    for command in [&["fsck"][..], &["fsck", "--rebuild"], &["scrub"]] {
        good(&call(command, &[b, link, c]));
    }
}

/// A loop device and the file below it are one volume under two names: while somebody has it by the one, nobody gets it by the
/// other, lest two targets write to it, or a format takes it away from one. Volumes that lie in one file, one behind the other, do
/// not get in each other's way.
#[test]
fn a_loop_device_is_the_file_below_it() {
    if !can_serve() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = blank(&dir, "disk", 96 * MIB);
    let image = file.to_str().unwrap();
    let made = || Some([Loop::new(&file, &[])?, Loop::new(&file, &[])?]);
    let Some(loops) = made() else { return };
    let [one, other] = [loops[0].name(), loops[1].name()];
    good(&["mkfs", image]);
    let refused = |name: &str| {
        for command in [
            &["serve", "--listen", "127.0.0.1:0"][..],
            &["mkfs", "--force"],
            &["fsck", "-y"],
            &["scrub"],
        ] {
            let said = bad(&call(command, &[name]));
            assert!(said.contains("in use"), "{command:?} {name}: {said}");
        }
    };
    let target = Target::start_on(&[image], &[]);
    refused(one);
    assert!(target.stop().success());
    let target = Target::start_on(&[one], &[]);
    refused(image);
    refused(other);
    good(&["mkdir", &target.url("/directory")]);
    assert!(target.stop().success());
    good(&["fsck", image]);
    drop(loops);

    let half = (48 * MIB).to_string();
    let front = Loop::new(&file, &["--sizelimit", &half]);
    let Some(front) = front else { return };
    let Some(back) = Loop::new(&file, &["--offset", &half]) else {
        return;
    };
    good(&["mkfs", "--force", front.name(), back.name()]);
    good(&["fsck", front.name(), back.name()]);
}

/// A disk that fails while its volume is served costs what lies on it: those pages are errors, the others are what they were, new files
/// can be made; and it is known by its name when it is back.
#[test]
fn a_block_device_that_fails() {
    if !can_serve() || !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let files = [1, 2].map(|n: u32| blank(&dir, &format!("disk{n}"), 48 * MIB));
    let mut disk = FaultDisk::new(24 << 20, 1).unwrap();
    let made = || {
        let [b, c] = [Loop::new(&files[0], &[])?, Loop::new(&files[1], &[])?];
        Some([Loop::new(&disk.path(), &["--direct-io=on"])?, b, c])
    };
    let Some(loops) = made() else { return };
    let [failing, b, c] = [0, 1, 2].map(|n: usize| loops[n].name());
    good(&["mkfs", b, c, failing]);
    let mount = mount_point(&dir);
    // A small pool: what is looked for is on the media.
    let more = ["--mount", mount.to_str().unwrap(), "--pool", "4MiB"];
    let target = Target::start_on(&[b, c, failing], &more);
    let is: Vec<Vec<u8>> = (0..24).map(|n| pattern(1 << 20, n + 1)).collect();
    let file = |n: usize| mount.join(format!("file{n}"));
    for (n, is) in is.iter().enumerate() {
        write(&file(n), is);
    }
    disk.cut();
    // Found out by the writes that meet it, which go elsewhere.
    let new = |n: u64| mount.join(format!("new{n}"));
    for n in 0..8 {
        write(&new(n), &pattern(1 << 20, n + 101));
    }
    let (mut whole, mut gone) = (0, 0);
    for (n, is) in is.iter().enumerate() {
        let opened = File::open(file(n)).unwrap();
        for (at, is) in (0..).step_by(4096).zip(is.chunks(4096)) {
            let mut found = [0; 4096];
            match opened.read_exact_at(&mut found, at) {
                Ok(()) => {
                    assert!(found == is, "file {n} at {at}");
                    whole += 1;
                }
                Err(error) => {
                    assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}");
                    gone += 1;
                }
            }
        }
    }
    // A fifth of the space, by the log's round.
    assert!(whole > 2 * gone && gone > 100, "{whole} pages, {gone} gone");
    assert!(target.stop().success());

    disk.restore();
    let said = bad(&["serve", "--listen", "127.0.0.1:0", b, c, failing]);
    assert!(
        said.contains(failing) && said.contains("out of date"),
        "{said}"
    );
    let target = Target::start_on(&[c, b], &[&more[..], &["--degraded"]].concat());
    for n in 0..8 {
        let found = fs::read(new(n)).unwrap();
        assert!(found == pattern(1 << 20, n + 101), "new file {n}");
    }
    assert!(target.stop().success());
}
