//! A whole cluster in virtual time (M6): members, clients, controllers and the store in one process, every fault of the model, then
//! none. Shown: histories are linearizable per object and locks are granted once, and so nothing takes effect twice and nothing
//! acknowledged is lost (I1, I12, I13); the group comes to rest with all members alike (I14, I15).
//!
//! A failing seed says how to run it again: `FLASHNET_SEED=n cargo test -p offload-chain --test simulation one_seed -- --nocapture`.
//! `FLASHNET_SEEDS=n` sets how many the main test runs.

#![allow(unreachable_pub, reason = "modules of a test have no other users")]

#[path = "simulation/app.rs"]
mod app;
#[path = "simulation/check.rs"]
mod check;
#[path = "simulation/device.rs"]
mod device;
#[path = "simulation/fabric.rs"]
mod fabric;
#[path = "simulation/grants.rs"]
mod grants;
#[path = "simulation/group.rs"]
mod group;
#[path = "simulation/order.rs"]
mod order;
#[path = "simulation/records.rs"]
mod records;
mod support;
#[path = "simulation/work.rs"]
mod work;
#[path = "simulation/world/mod.rs"]
mod world;

use std::collections::HashSet;

use app::ClientBug;
use device::MediaBug;
use offload_chain::planted::Bug;
use softrdma::offload::Flaw;
use world::{EngineBug, Planted, Stats, Under, World};

fn run(seed: u64, planted: Option<Planted>) -> Result<(Stats, u64), String> {
    run_on(Under::Model, seed, planted)
}

fn run_on(under: Under, seed: u64, planted: Option<Planted>) -> Result<(Stats, u64), String> {
    let mut world = World::new(seed, under, planted);
    let stats = world.run()?;
    Ok((stats, world.hash))
}

/// With `FLASHNET_ENGINE`: the real engine.
fn under_test() -> Under {
    match std::env::var_os("FLASHNET_ENGINE") {
        Some(_) => Under::Engine,
        None => Under::Model,
    }
}

