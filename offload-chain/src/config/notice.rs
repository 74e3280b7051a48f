//! Notices that files of a directory were replaced.

use std::ffi::OsString;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rustix::fs::inotify::{
    CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init, remove_watch,
};

use super::Wake;

/// Room for some events with their names.
const BUFFER: usize = 4096;

/// A thread that is told by inotify.
#[derive(Debug)]
pub(super) struct Notice {
    inotify: Arc<OwnedFd>,
    watch: i32,
    seen: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Notice {
    /// Calls `wake` whenever a file of one of these names is moved into the directory.
    pub(super) fn start(directory: &Path, names: Vec<OsString>, wake: Wake) -> io::Result<Self> {
        let inotify = Arc::new(init(CreateFlags::CLOEXEC)?);
        let watch = add_watch(&*inotify, directory, WatchFlags::MOVED_TO)?;
        // What changed before is not told.
        let seen = Arc::new(AtomicBool::new(true));
        let (reads, tells) = (Arc::clone(&inotify), Arc::clone(&seen));
        let thread = std::thread::Builder::new()
            .name("store-notice".into())
            .spawn(move || notice(&reads, &names, &tells, &wake))?;
        Ok(Self {
            inotify,
            watch,
            seen,
            thread: Some(thread),
        })
    }

    /// Whether something was replaced since this was last asked.
    pub(super) fn take(&self) -> bool {
        self.seen.swap(false, Ordering::AcqRel)
    }
}

impl Drop for Notice {
    fn drop(&mut self) {
        // The thread is told that there is nothing to watch any more, and ends.
        let removed = remove_watch(&*self.inotify, self.watch);
        if let (Ok(()), Some(thread)) = (removed, self.thread.take()) {
            // A panic was reported where it happened.
            let _ = thread.join();
        }
    }
}

/// Until the watch is removed, or the directory is.
fn notice(inotify: &OwnedFd, names: &[OsString], seen: &AtomicBool, wake: &Wake) {
    let mut buffer = [MaybeUninit::uninit(); BUFFER];
    let mut events = Reader::new(inotify, &mut buffer);
    loop {
        let event = match events.next() {
            Ok(event) => event,
            Err(rustix::io::Errno::INTR) => continue,
            // Who waits for it looks by itself now and then.
            Err(_) => return,
        };
        if event.events().contains(ReadFlags::IGNORED) {
            return;
        }
        let ours = |name: &std::ffi::CStr| {
            names
                .iter()
                .any(|own| own.as_encoded_bytes() == name.to_bytes())
        };
        // Without a name it is that too much happened to tell.
        if event.file_name().is_none_or(ours) {
            seen.store(true, Ordering::Release);
            wake();
        }
    }
}
