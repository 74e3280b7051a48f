//! A client of a group: links to all members, and what it has under way.

mod answers;
mod compose;

use std::collections::VecDeque;
use std::sync::Arc;

use softrdma::offload::LinkId;
use softrdma::{
    Buffer, Config, Connection, NoPages, ProtectionDomain, RecvBuffer, RegionSpec, RegionTable,
    Rights, SocketState, Time, WorkRequest, WrId,
};

use super::block::{RESULT_BYTES, RawCommon};
use super::node::Node;
use super::primitives::{Flight, MemberMap, Outcome, Primitive, PrimitiveError, Primitives};
use super::shape::{Caller, Denied, GroupShape, ShapeError, Welcome, hello};
use super::staging::Staging;

/// Marks receives for answers among the numbers of completions.
const ANSWER_BIT: u64 = 1 << 63;
/// Marks READs.
const READ_BIT: u64 = 1 << 62;

/// Why a client could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Such a group can not be.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// Its memory for answers.
    #[error("memory for answers: {0}")]
    Register(#[from] softrdma::RegisterError),
    /// Set-up of a connection.
    #[error(transparent)]
    PrivateData(#[from] softrdma::connection::PrivateDataTooLong),
    /// Its receives could not be posted.
    #[error(transparent)]
    Post(#[from] softrdma::PostError),
}

/// A primitive under way.
#[derive(Debug)]
struct UnderWay {
    /// None: the first of all, which the program does not know of.
    flight: Option<Flight>,
    slot: usize,
    common: RawCommon,
    /// gCAS: who executes it.
    execute: Option<MemberMap>,
    /// Staging memory, in bytes ever used, to be free again.
    staged_until: u64,
}

#[derive(Debug)]
struct Read {
    flight: Flight,
    sink: Arc<Buffer>,
}

/// The link to one member.
#[derive(Debug)]
struct Line {
    connection: Connection<NoPages>,
    welcome: Option<Welcome>,
    reads: VecDeque<Read>,
}

/// A client. One object, several may exist; drive it as a [`Node`], whose link number is that of the member.
#[derive(Debug)]
pub struct Client {
    shape: GroupShape,
    number: u16,
    lines: Vec<Line>,
    results: Arc<Buffer>,
    /// Kept, since the connections to the members use it.
    table: Arc<RegionTable>,
    staging: Staging,
    under_way: VecDeque<UnderWay>,
    /// Primitives posted; their slots follow from it.
    posted: u64,
    flights: u64,
    /// Bytes changed since the last gFLUSH: first, and behind the last.
    changed: Option<(u64, u64)>,
    outcomes: VecDeque<(Flight, Result<Outcome, PrimitiveError>)>,
    broken: Option<String>,
    /// What a member said that did not let it in.
    denied: Option<Denied>,
    state: State,
}

/// How far a client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not all members have let it in.
    Meeting,
    /// A primitive that does nothing is under way. When it is answered, every member has carried out whatever an earlier
    /// client of this lane had begun, and its staging memory is free.
    Clearing,
    /// Primitives are taken.
    Ready,
}

impl Client {
    /// A client that connects to all members. `number` is its own in this epoch and never used again in it: one that comes
    /// back adds `lanes` to it. `seed` is for the STag of its answers.
    ///
    /// # Errors
    /// If the group can not be.
    pub fn new(
        shape: GroupShape,
        number: u16,
        link: &Config,
        seed: [u8; 32],
        now: Time,
    ) -> Result<Self, ClientError> {
        shape.validate()?;
        let table = RegionTable::new(seed);
        let slots = usize::from(shape.slots);
        let results = Buffer::zeroed(slots * RESULT_BYTES);
        let domain = link.protection_domain;
        // The other members get a domain in which there is nothing.
        let nothing = ProtectionDomain(domain.0 ^ 1);
        let spec = RegionSpec::memory(domain, Rights::REMOTE_WRITE, &results);
        let region = table.register(spec)?;
        let mut lines = Vec::new();
        for member in 0..shape.members {
            let answers = member == shape.answerer();
            let caller = Caller::Client {
                number,
                result_stag: if answers { region.stag.0 } else { 0 },
            };
            let config = Config {
                protection_domain: if answers { domain } else { nothing },
                tag: member as u32,
                ..link.clone()
            };
            let greeting = hello(&shape, caller, member);
            let mut connection = Connection::initiator(config, &table, &greeting, now)?;
            if answers {
                for slot in 0..slots {
                    connection.post_recv(WrId(ANSWER_BIT | slot as u64), RecvBuffer::Vec(0))?;
                }
            }
            lines.push(Line {
                connection,
                welcome: None,
                reads: VecDeque::new(),
            });
        }
        let lane = u64::from(number % shape.lanes) * u64::from(shape.lane_bytes);
        Ok(Self {
            staging: Staging::new(lane, u64::from(shape.lane_bytes)),
            shape,
            number,
            lines,
            results,
            table,
            under_way: VecDeque::new(),
            posted: 0,
            flights: 0,
            changed: None,
            outcomes: VecDeque::new(),
            broken: None,
            denied: None,
            state: State::Meeting,
        })
    }

    /// The group.
    #[must_use]
    pub fn shape(&self) -> &GroupShape {
        &self.shape
    }

    /// Its number.
    #[must_use]
    pub fn number(&self) -> u16 {
        self.number
    }

    /// Regions of this client.
    #[must_use]
    pub fn table(&self) -> &Arc<RegionTable> {
        &self.table
    }

    /// Are all members there, and the lane clear? Until then nothing can be posted.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.state == State::Ready && self.broken.is_none()
    }

    /// The oldest primitive under way, READs left out.
    #[must_use]
    pub fn oldest(&self) -> Option<Flight> {
        self.under_way.front()?.flight
    }

    /// What the first member said that did not let it in, if there is one.
    #[must_use]
    pub fn denied(&self) -> Option<Denied> {
        self.denied
    }

    /// Why it ended, if it did.
    #[must_use]
    pub fn broken(&self) -> Option<&str> {
        self.broken.as_deref()
    }

    /// Ends the links; what is under way is answered with [`PrimitiveError::Broken`].
    pub fn stop(&mut self) {
        self.break_with("stopped by its program".to_owned());
    }

    /// Posts a request of any kind on the link to a member: for tests of what members make of it.
    ///
    /// # Errors
    /// See [`PostError`](softrdma::PostError).
    #[doc(hidden)]
    pub fn raw_post(
        &mut self,
        member: usize,
        request: WorkRequest,
    ) -> Result<(), softrdma::PostError> {
        self.lines[member].connection.post_send(request)
    }

    fn break_with(&mut self, why: String) {
        if self.broken.is_some() {
            return;
        }
        self.broken = Some(why.clone());
        for line in &mut self.lines {
            line.connection.abort();
        }
        let error = || Err(PrimitiveError::Broken(why.clone()));
        let mut flights: Vec<_> = self
            .under_way
            .drain(..)
            .filter_map(|one| one.flight)
            .collect();
        for line in &mut self.lines {
            flights.extend(line.reads.drain(..).map(|read| read.flight));
        }
        flights.sort_unstable();
        let ends = flights.into_iter().map(|flight| (flight, error()));
        self.outcomes.extend(ends);
    }
}

