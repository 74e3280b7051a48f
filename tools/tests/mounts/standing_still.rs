//! Targets and devices that stand still: who asks something of them, or wants them to end, is not kept for ever.

use std::fs;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::fault_disk::FaultDisk;
use crate::common::{FLASHNET, Image, Target, can_mount, can_serve, good};

/// Nothing here takes that long.
const PATIENCE: Duration = Duration::from_secs(40);

fn signal(process: u32, signal: i32) {
    // SAFETY: a signal to a child that has not been waited for.
    let sent = unsafe { libc::kill(process as i32, signal) };
    assert_eq!(sent, 0);
}

/// Whether nothing is left of a process that has begun but what the kernel waits for: its memory is gone.
fn has_exited(child: &Child) -> bool {
    let line = fs::read(format!("/proc/{}/cmdline", child.id())).unwrap();
    line.is_empty()
}

/// Whether a process takes care of SIGTERM itself.
fn heeds_signals(child: &Child) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = u64::from_str_radix(caught.unwrap().trim(), 16).unwrap();
    caught & 1 << (libc::SIGTERM - 1) != 0
}

/// A target that opens a volume on a device that hangs ends when it is told twice, as after a power cut, and nothing is lost
/// (I6): its operator would have nothing left but SIGKILL.
#[test]
fn a_target_ends_while_its_device_hangs() {
    if !can_serve() || !can_mount() {
        return;
    }
    let disk = FaultDisk::new(64 << 20, 1).unwrap();
    let device = disk.path();
    let device = device.to_str().unwrap();
    good(&["mkfs", device]);
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    fs::write(&source, "kept").unwrap();
    let target = Target::start_on(&[device], &[]);
    good(&["put", source.to_str().unwrap(), &target.url("/file")]);
    // There is something to recover.
    target.kill();
    disk.hold(true);
    let mut opening = Command::new(FLASHNET)
        .args(["serve", "--listen", "127.0.0.1:0", device])
        .env("FLASHNET_LOG", "info")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    let mut is_told = false;
    while !(is_told && has_exited(&opening)) {
        if begun.elapsed() > PATIENCE {
            opening.kill().unwrap();
            disk.hold(false);
            panic!("it does not end");
        }
        if heeds_signals(&opening) {
            signal(opening.id(), libc::SIGTERM);
            is_told = true;
        }
        thread::sleep(Duration::from_millis(20));
    }
    // The kernel closes its files behind what it has asked for last.
    disk.hold(false);
    let ended = opening.wait().unwrap();
    assert_eq!(ended.code(), Some(128 + libc::SIGTERM));
    let mut said = String::new();
    let mut stderr = opening.stderr.take().unwrap();
    stderr.read_to_string(&mut said).unwrap();
    assert!(said.contains("another signal ends at once"), "{said}");

    let target = Target::start_on(&[device], &[]);
    assert_eq!(good(&["get", &target.url("/file"), "-"]), "kept");
    assert!(target.stop().success());
    good(&["fsck", "-n", device]);
}

/// Who wants to replace a target that stands still hears so, and that goes on as if nobody had asked.
#[test]
fn a_target_that_stands_still_is_not_replaced() {
    if !can_serve() {
        return;
    }
    let image = Image::new("64MiB");
    let path = image.path();
    let path = path.to_str().unwrap();
    let target = image.serve(&[]);
    signal(target.pid(), libc::SIGSTOP);
    let asks = |command: &[&str]| {
        Command::new(FLASHNET)
            .args(command)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let all = [
        asks(&["serve", path, "--replace", "--listen", "127.0.0.1:0"]),
        asks(&["top", "--once", path]),
        asks(&["region", "list", path]),
    ];
    for asking in all {
        let output = asking.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("has not answered for 10 s"), "{said}");
    }
    signal(target.pid(), libc::SIGCONT);
    good(&["ls", &target.url("/")]);
    let next = image.serve(&["--replace"]);
    assert!(target.ended().success());
    assert!(next.stop().success());
}
