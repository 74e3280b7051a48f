//! Names that are made, taken away and given to others.

use std::ffi::OsStr;
use std::path::Path;

use contigfs::{Attr, FileKind, Fs, FsError, InodeNo, NewNode, RenameMode};

use super::names::{checked, named, node, path};
use super::{DRAM_PATH, Refusal, Service};
use crate::control::{FLAG_EXCLUSIVE, Reply, Request};
use crate::target::held::Held;
use crate::target::store::TargetStore;
use crate::target::tenancy::Member;

/// A name that may be changed, and the directory that it is in.
struct Place<'a> {
    directory: Held<'a, TargetStore>,
    name: &'a OsStr,
    path: &'a Path,
}

impl Service {
    /// Takes the name of anything but a directory away.
    pub(super) fn unlink(&self, member: &Member, request: &Request) -> Result<Reply, Refusal> {
        self.take_away(member, request, Fs::unlink)
    }

    /// Takes an empty directory away.
    pub(super) fn rmdir(&self, member: &Member, request: &Request) -> Result<Reply, Refusal> {
        self.take_away(member, request, Fs::rmdir)
    }

    fn take_away(
        &self,
        member: &Member,
        request: &Request,
        take: impl FnOnce(&Fs<TargetStore>, InodeNo, &OsStr) -> Result<(), FsError>,
    ) -> Result<Reply, Refusal> {
        let Place {
            directory,
            name,
            path,
        } = self.place(member, path(member, request, true)?)?;
        let parent = directory.attr.ino;
        let there = self.fs.lookup(parent, name);
        take(&self.fs, parent, name).map_err(|error| named(path, &error))?;
        self.mapped.changed_names(parent, &[name]);
        // It may have other names, or be open.
        self.seen_anew(there);
        Ok(Reply::default())
    }

    /// Makes a directory; one that is there is as good, unless it is to be a new one.
    pub(super) fn mkdir(&self, member: &Member, request: &Request) -> Result<Reply, Refusal> {
        let text = path(member, request, true)?;
        let exclusive = request.flags & FLAG_EXCLUSIVE != 0;
        // Before it is asked whether its name may be changed, which is not to be.
        if let Ok(there) = self.resolve(Path::new(text)) {
            if exclusive {
                return Err(Refusal(libc::EEXIST, format!("{text} exists")));
            }
            if there.attr.kind == FileKind::Directory {
                return Ok(directory(&there.attr));
            }
        }
        let Place {
            directory: parent,
            name,
            path,
        } = self.place(member, text)?;
        let parent = parent.attr.ino;
        let node: NewNode = node(FileKind::Directory, 0o755);
        let made = match self.fs.create(parent, name, &node) {
            Err(error) if error.errno() == libc::EEXIST && !exclusive => {
                // Unless it is something else.
                let there = self.fs.lookup(parent, name);
                let there = there.map_err(|error| named(path, &error))?;
                (there.kind == FileKind::Directory)
                    .then_some(there)
                    .ok_or(error)
            }
            made => made,
        };
        let attr = made.map_err(|error| named(path, &error))?;
        self.mapped.changed_attributes(parent);
        Ok(directory(&attr))
    }

    /// Gives what has the first name the second one, in place of what had that.
    pub(super) fn rename(&self, member: &Member, request: &Request) -> Result<Reply, Refusal> {
        let first = usize::try_from(request.length).ok();
        let split = first.and_then(|first| request.path.split_at_checked(first));
        let (from, to) = split.ok_or_else(|| {
            let text = format!("the first path has no {} bytes", request.length);
            Refusal(libc::EINVAL, text)
        })?;
        let from = self.place(member, checked(member, from, true)?)?;
        let to = self.place(member, checked(member, to, true)?)?;
        let mode = match request.flags & FLAG_EXCLUSIVE {
            0 => RenameMode::Replace,
            _ => RenameMode::NoReplace,
        };
        let (old, new) = (from.directory.attr.ino, to.directory.attr.ino);
        let replaced = self.fs.lookup(new, to.name);
        let renamed = self.fs.rename(old, from.name, new, to.name, mode);
        renamed.map_err(|error| {
            let (from, to) = (from.path.display(), to.path.display());
            Refusal(error.errno(), format!("{from} to {to}: {error}"))
        })?;
        self.mapped.changed_names(old, &[from.name]);
        self.mapped.changed_names(new, &[to.name]);
        self.seen_anew(replaced);
        self.seen_anew(self.fs.lookup(new, to.name));
        Ok(Reply::default())
    }

    /// Local programs are told of the attributes of a file anew, if there is one.
    fn seen_anew(&self, file: Result<Attr, FsError>) {
        if let Ok(attr) = file {
            self.mapped.changed_attributes(attr.ino);
        }
    }

    /// Where a name is changed. Who may change it may change its directory, too, and what is exported, or leads there, keeps its name:
    /// another rule would hold for what has moved.
    fn place<'a>(&'a self, member: &Member, text: &'a str) -> Result<Place<'a>, Refusal> {
        if let Some(inside) = self.in_snapshots(text.as_bytes()) {
            return Err(inside.stays());
        }
        let path = Path::new(text);
        let stays = || Refusal(libc::EBUSY, format!("{text} stays: it is exported"));
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(stays());
        };
        let exported = |export: &str| Path::new(export).starts_with(path);
        if member.exports.iter().any(|export| exported(&export.path)) {
            return Err(stays());
        }
        if self.dram.is_some() && path == Path::new(DRAM_PATH) {
            return Err(stays());
        }
        let above = parent.to_str().expect("a part of a text is one");
        member.exports.check(above, true)?;
        let directory = self.resolve(parent)?;
        Ok(Place {
            directory,
            name,
            path,
        })
    }
}

/// What the client hears of a directory.
fn directory(attr: &Attr) -> Reply {
    Reply {
        mode: attr.mode,
        size: attr.size,
        mtime_ns: attr.mtime.as_unix_ns(),
        cookie: attr.ino.0,
        ..Reply::default()
    }
}
