//! What this member says to others. A thread for each, so that one that does not listen holds up nobody; messages may be lost.

use std::collections::BTreeMap;
use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use flashnet_tls::{HandshakeError, TlsError};

use crate::group::tcp::Place;
use crate::membership::{Boot, MemberId, Seat};
use crate::tls::GroupTls;

use super::message::{NeedsTls, Said, greet, write};
use super::wire::Wire;

/// What waits for one member; more is lost.
const QUEUE: usize = 32;
const CONNECT: Duration = Duration::from_millis(250);
const WRITE: Duration = Duration::from_secs(1);
/// Between two warnings of one member.
const AGAIN: Duration = Duration::from_secs(10);

#[derive(Debug)]
struct Line {
    /// A connection to an earlier life takes what is said, and nobody hears it.
    boot: Boot,
    address: String,
    queue: SyncSender<Said>,
}

/// Lines to other members.
#[derive(Debug)]
pub(super) struct Peers {
    greeting: Greeting,
    lines: BTreeMap<MemberId, Line>,
}

/// How this member calls others.
#[derive(Clone, Debug)]
pub(super) struct Greeting {
    pub(super) token: [u8; 16],
    pub(super) own: MemberId,
    pub(super) tls: Option<GroupTls>,
}

impl Greeting {
    /// Where the member at `HOST:PORT` is, and how it is called.
    ///
    /// # Errors
    /// Why nobody can say.
    pub(super) fn place_of(&self, address: &str) -> Result<Place, String> {
        let said = |error: &dyn std::fmt::Display| error.to_string();
        let found = address.to_socket_addrs().map_err(|error| said(&error))?;
        let tls = self.tls.as_ref().map(|tls| tls.to(address)).transpose();
        let place = Place {
            addresses: found.collect(),
            tls: tls.map_err(|error| said(&error))?,
        };
        match place.addresses.is_empty() {
            true => Err("no address".to_owned()),
            false => Ok(place),
        }
    }

    fn connect(&self, address: &str) -> io::Result<Wire> {
        let place = self.place_of(address).map_err(io::Error::other)?;
        let mut last = io::Error::other("the name has no address");
        for address in place.addresses {
            match TcpStream::connect_timeout(&address, CONNECT) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    let shake =
                        |tls: &flashnet_tls::ClientTls| tls.connect(&stream, address, WRITE);
                    let records = place.tls.as_ref().map(shake).transpose();
                    let records = records.map_err(|error| match error {
                        HandshakeError::Tls(cause) => io::Error::other(cause),
                        HandshakeError::Socket(error) => error,
                    })?;
                    stream.set_write_timeout(Some(WRITE))?;
                    stream.set_read_timeout(Some(WRITE))?;
                    let mut wire = Wire::new(stream, records.map(Box::new));
                    greet(&mut wire, self.token, self.own)?;
                    return Ok(wire);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

impl Peers {
    pub(super) fn new(greeting: Greeting) -> Self {
        let lines = BTreeMap::new();
        Self { greeting, lines }
    }

    /// Says something to a member that is at this address, in this life.
    pub(super) fn send(&mut self, to: Seat, address: &str, said: Said) {
        let (to, boot) = (to.id, to.boot);
        let same = |line: &Line| line.address == address && line.boot == boot;
        if !self.lines.get(&to).is_some_and(same) {
            // The thread of a former one ends with its queue.
            match self.line(to, boot, address) {
                Ok(line) => self.lines.insert(to, line),
                Err(error) => return tracing::warn!(member = to.0, %error, "cannot talk to"),
            };
        }
        if let Some(line) = self.lines.get(&to)
            && let Err(std::sync::mpsc::TrySendError::Disconnected(_)) = line.queue.try_send(said)
        {
            self.lines.remove(&to);
        }
    }

    fn line(&self, to: MemberId, boot: Boot, address: &str) -> io::Result<Line> {
        let (queue, said) = sync_channel(QUEUE);
        let (greeting, at) = (self.greeting.clone(), address.to_owned());
        std::thread::Builder::new()
            .name(format!("chain-to-{to}"))
            .spawn(move || talk(&greeting, to, &at, &said))?;
        let address = address.to_owned();
        Ok(Line {
            boot,
            address,
            queue,
        })
    }
}

fn talk(greeting: &Greeting, to: MemberId, address: &str, queue: &Receiver<Said>) {
    let mut wire: Option<Wire> = None;
    let mut warned: Option<Instant> = None;
    while let Ok(said) = queue.recv() {
        if wire.is_none() {
            match greeting.connect(address) {
                Ok(connected) => wire = Some(connected),
                Err(error) if is_for_people(&error) => {
                    if warned.is_none_or(|at| at.elapsed() >= AGAIN) {
                        warned = Some(Instant::now());
                        tracing::warn!(member = to.0, %address, why = %error, "cannot talk to");
                    }
                }
                // It is gone, or about to come.
                Err(_) => {}
            }
        }
        if let Some(open) = &mut wire
            && write(open, &said).is_err()
        {
            wire = None;
        }
    }
}

/// Whether it will be so until somebody has changed something: members die and come back, but not to other certificates.
fn is_for_people(error: &io::Error) -> bool {
    let Some(inner) = error.get_ref() else {
        return false;
    };
    let lasts = |cause: &TlsError| !cause.passes();
    inner.is::<NeedsTls>() || inner.downcast_ref().is_some_and(lasts)
}

/// Whether somebody of the group answers there.
pub(super) fn answers(greeting: &Greeting, address: &str) -> bool {
    greeting.connect(address).is_ok()
}
