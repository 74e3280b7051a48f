//! Snapshots of the file system: what they show is what was there, whatever happens to the files since (I2, I9), over
//! crashes, repairs and deleting; and through the kernel. `docs/snapshots.md` says what is promised.

mod support;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use contigfs::fuse::{MountOptions, mount};
use contigfs::{
    FileKind, FormatOptions, Fs, FsError, InodeNo, NewNode, RenameMode, SetAttr, WriteOptions,
    check_with_data, open_snapshot,
};
use ftl::{Device, MemDevice, OpenOptions, Volume};
use support::mounted::skip;
use support::oracle::{Picture, picture_of};
use support::{Dice, name};

const ROOT: InodeNo = InodeNo::ROOT;

type Store = Arc<Volume<MemDevice>>;

fn formatted(bytes: usize) -> MemDevice {
    let mut device = MemDevice::new(bytes).unwrap();
    ftl::Ftl::format(&mut device, &ftl::FormatOptions::default()).unwrap();
    let volume = open(device);
    Fs::format(&volume, &FormatOptions::default()).unwrap();
    volume.into_device()
}

fn open<D: Device>(device: D) -> Volume<D> {
    let options = OpenOptions {
        pool_frames: 1024,
        ..OpenOptions::default()
    };
    Volume::open(device, options).unwrap().0
}

/// What a snapshot shows; it is a file system without faults.
fn shown(fs: &Arc<Fs<Store>>, label: &[u8]) -> Picture {
    let snapshot = fs.find_snapshot(label).expect("the snapshot is there");
    let opened = open_snapshot(fs, &snapshot).unwrap();
    let report = check_with_data(opened.store());
    assert!(report.is_clean(), "{:#?}", report.problems);
    picture_of(&opened).unwrap()
}

/// Something happens to some file or directory.
fn change(fs: &Fs<Store>, dice: &mut Dice, step: u64) {
    let mut files = Vec::new();
    let mut dirs = vec![ROOT];
    let mut all = Vec::new();
    let mut at = 0;
    while at < dirs.len() {
        let dir = dirs[at];
        fs.readdir(dir, 0, |entry| {
            if entry.name != "." && entry.name != ".." {
                all.push((dir, entry.name.clone(), entry.ino));
                match entry.kind {
                    FileKind::Directory => dirs.push(entry.ino),
                    _ => files.push(entry.ino),
                }
            }
            true
        })
        .unwrap();
        at += 1;
    }
    let dir = *dice.pick(&dirs);
    let label = format!("n{}", dice.below(40));
    let data = vec![step as u8; 1 + dice.below(30_000) as usize];
    let tolerated = |result: Result<(), FsError>| match result {
        Ok(()) | Err(FsError::Exists | FsError::NotEmpty | FsError::NoSpace) => {}
        Err(FsError::IsDirectory | FsError::Invalid | FsError::NotDirectory) => {}
        Err(error) => panic!("{error}"),
    };
    let file = files.get(dice.below(files.len().max(1) as u64) as usize);
    match (dice.below(10), file) {
        (0..3, _) | (_, None) => {
            let made = fs.create(dir, name(&label), &NewNode::file());
            tolerated(made.and_then(|made| {
                let options = WriteOptions::default();
                fs.write(made.ino, 0, &data, options).map(drop)
            }));
        }
        (3, _) if dirs.len() < 8 => {
            tolerated(
                fs.create(dir, name(&label), &NewNode::directory())
                    .map(drop),
            );
        }
        (3..6, Some(&file)) => {
            let at = dice.below(60_000);
            tolerated(fs.write(file, at, &data, WriteOptions::default()).map(drop));
        }
        (6, Some(&file)) => {
            let set = SetAttr {
                size: Some(dice.below(50_000)),
                ..SetAttr::default()
            };
            tolerated(fs.set_attr(file, &set).map(drop));
        }
        (7, _) => {
            let (dir, label, ino) = dice.pick(&all).clone();
            tolerated(match dirs.contains(&ino) {
                true => fs.rmdir(dir, &label),
                false => fs.unlink(dir, &label),
            });
        }
        _ => {
            let (from, old, ino) = dice.pick(&all).clone();
            if !dirs.contains(&ino) {
                tolerated(fs.rename(from, &old, dir, name(&label), RenameMode::Replace));
            }
        }
    }
}

