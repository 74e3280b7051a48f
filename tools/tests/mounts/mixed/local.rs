//! A program on the mount: what it can call, how it does, and what it must be answered.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use libc::{EBADF, EEXIST, EINVAL, EISDIR, ENOENT};
use memmap2::{MmapOptions, MmapRaw};

use super::answer::{Answer, Attributes, Fill, Outcome};
use super::oracle::{Mode, Node, Oracle};

/// Files that a program has open at once.
pub const SLOTS: usize = 5;
const GRAIN: usize = 4096;

/// Flags of `open`.
#[derive(Clone, Copy, Debug, Default)]
pub struct How {
    pub create: bool,
    pub exclusive: bool,
    pub truncate: bool,
    pub append: bool,
    pub dsync: bool,
}

/// Modes of `fallocate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    Allocate,
    AllocateBehind,
    Punch,
    Zero,
    ZeroBehind,
}

impl Space {
    pub const ALL: [Self; 5] = [
        Self::Allocate,
        Self::AllocateBehind,
        Self::Punch,
        Self::Zero,
        Self::ZeroBehind,
    ];

    fn flags(self) -> i32 {
        let keep = libc::FALLOC_FL_KEEP_SIZE;
        match self {
            Self::Allocate => 0,
            Self::AllocateBehind => keep,
            Self::Punch => libc::FALLOC_FL_PUNCH_HOLE | keep,
            Self::Zero => libc::FALLOC_FL_ZERO_RANGE,
            Self::ZeroBehind => libc::FALLOC_FL_ZERO_RANGE | keep,
        }
    }

    fn grows(self) -> bool {
        matches!(self, Self::Allocate | Self::Zero)
    }

    fn clears(self) -> bool {
        !matches!(self, Self::Allocate | Self::AllocateBehind)
    }
}

/// One call, or a few that belong together. Paths are those of the oracle; slots name open files.
#[derive(Clone, Debug)]
pub enum LocalCall {
    Open {
        slot: usize,
        path: String,
        how: How,
    },
    Close(usize),
    Read {
        slot: usize,
        offset: usize,
        len: usize,
    },
    Write {
        slot: usize,
        offset: usize,
        fill: Fill,
    },
    Resize {
        slot: usize,
        size: usize,
    },
    Space {
        slot: usize,
        how: Space,
        offset: usize,
        len: usize,
    },
    /// `copy_file_range`: whole grains are cloned.
    Copy {
        from: (usize, usize),
        to: (usize, usize),
        len: usize,
    },
    Sync(usize),
    Examine(usize),
    Map(usize),
    /// Loads through the mapping.
    Load {
        slot: usize,
        offset: usize,
        len: usize,
    },
    /// Stores through the mapping, and `msync`; with a look by `read` in between. Answers what was seen.
    Store {
        slot: usize,
        offset: usize,
        fill: Fill,
    },
    Truncate {
        path: String,
        size: usize,
    },
    Rename {
        from: String,
        to: String,
        mode: Mode,
    },
    Link {
        from: String,
        to: String,
    },
    Unlink(String),
    MakeDir(String),
    RemoveDir(String),
    List(String),
    Stat(String),
    /// Opens, `fsync`, closes.
    SyncPath(String),
    /// Everything is closed.
    LetGo,
}

impl LocalCall {
    /// The slots that it is about, and the path.
    pub fn about(&self) -> (Vec<usize>, Option<&str>) {
        match self {
            Self::Open { path, .. } | Self::Truncate { path, .. } | Self::SyncPath(path) => {
                (Vec::new(), Some(path))
            }
            Self::Rename { from, .. } | Self::Link { from, .. } => (Vec::new(), Some(from)),
            Self::Unlink(path)
            | Self::MakeDir(path)
            | Self::RemoveDir(path)
            | Self::List(path)
            | Self::Stat(path) => (Vec::new(), Some(path)),
            Self::Close(slot) | Self::Sync(slot) | Self::Examine(slot) | Self::Map(slot) => {
                (vec![*slot], None)
            }
            Self::Read { slot, .. }
            | Self::Write { slot, .. }
            | Self::Resize { slot, .. }
            | Self::Space { slot, .. }
            | Self::Load { slot, .. }
            | Self::Store { slot, .. } => (vec![*slot], None),
            Self::Copy { from, to, .. } => (vec![from.0, to.0], None),
            Self::LetGo => (Vec::new(), None),
        }
    }
}

/// A file that a program has open, as the driver knows it.
#[derive(Clone, Copy, Debug)]
pub struct OpenFile {
    pub node: Node,
    pub how: How,
    /// Length of the mapping.
    pub mapped: Option<usize>,
}

