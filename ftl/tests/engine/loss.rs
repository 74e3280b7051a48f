//! Devices of an array that fail while the volume is in use, or are not there when it is opened.
//!
//! Defends, against a device that stops taking writes or flushes or vanishes: the rest lives on; what was acknowledged
//! and lies elsewhere is there, also after a crash at any moment (I1, I2); what is lost is an error, never something
//! older (I2, I4); every call is answered, once (I18); nothing is acknowledged that only the lost device has (I8).

use crate::harness::options::Options;
use crate::harness::oracle::Violation;
use crate::harness::world::{Moment, World, read_rest, unobserved};
use ftl::device::sim::{CrashPlan, Effect, Fault, OpKind};
use ftl::{Ftl, GetError, Lba, LbaRange, MediaError, MemberState};

const OPS: usize = 250;

fn options(devices: usize) -> Options {
    Options {
        array: vec![42 / devices as u64; devices],
        area: 96,
        checkpoint_headers: 8,
        ..Options::tiny()
    }
}

fn used_world(options: &Options, seed: u64) -> World {
    let mut world = World::create(options, seed).expect("a fresh volume");
    world.run(150, &mut unobserved).expect("no faults yet");
    world.failures.expected = true;
    world.failures.volume_may_fail = true;
    world
}

/// Grains that can not be read; all others must be as the workload left them.
fn lost_now(world: &mut World, options: &Options, what: &str) -> Vec<u64> {
    let mut lost = Vec::new();
    for lba in options.universe() {
        let answer = world.read_back(lba);
        match answer.unwrap_or_else(|v| panic!("{what}: {}", v.0)) {
            Ok(bytes) => assert!(
                bytes == world.oracle.current(lba).bytes(),
                "{what}: LBA {lba} reads as {:02x?}..",
                &bytes[..16]
            ),
            Err(GetError::Media {
                error: MediaError::Gone | MediaError::Missing,
                ..
            }) => lost.push(lba),
            Err(error) => panic!("{what}: LBA {lba}: {error}"),
        }
    }
    lost
}

/// What is lost, and of which nobody had been told before that it is durable, has been told to be lost (I1).
fn assert_told(world: &World, lost: &[u64], what: &str) {
    let failures = &world.failures;
    let unvouched = failures.unvouched.as_ref().expect("a device was lost");
    for lba in lost {
        let is_same = unvouched.get(lba) == Some(&world.oracle.version(*lba));
        // Whoever is told under one name, and gives it another afterwards, knows.
        let content = world.oracle.current(*lba);
        let mut names = world.oracle.lbas().into_iter();
        let is_told = names.any(|name| {
            world.oracle.current(name) == content
                && failures.told.iter().any(|promise| promise.covers(name))
        });
        assert!(
            !is_same || is_told,
            "{what}: LBA {lba} is lost, and a sync says it is durable"
        );
    }
}

/// What is left after a power cut without the device: refused with it, and as promised without it.
fn judge_rest(world: &World, options: &Options, device: usize) -> Result<Vec<u64>, Violation> {
    let mut most = Vec::new();
    for image in world.device.crash_point().images(CrashPlan::sampled(3), 1) {
        let name = format!("sim{device}");
        match options.rig(image.content.clone(), 1) {
            Err(Violation(said)) if said.contains(&name) && said.contains("has failed") => {}
            Err(violation) => return Err(violation),
            Ok(_) => return Err(Violation("a device out of date is believed".to_owned())),
        }
        let mut rig = options.rig_without(device, image.content)?;
        let (ftl, report) = Ftl::open(&mut rig, options.open())
            .map_err(|error| Violation(format!("without the device: {error}")))?;
        if report.devices_lost != 1 || report.headers_lost != 0 {
            return Err(Violation(format!("{report:?}")));
        }
        let (found, lost) = read_rest(&ftl, &mut rig, &options.universe())?;
        world.oracle.judge_rest(&found)?;
        ftl.self_check();
        most = lost;
    }
    Ok(most)
}

