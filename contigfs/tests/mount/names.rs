//! Names through the kernel: what they may be, how they are exchanged, and what they lead to.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use support::mounted::{Mount, until};
use support::syscalls::{answer, c_path, errno, handle, mknod, open_handle, rename, set_xattr};

const GRAINS: u64 = 10_000;

fn ino(path: &Path) -> u64 {
    fs::symlink_metadata(path).unwrap().ino()
}

fn links(path: &Path) -> u64 {
    fs::symlink_metadata(path).unwrap().nlink()
}

/// renameat2(2) with `RENAME_NOREPLACE`: an existing name stays, whatever it is, also within a directory.
#[test]
fn rename_without_replacing() {
    let Some(mut mount) = Mount::new(GRAINS) else {
        return;
    };
    let at = |name: &str| mount.path().join(name);
    fs::create_dir_all(at("d/deep")).unwrap();
    for name in ["a", "b", "d/c"] {
        fs::write(at(name), name).unwrap();
    }
    let no_replace =
        |from: &str, to: &str| errno(rename(&at(from), &at(to), libc::RENAME_NOREPLACE));
    assert_eq!(no_replace("a", "b"), libc::EEXIST);
    assert_eq!(no_replace("a", "d/c"), libc::EEXIST);
    assert_eq!(no_replace("a", "d"), libc::EEXIST);
    assert_eq!(no_replace("a", "a"), libc::EEXIST);
    assert_eq!(no_replace("none", "n"), libc::ENOENT);
    assert_eq!(no_replace("a", "n"), 0);
    assert_eq!(no_replace("d/c", "c"), 0);
    assert_eq!(no_replace("d", "d/deep/d"), libc::EINVAL);
    assert_eq!(fs::read(at("n")).unwrap(), b"a");
    assert_eq!(fs::read(at("c")).unwrap(), b"d/c");
    assert_eq!(fs::read(at("b")).unwrap(), b"b");
    mount.unmount();
}

/// renameat2(2) with `RENAME_EXCHANGE`: any two kinds, across directories, but no directory with one below it; the
/// parents of directories follow. Other flags are refused.
#[test]
fn rename_exchanging() {
    let Some(mut mount) = Mount::new(GRAINS) else {
        return;
    };
    let root = mount.path().to_owned();
    let at = |name: &str| root.join(name);
    fs::create_dir_all(at("d/sub/deep")).unwrap();
    fs::create_dir_all(at("e/other")).unwrap();
    fs::write(at("f"), "f").unwrap();
    fs::write(at("e/g"), "g").unwrap();
    let exchange = |from: &str, to: &str| errno(rename(&at(from), &at(to), libc::RENAME_EXCHANGE));
    let before = ["f", "e/g", "d/sub", "e"].map(|name| ino(&at(name)));
    assert_eq!(exchange("f", "none"), libc::ENOENT);
    assert_eq!(exchange("d", "d/sub/deep"), libc::EINVAL);
    assert_eq!(exchange("d/sub/deep", "d"), libc::EINVAL);
    for flags in [
        libc::RENAME_WHITEOUT,
        libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE,
        1 << 10,
    ] {
        assert_eq!(errno(rename(&at("f"), &at("x"), flags)), libc::EINVAL);
    }
    assert_eq!(
        before,
        ["f", "e/g", "d/sub", "e"].map(|name| ino(&at(name)))
    );
    // Two files, a file and a directory, two directories of different parents.
    assert_eq!(exchange("f", "e/g"), 0);
    assert_eq!([ino(&at("e/g")), ino(&at("f"))], [before[0], before[1]]);
    assert_eq!((links(&at("d")), links(&root)), (3, 4));
    assert_eq!(exchange("f", "d/sub"), 0);
    assert_eq!([ino(&at("d/sub")), ino(&at("f"))], [before[1], before[2]]);
    assert_eq!((links(&at("d")), links(&root)), (2, 5));
    assert_eq!(ino(&at("f/..")), ino(&root));
    assert_eq!(exchange("f/deep", "e"), 0);
    assert_eq!(ino(&at("f/deep")), before[3]);
    assert_eq!(ino(&at("f/deep/..")), ino(&at("f")));
    assert!(at("f/deep/other").is_dir());
    // Two names of one file.
    fs::hard_link(at("f/deep/g"), at("h")).unwrap();
    assert_eq!(exchange("h", "f/deep/g"), 0);
    mount.remount();
    assert_eq!(fs::read(at("h")).unwrap(), b"f");
    assert_eq!(fs::read(at("d/sub")).unwrap(), b"g");
    assert!(at("e").is_dir() && at("f/deep/other").is_dir());
    mount.unmount();
}

