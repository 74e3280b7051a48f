//! Every operation, with each of its calls of the store refused for want of space, once or from then on (M4).
//!
//! Defends I9: what is refused has changed nothing, whatever happened says memory as well as the media, and the same can be
//! asked for again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use contigfs::{
    BlockStore, CopyRange, FallocMode, FileKind, FormatOptions, Fs, FsError, InodeNo, MemStore,
    NewNode, RenameMode, SetAttr, StoreError, WriteOptions, XattrMode, open_snapshot,
};
use ftl::{Ftl, MemDevice, OpenOptions};
use support::oracle::picture_of;
use support::{assert_clean, content, name, names, tight};

use crate::harness::tapped::{Call, Tapped};

type Store = Arc<dyn BlockStore>;
type Volume = Fs<Store>;
type Op = fn(&Volume) -> Result<(), FsError>;

const ROOT: InodeNo = InodeNo::ROOT;
const GRAIN: u64 = 4096;

/// What a program sees of a file or directory, but for times.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    kind: FileKind,
    size: u64,
    mode: u32,
    nlink: u32,
    grains: u64,
    bytes: Vec<u8>,
    xattrs: Vec<(String, Vec<u8>)>,
}

/// Everything below a directory.
fn look(fs: &Volume, dir: InodeNo, at: &str, all: &mut BTreeMap<String, Seen>) {
    for (name, ino) in names(fs, dir).unwrap() {
        let path = format!("{at}/{name}");
        let attr = fs.attr(ino).unwrap();
        let bytes = match attr.kind {
            FileKind::File => content(fs, ino).unwrap(),
            FileKind::Symlink => fs.readlink(ino).unwrap(),
            _ => Vec::new(),
        };
        let keys = fs.xattrs(ino).unwrap().into_iter();
        let xattrs = keys.map(|key| {
            let value = fs.xattr(ino, &key).unwrap();
            (key.into_string().unwrap(), value)
        });
        let seen = Seen {
            kind: attr.kind,
            // Of directories, as large as it happens to be.
            size: attr.size,
            mode: attr.mode,
            nlink: attr.nlink,
            grains: attr.grains,
            bytes,
            xattrs: xattrs.collect(),
        };
        if attr.kind == FileKind::Directory {
            look(fs, ino, &path, all);
        }
        all.insert(path, seen);
    }
}

fn seen(fs: &Volume) -> BTreeMap<String, Seen> {
    let mut all = BTreeMap::new();
    look(fs, ROOT, "", &mut all);
    all
}

fn find(fs: &Volume, path: &str) -> InodeNo {
    let step = |at, part| fs.lookup(at, name(part)).unwrap().ino;
    path.split('/').fold(ROOT, step)
}

fn write(fs: &Volume, ino: InodeNo, at: u64, bytes: &[u8]) -> Result<(), FsError> {
    let written = fs.write(ino, at, bytes, WriteOptions::default())?;
    match written == bytes.len() {
        true => Ok(()),
        false => Err(FsError::NoSpace),
    }
}

fn resize(fs: &Volume, ino: InodeNo, size: u64) -> Result<(), FsError> {
    let set = SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    fs.set_attr(ino, &set).map(drop)
}

fn mounted(store: Store) -> Volume {
    Fs::mount_with(store, &tight()).unwrap()
}

/// Something of everything, on media.
fn populated(store: Store) -> Volume {
    Fs::format(&store, &FormatOptions::default()).unwrap();
    let fs = mounted(store);
    let file = |dir, label: &str, grains: usize, byte: u8| {
        let ino = fs.create(dir, name(label), &NewNode::file()).unwrap().ino;
        write(&fs, ino, 0, &vec![byte; grains * 4096 - 100]).unwrap();
        ino
    };
    let dir = |label: &str| {
        fs.create(ROOT, name(label), &NewNode::directory())
            .unwrap()
            .ino
    };
    let (d, e) = (dir("d"), dir("e"));
    let f = file(d, "f", 6, 1);
    file(d, "g", 3, 2);
    let h = file(e, "h", 2, 3);
    fs.link(h, d, name("h2")).unwrap();
    let large = vec![9; 9000];
    fs.set_xattr(f, name("user.large"), &large, XattrMode::Set)
        .unwrap();
    fs.set_xattr(h, name("user.small"), b"x", XattrMode::Set)
        .unwrap();
    fs.create(e, name("empty"), &NewNode::directory()).unwrap();
    fs.symlink(e, name("s"), name("target"), 0, 0).unwrap();
    fs.create(ROOT, name("last"), &NewNode::file()).unwrap();
    fs.sync_all().unwrap();
    fs
}

fn clone(
    fs: &Volume,
    (from, from_offset): (&str, u64),
    (to, to_offset): (&str, u64),
    len: u64,
) -> Result<(), FsError> {
    let copied = fs.copy_range(&CopyRange {
        from: find(fs, from),
        from_offset,
        to: find(fs, to),
        to_offset,
        len,
    })?;
    match copied == len {
        true => Ok(()),
        false => Err(FsError::NoSpace),
    }
}

