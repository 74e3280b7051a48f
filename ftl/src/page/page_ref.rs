//! `PageRef`: a grain held in memory, pinned until dropped.

use super::Slot;
use crate::addr::{GRAIN_BYTES, Lba};
use crate::ids::Port;
use crate::map::{FrameId, Leaf};
use crate::shared::Shared;
use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

/// How a page is held.
#[derive(Debug)]
pub(crate) enum Hold {
    /// The common page of zeros: nothing to give back.
    Zeros,
    /// A pin in the map entry; `writable` pages may be changed.
    Shared { leaf: Arc<Leaf>, writable: bool },
    /// The only holder of a frame that is being overwritten.
    Exclusive,
}

/// A grain held in memory.
///
/// While it lives, the frame stays. Several holders may look at and change the same page at the same time; bytes
/// they change at the same time come out in any mixture, as with any shared memory. What goes to the media has each
/// [`copy_in`](Self::copy_in) wholly or not at all. Dropping it is the *put*: what was written becomes eligible for write-out, and
/// visible to a later `sync`.
pub struct PageRef {
    shared: Arc<Shared>,
    hold: Hold,
    frame: FrameId,
    lba: Lba,
    port: Port,
    wrote: Cell<bool>,
    /// Exclusive pages: everything below has been written.
    filled: Cell<usize>,
}

impl fmt::Debug for PageRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PageRef({} in frame {})", self.lba, self.frame.0)
    }
}

impl PageRef {
    pub(crate) fn new(
        shared: &Arc<Shared>,
        hold: Hold,
        frame: FrameId,
        lba: Lba,
        port: Port,
    ) -> Self {
        Self {
            shared: Arc::clone(shared),
            hold,
            frame,
            lba,
            port,
            wrote: Cell::new(false),
            filled: Cell::new(0),
        }
    }

    /// The grain.
    pub fn lba(&self) -> Lba {
        self.lba
    }

    /// Whether it may be written.
    pub fn is_writable(&self) -> bool {
        match &self.hold {
            Hold::Zeros => false,
            Hold::Shared { writable, .. } => *writable,
            Hold::Exclusive => true,
        }
    }

    /// Changes bytes of the page. Of a frame that nobody else knows yet nothing is copied.
    fn change<T>(&self, work: impl FnOnce() -> T) -> T {
        match self.hold {
            Hold::Shared { .. } => self.shared.pool.gate(self.frame).change(work),
            Hold::Zeros | Hold::Exclusive => work(),
        }
    }

    fn slot(&self) -> Slot {
        match self.hold {
            Hold::Zeros => self.shared.pool.zero_page(),
            _ => self.shared.pool.frame(self.frame),
        }
    }

    /// Copies bytes of the page from `offset` on.
    ///
    /// # Panics
    /// If the range leaves the page.
    pub fn copy_out(&self, offset: usize, to: &mut [u8]) {
        assert!(offset + to.len() <= GRAIN_BYTES, "read beyond the page");
        self.shared.pool.arena.copy_out(self.slot(), offset, to);
    }

    /// Appends `len` bytes of the page from `offset` on to `out`.
    ///
    /// # Panics
    /// If the range leaves the page.
    pub fn append_to(&self, offset: usize, len: usize, out: &mut Vec<u8>) {
        assert!(offset + len <= GRAIN_BYTES, "read beyond the page");
        self.shared
            .pool
            .arena
            .append_to(self.slot(), offset, len, out);
    }

    /// Changes bytes of the page from `offset` on. Readers of the page see them at once.
    ///
    /// # Panics
    /// If the range leaves the page, or the page was asked for with [`crate::Intent::Read`].
    pub fn copy_in(&self, offset: usize, from: &[u8]) {
        assert!(self.is_writable(), "page held for reading");
        assert!(offset + from.len() <= GRAIN_BYTES, "write beyond the page");
        let arena = &self.shared.pool.arena;
        self.change(|| arena.copy_in(self.slot(), offset, from));
        self.wrote.set(true);
        if offset <= self.filled.get() {
            self.filled.set(self.filled.get().max(offset + from.len()));
        }
    }

    /// Replaces the eight bytes at `offset` by what `change` makes of them, if anything, and returns what they were: one
    /// atomic instruction, also against holders of the page in other threads. `change` may be called more than once.
    ///
    /// # Panics
    /// If the bytes leave the page or are not aligned, or the page was not asked for with [`crate::Intent::Write`].
    pub fn fetch_update(&self, offset: usize, change: impl FnMut(u64) -> Option<u64>) -> u64 {
        assert!(self.is_writable(), "page held for reading");
        assert!(
            offset + size_of::<u64>() <= GRAIN_BYTES,
            "write beyond the page"
        );
        let arena = &self.shared.pool.arena;
        let old = self.change(|| arena.fetch_update(self.slot(), offset, change));
        self.wrote.set(true);
        old
    }

    /// Address of the page's 4096 bytes, valid while this guard lives. Who writes through it (writable pages only)
    /// says so with [`PageRef::set_written`], and may find half of a change on the media after a crash.
    pub fn as_ptr(&self) -> *mut u8 {
        self.shared.pool.arena.ptr(self.slot())
    }

    /// Puts several pages of one volume: all that are alone with their frame with one look at what all share.
    pub(crate) fn put_all(pages: Vec<Self>) {
        let mut alone = Vec::with_capacity(pages.len());
        let mut whose = None;
        for mut page in pages {
            if matches!(page.hold, Hold::Exclusive) {
                alone.push((page.frame, page.filled.get() == GRAIN_BYTES));
                // There is nothing else left to give back.
                page.hold = Hold::Zeros;
                let (shared, _) =
                    whose.get_or_insert_with(|| (Arc::clone(&page.shared), page.port));
                debug_assert!(Arc::ptr_eq(shared, &page.shared), "pages of one volume");
            }
        }
        if let Some((shared, port)) = whose {
            shared.publish(alone, port);
        }
    }

    /// States that the page was written through [`PageRef::as_ptr`]; an exclusive page counts as wholly filled.
    ///
    /// # Panics
    /// If the page was asked for with [`crate::Intent::Read`].
    pub fn set_written(&self) {
        assert!(self.is_writable(), "page held for reading");
        self.wrote.set(true);
        self.filled.set(GRAIN_BYTES);
    }
}

impl Drop for PageRef {
    fn drop(&mut self) {
        match &self.hold {
            Hold::Zeros => {}
            Hold::Shared { leaf, .. } => {
                let entry = leaf.entry(self.lba);
                self.shared
                    .unpin(entry, self.lba, self.frame, self.wrote.get(), self.port);
            }
            Hold::Exclusive => {
                let filled = self.filled.get() == GRAIN_BYTES;
                self.shared.publish([(self.frame, filled)], self.port);
            }
        }
    }
}
