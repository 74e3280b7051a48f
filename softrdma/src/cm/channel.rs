//! Event channels: connections of a program, with the thread that moves their bytes.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use mio::Waker;

use super::event::{Event, Id};
use super::worker::{Command, Worker};
use crate::connection::PrivateDataTooLong;
use crate::verbs::{QueuePair, Reset, Rts};

/// Addresses of a name, at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    addresses: Vec<SocketAddr>,
}

impl Route {
    /// In the order in which they are tried.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The same, with `address` tried behind the others.
    #[must_use]
    pub fn or(mut self, address: SocketAddr) -> Self {
        self.addresses.push(address);
        self
    }
}

impl From<SocketAddr> for Route {
    fn from(address: SocketAddr) -> Self {
        let addresses = vec![address];
        Self { addresses }
    }
}

/// `rdma_resolve_addr`: what `host` (`name:port`) means. Waits for the resolver.
///
/// # Errors
/// If it is unknown.
pub fn resolve_addr(host: &str) -> io::Result<Route> {
    let addresses: Vec<SocketAddr> = host.to_socket_addrs()?.collect();
    match addresses.is_empty() {
        true => Err(io::Error::new(
            io::ErrorKind::NotFound,
            format!("{host} has no address"),
        )),
        false => Ok(Route { addresses }),
    }
}

/// Why `connect` did nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// Too much private data.
    #[error(transparent)]
    PrivateData(#[from] PrivateDataTooLong),
}

/// What the handles and the thread share.
pub(super) struct Inner {
    commands: Mutex<VecDeque<Command>>,
    events: Mutex<VecDeque<Event>>,
    more: Condvar,
    waker: Waker,
    ids: AtomicU64,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EventChannel")
    }
}

impl Inner {
    /// Tells the thread something.
    pub(super) fn send(&self, command: Command) {
        let mut commands = lock(&self.commands);
        let was_empty = commands.is_empty();
        commands.push_back(command);
        drop(commands);
        // Who found something there has been preceded by somebody who woke it.
        if was_empty {
            let _ = self.waker.wake();
        }
    }

    pub(super) fn take(&self) -> VecDeque<Command> {
        std::mem::take(&mut lock(&self.commands))
    }

    pub(super) fn tell(&self, event: Event) {
        lock(&self.events).push_back(event);
        self.more.notify_one();
    }

    pub(super) fn next_id(&self) -> Id {
        Id(self.ids.fetch_add(1, Ordering::Relaxed))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `rdma_event_channel`. Dropping it ends all its connections at once.
#[derive(Debug)]
pub struct EventChannel {
    inner: Arc<Inner>,
    thread: Option<JoinHandle<()>>,
}

impl EventChannel {
    /// A channel without connections, and its thread.
    ///
    /// # Errors
    /// If the system has no room for either.
    pub fn new() -> io::Result<Self> {
        let poll = mio::Poll::new()?;
        let waker = Waker::new(poll.registry(), Worker::WAKE)?;
        let inner = Arc::new(Inner {
            commands: Mutex::default(),
            events: Mutex::default(),
            more: Condvar::new(),
            waker,
            ids: AtomicU64::new(0),
        });
        let worker = Worker::new(poll, Arc::clone(&inner));
        let thread = thread::Builder::new()
            .name("rdma-cm".into())
            .spawn(move || worker.run())?;
        let thread = Some(thread);
        Ok(Self { inner, thread })
    }

    /// `rdma_connect`: sets a connection up with the first address that answers, and takes the queue pair along until an
    /// event returns it. Exactly one of `Established`, `Rejected`, `Unreachable` and `ConnectError` follows.
    ///
    /// # Errors
    /// If the private data is too long.
    pub fn connect(
        &self,
        route: &Route,
        queue_pair: QueuePair<Reset>,
        private_data: &[u8],
    ) -> Result<Id, ConnectError> {
        let queue_pair = queue_pair.connect(private_data)?;
        let id = self.inner.next_id();
        let addresses = route.addresses.iter().copied().collect();
        self.inner.send(Command::Connect(id, addresses, queue_pair));
        Ok(id)
    }

    /// `rdma_listen`: `queue_pair` makes one for each peer that connects, of which at most `backlog` (and at least one) may
    /// be without an answer at a time. It ends when what this returns is dropped.
    ///
    /// # Errors
    /// If the address cannot be listened at.
    pub fn listen(
        &self,
        address: SocketAddr,
        backlog: usize,
        queue_pair: impl FnMut() -> QueuePair<Reset> + Send + 'static,
    ) -> io::Result<Listener> {
        let socket = TcpListener::bind(address)?;
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?;
        let id = self.inner.next_id();
        let make = Box::new(queue_pair);
        self.inner
            .send(Command::Listen(id, socket, backlog.max(1), make));
        let channel = Arc::clone(&self.inner);
        Ok(Listener {
            id,
            address,
            channel,
        })
    }

    /// `rdma_disconnect`: what was posted goes out first, however long it takes, unless the peer takes none of it for
    /// [`close_timeout`](crate::Config::close_timeout). `TimewaitExit` follows.
    pub fn disconnect(&self, id: Id, queue_pair: QueuePair<Rts>) {
        self.inner
            .send(Command::Leaving(id, queue_pair.disconnect()));
    }

    /// `rdma_get_cm_event`: the next event, waiting for it; none when the time is over.
    #[must_use]
    pub fn wait_event(&self, patience: Duration) -> Option<Event> {
        let start = Instant::now();
        let mut events = lock(&self.inner.events);
        loop {
            if let Some(event) = events.pop_front() {
                return Some(event);
            }
            let left = patience.checked_sub(start.elapsed())?;
            let waited = self.inner.more.wait_timeout(events, left);
            events = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The next event that is there already.
    #[must_use]
    pub fn poll_event(&self) -> Option<Event> {
        lock(&self.inner.events).pop_front()
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        self.inner.send(Command::End);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed.
            let _ = thread.join();
        }
        // Requests hold the channel, which holds them.
        let events = std::mem::take(&mut *lock(&self.inner.events));
        drop(events);
    }
}

/// A listening address; closed when dropped. Requests that have been reported stay.
#[derive(Debug)]
pub struct Listener {
    id: Id,
    address: SocketAddr,
    channel: Arc<Inner>,
}

impl Listener {
    /// Where it listens; with the port that the system chose, if none was asked for.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.channel.send(Command::Unlisten(self.id));
    }
}
