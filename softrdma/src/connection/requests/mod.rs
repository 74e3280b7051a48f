//! The send queue: what the local program asks of the peer.
//!
//! # Invariants
//! - S1. `wqes[..next]` are sent, or failed, and wait for an earlier answer; `wqes[next]` may be sent in part.
//! - S2. A request awaiting its answer is at the front as soon as it is the oldest: everything before it is done. So the
//!   answer that comes next is that of the front, and carries the next number of its queue.
//! - S3. Requests complete in posting order.

mod answers;
mod emit;

use std::collections::VecDeque;

use crate::addr::{Msn, Stag, WrId};
use crate::cq::{Completion, CompletionOpcode, CompletionQueue, Status};
use crate::mem::access::Accessor;
use crate::mem::{Atomic, RegionTable};
use crate::planted::Bug;
use crate::wqe::{Operation, WorkRequest};

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
            Operation::BindWindow(_) | Operation::BindDomainWindow(_) => CompletionOpcode::BindMw,
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

    /// Completes what is done at the front (S3).
    fn reap(&mut self, completions: &mut CompletionQueue) {
        while let Some(wqe) = self.wqes.front()
            && let State::Done(status) = wqe.state
        {
            if wqe.signaled || !status.is_success() {
                completions.push(wqe.completion(status));
            }
            self.wqes.pop_front();
            self.next -= 1;
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
