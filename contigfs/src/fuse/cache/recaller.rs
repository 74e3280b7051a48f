//! The thread that takes copies back. It waits for the kernel, which waits for FUSE threads; none of them waits for it.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use super::{ForgetName, PageCache, Then, Window};
use crate::inode::InodeNo;

/// Most bytes that are taken back at once.
const TOGETHER_MAX: u64 = 1 << 20;

/// Copies to take back.
pub(super) enum Recall {
    /// Before a store.
    First {
        window: Window,
        bytes: Range<u64>,
        then: Then,
    },
    /// After it.
    Again {
        window: Window,
        bytes: Range<u64>,
        then: Box<dyn FnOnce() + Send>,
    },
}

impl Recall {
    fn place(&self) -> (InodeNo, &Range<u64>) {
        match self {
            Self::First { window, bytes, .. } | Self::Again { window, bytes, .. } => {
                (window.ino, bytes)
            }
        }
    }

    /// The kernel has no copies any more that are older than this.
    pub(super) fn done(self) {
        match self {
            Self::First { window, then, .. } => {
                let cache = Arc::clone(&window.cache);
                cache.recalled(window, then);
            }
            Self::Again { window, then, .. } => {
                drop(window);
                then();
            }
        }
    }
}

/// The thread. Dropping it ends it, after what it has been asked for.
#[derive(Debug)]
pub(in crate::fuse) struct Recaller {
    cache: Arc<PageCache>,
    thread: Option<JoinHandle<()>>,
}

impl Recaller {
    /// Starts to serve `cache`; `invalidate` asks the kernel, and so does `forget_name`, for others.
    pub(in crate::fuse) fn start(
        cache: Arc<PageCache>,
        forget_name: Arc<ForgetName>,
        invalidate: impl Fn(InodeNo, &Range<u64>) -> io::Result<()> + Send + 'static,
    ) -> io::Result<Self> {
        let (sender, recalls) = channel();
        let thread = Builder::new()
            .name("recaller".into())
            .spawn(move || run(&recalls, &invalidate))?;
        cache.open(sender, forget_name);
        Ok(Self {
            cache,
            thread: Some(thread),
        })
    }

    /// Takes all copies of all files back: what was stored to mappings before comes in as write-backs. False if it took longer than
    /// `patience`.
    pub(in crate::fuse) fn take_all_back(&self, patience: Duration) -> bool {
        let (taken, heard) = channel();
        let files = self.cache.cached_files();
        for &ino in &files {
            let taken = taken.clone();
            self.cache.recall(ino, 0..u64::MAX, move |_window| {
                // Whoever waited may have lost patience.
                let _ = taken.send(());
            });
        }
        let until = Instant::now() + patience;
        let mut left = files.iter();
        left.all(|_| {
            heard
                .recv_timeout(until.saturating_duration_since(Instant::now()))
                .is_ok()
        })
    }
}

impl Drop for Recaller {
    fn drop(&mut self) {
        self.cache.close();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed; there is nothing to add.
            let _ = thread.join();
        }
    }
}

fn run(recalls: &Receiver<Recall>, invalidate: &dyn Fn(InodeNo, &Range<u64>) -> io::Result<()>) {
    let mut next = None;
    while let Some(first) = next.take().or_else(|| recalls.recv().ok()) {
        let (ino, bytes) = first.place();
        let mut bytes = bytes.clone();
        let mut together = vec![first];
        // Parts of one large store come in a row, and one call costs as much as many.
        while next.is_none()
            && let Ok(more) = recalls.try_recv()
        {
            let (of, more_bytes) = more.place();
            let end = bytes.end.max(more_bytes.end);
            let adjoins = (bytes.start..=bytes.end).contains(&more_bytes.start);
            if of == ino && adjoins && end - bytes.start <= TOGETHER_MAX {
                bytes.end = end;
                together.push(more);
            } else {
                next = Some(more);
            }
        }
        if let Err(error) = invalidate(ino, &bytes) {
            // The mount has gone, and all who could look with it.
            tracing::debug!(%error, %ino, "pages were not recalled");
        }
        together.into_iter().for_each(Recall::done);
    }
}
