//! Faults of the media other than power cuts: every operation of a run failing in turn (M4), and devices that lie.
//!
//! Defends I8 (a failed flush or log write ends all acknowledgements), I18 (every call is answered, once, also on
//! errors), I4 (lost and misdirected writes and flipped bits show as errors of that grain, never as wrong bytes).

use crate::harness::crash::recover;
use crate::harness::options::Options;
use crate::harness::oracle::Violation;
use crate::harness::world::{World, read_grain, unobserved};
use ftl::check::Checked;
use ftl::device::sim::{CrashPlan, Effect, Fault, OpKind, SimDevice, SimRng};
use ftl::format::{Header, Record, RecordKind};
use ftl::inspect::Inspector;
use ftl::{Ftl, GetError, Intent, Lba, MediaError, Pba, Port, SegmentId, Token};
use std::collections::BTreeMap;

/// Operations of the workload under fault; about twice as many media operations.
const OPS: usize = 400;

fn options() -> Options {
    Options {
        pool_frames: 24,
        // A small map is read while opening, and what is wrong with it found there.
        eager: 64,
        ..Options::tiny()
    }
}

/// A volume in use, without faults so far; the same one for the same seed.
fn used_world(seed: u64) -> World {
    let mut world = World::create(&options(), seed).expect("a fresh volume");
    world.run(60, &mut unobserved).expect("no faults yet");
    world.failures.expected = true;
    world
}

/// Media operations of the run when nothing fails.
fn calls(seed: u64) -> u64 {
    let mut world = used_world(seed);
    let before = world.counts().calls();
    world.run(OPS, &mut unobserved).expect("no faults");
    world.sync_all(&mut unobserved).expect("no faults");
    world.counts().calls() - before
}

/// What is left of a run must keep every promise, whatever the power cut leaves.
fn judge_crashes(world: &World) -> Result<(), Violation> {
    let options = options();
    for image in world.device.crash_point().images(CrashPlan::sampled(5), 1) {
        let mut device = SimDevice::from_image(image.content, 1);
        let (found, _) = recover(&mut device, &options, &options.universe())?;
        world.oracle.judge(&found)?;
    }
    Ok(())
}

/// One run with one fault; answers must come, be right, and promise only what holds.
fn run_with(fault: Fault, volume_may_fail: bool, seed: u64) -> Result<World, Violation> {
    let mut world = used_world(seed);
    world.failures.volume_may_fail = volume_may_fail;
    world.device.inject(fault);
    world.run(OPS, &mut unobserved)?;
    world.sync_all(&mut unobserved)?;
    Ok(world)
}

fn read_back(world: &mut World, lba: u64, what: &str) -> Result<Vec<u8>, GetError> {
    let answer = world.read_back(lba);
    answer.unwrap_or_else(|violation| panic!("{what}: {}", violation.0))
}

fn check(result: Result<World, Violation>, what: &str) -> World {
    result.unwrap_or_else(|violation| panic!("{what}: {}", violation.0))
}

/// The n-th write or flush fails, for every n, once and for ever, with every kind of error: the volume fails, every
/// waiter hears of it, nothing is acknowledged any more, reads go on, and what was acknowledged survives a crash.
#[test]
fn failing_writes_and_flushes() {
    let seed = 5;
    let total = calls(seed);
    assert!(total > 200, "{total} calls");
    let errors = [
        MediaError::Io,
        MediaError::NoSpace,
        MediaError::Gone,
        MediaError::Short,
    ];
    let mut runs = 0;
    for kind in [OpKind::Write, OpKind::Flush] {
        for n in 0..total {
            let error = errors[n as usize % errors.len()];
            let mut fault = Fault::nth(Some(kind), n, Effect::Fail(error));
            if n as usize / errors.len() % 2 == 1 {
                fault = fault.for_ever();
            }
            let what = format!(
                "seed {seed}, {kind:?} {n}: {error:?}, {} times",
                fault.times
            );
            let mut world = check(run_with(fault, true, seed), &what);
            if world.counts().faults == 0 {
                break;
            }
            world.probe().unwrap_or_else(|v| panic!("{what}: {}", v.0));
            runs += 1;
            assert!(world.failures.volume_failed, "{what}: nobody was told");
            assert_failed_volume(&world, &what);
            if let Err(violation) = judge_crashes(&world) {
                panic!("{what}: {}", violation.0);
            }
        }
    }
    println!("{runs} runs");
    assert!(runs > 100);
}

