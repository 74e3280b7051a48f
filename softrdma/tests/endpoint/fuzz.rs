//! Arbitrary and nearly valid bytes: no panic, nothing pinned, every request answered once (RELIABILITY M9).

use crate::common::{Residency, TestPages, completions, raw, table};
use proptest::prelude::*;
use softrdma::wire::reader::StreamReader;
use softrdma::wire::start::StartKind;
use softrdma::{
    Atomic, BackingId, Buffer, Config, Connection, Event, LocalSlice, NoPages, Operation,
    Placement, ProtectionDomain, RecvBuffer, RegionSpec, RegionTable, RemoteAddr, Rights,
    Selectivity, Stag, TaggedOffset, Time, WorkRequest, WrId,
};

const FILE: BackingId = BackingId(1);

/// Plain function: any bytes into every parser and both roles.
fn any_bytes(bytes: &[u8]) {
    for kind in [StartKind::Request, StartKind::Reply] {
        StreamReader::new(kind, bytes.len().is_multiple_of(2)).feed(bytes, |_| {});
    }
    let mut connection = Connection::<NoPages>::responder(Config::default(), &table(1), Time(0));
    connection.handle_bytes(Time(0), &mut NoPages, bytes);
    let mut connection =
        Connection::<NoPages>::initiator(Config::default(), &table(1), b"", Time(0)).unwrap();
    connection.handle_bytes(Time(0), &mut NoPages, bytes);
    connection.poll_transmit(Time(0), &mut NoPages, &mut Vec::new(), 1000);
}

/// A region on whose pages atomic operations are possible: those of the other begin at an odd byte.
fn restore_aligned(table: &RegionTable) {
    let spec = RegionSpec::pages(ProtectionDomain(0), Rights::all(), FILE, 4096, 1 << 17);
    table.restore(spec, Stag(0x300), Some(Stag(0x381))).unwrap();
}

/// Plain function: ULPDUs, well framed, into a connection that has everything a peer could touch.
fn any_session(ulpdus: &[Vec<u8>], seed: u64) {
    let table = table(4);
    let mut pages = TestPages::new(Residency::Sometimes, seed);
    let spec = RegionSpec::pages(ProtectionDomain(0), Rights::all(), FILE, 5, 1 << 18);
    // Names that the generator below knows.
    table
        .restore(spec, Stag(0x0000_0100), Some(Stag(0x0000_0181)))
        .unwrap();
    let memory = Buffer::zeroed(10_000);
    let spec = RegionSpec::memory(
        ProtectionDomain(0),
        Rights::all() - Rights::FLUSH_PERSISTENT,
        &memory,
    );
    table.restore(spec, Stag(0x0000_0200), None).unwrap();
    restore_aligned(&table);
    let config = Config {
        ird_max: 3,
        private_profile: seed.is_multiple_of(2),
        read_window_pages: 4,
        inbound_buffer_max: 1 << 17,
        ..Config::default()
    };
    let mut connection = raw::responder(config, &table, &mut pages);
    for id in 0..2 {
        connection
            .post_recv(WrId(id), RecvBuffer::Vec(1000))
            .unwrap();
        let sink = LocalSlice::new(&memory, 100, 50);
        let remote = RemoteAddr {
            stag: Stag(1),
            to: TaggedOffset(0),
        };
        connection
            .post_send(WorkRequest::new(
                WrId(10 + id),
                Operation::Read { sink, remote },
            ))
            .unwrap();
    }
    let mut out = Vec::new();
    for ulpdu in ulpdus {
        let mut bytes = &raw::fpdu(ulpdu)[..];
        for _ in 0..1000 {
            let taken = connection.handle_bytes(Time(0), &mut pages, bytes);
            bytes = &bytes[taken..];
            connection.poll_transmit(Time(0), &mut pages, &mut out, 10_000);
            assert!(pages.pins.get() <= 4);
            if let Some((ticket, page)) = pages.finish_one() {
                connection.handle_page(&mut pages, ticket, Ok(page));
            } else if !pages.syncs.is_empty() {
                let (_, ticket) = pages.syncs.remove(0);
                connection.handle_durable(&mut pages, ticket, Ok(()));
            } else if bytes.is_empty() {
                break;
            }
        }
        assert!(bytes.is_empty(), "everything is taken in the end");
    }
    connection.handle_eof(Time(0));
    connection.poll_transmit(Time(0), &mut pages, &mut out, usize::MAX);
    connection.handle_timeout(Time(u64::MAX));
    // Only our own sends, half closed, may keep it open.
    connection.abort();
    assert_eq!(pages.pins.get(), 0);
    let mut ended: Vec<u64> = completions(&mut connection)
        .iter()
        .map(|c| c.wr_id.0)
        .collect();
    ended.sort_unstable();
    assert_eq!(ended, [0, 1, 10, 11], "each request completes exactly once");
    let closed = std::iter::from_fn(|| connection.poll_event())
        .filter(|event| matches!(event, Event::Closed(_)));
    assert_eq!(closed.count(), 1);
}

