//! Files by their paths: looked at, listed, found, made, replaced.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use contigfs::{Attr, BlockStore, FallocMode, FileKind, Fs, FsError, InodeNo, NewNode, SetAttr};
use ftl::GRAIN_BYTES;

use super::{Refusal, Service};
use crate::control::{Entry, Reply, Request};
use crate::credentials::SYSTEM_DIRECTORY;
use crate::target::exports::ExportError;
use crate::target::held::Held;
use crate::target::store::TargetStore;
use crate::target::tenancy::Member;

/// How often a path is gone that changes under who goes it.
const WALKS_MAX: usize = 100;
/// No new name takes as many grains beside the bytes of its file: of its directory, of the tables of inodes, and for attributes that
/// it inherits.
const NAME_GRAINS: u64 = 8;

impl Service {
    pub(super) fn stat(&self, member: &Member, request: &Request) -> Result<Reply, Refusal> {
        if let Some(inside) = self.in_snapshots(&request.path) {
            return self.stat_in_snapshot(member, &inside);
        }
        let path = path(member, request, false)?;
        Ok(shown(&self.resolve(Path::new(path))?.attr))
    }

    pub(super) fn list(&self, member: &Member, request: &Request) -> Result<Reply, Refusal> {
        if let Some(inside) = self.in_snapshots(&request.path) {
            return self.list_in_snapshot(member, &inside, request.offset);
        }
        let path = Path::new(path(member, request, false)?);
        list(&self.fs, path, request.offset)
    }

    /// The file of now at a path that the exports allow.
    pub(super) fn resolve(&self, path: &Path) -> Result<Held<'_, TargetStore>, Refusal> {
        resolve(&self.fs, path)
    }

    /// Makes a file that is to have `length` bytes. If they are known not to fit there is none afterwards, not even an empty
    /// one.
    pub(super) fn create(
        &self,
        path: &str,
        exclusive: bool,
        length: u64,
    ) -> Result<Held<'_, TargetStore>, Refusal> {
        let text = path;
        let path = Path::new(text);
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Refusal(libc::EISDIR, "/ is a directory".into()));
        };
        let directory = self.resolve(parent)?;
        let parent = directory.attr.ino;
        // It will belong to the project of the directory, whose own grains stay. What has no room has to be refused before there is
        // a name, which takes room, too.
        let (room, reason) = self.fs.room_in_place_of(parent)?;
        let taken = self.fs.attr(parent)?.grains + NAME_GRAINS;
        fits(text, length, (room.saturating_sub(taken), reason))?;
        let node = node(FileKind::File, 0o644);
        let name: &OsStr = name;
        let made = match self.fs.create(parent, name, &node) {
            // Somebody else was faster, which is as good.
            Err(error) if error.errno() == libc::EEXIST && !exclusive => {
                self.fs.lookup(parent, name)?
            }
            made => made.map_err(|error| named(path, &error))?,
        };
        self.mapped.changed_attributes(parent);
        let held = Held::of(&self.fs, &made)?;
        held.ok_or_else(|| Refusal(libc::ENOENT, format!("{text} was removed at once")))
    }

    /// Gives the file `length` bytes of zeros, with their space, in place of what it holds. What can be known to fail
    /// fails before anything is lost.
    pub(super) fn replace(&self, inode: InodeNo, path: &str, length: u64) -> Result<(), Refusal> {
        let attr = self.fs.attr(inode)?;
        fits(path, length, self.fs.room_in_place_of(inode)?)?;
        if length > attr.size {
            self.resize(inode, length)?;
        }
        self.resize(inode, 0)?;
        if length > 0 {
            let reserve = FallocMode::Allocate { keep_size: false };
            self.fs.fallocate(inode, 0, length, reserve)?;
        }
        Ok(())
    }

    fn resize(&self, inode: InodeNo, size: u64) -> Result<(), Refusal> {
        let change = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        self.fs.set_attr(inode, &change)?;
        Ok(())
    }
}

/// What the client hears of a file that it asks about.
pub(super) fn shown(attr: &Attr) -> Reply {
    Reply {
        mode: attr.mode,
        size: attr.size,
        mtime_ns: attr.mtime.as_unix_ns(),
        ..Reply::default()
    }
}

/// What the client hears of a file in a directory.
pub(super) fn entry(name: &[u8], attr: &Attr) -> Entry {
    Entry {
        size: attr.size,
        mtime_ns: attr.mtime.as_unix_ns(),
        mode: attr.mode,
        name: name.to_vec(),
    }
}

