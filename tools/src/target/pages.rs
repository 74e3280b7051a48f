//! Where the endpoint meets the translation layer: pages of registered file ranges are grains of the log.
//!
//! A backing is the first LBA of a file (files are contiguous, and a file whose extent is held does not move), so the
//! way from (region, offset) to LBA is one addition.
//!
//! A page of a mapped file that is to be written is not got before the kernel's copies have been recalled; meanwhile the
//! WRITE is parked as for a page that is not in memory, and holds none.

use std::sync::Arc;

use contigfs::fuse::Window;
use contigfs::{GrowError, InodeNo, StoreError};
use ftl::{Ftl, GetError, Lba, LbaRange, PageRef, Port, Token};
use slab::Slab;
use softrdma::mem::ATOMIC_BYTES;
use softrdma::{
    Atomic, BackingId, GetPage, PAGE_BYTES, PageError, PageRange, PageStore, PutPage, Ticket,
};

use super::job::{Job, PagesJob, Waiter};
use super::mapped::Mapped;
use crate::reactor::Inbox;

/// The backing of a file that starts at `lba`.
pub(super) fn backing(lba: Lba) -> BackingId {
    BackingId(lba.0)
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

/// A grain in memory, pinned until dropped.
#[derive(Debug)]
pub(super) struct FlashPage {
    page: PageRef,
    /// Of a mapped file, to be written.
    recalled: Option<Box<Recalled>>,
}

impl FlashPage {
    /// A page of a file that is not mapped, or that is read.
    pub(super) fn new(page: PageRef) -> Self {
        Self {
            page,
            recalled: None,
        }
    }

    /// A page of a mapped file.
    pub(super) fn recalled(page: PageRef, recalled: Box<Recalled>) -> Self {
        Self {
            page,
            recalled: Some(recalled),
        }
    }
}

impl softrdma::page::Page for FlashPage {
    fn copy_out(&self, offset: usize, to: &mut [u8]) {
        self.page.copy_out(offset, to);
    }

    fn copy_in(&mut self, offset: usize, from: &[u8]) {
        self.page.copy_in(offset, from);
        if let Some(recalled) = &mut self.recalled {
            let start = recalled.offset + offset as u64;
            recalled.bytes = start..start + from.len() as u64;
        }
    }

    fn atomic(&mut self, offset: usize, op: Atomic) -> u64 {
        let old = self.page.fetch_update(offset, |old| op.apply(old));
        if let Some(recalled) = &mut self.recalled {
            let start = recalled.offset + offset as u64;
            recalled.bytes = start..start + ATOMIC_BYTES as u64;
        }
        old
    }

    fn append_to(&self, offset: usize, len: usize, out: &mut Vec<u8>) {
        self.page.append_to(offset, len, out);
    }
}

/// A page that a connection wants to write.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    backing: BackingId,
    page: u64,
    intent: ftl::Intent,
    /// Whom to hand it to.
    pub ticket: Ticket,
}

/// Who waits for an answer of the translation layer.
#[derive(Debug)]
pub(super) enum Waiting {
    /// A connection, for a page to read.
    Page(Ticket),
    /// A connection, for a page to write.
    Write(Wanted),
    /// A connection, for a page of a mapped file to write.
    Recalled(Ticket, Box<Recalled>),
    /// A connection, for durability; several ranges may still be on their way.
    Sync(usize),
    /// Another thread, for page `n` of its job.
    Job(Arc<PagesJob>, usize),
    /// Another thread, for durability.
    Durable(Waiter<Result<(), StoreError>>),
    /// Another thread, for another size.
    Resize(Waiter<Result<(), GrowError>>),
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
    mapped: Arc<Mapped>,
    inbox: Arc<Inbox<Job>>,
    waiting: Slab<Waiting>,
    syncs: Slab<SyncWait>,
}

impl FlashPages {
    /// Pages of `port`; what becomes of recalled ones is told through `inbox`.
    pub(super) fn new(
        ftl: Arc<Ftl>,
        port: Port,
        mapped: Arc<Mapped>,
        inbox: Arc<Inbox<Job>>,
    ) -> Self {
        Self {
            ftl,
            port,
            mapped,
            inbox,
            waiting: Slab::new(),
            syncs: Slab::new(),
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

    /// Whether the file of a page that is to be written is mapped. Then the page is being recalled, and must not be
    /// written before [`Job::Recalled`] comes.
    pub(super) fn recalls(&self, wanted: Wanted) -> bool {
        let Some(ino) = self.mapped.find(wanted.backing) else {
            return false;
        };
        self.recall(wanted, ino);
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
            let _ = inbox.send(Job::Recalled(wanted, Box::new(recalled)));
        });
    }

    /// Gets a page that has been recalled.
    pub(super) fn get_recalled(
        &mut self,
        wanted: Wanted,
        recalled: Box<Recalled>,
    ) -> GetPage<FlashPage> {
        let lba = Lba(wanted.backing.0).offset(wanted.page);
        let token = self.wait(Waiting::Recalled(wanted.ticket, recalled));
        let page = match self.ftl.get(self.port, lba, wanted.intent, token) {
            ftl::Get::Pending => return GetPage::Pending,
            ftl::Get::Ready(page) => Ok(page),
            ftl::Get::Failed(error) => Err(error),
        };
        match (self.take(token), page) {
            (Waiting::Recalled(_, recalled), Ok(page)) => {
                GetPage::Ready(FlashPage::recalled(page, recalled))
            }
            (_, Ok(_)) => unreachable!("the token is that of this request"),
            (_, Err(error)) => GetPage::Failed(page_error(&error)),
        }
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

/// What the endpoint is told of an error of the translation layer.
pub(super) fn page_error(error: &GetError) -> PageError {
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
        let wanted = Wanted {
            backing,
            page,
            intent,
            ticket,
        };
        let writes = intent != ftl::Intent::Read;
        if writes && self.recalls(wanted) {
            return GetPage::Pending;
        }
        let lba = Lba(backing.0).offset(page);
        if let Some(page) = self.ftl.try_get(lba, intent) {
            return GetPage::Ready(FlashPage::new(page));
        }
        let token = self.wait(if writes {
            Waiting::Write(wanted)
        } else {
            Waiting::Page(ticket)
        });
        match self.ftl.get(self.port, lba, intent, token) {
            ftl::Get::Ready(page) => {
                self.take(token);
                GetPage::Ready(FlashPage::new(page))
            }
            ftl::Get::Pending => GetPage::Pending,
            ftl::Get::Failed(error) => {
                self.take(token);
                GetPage::Failed(page_error(&error))
            }
        }
    }

    fn put(&mut self, page: FlashPage, ticket: Ticket) -> PutPage {
        let FlashPage { page, recalled } = page;
        // A page that was overwritten is seen from here on.
        drop(page);
        let Some(recalled) = recalled else {
            return PutPage::Done;
        };
        let Recalled { window, bytes, .. } = *recalled;
        let Some(stale) = window.stored(bytes) else {
            return PutPage::Done;
        };
        let inbox = Arc::clone(&self.inbox);
        stale.recall(move || {
            let _ = inbox.send(Job::Told(ticket));
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
        for range in ranges {
            let token = self.wait(Waiting::Sync(sync));
            let start = Lba(range.backing.0).offset(range.first);
            self.ftl
                .sync(self.port, LbaRange::new(start, range.count), token);
        }
    }
}
