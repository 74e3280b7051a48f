//! Clients that lie, epochs that are over, links that end (I12, I10, O3).

use offload_chain::group::block::{BLOCK_BYTES, Kind as BlockKind};
use offload_chain::group::{
    BrokenGroup, Client, Denied, Durability, GroupShape, MemberEvent, MemberMap, Outcome,
    Primitive, PrimitiveError, Primitives, Topology,
};
use softrdma::offload::{Flaw, Refusal};
use softrdma::{Operation, Source, WorkRequest, WrId};

use super::world::{Kind, World, link, shape};

fn write(offset: u64, bytes: &[u8]) -> Primitive {
    Primitive::Write {
        offset,
        bytes: bytes.to_vec(),
        durability: Durability::Visible,
    }
}

/// Blocks of a gCAS of 0 by 99 at 64, as an honest client makes them.
fn honest(shape: &GroupShape, client: u16) -> Vec<u8> {
    let mut block = [0; BLOCK_BYTES];
    block[0] = BlockKind::Cas as u8;
    block[1] = 5;
    block[2..4].copy_from_slice(&client.to_le_bytes());
    block[4..8].copy_from_slice(&(shape.epoch as u32).to_le_bytes());
    block[8] = 64;
    block[24] = 99;
    block.repeat(shape.members)
}

fn send(world: &mut World, client: usize, message: Vec<u8>) {
    let send = Operation::Send {
        source: Source::Bytes(message),
        solicited: false,
        invalidate: None,
    };
    let request = WorkRequest::new(WrId(1), send);
    world.client(client).raw_post(0, request).unwrap();
}

fn refusals(world: &mut World) -> Vec<Refusal> {
    let events = world.events(0);
    let refused = |event| match event {
        MemberEvent::Refused(refusal) => Some(refusal),
        _ => None,
    };
    events.into_iter().filter_map(refused).collect()
}

/// Sends one message; what the head thinks of it. Another client works on before and after.
fn one(topology: Topology, change: impl FnOnce(&mut Vec<u8>), flaw: Option<Flaw>) -> Vec<Refusal> {
    let shape = GroupShape {
        topology,
        ..shape(3)
    };
    let mut world = World::new(shape, Kind::Memory, 2, 1, flaw);
    let mut message = honest(&world.shape, 0);
    change(&mut message);
    world.call(1, write(128, b"before")).unwrap();
    send(&mut world, 0, message);
    world.run();
    let refusals = refusals(&mut world);
    let changed = (0..3).any(|member| world.bytes(member, 64, 8) != [0; 8]);
    assert_eq!(
        changed,
        refusals.is_empty(),
        "refused and nothing else, or done"
    );
    assert_eq!(world.call(1, write(128, b"after!")), Ok(Outcome::Done));
    for member in 0..3 {
        assert_eq!(world.bytes(member, 128, 6), b"after!");
        assert!(
            world
                .events(member)
                .iter()
                .all(|event| !matches!(event, MemberEvent::Broken(_)))
        );
    }
    refusals
}

pub fn messages(topology: Topology, flaw: Option<Flaw>) {
    let one = |change: &dyn Fn(&mut Vec<u8>), flaw| one(topology, change, flaw);
    let refused = |change: fn(&mut Vec<u8>)| {
        let refusals = one(&change, flaw);
        *refusals.first().expect("it was let through")
    };
    assert!(one(&|_| {}, flaw).is_empty(), "an honest message is done");
    // The fence of an old epoch, a younger one, and another client's number.
    assert_eq!(refused(|bytes| bytes[4] = 0), Refusal::Check);
    assert_eq!(refused(|bytes| bytes[7] = 1), Refusal::Check);
    assert_eq!(refused(|bytes| bytes[2] = 1), Refusal::Check);
    // Other members are told something else.
    assert_eq!(refused(|bytes| bytes[32 + 8] = 72), Refusal::Unlike);
    assert_eq!(refused(|bytes| bytes[64 + 4] = 0), Refusal::Unlike);
    assert_eq!(refused(|bytes| bytes[64] = 1), Refusal::Unlike);
    let all = |bytes: &mut Vec<u8>, at: usize, value: u8| {
        bytes
            .chunks_mut(BLOCK_BYTES)
            .for_each(|block| block[at] = value);
    };
    let refused_all = |at, value| {
        let refusals = one(&|bytes| all(bytes, at, value), flaw);
        *refusals.first().expect("it was let through")
    };
    // A kind that is none, opcodes that were not posted, addresses beyond the memory and not aligned.
    assert_eq!(refused_all(0, 0), Refusal::Kind);
    assert_eq!(refused_all(0, 5), Refusal::Kind);
    assert_eq!(refused_all(1, 2), Refusal::Opcode);
    assert_eq!(refused_all(1, 1), Refusal::Opcode);
    assert!(matches!(refused_all(13, 1), Refusal::Access(_)));
    assert_eq!(refused_all(8, 65), Refusal::Alignment);
    assert_eq!(refused_all(15, 4), Refusal::Opcode);
    // FLUSH on memory that does not persist.
    assert!(matches!(refused_all(15, 6), Refusal::Access(_)));
    // A slot beyond the results of the client: who answers ends its link. Where that is the head, before anything is done.
    let refusals = one(&|bytes| all(bytes, 14, 255), flaw);
    match topology {
        Topology::Chain => assert_eq!(refusals, []),
        Topology::Star => assert_eq!(refusals, [Refusal::Bounds]),
    }
    // Length.
    assert_eq!(refused(|bytes| bytes.truncate(64)), Refusal::Length);
    assert_eq!(refused(Vec::clear), Refusal::Length);
}

