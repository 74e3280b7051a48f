//! What an epoch does about slots: of clients that died, and of nobody (I12, E1, E3; docs/membership.md).

use std::time::Duration;

use crate::support::mem::Mem;
use crate::support::near::Near;
use offload_chain::Epoch;
use offload_chain::config::{Expect, LeaseId, Reply, Request, Store};
use offload_chain::lock::{Slot, Word};
use offload_chain::log::{Header, Layout, format};
use offload_chain::membership::{
    Action, Birth, Boot, CLIENT, CONFIG, Configuration, Controller, ControllerSettings, Member,
    MemberId, MemberSettings, Phase, SLOT, Seat, Session, SessionEvent, SessionSettings,
    SlowPolicy, decode, encode,
};
use offload_chain::memory::Memory;
use offload_chain::planted::Bug;

const PERIOD: Duration = Duration::from_millis(10);
const MISSES: u32 = 3;
const SEAT: Seat = Seat {
    id: MemberId(0),
    boot: Boot(1),
};
const BIRTH: Birth = Birth {
    locks: 4,
    ring_bytes: 512,
    data_bytes: 64,
    salt: 7,
    token: [7; 16],
    topology: offload_chain::group::Topology::Chain,
    executes: true,
    durable: true,
};

fn slot(number: u32) -> Slot {
    Slot::new(number).unwrap()
}

fn layout() -> Layout {
    BIRTH.layout().unwrap()
}

/// A chain of one, active in epoch 1, its controller, and the store.
struct Scene {
    store: Near,
    member: Member,
    memory: Mem,
    controller: Controller,
    now: Duration,
    /// An epoch was active while the key of a client that it fences was there.
    early: bool,
}

impl Scene {
    /// `writers` have one lock each.
    fn new(store: Near, writers: &[Slot], planted: Option<Bug>) -> Self {
        let header = Header {
            term: Epoch(1),
            ..BIRTH.header().unwrap()
        };
        let mut memory = Mem::new(header.layout.size());
        format(&mut memory, &header).unwrap();
        for (lock, writer) in (0..).zip(writers) {
            let word = Word::written(1, *writer).0.to_le_bytes();
            memory.write(layout().lock_at(lock), &word).unwrap();
        }
        memory.flush().unwrap();
        let member = Member::new(MemberSettings {
            seat: SEAT,
            address: "here".into(),
            period: PERIOD,
            misses: MISSES,
            read_lease: PERIOD * MISSES,
            ready_chunks: 1,
            media_patience: PERIOD * 100,
            planted,
        });
        let controller = Controller::new(ControllerSettings {
            period: PERIOD,
            patience: PERIOD * 20,
            read_lease: PERIOD * MISSES,
            silence: PERIOD * MISSES,
            slow: SlowPolicy::default(),
            planted,
        });
        let mut scene = Self {
            store,
            member,
            memory,
            controller,
            now: Duration::ZERO,
            early: false,
        };
        let config = Configuration {
            epoch: Epoch(1),
            chain: vec![SEAT],
            active_epoch: Epoch(1),
            active_chain: vec![SEAT],
            ..Configuration::new(BIRTH, vec![SEAT.id])
        };
        scene.put(CONFIG.into(), encode(&config), None);
        scene
    }

    fn put(&mut self, key: String, value: Vec<u8>, lease: Option<LeaseId>) {
        let put = Request::Put {
            key,
            value,
            expect: Expect::Anything,
            lease,
        };
        let done = self.store.ledger.apply(Duration::ZERO, &put);
        assert!(matches!(done, Ok(Reply::Done(_))), "{done:?}");
    }

    /// The slot is taken; by a client that lives, or died.
    fn take(&mut self, slot: Slot, boot: Boot, lives: bool) {
        if lives {
            self.put(format!("{CLIENT}{}", slot.number()), encode(&boot), None);
        }
        self.put(format!("{SLOT}{}", slot.number()), encode(&boot), None);
    }

    /// A heartbeat of everybody.
    fn beat(&mut self) {
        self.now += PERIOD;
        let (store, memory) = (&mut self.store, &mut self.memory);
        self.member.tick(self.now, store, memory);
        while let Some(event) = store.poll() {
            self.member.handle(self.now, store, memory, event);
        }
        while let Some(action) = self.member.poll_action() {
            match action {
                Action::Close(epoch) => self.member.closed(self.now, store, memory, epoch),
                Action::Work(work) => {
                    let result = work.run(memory);
                    self.member.done(self.now, store, memory, result);
                }
                _ => {}
            }
        }
        // What it asked for after the last answer is answered to it, and not to the controller.
        while let Some(event) = store.poll() {
            self.member.handle(self.now, store, memory, event);
        }
        self.controller.tick(self.now, store);
        while let Some(event) = self.store.poll() {
            self.controller.handle(self.now, &mut self.store, event);
            let config = self.config();
            let keys = self.list(SLOT);
            let fenced = |(slot, boot): &(Slot, Boot)| {
                let key = format!("{SLOT}{}", slot.number());
                keys.iter()
                    .any(|item| item.key == key && decode::<Boot>(item).unwrap() == *boot)
            };
            self.early |= config.phase == Phase::Active && config.fenced.iter().any(fenced);
        }
    }

