//! The loop of one reactor thread of the target: connections, media, and what other threads ask for.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use contigfs::GrowError;
use flashnet_tls::Records;
use ftl::device::array::{PartId, Splitter};
use ftl::{Action, ActionId, Event as FtlEvent, Intent, Lba, MediaError, MediaOp, Port};
use slab::Slab;
use socket2::{Socket, TcpKeepalive};
use softrdma::config::mulpdu;
use softrdma::driver::Spin;
use softrdma::{Config, Connection, Event, PageError, ProtectionDomain, RegionTable, Time};
use tracing::{debug, info, warn};

use super::job::{Job, PagesJob, Reader, Waiter, one_by_one};
use super::lane::Lanes;
use super::media::Media;
use super::pages::{FlashPages, Waiting};
use super::reception::{self, Reception};
use super::store::{commit_error, durable_error};
use crate::reactor::{Done, Inbox, LinkTag, Net, Notice, Ring, Tag};

/// Media operations in the ring at once; the rest waits in the engine.
const MEDIA_IN_FLIGHT_MAX: usize = 512;
/// Media operations that are answered in one go. The device hands over what it has done all at once, and has nothing to do while
/// all of it is being answered; when it is answered in such lots, who got the first answers asks for more meanwhile.
const LOT: usize = 8;
/// How often a reactor that is to stop looks whether everything has ended.
const STOP_LOOK: Duration = Duration::from_millis(10);
/// Connections that were busy so recently may be again.
const HEARD: Duration = Duration::from_millis(1);
/// Connections of a reactor that were refused and may wait for their peers to close them.
const REFUSED_MAX: usize = 128;
/// How long a peer may be silent, once connected, while others wait for its place.
const GRACE: Duration = Duration::from_secs(1);
/// See [`inbound_buffer`]: 256 connections have as much as is of use.
const INBOUND_BYTES: usize = 256 << 20;
/// Wait after an accept that failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Why a connection is not adopted when too much waits.
const BEHIND: &str = "this target is behind with others";
/// Bytes of messages that may wait for the control threads; no connections are adopted beyond it.
const WAITING_MAX: usize = 16 << 20;

/// A message of a client for the control threads, or the news that a client has gone.
#[derive(Debug)]
pub(super) enum ControlJob {
    /// A request arrived on a connection of this domain. It is carried out if that has not ended meanwhile.
    Request(usize, LinkTag, ProtectionDomain, Vec<u8>),
    /// The connection ended: its regions go with it.
    Gone(usize, LinkTag),
}

impl ControlJob {
    fn bytes(&self) -> usize {
        let message = match self {
            Self::Request(_, _, _, message) => message.len(),
            Self::Gone(..) => 0,
        };
        size_of::<Self>() + message
    }
}

/// The way to the control threads. All messages of a connection go to the same thread, so they are worked on in order,
/// its end last. Connections come and go while their messages stay, as in the [inboxes](crate::reactor::Inbox) of reactors: so
/// nobody adopts more of them as long as it is [crowded](Self::is_crowded).
#[derive(Clone, Debug)]
pub(super) struct ControlSenders {
    threads: Vec<Sender<ControlJob>>,
    /// Bytes of what none of them has taken yet.
    waiting: Arc<AtomicUsize>,
}

/// What a control thread has to do.
#[derive(Debug)]
pub(super) struct ControlJobs {
    jobs: Receiver<ControlJob>,
    waiting: Arc<AtomicUsize>,
}

impl ControlJobs {
    /// Waits for the next job; none when every copy of its sender has gone.
    pub(super) fn next(&self) -> Option<ControlJob> {
        let job = self.jobs.recv().ok()?;
        self.waiting.fetch_sub(job.bytes(), Ordering::Relaxed);
        Some(job)
    }
}

impl ControlSenders {
    /// Channels for `threads` control threads.
    pub(super) fn new(threads: usize) -> (Self, Vec<ControlJobs>) {
        let waiting = Arc::new(AtomicUsize::new(0));
        let (threads, jobs) = (0..threads)
            .map(|_| {
                let (sender, jobs) = channel();
                let waiting = Arc::clone(&waiting);
                (sender, ControlJobs { jobs, waiting })
            })
            .unzip();
        (Self { threads, waiting }, jobs)
    }

