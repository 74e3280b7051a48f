//! Snapshots of the file system: what they show is what was there, whatever happens to the files since (I2, I9), over
//! crashes, repairs and deleting; and through the kernel. `docs/snapshots.md` says what is promised.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use contigfs::fuse::{MountOptions, mount};
use contigfs::{
    BlockStore, ByteAddr, FallocMode, FileKind, FormatOptions, Fs, FsError, FsOptions, InodeNo,
    NewNode, Problem, RenameMode, SetAttr, StoreError, SyncScope, WriteOptions, check_with_data,
    open_snapshot,
};
use ftl::device::MediaError;
use ftl::device::sim::{Effect, Fault, OpKind, SimDevice};
use ftl::snapshot::{Host, SnapshotChange, SnapshotError};
use ftl::{AtomicBatch, Device, Ftl, Lba, LbaRange, MemDevice, OpenOptions, Space, Volume};
use support::mounted::skip;
use support::oracle::{Picture, picture_of};
use support::syscalls::some_names;
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

/// I7: when the media have lost the grain that says which snapshots there are, the file system is mounted, repaired and used
/// as ever, without them.
#[test]
fn without_their_table() {
    let volume = Arc::new(open(formatted(16 << 20)));
    let fs = Arc::new(Fs::mount(Arc::clone(&volume)).unwrap());
    let file = fs.create(ROOT, name("file"), &NewNode::file()).unwrap().ino;
    let options = WriteOptions::default();
    fs.write(file, 0, &[1; 10_000], options).unwrap();
    fs.make_snapshot(b"lost").unwrap();
    fs.write(file, 0, &[2; 5_000], options).unwrap();
    fs.sync_all().unwrap();
    drop(fs);
    volume.shutdown().unwrap();
    let mut device = Arc::into_inner(volume).unwrap().into_device();
    let report = ftl::check(&mut device).unwrap();
    let Some(ftl::Checked::Data { pba, .. }) = report.map.get(&ftl::Lba(63 << 52)) else {
        panic!("there is no table");
    };
    let at = pba.0 as usize * ftl::GRAIN_BYTES;
    device.image_mut()[at..at + ftl::GRAIN_BYTES].fill(0);
    for repairs in [false, true] {
        let copy = MemDevice::from_image(device.image()).unwrap();
        let volume = Arc::new(open(copy));
        // Which nobody would hear of otherwise.
        let lost = [Problem::Snapshots { error: None }];
        assert_eq!(contigfs::check(&*volume).problems, lost);
        if repairs {
            let report = contigfs::repair(&*volume, contigfs::Care::Safe).unwrap();
            assert!(report.after.is_clean(), "{report:?}");
            assert_eq!(report.repaired, lost);
            let again = contigfs::repair(&*volume, contigfs::Care::Full).unwrap();
            assert_eq!(again.repaired, []);
        }
        let fs = Arc::new(Fs::mount(Arc::clone(&volume)).unwrap());
        assert_eq!(fs.snapshots(), []);
        let mut bytes = vec![0; 10_000];
        assert_eq!(fs.read(file, 0, &mut bytes), Ok(10_000));
        assert!(bytes[..5_000] == [2; 5_000] && bytes[5_000..] == [1; 5_000]);
        while fs.sweep_snapshots().unwrap() {}
        fs.make_snapshot(b"new").unwrap();
        fs.write(file, 0, &[3; 10_000], options).unwrap();
        let kept = shown(&fs, b"new");
        fs.unlink(ROOT, name("file")).unwrap();
        assert_eq!(shown(&fs, b"new"), kept);
    }
}

/// A volume that counts how often its engine is asked something.
struct Asked {
    volume: Volume<MemDevice>,
    times: AtomicU64,
}

impl BlockStore for Asked {
    fn read(&self, at: ByteAddr, buf: &mut [u8]) -> Result<(), StoreError> {
        BlockStore::read(&self.volume, at, buf)
    }

    fn write(&self, at: ByteAddr, data: &[u8]) -> Result<(), StoreError> {
        BlockStore::write(&self.volume, at, data)
    }

