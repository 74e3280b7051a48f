//! The ordering table of RFC 5040 §5.5 and RFC 7306 §5.4 at a responder, as litmus tests over pages that come late and in
//! any order; what sync STags add to it; the ready prefix; and the bound on what is held.

use softrdma::wire::atomic::AtomicResponse;
use softrdma::wire::terminate::TerminateCode::{self, *};
use softrdma::{
    Atomic, CloseReason, CompletionOpcode, Config, Event, Operation, RegionSpec, Rights, Stag,
    Status, TaggedOffset, Time, WorkRequest, WrId,
};

use super::harness::{Ctx, FILE, OURS, PAGE, Responder, Rule, SINK};
use crate::common::Residency;
use crate::common::pattern;
use crate::common::raw::{self, ATOMIC_ID, Sent};

pub const RULES: &[Rule] = &[
    ("WRITE before SEND", write_send),
    ("WRITE before immediate data", write_immediate),
    ("SENDs in order", sends),
    ("WRITE before READ", write_read),
    ("WRITE before atomic", write_atomic),
    ("atomic before READ", atomic_read),
    ("READ does not hold up a WRITE or SEND", read_write),
    ("answers in the order of requests", answers),
    ("atomics in order, each once", atomics),
    ("fields of a fetch-and-add", fields),
    ("ready prefix", ready_prefix),
    ("a sync WRITE holds up everything", sync_write),
    ("a sync atomic holds up everything", sync_atomic),
    ("as many requests as agreed", ird),
    ("a revoked region is not touched", revoked),
    ("what a window was bound to before is not touched", rebound),
    ("FIN inside a message", fin),
];

const ADD: Atomic = Atomic::FetchAdd { add: 1, mask: 0 };

fn response(bytes: &[u8]) -> Sent {
    Sent::Response(SINK, 0x1000, bytes.to_vec(), true)
}

fn answer(msn: u32, original: u64) -> Sent {
    let request = ATOMIC_ID;
    Sent::AtomicResponse(msn, AtomicResponse { request, original })
}

fn messages(responder: &mut Responder) -> Vec<Vec<u8>> {
    let done = responder.completions();
    done.into_iter()
        .map(|done| {
            assert_eq!(done.status, Status::Success);
            done.message.unwrap_or_default()
        })
        .collect()
}

fn write_send(ctx: &mut Ctx) {
    let mut responder = ctx.responder(Residency::Never);
    responder.post_recvs(1);
    let stag = responder.file.stag;
    let frames = [
        raw::write(stag, PAGE - 2, &[1, 2, 3, 4], false),
        raw::write(stag, PAGE + 2, &[5; 6], true),
        raw::send(1, 0, b"done", true),
    ];
    responder.deliver(ctx, &frames.concat());
    // The pages of a segment come in the wrong order; the second segment needs one of them again.
    assert_eq!(responder.completions(), []);
    responder.page(1);
    assert_eq!(responder.completions(), []);
    responder.page(0);
    assert_eq!(responder.completions(), []);
    responder.page(1);
    assert_eq!(messages(&mut responder), [b"done"]);
    assert_eq!(
        responder.file_bytes(PAGE - 2, 10),
        [1, 2, 3, 4, 5, 5, 5, 5, 5, 5]
    );
}

fn write_immediate(ctx: &mut Ctx) {
    let mut responder = ctx.responder(Residency::Never);
    responder.post_recvs(1);
    let write = raw::write(responder.file.stag, 0, &[7; 9], true);
    responder.deliver(ctx, &[write, raw::immediate(1, [3; 8])].concat());
    assert_eq!(responder.completions(), []);
    responder.page(0);
    let done = responder.completions();
    assert_eq!(done[0].opcode, CompletionOpcode::RecvRdmaWithImm);
    assert_eq!((done[0].bytes, done[0].immediate.unwrap().0), (9, [3; 8]));
    assert_eq!(responder.file_bytes(0, 9), [7; 9]);
}

fn sends(ctx: &mut Ctx) {
    let mut responder = ctx.responder(Residency::Always);
    responder.post_recvs(3);
    let frames = [
        raw::send(1, 0, b"on", false),
        // A WRITE may lie between the segments of a Send.
        raw::write(responder.dram.stag, 0, &[1], true),
        raw::send(1, 2, b"e", true),
        raw::send(2, 0, b"", true),
        raw::send(3, 0, b"three", true),
    ];
    responder.deliver(ctx, &frames.concat());
    assert_eq!(messages(&mut responder), [&b"one"[..], b"", b"three"]);
}

