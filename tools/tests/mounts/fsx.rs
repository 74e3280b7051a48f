//! I9 as fsx sees it, on the mount of a real target: random operations on one file, each read compared with what was
//! written. One test for each way of doing I/O; `direct.rs` has the one that fsx can not do.
//!
//! `FSX_OPERATIONS` and `FSX_SEED` choose more or others:
//!
//! ```text
//! FSX_OPERATIONS=1000000 cargo test --release -p tools --test mounts -- fsx:: direct::
//! ```

use std::fs;
use std::process::Command;

use crate::common::{Image, can_mount, can_serve, chosen, skip, tool};

/// Any number of bytes anywhere, but some: `posix_fallocate` of nothing is an error everywhere, which fsx does not know.
const BYTES: &str = "min = 1";
/// Whole grains.
const GRAINS: &str = "min = 4096\nalign = 4096";
/// Operations of one run with mappings. Those that are unmapped pile up in the kernel until fsx ends, so several short runs are faster.
const RUN_WITH_MAPPINGS: u64 = 20_000;

/// Runs fsx with `operations`, unless the environment says otherwise.
fn fsx(operations: u64, target_options: &[&str], weights: &str) {
    fsx_of(
        (BYTES, RUN_WITH_MAPPINGS),
        operations,
        target_options,
        weights,
    );
}

/// With these sizes, and so many operations in a run at most.
fn fsx_of((sizes, run_max): (&str, u64), operations: u64, target_options: &[&str], weights: &str) {
    if !can_serve() || !can_mount() {
        return;
    }
    let Some(fsx) = tool("fsx") else { return };
    let image = Image::new("128MiB");
    let dir = image.beside("mnt");
    fs::create_dir(&dir).unwrap();
    let config = image.beside("fsx.toml");
    fs::write(&config, format!("[opsize]\n{sizes}\n[weights]\n{weights}")).unwrap();
    let mut options = vec!["--mount", dir.to_str().unwrap()];
    options.extend(target_options);
    let target = image.serve(&options);
    let mut left = chosen("FSX_OPERATIONS", operations);
    for seed in chosen("FSX_SEED", 20_261_121).. {
        let run = left.min(run_max);
        let output = Command::new(&fsx)
            .args(["-N", &run.to_string()])
            .args(["-S", &seed.to_string()])
            .arg("-P")
            .arg(image.path().parent().unwrap())
            .arg("-f")
            .arg(&config)
            .arg(dir.join("file"))
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        left -= run;
        if left == 0 {
            break;
        }
    }
    assert!(target.stop().success());
}

/// Reading, writing and truncating.
#[test]
fn buffered() {
    fsx_of(
        (BYTES, u64::MAX),
        100_000,
        &[],
        "mapread = 0.0\nmapwrite = 0.0\nclose_open = 0.1\nfsync = 0.1\nfdatasync = 0.1\nsendfile = 1.0\n",
    );
}

/// The same with shared mappings, which the kernel keeps pages for.
#[test]
fn mapped() {
    fsx(
        100_000,
        &[],
        "mapread = 10.0\nmapwrite = 10.0\nfsync = 0.1\nfdatasync = 0.1\n",
    );
}

/// The same with so little memory that pages come and go all the time.
#[test]
fn with_a_tiny_pool() {
    fsx(
        60_000,
        &["--pool", "1MiB"],
        "mapread = 5.0\nmapwrite = 5.0\n",
    );
}

/// Space that is reserved and given back.
#[test]
fn fallocated() {
    fsx(
        5_000,
        &[],
        "mapread = 1.0\nmapwrite = 1.0\nposix_fallocate = 5.0\npunch_hole = 5.0\nfsync = 0.1\n",
    );
}

/// Copies of whole grains within the file, which are clones: nothing is read or written.
#[test]
fn cloned() {
    fsx_of(
        (GRAINS, RUN_WITH_MAPPINGS),
        5_000,
        &[],
        "mapread = 1.0\nmapwrite = 1.0\npunch_hole = 1.0\ncopy_file_range = 10.0\nfsync = 0.1\n",
    );
}

/// Copies within the file of any bytes from anywhere to anywhere.
#[test]
fn copied() {
    fsx(
        5_000,
        &[],
        "mapread = 1.0\nmapwrite = 1.0\npunch_hole = 1.0\ncopy_file_range = 10.0\nfsync = 0.1\n",
    );
}

/// Everything at once on a file that shares its pages with those who map it, which is looked at all the time.
#[test]
fn shared() {
    // SAFETY: the call has no arguments and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        skip("pages are shared by root only");
        return;
    }
    fsx(
        1_500,
        &["--share-pages", "--share-scan", "0.02"],
        "mapread = 10.0\nmapwrite = 10.0\nposix_fallocate = 1.0\npunch_hole = 2.0\ncopy_file_range = 2.0\n\
         sendfile = 1.0\nfsync = 0.2\nclose_open = 0.5\n",
    );
}
