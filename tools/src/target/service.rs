//! The control service: answers the requests of clients on threads of its own, where waiting for the file system holds
//! up nobody's data.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::thread::{Builder, JoinHandle};

use contigfs::{FallocMode, FileKind, Fs, FsError, InodeNo, NewNode, SetAttr, SyncScope};
use ftl::GRAIN_BYTES;
use softrdma::{Buffer, ProtectionDomain, RegionSpec, RegionTable, Rights};
use tracing::debug;

use super::core::ControlJob;
use super::exports::Exports;
use super::job::Job;
use super::mapped::Mapped;
use super::pages::backing;
use super::regions::{OpenRegion, Owner, Regions};
use super::store::TargetStore;
use crate::control::{
    Entry, FLAG_CREATE, FLAG_EXCLUSIVE, FLAG_TRUNCATE, FLAG_WRITE, Op, Reply, Request,
};
use crate::reactor::Inbox;

/// Path of the region of plain memory.
pub const DRAM_PATH: &str = "/.dram";
/// The domain of peers that did not authenticate, which only exist on loopback or when the operator insists.
pub(super) const ANONYMOUS: ProtectionDomain = ProtectionDomain(1);

/// What the service works on.
#[derive(Debug)]
pub(super) struct Service {
    /// The file system.
    pub fs: Arc<Fs<TargetStore>>,
    /// STags.
    pub stags: Arc<RegionTable>,
    /// Open regions.
    pub regions: Arc<Regions>,
    /// Files that are mapped.
    pub mapped: Arc<Mapped>,
    /// What may be used.
    pub exports: Exports,
    /// Plain memory to offer.
    pub dram: Option<Arc<Buffer>>,
    /// The reactors, for the replies.
    pub inboxes: Vec<Arc<Inbox<Job>>>,
}

/// A request that failed: errno and explanation.
#[derive(Debug)]
struct Refusal(i32, String);

impl From<FsError> for Refusal {
    fn from(error: FsError) -> Self {
        Self(error.errno(), error.to_string())
    }
}

impl Service {
    /// Starts a thread for each of `jobs`; it ends when every copy of its sender has gone.
    pub(super) fn start(
        self: Arc<Self>,
        jobs: Vec<Receiver<ControlJob>>,
    ) -> io::Result<Vec<JoinHandle<()>>> {
        let numbered = jobs.into_iter().enumerate();
        numbered
            .map(|(n, jobs)| {
                let service = Arc::clone(&self);
                Builder::new()
                    .name(format!("control-{n}"))
                    .spawn(move || service.work(&jobs))
            })
            .collect()
    }

    fn work(&self, jobs: &Receiver<ControlJob>) {
        while let Ok(job) = jobs.recv() {
            match job {
                ControlJob::Request(reactor, tag, message) => {
                    let reply = self.answer((reactor, tag), &message);
                    let _ = self.inboxes[reactor].send(Job::Reply(tag, reply.emit()));
                }
                ControlJob::Gone(reactor, tag) => {
                    for region in self.regions.remove_all((reactor, tag)) {
                        self.release(&region);
                    }
                }
            }
        }
    }

    fn answer(&self, owner: Owner, message: &[u8]) -> Reply {
        let request = match Request::parse(message) {
            Ok(request) => request,
            Err(error) => {
                return Reply {
                    status: libc::EBADMSG as u16,
                    message: error.to_string(),
                    ..Reply::default()
                };
            }
        };
        let result = match request.op {
            Op::Open => self.open(owner, &request),
            Op::Close => self.close(owner, &request),
            Op::Stat => self.stat(&request),
            Op::List => self.list(&request),
            Op::Sync => self.sync(owner, &request),
        };
        let mut reply = result.unwrap_or_else(|Refusal(errno, message)| {
            debug!(?request, errno, message, "refused");
            Reply {
                status: errno as u16,
                message,
                ..Reply::default()
            }
        });
        reply.op = request.op.code();
        reply.id = request.id;
        reply
    }

    fn open(&self, owner: Owner, request: &Request) -> Result<Reply, Refusal> {
        let write = request.flags & (FLAG_WRITE | FLAG_CREATE | FLAG_TRUNCATE) != 0;
        if let Some(dram) = &self.dram
            && request.path == DRAM_PATH.as_bytes()
        {
            return self.open_dram(owner, dram);
        }
        let path = self.path(request, write)?;
        let inode = match self.resolve(Path::new(path)) {
            Ok(_) if request.flags & FLAG_EXCLUSIVE != 0 => {
                return Err(Refusal(libc::EEXIST, format!("{path} exists")));
            }
            Ok(inode) => inode,
            Err(Refusal(libc::ENOENT, _)) if request.flags & FLAG_CREATE != 0 => {
                self.create(path, request.flags & FLAG_EXCLUSIVE != 0)?
            }
            Err(refusal) => return Err(refusal),
        };
        let attr = self.fs.attr(inode)?;
        match attr.kind {
            FileKind::File => {}
            FileKind::Directory => {
                return Err(Refusal(libc::EISDIR, format!("{path} is a directory")));
            }
            _ => {
                return Err(Refusal(
                    libc::EOPNOTSUPP,
                    format!("{path} is not a regular file"),
                ));
            }
        }
        self.fs.open(inode)?;
        let opened = self.register(owner, inode, path, write, request);
        if opened.is_err() {
            let _ = self.fs.close(inode);
        }
        opened
    }

