//! Sending requests, segment by segment, and carrying out local ones.

use crate::addr::{Msn, RemoteAddr, Stag, TaggedOffset};
use crate::connection::requests::{Limits, Requests, State};
use crate::connection::segment::cut;
use crate::cq::{CompletionQueue, Status};
use crate::mem::Atomic;
use crate::wire::atomic::AtomicRequest;
use crate::wire::ddp::{TAGGED_BYTES, Tagged, UNTAGGED_BYTES, Untagged};
use crate::wire::marker::Framer;
use crate::wire::profile::{FlushRequest, VerifyRequest};
use crate::wire::rdmap::{Opcode, ReadRequest};
use crate::wqe::{Operation, Source};

impl Requests {
    /// The request of zero bytes that opens a peer-to-peer connection (RFC 6581 §6).
    pub(in crate::connection) fn emit_rtr_read(&mut self, framer: &mut Framer, out: &mut Vec<u8>) {
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
    pub(in crate::connection) fn emit_rtr_send(&mut self, framer: &mut Framer, out: &mut Vec<u8>) {
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
    pub(in crate::connection) fn emit(
        &mut self,
        limits: &Limits<'_>,
        framer: &mut Framer,
        out: &mut Vec<u8>,
        completions: &mut CompletionQueue,
    ) {
        let &Limits { ord, ulpdu_max, .. } = limits;
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
            Operation::BindDomainWindow(bind) => {
                if !limits.table.bind_domain_window(limits.who, bind) {
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
