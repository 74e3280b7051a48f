//! Who finds its group broken tells the store until that has heard it: if nobody else is hit, nobody else does.

use std::time::Duration;

use crate::support::mem::Mem;
use crate::support::near::Near;
use offload_chain::Epoch;
use offload_chain::config::{Reply, Request, Store};
use offload_chain::lock::Slot;
use offload_chain::membership::{
    Boot, DOUBT, Doubt, Member, MemberId, MemberSettings, Seat, Session, SessionSettings, decode,
};

const PERIOD: Duration = Duration::from_millis(10);

/// What the store has been told, by epoch.
fn told(store: &mut Near) -> Vec<(String, Doubt)> {
    let prefix = DOUBT.to_owned();
    let list = Request::List { prefix };
    let Ok(Reply::Items(items, _)) = store.ledger.apply(Duration::ZERO, &list) else {
        panic!("a list is answered");
    };
    let doubts = items.iter();
    doubts
        .map(|item| (item.key.clone(), decode(item).unwrap()))
        .collect()
}

fn store() -> Near {
    Near::losing(DOUBT, 2)
}

/// A request that is lost is made again, a few heartbeats later; one that was answered is not.
#[test]
fn a_client_tells_until_it_is_heard() {
    let mut store = store();
    let mut session = Session::new(SessionSettings {
        slot: Slot::new(3).unwrap(),
        boot: Boot(1),
        period: PERIOD,
        misses: 3,
    });
    session.broken(Duration::ZERO, &mut store, Epoch(4));
    assert_eq!(told(&mut store), []);
    let mut now = Duration::ZERO;
    let mut run = |store: &mut Near, periods: u32| {
        for _ in 0..periods {
            now += PERIOD;
            session.tick(now, store);
            while let Some(event) = store.poll() {
                session.handle(now, store, event);
            }
        }
    };
    run(&mut store, 30);
    let doubt = Doubt { suspect: None };
    assert_eq!(told(&mut store), [("doubt/4".to_owned(), doubt)]);
    // A controller has dealt with it.
    store.loses = (DOUBT, 1);
    run(&mut store, 30);
    assert_eq!(store.loses, (DOUBT, 1), "it is not told again");
}

fn member(id: u32) -> Member {
    Member::new(MemberSettings {
        seat: Seat {
            id: MemberId(id),
            boot: Boot(1),
        },
        address: "here".into(),
        period: PERIOD,
        misses: 3,
        read_lease: PERIOD,
        ready_chunks: 1,
        media_patience: Duration::from_secs(1),
        planted: None,
    })
}

/// The same of a member, which knows whom it suspects.
#[test]
fn a_member_tells_until_it_is_heard() {
    let mut store = store();
    let mut memory = Mem::new(1 << 14);
    let mut member = member(0);
    member.doubt(&mut store, Epoch(4), Some(MemberId(7)));
    assert_eq!(told(&mut store), []);
    let mut now = Duration::ZERO;
    let mut run = |store: &mut Near, periods: u32| {
        for _ in 0..periods {
            now += PERIOD;
            member.tick(now, store, &mut memory);
            while let Some(event) = store.poll() {
                member.handle(now, store, &mut memory, event);
            }
        }
    };
    run(&mut store, 30);
    let suspect = Some(MemberId(7));
    let doubt = Doubt { suspect };
    assert_eq!(told(&mut store), [("doubt/4".to_owned(), doubt)]);
    store.loses = (DOUBT, 1);
    run(&mut store, 30);
    assert_eq!(store.loses, (DOUBT, 1), "it is not told again");
}

/// The first who names a member stays: it is not overwritten by others, nor by who knows of nobody; who knows of nobody is.
#[test]
fn the_first_name_stays() {
    for somebody_knows_nobody in [false, true] {
        let mut store = Near::default();
        let mut memory = Mem::new(1 << 14);
        let mut now = Duration::ZERO;
        let epoch = Epoch(4);
        let mut tells = |store: &mut Near, doubter, suspect| {
            let mut member = member(doubter);
            member.doubt(store, epoch, suspect);
            for _ in 0..5 {
                now += PERIOD;
                while let Some(event) = store.poll() {
                    member.handle(now, store, &mut memory, event);
                }
                member.tick(now, store, &mut memory);
            }
            // It is heard, whatever it said.
            while let Some(event) = store.poll() {
                member.handle(now, store, &mut memory, event);
            }
            store.loses = (DOUBT, 1);
            now += PERIOD;
            member.tick(now, store, &mut memory);
            assert_eq!(store.loses, (DOUBT, 1), "it is told again");
            store.loses = ("", 0);
            while store.poll().is_some() {}
        };
        if somebody_knows_nobody {
            tells(&mut store, 0, None);
        }
        tells(&mut store, 1, Some(MemberId(2)));
        tells(&mut store, 3, Some(MemberId(1)));
        tells(&mut store, 4, None);
        let suspect = Some(MemberId(2));
        assert_eq!(
            told(&mut store),
            [("doubt/4".to_owned(), Doubt { suspect })]
        );
        // Nor by a client, which never knows.
        let mut session = Session::new(SessionSettings {
            slot: Slot::new(3).unwrap(),
            boot: Boot(1),
            period: PERIOD,
            misses: 3,
        });
        session.broken(Duration::ZERO, &mut store, epoch);
        let suspect = Some(MemberId(2));
        assert_eq!(
            told(&mut store),
            [("doubt/4".to_owned(), Doubt { suspect })]
        );
    }
}
