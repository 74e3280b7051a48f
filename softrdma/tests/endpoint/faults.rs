//! What a peer can do wrong, what the endpoint answers, and that nothing is lost or held afterwards.

use std::sync::Arc;

use crate::common::raw::{self, Sent, terminate_code, transmit};
use crate::common::{Residency, TestPages, completions, connect, storage_error, table};
use softrdma::wire::rdmap::Opcode;
use softrdma::wire::terminate::TerminateCode::{self, *};
use softrdma::{
    Atomic, BackingId, Buffer, CloseReason, Completion, Config, Connection, Event, LocalSlice,
    MemoryRegion, Operation, PageError, PostError, ProtectionDomain, RecvBuffer, RegionSpec,
    RegionTable, RemoteAddr, Rights, SocketState, Source, Stag, Status, TaggedOffset, Time,
    WorkRequest, WrId,
};

const FILE: BackingId = BackingId(1);
const IRD: u16 = 4;

struct Target {
    pages: TestPages,
    connection: Connection<TestPages>,
    region: MemoryRegion,
    _table: Arc<RegionTable>,
}

fn target(residency: Residency) -> Target {
    let table = table(9);
    let mut pages = TestPages::new(residency, 1);
    let region = table
        .register(RegionSpec::pages(
            ProtectionDomain(0),
            Rights::all(),
            FILE,
            0,
            1 << 20,
        ))
        .unwrap();
    let config = Config {
        ird_max: IRD,
        ..Config::default()
    };
    let connection = raw::responder(config, &table, &mut pages);
    Target {
        pages,
        connection,
        region,
        _table: table,
    }
}

impl Target {
    fn deliver(&mut self, bytes: &[u8]) {
        self.connection
            .handle_bytes(Time(0), &mut self.pages, bytes);
    }

    fn code(&mut self) -> TerminateCode {
        terminate_code(&mut self.connection, &mut self.pages)
    }
}

