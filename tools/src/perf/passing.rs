//! A file system that passes everything on to a directory: what is left of a disk behind `/dev/fuse` when who serves adds next to
//! nothing.
//!
//! Mounted with the options of ContigFS, as far as they matter to files that are open for direct I/O. A read, a write and a sync
//! take the call that they stand for, and no other; what is written is copied once, to where direct I/O wants it. What makes and
//! removes names also looks at the inode.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fuser::{
    BackgroundSession, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyWrite, Request, WriteFlags,
};
use memmap2::MmapMut;
use nix::fcntl::{FallocateFlags, fallocate};

use super::null;

thread_local! {
    /// Memory as direct I/O wants it.
    static BUFFER: RefCell<Option<MmapMut>> = const { RefCell::new(None) };
}

/// Mounts `directory` at `dir`, served by `threads` threads until the answer is dropped.
pub fn mount(directory: &Path, dir: &Path, threads: usize) -> io::Result<BackgroundSession> {
    let passing = Passing {
        known: Mutex::new(HashMap::from([(INodeNo::ROOT, directory.to_owned())])),
        open: Mutex::default(),
        opened: AtomicU64::new(0),
    };
    null::mount_as(passing, "passing", dir, threads)
}

struct Passing {
    /// What a number stands for.
    known: Mutex<HashMap<INodeNo, PathBuf>>,
    /// What the kernel has open, by its handles.
    open: Mutex<HashMap<u64, Arc<File>>>,
    /// Ever.
    opened: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn direct(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    options.custom_flags(libc::O_DIRECT).open(path)
}

impl Passing {
    fn known(&self, ino: INodeNo) -> io::Result<PathBuf> {
        let stale = || io::Error::from_raw_os_error(libc::ESTALE);
        lock(&self.known).get(&ino).cloned().ok_or_else(stale)
    }

    fn path(&self, parent: INodeNo, name: &OsStr) -> io::Result<PathBuf> {
        Ok(self.known(parent)?.join(name))
    }

    /// Remembers what lies at `path`.
    fn enter(&self, path: PathBuf) -> io::Result<FileAttr> {
        let attr = attr(&path)?;
        lock(&self.known).entry(attr.ino).or_insert(path);
        Ok(attr)
    }

    /// Keeps a file open until the kernel lets go of it.
    fn keep(&self, file: File) -> FileHandle {
        let handle = self.opened.fetch_add(1, Ordering::Relaxed);
        lock(&self.open).insert(handle, Arc::new(file));
        FileHandle(handle)
    }

    fn file(&self, handle: FileHandle) -> io::Result<Arc<File>> {
        let bad = || io::Error::from_raw_os_error(libc::EBADF);
        lock(&self.open).get(&handle.0).cloned().ok_or_else(bad)
    }

    fn remove(
        &self,
        (parent, name): (INodeNo, &OsStr),
        remove: impl FnOnce(&Path) -> io::Result<()>,
    ) -> io::Result<()> {
        let path = self.path(parent, name)?;
        let ino = attr(&path)?.ino;
        remove(&path)?;
        lock(&self.known).remove(&ino);
        Ok(())
    }

    fn sync(&self, handle: FileHandle, data_only: bool) -> io::Result<()> {
        let file = self.file(handle)?;
        match data_only {
            true => file.sync_data(),
            false => file.sync_all(),
        }
    }
}

fn attr(path: &Path) -> io::Result<FileAttr> {
    let found = fs::symlink_metadata(path)?;
    let (kind, perm) = match found.is_dir() {
        true => (FileType::Directory, 0o755),
        false => (FileType::RegularFile, 0o644),
    };
    Ok(FileAttr {
        size: found.len(),
        blocks: found.blocks(),
        ..null::attr_of(INodeNo(found.ino()), kind, perm)
    })
}

/// Lends memory for `len` bytes to `with`.
fn with_buffer<T>(len: usize, with: impl FnOnce(&mut [u8]) -> io::Result<T>) -> io::Result<T> {
    BUFFER.with_borrow_mut(|buffer| {
        let buffer = match buffer {
            Some(buffer) => buffer,
            none => none.insert(MmapMut::map_anon(null::REQUEST_MAX as usize)?),
        };
        with(&mut buffer[..len])
    })
}

fn done(reply: ReplyEmpty, result: io::Result<()>) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(Errno::from(error)),
    }
}

fn entry(reply: ReplyEntry, result: io::Result<FileAttr>) {
    match result {
        Ok(attr) => reply.entry(&null::TTL, &attr, Generation(0)),
        Err(error) => reply.error(Errno::from(error)),
    }
}

fn open_flags() -> FopenFlags {
    FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
}

impl Filesystem for Passing {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        null::configure(config);
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = self.path(parent, name).and_then(|path| self.enter(path));
        entry(reply, found);
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        match self.known(ino).and_then(|path| attr(&path)) {
            Ok(found) => reply.attr(&null::TTL, &FileAttr { ino, ..found }),
            Err(error) => reply.error(Errno::from(error)),
        }
    }

    fn open(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let opened = self
            .known(ino)
            .and_then(|path| direct(OpenOptions::new().read(true).write(true), &path));
        match opened {
            Ok(file) => reply.opened(self.keep(file), open_flags()),
            Err(error) => reply.error(Errno::from(error)),
        }
    }

    fn release(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let closed = lock(&self.open).remove(&fh.0);
        drop(closed);
        reply.ok();
    }

    fn create(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let created = self.path(parent, name).and_then(|path| {
            let file = direct(
                OpenOptions::new().read(true).write(true).create(true),
                &path,
            )?;
            Ok((self.enter(path)?, file))
        });
        match created {
            Ok((attr, file)) => {
                let handle = self.keep(file);
                reply.created(&null::TTL, &attr, Generation(0), handle, open_flags());
            }
            Err(error) => reply.error(Errno::from(error)),
        }
    }

    fn read(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut reply = Some(reply);
        let result = self.file(fh).and_then(|file| {
            with_buffer(size as usize, |buffer| {
                let n = file.read_at(buffer, offset)?;
                if let Some(reply) = reply.take() {
                    reply.data(&buffer[..n]);
                }
                Ok(())
            })
        });
        if let (Err(error), Some(reply)) = (result, reply) {
            reply.error(Errno::from(error));
        }
    }

    fn write(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let written = self.file(fh).and_then(|file| {
            with_buffer(data.len(), |buffer| {
                buffer.copy_from_slice(data);
                file.write_at(buffer, offset)
            })
        });
        match written {
            Ok(n) => reply.written(n as u32),
            Err(error) => reply.error(Errno::from(error)),
        }
    }

    fn fsync(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        datasync: bool,
        reply: ReplyEmpty,
    ) {
        done(reply, self.sync(fh, datasync));
    }

    fn fsyncdir(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        let directory = self.known(ino).and_then(File::open);
        done(reply, directory.and_then(|directory| directory.sync_all()));
    }

    fn fallocate(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let (flags, offset, length) = (
            FallocateFlags::from_bits_retain(mode),
            offset as i64,
            length as i64,
        );
        let reserve = |file: Arc<File>| Ok(fallocate(&*file, flags, offset, length)?);
        done(reply, self.file(fh).and_then(reserve));
    }

    fn mkdir(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let made = self.path(parent, name).and_then(|path| {
            fs::create_dir(&path)?;
            self.enter(path)
        });
        entry(reply, made);
    }

    fn unlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        done(
            reply,
            self.remove((parent, name), |path| fs::remove_file(path)),
        );
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        done(
            reply,
            self.remove((parent, name), |path| fs::remove_dir(path)),
        );
    }
}
