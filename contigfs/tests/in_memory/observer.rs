//! What those hear who gave peers access to a file: enough to follow it, whatever happens to it (I9, I11).

use std::sync::{Arc, Mutex};

use contigfs::{
    BlockStore, CopyRange, Extent, ExtentObserver, FallocMode, Fs, FsError, InodeNo, MemStore,
    NewNode, SetAttr, Settled, WriteOptions, XattrMode,
};
use ftl::Lba;
use support::{assert_clean, fresh_with, name, tight};

const ROOT: InodeNo = InodeNo::ROOT;
const GRAIN: u64 = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heard {
    Shrinking(u64),
    Moving,
    Freed,
    Settled(Option<Lba>, u64),
    Grown(u64),
    Privileged,
}

#[derive(Default)]
struct Ear(Mutex<Vec<(InodeNo, Heard)>>);

struct Listener(Arc<Ear>);

impl Listener {
    fn note(&self, ino: InodeNo, heard: Heard) {
        self.0.0.lock().unwrap().push((ino, heard));
    }
}

impl ExtentObserver for Listener {
    fn shrinking(&self, ino: InodeNo, size: u64) {
        self.note(ino, Heard::Shrinking(size));
    }
    fn moving(&self, ino: InodeNo) {
        self.note(ino, Heard::Moving);
    }
    fn freed(&self, ino: InodeNo) {
        self.note(ino, Heard::Freed);
    }
    fn settled(&self, ino: InodeNo, settled: Settled) {
        self.note(ino, Heard::Settled(settled.start, settled.size));
    }
    fn grown(&self, ino: InodeNo, size: u64) {
        self.note(ino, Heard::Grown(size));
    }
    fn privileged(&self, ino: InodeNo) {
        self.note(ino, Heard::Privileged);
    }
}

impl Ear {
    fn heard(&self) -> Vec<Heard> {
        let heard = std::mem::take(&mut *self.0.lock().unwrap());
        heard.into_iter().map(|(_, heard)| heard).collect()
    }
}

fn listened() -> (Arc<MemStore>, Fs<Arc<MemStore>>, Arc<Ear>) {
    let (store, fs) = fresh_with(1000, &tight());
    let ear = Arc::new(Ear::default());
    assert!(fs.set_observer(Box::new(Listener(Arc::clone(&ear)))));
    (store, fs, ear)
}

fn resize<S: BlockStore>(fs: &Fs<S>, ino: InodeNo, size: u64) -> Result<(), FsError> {
    let set = SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    fs.set_attr(ino, &set).map(drop)
}

/// Whatever makes a file longer, shorter, or moves it is told before, with what became of it behind.
#[test]
fn every_change_of_place_and_size_is_heard() {
    use Heard::{Freed, Grown, Moving, Settled, Shrinking};
    let (store, fs, ear) = listened();
    let ino = fs.create(ROOT, name("f"), &NewNode::file()).unwrap().ino;
    let write = |at, len| fs.write(ino, at, &vec![7; len], WriteOptions::default());
    let start = || Some(fs.file_extent(ino).unwrap().range.start);

    write(0, 5000).unwrap();
    assert_eq!(ear.heard(), [Grown(5000)]);
    write(100, 10).unwrap();
    assert_eq!(ear.heard(), [], "inside");
    resize(&fs, ino, 100).unwrap();
    assert_eq!(ear.heard(), [Shrinking(100), Settled(start(), 100)]);
    resize(&fs, ino, 6000).unwrap();
    assert_eq!(ear.heard(), [Grown(6000)]);

    // A neighbour, so that more can not be had where it is.
    fs.create(ROOT, name("g"), &NewNode::file()).unwrap();
    let old = start();
    resize(&fs, ino, 100 * GRAIN).unwrap();
    assert_ne!(start(), old);
    assert_eq!(
        ear.heard(),
        [Moving, Settled(start(), 6000), Grown(100 * GRAIN)]
    );
    let allocate = FallocMode::Allocate { keep_size: false };
    fs.fallocate(ino, 0, 101 * GRAIN, allocate).unwrap();
    assert_eq!(ear.heard(), [Grown(101 * GRAIN)]);
    let zero = FallocMode::ZeroRange { keep_size: false };
    fs.fallocate(ino, 0, 102 * GRAIN, zero).unwrap();
    assert_eq!(ear.heard(), [Grown(102 * GRAIN)]);

    let (collapse, insert) = (FallocMode::CollapseRange, FallocMode::InsertRange);
    fs.fallocate(ino, GRAIN, 2 * GRAIN, collapse).unwrap();
    let end = 100 * GRAIN;
    assert_eq!(
        ear.heard(),
        [
            Shrinking(end),
            Moving,
            Moving,
            Settled(start(), end),
            Settled(start(), end),
            Settled(start(), end)
        ],
        "still from before its data are synced"
    );
    fs.fallocate(ino, GRAIN, GRAIN, insert).unwrap();
    let end = 101 * GRAIN;
    let settled = Settled(start(), end);
    assert_eq!(ear.heard(), [Moving, Moving, settled, settled, Grown(end)]);

    let copy = fs.create(ROOT, name("c"), &NewNode::file()).unwrap().ino;
    fs.copy_range(&CopyRange {
        from: ino,
        from_offset: 0,
        to: copy,
        to_offset: 0,
        len: 8 * GRAIN,
    })
    .unwrap();
    let heard = ear.0.lock().unwrap().clone();
    let of = |ino| -> Vec<Heard> {
        let of = heard.iter().filter(|(of, _)| *of == ino);
        of.map(|(_, heard)| *heard).collect()
    };
    assert_eq!(of(ino), [Moving, Settled(start(), end)], "the source");
    assert_eq!(of(copy).last(), Some(&Grown(8 * GRAIN)), "the copy");
    ear.heard();

    fs.unlink(ROOT, name("f")).unwrap();
    assert_eq!(ear.heard(), [Freed]);
    fs.sync_all().unwrap();
    assert_clean(&store);
}