/// The n-th write or flush of a device fails, and all that follow: the volume goes on without it.
#[test]
fn goes_on_without() {
    let (mut runs, mut rescued, mut lost_in_all, mut told) = (0, 0, 0, 0);
    for devices in [2, 3] {
        let options = options(devices);
        for kind in [OpKind::Write, OpKind::Flush] {
            for n in 0..32 {
                let device = n as usize % devices;
                let seed = n / 4;
                let what = format!("{devices} devices, seed {seed}, {kind:?} {n} of {device}");
                let mut world = used_world(&options, seed);
                let fault = Fault::nth(Some(kind), n, Effect::Fail(MediaError::Io)).for_ever();
                world.device.device(device).inject(fault);
                let mut result = world
                    .run(OPS, &mut unobserved)
                    .and_then(|()| world.sync_all(&mut unobserved));
                // A flush that nobody waits for may be the one that fails. Who hears of it while a sync is answered records the loss with
                // the next.
                let mut lost = None;
                while result.is_ok() && lost != Some(world.ftl.stats().devices_lost) {
                    lost = Some(world.ftl.stats().devices_lost);
                    result = world.sync_all(&mut unobserved);
                }
                result.unwrap_or_else(|v| panic!("{what}: {}", v.0));
                assert!(!world.failures.volume_failed, "{what}: the volume failed");
                if world.counts().faults == 0 {
                    continue;
                }
                assert_eq!(world.ftl.stats().devices_lost, 1, "{what}");
                let states = world.ftl.devices();
                assert_eq!(states[device].state, MemberState::Failed, "{what}");
                world.ftl.self_check();
                let before = lost_now(&mut world, &options, &what);
                assert_told(&world, &before, &what);
                let after = judge_rest(&world, &options, device);
                let after = after.unwrap_or_else(|v| panic!("{what}: {}", v.0));
                assert!(before.iter().all(|lba| after.contains(lba)), "{what}");
                runs += 1;
                rescued += after.len() - before.len();
                lost_in_all += after.len();
                told += world.failures.lost;
            }
        }
    }
    println!("{runs} runs: {lost_in_all} grains lost, {rescued} still in memory, {told} told");
    assert!(
        runs > 80 && lost_in_all > 0,
        "what is lost was never looked at"
    );
}

/// Pages that nobody syncs are written, relocated from device to device, and lost where they are by then: the sync that
/// comes at last tells.
#[test]
fn lost_on_the_way() {
    let tiny = Options {
        pool_frames: 24,
        lazy: true,
        universe_percent: 95,
        ..options(2)
    };
    let (mut runs, mut failed, mut lost_in_all, mut relocated) = (0, 0, 0, 0);
    for seed in 0..400 {
        let devices = 2 + seed as usize / 3 % 2;
        let device = seed as usize % devices;
        let options = Options {
            array: vec![13; devices],
            remapping: seed % 5 == 0,
            cloning: seed % 7 == 0,
            ..tiny.clone()
        };
        let mut world = World::create(&options, seed).expect("a fresh volume");
        world.failures.expected = true;
        let (kind, n, error) = match seed % 4 {
            0 | 1 => (OpKind::Write, 40 + seed % 80, MediaError::Io),
            2 => (OpKind::Flush, 10 + seed % 20, MediaError::Io),
            _ => (OpKind::Read, 10 + seed % 80, MediaError::Gone),
        };
        let fault = Fault::nth(Some(kind), n, Effect::Fail(error));
        world.device.device(device).inject(fault.for_ever());
        let what = format!("seed {seed}, device {device}");
        let mut result = Ok(());
        while result.is_ok() && world.ftl.stats().devices_lost == 0 {
            result = world.run(20, &mut unobserved);
        }
        result.unwrap_or_else(|v| panic!("{what}: {}", v.0));
        relocated += world.ftl.stats().relocated_grains;
        // One by one: no sync tells for another.
        for lba in options.universe() {
            world.start_sync(LbaRange::new(Lba(lba), 1));
            let result = world.settle(&mut unobserved);
            result.unwrap_or_else(|v| panic!("{what}: {}", v.0));
        }
        if world.failures.volume_failed {
            // There was no space to go on: everybody has been told, but it is seldom so.
            failed += 1;
            continue;
        }
        let lost = lost_now(&mut world, &options, &what);
        assert_told(&world, &lost, &what);
        runs += 1;
        lost_in_all += lost.len();
    }
    println!("{runs} runs: {lost_in_all} grains lost, {relocated} relocated");
    assert_eq!(failed, 0, "volumes failed");
    assert!(lost_in_all > 100 && relocated > 1000);
}

