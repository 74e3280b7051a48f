//! A node and the sockets of its links.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use softrdma::offload::LinkId;
use softrdma::{SocketState, Time};

use crate::group::node::Node;

/// Bytes received or sent by one system call.
const IO_BYTES: usize = 256 << 10;
/// After so many bytes, one way, it is another link's turn: a long READ, or a client that sends faster than it is served, holds up the
/// others for no longer than that takes.
const TURN_BYTES: usize = 4 * IO_BYTES;
/// Between attempts to reach a member that is not there yet.
pub(crate) const RETRY: Duration = Duration::from_millis(5);
/// Longest sleep.
pub(crate) const SLEEP: Duration = Duration::from_millis(100);
pub(crate) const LISTENER: Token = Token(usize::MAX);
pub(crate) const WAKER: Token = Token(usize::MAX - 1);

#[derive(Debug)]
struct Socket {
    stream: TcpStream,
    link: LinkId,
    output: Vec<u8>,
    sent: usize,
    /// Received, and not taken yet.
    input: Vec<u8>,
    readable: bool,
    writable: bool,
    fin_sent: bool,
    eof: bool,
}

/// A node and the sockets of its links.
#[derive(Debug)]
pub(crate) struct Loop<N: Node> {
    pub(crate) node: N,
    pub(crate) poll: Poll,
    events: Events,
    sockets: HashMap<Token, Socket>,
    next: usize,
    started: Instant,
    scratch: Vec<u8>,
    pub(crate) spin: Duration,
    active: Instant,
    /// The listener has somebody.
    pub(crate) calls: bool,
    /// Something could have been sent still when it was another link's turn.
    pub(super) unsent: bool,
}

impl<N: Node> Loop<N> {
    pub(crate) fn new(node: N) -> io::Result<Self> {
        let now = Instant::now();
        Ok(Self {
            node,
            poll: Poll::new()?,
            events: Events::with_capacity(256),
            sockets: HashMap::new(),
            next: 0,
            started: now,
            scratch: vec![0; IO_BYTES],
            spin: Duration::ZERO,
            active: now,
            calls: false,
            unsent: false,
        })
    }

    pub(crate) fn now(&self) -> Time {
        Time(0) + self.started.elapsed()
    }

    pub(crate) fn add(&mut self, mut stream: TcpStream, link: LinkId) -> io::Result<()> {
        let token = Token(self.next);
        self.next += 1;
        // Without it small messages wait for each other; a socket that refuses it works all the same.
        let _ = stream.set_nodelay(true);
        let both = Interest::READABLE | Interest::WRITABLE;
        self.poll.registry().register(&mut stream, token, both)?;
        let socket = Socket {
            stream,
            link,
            output: Vec::new(),
            sent: 0,
            input: Vec::new(),
            readable: false,
            writable: false,
            fin_sent: false,
            eof: false,
        };
        self.sockets.insert(token, socket);
        Ok(())
    }

