//! Receive buffers that connections share, and requests that hold their bytes themselves.

use crate::common::raw::{self, Sent, terminate_code, transmit};
use crate::common::{Residency, TestPages, completions, table};
use softrdma::wire::terminate::TerminateCode::UntaggedNoBuffer;
use softrdma::{
    Config, Connection, Event, Operation, PostError, RecvBuffer, SharedReceives, Source, Stag,
    Status, Time, WorkRequest, WrId,
};

fn connection(
    pages: &mut TestPages,
    shared: &std::sync::Arc<SharedReceives>,
) -> Connection<TestPages> {
    let config = Config {
        shared_receives: Some(std::sync::Arc::clone(shared)),
        recv_queue_max: 3,
        ..Config::default()
    };
    raw::responder(config, &table(9), pages)
}

/// Buffers go to whoever's message begins first and complete there, in posting order; the limit is told once, to the one
/// that passed it. A connection that ends takes only the buffer of its half message along.
#[test]
fn buffers_go_to_who_needs_them() {
    let mut pages = TestPages::new(Residency::Always, 1);
    let shared = SharedReceives::new(5);
    let mut a = connection(&mut pages, &shared);
    let mut b = connection(&mut pages, &shared);
    for id in 0..5 {
        shared.post(WrId(id), RecvBuffer::Vec(10)).unwrap();
    }
    assert_eq!(
        shared.post(WrId(9), RecvBuffer::Vec(1)),
        Err(PostError::QueueFull)
    );
    assert_eq!(
        a.post_recv(WrId(9), RecvBuffer::Vec(1)),
        Err(PostError::SharedQueue)
    );
    shared.arm(3);
    let now = Time(0);
    a.handle_bytes(now, &mut pages, &raw::send(1, 0, b"to a", false));
    b.handle_bytes(now, &mut pages, &raw::send(1, 0, b"to b", true));
    assert_eq!(
        (a.poll_event(), b.poll_event(), shared.len()),
        (None, None, 3)
    );
    a.handle_bytes(now, &mut pages, &raw::send(1, 4, b"!", true));
    a.handle_bytes(now, &mut pages, &raw::immediate(2, [1; 8]));
    assert_eq!(
        (a.poll_event(), shared.len()),
        (Some(Event::SharedReceivesLow), 2)
    );
    a.handle_bytes(now, &mut pages, &raw::send(3, 0, b"half", false));
    assert_eq!(a.poll_event(), None, "told once");
    let done: Vec<_> = completions(&mut a)
        .into_iter()
        .map(|done| (done.wr_id.0, done.message))
        .collect();
    assert_eq!(done, [(0, Some(b"to a!".to_vec())), (2, None)]);
    assert_eq!(completions(&mut b)[0].wr_id, WrId(1));
    a.abort();
    let done = completions(&mut a);
    assert_eq!(done.len(), 1);
    assert_eq!((done[0].wr_id, done[0].status), (WrId(3), Status::Flushed));
    assert_eq!(shared.len(), 1, "the others keep theirs");
}

/// Defends I16: a connection whose program does not take completions gets no more buffers, and others still do.
#[test]
fn unread_completions_are_bounded() {
    let mut pages = TestPages::new(Residency::Always, 1);
    let shared = SharedReceives::new(100);
    let (mut a, mut b) = (
        connection(&mut pages, &shared),
        connection(&mut pages, &shared),
    );
    for id in 0..10 {
        shared.post(WrId(id), RecvBuffer::Vec(10)).unwrap();
    }
    for msn in 1..=4 {
        a.handle_bytes(Time(0), &mut pages, &raw::send(msn, 0, b"x", true));
    }
    assert_eq!(terminate_code(&mut a, &mut pages), UntaggedNoBuffer);
    assert_eq!((completions(&mut a).len(), shared.len()), (3, 7));
    b.handle_bytes(Time(0), &mut pages, &raw::send(1, 0, b"x", true));
    assert_eq!(completions(&mut b).len(), 1);
}

/// Bytes inside the request leave as any others do; more than fit are refused when it is made.
#[test]
fn inline_bytes() {
    let mut pages = TestPages::new(Residency::Always, 1);
    let mut connection = raw::responder(Config::default(), &table(9), &mut pages);
    connection.handle_bytes(Time(0), &mut pages, &raw::write(Stag(1), 0, &[], true));
    assert!(Source::inline(&[1; 33]).is_none());
    for len in [0, 1, 32] {
        let send = Operation::Send {
            source: Source::inline(&vec![len; usize::from(len)]).unwrap(),
            solicited: false,
            invalidate: None,
        };
        connection
            .post_send(WorkRequest::new(WrId(1), send))
            .unwrap();
    }
    let expected = [0_u8, 1, 32].map(|len| vec![len; usize::from(len)]);
    let [one, two, three] = expected;
    assert_eq!(
        transmit(&mut connection, &mut pages),
        [
            Sent::Send(1, one, true),
            Sent::Send(2, two, true),
            Sent::Send(3, three, true)
        ]
    );
}
