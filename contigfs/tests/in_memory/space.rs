//! "ENOSPC is exact, and deletion always works": fill to the last grain, fail without a trace, delete, get all back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use contigfs::{
    BlockStore, ByteAddr, FallocMode, FileKind, Fs, FsError, InodeNo, MemStore, NewNode,
    RenameMode, SetAttr, StoreError, WriteOptions,
};
use ftl::{AtomicBatch, Lba, LbaRange, Space};
use support::records::TABLES;
use support::{Dice, assert_clean, content, fresh, name, names};

const ROOT: InodeNo = InodeNo::ROOT;

/// Every grain of the volume can be used, the one too many is refused, and what was written before is unharmed.
#[test]
fn the_last_grain_is_usable_and_no_more() {
    let (store, fs) = fresh(64);
    let ino = fs.create(ROOT, name("f"), &NewNode::file()).unwrap().ino;
    let free = fs.statfs().grains_free;
    let bytes = vec![7; 4096];
    for grain in 0..free {
        assert_eq!(
            fs.write(ino, grain * 4096, &bytes, WriteOptions::default()),
            Ok(4096)
        );
        assert_eq!(fs.statfs().grains_free, free - grain - 1);
    }
    assert_eq!(
        fs.write(ino, free * 4096, &bytes, WriteOptions::default()),
        Err(FsError::NoSpace)
    );
    assert_eq!(fs.attr(ino).unwrap().size, free * 4096);
    assert_eq!(fs.attr(ino).unwrap().grains, free);
    // Overwriting needs nothing.
    assert_eq!(fs.write(ino, 0, &bytes, WriteOptions::default()), Ok(4096));
    assert_eq!(content(&fs, ino).unwrap(), vec![7; free as usize * 4096]);
    fs.unlink(ROOT, name("f")).unwrap();
    assert_eq!(fs.statfs().grains_free, 64 - 4);
    assert_clean(&store);
}

/// A write that does not fit whole writes what fits, as POSIX has it; a reservation is all or nothing.
#[test]
fn short_writes_and_whole_reservations() {
    let (store, fs) = fresh(64);
    let ino = fs.create(ROOT, name("f"), &NewNode::file()).unwrap().ino;
    let free = fs.statfs().grains_free;
    let allocate = FallocMode::Allocate { keep_size: false };
    assert_eq!(
        fs.fallocate(ino, 0, (free + 1) * 4096, allocate),
        Err(FsError::NoSpace)
    );
    assert_eq!(
        (fs.statfs().grains_free, fs.attr(ino).unwrap().size),
        (free, 0)
    );
    let bytes = vec![7; (free as usize + 5) * 4096];
    assert_eq!(
        fs.write(ino, 100, &bytes, WriteOptions::default()),
        Ok(free as usize * 4096 - 100)
    );
    assert_eq!(fs.statfs().grains_free, 0);
    fs.set_attr(
        ino,
        &SetAttr {
            size: Some(0),
            ..SetAttr::default()
        },
    )
    .unwrap();
    assert_eq!(fs.fallocate(ino, 0, free * 4096, allocate), Ok(()));
    assert_eq!(fs.statfs().grains_free, 0);
    // What is reserved can be written, to the last byte.
    assert_eq!(
        fs.write(
            ino,
            0,
            &vec![9; free as usize * 4096],
            WriteOptions::default()
        ),
        Ok(free as usize * 4096)
    );
    assert_clean(&store);
}

