//! Requests about open files and what is in them.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;
use std::thread::Builder;

use zerocopy::IntoBytes;

use super::super::appends::Placed;
use super::super::attr::read_error_code;
use super::super::cache::Window;
use super::super::ioctl::{self, project, quota};
use super::super::message::Message;
use super::super::passthrough::Passthrough;
use super::super::reply::Reply;
use super::super::wire::{
    CopyIn, FSYNC_DATA, FallocateIn, FsyncIn, IoctlIn, IoctlOut, LseekIn, LseekOut, OPEN_DIRECT_IO,
    OpenIn, READ_LOCKOWNER, ReadIn, ReleaseIn, WRITE_CACHE, WRITE_KILL_SUIDGID, WriteIn, WriteOut,
};
use super::{Adapter, Served};
use crate::error::FsError;
use crate::fs::{CopyRange, FallocMode, ReadOptions, SeekTo, SyncScope, WriteOptions};
use crate::inode::InodeNo;
use crate::span::Span;
use crate::store::BlockStore;

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

fn written(bytes: usize) -> WriteOut {
    WriteOut {
        size: bytes as u32,
        padding: 0,
    }
}

impl<S: BlockStore + 'static> Adapter<S> {
    pub(super) fn open(&self, mut message: Message<'_>, reply: Reply) -> Served {
        let ino = message.ino();
        let what: OpenIn = message.take()?;
        reply.with(self.fs.open(ino), |()| self.open_out(ino, what.flags));
        Ok(())
    }

    /// A descriptor is closed.
    pub(super) fn flush(&self, message: Message<'_>, reply: Reply) -> Served {
        let flush = |p: &Arc<Passthrough<S>>| p.flush(message.ino());
        reply.done(self.passthrough.as_ref().map_or(Ok(()), flush));
        Ok(())
    }

    pub(super) fn release(&self, mut message: Message<'_>, reply: Reply) -> Served {
        let what: ReleaseIn = message.take()?;
        self.cache.released(message.ino());
        self.appends.released(message.ino());
        if let Some(passthrough) = &self.passthrough {
            passthrough.released(message.ino(), what.flags);
        }
        reply.done(self.fs.close(message.ino()));
        Ok(())
    }

    pub(super) fn read(&self, mut message: Message<'_>, reply: Reply) -> Served {
        let what: ReadIn = message.take()?;
        let ino = message.ino();
        let for_cache = what.read_flags & READ_LOCKOWNER == 0;
        let is_shared = || (self.passthrough.as_ref()).is_some_and(|p| p.is_shared(ino));
        let soon_stale = for_cache && is_shared();
        let bytes = what.offset..what.offset.saturating_add(u64::from(what.size));
        if for_cache && !soon_stale {
            // Not for a program, but for the page cache.
            let barrier = || self.fs.await_writers(ino);
            self.cache.filling(ino, &bytes, barrier);
        }
        let options = ReadOptions {
            keep_atime: what.flags as i32 & libc::O_NOATIME != 0,
            // Behind a short answer the kernel takes pages for zeros, and the file for shorter. After an error it asks for
            // one page at a time.
            all: for_cache,
        };
        let (mut reply, place) = (Some(reply), (what.offset, what.size as usize));
        let mut later = || {
            let reply = reply.take();
            move |read: Result<&[u8], FsError>| match (reply, read) {
                (Some(reply), Ok(bytes)) => reply.parts(&[bytes]),
                (Some(reply), Err(error)) => reply.errno(read_error_code(error)),
                (None, _) => {}
            }
        };
        if self.answers_late && !for_cache && self.fs.read_then(ino, place, options, &mut later) {
            return Ok(());
        }
        let mut answer = |bytes: &[Span<'_>]| {
            if let Some(reply) = reply.take() {
                reply.spans(bytes);
            }
        };
        let lent = self.lends && self.fs.lend(ino, place, options, &mut answer);
        if !lent && let Some(reply) = reply {
            with_buffer(what.size as usize, |buffer| {
                match self.fs.read_with(ino, what.offset, buffer, options) {
                    Ok(len) => reply.parts(&[&buffer[..len]]),
                    Err(error) => reply.errno(read_error_code(error)),
                }
            });
        }
        if soon_stale {
            // For `sendfile`, or a kernel thread. Mappings do not have these pages, and nobody says when they store, so the
            // cache must not keep what it has just got.
            self.cache.recall(ino, bytes, drop);
        }
        Ok(())
    }

    pub(super) fn write(&self, mut message: Message<'_>, reply: Reply) -> Served {
        let what: WriteIn = message.take()?;
        let data = message.bytes(what.size)?;
        let options = WriteOptions {
            durable: what.flags as i32 & (libc::O_DSYNC | libc::O_SYNC) != 0,
            clear_privileges: what.write_flags & WRITE_KILL_SUIDGID != 0,
        };
        let (ino, offset) = (message.ino(), what.offset);
        if options.clear_privileges
            && let Err(error) = self.end_setgid(&message.header, ino)
        {
            reply.error(error);
            return Ok(());
        }
        let result = if what.write_flags & WRITE_CACHE != 0 {
            self.write_back(ino, offset, data, options)
        } else {
            // Of files that are not open for direct I/O this is the cache itself, writing through. It may have locked the
            // pages, which cannot be recalled then, and need not be.
            let past_cache = self.open_flags & OPEN_DIRECT_IO != 0;
            let admits = || !(past_cache && self.cache.has_copies(ino));
            let placed = match past_cache && what.flags as i32 & libc::O_APPEND != 0 {
                true => match self.place_append(ino, offset, data.len()) {
                    Ok(placed) => Some(placed),
                    Err(error) => {
                        reply.error(error);
                        return Ok(());
                    }
                },
                false => None,
            };
            let offset = placed.as_ref().map_or(offset, |placed| placed.offset);
            match self.fs.write_if(ino, offset, data, options, &admits) {
                Ok(Some(n)) => {
                    if placed.is_none() {
                        self.appends.wrote(ino, offset + n as u64);
                    }
                    Ok(n)
                }
                Ok(None) => {
                    self.write_past_copies(ino, (offset, placed), data, options, reply);
                    return Ok(());
                }
                Err(error) => Err(error),
            }
        };
        reply.with(result, written);
        Ok(())
    }

    /// Gives an append its place. (It is one also when a caller of `pwritev2` wants it elsewhere by `RWF_NOAPPEND`, because
    /// nothing tells the two apart.)
    fn place_append(&self, ino: InodeNo, offset: u64, len: usize) -> Result<Placed, FsError> {
        let end = || self.fs.size(ino);
        self.appends.place(ino, offset, len as u64, end)
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
            let mut at = part.start;
            // The kernel takes a short answer for all of it: what does not fit must be an error.
            while at < part.end {
                let rest = (at - offset) as usize..(part.end - offset) as usize;
                at += self.fs.write(ino, at, &data[rest], options)? as u64;
            }
        }
        Ok(data.len())
    }

    /// A direct write into a file that the kernel has copies of. It has dropped those of these bytes, but may have got some
    /// again since. The thread goes on: recalling copies needs it.
    fn write_past_copies(
        &self,
        ino: InodeNo,
        (offset, placed): (u64, Option<Placed>),
        data: &[u8],
        options: WriteOptions,
        reply: Reply,
    ) {
        let (fs, data) = (Arc::clone(&self.fs), data.to_vec());
        let appends = Arc::clone(&self.appends);
        let bytes = offset..offset.saturating_add(data.len() as u64);
        self.cache.recall(ino, bytes, move |window| {
            let result = fs.write(ino, offset, &data, options);
            // Of a write that failed nothing need be kept, but what it did must be seen all the same.
            let n = *result.as_ref().unwrap_or(&0) as u64;
            if placed.is_none() {
                appends.wrote(ino, offset + n);
            }
            drop(placed);
            answer_change(window, offset..offset + n, move || {
                reply.with(result, written)
            });
        });
    }

    pub(super) fn fsync(&self, mut message: Message<'_>, reply: Reply) -> Served {
        let what: FsyncIn = message.take()?;
        let scope = match what.fsync_flags & FSYNC_DATA {
            0 => SyncScope::All,
            _ => SyncScope::Data,
        };
        let done = move |result| reply.done(result);
        self.fs.fsync_then(message.ino(), scope, done);
        Ok(())
    }

    pub(super) fn syncfs(&self, reply: Reply) -> Served {
        reply.done(self.fs.sync_all());
        Ok(())
    }

    pub(super) fn fallocate(&self, mut message: Message<'_>, reply: Reply) -> Served {
        let what: FallocateIn = message.take()?;
        let mode = match FallocMode::from_flags(what.mode as i32) {
            Ok(mode) => mode,
            Err(error) => {
                reply.error(error);
                return Ok(());
            }
        };
        let (ino, offset, length) = (message.ino(), what.offset, what.length);
        if let Err(error) = self.end_setgid(&message.header, ino) {
            reply.error(error);
            return Ok(());
        }
        if let FallocMode::Allocate { .. } = mode {
            reply.done(self.fs.fallocate(ino, offset, length, mode));
            return Ok(());
        }
        // The kernel has had dirty copies written back before it asked, and changes what it has got when it is answered.
        // What is written back in between must not bring the old bytes back.
        let fs = Arc::clone(&self.fs);
        let bytes = offset..offset.saturating_add(length);
        self.cache.change(ino, bytes.clone(), move |window| {
            let result = fs.fallocate(ino, offset, length, mode);
            let changed = match result {
                Ok(()) => bytes,
                Err(_) => offset..offset,
            };
            answer_change(window, changed, move || reply.done(result));
        });
        Ok(())
    }

    pub(super) fn lseek(&self, mut message: Message<'_>, reply: Reply) -> Served {
        let what: LseekIn = message.take()?;
        let to = match what.whence as i32 {
            libc::SEEK_DATA => SeekTo::Data,
            libc::SEEK_HOLE => SeekTo::Hole,
            _ => {
                reply.errno(libc::EINVAL);
                return Ok(());
            }
        };
        if i64::try_from(what.offset).is_err() {
            reply.errno(libc::ENXIO);
            return Ok(());
        }
        let ino = message.ino();
        let is_shared = || (self.passthrough.as_ref()).is_some_and(|p| p.is_shared(ino));
        let found = match self.cache.has_copies(ino) || is_shared() {
            false => self.fs.seek(ino, what.offset, to),
            true => self.seek_under_copies(ino, what.offset, to),
        };
        reply.with(found, |offset| LseekOut { offset });
        Ok(())
    }

    /// Mappings may have stored anywhere, and the kernel does not write that back before it asks: nothing is known to be a hole.
    fn seek_under_copies(&self, ino: InodeNo, offset: u64, to: SeekTo) -> Result<u64, FsError> {
        let size = self.fs.size(ino)?;
        match to {
            _ if offset >= size => Err(FsError::BehindEnd),
            SeekTo::Data => Ok(offset),
            SeekTo::Hole => Ok(size),
        }
    }

    pub(super) fn copy_file_range(&self, mut message: Message<'_>, reply: Reply) -> Served {
        let what: CopyIn = message.take()?;
        let copy = CopyRange {
            from: message.ino(),
            from_offset: what.off_in,
            to: InodeNo(what.nodeid_out),
            to_offset: what.off_out,
            len: what.len,
        };
        // The kernel drops its copies of all pages of the range when it is answered, and with those at the edges also what
        // mappings have stored meanwhile beside the range. It copies such ranges by reading and writing.
        if !self.is_of_whole_pages(&copy) {
            reply.errno(libc::EXDEV);
            return Ok(());
        }
        if let Err(error) = self.end_setgid(&message.header, copy.to) {
            reply.error(error);
            return Ok(());
        }
        let fs = Arc::clone(&self.fs);
        let bytes = copy.to_offset..copy.to_offset.saturating_add(copy.len);
        self.cache.change(copy.to, bytes, move |window| {
            let copied = fs.copy_range(&copy);
            let end = copy.to_offset + copied.as_ref().unwrap_or(&0);
            answer_change(window, copy.to_offset..end, move || {
                reply.with(copied, |bytes| WriteOut {
                    size: bytes as u32,
                    padding: 0,
                });
            });
        });
        Ok(())
    }

    /// Whether there is nothing beside the target in its pages.
    fn is_of_whole_pages(&self, copy: &CopyRange) -> bool {
        let is_border = |offset: u64| offset.is_multiple_of(ftl::GRAIN_BYTES as u64);
        let end = copy.to_offset.saturating_add(copy.len);
        let is_behind = || self.fs.size(copy.to).is_ok_and(|size| end >= size);
        is_border(copy.to_offset) && (is_border(end) || is_behind())
    }

    pub(super) fn ioctl(&self, mut message: Message<'_>, reply: Reply) -> Served {
        let what: IoctlIn = message.take()?;
        let argument = message.bytes(what.in_size)?;
        let (uid, bytes) = (
            message.header.uid,
            self.fs.statfs().grains * ftl::GRAIN_BYTES as u64,
        );
        let answer = match what.cmd {
            ioctl::FITRIM => {
                self.trim(uid, bytes, argument, reply);
                return Ok(());
            }
            // The kernel asks about a mount only those requests that it knows.
            ioctl::QUOTA | ioctl::GROW if self.read_only && changes(what.cmd, argument) => {
                Err(libc::EROFS)
            }
            ioctl::QUOTA if quota::takes_long(argument) => {
                self.change_quota(message.ino(), uid, argument, reply);
                return Ok(());
            }
            ioctl::QUOTA => quota::serve(&self.fs, message.ino(), uid, argument),
            ioctl::GETFLAGS | ioctl::SETFLAGS | ioctl::FSGETXATTR | ioctl::FSSETXATTR => {
                project::serve(&self.fs, message.ino(), uid, what.cmd, argument)
            }
            ioctl::GROW => ioctl::grow(self.fs.store(), uid, argument).map(Vec::from),
            _ => Err(libc::ENOTTY),
        };
        answer_ioctl(reply, answer);
        Ok(())
    }

    /// Devices take their time, so this waits for them on a thread of its own, as changes of limits do.
    fn trim(&self, uid: u32, bytes: u64, argument: &[u8], reply: Reply) {
        let (fs, argument, read_only) = (Arc::clone(&self.fs), argument.to_vec(), self.read_only);
        let discard = move || if read_only { 0 } else { fs.store().trim() };
        let work = move || {
            let answer = ioctl::trim(uid, bytes, &argument, discard);
            answer_ioctl(reply, answer.map(Vec::from));
        };
        let started = Builder::new().name("trim".to_owned()).spawn(work);
        if let Err(error) = started {
            tracing::error!(%error, "no thread to trim");
        }
    }

    /// A tree is gone through on a thread of its own: those that serve requests are few. The file system lets only one
    /// be changed at a time.
    fn change_quota(&self, dir: InodeNo, uid: u32, argument: &[u8], reply: Reply) {
        let (fs, argument) = (Arc::clone(&self.fs), argument.to_vec());
        let work = move || answer_ioctl(reply, quota::serve(&fs, dir, uid, &argument));
        // If there is no thread to be had, the reply is dropped, and says so.
        let started = Builder::new().name("quota".to_owned()).spawn(work);
        if let Err(error) = started {
            tracing::error!(%error, "no thread to change limits");
        }
    }
}

/// A change of `bytes` past the kernel's copies has been made: answers when no copy hides it.
fn answer_change(window: Window, bytes: Range<u64>, answer: impl FnOnce() + Send + 'static) {
    match window.stored(bytes) {
        None => answer(),
        Some(stale) => stale.recall(answer),
    }
}

/// Whether a request of ours changes the volume.
fn changes(command: u32, argument: &[u8]) -> bool {
    command != ioctl::QUOTA || quota::takes_long(argument)
}

fn answer_ioctl(reply: Reply, answer: Result<Vec<u8>, i32>) {
    match answer {
        Ok(answer) => reply.parts(&[IoctlOut::default().as_bytes(), &answer]),
        Err(errno) => reply.errno(errno),
    }
}
