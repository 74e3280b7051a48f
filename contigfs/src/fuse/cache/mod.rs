//! Copies of pages that the kernel keeps for mappings, and how stores past them stay coherent.
//!
//! [`PageCache`] hears of every copy before the kernel gets it. Who stores into a file that has copies asks it to recall
//! them first, gets a [`Window`], stores, and says so. `docs/coherence.md` has the protocol and its argument.

mod recaller;
mod window;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::inode::InodeNo;

use recaller::Recall;
pub(super) use recaller::Recaller;
use window::{WindowId, Windows, WriteBack};

/// Hears which files the kernel has copies of.
pub trait CacheListener: Send + Sync {
    /// The kernel is about to get its first copy of a page of the file. On return, no store past the cache is under way
    /// that does not know. Called by a FUSE thread, so it must not wait for one.
    fn cached(&self, ino: InodeNo);

    /// Nobody can look at copies of the file any more.
    fn uncached(&self, ino: InodeNo);
}

/// For mounts beside which nobody stores.
#[derive(Clone, Copy, Debug)]
pub struct Unheard;

impl CacheListener for Unheard {
    fn cached(&self, _: InodeNo) {}

    fn uncached(&self, _: InodeNo) {}
}

/// What is done when copies have been recalled: the window is STORING.
type Then = Box<dyn FnOnce(Window) + Send>;

/// Has the kernel look a name of a directory up anew.
pub(super) type ForgetName = dyn Fn(InodeNo, &OsStr) -> io::Result<()> + Send + Sync;

/// The whole content of any file.
const ALL: Range<u64> = 0..1 << 62;
/// No bytes: what the kernel believes of the size and the times alone.
const ATTRIBUTES: Range<u64> = u64::MAX..u64::MAX;

/// Whether the kernel may have copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Copies {
    #[default]
    None,
    /// It will, as soon as everybody knows.
    Soon,
    Some,
}

#[derive(Default)]
struct CachedFile {
    /// Open files of the mount.
    opens: u64,
    copies: Copies,
    windows: Windows,
    /// Recalled, and waiting for write-backs.
    waiting: HashMap<WindowId, (Window, Then)>,
}

/// The kernel's copies of pages of one mount.
pub struct PageCache {
    files: Mutex<HashMap<InodeNo, CachedFile>>,
    /// A store was made.
    stored: Condvar,
    /// Files that the kernel has copies of.
    cached: AtomicUsize,
    /// Gone when there is no mount any more.
    recalls: Mutex<Option<Sender<Recall>>>,
    /// As well.
    forget_name: Mutex<Option<Arc<ForgetName>>>,
    listener: Box<dyn CacheListener>,
}

