//! Many pages at once: got and put with one look at what all share, and written out by another driver when many of them are
//! dirty (`OpenOptions::write_out_apart`).

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::grain;
use ftl::{
    Action, Device, Event, FormatOptions, Ftl, GRAIN_BYTES, Get, GetError, Intent, Lba, LbaRange,
    MediaOp, MemDevice, OpenOptions, PageRef, Port, Time, Token,
};

const FRAMES: usize = 1024;
const HELPER: Port = Port(0);
const OURS: Port = Port(1);

struct Rig {
    ftl: Arc<Ftl>,
    device: MemDevice,
    now: u64,
    /// How often the helper was called.
    called: Arc<AtomicUsize>,
}

impl Rig {
    fn new(write_out_apart: bool) -> Self {
        let mut device = MemDevice::new(16_384 * GRAIN_BYTES).expect("memory");
        let format = FormatOptions {
            segment_bytes: Some(1 << 20),
            ..FormatOptions::default()
        };
        Ftl::format(&mut device, &format).expect("format");
        let options = OpenOptions {
            pool_frames: FRAMES,
            ports: 2,
            write_out_apart,
            ..OpenOptions::default()
        };
        let (ftl, _) = Ftl::open(&mut device, options).expect("open");
        let called = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&called);
        let wake = move || {
            counter.fetch_add(1, Ordering::Relaxed);
        };
        ftl.set_waker(HELPER, Box::new(wake));
        Self {
            ftl,
            device,
            now: 0,
            called,
        }
    }

    fn get_all(&self, lbas: std::ops::Range<u64>, intent: Intent) -> Vec<Get> {
        let lbas: Vec<Lba> = lbas.map(Lba).collect();
        self.ftl.get_all(OURS, &lbas, intent, |n| Token(n as u64))
    }

    /// Pages to be overwritten, all of which are to be had at once.
    fn pages(&self, lbas: std::ops::Range<u64>) -> Vec<PageRef> {
        let ready = |got| match got {
            Get::Ready(page) => page,
            other => panic!("{other:?}"),
        };
        let got = self.get_all(lbas, Intent::Overwrite);
        got.into_iter().map(ready).collect()
    }

    fn overwrite(&self, lbas: std::ops::Range<u64>, version: u64) {
        let pages = self.pages(lbas);
        for page in &pages {
            page.copy_in(0, &grain(page.lba(), version));
        }
        self.ftl.put_all(pages);
    }

    fn actions(&self, port: Port) -> Vec<Action> {
        std::iter::from_fn(|| self.ftl.poll_action(port)).collect()
    }

    /// Carries actions out; the events that come of it.
    fn carry_out(&mut self, port: Port, actions: Vec<Action>) -> Vec<Event> {
        for action in actions {
            self.device.submit(action);
            let (id, result) = self.device.poll(true).expect("it completes");
            self.now += 1;
            self.ftl.handle_done(port, Time(self.now), id, result);
        }
        std::iter::from_fn(|| self.ftl.poll_event(OURS)).collect()
    }

    /// Everybody drives until nothing is left to do; the events.
    fn settle(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        loop {
            self.ftl.write_out_some();
            let mut quiet = true;
            for port in [HELPER, OURS] {
                let actions = self.actions(port);
                quiet &= actions.is_empty();
                events.extend(self.carry_out(port, actions));
            }
            if quiet && !self.ftl.has_write_out_due() {
                return events;
            }
        }
    }

    /// Writes so many grains that the first of them are in memory no more: they are on the media, with version 1.
    fn fill(&mut self) {
        for at in (0..3000).step_by(200) {
            self.overwrite(at..at + 200, 1);
            self.settle();
        }
        self.called.store(0, Ordering::Relaxed);
    }

    /// Nothing is dirty then.
    fn sync(&mut self) {
        self.ftl.sync(OURS, LbaRange::ALL, Token(0));
        self.settle();
    }

    fn called(&self) -> usize {
        self.called.load(Ordering::Relaxed)
    }

    fn read(&mut self, lba: u64) -> Vec<u8> {
        let page = match self.get_all(lba..lba + 1, Intent::Read).pop() {
            Some(Get::Ready(page)) => page,
            Some(Get::Pending) => match self.settle().pop() {
                Some(Event::Page { result, .. }) => result.expect("page"),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        };
        let mut bytes = vec![0; GRAIN_BYTES];
        page.copy_out(0, &mut bytes);
        bytes
    }
}

