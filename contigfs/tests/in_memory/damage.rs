//! I7, M5 and crafted images: any byte of the metadata may be anything. The answer is an error, never a panic, and one
//! damaged grain leaves the rest of the file system usable.

use std::sync::Arc;

use contigfs::{
    BlockStore, ByteAddr, Care, Fs, InodeNo, MemStore, NewNode, SetAttr, WriteOptions, XattrMode,
    check, check_with_data, repair,
};
use ftl::{Lba, LbaRange};
use support::oracle::DEFAULT;
use support::records::{TABLES, craft_record};
use support::{Dice, acl, content, fresh, fresh_with, name, names, tight};

const ROOT: InodeNo = InodeNo::ROOT;
/// Where extended attributes lie: from here to the end.
const XATTRS: Lba = Lba((1 << 52) - (1 << 39));

fn prepare() -> MemStore {
    let (store, fs) = fresh(1000);
    let dir = fs
        .create(ROOT, name("d"), &NewNode::directory())
        .unwrap()
        .ino;
    for label in ["a", "b", "a-name-of-more-than-sixteen-bytes"] {
        let ino = fs.create(dir, name(label), &NewNode::file()).unwrap().ino;
        fs.write(ino, 0, label.as_bytes(), WriteOptions::default())
            .unwrap();
        fs.set_xattr(ino, name("user.a"), &[7; 4200], XattrMode::Set)
            .unwrap();
    }
    fs.set_xattr(dir, name(DEFAULT), &acl::extended(), XattrMode::Set)
        .unwrap();
    fs.set_xattr(ROOT, name("user.a"), b"7", XattrMode::Set)
        .unwrap();
    fs.symlink(ROOT, name("l"), name("d/a"), 0, 0).unwrap();
    fs.create(ROOT, name("empty"), &NewNode::directory())
        .unwrap();
    fs.sync_all().unwrap();
    store.duplicate()
}

/// Tries everything; errors are fine.
fn exercise(store: &Arc<MemStore>) {
    let _ = check_with_data(store);
    let Ok(fs) = Fs::mount(Arc::clone(store)) else {
        return;
    };
    let mut dirs = vec![ROOT];
    while let Some(dir) = dirs.pop() {
        let Ok(all) = names(&fs, dir) else { continue };
        for (label, ino) in all {
            let Ok(attr) = fs.lookup(dir, name(&label)) else {
                continue;
            };
            match attr.kind {
                contigfs::FileKind::Directory if dirs.len() < 20 && ino != dir => dirs.push(ino),
                contigfs::FileKind::Symlink => drop(fs.readlink(ino)),
                _ => drop(fs.read(ino, 0, &mut [0; 100])),
            }
            for key in fs.xattrs(ino).unwrap_or_default() {
                let _ = fs.xattr(ino, &key);
            }
            let _ = fs.set_xattr(ino, name("user.b"), b"new", XattrMode::Set);
            let _ = fs.create(ino, name("inherits"), &NewNode::file());
            let _ = fs.remove_xattr(ino, name("user.a"));
            let _ = fs.set_attr(
                ino,
                &SetAttr {
                    size: Some(5000),
                    ..SetAttr::default()
                },
            );
        }
    }
    let _ = fs.create(ROOT, name("new"), &NewNode::file());
    let _ = fs.rename(
        ROOT,
        name("empty"),
        ROOT,
        name("d"),
        contigfs::RenameMode::Replace,
    );
    let _ = fs.unlink(ROOT, name("l"));
    let _ = fs.rmdir(ROOT, name("empty"));
    let _ = fs.sync_all();
}

/// Every byte of every metadata grain, one at a time.
#[test]
fn every_damaged_byte_is_an_error_or_harmless() {
    let base = prepare();
    for lba in base.mapped() {
        for offset in 0..700 {
            let store = Arc::new(base.duplicate());
            store.poke(ByteAddr::new(lba, offset), |byte| byte ^ 0x55);
            exercise(&store);
        }
    }
}

