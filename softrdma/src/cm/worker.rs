//! The thread of a channel: sockets, timers, and what programs ask for.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io;
use std::net::{self, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};

use super::channel::Inner;
use super::event::{Event, Id, Request};
use super::link::{Link, Stage};
use crate::addr::Time;
use crate::event as core;
use crate::event::CloseReason;
use crate::verbs::{Closing, Connecting, QueuePair, Reset};

/// Connections of a channel.
pub const LINKS_MAX: usize = 16_384;
/// Bytes received by one system call.
const INPUT_BYTES: usize = 256 << 10;
/// How long the last bytes of an ended connection may take to leave.
const LINGER: Duration = Duration::from_secs(5);
/// Connections that a listener takes before others get their turn.
const ACCEPTS_MAX: usize = 64;
/// Pause of a listener to which the system gives no more sockets, or for which there is no room.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

pub(super) type Make = Box<dyn FnMut() -> QueuePair<Reset> + Send>;

/// What programs ask for.
pub(super) enum Command {
    Connect(Id, VecDeque<SocketAddr>, QueuePair<Connecting>),
    Listen(Id, net::TcpListener, usize, Make),
    Unlisten(Id),
    Accepted(Id, QueuePair<Connecting>),
    /// Rejected or disconnected.
    Leaving(Id, QueuePair<Closing>),
    /// There is work, or the queue pair has been dropped.
    Look(Id),
    /// The answer to its request came too late.
    Over(Id),
    End,
}

struct Listening {
    socket: TcpListener,
    make: Make,
    backlog: usize,
    /// Connections without an answer.
    waiting: usize,
}

pub(super) struct Worker {
    poll: Poll,
    inner: Arc<Inner>,
    links: HashMap<Id, Link>,
    listeners: HashMap<Id, Listening>,
    timers: BTreeSet<(Time, Id)>,
    epoch: Instant,
    input: Vec<u8>,
    /// Links that have more to receive than their turn allowed.
    again: Vec<Id>,
    /// A listener was refused a socket by the system, or the channel is full.
    starved: bool,
    /// Listeners that may take another connection. They get their turn in the loop and not where that is found out: what
    /// comes of a connection, its end included, is found out while it is accepted, and strangers say how many wait.
    relieved: BTreeSet<Id>,
}

impl Worker {
    pub(super) const WAKE: Token = Token(usize::MAX);

    pub(super) fn new(poll: Poll, inner: Arc<Inner>) -> Self {
        Self {
            poll,
            inner,
            links: HashMap::new(),
            listeners: HashMap::new(),
            timers: BTreeSet::new(),
            epoch: Instant::now(),
            input: vec![0; INPUT_BYTES],
            again: Vec::new(),
            starved: false,
            relieved: BTreeSet::new(),
        }
    }

    fn now(&self) -> Time {
        Time(0) + self.epoch.elapsed()
    }

