//! Batches that wait for their turn: what is in the way of one of them is not laid at the door of the next, and others who
//! wait do not pass it for ever.

use crate::common::grain;
use ftl::snapshot::{Slot, SnapshotChange};
use ftl::{
    AtomicBatch, Device, DurableError, Event, FormatOptions, Ftl, GRAIN_BYTES, Get, Intent, Lba,
    LbaRange, MemDevice, OpenOptions, PageRef, Port, Time, Token,
};
use std::collections::HashMap;
use std::sync::Arc;

const PORT: Port = Port(0);

struct Rig {
    ftl: Arc<Ftl>,
    device: MemDevice,
    now: u64,
    token: u64,
    durable: HashMap<Token, Result<(), DurableError>>,
    pages: HashMap<Token, PageRef>,
}

impl Rig {
    fn new(capacity: u64, pool_frames: usize) -> Self {
        let mut device = MemDevice::new(1024 * GRAIN_BYTES).expect("memory");
        let format = FormatOptions {
            segment_bytes: Some(16 * GRAIN_BYTES as u64),
            capacity_grains: Some(capacity),
            ..FormatOptions::default()
        };
        Ftl::format(&mut device, &format).expect("format");
        let options = OpenOptions {
            pool_frames,
            ports: 1,
            ..OpenOptions::default()
        };
        let (ftl, _) = Ftl::open(&mut device, options).expect("open");
        Self {
            ftl,
            device,
            now: 0,
            token: 0,
            durable: HashMap::new(),
            pages: HashMap::new(),
        }
    }

    fn token(&mut self) -> Token {
        self.token += 1;
        Token(self.token)
    }

    /// Takes what has been answered, without anything being carried out.
    fn listen(&mut self) {
        while let Some(event) = self.ftl.poll_event(PORT) {
            let twice = match event {
                Event::Page { token, result } => {
                    let page = result.expect("a page");
                    self.pages.insert(token, page).is_some()
                }
                Event::Durable { token, result } => self.durable.insert(token, result).is_some(),
            };
            assert!(!twice, "answered twice");
        }
    }

    /// Carries out what there is to do, until there is nothing.
    fn settle(&mut self) {
        while let Some(action) = self.ftl.poll_action(PORT) {
            self.device.submit(action);
            while let Some((id, result)) = self.device.poll(true) {
                self.now += 1;
                self.ftl.handle_done(PORT, Time(self.now), id, result);
            }
        }
        self.listen();
    }

    fn sync(&mut self) {
        let token = self.token();
        self.ftl.sync(PORT, LbaRange::ALL, token);
        self.settle();
        assert_eq!(self.durable.remove(&token), Some(Ok(())));
    }

    fn write(&mut self, lba: u64) {
        let token = self.token();
        let page = match self.ftl.get(PORT, Lba(lba), Intent::Overwrite, token) {
            Get::Ready(page) => page,
            Get::Pending => {
                self.settle();
                self.pages.remove(&token).expect("a page")
            }
            Get::Failed(error) => panic!("{error}"),
        };
        page.copy_in(0, &grain(Lba(lba), 1));
        drop(page);
    }

    fn commit(&mut self, batch: AtomicBatch) -> Token {
        let token = self.token();
        self.ftl.commit(PORT, batch, token).expect("a fair batch");
        token
    }

    fn make_snapshot(&mut self, slot: usize) {
        let token = self.token();
        self.ftl.admit_images(PORT, token);
        self.settle();
        assert_eq!(self.durable.remove(&token), Some(Ok(())));
        self.sync();
        let token = self.token();
        let make = SnapshotChange::Make(Slot::new(slot).expect("a slot"));
        let batch = AtomicBatch::new();
        let made = self.ftl.commit_snapshot(PORT, batch, Some(make), token);
        made.expect("a fair batch");
        self.settle();
        assert_eq!(self.durable.remove(&token), Some(Ok(())));
    }
}

/// A move for whose sources a snapshot leaves no space is refused. The batch behind it, which waits for a page meanwhile and
/// needs no space, is not (I3: a batch that is refused has a reason of its own).
#[test]
fn the_next_is_not_refused() {
    let mut rig = Rig::new(64, 32);
    // First, so that their pages have left the memory.
    rig.write(500);
    rig.write(501);
    for lba in 0..40 {
        rig.write(lba);
        rig.sync();
    }
    rig.make_snapshot(0);
    let mut moves = AtomicBatch::new();
    moves.remap(Lba(0), Lba(1000), 30);
    // So that it waits until the other one is there.
    moves.patch(Lba(500), 0, vec![7; 8]);
    let moves = rig.commit(moves);
    let mut patch = AtomicBatch::new();
    patch.patch(Lba(501), 0, vec![7; 8]);
    let patch = rig.commit(patch);
    rig.listen();
    assert!(rig.durable.is_empty(), "the pages were in memory");
    rig.settle();
    rig.sync();
    assert_eq!(rig.durable[&moves], Err(DurableError::NoSpace));
    assert_eq!(rig.durable[&patch], Ok(()));
}

/// One frame becomes free now and then, and more readers wait for one than there are. A batch that came before them gets the
/// first.
#[test]
fn frames_are_given_in_order() {
    const FRAMES: u64 = 16;
    let mut rig = Rig::new(256, FRAMES as usize);
    for lba in 0..200 {
        rig.write(lba);
        rig.sync();
    }
    let mut held = Vec::new();
    for lba in 0..FRAMES {
        let token = rig.token();
        match rig.ftl.get(PORT, Lba(lba), Intent::Read, token) {
            Get::Ready(page) => held.push(page),
            Get::Pending => {
                rig.settle();
                held.push(rig.pages.remove(&token).expect("a page"));
            }
            Get::Failed(error) => panic!("{error}"),
        }
    }
    let mut patch = AtomicBatch::new();
    patch.patch(Lba(100), 0, vec![7; 8]);
    let patch = rig.commit(patch);
    for lba in 150..150 + FRAMES {
        let token = rig.token();
        let got = rig.ftl.get(PORT, Lba(lba), Intent::Read, token);
        assert!(matches!(got, Get::Pending), "{got:?}");
    }
    rig.settle();
    assert!(rig.pages.is_empty(), "there are no frames");
    drop(held.pop());
    rig.settle();
    rig.sync();
    assert_eq!(rig.durable.get(&patch), Some(&Ok(())), "it has been passed");
}
