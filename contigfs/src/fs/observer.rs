//! Telling others before a file changes its place: whoever gave remote peers access to it must end that first.

use std::fmt;

use super::Fs;
use crate::inode::InodeNo;
use crate::store::BlockStore;

/// Hears of changes before they happen. The file is locked during the call, so it must not call the file system.
pub trait ExtentObserver: Send + Sync {
    /// The file is about to end at `size`; what is behind will read as zeros.
    fn shrinking(&self, ino: InodeNo, size: u64);

    /// The file is about to move to another range.
    fn moving(&self, ino: InodeNo);

    /// The file is about to go away; its range will be another file's.
    fn freed(&self, ino: InodeNo);
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

    pub(super) fn observe(&self, tell: impl FnOnce(&dyn ExtentObserver)) {
        if let Some(observer) = self.observer.get() {
            tell(observer.as_ref());
        }
    }
}
