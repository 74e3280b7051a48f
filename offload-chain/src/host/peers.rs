//! What this member says to others. A thread for each, so that one that does not listen holds up nobody; messages may be lost.

use std::collections::BTreeMap;
use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use crate::membership::{Boot, MemberId, Seat};

use super::message::{Said, greet, write};

/// What waits for one member; more is lost.
const QUEUE: usize = 32;
const CONNECT: Duration = Duration::from_millis(250);
const WRITE: Duration = Duration::from_secs(1);

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
    own: MemberId,
    token: [u8; 16],
    lines: BTreeMap<MemberId, Line>,
}

impl Peers {
    pub(super) fn new(own: MemberId, token: [u8; 16]) -> Self {
        let lines = BTreeMap::new();
        Self { own, token, lines }
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
        let (own, token, at) = (self.own, self.token, address.to_owned());
        std::thread::Builder::new()
            .name(format!("chain-to-{to}"))
            .spawn(move || talk((token, own), &at, &said))?;
        let address = address.to_owned();
        Ok(Line {
            boot,
            address,
            queue,
        })
    }
}

fn talk(own: ([u8; 16], MemberId), address: &str, queue: &Receiver<Said>) {
    let mut stream: Option<TcpStream> = None;
    while let Ok(said) = queue.recv() {
        if stream.is_none() {
            stream = connect(own, address).ok();
        }
        if let Some(open) = &mut stream
            && write(open, &said).is_err()
        {
            stream = None;
        }
    }
}

/// Whether somebody of the group answers there.
pub(super) fn answers(own: ([u8; 16], MemberId), address: &str) -> bool {
    connect(own, address).is_ok()
}

fn connect((token, own): ([u8; 16], MemberId), address: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::other("the name has no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT) {
            Ok(mut stream) => {
                stream.set_nodelay(true)?;
                stream.set_write_timeout(Some(WRITE))?;
                stream.set_read_timeout(Some(WRITE))?;
                greet(&mut stream, token, own)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}
