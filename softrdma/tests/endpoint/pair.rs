//! Two endpoints in memory: work in both directions, late pages, barriers.

use crate::common::{Residency, TestPages, completions, connect, pattern, settle, table};
use softrdma::{
    BackingId, Buffer, Config, LocalSlice, Operation, ProtectionDomain, RecvBuffer, RegionSpec,
    Rights, Served, Source, WorkRequest, WrId,
};

const FILE: BackingId = BackingId(7);

/// WRITE then READ of every awkward length and alignment comes back equal, with pages there or not, at any chunking.
#[test]
fn write_and_read_back() {
    for (residency, chunk) in [
        (Residency::Always, 1 << 16),
        (Residency::Never, 1 << 16),
        (Residency::Sometimes, 1),
        (Residency::Sometimes, 997),
    ] {
        let (ours, theirs) = (table(1), table(2));
        let pages = TestPages::new(residency, 5);
        let mut pair = connect(Config::default(), &ours, Config::default(), &theirs, pages);
        pair.chunk = chunk;
        let all = Rights::REMOTE_READ | Rights::REMOTE_WRITE;
        let region = theirs
            .register(RegionSpec::pages(
                ProtectionDomain(0),
                all,
                FILE,
                3 * 4096,
                64 * 4096,
            ))
            .unwrap();
        for (i, (offset, len)) in [
            (0, 1),
            (1, 4095),
            (4095, 2),
            (0, 4096),
            (4096, 8192),
            (100, 100_000),
            (8192, 131_072),
            (50, 0),
        ]
        .into_iter()
        .enumerate()
        {
            let data = pattern(i as u64, len);
            let begun = pair.b.pages.served.len();
            let sink = Buffer::zeroed(len);
            let (write, read) = (WrId(2 * i as u64), WrId(2 * i as u64 + 1));
            let source = Source::Bytes(data.clone());
            let op = Operation::Write {
                source,
                remote: region.remote(offset),
            };
            pair.a
                .connection
                .post_send(WorkRequest::new(write, op))
                .unwrap();
            let op = Operation::Read {
                sink: LocalSlice::whole(&sink),
                remote: region.remote(offset),
            };
            pair.a
                .connection
                .post_send(WorkRequest::new(read, op))
                .unwrap();
            settle(&mut pair);
            let done = completions(&mut pair.a.connection);
            assert_eq!(
                done.iter().map(|c| c.wr_id).collect::<Vec<_>>(),
                [write, read]
            );
            assert!(
                done.iter()
                    .all(|c| c.status.is_success() && c.bytes as usize == len)
            );
            assert!(sink.to_vec(0, len) == data);
            assert!(pair.b.pages.content(FILE, 3 * 4096 + offset, len) == data);
            assert_eq!(pair.b.pages.pins.get(), 0, "every page was given back");
            let served = [Served::Write, Served::Read].map(|what| (what, len as u64, 0));
            // The connection has begun with a WRITE of no bytes.
            assert_eq!(begun, 1 + 2 * i);
            assert_eq!(pair.b.pages.served[begun..], served);
        }
    }
}

#[test]
fn messages_both_ways() {
    let (ours, theirs) = (table(1), table(2));
    let pages = TestPages::new(Residency::Always, 5);
    let mut pair = connect(Config::default(), &ours, Config::default(), &theirs, pages);
    for (i, len) in [0, 1, 1000, 200_000].into_iter().enumerate() {
        let data = pattern(i as u64, len);
        pair.b
            .connection
            .post_recv(WrId(1), RecvBuffer::Vec(200_000))
            .unwrap();
        let buffer = Buffer::zeroed(200_000);
        pair.a
            .connection
            .post_recv(WrId(2), RecvBuffer::Local(LocalSlice::whole(&buffer)))
            .unwrap();
        let send = |solicited| {
            let op = Operation::Send {
                source: Source::Bytes(data.clone()),
                solicited,
                invalidate: None,
            };
            WorkRequest::new(WrId(3), op)
        };
        pair.a.connection.post_send(send(true)).unwrap();
        pair.b.connection.post_send(send(false)).unwrap();
        settle(&mut pair);
        let got = completions(&mut pair.b.connection);
        assert!(
            got.iter()
                .any(|c| c.message.as_ref() == Some(&data) && c.solicited)
        );
        let got = completions(&mut pair.a.connection);
        assert!(
            got.iter()
                .any(|c| c.wr_id == WrId(2) && c.bytes as usize == len && !c.solicited)
        );
        assert!(buffer.to_vec(0, len) == data);
    }
    let sends = [0, 1, 1000, 200_000].map(|len| (Served::Send, len, 0));
    // The connection has begun with a WRITE of no bytes.
    assert_eq!(pair.b.pages.served[1..], sends);
}