/// Every way to misuse the protocol that has a code of its own, with that code (RELIABILITY §8: length, order).
#[test]
fn each_error_has_its_code() {
    let stag = target(Residency::Always).region.stag;
    let body = raw::read_body(stag, 0, 10);
    let send = |msn, offset, len: usize| raw::send(msn, offset, &vec![1; len], true);
    let read_request = |msn, offset, body: &[u8], last| {
        raw::untagged(Opcode::ReadRequest, msn, offset, Stag(0), body, last)
    };
    let atomic = raw::atomic_body(stag, 0, Atomic::FetchAdd { add: 1, mask: 0 });
    let atomic_request = |msn, offset, body: &[u8], last| {
        raw::untagged(Opcode::AtomicRequest, msn, offset, Stag(0), body, last)
    };
    let immediate = |msn, offset, body: &[u8], last| {
        raw::untagged(Opcode::ImmediateData, msn, offset, Stag(0), body, last)
    };
    let mut bad_crc = send(1, 0, 10);
    *bad_crc.last_mut().unwrap() ^= 1;
    let rows: Vec<(&str, Vec<u8>, TerminateCode)> = vec![
        ("CRC", bad_crc, MpaCrc),
        ("empty ULPDU", raw::fpdu(&[]), MpaFraming),
        ("one byte", raw::fpdu(&[0xc1]), MpaFraming),
        (
            "tagged header cut",
            raw::fpdu(&[&[0xc1, 0x40][..], &[0; 11]].concat()),
            MpaFraming,
        ),
        (
            "untagged header cut",
            raw::fpdu(&[&[0x41, 0x43][..], &[0; 15]].concat()),
            MpaFraming,
        ),
        (
            "tagged DDP version",
            raw::fpdu(&[&[0xc0, 0x40][..], &[0; 12]].concat()),
            TaggedVersion,
        ),
        (
            "untagged DDP version",
            raw::fpdu(&[&[0x43, 0x43][..], &[0; 16]].concat()),
            UntaggedVersion,
        ),
        (
            "RDMAP version",
            raw::fpdu(&[&[0x41, 0x03][..], &[0; 16]].concat()),
            OperationVersion,
        ),
        (
            "unassigned opcode",
            raw::fpdu(&[&[0x41, 0x4c][..], &[0; 68]].concat()),
            OperationUnexpectedOpcode,
        ),
        (
            "unassigned opcode, tagged",
            raw::fpdu(&[&[0xc1, 0x4e][..], &[0; 24]].concat()),
            OperationUnexpectedOpcode,
        ),
        (
            "experimental opcode",
            raw::fpdu(&[&[0x41, 0x4f][..], &[0; 16]].concat()),
            OperationUnexpectedOpcode,
        ),
        (
            "queue 3",
            raw::fpdu(&[&[0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 3][..], &[0; 8]].concat()),
            UntaggedQueue,
        ),
        (
            "send without buffer",
            [send(1, 0, 1), send(2, 0, 1), send(3, 0, 1)].concat(),
            UntaggedNoBuffer,
        ),
        ("send out of order", send(2, 0, 1), UntaggedMsnRange),
        (
            "send repeated",
            [send(1, 0, 1), send(1, 0, 1)].concat(),
            UntaggedMsnRange,
        ),
        ("send starts late", send(1, 1, 1), UntaggedOffset),
        (
            "send with a hole",
            [raw::send(1, 0, &[1; 4], false), send(1, 5, 1)].concat(),
            UntaggedOffset,
        ),
        ("send too long", send(1, 0, 101), UntaggedTooLong),
        (
            "send too long in parts",
            [raw::send(1, 0, &[1; 60], false), send(1, 60, 41)].concat(),
            UntaggedTooLong,
        ),
        (
            "read out of order",
            raw::read(2, stag, 0, 1),
            UntaggedMsnRange,
        ),
        (
            "read at an offset",
            read_request(1, 1, &body, true),
            UntaggedOffset,
        ),
        (
            "read cut short",
            read_request(1, 0, &body[..27], true),
            OperationUnspecified,
        ),
        (
            "read without body",
            read_request(1, 0, &[], true),
            OperationUnspecified,
        ),
        (
            "read too long",
            read_request(1, 0, &[&body[..], &[0]].concat(), true),
            UntaggedTooLong,
        ),
        (
            "read in parts",
            read_request(1, 0, &body, false),
            UntaggedTooLong,
        ),
        (
            "atomic in the queue of sends",
            raw::fpdu(&[&[0x41, 0x4a][..], &[0; 68]].concat()),
            UntaggedQueue,
        ),
        (
            "atomic out of order",
            atomic_request(2, 0, &atomic, true),
            UntaggedMsnRange,
        ),
        (
            "atomic at an offset",
            atomic_request(1, 8, &atomic, true),
            UntaggedOffset,
        ),
        (
            "atomic cut short",
            atomic_request(1, 0, &atomic[..51], true),
            OperationUnspecified,
        ),
        (
            "atomic too long",
            atomic_request(1, 0, &[&atomic[..], &[0]].concat(), true),
            UntaggedTooLong,
        ),
        (
            "atomic in parts",
            atomic_request(1, 0, &atomic, false),
            UntaggedTooLong,
        ),
        (
            "reserved atomic operation",
            atomic_request(1, 0, &[&[0, 0, 0, 1][..], &atomic[4..]].concat(), true),
            OperationUnexpectedOpcode,
        ),
        (
            "atomic response nobody asked for",
            raw::untagged(Opcode::AtomicResponse, 1, 0, Stag(0), &[0; 12], true),
            UntaggedNoBuffer,
        ),
        (
            "atomic response out of order",
            raw::untagged(Opcode::AtomicResponse, 2, 0, Stag(0), &[0; 12], true),
            UntaggedMsnRange,
        ),
        (
            "immediate data out of order",
            immediate(2, 0, &[0; 8], true),
            UntaggedMsnRange,
        ),
        (
            "immediate data at an offset",
            immediate(1, 8, &[0; 8], true),
            UntaggedOffset,
        ),
        (
            "immediate data inside a message",
            [
                raw::send(1, 0, &[1; 4], false),
                immediate(1, 0, &[0; 8], true),
            ]
            .concat(),
            UntaggedOffset,
        ),
        (
            "immediate data cut short",
            immediate(1, 0, &[0; 7], true),
            OperationUnspecified,
        ),
        (
            "immediate data too long",
            immediate(1, 0, &[0; 9], true),
            UntaggedTooLong,
        ),
        (
            "immediate data in parts",
            immediate(1, 0, &[0; 8], false),
            UntaggedTooLong,
        ),
        (
            "immediate data without buffer",
            [send(1, 0, 1), send(2, 0, 1), immediate(3, 0, &[0; 8], true)].concat(),
            UntaggedNoBuffer,
        ),
        (
            "response nobody asked for",
            raw::response(Stag(1), 0, &[1], true),
            TaggedInvalidStag,
        ),
        (
            "empty response nobody asked for",
            raw::response(Stag(1), 0, &[], true),
            TaggedInvalidStag,
        ),
        (
            "terminate cut short",
            raw::untagged(Opcode::Terminate, 1, 0, Stag(0), &[1, 2, 3], true),
            OperationUnspecified,
        ),
    ];
    for (what, bytes, expected) in rows {
        let mut target = target(Residency::Always);
        for id in 0..2 {
            target
                .connection
                .post_recv(WrId(id), RecvBuffer::Vec(100))
                .unwrap();
        }
        // Before one good FPDU of the peer a responder may not even send a Terminate.
        target.deliver(&raw::write(Stag(1), 0, &[], true));
        target.deliver(&bytes);
        assert_eq!(target.code(), expected, "{what}");
        // Nothing follows a Terminate, whatever arrives; then the socket winds down.
        target.deliver(&send(1, 0, 1));
        assert_eq!(
            transmit(&mut target.connection, &mut target.pages),
            [],
            "{what}"
        );
        assert_eq!(target.connection.socket_state(), SocketState::ShutdownWrite);
        assert_eq!(
            target.connection.post_recv(WrId(9), RecvBuffer::Vec(1)),
            Err(PostError::NotOpen)
        );
        let ended = completions(&mut target.connection);
        assert_eq!(ended.len(), 2, "every buffer completes once: {what}");
        target.connection.handle_eof(Time(0));
        assert_eq!(
            target.connection.poll_event(),
            Some(Event::Closed(CloseReason::TerminateSent(expected)))
        );
        assert_eq!(target.connection.poll_event(), None);
        assert_eq!(target.connection.socket_state(), SocketState::Close);
    }
}

