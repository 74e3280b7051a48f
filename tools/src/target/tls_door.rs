//! The door for connections by TLS: accepts them, sees them through the handshake, hands them to the reactors.
//!
//! A handshake costs a signature, and takes as long as the peer likes; so it is done on a thread of its own, where it holds up no
//! connection that is there already. What comes out is a socket with [`Records`], and the reactor that gets
//! both sees the real peer, drives the socket itself, and seals and opens on its own thread.
//!
//! # Invariants
//! - Until its handshake is done, a connection is a guest: there are [`GUESTS_MAX`] at most, each for [`HANDSHAKE`] at most and with
//!   at most what rustls keeps of a handshake, 64 KiB (I16). When there are too many, the next ones wait in the queue of the socket until
//!   who has waited longest has had [`GRACE`], and is sent away: half-open connections make others wait, at most, and
//!   fail only if they come faster than [`GUESTS_MAX`] in that time.
//! - However many come, the thread looks between them whether it is to end.
//! - What a guest says has no effect on anybody else. Who says what is no TLS, or has no certificate where one is wanted, is
//!   told so, is logged, and goes.
//! - Without guests that wait for something the thread sleeps.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use flashnet_tls::{Handshake, HandshakeError, Progress, Records, ServerTls, TlsError};
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};
use socket2::Socket;
use softrdma::wire::start::{
    Enhanced, NextStart, PRIVATE_DATA_LIMIT, RawStart, StartFrame, StartKind,
};
use tracing::field::display;
use tracing::{debug, warn};

use super::job::Job;
use crate::credentials::{Denial, unix_now};
use crate::reactor::Inbox;

/// Connections whose handshake is under way.
const GUESTS_MAX: usize = 256;
/// Longest handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long a guest has at least, whoever else comes.
const GRACE: Duration = Duration::from_secs(1);
/// Connections that are accepted one after the other before anybody else is looked at.
const ACCEPTS_MAX: usize = 32;
/// How long one that has been refused may take to hear why.
const LEAVE: Duration = Duration::from_secs(1);
/// Bytes of it that are still taken: a socket that is closed with bytes in it takes back what was said.
const LEAVE_BYTES: usize = 256 << 10;
/// Pause after an accept that failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// First byte of a plain MPA request; a TLS record does not begin so.
const PLAIN: u8 = b'M';
/// Longest request.
const REQUEST_BYTES: usize = size_of::<RawStart>() + PRIVATE_DATA_LIMIT;

const LISTENER: Token = Token(0);
const WAKE: Token = Token(1);
const FIRST_GUEST: usize = 2;

/// The door and its thread. Closed when dropped: guests are sent away, connections stay.
#[derive(Debug)]
pub(super) struct TlsDoor {
    closed: Arc<AtomicBool>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl TlsDoor {
    /// Lets connections in from now on, to these reactors in turn.
    pub(super) fn open(
        listener: Socket,
        tls: ServerTls,
        inboxes: Vec<Arc<Inbox<Job>>>,
    ) -> io::Result<Self> {
        let lobby = Lobby::new(listener, tls, inboxes)?;
        let waker = Waker::new(lobby.poll.registry(), WAKE)?;
        Self::start(lobby, waker)
    }

    fn start(mut lobby: Lobby, waker: Waker) -> io::Result<Self> {
        let closed = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&closed);
        let thread = Builder::new().name("tls-door".into()).spawn(move || {
            if let Err(error) = lobby.work(&told) {
                warn!(%error, "the door for TLS has closed");
            }
        })?;
        Ok(Self {
            closed,
            waker,
            thread: Some(thread),
        })
    }

    /// Whether nobody is let in any more although the door has not been closed.
    pub(super) fn has_ended(&self) -> bool {
        self.thread.as_ref().is_some_and(JoinHandle::is_finished)
    }
}

impl Drop for TlsDoor {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::SeqCst);
        let _ = self.waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// How far a guest is.