fn write_read(ctx: &mut Ctx) {
    let mut responder = ctx.responder(Residency::Never);
    let stag = responder.file.stag;
    let frames = [
        raw::write(stag, 0, &[9; 4], true),
        raw::read(1, stag, 0, 4),
        raw::read(2, stag, 0, 0),
    ];
    responder.deliver(ctx, &frames.concat());
    assert_eq!(responder.sent(), []);
    responder.page(0);
    assert_eq!(responder.sent(), []);
    responder.page(0);
    assert_eq!(responder.sent(), [response(&[9; 4]), response(&[])]);
}

fn write_atomic(ctx: &mut Ctx) {
    let mut responder = ctx.responder(Residency::Never);
    let stag = responder.file.stag;
    let frames = [
        raw::write(stag, 8, &5_u64.to_le_bytes(), true),
        raw::atomic(1, stag, 8, ADD),
    ];
    responder.deliver(ctx, &frames.concat());
    responder.page(0);
    assert_eq!(responder.sent(), []);
    responder.page(0);
    assert_eq!(responder.sent(), [answer(1, 5)]);
    assert_eq!(responder.file_bytes(8, 8), 6_u64.to_le_bytes());
}

fn atomic_read(ctx: &mut Ctx) {
    let mut responder = ctx.responder(Residency::Never);
    let stag = responder.file.stag;
    let frames = [raw::atomic(1, stag, 0, ADD), raw::read(2, stag, 0, 8)];
    responder.deliver(ctx, &frames.concat());
    responder.page(0);
    assert_eq!(responder.sent(), [answer(1, 0)]);
    responder.page(0);
    assert_eq!(responder.sent(), [response(&1_u64.to_le_bytes())]);
}

fn read_write(ctx: &mut Ctx) {
    let mut responder = ctx.responder(Residency::Never);
    responder.post_recvs(1);
    let frames = [
        raw::read(1, responder.file.stag, 0, 4),
        raw::write(responder.dram.stag, 0, &[1; 4], true),
        raw::send(1, 0, b"go", true),
    ];
    responder.deliver(ctx, &frames.concat());
    assert_eq!(messages(&mut responder), [b"go"]);
    assert_eq!(responder.memory.to_vec(0, 4), [1; 4]);
    assert_eq!(responder.sent(), []);
    responder.page(0);
    assert_eq!(responder.sent(), [response(&[0; 4])]);
}

fn answers(ctx: &mut Ctx) {
    let mut responder = ctx.responder(Residency::Never);
    responder.pages.fill(super::harness::FILE, 0, &[1; 8]);
    responder.pages.fill(super::harness::FILE, PAGE, &[2; 8]);
    let (file, dram) = (responder.file.stag, responder.dram.stag);
    let frames = [
        raw::read(1, file, 0, 8),
        raw::atomic(2, dram, 0, ADD),
        raw::read(3, file, PAGE, 8),
        raw::atomic(4, dram, 0, ADD),
        raw::read(5, dram, 0, 8),
    ];
    responder.deliver(ctx, &frames.concat());
    assert_eq!(responder.sent(), []);
    responder.page(1);
    assert_eq!(responder.sent(), [], "the first is not there");
    responder.page(0);
    let two = 2_u64.to_le_bytes();
    assert_eq!(
        responder.sent(),
        [
            response(&[1; 8]),
            answer(1, 0),
            response(&[2; 8]),
            answer(2, 1),
            response(&two)
        ]
    );
}

fn atomics(ctx: &mut Ctx) {
    let mut responder = ctx.responder(Residency::Never);
    let stag = responder.file.stag;
    let frames = [
        raw::atomic(1, stag, 0, ADD),
        raw::atomic(2, stag, PAGE, ADD),
        raw::atomic(3, stag, 0, ADD),
    ];
    responder.deliver(ctx, &frames.concat());
    for (page, original) in [(0, 0), (1, 0), (0, 1)] {
        assert_eq!(responder.pages.waiting.len(), 1, "one at a time");
        responder.page(page);
        let sent = responder.sent();
        assert!(matches!(&sent[..], [Sent::AtomicResponse(_, r)] if r.original == original));
    }
    assert_eq!(responder.file_bytes(0, 8), 2_u64.to_le_bytes());
    assert_eq!(responder.file_bytes(PAGE, 8), 1_u64.to_le_bytes());
}

