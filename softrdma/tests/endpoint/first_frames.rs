//! The first frames of a connection: who may send first, ready-to-receive frames, and what follows if nothing answers.

use crate::common::raw::{self, Sent};
use crate::common::setup::{initiator, pages, reply, send};
use crate::common::{TestPages, completions, connect, table};
use softrdma::wire::start::{Enhanced, NextStart, RtrKinds, StartFrame, StartKind};
use softrdma::{
    Buffer, CloseReason, Config, Connection, Event, LocalSlice, NoPages, Operation, RecvBuffer,
    RemoteAddr, Stag, Status, TaggedOffset, Time, WorkRequest, WrId,
};

/// Ready-to-receive by READ: it takes message number 1 and shows neither as work nor as a completion.
#[test]
fn ready_to_receive_by_read() {
    let (mut connection, _) = initiator(Config::default());
    let kinds = RtrKinds {
        send: false,
        write: false,
        read: true,
    };
    let enhanced = Some(Enhanced {
        ird: 1,
        ord: 4,
        peer_to_peer: Some(kinds),
    });
    let buffer = Buffer::zeroed(4);
    let remote = RemoteAddr {
        stag: Stag(9),
        to: TaggedOffset(0),
    };
    let read = Operation::Read {
        sink: LocalSlice::whole(&buffer),
        remote,
    };
    connection
        .post_send(WorkRequest::new(WrId(1), read))
        .unwrap();
    connection.handle_bytes(Time(0), &mut NoPages, &reply(true, false, 2, enhanced));
    let sent = raw::transmit(&mut connection, &mut NoPages);
    let [Sent::Read(1, request)] = &sent[..] else {
        panic!("ORD 1 is used up: {sent:?}")
    };
    assert_eq!((request.size, request.source.stag), (0, Stag(1)));
    // As `siw` may answer it: with bytes of another message, which are dropped.
    connection.handle_bytes(
        Time(0),
        &mut NoPages,
        &raw::response(request.sink.stag, 0, b"junk", true),
    );
    assert_eq!(connection.poll_completion(), None);
    let sent = raw::transmit(&mut connection, &mut NoPages);
    let [Sent::Read(2, request)] = &sent[..] else {
        panic!("{sent:?}")
    };
    connection.handle_bytes(
        Time(0),
        &mut NoPages,
        &raw::response(request.sink.stag, 0, b"data", true),
    );
    assert!(completions(&mut connection)[0].status.is_success());
    assert_eq!(buffer.to_vec(0, 4), b"data");
}

/// RFC 6581: whichever of the kinds in its Reply the initiator takes, the responder takes it too; for a READ it has a place
/// although it wants none, unless the WRITE does as well.
#[test]
fn ready_to_receive_as_answered() {
    let all = [false, true];
    let offers = all.map(|send| all.map(|write| all.map(|read| RtrKinds { send, write, read })));
    for (offered, ird_max) in offers
        .into_iter()
        .flatten()
        .flatten()
        .flat_map(|offered| [(offered, 0), (offered, 4)])
    {
        let asked = Config {
            rtr: offered,
            hello: false,
            ..Config::default()
        };
        let (_, request) = initiator(asked);
        let answer = || {
            let config = Config {
                ird_max,
                ..Config::default()
            };
            let mut connection = Connection::<NoPages>::responder(config, &table(1), Time(0));
            connection.handle_bytes(Time(0), &mut NoPages, &request);
            connection.poll_event();
            connection.accept(b"").unwrap();
            let mut reply = Vec::new();
            connection.poll_transmit(Time(0), &mut NoPages, &mut reply, usize::MAX);
            let Ok(NextStart::Frame(frame, _)) = StartFrame::parse(StartKind::Reply, &reply) else {
                panic!("a Reply")
            };
            (connection, frame.enhanced.unwrap())
        };
        let (_, block) = answer();
        let kinds = block.peer_to_peer.unwrap();
        assert_eq!(block.ord, 64);
        assert_eq!(kinds.read && ird_max == 0, block.ird > ird_max, "{kinds:?}");
        assert!(!(kinds.read && kinds.write && ird_max == 0));
        let none = RtrKinds::default();
        assert!(kinds != none, "{offered:?}");
        let read = raw::read(1, Stag(0), 0, 0);
        let frames = [
            (kinds.send, raw::send(1, 0, b"", true), vec![]),
            (kinds.write, raw::write(Stag(1), 0, b"", true), vec![]),
            (
                kinds.read,
                read,
                vec![Sent::Response(Stag(0x5151_5100), 0x1000, vec![], true)],
            ),
        ];
        for (is_taken, frame, answered) in frames {
            if !is_taken {
                continue;
            }
            let (mut connection, _) = answer();
            connection.handle_bytes(Time(0), &mut NoPages, &frame);
            let established = connection.poll_event();
            assert!(matches!(established, Some(Event::Established(_))));
            assert_eq!(raw::transmit(&mut connection, &mut NoPages), answered);
            assert_eq!(connection.poll_event(), None);
        }
    }
}

