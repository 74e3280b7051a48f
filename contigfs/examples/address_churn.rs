//! What churn does to the space of addresses: files are made, grown, truncated and removed for long, and from time to
//! time it is counted how the ranges that are left lie. Deterministic; the figures are in `docs/layout.md`.
//!
//! ```text
//! cargo run -p contigfs --example address_churn
//! ```

use std::ffi::OsStr;
use std::sync::Arc;

use contigfs::{FormatOptions, Fs, FsError, InodeNo, MemStore, NewNode, SetAttr};
use ftl::{Lba, LbaRange};

/// Operations between two lines.
const STEPS: u64 = 100_000;
const LINES: u64 = 10;
/// Files that live at a time, about.
const FILES: usize = 5000;
/// The largest size is 2^this bytes.
const SIZE_BITS: u64 = 48;
/// Where the ranges of files begin.
const FIRST: Lba = Lba(1 << 32);

/// xorshift64*: the same everywhere.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) % n
    }

    /// As many small sizes as large ones: every power of two is as likely.
    fn size(&mut self) -> u64 {
        let bits = self.below(SIZE_BITS + 1);
        (1 << bits) + self.below(1 << bits)
    }
}

struct Churn {
    fs: Fs<Arc<MemStore>>,
    dice: Dice,
    files: Vec<(String, InodeNo)>,
    made: u64,
    refused: u64,
}

impl Churn {
    fn step(&mut self) -> Result<(), FsError> {
        let room = self.files.len() < FILES;
        if self.files.is_empty() || room && self.dice.below(2) == 0 {
            self.made += 1;
            let label = format!("f{}", self.made);
            let attr = self
                .fs
                .create(InodeNo::ROOT, OsStr::new(&label), &NewNode::file())?;
            self.files.push((label, attr.ino));
            return Ok(());
        }
        let which = self.dice.below(self.files.len() as u64) as usize;
        if self.dice.below(3) == 0 {
            let (label, _) = self.files.swap_remove(which);
            return self.fs.unlink(InodeNo::ROOT, OsStr::new(&label));
        }
        let set = SetAttr {
            size: Some(self.dice.size()),
            ..SetAttr::default()
        };
        match self.fs.set_attr(self.files[which].1, &set) {
            Err(FsError::NoSpace) => self.refused += 1,
            result => drop(result?),
        }
        Ok(())
    }

    /// All ranges of files, ascending.
    fn ranges(&self) -> Result<Vec<LbaRange>, FsError> {
        let ranges = self.files.iter();
        let ranges = ranges.map(|(_, ino)| Ok(self.fs.file_extent(*ino)?.range));
        let mut ranges = ranges.collect::<Result<Vec<_>, FsError>>()?;
        ranges.sort_by_key(|range| range.start);
        Ok(ranges)
    }

    fn report(&self, steps: u64) -> Result<(), FsError> {
        let ranges = self.ranges()?;
        let used: u64 = ranges.iter().map(|range| range.count).sum();
        let (mut at, mut gaps, mut largest) = (FIRST, 0, 0);
        for range in &ranges {
            let gap = range.start.0 - at.0;
            gaps += u64::from(gap > 0);
            largest = largest.max(gap);
            at = range.end();
        }
        let span = at.0 - FIRST.0;
        let behind = Lba::END.0 - at.0;
        println!(
            "{steps:>9} {:>6} {:>10.6} {:>10.4} {gaps:>6} {:>8.1} {:>8.3} {:>8}",
            ranges.len(),
            100.0 * used as f64 / Lba::END.0 as f64,
            100.0 * (span - used) as f64 / span.max(1) as f64,
            (largest.max(1) as f64).log2(),
            (behind.max(1) as f64).log2(),
            self.refused,
        );
        Ok(())
    }
}

fn main() -> Result<(), FsError> {
    let store = Arc::new(MemStore::new(1 << 20));
    Fs::format(&store, &FormatOptions::default())?;
    let mut churn = Churn {
        fs: Fs::mount(store)?,
        dice: Dice(20_261_121),
        files: Vec::new(),
        made: 0,
        refused: 0,
    };
    println!(
        "sizes of 1 to 2^{} bytes, every power of two as likely; addresses of grains, of which there are 2^52",
        SIZE_BITS + 1
    );
    println!(
        "{:>9} {:>6} {:>10} {:>10} {:>6} {:>8} {:>8} {:>8}",
        "steps", "files", "% in use", "% of span", "gaps", "largest", "behind", "refused"
    );
    println!(
        "{:>9} {:>6} {:>10} {:>10} {:>6} {:>8} {:>8} {:>8}",
        "", "", "of all", "in gaps", "", "log2", "log2", ""
    );
    for line in 1..=LINES {
        for _ in 0..STEPS {
            churn.step()?;
        }
        churn.report(line * STEPS)?;
    }
    Ok(())
}
