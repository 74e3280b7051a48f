//! Late pages and durability: what waits, what does not, and in which order things happen.

use crate::common::raw::{self, Sent, transmit};
use crate::common::{Residency, TestPage, TestPages, completions, connect, pattern, settle, table};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use softrdma::{
    BackingId, Buffer, CloseReason, Config, Connection, Event, LocalSlice, MemoryRegion, Operation,
    PAGE_BYTES, PageRange, ProtectionDomain, RecvBuffer, RegionSpec, Rights, SocketState, Source,
    Stag, Ticket, Time, WorkRequest, WrId,
};

const FILE: BackingId = BackingId(1);
const SINK: Stag = Stag(0x5151_5100);

struct Target {
    pages: TestPages,
    connection: Connection<TestPages>,
    region: MemoryRegion,
}

fn target(residency: Residency, config: Config) -> Target {
    let table = table(9);
    let mut pages = TestPages::new(residency, 1);
    pages.fill(FILE, 0, &pattern(77, 1 << 18));
    let region = table
        .register(RegionSpec::pages(
            ProtectionDomain(0),
            Rights::all(),
            FILE,
            0,
            1 << 20,
        ))
        .unwrap();
    let connection = raw::responder(config, &table, &mut pages);
    Target {
        pages,
        connection,
        region,
    }
}

impl Target {
    fn deliver(&mut self, bytes: &[u8]) {
        assert_eq!(
            self.connection
                .handle_bytes(Time(0), &mut self.pages, bytes),
            bytes.len()
        );
    }

    fn sent(&mut self) -> Vec<Sent> {
        transmit(&mut self.connection, &mut self.pages)
    }

    /// Hands in the waiting page with this number.
    fn page(&mut self, number: u64) {
        let residency = self.pages.residency;
        let at = self
            .pages
            .waiting
            .iter()
            .position(|waiting| waiting.page == number)
            .unwrap();
        let last = self.pages.waiting.len() - 1;
        self.pages.waiting.swap(at, last);
        let one = self.pages.waiting.split_off(last);
        let others = std::mem::replace(&mut self.pages.waiting, one);
        let (ticket, page): (Ticket, TestPage) = self.pages.finish_one().unwrap();
        self.pages.waiting = others;
        self.pages.residency = residency;
        self.connection
            .handle_page(&mut self.pages, ticket, Ok(page));
    }

    fn durable(&mut self) -> Vec<PageRange> {
        let (ranges, ticket) = self.pages.syncs.remove(0);
        self.connection
            .handle_durable(&mut self.pages, ticket, Ok(()));
        ranges
    }
}

/// Pages of several READs are fetched side by side; answers leave strictly in order, as the ready prefix grows.
#[test]
fn responses_follow_the_ready_prefix() {
    let mut target = target(
        Residency::Never,
        Config {
            ulpdu_foreign: 20_000,
            ..Config::default()
        },
    );
    let page = PAGE_BYTES as u64;
    for (msn, first) in [(1, 0), (2, 10), (3, 20)] {
        let requests = raw::read(msn, target.region.stag, first * page, 2 * 4096);
        target.deliver(&requests);
    }
    let mut asked: Vec<u64> = target
        .pages
        .waiting
        .iter()
        .map(|waiting| waiting.page)
        .collect();
    asked.sort_unstable();
    assert_eq!(asked, [0, 1, 10, 11, 20, 21], "all at once");
    for late in [20, 21, 1, 11] {
        target.page(late);
        assert_eq!(target.sent(), [], "page {late} is not the first");
    }
    target.page(0);
    let data = pattern(77, 1 << 18);
    let response =
        |first: usize| Sent::Response(SINK, 0x1000, data[first * 4096..][..8192].to_vec(), true);
    assert_eq!(target.sent(), [response(0)]);
    target.page(10);
    assert_eq!(target.sent(), [response(10), response(20)]);
    assert_eq!(target.pages.pins.get(), 0);
}

