//! Where the endpoint meets the translation layer: pages of registered file ranges are grains of the log.
//!
//! A backing names a file, and [`Places`] say where it begins. Files are contiguous, so the way from (region, offset) to LBA
//! is one load and one addition. What is wanted of a file that is under way to another place waits here until it has
//! settled; whatever has been asked for and comes meanwhile is given back, and asked for anew.
//!
//! A page of a mapped file that is to be written is not got before the kernel's copies have been recalled, and one of a file
//! that gives privileges not before they have ended; meanwhile the WRITE is parked as for a page that is not in memory, and
//! holds none.

use std::sync::Arc;
use std::time::Duration;

use contigfs::fuse::Window;
use contigfs::{GrowError, InodeNo, StoreError};
use ftl::{DurableError, Ftl, GetError, Lba, LbaRange, PageRef, Port, Token};
use slab::Slab;
use softrdma::mem::ATOMIC_BYTES;
use softrdma::{
    Atomic, BackingId, GetPage, PAGE_BYTES, PageError, PageRange, PageStore, PutPage, Served,
    Ticket, Time,
};
use tracing::warn;

use super::ahead::Ahead;
use super::job::{Job, PagesJob, Reader, Waiter};
use super::mapped::{Before, Mapped};
use super::places::{Place, Places};
use super::snapshots::{Copied, SnapshotFiles};
use super::stalls::{Drained, Of, Stalls};
use super::status::ReactorMeters;
use crate::reactor::{Inbox, LinkTag};

/// Such a part of the pool may be pinned by connections that read more than one page at a time, and another one by their first
/// pages: however many connections wait for slow peers, there are always pages to go on with.
const READING_PART: usize = 4;
/// Bytes of the pool that a connection takes.
pub const POOL_PER_CONNECTION: u64 = (READING_PART * PAGE_BYTES) as u64;

impl Drained for Waiter<()> {
    fn tell(self) {
        let _ = self.send(());
    }
}

/// A page of a mapped file that may be written now.
#[derive(Debug)]
pub(super) struct Recalled {
    /// Open until everybody sees what was written.
    pub window: Window,
    /// First byte of the page in the file.
    offset: u64,
    /// What has been written.
    bytes: std::ops::Range<u64>,
}

/// Where a page lies.
#[derive(Debug)]
enum Held {
    /// In the pool, pinned.
    Grain(PageRef),
    /// Of a file in a snapshot: nobody writes to it.
    Copy(Copied),
}

/// A page in memory, held until dropped.
#[derive(Debug)]
pub(super) struct FlashPage {
    held: Held,
    /// Of a mapped file, to be written.
    recalled: Option<Box<Recalled>>,
}

impl softrdma::page::Page for FlashPage {
    fn copy_out(&self, offset: usize, to: &mut [u8]) {
        match &self.held {
            Held::Grain(page) => page.copy_out(offset, to),
            Held::Copy(page) => to.copy_from_slice(&page[offset..offset + to.len()]),
        }
    }

    fn copy_in(&mut self, offset: usize, from: &[u8]) {
        self.grain().copy_in(offset, from);
        if let Some(recalled) = &mut self.recalled {
            let start = recalled.offset + offset as u64;
            recalled.bytes = start..start + from.len() as u64;
        }
    }

    fn atomic(&mut self, offset: usize, op: Atomic) -> u64 {
        let old = self.grain().fetch_update(offset, |old| op.apply(old));
        if let Some(recalled) = &mut self.recalled {
            let start = recalled.offset + offset as u64;
            recalled.bytes = start..start + ATOMIC_BYTES as u64;
        }
        old
    }

    fn append_to(&self, offset: usize, len: usize, out: &mut Vec<u8>) {
        match &self.held {
            Held::Grain(page) => page.append_to(offset, len, out),
            Held::Copy(page) => out.extend_from_slice(&page[offset..offset + len]),
        }
    }
}

impl FlashPage {
    fn of(page: PageRef, recalled: Option<Box<Recalled>>) -> Self {
        let held = Held::Grain(page);
        Self { held, recalled }
    }

    /// To be written to.
    fn grain(&self) -> &PageRef {
        match &self.held {
            Held::Grain(page) => page,
            Held::Copy(_) => unreachable!("no page of a snapshot is got to be written"),
        }
    }
}

