//! Requests of the kernel, one method each.

use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileAttr, FileHandle, Filesystem, FopenFlags,
    Generation, INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags,
    ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
    ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow,
    WriteFlags,
};

use super::cache::PageCache;
use super::caller::Caller;
use super::errno::{errno, file_attr, file_type, inode_no, set_time};
use super::ioctl;

use crate::error::FsError;
use crate::fs::{
    CopyRange, FallocMode, Fs, NewNode, Remember, RenameMode, SeekTo, SyncScope, WriteOptions,
};
use crate::inode::{Attr, FileKind, InodeNo, SetAttr};
use crate::store::BlockStore;
use crate::xattr::XattrMode;

/// How long the kernel may believe names and attributes. Only it changes them, unless the library is used beside it.
const TTL: Duration = Duration::from_secs(1);
const MAX_WRITE: u32 = 1 << 20;
const MAX_BACKGROUND: u16 = 64;
/// The attribute whose change may change the mode.
const ACCESS_ACL: &str = "system.posix_acl_access";

/// Owner and group that every file appears to have; what is on media stays as it is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ShownOwner {
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
}

/// The file system as the FUSE library wants it.
pub(super) struct Adapter<S> {
    pub(super) fs: Arc<Fs<S>>,
    shown: ShownOwner,
    /// Flags of an open file; depends on what the kernel can do.
    open_flags: FopenFlags,
    cache: Arc<PageCache>,
}

macro_rules! answer {
    ($reply:ident, $result:expr, $value:ident => $good:expr) => {
        match $result {
            Ok($value) => $good,
            Err(error) => $reply.error(errno(error)),
        }
    };
}

impl<S: BlockStore + 'static> Adapter<S> {
    pub(super) fn new(fs: Arc<Fs<S>>, shown: ShownOwner, cache: Arc<PageCache>) -> Self {
        Self {
            fs,
            shown,
            open_flags: FopenFlags::empty(),
            cache,
        }
    }

    fn file_attr(&self, attr: &Attr) -> FileAttr {
        FileAttr {
            uid: self.shown.uid.unwrap_or(attr.uid),
            gid: self.shown.gid.unwrap_or(attr.gid),
            ..file_attr(attr)
        }
    }

    fn entry(&self, reply: ReplyEntry, result: Result<Attr, FsError>) {
        answer!(reply, result, attr => reply.entry(&TTL, &self.file_attr(&attr), Generation(attr.generation)))
    }

    /// Pages of mappings that were stored to. What was stored past them meanwhile is left alone.
    fn write_back(
        &self,
        ino: InodeNo,
        offset: u64,
        data: &[u8],
        options: WriteOptions,
    ) -> Result<usize, FsError> {
        let bytes = offset..offset + data.len() as u64;
        let writing = self.cache.writing_back(ino, bytes);
        for part in &writing.parts {
            let len = (part.end - part.start) as usize;
            let from = &data[(part.start - offset) as usize..][..len];
            let done = self.fs.write(ino, part.start, from, options)?;
            if done < len {
                return Ok((part.start - offset) as usize + done);
            }
        }
        Ok(data.len())
    }

    /// A direct write into a file that the kernel has copies of. It has dropped those of these bytes, but may have got some
    /// again since. The thread goes on: recalling copies needs it.
    fn write_past_copies(
        &self,
        ino: InodeNo,
        offset: u64,
        data: &[u8],
        options: WriteOptions,
        reply: ReplyWrite,
    ) {
        let (fs, data) = (Arc::clone(&self.fs), data.to_vec());
        let bytes = offset..offset.saturating_add(data.len() as u64);
        self.cache.recall(ino, bytes, move |window| {
            let result = fs.write(ino, offset, &data, options);
            // Of a write that failed nothing need be kept, but what it did must be seen all the same.
            let n = *result.as_ref().unwrap_or(&0) as u64;
            let answer = move || answer!(reply, result, n => reply.written(n as u32));
            match window.stored(offset..offset + n) {
                None => answer(),
                Some(stale) => stale.recall(answer),
            }
        });
    }
}

fn empty(reply: ReplyEmpty, result: Result<(), FsError>) {
    answer!(reply, result, _done => reply.ok())
}

