//! What happens to connections, and answers to their requests.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use super::channel::Inner;
use super::worker::Command;
use crate::addr::{ProtectionDomain, WrId};
use crate::connection::AnswerError;
use crate::event::{CloseReason, ConnectRequest};
use crate::verbs::{QueuePair, Requested, Rts};
use crate::wqe::{PostError, RecvBuffer};

/// A connection of a channel; `rdma_cm_id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(pub(super) u64);

/// What `rdma_get_cm_event` tells, and what `ibv_get_async_event` tells of a connection.
#[derive(Debug)]
pub enum Event {
    /// A peer of a listener wants in.
    ConnectRequest(Request),
    /// Work goes both ways.
    Established {
        /// Which connection.
        id: Id,
        /// To post work on. Dropping it ends the connection.
        queue_pair: QueuePair<Rts>,
    },
    /// The peer's program said no.
    Rejected {
        /// Which connection.
        id: Id,
        /// Its words.
        private_data: Vec<u8>,
    },
    /// None of the addresses answers.
    Unreachable {
        /// Which connection.
        id: Id,
        /// What the last one said.
        cause: io::Error,
    },
    /// The set-up failed.
    ConnectError {
        /// Which connection.
        id: Id,
        /// How.
        reason: CloseReason,
    },
    /// The peer will send no more: [`disconnect`](super::EventChannel::disconnect) too, or drop the queue pair.
    Disconnected {
        /// Which connection.
        id: Id,
    },
    /// A message of this connection took the shared receive queue below the limit that was armed; once for each time.
    SharedReceivesLow {
        /// Which connection.
        id: Id,
    },
    /// Nothing is left of the connection; all its work has completed.
    TimewaitExit {
        /// Which connection.
        id: Id,
        /// How it ended.
        reason: CloseReason,
    },
}

/// The request of a peer. Dropped without an answer, it is rejected.
#[derive(Debug)]
pub struct Request {
    pub(super) id: Id,
    pub(super) peer: SocketAddr,
    /// There until it is answered.
    pub(super) queue_pair: Option<QueuePair<Requested>>,
    pub(super) channel: Arc<Inner>,
}

impl Request {
    /// The new connection.
    #[must_use]
    pub fn id(&self) -> Id {
        self.id
    }

    /// Where it comes from.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// What it asks for, with its private data.
    #[must_use]
    pub fn request(&self) -> &ConnectRequest {
        let queue_pair = self.queue_pair.as_ref();
        queue_pair.expect("it is not answered").request()
    }

    fn queue_pair(&mut self) -> &mut QueuePair<Requested> {
        self.queue_pair.as_mut().expect("it is not answered")
    }

    /// Chooses whose regions the peer may touch.
    pub fn set_protection_domain(&mut self, domain: ProtectionDomain) {
        self.queue_pair().set_protection_domain(domain);
    }

    /// `ibv_post_recv`, ahead of the first message.
    ///
    /// # Errors
    /// See [`PostError`]; nothing was queued.
    pub fn post_recv(&mut self, wr_id: WrId, buffer: RecvBuffer) -> Result<(), PostError> {
        self.queue_pair().post_recv(wr_id, buffer)
    }

    /// `rdma_accept`. [`Event::Established`] follows, or [`Event::ConnectError`].
    ///
    /// # Errors
    /// If the private data is too long, or the peer has gone; then the connection ends.
    pub fn accept(mut self, private_data: &[u8]) -> Result<(), AnswerError> {
        let queue_pair = self.queue_pair.take().expect("it is not answered");
        let accepted = queue_pair.accept(private_data);
        let answered = accepted.map(|qp| self.channel.send(Command::Accepted(self.id, qp)));
        self.or_over(answered)
    }

    /// `rdma_reject`.
    ///
    /// # Errors
    /// As `accept`.
    pub fn reject(mut self, private_data: &[u8]) -> Result<(), AnswerError> {
        self.refuse(private_data)
    }

    fn refuse(&mut self, private_data: &[u8]) -> Result<(), AnswerError> {
        let Some(queue_pair) = self.queue_pair.take() else {
            return Ok(());
        };
        let rejected = queue_pair.reject(private_data);
        let answered = rejected.map(|qp| self.channel.send(Command::Leaving(self.id, qp)));
        self.or_over(answered)
    }

    fn or_over(&self, answered: Result<(), AnswerError>) -> Result<(), AnswerError> {
        if answered.is_err() {
            // The queue pair has been dropped, which ended the connection.
            self.channel.send(Command::Over(self.id));
        }
        answered
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        // Fails only if the peer has gone.
        let _ = self.refuse(b"");
    }
}
