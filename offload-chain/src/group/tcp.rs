//! Members and clients over TCP: the loop that stands for the NIC.
//!
//! A [`MemberServer`] owns a member with its engine and runs in a thread or process of its own; nothing of the member's
//! application is in it, so that may be stopped. A [`TcpClient`] owns a client and moves bytes while it waits. Sockets are
//! non-blocking; the loop sleeps in the kernel unless told to [spin](MemberServer::spin) for a while after each message.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};
use softrdma::offload::LinkId;
use softrdma::{Config, SocketState, Time};

use super::client::{Client, ClientError};
use super::member::Member;
use super::node::{Node, Store};
use super::primitives::{Flight, Outcome, Primitive, PrimitiveError, Primitives};
use super::shape::{Denied, GroupShape};
use crate::clock::until;

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
    unsent: bool,
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
    fn transmit(&mut self) {
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

/// Serves a member.
#[derive(Debug)]
pub struct MemberServer<S: Store> {
    inner: Loop<Member<S>>,
    /// None: somebody else accepts connections.
    listener: Option<TcpListener>,
    /// The addresses of all members, which are tried in turn.
    places: Vec<Vec<SocketAddr>>,
    /// How often each member was tried to be reached.
    tries: Vec<usize>,
    tried: Instant,
    progress: Progress,
}

/// Since when the oldest operation of a member waits for something.
#[derive(Debug, Default)]
struct Progress {
    finished: u64,
    since: Option<Instant>,
    worst: Duration,
}

impl Progress {
    fn look(&mut self, now: Instant, begun: u64, finished: u64) {
        if let Some(since) = self.since {
            self.worst = self.worst.max(now - since);
        }
        let moved = self.finished != finished;
        self.finished = finished;
        if begun == finished {
            self.since = None;
        } else if moved || self.since.is_none() {
            self.since = Some(now);
        }
    }
}

impl<S: Store> MemberServer<S> {
    /// A server on a listening socket. `places` are those of all members, in order: of one that has several addresses, all are tried.
    ///
    /// # Errors
    /// What the system says.
    pub fn new(
        member: Member<S>,
        listener: std::net::TcpListener,
        places: &[impl ToSocketAddrs],
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let mut listener = TcpListener::from_std(listener);
        let mut server = Self::without_listener(member, places)?;
        let registry = server.inner.poll.registry();
        registry.register(&mut listener, LISTENER, Interest::READABLE)?;
        server.listener = Some(listener);
        Ok(server)
    }

    /// A server whose connections somebody else accepts, and hands over by [`admit`](Self::admit).
    ///
    /// # Errors
    /// What the system says.
    pub fn without_listener(member: Member<S>, places: &[impl ToSocketAddrs]) -> io::Result<Self> {
        let addresses = |place: &_| ToSocketAddrs::to_socket_addrs(place).map(Vec::from_iter);
        let places: Vec<_> = places.iter().map(addresses).collect::<io::Result<_>>()?;
        let now = Instant::now();
        Ok(Self {
            tried: now.checked_sub(RETRY).unwrap_or(now),
            inner: Loop::new(member)?,
            listener: None,
            tries: vec![0; places.len()],
            places,
            progress: Progress::default(),
        })
    }

    /// Takes a connection that somebody made. With too many of them, it is closed.
    pub fn admit(&mut self, stream: TcpStream) {
        let now = self.inner.now();
        let Ok(link) = self.inner.node.listen(now) else {
            return;
        };
        if self.inner.add(stream, link).is_err() {
            self.inner.node.handle_transport_error(link);
        }
    }

    /// The longest that the oldest operation had to wait here, for memory or for the next member's socket, since this was
    /// last asked.
    pub fn take_lag(&mut self) -> Duration {
        self.look_at_progress();
        std::mem::take(&mut self.progress.worst)
    }

    /// For how long the oldest operation has waited already, if there is one.
    pub(crate) fn waiting(&self) -> Option<Duration> {
        self.progress.since.map(|since| since.elapsed())
    }

    fn look_at_progress(&mut self) {
        let (begun, finished) = self.inner.node.engine().operations();
        self.progress.look(Instant::now(), begun, finished);
    }

    /// The member.
    pub fn member(&mut self) -> &mut Member<S> {
        &mut self.inner.node
    }

    /// Something that makes [`turn`](Self::turn) return, from another thread: for a store that has done something. One
    /// at most for a server.
    ///
    /// # Errors
    /// What the system says.
    pub fn waker(&self) -> io::Result<Arc<Waker>> {
        Ok(Arc::new(Waker::new(self.inner.poll.registry(), WAKER)?))
    }

    /// Looks at the sockets without sleeping for so long after the last message (DESIGN D4).
    pub fn spin(&mut self, spin: Duration) {
        self.inner.spin = spin;
    }

    /// One turn of the loop; sleeps at most a tenth of a second.
    ///
    /// # Errors
    /// If polling fails: the loop can not go on.
    pub fn turn(&mut self) -> io::Result<()> {
        self.connect();
        let missing = !self.inner.node.missing().is_empty();
        self.inner.turn(if missing { RETRY } else { SLEEP })?;
        if std::mem::take(&mut self.inner.calls) {
            self.accept();
        }
        let now = self.inner.now();
        self.inner.node.service(now);
        self.look_at_progress();
        Ok(())
    }

    /// Runs until told to end, or until the group is broken at this member.
    ///
    /// # Errors
    /// As [`turn`](Self::turn).
    pub fn run(&mut self, end: &AtomicBool) -> io::Result<()> {
        while !end.load(Ordering::Acquire) && !self.inner.node.is_broken() {
            self.turn()?;
        }
        self.last_words();
        Ok(())
    }

    /// Sends what a member that is broken has to say still: why.
    pub(crate) fn last_words(&mut self) {
        self.inner.transmit();
        while self.inner.unsent {
            self.inner.transmit();
        }
    }

    /// Ends the member (I12) and gives back its store.
    pub fn stop(self) -> S {
        self.inner.node.stop()
    }

    fn connect(&mut self) {
        if self.tried.elapsed() < RETRY {
            return;
        }
        self.tried = Instant::now();
        for number in self.inner.node.missing() {
            let Some(place) = self.places.get(number).filter(|place| !place.is_empty()) else {
                continue;
            };
            let tries = &mut self.tries[number];
            let address = place[*tries % place.len()];
            *tries = tries.wrapping_add(1);
            let Ok(stream) = TcpStream::connect(address) else {
                continue;
            };
            let now = self.inner.now();
            let Ok(link) = self.inner.node.connect(now, number) else {
                continue;
            };
            if self.inner.add(stream, link).is_err() {
                self.inner.node.handle_transport_error(link);
            }
        }
    }

    fn accept(&mut self) {
        while let Some(listener) = &self.listener {
            match listener.accept() {
                Ok((stream, _)) => self.admit(stream),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // Nobody more; or out of descriptors, and the next event tries again.
                Err(_) => return,
            }
        }
    }
}

/// Why a client over TCP could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The client.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// A member can not be reached.
    #[error("member {member} at {address}: {source}")]
    Connect {
        /// Which.
        member: usize,
        /// Where.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The sockets.
    #[error("sockets: {0}")]
    Io(#[from] io::Error),
    /// A member does not let it in.
    #[error("a member did not let the client in: {0}")]
    Denied(Denied),
    /// The group is no more.
    #[error("{0}")]
    Broken(String),
    /// Nothing happened for too long.
    #[error("the group was not ready within {0:?}")]
    TimedOut(Duration),
}

/// Connects to a member at the first of its addresses where it is.
fn reach(
    member: usize,
    place: &impl ToSocketAddrs,
    timeout: Duration,
) -> Result<std::net::TcpStream, StartError> {
    let mut failed = StartError::Io(io::Error::other("a member has no address"));
    for address in place.to_socket_addrs()? {
        match std::net::TcpStream::connect_timeout(&address, timeout) {
            Ok(stream) => return Ok(stream),
            Err(source) => {
                failed = StartError::Connect {
                    member,
                    address,
                    source,
                }
            }
        }
    }
    Err(failed)
}

/// A client of members that [`OverTcp`] connects, one link to each.
pub trait Joins: Node + Primitives {
    /// Whether it takes primitives by now.
    ///
    /// # Errors
    /// If it never will.
    fn has_joined(&self) -> Result<bool, StartError>;
}

impl Joins for Client {
    fn has_joined(&self) -> Result<bool, StartError> {
        match (self.denied(), self.broken()) {
            _ if self.is_ready() => Ok(true),
            (Some(denied), _) => Err(StartError::Denied(denied)),
            (None, Some(why)) => Err(StartError::Broken(why.to_owned())),
            (None, None) => Ok(false),
        }
    }
}

/// A client with its sockets.
#[derive(Debug)]
pub struct OverTcp<C: Joins> {
    inner: Loop<C>,
}

/// A client of a group over TCP.
pub type TcpClient = OverTcp<Client>;

impl TcpClient {
    /// Connects to all members and waits until the group is ready. Of a member that has several addresses, all are tried.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn connect(
        shape: GroupShape,
        number: u16,
        addresses: &[impl ToSocketAddrs],
        link: &Config,
        seed: [u8; 32],
        timeout: Duration,
    ) -> Result<Self, StartError> {
        let client = Client::new(shape, number, link, seed, Time(0))?;
        Self::join(client, addresses, timeout)
    }

    /// The client.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.inner.node
    }
}

