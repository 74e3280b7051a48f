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

use std::collections::VecDeque;
use std::sync::Arc;

use crate::addr::{BackingId, Msn, Stag, Ticket};
use crate::connection::Fault;
use crate::connection::segment::cut;
use crate::connection::ticket::{TicketKind, Tickets, distance};
use crate::mem::access::{AccessError, AccessKind, Accessor, Request, check};
use crate::mem::cache::RegionCache;
use crate::mem::region::{Backing, Region};
use crate::page::{GetPage, Intent, PAGE_BYTES, Page, PageError, PageStore};
use crate::planted::Bug;
use crate::wire::atomic::AtomicResponse;
use crate::wire::ddp::{TAGGED_BYTES, Tagged, Untagged};
use crate::wire::marker::Framer;
use crate::wire::profile::{VERIFY_BYTES_MAX, VERIFY_REQUEST_BYTES, VerifyRequest, VerifyResponse};
use crate::wire::rdmap::{Opcode, READ_REQUEST_BYTES, ReadRequest};
use crate::wire::terminate::TerminateCode;

#[derive(Debug)]
enum Slot<P> {
    Pending,
    Ready(P),
    Failed(PageError),
}

/// Bytes that go into a digest at once.
const DIGEST_BYTES: u32 = 64 << 10;

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
    /// Of the next request.
    msn: Msn,
    /// Of the next answer in queue 3.
    answer_msn: Msn,
    /// FLUSHes that are not durable.
    flushing: usize,
    /// Bytes on their way into a digest.
    scratch: Vec<u8>,
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
            msn: Msn::FIRST,
            answer_msn: Msn::FIRST,
            flushing: 0,
            scratch: Vec::new(),
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

    /// Gives all pages back and forgets all requests.
    pub(super) fn reset(&mut self) {
        self.entries.clear();
        self.slots.clear();
        self.asking = 0;
        self.flushing = 0;
    }

    /// Takes a Read Request.
    pub(super) fn accept(
        &mut self,
        who: Accessor,
        regions: &mut RegionCache,
        ird: u16,
        segment: &Untagged<'_>,
    ) -> Result<(), TerminateCode> {
        self.admit(ird, segment, READ_REQUEST_BYTES)?;
        let Some(request) = ReadRequest::parse(segment.payload) else {
            return Err(TerminateCode::OperationUnspecified);
        };
        self.push_read(who, regions, segment.msn, request, None)
    }

    /// Takes a Verify Request of the private profile.
    pub(super) fn accept_verify(
        &mut self,
        who: Accessor,
        regions: &mut RegionCache,
        ird: u16,
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
        self.push_read(who, regions, segment.msn, read, Some(digest))
    }

    fn push_read(
        &mut self,
        who: Accessor,
        regions: &mut RegionCache,
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
            let offset = check(region, who, what).map_err(refused)?.offset;
            Some((Arc::clone(region), offset))
        };
        self.msn = self.msn.next();
        self.entries.push_back(Entry::Read(Read {
            msn,
            request,
            digest,
            source,
            asked: 0,
            sent: 0,
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
        let slack = usize::from(self.planted == Some(Bug::IrdByOne));
        if self.entries.len() >= usize::from(ird) + slack {
            return Err(TerminateCode::OperationCatastrophicStream);
        }
        Ok(())
    }

    /// Queues the answer to an atomic operation that was admitted and executed; `held` until `release`.
    pub(super) fn push_atomic(&mut self, request: u32, original: u64, held: bool) {
        self.msn = self.msn.next();
        let body = Body::Atomic(AtomicResponse { request, original });
        let hold = if held { Hold::Inbound } else { Hold::Nothing };
        if self.planted == Some(Bug::AnswersJumpQueue) {
            return self
                .entries
                .push_front(Entry::Answer(Answer { body, hold }));
        }
        self.entries.push_back(Entry::Answer(Answer { body, hold }));
    }

    /// Queues the answer to a FLUSH that was admitted; it waits for `ticket`, if there is one.
    pub(super) fn push_flush(&mut self, request: u32, ticket: Option<Ticket>) {
        self.msn = self.msn.next();
        self.flushing += usize::from(ticket.is_some());
        let body = Body::Flush(request);
        let hold = ticket.map_or(Hold::Nothing, Hold::Flush);
        self.entries.push_back(Entry::Answer(Answer { body, hold }));
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
        while let Some(entry) = self.entries.get_mut(self.asking) {
            let Entry::Read(read) = entry else {
                self.asking += 1;
                continue;
            };
            let Some((backing, offset)) = read.unasked() else {
                self.asking += 1;
                continue;
            };
            if self.slots.len() >= self.window {
                return;
            }
            let offset = offset + u64::from(read.asked);
            let ticket = tickets.next(TicketKind::Read);
            if self.slots.is_empty() {
                self.front = ticket;
            }
            self.slots.push_back(
                match pages.get(backing, offset / PAGE_BYTES as u64, Intent::Read, ticket) {
                    GetPage::Ready(page) => Slot::Ready(page),
                    GetPage::Pending => Slot::Pending,
                    GetPage::Failed(error) => Slot::Failed(error),
                },
            );
            let in_page = PAGE_BYTES as u32 - (offset % PAGE_BYTES as u64) as u32;
            read.asked += in_page.min(read.request.size - read.asked);
        }
    }

    /// A page came.
    pub(super) fn handle_page(&mut self, ticket: Ticket, page: Result<P, PageError>) {
        if let Some(slot @ Slot::Pending) = self.slots.get_mut(distance(self.front, ticket)) {
            *slot = match page {
                Ok(page) => Slot::Ready(page),
                Err(error) => Slot::Failed(error),
            };
        }
    }

    /// Can a segment be built?
    pub(super) fn is_ready(&self) -> bool {
        match self.entries.front() {
            None => false,
            Some(Entry::Answer(answer)) => answer.hold == Hold::Nothing,
            Some(Entry::Read(read)) if read.is_paged() => {
                matches!(self.slots.front(), Some(Slot::Ready(_) | Slot::Failed(_)))
            }
            Some(Entry::Read(_)) => true,
        }
    }

    /// Appends the first answer, or one segment of it; only when `is_ready`.
    pub(super) fn emit(
        &mut self,
        who: Accessor,
        ulpdu_max: u16,
        framer: &mut Framer,
        out: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        let read = match self.entries.front() {
            Some(Entry::Read(read)) => read,
            Some(Entry::Answer(_)) => {
                self.emit_answer(framer, out);
                return Ok(());
            }
            None => return Ok(()),
        };
        if let Some(digest) = read.digest {
            return self.emit_digest(who, digest, framer, out);
        }
        let sink = read.request.sink;
        let to = sink.to.wrapping_add(u64::from(read.sent));
        let remaining = read.request.size - read.sent;
        let mut len = cut(remaining, u64::from(read.sent), ulpdu_max, TAGGED_BYTES);
        let mut header = Tagged {
            opcode: Opcode::ReadResponse,
            last: len == remaining,
            stag: sink.stag,
            to,
            payload: &[],
        };
        let mut done_slots = 0;
        match &read.source {
            None => {
                let at = framer.open(out);
                header.emit_header(out);
                framer.seal(out, at);
            }
            Some((region, base)) => {
                let offset = base + u64::from(read.sent);
                if matches!(region.spec.backing, Backing::Pages(_)) {
                    len = self.ready_bytes(offset, len)?;
                    header.last = len == remaining;
                }
                let refused = |error: AccessError| Fault::Peer(error.terminate(AccessKind::Read));
                let access = check(region, who, read.access(len)).map_err(refused)?;
                let at = framer.open(out);
                header.emit_header(out);
                match &region.spec.backing {
                    Backing::Memory(buffer) => buffer.append_to(offset as usize, len as usize, out),
                    Backing::Pages(_) => {
                        done_slots = self.append_pages(offset, len, header.last, out)
                    }
                }
                drop(access);
                framer.seal(out, at);
            }
        }
        self.drop_slots(done_slots);
        if header.last {
            self.pop();
        } else if let Some(Entry::Read(read)) = self.entries.front_mut() {
            read.sent += len;
        }
        Ok(())
    }

    /// Goes on with the first entry, a VERIFY, as far as its pages are there; appends its answer at the end.
    fn emit_digest(
        &mut self,
        who: Accessor,
        digest: Digest,
        framer: &mut Framer,
        out: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        let Some(Entry::Read(read)) = self.entries.front() else {
            return Ok(());
        };
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        let mut len = read.request.size - read.sent;
        let mut done_slots = 0;
        if let Some((region, base)) = &read.source {
            let offset = base + u64::from(read.sent);
            len = len.min(DIGEST_BYTES);
            if read.is_paged() {
                len = self.ready_bytes(offset, len)?;
            }
            let last = read.sent + len == read.request.size;
            let refused = |error: AccessError| Fault::Peer(error.terminate(AccessKind::Read));
            let access = check(region, who, read.access(len)).map_err(refused)?;
            match &region.spec.backing {
                Backing::Memory(buffer) => {
                    buffer.append_to(offset as usize, len as usize, &mut scratch);
                }
                Backing::Pages(_) => {
                    done_slots = self.append_pages(offset, len, last, &mut scratch);
                }
            }
            drop(access);
        }
        let crc = crc32c::crc32c_append(digest.crc, &scratch);
        self.scratch = scratch;
        self.drop_slots(done_slots);
        let Some(Entry::Read(read)) = self.entries.front_mut() else {
            return Ok(());
        };
        read.sent += len;
        if read.sent < read.request.size {
            read.digest = Some(Digest { crc, ..digest });
            return Ok(());
        }
        self.pop();
        let request = digest.request;
        let response = VerifyResponse { request, crc };
        self.emit_queue_3(Opcode::VerifyResponse, framer, out, |out| {
            response.emit(out)
        });
        Ok(())
    }

    fn drop_slots(&mut self, count: usize) {
        self.slots.drain(..count);
        self.front = self.front.advanced(count);
    }

    fn pop(&mut self) -> Option<Entry> {
        self.asking = self.asking.saturating_sub(1);
        self.entries.pop_front()
    }

    fn emit_answer(&mut self, framer: &mut Framer, out: &mut Vec<u8>) {
        let Some(Entry::Answer(answer)) = self.pop() else {
            return;
        };
        let opcode = match answer.body {
            Body::Atomic(_) => Opcode::AtomicResponse,
            Body::Flush(_) => Opcode::FlushResponse,
        };
        self.emit_queue_3(opcode, framer, out, |out| match answer.body {
            Body::Atomic(response) => response.emit(out),
            Body::Flush(request) => out.extend_from_slice(&request.to_be_bytes()),
        });
    }

    fn emit_queue_3(
        &mut self,
        opcode: Opcode,
        framer: &mut Framer,
        out: &mut Vec<u8>,
        body: impl FnOnce(&mut Vec<u8>),
    ) {
        let at = framer.open(out);
        header(opcode, self.answer_msn).emit_header(out);
        body(out);
        framer.seal(out, at);
        self.answer_msn = self.answer_msn.next();
    }

    /// How many of the `wanted` bytes at `offset` lie in the ready prefix of the window.
    fn ready_bytes(&self, offset: u64, wanted: u32) -> Result<u32, Fault> {
        let mut ready = 0;
        for slot in &self.slots {
            match slot {
                Slot::Ready(_) if ready < wanted => {
                    let in_page = PAGE_BYTES as u32
                        - ((offset + u64::from(ready)) % PAGE_BYTES as u64) as u32;
                    ready = wanted.min(ready + in_page);
                }
                Slot::Failed(error) if ready == 0 => return Err(Fault::Storage(*error)),
                _ => break,
            }
        }
        assert!(ready > 0, "called only when the first page is there");
        Ok(ready)
    }

    /// Copies `len` bytes at `offset` out of the window; returns how many slots are done with.
    fn append_pages(&self, offset: u64, len: u32, last: bool, out: &mut Vec<u8>) -> usize {
        let (mut copied, mut done) = (0, 0);
        for slot in &self.slots {
            let Slot::Ready(page) = slot else { break };
            if copied == len as usize {
                break;
            }
            let in_page = ((offset + copied as u64) % PAGE_BYTES as u64) as usize;
            let count = (PAGE_BYTES - in_page).min(len as usize - copied);
            page.append_to(in_page, count, out);
            copied += count;
            if in_page + count == PAGE_BYTES || (last && copied == len as usize) {
                done += 1;
            }
        }
        assert_eq!(copied, len as usize, "only ready bytes are sent");
        done
    }

    /// The Read Request being answered, advanced to where it stopped, as a Terminate encloses it (RFC 5040 §4.8).
    pub(super) fn offending_ulpdu(&self) -> Option<Vec<u8>> {
        let Some(Entry::Read(read)) = self.entries.front() else {
            return None;
        };
        let mut ulpdu = Vec::new();
        if read.digest.is_some() {
            header(Opcode::VerifyRequest, read.msn).emit_header(&mut ulpdu);
            return Some(ulpdu);
        }
        header(Opcode::ReadRequest, read.msn).emit_header(&mut ulpdu);
        let mut request = read.request;
        request.sink.to = request.sink.to.wrapping_add(u64::from(read.sent));
        request.source.to = request.source.to.wrapping_add(u64::from(read.sent));
        request.size -= read.sent;
        request.emit(&mut ulpdu);
        Some(ulpdu)
    }
}

/// Header of a message of one segment.
fn header(opcode: Opcode, msn: Msn) -> Untagged<'static> {
    Untagged {
        opcode,
        last: true,
        invalidate: Stag(0),
        msn,
        offset: 0,
        payload: &[],
    }
}
