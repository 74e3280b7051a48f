//! Groups in memory for tests: members over emulated persistent memory that answers late, or plain memory, and clients.

#![allow(dead_code, unreachable_pub)]

use std::collections::VecDeque;
use std::sync::Arc;

use offload_chain::group::network::{Network, PartyId};
use offload_chain::group::{
    Answer, Client, Flight, GroupMemory, GroupShape, Member, MemberConfig, MemberEvent, Outcome,
    Primitive, PrimitiveError, Primitives, ReadLease, Store,
};
use offload_chain::persist::pm::PmPage;
use offload_chain::persist::{Domain, EmulatedPm};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use softrdma::offload::Flaw;
use softrdma::{
    BackingId, Buffer, Config, GetPage, Intent, PageRange, PageStore, ProtectionDomain,
    RegionTable, Ticket, Time,
};

pub const TOKEN: [u8; 16] = *b"a group's token.";

/// Emulated persistent memory whose pages and durability come late, by chance.
#[derive(Debug)]
pub struct LatePm {
    pub pm: EmulatedPm,
    random: StdRng,
    /// Of a hundred pages and requests, how many are late.
    late: u32,
    pages: VecDeque<(BackingId, u64, Intent, Ticket)>,
    synced: VecDeque<(Vec<PageRange>, Ticket)>,
    /// Each makes one late thing come.
    pub due: usize,
    pub syncs: usize,
}

impl LatePm {
    pub fn new(pm: EmulatedPm, late: u32, seed: u64) -> Self {
        Self {
            pm,
            random: StdRng::seed_from_u64(seed),
            late,
            pages: VecDeque::new(),
            synced: VecDeque::new(),
            due: 0,
            syncs: 0,
        }
    }

    pub fn waits(&self) -> usize {
        self.pages.len() + self.synced.len()
    }

    fn is_late(&mut self) -> bool {
        self.late > 0 && self.random.random_range(0..100) < self.late
    }
}

impl PageStore for LatePm {
    type Page = PmPage;

    fn get(
        &mut self,
        backing: BackingId,
        page: u64,
        intent: Intent,
        ticket: Ticket,
    ) -> GetPage<PmPage> {
        if self.is_late() {
            self.pages.push_back((backing, page, intent, ticket));
            return GetPage::Pending;
        }
        self.pm.get(backing, page, intent, ticket)
    }

    fn sync(&mut self, ranges: &[PageRange], ticket: Ticket) {
        self.syncs += 1;
        self.synced.push_back((ranges.to_vec(), ticket));
        if !self.is_late() {
            self.due += 1;
        }
    }
}

impl Store for LatePm {
    fn poll_answer(&mut self) -> Option<Answer<PmPage>> {
        if self.due == 0 || self.waits() == 0 {
            return None;
        }
        self.due -= 1;
        let page_first = self.synced.is_empty() || self.random.random();
        if page_first && let Some((backing, page, intent, ticket)) = self.pages.pop_front() {
            let page = match self.pm.get(backing, page, intent, ticket) {
                GetPage::Ready(page) => Ok(page),
                GetPage::Failed(error) => Err(error),
                GetPage::Pending => unreachable!("it is never late itself"),
            };
            return Some(Answer::Page(ticket, page));
        }
        let (ranges, ticket) = self.synced.pop_front()?;
        self.pm.sync(&ranges, ticket);
        self.pm
            .poll_synced()
            .map(|ticket| Answer::Durable(ticket, Ok(())))
    }
}

/// What members have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Memory,
    Pm { late: u32 },
}

pub struct World {
    pub shape: GroupShape,
    pub net: Network<LatePm>,
    pub members: Vec<PartyId>,
    pub tables: Vec<Arc<RegionTable>>,
    pub clients: Vec<PartyId>,
    pub pms: Vec<EmulatedPm>,
    pub buffers: Vec<Arc<Buffer>>,
    pub kind: Kind,
    /// Of all members.
    pub reads: Option<Arc<ReadLease>>,
    /// Deliver late pages and durability when nothing else happens.
    pub patient: bool,
}

pub fn link() -> Config {
    Config {
        private_profile: true,
        ..Config::default()
    }
}

impl World {
    pub fn new(shape: GroupShape, kind: Kind, clients: u16, seed: u64, flaw: Option<Flaw>) -> Self {
        Self::make(shape, kind, clients, seed, (flaw, None))
    }

    pub fn with_reads(
        shape: GroupShape,
        kind: Kind,
        clients: u16,
        seed: u64,
        reads: Option<Arc<ReadLease>>,
    ) -> Self {
        Self::make(shape, kind, clients, seed, (None, reads))
    }