/// A page that a connection wants.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    backing: BackingId,
    page: u64,
    intent: ftl::Intent,
    /// Whom to hand it to.
    ticket: Ticket,
}

impl Wanted {
    /// Of what.
    pub(super) fn backing(&self) -> BackingId {
        self.backing
    }

    /// Which one.
    pub(super) fn page(&self) -> u64 {
        self.page
    }

    /// Whether it is the one behind another.
    pub(super) fn follows(&self, other: &Self) -> bool {
        self.backing == other.backing && self.page == other.page + 1
    }
}

/// A page that has come, or never will, and for whom.
pub(super) type Answer = (Ticket, Result<FlashPage, PageError>);

/// What waits until a file has settled.
#[derive(Debug)]
enum Stalled {
    Page(Wanted, Option<Box<Recalled>>),
    Sync(usize, PageRange),
}

/// Who waits for an answer of the translation layer.
#[derive(Debug)]
pub(super) enum Waiting {
    /// A connection, for a page; of a mapped file, if it is to be written and has been recalled.
    Page(Wanted, Option<Box<Recalled>>),
    /// Nobody yet: somebody is expected to read it soon.
    Ahead,
    /// A connection, for durability; several ranges may still be on their way.
    Sync(usize),
    /// Another thread, for page `n` of its job.
    Job(Arc<PagesJob>, usize),
    /// A request of the mount, for a page to read.
    Read(Reader),
    /// Another thread, for durability.
    Durable(Waiter<Result<(), StoreError>>),
    /// Another thread, for another size.
    Resize(Waiter<Result<(), GrowError>>),
    /// Another thread, for the end of the volume.
    Close(Waiter<Result<(), DurableError>>),
}

/// A durability request of a connection that spans several ranges.
#[derive(Debug)]
pub(super) struct SyncWait {
    /// Whom to tell.
    pub ticket: Ticket,
    /// Ranges not answered yet.
    pub left: usize,
    /// Worst answer.
    pub result: Result<(), PageError>,
}

/// The pages of one reactor's port.
#[derive(Debug)]
pub(super) struct FlashPages {
    /// The translation layer.
    pub ftl: Arc<Ftl>,
    /// The port of this reactor.
    pub port: Port,
    places: Arc<Places>,
    mapped: Arc<Mapped>,
    snapshots: Arc<SnapshotFiles>,
    inbox: Arc<Inbox<Job>>,
    waiting: Slab<Waiting>,
    syncs: Slab<SyncWait>,
    stalls: Stalls<Stalled, Waiter<()>>,
    ahead: Ahead,
    /// Pages that connections have, or wait for, to read them.
    reading: usize,
    /// As many may be had by connections that have one already.
    reading_max: usize,
    /// What time it was when that was last told.
    now: Time,
    /// What this reactor does.
    pub meters: Arc<ReactorMeters>,
}

impl FlashPages {
    /// Pages of `port`, one of `reactors`; what becomes of recalled ones is told through `inbox`, and what is done for peers
    /// counted by `meters`.
    pub(super) fn new(
        (ftl, port, reactors): (Arc<Ftl>, Port, usize),
        (places, mapped, snapshots): (Arc<Places>, Arc<Mapped>, Arc<SnapshotFiles>),
        (inbox, meters): (Arc<Inbox<Job>>, Arc<ReactorMeters>),
    ) -> Self {
        let ahead = Ahead::new(ftl.pool_frames() / reactors);
        let reading_max = ftl.pool_frames() / READING_PART / reactors;
        Self {
            ftl,
            port,
            places,
            mapped,
            snapshots,
            inbox,
            waiting: Slab::new(),
            syncs: Slab::new(),
            stalls: Stalls::new(),
            ahead,
            reading: 0,
            reading_max,
            now: Time(0),
            meters,
        }
    }

    /// Remembers who waits; the token finds it again, once.
    pub(super) fn wait(&mut self, who: Waiting) -> Token {
        Token(self.waiting.insert(who) as u64)
    }

    /// Who waits for `token`.
    pub(super) fn take(&mut self, token: Token) -> Waiting {
        self.waiting.remove(token.0 as usize)
    }

