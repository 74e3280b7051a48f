//! A member: its memory, and the engine that changes it without a program.

mod callers;
mod reads;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use softrdma::offload::{
    Check, Engine, EngineConfig, EngineEvent, Flaw, LinkError, LinkId, LinkSpec, ProgramError,
    Refusal,
};
use softrdma::{
    BackingId, Buffer, CloseReason, Config, MemoryRegion, ProtectionDomain, RegionSpec,
    RegionTable, RegisterError, Rights, SocketState, Stag, Time,
};

use super::lease::ReadLease;
use super::node::{Answer, Node, Store};
use super::program::{Parts, program};
use super::shape::{Caller, Denied, GroupShape, ShapeError, hello};

/// Callers that may wait until the members behind are there.
const WAITING_MAX: usize = 64;
/// Events that nobody has taken; what comes then is left out, but for the end.
const EVENTS_MAX: usize = 1024;

/// Where the memory of a group is.
#[derive(Clone, Debug)]
pub enum GroupMemory {
    /// In memory; nothing survives, and durable primitives can not be asked for.
    Memory(Arc<Buffer>),
    /// In pages of the member's store: emulated persistent memory, a file.
    Pages {
        /// Which object.
        backing: BackingId,
        /// First byte of it.
        offset: u64,
    },
}

/// What a member is made of.
#[derive(Clone, Debug)]
pub struct MemberConfig {
    /// The group.
    pub shape: GroupShape,
    /// Which member this is.
    pub member: usize,
    /// Its memory.
    pub memory: GroupMemory,
    /// A protection domain for what peers may touch, and one for what descriptors may. Nobody else's, and of this epoch
    /// only: the keys of the group's token.
    pub domains: [ProtectionDomain; 2],
    /// Settings of links.
    pub link: Config,
    /// READs are answered while this holds, and wait otherwise; always, in a group without membership.
    pub reads: Option<Arc<ReadLease>>,
    /// Tests only: a flaw to plant.
    pub planted: Option<Flaw>,
}

/// Why a member could not be made.
#[derive(Debug, thiserror::Error)]
pub enum MemberError {
    /// Such a group can not be.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// The number of the member.
    #[error("the group has no such member")]
    Number,
    /// Memory does not persist, and the group says that it does.
    #[error("a persistent group needs persistent memory: pages")]
    NotPersistent,
    /// The memory is smaller than the group's.
    #[error("the memory of the group: {0}")]
    Memory(#[from] RegisterError),
    /// The program: a bug.
    #[error(transparent)]
    Program(#[from] ProgramError),
}

/// What a member tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberEvent {
    /// Everybody it hands on to is there; clients are taken.
    Ready,
    /// A client came.
    ClientJoined(u16),
    /// A client went.
    ClientLeft(u16),
    /// Somebody was not let in.
    Denied(Denied),
    /// A message was refused, and its link ended.
    Refused(Refusal),
    /// The group is broken at this member: repair is needed. Nothing of it runs any more.
    Broken(BrokenGroup),
}

/// Why a group is broken, as a member sees it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BrokenGroup {
    /// The link to another member ended.
    #[error("the link to member {member} ended: {reason}")]
    Link {
        /// Which.
        member: usize,
        /// How.
        reason: CloseReason,
    },
    /// The engine stopped.
    #[error("{0}")]
    Engine(softrdma::offload::Broken),
}

/// Who is at the other end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    /// Nobody yet.
    Unknown,
    Client {
        number: u16,
        lane: usize,
        staging: Option<Stag>,
    },
    Before {
        staging: Stag,
    },
    Next {
        /// Number of its destination.
        place: usize,
        ready: bool,
    },
}

#[derive(Clone, Copy, Debug)]
struct Lane {
    number: u16,
    link: LinkId,
    gone: bool,
}

/// A member of a group in one epoch. For another epoch [`stop`](Self::stop) it and make another on the same memory.
#[derive(Debug)]
pub struct Member<S: Store> {
    config: MemberConfig,
    engine: Engine<S>,
    pages: S,
    table: Arc<RegionTable>,
    /// The group's memory for READs.
    readable: MemoryRegion,
    staging: Arc<Buffer>,
    /// Regions to give back at the end.
    own: Vec<Stag>,
    peers: HashMap<LinkId, Peer>,
    lanes: HashMap<usize, Lane>,
    waiting: VecDeque<(LinkId, Caller)>,
    /// READs wait for the lease: when to look at it again.
    look_at: Option<Time>,
    ready: bool,
    events: VecDeque<MemberEvent>,
    broken: bool,
}

