//! Whether the memory of the target stays what it was.

use anyhow::{Result, ensure};

/// Lives after which everything that is ever needed has been allocated.
const SETTLED: usize = 4;
/// What later lives may need beyond that.
const SLACK_BYTES: u64 = 16 << 20;
const SLACK_PERCENT: u64 = 25;

/// The most resident memory of each life.
#[derive(Debug, Default)]
pub(super) struct Memory {
    peaks: Vec<u64>,
    now: u64,
}

impl Memory {
    /// Looks at a process.
    pub(super) fn sample(&mut self, pid: u32) {
        let pages = std::fs::read_to_string(format!("/proc/{pid}/statm"))
            .ok()
            .and_then(|text| text.split_whitespace().nth(1)?.parse::<u64>().ok());
        // SAFETY: asks for a constant of the system.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
        self.now = self.now.max(pages.unwrap_or(0) * page);
    }

    /// The most that was seen in this life, in bytes.
    pub(super) fn end_life(&mut self) -> u64 {
        let peak = std::mem::take(&mut self.now);
        self.peaks.push(peak);
        peak
    }

    /// The most of the first lives, and the most of all later ones.
    pub(super) fn peaks(&self) -> (u64, u64) {
        let (first, later) = self.peaks.split_at(SETTLED.min(self.peaks.len()));
        let most = |lives: &[u64]| lives.iter().copied().max().unwrap_or(0);
        (most(first), most(later))
    }

    /// An error if the memory has grown.
    pub(super) fn judge(&self) -> Result<()> {
        let (first, later) = self.peaks();
        let bound = first + (first * SLACK_PERCENT / 100).max(SLACK_BYTES);
        ensure!(
            later <= bound,
            "the target grew: {later} bytes resident, {first} in its first {SETTLED} lives"
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Growth beyond the slack is found, whatever the first lives looked like among themselves.
    #[test]
    fn growth_is_found() {
        let judged = |mib: &[u64]| {
            let peaks = mib.iter().map(|m| m << 20).collect();
            Memory { peaks, now: 0 }.judge().is_ok()
        };
        assert!(judged(&[]));
        assert!(judged(&[10, 90, 100, 80, 110, 100, 124]));
        assert!(!judged(&[10, 90, 100, 80, 110, 100, 126]));
        assert!(judged(&[20, 20, 20, 20, 36]));
        assert!(!judged(&[20, 20, 20, 20, 37]));
    }

    #[test]
    fn this_process_has_memory() {
        let mut memory = Memory::default();
        memory.sample(std::process::id());
        assert!(memory.end_life() > 1 << 20);
    }
}
