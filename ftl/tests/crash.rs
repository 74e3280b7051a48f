//! Crash enumeration (M2): random workloads on a tiny volume, the power cut at every media operation and every
//! acknowledgement, each image recovered with the real engine and judged by the oracle.
//!
//! Defends I1-I6 against power cuts: writes kept, lost, torn and reordered, discards kept or lost, garbage in sectors
//! that were being written, and all of that again during recovery.
//!
//! `FLASHNET_SEEDS=from..to` runs other seeds than the usual ones, for longer runs in shards. A failure prints the
//! seed and the options; the same seed repeats it.

mod harness;

use std::fmt::Write;
use std::ops::Range;

use ftl::device::sim::{CrashPlan, SimDevice};
use ftl::{Ftl, OpenError};
use harness::crash::{Effort, Tally, recover, run_lives};
use harness::options::Options;

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
    let tally = enumerate(&Options::tiny(), Effort::USUAL, 20, 4, 60);
    assert!(tally.states > 20_000, "{} states", tally.states);
    // The rare places were visited, not only the broad road.
    assert!(tally.relocating > 0 && tally.freed > 0 && tally.tombstones > 0 && tally.scarce > 0);
    assert!(tally.cut > 0 && tally.torn > 0 && tally.nudges > 0 && tally.nested > 0);
}

/// The volume fills up: NoSpace comes exactly when it must, and the reserves carry collection.
#[test]
fn full_volume() {
    let options = Options {
        universe_percent: 260,
        ..Options::tiny()
    };
    let tally = enumerate(&options, Effort::USUAL, 10, 4, 60);
    assert!(tally.states > 3_000, "{} states", tally.states);
    assert!(tally.no_space > 0);
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
    assert!(tally.states > 3_000, "{} states", tally.states);
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
    assert!(tally.states > 3_000, "{} states", tally.states);
    assert!(tally.changes_max > 5 && tally.relocating > 0 && tally.freed > 0);
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
    assert!(tally.states > 3_000, "{} states", tally.states);
}

/// Every subset and many tears of every moment, on shorter runs.
#[test]
fn all_subsets() {
    let effort = Effort {
        images: 60,
        nested_one_in: 60,
        nested_images: 2,
    };
    let tally = enumerate(&Options::tiny(), effort, 2, 2, 25);
    assert!(tally.states > 3_000, "{} states", tally.states);
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
            let mut device = SimDevice::from_image(image.bytes, no);
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
