//! The n-th call fails (M4): every media operation of a run of a thousand, with every kind of error.
//!
//! Defends I8 (nothing is acknowledged on top of a failed write or flush), I18 (every call is answered, once) and I1
//! (what was acknowledged survives a crash) against errors of the media; checkpoints are taken all the time.
//!
//! `FLASHNET_CALLS` chooses the shard: `all`, or `INDEX/COUNT`. By default every operation fails with one kind of
//! error, and all kinds take turns.

use crate::harness::crash::recover;
use crate::harness::options::Options;
use crate::harness::oracle::Violation;
use crate::harness::shard::Shard;
use crate::harness::world::{World, unobserved};
use ftl::MediaError;
use ftl::device::sim::{CrashPlan, Effect, Fault, SimDevice};

const ERRORS: [MediaError; 6] = [
    MediaError::Io,
    MediaError::NoSpace,
    MediaError::Gone,
    MediaError::Short,
    MediaError::ReadOnly,
    MediaError::Invalid,
];
/// Operations of the workload; they make about as many calls.
const OPS: usize = 1500;
const SEED: u64 = 21;

fn options() -> Options {
    Options {
        pool_frames: 24,
        checkpoint_headers: 6,
        ..Options::tiny()
    }
}

fn used_world() -> World {
    let mut world = World::create(&options(), SEED).expect("a fresh volume");
    world.run(60, &mut unobserved).expect("no faults yet");
    world.failures.expected = true;
    world.failures.volume_may_fail = true;
    world
}

fn run(world: &mut World) -> Result<(), Violation> {
    world.run(OPS, &mut unobserved)?;
    world.sync_all(&mut unobserved)
}

/// The run with one failing call, and what a power cut leaves of it afterwards.
fn run_with(fault: Fault) -> Result<World, Violation> {
    let options = options();
    let mut world = used_world();
    world.device.inject(fault);
    run(&mut world)?;
    for image in world.device.crash_point().images(CrashPlan::sampled(2), 1) {
        let mut device = SimDevice::from_image(image.content, 1);
        let (found, _) = recover(&mut device, &options, &options.universe())?;
        world.oracle.judge(&found)?;
    }
    Ok(world)
}

#[test]
fn every_call_every_error() {
    let mut whole = used_world();
    let before = whole.counts().calls();
    run(&mut whole).expect("no faults");
    let calls = whole.counts().calls() - before;
    assert!(calls >= 1_000, "{calls} calls");
    assert!(whole.ftl.stats().checkpoints > 10);
    let shard = Shard::of_env("FLASHNET_CALLS", ERRORS.len() as u64);
    let (mut runs, mut failed) = (0, 0);
    for n in 0..calls {
        for (kind, &error) in ERRORS.iter().enumerate() {
            if !shard.has(n + kind as u64) {
                continue;
            }
            let mut fault = Fault::nth(None, n, Effect::Fail(error));
            if n / 7 % 2 == 1 {
                fault = fault.for_ever();
            }
            let what = format!("call {n}, {error:?}, {} times", fault.times);
            let world = run_with(fault).unwrap_or_else(|v| panic!("{what}: {}", v.0));
            assert!(world.counts().faults > 0, "{what}: not hit");
            runs += 1;
            failed += u64::from(world.failures.volume_failed);
        }
    }
    println!("{runs} runs, {failed} volumes failed");
    assert!(failed > 0 && failed < runs, "{failed} of {runs}");
}
