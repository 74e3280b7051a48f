//! A connection as it comes to the loop, and where to make one.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

use flashnet_tls::{ClientTls, Handshake, Records, TlsError};
use mio::net::TcpStream;

/// Where a member is, and how it is called.
#[derive(Clone, Debug)]
pub struct Place {
    /// All are tried.
    pub addresses: Vec<SocketAddr>,
    /// None: plainly.
    pub tls: Option<ClientTls>,
}

impl Place {
    /// Without TLS.
    ///
    /// # Errors
    /// If the name of the member is not to be found.
    pub fn plain(place: &impl ToSocketAddrs) -> io::Result<Self> {
        Ok(Self {
            addresses: place.to_socket_addrs()?.collect(),
            tls: None,
        })
    }

    /// A socket that is, or will be, connected to one of its addresses, as the loop takes it.
    pub(crate) fn connected(
        &self,
        stream: TcpStream,
        address: SocketAddr,
    ) -> Result<Connected, TlsError> {
        let shaking = match &self.tls {
            None => Tls::None,
            Some(tls) => Tls::Shaking(tls.begin(address)?),
        };
        Ok(Connected {
            tls: shaking,
            ..Connected::from(stream)
        })
    }
}

/// What is between a socket and its link.
#[derive(Debug, Default)]
pub(crate) enum Tls {
    /// Nothing.
    #[default]
    None,
    /// TLS, when both ends have shown who they are.
    Shaking(Handshake),
    /// TLS.
    Sealed(Box<Records>),
    /// Nobody is there any more who could be told anything, or believed.
    Broken,
}

/// A connection that somebody has made or accepted.
#[derive(Debug)]
pub struct Connected {
    pub(crate) stream: TcpStream,
    pub(crate) tls: Tls,
    /// What was received already, and opened.
    pub(crate) heard: Vec<u8>,
}

impl From<TcpStream> for Connected {
    fn from(stream: TcpStream) -> Self {
        Self {
            stream,
            tls: Tls::None,
            heard: Vec::new(),
        }
    }
}

/// Why there is no TLS connection with somebody, or no longer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Refusal {
    /// Whether this end has called.
    pub(crate) called: bool,
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) cause: TlsError,
}
