//! A process, and what it costs.

use std::time::Instant;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use serde::{Deserialize, Serialize};

/// A process that serves.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// Seconds since it began to serve.
    pub uptime: f64,
    /// Seconds of processor time of all its threads, in user space and in the kernel.
    pub cpu: f64,
    /// Bytes of memory that it has; of a target those of the pool that have been touched among them.
    pub resident: u64,
}

impl Process {
    /// This one, which began to serve then.
    pub fn since(started: Instant) -> Self {
        Self {
            pid: std::process::id(),
            uptime: started.elapsed().as_secs_f64(),
            cpu: cpu_seconds(),
            resident: resident_bytes(),
        }
    }
}

/// Processor time of this process.
fn cpu_seconds() -> f64 {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) else {
        return 0.0;
    };
    let seconds = |time: TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    seconds(usage.user_time()) + seconds(usage.system_time())
}

/// Memory of this process, as proc_pid_statm(5) has it.
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split_ascii_whitespace().nth(1);
    let pages: u64 = pages.and_then(|pages| pages.parse().ok()).unwrap_or(0);
    // SAFETY: no memory is involved.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    pages * u64::try_from(page).unwrap_or(4096)
}
