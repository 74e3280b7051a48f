//! The agent's thread: carries out what membership decides.

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::clock::since_boot;
use crate::config::{Event, Reply, Request, Store};
use crate::epoch::Epoch;
use crate::group::{FileMemory, MemberFile, ReadLease};
use crate::log::RecoverError;
use crate::membership::{
    Action, Boot, Configuration, Controller, ControllerSettings, MEMBER, Member, MemberId,
    MemberSettings, Note, Phase, Report, STORE_IS_LATE, Seat, SlowPolicy, decode,
};

use super::door::Unheard;
use super::engine::{Engine, EngineNews, Opening};
use super::lag::Lag;
use super::lines::Lines;
use super::media::Media;
use super::message::Said;
use super::mux::{Mux, Owner};
use super::peers::{Greeting, Peers};
use super::twin::Twin;
use super::{HostState, Timing, lock, served_twice, shape_of};

/// A round of catching up with no more chunks than this is enough: they take some milliseconds.
const READY_CHUNKS: u64 = 64;

/// Between looks at where members are, for those that have moved.
const DIRECTORY: Duration = Duration::from_secs(1);

/// Between looks for who is missed there. Some stores answer at once.
const REST: Duration = Duration::from_millis(3);

/// Messages that are heard before the agent does anything else.
const HEARD_MAX: usize = 64;

/// Between two warnings that are alike.
const AGAIN: Duration = Duration::from_secs(10);

/// What the agent is told.
#[derive(Debug)]
pub(super) enum Inbox {
    Peer(MemberId, Said, Unheard),
    Engine(EngineNews),
    /// What the member wanted done with its memory has ended.
    Worked(Result<Option<(Epoch, u64)>, RecoverError>),
    /// The store may have something to say.
    Store,
    Stop,
}

/// Who it is.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) member: MemberId,
    pub(super) boot: Boot,
    pub(super) advertised: String,
    pub(super) timing: Timing,
    pub(super) slow: SlowPolicy,
    pub(super) greeting: Greeting,
}

/// The agent.
pub(super) struct Agent {
    place: Place,
    seat: Seat,
    member: Member,
    controller: Controller,
    store: Mux,
    memory: FileMemory,
    media: Media,
    engine: Engine,
    /// Those by which others speak to this one.
    lines: Lines,
    lag: Lag,
    reads: Arc<ReadLease>,
    peers: Peers,
    twin: Twin,
    /// Where members are, in which life.
    directory: BTreeMap<MemberId, (Boot, String)>,
    directory_asked: Option<Duration>,
    directory_due: Duration,
    /// Not looked into again before, however much somebody is missed there.
    directory_rests: Duration,
    /// The name of a member has no address: not asked again before.
    unresolved_until: Duration,
    /// To be opened when it is known where all are.
    opening: Option<(Epoch, Vec<Seat>)>,
    /// For an epoch that is not open yet.
    early_lease: Option<(Epoch, Duration)>,
    /// When others were last heard.
    heard: BTreeMap<MemberId, Duration>,
    next_beat: Duration,
    doubted: Option<(Epoch, Duration)>,
    warned: Option<(String, Duration)>,
    state: Arc<Mutex<HostState>>,
    ended: Option<String>,
}

impl Agent {
    pub(super) fn new(
        place: Place,
        store: Box<dyn Store + Send>,
        file: Arc<MemberFile>,
        (engine, lines): (Engine, Lines),
        state: Arc<Mutex<HostState>>,
        inbox: Sender<Inbox>,
    ) -> io::Result<Self> {
        let seat = Seat {
            id: place.member,
            boot: place.boot,
        };
        let timing = place.timing;
        let member = Member::new(MemberSettings {
            seat,
            address: place.advertised.clone(),
            period: timing.period,
            misses: timing.misses,
            read_lease: timing.read_lease,
            ready_chunks: READY_CHUNKS,
            media_patience: timing.media_patience,
            planted: None,
        });
        let controller = Controller::new(ControllerSettings {
            period: timing.period,
            patience: timing.patience,
            read_lease: timing.read_lease,
            silence: timing.silence(),
            slow: place.slow,
            planted: None,
        });
        Ok(Self {
            seat,
            member,
            controller,
            media: Media::start(Arc::clone(&file), inbox.clone())?,
            store: Mux::new(store, inbox),
            memory: FileMemory(file),
            engine,
            lines,
            lag: Lag::default(),
            reads: Arc::new(ReadLease::new(since_boot)),
            peers: Peers::new(place.greeting.clone()),
            twin: Twin::new(place.boot),
            directory: BTreeMap::new(),
            directory_asked: None,
            directory_due: Duration::ZERO,
            directory_rests: Duration::ZERO,
            unresolved_until: Duration::ZERO,
            opening: None,
            early_lease: None,
            heard: BTreeMap::new(),
            next_beat: Duration::ZERO,
            doubted: None,
            warned: None,
            state,
            ended: None,
            place,
        })
    }