prop_compose! {
    /// A segment that is right in most of its fields.
    fn segment()(
        opcode in prop_oneof![8 => 0_u8..8, 3 => 8_u8..16],
        last in prop_oneof![4 => Just(0x40_u8), 1 => Just(0)],
        odd in prop_oneof![20 => Just(0_u8), 1 => any::<u8>()],
        stag in prop_oneof![4 => Just(0x100_u32), 4 => Just(0x181), 4 => Just(0x200), 1 => any::<u32>(), 1 => 0_u32..4],
        to in prop_oneof![8 => 0_u64..300_000, 1 => any::<u64>(), 1 => u64::MAX - 5000..=u64::MAX],
        msn in prop_oneof![6 => 1_u32..4, 1 => any::<u32>()],
        offset in prop_oneof![6 => Just(0_u32), 1 => 0_u32..1000, 1 => any::<u32>()],
        size in prop_oneof![6 => 0_u32..20_000, 1 => any::<u32>()],
        len in prop_oneof![4 => 0_usize..64, 2 => 0_usize..9000, 1 => Just(60_000_usize)],
        cut in prop_oneof![12 => Just(usize::MAX), 1 => 0_usize..50],
    ) -> Vec<u8> {
        let mut bytes = Vec::new();
        if matches!(opcode, 0 | 2) {
            bytes.extend([0x81 | last, 0x40 | opcode]);
            bytes.extend(stag.to_be_bytes());
            bytes.extend(to.to_be_bytes());
            bytes.extend(vec![opcode; len]);
        } else {
            let queue = match opcode { 1 | 10 | 12 | 14 => 1_u32, 7 => 2, 11 | 13 | 15 => 3, _ => 0 };
            bytes.extend([0x01 | last, 0x40 | opcode]);
            bytes.extend(stag.to_be_bytes());
            bytes.extend(queue.to_be_bytes());
            bytes.extend(msn.to_be_bytes());
            bytes.extend(offset.to_be_bytes());
            if opcode == 1 {
                bytes.extend([0; 12]);
                bytes.extend(size.to_be_bytes());
                bytes.extend(stag.to_be_bytes());
                bytes.extend(to.to_be_bytes());
            } else {
                bytes.extend(vec![opcode; len]);
            }
        }
        bytes[0] ^= odd;
        bytes.truncate(cut);
        bytes
    }
}

/// What an honest peer does.
#[derive(Clone, Debug)]
enum Honest {
    Write {
        stag: u32,
        to: u16,
        len: usize,
        last: bool,
    },
    Read {
        stag: u32,
        to: u16,
        len: u16,
    },
    Send {
        len: usize,
    },
    Atomic {
        stag: u32,
        to: u16,
        op: Atomic,
    },
    Immediate,
    Flush {
        stag: u32,
        to: u16,
        len: u16,
        placement: Placement,
    },
    Verify {
        stag: u32,
        to: u16,
        len: u16,
    },
}

