//! A file whose pages are shared, used by calls and through a mapping, beside what it should be.

use std::fs::File;
use std::sync::Arc;

use contigfs::planted::Bug;
use contigfs::{
    FallocMode, FormatOptions, Fs, FsOptions, InodeNo, NewNode, SetAttr, SyncScope, WriteOptions,
    check_with_data,
};
use ftl::{MemDevice, OpenOptions, Volume};
use memmap2::{MmapOptions, MmapRaw};

use support::{Dice, content, name};

const ROOT: InodeNo = InodeNo::ROOT;
const PAGE: u64 = 4096;
/// Most pages of the file, which are as many as may be shared.
pub const PAGES: u64 = 64;

pub type Store = Arc<Volume<MemDevice>>;

/// A mapping of a shared file, such as programs on a mount have.
#[derive(Debug)]
pub struct Mapping(MmapRaw);

impl Mapping {
    pub fn of(memory: &File) -> Self {
        let len = (PAGES * PAGE) as usize;
        Self(MmapOptions::new().len(len).map_raw(memory).unwrap())
    }

    /// The bytes must lie in pages of the file.
    pub fn load(&self, at: u64, len: u64) -> Vec<u8> {
        assert!(at + len <= self.0.len() as u64);
        // SAFETY: inside of the mapping; nobody stores there meanwhile.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().add(at as usize), len as usize) }
            .to_vec()
    }

    /// The bytes must lie in pages of the file.
    pub fn store(&self, at: u64, bytes: &[u8]) {
        assert!(at as usize + bytes.len() <= self.0.len());
        // SAFETY: inside of the mapping; nobody looks there meanwhile.
        unsafe {
            let to = self.0.as_mut_ptr().add(at as usize);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
    }
}

pub fn open(device: MemDevice, shared_frames: u64) -> Store {
    let options = OpenOptions {
        pool_frames: 128,
        shared_frames: shared_frames as usize,
        ..OpenOptions::default()
    };
    Arc::new(Volume::open(device, options).unwrap().0)
}

/// A fresh volume with a file system.
pub fn formatted() -> Store {
    let mut device = MemDevice::new(32 << 20).unwrap();
    ftl::Ftl::format(&mut device, &ftl::FormatOptions::default()).unwrap();
    let store = open(device, PAGES);
    Fs::format(&store, &FormatOptions::default()).unwrap();
    store
}

/// The device of a volume that nobody uses any more, as a crash leaves it.
pub fn crashed(store: Store) -> MemDevice {
    Arc::into_inner(store).unwrap().into_device()
}

pub fn set_size(fs: &Fs<Store>, ino: InodeNo, size: u64) {
    let attr = SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    fs.set_attr(ino, &attr).unwrap();
}

/// Random stores, writes, sizes and holes. Calls and mapping see the same bytes after each step, and what was there at the
/// last `fsync` is there after a crash.
pub fn run(seed: u64, steps: u64, bug: Option<Bug>) {
    let mut dice = Dice::new(seed);
    let store = formatted();
    let options = FsOptions {
        planted: bug,
        ..FsOptions::default()
    };
    let fs = Fs::mount_with(Arc::clone(&store), &options).unwrap();
    let ino = fs.create(ROOT, name("f"), &NewNode::file()).unwrap().ino;
    fs.open(ino).unwrap();
    let mut expected = vec![5; dice.below(3 * PAGE) as usize];
    fs.write(ino, 0, &expected, WriteOptions::default())
        .unwrap();
    let mut map = Mapping::of(&fs.share(ino, true).unwrap());
    for step in 1..=steps {
        let size = expected.len() as u64;
        let at = dice.below(size.max(1));
        let len = 1 + dice.below(2 * PAGE);
        let inside = len.min(size - at.min(size));
        let byte = step as u8 | 1;
        let end = (at + len).min(PAGES * PAGE);
        match dice.below(16) {
            0..5 if inside > 0 => {
                map.store(at, &vec![byte; inside as usize]);
                expected[at as usize..(at + inside) as usize].fill(byte);
            }
            5 => {
                // Behind the end, where nobody must ever see it.
                let rest = size.next_multiple_of(PAGE) - size;
                map.store(size, &vec![byte; rest as usize]);
            }
            6..9 => {
                let bytes = vec![byte; (end - at) as usize];
                fs.write(ino, at, &bytes, WriteOptions::default()).unwrap();
                expected.resize((end.max(size)) as usize, 0);
                expected[at as usize..end as usize].fill(byte);
            }
            9 | 10 => {
                let size = dice.below(PAGES / 2 * PAGE);
                set_size(&fs, ino, size);
                expected.resize(size as usize, 0);
            }
            11 if inside > 0 => {
                fs.fallocate(ino, at, inside, FallocMode::PunchHole)
                    .unwrap();
                expected[at as usize..(at + inside) as usize].fill(0);
            }
            12 => {
                let mode = FallocMode::ZeroRange { keep_size: false };
                fs.fallocate(ino, at, end - at, mode).unwrap();
                expected.resize((end.max(size)) as usize, 0);
                expected[at as usize..end as usize].fill(0);
            }
            13 => {
                let mode = FallocMode::Allocate { keep_size: false };
                fs.fallocate(ino, at, end - at, mode).unwrap();
                expected.resize((end.max(size)) as usize, 0);
            }
            14 => fs.fsync(ino, SyncScope::Data).unwrap(),
            15 => {
                drop(map);
                fs.unshare(ino).unwrap();
                map = Mapping::of(&fs.share(ino, true).unwrap());
            }
            _ => store.tick(),
        }
        let size = expected.len() as u64;
        assert_eq!(fs.attr(ino).unwrap().size, size, "seed {seed}, step {step}");
        let seen = map.load(0, size);
        assert!(seen == expected, "seed {seed}, step {step}: the mapping");
        let seen = content(&fs, ino).unwrap();
        assert!(seen == expected, "seed {seed}, step {step}: the calls");
    }
    fs.fsync(ino, SyncScope::All).unwrap();
    store.ftl().self_check();
    drop((map, fs));
    let store = open(crashed(store), 0);
    let fs = Fs::mount(Arc::clone(&store)).unwrap();
    let seen = content(&fs, ino).unwrap();
    assert!(seen == expected, "seed {seed}: after a crash");
    let report = check_with_data(&store);
    assert!(report.is_clean(), "seed {seed}: {:#?}", report.problems);
}
