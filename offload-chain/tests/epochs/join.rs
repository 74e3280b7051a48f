//! A join is short, however much memory the members have: in its last round, in which nobody writes, only what has changed since the round
//! before is copied (I14; docs/membership.md).

use std::time::Duration;

use crate::support::mem::Mem;
use crate::support::near::Near;
use offload_chain::Epoch;
use offload_chain::config::{Expect, Reply, Request, Store};
use offload_chain::log::{Header, RecoverError, find_header};
use offload_chain::membership::{
    Action, Birth, Boot, CONFIG, Configuration, Controller, ControllerSettings, MEMBER, Member,
    MemberId, MemberSettings, Phase, Report, Seat, SlowPolicy, decode, encode,
};
use offload_chain::memory::Memory;

const PERIOD: Duration = Duration::from_millis(10);
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

fn seat(id: u32) -> Seat {
    Seat {
        id: MemberId(id),
        boot: Boot(u64::from(id)),
    }
}

fn blank() -> Mem {
    Mem::new(BIRTH.layout().unwrap().size())
}

fn put(store: &mut Near, key: String, value: Vec<u8>) {
    let put = Request::Put {
        key,
        value,
        expect: Expect::Anything,
        lease: None,
    };
    let done = store.ledger.apply(Duration::ZERO, &put);
    assert!(matches!(done, Ok(Reply::Done(_))), "{done:?}");
}

/// A chain of members 0, 1 and 2, active in epoch 1.
fn active() -> Configuration {
    let chain: Vec<Seat> = (0..3).map(seat).collect();
    Configuration {
        epoch: Epoch(1),
        chain: chain.clone(),
        active_epoch: Epoch(1),
        active_chain: chain,
        ..Configuration::new(BIRTH, (0..4).map(MemberId).collect())
    }
}

/// Whom member 3 asks first, if this is its memory.
fn asks(memory: &mut Mem) -> MemberId {
    let mut store = Near::default();
    put(&mut store, CONFIG.to_owned(), encode(&active()));
    let mut member = Member::new(MemberSettings {
        seat: seat(3),
        address: "here".into(),
        period: PERIOD,
        misses: 3,
        read_lease: PERIOD,
        ready_chunks: 1,
        media_patience: Duration::from_secs(1),
        planted: None,
    });
    for turn in 0..10 {
        let now = PERIOD * turn;
        member.tick(now, &mut store, memory);
        while let Some(event) = store.poll() {
            member.handle(now, &mut store, memory, event);
        }
        while let Some(action) = member.poll_action() {
            match action {
                Action::Close(epoch) => member.closed(now, &mut store, memory, epoch),
                Action::Work(work) => {
                    let result = work.run(memory);
                    member.done(now, &mut store, memory, result);
                }
                Action::Send(to, _) => return to,
                _ => {}
            }
        }
    }
    panic!("it asks nobody");
}

/// What the next epoch starts from, when the logs of the chain end so, head first.
fn source(ends: [u64; 3]) -> MemberId {
    let mut store = Near::default();
    let config = Configuration {
        epoch: Epoch(2),
        phase: Phase::Seal,
        vouching: (0..3).map(MemberId).collect(),
        ..active()
    };
    put(&mut store, CONFIG.to_owned(), encode(&config));
    for (seat, end) in config.chain.iter().zip(ends) {
        let report = Report {
            seat: *seat,
            address: "there".into(),
            log: Some((Epoch(1), end)),
            sealed: Epoch(2),
            synced: Epoch(1),
            recovered: Epoch(1),
            ready: None,
            progress: 0,
            behind: 0,
            lag_ms: 0,
        };
        put(&mut store, format!("{MEMBER}{}", seat.id), encode(&report));
    }
    let mut controller = Controller::new(ControllerSettings {
        period: PERIOD,
        patience: PERIOD * 20,
        read_lease: PERIOD * 3,
        silence: PERIOD * 3,
        slow: SlowPolicy::default(),
        planted: None,
    });
    controller.tick(PERIOD, &mut store);
    while let Some(event) = store.poll() {
        controller.handle(PERIOD, &mut store, event);
    }
    let list = Request::List {
        prefix: CONFIG.to_owned(),
    };
    let Ok(Reply::Items(items, _)) = store.ledger.apply(PERIOD, &list) else {
        panic!("a list is answered");
    };
    let next: Configuration = decode(&items[0]).unwrap();
    next.source.expect("all have sealed")
}

/// Whoever joins catches up from the member that the next epoch starts from: the head, which has all that any other has, whether something is
/// under way or not. From another one it would have to compare all of its memory while nobody writes.
#[test]
fn who_joins_catches_up_from_the_source() {
    for ends in [[5, 5, 5], [9, 7, 7], [9, 8, 7]] {
        assert_eq!(source(ends), asks(&mut blank()), "{ends:?}");
    }
}

/// I14: whatever memory of another group a member begins with, nothing of its headers is left when it asks: the one that recovery writes would
/// be older than they are.
#[test]
fn who_joins_forgets_another_groups_header() {
    for data_bytes in [0, BIRTH.data_bytes, 1 << 20] {
        let other = Birth {
            data_bytes,
            salt: 8,
            ..BIRTH
        };
        let header = Header {
            term: Epoch(1000),
            count: 1,
            ..other.header().unwrap()
        };
        let mut memory = blank();
        memory.write(header.at(), &header.emit()).unwrap();
        asks(&mut memory);
        let found = find_header(&memory);
        assert_eq!(found, Err(RecoverError::NoHeader), "{data_bytes}");
    }
}
