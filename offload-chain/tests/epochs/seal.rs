//! A member seals in two steps: its engine stops and what it does to its memory ends, then it looks at its log and reports (E2, I1, I12).

use std::cell::RefCell;
use std::time::Duration;

use crate::support::mem::Mem;
use crate::support::near::Near;
use offload_chain::Epoch;
use offload_chain::config::{Expect, Reply, Request, Store};
use offload_chain::log::{HEADER_BYTES, HEADER_SLOTS, Header, Layout, format};
use offload_chain::membership::{
    Action, Birth, Boot, CONFIG, Configuration, MEMBER, Member, MemberId, MemberSettings, Phase,
    Report, Seat, Work, decode, encode,
};
use offload_chain::memory::{Memory, MemoryError};
use offload_chain::planted::Bug;

const SEAT: Seat = Seat {
    id: MemberId(0),
    boot: Boot(1),
};
const MEDIA_PATIENCE: Duration = Duration::from_secs(1);
const BIRTH: Birth = Birth {
    locks: 1,
    ring_bytes: 512,
    data_bytes: 64,
    salt: 7,
    token: [7; 16],
    topology: offload_chain::group::Topology::Chain,
    executes: true,
    durable: true,
};

/// A member of a chain of one that was active in epoch 1, and the store.
struct Scene {
    store: Near,
    member: Member,
    memory: Mem,
    now: Duration,
    header: Header,
}

fn scene(planted: Option<Bug>) -> Scene {
    let header = Header {
        term: Epoch(1),
        ..BIRTH.header().unwrap()
    };
    let mut memory = Mem::new(header.layout.size());
    format(&mut memory, &header).unwrap();
    let member = Member::new(MemberSettings {
        seat: SEAT,
        address: "here".into(),
        period: Duration::from_millis(10),
        misses: 3,
        read_lease: Duration::from_millis(30),
        ready_chunks: 1,
        media_patience: MEDIA_PATIENCE,
        planted,
    });
    let mut scene = Scene {
        store: Near::default(),
        member,
        memory,
        now: Duration::ZERO,
        header,
    };
    scene.configure(2);
    scene
}

impl Scene {
    fn configure(&mut self, epoch: u64) {
        self.configure_phase(epoch, Phase::Seal);
    }

    fn configure_phase(&mut self, epoch: u64, phase: Phase) {
        let value = encode(&Configuration {
            epoch: Epoch(epoch),
            phase,
            source: Some(SEAT.id),
            chain: vec![SEAT],
            vouching: vec![SEAT.id],
            active_epoch: Epoch(1),
            active_chain: vec![SEAT],
            ..Configuration::new(BIRTH, vec![SEAT.id])
        });
        let (key, expect, lease) = (CONFIG.into(), Expect::Anything, None);
        self.store.submit(Request::Put {
            key,
            value,
            expect,
            lease,
        });
    }

    /// A few heartbeats; what the member wants done.
    fn run(&mut self) -> Vec<Action> {
        for _ in 0..4 {
            self.now += Duration::from_millis(10);
            let (store, memory) = (&mut self.store, &mut self.memory);
            self.member.tick(self.now, store, memory);
            while let Some(event) = self.store.poll() {
                let (store, memory) = (&mut self.store, &mut self.memory);
                self.member.handle(self.now, store, memory, event);
            }
        }
        std::iter::from_fn(|| self.member.poll_action()).collect()
    }

    /// The engine has stopped; and if the member wants to look at its log then, it does.
    fn closed(&mut self, epoch: u64) {
        if let Some(looks) = self.stopped(epoch) {
            self.work(&looks);
            self.run();
        }
    }

    /// The engine has stopped; what the member wants done then.
    fn stopped(&mut self, epoch: u64) -> Option<Work> {
        let (store, memory) = (&mut self.store, &mut self.memory);
        self.member.closed(self.now, store, memory, Epoch(epoch));
        self.wanted()
    }

    fn wanted(&mut self) -> Option<Work> {
        self.run().into_iter().find_map(|action| match action {
            Action::Work(work) => Some(work),
            _ => None,
        })
    }

    /// What the engine had in hand: the header goes on.
    fn engine_goes_on(&mut self) {
        self.header = self.header.advanced(self.header.sequence + 1, 64);
        let bytes = self.header.emit();
        self.memory.write(self.header.at(), &bytes).unwrap();
    }

    /// Sealed, and asked to recover for epoch 2.
    fn recovering(planted: Option<Bug>) -> (Self, Work) {
        let mut scene = scene(planted);
        scene.run();
        scene.closed(2);
        scene.configure_phase(2, Phase::Sync);
        scene.run();
        scene.configure_phase(2, Phase::Recover);
        let work = scene.wanted().expect("there is something to be done");
        (scene, work)
    }