/// Where immediate data are ignored, any number of them may arrive at once: they take no buffer and leave the numbers of the
/// messages right, so a message behind them finds the buffer that was posted for it. What is wrong with one is found all the same.
#[test]
fn ignored_immediates_take_no_buffer() {
    let config = Config {
        immediates_ignored: true,
        ..Config::default()
    };
    let started = || {
        let mut pages = TestPages::new(Residency::Always, 1);
        let mut connection = raw::responder(config.clone(), &table(9), &mut pages);
        connection.post_recv(WrId(7), RecvBuffer::Vec(100)).unwrap();
        connection.handle_bytes(Time(0), &mut pages, &raw::write(Stag(1), 0, &[], true));
        (connection, pages)
    };
    let (mut connection, mut pages) = started();
    let mut burst: Vec<u8> = (1..=100)
        .flat_map(|msn| raw::immediate(msn, [1; 8]))
        .collect();
    burst.extend(raw::send(101, 0, b"behind", true));
    connection.handle_bytes(Time(0), &mut pages, &burst);
    assert_eq!(transmit(&mut connection, &mut pages), []);
    let done = completions(&mut connection);
    assert_eq!(done.len(), 1, "nobody is told of them");
    assert_eq!(
        (done[0].wr_id, done[0].message.as_deref()),
        (WrId(7), Some(&b"behind"[..]))
    );

    let immediate = |msn, offset, len, last| {
        let body = vec![1; len];
        raw::untagged(Opcode::ImmediateData, msn, offset, Stag(0), &body, last)
    };
    let inside = [raw::send(1, 0, b"half", false), immediate(1, 0, 8, true)].concat();
    let rows = [
        (immediate(2, 0, 8, true), UntaggedMsnRange),
        (immediate(1, 8, 8, true), UntaggedOffset),
        (inside, UntaggedOffset),
        (immediate(1, 0, 7, true), OperationUnspecified),
        (immediate(1, 0, 9, true), UntaggedTooLong),
        (immediate(1, 0, 8, false), UntaggedTooLong),
    ];
    for (bytes, code) in rows {
        let (mut connection, mut pages) = started();
        connection.handle_bytes(Time(0), &mut pages, &bytes);
        assert_eq!(terminate_code(&mut connection, &mut pages), code);
    }
}

