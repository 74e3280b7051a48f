//! A node and the sockets of its links.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use flashnet_tls::{HandshakeError, Progress, TlsError};
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use softrdma::offload::LinkId;
use softrdma::{SocketState, Time};

use super::connected::{Connected, Refusal, Tls};
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
    tls: Tls,
    /// This end has called.
    called: bool,
    link: LinkId,
    /// As it goes over the wire.
    output: Vec<u8>,
    sent: usize,
    /// Received, opened, and not taken yet.
    input: Vec<u8>,
    readable: bool,
    writable: bool,
    /// The end was announced inside of TLS.
    announced: bool,
    fin_sent: bool,
    eof: bool,
}

impl Socket {
    /// Whether bytes of the link can come and go; until then, what is said is of TLS.
    fn is_open(&mut self, node: &mut impl Node, refusal: &mut Option<Refusal>) -> bool {
        let Tls::Shaking(_) = &self.tls else {
            return true;
        };
        if self.eof || !(self.readable || self.writable) {
            return false;
        }
        let Tls::Shaking(handshake) = std::mem::replace(&mut self.tls, Tls::Broken) else {
            return true;
        };
        // Until it has been seen to be connected it takes nothing.
        match handshake.advance(&mut self.stream) {
            Ok(Progress::Waiting(handshake)) => {
                self.tls = Tls::Shaking(handshake);
                // The next event tells of either.
                (self.readable, self.writable) = (false, false);
                return false;
            }
            Ok(Progress::Done(mut records)) => {
                self.input = records.take_early();
                self.tls = Tls::Sealed(records);
                // What it had to wait for last is not known.
                (self.readable, self.writable) = (true, true);
                return true;
            }
            Err(HandshakeError::Tls(cause)) => self.refuse(cause, refusal),
            Err(HandshakeError::Socket(_)) => {}
        }
        self.eof = true;
        node.handle_transport_error(self.link);
        true
    }

    /// What was received is the link's.
    fn hear(
        &mut self,
        node: &mut impl Node,
        now: Time,
        bytes: &[u8],
        refusal: &mut Option<Refusal>,
    ) {
        let (link, input) = (self.link, &mut self.input);
        let mut take = |bytes: &[u8]| {
            let mut taken = 0;
            if input.is_empty() {
                taken = node.handle_bytes(link, now, bytes);
            }
            input.extend_from_slice(&bytes[taken..]);
        };
        let records = match &mut self.tls {
            Tls::Sealed(records) => records,
            Tls::None => return take(bytes),
            Tls::Shaking(_) | Tls::Broken => return,
        };
        if let Err(cause) = records.open(bytes, take) {
            // The peer may want to know why, if it listens.
            records.flush(&mut self.output);
            let _ = self.stream.write(&self.output[self.sent..]);
            self.output.clear();
            self.sent = 0;
            self.input.clear();
            self.refuse(cause, refusal);
            self.tls = Tls::Broken;
            self.eof = true;
            node.handle_transport_error(link);
        }
    }

    /// The peer says nothing more. By TLS that counts only if it has said so: otherwise somebody else may have cut the connection.
    fn end(&mut self, node: &mut impl Node, now: Time, refusal: &mut Option<Refusal>) {
        self.eof = true;
        match &self.tls {
            Tls::Sealed(records) if !records.has_ended() => {
                self.refuse(TlsError::Truncated, refusal);
                node.handle_transport_error(self.link);
            }
            _ => node.handle_eof(self.link, now),
        }
    }

    fn refuse(&self, cause: TlsError, refusal: &mut Option<Refusal>) {
        *refusal = Some(Refusal {
            called: self.called,
            peer: self.stream.peer_addr().ok(),
            cause,
        });
    }

