//! A peer made of bytes, for messages that no honest endpoint sends.

use std::sync::Arc;

use softrdma::wire::atomic::{AtomicRequest, AtomicResponse};
use softrdma::wire::ddp::{Segment, Tagged, Untagged};
use softrdma::wire::fpdu;
use softrdma::wire::hello::Hello;
use softrdma::wire::profile::{FlushRequest, PROFILE_VERSION, VerifyRequest};
use softrdma::wire::rdmap::{Opcode, ReadRequest};
use softrdma::wire::reader::{Item, StreamReader};
use softrdma::wire::start::{Enhanced, StartFrame, StartKind};
use softrdma::wire::terminate::{Terminate, TerminateCode};
use softrdma::{
    Atomic, Config, Connection, Event, Msn, PageStore, Placement, RegionTable, RemoteAddr,
    Selectivity, Stag, TaggedOffset, Time,
};

/// A Request without hello and without the peer-to-peer model.
pub fn request(crc: bool) -> Vec<u8> {
    request_with(crc, b"")
}

/// The same with private data.
pub fn request_with(crc: bool, private_data: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    StartFrame {
        kind: StartKind::Request,
        markers: false,
        crc,
        rejected: false,
        revision: 2,
        enhanced: Some(Enhanced {
            ird: 8,
            ord: 8,
            peer_to_peer: None,
        }),
        private_data,
    }
    .emit(&mut bytes);
    bytes
}

/// A hello of an endpoint that speaks the private profile, with FPDUs as small as a foreign one's.
pub fn hello() -> Vec<u8> {
    let mut bytes = Vec::new();
    Hello {
        ulpdu_max: 1442,
        profile: PROFILE_VERSION,
    }
    .emit(&mut bytes);
    bytes
}

/// Wraps a ULPDU.
pub fn fpdu(ulpdu: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let at = fpdu::open(&mut out);
    out.extend_from_slice(ulpdu);
    fpdu::seal(&mut out, at, true);
    out
}

pub fn ulpdu(segment: Segment<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    segment.emit(&mut out);
    out
}

pub fn write(stag: Stag, to: u64, payload: &[u8], last: bool) -> Vec<u8> {
    fpdu(&ulpdu(Segment::Tagged(Tagged {
        opcode: Opcode::Write,
        last,
        stag,
        to: TaggedOffset(to),
        payload,
    })))
}

pub fn response(stag: Stag, to: u64, payload: &[u8], last: bool) -> Vec<u8> {
    fpdu(&ulpdu(Segment::Tagged(Tagged {
        opcode: Opcode::ReadResponse,
        last,
        stag,
        to: TaggedOffset(to),
        payload,
    })))
}

pub fn untagged(
    opcode: Opcode,
    msn: u32,
    offset: u32,
    invalidate: Stag,
    payload: &[u8],
    last: bool,
) -> Vec<u8> {
    fpdu(&ulpdu(Segment::Untagged(Untagged {
        opcode,
        last,
        invalidate,
        msn: Msn(msn),
        offset,
        payload,
    })))
}

pub fn send(msn: u32, offset: u32, payload: &[u8], last: bool) -> Vec<u8> {
    untagged(Opcode::Send, msn, offset, Stag(0), payload, last)
}

pub fn read_body(stag: Stag, to: u64, size: u32) -> Vec<u8> {
    let sink = RemoteAddr {
        stag: Stag(0x5151_5100),
        to: TaggedOffset(0x1000),
    };
    let mut body = Vec::new();
    ReadRequest {
        sink,
        size,
        source: RemoteAddr {
            stag,
            to: TaggedOffset(to),
        },
    }
    .emit(&mut body);
    body
}

pub fn read(msn: u32, stag: Stag, to: u64, size: u32) -> Vec<u8> {
    untagged(
        Opcode::ReadRequest,
        msn,
        0,
        Stag(0),
        &read_body(stag, to, size),
        true,
    )
}

pub fn atomic_body(stag: Stag, to: u64, op: Atomic) -> Vec<u8> {
    let mut body = Vec::new();
    AtomicRequest {
        request: ATOMIC_ID,
        target: RemoteAddr {
            stag,
            to: TaggedOffset(to),
        },
        op,
    }
    .emit(&mut body);
    body
}

/// The number that our atomic operations bear, all of them: a responder repeats it, whatever it is.
pub const ATOMIC_ID: u32 = 0x7070_7070;

pub fn atomic(msn: u32, stag: Stag, to: u64, op: Atomic) -> Vec<u8> {
    let body = atomic_body(stag, to, op);
    untagged(Opcode::AtomicRequest, msn, 0, Stag(0), &body, true)
}

pub fn atomic_response(msn: u32, request: u32, original: u64) -> Vec<u8> {
    let mut body = Vec::new();
    AtomicResponse { request, original }.emit(&mut body);
    untagged(Opcode::AtomicResponse, msn, 0, Stag(0), &body, true)
}

pub fn immediate(msn: u32, bytes: [u8; 8]) -> Vec<u8> {
    untagged(Opcode::ImmediateData, msn, 0, Stag(0), &bytes, true)
}