    pub(super) fn send(&self, tag: LinkTag, job: ControlJob) {
        let thread = (tag.0 as usize).checked_rem(self.threads.len());
        if let Some(sender) = thread.map(|thread| &self.threads[thread]) {
            self.waiting.fetch_add(job.bytes(), Ordering::Relaxed);
            // The threads outlive the senders.
            let _ = sender.send(job);
        }
    }

    /// Whether so much waits that nobody should give reason for more.
    fn is_crowded(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) >= WAITING_MAX
    }

    /// Lets the threads end; what is sent from now on is lost.
    fn hang_up(&mut self) {
        self.threads.clear();
    }
}

/// What a reactor is made with.
#[derive(Debug)]
pub(super) struct CoreParts {
    /// Number of this reactor, also of its port.
    pub index: usize,
    /// Pages and port.
    pub pages: FlashPages,
    /// Messages to this reactor.
    pub inbox: Arc<Inbox<Job>>,
    /// All reactors, for the one that accepts to spread connections over.
    pub peers: Vec<Arc<Inbox<Job>>>,
    /// The devices, opened for all rings.
    pub media: Media,
    /// Threads that drive ports of their own; the first reactor carries out what they leave.
    pub lanes: Option<Arc<Lanes>>,
    /// Regions of all reactors.
    pub table: Arc<RegionTable>,
    /// Lets connections in and hears them.
    pub reception: Reception,
    /// What connections start with; domain and tag are filled in.
    pub config: Config,
    /// Connections of all reactors.
    pub connections: Arc<AtomicUsize>,
    /// Look for work all the time instead of sleeping.
    pub poll: bool,
    /// How long to look for work before sleeping, while connections are busy.
    pub spin: Duration,
    /// Start of the monotonic clock.
    pub epoch: Instant,
}

/// The end of the connections.
#[derive(Debug)]
struct HangUp {
    since: Instant,
    /// How long they may take to end in order.
    drain: Duration,
    /// Dropped when no connection will ask for anything any more.
    asked_by: Option<Waiter<()>>,
}

/// One reactor of the target.
#[derive(Debug)]
pub(super) struct Core {
    // Dropped first: closing the ring ends what the kernel still does with the page pool, which `parts` keeps.
    net: Net<FlashPages>,
    parts: CoreParts,
    /// Accepts connections; the first reactor has it.
    listener: Option<Socket>,
    /// Media operations that the kernel holds, and the ports they belong to; keeps their buffers alive. Of an array they
    /// are parts of actions.
    media: Slab<(Port, Action)>,
    /// Those that are over and have not been answered yet, with what came of them.
    finished: VecDeque<(u32, i32)>,
    /// Takes actions apart, and puts their answers together, if there are several devices.
    splitter: Option<Splitter>,
    jobs: VecDeque<Job>,
    /// The connections are to end.
    hanging_up: Option<HangUp>,
    /// Nobody needs this reactor any more.
    ending: bool,
    next: usize,
    /// Connections in the order in which they came, with the time; the first of them has not said what it wants.
    silent: VecDeque<(LinkTag, Time)>,
    /// Connections that were refused and that their peers have not closed yet. They take nobody's place.
    refused: VecDeque<LinkTag>,
    /// The last accept failed.
    accept_trouble: bool,
    /// When to accept again, if that is not under way.
    accept_at: Option<Time>,
    spin: Spin,
    /// When a connection received last.
    heard: Time,
}

impl Core {
    /// A reactor, ready to run on the thread that calls this.
    pub(super) fn new(parts: CoreParts) -> io::Result<Self> {
        let mut ring = Ring::new(1024, 256, 64 * 1024)?;
        ring.poll_wake(parts.inbox.waker().fd());
        let spin = Spin::new(parts.spin);
        Ok(Self {
            net: Net::new(ring),
            listener: None,
            splitter: parts.media.splitter(),
            parts,
            media: Slab::new(),
            finished: VecDeque::new(),
            jobs: VecDeque::new(),
            hanging_up: None,
            ending: false,
            next: 0,
            silent: VecDeque::new(),
            refused: VecDeque::new(),
            accept_trouble: false,
            accept_at: None,
            spin,
            heard: Time(0),
        })
    }

