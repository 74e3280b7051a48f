//! `flashnet bench fs` runs, says what it measured, and leaves nothing behind. No time is judged here.

use std::fs;

use crate::common::{self, bad, can_mount, can_serve, flashnet, skip};

/// Every row with tiny sizes; files, mounts and loop devices are gone afterwards.
#[test]
fn every_row_is_measured() {
    if !can_serve() || !can_mount() {
        return;
    }
    // SAFETY: has no arguments and can not fail.
    if unsafe { libc::geteuid() } != 0 {
        skip("comparing with ext4 may need a loop device, hence root");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let arguments = ["--json", "bench", "fs", "--quick", "--seconds", "0.05"];
    let output = flashnet(&[&arguments[..], &["--directory", path]].concat());
    let errors = String::from_utf8_lossy(&output.stderr);
    if ["mkfs.ext4", "losetup", "mount failed"]
        .iter()
        .any(|program| errors.contains(program))
    {
        skip(&format!("no ext4 to compare with: {errors}"));
        return;
    }
    assert!(output.status.success(), "{errors}");
    let result: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(result["ext4"].as_str().unwrap().starts_with("ext4"));
    let rows = result["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 13);
    for row in rows {
        // What reads of zeros are compared with is behind FUSE itself.
        let (sides, limited): (&[&str], bool) = match row["rival"].as_str().unwrap() {
            "ext4" => (&["ours", "theirs", "passed"], true),
            _ => (&["ours", "theirs"], false),
        };
        for side in sides {
            let rounds = row[side].as_array().unwrap();
            assert_eq!(rounds.len(), 1);
            assert!(rounds[0]["iops"].as_f64().unwrap() > 0.0, "{row}");
        }
        assert!(row["ratio"].as_f64().unwrap() > 0.0);
        assert_eq!(row["limit"].as_f64().is_some_and(|l| l > 0.0), limited);
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "left behind");
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(path), "still mounted");
}

/// Where the disk has no ext4 there is an image with it, and all files fit into that. Nor do they have to be open all at once.
#[test]
fn files_fit() {
    if !can_serve() || !can_mount() {
        return;
    }
    let on_memory = std::path::Path::new("/dev/shm");
    // SAFETY: has no arguments and can not fail.
    if unsafe { libc::geteuid() } != 0 || !on_memory.is_dir() {
        skip("an image of ext4 in memory takes root and /dev/shm");
        return;
    }
    let dir = tempfile::tempdir_in(on_memory).unwrap();
    let path = dir.path().to_str().unwrap();
    let size = "--quick --seconds 0.05 --size 256MiB --files 400";
    for row in ["fdatasync", "create"] {
        let mut command = std::process::Command::new("/bin/sh");
        command.args(["-c", r#"ulimit -n 256; exec "$@""#, "sh", common::FLASHNET]);
        command.args(["bench", "fs", "--directory", path]);
        command.args(size.split(' ')).args(["--only", row]);
        let output = command.output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{row}: {errors}");
    }
}

/// What can not be measured is refused before anything is made.
#[test]
fn impossible_runs_are_refused() {
    for (arguments, why) in [
        (["--only", "no such row"], "no row has that in its name"),
        (["--rounds", "0"], "rounds"),
        (["--pool", "512MiB"], "four times as large"),
        (["--files", "1"], "files"),
    ] {
        let errors = bad(&[&["bench", "fs"][..], &arguments].concat());
        assert!(errors.contains(why), "{errors}");
    }
}
