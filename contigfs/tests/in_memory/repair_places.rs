//! Repairs of files that claim the same place, or whose place nobody knows.

use crate::repaired::{
    COLD, GRAIN, HOT, ROOT, content, cured, file, lose_place, mount, prepare, twice,
};
use contigfs::{BlockStore, ByteAddr, Care, FallocMode, FileKind, NewNode, SetAttr, WriteOptions};
use ftl::LbaRange;
use support::records::craft_record;
use support::{name, names};

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
