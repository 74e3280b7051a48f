//! Recorded streams of Linux `siw`: we read in them what an independent program read, however they are cut.

use std::collections::BTreeMap;

use crate::common::pcap::{Streams, load, names};
use crate::common::{self, completions, table};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use softrdma::wire::ddp::Segment;
use softrdma::wire::fpdu::pad;
use softrdma::wire::rdmap::{Opcode, ReadRequest};
use softrdma::wire::reader::{Item, StreamReader};
use softrdma::wire::start::{NextStart, StartFrame, StartKind};
use softrdma::wire::terminate::Terminate;
use softrdma::{
    Buffer, Completion, Config, Connection, Event, NoPages, ProtectionDomain, RecvBuffer,
    RegionSpec, Rights, Stag, TaggedOffset, Time, WrId,
};

/// What a line of a reading says, in our own words.
fn describe(item: Item<'_>) -> String {
    match item {
        Item::Start(frame) => describe_start(&frame),
        Item::BadStart(_) => "no MPA start frame".to_owned(),
        Item::BadCrc => "BAD CRC".to_owned(),
        Item::Fpdu(ulpdu, segment) => {
            let head = format!("len={} pad={} ", ulpdu.len(), pad(ulpdu.len()));
            let body = segment.map_or_else(
                |_| "unreadable".to_owned(),
                |segment| describe_segment(&segment),
            );
            head + &body
        }
    }
}

fn describe_start(frame: &StartFrame<'_>) -> String {
    let bit = u8::from;
    let kind = if frame.kind == StartKind::Request {
        "Request"
    } else {
        "Reply"
    };
    let mut text = format!(
        "MPA {kind} rev={} M={} C={} R={} S={} pd_len={}",
        frame.revision,
        bit(frame.markers),
        bit(frame.crc),
        bit(frame.rejected),
        bit(frame.enhanced.is_some()),
        frame.private_data.len() + if frame.enhanced.is_some() { 4 } else { 0 },
    );
    if let Some(block) = frame.enhanced {
        let kinds = block.peer_to_peer.unwrap_or_default();
        text += &format!(
            " enhanced: IRD={} ORD={} A(p2p)={} B(0-len Send)={} C(0-len Write)={} D(0-len Read)={}",
            block.ird,
            block.ord,
            bit(block.peer_to_peer.is_some()),
            bit(kinds.send),
            bit(kinds.write),
            bit(kinds.read),
        );
    }
    if !frame.private_data.is_empty() {
        text += " private=";
        text.extend(frame.private_data.iter().map(|byte| format!("{byte:02x}")));
    }
    text
}

fn describe_segment(segment: &Segment<'_>) -> String {
    match segment {
        Segment::Tagged(s) => {
            let name = if s.opcode == Opcode::Write {
                "Write"
            } else {
                "ReadResponse"
            };
            let (last, to, len) = (u8::from(s.last), s.to.0, s.payload.len());
            format!("{name} L={last} STag={} TO={to:#x} payload={len}", s.stag)
        }
        Segment::Untagged(s) => {
            let (name, queue) = match s.opcode {
                Opcode::ReadRequest => ("ReadRequest", 1),
                Opcode::Send => ("Send", 0),
                Opcode::SendInvalidate => ("SendInvalidate", 0),
                Opcode::SendSolicited => ("SendSE", 0),
                Opcode::SendSolicitedInvalidate => ("SendSEInvalidate", 0),
                Opcode::Terminate => ("Terminate", 2),
                Opcode::ImmediateData => ("ImmediateData", 0),
                Opcode::ImmediateDataSolicited => ("ImmediateDataSE", 0),
                Opcode::AtomicRequest => ("AtomicRequest", 1),
                Opcode::AtomicResponse => ("AtomicResponse", 3),
                Opcode::FlushRequest
                | Opcode::FlushResponse
                | Opcode::VerifyRequest
                | Opcode::VerifyResponse => unreachable!("not of the standard"),
                Opcode::Write | Opcode::ReadResponse => unreachable!("tagged"),
            };
            let head = format!(
                "{name} L={} QN={queue} MSN={} MO={}",
                u8::from(s.last),
                s.msn.0,
                s.offset
            );
            match s.opcode {
                Opcode::Terminate => head,
                Opcode::ReadRequest => {
                    let Some(r) = ReadRequest::parse(s.payload) else {
                        return head;
                    };
                    let (sink, source) = (r.sink, r.source);
                    format!(
                        "{head} sink={}@{} size={} source={}@{}",
                        sink.stag, sink.to, r.size, source.stag, source.to
                    )
                }
                _ if s.opcode.invalidates() => {
                    format!(
                        "{head} invalidate={} payload={}",
                        s.invalidate,
                        s.payload.len()
                    )
                }
                _ => format!("{head} payload={}", s.payload.len()),
            }
        }
    }
}

