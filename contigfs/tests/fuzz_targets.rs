//! The fuzz targets of `contigfs/fuzz` without a fuzzer: each gets its corpus, and as many mutations of it as
//! `FUZZ_ROUNDS` says. So what a fuzzer calls is built and run wherever the tests are.

mod crafting;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use contigfs::fuzz::ENTRIES;
use crafting::input::{Files, Logs};
use ftl::fuzz::mutated;

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

fn drive(name: &str, rounds: u64, entry: impl Fn(&[u8])) {
    let corpus = corpus(name);
    corpus.iter().for_each(|data| entry(data));
    for seed in 0..rounds {
        let data = mutated(&corpus, seed);
        let run = catch_unwind(AssertUnwindSafe(|| entry(&data)));
        assert!(run.is_ok(), "{name}, seed {seed}: {data:x?}");
    }
}

/// Whatever is read, parsing ends with an answer, and what is accepted says the same when it is written again.
#[test]
fn formats() {
    for (name, entry) in ENTRIES {
        drive(name, rounds(4_000), entry);
    }
}

/// Crafted logs: see `crafted.rs`, which chooses what is likely to matter; here anything goes.
#[test]
fn logs() {
    let logs = Logs::new();
    drive("logs", rounds(150), |data| logs.run(data));
}

/// Crafted file systems, in the same way.
#[test]
fn files() {
    let files = Files::new();
    drive("files", rounds(500), |data| files.run(data));
}
