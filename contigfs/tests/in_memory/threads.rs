//! Many threads at once: no deadlock, no lost update, a clean volume at the end.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use contigfs::{
    BlockStore, ByteAddr, CopyRange, FallocMode, FileKind, FormatOptions, Fs, InodeNo, MemStore,
    NewNode, RenameMode, SetAttr, StoreError, SyncScope, WriteOptions, XattrMode,
};
use ftl::{AtomicBatch, Lba, LbaRange, Space};
use support::oracle::{ACCESS, DEFAULT};
use support::{Dice, acl, assert_clean, fresh_with, name, names, tight};

const ROOT: InodeNo = InodeNo::ROOT;
const THREADS: u64 = 8;
const STEPS: u64 = 20_000;

/// I9 under concurrency: operations of all kinds on a few shared directories.
#[test]
fn everything_at_once() {
    let (store, fs) = fresh_with(100_000, &tight());
    let empty = fs.statfs().grains_free;
    let fs = Arc::new(fs);
    let dirs: Vec<InodeNo> = (0..4)
        .map(|i| {
            fs.create(ROOT, name(&format!("dir{i}")), &NewNode::directory())
                .unwrap()
                .ino
        })
        .chain([ROOT])
        .collect();
    thread::scope(|scope| {
        for seed in 0..THREADS {
            let (fs, dirs) = (Arc::clone(&fs), dirs.clone());
            scope.spawn(move || {
                let mut dice = Dice::new(seed + 100);
                for _ in 0..STEPS {
                    let (from, to) = (*dice.pick(&dirs), *dice.pick(&dirs));
                    let old = format!("n{}", dice.below(12));
                    let new = format!("n{}", dice.below(12));
                    let (old, new) = (name(&old), name(&new));
                    let ino = fs.lookup(from, old).map(|attr| attr.ino);
                    match dice.below(19) {
                        17 => drop(ino.map(|ino| {
                            let mode = *dice.pick(&[
                                FallocMode::PunchHole,
                                FallocMode::ZeroRange { keep_size: false },
                                FallocMode::CollapseRange,
                                FallocMode::InsertRange,
                            ]);
                            // Files would grow for ever.
                            let short = fs.attr(ino).is_ok_and(|attr| attr.size < 40_000);
                            if short || mode != FallocMode::InsertRange {
                                let _ = fs.fallocate(ino, dice.below(4) * 4096, 4096, mode);
                            }
                        })),
                        18 => drop(ino.and_then(|from| {
                            fs.copy_range(&CopyRange {
                                from,
                                from_offset: dice.below(2) * 4096,
                                to: fs.lookup(to, new)?.ino,
                                to_offset: dice.below(2) * 4096,
                                len: 30_000,
                            })
                        })),
                        0 => drop(fs.create(from, old, &NewNode::directory())),
                        1 | 2 => drop(fs.create(from, old, &NewNode::file())),
                        3 => drop(fs.unlink(from, old)),
                        4 => drop(fs.rmdir(from, old)),
                        5 => drop(fs.rename(from, old, to, new, RenameMode::Replace)),
                        6 => drop(fs.rename(from, old, to, new, RenameMode::Exchange)),
                        7 => drop(ino.map(|ino| fs.link(ino, to, new))),
                        8 => drop(ino.map(|ino| {
                            let len = dice.below(20_000) as usize;
                            fs.write(
                                ino,
                                dice.below(9000),
                                &vec![1; len],
                                WriteOptions::default(),
                            )
                        })),
                        9 => drop(ino.map(|ino| {
                            let size = Some(dice.below(30_000));
                            fs.set_attr(
                                ino,
                                &SetAttr {
                                    size,
                                    ..SetAttr::default()
                                },
                            )
                        })),
                        10 => drop(ino.map(|ino| {
                            let perm = Some(dice.below(0o1000) as u16);
                            fs.set_attr(
                                ino,
                                &SetAttr {
                                    perm,
                                    ..SetAttr::default()
                                },
                            )
                        })),
                        11 => drop(ino.map(|ino| {
                            let value = vec![dice.roll() as u8; dice.below(20_000) as usize];
                            fs.set_xattr(ino, name("user.a"), &value, XattrMode::Set)
                        })),
                        12 => drop(ino.map(|ino| {
                            // Whole, one of the values that were set.
                            let value = fs.xattr(ino, name("user.a")).unwrap_or_default();
                            assert!(value.windows(2).all(|pair| pair[0] == pair[1]));
                            fs.remove_xattr(ino, name("user.a"))
                        })),
                        13 => drop(ino.map(|ino| {
                            let key = *dice.pick(&[ACCESS, DEFAULT]);
                            let list = list(dice.below(8) as u16);
                            fs.set_xattr(ino, name(key), &list, XattrMode::Set)
                        })),
                        14 => {
                            if let Ok(attr) = fs.create_unnamed(from, &NewNode::file(), true) {
                                let _ = fs.link(attr.ino, to, new);
                                fs.close(attr.ino).unwrap();
                            }
                        }
                        15 => drop(ino.map(|ino| {
                            if fs.open(ino).is_ok() {
                                let _ = fs.unlink(from, old);
                                let _ = fs.read(ino, 0, &mut [0; 5000]);
                                fs.close(ino).unwrap();
                            }
                        })),
                        _ => drop(ino.map(|ino| fs.fsync(ino, SyncScope::All))),
                    }
                }
            });
        }
    });
    fs.sync_all().unwrap();
    assert_clean(&store);
    delete_all(&fs, ROOT);
    assert_clean(&store);
    assert_eq!(fs.statfs().grains_free, empty);
}

