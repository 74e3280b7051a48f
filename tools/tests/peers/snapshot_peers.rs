//! Snapshots as remote peers meet them: what was there at the moment, whatever anybody does meanwhile (I2, I9).

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use crate::common::{self, Image, Target, bad, can_mount, can_serve, good, pattern};
use tools::client::{ClientError, Session};
use tools::control::{
    FLAG_CREATE, FLAG_EXCLUSIVE, FLAG_GROW, FLAG_PERSISTENT, FLAG_WRITE, Op, Request,
};

const FILE_BYTES: usize = 2 << 20;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Opens a region of a file, and reads all of it.
fn read(session: &mut Session, request: Request) -> Vec<u8> {
    let file = session.open(request).unwrap();
    let mut bytes = Vec::new();
    let take = |_, more: &[u8]| {
        bytes.extend_from_slice(more);
        Ok(())
    };
    let length = file.length.min(file.size);
    session.read(&file, 0, length, take).unwrap();
    bytes
}

fn of_file(path: &str) -> Request {
    Request::new(Op::Open, path)
}

fn refused(target: &Target, request: Request) -> (i32, String) {
    match target.session().call(request).unwrap_err() {
        ClientError::Refused { status, message } => (status, message),
        other => panic!("{other}"),
    }
}

/// A target with a mount, and a file, a directory and a snapshot "then" on it.
fn with_snapshot(image: &Image, more: &[&str]) -> (Target, Vec<u8>) {
    let mount = image.beside("mnt");
    fs::create_dir(&mount).unwrap();
    let options = [&["--mount", text(&mount)], more].concat();
    let target = image.serve(&options);
    let then = pattern(FILE_BYTES, 7);
    fs::write(mount.join("file"), &then).unwrap();
    fs::create_dir(mount.join("dir")).unwrap();
    fs::write(mount.join("dir/small"), b"small").unwrap();
    symlink("../file", mount.join("dir/link")).unwrap();
    let holes = File::create(mount.join("dir/holes")).unwrap();
    holes.write_all_at(b"end", 300_000).unwrap();
    drop(holes);
    good(&["snapshot", "create", text(&mount), "then"]);
    (target, then)
}

#[test]
fn peers_find_what_was_there() {
    if !can_serve() || !can_mount() {
        return;
    }
    let image = Image::new("128MiB");
    let (target, then) = with_snapshot(&image, &[]);
    let mount = image.beside("mnt");
    // Everything changes: in parts, as a whole, by name.
    let file = File::options().write(true).open(mount.join("file"));
    file.unwrap().write_all_at(&[1; 70_000], 300_000).unwrap();
    fs::write(mount.join("dir/small"), b"something else").unwrap();
    fs::remove_file(mount.join("dir/holes")).unwrap();

    let look = |target: &Target| {
        let ls = |path: &str| good(&["ls", &target.url(path)]);
        assert!(ls("/.snapshots").contains("then"), "{}", ls("/.snapshots"));
        let top = ls("/.snapshots/then/");
        assert!(top.contains("dir") && top.contains("file"), "{top}");
        assert!(!top.contains(".flashnet"), "the target's own: {top}");
        assert!(!ls("/").contains(".snapshots"), "as on a mount");

        let mut session = target.session();
        assert_eq!(read(&mut session, of_file("/.snapshots/then/file")), then);
        // Part of it, and as one that could grow.
        let part = Request {
            offset: 299_995,
            length: 10_001,
            ..of_file("/.snapshots/then/file")
        };
        assert_eq!(read(&mut session, part), then[299_995..309_996]);
        let growing = Request {
            flags: FLAG_GROW,
            ..of_file("/.snapshots/then/dir/small")
        };
        assert_eq!(read(&mut session, growing), b"small");
        let holes = read(&mut session, of_file("/.snapshots/then/dir/holes"));
        assert_eq!(holes.len(), 300_003);
        assert!(holes[..300_000].iter().all(|&byte| byte == 0) && holes.ends_with(b"end"));
        // It is the file that programs on the mount find.
        let opened = session.open(of_file("/.snapshots/then/file")).unwrap();
        let found = fs::metadata(mount.join(".snapshots/then/file")).unwrap();
        assert_eq!((opened.inode, opened.size), (found.ino(), found.len()));
        session.close();

        let small = good(&["get", &target.url("/.snapshots/then/dir/small"), "-"]);
        assert_eq!(small, "small");
        let stat = good(&["stat", &target.url("/.snapshots/then/dir/holes")]);
        assert!(stat.contains("300003"), "{stat}");
    };
    look(&target);
    // A killed target takes none of it along.
    target.kill();
    let target = image.serve(&["--mount", text(&mount)]);
    look(&target);
    // The same by the name of the device, and the mount finds what there is each time.
    let again = mount.join(".snapshots/again");
    for content in ["one", "two"] {
        fs::write(mount.join("dir/small"), content).unwrap();
        good(&["snapshot", "create", text(&image.path()), "again"]);
        assert_eq!(
            fs::read(again.join("dir/small")).unwrap(),
            content.as_bytes()
        );
        good(&["snapshot", "delete", text(&image.path()), "again"]);
        assert!(fs::read(again.join("dir/small")).is_err());
    }
    assert!(target.stop().success());
    good(&["fsck", "-f", text(&image.path())]);
}