/// What the driver knows of a program.
#[derive(Debug, Default)]
pub struct LocalView {
    pub slots: [Option<OpenFile>; SLOTS],
}

impl LocalView {
    fn file(&self, slot: usize) -> Result<OpenFile, i32> {
        self.slots[slot].ok_or(EBADF)
    }

    /// Carries the call out on the oracle, and answers what the program must be answered.
    pub fn expect(&mut self, oracle: &mut Oracle, call: &LocalCall) -> Outcome {
        match call {
            LocalCall::Open { slot, path, how } => {
                let node = open(oracle, path, *how)?;
                self.slots[*slot] = Some(OpenFile {
                    node,
                    how: *how,
                    mapped: None,
                });
            }
            LocalCall::Close(slot) => self.slots[*slot] = None,
            LocalCall::Read { slot, offset, len } => {
                let node = self.file(*slot)?.node;
                return Ok(Answer::Bytes(cut(oracle, node, *offset, *len).to_vec()));
            }
            LocalCall::Write { slot, offset, fill } => {
                let OpenFile { node, how, .. } = self.file(*slot)?;
                let size = oracle.size(node);
                let offset = if how.append { size } else { *offset };
                let content = oracle.content_mut(node);
                content.write(offset, &fill.bytes());
                let end = offset + fill.len;
                if how.dsync && fill.len > 0 {
                    content.made_durable(offset..end, end > size);
                }
                return Ok(Answer::Count(fill.len));
            }
            LocalCall::Resize { slot, size } => {
                let node = self.file(*slot)?.node;
                oracle.resize(node, *size);
            }
            LocalCall::Space {
                slot,
                how,
                offset,
                len,
            } => {
                let node = self.file(*slot)?.node;
                if *len == 0 {
                    return Err(EINVAL);
                }
                let end = offset + len;
                let content = oracle.content_mut(node);
                if how.clears() {
                    content.zero(*offset..end, how.grows());
                } else if how.grows() && end > content.bytes.len() {
                    content.resize(end);
                }
            }
            LocalCall::Copy { from, to, len } => return self.copy(oracle, *from, *to, *len),
            LocalCall::Sync(slot) => {
                let node = self.file(*slot)?.node;
                oracle.content_mut(node).settle();
            }
            LocalCall::Examine(slot) => {
                let node = self.file(*slot)?.node;
                return Ok(Answer::Attributes(oracle.attributes(node)));
            }
            LocalCall::Map(slot) => {
                let file = self.slots[*slot].as_mut().ok_or(EBADF)?;
                file.mapped = Some(oracle.size(file.node));
            }
            LocalCall::Load { slot, offset, len } => {
                let node = self.file(*slot)?.node;
                return Ok(Answer::Bytes(cut(oracle, node, *offset, *len).to_vec()));
            }
            LocalCall::Store { slot, offset, fill } => {
                let node = self.file(*slot)?.node;
                let content = oracle.content_mut(node);
                content.write(*offset, &fill.bytes());
                content.made_durable(*offset..offset + fill.len, false);
                return Ok(Answer::Bytes(fill.bytes()));
            }
            LocalCall::Truncate { path, size } => {
                let node = oracle.find(path)?;
                if oracle.is_dir(node) {
                    return Err(EISDIR);
                }
                oracle.resize(node, *size);
            }
            LocalCall::Rename { from, to, mode } => oracle.rename(from, to, *mode)?,
            LocalCall::Link { from, to } => oracle.link(from, to)?,
            LocalCall::Unlink(path) => oracle.unlink(path)?,
            LocalCall::MakeDir(path) => oracle.make_dir(path).map(drop)?,
            LocalCall::RemoveDir(path) => oracle.remove_dir(path)?,
            LocalCall::List(path) => {
                let dir = oracle.find(path)?;
                let entries = oracle.dir(dir)?.iter();
                let names = entries.map(|(name, &child)| (name.clone(), oracle.attributes(child)));
                return Ok(Answer::Names(names.collect()));
            }
            LocalCall::Stat(path) => {
                let node = oracle.find(path)?;
                return Ok(Answer::Attributes(oracle.attributes(node)));
            }
            LocalCall::SyncPath(path) => {
                let node = oracle.find(path)?;
                oracle.content_mut(node).settle();
            }
            LocalCall::LetGo => *self = Self::default(),
        }
        Ok(Answer::Done)
    }