fn honest() -> impl Strategy<Value = Honest> {
    let stag = || prop_oneof![Just(0x100_u32), Just(0x181), Just(0x200)];
    let place = || (any::<u16>(), 0_usize..40_000).prop_map(|(to, len)| (to, len));
    prop_oneof![
        4 => (stag(), place(), any::<bool>()).prop_map(|(stag, (to, len), last)| Honest::Write { stag, to, len, last }),
        3 => (stag(), place()).prop_map(|(stag, (to, len))| Honest::Read { stag, to, len: len as u16 }),
        1 => (0_usize..1000).prop_map(|len| Honest::Send { len }),
        1 => Just(Honest::Immediate),
        3 => (aligned(), any::<u16>(), atomic()).prop_map(|(stag, to, op)| Honest::Atomic { stag, to, op }),
        2 => (stag(), place(), any::<bool>()).prop_map(|(stag, (to, len), far)| Honest::Flush {
            stag,
            to,
            len: len as u16,
            placement: if far && stag != 0x200 { Placement::Persistent } else { Placement::Visible },
        }),
        1 => (stag(), place()).prop_map(|(stag, (to, len))| Honest::Verify { stag, to, len: len as u16 }),
    ]
}

fn aligned() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0x200_u32), Just(0x300), Just(0x381)]
}

fn atomic() -> impl Strategy<Value = Atomic> {
    let word = any::<u64>;
    prop_oneof![
        (word(), word()).prop_map(|(add, mask)| Atomic::FetchAdd { add, mask }),
        (word(), word(), word()).prop_map(|(compare_mask, swap, swap_mask)| Atomic::CompareSwap {
            compare: 0,
            compare_mask,
            swap,
            swap_mask,
        }),
        word().prop_map(|value| Atomic::Write { value }),
    ]
}

fn remote(stag: u32, to: u64) -> RemoteAddr {
    RemoteAddr {
        stag: Stag(stag),
        to: TaggedOffset(to),
    }
}

/// Their ULPDUs. The memory region is smaller than the other: what is for it is made to fit.
fn honest_ulpdus(ops: &[Honest]) -> Vec<Vec<u8>> {
    let (mut reads, mut sends) = (0, 0);
    let fit = |stag: u32, to: u16, len: usize| match stag {
        0x200 => (u64::from(to) % 5000, len % 5000),
        _ => (u64::from(to), len),
    };
    let frame = |op: &Honest| match *op {
        Honest::Write {
            stag,
            to,
            len,
            last,
        } => {
            let (to, len) = fit(stag, to, len);
            raw::write(Stag(stag), to, &vec![1; len], last)
        }
        Honest::Read { stag, to, len } => {
            let (to, len) = fit(stag, to, usize::from(len));
            reads += 1;
            raw::read(reads, Stag(stag), to, len as u32)
        }
        Honest::Send { len } => {
            sends += 1;
            raw::send(sends, 0, &vec![2; len], true)
        }
        Honest::Immediate => {
            sends += 1;
            raw::immediate(sends, [3; 8])
        }
        Honest::Atomic { stag, to, op } => {
            let (to, _) = fit(stag, to, 0);
            reads += 1;
            raw::atomic(reads, Stag(stag), to & !7, op)
        }
        Honest::Flush {
            stag,
            to,
            len,
            placement,
        } => {
            let (to, len) = fit(stag, to, usize::from(len));
            reads += 1;
            let range = Selectivity::Range(len as u32);
            raw::flush(reads, remote(stag, to), range, placement)
        }
        Honest::Verify { stag, to, len } => {
            let (to, len) = fit(stag, to, usize::from(len));
            reads += 1;
            raw::verify(reads, remote(stag, to), len as u32)
        }
    };
    // Only two buffers are posted.
    let mut left = 2;
    let mut fits = |op: &&Honest| {
        let takes_one = matches!(op, Honest::Send { .. } | Honest::Immediate);
        left -= i32::from(takes_one);
        !takes_one || left >= 0
    };
    let frames = ops.iter().filter(|op| fits(op)).map(frame);
    frames
        .map(|bytes| bytes[2..2 + usize::from(u16::from_be_bytes([bytes[0], bytes[1]]))].to_vec())
        .collect()
}

