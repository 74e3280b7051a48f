//! Atomic operations and immediate data (RFC 7306): what they do, in which order, and what refuses them.

use crate::common::raw::{self, ATOMIC_ID, Sent, terminate_code, transmit};
use crate::common::{Residency, TestPages, completions, connect, pattern, settle, table};
use softrdma::wire::atomic::AtomicResponse;
use softrdma::wire::terminate::TerminateCode::{self, *};
use softrdma::{
    Atomic, BackingId, Buffer, CompletionOpcode, Config, Connection, Immediate, LocalSlice,
    MemoryRegion, NoPages, Operation, ProtectionDomain, RecvBuffer, RegionSpec, RemoteAddr, Rights,
    Source, Stag, Status, TaggedOffset, Time, WorkRequest, WrId,
};
use std::sync::Arc;

const FILE: BackingId = BackingId(1);
const DOMAIN: ProtectionDomain = ProtectionDomain(0);
const SINK: Stag = Stag(0x5151_5100);
const ADD_ONE: Atomic = Atomic::FetchAdd { add: 1, mask: 0 };

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().unwrap())
}

struct Target {
    pages: TestPages,
    connection: Connection<TestPages>,
    file: MemoryRegion,
    memory: Arc<Buffer>,
    dram: MemoryRegion,
    table: Arc<softrdma::RegionTable>,
}

fn target(residency: Residency) -> Target {
    let table = table(9);
    let mut pages = TestPages::new(residency, 1);
    let all = Rights::REMOTE_READ | Rights::REMOTE_WRITE | Rights::REMOTE_ATOMIC;
    let spec = RegionSpec::pages(DOMAIN, all, FILE, 0, 1 << 20);
    let file = table.register(spec).unwrap();
    let memory = Buffer::zeroed(4096);
    let spec = RegionSpec::memory(DOMAIN, all, &memory);
    let dram = table.register(spec).unwrap();
    let connection = raw::responder(Config::default(), &table, &mut pages);
    Target {
        pages,
        connection,
        file,
        memory,
        dram,
        table,
    }
}

impl Target {
    fn deliver(&mut self, bytes: &[u8]) {
        let taken = self
            .connection
            .handle_bytes(Time(0), &mut self.pages, bytes);
        assert_eq!(taken, bytes.len());
    }

    fn sent(&mut self) -> Vec<Sent> {
        transmit(&mut self.connection, &mut self.pages)
    }

    fn code(&mut self) -> TerminateCode {
        terminate_code(&mut self.connection, &mut self.pages)
    }

    fn page(&mut self) {
        let (ticket, page) = self.pages.finish_one().unwrap();
        self.connection
            .handle_page(&mut self.pages, ticket, Ok(page));
    }

    fn word(&mut self, offset: u64) -> u64 {
        number(&self.pages.content(FILE, offset, 8))
    }
}

fn answer(msn: u32, original: u64) -> Sent {
    let request = ATOMIC_ID;
    Sent::AtomicResponse(msn, AtomicResponse { request, original })
}

