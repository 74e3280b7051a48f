//! A client of such a chain.

use std::collections::VecDeque;
use std::sync::Arc;

use softrdma::connection::PrivateDataTooLong;
use softrdma::offload::LinkId;
use softrdma::{
    Buffer, CompletionOpcode, Config, Connection, Event, LocalSlice, NoPages, Operation,
    RegionTable, RemoteAddr, SocketState, TaggedOffset, Time, WorkRequest, WrId,
};
use zerocopy::{FromBytes, IntoBytes};

use super::member::{Greeting, MESSAGE, MESSAGES, Welcome, post_message, receive};
use super::message::{MESSAGE_MAX, Message, Task, WRITE_MAX};
use crate::group::{Durability, Flight, Node, Outcome, Primitive, PrimitiveError, Primitives};

#[derive(Debug)]
struct Line {
    connection: Connection<NoPages>,
    memory: Option<RemoteAddr>,
    reads: VecDeque<(Flight, Arc<Buffer>)>,
}

/// A client with a link to each member; drive it as a [`Node`], whose link number is that of the member.
#[derive(Debug)]
pub struct NaiveClient {
    lines: Vec<Line>,
    /// Kept, since the connections use it.
    _table: Arc<RegionTable>,
    number: u16,
    size: u64,
    flights: u64,
    under_way: VecDeque<Flight>,
    outcomes: VecDeque<(Flight, Result<Outcome, PrimitiveError>)>,
    broken: bool,
}

impl NaiveClient {
    /// Client number `number` of a chain of `members` with `size` bytes each.
    ///
    /// # Errors
    /// If the link settings leave no room for a greeting.
    pub fn new(
        config: &Config,
        number: u16,
        (members, size): (usize, u64),
        seed: [u8; 32],
    ) -> Result<Self, PrivateDataTooLong> {
        let table = RegionTable::new(seed);
        let greeting = Greeting {
            member: 0,
            reserved: 0,
            client: number.into(),
        };
        let line = |_| {
            let config = config.clone();
            let hello = greeting.as_bytes();
            let mut connection = Connection::initiator(config, &table, hello, Time(0))?;
            for n in 0..MESSAGES {
                // Fewer of them if the settings say so.
                let _ = connection.post_recv(receive(n), MESSAGE);
            }
            Ok(Line {
                connection,
                memory: None,
                reads: VecDeque::new(),
            })
        };
        Ok(Self {
            lines: (0..members).map(line).collect::<Result<_, _>>()?,
            _table: table,
            number,
            size,
            flights: 0,
            under_way: VecDeque::new(),
            outcomes: VecDeque::new(),
            broken: false,
        })
    }

    /// Are all members there?
    #[must_use]
    pub fn is_ready(&self) -> bool {
        !self.broken && self.lines.iter().all(|line| line.memory.is_some())
    }

    /// Has it ended?
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    fn settle(&mut self) {
        for line in &mut self.lines {
            while let Some(event) = line.connection.poll_event() {
                match event {
                    Event::Established(established) => {
                        let welcome = Welcome::read_from_bytes(&established.private_data);
                        line.memory = welcome.ok().map(RemoteAddr::from);
                    }
                    Event::Closed(_) => self.broken = true,
                    _ => {}
                }
            }
            while let Some(done) = line.connection.poll_completion() {
                if !done.status.is_success() {
                    continue;
                }
                match done.opcode {
                    CompletionOpcode::Recv => {
                        let _ = line.connection.post_recv(done.wr_id, MESSAGE);
                        let answer = done.message.and_then(Message::parse);
                        let Some(answer) = answer else { continue };
                        let flight = Flight(answer.flight);
                        let outcome = match answer.task {
                            Task::Cas { execute, .. } => Outcome::Cas(answer.results(execute)),
                            Task::Write | Task::Memcpy { .. } => Outcome::Done,
                        };
                        self.under_way.retain(|&other| other != flight);
                        self.outcomes.push_back((flight, Ok(outcome)));
                    }
                    CompletionOpcode::RdmaRead => {
                        if let Some((flight, sink)) = line.reads.pop_front() {
                            let bytes = sink.to_vec(0, sink.len());
                            self.outcomes.push_back((flight, Ok(Outcome::Read(bytes))));
                        }
                    }
                    _ => {}
                }
            }
        }
        if self.broken {
            let reads = self.lines.iter_mut().flat_map(|line| line.reads.drain(..));
            let lost = self
                .under_way
                .drain(..)
                .chain(reads.map(|(flight, _)| flight));
            let broken = || PrimitiveError::Broken("a link ended".to_owned());
            self.outcomes
                .extend(lost.map(|flight| (flight, Err(broken()))));
        }
    }
}

