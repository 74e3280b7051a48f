//! Extended attributes and access control lists at the library: what Linux says of them, their cost, and that they go
//! with their inode.

use std::sync::Arc;

use contigfs::{
    BlockStore, ByteAddr, CheckReport, FileKind, Fs, FsError, InodeNo, MemStore, NewNode, Problem,
    SetAttr, StoreError, WriteOptions, XattrMode, check,
};
use ftl::{AtomicBatch, GRAIN_BYTES, Lba, LbaRange};
use support::{acl, assert_clean, fresh, name};

type TestFs = Fs<Arc<MemStore>>;

const ROOT: InodeNo = InodeNo::ROOT;
const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";
/// Where the first grains of attributes lie, by inode number; and the slots for the rest.
const HEADS: Lba = Lba((1 << 52) - (1 << 39));
const RESTS: Lba = Lba((1 << 52) - (1 << 38));

fn file(fs: &TestFs, label: &str) -> InodeNo {
    fs.create(ROOT, name(label), &NewNode::file()).unwrap().ino
}

fn set(fs: &TestFs, ino: InodeNo, key: &str, value: &[u8]) -> Result<(), FsError> {
    fs.set_xattr(ino, name(key), value, XattrMode::Set)
}

fn get(fs: &TestFs, ino: InodeNo, key: &str) -> Result<Vec<u8>, FsError> {
    fs.xattr(ino, name(key))
}

fn list(fs: &TestFs, ino: InodeNo) -> Vec<String> {
    let names = fs.xattrs(ino).unwrap();
    names
        .into_iter()
        .map(|n| n.into_string().unwrap())
        .collect()
}

fn remount(store: &Arc<MemStore>) -> TestFs {
    Fs::mount(Arc::new(store.after_power_cut(|_| 0))).unwrap()
}

/// setxattr(2) and removexattr(2): create, replace, sizes and names; each change durable on return (I9).
#[test]
fn set_get_list_remove() {
    let (store, fs) = fresh(1000);
    let ino = file(&fs, "f");
    let with = |mode, value: &[u8]| fs.set_xattr(ino, name("user.a"), value, mode);
    assert_eq!(get(&fs, ino, "user.a"), Err(FsError::NoXattr));
    assert_eq!(with(XattrMode::Replace, b"x"), Err(FsError::NoXattr));
    with(XattrMode::Create, b"one").unwrap();
    assert_eq!(with(XattrMode::Create, b"x"), Err(FsError::Exists));
    with(XattrMode::Replace, b"two").unwrap();
    set(&fs, ino, "user.empty", b"").unwrap();
    set(&fs, ino, "trusted.t", &[0, 255]).unwrap();
    let check_all = |fs: &TestFs| {
        assert_eq!(get(fs, ino, "user.a").unwrap(), b"two");
        assert_eq!(get(fs, ino, "user.empty").unwrap(), b"");
        assert_eq!(get(fs, ino, "trusted.t").unwrap(), [0, 255]);
        assert_eq!(list(fs, ino), ["user.a", "user.empty", "trusted.t"]);
    };
    check_all(&fs);
    check_all(&remount(&store));
    assert_clean(&store);
    fs.remove_xattr(ino, name("user.a")).unwrap();
    assert_eq!(fs.remove_xattr(ino, name("user.a")), Err(FsError::NoXattr));
    assert_eq!(list(&remount(&store), ino), ["user.empty", "trusted.t"]);
    let long = format!("user.{}", "n".repeat(251));
    assert_eq!(set(&fs, ino, &long, b""), Err(FsError::XattrName));
    assert_eq!(set(&fs, ino, "", b""), Err(FsError::XattrName));
    assert_eq!(set(&fs, ino, "user.", b""), Err(FsError::Invalid));
    assert_eq!(set(&fs, ino, "other.x", b""), Err(FsError::NotSupported));
}

/// One small attribute costs one grain, which unlink gives back; the time of change moves.
#[test]
fn cost_of_one_attribute() {
    let (store, fs) = fresh(1000);
    file(&fs, "stays");
    let ino = file(&fs, "f");
    let before = (fs.statfs().grains_free, fs.attr(ino).unwrap());
    set(
        &fs,
        ino,
        "security.selinux",
        b"unconfined_u:object_r:file_t:s0",
    )
    .unwrap();
    let after = fs.attr(ino).unwrap();
    assert_eq!(fs.statfs().grains_free, before.0 - 1);
    assert_eq!((before.1.grains, after.grains), (0, 1));
    assert!(after.ctime > before.1.ctime && after.mtime == before.1.mtime);
    fs.unlink(ROOT, name("f")).unwrap();
    assert_eq!(fs.statfs().grains_free, before.0);
    // The number is used again, the attributes are not.
    assert_eq!(file(&fs, "g"), ino);
    assert_eq!(list(&fs, ino), [""; 0]);
    assert_clean(&store);
}

