//! A page store with a will of its own, and pairs over it.

#![allow(dead_code, unreachable_pub)]

pub mod pcap;
pub mod raw;
pub mod setup;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use softrdma::driver::loopback::Pair;
use softrdma::{
    BackingId, Completion, Config, Connection, Event, GetPage, Intent, NoPages, PAGE_BYTES, Page,
    PageError, PageRange, PageStore, PutPage, RegionTable, Served, Ticket, Time,
};

type Bytes = Rc<RefCell<[u8; PAGE_BYTES]>>;

/// A page of [`TestPages`]; counts itself as pinned.
#[derive(Debug)]
pub struct TestPage {
    bytes: Bytes,
    pins: Rc<Cell<usize>>,
    writable: bool,
    /// Page to overwrite: takes effect when dropped, if it was filled.
    fresh: Option<Box<[u8; PAGE_BYTES]>>,
    filled: usize,
}

impl Page for TestPage {
    fn copy_out(&self, offset: usize, to: &mut [u8]) {
        to.copy_from_slice(&self.bytes.borrow()[offset..offset + to.len()]);
    }

    fn copy_in(&mut self, offset: usize, from: &[u8]) {
        assert!(self.writable, "page was got for reading");
        self.filled += from.len();
        match &mut self.fresh {
            Some(fresh) => fresh[offset..offset + from.len()].copy_from_slice(from),
            None => self.bytes.borrow_mut()[offset..offset + from.len()].copy_from_slice(from),
        }
    }
}

impl Drop for TestPage {
    fn drop(&mut self) {
        self.pins.set(self.pins.get() - 1);
        if let Some(fresh) = self.fresh.take().filter(|_| self.filled > 0) {
            assert_eq!(
                self.filled, PAGE_BYTES,
                "an overwritten page is filled whole"
            );
            *self.bytes.borrow_mut() = *fresh;
        }
    }
}

/// When a page is there at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residency {
    Always,
    Never,
    Sometimes,
}

/// Waiting requests for pages.
#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    pub backing: BackingId,
    pub page: u64,
    pub intent: Intent,
    pub ticket: Ticket,
}

/// Pages in a map; pages come late when told to, in any order.
#[derive(Debug)]
pub struct TestPages {
    pages: HashMap<(BackingId, u64), Bytes>,
    pub pins: Rc<Cell<usize>>,
    pub pins_max: usize,
    pub residency: Residency,
    pub waiting: Vec<Waiting>,
    pub syncs: Vec<(Vec<PageRange>, Ticket)>,
    /// Whether others have to be told of what was written before a `put` is over, and the tickets of those.
    pub tells: bool,
    pub puts: Vec<Ticket>,
    pub gets: usize,
    pub overwrites: usize,
    /// The clock.
    pub now: Time,
    /// What was done for the peer: how many bytes, and how many nanoseconds it took.
    pub served: Vec<(Served, u64, u64)>,
    pub random: StdRng,
}

impl TestPages {
    pub fn new(residency: Residency, seed: u64) -> Self {
        Self {
            pages: HashMap::new(),
            pins: Rc::default(),
            pins_max: 0,
            residency,
            waiting: Vec::new(),
            syncs: Vec::new(),
            tells: false,
            puts: Vec::new(),
            gets: 0,
            overwrites: 0,
            now: Time(0),
            served: Vec::new(),
            random: StdRng::seed_from_u64(seed),
        }
    }

    fn bytes(&mut self, backing: BackingId, page: u64) -> Bytes {
        Rc::clone(
            self.pages
                .entry((backing, page))
                .or_insert_with(|| Rc::new(RefCell::new([0; PAGE_BYTES]))),
        )
    }

    fn pin(&mut self, backing: BackingId, page: u64, intent: Intent) -> TestPage {
        let bytes = self.bytes(backing, page);
        // The old content is not fetched.
        let fresh = (intent == Intent::Overwrite).then(|| Box::new([0xee; PAGE_BYTES]));
        self.pins.set(self.pins.get() + 1);
        self.pins_max = self.pins_max.max(self.pins.get());
        TestPage {
            bytes,
            pins: Rc::clone(&self.pins),
            writable: intent != Intent::Read,
            fresh,
            filled: 0,
        }
    }

    pub fn fill(&mut self, backing: BackingId, offset: u64, bytes: &[u8]) {
        for (i, byte) in bytes.iter().enumerate() {
            let at = offset + i as u64;
            self.bytes(backing, at / PAGE_BYTES as u64).borrow_mut()[at as usize % PAGE_BYTES] =
                *byte;
        }
    }

