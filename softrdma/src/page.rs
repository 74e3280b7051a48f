//! The seam to whoever owns the pages of file-backed regions.
//!
//! A region over a file range stores an extent, not pages (DESIGN D6). When a remote operation touches it, the
//! connection asks a [`PageStore`] for each page, copies, and gives the page back. The target implements this over its
//! page pool; tests use a vector.
//!
//! # Invariants
//! - A [`Page`] stays valid and in place until dropped; dropping it gives it back.
//! - `get` that said [`GetPage::Pending`] is answered exactly once, by
//!   [`Connection::handle_page`](crate::Connection::handle_page) with the same ticket. When the connection is gone,
//!   the driver drops the answer. It is never answered inside `get` itself.
//! - A page that was written is given back by `put`, any other by dropping it. A `put` that said [`PutPage::Pending`] is
//!   answered exactly once, by [`Connection::handle_put`](crate::Connection::handle_put) with the same ticket, and never
//!   inside `put` itself. Until then the WRITE is not placed, and nothing behind it on its connection happens.
//! - A page got to overwrite is filled whole and then dropped, or dropped untouched when access was revoked or the
//!   connection ended meanwhile; in that case the store keeps the old content.
//! - The owner may ask for the pages of a backing back at any time, by
//!   [`Connection::renew_pages`](crate::Connection::renew_pages): each is given back, then asked for anew with its ticket.
//! - `sync` is always answered later, by [`Connection::handle_durable`](crate::Connection::handle_durable).

use crate::addr::{BackingId, Ticket, Time};
use crate::mem::{ATOMIC_BYTES, Atomic};

/// Size of a page.
pub const PAGE_BYTES: usize = 4096;

/// What the page will be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Intent {
    /// Bytes are read.
    Read,
    /// Some bytes are written, the others keep their value.
    Write,
    /// Every byte is written: the old content need not be fetched.
    Overwrite,
}

/// Answer to [`PageStore::get`].
#[derive(Debug)]
pub enum GetPage<P> {
    /// Here it is, pinned until dropped.
    Ready(P),
    /// It will be handed in with the ticket.
    Pending,
    /// It will never come.
    Failed(PageError),
}

/// Answer to [`PageStore::put`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PutPage {
    /// Everybody sees what was written.
    Done,
    /// Somebody still has to be told; the ticket will be answered.
    Pending,
}

/// What was done for a peer. What was refused is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Served {
    /// An RDMA WRITE, placed; through a sync STag, durable. A connection may begin with one of no bytes (RFC 6581 §9).
    Write,
    /// An RDMA READ, answered.
    Read,
    /// A SEND of any kind that a receive took, or immediate data, which has no bytes here.
    Send,
    /// An atomic operation, answered.
    Atomic,
    /// A FLUSH, answered. It has no bytes.
    Flush,
    /// A VERIFY, answered.
    Verify,
}

impl Served {
    /// All of them, each at the place that is its number.
    pub const ALL: [Self; 6] = [
        Self::Write,
        Self::Read,
        Self::Send,
        Self::Atomic,
        Self::Flush,
        Self::Verify,
    ];
}

/// Why a page or a durability request failed. Ends the connection that needed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum PageError {
    /// Media failed or returned damaged bytes.
    #[error("media error")]
    Media,
    /// No room for a new page.
    #[error("no space")]
    NoSpace,
    /// The backing object is gone or shorter than the region.
    #[error("backing is gone")]
    Gone,
}

/// Consecutive pages of one backing object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageRange {
    /// The object.
    pub backing: BackingId,
    /// First page.
    pub first: u64,
    /// Number of pages.
    pub count: u64,
}

/// A page held in memory. Dropping it gives it back.
pub trait Page {
    /// Copies bytes from `offset` on into `to`. `offset + to.len() <= PAGE_BYTES`.
    fn copy_out(&self, offset: usize, to: &mut [u8]);

