//! Everybody in one process, in virtual time.
//!
//! Nodes: members (engine host with its agent), clients, controllers, the store. What can happen to them: they pause and go on,
//! are killed and start again, lose power and with it what was not flushed, lose their memory altogether, become slow; messages
//! between any two nodes, in one direction or both, do not arrive for a while, so connections break, and requests to the
//! store get lost, or their answers. Clocks run up to 1 % fast or slow. The store itself keeps its promises.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashSet};
use std::fmt::Write as _;
use std::time::Duration;

use offload_chain::Epoch;
use offload_chain::config::{Event, Ledger, Request, Revision, Store, Ticket};
use offload_chain::group::{Outcome, Primitive, Primitives};
use offload_chain::lock::Slot;
use offload_chain::log::find_header;
use offload_chain::membership::{
    Action, Birth, Boot, CONFIG, Configuration, Controller, ControllerSettings, Member, MemberId,
    MemberSettings, Message, Note, Phase, Seat, Session, SessionEvent, SessionSettings, SlowPolicy,
    encode,
};
use offload_chain::planted::Bug;

use super::app::{App, ClientBug};
use super::check::Operation;
use super::fabric::{Handle, Hop, Link, Packet, Pending};
use super::support::mem::{Mem, execute, flush, flushes};
use super::support::rng::Rng;

pub const PERIOD: Duration = Duration::from_millis(40);
const MISSES: u32 = 4;
const READ_LEASE: Duration = Duration::from_millis(150);
const PATIENCE: Duration = Duration::from_millis(250);
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

/// Bugs of the simulated engine, for M12.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineBug {
    /// Executes for any epoch.
    AnyEpoch,
    /// The head answers, instead of the tail.
    HeadAnswers,
    /// Forwards before it is durable.
    ForwardBeforeFlush,
}

/// What is wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    Product(Bug),
    Client(ClientBug),
    Engine(EngineBug),
}

/// A node's end of the store: requests wait here until the call is over.
#[derive(Debug, Default)]
struct Port {
    tickets: u64,
    out: Vec<(Ticket, Request)>,
}

impl Store for Port {
    fn submit(&mut self, request: Request) -> Ticket {
        self.tickets += 1;
        self.out.push((Ticket(self.tickets), request));
        Ticket(self.tickets)
    }

    fn poll(&mut self) -> Option<Event> {
        None
    }
}

#[derive(Debug)]
struct MemberHost {
    memory: Mem,
    agent: Member,
    up: bool,
    life: u64,
    /// Executes nothing before this epoch.
    closed: Epoch,
    open: Option<(Epoch, Vec<Seat>)>,
    read_lease: (Epoch, Duration),
    pending: BTreeMap<usize, Pending>,
    slow: u64,
}

#[derive(Debug)]
struct ClientHost {
    app: App,
    session: Session,
    handle: Option<Handle>,
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
    Start(Node),
    Kill(usize),
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
    cut: Vec<(Node, Node)>,
    paused: BTreeMap<Node, Duration>,
    drift: BTreeMap<Node, i64>,
    faults_until: Duration,
    lives: u64,
    durable: bool,
    connection_timeout: Duration,
    planted: Option<Planted>,
    pub hash: u64,
    pub trace: Option<Vec<String>>,
    handled: u64,
    pub stats: Stats,
}

/// What happened, so that a run of nothing is noticed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    pub epochs: u64,
    pub joins: u64,
    pub fenced: u64,
    pub kills: u64,
    pub power_cuts: u64,
    pub wipes: u64,
    pub pauses: u64,
    pub partitions: u64,
    pub completed: u64,
    pub unknown: u64,
}

