//! Where a file lies in the LBA space: what a remote-access region needs to know.

use ftl::LbaRange;

use super::data::place;
use super::{Fs, shared};
use crate::error::FsError;
use crate::inode::InodeNo;
use crate::store::BlockStore;

/// The place of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// All grains that belong to the file, far more than it uses. Byte `n` of the file is byte `n` of this range.
    pub range: LbaRange,
    /// Size of the file in bytes.
    pub size: u64,
}

impl<S: BlockStore> Fs<S> {
    /// Where a file lies now. It stays there until it grows beyond the range, or is freed.
    pub fn file_extent(&self, ino: InodeNo) -> Result<Extent, FsError> {
        let inode = self.inode(ino)?;
        let _content = shared(&inode.content);
        inode.live_file()?;
        let (range, size) = place(&inode)?;
        Ok(Extent {
            range: range.lbas(),
            size,
        })
    }

    /// Calls `f` with where a file lies; until it returns, the file neither moves nor changes its size. Who notes in `f` that
    /// he wants to hear of the file misses nothing that comes behind. It must not call the file system.
    pub fn with_extent<R>(&self, ino: InodeNo, f: impl FnOnce(Extent) -> R) -> Result<R, FsError> {
        let inode = self.inode(ino)?;
        let _content = shared(&inode.content);
        inode.live_file()?;
        let (range, size) = place(&inode)?;
        let range = range.lbas();
        Ok(f(Extent { range, size }))
    }

    /// As [`file_extent`](Self::file_extent), and keeps the file there, names or not, until
    /// [`release_extent`](Self::release_extent): what would move it fails with [`FsError::Busy`].
    pub fn hold_extent(&self, ino: InodeNo) -> Result<Extent, FsError> {
        let inode = self.inode(ino)?;
        let _content = shared(&inode.content);
        inode.live_file()?;
        let mut state = inode.state();
        let (range, _) = state.place()?;
        state.holds += 1;
        state.opens += 1;
        Ok(Extent {
            range: range.lbas(),
            size: state.size,
        })
    }

    /// Ends a [`hold_extent`](Self::hold_extent). Should freeing a file without names fail here, the next mount does it.
    pub fn release_extent(&self, ino: InodeNo) {
        let Ok(inode) = self.inode(ino) else { return };
        {
            let mut state = inode.state();
            assert!(
                state.holds > 0,
                "the extent of {ino:?} was released more often than held"
            );
            state.holds -= 1;
        }
        if let Err(error) = self.close(ino) {
            tracing::warn!(%error, %ino, "file without names not freed yet");
        }
    }

    /// Notes that the content was changed past the file system, by a remote peer: renews the times, in memory.
    pub fn touch_data(&self, ino: InodeNo) {
        let Ok(inode) = self.inode(ino) else { return };
        let now = self.now();
        let mut state = inode.state();
        state.record.mtime = now;
        state.record.ctime = now;
        state.times_dirty = true;
        state.count_anew();
    }
}
