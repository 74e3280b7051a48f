//! The send queue: what the local program asks of the peer.
//!
//! # Invariants
//! - S1. `wqes[..next]` are sent, or failed, and wait for an earlier answer; `wqes[next]` may be sent in part.
//! - S2. A request awaiting its answer is at the front as soon as it is the oldest: everything before it is done. So the
//!   answer that comes next is that of the front, and carries the next number of its queue.
//! - S3. Requests complete in posting order.

use std::collections::VecDeque;

use crate::addr::{Msn, RemoteAddr, Stag, TaggedOffset, WrId};
use crate::connection::segment::cut;
use crate::cq::{Completion, CompletionOpcode, CompletionQueue, Status};
use crate::mem::access::Accessor;
use crate::mem::{ATOMIC_BYTES, Atomic, RegionTable};
use crate::planted::Bug;
use crate::wire::atomic::{ATOMIC_RESPONSE_BYTES, AtomicRequest, AtomicResponse};
use crate::wire::ddp::{TAGGED_BYTES, Tagged, UNTAGGED_BYTES, Untagged};
use crate::wire::marker::Framer;
use crate::wire::profile::{FlushRequest, VerifyRequest, VerifyResponse};
use crate::wire::rdmap::{Opcode, ReadRequest};
use crate::wire::terminate::TerminateCode;
use crate::wqe::{Operation, Source, WorkRequest};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not sent, or in part.
    Waiting,
    /// A READ or atomic operation without its whole answer.
    AwaitingResponse,
    Done(Status),
}

#[derive(Debug)]
struct Wqe {
    wr_id: WrId,
    signaled: bool,
    fence: bool,
    op: Operation,
    /// Bytes sent; of a READ: received.
    moved: u32,
    len: u32,
    /// Our number of a request that is answered. READ: index of the STag we gave to the sink.
    token: u32,
    /// Atomic operation: the answer.
    original: u64,
    state: State,
}

impl Wqe {
    /// Name of a READ's sink.
    fn sink(&self) -> Stag {
        Stag::new(self.token, 0)
    }

    fn completion(&self, status: Status) -> Completion {
        let opcode = match self.op {
            Operation::Write { .. } | Operation::WriteImmediate { .. } => {
                CompletionOpcode::RdmaWrite
            }
            Operation::Read { .. } => CompletionOpcode::RdmaRead,
            Operation::Send { .. } | Operation::Immediate { .. } => CompletionOpcode::Send,
            Operation::Atomic {
                op: Atomic::FetchAdd { .. },
                ..
            } => CompletionOpcode::FetchAdd,
            Operation::Atomic { .. } => CompletionOpcode::CompSwap,
            Operation::Flush { .. } => CompletionOpcode::Flush,
            Operation::AtomicWrite { .. } => CompletionOpcode::AtomicWrite,
            Operation::Verify { .. } => CompletionOpcode::Verify,
            Operation::LocalInvalidate { .. } => CompletionOpcode::LocalInv,
            Operation::BindWindow(_) => CompletionOpcode::BindMw,
        };
        Completion {
            wr_id: self.wr_id,
            opcode,
            status,
            bytes: self.moved,
            original: self.original,
            solicited: false,
            invalidated: None,
            immediate: None,
            message: None,
        }
    }
}

/// What requests are sent, and carried out locally, under.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits<'a> {
    pub(super) ord: u16,
    pub(super) ulpdu_max: u16,
    /// The private profile is agreed on.
    pub(super) profile: bool,
    pub(super) who: Accessor,
    pub(super) table: &'a RegionTable,
}

/// Work requests not yet completed.
#[derive(Debug)]
pub(super) struct Requests {
    wqes: VecDeque<Wqe>,
    next: usize,
    outstanding: u16,
    /// A ready-to-receive READ is outstanding; it is older than every other.
    rtr_read: bool,
    send_msn: Msn,
    /// Of the next request that is answered.
    request_msn: Msn,
    /// Of the next answer in queue 3.
    answer_msn: Msn,
    tokens: u32,
    planted: Option<Bug>,
}

