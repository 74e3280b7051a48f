//! Set-up and close: what two sides agree on, refusals, markers, time-outs, and orderly ends.

use crate::common::raw::{self, Sent};
use crate::common::setup::{initiator, pages, reply, send};
use crate::common::{self, TestPages, TestPair, completions, connect, table, unconnected};
use softrdma::driver::loopback::Pair;
use softrdma::wire::fpdu::{self, NextFpdu};
use softrdma::wire::rdmap::Opcode;
use softrdma::wire::start::{Enhanced, NextStart, RtrKinds, StartFrame, StartKind};
use softrdma::wire::terminate::TerminateCode;
use softrdma::{
    BackingId, Buffer, CloseReason, Config, Connection, Established, Event, LocalSlice, NoPages,
    Operation, PageStore, PostError, ProtectionDomain, RecvBuffer, RegionSpec, RemoteAddr,
    Revision, Rights, SetupError, SocketState, Stag, Status, TaggedOffset, Time, WorkRequest, WrId,
};

fn agreed(client: &Config, target: &Config) -> (Established, Established) {
    let mut pair = unconnected(
        client.clone(),
        &table(1),
        target.clone(),
        &table(2),
        pages(),
    );
    pair.run();
    assert!(matches!(
        pair.b.connection.poll_event(),
        Some(Event::ConnectRequest(_))
    ));
    pair.b.connection.accept(b"welcome").unwrap();
    pair.run();
    let Some(Event::Established(a)) = pair.a.connection.poll_event() else {
        panic!("established")
    };
    let Some(Event::Established(b)) = pair.b.connection.poll_event() else {
        panic!("established")
    };
    (a, b)
}

/// CRC is on unless neither asks; IRD and ORD follow RFC 6581; the hello alone allows large FPDUs.
#[test]
fn agreements() {
    let base = Config::default();
    for (ours, theirs) in [(false, false), (false, true), (true, false), (true, true)] {
        let (client, target) = (
            Config {
                crc: ours,
                ..base.clone()
            },
            Config {
                crc: theirs,
                ..base.clone()
            },
        );
        let (a, b) = agreed(&client, &target);
        assert_eq!((a.crc, b.crc), (ours || theirs, ours || theirs));
        assert_eq!(a.private_data, b"welcome");
    }
    for revision in [Revision::One, Revision::Two] {
        for hello in [false, true] {
            for peer_to_peer in [false, true] {
                let client = Config {
                    revision,
                    hello,
                    peer_to_peer,
                    ulpdu_max: 5000,
                    ord_max: 9,
                    ..base.clone()
                };
                let target = Config {
                    ulpdu_foreign: 1000,
                    ird_max: 7,
                    ..base.clone()
                };
                let (a, b) = agreed(&client, &target);
                assert_eq!(a.ulpdu_max, if hello { 5000 } else { 1442 });
                assert_eq!(b.ulpdu_max, if hello { 5000 } else { 1000 });
                assert_eq!(a.ord, if revision == Revision::Two { 7 } else { 9 });
                assert_eq!((a.ird, b.ird, b.ord), (64, 7, 64));
            }
        }
    }
    let (a, b) = agreed(
        &Config {
            ird_max: 3,
            ord_max: 0,
            ..base.clone()
        },
        &Config { ord_max: 5, ..base },
    );
    assert_eq!((a.ird, a.ord, b.ord), (3, 0, 3));
}

