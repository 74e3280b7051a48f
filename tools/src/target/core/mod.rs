//! The loop of one reactor thread of the target: connections, media, and what other threads ask for.

mod actions;
mod control;
mod door;

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use contigfs::GrowError;
use ftl::device::array::Splitter;
use ftl::{Event as FtlEvent, Intent, Lba};
use slab::Slab;
use socket2::Socket;
use softrdma::driver::Spin;
use softrdma::{Config, Event, PageError, RegionTable, Time};
use tracing::{info, warn};

use crate::reactor::{Done, Inbox, LinkTag, Net, Notice, Ring, Tag};
use crate::target::job::{Job, PagesJob, Reader, Waiter, one_by_one};
use crate::target::lane::Lanes;
use crate::target::media::Media;
use crate::target::pages::{FlashPages, Waiting};
use crate::target::reception::{self, Reception};
use crate::target::store::{commit_error, durable_error};

use actions::Started;

pub(super) use actions::media_result;
pub(super) use control::{ControlJob, ControlJobs, ControlSenders};

/// Media operations that are answered in one go. The device hands over what it has done all at once, and has nothing to do while
/// all of it is being answered; when it is answered in such lots, who got the first answers asks for more meanwhile.
const LOT: usize = 8;
/// How often a reactor that is to stop looks whether everything has ended.
const STOP_LOOK: Duration = Duration::from_millis(10);
/// Connections that were busy so recently may be again.
const HEARD: Duration = Duration::from_millis(1);
/// Connections of a reactor that were refused and may wait for their peers to close them.
const REFUSED_MAX: usize = 128;

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
    /// Media operations that the kernel holds; keeps their buffers alive. Of an array they are parts of actions.
    media: Slab<Started>,
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
            self.parts.pages.tick(now);
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
        pages.tick(now);
        pages.meters.set_calls(self.net.ring.system_calls());
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
        let meters = Arc::clone(&self.parts.pages.meters);
        let mut sent_away = Vec::new();
        self.net
            .pump(now, &mut self.parts.pages, |tag, connection, notice| {
                let asks = matches!(&notice, Notice::Event(Event::ConnectRequest(_)));
                if let Notice::Event(Event::Closed(reason)) = &notice {
                    match refused.iter().position(|&other| other == tag) {
                        Some(at) => drop(refused.remove(at)),
                        None => {
                            meters.note_end(reason);
                            connections.fetch_sub(1, Ordering::Relaxed);
                        }
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
                Job::Copied(wanted, page) => {
                    let (ticket, page) = pages.copied(wanted, page);
                    self.net.page(pages, ticket, page);
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