fn list(perm: u16) -> Vec<u8> {
    acl::bytes(&[
        (1, perm, !0),
        (2, 7, 7),
        (4, perm, !0),
        (0x10, perm, !0),
        (0x20, 0, !0),
    ])
}

fn delete_all(fs: &contigfs::Fs<impl contigfs::BlockStore>, dir: InodeNo) {
    for (label, ino) in names(fs, dir).unwrap() {
        if fs.attr(ino).unwrap().kind == FileKind::Directory {
            delete_all(fs, ino);
            fs.rmdir(dir, name(&label)).unwrap();
        } else {
            fs.unlink(dir, name(&label)).unwrap();
        }
    }
}

/// Appends of several threads through the size lock: all bytes arrive, whatever the interleaving.
#[test]
fn writers_of_one_file() {
    const EACH: u64 = 500;
    let (store, fs) = fresh_with(10_000, &tight());
    let fs = Arc::new(fs);
    let ino = fs.create(ROOT, name("f"), &NewNode::file()).unwrap().ino;
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let fs = Arc::clone(&fs);
            scope.spawn(move || {
                for i in 0..EACH {
                    let offset = (i * THREADS + thread) * 100;
                    fs.write(
                        ino,
                        offset,
                        &[thread as u8 + 1; 100],
                        WriteOptions::default(),
                    )
                    .unwrap();
                    if i % 50 == 0 {
                        fs.fsync(ino, SyncScope::Data).unwrap();
                    }
                }
            });
        }
    });
    let bytes = support::content(&fs, ino).unwrap();
    assert_eq!(bytes.len() as u64, THREADS * EACH * 100);
    assert!(
        bytes
            .chunks(100)
            .enumerate()
            .all(|(i, part)| part == [(i as u64 % THREADS) as u8 + 1; 100])
    );
    fs.sync_all().unwrap();
    assert_clean(&store);
}

/// A store whose next sync stops before it begins, until it is let go on.
struct Gate {
    store: Arc<MemStore>,
    next_sync: Mutex<Option<(Sender<()>, Receiver<()>)>>,
}

impl BlockStore for Gate {
    fn read(&self, at: ByteAddr, buf: &mut [u8]) -> Result<(), StoreError> {
        self.store.read(at, buf)
    }

    fn write(&self, at: ByteAddr, data: &[u8]) -> Result<(), StoreError> {
        self.store.write(at, data)
    }

