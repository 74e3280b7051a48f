//! Read leases in the engine (I13; docs/membership.md): READs wait for a lease, no byte of one leaves that was taken when it may
//! have been over, and writes need none.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use offload_chain::group::{
    Durability, MemberEvent, Node, Outcome, Primitive, PrimitiveError, Primitives, ReadLease,
};
use offload_chain::planted::Bug;
use softrdma::Time;
use softrdma::offload::LinkId;

use super::world::{Kind, World, shape};

/// A clock that tests set, and that can run out by itself: it goes on by so much each time it is looked at.
#[derive(Debug, Default)]
struct Clock {
    ms: AtomicU64,
    runs: AtomicBool,
}

fn clock() -> (Arc<Clock>, impl Fn() -> Duration + Send + Sync + 'static) {
    let clock = Arc::new(Clock::default());
    let shared = Arc::clone(&clock);
    let read = move || {
        let step = u64::from(shared.runs.load(Ordering::Relaxed)) * 10;
        Duration::from_millis(shared.ms.fetch_add(step, Ordering::Relaxed))
    };
    (clock, read)
}

fn write(byte: u8) -> Primitive {
    Primitive::Write {
        offset: 0,
        bytes: vec![byte; 100],
        durability: Durability::Visible,
    }
}

const fn read(member: usize, length: usize) -> Primitive {
    Primitive::Read {
        member,
        offset: 0,
        length,
    }
}

/// A group of two whose members all have this lease, and a client.
fn world(kind: Kind, lease: &Arc<ReadLease>) -> World {
    World::with_reads(shape(2), kind, 1, 7, Some(Arc::clone(lease)))
}

/// While the lease does not hold a READ waits, writes are answered, and the member asks to be called again; when it is
/// extended the READ is answered, with what is there then.
#[test]
fn a_read_waits_for_the_lease_and_writes_do_not() {
    for kind in [Kind::Memory, Kind::Pm { late: 0 }] {
        let (now, read_clock) = clock();
        let lease = Arc::new(ReadLease::new(read_clock));
        let mut world = world(kind, &lease);
        for member in 0..2 {
            assert_eq!(world.call(0, write(1)), Ok(Outcome::Done));
            let flight = world.client(0).post(read(member, 100)).unwrap();
            world.run();
            assert_eq!(world.outcomes(0), []);
            assert_eq!(
                world.call(0, write(2)),
                Ok(Outcome::Done),
                "no lease needed"
            );
            let due = world
                .net
                .member(world.members[member])
                .unwrap()
                .poll_timeout();
            assert!(due.is_some_and(|due| due <= world.net.now() + Duration::from_millis(10)));
            // Still over: it looks again and again.
            world.net.advance(Duration::from_millis(10));
            world.run();
            assert_eq!(world.outcomes(0), []);
            let due = world
                .net
                .member(world.members[member])
                .unwrap()
                .poll_timeout();
            assert!(due.is_some_and(|due| due > world.net.now()));

            let until = Duration::from_millis(now.ms.load(Ordering::Relaxed) + 50);
            lease.extend(until);
            world.net.advance(Duration::from_millis(10));
            world.run();
            let answer = Ok(Outcome::Read(vec![2; 100]));
            assert_eq!(world.outcomes(0), [(flight, answer)]);
            world.net.advance(Duration::from_millis(10));
            let due = world
                .net
                .member(world.members[member])
                .unwrap()
                .poll_timeout();
            assert_eq!(due, None, "an idle member sleeps");
            now.ms.fetch_add(50, Ordering::Relaxed);
        }
        // A lease that holds is no hindrance; one that is withdrawn never holds again.
        lease.extend(Duration::from_secs(9));
        assert!(matches!(world.call(0, read(0, 5000)), Ok(Outcome::Read(_))));
        lease.withdraw();
        lease.extend(Duration::from_secs(99));
        world.client(0).post(read(0, 100)).unwrap();
        world.net.advance(Duration::from_millis(10));
        world.run();
        assert_eq!(world.outcomes(0), []);
    }
}

/// Bytes that the member hands to its driver for the link of the client, when the lease ends between the looking before and
/// the looking after; whether the link is lost.
fn over_in_between(kind: Kind, bug: Option<Bug>) -> (usize, bool) {
    let (now, read_clock) = clock();
    let lease = Arc::new(ReadLease::with_bug(read_clock, bug));
    let mut world = world(kind, &lease);
    assert_eq!(world.call(0, write(1)), Ok(Outcome::Done));
    world.client(0).post(read(0, 3000)).unwrap();
    world.run();
    let id = world.members[0];
    let member = world.net.member(id).unwrap();
    let links: Vec<LinkId> = member.engine().links().collect();
    // It holds when it is looked at once more, and not the next time.
    lease.extend(Duration::from_millis(5));
    now.runs.store(true, Ordering::Relaxed);
    let mut sent = 0;
    let mut out = b"of before".to_vec();
    for link in links {
        now.ms.store(0, Ordering::Relaxed);
        sent += member.poll_transmit(link, Time(0), &mut out, 1 << 20);
    }
    assert_eq!(&out[..9], b"of before");
    assert_eq!(out.len(), 9 + sent);
    let lost =
        std::iter::from_fn(|| member.poll_event()).any(|event| event == MemberEvent::ClientLeft(0));
    (sent, lost)
}

/// The member is stopped between looking at the lease and taking the bytes, and goes on when the lease is over: not one of
/// them leaves, and the link is lost.
#[test]
fn bytes_taken_when_the_lease_was_over_do_not_leave() {
    for kind in [Kind::Memory, Kind::Pm { late: 0 }] {
        assert_eq!(over_in_between(kind, None), (0, true));
        // M12: without looking afterwards they would.
        let (sent, lost) = over_in_between(kind, Some(Bug::LeaseLookedAtEarly));
        assert!(sent > 3000 && !lost, "{sent} {lost}");
    }
}

/// Wherever the lease ends, a READ is answered, waits, or ends with its link, of which the client hears; each of that happens.
#[test]
fn a_lease_may_end_at_any_look() {
    let (mut answered, mut waiting, mut lost) = (0, 0, 0);
    for looks in 0..60 {
        let (now, read_clock) = clock();
        let lease = Arc::new(ReadLease::new(read_clock));
        let mut world = world(Kind::Memory, &lease);
        let flight = world.client(0).post(read(1, 3000)).unwrap();
        world.run();
        lease.extend(Duration::from_millis(10 * looks));
        now.runs.store(true, Ordering::Relaxed);
        world.net.advance(Duration::from_millis(10));
        world.run();
        match &world.outcomes(0)[..] {
            [] => waiting += 1,
            [(of, Ok(Outcome::Read(bytes)))] if *of == flight && bytes == &[0; 3000] => {
                answered += 1;
            }
            [(of, Err(PrimitiveError::Broken(_)))] if *of == flight => lost += 1,
            other => panic!("{looks}: {other:?}"),
        }
    }
    assert!(
        answered > 0 && waiting > 0 && lost > 0,
        "{answered} {waiting} {lost}"
    );
}