    /// Runs until told to stop. Why it has ended, if not for that.
    pub(super) fn run(mut self, inbox: &Receiver<Inbox>) -> Option<String> {
        loop {
            let due = (self.member.next_tick())
                .min(self.controller.next_tick())
                .min(self.next_beat);
            let due = match self.opening {
                // Nobody tells when its members are to be looked for again; an answer wakes it.
                Some(_) if self.directory_asked.is_none() => {
                    due.min(self.directory_rests.max(self.unresolved_until))
                }
                _ => due,
            };
            let active = |config: &Configuration| config.phase == Phase::Active;
            let active = self.member.configuration().is_some_and(active);
            let wait = due.saturating_sub(since_boot());
            let wait = wait.min(self.store.sleep(!active));
            match inbox.recv_timeout(wait) {
                Ok(Inbox::Stop) | Err(RecvTimeoutError::Disconnected) => {
                    self.engine.close();
                    return None;
                }
                Ok(news) => self.hear(news),
                Err(RecvTimeoutError::Timeout) => {}
            }
            // Who stood still has to hear what was said meanwhile before it says that it heard nothing.
            for news in inbox.try_iter().take(HEARD_MAX) {
                if matches!(news, Inbox::Stop) {
                    self.engine.close();
                    return None;
                }
                self.hear(news);
            }
            self.store.looks();
            while let Some((owner, event)) = self.store.poll() {
                self.told(owner, event);
            }
            if self.member.is_orphaned() {
                let why = "its group was deleted, and the store has another one; started again it serves in that, and is copied to as a new member";
                self.ended = Some(why.to_owned());
            }
            let now = since_boot();
            let via = &mut self.store.via(Owner::Member);
            self.member.tick(now, via, &mut self.memory);
            if let Some(config) = self.member.configuration() {
                let place = config.position(self.seat).unwrap_or(config.chain.len());
                self.controller.yield_to(place);
                self.lines.know(config.names());
            }
            let via = &mut self.store.via(Owner::Controller);
            self.controller.tick(now, via);
            self.beat(now);
            self.act();
            self.try_open(now);
            self.notes();
            if let Some(why) = self.ended.take() {
                self.engine.close();
                return Some(why);
            }
        }
    }

    fn hear(&mut self, news: Inbox) {
        let now = since_boot();
        match news {
            // Of nobody else anything is kept, however many names somebody who knows the token gives itself.
            Inbox::Peer(from, ..) if !self.member.knows(from) => {}
            Inbox::Peer(from, said, unheard) => {
                self.hear_member(now, from, said);
                drop(unheard);
            }
            Inbox::Engine(EngineNews::Broken(epoch, place)) => {
                let mut state = lock(&self.state);
                if state.open == epoch {
                    state.close();
                }
                drop(state);
                let chain = self.member.configuration();
                let chain = chain.filter(|config| config.epoch == epoch);
                let suspect = chain
                    .zip(place)
                    .and_then(|(config, at)| config.chain.get(at));
                let suspect = suspect.map(|seat| seat.id);
                let via = &mut self.store.via(Owner::Member);
                self.member.doubt(via, epoch, suspect);
            }
            Inbox::Worked(result) => {
                let via = &mut self.store.via(Owner::Member);
                self.member.done(now, via, &mut self.memory, result);
            }
            Inbox::Engine(EngineNews::Failed(why)) => {
                tracing::error!(%why, "the member can not serve");
                self.ended = Some(why);
            }
            // It is looked at in any case.
            Inbox::Store | Inbox::Stop => {}
        }
    }