    fn commit(&self, batch: AtomicBatch) -> Result<(), StoreError> {
        self.store.commit(batch)
    }

    fn sync(&self, range: LbaRange) -> Result<(), StoreError> {
        let gate = self.next_sync.lock().unwrap().take();
        if let Some((reached, go)) = gate {
            reached.send(()).unwrap();
            go.recv().unwrap();
        }
        self.store.sync(range)
    }

    fn next_mapped(&self, range: LbaRange) -> Option<Lba> {
        self.store.next_mapped(range)
    }

    fn space(&self) -> Space {
        self.store.space()
    }
}

/// `fsync` makes durable what was written before, also when the file leaves its place after `fsync` has looked where it
/// is: a sync of that place covers nothing any more.
#[test]
fn fsync_follows_a_file() {
    let (store, fs) = fresh_with(1000, &tight());
    drop(fs);
    let gate = Arc::new(Gate {
        store: Arc::clone(&store),
        next_sync: Mutex::new(None),
    });
    let fs = Fs::mount_with(Arc::clone(&gate), &tight()).unwrap();
    let ino = fs.create(ROOT, name("f"), &NewNode::file()).unwrap().ino;
    fs.create(ROOT, name("behind"), &NewNode::file()).unwrap();
    for durable_write in [false, true] {
        let size = fs.file_extent(ino).unwrap().range.count * 4096;
        resize(&fs, ino, size);
        fs.fsync(ino, SyncScope::All).unwrap();
        let place = fs.file_extent(ino).unwrap().range.start;
        let (reached, has_reached) = channel();
        let (let_go, go) = channel();
        *gate.next_sync.lock().unwrap() = Some((reached, go));
        thread::scope(|scope| {
            scope.spawn(|| {
                let options = WriteOptions {
                    durable: durable_write,
                    ..WriteOptions::default()
                };
                fs.write(ino, 4000, b"follow", options).unwrap();
                if !durable_write {
                    fs.fsync(ino, SyncScope::Data).unwrap();
                }
                let cut = Arc::new(store.after_power_cut(|_| 0));
                let cut = Fs::mount(cut).unwrap();
                let mut found = [0; 6];
                cut.read(ino, 4000, &mut found).unwrap();
                assert_eq!(&found, b"follow", "durable write: {durable_write}");
            });
            has_reached.recv().unwrap();
            // Something lies behind it, or it begins where no larger range can.
            resize(&fs, ino, size + 1);
            let_go.send(()).unwrap();
        });
        assert_ne!(fs.file_extent(ino).unwrap().range.start, place);
        let neighbour = format!("behind again {durable_write}");
        fs.create(ROOT, name(&neighbour), &NewNode::file()).unwrap();
        fs.write(ino, 4000, b"______", WriteOptions::default())
            .unwrap();
    }
}

fn resize(fs: &Fs<impl BlockStore>, ino: InodeNo, size: u64) {
    let set = SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    fs.set_attr(ino, &set).unwrap();
}

/// A store whose next batch waits in the middle.
struct Gated {
    inner: MemStore,
    gate: Mutex<Option<(Sender<()>, Receiver<()>)>>,
}

impl BlockStore for Gated {
    fn read(&self, at: ByteAddr, buf: &mut [u8]) -> Result<(), StoreError> {
        self.inner.read(at, buf)
    }

    fn write(&self, at: ByteAddr, data: &[u8]) -> Result<(), StoreError> {
        self.inner.write(at, data)
    }

    fn commit(&self, batch: AtomicBatch) -> Result<(), StoreError> {
        let gate = self.gate.lock().unwrap().take();
        if let Some((reached, go)) = gate {
            reached.send(()).unwrap();
            go.recv().unwrap();
        }
        self.inner.commit(batch)
    }

    fn sync(&self, range: LbaRange) -> Result<(), StoreError> {
        self.inner.sync(range)
    }

    fn next_mapped(&self, range: LbaRange) -> Option<Lba> {
        self.inner.next_mapped(range)
    }

