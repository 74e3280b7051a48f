//! The workload of the power cuts: what is done, cut, and asked of what is left.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::channel;

use contigfs::planted::Bug;
use contigfs::{
    CopyRange, FallocMode, FileKind, Fs, FsError, FsOptions, InodeNo, MemStore, NewNode,
    RenameMode, SetAttr, SetTime, SyncScope, Timestamp, WriteOptions, XattrMode,
};
use support::oracle::{ACCESS, CAPABILITY, DEFAULT, Xattrs, xattrs_of};
use support::{Dice, acl, content, fresh_with, name, names, tight};

type TestFs = Fs<Arc<MemStore>>;
type Answer = Result<(), FsError>;

const GRAINS: u64 = 10_000;
const ROOT: InodeNo = InodeNo::ROOT;

/// An operation of the workload.
pub struct Step {
    label: &'static str,
    run: fn(&Arc<TestFs>) -> Answer,
    /// What a cut later may undo, in part.
    loose: bool,
    /// What a cut in the middle may leave done in part: the size is one in between.
    piecemeal: bool,
    /// Whose data it makes durable.
    syncs: Covers,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Covers {
    Nothing,
    /// The file at `/a`.
    A,
    All,
}

const fn durable(label: &'static str, run: fn(&Arc<TestFs>) -> Answer) -> Step {
    Step {
        label,
        run,
        loose: false,
        piecemeal: false,
        syncs: Covers::Nothing,
    }
}

const fn loose(label: &'static str, run: fn(&Arc<TestFs>) -> Answer) -> Step {
    Step {
        label,
        run,
        loose: true,
        piecemeal: false,
        syncs: Covers::Nothing,
    }
}

/// Durable, and of what was done loosely before it makes as much durable as it is about: the size may be one in between.
const fn reaching(label: &'static str, run: fn(&Arc<TestFs>) -> Answer) -> Step {
    Step {
        piecemeal: true,
        ..durable(label, run)
    }
}

const fn piecemeal(label: &'static str, run: fn(&Arc<TestFs>) -> Answer) -> Step {
    Step {
        piecemeal: true,
        ..loose(label, run)
    }
}

/// The file set: `/a` of 6000 bytes with two attributes, `/d/f` of 9000, the empty directory `/e` with a default access
/// control list, the link `/l`.
pub fn prepare() -> (Arc<MemStore>, u64) {
    let (store, fs) = fresh_with(GRAINS, &tight());
    let empty = fs.statfs().grains_free;
    make(&fs, ROOT, "a", FileKind::File).unwrap();
    make(&fs, ROOT, "d", FileKind::Directory).unwrap();
    make(&fs, ROOT, "e", FileKind::Directory).unwrap();
    make(&fs, at(&fs, "/d").unwrap(), "f", FileKind::File).unwrap();
    fs.symlink(ROOT, name("l"), name("a"), 0, 0).unwrap();
    write(&fs, "/a", 0, 6000, 0x11).unwrap();
    write(&fs, "/d/f", 0, 9000, 0x22).unwrap();
    set_xattr(&fs, "/a", "user.a", &[0x55; 6000]).unwrap();
    set_xattr(&fs, "/a", CAPABILITY, &[1; 20]).unwrap();
    set_xattr(&fs, "/e", DEFAULT, &acl::extended()).unwrap();
    fs.sync_all().unwrap();
    (store, empty)
}

fn at(fs: &TestFs, path: &str) -> Result<InodeNo, FsError> {
    fs.lookup_path(path)
}

fn make(fs: &TestFs, dir: InodeNo, label: &str, kind: FileKind) -> Answer {
    fs.create(
        dir,
        name(label),
        &NewNode {
            kind,
            ..NewNode::file()
        },
    )
    .map(drop)
}

fn write(fs: &TestFs, path: &str, offset: u64, len: usize, byte: u8) -> Answer {
    fs.write(
        at(fs, path)?,
        offset,
        &vec![byte; len],
        WriteOptions::default(),
    )
    .map(drop)
}

fn resize(fs: &TestFs, path: &str, size: u64) -> Answer {
    let set = SetAttr {
        size: Some(size),
        perm: Some(0o600),
        ..SetAttr::default()
    };
    fs.set_attr(at(fs, path)?, &set).map(drop)
}

fn set_xattr(fs: &TestFs, path: &str, key: &str, value: &[u8]) -> Answer {
    fs.set_xattr(at(fs, path)?, name(key), value, XattrMode::Set)
}

fn remove_xattr(fs: &TestFs, path: &str, key: &str) -> Answer {
    fs.remove_xattr(at(fs, path)?, name(key))
}

fn rename(fs: &TestFs, from: (&str, &str), to: (&str, &str), mode: RenameMode) -> Answer {
    fs.rename(
        at(fs, from.0)?,
        name(from.1),
        at(fs, to.0)?,
        name(to.1),
        mode,
    )
}

fn allocate(fs: &TestFs, offset: u64, len: u64, mode: FallocMode) -> Answer {
    fs.fallocate(at(fs, "/a")?, offset, len, mode)
}

fn copy(fs: &TestFs, from: (&str, u64), to: (&str, u64), len: u64) -> Answer {
    fs.copy_range(&CopyRange {
        from: at(fs, from.0)?,
        from_offset: from.1,
        to: at(fs, to.0)?,
        to_offset: to.1,
        len,
    })
    .map(drop)
}

const REPLACE: RenameMode = RenameMode::Replace;

pub const STEPS: &[Step] = &[
    durable("create /b", |fs| make(fs, ROOT, "b", FileKind::File)),
    durable("create /d/b", |fs| {
        make(fs, at(fs, "/d")?, "b", FileKind::File)
    }),
    durable("mkdir /e/n", |fs| {
        make(fs, at(fs, "/e")?, "n", FileKind::Directory)
    }),
    durable("symlink /s", |fs| {
        fs.symlink(ROOT, name("s"), name("d/f"), 0, 0).map(drop)
    }),
    durable("link /a /d/h", |fs| {
        fs.link(at(fs, "/a")?, at(fs, "/d")?, name("h")).map(drop)
    }),
    durable("unlink /a", |fs| fs.unlink(ROOT, name("a"))),
    durable("unlink /d/f", |fs| fs.unlink(at(fs, "/d")?, name("f"))),
    durable("unlink /l", |fs| fs.unlink(ROOT, name("l"))),
    durable("rmdir /e", |fs| fs.rmdir(ROOT, name("e"))),
    durable("rename /a /b", |fs| {
        rename(fs, ("/", "a"), ("/", "b"), REPLACE)
    }),
    durable("rename /a /d/b", |fs| {
        rename(fs, ("/", "a"), ("/d", "b"), REPLACE)
    }),
    durable("rename /a over /d/f", |fs| {
        rename(fs, ("/", "a"), ("/d", "f"), REPLACE)
    }),
    durable("rename /d/f over /a", |fs| {
        rename(fs, ("/d", "f"), ("/", "a"), REPLACE)
    }),
    durable("rename /d over /e", |fs| {
        rename(fs, ("/", "d"), ("/", "e"), REPLACE)
    }),
    durable("rename /d into /e", |fs| {
        rename(fs, ("/", "d"), ("/e", "d"), REPLACE)
    }),
    durable("exchange /a /d/f", |fs| {
        rename(fs, ("/", "a"), ("/d", "f"), RenameMode::Exchange)
    }),
    durable("exchange /a /e", |fs| {
        rename(fs, ("/", "a"), ("/", "e"), RenameMode::Exchange)
    }),
    durable("exchange /d/f /e", |fs| {
        rename(fs, ("/d", "f"), ("/", "e"), RenameMode::Exchange)
    }),
    durable("rename /e to /d/e", |fs| {
        rename(fs, ("/", "e"), ("/d", "e"), RenameMode::NoReplace)
    }),
    durable("truncate /a 100", |fs| resize(fs, "/a", 100)),
    durable("truncate /a 0", |fs| resize(fs, "/a", 0)),
    durable("truncate /a 20000", |fs| resize(fs, "/a", 20_000)),
    durable("truncate /d/f 4096", |fs| resize(fs, "/d/f", 4096)),
    reaching("fallocate /a", |fs| {
        allocate(fs, 5000, 9000, FallocMode::Allocate { keep_size: false })
    }),
    durable("fallocate -n /a", |fs| {
        allocate(fs, 5000, 9000, FallocMode::Allocate { keep_size: true })
    }),
    durable("punch /a", |fs| {
        allocate(fs, 100, 5000, FallocMode::PunchHole)
    }),
    reaching("zero /a", |fs| {
        allocate(fs, 100, 5000, FallocMode::ZeroRange { keep_size: false })
    }),
    reaching("zero /a longer", |fs| {
        allocate(fs, 3000, 9000, FallocMode::ZeroRange { keep_size: false })
    }),
    durable("zero -n /a behind", |fs| {
        allocate(fs, 5000, 9000, FallocMode::ZeroRange { keep_size: true })
    }),
    durable("collapse /a", |fs| {
        allocate(fs, 0, 4096, FallocMode::CollapseRange)
    }),
    durable("insert into /a", |fs| {
        allocate(fs, 4096, 8192, FallocMode::InsertRange)
    }),
    piecemeal("clone /d/f over /a", |fs| {
        copy(fs, ("/d/f", 0), ("/a", 0), 9000)
    }),
    piecemeal("clone a grain of /a to /d/f", |fs| {
        copy(fs, ("/a", 0), ("/d/f", 4096), 4096)
    }),
    piecemeal("clone inside /a", |fs| {
        copy(fs, ("/a", 0), ("/a", 16_384), 6000)
    }),
    piecemeal("copy /d/f into /a", |fs| {
        copy(fs, ("/d/f", 10), ("/a", 1000), 5000)
    }),
    durable("chown /a", |fs| {
        fs.set_attr(
            at(fs, "/a")?,
            &SetAttr {
                uid: Some(7),
                gid: Some(8),
                ..SetAttr::default()
            },
        )
        .map(drop)
    }),
    durable("small attribute of /d/f", |fs| {
        set_xattr(fs, "/d/f", "user.s", b"small")
    }),
    durable("large attribute of /a", |fs| {
        set_xattr(fs, "/a", "user.l", &[0x66; 20_000])
    }),
    durable("shorter attribute of /a", |fs| {
        set_xattr(fs, "/a", "user.a", &[0x77; 100])
    }),
    durable("remove the attribute of /a", |fs| {
        remove_xattr(fs, "/a", "user.a")
    }),
    durable("access control list of /a", |fs| {
        set_xattr(fs, "/a", ACCESS, &acl::extended())
    }),
    durable("fifo /e/p", |fs| {
        make(fs, at(fs, "/e")?, "p", FileKind::Fifo)
    }),
    loose("write /a inside", |fs| write(fs, "/a", 1000, 4000, 0x33)),
    loose("write /a longer", |fs| write(fs, "/a", 5000, 9000, 0x33)),
    loose("write /a with a gap", |fs| {
        write(fs, "/a", 17_000, 100, 0x33)
    }),
    loose("write /d/f longer", |fs| write(fs, "/d/f", 9000, 100, 0x44)),
    Step {
        label: "fsync /a",
        run: |fs| fs.fsync(at(fs, "/a")?, SyncScope::All),
        loose: false,
        piecemeal: false,
        syncs: Covers::A,
    },
    // As the mount does it: nobody waits but for the answer.
    Step {
        label: "fdatasync /a",
        run: |fs| {
            let (tell, answer) = channel();
            let done = move |result| tell.send(result).expect("somebody waits");
            fs.fsync_then(at(fs, "/a")?, SyncScope::Data, done);
            answer.recv().expect("one answer")
        },
        loose: false,
        piecemeal: false,
        syncs: Covers::A,
    },
    Step {
        label: "sync",
        run: |fs| fs.sync_all(),
        loose: false,
        piecemeal: false,
        syncs: Covers::All,
    },
    durable("open and unlink /a", |fs| {
        fs.open(at(fs, "/a")?)?;
        fs.unlink(ROOT, name("a"))
    }),
    durable("open, unlink, close /a", |fs| {
        let ino = at(fs, "/a")?;
        fs.open(ino)?;
        fs.unlink(ROOT, name("a"))?;
        fs.close(ino)
    }),
    durable("unnamed file", |fs| {
        fs.create_unnamed(ROOT, &NewNode::file(), true).map(drop)
    }),
    durable("unnamed file below /e becomes /t", |fs| {
        let ino = fs
            .create_unnamed(at(fs, "/e")?, &NewNode::file(), true)?
            .ino;
        let written = fs.write(ino, 0, b"complete", WriteOptions::default());
        let linked = written
            .and_then(|_| fs.fsync(ino, SyncScope::All))
            .and_then(|()| fs.link(ino, ROOT, name("t")));
        fs.close(ino)?;
        linked.map(drop)
    }),
    durable("move /a to a larger range", |fs| {
        resize(fs, "/a", (1 << 36) + 1)
    }),
    durable("device /d/c", |fs| {
        let device = NewNode {
            kind: FileKind::CharDevice,
            rdev: 0x103,
            ..NewNode::file()
        };
        fs.create(at(fs, "/d")?, name("c"), &device).map(drop)
    }),
    durable("mkdir /d/n", |fs| {
        make(fs, at(fs, "/d")?, "n", FileKind::Directory)
    }),
    durable("link /d/f /e/g", |fs| {
        fs.link(at(fs, "/d/f")?, at(fs, "/e")?, name("g")).map(drop)
    }),
    durable("link /l /m", |fs| {
        fs.link(at(fs, "/l")?, ROOT, name("m")).map(drop)
    }),
    durable("times of /d/f", |fs| {
        let at_five = Some(SetTime::At(Timestamp { secs: 5, nanos: 5 }));
        let set = SetAttr {
            atime: at_five,
            mtime: at_five,
            ..SetAttr::default()
        };
        fs.set_attr(at(fs, "/d/f")?, &set).map(drop)
    }),
    durable("permissions of /d/f", |fs| {
        let set = SetAttr {
            perm: Some(0o4751),
            ..SetAttr::default()
        };
        fs.set_attr(at(fs, "/d/f")?, &set).map(drop)
    }),
    durable("what is made in /d gets its group", |fs| {
        let set = SetAttr {
            perm: Some(0o2775),
            gid: Some(9),
            ..SetAttr::default()
        };
        fs.set_attr(at(fs, "/d")?, &set).map(drop)
    }),
    durable("attribute of /d", |fs| {
        set_xattr(fs, "/d", "user.d", &[0x88; 3000])
    }),
    durable("remove the capability of /a", |fs| {
        remove_xattr(fs, "/a", CAPABILITY)
    }),
    durable("default access control list of /d", |fs| {
        set_xattr(fs, "/d", DEFAULT, &acl::extended())
    }),
    durable("remove that of /e", |fs| remove_xattr(fs, "/e", DEFAULT)),
    durable("punch all of /a", |fs| {
        allocate(fs, 0, 8192, FallocMode::PunchHole)
    }),
    durable("zero all of /d/f", |fs| {
        let zero = FallocMode::ZeroRange { keep_size: true };
        fs.fallocate(at(fs, "/d/f")?, 0, 9000, zero)
    }),
    durable("rename /d/f to /e/f", |fs| {
        rename(fs, ("/d", "f"), ("/e", "f"), RenameMode::NoReplace)
    }),
    durable("rename /d to /g", |fs| {
        rename(fs, ("/", "d"), ("/", "g"), RenameMode::NoReplace)
    }),
    durable("rename /l over /a", |fs| {
        rename(fs, ("/", "l"), ("/", "a"), REPLACE)
    }),
    durable("truncate /d/f 8191", |fs| resize(fs, "/d/f", 8191)),
    durable("truncate /d/f 30000", |fs| resize(fs, "/d/f", 30_000)),
];

/// Number, kind, permissions, owner and group, links.
type Entry = (InodeNo, FileKind, u16, (u32, u32), u32);

/// What can be seen of a file system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Shot {
    tree: BTreeMap<String, Entry>,
    files: BTreeMap<InodeNo, Vec<u8>>,
    links: BTreeMap<InodeNo, Vec<u8>>,
    xattrs: BTreeMap<InodeNo, Xattrs>,
}

