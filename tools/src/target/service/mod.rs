//! The control service: answers the requests of clients on threads of its own, where waiting for the file system holds
//! up nobody's data.

mod changes;
mod names;
mod snapshots;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Instant;

use contigfs::{Attr, Extent, FileKind, Fs, FsError, InodeNo, SyncScope};
use ftl::Meter;
use softrdma::{
    BackingId, Buffer, MemoryRegion, ProtectionDomain, RegionSpec, RegionTable, Rights, Stag,
};
use tracing::debug;

use names::path;

use crate::control::{
    FLAG_CREATE, FLAG_DURABLE, FLAG_EXCLUSIVE, FLAG_GROW, FLAG_PERSISTENT, FLAG_TRUNCATE,
    FLAG_WRITE, Op, Reply, Request,
};
use crate::credentials::registry::IssueError;
use crate::credentials::{Grant, Registry, file_rights, unix_now};
use crate::reactor::Inbox;
use crate::target::core::{ControlJob, ControlJobs};
use crate::target::exports::ExportError;
use crate::target::job::{Job, admit};
use crate::target::mapped::Mapped;
use crate::target::regions::{OPEN_MAX, OpenRegion, Owner, Regions};
use crate::target::sessions::Sessions;
use crate::target::snapshots::SnapshotFiles;
use crate::target::store::TargetStore;
use crate::target::tenancy::{Member, Tenancy};

/// Path of the region of plain memory.
pub const DRAM_PATH: &str = "/.dram";

/// Where growing regions end at the latest: no file gets as long.
const GROWING_MAX: u64 = 1 << 63;

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
    /// Files in snapshots.
    pub snapshots: Arc<SnapshotFiles>,
    /// What may be used, by whom.
    pub tenancy: Arc<Tenancy>,
    /// Regions that outlive the process.
    pub registry: Arc<Registry<TargetStore>>,
    /// Sessions on all reactors.
    pub sessions: Arc<Sessions>,
    /// Plain memory to offer.
    pub dram: Option<Arc<Buffer>>,
    /// Drawn for this life of the target.
    pub verifier: u64,
    /// That of the life before, if it has ended in order.
    pub verifier_before: Option<u64>,
    /// Requests, and how long they took.
    pub meter: Arc<Meter>,
    /// The reactors, for the replies.
    pub inboxes: Vec<Arc<Inbox<Job>>>,
}

/// A request that is being carried out, which later connections of the same session wait for; over when this is dropped.
#[derive(Debug)]
struct Carried<'a> {
    service: &'a Service,
    owner: Owner,
}

impl<'a> Carried<'a> {
    /// None: the connection has ended.
    fn begin(service: &'a Service, owner: Owner) -> Option<Self> {
        let begun = service.sessions.begin(owner);
        begun.then_some(Self { service, owner })
    }
}

impl Drop for Carried<'_> {
    fn drop(&mut self) {
        let waiting = self.service.sessions.done(self.owner);
        admit(&self.service.inboxes, waiting);
    }
}

/// A request that failed: errno and explanation.
#[derive(Debug)]
struct Refusal(i32, String);

impl From<FsError> for Refusal {
    fn from(error: FsError) -> Self {
        Self(error.errno(), error.to_string())
    }
}

impl From<ExportError> for Refusal {
    fn from(error: ExportError) -> Self {
        Self(error.errno(), error.to_string())
    }
}

impl From<IssueError> for Refusal {
    fn from(error: IssueError) -> Self {
        Self(error.errno(), error.to_string())
    }
}

