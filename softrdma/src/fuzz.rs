//! Entry points for fuzzing: what a peer may say. Plain functions, which a test calls as well as a fuzzer
//! (`softrdma/fuzz`).
//!
//! What is parsed and accepted says the same when it is written again; a stream says the same in whatever pieces it comes;
//! and whatever a peer says to a connection, each request completes once, the end is told once, and no byte outside of the
//! region that it may use changes.

use crate::addr::{ProtectionDomain, RemoteAddr, Stag, TaggedOffset, Time, WrId};
use crate::config::Config;
use crate::connection::{Connection, SocketState};
use crate::event::Event;
use crate::mem::{Buffer, RegionSpec, RegionTable, Rights};
use crate::page::NoPages;
use crate::wire::atomic::{AtomicRequest, AtomicResponse};
use crate::wire::ddp::{Segment, Tagged, Untagged};
use crate::wire::fpdu;
use crate::wire::hello::Hello;
use crate::wire::profile::{FlushRequest, VerifyRequest, VerifyResponse};
use crate::wire::rdmap::ReadRequest;
use crate::wire::reader::StreamReader;
use crate::wire::start::{NextStart, StartFrame, StartKind};
use crate::wire::terminate::Terminate;
use crate::wqe::{LocalSlice, Operation, RecvBuffer, WorkRequest};

/// An entry point.
pub type Entry = fn(&[u8]);

/// All of them, by name.
pub const ENTRIES: [(&str, Entry); 6] = [
    ("start", start),
    ("stream", stream),
    ("segment", segment),
    ("terminate", terminate),
    ("private_data", private_data),
    ("session", session),
];

/// Small numbers that follow from a seed.
struct Small(u64);

impl Small {
    fn below(&mut self, end: usize) -> usize {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) % end.max(1) as u64) as usize
    }

    /// The next piece of `bytes`; short ones are likely.
    fn piece<'a>(&mut self, bytes: &mut &'a [u8]) -> &'a [u8] {
        let most = 1 << self.below(10);
        let len = (1 + self.below(most)).min(bytes.len());
        let (piece, rest) = bytes.split_at(len);
        *bytes = rest;
        piece
    }
}

/// A set-up (RFC 5044 §7.1, RFC 6581), in both roles. The first byte chooses settings and answer, the second the pieces.
pub fn start(data: &[u8]) {
    let Some((&[choice, seed], bytes)) = data.split_first_chunk::<2>() else {
        return;
    };
    for kind in [StartKind::Request, StartKind::Reply] {
        if let Ok(NextStart::Frame(frame, total)) = StartFrame::parse(kind, bytes) {
            assert!(total <= bytes.len());
            let mut again = Vec::new();
            frame.emit(&mut again);
            let Ok(NextStart::Frame(same, _)) = StartFrame::parse(kind, &again) else {
                panic!("{frame:?} is not understood any more");
            };
            assert_eq!(same, frame);
        }
    }
    let config = Config {
        hello: choice & 1 == 0,
        private_profile: choice & 2 != 0,
        crc: choice & 4 == 0,
        passive_sends_first: choice & 8 != 0,
        peer_to_peer: choice & 16 == 0,
        ..Config::default()
    };
    let table = RegionTable::new([1; 32]);
    let responder = Connection::<NoPages>::responder(config.clone(), &table, Time(0));
    let accepts = choice & 32 == 0;
    drive(responder, bytes, seed, accepts);
    let initiator = Connection::<NoPages>::initiator(config, &table, b"data", Time(0));
    drive(initiator.expect("short private data"), bytes, seed, accepts);
}