/// mknod(2): pipes, sockets and devices are made, kept over a remount with their numbers, and work.
#[test]
fn special_files() {
    let Some(mut mount) = Mount::new_as_root(GRAINS) else {
        return;
    };
    let root = mount.path().to_owned();
    let at = |name: &str| root.join(name);
    let null = libc::makedev(1, 3);
    // The largest numbers that FUSE carries.
    let (wide, narrow) = (libc::makedev(0xfff, 0xf_ffff), libc::makedev(7, 1));
    mknod(&at("null"), libc::S_IFCHR | 0o666, null).unwrap();
    mknod(&at("wide"), libc::S_IFCHR | 0o600, wide).unwrap();
    mknod(&at("disk"), libc::S_IFBLK | 0o600, narrow).unwrap();
    mknod(&at("pipe"), libc::S_IFIFO | 0o600, 0).unwrap();
    mknod(&at("socket"), libc::S_IFSOCK | 0o600, 0).unwrap();
    mknod(&at("plain"), 0o600, 0).unwrap();
    assert_eq!(errno(mknod(&at("pipe"), libc::S_IFIFO, 0)), libc::EEXIST);
    mount.remount();
    let attr = |name: &str| fs::symlink_metadata(at(name)).unwrap();
    for (name, device) in [("null", null), ("wide", wide)] {
        assert!(attr(name).file_type().is_char_device());
        assert_eq!(attr(name).rdev(), device, "{name}");
    }
    assert!(attr("disk").file_type().is_block_device());
    assert_eq!(attr("disk").rdev(), narrow);
    assert!(attr("pipe").file_type().is_fifo());
    assert!(attr("socket").file_type().is_socket());
    assert!(attr("plain").is_file());
    fs::write(at("null"), "away").unwrap();
    assert_eq!(fs::read(at("null")).unwrap(), b"");
    std::thread::scope(|scope| {
        scope.spawn(|| fs::write(at("pipe"), "through the pipe").unwrap());
        assert_eq!(fs::read(at("pipe")).unwrap(), b"through the pipe");
    });
    fs::remove_file(at("socket")).unwrap();
    let listener = UnixListener::bind(at("socket")).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut stream = UnixStream::connect(at("socket")).unwrap();
            stream.write_all(b"hello").unwrap();
        });
        let mut text = String::new();
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_to_string(&mut text).unwrap();
        assert_eq!(text, "hello");
    });
    drop(listener);
    mount.unmount();
}

