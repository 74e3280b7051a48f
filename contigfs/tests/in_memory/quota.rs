//! Limits of projects (I9, I17): charged exactly, refused exactly when due, given back by deleting, and found again after
//! any crash. `docs/quotas.md` says what is promised.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::harness::quota::Quotas;
use contigfs::{
    BlockStore, ByteAddr, Care, CopyRange, FallocMode, FileKind, Fs, FsError, InodeNo, MemStore,
    NewLimits, NewNode, Problem, ProjectId, RenameMode, SetAttr, StoreError, XattrMode, repair,
};
use ftl::{AtomicBatch, Lba, LbaRange};
use support::records::TABLES;
use support::{Dice, assert_clean, fresh, fresh_with, name, tight};

const GRAIN: usize = 4096;
const ROOT: InodeNo = InodeNo::ROOT;

type Volume = Fs<Arc<MemStore>>;

fn grains(limit: u64) -> NewLimits {
    NewLimits {
        bytes: Some(Some(limit * GRAIN as u64)),
        inodes: None,
    }
}

fn inodes(limit: u64) -> NewLimits {
    NewLimits {
        bytes: None,
        inodes: Some(Some(limit)),
    }
}

fn dir(fs: &Volume, parent: InodeNo, label: &str) -> InodeNo {
    let made = fs.create(parent, name(label), &NewNode::directory());
    made.unwrap().ino
}

fn file(fs: &Volume, parent: InodeNo, label: &str) -> InodeNo {
    fs.create(parent, name(label), &NewNode::file())
        .unwrap()
        .ino
}

fn used(fs: &Volume, ino: InodeNo) -> u64 {
    let project = fs.project(ino).unwrap().expect("a project");
    fs.quota_of(project).unwrap().grains
}

/// Random operations with limits near what there is.
#[test]
fn charges_and_limits_are_exact() {
    let mut refused = 0;
    for seed in 1..=3 {
        refused += Quotas::of(seed, 2000, None);
    }
    println!("{refused} operations refused");
    assert!(refused > 300, "only {refused} refused: a weak test");
}

/// At the limit: each way of getting one more grain is refused, what needs none is not, and deleting gives back.
#[test]
fn each_way_of_writing() {
    let (_, fs) = fresh(1000);
    let top = dir(&fs, ROOT, "top");
    let (a, b) = (file(&fs, top, "a"), file(&fs, top, "b"));
    let outside = file(&fs, ROOT, "outside");
    let write = |ino, grain: u64, count: usize| {
        let data = vec![1; count * GRAIN];
        fs.write(ino, grain * GRAIN as u64, &data, Default::default())
    };
    fs.set_quota(top, grains(8), None).unwrap();
    // One grain is the directory's.
    assert_eq!(used(&fs, top), 1);
    assert_eq!(write(a, 0, 10), Ok(7 * GRAIN), "as much as fits");
    assert_eq!(write(a, 7, 1), Err(FsError::Quota));
    assert_eq!(write(b, 0, 1), Err(FsError::Quota));
    assert_eq!(write(a, 0, 7), Ok(7 * GRAIN), "nothing new");
    assert_eq!(write(outside, 0, 20), Ok(20 * GRAIN), "not of the project");
    let reserve = FallocMode::Allocate { keep_size: true };
    let allocated = |mode| fs.fallocate(b, 0, 4096, mode);
    assert_eq!(allocated(reserve), Err(FsError::Quota));
    let zeros = FallocMode::ZeroRange { keep_size: false };
    assert_eq!(allocated(zeros), Err(FsError::Quota));
    let clone = |from, to| {
        fs.copy_range(&CopyRange {
            from,
            from_offset: 0,
            to,
            to_offset: 0,
            len: 4096,
        })
    };
    assert_eq!(clone(outside, b), Err(FsError::Quota));
    assert_eq!(clone(a, b), Err(FsError::Quota), "a name counts in full");
    assert_eq!(clone(outside, a), Ok(4096), "onto what is mapped");
    assert_eq!(clone(a, outside), Ok(4096));
    let attribute = fs.set_xattr(a, name("user.a"), b"1", XattrMode::Set);
    assert_eq!(attribute, Err(FsError::Quota));
    let link = fs.symlink(top, name("link"), name("x"), 0, 0);
    assert_eq!(link.map(drop), Err(FsError::Quota));
    let sub = dir(&fs, top, "sub");
    let in_sub = fs.create(sub, name("x"), &NewNode::file());
    assert_eq!(in_sub.map(drop), Err(FsError::Quota), "a grain of entries");
    let size = |size| SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    fs.set_attr(b, &size(1 << 20)).unwrap();
    // Each way of giving back does so at once.
    let hole = FallocMode::PunchHole;
    fs.fallocate(a, 0, 4096, hole).unwrap();
    assert_eq!((used(&fs, top), write(b, 0, 2)), (7, Ok(GRAIN)));
    fs.set_attr(a, &size(5 * 4096)).unwrap();
    assert_eq!((used(&fs, top), write(b, 1, 4)), (6, Ok(2 * GRAIN)));
    fs.open(a).unwrap();
    fs.unlink(top, name("a")).unwrap();
    assert_eq!(used(&fs, top), 8, "open: it is still there");
    fs.close(a).unwrap();
    assert_eq!(used(&fs, top), 4);
    assert!(
        fs.set_xattr(b, name("user.a"), b"1", XattrMode::Set)
            .is_ok()
    );
    assert_eq!(used(&fs, top), 5);
    // A limit below what is there keeps everything and lets nothing come.
    fs.set_quota(top, grains(2), None).unwrap();
    assert_eq!(
        (write(b, 0, 3), write(b, 9, 1)),
        (Ok(3 * GRAIN), Err(FsError::Quota))
    );
    fs.unlink(top, name("b")).unwrap();
    assert_eq!((used(&fs, top), fs.rmdir(top, name("sub"))), (1, Ok(())));
    assert_eq!(used(&fs, top), 0);
}

