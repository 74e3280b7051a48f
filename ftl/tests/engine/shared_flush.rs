//! Writers who wait for durability at the same time share the log: their pages leave in few writes, and one flush answers
//! all of them (DESIGN §3, D7). Counted, not timed.

use std::collections::{BTreeSet, VecDeque};

use crate::common::grain;
use ftl::{
    Action, AtomicBatch, CommitError, Device, Event, FormatOptions, Ftl, GRAIN_BYTES, Get, Intent,
    Lba, LbaRange, MediaOp, MemDevice, OpenOptions, Port, Time, Token, Volume,
};

const WRITERS: u64 = 16;
const PORTS: u16 = 4;

/// What the device was asked for.
#[derive(Debug, Default)]
struct Asked {
    writes: u64,
    flushes: u64,
}

struct Rig {
    ftl: std::sync::Arc<Ftl>,
    device: MemDevice,
    asked: Asked,
    durable: BTreeSet<u64>,
    now: u64,
}

impl Rig {
    fn new() -> Self {
        let mut device = MemDevice::new(4096 * GRAIN_BYTES).expect("memory");
        Ftl::format(&mut device, &FormatOptions::default()).expect("format");
        let options = OpenOptions {
            ports: PORTS,
            ..OpenOptions::default()
        };
        let (ftl, _) = Ftl::open(&mut device, options).expect("open");
        Self {
            ftl,
            device,
            asked: Asked::default(),
            durable: BTreeSet::new(),
            now: 0,
        }
    }

    fn port(writer: u64) -> Port {
        Port((writer % u64::from(PORTS)) as u16)
    }

    /// What a WRITE through a sync STag does: fills a page, puts it, and asks for durability.
    fn write(&self, writer: u64, version: u64) {
        let (port, lba) = self.put(writer, version);
        let token = Token(version << 32 | writer);
        self.ftl.sync(port, LbaRange::new(lba, 1), token);
    }

    /// Fills a page and puts it.
    fn put(&self, writer: u64, version: u64) -> (Port, Lba) {
        let (port, lba) = (Self::port(writer), Lba(1000 + writer));
        let got = self.ftl.get(port, lba, Intent::Overwrite, Token(u64::MAX));
        let Get::Ready(page) = got else {
            panic!("{got:?}");
        };
        page.copy_in(0, &grain(lba, version));
        drop(page);
        (port, lba)
    }

    fn actions(&self) -> VecDeque<(Port, Action)> {
        let ports = (0..PORTS).map(Port);
        ports
            .flat_map(|port| std::iter::from_fn(move || Some((port, self.ftl.poll_action(port)?))))
            .collect()
    }

    /// Carries an action out.
    fn carry_out(&mut self, port: Port, action: Action) {
        match &action.op {
            MediaOp::Write { .. } => self.asked.writes += 1,
            MediaOp::Flush => self.asked.flushes += 1,
            MediaOp::Read { .. } | MediaOp::Discard { .. } => {}
        }
        self.device.submit(action);
        let (id, result) = self.device.poll(true).expect("it completes");
        self.now += 1;
        self.ftl.handle_done(port, Time(self.now), id, result);
        for port in (0..PORTS).map(Port) {
            while let Some(event) = self.ftl.poll_event(port) {
                let Event::Durable { token, result } = event else {
                    panic!("{event:?}");
                };
                result.expect("durable");
                assert!(self.durable.insert(token.0), "answered twice");
            }
        }
    }

    fn settle(&mut self) {
        loop {
            let actions = self.actions();
            if actions.is_empty() {
                return;
            }
            for (port, action) in actions {
                self.carry_out(port, action);
            }
        }
    }
}

/// Sixteen writers on four ports, all before the device is asked for anything: three writes and three flushes at the most
/// for all of them, where one after the other would take sixteen of each.
#[test]
fn concurrent_sync_writers_share_a_flush() {
    let mut rig = Rig::new();
    rig.settle();
    rig.asked = Asked::default();
    (0..WRITERS).for_each(|writer| rig.write(writer, 1));
    rig.settle();
    assert_eq!(rig.durable.len() as u64, WRITERS);
    let Asked { writes, flushes } = rig.asked;
    println!("{WRITERS} at once: {writes} writes, {flushes} flushes");
    assert!(writes <= 3 && flushes <= 3, "{:?}", rig.asked);

    rig.asked = Asked::default();
    for writer in 0..WRITERS {
        rig.write(writer, 2);
        rig.settle();
    }
    let Asked { writes, flushes } = rig.asked;
    println!("{WRITERS} in turns: {writes} writes, {flushes} flushes");
    assert!(writes >= WRITERS, "the count means something");
    assert_eq!(rig.durable.len() as u64, 2 * WRITERS);
}

/// Who comes while the device is busy with others waits for none of its own: all of them share what goes out next.
#[test]
fn who_comes_during_a_flush_shares_the_next() {
    let mut rig = Rig::new();
    rig.settle();
    rig.write(0, 1);
    let first = rig.actions();
    rig.asked = Asked::default();
    (1..WRITERS).for_each(|writer| rig.write(writer, 1));
    let more = rig.actions();
    for (port, action) in first.into_iter().chain(more) {
        rig.carry_out(port, action);
    }
    rig.settle();
    assert_eq!(rig.durable.len() as u64, WRITERS);
    assert!(
        rig.asked.writes <= 5 && rig.asked.flushes <= 5,
        "{:?}",
        rig.asked
    );
}

/// What has been put goes along with a batch: one write and one flush make both durable. More than one write-out takes is
/// refused, and so is what is on its way already or waits for others; nothing of the batch takes effect then.
#[test]
fn what_was_put_goes_along_with_a_batch() {
    let mut rig = Rig::new();
    rig.settle();
    let most = AtomicBatch::ALONG_MAX as u64;
    for writer in 0..most {
        rig.put(writer, 1);
    }
    rig.asked = Asked::default();
    let record = Lba(7);
    let batch = |bytes: &[u8]| {
        let mut batch = AtomicBatch::new();
        batch.patch(record, 9, bytes);
        batch.along(LbaRange::new(Lba(1000), 1000));
        batch
    };
    let done = Token(5);
    rig.ftl.commit(Port(1), batch(b"grown"), done).unwrap();
    rig.settle();
    assert!(rig.durable.contains(&done.0));
    let Asked { writes, flushes } = rig.asked;
    assert!(writes == 1 && flushes <= 1, "{:?}", rig.asked);

    for writer in 0..=most {
        rig.put(writer, 2);
    }
    let refused = rig.ftl.commit(Port(1), batch(b"wrong"), Token(6));
    assert_eq!(refused, Err(CommitError::ManyAlong));
    // From what is on the media.
    let Rig { ftl, device, .. } = rig;
    drop(ftl);
    let (volume, _) = Volume::open(device, OpenOptions::default()).expect("open");
    let mut got = vec![0; GRAIN_BYTES];
    for lba in (0..most).map(|writer| 1000 + writer) {
        volume.read(lba * GRAIN_BYTES as u64, &mut got).unwrap();
        assert!(got == grain(Lba(lba), 1), "{lba}");
    }
    volume
        .read(record.0 * GRAIN_BYTES as u64, &mut got)
        .unwrap();
    assert_eq!(&got[9..14], b"grown");
}
