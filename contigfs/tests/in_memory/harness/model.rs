//! Random operations on a file system and on a naive oracle.

use std::sync::Arc;

use contigfs::planted::Bug;
use contigfs::{
    CopyRange, FallocMode, FileKind, Fs, FsError, FsOptions, InodeNo, MemStore, NewNode,
    RenameMode, SeekTo, SetAttr, WriteOptions, XattrMode,
};
use support::oracle::{ACCESS, Body, CAPABILITY, DEFAULT, Node, Oracle, picture_of};
use support::{Dice, acl, assert_clean, content, fresh_with, name, tight};

/// Sizes and offsets go up to here: a few grains and a bit.
const FILE_MAX: u64 = 20_000;
const NAMES: [&str; 9] = [
    "a",
    "b",
    "c",
    "sixteen-bytes-ok",
    "seventeen-bytes-x",
    "dir",
    "x",
    "Ünï",
    "a-rather-long-name-that-takes-several-units-of-a-directory-grain-and-then-some-more",
];
/// Few enough that two large ones and the rest always fit.
const XATTRS: [&str; 6] = [
    "user.a",
    "trusted.a-name-of-some-length",
    CAPABILITY,
    "user.a",
    ACCESS,
    DEFAULT,
];
const SPECIAL: [FileKind; 4] = [
    FileKind::Fifo,
    FileKind::Socket,
    FileKind::CharDevice,
    FileKind::BlockDevice,
];

/// A file system and its oracle, side by side.
pub struct Run {
    dice: Dice,
    store: Arc<MemStore>,
    fs: Fs<Arc<MemStore>>,
    oracle: Oracle,
    /// Number of each node of the oracle.
    inos: Vec<InodeNo>,
    /// Open files.
    open: Vec<Node>,
    changes: usize,
    bug: Option<Bug>,
}

impl Run {
    /// Does `steps` random things, compares now and then, and mounts anew now and then; how many of them changed
    /// something. Panics at the first difference.
    pub fn of(seed: u64, steps: usize, bug: Option<Bug>) -> usize {
        let (store, fs) = fresh_with(100_000, &options(bug));
        let mut run = Self {
            dice: Dice::new(seed),
            store,
            fs,
            oracle: Oracle::default(),
            inos: vec![InodeNo::ROOT],
            open: Vec::new(),
            changes: 0,
            bug,
        };
        for step in 0..steps {
            run.step(&format!("seed {seed} step {step}"));
            if step % 500 == 499 {
                run.compare(&format!("seed {seed} step {step}"));
            }
            if step % 2000 == 1999 {
                run.remount();
            }
        }
        run.remount();
        run.compare("at the end");
        assert_clean(&run.store);
        run.changes
    }

    /// Any node with a name.
    fn any(&mut self) -> Node {
        let mut at = 0;
        while self.dice.below(5) > 0 {
            let Ok(entries) = self.oracle.dir(at) else {
                break;
            };
            if entries.is_empty() {
                break;
            }
            let children: Vec<Node> = entries.values().copied().collect();
            at = *self.dice.pick(&children);
        }
        at
    }

    fn any_dir(&mut self) -> Node {
        let node = self.any();
        if self.oracle.is_dir(node) || self.dice.below(20) == 0 {
            node
        } else {
            0
        }
    }

