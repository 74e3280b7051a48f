//! A client with its sockets.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

use flashnet_tls::TlsError;
use mio::net::TcpStream;
use softrdma::offload::LinkId;
use softrdma::{Config, Time};

use super::connected::{Connected, Place};
use super::event_loop::{Loop, RETRY, SLEEP};
use crate::clock::until;
use crate::group::client::{Client, ClientError};
use crate::group::node::Node;
use crate::group::primitives::{Flight, Outcome, Primitive, PrimitiveError, Primitives};
use crate::group::shape::{Denied, GroupShape};

/// Why a client over TCP could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The client.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// A member can not be reached.
    #[error("member {member} at {address}: {source}")]
    Connect {
        /// Which.
        member: usize,
        /// Where.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// There is no TLS connection with a member.
    #[error("{}: {cause}", address.map_or("a member".to_owned(), |at| format!("the member at {at}")))]
    Tls {
        /// Where.
        address: Option<SocketAddr>,
        /// Why not.
        cause: TlsError,
    },
    /// The sockets.
    #[error("sockets: {0}")]
    Io(#[from] io::Error),
    /// A member does not let it in.
    #[error("a member did not let the client in: {0}")]
    Denied(Denied),
    /// The group is no more.
    #[error("{0}")]
    Broken(String),
    /// Nothing happened for too long.
    #[error("the group was not ready within {0:?}")]
    TimedOut(Duration),
}

/// Connects to a member at the first of its addresses where it is.
fn reach(member: usize, place: &Place, timeout: Duration) -> Result<Connected, StartError> {
    let mut failed = StartError::Io(io::Error::other("a member has no address"));
    for &address in &place.addresses {
        match std::net::TcpStream::connect_timeout(&address, timeout) {
            Ok(stream) => {
                stream.set_nonblocking(true)?;
                let connected = place.connected(TcpStream::from_std(stream), address);
                return connected.map_err(|cause| StartError::Tls {
                    address: Some(address),
                    cause,
                });
            }
            Err(source) => {
                failed = StartError::Connect {
                    member,
                    address,
                    source,
                }
            }
        }
    }
    Err(failed)
}

/// A client of members that [`OverTcp`] connects, one link to each.
pub trait Joins: Node + Primitives {
    /// Whether it takes primitives by now.
    ///
    /// # Errors
    /// If it never will.
    fn has_joined(&self) -> Result<bool, StartError>;
}

impl Joins for Client {
    fn has_joined(&self) -> Result<bool, StartError> {
        match (self.denied(), self.broken()) {
            _ if self.is_ready() => Ok(true),
            (Some(denied), _) => Err(StartError::Denied(denied)),
            (None, Some(why)) => Err(StartError::Broken(why.to_owned())),
            (None, None) => Ok(false),
        }
    }
}

/// A client with its sockets.
#[derive(Debug)]
pub struct OverTcp<C: Joins> {
    inner: Loop<C>,
}

/// A client of a group over TCP.
pub type TcpClient = OverTcp<Client>;

impl TcpClient {
    /// Connects to all members and waits until the group is ready. Of a member that has several addresses, all are tried.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn connect(
        shape: GroupShape,
        number: u16,
        addresses: &[impl ToSocketAddrs],
        link: &Config,
        seed: [u8; 32],
        timeout: Duration,
    ) -> Result<Self, StartError> {
        let client = Client::new(shape, number, link, seed, Time(0))?;
        Self::join(client, addresses, timeout)
    }

    /// The same, with members at these places.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn connect_to(
        shape: GroupShape,
        number: u16,
        places: &[Place],
        link: &Config,
        seed: [u8; 32],
        timeout: Duration,
    ) -> Result<Self, StartError> {
        let client = Client::new(shape, number, link, seed, Time(0))?;
        Self::join_at(client, places, timeout)
    }

    /// The client.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.inner.node
    }
}

impl<C: Joins> OverTcp<C> {
    /// Connects a client to all members, and waits until it takes primitives.
    pub(crate) fn join(
        client: C,
        addresses: &[impl ToSocketAddrs],
        timeout: Duration,
    ) -> Result<Self, StartError> {
        let places: Vec<Place> = (addresses.iter().map(Place::plain)).collect::<io::Result<_>>()?;
        Self::join_at(client, &places, timeout)
    }

    fn join_at(client: C, places: &[Place], timeout: Duration) -> Result<Self, StartError> {
        let mut inner = Loop::new(client)?;
        for (member, place) in places.iter().enumerate() {
            let connected = reach(member, place, timeout)?;
            inner.add(connected, LinkId(member as u32))?;
        }
        let deadline = until(timeout);
        while !inner.node.has_joined()? {
            if Instant::now() >= deadline {
                return Err(StartError::TimedOut(timeout));
            }
            inner.turn(RETRY)?;
            // First: the end of its link is what comes of it.
            if let Some(refusal) = inner.take_refusal() {
                let (address, cause) = (refusal.peer, refusal.cause);
                return Err(StartError::Tls { address, cause });
            }
        }
        Ok(Self { inner })
    }

    /// Looks at the sockets without sleeping for so long after the last message.
    pub fn spin(&mut self, spin: Duration) {
        self.inner.spin = spin;
    }

    /// Moves bytes, waiting at most so long for something to happen.
    ///
    /// # Errors
    /// If polling fails.
    pub fn turn(&mut self, wait: Duration) -> io::Result<()> {
        self.inner.turn(wait)
    }

    /// The next outcome, waiting at most so long for it; none if there is none by then.
    ///
    /// # Errors
    /// If polling fails.
    pub fn wait(
        &mut self,
        timeout: Duration,
    ) -> io::Result<Option<(Flight, Result<Outcome, PrimitiveError>)>> {
        let deadline = until(timeout);
        loop {
            if let Some(outcome) = self.poll() {
                return Ok(Some(outcome));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.inner.turn(left.min(SLEEP))?;
        }
    }
}

impl<C: Joins> Primitives for OverTcp<C> {
    fn members(&self) -> usize {
        self.inner.node.members()
    }

    fn size(&self) -> u64 {
        self.inner.node.size()
    }

    fn longest_write(&self) -> u64 {
        self.inner.node.longest_write()
    }

    fn persists(&self) -> bool {
        self.inner.node.persists()
    }

    fn post(&mut self, primitive: Primitive) -> Result<Flight, PrimitiveError> {
        self.inner.node.post(primitive)
    }

    fn poll(&mut self) -> Option<(Flight, Result<Outcome, PrimitiveError>)> {
        self.inner.node.poll()
    }
}