/// What was removed while somebody had it open, of every kind, is there for him until he closes it, also when the name
/// is used again; its number is nobody else's meanwhile.
#[test]
fn removed_while_open() {
    let Some(mut mount) = Mount::new(GRAINS) else {
        return;
    };
    let root = mount.path().to_owned();
    let at = |name: &str| root.join(name);
    let empty = mount.fs().statfs();
    fs::write(at("file"), "content").unwrap();
    fs::create_dir(at("dir")).unwrap();
    mknod(&at("pipe"), libc::S_IFIFO | 0o600, 0).unwrap();
    std::os::unix::fs::symlink("target", at("link")).unwrap();
    let names = ["file", "dir", "pipe", "link"];
    let held = names.map(|name| {
        let mut options = OpenOptions::new();
        let flags = if name == "link" {
            libc::O_PATH | libc::O_NOFOLLOW
        } else {
            libc::O_NONBLOCK
        };
        options
            .read(true)
            .custom_flags(flags)
            .open(at(name))
            .unwrap()
    });
    let numbers = names.map(|name| ino(&at(name)));
    for name in names {
        match name {
            "dir" => fs::remove_dir(at(name)).unwrap(),
            _ => fs::remove_file(at(name)).unwrap(),
        }
        fs::write(at(name), "new").unwrap();
    }
    for (name, (file, number)) in names.iter().zip(held.iter().zip(numbers)) {
        let attr = file.metadata().unwrap();
        assert_eq!((attr.ino(), attr.nlink()), (number, 0), "{name}");
        assert!(names.iter().all(|name| ino(&at(name)) != number), "{name}");
    }
    let mut text = String::new();
    (&held[0]).read_to_string(&mut text).unwrap();
    assert_eq!(text, "content");
    // As `open(".")` does for who works in a removed directory.
    let again = File::open(format!("/proc/self/fd/{}", held[1].as_raw_fd())).unwrap();
    assert_eq!(again.metadata().unwrap().ino(), numbers[1]);
    drop(again);
    drop(held);
    for name in names {
        fs::remove_file(at(name)).unwrap();
    }
    mount.remount();
    let now = mount.fs().statfs();
    assert_eq!(
        (now.inodes, now.grains_free),
        (empty.inodes, empty.grains_free)
    );
    mount.unmount();
}

/// Makes a file without a name.
fn unnamed(dir: &Path, flags: i32) -> std::io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_TMPFILE | flags)
        .mode(0o640)
        .open(dir)
}

/// Gives an open file a name, as open(2) says.
fn name_it(file: &File, path: &Path) -> i32 {
    let from = c_path(Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd())));
    let (to, flags) = (c_path(path), libc::AT_SYMLINK_FOLLOW);
    let at = libc::AT_FDCWD;
    // SAFETY: both paths end with a zero byte and live over the call.
    let result = unsafe { libc::linkat(at, from.as_ptr(), at, to.as_ptr(), flags) };
    errno(answer(result))
}

/// open(2) with `O_TMPFILE`: a file that nobody sees until it is given a name, and that is gone when it is closed
/// without one; with `O_EXCL` it is not given any.
#[test]
fn files_without_a_name() {
    let Some(mut mount) = Mount::new(GRAINS) else {
        return;
    };
    let dir = mount.path().join("dir");
    fs::create_dir(&dir).unwrap();
    let free = mount.fs().statfs().grains_free;

    let mut file = unnamed(&dir, 0).unwrap();
    file.write_all(&[7; 100_000]).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    assert_eq!(file.metadata().unwrap().mode() & 0o7777, 0o640);
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
    assert!(mount.fs().statfs().grains_free < free);
    assert_eq!(name_it(&file, &dir.join("named")), 0);
    assert_eq!(name_it(&file, &dir.join("named")), libc::EEXIST);
    drop(file);
    assert_eq!(links(&dir.join("named")), 1);
    assert_eq!(fs::read(dir.join("named")).unwrap(), [7; 100_000]);
    fs::remove_file(dir.join("named")).unwrap();

    let mut file = unnamed(&dir, libc::O_EXCL).unwrap();
    file.write_all(b"x").unwrap();
    assert_eq!(name_it(&file, &dir.join("named")), libc::ENOENT);
    drop(file);
    let read_only = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_TMPFILE)
        .open(&dir);
    assert_eq!(read_only.unwrap_err().raw_os_error(), Some(libc::EINVAL));
    assert!(unnamed(&dir.join("none"), 0).is_err());

    // What is left of many, at once and after a remount: nothing.
    for _ in 0..100 {
        unnamed(&dir, 0).unwrap().write_all(&[1; 5000]).unwrap();
    }
    mount.remount();
    fs::remove_dir(mount.path().join("dir")).unwrap();
    mount.unmount();
}

