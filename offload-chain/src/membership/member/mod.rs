//! A member: what it does at each change of the configuration.
//!
//! It lives in the process that hosts the engine. It gets the time, what the store says and what other members say;
//! it changes its memory while the engine is closed, and says what the engine is to do. Safety hangs on three orders, each marked
//! in the code: the engine has stopped before the log is looked at and `sealed` is reported (R1), a read lease counted from before
//! the question (R2), and nothing copied into memory that vouches but locks and ring (R3).

mod copying;
mod done;
mod repair;
mod work;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use crate::config::{Event, Expect, LeaseId, Reply, Request, Revision, Store, Ticket};
use crate::epoch::Epoch;
use crate::memory::Memory;
use crate::planted::Bug;

use super::configuration::{
    BadValue, CONFIG, Configuration, DOUBT, Doubt, MEMBER, MemberId, Phase, Report, Seat, decode,
    encode,
};
use super::copy::{Ask, Message, Round};
use super::left_out::LeftOut;

use work::UnderWay;
pub use work::Work;

/// How a member is to behave.
#[derive(Clone, Debug)]
pub struct MemberSettings {
    /// Who it is, and in which life.
    pub seat: Seat,
    /// Where it is reached.
    pub address: String,
    /// Between heartbeats.
    pub period: Duration,
    /// Heartbeats missed until it is taken for dead.
    pub misses: u32,
    /// How long it may answer READs after it asked for the configuration.
    pub read_lease: Duration,
    /// A round of catching up with no more chunks than this is enough.
    pub ready_chunks: u64,
    /// How long its media may take for one step of a piece of work, a read, a write or a flush, for the others to wait.
    pub media_patience: Duration,
    #[doc(hidden)]
    pub planted: Option<Bug>,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// The engine is to stop executing for all epochs before this one, and [`closed`](Member::closed) is to be called when it
    /// has, which may take time: until then nothing is reported and nothing of the memory looked at. The read lease is to be
    /// withdrawn at once.
    Close(Epoch),
    /// The engine is to execute for this epoch.
    Open(Epoch, Vec<Seat>),
    /// The engine may answer READs in this epoch until then, looked at after the bytes were taken.
    ReadLease(Epoch, Duration),
    /// To be done, which may take time, while the member is called as ever; then [`done`](Member::done) is to be called.
    /// One at a time is asked for.
    Work(Work),
    /// To another member; may be lost.
    Send(MemberId, Message),
    /// For people.
    Warn(String),
}

/// A member.
#[derive(Debug)]
pub struct Member {
    settings: MemberSettings,
    report: Report,
    /// What the configuration was when last seen.
    configuration: Option<Configuration>,
    /// The store has another group.
    orphaned: bool,
    /// It could not recover for this epoch.
    failed: Epoch,
    /// It is to seal for this epoch: the engine is asked to stop, and what is under way has to end.
    closing: Option<Epoch>,
    engine_closed: bool,
    work: Option<UnderWay>,
    /// The group of this epoch is broken, who did not answer, and the store has not said that it knows; and the revision of what somebody else
    /// has said of that, who knew of nobody.
    doubted: Option<(Epoch, Doubt, Revision)>,
    open: Epoch,
    lease: Option<LeaseId>,
    asked: HashMap<Ticket, (Asked, Duration)>,
    /// Of the last call.
    now: Duration,
    next_heartbeat: Duration,
    next_ask: Duration,
    /// What was last told of how much it has done.
    progress_told: u64,
    reporting: bool,
    stale: bool,
    /// When it is put again, though nothing is new.
    report_due: Duration,
    round: Option<Round>,
    rounds: u32,
    /// Where the last round came from, and the generation to go on from.
    caught_up: Option<(Seat, u64)>,
    /// Questions from members that knew of an epoch or phase before this one did, the last of each.
    early: BTreeMap<MemberId, Ask>,
    /// Of the source, for memory that has been copied as a whole.
    header: Option<crate::log::Header>,
    numbers: u64,
    /// Questions of this round since the last answer.
    unanswered: u32,
    /// Members that did not answer, one after the other.
    sources: usize,
    watching: bool,
    /// Something may have changed since the configuration was asked for.
    looks_again: bool,
    left_out: LeftOut,
    actions: VecDeque<Action>,
}

