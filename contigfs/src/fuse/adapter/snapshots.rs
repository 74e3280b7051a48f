//! `.snapshots`: a directory that is nowhere on media, and what is below it.
//!
//! Numbers that the kernel knows tell whose an inode is: below 2^32 it is one of now; above, the upper half is the number
//! of a snapshot, and the lower half the inode's in it. Each snapshot that somebody looks into is a file system of its own,
//! served by an adapter of its own, which is asked for nothing that changes anything.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::{Arc, Mutex, PoisonError};

use ftl::snapshot::Snapshot;
use zerocopy::IntoBytes;

use super::super::attr::ShownOwner;
use super::super::cache::{PageCache, Unheard};
use super::super::message::{Malformed, Message};
use super::super::reply::Reply;
use super::super::session::Serve;
use super::super::wire::{
    BatchForgetIn, EntryOut, ForgetOne, LinkIn, MkdirIn, OpenIn, OpenOut, ReadIn, Rename2In,
    RenameIn, opcode,
};
use super::directories::Names;
use super::{Adapter, Served};
use crate::error::FsError;
use crate::fs::{DirEntry, Fs, open_snapshot};
use crate::inode::{Attr, FileKind, InodeNo};
use crate::snapshot::{SNAPSHOT_NUMBER_SHIFT as NUMBER_SHIFT, SNAPSHOTS, SnapshotView};
use crate::store::BlockStore;
use crate::time::Timestamp;

/// Behind all numbers of snapshots that are ever told.
const NUMBER_END: u64 = 1 << 31;
const DIRECTORY: u64 = NUMBER_END << NUMBER_SHIFT | 1;
/// Cookies up to this one are those of `.` and `..`.
const COOKIE_SNAPSHOTS: u64 = 2;

type View<S> = Arc<Adapter<SnapshotView<S>>>;

/// Serves a file system with its snapshots.
pub(in crate::fuse) struct WithSnapshots<S: BlockStore + 'static> {
    live: Adapter<S>,
    fs: Arc<Fs<S>>,
    shown: ShownOwner,
    read_only: bool,
    views: Mutex<HashMap<u64, View<S>>>,
}