fn writes(actions: &[Action]) -> usize {
    let is_write = |action: &&Action| matches!(action.op, MediaOp::Write { .. });
    actions.iter().filter(is_write).count()
}

/// Whoever puts a page has nothing to do with the write-outs of others; the helper is called once, and makes one write-out at
/// a time until no more than half of the pages is dirty.
#[test]
fn many_dirty_pages_are_left_to_the_helper() {
    let mut rig = Rig::new(true);
    rig.fill();
    rig.sync();
    rig.overwrite(0..500, 2);
    assert!(!rig.ftl.has_write_out_due());
    rig.overwrite(500..750, 2);
    assert!(rig.ftl.has_write_out_due());
    assert_eq!(rig.called(), 1);
    let ours = rig.actions(OURS);
    assert_eq!(writes(&ours), 0, "{ours:?}");
    rig.overwrite(750..755, 2);
    assert_eq!(rig.called(), 1);

    let mut rounds = 0;
    while rig.ftl.has_write_out_due() {
        rig.ftl.write_out_some();
        let actions = rig.actions(HELPER);
        // As many pages as a write-out has at most, and what had formed before.
        assert!(writes(&actions) <= 3, "{actions:?}");
        assert_eq!(rig.actions(OURS).len(), 0);
        rig.carry_out(HELPER, actions);
        rounds += 1;
        assert!(rounds < 10, "no end");
    }
    // Half of 1,024 may stay dirty, and a write-out has 191 pages at most.
    assert!(rounds >= 2, "{rounds}");
    for lba in (0..755).step_by(7) {
        assert_eq!(rig.read(lba), grain(Lba(lba), 2));
    }
}

/// Without anybody's help it is done where the pages are put, as it is where the helper does not keep up.
#[test]
fn who_puts_helps_where_nobody_else_does() {
    for (write_out_apart, put) in [(false, 600), (true, 800)] {
        let mut rig = Rig::new(write_out_apart);
        rig.fill();
        rig.sync();
        rig.overwrite(0..put, 2);
        assert!(writes(&rig.actions(OURS)) > 0, "{put} put");
    }
}

/// Pages that somebody holds can not go out: the helper is not asked to try for ever.
#[test]
fn pages_that_are_held_call_nobody() {
    let mut rig = Rig::new(true);
    // In memory, so that they are shared with whoever writes.
    rig.overwrite(0..600, 1);
    rig.settle();
    let held = rig.get_all(0..600, Intent::Write);
    let is_page = |got: &Get| matches!(got, Get::Ready(_));
    assert!(held.iter().all(is_page));
    rig.overwrite(0..600, 2);
    rig.actions(OURS);
    assert!(rig.ftl.has_write_out_due());
    for _ in 0..3 {
        rig.ftl.write_out_some();
        let actions = rig.actions(HELPER);
        rig.carry_out(HELPER, actions);
    }
    assert!(!rig.ftl.has_write_out_due());
    drop(held);
    rig.overwrite(600..700, 2);
    rig.settle();
    for lba in [0, 599, 600, 699] {
        assert_eq!(rig.read(lba), grain(Lba(lba), 2));
    }
}

/// What is to be read is all asked for at once; of what is to be overwritten nothing is asked for behind a page that must be
/// waited for, because two who hold some and wait for each other's would wait for ever.
#[test]
fn overwrites_are_asked_for_in_order() {
    let mut rig = Rig::new(false);
    rig.fill();
    let got = rig.get_all(0..8, Intent::Read);
    assert!(got.iter().all(|got| matches!(got, Get::Pending)), "{got:?}");
    // They are read for somebody, so nobody can overwrite them now.
    let got = rig.get_all(2..12, Intent::Overwrite);
    assert!(matches!(got[..], [Get::Pending]), "{got:?}");
    // What is in front of such a page is had.
    let [pending] = &rig.get_all(22..23, Intent::Read)[..] else {
        panic!("one page");
    };
    assert!(matches!(pending, Get::Pending), "{pending:?}");
    let got = rig.get_all(20..30, Intent::Overwrite);
    let expected = matches!(got[..], [Get::Ready(_), Get::Ready(_), Get::Pending]);
    assert!(expected, "{got:?}");
    drop(got);
    let events = rig.settle();
    assert_eq!(events.len(), 8 + 1 + 1 + 1);
    drop(events);

    let end = Lba::END.0;
    let got = rig.get_all(end - 1..end + 1, Intent::Overwrite);
    let [Get::Ready(_), Get::Failed(error)] = &got[..] else {
        panic!("{got:?}");
    };
    assert_eq!(*error, GetError::OutOfRange);
}

