//! A program's end of a group: the replicated log, locks and reads, over changes of epochs.
//!
//! ```no_run
//! use std::time::Duration;
//! use offload_chain::client::{Client, ClientSettings};
//! use offload_chain::config::FileStore;
//! use offload_chain::lock::LockId;
//! use offload_chain::log::Entry;
//!
//! let store = FileStore::open("/run/group.store".as_ref())?;
//! let mut client = Client::connect(Box::new(store), ClientSettings::default())?;
//! client.lock(LockId::LOG, Duration::from_secs(10))?;
//! // On media of every member when it returns.
//! client.append(vec![Entry { offset: 0, bytes: b"first".to_vec() }])?;
//! client.unlock(LockId::LOG)?;
//! client.leave();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! When the group's epoch changes, because a member died, joined or was cut off, the calls go on: the client waits for the new
//! epoch, sees which of its locks it still has and how far the log was carried out, and appends again what did not happen. So a record takes
//! effect once, or the client learns that it lost the log's lock ([`ClientError::Lost`]) and does not know.
//!
//! # Invariants
//! - Records take effect in the order in which they were handed over, each once; acknowledged ones are in the log of every later epoch.
//! - Nothing is posted in an epoch before all locks that the client believes to have were found in it.
//!
//! # Failure
//! [`ClientError::Fenced`] and [`ClientError::Lost`] say that the client was taken for dead: its locks are others', and what it had not
//! heard of is unknown to it. Make another.

mod epoch;
mod error;
mod flights;
mod image;
mod locks;
mod reads;
mod records;
mod session;

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use crate::clock::until;
use crate::config::Store;
use crate::group::{Flight, Outcome, PrimitiveError, Primitives, Topology};
use crate::host::Timing;
use crate::lock::{LockEvent, LockId, Locks, SLOTS_MAX, Slot};
use crate::log::{Layout, Log, LogEvent, Preset};
use crate::membership::Configuration;
use crate::tls::GroupTls;

use epoch::{Attempt, Group};
pub use error::ClientError;
use records::Waiting;
use session::{News, SessionThread};

/// How a client is to be.
#[derive(Clone, Debug)]
pub struct ClientSettings {
    /// Its slot; none: the first that is free.
    pub slot: Option<u32>,
    /// What it pays for.
    pub preset: Preset,
    /// When.
    pub timing: Timing,
    /// How long a group may take to be there, at the beginning and after each change.
    pub timeout: Duration,
    /// How long it looks without sleeping after each message.
    pub spin: Duration,
    /// How members are called; none: plainly.
    pub tls: Option<GroupTls>,
}

impl Default for ClientSettings {
    fn default() -> Self {
        Self {
            slot: None,
            preset: Preset::STRICT,
            timing: Timing::default(),
            timeout: Duration::from_secs(30),
            spin: Duration::ZERO,
            tls: None,
        }
    }
}

/// Names a record that was handed over; they count from 1.
pub type Submitted = u64;

/// A client.
#[derive(Debug)]
pub struct Client {
    settings: ClientSettings,
    slot: Slot,
    session: Option<SessionThread>,
    layout: Layout,
    topology: Topology,
    config: Configuration,
    group: Option<Group>,
    /// To be connected in, when there is no group.
    attempt: Option<Attempt>,
    /// Attempts that came to nothing since it was connected last, in whichever epochs.
    tries: u32,
    locks: Locks,
    /// What it believes to have.
    held: BTreeSet<LockId>,
    /// Locks to be given back when the group takes more.
    unwanted: BTreeSet<LockId>,
    /// What a call is about, and what it has not heard of that lock.
    wanted: Option<LockId>,
    lock_events: VecDeque<LockEvent>,
    log: Option<Log>,
    pending: Waiting,
    /// Records handed over, and those that are acknowledged.
    submitted: u64,
    acknowledged: u64,
    /// Number in the log of the last one that is.
    last_sequence: u64,
    epochs: u64,
    ended: Option<ClientError>,
}

