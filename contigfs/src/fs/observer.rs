//! Telling others before a file changes its place or gets shorter: whoever gave remote peers access to it must hold that
//! up, or end it, first.
//!
//! Each change is a bracket: what is about to happen is told before, and [`ExtentObserver::settled`] behind it, whether it
//! succeeded or not.

use std::fmt;

use ftl::Lba;

use super::{Fs, Inode};
use crate::inode::InodeNo;
use crate::store::BlockStore;

/// Where a file lies after a change, and how long it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    /// Its first grain. None: a relocation could not be carried on, and nobody can use the file before the next mount.
    pub start: Option<Lba>,
    /// Its size in bytes.
    pub size: u64,
}

/// Hears of changes before they happen. The file is locked during the call, so it must not call the file system.
pub trait ExtentObserver: Send + Sync {
    /// The file is about to end at `size`; what is behind will read as zeros.
    fn shrinking(&self, ino: InodeNo, size: u64);

    /// The file is about to move to another range, or to be cloned: nobody may hold a page of it, or ask for one, until it
    /// has settled. (A page held without end would hold up the batch, and every batch behind it.)
    fn moving(&self, ino: InodeNo);

    /// The file is about to go away; its range will be another file's.
    fn freed(&self, ino: InodeNo);

    /// What was told by [`moving`](Self::moving) or [`shrinking`](Self::shrinking) is over: once for each of them, the last
    /// of them first.
    fn settled(&self, ino: InodeNo, settled: Settled) {
        let _ = (ino, settled);
    }

    /// The file has become longer, and lies where it was.
    fn grown(&self, ino: InodeNo, size: u64) {
        let _ = (ino, size);
    }

    /// The file is about to give privileges to whoever runs it (setuid, setgid, file capabilities), or just goes on to. Who
    /// changes its content past the file system from the return of this on [ends](Fs::end_privileges_past) them first.
    fn privileged(&self, ino: InodeNo) {
        let _ = ino;
    }
}

/// Says that a change is over when it is dropped.
#[derive(Debug)]
#[must_use = "dropped at once, it says that the change is over"]
pub(super) struct Unsettled<'a, S: BlockStore> {
    fs: &'a Fs<S>,
    inode: &'a Inode,
}

impl<S: BlockStore> Drop for Unsettled<'_, S> {
    fn drop(&mut self) {
        let settled = {
            let state = self.inode.state();
            Settled {
                start: state.place().ok().map(|(range, _)| range.start),
                size: state.size,
            }
        };
        self.fs
            .observe(|observer| observer.settled(self.inode.ino, settled));
    }
}

impl fmt::Debug for dyn ExtentObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ExtentObserver")
    }
}

impl<S: BlockStore> Fs<S> {
    /// Sets who hears of changes. There is one; a second is refused with false.
    pub fn set_observer(&self, observer: Box<dyn ExtentObserver>) -> bool {
        self.observer.set(observer).is_ok()
    }

    /// The file is about to move, until the answer is dropped.
    pub(super) fn moves<'a>(&'a self, inode: &'a Inode) -> Unsettled<'a, S> {
        self.observe(|observer| observer.moving(inode.ino));
        Unsettled { fs: self, inode }
    }

    /// The file is about to end at `size`; the change is made until the answer is dropped.
    pub(super) fn shrinks<'a>(&'a self, inode: &'a Inode, size: u64) -> Unsettled<'a, S> {
        self.observe(|observer| observer.shrinking(inode.ino, size));
        Unsettled { fs: self, inode }
    }

    /// The file has become longer.
    pub(super) fn has_grown(&self, inode: &Inode) {
        let size = inode.state().size;
        self.observe(|observer| observer.grown(inode.ino, size));
    }

    pub(super) fn observe(&self, tell: impl FnOnce(&dyn ExtentObserver)) {
        if let Some(observer) = self.observer.get() {
            tell(observer.as_ref());
        }
    }
}
