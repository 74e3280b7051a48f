//! Members and clients joined in memory, in virtual time, by chance that a seed decides.
//!
//! Wires carry bytes like TCP: in order, in pieces of any size, as far as the receiver takes them. Which wire moves next and
//! how much is drawn. Wires can be held (a partition, or a half of one), lost (both ends hear of it, or one), parties
//! paused and killed. The same seed and calls give the same run.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use softrdma::offload::{LinkError, LinkId};
use softrdma::{SocketState, Time};

use super::client::Client;
use super::member::Member;
use super::node::{Node, Store};

/// Bytes on a wire in one direction.
const WINDOW: usize = 256 << 10;
/// Bytes handed over at once.
const PIECE: usize = 64 << 10;

/// A member or a client.
#[derive(Debug)]
pub enum Party<S: Store> {
    /// A member.
    Member(Box<Member<S>>),
    /// A client.
    Client(Box<Client>),
}

impl<S: Store> Party<S> {
    fn node(&mut self) -> &mut dyn Node {
        match self {
            Self::Member(member) => &mut **member,
            Self::Client(client) => &mut **client,
        }
    }
}

/// Names a party of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PartyId(pub usize);

/// One end of a wire.
type End = (PartyId, LinkId);

#[derive(Debug, Default)]
struct Direction {
    bytes: VecDeque<u8>,
    /// FIN follows the bytes; or the socket was closed.
    fin: Option<SocketState>,
    fin_delivered: bool,
}

#[derive(Debug)]
struct Wire {
    ends: [End; 2],
    /// From the first end to the second, and back.
    ways: [Direction; 2],
    lost: bool,
}

/// A network.
#[derive(Debug)]
pub struct Network<S: Store> {
    parties: Vec<Option<Party<S>>>,
    paused: Vec<bool>,
    /// What the first sends does not reach the second.
    held: HashSet<(PartyId, PartyId)>,
    /// Something happened to it: it may have bytes to send.
    stirred: Vec<bool>,
    wires: Vec<Wire>,
    now: Time,
    random: StdRng,
    /// Largest piece that is delivered at once.
    pub piece: usize,
    /// Of everything that happened, for comparing runs.
    trace: u64,
    scratch: Vec<u8>,
}