fn allocate(fs: &Volume, at: u64, len: u64, mode: FallocMode) -> Result<(), FsError> {
    fs.fallocate(find(fs, "d/f"), at, len, mode)
}

/// The operations; whether what is refused may have been done in part.
const OPS: &[(&str, Op, bool)] = &[
    (
        "create",
        |fs| {
            fs.create(find(fs, "d"), name("new"), &NewNode::file())
                .map(drop)
        },
        false,
    ),
    (
        "mkdir",
        |fs| {
            fs.create(find(fs, "d"), name("new"), &NewNode::directory())
                .map(drop)
        },
        false,
    ),
    (
        "symlink",
        |fs| fs.symlink(ROOT, name("new"), name("there"), 0, 0).map(drop),
        false,
    ),
    (
        "link",
        |fs| {
            fs.link(find(fs, "d/f"), find(fs, "e"), name("new"))
                .map(drop)
        },
        false,
    ),
    ("unlink", |fs| fs.unlink(find(fs, "d"), name("f")), false),
    (
        "unlink one of two",
        |fs| fs.unlink(find(fs, "d"), name("h2")),
        false,
    ),
    ("rmdir", |fs| fs.rmdir(find(fs, "e"), name("empty")), false),
    (
        "rename",
        |fs| {
            fs.rename(
                find(fs, "d"),
                name("f"),
                find(fs, "e"),
                name("new"),
                RenameMode::Replace,
            )
        },
        false,
    ),
    (
        "replace",
        |fs| {
            fs.rename(
                find(fs, "d"),
                name("g"),
                find(fs, "d"),
                name("f"),
                RenameMode::Replace,
            )
        },
        false,
    ),
    (
        "exchange",
        |fs| {
            fs.rename(
                find(fs, "d"),
                name("f"),
                ROOT,
                name("e"),
                RenameMode::Exchange,
            )
        },
        false,
    ),
    ("shorter", |fs| resize(fs, find(fs, "d/f"), 5000), false),
    ("longer", |fs| resize(fs, find(fs, "d/f"), 7 * GRAIN), false),
    (
        "far longer",
        |fs| resize(fs, find(fs, "d/f"), 1 << 20),
        false,
    ),
    (
        "write behind",
        |fs| write(fs, find(fs, "d/f"), 30_000, &[4; 50_000]),
        true,
    ),
    (
        "write far behind",
        |fs| write(fs, find(fs, "d/f"), 1 << 22, &[4; 20_000]),
        true,
    ),
    (
        "reserve",
        |fs| allocate(fs, 5000, 60_000, FallocMode::Allocate { keep_size: false }),
        false,
    ),
    (
        "reserve behind",
        |fs| allocate(fs, 5000, 60_000, FallocMode::Allocate { keep_size: true }),
        false,
    ),
    (
        "punch",
        |fs| allocate(fs, 5000, 10_000, FallocMode::PunchHole),
        false,
    ),
    (
        "zero",
        |fs| allocate(fs, 5000, 60_000, FallocMode::ZeroRange { keep_size: false }),
        false,
    ),
    (
        "collapse",
        |fs| allocate(fs, GRAIN, 2 * GRAIN, FallocMode::CollapseRange),
        false,
    ),
    (
        "insert",
        |fs| allocate(fs, GRAIN, 9 * GRAIN, FallocMode::InsertRange),
        false,
    ),
    (
        "clone",
        |fs| clone(fs, ("d/f", 0), ("d/g", GRAIN), 5 * GRAIN),
        true,
    ),
    (
        "copy",
        |fs| clone(fs, ("d/f", 100), ("d/g", 7), 15_000),
        true,
    ),
    (
        "attribute",
        |fs| {
            fs.set_xattr(
                find(fs, "d/g"),
                name("user.new"),
                &[5; 9000],
                XattrMode::Set,
            )
        },
        false,
    ),
    (
        "no attribute",
        |fs| fs.remove_xattr(find(fs, "d/f"), name("user.large")),
        false,
    ),
    (
        "unnamed",
        |fs| {
            let ino = fs.create_unnamed(ROOT, &NewNode::file(), true)?.ino;
            let made = write(fs, ino, 0, &[6; 9000]).and_then(|()| fs.link(ino, ROOT, name("new")));
            fs.close(ino)?;
            made.map(drop)
        },
        false,
    ),
];

