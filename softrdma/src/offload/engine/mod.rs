//! The engine: links, local queue pair and queues of one member. `receive` takes messages, `run` runs the queues.

mod receive;
mod run;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use super::command::{Destination, Refusal};
use super::link::{Link, LinkId, LinkSpec, RECEIVE_BIT};
use super::local::{Finished, LOCAL_TAG, LocalQueuePair};
use super::planted::Flaw;
use super::program::{Program, ProgramError, ReceiveSpec};
use super::ring::Ring;
use crate::addr::{ProtectionDomain, StreamId, Ticket, Time};
use crate::config::Config;
use crate::connection::{AnswerError, Connection, PrivateDataTooLong, SocketState};
use crate::cq::Completion;
use crate::event::{CloseReason, Event};
use crate::mem::access::Accessor;
use crate::mem::cache::RegionCache;
use crate::mem::{Buffer, RegionTable};
use crate::page::{PageError, PageStore};
use crate::wqe::PostError;

/// Links that an engine holds at once.
pub const LINKS_MAX: usize = 1024;
/// Part of the depth that is armed at once.
const BATCHES: u64 = 4;
/// Where the number of the queue stands in the numbers of requests on links.
const QUEUE_SHIFT: u32 = 48;
/// Marks requests on links that count as done already.
const DETACHED_BIT: u64 = 1 << 62;

/// What an engine is made of.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Settings of its links; their tags and domains are set by the engine.
    pub link: Config,
    /// Whose regions peers may touch.
    pub wire_domain: ProtectionDomain,
    /// Whose regions descriptors may name.
    pub local_domain: ProtectionDomain,
    /// Tests only: a flaw to plant.
    pub planted: Option<Flaw>,
}

/// What an engine tells its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineEvent {
    /// A peer wants a link: answer with [`Engine::accept`] or [`Engine::reject`].
    Requested {
        /// The link.
        link: LinkId,
        /// What the peer says of itself.
        private_data: Vec<u8>,
    },
    /// A link works.
    Established {
        /// The link.
        link: LinkId,
        /// If it was made by us: the peer's answer.
        private_data: Vec<u8>,
    },
    /// A message was refused; its link is ended.
    Refused {
        /// The link.
        link: LinkId,
        /// Why.
        refusal: Refusal,
    },
    /// A link has ended.
    Closed {
        /// The link.
        link: LinkId,
        /// How.
        reason: CloseReason,
    },
    /// The engine has stopped; nothing of it runs any more.
    Broken(Broken),
}

/// Why an engine has stopped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// A granted descriptor must not run.
    #[error("a descriptor was overwritten: {0}")]
    Descriptor(Refusal),
    /// The local queue pair has ended: storage failed, or a region was withdrawn under it.
    #[error("the local queue pair ended: {0}")]
    Local(CloseReason),
    /// Its owner stopped it.
    #[error("stopped")]
    Stopped,
}

