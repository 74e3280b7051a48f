//! Litmus tests on a real target and a real mount: what must never be seen is not.

use std::fs::{self, OpenOptions};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{FLASHNET, Image, can_mount, can_serve, good, skip};
use memmap2::MmapOptions;
use softrdma::{Operation, Source, WorkRequest, WrId};
use tools::client::{ClientError, Session, SessionOptions};
use tools::control::{FLAG_CREATE, FLAG_TRUNCATE, FLAG_WRITE, Op, Request};

/// Calls on the mount, shared mappings and one-sided operations are coherent, each with each.
#[test]
fn nothing_is_seen_that_must_not_be() {
    look_for_it(&[]);
}

/// The same where a mapping has the very pages, and never says that it has stored.
#[test]
fn nor_where_pages_are_shared() {
    // SAFETY: the call has no arguments and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        skip("pages are shared by root only");
        return;
    }
    look_for_it(&["--share-pages"]);
}

fn look_for_it(more: &[&str]) {
    if !can_serve() || !can_mount() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().to_str().unwrap();
    let options = ["litmus", "--json", "--rounds=150", "--directory", directory];
    let report = good(&[&options, more].concat());
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["ok"], true, "{report}");
    let tests = report["tests"].as_array().unwrap();
    assert_eq!(tests.len(), 31);
    for test in tests {
        assert!(test["looks"].as_u64().unwrap() > 0, "{test}");
        assert_eq!(test["seen"], 0, "{test}");
    }
    assert!(fs::read_dir(scratch.path()).unwrap().next().is_none());
}

/// The processes that a process has started.
fn children(pid: u32) -> Vec<i32> {
    let all = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    all.split_whitespace()
        .map(|pid| pid.parse().unwrap())
        .collect()
}

