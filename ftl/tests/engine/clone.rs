//! Clones from outside: what they cost, what they wait for, and what becomes of grains with many names.

use crate::common::{Rng, at, grain, read, reopen, volume};
use ftl::device::sim::SimRng;
use ftl::{
    Action, ActionId, AtomicBatch, CommitError, Device, FormatOptions, Ftl, GRAIN_BYTES, GcPolicy,
    GrainState, HeaderDevice, Intent, Lba, LbaRange, MediaError, MediaOp, MemDevice, OpenOptions,
    Port, Token, Volume, VolumeError,
};
use std::collections::BTreeMap;

/// Counts the bytes that are written.
struct Counting {
    device: HeaderDevice,
    written: u64,
}

impl Device for Counting {
    fn len_bytes(&self) -> u64 {
        self.device.len_bytes()
    }
    fn submit(&mut self, action: Action) {
        if let MediaOp::Write { buf, .. } = &action.op {
            self.written += buf.len() as u64;
        }
        self.device.submit(action);
    }
    fn poll(&mut self, wait: bool) -> Option<(ActionId, Result<(), MediaError>)> {
        self.device.poll(wait)
    }
}

/// What a scan finds is what is in memory (I5).
fn agrees_with_scan(live: Volume<MemDevice>) -> Volume<MemDevice> {
    live.sync(LbaRange::ALL).expect("sync");
    live.ftl().self_check();
    let before = live.ftl().map_digest();
    let options = OpenOptions {
        pool_frames: 64,
        rebuild: true,
        ..OpenOptions::default()
    };
    let (live, _) = Volume::open(live.into_device(), options).expect("open");
    assert_eq!(live.ftl().map_digest(), before);
    live.ftl().self_check();
    live
}

/// 256 MiB of mapped grains get another name for less than 64 KiB of media writes, and count twice.
#[test]
fn cost_is_by_ranges() {
    const GRAINS: u64 = AtomicBatch::MOVED_MAX;
    let mut device = Counting {
        device: HeaderDevice::new(1 << 30),
        written: 0,
    };
    Ftl::format(&mut device, &FormatOptions::default()).expect("format");
    let options = OpenOptions {
        pool_frames: 1024,
        dataless: true,
        checkpoint_headers: 0,
        ..OpenOptions::default()
    };
    let (volume, _) = Volume::open(device, options).expect("open");
    let bytes = vec![1; 64 * GRAIN_BYTES];
    for first in (0..GRAINS).step_by(64) {
        volume.write(at(Lba(first)), &bytes).expect("write");
    }
    volume.sync(LbaRange::ALL).expect("sync");
    let before = volume.with_device(|d| d.written);
    let to = Lba(7 << 24);
    volume.clone_range(Lba(0), to, GRAINS).expect("clone");
    let written = volume.with_device(|d| d.written) - before;
    assert!(written < 64 << 10, "{written} bytes written");
    assert_eq!(volume.mapped_count(LbaRange::new(to, GRAINS)), GRAINS);
    assert_eq!(volume.space().mapped, 2 * GRAINS);
    volume.ftl().self_check();
}

