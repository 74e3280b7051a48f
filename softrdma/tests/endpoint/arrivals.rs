//! On-demand pinning: pages arrive in any order, fail, are asked back or never come, and bytes leave in order all the same.
//!
//! Defends Q1 and Q2 of the inbound read queue (RFC 5040 §5.5: READs are answered in order), I11 and I16, against a store
//! that answers as it likes.

use std::sync::Arc;

use crate::common::raw::{self, Sent, transmit};
use crate::common::{Residency, TestPages, Waiting, pattern, table};
use softrdma::wire::profile::{Placement, Selectivity};
use softrdma::wire::terminate::TerminateCode;
use softrdma::{
    Atomic, BackingId, Buffer, Config, Connection, MemoryRegion, PAGE_BYTES, PageError,
    ProtectionDomain, RegionSpec, RegionTable, Rights, Ticket,
};

const FILE: BackingId = BackingId(1);
const OTHER: BackingId = BackingId(2);
const PAGE: u64 = PAGE_BYTES as u64;
/// Bytes of both files.
const BYTES: usize = 8 * PAGE_BYTES;

struct Target {
    table: Arc<RegionTable>,
    pages: TestPages,
    connection: Connection<TestPages>,
    file: MemoryRegion,
    other: MemoryRegion,
    content: Vec<u8>,
    others: Vec<u8>,
}

fn target(residency: Residency, config: Config) -> Target {
    let table = table(4);
    let mut pages = TestPages::new(residency, 1);
    let (content, others) = (pattern(1, BYTES), pattern(2, BYTES));
    pages.fill(FILE, 0, &content);
    pages.fill(OTHER, 0, &others);
    let register = |backing| {
        let domain = ProtectionDomain(0);
        let spec = RegionSpec::pages(domain, Rights::all(), backing, 0, BYTES as u64);
        table.register(spec).unwrap()
    };
    let (file, other) = (register(FILE), register(OTHER));
    let connection = raw::responder(config, &table, &mut pages);
    Target {
        table,
        pages,
        connection,
        file,
        other,
        content,
        others,
    }
}

impl Target {
    fn deliver(&mut self, bytes: &[u8]) {
        let now = softrdma::Time(0);
        let taken = self.connection.handle_bytes(now, &mut self.pages, bytes);
        assert_eq!(taken, bytes.len());
    }

    /// The bytes that leave now, without their frames.
    fn payload(&mut self) -> Vec<u8> {
        let sent = transmit(&mut self.connection, &mut self.pages);
        let bytes = sent.into_iter().flat_map(|sent| match sent {
            Sent::Response(_, _, bytes, _) => bytes,
            other => panic!("{other:?}"),
        });
        bytes.collect()
    }

    /// Answers the request for a page that was made as number `n` of those that wait.
    fn arrive(&mut self, n: usize) -> Waiting {
        let wanted = self.pages.waiting.swap_remove(n);
        self.answer(wanted, Ok(()));
        wanted
    }

    fn answer(&mut self, wanted: Waiting, result: Result<(), PageError>) {
        let others = std::mem::replace(&mut self.pages.waiting, vec![wanted]);
        let (ticket, page) = self.pages.finish_one().unwrap();
        self.pages.waiting = others;
        let page = result.map(|()| page);
        self.connection.handle_page(&mut self.pages, ticket, page);
    }
}