/// Runs the operation with its `n`-th call refused. False: it has fewer.
fn refuse(what: &str, op: Op, in_part: bool, n: u64, once: bool) -> bool {
    let store = Arc::new(Tapped::new(4000));
    let fs = populated(Arc::clone(&store) as Store);
    let before = seen(&fs);
    let calls = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&calls);
    store.tap(move |_, call| {
        if matches!(call, Call::Sync(_)) {
            return None;
        }
        let no = counted.fetch_add(1, Ordering::Relaxed);
        let is_refused = if once { no == n } else { no >= n };
        is_refused.then_some(Err(StoreError::NoSpace))
    });
    let result = op(&fs);
    store.untap();
    if calls.load(Ordering::Relaxed) <= n {
        assert_eq!(result, Ok(()), "{what}");
        return false;
    }
    let what = format!("{what}: call {n}, once: {once}, {result:?}");
    let after = seen(&fs);
    if result.is_err() && !in_part {
        assert_eq!(after, before, "{what}");
    }
    fs.sync_all().unwrap();
    let same = |store: MemStore, expected: &BTreeMap<String, Seen>, what: &str| {
        let store = Arc::new(store);
        let again = mounted(Arc::clone(&store) as Store);
        assert_eq!(seen(&again), *expected, "{what}");
        assert_clean(&store);
    };
    same(
        store.inner.duplicate(),
        &after,
        &format!("{what}: mounted again"),
    );
    same(
        store.inner.after_power_cut(|_| 0),
        &after,
        &format!("{what}: after a power cut"),
    );
    if result.is_err() {
        assert_eq!(op(&fs), Ok(()), "{what}: asked for again");
        fs.sync_all().unwrap();
        same(
            store.inner.duplicate(),
            &seen(&fs),
            &format!("{what}: done the second time"),
        );
    }
    true
}

/// See above.
#[test]
fn what_is_refused_changes_nothing() {
    let mut refusals = 0;
    for &(what, op, in_part) in OPS {
        for once in [true, false] {
            let calls = (0..).take_while(|&n| refuse(what, op, in_part, n, once));
            refusals += calls.count();
        }
    }
    println!("{refusals} refusals");
    assert!(refusals > 60, "{refusals}");
}

/// A volume of which a snapshot was made, and then so many grains are left.
fn scarce(left: u64) -> (Arc<ftl::Volume<MemDevice>>, Volume) {
    let mut device = MemDevice::new(8 << 20).unwrap();
    let format = ftl::FormatOptions {
        segment_bytes: Some(64 * GRAIN),
        capacity_grains: Some(200),
        ..ftl::FormatOptions::default()
    };
    Ftl::format(&mut device, &format).unwrap();
    let volume = opened(device);
    let fs = populated(Arc::clone(&volume) as Store);
    fs.make_snapshot(b"s").unwrap();
    let fill = fs.create(ROOT, name("fill"), &NewNode::file()).unwrap().ino;
    let mut at = 0;
    while volume.space().available > left {
        write(&fs, fill, at * GRAIN, &[8; 4096]).unwrap();
        at += 1;
    }
    fs.sync_all().unwrap();
    (volume, fs)
}

fn opened(device: MemDevice) -> Arc<ftl::Volume<MemDevice>> {
    let options = OpenOptions {
        pool_frames: 256,
        ..OpenOptions::default()
    };
    Arc::new(ftl::Volume::open(device, options).unwrap().0)
}

/// The same on a volume that has too little space, because of a snapshot too: of each amount of it. The snapshot shows what it
/// showed, and what is there is there after a restart.
#[test]
fn what_there_is_no_space_for_changes_nothing() {
    let (mut refusals, mut done) = (0, 0);
    for &(what, op, in_part) in OPS {
        for left in 0..24 {
            let (volume, fs) = scarce(left);
            let fs = Arc::new(fs);
            let pictured = || {
                let snapshot = fs.find_snapshot(b"s").unwrap();
                picture_of(&open_snapshot(&fs, &snapshot).unwrap()).unwrap()
            };
            let shown = pictured();
            let before = seen(&fs);
            let result = op(&fs);
            let what = format!("{what} with {left} grains left: {result:?}");
            let after = seen(&fs);
            match result {
                Ok(()) => done += 1,
                Err(FsError::NoSpace) => refusals += 1,
                Err(error) => panic!("{what}: {error}"),
            }
            if result.is_err() && !in_part {
                assert_eq!(after, before, "{what}");
            }
            assert_eq!(pictured(), shown, "{what}: the snapshot");
            fs.sync_all().unwrap();
            volume.ftl().self_check();
            drop(fs);
            let device = Arc::into_inner(volume).unwrap().into_device();
            let volume = opened(device);
            let fs = mounted(Arc::clone(&volume) as Store);
            assert_eq!(seen(&fs), after, "{what}: after a restart");
            assert_clean(&volume);
            let fs = Arc::new(fs);
            let snapshot = fs.find_snapshot(b"s").unwrap();
            let opened = open_snapshot(&fs, &snapshot).unwrap();
            assert_eq!(
                picture_of(&opened).unwrap(),
                shown,
                "{what}: the snapshot later"
            );
        }
    }
    println!("{refusals} refusals, {done} done");
    assert!(refusals > 50 && done > 100);
}
