//! Everybody in one process, in virtual time.
//!
//! Nodes: members (engine host with its agent), clients, controllers, the store. What can happen to them: they pause and go on,
//! are killed and start again, lose power and with it what was not flushed, lose their memory altogether, become slow; their media
//! cannot be read, or not made durable, once or until they are replaced or well again; messages
//! between any two nodes, in one direction or both, do not arrive for a while, so connections break, and requests to the
//! store get lost, or their answers. Clocks run up to 1 % fast or slow. The store itself keeps its promises.

mod agents;
mod cascade;
mod clients;
mod crowd;
mod engine;
mod excluded;
mod faults;
mod judge;
mod media;
mod model;
mod standstill;
mod stats;
mod store;
mod time;
mod traffic;
mod unaware;
mod wires;
mod working;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use offload_chain::Epoch;
use offload_chain::config::{Event, Ledger, Request, Revision, Ticket};
use offload_chain::group::Topology;
use offload_chain::lock::{SLOTS_MAX, Slot};
use offload_chain::log::Preset;
use offload_chain::membership::{
    Birth, Boot, CONFIG, Configuration, Controller, ControllerSettings, Member, MemberId,
    MemberSettings, Message, Seat, Session, SessionSettings, SlowPolicy, encode,
};
use offload_chain::planted::Bug;

use softrdma::RegionTable;
use softrdma::offload::Flaw;

use super::app::{self, App, ClientBug};
use super::device::{Device, MediaBug};
use super::fabric::{Handle, Hop, Link, Packet, Pending};
use super::group::{Group, Joined};
use super::records::Recorder;
use super::support::rng::Rng;
use super::work::Work;
use engine::{EngineClock, Hosted};
pub use stats::Stats;
use store::Port;
use wires::Wires;
use working::UnderWay;

pub const PERIOD: Duration = Duration::from_millis(40);
const MISSES: u32 = 4;
const READ_LEASE: Duration = Duration::from_millis(150);
const PATIENCE: Duration = Duration::from_millis(250);
const MEDIA_PATIENCE: Duration = Duration::from_millis(600);
/// A connection over which nothing gets for so long is given up.
const CONNECTION_TIMEOUTS_MS: [u64; 3] = [120, 120, 500];
const EVENTS_MAX: u64 = 3_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Node {
    Member(usize),
    Client(usize),
    Controller(usize),
    Store,
}

/// What the group is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Under {
    /// A model of members and clients: packets that are primitives. Fast.
    Model,
    /// Real members with their engines, and real clients, over wires.
    Engine,
}

/// Bugs of the simulated engine, or of the process around a real one, for M12.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineBug {
    /// Executes for any epoch.
    AnyEpoch,
    /// The head answers, instead of the tail.
    HeadAnswers,
    /// The head of a star answers without one of the others.
    OneNotAwaited,
    /// Forwards before it is durable.
    ForwardBeforeFlush,
    /// Each gCAS is answered as one that has swapped.
    SwapClaimed,
    /// Each gMEMCPY is carried out once more, behind the next one.
    CopiedAgain,
    /// A real engine is not stopped when its member seals.
    NotStopped,
    /// A real engine answers READs without a lease.
    NoLease,
}

/// What is wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    Product(Bug),
    Client(ClientBug),
    Engine(EngineBug),
    Media(MediaBug),
    /// Of a real engine.
    Flaw(Flaw),
}

#[derive(Debug)]
struct MemberHost {
    memory: Device,
    agent: Member,
    up: bool,
    life: u64,
    /// Executes nothing before this epoch.
    closed: Epoch,
    open: Option<(Epoch, Vec<Seat>)>,
    /// The epoch that it sealed for when its media had failed already.
    failed: Option<Epoch>,
    read_lease: (Epoch, Duration),
    pending: BTreeMap<usize, Pending>,
    work: Option<UnderWay>,
    slow: u64,
    // With a real engine.
    clock: Arc<EngineClock>,
    table: Arc<RegionTable>,
    engine: Option<Hosted>,
    /// Engines that should have been stopped.
    old: Vec<Hosted>,
}

#[derive(Debug)]
struct ClientHost {
    work: Work,
    session: Session,
    group: Option<Group>,
    up: bool,
    life: u64,
}

#[derive(Debug)]
struct Lane {
    client: usize,
    client_life: u64,
    epoch: Epoch,
    chain: Vec<usize>,
}

#[derive(Debug)]
enum What {
    Tick(Node, u64),
    App(usize, u64),
    ToStore(Node, u64, Ticket, Request),
    FromStore(Node, u64, Event),
    StoreTick,
    Peer(MemberId, usize, Message),
    Deliver(usize, Hop),
    Flushed(usize, u64, usize, u64),
    ReadTaken(usize, u64, usize, Packet),
    LinkLost(usize, Hop),
    Close(usize, u64, Epoch),
    /// What an agent wanted done with its memory ends.
    Worked(usize, u64),
    /// Of a member: its engine sends, having looked at the clock then.
    Turn(usize, u64, Duration),
    Device(usize, u64, u64),
    Due(Node, u64),
    Reach(Node, u64, usize, Duration),
    /// Of a wire: in which way.
    Segment(usize, usize),
    /// Which end hears of it.
    WireLost(usize, usize),
    Start(Node),
    Kill(usize),
    /// Media of a member are well again, or replaced.
    Mended(usize),
    Fault,
    Heal(HashSet<(Node, Node)>),
}