    /// Registers a range of a file that is open already.
    fn register(
        &self,
        owner: Owner,
        inode: InodeNo,
        path: &str,
        write: bool,
        request: &Request,
    ) -> Result<Reply, Refusal> {
        if request.flags & FLAG_TRUNCATE != 0 {
            let replace = || self.replace(inode, path, request.length);
            self.mapped.change_all(inode, replace)?;
        }
        let extent = self.fs.hold_extent(inode)?;
        let place = backing(extent.range.start);
        self.mapped.registering(inode, place);
        let registered = (|| {
            let rest = extent.size.checked_sub(request.offset).ok_or_else(|| {
                Refusal(
                    libc::EINVAL,
                    format!(
                        "{path} has {} bytes, the region would start at {}",
                        extent.size, request.offset
                    ),
                )
            })?;
            let len = match request.length {
                0 => rest,
                len if len <= rest => len,
                len => {
                    return Err(Refusal(
                        libc::EINVAL,
                        format!(
                            "{path} has {} bytes, the region would end at {}",
                            extent.size,
                            request.offset.saturating_add(len)
                        ),
                    ));
                }
            };
            let mut rights = Rights::REMOTE_READ;
            if write {
                rights |= Rights::REMOTE_WRITE | Rights::REMOTE_ATOMIC;
                rights |= Rights::FLUSH_GLOBAL | Rights::FLUSH_PERSISTENT;
            }
            let spec = RegionSpec::pages(ANONYMOUS, rights, place, request.offset, len);
            let region = self
                .stags
                .register(spec)
                .map_err(|error| Refusal(libc::ENOMEM, error.to_string()))?;
            let open = OpenRegion {
                inode: Some(inode),
                stag: region.stag,
                end: request.offset + len,
                writable: write,
            };
            let handle = self.regions.add(owner, open).ok_or_else(|| {
                self.stags.deregister(region.stag);
                Refusal(libc::EMFILE, "too many regions on this connection".into())
            })?;
            // A file that shrank between the look at its size and the registration must not leave a region behind.
            // (The extent is looked at behind whoever shrinks it now.)
            if self.fs.file_extent(inode)?.size < open.end {
                self.regions.remove(owner, handle);
                return Err(Refusal(libc::ESTALE, format!("{path} has just shrunk")));
            }
            let attr = self.fs.attr(inode)?;
            Ok(Reply {
                handle,
                mode: attr.mode,
                stag: region.stag.0,
                stag_sync: region.sync_stag.map_or(0, |stag| stag.0),
                to: region.base.0,
                length: len,
                size: attr.size,
                mtime_ns: attr.mtime.as_unix_ns(),
                ..Reply::default()
            })
        })();
        if registered.is_err() {
            self.mapped.deregistered(inode);
            self.fs.release_extent(inode);
        }
        registered
    }

    fn open_dram(&self, owner: Owner, dram: &Arc<Buffer>) -> Result<Reply, Refusal> {
        let rights = Rights::REMOTE_READ
            | Rights::REMOTE_WRITE
            | Rights::REMOTE_ATOMIC
            | Rights::FLUSH_GLOBAL;
        let region = self
            .stags
            .register(RegionSpec::memory(ANONYMOUS, rights, dram))
            .map_err(|error| Refusal(libc::ENOMEM, error.to_string()))?;
        let open = OpenRegion {
            inode: None,
            stag: region.stag,
            end: region.len,
            writable: true,
        };
        let handle = self.regions.add(owner, open).ok_or_else(|| {
            self.stags.deregister(region.stag);
            Refusal(libc::EMFILE, "too many regions on this connection".into())
        })?;
        Ok(Reply {
            handle,
            mode: libc::S_IFREG | 0o600,
            stag: region.stag.0,
            to: region.base.0,
            length: region.len,
            size: region.len,
            ..Reply::default()
        })
    }

    fn close(&self, owner: Owner, request: &Request) -> Result<Reply, Refusal> {
        let region = self
            .regions
            .remove(owner, request.handle)
            .ok_or_else(|| no_handle(request.handle))?;
        self.release(&region);
        Ok(Reply::default())
    }

    fn release(&self, region: &OpenRegion) {
        let Some(inode) = region.inode else { return };
        if region.writable {
            self.fs.touch_data(inode);
        }
        self.mapped.deregistered(inode);
        self.fs.release_extent(inode);
        if let Err(error) = self.fs.close(inode) {
            debug!(%error, ?inode, "close");
        }
    }