    fn list(&mut self, prefix: &str) -> Vec<offload_chain::config::Item> {
        let prefix = prefix.to_owned();
        match self
            .store
            .ledger
            .apply(Duration::ZERO, &Request::List { prefix })
        {
            Ok(Reply::Items(items, _)) => items,
            other => panic!("{other:?}"),
        }
    }

    fn config(&mut self) -> Configuration {
        decode(&self.list(CONFIG)[0]).unwrap()
    }

    fn is_active_in(&mut self, epoch: u64) -> bool {
        let config = self.config();
        (config.epoch, config.phase) == (Epoch(epoch), Phase::Active)
    }

    fn word(&self, lock: u32) -> Word {
        let mut bytes = [0; 8];
        let at = layout().lock_at(lock);
        self.memory.read(at, &mut bytes).unwrap();
        Word(u64::from_le_bytes(bytes))
    }
}

/// A client died, and the first two requests to delete the key of its slot get lost.
fn fences(planted: Option<Bug>) -> Scene {
    let mut scene = Scene::new(Near::losing(SLOT, 2), &[slot(3)], planted);
    scene.take(slot(3), Boot(9), false);
    for _ in 0..200 {
        scene.beat();
        if scene.config().phase == Phase::Active && scene.list(SLOT).is_empty() {
            assert_eq!(scene.word(0), Word::free(1), "it is free for others");
            return scene;
        }
    }
    panic!("not active: {:?}", scene.config());
}

/// E1, E3: an epoch in which the locks of a slot are free for others is not active as long as the key of its former client is there,
/// whatever became of the request to delete it: that client could wake up and connect.
#[test]
fn nothing_is_active_before_fenced_keys_are_gone() {
    let mut scene = fences(None);
    assert!(!scene.early);
    assert!(scene.is_active_in(2), "{:?}", scene.config());
}

/// M12: a controller that has only asked for that would be noticed.
#[test]
fn active_before_they_are_gone_is_noticed() {
    assert!(fences(Some(Bug::ActiveBeforeGone)).early);
}

/// E1: the client that wakes up when its epoch is over learns that it was fenced, though its key was deleted late.
#[test]
fn who_wakes_up_finds_that_it_was_fenced() {
    let mut scene = Scene::new(Near::default(), &[], None);
    let mut session = Session::new(SessionSettings {
        slot: slot(3),
        boot: Boot(9),
        period: PERIOD,
        misses: MISSES,
    });
    let mut events = Vec::new();
    let mut hears = |scene: &mut Scene| {
        session.tick(scene.now, &mut scene.store);
        while let Some(event) = scene.store.poll() {
            session.handle(scene.now, &mut scene.store, event);
        }
        events.extend(std::iter::from_fn(|| session.poll_event()));
        events.clone()
    };
    for _ in 0..4 {
        scene.beat();
        hears(&mut scene);
    }
    let connected = hears(&mut scene);
    assert!(matches!(connected[..], [SessionEvent::Connect(_)]));
    // It sleeps, and its lease ends; so does that of the member, which has another soon.
    scene.store.ledger.expire_all();
    scene.store.loses = (SLOT, 2);
    for _ in 0..200 {
        scene.beat();
    }
    assert!(scene.is_active_in(2), "{:?}", scene.config());
    for _ in 0..4 {
        scene.now += PERIOD;
        hears(&mut scene);
    }
    let learned = hears(&mut scene);
    let fenced = learned.last() == Some(&SessionEvent::Fenced);
    let connects = |event: &&SessionEvent| matches!(event, SessionEvent::Connect(_));
    assert!(
        fenced && learned.iter().filter(connects).count() == 1,
        "{learned:?}"
    );
}

/// I12: a new epoch frees what slots have that are nobody's, as what clients had that died; living clients keep theirs.
#[test]
fn an_epoch_frees_what_slots_without_keys_have() {
    let writers = [slot(1), slot(2), slot(5)];
    let mut scene = Scene::new(Near::default(), &writers, None);
    scene.take(slot(1), Boot(8), true);
    scene.take(slot(2), Boot(9), false);
    for _ in 0..200 {
        scene.beat();
        if scene.is_active_in(2) {
            let found = [0, 1, 2].map(|lock| scene.word(lock));
            let kept = Word::written(1, slot(1));
            assert_eq!(found, [kept, Word::free(1), Word::free(1)]);
            return;
        }
    }
    panic!("not active: {:?}", scene.config());
}