/// Names have up to 255 bytes, any but `/` and NUL, and are listed as they were given.
#[test]
fn names_of_any_bytes() {
    let Some(mut mount) = Mount::new(GRAINS) else {
        return;
    };
    let root = mount.path().to_owned();
    let mut names: Vec<Vec<u8>> = (1..=255).map(|len| vec![b'n'; len]).collect();
    names.extend(
        (1..=255)
            .filter(|byte| !b"/.n".contains(byte))
            .map(|byte| vec![byte]),
    );
    names.push((1..=255).filter(|&byte| byte != b'/').collect());
    names.extend([&b"..."[..], b". ", b"\xff\xfe", b"a\nb"].map(Vec::from));
    let at = |name: &[u8]| root.join(OsStr::from_bytes(name));
    for name in &names {
        fs::write(at(name), name).unwrap();
    }
    assert_eq!(errno(File::create(at(&[b'n'; 256]))), libc::ENAMETOOLONG);
    assert_eq!(
        errno(fs::rename(at(b"n"), at(&[b'n'; 256]))),
        libc::ENAMETOOLONG
    );
    mount.remount();
    let mut listed: Vec<_> = fs::read_dir(&root)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().as_bytes().to_vec())
        .collect();
    listed.sort();
    names.sort();
    assert_eq!(listed, names);
    for name in &names {
        assert_eq!(fs::read(at(name)).unwrap(), *name);
        fs::remove_file(at(name)).unwrap();
    }
    mount.unmount();
}

