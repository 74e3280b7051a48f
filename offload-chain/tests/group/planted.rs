//! Planted flaws (M12): these tests are worth what they notice. The two that no message of a group can reach are noticed by the
//! engine's own tests.

use std::panic::{AssertUnwindSafe, catch_unwind};

use offload_chain::group::Topology;
use softrdma::offload::Flaw;

use super::{bounds, hostile, model, power};

type Test = (&'static str, fn(Option<Flaw>));

const TESTS: [Test; 4] = [
    ("messages that lie", |flaw| {
        hostile::messages(Topology::Chain, flaw);
    }),
    ("power cuts", |flaw| {
        (0..40).for_each(|seed| power::run(3, Topology::Chain, seed, flaw));
    }),
    ("dry rings", |flaw| bounds::dry(Topology::Chain, flaw)),
    ("the model", |flaw| {
        (0..20).for_each(|seed| model::run(seed, flaw))
    }),
];

#[test]
fn every_planted_flaw_is_noticed() {
    let mut missed = Vec::new();
    for flaw in [
        Flaw::AnyOpcode,
        Flaw::RangeUnchecked,
        Flaw::FenceUnchecked,
        Flaw::WaitEarly,
        Flaw::FlushSkipped,
        Flaw::DryRingTaken,
        Flaw::CountedEarly,
    ] {
        let noticed = TESTS
            .iter()
            .find(|(_, test)| catch_unwind(AssertUnwindSafe(|| test(Some(flaw)))).is_err());
        match noticed {
            Some((name, _)) => println!("{flaw:?}: noticed by {name}"),
            None => missed.push(flaw),
        }
    }
    assert!(missed.is_empty(), "nobody noticed {missed:?}");
}
