//! Another size (`docs/resize.md`): the volume grows under load and shrinks, and the power is cut at every media operation on
//! the way, torn superblocks among them. Each image is recovered with the real engine, judged by the oracle and by
//! the independent check, and some recoveries are cut in turn.
//!
//! Defends Z1 to Z4: one size or the other, nothing lost, nothing come back from an earlier and larger life, capacity and
//! layout as they were acknowledged.

use crate::common::{Rng, at, grain};
use crate::harness::crash::{Effort, Tally, run_resizes};
use crate::harness::options::Options;
use ftl::planted::Bug;
use ftl::{
    FormatOptions, Ftl, GRAIN_BYTES, GcPolicy, Lba, LbaRange, MemDevice, OpenError, OpenOptions,
    ResizeError, Volume, VolumeError,
};

/// Up and down: the segments of larger lives are cut off, laid over, and taken back.
const SIZES: [u64; 6] = [16, 24, 13, 20, 12, 26];

/// A device with room for all of them.
fn growing() -> Options {
    Options {
        area: 36,
        universe_percent: 220,
        spare: 400,
        ..Options::tiny()
    }
}

/// One moment in three is looked at, and with `FLASHNET_SEEDS_EACH` set so many seeds are run instead of a few.
const SOME: Effort = Effort {
    moment_one_in: 3,
    ..Effort::USUAL
};

fn enumerate(options: &Options, effort: Effort, seeds: u64) -> Tally {
    let mut tally = Tally::default();
    let asked = std::env::var("FLASHNET_SEEDS_EACH").ok();
    let seeds = asked.and_then(|n| n.parse().ok()).unwrap_or(seeds);
    for seed in 0..seeds {
        let (one, result) = run_resizes(options, effort, seed, &SIZES, 30);
        tally.add(&one);
        if let Err(violation) = result {
            panic!("seed {seed} with {options:?}: {}", violation.0);
        }
    }
    println!("{tally:#?}");
    tally
}

fn points(tally: &Tally, name: &str) -> u64 {
    let index = ftl::crash_point::ALL.iter().position(|n| *n == name);
    tally.points[index.expect("a name")]
}

/// See the file.
#[test]
fn up_and_down() {
    let tally = enumerate(&growing(), Effort::USUAL, 3);
    assert!(tally.states > 3_000 && tally.from_checkpoint > 500);
    assert!(tally.nested[0] > 100 && tally.rebuilt > 100);
    // With the four lives of `with_other_checkpoints`, more than ten.
    assert!(points(&tally, "resize.left") >= 6);
    assert!(points(&tally, "resize.copy") >= 36);
    assert!(points(&tally, "resize.switched") >= 18);
}

/// Without checkpoints only the log says what is where; with many small ones the map is put together from pieces.
#[test]
fn with_other_checkpoints() {
    let scanning = Options {
        area: 0,
        ..growing()
    };
    let sweeping = Options {
        area: 96,
        checkpoint_headers: 3,
        sweep: Some(14),
        spare: 500,
        ..growing()
    };
    for options in [scanning, sweeping] {
        let tally = enumerate(&options, SOME, 2);
        assert!(tally.states > 500);
        assert!(points(&tally, "resize.left") >= 4);
    }
}

/// Grains with other names and several of them move as well, and what is discarded is as good as never written.
#[test]
fn with_clones_and_discards() {
    let options = Options {
        cloning: true,
        remapping: true,
        discard: true,
        ..growing()
    };
    let tally = enumerate(&options, SOME, 2);
    assert!(tally.states > 500);
    assert!(tally.clones > 10 && tally.remaps > 10);
}

fn must_be_caught(bug: Bug) {
    let options = Options {
        bug: Some(bug),
        ..growing()
    };
    let found = (0..10).find_map(|seed| {
        let run = || run_resizes(&options, Effort::USUAL, seed, &SIZES, 30);
        match std::panic::catch_unwind(run) {
            Ok((_, Ok(()))) => None,
            Ok((_, Err(violation))) => Some(format!("seed {seed}: {}", violation.0)),
            Err(_) => Some(format!("seed {seed}: an assertion of the engine")),
        }
    });
    println!("{bug:?}: {found:?}");
    assert!(found.is_some(), "{bug:?} was not noticed");
}

#[test]
fn cut_early() {
    must_be_caught(Bug::CutEarly);
}

