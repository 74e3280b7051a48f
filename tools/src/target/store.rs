//! The volume as the file system sees it: resident grains directly, everything else on the lane of the thread that asks, or
//! through the reactor.

use std::fs::File;
use std::io;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use contigfs::{
    BlockStore, ByteAddr, GrowError, Grown, PageDone, ShareError, Span, StoreError, SyncDone,
    share_on,
};
use ftl::device::MediaError;
use ftl::device::file::{EnlargeError, enlarge};
use ftl::snapshot::{Host, SnapshotChange, SnapshotError};
use ftl::{
    AccountId, AccountUse, AtomicBatch, CommitError, DurableError, Ftl, GRAIN_BYTES, GetError,
    Intent, Lba, LbaRange, PageRef, ResizeError, Space,
};

use super::job::{Job, PagesJob, Reader, Waiter, one_by_one, waiter};
use super::lane::Lanes;
use super::later::Later;
use super::readahead::Readahead;
use super::regions::Regions;
use super::share::Shares;
use crate::reactor::Inbox;

/// Less than this is copied, which is as quick as naming the pieces.
const LENT_FROM_BYTES: usize = 4 * GRAIN_BYTES;
/// Time between two looks at how far the devices are.
const TRIM_TICK: Duration = Duration::from_millis(2);

/// The volume, for the threads of FUSE and of the control protocol.
#[derive(Clone, Debug)]
pub(super) struct TargetStore {
    ftl: Arc<Ftl>,
    inbox: Arc<Inbox<Job>>,
    /// By which threads carry out what they wait for, if the volume has one device.
    lanes: Option<Arc<Lanes>>,
    /// Pages that requests of threads hold at once.
    shares: Arc<Shares>,
    readahead: Option<Arc<Readahead>>,
    /// Reads that the reactor answers.
    later: Arc<Later>,
    /// The file or device of a volume that has only one; not there any more once the target closes it.
    file: Weak<File>,
    /// What peers have of files.
    regions: Option<Arc<Regions>>,
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
    pub(super) fn new(
        ftl: Arc<Ftl>,
        inbox: Arc<Inbox<Job>>,
        lanes: Option<Arc<Lanes>>,
        threads: usize,
    ) -> Self {
        let shares = Arc::new(Shares::new(ftl.pool_frames() / 4, threads));
        let later = Later::new(ftl.pool_frames());
        Self {
            ftl,
            inbox,
            lanes,
            shares,
            readahead: None,
            later,
            file: Weak::new(),
            regions: None,
        }
    }

    /// The same store, of which peers hold pages through these regions.
    pub(super) fn beside(mut self, regions: &Arc<Regions>) -> Self {
        self.regions = Some(Arc::clone(regions));
        self
    }

    /// The same store, which can grow on this file or device.
    pub(super) fn growing_on(mut self, file: Weak<File>) -> Self {
        self.file = file;
        self
    }

    /// The same store, reading ahead of who reads sequentially.
    pub(super) fn reading_ahead(mut self) -> io::Result<Self> {
        let store = self.clone();
        let window = self.ftl.pool_frames() as u64 / 16;
        let readahead = Readahead::start(window, move |range| store.bring_in(range))?;
        self.readahead = Some(Arc::new(readahead));
        Ok(self)
    }

    /// What reads ahead, if something does.
    pub(super) fn readahead(&self) -> Option<&Arc<Readahead>> {
        self.readahead.as_ref()
    }

    /// Brings a range into memory. Whoever reads it later sees errors for itself.
    fn bring_in(&self, range: LbaRange) {
        let lbas: Vec<Lba> = (0..range.count).map(|n| range.start.offset(n)).collect();
        let share = self.shares.take(lbas.len());
        for group in lbas.chunks(share.pages()) {
            let Ok(pages) = self.pages(group, Intent::Read) else {
                continue;
            };
            // Asked for once more: what is ahead of a reader is not to go before what that has read.
            for &lba in group {
                drop(self.ftl.try_get(lba, Intent::Read));
            }
            drop(pages);
        }
    }