    fn make(
        mut shape: GroupShape,
        kind: Kind,
        clients: u16,
        seed: u64,
        (flaw, reads): (Option<Flaw>, Option<Arc<ReadLease>>),
    ) -> Self {
        shape.persistent = kind != Kind::Memory;
        let size = shape.size as usize;
        let pm = |_| EmulatedPm::new(Domain::Dmp, size);
        let mut world = Self {
            shape,
            net: Network::new(seed),
            members: Vec::new(),
            tables: (0..shape.members)
                .map(|at| RegionTable::new([at as u8 + 1; 32]))
                .collect(),
            clients: Vec::new(),
            pms: (0..shape.members).map(pm).collect(),
            buffers: (0..shape.members).map(|_| Buffer::zeroed(size)).collect(),
            kind,
            reads,
            patient: true,
        };
        for number in 0..shape.members {
            let member = world.member(shape, number, flaw);
            let id = world.net.add_member(member);
            world.members.push(id);
        }
        world.net.connect(&world.members).unwrap();
        for number in 0..clients {
            world.add_client(number);
        }
        world.run();
        world
    }

    /// A member over the memory of the world.
    pub fn member(&self, shape: GroupShape, number: usize, flaw: Option<Flaw>) -> Member<LatePm> {
        let (memory, late) = match self.kind {
            Kind::Memory => (GroupMemory::Memory(Arc::clone(&self.buffers[number])), 0),
            Kind::Pm { late } => {
                let backing = BackingId(number as u64);
                (GroupMemory::Pages { backing, offset: 0 }, late)
            }
        };
        let config = MemberConfig {
            shape,
            member: number,
            memory,
            domains: [ProtectionDomain(10), ProtectionDomain(11)],
            link: link(),
            reads: self.reads.clone(),
            planted: flaw,
        };
        let store = LatePm::new(self.pms[number].clone(), late, number as u64);
        Member::new(config, store, &self.tables[number], Time(0)).unwrap()
    }

    pub fn add_client(&mut self, number: u16) -> PartyId {
        let client = Client::new(self.shape, number, &link(), [99; 32], self.net.now()).unwrap();
        let id = self.net.add_client(client, &self.members).unwrap();
        self.clients.push(id);
        id
    }

    /// Makes one late thing come. False if nothing waits.
    pub fn let_one_come(&mut self) -> bool {
        let mut any = false;
        for &id in &self.members {
            let Some(member) = self.net.member(id) else {
                continue;
            };
            if member.store().waits() > 0 {
                member.store().due += 1;
                any = true;
                break;
            }
        }
        if any {
            self.net.service();
        }
        any
    }

    /// One thing happens. False if nothing will.
    pub fn step(&mut self) -> bool {
        self.net.step() || (self.patient && self.let_one_come())
    }

    pub fn run(&mut self) {
        while self.step() {}
    }

    pub fn client(&mut self, at: usize) -> &mut Client {
        let id = self.clients[at];
        self.net.client(id).expect("a client")
    }

    /// Posts, and waits for the outcome.
    pub fn call(&mut self, client: usize, primitive: Primitive) -> Result<Outcome, PrimitiveError> {
        let flight = self.client(client).post(primitive)?;
        loop {
            if let Some((done, outcome)) = self.client(client).poll() {
                assert_eq!(done, flight);
                return outcome;
            }
            assert!(self.step(), "no outcome of {flight:?}");
        }
    }

    pub fn outcomes(&mut self, client: usize) -> Vec<(Flight, Result<Outcome, PrimitiveError>)> {
        std::iter::from_fn(|| self.client(client).poll()).collect()
    }

    /// Bytes of a member as readers see them.
    pub fn bytes(&self, member: usize, at: u64, len: usize) -> Vec<u8> {
        match self.kind {
            Kind::Memory => self.buffers[member].to_vec(at as usize, len),
            Kind::Pm { .. } => self.pms[member].visible(at as usize, len),
        }
    }

    /// Bytes of a member that a power cut at this moment leaves.
    pub fn after_cut(&self, member: usize, at: u64, len: usize) -> Vec<u8> {
        self.pms[member].after_cut(at as usize, len)
    }

    pub fn events(&mut self, member: usize) -> Vec<MemberEvent> {
        let id = self.members[member];
        let member = self.net.member(id).expect("a member");
        std::iter::from_fn(|| member.poll_event()).collect()
    }
}

pub fn shape(members: usize) -> GroupShape {
    GroupShape {
        depth: 16,
        lanes: 4,
        slots: 8,
        lane_bytes: 64 << 10,
        ..GroupShape::new(TOKEN, 1, members, 64 << 10)
    }
}
