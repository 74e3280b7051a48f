//! Trace files: little-endian 64-bit words, one per write: the LBA in grains; bit 63 set means trim.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use anyhow::{Context, Result, ensure};

const TRIM: u64 = 1 << 63;
/// Bytes of one step.
pub const STEP_BYTES: u64 = 8;

/// One step of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Write this LBA.
    Write(u64),
    /// Trim this LBA.
    Trim(u64),
}

impl Step {
    /// Decodes a word.
    pub const fn of(word: u64) -> Self {
        if word & TRIM == 0 {
            Self::Write(word)
        } else {
            Self::Trim(word & !TRIM)
        }
    }
}

/// Opens a trace; returns how many steps it has, and the steps.
pub fn open(path: &Path) -> Result<(u64, impl Iterator<Item = Result<Step>> + use<>)> {
    let file = File::open(path).with_context(|| format!("can not open {}", path.display()))?;
    let metadata = file.metadata()?;
    ensure!(
        metadata.is_file(),
        "{} is no trace: it is no ordinary file",
        path.display()
    );
    let bytes = metadata.len();
    ensure!(
        bytes.is_multiple_of(STEP_BYTES),
        "{} is no trace: {bytes} bytes are no whole number of 64-bit words",
        path.display()
    );
    let steps = bytes / STEP_BYTES;
    let mut reader = BufReader::with_capacity(1 << 20, file);
    let next = move |_| {
        let mut word = [0; STEP_BYTES as usize];
        reader
            .read_exact(&mut word)
            .context("the trace ends early")?;
        Ok(Step::of(u64::from_le_bytes(word)))
    };
    Ok((steps, (0..steps).map(next)))
}

/// Goes through a trace before anything is made for it: every step lies within `grains`, and some step after the first `skip`
/// is a write, which is what an amplification is said of.
pub fn check(path: &Path, grains: u64, skip: u64) -> Result<()> {
    let (_, steps) = open(path)?;
    let mut writes = false;
    for (number, step) in (0..).zip(steps) {
        let step = step?;
        let (Step::Write(lba) | Step::Trim(lba)) = step;
        ensure!(
            lba < grains,
            "step {number} of {} names LBA {lba}, beyond a space of {grains} grains (--grains)",
            path.display()
        );
        writes |= number >= skip && matches!(step, Step::Write(_));
    }
    ensure!(
        writes,
        "no step of {} is a write after the first {skip}: there is nothing to measure",
        path.display()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bit 63 says trim, the rest is the LBA.
    #[test]
    fn words() {
        assert_eq!(Step::of(5), Step::Write(5));
        assert_eq!(Step::of(5 | 1 << 63), Step::Trim(5));
    }
}