    /// Whether something has to be done before a page is written, which has been started: then it must not be written before
    /// [`Job::Recalled`] or [`Job::Unprivileged`] comes.
    fn comes_later(&self, wanted: Wanted) -> bool {
        if wanted.intent == ftl::Intent::Read {
            return false;
        }
        match self.mapped.find(wanted.backing) {
            None => return false,
            Some(Before::Recall(ino)) => self.recall(wanted, ino),
            Some(Before::EndPrivileges(ino)) => self.end_privileges(wanted, ino),
        }
        true
    }

    #[cold]
    fn recall(&self, wanted: Wanted, ino: InodeNo) {
        let offset = wanted.page * PAGE_BYTES as u64;
        let inbox = Arc::clone(&self.inbox);
        let copies = offset..offset + PAGE_BYTES as u64;
        self.mapped.recall(ino, copies, move |window| {
            let recalled = Recalled {
                window,
                offset,
                bytes: offset..offset,
            };
            // A reactor that has ended stores nothing.
            let _ = inbox.push(Job::Recalled(wanted, Box::new(recalled)));
        });
    }

    #[cold]
    fn end_privileges(&self, wanted: Wanted, ino: InodeNo) {
        let inbox = Arc::clone(&self.inbox);
        self.mapped.end_privileges(ino, move |ended| {
            if let Err(error) = &ended {
                warn!(%error, %ino, "privileges that a file gives cannot be ended: a peer's write is refused");
            }
            // A reactor that has ended stores nothing.
            let _ = inbox.push(Job::Unprivileged(wanted, ended.is_ok()));
        });
    }

    /// Gets a page, which has been recalled if it is to be written and its file is mapped.
    fn ask(&mut self, wanted: Wanted, recalled: Option<Box<Recalled>>) -> GetPage<FlashPage> {
        let backing = wanted.backing;
        let start = match self.places.find(backing) {
            Place::At(start) => start,
            Place::Held => {
                self.stalls.stall(backing, Stalled::Page(wanted, recalled));
                return GetPage::Pending;
            }
            Place::Lost => return GetPage::Failed(PageError::Media),
            Place::Gone => return GetPage::Failed(PageError::Gone),
        };
        let lba = start.offset(wanted.page);
        if let Some(page) = self.ftl.try_get(lba, wanted.intent) {
            return GetPage::Ready(FlashPage::of(page, recalled));
        }
        let token = self.wait(Waiting::Page(wanted, recalled));
        let page = match self.ftl.get(self.port, lba, wanted.intent, token) {
            ftl::Get::Pending => {
                self.stalls.asked(backing);
                return GetPage::Pending;
            }
            ftl::Get::Ready(page) => Ok(page),
            ftl::Get::Failed(error) => Err(page_error(&error)),
        };
        let Waiting::Page(_, recalled) = self.take(token) else {
            unreachable!("the token is that of this request");
        };
        page.map_or_else(GetPage::Failed, |page| {
            GetPage::Ready(FlashPage::of(page, recalled))
        })
    }

    /// Has a page of a file in a snapshot copied.
    #[cold]
    fn copy(&self, wanted: Wanted) -> GetPage<FlashPage> {
        if wanted.intent != ftl::Intent::Read {
            return GetPage::Failed(PageError::Gone);
        }
        self.snapshots.ask(wanted, &self.inbox);
        GetPage::Pending
    }

    /// Gets a page, whatever has to be done first.
    fn get_or_recall(&mut self, wanted: Wanted) -> GetPage<FlashPage> {
        if SnapshotFiles::has(wanted.backing) {
            return self.copy(wanted);
        }
        if self.comes_later(wanted) {
            return GetPage::Pending;
        }
        self.ask(wanted, None)
    }

    /// Gets a page that has waited for something. A file that gives privileges by now is not written to before they have ended, however
    /// far that was: then the page is recalled anew.
    fn go_on(&mut self, wanted: Wanted, recalled: Option<Box<Recalled>>) -> GetPage<FlashPage> {
        match self.not_of_privileged(wanted, recalled) {
            None => self.get_or_recall(wanted),
            recalled => self.ask(wanted, recalled),
        }
    }