/// Pages put together are what they are when put one by one: those that are filled replace their grains, others change nothing.
#[test]
fn pages_put_together() {
    let mut rig = Rig::new(false);
    rig.fill();
    // One is in memory, and shared with whoever wants it.
    assert_eq!(rig.read(10), grain(Lba(10), 1));
    let pages = rig.pages(20..23);
    pages[0].copy_in(0, &grain(Lba(20), 2));
    pages[1].copy_in(0, &[1; 100]);
    let mut shared = rig.pages(10..11);
    shared[0].copy_in(0, &grain(Lba(10), 2));
    shared.extend(pages);
    rig.ftl.put_all(shared);
    rig.ftl.self_check();
    assert_eq!(rig.read(10), grain(Lba(10), 2));
    assert_eq!(rig.read(20), grain(Lba(20), 2));
    assert_eq!(rig.read(21), grain(Lba(21), 1));
    assert_eq!(rig.read(22), grain(Lba(22), 1));
}

/// Pieces of memory that reads go to, where those beside each other are one.
fn pieces(reads: &[Action]) -> usize {
    let memory = |action: &Action| match &action.op {
        MediaOp::Read { buf, .. } => (buf.as_ptr() as usize, buf.len()),
        op => panic!("{op:?}"),
    };
    let places: Vec<_> = reads.iter().map(memory).collect();
    let breaks = places
        .windows(2)
        .filter(|pair| pair[0].0 + pair[0].1 != pair[1].0);
    1 + breaks.count()
}

/// Pages that are asked for together come to lie side by side in memory, even where random requests have mixed everything up.
#[test]
fn many_pages_lie_side_by_side() {
    let mut rig = Rig::new(false);
    for at in (0..12_000).step_by(200) {
        rig.overwrite(at..at + 200, 1);
        rig.settle();
    }
    let mut random: u64 = 1;
    for n in 0..8 * FRAMES {
        // Nobody's clock goes on here: what would be written out because of its age.
        if n % (FRAMES / 2) == 0 {
            rig.sync();
        }
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let lba = (random >> 33) % 12_000;
        match random >> 62 {
            0 => {
                rig.overwrite(lba..lba + 1, 1);
                rig.settle();
            }
            _ => drop(rig.read(lba)),
        }
    }
    rig.sync();
    for start in (0..4096).step_by(256) {
        let got = rig.get_all(start..start + 256, Intent::Read);
        let missing = got.iter().filter(|got| matches!(got, Get::Pending));
        let missing = missing.count();
        let reads = rig.actions(OURS);
        assert_eq!(reads.len(), missing);
        assert!(missing > 200, "{missing}");
        drop(got);
        // In the end all are in blocks of 16. What was used more than once is in the way until the pool has gone round some
        // times, because it stays when those beside it go.
        let most = if start < 3072 { missing / 3 } else { 24 };
        assert!(pieces(&reads) <= most, "{} of {missing}", pieces(&reads));
        rig.carry_out(OURS, reads);
        rig.ftl.self_check();
    }
}

/// Whoever reads much at once does not push out a page that is used, also if it lies among others that are not.
#[test]
fn what_is_used_outlives_a_scan() {
    let mut rig = Rig::new(false);
    for at in (0..6_000).step_by(200) {
        rig.overwrite(at..at + 200, 1);
        rig.settle();
    }
    rig.sync();
    let scan = |rig: &mut Rig, range: Range<u64>| {
        let got = rig.get_all(range, Intent::Read);
        let pending = got.iter().filter(|got| matches!(got, Get::Pending));
        let pending = pending.count();
        let reads = rig.actions(OURS);
        drop(got);
        rig.carry_out(OURS, reads);
        pending
    };
    // Away with all of it, and then the first sixteen again, two of which are used.
    for start in (1_000..4_072).step_by(256) {
        scan(&mut rig, start..start + 256);
    }
    assert_eq!(scan(&mut rig, 0..16), 16);
    let used = [0, 5];
    for start in (4_072..5_864).step_by(256) {
        for lba in used {
            assert_eq!(scan(&mut rig, lba..lba + 1), 0, "{lba} at {start}");
        }
        scan(&mut rig, start..start + 256);
    }
    assert_eq!(scan(&mut rig, 6..7), 1, "what was not used is gone");
    rig.ftl.self_check();
}