    /// Runs until told to stop.
    pub(super) fn run(mut self) -> io::Result<()> {
        loop {
            let now = self.now();
            self.pump(now);
            self.hang_up();
            if self.ending && self.media.is_empty() {
                return Ok(());
            }
            match self.parts.poll || !self.finished.is_empty() {
                true => self.net.ring.turn()?,
                false => {
                    let wait = self.sleep_time();
                    // Programs on a mount sleep while they wait, and looking alone was seen to gain nothing
                    // (docs/speed.md).
                    match now < self.heard + HEARD {
                        true => self.net.ring.rest(wait, &mut self.spin)?,
                        false => self.net.ring.enter(wait)?,
                    }
                }
            }
            let now = self.now();
            while let Some(done) = self.net.ring.next_done() {
                self.completed(now, done)?;
            }
            for _ in 0..LOT {
                let Some((id, result)) = self.finished.pop_front() else {
                    break;
                };
                self.answer_media(now, id, result);
            }
        }
    }

    /// Something came that was waited for.
    fn news(&mut self, now: Time) {
        self.spin
            .news(self.parts.epoch + Duration::from_nanos(now.0));
    }

    fn now(&self) -> Time {
        Time(self.parts.epoch.elapsed().as_nanos() as u64)
    }

    /// Turns everything that happened into everything that has to be done, until both are empty.
    fn pump(&mut self, now: Time) {
        let pages = &mut self.parts.pages;
        let flash_now = ftl::Time(now.0);
        pages.tick(flash_now);
        if pages.ftl.poll_timeout().is_some_and(|due| due <= flash_now) {
            pages.ftl.handle_timeout(pages.port, flash_now);
        }
        if self.parts.index == 0 {
            pages.ftl.write_out_some();
        }
        self.take_jobs(now);
        self.accept_again(now);
        // The device gets to work before answers are sent, which takes some microseconds each.
        self.submit_media(now);
        self.net.ring.submit();
        self.pump_links(now);
        loop {
            // What is over without having been asked of any device has answers too.
            let answered = self.submit_media(now);
            if !self.deliver() && !answered {
                break;
            }
            self.pump_links(now);
        }
    }

    fn pump_links(&mut self, now: Time) {
        let reception = &self.parts.reception;
        let connections = &self.parts.connections;
        let mut told = None;
        let refused = &mut self.refused;
        let mut sent_away = Vec::new();
        self.net
            .pump(now, &mut self.parts.pages, |tag, connection, notice| {
                let asks = matches!(&notice, Notice::Event(Event::ConnectRequest(_)));
                if let Notice::Event(Event::Closed(_)) = &notice {
                    match refused.iter().position(|&other| other == tag) {
                        Some(at) => drop(refused.remove(at)),
                        None => drop(connections.fetch_sub(1, Ordering::Relaxed)),
                    }
                }
                if let Some(denial) = reception.hear(tag, connection, notice) {
                    told = Some((tag, denial));
                }
                if asks && connection.is_refused() {
                    connections.fetch_sub(1, Ordering::Relaxed);
                    refused.push_back(tag);
                    let over = refused.len().checked_sub(REFUSED_MAX + 1);
                    sent_away.extend(over.map(|at| refused[at]));
                }
            });
        for tag in sent_away {
            if let Some(connection) = self.net.connection(tag) {
                connection.abort();
            }
        }
        if let Some((tag, denial)) = told {
            let peer = self.net.peer(tag);
            let connection = self.net.connection(tag);
            let tenant = connection.and_then(|connection| self.parts.reception.tenant(connection));
            warn!(?peer, ?tag, tenant, %denial, "connection refused");
        }
    }