impl<C: Joins> OverTcp<C> {
    /// Connects a client to all members, and waits until it takes primitives.
    pub(crate) fn join(
        client: C,
        addresses: &[impl ToSocketAddrs],
        timeout: Duration,
    ) -> Result<Self, StartError> {
        let mut inner = Loop::new(client)?;
        for (member, place) in addresses.iter().enumerate() {
            let stream = reach(member, place, timeout)?;
            stream.set_nonblocking(true)?;
            inner.add(TcpStream::from_std(stream), LinkId(member as u32))?;
        }
        let deadline = until(timeout);
        while !inner.node.has_joined()? {
            if Instant::now() >= deadline {
                return Err(StartError::TimedOut(timeout));
            }
            inner.turn(RETRY)?;
        }
        Ok(Self { inner })
    }

    /// Looks at the sockets without sleeping for so long after the last message.
    pub fn spin(&mut self, spin: Duration) {
        self.inner.spin = spin;
    }

    /// Moves bytes, waiting at most so long for something to happen.
    ///
    /// # Errors
    /// If polling fails.
    pub fn turn(&mut self, wait: Duration) -> io::Result<()> {
        self.inner.turn(wait)
    }

    /// The next outcome, waiting at most so long for it; none if there is none by then.
    ///
    /// # Errors
    /// If polling fails.
    pub fn wait(
        &mut self,
        timeout: Duration,
    ) -> io::Result<Option<(Flight, Result<Outcome, PrimitiveError>)>> {
        let deadline = until(timeout);
        loop {
            if let Some(outcome) = self.poll() {
                return Ok(Some(outcome));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.inner.turn(left.min(SLEEP))?;
        }
    }
}

impl<C: Joins> Primitives for OverTcp<C> {
    fn members(&self) -> usize {
        self.inner.node.members()
    }