    fn work(&mut self, work: &Work) {
        let result = work.run(&mut self.memory);
        let (store, memory) = (&mut self.store, &mut self.memory);
        self.member.done(self.now, store, memory, result);
    }

    /// What the store has of it: what it has sealed, and the end of its log.
    fn reported(&mut self) -> (Epoch, Option<(Epoch, u64)>) {
        let report = self.report();
        (report.sealed, report.log)
    }

    fn report(&mut self) -> Report {
        let prefix = MEMBER.to_owned();
        let list = Request::List { prefix };
        let Ok(Reply::Items(items, _)) = self.store.ledger.apply(Duration::ZERO, &list) else {
            panic!("a list is answered");
        };
        decode(&items[0]).unwrap()
    }
}

/// However long the engine takes, nothing is reported before it has stopped, and the log that is reported is the one that it has left.
#[test]
fn the_log_is_looked_at_when_the_engine_has_stopped() {
    let mut scene = scene(None);
    let closes: Vec<Action> = scene.run();
    assert_eq!(closes, [Action::Close(Epoch(2))]);
    scene.engine_goes_on();
    assert_eq!(scene.run(), []);
    assert_eq!(scene.reported(), (Epoch(0), None));
    scene.engine_goes_on();
    scene.closed(2);
    assert_eq!(scene.reported(), (Epoch(2), Some((Epoch(1), 3))));
}

/// Another epoch may come while the engine stops for one: it has to have stopped for the last.
#[test]
fn the_last_epoch_counts() {
    let mut scene = scene(None);
    scene.run();
    scene.configure(3);
    assert_eq!(scene.run(), [Action::Close(Epoch(3))]);
    scene.closed(2);
    assert_eq!(scene.reported(), (Epoch(0), None));
    scene.engine_goes_on();
    scene.closed(3);
    assert_eq!(scene.reported(), (Epoch(3), Some((Epoch(1), 2))));
}

/// A member whose media take long says that it lives, and gets on; not for ever.
#[test]
fn slow_media_are_progress() {
    let (mut scene, work) = Scene::recovering(None);
    let mut told = scene.report().progress;
    for _ in 0..20 {
        assert_eq!(scene.run(), []);
        let progress = scene.report().progress;
        assert!(progress > told, "{progress} after {told}");
        told = progress;
    }
    scene.now += MEDIA_PATIENCE;
    scene.run();
    told = scene.report().progress;
    scene.run();
    assert_eq!(scene.report().progress, told);
    // Late is better than never.
    scene.work(&work);
    let opens: Vec<Action> = scene.run();
    assert_eq!(opens, [Action::Open(Epoch(2), vec![SEAT])]);
    assert_eq!(scene.report().recovered, Epoch(2));
}

/// What a member does to its memory for one epoch is over before it looks at its log for another.
#[test]
fn the_log_is_looked_at_when_recovery_has_ended() {
    let (mut scene, work) = Scene::recovering(None);
    scene.configure(3);
    assert_eq!(scene.run(), [Action::Close(Epoch(3))]);
    scene.closed(3);
    assert_eq!(scene.reported(), (Epoch(2), Some((Epoch(1), 1))));
    scene.work(&work);
    // It does not open what is over.
    let actions = scene.run();
    let [Action::Work(looks)] = &actions[..] else {
        panic!("{actions:?}");
    };
    scene.work(looks);
    assert_eq!(scene.run(), []);
    assert_eq!(scene.reported(), (Epoch(3), Some((Epoch(2), 1))));
}

/// A log may be as large as takes long to look at: that is done elsewhere, and counts as progress. If there is another epoch by then, it is
/// looked at again.
#[test]
fn the_log_is_looked_at_elsewhere() {
    let mut scene = scene(None);
    scene.run();
    let looks = scene.stopped(2).expect("it wants to look");
    assert_eq!(scene.reported(), (Epoch(0), None));
    let told = scene.report().progress;
    assert_eq!(scene.run(), []);
    assert!(scene.report().progress > told);
    scene.configure(3);
    assert_eq!(scene.run(), [Action::Close(Epoch(3))]);
    scene.work(&looks);
    assert_eq!(scene.run(), [], "the engine has not stopped for the next");
    assert_eq!(scene.reported(), (Epoch(0), None));
    scene.closed(3);
    assert_eq!(scene.reported(), (Epoch(3), Some((Epoch(1), 1))));
}

