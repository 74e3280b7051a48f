//! Placement of WRITE segments, and what of them a sync STag obliges to make durable.
//!
//! A segment whose pages are all in memory is copied in place. For the others the pages are asked for at once, and
//! each is filled and given back when it comes, in any order: within one segment nobody can tell (RFC 5040 §5.5).
//! No page is held while waiting for another.

use std::sync::Arc;

use crate::addr::{BackingId, Stag, TaggedOffset, Ticket};
use crate::connection::Fault;
use crate::connection::ticket::{TicketKind, Tickets};
use crate::mem::access::{AccessError, AccessKind, Accessor, Request, check};
use crate::mem::cache::RegionCache;
use crate::mem::region::{Backing, Region};
use crate::page::{GetPage, Intent, PAGE_BYTES, Page, PageError, PageRange, PageStore, PutPage};
use crate::planted::Bug;
use crate::wire::ddp::Tagged;

/// Ranges written through sync STags that one durability request names; more force an early barrier.
const SYNC_RANGES_MAX: usize = 64;

/// A part of the segment whose page is awaited, or others to be told of it.
#[derive(Debug)]
struct Wait {
    ticket: Ticket,
    /// The bytes are in the page.
    copied: bool,
    /// Offset in the payload.
    at: usize,
    len: usize,
    offset_in_page: usize,
}

/// The segment under placement.
#[derive(Debug)]
struct Segment {
    region: Arc<Region>,
    stag: Stag,
    to: TaggedOffset,
}

/// How far a segment got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placed {
    Done,
    Waiting,
}

/// Places one segment at a time.
#[derive(Debug, Default)]
pub(super) struct Placer {
    segment: Option<Segment>,
    waits: Vec<Wait>,
    dirty: Vec<PageRange>,
    planted: Option<Bug>,
}

impl Placer {
    pub(super) fn new(planted: Option<Bug>) -> Self {
        Self {
            planted,
            ..Self::default()
        }
    }

    /// Written through sync STags and not yet asked to become durable.
    pub(super) fn dirty(&self) -> &[PageRange] {
        &self.dirty
    }

    pub(super) fn clear_dirty(&mut self) {
        self.dirty.clear();
    }

    /// Must be durable before more is placed: the list is full.
    pub(super) fn is_dirty_full(&self) -> bool {
        self.dirty.len() >= SYNC_RANGES_MAX
    }

    pub(super) fn reset(&mut self) {
        *self = Self::new(self.planted);
    }

    /// Places a segment, as far as its pages are there.
    pub(super) fn place<S: PageStore>(
        &mut self,
        who: Accessor,
        regions: &mut RegionCache,
        pages: &mut S,
        tickets: &mut Tickets,
        segment: &Tagged<'_>,
    ) -> Result<Placed, Fault> {
        // Address and STag of a zero-length WRITE are not looked at (RFC 5040 §5.2).
        if segment.payload.is_empty() {
            return Ok(Placed::Done);
        }
        let (stag, to) = (segment.stag, segment.to);
        let what = request(stag, to, 0, segment.payload.len());
        let region = regions
            .find(stag)
            .ok_or(AccessError::InvalidStag)
            .map_err(refused)?;
        let access = check(region, who, what).map_err(refused)?;
        match &region.spec.backing {
            Backing::Memory(buffer) => buffer.write(access.offset as usize, segment.payload),
            Backing::Pages(backing) => {
                self.place_pages(pages, tickets, *backing, access.offset, segment.payload)?;
                if stag.is_sync() {
                    self.note_dirty(*backing, access.offset, segment.payload.len());
                }
            }
        }
        if self.waits.is_empty() {
            return Ok(Placed::Done);
        }
        drop(access);
        self.segment = Some(Segment {
            region: Arc::clone(region),
            stag,
            to,
        });
        Ok(Placed::Waiting)
    }