    fn space(&self) -> Space {
        self.inner.space()
    }
}

/// I9: a file whose last close comes while its last name is on its way out is freed by whoever is last.
#[test]
fn closed_while_the_last_name_goes() {
    let store = Gated {
        inner: MemStore::new(10_000),
        gate: Mutex::default(),
    };
    Fs::format(&store, &FormatOptions::default()).unwrap();
    let fs = Fs::mount(&store).unwrap();
    let held = || (fs.statfs().grains_free, fs.statfs().inodes);
    let (file, other) = (name("file"), name("other"));
    let by_unlink = || fs.unlink(ROOT, file);
    let by_rename = || {
        fs.rename(ROOT, other, ROOT, file, RenameMode::Replace)?;
        fs.unlink(ROOT, file)
    };
    let before = held();
    for goes in [&by_unlink as &(dyn Fn() -> _ + Sync), &by_rename] {
        fs.create(ROOT, other, &NewNode::file()).unwrap();
        let ino = fs.create(ROOT, file, &NewNode::file()).unwrap().ino;
        fs.write(ino, 0, &[1; 400 * 4096], WriteOptions::default())
            .unwrap();
        fs.open(ino).unwrap();
        let ((reached, at_gate), (open, go)) = (channel(), channel());
        *store.gate.lock().unwrap() = Some((reached, go));
        thread::scope(|scope| {
            let gone = scope.spawn(goes);
            at_gate.recv().unwrap();
            fs.close(ino).unwrap();
            open.send(()).unwrap();
            gone.join().unwrap().unwrap();
        });
        if fs.lookup(ROOT, other).is_ok() {
            fs.unlink(ROOT, other).unwrap();
        }
        assert_eq!(held(), before);
    }
    assert_clean(&store.inner);
}

/// Who goes on writing to a file does not hold up a clone of it, and with that every batch: he waits until it is cloned, whether
/// the file has the lower or the higher number. Clones in opposite directions do not wait for each other.
#[test]
fn the_source_of_a_clone_stands_still() {
    let store = Gated {
        inner: MemStore::new(10_000),
        gate: Mutex::default(),
    };
    Fs::format(&store, &FormatOptions::default()).unwrap();
    let fs = Fs::mount(&store).unwrap();
    let files = ["one", "two"].map(|file| {
        let ino = fs.create(ROOT, name(file), &NewNode::file()).unwrap().ino;
        let whole = [1; 4 * 4096];
        fs.write(ino, 0, &whole, WriteOptions::default()).unwrap();
        ino
    });
    let clone = |from, to| {
        let copied = fs.copy_range(&CopyRange {
            from,
            from_offset: 0,
            to,
            to_offset: 0,
            len: 4 * 4096,
        });
        assert_eq!(copied, Ok(4 * 4096));
    };
    for (from, to) in [(files[0], files[1]), (files[1], files[0])] {
        let ((reached, at_gate), (open, go)) = (channel(), channel());
        *store.gate.lock().unwrap() = Some((reached, go));
        thread::scope(|scope| {
            scope.spawn(|| clone(from, to));
            at_gate.recv().unwrap();
            let (wrote, has_written) = channel();
            let write = || fs.write(from, 0, &[2; 4096], WriteOptions::default());
            scope.spawn(move || wrote.send(write()).unwrap());
            let early = has_written.recv_timeout(Duration::from_millis(100));
            open.send(()).unwrap();
            assert!(early.is_err(), "it was written to in the middle");
            assert_eq!(has_written.recv().unwrap(), Ok(4096));
        });
        let mut copy = [0; 4096];
        fs.read(to, 0, &mut copy).unwrap();
        assert_eq!(copy, [1; 4096]);
        fs.write(from, 0, &copy, WriteOptions::default()).unwrap();
    }
    thread::scope(|scope| {
        for (from, to) in [(files[0], files[1]), (files[1], files[0])] {
            scope.spawn(move || (0..1000).for_each(|_| clone(from, to)));
        }
    });
}