/// The lines of a reading, per connection and direction, without what only the other program can know or we leave out.
fn readings(text: &str) -> BTreeMap<(usize, bool), Vec<String>> {
    let mut lines: BTreeMap<_, Vec<String>> = BTreeMap::new();
    let lines_of_frames = text.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = words.get(2)?.strip_prefix('#')?.parse::<usize>().ok()?;
        let from_client = match *words.get(3)? {
            "C>S" => true,
            "S>C" => false,
            _ => return None,
        };
        Some(((number, from_client), words[4..].to_vec()))
    });
    for (key, words) in lines_of_frames {
        if words[0] == "TCP" {
            continue;
        }
        let bad_crc = words.iter().any(|word| word.starts_with("crc=BAD"));
        let not_ours = |word: &str| {
            ["DV=", "SHORT", "QN=5"]
                .iter()
                .any(|prefix| word.starts_with(prefix))
        };
        let line = if bad_crc {
            "BAD CRC".to_owned()
        } else if words[0] == "no" {
            "no MPA start frame".to_owned()
        } else if words.iter().any(|word| not_ours(word)) {
            format!("{} {} unreadable", words[0], words[1])
        } else {
            let ends = ["data=", "control=", "["];
            let kept = words
                .iter()
                .take_while(|word| !ends.iter().any(|end| word.starts_with(end)));
            let kept = kept.filter(|word| {
                !["crc=", "reserved="]
                    .iter()
                    .any(|skip| word.starts_with(skip))
            });
            kept.copied().collect::<Vec<_>>().join(" ")
        };
        lines.entry(key).or_default().push(line);
    }
    lines
}

/// Both sides' wishes decide, so the start frames are looked at first.
fn uses_crc(streams: &Streams) -> bool {
    let asks = |bytes: &[u8]| bytes.get(16).is_some_and(|flags| flags & 0x40 != 0);
    // The Reply of `siw` repeats the wish or turns it down.
    asks(&streams.server)
}

fn read(
    bytes: &[u8],
    kind: StartKind,
    crc: bool,
    cuts: impl IntoIterator<Item = usize>,
) -> Vec<String> {
    let mut reader = StreamReader::new(kind, crc);
    let mut seen = Vec::new();
    let mut from = 0;
    for cut in cuts.into_iter().chain([bytes.len()]) {
        reader.feed(&bytes[from..cut], |item| seen.push(describe(item)));
        from = cut;
    }
    seen
}

/// Calls `check` with name, connection number, direction, bytes, use of CRCs, and the reading.
fn for_each_stream(mut check: impl FnMut(&str, usize, bool, &[u8], bool, &[String])) {
    for name in names() {
        let (connections, text) = load(&name);
        let expected = readings(&text);
        for (i, streams) in connections.iter().enumerate() {
            let crc = uses_crc(streams);
            // The other program stops reading a connection whose peer does not speak MPA.
            let given_up = |side| {
                expected
                    .get(&(i + 1, side))
                    .is_some_and(|lines| lines[0] == "no MPA start frame")
            };
            for (from_client, bytes) in [(true, &streams.client), (false, &streams.server)] {
                let lines = expected
                    .get(&(i + 1, from_client))
                    .map(Vec::as_slice)
                    .unwrap_or_default();
                if given_up(!from_client) {
                    continue;
                }
                check(&name, i + 1, from_client, bytes, crc, lines);
            }
        }
    }
}

fn kind(from_client: bool) -> StartKind {
    if from_client {
        StartKind::Request
    } else {
        StartKind::Reply
    }
}

/// Defends the wire formats: every frame of every capture reads as in the independent reading.
#[test]
fn captures_read_as_described() {
    let mut frames = 0;
    for_each_stream(|name, number, from_client, bytes, crc, expected| {
        let seen = read(bytes, kind(from_client), crc, []);
        // Behind a revision, key or length we refuse, or a wrong CRC, we read nothing.
        let stops = seen
            .iter()
            .position(|line| line == "no MPA start frame" || line == "BAD CRC");
        match stops {
            Some(at) => assert_eq!(seen[..at], expected[..at], "{name} connection {number}"),
            None => assert_eq!(seen, expected, "{name} connection {number}"),
        }
        frames += seen.len();
    });
    assert!(
        frames > 1300,
        "only {frames} frames: the captures are not complete"
    );
}