    fn place_pages<S: PageStore>(
        &mut self,
        pages: &mut S,
        tickets: &mut Tickets,
        backing: BackingId,
        offset: u64,
        payload: &[u8],
    ) -> Result<(), Fault> {
        let mut at = 0;
        while at < payload.len() {
            let offset = offset + at as u64;
            let offset_in_page = (offset % PAGE_BYTES as u64) as usize;
            let len = (PAGE_BYTES - offset_in_page).min(payload.len() - at);
            let intent = if len == PAGE_BYTES {
                Intent::Overwrite
            } else {
                Intent::Write
            };
            let ticket = tickets.next(TicketKind::Write);
            let mut wait = Wait {
                ticket,
                copied: false,
                at,
                len,
                offset_in_page,
            };
            match pages.get(backing, offset / PAGE_BYTES as u64, intent, ticket) {
                GetPage::Ready(mut page) => {
                    page.copy_in(offset_in_page, &payload[at..at + len]);
                    if pages.put(page, ticket) == PutPage::Pending {
                        wait.copied = true;
                        self.waits.push(wait);
                    }
                }
                GetPage::Pending => self.waits.push(wait),
                GetPage::Failed(error) => return Err(Fault::Storage(error)),
            }
            at += len;
        }
        Ok(())
    }

    pub(super) fn note_dirty(&mut self, backing: BackingId, offset: u64, len: usize) {
        let first = offset / PAGE_BYTES as u64;
        let count = (offset + len as u64).div_ceil(PAGE_BYTES as u64) - first;
        if let Some(range) = self.dirty.last_mut()
            && range.backing == backing
            && (range.first..=range.first + range.count).contains(&first)
        {
            range.count = range.count.max(first + count - range.first);
            return;
        }
        self.dirty.push(PageRange {
            backing,
            first,
            count,
        });
    }

    /// A page came. `payload` is that of the segment being placed. Access is checked anew: it may have been revoked.
    pub(super) fn handle_page<S: PageStore>(
        &mut self,
        who: Accessor,
        pages: &mut S,
        ticket: Ticket,
        page: Result<S::Page, PageError>,
        payload: &[u8],
    ) -> Result<Placed, Fault> {
        let Some(segment) = &self.segment else {
            return Ok(Placed::Done);
        };
        if let Some(found) = self.find(ticket, false) {
            let wait = self.waits.swap_remove(found);
            let what = request(segment.stag, segment.to, wait.at, wait.len);
            // First, because the pages of a region that has ended may fail for that.
            let access = check(&segment.region, who, what).map_err(refused)?;
            let mut page = page.map_err(Fault::Storage)?;
            page.copy_in(wait.offset_in_page, &payload[wait.at..wait.at + wait.len]);
            drop(access);
            if self.planted == Some(Bug::PagesHalfAwaited) {
                self.waits.clear();
            }
            if pages.put(page, ticket) == PutPage::Pending {
                let copied = true;
                self.waits.push(Wait { copied, ..wait });
            }
        }
        Ok(self.progress())
    }

    /// Everybody sees a page that was put.
    pub(super) fn handle_put(&mut self, ticket: Ticket) -> Placed {
        if let Some(found) = self.find(ticket, true) {
            self.waits.swap_remove(found);
        }
        self.progress()
    }

    fn find(&self, ticket: Ticket, copied: bool) -> Option<usize> {
        let mut waits = self.waits.iter();
        waits.position(|wait| wait.ticket == ticket && wait.copied == copied)
    }

    fn progress(&mut self) -> Placed {
        if !self.waits.is_empty() {
            return Placed::Waiting;
        }
        self.segment = None;
        Placed::Done
    }
}

/// The part of a segment at `to` that begins `at` bytes into its payload. A payload is shorter than 64 KiB. The whole
/// segment was checked not to wrap before any part of it is named; until then `at` is 0.
fn request(stag: Stag, to: TaggedOffset, at: usize, len: usize) -> Request {
    Request {
        kind: AccessKind::Write,
        stag,
        to: to.wrapping_add(at as u64),
        len: len as u32,
    }
}

fn refused(error: AccessError) -> Fault {
    Fault::Peer(error.terminate(AccessKind::Write))
}