impl Primitives for Client {
    fn members(&self) -> usize {
        self.shape.members
    }

    fn size(&self) -> u64 {
        self.shape.size
    }

    fn longest_write(&self) -> u64 {
        self.staging.longest()
    }

    fn persists(&self) -> bool {
        self.shape.persistent
    }

    fn post(&mut self, primitive: Primitive) -> Result<Flight, PrimitiveError> {
        if let Some(why) = &self.broken {
            return Err(PrimitiveError::Broken(why.clone()));
        }
        match primitive {
            Primitive::Write {
                offset,
                bytes,
                durability,
            } => self.write(offset, bytes, durability),
            Primitive::Cas {
                offset,
                old,
                new,
                execute,
                durability,
            } => self.cas(offset, [old, new], execute, durability),
            Primitive::Memcpy {
                source,
                destination,
                length,
                durability,
            } => self.memcpy([source, destination], length, durability),
            Primitive::Flush => self.flush(),
            Primitive::Read {
                member,
                offset,
                length,
            } => self.read(member, offset, length),
        }
    }

    fn poll(&mut self) -> Option<(Flight, Result<Outcome, PrimitiveError>)> {
        self.outcomes.pop_front()
    }
}

impl Client {
    fn line(&mut self, link: LinkId) -> Option<&mut Line> {
        self.lines.get_mut(link.0 as usize)
    }
}

impl Node for Client {
    fn handle_bytes(&mut self, link: LinkId, now: Time, bytes: &[u8]) -> usize {
        let taken = match self.line(link) {
            Some(line) => line.connection.handle_bytes(now, &mut NoPages, bytes),
            None => bytes.len(),
        };
        self.settle();
        taken
    }

    fn handle_eof(&mut self, link: LinkId, now: Time) {
        if let Some(line) = self.line(link) {
            line.connection.handle_eof(now);
        }
        self.settle();
    }

    fn handle_transport_error(&mut self, link: LinkId) {
        if let Some(line) = self.line(link) {
            line.connection.handle_transport_error();
        }
        self.settle();
    }

    fn poll_transmit(&mut self, link: LinkId, now: Time, out: &mut Vec<u8>, limit: usize) -> usize {
        let count = match self.line(link) {
            Some(line) => line.connection.poll_transmit(now, &mut NoPages, out, limit),
            None => 0,
        };
        self.settle();
        count
    }

    fn wants_input(&self, link: LinkId) -> bool {
        let line = self.lines.get(link.0 as usize);
        line.is_some_and(|line| line.connection.wants_input())
    }

    fn socket_state(&self, link: LinkId) -> SocketState {
        match self.lines.get(link.0 as usize) {
            Some(line) => line.connection.socket_state(),
            None => SocketState::Close,
        }
    }

    fn poll_timeout(&self) -> Option<Time> {
        let lines = self.lines.iter();
        lines
            .filter_map(|line| line.connection.poll_timeout())
            .min()
    }

    fn handle_timeout(&mut self, now: Time) {
        for line in &mut self.lines {
            line.connection.handle_timeout(now);
        }
        self.settle();
    }
}
