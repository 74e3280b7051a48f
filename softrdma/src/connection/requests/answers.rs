//! The peer's answers: Read Responses, and what comes in queue 3.

use crate::connection::requests::{Requests, State};
use crate::cq::{CompletionQueue, Status};
use crate::mem::ATOMIC_BYTES;
use crate::planted::Bug;
use crate::wire::atomic::{ATOMIC_RESPONSE_BYTES, AtomicResponse};
use crate::wire::ddp::{Tagged, Untagged};
use crate::wire::profile::VerifyResponse;
use crate::wire::rdmap::Opcode;
use crate::wire::terminate::TerminateCode;
use crate::wqe::Operation;

impl Requests {
    /// Takes a Read Response segment: places it, or says why nobody asked for it.
    pub(in crate::connection) fn handle_response(
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

    /// Takes an answer of queue 3, or says why nobody asked for it.
    pub(in crate::connection) fn handle_answer(
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
