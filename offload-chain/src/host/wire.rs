//! A connection by which members speak to each other, for who waits for what is said there.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;

use flashnet_tls::Records;

use crate::group::tcp::{Connected, Tls};

/// Received or sealed at once.
const PIECE: usize = 64 << 10;

/// A socket that blocks, and TLS on it if there is any.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) stream: TcpStream,
    tls: Option<Box<Records>>,
    /// Received and opened; so many bytes of it have been taken.
    heard: Vec<u8>,
    taken: usize,
    /// As it goes over the wire, one way or the other.
    sealed: Vec<u8>,
}

impl Wire {
    pub(super) fn new(stream: TcpStream, tls: Option<Box<Records>>) -> Self {
        Self {
            stream,
            tls,
            heard: Vec::new(),
            taken: 0,
            sealed: Vec::new(),
        }
    }
}

impl From<Connected> for Wire {
    fn from(connected: Connected) -> Self {
        let tls = match connected.tls {
            Tls::Sealed(records) => Some(records),
            Tls::None | Tls::Shaking(_) | Tls::Broken => None,
        };
        Self {
            heard: connected.heard,
            ..Self::new(connected.stream.into(), tls)
        }
    }
}

impl Read for Wire {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        while self.taken == self.heard.len() {
            let Some(records) = &mut self.tls else {
                return self.stream.read(to);
            };
            self.heard.clear();
            self.taken = 0;
            self.sealed.resize(PIECE, 0);
            match self.stream.read(&mut self.sealed)? {
                // Otherwise somebody else may have cut it.
                0 if records.has_ended() => return Ok(0),
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                count => {
                    let take = |bytes: &[u8]| self.heard.extend_from_slice(bytes);
                    let opened = records.open(&self.sealed[..count], take);
                    opened.map_err(io::Error::other)?;
                }
            }
        }
        let mut heard = &self.heard[self.taken..];
        let count = heard.read(to)?;
        self.taken += count;
        Ok(count)
    }
}

impl Write for Wire {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        let Some(records) = &mut self.tls else {
            return self.stream.write(from);
        };
        let count = from.len().min(PIECE);
        self.sealed.clear();
        records.seal(&from[..count], &mut self.sealed);
        self.stream.write_all(&self.sealed)?;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}