#[derive(Debug)]
enum Stage {
    /// It has said nothing.
    Silent,
    /// TLS.
    Shaking(Handshake),
    /// It is not let in, and hears why; so many bytes of it are still taken.
    Leaving(usize),
}

#[derive(Debug)]
struct Guest {
    stream: TcpStream,
    peer: SocketAddr,
    since: Instant,
    until: Instant,
    stage: Stage,
}

/// What becomes of a guest after something has happened to it.
enum Outcome {
    Stays,
    Enters(Box<Records>),
    Goes,
    /// After it has heard why.
    Refused(HandshakeError),
    /// It speaks MPA: this revision, and with the enhanced block or without.
    Plain(u8, bool),
}

#[derive(Debug)]
struct Lobby {
    poll: Poll,
    listener: TcpListener,
    tls: ServerTls,
    inboxes: Vec<Arc<Inbox<Job>>>,
    /// By number, so the first has come first.
    guests: BTreeMap<usize, Guest>,
    next: usize,
    /// When to accept again, if somebody may be waiting: after that has failed, or when there is room.
    accept_at: Option<Instant>,
    /// The second in which people were last told of a guest.
    warned: u64,
}

impl Lobby {
    fn new(listener: Socket, tls: ServerTls, inboxes: Vec<Arc<Inbox<Job>>>) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let mut listener = TcpListener::from_std(listener.into());
        let poll = Poll::new()?;
        let registry = poll.registry();
        registry.register(&mut listener, LISTENER, Interest::READABLE)?;
        Ok(Self {
            poll,
            listener,
            tls,
            inboxes,
            guests: BTreeMap::new(),
            next: FIRST_GUEST,
            accept_at: None,
            warned: 0,
        })
    }

    fn work(&mut self, closed: &AtomicBool) -> io::Result<()> {
        let mut events = Events::with_capacity(128);
        while !closed.load(Ordering::SeqCst) {
            match self.poll.poll(&mut events, self.sleep_time()) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                result => result?,
            }
            for event in &events {
                match event.token() {
                    LISTENER => self.accept(),
                    WAKE => {}
                    Token(number) => self.hear(number),
                }
            }
            let now = Instant::now();
            if self
                .accept_at
                .is_some_and(|at| at <= now || !self.is_full())
            {
                self.accept();
            }
            let late = |(number, guest): (&usize, &Guest)| (guest.until <= now).then_some(*number);
            let late: Vec<usize> = self.guests.iter().filter_map(late).collect();
            for number in late {
                self.send_away(number, "it has taken too long");
            }
        }
        Ok(())
    }

    /// How long nothing will happen unless somebody says something.
    fn sleep_time(&self) -> Option<Duration> {
        let late = self.guests.values().map(|guest| guest.until);
        let due = late.chain(self.accept_at).min()?;
        Some(due.saturating_duration_since(Instant::now()))
    }

    fn is_full(&self) -> bool {
        self.guests.len() >= GUESTS_MAX
    }

    fn accept(&mut self) {
        self.accept_at = None;
        for _ in 0..ACCEPTS_MAX {
            let now = Instant::now();
            let oldest = self.guests.values().next().map(|guest| guest.since + GRACE);
            if let Some(due) = oldest.filter(|due| self.is_full() && *due > now) {
                self.accept_at = Some(due);
                return;
            }
            match self.listener.accept() {
                Ok((stream, peer)) => self.welcome(stream, peer),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    // Out of descriptors, most likely.
                    self.tell(None, &error);
                    self.accept_at = Some(now + ACCEPT_PAUSE);
                    return;
                }
            }
        }
        // Guests first.
        self.accept_at = Some(Instant::now());
    }

    fn welcome(&mut self, mut stream: TcpStream, peer: SocketAddr) {
        if self.is_full()
            && let Some((&oldest, _)) = self.guests.first_key_value()
        {
            self.send_away(oldest, "too many others have come since");
        }
        let number = self.next;
        self.next += 1;
        let _ = stream.set_nodelay(true);
        let token = Token(number);
        if let Err(error) = self.poll.registry().register(
            &mut stream,
            token,
            Interest::READABLE | Interest::WRITABLE,
        ) {
            return self.tell(Some(peer), &error);
        }
        let since = Instant::now();
        let guest = Guest {
            stream,
            peer,
            since,
            until: since + HANDSHAKE,
            stage: Stage::Silent,
        };
        self.guests.insert(number, guest);
    }

    /// Something has happened to the socket of a guest.
    fn hear(&mut self, number: usize) {
        let Some(mut guest) = self.guests.remove(&number) else {
            return;
        };
        match guest.advance(&self.tls) {
            Outcome::Stays => {
                self.guests.insert(number, guest);
            }
            Outcome::Goes => {}
            Outcome::Enters(records) => self.let_in(guest, records),
            Outcome::Plain(revision, enhanced) => {
                self.tell(Some(guest.peer), &TlsError::NotTls);
                let mut reply = Vec::new();
                StartFrame {
                    kind: StartKind::Reply,
                    markers: false,
                    crc: false,
                    rejected: true,
                    revision,
                    // Who asks with the block takes the first bytes of the reply for one.
                    enhanced: enhanced.then_some(Enhanced {
                        ird: 0,
                        ord: 0,
                        peer_to_peer: None,
                    }),
                    private_data: &Denial::NeedsTls.emit(),
                }
                .emit(&mut reply);
                let _ = guest.stream.write(&reply);
                // It closes first, as who is refused by a reactor.
                self.see_off(number, guest);
            }
            Outcome::Refused(HandshakeError::Socket(error)) => {
                debug!(peer = %guest.peer, %error, "TLS handshake");
            }
            Outcome::Refused(HandshakeError::Tls(error)) => {
                self.tell(Some(guest.peer), &error);
                self.show_out(number, guest);
            }
        }
    }

    /// A guest that has been told why it must go hears so.
    fn show_out(&mut self, number: usize, guest: Guest) {
        let _ = guest.stream.shutdown(Shutdown::Write);
        self.see_off(number, guest);
    }

    /// Waits a while for its end.
    fn see_off(&mut self, number: usize, mut guest: Guest) {
        guest.stage = Stage::Leaving(LEAVE_BYTES);
        guest.until = Instant::now() + LEAVE;
        if matches!(guest.advance(&self.tls), Outcome::Stays) {
            self.guests.insert(number, guest);
        }
    }

    fn let_in(&mut self, mut guest: Guest, records: Box<Records>) {
        let peer = guest.peer;
        let taken = self.poll.registry().deregister(&mut guest.stream);
        let socket = Socket::from(std::net::TcpStream::from(guest.stream));
        // A ring tells at once that a socket would block if it says it shall not.
        if let Err(error) = taken.and_then(|()| socket.set_nonblocking(false)) {
            return self.tell(Some(peer), &error);
        }
        debug!(%peer, "TLS");
        let reactor = self.next % self.inboxes.len();
        // One that has ended takes nobody, and the others end, too.
        let _ = self.inboxes[reactor].send(Job::Adopt(socket, Some(records)));
    }

    fn send_away(&mut self, number: usize, why: &'static str) {
        if let Some(guest) = self.guests.remove(&number)
            && !matches!(guest.stage, Stage::Leaving(_))
        {
            self.tell(Some(guest.peer), &why);
        }
    }

    /// Tells people of a guest that is not let in, unless they have just been told of another: strangers come in numbers.
    fn tell(&mut self, peer: Option<SocketAddr>, why: &dyn std::fmt::Display) {
        let now = unix_now();
        let peer = peer.map(display);
        if std::mem::replace(&mut self.warned, now) == now {
            debug!(peer, %why, "no TLS connection");
        } else {
            warn!(peer, %why, "no TLS connection");
        }
    }
}

