//! The torture of credentials, in short.

use std::fs;

use crate::common::{bad, can_serve, good};

/// Clients that opened their files once go on through kills and replacements of the target, with the same STags: nothing
/// acknowledged as durable is lost (I1), no byte is wrong (I2, I4), and no atomic operation takes effect twice (I13), whether they
/// say who they are or not.
#[test]
fn clients_go_on_through_kills_and_replacements() {
    if !can_serve() {
        return;
    }
    for tenants in ["--tenants=0", "--tenants=2"] {
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch.path().to_str().unwrap();
        let arguments = [
            "torture",
            "credentials",
            "--json",
            "--clients=8",
            "--kills=4",
            "--replaces=2",
            "--cuts=2",
            "--file-size=64KiB",
            "--size=128MiB",
            "--seed=5",
            tenants,
            "--directory",
            directory,
        ];
        let report: serde_json::Value = serde_json::from_str(&good(&arguments)).unwrap();
        assert_eq!(report["ok"], true, "{report}");
        let count = |key: &str| report[key].as_u64().unwrap();
        let acts = ["kills", "replaces", "cuts"].map(count);
        assert_eq!(acts, [4, 2, 2], "{report}");
        for key in ["synced", "read", "judged", "added"] {
            assert!(count(key) > 0, "{key}: {report}");
        }
        // Everybody has lost at least one connection.
        assert!(count("reconnections") >= 8, "{report}");
        assert!(fs::read_dir(scratch.path()).unwrap().next().is_none());
    }
}

/// Files that the image has no room for are refused before there are clients, and nothing is kept of that.
#[test]
fn files_that_do_not_fit() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().to_str().unwrap();
    for size in ["--file-size=1EiB", "--file-size=8MiB"] {
        let image = ["torture", "credentials", "--size=64MiB", "--clients=8"];
        let says = bad(&[&image[..], &[size, "--directory", directory]].concat());
        assert!(says.contains("--file-size"), "{says}");
        assert!(fs::read_dir(scratch.path()).unwrap().next().is_none());
    }
}
