//! Repairs of extended attributes and access control lists.

use crate::repaired::{ROOT, XATTRS, content, cured, file, mount, prepare, put_back, twice};
use contigfs::{ByteAddr, Care, SetAttr, XattrMode, check};
use support::{acl, name};

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