/// Whatever happens under one name, the other keeps what it had (I2): written to, forgotten, renamed, cloned again.
#[test]
fn names_are_independent() {
    let live = volume(16 + 24 * 16, 16, 64);
    let (a, b, c, d) = (Lba(0), Lba(100), Lba(200), Lba(300));
    for n in 0..6 {
        live.write(at(a.offset(n)), &grain(a.offset(n), 1))
            .expect("write");
    }
    live.clone_range(a, b, 8).expect("clone");
    live.clone_range(b.offset(2), c, 4)
        .expect("clone of a clone");
    live.write(at(a), &grain(a, 2)).expect("write");
    live.write(at(b.offset(1)), &grain(b, 3)).expect("write");
    live.trim(LbaRange::new(a.offset(2), 1)).expect("trim");
    live.trim(LbaRange::new(b.offset(3), 1)).expect("trim");
    live.remap(a.offset(4), d, 1).expect("remap");
    let check = |live: &Volume<MemDevice>| {
        let old = |n| grain(a.offset(n), 1);
        assert!(read(live, a) == grain(a, 2));
        assert!(read(live, b) == old(0));
        assert!(read(live, a.offset(1)) == old(1));
        assert!(read(live, b.offset(1)) == grain(b, 3));
        assert_eq!(live.ftl().state(a.offset(2)), GrainState::Unmapped);
        assert!(read(live, b.offset(2)) == old(2));
        assert!(read(live, c) == old(2));
        assert!(read(live, a.offset(3)) == old(3));
        assert_eq!(live.ftl().state(b.offset(3)), GrainState::Unmapped);
        assert!(read(live, c.offset(1)) == old(3));
        assert_eq!(live.ftl().state(a.offset(4)), GrainState::Unmapped);
        assert!(read(live, d) == old(4));
        assert!(read(live, c.offset(2)) == old(4));
        // A hole is cloned as a hole.
        assert_eq!(live.ftl().state(b.offset(6)), GrainState::Unmapped);
        live.ftl().self_check();
    };
    check(&live);
    live.sync(LbaRange::ALL).expect("sync");
    let live = reopen(live.into_device(), 64);
    check(&live);
    check(&agrees_with_scan(live));
}

/// Clones of clones while everything is collected again and again: names, versions and the lives of the records hold
/// over many lives of all segments (I2, I4, I5).
#[test]
fn many_generations() {
    let mut live = volume(16 + 24 * 16, 16, 64);
    let places = [Lba(0), Lba(1 << 24), Lba(5 << 24), Lba(9 << 30)];
    let mut rng = Rng::new(5);
    let count = live.space().capacity * 9 / 10 / places.len() as u64;
    let mut model: BTreeMap<Lba, Vec<u8>> = BTreeMap::new();
    for round in 1..=150 {
        for _ in 0..count {
            let lba = places[rng.below(4) as usize].offset(rng.below(count));
            let bytes = grain(lba, round);
            live.write(at(lba), &bytes).expect("write");
            model.insert(lba, bytes);
        }
        let first = rng.below(4) as usize;
        let (from, to) = (
            places[first],
            places[(first + 1 + rng.below(3) as usize) % 4],
        );
        let (start, most) = (rng.below(count), 1 + rng.below(count));
        let length = most.min(count - start);
        live.clone_range(from.offset(start), to.offset(start), length)
            .expect("clone");
        for n in start..start + length {
            match model.get(&from.offset(n)).cloned() {
                Some(bytes) => model.insert(to.offset(n), bytes),
                None => model.remove(&to.offset(n)),
            };
        }
        if round % 8 == 0 {
            let gone = LbaRange::new(places[first].offset(start), length);
            live.trim(gone).expect("trim");
            model.retain(|&lba, _| !gone.contains(lba));
        }
        live.ftl().self_check();
        if round % 25 == 0 {
            live.sync(LbaRange::ALL).expect("sync");
            live = reopen(live.into_device(), 64);
        }
        if round % 40 == 0 {
            live = agrees_with_scan(live);
        }
        for (&lba, bytes) in &model {
            assert!(read(&live, lba) == *bytes, "round {round}, {lba}");
        }
        assert_eq!(live.space().mapped, model.len() as u64);
    }
    let stats = live.ftl().stats();
    assert!(
        stats.tombstones < 150,
        "clones expire: {}",
        stats.tombstones
    );
}

