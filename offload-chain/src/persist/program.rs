//! The responder's program on a connection: a receive queue in memory that a restart can look through, and what is
//! done with each completion.

use std::sync::Arc;

use softrdma::{
    Buffer, Completion, CompletionOpcode, Connection, LocalSlice, Operation, PageStore, PostError,
    RecvBuffer, Source, WorkRequest, WrId,
};

use super::message::HEADER_BYTES;
use super::serve::{Arrival, Memory, Responder, ServeError};

/// Number of the replies; receives count from 0.
const REPLY: WrId = WrId(1 << 62);

/// Receive buffers, one behind the other in one piece of memory.
#[derive(Clone, Debug)]
pub struct ReceiveBuffers {
    memory: Arc<Buffer>,
    slot_bytes: usize,
}

impl ReceiveBuffers {
    /// `slots` buffers for messages of at most `slot_bytes`.
    #[must_use]
    pub fn new(slots: usize, slot_bytes: usize) -> Self {
        let slot_bytes = slot_bytes.max(HEADER_BYTES);
        Self {
            memory: Buffer::zeroed(slots * slot_bytes),
            slot_bytes,
        }
    }

    /// Number of buffers.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.memory.len() / self.slot_bytes
    }

    /// What is in them now, for [`replay`](super::replay) after a restart.
    #[must_use]
    pub fn contents(&self) -> Vec<Vec<u8>> {
        (0..self.slots())
            .map(|slot| self.content(slot, self.slot_bytes))
            .collect()
    }

    fn content(&self, slot: usize, len: usize) -> Vec<u8> {
        self.memory.to_vec(slot * self.slot_bytes, len)
    }

    fn slice(&self, slot: usize) -> LocalSlice {
        LocalSlice::new(&self.memory, slot * self.slot_bytes, self.slot_bytes)
    }

    /// Makes a message unreadable, at once for all who could look after a cut: where only what is flushed is kept (DMP) nothing is replayed, as
    /// no endpoint [offers](super::offer) to flush these.
    fn wipe(&self, slot: usize) {
        self.memory
            .write(slot * self.slot_bytes, &[0; HEADER_BYTES]);
    }
}

/// Why the program ends its connection.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// A request could not be queued.
    #[error(transparent)]
    Post(#[from] PostError),
    /// What came cannot be served.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// A completion of nothing that the program asked for.
    #[error("completion of an unknown request")]
    Unknown,
}

/// The program.
#[derive(Clone, Debug)]
pub struct Program {
    responder: Responder,
    buffers: ReceiveBuffers,
}

impl Program {
    /// The responder's part of a recipe, with these buffers.
    #[must_use]
    pub fn new(responder: Responder, buffers: ReceiveBuffers) -> Self {
        Self { responder, buffers }
    }

    /// Posts all receive buffers.
    ///
    /// # Errors
    /// If there are more than the connection takes.
    pub fn start<S: PageStore>(&self, connection: &mut Connection<S>) -> Result<(), PostError> {
        (0..self.buffers.slots()).try_for_each(|slot| self.post(connection, slot))
    }

    fn post<S: PageStore>(
        &self,
        connection: &mut Connection<S>,
        slot: usize,
    ) -> Result<(), PostError> {
        let buffer = RecvBuffer::Local(self.buffers.slice(slot));
        connection.post_recv(WrId(slot as u64), buffer)
    }

    /// Takes one completion of the connection, and does what the recipe says.
    ///
    /// # Errors
    /// See [`ProgramError`]. The connection has to end.
    pub fn handle<S: PageStore>(
        &mut self,
        completion: &Completion,
        connection: &mut Connection<S>,
        memory: &mut impl Memory,
    ) -> Result<(), ProgramError> {
        // Flushed receives, and replies that did not go out, say that the connection ends, which an event says too.
        if !completion.status.is_success() || completion.wr_id == REPLY {
            return Ok(());
        }
        let slot = usize::try_from(completion.wr_id.0)
            .ok()
            .filter(|&slot| slot < self.buffers.slots())
            .ok_or(ProgramError::Unknown)?;
        let len = (completion.bytes as usize).min(self.buffers.slot_bytes);
        let message;
        let arrival = match completion.opcode {
            CompletionOpcode::Recv => {
                message = self.buffers.content(slot, len);
                Arrival::Message(&message)
            }
            CompletionOpcode::RecvRdmaWithImm => {
                let immediate = completion.immediate.ok_or(ProgramError::Unknown)?;
                Arrival::Immediate(u64::from_be_bytes(immediate.0))
            }
            _ => return Err(ProgramError::Unknown),
        };
        let served = self.responder.handle(arrival, memory)?;
        if let Some(reply) = served.reply {
            let op = Operation::Send {
                source: Source::Bytes(reply),
                solicited: true,
                invalidate: None,
            };
            connection.post_send(WorkRequest {
                signaled: false,
                ..WorkRequest::new(REPLY, op)
            })?;
        }
        if served.release {
            self.buffers.wipe(slot);
        }
        self.post(connection, slot)?;
        Ok(())
    }
}