impl Guest {
    /// Goes on as far as the socket allows.
    fn advance(&mut self, tls: &ServerTls) -> Outcome {
        match std::mem::replace(&mut self.stage, Stage::Silent) {
            Stage::Silent => self.listen(tls),
            Stage::Shaking(handshake) => self.shake(handshake),
            Stage::Leaving(left) => self.leave(left),
        }
    }

    fn listen(&mut self, tls: &ServerTls) -> Outcome {
        let mut said = [0; REQUEST_BYTES];
        match self.stream.peek(&mut said) {
            Ok(0) => Outcome::Goes,
            Ok(count) if said[0] == PLAIN => {
                match StartFrame::parse(StartKind::Request, &said[..count]) {
                    Ok(NextStart::Need(_)) => Outcome::Stays,
                    Ok(NextStart::Frame(request, _)) => {
                        Outcome::Plain(request.revision, request.enhanced.is_some())
                    }
                    Err(_) => Outcome::Refused(TlsError::NotTls.into()),
                }
            }
            Ok(_) => match tls.accept() {
                Ok(handshake) => self.shake(handshake),
                Err(error) => Outcome::Refused(error.into()),
            },
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Outcome::Stays,
            Err(_) => Outcome::Goes,
        }
    }

    fn shake(&mut self, handshake: Handshake) -> Outcome {
        match handshake.advance(&mut self.stream) {
            Ok(Progress::Done(records)) => Outcome::Enters(records),
            Ok(Progress::Waiting(handshake)) => {
                self.stage = Stage::Shaking(handshake);
                Outcome::Stays
            }
            Err(error) => Outcome::Refused(error),
        }
    }