impl<S: Store> Member<S> {
    /// A member that waits for its links. Regions are registered in `table`.
    ///
    /// # Errors
    /// If the group can not be, or its memory does not fit.
    pub fn new(
        config: MemberConfig,
        pages: S,
        table: &Arc<RegionTable>,
        now: Time,
    ) -> Result<Self, MemberError> {
        let shape = config.shape;
        shape.validate()?;
        if config.member >= shape.members {
            return Err(MemberError::Number);
        }
        let [wire, within] = config.domains;
        let all = Rights::REMOTE_READ | Rights::REMOTE_WRITE | Rights::REMOTE_ATOMIC;
        let memory = |domain, rights| match &config.memory {
            GroupMemory::Memory(buffer) => RegionSpec {
                len: shape.size,
                ..RegionSpec::memory(domain, rights, buffer)
            },
            GroupMemory::Pages { backing, offset } => {
                RegionSpec::pages(domain, rights, *backing, *offset, shape.size)
            }
        };
        let durable = match &config.memory {
            GroupMemory::Memory(_) if shape.persistent => return Err(MemberError::NotPersistent),
            // Alike on all members, so that the head refuses what another would.
            _ if !shape.persistent => Rights::empty(),
            _ => Rights::FLUSH_PERSISTENT,
        };
        let staging = Buffer::zeroed(shape.staging_bytes());
        let kept = Buffer::zeroed(shape.depth as usize * shape.message_bytes());
        let read = Rights::REMOTE_READ;
        let write = Rights::REMOTE_WRITE;
        let mut own = Vec::new();
        let mut register = |spec| -> Result<MemoryRegion, RegisterError> {
            let region = table.register(spec)?;
            own.push(region.stag);
            Ok(region)
        };
        let target = register(memory(within, all | durable))?;
        let readable = register(memory(wire, read))?;
        let staged = register(RegionSpec::memory(within, read, &staging))?;
        let metadata = register(RegionSpec::memory(within, read | write, &kept))?;
        let parts = Parts {
            memory: target.stag,
            staging: staged.stag,
            metadata: metadata.stag,
            kept,
        };
        let engine = EngineConfig {
            link: config.link.clone(),
            wire_domain: wire,
            local_domain: within,
            planted: config.planted,
        };
        let program = program(&shape, config.member, &parts);
        let ready = shape.next(config.member).is_empty();
        Ok(Self {
            engine: Engine::new(engine, table, program, now)?,
            pages,
            table: Arc::clone(table),
            readable,
            staging,
            own,
            peers: HashMap::new(),
            lanes: HashMap::new(),
            waiting: VecDeque::new(),
            look_at: None,
            ready,
            events: ready.then_some(MemberEvent::Ready).into_iter().collect(),
            broken: false,
            config,
        })
    }

    /// The group.
    #[must_use]
    pub fn shape(&self) -> &GroupShape {
        &self.config.shape
    }

    /// Which member this is.
    #[must_use]
    pub fn number(&self) -> usize {
        self.config.member
    }

    /// The engine, to look at.
    #[must_use]
    pub fn engine(&self) -> &Engine<S> {
        &self.engine
    }

    /// The store.
    pub fn store(&mut self) -> &mut S {
        &mut self.pages
    }

