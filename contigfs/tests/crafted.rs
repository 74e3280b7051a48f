//! Crafted and damaged images (RELIABILITY §2, I7, M5, M9): whatever is on the media, and however well its checksums
//! fit, opening, looking, mounting and repairing end, with an answer and within bounds of memory and time. Looking
//! changes nothing; and when a repair says that all is well, so does whoever looks next.
//!
//! `CRAFTED_CASES` and `CRAFTED_SEED` choose more or others.

mod crafting;
mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use contigfs::{Fs, MemStore};
use crafting::image::{options, without_rebuild};
use crafting::use_it::{fsck, look, repair_files, use_files, use_volume};
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
        let what = std::cell::RefCell::new(String::new());
        let run = catch_unwind(AssertUnwindSafe(|| *what.borrow_mut() = one(seed)));
        if run.is_err() {
            failed.push(seed);
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
    cases(300, |seed| {
        let mut dice = Dice::new(seed);
        let life = dice.below(lives.len() as u64) as usize;
        let mut image = lives[life].clone();
        let what = log_damage::damage(&mut dice, &mut image, &lives[..life]);
        if std::env::var_os("CRAFTED_TELL").is_some() {
            eprintln!("seed {seed}: life {life}, {what}");
        }
        all(&Arc::new(image), &mut dice, false);
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
        all(&volume.into_device().into_image(), &mut dice, true);
        what
    });
}

/// Everything that can be done with an image. Of a log that contradicts itself, with checksums that fit, nobody promises
/// that it says the same for ever; of files in a whole one, `honest`, this is promised.
fn all(image: &Arc<Vec<u8>>, dice: &mut Dice, honest: bool) {
    let _ = look(image, options(dice));
    let (repaired, after) = fsck(image, dice);
    let is_well = repaired.is_ok_and(|problems| problems.is_empty());
    if is_well {
        let found = look(&after, without_rebuild(dice));
        assert_eq!(found, Ok(Vec::new()), "a second look");
    }
    // In order: what is repaired is used in any case, what is not in some.
    let used = match is_well || dice.below(2) == 0 {
        true => use_volume(&after, dice),
        false => use_volume(image, dice),
    };
    if let Some(used) = used {
        let found = look(&used, without_rebuild(dice));
        let is_still = !(is_well && honest) || found == Ok(Vec::new());
        assert!(is_still, "use has damaged it: {found:?}");
    }
}

/// Crafted file systems on a store that is nothing but a map: many more of them.
#[test]
fn crafted_files() {
    let _turn = guard::turn();
    let (store, fs) = support::fresh_with(20_000, &support::tight());
    for life in 0..3 {
        image::live(&fs, life);
    }
    drop(fs);
    // Without the last unmount, so that there are files to be freed and things left to end.
    let base = store.duplicate();
    cases(3_000, |seed| {
        let mut dice = Dice::new(seed);
        let store = Arc::new(base.duplicate());
        let what = fs_damage::damage(&mut dice, &store);
        if std::env::var_os("CRAFTED_TELL").is_some() {
            eprintln!("seed {seed}: {what}");
        }
        if dice.below(2) == 0 {
            use_files(&store, &mut dice);
        }
        let copy: MemStore = store.duplicate();
        contigfs::check_with_data(&copy);
        if let Some(left) = repair_files(&copy) {
            assert_eq!(left, [] as [String; 0]);
            let copy = Arc::new(copy);
            assert!(
                Fs::mount(Arc::clone(&copy)).is_ok(),
                "what is well can be mounted"
            );
            use_files(&copy, &mut dice);
            support::assert_clean(&copy);
        }
        what
    });
}
