//! Over TCP, in the loop that groups have.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Waker};
use softrdma::Config;

use super::client::NaiveClient;
use super::member::NaiveMember;
use crate::group::tcp::{Joins, LISTENER, Loop, OverTcp, SLEEP, StartError, WAKER};

/// Serves the endpoint of a member. Its application runs elsewhere.
#[derive(Debug)]
pub struct NaiveServer {
    inner: Loop<NaiveMember>,
    listener: TcpListener,
}

impl NaiveServer {
    /// A server on a listening socket, which connects to the next member if there is one; that has to listen already.
    ///
    /// # Errors
    /// What the system says.
    pub fn new(
        mut member: NaiveMember,
        listener: std::net::TcpListener,
        next: Option<SocketAddr>,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let mut listener = TcpListener::from_std(listener);
        let next = match next {
            None => None,
            Some(next) => {
                let link = member.connect(softrdma::Time(0));
                let link = link.map_err(io::Error::other)?;
                Some((std::net::TcpStream::connect(next)?, link))
            }
        };
        let exchange = Arc::clone(member.exchange());
        let mut inner = Loop::new(member)?;
        let registry = inner.poll.registry();
        registry.register(&mut listener, LISTENER, Interest::READABLE)?;
        exchange.set_waker(Arc::new(Waker::new(registry, WAKER)?));
        if let Some((stream, link)) = next {
            stream.set_nonblocking(true)?;
            inner.add(TcpStream::from_std(stream), link)?;
        }
        Ok(Self { inner, listener })
    }

    /// Looks at the sockets without sleeping for so long after the last message.
    pub fn spin(&mut self, spin: Duration) {
        self.inner.spin = spin;
    }

    /// Runs until told to end; ends the application, too.
    ///
    /// # Errors
    /// If polling fails.
    pub fn run(&mut self, end: &AtomicBool) -> io::Result<()> {
        while !end.load(Ordering::Acquire) {
            self.inner.turn(SLEEP)?;
            if std::mem::take(&mut self.inner.calls) {
                while let Ok((stream, _)) = self.listener.accept() {
                    let now = self.inner.now();
                    let link = self.inner.node.listen(now);
                    self.inner.add(stream, link)?;
                }
            }
        }
        self.inner.node.exchange().end();
        Ok(())
    }
}

impl Joins for NaiveClient {
    fn has_joined(&self) -> Result<bool, StartError> {
        match self.is_broken() {
            _ if self.is_ready() => Ok(true),
            true => Err(StartError::Broken("a link ended".to_owned())),
            false => Ok(false),
        }
    }
}

/// A client over TCP.
pub type NaiveTcpClient = OverTcp<NaiveClient>;

impl NaiveTcpClient {
    /// Connects to all members, which have `size` bytes each.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn connect(
        config: &Config,
        number: u16,
        (addresses, size): (&[SocketAddr], u64),
        seed: [u8; 32],
        timeout: Duration,
    ) -> Result<Self, StartError> {
        let group = (addresses.len(), size);
        let client = NaiveClient::new(config, number, group, seed).map_err(io::Error::other)?;
        Self::join(client, addresses, timeout)
    }
}