/// After so many periods without an answer something is asked again, and after so many no answer is expected any more.
const PATIENCE: u32 = 8;
const LOST: u32 = 200;
/// After so many periods a report is put again, in case that another is in its place.
const SAID_AGAIN: u32 = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Grant,
    KeepAlive,
    Config { at: Duration },
    Report,
    Watch,
    Doubt(Epoch),
}

impl Member {
    /// A member that starts. Its engine has nothing open.
    #[must_use]
    pub fn new(settings: MemberSettings) -> Self {
        let report = Report {
            seat: settings.seat,
            address: settings.address.clone(),
            log: None,
            sealed: Epoch(0),
            synced: Epoch(0),
            recovered: Epoch(0),
            ready: None,
            progress: 0,
            behind: 0,
            lag_ms: 0,
        };
        let left_out = LeftOut::new(settings.period);
        Self {
            settings,
            report,
            configuration: None,
            orphaned: false,
            failed: Epoch(0),
            closing: None,
            engine_closed: false,
            work: None,
            doubted: None,
            open: Epoch(0),
            lease: None,
            asked: HashMap::new(),
            now: Duration::ZERO,
            next_heartbeat: Duration::ZERO,
            next_ask: Duration::ZERO,
            progress_told: 0,
            reporting: false,
            stale: true,
            report_due: Duration::ZERO,
            round: None,
            rounds: 0,
            caught_up: None,
            early: BTreeMap::new(),
            header: None,
            numbers: 0,
            unanswered: 0,
            sources: 0,
            watching: false,
            looks_again: false,
            left_out,
            actions: VecDeque::new(),
        }
    }

    /// What is to be done next.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When [`tick`](Self::tick) is due.
    #[must_use]
    pub fn next_tick(&self) -> Duration {
        match self.round {
            Some(_) => self.next_heartbeat.min(self.next_ask),
            None => self.next_heartbeat,
        }
    }

    /// What it says of itself.
    #[must_use]
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Whether this is a member of the group, or of its chain still, as far as it has heard.
    #[must_use]
    pub fn knows(&self, other: MemberId) -> bool {
        self.configuration.as_ref().is_some_and(|config| {
            config.members.contains(&other) || config.chain.iter().any(|seat| seat.id == other)
        })
    }

    /// The configuration, as last seen.
    #[must_use]
    pub fn configuration(&self) -> Option<&Configuration> {
        self.configuration.as_ref()
    }

    /// Whether its group was deleted, and the store has another one now. It does not belong to that: what it has is not that group's, and epochs
    /// of both have the same numbers.
    #[must_use]
    pub fn is_orphaned(&self) -> bool {
        self.orphaned
    }

    /// The epoch that its engine has open; 0, if none.
    #[must_use]
    pub fn open_epoch(&self) -> Epoch {
        match self.open < self.report.sealed {
            true => Epoch(0),
            false => self.open,
        }
    }

    /// For how long the slowest link of the engine has had an answer outstanding.
    pub fn set_lag(&mut self, lag: Duration) {
        let lag = lag.as_millis() as u64;
        if lag.abs_diff(self.report.lag_ms) > self.report.lag_ms / 4 {
            self.report.lag_ms = lag;
            self.stale = true;
        }
    }

    /// The engine's group of this epoch is broken; `suspect` did not answer.
    pub fn doubt(&mut self, store: &mut impl Store, epoch: Epoch, suspect: Option<MemberId>) {
        if epoch < self.seals() {
            return;
        }
        self.doubted = Some((epoch, Doubt { suspect }, Revision::ABSENT));
        self.put_doubt(store);
    }

    /// The store knows that the group of this epoch is broken.
    fn heard_doubt(&mut self, epoch: Epoch) {
        self.doubted = self.doubted.take().filter(|(of, ..)| *of != epoch);
    }

