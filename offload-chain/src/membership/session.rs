//! A client's place in a group: its slot, and the epochs it may connect in.
//!
//! The order that fencing hangs on: the configuration is read, and *then* the slot is found to be its own (E1). A controller has seen that
//! the slot is gone before it activates the epoch that frees the slot's locks. Per epoch there is one connection: what was broken
//! is not opened again.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use crate::config::{Event, Expect, LeaseId, Reply, Request, Revision, Store, Ticket};
use crate::epoch::Epoch;
use crate::lock::Slot;

use super::configuration::{
    Boot, CLIENT, CONFIG, Configuration, DOUBT, Doubt, Phase, SLOT, decode, encode,
};
use super::store_patience;

/// How a client is to behave.
#[derive(Clone, Debug)]
pub struct SessionSettings {
    /// Its slot.
    pub slot: Slot,
    /// This life of it. Random.
    pub boot: Boot,
    /// Between heartbeats.
    pub period: Duration,
    /// Heartbeats missed until its locks are taken from it.
    pub misses: u32,
}

/// What a client learns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionEvent {
    /// Connect to the group in this epoch.
    Connect(Box<Configuration>),
    /// The epoch it is connected in is over: nothing of it will be answered.
    Over(Epoch),
    /// The slot was taken from it. All its locks are free. Start again, with another boot.
    Fenced,
    /// Somebody else has the slot.
    Taken,
    /// The store has not answered for so long, which is as long as is waited for it. Said again when it has answered in time since.
    StoreLate(Duration),
}

/// A client's place in a group.
#[derive(Debug)]
pub struct Session {
    settings: SessionSettings,
    state: State,
    lease: Option<LeaseId>,
    /// The client's key is there, under this lease.
    announced: bool,
    /// Revision of the slot's key, when it is this client's.
    slot: Revision,
    asked: HashMap<Ticket, (Asked, Duration)>,
    next_heartbeat: Duration,
    /// Newest epoch that was connected in, or is not to be any more.
    connected: Epoch,
    configuration: Option<Configuration>,
    /// Its group of this epoch is broken, and the store has not said that it knows.
    doubted: Option<Epoch>,
    watching: bool,
    /// Something may have changed since the configuration was asked for.
    looks_again: bool,
    /// That was told, and nothing has been answered in time since.
    store_is_late: bool,
    events: VecDeque<SessionEvent>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Neither key is there.
    New,
    /// The client's key is; the slot's is not.
    Living,
    /// Both are.
    Registered,
    /// It is over.
    Ended,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Asked {
    Grant,
    KeepAlive,
    Client,
    Slot,
    Config,
    OwnSlot(Box<Configuration>),
    Watch,
    Doubt(Epoch),
    Other,
}

impl Session {
    /// A client that is not registered yet.
    #[must_use]
    pub fn new(settings: SessionSettings) -> Self {
        Self {
            settings,
            state: State::New,
            lease: None,
            announced: false,
            slot: Revision::ABSENT,
            asked: HashMap::new(),
            next_heartbeat: Duration::ZERO,
            connected: Epoch(0),
            configuration: None,
            doubted: None,
            watching: false,
            looks_again: false,
            store_is_late: false,
            events: VecDeque::new(),
        }
    }

    /// What there is to learn.
    pub fn poll_event(&mut self) -> Option<SessionEvent> {
        self.events.pop_front()
    }

    /// When [`tick`](Self::tick) is due.
    #[must_use]
    pub fn next_tick(&self) -> Duration {
        self.next_heartbeat
    }

    /// Whether an epoch is on its way that is not active yet.
    #[must_use]
    pub fn is_between_epochs(&self) -> bool {
        let config = self.configuration.as_ref();
        config.is_some_and(|config| config.phase != Phase::Active)
    }

    /// The group of this epoch is broken, for this client.
    pub fn broken(&mut self, now: Duration, store: &mut impl Store, epoch: Epoch) {
        let newest = self.configuration.as_ref().map(|config| config.epoch);
        if newest.is_some_and(|newest| newest > epoch) {
            return;
        }
        self.doubted = Some(epoch);
        self.put_doubt(now, store);
    }

    /// Tells of the broken group, again if need be: if nobody else is hit, nobody else does.
    fn put_doubt(&mut self, now: Duration, store: &mut impl Store) {
        let Some(epoch) = self.doubted else { return };
        if self.waits_for(&Asked::Doubt(epoch)) {
            return;
        }
        let doubt = Request::Put {
            key: format!("{DOUBT}{epoch}"),
            value: encode(&Doubt { suspect: None }),
            // Who has said so before may have said because of whom, too.
            expect: Expect::Revision(Revision::ABSENT),
            lease: None,
        };
        self.ask(now, store, doubt, Asked::Doubt(epoch));
    }