/// Ready-to-receive by SEND, between two endpoints of ours that have nothing else in common: it takes message number 1
/// and shows neither as work nor as a completion, and takes no buffer.
#[test]
fn ready_to_receive_by_send() {
    let config = Config {
        rtr: RtrKinds {
            send: true,
            write: false,
            read: false,
        },
        ..Config::default()
    };
    let (ours, theirs) = (table(1), table(2));
    let mut pair = connect(config, &ours, Config::default(), &theirs, pages());
    pair.b
        .connection
        .post_recv(WrId(1), RecvBuffer::Vec(10))
        .unwrap();
    assert_eq!(completions(&mut pair.a.connection), []);
    assert_eq!(completions(&mut pair.b.connection), []);
    pair.a.connection.post_send(send(2, b"hello")).unwrap();
    pair.run();
    let done = completions(&mut pair.b.connection);
    assert_eq!(done[0].message.as_deref(), Some(&b"hello"[..]));
}

/// RFC 5044 §7.1.2: a responder keeps its sends until the initiator's first FPDU; with the peer-to-peer model the program
/// hears of the connection only then.
#[test]
fn a_responder_does_not_speak_first() {
    for peer_to_peer in [false, true] {
        let mut pages = pages();
        let mut connection =
            Connection::<TestPages>::responder(Config::default(), &table(1), Time(0));
        let kinds = RtrKinds {
            send: true,
            write: true,
            read: false,
        };
        let mut request = Vec::new();
        StartFrame {
            kind: StartKind::Request,
            markers: false,
            crc: false,
            rejected: false,
            revision: 2,
            enhanced: Some(Enhanced {
                ird: 1,
                ord: 1,
                peer_to_peer: peer_to_peer.then_some(kinds),
            }),
            private_data: b"",
        }
        .emit(&mut request);
        connection.handle_bytes(Time(0), &mut pages, &request);
        connection.poll_event();
        connection.accept(b"").unwrap();
        connection.post_send(send(1, b"hello")).unwrap();
        let mut out = Vec::new();
        connection.poll_transmit(Time(0), &mut pages, &mut out, usize::MAX);
        let Ok(NextStart::Frame(frame, total)) = StartFrame::parse(StartKind::Reply, &out) else {
            panic!("a Reply")
        };
        assert_eq!(total, out.len(), "the Reply alone");
        let answer = frame.enhanced.unwrap().peer_to_peer;
        assert_eq!(
            answer,
            peer_to_peer.then_some(RtrKinds {
                send: false,
                write: true,
                read: false
            })
        );
        assert_eq!(connection.poll_event().is_some(), !peer_to_peer);
        connection.handle_bytes(Time(0), &mut pages, &raw::write(Stag(1), 0, &[], true));
        assert_eq!(connection.poll_event().is_some(), peer_to_peer);
        assert_eq!(
            raw::transmit(&mut connection, &mut pages),
            [Sent::Send(1, b"hello".to_vec(), true)]
        );
    }
}

/// A responder that may send first does, and one that may not waits for the initiator.
#[test]
fn passive_side_sends_first_only_if_told() {
    for allowed in [false, true] {
        let config = Config {
            passive_sends_first: allowed,
            ..Config::default()
        };
        let mut connection = Connection::<NoPages>::responder(config, &table(1), Time(0));
        let mut request = Vec::new();
        StartFrame {
            kind: StartKind::Request,
            markers: false,
            crc: true,
            rejected: false,
            revision: 1,
            enhanced: None,
            private_data: b"",
        }
        .emit(&mut request);
        connection.handle_bytes(Time(0), &mut NoPages, &request);
        connection.accept(b"").unwrap();
        connection.post_send(send(1, b"first")).unwrap();
        let mut out = Vec::new();
        connection.poll_transmit(Time(0), &mut NoPages, &mut out, 1 << 16);
        let behind_the_reply = out.len() > 20;
        assert_eq!(behind_the_reply, allowed);
    }
}

/// The time for the first frame begins with the Reply, not with the Request: a program may think for longer than that. Whether
/// the driver sends first or looks at its clock first does not matter.
#[test]
fn a_program_that_thinks_long_loses_nothing() {
    let config = Config::default();
    let (_, request) = initiator(config.clone());
    let later = Time(0) + 100 * config.start_timeout;
    for is_sent_first in [false, true] {
        let mut thinking = Connection::<NoPages>::responder(config.clone(), &table(1), Time(0));
        thinking.handle_bytes(Time(0), &mut NoPages, &request);
        assert!(thinking.poll_event().is_some());
        thinking.accept(b"").unwrap();
        assert!(thinking.poll_timeout().is_some_and(|at| at <= later));
        let mut reply = Vec::new();
        if is_sent_first {
            thinking.poll_transmit(later, &mut NoPages, &mut reply, usize::MAX);
        }
        thinking.handle_timeout(later);
        thinking.poll_transmit(later, &mut NoPages, &mut reply, usize::MAX);
        assert!(reply.starts_with(b"MPA ID Rep Frame"));
        assert_eq!(thinking.poll_event(), None);
        let end = later + config.start_timeout;
        assert_eq!(thinking.poll_timeout(), Some(end));
        thinking.handle_timeout(Time(end.0 - 1));
        assert_eq!(thinking.poll_event(), None);
        thinking.handle_timeout(end);
        let ended = Event::Closed(CloseReason::TimedOut);
        assert_eq!(thinking.poll_event(), Some(ended));
    }
}