impl Service {
    /// Starts a thread for each of `jobs`; it ends when every copy of its sender has gone.
    pub(super) fn start(
        self: Arc<Self>,
        jobs: Vec<ControlJobs>,
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

    fn work(&self, jobs: &ControlJobs) {
        while let Some(job) = jobs.next() {
            match job {
                ControlJob::Request(reactor, tag, domain, message) => {
                    let Some(carried) = Carried::begin(self, (reactor, tag)) else {
                        continue;
                    };
                    let begun = Instant::now();
                    let reply = self.answer(carried.owner, domain, &message);
                    let moved = (reply.status == 0).then_some(message.len() as u64);
                    self.meter.note(begun.elapsed(), moved);
                    drop(carried);
                    let _ = self.inboxes[reactor].send(Job::Reply(tag, reply.emit()));
                }
                ControlJob::Gone(reactor, tag) => {
                    self.sessions.forget((reactor, tag));
                    self.release(&self.regions.remove_all((reactor, tag)));
                }
            }
        }
    }

    fn answer(&self, owner: Owner, domain: ProtectionDomain, message: &[u8]) -> Reply {
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
        let member = self.tenancy.of(domain).ok_or_else(|| {
            let text = "nobody may use anything in this protection domain".to_owned();
            Refusal(libc::EACCES, text)
        });
        let result = member.and_then(|member| match request.op {
            Op::Open => self.open(owner, member, &request),
            Op::Close => self.close(owner, &request),
            Op::Stat => self.stat(member, &request),
            Op::List => self.list(member, &request),
            Op::Sync => self.sync(owner, &request),
            Op::Revoke => self.revoke(owner, member, &request),
            Op::Attach => self.attach(owner, member, &request),
            Op::Atomics => self.atomics(owner, &request),
            Op::Unlink => self.unlink(member, &request),
            Op::Rmdir => self.rmdir(member, &request),
            Op::Mkdir => self.mkdir(member, &request),
            Op::Rename => self.rename(member, &request),
            Op::Verifier => Ok(Reply {
                cookie: self.verifier,
                words: self.verifier_before.into_iter().collect(),
                ..Reply::default()
            }),
        });
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

    fn open(&self, owner: Owner, member: &Member, request: &Request) -> Result<Reply, Refusal> {
        let write = request.flags & (FLAG_WRITE | FLAG_CREATE | FLAG_TRUNCATE) != 0;
        let both = FLAG_PERSISTENT | FLAG_GROW;
        if request.flags & both == both {
            let text =
                "a persistent region ends where its file ends now: it can not grow".to_owned();
            return Err(Refusal(libc::EINVAL, text));
        }
        if let Some(dram) = &self.dram
            && request.path == DRAM_PATH.as_bytes()
        {
            if request.flags & FLAG_PERSISTENT != 0 {
                let text = "plain memory does not outlive the process".to_owned();
                return Err(Refusal(libc::EOPNOTSUPP, text));
            }
            return self.open_dram(owner, member, dram);
        }
        if let Some(inside) = self.in_snapshots(&request.path) {
            return self.open_in_snapshot((owner, member), &inside, write, request);
        }
        let path = path(member, request, write)?;
        let found = match self.resolve(Path::new(path)) {
            Ok(_) if request.flags & FLAG_EXCLUSIVE != 0 => {
                return Err(Refusal(libc::EEXIST, format!("{path} exists")));
            }
            Ok(found) => found,
            Err(Refusal(libc::ENOENT, _)) if request.flags & FLAG_CREATE != 0 => {
                let truncates = request.flags & FLAG_TRUNCATE != 0;
                let length = if truncates { request.length } else { 0 };
                self.may_register((owner, member), None, (path, length), request)?;
                self.create(path, request.flags & FLAG_EXCLUSIVE != 0, length)?
            }
            Err(refusal) => return Err(refusal),
        };
        if self.registry.is_own(found.attr.ino) {
            return Err(IssueError::Own.into());
        }
        regular(path, found.attr.kind)?;
        let inode = found.keep();
        let opened = self.register((owner, member), inode, path, write, request);
        if opened.is_err() {
            let _ = self.fs.close(inode);
        }
        opened
    }

    /// Refuses what can be known to be refused when a file has been made, or has lost what it held, for a region of it, while
    /// there is no new name and nothing is lost. `becomes` tells the path of the file, and how long it will be.
    fn may_register(
        &self,
        (owner, member): (Owner, &Member),
        inode: Option<InodeNo>,
        (path, becomes): (&str, u64),
        request: &Request,
    ) -> Result<(), Refusal> {
        length_of(request, path, becomes)?;
        let domain = member.standing.domain;
        let may_add = self.regions.may_add(owner, domain, self.share());
        may_add.map_err(|too_many| Refusal(too_many.errno(), too_many.to_string()))?;
        if request.flags & FLAG_PERSISTENT != 0 {
            self.registry.prepare()?;
            self.registry.may_issue(domain, inode)?;
        }
        Ok(())
    }

    /// Registers a range of a file that is open already.
    fn register(
        &self,
        (owner, member): (Owner, &Member),
        inode: InodeNo,
        path: &str,
        write: bool,
        request: &Request,
    ) -> Result<Reply, Refusal> {
        if request.flags & FLAG_TRUNCATE != 0 {
            let becomes = (path, request.length);
            self.may_register((owner, member), Some(inode), becomes, request)?;
            let ended = || self.mapped.unprivileged(inode);
            self.fs.end_privileges_past(inode, ended)?;
            let replace = || self.replace(inode, path, request.length);
            self.mapped.change_all(inode, replace)?;
        }
        let persistent = request.flags & FLAG_PERSISTENT != 0;
        if persistent {
            self.registry.prepare()?;
        }
        // The file is open: its number is not used again.
        let generation = self.fs.attr(inode)?.generation;
        let begun = Instant::now();
        // No file shrinks or moves between the look at it and the registration, and what comes behind is heard of.
        let registered = self
            .fs
            .with_extent(inode, |extent| {
                let file = File {
                    inode,
                    generation,
                    path,
                    extent,
                };
                self.register_extent((owner, member), &file, write, request)
            })
            .map_err(Refusal::from)
            .flatten();
        let took = begun.elapsed();
        let (handle, region) = registered?;
        // Before anybody hears of the region. That a program gives privileges later on is heard of.
        let looked_at = match write {
            true => self.watch_privileges(inode),
            false => Ok(()),
        };
        let attr = looked_at.and_then(|()| self.fs.attr(inode));
        let attr = attr.inspect_err(|_| {
            if let Some(region) = self.regions.remove(owner, handle) {
                self.detach(&[region]);
            }
        })?;
        Ok(Reply {
            register_ns: took.as_nanos().try_into().unwrap_or(u32::MAX),
            ..opened(handle, &region, &attr)
        })
    }

    /// Notes that whoever writes to a file with regions ends the privileges that it gives, if it does.
    pub(super) fn watch_privileges(&self, inode: InodeNo) -> Result<(), FsError> {
        self.fs.with_privileges(inode, |gives| {
            if gives {
                self.mapped.privileged(inode);
            }
        })
    }

    /// Registers a range of a file that stays where it is meanwhile.
    fn register_extent(
        &self,
        (owner, member): (Owner, &Member),
        file: &File<'_>,
        write: bool,
        request: &Request,
    ) -> Result<(u32, MemoryRegion), Refusal> {
        let File { inode, extent, .. } = *file;
        let grows = request.flags & FLAG_GROW != 0;
        let persistent = request.flags & FLAG_PERSISTENT != 0;
        let offset = request.offset;
        let length = length_of(request, file.path, extent.size)?;
        self.with_backing(inode, extent, |backing| {
            let standing = member.standing;
            let region = if persistent {
                let grant = Grant {
                    standing,
                    ino: inode,
                    generation: file.generation,
                    start: extent.range.start,
                    offset,
                    length,
                    writable: write,
                };
                self.registry.issue(&grant, unix_now())?
            } else {
                let rights = file_rights(write);
                let spec = RegionSpec::pages(standing.domain, rights, backing, offset, length);
                self.stags
                    .register(spec)
                    .map_err(|error| Refusal(libc::ENOMEM, error.to_string()))?
            };
            if grows {
                let reach = extent.size.saturating_sub(offset);
                self.stags.set_reach(region.stag, reach);
            }
            let open = OpenRegion {
                domain: standing.domain,
                inode: Some(inode),
                of_snapshot: None,
                stag: region.stag,
                offset,
                end: offset + length,
                grows,
                writable: write,
                persistent,
            };
            let handle = self.add(owner, open)?;
            Ok((handle, region))
        })
    }

    /// Lets `register` register a region of a file, for which it gets the backing. The file stays where it is meanwhile.
    fn with_backing<T>(
        &self,
        inode: InodeNo,
        extent: Extent,
        register: impl FnOnce(BackingId) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let backing = self.regions.attach(inode, extent.range.start);
        let backing = backing.ok_or(IssueError::Crowded)?;
        self.mapped.registering(inode, backing);
        register(backing).inspect_err(|_| {
            self.mapped.deregistered(inode);
            self.regions.detach(&[inode]);
        })
    }

    fn open_dram(
        &self,
        owner: Owner,
        member: &Member,
        dram: &Arc<Buffer>,
    ) -> Result<Reply, Refusal> {
        let domain = member.standing.domain;
        // It is one memory for all who may write to such a file.
        member.exports.check(DRAM_PATH, true)?;
        let rights = Rights::REMOTE_READ
            | Rights::REMOTE_WRITE
            | Rights::REMOTE_ATOMIC
            | Rights::FLUSH_GLOBAL;
        let region = self
            .stags
            .register(RegionSpec::memory(domain, rights, dram))
            .map_err(|error| Refusal(libc::ENOMEM, error.to_string()))?;
        let open = OpenRegion {
            domain,
            inode: None,
            of_snapshot: None,
            stag: region.stag,
            offset: 0,
            end: region.len,
            grows: false,
            writable: true,
            persistent: false,
        };
        let handle = self.add(owner, open)?;
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

    /// Adds a region to those of a connection; one too many ends.
    fn add(&self, owner: Owner, open: OpenRegion) -> Result<u32, Refusal> {
        let added = self.regions.add(owner, open, self.share());
        added.map_err(|too_many| {
            if open.persistent {
                self.registry.detach(open.stag, unix_now());
            } else {
                self.stags.deregister(open.stag);
            }
            Refusal(too_many.errno(), too_many.to_string())
        })
    }

    /// Regions that each tenant may have open.
    fn share(&self) -> usize {
        OPEN_MAX / self.tenancy.members()
    }

    /// Opens a region that is there by its STag: what `open` answered before a connection or the process ended.
    fn attach(&self, owner: Owner, member: &Member, request: &Request) -> Result<Reply, Refusal> {
        // One answer for all that is not this tenant's, so that it says nothing about others.
        let stale = || Refusal(libc::ESTALE, "there is no such persistent region".into());
        let (stag, domain) = (Stag(request.handle), member.standing.domain);
        let record = self.registry.find(stag, domain).ok_or_else(stale)?;
        let inode = InodeNo(record.inode);
        self.fs.open(inode).map_err(|error| match error {
            FsError::NotFound => stale(),
            // Clients take the other for ever.
            error => error.into(),
        })?;
        let attached = (|| {
            let attr = self.fs.attr(inode)?;
            let register = |extent| {
                let (generation, now) = (attr.generation, unix_now());
                let region = self
                    .registry
                    .attach(stag, domain, generation, extent, now)?;
                let open = OpenRegion {
                    domain,
                    inode: Some(inode),
                    of_snapshot: None,
                    stag: region.stag,
                    offset: record.offset,
                    end: record.offset.saturating_add(record.length),
                    grows: false,
                    writable: record.writable,
                    persistent: true,
                };
                Ok((self.add(owner, open)?, region))
            };
            let attached = self.fs.with_extent(inode, |extent| {
                self.with_backing(inode, extent, |_| register(extent))
            });
            let (handle, region) = attached.map_err(Refusal::from).flatten()?;
            Ok(opened(handle, &region, &attr))
        })();
        if attached.is_err() {
            let _ = self.fs.close(inode);
        }
        attached
    }

    /// Refuses a persistent region for ever, on all connections, and closes it on this one.
    fn revoke(&self, owner: Owner, member: &Member, request: &Request) -> Result<Reply, Refusal> {
        let region = self
            .regions
            .find(owner, request.handle)
            .ok_or_else(|| no_handle(request.handle))?;
        if !region.persistent {
            let text = format!("region {} is not persistent: close it", request.handle);
            return Err(Refusal(libc::EINVAL, text));
        }
        self.registry.revoke(region.stag, member.standing.domain)?;
        self.close(owner, request)
    }

    fn close(&self, owner: Owner, request: &Request) -> Result<Reply, Refusal> {
        let region = self
            .regions
            .remove(owner, request.handle)
            .ok_or_else(|| no_handle(request.handle))?;
        self.detach(&[region]);
        let durable = match region.inode {
            Some(inode) if request.flags & FLAG_DURABLE != 0 => {
                self.fs.fsync(inode, SyncScope::All)
            }
            _ => Ok(()),
        };
        self.let_go(&[region]);
        durable?;
        Ok(Reply::default())
    }

    /// Ends what regions that are not open any more have of their files.
    fn release(&self, regions: &[OpenRegion]) {
        self.detach(regions);
        self.let_go(regions);
    }

    /// Lets go of the files of regions.
    fn let_go(&self, regions: &[OpenRegion]) {
        for backing in regions.iter().filter_map(|region| region.of_snapshot) {
            self.snapshots.close(backing);
        }
        for inode in regions.iter().filter_map(|region| region.inode) {
            if let Err(error) = self.fs.close(inode) {
                debug!(%error, ?inode, "close");
            }
        }
    }

    fn detach(&self, regions: &[OpenRegion]) {
        let mut files = Vec::with_capacity(regions.len());
        for region in regions {
            let Some(inode) = region.inode else { continue };
            if region.persistent {
                self.registry.detach(region.stag, unix_now());
            }
            if region.writable {
                self.fs.touch_data(inode);
            }
            self.mapped.deregistered(inode);
            files.push(inode);
        }
        self.regions.detach(&files);
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

    /// What became of the atomic operations of an earlier connection of this session.
    fn atomics(&self, owner: Owner, request: &Request) -> Result<Reply, Refusal> {
        let outcomes = self.sessions.outcomes(owner, request.offset);
        let outcomes = outcomes.ok_or_else(|| {
            let text = format!("nothing is known of connection {}", request.offset);
            Refusal(libc::ESTALE, text)
        })?;
        Ok(Reply {
            cookie: outcomes.executed,
            words: outcomes.last.into(),
            ..Reply::default()
        })
    }
}

/// A file of which a region is to be registered, while it stays where it is.
#[derive(Clone, Copy, Debug)]
struct File<'a> {
    inode: InodeNo,
    generation: u64,
    path: &'a str,
    extent: Extent,
}

/// Refuses to make a region of anything but a regular file.
fn regular(path: &str, kind: FileKind) -> Result<(), Refusal> {
    match kind {
        FileKind::File => Ok(()),
        FileKind::Directory => Err(is_directory(path)),
        _ => {
            let text = format!("{path} is not a regular file");
            Err(Refusal(libc::EOPNOTSUPP, text))
        }
    }
}

fn is_directory(path: &str) -> Refusal {
    Refusal(libc::EISDIR, format!("{path} is a directory"))
}

/// How long a region becomes that is asked for, of a file of `size` bytes.
fn length_of(request: &Request, path: &str, size: u64) -> Result<u64, Refusal> {
    let grows = request.flags & FLAG_GROW != 0;
    let has = if grows { GROWING_MAX } else { size };
    let beyond = |what: &str, at: u64| {
        let text = format!("{path} has {size} bytes, the region would {what} at {at}");
        Refusal(libc::EINVAL, text)
    };
    let offset = request.offset;
    let rest = has
        .checked_sub(offset)
        .ok_or_else(|| beyond("start", offset))?;
    match request.length {
        0 => Ok(rest),
        length if length <= rest => Ok(length),
        length => Err(beyond("end", offset.saturating_add(length))),
    }
}

/// What the client hears of a region of a file.
fn opened(handle: u32, region: &MemoryRegion, attr: &Attr) -> Reply {
    Reply {
        handle,
        mode: attr.mode,
        stag: region.stag.0,
        stag_sync: region.sync_stag.map_or(0, |stag| stag.0),
        to: region.base.0,
        length: region.len,
        size: attr.size,
        mtime_ns: attr.mtime.as_unix_ns(),
        cookie: attr.ino.0,
        ..Reply::default()
    }
}

fn no_handle(handle: u32) -> Refusal {
    Refusal(
        libc::EBADF,
        format!("no region {handle} is open on this connection"),
    )
}
