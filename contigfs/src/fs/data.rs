//! Reading and writing the content of files, and making it durable.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::Builder;

use ftl::{GRAIN_BYTES, LbaRange};

use super::cache::{Journey, State, Synced};
use super::range::FILE_BYTES_MAX;
use super::{Fs, Inode, Tail, Txn, exclusive, lock, shared};
use crate::error::FsError;
use crate::format::Range;
use crate::inode::InodeNo;
use crate::planted::Bug;
use crate::span::Span;
use crate::store::{BlockStore, ByteAddr, StoreError};

const GRAIN: u64 = GRAIN_BYTES as u64;
/// Inodes that may wait in memory to be written; then everything is.
const DIRTY_MAX: u64 = 4096;
/// Longest run of grains that is looked at in one go.
const RUN_MAX: u64 = 1 << 16;
/// Records written by one batch of [`Fs::sync_all`].
const RECORDS_PER_BATCH: usize = 24;

/// How to read.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReadOptions {
    /// The access time stays as it is (`O_NOATIME`).
    pub(crate) keep_atime: bool,
    /// A damaged grain anywhere is an error: who asks takes a short answer for the end of the file.
    pub(crate) all: bool,
}

/// How to write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteOptions {
    /// Durable on return, with the size if it changed (`O_DSYNC`).
    pub durable: bool,
    /// Clear setuid and setgid: the writer is not privileged.
    pub clear_privileges: bool,
}

/// What `fsync` covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncScope {
    /// The data, and the size (`fdatasync`).
    Data,
    /// Times too (`fsync`).
    All,
}

/// What to look for with [`Fs::seek`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekTo {
    /// The next byte that is mapped: written, or reserved.
    Data,
    /// The next byte that is not; the end of the file counts as one.
    Hole,
}

/// How far a write got.
enum Attempt {
    Wrote(usize),
    /// Its end is behind that of the file.
    BehindEnd,
    NotAdmitted,
}

impl<S: BlockStore> Fs<S> {
    /// Reads from `offset`; the answer is short only at the end of the file, and before a grain that is damaged.
    pub fn read(&self, ino: InodeNo, offset: u64, buf: &mut [u8]) -> Result<usize, FsError> {
        self.read_with(ino, offset, buf, ReadOptions::default())
    }

    /// As [`read`](Self::read), with options.
    pub(crate) fn read_with(
        &self,
        ino: InodeNo,
        offset: u64,
        buf: &mut [u8],
        options: ReadOptions,
    ) -> Result<usize, FsError> {
        let inode = self.inode(ino)?;
        let n = self.read_inode(&inode, offset, buf, options)?;
        // At the end of the file, too (read(2) in POSIX).
        if !buf.is_empty() && !options.keep_atime {
            self.note_read(&inode);
        }
        Ok(n)
    }

