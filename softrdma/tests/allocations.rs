//! What the data path costs: no allocation per operation once buffers have grown (a count, not a time).

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use softrdma::{
    BackingId, Buffer, Config, Connection, GetPage, Immediate, Intent, LocalSlice, NoPages,
    Operation, PAGE_BYTES, Page, PageRange, PageStore, ProtectionDomain, RecvBuffer, RegionSpec,
    RegionTable, Rights, Source, Ticket, Time, WorkRequest, WrId,
};

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator, counting the calls of each thread.
struct Counting;

// SAFETY: everything is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`; the memory came from `System`.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Resident pages of one buffer.
struct Resident(Arc<Buffer>);

struct Frame(Arc<Buffer>, usize);

impl Page for Frame {
    fn copy_out(&self, offset: usize, to: &mut [u8]) {
        self.0.read(self.1 + offset, to);
    }

    fn copy_in(&mut self, offset: usize, from: &[u8]) {
        self.0.write(self.1 + offset, from);
    }
}

impl PageStore for Resident {
    type Page = Frame;

    fn get(&mut self, _: BackingId, page: u64, _: Intent, _: Ticket) -> GetPage<Frame> {
        GetPage::Ready(Frame(Arc::clone(&self.0), page as usize * PAGE_BYTES))
    }

    fn sync(&mut self, _: &[PageRange], _: Ticket) {}
}

/// READs, WRITEs, some with immediate data, and atomic operations at depth 16, delivered in pieces that cut FPDUs: after a warm-up neither side allocates.
#[test]
fn the_data_path_does_not_allocate() {
    const DEPTH: usize = 16;
    let now = Time(0);
    let table = RegionTable::new([1; 32]);
    let spec = RegionSpec::pages(ProtectionDomain(0), Rights::all(), BackingId(0), 0, 1 << 20);
    let region = table.register(spec).unwrap();
    let mut store = Resident(Buffer::zeroed(1 << 20));
    let mut client = Connection::<NoPages>::initiator(Config::default(), &table, b"", now).unwrap();
    let mut target = Connection::<Resident>::responder(Config::default(), &table, now);
    let local = Buffer::zeroed(DEPTH * PAGE_BYTES);
    let (mut out, mut back) = (Vec::new(), Vec::new());
    let mut round = |count: u64| {
        for id in 0..DEPTH as u64 {
            let remote = region.remote((id * 77 + count * 13) % 200 * PAGE_BYTES as u64 + id);
            let slice = LocalSlice::new(&local, id as usize * PAGE_BYTES, PAGE_BYTES);
            let aligned = region.remote((id * 8 + count * 4096) % (1 << 20));
            let op = match id % 4 {
                0 => Operation::Read {
                    sink: slice,
                    remote,
                },
                2 if id == 2 => Operation::compare_swap(aligned, 0, count),
                2 => Operation::fetch_add(aligned, count),
                3 if id == 7 => Operation::WriteImmediate {
                    source: Source::inline(&[7; 20]).unwrap(),
                    remote,
                    immediate: Immediate::from(7),
                    solicited: false,
                },
                _ => Operation::Write {
                    source: Source::Local(slice),
                    remote,
                },
            };
            client.post_send(WorkRequest::new(WrId(id), op)).unwrap();
        }
        let buffer = RecvBuffer::Local(LocalSlice::new(&local, 0, 8));
        target.post_recv(WrId(count), buffer).unwrap();
        let mut done = 0;
        for _ in 0..100 {
            out.clear();
            client.poll_transmit(now, &mut NoPages, &mut out, usize::MAX);
            for piece in out.chunks(5000) {
                target.handle_bytes(now, &mut store, piece);
            }
            if target.poll_event().is_some() {
                let _ = target.accept(b"");
            }
            back.clear();
            target.poll_transmit(now, &mut store, &mut back, usize::MAX);
            for piece in back.chunks(5000) {
                client.handle_bytes(now, &mut NoPages, piece);
            }
            while client.poll_completion().is_some() {
                done += 1;
            }
            client.poll_event();
            if done == DEPTH {
                let received = target.poll_completion().unwrap();
                assert_eq!(received.wr_id, WrId(count));
                return;
            }
        }
        panic!("{done} of {DEPTH} completed");
    };
    for count in 0..20 {
        round(count);
    }
    let before = ALLOCATIONS.with(Cell::get);
    for count in 20..520 {
        round(count);
    }
    assert_eq!(
        ALLOCATIONS.with(Cell::get) - before,
        0,
        "allocations in 8000 operations"
    );
}