/// Inodes are counted one by one, with names or without.
#[test]
fn inodes_have_a_limit_too() {
    let (_, fs) = fresh(1000);
    let top = dir(&fs, ROOT, "top");
    fs.set_quota(top, inodes(4), None).unwrap();
    let (a, sub) = (file(&fs, top, "a"), dir(&fs, top, "sub"));
    let pending = fs.create_unnamed(sub, &NewNode::file(), true).unwrap().ino;
    let made = |dir| fs.create(dir, name("b"), &NewNode::file()).map(drop);
    assert_eq!(
        (made(top), made(sub)),
        (Err(FsError::Quota), Err(FsError::Quota))
    );
    fs.link(a, sub, name("second")).unwrap();
    fs.unlink(top, name("a")).unwrap();
    assert_eq!(made(top), Err(FsError::Quota), "it has a name left");
    fs.close(pending).unwrap();
    assert_eq!((made(top), made(sub)), (Ok(()), Err(FsError::Quota)));
    assert_eq!(file(&fs, ROOT, "elsewhere").0, 6);
    let shown = fs.statfs_at(sub);
    assert_eq!((shown.inodes, shown.inodes_free), (4, 0));
}

/// Names lead from a directory of a project to what belongs to it only, and out of it to anything, as on ext4 and XFS.
#[test]
fn nothing_is_smuggled_in() {
    let (_, fs) = fresh(1000);
    let (a, b) = (dir(&fs, ROOT, "a"), dir(&fs, ROOT, "b"));
    for top in [a, b] {
        fs.set_quota(top, NewLimits::default(), None).unwrap();
    }
    let (fa, sub) = (file(&fs, a, "f"), dir(&fs, a, "sub"));
    let free = file(&fs, ROOT, "free");
    let across = |from, old, to, new, mode| fs.rename(from, name(old), to, name(new), mode);
    let refused = Err(FsError::OtherProject);
    let replace = RenameMode::Replace;
    assert_eq!(across(a, "f", b, "f", replace), refused);
    assert_eq!(across(a, "sub", b, "sub", replace), refused);
    assert_eq!(across(ROOT, "free", a, "x", replace), refused);
    assert_eq!(across(a, "f", ROOT, "free", RenameMode::Exchange), refused);
    assert_eq!(fs.link(fa, b, name("f")).map(drop), refused);
    assert_eq!(fs.link(free, a, name("x")).map(drop), refused);
    let unnamed = fs.create_unnamed(ROOT, &NewNode::file(), true).unwrap().ino;
    assert_eq!(fs.link(unnamed, a, name("x")).map(drop), refused);
    assert_eq!(FsError::OtherProject.errno(), libc::EXDEV);
    fs.link(fa, sub, name("f")).unwrap();
    assert_eq!(across(a, "f", sub, "g", replace), Ok(()));
    assert_eq!(across(sub, "g", ROOT, "out", replace), Ok(()));
    assert_eq!(fs.project(fa), fs.project(a), "it is charged as before");
    assert_eq!(across(ROOT, "out", b, "out", replace), refused);
    assert_eq!(across(ROOT, "out", sub, "again", replace), Ok(()));
}

