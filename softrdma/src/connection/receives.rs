//! The receive queue: buffers for the peer's SENDs and immediate data, used in posting order.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::addr::{Immediate, Msn, Stag, WrId};
use crate::cq::{Completion, CompletionOpcode, CompletionQueue, Status};
use crate::planted::Bug;
use crate::srq::SharedReceives;
use crate::wire::ddp::Untagged;
use crate::wire::terminate::TerminateCode;
use crate::wqe::{LocalSlice, RecvBuffer};

#[derive(Debug)]
enum Target {
    Local(LocalSlice),
    /// The message so far, and its limit.
    Vec(Vec<u8>, usize),
}

#[derive(Debug)]
struct Receive {
    wr_id: WrId,
    target: Target,
    /// A segment has come, which may have had no bytes.
    begun: bool,
    /// Bytes of the message so far.
    got: u32,
}

impl Receive {
    fn room(&self) -> usize {
        match &self.target {
            Target::Local(slice) => slice.len - self.got as usize,
            Target::Vec(_, max) => max - self.got as usize,
        }
    }

    fn completion(self, status: Status, solicited: bool, invalidated: Option<Stag>) -> Completion {
        let message = match self.target {
            Target::Vec(bytes, _) if status.is_success() => Some(bytes),
            _ => None,
        };
        let (wr_id, bytes) = (self.wr_id, self.got);
        Completion {
            wr_id,
            opcode: CompletionOpcode::Recv,
            status,
            bytes,
            original: 0,
            solicited,
            invalidated,
            immediate: None,
            message,
        }
    }

    /// Immediate data leaves the buffer as it is.
    fn immediate(self, immediate: Immediate, solicited: bool, written: u32) -> Completion {
        Completion {
            opcode: CompletionOpcode::RecvRdmaWithImm,
            bytes: written,
            immediate: Some(immediate),
            message: None,
            ..self.completion(Status::Success, solicited, None)
        }
    }
}

/// Posted buffers.
#[derive(Debug)]
pub(super) struct Receives {
    queue: VecDeque<Receive>,
    msn: Msn,
    /// Where a buffer is taken from when a message begins; the queue then has at most that one.
    shared: Option<Arc<SharedReceives>>,
    /// Unread completions with which no more buffers are taken from there.
    unread_max: usize,
    /// Immediate data take no buffer.
    immediates_ignored: bool,
    /// The shared queue fell below its limit by us.
    is_low: bool,
    planted: Option<Bug>,
}

impl Receives {
    pub(super) fn new(
        shared: Option<Arc<SharedReceives>>,
        unread_max: usize,
        immediates_ignored: bool,
        planted: Option<Bug>,
    ) -> Self {
        Self {
            queue: VecDeque::new(),
            msn: Msn::FIRST,
            shared,
            unread_max,
            immediates_ignored,
            is_low: false,
            planted,
        }
    }

    pub(super) fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// Did the shared queue fall below its limit? True once.
    pub(super) fn take_low(&mut self) -> bool {
        std::mem::take(&mut self.is_low)
    }

    /// A message begins.
    fn draw(&mut self, completions: &CompletionQueue) {
        let Some(shared) = &self.shared else { return };
        if !self.queue.is_empty() || completions.recvs() >= self.unread_max {
            return;
        }
        if let Some((wr_id, buffer, is_low)) = shared.take() {
            self.is_low |= is_low;
            self.push(wr_id, buffer);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn push(&mut self, wr_id: WrId, buffer: RecvBuffer) {
        let target = match buffer {
            RecvBuffer::Local(slice) => Target::Local(slice),
            RecvBuffer::Vec(max) => Target::Vec(Vec::new(), max),
        };
        self.queue.push_back(Receive {
            wr_id,
            target,
            begun: false,
            got: 0,
        });
    }

    /// A message was begun and not ended.
    pub(super) fn is_mid_message(&self) -> bool {
        self.queue.front().is_some_and(|receive| receive.begun)
    }

    /// Checks a segment of a SEND and takes its bytes. After the last one, the caller invalidates if asked to, and
    /// calls `complete`.
    pub(super) fn handle_segment(
        &mut self,
        segment: &Untagged<'_>,
        completions: &mut CompletionQueue,
    ) -> Result<(), TerminateCode> {
        if segment.msn != self.msn && self.planted != Some(Bug::MsnUnchecked) {
            return Err(TerminateCode::UntaggedMsnRange);
        }
        self.draw(completions);
        let Some(receive) = self.queue.front_mut() else {
            return Err(TerminateCode::UntaggedNoBuffer);
        };
        if segment.offset != receive.got {
            return Err(TerminateCode::UntaggedOffset);
        }
        if segment.payload.len() > receive.room() {
            if let Some(receive) = self.queue.pop_front() {
                completions.push(receive.completion(Status::LocalLength, false, None));
            }
            return Err(match self.planted {
                Some(Bug::TooLongIsNoBuffer) => TerminateCode::UntaggedNoBuffer,
                _ => TerminateCode::UntaggedTooLong,
            });
        }
        match &mut receive.target {
            Target::Local(slice) => slice
                .buffer
                .write(slice.offset + receive.got as usize, segment.payload),
            Target::Vec(bytes, _) => bytes.extend_from_slice(segment.payload),
        }
        receive.begun = true;
        receive.got += segment.payload.len() as u32;
        Ok(())
    }

    /// The last segment of a message was taken.
    pub(super) fn complete(
        &mut self,
        solicited: bool,
        invalidated: Option<Stag>,
        completions: &mut CompletionQueue,
    ) {
        self.msn = self.msn.next();
        if let Some(receive) = self.queue.pop_front() {
            completions.push(receive.completion(Status::Success, solicited, invalidated));
        }
    }

    /// Takes the zero-length Send that opens a peer-to-peer connection, which nobody sees.
    pub(super) fn skip(&mut self) {
        self.msn = self.msn.next();
    }

    /// Takes an Immediate Data message; `written` bytes of a WRITE came right before it.
    pub(super) fn handle_immediate(
        &mut self,
        segment: &Untagged<'_>,
        written: u32,
        completions: &mut CompletionQueue,
    ) -> Result<(), TerminateCode> {
        if segment.msn != self.msn {
            return Err(TerminateCode::UntaggedMsnRange);
        }
        if !self.immediates_ignored {
            self.draw(completions);
            if self.queue.is_empty() {
                return Err(TerminateCode::UntaggedNoBuffer);
            }
        }
        if segment.offset != 0 || self.is_mid_message() {
            return Err(TerminateCode::UntaggedOffset);
        }
        // The RFC wants exactly eight bytes and names no code for fewer.
        let immediate = match <[u8; 8]>::try_from(segment.payload) {
            Ok(bytes) if segment.last => Immediate(bytes),
            Err(_) if segment.payload.len() < 8 && segment.last => {
                return Err(TerminateCode::OperationUnspecified);
            }
            _ => return Err(TerminateCode::UntaggedTooLong),
        };
        self.msn = self.msn.next();
        if self.immediates_ignored {
            return Ok(());
        }
        if let Some(receive) = self.queue.pop_front() {
            let solicited = segment.opcode.is_solicited();
            completions.push(receive.immediate(immediate, solicited, written));
        }
        Ok(())
    }

    /// Ends all in error.
    pub(super) fn flush(&mut self, completions: &mut CompletionQueue) {
        for receive in self.queue.drain(..) {
            completions.push(receive.completion(Status::Flushed, false, None));
        }
    }
}