    /// As [`read_with`](Self::read_with), where the store has the bytes, if it lends so many; nobody changes the content while
    /// `look` is at it but those who have it mapped or registered. False: `look` was not called; what there is to say is said to who
    /// reads.
    pub(crate) fn lend(
        &self,
        ino: InodeNo,
        (offset, len): (u64, usize),
        options: ReadOptions,
        look: &mut dyn FnMut(&[Span<'_>]),
    ) -> bool {
        let Ok(inode) = self.inode(ino) else {
            return false;
        };
        let mut became_dirty = false;
        // Whoever has been answered finds the access time renewed.
        let mut look = |bytes: &[Span<'_>]| {
            became_dirty = !options.keep_atime && self.touch_atime(&inode);
            look(bytes);
        };
        let mut lend = || {
            let _content = shared(&inode.content);
            inode.live_file()?;
            let (range, size) = place(&inode)?;
            let n = size.saturating_sub(offset).min(len as u64) as usize;
            let at = ByteAddr::new(range.start, offset);
            Ok::<_, FsError>(n > 0 && self.store.lend(at, n, &mut look)?)
        };
        let lent = lend().unwrap_or(false);
        self.count_dirty(became_dirty);
        lent
    }

    fn read_inode(
        &self,
        inode: &Inode,
        offset: u64,
        buf: &mut [u8],
        options: ReadOptions,
    ) -> Result<usize, FsError> {
        let _content = shared(&inode.content);
        inode.live_file()?;
        let (range, size) = place(inode)?;
        let n = size.saturating_sub(offset).min(buf.len() as u64) as usize;
        if n == 0 {
            return Ok(0);
        }
        let buf = &mut buf[..n];
        match self.store.read(ByteAddr::new(range.start, offset), buf) {
            Ok(()) => Ok(n),
            Err(StoreError::Damaged { .. } | StoreError::Unreadable { .. }) if !options.all => {
                self.read_before_damage(range, offset, buf)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Reads grain by grain what there is before the first that is damaged, which is an error only where it comes first.
    fn read_before_damage(
        &self,
        range: Range,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize, FsError> {
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let n = (GRAIN - at % GRAIN).min((buf.len() - done) as u64) as usize;
            let piece = &mut buf[done..done + n];
            match self.store.read(ByteAddr::new(range.start, at), piece) {
                Ok(()) => done += n,
                Err(_) if done > 0 => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(done)
    }

    /// The access time after a read.
    pub(super) fn note_read(&self, inode: &Inode) {
        let became_dirty = self.touch_atime(inode);
        self.count_dirty(became_dirty);
    }

    /// Writes at `offset`, making the file longer if need be. A short count means that the volume or the
    /// project was full.
    pub fn write(
        &self,
        ino: InodeNo,
        offset: u64,
        data: &[u8],
        options: WriteOptions,
    ) -> Result<usize, FsError> {
        let written = self.write_if(ino, offset, data, options, &|| true)?;
        Ok(written.expect("everything is admitted"))
    }

    /// As [`write`](Self::write), if `admits` says so while the content of the file is held; otherwise `None`. It must not
    /// call the file system.
    pub(crate) fn write_if(
        &self,
        ino: InodeNo,
        offset: u64,
        data: &[u8],
        options: WriteOptions,
        admits: &dyn Fn() -> bool,
    ) -> Result<Option<usize>, FsError> {
        let inode = self.inode(ino)?;
        inode.live_file()?;
        if data.is_empty() {
            return Ok(Some(0));
        }
        let end = offset
            .checked_add(data.len() as u64)
            .ok_or(FsError::FileTooLarge)?;
        if end > FILE_BYTES_MAX {
            return Err(FsError::FileTooLarge);
        }
        self.end_privileges(&inode, options)?;
        let attempt = match self.write_inside(&inode, offset, data, end, admits)? {
            Attempt::BehindEnd => self.write_longer(&inode, offset, data, end, admits)?,
            attempt => attempt,
        };
        let Attempt::Wrote(n) = attempt else {
            return Ok(None);
        };
        self.note_write(&inode);
        if options.durable {
            self.sync_bytes(&inode, offset, n as u64)?;
        }
        Ok(Some(n))
    }

    /// Waits until every write is over that holds the content of a file now.
    pub(crate) fn await_writers(&self, ino: InodeNo) {
        if let Ok(inode) = self.inode(ino) {
            drop(exclusive(&inode.content));
        }
    }

    /// Writes if the end of the file is not behind; other readers and writers go on.
    fn write_inside(
        &self,
        inode: &Arc<Inode>,
        offset: u64,
        data: &[u8],
        end: u64,
        admits: &dyn Fn() -> bool,
    ) -> Result<Attempt, FsError> {
        let _content = shared(&inode.content);
        inode.live_file()?;
        let (range, size) = place(inode)?;
        if end > size {
            return Ok(Attempt::BehindEnd);
        }
        if !admits() {
            return Ok(Attempt::NotAdmitted);
        }
        self.write_grains(range, offset, data).map(Attempt::Wrote)
    }

    fn write_longer(
        &self,
        inode: &Arc<Inode>,
        offset: u64,
        data: &[u8],
        end: u64,
        admits: &dyn Fn() -> bool,
    ) -> Result<Attempt, FsError> {
        let _content = exclusive(&inode.content);
        inode.live_file()?;
        if !admits() {
            return Ok(Attempt::NotAdmitted);
        }
        let range = self.ensure_range(inode, end)?;
        self.clean_tail(inode)?;
        self.share_more(inode, end)?;
        let written = self.write_grains(range, offset, data);
        {
            let mut state = inode.state();
            match written {
                Ok(n) => {
                    state.size = state.size.max(offset + n as u64);
                    // More may have been written than this says, see `write_grains`.
                    if n < data.len() {
                        state.tail = Tail::Unknown;
                    }
                }
                Err(_) => state.tail = Tail::Unknown,
            }
        }
        self.share_no_more(inode);
        self.has_grown(inode);
        written.map(Attempt::Wrote)
    }

    /// Writes; when the volume or the project fills up, as many grains as fit. What was written before that showed may be more: a
    /// snapshot that comes between makes what was written take space once more.
    fn write_grains(&self, range: Range, offset: u64, data: &[u8]) -> Result<usize, FsError> {
        match self.store.write(ByteAddr::new(range.start, offset), data) {
            Ok(()) => return Ok(data.len()),
            Err(StoreError::NoSpace | StoreError::Quota) => {}
            Err(error) => return Err(error.into()),
        }
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let n = (GRAIN - at % GRAIN).min((data.len() - done) as u64) as usize;
            match self
                .store
                .write(ByteAddr::new(range.start, at), &data[done..done + n])
            {
                Ok(()) => done += n,
                Err(_) if done > 0 => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(done)
    }

    /// Times after a write.
    pub(super) fn note_write(&self, inode: &Arc<Inode>) {
        let now = self.now();
        let became_dirty = {
            let mut state = inode.state();
            let clean = !state.times_dirty;
            state.record.mtime = now;
            state.record.ctime = now;
            state.times_dirty = true;
            state.count_anew();
            clean
        };
        self.count_dirty(became_dirty);
    }

    /// Keeps the number of inodes that wait to be written bounded. Whoever happens to be here has nothing to do with what can
    /// not be written: `fsync` says that.
    pub(super) fn count_dirty(&self, became_dirty: bool) {
        if became_dirty
            && self.dirty.fetch_add(1, Ordering::Relaxed) >= DIRTY_MAX
            && let Err(error) = self.sync_all()
        {
            tracing::warn!(%error, "not everything that waits to be written can be");
        }
    }

    /// Makes everything written to a file durable.
    pub fn fsync(&self, ino: InodeNo, scope: SyncScope) -> Result<(), FsError> {
        match self.with_stores_found(ino)? {
            Some(inode) => self.sync_content(&inode, scope),
            None => self.sync_metadata(),
        }
    }

    /// As [`fsync`](Self::fsync); `done` is told, perhaps by another thread and after this returned: where there are only data
    /// to be made durable, nobody need wait for it.
    pub fn fsync_then(
        self: &Arc<Self>,
        ino: InodeNo,
        scope: SyncScope,
        done: impl FnOnce(Result<(), FsError>) + Send + 'static,
    ) where
        S: 'static,
    {
        let inode = match self.with_stores_found(ino) {
            Ok(Some(inode)) => inode,
            Ok(None) => return done(self.sync_metadata()),
            Err(error) => return done(Err(error)),
        };
        let (journey, content) = match self.only_data(&inode, scope) {
            Ok(Some(found)) => found,
            Ok(None) => return done(self.sync_content(&inode, scope)),
            Err(error) => return done(Err(error)),
        };
        if self.has_bug(Bug::SyncAnsweredEarly) {
            return done(Ok(()));
        }
        let fs = Arc::clone(self);
        let then = move |result: Result<(), StoreError>| match result {
            // What was made durable may not be what lies at its place now. That takes waiting, which is not for this thread;
            // if there can be no other, whoever waits is told so by the end of `done`.
            Ok(()) if inode.state().journey != journey => {
                let again = move || done(fs.fsync(ino, scope));
                if let Err(error) = Builder::new().spawn(again) {
                    tracing::error!(%error, "no thread to sync a file that was relocated");
                }
            }
            result => done(result.map_err(FsError::from)),
        };
        self.store.sync_then(content, Box::new(then));
    }

    /// An inode that has content, with what mappings stored to it known to be there.
    fn with_stores_found(&self, ino: InodeNo) -> Result<Option<Arc<Inode>>, FsError> {
        let inode = self.inode(ino)?;
        if inode.state().record.range.is_none() {
            return Ok(None);
        }
        self.find_stores_in(&inode)?;
        Ok(Some(inode))
    }

    /// What of a file is to be made durable, and where on its journey it is, if the record need not be written and it is not
    /// being relocated.
    fn only_data(
        &self,
        inode: &Inode,
        scope: SyncScope,
    ) -> Result<Option<(Journey, LbaRange)>, FsError> {
        let state = *inode.state();
        let is_settled = matches!(state.journey, Journey::Settled(_));
        if !is_settled || is_record_due(&state, scope) || self.has_bug(Bug::DataUnsynced) {
            return Ok(None);
        }
        let (range, size) = state.place()?;
        Ok(Some((state.journey, content_of(range, size))))
    }

    fn sync_content(&self, inode: &Arc<Inode>, scope: SyncScope) -> Result<(), FsError> {
        if self.sync_together(inode, scope)? {
            return Ok(());
        }
        let synced = self.sync_at_its_place(inode, content_of)?;
        self.write_record(inode, synced, scope)
    }

    /// Makes a file durable whose record has to be written, too: a few data go along with the record, in one device write.
    /// False: nothing was done, they go one after the other.
    fn sync_together(&self, inode: &Arc<Inode>, scope: SyncScope) -> Result<bool, FsError> {
        if self.has_bug(Bug::DataUnsynced) || self.has_bug(Bug::SizeUnsynced) {
            return Ok(false);
        }
        // Whoever relocates the file holds this: the data are where they were found until they are durable.
        let _content = shared(&inode.content);
        let _change = lock(&inode.change);
        let state = *inode.state();
        let is_settled = matches!(state.journey, Journey::Settled(_));
        if !is_settled || !is_record_due(&state, scope) {
            return Ok(false);
        }
        let (range, size) = state.place()?;
        let mut txn = Txn::default();
        txn.edit(inode, |record| record.size = size);
        txn.batch.along(content_of(range, size));
        match self.commit_durably(txn) {
            Err(FsError::Store(StoreError::ManyAlong)) => Ok(false),
            result => result.map(|()| true),
        }
    }

    /// Makes what `grains` chooses by range and size durable, wherever the file is relocated to meanwhile. `content` need
    /// not be held.
    pub(super) fn sync_at_its_place(
        &self,
        inode: &Inode,
        grains: impl Fn(Range, u64) -> LbaRange,
    ) -> Result<Synced, FsError> {
        loop {
            let before = *inode.state();
            if let Journey::Settled(_) = before.journey {
                let (range, size) = before.place()?;
                if !self.has_bug(Bug::DataUnsynced) {
                    self.store.sync(grains(range, size))?;
                }
                if inode.state().journey == before.journey {
                    return Ok(before.synced());
                }
            }
            // Whoever relocates it holds this.
            drop(shared(&inode.content));
        }
    }

    fn sync_bytes(&self, inode: &Arc<Inode>, offset: u64, len: u64) -> Result<(), FsError> {
        if self.sync_together(inode, SyncScope::Data)? {
            return Ok(());
        }
        let first = offset / GRAIN;
        let synced = self.sync_at_its_place(inode, |range, size| {
            let grown = size != inode.state().record.size;
            if grown {
                content_of(range, size)
            } else {
                LbaRange::new(
                    range.start.offset(first),
                    (offset + len).div_ceil(GRAIN) - first,
                )
            }
        })?;
        self.write_record(inode, synced, SyncScope::Data)
    }

    /// Writes the record if the media have an older one.
    fn write_record(
        &self,
        inode: &Arc<Inode>,
        synced: Synced,
        scope: SyncScope,
    ) -> Result<(), FsError> {
        let _change = lock(&inode.change);
        let state = *inode.state();
        if self.has_bug(Bug::SizeUnsynced) || !is_record_due(&state, scope) {
            return Ok(());
        }
        let mut txn = Txn::default();
        txn.edit(inode, |record| record.size = state.size_to_record(synced));
        self.commit_durably(txn)
    }

    /// Makes everything durable: data, sizes, times. For an orderly shutdown, and for `sync`.
    ///
    /// # Errors
    /// The first; what is not concerned is durable all the same.
    pub fn sync_all(&self) -> Result<(), FsError> {
        self.dirty.store(0, Ordering::Relaxed);
        let mut result = self.find_all_stores();
        let dirty = self.cache.dirty();
        let synced: Vec<Synced> = dirty.iter().map(|i| i.state().synced()).collect();
        match self.store.sync(LbaRange::ALL) {
            // Of what was lost a sync may do no more than tell, which it does once. All else can be made durable.
            Err(lost @ (StoreError::Damaged { .. } | StoreError::Unreadable { .. })) => {
                result = result.and(Err(lost.into()));
                self.store.sync(LbaRange::ALL)?;
            }
            done => done?,
        }
        let mut dirty: Vec<_> = dirty.into_iter().zip(synced).collect();
        dirty.sort_by_key(|(inode, _)| inode.ino);
        for group in dirty.chunks(RECORDS_PER_BATCH) {
            if self.write_records(group).is_ok() {
                continue;
            }
            // One that can not be written must not take the others with it.
            for one in group.chunks(1) {
                result = result.and(self.write_records(one));
            }
        }
        result
    }

    /// Writes the records of inodes, of which so much is durable, in one batch.
    fn write_records(&self, group: &[(Arc<Inode>, Synced)]) -> Result<(), FsError> {
        let _changes = super::create::lock_changes(group.iter().map(|(inode, _)| inode));
        let mut txn = Txn::default();
        for (inode, synced) in group {
            let state = *inode.state();
            if state.dirty() {
                txn.edit(inode, |record| record.size = state.size_to_record(*synced));
            }
        }
        self.commit_durably(txn)
    }

    /// Finds data or a hole at or behind `offset`.
    ///
    /// # Errors
    /// [`FsError::BehindEnd`] when `offset` is behind the end, or no data follow.
    pub fn seek(&self, ino: InodeNo, offset: u64, to: SeekTo) -> Result<u64, FsError> {
        let inode = self.inode(ino)?;
        let _content = shared(&inode.content);
        inode.live_file()?;
        let (range, size) = place(&inode)?;
        if offset >= size {
            return Err(FsError::BehindEnd);
        }
        let grains = size.div_ceil(GRAIN);
        let mapped_from = |grain: u64| {
            let lba = self
                .store
                .next_mapped(LbaRange::new(range.start.offset(grain), grains - grain))?;
            Some(lba.0 - range.start.0)
        };
        let first = offset / GRAIN;
        match to {
            SeekTo::Data => match mapped_from(first) {
                Some(grain) => Ok(offset.max(grain * GRAIN)),
                None => Err(FsError::BehindEnd),
            },
            SeekTo::Hole => {
                let grain = self.unmapped_from(range, first, grains);
                Ok(offset.max(grain * GRAIN).min(size))
            }
        }
    }

    /// The first grain of `first..end` that is not mapped, or `end`. Looks at runs of growing length, so that large files
    /// take few calls.
    fn unmapped_from(&self, range: Range, first: u64, end: u64) -> u64 {
        let full = |grain: u64, count: u64| {
            let run = LbaRange::new(range.start.offset(grain), count);
            self.store.mapped_count(run) == count
        };
        let (mut from, mut count) = (first, 1);
        while from < end && full(from, count) {
            from += count;
            count = (count * 2).min(RUN_MAX).min(end - from);
        }
        // The hole is in this run.
        while from < end && count > 1 {
            let half = count / 2;
            if full(from, half) {
                from += half;
                count -= half;
            } else {
                count = half;
            }
        }
        from
    }
}

/// Grains that hold what a file of this size has written.
fn content_of(range: Range, size: u64) -> LbaRange {
    LbaRange::new(range.start, size.div_ceil(GRAIN).max(1))
}

/// Whether the media have an older record than memory.
fn is_record_due(state: &State, scope: SyncScope) -> bool {
    let grown = state.size != state.record.size;
    !state.dead && (grown || scope == SyncScope::All && state.times_dirty)
}

/// Where a file lies and how long it is for readers.
pub(super) fn place(inode: &Inode) -> Result<(Range, u64), FsError> {
    inode.state().place()
}
