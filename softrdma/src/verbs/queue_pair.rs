//! Queue pairs, whose state is their type.
//!
//! ```text
//!            connect               Established
//!   Reset ─────────────► Connecting ─────────► Rts ── disconnect ──► Closing
//!     │                      ▲                                          ▲
//!     │ listen               │ accept                                   │
//!     ▼       ConnectRequest │                                          │
//!   Listening ─────────► Requested ──────────────── reject ─────────────┘
//! ```
//!
//! In any state the peer or the transport may end the connection: [`QueuePair::poll`] says so before it is established,
//! events and flushed completions afterwards.

use std::fmt;
use std::sync::Arc;

use super::completion_queue::CompletionQueue;
use super::request::{PrivateRequest, SendRequest};
use super::shared::{Owner, Shared};
use super::transport::Transport;
use crate::addr::{ProtectionDomain, StreamId, Time, WrId};
use crate::config::Config;
use crate::connection::{AnswerError, Connection, PrivateDataTooLong};
use crate::event::{CloseReason, ConnectRequest, Established, Event};
use crate::mem::RegionTable;
use crate::wqe::{PostError, RecvBuffer};

/// Not connected. Receives may be posted.
#[derive(Debug)]
pub struct Reset {
    table: Arc<RegionTable>,
    config: Config,
    completions: CompletionQueue,
    receives: Vec<(WrId, RecvBuffer)>,
}

/// Waits for the request of a peer.
#[derive(Debug)]
pub struct Listening {
    owner: Owner,
}

/// Has the request of a peer, which waits for an answer.
#[derive(Debug)]
pub struct Requested {
    owner: Owner,
    request: ConnectRequest,
}

/// Waits for the peer: initiator for the reply, responder for the ready-to-receive frame.
#[derive(Debug)]
pub struct Connecting {
    owner: Owner,
}

/// Ready to send: work goes both ways.
#[derive(Debug)]
pub struct Rts {
    owner: Owner,
    established: Established,
}

/// What was posted still goes out, and then the end.
#[derive(Debug)]
pub struct Closing {
    owner: Owner,
}

/// A queue pair in the state `S`. Dropping it ends the connection at once.
pub struct QueuePair<S> {
    state: S,
}

impl<S: fmt::Debug> fmt::Debug for QueuePair<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("QueuePair").field(&self.state).finish()
    }
}

/// What became of a queue pair that waited.
#[derive(Debug)]
pub enum Step<From, To> {
    /// Nothing yet.
    Waiting(QueuePair<From>),
    /// It is in the next state.
    Ready(QueuePair<To>),
    /// The connection has ended.
    Ended(CloseReason),
}

impl QueuePair<Reset> {
    pub(super) fn new(
        table: Arc<RegionTable>,
        config: Config,
        completions: CompletionQueue,
    ) -> Self {
        Self {
            state: Reset {
                table,
                config,
                completions,
                receives: Vec::new(),
            },
        }
    }

    /// `ibv_post_recv`, ahead of the first message.
    ///
    /// # Errors
    /// See [`PostError`]; nothing was queued.
    pub fn post_recv(&mut self, wr_id: WrId, buffer: RecvBuffer) -> Result<(), PostError> {
        if self.state.config.shared_receives.is_some() {
            return Err(PostError::SharedQueue);
        }
        if self.state.receives.len() >= self.state.config.recv_queue_max {
            return Err(PostError::QueueFull);
        }
        buffer.validate()?;
        self.state.receives.push((wr_id, buffer));
        Ok(())
    }

    /// `rdma_connect`: the request is ready for the transport.
    ///
    /// # Errors
    /// If the private data is too long.
    pub fn connect(self, private_data: &[u8]) -> Result<QueuePair<Connecting>, PrivateDataTooLong> {
        let Reset { config, table, .. } = &self.state;
        let connection = Connection::initiator(config.clone(), table, private_data, Time(0))?;
        let owner = self.start(connection);
        Ok(QueuePair {
            state: Connecting { owner },
        })
    }

    /// Takes the part of the responder on a transport that a peer has connected.
    #[must_use]
    pub fn listen(self) -> QueuePair<Listening> {
        let Reset { config, table, .. } = &self.state;
        let connection = Connection::responder(config.clone(), table, Time(0));
        let owner = self.start(connection);
        QueuePair {
            state: Listening { owner },
        }
    }

    fn start(self, mut connection: Connection<crate::page::NoPages>) -> Owner {
        for (wr_id, buffer) in self.state.receives {
            let posted = connection.post_recv(wr_id, buffer);
            posted.expect("checked when it was queued, and nothing has been received");
        }
        Owner(Shared::new(connection, &self.state.completions))
    }
}

macro_rules! connected {
    ($($state:ident)+) => {$(
        impl QueuePair<$state> {
            /// Names it in completions. Unique in its context.
            #[must_use]
            pub fn number(&self) -> StreamId {
                self.state.owner.0.number()
            }

            /// The other side, for who moves its bytes.
            #[must_use]
            pub fn transport(&self) -> Transport {
                Transport::new(&self.state.owner.0)
            }

            /// Next event, of those that the state has not used up: [`Event::PeerFinished`],
            /// [`Event::SharedReceivesLow`], [`Event::Closed`]. With the connection manager, its channel tells them.
            pub fn poll_event(&mut self) -> Option<Event> {
                self.state.owner.0.connection().poll_event()
            }
        }
    )+};
}