    fn commit(&self, batch: AtomicBatch) -> Result<(), StoreError> {
        BlockStore::commit(&self.volume, batch)
    }

    fn sync(&self, range: LbaRange) -> Result<(), StoreError> {
        BlockStore::sync(&self.volume, range)
    }

    fn next_mapped(&self, range: LbaRange) -> Option<Lba> {
        self.volume.next_mapped(range)
    }

    fn space(&self) -> Space {
        self.volume.space()
    }

    fn snapshot_host(&self) -> Option<&dyn Host> {
        Some(self)
    }
}

impl Host for Asked {
    fn engine(&self) -> &Ftl {
        self.times.fetch_add(1, Relaxed);
        Host::engine(&self.volume)
    }

    fn read_grains(&self, lbas: &[Lba], into: &mut [&mut [u8]]) -> Result<(), SnapshotError> {
        self.volume.read_grains(lbas, into)
    }

    fn commit_images(
        &self,
        batch: AtomicBatch,
        change: Option<SnapshotChange>,
    ) -> Result<(), SnapshotError> {
        self.volume.commit_images(batch, change)
    }

    fn admit_images(&self) -> Result<(), SnapshotError> {
        Host::admit_images(&self.volume)
    }

    fn load_map(&self, range: LbaRange) -> Result<(), SnapshotError> {
        self.volume.load_map(range)
    }

    fn sync_all(&self) -> Result<(), SnapshotError> {
        Host::sync_all(&self.volume)
    }
}

/// `stat` of a large file in a snapshot does not ask for each of its grains.
#[test]
fn a_large_file_is_counted_at_once() {
    const GRAINS: u64 = 8192;
    let store = Arc::new(Asked {
        volume: open(formatted(128 << 20)),
        times: AtomicU64::new(0),
    });
    let fs = Arc::new(Fs::mount(Arc::clone(&store)).unwrap());
    let file = fs
        .create(ROOT, name("large"), &NewNode::file())
        .unwrap()
        .ino;
    let options = WriteOptions::default();
    for at in (0..GRAINS).step_by(256) {
        fs.write(file, at * 4096, &[1; 256 * 4096], options)
            .unwrap();
    }
    let snapshot = fs.make_snapshot(b"s").unwrap();
    for at in (0..GRAINS).step_by(128) {
        fs.write(file, at * 4096, &[2; 4096], options).unwrap();
    }
    fs.write(file, GRAINS * 4096, &[2; 4096], options).unwrap();
    fs.fallocate(file, 4096, 10 * 4096, FallocMode::PunchHole)
        .unwrap();
    let opened = open_snapshot(&fs, &snapshot).unwrap();
    let before = store.times.load(Relaxed);
    let attr = opened.attr(file).unwrap();
    assert_eq!((attr.size, attr.grains), (GRAINS * 4096, GRAINS));
    let times = store.times.load(Relaxed) - before;
    assert!(times < 100, "asked {times} times");
    assert_eq!(fs.attr(file).unwrap().grains, GRAINS + 1 - 10);
}

/// Who deletes snapshots while going through `.snapshots`, a few names at a time, comes by all of them: a name that stays is
/// listed once, whatever becomes of those before it.
#[test]
fn deleted_while_they_are_listed() {
    let fs = Arc::new(Fs::mount(Arc::new(open(formatted(64 << 20)))).unwrap());
    let dir = tempfile::TempDir::new().unwrap();
    let mounted = mount(Arc::clone(&fs), dir.path(), &MountOptions::default());
    let mut mounted = match mounted {
        Ok(mounted) => mounted,
        Err(error) => return skip(&error.to_string()),
    };
    let snapshots = dir.path().join(".snapshots");
    for n in 0..12 {
        fs::create_dir(snapshots.join(format!("s{n}"))).unwrap();
    }
    let listing = File::open(&snapshots).unwrap();
    let mut seen = Vec::new();
    loop {
        // Room for three.
        let names = some_names(&listing, 100);
        if names.is_empty() {
            break;
        }
        for name in names.into_iter().filter(|name| !name.starts_with('.')) {
            fs::remove_dir(snapshots.join(&name)).unwrap();
            seen.push(name);
        }
    }
    assert_eq!(seen, (0..12).map(|n| format!("s{n}")).collect::<Vec<_>>());
    drop(listing);
    mounted.unmount().unwrap();
}