pub fn flush(
    msn: u32,
    target: RemoteAddr,
    selectivity: Selectivity,
    placement: Placement,
) -> Vec<u8> {
    let mut body = Vec::new();
    FlushRequest {
        request: ATOMIC_ID,
        target,
        selectivity,
        placement,
    }
    .emit(&mut body);
    untagged(Opcode::FlushRequest, msn, 0, Stag(0), &body, true)
}

pub fn verify(msn: u32, source: RemoteAddr, len: u32) -> Vec<u8> {
    let mut body = Vec::new();
    VerifyRequest {
        request: ATOMIC_ID,
        source,
        len,
    }
    .emit(&mut body);
    untagged(Opcode::VerifyRequest, msn, 0, Stag(0), &body, true)
}

/// A responder that has accepted a Request; its Reply is dropped. With the private profile in its configuration the
/// Request announces it, too.
pub fn responder<S: PageStore>(
    config: Config,
    table: &Arc<RegionTable>,
    pages: &mut S,
) -> Connection<S> {
    let private_data = if config.private_profile {
        hello()
    } else {
        Vec::new()
    };
    let mut connection = Connection::responder(config, table, Time(0));
    connection.handle_bytes(Time(0), pages, &request_with(true, &private_data));
    assert!(matches!(
        connection.poll_event(),
        Some(Event::ConnectRequest(_))
    ));
    connection.accept(b"").unwrap();
    assert!(matches!(
        connection.poll_event(),
        Some(Event::Established(_))
    ));
    reply(&mut connection, pages);
    connection
}

/// Takes the Reply, which is all that a responder sends at first.
pub fn reply<S: PageStore>(connection: &mut Connection<S>, pages: &mut S) {
    let mut reply = Vec::new();
    connection.poll_transmit(Time(0), pages, &mut reply, usize::MAX);
    assert_eq!(reply[..16], *b"MPA ID Rep Frame");
}

/// What a connection wants to send, frame by frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sent {
    Write(Stag, u64, Vec<u8>, bool),
    Response(Stag, u64, Vec<u8>, bool),
    Read(u32, ReadRequest),
    Send(u32, Vec<u8>, bool),
    /// Number, bytes, solicited.
    Immediate(u32, Vec<u8>, bool),
    Atomic(u32, AtomicRequest),
    AtomicResponse(u32, AtomicResponse),
    /// Messages of the private profile, by their bodies.
    Private(u32, Opcode, Vec<u8>),
    /// The code, and what is enclosed.
    Terminate(TerminateCode, Vec<u8>),
}

pub fn transmit<S: PageStore>(connection: &mut Connection<S>, pages: &mut S) -> Vec<Sent> {
    let mut bytes = Vec::new();
    connection.poll_transmit(Time(0), pages, &mut bytes, usize::MAX);
    frames(&bytes)
}

pub fn frames(bytes: &[u8]) -> Vec<Sent> {
    let mut sent = Vec::new();
    let mut reader = StreamReader::new(StartKind::Reply, true);
    // Any start frame does; the reader wants one.
    reader.feed(b"MPA ID Rep Frame\x40\x01\x00\x00", |_| {});
    reader.feed(bytes, |item| {
        let Item::Fpdu(ulpdu, _) = item else {
            panic!("a good frame, not {item:?}")
        };
        let segment = Segment::parse_as(ulpdu, true).unwrap();
        sent.push(match segment {
            Segment::Tagged(s) if s.opcode == Opcode::Write => {
                Sent::Write(s.stag, s.to.0, s.payload.to_vec(), s.last)
            }
            Segment::Tagged(s) => Sent::Response(s.stag, s.to.0, s.payload.to_vec(), s.last),
            Segment::Untagged(s) => match s.opcode {
                Opcode::ReadRequest => Sent::Read(s.msn.0, ReadRequest::parse(s.payload).unwrap()),
                Opcode::Terminate => Sent::Terminate(
                    Terminate::parse(s.payload).unwrap().code().unwrap(),
                    s.payload[4..].to_vec(),
                ),
                Opcode::AtomicRequest => {
                    Sent::Atomic(s.msn.0, AtomicRequest::parse(s.payload).unwrap())
                }
                Opcode::AtomicResponse => {
                    Sent::AtomicResponse(s.msn.0, AtomicResponse::parse(s.payload).unwrap())
                }
                Opcode::ImmediateData | Opcode::ImmediateDataSolicited => {
                    Sent::Immediate(s.msn.0, s.payload.to_vec(), s.opcode.is_solicited())
                }
                Opcode::FlushRequest
                | Opcode::FlushResponse
                | Opcode::VerifyRequest
                | Opcode::VerifyResponse => Sent::Private(s.msn.0, s.opcode, s.payload.to_vec()),
                _ => Sent::Send(s.msn.0, s.payload.to_vec(), s.last),
            },
        });
    });
    assert_eq!(reader.unfinished(), 0, "whole frames only");
    sent
}

/// The one frame sent, a Terminate.
pub fn terminate_code<S: PageStore>(
    connection: &mut Connection<S>,
    pages: &mut S,
) -> TerminateCode {
    let sent = transmit(connection, pages);
    let [Sent::Terminate(code, _)] = &sent[..] else {
        panic!("one Terminate, not {sent:?}")
    };
    *code
}