    fn hear_member(&mut self, now: Duration, from: MemberId, said: Said) {
        match said {
            Said::Beat(seat) => {
                if seat.id == from {
                    self.heard.insert(from, now);
                }
            }
            Said::Agent(message) => {
                self.heard.insert(from, now);
                let via = &mut self.store.via(Owner::Member);
                let memory = &mut self.memory;
                self.member.receive(now, via, memory, from, message);
            }
        }
    }

    fn told(&mut self, owner: Owner, event: Event) {
        let now = since_boot();
        match owner {
            Owner::Member => {
                let via = &mut self.store.via(owner);
                self.member.handle(now, via, &mut self.memory, event);
                self.act();
            }
            Owner::Controller => {
                let via = &mut self.store.via(owner);
                self.controller.handle(now, via, event);
            }
            Owner::Directory => {
                self.directory_asked = None;
                if let Event::Answer(_, Ok(Reply::Items(items, _))) = event {
                    for report in items.iter().filter_map(|item| decode::<Report>(item).ok()) {
                        if report.seat.id == self.seat.id && self.twin.gives_way(report.seat.boot) {
                            self.ended = Some(served_twice(report.seat.id, &report.address));
                        }
                        let entry = (report.seat.boot, report.address);
                        self.directory.insert(report.seat.id, entry);
                    }
                    self.try_open(now);
                }
            }
        }
    }

    /// Carries out what the member wants.
    fn act(&mut self) {
        while let Some(action) = self.member.poll_action() {
            match action {
                Action::Close(epoch) => {
                    tracing::debug!(%epoch, "sealed");
                    self.opening = None;
                    self.reads.withdraw();
                    self.engine.close();
                    lock(&self.state).close();
                    let via = &mut self.store.via(Owner::Member);
                    let memory = &mut self.memory;
                    self.member.closed(since_boot(), via, memory, epoch);
                    // Soon it has to be known where the members of the next are; others wait for the report.
                    self.look_up();
                }
                Action::Open(epoch, chain) => self.opening = Some((epoch, chain)),
                Action::ReadLease(epoch, until) => {
                    if lock(&self.state).open == epoch {
                        self.reads.extend(until);
                    } else {
                        self.early_lease = Some((epoch, until));
                    }
                }
                Action::Work(work) => self.media.begin(work),
                Action::Send(to, message) => self.say(to, Said::Agent(message)),
                Action::Warn(why) => self.warn(why),
            }
        }
    }

    /// Once, until there is something else to say, or it is long ago: these come with every look.
    fn warn(&mut self, why: String) {
        let now = since_boot();
        let told = |(said, at): &(String, Duration)| *said == why && now < *at + AGAIN;
        if !self.warned.as_ref().is_some_and(told) {
            tracing::warn!(member = self.seat.id.0, %why);
            self.warned = Some((why, now));
        }
    }

    fn say(&mut self, to: MemberId, said: Said) {
        match self.directory.get(&to) {
            Some((boot, address)) => {
                let seat = Seat {
                    id: to,
                    boot: *boot,
                };
                self.peers.send(seat, address, said);
            }
            // Said again, when it is known where to.
            None => self.look_up(),
        }
    }

    fn look_up(&mut self) {
        let now = since_boot();
        let patience = self.place.timing.period * 8;
        let asks = self.directory_asked.is_none_or(|at| now > at + patience);
        if asks && now >= self.directory_rests {
            self.directory_asked = Some(now);
            self.directory_rests = now + REST;
            self.directory_due = now + DIRECTORY;
            let prefix = MEMBER.to_owned();
            self.store
                .via(Owner::Directory)
                .submit(Request::List { prefix });
        }
    }

