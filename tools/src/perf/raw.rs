//! The bare TCP request/response program: what this machine can do when nothing is interpreted or stored.
//!
//! Messages are as long as those of an RDMA READ (or WRITE followed by its zero-length READ), many connections are
//! served by one thread on each side, and everything that is ready goes out in one system call. It shares no code with
//! the reactor: epoll and plain `read`/`write`, so that it can show what the reactor leaves on the table.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};

use super::cpu;
use super::figures::{Figures, latencies};
use super::shape::{Direction, Shape};

/// FPDU of a Read Request.
const REQUEST_BYTES: usize = 52;
/// FPDU overhead of a tagged segment.
const HEADER_BYTES: usize = 20;
const CHUNK_BYTES: usize = 256 * 1024;
/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(5);
const LISTENER: Token = Token(usize::MAX);

/// Bytes that one operation takes in each direction: (to the server, from the server).
pub fn message_bytes(direction: Direction, size: usize) -> (usize, usize) {
    match direction {
        Direction::Read => (REQUEST_BYTES, HEADER_BYTES + size),
        Direction::Write => (HEADER_BYTES + size + REQUEST_BYTES, HEADER_BYTES),
    }
}

/// Serves until the process is killed: answers every `request` bytes with `response` bytes.
pub fn serve(
    mut listener: TcpListener,
    (request, response): (usize, usize),
    polls: bool,
) -> io::Result<()> {
    let mut poll = Poll::new()?;
    poll.registry()
        .register(&mut listener, LISTENER, Interest::READABLE)?;
    let mut events = Events::with_capacity(256);
    let mut peers: Vec<Option<Peer>> = Vec::new();
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        wait(&mut poll, &mut events, None, polls)?;
        for event in &events {
            if event.token() == LISTENER {
                while let Ok((mut stream, _)) = listener.accept() {
                    stream.set_nodelay(true)?;
                    let token = Token(peers.len());
                    poll.registry().register(
                        &mut stream,
                        token,
                        Interest::READABLE | Interest::WRITABLE,
                    )?;
                    peers.push(Some(Peer::new(stream)));
                }
                continue;
            }
            let slot = &mut peers[event.token().0];
            let Some(peer) = slot else { continue };
            let alive = (|| {
                let received = peer.receive(&mut chunk)?;
                let complete = peer.complete(received, request);
                peer.send_more(complete * response, &chunk)
            })();
            if alive.is_err() {
                *slot = None;
            }
        }
    }
}

/// One end of a connection of the raw program.
struct Peer {
    stream: TcpStream,
    partial: usize,
    to_send: usize,
}

impl Peer {
    fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            partial: 0,
            to_send: 0,
        }
    }

    /// Takes everything the socket holds and returns how much that was; an error when the peer is gone.
    fn receive(&mut self, chunk: &mut [u8]) -> io::Result<usize> {
        let mut received = 0;
        loop {
            match self.stream.read(chunk) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => {
                    received += n;
                    // A short read means that the socket is empty: no need to be told so by another call.
                    if n < chunk.len() {
                        return Ok(received);
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(received),
                Err(e) => return Err(e),
            }
        }
    }

    /// Whole messages of `bytes` each that `received` more bytes complete.
    fn complete(&mut self, received: usize, bytes: usize) -> usize {
        self.partial += received;
        let whole = self.partial / bytes;
        self.partial %= bytes;
        whole
    }

    /// Sends `more` bytes of anything, as far as the socket takes them.
    fn send_more(&mut self, more: usize, chunk: &[u8]) -> io::Result<()> {
        self.to_send += more;
        while self.to_send > 0 {
            match self.stream.write(&chunk[..self.to_send.min(chunk.len())]) {
                Ok(n) => self.to_send -= n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

/// Runs the client side of `shape` against [`serve`] at `server`.
pub fn run(server: SocketAddr, shape: &Shape, server_pid: Option<u32>) -> io::Result<Figures> {
    let (request, response) = message_bytes(shape.direction, shape.size);
    let mut poll = Poll::new()?;
    let mut events = Events::with_capacity(256);
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut peers = Vec::new();
    for n in 0..shape.connections {
        let stream = std::net::TcpStream::connect(server)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let mut stream = TcpStream::from_std(stream);
        poll.registry().register(
            &mut stream,
            Token(n),
            Interest::READABLE | Interest::WRITABLE,
        )?;
        peers.push((Peer::new(stream), std::collections::VecDeque::new()));
    }
    let mut histogram = latencies();
    let warm = Duration::from_millis(200);
    let mut started: Option<(Instant, Duration, Option<Duration>)> = None;
    let begin = Instant::now();
    for (peer, sent) in &mut peers {
        sent.extend(std::iter::repeat_n(begin, shape.depth));
        peer.send_more(shape.depth * request, &chunk)?;
    }
    loop {
        wait(&mut poll, &mut events, Some(PATIENCE), shape.poll)?;
        if events.is_empty() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let now = Instant::now();
        if started.is_none() && now - begin > warm {
            histogram.reset();
            started = Some((
                now,
                cpu::used(None).unwrap_or_default(),
                server_pid.and_then(|pid| cpu::used(Some(pid))),
            ));
        }
        if let Some((start, client, server)) = started
            && now - start >= shape.duration()
        {
            return Ok(Figures::new(
                histogram,
                shape.size,
                now - start,
                cpu::used(None).unwrap_or_default() - client,
                server.and_then(|used| Some(cpu::used(server_pid)? - used)),
            ));
        }
        for event in &events {
            let (peer, sent) = &mut peers[event.token().0];
            let received = peer.receive(&mut chunk)?;
            let whole = peer.complete(received, response);
            let now = Instant::now();
            for _ in 0..whole {
                let at = sent.pop_front().expect("answers follow requests");
                histogram.saturating_record((now - at).as_nanos() as u64);
                sent.push_back(now);
            }
            peer.send_more(whole * request, &chunk)?;
        }
    }
}

/// Waits for events; signals (of a debugger, say) do not end that.
fn wait(
    poll: &mut Poll,
    events: &mut Events,
    timeout: Option<Duration>,
    polls: bool,
) -> io::Result<()> {
    let start = Instant::now();
    let sleep = if polls { Some(Duration::ZERO) } else { timeout };
    loop {
        match poll.poll(events, sleep) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Ok(()) if polls && events.is_empty() && timeout.is_none_or(|t| start.elapsed() < t) => {
            }
            other => return other,
        }
    }
}