/// Random changes, snapshots made and deleted among them; each shows what was there, in every life, also when the process
/// was gone without a word; and when all are deleted their space is back.
#[test]
fn show_what_was_there() {
    let mut device = formatted(48 << 20);
    let mut dice = Dice::new(7);
    let mut kept: Vec<(Vec<u8>, Picture)> = Vec::new();
    let mut made = 0;
    for life in 0..5 {
        let volume = Arc::new(open(device));
        let fs = Arc::new(Fs::mount(Arc::clone(&volume)).unwrap());
        for step in 0..160 {
            change(&fs, &mut dice, step);
            if step % 40 == 20 {
                made += 1;
                let label = format!("s{made}").into_bytes();
                let picture = picture_of(&fs).unwrap();
                fs.make_snapshot(&label).unwrap();
                assert_eq!(fs.make_snapshot(&label), Err(FsError::Exists));
                kept.push((label, picture));
            }
            if step % 50 == 49 && kept.len() > 3 {
                let (label, _) = kept.remove(dice.below(kept.len() as u64) as usize);
                fs.delete_snapshot(&label).unwrap();
                assert_eq!(fs.delete_snapshot(&label), Err(FsError::NotFound));
            }
            if step % 7 == 0 {
                fs.sweep_snapshots().unwrap();
            }
        }
        for (label, picture) in &kept {
            assert_eq!(shown(&fs, label), *picture, "{label:?} in life {life}");
        }
        let listed: Vec<Vec<u8>> = fs.snapshots().into_iter().map(|s| s.name).collect();
        let wanted: Vec<Vec<u8>> = kept.iter().map(|k| k.0.clone()).collect();
        assert_eq!(listed, wanted);
        // Without a sync, or in order.
        if life % 2 == 0 {
            fs.sync_all().unwrap();
            volume.shutdown().unwrap();
        }
        drop(fs);
        device = Arc::into_inner(volume).unwrap().into_device();
        let options = OpenOptions::default();
        let told = &mut |_, _, _| {};
        let (report, back) = contigfs::check_volume(device, &options, told).unwrap();
        assert_eq!(report.problems(), Vec::<String>::new());
        device = back;
    }
    let volume = Arc::new(open(device));
    let fs = Arc::new(Fs::mount(Arc::clone(&volume)).unwrap());
    for (label, picture) in &kept {
        assert_eq!(shown(&fs, label), *picture);
        fs.delete_snapshot(label).unwrap();
    }
    while fs.sweep_snapshots().unwrap() {}
    let users = volume.mapped_count(ftl::LbaRange::ALL);
    assert!(volume.space().mapped <= users + 1, "only the table is left");
}

/// A full volume: what is deleted stays in the snapshot, so space comes back with it, and deleting it always works (I17).
#[test]
fn full() {
    let volume = Arc::new(open(formatted(8 << 20)));
    let fs = Arc::new(Fs::mount(Arc::clone(&volume)).unwrap());
    let file = fs
        .create(ROOT, name("large"), &NewNode::file())
        .unwrap()
        .ino;
    fs.make_snapshot(b"empty").unwrap();
    let mut at = 0;
    let options = WriteOptions::default();
    while fs
        .write(file, at, &[1; 65_536], options)
        .is_ok_and(|n| n == 65_536)
    {
        at += 65_536;
    }
    fs.sync_all().unwrap();
    let made = fs.make_snapshot(b"full");
    assert!(matches!(made, Ok(_) | Err(FsError::NoSpace)), "{made:?}");
    // Nothing can be overwritten now; that is said, and nothing is lost.
    let refused = fs.write(file, 0, &[2; 4096], options);
    for label in [&b"full"[..], b"empty"] {
        let deleted = fs.delete_snapshot(label);
        assert!(deleted.is_ok() || label == b"full", "{deleted:?}");
    }
    while fs.sweep_snapshots().unwrap() {}
    println!("overwriting while full: {refused:?}");
    fs.unlink(ROOT, name("large")).unwrap();
    let space = volume.space();
    assert!(space.mapped < 64, "{space:?}");
}

/// Names that can not be, more than there may be, and stores that have none.
#[test]
fn limits() {
    let volume = Arc::new(open(formatted(16 << 20)));
    let fs = Fs::mount(volume).unwrap();
    for bad in [&b""[..], b".", b"..", b"a/b", &[b'x'; 97]] {
        assert_eq!(fs.make_snapshot(bad), Err(FsError::Invalid));
    }
    for n in 0..ftl::snapshot::SNAPSHOTS_MAX {
        fs.make_snapshot(format!("{n}").as_bytes()).unwrap();
    }
    assert_eq!(fs.make_snapshot(b"more"), Err(FsError::TooManySnapshots));
    fs.delete_snapshot(b"3").unwrap();
    while fs.sweep_snapshots().unwrap() {}
    fs.make_snapshot(b"more").unwrap();
    let (_, memory) = support::fresh(1000);
    assert_eq!(memory.make_snapshot(b"none"), Err(FsError::NotSupported));
}