    /// Does it serve?
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.ready && !self.broken
    }

    /// Has it stopped?
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// Next event.
    pub fn poll_event(&mut self) -> Option<MemberEvent> {
        self.events.pop_front()
    }

    /// Members that it needs a link to and has none: [`connect`](Self::connect) to each.
    #[must_use]
    pub fn missing(&self) -> Vec<usize> {
        let next = self.config.shape.next(self.config.member);
        let first = next.start;
        let has = |member: usize| {
            let place = member - first;
            let is_it = |peer: &Peer| matches!(peer, Peer::Next { place: at, .. } if *at == place);
            self.peers.values().any(is_it)
        };
        if self.broken {
            return Vec::new();
        }
        next.filter(|&member| !has(member)).collect()
    }

    /// A link that somebody makes to this member.
    ///
    /// # Errors
    /// If there are too many, or it has stopped.
    pub fn listen(&mut self, now: Time) -> Result<LinkId, LinkError> {
        let link = self.engine.listen(now)?;
        self.peers.insert(link, Peer::Unknown);
        Ok(link)
    }

    /// A link to a member that this one hands on to.
    ///
    /// # Errors
    /// If it has stopped.
    pub fn connect(&mut self, now: Time, member: usize) -> Result<LinkId, LinkError> {
        let shape = &self.config.shape;
        let first = shape.next(self.config.member).start;
        let greeting = hello(shape, Caller::Member(self.config.member), member);
        // In a star the others answer on the same link.
        let fence = Check {
            at: 4,
            bytes: shape.fence().to_le_bytes().to_vec(),
        };
        let spec = match shape.topology {
            super::Topology::Chain => LinkSpec::default(),
            super::Topology::Star => LinkSpec {
                receive: Some(member),
                checks: vec![fence],
                alike: None,
            },
        };
        let link = self.engine.connect(now, &greeting, spec)?;
        let place = member - first;
        let ready = false;
        self.peers.insert(link, Peer::Next { place, ready });
        Ok(link)
    }

    /// Ends it: when this has returned, no message, descriptor or STag of this epoch touches the memory any more (I12).
    /// Returns the store.
    pub fn stop(mut self) -> S {
        self.halt();
        self.pages
    }

    /// As [`stop`](Self::stop), for a member that is still asked for its events.
    pub fn halt(&mut self) {
        self.broken = true;
        self.look_at = None;
        self.engine.stop();
        for stag in self.own.drain(..) {
            self.table.deregister(stag);
        }
        for peer in self.peers.values_mut() {
            let lent = match std::mem::replace(peer, Peer::Unknown) {
                Peer::Client { staging, .. } => staging,
                Peer::Before { staging } => Some(staging),
                Peer::Next { .. } | Peer::Unknown => None,
            };
            if let Some(stag) = lent {
                self.table.deregister(stag);
            }
        }
    }

    /// Fetches what the store has done meanwhile.
    pub fn service(&mut self, now: Time) {
        let _ = now;
        self.settle();
    }

    fn settle(&mut self) {
        loop {
            while let Some(answer) = self.pages.poll_answer() {
                let (engine, pages) = (&mut self.engine, &mut self.pages);
                match answer {
                    Answer::Page(ticket, page) => engine.handle_page(pages, ticket, page),
                    Answer::Put(ticket) => engine.handle_put(pages, ticket),
                    Answer::Durable(ticket, result) => engine.handle_durable(pages, ticket, result),
                }
            }
            let Some(event) = self.engine.poll_event() else {
                return;
            };
            self.take_event(event);
        }
    }

    fn take_event(&mut self, event: EngineEvent) {
        match event {
            EngineEvent::Requested { link, private_data } => self.asked(link, &private_data),
            EngineEvent::Established { link, private_data } => {
                self.established(link, &private_data);
            }
            EngineEvent::Refused { refusal, .. } => {
                self.note(MemberEvent::Refused(refusal));
            }
            EngineEvent::Closed { link, reason } => self.closed(link, reason),
            EngineEvent::Broken(broken) => self.fail(BrokenGroup::Engine(broken)),
        }
    }

    fn note(&mut self, event: MemberEvent) {
        let is_end = matches!(event, MemberEvent::Broken(_));
        if self.events.len() < EVENTS_MAX || is_end {
            self.events.push_back(event);
        }
    }

    fn fail(&mut self, broken: BrokenGroup) {
        if !self.broken {
            self.halt();
            self.note(MemberEvent::Broken(broken));
        }
    }
}

impl<S: Store> Node for Member<S> {
    fn handle_bytes(&mut self, link: LinkId, now: Time, bytes: &[u8]) -> usize {
        let taken = self.engine.handle_bytes(link, now, &mut self.pages, bytes);
        self.settle();
        taken
    }

    fn handle_eof(&mut self, link: LinkId, now: Time) {
        self.engine.handle_eof(link, now, &mut self.pages);
        self.settle();
    }

    fn handle_transport_error(&mut self, link: LinkId) {
        self.engine.handle_transport_error(link, &mut self.pages);
        self.settle();
    }

    fn poll_transmit(&mut self, link: LinkId, now: Time, out: &mut Vec<u8>, limit: usize) -> usize {
        let lease = self.config.reads.clone();
        let count = match lease {
            None => {
                let pages = &mut self.pages;
                self.engine.poll_transmit(link, now, pages, out, limit)
            }
            Some(lease) => self.transmit_leased(&lease, link, now, out, limit),
        };
        self.settle();
        count
    }

    fn wants_input(&self, link: LinkId) -> bool {
        self.engine.wants_input(link)
    }

    fn socket_state(&self, link: LinkId) -> SocketState {
        self.engine.socket_state(link)
    }

    /// Also when READs wait for the lease: whoever extends it is in another thread, and tells nobody.
    fn poll_timeout(&self) -> Option<Time> {
        let due = [self.engine.poll_timeout(), self.look_at];
        due.into_iter().flatten().min()
    }

    fn handle_timeout(&mut self, now: Time) {
        self.look_at = self.look_at.filter(|&at| at > now);
        self.engine.handle_timeout(now, &mut self.pages);
        self.settle();
    }
}