/// Feeds a connection and ends it; its events have to make sense.
fn drive(mut connection: Connection<NoPages>, mut bytes: &[u8], seed: u8, accepts: bool) {
    let mut small = Small(u64::from(seed));
    let (mut out, mut events) = (Vec::new(), Vec::new());
    while !bytes.is_empty() {
        let piece = small.piece(&mut bytes);
        connection.handle_bytes(Time(0), &mut NoPages, piece);
        while let Some(event) = connection.poll_event() {
            if let Event::ConnectRequest(_) = event {
                // Who goes on talking before the answer has ended it.
                let is_over = connection.socket_state() == SocketState::Close;
                let answered = match accepts {
                    true => connection.accept(b"yes"),
                    false => connection.reject(b"no"),
                };
                assert_eq!(answered.is_err(), is_over);
            }
            events.push(event);
        }
        connection.poll_transmit(Time(0), &mut NoPages, &mut out, 10_000);
    }
    connection.handle_eof(Time(0));
    connection.poll_transmit(Time(0), &mut NoPages, &mut out, usize::MAX);
    connection.handle_timeout(Time(u64::MAX));
    connection.abort();
    events.extend(std::iter::from_fn(|| connection.poll_event()));
    let count = |what: fn(&Event) -> bool| events.iter().filter(|event| what(event)).count();
    assert!(count(|event| matches!(event, Event::ConnectRequest(_))) <= 1);
    assert!(count(|event| matches!(event, Event::Established(_))) <= 1);
    assert_eq!(count(|event| matches!(event, Event::Closed(_))), 1);
    assert!(matches!(events.last(), Some(Event::Closed(_))));
}

/// A stream of FPDUs behind a start frame. The first byte chooses role and CRC, the second the pieces.
pub fn stream(data: &[u8]) {
    let Some((&[choice, seed], bytes)) = data.split_first_chunk::<2>() else {
        return;
    };
    let kind = match choice & 1 {
        0 => StartKind::Request,
        _ => StartKind::Reply,
    };
    let read = |small: Option<Small>| {
        let mut reader = StreamReader::new(kind, choice & 2 == 0);
        let mut items = Vec::new();
        let mut rest = bytes;
        let mut small = small;
        while !rest.is_empty() {
            let piece = match &mut small {
                Some(small) => small.piece(&mut rest),
                None => std::mem::take(&mut rest),
            };
            reader.feed(piece, |item| items.push(format!("{item:?}")));
        }
        (items, reader.unfinished())
    };
    assert_eq!(read(None), read(Some(Small(u64::from(seed)))));
}

/// A ULPDU: DDP and RDMAP headers (RFC 5041, 5040, 7306, private profile), and the bodies of what has one.
pub fn segment(data: &[u8]) {
    for profile in [false, true] {
        let Ok(segment) = Segment::parse_as(data, profile) else {
            continue;
        };
        let mut again = Vec::new();
        segment.emit(&mut again);
        assert_eq!(Segment::parse_as(&again, profile), Ok(segment));
        let (Segment::Tagged(Tagged { payload, .. }) | Segment::Untagged(Untagged { payload, .. })) =
            segment;
        bodies(payload);
        assert!(profile || Segment::parse_as(data, true) == Ok(segment));
    }
}

fn bodies(body: &[u8]) {
    fn again<T: PartialEq + std::fmt::Debug>(
        found: Option<T>,
        emit: impl Fn(&T, &mut Vec<u8>),
        parse: impl Fn(&[u8]) -> Option<T>,
    ) {
        if let Some(found) = found {
            let mut out = Vec::new();
            emit(&found, &mut out);
            assert_eq!(parse(&out), Some(found));
        }
    }
    again(
        ReadRequest::parse(body),
        ReadRequest::emit,
        ReadRequest::parse,
    );
    for profile in [false, true] {
        let parse = |body: &[u8]| AtomicRequest::parse_as(body, profile).ok();
        again(parse(body), AtomicRequest::emit, parse);
    }
    let emit = |response: &AtomicResponse, out: &mut Vec<u8>| response.emit(out);
    again(AtomicResponse::parse(body), emit, AtomicResponse::parse);
    again(
        FlushRequest::parse(body),
        FlushRequest::emit,
        FlushRequest::parse,
    );
    again(
        VerifyRequest::parse(body),
        VerifyRequest::emit,
        VerifyRequest::parse,
    );
    let emit = |response: &VerifyResponse, out: &mut Vec<u8>| response.emit(out);
    again(VerifyResponse::parse(body), emit, VerifyResponse::parse);
}

