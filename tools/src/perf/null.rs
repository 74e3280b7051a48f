//! A file system of one file that reads as zeros: what the way through the kernel costs when nothing is behind it.
//!
//! Mounted with the options of ContigFS, as far as they matter to reading.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, InitFlags, KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr,
    ReplyData, ReplyEntry, ReplyOpen, Request, Session,
};

/// Its one file.
pub const NAME: &str = "zeros";
/// Bytes of the file.
pub const BYTES: u64 = 1 << 30;
/// Longest request.
pub(super) const REQUEST_MAX: u32 = 1 << 20;
/// Requests of direct I/O that are under way at a time, as many as ContigFS asks for.
const BACKGROUND_MAX: u16 = 64;
pub(super) const TTL: Duration = Duration::from_secs(1);
const FILE: INodeNo = INodeNo(2);

static ZEROS: [u8; REQUEST_MAX as usize] = [0; REQUEST_MAX as usize];

struct Null;

/// Mounts it at `dir`, served by `threads` threads until the answer is dropped.
pub fn mount(dir: &Path, threads: usize) -> io::Result<BackgroundSession> {
    mount_as(Null, "null", dir, threads)
}

/// Mounts `file_system`, called `name`, at `dir`.
pub(super) fn mount_as(
    file_system: impl Filesystem + 'static,
    name: &str,
    dir: &Path,
    threads: usize,
) -> io::Result<BackgroundSession> {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(name.into()),
        MountOption::DefaultPermissions,
    ];
    config.n_threads = Some(threads);
    config.clone_fd = true;
    Session::new(file_system, dir, &config).and_then(Session::spawn)
}

/// Asks the kernel for what direct I/O is better with.
pub(super) fn configure(config: &mut KernelConfig) {
    let wanted = InitFlags::FUSE_ASYNC_DIO | InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP;
    let available = wanted & config.capabilities();
    let _ = config.add_capabilities(available);
    let _ = config.set_max_write(REQUEST_MAX);
    let _ = config.set_max_background(BACKGROUND_MAX);
}

fn attr(ino: INodeNo) -> FileAttr {
    match ino {
        INodeNo::ROOT => attr_of(ino, FileType::Directory, 0o755),
        _ => FileAttr {
            size: BYTES,
            ..attr_of(ino, FileType::RegularFile, 0o644)
        },
    }
}

/// An empty one.
pub(super) fn attr_of(ino: INodeNo, kind: FileType, perm: u16) -> FileAttr {
    FileAttr {
        ino,
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind,
        perm,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

impl Filesystem for Null {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        configure(config);
        Ok(())
    }

    fn lookup(&self, _req: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if name == NAME {
            reply.entry(&TTL, &attr(FILE), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&TTL, &attr(ino));
    }

    fn open(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let flags = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        reply.opened(FileHandle(0), flags);
    }

    fn read(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let left = BYTES.saturating_sub(offset);
        let len = u64::from(size.min(REQUEST_MAX)).min(left) as usize;
        reply.data(&ZEROS[..len]);
    }
}
