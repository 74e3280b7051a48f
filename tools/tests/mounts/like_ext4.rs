//! What programs see of the mount is what they see of ext4 (I9): three users, one of them root, make the same calls at random on a
//! mount of a real target and on an ext4, and after each everything that can be seen is compared: what it returned, `errno` or
//! data; attributes of all files, which of their times were renewed; content, names, extended attributes. Where the two may differ
//! is in `compared/exceptions.rs`, with the reason.
//!
//! `LIKE_EXT4_CALLS` and `LIKE_EXT4_SEED` choose more or others. A sequence that differs is shortened and printed.

use std::fs;

use crate::common::{Image, can_mount, can_serve, chosen, good, skip};
use crate::compared::ext4::Ext4;
use crate::compared::stage::{Stage, steps};

/// Calls of one sequence, which begins with nothing.
const CALLS: u64 = 250;

#[test]
fn all_calls_are_answered_as_on_ext4() {
    // SAFETY: no arguments.
    if unsafe { libc::geteuid() } != 0 {
        skip("several users need root");
        return;
    }
    if !can_serve() || !can_mount() {
        return;
    }
    let Some(ext4) = Ext4::new() else { return };
    // SAFETY: no handler runs.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let (calls, seed) = (
        chosen("LIKE_EXT4_CALLS", 2_500),
        chosen("LIKE_EXT4_SEED", 1),
    );
    eprintln!("LIKE_EXT4_CALLS={calls} LIKE_EXT4_SEED={seed}");
    let image = Image::new("512MiB");
    let dir = image.beside("mnt");
    fs::create_dir(&dir).unwrap();
    let target = image.serve(&["--mount", dir.to_str().unwrap()]);
    let mut stage = Stage::new(&dir, ext4.path());
    for seed in (seed..).take(calls.div_ceil(CALLS) as usize) {
        let steps = steps(seed, CALLS as usize);
        if let Some(found) = stage.run(&steps) {
            let (steps, found) = stage.shorten(steps, found);
            let lines: Vec<String> = steps.iter().map(|step| format!("{step:?}")).collect();
            panic!(
                "LIKE_EXT4_SEED={seed}\n{}\n{}",
                lines.join("\n"),
                found.what
            );
        }
    }
    assert!(target.stop().success());
    let report = good(&["fsck", image.path().to_str().unwrap()]);
    assert!(report.contains("0 problems"), "{report}");
}
