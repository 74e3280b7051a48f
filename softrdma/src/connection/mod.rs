//! One iWARP connection, without I/O.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::addr::{ProtectionDomain, StreamId, Ticket, Time, WrId};
use crate::config::{Config, PRIVATE_DATA_MAX};
use crate::cq::{Completion, CompletionQueue};
use crate::event::{CloseReason, Event};
use crate::mem::RegionTable;
use crate::page::{PageError, PageStore};
use crate::wqe::{PostError, RecvBuffer, WorkRequest};

/// What the driver shall do with the socket once everything from `poll_transmit` is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SocketState {
    /// Go on.
    Open,
    /// Send FIN (`shutdown(SHUT_WR)`), go on receiving.
    ShutdownWrite,
    /// Close it; nothing more will come from this connection.
    Close,
}

/// Private data is limited to [`PRIVATE_DATA_MAX`], less the hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("private data of {0} bytes is too long")]
pub struct PrivateDataTooLong(pub usize);

/// `accept` or `reject` without a request to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum AnswerError {
    /// No request waits.
    #[error("no connect request waits for an answer")]
    NoRequest,
    /// Too much private data.
    #[error(transparent)]
    PrivateData(#[from] PrivateDataTooLong),
}

/// One connection; see the crate's description for the calls and their order.
#[derive(Debug)]
pub struct Connection<S: PageStore> {
    config: Config,
    table: Arc<RegionTable>,
    stream: StreamId,
    events: VecDeque<Event>,
    completions: CompletionQueue,
    closed: bool,
    parked: Option<S::Page>,
}

impl<S: PageStore> Connection<S> {
    /// The side that connects. Its Request is ready to transmit at once.
    ///
    /// # Errors
    /// If the private data is too long.
    pub fn initiator(
        config: Config,
        table: &Arc<RegionTable>,
        private_data: &[u8],
        _now: Time,
    ) -> Result<Self, PrivateDataTooLong> {
        if private_data.len() > PRIVATE_DATA_MAX {
            return Err(PrivateDataTooLong(private_data.len()));
        }
        Ok(Self::responder(config, table, _now))
    }

    /// The side that was connected to. Reports [`Event::ConnectRequest`] when the peer's Request arrived.
    #[must_use]
    pub fn responder(config: Config, table: &Arc<RegionTable>, _now: Time) -> Self {
        Self {
            config,
            table: Arc::clone(table),
            stream: table.next_stream(),
            events: VecDeque::new(),
            completions: CompletionQueue::default(),
            closed: false,
            parked: None,
        }
    }

    /// Accepts the request reported last.
    ///
    /// # Errors
    /// If there is none, or the private data is too long.
    pub fn accept(&mut self, _private_data: &[u8]) -> Result<(), AnswerError> {
        Err(AnswerError::NoRequest)
    }

    /// Refuses the request reported last.
    ///
    /// # Errors
    /// As `accept`.
    pub fn reject(&mut self, _private_data: &[u8]) -> Result<(), AnswerError> {
        Err(AnswerError::NoRequest)
    }

    /// Responder: chooses whose regions the peer may touch; only before `accept`.
    pub fn set_protection_domain(&mut self, domain: ProtectionDomain) {
        self.config.protection_domain = domain;
    }

    /// Sets the ULPDU limit towards a foreign peer, from the socket's segment size ([`mulpdu`](crate::config::mulpdu)).
    pub fn set_ulpdu_foreign(&mut self, bytes: u16) {
        self.config.ulpdu_foreign = bytes;
    }

    /// Takes received bytes; returns how many. Fewer than all only when the inbound side is parked and its buffer
    /// is full: offer the rest again when `wants_input` says so.
    pub fn handle_bytes(&mut self, _now: Time, _pages: &mut S, bytes: &[u8]) -> usize {
        bytes.len()
    }

    /// The peer sent FIN.
    pub fn handle_eof(&mut self, _now: Time) {}

    /// The socket failed.
    pub fn handle_transport_error(&mut self) {
        self.closed = true;
    }

    /// Should the driver receive? False while parked with enough bytes in hand.
    #[must_use]
    pub fn wants_input(&self) -> bool {
        !self.closed
    }

    /// Answers a pending [`PageStore::get`].
    pub fn handle_page(
        &mut self,
        _pages: &mut S,
        _ticket: Ticket,
        page: Result<S::Page, PageError>,
    ) {
        self.parked = page.ok();
    }

    /// Answers a [`PageStore::sync`].
    pub fn handle_durable(
        &mut self,
        _pages: &mut S,
        _ticket: Ticket,
        _result: Result<(), PageError>,
    ) {
    }

    /// Appends bytes to send, whole FPDUs, until `out` holds `limit` bytes or nothing more is ready. Returns how many
    /// were appended. They count as taken by the transport: the driver sends all of them, in order.
    pub fn poll_transmit(
        &mut self,
        _now: Time,
        _pages: &mut S,
        _out: &mut Vec<u8>,
        _limit: usize,
    ) -> usize {
        0
    }

    /// What to do with the socket when all bytes are sent.
    #[must_use]
    pub fn socket_state(&self) -> SocketState {
        if self.closed {
            SocketState::Close
        } else {
            SocketState::Open
        }
    }

    /// Next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Next completion.
    pub fn poll_completion(&mut self) -> Option<Completion> {
        self.completions.pop()
    }

    /// When `handle_timeout` is due next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        None
    }

    /// A deadline passed.
    pub fn handle_timeout(&mut self, _now: Time) {}

    /// Queues work. Allowed from the start; it goes out when the connection is established.
    ///
    /// # Errors
    /// See [`PostError`]; nothing was queued.
    pub fn post_send(&mut self, _request: WorkRequest) -> Result<(), PostError> {
        Err(PostError::NotOpen)
    }

    /// Queues a buffer for a message of the peer.
    ///
    /// # Errors
    /// See [`PostError`]; nothing was queued.
    pub fn post_recv(&mut self, _wr_id: WrId, _buffer: RecvBuffer) -> Result<(), PostError> {
        Err(PostError::NotOpen)
    }

    /// Ends in order: posted work goes out, then FIN.
    pub fn disconnect(&mut self) {}

    /// Ends now: requests are flushed, the socket closes without Terminate.
    pub fn abort(&mut self) {
        self.closed = true;
        self.events.push_back(Event::Closed(CloseReason::Aborted));
    }

    /// Identity of this connection for regions bound to a stream.
    #[must_use]
    pub fn stream(&self) -> StreamId {
        self.stream
    }

    /// The shared table of regions.
    #[must_use]
    pub fn table(&self) -> &Arc<RegionTable> {
        &self.table
    }
}
