//! Lanes: threads that wait for the volume carry out the media operations of their request themselves.
//!
//! A thread of the mount has nothing to do while it waits for a page or for durability. Handing the request to the reactor
//! and waking up again would cost it two switches of thread beside the system call; on its own port of the engine (a lane)
//! it makes the system call itself. The reactor keeps what no request waits for: what a request merely sets going (writing
//! out, collection) goes to it, and what appears on the port of a lane while nobody drives that.
//!
//! ```text
//!   thread ── get / sync / commit ──► port of its lane ──► actions ──► its own: preadv, pwritev2 ──► done, event
//!                                                             └──────► everybody else's: Job::Media ──► reactor's ring
//! ```
//!
//! # Invariants
//! - L1. A lane has one thread at a time, from [`Lanes::enter`] until its [`Driver`] is dropped.
//! - L2. An action that appears on the port of a lane is taken by its thread as long as it drives, else by the reactor: the
//!   waker asks which, after the action was queued; the thread looks once more after it has said that it ends
//!   ([`Handshake`]).
//! - L3. A driver leaves when every event it asked for has come, so the port of a free lane has no events to come.
//! - L4. Whoever asks the engine for actions does what was left to be done on the port, and hears of the answers by looking for them:
//!   the engine wakes nobody. So the reactor, which may have asked in place of a thread that has just come, calls that.
//!
//! Who syncs need not even wait: [`Lanes::sync_then`], on a port that all threads share ([`Together`]).

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use contigfs::{StoreError, SyncDone};
use ftl::{
    Action, CommitError, Event, Ftl, Get, GetError, Intent, Lba, LbaRange, MediaOp, PageRef, Port,
    Time, Token,
};

use super::core::media_result;
use super::direct::{self, runs};
use super::handshake::Handshake;
use super::job::Job;
use super::status::MediaMeters;
use super::store::{commit_error, durable_error};
use super::together::Together;
use crate::reactor::Inbox;

/// Runs of reads that a thread carries out one after the other; more are quicker side by side, in the ring.
const RUNS_MAX: usize = 2;

/// All lanes of a target.
#[derive(Debug)]
pub(super) struct Lanes {
    ftl: Arc<Ftl>,
    /// The only device of the volume.
    fd: RawFd,
    meters: MediaMeters,
    inbox: Arc<Inbox<Job>>,
    epoch: Instant,
    lanes: Vec<Arc<Lane>>,
    free: Mutex<Vec<usize>>,
    together: Arc<Together>,
    /// Threads that wait for pages.
    asleep: AtomicUsize,
}

/// One lane.
#[derive(Debug)]
struct Lane {
    port: Port,
    handshake: Handshake,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Lanes {
    /// Ports that so many lanes take.
    pub(super) const fn ports(count: usize) -> usize {
        count + 1
    }

    /// So many lanes on the ports behind the `reactors` of the volume; `inbox` is that of the reactor that helps.
    pub(super) fn new(
        ftl: &Arc<Ftl>,
        (fd, meters): (RawFd, &MediaMeters),
        inbox: &Arc<Inbox<Job>>,
        epoch: Instant,
        (reactors, count): (usize, usize),
    ) -> Arc<Self> {
        let port = |index| Port((reactors + index) as u16);
        let lane = |index| {
            let lane = Arc::new(Lane {
                port: port(index),
                handshake: Handshake::new(),
            });
            let (woken, waker) = (Arc::clone(&lane), inbox.waker().clone());
            let wake = move || {
                if woken.handshake.appeared() {
                    waker.wake();
                }
            };
            ftl.set_waker(lane.port, Box::new(wake));
            lane
        };
        let together = Arc::new(Together::new(port(count)));
        let (woken, waker) = (Arc::clone(&together), inbox.waker().clone());
        let wake = move || {
            if woken.handshake.appeared() {
                waker.wake();
            }
        };
        ftl.set_waker(together.port, Box::new(wake));
        Arc::new(Self {
            ftl: Arc::clone(ftl),
            fd,
            meters: meters.clone(),
            inbox: Arc::clone(inbox),
            epoch,
            lanes: (0..count).map(lane).collect(),
            free: Mutex::new((0..count).collect()),
            together,
            asleep: AtomicUsize::new(0),
        })
    }

    /// Makes a range durable; `done` is told by whichever thread hears of it.
    pub(super) fn sync_then(&self, range: LbaRange, done: SyncDone) {
        let Together {
            port, handshake, ..
        } = &*self.together;
        let token = self.together.expect(done);
        handshake.enter();
        self.ftl.sync(*port, range, token);
        loop {
            while self.work_together() {}
            handshake.leave();
            if !self.work_together() {
                return;
            }
            handshake.enter();
        }
    }

    /// Carries out the next thing to be done on the port of syncs that nobody waits for, and gives the answers that have come.
    /// False if there was nothing.
    fn work_together(&self) -> bool {
        let port = self.together.port;
        let answered = self.together.answer(&self.ftl);
        let Some(action) = self.ftl.poll_action(port) else {
            // Asking may bring forth answers.
            return self.together.answer(&self.ftl) || answered;
        };
        match is_for_durability(&action) {
            true => self.carry_out(port, action),
            false => self.hand_over(port, action),
        }
        true
    }

    /// How many threads wait for pages.
    pub(super) fn asleep(&self) -> usize {
        self.asleep.load(Ordering::Relaxed)
    }

    /// A lane for the calling thread, if one is free.
    pub(super) fn enter(&self) -> Option<Driver<'_>> {
        let index = lock(&self.free).pop()?;
        let lane = &self.lanes[index];
        lane.handshake.enter();
        Some(Driver {
            lanes: self,
            lane,
            index,
        })
    }