impl<S: BlockStore + 'static> WithSnapshots<S> {
    pub(in crate::fuse) fn new(
        live: Adapter<S>,
        fs: Arc<Fs<S>>,
        shown: ShownOwner,
        read_only: bool,
    ) -> Self {
        Self {
            live,
            fs,
            shown,
            read_only,
            views: Mutex::default(),
        }
    }

    /// The directory, as a root directory that is somewhere else.
    fn directory(&self) -> Result<Attr, FsError> {
        let root = self.fs.attr(InodeNo::ROOT)?;
        Ok(Attr {
            ino: InodeNo(DIRECTORY),
            mode: libc::S_IFDIR | 0o755,
            nlink: 2,
            size: 0,
            grains: 0,
            ..root
        })
    }

    fn directory_entry(&self) -> Result<EntryOut, FsError> {
        self.directory().map(|attr| self.shown.entry(&attr))
    }

    /// The adapter of a snapshot. Those of deleted ones go.
    fn view(&self, snapshot: &Snapshot) -> Result<View<S>, FsError> {
        let mut views = self.views.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(view) = views.get(&snapshot.number) {
            return Ok(Arc::clone(view));
        }
        let alive = self.fs.snapshots();
        views.retain(|number, _| alive.iter().any(|s| s.number == *number));
        let shown = self.shown_in(snapshot)?;
        let opened = Arc::new(open_snapshot(&self.fs, snapshot)?);
        // Through the kernel's cache: what is in it never changes.
        let cache = PageCache::new(Box::new(Unheard));
        let view = Arc::new(Adapter::new(opened, shown, cache, None, 0, None, true));
        views.insert(snapshot.number, Arc::clone(&view));
        Ok(view)
    }

    /// How what is in a snapshot is shown.
    fn shown_in(&self, snapshot: &Snapshot) -> Result<ShownOwner, FsError> {
        if snapshot.number >= NUMBER_END {
            return Err(FsError::NotSupported);
        }
        Ok(ShownOwner {
            base: snapshot.number << NUMBER_SHIFT,
            generation: snapshot.created_ns,
            root_born: Some(Timestamp::from_unix_ns(snapshot.created_ns)),
            ..self.shown
        })
    }

    /// The adapter of a snapshot that somebody has looked into.
    fn opened(&self, number: u64) -> Option<View<S>> {
        let views = self.views.lock().unwrap_or_else(PoisonError::into_inner);
        views.get(&number).map(Arc::clone)
    }

    fn view_of(&self, number: u64) -> Result<View<S>, FsError> {
        let all = self.fs.snapshots();
        let found = all.into_iter().find(|s| s.number == number);
        self.view(&found.ok_or(FsError::NotFound)?)
    }

    /// The root directory of a snapshot, as an entry of the directory.
    fn entry(&self, snapshot: &Snapshot) -> Result<EntryOut, FsError> {
        let view = self.view(snapshot)?;
        let root = view.fs.attr(InodeNo::ROOT)?;
        Ok(view.shown.entry(&root))
    }

    fn lookup(&self, mut message: Message<'_>, reply: Reply) -> Served {
        let name = message.name()?;
        let found = match name.as_bytes() {
            b"." => self.directory_entry(),
            b".." => {
                let root = self.fs.remember(InodeNo::ROOT);
                root.map(|attr| self.shown.entry(&attr))
            }
            name => {
                let found = self.fs.find_snapshot(name).ok_or(FsError::NotFound);
                found.and_then(|snapshot| self.entry(&snapshot))
            }
        };
        reply.with(found, |entry| entry);
        Ok(())
    }

    fn make(&self, mut message: Message<'_>, reply: Reply) -> Served {
        let _: MkdirIn = message.take()?;
        let name = message.name()?;
        let made = match self.read_only {
            true => Err(FsError::ReadOnly),
            false => self.fs.make_snapshot(name.as_bytes()),
        };
        // Opening it reads every inode: whoever looks at it first does that. Until then its root directory is that of now,
        // which may have changed meanwhile, so the kernel believes it not even for a moment.
        let entry = made.and_then(|made| {
            let root = self.fs.attr(InodeNo::ROOT)?;
            Ok(EntryOut {
                attr_valid: 0,
                ..self.shown_in(&made)?.entry(&root)
            })
        });
        reply.with(entry, |entry| entry);
        Ok(())
    }

    fn delete(&self, mut message: Message<'_>, reply: Reply) -> Served {
        let name = message.name()?;
        let deleted = match self.read_only {
            true => Err(FsError::ReadOnly),
            false => self.fs.delete_snapshot(name.as_bytes()),
        };
        reply.done(deleted);
        Ok(())
    }

    fn list(&self, mut message: Message<'_>, plus: bool, reply: Reply) -> Served {
        let what: ReadIn = message.take()?;
        // As long as this is mounted numbers of snapshots only grow, so whatever becomes of one, the others stay behind the same cookies.
        let mut all = vec![
            (1, ".".into(), DIRECTORY),
            (2, "..".into(), InodeNo::ROOT.0),
        ];
        for snapshot in self.fs.snapshots() {
            let ino = snapshot.number << NUMBER_SHIFT | InodeNo::ROOT.0;
            let name = std::ffi::OsString::from_vec(snapshot.name);
            all.push((COOKIE_SNAPSHOTS + snapshot.number, name, ino));
        }
        let mut names = Names::new(what.size);
        // Without attributes: the kernel asks for those it wants.
        let entry = EntryOut::default();
        let before = if plus { entry.as_bytes() } else { &[] };
        let listed = all.into_iter().filter(|entry| entry.0 > what.offset);
        for (next_cookie, name, ino) in listed {
            let entry = DirEntry {
                ino: InodeNo(ino),
                kind: FileKind::Directory,
                name,
                next_cookie,
            };
            if !names.add(before, &entry) {
                break;
            }
        }
        reply.parts(&[&names.bytes]);
        Ok(())
    }

    fn serve_directory(&self, message: Message<'_>, reply: Reply) -> Served {
        match message.header.opcode {
            opcode::LOOKUP => return self.lookup(message, reply),
            opcode::MKDIR => return self.make(message, reply),
            opcode::RMDIR => return self.delete(message, reply),
            opcode::READDIR => return self.list(message, false, reply),
            opcode::READDIRPLUS => return self.list(message, true, reply),
            opcode::FORGET => reply.none(),
            opcode::GETATTR => {
                reply.with(self.directory(), |attr| self.shown.attr_reply(&attr));
            }
            opcode::STATX => reply.with(self.directory(), |attr| self.shown.statx_reply(&attr)),
            opcode::OPENDIR => reply.message(&OpenOut::default()),
            opcode::RELEASEDIR | opcode::FSYNCDIR => reply.done(Ok(())),
            opcode::STATFS => return self.live.statfs(&message, reply),
            opcode::GETXATTR => reply.errno(libc::ENODATA),
            opcode::LISTXATTR => reply.errno(libc::EOPNOTSUPP),
            opcode::IOCTL => reply.errno(libc::ENOTTY),
            _ => reply.errno(libc::EPERM),
        }
        Ok(())
    }

    fn serve_snapshot(&self, number: u64, mut message: Message<'_>, reply: Reply) {
        let view = match message.header.opcode {
            // Of what nobody has looked into there is nothing to forget.
            opcode::FORGET => self.opened(number).ok_or(FsError::NotFound),
            _ => self.view_of(number),
        };
        let view = match view {
            Ok(view) => view,
            Err(_) if message.header.opcode == opcode::FORGET => return reply.none(),
            Err(_) if message.header.opcode == opcode::RELEASE => return reply.done(Ok(())),
            Err(_) if message.header.opcode == opcode::RELEASEDIR => return reply.done(Ok(())),
            // It was there when the kernel asked for it.
            Err(FsError::NotFound) => return reply.errno(libc::ESTALE),
            Err(error) => return reply.error(error),
        };
        message.header.nodeid &= (1 << NUMBER_SHIFT) - 1;
        match message.header.opcode {
            opcode::SETATTR
            | opcode::SETXATTR
            | opcode::REMOVEXATTR
            | opcode::MKNOD
            | opcode::MKDIR
            | opcode::SYMLINK
            | opcode::LINK
            | opcode::UNLINK
            | opcode::RMDIR
            | opcode::RENAME
            | opcode::RENAME2
            | opcode::CREATE
            | opcode::TMPFILE
            | opcode::WRITE
            | opcode::FALLOCATE => reply.error(FsError::ReadOnly),
            opcode::LOOKUP if leads_up(message) => {
                reply.with(self.directory_entry(), |entry| entry)
            }
            opcode::OPEN if writes(message) => reply.error(FsError::ReadOnly),
            // Between file systems the kernel copies for itself.
            opcode::COPY_FILE_RANGE => reply.errno(libc::EXDEV),
            opcode::IOCTL => reply.errno(libc::ENOTTY),
            opcode::FLUSH | opcode::FSYNC | opcode::FSYNCDIR => reply.done(Ok(())),
            _ => view.serve(message, reply),
        }
    }

    /// The kernel forgets numbers of everybody at once.
    fn forget_each(&self, mut message: Message<'_>, reply: Reply) -> Served {
        reply.none();
        let batch: BatchForgetIn = message.take()?;
        for _ in 0..batch.count {
            let one: ForgetOne = message.take()?;
            match one.nodeid >> NUMBER_SHIFT {
                0 => self.fs.forget(InodeNo(one.nodeid), one.lookups),
                NUMBER_END => {}
                number => {
                    if let Some(view) = self.opened(number) {
                        let ino = InodeNo(one.nodeid & ((1 << NUMBER_SHIFT) - 1));
                        view.fs.forget(ino, one.lookups);
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether the kernel looks for the directory, and no file is called so.
    fn wants_directory(&self, message: &Message<'_>) -> bool {
        let mut message = *message;
        message.header.opcode == opcode::LOOKUP
            && message.ino() == InodeNo::ROOT
            && message
                .name()
                .is_ok_and(|name| name.as_bytes() == SNAPSHOTS.as_bytes())
            && self.fs.has_snapshots()
            && self.fs.lookup(InodeNo::ROOT, OsStr::new(SNAPSHOTS)) == Err(FsError::NotFound)
    }
}

/// Whether the kernel looks for what is above the root directory of a snapshot: it goes up from what it has a handle of.
fn leads_up(mut message: Message<'_>) -> bool {
    message.ino() == InodeNo::ROOT && message.name().is_ok_and(|name| name == "..")
}

/// Whether a file is opened to be changed.
fn writes(mut message: Message<'_>) -> bool {
    let flags = message.take().map_or(0, |open: OpenIn| open.flags as i32);
    flags & libc::O_ACCMODE != libc::O_RDONLY || flags & libc::O_TRUNC != 0
}

/// Whether a name is to lead from what is now into a snapshot, or the other way.
fn crosses(mut message: Message<'_>) -> bool {
    let other = match message.header.opcode {
        opcode::RENAME => message.take().map(|rename: RenameIn| rename.newdir),
        opcode::RENAME2 => message.take().map(|rename: Rename2In| rename.newdir),
        opcode::LINK => message.take().map(|link: LinkIn| link.oldnodeid),
        _ => Ok(0),
    };
    other.is_ok_and(|other| other >> NUMBER_SHIFT != 0)
}

impl<S: BlockStore + 'static> Serve for WithSnapshots<S> {
    fn serve(&self, message: Message<'_>, reply: Reply) {
        let header = message.header;
        let served = match header.nodeid >> NUMBER_SHIFT {
            _ if header.opcode == opcode::BATCH_FORGET => self.forget_each(message, reply),
            0 if self.wants_directory(&message) => {
                reply.with(self.directory_entry(), |entry| entry);
                Ok(())
            }
            0 if crosses(message) => {
                reply.errno(libc::EXDEV);
                Ok(())
            }
            0 => {
                self.live.serve(message, reply);
                Ok(())
            }
            NUMBER_END => self.serve_directory(message, reply),
            number => {
                self.serve_snapshot(number, message, reply);
                Ok(())
            }
        };
        if let Err(Malformed) = served {
            tracing::error!(?header, "a request of the kernel is malformed");
        }
    }
}
