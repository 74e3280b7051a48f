//! The table that the demo prints, line by line as it goes.

use std::time::Duration;

use serde_json::{Value, json};

use crate::commands::show;
use crate::perf::figures::Latencies;

/// One step that has been done.
#[derive(Clone, Debug, Default)]
pub(super) struct Step {
    /// What was done.
    pub name: String,
    /// Bytes it moved.
    pub bytes: Option<u64>,
    /// How long it took.
    pub time: Duration,
    /// Latencies of its operations, where they mean something.
    pub latencies: Option<Latencies>,
    /// A remark: counts, what was checked.
    pub remark: String,
}

/// The table.
#[derive(Debug)]
pub(super) struct Report {
    json: bool,
    steps: Vec<Value>,
    notes: Vec<String>,
}

impl Report {
    /// An empty table; its heading is printed at once.
    pub(super) fn new(json: bool) -> Self {
        if !json {
            println!(
                "\n  {:<30} {:>9} {:>9} {:>11} {:>9} {:>9}",
                "step", "bytes", "time", "throughput", "p50", "p99"
            );
            println!("  {}", "─".repeat(82));
        }
        Self {
            json,
            steps: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Adds a line.
    pub(super) fn add(&mut self, step: Step) {
        let quantile = |q| {
            step.latencies
                .as_ref()
                .map(|l| Duration::from_nanos(l.value_at_quantile(q)))
        };
        let (p50, p99) = (quantile(0.5), quantile(0.99));
        if !self.json {
            let text = |t: Option<Duration>| t.map(show::time).unwrap_or_default();
            println!(
                "  {:<30} {:>9} {:>9} {:>11} {:>9} {:>9}  {}",
                step.name,
                step.bytes.map(show::bytes).unwrap_or_default(),
                show::time(step.time),
                step.bytes
                    .map(|bytes| show::rate(bytes, step.time))
                    .unwrap_or_default(),
                text(p50),
                text(p99),
                step.remark
            );
        }
        let us = |t: Option<Duration>| t.map(|t| t.as_secs_f64() * 1e6);
        self.steps.push(json!({
            "step": step.name,
            "bytes": step.bytes,
            "seconds": step.time.as_secs_f64(),
            "p50_us": us(p50),
            "p99_us": us(p99),
            "remark": step.remark,
        }));
    }

    /// Adds a remark of its own.
    pub(super) fn note(&mut self, text: &str) {
        if !self.json {
            println!("  {text}");
        }
        self.notes.push(text.to_owned());
    }

    /// The last line.
    pub(super) fn finish(&self, good: bool) {
        if self.json {
            println!(
                "{}",
                json!({ "steps": self.steps, "notes": self.notes, "ok": good })
            );
        } else if good {
            println!("  {}", "─".repeat(82));
            println!("  every byte that was acknowledged is there\n");
        }
    }
}
