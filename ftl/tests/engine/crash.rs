//! Crash enumeration (M2): random workloads on a tiny volume, the power cut at every media operation and every
//! acknowledgement, each image recovered with the real engine and judged by the oracle.
//!
//! Defends I1-I6 against power cuts: writes kept, lost, torn and reordered, discards kept or lost, garbage in sectors
//! that were being written, and all of that again during recovery.
//!
//! `FLASHNET_SEEDS=from..to` runs other seeds than the usual ones, for longer runs in shards. A failure prints the
//! seed and the options; the same seed repeats it.

use std::fmt::Write;
use std::ops::Range;

use crate::harness::crash::{Effort, SCARCE_SEED, Tally, recover, run_lives, run_scarce_lives};
use crate::harness::options::Options;
use crate::harness::world::World;
use ftl::device::sim::{CrashPlan, SimDevice};
use ftl::{AtomicBatch, Ftl, GRAIN_BYTES, Lba, LbaRange, OpenError};

/// The seeds to run: the usual ones, or those asked for.
fn seeds(usual: u64) -> Range<u64> {
    let Ok(asked) = std::env::var("FLASHNET_SEEDS") else {
        return 0..usual;
    };
    let parsed = asked
        .split_once("..")
        .and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?));
    parsed.unwrap_or_else(|| panic!("FLASHNET_SEEDS is not from..to: {asked}"))
}

/// The usual seeds must reach this much; a shard may be as small as one seed.
fn at_least(reached: u64, wanted: u64) {
    let is_shard = std::env::var("FLASHNET_SEEDS").is_ok();
    assert!(is_shard || reached >= wanted, "{reached} of {wanted}");
}

/// Every named crash point was passed often by an engine that was cut at each of its media operations. Discards are
/// asked for by few.
fn every_point(tally: &Tally) {
    for (name, hits) in ftl::crash_point::ALL.iter().zip(tally.points) {
        println!("{name}: {hits}");
        // These have tests of their own: `discarding` here, `loss.rs`, `resize.rs`, `snapshot.rs`.
        let others = ["loss", "resize", "snapshot"];
        let elsewhere = *name == "discard" || others.iter().any(|other| name.starts_with(other));
        at_least(hits, if elsewhere { 0 } else { 10 });
    }
}

/// Runs lives for every seed and reports all that failed.
fn enumerate(options: &Options, effort: Effort, usual: u64, lives: usize, ops: usize) -> Tally {
    let mut tally = Tally::default();
    let mut failed = String::new();
    for seed in seeds(usual) {
        let run = || run_lives(options, effort, seed, lives, ops);
        match std::panic::catch_unwind(run) {
            Ok((one, Ok(()))) => tally.add(&one),
            Ok((one, Err(violation))) => {
                tally.add(&one);
                let _ = writeln!(failed, "seed {seed}: {}", violation.0);
            }
            // The panic has printed itself.
            Err(_) => {
                let _ = writeln!(failed, "seed {seed}: panicked");
            }
        }
    }
    println!("{tally:#?}");
    assert!(failed.is_empty(), "with {options:?}:\n{failed}");
    tally
}

/// The usual volume: nearly full, collection all the time, two ports.
#[test]
fn busy_volume() {
    let tally = enumerate(&Options::tiny(), Effort::USUAL, 15, 4, 60);
    at_least(tally.states, 20_000);
    at_least(tally.along, 50);
    // The rare places were visited, not only the broad road.
    for rare in [
        tally.relocating,
        tally.freed,
        tally.tombstones,
        tally.scarce,
    ] {
        at_least(rare, 1);
    }
    for rare in [tally.cut, tally.torn, tally.nudges] {
        at_least(rare, 1);
    }
    at_least(tally.rebuilt, 1_000);
    for cut_again in tally.nested {
        at_least(cut_again, 10);
    }
    every_point(&tally);
}

