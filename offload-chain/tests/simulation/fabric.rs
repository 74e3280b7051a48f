//! The group underneath, as the simulation has it: a client's primitives in one epoch travel from member to member.
//!
//! A lane is what one client has in one epoch; a link is one connection of it. Packets of a link arrive in order. Each member
//! executes in order, and forwards in order when what has to be durable is; the flush of one primitive may end after later ones
//! were executed. Connections break one by one: what was forwarded before goes on. In a star the head forwards to all others, and
//! answers when each of them has.
//!
//! [`Handle`] is the client's end.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use offload_chain::Epoch;
use offload_chain::group::{Flight, Outcome, Primitive, PrimitiveError, Primitives};

/// Primitives a client may have under way.
const DEPTH: usize = 48;

/// The client's end of a lane.
#[derive(Debug)]
pub struct Handle {
    pub lane: usize,
    pub epoch: Epoch,
    members: usize,
    size: u64,
    next: u64,
    under_way: Vec<Flight>,
    /// Posted, and not yet taken by the network.
    pub outbox: Vec<(Flight, Primitive)>,
    inbox: VecDeque<(Flight, Result<Outcome, PrimitiveError>)>,
    broken: bool,
    greeted: bool,
}

impl Handle {
    pub fn new(lane: usize, epoch: Epoch, members: usize, size: u64) -> Self {
        Self {
            lane,
            epoch,
            members,
            size,
            next: 0,
            under_way: Vec::new(),
            outbox: Vec::new(),
            inbox: VecDeque::new(),
            broken: false,
            greeted: false,
        }
    }

    /// True once: there is nothing to wait for.
    pub fn becomes_ready(&mut self) -> bool {
        !std::mem::replace(&mut self.greeted, true)
    }

    pub fn answer(&mut self, flight: Flight, outcome: Outcome) {
        if let Some(at) = self.under_way.iter().position(|one| *one == flight) {
            self.under_way.remove(at);
            self.inbox.push_back((flight, Ok(outcome)));
        }
    }

    pub fn break_off(&mut self) {
        self.broken = true;
        self.outbox.clear();
        for flight in self.under_way.drain(..) {
            let error = PrimitiveError::Broken("a connection of it is gone".into());
            self.inbox.push_back((flight, Err(error)));
        }
    }

    pub fn is_broken(&self) -> bool {
        self.broken
    }
}

impl Primitives for Handle {
    fn members(&self) -> usize {
        self.members
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn longest_write(&self) -> u64 {
        u64::MAX
    }

    fn persists(&self) -> bool {
        true
    }

    fn post(&mut self, primitive: Primitive) -> Result<Flight, PrimitiveError> {
        if self.broken {
            return Err(PrimitiveError::Broken("a connection of it is gone".into()));
        }
        if self.under_way.len() >= DEPTH {
            return Err(PrimitiveError::Full);
        }
        let flight = Flight(self.next);
        self.next += 1;
        self.under_way.push(flight);
        self.outbox.push((flight, primitive));
        Ok(flight)
    }

    fn poll(&mut self) -> Option<(Flight, Result<Outcome, PrimitiveError>)> {
        self.inbox.pop_front()
    }
}

/// A primitive on its way.
#[derive(Clone, Debug)]
pub struct Packet {
    pub flight: Flight,
    pub primitive: Primitive,
    /// What members found, those it has been at.
    pub found: Vec<Option<u64>>,
    /// What a READ read.
    pub bytes: Vec<u8>,
}

/// A connection of a lane: of the way from the client through the members and back, or to one member for READs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hop {
    /// To this place of the chain; to the client, if it is the chain's length.
    Along(usize),
    /// In a star: the answer of this place to the head.
    Back(usize),
    /// A READ to this place.
    Ask(usize),
    /// Its answer.
    Answer(usize),
}

/// Packets on a connection.
#[derive(Debug, Default)]
pub struct Link {
    pub queue: VecDeque<Packet>,
    pub scheduled: bool,
    pub stalled_since: Option<Duration>,
    pub gone: bool,
}

/// What a member has executed of a lane and not forwarded.
#[derive(Debug, Default)]
pub struct Pending {
    pub queue: VecDeque<(u64, Packet, bool)>,
    pub next: u64,
    /// At the head of a star: forwarded, and not answered by these others.
    pub forwarded: VecDeque<(Packet, BTreeSet<usize>)>,
    /// What is to be carried out once more; with a bug.
    pub again: Option<Primitive>,
}