fn fields(ctx: &mut Ctx) {
    let mut responder = ctx.responder(Residency::Always);
    let add = Atomic::FetchAdd {
        add: 0x0000_0001_0000_0001,
        mask: 0x0000_0000_8000_0000,
    };
    let old = 0x0000_0007_ffff_ffff_u64;
    let (file, dram) = (responder.file.stag, responder.dram.stag);
    for stag in [file, dram] {
        responder.deliver(ctx, &raw::write(stag, 0, &old.to_le_bytes(), true));
    }
    responder.deliver(
        ctx,
        &[raw::atomic(1, file, 0, add), raw::atomic(2, dram, 0, add)].concat(),
    );
    assert_eq!(responder.sent(), [answer(1, old), answer(2, old)]);
    let new = 0x0000_0008_0000_0000_u64.to_le_bytes();
    assert_eq!(responder.file_bytes(0, 8), new);
    assert_eq!(responder.memory.to_vec(0, 8), new);
}

fn ready_prefix(ctx: &mut Ctx) {
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2], [2, 0, 3, 1]] {
        let mut responder = ctx.responder(Residency::Never);
        let data = pattern(11, 4 * PAGE as usize);
        responder.pages.fill(super::harness::FILE, 0, &data);
        let len = 4 * PAGE as u32 - 100;
        responder.deliver(ctx, &raw::read(1, responder.file.stag, 50, len));
        let mut there = [false; 4];
        let mut got = Vec::new();
        for page in order {
            responder.page(page);
            there[page as usize] = true;
            for sent in responder.sent() {
                let Sent::Response(SINK, to, bytes, last) = sent else {
                    panic!("{sent:?}")
                };
                assert_eq!(to, 0x1000 + got.len() as u64);
                got.extend_from_slice(&bytes);
                assert_eq!(last, got.len() == len as usize);
            }
            let prefix = there.iter().take_while(|is| **is).count() * PAGE as usize;
            let expected = prefix.saturating_sub(50).min(len as usize);
            assert_eq!(got.len(), expected, "{order:?}, page {page}");
        }
        assert!(got == data[50..50 + len as usize]);
        assert_eq!(responder.pages.pins.get(), 0);
    }
}

fn sync_write(ctx: &mut Ctx) {
    let mut responder = ctx.responder(Residency::Always);
    responder.post_recvs(2);
    let (sync, dram) = (responder.sync(), responder.dram.stag);
    let frames = [
        raw::write(sync, 0, &[1; 4], true),
        raw::write(dram, 0, &[2; 4], true),
        raw::send(1, 0, b"go", true),
        raw::immediate(2, [0; 8]),
        raw::read(1, dram, 0, 0),
        raw::atomic(2, dram, 8, ADD),
    ];
    responder.deliver(ctx, &frames.concat());
    assert_eq!(responder.file_bytes(0, 4), [1; 4]);
    assert_eq!(responder.memory.to_vec(0, 16), [0; 16]);
    assert_eq!(responder.completions(), []);
    assert_eq!(responder.sent(), []);
    responder.durable();
    assert_eq!(responder.memory.to_vec(0, 4), [2; 4]);
    assert_eq!(responder.completions().len(), 2);
    assert_eq!(responder.sent(), [response(&[]), answer(1, 0)]);
    assert!(responder.pages.syncs.is_empty());
}

fn sync_atomic(ctx: &mut Ctx) {
    let mut responder = ctx.responder(Residency::Never);
    let (sync, dram) = (responder.sync(), responder.dram.stag);
    let frames = [
        raw::atomic(1, sync, 0, ADD),
        raw::atomic(2, dram, 0, ADD),
        raw::read(3, dram, 0, 8),
    ];
    responder.deliver(ctx, &frames.concat());
    responder.page(0);
    assert_eq!(responder.file_bytes(0, 8), 1_u64.to_le_bytes());
    assert_eq!(responder.memory.to_vec(0, 8), [0; 8]);
    assert_eq!(responder.sent(), []);
    responder.durable();
    let one = 1_u64.to_le_bytes();
    assert_eq!(
        responder.sent(),
        [answer(1, 0), answer(2, 0), response(&one)]
    );
}

