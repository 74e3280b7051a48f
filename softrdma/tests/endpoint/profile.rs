//! The private profile: FLUSH, VERIFY and ATOMIC WRITE, what they order, and that nobody gets them unasked.

use std::sync::Arc;

use crate::common::raw::{self, ATOMIC_ID, Sent, terminate_code, transmit};
use crate::common::{self, Residency, TestPages, completions, connect, pattern, settle, table};
use softrdma::wire::atomic::AtomicResponse;
use softrdma::wire::profile::VERIFY_BYTES_MAX;
use softrdma::wire::rdmap::Opcode;
use softrdma::wire::terminate::TerminateCode::{self, *};
use softrdma::{
    Atomic, BackingId, Buffer, CloseReason, CompletionOpcode, Config, Connection, Event,
    MemoryRegion, Operation, PageError, PageRange, Placement, PostError, ProtectionDomain,
    RegionSpec, RegionTable, RegisterError, RemoteAddr, Rights, Selectivity, Served, Source, Stag,
    Status, TaggedOffset, Time, WorkRequest, WrId,
};

const FILE: BackingId = BackingId(1);
const DOMAIN: ProtectionDomain = ProtectionDomain(0);
const SINK: Stag = Stag(0x5151_5100);

fn speaks(private_profile: bool) -> Config {
    Config {
        private_profile,
        ..Config::default()
    }
}

struct Target {
    table: Arc<RegionTable>,
    pages: TestPages,
    connection: Connection<TestPages>,
    file: MemoryRegion,
    memory: Arc<Buffer>,
    dram: MemoryRegion,
}

