//! Operations in flight: when each began, and how long those that ended took.

use std::io;
use std::time::{Duration, Instant};

use super::Run;
use crate::perf::cpu;
use crate::perf::figures::{Figures, Latencies, latencies};

/// Time before measuring starts.
const WARM: Duration = Duration::from_millis(200);

/// A stop-watch for each operation in flight, and one for the run.
pub(super) struct Slots {
    started: Vec<Instant>,
    histogram: Latencies,
    begin: Instant,
    measured: Option<(Instant, Duration)>,
}

impl Slots {
    /// For `count` operations in flight, measured when it is warm.
    pub(super) fn new(count: usize) -> Self {
        let now = Instant::now();
        Self {
            started: vec![now; count],
            histogram: latencies(),
            begin: now,
            measured: None,
        }
    }

    /// The same, measured from now on.
    pub(super) fn at_once(count: usize) -> Self {
        let mut slots = Self::new(count);
        slots.measured = Some((slots.begin, cpu::used(None).unwrap_or_default()));
        slots
    }

    /// The operation in `slot` begins.
    pub(super) fn begin(&mut self, slot: usize) {
        self.started[slot] = Instant::now();
    }

    /// It has ended.
    pub(super) fn end(&mut self, slot: usize) {
        let took = self.started[slot].elapsed();
        self.histogram.saturating_record(took.as_nanos() as u64);
    }

    /// Whether the run is over; asked between operations.
    pub(super) fn is_over(&mut self, run: &Run) -> bool {
        let now = Instant::now();
        match self.measured {
            None if now - self.begin >= WARM => {
                self.histogram.reset();
                self.measured = Some((now, cpu::used(None).unwrap_or_default()));
                false
            }
            None => false,
            Some((start, _)) => now - start >= run.time,
        }
    }

    /// The figures of operations of `size` bytes.
    pub(super) fn figures(self, size: usize) -> io::Result<Figures> {
        let (start, used) = self
            .measured
            .ok_or_else(|| io::Error::other("the run ended before it was warm"))?;
        let client = cpu::used(None).unwrap_or_default().saturating_sub(used);
        Ok(Figures::new(
            self.histogram,
            size,
            start.elapsed(),
            client,
            None,
        ))
    }
}
