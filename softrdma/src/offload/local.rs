//! The local queue pair: a connection of the member with itself.
//!
//! Both ends are connections like any other, joined in memory, so that what the local queue does to regions passes the
//! same checks, waits for the same pages, and keeps the same order as what arrives from outside.

use std::collections::VecDeque;
use std::sync::Arc;

use super::command::{Command, FLUSH_REGION};
use crate::addr::{ProtectionDomain, RemoteAddr, StreamId, Ticket, Time, WrId};
use crate::config::Config;
use crate::connection::{Connection, PrivateDataTooLong};
use crate::cq::{Completion, Status};
use crate::event::{CloseReason, Event};
use crate::mem::{Buffer, RegionTable};
use crate::page::{NoPages, PageError, PageStore};
use crate::wire::profile::{Placement, Selectivity};
use crate::wqe::{LocalSlice, Operation, Source, WorkRequest};

/// Tag of its tickets.
pub(super) const LOCAL_TAG: u32 = u32::MAX;
/// Bytes that a COPY carries at once.
const BOUNCE_BYTES: usize = 60 << 10;
/// Bytes under way from one end to the other.
const PIPE_BYTES: usize = 256 << 10;
/// Work requests that one command needs at once.
const REQUESTS_PER_COMMAND: usize = 2;
/// Work requests under way.
const REQUESTS_MAX: usize = 256;
/// Marks the READs of a COPY.
const COPY_BIT: u64 = 1 << 63;

/// What is left of a COPY.
#[derive(Debug)]
struct Copying {
    index: u64,
    source: RemoteAddr,
    target: RemoteAddr,
    left: u32,
    /// Bytes of the READ under way.
    reading: u32,
}

/// A command that has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Finished {
    pub(super) index: u64,
}

/// The local queue pair.
pub(super) struct LocalQueuePair<S: PageStore> {
    requester: Connection<NoPages>,
    responder: Connection<S>,
    forth: Pipe,
    back: Pipe,
    bounce: Arc<Buffer>,
    copying: Option<Copying>,
    /// Where old values go, in order of the commands.
    sinks: VecDeque<(u64, LocalSlice)>,
    under_way: usize,
    ended: Option<CloseReason>,
}

#[derive(Debug, Default)]
struct Pipe {
    bytes: Vec<u8>,
    at: usize,
}

impl Pipe {
    fn rest(&self) -> &[u8] {
        &self.bytes[self.at..]
    }

    /// Takes what was consumed out; true if that is anything.
    fn consume(&mut self, count: usize) -> bool {
        self.at += count;
        if self.at == self.bytes.len() {
            self.bytes.clear();
            self.at = 0;
        }
        count > 0
    }
}

impl<S: PageStore> LocalQueuePair<S> {
    pub(super) fn new(
        table: &Arc<RegionTable>,
        domain: ProtectionDomain,
        now: Time,
    ) -> Result<Self, PrivateDataTooLong> {
        let config = Config {
            protection_domain: domain,
            tag: LOCAL_TAG,
            crc: false,
            private_profile: true,
            send_queue_max: 2 * REQUESTS_MAX,
            ..Config::default()
        };
        Ok(Self {
            requester: Connection::initiator(config.clone(), table, b"", now)?,
            responder: Connection::responder(config, table, now),
            forth: Pipe::default(),
            back: Pipe::default(),
            bounce: Buffer::zeroed(BOUNCE_BYTES),
            copying: None,
            sinks: VecDeque::new(),
            under_way: 0,
            ended: None,
        })
    }

    /// Identity of the end that touches regions.
    pub(super) fn stream(&self) -> StreamId {
        self.responder.stream()
    }

    /// Why it ended, if it did.
    pub(super) fn ended(&self) -> Option<&CloseReason> {
        self.ended.as_ref()
    }

    /// Can a command be taken?
    pub(super) fn is_ready(&self) -> bool {
        self.copying.is_none()
            && self.ended.is_none()
            && self.under_way + REQUESTS_PER_COMMAND <= REQUESTS_MAX
    }

    /// Takes a command; only when ready, and none that is for a link. It is answered by `pump` with its index.
    pub(super) fn submit(&mut self, index: u64, command: Command) {
        match command {
            Command::Nop | Command::Link { .. } => {}
            Command::Write { source, target } => {
                let source = Source::Local(source);
                let remote = target;
                self.post(None, Operation::Write { source, remote });
                self.post_barrier(index, target);
            }
            Command::Copy {
                source,
                target,
                len,
            } => {
                self.copying = Some(Copying {
                    index,
                    source,
                    target,
                    left: len,
                    reading: 0,
                });
                self.copy_on();
            }
            Command::CompareSwap {
                target,
                compare,
                swap,
                sink,
            } => {
                // Bytes of memory are little-endian numbers, whatever this machine is.
                let op = Operation::compare_swap(target, compare.to_le(), swap.to_le());
                self.sinks.push_back((index, sink));
                self.post(Some(index), op);
            }
            Command::Flush { target, len } => {
                let selectivity = match len {
                    FLUSH_REGION => Selectivity::Region,
                    len => Selectivity::Range(len),
                };
                let flush = Operation::Flush {
                    remote: target,
                    selectivity,
                    placement: Placement::Persistent,
                };
                self.post(Some(index), flush);
            }
        }
    }

