//! Crafted and damaged images (RELIABILITY §2, I7, M5, M9): whatever is on the media, and however well its checksums
//! fit, opening, looking, mounting and repairing end, with an answer and within bounds of memory and time. Looking
//! changes nothing; and when a repair says that all is well, so does whoever looks next.
//!
//! `CRAFTED_CASES` and `CRAFTED_SEED` choose more or others.

mod crafting;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use contigfs::{Care, repair};
use crafting::image::options;
use crafting::untouched::Untouched;
use crafting::use_it::{everything, everything_with_files, look};
use crafting::{fs_damage, guard, image, log_damage};
use support::Dice;

#[global_allocator]
static ALLOCATOR: guard::Limited = guard::Limited;

fn number(key: &str, default: u64) -> u64 {
    let chosen = std::env::var(key).ok();
    chosen.and_then(|n| n.parse().ok()).unwrap_or(default)
}

/// Runs cases with seeds of their own; all that fail are told.
fn cases(default: u64, one: impl Fn(u64) -> String) {
    let first = number("CRAFTED_SEED", 1);
    let count = number("CRAFTED_CASES", default);
    let mut failed = Vec::new();
    for seed in first..first + count {
        guard::begin(seed);
        let before = guard::held();
        let what = std::cell::RefCell::new(String::new());
        let run = catch_unwind(AssertUnwindSafe(|| *what.borrow_mut() = one(seed)));
        if run.is_err() {
            failed.push(seed);
        }
        drop(what);
        if std::env::var_os("CRAFTED_TELL").is_some() {
            eprintln!(
                "seed {seed}: {} bytes more",
                guard::held() as i64 - before as i64
            );
        }
    }
    guard::rest();
    assert!(failed.is_empty(), "{} seeds: {failed:?}", failed.len());
}

/// Damaged and crafted logs.
#[test]
fn crafted_logs() {
    let _turn = guard::turn();
    let lives = image::lives();
    let mut dice = Dice::new(1);
    for life in &lives {
        let image = Arc::new(life.clone());
        assert_eq!(
            look(&image, options(&mut dice)),
            Ok(Vec::new()),
            "before any damage"
        );
    }
    cases(150, |seed| {
        let mut dice = Dice::new(seed);
        let life = dice.below(lives.len() as u64) as usize;
        let mut image = lives[life].clone();
        let what = log_damage::damage(&mut dice, &mut image, &lives[..life]);
        if std::env::var_os("CRAFTED_TELL").is_some() {
            eprintln!("seed {seed}: life {life}, {what}");
        }
        everything(&Arc::new(image), &mut dice, false);
        what
    });
}

/// Crafted file systems in a log that is whole.
#[test]
fn crafted_files_in_a_log() {
    let _turn = guard::turn();
    let lives = image::lives();
    cases(100, |seed| {
        let mut dice = Dice::new(seed);
        let life = Arc::new(dice.pick(&lives).clone());
        let device = image::ImageDevice::new(&life, false);
        let (volume, _) = ftl::Volume::open(device, options(&mut dice)).expect("whole");
        let what = fs_damage::damage(&mut dice, &volume);
        if std::env::var_os("CRAFTED_TELL").is_some() {
            eprintln!("seed {seed}: {what}");
        }
        volume.sync(ftl::LbaRange::ALL).expect("sync");
        if dice.below(2) == 0 {
            volume.shutdown().expect("shutdown");
        }
        everything(&volume.into_device().into_image(), &mut dice, true);
        what
    });
}

/// Crafted file systems on a store that is nothing but a map: many more of them.
#[test]
fn crafted_files() {
    let _turn = guard::turn();
    let base = image::files();
    cases(1_500, |seed| {
        let mut dice = Dice::new(seed);
        let store = Arc::new(base.duplicate());
        let what = fs_damage::damage(&mut dice, &store);
        if std::env::var_os("CRAFTED_TELL").is_some() {
            eprintln!("seed {seed}: {what}");
        }
        everything_with_files(&store, &mut dice);
        what
    });
}

/// I9: what damage has not touched holds what it held, whoever uses the rest of a damaged file system, and whatever a
/// repair does to it; and repairing again changes nothing.
#[test]
fn the_untouched_stay_as_they_are() {
    let _turn = guard::turn();
    let base = image::files();
    cases(200, |seed| {
        let mut dice = Dice::new(seed);
        let damaged = base.duplicate();
        let what = fs_damage::damage(&mut dice, &damaged);
        if std::env::var_os("CRAFTED_TELL").is_some() {
            eprintln!("seed {seed}: {what}");
        }
        let mut untouched = Untouched::by(&base, &damaged);
        let used = Arc::new(damaged.duplicate());
        untouched.use_others(&used, &mut dice);
        untouched.assert_in(&used, "used without a repair");
        let repaired = Arc::new(damaged);
        let Ok(report) = repair(&repaired, Care::Full) else {
            return what;
        };
        untouched.part(&report.repaired);
        untouched.assert_in(&repaired, "repaired");
        let again = repair(&repaired, Care::Full).expect("as before");
        assert_eq!(again.repaired, [], "repaired again");
        assert_eq!(again.after, report.after, "repaired again");
        untouched.use_others(&repaired, &mut dice);
        untouched.assert_in(&repaired, "used after a repair");
        what
    });
}