/// Enough of a file to tell; the moved file is 64 GiB long.
const SEEN_MAX: u64 = 40_000;

fn shoot(fs: &TestFs) -> Shot {
    fn walk(fs: &TestFs, ino: InodeNo, path: &str, shot: &mut Shot) {
        let attr = fs.attr(ino).unwrap();
        let owner = (attr.uid, attr.gid);
        shot.tree.insert(
            path.to_owned(),
            (ino, attr.kind, attr.perm(), owner, attr.nlink),
        );
        shot.xattrs.insert(ino, xattrs_of(fs, ino).unwrap());
        match attr.kind {
            FileKind::Directory => {
                for (label, child) in names(fs, ino).unwrap() {
                    walk(fs, child, &format!("{path}/{label}"), shot);
                }
            }
            FileKind::Symlink => drop(shot.links.insert(ino, fs.readlink(ino).unwrap())),
            FileKind::File => {
                let mut bytes = vec![0; attr.size.min(SEEN_MAX) as usize];
                fs.read(ino, 0, &mut bytes).unwrap();
                bytes.extend(attr.size.to_le_bytes());
                shot.files.insert(ino, bytes);
            }
            _ => {}
        }
    }
    let mut shot = Shot::default();
    walk(fs, ROOT, "", &mut shot);
    shot
}