/// An operation counts as executed from the step in which the word changes, whether its answer has left, waits behind a READ, or
/// never will; one whose page is awaited when the connection ends does not, and is not executed later (I13, I18).
#[test]
fn outcomes_are_those_of_the_memory() {
    for delivered in 0..6 {
        for pages_come in 0..6 {
            let table = table(9);
            let mut pages = TestPages::new(Residency::Never, 1);
            let all = Rights::REMOTE_READ | Rights::REMOTE_WRITE | Rights::REMOTE_ATOMIC;
            let spec = RegionSpec::pages(DOMAIN, all, FILE, 0, 1 << 20);
            let file = table.register(spec).unwrap();
            let config = Config {
                atomics_kept: 3,
                ..Config::default()
            };
            let connection = raw::responder(config, &table, &mut pages);
            let mut target = Target {
                pages,
                connection,
                file,
                memory: Buffer::zeroed(8),
                dram: file,
                table,
            };
            let base = target.file.base.0;
            // Nobody answers it: the answers behind it wait for ever.
            let read = raw::read(1, target.file.stag, base + 8192, 8);
            target.deliver(&read);
            let (awaited, _) = target.pages.finish_one().unwrap();
            for n in 0..delivered {
                let atomic = raw::atomic(2 + n, target.file.stag, base, ADD_ONE);
                target.deliver(&atomic);
            }
            let mut executed = 0;
            while executed < pages_come
                && let Some((ticket, page)) = target.pages.finish_one()
            {
                assert_ne!(ticket, awaited);
                let (connection, pages) = (&mut target.connection, &mut target.pages);
                connection.handle_page(pages, ticket, Ok(page));
                executed += 1;
            }
            assert!(target.sent().is_empty());
            let late = target.pages.finish_one();
            target.connection.abort();
            let count = u64::from(executed);
            assert_eq!(count, u64::from(pages_come.min(delivered)));
            let outcomes = target.connection.atomic_outcomes().clone();
            assert_eq!((outcomes.executed, target.word(0)), (count, count));
            for n in 0..6 {
                let kept = n < count && n + 3 >= count;
                assert_eq!(outcomes.original(n), kept.then_some(n));
            }
            if let Some((ticket, page)) = late {
                let (connection, pages) = (&mut target.connection, &mut target.pages);
                connection.handle_page(pages, ticket, Ok(page));
            }
            assert_eq!(target.word(0), count);
            assert_eq!(*target.connection.atomic_outcomes(), outcomes);
        }
    }
}

/// Both operations, plain and masked, on memory and on pages that are there or not, at any chunking: the completion has
/// the old value, the target the new one.
#[test]
fn operations_on_memory_and_pages() {
    for (residency, chunk) in [
        (Residency::Always, 1 << 16),
        (Residency::Never, 1),
        (Residency::Sometimes, 7),
    ] {
        let (ours, theirs) = (table(1), table(2));
        let pages = TestPages::new(residency, 5);
        let mut pair = connect(Config::default(), &ours, Config::default(), &theirs, pages);
        pair.chunk = chunk;
        let memory = Buffer::zeroed(64);
        let rights = Rights::REMOTE_ATOMIC;
        for spec in [
            RegionSpec::memory(DOMAIN, rights, &memory),
            RegionSpec::pages(DOMAIN, rights, FILE, 4096, 8192),
        ] {
            let region = theirs.register(spec).unwrap();
            let remote = region.remote(8);
            let masked = |op| Operation::Atomic { remote, op };
            let steps = [
                (
                    Operation::fetch_add(remote, 5),
                    0,
                    CompletionOpcode::FetchAdd,
                ),
                (
                    Operation::compare_swap(remote, 4, 9),
                    5,
                    CompletionOpcode::CompSwap,
                ),
                (
                    Operation::compare_swap(remote, 5, 0xff),
                    5,
                    CompletionOpcode::CompSwap,
                ),
                (
                    masked(Atomic::FetchAdd {
                        add: 0x0101,
                        mask: 0x80,
                    }),
                    0xff,
                    CompletionOpcode::FetchAdd,
                ),
                (
                    masked(Atomic::CompareSwap {
                        compare: 0x0100,
                        compare_mask: 0xff00,
                        swap: u64::MAX,
                        swap_mask: 0x0f,
                    }),
                    0x0100,
                    CompletionOpcode::CompSwap,
                ),
                (
                    Operation::fetch_add(remote, u64::MAX),
                    0x010f,
                    CompletionOpcode::FetchAdd,
                ),
            ];
            let expected: Vec<_> = steps.iter().map(|(_, old, kind)| (*kind, *old)).collect();
            for (id, (op, ..)) in steps.into_iter().enumerate() {
                let request = WorkRequest::new(WrId(id as u64), op);
                pair.a.connection.post_send(request).unwrap();
            }
            settle(&mut pair);
            let done = completions(&mut pair.a.connection);
            assert!(
                done.iter()
                    .all(|done| done.status.is_success() && done.bytes == 8)
            );
            let done: Vec<_> = done
                .iter()
                .map(|done| (done.opcode, done.original))
                .collect();
            assert_eq!(done, expected);
        }
        assert_eq!(number(&memory.to_vec(8, 8)), 0x010e);
        assert_eq!(number(&pair.b.pages.content(FILE, 4104, 8)), 0x010e);
        assert_eq!(pair.b.pages.pins.get(), 0);
    }
}

