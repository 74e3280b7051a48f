//! A volume on the simulated device, in virtual time, under a random workload that an oracle follows.
//!
//! The world is the driver: it carries actions to the device, completions back, lets time pass, and tells the oracle
//! what took effect and what was acknowledged. Whatever a caller can see is compared on the way.

mod workload;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use ftl::device::sim::{OpKind, SimCounts, SimImage, SimRng};
use ftl::{
    Action, ActionId, AtomicBatch, Device, DurableError, Event, Ftl, GRAIN_BYTES, Get, GetError,
    GrainState, Intent, Lba, LbaRange, MediaError, MediaOp, PageRef, Port, ResizeError, Time,
    Token,
};

use super::memory;
use super::options::Options;
use super::oracle::{Content, Oracle, Promise, Violation};
use super::rig::Rig;

/// Driver rounds without progress after which the engine counts as stuck.
const ROUNDS_MAX: usize = 20_000;

/// A point between two things a driver does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// A write, flush or discard has just been submitted.
    Submitted(OpKind),
    /// Something has just been acknowledged.
    Acknowledged,
}

/// What an observer sees.
pub(crate) struct View<'a> {
    pub(crate) moment: Moment,
    pub(crate) device: &'a Rig,
    pub(crate) oracle: &'a Oracle,
    pub(crate) ftl: &'a Ftl,
}

/// Sees the device and what is promised at every moment; an error ends the run.
pub(crate) type Observer<'a> = dyn FnMut(&View) -> Result<(), Violation> + 'a;

/// An observer that looks away.
pub(crate) fn unobserved(_: &View) -> Result<(), Violation> {
    Ok(())
}

enum Asked {
    /// For the caller of `read_back`.
    Back,
    Read {
        lba: u64,
        since: usize,
    },
    Write {
        lba: u64,
        offset: usize,
        bytes: Vec<u8>,
        durable: bool,
    },
}

pub(crate) struct World {
    pub(crate) device: Rig,
    pub(crate) ftl: Arc<Ftl>,
    pub(crate) oracle: Oracle,
    options: Options,
    universe: Vec<u64>,
    traced: Option<u64>,
    rng: SimRng,
    now: Time,
    next_token: u64,
    /// Answers to come: what they promise, and the grains of commits that may not have taken effect yet.
    promises: HashMap<u64, (Promise, Vec<u64>)>,
    /// Answers to come that promise nothing but to have taken effect.
    relaxed: HashSet<u64>,
    /// What the next sync of anything promises besides.
    unsynced: Promise,
    asked: HashMap<u64, Asked>,
    /// Grains of commits that may not have taken effect yet: the order of changes is open, so they are left alone.
    locked: Counted,
    /// Those of batches that have been answered in this round, and of trims that have taken effect since the last one: whoever
    /// found no space a moment before may hear of it later, on another port.
    unlocked: u64,
    /// Grains with a page asked for in order to change it: not trimmed, not in commits, until it comes.
    writing: Counted,
    held: Vec<PageRef>,
    read_back: Option<Result<Vec<u8>, GetError>>,
    /// The smaller one of two while the volume changes its size, or may have refused something before it has.
    capacity_least: u64,
    /// The last device errors; with faults injected, operations may fail.
    pub(crate) failures: Failures,
    pub(crate) stats: WorldStats,
}

