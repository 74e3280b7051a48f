//! A connection of the engine, and what its messages must look like.

use std::collections::VecDeque;
use std::sync::Arc;

use super::command::Refusal;
use super::program::ReceiveSpec;
use crate::addr::WrId;
use crate::connection::Connection;
use crate::mem::Buffer;
use crate::page::PageStore;
use crate::wqe::{LocalSlice, PostError, RecvBuffer};

/// Receive buffers of a link.
pub const RECEIVES: usize = 256;
/// Marks numbers of receives among those of completions.
pub(super) const RECEIVE_BIT: u64 = 1 << 63;
/// Bytes around the message in the smallest frame of a SEND.
const FRAME_BYTES: usize = 24;

/// Names a link of an engine; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId(pub u32);

/// Bytes that every message of a link has at a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// Where.
    pub at: usize,
    /// What.
    pub bytes: Vec<u8>,
}

/// Pieces of a message that are equal but for one range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alike {
    /// Bytes of a piece.
    pub piece: usize,
    /// First byte of a piece that may differ.
    pub except: usize,
    /// How many may.
    pub len: usize,
}

/// What a link is for.
#[derive(Clone, Debug, Default)]
pub struct LinkSpec {
    /// Receive queue that its messages go to; none if it sends none.
    pub receive: Option<usize>,
    /// What its messages have to hold.
    pub checks: Vec<Check>,
    /// Pieces of its messages that are equal.
    pub alike: Option<Alike>,
}

impl LinkSpec {
    /// Judges a message.
    pub(super) fn check(&self, message: &[u8]) -> Result<(), Refusal> {
        for check in &self.checks {
            let end = check.at + check.bytes.len();
            if message.get(check.at..end) != Some(&check.bytes[..]) {
                return Err(Refusal::Check);
            }
        }
        let Some(alike) = self.alike else {
            return Ok(());
        };
        let (first, rest) = message.split_at(alike.piece.min(message.len()));
        let until = alike.except;
        let from = alike.except + alike.len;
        for piece in rest.chunks(alike.piece) {
            if piece.len() != first.len()
                || piece[..until] != first[..until]
                || piece[from..] != first[from..]
            {
                return Err(Refusal::Unlike);
            }
        }
        Ok(())
    }
}

/// A link.
#[derive(Debug)]
pub(super) struct Link<S: PageStore> {
    pub(super) connection: Connection<S>,
    pub(super) spec: LinkSpec,
    /// Receive buffers; empty until a spec says how long messages are.
    memory: Arc<Buffer>,
    message: usize,
    /// Buffers that hold a message: which, and how long it is.
    pub(super) inbox: VecDeque<(usize, u32)>,
    /// Buffers posted and empty.
    posted: usize,
    /// Operations begun by it and not finished.
    pub(super) operations: u64,
    pub(super) closed: bool,
}

impl<S: PageStore> Link<S> {
    pub(super) fn new(connection: Connection<S>) -> Self {
        Self {
            connection,
            spec: LinkSpec::default(),
            memory: Buffer::zeroed(0),
            message: 0,
            inbox: VecDeque::new(),
            posted: 0,
            operations: 0,
            closed: false,
        }
    }

    /// Posts receives for the messages of a queue.
    pub(super) fn attach(
        &mut self,
        spec: LinkSpec,
        receives: &[ReceiveSpec],
    ) -> Result<(), PostError> {
        if let Some(receive) = spec.receive.and_then(|queue| receives.get(queue)) {
            self.message = receive.message;
            self.memory = Buffer::zeroed(RECEIVES * receive.message);
            for slot in 0..RECEIVES {
                self.post(slot)?;
            }
        }
        self.spec = spec;
        Ok(())
    }

    fn post(&mut self, slot: usize) -> Result<(), PostError> {
        let slice = LocalSlice::new(&self.memory, slot * self.message, self.message);
        let wr_id = WrId(RECEIVE_BIT | slot as u64);
        self.connection.post_recv(wr_id, RecvBuffer::Local(slice))?;
        self.posted += 1;
        Ok(())
    }

    /// A receive has completed.
    pub(super) fn received(&mut self, slot: usize, bytes: u32) {
        self.posted -= 1;
        self.inbox.push_back((slot, bytes));
    }

    /// A receive was used up by something that is no message: its buffer is posted again. A peer that could use up all of
    /// them would not be looked at any more, and so not even be refused.
    pub(super) fn not_received(&mut self, slot: usize) {
        self.posted = self.posted.saturating_sub(1);
        // Fails only if the connection has ended, which is reported elsewhere.
        let _ = self.post(slot);
    }

    /// The oldest message, into `to`; its buffer is posted again.
    pub(super) fn take(&mut self, to: &mut Vec<u8>) -> Option<Result<(), Refusal>> {
        let (slot, bytes) = self.inbox.pop_front()?;
        to.clear();
        self.memory.append_to(slot * self.message, self.message, to);
        // Fails only if the connection has ended, which is reported elsewhere.
        let _ = self.post(slot);
        if bytes as usize == self.message {
            Some(Ok(()))
        } else {
            Some(Err(Refusal::Length))
        }
    }

    /// How many bytes may be looked at so that a peer whose messages are of the right length finds a buffer for each.
    pub(super) fn appetite(&self) -> usize {
        if self.message == 0 {
            return usize::MAX;
        }
        self.posted.saturating_sub(1) * (self.message + FRAME_BYTES)
    }
}