#[test]
fn messages_that_lie_cost_their_sender_the_link_and_nothing_else() {
    messages(Topology::Chain, None);
    messages(Topology::Star, None);
}

/// A longer message finds its buffer too small: the connection ends with a Terminate.
#[test]
fn a_message_that_is_too_long_ends_its_connection() {
    let mut world = World::new(shape(2), Kind::Memory, 2, 1, None);
    let mut message = honest(&world.shape, 0);
    message.push(0);
    send(&mut world, 0, message);
    world.run();
    assert!(world.client(0).broken().is_some());
    assert_eq!(world.call(1, write(0, b"x")), Ok(Outcome::Done));
}

/// A client of another epoch, token or shape is not let in, and hears why (I12).
#[test]
fn only_the_epoch_of_the_group_comes_in() {
    let mut world = World::new(shape(2), Kind::Memory, 1, 1, None);
    let honest = world.shape;
    let mut try_with = |number, change: fn(&mut GroupShape), why: Denied| {
        let mut other = honest;
        change(&mut other);
        let client = Client::new(other, number, &link(), [5; 32], world.net.now()).unwrap();
        let id = world.net.add_client(client, &world.members).unwrap();
        world.net.run();
        let client = world.net.client(id).unwrap();
        assert!(!client.is_ready());
        let broken = client.broken().expect("it was refused").to_owned();
        assert!(broken.contains(&why.to_string()), "{broken}");
        let refused = client.post(Primitive::Flush);
        assert!(matches!(refused, Err(PrimitiveError::Broken(_))));
    };
    try_with(1, |shape| shape.epoch = 0, Denied::Epoch(1));
    try_with(2, |shape| shape.epoch = 2, Denied::Epoch(1));
    try_with(3, |shape| shape.token[0] ^= 1, Denied::Token);
    try_with(1, |shape| shape.size *= 2, Denied::Shape);
    // A number that is in use, and one whose lane is.
    let lanes = honest.lanes;
    let next = u32::from(lanes);
    try_with(0, |_| {}, Denied::Client { next });
    try_with(lanes, |_| {}, Denied::Client { next });
}

/// A client comes back under a number of its lane that was not used; what it had asked for before is not answered to it.
#[test]
fn a_client_comes_back_with_another_number() {
    let mut world = World::new(shape(3), Kind::Pm { late: 0 }, 2, 1, None);
    world.patient = false;
    let flight = world.client(0).post(write(0, b"unheard"));
    assert!(flight.is_ok());
    let first = world.clients[0];
    world.net.kill(first);
    world.run();
    let again = world.add_client(0);
    world.run();
    assert!(
        world.net.client(again).unwrap().broken().is_some(),
        "0 was used"
    );
    world.add_client(4);
    world.run();
    let back = world.clients.len() - 1;
    assert_eq!(world.call(back, write(8, b"heard")), Ok(Outcome::Done));
    assert_eq!(world.call(1, write(16, b"other")), Ok(Outcome::Done));
    for member in 1..3 {
        assert_eq!(world.bytes(member, 0, 21), world.bytes(0, 0, 21));
    }
}

/// What a client that is gone had staged is still to be put at a member further down; the next client of its lane does not
/// write over it (I15).
#[test]
fn a_lane_is_clear_before_it_is_used_again() {
    let mut world = World::new(shape(3), Kind::Pm { late: 100 }, 1, 1, None);
    world.patient = false;
    world.client(0).post(write(0, &[1; 64])).unwrap();
    world.run();
    let (head, middle) = (world.members[0], world.members[1]);
    // The page of the head comes, those of the others do not.
    world.net.member(head).unwrap().store().due = 1;
    world.net.service();
    world.run();
    assert_eq!(world.bytes(0, 0, 64), [1; 64]);
    assert_eq!(world.net.member(middle).unwrap().store().waits(), 1);
    let first = world.clients[0];
    world.net.kill(first);
    world.run();
    let next = world.add_client(4);
    world.run();
    let early = world.net.client(next).unwrap().post(write(4096, &[2; 64]));
    assert_eq!(early, Err(PrimitiveError::Full), "the lane is not clear");
    world.patient = true;
    world.run();
    assert_eq!(world.call(1, write(4096, &[2; 64])), Ok(Outcome::Done));
    for member in 0..3 {
        assert_eq!(world.bytes(member, 0, 64), [1; 64]);
        assert_eq!(world.bytes(member, 4096, 64), [2; 64]);
    }
}