/// Why a link could not be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum LinkError {
    /// As many as there can be.
    #[error("the engine holds as many links as it can")]
    Full,
    /// No such link.
    #[error("no such link")]
    Unknown,
    /// It does not wait for an answer, or the answer is too long.
    #[error(transparent)]
    Answer(#[from] AnswerError),
    /// Too much private data.
    #[error(transparent)]
    PrivateData(#[from] PrivateDataTooLong),
    /// Its receives could not be posted.
    #[error(transparent)]
    Post(#[from] PostError),
}

/// An engine; see the module's description.
pub struct Engine<S: PageStore> {
    config: EngineConfig,
    table: Arc<RegionTable>,
    regions: RegionCache,
    receives: Vec<Receive>,
    rings: Vec<Ring>,
    destinations: HashMap<(usize, u16), Destination>,
    depth: u64,
    armed: u64,
    /// Who began the operations that the rings hold, oldest first.
    origins: VecDeque<LinkId>,
    finished: u64,
    local: LocalQueuePair<S>,
    links: BTreeMap<LinkId, Link<S>>,
    next_link: u32,
    now: Time,
    events: VecDeque<EngineEvent>,
    broken: Option<Broken>,
    dry: u64,
    // Reused, so that nothing is allocated per operation.
    message: Vec<u8>,
    before: Vec<u8>,
    done: Vec<Finished>,
}

#[derive(Debug)]
struct Receive {
    spec: ReceiveSpec,
    taken: u64,
    /// Link that was served last.
    last: LinkId,
}

impl<S: PageStore> Engine<S> {
    /// An engine that runs `program` on the regions of `table`.
    ///
    /// # Errors
    /// If the program makes no sense.
    pub fn new(
        config: EngineConfig,
        table: &Arc<RegionTable>,
        program: Program,
        now: Time,
    ) -> Result<Self, ProgramError> {
        program.validate()?;
        let flaw = config.planted;
        let depth = program.depth;
        let rings = program.queues.into_iter();
        let local = LocalQueuePair::new(table, config.local_domain, now);
        let mut engine = Self {
            regions: RegionCache::new(table),
            table: Arc::clone(table),
            receives: program
                .receives
                .into_iter()
                .map(|spec| Receive {
                    spec,
                    taken: 0,
                    last: LinkId(0),
                })
                .collect(),
            rings: rings.map(|spec| Ring::new(spec, depth, flaw)).collect(),
            destinations: HashMap::new(),
            depth,
            armed: 0,
            origins: VecDeque::new(),
            finished: 0,
            local: local.map_err(|_| ProgramError::Size)?,
            links: BTreeMap::new(),
            next_link: 1,
            now,
            events: VecDeque::new(),
            broken: None,
            dry: 0,
            message: Vec::new(),
            before: Vec::new(),
            done: Vec::new(),
            config,
        };
        engine.arm_until(depth);
        Ok(engine)
    }

    /// Ring memory of a queue. Whoever may write it gets no more than by messages: see the module's description.
    #[must_use]
    pub fn ring_memory(&self, queue: usize) -> &Arc<Buffer> {
        self.rings[queue].memory()
    }

    /// How often a request of a queue ran, by opcode.
    #[must_use]
    pub fn executed(&self, queue: usize, request: usize) -> [u64; 8] {
        self.rings[queue].executed(request)
    }

    /// Operations begun, and those of them that are finished here.
    #[must_use]
    pub fn operations(&self) -> (u64, u64) {
        (self.receives[0].taken, self.finished)
    }

    /// How often a message had to wait because no slot was armed.
    #[must_use]
    pub fn times_dry(&self) -> u64 {
        self.dry
    }

    /// Why it has stopped, if it has.
    #[must_use]
    pub fn broken(&self) -> Option<&Broken> {
        self.broken.as_ref()
    }

    /// Says where a number in descriptors of a queue of links leads.
    pub fn set_destination(&mut self, queue: usize, number: u16, destination: Destination) {
        self.destinations.insert((queue, number), destination);
    }

    /// Requests for this number come to nothing from now on.
    pub fn remove_destination(&mut self, queue: usize, number: u16) {
        self.destinations.remove(&(queue, number));
    }

    fn link_config(&self, id: LinkId) -> Config {
        Config {
            protection_domain: self.config.wire_domain,
            tag: id.0,
            ..self.config.link.clone()
        }
    }

    fn new_link(&mut self) -> Result<LinkId, LinkError> {
        if self.links.len() >= LINKS_MAX || self.next_link == LOCAL_TAG || self.broken.is_some() {
            return Err(LinkError::Full);
        }
        let id = LinkId(self.next_link);
        self.next_link += 1;
        Ok(id)
    }

    /// A link that a peer makes.
    ///
    /// # Errors
    /// If there are too many.
    pub fn listen(&mut self, now: Time) -> Result<LinkId, LinkError> {
        let id = self.new_link()?;
        let connection = Connection::responder(self.link_config(id), &self.table, now);
        self.links.insert(id, Link::new(connection));
        Ok(id)
    }

    /// A link that we make.
    ///
    /// # Errors
    /// If there are too many, or the private data is too long.
    pub fn connect(
        &mut self,
        now: Time,
        private_data: &[u8],
        spec: LinkSpec,
    ) -> Result<LinkId, LinkError> {
        let id = self.new_link()?;
        let config = self.link_config(id);
        let connection = Connection::initiator(config, &self.table, private_data, now)?;
        let mut link = Link::new(connection);
        let specs: Vec<_> = self
            .receives
            .iter()
            .map(|queue| queue.spec.clone())
            .collect();
        link.attach(spec, &specs)?;
        self.links.insert(id, link);
        Ok(id)
    }

    /// Takes a peer.
    ///
    /// # Errors
    /// If nobody waits there.
    pub fn accept(
        &mut self,
        link: LinkId,
        private_data: &[u8],
        spec: LinkSpec,
    ) -> Result<(), LinkError> {
        let specs: Vec<_> = self
            .receives
            .iter()
            .map(|queue| queue.spec.clone())
            .collect();
        let link = self.links.get_mut(&link).ok_or(LinkError::Unknown)?;
        link.attach(spec, &specs)?;
        Ok(link.connection.accept(private_data)?)
    }

    /// Refuses a peer.
    ///
    /// # Errors
    /// If nobody waits there.
    pub fn reject(&mut self, link: LinkId, private_data: &[u8]) -> Result<(), LinkError> {
        let link = self.links.get_mut(&link).ok_or(LinkError::Unknown)?;
        Ok(link.connection.reject(private_data)?)
    }

    /// Ends a link at once.
    pub fn abort(&mut self, link: LinkId) {
        if let Some(link) = self.links.get_mut(&link) {
            link.connection.abort();
        }
        self.collect();
    }

    /// The links, to move their bytes.
    pub fn links(&self) -> impl Iterator<Item = LinkId> + '_ {
        self.links.keys().copied()
    }

    /// Identity of a link, for regions that are lent to its peer alone.
    #[must_use]
    pub fn stream(&self, link: LinkId) -> Option<StreamId> {
        self.links.get(&link).map(|link| link.connection.stream())
    }

    /// Operations that a link began and that are not finished here.
    #[must_use]
    pub fn operations_of(&self, link: LinkId) -> u64 {
        self.links.get(&link).map_or(0, |link| link.operations)
    }

    /// Forgets a link that has ended and of which nothing is under way.
    pub fn remove(&mut self, link: LinkId) {
        if self.links.get(&link).is_some_and(|link| link.closed) {
            self.links.remove(&link);
        }
    }

    /// Stops everything: no region is touched any more when this has returned (I12).
    pub fn stop(&mut self) {
        self.fail(Broken::Stopped);
        self.collect();
    }

    fn fail(&mut self, broken: Broken) {
        if self.broken.is_some() {
            return;
        }
        self.local.abort();
        for link in self.links.values_mut() {
            link.connection.abort();
            link.inbox.clear();
        }
        self.events.push_back(EngineEvent::Broken(broken.clone()));
        self.broken = Some(broken);
    }

    /// Next event.
    pub fn poll_event(&mut self) -> Option<EngineEvent> {
        self.events.pop_front()
    }

    /// Bytes that arrived on a link. Returns how many were taken: the rest is to be offered again when
    /// [`wants_input`](Self::wants_input) says so.
    pub fn handle_bytes(&mut self, link: LinkId, now: Time, pages: &mut S, bytes: &[u8]) -> usize {
        self.now = now;
        let mut at = 0;
        while at < bytes.len() {
            let Some(found) = self.links.get_mut(&link) else {
                return bytes.len();
            };
            let end = at + found.appetite().min(bytes.len() - at);
            let taken = match end - at {
                0 => 0,
                _ => found.connection.handle_bytes(now, pages, &bytes[at..end]),
            };
            at += taken;
            self.collect();
            let moved = self.advance(pages);
            if taken == 0 && !moved {
                break;
            }
        }
        at
    }

    /// Should the driver receive on a link?
    #[must_use]
    pub fn wants_input(&self, link: LinkId) -> bool {
        self.links
            .get(&link)
            .is_some_and(|link| link.connection.wants_input() && link.appetite() > 0)
    }

    /// The peer sent FIN.
    pub fn handle_eof(&mut self, link: LinkId, now: Time, pages: &mut S) {
        self.now = now;
        if let Some(link) = self.links.get_mut(&link) {
            link.connection.handle_eof(now);
        }
        self.collect();
        self.advance(pages);
    }

    /// The socket failed.
    pub fn handle_transport_error(&mut self, link: LinkId, pages: &mut S) {
        if let Some(link) = self.links.get_mut(&link) {
            link.connection.handle_transport_error();
        }
        self.collect();
        self.advance(pages);
    }

    /// Appends bytes to send on a link, up to about `limit`. Returns how many.
    pub fn poll_transmit(
        &mut self,
        link: LinkId,
        now: Time,
        pages: &mut S,
        out: &mut Vec<u8>,
        limit: usize,
    ) -> usize {
        self.now = now;
        let Some(found) = self.links.get_mut(&link) else {
            return 0;
        };
        let count = found.connection.poll_transmit(now, pages, out, limit);
        self.collect();
        if count > 0 {
            self.advance(pages);
        }
        count
    }

    /// Whether READs on a link wait from now on; see [`Connection::hold_reads`].
    pub fn hold_reads(&mut self, link: LinkId, held: bool) {
        if let Some(link) = self.links.get_mut(&link) {
            link.connection.hold_reads(held);
        }
    }

    /// Does a READ on a link wait because it is held?
    #[must_use]
    pub fn holds_read(&self, link: LinkId) -> bool {
        let link = self.links.get(&link);
        link.is_some_and(|link| link.connection.holds_read())
    }

    /// How often bytes were taken to answer READs on a link; see [`Connection::reads_taken`].
    #[must_use]
    pub fn reads_taken(&self, link: LinkId) -> u64 {
        let link = self.links.get(&link);
        link.map_or(0, |link| link.connection.reads_taken())
    }

    /// What to do with the socket of a link when all bytes are sent.
    #[must_use]
    pub fn socket_state(&self, link: LinkId) -> SocketState {
        match self.links.get(&link) {
            Some(link) => link.connection.socket_state(),
            None => SocketState::Close,
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let links = self.links.values();
        links
            .filter_map(|link| link.connection.poll_timeout())
            .min()
    }

    /// Time passed.
    pub fn handle_timeout(&mut self, now: Time, pages: &mut S) {
        self.now = now;
        for link in self.links.values_mut() {
            link.connection.handle_timeout(now);
        }
        self.collect();
        self.advance(pages);
    }

    /// Answers a pending [`PageStore::get`].
    pub fn handle_page(&mut self, pages: &mut S, ticket: Ticket, page: Result<S::Page, PageError>) {
        match self.links.get_mut(&LinkId(ticket.tag())) {
            _ if ticket.tag() == LOCAL_TAG => self.local.handle_page(pages, ticket, page),
            Some(link) => link.connection.handle_page(pages, ticket, page),
            None => drop(page),
        }
        self.collect();
        self.advance(pages);
    }

    /// Answers a pending [`PageStore::put`].
    pub fn handle_put(&mut self, pages: &mut S, ticket: Ticket) {
        match self.links.get_mut(&LinkId(ticket.tag())) {
            _ if ticket.tag() == LOCAL_TAG => self.local.handle_put(pages, ticket),
            Some(link) => link.connection.handle_put(pages, ticket),
            None => {}
        }
        self.collect();
        self.advance(pages);
    }

    /// Answers a [`PageStore::sync`].
    pub fn handle_durable(&mut self, pages: &mut S, ticket: Ticket, result: Result<(), PageError>) {
        let result = match self.config.planted {
            Some(Flaw::FailureIgnored) => Ok(()),
            _ => result,
        };
        match self.links.get_mut(&LinkId(ticket.tag())) {
            _ if ticket.tag() == LOCAL_TAG => self.local.handle_durable(pages, ticket, result),
            Some(link) => link.connection.handle_durable(pages, ticket, result),
            None => {}
        }
        self.collect();
        self.advance(pages);
    }

    /// Takes events and completions of the links.
    fn collect(&mut self) {
        let Self {
            links,
            rings,
            events,
            ..
        } = self;
        for (&id, link) in links {
            while let Some(completion) = link.connection.poll_completion() {
                note_completion(link, rings, &completion);
            }
            while let Some(event) = link.connection.poll_event() {
                let link_id = id;
                events.extend(match event {
                    Event::ConnectRequest(request) => Some(EngineEvent::Requested {
                        link: link_id,
                        private_data: request.private_data,
                    }),
                    Event::Established(established) => Some(EngineEvent::Established {
                        link: link_id,
                        private_data: established.private_data,
                    }),
                    Event::Closed(reason) => {
                        link.closed = true;
                        Some(EngineEvent::Closed {
                            link: link_id,
                            reason,
                        })
                    }
                    Event::PeerFinished | Event::SharedReceivesLow => None,
                });
            }
        }
    }
}

fn accessor<S: PageStore>(local: &LocalQueuePair<S>, config: &EngineConfig) -> Accessor {
    Accessor {
        stream: local.stream(),
        domain: config.local_domain,
        planted: None,
    }
}

fn note_completion<S: PageStore>(link: &mut Link<S>, rings: &mut [Ring], completion: &Completion) {
    let number = completion.wr_id.0;
    if number & RECEIVE_BIT != 0 {
        let slot = (number & !RECEIVE_BIT) as usize;
        if completion.status.is_success() && completion.immediate.is_none() {
            link.received(slot, completion.bytes);
        } else {
            // Immediate data are for clients.
            link.not_received(slot);
        }
        return;
    }
    if number & DETACHED_BIT != 0 {
        return;
    }
    if let Some(ring) = rings.get_mut((number >> QUEUE_SHIFT) as usize) {
        ring.complete(number & ((1 << QUEUE_SHIFT) - 1));
    }
}

impl<S: PageStore> std::fmt::Debug for Engine<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("begun", &self.receives[0].taken)
            .field("finished", &self.finished)
            .field("links", &self.links.len())
            .field("broken", &self.broken)
            .finish_non_exhaustive()
    }
}