/// Random garbage over whole grains.
#[test]
fn garbage_is_an_error() {
    let base = prepare();
    let mapped = base.mapped();
    for seed in 0..300 {
        let mut dice = Dice::new(seed);
        let store = Arc::new(base.duplicate());
        for _ in 0..1 + dice.below(3) {
            let lba = *dice.pick(&mapped);
            let garbage: Vec<u8> = (0..4096).map(|_| dice.roll() as u8).collect();
            store.write(ByteAddr::new(lba, 0), &garbage).unwrap();
        }
        exercise(&store);
    }
}

/// One damaged record costs one file: the rest works, the checker names it, and nothing new is put over its data.
#[test]
fn one_damaged_record_costs_one_file() {
    for table in TABLES {
        let store = Arc::new(prepare());
        let fs = Fs::mount(Arc::clone(&store)).unwrap();
        let victim = fs.lookup_path("/d/a").unwrap();
        let extent = fs.file_extent(victim).unwrap();
        drop(fs);
        let record = if table == TABLES[0] { 32 } else { 128 };
        store.poke(ByteAddr::new(table, victim.0 * record + 9), |byte| byte ^ 1);
        let report = check(&store);
        assert!(!report.is_clean());
        let fs = Fs::mount(Arc::clone(&store)).unwrap();
        assert_eq!(fs.lookup_path("/d/a").unwrap_err().errno(), libc_eio());
        assert!(fs.lookup_path("/d/b").is_ok());
        let new = fs.create(ROOT, name("new"), &NewNode::file()).unwrap().ino;
        let range = fs.file_extent(new).unwrap().range;
        assert!(range.end() <= extent.range.start || extent.range.end() <= range.start);
        assert_eq!(
            store.next_mapped(LbaRange::new(extent.range.start, 1)),
            Some(extent.range.start)
        );
    }
}

/// A file that was on its way when the power failed and whose record says no more where to: nothing of it is trimmed or
/// given to others, at the old place or the new one.
#[test]
fn a_damaged_relocation_loses_no_data() {
    let (store, fs) = fresh_with(1000, &tight());
    let ino = fs.create(ROOT, name("f"), &NewNode::file()).unwrap().ino;
    for n in 0..60u64 {
        fs.write(ino, n * 3000 * 4096, &[7; 4096], WriteOptions::default())
            .unwrap();
    }
    fs.create(ROOT, name("behind"), &NewNode::file()).unwrap();
    fs.sync_all().unwrap();
    // The first batch says that the volume uses such relocations, the second begins this one.
    store.cut_power_after(2);
    let grow = SetAttr {
        size: Some(1 << 40),
        ..SetAttr::default()
    };
    assert!(fs.set_attr(ino, &grow).is_err());
    let store = Arc::new(store.after_power_cut(|_| 0));
    assert_eq!(check(&store).relocating, 1);
    // The first byte of the new place.
    let at = ByteAddr::new(TABLES[1], ino.0 * 128 + 96);
    store.poke(at, |byte| byte ^ 1);
    let mapped = store.mapped();
    let fs = Fs::mount_with(Arc::clone(&store), &tight()).unwrap();
    assert_eq!(fs.lookup_path("/f").unwrap_err().errno(), libc_eio());
    for n in 0..50 {
        let label = format!("new{n}");
        let new = fs.create(ROOT, name(&label), &NewNode::file()).unwrap().ino;
        let range = fs.file_extent(new).unwrap().range;
        assert!(!mapped.iter().any(|&lba| range.contains(lba)), "{range:?}");
        fs.set_attr(new, &grow).unwrap();
        let range = fs.file_extent(new).unwrap().range;
        assert!(!mapped.iter().any(|&lba| range.contains(lba)), "{range:?}");
    }
    fs.sync_all().unwrap();
    let left = store.mapped();
    assert!(mapped.iter().all(|lba| left.contains(lba)));
    // Should the byte be what it was again, so is the file.
    store.poke(at, |byte| byte ^ 1);
    let fs = Fs::mount_with(Arc::clone(&store), &tight()).unwrap();
    assert_eq!(fs.attr(ino).unwrap().grains, 60);
    assert!(check(&store).is_clean());
}