    /// Takes from the node what one write takes, and the announcement of the end behind the last of it.
    fn fill(&mut self, node: &mut impl Node, now: Time, plain: &mut Vec<u8>) {
        self.output.clear();
        self.sent = 0;
        let records = match &mut self.tls {
            Tls::Sealed(records) => records,
            Tls::None => {
                node.poll_transmit(self.link, now, &mut self.output, IO_BYTES);
                return;
            }
            Tls::Shaking(_) | Tls::Broken => return,
        };
        plain.clear();
        node.poll_transmit(self.link, now, plain, IO_BYTES);
        records.seal(plain, &mut self.output);
        let ends = || node.socket_state(self.link) == SocketState::ShutdownWrite;
        if plain.is_empty() && !self.announced && ends() {
            self.announced = true;
            records.finish(&mut self.output);
        }
    }
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
    /// What is to be sealed.
    plain: Vec<u8>,
    /// The last one, if nobody has taken it.
    refusal: Option<Refusal>,
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
            plain: Vec::new(),
            refusal: None,
            spin: Duration::ZERO,
            active: now,
            calls: false,
            unsent: false,
        })
    }

    pub(crate) fn now(&self) -> Time {
        Time(0) + self.started.elapsed()
    }

    /// Why somebody has no TLS connection, the last of those that there are to tell of.
    pub(super) fn take_refusal(&mut self) -> Option<Refusal> {
        self.refusal.take()
    }

    pub(crate) fn add(&mut self, connected: impl Into<Connected>, link: LinkId) -> io::Result<()> {
        let Connected {
            mut stream,
            tls,
            heard,
        } = connected.into();
        let token = Token(self.next);
        self.next += 1;
        // Without it small messages wait for each other; a socket that refuses it works all the same.
        let _ = stream.set_nodelay(true);
        let both = Interest::READABLE | Interest::WRITABLE;
        self.poll.registry().register(&mut stream, token, both)?;
        let socket = Socket {
            stream,
            called: matches!(tls, Tls::Shaking(_)),
            tls,
            link,
            output: Vec::new(),
            sent: 0,
            input: heard,
            readable: false,
            writable: false,
            announced: false,
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
            if !socket.is_open(&mut self.node, &mut self.refusal) {
                continue;
            }
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
                    Ok(0) => socket.end(&mut self.node, now, &mut self.refusal),
                    Ok(count) => {
                        self.active = Instant::now();
                        received += count;
                        let bytes = &self.scratch[..count];
                        socket.hear(&mut self.node, now, bytes, &mut self.refusal);
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
            if let Tls::Shaking(_) = &socket.tls {
                if self.node.socket_state(socket.link) == SocketState::Close {
                    ended.push(token);
                }
                continue;
            }
            let mut sent = 0;
            while socket.writable && sent < TURN_BYTES {
                if socket.sent == socket.output.len() {
                    socket.fill(&mut self.node, now, &mut self.plain);
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
                            && !socket.eof
                            && self.node.wants_input(socket.link)
                            && let Ok(count @ 1..) = socket.stream.read(&mut self.scratch)
                        {
                            let bytes = &self.scratch[..count];
                            socket.hear(&mut self.node, now, bytes, &mut self.refusal);
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
                // When it can be said.
                SocketState::ShutdownWrite
                    if matches!(socket.tls, Tls::Sealed(_)) && !socket.announced => {}
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
    use std::os::unix::fs::PermissionsExt;

    use flashnet_tls::{ClientFiles, ClientTls, Records, ServerFiles, ServerTls};

    use super::super::connected::Place;
    use super::*;

    /// Has so much to say on each of its links, and hears everything.
    struct Talker {
        left: Vec<usize>,
        heard: Vec<usize>,
        failed: Vec<LinkId>,
        ended: Vec<LinkId>,
    }

    impl Node for Talker {
        fn handle_bytes(&mut self, link: LinkId, _: Time, bytes: &[u8]) -> usize {
            self.heard[link.0 as usize] += bytes.len();
            bytes.len()
        }

        fn handle_eof(&mut self, link: LinkId, _: Time) {
            self.ended.push(link);
        }

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

    fn talks(left: Vec<usize>) -> Talker {
        let heard = vec![0; left.len()];
        Talker {
            left,
            heard,
            failed: Vec::new(),
            ended: Vec::new(),
        }
    }

    fn talker(left: Vec<usize>) -> (Loop<Talker>, Vec<std::net::TcpStream>) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut inner = Loop::new(talks(left)).unwrap();
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

    fn tls() -> (ServerTls, ClientTls) {
        let dir = tempfile::tempdir().unwrap();
        let [certificate, key] = ["certificate", "key"].map(|name| dir.path().join(name));
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        std::fs::write(&certificate, made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
        let called = ServerTls::new(&ServerFiles {
            certificate: certificate.clone(),
            key,
            client_ca: Vec::new(),
            client_crl: None,
        });
        let calls = ClientTls::new(&ClientFiles {
            ca: Some(certificate),
            name: Some("localhost".to_owned()),
            own: None,
        });
        (called.unwrap(), calls.unwrap())
    }

    /// A loop that calls by TLS and has so much to say, and who is called; the two have seen who they are.
    fn sealed(left: usize) -> (Loop<Talker>, std::net::TcpStream, Records) {
        let (called, calls) = tls();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let place = Place {
            addresses: vec![listener.local_addr().unwrap()],
            tls: Some(calls),
        };
        let mut inner = Loop::new(talks(vec![left])).unwrap();
        let address = place.addresses[0];
        let stream = TcpStream::connect(address).unwrap();
        let connected = place.connected(stream, address).unwrap();
        inner.add(connected, LinkId(0)).unwrap();
        let shakes = std::thread::spawn(move || {
            let (mut far, _) = listener.accept().unwrap();
            let handshake = called.accept().unwrap();
            match handshake.advance(&mut far).unwrap() {
                Progress::Done(records) => (far, *records),
                Progress::Waiting(_) => panic!("its socket blocks"),
            }
        });
        while !shakes.is_finished() {
            inner.turn(Duration::from_millis(1)).unwrap();
        }
        let (far, records) = shakes.join().unwrap();
        (inner, far, records)
    }

    fn say(far: &mut std::net::TcpStream, records: &mut Records, bytes: &[u8]) {
        let mut sealed = Vec::new();
        records.seal(bytes, &mut sealed);
        far.write_all(&sealed).unwrap();
    }

    /// Inside of TLS much goes both ways at once, nothing of it in the clear, and the end is heard behind all of it.
    #[test]
    fn much_by_tls() {
        const LONG: usize = 16 << 20;
        let (mut inner, mut far, mut records) = sealed(LONG);
        let talks = std::thread::spawn(move || {
            let mut heard = Vec::new();
            let mut received = vec![0; 100_000];
            let mut said = 0;
            while heard.len() < LONG {
                let count = far.read(&mut received).unwrap();
                let plain = received[..count].windows(8).any(|bytes| bytes == [7; 8]);
                assert!(count > 0 && !plain);
                let take = |bytes: &[u8]| heard.extend_from_slice(bytes);
                records.open(&received[..count], take).unwrap();
                let more = heard.len().min(LONG) - said;
                say(&mut far, &mut records, &vec![1; more]);
                said += more;
            }
            let mut last = Vec::new();
            records.finish(&mut last);
            far.write_all(&last).unwrap();
            far.shutdown(Shutdown::Write).unwrap();
            heard
        });
        while inner.node.ended.is_empty() && inner.node.failed.is_empty() {
            inner.turn(Duration::from_secs(5)).unwrap();
        }
        assert_eq!(inner.node.heard, [LONG]);
        assert_eq!(inner.node.failed, []);
        assert_eq!(talks.join().unwrap(), vec![7; LONG]);
    }

    /// A connection that was cut is none that has ended: only what came before it is believed.
    #[test]
    fn a_cut_is_no_end() {
        let (mut inner, mut far, mut records) = sealed(0);
        say(&mut far, &mut records, &[1; 100]);
        drop(far);
        while inner.node.ended.is_empty() && inner.node.failed.is_empty() {
            inner.turn(Duration::from_secs(5)).unwrap();
        }
        assert_eq!(inner.node.heard, [100]);
        assert_eq!(inner.node.ended, []);
        let refusal = inner.take_refusal().unwrap();
        assert_eq!(refusal.cause, TlsError::Truncated);
        assert!(refusal.called);
    }

    /// The same as without TLS: what a peer said last is heard.
    #[test]
    fn last_words_by_tls() {
        let (mut inner, mut far, mut records) = sealed(1 << 30);
        inner.turn(Duration::ZERO).unwrap();
        say(&mut far, &mut records, &[1; 100]);
        drop(far);
        while inner.node.failed.is_empty() {
            let socket = inner.sockets.values_mut().next().unwrap();
            socket.writable = true;
            inner.transmit();
        }
        assert_eq!(inner.node.heard, [100]);
    }

    /// Who is called and says what is no TLS hears nothing in the clear.
    #[test]
    fn nothing_goes_to_who_has_no_tls() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let place = Place {
            addresses: vec![address],
            tls: Some(tls().1),
        };
        let mut inner = Loop::new(talks(vec![100])).unwrap();
        let connected = place.connected(TcpStream::connect(address).unwrap(), address);
        inner.add(connected.unwrap(), LinkId(0)).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        far.write_all(b"plainly").unwrap();
        while inner.node.failed.is_empty() {
            inner.turn(Duration::from_secs(5)).unwrap();
        }
        inner.turn(Duration::ZERO).unwrap();
        drop(inner);
        let mut said = Vec::new();
        let _ = far.read_to_end(&mut said);
        assert!(!said.windows(8).any(|bytes| bytes == [7; 8]));
    }
}
