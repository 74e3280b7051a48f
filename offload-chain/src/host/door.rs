//! The member's one address: who calls there is known by what it says first.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};

use super::agent::Inbox;
use super::engine::Caller;
use super::message::{MAGIC, hear_greeting, read};

/// How a set-up of MPA starts (RFC 5044 section 7.1).
const MPA: &[u8; 16] = b"MPA ID Req Frame";
/// Who has not said what it is by then is sent away.
const PATIENCE: Duration = Duration::from_secs(5);
/// Connections that have not said what they are.
const STRANGERS_MAX: usize = 256;
/// Connections of members.
const MEMBERS_MAX: usize = 64;
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
    strangers: HashMap<Token, (TcpStream, Instant)>,
    next: usize,
    token: [u8; 16],
    engine: Caller,
    agent: Sender<Inbox>,
    members: Arc<AtomicUsize>,
}

impl Door {
    pub(super) fn open(
        address: SocketAddr,
        token: [u8; 16],
        engine: Caller,
        agent: Sender<Inbox>,
    ) -> io::Result<Self> {
        // With SO_REUSEADDR: a member that starts again has the address that it had, whatever of its former life is still ending.
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
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
            strangers: HashMap::new(),
            next: 0,
            token,
            engine,
            agent,
            members: Arc::default(),
        };
        let ends = Arc::clone(&end);
        let thread = std::thread::Builder::new()
            .name("chain-door".into())
            .spawn(move || {
                while !ends.load(Ordering::Acquire) {
                    if let Err(error) = keeper.turn() {
                        tracing::error!(%error, "nobody can call this member any more");
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
        match self.poll.poll(&mut events, Some(PATIENCE)) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            result => result?,
        }
        for event in &events {
            match event.token() {
                LISTENER => self.accept(),
                WAKER => {}
                stranger => self.look(stranger),
            }
        }
        self.strangers
            .retain(|_, (_, since)| since.elapsed() < PATIENCE);
        Ok(())
    }

    fn accept(&mut self) {
        loop {
            match self.listener.accept() {
                Ok((mut stream, _)) => {
                    let token = Token(self.next);
                    self.next = (self.next + 1) % WAKER.0;
                    let registry = self.poll.registry();
                    let readable = Interest::READABLE;
                    let full = self.strangers.len() >= STRANGERS_MAX;
                    if full || registry.register(&mut stream, token, readable).is_err() {
                        continue;
                    }
                    self.strangers.insert(token, (stream, Instant::now()));
                    // What came before it was registered is not told again by all pollers.
                    self.look(token);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // Nobody more; or out of descriptors, and the next event tries again.
                Err(_) => return,
            }
        }
    }

    fn look(&mut self, token: Token) {
        let Some((stream, _)) = self.strangers.get(&token) else {
            return;
        };
        let mut said = [0; MAGIC.len()];
        match stream.peek(&mut said) {
            Ok(count) if count == said.len() => {}
            Ok(0) => {
                self.strangers.remove(&token);
                return;
            }
            Ok(count) if MPA[..count] == said[..count] || MAGIC[..count] == said[..count] => return,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            Err(error) if error.kind() == ErrorKind::Interrupted => return,
            _ => {
                self.strangers.remove(&token);
                return;
            }
        }
        let Some((mut stream, _)) = self.strangers.remove(&token) else {
            return;
        };
        if self.poll.registry().deregister(&mut stream).is_err() {
            return;
        }
        if said == *MPA {
            self.engine.call(stream);
        } else if said == MAGIC {
            self.listen_to(stream.into());
        }
    }

    /// A member speaks: a thread hears it.
    fn listen_to(&self, mut stream: std::net::TcpStream) {
        let members = Arc::clone(&self.members);
        if members.fetch_add(1, Ordering::AcqRel) >= MEMBERS_MAX {
            members.fetch_sub(1, Ordering::AcqRel);
            return;
        }
        let (token, agent) = (self.token, self.agent.clone());
        let hear = move || {
            // Whatever ends it: who has something to say calls again.
            let _ = hear(&mut stream, token, &agent);
            members.fetch_sub(1, Ordering::AcqRel);
        };
        let thread = std::thread::Builder::new().name("chain-peer".into());
        if thread.spawn(hear).is_err() {
            self.members.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

fn hear(
    stream: &mut std::net::TcpStream,
    token: [u8; 16],
    agent: &Sender<Inbox>,
) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let from = match hear_greeting(stream, token) {
        Ok(from) => from,
        Err(error) => {
            tracing::warn!(peer = ?stream.peer_addr().ok(), %error, "a caller is not heard");
            return Ok(());
        }
    };
    // Members beat; who is silent for so long is gone, or will call again.
    loop {
        let said = read(stream)?;
        let heard = Inbox::Peer(from, said);
        if agent.send(heard).is_err() {
            return Ok(());
        }
    }
}
