//! Requests of the peer that are to be answered: the inbound read queue (IRQ).
//!
//! Each accepted Read Request becomes an entry; the pages of all entries are asked for in order as far as a window
//! of pinned pages allows, so cold pages of several READs are fetched side by side. Responses are built strictly in
//! order from the ready prefix of the window, straight into the send buffer. Atomic operations have been executed when
//! they get here; only their answers wait for their turn.
//!
//! # Invariants
//! - Q1. `slots[i]` belongs to ticket number `front + i`; slots are in the order of the bytes that will be sent.
//! - Q2. At most `window` slots; at most IRD entries.

mod emit;

use std::collections::VecDeque;
use std::sync::Arc;

use crate::addr::{BackingId, Msn, Ticket, Time};
use crate::connection::ticket::{TicketKind, Tickets, distance};
use crate::mem::access::{Access, AccessError, AccessKind, Accessor, Request, check};
use crate::mem::cache::RegionCache;
use crate::mem::region::{Backing, Region};
use crate::page::{GetPage, Intent, PAGE_BYTES, Page, PageError, PageRange, PageStore};
use crate::planted::Bug;
use crate::wire::atomic::AtomicResponse;
use crate::wire::ddp::Untagged;
use crate::wire::profile::{VERIFY_BYTES_MAX, VERIFY_REQUEST_BYTES, VerifyRequest};
use crate::wire::rdmap::{READ_REQUEST_BYTES, ReadRequest};
use crate::wire::terminate::TerminateCode;

#[derive(Debug)]
enum State<P> {
    Pending,
    Ready(P),
    Failed(PageError),
}

impl<P> From<GetPage<P>> for State<P> {
    fn from(got: GetPage<P>) -> Self {
        match got {
            GetPage::Ready(page) => Self::Ready(page),
            GetPage::Pending => Self::Pending,
            GetPage::Failed(error) => Self::Failed(error),
        }
    }
}

/// A page of the window.
#[derive(Debug)]
struct Slot<P> {
    backing: BackingId,
    page: u64,
    state: State<P>,
}

/// A request that is not answered completely.
#[derive(Debug)]
enum Entry {
    Read(Read),
    Answer(Answer),
}

/// An answer of one message in queue 3.
#[derive(Debug)]
struct Answer {
    body: Body,
    hold: Hold,
    /// When the turn of the request came.
    since: Time,
}

#[derive(Clone, Copy, Debug)]
enum Body {
    Atomic(AtomicResponse),
    /// The number in the request.
    Flush(u32),
}

/// What an answer waits for, beside its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hold {
    Nothing,
    /// The durability that has stopped the inbound side.
    Inbound,
    /// The durability that a FLUSH has asked for.
    Flush(Ticket),
}

/// The CRC-32C of the bytes so far, and the number in the request.
#[derive(Clone, Copy, Debug)]
struct Digest {
    request: u32,
    crc: u32,
}

#[derive(Debug)]
struct Read {
    msn: Msn,
    request: ReadRequest,
    /// VERIFY: computed in the place of sending the bytes.
    digest: Option<Digest>,
    /// Source region and offset of the first byte in its backing; nothing for a READ of zero bytes.
    source: Option<(Arc<Region>, u64)>,
    /// Bytes whose pages were asked for.
    asked: u32,
    /// Bytes sent.
    sent: u32,
    /// When its turn came.
    since: Time,
}

impl Read {
    /// Source in pages, and how much of it has not been asked for.
    fn unasked(&self) -> Option<(BackingId, u64)> {
        let (region, offset) = self.source.as_ref()?;
        match region.spec.backing {
            Backing::Pages(backing) if self.asked < self.request.size => Some((backing, *offset)),
            _ => None,
        }
    }

    fn is_paged(&self) -> bool {
        let source = self.source.as_ref();
        source.is_some_and(|(region, _)| matches!(region.spec.backing, Backing::Pages(_)))
    }