    /// What has been recalled, unless the file gives privileges by now: then its window ends. Whoever marks a file waits for steps that
    /// are under way, not for what is parked.
    fn not_of_privileged(
        &self,
        wanted: Wanted,
        recalled: Option<Box<Recalled>>,
    ) -> Option<Box<Recalled>> {
        recalled.filter(|_| {
            let before = self.mapped.find(wanted.backing);
            !matches!(before, Some(Before::EndPrivileges(_)))
        })
    }

    /// A page has been recalled. None: its answer comes later.
    pub(super) fn recalled(&mut self, wanted: Wanted, recalled: Box<Recalled>) -> Option<Answer> {
        answer(wanted, self.go_on(wanted, Some(recalled)))
    }

    /// The file of a page gives no privileges any more; if that could not be, nobody writes to it. None: its answer comes later.
    pub(super) fn unprivileged(&mut self, wanted: Wanted, is_done: bool) -> Option<Answer> {
        match is_done {
            true => answer(wanted, self.get_or_recall(wanted)),
            false => Some((wanted.ticket, Err(PageError::Media))),
        }
    }

    /// A page of a file in a snapshot has been copied.
    pub(super) fn copied(&self, wanted: Wanted, page: Result<Copied, PageError>) -> Answer {
        let page = page.map(|copied| FlashPage {
            held: Held::Copy(copied),
            recalled: None,
        });
        (wanted.ticket, page)
    }

    /// The translation layer has answered a request for a page. None: its answer comes later.
    pub(super) fn came(
        &mut self,
        wanted: Wanted,
        recalled: Option<Box<Recalled>>,
        page: Result<PageRef, GetError>,
    ) -> Option<Answer> {
        let backing = wanted.backing;
        let is_held = self.places.find(backing) == Place::Held;
        if is_held {
            // Given back before it is said that nothing is outstanding.
            drop(page);
            self.stalls.stall(backing, Stalled::Page(wanted, recalled));
            self.stalls.came(backing);
            return None;
        }
        self.stalls.came(backing);
        let recalled = self.not_of_privileged(wanted, recalled);
        // The file may have been mapped since, or made a program that gives privileges.
        if recalled.is_none() && page.is_ok() && self.comes_later(wanted) {
            return None;
        }
        let page = page.map(|page| FlashPage::of(page, recalled));
        Some((wanted.ticket, page.map_err(|error| page_error(&error))))
    }

    /// Tells `done` when nothing that connections have asked for through these backings is outstanding.
    pub(super) fn drain(&mut self, of: Of, done: Waiter<()>) {
        self.stalls.drain(of, done);
    }

    /// These files have settled, or gone: asks for what has waited for that. Answers what is there at once.
    pub(super) fn settled(&mut self, of: &Of) -> Vec<Answer> {
        let mut answers = Vec::new();
        for stalled in self.stalls.resume(of) {
            match stalled {
                Stalled::Sync(sync, range) => self.sync_range(sync, range),
                Stalled::Page(wanted, recalled) => {
                    answers.extend(answer(wanted, self.go_on(wanted, recalled)));
                }
            }
        }
        answers
    }

    /// Lets time pass: what is read ahead depends on it, and how long operations take.
    pub(super) fn tick(&mut self, now: Time) {
        self.now = now;
        self.ahead.tick(ftl::Time(now.0));
    }

    /// A page that was read ahead has come.
    pub(super) fn came_ahead(&mut self) {
        self.ahead.came();
        self.bring_in();
    }

    /// Reads ahead as far as that is wanted.
    fn bring_in(&mut self) {
        while let Some(lba) = self.ahead.next() {
            // Who looks at a page that is there brings nothing in.
            if self.ftl.try_get(lba, ftl::Intent::Read).is_some() {
                continue;
            }
            let token = self.wait(Waiting::Ahead);
            match self.ftl.get(self.port, lba, ftl::Intent::Read, token) {
                ftl::Get::Pending => self.ahead.asked(),
                ftl::Get::Ready(_) | ftl::Get::Failed(_) => drop(self.take(token)),
            }
        }
    }

