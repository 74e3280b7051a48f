//! The member's one address: who calls there is known by what it says first, and goes on when it has proven that it knows the group's token.
//!
//! Who has not is a [`Stranger`]: so many are kept, so long. However many call, whatever they say and however slowly, they take
//! places from each other only (I16): the one who is there longest goes when another comes, and who knows the token says so at once.
//! With TLS its handshake is a part of that, here and on this thread: neither the engine's nor any that hears a member waits for one.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};

use super::agent::Inbox;
use super::engine::{Caller, Ends, EngineNews};
use super::lines::Lines;
use super::message::read;
use super::stranger::{Known, Refused, Stranger, Terms};
use super::wire::Wire;
use crate::membership::MemberId;

/// Who has not proven who it is by then is sent away; so is a member that is silent for so long.
const PATIENCE: Duration = Duration::from_secs(5);
/// Strangers at once.
const STRANGERS_MAX: usize = 256;
/// What one connection of a member has said, and the agent has not heard: as much as answers one question.
const UNHEARD_MAX: usize = 8;
/// Calls that the system keeps.
const BACKLOG: i32 = 1024;
/// Calls that are taken before strangers are heard again.
const CALLS_MAX: usize = 64;
/// Out of descriptors: until calls are taken again.
const REST: Duration = Duration::from_millis(50);
/// Between warnings of callers that are not heard: they come in numbers.
const TOLD: Duration = Duration::from_secs(1);
const LISTENER: Token = Token(usize::MAX);
const WAKER: Token = Token(usize::MAX - 1);

/// The thread that accepts.
#[derive(Debug)]
pub(super) struct Door {
    address: SocketAddr,
    end: Arc<AtomicBool>,
    waker: Arc<Waker>,
    thread: Option<JoinHandle<()>>,
}

struct Keeper {
    poll: Poll,
    listener: TcpListener,
    /// Who came first is first.
    strangers: BTreeMap<Token, Stranger>,
    next: usize,
    /// Somebody calls, and is to be let in then.
    calls: Option<Instant>,
    terms: Terms,
    engine: Caller,
    agent: Sender<Inbox>,
    members: Lines,
    /// When people were told last of somebody who is not heard.
    warned: Option<Instant>,
}

impl Door {
    pub(super) fn open(
        address: SocketAddr,
        terms: Terms,
        engine: Caller,
        agent: Sender<Inbox>,
        members: Lines,
    ) -> io::Result<Self> {
        // With SO_REUSEADDR: a member that starts again has the address that it had, whatever of its former life is still ending.
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        // Longer than the standard library's: whose call the system drops is heard a second later.
        rustix::net::listen(&listener, BACKLOG)?;
        let mut listener = TcpListener::from_std(listener);
        let address = listener.local_addr()?;
        let poll = Poll::new()?;
        let readable = Interest::READABLE;
        poll.registry()
            .register(&mut listener, LISTENER, readable)?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        let end = Arc::new(AtomicBool::new(false));
        let mut keeper = Keeper {
            poll,
            listener,
            strangers: BTreeMap::new(),
            next: 0,
            calls: None,
            terms,
            engine,
            agent,
            members,
            warned: None,
        };
        let ends = Arc::clone(&end);
        let panics = Ends(keeper.agent.clone(), "door");
        let thread = std::thread::Builder::new()
            .name("chain-door".into())
            .spawn(move || {
                let _panics = panics;
                while !ends.load(Ordering::Acquire) {
                    if let Err(error) = keeper.turn() {
                        let why = format!("nobody can call it any more: {error}");
                        // It fails when the agent has ended, too.
                        let _ = keeper.agent.send(Inbox::Engine(EngineNews::Failed(why)));
                        return;
                    }
                }
            })?;
        Ok(Self {
            address,
            end,
            waker,
            thread: Some(thread),
        })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Release);
        // Without it the thread ends a turn later.
        let _ = self.waker.wake();
        if let Some(thread) = self.thread.take() {
            // A panic was reported where it happened.
            let _ = thread.join();
        }
    }
}