    /// Tells of the broken group, again if need be.
    fn put_doubt(&mut self, store: &mut impl Store) {
        let Some((epoch, ref doubt, revision)) = self.doubted else {
            return;
        };
        if self.waits_for(|asked| *asked == Asked::Doubt(epoch)) {
            return;
        }
        let doubt = Request::Put {
            key: format!("{DOUBT}{epoch}"),
            value: encode(doubt),
            // The first name stays: links end one after the other, and who comes later is no closer to where that began.
            expect: Expect::Revision(revision),
            lease: None,
        };
        self.ask(store, doubt, Asked::Doubt(epoch));
    }

    /// Time has come to something.
    pub fn tick(&mut self, now: Duration, store: &mut impl Store, memory: &mut impl Memory) {
        self.now = now;
        if now >= self.next_heartbeat {
            self.next_heartbeat = now + self.settings.period;
            self.forget_old(now);
            self.report.progress += u64::from(self.work_counts(now));
            self.stale |= self.report.progress != self.progress_told;
            // What a former life said may get to the store late. Who serves is missed then, and hears of that.
            self.stale |= now >= self.report_due && !self.serves();
            if !self.watching && !self.waits_for(|asked| *asked == Asked::Watch) {
                let prefix = CONFIG.to_owned();
                self.ask(store, Request::Watch { prefix }, Asked::Watch);
            }
            match self.lease {
                None if !self.waits_for(|asked| *asked == Asked::Grant) => {
                    let ttl = self.settings.period * self.settings.misses;
                    self.ask(store, Request::Grant { ttl }, Asked::Grant);
                }
                Some(lease) if !self.waits_for(|asked| *asked == Asked::KeepAlive) => {
                    self.ask(store, Request::KeepAlive { lease }, Asked::KeepAlive);
                }
                _ => {}
            }
            self.put_doubt(store);
            self.look(now, store);
        }
        if now >= self.next_ask && self.round.is_some() {
            self.next_ask = now + self.settings.period * 2;
            self.ask_round(memory);
        }
        self.put_report(store);
    }

    /// Whether it is in the chain of an active epoch.
    fn serves(&self) -> bool {
        let config = self.configuration.as_ref();
        config.is_some_and(|config| {
            config.phase == Phase::Active && config.position(self.settings.seat).is_some()
        })
    }

    /// What was not answered in a long time is asked again. Late answers count, or with a slow store there were none.
    fn forget_old(&mut self, now: Duration) {
        let (patience, lost) = (self.settings.period * PATIENCE, self.settings.period * LOST);
        let old = |at: Duration| now > at + patience;
        if self
            .asked
            .values()
            .any(|(asked, at)| *asked == Asked::Report && old(*at))
        {
            self.reporting = false;
            self.stale = true;
        }
        self.asked
            .retain(|_, (asked, at)| now <= *at + lost && !(*asked == Asked::Report && old(*at)));
    }

    /// The store says something.
    pub fn handle(
        &mut self,
        now: Duration,
        store: &mut impl Store,
        memory: &mut impl Memory,
        event: Event,
    ) {
        self.now = now;
        match event {
            Event::Changed { .. } => self.look(now, store),
            Event::Answer(ticket, answer) => {
                let Some((asked, _)) = self.asked.remove(&ticket) else {
                    return;
                };
                self.answered(now, memory, asked, answer.ok());
                if self.looks_again {
                    self.look(now, store);
                }
            }
        }
        self.put_report(store);
    }