    /// Hands the answers of the translation layer to those who wait for them; false if there were none.
    fn deliver(&mut self) -> bool {
        let mut any = false;
        let port = self.parts.pages.port;
        while let Some(event) = self.parts.pages.ftl.poll_event(port) {
            let pages = &mut self.parts.pages;
            any = true;
            match event {
                FtlEvent::Page { token, result } => match pages.take(token) {
                    Waiting::Page(wanted, recalled) => {
                        if let Some((ticket, page)) = pages.came(wanted, recalled, result) {
                            self.net.page(pages, ticket, page);
                        }
                    }
                    Waiting::Ahead => {
                        drop(result);
                        pages.came_ahead();
                    }
                    Waiting::Job(job, n) => {
                        job.answer(n, result);
                        if one_by_one(job.intent) {
                            self.ask(&job, n + 1);
                        }
                    }
                    Waiting::Read(reader) => reader.0(result),
                    other => unreachable!("{other:?} does not wait for a page"),
                },
                FtlEvent::Durable { token, result } => match pages.take(token) {
                    Waiting::Sync(sync) => {
                        let result = result.map_err(|_| PageError::Media);
                        if let Some(wait) = pages.sync_done(sync, result) {
                            self.net.durable(pages, wait.ticket, wait.result);
                        }
                    }
                    Waiting::Durable(waiter) => {
                        let _ = waiter.send(result.map_err(|e| durable_error(&e)));
                    }
                    Waiting::Resize(waiter) => {
                        let _ = waiter.send(result.map_err(|_| GrowError::Failed));
                    }
                    Waiting::Close(waiter) => {
                        let _ = waiter.send(result);
                    }
                    other => unreachable!("{other:?} does not wait for durability"),
                },
            }
        }
        any
    }

    /// Asks for the pages of a job from the one numbered `from` on.
    fn ask(&mut self, job: &Arc<PagesJob>, from: usize) {
        let pages = &mut self.parts.pages;
        for (n, &lba) in job.lbas.iter().enumerate().skip(from) {
            let token = pages.wait(Waiting::Job(Arc::clone(job), n));
            match pages.ftl.get(pages.port, lba, job.intent, token) {
                ftl::Get::Ready(page) => {
                    pages.take(token);
                    job.answer(n, Ok(page));
                }
                // The rest when it has come.
                ftl::Get::Pending if one_by_one(job.intent) => return,
                ftl::Get::Pending => {}
                ftl::Get::Failed(error) => {
                    pages.take(token);
                    job.answer(n, Err(error));
                }
            }
        }
    }

    /// Gets a page for somebody who reads it.
    fn read(&mut self, lba: Lba, reader: Reader) {
        let pages = &mut self.parts.pages;
        let token = pages.wait(Waiting::Read(reader));
        let result = match pages.ftl.get(pages.port, lba, Intent::Read, token) {
            ftl::Get::Ready(page) => Ok(page),
            ftl::Get::Failed(error) => Err(error),
            ftl::Get::Pending => return,
        };
        if let Waiting::Read(reader) = pages.take(token) {
            reader.0(result);
        }
    }

