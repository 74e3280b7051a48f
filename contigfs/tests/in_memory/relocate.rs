//! Files that get another range: no data are written for it, and a power cut at any point leaves the file as it was
//! or as it was to become.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use contigfs::{
    BlockStore, ByteAddr, FallocMode, FormatOptions, Fs, FsError, FsOptions, InodeNo, MemStore,
    NewNode, SeekTo, SetAttr, StoreError, SyncDone, SyncScope, WriteOptions,
};
use ftl::{AtomicBatch, Lba, LbaRange, MemDevice, OpenOptions, Space, Volume};
use support::{assert_clean, fresh_with, name, tight};

const ROOT: InodeNo = InodeNo::ROOT;
const GRAIN: u64 = 4096;

fn resize<S: BlockStore>(fs: &Fs<S>, ino: InodeNo, size: u64) -> Result<(), FsError> {
    let set = SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    fs.set_attr(ino, &set).map(drop)
}

/// Size, and what the mapped grains hold.
type Picture = (u64, BTreeMap<u64, Vec<u8>>);

fn picture<S: BlockStore>(fs: &Fs<S>, ino: InodeNo) -> Picture {
    let size = fs.attr(ino).unwrap().size;
    let mut grains = BTreeMap::new();
    let mut at = 0;
    while let Ok(found) = fs.seek(ino, at, SeekTo::Data) {
        let mut grain = vec![0; GRAIN as usize];
        let n = fs.read(ino, found, &mut grain).unwrap();
        grain.truncate(n);
        grains.insert(found, grain);
        at = found + GRAIN;
    }
    (size, grains)
}

/// Grains of the scattered file, so far apart that one batch can not remap all of them.
const SCATTERED: u64 = 60;
const APART: u64 = 3001 * GRAIN;

fn scattered() -> Arc<MemStore> {
    let (store, fs) = fresh_with(1000, &tight());
    let ino = fs.create(ROOT, name("f"), &NewNode::file()).unwrap().ino;
    for n in 0..SCATTERED {
        let bytes = vec![n as u8 + 1; GRAIN as usize];
        fs.write(ino, n * APART, &bytes, WriteOptions::default())
            .unwrap();
    }
    // A neighbour behind, so that the range can not grow where it is.
    fs.create(ROOT, name("neighbour"), &NewNode::file())
        .unwrap();
    fs.sync_all().unwrap();
    store
}

/// Runs `change` on the scattered file with a cut before every call of the store, cuts the mount that follows before
/// every call as well, and looks at what the last mount finds.
fn survives_cuts(
    change: fn(&Fs<Arc<MemStore>>, InodeNo) -> Result<(), FsError>,
    becomes: fn(Picture) -> Picture,
) {
    let base = scattered();
    let open = |store: &Arc<MemStore>| Fs::mount_with(Arc::clone(store), &tight()).unwrap();
    let (before, after, calls) = {
        let store = Arc::new(base.duplicate());
        let fs = open(&store);
        let ino = fs.lookup_path("/f").unwrap();
        let before = picture(&fs, ino);
        let first = store.calls();
        change(&fs, ino).unwrap();
        let calls = store.calls() - first;
        assert_clean(&store);
        (before, picture(&fs, ino), calls)
    };
    assert!(becomes(before.clone()) == after, "uncut");
    assert!(calls >= 3, "{calls} calls: not in several batches");
    let mut carried_on = 0;
    for cut in 0..=calls {
        let store = Arc::new(base.duplicate());
        let fs = open(&store);
        let ino = fs.lookup_path("/f").unwrap();
        store.cut_power_after(cut);
        let answer = change(&fs, ino);
        assert_eq!(answer.is_ok(), cut == calls);
        let first_cut = store.after_power_cut(|_| 0);
        for second in 0.. {
            let store = Arc::new(first_cut.duplicate());
            let report = contigfs::check_with_data(&store);
            assert!(report.is_clean(), "cut {cut}: {:?}", report.problems);
            carried_on += report.relocating;
            store.cut_power_after(second);
            drop(open(&store));
            let done = store.calls() - first_cut.calls() <= second;
            let store = Arc::new(store.after_power_cut(|_| 0));
            let fs = open(&store);
            assert!(!fs.is_damaged(), "cut {cut}, then {second}");
            let report = contigfs::check_with_data(&store);
            assert!(report.is_clean(), "cut {cut}: {:?}", report.problems);
            assert_eq!((report.relocating, report.ownerless_grains), (0, 0));
            let found = picture(&fs, ino);
            let expected = match cut {
                0 => &before,
                _ if cut == calls => &after,
                _ if found == before => &before,
                _ => &after,
            };
            assert!(found == *expected, "cut {cut}, then {second}");
            fs.unlink(ROOT, name("f")).unwrap();
            assert_clean(&store);
            if done {
                break;
            }
        }
    }
    assert!(carried_on > 0, "no mount had to carry on");
}