    /// Waits for something to happen, at most so long, and lets the node act on it.
    pub(crate) fn turn(&mut self, wait: Duration) -> io::Result<()> {
        self.transmit();
        let now = self.now();
        let due = self.node.poll_timeout();
        let due = due.map_or(wait, |at| Duration::from_nanos(at.0.saturating_sub(now.0)));
        let mut wait = wait.min(due);
        if self.active.elapsed() < self.spin || self.unsent || self.has_input() {
            wait = Duration::ZERO;
        }
        match self.poll.poll(&mut self.events, Some(wait)) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            result => result?,
        }
        for event in &self.events {
            match event.token() {
                LISTENER => self.calls = true,
                WAKER => {}
                token => {
                    if let Some(socket) = self.sockets.get_mut(&token) {
                        socket.readable |= event.is_readable() || event.is_read_closed();
                        socket.writable |= event.is_writable() || event.is_write_closed();
                    }
                }
            }
        }
        self.receive();
        let now = self.now();
        if self.node.poll_timeout().is_some_and(|at| at <= now) {
            self.node.handle_timeout(now);
        }
        self.transmit();
        Ok(())
    }

    /// Is there input that the node would take now?
    fn has_input(&self) -> bool {
        let waits = |socket: &Socket| (socket.readable && !socket.eof) || !socket.input.is_empty();
        let mut sockets = self.sockets.values();
        sockets.any(|socket| waits(socket) && self.node.wants_input(socket.link))
    }

    fn receive(&mut self) {
        let now = Time(0) + self.started.elapsed();
        for socket in self.sockets.values_mut() {
            let mut received = 0;
            while received < TURN_BYTES && self.node.wants_input(socket.link) {
                if !socket.input.is_empty() {
                    let taken = self.node.handle_bytes(socket.link, now, &socket.input);
                    socket.input.drain(..taken);
                    if !socket.input.is_empty() {
                        break;
                    }
                }
                if !socket.readable || socket.eof {
                    break;
                }
                match socket.stream.read(&mut self.scratch) {
                    Ok(0) => {
                        socket.eof = true;
                        self.node.handle_eof(socket.link, now);
                    }
                    Ok(count) => {
                        self.active = Instant::now();
                        received += count;
                        let bytes = &self.scratch[..count];
                        let taken = self.node.handle_bytes(socket.link, now, bytes);
                        socket.input.extend_from_slice(&bytes[taken..]);
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => socket.readable = false,
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(_) => {
                        socket.eof = true;
                        self.node.handle_transport_error(socket.link);
                    }
                }
            }
        }
    }

    /// Sends what there is, on all links: what came on one leaves on another.
    pub(super) fn transmit(&mut self) {
        let now = Time(0) + self.started.elapsed();
        let mut ended = Vec::new();
        self.unsent = false;
        for (&token, socket) in &mut self.sockets {
            let mut sent = 0;
            while socket.writable && sent < TURN_BYTES {
                if socket.sent == socket.output.len() {
                    socket.output.clear();
                    socket.sent = 0;
                    let out = &mut socket.output;
                    self.node.poll_transmit(socket.link, now, out, IO_BYTES);
                    if socket.output.is_empty() {
                        break;
                    }
                }
                match socket.stream.write(&socket.output[socket.sent..]) {
                    Ok(count) => {
                        socket.sent += count;
                        sent += count;
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => socket.writable = false,
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(_) => {
                        socket.writable = false;
                        socket.output.clear();
                        socket.sent = 0;
                        // What the peer said before it reset the connection may explain that.
                        while socket.input.is_empty()
                            && self.node.wants_input(socket.link)
                            && let Ok(count @ 1..) = socket.stream.read(&mut self.scratch)
                        {
                            let bytes = &self.scratch[..count];
                            let taken = self.node.handle_bytes(socket.link, now, bytes);
                            socket.input.extend_from_slice(&bytes[taken..]);
                        }
                        self.node.handle_transport_error(socket.link);
                    }
                }
            }
            let turn_is_over = socket.writable && sent >= TURN_BYTES;
            self.unsent |= turn_is_over;
            if turn_is_over || socket.sent < socket.output.len() {
                continue;
            }
            match self.node.socket_state(socket.link) {
                SocketState::Open => {}
                SocketState::ShutdownWrite if socket.fin_sent => {}
                SocketState::ShutdownWrite => {
                    socket.fin_sent = true;
                    // It fails only if the connection is gone, which receiving finds.
                    let _ = socket.stream.shutdown(Shutdown::Write);
                }
                SocketState::Close => ended.push(token),
            }
        }
        for token in ended {
            if let Some(mut socket) = self.sockets.remove(&token) {
                let _ = self.poll.registry().deregister(&mut socket.stream);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Has so much to say on each of its links, and hears everything.
    struct Talker {
        left: Vec<usize>,
        heard: Vec<usize>,
        failed: Vec<LinkId>,
    }

    impl Node for Talker {
        fn handle_bytes(&mut self, link: LinkId, _: Time, bytes: &[u8]) -> usize {
            self.heard[link.0 as usize] += bytes.len();
            bytes.len()
        }

        fn handle_eof(&mut self, _: LinkId, _: Time) {}

        fn handle_transport_error(&mut self, link: LinkId) {
            self.failed.push(link);
        }

        fn poll_transmit(
            &mut self,
            link: LinkId,
            _: Time,
            out: &mut Vec<u8>,
            limit: usize,
        ) -> usize {
            let left = &mut self.left[link.0 as usize];
            let count = limit.min(*left);
            *left -= count;
            out.resize(out.len() + count, 7);
            count
        }

        fn wants_input(&self, _: LinkId) -> bool {
            true
        }

        fn socket_state(&self, _: LinkId) -> SocketState {
            SocketState::Open
        }

        fn poll_timeout(&self) -> Option<Time> {
            None
        }

        fn handle_timeout(&mut self, _: Time) {}
    }

    fn talker(left: Vec<usize>) -> (Loop<Talker>, Vec<std::net::TcpStream>) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let heard = vec![0; left.len()];
        let mut inner = Loop::new(Talker {
            left,
            heard,
            failed: Vec::new(),
        })
        .unwrap();
        let links = 0..inner.node.left.len() as u32;
        let pair = |link| {
            let far = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let near = listener.accept().unwrap().0;
            near.set_nonblocking(true).unwrap();
            inner.add(TcpStream::from_std(near), LinkId(link)).unwrap();
            far
        };
        let far = links.map(pair).collect();
        (inner, far)
    }

    /// Who reads much is sent a little at a time, and the loop does not sleep meanwhile; others get theirs in between (I16).
    #[test]
    fn a_long_answer_is_not_sent_in_one_go() {
        const LONG: usize = 64 << 20;
        const WAIT: Duration = Duration::from_secs(5);
        let (mut inner, far) = talker(vec![LONG, 8]);
        let readers = far.into_iter().map(|mut far| {
            std::thread::spawn(move || io::copy(&mut far, &mut io::sink()).unwrap())
        });
        let readers: Vec<_> = readers.collect();
        let mut before = LONG;
        while inner.node.left != [0, 0] || inner.unsent {
            let begun = Instant::now();
            inner.turn(WAIT).unwrap();
            // One that has sent the last of it has nothing to do any more.
            let is_done = inner.node.left == [0, 0] && !inner.unsent;
            assert!(is_done || begun.elapsed() < WAIT, "it slept");
            let now = inner.node.left[0];
            assert!(
                before - now <= 2 * (TURN_BYTES + IO_BYTES),
                "{} at once",
                before - now
            );
            before = now;
        }
        while inner
            .sockets
            .values()
            .any(|socket| socket.sent < socket.output.len())
        {
            inner.turn(WAIT).unwrap();
        }
        drop(inner);
        let read: Vec<u64> = readers
            .into_iter()
            .map(|reader| reader.join().unwrap())
            .collect();
        assert_eq!(read, [LONG as u64, 8]);
    }

    /// Who sends without a pause is heard a little at a time, and heard to the end.
    #[test]
    fn a_long_message_is_not_taken_in_one_go() {
        const LONG: usize = 64 << 20;
        let (mut inner, far) = talker(vec![0, 0]);
        let writers = far
            .into_iter()
            .map(|mut far| std::thread::spawn(move || far.write_all(&vec![1; LONG]).unwrap()));
        let writers: Vec<_> = writers.collect();
        let begun = Instant::now();
        let mut before = [0, 0];
        while inner.node.heard != [LONG, LONG] {
            inner.turn(Duration::from_secs(60)).unwrap();
            for (before, now) in before.iter_mut().zip(&inner.node.heard) {
                assert!(now - *before <= TURN_BYTES + IO_BYTES, "{}", now - *before);
                *before = *now;
            }
        }
        assert!(begun.elapsed() < Duration::from_secs(50), "it slept");
        for writer in writers {
            writer.join().unwrap();
        }
    }

    /// What a peer said last is heard although it has reset the connection before all could be sent that it did not want.
    #[test]
    fn last_words_in_front_of_a_reset() {
        let (mut inner, mut far) = talker(vec![1 << 30]);
        inner.turn(Duration::ZERO).unwrap();
        let mut far = far.pop().unwrap();
        far.write_all(&[7; 100]).unwrap();
        // With bytes that it has not read.
        drop(far);
        let socket = inner.sockets.values_mut().next().unwrap();
        socket.writable = true;
        inner.transmit();
        assert_eq!(inner.node.failed, [LinkId(0)]);
        assert_eq!(inner.node.heard, [100]);
    }
}