/// `mkdir` in `.snapshots` asks for as much with a thousand files as with none; who looks into the snapshot first reads its
/// inodes.
#[test]
fn made_at_once_through_the_kernel() {
    let mut asked = Vec::new();
    for files in [0, 1000] {
        let store = Arc::new(Asked {
            volume: open(formatted(64 << 20)),
            times: AtomicU64::new(0),
        });
        let fs = Arc::new(Fs::mount(Arc::clone(&store)).unwrap());
        for n in 0..files {
            let label = format!("f{n}");
            fs.create(ROOT, name(&label), &NewNode::file()).unwrap();
        }
        fs.sync_all().unwrap();
        let dir = tempfile::TempDir::new().unwrap();
        let mounted = mount(Arc::clone(&fs), dir.path(), &MountOptions::default());
        let mut mounted = match mounted {
            Ok(mounted) => mounted,
            Err(error) => return skip(&error.to_string()),
        };
        let one = dir.path().join(".snapshots/one");
        let before = store.times.load(Relaxed);
        fs::create_dir(&one).unwrap();
        let made = store.times.load(Relaxed);
        asked.push(made - before);
        assert_eq!(read_dir(&one).len(), files);
        assert!(store.times.load(Relaxed) - made >= files as u64 / 128);
        mounted.unmount().unwrap();
    }
    assert_eq!(asked[0], asked[1]);
}

/// A sparse file outgrows its range, in several batches, while a snapshot holds it and there is no space left to keep what is
/// moved: that is refused, and the file is as it was (I9), in this life and the next.
#[test]
fn a_relocation_without_space() {
    const GRAINS: u64 = 200;
    const APART: u64 = 3000 * 4096;
    let options = FsOptions {
        file_order: 20,
        ..FsOptions::default()
    };
    let open_fs = |volume| Arc::new(Fs::mount_with(volume, &options).unwrap());
    let volume = Arc::new(open(formatted(16 << 20)));
    let fs = open_fs(Arc::clone(&volume));
    let make = |label| fs.create(ROOT, name(label), &NewNode::file()).unwrap().ino;
    let (file, _next, filler) = (make("file"), make("next"), make("filler"));
    let how = WriteOptions::default();
    for n in 0..GRAINS {
        fs.write(file, n * APART, &[1 + n as u8; 4096], how)
            .unwrap();
    }
    fs.fsync(file, SyncScope::All).unwrap();
    let snapshot = fs.make_snapshot(b"s").unwrap();
    let mut at = 0;
    while let Ok(4096) = fs.write(filler, at, &[9; 4096], how) {
        at += 4096;
    }
    fs.sync_all().unwrap();
    let is_whole = |fs: &Fs<Store>| {
        let mut bytes = [0; 4096];
        for n in 0..GRAINS {
            assert_eq!(fs.read(file, n * APART, &mut bytes), Ok(4096), "grain {n}");
            assert!(bytes == [1 + n as u8; 4096], "grain {n}");
        }
        assert_eq!(fs.attr(file).unwrap().grains, GRAINS);
    };
    let behind = 4096 << 20;
    let before = fs.file_extent(file).unwrap();
    assert_eq!(
        fs.write(file, behind, &[7; 4096], how),
        Err(FsError::NoSpace)
    );
    assert_eq!(fs.file_extent(file), Ok(before));
    is_whole(&fs);
    let shown_before = shown(&fs, b"s");
    drop(fs);
    volume.shutdown().unwrap();
    let volume = Arc::new(open(Arc::into_inner(volume).unwrap().into_device()));
    let fs = open_fs(Arc::clone(&volume));
    is_whole(&fs);
    assert_eq!(shown(&fs, b"s"), shown_before);
    let report = check_with_data(&*volume);
    assert!(report.is_clean(), "{:#?}", report.problems);
    // With space it grows.
    fs.delete_snapshot(&snapshot.name).unwrap();
    while fs.sweep_snapshots().unwrap() {}
    fs.unlink(ROOT, name("filler")).unwrap();
    assert_eq!(fs.write(file, behind, &[7; 4096], how), Ok(4096));
    assert_ne!(fs.file_extent(file).unwrap().range, before.range);
}