    /// Pins grains, all with the same intent.
    fn pages(&self, lbas: &[Lba], intent: Intent) -> Result<Vec<PageRef>, StoreError> {
        let get = |&lba| self.ftl.try_get(lba, intent);
        let mut pages: Vec<Option<PageRef>> = match one_by_one(intent) {
            true => lbas.iter().map_while(get).map(Some).collect(),
            false => lbas.iter().map(get).collect(),
        };
        pages.resize_with(lbas.len(), || None);
        let missing: Vec<usize> = (0..pages.len()).filter(|&n| pages[n].is_none()).collect();
        if !missing.is_empty() {
            let lbas: Vec<Lba> = missing.iter().map(|&n| lbas[n]).collect();
            let got = match self.lanes.as_ref().and_then(|lanes| lanes.enter()) {
                Some(lane) => lane.pages(&lbas, intent),
                None => {
                    let (job, answer) = PagesJob::new(lbas, intent);
                    self.send(Job::Pages(job))?;
                    answer.recv().map_err(|_| StoreError::Failed)?
                }
            };
            for (n, page) in missing.into_iter().zip(got) {
                pages[n] = Some(page.map_err(|error| store_error(&error))?);
            }
        }
        Ok(pages.into_iter().flatten().collect())
    }

    fn pages_of(&self, pieces: &[Piece], intent: Intent) -> Result<Vec<PageRef>, StoreError> {
        let lbas: Vec<Lba> = pieces.iter().map(|piece| piece.lba).collect();
        self.pages(&lbas, intent)
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

/// What snapshots need of the volume. Making and deleting them is rare, so the reactor carries out what they write.
impl Host for TargetStore {
    fn engine(&self) -> &Ftl {
        &self.ftl
    }

    fn read_grains(&self, lbas: &[Lba], into: &mut [&mut [u8]]) -> Result<(), SnapshotError> {
        if lbas.is_empty() {
            return Ok(());
        }
        let share = self.shares.take(lbas.len());
        // Whoever waits for pages holds others, in ascending order like everybody.
        let mut order: Vec<usize> = (0..lbas.len()).collect();
        order.sort_unstable_by_key(|&n| lbas[n]);
        for group in order.chunks(share.pages()) {
            let some: Vec<Lba> = group.iter().map(|&n| lbas[n]).collect();
            let pages = self.pages(&some, Intent::Read).map_err(snapshot_error)?;
            for (&n, page) in group.iter().zip(&pages) {
                page.copy_out(0, into[n]);
            }
        }
        Ok(())
    }

    fn commit_images(
        &self,
        batch: AtomicBatch,
        change: Option<SnapshotChange>,
    ) -> Result<(), SnapshotError> {
        let commit = || self.ask_reactor(|done| Job::CommitSnapshot(batch, change, done));
        match &self.regions {
            // Whoever holds a page at the moment of a snapshot is waited for. For peers that may be long.
            Some(regions) if matches!(change, Some(SnapshotChange::Make(_))) => {
                regions.still(commit)
            }
            _ => commit(),
        }
    }

    fn admit_images(&self) -> Result<(), SnapshotError> {
        self.ask_reactor(Job::AdmitImages)
    }

    fn load_map(&self, range: LbaRange) -> Result<(), SnapshotError> {
        if self.ftl.is_map_loaded() {
            return Ok(());
        }
        self.ask_reactor(|done| Job::Load(range, done))
    }

    fn sync_all(&self) -> Result<(), SnapshotError> {
        self.sync(LbaRange::ALL).map_err(snapshot_error)
    }
}

impl TargetStore {
    fn ask_reactor(
        &self,
        job: impl FnOnce(Waiter<Result<(), StoreError>>) -> Job,
    ) -> Result<(), SnapshotError> {
        let (done, answer) = waiter();
        self.send(job(done)).map_err(snapshot_error)?;
        let answer = answer.recv().map_err(|_| SnapshotError::Failed)?;
        answer.map_err(snapshot_error)
    }
}

fn snapshot_error(error: StoreError) -> SnapshotError {
    match error {
        StoreError::NoSpace | StoreError::Quota => SnapshotError::NoSpace,
        StoreError::Damaged { lba } => SnapshotError::Damaged { lba },
        StoreError::Unreadable { lba } => SnapshotError::Unreadable { lba },
        StoreError::Failed | StoreError::BatchTooLarge | StoreError::ManyAlong => {
            SnapshotError::Failed
        }
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

/// Where the pieces lie; those beside each other in memory are one.
fn spans<'a>(pieces: &[Piece], pages: &'a [PageRef]) -> Vec<Span<'a>> {
    let mut spans: Vec<Span<'a>> = Vec::with_capacity(pieces.len());
    for (piece, page) in pieces.iter().zip(pages) {
        // SAFETY: a piece lies inside of its page, which is held as long as `pages` is, and the engine makes no references to pages.
        let span = unsafe { Span::new(page.as_ptr().add(piece.in_grain), piece.len) };
        let last = spans.last_mut();
        // SAFETY: all pages are parts of the pool.
        let joined = last.as_ref().and_then(|last| unsafe { last.joined(span) });
        match (last, joined) {
            (Some(last), Some(joined)) => *last = joined,
            _ => spans.push(span),
        }
    }
    spans
}

/// What the file system is told of an error of the translation layer.
pub(super) fn store_error(error: &GetError) -> StoreError {
    match *error {
        GetError::NoSpace => StoreError::NoSpace,
        GetError::Quota => StoreError::Quota,
        GetError::Damaged { lba } => StoreError::Damaged { lba },
        GetError::Media { lba, error } => unread(lba, error),
        _ => StoreError::Failed,
    }
}

/// A grain that its device gives an error for: the next try may read it, but not on a device that is gone.
const fn unread(lba: Lba, error: MediaError) -> StoreError {
    match error {
        MediaError::Gone | MediaError::Missing => StoreError::Damaged { lba },
        _ => StoreError::Unreadable { lba },
    }
}

/// The same for durability.
pub(super) fn durable_error(error: &DurableError) -> StoreError {
    match *error {
        DurableError::NoSpace => StoreError::NoSpace,
        DurableError::Quota => StoreError::Quota,
        DurableError::Damaged { lba } | DurableError::Lost { lba } => StoreError::Damaged { lba },
        DurableError::Media { lba, error } => unread(lba, error),
        _ => StoreError::Failed,
    }
}

/// The same for batches refused at once.
pub(super) fn commit_error(error: CommitError) -> StoreError {
    match error {
        CommitError::TooLarge => StoreError::BatchTooLarge,
        CommitError::ManyAlong => StoreError::ManyAlong,
        CommitError::OutOfRange | CommitError::Overlap => StoreError::Failed,
    }
}

impl BlockStore for TargetStore {
    fn read(&self, at: ByteAddr, buf: &mut [u8]) -> Result<(), StoreError> {
        let grains = (at.in_grain() + buf.len()).div_ceil(GRAIN_BYTES);
        if let Some(readahead) = &self.readahead {
            readahead.reads(LbaRange::new(at.lba(), grains as u64));
        }
        // The most frequent request by far: a resident page takes neither lists nor shares.
        if grains == 1
            && let Some(page) = self.ftl.try_get(at.lba(), Intent::Read)
        {
            page.copy_out(at.in_grain(), buf);
            return Ok(());
        }
        let pieces = pieces(at, buf.len());
        let share = self.shares.take(pieces.len());
        for group in pieces.chunks(share.pages()) {
            let pages = self.pages_of(group, Intent::Read)?;
            for (piece, page) in group.iter().zip(&pages) {
                page.copy_out(piece.in_grain, &mut buf[piece.at..][..piece.len]);
            }
        }
        Ok(())
    }

    fn lend(
        &self,
        at: ByteAddr,
        len: usize,
        look: &mut dyn FnMut(&[Span<'_>]),
    ) -> Result<bool, StoreError> {
        if len < LENT_FROM_BYTES {
            return Ok(false);
        }
        let pieces = pieces(at, len);
        let share = self.shares.take(pieces.len());
        if share.pages() < pieces.len() {
            return Ok(false);
        }
        if let Some(readahead) = &self.readahead {
            readahead.reads(LbaRange::new(at.lba(), pieces.len() as u64));
        }
        let pages = self.pages_of(&pieces, Intent::Read)?;
        look(&spans(&pieces, &pages));
        Ok(true)
    }

    fn reads_later(&self) -> bool {
        let is_better = |lanes: &Arc<Lanes>| self.later.is_better(lanes.asleep());
        // Without lanes the reactor gets the pages in any case.
        self.lanes.as_ref().is_none_or(is_better)
    }

    fn read_then(&self, at: ByteAddr, len: usize, done: &mut dyn FnMut() -> PageDone) -> bool {
        let lba = at.lba();
        if self.ftl.try_get(lba, Intent::Read).is_some() {
            return false;
        }
        let Some(under_way) = self.later.begin() else {
            return false;
        };
        if let Some(readahead) = &self.readahead {
            readahead.reads(LbaRange::new(lba, 1));
        }
        let done = done();
        let reader = Reader(Box::new(move |page| {
            match page {
                // SAFETY: the piece lies inside of its page, which is held until the call is over, and the engine makes no
                // references to pages.
                Ok(page) => done(Ok(unsafe {
                    Span::new(page.as_ptr().add(at.in_grain()), len)
                })),
                Err(error) => done(Err(store_error(&error))),
            }
            drop(under_way);
        }));
        // Of a reactor that has ended those who asked are told by the end of `done`.
        let _ = self.send(Job::Read(lba, reader));
        true
    }

    fn write(&self, at: ByteAddr, data: &[u8]) -> Result<(), StoreError> {
        let pieces = pieces(at, data.len());
        let share = self.shares.take(pieces.len());
        for group in pieces.chunk_by(|a, b| (a.len == GRAIN_BYTES) == (b.len == GRAIN_BYTES)) {
            let intent = if group[0].len == GRAIN_BYTES {
                Intent::Overwrite
            } else {
                Intent::Write
            };
            // All are got, then filled, then put: between two pages others may take the volume, for as long as a write-out takes.
            for group in group.chunks(share.pages()) {
                let pages = self.pages_of(group, intent)?;
                for (piece, page) in group.iter().zip(&pages) {
                    page.copy_in(piece.in_grain, &data[piece.at..][..piece.len]);
                }
                self.ftl.put_all(pages);
            }
        }
        Ok(())
    }

    fn commit(&self, batch: AtomicBatch) -> Result<(), StoreError> {
        if let Some(lane) = self.lanes.as_ref().and_then(|lanes| lanes.enter()) {
            return lane.durable(|ftl, port, token| ftl.commit(port, batch, token));
        }
        let (done, answer) = waiter();
        self.send(Job::Commit(batch, done))?;
        answer.recv().map_err(|_| StoreError::Failed)?
    }

    fn commit_relaxed(&self, batch: AtomicBatch) -> Result<(), StoreError> {
        if let Some(lane) = self.lanes.as_ref().and_then(|lanes| lanes.enter()) {
            return lane.durable(|ftl, port, token| ftl.commit_relaxed(port, batch, token));
        }
        let (done, answer) = waiter();
        self.send(Job::CommitRelaxed(batch, done))?;
        answer.recv().map_err(|_| StoreError::Failed)?
    }

    fn sync(&self, range: LbaRange) -> Result<(), StoreError> {
        if let Some(lane) = self.lanes.as_ref().and_then(|lanes| lanes.enter()) {
            return lane.durable(|ftl, port, token| {
                ftl.sync(port, range, token);
                Ok(())
            });
        }
        let (done, answer) = waiter();
        self.send(Job::Sync(range, done))?;
        answer.recv().map_err(|_| StoreError::Failed)?
    }

    fn sync_then(&self, range: LbaRange, done: SyncDone) {
        match &self.lanes {
            Some(lanes) => lanes.sync_then(range, done),
            None => done(self.sync(range)),
        }
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

    fn share(&self, memory: &File, at: u64, range: LbaRange) -> Result<(), ShareError> {
        self.load(range);
        share_on(self, &self.ftl, (memory, at), range)
    }

    fn bring_back(&self, range: LbaRange) -> Result<(), StoreError> {
        let lbas: Vec<Lba> = (0..range.count).map(|n| range.start.offset(n)).collect();
        let share = self.shares.take(lbas.len());
        for group in lbas.chunks(share.pages()) {
            self.pages(group, Intent::Write)?;
        }
        Ok(())
    }

    fn find_stores(&self, range: LbaRange) -> u64 {
        self.ftl.find_stores(range)
    }

    fn unshare(&self, range: LbaRange) {
        self.ftl.unshare(range);
    }

    fn let_leave(&self, range: LbaRange) -> bool {
        self.ftl.let_leave(range)
    }

    fn assign(&self, ranges: &[LbaRange], account: Option<AccountId>) {
        self.ftl.assign(ranges, account);
    }

    fn assign_if_room(&self, ranges: &[LbaRange], account: AccountId) -> bool {
        self.load(LbaRange::ALL);
        self.ftl.assign_if_room(ranges, account)
    }

    fn limit_account(&self, account: AccountId, limit: Option<u64>) {
        self.ftl.limit_account(account, limit);
    }

    fn account(&self, account: AccountId) -> AccountUse {
        self.load(LbaRange::ALL);
        self.ftl.account(account)
    }

    fn snapshot_host(&self) -> Option<&dyn Host> {
        Some(self)
    }

    fn trim(&self) -> u64 {
        let bytes = self.ftl.discard_free();
        while self.ftl.is_discarding_free() {
            thread::sleep(TRIM_TICK);
        }
        bytes
    }

    fn grow(&self, bytes: Option<u64>) -> Result<Grown, GrowError> {
        const GRAIN: u64 = GRAIN_BYTES as u64;
        let before = self.ftl.info().geometry;
        if before.places.count() > 1 {
            return Err(ResizeError::Array.into());
        }
        let has = before.device_grains * GRAIN;
        if bytes.is_some_and(|bytes| bytes / GRAIN < before.device_grains) {
            return Err(GrowError::Smaller { has });
        }
        let file = self.file.upgrade().ok_or(GrowError::Failed)?;
        let room = enlarge(&file, bytes).map_err(|error| match error {
            EnlargeError::Smaller { bytes } => GrowError::DeviceSmaller { bytes },
            EnlargeError::System(error) => {
                GrowError::Device(error.raw_os_error().unwrap_or(libc::EIO))
            }
        })?;
        drop(file);
        let (done, answer) = waiter();
        let job = Job::Resize(room / GRAIN, done);
        self.send(job).map_err(|_| GrowError::Failed)?;
        answer.recv().map_err(|_| GrowError::Failed)??;
        let now = self.ftl.info().geometry;
        Ok(Grown {
            device_before: has,
            device: now.device_grains * GRAIN,
            capacity_before: before.capacity_grains * GRAIN,
            capacity: now.capacity_grains * GRAIN,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the device gives an error for may be whole, so it is not told to be damaged: of damaged attributes, for one, all go
    /// when any of them is removed.
    #[test]
    fn an_error_of_the_device_is_no_damage() {
        let (lba, error) = (Lba(7), MediaError::Io);
        let unreadable = StoreError::Unreadable { lba };
        assert_eq!(store_error(&GetError::Media { lba, error }), unreadable);
        let of_batch = DurableError::Media { lba, error };
        assert_eq!(durable_error(&of_batch), unreadable);
        let damaged = StoreError::Damaged { lba };
        assert_eq!(store_error(&GetError::Damaged { lba }), damaged);
        assert_eq!(durable_error(&DurableError::Lost { lba }), damaged);
        for error in [MediaError::Gone, MediaError::Missing] {
            assert_eq!(store_error(&GetError::Media { lba, error }), damaged);
        }
    }
}