impl fmt::Debug for PageCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageCache").finish_non_exhaustive()
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PageCache {
    /// No copies yet; `listener` hears of them.
    pub fn new(listener: Box<dyn CacheListener>) -> Arc<Self> {
        Arc::new(Self {
            files: Mutex::default(),
            stored: Condvar::new(),
            cached: AtomicUsize::new(0),
            recalls: Mutex::new(None),
            forget_name: Mutex::new(None),
            listener,
        })
    }

    fn files(&self) -> MutexGuard<'_, HashMap<InodeNo, CachedFile>> {
        lock(&self.files)
    }

    /// Takes the kernel's copies of `bytes` back, then calls `then`, on another thread or at once, when the bytes may be
    /// stored. Never waits for the kernel itself.
    pub fn recall(
        self: &Arc<Self>,
        ino: InodeNo,
        bytes: Range<u64>,
        then: impl FnOnce(Window) + Send + 'static,
    ) {
        let id = self.files().entry(ino).or_default().windows.open(&bytes);
        let window = Window {
            cache: Arc::clone(self),
            ino,
            id,
        };
        self.send(Recall::First {
            window,
            bytes,
            then: Box::new(then),
        });
    }

    /// As [`recall`](Self::recall), for a change that the kernel makes in its copies as well, when it has been answered: if
    /// there are no copies, `then` is called at once. Copies that come while it runs are noted all the same.
    pub(super) fn change(
        self: &Arc<Self>,
        ino: InodeNo,
        bytes: Range<u64>,
        then: impl FnOnce(Window) + Send + 'static,
    ) {
        let mut files = self.files();
        let file = files.entry(ino).or_default();
        if file.copies != Copies::None {
            drop(files);
            return self.recall(ino, bytes, then);
        }
        let id = file.windows.open_storing(&bytes);
        drop(files);
        then(Window {
            cache: Arc::clone(self),
            ino,
            id,
        });
    }

    /// Makes a change of the whole content of a file, and of its size; mappings see it when this returns. Waits for the kernel, so
    /// no thread may call it that the kernel waits for.
    pub fn change_all<T>(self: &Arc<Self>, ino: InodeNo, change: impl FnOnce() -> T) -> T {
        let window = self.recalled_now(ino, ALL);
        let result = change();
        // Before the recaller is waited for: it may be taking a page back for somebody else, of which the write-back waits for this.
        let stale = window.and_then(|window| window.stored(ALL));
        // Whoever has looked meanwhile may have been told the size before.
        drop(self.recalled_now(ino, ATTRIBUTES));
        if let Some(stale) = stale {
            let (told, done) = channel();
            stale.recall(move || {
                // Whoever asked waits.
                let _ = told.send(());
            });
            let _ = done.recv();
        }
        result
    }

    /// What names of a directory stand for has been changed; programs see it when this returns, and the times of the directory. Waits
    /// for the kernel, and there for whoever changes something in the directory.
    pub fn changed_names(self: &Arc<Self>, parent: InodeNo, names: &[&OsStr]) {
        // Not by the recaller: who changes something in the directory may wait for that.
        let forget = lock(&self.forget_name).clone();
        for name in names {
            if let Some(Err(error)) = forget.as_ref().map(|forget| forget(parent, name)) {
                // The mount has gone, and all who could look with it.
                tracing::debug!(%error, %parent, "a name was not recalled");
            }
        }
        self.changed_attributes(parent);
    }

    /// Attributes of a file have been changed; programs see it when this returns. Waits as well.
    pub fn changed_attributes(self: &Arc<Self>, ino: InodeNo) {
        drop(self.recalled_now(ino, ATTRIBUTES));
    }

    /// Waits until copies have been recalled. The recaller outlives everybody who waits for it, or answers when it ends.
    fn recalled_now(self: &Arc<Self>, ino: InodeNo, bytes: Range<u64>) -> Option<Window> {
        let (recalled, window) = channel();
        self.recall(ino, bytes, move |window| {
            let _ = recalled.send(window);
        });
        window.recv().ok()
    }

    fn send(&self, recall: Recall) {
        let recalls = lock(&self.recalls);
        let refused = match recalls.as_ref() {
            Some(sender) => sender.send(recall).err().map(|refused| refused.0),
            None => Some(recall),
        };
        drop(recalls);
        if let Some(recall) = refused {
            // Without a mount nobody has copies.
            recall.done();
        }
    }

    /// From now on copies are taken back by whoever gets this, and names like this.
    fn open(&self, sender: Sender<Recall>, forget_name: Arc<ForgetName>) {
        *lock(&self.recalls) = Some(sender);
        *lock(&self.forget_name) = Some(forget_name);
    }

    /// The mount has gone, and everybody who could look at copies.
    fn close(&self) {
        *lock(&self.recalls) = None;
        *lock(&self.forget_name) = None;
        for (&ino, file) in self.files().iter_mut() {
            self.forget(ino, file);
        }
    }

    /// Nobody can look at copies of a file any more.
    fn forget(&self, ino: InodeNo, file: &mut CachedFile) {
        if std::mem::take(&mut file.copies) != Copies::None {
            self.cached.fetch_sub(1, Ordering::Relaxed);
            // Under the lock: whoever opens the file now comes later.
            self.listener.uncached(ino);
        }
    }

    /// Whether the kernel has copies of a file, or will soon.
    pub(super) fn has_copies(&self, ino: InodeNo) -> bool {
        self.cached.load(Ordering::Relaxed) > 0
            && (self.files().get(&ino)).is_some_and(|file| file.copies != Copies::None)
    }

    /// Files that the kernel has copies of.
    fn cached_files(&self) -> Vec<InodeNo> {
        let files = self.files();
        let cached = files.iter().filter(|(_, file)| file.copies != Copies::None);
        cached.map(|(&ino, _)| ino).collect()
    }

    /// A file was opened on the mount.
    pub(super) fn opened(&self, ino: InodeNo) {
        self.files().entry(ino).or_default().opens += 1;
    }

    /// An open file has gone, and all mappings of it.
    pub(super) fn released(&self, ino: InodeNo) {
        let mut files = self.files();
        let Some(file) = files.get_mut(&ino) else {
            return;
        };
        file.opens = file.opens.saturating_sub(1);
        if file.opens > 0 {
            return;
        }
        self.forget(ino, file);
        if file.windows.is_empty() {
            files.remove(&ino);
        }
    }

    /// The kernel is about to get copies of `bytes`. To be called before they are read. Of a file that it has none of
    /// yet, `barrier` waits until every local store is over that saw so.
    pub(super) fn filling(&self, ino: InodeNo, bytes: &Range<u64>, barrier: impl FnOnce()) {
        {
            let mut files = self.files();
            let file = files.entry(ino).or_default();
            file.windows.fill(bytes);
            if file.copies == Copies::Some {
                return;
            }
            if file.copies == Copies::None {
                file.copies = Copies::Soon;
                self.cached.fetch_add(1, Ordering::Relaxed);
            }
        }
        // Several fills may get here; each makes sure for itself.
        barrier();
        self.listener.cached(ino);
        if let Some(file) = self.files().get_mut(&ino) {
            file.copies = Copies::Some;
        }
    }

    /// The kernel gives copies back that were stored to. Waits while a store to one of the pages is being made.
    pub(super) fn writing_back(&self, ino: InodeNo, bytes: Range<u64>) -> WritingBack<'_> {
        let mut files = self.files();
        let write_back = loop {
            let Some(file) = files.get_mut(&ino) else {
                break WriteBack::default();
            };
            if let Some(write_back) = file.windows.write_back(&bytes) {
                break write_back;
            }
            files = self
                .stored
                .wait(files)
                .unwrap_or_else(PoisonError::into_inner);
        };
        WritingBack {
            cache: self,
            ino,
            parts: window::without(bytes, &write_back.left_out),
            write_back,
        }
    }

    fn wrote_back(&self, ino: InodeNo, write_back: &WriteBack) {
        let mut ready = Vec::new();
        if let Some(file) = self.files().get_mut(&ino) {
            for id in file.windows.end_write_back(write_back) {
                ready.extend(file.waiting.remove(&id));
            }
        }
        for (window, then) in ready {
            then(window);
        }
    }

    /// The copies of a window have been dropped.
    fn recalled(&self, window: Window, then: Then) {
        if let Some(file) = self.files().get_mut(&window.ino)
            && !file.windows.close(window.id)
        {
            file.waiting.insert(window.id, (window, then));
            return;
        }
        then(window);
    }
}

