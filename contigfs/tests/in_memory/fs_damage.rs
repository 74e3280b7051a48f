//! I7, M5: damage that a mount must not make worse. What a repair would have saved is still there after a mount, and
//! what is on the media ends no thread and no program that looks at it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use contigfs::{
    BlockStore, ByteAddr, Care, CopyRange, Fs, FsError, InodeNo, MemStore, NewNode, Problem,
    RenameMode, StoreError, SyncScope, WriteOptions, XattrMode, check, repair,
};
use ftl::{AtomicBatch, Ftl, Lba, LbaRange, MemDevice, OpenOptions, Space, Volume};
use support::records::{TABLES, craft_record, zero_record};
use support::{content, fresh, name, names};

const ROOT: InodeNo = InodeNo::ROOT;
const EIO: i32 = 5;

/// A store that counts calls.
struct Counting {
    store: Arc<MemStore>,
    reads: AtomicU64,
    /// Of them, those of cold records.
    cold_reads: AtomicU64,
    lookups: AtomicU64,
}

impl Counting {
    fn new(store: &Arc<MemStore>) -> Self {
        Self {
            store: Arc::clone(store),
            reads: AtomicU64::new(0),
            cold_reads: AtomicU64::new(0),
            lookups: AtomicU64::new(0),
        }
    }

    /// Calls that only look, so far.
    fn looks(&self) -> u64 {
        self.reads.load(Relaxed) + self.lookups.load(Relaxed)
    }
}

impl BlockStore for Counting {
    fn read(&self, at: ByteAddr, buf: &mut [u8]) -> Result<(), StoreError> {
        self.reads.fetch_add(1, Relaxed);
        let cold = LbaRange::new(TABLES[1], 1 << 27);
        self.cold_reads
            .fetch_add(u64::from(cold.contains(at.lba())), Relaxed);
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

    fn next_mapped(&self, range: LbaRange) -> Option<Lba> {
        self.lookups.fetch_add(1, Relaxed);
        self.store.next_mapped(range)
    }

    fn space(&self) -> Space {
        self.store.space()
    }
}

/// A store that has lost a write, of which its next sync tells without doing anything else.
struct Losing {
    store: Arc<MemStore>,
    untold: AtomicBool,
}

impl BlockStore for Losing {
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
        match self.untold.swap(false, Relaxed) {
            true => Err(StoreError::Damaged { lba: Lba(1 << 40) }),
            false => self.store.sync(range),
        }
    }

    fn next_mapped(&self, range: LbaRange) -> Option<Lba> {
        self.store.next_mapped(range)
    }

    fn space(&self) -> Space {
        self.store.space()
    }
}

/// A write that the media have lost is told of by the next sync of everything, which makes all others durable, with their sizes.
#[test]
fn a_lost_write_takes_no_other_with_it() {
    let (store, _) = fresh(10_000);
    let losing = Losing {
        store: Arc::clone(&store),
        untold: AtomicBool::new(false),
    };
    let fs = Fs::mount(&losing).unwrap();
    let ino = fs.create(ROOT, name("f"), &NewNode::file()).unwrap().ino;
    fs.write(ino, 0, b"kept", WriteOptions::default()).unwrap();
    losing.untold.store(true, Relaxed);
    let lost = StoreError::Damaged { lba: Lba(1 << 40) };
    assert_eq!(fs.sync_all(), Err(lost.into()));
    let cut = Fs::mount(store.after_power_cut(|_| 0)).unwrap();
    let mut found = [0; 4];
    assert_eq!(cut.read(ino, 0, &mut found), Ok(4));
    assert_eq!(&found, b"kept");
    assert_eq!(fs.sync_all(), Ok(()));
}