/// Checkpoints follow each other closely and each writes only a part of the map: recovery puts it together from many
/// pieces, page by page, as on a large volume.
#[test]
fn sweeping_volume() {
    let options = Options {
        area: 96,
        checkpoint_headers: 3,
        sweep: Some(14),
        ..Options::tiny()
    };
    let tally = enumerate(&options, Effort::USUAL, 8, 4, 60);
    at_least(tally.states, 8_000);
    at_least(tally.checkpoints, 100);
}

/// Ranges change their names all the time, while they are dirty, being written, relocated and captured (I1-I5).
#[test]
fn remapping_volume() {
    for (area, reserving) in [(0, false), (96, true)] {
        let options = Options {
            area,
            checkpoint_headers: 3,
            sweep: Some(14),
            remapping: true,
            reserving,
            ..Options::tiny()
        };
        let tally = enumerate(&options, Effort::USUAL, 8, 4, 60);
        at_least(tally.states, 3_000);
        at_least(tally.remaps, 100);
    }
}

/// Grains have several names all the time, while they are dirty, being written, relocated and captured, and under any
/// of them they are overwritten, forgotten, renamed and cloned again (I1-I5).
#[test]
fn cloning_volume() {
    for (area, remapping, reserving) in [(0, false, false), (96, true, false), (96, false, true)] {
        let options = Options {
            area,
            checkpoint_headers: 3,
            sweep: Some(14),
            cloning: true,
            remapping,
            reserving,
            ..Options::tiny()
        };
        let tally = enumerate(&options, Effort::USUAL, 6, 4, 60);
        at_least(tally.states, 3_000);
        at_least(tally.clones, 100);
    }
}

/// Nothing waits until a source is clean: pages that are dirty or on their way are copied into the header of the clone
/// (I1-I5, batches).
#[test]
fn clones_of_busy_pages() {
    for (area, remapping) in [(0, true), (96, false)] {
        let options = Options {
            area,
            checkpoint_headers: 3,
            sweep: Some(14),
            cloning: true,
            remapping,
            clone_urges: Some(0),
            ..Options::tiny()
        };
        let tally = enumerate(&options, Effort::USUAL, 6, 4, 60);
        at_least(tally.states, 3_000);
        at_least(tally.clone_copies, 20);
    }
}

/// Copies carry one or two names at most, so those of a grain are relocated in rounds, between which anything may
/// happen (I1-I5).
#[test]
fn names_in_rounds() {
    for (names, area, runs, left) in [(1, 96, 8, 100), (2, 0, 16, 10)] {
        let options = Options {
            area,
            checkpoint_headers: 3,
            sweep: Some(14),
            cloning: true,
            names_max: Some(names),
            ..Options::tiny()
        };
        let tally = enumerate(&options, Effort::USUAL, runs, 4, 66);
        at_least(tally.states, 3_000);
        at_least(tally.names_left, left);
    }
}

/// The area holds hardly three checkpoints, so the ring goes round all the time.
#[test]
fn tight_ring() {
    let options = Options {
        area: 24,
        eager: 64,
        ..Options::tiny()
    };
    let tally = enumerate(&options, Effort::USUAL, 6, 4, 60);
    at_least(tally.states, 3_000);
    at_least(tally.checkpoints, 60);
}

/// The volume fills up: NoSpace comes exactly when it must, and the reserves carry collection.
#[test]
fn full_volume() {
    let options = Options {
        universe_percent: 260,
        ..Options::tiny()
    };
    let tally = enumerate(&options, Effort::USUAL, 7, 4, 60);
    at_least(tally.states, 3_000);
    at_least(tally.no_space, 1);
}

/// Larger segments hold several write-outs; one port; hardly any memory for pages.
#[test]
fn small_pool() {
    let options = Options {
        segment_grains: 32,
        segments: 10,
        capacity: 100,
        pool_frames: 24,
        ports: 1,
        outstanding: 8,
        held_max: 1,
        universe_percent: 70,
        ..Options::tiny()
    };
    let tally = enumerate(&options, Effort::USUAL, 10, 4, 60);
    at_least(tally.states, 3_000);
}

