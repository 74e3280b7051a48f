//! Hostile patches: whatever is written into ring memory, whenever, a descriptor that was not granted does not run, one that
//! runs is of the posted opcode or NOP, and every range it has lies where its program may go (RELIABILITY §4.9, §8; O1, O2).
//!
//! `FLASHNET_PATCHES` says how many patches are tried: ten million unless told otherwise.

use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use zerocopy::{FromBytes, IntoBytes};

use super::command::{Command, Destination, FLUSH_REGION, Guard, Outbound};
use super::descriptor::{DESCRIPTOR_BYTES, Opcode, RawDescriptor};
use super::program::{Carrier, Count, QueueSpec};
use super::ring::{Front, Ring};
use super::template::{Mask, Post, Template};
use super::{Flaw, LinkId};
use crate::addr::{BackingId, ProtectionDomain, RemoteAddr, Stag, StreamId, TaggedOffset};
use crate::mem::access::Accessor;
use crate::mem::cache::RegionCache;
use crate::mem::{Buffer, MemoryRegion, RegionSpec, RegionTable, Rights};
use crate::wqe::LocalSlice;

const LOCAL: ProtectionDomain = ProtectionDomain(1);
const WIRE: ProtectionDomain = ProtectionDomain(2);
/// Of the region that descriptors may touch.
const BASE: u64 = 0x1000;
const LEN: u64 = 0x2000;
const SLOTS: u64 = 4;
const PATCHES: u64 = 10_000_000;

struct Bench {
    regions: RegionCache,
    memory: Arc<Buffer>,
    inside: MemoryRegion,
    pages: MemoryRegion,
    strangers: Vec<Stag>,
    destination: Destination,
}

impl Bench {
    fn new() -> Self {
        let table = RegionTable::new([3; 32]);
        let memory = Buffer::zeroed(0x4000);
        let all = Rights::REMOTE_READ | Rights::REMOTE_WRITE | Rights::REMOTE_ATOMIC;
        let spec = |domain, rights| RegionSpec {
            offset: 0x800,
            len: LEN,
            base: TaggedOffset(BASE),
            ..RegionSpec::memory(domain, rights, &memory)
        };
        let inside = table.register(spec(LOCAL, all)).unwrap();
        let durable = all | Rights::FLUSH_PERSISTENT;
        let pages = RegionSpec {
            base: TaggedOffset(BASE),
            ..RegionSpec::pages(LOCAL, durable, BackingId(1), 0x800, LEN)
        };
        let pages = table.register(pages).unwrap();
        let wire = table.register(spec(WIRE, all)).unwrap();
        // Of the same domain and with all rights, but not of this program.
        let neighbour = RegionSpec {
            offset: 0,
            ..spec(LOCAL, all)
        };
        let neighbour = table.register(neighbour).unwrap();
        let powerless = table.register(spec(LOCAL, Rights::empty())).unwrap();
        let destination = Destination {
            link: LinkId(1),
            stag: Stag(77),
            base: TaggedOffset(BASE),
            len: LEN,
            detached: false,
        };
        Self {
            regions: RegionCache::new(&table),
            memory,
            inside,
            pages,
            strangers: vec![neighbour.stag, wire.stag, powerless.stag, Stag(0)],
            destination,
        }
    }

    /// A request of each kind, with all its fields open.
    fn posts(&self) -> Vec<(Carrier, Post)> {
        let at = |region: &MemoryRegion| RemoteAddr {
            stag: region.stag,
            to: TaggedOffset(BASE),
        };
        let (inside, pages) = (at(&self.inside), at(&self.pages));
        let post = |carrier, opcode, local, remote| {
            let post = Post {
                opcode,
                mask: Mask::all(),
                destination: 5,
                length: 8,
                local,
                local_stride: 0,
                remote,
                immediate: [0; 8],
            };
            (carrier, post)
        };
        vec![
            post(Carrier::Local, Opcode::Write, inside, pages),
            post(Carrier::Local, Opcode::Copy, pages, pages),
            post(Carrier::Local, Opcode::CompareSwap, inside, pages),
            post(Carrier::Local, Opcode::Flush, inside, pages),
            post(Carrier::Links, Opcode::Write, inside, inside),
            post(Carrier::Links, Opcode::WriteImmediate, inside, inside),
            post(Carrier::Links, Opcode::Send, inside, inside),
            post(Carrier::Links, Opcode::Nop, inside, inside),
        ]
    }