#[test]
fn peers_change_nothing_there() {
    if !can_serve() || !can_mount() {
        return;
    }
    let image = Image::new("128MiB");
    let (target, _) = with_snapshot(&image, &[]);
    let inside = "/.snapshots/then/dir/small";
    for (flags, op, path, status) in [
        (FLAG_WRITE, Op::Open, inside, libc::EROFS),
        (FLAG_CREATE, Op::Open, "/.snapshots/then/new", libc::EROFS),
        (0, Op::Unlink, inside, libc::EROFS),
        (0, Op::Rmdir, "/.snapshots/then", libc::EROFS),
        (0, Op::Rmdir, "/.snapshots", libc::EBUSY),
        (FLAG_EXCLUSIVE, Op::Mkdir, "/.snapshots/now", libc::EROFS),
        (FLAG_PERSISTENT, Op::Open, inside, libc::EOPNOTSUPP),
        (0, Op::Open, "/.snapshots", libc::EISDIR),
        (0, Op::Open, "/.snapshots/then/dir", libc::EISDIR),
        (0, Op::Open, "/.snapshots/then/dir/link", libc::EOPNOTSUPP),
        (0, Op::Stat, "/.snapshots/never", libc::ENOENT),
        (0, Op::Stat, "/.snapshots/then/never", libc::ENOENT),
        (0, Op::Stat, "/.snapshots/then/dir/../file", libc::EINVAL),
        (0, Op::Stat, "/.snapshots//file", libc::ENOENT),
    ] {
        let request = Request {
            flags,
            ..Request::new(op, path)
        };
        let (said, message) = refused(&target, request);
        assert_eq!(said, status, "{op:?} {path}: {message}");
    }
    let both = ["/dir/small", "/.snapshots/then/dir/other"];
    for (from, to) in [(both[0], both[1]), (both[1], both[0])] {
        let request = Request {
            length: from.len() as u64,
            ..Request::new(Op::Rename, format!("{from}{to}"))
        };
        assert_eq!(refused(&target, request).0, libc::EROFS);
    }
    let small = image.beside("new");
    fs::write(&small, b"new").unwrap();
    let put = bad(&["put", text(&small), &target.url(inside)]);
    assert!(put.contains("part of a snapshot"), "{put}");
    // A region that can be read can not be written.
    let mut session = target.session();
    let file = session.open(of_file(inside)).unwrap();
    let fill = |_, bytes: &mut [u8]| {
        bytes.fill(0);
        Ok(())
    };
    let written = session.write(&file, 0, 4, false, fill);
    let ended = written.and_then(|()| session.fence(&file));
    assert!(ended.is_err());
    assert_eq!(read(&mut target.session(), of_file(inside)), b"small");
    assert!(target.stop().success());
}

