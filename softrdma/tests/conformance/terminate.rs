//! The Terminate table: every code, sent where it belongs, with the headers that belong to it, once and as the last.

use softrdma::wire::rdmap::Opcode;
use softrdma::wire::terminate::{Enclosed, TERMINATE_TABLE, TerminateCode, TerminateCode::*};
use softrdma::{Atomic, ProtectionDomain, RegionSpec, Rights, SocketState, Stag, StreamId};

use super::harness::{Ctx, FILE, OURS, Responder, Rule};
use crate::common::Residency;
use crate::common::raw::{self, Sent};

pub const RULES: &[Rule] = &[
    ("each code where it belongs", each_code),
    ("every code has its place", coverage),
    ("a ULPDU of any length around its header", short_ulpdus),
    ("the longest ULPDU", longest_ulpdu),
];

/// READs, and what counts with them, that the responder of these rows holds.
pub const IRD: u16 = 2;

/// Codes that we never send, and why.
const NEVER: [(TerminateCode, &str); 8] = [
    (
        RdmapLocalCatastrophic,
        "we end with the error of the operation",
    ),
    (
        ProtectionUnspecified,
        "each protection error has a code of its own",
    ),
    (
        OperationCatastrophicGlobal,
        "no error of one stream ends the others",
    ),
    (
        OperationCannotInvalidate,
        "a protection error, as RFC 5040 section 7 has it",
    ),
    (DdpLocalCatastrophic, "as for RDMAP"),
    (MpaLost, "there is nobody left to tell"),
    (
        MpaStartFrame,
        "set-up ends by closing, RFC 5044 section 7.1.2",
    ),
    (MpaLocalCatastrophic, "as for RDMAP"),
];

/// Sent by an initiator during set-up; the rules of requesters have them.
const BY_INITIATORS: [TerminateCode; 2] = [MpaInsufficientIrd, MpaNoCommonRtr];