/// An atomic operation takes effect where it stands in the stream; its answer waits for that of an earlier READ.
#[test]
fn answers_keep_the_order_of_requests() {
    let mut target = target(Residency::Never);
    target.pages.fill(FILE, 0, &[7; 8]);
    target.deliver(&raw::read(1, target.file.stag, 0, 8));
    target.deliver(&raw::atomic(2, target.dram.stag, 0, ADD_ONE));
    target.deliver(&raw::atomic(3, target.dram.stag, 0, ADD_ONE));
    target.deliver(&raw::read(4, target.dram.stag, 0, 8));
    assert_eq!(number(&target.memory.to_vec(0, 8)), 2);
    assert_eq!(target.sent(), []);
    target.page();
    let two = 2_u64.to_le_bytes().to_vec();
    assert_eq!(
        target.sent(),
        [
            Sent::Response(SINK, 0x1000, vec![7; 8], true),
            answer(1, 0),
            answer(2, 1),
            Sent::Response(SINK, 0x1000, two, true),
        ]
    );
}

/// While the page of an atomic operation comes, nothing behind it takes effect; then it takes effect once. When others
/// have to be told of it, what is behind it waits for that, too.
#[test]
fn parks_for_its_page() {
    for (residency, tells) in [
        (Residency::Never, false),
        (Residency::Never, true),
        (Residency::Always, true),
    ] {
        let mut target = target(residency);
        target.pages.tells = tells;
        target.deliver(&raw::atomic(1, target.file.stag, 8, ADD_ONE));
        target.deliver(&raw::write(target.dram.stag, 0, &[9; 8], true));
        assert_eq!(target.sent(), []);
        if residency == Residency::Never {
            target.page();
        }
        if tells {
            assert_eq!(target.sent(), []);
            assert_eq!(target.memory.to_vec(0, 8), [0; 8], "not before it is told");
            let ticket = target.pages.puts.pop().unwrap();
            target.connection.handle_put(&mut target.pages, ticket);
        }
        assert_eq!(target.sent(), [answer(1, 0)]);
        assert_eq!(target.word(8), 1);
        assert_eq!(target.memory.to_vec(0, 8), [9; 8]);
    }
}

/// Defends I11: a region that ends while the page comes is not touched.
#[test]
fn revoked_while_its_page_comes() {
    let mut target = target(Residency::Never);
    target.deliver(&raw::atomic(1, target.file.stag, 8, ADD_ONE));
    assert!(target.table.deregister(target.file.stag));
    target.page();
    let sent = target.sent();
    let [Sent::Terminate(ProtectionInvalidStag, enclosed)] = &sent[..] else {
        panic!("{sent:?}")
    };
    assert_eq!(enclosed.len(), 2 + 18);
    assert_eq!(target.word(8), 0);
    assert_eq!(target.pages.pins.get(), 0);
}

/// Defends C2: through a sync STag, neither the answer nor anything behind it before it is durable.
#[test]
fn sync_is_durable_before_the_answer() {
    for residency in [Residency::Always, Residency::Never] {
        let mut target = target(residency);
        let sync = target.file.sync_stag.unwrap();
        target.deliver(&raw::atomic(1, sync, 8, ADD_ONE));
        target.deliver(&raw::write(target.dram.stag, 0, &[9; 8], true));
        if residency == Residency::Never {
            target.page();
        }
        assert_eq!(target.word(8), 1);
        assert_eq!(target.sent(), []);
        assert_eq!(target.memory.to_vec(0, 8), [0; 8]);
        let (ranges, ticket) = target.pages.syncs.remove(0);
        assert_eq!((ranges[0].first, ranges[0].count), (0, 1));
        target
            .connection
            .handle_durable(&mut target.pages, ticket, Ok(()));
        assert_eq!(target.sent(), [answer(1, 0)]);
        assert_eq!(target.memory.to_vec(0, 8), [9; 8]);
    }
}

