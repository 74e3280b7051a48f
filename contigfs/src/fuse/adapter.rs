//! Requests of the kernel, as calls of [`Fs`].

mod attributes;
mod directories;
mod files;
mod names;
mod snapshots;

pub(super) use snapshots::WithSnapshots;

use std::net::SocketAddr;
use std::sync::Arc;

use super::appends::Appends;
use super::attr::ShownOwner;
use super::cache::PageCache;
use super::caller::Caller;
use super::message::{Malformed, Message};
use super::passthrough::{Passthrough, can_store_by_mapping};
use super::reply::Reply;
use super::session::Serve;
use super::wire::{
    InHeader, OPEN_DIRECT_IO, OPEN_NO_FLUSH, OPEN_PARALLEL_DIRECT_WRITES, OPEN_PASSTHROUGH,
    OpenOut, feature, opcode,
};
use crate::error::FsError;
use crate::fs::{Fs, NewNode};
use crate::inode::{FileKind, InodeNo};
use crate::store::BlockStore;

/// What the kernel is asked to do, if it can.
pub(super) const FEATURES: u64 = feature::ASYNC_READ
    | feature::EXPORT_SUPPORT
    | feature::BIG_WRITES
    | feature::DONT_MASK
    | feature::DO_READDIRPLUS
    | feature::READDIRPLUS_AUTO
    | feature::ASYNC_DIO
    | feature::PARALLEL_DIROPS
    | feature::POSIX_ACL
    | feature::CACHE_SYMLINKS
    | feature::SETXATTR_EXT
    | feature::DIRECT_IO_ALLOW_MMAP;

/// Serves a file system. With the last of its users goes what is not on media yet.
pub(super) struct Adapter<S: BlockStore> {
    fs: Arc<Fs<S>>,
    shown: ShownOwner,
    /// Flags of an open file; depends on what the kernel can do.
    open_flags: u32,
    cache: Arc<PageCache>,
    appends: Arc<Appends>,
    /// If pages are shared with mappings.
    passthrough: Option<Arc<Passthrough<S>>>,
    /// What [`TARGET_XATTR`](super::mount::TARGET_XATTR) says.
    target: Option<String>,
    /// Mounted so that nothing can be changed.
    read_only: bool,
    /// Reads may be answered while the content of a file is held.
    lends: bool,
    /// Reads may be answered by whoever hears that a page has come.
    answers_late: bool,
}

/// A request is answered, now or later; or it was not what it should be, which its reply says when it is dropped.
type Served = Result<(), Malformed>;

impl<S: BlockStore + 'static> Adapter<S> {
    /// Serves `fs` to a kernel that can do `features`.
    pub(super) fn new(
        fs: Arc<Fs<S>>,
        shown: ShownOwner,
        cache: Arc<PageCache>,
        passthrough: Option<Arc<Passthrough<S>>>,
        features: u64,
        target: Option<SocketAddr>,
        read_only: bool,
    ) -> Self {
        let open_flags = if features & feature::DIRECT_IO_ALLOW_MMAP != 0 {
            OPEN_DIRECT_IO | OPEN_PARALLEL_DIRECT_WRITES
        } else {
            // Shared mappings of direct files do not work on this kernel, so its cache is used, and emptied at each
            // open and for stores past the mount.
            0
        };
        Self {
            fs,
            shown,
            open_flags,
            cache,
            appends: Arc::default(),
            passthrough,
            target: target.map(|at| at.to_string()),
            read_only,
            lends: true,
            // On a ring the answer goes through the thread that took the request, which would be woken up for it.
            answers_late: features & feature::OVER_IO_URING == 0,
        }
    }

    /// The same, mounted on a block device or not. On one, kernels may wait for the answer to `RELEASE` in the thread that answers
    /// the last read of a file, which must hold nothing then, and be one that nobody else waits for.
    pub(super) fn on_block_device(mut self, on_one: bool) -> Self {
        self.lends = !on_one;
        self.answers_late &= !on_one;
        self
    }

    /// Before whoever sent a request changes a file: setgid that the group of the file can not use, and the caller is not in,
    /// ends. (What others can use is ended by the kernel's word.) True: it was there.
    fn end_setgid(&self, header: &InHeader, ino: InodeNo) -> Result<bool, FsError> {
        if header.uid == 0 {
            return Ok(false);
        }
        let keeps = |gid| header.gid == gid || Caller::of(header.pid).keeps_setgid(gid);
        self.fs.end_setgid_unless(ino, keeps)
    }

    /// What the kernel is told of a file that was opened with `flags`.
    fn open_out(&self, ino: InodeNo, flags: u32) -> OpenOut {
        self.cache.opened(ino);
        let appends = flags as i32 & libc::O_APPEND != 0;
        self.appends
            .opened(ino, self.fs.size(ino).unwrap_or(0), appends);
        let shared = self.passthrough.as_ref().map(|p| p.opened(ino, flags));
        let (more, backing_id) = match shared {
            None => (0, 0),
            // A descriptor that its mappings store through: if nothing were asked at its close, the kernel would not write
            // back what they have stored either.
            Some(None) if can_store_by_mapping(flags) => (0, 0),
            Some(None) => (OPEN_NO_FLUSH, 0),
            Some(Some(id)) => (OPEN_PASSTHROUGH, id.0),
        };
        OpenOut {
            fh: ino.0,
            open_flags: self.open_flags | more,
            backing_id,
        }
    }
}

