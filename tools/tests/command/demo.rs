//! The main job: it succeeds, and it leaves nothing behind, also when it is interrupted.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{FLASHNET, bad, can_serve};

fn demo(scratch: &Path, input: &Path) -> Command {
    let mut command = Command::new(FLASHNET);
    command
        .args(["demo", "--json", "--size", "128MiB", "--input"])
        .arg(input)
        .env("TMPDIR", scratch)
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    command
}

fn assert_nothing_left(scratch: &Path) {
    let left: Vec<_> = fs::read_dir(scratch).unwrap().collect();
    assert!(left.is_empty(), "left behind: {left:?}");
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let scratch = scratch.to_str().unwrap();
    assert!(!mounts.contains(scratch), "mounts left behind: {mounts}");
    for process in fs::read_dir("/proc").unwrap().flatten() {
        let command = fs::read(process.path().join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).into_owned();
        assert!(!command.contains(scratch), "process left behind: {command}");
    }
}

/// Every acknowledged byte survives the kill (I1, I2), through RDMA and through the mount.
#[test]
fn demo_succeeds_and_cleans_up() {
    if !can_serve() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let input = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let output = demo(scratch.path(), &input)
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    assert!(output.status.success());
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["ok"], true);
    let names: Vec<_> = report["steps"]
        .as_array()
        .unwrap()
        .iter()
        .map(|step| step["step"].as_str().unwrap())
        .collect();
    assert!(names.contains(&"sync writes until SIGKILL"), "{names:?}");
    if contigfs::fuse::available().is_ok() {
        assert!(
            names.contains(&"verify them through the mount"),
            "{names:?}"
        );
    }
    assert_nothing_left(scratch.path());
}

/// Interrupted at several points of its way, it cleans up and says so by its status.
#[test]
fn interrupted_demo_cleans_up() {
    if !can_serve() {
        return;
    }
    let input = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for delay in [20, 300, 900, 1800] {
        let scratch = tempfile::tempdir().unwrap();
        let mut child = demo(scratch.path(), &input)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(delay));
        // SAFETY: a signal to a child that has not been waited for.
        unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
        let start = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        };
        // Interrupted before it listens to signals it dies of the signal; that early it has made nothing.
        assert!(!status.success() || delay == 1800, "{delay} ms: {status}");
        assert_nothing_left(scratch.path());
    }
}

/// A device that is not there is none: no image is made in its place, which nobody would remove, unless its size is said. Of one that
/// is there it is not.
#[test]
fn a_device_that_is_not_there() {
    let scratch = tempfile::tempdir().unwrap();
    let device = scratch.path().join("sdz9");
    let says = bad(&["demo", "--device", device.to_str().unwrap()]);
    assert!(
        says.contains("sdz9") && says.contains("No such file"),
        "{says}"
    );
    assert_nothing_left(scratch.path());
    fs::write(&device, [0; 4096]).unwrap();
    let sized = ["--device", device.to_str().unwrap(), "--size", "128MiB"];
    let says = bad(&[&["demo"][..], &sized].concat());
    assert!(says.contains("leave --size out"), "{says}");
    assert_eq!(fs::metadata(&device).unwrap().len(), 4096);
    fs::remove_file(&device).unwrap();
    if !can_serve() {
        return;
    }
    let input = scratch.path().join("input");
    fs::write(&input, "some bytes").unwrap();
    let made = demo(scratch.path(), &input)
        .args(["--device", device.to_str().unwrap()])
        .output();
    assert!(made.unwrap().status.success());
    assert_eq!(fs::metadata(&device).unwrap().len(), 128 << 20);
}

/// The input is called what it is, however it is named; a file of the demo's own is not taken for it, which would look like data
/// that were lost.
#[test]
fn inputs_and_their_names() {
    if !can_serve() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let input = tempfile::tempdir().unwrap();
    let own = input.path().join("acknowledged.dat");
    fs::write(&own, b"of somebody else").unwrap();
    let here = demo(scratch.path(), Path::new("."))
        .current_dir(input.path())
        .status()
        .unwrap();
    assert!(here.success());
    let says = bad(&["demo", "--input", own.to_str().unwrap()]);
    assert!(says.contains("of its own"), "{says}");
    assert_nothing_left(scratch.path());
}