/// The body of a Terminate, and the ULPDU that it may be about.
pub fn terminate(data: &[u8]) {
    let Some(found) = Terminate::parse(data) else {
        return;
    };
    assert!(!found.to_string().is_empty());
    if let Some(code) = found.code() {
        for ulpdu in [None, Some(data)] {
            let mut out = Vec::new();
            Terminate::emit(code, ulpdu, &mut out);
            let again = Terminate::parse(&out).expect("it was written here");
            assert_eq!(again.code(), Some(code));
        }
    }
}

/// Private data: the hello in front of it, and that the program gets exactly what its peer has sent.
pub fn private_data(data: &[u8]) {
    let (hello, rest) = Hello::split(data);
    if let Some(hello) = hello {
        let mut again = Vec::new();
        hello.emit(&mut again);
        again.extend_from_slice(rest);
        assert_eq!(Hello::split(&again), (Some(hello), rest));
    }
    let table = RegionTable::new([1; 32]);
    let config = Config::default();
    let Ok(mut initiator) = Connection::<NoPages>::initiator(config.clone(), &table, data, Time(0))
    else {
        return;
    };
    let mut out = Vec::new();
    initiator.poll_transmit(Time(0), &mut NoPages, &mut out, usize::MAX);
    let mut responder = Connection::<NoPages>::responder(config, &table, Time(0));
    responder.handle_bytes(Time(0), &mut NoPages, &out);
    match responder.poll_event() {
        Some(Event::ConnectRequest(request)) => assert_eq!(request.private_data, data),
        other => panic!("{other:?}"),
    }
}

/// The region that the peer of [`session`] may use, and the memory around it.
const REGION: std::ops::Range<usize> = 1024..3072;
const MEMORY_BYTES: usize = 4096;
/// Its STag.
const STAG: Stag = Stag(0x100);

/// A session: ULPDUs, each behind its length in a byte, well framed, to a connection with a region, receives, and requests of
/// its own under way. The first byte chooses the settings.
pub fn session(data: &[u8]) {
    let Some((choice, mut rest)) = data.split_first() else {
        return;
    };
    let table = RegionTable::new([1; 32]);
    let memory = Buffer::zeroed(MEMORY_BYTES);
    let spec = RegionSpec {
        offset: REGION.start as u64,
        len: REGION.len() as u64,
        ..RegionSpec::memory(
            ProtectionDomain(0),
            Rights::all() - Rights::FLUSH_PERSISTENT,
            &memory,
        )
    };
    table.restore(spec, STAG, None).expect("an empty table");
    let config = Config {
        private_profile: choice & 1 != 0,
        ird_max: 3,
        ..Config::default()
    };
    let mut connection = established(&config, &table);
    let sink = Buffer::zeroed(64);
    let remote = RemoteAddr {
        stag: Stag(7),
        to: TaggedOffset(0),
    };
    let own = [
        Operation::Read {
            sink: LocalSlice::new(&sink, 16, 32),
            remote,
        },
        Operation::fetch_add(remote, 1),
    ];
    for (id, op) in (10..).zip(own) {
        let posted = connection.post_send(WorkRequest::new(WrId(id), op));
        posted.expect("the queue is empty");
        let posted = connection.post_recv(WrId(id - 10), RecvBuffer::Vec(100));
        posted.expect("the queue is empty");
    }
    let (mut framed, mut out) = (Vec::new(), Vec::new());
    while let Some((&len, behind)) = rest.split_first() {
        let (ulpdu, behind) = behind.split_at(usize::from(len).min(behind.len()));
        rest = behind;
        framed.clear();
        let at = fpdu::open(&mut framed);
        framed.extend_from_slice(ulpdu);
        fpdu::seal(&mut framed, at, true);
        connection.handle_bytes(Time(0), &mut NoPages, &framed);
        out.clear();
        connection.poll_transmit(Time(0), &mut NoPages, &mut out, 10_000);
    }
    connection.handle_eof(Time(0));
    connection.poll_transmit(Time(0), &mut NoPages, &mut out, usize::MAX);
    connection.abort();
    let mut ended: Vec<u64> = std::iter::from_fn(|| connection.poll_completion())
        .map(|completion| completion.wr_id.0)
        .collect();
    ended.sort_unstable();
    assert_eq!(ended, [0, 1, 10, 11], "each request completes exactly once");
    let events = std::iter::from_fn(|| connection.poll_event());
    let closed = events.filter(|event| matches!(event, Event::Closed(_)));
    assert_eq!(closed.count(), 1);
    let outside = [
        memory.to_vec(0, REGION.start),
        memory.to_vec(REGION.end, MEMORY_BYTES - REGION.end),
        sink.to_vec(0, 16),
        sink.to_vec(48, 16),
    ];
    assert!(outside.iter().flatten().all(|&byte| byte == 0));
}

