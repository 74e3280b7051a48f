//! Files whose pages are shared with those who map them.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::harness::sharing::{Mapping, PAGES, Store, crashed, formatted, open, run, set_size};
use contigfs::{
    BlockStore, ByteAddr, CopyRange, FormatOptions, Fs, FsError, InodeNo, MemStore, NewNode,
    SetAttr, ShareError, StoreError, SyncScope, WriteOptions,
};
use ftl::{AtomicBatch, Lba, LbaRange, MemDevice, Space};
use support::{content, name};

const ROOT: InodeNo = InodeNo::ROOT;
const PAGE: u64 = 4096;

fn file(fs: &Fs<Store>, label: &str, bytes: &[u8]) -> InodeNo {
    let ino = fs.create(ROOT, name(label), &NewNode::file()).unwrap().ino;
    let written = fs.write(ino, 0, bytes, WriteOptions::default());
    assert_eq!(written, Ok(bytes.len()));
    ino
}

/// Calls and mapping agree whatever happens to the file, and an `fsync` covers what was stored (I1, I2, I3).
#[test]
fn calls_and_mapping_agree() {
    for seed in 0..8 {
        run(seed, 250, None);
    }
}

/// What a mapping stores reaches the media without `fsync`, too, after a look and the age of dirty pages; the time of the
/// file changes with it, and nothing is written for a file that nobody stores to.
#[test]
fn stores_are_found() {
    let store = formatted();
    let fs = Fs::mount(Arc::clone(&store)).unwrap();
    let ino = file(&fs, "f", &[1; 10_000]);
    let map = Mapping::of(&fs.share(ino, true).unwrap());
    fs.fsync(ino, SyncScope::All).unwrap();
    let before = fs.attr(ino).unwrap();
    let grains = store.ftl().stats().user_grains;
    for _ in 0..3 {
        fs.find_stores(ino).unwrap();
        fs.fsync(ino, SyncScope::All).unwrap();
    }
    assert_eq!(store.ftl().stats().user_grains, grains);
    assert_eq!(fs.attr(ino).unwrap(), before);
    map.store(5000, b"stored");
    fs.find_stores(ino).unwrap();
    assert!(fs.attr(ino).unwrap().mtime > before.mtime);
    assert_eq!(store.ftl().stats().stores_found, 1);
    assert_eq!(store.ftl().stats().dirty_pages, 1);
    // `sync` looks by itself.
    map.store(9000, b"again");
    fs.sync_all().unwrap();
    drop((map, fs));
    let store = open(crashed(store), 0);
    let fs = Fs::mount(store).unwrap();
    let seen = content(&fs, ino).unwrap();
    assert_eq!(
        (&seen[5000..5006], &seen[9000..9005]),
        (&b"stored"[..], &b"again"[..])
    );
}

/// Only so much is shared: a file that is larger is not, and one that would become larger does not; both are as they
/// were. What is not shared any more makes room (I16).
#[test]
fn a_limit_on_what_is_shared() {
    let store = formatted();
    let fs = Fs::mount(Arc::clone(&store)).unwrap();
    let large = file(&fs, "large", &vec![1; (PAGES * PAGE + 1) as usize]);
    assert_eq!(fs.share(large, true).err(), Some(FsError::FileTooLarge));
    let most = file(&fs, "most", &vec![2; ((PAGES - 1) * PAGE) as usize]);
    let map = Mapping::of(&fs.share(most, true).unwrap());
    let options = WriteOptions::default();
    let longer = fs.write(most, (PAGES - 1) * PAGE, &[3; 5000], options);
    assert_eq!(longer, Err(FsError::FileTooLarge));
    assert_eq!(fs.attr(most).unwrap().size, (PAGES - 1) * PAGE);
    map.store(7, &[9]);
    let mut byte = [0];
    fs.read(most, 7, &mut byte).unwrap();
    assert_eq!(byte, [9]);
    let small = file(&fs, "small", &[4; 3 * PAGE as usize]);
    assert_eq!(fs.share(small, true).err(), Some(FsError::FileTooLarge));
    drop(map);
    fs.unshare(most).unwrap();
    fs.share(small, true).unwrap();
    assert_eq!(
        content(&fs, large).unwrap(),
        vec![1; (PAGES * PAGE + 1) as usize]
    );
    // A store without memory to share says so.
    let (mem, fs) = support::fresh(1000);
    let ino = fs.create(ROOT, name("f"), &NewNode::file()).unwrap().ino;
    fs.write(ino, 0, &[1], options).unwrap();
    assert_eq!(fs.share(ino, true).err(), Some(FsError::NotSupported));
    let _: Arc<MemStore> = mem;
}

