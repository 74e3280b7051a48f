//! How many 4 KiB READs (or WRITEs) a responder answers per second on one core, without a network.
//!
//! `cargo run --release -p softrdma --example read_responder [-- DEPTH [COUNT]]`
//!
//! Only the responder's own calls are timed: taking a batch of requests as one socket read would deliver it, and
//! building the bytes of the answers. The client at the other end is a real one and checks what it gets.

use std::time::{Duration, Instant};

use softrdma::{
    BackingId, Buffer, Config, Connection, Event, GetPage, Intent, LocalSlice, NoPages, Operation,
    PAGE_BYTES, Page, PageRange, PageStore, ProtectionDomain, RegionSpec, RegionTable, Rights,
    Source, Ticket, Time, WorkRequest, WrId,
};
use std::sync::Arc;

/// Pages in one buffer, always resident.
struct Resident(Arc<Buffer>);

struct Frame(Arc<Buffer>, usize);

impl Page for Frame {
    fn copy_out(&self, offset: usize, to: &mut [u8]) {
        self.0.read(self.1 + offset, to);
    }

    fn copy_in(&mut self, offset: usize, from: &[u8]) {
        self.0.write(self.1 + offset, from);
    }

    fn append_to(&self, offset: usize, len: usize, out: &mut Vec<u8>) {
        self.0.append_to(self.1 + offset, len, out);
    }
}

impl PageStore for Resident {
    type Page = Frame;

    fn get(&mut self, _: BackingId, page: u64, _: Intent, _: Ticket) -> GetPage<Frame> {
        GetPage::Ready(Frame(Arc::clone(&self.0), page as usize * PAGE_BYTES))
    }

    fn sync(&mut self, _: &[PageRange], _: Ticket) {}
}

fn main() {
    let mut args = std::env::args()
        .skip(1)
        .map(|arg| arg.parse::<usize>().expect("a number"));
    let depth = args.next().unwrap_or(32);
    let count = args.next().unwrap_or(500_000);
    for crc in [true, false] {
        for write in [false, true] {
            let rate = run(depth, count, crc, write);
            let what = if write { "WRITE" } else { "READ" };
            println!("4 KiB {what:5} depth {depth} crc {crc:5}: {rate:.0} ops/s at the responder");
        }
    }
}

fn run(depth: usize, count: usize, crc: bool, write: bool) -> f64 {
    const PAGES: u64 = 4096;
    let memory = Buffer::zeroed(PAGES as usize * PAGE_BYTES);
    for page in 0..PAGES {
        memory.write(page as usize * PAGE_BYTES, &page.to_le_bytes());
    }
    let table = RegionTable::new([1; 32]);
    let rights = Rights::REMOTE_READ | Rights::REMOTE_WRITE;
    let spec = RegionSpec::pages(
        ProtectionDomain(0),
        rights,
        BackingId(0),
        0,
        PAGES * PAGE_BYTES as u64,
    );
    let region = table.register(spec).expect("room for a region");
    let config = Config {
        crc,
        ird_max: depth as u16,
        ord_max: depth as u16,
        ..Config::default()
    };
    let now = Time(0);
    let mut store = Resident(memory);
    let mut client =
        Connection::<NoPages>::initiator(config.clone(), &table, b"", now).expect("short data");
    let mut target = Connection::<Resident>::responder(config, &table, now);

    let (mut out, mut back) = (Vec::new(), Vec::new());
    let sink = Buffer::zeroed(depth * PAGE_BYTES);
    let (mut posted, mut done, mut busy) = (0, 0, Duration::ZERO);
    while done < count {
        while posted < count && posted - done < depth {
            let page = (posted as u64).wrapping_mul(2_654_435_761) % PAGES;
            let remote = region.remote(page * PAGE_BYTES as u64);
            let slice = LocalSlice::new(&sink, posted % depth * PAGE_BYTES, PAGE_BYTES);
            let op = match write {
                true => Operation::Write {
                    source: Source::Local(slice),
                    remote,
                },
                false => Operation::Read {
                    sink: slice,
                    remote,
                },
            };
            client
                .post_send(WorkRequest::new(WrId(page), op))
                .expect("room in the queue");
            posted += 1;
        }
        out.clear();
        client.poll_transmit(now, &mut NoPages, &mut out, 1 << 20);
        back.clear();
        let start = Instant::now();
        target.handle_bytes(now, &mut store, &out);
        target.poll_transmit(now, &mut store, &mut back, 1 << 20);
        busy += start.elapsed();
        if let Some(Event::ConnectRequest(_)) = target.poll_event() {
            target.accept(b"").expect("a request");
            target.poll_transmit(now, &mut store, &mut back, 1 << 20);
        }
        client.handle_bytes(now, &mut NoPages, &back);
        while let Some(completion) = client.poll_completion() {
            assert!(completion.status.is_success());
            if !write {
                let mut head = [0; 8];
                sink.read(done % depth * PAGE_BYTES, &mut head);
                assert_eq!(
                    u64::from_le_bytes(head),
                    completion.wr_id.0,
                    "the bytes asked for"
                );
            }
            done += 1;
        }
        while let Some(event) = client.poll_event() {
            assert!(matches!(event, Event::Established(_)), "{event:?}");
        }
    }
    count as f64 / busy.as_secs_f64()
}