    fn leave(&mut self, mut left: usize) -> Outcome {
        let mut bytes = [0; 4096];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => return Outcome::Goes,
                Ok(count) if count <= left => left -= count,
                Ok(_) => return Outcome::Goes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Outcome::Goes,
            }
        }
        self.stage = Stage::Leaving(left);
        Outcome::Stays
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File, Permissions};
    use std::net::Ipv4Addr;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::PermissionsExt;
    use std::thread::yield_now;

    use flashnet_tls::ServerFiles;
    use socket2::{Domain, Type};

    use super::*;

    fn lobby() -> Lobby {
        let dir = tempfile::tempdir().unwrap();
        let (certificate, key) = (dir.path().join("cert"), dir.path().join("key"));
        let made = rcgen::generate_simple_self_signed(["target".to_owned()]).unwrap();
        fs::write(&certificate, made.cert.pem()).unwrap();
        fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
        let files = ServerFiles {
            certificate,
            key,
            client_ca: Vec::new(),
            client_crl: None,
        };
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let anywhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        listener.bind(&anywhere.into()).unwrap();
        listener.listen(1).unwrap();
        Lobby::new(listener, ServerTls::new(&files).unwrap(), Vec::new()).unwrap()
    }

    /// A door that lets nobody in any more says so, and one that is open does not (I18).
    #[test]
    fn the_end_of_the_thread_is_seen() {
        let waker = |lobby: &Lobby| Waker::new(lobby.poll.registry(), WAKE).unwrap();
        let open = lobby();
        let told = waker(&open);
        let door = TlsDoor::start(open, told).unwrap();
        assert!(!door.has_ended());
        drop(door);
        let broken = lobby();
        let told = waker(&broken);
        let nothing = File::open("/dev/null").unwrap();
        // SAFETY: both descriptors are open; that of the poll stays its own, and cannot be waited on any more.
        let put = unsafe { libc::dup2(nothing.as_raw_fd(), broken.poll.as_raw_fd()) };
        assert!(put >= 0);
        let door = TlsDoor::start(broken, told).unwrap();
        while !door.has_ended() {
            yield_now();
        }
    }
}
