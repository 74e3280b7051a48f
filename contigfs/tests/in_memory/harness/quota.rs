//! Random operations in and between trees with limits. After each, what is charged to a project must be what its inodes
//! have, counted one by one; no operation makes a project grow beyond a limit; and what is refused for a limit would have
//! gone beyond it, which is seen by doing it without limits.

use std::collections::BTreeMap;
use std::sync::Arc;

use contigfs::planted::Bug;
use contigfs::{
    CopyRange, FallocMode, FileKind, Fs, FsError, FsOptions, InodeNo, Limits, MemStore, NewLimits,
    NewNode, ProjectId, RenameMode, SetAttr, XattrMode,
};

use support::{Dice, assert_clean, fresh_with, name, tight};

const GRAIN: u64 = 4096;
/// Files there are at most.
const FILES: usize = 24;

type Volume = Fs<Arc<MemStore>>;

/// Grains and inodes.
type Count = (u64, u64);

/// A file, link or directory with a name.
#[derive(Clone, Debug)]
struct Entry {
    dir: InodeNo,
    name: String,
    ino: InodeNo,
}

/// A volume and what is in it.
#[derive(Debug)]
pub struct Quotas {
    dice: Dice,
    store: Arc<MemStore>,
    fs: Option<Volume>,
    options: FsOptions,
    /// The root, two projects, a directory in each, a project inside the second, a plain one.
    dirs: Vec<InodeNo>,
    files: Vec<Entry>,
    /// Open files without names.
    open: Vec<InodeNo>,
    made: u64,
    /// Operations refused for a limit.
    refused: u64,
}

/// Directories that are projects, in `dirs`.
const TOPS: [usize; 3] = [1, 2, 5];

impl Quotas {
    /// Runs; answers how many operations were refused for a limit.
    pub fn of(seed: u64, steps: usize, bug: Option<Bug>) -> u64 {
        let options = FsOptions {
            planted: bug,
            ..tight()
        };
        let (store, fs) = fresh_with(100_000, &options);
        let dir = |parent, label| {
            let made = fs.create(parent, name(label), &NewNode::directory());
            made.unwrap().ino
        };
        let (a, b, plain) = (
            dir(InodeNo::ROOT, "a"),
            dir(InodeNo::ROOT, "b"),
            dir(InodeNo::ROOT, "plain"),
        );
        let (in_a, in_b) = (dir(a, "in-a"), dir(b, "in-b"));
        let nested = dir(in_b, "nested");
        let mut run = Self {
            dice: Dice::new(seed),
            store,
            fs: Some(fs),
            options,
            dirs: vec![InodeNo::ROOT, a, b, in_a, in_b, nested, plain],
            files: Vec::new(),
            open: Vec::new(),
            made: 0,
            refused: 0,
        };
        for top in TOPS {
            let set = run
                .fs()
                .set_quota(run.dirs[top], NewLimits::default(), None);
            set.unwrap();
        }
        for step in 0..steps {
            run.step();
            run.compare(&format!("seed {seed} step {step}"));
            if step % 250 == 249 {
                run.remount();
                run.compare("after a mount");
            }
        }
        run.remount();
        assert_clean(&run.store);
        run.refused
    }

    fn fs(&self) -> &Volume {
        self.fs.as_ref().expect("mounted")
    }

    /// What each project has, inode by inode.
    fn count(&self) -> BTreeMap<ProjectId, Count> {
        let mut inos: Vec<InodeNo> = self.files.iter().map(|file| file.ino).collect();
        inos.extend(&self.dirs);
        inos.extend(&self.open);
        inos.sort_unstable();
        inos.dedup();
        let mut counts = BTreeMap::new();
        for ino in inos {
            if let Some(project) = self.fs().project(ino).unwrap() {
                let count: &mut Count = counts.entry(project).or_default();
                count.0 += self.fs().attr(ino).unwrap().grains;
                count.1 += 1;
            }
        }
        counts
    }

