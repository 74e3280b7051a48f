//! New files and their end.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::time::Instant;

use super::{Run, figures};
use crate::perf::cpu;
use crate::perf::figures::{Figures, latencies};

/// Makes `files` in a new directory, each durable before the next, and removes them again, which is durable at the end.
/// An operation is one file: the latencies are those of making it durable, the rate counts its removal too.
pub(super) fn create_and_remove(
    directory: &Path,
    run: &Run<'_>,
    files: u32,
) -> io::Result<Figures> {
    let place = directory.join("names");
    fs::create_dir(&place)?;
    let opened = File::open(&place)?;
    let paths: Vec<_> = (0..files).map(|n| place.join(format!("{n:08}"))).collect();
    let mut all = latencies();
    let (begin, used) = (Instant::now(), cpu::used(None).unwrap_or_default());
    let goes_on = || match run.is_off() {
        true => Err(io::ErrorKind::Interrupted),
        false => Ok(()),
    };
    for path in &paths {
        goes_on()?;
        let start = Instant::now();
        File::create_new(path)?.sync_all()?;
        all.saturating_record(start.elapsed().as_nanos() as u64);
    }
    for path in &paths {
        goes_on()?;
        fs::remove_file(path)?;
    }
    opened.sync_all()?;
    let figures = figures(all, 0, begin, used);
    drop(opened);
    fs::remove_dir(&place)?;
    Ok(figures)
}
