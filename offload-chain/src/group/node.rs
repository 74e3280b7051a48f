//! What moves bytes sees of members and clients: both are nodes with links.

use softrdma::offload::LinkId;
use softrdma::{NoPages, PageError, PageStore, SocketState, Ticket, Time};

use crate::persist::EmulatedPm;

/// Something with links. It does no I/O and reads no clock; the calls are those of a
/// [`Connection`](softrdma::Connection), with the name of the link.
pub trait Node {
    /// Bytes arrived; returns how many were taken.
    fn handle_bytes(&mut self, link: LinkId, now: Time, bytes: &[u8]) -> usize;

    /// FIN arrived.
    fn handle_eof(&mut self, link: LinkId, now: Time);

    /// The socket failed.
    fn handle_transport_error(&mut self, link: LinkId);

    /// Appends bytes to send.
    fn poll_transmit(&mut self, link: LinkId, now: Time, out: &mut Vec<u8>, limit: usize) -> usize;

    /// Should it be received from?
    fn wants_input(&self, link: LinkId) -> bool;

    /// What to do with the socket when all is sent; of a link that is forgotten, to close it.
    fn socket_state(&self, link: LinkId) -> SocketState;

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    fn poll_timeout(&self) -> Option<Time>;

    /// Time passed.
    fn handle_timeout(&mut self, now: Time);
}

/// Something that a store was asked for and could not give at once.
#[derive(Debug)]
pub enum Answer<P> {
    /// A page came, or never will.
    Page(Ticket, Result<P, PageError>),
    /// Everybody sees what was written to a page.
    Put(Ticket),
    /// What was to become durable is, or never will be.
    Durable(Ticket, Result<(), PageError>),
}

/// A page store that tells by itself what it has done since. Its answers are fetched after every call of a member, and by
/// [`Member::service`](super::Member::service).
pub trait Store: PageStore {
    /// The next answer.
    fn poll_answer(&mut self) -> Option<Answer<Self::Page>>;
}

impl Store for NoPages {
    fn poll_answer(&mut self) -> Option<Answer<Self::Page>> {
        None
    }
}

impl Store for EmulatedPm {
    fn poll_answer(&mut self) -> Option<Answer<Self::Page>> {
        let ticket = self.poll_synced()?;
        Some(Answer::Durable(ticket, Ok(())))
    }
}