/// Values to 64 KiB, names and all together to their limits; shrinking gives the grains back.
#[test]
fn limits() {
    let (store, fs) = fresh(1000);
    file(&fs, "stays");
    let ino = file(&fs, "f");
    let free = fs.statfs().grains_free;
    assert_eq!(
        set(&fs, ino, "user.a", &[1; 65_537]),
        Err(FsError::XattrTooLong)
    );
    for (key, byte) in [("user.a", 1), ("user.b", 2)] {
        set(&fs, ino, key, &[byte; 65_536]).unwrap();
    }
    assert_eq!(set(&fs, ino, "user.c", &[3; 65_536]), Err(FsError::NoSpace));
    let fs = remount(&store);
    assert_eq!(get(&fs, ino, "user.b").unwrap(), [2; 65_536]);
    assert_eq!(list(&fs, ino), ["user.a", "user.b"]);
    assert_eq!(fs.statfs().grains_free, free - 33);
    set(&fs, ino, "user.a", b"small").unwrap();
    assert_eq!(get(&fs, ino, "user.b").unwrap(), [2; 65_536]);
    assert_eq!(fs.statfs().grains_free, free - 17);
    assert_clean(fs.store());
    fs.remove_xattr(ino, name("user.b")).unwrap();
    fs.remove_xattr(ino, name("user.a")).unwrap();
    assert_eq!(fs.statfs().grains_free, free);
    let many = |n: usize| set(&fs, ino, &format!("user.{n:0>250}"), b"");
    let made = (0..1000).take_while(|&n| many(n).is_ok()).count();
    assert_eq!(made, 65_536 / 256);
    assert_eq!(many(made), Err(FsError::NoSpace));
    fs.unlink(ROOT, name("f")).unwrap();
    assert_eq!(fs.statfs().grains_free, free);
    assert_clean(fs.store());
}

/// A full volume refuses what would need a grain and changes nothing; taking attributes away needs none.
#[test]
fn a_full_volume() {
    let (store, fs) = fresh(40);
    let (one, two) = (file(&fs, "one"), file(&fs, "two"));
    set(&fs, one, "user.a", &[1; 5000]).unwrap();
    let fill = file(&fs, "fill");
    while fs
        .write(
            fill,
            fs.attr(fill).unwrap().size,
            &[1; 4096],
            WriteOptions::default(),
        )
        .is_ok()
    {}
    assert_eq!(set(&fs, two, "user.a", b"x"), Err(FsError::NoSpace));
    assert_eq!(set(&fs, one, "user.a", &[2; 9000]), Err(FsError::NoSpace));
    assert_eq!(get(&fs, one, "user.a").unwrap(), [1; 5000]);
    assert_eq!(list(&fs, two), [""; 0]);
    fs.remove_xattr(one, name("user.a")).unwrap();
    set(&fs, two, "user.a", b"x").unwrap();
    assert_clean(&store);
}

/// Linux: `user.` on files and directories only, lists not on links, default lists on directories only.
#[test]
fn kinds_of_files() {
    let (_, fs) = fresh(1000);
    let link = fs.symlink(ROOT, name("l"), name("x"), 0, 0).unwrap().ino;
    let fifo = NewNode {
        kind: FileKind::Fifo,
        ..NewNode::file()
    };
    let fifo = fs.create(ROOT, name("p"), &fifo).unwrap().ino;
    for ino in [link, fifo] {
        assert_eq!(set(&fs, ino, "user.a", b""), Err(FsError::NotPermitted));
        set(&fs, ino, "trusted.a", b"v").unwrap();
        assert_eq!(get(&fs, ino, "trusted.a").unwrap(), b"v");
    }
    assert_eq!(
        set(&fs, link, ACCESS, &acl::extended()),
        Err(FsError::NotSupported)
    );
    assert_eq!(
        set(&fs, fifo, DEFAULT, &acl::extended()),
        Err(FsError::NotPermitted)
    );
    set(&fs, fifo, ACCESS, &acl::extended()).unwrap();
    assert_eq!(set(&fs, ROOT, DEFAULT, b"nonsense"), Err(FsError::Invalid));
}

