//! The thread that keeps a client's place in the group, whatever the program does meanwhile.

use std::collections::BTreeMap;
use std::net::ToSocketAddrs;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::clock::since_boot;
use crate::config::{Event, Knock, Reply, Request, Store, Ticket};
use crate::epoch::Epoch;
use crate::group::tcp::Place;
use crate::host::{Timing, store_sleep};
use crate::lock::Slot;
use crate::membership::{
    Boot, Configuration, MEMBER, MemberId, Report, STORE_IS_LATE, Seat, Session, SessionEvent,
    SessionSettings, decode, store_patience,
};
use crate::tls::GroupTls;

/// So many times as long as a member a client may be silent. A member that is missed in error comes back by itself; a client has lost its
/// locks, and does not know what became of its records.
const CLIENT_MISSES: u32 = 4;

/// How long the store may take to hear that a client leaves.
const LEAVING: Duration = Duration::from_secs(2);

/// What the program hears.
#[derive(Debug)]
pub(super) enum News {
    /// The group of an epoch, and where its members are, head first: each has at least one address.
    Connect(Box<Configuration>, Vec<Place>),
    /// Nothing of that epoch is answered any more.
    Over(Epoch),
    /// The slot is another's now.
    Fenced,
    /// The slot was another's.
    Taken,
}

enum Told {
    /// The store may have something to say.
    Store,
    Broken(Epoch),
    Leave,
    /// The program is gone without a word.
    Gone,
}

/// The thread's handle.
#[derive(Debug)]
pub(super) struct SessionThread {
    told: Sender<Told>,
    news: Receiver<News>,
    thread: Option<JoinHandle<Box<dyn Store + Send>>>,
}

impl SessionThread {
    pub(super) fn start(
        mut store: Box<dyn Store + Send>,
        slot: Slot,
        timing: Timing,
        tls: Option<GroupTls>,
    ) -> std::io::Result<Self> {
        let (told, hears) = channel();
        let (tells, news) = channel();
        let knock = Knock::default();
        let wakes = told.clone();
        // It fails when the thread has ended.
        let woken = store.wake_by(knock.wake(move || drop(wakes.send(Told::Store))));
        let mut worker = Worker {
            session: Session::new(SessionSettings {
                slot,
                boot: Boot(rand::random()),
                period: timing.period,
                misses: timing.misses.saturating_mul(CLIENT_MISSES),
            }),
            store,
            hears,
            tells,
            wanted: None,
            asked: None,
            rests: Duration::ZERO,
            reports: BTreeMap::new(),
            knock,
            woken,
            timing,
            tls,
        };
        let thread = std::thread::Builder::new()
            .name("chain-session".into())
            .spawn(move || {
                worker.run();
                worker.store
            })?;
        Ok(Self {
            told,
            news,
            thread: Some(thread),
        })
    }

    /// What there is to hear, waiting at most so long.
    pub(super) fn hear(&self, wait: Duration) -> Option<News> {
        self.news.recv_timeout(wait).ok()
    }

    /// The group of this epoch does not answer.
    pub(super) fn broken(&self, epoch: Epoch) {
        // It fails when the thread has ended: the program has heard why.
        let _ = self.told.send(Told::Broken(epoch));
    }

    /// Gives the slot back, and the store. Nothing may be locked.
    pub(super) fn leave(mut self) -> Option<Box<dyn Store + Send>> {
        // As above.
        let _ = self.told.send(Told::Leave);
        self.thread.take()?.join().ok()
    }
}

impl Drop for SessionThread {
    fn drop(&mut self) {
        // As above.
        let _ = self.told.send(Told::Gone);
    }
}

struct Worker {
    session: Session,
    store: Box<dyn Store + Send>,
    hears: Receiver<Told>,
    tells: Sender<News>,
    /// An epoch to connect in, when it is known where its members are.
    wanted: Option<Box<Configuration>>,
    asked: Option<(Ticket, Duration)>,
    /// Not asked again before, whoever is missed there: some stores answer at once.
    rests: Duration,
    /// Members as last seen: where they are changes with their lives only.
    reports: BTreeMap<MemberId, Report>,
    knock: Knock,
    woken: bool,
    timing: Timing,
    tls: Option<GroupTls>,
}