/// I9: growth in several batches.
#[test]
fn growth_survives_power_cuts() {
    survives_cuts(
        |fs, ino| resize(fs, ino, 1 << 33),
        |(_, grains)| (1 << 33, grains),
    );
}

/// Programs that do not know what half a relocation is are kept away before there is one, not by one that is whole.
#[test]
fn older_programs_are_kept_away() {
    let features = |store: &MemStore| {
        let mut root = [0; 64];
        store.read(ByteAddr::new(Lba(0), 0), &mut root).unwrap();
        (root[8], root[48])
    };
    let (store, fs) = fresh_with(1000, &tight());
    let small = fs.create(ROOT, name("s"), &NewNode::file()).unwrap().ino;
    fs.create(ROOT, name("t"), &NewNode::file()).unwrap();
    fs.write(small, 0, &[1; 5000], WriteOptions::default())
        .unwrap();
    resize(&fs, small, 1 << 33).unwrap();
    assert_eq!(features(&store).0, 1, "one batch needs no feature");
    let base = scattered();
    let mut half_done = 0;
    for cut in 0..8 {
        let store = Arc::new(base.duplicate());
        let fs = Fs::mount_with(Arc::clone(&store), &tight()).unwrap();
        let ino = fs.lookup_path("/f").unwrap();
        store.cut_power_after(cut);
        let _ = resize(&fs, ino, 1 << 33);
        let after = store.after_power_cut(|_| 0);
        if contigfs::check(&after).relocating > 0 {
            half_done += 1;
            assert_eq!(features(&after), (2, 2));
        }
    }
    assert!(half_done > 0);
}

/// I9: removing a part of the middle, in several batches.
#[test]
fn collapsing_survives_power_cuts() {
    const AT: u64 = 10 * APART;
    const LEN: u64 = 9 * APART + 5 * GRAIN;
    survives_cuts(
        |fs, ino| fs.fallocate(ino, AT, LEN, FallocMode::CollapseRange),
        |(size, grains)| {
            let left = grains
                .into_iter()
                .filter(|(at, _)| !(AT..AT + LEN).contains(at));
            let moved = left.map(|(at, grain)| (if at < AT { at } else { at - LEN }, grain));
            (size - LEN, moved.collect())
        },
    );
}

/// I9: inserting a hole, in several batches, into a file that needs a larger range for it.
#[test]
fn inserting_survives_power_cuts() {
    const AT: u64 = 7 * APART;
    const LEN: u64 = 1000 * APART;
    survives_cuts(
        |fs, ino| fs.fallocate(ino, AT, LEN, FallocMode::InsertRange),
        |(size, grains)| {
            let moved = grains
                .into_iter()
                .map(|(at, grain)| (if at < AT { at } else { at + LEN }, grain));
            (size + LEN, moved.collect())
        },
    );
}

