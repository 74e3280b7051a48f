//! Repairs of what the media have lost, or do not give.

use std::sync::Arc;

use crate::repaired::{
    COLD, GRAIN, HOT, ROOT, ROOT_DIR, XATTRS, content, cured, image, mount, prepare, put_back,
};
use contigfs::{
    Care, FormatOptions, Fs, MemStore, NewNode, Problem, WriteOptions, XattrMode, check, repair,
};
use ftl::Lba;
use support::name;

/// Grains that the media have lost, whatever was in them: what lay in them is given up, and the rest is put in order.
#[test]
fn grains_lost_by_the_media() {
    // What is lost, whether that can be repaired, and where the file is then.
    let cases: [(&[Lba], bool, &str); 10] = [
        (&[Lba(0)], true, "/d/a"),
        (&[Lba(1)], true, "/d/a"),
        (&[HOT], true, "/d/a"),
        (&[COLD], true, "/d/a"),
        (&[ROOT_DIR], true, "/lost+found/#2/a"),
        (&[XATTRS.offset(3)], true, "/d/a"),
        // Both root records, which are written together, alone and with what else is.
        (&[Lba(0), Lba(1)], true, "/d/a"),
        (&[Lba(0), Lba(1), HOT], true, "/d/a"),
        (&[Lba(0), Lba(1), COLD, ROOT_DIR], true, "/lost+found/#2/a"),
        // Nothing says that there is a file system.
        (&[Lba(0), Lba(1), HOT, ROOT_DIR], false, ""),
    ];
    for (lbas, curable, path) in cases {
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
        for lba in lbas {
            let Some(ftl::Checked::Data { pba, .. }) = map.get(lba) else {
                panic!("{lba} is not on media");
            };
            let at = pba.0 as usize * GRAIN;
            device.image_mut()[at..at + 100].fill(0x5a);
        }

        let volume = Arc::new(open(device));
        assert!(!check(&volume).is_clean(), "{lbas:?}");
        let report = repair(&volume, Care::Full).unwrap();
        assert_eq!(report.after.is_clean(), curable, "{lbas:?}: {report:?}");
        assert!(repair(&volume, Care::Full).unwrap().repaired.is_empty());
        if curable {
            let fs = Fs::mount(Arc::clone(&volume)).unwrap();
            let ino = fs.lookup_path(path).unwrap();
            let mut byte = [0];
            assert_eq!(fs.read(ino, 0, &mut byte), Ok(1), "{lbas:?}");
            assert_eq!(&byte, b"a", "{lbas:?}");
            drop(fs);
            volume.shutdown().unwrap();
            let mut device = Arc::into_inner(volume).unwrap().into_device();
            assert!(ftl::check(&mut device).unwrap().is_sound(), "{lbas:?}");
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
