//! Repairs: a volume is damaged through its store, put in order, and judged by the checker. Nothing else is lost, and
//! repairing again changes nothing. Here names, links, and the records of directories and files; the modules `repair_*` have the
//! rest.

use crate::repaired::{
    COLD, HOT, ROOT, ROOT_DIR, XATTRS, content, cured, file, image, mount, prepare, put_back, twice,
};
use contigfs::{
    BlockStore, ByteAddr, Care, FileKind, MemStore, NewNode, RenameMode, SetAttr, XattrMode, check,
};
use ftl::{Lba, LbaRange};
use support::{name, names};

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