    pub fn content(&mut self, backing: BackingId, offset: u64, len: usize) -> Vec<u8> {
        (offset..offset + len as u64)
            .map(|at| {
                self.bytes(backing, at / PAGE_BYTES as u64).borrow()[at as usize % PAGE_BYTES]
            })
            .collect()
    }

    /// Takes a random waiting request and makes its page.
    pub fn finish_one(&mut self) -> Option<(Ticket, TestPage)> {
        if self.waiting.is_empty() {
            return None;
        }
        let at = self.random.random_range(0..self.waiting.len());
        let Waiting {
            backing,
            page,
            intent,
            ticket,
        } = self.waiting.swap_remove(at);
        Some((ticket, self.pin(backing, page, intent)))
    }
}

impl PageStore for TestPages {
    type Page = TestPage;

    fn get(
        &mut self,
        backing: BackingId,
        page: u64,
        intent: Intent,
        ticket: Ticket,
    ) -> GetPage<TestPage> {
        self.gets += 1;
        self.overwrites += usize::from(intent == Intent::Overwrite);
        let ready = match self.residency {
            Residency::Always => true,
            Residency::Never => false,
            Residency::Sometimes => self.random.random(),
        };
        if ready {
            return GetPage::Ready(self.pin(backing, page, intent));
        }
        self.waiting.push(Waiting {
            backing,
            page,
            intent,
            ticket,
        });
        GetPage::Pending
    }

    fn now(&self) -> Time {
        self.now
    }

    fn served(&mut self, what: Served, bytes: u64, since: Time) {
        self.served.push((what, bytes, self.now.0 - since.0));
    }

    fn put(&mut self, page: TestPage, ticket: Ticket) -> PutPage {
        drop(page);
        if !self.tells {
            return PutPage::Done;
        }
        self.puts.push(ticket);
        PutPage::Pending
    }

    fn sync(&mut self, ranges: &[PageRange], ticket: Ticket) {
        self.syncs.push((ranges.to_vec(), ticket));
    }
}

pub type TestPair = Pair<NoPages, TestPages>;

pub fn table(seed: u8) -> Arc<RegionTable> {
    RegionTable::new([seed; 32])
}

/// Joins a client and a target and sets the connection up.
pub fn connect(
    client: Config,
    client_table: &Arc<RegionTable>,
    target: Config,
    target_table: &Arc<RegionTable>,
    pages: TestPages,
) -> TestPair {
    let mut pair = unconnected(client, client_table, target, target_table, pages);
    pair.run();
    let Some(Event::ConnectRequest(_)) = pair.b.connection.poll_event() else {
        panic!("a request")
    };
    pair.b.connection.accept(b"").unwrap();
    pair.run();
    assert!(matches!(
        pair.a.connection.poll_event(),
        Some(Event::Established(_))
    ));
    assert!(matches!(
        pair.b.connection.poll_event(),
        Some(Event::Established(_))
    ));
    pair
}

pub fn unconnected(
    client: Config,
    client_table: &Arc<RegionTable>,
    target: Config,
    target_table: &Arc<RegionTable>,
    pages: TestPages,
) -> TestPair {
    let a = Connection::initiator(client, client_table, b"", Time(0)).unwrap();
    let b = Connection::responder(target, target_table, Time(0));
    Pair::new(a, NoPages, b, pages)
}

/// Runs the pair, hands in pages in random order and durability when asked, until all is quiet.
pub fn settle(pair: &mut TestPair) {
    loop {
        pair.run();
        if let Some((ticket, page)) = pair.b.pages.finish_one() {
            pair.b
                .connection
                .handle_page(&mut pair.b.pages, ticket, Ok(page));
        } else if !pair.b.pages.syncs.is_empty() {
            let (_, ticket) = pair.b.pages.syncs.remove(0);
            pair.b
                .connection
                .handle_durable(&mut pair.b.pages, ticket, Ok(()));
        } else {
            return;
        }
    }
}

pub fn completions<S: PageStore>(connection: &mut Connection<S>) -> Vec<Completion> {
    std::iter::from_fn(|| connection.poll_completion()).collect()
}

pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    StdRng::seed_from_u64(seed).fill(&mut bytes[..]);
    bytes
}

/// One error per call, whatever else happened.
pub fn storage_error() -> PageError {
    PageError::Media
}