    fn any_name(&mut self) -> &'static str {
        NAMES[self.dice.below(NAMES.len() as u64) as usize]
    }

    /// A file: open ones, names or not, are preferred now and then.
    fn any_file(&mut self) -> Node {
        if !self.open.is_empty() && self.dice.below(3) == 0 {
            return *self.dice.pick(&self.open);
        }
        self.any()
    }

    fn offset(&mut self) -> u64 {
        match self.dice.below(3) {
            0 => self.dice.below(FILE_MAX),
            1 => self.dice.below(5) * 4096,
            _ => (self.dice.below(5) * 4096 + 4096).wrapping_sub(self.dice.below(9)),
        }
    }

    fn step(&mut self, at: &str) {
        let calls = self.store.calls();
        self.dispatch(at);
        self.changes += usize::from(self.store.calls() > calls);
    }

    fn dispatch(&mut self, at: &str) {
        match self.dice.below(26) {
            0..4 => self.create(at),
            4..6 => self.link_or_symlink(at),
            6..8 => self.remove(at),
            8..10 => self.rename(at),
            10..13 => self.write(at),
            13 => self.read(at),
            14 => self.truncate(at),
            15 => self.fallocate(at),
            16 => self.attributes(at),
            17 => self.open(at),
            18 => self.close(),
            19..22 => self.xattr(at),
            22 => self.unnamed(at),
            23 => self.copy(at),
            24 => self.seek(at),
            _ => self.sync(),
        }
    }

    fn create(&mut self, at: &str) {
        let (dir, label, perm) = (
            self.any_dir(),
            self.any_name(),
            self.dice.below(0o1000) as u16,
        );
        let rdev = self.dice.below(1 << 20) as u32;
        let (kind, body) = match self.dice.below(9) {
            0..3 => (FileKind::Directory, Body::Dir(Default::default())),
            3 => match *self.dice.pick(&SPECIAL) {
                kind @ (FileKind::CharDevice | FileKind::BlockDevice) => {
                    (kind, Body::Special(kind, rdev))
                }
                kind => (kind, Body::Special(kind, 0)),
            },
            _ => (FileKind::File, Body::File(Vec::new())),
        };
        let expected = self.oracle.add(dir, label, body, perm);
        let node = NewNode {
            kind,
            mode: perm.into(),
            rdev,
            ..NewNode::file()
        };
        let found = self.fs.create(self.inos[dir], name(label), &node);
        assert_eq!(
            found.map(|_| ()),
            expected.map(|_| ()),
            "{at}: create {label}"
        );
        self.inos.extend(found.map(|attr| attr.ino));
    }

    fn link_or_symlink(&mut self, at: &str) {
        let (dir, label, target) = (self.any_dir(), self.any_name(), self.any());
        if self.dice.below(2) == 0 {
            let expected = self.oracle.link(target, dir, label);
            let found = self.fs.link(self.inos[target], self.inos[dir], name(label));
            assert_eq!(found.map(|_| ()), expected, "{at}: link {label}");
            return;
        }
        let text = "t".repeat(1 + self.dice.below(300) as usize);
        let expected = self.oracle.add(dir, label, Body::Link(text.clone()), 0o777);
        let found = self
            .fs
            .symlink(self.inos[dir], name(label), name(&text), 0, 0);
        assert_eq!(
            found.map(|_| ()),
            expected.map(|_| ()),
            "{at}: symlink {label}"
        );
        self.inos.extend(found.map(|attr| attr.ino));
    }

    fn remove(&mut self, at: &str) {
        let (dir, label) = (self.any_dir(), self.any_name());
        if self.dice.below(3) == 0 {
            let expected = self.oracle.rmdir(dir, label);
            assert_eq!(
                self.fs.rmdir(self.inos[dir], name(label)),
                expected,
                "{at}: rmdir {label}"
            );
        } else {
            let expected = self.oracle.unlink(dir, label).map(|_| ());
            assert_eq!(
                self.fs.unlink(self.inos[dir], name(label)),
                expected,
                "{at}: unlink {label}"
            );
        }
    }

    fn rename(&mut self, at: &str) {
        let (from, to) = (self.any_dir(), self.any_dir());
        let (old, new) = (self.any_name(), self.any_name());
        let mode = *self.dice.pick(&[
            RenameMode::Replace,
            RenameMode::Replace,
            RenameMode::NoReplace,
            RenameMode::Exchange,
        ]);
        let expected = self.oracle.rename((from, old), (to, new), mode);
        let found = self
            .fs
            .rename(self.inos[from], name(old), self.inos[to], name(new), mode);
        assert_eq!(
            found, expected,
            "{at}: rename {from}/{old} to {to}/{new}, {mode:?}"
        );
    }

    fn write(&mut self, at: &str) {
        let (node, offset) = (self.any_file(), self.offset());
        let len = 1 + self.dice.below(9000) as usize;
        let byte = self.dice.below(255) as u8 + 1;
        let bytes = vec![byte; len];
        let expected = self
            .oracle
            .write(node, offset as usize, &bytes)
            .map(|()| len);
        let options = WriteOptions {
            durable: self.dice.below(9) == 0,
            clear_privileges: false,
        };
        let found = self.fs.write(self.inos[node], offset, &bytes, options);
        assert_eq!(found, expected, "{at}: write {len} at {offset}");
    }

    fn read(&mut self, at: &str) {
        let node = self.any_file();
        let expected = self.oracle.file_mut(node).cloned();
        if let Ok(bytes) = expected {
            assert!(
                content(&self.fs, self.inos[node]).unwrap() == bytes,
                "{at}: content of {node}"
            );
        }
    }

    fn truncate(&mut self, at: &str) {
        let (node, size) = (self.any_file(), self.offset());
        let expected = self.oracle.truncate(node, size as usize);
        let set = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        let found = self.fs.set_attr(self.inos[node], &set);
        assert_eq!(found.map(|_| ()), expected, "{at}: truncate to {size}");
    }

    fn fallocate(&mut self, at: &str) {
        let (node, offset, len) = (self.any_file(), self.offset(), 1 + self.dice.below(9000));
        let keep_size = self.dice.below(2) == 0;
        let mode = *self.dice.pick(&[
            FallocMode::Allocate { keep_size },
            FallocMode::PunchHole,
            FallocMode::ZeroRange { keep_size },
        ]);
        if self.dice.below(3) == 0 {
            return self.splice(at, node);
        }
        let expected = self.oracle.file_mut(node).map(|bytes| {
            let end = (offset + len) as usize;
            if !keep_size && mode != FallocMode::PunchHole && bytes.len() < end {
                bytes.resize(end, 0);
            }
            if !matches!(mode, FallocMode::Allocate { .. }) {
                let end = end.min(bytes.len());
                let start = (offset as usize).min(end);
                bytes[start..end].fill(0);
            }
        });
        if expected.is_ok() {
            self.oracle.changed(node);
        }
        let found = self.fs.fallocate(self.inos[node], offset, len, mode);
        assert_eq!(
            found, expected,
            "{at}: fallocate {offset} + {len}, {mode:?}"
        );
    }

    /// Collapse or insert, mostly of whole grains.
    fn splice(&mut self, at: &str, node: Node) {
        let mut offset = self.dice.below(4) * 4096;
        let len = (1 + self.dice.below(3)) * 4096 - self.dice.below(10) / 9;
        offset += self.dice.below(10) / 9;
        let mode = *self
            .dice
            .pick(&[FallocMode::CollapseRange, FallocMode::InsertRange]);
        let expected = self.oracle.file_mut(node).and_then(|bytes| {
            let (start, end) = (offset as usize, (offset + len) as usize);
            let whole = offset.is_multiple_of(4096) && len.is_multiple_of(4096);
            match mode {
                FallocMode::CollapseRange if whole && end < bytes.len() => {
                    bytes.drain(start..end);
                }
                FallocMode::InsertRange if whole && start < bytes.len() => {
                    bytes.splice(start..start, vec![0; len as usize]);
                }
                _ => return Err(FsError::Invalid),
            }
            Ok(())
        });
        if expected.is_ok() {
            self.oracle.changed(node);
        }
        let found = self.fs.fallocate(self.inos[node], offset, len, mode);
        assert_eq!(found, expected, "{at}: {mode:?} {offset} + {len}");
    }

    fn copy(&mut self, at: &str) {
        let (from, to) = (self.any_file(), self.any_file());
        let (from_offset, mut to_offset) = (self.offset(), self.offset());
        if self.dice.below(2) == 0 {
            to_offset = to_offset / 4096 * 4096 + from_offset % 4096;
        }
        let len = 1 + self.dice.below(20_000);
        let expected = self.oracle.copy((from, from_offset), (to, to_offset), len);
        let found = self.fs.copy_range(&CopyRange {
            from: self.inos[from],
            from_offset,
            to: self.inos[to],
            to_offset,
            len,
        });
        assert_eq!(
            found, expected,
            "{at}: copy {len} from {from}+{from_offset} to {to}+{to_offset}"
        );
    }

    /// Whatever is not data reads as zeros, holes and data alternate, and the mapped grains are those of the data.
    fn seek(&mut self, at: &str) {
        let node = self.any_file();
        let Ok(bytes) = self.oracle.file_mut(node).cloned() else {
            return;
        };
        let ino = self.inos[node];
        let size = bytes.len() as u64;
        let (mut from, mut mapped) = (0, 0);
        while let Ok(data) = self.fs.seek(ino, from, SeekTo::Data) {
            assert!(
                bytes[from as usize..data as usize]
                    .iter()
                    .all(|&byte| byte == 0),
                "{at}: data in a hole"
            );
            from = self.fs.seek(ino, data, SeekTo::Hole).unwrap();
            assert!(data < from && from <= size, "{at}: hole at {from}");
            mapped += from.div_ceil(4096) - data / 4096;
            if from == size {
                break;
            }
        }
        let rest = &bytes[(from as usize).min(bytes.len())..];
        assert!(rest.iter().all(|&byte| byte == 0), "{at}: data at the end");
        assert!(mapped <= self.fs.attr(ino).unwrap().grains, "{at}");
        assert_eq!(
            self.fs.seek(ino, size, SeekTo::Hole),
            Err(FsError::BehindEnd)
        );
    }

    fn attributes(&mut self, at: &str) {
        let (node, perm, uid) = (
            self.any(),
            self.dice.below(0o1000) as u16,
            self.dice.below(9) as u32,
        );
        self.oracle.change(node, perm, uid);
        let set = SetAttr {
            perm: Some(perm),
            uid: Some(uid),
            ..SetAttr::default()
        };
        let attr = self.fs.set_attr(self.inos[node], &set).unwrap();
        assert_eq!((attr.perm(), attr.uid), (perm, uid), "{at}");
    }

    fn xattr(&mut self, at: &str) {
        let node = match self.open.is_empty() || self.dice.below(3) > 0 {
            true => self.any(),
            false => *self.dice.pick(&self.open),
        };
        let (key, ino) = (*self.dice.pick(&XATTRS), self.inos[node]);
        if self.dice.below(4) == 0 {
            let expected = self.oracle.remove_xattr(node, key);
            let found = self.fs.remove_xattr(ino, name(key));
            assert_eq!(found, expected, "{at}: remove attribute {key}");
            return;
        }
        let value = match key {
            ACCESS | DEFAULT => self.list(),
            // As long as they are: with those of a directory, which stay, all would take more than there may be.
            CAPABILITY => vec![self.dice.below(256) as u8; 20],
            _ => {
                let len = match self.dice.below(12) {
                    0 => 65_536,
                    1..4 => self.dice.below(9000),
                    _ => self.dice.below(40),
                };
                vec![self.dice.below(256) as u8; len as usize]
            }
        };
        let mode = *self
            .dice
            .pick(&[XattrMode::Set, XattrMode::Create, XattrMode::Replace]);
        let expected = self.oracle.set_xattr(node, key, &value, mode);
        let found = self.fs.set_xattr(ino, name(key), &value, mode);
        assert_eq!(found, expected, "{at}: attribute {key}, {mode:?}");
    }

    /// A legal access control list.
    fn list(&mut self) -> Vec<u8> {
        let mut perm = || self.dice.below(8) as u16;
        let (owner, group, mask, others) = (perm(), perm(), perm(), perm());
        let mut entries = vec![(1, owner, !0)];
        entries.extend((0..perm() % 3).map(|id| (2, group, id.into())));
        entries.push((4, group, !0));
        entries.extend((0..perm() % 3).map(|id| (8, mask, id.into())));
        if entries.len() > 2 || perm() == 0 {
            entries.push((0x10, mask, !0));
        }
        entries.push((0x20, others, !0));
        acl::bytes(&entries)
    }

    fn open(&mut self, at: &str) {
        let node = self.any();
        if self.oracle.file_mut(node).is_ok() && self.open.len() < 8 {
            assert_eq!(self.fs.open(self.inos[node]), Ok(()), "{at}: open");
            self.open.push(node);
        }
    }

    /// Makes a file without a name, and often gives it one.
    fn unnamed(&mut self, at: &str) {
        let (dir, label, perm) = (self.any_dir(), self.any_name(), 0o600);
        if !self.oracle.is_dir(dir) || self.open.len() >= 8 {
            return;
        }
        let linkable = self.dice.below(3) > 0;
        let new = NewNode {
            mode: perm.into(),
            ..NewNode::file()
        };
        let ino = self
            .fs
            .create_unnamed(self.inos[dir], &new, linkable)
            .unwrap()
            .ino;
        let node = self.oracle.add_unnamed(dir, perm);
        self.inos.push(ino);
        self.open.push(node);
        if self.dice.below(4) > 0 {
            let to = self.any_dir();
            let expected = match linkable {
                true => self.oracle.link(node, to, label),
                false if self.oracle.lookup(to, label).is_ok() => Err(FsError::Exists),
                false => self.oracle.dir(to).and(Err(FsError::NotFound)),
            };
            let found = self.fs.link(ino, self.inos[to], name(label));
            assert_eq!(found.map(drop), expected, "{at}: name {label} for a file");
        }
    }

    fn close(&mut self) {
        if !self.open.is_empty() {
            let which = self.dice.below(self.open.len() as u64) as usize;
            let node = self.open.swap_remove(which);
            self.fs.close(self.inos[node]).unwrap();
        }
    }

    fn sync(&mut self) {
        let node = self.any_file();
        if self.oracle.file_mut(node).is_ok() {
            self.fs
                .fsync(self.inos[node], contigfs::SyncScope::All)
                .unwrap();
        }
    }

    fn compare(&self, at: &str) {
        let (found, expected) = (picture_of(&self.fs).unwrap(), self.oracle.picture());
        assert_eq!(
            found.keys().collect::<Vec<_>>(),
            expected.keys().collect::<Vec<_>>(),
            "{at}"
        );
        for (path, expected) in expected {
            assert!(found[&path] == expected, "{at}: {path}");
        }
    }

    /// An orderly shutdown; files without names go, because they are open no more.
    fn remount(&mut self) {
        for node in std::mem::take(&mut self.open) {
            self.fs.close(self.inos[node]).unwrap();
        }
        self.fs.sync_all().unwrap();
        let lost = Arc::new(self.store.after_power_cut(|_| 0));
        assert_clean(&lost);
        self.store = lost;
        self.fs = Fs::mount_with(Arc::clone(&self.store), &options(self.bug)).unwrap();
        let gone = self.fs.attr(InodeNo(1 << 40));
        assert_eq!(gone, Err(FsError::NotFound));
    }
}

fn options(bug: Option<Bug>) -> FsOptions {
    FsOptions {
        planted: bug,
        ..tight()
    }
}