    /// Gives the slot back, if it has it. Nothing may be locked, and nothing be under way.
    pub fn leave(&mut self, now: Duration, store: &mut impl Store) {
        if self.state != State::Ended {
            // As it was put: another client's stays.
            let key = format!("{SLOT}{}", self.settings.slot.number());
            let expect = Expect::Revision(self.slot);
            self.ask(now, store, Request::Delete { key, expect }, Asked::Other);
        }
        if let Some(lease) = self.lease.take() {
            self.ask(now, store, Request::Revoke { lease }, Asked::Other);
        }
        self.state = State::Ended;
    }

    /// Time has come to something.
    pub fn tick(&mut self, now: Duration, store: &mut impl Store) {
        if now < self.next_heartbeat {
            return;
        }
        // Also when it is over: whoever calls this would not sleep otherwise.
        self.next_heartbeat = now + self.settings.period;
        if self.state == State::Ended {
            return;
        }
        let patience = store_patience(self.settings.period);
        let asked = self.asked.len();
        self.asked.retain(|_, (_, at)| now < *at + patience);
        if self.asked.len() < asked && !self.store_is_late {
            self.store_is_late = true;
            self.events.push_back(SessionEvent::StoreLate(patience));
        }
        if !self.watching {
            self.watching = true;
            let prefix = CONFIG.to_owned();
            self.ask(now, store, Request::Watch { prefix }, Asked::Watch);
        }
        match self.lease {
            None if !self.waits_for(&Asked::Grant) => {
                let ttl = self.settings.period * self.settings.misses;
                self.ask(now, store, Request::Grant { ttl }, Asked::Grant);
            }
            Some(lease) if !self.waits_for(&Asked::KeepAlive) => {
                self.ask(now, store, Request::KeepAlive { lease }, Asked::KeepAlive);
            }
            _ => {}
        }
        self.register(now, store);
        self.put_doubt(now, store);
        self.go_on(now, store);
    }

    /// The store says something.
    pub fn handle(&mut self, now: Duration, store: &mut impl Store, event: Event) {
        if self.state == State::Ended {
            return;
        }
        match event {
            Event::Changed { .. } => self.go_on(now, store),
            Event::Answer(ticket, answer) => {
                let Some((asked, _)) = self.asked.remove(&ticket) else {
                    return;
                };
                self.store_is_late = false;
                if asked == Asked::Watch && answer.is_err() {
                    self.watching = false;
                }
                if let Ok(reply) = answer {
                    self.answered(now, store, asked, reply);
                }
                if self.looks_again && self.state != State::Ended {
                    self.go_on(now, store);
                }
            }
        }
    }

    fn answered(&mut self, now: Duration, store: &mut impl Store, asked: Asked, reply: Reply) {
        match (asked, reply) {
            (Asked::Grant, Reply::Granted(lease)) => {
                self.lease = Some(lease);
                self.announced = false;
                self.register(now, store);
            }
            (Asked::KeepAlive | Asked::Client, Reply::NoLease) => self.lease = None,
            (Asked::Client, Reply::Done(_)) => self.is_announced(now, store),
            (Asked::Client, Reply::Conflict(item)) => {
                let found = item.and_then(|item| decode::<Boot>(&item).ok());
                match (found == Some(self.settings.boot), self.state) {
                    // The answer to an earlier put was lost.
                    (true, _) => self.is_announced(now, store),
                    (false, State::New) => self.end(SessionEvent::Taken),
                    (false, _) => self.end(SessionEvent::Fenced),
                }
            }
            (Asked::Doubt(epoch), Reply::Done(_) | Reply::Conflict(_)) => {
                self.doubted = self.doubted.filter(|doubted| *doubted != epoch);
            }
            (Asked::Slot, Reply::Done(revision)) => {
                self.slot = revision;
                self.state = State::Registered;
            }
            (Asked::Slot, Reply::Conflict(Some(item))) => {
                match decode::<Boot>(&item).ok() == Some(self.settings.boot) {
                    true => {
                        self.slot = item.revision;
                        self.state = State::Registered;
                    }
                    // Of a client before this one; the next epoch frees it.
                    false => self.end(SessionEvent::Taken),
                }
            }
            (Asked::Config, Reply::Items(items, _)) => {
                let item = items.iter().find(|item| item.key == CONFIG);
                if let Some(Ok(config)) = item.map(decode::<Configuration>) {
                    self.configured(now, store, config);
                }
            }
            (Asked::OwnSlot(config), Reply::Items(items, _)) => {
                let key = format!("{SLOT}{}", self.settings.slot.number());
                let own = items.iter().find(|item| item.key == key);
                let own = own.and_then(|item| decode::<Boot>(item).ok());
                let kept = own == Some(self.settings.boot);
                if !kept {
                    self.end(SessionEvent::Fenced);
                } else if config.epoch > self.connected {
                    self.connected = config.epoch;
                    self.events.push_back(SessionEvent::Connect(config));
                }
            }
            _ => {}
        }
    }

