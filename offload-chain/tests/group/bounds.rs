//! Rings that run dry, clients that hoard (O5, I16, I18).

use offload_chain::group::{Durability, Outcome, Primitive, PrimitiveError, Primitives, Topology};
use softrdma::offload::Flaw;

use super::world::{Kind, World, shape};

fn write(turn: u64) -> Primitive {
    Primitive::Write {
        offset: turn % 100 * 64,
        bytes: turn.to_le_bytes().to_vec(),
        durability: Durability::Visible,
    }
}

/// A client may have its slots under way, then hears that it has to wait; after an answer there is room for one more.
#[test]
fn a_client_with_all_slots_in_use_is_told_so() {
    let mut world = World::new(shape(3), Kind::Memory, 1, 1, None);
    let slots = u64::from(world.shape.slots);
    for turn in 0..slots {
        world.client(0).post(write(turn)).unwrap();
    }
    assert_eq!(world.client(0).post(write(9)), Err(PrimitiveError::Full));
    world.run();
    assert_eq!(world.outcomes(0).len() as u64, slots);
    for turn in 0..slots {
        world.client(0).post(write(turn)).unwrap();
    }
    // READs have a bound of their own.
    let read = Primitive::Read {
        member: 0,
        offset: 0,
        length: 1,
    };
    assert!(world.client(0).post(read).is_ok());
}

/// Outcomes that nobody takes do not pile up: they hold their slots (I16).
#[test]
fn outcomes_that_are_not_taken_hold_their_slots() {
    let mut world = World::new(shape(2), Kind::Memory, 1, 1, None);
    let slots = u64::from(world.shape.slots);
    for turn in 0..slots {
        world.client(0).post(write(turn)).unwrap();
    }
    world.run();
    assert_eq!(world.client(0).post(write(9)), Err(PrimitiveError::Full));
    assert!(world.client(0).poll().is_some());
    assert!(world.client(0).post(write(9)).is_ok());
}

/// The lane is a bound too: two of the longest WRITEs are under way at most.
#[test]
fn a_full_lane_is_back_pressure() {
    let mut world = World::new(shape(2), Kind::Memory, 1, 1, None);
    let long = || Primitive::Write {
        offset: 0,
        bytes: vec![1; 32 << 10],
        durability: Durability::Visible,
    };
    world.client(0).post(long()).unwrap();
    world.client(0).post(long()).unwrap();
    assert_eq!(world.client(0).post(long()), Err(PrimitiveError::Full));
    world.run();
    world.client(0).post(long()).unwrap();
}

/// Four clients over rings of two operations: the members run dry, wait, and lose nothing and no order.
pub fn dry(topology: Topology, flaw: Option<Flaw>) {
    let mut shape = shape(3);
    shape.topology = topology;
    shape.depth = 2;
    let mut world = World::new(shape, Kind::Pm { late: 30 }, 4, 3, flaw);
    let mut answered = [0; 4];
    let mut posted = [0; 4];
    while answered.iter().any(|&count| count < 60) {
        for client in 0..4 {
            while posted[client] < 60 {
                let turn = posted[client];
                let primitive = Primitive::Write {
                    offset: (client as u64 * 60 + turn) * 64,
                    bytes: vec![turn as u8 + 1; 64],
                    durability: Durability::Durable,
                };
                match world.client(client).post(primitive) {
                    Ok(_) => posted[client] += 1,
                    Err(error) => {
                        assert_eq!(error, PrimitiveError::Full);
                        break;
                    }
                }
            }
            for (_, outcome) in world.outcomes(client) {
                assert_eq!(outcome, Ok(Outcome::Done));
                answered[client] += 1;
            }
        }
        assert!(world.step() || answered == [60; 4], "{answered:?}");
    }
    for member in 0..3 {
        for turn in 0..240_usize {
            let expected = [(turn % 60) as u8 + 1; 64];
            assert_eq!(
                world.bytes(member, turn as u64 * 64, 64),
                expected,
                "{member} {turn}"
            );
        }
    }
    let head = world.members[0];
    let engine = world.net.member(head).unwrap().engine();
    assert!(
        engine.times_dry() > 0,
        "the rings were too small to hold all"
    );
    // And the first of each client, which clears its lane.
    assert_eq!(engine.operations(), (244, 244));
}

#[test]
fn a_dry_ring_makes_the_stream_wait() {
    dry(Topology::Chain, None);
    dry(Topology::Star, None);
}

/// A client that takes none of its answers delays nobody.
#[test]
fn a_client_that_does_not_read_delays_nobody() {
    let mut world = World::new(shape(2), Kind::Memory, 2, 1, None);
    let (tail, deaf) = (world.members[1], world.clients[0]);
    world.net.hold(tail, deaf, true);
    for turn in 0..u64::from(world.shape.slots) {
        world.client(0).post(write(turn)).unwrap();
    }
    for turn in 0..100 {
        assert_eq!(world.call(1, write(turn)), Ok(Outcome::Done));
    }
    assert!(world.outcomes(0).is_empty());
    world.net.hold(tail, deaf, false);
    world.run();
    assert_eq!(world.outcomes(0).len(), usize::from(world.shape.slots));
}