/// Errors that the workload was told of.
#[derive(Clone, Debug, Default)]
pub(crate) struct Failures {
    /// Whether errors are to be expected.
    pub(crate) expected: bool,
    /// Whether the volume may fail: from the first fault on, changes may have been refused without the workload
    /// knowing yet, so readers see any version that is not older than the durable one.
    pub(crate) volume_may_fail: bool,
    pub(crate) gets: u64,
    pub(crate) damaged: u64,
    pub(crate) durables: u64,
    /// Answers that say that something was lost with a device.
    pub(crate) lost: u64,
    pub(crate) volume_failed: bool,
    /// When a device was lost: versions of which nobody had been told that they are durable.
    pub(crate) unvouched: Option<BTreeMap<u64, usize>>,
    /// What was told to be lost.
    pub(crate) told: Vec<Promise>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WorldStats {
    pub(crate) ops: u64,
    pub(crate) acknowledged: u64,
    pub(crate) no_space: u64,
    pub(crate) batches: u64,
    pub(crate) relaxed: u64,
    /// Batches with which something that had been put was to go along, and could.
    pub(crate) along: u64,
    pub(crate) trims: u64,
    pub(crate) remaps: u64,
    pub(crate) clones: u64,
}

fn violation<T>(message: impl Into<String>) -> Result<T, Violation> {
    Err(Violation(message.into()))
}

impl World {
    /// Formats a device and opens it.
    pub(crate) fn create(options: &Options, seed: u64) -> Result<Self, Violation> {
        let mut rng = SimRng::new(seed);
        let sizes = match options.spare {
            0 => options.sizes(),
            _ => vec![options.volume_grains()],
        };
        let mut device = Rig::blank(&sizes, rng.bits());
        let formatted = Ftl::format(&mut device, &options.format());
        formatted
            .map(drop)
            .map_err(|error| Violation(format!("format: {error}")))?;
        if options.spare > 0 {
            let spare = (0..options.spare * GRAIN_BYTES as u64).map(|at| at as u8 | 1);
            let spare = SimImage::from(spare.collect::<Vec<_>>());
            device = options.rig(SimImage::concat([device.image(), spare]), rng.bits())?;
        }
        let content = options
            .universe()
            .into_iter()
            .map(|lba| (lba, Content::Unmapped));
        let oracle = Oracle::new(&content.collect());
        Self::open(device, oracle, options, rng)
    }

    /// Opens what is on a device; the oracle says what that must be.
    pub(crate) fn open(
        mut device: Rig,
        oracle: Oracle,
        options: &Options,
        rng: SimRng,
    ) -> Result<Self, Violation> {
        memory::keep();
        let opened = Ftl::open(&mut device, options.open());
        let (ftl, _report) = opened.map_err(|error| Violation(format!("open: {error}")))?;
        Ok(Self {
            device,
            ftl,
            oracle,
            options: options.clone(),
            universe: options.universe(),
            traced: std::env::var("FLASHNET_TRACE")
                .ok()
                .and_then(|lba| lba.parse().ok()),
            rng,
            now: Time(1),
            next_token: 0,
            promises: HashMap::new(),
            relaxed: HashSet::new(),
            unsynced: Promise::default(),
            asked: HashMap::new(),
            locked: Counted::default(),
            unlocked: 0,
            writing: Counted::default(),
            held: Vec::new(),
            read_back: None,
            capacity_least: u64::MAX,
            failures: Failures::default(),
            stats: WorldStats::default(),
        })
    }

    /// Runs `ops` random operations, with media work and time passing in between.
    pub(crate) fn run(&mut self, ops: usize, observer: &mut Observer) -> Result<(), Violation> {
        for _ in 0..ops {
            if self.promises.len() + self.asked.len() < self.options.outstanding {
                self.issue()?;
                self.stats.ops += 1;
            }
            for _ in 0..self.rng.below(4) {
                let wait = self.rng.one_in(4);
                self.turn(wait, observer)?;
            }
        }
        Ok(())
    }

    /// Drives on until every answer is there.
    pub(crate) fn settle(&mut self, observer: &mut Observer) -> Result<(), Violation> {
        self.held.clear();
        for _ in 0..ROUNDS_MAX {
            if self.promises.is_empty() && self.asked.is_empty() {
                self.capacity_least = u64::MAX;
                return self.compare_space();
            }
            self.turn(true, observer)?;
        }
        violation(format!(
            "I18: {} acknowledgements and {} pages never came; {} operations in flight, {:?}",
            self.promises.len(),
            self.asked.len(),
            self.device.in_flight(),
            self.ftl.stats()
        ))
    }

