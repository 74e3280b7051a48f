//! Threads that do one thing at a time.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use super::{BLOCK, CHUNK, Run, buffer, figures, new_bytes, open, stamp};
use crate::perf::cpu;
use crate::perf::figures::{Figures, Latencies, latencies};
use crate::perf::shape::Offsets;

/// Calls `step` until the time is over; how long each call took.
fn repeat(run: &Run<'_>, mut step: impl FnMut() -> io::Result<()>) -> io::Result<Latencies> {
    let mut histogram = latencies();
    let begin = Instant::now();
    let mut before = begin;
    while before - begin < run.time && !run.is_off() {
        step()?;
        let now = Instant::now();
        histogram.saturating_record((now - before).as_nanos() as u64);
        before = now;
    }
    Ok(histogram)
}

/// Runs `work` in so many threads, each with its number; how long all their steps took.
fn in_threads(
    threads: usize,
    work: impl Fn(usize) -> io::Result<Latencies> + Sync,
) -> io::Result<Figures> {
    let (begin, used) = (Instant::now(), cpu::used(None).unwrap_or_default());
    let results: Vec<io::Result<Latencies>> = std::thread::scope(|scope| {
        let work = &work;
        let others: Vec<_> = (1..threads).map(|n| scope.spawn(move || work(n))).collect();
        let mut results = vec![work(0)];
        results.extend(others.into_iter().map(|t| t.join().expect("no panic")));
        results
    });
    let mut all = latencies();
    for result in results {
        all.add(result?).expect("histograms have the same bounds");
    }
    Ok(figures(all, BLOCK, begin, used))
}

/// The offsets of a thread.
fn offsets(run: &Run<'_>, thread: usize) -> Offsets {
    Offsets::over(run.bytes, BLOCK, run.seed << 8 | thread as u64)
}

/// Random reads of blocks.
pub(super) fn read(path: &Path, run: &Run<'_>, threads: usize) -> io::Result<Figures> {
    in_threads(threads, |thread| {
        let file = open(path, false)?;
        let mut block = buffer(BLOCK)?;
        let mut offsets = offsets(run, thread);
        repeat(run, || file.read_exact_at(&mut block, offsets.draw()))
    })
}

/// Where chunks lie: from some place on, round and round.
fn chunks(run: &Run<'_>) -> impl Iterator<Item = u64> + use<> {
    let count = (run.bytes / CHUNK as u64).max(1);
    // A large odd step: the runs of different rounds do not begin where another ended a moment ago.
    let first = run.seed.wrapping_mul(0x9e37_79b9) % count;
    (first..first + count)
        .cycle()
        .map(move |n| n % count * CHUNK as u64)
}

/// Reads chunk after chunk.
pub(super) fn read_chunks(path: &Path, run: &Run<'_>) -> io::Result<Figures> {
    let file = open(path, false)?;
    let mut chunk = buffer(CHUNK)?;
    let mut offsets = chunks(run);
    let mut next = || offsets.next().unwrap_or_default();
    let (begin, used) = (Instant::now(), cpu::used(None).unwrap_or_default());
    let all = repeat(run, || file.read_exact_at(&mut chunk, next()))?;
    Ok(figures(all, CHUNK, begin, used))
}

/// Writes chunk after chunk; the time until all is durable counts.
pub(super) fn write_chunks(path: &Path, run: &Run<'_>) -> io::Result<Figures> {
    let file = open(path, true)?;
    let mut chunk = buffer(CHUNK)?;
    let mut offsets = chunks(run);
    let (begin, used) = (Instant::now(), cpu::used(None).unwrap_or_default());
    let all = repeat(run, || {
        let offset = offsets.next().unwrap_or_default();
        stamp(&mut chunk, offset);
        file.write_all_at(&chunk, offset)
    })?;
    file.sync_data()?;
    Ok(figures(all, CHUNK, begin, used))
}

/// Random overwrites, each durable.
pub(super) fn write_durably(path: &Path, run: &Run<'_>, threads: usize) -> io::Result<Figures> {
    in_threads(threads, |thread| {
        let file = open(path, true)?;
        write_blocks(&file, run, offsets(run, thread))
    })
}

/// Random writes to new files whose space is reserved, each durable.
pub(super) fn write_new_durably(
    directory: &Path,
    run: &Run<'_>,
    threads: usize,
) -> io::Result<Figures> {
    let bytes = new_bytes(run.bytes) / threads as u64 / BLOCK as u64 * BLOCK as u64;
    let path = |thread| directory.join(format!("new-{thread}"));
    let files: Vec<File> = (0..threads)
        .map(|thread| reserve(&path(thread), bytes))
        .collect::<io::Result<_>>()?;
    let run = Run { bytes, ..*run };
    let figures = in_threads(threads, |thread| {
        write_blocks(&files[thread], &run, offsets(&run, thread))
    })?;
    drop(files);
    for thread in 0..threads {
        std::fs::remove_file(path(thread))?;
    }
    Ok(figures)
}

/// A new file with room for `bytes`, durably.
fn reserve(path: &Path, bytes: u64) -> io::Result<File> {
    let file = open(path, true)?;
    nix::fcntl::fallocate(&file, nix::fcntl::FallocateFlags::empty(), 0, bytes as i64)?;
    file.sync_all()?;
    Ok(file)
}

fn write_blocks(file: &File, run: &Run<'_>, mut offsets: Offsets) -> io::Result<Latencies> {
    let mut block = buffer(BLOCK)?;
    repeat(run, || {
        let offset = offsets.draw();
        stamp(&mut block, offset);
        file.write_all_at(&block, offset)?;
        file.sync_data()
    })
}