/// The window bounds what one peer can pin, however much it asks for (RELIABILITY I16).
#[test]
fn the_read_window_bounds_pins() {
    for residency in [Residency::Never, Residency::Always, Residency::Sometimes] {
        let config = Config {
            read_window_pages: 5,
            ird_max: 8,
            ..Config::default()
        };
        let mut target = target(residency, config);
        for msn in 1..=8 {
            let request = raw::read(msn, target.region.stag, 100, 1 << 17);
            target.deliver(&request);
        }
        let mut got = Vec::new();
        for _ in 0..10_000 {
            assert!(target.pages.pins.get() + target.pages.waiting.len() <= 5);
            got.extend(target.sent());
            if let Some((ticket, page)) = target.pages.finish_one() {
                target
                    .connection
                    .handle_page(&mut target.pages, ticket, Ok(page));
            }
        }
        let lasts = got
            .iter()
            .filter(|sent| matches!(sent, Sent::Response(_, _, _, true)))
            .count();
        assert_eq!(lasts, 8);
        let data = pattern(77, 1 << 18);
        let bytes: Vec<u8> = got
            .into_iter()
            .flat_map(|sent| match sent {
                Sent::Response(_, _, bytes, _) => bytes,
                other => panic!("{other:?}"),
            })
            .collect();
        assert!(
            bytes
                .chunks(1 << 17)
                .all(|chunk| chunk == &data[100..][..1 << 17])
        );
        assert_eq!(
            (target.pages.pins.get(), target.pages.pins_max <= 5),
            (0, true)
        );
    }
}

/// A READ behind a WRITE that waits for its pages starts only when they are placed (protocol note §11), and sees them.
#[test]
fn a_read_waits_for_the_write_before_it() {
    let mut target = target(Residency::Never, Config::default());
    let bytes = [
        raw::write(target.region.stag, 100, &[0xab; 10], true),
        raw::read(1, target.region.stag, 98, 14),
        raw::write(target.region.stag, 5 * 4096, &[1; 3], true),
    ]
    .concat();
    target.deliver(&bytes);
    assert_eq!(
        target.pages.waiting.len(),
        1,
        "only the page of the WRITE is asked for"
    );
    assert_eq!(target.pages.waiting[0].intent, softrdma::Intent::Write);
    target.page(0);
    // The READ waits in its queue, not in the stream: the WRITE behind it is under way.
    assert_eq!(target.pages.waiting.len(), 2);
    target.page(0);
    let data = pattern(77, 1 << 18);
    let expected = [&data[98..100], &[0xab; 10], &data[110..112]].concat();
    assert_eq!(
        target.sent(),
        [Sent::Response(SINK, 0x1000, expected, true)]
    );
    target.page(5);
    assert_eq!(target.pages.content(FILE, 5 * 4096, 3), [1; 3]);
    assert_eq!(target.pages.pins.get(), 0);
}

/// A WRITE is placed when all its pages are given back and others know of them: only then what is behind it happens, and
/// only then its bytes are asked to become durable.
#[test]
fn what_is_behind_a_write_waits_until_others_know() {
    for residency in [Residency::Never, Residency::Always] {
        let mut target = target(residency, Config::default());
        target.pages.tells = true;
        let bytes = [
            raw::write(target.region.sync_stag.unwrap(), 4000, &[0xab; 200], true),
            raw::read(1, target.region.stag, 4000, 8),
        ]
        .concat();
        target.deliver(&bytes);
        if residency == Residency::Never {
            target.page(1);
            target.page(0);
        }
        let data = target.pages.content(FILE, 4000, 200);
        assert_eq!(data, [0xab; 200], "others see it");
        let [first, second] = target.pages.puts[..] else {
            panic!("two pages are put: {:?}", target.pages.puts)
        };
        for ticket in [second, second, Ticket(77)] {
            target.connection.handle_put(&mut target.pages, ticket);
            assert!(target.pages.syncs.is_empty());
        }
        target.connection.handle_put(&mut target.pages, first);
        assert_eq!(target.sent(), []);
        target.durable();
        if residency == Residency::Never {
            target.page(0);
        }
        let expected = Sent::Response(SINK, 0x1000, vec![0xab; 8], true);
        assert_eq!(target.sent(), [expected]);
    }
}

/// Whole pages are overwritten without being read, parts are not.
#[test]
fn whole_pages_are_not_read() {
    let mut target = target(Residency::Always, Config::default());
    let data = pattern(5, 3 * 4096);
    let stag = target.region.stag;
    target.deliver(&raw::write(stag, 4096, &data, true));
    assert_eq!((target.pages.gets, target.pages.overwrites), (3, 3));
    target.deliver(&raw::write(stag, 4095, &data, true));
    assert_eq!((target.pages.gets, target.pages.overwrites), (7, 5));
    assert_eq!(target.pages.content(FILE, 4095, data.len()), data);
    assert_eq!(
        target.pages.content(FILE, 4094, 1),
        pattern(77, 4095)[4094..]
    );
}

