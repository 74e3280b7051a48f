//! Keeping threads in step, also when one of them fails.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::{Result, bail};

use crate::commands::interrupt::Interrupt;

/// A number of threads in step.
#[derive(Debug)]
pub(super) struct Step {
    threads: u64,
    arrived: AtomicU64,
    failed: AtomicBool,
    interrupt: Interrupt,
}

/// Dropped, it tells of a failure.
struct Failure<'a>(&'a AtomicBool);

impl Drop for Failure<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl Step {
    /// For so many threads.
    pub(super) fn new(threads: usize, interrupt: &Interrupt) -> Self {
        Self {
            threads: threads as u64,
            arrived: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            interrupt: interrupt.clone(),
        }
    }

    /// Waits until all are here.
    pub(super) fn meet(&self) -> Result<()> {
        let ticket = self.arrived.fetch_add(1, Ordering::SeqCst);
        let all = (ticket / self.threads + 1) * self.threads;
        while self.arrived.load(Ordering::SeqCst) < all {
            self.interrupt.check()?;
            if self.failed.load(Ordering::SeqCst) {
                bail!("another party failed");
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Runs the work of one thread; when it fails, or panics, the others learn of it.
    pub(super) fn run<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let failure = Failure(&self.failed);
        let done = work()?;
        std::mem::forget(failure);
        Ok(done)
    }

    /// Whether there is no use in going on: a thread has failed, or the user wants the command to end.
    pub(super) fn is_off(&self) -> bool {
        self.failed.load(Ordering::SeqCst) || self.interrupt.check().is_err()
    }
}
