//! Files in snapshots, for peers to read.
//!
//! A page of a file of now is a grain, which a connection pins while it reads it. A page of a file in a snapshot may lie in a grain
//! that anybody may overwrite at any time, once it is kept elsewhere, so nobody is to read it where it lies: threads of this read
//! it as a program on the mount does (`ftl::snapshot`), and the connection gets a copy. It has a page while it sends it, as ever,
//! but none that a file of now, or another snapshot, could wait for.
//!
//! The backing of such a region names no slot of [`Places`](super::places::Places): a file in a snapshot moves nowhere.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{Builder, JoinHandle};

use contigfs::{Fs, FsError, InodeNo, SnapshotView, open_snapshot};
use ftl::snapshot::Snapshot;
use softrdma::{BackingId, PAGE_BYTES, PageError};

use super::job::Job;
use super::pages::Wanted;
use super::store::TargetStore;
use crate::reactor::Inbox;

/// Threads that read: one waits for the device while the other checks what it has read.
pub(super) const THREADS: usize = 2;
/// Consecutive pages that are read at once (256 KiB).
const RUN_PAGES: usize = 64;
/// Snapshots that are kept open although nobody reads a file of them: each has its inodes in memory.
const IDLE_VIEWS_MAX: usize = 2;
/// Tells the backings of files in snapshots from those of files of now.
const OURS: u64 = 1 << 63;

/// The file system of a snapshot.
pub(super) type View = Fs<SnapshotView<TargetStore>>;

/// What a page of a file in a snapshot held. Nothing of the other pages that were read with it: who is slow to send one keeps that one.
pub(super) type Copied = Box<[u8; PAGE_BYTES]>;

/// A file of which there is a region.
#[derive(Clone, Debug)]
struct File {
    fs: Arc<Fs<TargetStore>>,
    /// Of the snapshot.
    number: u64,
    view: Arc<View>,
    ino: InodeNo,
    size: u64,
}

impl File {
    /// Reads pages. What is behind the end of the file is zeros.
    fn read(&self, first: u64, pages: usize) -> Result<Vec<u8>, PageError> {
        let mut bytes = vec![0; pages * PAGE_BYTES];
        let offset = first * PAGE_BYTES as u64;
        let has = self.size.saturating_sub(offset).min(bytes.len() as u64);
        match self.view.read(self.ino, offset, &mut bytes) {
            Ok(read) if read as u64 == has => Ok(bytes),
            // It ends before a page that is damaged.
            Ok(_) => Err(PageError::Media),
            Err(_) if !self.fs.is_there(self.number) => Err(PageError::Gone),
            Err(_) => Err(PageError::Media),
        }
    }
}

#[derive(Debug, Default)]
struct Table {
    /// All that are open, by the numbers of the snapshots.
    views: HashMap<u64, Weak<View>>,
    /// The one that was asked for last is the last.
    recent: VecDeque<Arc<View>>,
    files: HashMap<BackingId, File>,
    next: u64,
}

impl Table {
    /// A snapshot that is open; it is one of those that are kept so.
    fn find(&mut self, number: u64) -> Option<Arc<View>> {
        let view = self.views.get(&number)?.upgrade()?;
        self.recent.retain(|recent| !Arc::ptr_eq(recent, &view));
        self.recent.push_back(Arc::clone(&view));
        Some(view)
    }

    /// Those that were asked for long ago: nobody keeps them open but who reads them. They take their inodes along, which is not for
    /// under the lock.
    fn forget(&mut self) -> Vec<Arc<View>> {
        self.views.retain(|_, view| view.strong_count() > 0);
        let idle = self.recent.len().saturating_sub(IDLE_VIEWS_MAX);
        self.recent.drain(..idle).collect()
    }
}

/// A page that a connection of this reactor wants.
type Request = (Wanted, Arc<Inbox<Job>>);

#[derive(Debug, Default)]
struct Queue {
    wanted: VecDeque<Request>,
    ended: bool,
}