fn read_dir(dir: &Path) -> Vec<String> {
    let mut all: Vec<String> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    all.sort();
    all
}

/// Through the kernel: `.snapshots` is there and not listed, a snapshot is a tree with numbers of its own that can be read,
/// mapped and walked, and not changed; `rmdir` ends it.
#[test]
fn mounted() {
    let volume = Arc::new(open(formatted(64 << 20)));
    let files = Arc::new(Fs::mount(Arc::clone(&volume)).unwrap());
    let dir = tempfile::TempDir::new().unwrap();
    let mounted = mount(Arc::clone(&files), dir.path(), &MountOptions::default());
    let mut mounted = match mounted {
        Ok(mounted) => mounted,
        Err(error) => return skip(&error.to_string()),
    };
    let root = dir.path();
    fs::create_dir(root.join("sub")).unwrap();
    fs::write(root.join("sub/a"), vec![1; 200_000]).unwrap();
    fs::write(root.join("b"), b"before").unwrap();
    let snapshots = root.join(".snapshots");
    fs::create_dir(snapshots.join("one")).unwrap();
    assert_eq!(read_dir(root), ["b", "sub"]);
    assert_eq!(read_dir(&snapshots), ["one"]);
    let one = snapshots.join("one");

    let changed = File::options()
        .write(true)
        .open(root.join("sub/a"))
        .unwrap();
    changed.write_all_at(&[2; 9000], 5000).unwrap();
    fs::remove_file(root.join("b")).unwrap();
    fs::write(root.join("c"), b"new").unwrap();

    assert_eq!(read_dir(&one), ["b", "sub"]);
    assert_eq!(fs::read(one.join("b")).unwrap(), b"before");
    assert_eq!(fs::read(one.join("sub/a")).unwrap(), vec![1; 200_000]);
    let file = File::open(one.join("sub/a")).unwrap();
    // SAFETY: nobody can change the file.
    let mapped = unsafe { memmap2::Mmap::map(&file).unwrap() };
    assert!(mapped.iter().all(|&byte| byte == 1));
    let (then, now) = (
        file.metadata().unwrap(),
        fs::metadata(root.join("sub/a")).unwrap(),
    );
    assert_eq!((then.dev(), then.size()), (now.dev(), now.size()));
    assert_ne!(then.ino(), now.ino());
    let again = fs::metadata(one.join("sub/a")).unwrap();
    assert_eq!(again.ino(), then.ino());

    let is_refused = |result: std::io::Result<()>, errno: i32| {
        assert_eq!(result.unwrap_err().raw_os_error(), Some(errno));
    };
    is_refused(fs::write(one.join("b"), b"no"), libc::EROFS);
    is_refused(fs::write(one.join("new"), b"no"), libc::EROFS);
    is_refused(fs::remove_file(one.join("b")), libc::EROFS);
    is_refused(fs::create_dir(one.join("d")), libc::EROFS);
    is_refused(fs::rename(one.join("b"), one.join("e")), libc::EROFS);
    is_refused(fs::rename(root.join("c"), one.join("c")), libc::EXDEV);
    is_refused(fs::hard_link(one.join("b"), root.join("h")), libc::EXDEV);
    is_refused(fs::create_dir(&one), libc::EEXIST);
    is_refused(fs::remove_dir(snapshots.join("none")), libc::ENOENT);
    is_refused(fs::write(snapshots.join("file"), b"no"), libc::EPERM);

    // What was copied out of it is what it was.
    fs::copy(one.join("b"), root.join("back")).unwrap();
    assert_eq!(fs::read(root.join("back")).unwrap(), b"before");

    fs::create_dir(snapshots.join("two")).unwrap();
    assert_eq!(read_dir(&snapshots), ["one", "two"]);
    assert_eq!(read_dir(&snapshots.join("two")), ["back", "c", "sub"]);
    drop((file, mapped));
    fs::remove_dir(&one).unwrap();
    assert_eq!(read_dir(&snapshots), ["two"]);
    assert!(fs::metadata(&one).is_err());
    assert_eq!(fs::read(snapshots.join("two/c")).unwrap(), b"new");
    fs::remove_dir(snapshots.join("two")).unwrap();
    drop(changed);
    mounted.unmount().unwrap();
    while files.sweep_snapshots().unwrap() {}
    let users = volume.mapped_count(ftl::LbaRange::ALL);
    assert!(volume.space().mapped <= users + 1);
}
