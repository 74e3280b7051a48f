//! Files whose pages lie in a memory file of their own, so that programs that map it have the very pages.
//!
//! `docs/coherence.md` says what that promises. A shared file has no holes, because a mapping that stores into one tells
//! nobody; it does not change its place; and what mappings store is found by looking for it.

use std::fs::File;
use std::sync::Arc;

use ftl::{AtomicBatch, GRAIN_BYTES, LbaRange};
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::data::place;
use super::{Fs, Inode, SyncScope, Tail, lock};
use crate::error::FsError;
use crate::inode::InodeNo;
use crate::planted::Bug;
use crate::store::{BlockStore, ShareError, StoreError};

const GRAIN: u64 = GRAIN_BYTES as u64;
/// So few grains that are not mapped are written as zeros; more are reserved by a batch.
const FEW: u64 = 16;

/// What is shared of a file.
#[derive(Debug)]
pub(super) struct Sharing {
    /// As long as the file, rounded up to whole grains.
    memory: Arc<File>,
    grains: u64,
    /// Somebody may have mapped it to store.
    stored_to: bool,
}

/// Makes what is shared of a file fit its size when it is dropped.
#[derive(Debug)]
#[must_use = "dropped at once, it does nothing"]
pub(super) struct Fit<'a, S: BlockStore> {
    fs: &'a Fs<S>,
    inode: &'a Inode,
}

impl<S: BlockStore> Drop for Fit<'_, S> {
    fn drop(&mut self) {
        self.fs.share_no_more(self.inode);
    }
}

impl<S: BlockStore> Fs<S> {
    /// Moves all pages of a file into a memory file, which whoever maps it shares with the store from now on, until
    /// [`unshare`](Self::unshare). Its holes take space. Answers the memory file; it is as long as the file, in whole
    /// grains, whatever becomes of that. Stores are looked for from the first call on that says `stored_to`; there may be
    /// several.
    ///
    /// # Errors
    /// [`FsError::FileTooLarge`] if so much can not be shared; [`FsError::NoSpace`] if there is none for its holes;
    /// [`FsError::Busy`] if somebody uses it too much; as for reading, if a grain can not be read.
    pub fn share(&self, ino: InodeNo, stored_to: bool) -> Result<Arc<File>, FsError> {
        let inode = self.inode(ino)?;
        let _content = inode.change_content();
        inode.live_file()?;
        if let Some(sharing) = &mut *lock(&inode.sharing) {
            sharing.stored_to |= stored_to;
            return Ok(Arc::clone(&sharing.memory));
        }
        self.clean_tail(&inode)?;
        let (_, size) = place(&inode)?;
        let memory = memfd_create(c"contigfs-file", MFdFlags::MFD_CLOEXEC);
        let memory = Arc::new(File::from(memory.map_err(|_| StoreError::Failed)?));
        *lock(&inode.sharing) = Some(Sharing {
            memory: Arc::clone(&memory),
            grains: 0,
            stored_to,
        });
        if let Err(error) = self.share_more(&inode, size) {
            *lock(&inode.sharing) = None;
            return Err(error);
        }
        inode.state().opens += 1;
        lock(&self.shared).push(inode.clone());
        Ok(memory)
    }

    /// Ends [`share`](Self::share), when nobody can have the memory file mapped any more. What was stored is durable then,
    /// unless this fails.
    pub fn unshare(&self, ino: InodeNo) -> Result<(), FsError> {
        let inode = self.inode(ino)?;
        let result = self.fsync(ino, SyncScope::All);
        {
            let _content = inode.change_content();
            let Some(sharing) = lock(&inode.sharing).take() else {
                return result;
            };
            // The last look was a moment ago, but a mapping may have stored behind the end at any time.
            inode.state().tail = Tail::Unknown;
            let range = inode.range()?;
            let all = LbaRange::new(range.start, sharing.grains);
            self.store.unshare(all);
            // What can not leave yet does so later.
            self.store.let_leave(all);
        }
        lock(&self.shared).retain(|shared| !Arc::ptr_eq(shared, &inode));
        result.and(self.close(ino))
    }

    /// Takes notice of what mappings of a shared file have stored, which tells nobody: it counts as written when this
    /// returns.
    pub fn find_stores(&self, ino: InodeNo) -> Result<(), FsError> {
        let inode = self.inode(ino)?;
        self.find_stores_in(&inode)
    }

    pub(super) fn find_stores_in(&self, inode: &Arc<Inode>) -> Result<(), FsError> {
        let found = match &*lock(&inode.sharing) {
            Some(sharing) if sharing.stored_to && !self.has_bug(Bug::StoresUnseen) => {
                let start = inode.range()?.start;
                self.store.find_stores(LbaRange::new(start, sharing.grains))
            }
            _ => return Ok(()),
        };
        if found > 0 {
            self.note_write(inode);
        }
        Ok(())
    }

    /// The same for all files. What is not shared any more goes on leaving.
    pub(super) fn find_all_stores(&self) -> Result<(), FsError> {
        let files = lock(&self.shared).clone();
        let found = files.iter().map(|inode| self.find_stores_in(inode));
        found.fold(Ok(()), Result::and)
    }