/// I1: what a rename syncs by the way takes the news of a lost write from nobody. Whoever renames is told instead, and
/// the old version of the file stays.
#[test]
fn a_rename_does_not_swallow_a_lost_write() {
    let (store, _) = fresh(10_000);
    let losing = Losing {
        store: Arc::clone(&store),
        untold: AtomicBool::new(false),
    };
    let fs = Fs::mount(&losing).unwrap();
    let make = |label: &str, bytes: &[u8]| {
        let ino = fs.create(ROOT, name(label), &NewNode::file()).unwrap().ino;
        fs.write(ino, 0, bytes, WriteOptions::default()).unwrap();
        ino
    };
    let old = make("f", b"old");
    fs.fsync(old, SyncScope::All).unwrap();
    // More than goes along with the record.
    let new = make("f.new", &[7; 64 * 4096]);
    losing.untold.store(true, Relaxed);
    let renamed = fs.rename(ROOT, name("f.new"), ROOT, name("f"), RenameMode::Replace);
    let lost = StoreError::Damaged { lba: Lba(1 << 40) };
    assert_eq!(renamed, Err(lost.into()));
    assert_eq!(fs.lookup(ROOT, name("f")).unwrap().ino, old);
    assert_eq!(fs.lookup(ROOT, name("f.new")).unwrap().ino, new);
    let renamed = fs.rename(ROOT, name("f.new"), ROOT, name("f"), RenameMode::Replace);
    assert_eq!(renamed, Ok(()));
}

/// I1: a copy by clone is durable when it is answered. If what it clones was lost before it was durable, whoever copies is told.
#[test]
fn a_copy_does_not_hide_a_lost_write() {
    let (store, _) = fresh(10_000);
    let losing = Losing {
        store: Arc::clone(&store),
        untold: AtomicBool::new(false),
    };
    let fs = Fs::mount(&losing).unwrap();
    let make = |label: &str| fs.create(ROOT, name(label), &NewNode::file()).unwrap().ino;
    let (from, to) = (make("from"), make("to"));
    let len = 8 * 4096;
    fs.write(from, 0, &[7; 8 * 4096], WriteOptions::default())
        .unwrap();
    losing.untold.store(true, Relaxed);
    let copy = CopyRange {
        from,
        from_offset: 0,
        to,
        to_offset: 0,
        len,
    };
    let lost = StoreError::Damaged { lba: Lba(1 << 40) };
    assert_eq!(fs.copy_range(&copy), Err(lost.into()));
    assert_eq!(fs.copy_range(&copy), Ok(len));
}

/// Files `f0`, `f1`, ... in the root directory, each with its name as its content if it has `content`. Their numbers are 2,
/// 3, ...
fn with_files(count: u64, content: bool) -> Arc<MemStore> {
    let (store, fs) = fresh(10_000);
    for n in 0..count {
        let label = format!("f{n}");
        let new = fs.create(ROOT, name(&label), &NewNode::file()).unwrap();
        assert_eq!(new.ino.0, n + 2);
        if content {
            fs.write(new.ino, 0, label.as_bytes(), WriteOptions::default())
                .unwrap();
        }
    }
    fs.sync_all().unwrap();
    store
}

fn mount(store: &Arc<MemStore>) -> Fs<Arc<MemStore>> {
    Fs::mount(Arc::clone(store)).unwrap()
}

/// Whatever is made now has no number that was given before, and nothing that is mapped in its range.
fn make_some(fs: &Fs<Arc<MemStore>>, numbers: std::ops::Range<u64>) {
    let mapped = fs.store().mapped();
    for n in 0..3 {
        let label = format!("new{n}");
        let ino = fs.create(ROOT, name(&label), &NewNode::file()).unwrap().ino;
        assert!(!numbers.contains(&ino.0), "{ino} is in use");
        let range = fs.file_extent(ino).unwrap().range;
        assert!(!mapped.iter().any(|&lba| range.contains(lba)), "{range:?}");
        fs.write(ino, 0, b"new", WriteOptions::default()).unwrap();
    }
    fs.sync_all().unwrap();
}

/// Every file is there, with its content.
fn assert_whole(store: &Arc<MemStore>, count: u64) {
    let fs = mount(store);
    assert!(!fs.is_damaged());
    for n in 0..count {
        let label = format!("f{n}");
        let ino = fs.lookup(ROOT, name(&label)).unwrap().ino;
        assert_eq!(content(&fs, ino).unwrap(), label.as_bytes());
    }
}

/// A record of the inode table that says less than there is costs nothing: the records behind it count, a mount frees
/// nothing of theirs and gives nobody their numbers, and they can be used and removed.
#[test]
fn a_table_that_says_less_than_there_is_hides_nothing() {
    let store = with_files(200, true);
    craft_record(&store, InodeNo::TABLE, |record| {
        record[8..16].copy_from_slice(&4096u64.to_le_bytes());
    });
    let is_behind = |problem: &Problem| matches!(problem, Problem::BehindTable { .. });
    assert!(check(&store).problems.iter().any(is_behind));
    let mapped = store.mapped();
    let fs = mount(&store);
    assert!(fs.is_damaged());
    assert_eq!(store.mapped(), mapped);
    let ino = fs.lookup(ROOT, name("f180")).unwrap().ino;
    assert_eq!(content(&fs, ino).unwrap(), b"f180");
    make_some(&fs, 0..202);
    fs.unlink(ROOT, name("f199")).unwrap();
    drop(fs);
    let report = repair(&store, Care::Safe).unwrap();
    assert!(report.after.is_clean(), "{:?}", report.after.problems);
    assert_whole(&store, 199);
}