    fn sync_range(&mut self, sync: usize, range: PageRange) {
        let grains = match self.places.find(range.backing) {
            Place::At(start) => LbaRange::new(start.offset(range.first), range.count),
            Place::Held => {
                self.stalls.stall(range.backing, Stalled::Sync(sync, range));
                return;
            }
            // Nobody vouches for it. The answer must still come later: an empty range is durable at once.
            place => {
                self.syncs[sync].result = Err(match place {
                    Place::Lost => PageError::Media,
                    _ => PageError::Gone,
                });
                LbaRange::new(Lba(0), 0)
            }
        };
        let token = self.wait(Waiting::Sync(sync));
        self.ftl.sync(self.port, grains, token);
    }

    /// One more range of a durability request has been answered; returns the request when it was the last.
    pub(super) fn sync_done(
        &mut self,
        sync: usize,
        result: Result<(), PageError>,
    ) -> Option<SyncWait> {
        let wait = &mut self.syncs[sync];
        wait.left -= 1;
        if result.is_err() {
            wait.result = result;
        }
        (wait.left == 0).then(|| self.syncs.remove(sync))
    }
}

fn answer(wanted: Wanted, got: GetPage<FlashPage>) -> Option<Answer> {
    let page = match got {
        GetPage::Pending => return None,
        GetPage::Ready(page) => Ok(page),
        GetPage::Failed(error) => Err(error),
    };
    Some((wanted.ticket, page))
}

/// What the endpoint is told of an error of the translation layer.
fn page_error(error: &GetError) -> PageError {
    match error {
        // A peer has no more of a limit than of a full volume.
        GetError::NoSpace | GetError::Quota => PageError::NoSpace,
        GetError::OutOfRange => PageError::Gone,
        _ => PageError::Media,
    }
}

impl PageStore for FlashPages {
    type Page = FlashPage;

    fn get(
        &mut self,
        backing: BackingId,
        page: u64,
        intent: softrdma::Intent,
        ticket: Ticket,
    ) -> GetPage<FlashPage> {
        let intent = match intent {
            softrdma::Intent::Read => ftl::Intent::Read,
            softrdma::Intent::Write => ftl::Intent::Write,
            softrdma::Intent::Overwrite => ftl::Intent::Overwrite,
        };
        self.reading += usize::from(intent == ftl::Intent::Read);
        self.get_or_recall(Wanted {
            backing,
            page,
            intent,
            ticket,
        })
    }

    fn may_want_more(&mut self) -> bool {
        self.reading < self.reading_max
    }

    fn read_done(&mut self, pages: usize) {
        self.reading -= pages;
    }

    fn now(&self) -> Time {
        self.now
    }

    fn served(&mut self, what: Served, bytes: u64, since: Time) {
        let took = Duration::from_nanos(self.now.0.saturating_sub(since.0));
        self.meters.note(what, bytes, took);
    }

    fn will_read(&mut self, reader: u32, pages: PageRange, left: u64) {
        // Of a file that is under way nothing is known to be read soon.
        if let Place::At(start) = self.places.find(pages.backing) {
            let range = LbaRange::new(start.offset(pages.first), pages.count);
            if self.ahead.reads(LinkTag(reader), range, left) {
                self.bring_in();
            }
        }
    }

    fn put(&mut self, page: FlashPage, ticket: Ticket) -> PutPage {
        let FlashPage { held, recalled } = page;
        // A page that was overwritten is seen from here on.
        drop(held);
        let Some(recalled) = recalled else {
            return PutPage::Done;
        };
        let Recalled { window, bytes, .. } = *recalled;
        let Some(stale) = window.stored(bytes) else {
            return PutPage::Done;
        };
        let inbox = Arc::clone(&self.inbox);
        stale.recall(move || {
            let _ = inbox.push(Job::Told(ticket));
        });
        PutPage::Pending
    }

    fn sync(&mut self, ranges: &[PageRange], ticket: Ticket) {
        let sync = self.syncs.insert(SyncWait {
            ticket,
            left: ranges.len().max(1),
            result: Ok(()),
        });
        if ranges.is_empty() {
            // Nothing was written, but the answer must still come later: an empty range is durable at once.
            let token = self.wait(Waiting::Sync(sync));
            self.ftl.sync(self.port, LbaRange::new(Lba(0), 0), token);
        }
        for &range in ranges {
            self.sync_range(sync, range);
        }
    }
}
