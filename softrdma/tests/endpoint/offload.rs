//! An engine and a peer over real connections: what messages make of pre-posted requests, and what hostile ones do not.

use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use softrdma::offload::{
    Broken, Carrier, Check, Count, DESCRIPTOR_BYTES, Destination, Engine, EngineConfig,
    EngineEvent, Format, Keep, LinkId, LinkSpec, Mask, Move, Opcode, Post, Program, ProgramError,
    QueueSpec, RECEIVES, ReceiveSpec, Refusal, Template, field,
};
use softrdma::{
    Buffer, CloseReason, Completion, CompletionOpcode, Config, Connection, MemoryRegion, NoPages,
    Operation, ProtectionDomain, RecvBuffer, RegionSpec, RegionTable, RemoteAddr, Rights,
    SocketState, Source, Stag, TaggedOffset, Time, WorkRequest, WrId,
};

const WIRE: ProtectionDomain = ProtectionDomain(1);
const LOCAL: ProtectionDomain = ProtectionDomain(2);
const NOW: Time = Time(0);
/// Kind, opcode, fence; source, target and length of a copy; compare and swap.
const MESSAGE: usize = 40;
const FENCE: [u8; 2] = [0xfe, 0xce];

/// The program: copy within memory or CAS, then tell the peer.
fn program(memory: Stag, kept: Stag, keep: &Arc<Buffer>, depth: u64) -> Program {
    let at = |stag, to| RemoteAddr {
        stag,
        to: TaggedOffset(to),
    };
    let post = Post {
        opcode: Opcode::Copy,
        mask: Mask::OPCODE | Mask::LENGTH | Mask::LOCAL_TO | Mask::REMOTE_TO,
        destination: 0,
        length: 0,
        local: at(memory, 0),
        local_stride: 0,
        remote: at(memory, 0),
        immediate: [0; 8],
    };
    let compare = Post {
        opcode: Opcode::CompareSwap,
        mask: Mask::OPCODE | Mask::REMOTE_TO | Mask::COMPARE | Mask::SWAP,
        local: at(kept, 8),
        local_stride: MESSAGE as u64,
        ..post
    };
    let tell = Post {
        opcode: Opcode::WriteImmediate,
        mask: Mask::empty(),
        length: MESSAGE as u32,
        local: at(kept, 0),
        local_stride: MESSAGE as u64,
        immediate: *b"answered",
        ..post
    };
    let wait = |on, per_operation, queue, releases| Template::Wait {
        on,
        per_operation,
        queue,
        releases,
    };
    let step = |from, len, request, at| Move {
        from,
        len,
        queue: 0,
        request,
        at,
    };
    let copy = vec![
        step(1, 1, 1, field::OPCODE),
        step(4, 4, 1, field::LENGTH),
        step(8, 8, 1, field::LOCAL_TO),
        step(16, 8, 1, field::REMOTE_TO),
    ];
    let cas = vec![
        step(1, 1, 2, field::OPCODE),
        step(16, 8, 2, field::REMOTE_TO),
        step(24, 8, 2, field::COMPARE),
        step(32, 8, 2, field::SWAP),
    ];
    Program {
        depth,
        receives: vec![ReceiveSpec {
            message: MESSAGE,
            kind_at: 0,
            formats: vec![
                Format {
                    kind: 1,
                    moves: copy,
                },
                Format {
                    kind: 2,
                    moves: cas,
                },
            ],
            keep: Some(Keep {
                memory: Arc::clone(keep),
                offset: 0,
                stride: MESSAGE,
            }),
        }],
        queues: vec![
            QueueSpec {
                carrier: Carrier::Local,
                requests: vec![
                    wait(Count::Receive(0), 1, 0, 2),
                    Template::Post(post),
                    Template::Post(compare),
                ],
            },
            QueueSpec {
                carrier: Carrier::Links,
                requests: vec![wait(Count::Queue(0), 2, 1, 1), Template::Post(tell)],
            },
        ],
    }
}

struct Peer {
    connection: Connection<NoPages>,
    link: LinkId,
    /// Receive queue that its messages go to.
    queue: usize,
    results: Arc<Buffer>,
    to_engine: Vec<u8>,
}

struct World {
    engine: Engine<NoPages>,
    table: Arc<RegionTable>,
    memory: Arc<Buffer>,
    inside: MemoryRegion,
    ring: MemoryRegion,
    peer: Peer,
    /// Bytes handed to the engine at once.
    piece: usize,
}

