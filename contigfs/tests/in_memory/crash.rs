//! I1, I9 against power cuts: all sequences of one and two operations over a tiny file set, cut before every call that
//! changes the store, with unsynced grains lost, kept, or mixed.
//!
//! After each cut the checker must be content, the tree must be that before or after the operation in progress, what
//! lies behind the ends of files must never come into sight, and deleting everything must return all space.

use crate::harness::crash::{STEPS, Workload, prepare};
use support::Dice;

#[test]
fn every_operation_survives_a_power_cut() {
    let (base, empty) = prepare();
    for step in STEPS {
        let workload = Workload {
            base: &base,
            empty,
            steps: vec![step],
            bug: None,
        };
        workload.assert_works();
        workload.run();
    }
}

#[test]
fn every_pair_of_operations_survives_a_power_cut() {
    let (base, empty) = prepare();
    let (mut states, mut pairs) = (0, 0);
    for first in STEPS {
        for second in STEPS {
            pairs += 1;
            states += Workload {
                base: &base,
                empty,
                steps: vec![first, second],
                bug: None,
            }
            .run();
        }
    }
    println!(
        "{pairs} pairs of {} operations, {states} crash states",
        STEPS.len()
    );
    assert!(pairs > 5_000, "{pairs} pairs are too few");
    assert!(states > 50_000, "{states} crash states are too few");
}

/// M3 at length three, sampled; `CRASH_SAMPLES` and `CRASH_SEED` choose more or others.
#[test]
fn sampled_triples_survive_a_power_cut() {
    let number = |key, default| {
        std::env::var(key)
            .ok()
            .and_then(|n| n.parse().ok())
            .unwrap_or(default)
    };
    let (base, empty) = prepare();
    let mut dice = Dice::new(number("CRASH_SEED", 1));
    for _ in 0..number("CRASH_SAMPLES", 500) {
        let steps = vec![dice.pick(STEPS), dice.pick(STEPS), dice.pick(STEPS)];
        Workload {
            base: &base,
            empty,
            steps,
            bug: None,
        }
        .run();
    }
}