/// A change that fails is over, too, and the file is where it was; one that fails in the middle of a journey leaves a file
/// that nobody can use, and that is said.
#[test]
fn failures_settle() {
    let (store, fs, ear) = listened();
    let ino = fs.create(ROOT, name("f"), &NewNode::file()).unwrap().ino;
    // Scattered, so that one batch can not remap it.
    for n in 0..60 {
        let at = n * 3001 * GRAIN;
        fs.write(ino, at, &[1; 100], WriteOptions::default())
            .unwrap();
    }
    fs.create(ROOT, name("g"), &NewNode::file()).unwrap();
    fs.sync_all().unwrap();
    let Extent { range, size } = fs.file_extent(ino).unwrap();
    ear.heard();
    let here = Heard::Settled(Some(range.start), size);
    store.cut_power_after(0);
    assert!(resize(&fs, ino, 10).is_err());
    assert_eq!(ear.heard(), [Heard::Shrinking(10), here]);
    assert!(resize(&fs, ino, 1 << 40).is_err());
    let heard = ear.heard();
    assert_eq!(heard, [Heard::Moving, here], "before the first batch");

    let store = Arc::new(store.after_power_cut(|_| 0));
    let fs = Fs::mount_with(Arc::clone(&store), &tight()).unwrap();
    assert!(fs.set_observer(Box::new(Listener(Arc::clone(&ear)))));
    let size = fs.attr(ino).unwrap().size;
    // The feature, and the first batch.
    store.cut_power_after(2);
    assert!(resize(&fs, ino, 1 << 40).is_err());
    let lost = Heard::Settled(None, size);
    assert_eq!(ear.heard(), [Heard::Moving, lost]);
}

/// Who looks at a file in `with_extent` and then listens misses nothing: a change comes before, and is seen, or behind, and
/// is heard.
#[test]
fn nothing_happens_between_looking_and_listening() {
    let (_store, fs, ear) = listened();
    let ino = fs.create(ROOT, name("f"), &NewNode::file()).unwrap().ino;
    resize(&fs, ino, 5000).unwrap();
    let looking = Arc::new(std::sync::Barrier::new(2));
    std::thread::scope(|scope| {
        let cutter = {
            let (fs, looking) = (&fs, Arc::clone(&looking));
            scope.spawn(move || {
                looking.wait();
                resize(fs, ino, 10).unwrap();
            })
        };
        fs.with_extent(ino, |extent| {
            ear.heard();
            looking.wait();
            // However long it takes, the other one waits.
            for _ in 0..1000 {
                std::thread::yield_now();
            }
            assert_eq!((extent.size, ear.heard()), (5000, Vec::new()));
        })
        .unwrap();
        cutter.join().unwrap();
    });
    assert_eq!(ear.heard()[0], Heard::Shrinking(10));
    assert_eq!(fs.with_extent(ino, |extent| extent.size), Ok(10));
}

/// Whatever lets a program file give something to who runs it is told before it does, with a name or without; what does not
/// is not. Who changes content past the file system then ends it: setuid, setgid where the group may execute, capabilities.
#[test]
fn what_gives_privileges_is_heard_and_ends() {
    let (_, fs, ear) = listened();
    let made = fs.create(ROOT, name("program"), &NewNode::file()).unwrap();
    let ino = made.ino;
    fs.open(ino).unwrap();
    let chmod = |perm| {
        let set = SetAttr {
            perm: Some(perm),
            ..SetAttr::default()
        };
        fs.set_attr(ino, &set).unwrap();
    };
    let capability = name("security.capability");
    let set_capability = || {
        fs.set_xattr(ino, capability, b"some", XattrMode::Set)
            .unwrap()
    };
    let gives = || fs.with_privileges(ino, |gives| gives).unwrap();
    let perm = || fs.attr(ino).unwrap().mode & 0o7777;
    let end = || {
        let mut ended = false;
        fs.end_privileges_past(ino, || ended = true).unwrap();
        assert!(ended);
        assert!(!gives());
    };
    assert_eq!(ear.heard(), []);
    for unlinked in [false, true] {
        if unlinked {
            fs.unlink(ROOT, name("program")).unwrap();
            ear.heard();
        }
        for (before, after) in [
            (0o4755, 0o755),
            (0o6711, 0o711),
            (0o2755, 0o755),
            (0o6644, 0o2644),
        ] {
            chmod(before);
            assert_eq!((ear.heard(), gives()), (vec![Heard::Privileged], true));
            end();
            assert_eq!(
                (perm(), ear.heard()),
                (after, vec![]),
                "unlinked: {unlinked}"
            );
        }
        for harmless in [0o755, 0o2644, 0o1777] {
            chmod(harmless as u16);
            assert_eq!((ear.heard(), gives()), (vec![], false));
            end();
            assert_eq!(perm(), harmless);
        }
        set_capability();
        assert_eq!((ear.heard(), gives()), (vec![Heard::Privileged], true));
        end();
        assert_eq!(fs.xattr(ino, capability).unwrap_err(), FsError::NoXattr);
        assert_eq!(ear.heard(), []);
    }
    fs.close(ino).unwrap();
}