    fn copy(
        &self,
        oracle: &mut Oracle,
        (from, from_offset): (usize, usize),
        (to, to_offset): (usize, usize),
        len: usize,
    ) -> Outcome {
        let (from, to) = (self.file(from)?, self.file(to)?);
        if to.how.append {
            return Err(EBADF);
        }
        let bytes = cut(oracle, from.node, from_offset, len).to_vec();
        // The kernel looks at what there is to copy.
        let overlap =
            from_offset < to_offset + bytes.len() && to_offset < from_offset + bytes.len();
        if from.node == to.node && overlap {
            return Err(EINVAL);
        }
        let size = oracle.size(to.node);
        let content = oracle.content_mut(to.node);
        content.write(to_offset, &bytes);
        if from_offset % GRAIN == to_offset % GRAIN {
            // Cloned, and so durable.
            let first = to_offset.next_multiple_of(GRAIN);
            let end = (to_offset + bytes.len()) / GRAIN * GRAIN;
            if first < end {
                content.made_durable(first..end, end > size);
            }
        }
        Ok(Answer::Count(bytes.len()))
    }
}

fn open(oracle: &mut Oracle, path: &str, how: How) -> Result<Node, i32> {
    let node = match oracle.find(path) {
        Ok(_) if how.create && how.exclusive => return Err(EEXIST),
        Err(ENOENT) if how.create => oracle.create(path)?,
        found => found?,
    };
    if oracle.is_dir(node) {
        return Err(EISDIR);
    }
    if how.truncate {
        oracle.resize(node, 0);
    }
    Ok(node)
}

/// What a read gets.
fn cut(oracle: &Oracle, node: Node, offset: usize, len: usize) -> &[u8] {
    let bytes = &oracle.content(node).bytes;
    let end = bytes.len().min(offset + len);
    bytes.get(offset..end).unwrap_or_default()
}

/// The program itself.
#[derive(Debug)]
pub struct Local {
    root: PathBuf,
    slots: [Option<(File, Option<MmapRaw>)>; SLOTS],
}

impl Local {
    pub fn new(root: PathBuf) -> Self {
        Self {
            root,
            slots: Default::default(),
        }
    }

    pub fn call(&mut self, call: LocalCall) -> Outcome {
        self.perform(call)
            .map_err(|error| error.raw_os_error().unwrap_or_else(|| panic!("{error}")))
    }

    fn file(&self, slot: usize) -> io::Result<&File> {
        let file = self.slots[slot].as_ref().map(|(file, _)| file);
        file.ok_or_else(|| io::Error::from_raw_os_error(EBADF))
    }

    fn map(&self, slot: usize) -> (&File, &MmapRaw) {
        match &self.slots[slot] {
            Some((file, Some(map))) => (file, map),
            _ => panic!("slot {slot} is not mapped"),
        }
    }