/// Where the items of a stream end, and that nothing is kept there.
fn ends(bytes: &[u8], kind: StartKind, crc: bool) -> Vec<usize> {
    let mut reader = StreamReader::new(kind, crc);
    let mut ends = Vec::new();
    for at in 0..bytes.len() {
        let mut is_end = false;
        reader.feed(&bytes[at..=at], |item| {
            is_end = matches!(item, Item::Start(_) | Item::Fpdu(..));
        });
        if is_end {
            assert_eq!(reader.unfinished(), 0);
            ends.push(at + 1);
        }
    }
    ends
}

/// Defends the deframer: byte by byte, cut in two at every place, and cut at random, the same frames come out.
#[test]
fn any_cut_reads_the_same() {
    let mut random = StdRng::seed_from_u64(11);
    for_each_stream(|name, number, from_client, bytes, crc, _| {
        let kind = kind(from_client);
        let whole = read(bytes, kind, crc, []);
        assert_eq!(
            read(bytes, kind, crc, 0..bytes.len()),
            whole,
            "{name} {number} byte by byte"
        );
        // A reader knows nothing of what lies before the FPDU that it reads, so that each is cut with its neighbours alone.
        let ends = ends(bytes, kind, crc);
        let from = |item: usize| if item == 0 { 0 } else { ends[item - 1] };
        let to = |item: usize| ends.get(item).copied().unwrap_or(bytes.len());
        for item in 0..=ends.len() {
            let neighbours = from(item.saturating_sub(1))..to(item + 1);
            let expected = &whole[item.saturating_sub(1)..whole.len().min(item + 2)];
            for cut in from(item)..to(item) {
                let mut reader = StreamReader::new(kind, crc);
                let mut seen = Vec::new();
                if neighbours.start > 0 {
                    reader.feed(&bytes[..ends[0]], |_| {});
                }
                reader.feed(&bytes[neighbours.start..cut], |item| {
                    seen.push(describe(item));
                });
                reader.feed(&bytes[cut..neighbours.end], |item| {
                    seen.push(describe(item));
                });
                assert_eq!(seen, expected, "{name} {number} cut at {cut}");
            }
        }
        for _ in 0..20 {
            let mut cuts: Vec<usize> = (0..8)
                .map(|_| random.random_range(0..=bytes.len()))
                .collect();
            cuts.sort_unstable();
            assert_eq!(
                read(bytes, kind, crc, cuts.clone()),
                whole,
                "{name} {number} cut at {cuts:?}"
            );
        }
    });
}

/// Terminates of `siw` mean what the independent reading says they mean, low end first.
#[test]
fn terminates_of_siw() {
    let mut seen = 0;
    for_each_stream(|_, _, from_client, bytes, crc, _| {
        let mut reader = StreamReader::new(kind(from_client), crc);
        reader.feed(bytes, |item| {
            let Item::Fpdu(_, Ok(Segment::Untagged(segment))) = item else {
                return;
            };
            if segment.opcode == Opcode::Terminate {
                let body = segment.payload;
                let terminate = Terminate::parse(body).expect("a whole Terminate");
                // Flags at the low end tell the layout; those without any are not asked here.
                if body[2] & 7 != 0 {
                    assert_eq!(
                        (terminate.layer, terminate.etype),
                        (body[0] & 15, body[0] >> 4)
                    );
                    assert_eq!(terminate.ecode, body[1]);
                    seen += 1;
                }
            }
        });
    });
    assert!(seen >= 15, "only {seen}");
}

/// Everything a connection made of a stream.
#[derive(Debug)]
struct Outcome {
    events: Vec<Event>,
    completions: Vec<Completion>,
    memory: Vec<Vec<u8>>,
    /// ULPDUs.
    answers: Vec<Vec<u8>>,
    terminate: Option<Vec<u8>>,
}

impl Outcome {
    /// Whether two replays of one stream came to the same. How many of its answers have left before a Terminate is a matter of
    /// time.
    fn is_as(&self, other: &Self) -> bool {
        let (ours, theirs) = (&self.answers, &other.answers);
        let answers_agree = match self.terminate {
            Some(_) => ours.starts_with(theirs) || theirs.starts_with(ours),
            None => ours == theirs,
        };
        answers_agree
            && self.terminate == other.terminate
            && self.events == other.events
            && self.completions == other.completions
            && self.memory == other.memory
    }
}

