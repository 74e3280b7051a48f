//! Keeping threads in step, also when one of them fails.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::{Result, bail};

/// A number of threads in step.
#[derive(Debug)]
pub(super) struct Step {
    threads: u64,
    arrived: AtomicU64,
    failed: AtomicBool,
}

impl Step {
    /// For so many threads.
    pub(super) fn new(threads: usize) -> Self {
        Self {
            threads: threads as u64,
            arrived: AtomicU64::new(0),
            failed: AtomicBool::new(false),
        }
    }

    /// Waits until all are here.
    pub(super) fn meet(&self) -> Result<()> {
        let ticket = self.arrived.fetch_add(1, Ordering::SeqCst);
        let all = (ticket / self.threads + 1) * self.threads;
        while self.arrived.load(Ordering::SeqCst) < all {
            if self.has_failed() {
                bail!("another party failed");
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Runs the work of one thread; when it fails, the others learn of it.
    pub(super) fn run<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let result = work();
        if result.is_err() {
            self.failed.store(true, Ordering::SeqCst);
        }
        result
    }

    /// Whether a thread has failed.
    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::SeqCst)
    }
}
