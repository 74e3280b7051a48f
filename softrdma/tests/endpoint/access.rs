//! Who may touch which bytes: the access matrix of RELIABILITY §8, each cell with its Terminate code.

use std::sync::Arc;

use crate::common::raw::{self, Sent, terminate_code, transmit};
use crate::common::{Residency, TestPages, completions, table};
use softrdma::wire::rdmap::Opcode;
use softrdma::wire::terminate::TerminateCode::{self, *};
use softrdma::{
    BackingId, Buffer, CloseReason, Config, Connection, Event, MemoryRegion, ProtectionDomain,
    RecvBuffer, RegionSpec, RegionTable, RegisterError, Rights, Stag, TaggedOffset, Time, WrId,
};

const OURS: ProtectionDomain = ProtectionDomain(1);
const THEIRS: ProtectionDomain = ProtectionDomain(2);
const FILE: BackingId = BackingId(1);
const LEN: u64 = 10_000;

struct Target {
    table: Arc<RegionTable>,
    pages: TestPages,
    connection: Connection<TestPages>,
}

impl Target {
    fn new() -> Self {
        let table = table(9);
        let mut pages = TestPages::new(Residency::Always, 1);
        let config = Config {
            protection_domain: OURS,
            ird_max: 4,
            ..Config::default()
        };
        let connection = raw::responder(config, &table, &mut pages);
        Self {
            table,
            pages,
            connection,
        }
    }

    fn deliver(&mut self, bytes: &[u8]) {
        self.connection
            .handle_bytes(Time(0), &mut self.pages, bytes);
    }

