//! A short soak: lives that end by force and in order, everything checked, nothing left behind.

mod common;

use std::fs;

use common::{can_serve, good};

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