/// Whether every byte of `found` was there in one of the versions, or is zero behind the end of the first, and the size
/// is that of a version, or one in between.
fn is_mixture(found: &[u8], versions: &[&Vec<u8>], in_between: bool) -> bool {
    let split = |bytes: &[u8]| {
        let (data, size) = bytes.split_at(bytes.len() - 8);
        (data.to_vec(), u64::from_le_bytes(size.try_into().unwrap()))
    };
    let (data, size) = split(found);
    let versions: Vec<_> = versions.iter().map(|version| split(version)).collect();
    let certain = versions
        .iter()
        .map(|version| version.0.len())
        .min()
        .unwrap_or(0);
    let sizes = || versions.iter().map(|version| version.1);
    let is_between = sizes().min() <= Some(size) && Some(size) <= sizes().max();
    (sizes().any(|other| other == size) || in_between && is_between)
        && data.iter().enumerate().all(|(i, byte)| {
            versions
                .iter()
                .any(|version| version.0.get(i) == Some(byte))
                || i >= certain && *byte == 0
        })
}

pub struct Workload<'a> {
    pub base: &'a MemStore,
    /// Free grains of an empty volume.
    pub empty: u64,
    pub steps: Vec<&'a Step>,
    pub bug: Option<Bug>,
}

impl Workload<'_> {
    fn label(&self) -> String {
        self.steps
            .iter()
            .map(|step| step.label)
            .collect::<Vec<_>>()
            .join("; ")
    }

    fn mount(&self, store: &Arc<MemStore>) -> TestFs {
        let options = FsOptions {
            planted: self.bug,
            ..tight()
        };
        Fs::mount_with(Arc::clone(store), &options).unwrap()
    }

    fn start(&self) -> (Arc<MemStore>, Arc<TestFs>) {
        let store = Arc::new(self.base.duplicate());
        let fs = Arc::new(self.mount(&store));
        (store, fs)
    }

    /// Runs the steps uncut: the pictures before and after each, the answers, the number of calls.
    fn rehearse(&self) -> (Vec<Shot>, Vec<Answer>, u64) {
        let (store, fs) = self.start();
        let first = store.calls();
        let mut shots = vec![shoot(&fs)];
        let mut answers = Vec::new();
        for step in &self.steps {
            answers.push((step.run)(&fs));
            shots.push(shoot(&fs));
        }
        (shots, answers, store.calls() - first)
    }

    /// Fails when an operation is refused.
    pub fn assert_works(&self) {
        let (_, answers, _) = self.rehearse();
        assert!(answers.iter().all(Result::is_ok), "{}", self.label());
    }

    /// Cuts the power before every call that changes the store; how many states that gave. Panics at the first that is
    /// wrong.
    pub fn run(&self) -> u64 {
        let (shots, answers, calls) = self.rehearse();
        let mut states = 0;
        for cut in 0..=calls {
            let (store, fs) = self.start();
            store.cut_power_after(cut);
            let mut done = 0;
            for (step, expected) in self.steps.iter().zip(&answers) {
                let answer = (step.run)(&fs);
                if matches!(answer, Err(FsError::Store(_))) {
                    break;
                }
                assert_eq!(answer, *expected, "{}, cut {cut}", self.label());
                done += 1;
            }
            let mut dice = Dice::new(cut);
            let mut choices: Vec<Box<dyn FnMut(usize) -> usize>> = vec![
                Box::new(|_| 0),
                Box::new(|n| n - 1),
                Box::new(move |n| dice.below(n as u64) as usize),
            ];
            for (which, choose) in choices.iter_mut().enumerate() {
                let at = format!("{}, cut {cut}, choice {which}", self.label());
                self.judge(Arc::new(store.after_power_cut(choose)), &shots, done, &at);
                states += 1;
            }
        }
        states
    }

    fn judge(&self, store: Arc<MemStore>, shots: &[Shot], done: usize, at: &str) {
        let report = contigfs::check(&store);
        assert!(
            report.is_clean(),
            "{at}: before mount {:?}",
            report.problems
        );
        let fs = self.mount(&store);
        assert!(!fs.is_damaged(), "{at}: taken for damaged");
        let report = contigfs::check_with_data(&store);
        assert!(report.is_clean(), "{at}: after mount {:?}", report.problems);
        let left = (report.orphans, report.relocating, report.ownerless_grains);
        assert_eq!(left, (0, 0, 0), "{at}");
        let found = shoot(&fs);
        let possible = &shots[done..shots.len().min(done + 2)];
        let whole = |shot: &&Shot| {
            (&shot.tree, &shot.links, &shot.xattrs) == (&found.tree, &found.links, &found.xattrs)
        };
        assert!(
            possible.iter().any(|shot| whole(&shot)),
            "{at}: {:#?} {:?}\nbut was {:#?} {:?}",
            found.tree,
            found.xattrs.keys(),
            possible[0].tree,
            possible[0].xattrs.keys(),
        );
        for (ino, bytes) in &found.files {
            // Data are certain from the last sync on, or from the start if nothing was written loosely.
            let covers = |step: usize| match self.steps[step].syncs {
                Covers::Nothing => false,
                Covers::A => shots[step]
                    .tree
                    .get("/a")
                    .is_some_and(|entry| entry.0 == *ino),
                Covers::All => true,
            };
            let synced = (0..done)
                .rev()
                .find(|&step| covers(step))
                .map_or(0, |step| step + 1);
            let steps = &self.steps[synced..self.steps.len().min(done + 1)];
            let any_loose = steps.iter().any(|step| step.loose);
            let first = if any_loose { synced } else { done };
            let versions: Vec<&Vec<u8>> = shots[first..shots.len().min(done + 2)]
                .iter()
                .filter_map(|shot| shot.files.get(ino))
                .collect();
            let good = if any_loose {
                is_mixture(bytes, &versions, steps.iter().any(|step| step.piecemeal))
            } else {
                versions.contains(&bytes)
            };
            assert!(good, "{at}: content of {ino:?}, {} bytes", bytes.len());
        }
        self.grow_and_delete(&fs, &found, at);
        let report = contigfs::check(&store);
        assert!(report.is_clean(), "{at}: at the end {:?}", report.problems);
        assert_eq!(
            fs.statfs().grains_free,
            self.empty,
            "{at}: space after deleting everything"
        );
    }

    fn grow_and_delete(&self, fs: &TestFs, found: &Shot, at: &str) {
        for &ino in found.files.keys() {
            let size = fs.attr(ino).unwrap().size;
            if size > SEEN_MAX {
                continue;
            }
            fs.set_attr(
                ino,
                &SetAttr {
                    size: Some(size + 20_000),
                    ..SetAttr::default()
                },
            )
            .unwrap();
            let grown = content(fs, ino).unwrap();
            assert!(
                grown[size as usize..].iter().all(|&byte| byte == 0),
                "{at}: old bytes behind the end"
            );
        }
        delete_all(fs, ROOT);
    }
}

fn delete_all(fs: &TestFs, dir: InodeNo) {
    for (label, child) in names(fs, dir).unwrap() {
        if fs.attr(child).unwrap().kind == FileKind::Directory {
            delete_all(fs, child);
            fs.rmdir(dir, name(&label)).unwrap();
        } else {
            fs.unlink(dir, name(&label)).unwrap();
        }
    }
}
