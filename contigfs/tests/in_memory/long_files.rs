//! Files of more grains than a store should free at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use contigfs::{
    BlockStore, ByteAddr, FallocMode, Fs, FsError, InodeNo, MemStore, NewNode, SetAttr, StoreError,
    WriteOptions,
};
use ftl::{AtomicBatch, Lba, LbaRange, Space};
use support::{assert_clean, fresh, name};

const ROOT: InodeNo = InodeNo::ROOT;
const GRAIN: u64 = 4096;
/// More than two batches free.
const GRAINS: u64 = 600_000;
const HALF: u64 = GRAINS / 2 * GRAIN;
/// Where the second half is.
const FAR: u64 = 5 * HALF;
/// More than this in one batch would hold up everybody else.
const AT_ONCE: u64 = (1 << 18) + (1 << 16);

/// A store that counts what each batch frees.
struct Freeing {
    store: Arc<MemStore>,
    most: AtomicU64,
    batches: AtomicU64,
}

impl BlockStore for Freeing {
    fn read(&self, at: ByteAddr, buf: &mut [u8]) -> Result<(), StoreError> {
        self.store.read(at, buf)
    }

    fn write(&self, at: ByteAddr, data: &[u8]) -> Result<(), StoreError> {
        self.store.write(at, data)
    }

    fn commit(&self, batch: AtomicBatch) -> Result<(), StoreError> {
        let trims = batch.trims.iter();
        let freed = trims.map(|&trim| self.store.mapped_count(trim)).sum();
        self.most.fetch_max(freed, Relaxed);
        self.batches.fetch_add(u64::from(freed > 0), Relaxed);
        self.store.commit(batch)
    }

    fn sync(&self, range: LbaRange) -> Result<(), StoreError> {
        self.store.sync(range)
    }

    fn next_mapped(&self, range: LbaRange) -> Option<Lba> {
        self.store.next_mapped(range)
    }

    fn mapped_count(&self, range: LbaRange) -> u64 {
        self.store.mapped_count(range)
    }

    fn space(&self) -> Space {
        self.store.space()
    }
}

/// A file system with a file of `GRAINS` grains, in two parts that lie far from each other. Grains free without the file, and
/// with its name alone.
fn long_file() -> (Arc<MemStore>, InodeNo, [u64; 2]) {
    let (store, fs) = fresh(GRAINS + 100);
    let free = fs.statfs().grains_free;
    let ino = fs.create(ROOT, name("f"), &NewNode::file()).unwrap().ino;
    let free = [free, fs.statfs().grains_free];
    let allocate = FallocMode::Allocate { keep_size: false };
    for at in [0, FAR] {
        fs.fallocate(ino, at, HALF, allocate).unwrap();
    }
    fs.write(ino, FAR, &[9; 100], WriteOptions::default())
        .unwrap();
    fs.sync_all().unwrap();
    (store, ino, free)
}

type Change = fn(&Fs<Arc<Freeing>>, InodeNo) -> Result<(), FsError>;

/// What takes all grains of the file away but this many; none: its name, too.
const CHANGES: [(Change, Option<u64>); 4] = [
    (|fs, _| fs.unlink(ROOT, name("f")), None),
    (|fs, ino| truncate(fs, ino, 0), Some(0)),
    (|fs, ino| truncate(fs, ino, 10 * GRAIN + 1), Some(11)),
    (
        |fs, ino| fs.fallocate(ino, GRAIN, 4 * GRAINS * GRAIN, FallocMode::PunchHole),
        Some(1),
    ),
];

fn truncate(fs: &Fs<Arc<Freeing>>, ino: InodeNo, size: u64) -> Result<(), FsError> {
    let set = SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    fs.set_attr(ino, &set).map(drop)
}

fn freeing(store: MemStore) -> Arc<Freeing> {
    Arc::new(Freeing {
        store: Arc::new(store),
        most: AtomicU64::new(0),
        batches: AtomicU64::new(0),
    })
}

/// Removing, cutting and punching a long file frees it in several batches, none of which is long, and all of it is free when the
/// call returns. Cut off in between, the name is gone and the next mount frees the rest; or the file is as short as it was
/// to be, and what is behind its end never comes into sight (I9, I16).
#[test]
fn freed_piece_by_piece() {
    let (image, ino, [free, free_with_name]) = long_file();
    for (n, (change, left)) in CHANGES.into_iter().enumerate() {
        let store = freeing(image.duplicate());
        let fs = Fs::mount(Arc::clone(&store)).unwrap();
        change(&fs, ino).unwrap();
        let most = store.most.load(Relaxed);
        assert!(most <= AT_ONCE, "change {n}: {most} grains at once");
        assert!(store.batches.load(Relaxed) > 1, "change {n}");
        let left = left.map_or(free, |left| free_with_name - left);
        assert_eq!(fs.statfs().grains_free, left, "change {n}");
        drop(fs);
        assert_clean(&store.store);

        for calls in 1..=3 {
            let store = freeing(image.duplicate());
            let fs = Fs::mount(Arc::clone(&store)).unwrap();
            store.store.cut_power_after(calls);
            let result = change(&fs, ino);
            let cut = Arc::new(store.store.after_power_cut(|_| 0));
            let fs = Fs::mount(Arc::clone(&cut)).unwrap();
            let at = format!("change {n}, cut after {calls} calls: {result:?}");
            match fs.lookup(ROOT, name("f")) {
                Err(error) => {
                    assert_eq!((n, error), (0, FsError::NotFound), "{at}");
                    assert_eq!(fs.statfs().grains_free, free, "{at}");
                }
                Ok(attr) => {
                    assert!(n > 0, "{at}: the name is there");
                    if attr.size < FAR {
                        let how = WriteOptions::default();
                        fs.write(ino, FAR + HALF, b"far behind", how).unwrap();
                        let mut gap = [1; 100];
                        assert_eq!(fs.read(ino, FAR, &mut gap), Ok(100), "{at}");
                        assert_eq!(gap, [0; 100], "{at}");
                    }
                    fs.unlink(ROOT, name("f")).unwrap();
                    assert_eq!(fs.statfs().grains_free, free, "{at}");
                }
            }
            drop(fs);
            assert_clean(&cut);
        }
    }
}