/// The same without a record that can be read, and with grains of cold records alone behind the last hot one.
#[test]
fn a_lost_table_record_hides_nothing() {
    let store = with_files(200, true);
    store.poke(ByteAddr::new(TABLES[0], 3), |byte| byte ^ 1);
    let hot = LbaRange::new(TABLES[0].offset(1), 1);
    store.commit(trim(hot)).unwrap();
    let mapped = store.mapped();
    let fs = mount(&store);
    assert!(fs.is_damaged());
    assert_eq!(store.mapped(), mapped);
    assert_eq!(errno_of(&fs, "f180"), EIO);
    assert!(fs.lookup(ROOT, name("f100")).is_ok());
    make_some(&fs, 0..202);
}

fn trim(range: LbaRange) -> AtomicBatch {
    AtomicBatch {
        trims: vec![range],
        ..AtomicBatch::default()
    }
}

fn errno_of(fs: &Fs<Arc<MemStore>>, label: &str) -> i32 {
    fs.lookup(ROOT, name(label)).unwrap_err().errno()
}

/// A hot record that says "free" while the cold one is there costs its inode, and no more: a mount keeps its data and its
/// number, and a repair after the mount finds what it would have found before.
#[test]
fn a_missing_record_frees_nothing() {
    let store = with_files(100, true);
    let victim = InodeNo(52);
    zero_record(&store, victim);
    let is_of_victim =
        |problem: &Problem| matches!(problem, Problem::Record { ino, .. } if *ino == victim);
    assert!(check(&store).problems.iter().any(is_of_victim));
    let mapped = store.mapped();
    let fs = mount(&store);
    assert!(fs.is_damaged());
    assert_eq!(store.mapped(), mapped);
    assert_eq!(errno_of(&fs, "f50"), EIO);
    assert_eq!(fs.unlink(ROOT, name("f50")).unwrap_err().errno(), EIO);
    assert!(fs.lookup(ROOT, name("f51")).is_ok());
    make_some(&fs, 0..102);
    drop(fs);
    let report = repair(&store, Care::Full).unwrap();
    assert!(report.after.is_clean(), "{:?}", report.after.problems);
    let fs = mount(&store);
    let ino = fs.lookup(ROOT, name("f50")).unwrap().ino;
    let found = content(&fs, ino).unwrap();
    assert!(found.starts_with(b"f50"), "{found:?}");
}

/// A grain of hot records that is gone, with inodes that have no data: nothing is mapped that nobody owns, and still
/// nobody gets their numbers.
#[test]
fn a_missing_grain_of_records_frees_no_number() {
    let store = with_files(200, false);
    let second = LbaRange::new(TABLES[0].offset(1), 1);
    store.commit(trim(second)).unwrap();
    let cold_before = cold_records(&store);
    let fs = mount(&store);
    assert!(fs.is_damaged());
    assert_eq!(errno_of(&fs, "f180"), EIO);
    make_some(&fs, 0..202);
    drop(fs);
    let cold = cold_records(&store);
    assert_eq!(cold[2 * 128..202 * 128], cold_before[2 * 128..202 * 128]);
}

/// The cold records of the first 256 inodes.
fn cold_records(store: &MemStore) -> Vec<u8> {
    let mut bytes = vec![0; 256 * 128];
    store.read(ByteAddr::new(TABLES[1], 0), &mut bytes).unwrap();
    bytes
}