    fn sync(&self, owner: Owner, request: &Request) -> Result<Reply, Refusal> {
        let region = self
            .regions
            .find(owner, request.handle)
            .ok_or_else(|| no_handle(request.handle))?;
        if let Some(inode) = region.inode {
            self.fs.fsync(inode, SyncScope::All)?;
        }
        Ok(Reply::default())
    }

    fn stat(&self, request: &Request) -> Result<Reply, Refusal> {
        let path = self.path(request, false)?;
        let inode = self.resolve(Path::new(path))?;
        let attr = self.fs.attr(inode)?;
        Ok(Reply {
            mode: attr.mode,
            size: attr.size,
            mtime_ns: attr.mtime.as_unix_ns(),
            ..Reply::default()
        })
    }

    fn list(&self, request: &Request) -> Result<Reply, Refusal> {
        let path = self.path(request, false)?;
        let inode = self.resolve(Path::new(path))?;
        let mut names = Vec::new();
        let mut room = Reply::PAYLOAD_BYTES_MAX;
        let mut full = false;
        self.fs.readdir(inode, request.offset, |entry| {
            let bytes = Reply::entry_bytes(entry.name.len());
            if bytes > room {
                full = true;
                return false;
            }
            room -= bytes;
            names.push((entry.ino, entry.name.to_owned(), entry.next_cookie));
            true
        })?;
        let cookie = if full {
            names.last().map_or(0, |(_, _, cookie)| *cookie)
        } else {
            0
        };
        let entries = names
            .into_iter()
            .filter(|(_, name, _)| name != "." && name != "..")
            .filter_map(|(inode, name, _)| {
                // An entry that was removed meanwhile is not listed.
                let attr = self.fs.attr(inode).ok()?;
                Some(Entry {
                    size: attr.size,
                    mtime_ns: attr.mtime.as_unix_ns(),
                    mode: attr.mode,
                    name: name.as_bytes().to_vec(),
                })
            })
            .collect();
        Ok(Reply {
            cookie,
            entries,
            ..Reply::default()
        })
    }

    fn path<'r>(&self, request: &'r Request, write: bool) -> Result<&'r str, Refusal> {
        let path = std::str::from_utf8(&request.path)
            .map_err(|_| Refusal(libc::EILSEQ, "the path is not UTF-8".into()))?;
        self.exports
            .check(path, write)
            .map_err(|error| Refusal(error.errno(), error.to_string()))?;
        Ok(path)
    }

    /// The file at a path that the exports allow. Symbolic links are not followed: they may lead out of the exports.
    fn resolve(&self, path: &Path) -> Result<InodeNo, Refusal> {
        let mut inode = InodeNo::ROOT;
        for part in path.components() {
            let Component::Normal(name) = part else {
                continue;
            };
            if self.fs.attr(inode)?.kind == FileKind::Symlink {
                let text = format!("{}: leads through a symbolic link", path.display());
                return Err(Refusal(libc::ELOOP, text));
            }
            let found = self.fs.lookup(inode, name);
            inode = found.map_err(|error| named(path, &error))?.ino;
        }
        Ok(inode)
    }

    fn create(&self, path: &str, exclusive: bool) -> Result<InodeNo, Refusal> {
        let path = Path::new(path);
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Refusal(libc::EISDIR, "/ is a directory".into()));
        };
        let parent = self.resolve(parent)?;
        let node = NewNode {
            kind: FileKind::File,
            mode: 0o644,
            umask: 0,
            // SAFETY: neither call has arguments or can fail.
            uid: unsafe { libc::geteuid() },
            // SAFETY: as above.
            gid: unsafe { libc::getegid() },
            rdev: 0,
        };
        let name: &OsStr = name;
        match self.fs.create(parent, name, &node) {
            Ok(attr) => Ok(attr.ino),
            // Somebody else was faster, which is as good.
            Err(error) if error.errno() == libc::EEXIST && !exclusive => {
                Ok(self.fs.lookup(parent, name)?.ino)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Gives the file `length` bytes of zeros, with their space, in place of what it holds. What can be known to fail
    /// fails before anything is lost.
    fn replace(&self, inode: InodeNo, path: &str, length: u64) -> Result<(), Refusal> {
        let attr = self.fs.attr(inode)?;
        let (room, reason) = self.fs.room_in_place_of(inode)?;
        let room = room * GRAIN_BYTES as u64;
        if length > room {
            let text = format!("{path} would have {length} bytes, there is room for {room}");
            return Err(Refusal(reason.errno(), text));
        }
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

fn named(path: &Path, error: &FsError) -> Refusal {
    Refusal(error.errno(), format!("{}: {error}", path.display()))
}

fn no_handle(handle: u32) -> Refusal {
    Refusal(
        libc::EBADF,
        format!("no region {handle} is open on this connection"),
    )
}
