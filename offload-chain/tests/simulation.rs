//! A whole cluster in virtual time (M6): members, clients, controllers and the store in one process, every fault of the model, then
//! none. Shown: histories are linearizable per object, and so nothing takes effect twice and nothing acknowledged is lost
//! (I1, I12, I13); the group comes to rest with all members alike (I14, I15).
//!
//! A failing seed says how to run it again: `FLASHNET_SEED=n cargo test -p offload-chain --test simulation one_seed -- --nocapture`.
//! `FLASHNET_SEEDS=n` sets how many the main test runs.

#![allow(unreachable_pub, reason = "modules of a test have no other users")]

#[path = "simulation/app.rs"]
mod app;
#[path = "simulation/check.rs"]
mod check;
#[path = "simulation/fabric.rs"]
mod fabric;
mod support;
#[path = "simulation/world/mod.rs"]
mod world;

use app::ClientBug;
use offload_chain::planted::Bug;
use world::{EngineBug, Planted, Stats, World};

fn run(seed: u64, planted: Option<Planted>) -> Result<(Stats, u64), String> {
    let mut world = World::new(seed, planted);
    let stats = world.run()?;
    Ok((stats, world.hash))
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn seeds() {
    let first = number("FLASHNET_SEED").unwrap_or(0);
    let seeds = number("FLASHNET_SEEDS").unwrap_or(500);
    let mut sum = Stats::default();
    for seed in first..first + seeds {
        let (stats, _) = run(seed, None).unwrap_or_else(|wrong| {
            panic!(
                "seed {seed}: {wrong}\nagain: FLASHNET_SEED={seed} cargo test -p offload-chain --test simulation one_seed -- --nocapture"
            )
        });
        sum.epochs += stats.epochs;
        sum.joins += stats.joins;
        sum.fenced += stats.fenced;
        sum.kills += stats.kills;
        sum.power_cuts += stats.power_cuts;
        sum.wipes += stats.wipes;
        sum.pauses += stats.pauses;
        sum.partitions += stats.partitions;
        sum.completed += stats.completed;
        sum.unknown += stats.unknown;
    }
    println!("{seeds} seeds: {sum:?}");
    // A simulation in which nothing happens shows nothing.
    if seeds >= 100 {
        assert!(
            sum.epochs > 3 * seeds && sum.completed > 50 * seeds,
            "{sum:?}"
        );
        for rare in [
            sum.joins,
            sum.fenced,
            sum.kills,
            sum.power_cuts,
            sum.wipes,
            sum.unknown,
        ] {
            assert!(rare > 0, "{sum:?}");
        }
    }
}

/// With `FLASHNET_SEED`: that seed alone, with everything that happened.
#[test]
fn one_seed() {
    let Some(seed) = number("FLASHNET_SEED") else {
        return;
    };
    let mut world = World::new(seed, None);
    world.trace = Some(Vec::new());
    let result = world.run();
    for line in world.trace.take().unwrap_or_default() {
        println!("{line}");
    }
    println!(
        "{} events, hash {:x}, {:?}",
        world.handled(),
        world.hash,
        result
    );
    assert!(result.is_ok());
}

/// Same seed, same trace.
#[test]
fn a_seed_tells_everything() {
    for seed in 0..5 {
        let (_, one) = run(seed, None).unwrap();
        let (_, other) = run(seed, None).unwrap();
        assert_eq!(one, other, "seed {seed}");
    }
    let different = run(0, None).unwrap().1 != run(1, None).unwrap().1;
    assert!(different);
}

/// M12: each bug is found within so many seeds.
#[test]
fn planted_bugs_are_found() {
    let bugs = [
        Planted::Engine(EngineBug::AnyEpoch),
        Planted::Engine(EngineBug::HeadAnswers),
        Planted::Engine(EngineBug::ForwardBeforeFlush),
        Planted::Client(ClientBug::UnlockEarly),
        Planted::Client(ClientBug::RetryUnknown),
        Planted::Product(Bug::EndNotKept),
        Planted::Product(Bug::BlankVouches),
        Planted::Product(Bug::LastRoundSkipped),
        Planted::Product(Bug::SealNotAwaited),
        Planted::Product(Bug::DirtyAnswered),
    ];
    let seeds = number("FLASHNET_SEEDS").unwrap_or(150);
    let mut unnoticed = Vec::new();
    for bug in bugs {
        match (0..seeds).find(|seed| run(*seed, Some(bug)).is_err()) {
            Some(seed) => println!("{bug:?}: seed {seed}"),
            None => unnoticed.push(bug),
        }
    }
    assert!(
        unnoticed.is_empty(),
        "unnoticed in {seeds} seeds: {unnoticed:?}"
    );
}