/// Grains that an engine with this bug, or none, finds after it was larger, was shrunk, and has grown again, when only the
/// log is asked; and those that are there.
fn after_a_larger_life(planted: Option<Bug>) -> (u64, u64) {
    let format_options = FormatOptions {
        segment_bytes: Some(16 * GRAIN_BYTES as u64),
        ..FormatOptions::default()
    };
    let mut media = device(4_000);
    format(&mut media, &format_options);
    // One stream: the log comes by in the order of the segments.
    let open = OpenOptions {
        planted,
        gc_policy: GcPolicy::Greedy,
        ..OpenOptions::default()
    };
    let (volume, _) = Volume::open(media, open.clone()).expect("open");
    let all = volume.space().capacity;
    fill(&volume, 0..all, 1);
    // The log comes round, so that what says that all is forgotten lies at the front and is overwritten later.
    for _ in 0..2 {
        volume.trim(LbaRange::new(Lba(0), 450)).expect("trim");
        fill(&volume, 0..450, 1);
    }
    volume.trim(LbaRange::new(Lba(0), all)).expect("trim");
    volume.resize(600).expect("shrink");
    // Everything that stays is written again and again, until nobody remembers what was forgotten.
    let few = volume.space().capacity * 9 / 10;
    let mut rng = Rng::new(3);
    for version in 2..20 {
        for _ in 0..few {
            let lba = rng.below(few);
            fill(&volume, lba..lba + 1, version);
        }
    }
    assert_eq!(volume.ftl().stats().tombstones, 0, "they have expired");
    volume.resize(4_000).expect("grow");
    fill(&volume, 0..few, 20);
    volume.shutdown().expect("shutdown");
    let rebuild = OpenOptions {
        rebuild: true,
        ..open
    };
    let (volume, _) = Volume::open(volume.into_device(), rebuild).expect("open");
    (volume.mapped_count(LbaRange::ALL), few)
}

/// What a larger life of the volume has left in segments that were cut off does not come back when it gets them again
/// (Z2).
#[test]
fn nothing_comes_back() {
    let (found, there) = after_a_larger_life(None);
    assert_eq!(found, there);
}

#[test]
fn fresh_forgotten() {
    let (found, there) = after_a_larger_life(Some(Bug::FreshForgotten));
    assert!(found > there, "not noticed");
}

fn format(device: &mut MemDevice, options: &FormatOptions) {
    Ftl::format(device, options).expect("format");
}

fn device(grains: u64) -> MemDevice {
    MemDevice::new(grains as usize * GRAIN_BYTES).expect("memory")
}

/// The same bytes at the front of a device of another size.
fn on_another(image: &[u8], grains: u64) -> MemDevice {
    let mut larger = device(grains);
    let len = image.len().min(grains as usize * GRAIN_BYTES);
    larger.image_mut()[..len].copy_from_slice(&image[..len]);
    larger
}

fn fill(volume: &Volume<MemDevice>, lbas: std::ops::Range<u64>, version: u64) {
    for lba in lbas.map(Lba) {
        volume.write(at(lba), &grain(lba, version)).expect("write");
    }
    volume.sync(LbaRange::ALL).expect("sync");
}

fn expect(volume: &Volume<MemDevice>, lbas: std::ops::Range<u64>, version: u64) {
    let mut got = vec![0; GRAIN_BYTES];
    for lba in lbas.map(Lba) {
        volume.read(at(lba), &mut got).expect("read");
        assert!(got == grain(lba, version), "{lba} is not version {version}");
    }
}

