//! Clones of what somebody is writing to: what is taken, and what is copied because it is never on the media.

use crate::common::{Rng, at, grain, read, reopen, volume, zeros_seen};
use ftl::{
    AtomicBatch, Device, Ftl, GRAIN_BYTES, Get, GrainState, Intent, Lba, LbaRange, MemDevice,
    OpenOptions, Port, Time, Token, Volume,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Opens a volume whose clones make the pages of their source urgent so many times before they copy them.
fn patient(device: MemDevice, pool_frames: usize, clone_urges: u32) -> Volume<MemDevice> {
    let options = OpenOptions {
        pool_frames,
        clone_urges: Some(clone_urges),
        ..OpenOptions::default()
    };
    Volume::open(device, options).expect("open").0
}

/// A page that is written to before anything completes is never clean when a clone looks for it. After some rounds it
/// is copied (I16), and what was copied is durable (I1).
#[test]
fn a_page_that_is_never_clean() {
    const PORT: Port = Port(0);
    let mut device = volume(16 + 24 * 16, 16, 64).into_device();
    let (ftl, _) = Ftl::open(&mut device, OpenOptions::default()).expect("open");
    let (from, to, done) = (Lba(3), Lba(100), Token(1));
    let write = |version| match ftl.get(PORT, from, Intent::Write, Token(0)) {
        Get::Ready(page) => page.copy_in(0, &grain(from, version)),
        other => panic!("a new or resident page: {other:?}"),
    };
    let turn = |device: &mut MemDevice| {
        while let Some(action) = ftl.poll_action(PORT) {
            device.submit(action);
        }
        let (id, result) = device.poll(true).expect("something in flight");
        ftl.handle_done(PORT, Time(0), id, result);
    };
    let mut version = 1;
    write(version);
    ftl.clone_range(PORT, from, to, 1, done).expect("accepted");
    while ftl.state(to) == GrainState::Unmapped {
        assert!(version < 100, "held up");
        version += 1;
        write(version);
        turn(&mut device);
    }
    assert_eq!(ftl.stats().clone_copies, 1);
    ftl.self_check();
    while ftl.poll_event(PORT).is_none() {
        turn(&mut device);
    }
    // Nothing is synced and nothing is shut down.
    drop(ftl);
    let live = reopen(device, 64);
    assert!(read(&live, to) == grain(from, version));
}

/// Pages are written to without the lock while clones take effect: a clone is a version of the grain, whole, never what
/// somebody was just writing (I2).
#[test]
fn writers_beside_it() {
    clone_beside_writers(true);
}

/// The same without a pause between the writes, and nothing waits until it is clean: most of it is copied.
#[test]
fn writers_without_a_pause() {
    assert!(clone_beside_writers(false) > 0, "nothing was busy");
}

/// Clones four grains over and over while two threads write to them; returns how many pages were copied.
fn clone_beside_writers(rests: bool) -> u64 {
    const SOURCE: u64 = 4;
    const ROUNDS: u64 = 1000;
    let device = volume(16 + 24 * 16, 16, 64).into_device();
    let live = patient(device, 64, if rests { 8 } else { 0 });
    let (from, to) = (Lba(0), Lba(1000));
    // All words of a grain are equal and say which grain and version it is.
    let content = |n: u64, version: u64| (version << 8 | n).to_le_bytes().repeat(GRAIN_BYTES / 8);
    for n in 0..SOURCE {
        live.write(at(from.offset(n)), &content(n, 0))
            .expect("write");
    }
    let done = AtomicBool::new(false);
    let (done, live) = (&done, &live);
    thread::scope(|scope| {
        for writer in 0..2 {
            scope.spawn(move || {
                let mut rng = Rng::new(writer + 1);
                for version in 1.. {
                    let n = 2 * writer + rng.below(2);
                    let bytes = content(n, version);
                    live.write(at(from.offset(n)), &bytes).expect("write");
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                    if rests {
                        thread::sleep(Duration::from_micros(rng.below(400)));
                    }
                }
            });
        }
        let mut newest = [0; SOURCE as usize];
        for round in 0..ROUNDS {
            live.clone_range(from, to, SOURCE).expect("clone");
            for (n, newest) in (0..).zip(&mut newest) {
                let got = read(live, to.offset(n));
                let first = u64::from_le_bytes(got[..8].try_into().expect("eight bytes"));
                assert_eq!(first & 255, n, "round {round}");
                assert!(got == content(n, first >> 8), "round {round}: {n} is torn");
                assert!(
                    first >> 8 >= *newest,
                    "round {round}: {n} is older than before"
                );
                *newest = first >> 8;
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    live.ftl().self_check();
    live.ftl().stats().clone_copies
}

/// Pages are seized one after the other while writers go on, and yet a clone is what the source was at one moment (I2):
/// who has the second of two writes has the first.
#[test]
fn copies_are_of_one_moment() {
    const SPREAD: u64 = AtomicBatch::MOVED_MAX;
    const ROUNDS: u64 = 500;
    let live = patient(volume(16 + 256 * 64, 64, 64).into_device(), 64, 0);
    // To look at all that lies between the two takes a while.
    let (first, second, to) = (Lba(0), Lba(SPREAD - 1), Lba(1 << 30));
    for n in (0..SPREAD).step_by(64) {
        live.zero(LbaRange::new(Lba(n), 1)).expect("zero");
    }
    let content = |version: u64| version.to_le_bytes().repeat(GRAIN_BYTES / 8);
    let version = |lba| {
        let bytes = read(&live, lba);
        u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"))
    };
    let done = AtomicBool::new(false);
    let (done, live) = (&done, &live);
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut rng = Rng::new(1);
            for version in 1.. {
                for lba in [first, second] {
                    live.write(at(lba), &content(version)).expect("write");
                }
                if done.load(Ordering::Relaxed) {
                    break;
                }
                live.sync(LbaRange::ALL).expect("sync");
                thread::sleep(Duration::from_micros(rng.below(400)));
            }
        });
        // Who puts a page that a second one holds as well does not meet the clone.
        scope.spawn(move || {
            while !done.load(Ordering::Relaxed) {
                let page = live.page(first, Intent::Read).expect("page");
                thread::sleep(Duration::from_micros(100));
                drop(page);
                thread::sleep(Duration::from_micros(100));
            }
        });
        for round in 0..ROUNDS {
            live.clone_range(Lba(0), to, SPREAD).expect("clone");
            let (second, first) = (version(to.offset(SPREAD - 1)), version(to));
            assert!(first >= second, "round {round}: {first} and {second}");
        }
        done.store(true, Ordering::Relaxed);
    });
    live.ftl().self_check();
    assert!(live.ftl().stats().clone_copies > 0, "nothing was busy");
}

/// A batch that moves pages and copies others finds frames for the copies while it has seized what it moves; those
/// pages can be evicted afterwards, and so can everything else (I17).
#[test]
fn moved_beside_copied() {
    const FRAMES: u64 = 16;
    let device = volume(16 + 24 * 16, 16, 64).into_device();
    let live = patient(device, FRAMES as usize, 0);
    let (moved, busy, other) = (Lba(0), Lba(100), Lba(200));
    let write = |lba, version| {
        let bytes = grain(lba, version);
        live.write(at(lba), &bytes).expect("write");
    };
    // The pages that are moved became clean first; no frame is free.
    for n in 0..2 {
        write(moved.offset(n), 1);
    }
    live.sync(LbaRange::ALL).expect("sync");
    for n in 0..FRAMES - 2 {
        write(busy.offset(n), 1);
        live.sync(LbaRange::ALL).expect("sync");
    }
    for n in 0..2 {
        write(busy.offset(n), 2);
    }
    let mut batch = AtomicBatch::new();
    batch
        .remap(moved, moved.offset(50), 2)
        .clone_range(busy, other, 2);
    live.commit(batch).expect("batch");
    assert_eq!(live.ftl().stats().clone_copies, 2);
    live.ftl().self_check();
    let live = reopen(live.into_device(), 64);
    for n in 0..2 {
        assert!(read(&live, moved.offset(50 + n)) == grain(moved.offset(n), 1));
        assert!(read(&live, other.offset(n)) == grain(busy.offset(n), 2));
    }
}

/// The target of clones holds data before and after each of them, so whoever reads it without the lock never finds zeros
/// (I2).
#[test]
fn readers_of_the_target() {
    const COUNT: u64 = 1024;
    let live = volume(16 + 24 * 512, 512, 64);
    let (from, to) = (Lba(0), Lba(1 << 20));
    for n in 0..COUNT {
        let written = live.write(at(from.offset(n)), &grain(Lba(n), 1));
        written.expect("write");
    }
    live.clone_range(from, to, COUNT).expect("clone");
    let zeros = zeros_seen(&live, &|n| to.offset(n), COUNT, || {
        for _ in 0..400 {
            live.clone_range(from, to, COUNT).expect("clone");
        }
    });
    assert_eq!(zeros, 0, "grains that seemed to hold nothing");
    live.ftl().self_check();
}