    fn perform(&mut self, call: LocalCall) -> io::Result<Answer> {
        let path = |path: &str| self.root.join(path);
        match call {
            LocalCall::Open {
                slot,
                path: at,
                how,
            } => {
                let file = open_file(&path(&at), how)?;
                self.slots[slot] = Some((file, None));
            }
            LocalCall::Close(slot) => self.slots[slot] = None,
            LocalCall::Read { slot, offset, len } => {
                let mut bytes = vec![0; len];
                let n = self.file(slot)?.read_at(&mut bytes, offset as u64)?;
                bytes.truncate(n);
                return Ok(Answer::Bytes(bytes));
            }
            LocalCall::Write { slot, offset, fill } => {
                let n = self.file(slot)?.write_at(&fill.bytes(), offset as u64)?;
                return Ok(Answer::Count(n));
            }
            LocalCall::Resize { slot, size } => self.file(slot)?.set_len(size as u64)?,
            LocalCall::Space {
                slot,
                how,
                offset,
                len,
            } => {
                let fd = self.file(slot)?.as_raw_fd();
                let (offset, len) = (offset as i64, len as i64);
                // SAFETY: no memory is involved.
                ok(unsafe { libc::fallocate(fd, how.flags(), offset, len) })?;
            }
            LocalCall::Copy { from, to, len } => {
                let (source, target) = (self.file(from.0)?, self.file(to.0)?);
                // The kernel goes by the size that it knows. What a peer made of it, it hears when somebody asks.
                source.metadata()?;
                let (mut from, mut to) = (from.1 as i64, to.1 as i64);
                let (source, target) = (source.as_raw_fd(), target.as_raw_fd());
                // SAFETY: both offsets outlive the call.
                let n =
                    unsafe { libc::copy_file_range(source, &mut from, target, &mut to, len, 0) };
                return Ok(Answer::Count(ok(n as i64)? as usize));
            }
            LocalCall::Sync(slot) => self.file(slot)?.sync_data()?,
            LocalCall::Examine(slot) => {
                return Ok(Answer::Attributes(attributes(
                    &self.file(slot)?.metadata()?,
                )));
            }
            LocalCall::Map(slot) => {
                let map = MmapOptions::new().map_raw(self.file(slot)?)?;
                self.slots[slot].as_mut().expect("just used").1 = Some(map);
            }
            LocalCall::Load { slot, offset, len } => {
                let (file, map) = self.map(slot);
                // As for copies.
                file.metadata()?;
                let mut bytes = vec![0; len];
                assert!(offset + len <= map.len());
                // SAFETY: inside the mapping, and before the end of the file; nobody stores meanwhile.
                unsafe {
                    std::ptr::copy(map.as_ptr().add(offset), bytes.as_mut_ptr(), len);
                }
                return Ok(Answer::Bytes(bytes));
            }
            LocalCall::Store { slot, offset, fill } => {
                let (file, map) = self.map(slot);
                file.metadata()?;
                assert!(offset + fill.len <= map.len());
                // SAFETY: as above; nobody loads meanwhile.
                unsafe {
                    let to = map.as_mut_ptr().add(offset);
                    std::ptr::copy(fill.bytes().as_ptr(), to, fill.len);
                }
                let mut seen = vec![0; fill.len];
                file.read_exact_at(&mut seen, offset as u64)?;
                map.flush_range(offset, fill.len)?;
                return Ok(Answer::Bytes(seen));
            }
            LocalCall::Truncate { path: at, size } => {
                let at = c_path(&path(&at));
                // SAFETY: the path ends with NUL.
                ok(unsafe { libc::truncate(at.as_ptr(), size as i64) })?;
            }
            LocalCall::Rename { from, to, mode } => {
                let flags = match mode {
                    Mode::Replace => 0,
                    Mode::NoReplace => libc::RENAME_NOREPLACE,
                    Mode::Exchange => libc::RENAME_EXCHANGE,
                };
                let (from, to) = (c_path(&path(&from)), c_path(&path(&to)));
                let cwd = libc::AT_FDCWD;
                // SAFETY: both paths end with NUL.
                ok(unsafe { libc::renameat2(cwd, from.as_ptr(), cwd, to.as_ptr(), flags) })?;
            }
            LocalCall::Link { from, to } => fs::hard_link(path(&from), path(&to))?,
            LocalCall::Unlink(at) => fs::remove_file(path(&at))?,
            LocalCall::MakeDir(at) => fs::create_dir(path(&at))?,
            LocalCall::RemoveDir(at) => fs::remove_dir(path(&at))?,
            LocalCall::List(at) => {
                let mut names = Vec::new();
                for entry in fs::read_dir(path(&at))? {
                    let entry = entry?;
                    let name = entry.file_name().into_string().expect("ours");
                    let kind = entry.file_type()?;
                    let found = attributes(&entry.metadata()?);
                    assert_eq!(kind.is_dir(), found.is_dir, "kind of {name}");
                    names.push((name, found));
                }
                names.sort_by(|a, b| a.0.cmp(&b.0));
                return Ok(Answer::Names(names));
            }
            LocalCall::Stat(at) => {
                return Ok(Answer::Attributes(attributes(&fs::metadata(path(&at))?)));
            }
            LocalCall::SyncPath(at) => File::open(path(&at))?.sync_all()?,
            LocalCall::LetGo => self.slots = Default::default(),
        }
        Ok(Answer::Done)
    }
}

fn open_file(path: &Path, how: How) -> io::Result<File> {
    let mut flags = 0;
    for (wanted, flag) in [
        (how.create, libc::O_CREAT),
        (how.create && how.exclusive, libc::O_EXCL),
        (how.truncate, libc::O_TRUNC),
        (how.append, libc::O_APPEND),
        (how.dsync, libc::O_DSYNC),
    ] {
        flags |= if wanted { flag } else { 0 };
    }
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(flags)
        .open(path)
}

fn attributes(found: &fs::Metadata) -> Attributes {
    Attributes {
        is_dir: found.is_dir(),
        size: found.is_file().then_some(found.len() as usize),
        links: Some(found.nlink() as usize),
        number: Some(found.ino()),
    }
}

fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).expect("no NUL in it")
}

fn ok(result: impl Into<i64>) -> io::Result<i64> {
    match result.into() {
        -1 => Err(io::Error::last_os_error()),
        n => Ok(n),
    }
}