impl Primitives for NaiveClient {
    fn members(&self) -> usize {
        self.lines.len()
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn longest_write(&self) -> u64 {
        WRITE_MAX as u64
    }

    fn persists(&self) -> bool {
        false
    }

    fn post(&mut self, primitive: Primitive) -> Result<Flight, PrimitiveError> {
        if !self.is_ready() {
            return Err(PrimitiveError::Broken(
                "not all members are there".to_owned(),
            ));
        }
        let flight = Flight(self.flights);
        if let Primitive::Read {
            member,
            offset,
            length,
        } = primitive
        {
            let line = self.lines.get_mut(member);
            let line = line.ok_or(PrimitiveError::Invalid("there is no such member"))?;
            let memory = line.memory.ok_or(PrimitiveError::Full)?;
            let sink = Buffer::zeroed(length);
            let read = Operation::Read {
                sink: LocalSlice::whole(&sink),
                remote: RemoteAddr {
                    to: TaggedOffset(memory.to.0.wrapping_add(offset)),
                    ..memory
                },
            };
            let request = WorkRequest::new(WrId(flight.0), read);
            line.connection
                .post_send(request)
                .map_err(|_| PrimitiveError::Full)?;
            line.reads.push_back((flight, sink));
            self.flights += 1;
            return Ok(flight);
        }
        check(&primitive, self.size)?;
        if self.under_way.len() >= MESSAGES {
            return Err(PrimitiveError::Full);
        }
        let members = self.lines.len();
        let message = Message::encode(&primitive, self.number, flight.0, members)
            .ok_or(PrimitiveError::Invalid("this chain has no gFLUSH"))?;
        debug_assert!(message.len() <= MESSAGE_MAX, "checked");
        post_message(&mut self.lines[0].connection, message).map_err(|_| PrimitiveError::Full)?;
        self.under_way.push_back(flight);
        self.flights += 1;
        Ok(flight)
    }

    fn poll(&mut self) -> Option<(Flight, Result<Outcome, PrimitiveError>)> {
        self.outcomes.pop_front()
    }
}

/// May it be asked for?
fn check(primitive: &Primitive, size: u64) -> Result<(), PrimitiveError> {
    let (offset, length, source, durability) = match primitive {
        Primitive::Write {
            offset,
            bytes,
            durability,
        } => {
            if bytes.len() > WRITE_MAX {
                return Err(PrimitiveError::Invalid("a gWRITE has at most 1 MiB"));
            }
            (*offset, bytes.len() as u64, 0, *durability)
        }
        Primitive::Cas {
            offset, durability, ..
        } => (*offset, 8, 0, *durability),
        Primitive::Memcpy {
            source,
            destination,
            length,
            durability,
        } => (*destination, *length, *source, *durability),
        Primitive::Flush | Primitive::Read { .. } => return Ok(()),
    };
    let fits = |at: u64| at.checked_add(length).is_some_and(|end| end <= size);
    if !fits(offset) || !fits(source) {
        return Err(PrimitiveError::Invalid("it reaches beyond the memory"));
    }
    match durability {
        Durability::Visible => Ok(()),
        Durability::Durable => Err(PrimitiveError::Invalid("nothing is durable in this chain")),
    }
}

impl Node for NaiveClient {
    fn handle_bytes(&mut self, link: LinkId, now: Time, bytes: &[u8]) -> usize {
        let taken = match self.lines.get_mut(link.0 as usize) {
            Some(line) => line.connection.handle_bytes(now, &mut NoPages, bytes),
            None => bytes.len(),
        };
        self.settle();
        taken
    }

    fn handle_eof(&mut self, link: LinkId, now: Time) {
        if let Some(line) = self.lines.get_mut(link.0 as usize) {
            line.connection.handle_eof(now);
        }
        self.settle();
    }

    fn handle_transport_error(&mut self, link: LinkId) {
        if let Some(line) = self.lines.get_mut(link.0 as usize) {
            line.connection.handle_transport_error();
        }
        self.settle();
    }

    fn poll_transmit(&mut self, link: LinkId, now: Time, out: &mut Vec<u8>, limit: usize) -> usize {
        let count = match self.lines.get_mut(link.0 as usize) {
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
