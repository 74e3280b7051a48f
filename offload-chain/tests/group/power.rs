//! Power cuts at every step of durable primitives (M2). Defends I1 and the rule of gFLUSH: what was answered is durable on
//! all members, and a member hands on only what is durable at itself.

use offload_chain::group::{Durability, MemberMap, Outcome, Primitive, Primitives, Topology};
use softrdma::offload::Flaw;

use super::world::{Kind, World, shape};

const WRITTEN: u64 = 4090;
const COPIED: u64 = 20_000;
const WORD: u64 = 30_000;

/// Three primitives, and what each leaves in memory.
fn primitives(members: usize) -> Vec<(Primitive, u64, Vec<u8>)> {
    let durability = Durability::Durable;
    let bytes = vec![0xab; 300];
    vec![
        (
            Primitive::Write {
                offset: WRITTEN,
                bytes: bytes.clone(),
                durability,
            },
            WRITTEN,
            bytes.clone(),
        ),
        (
            Primitive::Memcpy {
                source: WRITTEN,
                destination: COPIED,
                length: 300,
                durability,
            },
            COPIED,
            bytes,
        ),
        (
            Primitive::Cas {
                offset: WORD,
                old: 0,
                new: 77,
                execute: MemberMap::first(members),
                durability,
            },
            WORD,
            77_u64.to_le_bytes().to_vec(),
        ),
    ]
}

/// Looks at what a cut would leave, before and after each step of the run.
fn watch(world: &mut World, flights: &[(u64, Vec<u8>)]) {
    let mut answered = 0;
    let members = world.shape.members;
    loop {
        for (_, outcome) in world.outcomes(0) {
            assert!(matches!(outcome, Ok(Outcome::Done | Outcome::Cas(_))));
            answered += 1;
        }
        for (number, (at, bytes)) in flights.iter().enumerate() {
            let durable = |member| world.after_cut(member, *at, bytes.len()) == *bytes;
            if number < answered {
                assert!((0..members).all(durable), "answered and lost: {number}");
            }
            for member in 1..members {
                let seen = world.bytes(member, *at, bytes.len()) == *bytes;
                let before = world.shape.previous(member).unwrap();
                assert!(
                    !seen || durable(before),
                    "handed on by {before}, not durable there"
                );
            }
        }
        if answered == flights.len() {
            return;
        }
        assert!(world.step(), "{answered} answers");
    }
}

pub fn run(members: usize, topology: Topology, seed: u64, flaw: Option<Flaw>) {
    let mut shape = shape(members);
    shape.topology = topology;
    let mut world = World::new(shape, Kind::Pm { late: 50 }, 1, seed, flaw);
    world.net.piece = 90;
    let mut flights = Vec::new();
    for (primitive, at, bytes) in primitives(members) {
        world.client(0).post(primitive).unwrap();
        flights.push((at, bytes));
    }
    watch(&mut world, &flights);
}

#[test]
fn what_is_answered_survives_a_cut_at_every_step() {
    for topology in [Topology::Chain, Topology::Star] {
        for members in [1, 2, 3, 7] {
            for seed in 0..40 {
                println!("{topology:?} {members} seed {seed}");
                run(members, topology, seed, None);
            }
        }
    }
}