    fn answered(
        &mut self,
        now: Duration,
        memory: &mut impl Memory,
        asked: Asked,
        reply: Option<Reply>,
    ) {
        match (asked, reply) {
            (Asked::Grant, Some(Reply::Granted(lease))) => {
                self.lease = Some(lease);
                self.stale = true;
            }
            (Asked::KeepAlive, Some(Reply::NoLease)) => self.lease = None,
            (Asked::Report, reply) => {
                self.reporting = false;
                match reply {
                    Some(Reply::Done(_)) => {}
                    Some(Reply::NoLease) => {
                        self.lease = None;
                        self.stale = true;
                    }
                    _ => self.stale = true,
                }
            }
            (Asked::Watch, Some(Reply::Watching)) => self.watching = true,
            (Asked::Doubt(epoch), Some(Reply::Done(_) | Reply::Conflict(None))) => {
                self.heard_doubt(epoch);
            }
            (Asked::Doubt(epoch), Some(Reply::Conflict(Some(item)))) => {
                let names = decode::<Doubt>(&item).is_ok_and(|doubt| doubt.suspect.is_some());
                match &mut self.doubted {
                    // Put again with the next heartbeat.
                    Some((of, doubt, revision))
                        if *of == epoch && doubt.suspect.is_some() && !names =>
                    {
                        *revision = item.revision;
                    }
                    _ => self.heard_doubt(epoch),
                }
            }
            (Asked::Config { at }, Some(Reply::Items(items, _))) => {
                let config = items.iter().find(|item| item.key == CONFIG);
                match config.map(decode::<Configuration>) {
                    Some(Ok(config)) => self.configured(now, at, memory, config),
                    Some(Err(error)) => self.warn(&error),
                    None => {}
                }
            }
            _ => {}
        }
    }

    fn warn(&mut self, error: &BadValue) {
        self.actions.push_back(Action::Warn(error.to_string()));
    }

    /// The configuration is this, as of a question asked at `asked`.
    fn configured(
        &mut self,
        now: Duration,
        asked: Duration,
        memory: &mut impl Memory,
        config: Configuration,
    ) {
        let known = self.configuration.as_ref();
        if known.is_some_and(|known| known.birth != config.birth) {
            self.orphaned = true;
            return;
        }
        if known.is_some_and(|known| (config.epoch, config.phase) < (known.epoch, known.phase)) {
            // An answer that was overtaken.
            return;
        }
        self.look_at_place(now, &config);
        if config.epoch > self.seals() || self.configuration.is_none() {
            self.seal(config.epoch);
        }
        let epoch = config.epoch;
        let active = config.phase == Phase::Active;
        let serves = active && config.position(self.settings.seat).is_some();
        self.configuration = Some(config);
        self.engine_closed |= self.settings.planted == Some(Bug::SealedBeforeClosed);
        self.go_on(now, memory);
        if serves && self.open == epoch {
            // R2: every read of the configuration that starts now or later may show a newer epoch.
            let lease = self.settings.read_lease * 98 / 100;
            self.actions
                .push_back(Action::ReadLease(epoch, asked + lease));
        }
    }

    /// Whether it was left out, though it lives: of a chain it was in, or of the first one after it had caught up.
    fn look_at_place(&mut self, now: Duration, config: &Configuration) {
        let seat = self.settings.seat;
        if config.position(seat).is_some() {
            if config.phase == Phase::Active {
                self.left_out.serves(now);
            }
            return;
        }
        let Some(known) = &self.configuration else {
            return;
        };
        let wanted = self
            .report
            .ready
            .is_some_and(|ready| ready < config.active_epoch);
        if known.position(seat).is_some() || wanted {
            self.report.ready = None;
            self.stale = true;
            self.rounds = 0;
            self.left_out.left_out(now);
        }
    }

    /// The epoch that it executes nothing before, or is about to.
    fn seals(&self) -> Epoch {
        self.closing.unwrap_or(self.report.sealed)
    }