/// While parked, the driver is told to stop, and what it delivers all the same is bounded.
#[test]
fn a_parked_connection_stops_the_driver() {
    let config = Config {
        inbound_buffer_max: 1 << 17,
        ..Config::default()
    };
    let mut target = target(Residency::Never, config);
    let write = raw::write(target.region.stag, 0, &[1; 30_000], true);
    let mut taken = 0;
    assert!(target.connection.wants_input());
    let mut offered = 0;
    while target.connection.wants_input() {
        taken += target
            .connection
            .handle_bytes(Time(0), &mut target.pages, &write);
        offered += write.len();
    }
    assert!(
        taken < (1 << 17) && taken == offered,
        "below the bound everything is taken"
    );
    let mut last = 1;
    while last > 0 {
        last = target
            .connection
            .handle_bytes(Time(0), &mut target.pages, &write);
        taken += last;
    }
    assert_eq!(taken, 1 << 17, "at the bound nothing more");
    while let Some((ticket, page)) = target.pages.finish_one() {
        target
            .connection
            .handle_page(&mut target.pages, ticket, Ok(page));
    }
    assert!(target.connection.wants_input());
    assert_eq!(target.pages.content(FILE, 0, 30_000), [1; 30_000]);
}

/// Defends DESIGN §3: nothing behind a WRITE through a sync STag happens before it is durable; other connections go on.
#[test]
fn nothing_passes_a_sync_write() {
    let mut target = target(Residency::Sometimes, Config::default());
    let (stag, sync) = (target.region.stag, target.region.sync_stag.unwrap());
    target
        .connection
        .post_recv(WrId(1), RecvBuffer::Vec(10))
        .unwrap();
    let bytes = [
        raw::write(sync, 4096 - 8, &[1; 8], false),
        raw::write(sync, 4096, &[1; 8192], true),
        raw::read(1, Stag(0), 0, 0),
        raw::write(stag, 0, &[2; 100], true),
        raw::send(1, 0, b"hello", true),
        raw::write(sync, 0, &[3; 50], true),
        raw::read(2, stag, 0, 3),
    ]
    .concat();
    target.deliver(&bytes);
    while let Some((ticket, page)) = target.pages.finish_one() {
        target
            .connection
            .handle_page(&mut target.pages, ticket, Ok(page));
    }
    assert_eq!(target.sent(), []);
    assert_eq!(target.pages.syncs.len(), 1);
    assert_eq!(target.pages.content(FILE, 4096 - 8, 8200), [1; 8200]);
    assert_eq!(
        target.pages.content(FILE, 0, 100),
        pattern(77, 100),
        "the next WRITE is not executed"
    );
    assert_eq!(target.connection.poll_completion(), None);
    // Another connection sees what is placed, and changes what it likes.
    target.pages.residency = Residency::Always;
    let config = Config {
        tag: 1,
        ..Config::default()
    };
    let mut other = raw::responder(config, target.connection.table(), &mut target.pages);
    let bytes = [
        raw::write(stag, 4096, &[9; 4], true),
        raw::read(1, stag, 4096 - 2, 8),
    ]
    .concat();
    other.handle_bytes(Time(0), &mut target.pages, &bytes);
    let expected = Sent::Response(SINK, 0x1000, vec![1, 1, 9, 9, 9, 9, 1, 1], true);
    assert_eq!(transmit(&mut other, &mut target.pages), [expected]);
    target.pages.residency = Residency::Sometimes;
    // A ticket of somebody else changes nothing.
    let ticket = Ticket(target.pages.syncs[0].1.0 ^ (1 << 40));
    target
        .connection
        .handle_durable(&mut target.pages, ticket, Ok(()));
    assert_eq!(target.sent(), []);

    assert_eq!(
        target.durable(),
        [PageRange {
            backing: FILE,
            first: 0,
            count: 3
        }]
    );
    while let Some((ticket, page)) = target.pages.finish_one() {
        target
            .connection
            .handle_page(&mut target.pages, ticket, Ok(page));
    }
    assert_eq!(target.sent(), [Sent::Response(SINK, 0x1000, vec![], true)]);
    assert_eq!(
        completions(&mut target.connection)[0].message.as_deref(),
        Some(&b"hello"[..])
    );
    assert_eq!(
        target.pages.content(FILE, 0, 100),
        [[3; 50], [2; 50]].concat()
    );
    assert_eq!(
        target.durable(),
        [PageRange {
            backing: FILE,
            first: 0,
            count: 1
        }]
    );
    while let Some((ticket, page)) = target.pages.finish_one() {
        target
            .connection
            .handle_page(&mut target.pages, ticket, Ok(page));
    }
    assert_eq!(
        target.sent(),
        [Sent::Response(SINK, 0x1000, vec![3; 3], true)]
    );
}