/// I7: any single metadata grain may be garbage, and the volume can be mounted and its names listed where they are
/// whole.
#[test]
fn any_grain_of_metadata_may_be_lost() {
    let base = prepare();
    let metadata = base
        .mapped()
        .into_iter()
        .filter(|lba| lba.0 < 1 << 32 || lba.0 >= XATTRS.0);
    for lba in metadata {
        let store = Arc::new(base.duplicate());
        store.write(ByteAddr::new(lba, 0), &[0xa5; 4096]).unwrap();
        let fs = Fs::mount(Arc::clone(&store)).unwrap();
        let labels: Vec<String> = names(&fs, ROOT)
            .unwrap()
            .into_iter()
            .map(|entry| entry.0)
            .collect();
        assert_eq!(labels, ["d", "empty", "l"], "without {lba}");
        assert!(!check(&store).is_clean());
        // Whatever is lost of the root directory, it can be used: its attributes are whole, or gone with their grain.
        let found = fs.xattr(ROOT, name("user.a"));
        if lba == XATTRS.offset(ROOT.0) {
            assert!(found.is_err());
        } else {
            assert_eq!(found.as_deref(), Ok(&b"7"[..]), "without {lba}");
            fs.create(ROOT, name("new"), &NewNode::file()).unwrap();
        }
    }
}

/// Either root record is enough.
#[test]
fn the_root_record_has_a_copy() {
    for lba in [Lba(0), Lba(1)] {
        let store = Arc::new(prepare());
        store.poke(ByteAddr::new(lba, 3), |_| 0);
        assert_eq!(check(&store).problems.len(), 1);
        assert!(
            Fs::mount(Arc::clone(&store))
                .unwrap()
                .lookup_path("/d/a")
                .is_ok()
        );
    }
    let store = Arc::new(MemStore::new(100));
    assert!(Fs::mount(Arc::clone(&store)).is_err());
    assert!(!check(&store).is_clean());
}

/// Without a record for it, the number of the root directory is not free: it has a place, and a record that is made up.
#[test]
fn the_number_of_the_root_is_never_free() {
    let store = Arc::new(prepare());
    let table = LbaRange::new(TABLES[0], 1);
    let mut grain = vec![0; 4096];
    store
        .read(ByteAddr::new(table.start, 0), &mut grain)
        .unwrap();
    grain[32..64].fill(0);
    store.write(ByteAddr::new(table.start, 0), &grain).unwrap();
    let fs = Fs::mount(Arc::clone(&store)).unwrap();
    for n in 0..3 {
        let new = fs.create(ROOT, name(&format!("new{n}")), &NewNode::file());
        assert_ne!(new.unwrap().ino, ROOT);
    }
    assert_eq!(names(&fs, ROOT).unwrap().len(), 6);
}

/// A root directory that is marked to be freed is not, nor is one that claims to be a file believed.
#[test]
fn the_root_stays_a_directory() {
    for (byte, value) in [(27, 1), (25, 0x81)] {
        let store = Arc::new(prepare());
        craft_record(&store, ROOT, |record| record[byte] = value);
        assert!(!check(&store).is_clean());
        let fs = Fs::mount(Arc::clone(&store)).unwrap();
        fs.open(ROOT).unwrap();
        fs.close(ROOT).unwrap();
        fs.create(ROOT, name("new"), &NewNode::file()).unwrap();
        assert_eq!(names(&fs, ROOT).unwrap().len(), 4);
        drop(fs);
        repair(&store, Care::Full).unwrap();
        assert!(check(&store).is_clean());
        let fs = Fs::mount(Arc::clone(&store)).unwrap();
        assert_eq!(names(&fs, ROOT).unwrap().len(), 4);
    }
}

