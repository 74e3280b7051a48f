//! Planted bugs (M12): the crash and damage tests are worth what they notice. Each bug makes the engine wrong in one
//! exact way; the same harness that passes without it must find it, or the test fails.

use crate::harness::crash::{Effort, SCARCE_SEED, run_lives, run_scarce_lives};
use crate::harness::options::Options;
use crate::harness::world::{World, unobserved};
use ftl::device::sim::SimRng;
use ftl::planted::Bug;

/// Seeds to try before the harness counts as blind.
const SEEDS: u64 = 24;

/// Where and how to look for a bug.
struct Search {
    options: Options,
    effort: Effort,
    /// Operations of a life.
    ops: usize,
    seeds: u64,
}

impl From<Options> for Search {
    fn from(options: Options) -> Self {
        Self {
            options,
            effort: Effort::USUAL,
            ops: 60,
            seeds: SEEDS,
        }
    }
}

impl Search {
    /// What an engine with `bug` is caught with.
    fn caught(self, bug: Bug) -> Option<String> {
        let options = Options {
            bug: Some(bug),
            ..self.options
        };
        let mut states = 0;
        for seed in 0..self.seeds {
            let run = || run_lives(&options, self.effort, seed, 4, self.ops);
            let Ok((tally, result)) = std::panic::catch_unwind(run) else {
                return Some(format!("seed {seed}: an assertion of the engine"));
            };
            states += tally.states;
            if let Err(violation) = result {
                return Some(format!("seed {seed}, {states} states: {}", violation.0));
            }
        }
        None
    }
}

fn must_be_caught(bug: Bug, search: impl Into<Search>) {
    let search = search.into();
    let seeds = search.seeds;
    let how = search.caught(bug);
    println!("{bug:?}: {how:?}");
    assert!(how.is_some(), "{bug:?} was not noticed in {seeds} seeds");
}

#[test]
fn mapping_before_data() {
    must_be_caught(Bug::MappingBeforeData, Options::tiny());
}

#[test]
fn ack_before_flush() {
    must_be_caught(Bug::AckBeforeFlush, Options::tiny());
}

#[test]
fn batch_not_atomic() {
    must_be_caught(Bug::BatchNotAtomic, Options::tiny());
}

#[test]
fn stale_header_accepted() {
    must_be_caught(Bug::StaleHeaderAccepted, scanning());
}

#[test]
fn trim_resurrected() {
    must_be_caught(Bug::TrimResurrected, Options::tiny());
}

#[test]
fn wrong_sequence_wins() {
    must_be_caught(Bug::WrongSequenceWins, scanning());
}

/// Seen only when nobody syncs for so long that a freed segment is filled again.
#[test]
fn gc_frees_early() {
    let options = Options {
        lazy: true,
        ..scanning()
    };
    must_be_caught(Bug::GcFreesEarly, options);
}

/// No checkpoints: only the log decides.
fn scanning() -> Options {
    Options {
        area: 0,
        ..Options::tiny()
    }
}

/// Checkpoints one after the other, of parts of the map.
fn sweeping() -> Options {
    Options {
        area: 96,
        checkpoint_headers: 3,
        sweep: Some(14),
        ..Options::tiny()
    }
}

#[test]
fn root_before_pages() {
    must_be_caught(Bug::RootBeforePages, sweeping());
}

#[test]
fn replay_starts_late() {
    must_be_caught(Bug::ReplayStartsLate, sweeping());
}

#[test]
fn stale_dump_accepted() {
    must_be_caught(Bug::StaleDumpAccepted, sweeping());
}

/// Seen only when every segment, that of the tombstone among them, is reused between two checkpoints.
#[test]
fn tombstone_forgotten() {
    let options = Options {
        checkpoint_headers: 120,
        ..Options::tiny()
    };
    let search = Search {
        effort: Effort {
            images: 1,
            moment_one_in: 20,
            ..Effort::USUAL
        },
        ops: 240,
        seeds: 100,
        ..options.into()
    };
    must_be_caught(Bug::TombstoneForgotten, search);
}