/// With ORD 0 a READ is refused, not sent.
#[test]
fn no_reads_agreed() {
    let none = Config {
        ird_max: 0,
        ..Config::default()
    };
    let (ours, theirs) = (table(1), table(2));
    let mut pair = unconnected(Config::default(), &ours, none, &theirs, pages());
    let buffer = Buffer::zeroed(8);
    let remote = RemoteAddr {
        stag: Stag(1),
        to: TaggedOffset(0),
    };
    let read = |id| {
        WorkRequest::new(
            WrId(id),
            Operation::Read {
                sink: LocalSlice::whole(&buffer),
                remote,
            },
        )
    };
    pair.a.connection.post_send(read(1)).unwrap();
    pair.run();
    pair.b.connection.accept(b"").unwrap();
    pair.run();
    let done = completions(&mut pair.a.connection);
    assert_eq!(done[0].status, Status::LocalQpOperation);
    assert_eq!(
        pair.a.connection.post_send(read(2)),
        Err(PostError::NoReads)
    );
    // The connection is as good as before.
    pair.b
        .connection
        .post_recv(WrId(3), RecvBuffer::Vec(5))
        .unwrap();
    pair.a.connection.post_send(send(3, b"fine")).unwrap();
    pair.run();
    assert!(completions(&mut pair.b.connection)[0].status.is_success());
}

/// The responder's program refuses: the initiator gets its words, and both sockets wind down.
#[test]
fn rejected() {
    let mut pair = unconnected(
        Config::default(),
        &table(1),
        Config::default(),
        &table(2),
        pages(),
    );
    pair.a.connection.post_send(send(1, b"too early")).unwrap();
    pair.run();
    let Some(Event::ConnectRequest(request)) = pair.b.connection.poll_event() else {
        panic!("a request")
    };
    assert_eq!(
        (request.revision, request.peer_ird, request.hello),
        (2, Some(64), true)
    );
    pair.b.connection.reject(b"not today").unwrap();
    pair.run();
    assert_eq!(
        pair.a.connection.poll_event(),
        Some(Event::Closed(CloseReason::Rejected(b"not today".to_vec())))
    );
    assert_eq!(
        completions(&mut pair.a.connection)[0].status,
        Status::Flushed
    );
    assert_eq!(
        pair.b.connection.poll_event(),
        Some(Event::Closed(CloseReason::RejectedByUs))
    );
    assert!(pair.b.connection.accept(b"").is_err());
}

/// Who refuses leaves it to the peer to close first, and waits no longer for that than for any other end: a kernel that finds
/// FIN right behind the Reply does not tell its program why it was refused.
#[test]
fn no_fin_follows_a_refusal() {
    let refused = || {
        let mut pages = pages();
        let mut connection =
            Connection::<TestPages>::responder(Config::default(), &table(1), Time(0));
        connection.handle_bytes(Time(0), &mut pages, &raw::request(true));
        connection.reject(b"not today").unwrap();
        let mut reply = Vec::new();
        connection.poll_transmit(Time(0), &mut pages, &mut reply, usize::MAX);
        assert!(reply.ends_with(b"not today"));
        assert_eq!(connection.socket_state(), SocketState::Open);
        connection
    };
    let mut connection = refused();
    connection.handle_eof(Time(1));
    assert_eq!(connection.socket_state(), SocketState::Close);

    let mut connection = refused();
    let due = connection.poll_timeout().unwrap();
    assert!(due <= Time(0) + Config::default().close_timeout);
    connection.handle_timeout(due);
    assert_eq!(connection.socket_state(), SocketState::Close);
}

/// First bytes that are not a Request end the connection at once, without an answer.
#[test]
fn bad_requests() {
    let good = raw::request(true);
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    let rows = [
        (
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
            SetupError::BadKey,
        ),
        (with(17, 0), SetupError::Revision(0)),
        (with(17, 3), SetupError::Revision(3)),
        (with(18, 2), SetupError::BadLength),
        (with(19, 3), SetupError::BadLength),
        ([&good[..], b"x"].concat(), SetupError::TrailingBytes),
        (
            [&good[..], &raw::write(Stag(1), 0, &[], true)].concat(),
            SetupError::TrailingBytes,
        ),
    ];
    for (bytes, expected) in rows {
        let mut pages = pages();
        let mut connection =
            Connection::<TestPages>::responder(Config::default(), &table(1), Time(0));
        connection.handle_bytes(Time(0), &mut pages, &bytes);
        if expected == SetupError::TrailingBytes {
            assert!(matches!(
                connection.poll_event(),
                Some(Event::ConnectRequest(_))
            ));
        }
        assert_eq!(
            connection.poll_event(),
            Some(Event::Closed(CloseReason::Setup(expected)))
        );
        assert_eq!(raw::transmit(&mut connection, &mut pages), []);
        assert_eq!(connection.socket_state(), SocketState::Close);
    }
}