fn target(residency: Residency) -> Target {
    let table = table(9);
    let mut pages = TestPages::new(residency, 1);
    let spec = RegionSpec::pages(DOMAIN, Rights::all(), FILE, 100, 1 << 20);
    let file = table.register(spec).unwrap();
    let memory = Buffer::zeroed(4096);
    let rights = Rights::all() - Rights::FLUSH_PERSISTENT;
    let dram = table
        .register(RegionSpec::memory(DOMAIN, rights, &memory))
        .unwrap();
    let connection = raw::responder(speaks(true), &table, &mut pages);
    Target {
        table,
        pages,
        connection,
        file,
        memory,
        dram,
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

    fn durable(&mut self, result: Result<(), PageError>) -> Vec<PageRange> {
        let (ranges, ticket) = self.pages.syncs.remove(0);
        self.connection
            .handle_durable(&mut self.pages, ticket, result);
        ranges
    }

    fn flush(&mut self, msn: u32, offset: u64, len: u32) {
        let file = self.file.remote(offset);
        let selectivity = Selectivity::Range(len);
        self.deliver(&raw::flush(msn, file, selectivity, Placement::Persistent));
    }
}

fn flushed(msn: u32) -> Sent {
    Sent::Private(msn, Opcode::FlushResponse, ATOMIC_ID.to_be_bytes().to_vec())
}

fn verified(msn: u32, crc: u32) -> Sent {
    let body = [ATOMIC_ID.to_be_bytes(), crc.to_be_bytes()].concat();
    Sent::Private(msn, Opcode::VerifyResponse, body)
}

fn written(msn: u32) -> Sent {
    let (request, original) = (ATOMIC_ID, 0);
    Sent::AtomicResponse(msn, AtomicResponse { request, original })
}

/// Only if both announce it; otherwise work is refused when posted, or fails if it was posted before.
#[test]
fn on_only_if_both_announce_it() {
    for (ours, theirs) in [(true, true), (true, false), (false, true), (false, false)] {
        let (a, b) = (table(1), table(2));
        let pages = TestPages::new(Residency::Always, 1);
        let mut pair = common::unconnected(speaks(ours), &a, speaks(theirs), &b, pages);
        let remote = RemoteAddr {
            stag: Stag(1),
            to: TaggedOffset(0),
        };
        let verify = || Operation::Verify { remote, len: 0 };
        pair.a
            .connection
            .post_send(WorkRequest::new(WrId(1), verify()))
            .unwrap();
        pair.run();
        pair.b.connection.poll_event();
        pair.b.connection.accept(b"").unwrap();
        pair.run();
        let both = ours && theirs;
        let Some(Event::Established(agreed)) = pair.a.connection.poll_event() else {
            panic!("established")
        };
        assert_eq!(agreed.private_profile, both);
        let status = if both {
            Status::Success
        } else {
            Status::LocalQpOperation
        };
        let done = completions(&mut pair.a.connection);
        assert_eq!((done.len(), done[0].status), (1, status));
        let posted = pair
            .a
            .connection
            .post_send(WorkRequest::new(WrId(2), verify()));
        assert_eq!(
            posted,
            if both {
                Ok(())
            } else {
                Err(PostError::NoProfile)
            }
        );
    }
}

/// Opcodes C to F and the operation code of an ATOMIC WRITE, from a peer with which the profile was not agreed on.
#[test]
fn unexpected_without_the_profile() {
    let mut base = target(Residency::Always);
    let remote = base.file.remote(0);
    let write = Atomic::Write { value: 1 };
    let response = |opcode| raw::untagged(opcode, 1, 0, Stag(0), &[0; 4], true);
    for bytes in [
        raw::flush(1, remote, Selectivity::Range(1), Placement::Visible),
        response(Opcode::FlushResponse),
        raw::verify(1, remote, 1),
        response(Opcode::VerifyResponse),
        raw::atomic(1, base.dram.stag, 0, write),
    ] {
        base.connection = raw::responder(Config::default(), &base.table, &mut base.pages);
        base.deliver(&raw::write(Stag(1), 0, &[], true));
        base.deliver(&bytes);
        let code = terminate_code(&mut base.connection, &mut base.pages);
        assert_eq!(code, OperationUnexpectedOpcode);
    }
    assert_eq!(base.memory.to_vec(0, 8), [0; 8]);
}

/// Between two endpoints of ours, with pages there or not: each operation, its completion, and its effect.
#[test]
fn each_operation_end_to_end() {
    for residency in [Residency::Always, Residency::Sometimes, Residency::Never] {
        let (ours, theirs) = (table(1), table(2));
        let pages = TestPages::new(residency, 5);
        let mut pair = connect(speaks(true), &ours, speaks(true), &theirs, pages);
        pair.chunk = 1000;
        let spec = RegionSpec::pages(DOMAIN, Rights::all(), FILE, 0, 1 << 21);
        let region = theirs.register(spec).unwrap();
        let data = pattern(3, 300_000);
        let (remote, placement) = (region.remote(8), Placement::Persistent);
        let ops = [
            Operation::Write {
                source: Source::Bytes(data.clone()),
                remote,
            },
            Operation::Flush {
                remote,
                selectivity: Selectivity::Range(300_000),
                placement,
            },
            Operation::AtomicWrite { remote, value: 77 },
            Operation::Flush {
                remote: region.remote(0),
                selectivity: Selectivity::Region,
                placement,
            },
            Operation::Verify {
                remote,
                len: 300_000,
            },
            Operation::Verify { remote, len: 0 },
        ];
        for (id, op) in ops.into_iter().enumerate() {
            let request = WorkRequest::new(WrId(id as u64), op);
            pair.a.connection.post_send(request).unwrap();
        }
        settle(&mut pair);
        let mut expected = data;
        expected[..8].copy_from_slice(&77_u64.to_le_bytes());
        let crc = u64::from(crc32c::crc32c(&expected));
        let done: Vec<_> = completions(&mut pair.a.connection)
            .iter()
            .map(|done| (done.opcode, done.status.is_success(), done.original))
            .collect();
        let (flush, verify) = (CompletionOpcode::Flush, CompletionOpcode::Verify);
        let write = CompletionOpcode::AtomicWrite;
        assert_eq!(
            done,
            [
                (CompletionOpcode::RdmaWrite, true, 0),
                (flush, true, 0),
                (write, true, 0),
                (flush, true, 0),
                (verify, true, crc),
                (verify, true, 0),
            ]
        );
        assert_eq!(pair.b.pages.content(FILE, 8, 300_000), expected);
        assert_eq!(pair.b.pages.pins.get(), 0);
        let served = [
            // The connection begins with a WRITE of no bytes.
            (Served::Write, 0, 0),
            (Served::Write, 300_000, 0),
            (Served::Flush, 0, 0),
            (Served::Atomic, 8, 0),
            (Served::Flush, 0, 0),
            (Served::Verify, 300_000, 0),
            (Served::Verify, 0, 0),
        ];
        assert_eq!(pair.b.pages.served, served);
    }
}

/// A FLUSH asks for the pages of its range, of the region, or for nothing, and is answered when they are durable.
#[test]
fn what_a_flush_asks_for() {
    let range = |first, count| {
        vec![PageRange {
            backing: FILE,
            first,
            count,
        }]
    };
    // The region begins at byte 100 of the file.
    for (offset, selectivity, expected) in [
        (0, Selectivity::Range(1), range(0, 1)),
        (3995, Selectivity::Range(2), range(0, 2)),
        (3996, Selectivity::Range(4096), range(1, 1)),
        (3996, Selectivity::Range(4097), range(1, 2)),
        (u64::MAX - 100, Selectivity::Region, range(0, 257)),
    ] {
        let mut target = target(Residency::Always);
        let file = target.file.remote(offset);
        target.deliver(&raw::flush(1, file, selectivity, Placement::Persistent));
        assert_eq!(target.sent(), []);
        assert_eq!(target.durable(Ok(())), expected);
        assert_eq!(target.sent(), [flushed(1)]);
    }
    // Visible, or empty: at once. The STag of an empty range is not looked at.
    let mut target = target(Residency::Always);
    let nowhere = RemoteAddr {
        stag: Stag(5),
        to: TaggedOffset(u64::MAX),
    };
    for (msn, remote, selectivity, placement) in [
        (
            1,
            target.file.remote(0),
            Selectivity::Range(9),
            Placement::Visible,
        ),
        (
            2,
            target.dram.remote(0),
            Selectivity::Region,
            Placement::Visible,
        ),
        (3, nowhere, Selectivity::Range(0), Placement::Persistent),
    ] {
        target.deliver(&raw::flush(msn, remote, selectivity, placement));
        assert_eq!(target.sent(), [flushed(msn)]);
    }
    assert!(target.pages.syncs.is_empty());
}

/// Recipe C4 and its negative: behind a FLUSH that takes long a plain WRITE is placed, and a READ, an atomic operation and
/// an ATOMIC WRITE wait; what is behind those waits with them.
#[test]
fn what_overtakes_a_slow_flush() {
    let mut base = target(Residency::Always);
    base.flush(1, 0, 8);
    base.deliver(&raw::write(base.dram.stag, 0, &[1; 8], true));
    assert_eq!(
        base.memory.to_vec(0, 8),
        [1; 8],
        "a plain WRITE does not wait"
    );
    base.deliver(&raw::read(2, base.dram.stag, 0, 4));
    assert_eq!(base.sent(), []);
    base.flush(3, 4096, 8);
    base.deliver(&raw::atomic(
        4,
        base.dram.stag,
        8,
        Atomic::Write { value: 5 },
    ));
    base.deliver(&raw::write(base.dram.stag, 16, &[2; 8], true));
    assert_eq!(base.memory.to_vec(8, 16), [0; 16]);
    base.durable(Ok(()));
    assert_eq!(
        base.sent(),
        [flushed(1), Sent::Response(SINK, 0x1000, vec![1; 4], true)]
    );
    assert_eq!(
        base.memory.to_vec(8, 16),
        [0; 16],
        "there is another FLUSH before it"
    );
    base.durable(Ok(()));
    assert_eq!(base.memory.to_vec(8, 8), 5_u64.to_le_bytes());
    assert_eq!(base.memory.to_vec(16, 8), [2; 8]);
    assert_eq!(base.sent(), [flushed(2), written(3)]);

    let mut base = target(Residency::Always);
    base.flush(1, 0, 8);
    let add = Atomic::FetchAdd { add: 1, mask: 0 };
    base.deliver(&raw::atomic(2, base.dram.stag, 8, add));
    assert_eq!(base.memory.to_vec(8, 8), [0; 8]);
    base.durable(Ok(()));
    assert_eq!(base.sent(), [flushed(1), written(2)]);
    assert_eq!(base.memory.to_vec(8, 8), 1_u64.to_le_bytes());
}

/// Defends I8: a FLUSH that failed is never answered, and what waited for it never happens.
#[test]
fn a_flush_that_fails() {
    let mut target = target(Residency::Always);
    target.flush(1, 0, 8);
    target.deliver(&raw::atomic(
        2,
        target.dram.stag,
        8,
        Atomic::Write { value: 5 },
    ));
    target.durable(Err(PageError::Media));
    let code = terminate_code(&mut target.connection, &mut target.pages);
    assert_eq!(code, OperationCatastrophicStream);
    assert_eq!(target.memory.to_vec(8, 8), [0; 8]);
    target.connection.handle_eof(Time(0));
    let reason = CloseReason::Storage(PageError::Media);
    assert_eq!(target.connection.poll_event(), Some(Event::Closed(reason)));
}

/// A region that is invalidated while it is flushed: what was asked for is answered.
#[test]
fn flush_and_deregistration() {
    let mut target = target(Residency::Always);
    target.flush(1, 0, 8);
    assert!(target.table.deregister(target.file.stag));
    target.durable(Ok(()));
    assert_eq!(target.sent(), [flushed(1)]);
    target.flush(2, 0, 8);
    let code = terminate_code(&mut target.connection, &mut target.pages);
    assert_eq!(code, ProtectionInvalidStag);
}

/// VERIFY computes over what it stands behind, page by page as they come.
#[test]
fn verify_follows_the_ready_prefix() {
    let mut target = target(Residency::Never);
    let data = pattern(7, 20_000);
    target.pages.fill(FILE, 100, &data);
    target.deliver(&raw::verify(1, target.file.remote(0), 20_000));
    target.deliver(&raw::verify(2, target.dram.remote(0), 4096));
    while !target.pages.waiting.is_empty() {
        assert_eq!(target.sent(), []);
        let (ticket, page) = target.pages.finish_one().unwrap();
        target
            .connection
            .handle_page(&mut target.pages, ticket, Ok(page));
    }
    let zeros = crc32c::crc32c(&[0; 4096]);
    assert_eq!(
        target.sent(),
        [verified(1, crc32c::crc32c(&data)), verified(2, zeros)]
    );
    assert_eq!(target.pages.pins.get(), 0);
}

/// A page that cannot be read ends a VERIFY that was taken: the Terminate encloses its header, and says how long it was (RFC 5040 §4.8).
#[test]
fn a_verify_that_fails() {
    let mut target = target(Residency::Never);
    let asked = raw::verify(1, target.file.remote(0), 4096);
    target.deliver(&asked);
    while let Some((ticket, _)) = target.pages.finish_one() {
        let failed = Err(PageError::Media);
        target
            .connection
            .handle_page(&mut target.pages, ticket, failed);
    }
    // Behind the FPDU's length: the headers of DDP and RDMAP.
    let enclosed = asked[..2 + 18].to_vec();
    let terminate = Sent::Terminate(OperationCatastrophicStream, enclosed);
    assert_eq!(target.sent(), [terminate]);
}

/// Defends I16: the bytes that VERIFYs read count as those that READs send, so that small requests for much hold nobody
/// else up for long; each call that has appended nothing gets at least one answer done.
#[test]
fn digests_count_as_output() {
    let mut target = target(Residency::Always);
    for msn in 1..=8 {
        let file = target.file.remote(0);
        target.deliver(&raw::verify(msn, file, VERIFY_BYTES_MAX));
    }
    let limit = 256 << 10;
    for _ in 0..8 {
        let (gets, mut out) = (target.pages.gets, Vec::new());
        let sent = target
            .connection
            .poll_transmit(Time(0), &mut target.pages, &mut out, limit);
        assert!(sent > 0);
        assert!(
            target.pages.gets - gets <= 2 * 257 + 128,
            "one answer at a time"
        );
        assert_eq!(raw::frames(&out).len(), 1);
    }
    assert_eq!(target.sent(), []);
}

/// Defends I10 and the lengths: each misuse with its code.
#[test]
fn refusals() {
    let mut base = target(Residency::Always);
    let none = RegionSpec::pages(DOMAIN, Rights::REMOTE_ATOMIC, FILE, 0, 4096);
    let none = base.table.register(none).unwrap();
    let here = |region: &MemoryRegion, offset| region.remote(offset);
    let (file, dram) = (base.file, base.dram);
    let (visible, persistent) = (Placement::Visible, Placement::Persistent);
    let flush = |remote, len, placement| raw::flush(1, remote, Selectivity::Range(len), placement);
    let write = Atomic::Write { value: 1 };
    let body = |len, last| raw::untagged(Opcode::FlushRequest, 1, 0, Stag(0), &vec![0; len], last);
    let verify_body =
        |len, last| raw::untagged(Opcode::VerifyRequest, 1, 0, Stag(0), &vec![0; len], last);
    let rows: [(&str, Vec<u8>, TerminateCode); 16] = [
        (
            "no right",
            flush(here(&none, 0), 1, visible),
            ProtectionRights,
        ),
        (
            "no right to persist",
            flush(here(&dram, 0), 1, persistent),
            ProtectionRights,
        ),
        (
            "past the end",
            flush(here(&file, 1 << 20), 1, visible),
            ProtectionBounds,
        ),
        (
            "wrap",
            flush(here(&file, u64::MAX), 2, visible),
            ProtectionWrap,
        ),
        ("flush cut", body(23, true), OperationUnspecified),
        (
            "flush without disposition",
            body(24, true),
            OperationUnspecified,
        ),
        ("flush too long", body(25, true), UntaggedTooLong),
        ("flush in parts", body(24, false), UntaggedTooLong),
        (
            "flush out of order",
            raw::flush(2, here(&file, 0), Selectivity::Region, visible),
            UntaggedMsnRange,
        ),
        (
            "verify without right",
            raw::verify(1, here(&none, 0), 1),
            ProtectionRights,
        ),
        (
            "verify past the end",
            raw::verify(1, here(&dram, 1), 4096),
            ProtectionBounds,
        ),
        (
            "verify of much",
            raw::verify(1, here(&file, 0), VERIFY_BYTES_MAX + 1),
            OperationUnspecified,
        ),
        ("verify cut", verify_body(19, true), OperationUnspecified),
        ("verify too long", verify_body(21, true), UntaggedTooLong),
        (
            "atomic write without right",
            raw::atomic(1, none.stag, 0, write),
            ProtectionRights,
        ),
        (
            "atomic write unaligned",
            raw::atomic(1, dram.stag, 4, write),
            OperationCatastrophicStream,
        ),
    ];
    for (what, bytes, expected) in rows {
        base.connection = raw::responder(speaks(true), &base.table, &mut base.pages);
        base.deliver(&raw::write(Stag(1), 0, &[], true));
        base.deliver(&bytes);
        let code = terminate_code(&mut base.connection, &mut base.pages);
        assert_eq!(code, expected, "{what}");
    }
    let memory = RegionSpec::memory(DOMAIN, Rights::FLUSH_PERSISTENT, &base.memory);
    assert_eq!(
        base.table.register(memory),
        Err(RegisterError::NotPersistent)
    );
}