/// Defends I10: rights and alignment, of the address and of the memory behind it. Memory is untouched.
#[test]
fn refusals() {
    let mut base = target(Residency::Always);
    let odd = RegionSpec {
        offset: 4,
        len: 64,
        ..RegionSpec::memory(DOMAIN, Rights::REMOTE_ATOMIC, &base.memory)
    };
    let odd = base.table.register(odd).unwrap();
    let plain = Rights::REMOTE_READ | Rights::REMOTE_WRITE;
    let plain = RegionSpec::memory(DOMAIN, plain, &base.memory);
    let plain = base.table.register(plain).unwrap();
    for (what, stag, to, expected) in [
        ("no right", plain.stag, 0, ProtectionRights),
        ("address", base.dram.stag, 4, OperationCatastrophicStream),
        ("memory", odd.stag, 8, OperationCatastrophicStream),
        ("both odd", odd.stag, 4, OperationCatastrophicStream),
        ("over the end", base.dram.stag, 4092, ProtectionBounds),
        ("past the end", base.dram.stag, 4096, ProtectionBounds),
        ("wrap", base.dram.stag, u64::MAX - 7, ProtectionWrap),
        ("unknown", Stag(0x0102_0300), 0, ProtectionInvalidStag),
    ] {
        base.connection = raw::responder(Config::default(), &base.table, &mut base.pages);
        base.deliver(&raw::atomic(1, stag, to, ADD_ONE));
        assert_eq!(base.code(), expected, "{what}");
    }
    assert_eq!(base.memory.to_vec(0, 4096), [0; 4096]);
}

/// Atomic operations and READs share IRD at the responder and ORD at the requester, and a fence waits for both.
#[test]
fn atomics_share_the_budget_of_reads() {
    let mut target = target(Residency::Never);
    let config = Config {
        ird_max: 2,
        ..Config::default()
    };
    target.connection = raw::responder(config, &target.table, &mut target.pages);
    target.deliver(&raw::atomic(1, target.dram.stag, 0, ADD_ONE));
    target.deliver(&raw::read(2, target.file.stag, 0, 8));
    target.deliver(&raw::atomic(3, target.dram.stag, 0, ADD_ONE));
    assert_eq!(target.code(), OperationCatastrophicStream);
    assert_eq!(number(&target.memory.to_vec(0, 8)), 1);

    let (mut requester, remote, sink) = requester(2);
    let requests = [
        Operation::fetch_add(remote, 1),
        Operation::Read {
            sink: LocalSlice::whole(&sink),
            remote,
        },
        Operation::fetch_add(remote, 2),
    ];
    for (id, op) in requests.into_iter().enumerate() {
        let request = WorkRequest::new(WrId(id as u64), op);
        requester.post_send(request).unwrap();
    }
    let immediate = Operation::Immediate {
        immediate: Immediate([1; 8]),
        solicited: true,
    };
    let fenced = WorkRequest {
        fence: true,
        ..WorkRequest::new(WrId(3), immediate)
    };
    requester.post_send(fenced).unwrap();
    let sent = transmit(&mut requester, &mut NoPages);
    assert!(
        matches!(sent[..], [Sent::Atomic(1, _), Sent::Read(2, _)]),
        "{sent:?}"
    );
    requester.handle_bytes(Time(0), &mut NoPages, &raw::atomic_response(1, 1, 77));
    let sent = transmit(&mut requester, &mut NoPages);
    assert!(matches!(sent[..], [Sent::Atomic(3, _)]), "{sent:?}");
    requester.handle_bytes(
        Time(0),
        &mut NoPages,
        &raw::response(Stag(0x200), 0, &[5; 8], true),
    );
    assert_eq!(transmit(&mut requester, &mut NoPages), [], "the fence");
    requester.handle_bytes(Time(0), &mut NoPages, &raw::atomic_response(2, 3, 78));
    assert_eq!(
        transmit(&mut requester, &mut NoPages),
        [Sent::Immediate(1, vec![1; 8], true)]
    );
    let originals: Vec<u64> = completions(&mut requester)
        .iter()
        .map(|done| done.original)
        .collect();
    assert_eq!(originals, [77, 0, 78, 0]);
}