impl Worker {
    fn run(&mut self) {
        let mut leaving: Option<(Ticket, Duration)> = None;
        loop {
            let now = since_boot();
            let due = self.session.next_tick().saturating_sub(now);
            // Then the program waits.
            let urgent = self.session.is_between_epochs() || self.wanted.is_some();
            let wait = due.min(store_sleep(self.woken, urgent));
            let wait = match self.wanted {
                // An answer wakes it.
                Some(_) if self.asked.is_none() => wait.min(self.rests.saturating_sub(now)),
                _ => wait,
            };
            match self.hears.recv_timeout(wait) {
                Ok(Told::Broken(epoch)) => {
                    self.session.broken(since_boot(), &mut self.store, epoch)
                }
                // It is fenced when its lease is over, as if it had been killed: it may have held locks.
                Ok(Told::Gone) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(Told::Leave) => {
                    self.session.leave(since_boot(), &mut self.store);
                    // Answers come in the order of asking: with this one, the others are there.
                    let prefix = MEMBER.to_owned();
                    let last = self.store.submit(Request::List { prefix });
                    leaving = Some((last, since_boot() + LEAVING));
                }
                Ok(Told::Store) | Err(RecvTimeoutError::Timeout) => {}
            }
            self.knock.looks();
            let now = since_boot();
            while let Some(event) = self.store.poll() {
                let answers = |last| matches!(&event, Event::Answer(ticket, _) if *ticket == last);
                if leaving.is_some_and(|(last, _)| answers(last)) {
                    return;
                }
                self.told(now, event);
            }
            if leaving.is_some_and(|(_, until)| now > until) {
                return;
            }
            self.session.tick(now, &mut self.store);
            while let Some(event) = self.session.poll_event() {
                let news = match event {
                    SessionEvent::Connect(config) => {
                        self.wanted = Some(config);
                        self.connect();
                        continue;
                    }
                    SessionEvent::Over(epoch) => {
                        self.wanted = None;
                        // Soon it has to be known where the members of the next are.
                        self.look_up(now);
                        News::Over(epoch)
                    }
                    SessionEvent::Fenced => News::Fenced,
                    SessionEvent::Taken => News::Taken,
                    SessionEvent::StoreLate(after) => {
                        tracing::warn!(?after, "{STORE_IS_LATE}");
                        continue;
                    }
                };
                self.tell(news);
            }
            let again = |(_, at): (Ticket, Duration)| now > at + store_patience(self.timing.period);
            if self.wanted.is_some() && self.asked.is_none_or(again) && now >= self.rests {
                self.look_up(now);
            }
        }
    }

    fn look_up(&mut self, now: Duration) {
        let prefix = MEMBER.to_owned();
        let ticket = self.store.submit(Request::List { prefix });
        self.asked = Some((ticket, now));
        self.rests = now + self.timing.period / 5;
    }

    fn told(&mut self, now: Duration, event: Event) {
        let own = self.asked.map(|(ticket, _)| ticket);
        match event {
            Event::Answer(ticket, answer) if Some(ticket) == own => {
                self.asked = None;
                if let Ok(Reply::Items(items, _)) = answer {
                    let reports = items.iter().filter_map(|item| decode::<Report>(item).ok());
                    self.reports = reports.map(|report| (report.seat.id, report)).collect();
                    self.connect();
                }
            }
            event => self.session.handle(now, &mut self.store, event),
        }
    }

    /// Tells the program where to connect, if that is wanted and known.
    fn connect(&mut self) {
        let Some(config) = self.wanted.take() else {
            return;
        };
        let place = |seat: &Seat| {
            let report = self.reports.get(&seat.id);
            let report = report.filter(|report| report.seat == *seat);
            let address = &report?.address;
            let addresses = Vec::from_iter(address.to_socket_addrs().ok()?);
            let tls = self.tls.as_ref().map(|tls| tls.to(address));
            let tls = tls.transpose().ok()?;
            (!addresses.is_empty()).then_some(Place { addresses, tls })
        };
        let places: Option<Vec<_>> = config.chain.iter().map(place).collect();
        match places {
            Some(places) => self.tell(News::Connect(config, places)),
            // Another look; or somebody is gone, and another epoch comes.
            None => self.wanted = Some(config),
        }
    }

    fn tell(&self, news: News) {
        // It fails when the program is gone, which the next turn notices.
        let _ = self.tells.send(news);
    }
}