/// Who may not use a file now may not use what it was.
#[test]
fn exports_hold_in_snapshots() {
    if !can_serve() || !can_mount() {
        return;
    }
    let image = Image::new("128MiB");
    let (target, _) = with_snapshot(&image, &["--export", "/dir"]);
    let mut session = target.session();
    let small = read(&mut session, of_file("/.snapshots/then/dir/small"));
    assert_eq!(small, b"small");
    for path in [
        "/.snapshots/then/file",
        "/.snapshots/then",
        "/.snapshots",
        "/.snapshots/never/file",
    ] {
        let (errno, message) = refused(&target, Request::new(Op::Stat, path));
        assert_eq!(errno, libc::EACCES, "{path}: {message}");
    }
    session.close();
    assert!(target.stop().success());
}

/// While a file is overwritten, by a program and a peer, somebody reads what it was: no byte of it is ever another one. When the snapshot is
/// deleted the region ends, and with it who reads; the target goes on.
#[test]
fn what_was_there_stays_while_it_is_overwritten() {
    if !can_serve() || !can_mount() {
        return;
    }
    let image = Image::new("128MiB");
    // The pool has room for an eighth of the file.
    let (target, then) = with_snapshot(&image, &["--pool", "1MiB"]);
    let mount = image.beside("mnt");
    let done = AtomicBool::new(false);
    let reads = AtomicUsize::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            let file = File::options()
                .write(true)
                .open(mount.join("file"))
                .unwrap();
            let mut n = 0_u64;
            while !done.load(Ordering::Relaxed) {
                n += 1;
                let at = n * 7919 % (FILE_BYTES as u64 / 4096) * 4096;
                file.write_all_at(&[n as u8; 4096], at).unwrap();
            }
        });
        scope.spawn(|| {
            let mut session = target.session();
            let writable = Request {
                flags: FLAG_WRITE,
                ..of_file("/file")
            };
            let file = session.open(writable).unwrap();
            let mut n = 0_u64;
            while !done.load(Ordering::Relaxed) {
                n += 1;
                let fill = |_, bytes: &mut [u8]| {
                    bytes.fill(n as u8);
                    Ok(())
                };
                let at = n * 104_729 % (FILE_BYTES as u64 - 10_000);
                session.write(&file, at, 10_000, false, fill).unwrap();
            }
        });
        let readers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let mut session = target.session();
                    for _ in 0..4 {
                        let read = read(&mut session, of_file("/.snapshots/then/file"));
                        assert!(read == then, "not what it was");
                        reads.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        let read = readers.into_iter().map(thread::ScopedJoinHandle::join);
        let read: Vec<_> = read.collect();
        done.store(true, Ordering::Relaxed);
        assert!(read.iter().all(Result::is_ok));
    });
    assert_eq!(reads.into_inner(), 12);

    let mut session = target.session();
    let file = session.open(of_file("/.snapshots/then/file")).unwrap();
    session.read(&file, 0, 4096, |_, _| Ok(())).unwrap();
    good(&["snapshot", "delete", text(&mount), "then"]);
    assert!(session.read(&file, 0, 4096, |_, _| Ok(())).is_err());
    let (errno, _) = refused(&target, Request::new(Op::Stat, "/.snapshots/then/file"));
    assert_eq!(errno, libc::ENOENT);
    assert!(target.stop().success());
    good(&["fsck", "-f", text(&image.path())]);
}

