//! Whether two ends that are to be content with each other are, before anybody depends on it.

use std::net::SocketAddr;
use std::os::unix::net::UnixStream;

use crate::client::ClientTls;
use crate::error::HandshakeError;
use crate::handshake::{Handshake, Progress};
use crate::server::ServerTls;

/// Lets them meet, as if the server were at this address. An error is that of the one who is not content.
pub fn try_out(
    client: &ClientTls,
    server: &ServerTls,
    address: SocketAddr,
) -> Result<(), HandshakeError> {
    let (near, far) = UnixStream::pair()?;
    near.set_nonblocking(true)?;
    far.set_nonblocking(true)?;
    let mut ends = [
        (Some(client.begin(address)?), &near),
        (Some(server.accept()?), &far),
    ];
    while ends.iter().any(|(handshake, _)| handshake.is_some()) {
        for (handshake, socket) in &mut ends {
            if let Some(goes_on) = handshake.take() {
                *handshake = advance(goes_on, socket)?;
            }
        }
    }
    Ok(())
}

fn advance(handshake: Handshake, socket: &UnixStream) -> Result<Option<Handshake>, HandshakeError> {
    match handshake.advance(socket)? {
        Progress::Waiting(handshake) => Ok(Some(handshake)),
        Progress::Done(_) => Ok(None),
    }
}
