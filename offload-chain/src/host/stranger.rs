//! Somebody who has connected, and has not proven that it knows the group's token.
//!
//! It costs a socket and some bytes (with TLS what rustls keeps of a handshake, 64 KiB at most), whatever it says and however slowly: no
//! thread, and nothing of the engine (I16).

use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::time::Instant;

use flashnet_tls::{Handshake, HandshakeError, Progress, Records, ServerTls, TlsError};
use mio::net::TcpStream;
use softrdma::wire::hello::Hello;
use softrdma::wire::start::{Enhanced, NextStart, PRIVATE_DATA_LIMIT, StartFrame, StartKind};

use super::link_config;
use super::message::{FIRST_BYTES, Greeted, MAGIC, NAME_BYTES, NEEDS_TLS};
use crate::group::tcp::{Connected, Tls};
use crate::group::{Denied, is_of_group};
use crate::membership::MemberId;

/// The longest that anybody has to say before it is known: a request for set-up (RFC 5044 section 7.1).
const SAID_BYTES: usize = 20 + PRIVATE_DATA_LIMIT;
/// Received at once, by TLS.
const SEALED_BYTES: usize = 4096;
/// So much is still taken of one that has been told why it is not heard: a socket that is closed with bytes in it takes back what was said.
const LEAVE_BYTES: usize = 64 << 10;
/// A record of TLS that begins a handshake; nothing else that is said here begins so.
const HANDSHAKE: u8 = 0x16;
/// Nobody who speaks TLS takes it for that.
const NO_TLS: &[u8] = b"FLASHNET-MEMBER: it has no TLS\n";

/// Who a stranger turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// A member or client of the group, for the engine. All that it has said goes along.
    Group,
    /// A member, for the agent. What it says now are messages.
    Member(MemberId),
}

/// What is asked of strangers.
pub(super) struct Terms {
    pub(super) token: [u8; 16],
    /// None: they speak plainly.
    pub(super) tls: Option<ServerTls>,
}