pub struct World {
    pub now: Duration,
    rng: Rng,
    sequence: u64,
    queue: BinaryHeap<Reverse<(Duration, u64)>>,
    events: BTreeMap<u64, What>,
    ledger: Ledger,
    watches: Vec<(Node, u64, String, (Revision, usize))>,
    members: Vec<MemberHost>,
    clients: Vec<ClientHost>,
    controllers: Vec<(Controller, u64)>,
    ports: BTreeMap<Node, Port>,
    lanes: Vec<Lane>,
    links: BTreeMap<(usize, Hop), Link>,
    under: Under,
    topology: Topology,
    wires: Wires,
    objects: u64,
    /// Operations that rings hold.
    depth: u32,
    /// Of a thousand pages, how many come late.
    late: u64,
    /// Longest flush.
    flush_us: u64,
    /// Longest time that a real engine takes to stop.
    stop_us: u64,
    cut: Vec<(Node, Node)>,
    paused: BTreeMap<Node, Duration>,
    drift: BTreeMap<Node, i64>,
    faults_until: Duration,
    lives: u64,
    /// What was acknowledged outlives all processes: not where the group's members have no media, nor where clients are content with visible.
    durable: bool,
    /// Media fail.
    media: bool,
    connection_timeout: Duration,
    planted: Option<Planted>,
    /// Who was the first to open an epoch, and a checksum of its memory then.
    opened: BTreeMap<Epoch, (usize, u32)>,
    /// What cannot be, but is.
    wrong: Option<String>,
    pub hash: u64,
    pub trace: Option<Vec<String>>,
    handled: u64,
    pub stats: Stats,
}

impl World {
    pub fn new(seed: u64, under: Under, planted: Option<Planted>) -> Self {
        Self::with_members(seed, under, planted, None)
    }

    fn with_members(
        seed: u64,
        under: Under,
        planted: Option<Planted>,
        members: Option<usize>,
    ) -> Self {
        Self::with_sizes(seed, under, planted, members, None)
    }

