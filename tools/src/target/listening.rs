//! Where a target listens.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use socket2::{Domain, Protocol, Socket, Type};

/// How long a port that is taken is waited for.
const PORT_WAIT: Duration = Duration::from_secs(2);

/// The port that a socket listens on.
pub(super) fn port_of(socket: &Socket) -> Option<u16> {
    let at = socket.local_addr().ok()?.as_socket()?;
    Some(at.port())
}

/// Whether a socket listens where a target shall.
pub(super) fn listens_at(socket: &Socket, wanted: Option<SocketAddr>) -> bool {
    let at = socket.local_addr().ok().and_then(|at| at.as_socket());
    at.zip(wanted).is_some_and(|(at, wanted)| {
        at.ip() == wanted.ip() && (wanted.port() == 0 || at.port() == wanted.port())
    })
}

/// Where local programs find who listens at `address`.
pub(super) fn reachable(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(match address {
            SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    address
}

/// The socket that listens at an address: one that does already, or a new one. `option` is that which names the address.
pub(crate) fn listen_on(
    at: Option<SocketAddr>,
    taken: Option<Socket>,
    option: &str,
) -> Result<Option<Socket>> {
    match taken {
        Some(socket) => Ok(Some(socket)),
        None => at.map(|at| listen(at, option)).transpose(),
    }
}

/// Where a socket listens.
pub(crate) fn address_of(socket: Option<&Socket>) -> Result<Option<SocketAddr>> {
    let Some(socket) = socket else {
        return Ok(None);
    };
    let at = socket.local_addr()?.as_socket();
    at.context("the listening socket has no IP address")
        .map(Some)
}

/// The same once, without waiting for a port that somebody has: none then.
pub(crate) fn listen_unless_taken(at: SocketAddr, option: &str) -> Result<Option<Socket>> {
    match try_listen(at) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(None),
        result => result.map(Some).with_context(|| cannot(at, option)),
    }
}

fn cannot(address: SocketAddr, option: &str) -> String {
    format!("cannot listen on {address} ({option})")
}

/// Listens. A target that was killed has the port until the kernel has taken its ring apart, which is waited for.
fn listen(address: SocketAddr, option: &str) -> Result<Socket> {
    let since = Instant::now();
    loop {
        match try_listen(address) {
            Err(error)
                if error.kind() == io::ErrorKind::AddrInUse && since.elapsed() < PORT_WAIT =>
            {
                std::thread::sleep(Duration::from_millis(2));
            }
            result => {
                let is_taken =
                    matches!(&result, Err(error) if error.kind() == io::ErrorKind::AddrInUse);
                return result.with_context(|| match is_taken {
                    false => cannot(address, option),
                    true => format!(
                        "cannot listen on {address}: is port {} taken? ({option} chooses another)",
                        address.port()
                    ),
                });
            }
        }
    }
}

fn try_listen(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    // A target that was killed leaves connections in TIME_WAIT; its successor must be able to start at once.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(1024)?;
    Ok(socket)
}