/// `df` of a directory is its project's.
#[test]
fn statfs_tells_the_limit() {
    let (_, fs) = fresh(100);
    let (top, other) = (dir(&fs, ROOT, "top"), dir(&fs, ROOT, "other"));
    fs.set_quota(top, grains(10), None).unwrap();
    let f = file(&fs, top, "f");
    fs.write(f, 0, &[1; 3 * GRAIN], Default::default()).unwrap();
    let all = fs.statfs();
    assert_eq!(fs.statfs_at(other), all);
    let shown = fs.statfs_at(f);
    assert_eq!((shown.grains, shown.grains_free), (10, 6));
    fs.set_quota(top, grains(1000), None).unwrap();
    let shown = fs.statfs_at(top);
    assert_eq!((shown.grains, shown.grains_free), (100, all.grains_free));
    fs.set_quota(top, grains(2), None).unwrap();
    assert_eq!(fs.statfs_at(top).grains_free, 0);
}

/// A project inside a project is one of its own; removing a project gives what it had to the one around it.
#[test]
fn projects_in_projects() {
    let (store, fs) = fresh(1000);
    let outer = dir(&fs, ROOT, "outer");
    let inner = dir(&fs, outer, "inner");
    let (f, g) = (file(&fs, inner, "f"), file(&fs, outer, "g"));
    let id = |ino| fs.project(ino).unwrap().map(ProjectId::get);
    assert_eq!(
        fs.set_quota(outer, grains(9), None).unwrap().project.get(),
        1
    );
    assert_eq!([inner, f, g].map(id), [Some(1); 3]);
    let wanted = ProjectId::new(7);
    let quota = fs.set_quota(inner, grains(5), wanted).unwrap();
    assert_eq!(quota.path.unwrap(), "/outer/inner");
    assert_eq!(
        [outer, inner, f, g].map(id),
        [Some(1), Some(7), Some(7), Some(1)]
    );
    // Again, with another limit: the rest stays.
    let again = fs.set_quota(outer, inodes(50), None).unwrap();
    assert_eq!(again.limits.bytes, Some(9 * 4096));
    assert_eq!([inner, f].map(id), [Some(7); 2]);
    assert_eq!(fs.set_quota(outer, grains(1), wanted), Err(FsError::Exists));
    let ids: Vec<_> = [None, ProjectId::new(1), wanted]
        .map(|last| fs.quota_behind(last).map(|quota| quota.project.get()))
        .into();
    assert_eq!(ids, [Some(1), Some(7), None]);
    assert_eq!(fs.set_project(inner, None), Err(FsError::Busy));
    fs.remove_quota(inner).unwrap();
    assert_eq!([outer, inner, f, g].map(id), [Some(1); 4]);
    assert_eq!(fs.remove_quota(inner), Err(FsError::NotFound));
    fs.remove_quota(outer).unwrap();
    assert_eq!([outer, inner, f, g].map(id), [None; 4]);
    assert_eq!(fs.quota_behind(None), None);
    // With its directory a project ends.
    let gone = dir(&fs, ROOT, "gone");
    fs.set_quota(gone, grains(5), None).unwrap();
    fs.rmdir(ROOT, name("gone")).unwrap();
    assert_eq!(fs.quota_behind(None), None);
    drop(fs);
    assert_clean(&store);
}

