//! A member's endpoint: takes messages to its application, and sends what that posts.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use softrdma::connection::PrivateDataTooLong;
use softrdma::offload::LinkId;
use softrdma::{
    Buffer, CompletionOpcode, Config, Connection, Event, NoPages, Operation, PostError, RecvBuffer,
    RegionSpec, RegionTable, RegisterError, RemoteAddr, Rights, SocketState, Source, Stag,
    TaggedOffset, Time, WorkRequest, WrId,
};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::application::Application;
use super::exchange::{Exchange, To};
use super::message::MESSAGE_MAX;
use crate::group::Node;

/// Messages under way on a link.
pub(super) const MESSAGES: usize = 64;

/// Said when connecting: whose messages these will be.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Greeting {
    /// 0 from a client, 1 from a member.
    pub member: u8,
    pub reserved: u8,
    pub client: U16,
}

/// Said when accepting: where the memory is, for READs.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Welcome {
    pub stag: U32,
    pub reserved: U32,
    pub to: U64,
}

#[derive(Debug)]
struct Line {
    connection: Connection<NoPages>,
    client: Option<u16>,
}

/// The endpoint of one member, with what waits for it. Drive it as a [`Node`].
#[derive(Debug)]
pub struct NaiveMember {
    config: Config,
    table: Arc<RegionTable>,
    memory: Arc<Buffer>,
    readable: RemoteAddr,
    exchange: Arc<Exchange>,
    lines: HashMap<LinkId, Line>,
    links: u32,
    next: Option<LinkId>,
    clients: HashMap<u16, LinkId>,
    /// Posted before the next member was there, or more than a link holds.
    waiting: VecDeque<(To, Vec<u8>)>,
}

impl NaiveMember {
    /// An endpoint with so many bytes of memory.
    ///
    /// # Errors
    /// If the memory cannot be registered.
    pub fn new(config: Config, seed: [u8; 32], size: usize) -> Result<Self, RegisterError> {
        let table = RegionTable::new(seed);
        let memory = Buffer::zeroed(size);
        let spec = RegionSpec::memory(config.protection_domain, Rights::REMOTE_READ, &memory);
        let region = table.register(spec)?;
        Ok(Self {
            readable: region.remote(0),
            config,
            table,
            memory,
            exchange: Arc::default(),
            lines: HashMap::new(),
            links: 0,
            next: None,
            clients: HashMap::new(),
            waiting: VecDeque::new(),
        })
    }

    /// The application of this member, which is number `member` of `members`.
    #[must_use]
    pub fn application(&self, member: usize, members: usize) -> Application {
        Application {
            exchange: Arc::clone(&self.exchange),
            memory: Arc::clone(&self.memory),
            member,
            members,
        }
    }

    /// The member's memory.
    #[must_use]
    pub fn memory(&self) -> &Arc<Buffer> {
        &self.memory
    }

    pub(super) fn exchange(&self) -> &Arc<Exchange> {
        &self.exchange
    }

    /// A link on which somebody will connect.
    pub(super) fn listen(&mut self, now: Time) -> LinkId {
        let connection = Connection::responder(self.config.clone(), &self.table, now);
        self.add(connection)
    }

    /// The link to the next member.
    pub(super) fn connect(&mut self, now: Time) -> Result<LinkId, PrivateDataTooLong> {
        let greeting = Greeting {
            member: 1,
            reserved: 0,
            client: 0.into(),
        };
        let config = self.config.clone();
        let connection = Connection::initiator(config, &self.table, greeting.as_bytes(), now)?;
        let link = self.add(connection);
        self.next = Some(link);
        Ok(link)
    }

    fn add(&mut self, connection: Connection<NoPages>) -> LinkId {
        let link = LinkId(self.links);
        self.links += 1;
        let client = None;
        self.lines.insert(link, Line { connection, client });
        link
    }

    /// Acts on what a link has to say, and posts what waits.
    fn settle(&mut self, link: LinkId) {
        let Some(line) = self.lines.get_mut(&link) else {
            return;
        };
        while let Some(event) = line.connection.poll_event() {
            match event {
                Event::ConnectRequest(request) => {
                    let greeting = Greeting::read_from_bytes(&request.private_data);
                    let welcome = Welcome {
                        stag: self.readable.stag.0.into(),
                        reserved: 0.into(),
                        to: self.readable.to.0.into(),
                    };
                    let Ok(greeting) = greeting else {
                        let _ = line.connection.reject(b"");
                        continue;
                    };
                    if greeting.member == 0 {
                        line.client = Some(greeting.client.get());
                        self.clients.insert(greeting.client.get(), link);
                    }
                    // An answer that comes too late finds the link closed, which the next event tells.
                    let _ = line.connection.accept(welcome.as_bytes());
                    for n in 0..MESSAGES {
                        let _ = line.connection.post_recv(receive(n), MESSAGE);
                    }
                }
                Event::Closed(_) => {
                    if let Some(client) = line.client {
                        self.clients.remove(&client);
                    }
                }
                Event::Established(_) | Event::PeerFinished | Event::SharedReceivesLow => {}
            }
        }
        while let Some(done) = line.connection.poll_completion() {
            if done.opcode == CompletionOpcode::Recv && done.status.is_success() {
                let _ = line.connection.post_recv(done.wr_id, MESSAGE);
                self.exchange.deliver(done.message.unwrap_or_default());
            }
        }
    }

