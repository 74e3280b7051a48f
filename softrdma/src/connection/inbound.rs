//! What arrives: FPDU by FPDU, strictly in order.
//!
//! The inbound side stops ("parks") when the next thing can not happen yet: a page of a WRITE or of an atomic operation
//! is not in memory, or what went through a sync STag is not durable. Bytes behind it are kept, unread. READs do not
//! park: they enter the inbound read queue, and their pages are awaited there.

use crate::addr::{BackingId, Msn, Ticket};
use crate::connection::phase::{Local, Phase, Remote};
use crate::connection::place::Placed;
use crate::connection::ticket::TicketKind;
use crate::connection::{Connection, Fault};
use crate::event::{CloseReason, Event, SetupError};
use crate::mem::access::{AccessError, AccessKind, Request, check};
use crate::page::{PageError, PageStore, Served};
use crate::planted::Bug;
use crate::stream::Step;
use crate::wire::ddp::{Segment, TAGGED_BYTES, Tagged, Untagged};
use crate::wire::fpdu::{self, LENGTH_BYTES, NextFpdu};
use crate::wire::rdmap::Opcode;
use crate::wire::terminate::{Terminate, TerminateCode};

/// Why the inbound side is parked, if it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Inbound {
    Open,
    /// The first kept FPDU, `total` bytes with `payload` of them at the usual place, is a WRITE in placement.
    Placing {
        total: usize,
        payload: usize,
        last: bool,
    },
    /// The first kept FPDU, `total` bytes, is an atomic operation that waits for its page.
    Executing {
        total: usize,
    },
    /// The first kept FPDU is an atomic operation that waits for an earlier FLUSH.
    AwaitFlush,
    /// Nothing happens before this is durable.
    AwaitDurable(Ticket),
}

impl<S: PageStore> Connection<S> {
    /// Looks at the start of what is not consumed yet.
    pub(super) fn step(&mut self, pages: &mut S, bytes: &[u8]) -> Step {
        match &self.phase {
            Phase::AwaitRequest { .. } => self.take_request(bytes),
            Phase::AwaitReply { .. } => self.take_reply(bytes),
            Phase::AwaitAnswer(_) => self.setup_failed(SetupError::TrailingBytes),
            Phase::AwaitFirst { .. } | Phase::Rts { .. } => self.take_fpdu(pages, bytes),
            Phase::Finishing { .. } | Phase::Closed => Step::Discard,
        }
    }

    fn take_fpdu(&mut self, pages: &mut S, bytes: &[u8]) -> Step {
        let (ulpdu, total) = match fpdu::next(bytes, self.framer.crc) {
            Ok(NextFpdu::Need(LENGTH_BYTES)) if self.is_planted(Bug::LoneByteDropped) => {
                return Step::Took(bytes.len());
            }
            Ok(NextFpdu::Need(count)) => return Step::Need(count),
            Ok(NextFpdu::Fpdu(ulpdu, total)) => (ulpdu, total),
            Err(_) => match fpdu::next(bytes, false) {
                Ok(NextFpdu::Fpdu(ulpdu, total)) if self.is_planted(Bug::CrcUnchecked) => {
                    (ulpdu, total)
                }
                _ => return self.fail(Fault::Peer(TerminateCode::MpaCrc), None),
            },
        };
        let is_first = self.first_fpdu_arrived();
        let segment = match Segment::parse_as(ulpdu, self.profile) {
            Ok(segment) => segment,
            Err(error) => return self.fail(Fault::Peer(error.terminate()), Some(ulpdu)),
        };
        if is_first && self.is_rtr_send(&segment) {
            self.receives.skip();
            return Step::Took(total);
        }
        let result = match segment {
            Segment::Tagged(Tagged {
                opcode: Opcode::Write,
                ..
            }) if self.placer.is_dirty_full() => {
                return self.barrier(pages, 0);
            }
            Segment::Tagged(segment) if segment.opcode == Opcode::Write => {
                return self.take_write(pages, &segment, ulpdu, total);
            }
            // Nothing but WRITEs gets past a WRITE that is not durable yet.
            _ if !self.placer.dirty().is_empty() => return self.barrier(pages, 0),
            Segment::Tagged(segment) => self
                .requests
                .handle_response(&segment, &mut self.completions),
            Segment::Untagged(segment) if segment.opcode == Opcode::AtomicRequest => {
                return self.take_atomic(pages, &segment, ulpdu, total);
            }
            Segment::Untagged(segment) if segment.opcode == Opcode::FlushRequest => {
                self.take_flush(pages, &segment)
            }
            Segment::Untagged(segment) => {
                let result = self.take_untagged(pages, &segment);
                if self.receives.take_low() {
                    self.events.push_back(Event::SharedReceivesLow);
                }
                result
            }
        };
        match result {
            Ok(()) if matches!(self.phase, Phase::Closed) => Step::Discard,
            Ok(()) => Step::Took(total),
            Err(code) => self.fail(Fault::Peer(code), Some(ulpdu)),
        }
    }