/// IRD: as many READs as agreed are held, one more ends the stream (RELIABILITY I16).
#[test]
fn more_reads_than_agreed() {
    let mut target = target(Residency::Never);
    for msn in 1..=u32::from(IRD) {
        target.deliver(&raw::read(msn, target.region.stag, 0, 100_000));
    }
    assert_eq!(transmit(&mut target.connection, &mut target.pages), []);
    target.deliver(&raw::read(u32::from(IRD) + 1, target.region.stag, 0, 1));
    assert_eq!(target.code(), OperationCatastrophicStream);
    assert_eq!(target.pages.pins.get(), 0);
    // Late pages find nobody.
    while let Some((ticket, page)) = target.pages.finish_one() {
        target
            .connection
            .handle_page(&mut target.pages, ticket, Ok(page));
    }
    assert_eq!(target.pages.pins.get(), 0);
}

/// Storage that fails: the READ, WRITE or durability that needed it ends the stream, without an answer for it.
#[test]
fn storage_failures() {
    for (what, bytes) in [
        (
            "read",
            raw::read(1, target(Residency::Never).region.stag, 0, 5000),
        ),
        (
            "write",
            raw::write(target(Residency::Never).region.stag, 0, &[1; 5000], true),
        ),
    ] {
        let mut target = target(Residency::Never);
        target.deliver(&bytes);
        let (ticket, page) = target.pages.finish_one().unwrap();
        drop(page);
        target
            .connection
            .handle_page(&mut target.pages, ticket, Err(PageError::Media));
        while let Some((ticket, page)) = target.pages.finish_one() {
            target
                .connection
                .handle_page(&mut target.pages, ticket, Ok(page));
        }
        let sent = transmit(&mut target.connection, &mut target.pages);
        let last = sent.last().unwrap_or_else(|| panic!("{what}"));
        assert!(
            matches!(last, Sent::Terminate(OperationCatastrophicStream, _)),
            "{what}: {sent:?}"
        );
        assert!(
            !sent
                .iter()
                .any(|sent| matches!(sent, Sent::Response(_, _, _, true))),
            "{what}: no whole answer"
        );
        assert_eq!(target.pages.pins.get(), 0, "{what}");
        target.connection.handle_eof(Time(0));
        let reason = CloseReason::Storage(PageError::Media);
        assert_eq!(
            target.connection.poll_event(),
            Some(Event::Closed(reason)),
            "{what}"
        );
    }
    let mut target = target(Residency::Always);
    let sync = target.region.sync_stag.unwrap();
    target.deliver(&raw::write(sync, 0, &[1; 5000], true));
    target.deliver(&raw::read(1, sync, 0, 0));
    let (_, ticket) = target.pages.syncs.pop().unwrap();
    target
        .connection
        .handle_durable(&mut target.pages, ticket, Err(PageError::NoSpace));
    assert_eq!(target.code(), OperationCatastrophicStream);
    target.connection.handle_eof(Time(0));
    assert_eq!(
        target.connection.poll_event(),
        Some(Event::Closed(CloseReason::Storage(PageError::NoSpace)))
    );
}