/// Who serves a volume without a mount has snapshots of it, too: made, shown and deleted by its device, and what deleted ones held is
/// given back, else there would be no more after 32.
#[test]
fn a_volume_without_a_mount_has_them() {
    if !can_serve() {
        return;
    }
    let image = Image::new("128MiB");
    let path = image.path();
    let nobody = bad(&["snapshot", "create", text(&path), "first"]);
    assert!(nobody.contains("nobody serves"), "{nobody}");
    let nothing = bad(&["snapshot", "create", "no-such.img", "first"]);
    assert!(nothing.contains("no-such.img"), "{nothing}");
    assert!(nothing.contains("No such file"), "{nothing}");
    let target = image.serve(&[]);
    let content = image.beside("content");
    let put = |bytes: &[u8]| {
        fs::write(&content, bytes).unwrap();
        good(&["put", text(&content), &target.url("/file")]);
    };
    put(b"first");
    let made = good(&["snapshot", "create", text(&path), "first"]);
    assert_eq!(made.trim(), "/.snapshots/first");
    let again = bad(&["snapshot", "create", text(&path), "first"]);
    assert!(again.contains("there is one of this name"), "{again}");
    let mut later = 0;
    while later < 40 {
        put(format!("later {later}").as_bytes());
        let name = format!("later{later}");
        let made = common::flashnet(&["snapshot", "create", text(&path), &name]);
        let said = String::from_utf8_lossy(&made.stderr);
        if !made.status.success() {
            // Those being deleted count.
            assert!(said.contains("as many as there may be"), "{said}");
            continue;
        }
        good(&["snapshot", "delete", text(&path), &name]);
        later += 1;
    }
    let shown = good(&["--json", "snapshot", "list", text(&path)]);
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown.as_array().unwrap().len(), 1);
    assert_eq!(shown[0]["name"], "first");
    let then = good(&["get", &target.url("/.snapshots/first/file"), "-"]);
    assert_eq!(then, "first");
    let gone = bad(&["snapshot", "delete", text(&path), "later0"]);
    assert!(gone.contains("there is none of this name"), "{gone}");
    assert!(target.stop().success());
    // Who serves it read-only changes nothing.
    let target = image.serve(&["-o", "ro"]);
    for what in ["create", "delete"] {
        let said = bad(&["snapshot", what, text(&path), "first"]);
        assert!(said.contains("served read-only"), "{said}");
    }
    good(&["snapshot", "list", text(&path)]);
    assert!(target.stop().success());
    good(&["fsck", "-f", text(&path)]);
}

/// I2: a damaged grain is an error for who reads it, never other bytes, and for nobody else, although many are read at once.
#[test]
fn damage_is_where_it_is() {
    const DAMAGED: usize = 100;
    if !can_serve() || !can_mount() {
        return;
    }
    let image = Image::new("128MiB");
    let (target, then) = with_snapshot(&image, &[]);
    assert!(target.stop().success());
    let page = &then[DAMAGED * 4096..][..4096];
    let bytes = fs::read(image.path()).unwrap();
    let lies = bytes.chunks_exact(4096).position(|grain| grain == page);
    let at = lies.expect("it is on the media") as u64 * 4096 + 77;
    let media = File::options().write(true).open(image.path()).unwrap();
    media.write_all_at(&[!page[77]], at).unwrap();
    drop(media);

    let target = image.serve(&[]);
    let part = |first: usize, pages: usize| Request {
        offset: first as u64 * 4096,
        length: pages as u64 * 4096,
        ..of_file("/.snapshots/then/file")
    };
    let around = [(0, DAMAGED), (DAMAGED + 1, 400)];
    for (first, pages) in around {
        let there = read(&mut target.session(), part(first, pages));
        assert!(there == then[first * 4096..][..pages * 4096]);
    }
    let mut session = target.session();
    let file = session.open(part(0, 512)).unwrap();
    let mut came = Vec::new();
    let take = |_, bytes: &[u8]| {
        came.extend_from_slice(bytes);
        Ok(())
    };
    let whole = session.read(&file, 0, file.length, take);
    assert!(whole.is_err());
    assert!(came.len() <= DAMAGED * 4096 && then.starts_with(&came));
    assert!(target.stop().success());
}