/// The group's memory is the middle half of the buffer.
const QUARTER: usize = 1024;

impl World {
    fn new(depth: u64) -> Self {
        Self::with(depth, |program| program)
    }

    fn with(depth: u64, change: impl FnOnce(Program) -> Program) -> Self {
        let table = RegionTable::new([1; 32]);
        let memory = Buffer::from_bytes(&(0..4 * QUARTER).map(|at| at as u8).collect::<Vec<_>>());
        let keep = Buffer::zeroed(MESSAGE * depth as usize);
        let all = Rights::REMOTE_READ | Rights::REMOTE_WRITE | Rights::REMOTE_ATOMIC;
        let inside = RegionSpec {
            offset: QUARTER as u64,
            len: 2 * QUARTER as u64,
            ..RegionSpec::memory(LOCAL, all, &memory)
        };
        let inside = table.register(inside).unwrap();
        let kept = table
            .register(RegionSpec::memory(LOCAL, all, &keep))
            .unwrap();
        let config = EngineConfig {
            link: Config::default(),
            wire_domain: WIRE,
            local_domain: LOCAL,
            planted: None,
        };
        let program = change(program(inside.stag, kept.stag, &keep, depth));
        let mut engine = Engine::new(config, &table, program, NOW).unwrap();
        let ring = engine.ring_memory(0);
        let ring = RegionSpec::memory(WIRE, Rights::REMOTE_WRITE, ring);
        let ring = table.register(ring).unwrap();
        let peer = Peer::new(&mut engine);
        let mut world = Self {
            engine,
            table,
            memory,
            inside,
            ring,
            peer,
            piece: usize::MAX,
        };
        world.run();
        world
    }

    /// Moves bytes until nothing moves by itself; takes the engine's requests for links.
    fn run(&mut self) {
        loop {
            let peer = &mut self.peer;
            let mut moved = peer.transmit();
            if !peer.to_engine.is_empty() && self.engine.wants_input(peer.link) {
                let piece = self.piece.min(peer.to_engine.len());
                let bytes = &peer.to_engine[..piece];
                let taken = self
                    .engine
                    .handle_bytes(peer.link, NOW, &mut NoPages, bytes);
                peer.to_engine.drain(..taken);
                moved |= taken > 0;
            }
            moved |= peer.receive(&mut self.engine);
            if !moved {
                return;
            }
        }
    }

    fn send(&mut self, message: &[u8]) {
        let send = Operation::Send {
            source: Source::Bytes(message.to_vec()),
            solicited: false,
            invalidate: None,
        };
        self.peer.post(send);
    }

    fn events(&mut self) -> Vec<EngineEvent> {
        std::iter::from_fn(|| self.engine.poll_event()).collect()
    }

    fn answers(&mut self) -> usize {
        let completions = std::iter::from_fn(|| self.peer.connection.poll_completion());
        let is_answer = |done: &Completion| done.opcode == CompletionOpcode::RecvRdmaWithImm;
        completions.filter(is_answer).count()
    }

    /// Nothing outside of the program's memory has changed.
    fn assert_confined(&self) {
        for at in (0..QUARTER).chain(3 * QUARTER..4 * QUARTER) {
            assert_eq!(self.memory.to_vec(at, 1), [at as u8], "byte {at}");
        }
    }
}

impl Peer {
    fn new(engine: &mut Engine<NoPages>) -> Self {
        let table = RegionTable::new([2; 32]);
        let results = Buffer::zeroed(4096);
        let rights = Rights::REMOTE_WRITE;
        let spec = RegionSpec::memory(ProtectionDomain(0), rights, &results);
        let region = table.register(spec).unwrap();
        let mut connection = Connection::initiator(Config::default(), &table, b"me", NOW).unwrap();
        for number in 0..100 {
            connection
                .post_recv(WrId(number), RecvBuffer::Vec(64))
                .unwrap();
        }
        let link = engine.listen(NOW).unwrap();
        let destination = Destination {
            link,
            stag: region.stag,
            base: TaggedOffset(0),
            len: 4096,
            detached: true,
        };
        engine.set_destination(1, 0, destination);
        Self {
            connection,
            link,
            queue: 0,
            results,
            to_engine: Vec::new(),
        }
    }