/// A responder whose peer has set the connection up as it should.
fn established(config: &Config, table: &std::sync::Arc<RegionTable>) -> Connection<NoPages> {
    let now = Time(0);
    let initiator = Connection::<NoPages>::initiator(config.clone(), table, b"", now);
    let mut peer = initiator.expect("no private data");
    let mut connection = Connection::responder(config.clone(), table, now);
    let mut bytes = Vec::new();
    peer.poll_transmit(now, &mut NoPages, &mut bytes, usize::MAX);
    connection.handle_bytes(now, &mut NoPages, &bytes);
    connection.accept(b"").expect("the request is whole");
    bytes.clear();
    connection.poll_transmit(now, &mut NoPages, &mut bytes, usize::MAX);
    peer.handle_bytes(now, &mut NoPages, &bytes);
    bytes.clear();
    peer.poll_transmit(now, &mut NoPages, &mut bytes, usize::MAX);
    connection.handle_bytes(now, &mut NoPages, &bytes);
    let events: Vec<Event> = std::iter::from_fn(|| connection.poll_event()).collect();
    assert!(matches!(events.last(), Some(Event::Established(_))));
    connection
}

/// Something like one of `corpus`, for drivers without a fuzzer: bytes of it changed, put in, taken out, or taken from
/// others. The same seed gives the same.
#[must_use]
pub fn mutated(corpus: &[Vec<u8>], seed: u64) -> Vec<u8> {
    let mut small = Small(seed);
    let mut bytes = match corpus.len() {
        0 => Vec::new(),
        len => corpus[small.below(len)].clone(),
    };
    for _ in 0..1 + small.below(4) {
        let at = small.below(bytes.len() + 1);
        let len = 1 + small.below(8);
        let end = (at + len).min(bytes.len());
        match small.below(6) {
            0 => bytes[at..end].fill_with(|| small.below(256) as u8),
            1 => bytes[at..end].fill([0, 0xff, 0x7f, 0x80][small.below(4)]),
            2 => bytes[at..end]
                .iter_mut()
                .for_each(|byte| *byte ^= 1 << small.below(8)),
            3 => {
                let new: Vec<u8> = (0..len).map(|_| small.below(256) as u8).collect();
                bytes.splice(at..at, new);
            }
            4 => drop(bytes.drain(at..end)),
            _ if !corpus.is_empty() => {
                let other = &corpus[small.below(corpus.len())];
                let from = small.below(other.len() + 1);
                let piece = &other[from..(from + 16 * len).min(other.len())];
                let end = (at + piece.len()).min(bytes.len());
                bytes.splice(at..end, piece.iter().copied());
            }
            _ => {}
        }
    }
    bytes
}
