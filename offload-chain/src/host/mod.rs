//! A member of a group as a process: the engine, the agent of membership and a controller, over TCP and a store.
//!
//! | thread | does | may be |
//! |---|---|---|
//! | `door` | accepts on the member's one address, by TLS if it has any: who knows the token goes on, groups' connections (MPA) to the engine, members' to the agent | |
//! | `engine` | runs the group of the open epoch ([`crate::group::tcp::MemberServer`]); stands for the NIC | real-time |
//! | `agent` | [`crate::membership::Member`] and [`crate::membership::Controller`]: leases, epochs, catching up | |
//! | `media` | what takes as long as media take: recovery, flushes, looking at a log | |
//! | `peer` | one for each member that is talked to, one for each that talks | |
//!
//! What the agent decides is in `docs/membership.md`; here it is carried out. The order that all hangs on: an epoch's engine has
//! ended, and no thread touches the memory for it, before the agent reports the seal (R1): `Close` is answered by the engine's thread.
//!
//! # Heartbeats between members
//! Leases of a store may last longer than asked for (etcd counts whole seconds). So members also tell each other that they are alive, over
//! their own connections, each period. Who has not been heard for `misses` periods is doubted by those who should have heard it; a member that
//! still lives answers the next epoch's seal, one that does not is left out after `patience`. This makes things fast; safety does not hang on it.
//!
//! # Failure
//! Without the store nothing changes: the open epoch goes on for writes, READs wait when their lease is over. A member whose memory
//! fails stops executing, and is repaired as another would be when its process starts again.

mod agent;
mod door;
mod engine;
mod lag;
mod lines;
mod media;
mod message;
mod mux;
mod peers;
mod shape;
mod stranger;
mod twin;
mod wire;

use std::fs::{self, File};
use std::io::{self, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::config::{Store, list};
use crate::epoch::Epoch;
use crate::group::{MemberFile, Watcher};
use crate::log::{HEADER_SLOT_BYTES, HEADER_SLOTS, Header, is_foreign};
use crate::membership::{Boot, MEMBER, MemberId, Report, SlowPolicy, decode};
use crate::tls::{MemberTls, TlsFileError};

pub(crate) use mux::store_sleep;
pub(crate) use shape::{link_config, shape_of};

use agent::{Agent, Inbox};
use door::Door;
use engine::Engine;
use lines::Lines;
use peers::Greeting;
use stranger::Terms;

/// For so long it is looked whether another process is the same member: longer than the lease of one that has died, in etcd, too.
const TWIN_WAIT: Duration = Duration::from_secs(5);
const TWIN_LOOK: Duration = Duration::from_millis(200);

/// How often the time-critical parts of a group look, and how long they wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Between heartbeats.
    pub period: Duration,
    /// Heartbeats missed until somebody is taken for dead.
    pub misses: u32,
    /// How long members may take for a step of a change of epochs.
    pub patience: Duration,
    /// How long the others wait for each read, write or flush of the media of a member that lives.
    pub media_patience: Duration,
    /// How long a member may answer READs without having heard from the store. The same on all members.
    pub read_lease: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            period: Duration::from_millis(50),
            misses: 6,
            patience: Duration::from_millis(200),
            media_patience: Duration::from_secs(1),
            read_lease: Duration::from_millis(300),
        }
    }
}

impl Timing {
    /// How long nothing is heard of somebody before that is doubted.
    #[must_use]
    pub fn silence(&self) -> Duration {
        self.period * self.misses
    }
}

/// How a member's process is to be.
pub struct HostSettings {
    /// Which member.
    pub member: MemberId,
    /// Where it listens.
    pub listen: SocketAddr,
    /// Where others reach it; `listen`, if it is not said.
    pub advertise: Option<String>,
    /// The file that has its memory; none: memory that ends with the process.
    pub memory: Option<PathBuf>,
    /// When.
    pub timing: Timing,
    /// What to do about slow members.
    pub slow: SlowPolicy,
    /// How long the engine looks without sleeping after each message.
    pub spin: Duration,
    /// Called once by the engine's thread when it starts: for its priority.
    pub on_engine_thread: Option<Box<dyn FnOnce() + Send>>,
    /// Is told what it does.
    pub watcher: Option<Arc<dyn Watcher>>,
    /// None: what is said goes over the wire in the clear.
    pub tls: Option<MemberTls>,
}

impl std::fmt::Debug for HostSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostSettings")
            .field("member", &self.member)
            .field("listen", &self.listen)
            .field("memory", &self.memory)
            .finish_non_exhaustive()
    }
}

