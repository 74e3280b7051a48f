//! Pages that have turned dirty and are not in the core's books yet.
//!
//! Pages are put without the core's lock. Who puts one that was clean tells the core of it here; who puts one that is dirty
//! already tells nobody. Such a one may ask for durability at once, and rely on a page being known that *another* thread has
//! marked. So a page is marked while the inbox is locked, and is in it when that ends:
//!
//! ```text
//!   put, clean  ── lock ── mark ── push ── unlock
//!   put, dirty  ── (the mark is there: it is in the books, or somebody has the lock)
//!   sync        ── drain: lock ... unlock ── what was put before is in the books
//! ```

use crate::addr::Lba;
use crate::map::{Entry, FrameId, Unpinned, Word};
use std::sync::Mutex;

/// What runs one at a time on a list.
pub(crate) trait Exclusive {
    fn with<R>(&self, work: impl FnOnce(&mut Vec<Lba>) -> R) -> R;
}

impl Exclusive for Mutex<Vec<Lba>> {
    fn with<R>(&self, work: impl FnOnce(&mut Vec<Lba>) -> R) -> R {
        work(&mut self.lock().expect("inbox poisoned by a panic"))
    }
}

/// The inbox of a core. Whoever holds the core's lock may take this one, and not the other way round.
#[derive(Debug, Default)]
pub(crate) struct Inbox<L = Mutex<Vec<Lba>>>(L);

/// A pin of a page that was written has been given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Put {
    pub(crate) unpinned: Unpinned,
    /// Pages in the inbox, if this one has got there now.
    pub(crate) waiting: Option<usize>,
}

impl<L: Exclusive> Inbox<L> {
    /// Gives back a pin on `frame`, the page of `lba`, that was written.
    pub(crate) fn put<W: Word>(&self, entry: &Entry<W>, lba: Lba, frame: FrameId) -> Put {
        if let Some(unpinned) = entry.unpin_dirty(frame) {
            return Put {
                unpinned,
                waiting: None,
            };
        }
        self.0.with(|pages| {
            let unpinned = entry.unpin(frame, true);
            let turned = matches!(unpinned, Unpinned::Done { now_dirty, .. } if now_dirty);
            let waiting = turned.then(|| {
                pages.push(lba);
                pages.len()
            });
            Put { unpinned, waiting }
        })
    }

    /// Takes everything.
    pub(crate) fn drain(&self, mut take: impl FnMut(Lba)) {
        self.0.with(|pages| pages.drain(..).for_each(&mut take));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.with(|pages| pages.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::State;
    use shuttle::sync::Arc;
    use shuttle::sync::atomic::{AtomicU64, Ordering};
    use shuttle::thread;

    struct Checked(AtomicU64);

    impl Word for Checked {
        fn new(value: u64) -> Self {
            Self(AtomicU64::new(value))
        }
        fn load(&self) -> u64 {
            self.0.load(Ordering::SeqCst)
        }
        fn swap_if(&self, current: u64, new: u64) -> Result<u64, u64> {
            let order = Ordering::SeqCst;
            self.0.compare_exchange(current, new, order, order)
        }
    }

    impl Exclusive for shuttle::sync::Mutex<Vec<Lba>> {
        fn with<R>(&self, work: impl FnOnce(&mut Vec<Lba>) -> R) -> R {
            work(&mut self.lock().unwrap())
        }
    }

    /// A page, and a core that writes it to the media.
    struct World {
        entry: Entry<Checked>,
        inbox: Inbox<shuttle::sync::Mutex<Vec<Lba>>>,
        /// A bit for each writer.
        page: AtomicU64,
        media: AtomicU64,
        core: shuttle::sync::Mutex<()>,
    }

    const PAGE: Lba = Lba(7);
    const FRAME: FrameId = FrameId(0);

    impl World {
        fn write(&self, writer: u64) {
            assert_eq!(self.entry.pin(), Some(FRAME));
            self.page.fetch_or(1 << writer, Ordering::SeqCst);
            let put = self.inbox.put(&self.entry, PAGE, FRAME);
            assert_ne!(put.unpinned, Unpinned::Detached);
        }

        /// What the core writes out when it is asked for durability.
        fn sync(&self) {
            let _core = self.core.lock().unwrap();
            let mut dirty = false;
            self.inbox.drain(|lba| dirty |= lba == PAGE);
            if dirty && self.entry.clean(FRAME) {
                let now = self.page.load(Ordering::SeqCst);
                self.media.store(now, Ordering::SeqCst);
            }
        }
    }

    /// I1, M8: a sync covers what its caller has put to a page that another thread has just made dirty.
    #[test]
    fn a_sync_knows_what_was_put() {
        let scenario = || {
            let world = Arc::new(World {
                entry: Entry::default(),
                inbox: Inbox(shuttle::sync::Mutex::new(Vec::new())),
                page: AtomicU64::new(0),
                media: AtomicU64::new(0),
                core: shuttle::sync::Mutex::new(()),
            });
            world.entry.replace(State::resident(FRAME, 0, false));
            let writers = [0, 1, 2].map(|writer| {
                let world = Arc::clone(&world);
                thread::spawn(move || {
                    world.write(writer);
                    world.sync();
                    let durable = world.media.load(Ordering::SeqCst);
                    assert_ne!(durable & 1 << writer, 0, "acknowledged, and not written");
                })
            });
            for writer in writers {
                writer.join().unwrap();
            }
        };
        shuttle::check_random(scenario, 20_000);
        shuttle::check_pct(scenario, 5_000, 3);
    }
}