/// A grain with more names than a header has room for is relocated in rounds, and no name is lost (I2, I5).
#[test]
fn more_names_than_a_header_holds() {
    const NAMES: u64 = 512;
    let live = volume(16 + 128 * 16, 16, 64);
    let (first, busy) = (Lba(1 << 30), Lba(0));
    let bytes = grain(first, 7);
    live.write(at(first), &bytes).expect("write");
    let mut names = 1;
    while names < NAMES {
        live.clone_range(first, first.offset(names), names)
            .expect("clone");
        names *= 2;
    }
    let spare = live.space().capacity - NAMES;
    let mut rng = SimRng::new(3);
    for round in 0..12 {
        for _ in 0..spare {
            let lba = busy.offset(rng.below(spare));
            live.write(at(lba), &grain(lba, round)).expect("write");
        }
        // Its segment looks full: it is collected when there are so many tombstones that old segments are.
        for _ in 0..60 {
            live.trim(LbaRange::new(Lba(1 << 40), 1)).expect("trim");
        }
        live.sync(LbaRange::ALL).expect("sync");
        live.ftl().self_check();
    }
    let check = |live: &Volume<MemDevice>| {
        for n in 0..NAMES {
            assert!(read(live, first.offset(n)) == bytes, "name {n}");
        }
    };
    assert!(live.ftl().stats().names_left > 0, "all names fitted");
    check(&live);
    let live = reopen(live.into_device(), 64);
    check(&live);
    check(&agrees_with_scan(live));
}

/// A younger page of one name leaves in the same write-out as the copy of the grain, ahead of it. So the copy is for
/// the other name alone, and when that goes too before the write-out does, there is nothing to copy (I2, I5).
#[test]
fn last_name_leaves_with_the_write_out() {
    // The copy goes out for the name that stays; with none left it does not.
    assert_eq!(copies_behind_younger_page(true), 1);
    assert_eq!(copies_behind_younger_page(false), 0);
}

/// Collects a grain with two names behind a younger page of the first one; returns how many copies were written.
fn copies_behind_younger_page(other_stays: bool) -> u64 {
    const SEGMENT: u64 = 64;
    // One stream, so page and grain share a write-out; nothing goes out because of its age.
    let options = OpenOptions {
        pool_frames: 64,
        gc_policy: GcPolicy::Greedy,
        dirty_age_ns: 1 << 60,
        ..OpenOptions::default()
    };
    let device = volume(16 + 24 * SEGMENT as usize, SEGMENT, 64).into_device();
    let (live, _) = Volume::open(device, options).expect("open");
    let write = |lba, version| {
        let bytes = grain(lba, version);
        live.write(at(lba), &bytes).expect("write");
    };
    let (name, other, filler) = (Lba(0), Lba(1000), Lba(2000));
    // The oldest segment holds the grain and nothing else that is live.
    write(name, 1);
    live.clone_range(name, other, 1).expect("clone");
    for n in 0..SEGMENT {
        write(filler.offset(n), 1);
        if n % 8 == 7 {
            live.sync(LbaRange::ALL).expect("sync");
        }
    }
    live.trim(LbaRange::new(filler, SEGMENT)).expect("trim");
    // It is collected when there are so many tombstones; the last of them are left for later.
    let trim_many = || {
        let mut batch = AtomicBatch::new();
        for n in 0..AtomicBatch::RANGES_MAX as u64 {
            batch.trim(LbaRange::new(Lba(1 << 40 | n), 1));
        }
        live.commit(batch).expect("trims");
    };
    for _ in 0..6 {
        trim_many();
    }
    assert_eq!(live.ftl().stats().victims, 0);
    // When more than half of the pool is dirty, some of them join a write-out and wait there until it is full.
    for n in 0..33 {
        write(name.offset(n), 2);
    }
    trim_many();
    live.tick();
    let before = live.ftl().stats();
    assert_eq!(before.victims, 1);
    if !other_stays {
        live.trim(LbaRange::new(other, 1)).expect("trim");
    }
    live.sync(LbaRange::new(name, 1)).expect("sync");
    let after = live.ftl().stats();
    let check = |live: &Volume<MemDevice>| {
        assert!(read(live, name) == grain(name, 2));
        if other_stays {
            assert!(read(live, other) == grain(name, 1));
        } else {
            assert_eq!(live.ftl().state(other), GrainState::Unmapped);
        }
        live.ftl().self_check();
    };
    check(&live);
    check(&agrees_with_scan(live));
    after.relocated_grains - before.relocated_grains
}

