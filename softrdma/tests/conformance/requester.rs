//! What a requester owes: order and number of what it has outstanding, fences, answers matched in full, each request
//! completed once and in order, also at the end.

use softrdma::wire::rdmap::Opcode;
use softrdma::wire::terminate::Terminate;
use softrdma::wire::terminate::TerminateCode::{self, *};
use softrdma::{
    Buffer, CloseReason, CompletionOpcode, Event, LocalSlice, Operation, Placement, Selectivity,
    Source, Stag, Status, Time, WorkRequest, WrId,
};

use super::harness::{Ctx, REMOTE, Requester, Rule};
use crate::common::completions;
use crate::common::raw::{self, Sent};

pub const RULES: &[Rule] = &[
    ("no more outstanding than agreed", ord),
    ("fence", fence),
    ("answers nobody asked for", wrong_answers),
    ("completions in order", order),
    ("a Terminate ends each request once", terminated),
    (
        "a Terminate about another message is not blamed on a READ",
        terminated_for_another,
    ),
    ("FIN with an answer outstanding", fin),
    ("what a Reply cannot offer", replies),
];

fn read(id: u64) -> WorkRequest {
    let sink = LocalSlice::whole(&Buffer::zeroed(4));
    WorkRequest::new(
        WrId(id),
        Operation::Read {
            sink,
            remote: REMOTE,
        },
    )
}

fn add(id: u64) -> WorkRequest {
    WorkRequest::new(WrId(id), Operation::fetch_add(REMOTE, 1))
}

fn flush(id: u64) -> WorkRequest {
    let flush = Operation::Flush {
        remote: REMOTE,
        selectivity: Selectivity::Region,
        placement: Placement::Visible,
    };
    WorkRequest::new(WrId(id), flush)
}

fn send(id: u64) -> WorkRequest {
    let send = Operation::Send {
        source: Source::inline(b"x").unwrap(),
        solicited: false,
        invalidate: None,
    };
    WorkRequest::new(WrId(id), send)
}

fn post(requester: &mut Requester, requests: impl IntoIterator<Item = WorkRequest>) {
    for request in requests {
        requester.connection.post_send(request).unwrap();
    }
}

fn read_answer(token: u32) -> Vec<u8> {
    raw::response(Stag::new(token, 0), 0, &[7; 4], true)
}

fn flush_answer(msn: u32, token: u32) -> Vec<u8> {
    raw::untagged(
        Opcode::FlushResponse,
        msn,
        0,
        Stag(0),
        &token.to_be_bytes(),
        true,
    )
}

fn done(requester: &mut Requester) -> Vec<u64> {
    let done = completions(&mut requester.connection);
    done.iter()
        .map(|done| {
            assert_eq!(done.status, Status::Success);
            done.wr_id.0
        })
        .collect()
}

fn ord(ctx: &mut Ctx) {
    let mut requester = ctx.requester(2, true);
    post(&mut requester, [read(1), add(2), flush(3), add(4), send(5)]);
    assert_eq!(requester.sent().len(), 2);
    for (answer, next) in [
        (read_answer(1), 1),
        (raw::atomic_response(1, 2, 0), 2),
        (flush_answer(2, 3), 0),
        (raw::atomic_response(3, 4, 0), 0),
    ] {
        requester.deliver(ctx, &answer);
        assert_eq!(requester.sent().len(), next);
    }
    assert_eq!(done(&mut requester), [1, 2, 3, 4, 5]);
}

fn fence(ctx: &mut Ctx) {
    let fenced = |request| WorkRequest {
        fence: true,
        ..request
    };
    for (first, answer) in [
        (read(1), read_answer(1)),
        (add(1), raw::atomic_response(1, 1, 0)),
        (flush(1), flush_answer(1, 1)),
    ] {
        let mut requester = ctx.requester(8, true);
        post(&mut requester, [first, fenced(send(2)), send(3)]);
        assert_eq!(requester.sent().len(), 1);
        requester.deliver(ctx, &answer);
        let sent = requester.sent();
        assert!(
            matches!(sent[..], [Sent::Send(1, ..), Sent::Send(2, ..)]),
            "{sent:?}"
        );
        assert_eq!(done(&mut requester), [1, 2, 3]);
    }
    // Without it nothing waits.
    let mut requester = ctx.requester(8, true);
    post(&mut requester, [read(1), send(2)]);
    assert_eq!(requester.sent().len(), 2);
    assert_eq!(done(&mut requester), [], "but completions keep their order");
}

fn wrong_answers(ctx: &mut Ctx) {
    let rows: [(WorkRequest, Vec<u8>, TerminateCode); 9] = [
        (read(1), read_answer(2), TaggedInvalidStag),
        (
            read(1),
            raw::response(Stag::new(1, 0), 1, &[7; 3], true),
            TaggedBounds,
        ),
        (
            read(1),
            raw::response(Stag::new(1, 0), 0, &[7; 5], true),
            TaggedBounds,
        ),
        (
            read(1),
            raw::response(Stag::new(1, 0), 0, &[7; 3], true),
            OperationCatastrophicStream,
        ),
        (read(1), raw::atomic_response(1, 1, 0), UntaggedNoBuffer),
        (
            add(1),
            raw::atomic_response(1, 2, 0),
            OperationCatastrophicStream,
        ),
        (add(1), raw::atomic_response(2, 1, 0), UntaggedMsnRange),
        (add(1), flush_answer(1, 1), UntaggedNoBuffer),
        (flush(1), raw::atomic_response(1, 1, 0), UntaggedNoBuffer),
    ];
    for (request, answer, code) in rows {
        let mut requester = ctx.requester(8, true);
        post(&mut requester, [request]);
        requester.sent();
        requester.deliver(ctx, &answer);
        let sent = requester.sent();
        assert!(
            matches!(&sent[..], [Sent::Terminate(c, _)] if *c == code),
            "{sent:?} for {code:?}"
        );
        let done = completions(&mut requester.connection);
        assert_eq!(
            (done.len(), done[0].status),
            (1, Status::Flushed),
            "{code:?}"
        );
    }
}