    fn with_sizes(
        seed: u64,
        under: Under,
        planted: Option<Planted>,
        members: Option<usize>,
        clients: Option<usize>,
    ) -> Self {
        let mut rng = Rng::new(seed);
        let by_chance = members.is_none();
        // Seeds without failing media would show nothing of these.
        let of_media = matches!(
            planted,
            Some(Planted::Media(_) | Planted::Flaw(Flaw::FailureIgnored))
        );
        // Recovery writes again what it carries out: what was lost before shows in logs that keep their records.
        let of_records = planted == Some(Planted::Media(MediaBug::FlushBelieved));
        let members = members.unwrap_or(rng.range(2, 5) as usize);
        let clients = clients.unwrap_or(rng.range(2, 5) as usize);
        let birth = Birth {
            locks: app::OBJECTS + 1,
            ring_bytes: *rng.pick(&[512, 1024, 4096]),
            data_bytes: 1024,
            salt: rng.next(),
            token: [7; 16],
            // Directed runs are of places in a chain, and of objects.
            topology: match by_chance && rng.permille(300) {
                true => Topology::Star,
                false => Topology::Chain,
            },
            executes: !(by_chance && rng.permille(250) || of_records),
            durable: rng.permille(800),
        };
        // Of its own generator: other runs are what they were without.
        let lazy = match planted {
            Some(Planted::Product(Bug::MarkNotFlushed)) => true,
            _ => Rng::new(!seed).permille(150),
        };
        let lazy = lazy && birth.durable && birth.executes;
        let mut world = Self {
            now: Duration::ZERO,
            rng: rng.fork(),
            sequence: 0,
            queue: BinaryHeap::new(),
            events: BTreeMap::new(),
            ledger: Ledger::new(),
            watches: Vec::new(),
            members: Vec::new(),
            clients: Vec::new(),
            controllers: Vec::new(),
            ports: BTreeMap::new(),
            lanes: Vec::new(),
            links: BTreeMap::new(),
            under,
            topology: birth.topology,
            wires: Wires::default(),
            objects: 0,
            depth: 64,
            late: 0,
            flush_us: 150,
            stop_us: 400,
            cut: Vec::new(),
            paused: BTreeMap::new(),
            drift: BTreeMap::new(),
            faults_until: Duration::from_millis(rng.range(1000, 2500)),
            lives: 0,
            durable: birth.durable && !lazy,
            // Memory that lasts as long as its process does not fail; and who loses what was only visible may be the last who had it.
            media: birth.durable && !lazy && (rng.permille(500) || of_media),
            connection_timeout: Duration::from_millis(*rng.pick(&CONNECTION_TIMEOUTS_MS)),
            planted,
            opened: BTreeMap::new(),
            wrong: None,
            hash: 0xcbf2_9ce4_8422_2325,
            trace: None,
            handled: 0,
            stats: Stats::default(),
        };
        let ids = (0..members as u32).map(MemberId).collect();
        let put = Request::Put {
            key: CONFIG.into(),
            value: encode(&Configuration::new(birth, ids)),
            expect: offload_chain::config::Expect::Anything,
            lease: None,
        };
        world.ledger.apply(Duration::ZERO, &put).unwrap();
        let layout = birth.layout().unwrap();
        let readers = rng.permille(300);
        for index in 0..members {
            let agent = Member::new(world.member_settings(index));
            let table = world.table();
            let bug = match planted {
                Some(Planted::Media(bug)) => Some(bug),
                _ => None,
            };
            world.members.push(MemberHost {
                memory: Device::new(layout.size(), bug, rng.fork()),
                agent,
                up: true,
                life: 0,
                closed: Epoch(0),
                open: None,
                failed: None,
                read_lease: (Epoch(0), Duration::ZERO),
                pending: BTreeMap::new(),
                work: None,
                slow: 1,
                clock: EngineClock::new(),
                table,
                engine: None,
                old: Vec::new(),
            });
        }
        for index in 0..clients {
            let slot = slot(index);
            let planted = match planted {
                Some(Planted::Product(bug)) => (Some(bug), None),
                Some(Planted::Client(bug)) => (None, Some(bug)),
                _ => (None, None),
            };
            let reader = index > 0 && readers;
            let work = if birth.executes {
                let mut app = App::new(index, slot, birth, rng.fork());
                (app.planted, app.reader) = (planted, reader);
                if lazy {
                    app.preset = Preset::VOLATILE;
                }
                Work::Objects(Box::new(app))
            } else {
                let mut recorder = Recorder::new(index, slot, layout, rng.fork());
                (recorder.planted, recorder.reader) = (planted, reader);
                Work::Records(Box::new(recorder))
            };
            let session = world.session(index);
            world.clients.push(ClientHost {
                work,
                session,
                group: None,
                up: true,
                life: 0,
            });
        }
        for _ in 0..2 {
            let controller = Controller::new(ControllerSettings {
                period: PERIOD,
                patience: PATIENCE,
                read_lease: READ_LEASE,
                silence: PERIOD * MISSES,
                slow: SlowPolicy {
                    remove: true,
                    ..SlowPolicy::default()
                },
                planted: world.product_bug(),
            });
            world.controllers.push((controller, 0));
        }
        for node in world.nodes() {
            let drift = rng.below(20_001) as i64 - 10_000;
            world.drift.insert(node, drift);
            world.ports.insert(node, Port::default());
            let at = Duration::from_micros(rng.below(5000));
            if node != Node::Store {
                world.at(at, What::Tick(node, 0));
            }
        }
        if under == Under::Engine {
            world.depth = *rng.pick(&[2, 4, 64]);
            world.late = *rng.pick(&[0, 100]);
            world.flush_us = *rng.pick(&[150, 150, 6000]);
            world.stop_us = *rng.pick(&[400, 3000, 20_000]);
        }
        world.at(Duration::ZERO, What::StoreTick);
        world.at(Duration::from_millis(300), What::Fault);
        world
    }

    fn product_bug(&self) -> Option<Bug> {
        match self.planted {
            Some(Planted::Product(bug)) => Some(bug),
            _ => None,
        }
    }

    fn engine_bug(&self, bug: EngineBug) -> bool {
        self.planted == Some(Planted::Engine(bug))
    }

    /// Regions of a member in one life.
    fn table(&self) -> Arc<RegionTable> {
        RegionTable::new([self.lives as u8; 32])
    }

    fn boot(&mut self) -> Boot {
        self.lives += 1;
        Boot(self.lives)
    }

    fn member_settings(&mut self, index: usize) -> MemberSettings {
        MemberSettings {
            seat: Seat {
                id: MemberId(index as u32),
                boot: self.boot(),
            },
            address: format!("member-{index}"),
            period: PERIOD,
            misses: MISSES,
            read_lease: READ_LEASE,
            ready_chunks: 2,
            media_patience: MEDIA_PATIENCE,
            planted: self.product_bug(),
        }
    }

    fn session(&mut self, index: usize) -> Session {
        Session::new(SessionSettings {
            slot: slot(index),
            boot: self.boot(),
            period: PERIOD,
            misses: MISSES,
        })
    }

    fn nodes(&self) -> Vec<Node> {
        let members = (0..self.members.len()).map(Node::Member);
        let clients = (0..self.clients.len()).map(Node::Client);
        let controllers = (0..2).map(Node::Controller);
        let nodes = members.chain(clients).chain(controllers);
        nodes.chain([Node::Store]).collect()
    }
}

/// Of a client: one of its own, anywhere in the words of locks.
fn slot(client: usize) -> Slot {
    Slot::new(client as u32 * 5 % SLOTS_MAX).unwrap()
}