    /// Does what the configuration asks for, once nothing of an earlier one is done any more.
    fn go_on(&mut self, now: Duration, memory: &mut impl Memory) {
        if let Some(epoch) = self.closing
            && self.may_seal()
        {
            self.seal_log(memory, epoch);
        }
        let Some(config) = self.configuration.clone() else {
            return;
        };
        if self.closing.is_some() || self.work.is_some() {
            return;
        }
        let position = config.position(self.settings.seat);
        let epoch = config.epoch;
        match (config.phase, position) {
            (Phase::Sync, Some(_)) if self.report.synced < epoch => {
                self.sync(now, memory, &config);
            }
            // What failed does not become better in this epoch, and others would wait for as long as it tries.
            (Phase::Recover, Some(_))
                if self.report.synced == epoch
                    && self.report.recovered.max(self.failed) < epoch =>
            {
                self.recover(&config);
            }
            (Phase::Recover | Phase::Active, Some(_)) => self.open(&config),
            (Phase::Active, None) => {
                let own = self.settings.seat.id;
                // In the chain in an earlier life it may be the one that can vouch: hands off.
                let before = config.chain.iter().any(|seat| seat.id == own);
                if config.members.contains(&own) && !before {
                    self.catch_up(now, memory, &config);
                }
            }
            _ => {}
        }
        for (from, ask) in std::mem::take(&mut self.early) {
            self.asked_by(memory, from, ask);
        }
    }

    /// Has the engine opened, once its memory is what the epoch starts from. Others may not be as far: links wait for them, and there is
    /// nothing to execute before clients connect, which they do when the epoch is active.
    fn open(&mut self, config: &Configuration) {
        let epoch = config.epoch;
        if self.report.recovered == epoch && self.open < epoch {
            self.open = epoch;
            self.round = None;
            let open = Action::Open(epoch, config.chain.clone());
            self.actions.push_back(open);
        }
    }

    /// R1.
    fn may_seal(&self) -> bool {
        let mut work = self.work.as_ref();
        if self.settings.planted == Some(Bug::WorkNotAwaited) {
            work = work.filter(|under_way| !under_way.recovers());
        }
        self.engine_closed && work.is_none()
    }

    /// R1: the engine first. It may be in a thread of its own and have something in hand.
    fn seal(&mut self, epoch: Epoch) {
        self.actions.push_back(Action::Close(epoch));
        self.closing = Some(epoch);
        self.engine_closed = false;
        self.doubted = None;
        self.round = None;
    }

    /// The engine executes nothing of epochs before this one any more, as [`Action::Close`] asked.
    pub fn closed(
        &mut self,
        now: Duration,
        store: &mut impl Store,
        memory: &mut impl Memory,
        epoch: Epoch,
    ) {
        self.now = now;
        // Otherwise a newer epoch is being closed for.
        if self.closing == Some(epoch) {
            self.engine_closed = true;
            self.go_on(now, memory);
            self.put_report(store);
        }
    }

    /// Asks what is configured; once more, if something changed since that was asked.
    fn look(&mut self, now: Duration, store: &mut impl Store) {
        if self.waits_for(|asked| matches!(asked, Asked::Config { .. })) {
            self.looks_again = true;
            return;
        }
        self.looks_again = false;
        let (prefix, at) = (CONFIG.to_owned(), now);
        self.ask(store, Request::List { prefix }, Asked::Config { at });
    }

    fn put_report(&mut self, store: &mut impl Store) {
        let (Some(lease), true, false) = (self.lease, self.stale, self.reporting) else {
            return;
        };
        if self.orphaned {
            return;
        }
        self.stale = false;
        self.progress_told = self.report.progress;
        self.reporting = true;
        self.report_due = self.now + self.settings.period * SAID_AGAIN;
        let put = Request::Put {
            key: format!("{MEMBER}{}", self.settings.seat.id),
            value: encode(&self.report),
            expect: Expect::Anything,
            lease: Some(lease),
        };
        self.ask(store, put, Asked::Report);
    }

    fn ask(&mut self, store: &mut impl Store, request: Request, asked: Asked) {
        let asked = (asked, self.now);
        self.asked.insert(store.submit(request), asked);
    }

    fn waits_for(&self, what: impl Fn(&Asked) -> bool) -> bool {
        let patience = self.settings.period * PATIENCE;
        let mut asked = self.asked.values();
        asked.any(|(asked, at)| what(asked) && self.now <= *at + patience)
    }
}