    fn post(&mut self, op: Operation) {
        self.connection
            .post_send(WorkRequest::new(WrId(1000), op))
            .unwrap();
    }

    fn transmit(&mut self) -> bool {
        let out = &mut self.to_engine;
        self.connection
            .poll_transmit(NOW, &mut NoPages, out, 1 << 20)
            > 0
    }

    fn receive(&mut self, engine: &mut Engine<NoPages>) -> bool {
        while let Some(event) = engine.poll_event() {
            if let EngineEvent::Requested { link, private_data } = event {
                assert_eq!(private_data, b"me");
                let fence = Check {
                    at: 2,
                    bytes: FENCE.to_vec(),
                };
                let spec = LinkSpec {
                    receive: Some(self.queue),
                    checks: vec![fence],
                    alike: None,
                };
                engine.accept(link, b"you", spec).unwrap();
            } else if !matches!(event, EngineEvent::Established { .. }) {
                // Put back for the test, which looks when all is quiet.
                self.connection.abort();
                SEEN.with_borrow_mut(|seen| seen.push(event));
            }
        }
        let mut bytes = Vec::new();
        engine.poll_transmit(self.link, NOW, &mut NoPages, &mut bytes, 1 << 20);
        let taken = self.connection.handle_bytes(NOW, &mut NoPages, &bytes);
        assert_eq!(taken, bytes.len());
        !bytes.is_empty()
    }
}

thread_local! {
    static SEEN: std::cell::RefCell<Vec<EngineEvent>> = const { std::cell::RefCell::new(Vec::new()) };
}

fn seen() -> Vec<EngineEvent> {
    SEEN.with_borrow_mut(std::mem::take)
}

fn copy(from: u64, to: u64, len: u32) -> Vec<u8> {
    let mut message = vec![1, Opcode::Copy as u8];
    message.extend(FENCE);
    message.extend(len.to_le_bytes());
    message.extend(from.to_le_bytes());
    message.extend(to.to_le_bytes());
    message.resize(MESSAGE, 0);
    message
}

fn cas(at: u64, old: u64, new: u64) -> Vec<u8> {
    let mut message = vec![2, Opcode::CompareSwap as u8];
    message.extend(FENCE);
    message.resize(16, 0);
    message.extend(at.to_le_bytes());
    message.extend(old.to_le_bytes());
    message.extend(new.to_le_bytes());
    message
}

/// Messages run the program, in order, through more laps than the ring has; the answer holds what CAS found (O4).
#[test]
fn messages_complete_what_was_posted() {
    for (depth, piece) in [(1, usize::MAX), (4, 7), (64, usize::MAX)] {
        let mut world = World::new(depth);
        world.piece = piece;
        for turn in 0..30_u64 {
            let old = if turn == 0 {
                let bytes = world.memory.to_vec(QUARTER + 8, 8);
                u64::from_le_bytes(bytes.try_into().unwrap())
            } else {
                turn - 1
            };
            world.send(&cas(8, old, turn));
            world.send(&copy(8, 16 * (turn + 2), 16));
        }
        world.run();
        assert_eq!(seen(), []);
        assert_eq!(world.answers(), 60);
        for turn in 0..30_u64 {
            let copied = world.memory.to_vec(QUARTER + 16 * (turn as usize + 2), 8);
            assert_eq!(copied, turn.to_le_bytes(), "the copy saw the CAS before it");
        }
        assert_eq!(world.engine.operations(), (60, 60));
        let [nothing, .., copies] = world.engine.executed(0, 1);
        assert_eq!((nothing, copies), (30, 30));
        // What is left of the last answer: the message of a copy, sent on as it came.
        assert_eq!(world.peer.results.to_vec(0, MESSAGE), copy(8, 16 * 31, 16));
        world.send(&cas(8, 5, 6));
        world.run();
        assert_eq!(world.peer.results.to_vec(8, 8), 29_u64.to_le_bytes());
        world.assert_confined();
    }
}