impl Client {
    /// Takes a slot, and connects to the group when it is active.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn connect(
        store: Box<dyn Store + Send>,
        settings: ClientSettings,
    ) -> Result<Self, ClientError> {
        let deadline = until(settings.timeout);
        let mut store = store;
        let mut number = settings.slot.unwrap_or(0);
        loop {
            let slot = Slot::new(number).ok_or(ClientError::NoSlot)?;
            let session = SessionThread::start(store, slot, settings.timing, settings.tls.clone())?;
            let wait = deadline.saturating_duration_since(Instant::now());
            match session.hear(wait) {
                Some(News::Connect(config, places)) => {
                    let layout = config.birth.layout().map_err(ClientError::Layout)?;
                    let mut client = Self {
                        settings,
                        slot,
                        session: Some(session),
                        layout,
                        topology: config.birth.topology,
                        config: *config.clone(),
                        group: None,
                        attempt: None,
                        tries: 0,
                        locks: Locks::new(layout, slot),
                        held: BTreeSet::new(),
                        unwanted: BTreeSet::new(),
                        wanted: None,
                        lock_events: VecDeque::new(),
                        log: None,
                        pending: Waiting::default(),
                        submitted: 0,
                        acknowledged: 0,
                        last_sequence: 0,
                        epochs: 0,
                        ended: None,
                    };
                    client.heard(News::Connect(config, places));
                    return match client.wait_for_group(deadline) {
                        Ok(()) => Ok(client),
                        Err(error) => {
                            client.leave();
                            Err(error)
                        }
                    };
                }
                // Somebody has the slot, or it is not yet taken from somebody who is gone.
                Some(News::Taken | News::Fenced) => {
                    store = session.leave().ok_or(ClientError::NoSlot)?;
                    match settings.slot {
                        Some(_) => std::thread::sleep(settings.timing.period),
                        None => {
                            number = (number + 1) % SLOTS_MAX;
                            if number == 0 {
                                std::thread::sleep(settings.timing.period);
                            }
                        }
                    }
                    if Instant::now() >= deadline {
                        return Err(ClientError::NoSlot);
                    }
                }
                Some(News::Over(_)) => store = session.leave().ok_or(ClientError::NoSlot)?,
                None => {
                    session.leave();
                    return Err(ClientError::TimedOut("the group to be active"));
                }
            }
        }
    }

    /// Where things are in the memory of the members.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The configuration it was last connected in.
    #[must_use]
    pub fn configuration(&self) -> &Configuration {
        &self.config
    }

    /// Its slot.
    #[must_use]
    pub fn slot(&self) -> Slot {
        self.slot
    }

    /// How many epochs it was connected in.
    #[must_use]
    pub fn epochs(&self) -> u64 {
        self.epochs
    }

    /// Records that are in the log of all members, as promised by the preset.
    #[must_use]
    pub fn acknowledged(&self) -> Submitted {
        self.acknowledged
    }

    /// Records handed over and not acknowledged.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.pending.len()
    }

    /// Lets things go on, waiting at most so long for something to happen.
    ///
    /// # Errors
    /// If this client is no more.
    pub fn turn(&mut self, wait: Duration) -> Result<(), ClientError> {
        self.listen(wait);
        self.check()?;
        self.push();
        let Some(group) = &mut self.group else {
            return Ok(());
        };
        let mut broken = group.tcp.turn(wait).is_err();
        while let Some((flight, result)) = self.group.as_mut().and_then(|group| group.tcp.poll()) {
            broken |= matches!(result, Err(PrimitiveError::Broken(_)));
            self.outcome(flight, result);
        }
        self.retry_locks();
        let silence = self.settings.timing.silence();
        let mut stuck = None;
        if let Some(group) = &mut self.group {
            let client = group.tcp.client();
            // With nothing under way no outcome tells.
            broken |= client.broken().is_some();
            let is_stuck = group.flights.is_stuck(client.oldest(), silence);
            stuck = is_stuck.then_some(group.epoch);
        }
        if broken {
            self.lost_group();
        } else if let Some(epoch) = stuck {
            // It stays: what is under way may be answered yet, and while the store is away there is no other epoch to go to.
            self.doubt(epoch);
        }
        self.push();
        Ok(())
    }

    /// Gives an outcome to whom it belongs.
    fn outcome(&mut self, flight: Flight, result: Result<Outcome, PrimitiveError>) {
        let Some(group) = &mut self.group else {
            return;
        };
        group.flights.done(flight);
        if let Some(log) = &mut self.log
            && let Some(event) = log.handle(&mut group.tcp, flight, &result)
        {
            if let LogEvent::Appended(sequence) = event {
                self.pending.pop();
                self.acknowledged += 1;
                self.last_sequence = sequence;
            }
        } else if let Some(event) = self.locks.handle(&mut group.tcp, flight, &result) {
            self.lock_event(event);
        } else {
            group.flights.keep(flight, result);
        }
    }

    /// Hears what the session has to say, waiting for it if there is no group; and tries to connect then. Who had one waits for something in
    /// it, and has to see that it is gone before there is another.
    fn listen(&mut self, wait: Duration) {
        let had_group = self.group.is_some();
        let mut wait = match self.group {
            Some(_) => Duration::ZERO,
            None => self.next_attempt().map_or(wait, |due| wait.min(due)),
        };
        while let Some(news) = self.session.as_ref().and_then(|thread| thread.hear(wait)) {
            self.heard(news);
            wait = Duration::ZERO;
        }
        if !had_group {
            self.try_attempt();
        }
    }

    /// Gives the slot back. What is locked is free after the next change of epochs.
    pub fn leave(mut self) {
        let leaves_nothing = self.settle_locks() && self.pending.is_empty();
        self.group = None;
        if let Some(session) = self.session.take() {
            // Who was kept out from the beginning had nothing, and is missed by nobody: as if it had died it would end the epoch of all others.
            let goes_well = self.ended.as_ref().is_none_or(ClientError::is_kept_out);
            match leaves_nothing && goes_well {
                true => drop(session.leave()),
                // As if it had died: whoever frees its locks has to fence it.
                false => drop(session),
            }
        }
    }

    fn check(&self) -> Result<(), ClientError> {
        match &self.ended {
            Some(why) => Err(why.clone()),
            None => Ok(()),
        }
    }

    fn end(&mut self, why: ClientError) -> ClientError {
        self.leave_epoch();
        self.ended = Some(why.clone());
        why
    }

    /// The group of this epoch does not answer any more. If there is none, it is over already, and the next may be about to be connected in.
    fn lost_group(&mut self) {
        if let Some(group) = self.group.take() {
            self.doubt(group.epoch);
            self.leave_epoch();
        }
    }

    fn doubt(&self, epoch: crate::Epoch) {
        if let Some(session) = &self.session {
            session.broken(epoch);
        }
    }

    fn leave_epoch(&mut self) {
        self.group = None;
        self.attempt = None;
        self.log = None;
        self.lock_events.clear();
    }

    fn heard(&mut self, news: News) {
        match news {
            News::Over(epoch) => {
                if self.config.epoch <= epoch {
                    self.leave_epoch();
                }
            }
            News::Fenced | News::Taken => {
                self.end(ClientError::Fenced);
            }
            News::Connect(config, places) => {
                self.leave_epoch();
                self.config = *config;
                self.attempt = Some(Attempt::new(places, self.slot.number() as u16));
            }
        }
    }

    fn wait_for_group(&mut self, deadline: Instant) -> Result<(), ClientError> {
        self.check()?;
        while self.group.is_none() {
            self.turn(self.settings.timing.period)?;
            if self.group.is_none() && Instant::now() >= deadline {
                return Err(ClientError::TimedOut("the group to be active"));
            }
        }
        Ok(())
    }
}