    fn compare(&self, at: &str) {
        let mut counted = self.count();
        let mut last = None;
        while let Some(quota) = self.fs().quota_behind(last) {
            last = Some(quota.project);
            let count = counted.remove(&quota.project).unwrap_or_default();
            assert_eq!((quota.grains, quota.inodes), count, "{at}: {quota:?}");
        }
        assert!(counted.is_empty(), "{at}: nobody knows {counted:?}");
    }

    fn limits(&self) -> Vec<(InodeNo, Limits)> {
        let limits = TOPS.map(|top| {
            let project = self.fs().project(self.dirs[top]).unwrap().unwrap();
            (self.dirs[top], self.fs().quota_of(project).unwrap().limits)
        });
        limits.to_vec()
    }

    fn set(&self, top: InodeNo, limits: Limits) {
        let limits = NewLimits {
            bytes: Some(limits.bytes),
            inodes: Some(limits.inodes),
        };
        self.fs().set_quota(top, limits, None).unwrap();
    }

    /// Does something, and judges whether it was refused for a limit exactly when due.
    fn attempt<T>(
        &mut self,
        what: &str,
        act: impl Fn(&Volume) -> Result<T, FsError>,
    ) -> Result<T, FsError> {
        let limits = self.limits();
        let limit_of = |project: ProjectId| {
            let of = |(top, _): &&(InodeNo, Limits)| self.fs().project(*top) == Ok(Some(project));
            let limits = limits.iter().find(of).map(|(_, limits)| *limits);
            let limits = limits.unwrap_or_default();
            (
                limits.bytes.map_or(u64::MAX, |bytes| bytes / GRAIN),
                limits.inodes.unwrap_or(u64::MAX),
            )
        };
        let charged = |run: &Self| -> BTreeMap<ProjectId, Count> {
            let ids = (1..10).filter_map(ProjectId::new);
            let quotas = ids.filter_map(|id| run.fs().quota_of(id).ok());
            quotas
                .map(|quota| (quota.project, (quota.grains, quota.inodes)))
                .collect()
        };
        let exceeded = |before: &BTreeMap<ProjectId, Count>, after: &BTreeMap<ProjectId, Count>| {
            after.iter().any(|(&project, &(grains, inodes))| {
                let (grains_before, inodes_before) =
                    before.get(&project).copied().unwrap_or_default();
                let (grains_most, inodes_most) = limit_of(project);
                grains > grains_before && grains > grains_most
                    || inodes > inodes_before && inodes > inodes_most
            })
        };
        let before = charged(self);
        let result = act(self.fs());
        let after = charged(self);
        assert!(
            !exceeded(&before, &after),
            "{what}: beyond a limit: {before:?} {after:?} {limits:?}"
        );
        if !matches!(result, Err(FsError::Quota)) {
            return result;
        }
        let grew = after.iter().any(|(project, &now)| {
            let was = before.get(project).copied().unwrap_or_default();
            now.0 > was.0 || now.1 > was.1
        });
        assert!(!grew, "{what}: refused, and charged: {before:?} {after:?}");
        for &(top, _) in &limits {
            self.set(top, Limits::default());
        }
        let again = act(self.fs());
        let free = charged(self);
        // What was done of it is no less: what a crash had left behind an end may have been freed.
        let due = exceeded(&after, &free);
        assert!(
            due,
            "{what}: refused too early: {before:?} {after:?} {free:?} {limits:?}"
        );
        for &(top, limits) in &limits {
            self.set(top, limits);
        }
        self.refused += 1;
        again
    }

    fn dir(&mut self) -> InodeNo {
        *self.dice.pick(&self.dirs)
    }

    fn file(&mut self) -> Option<Entry> {
        (!self.files.is_empty()).then(|| self.dice.pick(&self.files).clone())
    }

    fn label(&mut self) -> String {
        self.made += 1;
        // Long ones, so that directories need more than a grain.
        format!("{:0>200}", self.made)
    }

    fn step(&mut self) {
        match self.dice.below(20) {
            0..=2 => self.create(),
            3 => self.remove(),
            4..=7 => self.write(),
            8..=9 => self.resize(),
            10..=11 => self.copy(),
            12 => self.attribute(),
            13..=14 => self.rename(),
            15 => self.link(),
            16..=17 => self.limit(),
            18 => self.open_or_close(),
            _ => self.give(),
        }
    }

