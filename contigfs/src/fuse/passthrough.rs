//! Files whose mappings have the pages of the store: the kernel maps a memory file in place of theirs (`FUSE_PASSTHROUGH`),
//! while `read` and `write` come here as always (`FOPEN_DIRECT_IO`).
//!
//! All open files of an inode agree on the mode, which the first of them decides that can be mapped: what is open for writing
//! only cannot, so large files can be written to a mount where all files are shared. The mode ends when the last open file has
//! gone, and with it every mapping: these do not keep the file open that they were made of, but the memory file.
//!
//! ```text
//!   closed ── open: wanted, and fits ──► shared, open ◄─ open ── release: the last ─► shared, mapped ──┐
//!      ▲  └── open: else ──► open            └── release: the last, and nothing is mapped ──► closed   │
//!      └────────────────────────── nothing is mapped any more ─────────────────────────────────────────┘
//! ```

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Builder, JoinHandle};
use std::time::{Duration, Instant};

use ftl::{Lba, LbaRange};
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::device::{BackingId, Device};
use crate::error::FsError;
use crate::fs::{Fs, SyncScope};
use crate::inode::{FileKind, InodeNo};
use crate::store::BlockStore;

/// Extended attribute that says of a file whether its pages are shared: `1` or `0`. It counts when the file is opened and
/// nobody has it open yet.
pub const SHARE_ATTRIBUTE: &str = "user.contigfs.share_pages";

/// How long to wait for the kernel to say that a file was closed, which it does after `close` has returned: long after, where a machine
/// has much to do.
const CLOSING: Duration = Duration::from_millis(250);

/// Which files share their pages with those who map them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SharePages {
    /// None.
    #[default]
    Never,
    /// Those whose [`SHARE_ATTRIBUTE`] is `1`.
    Marked,
    /// All but those whose [`SHARE_ATTRIBUTE`] is `0`.
    All,
}

/// An inode that is open, or mapped.
#[derive(Debug, Default)]
struct OpenFile {
    opens: u64,
    /// Those of them that can be mapped.
    mappable: u64,
    shared: Option<Backing>,
    /// It has been taken out of the table.
    gone: bool,
}

#[derive(Debug)]
struct Backing {
    id: BackingId,
    memory: Arc<File>,
    /// Somebody may have mapped it to store.
    writable: bool,
}

