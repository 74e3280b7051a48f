//! The send queue: WRITE, READ and SEND of the local program.
//!
//! # Invariants
//! - S1. `wqes[..next]` are sent, or failed, and wait for an earlier READ; `wqes[next]` may be sent in part.
//! - S2. A READ awaiting its response is at the front as soon as it is the oldest: everything before it is done.
//! - S3. Requests complete in posting order.

use std::collections::VecDeque;

use crate::addr::{Msn, RemoteAddr, Stag, TaggedOffset, WrId};
use crate::connection::segment::cut;
use crate::cq::{Completion, CompletionOpcode, CompletionQueue, Status};
use crate::wire::ddp::{TAGGED_BYTES, Tagged, UNTAGGED_BYTES, Untagged};
use crate::wire::marker::Framer;
use crate::wire::rdmap::{Opcode, ReadRequest};
use crate::wire::terminate::TerminateCode;
use crate::wqe::{Operation, Source, WorkRequest};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not sent, or in part.
    Waiting,
    /// A READ without its whole response.
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
    /// READ: name we gave to the sink.
    sink: Stag,
    state: State,
}

impl Wqe {
    fn completion(&self, status: Status) -> Completion {
        let opcode = match self.op {
            Operation::Write { .. } => CompletionOpcode::RdmaWrite,
            Operation::Read { .. } => CompletionOpcode::RdmaRead,
            Operation::Send { .. } => CompletionOpcode::Send,
        };
        Completion {
            wr_id: self.wr_id,
            opcode,
            status,
            bytes: self.moved,
            solicited: false,
            invalidated: None,
            message: None,
        }
    }
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
    read_msn: Msn,
    sinks: u32,
}

impl Requests {
    pub(super) fn new() -> Self {
        Self {
            wqes: VecDeque::new(),
            next: 0,
            outstanding: 0,
            rtr_read: false,
            send_msn: Msn::FIRST,
            read_msn: Msn::FIRST,
            sinks: 0,
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
            sink: Stag(0),
            state: State::Waiting,
        });
    }

    /// Is there a READ that has no complete response yet?
    pub(super) fn has_reads(&self) -> bool {
        let is_read = |wqe: &Wqe| {
            matches!(wqe.op, Operation::Read { .. }) && !matches!(wqe.state, State::Done(_))
        };
        self.rtr_read || self.wqes.iter().any(is_read)
    }

    /// A message was begun and not ended.
    pub(super) fn is_mid_message(&self) -> bool {
        self.wqes.get(self.next).is_some_and(|wqe| wqe.moved > 0)
    }

    /// Can a segment be built, with `ord` READs allowed?
    pub(super) fn is_ready(&self, ord: u16) -> bool {
        let Some(wqe) = self.wqes.get(self.next) else {
            return false;
        };
        let outstanding = self.outstanding + u16::from(self.rtr_read);
        if wqe.fence && outstanding > 0 {
            return false;
        }
        // With ORD 0 a READ is "ready" to fail.
        !matches!(wqe.op, Operation::Read { .. }) || ord == 0 || outstanding < ord
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

    fn emit_read(&mut self, request: ReadRequest, framer: &mut Framer, out: &mut Vec<u8>) {
        let at = framer.open(out);
        let header = Untagged {
            opcode: Opcode::ReadRequest,
            last: true,
            invalidate: Stag(0),
            msn: self.read_msn,
            offset: 0,
            payload: &[],
        };
        header.emit_header(out);
        request.emit(out);
        framer.seal(out, at);
        self.read_msn = self.read_msn.next();
    }

    /// Appends one segment of the next request; only when `is_ready`.
    pub(super) fn emit(
        &mut self,
        ord: u16,
        ulpdu_max: u16,
        framer: &mut Framer,
        out: &mut Vec<u8>,
        completions: &mut CompletionQueue,
    ) {
        let Some(wqe) = self.wqes.get_mut(self.next) else {
            return;
        };
        let remaining = wqe.len - wqe.moved;
        match &wqe.op {
            Operation::Read { remote, .. } => {
                if ord == 0 {
                    wqe.state = State::Done(Status::LocalQpOperation);
                } else {
                    self.sinks = self.sinks.wrapping_add(1) & 0x00ff_ffff;
                    let sink = Stag::new(self.sinks.max(1), 0);
                    (wqe.sink, wqe.state) = (sink, State::AwaitingResponse);
                    let sink = RemoteAddr {
                        stag: sink,
                        to: TaggedOffset(0),
                    };
                    let request = ReadRequest {
                        sink,
                        size: wqe.len,
                        source: *remote,
                    };
                    self.outstanding += 1;
                    self.emit_read(request, framer, out);
                }
                self.next += 1;
                self.reap(completions);
                return;
            }
            Operation::Write { source, remote } => {
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
                    opcode: Opcode::send(*solicited, invalidate.is_some()),
                    last: len == remaining,
                    invalidate: invalidate.unwrap_or(Stag(0)),
                    msn: self.send_msn,
                    offset: wqe.moved,
                    payload: &[],
                };
                header.emit_header(out);
                append_source(source, wqe.moved, len, out);
                framer.seal(out, at);
                wqe.moved += len;
                if wqe.moved == wqe.len {
                    self.send_msn = self.send_msn.next();
                }
            }
        }
        // The transport has a copy: complete (RFC 5040 §5.5 rule 9). A zero-length message is one segment.
        if wqe.moved == wqe.len {
            wqe.state = State::Done(Status::Success);
            self.next += 1;
            self.reap(completions);
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
            if segment.stag != wqe.sink {
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

    /// Ends everything in error. The oldest READ awaiting its response gets `oldest_read`, the others are flushed.
    pub(super) fn flush(&mut self, oldest_read: Status, completions: &mut CompletionQueue) {
        let mut of_read = oldest_read;
        for wqe in self.wqes.drain(..) {
            let status = match wqe.state {
                State::Done(status) => status,
                State::AwaitingResponse => std::mem::replace(&mut of_read, Status::Flushed),
                State::Waiting => Status::Flushed,
            };
            if wqe.signaled || !status.is_success() {
                completions.push(wqe.completion(status));
            }
        }
        (self.next, self.outstanding, self.rtr_read) = (0, 0, false);
    }
}

fn append_source(source: &Source, from: u32, len: u32, out: &mut Vec<u8>) {
    let (from, len) = (from as usize, len as usize);
    match source {
        Source::Local(slice) => slice.buffer.append_to(slice.offset + from, len, out),
        Source::Bytes(bytes) => out.extend_from_slice(&bytes[from..from + len]),
    }
}