/// A table that claims to be as long as can be takes neither memory nor time for that.
#[test]
fn a_long_table_is_not_a_large_one() {
    let store = Arc::new(prepare());
    store
        .write(
            ByteAddr::new(TABLES[0].offset((1 << 25) - 1), 0),
            &[1; 4096],
        )
        .unwrap();
    // The record of the table itself; now the last grain that is mapped counts.
    store.poke(ByteAddr::new(TABLES[0], 3), |byte| byte ^ 1);
    check(&store);
    let fs = Fs::mount(Arc::clone(&store)).unwrap();
    fs.create(ROOT, name("new"), &NewNode::file()).unwrap();
}

/// An entry that leads to its own directory is an error: looking for it, removing and renaming it all end.
#[test]
fn a_directory_in_itself() {
    let store = Arc::new(prepare());
    let fs = Fs::mount(Arc::clone(&store)).unwrap();
    let dir = fs.lookup_path("/d").unwrap();
    drop(fs);
    // In the root directory, the entry of `d`, which is the first.
    let at = ByteAddr::new(Lba(1 << 32), 0);
    let mut entry = [0; 32];
    store.read(at, &mut entry).unwrap();
    assert_eq!(entry[..8], dir.0.to_le_bytes());
    entry[..8].copy_from_slice(&ROOT.0.to_le_bytes());
    let sealed = [&ROOT.0.to_le_bytes(), &entry[..12], &entry[16..17]].concat();
    entry[12..16].copy_from_slice(&crc32fast::hash(&sealed).to_le_bytes());
    store.write(at, &entry).unwrap();
    assert!(!check(&store).is_clean());
    let fs = Fs::mount(Arc::clone(&store)).unwrap();
    let (d, e) = (name("d"), name("e"));
    let replace = contigfs::RenameMode::Replace;
    assert_eq!(fs.lookup(ROOT, d).unwrap_err().errno(), libc_eio());
    assert_eq!(fs.rmdir(ROOT, d).unwrap_err().errno(), libc_eio());
    let renamed = fs.rename(ROOT, d, ROOT, e, replace);
    assert_eq!(renamed.unwrap_err().errno(), libc_eio());
    let replaced = fs.rename(ROOT, name("empty"), ROOT, d, replace);
    assert_eq!(replaced.unwrap_err().errno(), libc_eio());
}

/// A file that has its names and is marked to be freed all the same is found, and kept: by a mount, by who closes it, and by
/// a repair.
#[test]
fn a_named_orphan_is_kept() {
    let store = Arc::new(prepare());
    let fs = Fs::mount(Arc::clone(&store)).unwrap();
    let ino = fs.lookup_path("/d/b").unwrap();
    drop(fs);
    craft_record(&store, ino, |record| record[27] |= 1);
    let found = check(&store).problems;
    assert_eq!(found, [contigfs::Problem::NamedOrphan { ino }]);
    let used = Arc::new(store.duplicate());
    for _ in 0..2 {
        let fs = Fs::mount(Arc::clone(&used)).unwrap();
        fs.open(ino).unwrap();
        fs.close(ino).unwrap();
        assert_eq!(content(&fs, fs.lookup_path("/d/b").unwrap()).unwrap(), b"b");
    }
    let report = repair(&store, Care::Safe).unwrap();
    assert_eq!(report.repaired, found);
    assert!(check(&store).is_clean());
    let fs = Fs::mount(Arc::clone(&store)).unwrap();
    assert!(fs.lookup_path("/d/b").is_ok());
}

/// A grain of a directory without entries is found and given back; else the directory would end before it one day.
#[test]
fn an_empty_grain_of_a_directory_goes() {
    let store = Arc::new(prepare());
    let second = Lba((1 << 32) + 1);
    store.write(ByteAddr::new(second, 0), &[0; 4096]).unwrap();
    let found = check(&store).problems;
    assert_eq!(found, [contigfs::Problem::DirectorySize { ino: ROOT }]);
    repair(&store, Care::Safe).unwrap();
    assert!(check(&store).is_clean());
    assert_eq!(store.next_mapped(LbaRange::new(second, 1)), None);
}

/// `EIO`, without a dependency for one number.
fn libc_eio() -> i32 {
    5
}