    fn configured(&mut self, now: Duration, store: &mut impl Store, config: Configuration) {
        let known = self.configuration.as_ref();
        // Its group was deleted, and this is another: the slot's key went with it.
        if known.is_some_and(|known| known.birth != config.birth) {
            return self.end(SessionEvent::Fenced);
        }
        if known.is_some_and(|known| (config.epoch, config.phase) < (known.epoch, known.phase)) {
            return;
        }
        let over = known.is_some_and(|known| known.epoch < config.epoch);
        if over && self.connected > Epoch(0) && self.connected < config.epoch {
            self.events.push_back(SessionEvent::Over(self.connected));
        }
        self.doubted = self.doubted.filter(|doubted| *doubted >= config.epoch);
        self.configuration = Some(config.clone());
        let active = config.phase == Phase::Active && config.epoch > self.connected;
        if active && self.state == State::Registered {
            // E1.
            let prefix = SLOT.to_owned();
            let asked = Asked::OwnSlot(Box::new(config));
            self.ask(now, store, Request::List { prefix }, asked);
        }
    }

    /// The client's key is there.
    fn is_announced(&mut self, now: Duration, store: &mut impl Store) {
        self.announced = true;
        if self.state == State::New {
            self.state = State::Living;
        }
        self.register(now, store);
    }

    /// Puts what is missing of its keys, the client's first.
    fn register(&mut self, now: Duration, store: &mut impl Store) {
        let Some(lease) = self.lease else { return };
        let slot = self.settings.slot.number();
        let expect = Expect::Revision(Revision::ABSENT);
        let value = encode(&self.settings.boot);
        let (key, lease, asked) = match (self.announced, self.state) {
            (false, _) => (format!("{CLIENT}{slot}"), Some(lease), Asked::Client),
            (true, State::Living) => (format!("{SLOT}{slot}"), None, Asked::Slot),
            _ => return,
        };
        if !self.waits_for(&asked) {
            let put = Request::Put {
                key,
                value,
                expect,
                lease,
            };
            self.ask(now, store, put, asked);
        }
    }

    /// Asks what is configured; once more, if something changed since that was asked.
    fn go_on(&mut self, now: Duration, store: &mut impl Store) {
        if self.waits_for(&Asked::Config) {
            self.looks_again = true;
            return;
        }
        self.looks_again = false;
        let prefix = CONFIG.to_owned();
        self.ask(now, store, Request::List { prefix }, Asked::Config);
    }

    fn end(&mut self, event: SessionEvent) {
        self.state = State::Ended;
        self.events.push_back(event);
    }

    fn ask(&mut self, now: Duration, store: &mut impl Store, request: Request, asked: Asked) {
        self.asked.insert(store.submit(request), (asked, now));
    }