    /// Drives on until the device has nothing to do, then changes something: who has not heard of a failure does now.
    pub(crate) fn probe(&mut self) -> Result<(), Violation> {
        while self.device.in_flight() > 0 {
            self.turn(true, &mut unobserved)?;
        }
        for _ in 0..10 {
            self.overwrite()?;
        }
        self.sync_all(&mut unobserved)
    }

    /// Makes everything durable.
    pub(crate) fn sync_all(&mut self, observer: &mut Observer) -> Result<(), Violation> {
        self.start_sync(LbaRange::ALL);
        self.settle(observer)
    }

    /// Brings all of the map into memory.
    pub(crate) fn load(&mut self) -> Result<(), Violation> {
        let token = self.promise(Promise::default(), Vec::new());
        self.ftl.load(Port(0), LbaRange::ALL, token);
        self.settle(&mut unobserved)
    }

    /// Carries out a relaxed batch, then lets `ns` pass in which nobody asks for anything; after that it has to be durable.
    pub(crate) fn relaxed(&mut self, batch: AtomicBatch, ns: u64) -> Result<(), Violation> {
        let promise = self.oracle.commit(0, &batch);
        let token = self.promise(Promise::default(), Vec::new());
        let submitted = self.ftl.commit_relaxed(Port(0), batch, token);
        submitted.map_err(|error| Violation(format!("commit refused: {error}")))?;
        let end = self.now.after_ns(ns);
        while self.now < end {
            self.turn(true, &mut unobserved)?;
        }
        self.oracle.acknowledge(&promise);
        Ok(())
    }

    /// Begins to give the volume another size; false if what is on it does not fit.
    pub(crate) fn resize(&mut self, grains: u64) -> Result<bool, Violation> {
        let to = self.ftl.info().geometry.resized(grains);
        let to = to.map_err(|error| Violation(format!("resize: {error}")))?;
        let token = self.promise(Promise::default(), Vec::new());
        let port = self.random_port();
        match self.ftl.resize(port, grains, token) {
            Ok(()) => {
                let least = self.ftl.space().capacity.min(to.capacity_grains);
                self.capacity_least = self.capacity_least.min(least);
                Ok(true)
            }
            Err(ResizeError::Full { .. }) => {
                self.promises.remove(&token.0);
                Ok(false)
            }
            Err(error) => violation(format!("resize: {error}")),
        }
    }

    /// Grains that may be mapped.
    fn capacity(&self) -> u64 {
        self.ftl.space().capacity.min(self.capacity_least)
    }

    /// Shuts the volume down.
    pub(crate) fn shutdown(&mut self, observer: &mut Observer) -> Result<(), Violation> {
        self.settle(observer)?;
        let token = self.promise(self.sync_promise(LbaRange::ALL), Vec::new());
        self.ftl.shutdown(Port(0), token);
        self.settle(observer)
    }

    /// Reads a grain as a caller does, whatever else is going on.
    pub(crate) fn read_back(&mut self, lba: u64) -> Result<Result<Vec<u8>, GetError>, Violation> {
        self.ask(lba, Intent::Read, Asked::Back)?;
        for _ in 0..ROUNDS_MAX {
            if let Some(result) = self.read_back.take() {
                return Ok(result);
            }
            self.turn(true, &mut unobserved)?;
        }
        violation(format!("I18: the page of LBA {lba} never came"))
    }

    // ---- the driver ----

