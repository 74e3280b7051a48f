//! The other side of a queue pair: where its bytes come from and go to.

use std::sync::Arc;
use std::time::Duration;

use super::shared::Shared;
use crate::addr::{StreamId, Time};
use crate::connection::SocketState;
use crate::event::Event;
use crate::page::NoPages;

/// A queue pair as the driver sees it: the calls of the [driver's loop](crate#the-drivers-loop), from any thread. A handle.
#[derive(Clone, Debug)]
pub struct Transport {
    shared: Arc<Shared>,
}

impl Transport {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        let shared = Arc::clone(shared);
        Self { shared }
    }

    /// `ring` is called whenever work was posted, or the connection asked to end; it should make the driver call
    /// [`poll_transmit`](Self::poll_transmit) soon, and not block. Only the first one counts; false for any other.
    pub fn set_doorbell(&self, ring: impl Fn() + Send + Sync + 'static) -> bool {
        self.shared.set_doorbell(Box::new(ring))
    }

    /// Takes received bytes; returns how many.
    #[must_use]
    pub fn handle_bytes(&self, now: Time, bytes: &[u8]) -> usize {
        let mut connection = self.shared.connection();
        let taken = connection.handle_bytes(now, &mut NoPages, bytes);
        drop(connection);
        self.shared.note_completions();
        taken
    }

    /// The peer sent FIN.
    pub fn handle_eof(&self, now: Time) {
        self.shared.connection().handle_eof(now);
        self.shared.note_completions();
    }

    /// The socket failed.
    pub fn handle_transport_error(&self) {
        self.shared.connection().handle_transport_error();
        self.shared.note_completions();
    }

    /// Does an orderly end wait for the peer to answer what has gone out?
    #[must_use]
    pub fn awaits_answers(&self) -> bool {
        self.shared.connection().awaits_answers()
    }

    /// The socket has taken nothing for [`close_timeout`](Self::close_timeout), although the program wants the connection to end;
    /// or the peer has sent nothing, although it [has to answer](Self::awaits_answers).
    pub fn handle_stall(&self) {
        self.shared.connection().handle_stall();
        self.shared.note_completions();
    }

    /// How long an end waits for the peer.
    #[must_use]
    pub fn close_timeout(&self) -> Duration {
        self.shared.connection().close_timeout()
    }

    /// Time passed.
    pub fn handle_timeout(&self, now: Time) {
        self.shared.connection().handle_timeout(now);
        self.shared.note_completions();
    }

    /// When `handle_timeout` is due next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        self.shared.connection().poll_timeout()
    }

    /// Appends bytes to send, about `limit` at most.
    pub fn poll_transmit(&self, now: Time, out: &mut Vec<u8>, limit: usize) {
        let mut connection = self.shared.connection();
        connection.poll_transmit(now, &mut NoPages, out, limit);
        drop(connection);
        self.shared.note_completions();
    }

    /// What to do with the socket when everything is sent.
    #[must_use]
    pub fn socket_state(&self) -> SocketState {
        self.shared.connection().socket_state()
    }

    /// Should the driver receive?
    #[must_use]
    pub fn wants_input(&self) -> bool {
        self.shared.connection().wants_input()
    }

    /// Sets the ULPDU limit towards a foreign peer, from the socket's segment size.
    pub fn set_ulpdu_foreign(&self, bytes: u16) {
        self.shared.connection().set_ulpdu_foreign(bytes);
    }

    /// [`QueuePair::number`](super::QueuePair::number).
    #[must_use]
    pub fn number(&self) -> StreamId {
        self.shared.number()
    }

    /// Next event of the connection, for a driver that tells its program itself.
    pub(crate) fn poll_event(&self) -> Option<Event> {
        self.shared.connection().poll_event()
    }
}