    /// The next action that appeared on a port of ours while nobody drove it; for the reactor. Answers that nobody waits for
    /// are given on the way.
    pub(super) fn left_action(&self) -> Option<(Port, Action)> {
        let left = |port, handshake: &Handshake| {
            let action = self.ftl.poll_action(port)?;
            handshake.found();
            Some((port, action))
        };
        let Together {
            port, handshake, ..
        } = &*self.together;
        if handshake.take_left() {
            let found = left(*port, handshake);
            self.together.answer(&self.ftl);
            if found.is_some() {
                return found;
            }
        }
        self.lanes.iter().find_map(|lane| {
            if !lane.handshake.take_left() {
                return None;
            }
            let found = left(lane.port, &lane.handshake);
            lane.handshake.looked();
            found
        })
    }

    /// Carries out everything that is left on the ports of lanes. For the end, when neither lanes nor reactors run.
    pub(super) fn settle(&self) {
        let mut quiet = false;
        while !quiet {
            quiet = true;
            let of_lanes = self.lanes.iter().map(|lane| lane.port);
            for port in of_lanes.chain([self.together.port]) {
                while let Some(action) = self.ftl.poll_action(port) {
                    self.carry_out(port, action);
                    quiet = false;
                }
            }
            self.together.answer(&self.ftl);
        }
    }

    fn carry_out(&self, port: Port, action: Action) {
        let result = direct::carry_out(&action, self.fd, &self.meters);
        self.all_done(port, vec![(action, result)]);
    }

    /// Gives an action to the reactor.
    fn hand_over(&self, port: Port, action: Action) {
        let refused = self.inbox.send(Job::Media(port, action));
        // A reactor that has ended leaves everything to those who are still here.
        if let Err(Job::Media(_, action)) = refused {
            self.carry_out(port, action);
        }
    }

    fn all_done(&self, port: Port, done: Vec<(Action, i32)>) {
        let now = Time(self.epoch.elapsed().as_nanos() as u64);
        let ended = done.iter().map(|(action, result)| {
            let result = media_result(action, *result);
            if let Err(error) = &result {
                tracing::warn!(%error, "the device failed an operation");
            }
            (action.id, result)
        });
        self.ftl.handle_done_all(port, now, ended);
    }

    /// The reactor has reported something done on the port of a lane.
    pub(super) fn stirred(&self, port: Port) {
        if port == self.together.port {
            self.together.handshake.stirred();
        } else if let Some(lane) = self.lanes.iter().find(|lane| lane.port == port) {
            lane.handshake.stirred();
        }
    }
}

/// Whether an action is one that somebody who wants to have something durable waits for, most likely.
fn is_for_durability(action: &Action) -> bool {
    matches!(
        action.op,
        MediaOp::Write { durable: true, .. } | MediaOp::Flush
    )
}