/// What a former life said may get to the store late, and take the place of what this one says until its lease is over. A member whom nobody
/// would miss then, as it is in no chain that is active, says it again: others may wait for it, and for nobody else.
#[test]
fn what_a_former_life_said_does_not_stay() {
    let mut scene = scene(None);
    scene.run();
    scene.closed(2);
    let own = scene.report();
    for late in [true, false] {
        let key = format!("{MEMBER}{}", SEAT.id);
        let expect = Expect::Anything;
        let request = match late {
            true => Request::Put {
                key,
                value: encode(&Report {
                    seat: Seat {
                        boot: Boot(99),
                        ..SEAT
                    },
                    log: None,
                    ..own.clone()
                }),
                expect,
                lease: None,
            },
            false => Request::Delete { key, expect },
        };
        scene.store.submit(request);
        for _ in 0..10 {
            scene.run();
        }
        assert_eq!(scene.report(), own);
    }
}

/// Memory each access to which takes long, and what happens meanwhile.
struct Slow<'a, F> {
    memory: &'a mut Mem,
    meanwhile: RefCell<F>,
}

impl<F: FnMut()> Memory for Slow<'_, F> {
    fn size(&self) -> u64 {
        self.memory.size()
    }

    fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), MemoryError> {
        let read = self.memory.read(offset, to);
        (self.meanwhile.borrow_mut())();
        read
    }

    fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), MemoryError> {
        let written = self.memory.write(offset, from);
        (self.meanwhile.borrow_mut())();
        written
    }

    fn flush(&mut self) -> Result<(), MemoryError> {
        self.memory.flush()
    }

    fn generation(&self) -> u64 {
        self.memory.generation()
    }

    fn changed_since(&self, generation: u64) -> Vec<u64> {
        self.memory.changed_since(generation)
    }
}

/// I16: work that takes many times as long as media may take for a step is progress as long as its steps are done: a large log would never be
/// recovered otherwise, as everybody would be given up in each epoch that is tried.
#[test]
fn long_work_is_progress() {
    let (mut scene, work) = Scene::recovering(None);
    let mut other = scene.memory.clone();
    let mut told = vec![scene.report().progress];
    let (store, member, now) = (&mut scene.store, &mut scene.member, &mut scene.now);
    let begun = *now;
    let step = || {
        *now += MEDIA_PATIENCE * 3 / 4;
        // The access is counted when it has ended, and is seen with the next heartbeat.
        member.tick(*now, store, &mut other);
        while let Some(event) = store.poll() {
            member.handle(*now, store, &mut other, event);
        }
        told.push(member.report().progress);
    };
    let memory = &mut scene.memory;
    let meanwhile = RefCell::new(step);
    work.run(&mut Slow { memory, meanwhile }).unwrap();
    assert!(scene.now > begun + MEDIA_PATIENCE * 4);
    assert!(
        told.is_sorted_by(|before, after| before < after),
        "{told:?}"
    );
}

/// I16: a member that cannot recover is late, and left out: to try it again, as long as that may take, is no progress.
#[test]
fn what_cannot_be_recovered_is_not_tried_for_ever() {
    let (mut scene, mut work) = Scene::recovering(None);
    for slot in 0..HEADER_SLOTS {
        let at = Layout::header_at(slot);
        scene.memory.write(at, &[0; HEADER_BYTES]).unwrap();
    }
    // It takes some heartbeats, and then it looks what is left.
    for _ in 0..2 {
        scene.run();
        scene.work(&work);
        let Some(next) = scene.wanted() else { break };
        work = next;
    }
    let told = scene.report().progress;
    assert_eq!(scene.run(), []);
    assert_eq!(scene.report().progress, told);
    assert_eq!(scene.reported(), (Epoch(2), None));
    // In another epoch there may be something to recover.
    scene.configure(3);
    assert_eq!(scene.run(), [Action::Close(Epoch(3))]);
}

/// M12: a member that looks while it recovers would be noticed.
#[test]
fn looking_while_it_recovers_is_noticed() {
    let (mut scene, _) = Scene::recovering(Some(Bug::WorkNotAwaited));
    scene.configure(3);
    scene.run();
    scene.closed(3);
    assert_eq!(scene.reported(), (Epoch(3), Some((Epoch(1), 1))));
}

/// M12: a member that looks too early would be noticed.
#[test]
fn looking_early_is_noticed() {
    let mut scene = scene(Some(Bug::SealedBeforeClosed));
    let looks = scene.wanted().expect("it wants to look");
    scene.work(&looks);
    scene.engine_goes_on();
    scene.closed(2);
    assert_eq!(scene.reported(), (Epoch(2), Some((Epoch(1), 1))));
}