/// A write-back under way.
#[derive(Debug)]
pub(super) struct WritingBack<'a> {
    cache: &'a PageCache,
    ino: InodeNo,
    write_back: WriteBack,
    /// The bytes to write; the others were stored past the copy.
    pub(super) parts: Vec<Range<u64>>,
}

impl Drop for WritingBack<'_> {
    fn drop(&mut self) {
        self.cache.wrote_back(self.ino, &self.write_back);
    }
}

/// A store past the page cache that may be made now. Dropping it says that it was not.
#[derive(Debug)]
pub struct Window {
    cache: Arc<PageCache>,
    ino: InodeNo,
    id: WindowId,
}

impl Window {
    /// The store of `bytes` was made. `None`: everybody sees it. Otherwise the kernel has got copies meanwhile.
    pub fn stored(self, bytes: Range<u64>) -> Option<Stale> {
        let copies = (self.cache.files())
            .get_mut(&self.ino)
            .and_then(|file| file.windows.stored(self.id, bytes))?;
        self.cache.stored.notify_all();
        Some(Stale {
            window: self,
            copies,
        })
    }
}

/// A store that copies of the kernel may not show.
#[derive(Debug)]
#[must_use = "the copies have to be recalled"]
pub struct Stale {
    window: Window,
    copies: Range<u64>,
}

impl Stale {
    /// Takes the copies back, then calls `then`, on another thread or at once: everybody sees the store.
    pub fn recall(self, then: impl FnOnce() + Send + 'static) {
        let Self { window, copies } = self;
        let cache = Arc::clone(&window.cache);
        cache.send(Recall::Again {
            window,
            bytes: copies,
            then: Box::new(then),
        });
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        let mut files = self.cache.files();
        if let Some(file) = files.get_mut(&self.ino) {
            file.windows.end(self.id);
            if file.windows.is_empty() && file.opens == 0 {
                files.remove(&self.ino);
            }
        }
        drop(files);
        self.cache.stored.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// A change of everything does not wait for the recaller as long as write-backs wait for the change: the recaller may be
    /// waiting for one, of a page that a mapping has stored to in the middle, and that somebody else recalls. What was stored
    /// there is older than the change.
    #[test]
    fn another_recall_in_the_middle_of_a_change() {
        const PAGE: Range<u64> = 0..ftl::GRAIN_BYTES as u64;
        let ino = InodeNo(7);
        let cache = PageCache::new(Box::new(Unheard));
        let is_dirty = Arc::new(AtomicBool::new(false));
        let (reached, has_reached) = channel();
        let (wrote, has_written) = channel();
        let kernel = {
            let (cache, is_dirty) = (Arc::clone(&cache), Arc::clone(&is_dirty));
            move |ino, _: &Range<u64>| {
                if is_dirty.swap(false, Ordering::SeqCst) {
                    reached.send(()).unwrap();
                    wrote
                        .send(cache.writing_back(ino, PAGE).parts.clone())
                        .unwrap();
                }
                Ok(())
            }
        };
        let recaller =
            Recaller::start(Arc::clone(&cache), Arc::new(|_, _| Ok(())), kernel).unwrap();
        cache.opened(ino);
        cache.filling(ino, &PAGE, || {});
        let (ended, has_ended) = channel();
        let changed = Arc::clone(&cache);
        thread::spawn(move || {
            let other = ended.clone();
            changed.change_all(ino, || {
                changed.filling(ino, &PAGE, || {});
                is_dirty.store(true, Ordering::SeqCst);
                changed.recall(ino, 0..8, move |window| {
                    drop(window);
                    other.send("the other store").unwrap();
                });
                has_reached.recv().unwrap();
            });
            ended.send("the change").unwrap();
        });
        let patience = Duration::from_secs(10);
        let both: Vec<_> = (0..2)
            .map_while(|_| has_ended.recv_timeout(patience).ok())
            .collect();
        if both.len() < 2 {
            // It would be waited for.
            std::mem::forget(recaller);
        }
        assert_eq!(both.len(), 2, "only {both:?} ended");
        assert_eq!(has_written.recv().unwrap(), []);
    }
}
