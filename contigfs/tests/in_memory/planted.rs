//! Planted bugs (M12): the power cuts and the model are worth what they notice. Each bug makes the file system wrong in
//! one exact way; the same harness that passes without it must find it, or the test fails.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::harness::crash::{STEPS, Workload, prepare};
use crate::harness::model::Run;
use crate::harness::quota::Quotas;
use contigfs::planted::Bug;

/// Who is to notice.
#[derive(Clone, Copy, Debug)]
enum Judge {
    /// Power cuts in sequences of one operation, then of two.
    PowerCuts,
    /// The oracle.
    Model,
    /// Calls beside a mapping that has the same pages.
    Mapping,
    /// Counting again what is charged to projects.
    Recount,
}

/// The judge that each bug is meant for.
fn judge(bug: Bug) -> Judge {
    match bug {
        Bug::DataUnsynced
        | Bug::SyncAnsweredEarly
        | Bug::SizeUnsynced
        | Bug::BatchNotAtomic
        | Bug::TailUncleaned
        | Bug::OrphanUnmarked
        | Bug::DataUnfreed
        | Bug::AttributesUnfreed => Judge::PowerCuts,
        Bug::TruncationKeepsBytes
        | Bug::PunchSkipsEdges
        | Bug::LinkUncounted
        | Bug::ParentUnmoved
        | Bug::RangesForgotten => Judge::Model,
        Bug::StoresUnseen | Bug::SharedLeftAway => Judge::Mapping,
        Bug::ProjectsForgotten | Bug::ProjectLeftBehind | Bug::ProjectsMixed => Judge::Recount,
    }
}

/// What the harness says of a file system with this bug.
fn caught(bug: Bug) -> Option<String> {
    let search = || match judge(bug) {
        Judge::PowerCuts => cut_power(bug),
        Judge::Model => drop(Run::of(1, 20_000, Some(bug))),
        Judge::Mapping => crate::harness::sharing::run(1, 250, Some(bug)),
        Judge::Recount => drop(Quotas::of(1, 2000, Some(bug))),
    };
    let panic = catch_unwind(AssertUnwindSafe(search)).err()?;
    let text = panic.downcast::<String>().map(|text| *text);
    Some(text.unwrap_or_else(|_| "an assertion".to_owned()))
}

fn cut_power(bug: Bug) {
    let (base, empty) = prepare();
    let run = |steps| {
        let workload = Workload {
            base: &base,
            empty,
            steps,
            bug: Some(bug),
        };
        workload.run();
    };
    for step in STEPS {
        run(vec![step]);
    }
    for first in STEPS {
        for second in STEPS {
            run(vec![first, second]);
        }
    }
}

#[test]
fn every_planted_bug_is_noticed() {
    let mut missed = Vec::new();
    for bug in Bug::ALL {
        match caught(bug) {
            Some(how) => println!("{bug:?}: {:?} says {how:.200}", judge(bug)),
            None => missed.push(bug),
        }
    }
    assert!(missed.is_empty(), "nobody noticed {missed:?}");
}