/// acl(5): the mode follows the list, the list follows `chmod`, and a list that says nothing is not kept.
#[test]
fn lists_and_modes() {
    let (store, fs) = fresh(1000);
    let ino = file(&fs, "f");
    let mode = |fs: &TestFs| fs.attr(ino).unwrap().perm();
    let chmod = |perm| {
        let set = SetAttr {
            perm: Some(perm),
            ..SetAttr::default()
        };
        fs.set_attr(ino, &set).unwrap();
    };
    chmod(0o4644);
    set(&fs, ino, ACCESS, &acl::extended()).unwrap();
    assert_eq!(mode(&fs), 0o4770);
    chmod(0o641);
    let changed = acl::bytes(&[
        (1, 6, !0),
        (2, 7, 7),
        (4, 5, !0),
        (0x10, 4, !0),
        (0x20, 1, !0),
    ]);
    let fs = remount(&store);
    assert_eq!(get(&fs, ino, ACCESS).unwrap(), changed);
    assert_eq!(mode(&fs), 0o641);
    let minimal = acl::bytes(&[(1, 7, !0), (4, 1, !0), (0x20, 0, !0)]);
    set(&fs, ino, ACCESS, &minimal).unwrap();
    assert_eq!((mode(&fs), list(&fs, ino)), (0o710, vec![]));
    fs.remove_xattr(ino, name(ACCESS)).unwrap();
    set(&fs, ino, ACCESS, &acl::extended()).unwrap();
    fs.remove_xattr(ino, name(ACCESS)).unwrap();
    assert_eq!((mode(&fs), list(&fs, ino)), (0o770, vec![]));
    assert_clean(fs.store());
}

/// A default list decides about mode and lists of what is made below, in one batch with it; the umask does not.
#[test]
fn lists_are_inherited() {
    let (store, fs) = fresh(1000);
    let node = |kind, mode| NewNode {
        kind,
        mode,
        umask: 0o077,
        ..NewNode::file()
    };
    let plain = fs
        .create(ROOT, name("plain"), &node(FileKind::File, 0o666))
        .unwrap();
    assert_eq!(plain.perm(), 0o600);
    set(&fs, ROOT, DEFAULT, &acl::extended()).unwrap();
    let calls = store.calls();
    let dir = fs
        .create(ROOT, name("d"), &node(FileKind::Directory, 0o777))
        .unwrap();
    assert_eq!(store.calls(), calls + 1, "one batch");
    let below = fs
        .create(dir.ino, name("f"), &node(FileKind::File, 0o666))
        .unwrap();
    let link = fs.symlink(dir.ino, name("l"), name("x"), 0, 0).unwrap();
    let fs = remount(&store);
    assert_eq!(
        (dir.perm(), below.perm(), link.perm()),
        (0o770, 0o660, 0o777)
    );
    assert_eq!(get(&fs, dir.ino, DEFAULT).unwrap(), acl::extended());
    assert_eq!(get(&fs, dir.ino, ACCESS).unwrap(), acl::extended());
    let masked = acl::bytes(&[
        (1, 6, !0),
        (2, 7, 7),
        (4, 5, !0),
        (0x10, 6, !0),
        (0x20, 0, !0),
    ]);
    assert_eq!(get(&fs, below.ino, ACCESS).unwrap(), masked);
    assert_eq!(list(&fs, below.ino), [ACCESS]);
    assert_eq!(list(&fs, link.ino), [""; 0]);
    assert_clean(fs.store());
}

/// capabilities(7): what a program file may do ends with any change of content, size or owner.
#[test]
fn capabilities_end_with_a_change() {
    let changes: [fn(&TestFs, InodeNo); 3] = [
        |fs, ino| {
            fs.write(ino, 0, b"x", WriteOptions::default()).unwrap();
        },
        |fs, ino| {
            let set = SetAttr {
                size: Some(1),
                ..SetAttr::default()
            };
            fs.set_attr(ino, &set).unwrap();
        },
        |fs, ino| {
            let set = SetAttr {
                uid: Some(1),
                ..SetAttr::default()
            };
            fs.set_attr(ino, &set).unwrap();
        },
    ];
    for change in changes {
        let (store, fs) = fresh(1000);
        let ino = file(&fs, "f");
        set(&fs, ino, "security.capability", &[1; 20]).unwrap();
        set(&fs, ino, "user.kept", b"").unwrap();
        change(&fs, ino);
        assert_eq!(list(&fs, ino), ["user.kept"]);
        assert_eq!(list(&remount(&store), ino), ["user.kept"]);
    }
}