    /// Whether the pages of a file are shared. Meaningful while `content` is held.
    pub(super) fn is_shared(&self, inode: &Inode) -> bool {
        lock(&inode.sharing).is_some()
    }

    /// Shares a shared file up to `bytes`, where it is about to end; its range reaches that far, and what is behind its end
    /// reads as zeros. The caller holds `content` exclusively.
    pub(super) fn share_more(&self, inode: &Inode, bytes: u64) -> Result<(), FsError> {
        let mut sharing = lock(&inode.sharing);
        let Some(sharing) = sharing.as_mut() else {
            return Ok(());
        };
        let grains = bytes.div_ceil(GRAIN);
        if grains <= sharing.grains {
            return Ok(());
        }
        let start = inode.range()?.start.offset(sharing.grains);
        let more = LbaRange::new(start, grains - sharing.grains);
        // It may be longer already: it gets shorter only when nothing is in use any more of what is cut off.
        let has = sharing.memory.metadata().map_or(0, |file| file.len());
        let needs = grains * GRAIN;
        let resize = |bytes| sharing.memory.set_len(bytes).map_err(|_| FsError::NoSpace);
        if has < needs {
            resize(needs)?;
        }
        let laid = self.store.share(&sharing.memory, sharing.grains, more);
        // What is too large must not take space for its holes.
        let shared = laid.map_err(refusal).and_then(|()| {
            let brought = self.reserve_holes(more);
            // Counted anew: times do not tell of it, since nobody has written.
            inode.state().count_anew();
            let brought = brought.and_then(|()| Ok(self.store.bring_back(more)?));
            brought.inspect_err(|_| self.store.unshare(more))
        });
        match shared {
            Ok(()) => sharing.grains = grains,
            Err(_) if has < needs && self.store.let_leave(more) => drop(resize(has)),
            Err(_) => {}
        }
        shared
    }

    fn reserve_holes(&self, range: LbaRange) -> Result<(), FsError> {
        if range.count <= FEW || self.store.mapped_count(range) == range.count {
            return Ok(());
        }
        self.store.commit(AtomicBatch {
            zeros: vec![range],
            ..AtomicBatch::default()
        })?;
        Ok(())
    }

    /// Shares a shared file up to `bytes` only, before it is cut there. The caller holds `content` exclusively.
    pub(super) fn share_less(&self, inode: &Inode, bytes: u64) {
        let kept = bytes.div_ceil(GRAIN);
        if let Some(sharing) = &*lock(&inode.sharing)
            && let Ok(range) = inode.range()
            && kept < sharing.grains
        {
            let behind = LbaRange::new(range.start.offset(kept), sharing.grains - kept);
            self.store.unshare(behind);
        }
    }

    /// To be kept while the size of a file changes.
    pub(super) fn fit_sharing<'a>(&'a self, inode: &'a Inode) -> Fit<'a, S> {
        Fit { fs: self, inode }
    }

    /// Takes what is behind the end of a shared file from its mappings, as the end of a file is theirs. The caller holds
    /// `content` exclusively.
    pub(super) fn share_no_more(&self, inode: &Inode) {
        let size = inode.state().size;
        let kept = size.div_ceil(GRAIN);
        let is_longer = |sharing: &Sharing| kept < sharing.grains;
        if !lock(&inode.sharing).as_ref().is_some_and(is_longer) {
            return;
        }
        self.share_less(inode, size);
        let (Some(sharing), Ok(range)) = (&mut *lock(&inode.sharing), inode.range()) else {
            return;
        };
        let behind = LbaRange::new(range.start.offset(kept), sharing.grains - kept);
        sharing.grains = kept;
        // A page that is still in use must keep its memory. Then mappings may go on behind the end, and what they store
        // there is nobody's.
        if self.store.let_leave(behind)
            && let Err(error) = sharing.memory.set_len(kept * GRAIN)
        {
            tracing::warn!(%error, "mappings of a file do not end with it");
        }
    }

    /// Brings bytes of a shared file, which a batch has changed, back into its memory. The caller holds `content`
    /// exclusively.
    pub(super) fn bring_back(&self, inode: &Inode, offset: u64, end: u64) -> Result<(), FsError> {
        let first = offset / GRAIN;
        if let Some(sharing) = &*lock(&inode.sharing)
            && let behind = end.div_ceil(GRAIN).min(sharing.grains)
            && first < behind
            && !self.has_bug(Bug::SharedLeftAway)
        {
            let start = inode.range()?.start.offset(first);
            self.store
                .bring_back(LbaRange::new(start, behind - first))?;
        }
        Ok(())
    }
}

fn refusal(error: ShareError) -> FsError {
    match error {
        ShareError::NotSupported => FsError::NotSupported,
        ShareError::Refused(ftl::ShareError::NoRoom) => FsError::FileTooLarge,
        ShareError::Refused(ftl::ShareError::Busy) | ShareError::Held => FsError::Busy,
        ShareError::Refused(ftl::ShareError::Memory(_)) => StoreError::Failed.into(),
        ShareError::Store(error) => error.into(),
    }
}