impl Requests {
    pub(super) fn new(planted: Option<Bug>) -> Self {
        Self {
            wqes: VecDeque::new(),
            next: 0,
            outstanding: 0,
            rtr_read: false,
            send_msn: Msn::FIRST,
            request_msn: Msn::FIRST,
            answer_msn: Msn::FIRST,
            tokens: 0,
            planted,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.wqes.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.wqes.is_empty() && !self.rtr_read
    }

    /// Queues a request of `len` bytes; the caller has validated it.
    pub(super) fn push(&mut self, request: WorkRequest, len: u32) {
        let WorkRequest {
            wr_id,
            signaled,
            fence,
            op,
        } = request;
        self.wqes.push_back(Wqe {
            wr_id,
            signaled,
            fence,
            op,
            moved: 0,
            len,
            token: 0,
            original: 0,
            state: State::Waiting,
        });
    }

    /// Is there a request that only an answer completes, and none has come?
    pub(super) fn has_unanswered(&self) -> bool {
        let is_unanswered =
            |wqe: &Wqe| wqe.op.is_answered() && !matches!(wqe.state, State::Done(_));
        self.rtr_read || self.wqes.iter().any(is_unanswered)
    }

    /// A message was begun and not ended.
    pub(super) fn is_mid_message(&self) -> bool {
        self.wqes.get(self.next).is_some_and(|wqe| wqe.moved > 0)
    }

    /// Can a segment be built, with `ord` requests outstanding that are answered?
    pub(super) fn is_ready(&self, ord: u16) -> bool {
        let Some(wqe) = self.wqes.get(self.next) else {
            return false;
        };
        let outstanding = self.outstanding + u16::from(self.rtr_read);
        if wqe.fence && outstanding > 0 && self.planted != Some(Bug::FenceIgnored) {
            return false;
        }
        // With ORD 0 a READ is "ready" to fail.
        !wqe.op.is_answered()
            || ord == 0
            || outstanding < ord
            || (self.planted == Some(Bug::OrdByOne) && outstanding == ord)
    }

    /// The request of zero bytes that opens a peer-to-peer connection (RFC 6581 §6).
    pub(super) fn emit_rtr_read(&mut self, framer: &mut Framer, out: &mut Vec<u8>) {
        let nowhere = RemoteAddr {
            stag: Stag(1),
            to: TaggedOffset(0),
        };
        self.emit_read(
            ReadRequest {
                sink: nowhere,
                size: 0,
                source: nowhere,
            },
            framer,
            out,
        );
        self.rtr_read = true;
    }

    /// The message of zero bytes that opens a peer-to-peer connection; it takes a message number.
    pub(super) fn emit_rtr_send(&mut self, framer: &mut Framer, out: &mut Vec<u8>) {
        let at = framer.open(out);
        untagged(Opcode::Send, self.send_msn).emit_header(out);
        framer.seal(out, at);
        self.send_msn = self.send_msn.next();
    }

    fn emit_read(&mut self, request: ReadRequest, framer: &mut Framer, out: &mut Vec<u8>) {
        self.emit_request(Opcode::ReadRequest, framer, out, |out| request.emit(out));
    }

    /// One message of queue 1.
    fn emit_request(
        &mut self,
        opcode: Opcode,
        framer: &mut Framer,
        out: &mut Vec<u8>,
        body: impl FnOnce(&mut Vec<u8>),
    ) {
        let at = framer.open(out);
        untagged(opcode, self.request_msn).emit_header(out);
        body(out);
        framer.seal(out, at);
        self.request_msn = self.request_msn.next();
    }

    /// Appends one segment of the next request, or carries out a local one; only when `is_ready`.
    pub(super) fn emit(
        &mut self,
        limits: Limits<'_>,
        framer: &mut Framer,
        out: &mut Vec<u8>,
        completions: &mut CompletionQueue,
    ) {
        let Limits { ord, ulpdu_max, .. } = limits;
        let Some(wqe) = self.wqes.get_mut(self.next) else {
            return;
        };
        if wqe.op.is_answered() {
            if ord == 0 || (wqe.op.is_private() && !limits.profile) {
                wqe.state = State::Done(Status::LocalQpOperation);
            } else {
                self.emit_answered(framer, out);
            }
            self.next += 1;
            self.reap(completions);
            return;
        }
        let remaining = wqe.len - wqe.moved;
        let mut status = Status::Success;
        match &wqe.op {
            Operation::Write { source, remote }
            | Operation::WriteImmediate { source, remote, .. } => {
                let to = remote.to.wrapping_add(u64::from(wqe.moved));
                let len = cut(remaining, to.0, ulpdu_max, TAGGED_BYTES);
                let at = framer.open(out);
                let header = Tagged {
                    opcode: Opcode::Write,
                    last: len == remaining,
                    stag: remote.stag,
                    to,
                    payload: &[],
                };
                header.emit_header(out);
                append_source(source, wqe.moved, len, out);
                framer.seal(out, at);
                wqe.moved += len;
            }
            Operation::Send {
                source,
                solicited,
                invalidate,
            } => {
                let len = cut(remaining, u64::from(wqe.moved), ulpdu_max, UNTAGGED_BYTES);
                let at = framer.open(out);
                let header = Untagged {
                    last: len == remaining,
                    invalidate: invalidate.unwrap_or(Stag(0)),
                    offset: wqe.moved,
                    ..untagged(
                        Opcode::send(*solicited, invalidate.is_some()),
                        self.send_msn,
                    )
                };
                header.emit_header(out);
                append_source(source, wqe.moved, len, out);
                framer.seal(out, at);
                wqe.moved += len;
                if wqe.moved == wqe.len {
                    self.send_msn = self.send_msn.next();
                }
            }
            Operation::Immediate { .. } => {}
            Operation::LocalInvalidate { stag } => {
                if !limits.table.invalidate_local(limits.who, *stag) {
                    status = Status::LocalProtection;
                }
            }
            Operation::BindWindow(bind) => {
                if !limits.table.bind_window(limits.who, bind) {
                    status = Status::WindowBind;
                }
            }
            Operation::Read { .. }
            | Operation::Atomic { .. }
            | Operation::Flush { .. }
            | Operation::AtomicWrite { .. }
            | Operation::Verify { .. } => unreachable!("is answered"),
        }
        if wqe.moved < wqe.len {
            return;
        }
        // The immediate data follow the last segment of their WRITE at once.
        if let Some((immediate, solicited)) = wqe.op.immediate() {
            let at = framer.open(out);
            untagged(Opcode::immediate(solicited), self.send_msn).emit_header(out);
            out.extend_from_slice(&immediate.0);
            framer.seal(out, at);
            self.send_msn = self.send_msn.next();
        }
        // The transport has a copy: complete (RFC 5040 §5.5 rule 9). A zero-length message is one segment.
        wqe.state = State::Done(status);
        self.next += 1;
        self.reap(completions);
    }

    /// Appends the next request, which is answered.
    fn emit_answered(&mut self, framer: &mut Framer, out: &mut Vec<u8>) {
        let Some(wqe) = self.wqes.get_mut(self.next) else {
            return;
        };
        // Never 0: some peers treat STag 0 specially.
        self.tokens = (self.tokens + 1) & 0x00ff_ffff;
        wqe.token = self.tokens.max(1);
        wqe.state = State::AwaitingResponse;
        self.outstanding += 1;
        let token = wqe.token;
        match wqe.op {
            Operation::Read { remote, .. } => {
                let sink = RemoteAddr {
                    stag: wqe.sink(),
                    to: TaggedOffset(0),
                };
                let request = ReadRequest {
                    sink,
                    size: wqe.len,
                    source: remote,
                };
                self.emit_read(request, framer, out);
            }
            Operation::Atomic { remote, op } => {
                self.emit_atomic(token, remote, op, framer, out);
            }
            Operation::AtomicWrite { remote, value } => {
                self.emit_atomic(token, remote, Atomic::Write { value }, framer, out);
            }
            Operation::Flush {
                remote,
                selectivity,
                placement,
            } => {
                let request = FlushRequest {
                    request: token,
                    target: remote,
                    selectivity,
                    placement,
                };
                self.emit_request(Opcode::FlushRequest, framer, out, |out| request.emit(out));
            }
            Operation::Verify { remote, len } => {
                let request = VerifyRequest {
                    request: token,
                    source: remote,
                    len,
                };
                self.emit_request(Opcode::VerifyRequest, framer, out, |out| request.emit(out));
            }
            _ => unreachable!("is not answered"),
        }
    }

    /// Takes a Read Response segment: places it, or says why nobody asked for it.
    pub(super) fn handle_response(
        &mut self,
        segment: &Tagged<'_>,
        completions: &mut CompletionQueue,
    ) -> Result<(), TerminateCode> {
        if self.rtr_read {
            self.rtr_read = !segment.last;
            return Ok(());
        }
        // S2.
        let front = self
            .wqes
            .front_mut()
            .filter(|wqe| wqe.state == State::AwaitingResponse);
        let Some(wqe) = front else {
            return Err(TerminateCode::TaggedInvalidStag);
        };
        let Operation::Read { sink, .. } = &wqe.op else {
            return Err(TerminateCode::TaggedInvalidStag);
        };
        // What the answer to a READ of zero bytes carries is nobody's: `siw` repeats its last message there.
        let len = segment.payload.len() as u32;
        if len > 0 && wqe.len > 0 {
            if segment.stag != wqe.sink() {
                return Err(TerminateCode::TaggedInvalidStag);
            }
            if segment.to.0 != u64::from(wqe.moved) || len > wqe.len - wqe.moved {
                return Err(TerminateCode::TaggedBounds);
            }
            sink.buffer
                .write(sink.offset + wqe.moved as usize, segment.payload);
            wqe.moved += len;
        }
        if segment.last {
            if wqe.moved != wqe.len {
                return Err(TerminateCode::OperationCatastrophicStream);
            }
            wqe.state = State::Done(Status::Success);
            self.outstanding -= 1;
            self.reap(completions);
        }
        Ok(())
    }

    fn emit_atomic(
        &mut self,
        request: u32,
        target: RemoteAddr,
        op: Atomic,
        framer: &mut Framer,
        out: &mut Vec<u8>,
    ) {
        let request = AtomicRequest {
            request,
            target,
            op,
        };
        self.emit_request(Opcode::AtomicRequest, framer, out, |out| request.emit(out));
    }

    /// Takes an answer of queue 3, or says why nobody asked for it.
    pub(super) fn handle_answer(
        &mut self,
        segment: &Untagged<'_>,
        completions: &mut CompletionQueue,
    ) -> Result<(), TerminateCode> {
        if segment.msn != self.answer_msn {
            return Err(TerminateCode::UntaggedMsnRange);
        }
        if segment.offset != 0 {
            return Err(TerminateCode::UntaggedOffset);
        }
        // S2: when the front waits for another kind of answer, this one has no buffer yet.
        let front = self.wqes.front_mut().filter(|wqe| {
            wqe.state == State::AwaitingResponse && answer_to(&wqe.op) == Some(segment.opcode)
        });
        let Some(wqe) = front.filter(|_| !self.rtr_read) else {
            return Err(TerminateCode::UntaggedNoBuffer);
        };
        let Some((request, value)) = parse_answer(segment).filter(|_| segment.last) else {
            let too_long = segment.payload.len() > ATOMIC_RESPONSE_BYTES || !segment.last;
            return Err(if too_long {
                TerminateCode::UntaggedTooLong
            } else {
                TerminateCode::OperationUnspecified
            });
        };
        if request != wqe.token && self.planted != Some(Bug::RequestUnchecked) {
            return Err(TerminateCode::OperationCatastrophicStream);
        }
        wqe.original = value;
        wqe.moved = match wqe.op {
            Operation::Atomic { .. } | Operation::AtomicWrite { .. } => ATOMIC_BYTES as u32,
            _ => 0,
        };
        wqe.state = State::Done(Status::Success);
        self.answer_msn = self.answer_msn.next();
        self.outstanding -= 1;
        self.reap(completions);
        Ok(())
    }

    /// Completes what is done at the front (S3).
    fn reap(&mut self, completions: &mut CompletionQueue) {
        while let Some(&Wqe {
            state: State::Done(status),
            ..
        }) = self.wqes.front()
        {
            let Some(wqe) = self.wqes.pop_front() else {
                return;
            };
            self.next -= 1;
            if wqe.signaled || !status.is_success() {
                completions.push(wqe.completion(status));
            }
        }
    }

    /// Ends everything in error. The oldest request awaiting its answer gets `oldest`, the others are flushed.
    pub(super) fn flush(&mut self, oldest: Status, completions: &mut CompletionQueue) {
        let mut oldest = oldest;
        for wqe in self.wqes.drain(..) {
            let status = match wqe.state {
                State::Done(status) => status,
                State::AwaitingResponse => std::mem::replace(&mut oldest, Status::Flushed),
                State::Waiting => Status::Flushed,
            };
            if wqe.signaled || !status.is_success() {
                completions.push(wqe.completion(status));
            }
        }
        (self.next, self.outstanding, self.rtr_read) = (0, 0, false);
    }
}

/// The answer that an operation awaits in queue 3.
const fn answer_to(op: &Operation) -> Option<Opcode> {
    Some(match op {
        Operation::Atomic { .. } | Operation::AtomicWrite { .. } => Opcode::AtomicResponse,
        Operation::Flush { .. } => Opcode::FlushResponse,
        Operation::Verify { .. } => Opcode::VerifyResponse,
        _ => return None,
    })
}

/// Number of the request, and what the answer says.
fn parse_answer(segment: &Untagged<'_>) -> Option<(u32, u64)> {
    let body = segment.payload;
    Some(match segment.opcode {
        Opcode::AtomicResponse => {
            let response = AtomicResponse::parse(body)?;
            (response.request, response.original)
        }
        Opcode::VerifyResponse => {
            let response = VerifyResponse::parse(body)?;
            (response.request, u64::from(response.crc))
        }
        _ => (u32::from_be_bytes(body.try_into().ok()?), 0),
    })
}

/// Header of a message of one segment.
fn untagged(opcode: Opcode, msn: Msn) -> Untagged<'static> {
    Untagged {
        opcode,
        last: true,
        invalidate: Stag(0),
        msn,
        offset: 0,
        payload: &[],
    }
}

fn append_source(source: &Source, from: u32, len: u32, out: &mut Vec<u8>) {
    let (from, len) = (from as usize, len as usize);
    match source {
        Source::Local(slice) => slice.buffer.append_to(slice.offset + from, len, out),
        Source::Bytes(bytes) => out.extend_from_slice(&bytes[from..from + len]),
        Source::Inline(bytes) => out.extend_from_slice(&bytes.as_slice()[from..from + len]),
    }
}