/// A clone waits until a page of its source is put, and takes what was written there, durably (I1).
#[test]
fn a_held_page_makes_it_wait() {
    let live = volume(16 + 24 * 16, 16, 64);
    let (from, to, token) = (Lba(3), Lba(100), Token(1 << 40));
    live.write(at(from), &grain(from, 1)).expect("write");
    let page = live.page(from, Intent::Write).expect("page");
    live.ftl()
        .clone_range(Port(0), from, to, 1, token)
        .expect("accepted");
    page.copy_in(0, &grain(from, 2));
    live.tick();
    assert_eq!(live.ftl().state(to), GrainState::Unmapped);
    drop(page);
    // Batches take effect in order, so the clone has done so before this one is durable.
    live.trim(LbaRange::new(Lba(50), 1)).expect("trim");
    assert!(read(&live, to) == grain(from, 2));
    live.ftl().self_check();
    // Nothing is synced and nothing is shut down.
    let live = reopen(live.into_device(), 64);
    assert!(read(&live, to) == grain(from, 2));
}

/// Every name counts, exactly; and because it does, every name can be written to on a full volume (I17).
#[test]
fn space_is_counted_by_names() {
    let live = volume(16 + 24 * 16, 16, 64);
    let capacity = live.space().capacity;
    let (half, far) = (capacity / 2, Lba(1 << 30));
    for n in 0..half {
        live.write(at(Lba(n)), &grain(Lba(n), 1)).expect("write");
    }
    live.clone_range(Lba(0), far, half).expect("clone");
    let left = capacity - 2 * half;
    let more = far.offset(half);
    assert_eq!(
        live.clone_range(Lba(0), more, left + 1),
        Err(VolumeError::NoSpace)
    );
    assert_eq!(live.mapped_count(LbaRange::new(more, left + 1)), 0);
    live.clone_range(Lba(0), more, left).expect("the rest");
    assert_eq!(live.space().mapped, capacity);
    // What it replaces is free for it.
    live.clone_range(Lba(0), far, half).expect("again");
    for round in 2..6 {
        for n in 0..half {
            for lba in [Lba(n), far.offset(n)] {
                live.write(at(lba), &grain(lba, round)).expect("write");
            }
        }
    }
    live.ftl().self_check();
    for n in 0..half {
        assert!(read(&live, Lba(n)) == grain(Lba(n), 5));
    }
    agrees_with_scan(live);
}

/// Nonsense is refused and nothing takes effect.
#[test]
fn refused() {
    let live: Volume<MemDevice> = volume(16 + 24 * 16, 16, 64);
    let overlap = Err(VolumeError::Overlap);
    assert_eq!(live.clone_range(Lba(0), Lba(4), 5), overlap);
    let mut batch = AtomicBatch::new();
    batch
        .clone_range(Lba(0), Lba(8), 4)
        .clone_range(Lba(2), Lba(20), 4);
    let refused = live.ftl().commit(Port(0), batch, Token(9));
    assert_eq!(refused, Err(CommitError::Overlap));
    let (far, most) = (Lba(1 << 40), AtomicBatch::MOVED_MAX);
    assert_eq!(live.clone_range(Lba(0), far, most), Ok(()));
    let mut batch = AtomicBatch::new();
    batch
        .clone_range(Lba(0), far, most)
        .remap(Lba(1 << 30), Lba(1 << 31), 1);
    let refused = live.ftl().commit(Port(0), batch, Token(9));
    assert_eq!(refused, Err(CommitError::TooLarge));
}