/// Holes take space when a file is shared, so that a store into one never lacks it (ENOSPC when due); without space the
/// file is not shared, and nothing has changed. Attributes tell of the space.
#[test]
fn holes_take_space() {
    let store = formatted();
    let fs = Fs::mount(Arc::clone(&store)).unwrap();
    let sparse = file(&fs, "sparse", &[1]);
    set_size(&fs, sparse, 40 * PAGE);
    let mapped = store.space().mapped;
    assert_eq!(fs.attr(sparse).unwrap().grains, 1);
    let memory = fs.share(sparse, true).unwrap();
    assert_eq!(store.space().mapped, mapped + 39);
    assert_eq!(fs.attr(sparse).unwrap().grains, 40);
    let map = Mapping::of(&memory);
    map.store(30 * PAGE, b"in a hole");
    assert_eq!(
        &content(&fs, sparse).unwrap()[30 * PAGE as usize..][..9],
        b"in a hole"
    );
    drop(map);
    fs.unshare(sparse).unwrap();
    let other = file(&fs, "other", &[1]);
    set_size(&fs, other, 40 * PAGE);
    let filler = fs
        .create(ROOT, name("filler"), &NewNode::file())
        .unwrap()
        .ino;
    let (mut at, bytes) = (0, vec![7; 1 << 16]);
    while let Ok(n) = fs.write(filler, at, &bytes, WriteOptions::default())
        && n > 0
    {
        at += n as u64;
    }
    let before = store.space().mapped;
    let refused = fs.share(other, true).err();
    assert!(
        matches!(refused, Some(FsError::Store(_) | FsError::NoSpace)),
        "{refused:?}"
    );
    assert_eq!(store.space().mapped, before);
    fs.unlink(ROOT, name("filler")).unwrap();
    fs.share(other, true).unwrap();
}

/// A snapshot keeps all that is shared before it is there. Where there is no space for that it is refused, instead of waiting
/// for some with everybody who wants something of the volume (ENOSPC when due), and works when there is.
#[test]
fn a_snapshot_without_space_for_what_is_shared() {
    const SHARED: u64 = 200;
    let mut device = MemDevice::new(32 << 20).unwrap();
    ftl::Ftl::format(&mut device, &ftl::FormatOptions::default()).unwrap();
    let store = open(device, SHARED);
    Fs::format(&store, &FormatOptions::default()).unwrap();
    let fs = Fs::mount(Arc::clone(&store)).unwrap();
    let (shared, filler) = (file(&fs, "shared", &[1]), file(&fs, "filler", &[2]));
    set_size(&fs, shared, SHARED * PAGE);
    fs.share(shared, true).unwrap();
    let (mut at, bytes) = (0, vec![7; 1 << 16]);
    while let Ok(n) = fs.write(filler, at, &bytes, WriteOptions::default())
        && n > 0
    {
        at += n as u64;
    }
    // Enough for what is held back while there is a snapshot, and not for what is shared, too.
    let held_back = store.space().capacity / 64;
    assert!(held_back < SHARED - 50);
    at -= (held_back + 50) * PAGE;
    set_size(&fs, filler, at);
    let mapped = store.space().mapped;
    assert_eq!(fs.make_snapshot(b"s").err(), Some(FsError::NoSpace));
    assert_eq!((fs.snapshots().len(), store.space().mapped), (0, mapped));
    set_size(&fs, filler, at - SHARED * PAGE);
    fs.make_snapshot(b"s").unwrap();
    assert!(store.space().mapped >= mapped);
}