/// Fills the volume with one more file.
fn fill(fs: &Fs<Store>, label: &str) {
    let made = fs.create(ROOT, name(label), &NewNode::file());
    let ino = made.unwrap().ino;
    let mut at = 0;
    while let Ok(4096) = fs.write(ino, at, &[9; 4096], WriteOptions::default()) {
        at += 4096;
    }
}

/// I17: what is new, be it data or names, leaves the space that deleting takes; and what is reserved already is reserved again
/// on a full volume.
#[test]
fn new_names_leave_room_for_deleting() {
    const OLD: usize = 200;
    let volume = Arc::new(open(formatted(16 << 20)));
    let fs = Arc::new(Fs::mount(Arc::clone(&volume)).unwrap());
    let label = |n: usize| format!("old{n}");
    for n in 0..OLD {
        fs.create(ROOT, name(&label(n)), &NewNode::file()).unwrap();
    }
    let made = fs.create(ROOT, name("dir"), &NewNode::directory());
    let dir = made.unwrap().ino;
    fs.make_snapshot(b"s").unwrap();
    let made = fs.create(ROOT, name("reserved"), &NewNode::file());
    let reserved = made.unwrap().ino;
    let allocate = || {
        let mode = FallocMode::Allocate { keep_size: false };
        fs.fallocate(reserved, 0, 10 * 4096, mode)
    };
    allocate().unwrap();
    fill(&fs, "filler");
    let full = fs.statfs();
    assert!(full.grains_available == 0 && full.grains_free > 0);
    let long = "n".repeat(200);
    let new = |n: usize| fs.create(dir, name(&format!("{n}{long}")), &NewNode::file());
    let refused = (0..).find_map(|n| new(n).err());
    assert_eq!(refused, Some(FsError::NoSpace));
    for n in 0..OLD {
        assert_eq!(fs.unlink(ROOT, name(&label(n))), Ok(()), "{n}");
    }
    assert_eq!(allocate(), Ok(()));
}

/// I17: no snapshot is made that would leave no room for deleting.
#[test]
fn none_without_room_for_deleting() {
    let volume = Arc::new(open(formatted(16 << 20)));
    let fs = Arc::new(Fs::mount(Arc::clone(&volume)).unwrap());
    let file = |label, grains: usize| {
        let made = fs.create(ROOT, name(label), &NewNode::file());
        let bytes = vec![1; grains * 4096];
        let written = fs.write(made.unwrap().ino, 0, &bytes, WriteOptions::default());
        assert_eq!(written, Ok(bytes.len()));
    };
    file("small", 2);
    file("larger", 100);
    fill(&fs, "filler");
    for label in ["small", "larger"] {
        let made = fs.make_snapshot(b"s").map(drop);
        assert_eq!(made, Err(FsError::NoSpace), "before {label} is gone");
        assert!(fs.snapshots().is_empty());
        fs.unlink(ROOT, name(label)).unwrap();
    }
    fs.make_snapshot(b"s").unwrap();
    fill(&fs, "more");
    let another = fs.make_snapshot(b"t").map(drop);
    assert!(matches!(another, Ok(()) | Err(FsError::NoSpace)));
    for label in ["more", "filler"] {
        assert_eq!(fs.unlink(ROOT, name(label)), Ok(()), "{label}");
    }
}

/// What takes away a file in many pieces, of which a snapshot shares some.
const ENDS: [&str; 6] = ["unlink", "close", "rename", "truncate", "punch", "crash"];