/// A large directory listed through the kernel while names come and go: those that stay are seen exactly once, with
/// their attributes.
#[test]
fn listing_a_large_directory_that_changes() {
    const STABLE: usize = 20_000;
    let Some(mut mount) = Mount::new(100_000) else {
        return;
    };
    let root = mount.path().to_owned();
    let at = |kind: &str, n: usize| root.join(format!("{kind}-{n}"));
    for n in 0..STABLE {
        File::create(at("stable", n)).unwrap();
    }
    mount.remount();
    let done = AtomicBool::new(false);
    let mut seen = vec![0; STABLE];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let kinds = ["x", "a-name-of-more-than-one-unit", "y"];
            for n in 0.. {
                File::create(at(kinds[n % 3], n)).unwrap();
                if let Some(old) = n.checked_sub(50) {
                    fs::remove_file(at(kinds[old % 3], old)).unwrap();
                }
                if done.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        for entry in fs::read_dir(&root).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            if let Some(n) = name.strip_prefix("stable-") {
                seen[n.parse::<usize>().unwrap()] += 1;
                assert!(entry.metadata().unwrap().is_file());
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(seen.iter().all(|&times| times == 1));
    for entry in fs::read_dir(&root).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    assert_eq!(
        fs::read_dir(&root).unwrap().count(),
        0,
        "listing while removing"
    );
    mount.unmount();
}

/// statfs(2): blocks and inodes move by what is made and removed, and by nothing else.
#[test]
fn statfs_tells_the_truth() {
    let Some(mut mount) = Mount::new(GRAINS) else {
        return;
    };
    let root = mount.path().to_owned();
    let path = c_path(&root);
    let stat = || {
        // SAFETY: all zeros are legal, and the structure lives through the call.
        let mut stat: libc::statvfs = unsafe { std::mem::zeroed() };
        // SAFETY: as above; the path ends with NUL.
        answer(unsafe { libc::statvfs(path.as_ptr(), &mut stat) }).unwrap();
        assert_eq!(
            (stat.f_frsize, stat.f_namemax, stat.f_blocks),
            (4096, 255, GRAINS)
        );
        assert_eq!(stat.f_bavail, stat.f_bfree);
        (stat.f_files - stat.f_ffree, stat.f_blocks - stat.f_bfree)
    };
    // Two root records, hot and cold records, and nothing in the root directory yet.
    assert_eq!(stat(), (1, 4));
    fs::write(root.join("f"), vec![1; 10 * 4096]).unwrap();
    assert_eq!(stat(), (2, 4 + 1 + 10));
    fs::create_dir(root.join("d")).unwrap();
    fs::hard_link(root.join("f"), root.join("d/g")).unwrap();
    assert_eq!(stat(), (3, 16));
    set_xattr(&root.join("f"), "user.a", b"v", 0).unwrap();
    assert_eq!(stat(), (3, 17));
    assert_eq!(fs::metadata(root.join("f")).unwrap().blocks(), 11 * 8);
    File::options()
        .write(true)
        .open(root.join("f"))
        .unwrap()
        .set_len(4096)
        .unwrap();
    assert_eq!(stat(), (3, 8));
    fs::remove_dir_all(root.join("d")).unwrap();
    fs::remove_file(root.join("f")).unwrap();
    assert_eq!(stat(), (1, 4));
    mount.unmount();
}

/// rename(2): a name that is replaced leads somewhere at every moment, for who opens it and for who reads a link; and what was replaced
/// is gone when nobody is led there any more.
#[test]
fn a_replaced_name_is_always_there() {
    const REPLACED: usize = 1000;
    let Some(mut mount) = Mount::new(GRAINS) else {
        return;
    };
    let at = |name: &str| mount.path().join(name);
    let free = || mount.fs().statfs().grains_free;
    fs::write(at("file"), "x").unwrap();
    symlink("file", at("link")).unwrap();
    let before = free();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watch = |look: fn(&Path) -> std::io::Result<()>, path: &Path| {
            let path = path.to_owned();
            let stop = &stop;
            scope.spawn(move || {
                let (mut looks, mut failed) = (0, Vec::new());
                while !stop.load(Ordering::Relaxed) {
                    looks += 1;
                    failed.extend(look(&path).err());
                }
                (looks, failed)
            })
        };
        let (file, link) = (at("file"), at("link"));
        let readers = [
            watch(|path| File::open(path).map(drop), &file),
            watch(|path| fs::read_link(path).map(drop), &link),
        ];
        for _ in 0..REPLACED {
            fs::write(at("new"), "y").unwrap();
            fs::rename(at("new"), &file).unwrap();
            symlink("file", at("new")).unwrap();
            fs::rename(at("new"), &link).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        for reader in readers {
            let (looks, failed) = reader.join().unwrap();
            assert!(looks > 0);
            assert!(
                failed.is_empty(),
                "{} of {looks}: {:?}",
                failed.len(),
                failed[0]
            );
        }
    });
    // The kernel tells what it has forgotten when it has nothing else to say.
    until("replaced files are gone", || free() == before);
    mount.unmount();
}

/// Who holds what was replaced, open or by its path only, has it until he lets go.
#[test]
fn what_was_replaced_is_kept_for_who_holds_it() {
    let Some(mut mount) = Mount::new(GRAINS) else {
        return;
    };
    let at = |name: &str| mount.path().join(name);
    let free = || mount.fs().statfs().grains_free;
    let replace = || {
        fs::write(at("new"), "new").unwrap();
        fs::rename(at("new"), at("file")).unwrap();
    };
    fs::write(at("file"), "new").unwrap();
    let before = free();
    fs::write(at("file"), "old").unwrap();
    let place = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_PATH)
        .open(at("file"))
        .unwrap();
    replace();
    // open(2) of a descriptor of a path: the file without a name.
    let proc = format!("/proc/self/fd/{}", place.as_raw_fd());
    assert_eq!(fs::read(&proc).unwrap(), b"old");
    assert_eq!(fs::read(at("file")).unwrap(), b"new");
    assert_eq!(place.metadata().unwrap().nlink(), 0);
    assert_eq!(free(), before - 1);
    drop(place);
    until("it is let go", || free() == before);
    mount.unmount();
}

/// name_to_handle_at(2), open_by_handle_at(2): handles of files, links and directories last over mounts, and not beyond their end.
#[test]
fn handles() {
    let Some(mut mount) = Mount::new_as_root(GRAINS) else {
        return;
    };
    let at = |name: &str| mount.path().join(name);
    fs::write(at("file"), "text").unwrap();
    fs::create_dir(at("dir")).unwrap();
    symlink("file", at("link")).unwrap();
    let names = ["file", "dir", "link"];
    let numbers = names.map(|name| ino(&at(name)));
    let handles = names.map(|name| handle(&at(name)).unwrap());
    mount.remount();
    for (handle, number) in handles.iter().zip(numbers) {
        let file = open_handle(mount.path(), handle, libc::O_PATH).unwrap();
        assert_eq!(file.metadata().unwrap().ino(), number);
    }
    let mut text = String::new();
    let mut file = open_handle(mount.path(), &handles[0], libc::O_RDONLY).unwrap();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "text");
    drop(file);
    fs::remove_file(mount.path().join("file")).unwrap();
    mount.remount();
    // Another file gets its number.
    for name in ["a", "b", "c"] {
        fs::write(mount.path().join(name), name).unwrap();
    }
    let gone = open_handle(mount.path(), &handles[0], libc::O_RDONLY);
    assert_eq!(errno(gone), libc::ESTALE);
    mount.unmount();
}