/// A power cut at every moment from the failure on, until it has been recorded and the volume goes on. The device comes
/// back, with what its cache happened to keep: either it is refused, or what was acknowledged is there, all of it.
#[test]
fn cut_while_going_on() {
    let (mut back, mut refused, mut acknowledged) = (0, 0, 0);
    ftl::crash_point::watch();
    for seed in 0..12 {
        let devices = 2 + seed as usize % 2;
        let options = options(devices);
        let device = seed as usize / 2 % devices;
        let mut world = used_world(&options, seed);
        let kind = [OpKind::Write, OpKind::Flush][seed as usize / 4 % 2];
        let fault = Fault::nth(Some(kind), 3 + seed, Effect::Fail(MediaError::Io)).for_ever();
        world.device.device(device).inject(fault);
        let mut moments = 0;
        let mut look = |view: &crate::harness::world::View| {
            if view.ftl.stats().devices_lost == 0 {
                return Ok(());
            }
            moments += 1;
            acknowledged += u64::from(view.moment == Moment::Acknowledged);
            if moments > 80 {
                return Ok(());
            }
            for image in view
                .device
                .crash_point()
                .images(CrashPlan::sampled(3), moments)
            {
                let rig = options.rig(image.content.clone(), moments);
                let (mut rig, is_back) = match rig {
                    Ok(rig) => (rig, true),
                    Err(_) => (options.rig_without(device, image.content)?, false),
                };
                let opened = Ftl::open(&mut rig, options.open());
                let (ftl, report) = opened.map_err(|e| Violation(format!("{is_back}: {e}")))?;
                let (found, lost) = read_rest(&ftl, &mut rig, &options.universe())?;
                let judged = match is_back && lost.is_empty() {
                    true => view.oracle.judge(&found),
                    false => view.oracle.judge_rest(&found),
                };
                judged.map_err(|v| {
                    let choice = &image.choice;
                    Violation(format!("back {is_back}: {}\n{report:?}\n{choice:?}", v.0))
                })?;
                back += u64::from(is_back);
                refused += u64::from(!is_back);
            }
            Ok(())
        };
        let result = world
            .run(OPS, &mut look)
            .and_then(|()| world.sync_all(&mut look));
        result.unwrap_or_else(|v| panic!("seed {seed}: {}", v.0));
        assert!(
            !world.failures.volume_failed,
            "seed {seed}: the volume failed"
        );
    }
    println!("{back} with the device back, {refused} without it, {acknowledged} acknowledged");
    assert!(back > 200 && refused > 200 && acknowledged > 20);
    let hits = ftl::crash_point::take();
    for point in ["loss", "loss.record"] {
        let hits = hits.get(point).copied().unwrap_or(0);
        assert!(hits >= 10, "{point} was passed {hits} times");
    }
}

/// A device that says that it has gone when it is read is lost like one that can not be written.
#[test]
fn gone_on_reading() {
    let options = Options {
        pool_frames: 24,
        ..options(3)
    };
    let mut lost = 0;
    for run in 0..9 {
        let device = run as usize % 3;
        let mut world = used_world(&options, run);
        let gone = Fault::every(OpKind::Read, Effect::Fail(MediaError::Gone));
        world.device.device(device).inject(gone);
        let result = world
            .run(OPS, &mut unobserved)
            .and_then(|()| world.sync_all(&mut unobserved))
            .and_then(|()| world.sync_all(&mut unobserved));
        let what = format!("run {run}, device {device}");
        result.unwrap_or_else(|v| panic!("{what}: {}", v.0));
        assert_eq!(world.ftl.stats().devices_lost, 1, "{what}");
        lost += lost_now(&mut world, &options, &what).len();
        judge_rest(&world, &options, device).unwrap_or_else(|v| panic!("{what}: {}", v.0));
    }
    assert!(lost > 0, "what is lost was never looked at");
}

/// The last device that is left takes the volume along, and everybody is told.
#[test]
fn nothing_left() {
    let options = options(2);
    let mut world = used_world(&options, 1);
    for device in 0..2 {
        let fault = Fault::nth(Some(OpKind::Write), 4, Effect::Fail(MediaError::Io)).for_ever();
        world.device.device(device).inject(fault);
    }
    let result = world
        .run(OPS, &mut unobserved)
        .and_then(|()| world.sync_all(&mut unobserved))
        .and_then(|()| world.probe());
    result.unwrap_or_else(|v| panic!("{}", v.0));
    assert!(world.failures.volume_failed, "nobody was told");
}
