//! Mappings beside stores that go past the kernel's page cache (`docs/coherence.md`). No page is dirty when a mapping is made
//! or ends: the kernel then waits for the server with the memory map of this very process locked.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use contigfs::fuse::{
    CacheListener, MountOptions, Mounted, PageCache, Window, available, mount_with_cache,
};
use contigfs::{FallocMode, Fs, InodeNo, MemStore, NewNode, WriteOptions};
use memmap2::{MmapOptions, MmapRaw};
use support::mounted::skip;
use support::{fresh, name};
use tempfile::TempDir;

const PAGE: u64 = 4096;

fn open(path: &Path) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    options.open(path).unwrap()
}

fn map(file: &File) -> MmapRaw {
    MmapOptions::new().map_raw(file).unwrap()
}

/// An aligned word of a mapping.
fn word(map: &MmapRaw, at: usize) -> &AtomicU64 {
    assert!(at + 8 <= map.len() && at.is_multiple_of(8));
    // SAFETY: inside the mapping and aligned; all accesses of this process to it are atomic.
    unsafe { AtomicU64::from_ptr(map.as_mut_ptr().add(at).cast()) }
}

fn load(map: &MmapRaw, at: usize) -> u64 {
    u64::from_le(word(map, at).load(Ordering::SeqCst))
}

fn store(map: &MmapRaw, at: usize, value: u64) {
    word(map, at).store(value.to_le(), Ordering::SeqCst);
}

#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<(&'static str, InodeNo)>>>);

impl CacheListener for Heard {
    fn cached(&self, ino: InodeNo) {
        self.0.lock().unwrap().push(("cached", ino));
    }

    fn uncached(&self, ino: InodeNo) {
        self.0.lock().unwrap().push(("uncached", ino));
    }
}

/// A mount with somebody who stores beside it.
struct Beside {
    mounted: Mounted,
    cache: Arc<PageCache>,
    fs: Arc<Fs<Arc<MemStore>>>,
    heard: Heard,
    dir: TempDir,
}

impl Beside {
    fn new() -> Option<Self> {
        if let Err(why) = available() {
            skip(&why.to_string());
            return None;
        }
        let fs = Arc::new(fresh(100_000).1);
        let heard = Heard::default();
        let cache = PageCache::new(Box::new(heard.clone()));
        let dir = TempDir::new().unwrap();
        let options = MountOptions::default();
        let mounted =
            mount_with_cache(Arc::clone(&fs), dir.path(), &options, Arc::clone(&cache)).unwrap();
        Some(Self {
            mounted,
            cache,
            fs,
            heard,
            dir,
        })
    }

    fn recall(&self, ino: InodeNo) -> Window {
        let (sender, windows) = channel();
        self.cache.recall(ino, 0..PAGE, move |window| {
            sender.send(window).unwrap();
        });
        windows.recv_timeout(Duration::from_secs(60)).unwrap()
    }

    fn read(&self, ino: InodeNo, at: u64) -> u64 {
        let mut bytes = [0; 8];
        self.fs.read(ino, at, &mut bytes).unwrap();
        u64::from_le_bytes(bytes)
    }

    fn write(&self, ino: InodeNo, at: u64, value: u64) {
        let bytes = value.to_le_bytes();
        let written = self.fs.write(ino, at, &bytes, WriteOptions::default());
        assert_eq!(written.unwrap(), 8);
    }
}

/// A recall brings the stores of a mapping back; what is stored then is seen by it, also when it looked at the page in
/// between, and stored to it.
#[test]
fn a_store_beside_the_mount() {
    let Some(mut beside) = Beside::new() else {
        return;
    };
    let file = open(&beside.dir.path().join("f"));
    file.write_all_at(&[0; PAGE as usize], 0).unwrap();
    let ino = InodeNo(file.metadata().unwrap().ino());
    let heard = || beside.heard.0.lock().unwrap().clone();
    assert_eq!(heard(), [], "calls leave no copies");

    let map = map(&file);
    let get = |at| load(&map, at);
    let set = |at, value| store(&map, at, value);
    set(0, 1);
    assert_eq!(heard(), [("cached", ino)]);
    let window = beside.recall(ino);
    assert_eq!(beside.read(ino, 0), 1);
    beside.write(ino, 8, 2);
    assert!(window.stored(8..16).is_none());
    assert_eq!((get(0), get(8)), (1, 2));

    let window = beside.recall(ino);
    assert_eq!(get(8), 2);
    set(0, 3);
    set(8, 4);
    beside.write(ino, 8, 5);
    let stale = window.stored(8..16).expect("the page was looked at");
    let (sender, told) = channel();
    stale.recall(move || sender.send(()).unwrap());
    told.recv_timeout(Duration::from_secs(60)).unwrap();
    assert_eq!((get(0), get(8)), (3, 5));
    assert_eq!((beside.read(ino, 0), beside.read(ino, 8)), (3, 5));

    // A window that is given up is as if it had not been.
    drop(beside.recall(ino));
    set(8, 6);
    map.flush().unwrap();
    assert_eq!(beside.read(ino, 8), 6);

    drop((map, file));
    let start = Instant::now();
    while heard() != [("cached", ino), ("uncached", ino)] {
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", heard());
        thread::sleep(Duration::from_millis(1));
    }
    beside.mounted.unmount().unwrap();
    // Without a mount there is nobody to ask.
    assert!(beside.recall(ino).stored(0..8).is_none());
}

/// lseek(2): a hole is where nothing reads as anything but zeros, whoever stored it.
#[test]
fn stores_of_mappings_are_data() {
    let Some(beside) = Beside::new() else {
        return;
    };
    let file = open(&beside.dir.path().join("f"));
    file.set_len(1 << 20).unwrap();
    let seek = |from: i64, whence: i32| {
        // SAFETY: an open file.
        unsafe { libc::lseek(file.as_raw_fd(), from, whence) }
    };
    assert_eq!(seek(0, libc::SEEK_DATA), -1);
    let mapped = map(&file);
    store(&mapped, 1 << 19, 7);
    let data = seek(0, libc::SEEK_DATA);
    assert!((0..=1 << 19).contains(&data), "{data}");
    assert!(seek(1 << 19, libc::SEEK_HOLE) > 1 << 19);
    assert_eq!(seek(1 << 20, libc::SEEK_DATA), -1);
    mapped.flush().unwrap();
}

/// `msync` says that stores did not all find space, also if some of those that are written back together did.
#[test]
fn stores_that_do_not_fit() {
    const PAGES: u64 = 64;
    let Some(beside) = Beside::new() else {
        return;
    };
    let file = open(&beside.dir.path().join("f"));
    file.set_len(PAGES * PAGE).unwrap();
    let fs = &beside.fs;
    let filler = fs.create(InodeNo::ROOT, name("filler"), &NewNode::file());
    let all_but = (fs.statfs().grains_free - PAGES / 2) * PAGE;
    let allocate = FallocMode::Allocate { keep_size: false };
    fs.fallocate(filler.unwrap().ino, 0, all_but, allocate)
        .unwrap();
    let mapped = map(&file);
    for page in 0..PAGES {
        store(&mapped, (page * PAGE) as usize, 1 + page);
    }
    let refused = mapped.flush().expect_err("half of it does not fit");
    assert_eq!(refused.raw_os_error(), Some(libc::ENOSPC));
    assert_eq!(fs.statfs().grains_free, 0);
}
