//! A client of a group: links to all members, and what it has under way.

use std::collections::VecDeque;
use std::sync::Arc;

use softrdma::offload::{FLUSH_REGION, LinkId, Opcode};
use softrdma::{
    Buffer, CloseReason, Completion, CompletionOpcode, Config, Connection, Event, LocalSlice,
    NoPages, Operation, ProtectionDomain, RecvBuffer, RegionSpec, RegionTable, RemoteAddr, Rights,
    SocketState, Source, Stag, TaggedOffset, Time, WorkRequest, WrId,
};
use zerocopy::IntoBytes;

use super::block::{
    BLOCK_BYTES, Kind, RESULT_BYTES, RawCas, RawCommon, RawFlush, RawMemcpy, RawWrite, slot_byte,
};
use super::node::Node;
use super::primitives::{
    Durability, Flight, MemberMap, Outcome, Primitive, PrimitiveError, Primitives,
};
use super::shape::{Caller, Denied, GroupShape, ShapeError, Welcome, hello};
use super::staging::Staging;

/// READs that a client has under way at one member.
const READS_MAX: usize = 64;
/// Longest READ.
const READ_BYTES_MAX: usize = 1 << 30;
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

    fn fits(&self, offset: u64, length: u64) -> Result<(), PrimitiveError> {
        match offset.checked_add(length) {
            Some(end) if end <= self.shape.size => Ok(()),
            _ => Err(PrimitiveError::Invalid("it reaches beyond the memory")),
        }
    }

    fn flush_code(&self, durability: Durability) -> Result<u8, PrimitiveError> {
        match durability {
            Durability::Visible => Ok(Opcode::Nop as u8),
            Durability::Durable if self.shape.persistent => Ok(Opcode::Flush as u8),
            Durability::Durable => Err(PrimitiveError::Invalid("the members do not persist")),
        }
    }

    fn next_flight(&mut self) -> Flight {
        self.flights += 1;
        Flight(self.flights)
    }

    /// Outcomes that were not taken count, or they would pile up.
    fn has_room(&self) -> bool {
        let used = self.under_way.len() + self.outcomes.len();
        self.is_ready() && used < usize::from(self.shape.slots)
    }

    fn slot(&self) -> usize {
        (self.posted % u64::from(self.shape.slots)) as usize
    }

    fn common(&self, kind: Kind) -> RawCommon {
        RawCommon {
            kind: kind as u8,
            execute: Opcode::Nop as u8,
            client: self.number.into(),
            fence: self.shape.fence().into(),
        }
    }

    fn note_changed(&mut self, offset: u64, length: u64, durability: Durability) {
        if durability == Durability::Durable || length == 0 {
            return;
        }
        let (first, end) = self.changed.unwrap_or((offset, offset));
        self.changed = Some((first.min(offset), end.max(offset + length)));
    }

    /// Sends a message of a block for each member.
    fn send(
        &mut self,
        mut blocks: Vec<u8>,
        common: RawCommon,
        execute: Option<MemberMap>,
    ) -> Flight {
        if let Some(map) = execute {
            for member in map.iter().take_while(|&member| member < self.shape.members) {
                blocks[member * BLOCK_BYTES + 1] = Opcode::CompareSwap as u8;
            }
        }
        let send = Operation::Send {
            source: Source::Bytes(blocks),
            solicited: false,
            invalidate: None,
        };
        self.request(0, send);
        let flight = self.next_flight();
        self.under_way.push_back(UnderWay {
            flight: Some(flight),
            slot: self.slot(),
            common,
            execute,
            staged_until: self.staging.used(),
        });
        self.posted += 1;
        flight
    }

    /// An unsignaled request to a member.
    fn request(&mut self, member: usize, op: Operation) {
        let request = WorkRequest {
            signaled: false,
            ..WorkRequest::new(WrId(0), op)
        };
        if let Err(error) = self.lines[member].connection.post_send(request) {
            self.break_with(format!("member {member}: {error}"));
        }
    }

    fn repeated(&self, block: &[u8]) -> Vec<u8> {
        block.repeat(self.shape.members)
    }

    fn write(
        &mut self,
        offset: u64,
        bytes: Vec<u8>,
        durability: Durability,
    ) -> Result<Flight, PrimitiveError> {
        let length = bytes.len() as u64;
        self.fits(offset, length)?;
        let flush = self.flush_code(durability)?;
        if length > self.staging.longest() {
            return Err(PrimitiveError::Invalid("it is longer than half of a lane"));
        }
        if !self.has_room() {
            return Err(PrimitiveError::Full);
        }
        let staged = self.staging.take(length).ok_or(PrimitiveError::Full)?;
        let common = self.common(Kind::Write);
        let put = if bytes.is_empty() {
            Opcode::Nop
        } else {
            Opcode::Write
        };
        let block = RawWrite {
            common,
            offset: offset.into(),
            staging: staged.into(),
            length: (length as u32).into(),
            put: put as u8,
            flush,
            slot: slot_byte(self.slot()),
            reserved: 0,
        };
        let stag = self.lines[0].welcome.map_or(0, |welcome| welcome.staging);
        if !bytes.is_empty() {
            let write = Operation::Write {
                source: Source::Bytes(bytes),
                remote: remote(stag, staged),
            };
            self.request(0, write);
        }
        self.note_changed(offset, length, durability);
        let blocks = self.repeated(block.as_bytes());
        Ok(self.send(blocks, common, None))
    }

    fn cas(
        &mut self,
        offset: u64,
        [old, new]: [u64; 2],
        execute: MemberMap,
        durability: Durability,
    ) -> Result<Flight, PrimitiveError> {
        self.fits(offset, 8)?;
        if !offset.is_multiple_of(8) {
            return Err(PrimitiveError::Invalid("gCAS is not aligned"));
        }
        if !execute
            .without(MemberMap::first(self.shape.members))
            .is_empty()
        {
            return Err(PrimitiveError::Invalid(
                "the map names members that are not",
            ));
        }
        let flush = self.flush_code(durability)?;
        if !self.has_room() {
            return Err(PrimitiveError::Full);
        }
        let [a, b, c, d, e, f, ..] = offset.to_le_bytes();
        let common = self.common(Kind::Cas);
        let block = RawCas {
            common,
            offset: [a, b, c, d, e, f],
            slot: slot_byte(self.slot()),
            flush,
            old: old.into(),
            new: new.into(),
        };
        self.note_changed(offset, 8, durability);
        let blocks = self.repeated(block.as_bytes());
        Ok(self.send(blocks, common, Some(execute)))
    }

    fn memcpy(
        &mut self,
        [source, destination]: [u64; 2],
        length: u64,
        durability: Durability,
    ) -> Result<Flight, PrimitiveError> {
        self.fits(source, length)?;
        self.fits(destination, length)?;
        if length >= u64::from(FLUSH_REGION) {
            return Err(PrimitiveError::Invalid("gMEMCPY is too long"));
        }
        if source.abs_diff(destination) < length {
            return Err(PrimitiveError::Invalid("source and destination overlap"));
        }
        let flush = self.flush_code(durability)?;
        if !self.has_room() {
            return Err(PrimitiveError::Full);
        }
        let copy = if length == 0 {
            Opcode::Nop
        } else {
            Opcode::Copy
        };
        let common = self.common(Kind::Memcpy);
        let block = RawMemcpy {
            common,
            destination: destination.into(),
            source: source.into(),
            length: (length as u32).into(),
            copy: copy as u8,
            flush,
            slot: slot_byte(self.slot()),
            reserved: 0,
        };
        self.note_changed(destination, length, durability);
        let blocks = self.repeated(block.as_bytes());
        Ok(self.send(blocks, common, None))
    }

    fn flush(&mut self) -> Result<Flight, PrimitiveError> {
        let flush = self.flush_code(Durability::Durable)?;
        if !self.has_room() {
            return Err(PrimitiveError::Full);
        }
        let (first, end) = self.changed.take().unwrap_or((0, 0));
        let common = self.common(Kind::Flush);
        let length = u32::try_from(end - first).unwrap_or(FLUSH_REGION);
        let block = RawFlush {
            common,
            offset: if length == FLUSH_REGION { 0 } else { first }.into(),
            length: length.into(),
            flush,
            slot: slot_byte(self.slot()),
            ..RawFlush::default()
        };
        let blocks = self.repeated(block.as_bytes());
        Ok(self.send(blocks, common, None))
    }

    fn read(
        &mut self,
        member: usize,
        offset: u64,
        length: usize,
    ) -> Result<Flight, PrimitiveError> {
        self.fits(offset, length as u64)?;
        if length > READ_BYTES_MAX {
            return Err(PrimitiveError::Invalid("READ is too long"));
        }
        if member >= self.shape.members {
            return Err(PrimitiveError::Invalid("there is no such member"));
        }
        let used = self.lines[member].reads.len() + self.outcomes.len();
        if !self.is_ready() || used >= READS_MAX {
            return Err(PrimitiveError::Full);
        }
        let flight = self.next_flight();
        let line = &mut self.lines[member];
        let sink = Buffer::zeroed(length);
        let stag = line.welcome.map_or(0, |welcome| welcome.memory);
        let op = Operation::Read {
            sink: LocalSlice::whole(&sink),
            remote: remote(stag, offset),
        };
        match line
            .connection
            .post_send(WorkRequest::new(WrId(READ_BIT), op))
        {
            Ok(()) => line.reads.push_back(Read { flight, sink }),
            Err(error) => {
                self.outcomes
                    .push_back((flight, Err(PrimitiveError::Broken(error.to_string()))));
                self.break_with(format!("member {member}: {error}"));
            }
        }
        Ok(flight)
    }

    /// Takes what the connections have for us.
    fn settle(&mut self) {
        for member in 0..self.lines.len() {
            while let Some(event) = self.lines[member].connection.poll_event() {
                match event {
                    Event::Established(established) => {
                        self.greeted(member, &established.private_data);
                    }
                    Event::Closed(reason) => self.closed(member, &reason),
                    Event::PeerFinished => {
                        self.break_with(format!("member {member} ended its link"));
                    }
                    Event::ConnectRequest(_) | Event::SharedReceivesLow => {}
                }
            }
            while let Some(completion) = self.lines[member].connection.poll_completion() {
                self.completed(member, &completion);
            }
        }
    }

    fn greeted(&mut self, member: usize, private_data: &[u8]) {
        match Welcome::parse(private_data) {
            Some(welcome) => self.lines[member].welcome = Some(welcome),
            None => self.break_with(format!("member {member} is none")),
        }
        let met = self.lines.iter().all(|line| line.welcome.is_some());
        if met && self.state == State::Meeting {
            self.clear();
        }
    }

    /// Sends a gFLUSH of nothing.
    fn clear(&mut self) {
        self.state = State::Clearing;
        let common = self.common(Kind::Flush);
        let block = RawFlush {
            common,
            slot: slot_byte(self.slot()),
            ..RawFlush::default()
        };
        let blocks = self.repeated(block.as_bytes());
        self.send(blocks, common, None);
        if let Some(first) = self.under_way.back_mut() {
            first.flight = None;
        }
    }

    fn closed(&mut self, member: usize, reason: &CloseReason) {
        let why = match reason {
            CloseReason::Rejected(why) => match Denied::parse(why) {
                Some(denied) => denied.to_string(),
                None => reason.to_string(),
            },
            reason => reason.to_string(),
        };
        self.break_with(format!("member {member}: {why}"));
    }

    fn completed(&mut self, member: usize, completion: &Completion) {
        let number = completion.wr_id.0;
        if !completion.status.is_success() {
            // The link's end says more, and comes with it.
            return;
        }
        if number & READ_BIT != 0 {
            if let Some(Read { flight, sink }) = self.lines[member].reads.pop_front() {
                let bytes = sink.to_vec(0, sink.len());
                self.outcomes.push_back((flight, Ok(Outcome::Read(bytes))));
            }
            return;
        }
        if number & ANSWER_BIT == 0 {
            return;
        }
        let (CompletionOpcode::RecvRdmaWithImm, Some(immediate)) =
            (completion.opcode, completion.immediate)
        else {
            return self.break_with("an answer that is none".to_owned());
        };
        let again = self.lines[member]
            .connection
            .post_recv(completion.wr_id, RecvBuffer::Vec(0));
        if let Err(error) = again {
            return self.break_with(format!("member {member}: {error}"));
        }
        self.answered(immediate.0);
    }

    fn answered(&mut self, immediate: [u8; 8]) {
        let Some(one) = self.under_way.pop_front() else {
            return self.break_with("an answer that nobody asked for".to_owned());
        };
        // What kind, who and which epoch: of the block of the member that answered. Whether that one executes a gCAS is in
        // its second byte.
        let mut expected = one.common;
        if one
            .execute
            .is_some_and(|map| map.contains(self.shape.answerer()))
        {
            expected.execute = Opcode::CompareSwap as u8;
        }
        if immediate != expected.as_bytes() {
            self.under_way.push_front(one);
            return self
                .break_with("an answer to something else than the oldest primitive".to_owned());
        }
        self.staging.give_back(one.staged_until);
        let outcome = match one.execute {
            None => Outcome::Done,
            Some(map) => Outcome::Cas(self.had(one.slot, map)),
        };
        match one.flight {
            Some(flight) => self.outcomes.push_back((flight, Ok(outcome))),
            None => self.state = State::Ready,
        }
    }

    /// What the members had, by the message that came back.
    fn had(&self, slot: usize, map: MemberMap) -> Vec<Option<u64>> {
        let message = self
            .results
            .to_vec(slot * RESULT_BYTES, self.shape.message_bytes());
        let old = |member: usize| {
            let at = member * BLOCK_BYTES + 16;
            let bytes = message.get(at..at + 8)?.try_into().ok()?;
            Some(u64::from_le_bytes(bytes))
        };
        (0..self.shape.members)
            .map(|member| map.contains(member).then(|| old(member)).flatten())
            .collect()
    }
}

fn remote(stag: u32, to: u64) -> RemoteAddr {
    RemoteAddr {
        stag: Stag(stag),
        to: TaggedOffset(to),
    }
}

impl Primitives for Client {
    fn members(&self) -> usize {
        self.shape.members
    }

    fn size(&self) -> u64 {
        self.shape.size
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