/// Frames of which the last one is wrong, and the code for it.
pub type Row = (&'static str, Vec<Vec<u8>>, TerminateCode);

/// STags of one responder that the rows name.
pub struct Stags {
    pub file: Stag,
    pub mute: Stag,
    pub foreign: Stag,
    pub elsewhere: Stag,
}

pub fn register(responder: &Responder) -> Stags {
    let spec = |domain, rights| RegionSpec::pages(domain, rights, FILE, 0, 10_000);
    let register = |spec| responder.table.register(spec).unwrap().stag;
    let elsewhere = RegionSpec {
        stream: Some(StreamId(u64::MAX)),
        ..spec(OURS, Rights::all())
    };
    Stags {
        file: responder.file.stag,
        mute: register(spec(OURS, Rights::empty())),
        foreign: register(spec(ProtectionDomain(99), Rights::all())),
        elsewhere: register(elsewhere),
    }
}

pub fn rows(stags: &Stags) -> Vec<Row> {
    let Stags {
        file,
        mute,
        foreign,
        elsewhere,
    } = *stags;
    let unknown = Stag(file.0 ^ 1);
    let send = |msn, offset, len: usize| raw::send(msn, offset, &vec![1; len], true);
    let add = Atomic::FetchAdd { add: 1, mask: 0 };
    let ulpdu = |bytes: &[u8], len| {
        let mut ulpdu = bytes.to_vec();
        ulpdu.resize(len, 0);
        raw::fpdu(&ulpdu)
    };
    let invalidate = |stag| raw::untagged(Opcode::SendInvalidate, 1, 0, stag, b"x", true);
    let mut bad_crc = send(1, 0, 10);
    *bad_crc.last_mut().unwrap() ^= 0x10;
    let over = 64 * 4096;
    vec![
        ("CRC", vec![bad_crc], MpaCrc),
        (
            "ULPDU shorter than its header",
            vec![ulpdu(&[0x41, 0x43], 17)],
            MpaFraming,
        ),
        (
            "tagged ULPDU shorter than its header",
            vec![ulpdu(&[0xc1, 0x40], 13)],
            MpaFraming,
        ),
        (
            "DDP version, tagged",
            vec![ulpdu(&[0xc2, 0x40], 20)],
            TaggedVersion,
        ),
        (
            "DDP version, untagged",
            vec![ulpdu(&[0x40, 0x43], 20)],
            UntaggedVersion,
        ),
        (
            "RDMAP version",
            vec![ulpdu(&[0x41, 0x83], 20)],
            OperationVersion,
        ),
        (
            "opcode C",
            vec![ulpdu(&[0x41, 0x4c], 42)],
            OperationUnexpectedOpcode,
        ),
        (
            "opcode F",
            vec![ulpdu(&[0x41, 0x4f], 26)],
            OperationUnexpectedOpcode,
        ),
        (
            "a Send that is tagged",
            vec![ulpdu(&[0xc1, 0x43], 20)],
            OperationUnexpectedOpcode,
        ),
        (
            "queue",
            vec![ulpdu(&[0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 1], 20)],
            UntaggedQueue,
        ),
        (
            "queue out of range",
            vec![ulpdu(&[0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 4], 20)],
            UntaggedQueue,
        ),
        ("MSN ahead", vec![send(2, 0, 1)], UntaggedMsnRange),
        (
            "MSN again",
            vec![send(1, 0, 1), send(1, 0, 1)],
            UntaggedMsnRange,
        ),
        (
            "no buffer",
            vec![send(1, 0, 1), send(2, 0, 1), send(3, 0, 1)],
            UntaggedNoBuffer,
        ),
        (
            "MO ahead",
            vec![raw::send(1, 0, &[1; 4], false), send(1, 5, 1)],
            UntaggedOffset,
        ),
        ("too long", vec![send(1, 0, 101)], UntaggedTooLong),
        (
            "too long in parts",
            vec![raw::send(1, 0, &[1; 60], false), send(1, 60, 41)],
            UntaggedTooLong,
        ),
        (
            "WRITE, STag",
            vec![raw::write(unknown, 0, &[1], true)],
            TaggedInvalidStag,
        ),
        (
            "WRITE, right",
            vec![raw::write(mute, 0, &[1], true)],
            TaggedInvalidStag,
        ),
        (
            "WRITE, bounds",
            vec![raw::write(file, over, &[1], true)],
            TaggedBounds,
        ),
        (
            "WRITE, wrap",
            vec![raw::write(file, u64::MAX, &[1, 2], true)],
            TaggedWrap,
        ),
        (
            "WRITE, domain",
            vec![raw::write(foreign, 0, &[1], true)],
            TaggedNotOfStream,
        ),
        (
            "WRITE, stream",
            vec![raw::write(elsewhere, 0, &[1], true)],
            TaggedNotOfStream,
        ),
        (
            "READ, STag",
            vec![raw::read(1, unknown, 0, 1)],
            ProtectionInvalidStag,
        ),
        (
            "READ, right",
            vec![raw::read(1, mute, 0, 1)],
            ProtectionRights,
        ),
        (
            "READ, bounds",
            vec![raw::read(1, file, over - 1, 2)],
            ProtectionBounds,
        ),
        (
            "READ, wrap",
            vec![raw::read(1, file, u64::MAX, 2)],
            ProtectionWrap,
        ),
        (
            "READ, stream",
            vec![raw::read(1, elsewhere, 0, 1)],
            ProtectionNotOfStream,
        ),
        (
            "READ cut short",
            vec![raw::untagged(
                Opcode::ReadRequest,
                1,
                0,
                Stag(0),
                &[0; 27],
                true,
            )],
            OperationUnspecified,
        ),
        (
            "atomic, right",
            vec![raw::atomic(1, mute, 0, add)],
            ProtectionRights,
        ),
        (
            "atomic, alignment",
            vec![raw::atomic(1, file, 4, add)],
            OperationCatastrophicStream,
        ),
        (
            "atomic, queue",
            vec![ulpdu(&[0x41, 0x4a], 70)],
            UntaggedQueue,
        ),
        (
            "immediate data of nine bytes",
            vec![raw::untagged(
                Opcode::ImmediateData,
                1,
                0,
                Stag(0),
                &[0; 9],
                true,
            )],
            UntaggedTooLong,
        ),
        (
            "immediate data behind a first segment without bytes",
            vec![
                raw::untagged(Opcode::Send, 1, 0, Stag(0), &[], false),
                raw::immediate(1, [0; 8]),
            ],
            UntaggedOffset,
        ),
        (
            "invalidate what others use",
            vec![invalidate(file)],
            ProtectionCannotInvalidate,
        ),
        (
            "invalidate nothing",
            vec![invalidate(unknown)],
            ProtectionInvalidStag,
        ),
        (
            "response nobody asked for",
            vec![raw::response(Stag(1), 0, &[1], true)],
            TaggedInvalidStag,
        ),
        (
            "atomic response nobody asked for",
            vec![raw::atomic_response(1, 1, 0)],
            UntaggedNoBuffer,
        ),
    ]
}

/// What the Terminate for this frame encloses.
pub fn enclosed(code: TerminateCode, fpdu: &[u8]) -> Vec<u8> {
    let length = usize::from(u16::from_be_bytes([fpdu[0], fpdu[1]]));
    let ulpdu = &fpdu[2..2 + length];
    let header = if ulpdu[0] & 0x80 != 0 { 14 } else { 18 };
    if code.row().enclosed == Enclosed::Nothing || ulpdu.len() < header {
        return Vec::new();
    }
    let is_read = ulpdu[1] & 0x0f == Opcode::ReadRequest as u8;
    let with_read = code.row().enclosed == Enclosed::DdpAndRead && is_read;
    let end = if with_read { header + 28 } else { header };
    [&(length as u16).to_be_bytes()[..], &ulpdu[..end]].concat()
}

fn each_code(ctx: &mut Ctx) {
    let config = || softrdma::Config {
        ird_max: IRD,
        ..Default::default()
    };
    let probe = ctx.responder(Residency::Always);
    let names: Vec<usize> = (0..rows(&register(&probe)).len()).collect();
    for row in names {
        let config = softrdma::Config {
            ird_max: config().ird_max,
            ..ctx.config()
        };
        let mut responder = ctx.responder_with(Residency::Always, config);
        let (what, frames, code) = rows(&register(&responder)).swap_remove(row);
        responder.post_recvs(2);
        responder.deliver(ctx, &frames.concat());
        // Nothing may follow a Terminate, and nothing that follows the error may count.
        responder.deliver(ctx, &raw::write(responder.dram.stag, 0, &[0xbb; 8], true));
        let expected = Sent::Terminate(code, enclosed(code, frames.last().unwrap()));
        assert_eq!(responder.sent(), [expected], "{what}");
        assert_eq!(responder.memory.to_vec(0, 8), [0; 8], "{what}");
        assert_eq!(
            responder.connection.socket_state(),
            SocketState::ShutdownWrite
        );
        assert_eq!(responder.completions().len(), 2, "{what}: each buffer once");
        assert_eq!(responder.pages.pins.get(), 0, "{what}");
    }
}

fn coverage(ctx: &mut Ctx) {
    let responder = ctx.responder(Residency::Always);
    let rows = rows(&register(&responder));
    for row in TERMINATE_TABLE {
        let sent = rows.iter().any(|(_, _, code)| *code == row.code);
        let never = NEVER.iter().any(|(code, _)| *code == row.code);
        let by_initiators = BY_INITIATORS.contains(&row.code);
        let places = [sent, never, by_initiators]
            .into_iter()
            .filter(|is| *is)
            .count();
        assert_eq!(places, 1, "{}", row.text);
    }
}

/// A WRITE of `dram` and a Send, with this many bytes of their ULPDUs.
fn ulpdus(responder: &Responder, len: usize) -> [Vec<u8>; 2] {
    let write = raw::write(responder.dram.stag, 0, &[], true);
    let send = raw::send(1, 0, &[], true);
    // The headers, without length and CRC, and then what they are about.
    [(write, 14), (send, 18)].map(|(fpdu, header)| {
        let mut ulpdu = fpdu[2..2 + header].to_vec();
        ulpdu.resize(len, 7);
        raw::fpdu(&ulpdu)
    })
}

fn short_ulpdus(ctx: &mut Ctx) {
    for len in 0..=19 {
        for (kind, header) in [14, 18].into_iter().enumerate() {
            let mut responder = ctx.responder(Residency::Always);
            responder.post_recvs(2);
            let fpdu = ulpdus(&responder, len)[kind].clone();
            responder.deliver(ctx, &fpdu);
            let payload = len.checked_sub(header);
            let what = format!("{len} bytes of {header}");
            let terminate = Sent::Terminate(MpaFraming, vec![]);
            let expected: Vec<Sent> = payload.is_none().then_some(terminate).into_iter().collect();
            assert_eq!(responder.sent(), expected, "{what}");
            let mut memory = vec![0; 8];
            if let Some(payload) = payload.filter(|_| kind == 0) {
                memory[..payload].fill(7);
            }
            assert_eq!(responder.memory.to_vec(0, 8), memory, "{what}");
            let done = responder.completions();
            let messages = done.into_iter().filter(|done| done.status.is_success());
            let messages: Vec<_> = messages.map(|done| done.message.unwrap()).collect();
            let message = payload.filter(|_| kind == 1).map(|len| vec![7; len]);
            assert!(messages.into_iter().eq(message), "{what}");
        }
    }
}

fn longest_ulpdu(ctx: &mut Ctx) {
    let len = usize::from(u16::MAX);
    // Over the end of the region, into a buffer that is too small, and where it fits.
    for (kind, expected) in [
        (0, Some(TaggedBounds)),
        (1, Some(UntaggedTooLong)),
        (2, None),
    ] {
        let mut responder = ctx.responder(Residency::Always);
        responder.post_recvs(2);
        let fpdu = match kind {
            2 => raw::write(responder.file.stag, 5, &vec![7; len - 14], true),
            kind => ulpdus(&responder, len)[kind].clone(),
        };
        assert_eq!(fpdu[..2], [0xff; 2]);
        responder.deliver(ctx, &fpdu[..fpdu.len() - 1]);
        assert_eq!(responder.sent(), [], "not before its CRC is there");
        responder.deliver(ctx, &fpdu[fpdu.len() - 1..]);
        let terminate = expected.map(|code| Sent::Terminate(code, enclosed(code, &fpdu)));
        assert!(responder.sent().into_iter().eq(terminate), "{kind}");
        if kind == 2 {
            let file = responder.file_bytes(4, len - 14 + 2);
            assert!(file == [&[0][..], &vec![7; len - 14], &[0]].concat());
        }
    }
}