/// When a member is lost, everything under way is answered once, with Broken, and the others stop (I18).
#[test]
fn the_loss_of_a_member_breaks_the_group() {
    for lost in 0..3 {
        let mut world = World::new(shape(3), Kind::Pm { late: 50 }, 2, 1, None);
        world.patient = false;
        let mut flights = Vec::new();
        for turn in 0..5 {
            let flush = Primitive::Write {
                offset: turn * 64,
                bytes: vec![7; 64],
                durability: Durability::Durable,
            };
            flights.push(world.client(0).post(flush).unwrap());
        }
        for _ in 0..40 {
            world.step();
        }
        let id = world.members[lost];
        world.net.kill(id);
        world.patient = true;
        world.run();
        let outcomes = world.outcomes(0);
        let answered: Vec<_> = outcomes.iter().map(|(flight, _)| *flight).collect();
        assert_eq!(answered, flights, "each once, in order");
        let last = outcomes.last().unwrap();
        assert!(matches!(last.1, Err(PrimitiveError::Broken(_))));
        let again = world.client(0).post(Primitive::Flush);
        assert!(matches!(again, Err(PrimitiveError::Broken(_))));
        for member in (0..3).filter(|&member| member != lost) {
            let broken = |event: &MemberEvent| {
                matches!(event, MemberEvent::Broken(BrokenGroup::Link { .. }))
            };
            let events = world.events(member);
            assert!(
                events.iter().any(broken),
                "{member} without {lost}: {events:?}"
            );
        }
    }
}

/// A partition in one direction or both holds primitives up; when it ends they are done, once.
#[test]
fn a_partition_delays_and_nothing_else() {
    for (from, to) in [(0, 1), (1, 0), (1, 2), (2, 1)] {
        let mut world = World::new(shape(3), Kind::Pm { late: 20 }, 1, 5, None);
        let ends = (world.members[from], world.members[to]);
        world.net.hold(ends.0, ends.1, true);
        for turn in 0..8 {
            let cas = Primitive::Cas {
                offset: 0,
                old: turn,
                new: turn + 1,
                execute: MemberMap::first(3),
                durability: Durability::Visible,
            };
            world.client(0).post(cas).unwrap();
        }
        world.run();
        let passed = world.outcomes(0).len();
        // Members hand on and do not listen for answers: only one direction matters.
        assert_eq!(passed, if from < to { 0 } else { 8 }, "{from} to {to}");
        world.net.hold(ends.0, ends.1, false);
        world.run();
        assert_eq!(passed + world.outcomes(0).len(), 8);
        for member in 0..3 {
            assert_eq!(world.bytes(member, 0, 8), 8_u64.to_le_bytes());
        }
    }
}

/// A connection of which only one end knows that it is gone: that end breaks, the other when it is told.
#[test]
fn a_half_open_link_breaks_who_notices() {
    let mut world = World::new(shape(3), Kind::Memory, 1, 5, None);
    let (head, middle) = (world.members[0], world.members[1]);
    world.net.lose(head, middle, [false, true]);
    let flight = world.client(0).post(write(0, b"lost"));
    world.run();
    // The middle and the tail ended the client's links.
    let outcomes = world.outcomes(0);
    assert_eq!(outcomes.len(), 1);
    assert_eq!(Ok(outcomes[0].0), flight);
    assert!(matches!(outcomes[0].1, Err(PrimitiveError::Broken(_))));
    let is_broken = |world: &mut World, number: usize| {
        let id = world.members[number];
        world.net.member(id).unwrap().is_broken()
    };
    assert!(!is_broken(&mut world, 0) && is_broken(&mut world, 1) && is_broken(&mut world, 2));
    world.net.lose(head, middle, [true, true]);
    assert!(is_broken(&mut world, 0));
}

/// After `stop` nothing of the epoch touches the memory: not what was under way, not a client's WRITE or READ (I12, I11).
#[test]
fn a_stopped_epoch_touches_nothing() {
    for steps in 0..120 {
        let mut world = World::new(shape(3), Kind::Pm { late: 30 }, 1, steps, None);
        world.net.piece = 120;
        world.patient = false;
        for turn in 0..6 {
            world.client(0).post(write(turn * 64, &[1; 64])).unwrap();
        }
        for _ in 0..steps {
            world.step();
        }
        let middle = world.members[1];
        world.net.member(middle).unwrap().halt();
        let before = world.bytes(1, 0, 1024);
        world.patient = true;
        world.run();
        assert_eq!(world.bytes(1, 0, 1024), before);
        assert!(world.tables[1].is_empty(), "no STag of the epoch is left");

        // The next epoch works on the same memory.
        let mut next = world.shape;
        next.epoch += 1;
        for number in 0..3 {
            let id = world.members[number];
            world.net.kill(id);
            let member = world.member(next, number, None);
            world.members[number] = world.net.add_member(member);
        }
        world.shape = next;
        let members = world.members.clone();
        world.net.connect(&members).unwrap();
        world.add_client(0);
        world.run();
        let client = world.clients.len() - 1;
        assert_eq!(world.call(client, write(512, b"next")), Ok(Outcome::Done));
        assert_eq!(world.bytes(1, 512, 4), b"next");
    }
}