/// I1, I9: what `fallocate` has answered outlives a power cut, also in front of an end that the media do not know yet: the file
/// is as long as was asked for, and what was reserved can still be written on a full volume.
#[test]
fn what_is_allocated_in_front_of_an_unsynced_end_is_durable() {
    let (size, len) = (10 * 4096 - 100, 9 * 4096 - 50);
    let all = [
        FallocMode::Allocate { keep_size: false },
        FallocMode::ZeroRange { keep_size: false },
        FallocMode::Allocate { keep_size: true },
        FallocMode::ZeroRange { keep_size: true },
    ];
    for (n, mode) in all.into_iter().enumerate() {
        let (store, fs) = fresh(64);
        let ino = fs.create(ROOT, name("f"), &NewNode::file()).unwrap().ino;
        let bytes = vec![7; size as usize];
        let options = WriteOptions::default();
        assert_eq!(fs.write(ino, 0, &bytes, options), Ok(bytes.len()));
        fs.fallocate(ino, 0, len, mode).unwrap();
        assert_eq!(fs.attr(ino).unwrap().size, size);
        for choice in [0, usize::MAX] {
            let store = store.after_power_cut(|n| choice.min(n - 1));
            assert_clean(&store);
            let fs = Fs::mount(&store).unwrap();
            let expected = if n < 2 { len } else { 0 };
            assert_eq!(fs.attr(ino).unwrap().size, expected, "{mode:?}");
            // Growing clears what a crash may have left, and nothing else.
            fs.write(ino, 0, b"x", options).unwrap();
            let other = fs.create(ROOT, name("g"), &NewNode::file()).unwrap().ino;
            let rest = vec![1; 64 * 4096];
            assert!(fs.write(other, 0, &rest, options).unwrap() < rest.len());
            let bytes = &bytes[..len as usize];
            assert_eq!(
                fs.write(ino, 0, bytes, options),
                Ok(bytes.len()),
                "{mode:?}"
            );
            assert_clean(&store);
        }
    }
}

/// On a full volume every operation either works or changes nothing; then everything can be deleted, in any order.
#[test]
fn a_full_volume_can_be_emptied() {
    for seed in 0..8 {
        let (store, fs) = fresh(300);
        let empty = fs.statfs().grains_free;
        let mut dice = Dice::new(seed);
        let mut dirs = vec![ROOT];
        let mut full = 0;
        for i in 0.. {
            let dir = *dice.pick(&dirs);
            let label = format!("{}-{i}", "n".repeat(dice.below(200) as usize));
            let result = match dice.below(6) {
                0 => fs.create(dir, name(&label), &NewNode::directory()),
                1 => fs.symlink(dir, name(&label), name("target"), 0, 0),
                _ => fs.create(dir, name(&label), &NewNode::file()),
            };
            match result {
                Ok(attr) if attr.kind == FileKind::Directory => dirs.push(attr.ino),
                Ok(attr) if attr.kind == FileKind::File => {
                    let len = 1 + dice.below(20_000) as usize;
                    let _ = fs.write(
                        attr.ino,
                        dice.below(9000),
                        &vec![1; len],
                        WriteOptions::default(),
                    );
                }
                Ok(_) => {}
                Err(error) => {
                    assert_eq!(error, FsError::NoSpace);
                    full += 1;
                    assert_clean(&store);
                    if full > 50 {
                        break;
                    }
                }
            }
        }
        fs.sync_all().unwrap();
        assert_clean(&store);
        empty_dir(&fs, ROOT, &mut dice);
        assert_eq!(fs.statfs().grains_free, empty, "seed {seed}");
        assert_eq!(fs.statfs().inodes, 1);
        assert_clean(&store);
    }
}

fn empty_dir(fs: &contigfs::Fs<impl contigfs::BlockStore>, dir: InodeNo, dice: &mut Dice) {
    let mut all = names(fs, dir).unwrap();
    while !all.is_empty() {
        let (label, ino) = all.swap_remove(dice.below(all.len() as u64) as usize);
        if fs.attr(ino).unwrap().kind == FileKind::Directory {
            empty_dir(fs, ino, dice);
            fs.rmdir(dir, name(&label)).unwrap();
        } else {
            fs.unlink(dir, name(&label)).unwrap();
        }
    }
}

/// Replacing by rename, truncating and punching work on a full volume: they are ways to delete.
#[test]
fn whatever_frees_works_when_full() {
    let (store, fs) = fresh(64);
    let a = fs.create(ROOT, name("a"), &NewNode::file()).unwrap().ino;
    let b = fs.create(ROOT, name("b"), &NewNode::file()).unwrap().ino;
    fs.write(b, 0, &[1; 20_000], WriteOptions::default())
        .unwrap();
    while fs
        .write(
            a,
            fs.attr(a).unwrap().size,
            &[1; 4096],
            WriteOptions::default(),
        )
        .is_ok()
    {}
    assert_eq!(fs.statfs().grains_free, 0);
    fs.fallocate(a, 100, 5000, FallocMode::PunchHole).unwrap();
    fs.set_attr(
        a,
        &SetAttr {
            size: Some(40_001),
            ..SetAttr::default()
        },
    )
    .unwrap();
    fs.rename(ROOT, name("a"), ROOT, name("b"), RenameMode::Replace)
        .unwrap();
    assert_eq!(names(&fs, ROOT).unwrap(), [("b".to_owned(), a)]);
    assert_clean(&store);
}