/// Why a stranger is not heard.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refused {
    /// It is gone, or says what nobody of the group says.
    #[error(transparent)]
    Unheard(#[from] io::Error),
    /// It has been told.
    #[error("it speaks without TLS, and this member wants TLS (--tls, or --tls-cert of a member)")]
    Plain,
    /// It has been told.
    #[error("it speaks TLS, and this member serves without (--tls-cert)")]
    Sealed,
    /// It has been told.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// What a stranger speaks.
#[derive(Debug)]
enum Speaks {
    /// It has not said anything.
    Nothing,
    Plainly,
    Shaking(Handshake),
    Sealed(Box<Records>),
    /// It hears why it is not heard; so much of what it says is still taken.
    Leaves(usize),
}

/// Somebody who is not known yet.
#[derive(Debug)]
pub(super) struct Stranger {
    pub(super) stream: TcpStream,
    pub(super) since: Instant,
    speaks: Speaks,
    /// What it has said, and nobody has taken.
    said: Vec<u8>,
    greeted: Option<Greeted>,
}

impl Stranger {
    pub(super) fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            since: Instant::now(),
            speaks: Speaks::Nothing,
            said: Vec::new(),
            greeted: None,
        }
    }

    /// Hears what it says. Nothing, as long as it has not said enough.
    ///
    /// # Errors
    /// If it is not heard any more.
    pub(super) fn hear(&mut self, terms: &Terms) -> Result<Option<Known>, Refused> {
        while self.receive(terms)? {
            if let Some(known) = self.know(terms)? {
                return Ok(Some(known));
            }
        }
        Ok(None)
    }

    /// Who has been told why it is not heard may take its time to hear it.
    pub(super) fn leave(&mut self) {
        self.said = Vec::new();
        self.speaks = Speaks::Leaves(LEAVE_BYTES);
        // It fails if it is gone.
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// The connection of somebody who is known.
    pub(super) fn into_connected(self) -> Connected {
        let tls = match self.speaks {
            Speaks::Sealed(records) => Tls::Sealed(records),
            _ => Tls::None,
        };
        Connected {
            tls,
            heard: self.said,
            ..Connected::from(self.stream)
        }
    }

    /// Whether it has said anything more.
    fn receive(&mut self, terms: &Terms) -> Result<bool, Refused> {
        match std::mem::replace(&mut self.speaks, Speaks::Nothing) {
            Speaks::Nothing => self.begin(terms),
            Speaks::Plainly => {
                self.speaks = Speaks::Plainly;
                let mut said = [0; SAID_BYTES];
                // Not more than anybody has to say: the rest is for who takes it over.
                let room = SAID_BYTES.saturating_sub(self.said.len());
                let count = received(self.stream.read(&mut said[..room]))?;
                self.said.extend_from_slice(&said[..count.unwrap_or(0)]);
                Ok(count.is_some())
            }
            Speaks::Shaking(handshake) => self.shake(handshake),
            Speaks::Sealed(mut records) => {
                let mut sealed = [0; SEALED_BYTES];
                let count = received(self.stream.read(&mut sealed))?;
                let said = &mut self.said;
                let take = |bytes: &[u8]| said.extend_from_slice(bytes);
                if let Err(error) = records.open(&sealed[..count.unwrap_or(0)], take) {
                    let mut alert = Vec::new();
                    records.flush(&mut alert);
                    // It may want to know, if it listens.
                    let _ = self.stream.write(&alert);
                    return Err(error.into());
                }
                self.speaks = Speaks::Sealed(records);
                Ok(count.is_some())
            }
            Speaks::Leaves(left) => {
                let mut said = [0; SEALED_BYTES];
                let count = received(self.stream.read(&mut said))?;
                match left.checked_sub(count.unwrap_or(0)) {
                    Some(left) => self.speaks = Speaks::Leaves(left),
                    None => return Err(io::Error::from(ErrorKind::ConnectionAborted).into()),
                }
                Ok(count.is_some())
            }
        }
    }

    /// What it speaks is seen by the first byte.
    fn begin(&mut self, terms: &Terms) -> Result<bool, Refused> {
        let mut first = [0];
        match received(self.stream.peek(&mut first))? {
            None => return Ok(false),
            Some(0) => return Ok(true),
            Some(_) => {}
        }
        match &terms.tls {
            None if first == [HANDSHAKE] => {
                // The whole of what it says first, if it is there.
                let _ = self.stream.read(&mut [0; SEALED_BYTES]);
                let _ = self.stream.write(NO_TLS);
                Err(Refused::Sealed)
            }
            Some(tls) if !is_plain(first[0]) => self.shake(tls.accept()?),
            _ => {
                self.speaks = Speaks::Plainly;
                self.receive(terms)
            }
        }
    }

    fn shake(&mut self, handshake: Handshake) -> Result<bool, Refused> {
        match handshake.advance(&mut self.stream) {
            Ok(Progress::Waiting(handshake)) => {
                self.speaks = Speaks::Shaking(handshake);
                Ok(false)
            }
            Ok(Progress::Done(mut records)) => {
                self.said = records.take_early();
                self.speaks = Speaks::Sealed(records);
                Ok(true)
            }
            Err(HandshakeError::Tls(error)) => Err(error.into()),
            Err(HandshakeError::Socket(error)) => Err(error.into()),
        }
    }

    /// Who it is, if it has said that.
    fn know(&mut self, terms: &Terms) -> Result<Option<Known>, Refused> {
        let token = terms.token;
        let is_sealed = match &self.speaks {
            Speaks::Sealed(_) => true,
            Speaks::Plainly => false,
            _ => return Ok(None),
        };
        let is_wanted = is_sealed == terms.tls.is_some();
        if let Some(greeted) = self.greeted {
            let Some(name) = self.said.first_chunk::<NAME_BYTES>() else {
                return Ok(None);
            };
            let member = greeted.member(token, name)?;
            self.said.drain(..NAME_BYTES);
            return Ok(Some(Known::Member(member)));
        }
        let greets = self
            .said
            .iter()
            .zip(&MAGIC)
            .all(|(said, magic)| said == magic);
        if !greets {
            return match self.request()? {
                None => Ok(None),
                Some(request) if !is_wanted => {
                    let reply = needs_tls(&request);
                    self.say(&reply)?;
                    Err(Refused::Plain)
                }
                Some(request) if asks(token, request.private_data, is_sealed) => {
                    Ok(Some(Known::Group))
                }
                Some(_) => Err(io::Error::from(ErrorKind::PermissionDenied).into()),
            };
        }
        let Some(first) = self.said.first_chunk::<FIRST_BYTES>() else {
            return Ok(None);
        };
        if !is_wanted {
            self.say(&NEEDS_TLS)?;
            return Err(Refused::Plain);
        }
        let (greeted, answer) = Greeted::answer(token, first)?;
        self.said.drain(..FIRST_BYTES);
        self.say(&answer)?;
        self.greeted = Some(greeted);
        // It may have said more already.
        self.know(terms)
    }

    /// All of its request for set-up, if it is there.
    fn request(&self) -> io::Result<Option<StartFrame<'_>>> {
        match StartFrame::parse(StartKind::Request, &self.said) {
            Ok(NextStart::Need(_)) => Ok(None),
            Ok(NextStart::Frame(frame, _)) => Ok(Some(frame)),
            Err(error) => Err(io::Error::other(error)),
        }
    }

    /// A socket that was hardly written to takes so much at once.
    fn say(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut sealed = Vec::new();
        let said = match &mut self.speaks {
            Speaks::Sealed(records) => {
                records.seal(bytes, &mut sealed);
                &sealed
            }
            _ => bytes,
        };
        match self.stream.write(said)? == said.len() {
            true => Ok(()),
            false => Err(ErrorKind::WriteZero.into()),
        }
    }
}

/// Bytes that were received; none, if there are none yet.
fn received(read: io::Result<usize>) -> io::Result<Option<usize>> {
    match read {
        Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
        Ok(count) => Ok(Some(count)),
        Err(error) if error.kind() == ErrorKind::Interrupted => Ok(Some(0)),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether members and clients without TLS begin so.
fn is_plain(first: u8) -> bool {
    first == MAGIC[0] || first == b'M'
}

/// Whether somebody of the group asks so for set-up.
fn asks(token: [u8; 16], private_data: &[u8], by_tls: bool) -> bool {
    let hello = match link_config(by_tls).hello {
        true => Hello::split(private_data).1,
        false => private_data,
    };
    is_of_group(token, hello)
}

/// The answer to a request by who should have come by TLS.
fn needs_tls(request: &StartFrame<'_>) -> Vec<u8> {
    let mut reply = Vec::new();
    StartFrame {
        kind: StartKind::Reply,
        markers: false,
        crc: false,
        rejected: true,
        revision: request.revision,
        // Who asks with the block takes the first bytes of the reply for one.
        enhanced: request.enhanced.is_some().then_some(Enhanced {
            ird: 0,
            ord: 0,
            peer_to_peer: None,
        }),
        private_data: &Denied::NeedsTls.encode(),
    }
    .emit(&mut reply);
    reply
}
