//! Snapshots as people meet them: on a mount, with local and remote writers, through a kill, and with the commands (I2, I9).

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use crate::common::{Image, Target, bad, can_mount, can_serve, good, pattern};
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::Value;
use tools::control::{FLAG_WRITE, Op, Request};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Writes `len` bytes of `byte` one-sided, durably.
fn write_remotely(target: &Target, path: &str, at: u64, len: u64, byte: u8) {
    let mut session = target.session();
    let request = Request {
        flags: FLAG_WRITE,
        ..Request::new(Op::Open, path)
    };
    let file = session.open(request).unwrap();
    session
        .write(&file, at, len, true, |_, bytes| {
            bytes.fill(byte);
            Ok(())
        })
        .unwrap();
    session.read(&file, at, 1, |_, _| Ok(())).unwrap();
}

fn names(mount: &Path) -> Vec<String> {
    let shown = good(&["--json", "snapshot", "list", text(mount)]);
    let shown: Value = serde_json::from_str(&shown).expect("JSON");
    let all = shown.as_array().unwrap().iter();
    all.map(|one| one["name"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn through_writers_and_kills() {
    if !can_serve() || !can_mount() {
        return;
    }
    let image = Image::new("128MiB");
    let mount = image.beside("mnt");
    fs::create_dir(&mount).unwrap();
    let options = ["--mount", text(&mount)];
    let target = image.serve(&options);
    let data = pattern(1 << 20, 5);
    fs::write(mount.join("file"), &data).unwrap();
    fs::create_dir(mount.join("dir")).unwrap();
    fs::write(mount.join("dir/small"), b"small").unwrap();

    fs::write(image.beside("small"), b"small").unwrap();

    let made = good(&["snapshot", "create", text(&mount), "first"]);
    assert_eq!(made.trim(), text(&mount.join(".snapshots/first")));
    let again = bad(&["snapshot", "create", text(&mount), "first"]);
    assert!(again.contains("there is one of this name"), "{again}");
    let first = mount.join(".snapshots/first");

    // Everybody changes it: a remote peer, a program, and one that has mapped it.
    write_remotely(&target, "/file", 100_000, 50_000, 0xaa);
    let file = File::options()
        .read(true)
        .write(true)
        .open(mount.join("file"))
        .unwrap();
    file.write_all_at(&[0xbb; 70_000], 300_000).unwrap();
    {
        // SAFETY: nobody makes the file shorter.
        let mut map = unsafe { memmap2::MmapMut::map_mut(&file).unwrap() };
        map[600_000..600_100].fill(0xcc);
        map.flush().unwrap();
    }
    file.sync_all().unwrap();
    fs::remove_file(mount.join("dir/small")).unwrap();
    let now = fs::read(mount.join("file")).unwrap();
    assert!(now[100_000..150_000].iter().all(|&byte| byte == 0xaa));
    assert!(now[600_000..600_100].iter().all(|&byte| byte == 0xcc));
    assert_eq!(fs::read(first.join("file")).unwrap(), data);
    assert_eq!(fs::read(first.join("dir/small")).unwrap(), b"small");

    good(&["snapshot", "create", text(&mount), "second"]);
    assert_eq!(names(&mount), ["first", "second"]);
    drop(file);

    // Killed, and served again.
    target.kill();
    let target = image.serve(&options);
    let snapshots = mount.join(".snapshots");
    assert_eq!(names(&mount), ["first", "second"]);
    write_remotely(&target, "/file", 0, 4096, 0xdd);
    assert_eq!(fs::read(first.join("file")).unwrap(), data);
    assert_eq!(fs::read(snapshots.join("second/file")).unwrap(), now);
    assert!(!snapshots.join("second/dir/small").exists());

    good(&["snapshot", "delete", text(&mount), "first"]);
    let gone = bad(&["snapshot", "delete", text(&mount), "first"]);
    assert!(gone.contains("there is none of this name"), "{gone}");
    assert_eq!(names(&mount), ["second"]);
    assert_eq!(fs::read(snapshots.join("second/file")).unwrap(), now);
    for wrong in ["", ".", "..", "a/b", "third/", "third/."] {
        let said = bad(&["snapshot", "create", text(&mount), wrong]);
        assert!(said.contains("is no name of a snapshot"), "{wrong}: {said}");
    }
    // A name commands no terminal.
    good(&["snapshot", "create", text(&mount), "red\x1b[31m"]);
    let shown = good(&["snapshot", "list", text(&mount)]);
    assert!(shown.contains("red\\u{1b}[31m"), "{shown}");
    assert_eq!(names(&mount), ["second", "red\x1b[31m"]);
    good(&["snapshot", "delete", text(&mount), "red\x1b[31m"]);
    // A remote peer does not put a file in their place.
    let put = bad(&[
        "put",
        text(&image.beside("small")),
        &target.url("/.snapshots"),
    ]);
    assert!(put.contains("is a directory"), "{put}");
    let elsewhere = bad(&["snapshot", "list", "/"]);
    assert!(elsewhere.contains("not the root"), "{elsewhere}");
    target.stop();
    good(&["fsck", "-f", text(&image.path())]);

    let target = image.serve(&options);
    assert_eq!(fs::read(snapshots.join("second/file")).unwrap(), now);
    target.stop();
}

/// Somebody who writes here and there in a file of his own until it is `done`, and counts what he has written.
struct Scribbler {
    file: File,
    lengths: &'static [usize],
    syncs: bool,
}

impl Scribbler {
    const GRAINS: u64 = 512;

    fn new(path: &Path, syncs: bool) -> Self {
        let mut options = File::options();
        let file = options.read(true).write(true).create_new(true).open(path);
        let file = file.unwrap();
        let bytes = pattern(Self::GRAINS as usize * 4096, 1);
        file.write_all_at(&bytes, 0).unwrap();
        file.sync_all().unwrap();
        let lengths: &[usize] = match syncs {
            true => &[4096],
            false => &[100, 4096, 8192, 16384],
        };
        Self {
            file,
            lengths,
            syncs,
        }
    }

    fn scribble(&self, seed: u64, done: &AtomicBool, written: &AtomicUsize) {
        let mut random = SmallRng::seed_from_u64(seed);
        let bytes = pattern(16384, 2);
        while !done.load(Ordering::Relaxed) {
            let len = *self.lengths.choose(&mut random).unwrap();
            let at = random.random_range(0..Self::GRAINS - 4) * 4096;
            self.file.write_all_at(&bytes[..len], at).unwrap();
            if self.syncs {
                self.file.sync_data().unwrap();
            }
            written.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Makes so many snapshots, each when everybody has written behind the one before, and deletes the one before.
fn snapshots_come_and_go(all: &Path, count: usize, written: &[AtomicUsize], made: impl Fn(usize)) {
    let place = |n: usize| -> PathBuf { all.join(format!("s{n}")) };
    for n in 0..count {
        fs::create_dir(place(n)).unwrap();
        let look = || written.iter().map(|count| count.load(Ordering::Relaxed));
        let before: Vec<usize> = look().collect();
        while look().zip(&before).any(|(now, &before)| now == before) {
            thread::sleep(Duration::from_millis(1));
        }
        if n > 0 {
            fs::remove_dir(place(n - 1)).unwrap();
        }
        made(n);
    }
}

/// I18: behind a snapshot everybody who writes waits until what he changes has been kept, and whoever makes the next one for everybody who
/// writes. All of them go on, always: one who is not told of his page would hold it for ever, and the next snapshot would stop
/// the others, too.
#[test]
fn nobody_stands_still_while_snapshots_come_and_go() {
    // Those being deleted count as well, and 32 is the most.
    const SNAPSHOTS: usize = 30;
    if !can_serve() || !can_mount() {
        return;
    }
    // With room for what they hold until they are gone.
    let image = Image::new("1GiB");
    let mount = image.beside("mnt");
    fs::create_dir(&mount).unwrap();
    let target = image.serve(&["--mount", text(&mount)]);
    let done = Arc::new(AtomicBool::new(false));
    let written: Arc<[AtomicUsize]> = (0..8).map(|_| AtomicUsize::new(0)).collect();
    let writers: Vec<_> = (0..written.len())
        .map(|n| {
            let scribbler = Scribbler::new(&mount.join(format!("file{n}")), n >= 5);
            let (done, written) = (Arc::clone(&done), Arc::clone(&written));
            thread::spawn(move || scribbler.scribble(n as u64, &done, &written[n]))
        })
        .collect();
    let (tell, told) = channel();
    let all = mount.join(".snapshots");
    let maker = {
        let written = Arc::clone(&written);
        let made = move |n| tell.send(n).unwrap();
        thread::spawn(move || snapshots_come_and_go(&all, SNAPSHOTS, &written, made))
    };
    // Whoever stands still there can not say so himself.
    for n in 0..SNAPSHOTS {
        let made = told.recv_timeout(Duration::from_secs(60));
        assert_eq!(made, Ok(n), "somebody stands still: {written:?}");
    }
    maker.join().unwrap();
    done.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.join().unwrap();
    }
    assert!(target.stop().success());
    good(&["fsck", "-f", text(&image.path())]);
}