/// A volume that is whole is not taken for a damaged one: not with gaps where inodes were freed, not with a grain of zeros
/// where a crash has come between the end of an inode and that of its grain, and not with grains that nobody owns, which
/// go. And mounting it does not read the cold records, but for what says nothing else about itself.
#[test]
fn a_healthy_volume_is_not_damaged() {
    let store = with_files(500, true);
    let fs = mount(&store);
    for n in (0..500).filter(|n| n % 3 == 0 || (100..400).contains(n)) {
        fs.unlink(ROOT, name(&format!("f{n}"))).unwrap();
    }
    fs.sync_all().unwrap();
    drop(fs);
    // The second and the third grain of hot records are gone, and with them all cold grains of theirs.
    let zeros = [0; 4096];
    for lba in [TABLES[0].offset(2), TABLES[1].offset(8)] {
        assert_eq!(store.next_mapped(LbaRange::new(lba, 1)), None);
        store.write(ByteAddr::new(lba, 0), &zeros).unwrap();
    }
    let counting = Counting::new(&store);
    let fs = Fs::mount(&counting).unwrap();
    assert!(!fs.is_damaged());
    assert_eq!(counting.cold_reads.load(Relaxed), 1);
    drop(fs);
    let nobodys = LbaRange::new(Lba(1 << 45), 1);
    store
        .write(ByteAddr::new(nobodys.start, 0), b"nobody's")
        .unwrap();
    let fs = mount(&store);
    assert!(!fs.is_damaged());
    assert_eq!(store.next_mapped(nobodys), None);
    assert_eq!(fs.lookup_path("/f1").unwrap(), InodeNo(3));
}

/// Without a record for it, a number is nobody's, whatever was written behind the back of the mount.
#[test]
fn a_number_that_is_free_leads_nowhere() {
    let store = with_files(3, true);
    let fs = mount(&store);
    fs.unlink(ROOT, name("f2")).unwrap();
    assert_eq!(fs.attr(InodeNo(4)), Err(FsError::NotFound));
    drop(fs);
    let (other, free) = (with_files(3, true), InodeNo(4));
    let fs = mount(&store);
    for (lba, record) in [(TABLES[0], 32), (TABLES[1], 128)] {
        let at = ByteAddr::new(lba, free.0 * record);
        let mut bytes = vec![0; record as usize];
        other.read(at, &mut bytes).unwrap();
        store.write(at, &bytes).unwrap();
    }
    assert_eq!(fs.attr(free), Err(FsError::NotFound));
}

/// A directory whose record says that it is as large as a range can be is listed as fast as any: it is refused, and one that
/// is as large as a directory may be costs what is mapped of it.
#[test]
fn a_huge_directory_is_listed_in_no_time() {
    let (store, fs) = fresh(1000);
    let make = |dir, label, node: &NewNode| fs.create(dir, name(label), node).unwrap().ino;
    let dir = make(ROOT, "d", &NewNode::directory());
    make(dir, "x", &NewNode::file());
    fs.sync_all().unwrap();
    drop(fs);
    let list = |bytes: u64, order: u8| {
        craft_record(&store, dir, |record| {
            if order > 20 {
                record[..8].copy_from_slice(&(1u64 << order).to_le_bytes());
            }
            record[8..16].copy_from_slice(&bytes.to_le_bytes());
            record[26] = order;
        });
        let counting = Counting::new(&store);
        let fs = Fs::mount(&counting).unwrap();
        // Loads it, so that only the listing is counted.
        let size = fs.attr(dir).unwrap().size;
        assert_eq!(size, bytes);
        let before = counting.looks();
        let mut labels = Vec::new();
        let listed = fs.readdir(dir, 0, |entry| {
            labels.push(entry.name);
            true
        });
        let looks = counting.looks() - before;
        assert!(looks <= 8, "{looks} calls of the store");
        assert_eq!(listed.is_err(), fs.lookup(dir, name("x")).is_err());
        listed.map(|()| labels.len())
    };
    // All units that a directory may have, at the place where it is.
    assert_eq!(list(1 << 32, 20), Ok(3));
    for shift in [33, 36, 62] {
        let refused = list(1 << shift, 50).unwrap_err();
        assert_eq!(refused.errno(), EIO, "2^{shift} bytes");
    }
    assert_eq!(list((1 << 32) + 4096, 50).unwrap_err().errno(), EIO);
}

