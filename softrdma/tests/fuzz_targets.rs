//! The fuzz targets of `softrdma/fuzz` without a fuzzer: each gets its corpus, and as many mutations of it as
//! `FUZZ_ROUNDS` says. So what a fuzzer calls is built and run wherever the tests are.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use softrdma::fuzz::{ENTRIES, mutated};

/// What is committed for a target; every one has something.
fn corpus(name: &str) -> Vec<Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fuzz/corpus")
        .join(name);
    let files = fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let mut paths: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    paths.sort();
    let all: Vec<_> = paths.iter().map(|path| fs::read(path).unwrap()).collect();
    assert!(!all.is_empty(), "{} is empty", dir.display());
    all
}

fn rounds(default: u64) -> u64 {
    let chosen = std::env::var("FUZZ_ROUNDS").ok();
    chosen.and_then(|n| n.parse().ok()).unwrap_or(default)
}

/// Whatever a peer says (M9): C6 no panic, I10 no byte outside of its region, I18 every request ends once.
#[test]
fn what_peers_say() {
    for (name, entry) in ENTRIES {
        let corpus = corpus(name);
        corpus.iter().for_each(|data| entry(data));
        for seed in 0..rounds(5_000) {
            let data = mutated(&corpus, seed);
            let run = catch_unwind(AssertUnwindSafe(|| entry(&data)));
            assert!(run.is_ok(), "{name}, seed {seed}: {data:x?}");
        }
    }
}