    fn take_jobs(&mut self, now: Time) {
        self.parts.inbox.drain(&mut self.jobs);
        while let Some(job) = self.jobs.pop_front() {
            let pages = &mut self.parts.pages;
            match job {
                Job::Pages(job) => self.ask(&job, 0),
                Job::Read(lba, reader) => self.read(lba, reader),
                Job::Sync(range, waiter) => {
                    let token = pages.wait(Waiting::Durable(waiter));
                    pages.ftl.sync(pages.port, range, token);
                }
                Job::Load(range, waiter) => {
                    let token = pages.wait(Waiting::Durable(waiter));
                    pages.ftl.load(pages.port, range, token);
                }
                Job::Resize(grains, waiter) => {
                    let token = pages.wait(Waiting::Resize(waiter.clone()));
                    if let Err(error) = pages.ftl.resize(pages.port, grains, token) {
                        pages.take(token);
                        let _ = waiter.send(Err(error.into()));
                    }
                }
                Job::Commit(batch, waiter) => {
                    let token = pages.wait(Waiting::Durable(waiter.clone()));
                    if let Err(error) = pages.ftl.commit(pages.port, batch, token) {
                        pages.take(token);
                        let _ = waiter.send(Err(commit_error(error)));
                    }
                }
                Job::CommitSnapshot(batch, change, waiter) => {
                    let token = pages.wait(Waiting::Durable(waiter.clone()));
                    let (ftl, port) = (&pages.ftl, pages.port);
                    if let Err(error) = ftl.commit_snapshot(port, batch, change, token) {
                        pages.take(token);
                        let _ = waiter.send(Err(commit_error(error)));
                    }
                }
                Job::AdmitImages(waiter) => {
                    let token = pages.wait(Waiting::Durable(waiter));
                    pages.ftl.admit_images(pages.port, token);
                }
                Job::CommitRelaxed(batch, waiter) => {
                    let token = pages.wait(Waiting::Durable(waiter.clone()));
                    if let Err(error) = pages.ftl.commit_relaxed(pages.port, batch, token) {
                        pages.take(token);
                        let _ = waiter.send(Err(commit_error(error)));
                    }
                }
                Job::Media(port, action) => self.start_media(0, port, action),
                Job::Listen(socket) => {
                    self.net.ring.accept(socket.as_raw_fd(), 0);
                    self.listener = Some(socket);
                }
                Job::Adopt(socket, tls) => self.adopt(now, socket, tls),
                Job::Reply(tag, bytes) => self.reply(tag, bytes),
                // Jobs are taken between two steps of connections: whatever was under way when this was sent is over.
                Job::Barrier(waiter) => {
                    let _ = waiter.send(());
                }
                Job::Drain { of, renew, done } => {
                    if renew {
                        self.net.renew_pages(pages, |backing| of.has(backing));
                    }
                    pages.drain(of, done);
                }
                Job::Settled(of) => {
                    for (ticket, page) in pages.settled(&of) {
                        self.net.page(pages, ticket, page);
                    }
                }
                Job::Recalled(wanted, recalled) => {
                    if let Some((ticket, page)) = pages.recalled(wanted, recalled) {
                        self.net.page(pages, ticket, page);
                    }
                }
                Job::Unprivileged(wanted, is_done) => {
                    if let Some((ticket, page)) = pages.unprivileged(wanted, is_done) {
                        self.net.page(pages, ticket, page);
                    }
                }
                Job::Told(ticket) => self.net.put(pages, ticket),
                // Its end is heard of in the round of connections that follows.
                Job::Fence(tag) => {
                    if let Some(connection) = self.net.connection(tag) {
                        connection.abort();
                    }
                }
                Job::Admit(tag) => {
                    if let Some(connection) = self.net.connection(tag) {
                        reception::accept(connection);
                    }
                }
                Job::HangUp(drain, asked_by) => self.start_hanging_up(drain, asked_by),
                Job::Close(waiter) => {
                    let token = pages.wait(Waiting::Close(waiter));
                    pages.ftl.shutdown(pages.port, token);
                }
                Job::End => self.ending = true,
            }
        }
    }

    /// Hands what the engine wants to the ring; true if something was over at once.
    fn submit_media(&mut self, now: Time) -> bool {
        let mut over = false;
        let port = self.parts.pages.port;
        while self.media.len() < MEDIA_IN_FLIGHT_MAX
            && let Some(action) = self.parts.pages.ftl.poll_action(port)
        {
            match &mut self.splitter {
                None => self.start_media(0, port, action),
                Some(splitter) => {
                    splitter.split(action);
                    over |= self.turn_splitter(now);
                }
            }
        }
        while self.media.len() < MEDIA_IN_FLIGHT_MAX
            && let Some((port, action)) = self.parts.lanes.as_ref().and_then(|l| l.left_action())
        {
            self.start_media(0, port, action);
        }
        over
    }

    /// Starts the parts of actions that are to be started, and reports actions that are over; whether there were any.
    fn turn_splitter(&mut self, now: Time) -> bool {
        let mut over = false;
        while let Some(part) = self.splitter.as_mut().and_then(Splitter::next_part) {
            let id = ActionId(part.id.0);
            let port = self.parts.pages.port;
            self.start_media(part.device, port, Action { id, op: part.op });
        }
        while let Some((id, result)) = self.splitter.as_mut().and_then(Splitter::next_done) {
            self.media_done(now, self.parts.pages.port, id, result);
            over = true;
        }
        over
    }

