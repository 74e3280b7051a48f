//! The owner of pages is told of what was done for a peer, once, and how long it took from when its turn came: not of what failed or
//! was refused.

use crate::common::raw::{self, transmit};
use crate::common::{Residency, TestPage, TestPages, pattern, table};
use softrdma::{
    Atomic, BackingId, Config, Connection, PageError, Placement, ProtectionDomain, RecvBuffer,
    RegionSpec, RemoteAddr, Rights, Selectivity, Served, Stag, TaggedOffset, Ticket, Time, WrId,
};

const FILE: BackingId = BackingId(1);
const ADD: Atomic = Atomic::FetchAdd { add: 1, mask: 0 };

struct Target {
    pages: TestPages,
    connection: Connection<TestPages>,
    stag: Stag,
    sync: Stag,
}

/// No page is there at once.
fn target() -> Target {
    let table = table(9);
    let mut pages = TestPages::new(Residency::Never, 1);
    let spec = RegionSpec::pages(ProtectionDomain(0), Rights::all(), FILE, 0, 1 << 20);
    let region = table.register(spec).unwrap();
    let config = Config {
        private_profile: true,
        ..Config::default()
    };
    let connection = raw::responder(config, &table, &mut pages);
    Target {
        pages,
        connection,
        stag: region.stag,
        sync: region.sync_stag.unwrap(),
    }
}

impl Target {
    fn deliver(&mut self, at: u64, bytes: &[u8]) {
        self.pages.now = Time(at);
        self.connection
            .handle_bytes(Time(at), &mut self.pages, bytes);
    }

    /// One page comes.
    fn page(&mut self, at: u64) {
        self.pages.now = Time(at);
        let (ticket, page): (Ticket, TestPage) = self.pages.finish_one().unwrap();
        self.connection
            .handle_page(&mut self.pages, ticket, Ok(page));
    }

    fn durable(&mut self, at: u64, result: Result<(), PageError>) {
        self.pages.now = Time(at);
        let (_, ticket) = self.pages.syncs.remove(0);
        self.connection
            .handle_durable(&mut self.pages, ticket, result);
    }

    fn sent(&mut self, at: u64) {
        self.pages.now = Time(at);
        transmit(&mut self.connection, &mut self.pages);
    }

    fn served(&mut self) -> Vec<(Served, u64, u64)> {
        std::mem::take(&mut self.pages.served)
    }

    fn at(&self, to: u64) -> RemoteAddr {
        RemoteAddr {
            stag: self.stag,
            to: TaggedOffset(to),
        }
    }
}

/// A WRITE takes from its first segment until its last page is placed, and through a sync STag until it is durable.
#[test]
fn writes() {
    let mut target = target();
    let data = pattern(1, 5000);
    target.deliver(10, &raw::write(target.stag, 0, &data[..4096], false));
    target.page(25);
    assert_eq!(target.served(), []);
    target.deliver(30, &raw::write(target.stag, 4096, &data[4096..], true));
    target.page(50);
    assert_eq!(target.served(), [(Served::Write, 5000, 40)]);

    target.deliver(100, &raw::write(target.sync, 0, &data[..4096], true));
    // Its turn comes when the one before is durable.
    target.deliver(110, &raw::write(target.sync, 0, &[], true));
    target.page(120);
    assert_eq!(target.served(), []);
    target.durable(170, Ok(()));
    let both = [(Served::Write, 4096, 70), (Served::Write, 0, 0)];
    assert_eq!(target.served(), both);

    // Part of a message has to be durable before the rest is taken.
    target.deliver(200, &raw::write(target.sync, 0, &data[..100], false));
    target.page(210);
    target.deliver(215, &raw::send(1, 0, b"", true));
    target.durable(220, Ok(()));
    assert_eq!(target.served(), []);
}

/// A READ or a VERIFY takes until its last byte, or its digest, is in the hands of the transport.
#[test]
fn reads() {
    let mut target = target();
    target.deliver(10, &raw::read(1, target.stag, 100, 5000));
    target.deliver(12, &raw::verify(2, target.at(0), 4096));
    target.deliver(13, &raw::read(3, target.stag, 0, 0));
    for at in [20, 30, 40] {
        target.page(at);
        assert_eq!(target.served(), []);
    }
    target.sent(50);
    let all = [
        (Served::Read, 5000, 40),
        (Served::Verify, 4096, 38),
        (Served::Read, 0, 37),
    ];
    assert_eq!(target.served(), all);
}

/// Atomic operations and FLUSHes take until they are answered.
#[test]
fn answers() {
    let mut target = target();
    target.deliver(10, &raw::atomic(1, target.stag, 8, ADD));
    target.page(30);
    target.sent(31);
    assert_eq!(target.served(), [(Served::Atomic, 8, 21)]);

    target.deliver(40, &raw::atomic(2, target.sync, 8, ADD));
    target.page(50);
    target.sent(60);
    assert_eq!(target.served(), []);
    target.durable(70, Ok(()));
    target.sent(80);
    assert_eq!(target.served(), [(Served::Atomic, 8, 40)]);

    let range = Selectivity::Range(10);
    let flush = raw::flush(3, target.at(0), range, Placement::Persistent);
    target.deliver(100, &flush);
    target.durable(140, Ok(()));
    target.sent(141);
    assert_eq!(target.served(), [(Served::Flush, 0, 41)]);
}

/// SENDs take as long as they arrive; immediate data is there at once.
#[test]
fn sends() {
    let mut target = target();
    for id in 0..2 {
        let buffer = RecvBuffer::Vec(100);
        target.connection.post_recv(WrId(id), buffer).unwrap();
    }
    target.deliver(10, &raw::send(1, 0, b"ab", false));
    target.deliver(30, &raw::send(1, 2, b"cde", true));
    target.deliver(40, &raw::immediate(2, [7; 8]));
    let both = [(Served::Send, 5, 20), (Served::Send, 0, 0)];
    assert_eq!(target.served(), both);
}

/// What fails or is refused ends the connection, and is not told.
#[test]
fn not_what_fails() {
    let mut fails = target();
    fails.deliver(10, &raw::write(fails.sync, 0, b"abc", true));
    fails.page(20);
    fails.durable(30, Err(PageError::Media));
    assert_eq!(fails.served(), []);

    let mut fails = target();
    fails.deliver(10, &raw::read(1, fails.stag, 0, 100));
    fails.sent(15);
    let waiting = fails.pages.waiting.pop().unwrap();
    let page = Err(PageError::Media);
    fails
        .connection
        .handle_page(&mut fails.pages, waiting.ticket, page);
    fails.sent(20);
    assert_eq!(fails.served(), []);

    let mut refused = target();
    refused.deliver(10, &raw::write(Stag(0x77), 0, b"abc", true));
    refused.deliver(20, &raw::read(1, refused.stag, 1 << 20, 1));
    assert_eq!(refused.served(), []);
}