    fn create(&mut self) {
        if self.files.len() >= FILES {
            return self.remove();
        }
        let (dir, label, link) = (self.dir(), self.label(), self.dice.below(4) == 0);
        let text = label.clone();
        let made = self.attempt("create", move |fs| match link {
            true => fs.symlink(dir, name(&text), name("target"), 0, 0),
            false => fs.create(dir, name(&text), &NewNode::file()),
        });
        let ino = made.unwrap().ino;
        assert_eq!(self.fs().project(ino), self.fs().project(dir), "inherited");
        self.files.push(Entry {
            dir,
            name: label,
            ino,
        });
    }

    /// Deleting is never refused.
    fn remove(&mut self) {
        let Some(file) = self.file() else { return };
        self.fs().unlink(file.dir, name(&file.name)).unwrap();
        self.files.retain(|other| other.name != file.name);
    }

    fn write(&mut self) {
        let Some(file) = self.file() else { return };
        let (offset, len) = (self.dice.below(12 * GRAIN), 1 + self.dice.below(3 * GRAIN));
        let data = vec![7; len as usize];
        let written = self.attempt("write", move |fs| {
            fs.write(file.ino, offset, &data, Default::default())
        });
        match written {
            // Short for a limit, which is reached then: seen by the counts.
            Ok(_) | Err(FsError::Invalid) => {}
            other => panic!("{other:?}"),
        }
    }

    fn resize(&mut self) {
        let Some(file) = self.file() else { return };
        let (at, len) = (self.dice.below(12 * GRAIN), 1 + self.dice.below(6 * GRAIN));
        let keep_size = self.dice.below(2) == 0;
        let size = SetAttr {
            size: Some(at),
            ..SetAttr::default()
        };
        let result = match self.dice.below(5) {
            0 => self.attempt("truncate", move |fs| fs.set_attr(file.ino, &size).map(drop)),
            kind => self.attempt("fallocate", move |fs| {
                let (whole, grains) = (at / GRAIN * GRAIN, len.next_multiple_of(GRAIN));
                match kind {
                    1 => fs.fallocate(file.ino, at, len, FallocMode::PunchHole),
                    2 => fs.fallocate(file.ino, whole, grains, FallocMode::InsertRange),
                    3 => fs.fallocate(file.ino, at, len, FallocMode::ZeroRange { keep_size }),
                    _ => fs.fallocate(file.ino, at, len, FallocMode::Allocate { keep_size }),
                }
            }),
        };
        // Links have no content to change, and nothing is inserted behind the end.
        assert!(
            matches!(result, Ok(()) | Err(FsError::Invalid)),
            "{result:?}"
        );
    }

    fn copy(&mut self) {
        let (Some(from), Some(to)) = (self.file(), self.file()) else {
            return;
        };
        let copy = CopyRange {
            from: from.ino,
            from_offset: self.dice.below(6) * GRAIN,
            to: to.ino,
            to_offset: self.dice.below(6) * GRAIN,
            len: 1 + self.dice.below(8 * GRAIN),
        };
        let copied = self.attempt("copy", move |fs| fs.copy_range(&copy));
        assert!(
            matches!(copied, Ok(_) | Err(FsError::Invalid)),
            "{copied:?}"
        );
    }

    fn attribute(&mut self) {
        let ino = match self.file() {
            Some(file) if self.dice.below(2) == 0 => file.ino,
            _ => self.dir(),
        };
        let len = self.dice.below(3 * GRAIN) as usize;
        let label = name("trusted.a");
        let result = match self.dice.below(3) {
            0 => self.fs().remove_xattr(ino, label),
            _ => self.attempt("attribute", move |fs| {
                fs.set_xattr(ino, label, &vec![3; len], XattrMode::Set)
            }),
        };
        assert!(
            matches!(result, Ok(()) | Err(FsError::NoXattr)),
            "{result:?}"
        );
    }