    fn start_media(&mut self, device: usize, port: Port, action: Action) {
        let entry = self.media.vacant_entry();
        let id = entry.key() as u32;
        let fd = self.parts.media.fd(device);
        let ring = &mut self.net.ring;
        match &action.op {
            // SAFETY: the engine leaves the buffer alone until the action is done, and `media` keeps the action
            // until its completion arrives.
            MediaOp::Read { offset, buf } => unsafe {
                ring.read(fd, *offset, buf.as_ptr(), buf.len() as u32, id);
            },
            MediaOp::Write {
                offset,
                buf,
                durable,
            } => {
                let (ptr, len) = (buf.as_ptr(), buf.len() as u32);
                // SAFETY: as above.
                unsafe { ring.write(fd, *offset, ptr, len, *durable, id) };
            }
            MediaOp::Flush => ring.flush(fd, id),
            MediaOp::Discard { offset, len } => ring.discard(fd, *offset, *len, id),
        }
        entry.insert((port, action));
    }

    fn completed(&mut self, now: Time, done: Done) -> io::Result<()> {
        match done.tag {
            Tag::Recv(_) | Tag::Send(_) => {
                if let Tag::Recv(_) = done.tag {
                    self.heard = now;
                    self.news(now);
                }
                self.net.handle(now, &mut self.parts.pages, done);
            }
            Tag::Device(id) => {
                self.news(now);
                self.finished.push_back((id, done.result));
            }
            Tag::Wake => {
                self.parts.inbox.waker().acknowledge();
                if !done.more {
                    self.net.ring.poll_wake(self.parts.inbox.waker().fd());
                }
            }
            Tag::Accept(_) => self.accepted(now, done),
            Tag::Cancel => {}
        }
        Ok(())
    }

    /// Answers a media operation that is over.
    fn answer_media(&mut self, now: Time, id: u32, result: i32) {
        let (port, action) = self.media.remove(id as usize);
        let result = media_result(&action, result);
        match &mut self.splitter {
            None => self.media_done(now, port, action.id, result),
            Some(splitter) => {
                splitter.part_done(PartId(action.id.0), result);
                self.turn_splitter(now);
            }
        }
    }

    fn media_done(&mut self, now: Time, port: Port, id: ActionId, result: Result<(), MediaError>) {
        match &result {
            // The loss of a device has been told, once.
            Err(error @ MediaError::Gone) if self.splitter.is_some() => {
                debug!(%error, "an operation on a device that is lost");
            }
            Err(error) => warn!(%error, "the device failed an operation"),
            Ok(()) => {}
        }
        let pages = &mut self.parts.pages;
        pages.ftl.handle_done(port, ftl::Time(now.0), id, result);
        if port != pages.port
            && let Some(lanes) = &self.parts.lanes
        {
            lanes.stirred(port);
        }
    }

    fn accepted(&mut self, now: Time, done: Done) {
        if done.result >= 0 {
            self.accept_trouble = false;
            // SAFETY: the kernel just made this descriptor for us, and nobody else has it.
            let socket = unsafe { Socket::from_raw_fd(done.result) };
            let target = self.next % self.parts.peers.len();
            self.next += 1;
            if target == self.parts.index {
                self.adopt(now, socket, None);
            } else if self.is_crowded() {
                self.tell_of_refused(&socket, BEHIND);
            } else {
                let _ = self.parts.peers[target].push(Job::Adopt(socket, None));
            }
        } else if self.hanging_up.is_none() && !std::mem::replace(&mut self.accept_trouble, true) {
            let error = io::Error::from_raw_os_error(-done.result);
            warn!(%error, "cannot accept connections at the moment");
        }
        if !done.more {
            // Out of descriptors, most likely: trying again at once would keep the processor busy with failing.
            let pause = if self.accept_trouble {
                ACCEPT_PAUSE
            } else {
                Duration::ZERO
            };
            self.accept_at = Some(now + pause);
        }
    }