/// Interrupted in the middle of a test that has long to go it cleans up, also when the target does not answer any more.
#[test]
fn interrupted_it_leaves_nothing_behind() {
    if !can_serve() || !can_mount() {
        return;
    }
    for hangs in [false, true] {
        let scratch = tempfile::tempdir().unwrap();
        let mut litmus: Child = Command::new(FLASHNET)
            .args(["litmus", "--rounds=10000000", "--directory"])
            .arg(scratch.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let start = Instant::now();
        let patience = || assert!(start.elapsed() < Duration::from_secs(120), "it hangs");
        // Made when the target serves.
        let made = || {
            let made = fs::read_dir(scratch.path()).unwrap().flatten().next();
            made.is_some_and(|made| made.path().join("mnt/litmus").exists())
        };
        while !made() {
            patience();
            thread::sleep(Duration::from_millis(10));
        }
        if hangs {
            for target in children(litmus.id()) {
                // SAFETY: a signal to a child of a child that has not been waited for.
                unsafe { libc::kill(target, libc::SIGSTOP) };
            }
        }
        // SAFETY: a signal to a child that has not been waited for.
        unsafe { libc::kill(litmus.id() as i32, libc::SIGTERM) };
        let status = loop {
            if let Some(status) = litmus.try_wait().unwrap() {
                break status;
            }
            patience();
            thread::sleep(Duration::from_millis(10));
        };
        assert_eq!(status.code(), Some(1));
        assert!(fs::read_dir(scratch.path()).unwrap().next().is_none());
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        assert!(
            !mounts.contains(scratch.path().to_str().unwrap()),
            "{mounts}"
        );
    }
}

/// A large remote WRITE, and content that is replaced as a whole, reach every page of a mapping.
#[test]
fn large_changes_reach_mappings() {
    if !can_serve() || !can_mount() {
        return;
    }
    let image = Image::new("64MiB");
    let dir = image.beside("mnt");
    fs::create_dir(&dir).unwrap();
    // With so little memory most pages are not in it when they are written.
    let target = image.serve(&["--mount", dir.to_str().unwrap(), "--pool", "1MiB"]);
    let path = dir.join("f");
    let length = 3 << 20;
    fs::write(&path, vec![1; length]).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(&path);
    let map = MmapOptions::new().map_raw(&file.unwrap()).unwrap();
    let bytes = || {
        // SAFETY: the mapping is as long; nobody stores to it while this copies.
        unsafe { std::slice::from_raw_parts(map.as_ptr(), length) }.to_vec()
    };
    assert!(bytes() == vec![1; length]);
    let mut session = target.session();
    let request = |flags| Request {
        flags,
        length: length as u64,
        ..Request::new(Op::Open, "/f")
    };
    let region = session.open(request(FLAG_WRITE)).unwrap();
    let write = |session: &mut Session, region, sync| {
        session.write(region, 100, 2_500_000, sync, |at, bytes| {
            bytes.fill((at >> 16) as u8);
            Ok(())
        })
    };
    for sync in [false, true] {
        write(&mut session, &region, sync).unwrap();
        let seen = bytes();
        assert!(seen[..100] == [1; 100] && seen[2_500_100..].iter().all(|&byte| byte == 1));
        assert_eq!(fs::read(&path).unwrap(), seen);
        assert_eq!(seen[100], 0);
        assert_eq!(seen[2_500_099], (2_359_396u64 >> 16) as u8);
    }
    session
        .open(request(FLAG_WRITE | FLAG_CREATE | FLAG_TRUNCATE))
        .unwrap();
    assert!(bytes() == vec![0; length]);
    drop(map);
    session.close();
    assert!(target.stop().success());
}

/// A target ends in order while a remote peer writes to a file that is mapped, and a peer that goes away in the
/// middle of that leaves nothing behind that holds up others.
#[test]
fn ends_while_a_mapped_file_is_written() {
    if !can_serve() || !can_mount() {
        return;
    }
    let image = Image::new("64MiB");
    let dir = image.beside("mnt");
    fs::create_dir(&dir).unwrap();
    let target = image.serve(&["--mount", dir.to_str().unwrap()]);
    let path = dir.join("f");
    fs::write(&path, vec![0; 1 << 16]).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(&path);
    let map = MmapOptions::new().map_raw(&file.unwrap()).unwrap();
    // SAFETY: the first eight bytes of the mapping, aligned, and always accessed like this.
    let word = unsafe { AtomicU64::from_ptr(map.as_mut_ptr().cast()) };
    let touching = &AtomicBool::new(true);
    let touched = &AtomicU64::new(0);
    let address = target.address;
    let connect = move || Session::connect(address, SessionOptions::default());
    let write = || -> Result<(), ClientError> {
        loop {
            let mut session = connect()?;
            let region = session.open(Request {
                flags: FLAG_WRITE,
                ..Request::new(Op::Open, "/f")
            })?;
            for n in 0..20 {
                let operation = Operation::Write {
                    source: Source::Bytes(vec![n; 9000]),
                    remote: region.at(8),
                };
                session.post(WorkRequest::new(WrId(0), operation))?;
                session.success("WRITE")?;
            }
            // It goes with WRITEs under way; not so fast that the target has too many connections.
            thread::sleep(Duration::from_millis(5));
        }
    };
    thread::scope(|scope| {
        let writers: Vec<_> = (0..2).map(|_| scope.spawn(write)).collect();
        let toucher = scope.spawn(|| {
            let mut last = 0_u64;
            while touching.load(Ordering::SeqCst) {
                assert_eq!(word.load(Ordering::SeqCst), last.to_le());
                last += 1;
                word.store(last.to_le(), Ordering::SeqCst);
                touched.store(last, Ordering::SeqCst);
                thread::sleep(Duration::from_micros(20));
            }
            last
        });
        thread::sleep(Duration::from_millis(800));
        // On a busy machine that may have been few.
        while touched.load(Ordering::SeqCst) < 10 && !toucher.is_finished() {
            thread::sleep(Duration::from_millis(1));
        }
        touching.store(false, Ordering::SeqCst);
        let last = toucher.join().unwrap();
        map.flush().unwrap();
        // Another peer is served as if nothing had been.
        let mut session = connect().unwrap();
        let region = session.open(Request::new(Op::Open, "/f")).unwrap();
        let check = |_, bytes: &[u8]| {
            assert_eq!(bytes, last.to_le_bytes());
            Ok(())
        };
        session.read(&region, 0, 8, check).unwrap();
        // The mapping is still there: the mount is taken away from it.
        assert!(target.stop().success());
        for writer in writers {
            writer.join().unwrap().unwrap_err();
        }
    });
    drop(map);
}