/// Whatever part of a message has come, nothing has happened; with its last byte it happens (O3).
#[test]
fn a_torn_message_changes_nothing() {
    let mut world = World::new(4);
    world.send(&copy(3, 512, 64));
    world.peer.transmit();
    let bytes = std::mem::take(&mut world.peer.to_engine);
    let before = world.memory.to_vec(QUARTER + 512, 64);
    let ring = world.engine.ring_memory(0).to_vec(0, 3 * DESCRIPTOR_BYTES);
    for byte in &bytes {
        assert_eq!(world.memory.to_vec(QUARTER + 512, 64), before);
        assert_eq!(world.engine.ring_memory(0).to_vec(0, ring.len()), ring);
        let link = world.peer.link;
        world.engine.handle_bytes(link, NOW, &mut NoPages, &[*byte]);
    }
    assert_ne!(world.memory.to_vec(QUARTER + 512, 64), before);

    // Cut off in the middle: the same as never sent.
    let mut world = World::new(4);
    world.send(&copy(3, 512, 64));
    world.peer.transmit();
    let half = world.peer.to_engine.len() / 2;
    let link = world.peer.link;
    let bytes = world.peer.to_engine[..half].to_vec();
    world.engine.handle_bytes(link, NOW, &mut NoPages, &bytes);
    world.engine.handle_transport_error(link, &mut NoPages);
    assert_eq!(world.memory.to_vec(QUARTER + 512, 64), before);
    let closed = EngineEvent::Closed {
        link,
        reason: CloseReason::Lost,
    };
    assert!(world.events().contains(&closed));
    assert_eq!(world.engine.operations(), (0, 0));
}

/// Ring memory in the hands of a peer, who WRITEs it directly: nothing runs before a message, whatever it says of itself
/// (O1); and when one comes, what the peer wrote gets no further than a message would.
#[test]
fn a_peer_that_writes_the_ring_itself() {
    for seed in 0..200_u64 {
        let mut world = World::new(2);
        let mut garbage: Vec<u8> = (0..2 * 3 * DESCRIPTOR_BYTES as u64)
            .map(|at| (seed.wrapping_mul(at + 77) >> 3) as u8)
            .collect();
        for descriptor in garbage.chunks_mut(DESCRIPTOR_BYTES) {
            // Owned, of this lap, with an opcode.
            descriptor[..4].copy_from_slice(&1_u32.to_le_bytes());
            descriptor[4] = (seed % 8) as u8;
        }
        let remote = world.ring.remote(0);
        let source = Source::Bytes(garbage);
        world.peer.post(Operation::Write { source, remote });
        world.run();
        assert_eq!(world.engine.operations(), (0, 0));
        assert_eq!(world.engine.executed(0, 1), [0; 8]);
        world.assert_confined();
        world.send(&copy(3, 512, 64));
        world.run();
        // The CAS that no message patched holds what the peer wrote: refused when it runs, or a CAS where it may be.
        world.assert_confined();
        for request in 1..3 {
            let posted = [Opcode::Copy, Opcode::CompareSwap][request - 1] as usize;
            let ran = world.engine.executed(0, request);
            assert!(
                (1..8).all(|opcode| opcode == posted || ran[opcode] == 0),
                "{ran:?}"
            );
        }
        let broken =
            |event: &EngineEvent| matches!(event, EngineEvent::Broken(Broken::Descriptor(_)));
        assert!(
            seen()
                .iter()
                .all(|event| broken(event) || matches!(event, EngineEvent::Closed { .. }))
        );
    }
}

/// Messages that do not hold what they have to end their link, and only that.
#[test]
fn refusals() {
    let beyond = 2 * QUARTER as u64;
    let with = |at: usize, byte: u8| {
        let mut message = copy(3, 512, 64);
        message[at] = byte;
        message
    };
    for (message, expected) in [
        (with(0, 9), Refusal::Kind),
        (with(1, Opcode::Wait as u8), Refusal::Opcode),
        (with(1, Opcode::CompareSwap as u8), Refusal::Opcode),
        (with(1, 200), Refusal::Opcode),
        (with(2, 0), Refusal::Check),
        (copy(3, 512, 64)[..39].to_vec(), Refusal::Length),
        (copy(3, 66, 64), Refusal::Overlap),
        (cas(4, 0, 0), Refusal::Alignment),
    ] {
        let mut world = World::new(4);
        let before = world.memory.to_vec(0, 4 * QUARTER);
        world.send(&message);
        world.run();
        let link = world.peer.link;
        let refusal = expected;
        assert_eq!(
            seen().first(),
            Some(&EngineEvent::Refused { link, refusal })
        );
        assert_eq!(world.memory.to_vec(0, 4 * QUARTER), before);
        assert!(world.engine.broken().is_none());
        assert_eq!(world.engine.socket_state(link), SocketState::Close);
    }
    for outside in [
        copy(beyond - 63, 0, 64),
        copy(0, beyond - 63, 64),
        copy(u64::MAX - 3, 0, 64),
        copy(0, u64::MAX - 63, 64),
        copy(0, beyond / 2, u32::MAX),
        cas(beyond, 0, 0),
        cas(u64::MAX - 7, 0, 0),
    ] {
        let mut world = World::new(4);
        world.send(&outside);
        world.run();
        let events = seen();
        let refusal = |event: &EngineEvent| {
            let refused = matches!(
                event,
                EngineEvent::Refused {
                    refusal: Refusal::Access(_),
                    ..
                }
            );
            refused.then_some(())
        };
        assert!(events.first().and_then(refusal).is_some(), "{events:?}");
        world.assert_confined();
    }
}