    /// Goes on accepting, if that has ended and its pause is over.
    fn accept_again(&mut self, now: Time) {
        if self.accept_at.is_some_and(|at| at <= now) {
            self.accept_at = None;
            if let Some(listener) = &self.listener {
                self.net.ring.accept(listener.as_raw_fd(), 0);
            }
        }
    }

    /// Whether connections have given reason for so many messages to reactors or control threads that there should not be more of
    /// them.
    fn is_crowded(&self) -> bool {
        self.parts.reception.control.is_crowded()
            || self.parts.peers.iter().any(|inbox| inbox.is_crowded())
    }

    fn adopt(&mut self, now: Time, socket: Socket, tls: Option<Box<Records>>) {
        if self.hanging_up.is_some() {
            return;
        }
        if self.is_crowded() {
            return self.tell_of_refused(&socket, BEHIND);
        }
        let peer = socket.peer_addr().ok().and_then(|a| a.as_socket());
        let before = self.parts.connections.fetch_add(1, Ordering::Relaxed);
        if before >= self.parts.reception.connections_max && !self.send_one_away(now) {
            self.parts.connections.fetch_sub(1, Ordering::Relaxed);
            return self.tell_of_refused(&socket, "too many");
        }
        if let Err(error) = tune(&socket) {
            debug!(%error, ?peer, "socket options");
        }
        let mut config = self.parts.config.clone();
        config.inbound_buffer_max = inbound_buffer(before);
        // TLS has better checksums; who asks gets both.
        config.crc &= tls.is_none();
        let table = &self.parts.table;
        let mss = socket.tcp_mss().unwrap_or(1448).min(u32::from(u16::MAX)) as u16;
        let added = self.net.add_over(socket, tls, |tag| {
            let config = Config {
                tag: tag.0,
                ulpdu_foreign: mulpdu(mss, false),
                ..config
            };
            Connection::responder(config, table, now)
        });
        match added {
            Some(tag) => {
                debug!(?peer, ?tag, "connected");
                self.silent.push_back((tag, now));
                self.forget_those_who_spoke();
            }
            None => {
                self.parts.connections.fetch_sub(1, Ordering::Relaxed);
                warn!(?peer, "connection refused: no slot is free");
            }
        }
    }

    /// Tells people of a connection that is not adopted, if they have not just been told of another: strangers come in numbers.
    fn tell_of_refused(&self, socket: &Socket, why: &str) {
        let peer = socket.peer_addr().ok().and_then(|a| a.as_socket());
        if self.parts.reception.is_news() {
            let max = self.parts.reception.connections_max;
            warn!(?peer, max, "connection refused: {why}");
        } else {
            debug!(?peer, "connection refused: {why}");
        }
    }

    /// Makes room for a peer that comes by sending away the one that has been silent for longest, if one has for [`GRACE`]: who
    /// connects and says nothing keeps others out for no longer.
    fn send_one_away(&mut self, now: Time) -> bool {
        self.forget_those_who_spoke();
        let has_had_its_time = |&mut (_, since): &mut (LinkTag, Time)| since + GRACE <= now;
        let Some((tag, _)) = self.silent.pop_front_if(has_had_its_time) else {
            return false;
        };
        let peer = self.net.peer(tag);
        debug!(?peer, ?tag, "sent away: silent, and others come");
        self.net.connection(tag).map(Connection::abort).is_some()
    }

    fn forget_those_who_spoke(&mut self) {
        let net = &mut self.net;
        let mut is_silent = |tag| net.connection(tag).is_some_and(|c| c.awaits_request());
        while self.silent.front().is_some_and(|&(tag, _)| !is_silent(tag)) {
            self.silent.pop_front();
        }
        // Behind one that is silent there may be many that have come and gone.
        if self.silent.len() > 2 * self.parts.reception.connections_max {
            self.silent.retain(|&(tag, _)| is_silent(tag));
        }
    }

    fn reply(&mut self, tag: LinkTag, bytes: Vec<u8>) {
        if let Some(connection) = self.net.connection(tag) {
            reception::reply(connection, bytes);
        }
    }