/// The shared files of a mount.
pub(super) struct Passthrough<S: BlockStore> {
    fs: Arc<Fs<S>>,
    device: Arc<Device>,
    which: SharePages,
    files: Mutex<HashMap<InodeNo, Arc<Mutex<OpenFile>>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<S: BlockStore + 'static> Passthrough<S> {
    /// For a mount of `device` that has agreed on passing through.
    ///
    /// # Errors
    /// When this process may not do so: it takes `CAP_SYS_ADMIN`.
    pub(super) fn new(fs: Arc<Fs<S>>, device: Arc<Device>, which: SharePages) -> io::Result<Self> {
        let probe = File::from(memfd_create(c"contigfs-probe", MFdFlags::MFD_CLOEXEC)?);
        let id = device.open_backing(&probe)?;
        device.close_backing(id)?;
        if is_open_elsewhere(&probe) {
            // Then it could not be found out when the last mapping has gone.
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "the system gives no leases of memory files",
            ));
        }
        Ok(Self {
            fs,
            device,
            which,
            files: Mutex::default(),
        })
    }

    fn file(&self, ino: InodeNo) -> Arc<Mutex<OpenFile>> {
        Arc::clone(lock(&self.files).entry(ino).or_default())
    }

    /// A file that was opened. Answers what the kernel maps in its place, if anything.
    pub(super) fn opened(&self, ino: InodeNo, flags: u32) -> Option<BackingId> {
        let (mappable, writable) = uses(flags);
        if !mappable {
            // It would stay shared, and small, for as long as it is written.
            self.end_if_closed(ino);
        }
        loop {
            let file = self.file(ino);
            let mut file = lock(&file);
            if file.gone {
                continue;
            }
            if mappable && file.mappable == 0 && file.shared.is_none() && self.wants(ino) {
                let begun = self.begin(ino, writable).inspect_err(|error| {
                    tracing::info!(%ino, %error, "the pages of a file are not shared with those who map it");
                });
                file.shared = begun.ok();
            }
            file.opens += 1;
            file.mappable += u64::from(mappable);
            let backing = file.shared.as_mut()?;
            if writable && !backing.writable {
                backing.writable = self.fs.share(ino, true).is_ok();
            }
            return Some(backing.id);
        }
    }

    fn wants(&self, ino: InodeNo) -> bool {
        let says = |what: &[u8]| {
            let value = self.fs.xattr(ino, SHARE_ATTRIBUTE.as_ref());
            value.is_ok_and(|value| value == what)
        };
        let is_file = || (self.fs.attr(ino)).is_ok_and(|attr| attr.kind == FileKind::File);
        match self.which {
            SharePages::Never => false,
            SharePages::Marked => is_file() && says(b"1"),
            SharePages::All => is_file() && !says(b"0"),
        }
    }

    fn begin(&self, ino: InodeNo, writable: bool) -> Result<Backing, BeginError> {
        let memory = self.fs.share(ino, writable)?;
        match self.device.open_backing(&memory) {
            Ok(id) => Ok(Backing {
                id,
                memory,
                writable,
            }),
            Err(error) => {
                self.fs.unshare(ino)?;
                Err(error.into())
            }
        }
    }

    /// A file that was opened with `flags` has gone. To be called before the file system is told.
    pub(super) fn released(&self, ino: InodeNo, flags: u32) {
        let entry = self.file(ino);
        let mut file = lock(&entry);
        file.opens = file.opens.saturating_sub(1);
        let (mappable, _) = uses(flags);
        file.mappable = file.mappable.saturating_sub(u64::from(mappable));
        self.end_if_unused(ino, &mut file);
    }

    fn end_if_unused(&self, ino: InodeNo, file: &mut OpenFile) {
        if file.opens > 0 || file.gone {
            return;
        }
        if let Some(backing) = &file.shared {
            if is_open_elsewhere(&backing.memory) {
                return;
            }
            // The kernel holds what is in use.
            if let Err(error) = self.device.close_backing(backing.id) {
                tracing::debug!(%error, "a memory file stays known to the kernel");
            }
            if let Err(error) = self.fs.unshare(ino) {
                tracing::error!(%ino, %error, "what mappings have stored is not on media");
            }
            file.shared = None;
        }
        file.gone = true;
        lock(&self.files).remove(&ino);
    }

    /// Does for one file what a look does: it may be shared although nobody has it open or mapped any more.
    pub(super) fn end_if_closed(&self, ino: InodeNo) {
        let until = Instant::now() + CLOSING;
        loop {
            let Some(entry) = lock(&self.files).get(&ino).cloned() else {
                return;
            };
            let mut file = lock(&entry);
            self.end_if_unused(ino, &mut file);
            let Some(backing) = &file.shared else {
                return;
            };
            // Who has a file open, or mapped, has the memory file: it is in use, and nobody has yet to say that it is not.
            if is_open_elsewhere(&backing.memory) || Instant::now() >= until {
                return;
            }
            drop(file);
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Whether the pages of a file are shared.
    pub(super) fn is_shared(&self, ino: InodeNo) -> bool {
        let file = lock(&self.files).get(&ino).cloned();
        file.is_some_and(|file| lock(&file).shared.is_some())
    }

    /// A descriptor of a file is being closed: what its mappings have stored gets durable.
    pub(super) fn flush(&self, ino: InodeNo) -> Result<(), FsError> {
        let file = lock(&self.files).get(&ino).cloned();
        let is_stored_to = file.is_some_and(|file| {
            let file = lock(&file);
            file.shared.as_ref().is_some_and(|backing| backing.writable)
        });
        match is_stored_to {
            true => self.fs.fsync(ino, SyncScope::All),
            false => Ok(()),
        }
    }

    /// Looks for what mappings have stored, and for files that nobody has mapped any more.
    fn look(&self) {
        let files: Vec<_> = lock(&self.files)
            .iter()
            .map(|(&ino, file)| (ino, Arc::clone(file)))
            .collect();
        for (ino, file) in files {
            let mut file = lock(&file);
            if file.shared.is_some()
                && let Err(error) = self.fs.find_stores(ino)
            {
                tracing::warn!(%ino, %error, "cannot look for what mappings have stored");
            }
            self.end_if_unused(ino, &mut file);
        }
        self.fs.store().let_leave(LbaRange::new(Lba(0), 0));
    }
}

/// Whether what is open with these flags can be mapped, and stored to through a mapping.
fn uses(flags: u32) -> (bool, bool) {
    let mode = flags as i32 & libc::O_ACCMODE;
    (mode != libc::O_WRONLY, can_store_by_mapping(flags))
}

/// Whether mappings of what is open with these flags can be stored to.
pub(super) fn can_store_by_mapping(flags: u32) -> bool {
    flags as i32 & libc::O_ACCMODE == libc::O_RDWR
}

/// Why the pages of a file are not shared.
#[derive(Debug, thiserror::Error)]
enum BeginError {
    #[error(transparent)]
    Fs(#[from] FsError),
    #[error("the kernel refuses its memory: {0}")]
    Kernel(#[from] io::Error),
}

/// Whether somebody else may have a memory file open, as every mapping of it by way of the mount has. A write lease is to be
/// had only when not.
fn is_open_elsewhere(memory: &File) -> bool {
    let path = format!("/proc/self/fd/{}", memory.as_raw_fd());
    let Ok(own) = OpenOptions::new().read(true).write(true).open(path) else {
        return true;
    };
    // SAFETY: neither call has memory arguments.
    unsafe {
        match libc::fcntl(own.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) {
            0 => {
                libc::fcntl(own.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK);
                false
            }
            _ => true,
        }
    }
}

/// A thread that looks for stores now and then. Dropping it ends the thread, after a last look.
#[derive(Debug)]
pub(super) struct Looker {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Looker {
    /// Looks every `period`.
    pub(super) fn start<S: BlockStore + 'static>(
        passthrough: Arc<Passthrough<S>>,
        period: Duration,
    ) -> io::Result<Self> {
        let (stop, stopped) = channel();
        let thread = Builder::new().name("looker".into()).spawn(move || {
            while stopped.recv_timeout(period) == Err(RecvTimeoutError::Timeout) {
                passthrough.look();
            }
            passthrough.look();
        })?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Looker {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed; there is nothing to add.
            let _ = thread.join();
        }
    }
}