/// Durability is asked for as soon as the last segment is placed, with nothing behind it, and a WRITE waits for it as
/// everything else does.
#[test]
fn a_sync_write_is_made_durable_at_once() {
    let mut target = target(Residency::Always, Config::default());
    let (stag, sync) = (target.region.stag, target.region.sync_stag.unwrap());
    target.deliver(&raw::write(sync, 0, &[1; 100], false));
    assert!(target.pages.syncs.is_empty());
    target.deliver(&raw::write(sync, 100, &[1; 100], true));
    assert_eq!(target.pages.syncs.len(), 1);
    target.deliver(&raw::write(stag, 40_960, &[2; 4096], true));
    assert_eq!(
        target.pages.content(FILE, 40_960, 4096),
        pattern(77, 45_056)[40_960..]
    );
    target.durable();
    assert_eq!(target.pages.content(FILE, 40_960, 4096), [2; 4096]);
    // A plain WRITE asks for nothing.
    assert!(target.pages.syncs.is_empty());
}

/// The same when the sync WRITE itself had to wait for a page: not even a WRITE behind it happens before.
#[test]
fn nothing_passes_a_sync_write_with_late_pages() {
    let mut target = target(Residency::Never, Config::default());
    let (stag, sync) = (target.region.stag, target.region.sync_stag.unwrap());
    let bytes = [
        raw::write(sync, 0, &[1; 5000], true),
        raw::write(stag, 40_960, &[2; 4096], true),
    ]
    .concat();
    target.deliver(&bytes);
    target.page(1);
    assert_eq!(
        target.pages.syncs.len(),
        0,
        "not before all of it is placed"
    );
    target.page(0);
    assert_eq!(target.pages.syncs.len(), 1);
    assert_eq!(
        target.pages.waiting.len(),
        0,
        "the next WRITE has not begun"
    );
    assert_eq!(
        target.durable(),
        [PageRange {
            backing: FILE,
            first: 0,
            count: 2
        }]
    );
    target.page(10);
    assert_eq!(target.pages.content(FILE, 40_960, 4096), [2; 4096]);
    assert!(target.pages.syncs.is_empty());
}

/// A WRITE of scattered segments names many ranges; the list is bounded by asking for durability in between.
#[test]
fn scattered_sync_writes_are_bounded() {
    let mut target = target(Residency::Always, Config::default());
    let sync = target.region.sync_stag.unwrap();
    for i in 0..200 {
        target.deliver(&raw::write(sync, (i * 2 % 255) * 4096, &[9; 1], i == 199));
    }
    target.deliver(&raw::read(1, Stag(0), 0, 0));
    let mut ranges = 0;
    while !target.pages.syncs.is_empty() {
        assert_eq!(target.sent(), []);
        let some = target.durable();
        assert!(some.len() <= 64);
        ranges += some.len();
    }
    assert_eq!(ranges, 200);
    assert_eq!(target.sent().len(), 1);
}

/// A SEND amid an unfinished sync WRITE waits for what of it is placed: there is no way past.
#[test]
fn a_message_inside_a_sync_write_waits_too() {
    let mut target = target(Residency::Always, Config::default());
    let sync = target.region.sync_stag.unwrap();
    target.deliver(&raw::write(sync, 0, &[9; 1], false));
    target.deliver(&raw::read(1, Stag(0), 0, 0));
    assert_eq!(target.sent(), []);
    target.durable();
    assert_eq!(target.sent().len(), 1);
}

/// A connection that ends gives every page back, and answers that come later find nobody.
#[test]
fn the_end_gives_everything_back() {
    for abort in [true, false] {
        let mut target = target(Residency::Sometimes, Config::default());
        let stag = target.region.stag;
        for msn in 1..=8 {
            target.deliver(&raw::read(msn, stag, 0, 40_000));
        }
        target.deliver(&raw::write(stag, 0, &[1; 60_000], true));
        assert!(target.pages.pins.get() > 0 && !target.pages.waiting.is_empty());
        if abort {
            target.connection.abort()
        } else {
            target.connection.handle_transport_error()
        }
        assert_eq!(target.pages.pins.get(), 0);
        while let Some((ticket, page)) = target.pages.finish_one() {
            target
                .connection
                .handle_page(&mut target.pages, ticket, Ok(page));
            assert_eq!(target.pages.pins.get(), 0);
        }
        assert_eq!(target.sent(), []);
        assert!(!target.connection.wants_input());
    }
}