/// Copies have what mappings of the source have stored, and mappings of the target see what is copied.
#[test]
fn copies() {
    let store = formatted();
    let fs = Fs::mount(Arc::clone(&store)).unwrap();
    let from = file(&fs, "from", &[1; 8 * PAGE as usize]);
    let to = file(&fs, "to", &[2; 8 * PAGE as usize]);
    let source = Mapping::of(&fs.share(from, true).unwrap());
    let target = Mapping::of(&fs.share(to, true).unwrap());
    source.store(2 * PAGE, &[3; PAGE as usize]);
    let copy = CopyRange {
        from,
        from_offset: 0,
        to,
        to_offset: 0,
        len: 8 * PAGE,
    };
    assert_eq!(fs.copy_range(&copy), Ok(8 * PAGE));
    assert_eq!(target.load(0, 8 * PAGE), content(&fs, from).unwrap());
    target.store(0, &[4]);
    assert_eq!(content(&fs, to).unwrap()[0], 4);
    drop(target);
    fs.unshare(to).unwrap();
    source.store(3 * PAGE, &[5; PAGE as usize]);
    assert_eq!(fs.copy_range(&copy), Ok(8 * PAGE));
    assert_eq!(content(&fs, to).unwrap(), source.load(0, 8 * PAGE));
}

/// A volume that refuses batches for a while.
struct Refusing {
    inner: Store,
    refuses: AtomicBool,
}

impl BlockStore for Refusing {
    fn read(&self, at: ByteAddr, buf: &mut [u8]) -> Result<(), StoreError> {
        BlockStore::read(&self.inner, at, buf)
    }

    fn write(&self, at: ByteAddr, data: &[u8]) -> Result<(), StoreError> {
        BlockStore::write(&self.inner, at, data)
    }

    fn commit(&self, batch: AtomicBatch) -> Result<(), StoreError> {
        match self.refuses.load(Ordering::Relaxed) {
            true => Err(StoreError::NoSpace),
            false => BlockStore::commit(&self.inner, batch),
        }
    }

    fn sync(&self, range: LbaRange) -> Result<(), StoreError> {
        BlockStore::sync(&self.inner, range)
    }

    fn next_mapped(&self, range: LbaRange) -> Option<Lba> {
        BlockStore::next_mapped(&self.inner, range)
    }

    fn space(&self) -> Space {
        BlockStore::space(&self.inner)
    }

    fn share(&self, memory: &File, at: u64, range: LbaRange) -> Result<(), ShareError> {
        self.inner.share(memory, at, range)
    }

    fn bring_back(&self, range: LbaRange) -> Result<(), StoreError> {
        self.inner.bring_back(range)
    }

    fn find_stores(&self, range: LbaRange) -> u64 {
        BlockStore::find_stores(&self.inner, range)
    }

    fn unshare(&self, range: LbaRange) {
        BlockStore::unshare(&self.inner, range);
    }

    fn let_leave(&self, range: LbaRange) -> bool {
        BlockStore::let_leave(&self.inner, range)
    }
}

/// A file that can not be made shorter is shared as before: what is stored to its end is found, and durable with the next
/// `fsync` (I1). On a volume that a snapshot fills, that happens.
#[test]
fn a_file_that_stays_as_long_stays_shared() {
    let store = formatted();
    let refusing = Refusing {
        inner: Arc::clone(&store),
        refuses: AtomicBool::new(false),
    };
    let fs = Fs::mount(refusing).unwrap();
    let ino = fs.create(ROOT, name("f"), &NewNode::file()).unwrap().ino;
    fs.write(ino, 0, &[1; 8 * PAGE as usize], WriteOptions::default())
        .unwrap();
    let map = Mapping::of(&fs.share(ino, true).unwrap());
    let shorter = SetAttr {
        size: Some(PAGE),
        ..SetAttr::default()
    };
    fs.store().refuses.store(true, Ordering::Relaxed);
    assert_eq!(fs.set_attr(ino, &shorter), Err(FsError::NoSpace));
    fs.store().refuses.store(false, Ordering::Relaxed);
    assert_eq!(fs.attr(ino).unwrap().size, 8 * PAGE);
    map.store(6 * PAGE, b"stored");
    fs.fsync(ino, SyncScope::All).unwrap();
    drop((map, fs));
    let fs = Fs::mount(open(crashed(store), 0)).unwrap();
    assert_eq!(
        &content(&fs, ino).unwrap()[6 * PAGE as usize..][..6],
        b"stored"
    );
}
