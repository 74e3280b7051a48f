//! I9, functionally: random operations give the same answers and the same tree as a naive oracle.

use crate::harness::model::Run;

const STEPS: usize = 20_000;
const SEEDS: [u64; 5] = [1, 2, 3, 4, 5];
/// Less than this share of operations that change something would make a weak test.
const CHANGES_MIN: usize = STEPS / 4;

#[test]
fn random_operations_match_the_oracle() {
    for seed in SEEDS {
        let changes = Run::of(seed, STEPS, None);
        assert!(changes > CHANGES_MIN, "only {changes} changes");
    }
}