/// Nobody syncs: dozens of writes are at stake, relocations among them, and segments are reused meanwhile.
#[test]
fn lazy_writers() {
    let options = Options {
        lazy: true,
        segments: 20,
        capacity: 150,
        universe_percent: 80,
        ..Options::tiny()
    };
    let tally = enumerate(&options, Effort::USUAL, 6, 3, 250);
    at_least(tally.states, 3_000);
    at_least(tally.changes_max as u64, 6);
    at_least(tally.relocating.min(tally.freed), 1);
}

/// Enough segments to spare that what lives longer and what lives shorter go apart, and that what is remembered of grains
/// goes into checkpoints and comes back (I1-I6).
#[test]
fn streams() {
    let options = Options {
        segments: 22,
        capacity: 100,
        area: 96,
        checkpoint_headers: 3,
        sweep: Some(14),
        remapping: true,
        ..Options::tiny()
    };
    let tally = enumerate(&options, Effort::USUAL, 6, 3, 150);
    at_least(tally.states, 3_000);
    at_least(tally.streams_max as u64, 3);
    at_least(tally.checkpoints, 60);
    at_least(tally.relocating.min(tally.freed), 1);
}

/// The same where many dirty pages are left to the driver of the first port, who comes sooner or later.
#[test]
fn lazy_writers_and_a_helper() {
    let options = Options {
        lazy: true,
        apart: true,
        segments: 20,
        capacity: 150,
        universe_percent: 80,
        ..Options::tiny()
    };
    let tally = enumerate(&options, Effort::USUAL, 6, 3, 250);
    at_least(tally.states, 3_000);
    at_least(tally.changes_max as u64, 6);
    at_least(tally.relocating.min(tally.freed), 1);
}

/// Cut again and again after little work: many sessions, each with a tail of its own that must never come back.
#[test]
fn many_lives() {
    let effort = Effort {
        images: 3,
        ..Effort::USUAL
    };
    let options = Options {
        universe_percent: 260,
        ..Options::tiny()
    };
    let tally = enumerate(&options, effort, 4, 40, 10);
    at_least(tally.states, 3_000);
}

/// I1 in time: a batch that nobody waits for becomes durable by itself, within twice the age of dirty pages.
#[test]
fn relaxed_batches_become_durable() {
    let options = Options::tiny();
    let universe = options.universe();
    let age = options.open().dirty_age_ns;
    let mut world = World::create(&options, 11).expect("a fresh volume");
    for round in 0..4_u8 {
        let mut batch = AtomicBatch::new();
        batch.patch(Lba(universe[0]), 0, vec![round + 1; GRAIN_BYTES]);
        batch.patch(Lba(universe[1]), 100, vec![round + 1; 32]);
        batch.trim(LbaRange::new(Lba(universe[3]), 1));
        world.relaxed(batch, 2 * age).expect("no faults");
        let point = world.device.crash_point();
        for image in point.images(CrashPlan::sampled(20), u64::from(round)) {
            let mut device = options.rig(image.content, 1).expect("an image");
            let (found, _) = recover(&mut device, &options, &universe).expect("a volume");
            world.oracle.judge(&found).expect("the batch is there");
        }
    }
}

/// Of every moment up to sixty of the subsets and tears, on shorter runs.
#[test]
fn all_subsets() {
    let effort = Effort {
        images: 60,
        nested_one_in: 60,
        nested_images: 2,
        ..Effort::USUAL
    };
    let tally = enumerate(&Options::tiny(), effort, 3, 2, 36);
    at_least(tally.states, 3_000);
}