impl<S: Store> Network<S> {
    /// Nobody, and no wires.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            parties: Vec::new(),
            paused: Vec::new(),
            held: HashSet::new(),
            stirred: Vec::new(),
            wires: Vec::new(),
            now: Time(0),
            random: StdRng::seed_from_u64(seed),
            piece: PIECE,
            trace: seed,
            scratch: Vec::new(),
        }
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> Time {
        self.now
    }

    /// A number that differs as soon as anything that happened does.
    #[must_use]
    pub fn trace(&self) -> u64 {
        self.trace
    }

    /// Adds a member.
    pub fn add_member(&mut self, member: Member<S>) -> PartyId {
        self.add(Party::Member(Box::new(member)))
    }

    /// Adds a client, with a wire to each of the members, in their order.
    ///
    /// # Errors
    /// If one of them takes no links.
    pub fn add_client(
        &mut self,
        client: Client,
        members: &[PartyId],
    ) -> Result<PartyId, LinkError> {
        let id = self.add(Party::Client(Box::new(client)));
        for (number, &member) in members.iter().enumerate() {
            let link = self.listen(member)?;
            self.join((id, LinkId(number as u32)), (member, link));
        }
        Ok(id)
    }

    fn add(&mut self, party: Party<S>) -> PartyId {
        self.parties.push(Some(party));
        self.paused.push(false);
        self.stirred.push(true);
        PartyId(self.parties.len() - 1)
    }

    fn listen(&mut self, member: PartyId) -> Result<LinkId, LinkError> {
        let now = self.now;
        match self.party(member) {
            Some(Party::Member(member)) => member.listen(now),
            _ => Err(LinkError::Unknown),
        }
    }

    /// Makes all links that members need: `members` in order.
    ///
    /// # Errors
    /// If one of them takes no links.
    pub fn connect(&mut self, members: &[PartyId]) -> Result<(), LinkError> {
        for &from in members {
            let missing = self
                .member(from)
                .map(|member| member.missing())
                .unwrap_or_default();
            for number in missing {
                let to = *members.get(number).ok_or(LinkError::Unknown)?;
                let theirs = self.listen(to)?;
                let now = self.now;
                let member = self.member(from).ok_or(LinkError::Unknown)?;
                let ours = member.connect(now, number)?;
                self.join((from, ours), (to, theirs));
            }
        }
        Ok(())
    }

    fn join(&mut self, a: End, b: End) {
        self.wires.push(Wire {
            ends: [a, b],
            ways: Default::default(),
            lost: false,
        });
    }

    /// A party, unless it was killed.
    pub fn party(&mut self, id: PartyId) -> Option<&mut Party<S>> {
        *self.stirred.get_mut(id.0)? = true;
        self.parties.get_mut(id.0)?.as_mut()
    }

    /// A member.
    pub fn member(&mut self, id: PartyId) -> Option<&mut Member<S>> {
        match self.party(id)? {
            Party::Member(member) => Some(member),
            Party::Client(_) => None,
        }
    }

    /// A client.
    pub fn client(&mut self, id: PartyId) -> Option<&mut Client> {
        match self.party(id)? {
            Party::Client(client) => Some(client),
            Party::Member(_) => None,
        }
    }

    /// Takes a party out; its wires are lost.
    pub fn kill(&mut self, id: PartyId) -> Option<Party<S>> {
        let party = self.parties.get_mut(id.0)?.take();
        for wire in 0..self.wires.len() {
            if self.wires[wire].ends.iter().any(|end| end.0 == id) {
                self.lose_wire(wire, [true, true]);
            }
        }
        party
    }

    /// Stops a party, or lets it go on: nothing reaches it, and it does nothing.
    pub fn pause(&mut self, id: PartyId, paused: bool) {
        self.paused[id.0] = paused;
    }

    /// Holds what `from` sends to `to`, on wires that are and on those that come; or lets it go on.
    pub fn hold(&mut self, from: PartyId, to: PartyId, held: bool) {
        if held {
            self.held.insert((from, to));
        } else {
            self.held.remove(&(from, to));
        }
    }

    /// Ends all wires between two parties. `hear` says which of them notices now; the other does when it is told.
    pub fn lose(&mut self, a: PartyId, b: PartyId, hear: [bool; 2]) {
        for wire in 0..self.wires.len() {
            let [(first, _), (second, _)] = self.wires[wire].ends;
            if (first, second) == (a, b) {
                self.lose_wire(wire, hear);
            } else if (first, second) == (b, a) {
                self.lose_wire(wire, [hear[1], hear[0]]);
            }
        }
    }

    fn lose_wire(&mut self, wire: usize, hear: [bool; 2]) {
        self.wires[wire].lost = true;
        for way in &mut self.wires[wire].ways {
            way.bytes.clear();
        }
        for (end, hears) in self.wires[wire].ends.into_iter().zip(hear) {
            if hears && let Some(party) = self.party(end.0) {
                party.node().handle_transport_error(end.1);
            }
        }
    }

    fn note(&mut self, what: [u64; 3]) {
        for word in what {
            self.trace = (self.trace ^ word)
                .wrapping_mul(0x0000_0100_0000_01b3)
                .rotate_left(23);
        }
    }

    /// Lets time pass, and everybody notice.
    pub fn advance(&mut self, by: Duration) {
        self.now = self.now + by;
        let now = self.now;
        self.stirred.fill(true);
        for (party, &paused) in self.parties.iter_mut().zip(&self.paused) {
            if let Some(party) = party.as_mut().filter(|_| !paused) {
                party.node().handle_timeout(now);
            }
        }
    }

    /// Takes what a party has to send onto its wires.
    fn transmit(&mut self, id: PartyId) {
        if self.paused[id.0] || !self.stirred[id.0] {
            return;
        }
        // Asked again when nothing is left, or when its wire has room.
        self.stirred[id.0] = false;
        let now = self.now;
        let Some(party) = self.parties[id.0].as_mut() else {
            return;
        };
        let ends = |wire: &Wire| wire.ends.map(|end| end.0 == id);
        let wires = self.wires.iter_mut().filter(|wire| !wire.lost);
        for wire in wires.filter(|wire| ends(wire) != [false, false]) {
            let way = usize::from(ends(wire) == [false, true]);
            let link = wire.ends[way].1;
            let way = &mut wire.ways[way];
            if way.fin.is_some() || way.bytes.len() >= WINDOW {
                continue;
            }
            self.scratch.clear();
            party
                .node()
                .poll_transmit(link, now, &mut self.scratch, PIECE);
            way.bytes.extend(self.scratch.iter());
            self.stirred[id.0] |= !self.scratch.is_empty();
            let state = party.node().socket_state(link);
            way.fin = (state != SocketState::Open).then_some(state);
        }
    }

    /// Moves one piece of bytes. False if nothing moves by itself.
    pub fn step(&mut self) -> bool {
        for id in 0..self.parties.len() {
            self.transmit(PartyId(id));
        }
        let ways = self.wires.len() * 2;
        if ways == 0 {
            return false;
        }
        let first = self.random.random_range(0..ways);
        let piece = self.random.random_range(1..=self.piece);
        (0..ways).any(|way| self.deliver((first + way) % ways, piece))
    }

    fn deliver(&mut self, way: usize, piece: usize) -> bool {
        let (number, way) = (way / 2, way % 2);
        let now = self.now;
        let wire = &mut self.wires[number];
        let (from, _) = wire.ends[way];
        let (to, link) = wire.ends[1 - way];
        let path = &mut wire.ways[way];
        let open = !wire.lost
            && !self.held.contains(&(from, to))
            && !self.paused[to.0]
            && !path.fin_delivered;
        let Some(party) = self.parties[to.0].as_mut().filter(|_| open) else {
            return false;
        };
        let node = party.node();
        if path.bytes.is_empty() {
            let Some(state) = path.fin else { return false };
            path.fin_delivered = true;
            self.stirred[to.0] = true;
            match state {
                SocketState::ShutdownWrite => node.handle_eof(link, now),
                _ => node.handle_transport_error(link),
            }
            self.note([number as u64, way as u64, u64::MAX]);
            return true;
        }
        if !node.wants_input(link) {
            return false;
        }
        let piece = piece.min(path.bytes.len());
        self.scratch.clear();
        self.scratch.extend(path.bytes.iter().take(piece));
        let taken = node.handle_bytes(link, now, &self.scratch);
        path.bytes.drain(..taken);
        self.stirred[to.0] = true;
        self.stirred[from.0] = true;
        self.now = self.now + Duration::from_nanos(1000);
        self.note([number as u64, way as u64, taken as u64]);
        taken > 0
    }

    /// Moves bytes until nothing moves by itself any more.
    pub fn run(&mut self) {
        while self.step() {}
    }

    /// Members fetch what their stores have done.
    pub fn service(&mut self) {
        let now = self.now;
        self.stirred.fill(true);
        for (party, &paused) in self.parties.iter_mut().zip(&self.paused) {
            if let Some(Party::Member(member)) = party.as_mut().filter(|_| !paused) {
                member.service(now);
            }
        }
    }
}
