//! What the tests of repairs share: a volume, its damage, its repair.
#![allow(unreachable_pub)]

use std::collections::BTreeMap;
use std::sync::Arc;

use contigfs::{
    BlockStore, ByteAddr, Care, FileKind, Fs, InodeNo, MemStore, NewNode, Problem, RepairReport,
    WriteOptions, check, repair,
};
use ftl::{AtomicBatch, Lba, LbaRange};
use support::{fresh, name, names};

pub const ROOT: InodeNo = InodeNo::ROOT;
pub const ROOT_DIR: Lba = Lba(1 << 32);
/// First grain of the inode table's hot and of its cold records.
pub const HOT: Lba = Lba(1 << 26);
pub const COLD: Lba = Lba(1 << 28);
/// Where extended attributes lie: from here to the end.
pub const XATTRS: Lba = Lba((1 << 52) - (1 << 39));
pub const GRAIN: usize = 4096;

pub type MemFs = Fs<Arc<MemStore>>;

/// `/d` with the files `a` and `b`, `/e`, and `/keep`, whose content is its name.
pub fn prepare() -> (Arc<MemStore>, MemFs) {
    let (store, fs) = fresh(2000);
    let dir = fs
        .create(ROOT, name("d"), &NewNode::directory())
        .unwrap()
        .ino;
    file(&fs, dir, "a");
    file(&fs, dir, "b");
    fs.create(ROOT, name("e"), &NewNode::directory()).unwrap();
    file(&fs, ROOT, "keep");
    fs.sync_all().unwrap();
    (store, fs)
}

pub fn file(fs: &MemFs, dir: InodeNo, label: &str) -> InodeNo {
    let ino = fs.create(dir, name(label), &NewNode::file()).unwrap().ino;
    fs.write(ino, 0, label.as_bytes(), WriteOptions::default())
        .unwrap();
    fs.sync_all().unwrap();
    ino
}

pub fn mount(store: &Arc<MemStore>) -> MemFs {
    Fs::mount(Arc::clone(store)).unwrap()
}

pub fn content(fs: &MemFs, path: &str) -> String {
    String::from_utf8(bytes(fs, path)).unwrap()
}

pub fn text(fs: &MemFs, path: &str) -> String {
    String::from_utf8_lossy(&bytes(fs, path)).into_owned()
}

pub fn bytes(fs: &MemFs, path: &str) -> Vec<u8> {
    let ino = fs
        .lookup_path(path)
        .unwrap_or_else(|e| panic!("{path}: {e}"));
    let mut bytes = [0; 100];
    let len = fs.read(ino, 0, &mut bytes).unwrap();
    bytes[..len].to_vec()
}

/// Makes a grain what it is in another store.
pub fn put_back(store: &MemStore, from: &MemStore, lba: Lba) {
    if from.next_mapped(LbaRange::new(lba, 1)).is_some() {
        let mut grain = [0; GRAIN];
        from.read(ByteAddr::new(lba, 0), &mut grain).unwrap();
        store.write(ByteAddr::new(lba, 0), &grain).unwrap();
        store.sync(LbaRange::new(lba, 1)).unwrap();
    } else {
        let mut batch = AtomicBatch::new();
        batch.trim(LbaRange::new(lba, 1));
        store.commit(batch).unwrap();
    }
}

pub fn image(store: &MemStore) -> BTreeMap<Lba, Vec<u8>> {
    let mapped = store.mapped().into_iter();
    mapped
        .map(|lba| {
            let mut grain = vec![0; GRAIN];
            store.read(ByteAddr::new(lba, 0), &mut grain).unwrap();
            (lba, grain)
        })
        .collect()
}

/// Repairs, and again, which must change nothing.
pub fn twice(store: &Arc<MemStore>, care: Care) -> RepairReport {
    let report = repair(store, care).unwrap();
    let before = image(store);
    let again = repair(store, care).unwrap();
    assert_eq!(again.repaired, [], "repaired twice");
    assert_eq!(again.after, report.after);
    assert!(before == image(store), "the second repair has written");
    assert_eq!(check(store), report.after);
    report
}

/// Repairs, and expects that all is well then.
pub fn cured(store: &Arc<MemStore>, care: Care) -> Vec<Problem> {
    let report = twice(store, care);
    assert!(report.after.is_clean(), "{:?}", report.after.problems);
    assert!(!report.repaired.is_empty());
    let fs = mount(store);
    assert_eq!(content(&fs, "/keep"), "keep");
    report.repaired
}

/// A bit of the hot record, which says where a file lies, is gone.
pub fn lose_place(store: &Arc<MemStore>, ino: InodeNo) {
    store.poke(ByteAddr::new(HOT, ino.0 * 32 + 3), |byte| byte ^ 1);
}

/// Paths and what is there, as far as it is text: a file that was given a clone of another's place may hold anything.
pub fn tree(fs: &MemFs) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut dirs = vec![(String::new(), ROOT)];
    while let Some((path, dir)) = dirs.pop() {
        for (label, ino) in names(fs, dir).unwrap() {
            let path = format!("{path}/{label}");
            match fs.attr(ino).unwrap().kind {
                FileKind::Directory => dirs.push((path.clone(), ino)),
                _ => drop(all.insert(path.clone(), text(fs, &path))),
            }
            all.entry(path).or_default();
        }
    }
    all
}