    /// Posts what the application has for others; returns whether there was anything.
    pub(super) fn post(&mut self) -> bool {
        while let Some(message) = self.exchange.next_to_send() {
            self.waiting.push_back(message);
        }
        let mut any = false;
        while let Some((to, message)) = self.waiting.pop_front() {
            let link = match to {
                To::Next => self.next,
                To::Client(number) => self.clients.get(&number).copied(),
            };
            let Some(line) = link.and_then(|link| self.lines.get_mut(&link)) else {
                // The client has gone; the next member comes.
                if to == To::Next {
                    self.waiting.push_front((to, message));
                    break;
                }
                continue;
            };
            match post_message(&mut line.connection, message) {
                Ok(()) => any = true,
                Err(Some(message)) => {
                    self.waiting.push_front((to, message));
                    break;
                }
                Err(None) => {}
            }
        }
        any
    }
}

/// A receive of a message.
pub(super) const MESSAGE: RecvBuffer = RecvBuffer::Vec(MESSAGE_MAX);

pub(super) const fn receive(n: usize) -> WrId {
    WrId(1 << 32 | n as u64)
}

/// Posts a SEND. The message comes back if the queue is full, and nothing does if the connection has ended.
pub(super) fn post_message(
    connection: &mut Connection<NoPages>,
    message: Vec<u8>,
) -> Result<(), Option<Vec<u8>>> {
    let kept = message.clone();
    let send = Operation::Send {
        source: Source::Bytes(message),
        solicited: false,
        invalidate: None,
    };
    let request = WorkRequest {
        signaled: false,
        ..WorkRequest::new(WrId(0), send)
    };
    match connection.post_send(request) {
        Ok(()) => Ok(()),
        Err(PostError::QueueFull) => Err(Some(kept)),
        Err(_) => Err(None),
    }
}

impl From<Welcome> for RemoteAddr {
    fn from(welcome: Welcome) -> Self {
        Self {
            stag: Stag(welcome.stag.get()),
            to: TaggedOffset(welcome.to.get()),
        }
    }
}

impl Node for NaiveMember {
    fn handle_bytes(&mut self, link: LinkId, now: Time, bytes: &[u8]) -> usize {
        let taken = match self.lines.get_mut(&link) {
            Some(line) => line.connection.handle_bytes(now, &mut NoPages, bytes),
            None => bytes.len(),
        };
        self.settle(link);
        taken
    }

    fn handle_eof(&mut self, link: LinkId, now: Time) {
        if let Some(line) = self.lines.get_mut(&link) {
            line.connection.handle_eof(now);
        }
        self.settle(link);
    }

    fn handle_transport_error(&mut self, link: LinkId) {
        if let Some(line) = self.lines.get_mut(&link) {
            line.connection.handle_transport_error();
        }
        self.settle(link);
    }

    fn poll_transmit(&mut self, link: LinkId, now: Time, out: &mut Vec<u8>, limit: usize) -> usize {
        self.post();
        let count = match self.lines.get_mut(&link) {
            Some(line) => line.connection.poll_transmit(now, &mut NoPages, out, limit),
            None => 0,
        };
        self.settle(link);
        count
    }

    fn wants_input(&self, link: LinkId) -> bool {
        let line = self.lines.get(&link);
        line.is_some_and(|line| line.connection.wants_input())
    }

    fn socket_state(&self, link: LinkId) -> SocketState {
        match self.lines.get(&link) {
            Some(line) => line.connection.socket_state(),
            None => SocketState::Close,
        }
    }

    fn poll_timeout(&self) -> Option<Time> {
        let lines = self.lines.values();
        lines
            .filter_map(|line| line.connection.poll_timeout())
            .min()
    }

    fn handle_timeout(&mut self, now: Time) {
        let links: Vec<LinkId> = self.lines.keys().copied().collect();
        for link in links {
            if let Some(line) = self.lines.get_mut(&link) {
                line.connection.handle_timeout(now);
            }
            self.settle(link);
        }
    }
}
