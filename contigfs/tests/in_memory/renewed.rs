//! What the media have lost of the inode table and of directories while memory knows it, written again.

use crate::repaired::{COLD, HOT, MemFs, ROOT_DIR, content, cured, file, mount, prepare};
use contigfs::{Care, FsError, SetAttr, StoreError, SyncScope, WriteOptions, check};
use ftl::Lba;
use support::name;

/// Everything that `prepare` makes is known.
fn know_all(fs: &MemFs) {
    for path in ["/d/a", "/d/b", "/e", "/keep"] {
        fs.attr(fs.lookup_path(path).unwrap()).unwrap();
    }
}

/// With any grain of metadata lost, nothing in it can be changed until it is written again; then all is as if nothing had been lost,
/// for who mounts it later, too. Without that he would not find what the mount before had in memory.
#[test]
fn what_is_known_is_not_lost() {
    let all: [&[Lba]; 4] = [&[HOT], &[COLD], &[ROOT_DIR], &[HOT, COLD, ROOT_DIR]];
    for lost in all {
        let (store, fs) = prepare();
        know_all(&fs);
        assert_eq!(fs.renew_what_is_known(), Ok(0), "nothing is lost");
        let keep = fs.lookup_path("/keep").unwrap();
        let second = fs.lookup_path("/d/b").unwrap();
        lost.iter().for_each(|&lba| store.damage(lba));
        let tried = match lost.contains(&ROOT_DIR) {
            true => fs
                .link(second, contigfs::InodeNo::ROOT, name("too"))
                .map(drop),
            false => longer(&fs, keep),
        };
        let is_damage = matches!(tried, Err(FsError::Store(StoreError::Damaged { .. })));
        assert!(is_damage, "{lost:?}: {tried:?}");
        assert_eq!(fs.renew_what_is_known(), Ok(lost.len()), "{lost:?}");
        assert_eq!(fs.renew_what_is_known(), Ok(0), "{lost:?}");
        longer(&fs, keep).unwrap();
        file(&fs, contigfs::InodeNo::ROOT, "new");
        drop(fs);
        assert!(check(&store).is_clean(), "{lost:?}: {:?}", check(&store));
        let fs = mount(&store);
        for (path, is) in [
            ("/d/a", "a"),
            ("/d/b", "b"),
            ("/keep", "keep and more"),
            ("/new", "new"),
        ] {
            assert_eq!(content(&fs, path), is, "{lost:?}");
        }
    }
}

fn longer(fs: &MemFs, ino: contigfs::InodeNo) -> Result<(), FsError> {
    fs.write(ino, 4, b" and more", WriteOptions::default())?;
    fs.fsync(ino, SyncScope::All)
}

/// What is not known of such a grain is lost, and said to be: who mounts it later frees nothing of it, and a repair finds the data.
#[test]
fn what_is_not_known_is_said_to_be_lost() {
    let (store, fs) = prepare();
    let a = fs.lookup_path("/d/a").unwrap();
    drop(fs);
    let fs = mount(&store);
    let keep = fs.lookup_path("/keep").unwrap();
    let owner = SetAttr {
        uid: Some(7),
        ..SetAttr::default()
    };
    fs.set_attr(keep, &owner).unwrap();
    store.damage(HOT);
    assert_eq!(fs.renew_what_is_known(), Ok(1));
    drop(fs);
    let fs = mount(&store);
    assert_eq!(content(&fs, "/keep"), "keep");
    assert_eq!(fs.attr(keep).unwrap().uid, 7);
    assert!(matches!(fs.attr(a), Err(FsError::Corrupt(_))));
    drop(fs);
    cured(&store, Care::Full);
    let fs = mount(&store);
    assert_eq!(fs.attr(keep).unwrap().uid, 7);
    // Its name is in a directory that was found by its entries.
    assert!(check(&store).is_clean());
}

/// What was lost before the file system was mounted stays for a repair, which knows more of it than memory.
#[test]
fn what_was_lost_before_stays() {
    let (store, fs) = prepare();
    drop(fs);
    store.damage(HOT);
    let fs = mount(&store);
    let _ = fs.lookup_path("/keep");
    assert_eq!(fs.renew_what_is_known(), Ok(0));
}