/// The peer's Terminate ends all work: the READ it stopped at gets a word of its own, the rest is flushed.
#[test]
fn terminate_received() {
    // Seen from `siw`, and from a peer that follows the RFC.
    for body in [[0x10, 0, 7, 0], [0x01, 0, 0xe0, 0]] {
        let (ours, theirs) = (table(1), table(2));
        let mut pair = connect(
            Config::default(),
            &ours,
            Config::default(),
            &theirs,
            TestPages::new(Residency::Always, 1),
        );
        let buffer = Buffer::zeroed(100);
        let remote = RemoteAddr {
            stag: Stag(1),
            to: TaggedOffset(0),
        };
        let a = &mut pair.a.connection;
        for id in 0..3 {
            let op = Operation::Read {
                sink: LocalSlice::whole(&buffer),
                remote,
            };
            a.post_send(WorkRequest::new(WrId(id), op)).unwrap();
        }
        a.post_recv(WrId(3), RecvBuffer::Vec(1)).unwrap();
        let mut out = Vec::new();
        a.poll_transmit(Time(0), &mut softrdma::NoPages, &mut out, usize::MAX);
        let terminate = raw::untagged(Opcode::Terminate, 1, 0, Stag(0), &body, true);
        a.handle_bytes(Time(0), &mut softrdma::NoPages, &terminate);
        let done = completions(a);
        let status: Vec<(u64, Status)> = done
            .iter()
            .map(|c: &Completion| (c.wr_id.0, c.status))
            .collect();
        let flushed = Status::Flushed;
        assert_eq!(
            status,
            [
                (0, Status::RemoteAccess),
                (1, flushed),
                (2, flushed),
                (3, flushed)
            ]
        );
        let Some(Event::Closed(CloseReason::TerminateReceived(got))) = a.poll_event() else {
            panic!("an end")
        };
        assert_eq!(got.code(), Some(ProtectionInvalidStag));
        assert_eq!(a.socket_state(), SocketState::Close);
    }
}

/// Responses that do not answer what was asked.
#[test]
fn wrong_responses() {
    let sink_of = |sent: &[Sent]| match sent {
        [Sent::Read(1, request)] => request.sink,
        _ => panic!("one READ, not {sent:?}"),
    };
    type Make = fn(RemoteAddr) -> Vec<u8>;
    let rows: [(&str, Make, TerminateCode); 7] = [
        (
            "other STag",
            |sink| raw::response(Stag(sink.stag.0 ^ 1), sink.to.0, &[1; 10], true),
            TaggedInvalidStag,
        ),
        (
            "other place",
            |sink| raw::response(sink.stag, sink.to.0 + 1, &[1; 9], true),
            TaggedBounds,
        ),
        (
            "too long",
            |sink| raw::response(sink.stag, sink.to.0, &[1; 11], true),
            TaggedBounds,
        ),
        (
            "too long in parts",
            |sink| {
                let first = raw::response(sink.stag, sink.to.0, &[0; 5], false);
                [
                    first,
                    raw::response(sink.stag, sink.to.0 + 5, &[1; 6], true),
                ]
                .concat()
            },
            TaggedBounds,
        ),
        (
            "too short",
            |sink| raw::response(sink.stag, sink.to.0, &[1; 9], true),
            OperationCatastrophicStream,
        ),
        (
            "empty",
            |sink| raw::response(sink.stag, sink.to.0, &[], true),
            OperationCatastrophicStream,
        ),
        (
            "answered twice",
            |sink| {
                [
                    raw::response(sink.stag, sink.to.0, &[1; 10], true),
                    raw::response(sink.stag, 0, &[1; 10], true),
                ]
                .concat()
            },
            TaggedInvalidStag,
        ),
    ];
    for (what, make, expected) in rows {
        let mut target = target(Residency::Always);
        // A responder sends only after the first FPDU of the peer.
        target.deliver(&raw::write(Stag(1), 0, &[], true));
        let guarded = Buffer::zeroed(30);
        let op = Operation::Read {
            sink: LocalSlice::new(&guarded, 10, 10),
            remote: target.region.remote(0),
        };
        target
            .connection
            .post_send(WorkRequest::new(WrId(5), op))
            .unwrap();
        let sink = sink_of(&transmit(&mut target.connection, &mut target.pages));
        target.deliver(&make(sink));
        assert_eq!(target.code(), expected, "{what}");
        assert_eq!(guarded.to_vec(0, 10), [0; 10], "{what}");
        assert_eq!(guarded.to_vec(20, 10), [0; 10], "{what}");
        let done = completions(&mut target.connection);
        assert_eq!(done.len(), 1, "{what}");
        assert_eq!(done[0].status.is_success(), what == "answered twice");
    }
}