/// The Write of zero bytes that a foreign responder is nudged with.
const NUDGE: [Sent; 1] = [Sent::Write(Stag(1), 0, vec![], true)];

/// Lets the time of the next nudge come.
fn nudge(connection: &mut Connection<NoPages>) -> Vec<Sent> {
    let at = connection.poll_timeout().expect("a nudge is due");
    connection.handle_timeout(at);
    raw::transmit(connection, &mut NoPages)
}

/// A foreign responder may have missed our first FPDU: Writes of zero bytes follow, for longer and longer waits, until
/// something comes back.
#[test]
fn a_silent_foreign_peer_is_nudged() {
    let enhanced = Some(Enhanced {
        ird: 1,
        ord: 1,
        peer_to_peer: None,
    });
    let connected = |enhanced| {
        let (mut connection, _) = initiator(Config::default());
        connection.handle_bytes(Time(0), &mut NoPages, &reply(true, false, 2, enhanced));
        connection
    };
    let answer = |connection: &mut Connection<NoPages>| {
        connection.post_recv(WrId(1), RecvBuffer::Vec(10)).unwrap();
        connection.handle_bytes(Time(0), &mut NoPages, &raw::send(1, 0, b"here", true));
    };

    let mut connection = connected(enhanced);
    connection.post_send(send(1, b"lost?")).unwrap();
    assert_eq!(raw::transmit(&mut connection, &mut NoPages).len(), 1);
    for _ in 0..4 {
        assert_eq!(nudge(&mut connection), NUDGE);
    }
    assert_eq!(connection.poll_timeout(), None);

    // Nothing sent, nothing to nudge for.
    let mut connection = connected(enhanced);
    assert_eq!(nudge(&mut connection), []);
    assert_eq!(connection.poll_timeout(), None);

    // It speaks before we do, and so reads.
    let mut connection = connected(enhanced);
    answer(&mut connection);
    assert_eq!(connection.poll_timeout(), None);

    // It has spoken, but has it read what we sent before that? One nudge says so for certain.
    let mut connection = connected(enhanced);
    connection.post_send(send(1, b"lost?")).unwrap();
    raw::transmit(&mut connection, &mut NoPages);
    answer(&mut connection);
    assert_eq!(nudge(&mut connection), NUDGE);
    assert_eq!(connection.poll_timeout(), None);

    // So does anything else that we send behind that.
    let mut connection = connected(enhanced);
    connection.post_send(send(1, b"lost?")).unwrap();
    raw::transmit(&mut connection, &mut NoPages);
    answer(&mut connection);
    connection.post_send(send(2, b"not lost")).unwrap();
    assert_eq!(raw::transmit(&mut connection, &mut NoPages).len(), 1);
    assert_eq!(connection.poll_timeout(), None);

    // The ready-to-receive frame is a first FPDU, too, whichever it is.
    for (write, read) in [(true, false), (false, true)] {
        let send = false;
        let peer_to_peer = Some(RtrKinds { send, write, read });
        let mut connection = connected(Some(Enhanced {
            ird: 1,
            ord: 1,
            peer_to_peer,
        }));
        assert_eq!(raw::transmit(&mut connection, &mut NoPages).len(), 1);
        assert_eq!(nudge(&mut connection), NUDGE);
    }
}

/// A peer that ends in order before it has sent a message has ended in order: nothing of it is missing. What the program wanted
/// to send can not go out any more, as no message of the peer came before.
#[test]
fn a_peer_may_end_without_a_word() {
    for posted in [false, true] {
        let mut pages = pages();
        let mut connection = raw::responder(Config::default(), &table(1), &mut pages);
        connection.post_recv(WrId(1), RecvBuffer::Vec(10)).unwrap();
        if posted {
            connection.post_send(send(2, b"hello")).unwrap();
        }
        connection.handle_eof(Time(0));
        let events: Vec<Event> = std::iter::from_fn(|| connection.poll_event()).collect();
        let expected = match posted {
            false => vec![Event::PeerFinished, Event::Closed(CloseReason::Graceful)],
            true => vec![Event::Closed(CloseReason::Lost)],
        };
        assert_eq!(events, expected);
        assert_eq!(raw::transmit(&mut connection, &mut pages), []);
        let done = completions(&mut connection);
        assert_eq!(done.len(), 1 + usize::from(posted));
        assert!(done.iter().all(|done| done.status == Status::Flushed));
    }
    // Not in the middle of one.
    let mut pages = pages();
    let mut connection = raw::responder(Config::default(), &table(1), &mut pages);
    connection.handle_bytes(Time(0), &mut pages, &raw::send(1, 0, b"x", true)[..9]);
    connection.handle_eof(Time(0));
    assert_eq!(
        connection.poll_event(),
        Some(Event::Closed(CloseReason::Lost))
    );
}