    fn waits_for(&self, what: &Asked) -> bool {
        self.asked.values().any(|(asked, _)| asked == what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Ledger, StoreError};

    /// A store that loses one of its answers.
    struct Lossy {
        ledger: Ledger,
        now: Duration,
        loses: fn(&Request) -> bool,
        lost: u32,
        tickets: u64,
        events: VecDeque<Event>,
    }

    impl Lossy {
        fn new(loses: fn(&Request) -> bool) -> Self {
            Self {
                ledger: Ledger::new(),
                now: Duration::ZERO,
                loses,
                lost: 0,
                tickets: 0,
                events: VecDeque::new(),
            }
        }
    }

    impl Store for Lossy {
        fn submit(&mut self, request: Request) -> Ticket {
            self.tickets += 1;
            let ticket = Ticket(self.tickets);
            let mut answer = self.ledger.apply(self.now, &request);
            if self.lost == 0 && (self.loses)(&request) {
                self.lost += 1;
                answer = Err(StoreError::Unavailable("lost".into()));
            }
            self.events.push_back(Event::Answer(ticket, answer));
            ticket
        }

        fn poll(&mut self) -> Option<Event> {
            self.events.pop_front()
        }
    }

    fn registers(loses: fn(&Request) -> bool) -> bool {
        let mut store = Lossy::new(loses);
        let period = Duration::from_millis(40);
        let mut session = Session::new(SessionSettings {
            slot: Slot::new(3).unwrap(),
            boot: Boot(7),
            period,
            misses: 4,
        });
        for _ in 0..50 {
            session.tick(store.now, &mut store);
            while let Some(event) = store.poll() {
                session.handle(store.now, &mut store, event);
            }
            store.now += period;
        }
        assert_eq!(store.lost, 1, "it asked for that");
        session.state == State::Registered
    }

    /// Whichever answer is lost, the client gets its slot (I16).
    #[test]
    fn a_lost_answer_holds_nobody_up() {
        assert!(registers(|request| matches!(
            request,
            Request::Grant { .. }
        )));
        assert!(registers(|request| {
            matches!(request, Request::Put { key, .. } if key.starts_with(CLIENT))
        }));
        assert!(registers(|request| {
            matches!(request, Request::Put { key, .. } if key.starts_with(SLOT))
        }));
    }

    /// I16: a store that takes longer for an answer than a client waits between two looks is not asked faster than it answers, and what it
    /// says then counts.
    #[test]
    fn a_slow_store_is_not_flooded() {
        let mut store = Lossy::new(|_| false);
        let period = Duration::from_millis(50);
        let mut session = Session::new(SessionSettings {
            slot: Slot::new(0).unwrap(),
            boot: Boot(1),
            period,
            misses: 100,
        });
        // One answer in each period: fewer than it would like to ask for.
        for _ in 0..200 {
            session.tick(store.now, &mut store);
            if let Some(event) = store.poll() {
                session.handle(store.now, &mut store, event);
            }
            let prefix = CONFIG.to_owned();
            session.handle(store.now, &mut store, Event::Changed { prefix });
            store.now += period;
        }
        assert!(store.events.len() < 20, "{} wait", store.events.len());
        assert_eq!(session.state, State::Registered);
    }

    /// A store that answers too late each time is told of, once; and once more if it was in time in between.
    #[test]
    fn a_late_store_is_told_of() {
        let mut store = Lossy::new(|_| false);
        let period = Duration::from_millis(50);
        let mut session = Session::new(SessionSettings {
            slot: Slot::new(0).unwrap(),
            boot: Boot(1),
            period,
            misses: 100,
        });
        let mut told = |for_periods: u32, late: bool| {
            let mut told = 0;
            for _ in 0..for_periods {
                session.tick(store.now, &mut store);
                if !late {
                    while let Some(event) = store.poll() {
                        session.handle(store.now, &mut store, event);
                    }
                }
                while let Some(event) = session.poll_event() {
                    told += u32::from(event == SessionEvent::StoreLate(period * 8));
                }
                store.now += period;
            }
            told
        };
        assert_eq!(told(20, false), 0);
        assert_eq!(told(100, true), 1);
        assert_eq!(told(20, false), 0);
        assert_eq!(told(7, true), 0);
        assert_eq!(told(20, true), 1);
    }

    /// I12: who finds a slot taken leaves it to whom it belongs: a living client, or a dead one that has to be fenced.
    #[test]
    fn a_slot_is_given_back_by_its_client_only() {
        for dead in [false, true] {
            let mut store = Lossy::new(|_| false);
            let run = |session: &mut Session, store: &mut Lossy| {
                session.tick(Duration::ZERO, store);
                while let Some(event) = store.poll() {
                    session.handle(Duration::ZERO, store, event);
                }
                session.poll_event()
            };
            let holder = |store: &mut Lossy| {
                let prefix = SLOT.to_owned();
                let reply = store.ledger.apply(store.now, &Request::List { prefix });
                match reply.unwrap() {
                    Reply::Items(items, _) => items.first().map(|item| decode(item).unwrap()),
                    other => panic!("{other:?}"),
                }
            };
            let settings = |boot| SessionSettings {
                slot: Slot::new(0).unwrap(),
                boot: Boot(boot),
                period: Duration::from_millis(50),
                misses: 6,
            };
            let (mut first, mut second) = (Session::new(settings(1)), Session::new(settings(2)));
            assert_eq!(run(&mut first, &mut store), None);
            assert_eq!(holder(&mut store), Some(Boot(1)));
            if dead {
                store.ledger.expire_all();
            }
            assert_eq!(run(&mut second, &mut store), Some(SessionEvent::Taken));
            second.leave(Duration::ZERO, &mut store);
            assert_eq!(holder(&mut store), Some(Boot(1)));
            first.leave(Duration::ZERO, &mut store);
            assert_eq!(holder(&mut store), None);
        }
    }

    /// D4: a client that is over has nothing to do, and does not look without a pause until its program has noticed.
    #[test]
    fn who_is_over_sleeps() {
        let settings = SessionSettings {
            slot: Slot::new(0).unwrap(),
            boot: Boot(1),
            period: Duration::from_millis(50),
            misses: 6,
        };
        let mut session = Session::new(settings);
        session.end(SessionEvent::Fenced);
        let mut store = Lossy {
            ledger: Ledger::new(),
            now: Duration::from_secs(1),
            loses: |_| false,
            lost: 0,
            tickets: 0,
            events: VecDeque::new(),
        };
        session.tick(store.now, &mut store);
        assert!(session.next_tick() > store.now);
        assert_eq!(store.poll(), None);
    }
}
