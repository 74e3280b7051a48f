//! The mount of a real target under real programs: a tree copied, compared, and compared again after a restart.

use std::fs::{self, File, OpenOptions};
use std::io::{Error, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{Image, Target, can_mount, can_serve, good};
use tools::control::{FLAG_TRUNCATE, Op, Request};

fn run(program: &str, arguments: &[&Path]) {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(
        output.status.success(),
        "{program}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// `cp -a` and `diff -r` of the sources, before and after unmounting, and after a kill with everything synced.
#[test]
fn a_tree_reads_back() {
    if !can_serve() {
        return;
    }
    if !can_mount() {
        return;
    }
    let image = Image::new("256MiB");
    let dir = image.beside("mnt");
    fs::create_dir(&dir).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mount = ["--mount", dir.to_str().unwrap()];
    let parts = [
        "tools",
        "ftl",
        "softrdma",
        "contigfs",
        "Cargo.toml",
        "README.md",
    ];
    let compare = || {
        for part in parts {
            run(
                "diff",
                &[
                    "-r".as_ref(),
                    &source.join(part),
                    &dir.join("copy").join(part),
                ],
            );
        }
    };
    let target = image.serve(&mount);
    fs::create_dir(dir.join("copy")).unwrap();
    for part in parts {
        run(
            "cp",
            &["-a".as_ref(), &source.join(part), &dir.join("copy")],
        );
    }
    compare();
    assert!(target.stop().success());
    assert!(
        fs::read_dir(&dir).unwrap().next().is_none(),
        "still mounted"
    );

    let target = image.serve(&mount);
    compare();
    run("sync", &["-f".as_ref(), &dir]);
    target.kill();

    let target = image.serve(&mount);
    compare();
    assert!(target.stop().success());
}

/// A target that mounts beside its image.
fn serve(size: &str, more: &[&str]) -> Option<(Target, PathBuf, Image)> {
    if !can_serve() || !can_mount() {
        return None;
    }
    let image = Image::new(size);
    let dir = image.beside("mnt");
    fs::create_dir(&dir).unwrap();
    let arguments = [&["--mount", dir.to_str().unwrap()], more].concat();
    let target = image.serve(&arguments);
    Some((target, dir, image))
}

/// What is appended lands behind the end that a remote peer has made, shorter or longer, of which the kernel does not know;
/// nothing is overwritten, and no hole is left.
#[test]
fn appends_go_to_the_end_that_a_peer_made() {
    let Some((target, dir, _image)) = serve("64MiB", &[]) else {
        return;
    };
    let path = dir.join("log");
    fs::write(&path, [1; 10_000]).unwrap();
    let mut log = OpenOptions::new().append(true).open(&path).unwrap();
    let mut session = target.session();
    for length in [5, 20_000] {
        let request = Request {
            flags: FLAG_TRUNCATE,
            length,
            ..Request::new(Op::Open, "/log")
        };
        session.open(request).unwrap();
        log.write_all(b"first").unwrap();
        log.write_all(b"second").unwrap();
        let expected = [&vec![0; length as usize][..], b"firstsecond"].concat();
        assert!(fs::read(&path).unwrap() == expected);
    }
    drop((log, session));
    assert!(target.stop().success());
}

/// Once a peer has been answered, the mount shows the new size, however often the file is looked at meanwhile, and what is
/// appended then lands behind it. For an instant the kernel takes what it knows for new before it has put the new size there; what
/// it was told before it would believe for a second.
#[test]
fn sizes_that_a_peer_made_are_seen() {
    let Some((target, dir, _image)) = serve("64MiB", &[]) else {
        return;
    };
    let path = dir.join("file");
    fs::write(&path, [1; 10_000]).unwrap();
    let mut session = target.session();
    let over = AtomicBool::new(false);
    let size = || fs::metadata(&path).unwrap().len();
    let shown = |expected| {
        let start = Instant::now();
        while size() != expected && start.elapsed() < Duration::from_millis(200) {}
        size()
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                fs::metadata(&path).unwrap();
            }
        });
        for round in 0..200 {
            let length = [5, 20_000][round % 2];
            let request = Request {
                flags: FLAG_TRUNCATE,
                length,
                ..Request::new(Op::Open, "/file")
            };
            session.open(request).unwrap();
            let seen = shown(length);
            let mut log = OpenOptions::new().append(true).open(&path).unwrap();
            log.write_all(b"behind").unwrap();
            let end = shown(length + 6);
            if (seen, end) != (length, length + 6) {
                over.store(true, Ordering::Relaxed);
                panic!("round {round}: {seen} and then {end} of {length}");
            }
        }
        over.store(true, Ordering::Relaxed);
    });
    drop(session);
    assert!(target.stop().success());
}

/// `fstrim`, for a volume that does not discard by itself: the device is told of what is free, once, and files stay as they are.
#[test]
fn trimming_gives_space_back() {
    const MIB: usize = 1 << 20;
    let Some((target, dir, image)) = serve("256MiB", &["-o", "nodiscard"]) else {
        return;
    };
    let content =
        |seed: usize| -> Vec<u8> { (0..64 * MIB).map(|at| ((at * seed) >> 7) as u8).collect() };
    fs::write(dir.join("kept"), content(3)).unwrap();
    fs::write(dir.join("gone"), content(5)).unwrap();
    let opened = File::open(&dir).unwrap();
    File::open(dir.join("gone")).unwrap().sync_all().unwrap();
    File::open(dir.join("kept")).unwrap().sync_all().unwrap();
    let stored = || fs::metadata(image.path()).unwrap().blocks() * 512;
    let before = stored();
    assert!(before > 128 * MIB as u64, "{before}");
    let trim = || {
        // `struct fstrim_range`: start, len, minlen.
        let mut range = [0, u64::MAX, 0];
        // SAFETY: `FITRIM` reads and writes 24 bytes, which `range` has; the descriptor is open.
        let done = unsafe { libc::ioctl(opened.as_raw_fd(), 0xc018_5879, range.as_mut_ptr()) };
        assert_eq!(done, 0, "{}", Error::last_os_error());
        range[1]
    };
    // What was never written is told of as well, the first time.
    assert!(trim() > 64 * MIB as u64);
    assert_eq!(trim(), 0, "it has been told");
    fs::remove_file(dir.join("gone")).unwrap();
    let start = Instant::now();
    // Segments become free with the header behind the one that emptied them.
    while stored() > before - 60 * MIB as u64 {
        trim();
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "{} of {before}",
            stored()
        );
        thread::sleep(Duration::from_millis(20));
    }
    assert!(fs::read(dir.join("kept")).unwrap() == content(3));
    drop(opened);
    assert!(target.stop().success());
    good(&["fsck".as_ref(), image.path().as_os_str()]);
}