    fn post(&mut self, index: Option<u64>, op: Operation) {
        let request = WorkRequest {
            wr_id: WrId(index.unwrap_or(0)),
            signaled: index.is_some(),
            fence: false,
            op,
        };
        self.under_way += usize::from(index.is_some());
        // There is room (`is_ready`); otherwise the connection has ended, which `pump` finds.
        let _ = self.requester.post_send(request);
    }

    /// A READ of no bytes completes when everything before it is placed.
    fn post_barrier(&mut self, index: u64, remote: RemoteAddr) {
        let sink = LocalSlice::new(&self.bounce, 0, 0);
        self.post(Some(index), Operation::Read { sink, remote });
    }

    /// Next step of a COPY: what was read is written, then more is read.
    fn copy_on(&mut self) {
        let Some(copying) = &mut self.copying else {
            return;
        };
        let step = |at: RemoteAddr, by: u32| RemoteAddr {
            to: at.to.wrapping_add(u64::from(by)),
            ..at
        };
        let (index, read, target) = (copying.index, copying.reading, copying.target);
        copying.left -= read;
        copying.source = step(copying.source, read);
        copying.target = step(copying.target, read);
        copying.reading = copying.left.min(BOUNCE_BYTES as u32);
        let (next, from) = (copying.reading, copying.source);
        if read > 0 {
            let source = Source::Local(LocalSlice::new(&self.bounce, 0, read as usize));
            let remote = target;
            self.post(None, Operation::Write { source, remote });
        }
        if next > 0 {
            let sink = LocalSlice::new(&self.bounce, 0, next as usize);
            let remote = from;
            self.post(Some(index | COPY_BIT), Operation::Read { sink, remote });
        } else {
            self.copying = None;
            self.post_barrier(index, target);
        }
    }

    /// Moves bytes between the ends until nothing moves by itself any more; appends what has finished. True if anything
    /// happened.
    pub(super) fn pump(&mut self, now: Time, pages: &mut S, finished: &mut Vec<Finished>) -> bool {
        let mut any = false;
        while self.ended.is_none() && self.step(now, pages, finished) {
            any = true;
        }
        any
    }

    fn step(&mut self, now: Time, pages: &mut S, finished: &mut Vec<Finished>) -> bool {
        if self.forth.bytes.is_empty() {
            self.requester
                .poll_transmit(now, &mut NoPages, &mut self.forth.bytes, PIPE_BYTES);
        }
        let mut moved = false;
        if !self.forth.rest().is_empty() && self.responder.wants_input() {
            let taken = self.responder.handle_bytes(now, pages, self.forth.rest());
            moved |= self.forth.consume(taken);
        }
        if self.back.bytes.is_empty() {
            self.responder
                .poll_transmit(now, pages, &mut self.back.bytes, PIPE_BYTES);
        }
        if !self.back.rest().is_empty() {
            let taken = self
                .requester
                .handle_bytes(now, &mut NoPages, self.back.rest());
            moved |= self.back.consume(taken);
        }
        self.take_events();
        while let Some(completion) = self.requester.poll_completion() {
            self.take_completion(&completion, finished);
            moved = true;
        }
        moved
    }

    fn take_events(&mut self) {
        while let Some(event) = self.responder.poll_event() {
            match event {
                // Without private data there is nothing to refuse.
                Event::ConnectRequest(_) => drop(self.responder.accept(b"")),
                Event::Closed(reason) => self.ended = Some(reason),
                _ => {}
            }
        }
        while let Some(event) = self.requester.poll_event() {
            if let Event::Closed(reason) = event {
                self.ended.get_or_insert(reason);
            }
        }
    }

    fn take_completion(&mut self, completion: &Completion, finished: &mut Vec<Finished>) {
        if completion.status != Status::Success {
            self.ended.get_or_insert(CloseReason::Lost);
            return;
        }
        self.under_way -= 1;
        let index = completion.wr_id.0;
        if index & COPY_BIT != 0 {
            return self.copy_on();
        }
        if self.sinks.front().is_some_and(|(of, _)| *of == index)
            && let Some((_, sink)) = self.sinks.pop_front()
        {
            // The answer is a number of this machine; the sink holds it as memory did.
            let old = u64::from_le(completion.original).to_le_bytes();
            sink.buffer.write(sink.offset, &old);
        }
        finished.push(Finished { index });
    }

    pub(super) fn handle_page(
        &mut self,
        pages: &mut S,
        ticket: Ticket,
        page: Result<S::Page, PageError>,
    ) {
        self.responder.handle_page(pages, ticket, page);
    }

    pub(super) fn handle_put(&mut self, pages: &mut S, ticket: Ticket) {
        self.responder.handle_put(pages, ticket);
    }

    pub(super) fn handle_durable(
        &mut self,
        pages: &mut S,
        ticket: Ticket,
        result: Result<(), PageError>,
    ) {
        self.responder.handle_durable(pages, ticket, result);
    }

    /// Nothing of it touches a region any more.
    pub(super) fn abort(&mut self) {
        self.requester.abort();
        self.responder.abort();
        self.ended.get_or_insert(CloseReason::Aborted);
    }
}

impl<S: PageStore> std::fmt::Debug for LocalQueuePair<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalQueuePair")
            .field("under_way", &self.under_way)
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}