/// Those of a directory stay with a new owner, as in Linux.
#[test]
fn capabilities_of_directories_stay() {
    let (_, fs) = fresh(1000);
    let dir = fs.create(ROOT, name("d"), &NewNode::directory()).unwrap();
    set(&fs, dir.ino, "security.capability", &[1; 20]).unwrap();
    let owner = SetAttr {
        uid: Some(1),
        ..SetAttr::default()
    };
    fs.set_attr(dir.ino, &owner).unwrap();
    assert_eq!(list(&fs, dir.ino), ["security.capability"]);
}

/// An open file without names keeps its attributes to its last close; then their grains are free.
#[test]
fn unlinked_but_open() {
    let (store, fs) = fresh(1000);
    let free = fs.statfs().grains_free;
    let ino = file(&fs, "f");
    set(&fs, ino, "user.a", b"before").unwrap();
    fs.open(ino).unwrap();
    fs.unlink(ROOT, name("f")).unwrap();
    assert_eq!(get(&fs, ino, "user.a").unwrap(), b"before");
    set(&fs, ino, "user.b", &[7; 10_000]).unwrap();
    // A power cut frees them with the file.
    let cut = remount(&store);
    assert_eq!(cut.statfs().grains_free, free);
    assert_clean(cut.store());
    fs.close(ino).unwrap();
    assert_eq!(fs.statfs().grains_free, free);
    assert_eq!(get(&fs, ino, "user.a"), Err(FsError::NotFound));
    assert_clean(&store);
}

/// A volume is of version 1 until the first attribute; nothing changes for volumes that have none.
#[test]
fn versions() {
    let (store, fs) = fresh(1000);
    let version = || {
        [Lba(0), Lba(1)].map(|lba| {
            let mut bytes = [0; 4];
            store.read(ByteAddr::new(lba, 8), &mut bytes).unwrap();
            u32::from_le_bytes(bytes)
        })
    };
    let ino = file(&fs, "f");
    assert_eq!(fs.remove_xattr(ino, name("user.a")), Err(FsError::NoXattr));
    set(
        &fs,
        ino,
        ACCESS,
        &acl::bytes(&[(1, 6, !0), (4, 4, !0), (0x20, 4, !0)]),
    )
    .unwrap();
    assert_eq!(version(), [1, 1]);
    set(&fs, ino, "user.a", b"").unwrap();
    assert_eq!(version(), [2, 2]);
    assert_eq!(list(&remount(&store), ino), ["user.a"]);
}

/// A file of an old volume that lies where attributes would stays where it is; the volume then has no attributes.
#[test]
fn a_file_in_the_place_of_attributes() {
    let (store, fs) = fresh(1000);
    // The three largest files there can be take the rest of the space, as the first version let them.
    let huge = SetAttr {
        size: Some(1 << 62),
        ..SetAttr::default()
    };
    let (first, second) = (file(&fs, "1"), file(&fs, "2"));
    fs.set_attr(first, &huge).unwrap();
    fs.set_attr(second, &huge).unwrap();
    assert_eq!(fs.set_attr(file(&fs, "3"), &huge), Err(FsError::NoSpace));
    let ino = first;
    let range = fs.file_extent(ino).unwrap().range;
    drop(fs);
    let moved = LbaRange::new(Lba(3 << 50), range.count);
    let hot = ByteAddr::new(Lba(1 << 26), ino.0 * 32);
    let mut record = [0; 32];
    store.read(hot, &mut record).unwrap();
    record[..8].copy_from_slice(&moved.start.0.to_le_bytes());
    let crc = crc32fast::hash(&[&ino.0.to_le_bytes()[..], &record[..28]].concat());
    record[28..].copy_from_slice(&crc.to_le_bytes());
    store.write(hot, &record).unwrap();
    store.sync(LbaRange::ALL).unwrap();
    let fs = Fs::mount(Arc::clone(&store)).unwrap();
    assert_clean(&store);
    let end = (1 << 62) - 10;
    fs.write(ino, end, b"here", WriteOptions::default())
        .unwrap();
    fs.sync_all().unwrap();
    let fs = remount(&store);
    let mut bytes = [0; 4];
    fs.read(ino, end, &mut bytes).unwrap();
    assert_eq!(&bytes, b"here");
    assert_eq!(set(&fs, second, "user.a", b""), Err(FsError::NotSupported));
    assert_eq!(list(&fs, second), [""; 0]);
    // Once the file is gone, the next mount has attributes.
    fs.unlink(ROOT, name("1")).unwrap();
    let fs = Fs::mount(Arc::clone(fs.store())).unwrap();
    set(&fs, second, "user.a", b"").unwrap();
    assert_clean(fs.store());
}