/// All orders of `n` things.
fn orders(n: usize) -> Vec<Vec<usize>> {
    if n == 0 {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for shorter in orders(n - 1) {
        for at in 0..n {
            let mut order = shorter.clone();
            order.insert(at, n - 1);
            all.push(order);
        }
    }
    all
}

/// Three READs of six pages in all, of two files, at odd offsets, in all 720 orders of arrival: after each page exactly the
/// ready prefix has left, byte for byte, and in the end nothing is pinned. Small and large segments.
#[test]
fn every_order_of_arrival_gives_the_same_bytes() {
    for ulpdu_foreign in [1400, 9000] {
        for order in orders(6) {
            let config = Config {
                ulpdu_foreign,
                ..Config::default()
            };
            let mut target = target(Residency::Never, config);
            // Pages 0 to 2, 5, and 6 to 7 of the other one: pieces of 300, 4096, 7; 80; 1 and 2.
            let (file, other) = (target.file.stag, target.other.stag);
            let reads = [
                raw::read(1, file, PAGE - 300, 300 + 4096 + 7),
                raw::read(2, file, 5 * PAGE + 9, 80),
                raw::read(3, other, 7 * PAGE - 1, 3),
            ];
            target.deliver(&reads.concat());
            let at = PAGE_BYTES - 300;
            let expected = [
                &target.content[at..][..300 + 4096 + 7],
                &target.content[5 * PAGE_BYTES + 9..][..80],
                &target.others[7 * PAGE_BYTES - 1..][..3],
            ]
            .concat();
            let pieces = [300, 4096, 7, 80, 1, 2];
            let asked: Vec<Waiting> = target.pages.waiting.drain(..).collect();
            assert_eq!(asked.len(), pieces.len(), "all at once");
            let mut here = [false; 6];
            let mut sent = Vec::new();
            for n in order {
                target.answer(asked[n], Ok(()));
                here[n] = true;
                sent.extend(target.payload());
                let ready = here.iter().take_while(|&&here| here).count();
                let prefix: usize = pieces[..ready].iter().sum();
                assert_eq!(sent.len(), prefix, "the ready prefix and nothing else");
                assert!(sent == expected[..prefix]);
            }
            assert_eq!(target.pages.pins.get(), 0);
        }
    }
}

/// A page that fails ends the connection when its turn comes, not before, and not when it does not: whatever arrives first,
/// the peer gets everything before it, then a Terminate, and never a byte behind it.
#[test]
fn a_failed_page_fails_in_its_turn() {
    for failing in 0..4 {
        for order in orders(4) {
            let mut target = target(Residency::Never, Config::default());
            target.deliver(&raw::read(1, target.file.stag, 0, 4 * PAGE_BYTES as u32));
            let asked: Vec<Waiting> = target.pages.waiting.drain(..).collect();
            let mut sent = Vec::new();
            let mut terminated = false;
            for n in order {
                let result = if n == failing {
                    Err(PageError::Media)
                } else {
                    Ok(())
                };
                target.answer(asked[n], result);
                for message in transmit(&mut target.connection, &mut target.pages) {
                    match message {
                        Sent::Response(_, _, bytes, last) => {
                            assert!(!terminated && !last);
                            sent.extend(bytes);
                        }
                        Sent::Terminate(code, _) => {
                            assert_eq!(code, TerminateCode::OperationCatastrophicStream);
                            terminated = true;
                        }
                        other => panic!("{other:?}"),
                    }
                }
            }
            assert!(terminated);
            assert!(sent == target.content[..failing * PAGE_BYTES]);
            assert_eq!(target.pages.pins.get(), 0);
        }
    }
}

/// An answer that nobody waits for any more, that comes twice, or that was never asked for changes nothing.
#[test]
fn answers_out_of_nowhere_are_dropped() {
    let mut target = target(Residency::Never, Config::default());
    target.deliver(&raw::read(1, target.file.stag, 0, 2 * PAGE_BYTES as u32));
    let asked: Vec<Waiting> = target.pages.waiting.drain(..).collect();
    let wrong = |ticket| Waiting {
        // The content of another page: it must not be taken for this one.
        page: 7,
        ticket,
        ..asked[0]
    };
    target.answer(asked[0], Ok(()));
    let strangers = [Ticket(77 << 32), Ticket(500), asked[0].ticket];
    for ticket in strangers {
        target.answer(wrong(ticket), Ok(()));
        target.answer(wrong(ticket), Err(PageError::Media));
    }
    assert!(target.payload() == target.content[..PAGE_BYTES]);
    // The window has moved on, and the ticket with it.
    target.answer(wrong(asked[0].ticket), Ok(()));
    target.answer(asked[1], Ok(()));
    assert!(target.payload() == target.content[PAGE_BYTES..2 * PAGE_BYTES]);
    assert_eq!(target.pages.pins.get(), 0);
}

/// Pages that wait for the peer to take its bytes are given back when their owner wants them, before they are asked for
/// anew, with the tickets they had; what is of other files stays. Whenever that happens the bytes are the same.
#[test]
fn pages_that_are_asked_back_are_got_again() {
    for backing in [FILE, OTHER] {
        for taken in 0..4 {
            let config = Config {
                ulpdu_foreign: 3000,
                ..Config::default()
            };
            let mut target = target(Residency::Always, config);
            let (file, other) = (target.file.stag, target.other.stag);
            target.deliver(&raw::read(1, file, 100, 4 * PAGE_BYTES as u32 - 200));
            target.deliver(&raw::read(2, other, 0, 2 * PAGE_BYTES as u32));
            assert_eq!(target.pages.pins.get(), 6);
            let mut sent = Vec::new();
            let now = softrdma::Time(0);
            for _ in 0..taken {
                // One segment at a time: somewhere in the middle of a page.
                let pages = &mut target.pages;
                target.connection.poll_transmit(now, pages, &mut sent, 1);
            }
            let pinned = target.pages.pins.get();
            let of_others = if backing == FILE { 2 } else { pinned - 2 };
            target.pages.residency = Residency::Never;
            let of = |other| other == backing;
            let renewed = target.connection.renew_pages(&mut target.pages, of);
            assert!(renewed && target.pages.pins.get() == of_others);
            assert!(target.pages.waiting.iter().all(|w| w.backing == backing));
            assert_eq!(target.pages.waiting.len(), pinned - of_others);
            // Nothing of it is held, so there is nothing to give back a second time.
            assert!(!target.connection.renew_pages(&mut target.pages, of));
            let waiting = target.pages.waiting.len();
            for n in (0..waiting).rev() {
                target.arrive(n);
            }
            let pages = &mut target.pages;
            let limit = usize::MAX;
            target
                .connection
                .poll_transmit(now, pages, &mut sent, limit);
            let bytes: Vec<u8> = raw::frames(&sent)
                .into_iter()
                .flat_map(|sent| match sent {
                    Sent::Response(_, _, bytes, _) => bytes,
                    other => panic!("{other:?}"),
                })
                .collect();
            let expected = [
                &target.content[100..4 * PAGE_BYTES - 100],
                &target.others[..2 * PAGE_BYTES],
            ]
            .concat();
            assert!(bytes == expected, "{backing:?} asked back after {taken}");
            assert_eq!(target.pages.pins.get(), 0);
        }
    }
}

/// A region whose reach is cut answers what was in reach, and not one byte behind it, also when the pages were there already
/// (I10, I11); when it reaches further again, so do READs that come then.
#[test]
fn a_cut_reach_holds_for_what_is_under_way() {
    let mut target = target(Residency::Always, Config::default());
    let stag = target.file.stag;
    let reach = |target: &Target, bytes| assert!(target.table.set_reach(stag, bytes));
    reach(&target, 5000);
    target.deliver(&raw::read(1, stag, 4990, 10));
    assert!(target.payload() == target.content[4990..5000]);
    reach(&target, u64::MAX);
    target.deliver(&raw::read(2, stag, BYTES as u64 - 10, 10));
    assert!(target.payload() == target.content[BYTES - 10..]);

    target.deliver(&raw::read(3, stag, 0, 3 * PAGE_BYTES as u32));
    assert_eq!(target.pages.pins.get(), 3, "its pages are there");
    reach(&target, 3 * PAGE - 1);
    let sent = transmit(&mut target.connection, &mut target.pages);
    let [.., Sent::Terminate(TerminateCode::ProtectionBounds, _)] = &sent[..] else {
        panic!("{sent:?}");
    };
    let bytes: usize = sent[..sent.len() - 1]
        .iter()
        .map(|sent| match sent {
            Sent::Response(_, _, bytes, _) => bytes.len(),
            other => panic!("{other:?}"),
        })
        .sum();
    assert!(bytes < 3 * PAGE_BYTES);
    assert_eq!(target.pages.pins.get(), 0);
}

/// The same for a WRITE whose page comes after the cut: not a byte of it is placed.
#[test]
fn a_write_that_waits_is_checked_against_the_new_reach() {
    let mut target = target(Residency::Never, Config::default());
    let stag = target.file.stag;
    target.deliver(&raw::write(stag, 8000, &[9; 400], true));
    assert!(target.table.set_reach(stag, 8100));
    while !target.pages.waiting.is_empty() {
        target.arrive(0);
    }
    let sent = transmit(&mut target.connection, &mut target.pages);
    let [Sent::Terminate(TerminateCode::TaggedBounds, _)] = sent[..] else {
        panic!("{sent:?}");
    };
    assert_eq!(
        target.pages.content(FILE, 8000, 400),
        target.content[8000..8400]
    );
    assert_eq!(target.pages.pins.get(), 0);
}

/// DRAM and flash in one protection domain, on one connection: each STag leads to its own bytes, whatever is late, and
/// neither to those of the other.
#[test]
fn memory_and_pages_side_by_side() {
    for residency in [Residency::Always, Residency::Never, Residency::Sometimes] {
        let mut target = target(residency, Config::default());
        let memory = Buffer::from_bytes(&pattern(3, BYTES));
        let spec = RegionSpec::memory(
            ProtectionDomain(0),
            Rights::all() - Rights::FLUSH_PERSISTENT,
            &memory,
        );
        let dram = target.table.register(spec).unwrap();
        let flash = target.file.stag;
        let mut expected = [target.content.clone(), pattern(3, BYTES)];
        let mut sent = Vec::new();
        let mut asked = Vec::new();
        for n in 0..60 {
            let at = n * 1999 % (BYTES - 5000);
            let of = n % 2;
            let stag = [flash, dram.stag][of];
            let bytes = vec![n as u8; 777];
            target.deliver(&raw::write(stag, at as u64, &bytes, true));
            expected[of][at..at + 777].copy_from_slice(&bytes);
            target.deliver(&raw::read(n as u32 + 1, stag, at as u64, 1000));
            asked.extend_from_slice(&expected[of][at..at + 1000]);
            // Fenced: the next comes when all of this has happened.
            loop {
                sent.extend(target.payload());
                match target.pages.waiting.len() {
                    0 => break,
                    n => target.arrive(n - 1),
                };
            }
        }
        assert!(sent == asked);
        assert!(memory.to_vec(0, BYTES) == expected[1]);
        assert!(target.pages.content(FILE, 0, BYTES) == expected[0]);
        assert_eq!(target.pages.pins.get(), 0);
    }
}

/// Each operation that a peer may ask for on `len` bytes at `at`, but for SENDs, as number 1 of its queue.
fn operations(region: &MemoryRegion, at: u64, len: u32) -> Vec<(Vec<u8>, TerminateCode)> {
    use TerminateCode::{ProtectionBounds, TaggedBounds};
    let (stag, remote) = (region.stag, region.remote(at));
    let add = Atomic::FetchAdd { add: 1, mask: 0 };
    let value = Atomic::Write { value: 1 };
    let flush = |placement| raw::flush(1, remote, Selectivity::Range(len), placement);
    vec![
        (
            raw::write(stag, at, &vec![9; len as usize], true),
            TaggedBounds,
        ),
        (raw::read(1, stag, at, len), ProtectionBounds),
        (raw::verify(1, remote, len), ProtectionBounds),
        (raw::atomic(1, stag, at, add), ProtectionBounds),
        (raw::atomic(1, stag, at, value), ProtectionBounds),
        (flush(Placement::Visible), ProtectionBounds),
        (flush(Placement::Persistent), ProtectionBounds),
    ]
}

fn private() -> Config {
    Config {
        private_profile: true,
        ..Config::default()
    }
}

/// Defends I11: beyond a reach that was cut there is nothing, whatever the operation; up to there it is as before. A FLUSH
/// of the whole region is about what peers reach of it.
#[test]
fn no_operation_gets_beyond_the_reach() {
    let reach = PAGE + 16;
    for n in 0..operations(&target(Residency::Always, private()).file, 0, 8).len() {
        for (at, refused) in [(reach - 8, false), (reach, true)] {
            let mut target = target(Residency::Always, private());
            assert!(target.table.set_reach(target.file.stag, reach));
            let (bytes, code) = operations(&target.file, at, 8).swap_remove(n);
            target.deliver(&bytes);
            let sent = transmit(&mut target.connection, &mut target.pages);
            let told = sent.iter().find_map(|sent| match sent {
                Sent::Terminate(code, _) => Some(*code),
                _ => None,
            });
            assert_eq!(told, refused.then_some(code), "operation {n} at {at}");
            let beyond = target.pages.content(FILE, reach, 100);
            assert_eq!(beyond, target.content[reach as usize..][..100]);
            assert!(!refused || target.pages.syncs.is_empty());
        }
    }
    for (reach, pages) in [(0, None), (1, Some(1)), (PAGE, Some(1)), (reach, Some(2))] {
        let mut target = target(Residency::Always, private());
        assert!(target.table.set_reach(target.file.stag, reach));
        let file = target.file.remote(0);
        let whole = raw::flush(1, file, Selectivity::Region, Placement::Persistent);
        target.deliver(&whole);
        let asked = target
            .pages
            .syncs
            .first()
            .map(|(ranges, _)| ranges[0].count);
        assert_eq!(asked, pages);
    }
}

/// A VERIFY whose pages are asked back in the middle computes over the same bytes.
#[test]
fn a_verify_goes_on_with_renewed_pages() {
    let mut target = target(Residency::Never, private());
    let len = 3 * PAGE as u32;
    target.deliver(&raw::verify(1, target.file.remote(0), len));
    target.arrive(2);
    target.arrive(1);
    let of = |backing| backing == FILE;
    assert!(target.connection.renew_pages(&mut target.pages, of));
    assert_eq!(target.pages.pins.get(), 0, "all given back");
    while !target.pages.waiting.is_empty() {
        target.arrive(0);
    }
    let sent = transmit(&mut target.connection, &mut target.pages);
    let [Sent::Private(1, _, body)] = &sent[..] else {
        panic!("{sent:?}");
    };
    let crc = crc32c::crc32c(&target.content[..len as usize]);
    assert_eq!(body[4..], crc.to_be_bytes());
    assert_eq!(target.pages.pins.get(), 0);
}

/// Whose region has ended is told so, whether the page comes or fails for that very reason, whatever the operation.
#[test]
fn the_end_of_a_region_is_what_the_peer_is_told() {
    // Those that wait for a page.
    for n in 0..5 {
        for result in [Ok(()), Err(PageError::Gone)] {
            let mut target = target(Residency::Never, private());
            let (bytes, code) = operations(&target.file, 0, 8).swap_remove(n);
            target.deliver(&bytes);
            assert!(target.table.deregister(target.file.stag));
            let wanted = target.pages.waiting.remove(0);
            target.answer(wanted, result);
            let sent = transmit(&mut target.connection, &mut target.pages);
            let [Sent::Terminate(told, _)] = sent[..] else {
                panic!("{sent:?}");
            };
            let expected = if code == TerminateCode::TaggedBounds {
                TerminateCode::TaggedInvalidStag
            } else {
                TerminateCode::ProtectionInvalidStag
            };
            assert_eq!(told, expected, "operation {n}");
            assert_eq!(target.pages.content(FILE, 0, 100), target.content[..100]);
        }
    }
}
