//! A client of network block servers, those that people know, to compare with.
//!
//! Each connection has a thread that blocks, and `depth` requests in flight. It takes all that the socket holds at once, and asks
//! for as much again in one call: the server is what is measured. Payload is read into memory that the next payload is read into as well.

mod wire;

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::clients::{self, Client, Load, PATIENCE, Phase, timed_out};
use super::figures::{Figures, Latencies, latencies};
use super::shape::{Direction, Offsets, PAYLOAD, Shape};
pub use wire::Fault;
use wire::{
    Command, Export, OptionReply, RawGo, RawGreeting, RawOptionReply, RawReply, RawRequest,
};

const HEADER_BYTES: usize = size_of::<RawReply>();
const REQUEST_BYTES: usize = size_of::<RawRequest>();
/// So much is sent or received by one call, unless a single request or reply is larger.
const CALL_BYTES: usize = 256 * 1024;
/// Bytes of a write that fills an export.
const FILL_BYTES: usize = 1 << 20;

impl From<Fault> for io::Error {
    fn from(fault: Fault) -> Self {
        Self::new(io::ErrorKind::InvalidData, fault)
    }
}

/// Runs `shape` against the server.
pub fn run(server: SocketAddr, shape: &Shape, server_pid: Option<u32>) -> io::Result<Figures> {
    let load = Load {
        shape,
        clients: shape.connections,
        server_pid,
    };
    clients::run(load, Asker::new(server, shape))
}

/// Connects, and goes again: whether somebody serves.
pub fn greet(server: SocketAddr) -> io::Result<()> {
    Link::connect(server)?.end();
    Ok(())
}

/// Writes the first `bytes` of the export; `content` gives what belongs at an offset.
pub fn fill(
    server: SocketAddr,
    bytes: u64,
    mut content: impl FnMut(u64, &mut [u8]),
) -> io::Result<()> {
    let mut link = Link::connect(server)?;
    let mut message = vec![0; REQUEST_BYTES + FILL_BYTES];
    for offset in (0..bytes).step_by(FILL_BYTES) {
        let len = FILL_BYTES.min((bytes - offset) as usize);
        let request = RawRequest::new(Command::Write { fua: false }, offset, offset, len as u32);
        let message = &mut message[..REQUEST_BYTES + len];
        let (header, payload) = message.split_at_mut(REQUEST_BYTES);
        header.copy_from_slice(request.as_bytes());
        content(offset, payload);
        link.stream.write_all(message).map_err(timed_out)?;
        let reply: RawReply = link.next()?;
        let cookie = reply.parse()?;
        if cookie != offset {
            return Err(Fault::Unknown(cookie).into());
        }
    }
    link.end();
    Ok(())
}

/// A connection whose export has been chosen.
struct Link {
    stream: TcpStream,
    export: Export,
}

impl Link {
    fn connect(server: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(server)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        // Nothing is known of it yet.
        let export = Export {
            bytes: 0,
            is_read_only: true,
            has_fua: false,
        };
        let mut link = Self { stream, export };
        link.negotiate().map_err(timed_out)?;
        Ok(link)
    }

    fn negotiate(&mut self) -> io::Result<()> {
        let greeting: RawGreeting = self.next()?;
        let mut answer = greeting.answer()?.to_vec();
        answer.extend(RawGo::new().as_bytes());
        self.stream.write_all(&answer)?;
        let mut export = None;
        loop {
            let reply: RawOptionReply = self.next()?;
            match reply.parse()? {
                OptionReply::Info(length) => {
                    let mut info = vec![0; length];
                    self.stream.read_exact(&mut info)?;
                    export = Export::parse(&info).or(export);
                }
                OptionReply::Go => {
                    self.export = export.ok_or(Fault::Unsaid)?;
                    return Ok(());
                }
            }
        }
    }

    /// The next of what the server says.
    fn next<T: FromZeros + FromBytes + IntoBytes>(&mut self) -> io::Result<T> {
        let mut message = T::new_zeroed();
        self.stream
            .read_exact(message.as_mut_bytes())
            .map_err(timed_out)?;
        Ok(message)
    }

    /// Whether the load can run on the export.
    fn suits(&self, shape: &Shape) -> Result<(), Fault> {
        let (has, needed) = (self.export.bytes, shape.file_bytes);
        if has < needed {
            return Err(Fault::Small { has, needed });
        }
        match shape.direction {
            Direction::Write if self.export.is_read_only => Err(Fault::ReadOnly),
            Direction::Write if shape.sync && !self.export.has_fua => Err(Fault::Volatile),
            _ => Ok(()),
        }
    }

    /// Says good-bye, which a server that has gone need not hear.
    fn end(mut self) {
        let request = RawRequest::new(Command::Disconnect, 0, 0, 0);
        let _ = self.stream.write_all(request.as_bytes());
    }
}

/// A client with several requests in flight.
struct Asker {
    server: SocketAddr,
    shape: Shape,
}

impl Asker {
    fn new(server: SocketAddr, shape: &Shape) -> Self {
        Self {
            server,
            shape: *shape,
        }
    }
}

impl Client for Asker {
    type Link = Link;

    fn connect(&self) -> io::Result<Link> {
        let link = Link::connect(self.server)?;
        link.suits(&self.shape)?;
        Ok(link)
    }