/// A message for an operation that another has begun leaves nothing behind if it is refused, as one that begins an operation
/// does: its sender loses the link, and what the next one posts is carried out as it says (O3).
#[test]
fn a_refused_message_to_an_operation_leaves_nothing() {
    let mut world = World::with(4, |mut program| {
        let begins = ReceiveSpec {
            message: MESSAGE,
            kind_at: 0,
            formats: vec![Format {
                kind: 1,
                moves: Vec::new(),
            }],
            keep: None,
        };
        program.receives.insert(0, begins);
        program.queues[0].requests[0] = Template::Wait {
            on: Count::Receive(1),
            per_operation: 1,
            queue: 0,
            releases: 2,
        };
        program
    });
    world.send(&copy(0, 0, 0));
    world.run();
    let mut joins = |message: &[u8]| {
        world.peer = Peer {
            queue: 1,
            ..Peer::new(&mut world.engine)
        };
        world.run();
        world.send(message);
        world.run();
        world.engine.broken().cloned()
    };
    assert_eq!(joins(&copy(0, 2 * QUARTER as u64, 64)), None);
    assert!(matches!(seen()[..], [EngineEvent::Refused { .. }, ..]));
    assert_eq!(joins(&cas(0, u64::MAX, 0)), None);
    assert_eq!(world.answers(), 1);
    assert_eq!(world.engine.executed(0, 1)[Opcode::Copy as usize], 0);
    assert_eq!(world.engine.executed(0, 2)[Opcode::CompareSwap as usize], 1);
    world.assert_confined();
}

/// Messages with any numbers in them, thousands of them: some are carried out, none leaves its memory, and only their sender's
/// link is ever at stake.
#[test]
fn hostile_messages_stay_inside() {
    let mut random = StdRng::seed_from_u64(11);
    let mut world = World::new(8);
    let (mut done, mut refused) = (0, 0);
    for _ in 0..20_000 {
        let edge = |random: &mut StdRng| match random.random_range(0..4) {
            0 => random.random(),
            1 => (2 * QUARTER as u64).wrapping_add_signed(random.random_range(-64..64)),
            _ => random.random_range(0..2 * QUARTER as u64) & !7,
        };
        let (from, to) = (edge(&mut random), edge(&mut random));
        let len = random.random_range(0..3000) >> random.random_range(0..12);
        let mut message = match random.random() {
            true => copy(from, to, len),
            false => cas(to, 0, edge(&mut random)),
        };
        if random.random_range(0..8) == 0 {
            let at = random.random_range(0..MESSAGE);
            message[at] = random.random();
        }
        world.send(&message);
        world.run();
        assert!(world.engine.broken().is_none());
        match seen().first() {
            None => done += 1,
            Some(EngineEvent::Refused { .. }) => {
                refused += 1;
                world.assert_confined();
                world = World::new(8);
            }
            Some(other) => panic!("{other:?}"),
        }
        // Receives of the peer are used up.
        if world.answers() > 0 {
            world
                .peer
                .connection
                .post_recv(WrId(0), RecvBuffer::Vec(64))
                .unwrap();
        }
    }
    world.assert_confined();
    assert!(done > 2000 && refused > 2000, "{done} {refused}");
}