/// A directory has all its names, also of files of which nothing can be read: a copy of it must not be taken for whole.
#[test]
fn unreadable_files_are_listed() {
    let Some(mut mount) = Mount::new(GRAINS) else {
        return;
    };
    let at = |n: u64| mount.path().join(format!("f{n}"));
    for n in 0..120 {
        fs::write(at(n), "x").unwrap();
    }
    mount.remount();
    // All that is beside names, sizes and places, of the 32 files around this one.
    let number = ino(&mount.path().join("f60"));
    let cold = contigfs::ByteAddr::new(ftl::Lba((1 << 28) + number / 32), number % 32 * 128 + 20);
    mount.remount();
    mount.store.poke(cold, |byte| byte ^ 0x55);
    let listed = fs::read_dir(mount.path()).unwrap();
    let mut listed: Vec<_> = listed.map(|entry| entry.unwrap().file_name()).collect();
    listed.sort();
    let mut expected: Vec<std::ffi::OsString> = (0..120).map(|n| format!("f{n}").into()).collect();
    expected.sort();
    assert_eq!(listed, expected);
    assert_eq!(errno(fs::metadata(mount.path().join("f60"))), libc::EIO);
    mount.store.poke(cold, |byte| byte ^ 0x55);
    mount.unmount();
}

/// Who watches a directory hears of everything that is done to it through the mount, in its order, by the names it was done
/// to.
#[test]
fn watchers_hear_of_changes() {
    let Some(mut mount) = Mount::new(GRAINS) else {
        return;
    };
    let at = |name: &str| mount.path().join(name);
    fs::create_dir(at("d")).unwrap();
    let heard = Inotify::init(InitFlags::IN_NONBLOCK).unwrap();
    use AddWatchFlags as Is;
    let wanted = Is::IN_CREATE
        | Is::IN_MODIFY
        | Is::IN_ATTRIB
        | Is::IN_CLOSE_WRITE
        | Is::IN_MOVE
        | Is::IN_DELETE
        | Is::IN_DELETE_SELF;
    heard.add_watch(&at("d"), wanted).unwrap();
    let mut file = File::create(at("d/a")).unwrap();
    file.write_all(b"content").unwrap();
    drop(file);
    fs::set_permissions(at("d/a"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::rename(at("d/a"), at("d/b")).unwrap();
    fs::hard_link(at("d/b"), at("d/c")).unwrap();
    fs::remove_file(at("d/b")).unwrap();
    fs::rename(at("d/c"), at("away")).unwrap();
    fs::remove_dir(at("d")).unwrap();
    let mut events = Vec::new();
    while let Ok(more) = heard.read_events() {
        events.extend(more.into_iter().map(|event| {
            let name = event.name.unwrap_or_default();
            (event.mask, name.into_string().unwrap())
        }));
    }
    let expected = [
        (Is::IN_CREATE, "a"),
        (Is::IN_MODIFY, "a"),
        (Is::IN_CLOSE_WRITE, "a"),
        (Is::IN_ATTRIB, "a"),
        (Is::IN_MOVED_FROM, "a"),
        (Is::IN_MOVED_TO, "b"),
        (Is::IN_CREATE, "c"),
        (Is::IN_DELETE, "b"),
        (Is::IN_MOVED_FROM, "c"),
        (Is::IN_DELETE_SELF, ""),
        (Is::IN_IGNORED, ""),
    ];
    let expected = expected.map(|(mask, name)| (mask, name.to_owned()));
    assert_eq!(events, expected);
    mount.unmount();
}
