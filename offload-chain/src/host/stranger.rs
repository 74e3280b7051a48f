//! Somebody who has connected, and has not proven that it knows the group's token.
//!
//! It costs a socket and some bytes, whatever it says and however slowly: no thread, and nothing of the engine (I16).

use std::io::{self, ErrorKind, Read, Write};
use std::time::Instant;

use mio::net::TcpStream;
use softrdma::wire::hello::Hello;
use softrdma::wire::start::{NextStart, PRIVATE_DATA_LIMIT, StartFrame, StartKind};

use super::link_config;
use super::message::{FIRST_BYTES, Greeted, MAGIC, NAME_BYTES};
use crate::group::is_of_group;
use crate::membership::MemberId;

/// The longest that anybody has to say before it is known: a request for set-up (RFC 5044 section 7.1).
const SAID_BYTES: usize = 20 + PRIVATE_DATA_LIMIT;

/// Who a stranger turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// A member or client of the group, for the engine. All that it has said is there to be received.
    Group,
    /// A member, for the agent. What it says now are messages.
    Member(MemberId),
}

/// Somebody who is not known yet.
#[derive(Debug)]
pub(super) struct Stranger {
    pub(super) stream: TcpStream,
    pub(super) since: Instant,
    greeted: Option<Greeted>,
}

impl Stranger {
    pub(super) fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            since: Instant::now(),
            greeted: None,
        }
    }

    /// Hears what it says. Nothing, as long as it has not said enough.
    ///
    /// # Errors
    /// If it is gone, or says what nobody of the group says.
    pub(super) fn hear(&mut self, token: [u8; 16]) -> io::Result<Option<Known>> {
        loop {
            let mut said = [0; SAID_BYTES];
            let said = match self.stream.peek(&mut said) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => &said[..count],
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            };
            if let Some(greeted) = self.greeted {
                let Some(name) = said.first_chunk::<NAME_BYTES>() else {
                    return Ok(None);
                };
                let member = greeted.member(token, name)?;
                self.take::<NAME_BYTES>()?;
                return Ok(Some(Known::Member(member)));
            }
            let greets = said.iter().zip(&MAGIC).all(|(said, magic)| said == magic);
            if !greets {
                return asks(token, said).map(|asks| asks.then_some(Known::Group));
            }
            let Some(first) = said.first_chunk::<FIRST_BYTES>() else {
                return Ok(None);
            };
            let (greeted, answer) = Greeted::answer(token, first)?;
            self.take::<FIRST_BYTES>()?;
            // A socket that was never written to takes so much at once.
            if self.stream.write(&answer)? != answer.len() {
                return Err(ErrorKind::WriteZero.into());
            }
            self.greeted = Some(greeted);
        }
    }

    /// Takes what was looked at.
    fn take<const N: usize>(&mut self) -> io::Result<()> {
        self.stream.read_exact(&mut [0; N])
    }
}

/// Whether this is all of a request for set-up by somebody of the group; false, if that is still to be seen.
fn asks(token: [u8; 16], said: &[u8]) -> io::Result<bool> {
    let frame = match StartFrame::parse(StartKind::Request, said) {
        Ok(NextStart::Need(_)) => return Ok(false),
        Ok(NextStart::Frame(frame, _)) => frame,
        Err(error) => return Err(io::Error::other(error)),
    };
    let hello = match link_config().hello {
        true => Hello::split(frame.private_data).1,
        false => frame.private_data,
    };
    match is_of_group(token, hello) {
        true => Ok(true),
        false => Err(ErrorKind::PermissionDenied.into()),
    }
}