/// I9: of two files that claim one place, one has a record of the past, and a mount does not know which. It gives neither
/// out and frees neither, whichever has the lower number, and though one waits to be freed; a repair finds both.
#[test]
fn a_place_that_two_claim_is_neithers() {
    const ORPHAN: u8 = 1;
    for (from_the_past, flags) in [("f1", 0), ("f1", ORPHAN), ("f3", 0), ("f3", ORPHAN)] {
        let store = with_files(4, true);
        let fs = mount(&store);
        let [past, owner] = [from_the_past, "f2"].map(|n| fs.lookup(ROOT, name(n)).unwrap().ino);
        fs.write(owner, 0, b"f2", WriteOptions::default()).unwrap();
        fs.sync_all().unwrap();
        let place = fs.file_extent(owner).unwrap().range.start;
        drop(fs);
        craft_record(&store, past, |record| {
            record[..8].copy_from_slice(&place.0.to_le_bytes());
            record[27] |= flags;
        });
        let fs = mount(&store);
        assert!(fs.is_damaged());
        for ino in [past, owner] {
            let written = fs.write(ino, 0, b"rubbish", WriteOptions::default());
            assert_eq!(written.unwrap_err().errno(), EIO);
        }
        assert_eq!(
            fs.unlink(ROOT, name(from_the_past)).unwrap_err().errno(),
            EIO
        );
        make_some(&fs, 0..0);
        drop(fs);
        let repaired = repair(&store, Care::Full).unwrap();
        assert!(repaired.after.is_clean());
        let fs = mount(&store);
        assert_eq!(content(&fs, owner).unwrap(), b"f2");
        assert_eq!(content(&fs, past).unwrap(), b"f2");
        fs.write(past, 0, b"past", WriteOptions::default()).unwrap();
        assert_eq!(content(&fs, owner).unwrap(), b"f2");
    }
}

/// Root records of the past, one or both, do not say that there are attributes. They are there all the same: a mount keeps
/// them, and a repair says so again.
#[test]
fn a_root_record_of_the_past_takes_no_attributes() {
    for copies in [&[Lba(0)][..], &[Lba(1)], &[Lba(0), Lba(1)]] {
        let store = with_files(4, true);
        let before = store.duplicate();
        let fs = mount(&store);
        let ino = fs.lookup(ROOT, name("f1")).unwrap().ino;
        let value = [7; 5000];
        fs.set_xattr(ino, name("user.a"), &value, XattrMode::Set)
            .unwrap();
        drop(fs);
        for &lba in copies {
            let mut root = [0; 64];
            before.read(ByteAddr::new(lba, 0), &mut root).unwrap();
            store.write(ByteAddr::new(lba, 0), &root).unwrap();
        }
        let fs = mount(&store);
        assert_eq!(fs.xattr(ino, name("user.a")).unwrap(), value);
        drop(fs);
        assert_eq!(check(&store).problems, [Problem::Unannounced]);
        let repaired = repair(&store, Care::Safe).unwrap();
        assert!(repaired.after.is_clean());
        let fs = mount(&store);
        assert!(!fs.is_damaged());
        assert_eq!(fs.xattr(ino, name("user.a")).unwrap(), value);
    }
}

/// I9: a hot record of the past names the place that a file had, or only the front half of what it has; what lies at the
/// true place looks like nobody's. A mount trims nothing then, and a repair finds it.
#[test]
fn what_a_record_of_the_past_does_not_name_is_kept() {
    const FREE_PLACE: u64 = 1 << 45;
    for grown_in_place in [false, true] {
        let store = with_files(4, true);
        let fs = mount(&store);
        let ino = fs.lookup(ROOT, name("f3")).unwrap().ino;
        fs.write(ino, 4096, b"second", WriteOptions::default())
            .unwrap();
        fs.sync_all().unwrap();
        drop(fs);
        craft_record(&store, ino, |record| match grown_in_place {
            true => {
                record[8..16].copy_from_slice(&4096u64.to_le_bytes());
                record[26] = 0;
            }
            false => record[..8].copy_from_slice(&FREE_PLACE.to_le_bytes()),
        });
        let mapped = store.mapped();
        let found = check(&store).problems;
        assert!(
            matches!(found[..], [Problem::Strays { .. }]),
            "{found:?}, in place: {grown_in_place}"
        );
        let fs = mount(&store);
        assert!(fs.is_damaged());
        assert_eq!(store.mapped(), mapped);
        make_some(&fs, 0..6);
        drop(fs);
        let careful = repair(&store, Care::Safe).unwrap();
        assert_eq!(careful.after.problems.len(), 1);
        let repaired = repair(&store, Care::Full).unwrap();
        assert!(repaired.after.is_clean(), "{:?}", repaired.after.problems);
        let fs = mount(&store);
        assert!(!fs.is_damaged());
        let dir = fs.lookup(ROOT, name("lost+found")).unwrap().ino;
        let all = names(&fs, dir).unwrap();
        let [(_, found)] = all[..] else {
            panic!("{all:?}");
        };
        let found = content(&fs, found).unwrap();
        let has = |bytes: &[u8]| found.windows(bytes.len()).any(|part| part == bytes);
        assert!(has(b"second") && (grown_in_place || has(b"f3")));
    }
}

