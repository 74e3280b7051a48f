//! Where the endpoint meets the translation layer: pages of registered file ranges are grains of the log.
//!
//! A backing is the first LBA of a file (files are contiguous, and a file whose extent is held does not move), so the
//! way from (region, offset) to LBA is one addition.

use std::sync::Arc;

use contigfs::StoreError;
use ftl::{Ftl, GetError, Lba, LbaRange, PageRef, Port, Token};
use slab::Slab;
use softrdma::{BackingId, GetPage, PageError, PageRange, PageStore, Ticket};

use super::job::PagesJob;
use super::job::Waiter;

/// The backing of a file that starts at `lba`.
pub(super) fn backing(lba: Lba) -> BackingId {
    BackingId(lba.0)
}

/// A grain in memory, pinned until dropped.
#[derive(Debug)]
pub(super) struct FlashPage(pub PageRef);

impl softrdma::page::Page for FlashPage {
    fn copy_out(&self, offset: usize, to: &mut [u8]) {
        self.0.copy_out(offset, to);
    }

    fn copy_in(&mut self, offset: usize, from: &[u8]) {
        self.0.copy_in(offset, from);
    }

    fn append_to(&self, offset: usize, len: usize, out: &mut Vec<u8>) {
        self.0.append_to(offset, len, out);
    }
}

/// Who waits for an answer of the translation layer.
#[derive(Debug)]
pub(super) enum Waiting {
    /// A connection, for a page.
    Page(Ticket),
    /// A connection, for durability; several ranges may still be on their way.
    Sync(usize),
    /// Another thread, for page `n` of its job.
    Job(Arc<PagesJob>, usize),
    /// Another thread, for durability.
    Durable(Waiter<Result<(), StoreError>>),
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
    waiting: Slab<Waiting>,
    syncs: Slab<SyncWait>,
}

impl FlashPages {
    /// Pages of `port`.
    pub(super) fn new(ftl: Arc<Ftl>, port: Port) -> Self {
        Self {
            ftl,
            port,
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
        GetError::NoSpace => PageError::NoSpace,
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
        let lba = Lba(backing.0).offset(page);
        if let Some(page) = self.ftl.try_get(lba, intent) {
            return GetPage::Ready(FlashPage(page));
        }
        let token = self.wait(Waiting::Page(ticket));
        match self.ftl.get(self.port, lba, intent, token) {
            ftl::Get::Ready(page) => {
                self.take(token);
                GetPage::Ready(FlashPage(page))
            }
            ftl::Get::Pending => GetPage::Pending,
            ftl::Get::Failed(error) => {
                self.take(token);
                GetPage::Failed(page_error(&error))
            }
        }
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