/// The generator of honest sessions is honest: without damage no connection ends.
#[test]
fn honest_sessions_exist() {
    let ops = [
        Honest::Write {
            stag: 0x181,
            to: 60_000,
            len: 39_999,
            last: true,
        },
        Honest::Read {
            stag: 0x200,
            to: 60_000,
            len: 39_999,
        },
        Honest::Send { len: 999 },
        Honest::Atomic {
            stag: 0x200,
            to: 60_001,
            op: Atomic::FetchAdd { add: 1, mask: 1 },
        },
        Honest::Atomic {
            stag: 0x381,
            to: 60_001,
            op: Atomic::Write { value: 1 },
        },
        Honest::Flush {
            stag: 0x100,
            to: 60_000,
            len: 50_000,
            placement: Placement::Persistent,
        },
        Honest::Verify {
            stag: 0x200,
            to: 60_000,
            len: 50_000,
        },
        Honest::Immediate,
        Honest::Write {
            stag: 0x200,
            to: 0,
            len: 39_999,
            last: false,
        },
    ];
    let table = table(4);
    let mut pages = TestPages::new(Residency::Always, 1);
    let spec = RegionSpec::pages(ProtectionDomain(0), Rights::all(), FILE, 5, 1 << 18);
    table.restore(spec, Stag(0x100), Some(Stag(0x181))).unwrap();
    let spec = RegionSpec::memory(
        ProtectionDomain(0),
        Rights::all() - Rights::FLUSH_PERSISTENT,
        &Buffer::zeroed(10_000),
    );
    table.restore(spec, Stag(0x200), None).unwrap();
    restore_aligned(&table);
    let config = Config {
        private_profile: true,
        ..Config::default()
    };
    let mut connection = raw::responder(config, &table, &mut pages);
    for id in 0..2 {
        let buffer = RecvBuffer::Vec(1000);
        connection.post_recv(WrId(id), buffer).unwrap();
    }
    for ulpdu in honest_ulpdus(&ops) {
        connection.handle_bytes(Time(0), &mut pages, &raw::fpdu(&ulpdu));
        while let Some((_, ticket)) = pages.syncs.pop() {
            connection.handle_durable(&mut pages, ticket, Ok(()));
        }
    }
    assert_eq!(completions(&mut connection).len(), 2);
    assert_eq!(connection.poll_event(), None);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
        any_bytes(&bytes);
    }

    #[test]
    fn arbitrary_bytes_after_a_key(reply in any::<bool>(), bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
        let key: &[u8] = if reply { b"MPA ID Rep Frame" } else { b"MPA ID Req Frame" };
        any_bytes(&[key, &[0x50, 2, 0, 4], &bytes].concat());
    }

    #[test]
    fn arbitrary_ulpdus(
        ulpdus in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..100), 0..4),
        seed in any::<u64>(),
    ) {
        any_session(&ulpdus, seed);
    }

    #[test]
    fn nearly_valid_sessions(ulpdus in proptest::collection::vec(segment(), 0..12), seed in any::<u64>()) {
        any_session(&ulpdus, seed);
    }

    #[test]
    fn honest_but_for_one_byte(
        ops in proptest::collection::vec(honest(), 1..20),
        damage in proptest::option::of((any::<prop::sample::Index>(), 0_usize..50, 1_u8..=255)),
        seed in any::<u64>(),
    ) {
        let mut ulpdus = honest_ulpdus(&ops);
        if let (Some((which, at, flip)), false) = (damage, ulpdus.is_empty()) {
            let ulpdu = which.get(&ulpdus).clone();
            let which = which.index(ulpdus.len());
            ulpdus[which][at % ulpdu.len()] ^= flip;
        }
        any_session(&ulpdus, seed);
    }
}