/// Answers a query of a size, or with bytes that must fit.
fn sized(reply: ReplyXattr, size: u32, bytes: &[u8]) {
    match size as usize {
        0 => reply.size(bytes.len() as u32),
        size if size < bytes.len() => reply.error(Errno::ERANGE),
        _ => reply.data(bytes),
    }
}

fn node(req: &Request, kind: FileKind, (mode, umask): (u32, u32), rdev: u32) -> NewNode {
    NewNode {
        kind,
        mode,
        umask,
        uid: req.uid(),
        gid: req.gid(),
        rdev,
    }
}

fn durable(flags: OpenFlags) -> bool {
    flags.0 & (libc::O_DSYNC | libc::O_SYNC) != 0
}

/// Lends `size` bytes of anything. The thread keeps them: fresh memory for each large read would be brought in page by page.
fn with_buffer(size: usize, f: impl FnOnce(&mut [u8])) {
    thread_local! {
        static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }
    BUFFER.with_borrow_mut(|buffer| {
        if buffer.len() < size {
            buffer.resize(size, 0);
        }
        f(&mut buffer[..size]);
    });
}

impl<S: BlockStore + 'static> Filesystem for Adapter<S> {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let wanted = InitFlags::FUSE_ASYNC_DIO
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_READDIRPLUS_AUTO
            | InitFlags::FUSE_CACHE_SYMLINKS
            | InitFlags::FUSE_EXPORT_SUPPORT
            | InitFlags::FUSE_POSIX_ACL
            | InitFlags::FUSE_DONT_MASK
            | InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP;
        let available = wanted & config.capabilities();
        if let Err(missing) = config.add_capabilities(available) {
            tracing::warn!(?missing, "the kernel withdrew a capability it had offered");
        }
        self.open_flags = if available.contains(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP) {
            FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
        } else {
            // Shared mappings of direct files do not work on this kernel, so its cache is used, and emptied at each
            // open and for stores past the mount.
            FopenFlags::empty()
        };
        let _ = config.set_max_write(MAX_WRITE);
        let _ = config.set_max_readahead(MAX_WRITE);
        let _ = config.set_max_background(MAX_BACKGROUND);
        Ok(())
    }

    fn destroy(&mut self) {
        if let Err(error) = self.fs.sync_all() {
            tracing::error!(%error, "unmount could not write everything");
        }
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.entry(
            reply,
            self.fs
                .lookup_remember(inode_no(parent), name, Remember::Yes),
        );
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        self.fs.forget(inode_no(ino), nlookup);
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        answer!(reply, self.fs.attr(inode_no(ino)), attr => reply.attr(&TTL, &self.file_attr(&attr)));
    }

    fn setattr(
        &self,
        _req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let set = SetAttr {
            perm: mode.map(|mode| (mode & 0o7777) as u16),
            uid,
            gid,
            size,
            atime: atime.map(set_time),
            mtime: mtime.map(set_time),
        };
        let result = self.fs.set_attr(inode_no(ino), &set);
        answer!(reply, result, attr => reply.attr(&TTL, &self.file_attr(&attr)));
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        answer!(reply, self.fs.readlink(inode_no(ino)), target => reply.data(&target));
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let Some(kind) = FileKind::from_mode(mode) else {
            return reply.error(Errno::EINVAL);
        };
        let node = node(req, kind, (mode, umask), rdev);
        self.entry(
            reply,
            self.fs
                .create_remember(inode_no(parent), name, &node, Remember::Yes, false),
        );
    }

    fn mkdir(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let node = node(req, FileKind::Directory, (mode, umask), 0);
        self.entry(
            reply,
            self.fs
                .create_remember(inode_no(parent), name, &node, Remember::Yes, false),
        );
    }

    fn unlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(reply, self.fs.unlink(inode_no(parent), name));
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(reply, self.fs.rmdir(inode_no(parent), name));
    }

    fn symlink(
        &self,
        req: &Request,
        parent: INodeNo,
        link_name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let owner = (req.uid(), req.gid());
        let target = target.as_os_str();
        self.entry(
            reply,
            self.fs
                .symlink_remember(inode_no(parent), link_name, target, owner, Remember::Yes),
        );
    }

    fn rename(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let mode = match flags {
            flags if flags.is_empty() => RenameMode::Replace,
            RenameFlags::RENAME_NOREPLACE => RenameMode::NoReplace,
            RenameFlags::RENAME_EXCHANGE => RenameMode::Exchange,
            _ => return reply.error(Errno::EINVAL),
        };
        empty(
            reply,
            self.fs
                .rename(inode_no(parent), name, inode_no(newparent), newname, mode),
        );
    }

    fn link(
        &self,
        _req: &Request,
        ino: INodeNo,
        newparent: INodeNo,
        newname: &OsStr,
        reply: ReplyEntry,
    ) {
        self.entry(
            reply,
            self.fs
                .link_remember(inode_no(ino), inode_no(newparent), newname, Remember::Yes),
        );
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let node = node(req, FileKind::File, (mode, umask), 0);
        let result = self
            .fs
            .create_remember(inode_no(parent), name, &node, Remember::Yes, true);
        answer!(reply, result, attr => {
            self.cache.opened(attr.ino);
            reply.created(
                &TTL,
                &self.file_attr(&attr),
                Generation(attr.generation),
                FileHandle(attr.ino.0),
                self.open_flags,
            );
        });
    }

    fn open(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let result = self.fs.open(inode_no(ino));
        answer!(reply, result, _done => {
            self.cache.opened(inode_no(ino));
            reply.opened(FileHandle(ino.0), self.open_flags);
        });
    }

    fn release(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.cache.released(inode_no(ino));
        empty(reply, self.fs.close(inode_no(ino)));
    }

    fn opendir(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let result = self.fs.open(inode_no(ino));
        answer!(reply, result, _done => reply.opened(FileHandle(ino.0), FopenFlags::empty()));
    }

    fn releasedir(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        empty(reply, self.fs.close(inode_no(ino)));
    }

    fn read(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        if lock_owner.is_none() {
            // Not for a program, but for the page cache.
            let bytes = offset..offset.saturating_add(u64::from(size));
            let ino = inode_no(ino);
            let barrier = || self.fs.await_writers(ino);
            self.cache.filling(ino, &bytes, barrier);
        }
        with_buffer(size as usize, |buf| {
            let result = if flags.0 & libc::O_NOATIME == 0 {
                self.fs.read(inode_no(ino), offset, buf)
            } else {
                self.fs.read_keeping_atime(inode_no(ino), offset, buf)
            };
            answer!(reply, result, n => reply.data(&buf[..n]));
        });
    }

    fn write(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let options = WriteOptions {
            durable: durable(flags),
            clear_privileges: write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID),
        };
        let ino = inode_no(ino);
        let result = if write_flags.contains(WriteFlags::FUSE_WRITE_CACHE) {
            self.write_back(ino, offset, data, options)
        } else {
            // Of files that are not open for direct I/O this is the cache itself, writing through. It may have locked the
            // pages, which cannot be recalled then, and need not be.
            let past_cache = self.open_flags.contains(FopenFlags::FOPEN_DIRECT_IO);
            let admits = || !(past_cache && self.cache.has_copies(ino));
            match self.fs.write_if(ino, offset, data, options, &admits) {
                Ok(Some(n)) => Ok(n),
                Ok(None) => return self.write_past_copies(ino, offset, data, options, reply),
                Err(error) => Err(error),
            }
        };
        answer!(reply, result, n => reply.written(n as u32));
    }

    /// Nothing happens at close; the kernel asks once and then no more.
    fn flush(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn fsync(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        datasync: bool,
        reply: ReplyEmpty,
    ) {
        let scope = if datasync {
            SyncScope::Data
        } else {
            SyncScope::All
        };
        empty(reply, self.fs.fsync(inode_no(ino), scope));
    }

    /// Names are durable already, and times but that of the last access.
    fn fsyncdir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn readdir(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let result = self.fs.readdir(inode_no(ino), offset, |entry| {
            !reply.add(
                INodeNo(entry.ino.0),
                entry.next_cookie,
                file_type(entry.kind),
                &entry.name,
            )
        });
        answer!(reply, result, _done => reply.ok());
    }

    fn readdirplus(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let parent = inode_no(ino);
        let result = self.fs.readdir(parent, offset, |entry| {
            // The kernel does not count `.` and `..` as lookups. A name that is gone meanwhile is left out.
            let dots = entry.name == "." || entry.name == "..";
            let remember = if dots { Remember::No } else { Remember::Yes };
            let Ok(attr) = self.fs.lookup_remember(parent, &entry.name, remember) else {
                return true;
            };
            let generation = Generation(attr.generation);
            let full = reply.add(
                INodeNo(attr.ino.0),
                entry.next_cookie,
                &entry.name,
                &TTL,
                &self.file_attr(&attr),
                generation,
            );
            if full && !dots {
                self.fs.forget(attr.ino, 1);
            }
            !full
        });
        answer!(reply, result, _done => reply.ok());
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        let stat = self.fs.statfs();
        let grain = ftl::GRAIN_BYTES as u32;
        reply.statfs(
            stat.grains,
            stat.grains_free,
            stat.grains_free,
            stat.inodes.saturating_add(stat.inodes_free),
            stat.inodes_free,
            grain,
            stat.name_max,
            grain,
        );
    }

    fn fallocate(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let result = FallocMode::from_flags(mode)
            .and_then(|mode| self.fs.fallocate(inode_no(ino), offset, length, mode));
        empty(reply, result);
    }

    fn lseek(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let to = match whence {
            libc::SEEK_DATA => SeekTo::Data,
            libc::SEEK_HOLE => SeekTo::Hole,
            _ => return reply.error(Errno::EINVAL),
        };
        let Ok(offset) = u64::try_from(offset) else {
            return reply.error(Errno::ENXIO);
        };
        let result = self.fs.seek(inode_no(ino), offset, to);
        answer!(reply, result, found => reply.offset(found as i64));
    }

    fn ioctl(
        &self,
        req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        cmd: u32,
        in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        if cmd != ioctl::FITRIM {
            return reply.error(Errno::ENOTTY);
        }
        let bytes = self.fs.statfs().grains * ftl::GRAIN_BYTES as u64;
        match ioctl::trim(req.uid(), bytes, in_data) {
            Ok(answer) => reply.ioctl(0, &answer),
            Err(error) => reply.error(error),
        }
    }

    fn copy_file_range(
        &self,
        _req: &Request,
        ino_in: INodeNo,
        _fh_in: FileHandle,
        offset_in: u64,
        ino_out: INodeNo,
        _fh_out: FileHandle,
        offset_out: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let result = self.fs.copy_range(&CopyRange {
            from: inode_no(ino_in),
            from_offset: offset_in,
            to: inode_no(ino_out),
            to_offset: offset_out,
            len,
        });
        answer!(reply, result, n => reply.written(n as u32));
    }

    fn setxattr(
        &self,
        req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let mode = match flags {
            0 => XattrMode::Set,
            libc::XATTR_CREATE => XattrMode::Create,
            libc::XATTR_REPLACE => XattrMode::Replace,
            _ => return reply.error(Errno::EINVAL),
        };
        let ino = inode_no(ino);
        // Only an access control list asks, and only for a file that has the bit.
        let keeps_setgid = name != ACCESS_ACL
            || self.fs.attr(ino).is_ok_and(|attr| {
                attr.mode & libc::S_ISGID == 0 || Caller::of(req).keeps_setgid(attr.gid)
            });
        empty(
            reply,
            self.fs.set_xattr_as(ino, name, value, mode, keeps_setgid),
        );
    }

    fn getxattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        answer!(reply, self.fs.xattr(inode_no(ino), name), value => sized(reply, size, &value));
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        answer!(reply, self.fs.xattrs(inode_no(ino)), names => {
            let is_trusted = |name: &OsString| name.as_bytes().starts_with(b"trusted.");
            let hides = names.iter().any(is_trusted) && !Caller::of(req).sees_trusted();
            let mut list = Vec::new();
            for name in names.iter().filter(|name| !(hides && is_trusted(name))) {
                list.extend(name.as_bytes());
                list.push(0);
            }
            sized(reply, size, &list);
        });
    }

    fn removexattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(reply, self.fs.remove_xattr(inode_no(ino), name));
    }
}