    fn is_inside(at: TaggedOffset, len: u32) -> bool {
        let (first, end) = (u128::from(at.0), u128::from(at.0) + u128::from(len));
        first >= u128::from(BASE) && end <= u128::from(BASE + LEN)
    }

    fn is_slice(&self, slice: &LocalSlice) -> bool {
        Arc::ptr_eq(&slice.buffer, &self.memory)
            && slice.offset >= 0x800
            && slice.offset + slice.len <= 0x800 + LEN as usize
    }

    /// The judge: knows nothing of masks, only where this program may go.
    fn judge(&self, posted: Opcode, command: &Command) {
        let target =
            |at: &RemoteAddr, len| at.stag == self.pages.stag && Self::is_inside(at.to, len);
        let (opcode, fine) = match command {
            Command::Nop => return,
            Command::Write { source, target: at } => (
                Opcode::Write,
                self.is_slice(source) && target(at, source.len as u32),
            ),
            Command::Copy {
                source,
                target: at,
                len,
            } => (Opcode::Copy, target(source, *len) && target(at, *len)),
            Command::CompareSwap {
                target: at, sink, ..
            } => {
                let aligned = at.to.0.is_multiple_of(8) && sink.len == 8;
                (
                    Opcode::CompareSwap,
                    self.is_slice(sink) && target(at, 8) && aligned,
                )
            }
            Command::Flush { target: at, len } => {
                let len = if *len == FLUSH_REGION { 0 } else { *len };
                (Opcode::Flush, target(at, len))
            }
            Command::Link { destination, what } => match what {
                Outbound::Write { source, to } => {
                    let inside = *destination != 5 || Self::is_inside(*to, source.len as u32);
                    (Opcode::Write, self.is_slice(source) && inside)
                }
                Outbound::WriteImmediate { source, to, .. } => {
                    let inside = *destination != 5 || Self::is_inside(*to, source.len as u32);
                    (Opcode::WriteImmediate, self.is_slice(source) && inside)
                }
                Outbound::Send { source } => (Opcode::Send, self.is_slice(source)),
                Outbound::Astray => return,
            },
        };
        assert_eq!(opcode, posted, "an opcode that was not posted: {command:?}");
        assert!(fine, "outside of its memory: {command:?}");
    }
}

fn edge(random: &mut StdRng) -> u64 {
    let base = [0, BASE, BASE + LEN, 1 << 32, u64::MAX, 0x800, 0x4000];
    let near = random.random_range(-16_i64..=16);
    base[random.random_range(0..base.len())].wrapping_add_signed(near)
}

/// Overwrites some of a descriptor: a field with a value at an edge, or any bytes with anything.
fn patch(bench: &Bench, posted: Opcode, random: &mut StdRng, bytes: &mut [u8; DESCRIPTOR_BYTES]) {
    if random.random_range(0..4) > 0 {
        bytes[4] = posted as u8;
    }
    for _ in 0..random.random_range(1..6) {
        let mut raw = RawDescriptor::read_from_bytes(bytes).unwrap();
        match random.random_range(0..12) {
            0..3 => raw.opcode = random.random_range(0..9),
            3 => raw.length = (edge(random) as u32).into(),
            4 => raw.length = random.random_range(0..0x2100).into(),
            5 => raw.local_to = edge(random).into(),
            6 => raw.remote_to = edge(random).into(),
            7 => raw.remote_to = (BASE + random.random_range(0..LEN)).into(),
            8 => {
                let strangers = &bench.strangers;
                raw.remote_stag = strangers[random.random_range(0..strangers.len())].0.into();
                raw.local_stag = strangers[random.random_range(0..strangers.len())].0.into();
            }
            9 => raw.destination = random.random_range(0..8).into(),
            10 => raw.owner = random.random_range(0..4).into(),
            _ => {
                let (at, len) = (random.random_range(0..64), random.random_range(1..20));
                let end = (at + len).min(64);
                random.fill(&mut raw.as_mut_bytes()[at..end]);
            }
        }
        bytes.copy_from_slice(raw.as_bytes());
    }
}