    /// One round: new actions to the device, one completion back, events out, time on.
    pub(crate) fn turn(&mut self, wait: bool, observer: &mut Observer) -> Result<(), Violation> {
        self.submit_actions(observer)?;
        if let Some((id, result)) = self.device.poll(wait) {
            self.now = self.now.after_ns(1 + self.rng.below(20_000));
            let port = Port((id.0 % u64::from(self.options.ports)) as u16);
            let id = ActionId(id.0 / u64::from(self.options.ports));
            self.ftl.handle_done(port, self.now, id, result);
        } else if wait {
            // Nothing in flight: the next thing to happen is a timeout.
            self.now = match self.ftl.poll_timeout() {
                Some(due) if due > self.now => due,
                _ => self.now.after_ns(1_000_000),
            };
        }
        if self.ftl.poll_timeout().is_some_and(|due| due <= self.now) {
            let port = self.random_port();
            self.ftl.handle_timeout(port, self.now);
        }
        self.submit_actions(observer)?;
        self.take_events(observer)?;
        if self.failures.unvouched.is_none() && self.ftl.stats().devices_lost > 0 {
            // What a batch under way changes may be lost before or behind it.
            let mut unvouched = self.oracle.unvouched();
            unvouched.retain(|lba, _| !self.locked.contains(*lba));
            self.failures.unvouched = Some(unvouched);
        }
        Ok(())
    }

    fn submit_actions(&mut self, observer: &mut Observer) -> Result<(), Violation> {
        // Whose turn it is comes when it comes.
        if self.ftl.has_write_out_due() && self.rng.one_in(2) {
            self.ftl.write_out_some();
        }
        for port in 0..self.options.ports {
            while let Some(action) = self.ftl.poll_action(Port(port)) {
                let kind = match action.op {
                    MediaOp::Read { .. } => OpKind::Read,
                    MediaOp::Write { .. } => OpKind::Write,
                    MediaOp::Flush => OpKind::Flush,
                    MediaOp::Discard { .. } => OpKind::Discard,
                };
                self.device.submit(Action {
                    id: ActionId(action.id.0 * u64::from(self.options.ports) + u64::from(port)),
                    op: action.op,
                });
                if kind != OpKind::Read {
                    observer(&self.view(Moment::Submitted(kind)))?;
                }
            }
        }
        Ok(())
    }

    fn take_events(&mut self, observer: &mut Observer) -> Result<(), Violation> {
        for port in (0..self.options.ports).map(Port) {
            while let Some(event) = self.ftl.poll_event(port) {
                match event {
                    Event::Page { token, result } => {
                        let Some(asked) = self.asked.remove(&token.0) else {
                            return violation(format!("I18: {token:?} answered twice"));
                        };
                        if let Asked::Write { lba, .. } = &asked {
                            self.writing.remove(&[*lba]);
                        }
                        match result {
                            Ok(page) => self.use_page(port, page, asked)?,
                            Err(error) => self.get_failed(&asked, error)?,
                        }
                    }
                    Event::Durable { token, result } => {
                        let Some((promise, grains)) = self.promises.remove(&token.0) else {
                            return violation(format!("I18: {token:?} answered twice"));
                        };
                        self.locked.remove(&grains);
                        match result {
                            Ok(()) => {
                                if let Some(lba) = self.traced.filter(|lba| promise.covers(*lba)) {
                                    self.trace(lba, || format!("{token:?} acknowledged"));
                                }
                                if self.relaxed.remove(&token.0) {
                                    self.unsynced.add(promise);
                                } else {
                                    self.oracle.acknowledge(&promise);
                                }
                                self.stats.acknowledged += 1;
                                observer(&self.view(Moment::Acknowledged))?;
                            }
                            Err(error) => self.durable_failed(error, &promise)?,
                        }
                        self.unlocked += grains.len() as u64;
                    }
                }
            }
        }
        self.unlocked = 0;
        Ok(())
    }

