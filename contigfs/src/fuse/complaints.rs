//! How often requests that fail are told of in the log: whoever may look at something damaged can do so without an end.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// So many lines in this time.
const LINES: u32 = 20;
const WINDOW: Duration = Duration::from_secs(10);

/// Counts lines.
#[derive(Debug)]
pub(super) struct Complaints {
    /// When the first line of this window was told.
    since: Option<Instant>,
    told: u32,
    untold: u64,
}

static ALL: Mutex<Complaints> = Mutex::new(Complaints::new());

/// Whether there may be a line now: if so, how many there were not since the last one.
pub(super) fn may_complain() -> Option<u64> {
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    all.take(Instant::now())
}

impl Complaints {
    const fn new() -> Self {
        Self {
            since: None,
            told: 0,
            untold: 0,
        }
    }

    fn take(&mut self, now: Instant) -> Option<u64> {
        if self.since.is_none_or(|since| now >= since + WINDOW) {
            self.since = Some(now);
            self.told = 0;
        }
        if self.told == LINES {
            self.untold += 1;
            return None;
        }
        self.told += 1;
        Some(std::mem::take(&mut self.untold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However many requests fail, the log grows slowly; what it did not tell is counted.
    #[test]
    fn the_log_is_not_flooded() {
        let mut all = Complaints::new();
        let start = Instant::now();
        let told = (0..1000).filter_map(|_| all.take(start)).count();
        assert_eq!(told, LINES as usize);
        let soon = start + WINDOW - Duration::from_millis(1);
        assert_eq!(all.take(soon), None);
        let later = start + WINDOW;
        assert_eq!(all.take(later), Some(1001 - u64::from(LINES)));
        assert_eq!(all.take(later), Some(0));
    }
}
