//! A handshake, on a socket that does not block.

use std::io::{self, Read, Write};

use rustls::Connection;

use crate::error::{HandshakeError, TlsError};
use crate::records::Records;

/// How far a handshake is.
#[derive(Debug)]
pub enum Progress {
    /// It waits for the peer.
    Waiting(Handshake),
    /// The connection is there.
    Done(Box<Records>),
}

/// A handshake that is under way.
#[derive(Debug)]
pub struct Handshake {
    tls: Box<Connection>,
    protocol: &'static [u8],
}

impl Handshake {
    pub(crate) fn new(tls: Connection, protocol: &'static [u8]) -> Self {
        let tls = Box::new(tls);
        Self { tls, protocol }
    }

    /// Goes on as far as the socket allows. What it has to say when it fails has been offered to the socket.
    pub fn advance(mut self, mut socket: impl Read + Write) -> Result<Progress, HandshakeError> {
        let tls = &mut self.tls;
        loop {
            if tls.wants_write() {
                match uninterrupted(|| tls.write_tls(&mut socket)) {
                    Ok(_) => continue,
                    Err(error) if waits(&error) => return Ok(Progress::Waiting(self)),
                    Err(error) => return Err(error.into()),
                }
            }
            if !tls.is_handshaking() {
                let records = Records::new(*self.tls, self.protocol)?;
                return Ok(Progress::Done(Box::new(records)));
            }
            match uninterrupted(|| tls.read_tls(&mut socket)) {
                Ok(0) => return Err(TlsError::Ended.into()),
                Ok(_) => {}
                Err(error) if waits(&error) => return Ok(Progress::Waiting(self)),
                Err(error) => return Err(error.into()),
            }
            if let Err(error) = tls.process_new_packets() {
                let _ = tls.write_tls(&mut socket);
                return Err(TlsError::from(error).into());
            }
        }
    }
}

fn waits(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

/// The same once more when it was interrupted, also by what the ring of this thread has to do.
pub(crate) fn uninterrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}