fn ird(ctx: &mut Ctx) {
    for last in 0..2 {
        let config = Config {
            ird_max: 2,
            ..ctx.config()
        };
        let mut responder = ctx.responder_with(Residency::Never, config);
        let (file, dram) = (responder.file.stag, responder.dram.stag);
        let beyond = if last == 0 {
            raw::read(3, file, 0, 0)
        } else {
            raw::atomic(3, dram, 0, ADD)
        };
        responder.deliver(
            ctx,
            &[raw::read(1, file, 0, 8), raw::atomic(2, dram, 8, ADD)].concat(),
        );
        assert_eq!(responder.sent(), []);
        responder.deliver(ctx, &beyond);
        let sent = responder.sent();
        assert!(
            matches!(sent[..], [Sent::Terminate(OperationCatastrophicStream, _)]),
            "{sent:?}"
        );
        assert_eq!(responder.memory.to_vec(0, 8), [0; 8]);
    }
}

/// Bytes of an access through this STag.
type Access = fn(Stag) -> Vec<u8>;

/// Accesses to the first page, and what they are told if it comes when their STag is dead.
const EARLY: [(Access, TerminateCode); 3] = [
    (|stag| raw::write(stag, 0, &[1; 8], true), TaggedInvalidStag),
    (|stag| raw::read(1, stag, 0, 8), ProtectionInvalidStag),
    (|stag| raw::atomic(1, stag, 0, ADD), ProtectionInvalidStag),
];

fn is_too_late(responder: &mut Responder, code: TerminateCode) {
    responder.page(0);
    let sent = responder.sent();
    assert!(
        matches!(&sent[..], [Sent::Terminate(c, _)] if *c == code),
        "{sent:?}"
    );
    assert_eq!(responder.file_bytes(0, 8), [0; 8]);
    assert_eq!(responder.pages.pins.get(), 0);
}

fn revoked(ctx: &mut Ctx) {
    for (access, code) in EARLY {
        let mut responder = ctx.responder(Residency::Never);
        let stag = responder.file.stag;
        responder.deliver(ctx, &access(stag));
        assert!(responder.table.deregister(stag));
        is_too_late(&mut responder, code);
    }
}

fn rebound(ctx: &mut Ctx) {
    for (access, code) in EARLY {
        let mut responder = ctx.responder(Residency::Never);
        let spec = RegionSpec::pages(OURS, Rights::all(), FILE, 0, 2 * PAGE);
        let region = responder.table.register(spec).unwrap().stag;
        let mut window = responder.table.allocate_domain_window(OURS).unwrap();
        let rights = Rights::REMOTE_READ | Rights::REMOTE_WRITE | Rights::REMOTE_ATOMIC;
        let binds = [0, PAGE].map(|to| window.bind(region, TaggedOffset(to), PAGE, rights));
        let bind = |responder: &mut Responder, bind| {
            let request = WorkRequest::new(WrId(1), Operation::BindDomainWindow(bind));
            responder.connection.post_send(request).unwrap();
            assert_eq!(responder.sent(), []);
            assert!(responder.completions()[0].status.is_success());
        };
        bind(&mut responder, binds[0]);
        responder.deliver(ctx, &access(binds[0].stag()));
        bind(&mut responder, binds[1]);
        is_too_late(&mut responder, code);
    }
}

fn fin(ctx: &mut Ctx) {
    let stag = ctx.responder(Residency::Always).dram.stag;
    let cut = |bytes: Vec<u8>| bytes[..bytes.len() - 1].to_vec();
    for (bytes, expected) in [
        (Vec::new(), None),
        (cut(raw::send(1, 0, b"x", true)), Some(CloseReason::Lost)),
        (raw::send(1, 0, b"x", false), Some(CloseReason::Lost)),
        (raw::write(stag, 0, b"x", false), Some(CloseReason::Lost)),
        (raw::write(stag, 0, b"x", true), None),
    ] {
        let mut responder = ctx.responder(Residency::Always);
        responder.post_recvs(1);
        responder.deliver(ctx, &bytes);
        responder.connection.handle_eof(Time(0));
        let event = match &expected {
            None => Event::PeerFinished,
            Some(reason) => Event::Closed(reason.clone()),
        };
        assert_eq!(responder.connection.poll_event(), Some(event));
        assert_eq!(
            responder.completions().len(),
            usize::from(expected.is_some())
        );
    }
}