/// The entries of a directory behind a cookie, as many as fit into a reply.
pub(super) fn list<S: BlockStore>(fs: &Fs<S>, path: &Path, from: u64) -> Result<Reply, Refusal> {
    let directory = resolve(fs, path)?;
    let inode = directory.attr.ino;
    let mut names = Vec::new();
    let mut room = Reply::PAYLOAD_BYTES_MAX;
    let mut full = false;
    let read = fs.readdir(inode, from, |entry| {
        let bytes = Reply::entry_bytes(entry.name.len());
        if bytes > room {
            full = true;
            return false;
        }
        room -= bytes;
        names.push((entry.name.to_owned(), entry.next_cookie));
        true
    });
    read.map_err(|error| named(path, &error))?;
    let cookie = if full {
        names.last().map_or(0, |(_, cookie)| *cookie)
    } else {
        0
    };
    let entries = names
        .into_iter()
        .filter(|(name, _)| name != "." && name != "..")
        .filter(|(name, _)| inode != InodeNo::ROOT || *name != SYSTEM_DIRECTORY[1..])
        .filter_map(|(name, _)| {
            // An entry that was removed meanwhile is not listed, and no other by its number.
            let attr = fs.lookup(inode, &name).ok()?;
            Some(entry(name.as_bytes(), &attr))
        })
        .collect();
    Ok(Reply {
        cookie,
        entries,
        ..Reply::default()
    })
}

/// The file at a path. Symbolic links are not followed: they may lead out of the exports.
pub(super) fn resolve<'a, S: BlockStore>(
    fs: &'a Fs<S>,
    path: &Path,
) -> Result<Held<'a, S>, Refusal> {
    for _ in 0..WALKS_MAX {
        if let Some(found) = walk(fs, path)? {
            return Ok(found);
        }
    }
    let text = format!("{}: is replaced again and again", path.display());
    Err(Refusal(libc::ESTALE, text))
}

/// The same; none if something on the way has gone as soon as it was found.
fn walk<'a, S: BlockStore>(fs: &'a Fs<S>, path: &Path) -> Result<Option<Held<'a, S>>, Refusal> {
    let mut at = Held::of(fs, &fs.attr(InodeNo::ROOT)?)?;
    for part in path.components() {
        let Component::Normal(name) = part else {
            continue;
        };
        let Some(directory) = &at else {
            return Ok(None);
        };
        if directory.attr.kind == FileKind::Symlink {
            let text = format!("{}: leads through a symbolic link", path.display());
            return Err(Refusal(libc::ELOOP, text));
        }
        let found = fs.lookup(directory.attr.ino, name);
        at = Held::of(fs, &found.map_err(|error| named(path, &error))?)?;
    }
    Ok(at)
}

/// What is made for a client: it belongs to whoever runs the target.
pub(super) fn node(kind: FileKind, mode: u32) -> NewNode {
    NewNode {
        kind,
        mode,
        umask: 0,
        // SAFETY: neither call has arguments or can fail.
        uid: unsafe { libc::geteuid() },
        // SAFETY: as above.
        gid: unsafe { libc::getegid() },
        rdev: 0,
    }
}

/// The path of a request, if this client may use it.
pub(super) fn path<'r>(
    member: &Member,
    request: &'r Request,
    write: bool,
) -> Result<&'r str, Refusal> {
    checked(member, &request.path, write)
}

/// The same, of one path of several.
pub(super) fn checked<'r>(
    member: &Member,
    bytes: &'r [u8],
    write: bool,
) -> Result<&'r str, Refusal> {
    let path = std::str::from_utf8(bytes)
        .map_err(|_| Refusal(libc::EILSEQ, "the path is not UTF-8".into()))?;
    allowed(member, path, write)?;
    Ok(path)
}

/// Whether this client may use a path.
pub(super) fn allowed(member: &Member, path: &str, write: bool) -> Result<(), Refusal> {
    member.exports.check(path, write)?;
    let own = path
        .strip_prefix(SYSTEM_DIRECTORY)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    match own {
        true => Err(ExportError::NotExported(path.to_owned()).into()),
        false => Ok(()),
    }
}

pub(super) fn named(path: &Path, error: &FsError) -> Refusal {
    Refusal(error.errno(), format!("{}: {error}", path.display()))
}

/// Whether so many bytes fit into so many grains of room, or are too many for this reason.
fn fits(path: &str, length: u64, (room, reason): (u64, FsError)) -> Result<(), Refusal> {
    let room = room * GRAIN_BYTES as u64;
    if length > room {
        let text = format!("{path} would have {length} bytes, there is room for {room}");
        return Err(Refusal(reason.errno(), text));
    }
    Ok(())
}