/// What is to be made for the one who asks.
fn node(message: &Message<'_>, kind: FileKind, (mode, umask): (u32, u32), rdev: u32) -> NewNode {
    NewNode {
        kind,
        mode,
        umask,
        uid: message.header.uid,
        gid: message.header.gid,
        rdev,
    }
}

impl<S: BlockStore + 'static> Serve for Adapter<S> {
    fn serve(&self, message: Message<'_>, reply: Reply) {
        let served = match message.header.opcode {
            opcode::LOOKUP => self.lookup(message, reply),
            opcode::FORGET => self.forget(message, reply),
            opcode::BATCH_FORGET => self.batch_forget(message, reply),
            opcode::GETATTR => self.getattr(message, reply),
            opcode::STATX => self.statx(message, reply),
            opcode::SETATTR => self.setattr(message, reply),
            opcode::STATFS => self.statfs(&message, reply),
            opcode::GETXATTR => self.getxattr(message, reply),
            opcode::LISTXATTR => self.listxattr(message, reply),
            opcode::SETXATTR => self.setxattr(message, reply),
            opcode::REMOVEXATTR => self.removexattr(message, reply),
            opcode::MKNOD => self.mknod(message, reply),
            opcode::MKDIR => self.mkdir(message, reply),
            opcode::SYMLINK => self.symlink(message, reply),
            opcode::READLINK => self.readlink(message, reply),
            opcode::LINK => self.link(message, reply),
            opcode::UNLINK => self.unlink(message, reply),
            opcode::RMDIR => self.rmdir(message, reply),
            opcode::RENAME => self.rename(message, reply),
            opcode::RENAME2 => self.rename2(message, reply),
            opcode::CREATE => self.create(message, reply),
            opcode::TMPFILE => self.tmpfile(message, reply),
            opcode::OPEN => self.open(message, reply),
            opcode::RELEASE => self.release(message, reply),
            opcode::READ => self.read(message, reply),
            opcode::WRITE => self.write(message, reply),
            opcode::FSYNC => self.fsync(message, reply),
            opcode::FLUSH if self.passthrough.is_some() => self.flush(message, reply),
            opcode::FALLOCATE => self.fallocate(message, reply),
            opcode::LSEEK => self.lseek(message, reply),
            opcode::COPY_FILE_RANGE => self.copy_file_range(message, reply),
            opcode::IOCTL => self.ioctl(message, reply),
            opcode::OPENDIR => self.opendir(message, reply),
            opcode::RELEASEDIR => self.releasedir(message, reply),
            opcode::READDIR => self.readdir(message, reply),
            opcode::READDIRPLUS => self.readdirplus(message, reply),
            opcode::FSYNCDIR => self.fsyncdir(reply),
            opcode::SYNCFS => self.syncfs(reply),
            // The kernel asks once and then no more. Nothing happens at `FLUSH`, for example, unless pages are shared.
            _ => {
                reply.errno(libc::ENOSYS);
                Ok(())
            }
        };
        if let Err(Malformed) = served {
            tracing::error!(header = ?message.header, "a request of the kernel is malformed");
        }
    }
}

impl<S: BlockStore> Drop for Adapter<S> {
    fn drop(&mut self) {
        self.fs.forget_replaced();
        if let Err(error) = self.fs.sync_all() {
            tracing::error!(%error, "unmount could not write everything");
        }
    }
}