    fn start_hanging_up(&mut self, drain: Duration, asked_by: Waiter<()>) {
        if self.hanging_up.is_some() {
            return;
        }
        self.hanging_up = Some(HangUp {
            since: Instant::now(),
            drain,
            asked_by: Some(asked_by),
        });
        if self.listener.is_some() {
            self.net.ring.cancel(Tag::Accept(0));
            self.listener = None;
        }
        for tag in self.net.tags() {
            if let Some(connection) = self.net.connection(tag) {
                connection.disconnect();
            }
        }
    }

    /// Goes on ending the connections, if that is asked for, and tells when it is over.
    ///
    /// The control threads end when all reactors have hung up. What they are in the middle of may wait for room or for a
    /// page, which it is the reactors' work to make, so these stay until they are told to end.
    fn hang_up(&mut self) {
        let Some(hanging_up) = self.hanging_up.as_mut().filter(|h| h.asked_by.is_some()) else {
            return;
        };
        let elapsed = hanging_up.since.elapsed();
        // Also if this is the first look for long: when it is told that this is over, nobody may be acknowledged anything any more.
        if elapsed > hanging_up.drain {
            for tag in self.net.tags() {
                if let Some(connection) = self.net.connection(tag) {
                    connection.abort();
                }
            }
        }
        if self.net.is_empty() || elapsed > 2 * hanging_up.drain {
            self.parts.reception.control.hang_up();
            hanging_up.asked_by = None;
        }
    }

    /// How long nothing will happen unless a completion arrives.
    fn sleep_time(&mut self) -> Option<Duration> {
        if self.parts.index == 0 && self.parts.pages.ftl.has_write_out_due() {
            return Some(Duration::ZERO);
        }
        let now = self.now().0;
        let flash = self.parts.pages.ftl.poll_timeout().map(|t| t.0);
        let links = self.net.next_timeout().map(|t| t.0);
        let stop = self.hanging_up.as_ref();
        let stop = stop.map(|_| now + STOP_LOOK.as_nanos() as u64);
        let accept = self.accept_at.map(|t| t.0);
        let due = [flash, links, stop, accept].into_iter().flatten().min()?;
        Some(Duration::from_nanos(due.saturating_sub(now)))
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.parts.inbox.close();
        info!(
            reactor = self.parts.index,
            system_calls = self.net.ring.system_calls(),
            "reactor ended"
        );
    }
}

/// What one more connection beside so many others may have of the memory for what peers send before it can be taken: as much as
/// is of use, while there are few. So the largest of those that are there has no more than all of it, the second largest no more
/// than half, and so on, whoever comes and goes.
fn inbound_buffer(others: usize) -> usize {
    (INBOUND_BYTES / (others + 1)).min(Config::default().inbound_buffer_max)
}

/// Small answers leave at once, and a peer that has vanished is noticed within a minute.
fn tune(socket: &Socket) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(30))
        .with_interval(Duration::from_secs(10))
        .with_retries(3);
    socket.set_tcp_keepalive(&keepalive)?;
    // For bytes that are never acknowledged, which keepalive does not watch.
    socket.set_tcp_user_timeout(Some(Duration::from_secs(60)))
}

/// What the engine is told of the result of a system call.
pub(super) fn media_result(action: &Action, result: i32) -> Result<(), MediaError> {
    let want = match &action.op {
        MediaOp::Read { buf, .. } | MediaOp::Write { buf, .. } => buf.len(),
        MediaOp::Flush => 0,
        // Advice: a device that cannot discard has not failed.
        MediaOp::Discard { .. } => return Ok(()),
    };
    match usize::try_from(result) {
        Ok(n) if n == want => Ok(()),
        Ok(_) => Err(MediaError::Short),
        Err(_) => Err(MediaError::from_errno(-result)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// I16: few connections have all that is of use, and of any number of them none has more than its part.
    #[test]
    fn inbound_buffers_are_shares() {
        let most = Config::default().inbound_buffer_max;
        assert!((0..256).all(|others| inbound_buffer(others) == most));
        assert!((0..16_384).all(|others| inbound_buffer(others) * (others + 1) <= INBOUND_BYTES));
    }
}