connected!(Listening Requested Connecting Rts Closing);

fn post_recv(owner: &Owner, wr_id: WrId, buffer: RecvBuffer) -> Result<(), PostError> {
    owner.0.connection().post_recv(wr_id, buffer)
}

impl QueuePair<Listening> {
    /// Whether the peer's request is here.
    #[must_use]
    pub fn poll(self) -> Step<Listening, Requested> {
        let event = self.state.owner.0.connection().poll_event();
        match event {
            Some(Event::ConnectRequest(request)) => Step::Ready(self.requested(request)),
            Some(Event::Closed(reason)) => Step::Ended(reason),
            _ => Step::Waiting(self),
        }
    }

    pub(crate) fn requested(self, request: ConnectRequest) -> QueuePair<Requested> {
        let owner = self.state.owner;
        QueuePair {
            state: Requested { owner, request },
        }
    }
}

impl QueuePair<Requested> {
    /// What the peer asked for, with its private data.
    #[must_use]
    pub fn request(&self) -> &ConnectRequest {
        &self.state.request
    }

    /// Chooses whose regions the peer may touch, by who it says it is.
    pub fn set_protection_domain(&mut self, domain: ProtectionDomain) {
        self.state
            .owner
            .0
            .connection()
            .set_protection_domain(domain);
    }

    /// `ibv_post_recv`, ahead of the first message.
    ///
    /// # Errors
    /// See [`PostError`]; nothing was queued.
    pub fn post_recv(&mut self, wr_id: WrId, buffer: RecvBuffer) -> Result<(), PostError> {
        post_recv(&self.state.owner, wr_id, buffer)
    }

    /// `rdma_accept`.
    ///
    /// # Errors
    /// If the private data is too long, or the connection has ended; then it is over.
    pub fn accept(self, private_data: &[u8]) -> Result<QueuePair<Connecting>, AnswerError> {
        let owner = self.state.owner;
        let answered = owner.0.connection().accept(private_data);
        answered?;
        owner.0.ring();
        Ok(QueuePair {
            state: Connecting { owner },
        })
    }

    /// `rdma_reject`. The answer goes out as long as what this returns is kept.
    ///
    /// # Errors
    /// As `accept`.
    pub fn reject(self, private_data: &[u8]) -> Result<QueuePair<Closing>, AnswerError> {
        let owner = self.state.owner;
        let answered = owner.0.connection().reject(private_data);
        answered?;
        owner.0.ring();
        Ok(QueuePair {
            state: Closing { owner },
        })
    }
}

impl QueuePair<Connecting> {
    /// Whether the connection is established.
    #[must_use]
    pub fn poll(self) -> Step<Connecting, Rts> {
        let event = self.state.owner.0.connection().poll_event();
        match event {
            Some(Event::Established(established)) => Step::Ready(self.ready(established)),
            Some(Event::Closed(reason)) => Step::Ended(reason),
            _ => Step::Waiting(self),
        }
    }

    pub(crate) fn ready(self, established: Established) -> QueuePair<Rts> {
        let owner = self.state.owner;
        QueuePair {
            state: Rts { owner, established },
        }
    }

    /// `ibv_post_recv`.
    ///
    /// # Errors
    /// See [`PostError`]; nothing was queued.
    pub fn post_recv(&mut self, wr_id: WrId, buffer: RecvBuffer) -> Result<(), PostError> {
        post_recv(&self.state.owner, wr_id, buffer)
    }
}

impl QueuePair<Rts> {
    /// What was agreed on, with the private data of the reply.
    #[must_use]
    pub fn established(&self) -> &Established {
        &self.state.established
    }

    /// `ibv_post_send`.
    ///
    /// # Errors
    /// See [`PostError`]; nothing was queued.
    pub fn post_send(&mut self, request: impl SendRequest) -> Result<(), PostError> {
        self.state.owner.0.connection().post_send(request.into())?;
        self.state.owner.0.ring();
        Ok(())
    }

    /// The requests of the private profile, if the peer speaks it.
    #[must_use]
    pub fn profile(&mut self) -> Option<Profile<'_>> {
        self.state
            .established
            .private_profile
            .then_some(Profile { queue_pair: self })
    }

    /// `ibv_post_recv`.
    ///
    /// # Errors
    /// See [`PostError`]; nothing was queued.
    pub fn post_recv(&mut self, wr_id: WrId, buffer: RecvBuffer) -> Result<(), PostError> {
        post_recv(&self.state.owner, wr_id, buffer)
    }

    /// `rdma_disconnect`: what was posted goes out first. Keep what this returns until the end is reported.
    pub fn disconnect(self) -> QueuePair<Closing> {
        let owner = self.state.owner;
        owner.0.connection().disconnect();
        owner.0.ring();
        QueuePair {
            state: Closing { owner },
        }
    }
}

/// Posts requests of the private profile on a queue pair whose peer speaks it.
#[derive(Debug)]
pub struct Profile<'a> {
    queue_pair: &'a mut QueuePair<Rts>,
}

impl Profile<'_> {
    /// `ibv_post_send`.
    ///
    /// # Errors
    /// See [`PostError`]; nothing was queued.
    pub fn post(&mut self, request: impl PrivateRequest) -> Result<(), PostError> {
        let owner = &self.queue_pair.state.owner;
        owner.0.connection().post_send(request.into())?;
        owner.0.ring();
        Ok(())
    }
}