/// A volume is what `mkfs` would have made of the size, takes as much, and shrinks to what it holds, which fits exactly: the
/// minimum is one that works, and one grain more in use is refused.
#[test]
fn sizes_and_limits() {
    let options = FormatOptions {
        segment_bytes: Some(64 * GRAIN_BYTES as u64),
        ..FormatOptions::default()
    };
    let mut small = device(6_000);
    format(&mut small, &options);
    let image = small.image_mut().to_vec();
    let (volume, _) =
        Volume::open(on_another(&image, 24_000), OpenOptions::default()).expect("open");
    let before = volume.space().capacity;
    fill(&volume, 0..before, 1);
    let one_more = volume.write(at(Lba(before)), &grain(Lba(before), 1));
    assert_eq!(one_more, Err(VolumeError::NoSpace));
    volume.resize(24_000).expect("grow");
    let mut fresh = device(24_000);
    format(&mut fresh, &options);
    let wanted = Ftl::probe(&mut fresh).expect("probe").geometry;
    assert_eq!(volume.ftl().info().geometry, wanted);
    let after = volume.space().capacity;
    assert_eq!(after, wanted.capacity_grains);
    fill(&volume, before..after, 1);
    // Overwritten, so that everything is collected in the new size.
    fill(&volume, 0..after, 2);
    expect(&volume, 0..after, 2);

    let kept = after / 3;
    volume.trim(LbaRange::new(Lba(kept), after)).expect("trim");
    let least = volume.ftl().device_grains_min().expect("a size");
    assert!(least < 10_000, "{least}");
    let refused = volume.resize(least - 1);
    let is_full = |e: &VolumeError| matches!(e, VolumeError::Resize(ResizeError::Full { .. }));
    assert!(refused.as_ref().is_err_and(is_full), "{refused:?}");
    volume.resize(least).expect("shrink to the minimum");
    volume.ftl().self_check();
    expect(&volume, 0..kept, 2);
    // Full to the brim, and still every grain can be overwritten and trimmed.
    fill(&volume, 0..kept, 3);
    volume.trim(LbaRange::new(Lba(0), 10)).expect("trim");
    volume.shutdown().expect("shutdown");
    let mut media = volume.into_device();
    let cut = media.image_mut()[..least as usize * GRAIN_BYTES].to_vec();
    let mut cut = on_another(&cut, least);
    let report = ftl::check(&mut cut).expect("check");
    assert!(
        report.is_sound(),
        "{:?} {:?}",
        report.damaged,
        report.faults
    );
    let (volume, found) = Volume::open(cut, OpenOptions::default()).expect("open");
    assert!(found.clean && found.checkpoint.is_some(), "{found:?}");
    expect(&volume, 10..kept, 3);
    assert_eq!(volume.space().mapped, kept - 10);
    // Too short for what the superblock says.
    let mut short = on_another(volume.into_device().image(), least - 1);
    let opened = Ftl::open(&mut short, OpenOptions::default());
    assert!(matches!(opened, Err(OpenError::DeviceShrunk { .. })));
}

/// After each growth all of the new room is used before the next one: the table of fresh segments never fills up.
#[test]
fn grows_many_times() {
    let options = FormatOptions {
        segment_bytes: Some(16 * GRAIN_BYTES as u64),
        ..FormatOptions::default()
    };
    let mut small = device(300);
    format(&mut small, &options);
    let image = small.image_mut().to_vec();
    let (volume, _) =
        Volume::open(on_another(&image, 6_000), OpenOptions::default()).expect("open");
    for (round, grains) in (400..6_000).step_by(175).enumerate() {
        volume.resize(grains).expect("grow");
        let capacity = volume.space().capacity;
        // Some rounds use none of it, some a part, some all.
        let used = capacity * (round as u64 % 4) / 3;
        fill(&volume, 0..used, round as u64);
        expect(&volume, 0..used, round as u64);
        volume.ftl().self_check();
    }
}

/// A volume that grows time and again, with its free segments discarded in another order than they are opened in, says so when
/// the table of fresh segments is full, before anything has begun (Z2), and grows when more has been written.
#[test]
fn grows_too_often() {
    let format_options = FormatOptions {
        segment_bytes: Some(16 * GRAIN_BYTES as u64),
        ..FormatOptions::default()
    };
    let mut small = device(600);
    format(&mut small, &format_options);
    let open = OpenOptions {
        gc_policy: GcPolicy::Greedy,
        ..OpenOptions::default()
    };
    let (volume, _) = Volume::open(on_another(small.image(), 6_000), open).expect("open");
    let all = volume.space().capacity;
    for version in 1..4 {
        fill(&volume, 0..all, version);
    }
    volume.trim(LbaRange::new(Lba(0), all)).expect("trim");
    let discard = || {
        volume.ftl().discard_free();
        while volume.ftl().is_discarding_free() {
            volume.tick();
        }
    };
    discard();
    let mut grains = 600;
    let refused = loop {
        grains += 300;
        assert!(grains < 6_000, "there is room in the table for all of them");
        if let Err(error) = volume.resize(grains) {
            break error;
        }
        fill(&volume, 0..40, grains);
        discard();
    };
    let is_it = matches!(refused, VolumeError::Resize(ResizeError::TooOften));
    assert!(is_it, "{refused:?}");
    let now = volume.space().capacity;
    for version in 1..4 {
        fill(&volume, 0..now, version);
    }
    volume.resize(grains).expect("grow");
    expect(&volume, 0..now, 3);
    volume.ftl().self_check();
}