/// A requester that a responder made of bytes has accepted, with this ORD; its start frames are dropped.
fn requester(ord_max: u16) -> (Connection<NoPages>, RemoteAddr, Arc<Buffer>) {
    let config = Config {
        ord_max,
        hello: false,
        peer_to_peer: false,
        ..Config::default()
    };
    let mut connection = Connection::initiator(config, &table(3), b"", Time(0)).unwrap();
    connection.poll_transmit(Time(0), &mut NoPages, &mut Vec::new(), usize::MAX);
    let reply = b"MPA ID Rep Frame\x50\x02\x00\x04\x00\x40\x00\x40";
    connection.handle_bytes(Time(0), &mut NoPages, reply);
    assert!(connection.poll_event().is_some());
    let to = TaggedOffset(64);
    let stag = Stag(0x0900);
    (connection, RemoteAddr { stag, to }, Buffer::zeroed(8))
}

/// Answers that nobody asked for like that end the stream, each with its code; the operation is reported as flushed.
#[test]
fn wrong_answers() {
    let read = raw::response(Stag(0x100), 0, &[1], true);
    for (what, bytes, expected) in [
        ("number", raw::atomic_response(2, 1, 0), UntaggedMsnRange),
        (
            "id",
            raw::atomic_response(1, 2, 0),
            OperationCatastrophicStream,
        ),
        ("kind", read, TaggedInvalidStag),
        (
            "twice",
            [raw::atomic_response(1, 1, 0), raw::atomic_response(2, 1, 0)].concat(),
            UntaggedNoBuffer,
        ),
    ] {
        let (mut requester, remote, _) = requester(4);
        let add = WorkRequest::new(WrId(1), Operation::fetch_add(remote, 1));
        requester.post_send(add).unwrap();
        transmit(&mut requester, &mut NoPages);
        requester.handle_bytes(Time(0), &mut NoPages, &bytes);
        assert_eq!(
            terminate_code(&mut requester, &mut NoPages),
            expected,
            "{what}"
        );
        let done = completions(&mut requester);
        assert_eq!(done.len(), 1, "{what}");
        let expected = if what == "twice" {
            Status::Success
        } else {
            Status::Flushed
        };
        assert_eq!(done[0].status, expected, "{what}");
    }
    // The other way round: an atomic answer while a READ is the oldest.
    let (mut requester, remote, sink) = requester(4);
    let sink = LocalSlice::whole(&sink);
    let read = WorkRequest::new(WrId(1), Operation::Read { sink, remote });
    requester.post_send(read).unwrap();
    let add = WorkRequest::new(WrId(2), Operation::fetch_add(remote, 1));
    requester.post_send(add).unwrap();
    transmit(&mut requester, &mut NoPages);
    requester.handle_bytes(Time(0), &mut NoPages, &raw::atomic_response(1, 2, 0));
    assert_eq!(
        terminate_code(&mut requester, &mut NoPages),
        UntaggedNoBuffer
    );
}

