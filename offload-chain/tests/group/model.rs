//! Random primitives of several clients against a plain model (M1). Defends I13 (order, once), I15 (members alike) and O4, O5
//! of the engine: what a client was told, and every byte of every member, is what the model says.

use std::collections::HashMap;

use offload_chain::group::{
    Durability, Flight, MemberMap, Outcome, Primitive, PrimitiveError, Primitives, Topology,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use softrdma::offload::Flaw;

use super::world::{Kind, World, shape};

/// Bytes of a client of its own, in front; then bytes that all change.
const OWN: u64 = 12 << 10;
const SHARED: u64 = 48 << 10;
const COUNTER: u64 = 56 << 10;

/// One memory per member: a gCAS may run on some only.
struct Model(Vec<Vec<u8>>);

impl Model {
    fn word(&self, member: usize, at: u64) -> u64 {
        let at = at as usize;
        u64::from_le_bytes(self.0[member][at..at + 8].try_into().unwrap())
    }

    /// What the outcome has to be.
    fn apply(&mut self, primitive: &Primitive) -> Outcome {
        match *primitive {
            Primitive::Write {
                offset, ref bytes, ..
            } => {
                let at = offset as usize;
                for memory in &mut self.0 {
                    memory[at..at + bytes.len()].copy_from_slice(bytes);
                }
                Outcome::Done
            }
            Primitive::Cas {
                offset,
                old,
                new,
                execute,
                ..
            } => {
                let had = (0..self.0.len()).map(|member| {
                    let had = self.word(member, offset);
                    if execute.contains(member) && had == old {
                        let at = offset as usize;
                        self.0[member][at..at + 8].copy_from_slice(&new.to_le_bytes());
                    }
                    execute.contains(member).then_some(had)
                });
                Outcome::Cas(had.collect())
            }
            Primitive::Memcpy {
                source,
                destination,
                length,
                ..
            } => {
                let (from, to, len) = (source as usize, destination as usize, length as usize);
                for memory in &mut self.0 {
                    memory.copy_within(from..from + len, to);
                }
                Outcome::Done
            }
            Primitive::Flush => Outcome::Done,
            Primitive::Read {
                member,
                offset,
                length,
            } => {
                let at = offset as usize;
                Outcome::Read(self.0[member][at..at + length].to_vec())
            }
        }
    }
}

struct Run {
    world: World,
    model: Model,
    random: StdRng,
    expected: Vec<HashMap<Flight, Outcome>>,
    order: Vec<Vec<Flight>>,
    /// What each client believes the shared counter to be, its try under way, and how often it won.
    counter: Vec<(u64, Option<Flight>, u64)>,
}

impl Run {
    fn durability(&mut self) -> Durability {
        if self.world.shape.persistent && self.random.random_range(0..3) == 0 {
            Durability::Durable
        } else {
            Durability::Visible
        }
    }

    fn own(&mut self, client: usize) -> Primitive {
        let base = client as u64 * OWN;
        let durability = self.durability();
        let members = self.world.shape.members;
        match self.random.random_range(0..10) {
            0..4 => {
                let length = self.random.random_range(0..=OWN / 4);
                let offset = base + self.random.random_range(0..=OWN - length);
                let fill: u8 = self.random.random();
                let bytes = (0..length).map(|at| at as u8 ^ fill).collect();
                Primitive::Write {
                    offset,
                    bytes,
                    durability,
                }
            }
            4..7 => {
                // Few words and values, so that comparisons succeed and fail.
                let offset = base + 8 * self.random.random_range(0..4);
                let member = self.random.random_range(0..members);
                let had = self.model.word(member, offset);
                let old = if self.random.random_range(0..4) > 0 {
                    had
                } else {
                    1
                };
                Primitive::Cas {
                    offset,
                    old,
                    new: self.random.random_range(0..3),
                    execute: MemberMap(self.random.random::<u16>() & MemberMap::first(members).0),
                    durability,
                }
            }
            7..9 => {
                let length = self.random.random_range(0..=OWN / 2);
                let half = OWN / 2;
                let (a, b) = (
                    base + self.random.random_range(0..=half - length),
                    base + half + self.random.random_range(0..=half - length),
                );
                let [source, destination] = if self.random.random() { [a, b] } else { [b, a] };
                Primitive::Memcpy {
                    source,
                    destination,
                    length,
                    durability,
                }
            }
            _ if self.world.shape.persistent => Primitive::Flush,
            _ => Primitive::Read {
                member: self.random.random_range(0..members),
                offset: COUNTER,
                length: 0,
            },
        }
    }

    fn shared(&mut self) -> Primitive {
        let length = self.random.random_range(1..1024);
        let offset = SHARED + self.random.random_range(0..3072);
        let durability = self.durability();
        if self.random.random() {
            let bytes = vec![self.random.random(); length as usize];
            return Primitive::Write {
                offset,
                bytes,
                durability,
            };
        }
        Primitive::Memcpy {
            source: offset,
            destination: SHARED + 4096 + self.random.random_range(0..3072),
            length,
            durability,
        }
    }

    fn post(&mut self, client: usize, primitive: Primitive, known: bool) -> Option<Flight> {
        match self.world.client(client).post(primitive.clone()) {
            Ok(flight) => {
                if known {
                    let outcome = self.model.apply(&primitive);
                    self.expected[client].insert(flight, outcome);
                }
                if !matches!(primitive, Primitive::Read { .. }) {
                    self.order[client].push(flight);
                }
                Some(flight)
            }
            Err(PrimitiveError::Full) => None,
            Err(error) => panic!("{primitive:?}: {error}"),
        }
    }

    fn act(&mut self, client: usize) {
        match self.random.random_range(0..8) {
            0 if self.counter[client].1.is_none() => {
                let value = self.counter[client].0;
                let cas = Primitive::Cas {
                    offset: COUNTER,
                    old: value,
                    new: value + 1,
                    execute: MemberMap::first(self.world.shape.members),
                    durability: self.durability(),
                };
                self.counter[client].1 = self.post(client, cas, false);
            }
            1 => {
                let primitive = self.shared();
                self.post(client, primitive, false);
            }
            2 if self.order[client].is_empty() => {
                let length = self.random.random_range(0..OWN);
                let read = Primitive::Read {
                    member: self.random.random_range(0..self.world.shape.members),
                    offset: client as u64 * OWN + self.random.random_range(0..=OWN - length),
                    length: length as usize,
                };
                let flight = self.post(client, read, true);
                // Nothing may change meanwhile, or the READ may see it or not.
                while flight.is_some_and(|flight| self.expected[client].contains_key(&flight)) {
                    assert!(self.world.step(), "a READ without an outcome");
                    self.take(client);
                }
            }
            _ => {
                let primitive = self.own(client);
                self.post(client, primitive, true);
            }
        }
    }

    fn take(&mut self, client: usize) {
        for (flight, outcome) in self.world.outcomes(client) {
            let outcome = outcome.expect("nothing breaks here");
            if !matches!(outcome, Outcome::Read(_)) {
                assert_eq!(self.order[client].remove(0), flight, "outcomes in order");
            }
            if let Some(expected) = self.expected[client].remove(&flight) {
                assert_eq!(outcome, expected, "client {client} {flight:?}");
            }
            let (value, under_way, wins) = &mut self.counter[client];
            if *under_way == Some(flight) {
                let Outcome::Cas(had) = outcome else {
                    panic!("a gCAS says what members had")
                };
                let first = had[0].expect("it was executed");
                assert!(
                    had.iter().all(|other| *other == had[0]),
                    "one order: {had:?}"
                );
                *wins += u64::from(first == *value);
                *value = if first == *value { first + 1 } else { first };
                *under_way = None;
            }
        }
    }
}

pub fn run(seed: u64, flaw: Option<Flaw>) {
    let mut random = StdRng::seed_from_u64(seed);
    let members = random.random_range(1..=16);
    let mut shape = shape(members);
    shape.depth = [1, 3, 16][random.random_range(0..3)];
    if random.random() {
        shape.topology = Topology::Star;
    }
    let kind = match random.random_range(0..3) {
        0 => Kind::Memory,
        _ => Kind::Pm {
            late: random.random_range(0..80),
        },
    };
    let clients = random.random_range(1..=4);
    let mut world = World::new(shape, kind, clients, seed, flaw);
    world.net.piece = [64 << 10, 700, 1 << 14][random.random_range(0..3)];
    let count = usize::from(clients);
    let mut run = Run {
        model: Model(vec![vec![0; shape.size as usize]; members]),
        world,
        random,
        expected: vec![HashMap::new(); count],
        order: vec![Vec::new(); count],
        counter: vec![(0, None, 0); count],
    };
    for _ in 0..150 {
        let client = run.random.random_range(0..count);
        run.act(client);
        for _ in 0..run.random.random_range(0..20) {
            run.world.step();
        }
        (0..count).for_each(|client| run.take(client));
    }
    run.world.run();
    for client in 0..count {
        run.take(client);
        assert!(run.order[client].is_empty(), "all are answered");
        assert!(run.expected[client].is_empty(), "READs too");
    }
    let own = count * OWN as usize;
    let wins: u64 = run.counter.iter().map(|(.., wins)| wins).sum();
    let first = run.world.bytes(0, SHARED, (COUNTER - SHARED) as usize);
    for member in 0..members {
        assert!(
            run.world.bytes(member, 0, own) == run.model.0[member][..own],
            "member {member}"
        );
        let shared = run.world.bytes(member, SHARED, (COUNTER - SHARED) as usize);
        assert!(shared == first, "member {member} differs");
        assert_eq!(run.world.bytes(member, COUNTER, 8), wins.to_le_bytes());
    }
}

/// 300 groups of all sizes, depths from 1 on, one to four clients; `FLASHNET_SEEDS` says otherwise how many.
#[test]
fn random_primitives_are_what_the_model_says() {
    let seeds = std::env::var("FLASHNET_SEEDS").ok();
    let seeds = seeds.and_then(|seeds| seeds.parse().ok()).unwrap_or(300);
    for seed in 0..seeds {
        println!("seed {seed}");
        run(seed, None);
    }
}

/// The same seed gives the same run, or simulations are worth nothing.
#[test]
fn the_same_seed_gives_the_same_trace() {
    let trace = |seed| {
        let mut world = World::new(shape(3), Kind::Pm { late: 40 }, 2, seed, None);
        for turn in 0..20_u8 {
            let write = Primitive::Write {
                offset: u64::from(turn) * 8,
                bytes: vec![turn; 100],
                durability: Durability::Durable,
            };
            world.call(usize::from(turn % 2), write).unwrap();
        }
        world.net.trace()
    };
    assert_eq!(trace(5), trace(5));
    assert_ne!(trace(5), trace(6));
}
