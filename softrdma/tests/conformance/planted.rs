//! Planted bugs (M12): the suite is worth what it notices.

use std::panic::{AssertUnwindSafe, catch_unwind};

use softrdma::planted::Bug;

use super::harness::{Ctx, Cut, Rule};

/// The first rule that notices this bug.
fn noticed(rules: &[Rule], bug: Bug) -> Option<&'static str> {
    for &(name, rule) in rules {
        for cut in [Cut::Whole, Cut::Bytes, Cut::Random(1)] {
            let run = || rule(&mut Ctx::new(cut, Some(bug)));
            if catch_unwind(AssertUnwindSafe(run)).is_err() {
                return Some(name);
            }
        }
    }
    None
}

pub fn run_all(rules: &[Rule]) {
    let mut missed = Vec::new();
    for bug in Bug::ALL {
        match noticed(rules, bug) {
            Some(rule) => println!("{bug:?}: noticed by {rule:?}"),
            None => missed.push(bug),
        }
    }
    assert!(missed.is_empty(), "nobody noticed {missed:?}");
}