/// A thread on its lane.
#[derive(Debug)]
pub(super) struct Driver<'a> {
    lanes: &'a Lanes,
    lane: &'a Lane,
    index: usize,
}

impl Driver<'_> {
    /// Gets the pages of `lbas`, which ascend, all with the same intent.
    pub(super) fn pages(&self, lbas: &[Lba], intent: Intent) -> Vec<Result<PageRef, GetError>> {
        let mut pages = Vec::with_capacity(lbas.len());
        self.lanes.asleep.fetch_add(1, Ordering::Relaxed);
        // Of pages to be overwritten no more are asked for than there are until one must be waited for.
        while pages.len() < lbas.len() {
            let before = pages.len();
            let token = |n| Token((before + n) as u64);
            let (ftl, port) = (&self.lanes.ftl, self.lane.port);
            let got = ftl.get_all(port, &lbas[before..], intent, token);
            pages.extend(got.into_iter().map(|got| match got {
                Get::Ready(page) => Some(Ok(page)),
                Get::Failed(error) => Some(Err(error)),
                Get::Pending => None,
            }));
            let pending = pages[before..].iter().filter(|page| page.is_none());
            let pending = pending.count();
            self.await_pages(&mut pages, pending);
        }
        self.lanes.asleep.fetch_sub(1, Ordering::Relaxed);
        pages.into_iter().flatten().collect()
    }

    fn await_pages(&self, pages: &mut [Option<Result<PageRef, GetError>>], pending: usize) {
        self.drive(pending, |event| match event {
            Event::Page { token, result } => pages[token.0 as usize] = Some(result),
            other => unreachable!("{other:?} was not asked for"),
        });
    }

    /// Starts something that ends with durability, and waits for it.
    pub(super) fn durable(
        &self,
        start: impl FnOnce(&Ftl, Port, Token) -> Result<(), CommitError>,
    ) -> Result<(), StoreError> {
        start(&self.lanes.ftl, self.lane.port, Token(0)).map_err(commit_error)?;
        let mut answer = Err(StoreError::Failed);
        self.drive(1, |event| match event {
            Event::Durable { result, .. } => answer = result.map_err(|e| durable_error(&e)),
            other @ Event::Page { .. } => unreachable!("{other:?} was not asked for"),
        });
        answer
    }

    /// Carries out what appears on the port until `pending` events have come.
    fn drive(&self, mut pending: usize, mut on_event: impl FnMut(Event)) {
        let Lanes {
            ftl, fd, meters, ..
        } = self.lanes;
        let port = self.lane.port;
        loop {
            let mut reads = Vec::new();
            let mut own = None;
            // Asking for actions may bring forth answers, so these are looked at behind.
            while let Some(action) = ftl.poll_action(port) {
                match &action.op {
                    _ if pending == 0 => self.hand_over(action),
                    MediaOp::Read { .. } => reads.push(action),
                    _ if own.is_none() && is_for_durability(&action) => own = Some(action),
                    _ => self.hand_over(action),
                }
            }
            while let Some(event) = ftl.poll_event(port) {
                on_event(event);
                pending -= 1;
            }
            if pending == 0 {
                reads.into_iter().chain(own).for_each(|a| self.hand_over(a));
                return;
            }
            if reads.is_empty() && own.is_none() {
                self.lane.handshake.wait();
                continue;
            }
            let mut reads = runs(reads);
            if reads.len() > RUNS_MAX {
                for run in reads.drain(1..) {
                    run.into_actions()
                        .into_iter()
                        .for_each(|a| self.hand_over(a));
                }
            }
            for run in reads {
                self.lanes.all_done(port, run.carry_out(*fd, meters));
            }
            if let Some(action) = own {
                self.lanes.carry_out(port, action);
            }
        }
    }

    fn hand_over(&self, action: Action) {
        self.lanes.hand_over(self.lane.port, action);
    }
}

impl Drop for Driver<'_> {
    fn drop(&mut self) {
        self.lane.handshake.leave();
        while let Some(action) = self.lanes.ftl.poll_action(self.lane.port) {
            self.hand_over(action);
        }
        lock(&self.lanes.free).push(self.index);
    }
}
