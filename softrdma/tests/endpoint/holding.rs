//! READs that are held by the owner of a connection.
//!
//! Defends what I13 of a replicated group stands on: while READs are held no byte of memory leaves, and an owner learns of
//! every call that took some; everything else goes on.

use crate::common::raw::{self, Sent, transmit};
use crate::common::{Residency, TestPages, pattern, table};
use softrdma::{
    BackingId, Buffer, Config, Connection, MemoryRegion, Operation, PAGE_BYTES, ProtectionDomain,
    RegionSpec, Rights, Source, Time, WorkRequest, WrId,
};

const FILE: BackingId = BackingId(1);
const BYTES: usize = 4 * PAGE_BYTES;

struct Target {
    connection: Connection<TestPages>,
    pages: TestPages,
    /// In pages, and in memory.
    regions: [MemoryRegion; 2],
    content: Vec<u8>,
}

fn target() -> Target {
    let table = table(3);
    let content = pattern(1, BYTES);
    let mut pages = TestPages::new(Residency::Always, 1);
    pages.fill(FILE, 0, &content);
    let buffer = Buffer::zeroed(BYTES);
    buffer.write(0, &content);
    let domain = ProtectionDomain(0);
    let rights = Rights::REMOTE_READ;
    let paged = RegionSpec::pages(domain, rights, FILE, 0, BYTES as u64);
    let regions = [paged, RegionSpec::memory(domain, rights, &buffer)];
    let regions = regions.map(|spec| table.register(spec).unwrap());
    let config = Config {
        private_profile: true,
        ulpdu_foreign: 3000,
        ..Config::default()
    };
    let connection = raw::responder(config, &table, &mut pages);
    Target {
        connection,
        pages,
        regions,
        content,
    }
}

impl Target {
    fn deliver(&mut self, bytes: &[u8]) {
        let taken = (self.connection).handle_bytes(Time(0), &mut self.pages, bytes);
        assert_eq!(taken, bytes.len());
    }

    fn sent(&mut self) -> Vec<Sent> {
        transmit(&mut self.connection, &mut self.pages)
    }
}

/// A READ and a VERIFY wait, without a page; a SEND of ours goes out. Let go, they are answered whole, in
/// their order.
#[test]
fn what_is_held_waits_and_the_rest_goes_on() {
    for region in 0..2 {
        let mut target = target();
        let remote = target.regions[region].remote(0);
        target.connection.hold_reads(true);
        assert!(!target.connection.holds_read(), "there is none");
        target.deliver(&raw::read(1, remote.stag, remote.to.0, 5000));
        target.deliver(&raw::verify(2, remote, 100));
        assert_eq!(target.sent(), []);
        assert!(target.connection.holds_read());
        assert_eq!(target.pages.gets, 0, "nothing is pinned for it");
        let op = Operation::Send {
            source: Source::Bytes(b"goes on".to_vec()),
            solicited: false,
            invalidate: None,
        };
        let send = WorkRequest::new(WrId(1), op);
        target.connection.post_send(send).unwrap();
        let sent = target.sent();
        assert!(matches!(&sent[..], [Sent::Send(_, bytes, _)] if bytes == b"goes on"));
        assert_eq!(target.connection.reads_taken(), 0);

        target.connection.hold_reads(false);
        assert!(!target.connection.holds_read());
        let mut bytes = Vec::new();
        let mut verified = 0;
        for sent in target.sent() {
            match sent {
                Sent::Response(_, _, part, _) if verified == 0 => bytes.extend(part),
                Sent::Private(..) => verified += 1,
                other => panic!("{other:?}"),
            }
        }
        assert!(bytes == target.content[..5000] && verified == 1);
        assert_eq!(target.pages.pins.get(), 0);
    }
}

/// Each call that took bytes for a READ or VERIFY shows in the count, also one in the middle of a message; calls that took none do not. A READ
/// that was half answered when it was held goes on where it stopped, and nothing goes out inside of it.
#[test]
fn every_call_that_takes_bytes_is_counted() {
    for region in 0..2 {
        let mut target = target();
        let remote = target.regions[region].remote(0);
        target.deliver(&raw::read(1, remote.stag, remote.to.0, 9000));
        let one = |target: &mut Target| {
            let mut out = Vec::new();
            let pages = &mut target.pages;
            target.connection.poll_transmit(Time(0), pages, &mut out, 1);
            let taken = target.connection.reads_taken();
            (raw::frames(&out), taken)
        };
        let (first, taken) = one(&mut target);
        assert!(matches!(&first[..], [Sent::Response(_, _, _, false)]));
        assert_eq!(taken, 1);
        target.connection.hold_reads(true);
        let op = Operation::Send {
            source: Source::Bytes(b"behind it".to_vec()),
            solicited: false,
            invalidate: None,
        };
        let send = WorkRequest::new(WrId(1), op);
        target.connection.post_send(send).unwrap();
        assert_eq!(one(&mut target), (Vec::new(), 1));
        target.connection.hold_reads(false);
        let mut kinds = Vec::new();
        let mut before = taken;
        loop {
            let (sent, taken) = one(&mut target);
            let [sent] = &sent[..] else { break };
            let is_read = matches!(sent, Sent::Response(..));
            assert_eq!(taken > before, is_read, "{sent:?}");
            before = taken;
            kinds.push(is_read);
        }
        kinds.dedup();
        assert_eq!(kinds, [true, false]);
        // A digest tells of memory, too.
        target.deliver(&raw::verify(2, remote, 100));
        let (sent, taken) = one(&mut target);
        assert!(matches!(&sent[..], [Sent::Private(..)]) && taken > before);
    }
}
