//! What FLUSH, VERIFY and ATOMIC WRITE order, and that they exist only where both sides announced them.

use softrdma::wire::atomic::AtomicResponse;
use softrdma::wire::rdmap::Opcode;
use softrdma::wire::terminate::TerminateCode::OperationUnexpectedOpcode;
use softrdma::{Atomic, Config, Operation, Placement, Selectivity, WindowBind, WorkRequest, WrId};
use softrdma::{BackingId, ProtectionDomain, RegionSpec, Rights, TaggedOffset};

use super::harness::{Ctx, OURS, PAGE, Responder, Rule, SINK};
use crate::common::Residency;
use crate::common::raw::{self, ATOMIC_ID, Sent};

pub const RULES: &[Rule] = &[
    ("FLUSH is answered when durable", flush),
    ("FLUSH before ATOMIC WRITE", flush_atomic_write),
    ("FLUSH before atomic", flush_atomic),
    ("VERIFY behind a WRITE", verify),
    ("nothing of it unasked", unasked),
    ("a window ends with its region", window),
];

fn responder(ctx: &mut Ctx, residency: Residency) -> Responder {
    let config = Config {
        private_profile: true,
        ..ctx.config()
    };
    ctx.responder_with(residency, config)
}

fn flushed(msn: u32) -> Sent {
    Sent::Private(msn, Opcode::FlushResponse, ATOMIC_ID.to_be_bytes().to_vec())
}

fn persistent(responder: &Responder, msn: u32, offset: u64) -> Vec<u8> {
    let here = responder.file.remote(offset);
    raw::flush(msn, here, Selectivity::Range(8), Placement::Persistent)
}

fn written(msn: u32) -> Sent {
    let (request, original) = (ATOMIC_ID, 0);
    Sent::AtomicResponse(msn, AtomicResponse { request, original })
}

fn flush(ctx: &mut Ctx) {
    let mut responder = responder(ctx, Residency::Never);
    let (file, dram) = (responder.file.stag, responder.dram.stag);
    let frames = [
        raw::write(file, 0, &[1; 8], true),
        persistent(&responder, 1, 0),
        raw::write(dram, 0, &[2; 8], true),
        raw::read(2, dram, 0, 8),
    ];
    responder.deliver(ctx, &frames.concat());
    assert!(
        responder.pages.syncs.is_empty(),
        "not before the WRITE is placed"
    );
    responder.page(0);
    assert_eq!(responder.pages.syncs.len(), 1);
    assert_eq!(
        responder.memory.to_vec(0, 8),
        [2; 8],
        "a WRITE may overtake it"
    );
    assert_eq!(responder.sent(), []);
    responder.durable();
    let read = Sent::Response(SINK, 0x1000, vec![2; 8], true);
    assert_eq!(responder.sent(), [flushed(1), read]);
}

fn flush_atomic_write(ctx: &mut Ctx) {
    let mut responder = responder(ctx, Residency::Always);
    let frames = [
        persistent(&responder, 1, 0),
        persistent(&responder, 2, PAGE),
        raw::atomic(3, responder.dram.stag, 0, Atomic::Write { value: 9 }),
    ];
    responder.deliver(ctx, &frames.concat());
    for durable in 0..2 {
        assert_eq!(responder.memory.to_vec(0, 8), [0; 8], "{durable} of 2");
        responder.durable();
    }
    assert_eq!(responder.memory.to_vec(0, 8), 9_u64.to_le_bytes());
    assert_eq!(responder.sent(), [flushed(1), flushed(2), written(3)]);
}

fn flush_atomic(ctx: &mut Ctx) {
    let mut responder = responder(ctx, Residency::Always);
    let add = Atomic::FetchAdd { add: 1, mask: 0 };
    let frames = [
        persistent(&responder, 1, 0),
        raw::atomic(2, responder.dram.stag, 0, add),
        raw::write(responder.dram.stag, 8, &[1; 8], true),
    ];
    responder.deliver(ctx, &frames.concat());
    assert_eq!(responder.memory.to_vec(0, 16), [0; 16]);
    responder.durable();
    assert_eq!(responder.sent(), [flushed(1), written(2)]);
    assert_eq!(responder.memory.to_vec(8, 8), [1; 8]);
}

fn verify(ctx: &mut Ctx) {
    let mut responder = responder(ctx, Residency::Never);
    let data = [7; 100];
    let frames = [
        raw::write(responder.file.stag, PAGE - 50, &data, true),
        raw::verify(1, responder.file.remote(PAGE - 50), 100),
    ];
    responder.deliver(ctx, &frames.concat());
    for page in [1, 0, 1, 0] {
        assert_eq!(responder.sent(), []);
        responder.page(page);
    }
    let body = [ATOMIC_ID.to_be_bytes(), crc32c::crc32c(&data).to_be_bytes()].concat();
    assert_eq!(
        responder.sent(),
        [Sent::Private(1, Opcode::VerifyResponse, body)]
    );
}

fn unasked(ctx: &mut Ctx) {
    for frame in 0..3 {
        // We would speak it, the peer has not said so.
        let config = Config {
            private_profile: true,
            hello: false,
            ..ctx.config()
        };
        let mut responder = ctx.responder_with(Residency::Always, config);
        let bytes = match frame {
            0 => persistent(&responder, 1, 0),
            1 => raw::verify(1, responder.file.remote(0), 1),
            _ => raw::atomic(1, responder.dram.stag, 0, Atomic::Write { value: 9 }),
        };
        responder.deliver(ctx, &bytes);
        let sent = responder.sent();
        assert!(
            matches!(sent[..], [Sent::Terminate(OperationUnexpectedOpcode, _)]),
            "{sent:?}"
        );
    }
}

fn window(ctx: &mut Ctx) {
    let mut responder = responder(ctx, Residency::Always);
    let rights = Rights::REMOTE_WRITE | Rights::WINDOW_BIND;
    let spec = RegionSpec::pages(OURS, rights, BackingId(5), 0, PAGE);
    let region = responder.table.register(spec).unwrap().stag;
    let window = responder.table.allocate_window(OURS).unwrap();
    let bind = WindowBind {
        window,
        key: 1,
        region,
        to: TaggedOffset(8),
        len: 8,
        rights: Rights::REMOTE_WRITE,
    };
    let request = WorkRequest::new(WrId(1), Operation::BindWindow(bind));
    responder.connection.post_send(request).unwrap();
    assert_eq!(responder.sent(), []);
    assert!(responder.completions()[0].status.is_success());
    responder.deliver(ctx, &raw::write(window.stag(1), 8, &[1; 8], true));
    assert_eq!(responder.sent(), []);
    assert!(responder.table.deregister(region));
    responder.deliver(ctx, &raw::write(window.stag(1), 8, &[2; 8], true));
    assert!(matches!(responder.sent()[..], [Sent::Terminate(..)]));
    assert_eq!(responder.pages.content(BackingId(5), 8, 8), [1; 8]);
    let _ = ProtectionDomain(0);
}