/// Immediate data are no messages and cost no buffers: a link that has sent more of them than it has receives is served as
/// before (I16).
#[test]
fn immediate_data_use_nothing_up() {
    let mut world = World::new(4);
    for _ in 0..2 * RECEIVES {
        world.peer.post(Operation::Immediate {
            immediate: 7.into(),
            solicited: false,
        });
        world.run();
        assert!(world.peer.connection.poll_completion().is_some());
    }
    assert_eq!(seen(), []);
    assert!(world.engine.wants_input(world.peer.link));
    world.send(&copy(8, 512, 16));
    world.run();
    assert_eq!(seen(), []);
    assert_eq!((world.engine.operations(), world.answers()), ((1, 1), 1));
}

/// A region that is withdrawn is not touched, and after `stop` nothing is (I11, O6).
#[test]
fn what_is_withdrawn_is_not_touched() {
    let mut world = World::new(4);
    let before = world.memory.to_vec(0, 4 * QUARTER);
    world.table.deregister(world.inside.stag);
    world.send(&copy(3, 512, 64));
    world.run();
    assert!(matches!(seen().first(), Some(EngineEvent::Refused { .. })));
    assert_eq!(world.memory.to_vec(0, 4 * QUARTER), before);

    let mut world = World::new(4);
    world.send(&copy(3, 512, 64));
    world.peer.transmit();
    world.engine.stop();
    world.run();
    assert_eq!(world.memory.to_vec(0, 4 * QUARTER), before);
    assert_eq!(world.engine.broken(), Some(&Broken::Stopped));
    assert!(world.engine.listen(NOW).is_err());
    let _ = seen();
}

/// A program that would let peers have more than they may is not taken.
#[test]
fn programs_that_are_refused() {
    let keep = Buffer::zeroed(MESSAGE * 4);
    let valid = || program(Stag(1), Stag(2), &keep, 4);
    assert_eq!(valid().validate(), Ok(()));
    let with = |change: fn(&mut Program)| {
        let mut program = valid();
        change(&mut program);
        program.validate().unwrap_err()
    };
    let step = |program: &mut Program, at, len| {
        let step = &mut program.receives[0].formats[0].moves[0];
        (step.at, step.len) = (at, len);
    };
    assert_eq!(with(|program| program.depth = 0), ProgramError::Size);
    assert_eq!(with(|program| program.depth = 5), ProgramError::Message);
    assert_eq!(with(|program| program.queues.clear()), ProgramError::Size);
    for (at, len) in [
        (field::OWNER, 4),
        (field::LOCAL_STAG, 4),
        (field::REMOTE_STAG, 1),
        (field::DESTINATION, 2),
        (field::LENGTH, 8),
        (field::COMPARE, 8),
        (1000, 1),
    ] {
        let mut program = valid();
        step(&mut program, at, len);
        assert_eq!(program.validate(), Err(ProgramError::Mask), "{at} {len}");
    }
    // A WAIT has no fields.
    let of_wait = |program: &mut Program| program.receives[0].formats[0].moves[0].request = 0;
    assert_eq!(with(of_wait), ProgramError::Mask);
    let unknown = |program: &mut Program| program.receives[0].formats[0].moves[0].queue = 2;
    assert_eq!(with(unknown), ProgramError::Unknown);
    let beyond = |program: &mut Program| program.receives[0].formats[0].moves[0].from = MESSAGE;
    assert_eq!(with(beyond), ProgramError::Message);
    let carrier = |program: &mut Program| program.queues[0].carrier = Carrier::Links;
    assert_eq!(with(carrier), ProgramError::Carrier);
    // A queue that stands still, and grants that find no request: of nothing but WAITs, and of nothing.
    for (counted, releases) in [(2, 2), (1, 0), (1, 1), (1, 3), (1, u32::MAX)] {
        let mut program = valid();
        program.queues[0].requests[0] = Template::Wait {
            on: Count::Receive(0),
            per_operation: counted,
            queue: 0,
            releases,
        };
        assert_eq!(program.validate(), Err(ProgramError::Wait), "{releases}");
    }
    let waits = |program: &mut Program| program.queues[1].requests.truncate(1);
    assert_eq!(with(waits), ProgramError::Wait);
    let nobody = |program: &mut Program| {
        let wait = program.queues[1].requests.swap_remove(0);
        program.queues[0].requests.push(wait);
        program.queues[1].requests.clear();
    };
    assert_eq!(with(nobody), ProgramError::Wait);
}