    fn size(&self) -> u64 {
        self.inner.node.size()
    }

    fn longest_write(&self) -> u64 {
        self.inner.node.longest_write()
    }

    fn persists(&self) -> bool {
        self.inner.node.persists()
    }

    fn post(&mut self, primitive: Primitive) -> Result<Flight, PrimitiveError> {
        self.inner.node.post(primitive)
    }

    fn poll(&mut self) -> Option<(Flight, Result<Outcome, PrimitiveError>)> {
        self.inner.node.poll()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Has so much to say on each of its links, and hears everything.
    struct Talker {
        left: Vec<usize>,
        heard: Vec<usize>,
    }

    impl Node for Talker {
        fn handle_bytes(&mut self, link: LinkId, _: Time, bytes: &[u8]) -> usize {
            self.heard[link.0 as usize] += bytes.len();
            bytes.len()
        }

        fn handle_eof(&mut self, _: LinkId, _: Time) {}

        fn handle_transport_error(&mut self, link: LinkId) {
            panic!("{link:?} failed");
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
        let mut inner = Loop::new(Talker { left, heard }).unwrap();
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
        let (mut inner, far) = talker(vec![LONG, 8]);
        let readers = far.into_iter().map(|mut far| {
            std::thread::spawn(move || io::copy(&mut far, &mut io::sink()).unwrap())
        });
        let readers: Vec<_> = readers.collect();
        let begun = Instant::now();
        let mut before = LONG;
        while inner.node.left != [0, 0] || inner.unsent {
            inner.turn(Duration::from_secs(60)).unwrap();
            let now = inner.node.left[0];
            assert!(
                before - now <= 2 * (TURN_BYTES + IO_BYTES),
                "{} at once",
                before - now
            );
            before = now;
        }
        assert!(begun.elapsed() < Duration::from_secs(50), "it slept");
        while inner
            .sockets
            .values()
            .any(|socket| socket.sent < socket.output.len())
        {
            inner.turn(Duration::from_secs(60)).unwrap();
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

    /// A member that has nothing to do is not slow; one that waits is, as long as its oldest operation waits.
    #[test]
    fn waiting_is_what_counts() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut progress = Progress::default();
        progress.look(at(0), 0, 0);
        progress.look(at(500), 5, 5);
        assert_eq!(progress.worst, Duration::ZERO);
        progress.look(at(600), 7, 5);
        progress.look(at(620), 7, 6);
        assert_eq!(progress.worst, Duration::from_millis(20));
        progress.look(at(650), 8, 6);
        progress.look(at(670), 8, 8);
        assert_eq!(progress.worst, Duration::from_millis(50));
        progress.look(at(900), 9, 9);
        assert_eq!(progress.worst, Duration::from_millis(50));
    }
}