impl World {
    pub fn new(seed: u64, planted: Option<Planted>) -> Self {
        let mut rng = Rng::new(seed);
        let members = rng.range(2, 5) as usize;
        let clients = rng.range(2, 5) as usize;
        let birth = Birth {
            locks: super::app::OBJECTS + 1,
            ring_bytes: *rng.pick(&[512, 1024, 4096]),
            data_bytes: 1024,
            salt: rng.next(),
            executes: true,
            durable: rng.permille(800),
        };
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
            cut: Vec::new(),
            paused: BTreeMap::new(),
            drift: BTreeMap::new(),
            faults_until: Duration::from_millis(rng.range(1000, 2500)),
            lives: 0,
            durable: birth.durable,
            connection_timeout: Duration::from_millis(*rng.pick(&CONNECTION_TIMEOUTS_MS)),
            planted,
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
            world.members.push(MemberHost {
                memory: Mem::new(layout.size()),
                agent,
                up: true,
                life: 0,
                closed: Epoch(0),
                open: None,
                read_lease: (Epoch(0), Duration::ZERO),
                pending: BTreeMap::new(),
                slow: 1,
            });
        }
        for index in 0..clients {
            let slot = Slot::new(index as u32 * 5).unwrap();
            let mut app = App::new(index, slot, layout, rng.fork());
            app.planted = match planted {
                Some(Planted::Product(bug)) => (Some(bug), None),
                Some(Planted::Client(bug)) => (None, Some(bug)),
                _ => (None, None),
            };
            app.reader = index > 0 && readers;
            let session = world.session(index);
            world.clients.push(ClientHost {
                app,
                session,
                handle: None,
                up: true,
                life: 0,
            });
        }
        for _ in 0..2 {
            let controller = Controller::new(ControllerSettings {
                period: PERIOD,
                patience: PATIENCE,
                read_lease: READ_LEASE,
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
            planted: self.product_bug(),
        }
    }

    fn session(&mut self, index: usize) -> Session {
        Session::new(SessionSettings {
            slot: Slot::new(index as u32 * 5).unwrap(),
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

    // Time.

    fn at(&mut self, at: Duration, what: What) {
        self.sequence += 1;
        self.queue.push(Reverse((at.max(self.now), self.sequence)));
        self.events.insert(self.sequence, what);
    }

    fn after(&mut self, micros: u64, what: What) {
        self.at(self.now + Duration::from_micros(micros), what);
    }

    /// What the clock of a node says.
    fn clock(&self, node: Node) -> Duration {
        let drift = self.drift.get(&node).copied().unwrap_or(0);
        let now = self.now.as_nanos() as i64;
        Duration::from_nanos((now + now / 1_000_000 * drift) as u64)
    }

    /// When the clock of a node will say this, at the earliest.
    fn when(&self, node: Node, local: Duration) -> Duration {
        let drift = self.drift.get(&node).copied().unwrap_or(0);
        let local = local.as_nanos() as i128;
        let real = local * 1_000_000 / i128::from(1_000_000 + drift);
        Duration::from_nanos(real as u64 + 2000)
    }

    fn target(&self, what: &What) -> Option<Node> {
        Some(match what {
            What::Tick(node, _) | What::FromStore(node, ..) => *node,
            What::App(client, _) => Node::Client(*client),
            What::Peer(_, member, _) | What::Flushed(member, ..) | What::ReadTaken(member, ..) => {
                Node::Member(*member)
            }
            What::Deliver(lane, hop) | What::LinkLost(lane, hop) => self.ends(*lane, *hop).1,
            _ => return None,
        })
    }

    /// From where to where a link goes.
    fn ends(&self, lane: usize, hop: Hop) -> (Node, Node) {
        let lane = &self.lanes[lane];
        let client = Node::Client(lane.client);
        let member = |at: usize| Node::Member(lane.chain[at]);
        match hop {
            Hop::Along(0) => (client, member(0)),
            Hop::Along(at) if at == lane.chain.len() => (member(at - 1), client),
            Hop::Along(at) => (member(at - 1), member(at)),
            Hop::Ask(at) => (client, member(at)),
            Hop::Answer(at) => (member(at), client),
        }
    }

    fn reaches(&self, from: Node, to: Node) -> bool {
        !self.cut.contains(&(from, to))
    }

    fn note(&mut self, said: &str) {
        for byte in said.bytes() {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>12?} {said}", self.now));
        }
    }

    /// Runs until then. An error, if it does not get there.
    fn run_until(&mut self, until: Duration) -> Result<(), String> {
        while let Some(Reverse((at, sequence))) = self.queue.peek().copied() {
            if at > until {
                break;
            }
            self.queue.pop();
            self.now = at;
            let Some(what) = self.events.remove(&sequence) else {
                continue;
            };
            if let Some(node) = self.target(&what)
                && let Some(resumes) = self.paused.get(&node).copied()
            {
                if resumes > self.now {
                    self.queue.push(Reverse((resumes, sequence)));
                    self.events.insert(sequence, what);
                    continue;
                }
                self.paused.remove(&node);
            }
            self.handled += 1;
            if self.handled > EVENTS_MAX {
                return Err(format!("{EVENTS_MAX} events, and no end"));
            }
            self.hash = (self.hash ^ at.as_nanos() as u64).wrapping_mul(0x100_0000_01b3);
            self.happen(what);
            if let Some(wrong) = self.clients.iter().find_map(|host| host.app.wrong.clone()) {
                return Err(wrong);
            }
        }
        self.now = until;
        Ok(())
    }

    fn happen(&mut self, what: What) {
        match what {
            What::Tick(node, life) => self.tick(node, life),
            What::App(client, life) => self.app(client, life),
            What::ToStore(node, life, ticket, request) => self.store(node, life, ticket, &request),
            What::FromStore(node, life, event) => self.told(node, life, event),
            What::StoreTick => {
                self.ledger.expire(self.now);
                self.tell_watchers();
                self.after(10_000, What::StoreTick);
            }
            What::Peer(from, to, message) => {
                if !self.members[to].up {
                    return;
                }
                let now = self.clock(Node::Member(to));
                let mut port = self.port(Node::Member(to));
                let host = &mut self.members[to];
                let memory = &mut host.memory;
                host.agent.receive(now, &mut port, memory, from, message);
                self.after_member(to, port);
            }
            What::Deliver(lane, hop) => self.deliver(lane, hop),
            What::Flushed(member, life, lane, number) => self.flushed(member, life, lane, number),
            What::ReadTaken(member, life, lane, packet) => {
                self.read_taken(member, life, lane, packet);
            }
            What::LinkLost(lane, hop) => self.link_lost(lane, hop),
            What::Start(node) => self.start(node),
            What::Kill(member) => self.kill(member),
            What::Fault => self.fault(),
            What::Heal(links) => self.cut.retain(|link| !links.contains(link)),
        }
    }

    // Agents and the store.

    fn port(&mut self, node: Node) -> Port {
        std::mem::take(self.ports.get_mut(&node).unwrap())
    }

    fn life(&self, node: Node) -> Option<u64> {
        match node {
            Node::Member(at) => self.members[at].up.then_some(self.members[at].life),
            Node::Client(at) => self.clients[at].up.then_some(self.clients[at].life),
            Node::Controller(at) => Some(self.controllers[at].1),
            Node::Store => None,
        }
    }

    fn return_port(&mut self, node: Node, mut port: Port) {
        let Some(life) = self.life(node) else { return };
        for (ticket, request) in port.out.drain(..) {
            if self.reaches(node, Node::Store) {
                let delay = self.rng.range(150, 800);
                self.after(delay, What::ToStore(node, life, ticket, request));
            }
        }
        self.ports.insert(node, port);
    }

    fn store(&mut self, node: Node, life: u64, ticket: Ticket, request: &Request) {
        let answer = self.ledger.apply(self.now, request);
        if let Request::Watch { prefix } = request {
            let digest = self.ledger.digest(prefix);
            self.watches.push((node, life, prefix.clone(), digest));
        }
        self.tell_watchers();
        self.tell(node, life, Event::Answer(ticket, answer));
    }

    fn tell(&mut self, node: Node, life: u64, event: Event) {
        if self.reaches(Node::Store, node) {
            let delay = self.rng.range(150, 800);
            self.after(delay, What::FromStore(node, life, event));
        }
    }

    fn tell_watchers(&mut self) {
        let mut watches = std::mem::take(&mut self.watches);
        watches.retain(|(node, life, ..)| self.life(*node) == Some(*life));
        for (node, life, prefix, seen) in &mut watches {
            let digest = self.ledger.digest(prefix);
            if std::mem::replace(seen, digest) != digest {
                let prefix = prefix.clone();
                self.tell(*node, *life, Event::Changed { prefix });
            }
        }
        self.watches = watches;
    }

    fn tick(&mut self, node: Node, life: u64) {
        if self.life(node) != Some(life) {
            return;
        }
        let now = self.clock(node);
        let mut port = self.port(node);
        let next = match node {
            Node::Member(at) => {
                let host = &mut self.members[at];
                let lag = Duration::from_micros(host.slow * 300);
                host.agent.set_lag(lag);
                host.agent.tick(now, &mut port, &mut host.memory);
                let next = host.agent.next_tick();
                self.after_member(at, port);
                next
            }
            Node::Client(at) => {
                let session = &mut self.clients[at].session;
                session.tick(now, &mut port);
                let next = session.next_tick();
                self.return_port(node, port);
                self.after_session(at);
                next
            }
            Node::Controller(at) => {
                let controller = &mut self.controllers[at].0;
                controller.tick(now, &mut port);
                let next = controller.next_tick();
                self.return_port(node, port);
                self.after_controller(at);
                next
            }
            Node::Store => return,
        };
        let at = self
            .when(node, next)
            .max(self.now + Duration::from_micros(500));
        self.at(at, What::Tick(node, life));
    }

    fn told(&mut self, node: Node, life: u64, event: Event) {
        if self.life(node) != Some(life) {
            return;
        }
        let now = self.clock(node);
        let mut port = self.port(node);
        match node {
            Node::Member(at) => {
                let host = &mut self.members[at];
                host.agent.handle(now, &mut port, &mut host.memory, event);
                self.after_member(at, port);
            }
            Node::Client(at) => {
                self.clients[at].session.handle(now, &mut port, event);
                self.return_port(node, port);
                self.after_session(at);
            }
            Node::Controller(at) => {
                self.controllers[at].0.handle(now, &mut port, event);
                self.return_port(node, port);
                self.after_controller(at);
            }
            Node::Store => {}
        }
    }

    fn after_controller(&mut self, at: usize) {
        for note in self.controllers[at].0.take_notes() {
            if matches!(note, Note::NewEpoch(..)) {
                self.stats.epochs += 1;
            }
            let delicate = matches!(note, Note::Phase(_, Phase::Sync | Phase::Recover));
            if delicate && self.now < self.faults_until && self.rng.permille(100) {
                let member = self.rng.below(self.members.len() as u64) as usize;
                let delay = self.rng.range(100, 4000);
                self.after(delay, What::Kill(member));
            }
            if let Note::NewEpoch(_, why) = &note
                && why.contains("joins")
            {
                self.stats.joins += 1;
            }
            self.note(&format!("controller {at}: {note:?}"));
        }
    }

    fn after_member(&mut self, at: usize, port: Port) {
        self.return_port(Node::Member(at), port);
        while let Some(action) = self.members[at].agent.poll_action() {
            match action {
                Action::Close(epoch) => {
                    self.note(&format!("member {at} closes before {epoch}"));
                    let late = self.product_bug() == Some(Bug::SealNotAwaited);
                    let host = &mut self.members[at];
                    if !late {
                        host.closed = host.closed.max(epoch);
                        host.open = None;
                        host.pending.clear();
                    }
                    let lanes = 0..self.lanes.len();
                    let links: Vec<(usize, Hop)> = lanes
                        .filter(|lane| self.lanes[*lane].epoch < epoch && !late)
                        .filter_map(|lane| {
                            let place = self.lanes[lane].chain.iter().position(|m| *m == at)?;
                            Some((lane, Hop::Along(place)))
                        })
                        .collect();
                    for (lane, hop) in links {
                        self.lose(lane, hop);
                    }
                }
                Action::Open(epoch, chain) => {
                    self.note(&format!("member {at} opens {epoch}"));
                    let host = &mut self.members[at];
                    host.closed = host.closed.max(epoch);
                    host.open = Some((epoch, chain));
                }
                Action::ReadLease(epoch, until) => {
                    let lease = &mut self.members[at].read_lease;
                    *lease = (*lease).max((epoch, until));
                }
                Action::Send(to, message) => {
                    let to = to.0 as usize;
                    if self.reaches(Node::Member(at), Node::Member(to)) {
                        let from = MemberId(at as u32);
                        let delay = self.rng.range(50, 300);
                        self.after(delay, What::Peer(from, to, message));
                    }
                }
                Action::Warn(said) => self.note(&format!("member {at}: {said}")),
            }
        }
    }

    fn after_session(&mut self, at: usize) {
        while let Some(event) = self.clients[at].session.poll_event() {
            match event {
                SessionEvent::Connect(config) => self.connect(at, &config),
                SessionEvent::Over(epoch) => {
                    let host = &mut self.clients[at];
                    if let Some(handle) = &mut host.handle
                        && handle.epoch == epoch
                    {
                        handle.break_off();
                    }
                    self.pump(at);
                }
                SessionEvent::Fenced => {
                    self.note(&format!("client {at} is fenced"));
                    self.stats.fenced += 1;
                    self.clients[at].app.fenced();
                    self.restart_client(at);
                }
                SessionEvent::Taken => {
                    self.note(&format!("client {at}: slot taken"));
                    self.restart_client(at);
                }
            }
        }
    }

    fn restart_client(&mut self, at: usize) {
        let host = &mut self.clients[at];
        host.handle = None;
        host.life += 1;
        host.up = false;
        let delay = self.rng.range(20_000, 80_000);
        self.after(delay, What::Start(Node::Client(at)));
    }

    // Clients and lanes.

    fn connect(&mut self, at: usize, config: &Configuration) {
        let lane = self.lanes.len();
        let chain: Vec<usize> = config.chain.iter().map(|seat| seat.id.0 as usize).collect();
        self.note(&format!(
            "client {at} connects in {}: {chain:?}",
            config.epoch
        ));
        let size = config.birth.layout().unwrap().size();
        let mut handle = Handle::new(lane, config.epoch, chain.len(), size);
        let host = &mut self.clients[at];
        host.app.disconnect();
        host.app.connect(&mut handle);
        host.handle = Some(handle);
        self.lanes.push(Lane {
            client: at,
            client_life: host.life,
            epoch: config.epoch,
            chain,
        });
        self.pump(at);
    }

    fn app(&mut self, at: usize, life: u64) {
        if self.clients[at].life == life && self.clients[at].up {
            self.pump(at);
        }
    }

    /// Lets a client take its outcomes and go on, and the network what it posts.
    fn pump(&mut self, at: usize) {
        let now = self.now;
        let host = &mut self.clients[at];
        let Some(handle) = &mut host.handle else {
            return;
        };
        let before = host.app.completed;
        while let Some((flight, result)) = handle.poll() {
            host.app.handle(now, handle, flight, &result);
        }
        let mut broken = None;
        if handle.is_broken() {
            broken = Some(handle.epoch);
            host.app.disconnect();
            host.handle = None;
        } else {
            host.app.wake(now, handle);
        }
        let life = host.life;
        if let Some(wake) = host.app.wake {
            self.at(wake, What::App(at, life));
        }
        let completed = self.clients[at].app.completed;
        if completed != before {
            self.note(&format!("client {at} has completed {completed}"));
        }
        if let Some(epoch) = broken {
            self.note(&format!("client {at}: {epoch} is broken"));
            let node = Node::Client(at);
            let mut port = self.port(node);
            let local = self.clock(node);
            self.clients[at].session.broken(local, &mut port, epoch);
            self.return_port(node, port);
            return;
        }
        let Some(handle) = &mut self.clients[at].handle else {
            return;
        };
        let lane = handle.lane;
        for (flight, primitive) in std::mem::take(&mut handle.outbox) {
            let hop = match &primitive {
                Primitive::Read { member, .. } => Hop::Ask(*member),
                _ => Hop::Along(0),
            };
            let packet = Packet {
                flight,
                primitive,
                found: Vec::new(),
                bytes: Vec::new(),
            };
            self.send(lane, hop, packet);
        }
    }

    fn send(&mut self, lane: usize, hop: Hop, packet: Packet) {
        let link = self.links.entry((lane, hop)).or_default();
        if link.gone {
            return;
        }
        link.queue.push_back(packet);
        if !link.scheduled {
            link.scheduled = true;
            let delay = self.latency(lane, hop);
            self.after(delay, What::Deliver(lane, hop));
        }
    }

    fn latency(&mut self, lane: usize, hop: Hop) -> u64 {
        let (from, to) = self.ends(lane, hop);
        let slow = |node: Node| match node {
            Node::Member(at) => self.members[at].slow,
            _ => 1,
        };
        let slow = slow(from).max(slow(to));
        self.rng.range(10, 60) * slow
    }

    fn deliver(&mut self, lane: usize, hop: Hop) {
        let (from, to) = self.ends(lane, hop);
        let reaches = self.reaches(from, to) && self.reaches(to, from);
        let now = self.now;
        let Some(link) = self.links.get_mut(&(lane, hop)) else {
            return;
        };
        if link.gone {
            return;
        }
        if !reaches {
            let since = *link.stalled_since.get_or_insert(now);
            if now > since + self.connection_timeout {
                self.lose(lane, hop);
            } else {
                self.after(3000, What::Deliver(lane, hop));
            }
            return;
        }
        link.stalled_since = None;
        let Some(packet) = link.queue.pop_front() else {
            link.scheduled = false;
            return;
        };
        link.scheduled = !link.queue.is_empty();
        if link.scheduled {
            let delay = self.latency(lane, hop);
            self.after(delay, What::Deliver(lane, hop));
        }
        match (hop, to) {
            (Hop::Along(place), Node::Member(member)) => self.arrive(lane, place, member, packet),
            (Hop::Ask(_), Node::Member(member)) => self.read(lane, hop, member, packet),
            (_, _) => self.answered(lane, packet),
        }
    }

    /// A connection breaks: what is on it is gone, and both ends learn of it.
    fn lose(&mut self, lane: usize, hop: Hop) {
        let link = self.links.entry((lane, hop)).or_default();
        if link.gone {
            return;
        }
        link.gone = true;
        link.queue.clear();
        let delay = self.rng.range(50, 5000);
        self.after(delay, What::LinkLost(lane, hop));
    }

    /// The one who sends finds that nobody takes it: the break travels back to the client.
    fn link_lost(&mut self, lane: usize, hop: Hop) {
        let (from, to) = self.ends(lane, hop);
        let epoch = self.lanes[lane].epoch;
        if let (Node::Member(from), Hop::Along(place)) = (from, hop) {
            if self.life(Node::Member(from)).is_some()
                && let Node::Member(suspect) = to
            {
                let node = Node::Member(from);
                let mut port = self.port(node);
                let suspect = Some(MemberId(suspect as u32));
                self.members[from].agent.doubt(&mut port, epoch, suspect);
                self.return_port(node, port);
            }
            self.lose(lane, Hop::Along(place - 1));
        }
        let Lane {
            client,
            client_life,
            ..
        } = self.lanes[lane];
        let host = &mut self.clients[client];
        let ours = |handle: &&mut Handle| handle.lane == lane;
        let end = from == Node::Client(client) || to == Node::Client(client);
        if end
            && host.life == client_life
            && let Some(handle) = host.handle.as_mut().filter(ours)
        {
            handle.break_off();
            self.pump(client);
        }
    }

    // The engine.

    fn serves(&self, lane: usize, member: usize) -> bool {
        let host = &self.members[member];
        let epoch = self.lanes[lane].epoch;
        if self.engine_bug(EngineBug::AnyEpoch) || self.product_bug() == Some(Bug::SealNotAwaited) {
            return host.up;
        }
        let open = host.open.as_ref().is_some_and(|(open, _)| *open == epoch);
        host.up && open && host.closed <= epoch
    }

    fn arrive(&mut self, lane: usize, place: usize, member: usize, packet: Packet) {
        if !self.serves(lane, member) {
            return self.lose(lane, Hop::Along(place));
        }
        let durable = flushes(&packet.primitive);
        let host = &mut self.members[member];
        let (found, _) = execute(&mut host.memory, place, &packet.primitive);
        let mut packet = packet;
        packet.found.push(found);
        let pending = host.pending.entry(lane).or_default();
        pending.next += 1;
        let number = pending.next;
        let early = self.planted == Some(Planted::Engine(EngineBug::ForwardBeforeFlush));
        pending.queue.push_back((number, packet, !durable || early));
        if durable {
            let (slow, life) = (host.slow, host.life);
            let delay = self.rng.range(20, 150) * slow;
            self.after(delay, What::Flushed(member, life, lane, number));
        }
        self.forward(lane, place, member);
    }

    fn flushed(&mut self, member: usize, life: u64, lane: usize, number: u64) {
        let host = &mut self.members[member];
        if !host.up || host.life != life {
            return;
        }
        let Some(pending) = host.pending.get_mut(&lane) else {
            return;
        };
        for (of, packet, done) in &mut pending.queue {
            if *of == number {
                flush(&mut host.memory, &packet.primitive);
                *done = true;
            }
        }
        let place = self.lanes[lane].chain.iter().position(|at| *at == member);
        if let Some(place) = place {
            self.forward(lane, place, member);
        }
    }

    fn forward(&mut self, lane: usize, place: usize, member: usize) {
        let chain = self.lanes[lane].chain.len();
        let head_answers = self.engine_bug(EngineBug::HeadAnswers);
        while let Some(pending) = self.members[member].pending.get_mut(&lane) {
            if !pending.queue.front().is_some_and(|(_, _, done)| *done) {
                return;
            }
            let Some((_, packet, _)) = pending.queue.pop_front() else {
                return;
            };
            if head_answers && place == 0 && chain > 1 {
                let mut answer = packet.clone();
                answer.found = vec![packet.found[0]; chain];
                self.send(lane, Hop::Along(chain), answer);
            }
            if !(head_answers && place + 1 == chain && chain > 1) {
                self.send(lane, Hop::Along(place + 1), packet);
            }
        }
    }

    fn read(&mut self, lane: usize, hop: Hop, member: usize, mut packet: Packet) {
        if !self.serves(lane, member) {
            return self.lose(lane, hop);
        }
        let host = &mut self.members[member];
        packet.bytes = execute(&mut host.memory, member, &packet.primitive).1;
        let life = host.life;
        self.after(5, What::ReadTaken(member, life, lane, packet));
    }

    /// The bytes are taken; only now the lease is looked at.
    fn read_taken(&mut self, member: usize, life: u64, lane: usize, packet: Packet) {
        let host = &self.members[member];
        if !host.up || host.life != life {
            return;
        }
        let epoch = self.lanes[lane].epoch;
        let (leased, until) = host.read_lease;
        let leased = leased == epoch && self.clock(Node::Member(member)) < until;
        let Some(place) = self.lanes[lane].chain.iter().position(|at| *at == member) else {
            return;
        };
        if !leased {
            return self.lose(lane, Hop::Ask(place));
        }
        self.send(lane, Hop::Answer(place), packet);
    }

    fn answered(&mut self, lane: usize, packet: Packet) {
        let Lane {
            client,
            client_life,
            ..
        } = self.lanes[lane];
        let host = &mut self.clients[client];
        if !host.up || host.life != client_life {
            return;
        }
        let Some(handle) = host.handle.as_mut().filter(|handle| handle.lane == lane) else {
            return;
        };
        let outcome = match packet.primitive {
            Primitive::Cas { .. } => Outcome::Cas(packet.found),
            Primitive::Read { .. } => Outcome::Read(packet.bytes),
            _ => Outcome::Done,
        };
        handle.answer(packet.flight, outcome);
        self.pump(client);
    }

    // Faults.

    fn fault(&mut self) {
        if self.now >= self.faults_until {
            return;
        }
        let next = self.rng.range(20_000, 250_000);
        self.after(next, What::Fault);
        let member = self.rng.below(self.members.len() as u64) as usize;
        let client = self.rng.below(self.clients.len() as u64) as usize;
        match self.rng.below(12) {
            0 | 1 => self.kill(member),
            2 => {
                self.kill(member);
                let down = !self.members[member].up;
                if down && self.rng.permille(300) && self.is_spare(member, !self.durable) {
                    self.note(&format!("member {member} is wiped"));
                    self.stats.wipes += 1;
                    self.members[member].memory.wipe();
                }
            }
            3 if self.rng.permille(300) && self.durable => {
                self.note("all members lose power");
                self.stats.power_cuts += 1;
                for member in 0..self.members.len() {
                    self.kill(member);
                }
            }
            3..6 => {
                let node = match self.rng.below(8) {
                    0..4 => Node::Member(member),
                    4..7 => Node::Client(client),
                    _ => Node::Controller(self.rng.below(2) as usize),
                };
                let length = self.rng.range(5_000, 700_000);
                self.note(&format!("{node:?} pauses for {length} us"));
                self.stats.pauses += 1;
                self.paused
                    .insert(node, self.now + Duration::from_micros(length));
            }
            6 if self.clients[client].up => {
                self.note(&format!("client {client} is killed"));
                self.stats.kills += 1;
                self.clients[client].app.fenced();
                self.restart_client(client);
            }
            7..10 => self.partition(),
            10 => {
                let slow = *self.rng.pick(&[1, 10, 100, 1000]);
                self.note(&format!("member {member} is {slow} times as slow"));
                self.members[member].slow = slow;
            }
            _ => self.break_link(),
        }
    }

    /// Two sides, or two nodes, or one direction.
    fn partition(&mut self) {
        let nodes = self.nodes();
        let mut links = HashSet::new();
        let one_way = self.rng.permille(300);
        if self.rng.permille(500) {
            let (a, b) = (*self.rng.pick(&nodes), *self.rng.pick(&nodes));
            links.insert((a, b));
            if !one_way {
                links.insert((b, a));
            }
        } else {
            let side: Vec<bool> = nodes.iter().map(|_| self.rng.permille(500)).collect();
            for (a, at_a) in nodes.iter().zip(&side) {
                for (b, at_b) in nodes.iter().zip(&side) {
                    if at_a != at_b && (!one_way || *at_a) {
                        links.insert((*a, *b));
                    }
                }
            }
        }
        let mut sorted: Vec<_> = links.iter().copied().collect();
        sorted.sort();
        self.stats.partitions += 1;
        self.note(&format!("cut: {sorted:?}"));
        self.cut.extend(sorted);
        let length = self.rng.range(10_000, 600_000);
        self.after(length, What::Heal(links));
    }

    /// One connection is reset; with it go the answers on it.
    fn break_link(&mut self) {
        let alive: Vec<(usize, Hop)> = self
            .links
            .iter()
            .filter(|(_, link)| !link.gone)
            .map(|(key, _)| *key)
            .collect();
        if let Some((lane, hop)) = alive.last().copied() {
            let back = self.rng.below(alive.len().min(8) as u64) as usize;
            let (lane, hop) = alive
                .get(alive.len() - 1 - back)
                .copied()
                .unwrap_or((lane, hop));
            self.note(&format!("connection {lane} {hop:?} is reset"));
            self.lose(lane, hop);
        }
    }

    /// Whether the group can go on without what this member has: losing the last copy is not in the fault model.
    fn is_spare(&self, member: usize, memory_in_process: bool) -> bool {
        let config = configuration(&mut self.ledger.clone(), self.now);
        config.active_chain.iter().any(|seat| {
            let other = seat.id.0 as usize;
            let host = &self.members[other];
            let keeps = match memory_in_process {
                true => host.up && host.agent.report().seat == *seat,
                false => {
                    find_header(&host.memory).is_ok_and(|header| header.term >= config.active_epoch)
                }
            };
            let in_chain = config.phase == Phase::Active || config.chain.contains(seat);
            other != member && keeps && in_chain
        })
    }

    /// The process of a member ends, and what it had not flushed may be gone.
    fn kill(&mut self, member: usize) {
        if !self.members[member].up || !(self.durable || self.is_spare(member, true)) {
            return;
        }
        self.note(&format!("member {member} is killed"));
        self.stats.kills += 1;
        let mut rng = self.rng.fork();
        let host = &mut self.members[member];
        host.up = false;
        host.life += 1;
        host.memory.cut(&mut rng);
        host.open = None;
        host.pending.clear();
        self.paused.remove(&Node::Member(member));
        // Its kernel says so, or nobody does.
        if self.rng.permille(600) {
            let lanes = 0..self.lanes.len();
            let lanes: Vec<(usize, usize)> = lanes
                .filter_map(|lane| {
                    let place = self.lanes[lane].chain.iter().position(|at| *at == member)?;
                    Some((lane, place))
                })
                .collect();
            for (lane, place) in lanes {
                self.lose(lane, Hop::Along(place));
            }
        }
        let delay = self.rng.range(5_000, 900_000);
        self.after(delay, What::Start(Node::Member(member)));
    }

    fn start(&mut self, node: Node) {
        self.note(&format!("{node:?} starts"));
        let life = match node {
            Node::Member(at) => {
                let settings = self.member_settings(at);
                let host = &mut self.members[at];
                host.agent = Member::new(settings);
                host.up = true;
                host.closed = Epoch(0);
                host.read_lease = (Epoch(0), Duration::ZERO);
                host.life
            }
            Node::Client(at) => {
                if self.clients[at].up {
                    return;
                }
                let session = self.session(at);
                let host = &mut self.clients[at];
                host.session = session;
                host.up = true;
                host.life
            }
            _ => return,
        };
        self.ports.insert(node, Port::default());
        self.at(self.now, What::Tick(node, life));
    }

    // The whole.

    /// Faults, then none, and everything has to come to rest. What is wrong, if anything is.
    pub fn run(&mut self) -> Result<Stats, String> {
        self.run_until(self.faults_until)?;
        self.note("no faults any more");
        self.cut.clear();
        self.paused.clear();
        for member in &mut self.members {
            member.slow = 1;
        }
        let completed: Vec<u64> = self.clients.iter().map(|host| host.app.completed).collect();
        let goal = |world: &Self| {
            world.healthy()
                && world
                    .clients
                    .iter()
                    .zip(&completed)
                    .all(|(host, before)| host.app.completed >= before + 5)
        };
        self.run_while(|world| !goal(world), "the group does not recover")?;
        for host in &mut self.clients {
            host.app.stop = true;
        }
        let idle = |world: &Self| world.clients.iter().all(|host| host.app.is_done());
        self.run_while(
            |world| !(idle(world) && world.healthy()),
            "clients do not come to rest",
        )?;
        self.judge()
    }

    fn run_while(&mut self, on: impl Fn(&Self) -> bool, said: &str) -> Result<(), String> {
        let patience = self.now + Duration::from_secs(30);
        while on(self) {
            if self.now > patience {
                let mut said = said.to_owned();
                for host in &self.clients {
                    let _ = write!(
                        said,
                        "\n  client {} {}: {}",
                        host.up,
                        host.life,
                        host.app.describe()
                    );
                }
                let _ = write!(said, "\n  {:?}", self.configuration());
                for member in &self.members {
                    let _ = write!(said, "\n  {} {:?}", member.up, member.agent.report());
                }
                return Err(said);
            }
            self.run_until(self.now + Duration::from_millis(20))?;
        }
        Ok(())
    }

    fn configuration(&mut self) -> Configuration {
        configuration(&mut self.ledger.clone(), self.now)
    }

    /// The group is active, with all its members.
    fn healthy(&self) -> bool {
        let config = configuration(&mut self.ledger.clone(), self.now);
        config.phase == Phase::Active && config.chain.len() == self.members.len()
    }

    fn judge(&mut self) -> Result<Stats, String> {
        // I15.
        let config = self.configuration();
        for seat in &config.chain {
            let (a, b) = (config.chain[0].id.0 as usize, seat.id.0 as usize);
            let (one, other) = (
                self.members[a].memory.bytes(),
                self.members[b].memory.bytes(),
            );
            if let Some(at) = (0..one.len()).find(|at| one[*at] != other[*at]) {
                return Err(format!("members {a} and {b} differ at {at}"));
            }
        }
        // I1: what the members have in the end is what everybody reads from now on.
        let layout = config.birth.layout().unwrap();
        let mut history: Vec<Operation> = Vec::new();
        for host in &mut self.clients {
            host.app.end();
            history.extend(host.app.history.iter().copied());
        }
        let end = self.now + Duration::from_secs(1);
        for object in 0..super::app::OBJECTS as usize {
            let at = layout.data_at() as usize + super::app::object(object as u32).offset as usize;
            let bytes = &self.members[config.chain[0].id.0 as usize].memory.bytes()[at..];
            let bytes = &bytes[..super::app::OBJECT_BYTES];
            if !(super::app::object(object as u32).whole)(bytes) {
                return Err(format!("object {object} is torn"));
            }
            history.push(Operation {
                object,
                client: usize::MAX,
                kind: super::check::Kind::Read(super::app::value_of(bytes)),
                begin: end,
                end: Some(end),
            });
        }
        for object in 0..super::app::OBJECTS as usize {
            let of = |one: &&Operation| one.object == object;
            let history: Vec<Operation> = history.iter().filter(of).copied().collect();
            super::check::check(&history).map_err(|said| format!("object {object}: {said}"))?;
        }
        self.stats.completed = self.clients.iter().map(|host| host.app.completed).sum();
        self.stats.unknown = history.iter().filter(|one| one.end.is_none()).count() as u64;
        Ok(self.stats)
    }

    pub fn handled(&self) -> u64 {
        self.handled
    }
}

fn configuration(ledger: &mut Ledger, now: Duration) -> Configuration {
    let prefix = CONFIG.to_owned();
    let Ok(offload_chain::config::Reply::Items(items, _)) =
        ledger.apply(now, &Request::List { prefix })
    else {
        panic!("a list is answered");
    };
    offload_chain::membership::decode(&items[0]).unwrap()
}
