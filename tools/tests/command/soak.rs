//! A short soak: lives that end by force and in order, everything checked, nothing left behind.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::common::{self, FLASHNET, can_mount, can_serve, good};

/// Acknowledged records and files survive every end (I1, I2); a full volume recovers by deleting (I17).
#[test]
fn a_short_soak_finds_nothing() {
    if !can_serve() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().to_str().unwrap();
    let arguments = [
        "soak",
        "--json",
        "--duration=15s",
        "--size=128MiB",
        "--seed=9",
        "--directory",
        directory,
    ];
    let report: serde_json::Value = serde_json::from_str(&good(&arguments)).unwrap();
    assert_eq!(report["ok"], true, "{report}");
    assert_eq!(report["seed"], 9);
    let count = |key: &str| report[key].as_u64().unwrap();
    assert!(count("lives") >= 2, "{report}");
    for key in ["acknowledged", "read", "judged"] {
        assert!(count(key) > 0, "{key}: {report}");
    }
    assert!(count("written") > count("acknowledged"), "{report}");
    if contigfs::fuse::available().is_ok() {
        assert!(count("file_ops") > 0 && count("files") > 0, "{report}");
    }
    assert!(fs::read_dir(scratch.path()).unwrap().next().is_none());
}

/// What the soak has made in `scratch`, once `file` is there on its mount.
fn mounted(scratch: &Path, file: &str) -> PathBuf {
    let start = Instant::now();
    loop {
        let made = fs::read_dir(scratch).unwrap().flatten().next();
        let file = made.map(|made| made.path().join("mnt").join(file));
        if let Some(file) = file.clone().filter(|file| file.exists()) {
            return file;
        }
        let waited = start.elapsed();
        assert!(waited < Duration::from_secs(120), "no {file:?}");
        sleep(Duration::from_millis(10));
    }
}

/// A file of records that is gone when the volume is looked at for the last time is found, and named (I1).
#[test]
fn a_lost_file_of_records_is_found() {
    if !can_serve() || !can_mount() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let soak = Command::new(FLASHNET)
        .args([
            "soak",
            "--json",
            "--duration=10s",
            "--size=64MiB",
            "--seed=1",
        ])
        .arg("--directory")
        .arg(scratch.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    fs::remove_file(mounted(scratch.path(), "records-2")).unwrap();
    let output = soak.wait_with_output().unwrap();
    let says = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{says}");
    assert!(says.contains("/records-2"), "{says}");
    assert!(says.contains("the image is kept in"), "{says}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["ok"], false, "{report}");
}

/// A soak that looks for nothing has found nothing.
#[test]
fn a_soak_of_no_time_proves_nothing() {
    if !can_serve() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().to_str().unwrap();
    let options = [
        "soak",
        "--duration=0s",
        "--size=64MiB",
        "--directory",
        directory,
    ];
    let says = common::bad(&options);
    assert!(says.contains("nothing was done"), "{says}");
}

/// A time that no clock gets to the end of is no reason to panic.
#[test]
fn a_soak_for_ever() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = ["--directory", scratch.path().to_str().unwrap()];
    let options = ["soak", "--duration=400000000000years", "--size=64MiB"];
    let says = common::bad(&[&options[..], &directory].concat());
    assert!(says.contains("--duration"), "{says}");
    assert!(fs::read_dir(scratch.path()).unwrap().next().is_none());
}