fn problems(store: &Arc<MemStore>) -> Vec<Problem> {
    let CheckReport { problems, .. } = check(store);
    problems
}

/// I7, M5: damaged attributes cost the attributes of one inode, are named by the checker, and go when one is removed.
#[test]
fn damage() {
    let (store, fs) = fresh(1000);
    let (bad, good) = (file(&fs, "bad"), file(&fs, "good"));
    set(&fs, bad, "user.a", b"value").unwrap();
    set(&fs, good, "user.a", b"value").unwrap();
    drop(fs);
    store.poke(ByteAddr::new(HEADS.offset(bad.0), 26), |byte| byte ^ 1);
    let fs = Fs::mount(Arc::clone(&store)).unwrap();
    assert!(matches!(get(&fs, bad, "user.a"), Err(FsError::Corrupt(_))));
    assert!(matches!(
        set(&fs, bad, "user.b", b""),
        Err(FsError::Corrupt(_))
    ));
    assert_eq!(get(&fs, good, "user.a").unwrap(), b"value");
    fs.write(bad, 0, b"content", WriteOptions::default())
        .unwrap();
    let truncated = SetAttr {
        size: Some(3),
        ..SetAttr::default()
    };
    assert_eq!(fs.set_attr(bad, &truncated).unwrap().size, 3);
    let changed = SetAttr {
        perm: Some(0o600),
        ..SetAttr::default()
    };
    assert!(matches!(
        fs.set_attr(bad, &changed),
        Err(FsError::Corrupt(_))
    ));
    assert!(matches!(problems(&store)[..], [Problem::Xattrs { ino, .. }] if ino == bad));
    fs.remove_xattr(bad, name("user.anything")).unwrap();
    assert_eq!(list(&fs, bad), [""; 0]);
    set(&fs, bad, "user.b", b"").unwrap();
    assert_clean(&store);
}

/// What the device gives an error for may be whole: removing an attribute then fails, and takes none of the others.
#[test]
fn an_error_of_the_device() {
    let (store, fs) = fresh(1000);
    let ino = file(&fs, "f");
    set(&fs, ino, "user.a", b"value").unwrap();
    set(&fs, ino, "user.b", b"other").unwrap();
    drop(fs);
    let fs = Fs::mount(Arc::clone(&store)).unwrap();
    let lba = HEADS.offset(ino.0);
    store.set_unreadable(lba, true);
    let unreadable = StoreError::Unreadable { lba };
    let removed = fs.remove_xattr(ino, name("user.b"));
    assert_eq!(removed, Err(FsError::Store(unreadable)));
    store.set_unreadable(lba, false);
    assert_eq!(list(&fs, ino), ["user.a", "user.b"]);
    fs.remove_xattr(ino, name("user.b")).unwrap();
    assert_eq!(get(&fs, ino, "user.a").unwrap(), b"value");
}

/// The checker notices a mode that does not say what the access list says.
#[test]
fn a_mode_that_does_not_fit() {
    let (store, fs) = fresh(1000);
    let ino = file(&fs, "f");
    set(&fs, ino, ACCESS, &acl::extended()).unwrap();
    drop(fs);
    assert_clean(&store);
    // The permission bits in the hot record, with a good checksum.
    let hot = ByteAddr::new(Lba(1 << 26), ino.0 * 32);
    let mut record = [0; 32];
    store.read(hot, &mut record).unwrap();
    record[24] ^= 0o001;
    let crc = crc32fast::hash(&[&ino.0.to_le_bytes()[..], &record[..28]].concat());
    record[28..].copy_from_slice(&crc.to_le_bytes());
    store.write(hot, &record).unwrap();
    assert_eq!(problems(&store), [Problem::AccessList { ino }]);
}

/// The checker finds attributes of inodes that do not exist, and grains behind the end of some.
#[test]
fn leaks() {
    let (store, fs) = fresh(1000);
    let ino = file(&fs, "f");
    set(&fs, ino, "user.a", b"value").unwrap();
    let spots = [
        HEADS.offset(99),
        RESTS.offset(99 * 64),
        RESTS.offset(ino.0 * 64 + 3),
    ];
    for lba in spots {
        let mut batch = AtomicBatch::new();
        batch.patch(lba, 0, vec![1; GRAIN_BYTES]);
        let store = Arc::new(store.duplicate());
        store.commit(batch).unwrap();
        let found = problems(&store);
        assert!(
            matches!(found[..], [Problem::XattrsLeft { lba: found, .. }] if found == lba),
            "{found:?}"
        );
    }
}