/// A file whose relocation was cut off by a failure is out of reach, and only that file; the next mount has it whole.
#[test]
fn a_failed_volume_leaves_the_rest_readable() {
    let store = scattered();
    let fs = Fs::mount_with(Arc::clone(&store), &tight()).unwrap();
    let ino = fs.lookup_path("/f").unwrap();
    let before = picture(&fs, ino);
    // The feature and the first batch.
    store.cut_power_after(2);
    assert!(resize(&fs, ino, 1 << 33).is_err());
    assert!(matches!(
        fs.read(ino, 0, &mut [0; 8]),
        Err(FsError::Store(_))
    ));
    assert!(fs.fsync(ino, SyncScope::All).is_err());
    assert!(fs.hold_extent(ino).is_err() && fs.unlink(ROOT, name("f")).is_err());
    let other = fs.lookup_path("/neighbour").unwrap();
    assert_eq!(fs.read(other, 0, &mut [0; 8]), Ok(0));
    let fs = Fs::mount(Arc::new(store.after_power_cut(|_| 0))).unwrap();
    assert!(picture(&fs, ino) == before);
}

/// Growth takes what is free behind a file first, also of a file that is held at its place; truncating gives address
/// space back, and what was given back can be taken by others.
#[test]
fn ranges_grow_and_shrink_in_place() {
    let (store, fs) = fresh_with(1000, &tight());
    let ino = fs.create(ROOT, name("f"), &NewNode::file()).unwrap().ino;
    let start = fs.hold_extent(ino).unwrap().range.start;
    fs.write(ino, 0, b"here", WriteOptions::default()).unwrap();
    resize(&fs, ino, 50 * GRAIN).unwrap();
    let grown = fs.file_extent(ino).unwrap().range;
    assert_eq!((grown.start, grown.count), (start, 64));
    let other = fs.create(ROOT, name("g"), &NewNode::file()).unwrap().ino;
    assert_eq!(resize(&fs, ino, 65 * GRAIN), Err(FsError::Busy));
    let behind = fs.file_extent(other).unwrap().range;
    assert!(behind.start >= grown.end());
    resize(&fs, ino, 10).unwrap();
    assert_eq!(fs.file_extent(ino).unwrap().range.start, start);
    fs.release_extent(ino);
    resize(&fs, ino, 20).unwrap();
    resize(&fs, ino, 10).unwrap();
    assert_eq!(fs.file_extent(ino).unwrap().range.count, 2);
    let third = fs.create(ROOT, name("h"), &NewNode::file()).unwrap().ino;
    let third = fs.file_extent(third).unwrap().range;
    assert_eq!(third.start, start.offset(2));
    let mut buf = [0; 4];
    fs.read(ino, 0, &mut buf).unwrap();
    assert_eq!(&buf, b"here");
    assert_clean(&store);
    assert!(
        Fs::mount_with(
            Arc::clone(&store),
            &FsOptions {
                file_order: 51,
                ..FsOptions::default()
            }
        )
        .is_err()
    );
}

/// What is reserved behind the end moves with the rest when something is inserted, into a larger range if need be.
#[test]
fn reservations_move_with_an_insert() {
    let (store, fs) = fresh_with(1000, &tight());
    let ino = fs.create(ROOT, name("f"), &NewNode::file()).unwrap().ino;
    resize(&fs, ino, 2 * GRAIN).unwrap();
    let reserve = FallocMode::Allocate { keep_size: true };
    fs.fallocate(ino, 0, 16 * GRAIN, reserve).unwrap();
    assert_eq!(fs.file_extent(ino).unwrap().range.count, 16);
    fs.fallocate(ino, 0, 4 * GRAIN, FallocMode::InsertRange)
        .unwrap();
    let attr = fs.attr(ino).unwrap();
    assert_eq!((attr.size, attr.grains), (6 * GRAIN, 16));
    assert_eq!(fs.file_extent(ino).unwrap().range.count, 32);
    assert_clean(&store);
}

const GIB: u64 = 1 << 30;
const CHUNK: usize = 1 << 20;