/// A tree that is to become a project, and is none any more, cut off after each change of the media: the volume is sound,
/// what is charged is what is there, and the same command again does the rest.
#[test]
fn cut_off_anywhere() {
    let (store, fs) = fresh(2000);
    let top = dir(&fs, ROOT, "top");
    let mut all = vec![top];
    for label in ["x", "y"] {
        let sub = dir(&fs, top, label);
        all.push(sub);
        all.extend((0..20).map(|n| file(&fs, sub, &n.to_string())));
        all.push(
            fs.symlink(sub, name("l"), name("target"), 0, 0)
                .unwrap()
                .ino,
        );
    }
    for &ino in all.iter().skip(2).step_by(3) {
        let _ = fs.write(ino, 0, b"some", Default::default());
    }
    fs.sync_all().unwrap();
    drop(fs);
    let mut cuts = 0;
    for removing in [false, true] {
        if removing {
            let fs = Fs::mount(Arc::clone(&store)).unwrap();
            fs.set_quota(top, grains(50), None).unwrap();
        }
        let run = |fs: &Volume| match removing {
            false => fs.set_quota(top, grains(50), None).map(drop),
            true => fs.remove_quota(top),
        };
        for calls in 0.. {
            let cut = Arc::new(store.duplicate());
            let fs = Fs::mount(Arc::clone(&cut)).unwrap();
            cut.cut_power_after(calls);
            let result = run(&fs);
            drop(fs);
            let after = Arc::new(cut.after_power_cut(|n| n - 1));
            assert_clean(&after);
            let fs = Fs::mount(Arc::clone(&after)).unwrap();
            recount(&fs, &all);
            if let Err(error) = run(&fs) {
                assert!(removing && error == FsError::NotFound && fs.quota_behind(None).is_none());
            }
            let first = fs.project(top).unwrap();
            assert_eq!(first.is_none(), removing);
            assert!(all.iter().all(|&ino| fs.project(ino).unwrap() == first));
            recount(&fs, &all);
            drop(fs);
            assert_clean(&after);
            if result.is_ok() {
                break;
            }
            cuts += 1;
        }
    }
    assert!(cuts > 8, "only {cuts} cuts");
}

/// What the projects have is what their inodes have.
fn recount(fs: &Volume, all: &[InodeNo]) {
    let mut last = None;
    while let Some(quota) = fs.quota_behind(last) {
        last = Some(quota.project);
        let ours = all.iter().filter(|&&ino| fs.project(ino).unwrap() == last);
        let (mut grains, mut inodes) = (0, 0);
        for &ino in ours {
            grains += fs.attr(ino).unwrap().grains;
            inodes += 1;
        }
        assert_eq!((quota.grains, quota.inodes), (grains, inodes));
    }
}

/// Limits that can not be read are found, cost the limits alone, and are taken away; a root record that says nothing of
/// projects is made to.
#[test]
fn damage() {
    let (store, fs) = fresh(1000);
    let top = dir(&fs, ROOT, "top");
    fs.set_quota(top, grains(5), None).unwrap();
    let f = file(&fs, top, "f");
    drop(fs);
    let table = ByteAddr::new(Lba(1 << 20), 9);
    store.poke(table, |byte| byte ^ 1);
    let problems = contigfs::check(&store).problems;
    assert!(
        matches!(problems[..], [Problem::Limits { slot: 0, .. }]),
        "{problems:?}"
    );
    let fs = Fs::mount(Arc::clone(&store)).unwrap();
    let data = [1; 9 * GRAIN];
    assert_eq!(fs.write(f, 0, &data, Default::default()), Ok(9 * GRAIN));
    assert_eq!(used(&fs, top), 10);
    // A new record does not go where the damaged one is.
    let other = dir(&fs, ROOT, "other");
    fs.set_quota(other, grains(3), None).unwrap();
    drop(fs);
    assert_eq!(repair(&store, Care::Safe).unwrap().after.problems.len(), 1);
    let repaired = repair(&store, Care::Full).unwrap();
    assert!(
        repaired.after.is_clean() && repaired.repaired.len() == 1,
        "{repaired:?}"
    );
    // The features of an older program.
    let plain = MemStore::new(10);
    Fs::format(&plain, &Default::default()).unwrap();
    let mut root = [0; 64];
    plain.read(ByteAddr(0), &mut root).unwrap();
    let mut batch = AtomicBatch::new();
    batch.patch(Lba(0), 0, root).patch(Lba(1), 0, root);
    store.commit(batch).unwrap();
    let problems = contigfs::check(&store).problems;
    assert_eq!(problems, [Problem::Unannounced]);
    let repaired = repair(&store, Care::Safe).unwrap();
    assert!(repaired.after.is_clean(), "{repaired:?}");
    let fs = Fs::mount(Arc::clone(&store)).unwrap();
    let f = file(&fs, other, "f");
    assert_eq!(fs.write(f, 0, &data, Default::default()), Ok(2 * GRAIN));
    let all = LbaRange::new(Lba(1 << 20), 1024);
    assert_eq!(store.mapped_count(all), 1, "{:?}", StoreError::Quota);
}

