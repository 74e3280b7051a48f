//! Snapshots as people meet them: on a mount, with local and remote writers, through a kill, and with the commands (I2, I9).

mod common;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use common::{Image, Target, bad, can_mount, can_serve, good, pattern};
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