/// A file without names keeps its data until the last close, and then gives back all.
#[test]
fn an_open_file_outlives_its_name() {
    let (store, fs) = fresh(64);
    let empty = fs.statfs().grains_free;
    let ino = fs.create(ROOT, name("f"), &NewNode::file()).unwrap().ino;
    fs.open(ino).unwrap();
    fs.write(ino, 0, b"still here", WriteOptions::default())
        .unwrap();
    fs.unlink(ROOT, name("f")).unwrap();
    assert_eq!(content(&fs, ino).unwrap(), b"still here");
    assert_eq!(fs.attr(ino).unwrap().nlink, 0);
    fs.close(ino).unwrap();
    assert_eq!(fs.attr(ino), Err(FsError::NotFound));
    assert_eq!(fs.statfs().grains_free, empty);
    assert_clean(&store);
}

/// A file that outgrows its range moves with its content, and leaves nothing behind; a held one does not move.
#[test]
fn a_file_moves_to_a_larger_range() {
    let (store, fs) = fresh(1000);
    let ino = fs.create(ROOT, name("f"), &NewNode::file()).unwrap().ino;
    fs.write(ino, 12_345, b"content", WriteOptions::default())
        .unwrap();
    let old = fs.hold_extent(ino).unwrap();
    let far = old.range.count * 4096 + 77;
    assert_eq!(
        fs.write(ino, far, b"end", WriteOptions::default()),
        Err(FsError::Busy)
    );
    fs.release_extent(ino);
    assert_eq!(fs.write(ino, far, b"end", WriteOptions::default()), Ok(3));
    let new = fs.file_extent(ino).unwrap();
    assert!(new.range.count > old.range.count && new.size == far + 3);
    let mut buf = [0; 7];
    fs.read(ino, 12_345, &mut buf).unwrap();
    assert_eq!(&buf, b"content");
    fs.sync_all().unwrap();
    assert_clean(&store);
    assert_eq!(contigfs::check(&store).ownerless_grains, 0);
    assert_eq!(fs.attr(ino).unwrap().grains, 2);
    let too_far = 1 << 62;
    assert_eq!(
        fs.write(ino, too_far, b"x", WriteOptions::default()),
        Err(FsError::FileTooLarge)
    );
}

/// A failed store is an error of the operation, never a panic, and reads go on.
#[test]
fn a_failed_store_fails_the_operation() {
    let (store, fs) = fresh(64);
    let ino = fs.create(ROOT, name("f"), &NewNode::file()).unwrap().ino;
    fs.write(ino, 0, b"x", WriteOptions::default()).unwrap();
    store.cut_power_after(0);
    let failed = FsError::Store(StoreError::Failed);
    assert_eq!(
        fs.create(ROOT, name("g"), &NewNode::file()).map(drop),
        Err(failed)
    );
    assert_eq!(fs.unlink(ROOT, name("f")), Err(failed));
    assert_eq!(fs.fsync(ino, contigfs::SyncScope::All), Err(failed));
    assert_eq!(content(&fs, ino).unwrap(), b"x");
}

/// Files that were written or read but not synced do not pile up in memory: from some number on they are written.
#[test]
fn unsynced_records_are_bounded() {
    let (store, fs) = fresh(100_000);
    for i in 0..10_000 {
        let ino = fs
            .create(ROOT, name(&format!("f{i}")), &NewNode::file())
            .unwrap()
            .ino;
        fs.write(ino, 0, b"x", WriteOptions::default()).unwrap();
    }
    let cut = std::sync::Arc::new(store.after_power_cut(|_| 0));
    assert_clean(&cut);
    let fs = contigfs::Fs::mount(cut).unwrap();
    let durable = (0..10_000).filter(|i| {
        let attr = fs.lookup(ROOT, name(&format!("f{i}"))).unwrap();
        attr.size == 1
    });
    assert!(durable.count() > 5000);
}

