//! Completions, in the words of the verbs.

use std::collections::VecDeque;
use std::fmt;

use crate::addr::{Immediate, Stag, WrId};

/// Which kind of request completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CompletionOpcode {
    /// `RDMA_WRITE`: the transport took the bytes.
    RdmaWrite,
    /// `RDMA_READ`: the bytes are here.
    RdmaRead,
    /// `SEND`: the transport took the message.
    Send,
    /// `FETCH_ADD`: it was executed, and the old value is here.
    FetchAdd,
    /// `COMP_SWAP`: it was executed or not, and the old value is here.
    CompSwap,
    /// `FLUSH` (private profile): the bytes are where they were asked to be.
    Flush,
    /// `ATOMIC_WRITE` (private profile): it was executed.
    AtomicWrite,
    /// VERIFY (private profile): the CRC-32C of the range is here.
    Verify,
    /// `LOCAL_INV`: no access through the STag happens any more.
    LocalInv,
    /// `BIND_MW`: the window may be used. Of type 1: its earlier STag may not any more.
    BindMw,
    /// `RECV`: a message arrived.
    Recv,
    /// `RECV_RDMA_WITH_IMM`: immediate data arrived; all WRITEs before it are placed.
    RecvRdmaWithImm,
}

impl CompletionOpcode {
    /// Of the receive queue?
    #[must_use]
    pub const fn is_recv(self) -> bool {
        matches!(self, Self::Recv | Self::RecvRdmaWithImm)
    }
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// `IBV_WC_SUCCESS`.
    Success,
    /// `IBV_WC_LOC_LEN_ERR`: the message did not fit the posted buffer.
    LocalLength,
    /// `IBV_WC_LOC_QP_OP_ERR`: this connection cannot do that (a READ with ORD 0, a FLUSH to a peer
    /// that does not speak the private profile).
    LocalQpOperation,
    /// `IBV_WC_LOC_PROT_ERR`: no such STag to invalidate, or one that no invalidation ends.
    LocalProtection,
    /// `IBV_WC_MW_BIND_ERR`: the window or its region does not allow it.
    WindowBind,
    /// `IBV_WC_REM_ACCESS_ERR`: the peer refused access to its memory.
    RemoteAccess,
    /// `IBV_WC_REM_INV_REQ_ERR`: the peer found the request malformed or had no buffer.
    RemoteInvalidRequest,
    /// `IBV_WC_REM_OP_ERR`: the peer could not carry it out.
    RemoteOperation,
    /// `IBV_WC_WR_FLUSH_ERR`: the connection ended first; whether it happened is unknown.
    Flushed,
}

impl Status {
    /// Did it succeed?
    #[must_use]
    pub const fn is_success(self) -> bool {
        matches!(self, Self::Success)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Success => "success",
            Self::LocalLength => "local length error",
            Self::LocalQpOperation => "local QP operation error",
            Self::LocalProtection => "local protection error",
            Self::WindowBind => "memory window bind error",
            Self::RemoteAccess => "remote access error",
            Self::RemoteInvalidRequest => "remote invalid request error",
            Self::RemoteOperation => "remote operation error",
            Self::Flushed => "work request flushed error",
        })
    }
}

/// Result of one work request; every accepted request has exactly one, unless it was unsignaled and succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Of the request.
    pub wr_id: WrId,
    /// Kind of the request.
    pub opcode: CompletionOpcode,
    /// How it ended.
    pub status: Status,
    /// Bytes transferred. With immediate data: bytes of the WRITE that came right before it.
    pub bytes: u32,
    /// Atomic operation: what the eight bytes were before. VERIFY: the CRC-32C.
    pub original: u64,
    /// Receive: the peer asked for a solicited event.
    pub solicited: bool,
    /// Receive: the local STag that the message invalidated.
    pub invalidated: Option<Stag>,
    /// Receive: the immediate data.
    pub immediate: Option<Immediate>,
    /// Receive into a vector: the message.
    pub message: Option<Vec<u8>>,
}

impl Completion {
    /// Does it wake a program that asked for solicited events only? One that failed does, too.
    #[must_use]
    pub const fn is_solicited_event(&self) -> bool {
        self.solicited || !self.status.is_success()
    }
}

/// Completions not yet taken. Cannot overflow: posting is refused while requests plus unread completions reach the
/// depth of the queues (RELIABILITY I16).
#[derive(Debug, Default)]
pub(crate) struct CompletionQueue {
    entries: VecDeque<Completion>,
    recvs: usize,
    solicited: usize,
}

impl CompletionQueue {
    pub(crate) fn push(&mut self, completion: Completion) {
        self.recvs += usize::from(completion.opcode.is_recv());
        self.solicited += usize::from(completion.is_solicited_event());
        self.entries.push_back(completion);
    }

    pub(crate) fn pop(&mut self) -> Option<Completion> {
        let completion = self.entries.pop_front()?;
        self.recvs -= usize::from(completion.opcode.is_recv());
        self.solicited -= usize::from(completion.is_solicited_event());
        Some(completion)
    }

    /// Unread completions of receives.
    pub(crate) fn recvs(&self) -> usize {
        self.recvs
    }

    /// Unread completions that are solicited events.
    pub(crate) fn solicited(&self) -> usize {
        self.solicited
    }

    /// Unread completions of the send queue.
    pub(crate) fn sends(&self) -> usize {
        self.entries.len() - self.recvs
    }
}