impl Keeper {
    fn turn(&mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(64);
        let leaves = self.strangers.values().next();
        let leaves = leaves.map(|oldest| oldest.since + PATIENCE);
        let due = leaves.into_iter().chain(self.calls).min();
        let wait = due.map(|due| due.saturating_duration_since(Instant::now()));
        match self.poll.poll(&mut events, Some(wait.unwrap_or(PATIENCE))) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            result => result?,
        }
        for event in &events {
            match event.token() {
                LISTENER => self.calls = Some(Instant::now()),
                WAKER => {}
                stranger => self.hear(stranger),
            }
        }
        if self.calls.is_some_and(|due| due <= Instant::now()) {
            self.calls = self.accept();
        }
        let late = |stranger: &Stranger| stranger.since.elapsed() >= PATIENCE;
        while let Some(oldest) = self.strangers.first_entry()
            && late(oldest.get())
        {
            oldest.remove();
        }
        Ok(())
    }

    /// Lets some in who call. When there may be more, if not when the listener says so.
    fn accept(&mut self) -> Option<Instant> {
        for _ in 0..CALLS_MAX {
            match self.listener.accept() {
                Ok((stream, _)) => self.let_in(stream),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                // The listener tells of those who wait once.
                Err(_) => return Some(Instant::now() + REST),
            }
        }
        Some(Instant::now())
    }

    fn let_in(&mut self, mut stream: TcpStream) {
        let token = Token(self.next);
        self.next = (self.next + 1) % WAKER.0;
        let registry = self.poll.registry();
        let interest = match &self.terms.tls {
            None => Interest::READABLE,
            // Certificates may be longer than what its socket takes.
            Some(_) => Interest::READABLE | Interest::WRITABLE,
        };
        if registry.register(&mut stream, token, interest).is_err() {
            return;
        }
        if self.strangers.len() >= STRANGERS_MAX {
            self.strangers.pop_first();
        }
        self.strangers.insert(token, Stranger::new(stream));
        // What came before it was registered is not told again by all pollers.
        self.hear(token);
    }

    fn hear(&mut self, token: Token) {
        let Some(stranger) = self.strangers.get_mut(&token) else {
            return;
        };
        let known = match stranger.hear(&self.terms) {
            Ok(None) => return,
            Ok(Some(known)) => known,
            Err(Refused::Unheard(error)) => {
                let peer = stranger.stream.peer_addr().ok();
                tracing::debug!(?peer, %error, "a caller is not heard");
                self.strangers.remove(&token);
                return;
            }
            Err(refused) => {
                let peer = stranger.stream.peer_addr().ok();
                stranger.leave();
                return self.tell(peer, &refused);
            }
        };
        let Some(mut stranger) = self.strangers.remove(&token) else {
            return;
        };
        if (self.poll.registry().deregister(&mut stranger.stream)).is_err() {
            return;
        }
        let connected = stranger.into_connected();
        match known {
            Known::Group => self.engine.call(connected),
            Known::Member(from) => self.listen_to(connected.into(), from),
        }
    }

    /// Tells people of somebody who is not heard, unless they have just been told of another.
    fn tell(&mut self, peer: Option<SocketAddr>, why: &Refused) {
        let passes = matches!(why, Refused::Tls(cause) if cause.passes());
        let just = |at: Instant| at.elapsed() < TOLD;
        if passes || self.warned.is_some_and(just) {
            return tracing::debug!(?peer, %why, "a caller is not heard");
        }
        self.warned = Some(Instant::now());
        tracing::warn!(?peer, %why, "a caller is not heard");
    }

    /// A member speaks: a thread hears it.
    fn listen_to(&self, mut wire: Wire, from: MemberId) {
        let line = match self.members.take(from, &wire.stream) {
            Ok(line) => line,
            Err(error) => return tracing::debug!(member = from.0, %error, "not heard"),
        };
        let agent = self.agent.clone();
        let hear = move || {
            let _line = line;
            // Whatever ends it: who has something to say calls again.
            let _ = hear(&mut wire, from, &agent);
        };
        let thread = std::thread::Builder::new().name("chain-peer".into());
        if let Err(error) = thread.spawn(hear) {
            tracing::warn!(member = from.0, %error, "cannot hear a member");
        }
    }
}

fn hear(wire: &mut Wire, from: MemberId, agent: &Sender<Inbox>) -> io::Result<()> {
    wire.stream.set_nonblocking(false)?;
    // Members beat; who is silent for so long is gone, or will call again.
    wire.stream.set_read_timeout(Some(PATIENCE))?;
    let (taken, room) = sync_channel(UNHEARD_MAX);
    let room = Arc::new(Mutex::new(room));
    loop {
        let said = read(wire)?;
        let unheard = Unheard::wait(&taken, &room);
        let heard = Inbox::Peer(from, said, unheard);
        if agent.send(heard).is_err() {
            return Ok(());
        }
    }
}

/// A place among what the agent has not heard of a connection. Who says more than there are places for waits, and then so does its TCP (I16).
#[derive(Debug)]
pub(super) struct Unheard(Arc<Mutex<Receiver<()>>>);