/// All files in snapshots of which there are regions, and who reads them.
#[derive(Debug, Default)]
pub(super) struct SnapshotFiles {
    table: Mutex<Table>,
    queue: Mutex<Queue>,
    news: Condvar,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SnapshotFiles {
    /// The file system of a snapshot. The first look takes one at all of its inodes.
    pub(super) fn view(
        &self,
        fs: &Arc<Fs<TargetStore>>,
        snapshot: &Snapshot,
    ) -> Result<Arc<View>, FsError> {
        let number = snapshot.number;
        let mut table = lock(&self.table);
        let found = table.find(number);
        let gone = table.forget();
        drop(table);
        drop(gone);
        if let Some(view) = found {
            return Ok(view);
        }
        // Not under the lock, which those need who read files that are open. Who comes meanwhile may do the same for nothing.
        let opened = Arc::new(open_snapshot(fs, snapshot)?);
        let mut table = lock(&self.table);
        Ok(table.find(number).unwrap_or_else(|| {
            table.views.insert(number, Arc::downgrade(&opened));
            table.recent.push_back(Arc::clone(&opened));
            opened
        }))
    }

    /// A region of a file in a snapshot begins, whose backing is the answer.
    pub(super) fn open(
        &self,
        fs: &Arc<Fs<TargetStore>>,
        number: u64,
        view: Arc<View>,
        (ino, size): (InodeNo, u64),
    ) -> BackingId {
        let file = File {
            fs: Arc::clone(fs),
            number,
            view,
            ino,
            size,
        };
        let mut table = lock(&self.table);
        table.next += 1;
        let backing = BackingId(OURS | table.next);
        table.files.insert(backing, file);
        backing
    }

    /// The region has ended.
    pub(super) fn close(&self, backing: BackingId) {
        let file = lock(&self.table).files.remove(&backing);
        // As with those that are forgotten.
        drop(file);
    }

    /// Whether a backing is that of a file in a snapshot.
    pub(super) fn has(backing: BackingId) -> bool {
        backing.0 & OURS != 0
    }

    /// A connection wants a page to read, and hears of it by [`Job::Copied`].
    pub(super) fn ask(&self, wanted: Wanted, inbox: &Arc<Inbox<Job>>) {
        let mut queue = lock(&self.queue);
        queue.wanted.push_back((wanted, Arc::clone(inbox)));
        drop(queue);
        self.news.notify_one();
    }

    /// The next pages to be read, consecutive ones of one file; none at the end.
    fn next(&self) -> Option<Vec<Request>> {
        let mut queue = lock(&self.queue);
        loop {
            if queue.ended {
                return None;
            }
            if let Some(first) = queue.wanted.pop_front() {
                let mut run = vec![first];
                while run.len() < RUN_PAGES
                    && let Some((next, _)) = queue.wanted.front()
                    && next.follows(&run[run.len() - 1].0)
                {
                    run.extend(queue.wanted.pop_front());
                }
                return Some(run);
            }
            queue = self
                .news
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn work(&self) {
        while let Some(run) = self.next() {
            let backing = run[0].0.backing();
            let file = lock(&self.table).files.get(&backing).cloned();
            let Some(file) = file else {
                answer(run, |_| Err(PageError::Gone));
                continue;
            };
            let first = run[0].0.page();
            match file.read(first, run.len()) {
                Ok(bytes) => answer(run, |n| Ok(page_of(&bytes, n))),
                // Each for itself: what can be read is.
                Err(_) if run.len() > 1 => {
                    answer(run, |n| {
                        let bytes = file.read(first + n as u64, 1)?;
                        Ok(page_of(&bytes, 0))
                    });
                }
                Err(error) => answer(run, |_| Err(error)),
            }
        }
    }
}

fn page_of(run: &[u8], n: usize) -> Copied {
    let (pages, _) = run.as_chunks();
    Box::new(pages[n])
}

fn answer(run: Vec<Request>, page: impl Fn(usize) -> Result<Copied, PageError>) {
    for (n, (wanted, inbox)) in run.into_iter().enumerate() {
        // A reactor that has ended wants nothing.
        let _ = inbox.push(Job::Copied(wanted, page(n)));
    }
}

/// The threads that read; they end when this is dropped, when no connection asks for anything any more.
#[derive(Debug)]
pub(super) struct SnapshotReaders {
    files: Arc<SnapshotFiles>,
    threads: Vec<JoinHandle<()>>,
}

impl SnapshotReaders {
    /// Starts them.
    pub(super) fn start(files: &Arc<SnapshotFiles>) -> io::Result<Self> {
        let start = |n| {
            let files = Arc::clone(files);
            let builder = Builder::new().name(format!("snapshots-{n}"));
            builder.spawn(move || files.work())
        };
        Ok(Self {
            files: Arc::clone(files),
            threads: (0..THREADS).map(start).collect::<io::Result<_>>()?,
        })
    }
}

impl Drop for SnapshotReaders {
    fn drop(&mut self) {
        lock(&self.files.queue).ended = true;
        self.files.news.notify_all();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread that reads snapshots panicked");
            }
        }
        // With them goes the file system that they are of.
        let table = std::mem::take(&mut *lock(&self.files.table));
        drop(table);
    }
}
