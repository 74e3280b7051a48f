//! Remaps from outside: what they cost, and what they wait for and carry along.

use crate::common::{Rng, at, grain, reopen, volume, zeros_seen};
use ftl::planted::Bug;
use ftl::{
    Action, ActionId, AtomicBatch, CommitError, Device, Event, FormatOptions, Ftl, GRAIN_BYTES,
    Get, GrainState, HeaderDevice, Intent, Lba, LbaRange, MediaError, MediaOp, MemDevice,
    OpenOptions, Port, Time, Token, Volume, VolumeError,
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

/// 1 GiB of mapped grains moves for less than 64 KiB of media writes: cost is by ranges, not by grains.
#[test]
fn a_gibibyte_for_next_to_nothing() {
    const GRAINS: u64 = (1 << 30) / GRAIN_BYTES as u64;
    let mut device = Counting {
        device: HeaderDevice::new(3 << 29),
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
    assert!(before >= 1 << 30);
    let to = Lba(7 << 24);
    const STEP: u64 = AtomicBatch::MOVED_MAX;
    for first in (0..GRAINS).step_by(STEP as usize) {
        let moved = volume.remap(Lba(first), to.offset(first), STEP);
        moved.expect("remap");
    }
    let written = volume.with_device(|d| d.written) - before;
    assert!(written < 64 << 10, "{written} bytes written");
    assert_eq!(volume.mapped_count(LbaRange::new(to, GRAINS)), GRAINS);
    assert_eq!(volume.space().mapped, GRAINS);
    volume.ftl().self_check();
}

/// Ranges that go round in circles while everything is collected again and again: names, versions and the lives of
/// the records hold over many lives of all segments (I2, I4, I5).
#[test]
fn round_and_round() {
    let mut live = volume(16 + 24 * 16, 16, 64);
    let places = [Lba(0), Lba(1 << 24), Lba(5 << 24), Lba(9 << 30)];
    let mut rng = Rng::new(5);
    let count = live.space().capacity * 9 / 10;
    let (mut place, mut versions) = (places[0], BTreeMap::new());
    for n in 0..count {
        live.write(at(place.offset(n)), &grain(Lba(n), 0))
            .expect("write");
        versions.insert(n, 0);
    }
    for round in 1..=60 {
        let to = places[(round % 4) as usize];
        live.remap(place, to, count).expect("remap");
        place = to;
        for _ in 0..count / 3 {
            let n = rng.below(count);
            live.write(at(place.offset(n)), &grain(Lba(n), round))
                .expect("write");
            versions.insert(n, round);
        }
        live.sync(LbaRange::ALL).expect("sync");
        live.ftl().self_check();
        if round % 7 == 0 {
            live = reopen(live.into_device(), 64);
        }
        let mut got = vec![0; GRAIN_BYTES];
        for (&n, &version) in &versions {
            live.read(at(place.offset(n)), &mut got).expect("read");
            assert!(got == grain(Lba(n), version), "round {round}, grain {n}");
        }
    }
    let stats = live.ftl().stats();
    assert!(stats.tombstones < 60, "remaps expire: {}", stats.tombstones);
}

/// A remap waits until a page of its source is put, and takes with it what was written there.
#[test]
fn a_held_page_makes_it_wait() {
    let live = volume(16 + 24 * 16, 16, 64);
    let (from, to, token) = (Lba(3), Lba(100), Token(1 << 40));
    live.write(at(from), &grain(from, 1)).expect("write");
    let page = live.page(from, Intent::Write).expect("page");
    live.ftl()
        .remap(Port(0), from, to, 1, token)
        .expect("accepted");
    assert_eq!(live.ftl().state(from), GrainState::Data);
    page.copy_in(0, &grain(from, 2));
    drop(page);
    assert_eq!(live.ftl().state(from), GrainState::Unmapped);
    let mut got = vec![0; GRAIN_BYTES];
    live.read(at(to), &mut got).expect("read");
    assert_eq!(got, grain(from, 2));
    live.ftl().self_check();
}

/// A sync that was asked for before a remap is answered only when what was put under the old name is durable under
/// the new one (I1).
#[test]
fn a_sync_follows_the_page() {
    let device = volume(16 + 24 * 16, 16, 64).into_device();
    let options = OpenOptions {
        pool_frames: 64,
        ..OpenOptions::default()
    };
    let mut device = device;
    let (ftl, _) = Ftl::open(&mut device, options).expect("open");
    let (from, to) = (Lba(3), Lba(100));
    let Get::Ready(page) = ftl.get(Port(0), from, Intent::Write, Token(0)) else {
        panic!("nothing to read");
    };
    page.copy_in(0, &grain(from, 1));
    drop(page);
    ftl.sync(Port(0), LbaRange::new(from, 1), Token(1));
    ftl.remap(Port(0), from, to, 1, Token(2)).expect("accepted");
    let mut told = false;
    while !told {
        while let Some(action) = ftl.poll_action(Port(0)) {
            device.submit(action);
        }
        if let Some((id, result)) = device.poll(true) {
            ftl.handle_done(Port(0), Time(1), id, result);
        }
        while let Some(event) = ftl.poll_event(Port(0)) {
            told |= matches!(
                event,
                Event::Durable {
                    token: Token(1),
                    result: Ok(())
                }
            );
        }
    }
    while device.poll(true).is_some() {}
    drop(ftl);
    let live = reopen(device, 64);
    let mut got = [from, to].map(|lba| {
        let mut bytes = vec![0; GRAIN_BYTES];
        live.read(at(lba), &mut bytes).expect("read");
        bytes
    });
    got.sort();
    assert!(got.contains(&grain(from, 1)), "the synced write is gone");
}

/// Digests of the map in memory and of the one that a scan finds, after remaps that came whenever a write had ended
/// on the device and the engine did not know yet. It ends with one: what is written later covers up what went wrong.
fn churn(bug: Option<Bug>, seed: u64) -> (u32, u32) {
    let mut device = volume(16 + 24 * 16, 16, 64).into_device();
    let options = OpenOptions {
        pool_frames: 400,
        checkpoint_headers: 0,
        planted: bug,
        ..OpenOptions::default()
    };
    let (ftl, _) = Ftl::open(&mut device, options.clone()).expect("open");
    let mut rng = Rng::new(seed);
    let count = ftl.space().capacity * 9 / 10;
    let mut place = Lba(0);
    let mut tokens = 0..;
    let mut remapped = false;
    for step in 0.. {
        if remapped && step >= count * 12 {
            break;
        }
        remapped = false;
        let lba = place.offset(if step < count { step } else { rng.below(count) });
        if let Get::Ready(page) = ftl.get(Port(0), lba, Intent::Overwrite, Token(u64::MAX)) {
            page.copy_in(0, &grain(lba, step));
        }
        if step % 16 == 0 {
            let token = Token(tokens.next().expect("no end"));
            ftl.sync(Port(0), LbaRange::ALL, token);
        }
        while let Some(action) = ftl.poll_action(Port(0)) {
            device.submit(action);
        }
        while let Some((id, result)) = device.poll(false) {
            if step > count && rng.below(12) == 0 {
                let to = Lba((place.0 + (1 << 24)) % (3 << 24));
                let token = Token(tokens.next().expect("no end"));
                let moved = ftl.remap(Port(0), place, to, count, token);
                moved.expect("accepted");
                place = to;
                remapped = true;
            }
            ftl.handle_done(Port(0), Time(1), id, result);
            while let Some(action) = ftl.poll_action(Port(0)) {
                device.submit(action);
            }
        }
        while ftl.poll_event(Port(0)).is_some() {}
    }
    let live = Volume::new(ftl, device);
    live.sync(LbaRange::ALL).expect("sync");
    live.ftl().self_check();
    assert!(live.ftl().stats().relocated_grains > 100);
    let before = live.ftl().map_digest();
    let rebuilt = OpenOptions {
        rebuild: true,
        ..options
    };
    let (live, _) = Volume::open(live.into_device(), rebuilt).expect("open");
    (before, live.ftl().map_digest())
}

/// A grain that is remapped while its copy is on the way is in memory where recovery finds it: at the copy. Were it
/// at the original, the copy's place would be written over while recovery names it (I4, I5).
#[test]
fn copies_in_flight() {
    for seed in 1..=6 {
        let (memory, media) = churn(None, seed);
        assert_eq!(memory, media, "seed {seed}");
    }
    let differs = |seed| {
        let (memory, media) = churn(Some(Bug::RemapNotFollowed), seed);
        memory != media
    };
    assert!((1..=6).any(differs), "nobody would notice");
}

/// Nonsense is refused and nothing takes effect.
#[test]
fn refused() {
    let live: Volume<MemDevice> = volume(16 + 24 * 16, 16, 64);
    let overlap = Err(VolumeError::Overlap);
    assert_eq!(live.remap(Lba(0), Lba(4), 5), overlap);
    assert_eq!(live.remap(Lba(4), Lba(0), 5), overlap);
    assert_eq!(
        live.remap(Lba(0), Lba((1 << 52) - 4), 5),
        Err(VolumeError::OutOfRange)
    );
    let mut batch = AtomicBatch::new();
    batch
        .remap(Lba(0), Lba(8), 4)
        .trim(LbaRange::new(Lba(9), 1));
    let refused = live.ftl().commit(Port(0), batch, Token(9));
    assert_eq!(refused, Err(CommitError::Overlap));
    assert_eq!(live.remap(Lba(0), Lba(4), 0), Ok(()));
    let (far, most) = (Lba(1 << 40), AtomicBatch::MOVED_MAX);
    assert_eq!(live.remap(Lba(0), far, most), Ok(()));
    let too_large = Err(VolumeError::BatchTooLarge);
    assert_eq!(live.remap(Lba(0), far, most + 1), too_large);
    assert_eq!(live.remap(Lba(0), far, u64::MAX), too_large);
    let mut halves = AtomicBatch::new();
    let half = most / 2;
    halves.remap(Lba(0), far, half);
    halves.remap(Lba(half), far.offset(half), half + 1);
    let refused = live.ftl().commit(Port(0), halves, Token(9));
    assert_eq!(refused, Err(CommitError::TooLarge));
}

/// The target of remaps holds data before and after each of them, so whoever reads it without the lock never finds zeros
/// (I2).
#[test]
fn readers_of_the_target() {
    const COUNT: u64 = 1024;
    let live = volume(16 + 24 * 512, 512, 64);
    let (first, from, to) = (Lba(0), Lba(1 << 20), Lba(2 << 20));
    for n in 0..COUNT {
        let written = live.write(at(first.offset(n)), &grain(Lba(n), 1));
        written.expect("write");
    }
    live.clone_range(first, to, COUNT).expect("clone");
    let zeros = zeros_seen(&live, &|n| to.offset(n), COUNT, || {
        for _ in 0..400 {
            live.clone_range(first, from, COUNT).expect("clone");
            live.remap(from, to, COUNT).expect("remap");
        }
    });
    assert_eq!(zeros, 0, "grains that seemed to hold nothing");
    live.ftl().self_check();
}