/// Every length of private data that a start frame can claim: too long, or too short for the enhanced block, is refused before
/// any of it has come; the others are waited for.
#[test]
fn any_length_of_private_data() {
    let block = Enhanced {
        ird: 4,
        ord: 4,
        peer_to_peer: None,
    };
    let table = table(1);
    for (request, frame) in [
        (true, raw::request(true)),
        (false, reply(true, false, 2, Some(block))),
    ] {
        for length in 0..=u16::MAX {
            let config = Config::default();
            let mut connection = match request {
                true => Connection::<NoPages>::responder(config, &table, Time(0)),
                false => Connection::initiator(config, &table, b"", Time(0)).unwrap(),
            };
            let head = [&frame[..18], &length.to_be_bytes()].concat();
            connection.handle_bytes(Time(0), &mut NoPages, &head);
            if !(4..=512).contains(&length) {
                let closed = CloseReason::Setup(SetupError::BadLength);
                assert_eq!(connection.poll_event(), Some(Event::Closed(closed)));
                continue;
            }
            let data = [&frame[20..24], &vec![7; usize::from(length) - 4]].concat();
            let (all_but_one, last) = data.split_at(data.len() - 1);
            connection.handle_bytes(Time(0), &mut NoPages, all_but_one);
            assert_eq!(connection.poll_event(), None, "{length}");
            connection.handle_bytes(Time(0), &mut NoPages, last);
            let private_data = match connection.poll_event() {
                Some(Event::ConnectRequest(request)) => request.private_data,
                Some(Event::Established(established)) => established.private_data,
                other => panic!("{length}: {other:?}"),
            };
            assert_eq!(private_data, data[4..]);
        }
    }
}