    fn run(&self, mut link: Link, n: u64, phase: &Phase) -> io::Result<Latencies> {
        let mut histogram = latencies();
        let mut requests = Requests::new(&self.shape, n);
        let mut replies = Replies::new(&self.shape);
        let begin = Instant::now();
        for slot in 0..self.shape.depth {
            requests.ask(&mut link.stream, slot, begin)?;
        }
        requests.send(&mut link.stream)?;
        // To the last reply: what is still under way would be work of the server in the turn of whoever comes next.
        while requests.in_flight > 0 {
            replies.receive(&mut link.stream)?;
            let now = Instant::now();
            let (counts, is_ending) = (phase.counts(), phase.is_ending());
            while let Some(cookie) = replies.next()? {
                let (slot, since) = requests.answered(cookie)?;
                if counts {
                    histogram.saturating_record((now - since).as_nanos() as u64);
                }
                if !is_ending {
                    requests.ask(&mut link.stream, slot, now)?;
                }
            }
            requests.send(&mut link.stream)?;
        }
        link.end();
        Ok(histogram)
    }
}

/// What a connection asks for.
struct Requests {
    command: Command,
    size: usize,
    offsets: Offsets,
    /// Whom an answer is for: the cookie, and since when there is none.
    slots: Vec<Option<(u64, Instant)>>,
    in_flight: usize,
    /// Ever: a cookie is never used twice, so no reply is taken for that of another request.
    asked: u64,
    /// Messages to be sent at once, each with payload where there is any.
    messages: Vec<u8>,
    message_bytes: usize,
    /// Bytes of them that are waiting.
    waiting: usize,
}

impl Requests {
    fn new(shape: &Shape, n: u64) -> Self {
        let (command, payload) = match shape.direction {
            Direction::Read => (Command::Read, 0),
            Direction::Write => (Command::Write { fua: shape.sync }, shape.size),
        };
        let message_bytes = REQUEST_BYTES + payload;
        let at_once = (CALL_BYTES / message_bytes).clamp(1, shape.depth);
        Self {
            command,
            size: shape.size,
            offsets: Offsets::new(shape, n),
            slots: vec![None; shape.depth],
            in_flight: 0,
            asked: 0,
            messages: vec![PAYLOAD; at_once * message_bytes],
            message_bytes,
            waiting: 0,
        }
    }

    /// Asks for the next operation, which takes the place of one that is over. It is sent when there are enough, or by
    /// [`Self::send`].
    fn ask(&mut self, stream: &mut TcpStream, slot: usize, now: Instant) -> io::Result<()> {
        let cookie = self.asked * self.slots.len() as u64 + slot as u64;
        self.asked += 1;
        let offset = self.offsets.draw();
        let request = RawRequest::new(self.command, cookie, offset, self.size as u32);
        self.messages[self.waiting..][..REQUEST_BYTES].copy_from_slice(request.as_bytes());
        self.waiting += self.message_bytes;
        self.slots[slot] = Some((cookie, now));
        self.in_flight += 1;
        if self.waiting == self.messages.len() {
            self.send(stream)?;
        }
        Ok(())
    }

    /// May block without a look at replies: those to writes, and requests without payload, fit into the socket, so nobody
    /// waits for the other.
    fn send(&mut self, stream: &mut TcpStream) -> io::Result<()> {
        stream
            .write_all(&self.messages[..self.waiting])
            .map_err(timed_out)?;
        self.waiting = 0;
        Ok(())
    }

    /// The operation is over; tells its place, and since when it was under way.
    fn answered(&mut self, cookie: u64) -> Result<(usize, Instant), Fault> {
        let slot = (cookie % self.slots.len() as u64) as usize;
        match self.slots[slot].take_if(|(asked, _)| *asked == cookie) {
            Some((_, since)) => {
                self.in_flight -= 1;
                Ok((slot, since))
            }
            None => Err(Fault::Unknown(cookie)),
        }
    }
}

/// What the server answers, as it comes in: headers are looked at, payload is left where it was received.
struct Replies {
    buffer: Vec<u8>,
    /// Received and not looked at: `buffer[start..end]`.
    start: usize,
    end: usize,
    /// Bytes that each reply has besides its header.
    payload: usize,
    /// The reply that is coming in, and how much of its payload is still to come.
    current: Option<(u64, usize)>,
}

impl Replies {
    fn new(shape: &Shape) -> Self {
        let payload = match shape.direction {
            Direction::Read => shape.size,
            Direction::Write => 0,
        };
        let most = shape.depth * (HEADER_BYTES + payload);
        Self {
            buffer: vec![0; most.min(CALL_BYTES)],
            start: 0,
            end: 0,
            payload,
            current: None,
        }
    }

    /// Waits for more. All that came before has been looked at, but for a header that is not complete.
    fn receive(&mut self, stream: &mut TcpStream) -> io::Result<()> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        match stream.read(&mut self.buffer[self.end..]) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => {
                self.end += n;
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(timed_out(error)),
        }
    }

    /// The next request that has been answered in full; none until more comes.
    fn next(&mut self) -> Result<Option<u64>, Fault> {
        let (cookie, missing) = match self.current {
            Some(current) => current,
            None => {
                let arrived = &self.buffer[self.start..self.end];
                let Ok((header, _)) = RawReply::ref_from_prefix(arrived) else {
                    return Ok(None);
                };
                let cookie = header.parse()?;
                self.start += HEADER_BYTES;
                (cookie, self.payload)
            }
        };
        let here = missing.min(self.end - self.start);
        self.start += here;
        self.current = (here < missing).then_some((cookie, missing - here));
        Ok(self.current.is_none().then_some(cookie))
    }
}

#[cfg(test)]
mod tests;