/// A failed volume refuses every change.
fn assert_failed_volume(world: &World, what: &str) {
    let lba = Lba(options().universe()[0]);
    let got = world.ftl.get(Port(0), lba, Intent::Write, Token(1 << 40));
    assert!(
        matches!(got, ftl::Get::Failed(GetError::Failed(_))),
        "{what}: get for writing gave {got:?}"
    );
    assert!(world.ftl.try_get(lba, Intent::Write).is_none(), "{what}");
}

/// The n-th read fails: the page asked for is refused and nothing else happens; the volume does not fail.
#[test]
fn failing_reads() {
    let seed = 6;
    let total = calls(seed);
    let mut runs = 0;
    for n in 0..total {
        let fault = Fault::nth(Some(OpKind::Read), n, Effect::Fail(MediaError::Io));
        let what = format!("seed {seed}, read {n}");
        let mut world = check(run_with(fault, false, seed), &what);
        if world.counts().faults == 0 {
            break;
        }
        runs += 1;
        assert!(!world.failures.volume_failed, "{what}: the volume failed");
        world.device.clear_faults();
        // The fault is over: everything is there.
        for lba in options().universe() {
            let bytes = read_back(&mut world, lba, &what);
            let right = bytes.as_ref() == Ok(&world.oracle.current(lba).bytes());
            assert!(
                right,
                "{what}: LBA {lba} is {:?}",
                bytes.map(|b| b[..8].to_vec())
            );
        }
    }
    println!("{runs} runs");
    assert!(runs > 20);
}

/// All reads fail for ever from the n-th on: calls are answered (the volume fails once nothing can be collected any
/// more), and promises hold after a restart.
#[test]
fn unreadable_for_ever() {
    let seed = 7;
    for n in (0..60).step_by(3) {
        let fault = Fault::nth(Some(OpKind::Read), n, Effect::Fail(MediaError::Io)).for_ever();
        let what = format!("seed {seed}, reads from {n}");
        let world = check(run_with(fault, true, seed), &what);
        if let Err(violation) = judge_crashes(&world) {
            panic!("{what}: {}", violation.0);
        }
    }
}

/// Slow operations change nothing but the order.
#[test]
fn slow_operations() {
    let seed = 8;
    for kind in [OpKind::Read, OpKind::Write, OpKind::Flush, OpKind::Discard] {
        for n in 0..12 {
            let fault = Fault::nth(Some(kind), n * 5, Effect::Delay(2_000)).times(2);
            let mut world = used_world(seed);
            world.failures.expected = false;
            world.device.inject(fault);
            let result = world
                .run(OPS, &mut unobserved)
                .and_then(|()| world.sync_all(&mut unobserved))
                .and_then(|()| judge_crashes(&world));
            assert!(result.is_ok(), "seed {seed}, {kind:?} {n}: {result:?}");
        }
    }
}

/// Every operation of an opening fails in turn: it is refused or succeeds, and nothing is lost by it.
#[test]
fn failing_recovery() {
    let options = options();
    let mut world = used_world(9);
    world.run(OPS, &mut unobserved).expect("no faults");
    let image = world
        .device
        .crash_point()
        .images(CrashPlan::sampled(1), 1)
        .next();
    let image = image.expect("one image").content;
    let mut device = SimDevice::from_image(image.clone(), 1);
    let (found, _) = recover(&mut device, &options, &options.universe()).expect("no faults");
    let (mut opened, mut refused) = (0, 0);
    for n in 0.. {
        let mut device = SimDevice::from_image(image.clone(), n);
        device.inject(Fault::nth(None, n, Effect::Fail(MediaError::Io)));
        match Ftl::open(&mut device, options.open()) {
            Ok(_) => opened += 1,
            Err(_) => refused += 1,
        }
        let hit = device.counts().faults > 0;
        device.clear_faults();
        for image in device.crash_point().images(CrashPlan::sampled(3), n) {
            let mut device = SimDevice::from_image(image.content, n);
            let again = recover(&mut device, &options, &options.universe());
            let again = again.unwrap_or_else(|v| panic!("operation {n}: {}", v.0));
            assert!(
                again.0 == found,
                "operation {n}: other content after a failed opening"
            );
        }
        if !hit {
            break;
        }
    }
    println!("{opened} openings succeeded, {refused} were refused");
    assert!(refused > 0);
}