/// Devices of an array lose power with caches of their own: what is kept of one says nothing about another.
#[test]
fn array() {
    for (segments, usual) in [(vec![7, 5], 7), (vec![3, 6, 5], 7)] {
        let options = Options {
            array: segments,
            ..Options::tiny()
        };
        let tally = enumerate(&options, Effort::USUAL, usual, 4, 60);
        at_least(tally.states, 8_000);
        at_least(tally.relocating.min(tally.freed), 1);
        at_least(tally.checkpoints, 60);
        at_least(tally.from_checkpoint.min(tally.rebuilt), 500);
        at_least(tally.nested[0], 100);
    }
}

/// Segments that have become free are discarded, and the cut keeps or loses any part of that: nobody needs what was
/// in them, and nobody takes what is missing for damage (I1 to I6).
#[test]
fn discarding() {
    let lone = Options {
        discard: true,
        segments: 16,
        checkpoint_headers: 6,
        ..Options::tiny()
    };
    let array = Options {
        array: vec![9, 7],
        ..lone.clone()
    };
    for options in [lone, array] {
        let tally = enumerate(&options, Effort::USUAL, 6, 4, 60);
        at_least(tally.states, 5_000);
        let discards = ftl::crash_point::ALL.iter().position(|n| *n == "discard");
        at_least(tally.points[discards.expect("a name")], 100);
        at_least(tally.from_checkpoint, 500);
    }
}

/// Segments are filled, emptied, discarded and written again behind one checkpoint: what a cut leaves of that looks like
/// lost headers, and is not said to be (I1 to I6).
#[test]
fn long_tails() {
    let options = Options {
        segments: 24,
        discard: true,
        checkpoint_headers: 60,
        ..Options::tiny()
    };
    let effort = Effort {
        moment_one_in: 4,
        ..Effort::USUAL
    };
    let tally = enumerate(&options, effort, 1, 3, 150);
    at_least(tally.from_checkpoint, 100);
}

/// A cut during format leaves a volume that is empty or none at all.
#[test]
fn cut_format() {
    let options = Options::tiny();
    let mut device = SimDevice::new(options.device_bytes(), 1);
    device.record(1);
    Ftl::format(&mut device, &options.format()).expect("format");
    let mut opened = 0;
    let mut points = device.recorded();
    points.push((u64::MAX, device.crash_point()));
    for (no, point) in points {
        for image in point.images(CrashPlan::sampled(50), no) {
            let mut device = SimDevice::from_image(image.content, no);
            match Ftl::open(&mut device, options.open()) {
                Err(OpenError::NotFormatted) => {}
                Err(error) => panic!("after operation {no}, {:?}: {error}", image.choice),
                Ok((ftl, _)) => {
                    assert_eq!(ftl.space().mapped, 0);
                    opened += 1;
                }
            }
        }
    }
    assert!(opened > 0);
    assert!(recover(&mut device, &options, &options.universe()).is_ok());
}

/// The power fails each time when segments are scarcest, over and over: a restart must always find room to go on
/// (I17), however many segments the lives before have left half used.
#[test]
fn cut_when_scarce() {
    // A victim takes several write-outs here.
    let long = Options {
        segment_grains: 256,
        segments: 11,
        capacity: 1200,
        pool_frames: 256,
        universe_percent: 110,
        lazy: true,
        ..Options::tiny()
    };
    for (options, lives, at_most) in [(Options::scarce(), 40, 3), (long, 30, 4)] {
        let mut scarcest = u64::MAX;
        for seed in seeds(6).chain([SCARCE_SEED]) {
            let result = run_scarce_lives(&options, seed, lives, &mut scarcest);
            assert!(result.is_ok(), "seed {seed}: {}", result.unwrap_err().0);
        }
        println!("fewest free segments after a restart: {scarcest}");
        let is_scarce = scarcest <= at_most || std::env::var("FLASHNET_SEEDS").is_ok();
        assert!(is_scarce, "nothing was scarce: {scarcest} free");
    }
}
