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

    /// As [`file_extent`](Self::file_extent), and keeps the file there, names or not, until
    /// [`release_extent`](Self::release_extent): what would move it fails with [`FsError::Busy`].
    pub fn hold_extent(&self, ino: InodeNo) -> Result<Extent, FsError> {
        let inode = self.inode(ino)?;
        let _content = shared(&inode.content);
        inode.live_file()?;
        let mut state = inode.state();
        let range = state.record.range.ok_or(FsError::Invalid)?;
        state.holds += 1;
        state.opens += 1;
        Ok(Extent {
            range: range.lbas(),
            size: state.size,
        })
    }

    /// Ends a [`hold_extent`](Self::hold_extent).
    pub fn release_extent(&self, ino: InodeNo) -> Result<(), FsError> {
        {
            let inode = self.inode(ino)?;
            let mut state = inode.state();
            assert!(
                state.holds > 0,
                "the extent of {ino:?} was released more often than held"
            );
            state.holds -= 1;
        }
        self.close(ino)
    }
}