    pub(super) fn run(mut self) {
        let mut events = Events::with_capacity(256);
        loop {
            let timeout = self.patience();
            match self.poll.poll(&mut events, timeout) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => panic!("epoll on descriptors of our own: {error}"),
            }
            for id in std::mem::take(&mut self.again) {
                self.look(id);
            }
            for event in &events {
                let id = Id(event.token().0 as u64);
                if self.listeners.contains_key(&id) {
                    self.accept(id);
                } else if event.token() != Self::WAKE {
                    self.look(id);
                }
            }
            for command in self.inner.take() {
                if let Command::End = command {
                    // What has been posted completes.
                    for link in self.links.values() {
                        link.transport.handle_transport_error();
                    }
                    return;
                }
                self.obey(command);
            }
            self.fire_timers();
            for id in std::mem::take(&mut self.relieved) {
                self.accept(id);
            }
            if std::mem::take(&mut self.starved) {
                let all: Vec<Id> = self.listeners.keys().copied().collect();
                all.into_iter().for_each(|id| self.accept(id));
            }
        }
    }

    fn patience(&self) -> Option<Duration> {
        if !self.again.is_empty() || !self.relieved.is_empty() {
            return Some(Duration::ZERO);
        }
        let now = self.now();
        let timer = self.timers.first();
        let timer = timer.map(|(at, _)| Duration::from_nanos(at.0.saturating_sub(now.0)));
        match self.starved {
            true => Some(timer.map_or(ACCEPT_PAUSE, |timer| timer.min(ACCEPT_PAUSE))),
            false => timer,
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Connect(id, addresses, queue_pair) => {
                let cause = io::ErrorKind::AddrNotAvailable.into();
                let base = self.now();
                self.dial(id, addresses, queue_pair, base, Arc::default(), cause);
            }
            Command::Listen(id, socket, backlog, make) => {
                let mut socket = TcpListener::from_std(socket);
                let registry = self.poll.registry();
                let registered =
                    registry.register(&mut socket, Token(id.0 as usize), Interest::READABLE);
                registered.expect("epoll takes a listening socket");
                let listening = Listening {
                    socket,
                    make,
                    backlog,
                    waiting: 0,
                };
                self.listeners.insert(id, listening);
                self.accept(id);
            }
            Command::Unlisten(id) => {
                self.listeners.remove(&id);
            }
            Command::Accepted(id, queue_pair) => {
                let link = self.links.get_mut(&id).expect("kept until it is answered");
                link.stage = Stage::Connecting(queue_pair);
                self.answered(id);
                self.look(id);
            }
            Command::Leaving(id, queue_pair) => {
                if let Some(link) = self.links.get_mut(&id) {
                    let (established, told) = match link.stage {
                        Stage::Established { told } => (true, told),
                        _ => (false, false),
                    };
                    link.stage = Stage::Leaving {
                        _queue_pair: queue_pair,
                        established,
                        told,
                    };
                }
                self.answered(id);
                self.look(id);
            }
            Command::Look(id) => self.look(id),
            Command::Over(id) => self.forget(id),
            Command::End => unreachable!("it ends the loop"),
        }
    }

    /// Tries the next address; `cause` is why the last one failed. All addresses of a connection share what its doorbell
    /// rings, `rung`: the queue pair keeps the doorbell of the first.
    fn dial(
        &mut self,
        id: Id,
        mut addresses: VecDeque<SocketAddr>,
        queue_pair: QueuePair<Connecting>,
        base: Time,
        rung: Arc<AtomicBool>,
        mut cause: io::Error,
    ) {
        while let Some(address) = addresses.pop_front() {
            let dialled = match self.links.len() < LINKS_MAX {
                true => TcpStream::connect(address),
                false => Err(io::ErrorKind::QuotaExceeded.into()),
            };
            match dialled {
                Ok(socket) => {
                    let transport = queue_pair.transport();
                    let stage = Stage::Dialling(addresses, queue_pair);
                    self.add(id, Link::new(socket, transport, stage, base, rung));
                    return;
                }
                Err(error) => cause = error,
            }
        }
        self.inner.tell(Event::Unreachable { id, cause });
    }

    fn add(&mut self, id: Id, mut link: Link) {
        let interest = Interest::READABLE | Interest::WRITABLE;
        let registry = self.poll.registry();
        let registered = registry.register(&mut link.socket, Token(id.0 as usize), interest);
        registered.expect("epoll takes a TCP socket");
        let (channel, rung) = (Arc::downgrade(&self.inner), Arc::clone(&link.rung));
        // Of a second address it is there already, and rings the same.
        link.transport.set_doorbell(move || {
            if !rung.swap(true, Ordering::AcqRel)
                && let Some(channel) = channel.upgrade()
            {
                channel.send(Command::Look(id));
            }
        });
        self.set_timer(id, &mut link);
        self.links.insert(id, link);
    }

    fn accept(&mut self, listener: Id) {
        let now = self.now();
        for _ in 0..ACCEPTS_MAX {
            let Some(listening) = self.listeners.get_mut(&listener) else {
                return;
            };
            if listening.waiting >= listening.backlog {
                return;
            }
            if self.links.len() >= LINKS_MAX {
                self.starved = true;
                return;
            }
            let (socket, peer) = match listening.socket.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted
                    ) =>
                {
                    continue;
                }
                // No descriptors, no memory: they may come back.
                Err(_) => {
                    self.starved = true;
                    return;
                }
            };
            listening.waiting += 1;
            // Fails on a connection that is gone already, which the first receive reports.
            let _ = socket.set_nodelay(true);
            let queue_pair = (listening.make)().listen();
            let transport = queue_pair.transport();
            let id = self.inner.next_id();
            let stage = Stage::Listening(queue_pair, peer);
            let mut link = Link::new(socket, transport, stage, now, Arc::default());
            link.waits_for = Some(listener);
            self.add(id, link);
            self.look(id);
        }
        self.relieved.insert(listener);
    }

    /// The link counts for the backlog of its listener no more.
    fn answered(&mut self, id: Id) {
        let listener = self
            .links
            .get_mut(&id)
            .and_then(|link| link.waits_for.take());
        self.relieve(listener);
    }

    fn relieve(&mut self, listener: Option<Id>) {
        if let Some(listener) = listener
            && let Some(listening) = self.listeners.get_mut(&listener)
        {
            listening.waiting -= 1;
            self.relieved.insert(listener);
        }
    }

    /// Something may have happened to a link.
    fn look(&mut self, id: Id) {
        let now = self.now();
        let Some(link) = self.links.get_mut(&id) else {
            return;
        };
        if let Stage::Dialling(..) = link.stage
            && !self.dialled(id)
        {
            return;
        }
        let Some(mut link) = self.links.remove(&id) else {
            return;
        };
        link.rung.store(false, Ordering::Release);
        if link.pump(link.at(now), &mut self.input) {
            self.again.push(id);
        }
        // Who has the request gets what follows when it is answered.
        while !matches!(link.stage, Stage::Asked)
            && let Some(event) = link.transport.poll_event()
        {
            advance(&self.inner, id, &mut link, event);
        }
        if link.is_closed() && link.linger.is_none() {
            link.linger = Some(now + LINGER);
        }
        self.set_timer(id, &mut link);
        let is_over = link.is_closed() && link.is_drained();
        let is_asked = matches!(link.stage, Stage::Asked);
        self.links.insert(id, link);
        if is_over && !is_asked {
            self.forget(id);
        }
    }

    fn set_timer(&mut self, id: Id, link: &mut Link) {
        let due = match link.stage {
            // Its end, if it has come, waits for the answer.
            Stage::Asked => None,
            _ => link.due(),
        };
        if due != link.timer {
            link.timer.map(|at| self.timers.remove(&(at, id)));
            due.map(|at| self.timers.insert((at, id)));
            link.timer = due;
        }
    }

    /// Whether TCP is connected; if it failed, the next address is tried.
    fn dialled(&mut self, id: Id) -> bool {
        let socket = &self.links[&id].socket;
        let cause = match socket.take_error() {
            Ok(Some(error)) | Err(error) => error,
            Ok(None) => match (socket.peer_addr(), socket.local_addr()) {
                // Where nobody listens, TCP can connect a port of this machine with itself.
                (Ok(peer), Ok(local)) if peer == local => io::ErrorKind::ConnectionRefused.into(),
                (Ok(_), _) => {
                    let _ = socket.set_nodelay(true);
                    let link = self.links.get_mut(&id).expect("it is there");
                    if let Stage::Dialling(_, queue_pair) =
                        std::mem::replace(&mut link.stage, Stage::Gone)
                    {
                        link.stage = Stage::Connecting(queue_pair);
                    }
                    return true;
                }
                (Err(error), _) if error.kind() == io::ErrorKind::NotConnected => return false,
                (Err(error), _) => error,
            },
        };
        let link = self.links.remove(&id).expect("it is there");
        link.timer.map(|at| self.timers.remove(&(at, id)));
        if let Stage::Dialling(addresses, queue_pair) = link.stage {
            self.dial(id, addresses, queue_pair, link.base, link.rung, cause);
        }
        false
    }

    fn forget(&mut self, id: Id) {
        if let Some(mut link) = self.links.remove(&id) {
            let _ = self.poll.registry().deregister(&mut link.socket);
            link.timer.map(|at| self.timers.remove(&(at, id)));
            self.relieve(link.waits_for);
        }
    }

    fn fire_timers(&mut self) {
        let now = self.now();
        while let Some(&(at, id)) = self.timers.first() {
            if at > now {
                return;
            }
            self.timers.pop_first();
            let Some(link) = self.links.get_mut(&id) else {
                continue;
            };
            link.timer = None;
            if let Stage::Dialling(..) = link.stage {
                self.dial_timed_out(id);
            } else if link.linger.is_some_and(|linger| linger <= now) {
                self.forget(id);
            } else {
                link.transport.handle_timeout(link.at(now));
                self.look(id);
            }
        }
    }

    fn dial_timed_out(&mut self, id: Id) {
        self.forget(id);
        let cause = io::ErrorKind::TimedOut.into();
        self.inner.tell(Event::Unreachable { id, cause });
    }
}