/// Why a member's process could not start.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The address.
    #[error("cannot listen on {address}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// The file.
    #[error("cannot use {path} as the memory of the member")]
    Memory {
        /// Which.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Nobody could connect there.
    #[error("others cannot reach a member at '{0}': HOST:PORT is needed")]
    Advertised(String),
    /// By TLS, others would call no such host.
    #[error("others cannot reach a member at '{address}' by TLS: {cause}")]
    Name {
        /// Where they would.
        address: String,
        /// Why not.
        cause: Box<TlsFileError>,
    },
    /// What the store has.
    #[error("{0}")]
    Store(String),
    /// The system.
    #[error("cannot start the member: {0}")]
    Io(#[from] io::Error),
}

/// What a running member looks like from outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostState {
    /// The epoch whose primitives it executes; 0, if none.
    pub open: Epoch,
    /// Its place in the chain, if it has one.
    pub position: Option<usize>,
    /// The latest epoch of the group that it has heard of.
    pub epoch: Epoch,
    /// Members in the chain of that.
    pub chain: usize,
    /// For how long its slowest link has had an answer outstanding.
    pub lag: Duration,
    /// Chunks that it was behind in the last round of catching up.
    pub behind: u64,
}

impl HostState {
    /// It executes nothing any more.
    fn close(&mut self) {
        (self.open, self.position) = (Epoch(0), None);
    }
}

/// Looks at a member.
#[derive(Clone, Debug)]
pub struct StateHandle(Arc<Mutex<HostState>>);

impl StateHandle {
    /// What it does now; of one that has ended, what it did last.
    #[must_use]
    pub fn get(&self) -> HostState {
        *lock(&self.0)
    }
}

/// A member that runs.
#[derive(Debug)]
pub struct Host {
    inbox: Sender<Inbox>,
    state: Arc<Mutex<HostState>>,
    address: SocketAddr,
    agent: Option<JoinHandle<()>>,
    ended: Arc<Mutex<Option<String>>>,
}