    fn durable_failed(&mut self, error: DurableError, promise: &Promise) -> Result<(), Violation> {
        // A write that came while a batch waited for its pages may have taken the last grain. What the oracle counts
        // includes the batch; what is locked may be a trim that waits behind it.
        let others = self.writing.len() + self.locked.len() + self.unlocked;
        let mapped = self.oracle.mapped() + others;
        if error == DurableError::NoSpace && mapped > self.capacity() {
            self.stats.no_space += 1;
            self.oracle.revert(promise);
            return Ok(());
        }
        if !self.failures.expected {
            return violation(format!("not durable: {error}"));
        }
        self.failures.durables += 1;
        match error {
            DurableError::Failed(_) => self.failures.volume_failed = true,
            DurableError::Shutdown | DurableError::Unreadable { .. } => {}
            // It took effect, and may have been lost since.
            DurableError::Lost { .. } => {
                self.failures.lost += 1;
                self.failures.told.push(promise.clone());
            }
            // Only commits are refused like this, and without any effect.
            DurableError::NoSpace
            | DurableError::Quota
            | DurableError::Damaged { .. }
            | DurableError::Media { .. } => self.oracle.revert(promise),
        }
        Ok(())
    }

    fn compare_space(&self) -> Result<(), Violation> {
        let (mapped, want) = (self.ftl.space().mapped, self.oracle.mapped());
        if mapped != want && !self.failures.expected {
            return violation(format!("I5: {mapped} grains mapped, oracle has {want}"));
        }
        Ok(())
    }

    // ---- little helpers ----

    fn view(&self, moment: Moment) -> View<'_> {
        View {
            moment,
            device: &self.device,
            oracle: &self.oracle,
            ftl: &self.ftl,
        }
    }

    fn token(&mut self) -> Token {
        self.next_token += 1;
        Token(self.next_token)
    }

    fn promise(&mut self, promise: Promise, grains: Vec<u64>) -> Token {
        let token = self.token();
        self.promises.insert(token.0, (promise, grains));
        token
    }

    /// With `FLASHNET_TRACE` set to an LBA, tells what happens to it.
    fn trace(&self, lba: u64, what: impl FnOnce() -> String) {
        if self.traced == Some(lba) {
            println!("{:?}: LBA {lba} {}", self.now, what());
        }
    }

    fn trace_range(&self, range: LbaRange, what: impl FnOnce() -> String) {
        if let Some(lba) = self.traced.filter(|lba| range.contains(Lba(*lba))) {
            self.trace(lba, what);
        }
    }

    fn is_in_doubt(&self) -> bool {
        self.failures.volume_may_fail && self.device.counts().faults > 0
    }

    fn is_busy(&self, lba: u64) -> bool {
        self.locked.contains(lba) || self.writing.contains(lba)
    }

    /// Device operations so far.
    pub(crate) fn counts(&self) -> SimCounts {
        self.device.counts()
    }
}

/// Grains, each with a count of reasons.
#[derive(Default)]
struct Counted(BTreeMap<u64, usize>);

impl Counted {
    fn add(&mut self, lba: u64) {
        *self.0.entry(lba).or_default() += 1;
    }

    fn remove(&mut self, lbas: &[u64]) {
        for lba in lbas {
            if let Some(count) = self.0.get_mut(lba) {
                *count -= 1;
                if *count == 0 {
                    self.0.remove(lba);
                }
            }
        }
    }

    fn contains(&self, lba: u64) -> bool {
        self.0.contains_key(&lba)
    }

    fn len(&self) -> u64 {
        self.0.len() as u64
    }
}