    /// Copies `from` into the page at `offset`. Only for pages got with a write intent.
    fn copy_in(&mut self, offset: usize, from: &[u8]);

    /// Carries out an atomic operation on the eight bytes at `offset`, a multiple of 8; returns what they were. Only for
    /// pages got with [`Intent::Write`]. A store whose pages several threads write at the same time overrides it with an
    /// atomic instruction on its memory.
    fn atomic(&mut self, offset: usize, op: Atomic) -> u64 {
        let mut bytes = [0; ATOMIC_BYTES];
        self.copy_out(offset, &mut bytes);
        let (old, new) = op.apply_bytes(bytes);
        if let Some(new) = new {
            self.copy_in(offset, &new);
        }
        old
    }

    /// Appends `len` bytes from `offset` on to `out`. Override it when that can be done without clearing `out` first:
    /// it is the hot path of READ.
    fn append_to(&self, offset: usize, len: usize, out: &mut Vec<u8>) {
        let at = out.len();
        out.resize(at + len, 0);
        self.copy_out(offset, &mut out[at..]);
    }
}

/// Owner of the pages behind file-backed regions.
pub trait PageStore {
    /// A pinned page.
    type Page: Page;

    /// Asks for page number `page` of `backing`.
    fn get(
        &mut self,
        backing: BackingId,
        page: u64,
        intent: Intent,
        ticket: Ticket,
    ) -> GetPage<Self::Page>;

    /// Told once of each READ or VERIFY, before any of its pages is asked for: which pages it is about, and that it is of the
    /// connection whose tickets have this tag. It lies in a region of which `left` more pages are behind. A store may use it
    /// to bring in what is likely to be read next.
    fn will_read(&mut self, reader: u32, pages: PageRange, left: u64) {
        let _ = (reader, pages, left);
    }

    /// May a connection that waits for one page ask for another one, of its next READs? An owner of few pages answers no when
    /// connections hold or want too many; each goes on with the one it has. Asked before each `get` but the first.
    fn may_want_more(&mut self) -> bool {
        true
    }

    /// Told how many of the pages that a connection got to read, or waits for, it has done with. Not told of them one by
    /// one, but before the connection asks for others, and when its driver calls
    /// [`Connection::settle_pages`](crate::Connection::settle_pages).
    fn read_done(&mut self, pages: usize) {
        let _ = pages;
    }

    /// What time it is, for who wants to know how long operations take.
    fn now(&self) -> Time {
        Time(0)
    }

    /// Told of each message of a peer when what it asks for has been done: placed, or durable, or in the hands of the transport.
    /// `since` is the [`now`](Self::now) of when its turn came, hence when its first segment was looked at.
    fn served(&mut self, what: Served, bytes: u64, since: Time) {
        let _ = (what, bytes, since);
    }

    /// Takes back a page that was written; `ticket` is that of its `get`.
    fn put(&mut self, page: Self::Page, ticket: Ticket) -> PutPage {
        let _ = ticket;
        drop(page);
        PutPage::Done
    }

    /// Asks that everything written so far to `ranges` becomes durable.
    fn sync(&mut self, ranges: &[PageRange], ticket: Ticket);
}

/// A store without pages, for endpoints that only have memory regions (clients).
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPages;

/// The page that [`NoPages`] never hands out.
#[derive(Clone, Copy, Debug)]
pub enum NoPage {}

impl Page for NoPage {
    fn copy_out(&self, _: usize, _: &mut [u8]) {
        match *self {}
    }

    fn copy_in(&mut self, _: usize, _: &[u8]) {
        match *self {}
    }
}

impl PageStore for NoPages {
    type Page = NoPage;

    fn get(&mut self, _: BackingId, _: u64, _: Intent, _: Ticket) -> GetPage<NoPage> {
        GetPage::Failed(PageError::Gone)
    }

    /// Never reached: nothing can be written to pages that do not exist.
    fn sync(&mut self, _: &[PageRange], _: Ticket) {}
}
