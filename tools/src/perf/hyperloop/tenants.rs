//! Those who crowd the processors.

use std::process::{Child, Command, Stdio};
use std::thread;

use anyhow::{Context, Result};

use super::placement::Placement;

/// Processes that never sleep; gone when dropped.
#[derive(Debug)]
pub struct Tenants(Vec<Child>);

impl Tenants {
    /// So many on each processor.
    pub fn crowd(each: usize, placement: &Placement) -> Result<Self> {
        placement.unbound(|| Self::start(each))?
    }

    fn start(each: usize) -> Result<Self> {
        let processors = thread::available_parallelism()?.get();
        let program = std::env::current_exe()?;
        let mut tenants = Self(Vec::new());
        for _ in 0..each * processors {
            let child = Command::new(&program)
                .args(["perf-server", "--tenant"])
                // They end with this process, however that ends.
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .spawn()
                .context("cannot start a tenant")?;
            tenants.0.push(child);
        }
        Ok(tenants)
    }
}

impl Drop for Tenants {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // It fails if it has ended by itself, which is what is wanted.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// What a tenant does, until its standard input ends.
pub fn spin() {
    thread::spawn(|| {
        let mut count = 0u64;
        loop {
            count = std::hint::black_box(count.wrapping_mul(6_364_136_223_846_793_005) + 1);
        }
    });
    // Nothing is ever sent: this waits for the end.
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
}