    pub(super) fn is_planted(&self, bug: Bug) -> bool {
        self.config.planted == Some(bug)
    }

    /// True for the first FPDU of the connection.
    fn first_fpdu_arrived(&mut self) -> bool {
        let Phase::AwaitFirst {
            established, local, ..
        } = &mut self.phase
        else {
            return false;
        };
        let (established, local) = (established.take(), *local);
        self.events.extend(established.map(Event::Established));
        self.phase = Phase::Rts {
            local,
            remote: Remote::Open,
        };
        true
    }

    /// The zero-length Send that we agreed on as the first frame; it takes message number 1 and no buffer.
    fn is_rtr_send(&self, segment: &Segment<'_>) -> bool {
        let is_empty_send = |segment: &Untagged<'_>| {
            segment.opcode == Opcode::Send
                && segment.last
                && segment.payload.is_empty()
                && (segment.msn, segment.offset) == (Msn::FIRST, 0)
        };
        self.rtr_send && matches!(segment, Segment::Untagged(segment) if is_empty_send(segment))
    }

    fn take_write(
        &mut self,
        pages: &mut S,
        segment: &Tagged<'_>,
        ulpdu: &[u8],
        total: usize,
    ) -> Step {
        if !self.mid_write {
            self.written = 0;
            self.write_began = Some(pages.now());
        }
        self.written = self.written.saturating_add(segment.payload.len() as u32);
        self.mid_write = !segment.last;
        let who = self.accessor();
        match self
            .placer
            .place(who, &mut self.regions, pages, &mut self.tickets, segment)
        {
            Ok(Placed::Done) => {
                if segment.last && !self.placer.dirty().is_empty() {
                    return self.barrier(pages, total);
                }
                self.write_done(pages);
                Step::Took(total)
            }
            Ok(Placed::Waiting) => {
                self.inbound = Inbound::Placing {
                    total,
                    payload: segment.payload.len(),
                    last: segment.last,
                };
                Step::Park(0)
            }
            Err(fault) => self.fail(fault, Some(ulpdu)),
        }
    }

    /// Stops the inbound side until everything written through sync STags is durable.
    pub(super) fn barrier(&mut self, pages: &mut S, took: usize) -> Step {
        if self.is_planted(Bug::DurabilityUnawaited) {
            self.placer.clear_dirty();
            self.responses.release();
            return Step::Took(took);
        }
        let ticket = self.tickets.next(TicketKind::Durable);
        pages.sync(self.placer.dirty(), ticket);
        self.placer.clear_dirty();
        self.inbound = Inbound::AwaitDurable(ticket);
        Step::Park(took)
    }

    fn take_untagged(
        &mut self,
        pages: &mut S,
        segment: &Untagged<'_>,
    ) -> Result<(), TerminateCode> {
        match segment.opcode {
            Opcode::ReadRequest => {
                if self.close_if_unanswerable() {
                    return Ok(());
                }
                let who = self.accessor();
                let memory = (&mut self.regions, pages);
                self.responses
                    .accept(who, memory, (self.ird, self.config.tag), segment)
            }
            Opcode::Terminate => {
                let terminate =
                    Terminate::parse(segment.payload).ok_or(TerminateCode::OperationUnspecified)?;
                let about = Terminate::about(segment.payload);
                self.close_terminated(terminate, about);
                Ok(())
            }
            Opcode::VerifyRequest => {
                if self.close_if_unanswerable() {
                    return Ok(());
                }
                let who = self.accessor();
                let memory = (&mut self.regions, pages);
                self.responses
                    .accept_verify(who, memory, (self.ird, self.config.tag), segment)
            }
            Opcode::AtomicResponse | Opcode::FlushResponse | Opcode::VerifyResponse => {
                self.requests.handle_answer(segment, &mut self.completions)
            }
            Opcode::ImmediateData | Opcode::ImmediateDataSolicited => {
                let written = std::mem::take(&mut self.written);
                self.receives
                    .handle_immediate(segment, written, &mut self.completions)?;
                pages.served(Served::Send, 0, pages.now());
                Ok(())
            }
            _ => self.take_send(pages, segment),
        }
    }

    /// Behind our FIN a request of the peer can not be answered any more: the connection ends, and true is returned.
    pub(super) fn close_if_unanswerable(&mut self) -> bool {
        let fin_sent = matches!(
            self.phase,
            Phase::Rts {
                local: Local::FinSent { .. },
                ..
            }
        );
        if fin_sent {
            self.close(CloseReason::Lost);
        }
        fin_sent
    }

    fn take_send(&mut self, pages: &mut S, segment: &Untagged<'_>) -> Result<(), TerminateCode> {
        if segment.offset == 0 {
            self.send_began = pages.now();
        }
        self.receives
            .handle_segment(segment, &mut self.completions)?;
        if segment.last {
            self.written = 0;
            let invalidated = segment.opcode.invalidates().then_some(segment.invalidate);
            if let Some(stag) = invalidated {
                self.invalidate(stag)
                    .map_err(|error| error.terminate(AccessKind::Invalidate))?;
            }
            self.receives.complete(
                segment.opcode.is_solicited(),
                invalidated,
                &mut self.completions,
            );
            let bytes = u64::from(segment.offset) + segment.payload.len() as u64;
            pages.served(Served::Send, bytes, self.send_began);
        }
        Ok(())
    }

    /// Send with Invalidate: no access through the region happens after it (I11).
    fn invalidate(&mut self, stag: crate::addr::Stag) -> Result<(), AccessError> {
        let who = self.accessor();
        let region = self.regions.find(stag).ok_or(AccessError::InvalidStag)?;
        let what = Request {
            kind: AccessKind::Invalidate,
            stag,
            to: region.spec.base,
            len: 0,
        };
        drop(check(region, who, what)?);
        region.kill();
        Ok(())
    }

    /// Answers a pending [`PageStore::get`]. Tickets of operations that no longer exist are ignored.
    pub fn handle_page(&mut self, pages: &mut S, ticket: Ticket, page: Result<S::Page, PageError>) {
        if !matches!(self.phase, Phase::Rts { .. }) {
            return;
        }
        match self.tickets.kind(ticket) {
            Some(TicketKind::Read) => self.responses.handle_page(ticket, page),
            Some(TicketKind::Write) => self.handle_write_page(pages, ticket, page),
            _ => {}
        }
    }

    fn handle_write_page(
        &mut self,
        pages: &mut S,
        ticket: Ticket,
        page: Result<S::Page, PageError>,
    ) {
        let Inbound::Placing { payload, .. } = self.inbound else {
            return self.handle_atomic_page(pages, ticket, page);
        };
        let who = self.accessor();
        let start = LENGTH_BYTES + TAGGED_BYTES;
        let kept = &self.rx.kept()[start..start + payload];
        match self.placer.handle_page(who, pages, ticket, page, kept) {
            Ok(placed) => self.write_progressed(pages, placed),
            Err(fault) => {
                let ulpdu = self.rx.kept()[LENGTH_BYTES..start + payload].to_vec();
                self.fail(fault, Some(&ulpdu));
            }
        }
    }

    /// Tells the store of pages that are done with; a driver that drops a connection calls it last.
    pub fn settle_pages(&mut self, pages: &mut S) {
        self.responses.tell_done(pages);
    }

    /// Gives back every page of a backing of these that this connection holds and asks for it anew. The owner of the pages wants
    /// to do something to them that must not wait until the peer takes its bytes. Whether there were any.
    pub fn renew_pages(&mut self, pages: &mut S, of: impl Fn(BackingId) -> bool) -> bool {
        self.responses.renew(pages, of)
    }

    /// Answers a pending [`PageStore::put`]. Tickets of operations that no longer exist are ignored.
    pub fn handle_put(&mut self, pages: &mut S, ticket: Ticket) {
        match self.inbound {
            Inbound::Placing { .. } => {
                let placed = self.placer.handle_put(ticket);
                self.write_progressed(pages, placed);
            }
            Inbound::Executing { .. } => self.handle_atomic_put(pages, ticket),
            _ => {}
        }
    }

    fn write_progressed(&mut self, pages: &mut S, placed: Placed) {
        let Inbound::Placing { total, last, .. } = self.inbound else {
            return;
        };
        if placed == Placed::Waiting {
            return;
        }
        self.rx.consume(total);
        self.inbound = Inbound::Open;
        if last && !self.placer.dirty().is_empty() {
            self.barrier(pages, 0);
        } else {
            self.write_done(pages);
            self.resume(pages);
        }
    }

    /// A WRITE, or a segment of it, is placed, and what it wrote through a sync STag durable.
    fn write_done(&mut self, pages: &mut S) {
        if !self.mid_write
            && let Some(since) = self.write_began.take()
        {
            pages.served(Served::Write, self.written.into(), since);
        }
    }

    /// Answers a [`PageStore::sync`]. Tickets of operations that no longer exist are ignored.
    pub fn handle_durable(&mut self, pages: &mut S, ticket: Ticket, result: Result<(), PageError>) {
        if self.tickets.kind(ticket) == Some(TicketKind::Flush) {
            return self.handle_flushed(pages, ticket, result);
        }
        if self.inbound != Inbound::AwaitDurable(ticket) {
            return;
        }
        match result {
            Ok(()) => {
                self.inbound = Inbound::Open;
                self.responses.release();
                self.write_done(pages);
                self.resume(pages);
            }
            Err(error) => {
                self.fail(Fault::Storage(error), None);
            }
        }
    }

    pub(super) fn resume(&mut self, pages: &mut S) {
        self.rx.unpark();
        self.feed(pages, &[]);
        self.responses.fill_window(pages, &mut self.tickets);
    }

    /// Runs received bytes through `step`.
    pub(super) fn feed(&mut self, pages: &mut S, bytes: &[u8]) -> usize {
        let mut rx = std::mem::take(&mut self.rx);
        let taken = rx.feed(bytes, self.config.inbound_buffer_max, |shown| {
            self.step(pages, shown)
        });
        // A connection that ended meanwhile keeps nothing.
        if matches!(
            self.phase,
            Phase::Rts { .. } | Phase::AwaitFirst { .. } | Phase::AwaitRequest { .. }
        ) || matches!(self.phase, Phase::AwaitReply { .. } | Phase::AwaitAnswer(_))
        {
            self.rx = rx;
        }
        self.note_end();
        taken
    }

    /// The peer's FIN takes effect when everything before it is done.
    pub(super) fn note_end(&mut self) {
        let Phase::Rts {
            local,
            remote: remote @ Remote::FinBehind,
        } = &mut self.phase
        else {
            return;
        };
        if self.rx.is_parked() {
            return;
        }
        let cut_short =
            !self.rx.kept().is_empty() || self.mid_write || self.receives.is_mid_message();
        if cut_short || self.requests.has_unanswered() {
            return self.close(CloseReason::Lost);
        }
        *remote = Remote::Finished;
        match local {
            Local::FinSent { .. } => self.close(CloseReason::Graceful),
            _ => {
                *local = Local::Draining;
                self.events.push_back(Event::PeerFinished);
            }
        }
    }
}