/// Records and directories that can not be read stay where they are charged; the rest of the tree gets and loses its limits.
#[test]
fn a_tree_with_damage() {
    let (store, fs) = fresh(10_000);
    let top = dir(&fs, ROOT, "top");
    let unread = dir(&fs, top, "unread");
    let before = store.mapped();
    file(&fs, unread, "in it");
    let entries = |lba: &Lba| lba.0 > 1 << 32 && !before.contains(lba);
    let entries = store.mapped().into_iter().find(entries);
    let files: Vec<InodeNo> = (0..100)
        .map(|n| file(&fs, top, &format!("file {n}")))
        .collect();
    drop(fs);
    let records = TABLES[1].offset(files[50].0 / 32);
    store.damage(records);
    store.damage(entries.unwrap());
    let fs = Fs::mount(Arc::clone(&store)).unwrap();
    let is_bad = |ino: InodeNo| TABLES[1].offset(ino.0 / 32) == records;
    let set = fs.set_quota(top, grains(1000), None).unwrap();
    for &ino in files.iter().filter(|&&ino| !is_bad(ino)) {
        assert_eq!(fs.project(ino), Ok(Some(set.project)), "{ino}");
    }
    fs.remove_quota(top).unwrap();
    for &ino in files.iter().filter(|&&ino| !is_bad(ino)) {
        assert_eq!(fs.project(ino), Ok(None), "{ino}");
    }
}

/// Everything below a directory, with it.
fn walk(fs: &Volume, top: InodeNo) -> Vec<InodeNo> {
    let mut all = vec![top];
    let mut next = 0;
    while let Some(&dir) = all.get(next) {
        next += 1;
        if fs.attr(dir).unwrap().kind != FileKind::Directory {
            continue;
        }
        let mut found = Vec::new();
        fs.readdir(dir, 0, |entry| {
            if entry.name != "." && entry.name != ".." {
                found.push(entry.ino);
            }
            true
        })
        .unwrap();
        all.extend(found);
    }
    all.sort_unstable();
    all.dedup();
    all
}

/// Others make, write, move and delete things in the tree while it becomes a project and is none any more, again and
/// again: in the end all of it belongs to it, or nothing, and is counted.
#[test]
fn while_others_work() {
    const ROUNDS: u64 = 600;
    let (store, fs) = fresh_with(20_000, &tight());
    let top = dir(&fs, ROOT, "top");
    let dirs = ["x", "y", "z"].map(|label| dir(&fs, top, label));
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (fs, done) = (&fs, &done);
            scope.spawn(move || {
                let mut dice = Dice::new(thread);
                for round in 0..ROUNDS {
                    let (from, to) = (*dice.pick(&dirs), *dice.pick(&dirs));
                    let label = format!("{thread}-{round}");
                    let old = format!("{thread}-{}", dice.below(round + 1));
                    let made = fs.create(from, name(&label), &NewNode::file()).unwrap().ino;
                    let len = 1 + dice.below(4 * GRAIN as u64) as usize;
                    fs.write(made, dice.below(30_000), &vec![1; len], Default::default())
                        .unwrap();
                    // Into a directory that belongs to the project already it may be refused.
                    let moved = fs.rename(from, name(&old), to, name(&old), RenameMode::Replace);
                    let refused = moved.err().is_none_or(|error| {
                        matches!(error, FsError::NotFound | FsError::OtherProject)
                    });
                    assert!(refused, "{moved:?}");
                    if dice.below(2) == 0 {
                        let _ = fs.unlink(to, name(&old));
                    }
                }
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
        let mut changes = 0;
        while done.load(Ordering::Relaxed) < 3 || changes < 4 {
            fs.set_quota(top, inodes(1_000_000), None).unwrap();
            match fs.remove_quota(top) {
                Ok(()) | Err(FsError::Busy) => {}
                Err(error) => panic!("{error}"),
            }
            changes += 1;
        }
        println!("{changes} times");
    });
    for removing in [false, true] {
        match removing {
            false => drop(fs.set_quota(top, inodes(1_000_000), None).unwrap()),
            true => fs.remove_quota(top).unwrap(),
        }
        let all = walk(&fs, top);
        assert!(all.len() > 300, "{} files", all.len());
        let project = fs.project(top).unwrap();
        assert_eq!(project.is_none(), removing);
        assert!(all.iter().all(|&ino| fs.project(ino).unwrap() == project));
        recount(&fs, &all);
    }
    assert_eq!(fs.quota_behind(None), None, "nothing is left behind");
    drop(fs);
    assert_clean(&store);
}
