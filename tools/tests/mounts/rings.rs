//! The mount through FUSE over io_uring, where the kernel has that. It is off by default, for the whole system; this turns
//! it on for a moment, and runs alone.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{Image, Target, can_mount, can_serve, flashnet, pattern, skip};

const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// The parameter, and what it was.
struct Parameter(String);

impl Parameter {
    /// Turns rings on; `None` where that is not to be had.
    fn on() -> Option<Self> {
        let before = fs::read_to_string(PARAMETER);
        let on = before.and_then(|before| fs::write(PARAMETER, "Y").map(|()| Self(before)));
        on.inspect_err(|error| skip(&format!("{PARAMETER} can not be set: {error}")))
            .ok()
    }
}

impl Drop for Parameter {
    fn drop(&mut self) {
        let _ = fs::write(PARAMETER, &self.0);
    }
}

/// Names of the threads of a target.
fn threads(target: &Target) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{}/task", target.pid())).unwrap();
    let name = |task: fs::DirEntry| fs::read_to_string(task.path().join("comm"));
    // One may end in between.
    let names = tasks.filter_map(|task| name(task.unwrap()).ok());
    names.map(|name| name.trim().to_owned()).collect()
}

/// A thread gives itself its name when it first runs, and the target is ready when one of them serves.
fn comes_to_have(target: &Target, thread: &str) -> bool {
    let start = Instant::now();
    loop {
        if threads(target).iter().any(|name| name == thread) {
            return true;
        }
        if start.elapsed() > Duration::from_secs(60) {
            return false;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

fn serve(image: &Image, dir: &Path, options: &str) -> Target {
    image.serve(&["--mount", dir.to_str().unwrap(), "-o", options])
}

/// Each of several users finds in its part of a file what it wrote there last, by calls of several sizes.
fn use_it(path: &Path) {
    const PART: usize = 3 << 20;
    thread::scope(|scope| {
        for user in 0..8 {
            scope.spawn(move || {
                let mut options = OpenOptions::new();
                let options = options.read(true).write(true).create(true).truncate(false);
                let file: File = options.open(path).unwrap();
                for (round, size) in [512, 4096, 70_000, 1 << 20, 5_000_000].iter().enumerate() {
                    let content = pattern(PART, user * 10 + round as u64);
                    let start = user * PART as u64;
                    let mut at = 0;
                    for piece in content.chunks(*size) {
                        file.write_all_at(piece, start + at).unwrap();
                        at += piece.len() as u64;
                    }
                    file.sync_data().unwrap();
                    let mut found = vec![0; PART];
                    file.read_exact_at(&mut found, start).unwrap();
                    assert!(found == content, "user {user}, pieces of {size}");
                }
            });
        }
    });
}

/// Content, names and mappings are as through `/dev/fuse`; so is the end, and what a target that was killed leaves.
#[test]
fn a_mount_through_rings() {
    if !can_serve() || !can_mount() {
        return;
    }
    let Some(parameter) = Parameter::on() else {
        return;
    };
    let image = Image::new("256MiB");
    let dir = image.beside("mnt");
    fs::create_dir(&dir).unwrap();
    let target = serve(&image, &dir, "uring");
    assert!(threads(&target).contains(&"fuse-0.0".to_owned()));
    use_it(&dir.join("file"));
    for n in 0..300 {
        let name = dir.join(format!("{n:0>200}"));
        fs::write(&name, name.as_os_str().as_encoded_bytes()).unwrap();
    }
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 301);
    let held = File::open(dir.join("file")).unwrap();
    target.kill();
    assert!(held.read_at(&mut [0], 0).is_err());
    drop(held);

    let target = serve(&image, &dir, "uring");
    for n in 0..300 {
        let name = dir.join(format!("{n:0>200}"));
        assert!(fs::metadata(&name).is_ok());
        fs::remove_file(&name).unwrap();
    }
    assert!(target.stop().success());

    let scratch = image.beside("scratch");
    fs::create_dir(&scratch).unwrap();
    let directory = scratch.to_str().unwrap();
    // On a busy machine a test may not get to look at anything in so few rounds, so there are several goes; each must look
    // in one of them, and never see what it must not.
    let mut looked = HashSet::new();
    for _ in 0..10 {
        let report = flashnet(&["litmus", "--json", "--rounds=60", "--directory", directory]);
        let report: serde_json::Value = serde_json::from_slice(&report.stdout).unwrap();
        for test in report["tests"].as_array().unwrap() {
            assert_eq!(test["seen"], 0, "{test}");
            if test["looks"].as_u64() > Some(0) {
                looked.insert(["test", "first", "second"].map(|key| test[key].to_string()));
            }
        }
        if looked.len() == 31 {
            break;
        }
    }
    assert_eq!(looked.len(), 31, "{looked:?}");

    let target = serve(&image, &dir, "nouring");
    assert!(!threads(&target).contains(&"fuse-0.0".to_owned()));
    assert!(comes_to_have(&target, "fuse-0"));
    assert!(target.stop().success());
    drop(parameter);
}
