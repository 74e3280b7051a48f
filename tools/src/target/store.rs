//! The volume as the file system sees it: resident grains directly, everything else through the reactor.

use std::sync::Arc;

use contigfs::{BlockStore, ByteAddr, StoreError};
use ftl::{
    AtomicBatch, CommitError, DurableError, Ftl, GRAIN_BYTES, GetError, Intent, Lba, LbaRange,
    PageRef, Space,
};

use super::job::{Job, PagesJob, waiter};
use crate::reactor::Inbox;

/// Pages that one request of a thread holds at once, at most.
const PAGES_AT_ONCE_MAX: usize = 64;

/// The volume, for the threads of FUSE and of the control protocol.
#[derive(Clone, Debug)]
pub(super) struct TargetStore {
    ftl: Arc<Ftl>,
    inbox: Arc<Inbox<Job>>,
    /// Pages that one request of a thread holds at once.
    pages_at_once: usize,
}

/// Part of a request that lies in one grain.
#[derive(Clone, Copy)]
struct Piece {
    lba: Lba,
    in_grain: usize,
    at: usize,
    len: usize,
}

impl TargetStore {
    /// A store that reaches the reactor through `inbox`, for `threads` threads that hold a quarter of the pool at
    /// most, all together: a thread waits for pages while it holds some.
    pub(super) fn new(ftl: Arc<Ftl>, inbox: Arc<Inbox<Job>>, threads: usize) -> Self {
        let pages_at_once = (ftl.pool_frames() / 4 / threads).clamp(1, PAGES_AT_ONCE_MAX);
        Self {
            ftl,
            inbox,
            pages_at_once,
        }
    }

    /// Pins the grains of `pieces`, all with the same intent.
    fn pages(&self, pieces: &[Piece], intent: Intent) -> Result<Vec<PageRef>, StoreError> {
        let mut pages: Vec<Option<PageRef>> = pieces
            .iter()
            .map(|piece| self.ftl.try_get(piece.lba, intent))
            .collect();
        let missing: Vec<usize> = (0..pages.len()).filter(|&n| pages[n].is_none()).collect();
        if !missing.is_empty() {
            let lbas = missing.iter().map(|&n| pieces[n].lba).collect();
            let (job, answer) = PagesJob::new(lbas, intent);
            self.send(Job::Pages(job))?;
            let got = answer.recv().map_err(|_| StoreError::Failed)?;
            for (n, page) in missing.into_iter().zip(got) {
                pages[n] = Some(page.map_err(|error| store_error(&error))?);
            }
        }
        Ok(pages.into_iter().flatten().collect())
    }

    /// Waits until the map of a range is in memory. If it can not be read, the volume has failed: it seems unmapped
    /// then, and whoever wants to change or read something is refused.
    fn load(&self, range: LbaRange) {
        if self.ftl.is_map_loaded() {
            return;
        }
        let (done, answer) = waiter();
        if self.send(Job::Load(range, done)).is_ok() {
            let _ = answer.recv();
        }
    }

    fn send(&self, job: Job) -> Result<(), StoreError> {
        self.inbox.send(job).map_err(|_| StoreError::Failed)
    }
}

fn pieces(at: ByteAddr, len: usize) -> Vec<Piece> {
    let mut pieces = Vec::with_capacity(len / GRAIN_BYTES + 2);
    let mut done = 0;
    while done < len {
        let byte = ByteAddr(at.0 + done as u64);
        let in_grain = byte.in_grain();
        let piece = (GRAIN_BYTES - in_grain).min(len - done);
        pieces.push(Piece {
            lba: byte.lba(),
            in_grain,
            at: done,
            len: piece,
        });
        done += piece;
    }
    pieces
}

/// What the file system is told of an error of the translation layer.
pub(super) fn store_error(error: &GetError) -> StoreError {
    match *error {
        GetError::NoSpace => StoreError::NoSpace,
        GetError::Damaged { lba } | GetError::Media { lba, .. } => StoreError::Damaged { lba },
        _ => StoreError::Failed,
    }
}

/// The same for durability.
pub(super) fn durable_error(error: &DurableError) -> StoreError {
    match *error {
        DurableError::NoSpace => StoreError::NoSpace,
        DurableError::Damaged { lba }
        | DurableError::Media { lba, .. }
        | DurableError::Lost { lba } => StoreError::Damaged { lba },
        _ => StoreError::Failed,
    }
}

/// The same for batches refused at once.
pub(super) fn commit_error(error: CommitError) -> StoreError {
    match error {
        CommitError::TooLarge => StoreError::BatchTooLarge,
        CommitError::OutOfRange | CommitError::Overlap => StoreError::Failed,
    }
}

impl BlockStore for TargetStore {
    fn read(&self, at: ByteAddr, buf: &mut [u8]) -> Result<(), StoreError> {
        for group in pieces(at, buf.len()).chunks(self.pages_at_once) {
            let pages = self.pages(group, Intent::Read)?;
            for (piece, page) in group.iter().zip(&pages) {
                page.copy_out(piece.in_grain, &mut buf[piece.at..][..piece.len]);
            }
        }
        Ok(())
    }

    fn write(&self, at: ByteAddr, data: &[u8]) -> Result<(), StoreError> {
        let pieces = pieces(at, data.len());
        for group in pieces.chunk_by(|a, b| (a.len == GRAIN_BYTES) == (b.len == GRAIN_BYTES)) {
            let intent = if group[0].len == GRAIN_BYTES {
                Intent::Overwrite
            } else {
                Intent::Write
            };
            // One page at a time when it is resident: pins are short and no reader of the same grains waits for us.
            for group in group.chunks(self.pages_at_once) {
                let pages = self.pages(group, intent)?;
                for (piece, page) in group.iter().zip(pages) {
                    page.copy_in(piece.in_grain, &data[piece.at..][..piece.len]);
                }
            }
        }
        Ok(())
    }

    fn commit(&self, batch: AtomicBatch) -> Result<(), StoreError> {
        let (done, answer) = waiter();
        self.send(Job::Commit(batch, done))?;
        answer.recv().map_err(|_| StoreError::Failed)?
    }

    fn sync(&self, range: LbaRange) -> Result<(), StoreError> {
        let (done, answer) = waiter();
        self.send(Job::Sync(range, done))?;
        answer.recv().map_err(|_| StoreError::Failed)?
    }

    fn next_mapped(&self, range: LbaRange) -> Option<Lba> {
        self.load(range);
        self.ftl.next_mapped(range)
    }

    fn space(&self) -> Space {
        self.ftl.space()
    }

    fn mapped_count(&self, range: LbaRange) -> u64 {
        self.load(range);
        self.ftl.mapped_count(range)
    }
}