fn fill(chunk: &mut [u8], at: u64) {
    for (n, word) in chunk.chunks_exact_mut(8).enumerate() {
        let seed = (at + 8 * n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word.copy_from_slice(&seed.to_le_bytes());
    }
}

/// D10: growing a file of 1 GiB by relocation writes less than 1 MiB to the media, the next checkpoint of the map takes more
/// than it would have otherwise, and less than a hundredth of the data; and the data are what they were, also after the volume
/// is opened again without an orderly shutdown.
#[test]
fn growing_a_gibibyte_writes_no_data() {
    let mut device = MemDevice::new(3 * GIB as usize / 2).unwrap();
    ftl::Ftl::format(&mut device, &ftl::FormatOptions::default()).unwrap();
    let open = |device| {
        let options = OpenOptions {
            checkpoint_headers: 64,
            ..OpenOptions::default()
        };
        Volume::open(device, options).unwrap().0
    };
    let volume = Arc::new(open(device));
    Fs::format(&volume, &FormatOptions::default()).unwrap();
    let options = FsOptions {
        file_order: GIB.ilog2() as u8 - 12,
        ..FsOptions::default()
    };
    let fs = Fs::mount_with(Arc::clone(&volume), &options).unwrap();
    let ino = fs.create(ROOT, name("f"), &NewNode::file()).unwrap().ino;
    let neighbour = fs
        .create(ROOT, name("neighbour"), &NewNode::file())
        .unwrap()
        .ino;
    let mut chunk = vec![0; CHUNK];
    for at in (0..GIB).step_by(CHUNK) {
        fill(&mut chunk, at);
        fs.write(ino, at, &chunk, WriteOptions::default()).unwrap();
    }
    fs.sync_all().unwrap();
    let written = || {
        let stats = volume.ftl().stats();
        let grains = stats.user_grains
            + stats.relocated_grains
            + stats.header_grains
            + stats.checkpoint_grains;
        (grains * GRAIN, stats.remaps)
    };
    // What the next checkpoint writes, with nothing but a few grains changed besides.
    let checkpoint = || {
        let stats = volume.ftl().stats();
        while volume.ftl().stats().checkpoints == stats.checkpoints {
            fs.write(neighbour, 0, b"now", WriteOptions::default())
                .unwrap();
            fs.fsync(neighbour, SyncScope::Data).unwrap();
        }
        (volume.ftl().stats().checkpoint_grains - stats.checkpoint_grains) * GRAIN
    };
    // The data themselves are new to the first ones.
    checkpoint();
    checkpoint();
    let without = checkpoint();
    let (place, before) = (fs.file_extent(ino).unwrap().range, written());
    assert_eq!(place.count * GRAIN, GIB);
    fs.write(ino, GIB, b"end", WriteOptions::default()).unwrap();
    let after = written();
    let media_bytes = after.0 - before.0;
    println!(
        "growing 1 GiB by relocation: {media_bytes} bytes written to the media, {} remaps",
        after.1 - before.1
    );
    assert_ne!(fs.file_extent(ino).unwrap().range.start, place.start);
    assert!(media_bytes < 1 << 20, "{media_bytes} bytes");
    let (with, later) = (checkpoint(), checkpoint());
    println!(
        "the next checkpoint: {with} bytes; without that: {without}, the one after it: {later}"
    );
    assert!(with < GIB / 100, "{with} bytes");
    fs.sync_all().unwrap();
    drop(fs);
    let volume = open(Arc::into_inner(volume).unwrap().into_device());
    let fs = Fs::mount(&volume).unwrap();
    let mut found = vec![0; CHUNK];
    for at in (0..GIB).step_by(CHUNK) {
        fill(&mut chunk, at);
        assert_eq!(fs.read(ino, at, &mut found), Ok(CHUNK));
        assert!(found == chunk, "at {at}");
    }
    assert_eq!(fs.attr(ino).unwrap().grains, GIB / GRAIN + 1);
}

/// A store that refuses to move anything out of a range after some batches, as one does that has to keep for a snapshot what is
/// moved. What moves back it takes.
struct Full {
    store: Arc<MemStore>,
    range: LbaRange,
    batches: AtomicU64,
    refusal: StoreError,
}

impl BlockStore for Full {
    fn read(&self, at: ByteAddr, buf: &mut [u8]) -> Result<(), StoreError> {
        self.store.read(at, buf)
    }

    fn write(&self, at: ByteAddr, data: &[u8]) -> Result<(), StoreError> {
        self.store.write(at, data)
    }

    fn commit(&self, batch: AtomicBatch) -> Result<(), StoreError> {
        let goes = (batch.remaps.iter()).any(|remap| self.range.contains(remap.from));
        if goes {
            let left = self.batches.load(Relaxed).checked_sub(1);
            self.batches.store(left.ok_or(self.refusal)?, Relaxed);
        }
        self.store.commit(batch)
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

/// There is no space for the rest of a relocation, or damage keeps it from being moved: the file is where it was and as it was,
/// now and after a power cut, and so is one that a mount finds half way (I7, I9). Grains lie closely where one batch ends and the next would begin.
#[test]
fn a_file_that_can_not_arrive_goes_back() {
    let source = scattered();
    let fs = Fs::mount_with(Arc::clone(&source), &tight()).unwrap();
    let ino = fs.lookup_path("/f").unwrap();
    for n in 0..300 {
        let at = 23 * APART + (2600 + n) * GRAIN;
        let bytes = [n as u8; GRAIN as usize];
        fs.write(ino, at, &bytes, WriteOptions::default()).unwrap();
    }
    fs.sync_all().unwrap();
    let range = fs.file_extent(ino).unwrap().range;
    let before = picture(&fs, ino);
    drop(fs);
    let full = |store: MemStore, batches, refusal| {
        Arc::new(Full {
            store: Arc::new(store),
            range,
            batches: AtomicU64::new(batches),
            refusal,
        })
    };
    let is_back = |store: &Arc<Full>, fs: &Fs<Arc<Full>>| {
        assert_eq!(fs.file_extent(ino).unwrap().range, range);
        assert!(picture(fs, ino) == before);
        assert_clean(store);
        let cut = Fs::mount(Arc::new(store.store.after_power_cut(|_| 0))).unwrap();
        assert!(picture(&cut, ino) == before);
    };
    type Change = fn(&Fs<Arc<Full>>, InodeNo) -> Result<(), FsError>;
    let changes: [Change; 3] = [
        |fs, ino| resize(fs, ino, 5 * SCATTERED * APART),
        |fs, ino| fs.fallocate(ino, 10 * APART, 5 * APART, FallocMode::CollapseRange),
        |fs, ino| fs.fallocate(ino, 10 * APART, 7 * GRAIN, FallocMode::InsertRange),
    ];
    for change in changes {
        let whole = full(source.duplicate(), u64::MAX, StoreError::Failed);
        let fs = Fs::mount_with(Arc::clone(&whole), &tight()).unwrap();
        change(&fs, ino).unwrap();
        let after = picture(&fs, ino);
        let damaged = StoreError::Damaged { lba: range.start };
        let refusals = [StoreError::NoSpace, damaged];
        for (batches, refusal) in (1..3).flat_map(|n| refusals.map(|refusal| (n, refusal))) {
            let store = full(source.duplicate(), batches, refusal);
            let fs = Fs::mount_with(Arc::clone(&store), &tight()).unwrap();
            assert_eq!(change(&fs, ino), Err(refusal.into()));
            is_back(&store, &fs);
            // There is space again, or no damage.
            store.batches.store(u64::MAX, Relaxed);
            change(&fs, ino).unwrap();
            assert!(picture(&fs, ino) == after);
            assert_clean(&store);

            let store = full(source.duplicate(), batches, StoreError::Failed);
            let fs = Fs::mount_with(Arc::clone(&store), &tight()).unwrap();
            assert!(change(&fs, ino).is_err());
            let cut = || store.store.after_power_cut(|_| 0);
            let refusing = full(cut(), 0, refusal);
            let fs = Fs::mount_with(Arc::clone(&refusing), &tight()).unwrap();
            is_back(&refusing, &fs);
            fs.unlink(ROOT, name("f")).unwrap();
            assert_clean(&refusing);
            let fs = Fs::mount_with(Arc::new(cut()), &tight()).unwrap();
            // Arrived; a size that was to follow has not.
            assert_ne!(fs.file_extent(ino).unwrap().range, range);
            assert!([&before, &after].contains(&&picture(&fs, ino)));
        }
    }
}

/// A store whose syncs that nobody waits for are over when they are said to be.
struct Slow {
    store: Arc<MemStore>,
    under_way: Mutex<Vec<(LbaRange, SyncDone)>>,
}

impl Slow {
    /// They are over: what had been written by then is durable.
    fn end(&self) {
        for (range, done) in std::mem::take(&mut *self.under_way.lock().unwrap()) {
            done(self.store.sync(range));
        }
    }
}

impl BlockStore for Slow {
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
        self.store.sync(range)
    }

    fn sync_then(&self, range: LbaRange, done: SyncDone) {
        self.under_way.lock().unwrap().push((range, done));
    }

    fn next_mapped(&self, range: LbaRange) -> Option<Lba> {
        self.store.next_mapped(range)
    }

    fn space(&self) -> Space {
        self.store.space()
    }
}

/// I1: a sync that nobody waits for is answered when the data are durable where the file is by then, though it went to another
/// range while the sync was under way; and not before it is over. What cannot be said without waiting is said at once.
#[test]
fn a_sync_that_nobody_waits_for_follows_the_file() {
    let store = Arc::new(Slow {
        store: scattered(),
        under_way: Mutex::default(),
    });
    let fs = Arc::new(Fs::mount_with(Arc::clone(&store), &tight()).unwrap());
    let ino = fs.lookup_path("/f").unwrap();
    let (answer, answers) = channel();
    let sync = |what: &'static str| {
        let answer = answer.clone();
        let done = move |result| answer.send((what, result)).unwrap();
        fs.fsync_then(ino, SyncScope::Data, done);
    };
    let write = |bytes: &[u8]| fs.write(ino, 0, bytes, WriteOptions::default()).unwrap();
    let survives = |bytes: &[u8]| {
        let cut = Fs::mount(Arc::new(store.store.after_power_cut(|_| 0))).unwrap();
        let mut found = vec![0; bytes.len()];
        cut.read(ino, 0, &mut found).unwrap();
        assert_eq!(found, bytes);
    };
    write(b"at its place");
    sync("settled");
    assert!(answers.try_recv().is_err(), "not over yet");
    store.end();
    assert_eq!(answers.try_recv(), Ok(("settled", Ok(()))));
    survives(b"at its place");

    let before = fs.file_extent(ino).unwrap().range;
    sync("relocated");
    resize(&fs, ino, 1 << 33).unwrap();
    assert_ne!(fs.file_extent(ino).unwrap().range, before);
    write(b"at another one");
    store.end();
    assert_eq!(answers.recv(), Ok(("relocated", Ok(()))));
    survives(b"at another one");

    // The record has to be written, too.
    fs.write(ino, 1 << 33, b"longer", WriteOptions::default())
        .unwrap();
    sync("longer");
    assert_eq!(answers.try_recv(), Ok(("longer", Ok(()))));
    let cut = Fs::mount(Arc::new(store.store.after_power_cut(|_| 0))).unwrap();
    assert_eq!(cut.attr(ino).unwrap().size, (1 << 33) + 6);
    let missing = InodeNo(4711);
    fs.fsync_then(missing, SyncScope::Data, move |result| {
        answer.send(("missing", result)).unwrap();
    });
    assert_eq!(answers.try_recv(), Ok(("missing", Err(FsError::NotFound))));
}