/// Lies of the device, one in each run: never wrong bytes, at most an error for the grain concerned; after a restart
/// a grain may be damaged or an older version of itself, but never what was not written there.
fn lying(effect: impl Fn(&mut SimRng) -> Effect, kind: OpKind, seed: u64) -> (u64, u64) {
    let options = options();
    let (mut damaged, mut hits, mut failed) = (0, 0, 0);
    for n in 0..120 {
        let mut rng = SimRng::new(n);
        let effect = effect(&mut rng);
        let what = format!("seed {seed}, {kind:?} {n}: {effect:?}");
        // A write that destroys other headers may leave nothing to collect: then the volume fails.
        let may_fail = matches!(effect, Effect::Misdirect(_)) && kind == OpKind::Write;
        let fault = Fault::nth(Some(kind), n, effect);
        let mut world = check(run_with(fault, may_fail, seed), &what);
        failed += u64::from(world.failures.volume_failed);
        hits += world.counts().faults;
        if world.counts().faults == 0 {
            break;
        }
        damaged += world.failures.damaged;
        for lba in options.universe() {
            match read_back(&mut world, lba, &what) {
                Ok(bytes) => assert!(
                    bytes == world.oracle.current(lba).bytes()
                        || world.failures.volume_failed && world.oracle.ever_written(lba, &bytes),
                    "{what}: LBA {lba} reads as {:02x?}..",
                    &bytes[..16]
                ),
                Err(GetError::Damaged { .. }) => damaged += 1,
                Err(GetError::Failed(_)) if world.failures.volume_failed => {}
                Err(error) => panic!("{what}: LBA {lba}: {error}"),
            }
        }
        let image = world.device.image().to_vec();
        let oracle = world.oracle;
        let mut device = SimDevice::from_image(image, n);
        let Ok((ftl, _)) = Ftl::open(&mut device, options.open()) else {
            panic!("{what}: the volume does not open");
        };
        for lba in options.universe() {
            if let Ok(bytes) = read_grain(&ftl, &mut device, lba, 1) {
                assert!(
                    oracle.ever_written(lba, &bytes),
                    "{what}: after a restart LBA {lba} reads as {:02x?}..",
                    &bytes[..16]
                );
            }
        }
    }
    println!(
        "{kind:?}: {hits} lies, {damaged} grains reported as damaged, {failed} volumes failed"
    );
    assert!(failed * 20 <= hits, "{failed} of {hits} volumes failed");
    (damaged, hits)
}

#[test]
fn lost_writes() {
    let (damaged, hits) = lying(|_| Effect::Lose, OpKind::Write, 11);
    assert!(hits > 40 && damaged > 0);
}

#[test]
fn misdirected_writes() {
    let len = options().device_bytes() as u64;
    let elsewhere = |rng: &mut SimRng| {
        let grains = len / 4096 - 40;
        Effect::Misdirect((16 + rng.below(grains)) * 4096)
    };
    let (damaged, hits) = lying(elsewhere, OpKind::Write, 12);
    assert!(hits > 40 && damaged > 0);
}

#[test]
fn misdirected_reads() {
    let len = options().device_bytes() as u64;
    let elsewhere = |rng: &mut SimRng| Effect::Misdirect(rng.below(len / 4096) * 4096);
    let (damaged, hits) = lying(elsewhere, OpKind::Read, 13);
    assert!(hits > 20 && damaged > 0);
}

#[test]
fn flipped_bits() {
    let flip = |rng: &mut SimRng| Effect::FlipBit(rng.bits());
    let (damaged, _) = lying(flip, OpKind::Read, 14);
    assert!(damaged > 0);
    let (damaged, _) = lying(flip, OpKind::Write, 15);
    assert!(damaged > 0);
}