/// RFC 5041 §5: messages are not interleaved, responses and requests take turns, also when pages come late and each call
/// sends one segment only.
#[test]
fn messages_are_not_interleaved() {
    for residency in [Residency::Always, Residency::Sometimes] {
        let mut target = target(residency, Config::default());
        for msn in 1..=4 {
            let request = raw::read(msn, target.region.stag, 0, 5 * 4096);
            target.deliver(&request);
        }
        for id in 0..4 {
            let source = Source::Bytes(vec![id; 9000]);
            let op = if id % 2 == 0 {
                Operation::Write {
                    source,
                    remote: target.region.remote(0),
                }
            } else {
                Operation::Send {
                    source,
                    solicited: false,
                    invalidate: None,
                }
            };
            target
                .connection
                .post_send(WorkRequest::new(WrId(u64::from(id)), op))
                .unwrap();
        }
        let mut order = Vec::new();
        let mut open: Option<std::mem::Discriminant<Sent>> = None;
        for _ in 0..1000 {
            let mut out = Vec::new();
            target
                .connection
                .poll_transmit(Time(0), &mut target.pages, &mut out, 1);
            let sent = raw::frames(&out);
            assert!(sent.len() <= 1);
            for sent in sent {
                let kind = std::mem::discriminant(&sent);
                assert!(
                    open.is_none_or(|open| open == kind),
                    "{sent:?} inside another message"
                );
                let (Sent::Write(.., last) | Sent::Response(.., last) | Sent::Send(.., last)) =
                    sent
                else {
                    panic!("{sent:?}")
                };
                open = (!last).then_some(kind);
                if last {
                    order.push(matches!(sent, Sent::Response(..)));
                }
            }
            if let Some((ticket, page)) = target.pages.finish_one() {
                target
                    .connection
                    .handle_page(&mut target.pages, ticket, Ok(page));
            }
        }
        assert_eq!(order.iter().filter(|response| **response).count(), 4);
        assert_eq!(order.len(), 8);
        if residency == Residency::Always {
            assert_eq!(order, [true, false].repeat(4), "neither side starves");
        }
    }
}

/// FIN behind parked work: all of it is done and answered first, whichever side ends.
#[test]
fn parked_work_is_finished_before_the_end() {
    for local in [false, true] {
        let mut target = target(Residency::Never, Config::default());
        let sync = target.region.sync_stag.unwrap();
        target
            .connection
            .post_recv(WrId(1), RecvBuffer::Vec(10))
            .unwrap();
        let bytes = [
            raw::write(sync, 0, &[1; 10], true),
            raw::send(1, 0, b"last", true),
            raw::read(1, sync, 0, 3),
        ]
        .concat();
        target.deliver(&bytes);
        if local {
            target.connection.disconnect();
        } else {
            target.connection.handle_eof(Time(0));
        }
        for _ in 0..3 {
            assert_eq!(target.sent(), []);
            assert_eq!(
                target.connection.socket_state(),
                SocketState::Open,
                "local {local}"
            );
            match (
                target.pages.waiting.is_empty(),
                target.pages.syncs.is_empty(),
            ) {
                (false, _) => target.page(0),
                (true, false) => drop(target.durable()),
                (true, true) => panic!("something is awaited"),
            }
        }
        assert_eq!(
            target.sent(),
            [Sent::Response(SINK, 0x1000, vec![1; 3], true)]
        );
        let done = completions(&mut target.connection);
        assert_eq!(done[0].message.as_deref(), Some(&b"last"[..]));
        if local {
            assert_eq!(target.connection.socket_state(), SocketState::ShutdownWrite);
            target.connection.handle_eof(Time(0));
        } else {
            assert_eq!(target.connection.poll_event(), Some(Event::PeerFinished));
        }
        assert_eq!(
            target.connection.poll_event(),
            Some(Event::Closed(CloseReason::Graceful))
        );
        assert_eq!(target.connection.socket_state(), SocketState::Close);
    }
}