    /// Opens the epoch that waits, if it is known where its members are.
    fn try_open(&mut self, now: Duration) {
        let Some((epoch, chain)) = &self.opening else {
            return;
        };
        let config = self.member.configuration();
        let Some(config) = config.filter(|config| config.epoch == *epoch) else {
            return;
        };
        let (Some(position), Ok(shape)) = (config.position(self.seat), shape_of(config)) else {
            return;
        };
        if now < self.unresolved_until {
            return;
        }
        let known = |seat: &Seat| {
            let (boot, address) = self.directory.get(&seat.id)?;
            (*boot == seat.boot).then_some(address)
        };
        let mut places = Vec::new();
        for seat in chain {
            let Some(address) = known(seat) else {
                return self.look_up();
            };
            match self.place.greeting.place_of(address) {
                Ok(found) => places.push(found),
                // Whoever looks up names may take long for each answer.
                Err(why) => {
                    let why = format!("cannot find member {} at {address}: {why}", seat.id);
                    self.unresolved_until = now + DIRECTORY;
                    return self.warn(why);
                }
            }
        }
        let epoch = *epoch;
        self.opening = None;
        self.reads = Arc::new(ReadLease::new(since_boot));
        if let Some((_, until)) = self.early_lease.take().filter(|(of, _)| *of == epoch) {
            self.reads.extend(until);
        }
        self.engine.open(Opening {
            epoch,
            shape,
            position,
            places,
            reads: Arc::clone(&self.reads),
        });
        // Nobody is missed before there was time to be heard.
        self.heard.clear();
        self.heard
            .extend(config.chain.iter().map(|seat| (seat.id, now)));
        let mut state = lock(&self.state);
        (state.open, state.position) = (epoch, Some(position));
        drop(state);
        tracing::info!(%epoch, place = position, members = config.chain.len(), "open");
    }

    /// Tells the others that it lives, and looks who does not.
    fn beat(&mut self, now: Duration) {
        if now < self.next_beat {
            return;
        }
        let silence = self.place.timing.silence();
        if now > self.next_beat + silence / 2 {
            // It stood still itself: what others said may be on its way.
            self.heard.values_mut().for_each(|at| *at = now);
        }
        self.next_beat = now + self.place.timing.period;
        if let Some(why) = self.memory.0.why_failed() {
            // Whoever looks after the process starts it again, and it is repaired.
            self.ended = Some(format!(
                "a read, write or flush of its memory failed, and nobody knows what is on media: {why}"
            ));
            return;
        }
        if now >= self.directory_due {
            self.look_up();
        }
        self.lag.add(now, self.engine.take_wait());
        self.member.set_lag(self.lag.longest());
        self.tell_state();
        let Some(config) = self.member.configuration() else {
            return;
        };
        let (epoch, phase) = (config.epoch, config.phase);
        let others: Vec<MemberId> = (config.chain.iter())
            .filter(|seat| **seat != self.seat)
            .map(|seat| seat.id)
            .collect();
        let in_chain = config.position(self.seat).is_some();
        if !in_chain {
            return;
        }
        for other in &others {
            self.say(*other, Said::Beat(self.seat));
        }
        if phase != Phase::Active || lock(&self.state).open != epoch {
            return;
        }
        let silent = |id: &&MemberId| self.heard.get(id).is_none_or(|at| now > *at + silence);
        let Some(&suspect) = others.iter().find(silent) else {
            return;
        };
        let told = |(of, at): (Epoch, Duration)| of == epoch && now < at + silence;
        if !self.doubted.is_some_and(told) {
            self.doubted = Some((epoch, now));
            tracing::info!(%epoch, member = suspect.0, "nothing is heard of a member");
            let via = &mut self.store.via(Owner::Member);
            self.member.doubt(via, epoch, Some(suspect));
        }
    }

    /// How the member is, for who looks at it from outside.
    fn tell_state(&self) {
        let mut state = lock(&self.state);
        state.lag = self.lag.longest();
        state.behind = self.member.report().behind;
        if let Some(config) = self.member.configuration() {
            (state.epoch, state.chain) = (config.epoch, config.chain.len());
        }
    }

    fn notes(&mut self) {
        for note in self.controller.take_notes() {
            match note {
                Note::NewEpoch(epoch, why) => tracing::info!(%epoch, %why, "proposes an epoch"),
                Note::Phase(epoch, phase) => tracing::debug!(%epoch, ?phase, "epoch"),
                Note::Waiting(of) => {
                    let of: Vec<u32> = of.iter().map(|id| id.0).collect();
                    self.warn(format!(
                        "the group waits for one of members {of:?}: nobody else has all that was acknowledged"
                    ));
                }
                Note::PutBack(put_back) => self.warn(put_back.to_string()),
                Note::Slow(member, lag_ms) => {
                    tracing::warn!(member = member.0, lag_ms, "a member holds the others up");
                }
                Note::Bad(why) => self.warn(why),
                Note::StoreLate(_) => self.warn(STORE_IS_LATE.into()),
            }
        }
    }
}