/// Lets a responder with regions at the recorded STags live through what the client sent.
fn replay(bytes: &[u8], cuts: impl IntoIterator<Item = usize>) -> Outcome {
    // Which bytes of which STags does the stream touch?
    let mut regions: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    let mut start_len = 0;
    let mut touch = |stag: Stag, to: TaggedOffset, len: u64| {
        let range = regions.entry(stag.0).or_insert((to.0, to.0 + len));
        *range = (range.0.min(to.0), range.1.max(to.0 + len));
    };
    let crc = bytes[16] & 0x40 != 0;
    StreamReader::new(StartKind::Request, crc).feed(bytes, |item| match item {
        Item::Start(_) => start_len = 20 + usize::from(bytes[19]),
        Item::Fpdu(_, Ok(Segment::Tagged(segment))) => {
            touch(segment.stag, segment.to, segment.payload.len() as u64)
        }
        Item::Fpdu(_, Ok(Segment::Untagged(segment))) => {
            if let Some(read) = ReadRequest::parse(segment.payload)
                .filter(|_| segment.opcode == Opcode::ReadRequest)
            {
                touch(read.source.stag, read.source.to, u64::from(read.size));
            }
        }
        _ => {}
    });
    let table = table(3);
    let buffers: Vec<_> = regions
        .into_iter()
        .map(|(stag, (base, end))| {
            let buffer =
                Buffer::from_bytes(&common::pattern(u64::from(stag), (end - base) as usize));
            let rights = Rights::REMOTE_READ | Rights::REMOTE_WRITE;
            let mut spec = RegionSpec::memory(ProtectionDomain(0), rights, &buffer);
            spec.base = TaggedOffset(base);
            table.restore(spec, Stag(stag), None).unwrap();
            buffer
        })
        .collect();
    let config = Config {
        crc: false,
        ird_max: 128,
        ..Config::default()
    };
    let mut connection = Connection::<NoPages>::responder(config, &table, Time(0));
    for i in 0..200 {
        connection
            .post_recv(WrId(i), RecvBuffer::Vec(1 << 17))
            .unwrap();
    }
    let (start, rest) = bytes.split_at(start_len);
    connection.handle_bytes(Time(0), &mut NoPages, start);
    connection.accept(b"").unwrap();
    let mut sent = Vec::new();
    let mut from = 0;
    for cut in cuts.into_iter().chain([rest.len()]) {
        connection.handle_bytes(Time(0), &mut NoPages, &rest[from..cut]);
        connection.poll_transmit(Time(0), &mut NoPages, &mut sent, usize::MAX);
        from = cut;
    }
    let mut ulpdus = Vec::new();
    StreamReader::new(StartKind::Reply, crc).feed(&sent, |item| {
        if let Item::Fpdu(ulpdu, _) = item {
            ulpdus.push(ulpdu.to_vec());
        }
    });
    let terminate = ulpdus.pop_if(|last| last[1] & 15 == Opcode::Terminate as u8);
    Outcome {
        events: std::iter::from_fn(|| connection.poll_event()).collect(),
        completions: completions(&mut connection),
        memory: buffers
            .iter()
            .map(|buffer| buffer.to_vec(0, buffer.len()))
            .collect(),
        answers: ulpdus,
        terminate,
    }
}

/// Streams up to this long are replayed with a cut at every place, longer ones at a thousand places: each takes the time of
/// its length.
const EVERY_PLACE: usize = 30_000;

/// Defends the endpoint as a whole: WRITEs, SENDs and READs recorded from `siw` have the same effects however the
/// stream is cut, and so has what a test tool did wrong on purpose.
#[test]
fn replay_is_the_same_at_any_cut() {
    let mut replayed = 0;
    for name in names() {
        let (connections, _) = load(&name);
        for streams in connections {
            let bytes = &streams.client;
            if !matches!(
                StartFrame::parse(StartKind::Request, bytes),
                Ok(NextStart::Frame(..))
            ) {
                continue;
            }
            replayed += 1;
            let whole = replay(bytes, []);
            assert!(
                name.starts_with("probe") || !matches!(whole.events.last(), Some(Event::Closed(_))),
                "{name}: {:?}",
                whole.events
            );
            assert!(!whole.events.is_empty(), "{name} does something");
            let len = bytes.len() - 20 - usize::from(bytes[19]);
            assert!(replay(bytes, 0..len).is_as(&whole), "{name} byte by byte");
            let step = if len <= EVERY_PLACE { 1 } else { len / 1000 };
            for cut in (0..len).step_by(step) {
                assert!(replay(bytes, [cut]).is_as(&whole), "{name} cut at {cut}");
            }
        }
    }
    assert!(replayed > 90, "only {replayed} connections");
}
