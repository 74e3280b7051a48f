//! Disks that do not read: what is on them is neither opened nor given up.

use std::fs;

use crate::common::fault_disk::FaultDisk;
use crate::common::{Target, bad, can_mount, can_serve, good};

fn assert_says(message: &str, words: &[&str]) {
    for word in words {
        assert!(message.contains(word), "{message:?} does not say {word:?}");
    }
}

/// A disk that does not answer is no disk without a volume.
#[test]
fn a_disk_that_can_not_be_read() {
    if !can_serve() || !can_mount() {
        return;
    }
    let disk = FaultDisk::new(64 << 20, 1).unwrap();
    let name = disk.path();
    let name = name.to_str().unwrap();
    good(&["mkfs", name]);
    disk.cut();
    let says = ["disk.img", "can not be read", "input/output error"];
    assert_says(&bad(&["serve", "--listen", "127.0.0.1:0", name]), &says);
    assert_says(&bad(&["fsck", name]), &says);
}

/// A disk that reads nothing but its first grains is one that is away: a volume is not opened on it, nor repaired by who has not been
/// told to, because what is not seen would be given up for good. When it reads again everything is there (I1).
#[test]
fn a_disk_that_reads_too_little() {
    if !can_serve() || !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let disk = FaultDisk::new(64 << 20, 1).unwrap();
    let name = disk.path();
    let name = name.to_str().unwrap();
    good(&["mkfs", name]);
    let target = Target::start_on(&[name], &[]);
    let content = dir.path().join("content");
    for n in 0..20 {
        fs::write(&content, format!("content of {n}")).unwrap();
        let to = target.url(&format!("/file{n}"));
        good(&["put", content.to_str().unwrap(), &to]);
    }
    target.kill();
    disk.blind(64 << 10);
    let says = ["disk.img", "does not read", "nothing was changed"];
    assert_says(&bad(&["serve", "--listen", "127.0.0.1:0", name]), &says);
    assert_says(&bad(&["fsck", "-p", name]), &says);
    disk.blind(u64::MAX);
    let target = Target::start_on(&[name], &[]);
    for n in 0..20 {
        let from = target.url(&format!("/file{n}"));
        assert_eq!(good(&["get", &from, "-"]), format!("content of {n}"));
    }
    assert!(target.stop().success());
    good(&["fsck", "-f", name]);
}