/// What an initiator makes of Replies: which ready-to-receive frame it sends, and what it cannot accept.
#[test]
fn replies() {
    let block = |ird, ord, kinds: Option<(bool, bool, bool)>| {
        let peer_to_peer = kinds.map(|(send, write, read)| RtrKinds { send, write, read });
        Some(Enhanced {
            ird,
            ord,
            peer_to_peer,
        })
    };
    let zero_write = Sent::Write(Stag(1), 0, vec![], true);
    type Outcome<'a> = Result<Option<&'a Sent>, (TerminateCode, SetupError)>;
    let rows: [(_, Outcome<'_>); 6] = [
        (
            block(4, 4, Some((false, true, true))),
            Ok(Some(&zero_write)),
        ),
        (
            block(4, 4, Some((true, true, false))),
            Ok(Some(&zero_write)),
        ),
        (block(4, 4, None), Ok(None)),
        (block(0x3fff, 0x3fff, None), Ok(None)),
        (
            block(4, 4, Some((true, false, false))),
            Err((TerminateCode::MpaNoCommonRtr, SetupError::NoCommonRtr)),
        ),
        (
            block(4, 65, None),
            Err((
                TerminateCode::MpaInsufficientIrd,
                SetupError::InsufficientIrd(65),
            )),
        ),
    ];
    for (enhanced, expected) in rows {
        let (mut connection, request) = initiator(Config::default());
        let Ok(NextStart::Frame(frame, _)) = StartFrame::parse(StartKind::Request, &request) else {
            panic!("a frame")
        };
        let offered = frame.enhanced.unwrap().peer_to_peer.unwrap();
        assert_eq!(
            (offered.send, offered.write, offered.read),
            (false, true, true)
        );
        connection.handle_bytes(Time(0), &mut NoPages, &reply(true, false, 2, enhanced));
        let sent = raw::transmit(&mut connection, &mut NoPages);
        match expected {
            Ok(rtr) => {
                assert!(sent.iter().eq(rtr));
                assert!(matches!(
                    connection.poll_event(),
                    Some(Event::Established(_))
                ));
            }
            Err((code, error)) => {
                assert_eq!(sent, [Sent::Terminate(code, vec![])]);
                connection.handle_eof(Time(0));
                assert_eq!(
                    connection.poll_event(),
                    Some(Event::Closed(CloseReason::Setup(error)))
                );
            }
        }
    }
    let wrong = [
        (reply(true, false, 1, None), SetupError::Revision(1)),
        (raw::request(true), SetupError::BothInitiated),
    ];
    for (bytes, error) in wrong {
        let (mut connection, _) = initiator(Config::default());
        connection.handle_bytes(Time(0), &mut NoPages, &bytes);
        assert_eq!(
            connection.poll_event(),
            Some(Event::Closed(CloseReason::Setup(error)))
        );
    }
}

/// The ULPDUs of a whole stream with markers, and that each marker points back at the length field of its FPDU, and each
/// CRC counts them in (RFC 5044 §4.3, §4.4).
fn marked_ulpdus(stream: &[u8]) -> Vec<Vec<u8>> {
    let mut ulpdus = Vec::new();
    let mut start = 0;
    while start < stream.len() {
        let (mut plain, mut length_at, mut at) = (Vec::new(), None, start);
        loop {
            let word = &stream[at..at + 4];
            if at.is_multiple_of(512) {
                let distance = at - length_at.unwrap_or(at);
                assert_eq!(word, (distance as u32).to_be_bytes(), "marker at {at}");
            } else {
                length_at.get_or_insert(at);
                plain.extend_from_slice(word);
            }
            at += 4;
            if let Ok(NextFpdu::Fpdu(ulpdu, _)) = fpdu::next(&plain, false) {
                ulpdus.push(ulpdu.to_vec());
                break;
            }
        }
        let (covered, crc) = stream[start..at].split_at(at - start - 4);
        assert_eq!(crc, fpdu::crc(covered), "CRC at {at}");
        start = at;
    }
    ulpdus
}

/// Sends a message of several FPDUs and looks for it in `stream`, which is what has been sent so far.
fn sends_marked<S: PageStore>(connection: &mut Connection<S>, pages: &mut S, mut stream: Vec<u8>) {
    let before = marked_ulpdus(&stream).len();
    let message = common::pattern(3, 5000);
    connection.post_send(send(1, &message)).unwrap();
    connection.poll_transmit(Time(0), pages, &mut stream, usize::MAX);
    let mut got = Vec::new();
    for ulpdu in &marked_ulpdus(&stream)[before..] {
        assert_eq!(ulpdu[1], 0x40 | Opcode::Send as u8);
        got.extend_from_slice(&ulpdu[18..]);
    }
    assert_eq!(got, message);
}

/// A Request with M=1 gets markers from us.
#[test]
fn markers_when_asked_for() {
    let mut pages = pages();
    let table = table(1);
    let mut request = raw::request(true);
    request[16] |= 0x80;
    let mut connection = Connection::<TestPages>::responder(Config::default(), &table, Time(0));
    connection.handle_bytes(Time(0), &mut pages, &request);
    connection.poll_event();
    connection.accept(b"").unwrap();
    let Some(Event::Established(established)) = connection.poll_event() else {
        panic!("established")
    };
    assert!(established.markers && established.crc);
    let mut out = Vec::new();
    connection.poll_transmit(Time(0), &mut pages, &mut out, usize::MAX);
    assert_eq!(out[16] & 0x80, 0, "we never ask");
    // What the peer sends has no markers.
    connection.handle_bytes(Time(0), &mut pages, &raw::write(Stag(1), 0, &[], true));
    sends_marked(&mut connection, &mut pages, Vec::new());
}

/// So does a Reply with M=1, from the ready-to-receive frame on.
#[test]
fn markers_when_the_reply_asks_for_them() {
    let kinds = |write, read| {
        Some(RtrKinds {
            send: false,
            write,
            read,
        })
    };
    for (peer_to_peer, rtr) in [
        (None, None),
        (kinds(true, false), Some(Opcode::Write)),
        (kinds(false, true), Some(Opcode::ReadRequest)),
    ] {
        let (mut connection, request) = initiator(Config::default());
        assert_eq!(request[16] & 0x80, 0, "we never ask");
        let block = Enhanced {
            ird: 4,
            ord: 4,
            peer_to_peer,
        };
        let reply = reply(true, true, 2, Some(block));
        connection.handle_bytes(Time(0), &mut NoPages, &reply);
        let Some(Event::Established(established)) = connection.poll_event() else {
            panic!("established")
        };
        assert!(established.markers && established.crc);
        let mut stream = Vec::new();
        connection.poll_transmit(Time(0), &mut NoPages, &mut stream, usize::MAX);
        let opcodes = marked_ulpdus(&stream)
            .into_iter()
            .map(|ulpdu| ulpdu[1] & 15);
        assert!(opcodes.eq(rtr.map(|opcode| opcode as u8)));
        sends_marked(&mut connection, &mut NoPages, stream);
    }
}

/// Deadlines: no Request, no Reply, no ready-to-receive frame, no FIN (RELIABILITY: half-open floods).
#[test]
fn time_outs() {
    let config = Config::default();
    let late = Time(0) + config.start_timeout;
    let early = Time(late.0 - 1);
    let ended = Some(Event::Closed(CloseReason::TimedOut));

    let mut waiting = Connection::<NoPages>::responder(config.clone(), &table(1), Time(0));
    waiting.handle_bytes(Time(5), &mut NoPages, b"MPA ID");
    assert_eq!(waiting.poll_timeout(), Some(late));
    waiting.handle_timeout(early);
    assert_eq!(waiting.poll_event(), None);
    waiting.handle_timeout(late);
    assert_eq!(waiting.poll_event(), ended);
    assert_eq!(waiting.poll_timeout(), None);

    let (mut waiting, _) = initiator(config.clone());
    waiting.handle_timeout(late);
    assert_eq!(waiting.poll_event(), ended);

    let (_, request) = initiator(config.clone());
    let mut waiting = Connection::<NoPages>::responder(config.clone(), &table(1), Time(0));
    waiting.handle_bytes(Time(0), &mut NoPages, &request);
    waiting.poll_event();
    assert_eq!(waiting.poll_timeout(), None, "the program may think");
    waiting.accept(b"").unwrap();
    raw::reply(&mut waiting, &mut NoPages);
    assert_eq!(waiting.poll_timeout(), Some(late));
    waiting.handle_timeout(late);
    assert_eq!(waiting.poll_event(), ended);

    let mut pair = connect(
        config.clone(),
        &table(1),
        config.clone(),
        &table(2),
        pages(),
    );
    pair.a.connection.disconnect();
    let mut out = Vec::new();
    pair.a
        .connection
        .poll_transmit(Time(7), &mut NoPages, &mut out, 1000);
    assert_eq!(pair.a.connection.socket_state(), SocketState::ShutdownWrite);
    assert_eq!(
        pair.a.connection.poll_timeout(),
        Some(Time(7) + config.close_timeout)
    );
    pair.a
        .connection
        .handle_timeout(Time(7) + config.close_timeout);
    assert_eq!(pair.a.connection.poll_event(), ended);
}

fn pair() -> TestPair {
    connect(
        Config::default(),
        &table(1),
        Config::default(),
        &table(2),
        pages(),
    )
}

/// Graceful end: what was posted goes out and is answered, then both sides are closed in order.
#[test]
fn graceful_disconnect() {
    let theirs = table(2);
    let mut pair = connect(
        Config::default(),
        &table(1),
        Config::default(),
        &theirs,
        pages(),
    );
    let region = theirs
        .register(RegionSpec::pages(
            ProtectionDomain(0),
            Rights::all(),
            BackingId(1),
            0,
            1 << 20,
        ))
        .unwrap();
    pair.b
        .connection
        .post_recv(WrId(0), RecvBuffer::Vec(10))
        .unwrap();
    let buffer = Buffer::zeroed(300_000);
    let op = Operation::Read {
        sink: LocalSlice::whole(&buffer),
        remote: region.remote(0),
    };
    pair.a
        .connection
        .post_send(WorkRequest::new(WrId(1), op))
        .unwrap();
    pair.a.connection.post_send(send(2, b"bye")).unwrap();
    pair.a.connection.disconnect();
    assert_eq!(
        pair.a.connection.post_send(send(3, b"late")),
        Err(PostError::NotOpen)
    );
    pair.run();
    let done = completions(&mut pair.a.connection);
    assert!(done.len() == 2 && done.iter().all(|c| c.status.is_success()));
    assert_eq!(
        completions(&mut pair.b.connection)[0].message.as_deref(),
        Some(&b"bye"[..])
    );
    assert_eq!(
        pair.a.connection.poll_event(),
        Some(Event::Closed(CloseReason::Graceful))
    );
    assert_eq!(pair.b.connection.poll_event(), Some(Event::PeerFinished));
    assert_eq!(
        pair.b.connection.poll_event(),
        Some(Event::Closed(CloseReason::Graceful))
    );
}

/// Both sides at once, and an abort, after which the other side sees a lost connection.
#[test]
fn other_ends() {
    let mut both = pair();
    both.a.connection.disconnect();
    both.b.connection.disconnect();
    both.run();
    let last = [
        std::iter::from_fn(|| both.a.connection.poll_event()).last(),
        std::iter::from_fn(|| both.b.connection.poll_event()).last(),
    ];
    for event in last {
        assert_eq!(event, Some(Event::Closed(CloseReason::Graceful)));
    }
    let mut aborted = pair();
    aborted
        .b
        .connection
        .post_recv(WrId(1), RecvBuffer::Vec(1))
        .unwrap();
    aborted.a.connection.abort();
    aborted.a.connection.abort();
    assert_eq!(
        aborted.a.connection.poll_event(),
        Some(Event::Closed(CloseReason::Aborted))
    );
    assert_eq!(aborted.a.connection.poll_event(), None);
    aborted.b.connection.handle_transport_error();
    assert_eq!(
        completions(&mut aborted.b.connection)[0].status,
        Status::Flushed
    );
    assert_eq!(
        aborted.b.connection.poll_event(),
        Some(Event::Closed(CloseReason::Lost))
    );
}

/// A responder that has been told that it is established, and has heard nothing yet: what it posted before it left goes out behind
/// the first message of the peer, for which it waits for so long.
#[test]
fn disconnect_before_the_first_message() {
    let client = Config {
        peer_to_peer: false,
        ..Config::default()
    };
    let establish = || {
        let (ours, theirs) = (table(1), table(2));
        let mut pair = unconnected(client.clone(), &ours, Config::default(), &theirs, pages());
        pair.run();
        pair.b.connection.accept(b"").unwrap();
        pair.run();
        let b = &mut pair.b.connection;
        let told: Vec<Event> = std::iter::from_fn(|| b.poll_event()).collect();
        assert!(matches!(told[..], [_, Event::Established(_)]), "{told:?}");
        b.post_recv(WrId(1), RecvBuffer::Vec(10)).unwrap();
        b.post_send(send(2, b"bye")).unwrap();
        b.disconnect();
        b.disconnect();
        assert_eq!(b.post_send(send(3, b"late")), Err(PostError::NotOpen));
        pair
    };
    let mut pair = establish();
    pair.run();
    assert_eq!(completions(&mut pair.b.connection), []);
    let a = &mut pair.a.connection;
    a.post_recv(WrId(4), RecvBuffer::Vec(10)).unwrap();
    a.post_send(send(5, b"hello")).unwrap();
    pair.run();
    let done = completions(&mut pair.b.connection);
    assert!(done.len() == 2 && done.iter().all(|c| c.status.is_success()));
    let heard = completions(&mut pair.a.connection);
    assert_eq!(heard.last().unwrap().message.as_deref(), Some(&b"bye"[..]));
    for end in [
        std::iter::from_fn(|| pair.a.connection.poll_event()).last(),
        std::iter::from_fn(|| pair.b.connection.poll_event()).last(),
    ] {
        assert_eq!(end, Some(Event::Closed(CloseReason::Graceful)));
    }
    // A peer that says nothing is not waited for for ever.
    let mut left = establish().b.connection;
    let late = Time(7) + Config::default().close_timeout;
    left.handle_timeout(Time(7));
    assert_eq!(left.poll_timeout(), Some(late));
    left.handle_timeout(late);
    assert_eq!(completions(&mut left)[0].status, Status::Flushed);
    let ended = Some(Event::Closed(CloseReason::TimedOut));
    assert_eq!(left.poll_event(), ended);
    // With nothing to say it ends at once.
    let mut pair = unconnected(client, &table(1), Config::default(), &table(2), pages());
    pair.run();
    pair.b.connection.accept(b"").unwrap();
    pair.b.connection.disconnect();
    pair.run();
    assert_eq!(pair.b.connection.socket_state(), SocketState::Close);
}

/// Behind our FIN no Terminate goes out: an error of the peer ends the connection at once.
#[test]
fn nothing_follows_our_fin() {
    let mut pages = pages();
    let mut connection = raw::responder(Config::default(), &table(1), &mut pages);
    connection.handle_bytes(Time(0), &mut pages, &raw::write(Stag(1), 0, b"", true));
    connection.disconnect();
    assert_eq!(raw::transmit(&mut connection, &mut pages), []);
    assert_eq!(connection.socket_state(), SocketState::ShutdownWrite);
    connection.handle_bytes(Time(0), &mut pages, &raw::send(1, 0, b"no buffer", true));
    assert_eq!(
        connection.poll_event(),
        Some(Event::Closed(CloseReason::TerminateSent(
            TerminateCode::UntaggedNoBuffer
        )))
    );
    assert_eq!(raw::transmit(&mut connection, &mut pages), []);
    assert_eq!(connection.socket_state(), SocketState::Close);
}

/// Private data up to what foreign peers can take, and not a byte more.
#[test]
fn private_data_limits() {
    for (hello, most) in [(false, 251), (true, 243)] {
        let config = Config {
            hello,
            ..Config::default()
        };
        let start = |len| {
            Connection::<NoPages>::initiator(config.clone(), &table(1), &vec![7; len], Time(0))
        };
        assert!(start(most + 1).is_err());
        let a = start(most).unwrap();
        let b = Connection::<NoPages>::responder(Config::default(), &table(2), Time(0));
        let mut pair = Pair::new(a, NoPages, b, NoPages);
        pair.run();
        let Some(Event::ConnectRequest(request)) = pair.b.connection.poll_event() else {
            panic!("a request")
        };
        assert_eq!(request.private_data, vec![7; most]);
        assert!(pair.b.connection.accept(&vec![1; most + 1]).is_err());
        pair.b.connection.accept(&vec![1; most]).unwrap();
        pair.run();
        let Some(Event::Established(established)) = pair.a.connection.poll_event() else {
            panic!("established")
        };
        assert_eq!(established.private_data, vec![1; most]);
    }
}