/// I17: on a full volume a file is freed, cut and punched of which a snapshot shares every other grain; the snapshot stays what
/// it was, and in the end nothing is left of both.
#[test]
fn what_is_shared_in_pieces_can_be_freed() {
    const GRAINS: u64 = 800;
    let how = WriteOptions::default();
    for end in ENDS {
        let volume = Arc::new(open(formatted(16 << 20)));
        let fs = Arc::new(Fs::mount(Arc::clone(&volume)).unwrap());
        let make = |label| fs.create(ROOT, name(label), &NewNode::file()).unwrap().ino;
        let file = make("file");
        let other = make("other");
        fs.write(other, 0, &[3; 4096], how).unwrap();
        for grain in 0..GRAINS {
            fs.write(file, grain * 4096, &[grain as u8; 4096], how)
                .unwrap();
        }
        fs.sync_all().unwrap();
        fs.make_snapshot(b"s").unwrap();
        let before = shown(&fs, b"s");
        for grain in (0..GRAINS).step_by(2) {
            fs.write(file, grain * 4096, &[0xee; 4096], how).unwrap();
        }
        fs.sync_all().unwrap();
        fill(&fs, "filler");
        let full = volume.space().mapped;
        let done = match end {
            "unlink" => fs.unlink(ROOT, name("file")),
            "close" | "crash" => {
                fs.open(file).unwrap();
                let unlinked = fs.unlink(ROOT, name("file"));
                match end {
                    "close" => unlinked.and(fs.close(file)),
                    _ => unlinked,
                }
            }
            "rename" => {
                let replace = RenameMode::Replace;
                fs.rename(ROOT, name("other"), ROOT, name("file"), replace)
            }
            "truncate" => {
                let size = Some(4096);
                let cut = SetAttr {
                    size,
                    ..SetAttr::default()
                };
                fs.set_attr(file, &cut).map(drop)
            }
            _ => fs.fallocate(file, 4096, GRAINS * 4096, FallocMode::PunchHole),
        };
        assert_eq!(done, Ok(()), "{end}");
        let fs = match end {
            "crash" => {
                drop(fs);
                Arc::new(Fs::mount(Arc::clone(&volume)).unwrap())
            }
            _ => fs,
        };
        // What was written since the snapshot is free.
        let freed = full - volume.space().mapped;
        assert!(freed > GRAINS / 2 - 70, "{end}: {freed}");
        assert_eq!(shown(&fs, b"s"), before, "{end}");
        let report = check_with_data(&*volume);
        assert!(report.is_clean(), "{end}: {:#?}", report.problems);
        fs.delete_snapshot(b"s").unwrap();
        while fs.sweep_snapshots().unwrap() {}
        fs.unlink(ROOT, name("filler")).unwrap();
        let left = volume.space().mapped;
        assert!(left < 30, "{end}: {left}");
    }
}

/// A device that gives errors instead of what says which snapshots there are: a repair leaves all as it is, as what is there
/// may be whole.
#[test]
fn whose_table_the_device_does_not_give() {
    let volume = Arc::new(open(formatted(16 << 20)));
    let fs = Arc::new(Fs::mount(Arc::clone(&volume)).unwrap());
    fs.make_snapshot(b"kept").unwrap();
    drop(fs);
    volume.shutdown().unwrap();
    let device = Arc::into_inner(volume).unwrap().into_device();
    let mut device = SimDevice::from_image(device.image().to_vec(), 1);
    let report = ftl::check(&mut device).unwrap();
    let Some(ftl::Checked::Data { pba, .. }) = report.map.get(&Lba(63 << 52)) else {
        panic!("there is no table");
    };
    let at = pba.0 * ftl::GRAIN_BYTES as u64;
    let range = at..at + ftl::GRAIN_BYTES as u64;
    device.inject(Fault {
        range: Some(range),
        ..Fault::every(OpKind::Read, Effect::Fail(MediaError::Io))
    });
    let volume = open(device);
    let report = contigfs::repair(&volume, contigfs::Care::Full).unwrap();
    assert_eq!(report.repaired, []);
    assert!(matches!(
        report.after.problems[..],
        [Problem::Snapshots { error: Some(_) }]
    ));
    volume.with_device(SimDevice::clear_faults);
    let fs = Fs::mount(Arc::new(volume)).unwrap();
    assert!(fs.find_snapshot(b"kept").is_some());
}