/// One thing a client does in the model test below.
#[derive(Clone, Debug)]
enum Step {
    Write {
        offset: u64,
        data: Vec<u8>,
        sync: bool,
    },
    Read {
        offset: u64,
        sink: std::sync::Arc<Buffer>,
    },
    Send(Vec<u8>),
}

/// Model test (M1): random WRITEs, READs and SENDs over late pages, with random cuts of the stream. Fenced READs see exactly
/// what a plain array says; every request completes once, in order; no page stays pinned.
#[test]
fn random_work_agrees_with_a_plain_array() {
    for seed in 0..60 {
        let mut random = StdRng::seed_from_u64(seed);
        let (ours, theirs) = (table(1), table(2));
        let pages = TestPages::new(Residency::Sometimes, seed);
        let client = Config {
            crc: random.random(),
            hello: random.random(),
            ord_max: random.random_range(1..5),
            ..Config::default()
        };
        let target = Config {
            crc: random.random(),
            ird_max: random.random_range(1..5),
            ..Config::default()
        };
        let target = Config {
            read_window_pages: random.random_range(1..8),
            ..target
        };
        let mut pair = connect(client, &ours, target, &theirs, pages);
        pair.chunk = random.random_range(1..20_000);
        let size = 20 * 4096;
        let spec = RegionSpec::pages(ProtectionDomain(0), Rights::all(), FILE, 123, size);
        let region = theirs.register(spec).unwrap();
        let mut model = vec![0; size as usize];
        let mut steps = Vec::new();
        let mut expected_reads = Vec::new();
        for id in 0..60 {
            let offset = random.random_range(0..size);
            let most = (size - offset).min(if random.random() { 100 } else { 30_000 });
            let len = random.random_range(0..=most) as usize;
            let step = match random.random_range(0..5) {
                0 | 1 => {
                    let data = pattern(seed * 1000 + id, len);
                    model[offset as usize..][..len].copy_from_slice(&data);
                    Step::Write {
                        offset,
                        data,
                        sync: random.random(),
                    }
                }
                2 | 3 => {
                    expected_reads.push((id, model[offset as usize..][..len].to_vec()));
                    Step::Read {
                        offset,
                        sink: Buffer::zeroed(len),
                    }
                }
                _ => Step::Send(pattern(id, len)),
            };
            steps.push(step);
        }
        let mut messages = Vec::new();
        for (id, step) in steps.iter().enumerate() {
            let op = match step.clone() {
                Step::Write { offset, data, sync } => {
                    let remote = if sync {
                        region.remote_sync(offset).unwrap()
                    } else {
                        region.remote(offset)
                    };
                    Operation::Write {
                        source: Source::Bytes(data),
                        remote,
                    }
                }
                Step::Read { offset, sink } => Operation::Read {
                    sink: LocalSlice::whole(&sink),
                    remote: region.remote(offset),
                },
                Step::Send(data) => {
                    messages.push(data.clone());
                    pair.b
                        .connection
                        .post_recv(WrId(id as u64), RecvBuffer::Vec(30_000))
                        .unwrap();
                    Operation::Send {
                        source: Source::Bytes(data),
                        solicited: false,
                        invalidate: None,
                    }
                }
            };
            // A later WRITE may overtake a READ at the responder: the fence makes the model exact.
            let request = WorkRequest {
                fence: true,
                ..WorkRequest::new(WrId(id as u64), op)
            };
            pair.a.connection.post_send(request).unwrap();
            if random.random_range(0..4) == 0 {
                settle(&mut pair);
            }
        }
        settle(&mut pair);
        let done = completions(&mut pair.a.connection);
        assert!(
            done.iter().all(|c| c.status.is_success()),
            "seed {seed}: {done:?}"
        );
        assert!(done.iter().map(|c| c.wr_id.0).eq(0..60), "seed {seed}");
        for (id, bytes) in expected_reads {
            let Step::Read { sink, .. } = &steps[id as usize] else {
                unreachable!("a read")
            };
            assert!(sink.to_vec(0, sink.len()) == bytes, "seed {seed} step {id}");
        }
        let got = completions(&mut pair.b.connection)
            .into_iter()
            .filter_map(|c| c.message);
        assert!(got.eq(messages), "seed {seed}");
        assert!(
            pair.b.pages.content(FILE, 123, size as usize) == model,
            "seed {seed}"
        );
        assert_eq!(pair.b.pages.pins.get(), 0);
    }
}