/// The same of a directory: its entries say whose they are, so it gets its place back.
#[test]
fn a_directory_is_found_that_a_record_of_the_past_does_not_name() {
    let (store, fs) = fresh(1000);
    let dir = fs.create(ROOT, name("d"), &NewNode::directory()).unwrap();
    let ino = fs.create(dir.ino, name("x"), &NewNode::file()).unwrap().ino;
    fs.sync_all().unwrap();
    drop(fs);
    craft_record(&store, dir.ino, |record| {
        record[..8].copy_from_slice(&(1u64 << 45).to_le_bytes());
    });
    let mapped = store.mapped();
    drop(mount(&store));
    assert_eq!(store.mapped(), mapped);
    let repaired = repair(&store, Care::Full).unwrap();
    assert!(repaired.after.is_clean(), "{:?}", repaired.after.problems);
    let fs = mount(&store);
    assert_eq!(fs.lookup_path("/d/x").unwrap(), ino);
    assert!(fs.lookup_path("/lost+found").is_err());
}

/// Of two that claim one place, the one with the record of the past has its data elsewhere. A repair finds them before it
/// gives that one another place.
#[test]
fn what_who_claims_another_ones_place_has_left_is_kept() {
    let store = with_files(4, true);
    let fs = mount(&store);
    let [past, owner] = ["f1", "f2"].map(|n| fs.lookup(ROOT, name(n)).unwrap().ino);
    let place = fs.file_extent(owner).unwrap().range.start;
    drop(fs);
    craft_record(&store, past, |record| {
        record[..8].copy_from_slice(&place.0.to_le_bytes());
    });
    let repaired = repair(&store, Care::Full).unwrap();
    assert!(repaired.after.is_clean(), "{:?}", repaired.after.problems);
    let fs = mount(&store);
    let dir = fs.lookup(ROOT, name("lost+found")).unwrap().ino;
    let all = names(&fs, dir).unwrap();
    let found = all.iter().map(|&(_, ino)| content(&fs, ino).unwrap());
    let found: Vec<_> = found.collect();
    assert!(matches!(&found[..], [one] if one.starts_with(b"f1")));
}

/// I9: on a volume whose log has lost headers, anything may be of the past. What belongs to nobody is kept then, until a repair
/// has made a file of it; on one of which nothing is known it goes.
#[test]
fn a_suspect_volume_keeps_what_is_nobodys() {
    let mut device = MemDevice::new(16 << 20).unwrap();
    Ftl::format(&mut device, &ftl::FormatOptions::default()).unwrap();
    let (volume, _) = Volume::open(device, OpenOptions::default()).unwrap();
    let volume = Arc::new(volume);
    Fs::format(&*volume, &contigfs::FormatOptions::default()).unwrap();
    let nobodys = LbaRange::new(Lba(1 << 45), 1);
    let at = ByteAddr::new(nobodys.start, 0);
    BlockStore::write(&*volume, at, b"nobody's").unwrap();
    volume.ftl().set_suspect(true);
    let fs = Fs::mount(Arc::clone(&volume)).unwrap();
    assert!(fs.is_damaged());
    assert!(volume.next_mapped(nobodys).is_some());
    drop(fs);
    let repaired = repair(&*volume, Care::Full).unwrap();
    assert!(matches!(
        repaired.repaired[..],
        [Problem::Strays { .. }, Problem::Unreachable { .. }]
    ));
    assert!(repaired.after.is_clean());
    let another = LbaRange::new(Lba(1 << 46), 1);
    let at = ByteAddr::new(another.start, 0);
    BlockStore::write(&*volume, at, b"nobody's").unwrap();
    volume.ftl().set_suspect(false);
    let fs = Fs::mount(Arc::clone(&volume)).unwrap();
    assert!(volume.next_mapped(nobodys).is_some());
    assert!(volume.next_mapped(another).is_none());
    let dir = fs.lookup(ROOT, name("lost+found")).unwrap().ino;
    assert_eq!(names(&fs, dir).unwrap().len(), 1);
}