/// Whoever gave peers access to a file hears before it shrinks, moves, or is freed.
#[test]
fn observers_hear_first() {
    struct Ear(std::sync::Arc<std::sync::Mutex<Vec<String>>>);
    impl contigfs::ExtentObserver for Ear {
        fn shrinking(&self, ino: InodeNo, size: u64) {
            self.0
                .lock()
                .unwrap()
                .push(format!("{ino} shrinks to {size}"));
        }
        fn moving(&self, ino: InodeNo) {
            self.0.lock().unwrap().push(format!("{ino} moves"));
        }
        fn freed(&self, ino: InodeNo) {
            self.0.lock().unwrap().push(format!("{ino} is freed"));
        }
    }
    let (_store, fs) = fresh(100);
    let heard = std::sync::Arc::default();
    assert!(fs.set_observer(Box::new(Ear(std::sync::Arc::clone(&heard)))));
    assert!(!fs.set_observer(Box::new(Ear(std::sync::Arc::clone(&heard)))));
    let ino = fs.create(ROOT, name("f"), &NewNode::file()).unwrap().ino;
    for size in [5000, 10, 1 << 37] {
        fs.set_attr(
            ino,
            &SetAttr {
                size: Some(size),
                ..SetAttr::default()
            },
        )
        .unwrap();
    }
    fs.unlink(ROOT, name("f")).unwrap();
    let expected = [
        format!("{ino} shrinks to 10"),
        format!("{ino} moves"),
        format!("{ino} is freed"),
    ];
    assert_eq!(*heard.lock().unwrap(), expected);
}

/// A store in which a grain can not be read any more, and so not be patched.
struct Worn {
    store: Arc<MemStore>,
    lba: Lba,
    is_worn: AtomicBool,
}

impl BlockStore for Worn {
    fn read(&self, at: ByteAddr, buf: &mut [u8]) -> Result<(), StoreError> {
        self.store.read(at, buf)
    }

    fn write(&self, at: ByteAddr, data: &[u8]) -> Result<(), StoreError> {
        self.store.write(at, data)
    }

    fn commit(&self, batch: AtomicBatch) -> Result<(), StoreError> {
        let lba = self.lba;
        match self.is_worn.load(SeqCst) && batch.patches.iter().any(|patch| patch.0 == lba) {
            true => Err(StoreError::Damaged { lba }),
            false => self.store.commit(batch),
        }
    }

    fn sync(&self, range: LbaRange) -> Result<(), StoreError> {
        self.store.sync(range)
    }

    fn next_mapped(&self, range: LbaRange) -> Option<Lba> {
        self.store.next_mapped(range)
    }

    fn space(&self) -> Space {
        self.store.space()
    }
}

/// A record that can not be written keeps no other from the media, and is the business of nobody but who syncs.
#[test]
fn a_record_that_can_not_be_written() {
    const FILES: u64 = 6000;
    let (store, fs) = fresh(100_000);
    let label = |n: u64| format!("f{n}");
    let make = |n| fs.create(ROOT, name(&label(n)), &NewNode::file()).unwrap();
    let inos: Vec<InodeNo> = (0..FILES).map(|n| make(n).ino).collect();
    drop(fs);
    let lba = TABLES[1].offset(inos[100].0 / 32);
    let worn = Arc::new(Worn {
        store: Arc::clone(&store),
        lba,
        is_worn: AtomicBool::new(false),
    });
    let fs = Fs::mount(Arc::clone(&worn)).unwrap();
    inos.iter().for_each(|&ino| fs.open(ino).unwrap());
    worn.is_worn.store(true, SeqCst);
    let damaged = Err(FsError::Store(StoreError::Damaged { lba }));
    for &ino in &inos {
        assert_eq!(fs.write(ino, 0, b"x", WriteOptions::default()), Ok(1));
    }
    assert_eq!(fs.sync_all(), damaged);
    let fs = Fs::mount(Arc::new(store.after_power_cut(|_| 0))).unwrap();
    for (n, ino) in (0..).zip(inos) {
        let size = fs.lookup(ROOT, name(&label(n))).unwrap().size;
        assert_eq!(size == 1, TABLES[1].offset(ino.0 / 32) != lba, "{ino}");
    }
}