/// An area that three checkpoints fill.
#[test]
fn ring_overrun() {
    let options = Options {
        area: 24,
        ..Options::tiny()
    };
    must_be_caught(Bug::RingOverrun, options);
}

#[test]
fn relocation_unsaved() {
    must_be_caught(Bug::RelocationUnsaved, sweeping());
}

/// Seen only when pages also go out that nobody waits for.
#[test]
fn write_through_vouches_for_all() {
    let options = Options {
        lazy: true,
        ..Options::tiny()
    };
    must_be_caught(Bug::WriteThroughVouchesForAll, options);
}

/// Seen by the replay of a checkpoint's tail, which goes by the names that records have.
#[test]
fn remap_old_name() {
    must_be_caught(Bug::RemapOldName, remapping());
}

#[test]
fn remap_replayed_twice() {
    must_be_caught(Bug::RemapReplayedTwice, remapping());
}

#[test]
fn clone_before_page() {
    must_be_caught(Bug::CloneBeforePage, cloning());
}

#[test]
fn aliases_forgotten() {
    must_be_caught(Bug::AliasesForgotten, cloning());
}

/// Seen only when a scan meets a clone that has expired and not the trim that came after it.
#[test]
fn clone_old_version() {
    let options = Options {
        cloning: true,
        ..scanning()
    };
    let search = Search {
        effort: Effort {
            images: 1,
            moment_one_in: 20,
            ..Effort::USUAL
        },
        ops: 240,
        seeds: 100,
        ..options.into()
    };
    must_be_caught(Bug::CloneOldVersion, search);
}

/// Many clones among few other batches, with checkpoints all the time.
fn cloning() -> Options {
    Options {
        cloning: true,
        ..sweeping()
    }
}

/// Many remaps among few other batches, with checkpoints all the time.
fn remapping() -> Options {
    Options {
        remapping: true,
        ..sweeping()
    }
}

#[test]
fn reservation_dropped() {
    let options = Options {
        reserving: true,
        ..Options::tiny()
    };
    must_be_caught(Bug::ReservationDropped, options);
}

#[test]
fn relaxed_forgotten() {
    must_be_caught(Bug::RelaxedForgotten, Options::tiny());
}

#[test]
fn along_forgotten() {
    must_be_caught(Bug::AlongForgotten, Options::tiny());
}

/// Segments that nothing can empty become more with each life, until there are none for anybody (I17).
#[test]
fn unread_stays() {
    let options = Options {
        bug: Some(Bug::UnreadStays),
        ..Options::scarce()
    };
    let result = run_scarce_lives(&options, SCARCE_SEED, 40, &mut 0);
    println!("{}", result.expect_err("not noticed").0);
}

/// Crashes do not show this one: it takes a lying device. Whoever compares no checksum returns wrong bytes.
#[test]
fn checksum_ignored() {
    let wrong = |bug| {
        let options = Options {
            bug,
            pool_frames: 20,
            ..Options::tiny()
        };
        wrong_bytes_after_rot(&options)
    };
    assert_eq!(wrong(None), 0);
    assert!(wrong(Some(Bug::ChecksumIgnored)) > 0, "not noticed");
}

/// Flips a bit in every grain behind the superblocks, reads everything back, and counts grains that read as
/// something that was never written there.
fn wrong_bytes_after_rot(options: &Options) -> usize {
    let mut world = World::create(options, 3).expect("a fresh volume");
    world.run(150, &mut unobserved).expect("no faults yet");
    world.sync_all(&mut unobserved).expect("no faults yet");
    let mut rng = SimRng::new(9);
    let grains = world.device.image().len_bytes() as u64 / 4096;
    for grain in 16..grains {
        let at = grain * 4096 + rng.below(4096);
        world.device.rot(at..at + 1, |bytes| bytes[0] ^= 0x10);
    }
    let mut wrong = 0;
    for lba in options.universe() {
        let read = world.read_back(lba).expect("an answer");
        wrong += usize::from(read.is_ok_and(|bytes| !world.oracle.ever_written(lba, &bytes)));
    }
    wrong
}