/// With `FLASHNET_BUG`: what is to be wrong, by its name.
fn bug_under_test() -> Option<Planted> {
    let name = std::env::var("FLASHNET_BUG").ok()?;
    let mut bugs = BUGS.into_iter().chain(ENGINE_BUGS).chain(DIRECTED_BUGS);
    bugs.find(|bug| format!("{bug:?}").contains(&name))
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// How many seeds are run over the real engine.
const ENGINE_SEEDS: u64 = 500;

#[test]
fn seeds() {
    many(Under::Model, number("FLASHNET_SEEDS").unwrap_or(500));
}

/// The same over real members and clients.
#[test]
fn seeds_with_real_engines() {
    many(
        Under::Engine,
        number("FLASHNET_SEEDS").unwrap_or(ENGINE_SEEDS),
    );
}

fn many(under: Under, seeds: u64) {
    let first = number("FLASHNET_SEED").unwrap_or(0);
    let mut sum = Stats::default();
    for seed in first..first + seeds {
        let (stats, _) = run_on(under, seed, None).unwrap_or_else(|wrong| {
            let engine = match under {
                Under::Model => "",
                Under::Engine => "FLASHNET_ENGINE=1 ",
            };
            panic!(
                "seed {seed}: {wrong}\nagain: FLASHNET_SEED={seed} {engine}cargo test -p offload-chain --test simulation one_seed -- --nocapture"
            )
        });
        sum += stats;
    }
    println!("{under:?}, {seeds} seeds: {sum:?}");
    // A simulation in which nothing happens shows nothing.
    if seeds >= 100 {
        for (what, count) in sum.counts() {
            assert!(*count > 0, "no {what}");
        }
        assert!(
            sum.epochs > 3 * seeds && sum.completed > 50 * seeds,
            "{sum:?}"
        );
    }
}

/// With `FLASHNET_SEED`: that seed alone, with everything that happened.
#[test]
fn one_seed() {
    let Some(seed) = number("FLASHNET_SEED") else {
        return;
    };
    let mut world = World::new(seed, under_test(), bug_under_test());
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
    for under in [Under::Model, Under::Engine] {
        let hash = |seed| run_on(under, seed, None).unwrap().1;
        let mut hashes = HashSet::new();
        for seed in 0..20 {
            let one = hash(seed);
            assert_eq!(one, hash(seed), "{under:?}, seed {seed}");
            assert!(hashes.insert(one), "{under:?}, seed {seed}: as another");
        }
    }
}

/// What a member answers that was left out and has not heard of it, to a client that has not either (I13).
#[test]
fn an_excluded_member_answers_no_reads() {
    for seed in 0..20 {
        let result = World::excluded(seed, None).run_excluded();
        result.unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

/// A client that has not heard of a new epoch goes on writing in the old one: nobody executes it (I12).
#[test]
fn an_old_epoch_executes_nothing() {
    for seed in 0..20 {
        let result = World::unaware(seed, None).run_unaware();
        result.unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

/// Long histories of many clients (M7).
#[test]
fn a_crowd_finds_a_register_in_each_object() {
    const SEEDS: u64 = 5;
    for under in [Under::Model, Under::Engine] {
        let mut sum = Stats::default();
        let mut most = 0;
        for seed in 0..SEEDS {
            let stats = World::crowd(seed, under).run_crowd();
            let stats = stats.unwrap_or_else(|wrong| panic!("{under:?}, seed {seed}: {wrong}"));
            most = most.max(stats.completed);
            sum += stats;
        }
        println!("{under:?}, {SEEDS} crowds, up to {most} operations: {sum:?}");
        // Of three objects.
        assert!(most > 2700 && sum.completed > 1000 * SEEDS, "{sum:?}");
        assert!(sum.unknown > 0, "{sum:?}");
    }
}

/// Who comes back first from a stand-still of all does not go on without the others.
#[test]
fn nobody_is_left_out_when_all_stand_still() {
    for seed in 0..40 {
        let result = World::standstill(seed).run_standstill();
        result.unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

/// A member that only lost its own neighbour is not left out for that.
#[test]
fn nobody_is_left_out_for_another_who_died() {
    for seed in 0..40 {
        let result = World::cascade(seed).run_cascade();
        result.unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

/// M12: bugs of the model's engine, of what stands between media and their users, of clients, and of the product.
const BUGS: [Planted; 18] = [
    Planted::Engine(EngineBug::AnyEpoch),
    Planted::Engine(EngineBug::HeadAnswers),
    Planted::Engine(EngineBug::OneNotAwaited),
    Planted::Engine(EngineBug::ForwardBeforeFlush),
    Planted::Engine(EngineBug::SwapClaimed),
    Planted::Engine(EngineBug::CopiedAgain),
    Planted::Media(MediaBug::FlushBelieved),
    Planted::Media(MediaBug::ReadTaken),
    Planted::Client(ClientBug::UnlockEarly),
    Planted::Client(ClientBug::RetryUnknown),
    Planted::Client(ClientBug::HeaderReadOnce),
    Planted::Product(Bug::EndNotKept),
    Planted::Product(Bug::MarkNotFlushed),
    Planted::Product(Bug::MarkKept),
    Planted::Product(Bug::BlankVouches),
    Planted::Product(Bug::LastRoundSkipped),
    Planted::Product(Bug::SealNotAwaited),
    Planted::Product(Bug::DirtyAnswered),
];

/// Bugs that only real engines can have.
const ENGINE_BUGS: [Planted; 6] = [
    Planted::Product(Bug::SealedBeforeClosed),
    Planted::Flaw(Flaw::FlushSkipped),
    Planted::Flaw(Flaw::CountedEarly),
    Planted::Flaw(Flaw::DryRingTaken),
    Planted::Flaw(Flaw::FailureIgnored),
    Planted::Flaw(Flaw::OthersUnawaited),
];

/// Bugs that let a member answer that was left out, or execute for an epoch that is over: found by directed runs.
const DIRECTED_BUGS: [Planted; 3] = [
    Planted::Engine(EngineBug::NotStopped),
    Planted::Engine(EngineBug::NoLease),
    Planted::Product(Bug::LeaseLookedAtEarly),
];

/// Each bug is found within so many seeds.
#[test]
fn planted_bugs_are_found() {
    find(&BUGS, |seed, bug| run(seed, Some(bug)).err());
}

#[test]
fn planted_bugs_of_engines_are_found() {
    find(&ENGINE_BUGS, |seed, bug| {
        run_on(Under::Engine, seed, Some(bug)).err()
    });
}

#[test]
fn planted_bugs_are_found_by_directed_runs() {
    find(&DIRECTED_BUGS, |seed, bug| match bug {
        Planted::Engine(EngineBug::NotStopped) => {
            World::unaware(seed, Some(bug)).run_unaware().err()
        }
        _ => World::excluded(seed, Some(bug)).run_excluded().err(),
    });
}

fn find(bugs: &[Planted], finds: impl Fn(u64, Planted) -> Option<String>) {
    let seeds = number("FLASHNET_SEEDS").unwrap_or(400);
    let mut unnoticed = Vec::new();
    for &bug in bugs {
        let found = (0..seeds).find_map(|seed| Some((seed, finds(seed, bug)?)));
        match found {
            Some((seed, wrong)) => {
                let wrong = wrong.lines().next().unwrap_or_default();
                println!("{bug:?}: seed {seed}: {wrong}");
            }
            None => unnoticed.push(bug),
        }
    }
    assert!(
        unnoticed.is_empty(),
        "unnoticed in {seeds} seeds: {unnoticed:?}"
    );
}