    fn rename(&mut self) {
        let (dir, label) = (self.dir(), self.label());
        let Some(file) = self.file() else { return };
        let (own, of_dir) = (
            self.fs().project(file.ino).unwrap(),
            self.fs().project(dir).unwrap(),
        );
        let (old, text) = (file.clone(), label.clone());
        let result = self.attempt("rename", move |fs| {
            fs.rename(
                old.dir,
                name(&old.name),
                dir,
                name(&text),
                RenameMode::Replace,
            )
        });
        let other = dir != file.dir && of_dir.is_some() && of_dir != own;
        let expected = if other {
            Err(FsError::OtherProject)
        } else {
            Ok(())
        };
        assert_eq!(result, expected, "from {own:?} to {of_dir:?}");
        if result.is_ok() {
            let entry = self.files.iter_mut().find(|entry| entry.name == file.name);
            let entry = entry.unwrap();
            (entry.dir, entry.name) = (dir, label);
        }
    }

    fn link(&mut self) {
        let (dir, label) = (self.dir(), self.label());
        let Some(file) = self.file() else { return };
        let (own, of_dir) = (
            self.fs().project(file.ino).unwrap(),
            self.fs().project(dir).unwrap(),
        );
        let text = label.clone();
        let result = self.attempt("link", move |fs| fs.link(file.ino, dir, name(&text)));
        let other = of_dir.is_some() && of_dir != own;
        assert_eq!(
            result.is_ok(),
            !other,
            "{result:?} from {own:?} to {of_dir:?}"
        );
        if other {
            assert_eq!(result, Err(FsError::OtherProject));
            return;
        }
        self.files.push(Entry {
            dir,
            name: label,
            ino: file.ino,
        });
    }

    /// Limits near what is there, above or below.
    fn limit(&mut self) {
        let top = self.dirs[*self.dice.pick(&TOPS)];
        let project = self.fs().project(top).unwrap().unwrap();
        let has = self.fs().quota_of(project).unwrap();
        let mut near = |n: u64, unit: u64| {
            let limit = (n + self.dice.below(6)).saturating_sub(2) * unit;
            (self.dice.below(5) > 0).then_some(limit)
        };
        let limits = Limits {
            bytes: near(has.grains, GRAIN),
            inodes: near(has.inodes + 2, 1),
        };
        self.set(top, limits);
    }

    fn open_or_close(&mut self) {
        if self.open.len() > 2 {
            let ino = self.open.swap_remove(0);
            return self.fs().close(ino).unwrap();
        }
        let Some(file) = self.file() else { return };
        let names = self
            .files
            .iter()
            .filter(|other| other.ino == file.ino)
            .count();
        let is_file = is_file(self.fs(), file.ino);
        if names == 1 && is_file {
            self.fs().open(file.ino).unwrap();
            self.fs().unlink(file.dir, name(&file.name)).unwrap();
            self.files.retain(|other| other.name != file.name);
            self.open.push(file.ino);
        }
    }

    /// By hand, as `chattr -p` does it.
    fn give(&mut self) {
        let Some(file) = self.file() else { return };
        let top = self.dirs[*self.dice.pick(&TOPS)];
        let project = self.fs().project(top).unwrap();
        let project = project.filter(|_| self.dice.below(3) > 0);
        let given = self.attempt("give", move |fs| fs.set_project(file.ino, project));
        given.unwrap();
        // Back if it lies in a project, so that setting limits changes nothing else.
        for (top, limits) in self.limits() {
            self.set(top, limits);
        }
    }

    /// A power cut that loses nothing, or some of what was not synced.
    fn remount(&mut self) {
        if self.dice.below(2) == 0 {
            for ino in std::mem::take(&mut self.open) {
                self.fs().close(ino).unwrap();
            }
            self.fs().sync_all().unwrap();
        }
        self.fs = None;
        let dice = &mut self.dice;
        let cut = self
            .store
            .after_power_cut(|n| dice.below(n as u64) as usize);
        self.store = Arc::new(cut);
        self.open.clear();
        self.fs = Some(Fs::mount_with(Arc::clone(&self.store), &self.options).unwrap());
    }
}

fn is_file(fs: &Volume, ino: InodeNo) -> bool {
    fs.attr(ino).is_ok_and(|attr| attr.kind == FileKind::File)
}