impl Host {
    /// Starts a member. Waits until the store has told what the group is like.
    ///
    /// # Errors
    /// See [`HostError`].
    pub fn start(
        settings: HostSettings,
        mut store: Box<dyn Store + Send>,
    ) -> Result<Self, HostError> {
        let config = mux::wait_for_config(&mut *store).map_err(HostError::Store)?;
        if !config.members.contains(&settings.member) {
            return Err(HostError::Store(format!(
                "member {} does not belong to the group; its members are {:?}: add it first",
                settings.member,
                config.members.iter().map(|id| id.0).collect::<Vec<_>>()
            )));
        }
        let layout = config.birth.layout();
        let size = layout
            .map_err(|error| HostError::Store(error.to_string()))?
            .size();
        if config.birth.durable && settings.memory.is_none() {
            return Err(HostError::Store(
                "the group is durable: its members need memory in a file".into(),
            ));
        }
        if let Some(at) = &settings.advertise {
            let port = at
                .rsplit_once(':')
                .and_then(|(_, port)| port.parse::<u16>().ok());
            port.ok_or_else(|| HostError::Advertised(at.clone()))?;
            let host = settings.tls.as_ref().map(|tls| tls.calls.to(at));
            let address = at.clone();
            host.transpose().map_err(|cause| {
                let cause = Box::new(cause);
                HostError::Name { address, cause }
            })?;
        }
        let greeting = Greeting {
            token: config.birth.token,
            own: settings.member,
            tls: settings.tls.as_ref().map(|tls| tls.calls.clone()),
        };
        let file = open_memory(&settings, size)?;
        refuse_twin(&mut *store, &greeting)?;
        let (inbox, received) = channel();
        let boot = Boot(rand::random());
        let engine = Engine::start(
            (Arc::clone(&file), settings.watcher),
            settings.on_engine_thread,
            settings.spin,
            inbox.clone(),
        )?;
        let failed = |source| HostError::Listen {
            address: settings.listen,
            source,
        };
        let lines = Lines::default();
        lines.know(config.names());
        let terms = Terms {
            token: config.birth.token,
            tls: settings.tls.as_ref().map(|tls| tls.called.clone()),
        };
        let door = Door::open(
            settings.listen,
            terms,
            engine.caller(),
            inbox.clone(),
            lines.clone(),
        )
        .map_err(failed)?;
        let address = door.address();
        let advertised = settings.advertise.unwrap_or_else(|| address.to_string());
        // It may be that only this one's CAs are others.
        if let Some(tls) = &settings.tls
            && let Err(why) = tls.try_out(&advertised, address)
        {
            tracing::warn!(at = %advertised, %why, "other members will hardly take this one's certificate (--tls-cert)");
        }
        let state = Arc::new(Mutex::new(HostState::default()));
        let ended = Arc::new(Mutex::new(None));
        let agent = Agent::new(
            agent::Place {
                member: settings.member,
                boot,
                advertised,
                timing: settings.timing,
                slow: settings.slow,
                greeting,
            },
            store,
            file,
            (engine, lines),
            Arc::clone(&state),
            inbox.clone(),
        )?;
        let tell = Arc::clone(&ended);
        let agent = std::thread::Builder::new()
            .name("chain-agent".into())
            .spawn(move || {
                let why = agent.run(&received);
                drop(door);
                *lock(&tell) = why;
            })?;
        Ok(Self {
            inbox,
            state,
            address,
            agent: Some(agent),
            ended,
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it does now.
    #[must_use]
    pub fn state(&self) -> HostState {
        *lock(&self.state)
    }

    /// For who looks at it from another thread.
    #[must_use]
    pub fn state_handle(&self) -> StateHandle {
        StateHandle(Arc::clone(&self.state))
    }

    /// Whether it has ended, and why.
    #[must_use]
    pub fn ended(&self) -> Option<String> {
        let ended = self.agent.as_ref().is_none_or(JoinHandle::is_finished);
        ended.then(|| {
            let why = lock(&self.ended).clone();
            why.unwrap_or_else(|| "its agent has ended".to_owned())
        })
    }

    /// Ends it in order: the others hear of it at once.
    pub fn stop(&mut self) {
        // It fails if it has ended already.
        let _ = self.inbox.send(Inbox::Stop);
        if let Some(agent) = self.agent.take() {
            // A panic was reported where it happened.
            let _ = agent.join();
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Of two processes that say that they are the same member, with a memory each, one takes the other's place, and that one takes it again: each time is
/// a new epoch, for as long as both run. Who has died may have a report still, but does not answer; and if somebody else has its address by now, the
/// report ends with its lease.
fn refuse_twin(store: &mut dyn Store, greeting: &Greeting) -> Result<(), HostError> {
    let member = greeting.own;
    let since = Instant::now();
    loop {
        let items = list(store, MEMBER).map_err(|error| HostError::Store(error.to_string()))?;
        let mut reports = items.iter().filter_map(|item| decode::<Report>(item).ok());
        let twin = reports
            .find(|report| report.seat.id == member && peers::answers(greeting, &report.address));
        match twin {
            None => return Ok(()),
            Some(_) if since.elapsed() < TWIN_WAIT => std::thread::sleep(TWIN_LOOK),
            Some(Report { address, .. }) => {
                return Err(HostError::Store(served_twice(member, &address)));
            }
        }
    }
}

fn served_twice(member: MemberId, address: &str) -> String {
    format!(
        "member {member} is served by another process, which answers at {address}: end that one first, or serve as another member"
    )
}

fn open_memory(settings: &HostSettings, size: u64) -> Result<Arc<MemberFile>, HostError> {
    let memory = match &settings.memory {
        Some(path) => refuse_foreign(path)
            .and_then(|()| MemberFile::open(path, size))
            .map_err(|source| (path.clone(), source)),
        None => rustix::fs::memfd_create("group", rustix::fs::MemfdFlags::CLOEXEC)
            .map_err(io::Error::from)
            .and_then(|file| MemberFile::over(file.into(), "memory".as_ref(), size))
            .map_err(|source| ("memory".into(), source)),
    };
    memory.map_err(|(path, source)| HostError::Memory { path, source })
}

/// A memory without a header is written anew from another member's. A file that is something else is not. Nor is one that is shorter than its
/// header says: what is missing would be read as zeros, and the member vouch for them (I14).
fn refuse_foreign(path: &Path) -> io::Result<()> {
    let found = match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    // A device can not be given a length; nor is it sure what of a sector is there whose write was cut (docs/log.md).
    if !found.is_file() {
        let why =
            "it is no regular file, as the memory of a member has to be; make one in a file system";
        return Err(io::Error::other(why));
    }
    let mut first = Vec::new();
    let headers = HEADER_SLOTS * HEADER_SLOT_BYTES;
    // What can not be read is no header, and is repaired.
    let _ = File::open(path)?.take(headers).read_to_end(&mut first);
    if is_foreign(&first) {
        let why = "it has something else in it than the memory of a member, and is left as it is; give another path, or remove it";
        return Err(io::Error::other(why));
    }
    let second = first.get(HEADER_SLOT_BYTES as usize..).unwrap_or_default();
    let header = Header::newest([&first[..], second]);
    if let Some(whole) = header.map(|header| header.layout.size())
        && found.len() < whole
    {
        return Err(io::Error::other(format!(
            "it has {} bytes of the {whole} of a member's memory, and is left as it is; restore it, or remove it: the member is then copied to as a new one",
            found.len()
        )));
    }
    Ok(())
}

/// Locks what no thread leaves half done, so that a panic of one does not stop the others.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