/// WRITE with immediate data: when the receive completes the WRITE is placed, whatever its pages took; the buffer is not
/// touched, and the count is that of the WRITE. Immediate data alone count nothing.
#[test]
fn write_with_immediate() {
    for (residency, chunk) in [(Residency::Always, 1 << 16), (Residency::Never, 3)] {
        let (ours, theirs) = (table(1), table(2));
        let pages = TestPages::new(residency, 5);
        let mut pair = connect(Config::default(), &ours, Config::default(), &theirs, pages);
        pair.chunk = chunk;
        let rights = Rights::REMOTE_WRITE;
        let spec = RegionSpec::pages(DOMAIN, rights, FILE, 0, 1 << 20);
        let region = theirs.register(spec).unwrap();
        let buffer = Buffer::from_bytes(b"unharmed");
        for id in 0..4 {
            let buffer = RecvBuffer::Local(LocalSlice::whole(&buffer));
            pair.b.connection.post_recv(WrId(id), buffer).unwrap();
        }
        let data = pattern(3, 100_000);
        let write = |len: usize, value: u32, solicited| Operation::WriteImmediate {
            source: Source::Bytes(data[..len].to_vec()),
            remote: region.remote(100),
            immediate: Immediate::from(value),
            solicited,
        };
        let alone = Operation::Immediate {
            immediate: Immediate([1, 2, 3, 4, 5, 6, 7, 8]),
            solicited: false,
        };
        let write_only = Operation::Write {
            source: Source::Bytes(vec![1; 10]),
            remote: region.remote(0),
        };
        let send = Operation::Send {
            source: Source::Bytes(b"x".to_vec()),
            solicited: false,
            invalidate: None,
        };
        let ops = [
            write(100_000, 0xdead_beef, true),
            write(0, 7, false),
            write_only,
            alone,
            send,
        ];
        for (id, op) in ops.into_iter().enumerate() {
            let request = WorkRequest::new(WrId(id as u64), op);
            pair.a.connection.post_send(request).unwrap();
        }
        loop {
            pair.run();
            if let Some(done) = pair.b.connection.poll_completion() {
                assert_eq!(done.opcode, CompletionOpcode::RecvRdmaWithImm);
                assert_eq!((done.bytes, done.solicited), (100_000, true));
                let immediate = done.immediate.unwrap();
                assert_eq!(
                    (immediate.value(), immediate.0[4..] == [0; 4]),
                    (0xdead_beef, true)
                );
                assert_eq!(pair.b.pages.content(FILE, 100, 100_000), data);
                break;
            }
            let (ticket, page) = pair.b.pages.finish_one().unwrap();
            pair.b
                .connection
                .handle_page(&mut pair.b.pages, ticket, Ok(page));
        }
        settle(&mut pair);
        let done = completions(&mut pair.b.connection);
        let seen: Vec<_> = done
            .iter()
            .map(|done| (done.opcode, done.bytes, done.immediate.map(|i| i.0)))
            .collect();
        let imm = CompletionOpcode::RecvRdmaWithImm;
        assert_eq!(
            seen,
            [
                (imm, 0, Some([0, 0, 0, 7, 0, 0, 0, 0])),
                (imm, 10, Some([1, 2, 3, 4, 5, 6, 7, 8])),
                (CompletionOpcode::Recv, 1, None),
            ]
        );
        assert_eq!(buffer.to_vec(1, 7), b"nharmed");
        let sent: Vec<_> = completions(&mut pair.a.connection)
            .iter()
            .map(|done| done.opcode)
            .collect();
        let (write, send) = (CompletionOpcode::RdmaWrite, CompletionOpcode::Send);
        assert_eq!(sent, [write, write, write, send, send]);
    }
}

/// Real atomicity: two connections in two threads and local code add to the same bytes; nothing is lost.
#[test]
fn atomic_against_other_threads() {
    const ROUNDS: u64 = 20_000;
    let table = table(9);
    let memory = Buffer::zeroed(64);
    let spec = RegionSpec::memory(DOMAIN, Rights::REMOTE_ATOMIC, &memory);
    let region = table.register(spec).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut connection = raw::responder(Config::default(), &table, &mut NoPages);
                let mut out = Vec::new();
                for msn in 1..=ROUNDS as u32 {
                    let add = raw::atomic(msn, region.stag, 8, ADD_ONE);
                    connection.handle_bytes(Time(0), &mut NoPages, &add);
                    out.clear();
                    connection.poll_transmit(Time(0), &mut NoPages, &mut out, usize::MAX);
                    assert!(!out.is_empty());
                }
            });
        }
        for _ in 0..ROUNDS {
            memory.atomic(8, ADD_ONE);
        }
    });
    assert_eq!(number(&memory.to_vec(8, 8)), 3 * ROUNDS);
}
