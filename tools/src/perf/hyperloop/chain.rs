//! A group, or a chain to compare it with: members in threads, over TCP, with a client.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use offload_chain::group::tcp::{MemberServer, TcpClient};
use offload_chain::group::{
    Flight, GroupMemory, GroupShape, Member, MemberConfig, Outcome, Primitives,
};
use offload_chain::naive::{NaiveMember, NaiveServer, NaiveTcpClient, Wait};
use softrdma::{Buffer, Config, NoPages, ProtectionDomain, RegionTable, Time};

use super::SIZE;
use super::placement::Placement;
use super::priority::Priority;

const SLICE: Duration = Duration::from_millis(100);
const START: Duration = Duration::from_secs(60);

/// Who acts at the members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// Their engines.
    Engine,
    /// Their applications, which are woken.
    Event,
    /// Their applications, which look all the time.
    Polling,
}

impl Side {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Engine, Self::Event, Self::Polling];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Engine => "engine",
            Self::Event => "naive, event",
            Self::Polling => "naive, polling",
        }
    }
}

/// Processor time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Used {
    /// Of all endpoints.
    pub endpoints: Duration,
    /// Of all applications.
    pub applications: Duration,
}

#[derive(Debug)]
enum Client {
    Engine(TcpClient),
    Naive(NaiveTcpClient),
}

/// A running group with a client.
#[derive(Debug)]
pub struct Chain {
    client: Option<Client>,
    end: Arc<AtomicBool>,
    threads: Vec<JoinHandle<io::Result<()>>>,
    endpoints: Vec<libc::pid_t>,
    applications: Vec<libc::pid_t>,
    members: usize,
    placement: Placement,
}

impl Chain {
    /// Starts so many members and their client, which belongs to the calling thread.
    pub fn start(side: Side, members: usize, placement: &Placement) -> Result<Self> {
        let listeners: Vec<TcpListener> = (0..members)
            .map(|_| TcpListener::bind("127.0.0.1:0"))
            .collect::<io::Result<_>>()?;
        let addresses: Vec<SocketAddr> = listeners
            .iter()
            .map(TcpListener::local_addr)
            .collect::<io::Result<_>>()?;
        let mut chain = Self {
            client: None,
            end: Arc::new(AtomicBool::new(false)),
            threads: Vec::new(),
            endpoints: Vec::new(),
            applications: Vec::new(),
            members,
            placement: placement.clone(),
        };
        for (number, listener) in listeners.into_iter().enumerate() {
            match side {
                Side::Engine => chain.engine(number, listener, &addresses)?,
                Side::Event => chain.naive(number, listener, &addresses, Wait::Event)?,
                Side::Polling => chain.naive(number, listener, &addresses, Wait::Polling)?,
            }
        }
        let link = Config::default();
        let seed = rand::random();
        chain.client = Some(match side {
            Side::Engine => {
                let shape = shape(members);
                Client::Engine(TcpClient::connect(
                    shape, 0, &addresses, &link, seed, START,
                )?)
            }
            Side::Event | Side::Polling => {
                let group = (&addresses[..], SIZE);
                Client::Naive(NaiveTcpClient::connect(&link, 0, group, seed, START)?)
            }
        });
        Ok(chain)
    }

    fn engine(
        &mut self,
        number: usize,
        listener: TcpListener,
        addresses: &[SocketAddr],
    ) -> Result<()> {
        let config = MemberConfig {
            shape: shape(self.members),
            member: number,
            memory: GroupMemory::Memory(Buffer::zeroed(SIZE as usize)),
            domains: [ProtectionDomain(2), ProtectionDomain(3)],
            link: Config::default(),
            reads: None,
            planted: None,
        };
        let table = RegionTable::new(rand::random());
        let member = Member::new(config, NoPages, &table, Time(0))?;
        let mut server = MemberServer::new(member, listener, addresses)?;
        let end = Arc::clone(&self.end);
        let id = self.thread("endpoint", Priority::Endpoint, move || server.run(&end))?;
        self.endpoints.push(id);
        Ok(())
    }

    fn naive(
        &mut self,
        number: usize,
        listener: TcpListener,
        addresses: &[SocketAddr],
        wait: Wait,
    ) -> Result<()> {
        let member = NaiveMember::new(Config::default(), rand::random(), SIZE as usize)?;
        let application = member.application(number, self.members);
        let next = addresses.get(number + 1).copied();
        let mut server = NaiveServer::new(member, listener, next)?;
        let end = Arc::clone(&self.end);
        let id = self.thread("endpoint", Priority::Endpoint, move || server.run(&end))?;
        self.endpoints.push(id);
        let id = self.thread("application", Priority::Ordinary, move || {
            application.run(wait);
            Ok(())
        })?;
        self.applications.push(id);
        Ok(())
    }

    /// Starts a thread and answers its number.
    fn thread(
        &mut self,
        name: &str,
        priority: Priority,
        run: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) -> Result<libc::pid_t> {
        let (told, id): (Sender<libc::pid_t>, _) = channel();
        let placement = self.placement.clone();
        let thread = thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                // Where it is not allowed it was said before anything was started.
                let _ = priority.take();
                placement.take(priority)?;
                // SAFETY: the call has no arguments and cannot fail.
                let _ = told.send(unsafe { libc::gettid() });
                run()
            })?;
        self.threads.push(thread);
        id.recv().context("a member ended while starting")
    }

    /// Its members.
    pub fn members(&self) -> usize {
        self.members
    }

    /// The client, to post on.
    pub fn client(&mut self) -> &mut dyn Primitives {
        match self.client.as_mut().expect("there since the start") {
            Client::Engine(client) => client,
            Client::Naive(client) => client,
        }
    }

    /// The next outcome.
    pub fn wait(&mut self, patience: Duration) -> Result<(Flight, Outcome)> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some((flight, outcome)) = self.client().poll() {
                return Ok((flight, outcome?));
            }
            match self.client.as_mut().expect("there since the start") {
                Client::Engine(client) => client.turn(SLICE)?,
                Client::Naive(client) => client.turn(SLICE)?,
            }
            if Instant::now() > deadline {
                bail!("no answer within {patience:?}");
            }
        }
    }

    /// Processor time that its threads have taken.
    pub fn used(&self) -> Result<Used> {
        Ok(Used {
            endpoints: sum(&self.endpoints)?,
            applications: sum(&self.applications)?,
        })
    }
}

fn sum(threads: &[libc::pid_t]) -> Result<Duration> {
    threads.iter().map(|&id| used(id)).sum()
}

impl Drop for Chain {
    fn drop(&mut self) {
        self.client = None;
        self.end.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            // Whatever ended it has shown as an answer that did not come.
            let _ = thread.join();
        }
    }
}

fn shape(members: usize) -> GroupShape {
    GroupShape {
        persistent: false,
        ..GroupShape::new(*b"bench hyperloop.", 1, members, SIZE)
    }
}

/// Processor time of a thread of this process.
fn used(thread: libc::pid_t) -> Result<Duration> {
    let path = format!("/proc/self/task/{thread}/schedstat");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let first = text.split_whitespace().next();
    let nanoseconds = first.and_then(|word| word.parse().ok());
    nanoseconds
        .map(Duration::from_nanos)
        .ok_or_else(|| anyhow!("{path} does not begin with a time"))
}