    /// Request for the part of the source that is not sent yet, `len` bytes of it.
    fn access(&self, len: u32) -> Request {
        Request {
            kind: AccessKind::Read,
            stag: self.request.source.stag,
            to: self.request.source.to.wrapping_add(u64::from(self.sent)),
            len,
        }
    }
}

/// The peer's requests that are not answered completely.
#[derive(Debug)]
pub(super) struct Responses<P> {
    entries: VecDeque<Entry>,
    slots: VecDeque<Slot<P>>,
    /// Ticket of `slots[0]`.
    front: Ticket,
    /// Entry whose pages are asked for next.
    asking: usize,
    window: usize,
    /// Slots that are gone, since the store was last told.
    gone: usize,
    /// Of the next request.
    msn: Msn,
    /// Of the next answer in queue 3.
    answer_msn: Msn,
    /// FLUSHes that are not durable.
    flushing: usize,
    /// Bytes on their way into a digest.
    scratch: Vec<u8>,
    /// Bytes that went into digests since this was last taken.
    digested: usize,
    /// READs and VERIFYs wait.
    held: bool,
    /// How often bytes were taken for them.
    taken: u64,
    planted: Option<Bug>,
}

impl<P: Page> Responses<P> {
    pub(super) fn new(window: usize, planted: Option<Bug>) -> Self {
        Self {
            entries: VecDeque::new(),
            slots: VecDeque::new(),
            front: Ticket(0),
            asking: 0,
            window: window.max(1),
            gone: 0,
            msn: Msn::FIRST,
            answer_msn: Msn::FIRST,
            flushing: 0,
            scratch: Vec::new(),
            digested: 0,
            held: false,
            taken: 0,
            planted,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// A response was begun and not ended.
    pub(super) fn is_mid_message(&self) -> bool {
        matches!(self.entries.front(), Some(Entry::Read(read)) if read.sent > 0 && read.digest.is_none())
    }

    pub(super) fn hold(&mut self, held: bool) {
        self.held = held;
    }

    /// Is the first request one that waits because it is held?
    pub(super) fn holds(&self) -> bool {
        self.held && matches!(self.entries.front(), Some(Entry::Read(_)))
    }

    /// How often bytes were taken for READs and VERIFYs.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    /// Gives all pages back and forgets all requests.
    pub(super) fn reset(&mut self) {
        self.entries.clear();
        self.drop_slots(self.slots.len());
        self.asking = 0;
        self.flushing = 0;
    }

    /// Takes a Read Request.
    pub(super) fn accept<S: PageStore<Page = P>>(
        &mut self,
        who: Accessor,
        memory: (&mut RegionCache, &mut S),
        (ird, reader): (u16, u32),
        segment: &Untagged<'_>,
    ) -> Result<(), TerminateCode> {
        self.admit(ird, segment, READ_REQUEST_BYTES)?;
        let Some(request) = ReadRequest::parse(segment.payload) else {
            return Err(TerminateCode::OperationUnspecified);
        };
        self.push_read((who, reader), memory, segment.msn, request, None)
    }

    /// Takes a Verify Request of the private profile.
    pub(super) fn accept_verify<S: PageStore<Page = P>>(
        &mut self,
        who: Accessor,
        memory: (&mut RegionCache, &mut S),
        (ird, reader): (u16, u32),
        segment: &Untagged<'_>,
    ) -> Result<(), TerminateCode> {
        self.admit(ird, segment, VERIFY_REQUEST_BYTES)?;
        let verify = VerifyRequest::parse(segment.payload)
            .filter(|verify| verify.len <= VERIFY_BYTES_MAX)
            .ok_or(TerminateCode::OperationUnspecified)?;
        let VerifyRequest {
            request,
            source,
            len: size,
        } = verify;
        // It has no sink; what stands in its place is never looked at.
        let read = ReadRequest {
            sink: source,
            size,
            source,
        };
        let digest = Digest { request, crc: 0 };
        self.push_read((who, reader), memory, segment.msn, read, Some(digest))
    }

    fn push_read<S: PageStore<Page = P>>(
        &mut self,
        (who, reader): (Accessor, u32),
        (regions, pages): (&mut RegionCache, &mut S),
        msn: Msn,
        request: ReadRequest,
        digest: Option<Digest>,
    ) -> Result<(), TerminateCode> {
        // A READ of zero bytes names no source (RFC 5040 §5.2.1).
        let source = if request.size == 0 {
            None
        } else {
            let refused = |error: AccessError| error.terminate(AccessKind::Read);
            let stag = request.source.stag;
            let region = regions
                .find(stag)
                .ok_or(AccessError::InvalidStag)
                .map_err(refused)?;
            let what = Request {
                kind: AccessKind::Read,
                stag,
                to: request.source.to,
                len: request.size,
            };
            let access = check(region, who, what).map_err(refused)?;
            if let Backing::Pages(backing) = region.spec.backing {
                announce(pages, reader, backing, &access, request.size);
            }
            Some((Arc::clone(region), access.offset))
        };
        self.msn = self.msn.next();
        self.entries.push_back(Entry::Read(Read {
            msn,
            request,
            digest,
            source,
            asked: 0,
            sent: 0,
            since: pages.now(),
        }));
        Ok(())
    }

    /// May a request with a body of `bytes` bytes come in now?
    pub(super) fn admit(
        &self,
        ird: u16,
        segment: &Untagged<'_>,
        bytes: usize,
    ) -> Result<(), TerminateCode> {
        if segment.msn != self.msn {
            return Err(TerminateCode::UntaggedMsnRange);
        }
        if segment.offset != 0 {
            return Err(TerminateCode::UntaggedOffset);
        }
        // There is no code for a request of a wrong length but this one, if it is too long.
        if segment.payload.len() > bytes || !segment.last {
            return Err(TerminateCode::UntaggedTooLong);
        }
        if segment.payload.len() < bytes {
            return Err(TerminateCode::OperationUnspecified);
        }
        let (held, ird) = (self.entries.len(), usize::from(ird));
        if held >= ird && !(held == ird && self.planted == Some(Bug::IrdByOne)) {
            return Err(TerminateCode::OperationCatastrophicStream);
        }
        Ok(())
    }

    /// Queues the answer to an atomic operation that was admitted at `since` and has been executed; `held` until `release`.
    pub(super) fn push_atomic(&mut self, response: AtomicResponse, held: bool, since: Time) {
        self.msn = self.msn.next();
        let body = Body::Atomic(response);
        let hold = if held { Hold::Inbound } else { Hold::Nothing };
        let answer = Entry::Answer(Answer { body, hold, since });
        if self.planted == Some(Bug::AnswersJumpQueue) {
            return self.entries.push_front(answer);
        }
        self.entries.push_back(answer);
    }

    /// Queues the answer to a FLUSH that was admitted at `since`; it waits for `ticket`, if there is one.
    pub(super) fn push_flush(&mut self, request: u32, ticket: Option<Ticket>, since: Time) {
        self.msn = self.msn.next();
        self.flushing += usize::from(ticket.is_some());
        let body = Body::Flush(request);
        let hold = ticket.map_or(Hold::Nothing, Hold::Flush);
        self.entries
            .push_back(Entry::Answer(Answer { body, hold, since }));
    }

    /// Bytes that went into digests since the last call.
    pub(super) fn take_digested(&mut self) -> usize {
        std::mem::take(&mut self.digested)
    }

    /// Does a FLUSH wait for durability?
    pub(super) fn is_flushing(&self) -> bool {
        self.flushing > 0
    }

    /// A FLUSH has what it waited for. False if it is gone.
    pub(super) fn flushed(&mut self, ticket: Ticket) -> bool {
        let waiting = self.entries.iter_mut().find_map(|entry| match entry {
            Entry::Answer(answer) if answer.hold == Hold::Flush(ticket) => Some(answer),
            _ => None,
        });
        let Some(answer) = waiting else { return false };
        answer.hold = Hold::Nothing;
        self.flushing -= 1;
        true
    }

    /// What was held is durable. Nothing is queued behind it while it is held.
    pub(super) fn release(&mut self) {
        if let Some(Entry::Answer(answer)) = self.entries.back_mut()
            && answer.hold == Hold::Inbound
        {
            answer.hold = Hold::Nothing;
        }
    }

    /// Asks for pages, in order, as far as the window allows.
    pub(super) fn fill_window<S: PageStore<Page = P>>(
        &mut self,
        pages: &mut S,
        tickets: &mut Tickets,
    ) {
        self.tell_done(pages);
        if self.held {
            return;
        }
        while let Some(entry) = self.entries.get_mut(self.asking) {
            let Entry::Read(read) = entry else {
                self.asking += 1;
                continue;
            };
            let Some((backing, offset)) = read.unasked() else {
                self.asking += 1;
                continue;
            };
            if self.slots.len() >= self.window || !self.slots.is_empty() && !pages.may_want_more() {
                return;
            }
            let offset = offset + u64::from(read.asked);
            let ticket = tickets.next(TicketKind::Read);
            if self.slots.is_empty() {
                self.front = ticket;
            }
            let page = offset / PAGE_BYTES as u64;
            let state = pages.get(backing, page, Intent::Read, ticket).into();
            self.slots.push_back(Slot {
                backing,
                page,
                state,
            });
            let in_page = PAGE_BYTES as u32 - (offset % PAGE_BYTES as u64) as u32;
            read.asked += in_page.min(read.request.size - read.asked);
        }
    }

    /// Tells the store of the pages that are done with.
    pub(super) fn tell_done<S: PageStore<Page = P>>(&mut self, pages: &mut S) {
        let gone = std::mem::take(&mut self.gone);
        if gone > 0 {
            pages.read_done(gone);
        }
    }

    fn drop_slots(&mut self, count: usize) {
        self.slots.drain(..count);
        self.front = self.front.advanced(count);
        self.gone += count;
    }

    /// A page came.
    pub(super) fn handle_page(&mut self, ticket: Ticket, page: Result<P, PageError>) {
        let slot = self.slots.get_mut(distance(self.front, ticket));
        if let Some(slot) = slot
            && matches!(slot.state, State::Pending)
        {
            slot.state = match page {
                Ok(page) => State::Ready(page),
                Err(error) => State::Failed(error),
            };
        }
    }

    /// Gives the pages of these backings back and asks for them anew; whether there were any.
    pub(super) fn renew<S: PageStore<Page = P>>(
        &mut self,
        pages: &mut S,
        of: impl Fn(BackingId) -> bool,
    ) -> bool {
        let mut any = false;
        for (n, slot) in self.slots.iter_mut().enumerate() {
            let backing = slot.backing;
            if of(backing) && matches!(slot.state, State::Ready(_)) {
                any = true;
                // Given back before it is asked for.
                slot.state = State::Pending;
                pages.read_done(1);
                let ticket = self.front.advanced(n);
                slot.state = pages.get(backing, slot.page, Intent::Read, ticket).into();
            }
        }
        any
    }

    /// Can a segment be built?
    pub(super) fn is_ready(&self) -> bool {
        match self.entries.front() {
            None => false,
            Some(Entry::Answer(answer)) => answer.hold == Hold::Nothing,
            Some(Entry::Read(_)) if self.held => false,
            Some(Entry::Read(read)) if read.is_paged() => {
                (self.slots.front()).is_some_and(|slot| !matches!(slot.state, State::Pending))
            }
            Some(Entry::Read(_)) => true,
        }
    }
}

/// Tells the store of a READ or VERIFY of `size` bytes.
fn announce<S: PageStore>(
    pages: &mut S,
    reader: u32,
    backing: BackingId,
    access: &Access<'_>,
    size: u32,
) {
    const PAGE: u64 = PAGE_BYTES as u64;
    let first = access.offset / PAGE;
    let end = (access.offset + u64::from(size)).div_ceil(PAGE);
    let range = PageRange {
        backing,
        first,
        count: end - first,
    };
    let left = access.reach_end().div_ceil(PAGE).saturating_sub(end);
    pages.will_read(reader, range, left);
}
