//! What a soak says: a line for each life, and the sum.

use std::ops::AddAssign;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::memory::Memory;
use crate::commands::show;

/// What was done in a life.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    /// Records that were sent.
    pub(super) written: u64,
    /// Records that were acknowledged as durable.
    pub(super) acknowledged: u64,
    /// Records that were read back and were what had been written last.
    pub(super) read: u64,
    /// Slots that were judged after the start.
    pub(super) judged: u64,
    /// Operations on files that were answered.
    pub(super) file_ops: u64,
    /// Files whose content was compared after the start.
    pub(super) files: u64,
    /// Times that the volume was full.
    pub(super) full: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, more: Self) {
        self.written += more.written;
        self.acknowledged += more.acknowledged;
        self.read += more.read;
        self.judged += more.judged;
        self.file_ops += more.file_ops;
        self.files += more.files;
        self.full += more.full;
    }
}

impl Counts {
    fn json(&self) -> Value {
        json!({
            "written": self.written,
            "acknowledged": self.acknowledged,
            "read": self.read,
            "judged": self.judged,
            "file_ops": self.file_ops,
            "files": self.files,
            "full": self.full,
        })
    }

    fn line(&self) -> String {
        format!(
            "{:>9} {:>9} {:>8} {:>8} {:>8} {:>6} {:>5}",
            self.written,
            self.acknowledged,
            self.read,
            self.judged,
            self.file_ops,
            self.files,
            self.full
        )
    }
}

/// The lines.
#[derive(Debug)]
pub(super) struct Report {
    json: bool,
    start: Instant,
    lives: u64,
    sum: Counts,
    notes: Vec<String>,
}

impl Report {
    /// Its heading is printed at once.
    pub(super) fn new(json: bool) -> Self {
        if !json {
            println!(
                "{:>6} {:>8} {:>9} {:>9} {:>8} {:>8} {:>8} {:>6} {:>5} {:>10}  end",
                "life",
                "time",
                "written",
                "acked",
                "read",
                "judged",
                "file ops",
                "files",
                "full",
                "memory"
            );
        }
        Self {
            json,
            start: Instant::now(),
            lives: 0,
            sum: Counts::default(),
            notes: Vec::new(),
        }
    }

    /// Something to know.
    pub(super) fn note(&mut self, text: &str) {
        if !self.json {
            println!("{text}");
        }
        self.notes.push(text.to_owned());
    }

    /// A life has ended.
    pub(super) fn add(&mut self, time: Duration, counts: Counts, resident: u64, end: &str) {
        self.lives += 1;
        self.sum += counts;
        if !self.json {
            let (time, memory) = (show::time(time), show::bytes(resident));
            let (life, line) = (self.lives, counts.line());
            println!("{life:>6} {time:>8} {line} {memory:>10}  {end}");
        }
    }

    /// Whether records were acknowledged, and what was acknowledged was looked for.
    pub(super) fn shows_something(&self) -> bool {
        self.lives > 1 && self.sum.acknowledged > 0
    }

    /// The sum.
    pub(super) fn finish(&self, memory: &Memory, seed: u64, ok: bool) {
        let (first, later) = memory.peaks();
        if self.json {
            let mut all = self.sum.json();
            all["ok"] = json!(ok);
            all["seed"] = json!(seed);
            all["lives"] = json!(self.lives);
            all["seconds"] = json!(self.start.elapsed().as_secs_f64());
            all["resident_first"] = json!(first);
            all["resident_later"] = json!(later);
            all["notes"] = json!(self.notes);
            println!("{all}");
        } else {
            let time = show::time(self.start.elapsed());
            println!("{:>6} {time:>8} {}", "all", self.sum.line());
            println!(
                "seed {seed}; memory of the target: at most {} in its first lives, {} later",
                show::bytes(first),
                show::bytes(later)
            );
        }
    }
}