/// `siw` may answer a READ of zero bytes with a copy of its last message: nothing of it is placed, and the READ succeeds.
#[test]
fn a_read_of_nothing_places_nothing() {
    let mut target = target(Residency::Always);
    target.deliver(&raw::write(Stag(1), 0, &[], true));
    let guarded = Buffer::zeroed(30);
    let sink = LocalSlice::new(&guarded, 10, 0);
    let op = Operation::Read {
        sink,
        remote: target.region.remote(0),
    };
    target
        .connection
        .post_send(WorkRequest::new(WrId(5), op))
        .unwrap();
    let sent = transmit(&mut target.connection, &mut target.pages);
    let [Sent::Read(1, request)] = &sent[..] else {
        panic!("{sent:?}")
    };
    target.deliver(&raw::response(
        request.sink.stag,
        request.sink.to.0,
        &[9; 20],
        true,
    ));
    let done = completions(&mut target.connection);
    assert_eq!((done[0].status, done[0].bytes), (Status::Success, 0));
    assert_eq!(guarded.to_vec(0, 30), [0; 30]);
}

/// FIN where it must not be is a lost connection; everything outstanding is flushed once.
#[test]
fn fin_in_the_wrong_place() {
    let whole = raw::send(1, 0, &[1; 50], true);
    let stag = target(Residency::Always).region.stag;
    let rows: [(&str, Vec<u8>, bool); 5] = [
        ("inside an FPDU", whole[..20].to_vec(), false),
        ("inside a SEND", raw::send(1, 0, &[1; 50], false), false),
        (
            "inside a WRITE",
            raw::write(stag, 0, &[1; 50], false),
            false,
        ),
        ("after a SEND", whole, true),
        ("after a READ", raw::read(1, stag, 0, 10), true),
    ];
    for (what, bytes, graceful) in rows {
        let mut target = target(Residency::Always);
        target
            .connection
            .post_recv(WrId(1), RecvBuffer::Vec(100))
            .unwrap();
        target
            .connection
            .post_recv(WrId(2), RecvBuffer::Vec(100))
            .unwrap();
        target.deliver(&raw::write(Stag(1), 0, &[], true));
        target.deliver(&bytes);
        target.connection.handle_eof(Time(0));
        let sent = transmit(&mut target.connection, &mut target.pages);
        assert_eq!(sent.len(), usize::from(what == "after a READ"), "{what}");
        let expected = if graceful {
            CloseReason::Graceful
        } else {
            CloseReason::Lost
        };
        let events: Vec<Event> = std::iter::from_fn(|| target.connection.poll_event()).collect();
        assert_eq!(events.last(), Some(&Event::Closed(expected)), "{what}");
        assert_eq!(completions(&mut target.connection).len(), 2, "{what}");
    }
}

/// Our own READ cannot be answered after the peer's FIN.
#[test]
fn fin_with_a_read_outstanding() {
    let mut target = target(Residency::Always);
    target.deliver(&raw::write(Stag(1), 0, &[], true));
    let buffer = Buffer::zeroed(8);
    let op = Operation::Read {
        sink: LocalSlice::whole(&buffer),
        remote: target.region.remote(0),
    };
    target
        .connection
        .post_send(WorkRequest::new(WrId(5), op))
        .unwrap();
    transmit(&mut target.connection, &mut target.pages);
    target.connection.handle_eof(Time(0));
    assert_eq!(
        completions(&mut target.connection)[0].status,
        Status::Flushed
    );
    assert_eq!(
        target.connection.poll_event(),
        Some(Event::Closed(CloseReason::Lost))
    );
}