fn order(ctx: &mut Ctx) {
    let mut requester = ctx.requester(8, true);
    let silent = WorkRequest {
        signaled: false,
        ..send(3)
    };
    post(&mut requester, [send(1), read(2), silent, add(4), send(5)]);
    requester.sent();
    assert_eq!(done(&mut requester), [1]);
    requester.deliver(ctx, &read_answer(1));
    assert_eq!(done(&mut requester), [2]);
    requester.deliver(ctx, &raw::atomic_response(1, 2, 40));
    let done = completions(&mut requester.connection);
    let seen: Vec<_> = done
        .iter()
        .map(|done| (done.wr_id.0, done.opcode, done.original))
        .collect();
    assert_eq!(
        seen,
        [
            (4, CompletionOpcode::FetchAdd, 40),
            (5, CompletionOpcode::Send, 0)
        ]
    );
}

fn terminated(ctx: &mut Ctx) {
    // In the layout of the RFC and in that of `siw`.
    for control in [[0x01, 2, 0xe0, 0], [0x10, 2, 7, 0]] {
        let mut requester = ctx.requester(8, true);
        post(&mut requester, [send(1), add(2), read(3), send(4)]);
        requester.sent();
        let terminate = raw::untagged(Opcode::Terminate, 1, 0, Stag(0), &control, true);
        requester.deliver(ctx, &terminate);
        let done = completions(&mut requester.connection);
        let seen: Vec<_> = done
            .iter()
            .map(|done| (done.wr_id.0, done.status))
            .collect();
        let (ok, flushed) = (Status::Success, Status::Flushed);
        assert_eq!(
            seen,
            [(1, ok), (2, Status::RemoteAccess), (3, flushed), (4, ok)]
        );
        let (layer, etype, ecode) = (0, 1, 2);
        let reason = CloseReason::TerminateReceived(Terminate {
            layer,
            etype,
            ecode,
        });
        assert_eq!(
            requester.connection.poll_event(),
            Some(Event::Closed(reason))
        );
    }
}

/// The headers that a Terminate encloses say what it is about: rights of a WRITE, a SEND without a buffer, a Send with
/// Invalidate; in the layout of the RFC and in that of `siw`.
fn terminated_for_another(ctx: &mut Ctx) {
    let tagged = [&[0, 20, 0xc1, 0x40][..], &[9; 12]].concat();
    let send = [&[0, 20, 0x41, 0x43][..], &[0; 16]].concat();
    let invalidate = [&[0, 20, 0x41, 0x44][..], &[0; 16]].concat();
    let read = [&[0, 46, 0x41, 0x41][..], &[0; 16 + 28]].concat();
    let rows = [
        ([0x01, 2, 0xc0, 0], &tagged, Status::Flushed),
        ([0x10, 2, 3, 0], &tagged, Status::Flushed),
        ([0x12, 2, 0xc0, 0], &send, Status::Flushed),
        ([0x21, 2, 3, 0], &send, Status::Flushed),
        ([0x01, 9, 0xc0, 0], &invalidate, Status::Flushed),
        ([0x01, 2, 0xe0, 0], &read, Status::RemoteAccess),
        ([0x10, 2, 7, 0], &read, Status::RemoteAccess),
    ];
    for (control, enclosed, status) in rows {
        let mut requester = ctx.requester(8, true);
        post(&mut requester, [self::read(1)]);
        requester.sent();
        let body = [&control[..], enclosed].concat();
        let terminate = raw::untagged(Opcode::Terminate, 1, 0, Stag(0), &body, true);
        requester.deliver(ctx, &terminate);
        let done = completions(&mut requester.connection);
        assert_eq!((done.len(), done[0].status), (1, status), "{control:x?}");
    }
}

fn fin(ctx: &mut Ctx) {
    for request in [read(1), add(1), flush(1)] {
        let mut requester = ctx.requester(8, true);
        post(&mut requester, [request]);
        requester.sent();
        requester.connection.handle_eof(Time(0));
        let done = completions(&mut requester.connection);
        assert_eq!((done.len(), done[0].status), (1, Status::Flushed));
        let lost = Some(Event::Closed(CloseReason::Lost));
        assert_eq!(requester.connection.poll_event(), lost);
    }
}

fn replies(ctx: &mut Ctx) {
    // The peer wants more READs outstanding than we hold; it offers no ready-to-receive frame that we sent the offer of.
    for (block, code) in [
        (*b"\x00\x04\x3f\xfe", MpaInsufficientIrd),
        (*b"\xc0\x04\x00\x04", MpaNoCommonRtr),
    ] {
        let mut requester = ctx.asking(ctx.config());
        let head = b"MPA ID Rep Frame\x50\x02\x00\x04";
        requester.deliver(ctx, &[&head[..], &block].concat());
        let sent = requester.sent();
        assert!(
            matches!(&sent[..], [Sent::Terminate(c, _)] if *c == code),
            "{sent:?}"
        );
    }
}