/// Reads every grain of the universe and every mapping from an idle volume; nothing but reads is asked for.
pub(crate) fn read_out(
    ftl: &Ftl,
    device: &mut dyn Device,
    universe: &[u64],
) -> Result<BTreeMap<u64, Content>, Violation> {
    load_map(ftl, device)?;
    let mut found = BTreeMap::new();
    let mut next = Lba(0);
    while let Some(lba) = ftl.next_mapped(LbaRange::new(next, Lba::END.0 - next.0)) {
        found.insert(lba.0, Content::Unmapped);
        next = lba.offset(1);
    }
    let mapped = found.len() as u64;
    if ftl.space().mapped != mapped {
        return violation(format!(
            "I5: {} grains mapped, the map has {mapped}",
            ftl.space().mapped
        ));
    }
    for lba in universe {
        found.entry(*lba).or_insert(Content::Unmapped);
    }
    for (n, (lba, content)) in found.iter_mut().enumerate() {
        let bytes = read_grain(ftl, device, *lba, n as u64)
            .map_err(|error| Violation(format!("LBA {lba} after recovery: {error}")))?;
        *content = match ftl.state(Lba(*lba)) {
            GrainState::Data => Content::Data(bytes.into()),
            state if bytes[..] != [0; GRAIN_BYTES] => {
                return violation(format!("LBA {lba} is {state:?} and does not read as zeros"));
            }
            GrainState::Zero => Content::Zero,
            GrainState::Unmapped => Content::Unmapped,
        };
    }
    Ok(found)
}

/// Waits until all of the map is in memory.
fn load_map(ftl: &Ftl, device: &mut dyn Device) -> Result<(), Violation> {
    ftl.load(Port(0), LbaRange::ALL, Token(u64::MAX));
    for _ in 0..ROUNDS_MAX {
        while let Some(action) = ftl.poll_action(Port(0)) {
            device.submit(action);
        }
        match ftl.poll_event(Port(0)) {
            Some(Event::Durable { result: Ok(()), .. }) => return Ok(()),
            Some(event) => return violation(format!("the map: {event:?}")),
            None => {}
        }
        if let Some((id, result)) = device.poll(true) {
            ftl.handle_done(Port(0), Time(1), id, result);
        }
    }
    violation("I18: the map never came")
}

/// Reads one grain of an idle volume through port 0.
pub(crate) fn read_grain(
    ftl: &Ftl,
    device: &mut dyn Device,
    lba: u64,
    token: u64,
) -> Result<Vec<u8>, GetError> {
    let mut bytes = vec![0; GRAIN_BYTES];
    let page = match ftl.get(Port(0), Lba(lba), Intent::Read, Token(token)) {
        Get::Ready(page) => page,
        Get::Failed(error) => return Err(error),
        Get::Pending => loop {
            while let Some(action) = ftl.poll_action(Port(0)) {
                device.submit(action);
            }
            let done = device.poll(true);
            let answered = done.is_some();
            if let Some((id, result)) = done {
                ftl.handle_done(Port(0), Time(1), id, result);
            }
            if let Some(Event::Page { result, .. }) = ftl.poll_event(Port(0)) {
                break result?;
            }
            if !answered {
                let error = MediaError::Gone;
                return Err(GetError::Media {
                    lba: Lba(lba),
                    error,
                });
            }
        },
    };
    page.copy_out(0, &mut bytes);
    Ok(bytes)
}

/// The same of a volume that has lost a device: what can be read, and the grains that are lost.
pub(crate) fn read_rest(
    ftl: &Ftl,
    device: &mut dyn Device,
    universe: &[u64],
) -> Result<(BTreeMap<u64, Content>, Vec<u64>), Violation> {
    load_map(ftl, device)?;
    let (mut found, mut lost) = (BTreeMap::new(), Vec::new());
    for (n, &lba) in universe.iter().enumerate() {
        let content = match (read_grain(ftl, device, lba, n as u64), ftl.state(Lba(lba))) {
            (Ok(bytes), GrainState::Data) => Content::Data(bytes.into()),
            (Ok(_), GrainState::Zero) => Content::Zero,
            (Ok(_), GrainState::Unmapped) => Content::Unmapped,
            (Err(GetError::Media { .. } | GetError::Damaged { .. }), GrainState::Data) => {
                lost.push(lba);
                continue;
            }
            (Err(error), state) => return violation(format!("LBA {lba}, {state:?}: {error}")),
        };
        found.insert(lba, content);
    }
    Ok((found, lost))
}