/// How many grains each header on the media may cost, by the place of the header: those that it describes, under all of
/// their names, and those that it renames. The youngest, which no other header calls durable yet, look like the work of
/// a power cut when they are damaged: they cost what lies behind them, too.
fn prices(options: &Options, mut device: SimDevice) -> BTreeMap<u64, u64> {
    let mut names: BTreeMap<Pba, u64> = BTreeMap::new();
    for checked in ftl::check(&mut device).expect("intact").map.values() {
        if let Checked::Data { pba, .. } = checked {
            *names.entry(*pba).or_default() += 1;
        }
    }
    let mut inspector = Inspector::new(&mut device).expect("intact");
    let segments = (0..options.segments as u32).map(SegmentId);
    let headers: Vec<_> = segments.flat_map(|s| inspector.headers(s)).collect();
    let renamed = |record: &Record| match record.kind {
        RecordKind::Remap { count, .. } | RecordKind::Clone { count, .. } => 2 * u64::from(count),
        _ => 0,
    };
    let described = |at: Pba, header: &Header| -> u64 {
        let places = (at.0 + 1..).take(header.grains() as usize - 1).map(Pba);
        let data = places.map(|p| names.get(&p).copied().unwrap_or(1));
        let others = header.records.iter().map(|record| match record.kind {
            RecordKind::Trim { count } | RecordKind::Zero { count } => u64::from(count),
            // What it renames may have been renamed since.
            _ if renamed(record) > 0 => {
                let since = headers.iter().filter(|(_, h)| h.no >= header.no);
                since.flat_map(|(_, h)| &h.records).map(renamed).sum()
            }
            _ => 0,
        });
        data.sum::<u64>() + others.sum::<u64>()
    };
    // Headers behind a damaged one in its segment are found only from younger ones elsewhere.
    let is_vouched_for = |header: &Header| {
        let seen = |h: &Header| h.segment != header.segment || h.position < header.position;
        let mut all = headers.iter().map(|(_, h)| h);
        all.any(|h| seen(h) && h.durable >= header.no)
    };
    let price = |at: Pba, header: &Header| {
        let behind = headers.iter().filter(|(_, h)| h.no >= header.no);
        match is_vouched_for(header) {
            true => described(at, header),
            false => behind.map(|(at, h)| described(*at, h)).sum(),
        }
    };
    headers
        .iter()
        .map(|(at, h)| (at.0, price(*at, h)))
        .collect()
}

/// Any single bad sector of metadata leaves the volume mountable (I7): a superblock copy costs nothing, a header
/// costs at most its price, and nobody ever reads bytes that were not written there.
#[test]
fn damaged_metadata() {
    let options = options();
    let mut world = used_world(16);
    world.failures.expected = false;
    world.run(OPS, &mut unobserved).expect("no faults");
    world.sync_all(&mut unobserved).expect("no faults");
    let image = world.device.image().to_vec();
    let mut device = SimDevice::from_image(image.clone(), 1);
    let (found, _) = recover(&mut device, &options, &options.universe()).expect("no faults");
    let prices = prices(&options, SimDevice::from_image(image.clone(), 1));
    let mut rng = SimRng::new(16);
    let (mut headers, mut grains_lost) = (0, 0);
    for grain in 0..image.len() / 4096 {
        let bytes = &image[grain * 4096..(grain + 1) * 4096];
        let is_header = bytes.starts_with(b"FTLHEAD1");
        let is_root = bytes.starts_with(b"FTLROOT1");
        let in_area = grain as u64 >= 16 + options.segments * options.segment_grains;
        if !is_header && !is_root && !in_area && !bytes.starts_with(b"FLASHNET") {
            continue;
        }
        headers += u64::from(is_header);
        let mut bad = image.clone();
        let sector = grain * 4096
            + if rng.one_in(2) {
                0
            } else {
                512 * rng.below(8) as usize
            };
        rng.fill(&mut bad[sector..sector + 512]);
        let mut device = SimDevice::from_image(bad, 1);
        let opened = Ftl::open(&mut device, options.open());
        let (ftl, _) = opened.unwrap_or_else(|error| panic!("grain {grain} damaged: {error}"));
        let mut lost = 0;
        for lba in options.universe() {
            match read_grain(&ftl, &mut device, lba, 1) {
                Ok(bytes) => {
                    let written = world.oracle.ever_written(lba, &bytes);
                    assert!(written, "grain {grain} damaged: LBA {lba} reads wrong");
                    lost += u64::from(bytes != found[&lba].bytes());
                }
                Err(GetError::Damaged { .. }) => lost += 1,
                Err(error) => panic!("grain {grain} damaged: LBA {lba}: {error}"),
            }
        }
        assert!(
            is_header || lost == 0,
            "a grain of superblock or checkpoint cost {lost} grains"
        );
        let price = prices.get(&(grain as u64)).copied().unwrap_or(0);
        assert!(lost <= price, "grain {grain} cost {lost}, not {price}");
        grains_lost += lost;
    }
    println!("{headers} headers damaged one by one: {grains_lost} grains lost in all");
    assert!(headers > 20);
}