    /// What becomes of one operation: nothing wrong, or this code.
    fn outcome(&mut self, op: Op, stag: Stag, to: u64, len: u32) -> Option<TerminateCode> {
        match op {
            Op::Write => self.deliver(&raw::write(stag, to, &vec![0xaa; len as usize], true)),
            Op::Read => self.deliver(&raw::read(1, stag, to, len)),
        }
        let sent = transmit(&mut self.connection, &mut self.pages);
        sent.iter().find_map(|sent| {
            if let Sent::Terminate(code, _) = sent {
                Some(*code)
            } else {
                None
            }
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Op {
    Read,
    Write,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Life {
    Live,
    Deregistered,
    Invalidated,
}

fn spec(kind: usize, domain: ProtectionDomain, rights: Rights, base: u64) -> RegionSpec {
    let mut spec = match kind {
        0 => RegionSpec::memory(domain, rights, &Buffer::zeroed(LEN as usize)),
        _ => RegionSpec::pages(domain, rights, FILE, 5000, LEN),
    };
    spec.base = TaggedOffset(base);
    spec
}

/// Defends I10 and its order: STag before stream, stream before domain, domain before liveness, then range, then
/// rights; in each combination the first violation gives the code, and no byte changes.
#[test]
fn access_matrix() {
    let base = u64::MAX - LEN - 50;
    // (what, tagged offset, length): 0 fits, else the codes for WRITE and READ.
    type Row = (
        &'static str,
        u64,
        u32,
        Option<(TerminateCode, TerminateCode)>,
    );
    let ranges: [Row; 8] = [
        ("inside", base + 10, 100, None),
        ("all", base, LEN as u32, None),
        ("last byte", base + LEN - 1, 1, None),
        (
            "one past the end",
            base + LEN,
            1,
            Some((TaggedBounds, ProtectionBounds)),
        ),
        (
            "over the end",
            base + LEN - 1,
            2,
            Some((TaggedBounds, ProtectionBounds)),
        ),
        (
            "before the start",
            base - 1,
            2,
            Some((TaggedBounds, ProtectionBounds)),
        ),
        ("far away", 0, 1, Some((TaggedBounds, ProtectionBounds))),
        (
            "wrap",
            u64::MAX - 10,
            12,
            Some((TaggedWrap, ProtectionWrap)),
        ),
    ];
    let rights = [
        Rights::REMOTE_READ | Rights::REMOTE_WRITE,
        Rights::REMOTE_READ,
        Rights::REMOTE_WRITE,
        Rights::empty(),
    ];
    let mut cells = 0;
    for kind in [0, 1] {
        for domain in [OURS, THEIRS] {
            for life in [Life::Live, Life::Deregistered] {
                for own_stream in [None, Some(true), Some(false)] {
                    for granted in rights {
                        for (what, to, len, range) in ranges {
                            for op in [Op::Read, Op::Write] {
                                for sync in [false, true] {
                                    let mut target = Target::new();
                                    let mut spec = spec(kind, domain, granted, base);
                                    let other = Connection::<TestPages>::responder(
                                        Config::default(),
                                        &target.table,
                                        Time(0),
                                    );
                                    spec.stream = own_stream.map(|own| {
                                        if own {
                                            target.connection.stream()
                                        } else {
                                            other.stream()
                                        }
                                    });
                                    let region = target.table.register(spec).unwrap();
                                    let stag = match (sync, region.sync_stag) {
                                        (false, _) => region.stag,
                                        (true, Some(stag)) => stag,
                                        (true, None) => continue,
                                    };
                                    if life == Life::Deregistered {
                                        assert!(target.table.deregister(stag));
                                    }
                                    let pick = |write, read| {
                                        Some(if op == Op::Write { write } else { read })
                                    };
                                    let right = if op == Op::Write {
                                        Rights::REMOTE_WRITE
                                    } else {
                                        Rights::REMOTE_READ
                                    };
                                    let expected = if life == Life::Deregistered {
                                        pick(TaggedInvalidStag, ProtectionInvalidStag)
                                    } else if own_stream == Some(false) || domain != OURS {
                                        pick(TaggedNotOfStream, ProtectionNotOfStream)
                                    } else if let Some((write, read)) = range {
                                        pick(write, read)
                                    } else if !granted.contains(right) {
                                        pick(TaggedInvalidStag, ProtectionRights)
                                    } else {
                                        None
                                    };
                                    let got = target.outcome(op, stag, to, len);
                                    let cell = format!(
                                        "{op:?} {what} kind {kind} {domain:?} {life:?} {own_stream:?} {granted:?}"
                                    );
                                    assert_eq!(got, expected, "{cell}");
                                    if expected.is_some() {
                                        let file = target.pages.content(FILE, 5000, LEN as usize);
                                        assert!(
                                            file.iter().all(|&byte| byte == 0),
                                            "nothing written: {cell}"
                                        );
                                    }
                                    cells += 1;
                                }
                            }
                        }
                    }
                }
            }
        }
    }
    assert_eq!(cells, 2304);
}

/// Defends R1: no STag that differs in one bit from a registered one opens the region, the sync bit included.
#[test]
fn a_flipped_bit_opens_nothing() {
    let mut target = Target::new();
    let region = target
        .table
        .register(spec(1, OURS, Rights::REMOTE_WRITE, 0))
        .unwrap();
    let sync = region.sync_stag.unwrap();
    assert_eq!(region.stag.index(), sync.index());
    assert!(sync.is_sync() && !region.stag.is_sync());
    for stag in [region.stag, sync] {
        for bit in 0..32 {
            let flipped = Stag(stag.0 ^ (1 << bit));
            assert_eq!(
                target.outcome(Op::Write, flipped, 0, 10),
                Some(TaggedInvalidStag)
            );
            let (table, region) = (Arc::clone(&target.table), region);
            target = Target::new();
            target.table = table;
            target.connection = raw::responder(
                Config {
                    protection_domain: OURS,
                    ..Config::default()
                },
                &target.table,
                &mut target.pages,
            );
            assert!(region.stag != flipped);
        }
    }
    assert_eq!(target.outcome(Op::Write, region.stag, 0, 10), None);
}

/// RFC 5040 §5.2: zero-length WRITEs and READs name no buffer, whatever STag and TO say.
#[test]
fn zero_length_is_not_checked() {
    let mut target = Target::new();
    target.deliver(&raw::write(Stag(0), u64::MAX, &[], true));
    target.deliver(&raw::read(1, Stag(0), u64::MAX, 0));
    let sent = transmit(&mut target.connection, &mut target.pages);
    assert_eq!(
        sent,
        [Sent::Response(Stag(0x5151_5100), 0x1000, vec![], true)]
    );
}

/// Defends I11: between two pages of one segment, and between two segments of one response, revocation takes effect.
#[test]
fn revocation_stops_the_rest() {
    let mut target = Target::new();
    target.pages.residency = Residency::Never;
    let region = target
        .table
        .register(spec(1, OURS, Rights::all(), 0))
        .unwrap();
    target.deliver(&raw::write(region.stag, 0, &[7; 9000], true));
    let (ticket, page) = target.pages.finish_one().unwrap();
    target
        .connection
        .handle_page(&mut target.pages, ticket, Ok(page));
    assert!(target.table.deregister(region.stag));
    let before = target.pages.content(FILE, 5000, LEN as usize);
    assert!(before.contains(&7), "a part is written");
    let (ticket, page) = target.pages.finish_one().unwrap();
    target
        .connection
        .handle_page(&mut target.pages, ticket, Ok(page));
    assert_eq!(
        terminate_code(&mut target.connection, &mut target.pages),
        TaggedInvalidStag
    );
    let written = target
        .pages
        .content(FILE, 5000, LEN as usize)
        .iter()
        .filter(|&&byte| byte == 7)
        .count();
    assert_eq!(written, before.iter().filter(|&&byte| byte == 7).count());
    assert_eq!(target.pages.pins.get(), 0);

    // A response: small FPDUs, the first one sent, then revoked.
    let mut target = Target::new();
    let region = target
        .table
        .register(spec(0, OURS, Rights::all() - Rights::FLUSH_PERSISTENT, 0))
        .unwrap();
    target.deliver(&raw::read(1, region.stag, 0, LEN as u32));
    let mut out = Vec::new();
    target
        .connection
        .poll_transmit(Time(0), &mut target.pages, &mut out, 1);
    let first = raw::frames(&out);
    assert!(matches!(&first[..], [Sent::Response(_, 0x1000, _, false)]));
    let sent_bytes = 1428;
    assert!(target.table.deregister(region.stag));
    let sent = transmit(&mut target.connection, &mut target.pages);
    let [Sent::Terminate(ProtectionInvalidStag, enclosed)] = &sent[..] else {
        panic!("{sent:?}")
    };
    // Length, DDP header, then the Read Request advanced to the stop point.
    assert_eq!(enclosed.len(), 2 + 18 + 28);
    assert_eq!(
        enclosed[2 + 18..][4..12],
        (0x1000_u64 + sent_bytes).to_be_bytes()
    );
    assert_eq!(
        enclosed[2 + 18..][12..16],
        (LEN as u32 - sent_bytes as u32).to_be_bytes()
    );
    assert_eq!(enclosed[2 + 18..][20..28], sent_bytes.to_be_bytes());
}

fn invalidate(target: &mut Target, msn: u32, stag: Stag) {
    target
        .connection
        .post_recv(WrId(1), RecvBuffer::Vec(100))
        .unwrap();
    target.deliver(&raw::untagged(
        Opcode::SendSolicitedInvalidate,
        msn,
        0,
        stag,
        b"bye",
        true,
    ));
}

/// Send with Invalidate: only regions of this stream that allow it; afterwards the STag is dead.
#[test]
fn send_with_invalidate() {
    let all = Rights::all() - Rights::FLUSH_PERSISTENT;
    // (own stream, rights, domain) -> code
    let rows: [(
        Option<bool>,
        Rights,
        ProtectionDomain,
        Option<TerminateCode>,
    ); 5] = [
        (Some(true), all, OURS, None),
        (None, all, OURS, Some(ProtectionCannotInvalidate)),
        (
            Some(true),
            Rights::REMOTE_READ,
            OURS,
            Some(ProtectionCannotInvalidate),
        ),
        (Some(false), all, OURS, Some(ProtectionNotOfStream)),
        (Some(true), all, THEIRS, Some(ProtectionNotOfStream)),
    ];
    for (own, rights, domain, expected) in rows {
        let mut target = Target::new();
        let other = Connection::<TestPages>::responder(Config::default(), &target.table, Time(0));
        let mut spec = spec(1, domain, rights, 0);
        spec.stream = own.map(|own| {
            if own {
                target.connection.stream()
            } else {
                other.stream()
            }
        });
        let region = target.table.register(spec).unwrap();
        invalidate(&mut target, 1, region.stag);
        let done = completions(&mut target.connection);
        match expected {
            Some(code) => {
                assert_eq!(
                    terminate_code(&mut target.connection, &mut target.pages),
                    code
                );
                assert!(!done[0].status.is_success());
            }
            None => {
                assert_eq!(done[0].message.as_deref(), Some(&b"bye"[..]));
                assert_eq!(
                    (done[0].invalidated, done[0].solicited),
                    (Some(region.stag), true)
                );
                // Both flavours are dead, also for this connection, which used it a moment ago.
                let stag = region.sync_stag.unwrap();
                assert_eq!(
                    target.outcome(Op::Write, stag, 0, 4),
                    Some(TaggedInvalidStag),
                    "{:?}",
                    Life::Invalidated
                );
            }
        }
    }
    let mut target = Target::new();
    invalidate(&mut target, 1, Stag(0x1234_5678));
    assert_eq!(
        terminate_code(&mut target.connection, &mut target.pages),
        ProtectionInvalidStag
    );
}

/// Restored STags (after a restart of the target) work again, also where the old region was in use; what is not a pair
/// is refused.
#[test]
fn restore() {
    let mut target = Target::new();
    let region = target
        .table
        .register(spec(1, OURS, Rights::all(), 0))
        .unwrap();
    assert_eq!(target.outcome(Op::Write, region.stag, 0, 4), None);
    let again = |target: &Target, stag, sync| {
        target
            .table
            .restore(spec(1, OURS, Rights::all(), 0), stag, sync)
    };
    assert_eq!(
        again(&target, region.stag, region.sync_stag),
        Err(RegisterError::StagTaken)
    );
    assert!(target.table.deregister(region.sync_stag.unwrap()));
    assert!(!target.table.deregister(region.stag));
    let MemoryRegion {
        stag, sync_stag, ..
    } = region;
    assert_eq!(
        again(&target, stag, Some(Stag(stag.0 | 0x80))),
        Err(RegisterError::StagTaken)
    );
    assert_eq!(
        again(&target, stag, Some(stag)),
        Err(RegisterError::StagTaken)
    );
    assert_eq!(again(&target, stag, sync_stag), Ok(region));
    assert_eq!(target.outcome(Op::Write, region.stag, 0, 4), None);
    assert_eq!(target.table.len(), 1);
}

#[test]
fn registration_checks_its_range() {
    let table = table(1);
    let buffer = Buffer::zeroed(100);
    let mut spec = RegionSpec::memory(OURS, Rights::all() - Rights::FLUSH_PERSISTENT, &buffer);
    (spec.offset, spec.len) = (1, 100);
    assert_eq!(
        table.register(spec.clone()),
        Err(RegisterError::OutOfBounds)
    );
    (spec.offset, spec.len) = (u64::MAX, 2);
    assert_eq!(
        table.register(spec.clone()),
        Err(RegisterError::OutOfBounds)
    );
    (spec.offset, spec.len, spec.base) = (0, 100, TaggedOffset(u64::MAX - 99));
    assert_eq!(
        table.register(spec.clone()),
        Err(RegisterError::OutOfBounds)
    );
    spec.base = TaggedOffset(u64::MAX - 100);
    assert!(table.register(spec).is_ok());
}

/// Defends I11 between threads: once `deregister` returned, a connection on another thread places nothing.
#[test]
fn deregistration_waits_for_copies_on_other_threads() {
    for round in 0..50 {
        let table = table(round);
        let buffer = Buffer::zeroed(1 << 16);
        let region = table
            .register(RegionSpec::memory(
                OURS,
                Rights::all() - Rights::FLUSH_PERSISTENT,
                &buffer,
            ))
            .unwrap();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut pages = TestPages::new(Residency::Always, 1);
                let config = Config {
                    protection_domain: OURS,
                    ..Config::default()
                };
                let mut connection = raw::responder(config, &table, &mut pages);
                for value in (1..=255_u8).cycle() {
                    connection.handle_bytes(
                        Time(0),
                        &mut pages,
                        &raw::write(region.stag, 0, &[value; 60_000], true),
                    );
                    let sent = transmit(&mut connection, &mut pages);
                    if !sent.is_empty() {
                        assert!(matches!(sent[..], [Sent::Terminate(TaggedInvalidStag, _)]));
                        break;
                    }
                }
            });
            std::thread::sleep(std::time::Duration::from_micros(200));
            assert!(table.deregister(region.stag));
            let after = buffer.to_vec(0, 1 << 16);
            std::thread::sleep(std::time::Duration::from_micros(200));
            assert!(
                buffer.to_vec(0, 1 << 16) == after,
                "nothing is placed after deregistration"
            );
            writer.join().unwrap();
        });
    }
}

/// The connection ends after a violation, with the code as its reason.
#[test]
fn a_violation_ends_the_connection() {
    let mut target = Target::new();
    assert_eq!(
        target.outcome(Op::Write, Stag(77), 0, 1),
        Some(TaggedInvalidStag)
    );
    target.connection.handle_eof(Time(0));
    let reason = CloseReason::TerminateSent(TaggedInvalidStag);
    assert_eq!(target.connection.poll_event(), Some(Event::Closed(reason)));
}