/// Tries `count` patches; returns how many descriptors ran as posted, as NOP, and were refused.
fn attack(seed: u64, count: u64, flaw: Option<Flaw>) -> [u64; 3] {
    let mut random = StdRng::seed_from_u64(seed);
    let mut bench = Bench::new();
    let mut seen = [0; 3];
    let posts = bench.posts();
    let who = Accessor {
        stream: StreamId(9),
        domain: LOCAL,
        planted: None,
    };
    let mut tried = 0;
    let mut rings: Vec<(Opcode, Ring)> = Vec::new();
    while tried < count {
        if rings.is_empty() || tried.is_multiple_of(4096) {
            let ring = |&(carrier, post): &(Carrier, Post)| {
                let requests = vec![Template::Post(post)];
                (
                    post.opcode,
                    Ring::new(QueueSpec { carrier, requests }, SLOTS, flaw),
                )
            };
            rings = posts.iter().map(ring).collect();
        }
        for (posted, ring) in &mut rings {
            let operation = ring.next_index();
            ring.arm(operation);
            let at = (operation % SLOTS) as usize * DESCRIPTOR_BYTES;
            let mut bytes = [0; DESCRIPTOR_BYTES];
            let before = random.random();
            if before {
                ring.memory().read(at, &mut bytes);
                patch(&bench, *posted, &mut random, &mut bytes);
                ring.memory().write(at, &bytes);
            }
            assert!(matches!(ring.front(), Front::Idle), "not granted, and runs");
            ring.grant(1);
            if !before || random.random_range(0..8) == 0 {
                ring.memory().read(at, &mut bytes);
                patch(&bench, *posted, &mut random, &mut bytes);
                ring.memory().write(at, &bytes);
            }
            tried += 1;
            let front = ring.front();
            // What comes after the snapshot changes nothing any more.
            let mut rest = [0; DESCRIPTOR_BYTES];
            random.fill(&mut rest);
            ring.memory().write(at, &rest);
            match front {
                Front::Idle | Front::Wait { .. } => panic!("granted, and neither runs nor is bad"),
                Front::Bad(_) => seen[2] += 1,
                Front::Run(opcode, raw) => {
                    assert!(
                        opcode == *posted || opcode == Opcode::Nop,
                        "{opcode:?} for {posted:?}"
                    );
                    let (carrier, known) = (ring.carrier, bench.destination);
                    let mut guard = Guard {
                        regions: &mut bench.regions,
                        who,
                        flaw,
                    };
                    let to = |number| (number == 5).then_some(known);
                    match guard.command(carrier, opcode, &raw, to) {
                        Ok(command) => {
                            bench.judge(*posted, &command);
                            seen[usize::from(opcode == Opcode::Nop)] += 1;
                        }
                        Err(_) => seen[2] += 1,
                    }
                }
            }
            let index = ring.advance(Opcode::Nop);
            ring.complete(index);
        }
    }
    seen
}

#[test]
fn millions_of_hostile_patches_reach_nothing() {
    let patches = std::env::var("FLASHNET_PATCHES")
        .ok()
        .and_then(|count| count.parse().ok())
        .unwrap_or(PATCHES);
    let [ran, nothing, refused] = attack(1, patches, None);
    println!("{patches} patches: {ran} ran, {nothing} were NOPs, {refused} were refused");
    // The generator reaches all three often.
    assert!(
        [ran, nothing, refused]
            .iter()
            .all(|&count| count > patches / 50)
    );
}

#[test]
fn planted_flaws_are_noticed() {
    for flaw in [
        Flaw::UnownedRuns,
        Flaw::MaskIgnored,
        Flaw::AnyOpcode,
        Flaw::RangeUnchecked,
    ] {
        let noticed = std::panic::catch_unwind(|| attack(2, 20_000, Some(flaw))).is_err();
        assert!(noticed, "nobody noticed {flaw:?}");
    }
}

/// A WAIT is of the program alone: its descriptor may hold anything.
#[test]
fn a_wait_is_not_in_ring_memory() {
    let wait = Template::Wait {
        on: Count::Receive(0),
        per_operation: 1,
        queue: 0,
        releases: 1,
    };
    let spec = QueueSpec {
        carrier: Carrier::Local,
        requests: vec![wait],
    };
    let mut ring = Ring::new(spec, 1, None);
    ring.arm(0);
    ring.memory().write(0, &[0xff; DESCRIPTOR_BYTES]);
    let Front::Wait {
        needed, releases, ..
    } = ring.front()
    else {
        panic!("the WAIT of the program")
    };
    assert_eq!((needed, releases), (1, 1));
}