impl Unheard {
    fn wait(taken: &SyncSender<()>, room: &Arc<Mutex<Receiver<()>>>) -> Self {
        // It cannot fail: the other end is here.
        let _ = taken.send(());
        Self(Arc::clone(room))
    }
}

impl Drop for Unheard {
    fn drop(&mut self) {
        // One was taken for this.
        let _ = super::lock(&self.0).try_recv();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{RecvTimeoutError, channel};

    use super::*;
    use crate::config::{Event, Expect, FileStore, Request, Revision, Store};
    use crate::group::Topology;
    use crate::host::message::{Said, greet, write};
    use crate::host::{Host, HostSettings, Timing};
    use crate::membership::{Birth, Boot, CONFIG, Configuration, Seat, SlowPolicy, encode};

    const TOKEN: [u8; 16] = [5; 16];

    fn timing() -> Timing {
        Timing {
            period: Duration::from_millis(50),
            misses: 20,
            patience: Duration::from_secs(1),
            media_patience: Duration::from_secs(1),
            read_lease: Duration::from_secs(1),
        }
    }

    fn serve(dir: &std::path::Path, member: u32) -> Host {
        let settings = HostSettings {
            member: MemberId(member),
            listen: "127.0.0.1:0".parse().unwrap(),
            advertise: None,
            memory: None,
            timing: timing(),
            slow: SlowPolicy::default(),
            spin: Duration::ZERO,
            on_engine_thread: None,
            watcher: None,
            tls: None,
        };
        Host::start(settings, Box::new(store(dir))).unwrap()
    }

    fn store(dir: &std::path::Path) -> FileStore {
        FileStore::open(&dir.join("store")).unwrap()
    }

    /// I16: connections of somebody who knows the token, and says that it is a member that the group does not have, keep no member out.
    #[test]
    fn connections_of_one_keep_no_other_out() {
        const MANY: usize = 100;
        let dir = tempfile::tempdir().unwrap();
        let birth = Birth {
            locks: 1,
            ring_bytes: 16 << 10,
            data_bytes: 64 << 10,
            salt: 77,
            token: TOKEN,
            topology: Topology::Chain,
            executes: true,
            durable: false,
        };
        let members = vec![MemberId(1), MemberId(2)];
        let mut own = store(dir.path());
        own.submit(Request::Put {
            key: CONFIG.to_owned(),
            value: encode(&Configuration::new(birth, members)),
            expect: Expect::Revision(Revision::ABSENT),
            lease: None,
        });
        assert!(matches!(own.poll(), Some(Event::Answer(_, Ok(_)))));
        let first = serve(dir.path(), 1);
        let nobody = Seat {
            id: MemberId(9),
            boot: Boot(1),
        };
        let calls = (0..MANY).map(|_| {
            let mut stream = std::net::TcpStream::connect(first.address()).unwrap();
            greet(&mut stream, TOKEN, nobody.id).unwrap();
            stream
        });
        let mut crowd: Vec<std::net::TcpStream> = calls.collect();
        let second = serve(dir.path(), 2);
        let start = Instant::now();
        let mut epoch = None;
        // Members miss whom they have not heard for so long.
        while start.elapsed() < timing().silence() * 4 {
            for stream in &mut crowd {
                // Who is sent away says nothing more.
                let _ = write(stream, &Said::Beat(nobody));
            }
            std::thread::sleep(timing().period);
            let open = first.state().open;
            if open.0 > 0 && second.state().open == open {
                assert_eq!(*epoch.get_or_insert(open), open, "a member was missed");
            }
        }
        assert!(epoch.is_some(), "the group is not active");
    }

    /// I16: however much a member says while the agent is busy, only so much of it is kept; and nothing is lost.
    #[test]
    fn what_is_not_heard_is_bounded() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut says = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut hears = Wire::new(listener.accept().unwrap().0, None);
        let from = MemberId(1);
        for boot in 0..3 * UNHEARD_MAX as u64 {
            let boot = Boot(boot);
            write(&mut says, &Said::Beat(Seat { id: from, boot })).unwrap();
        }
        drop(says);
        let (agent, inbox) = channel();
        let thread = std::thread::spawn(move || hear(&mut hears, from, &agent));
        let kept: Vec<Inbox> = inbox.iter().take(UNHEARD_MAX).collect();
        let more = inbox.recv_timeout(Duration::from_millis(300));
        assert!(matches!(more, Err(RecvTimeoutError::Timeout)), "{more:?}");
        drop(kept);
        assert_eq!(inbox.iter().count(), 2 * UNHEARD_MAX);
        // The connection has ended.
        thread.join().unwrap().unwrap_err();
    }
}