/// Moves a link on by an event of its connection, and tells the program.
fn advance(inner: &Arc<Inner>, id: Id, link: &mut Link, event: core::Event) {
    let stage = std::mem::replace(&mut link.stage, Stage::Gone);
    link.stage = match (stage, event) {
        (Stage::Listening(queue_pair, peer), core::Event::ConnectRequest(request)) => {
            inner.tell(Event::ConnectRequest(Request {
                id,
                peer,
                queue_pair: Some(queue_pair.requested(request)),
                channel: Arc::clone(inner),
            }));
            Stage::Asked
        }
        // Nobody has heard of it.
        (Stage::Listening(..), core::Event::Closed(_)) => Stage::Gone,
        (Stage::Connecting(queue_pair), core::Event::Established(established)) => {
            let queue_pair = queue_pair.ready(established);
            inner.tell(Event::Established { id, queue_pair });
            Stage::Established { told: false }
        }
        (Stage::Connecting(_), core::Event::Closed(reason)) => {
            inner.tell(match reason {
                CloseReason::Rejected(private_data) => Event::Rejected { id, private_data },
                reason => Event::ConnectError { id, reason },
            });
            Stage::Gone
        }
        (Stage::Established { told: false }, core::Event::PeerFinished) => {
            inner.tell(Event::Disconnected { id });
            Stage::Established { told: true }
        }
        (Stage::Established { told }, core::Event::Closed(reason)) => {
            over(inner, id, told, reason);
            Stage::Gone
        }
        (
            Stage::Leaving {
                _queue_pair,
                established: true,
                told: false,
            },
            core::Event::PeerFinished,
        ) => {
            inner.tell(Event::Disconnected { id });
            Stage::Leaving {
                _queue_pair,
                established: true,
                told: true,
            }
        }
        (
            Stage::Leaving {
                established: true,
                told,
                ..
            },
            core::Event::Closed(reason),
        ) => {
            over(inner, id, told, reason);
            Stage::Gone
        }
        // Whoever has the queue pair meanwhile.
        (stage, core::Event::SharedReceivesLow) => {
            inner.tell(Event::SharedReceivesLow { id });
            stage
        }
        // A request that its peer has taken back: whoever answers it hears of that.
        (stage, _) => stage,
    };
}

fn over(inner: &Inner, id: Id, told: bool, reason: CloseReason) {
    if !told {
        inner.tell(Event::Disconnected { id });
    }
    inner.tell(Event::TimewaitExit { id, reason });
}
