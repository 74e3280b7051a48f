//! Repairs: a volume is damaged through its store, put in order, and judged by the checker. Nothing else is lost, and
//! repairing again changes nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use contigfs::{
    BlockStore, ByteAddr, Care, FallocMode, FileKind, FormatOptions, Fs, InodeNo, MemStore,
    NewNode, Problem, RenameMode, RepairReport, SetAttr, WriteOptions, XattrMode, check, repair,
};
use ftl::{AtomicBatch, Lba, LbaRange};
use support::records::craft_record;
use support::{Dice, acl, fresh, name, names};

const ROOT: InodeNo = InodeNo::ROOT;
const ROOT_DIR: Lba = Lba(1 << 32);
/// First grain of the inode table's hot and of its cold records.
const HOT: Lba = Lba(1 << 26);
const COLD: Lba = Lba(1 << 28);
/// Where extended attributes lie: from here to the end.
const XATTRS: Lba = Lba((1 << 52) - (1 << 39));
const GRAIN: usize = 4096;

type MemFs = Fs<Arc<MemStore>>;

/// `/d` with the files `a` and `b`, `/e`, and `/keep`, whose content is its name.
fn prepare() -> (Arc<MemStore>, MemFs) {
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

fn file(fs: &MemFs, dir: InodeNo, label: &str) -> InodeNo {
    let ino = fs.create(dir, name(label), &NewNode::file()).unwrap().ino;
    fs.write(ino, 0, label.as_bytes(), WriteOptions::default())
        .unwrap();
    fs.sync_all().unwrap();
    ino
}

fn mount(store: &Arc<MemStore>) -> MemFs {
    Fs::mount(Arc::clone(store)).unwrap()
}

fn content(fs: &MemFs, path: &str) -> String {
    String::from_utf8(bytes(fs, path)).unwrap()
}

fn text(fs: &MemFs, path: &str) -> String {
    String::from_utf8_lossy(&bytes(fs, path)).into_owned()
}

fn bytes(fs: &MemFs, path: &str) -> Vec<u8> {
    let ino = fs
        .lookup_path(path)
        .unwrap_or_else(|e| panic!("{path}: {e}"));
    let mut bytes = [0; 100];
    let len = fs.read(ino, 0, &mut bytes).unwrap();
    bytes[..len].to_vec()
}

/// Makes a grain what it is in another store.
fn put_back(store: &MemStore, from: &MemStore, lba: Lba) {
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

fn image(store: &MemStore) -> BTreeMap<Lba, Vec<u8>> {
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
fn twice(store: &Arc<MemStore>, care: Care) -> RepairReport {
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
fn cured(store: &Arc<MemStore>, care: Care) -> Vec<Problem> {
    let report = twice(store, care);
    assert!(report.after.is_clean(), "{:?}", report.after.problems);
    assert!(!report.repaired.is_empty());
    let fs = mount(store);
    assert_eq!(content(&fs, "/keep"), "keep");
    report.repaired
}

#[test]
fn a_healthy_volume_is_left_alone() {
    let (store, fs) = prepare();
    drop(fs);
    let before = image(&store);
    let report = twice(&store, Care::Full);
    assert!(report.repaired.is_empty() && report.after.is_clean());
    assert!(before == image(&store));
}

#[test]
fn link_counts_are_counted() {
    let (store, fs) = prepare();
    let ino = fs.lookup_path("/d/a").unwrap();
    let before = store.duplicate();
    fs.link(ino, ROOT, name("second")).unwrap();
    drop(fs);
    put_back(&store, &before, COLD);
    cured(&store, Care::Safe);
    let fs = mount(&store);
    assert_eq!(fs.attr(ino).unwrap().nlink, 2);
    assert_eq!(content(&fs, "/second"), "a");
}

#[test]
fn names_that_lead_nowhere_go() {
    let (store, fs) = prepare();
    file(&fs, ROOT, "gone");
    let before = store.duplicate();
    fs.unlink(ROOT, name("gone")).unwrap();
    drop(fs);
    put_back(&store, &before, ROOT_DIR);
    cured(&store, Care::Safe);
    assert!(mount(&store).lookup_path("/gone").is_err());
}

/// Somebody has made a file of the name `lost+found`: it stays, and what has no name is found beside it.
#[test]
fn a_file_called_lost_and_found_is_not_in_the_way() {
    let (store, fs) = prepare();
    file(&fs, ROOT, "lost+found");
    let before = store.duplicate();
    let lost = file(&fs, ROOT, "lost");
    drop(fs);
    put_back(&store, &before, ROOT_DIR);
    cured(&store, Care::Safe);
    let fs = mount(&store);
    assert_eq!(content(&fs, "/lost+found"), "lost+found");
    assert_eq!(content(&fs, &format!("/lost+found.1/#{lost}")), "lost");
}

/// Files and whole trees without a name are found in lost+found, with everything in them.
#[test]
fn the_nameless_get_a_name() {
    let (store, fs) = prepare();
    let before = store.duplicate();
    let lost = file(&fs, ROOT, "lost");
    let tree = fs
        .create(ROOT, name("tree"), &NewNode::directory())
        .unwrap()
        .ino;
    let below = fs
        .create(tree, name("below"), &NewNode::directory())
        .unwrap()
        .ino;
    file(&fs, below, "leaf");
    drop(fs);
    put_back(&store, &before, ROOT_DIR);
    cured(&store, Care::Safe);
    let fs = mount(&store);
    assert_eq!(content(&fs, &format!("/lost+found/#{lost}")), "lost");
    let leaf = format!("/lost+found/#{tree}/below/leaf");
    assert_eq!(content(&fs, &leaf), "leaf");
    let dir = fs.lookup_path("/lost+found").unwrap();
    assert_eq!(fs.attr(dir).unwrap().mode & 0o7777, 0o700);
    // It is used again.
    let before = store.duplicate();
    let other = file(&fs, ROOT, "other");
    drop(fs);
    put_back(&store, &before, ROOT_DIR);
    cured(&store, Care::Safe);
    let fs = mount(&store);
    assert_eq!(content(&fs, &format!("/lost+found/#{other}")), "other");
    assert_eq!(content(&fs, &leaf), "leaf");
}

/// A directory that was moved, and any part of that did not happen.
#[test]
fn directories_have_one_place() {
    let parts: [(&str, Care); 3] = [
        ("names", Care::Full),
        ("record", Care::Safe),
        ("no name", Care::Safe),
    ];
    for (part, care) in parts {
        let (store, fs) = prepare();
        let (from, to) = (fs.lookup_path("/d").unwrap(), fs.lookup_path("/e").unwrap());
        file(&fs, to, "filler");
        let moved = fs
            .create(from, name("moved"), &NewNode::directory())
            .unwrap()
            .ino;
        file(&fs, moved, "inside");
        let place = |ino| fs.file_extent(ino).map(|extent| extent.range.start);
        let _ = place(moved);
        let before = store.duplicate();
        fs.rename(from, name("moved"), to, name("moved"), RenameMode::Replace)
            .unwrap();
        drop(fs);
        let grain_of = |label: &str| dir_grain(&store, label);
        match part {
            "names" => put_back(&store, &before, grain_of("a")),
            "record" => put_back(&store, &before, COLD),
            _ => put_back(&store, &before, grain_of("filler")),
        }
        assert!(!check(&store).is_clean(), "{part}");
        cured(&store, care);
        let fs = mount(&store);
        let path = match part {
            "no name" => format!("/lost+found/#{moved}/inside"),
            _ => "/e/moved/inside".to_owned(),
        };
        assert_eq!(content(&fs, &path), "inside", "{part}");
        assert_eq!(content(&fs, "/d/a"), "a");
    }
}

/// The grain of the directory that holds this name.
fn dir_grain(store: &MemStore, label: &str) -> Lba {
    let holds = |grain: &[u8]| {
        grain.chunks(16).any(|unit| {
            unit.starts_with(label.as_bytes()) && unit[label.len()..] == vec![0; 16 - label.len()]
        })
    };
    let all = image(store);
    let mut found = all
        .iter()
        .filter(|(lba, grain)| lba.0 >= ROOT_DIR.0 && lba.0 < XATTRS.0 && holds(&grain[16..]));
    *found.next().expect("some directory holds it").0
}

/// Two directories inside each other, out of reach: one of them is found again, with the other in it.
#[test]
fn circles_are_opened() {
    let (store, fs) = prepare();
    let dir = |parent, label: &str| {
        let made = fs.create(parent, name(label), &NewNode::directory());
        made.unwrap().ino
    };
    let x = dir(ROOT, "x");
    let y = dir(x, "y");
    file(&fs, y, "inside");
    // y moves up, x moves below it, and the root forgets both.
    fs.rename(x, name("y"), ROOT, name("y"), RenameMode::Replace)
        .unwrap();
    let with_y = store.duplicate();
    fs.rename(ROOT, name("x"), y, name("x"), RenameMode::Replace)
        .unwrap();
    let with_x = store.duplicate();
    fs.rename(y, name("x"), ROOT, name("x"), RenameMode::Replace)
        .unwrap();
    fs.rename(ROOT, name("y"), x, name("y"), RenameMode::Replace)
        .unwrap();
    let _ = with_y;
    drop(fs);
    // x holds y (as it is now), and y holds x (as it was).
    put_back(&store, &with_x, dir_grain(&with_x, "inside"));
    assert!(!check(&store).is_clean());
    cured(&store, Care::Full);
    let fs = mount(&store);
    assert_eq!(content(&fs, "/x/y/inside"), "inside");
}

#[test]
fn kinds_agree() {
    let (store, fs) = prepare();
    let ino = file(&fs, ROOT, "file");
    let before = store.duplicate();
    fs.unlink(ROOT, name("file")).unwrap();
    let dir = fs
        .create(ROOT, name("dir"), &NewNode::directory())
        .unwrap()
        .ino;
    drop(fs);
    if dir != ino {
        return;
    }
    put_back(&store, &before, ROOT_DIR);
    cured(&store, Care::Safe);
    let fs = mount(&store);
    let attr = fs.lookup(ROOT, name("file")).unwrap();
    assert_eq!(attr.kind, FileKind::Directory);
}

#[test]
fn the_root_record_and_the_table_are_written_anew() {
    for lba in [Lba(0), Lba(1), HOT] {
        let (store, fs) = prepare();
        drop(fs);
        store.poke(ByteAddr::new(lba, 9), |byte| byte ^ 1);
        assert!(!check(&store).is_clean());
        cured(&store, Care::Safe);
    }
}

/// With its cold record a file loses owner and times, not its data; who runs it gets nobody's rights.
#[test]
fn a_lost_cold_record_costs_owner_and_times() {
    let (store, fs) = prepare();
    let ino = fs.lookup_path("/d/a").unwrap();
    let change = SetAttr {
        perm: Some(0o4755),
        uid: Some(7),
        ..SetAttr::default()
    };
    fs.set_attr(ino, &change).unwrap();
    fs.set_attr(
        ino,
        &SetAttr {
            perm: Some(0o4755),
            ..SetAttr::default()
        },
    )
    .unwrap();
    fs.link(ino, ROOT, name("second")).unwrap();
    drop(fs);
    store.poke(ByteAddr::new(COLD, ino.0 * 128 + 20), |byte| byte ^ 1);
    let careful = twice(&store, Care::Safe);
    assert!(careful.repaired.is_empty() && !careful.after.is_clean());
    cured(&store, Care::Full);
    let fs = mount(&store);
    let attr = fs.attr(ino).unwrap();
    assert_eq!((attr.mode & 0o7777, attr.uid, attr.nlink), (0o755, 0, 2));
    assert_eq!(content(&fs, "/d/a"), "a");
}

/// The record of the root directory is made up, hot or cold.
#[test]
fn a_lost_root_is_made_up() {
    for at in [ByteAddr::new(HOT, 32 + 9), ByteAddr::new(COLD, 128 + 9)] {
        let (store, fs) = prepare();
        fs.set_xattr(ROOT, name("user.a"), b"7", XattrMode::Set)
            .unwrap();
        drop(fs);
        store.poke(at, |byte| byte ^ 1);
        cured(&store, Care::Full);
        let fs = mount(&store);
        assert_eq!(content(&fs, "/d/a"), "a");
        assert_eq!(fs.xattr(ROOT, name("user.a")).as_deref(), Ok(&b"7"[..]));
    }
}

/// A damaged entry costs its name; the file is found again, and so are all other names.
#[test]
fn a_damaged_entry_costs_a_name() {
    for byte in [0, 9, 13, 16] {
        let (store, fs) = prepare();
        drop(fs);
        // The first entry of the root directory is `d`.
        store.poke(ByteAddr::new(ROOT_DIR, byte), |byte| byte ^ 0x10);
        let careful = twice(&store, Care::Safe);
        assert!(careful.repaired.is_empty() && !careful.after.is_clean());
        cured(&store, Care::Full);
        let fs = mount(&store);
        let found = names(&fs, fs.lookup_path("/lost+found").unwrap()).unwrap();
        assert_eq!(found.len(), 1);
        let path = format!("/lost+found/{}/a", found[0].0);
        assert_eq!(content(&fs, &path), "a", "byte {byte}");
    }
}

/// `lost+found` can not be made while the root directory says that it has as many links as there can be: what is tried in
/// vain is tried again after that has been put right, so that one repair ends it all.
#[test]
fn the_nameless_get_a_name_whatever_the_root_counts() {
    let (store, fs) = prepare();
    let before = store.duplicate();
    let lost = file(&fs, ROOT, "lost");
    drop(fs);
    put_back(&store, &before, ROOT_DIR);
    let at = ByteAddr::new(COLD, ROOT.0 * 128);
    let mut cold = [0; 128];
    store.read(at, &mut cold).unwrap();
    cold[24..28].fill(0xff);
    let crc = crc32fast::hash(&[&ROOT.0.to_le_bytes(), &cold[..124]].concat());
    cold[124..].copy_from_slice(&crc.to_le_bytes());
    store.write(at, &cold).unwrap();
    store.sync(LbaRange::new(COLD, 1)).unwrap();
    cured(&store, Care::Full);
    let fs = mount(&store);
    assert_eq!(content(&fs, &format!("/lost+found/#{}", lost.0)), "lost");
}

/// `lost+found` would inherit the root directory's attributes: when those can not be read, they go first, so that one
/// repair ends it all.
#[test]
fn the_nameless_get_a_name_whatever_the_root_inherits() {
    let (store, fs) = prepare();
    fs.set_xattr(ROOT, name("user.a"), b"a", XattrMode::Set)
        .unwrap();
    let before = store.duplicate();
    let lost = file(&fs, ROOT, "lost");
    drop(fs);
    put_back(&store, &before, ROOT_DIR);
    store.poke(ByteAddr::new(XATTRS.offset(ROOT.0), 8), |_| 0xff);
    cured(&store, Care::Full);
    let fs = mount(&store);
    assert_eq!(content(&fs, &format!("/lost+found/#{}", lost.0)), "lost");
}

#[test]
fn damaged_attributes_go_alone() {
    let (store, fs) = prepare();
    let (a, b) = (
        fs.lookup_path("/d/a").unwrap(),
        fs.lookup_path("/d/b").unwrap(),
    );
    for ino in [a, b] {
        fs.set_xattr(ino, name("user.a"), &[7; 9000], XattrMode::Set)
            .unwrap();
    }
    drop(fs);
    store.poke(ByteAddr::new(XATTRS.offset(a.0), 100), |byte| byte ^ 1);
    let careful = twice(&store, Care::Safe);
    assert!(careful.repaired.is_empty() && !careful.after.is_clean());
    cured(&store, Care::Full);
    let fs = mount(&store);
    assert!(fs.xattrs(a).unwrap().is_empty());
    assert_eq!(fs.xattr(b, name("user.a")).unwrap().len(), 9000);
    assert_eq!(content(&fs, "/d/a"), "a");
}

/// A list and a mode that differ allow what both did.
#[test]
fn lists_and_modes_agree() {
    let (store, fs) = prepare();
    let ino = fs.lookup_path("/d/a").unwrap();
    let access = name(support::oracle::ACCESS);
    fs.set_xattr(ino, access, &acl::extended(), XattrMode::Set)
        .unwrap();
    assert_eq!(fs.attr(ino).unwrap().mode & 0o777, 0o770);
    let before = store.duplicate();
    let change = SetAttr {
        perm: Some(0o4745),
        ..SetAttr::default()
    };
    fs.set_attr(ino, &change).unwrap();
    drop(fs);
    put_back(&store, &before, XATTRS.offset(ino.0));
    cured(&store, Care::Full);
    let fs = mount(&store);
    let mode = fs.attr(ino).unwrap().mode & 0o7777;
    assert_eq!(mode & 0o777, 0o740);
    let list = fs.xattr(ino, access).unwrap();
    let mask = acl::entries(&list)
        .into_iter()
        .find(|entry| entry.0 == 0x10);
    assert_eq!(mask.map(|entry| entry.1), Some(4));
}

#[test]
fn attributes_of_nobody_go() {
    let (store, fs) = prepare();
    let ino = file(&fs, ROOT, "gone");
    fs.set_xattr(ino, name("user.a"), &[7; 9000], XattrMode::Set)
        .unwrap();
    let before = store.duplicate();
    fs.unlink(ROOT, name("gone")).unwrap();
    drop(fs);
    let of_it = before.mapped().into_iter().filter(|lba| lba.0 >= XATTRS.0);
    of_it.for_each(|lba| put_back(&store, &before, lba));
    assert!(!check(&store).is_clean());
    cured(&store, Care::Safe);
    assert!(store.mapped().iter().all(|lba| lba.0 < XATTRS.0));
}

/// Two files with the same range, because one has come back from the past: the younger keeps its place, the older gets
/// one of its own with all that lies there, for root to look at. Nothing is lost, and nobody reads what is not his.
#[test]
fn overlaps_are_parted() {
    let (store, fs) = prepare();
    let a = file(&fs, ROOT, "one");
    fs.write(a, 0, &[1; 3 * GRAIN], WriteOptions::default())
        .unwrap();
    let owner = SetAttr {
        uid: Some(7),
        ..SetAttr::default()
    };
    fs.set_attr(a, &owner).unwrap();
    fs.sync_all().unwrap();
    let before = store.duplicate();
    // Goes elsewhere, and leaves its range to the next file.
    fs.fallocate(a, 0, GRAIN as u64, FallocMode::CollapseRange)
        .unwrap();
    let b = file(&fs, ROOT, "two");
    drop(fs);
    for (table, size) in [(HOT, 32), (COLD, 128)] {
        let mut record = vec![0; size];
        let at = ByteAddr::new(table, a.0 * size as u64);
        before.read(at, &mut record).unwrap();
        store.write(at, &record).unwrap();
        store.sync(LbaRange::new(table, 1)).unwrap();
    }
    let careful = twice(&store, Care::Safe);
    assert!(careful.repaired.is_empty() && !careful.after.is_clean());
    cured(&store, Care::Full);
    assert_ne!(a, b);
    let fs = mount(&store);
    assert_eq!(content(&fs, "/two"), "two");
    let older = fs.attr(a).unwrap();
    assert_eq!((older.mode & 0o7777, older.uid), (0o600, 0));
    assert_eq!(older.size, 3 * GRAIN as u64);
    let mut start = [9; 5];
    fs.read(a, 0, &mut start).unwrap();
    assert_eq!(&start, b"two\0\0", "what lies there now");
    // What it had where it went has become a file.
    let found = fs.lookup_path("/lost+found").unwrap();
    let [(_, found)] = names(&fs, found).unwrap()[..] else {
        panic!("more than one");
    };
    assert_eq!(support::content(&fs, found).unwrap(), [1; 2 * GRAIN]);
    // From now on each has its own.
    fs.write(a, 0, b"one", WriteOptions::default()).unwrap();
    assert_eq!(content(&fs, "/two"), "two");
}

/// A link that claims a file's place shows everybody what lies there. What becomes of it is a file, for root alone to read.
#[test]
fn a_link_shows_nothing_of_another_file() {
    let (store, fs) = prepare();
    let link = fs
        .symlink(ROOT, name("link"), name("some/where"), 0, 0)
        .unwrap()
        .ino;
    let owner = file(&fs, ROOT, "secret");
    let private = SetAttr {
        perm: Some(0o600),
        ..SetAttr::default()
    };
    fs.set_attr(owner, &private).unwrap();
    let place = fs.file_extent(owner).unwrap().range.start;
    drop(fs);
    craft_record(&store, link, |record| {
        record[..8].copy_from_slice(&place.0.to_le_bytes());
    });
    cured(&store, Care::Full);
    let fs = mount(&store);
    assert!(fs.readlink(link).is_err());
    let attr = fs.attr(link).unwrap();
    assert_eq!((attr.kind, attr.mode & 0o7777), (FileKind::File, 0o600));
    assert_eq!(fs.lookup_path("/link").unwrap(), link);
    assert_eq!(content(&fs, "/secret"), "secret");
}

/// A hot record of the past without a cold one that fits, in a place that is another file's by now: what is made up of it
/// is younger than everything, and is given another place all the same. The file that was there stays as it is.
#[test]
fn what_is_made_up_takes_no_place() {
    let (store, fs) = prepare();
    let a = file(&fs, ROOT, "one");
    fs.write(a, 0, &[1; 3 * GRAIN], WriteOptions::default())
        .unwrap();
    fs.sync_all().unwrap();
    let before = store.duplicate();
    fs.fallocate(a, 0, GRAIN as u64, FallocMode::CollapseRange)
        .unwrap();
    let b = file(&fs, ROOT, "two");
    let change = SetAttr {
        uid: Some(7),
        perm: Some(0o640),
        ..SetAttr::default()
    };
    fs.set_attr(b, &change).unwrap();
    fs.unlink(ROOT, name("one")).unwrap();
    let wanted = fs.attr(b).unwrap();
    drop(fs);
    let mut record = [0; 32];
    let at = ByteAddr::new(HOT, a.0 * 32);
    before.read(at, &mut record).unwrap();
    store.write(at, &record).unwrap();
    store.sync(LbaRange::new(HOT, 1)).unwrap();
    cured(&store, Care::Full);
    let fs = mount(&store);
    assert_eq!(fs.attr(b).unwrap(), wanted);
    let made_up = fs.attr(a).unwrap();
    assert_eq!((made_up.mode & 0o7777, made_up.uid), (0o600, 0));
    fs.write(a, 0, b"one", WriteOptions::default()).unwrap();
    assert_eq!(content(&fs, "/two"), "two");
}

/// A bit of the hot record, which says where a file lies, is gone.
fn lose_place(store: &Arc<MemStore>, ino: InodeNo) {
    store.poke(ByteAddr::new(HOT, ino.0 * 32 + 3), |byte| byte ^ 1);
}

/// A directory is found again by its entries, with all that is in it.
#[test]
fn a_directory_whose_place_is_lost_is_found() {
    let (store, fs) = prepare();
    let dir = fs.lookup_path("/d").unwrap();
    let before = fs.attr(dir).unwrap();
    drop(fs);
    lose_place(&store, dir);
    let careful = twice(&store, Care::Safe);
    assert!(careful.repaired.is_empty() && !careful.after.is_clean());
    cured(&store, Care::Full);
    let fs = mount(&store);
    assert_eq!(content(&fs, "/d/a"), "a");
    assert_eq!(content(&fs, "/d/b"), "b");
    let after = fs.attr(dir).unwrap();
    assert_eq!(
        (after.mode & 0o7777, after.uid, after.mtime),
        (0o700, before.uid, before.mtime)
    );
    // It can grow there.
    for n in 0..300 {
        let label = format!("{n}-a-name-of-some-length-to-fill-a-directory");
        fs.create(dir, name(&label), &NewNode::file()).unwrap();
    }
}

/// The only missing file and the only place that is nobody's belong together.
#[test]
fn the_only_file_whose_place_is_lost_is_found() {
    let (store, fs) = prepare();
    let ino = fs.lookup_path("/d/a").unwrap();
    drop(fs);
    lose_place(&store, ino);
    cured(&store, Care::Full);
    let fs = mount(&store);
    let attr = fs.attr(ino).unwrap();
    assert_eq!((attr.mode & 0o7777, attr.uid), (0o600, 0));
    assert_eq!(content(&fs, "/d/a").trim_end_matches('\0'), "a");
    assert_eq!(content(&fs, "/d/b"), "b");
}

/// Of several missing files nobody knows which is which: all data are in lost+found, and the names are gone.
#[test]
fn files_whose_places_are_lost_are_kept() {
    let (store, fs) = prepare();
    let a = fs.lookup_path("/d/a").unwrap();
    let b = fs.lookup_path("/d/b").unwrap();
    drop(fs);
    lose_place(&store, a);
    lose_place(&store, b);
    cured(&store, Care::Full);
    let fs = mount(&store);
    assert!(fs.lookup_path("/d/a").is_err() && fs.lookup_path("/d/b").is_err());
    let dir = fs.lookup_path("/lost+found").unwrap();
    let found = names(&fs, dir).unwrap().into_iter().map(|(label, _)| {
        let path = format!("/lost+found/{label}");
        content(&fs, &path).trim_end_matches('\0').to_owned()
    });
    let mut found: Vec<String> = found.collect();
    found.sort();
    assert_eq!(found, ["a", "b"]);
}

/// Repairs that are cut off at any write end the same way when they are done again.
#[test]
fn power_cuts_during_a_repair() {
    let damaged = || {
        let (store, fs) = prepare();
        let before = store.duplicate();
        file(&fs, ROOT, "lost");
        fs.create(ROOT, name("tree"), &NewNode::directory())
            .unwrap();
        let ino = fs.lookup_path("/d/a").unwrap();
        fs.link(ino, ROOT, name("second")).unwrap();
        drop(fs);
        put_back(&store, &before, ROOT_DIR);
        store
    };
    let whole = damaged();
    cured(&whole, Care::Full);
    let wanted = tree(&mount(&whole));
    for calls in 0.. {
        let store = damaged();
        let first = store.calls();
        store.cut_power_after(calls);
        let finished = repair(&store, Care::Full).is_ok();
        let left = Arc::new(store.after_power_cut(|n| n - 1));
        twice(&left, Care::Full);
        assert!(check(&left).is_clean());
        assert_eq!(tree(&mount(&left)), wanted, "cut after {calls} calls");
        if finished {
            assert!(store.calls() > first);
            return;
        }
    }
}

/// The same with places that are looked for: whatever is cut off, the directory is found, and no file's content is lost.
#[test]
fn power_cuts_while_places_are_found() {
    let damaged = || {
        let (store, fs) = prepare();
        let lost = ["/d", "/d/a", "/d/b"].map(|path| fs.lookup_path(path).unwrap());
        drop(fs);
        lost.into_iter().for_each(|ino| lose_place(&store, ino));
        store
    };
    for calls in 0.. {
        let store = damaged();
        store.cut_power_after(calls);
        let finished = repair(&store, Care::Full).is_ok();
        let left = Arc::new(store.after_power_cut(|n| n - 1));
        // Whoever mounts it in between frees nothing of what is missing.
        drop(mount(&left));
        twice(&left, Care::Full);
        assert!(check(&left).is_clean(), "cut after {calls} calls");
        let tree = tree(&mount(&left));
        assert!(tree.contains_key("/d"), "cut after {calls} calls");
        let text = |text: &String| text.trim_end_matches('\0').to_owned();
        let mut contents: Vec<String> = tree.values().map(text).collect();
        contents.retain(|text| !text.is_empty());
        contents.sort();
        assert_eq!(contents, ["a", "b", "keep"], "cut after {calls} calls");
        if finished {
            return;
        }
    }
}

/// Paths and what is there, as far as it is text: a file that was given a clone of another's place may hold anything.
fn tree(fs: &MemFs) -> BTreeMap<String, String> {
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

/// Any mixture of two states of the metadata: what the repair calls clean can be used, and it comes to an end.
#[test]
fn mixtures_of_two_states() {
    for seed in 0..2000 {
        let mut dice = Dice::new(seed);
        let (store, fs) = prepare();
        change(&fs, &mut dice);
        let before = store.duplicate();
        change(&fs, &mut dice);
        drop(fs);
        let mut metadata: Vec<Lba> = before.mapped();
        metadata.extend(store.mapped());
        metadata.retain(|lba| is_metadata(&store, &before, *lba));
        metadata.sort_unstable();
        metadata.dedup();
        for _ in 0..=dice.below(3) {
            put_back(&store, &before, *dice.pick(&metadata));
        }
        if dice.below(4) == 0 {
            let lba = *dice.pick(&metadata);
            let at = dice.below(500);
            store.poke(ByteAddr::new(lba, at), |byte| byte ^ 0x21);
        }
        let report = twice(&store, Care::Full);
        if report.after.is_clean() {
            let fs = mount(&store);
            tree(&fs);
            let new = file(&fs, ROOT, "new");
            fs.unlink(ROOT, name("new")).unwrap();
            let _ = new;
            drop(fs);
            assert!(check(&store).is_clean(), "seed {seed}");
        }
    }
}

/// Table or directory; data would only make contents differ.
fn is_metadata(now: &MemStore, before: &MemStore, lba: Lba) -> bool {
    let is_dir = |store: &MemStore| {
        let mut grain = [0; GRAIN];
        store.read(ByteAddr::new(lba, 0), &mut grain).unwrap();
        grain[8] > 0 && grain[8] < 64 && [4, 8].contains(&grain[9])
    };
    lba.0 < ROOT_DIR.0 && lba.0 > 1 || is_dir(now) || is_dir(before)
}

fn change(fs: &MemFs, dice: &mut Dice) {
    let label = |n: u64| format!("f{n}");
    for _ in 0..1 + dice.below(6) {
        let dirs: Vec<InodeNo> = ["/", "/d", "/e", "/d/f1", "/e/f1"]
            .iter()
            .filter_map(|path| fs.lookup_path(path).ok())
            .collect();
        let (dir, other) = (*dice.pick(&dirs), *dice.pick(&dirs));
        let (one, two) = (label(dice.below(4)), label(dice.below(4)));
        let ino = fs.lookup(dir, name(&one)).map(|attr| attr.ino);
        let _ = match dice.below(6) {
            0 => fs.create(dir, name(&one), &NewNode::directory()).map(drop),
            1 | 2 => fs.create(dir, name(&one), &NewNode::file()).map(drop),
            3 => fs
                .unlink(dir, name(&one))
                .or_else(|_| fs.rmdir(dir, name(&one))),
            4 => fs.rename(dir, name(&one), other, name(&two), RenameMode::Replace),
            _ => ino.and_then(|ino| fs.link(ino, other, name(&two)).map(drop)),
        };
    }
    let _ = fs.sync_all();
}

/// Grains that the media have lost, whatever was in them: what lay in them is given up, and the rest is put in order.
#[test]
fn grains_lost_by_the_media() {
    // What is lost, whether that can be repaired, and where the file is then.
    let cases = [
        (Lba(0), true, "/d/a"),
        (Lba(1), true, "/d/a"),
        (HOT, true, "/d/a"),
        (COLD, true, "/d/a"),
        (ROOT_DIR, true, "/lost+found/#2/a"),
        (XATTRS.offset(3), true, "/d/a"),
    ];
    for (lba, curable, path) in cases {
        let mut device = ftl::MemDevice::new(32 << 20).unwrap();
        ftl::Ftl::format(&mut device, &ftl::FormatOptions::default()).unwrap();
        let volume = Arc::new(open(device));
        Fs::format(&volume, &FormatOptions::default()).unwrap();
        let fs = Fs::mount(Arc::clone(&volume)).unwrap();
        let dir = fs.create(ROOT, name("d"), &NewNode::directory()).unwrap();
        let a = fs.create(dir.ino, name("a"), &NewNode::file()).unwrap();
        fs.write(a.ino, 0, b"a", WriteOptions::default()).unwrap();
        fs.set_xattr(a.ino, name("user.a"), b"7", XattrMode::Set)
            .unwrap();
        assert_eq!((dir.ino.0, a.ino.0), (2, 3));
        fs.sync_all().unwrap();
        drop(fs);
        volume.shutdown().unwrap();
        let mut device = Arc::into_inner(volume).unwrap().into_device();
        let map = ftl::check(&mut device).unwrap().map;
        let Some(ftl::Checked::Data { pba, .. }) = map.get(&lba) else {
            panic!("{lba} is not on media");
        };
        let at = pba.0 as usize * GRAIN;
        device.image_mut()[at..at + 100].fill(0x5a);

        let volume = Arc::new(open(device));
        assert!(!check(&volume).is_clean(), "{lba}");
        let report = repair(&volume, Care::Full).unwrap();
        assert_eq!(report.after.is_clean(), curable, "{lba}: {report:?}");
        assert!(repair(&volume, Care::Full).unwrap().repaired.is_empty());
        if curable {
            let fs = Fs::mount(Arc::clone(&volume)).unwrap();
            let ino = fs.lookup_path(path).unwrap();
            let mut byte = [0];
            assert_eq!(fs.read(ino, 0, &mut byte), Ok(1), "{lba}");
            assert_eq!(&byte, b"a", "{lba}");
            drop(fs);
            volume.shutdown().unwrap();
            let mut device = Arc::into_inner(volume).unwrap().into_device();
            assert!(ftl::check(&mut device).unwrap().is_sound(), "{lba}");
        }
    }
}

fn open(device: ftl::MemDevice) -> ftl::Volume<ftl::MemDevice> {
    let options = ftl::OpenOptions {
        pool_frames: 1024,
        ..ftl::OpenOptions::default()
    };
    ftl::Volume::open(device, options).unwrap().0
}

/// What the device gives an error for may be whole: as long as it does, nothing is given up, whatever else is wrong. When it
/// can be read again everything is there.
#[test]
fn errors_of_the_device_give_nothing_up() {
    let (store, fs) = prepare();
    let dir = fs.lookup_path("/d").unwrap();
    let a = fs.lookup_path("/d/a").unwrap();
    fs.set_xattr(a, name("user.a"), b"value", XattrMode::Set)
        .unwrap();
    let entries = fs.file_extent(dir).map_or(ROOT_DIR, |e| e.range.start);
    let before = store.duplicate();
    fs.link(a, ROOT, name("second")).unwrap();
    drop(fs);
    // A link count that is wrong.
    put_back(&store, &before, COLD);
    let head = XATTRS.offset(a.0);
    for lba in [HOT, COLD, ROOT_DIR, entries, head] {
        store.set_unreadable(lba, true);
        let image_before = image(&readable(&store, lba));
        let report = repair(&store, Care::Full).unwrap();
        assert_eq!(report.repaired, [], "{lba}");
        assert!(report.after.problems.iter().any(Problem::is_unreadable));
        store.set_unreadable(lba, false);
        assert!(
            image(&store) == image_before,
            "{lba}: something was written"
        );
    }
    cured(&store, Care::Full);
    let fs = mount(&store);
    assert_eq!(content(&fs, "/d/a"), "a");
    assert_eq!(fs.xattr(a, name("user.a")).unwrap(), b"value");
    assert_eq!(fs.attr(a).unwrap().nlink, 2);
}

/// The same store, in which the grain can be read.
fn readable(store: &MemStore, lba: Lba) -> MemStore {
    let whole = store.duplicate();
    whole.set_unreadable(lba, false);
    whole
}