/// Every queue has its bound, and refusal leaves it as it was (RELIABILITY I16).
#[test]
fn posting_is_bounded() {
    let (ours, theirs) = (table(1), table(2));
    let config = Config {
        send_queue_max: 3,
        recv_queue_max: 2,
        ..Config::default()
    };
    let mut pair = connect(
        config,
        &ours,
        Config::default(),
        &theirs,
        TestPages::new(Residency::Always, 1),
    );
    let remote = RemoteAddr {
        stag: Stag(1),
        to: TaggedOffset(0),
    };
    let write = |id| {
        WorkRequest::new(
            WrId(id),
            Operation::Write {
                source: Source::Bytes(vec![]),
                remote,
            },
        )
    };
    let a = &mut pair.a.connection;
    for id in 0..3 {
        a.post_send(write(id)).unwrap();
    }
    assert_eq!(a.post_send(write(3)), Err(PostError::QueueFull));
    a.post_recv(WrId(0), RecvBuffer::Vec(1)).unwrap();
    a.post_recv(WrId(1), RecvBuffer::Vec(1)).unwrap();
    assert_eq!(
        a.post_recv(WrId(2), RecvBuffer::Vec(1)),
        Err(PostError::QueueFull)
    );
    pair.run();
    let a = &mut pair.a.connection;
    // Unread completions hold their places.
    assert_eq!(a.post_send(write(4)), Err(PostError::QueueFull));
    assert_eq!(completions(a).len(), 3);
    a.post_send(write(5)).unwrap();
    let buffer = Buffer::zeroed(10);
    let outside = LocalSlice::new(&buffer, usize::MAX, 2);
    let op = Operation::Read {
        sink: outside.clone(),
        remote,
    };
    assert_eq!(
        a.post_send(WorkRequest::new(WrId(6), op)),
        Err(PostError::OutOfBounds)
    );
    let b = &mut pair.b.connection;
    assert_eq!(
        b.post_recv(WrId(6), RecvBuffer::Local(outside)),
        Err(PostError::OutOfBounds)
    );
    assert_eq!(
        b.post_recv(WrId(6), RecvBuffer::Vec(1 << 32)),
        Err(PostError::TooLong)
    );
}

/// The end of a connection has a deadline while the driver cannot take its last words, as the peer that broke a rule does not
/// read (I16): the peer's FIN does not make it longer, and words that are taken get their own time.
#[test]
fn last_words_that_nobody_takes() {
    let config = Config::default();
    let due = Time(5) + config.close_timeout;
    let closed = |code| Some(Event::Closed(CloseReason::TerminateSent(code)));
    for is_eof in [false, true] {
        let mut target = target(Residency::Always);
        target.deliver(&raw::write(Stag(1), 0, b"", true));
        let mut bad = raw::send(1, 0, b"x", true);
        *bad.last_mut().unwrap() ^= 1;
        target
            .connection
            .handle_bytes(Time(5), &mut target.pages, &bad);
        assert_eq!(target.connection.poll_timeout(), Some(due));
        if is_eof {
            target.connection.handle_eof(Time(6));
        }
        target.connection.handle_timeout(Time(due.0 - 1));
        assert_eq!(target.connection.poll_event(), None);
        assert_eq!(target.connection.poll_timeout(), Some(due));
        target.connection.handle_timeout(due);
        assert_eq!(target.connection.poll_event(), closed(MpaCrc));
        assert_eq!(target.connection.socket_state(), SocketState::Close);
        assert_eq!(target.connection.poll_timeout(), None);
        assert_eq!(transmit(&mut target.connection, &mut target.pages), []);
    }

    let mut target = target(Residency::Always);
    target.deliver(&raw::send(1, 0, b"no buffer", true));
    let late = Time(due.0 - 1);
    let mut out = Vec::new();
    target
        .connection
        .poll_transmit(late, &mut target.pages, &mut out, usize::MAX);
    assert!(!out.is_empty());
    let due = late + config.close_timeout;
    assert_eq!(target.connection.poll_timeout(), Some(due));
    target.connection.handle_timeout(due);
    assert_eq!(target.connection.poll_event(), closed(UntaggedNoBuffer));
}

/// A store that fails long after the connection was told the time last leaves the peer its words: their time begins when the
/// connection hears of the time again.
#[test]
fn a_late_failure_is_still_told() {
    let mut target = target(Residency::Never);
    target.deliver(&raw::write(target.region.stag, 0, &[1; 8], true));
    let [waiting] = target.pages.waiting[..] else {
        panic!("one page")
    };
    let error = storage_error();
    target
        .connection
        .handle_page(&mut target.pages, waiting.ticket, Err(error));
    let later = Time(0) + 100 * Config::default().close_timeout;
    assert!(
        target
            .connection
            .poll_timeout()
            .is_some_and(|at| at <= later)
    );
    target.connection.handle_timeout(later);
    assert_eq!(target.connection.poll_event(), None);
    assert_eq!(target.code(), OperationCatastrophicStream);
}
