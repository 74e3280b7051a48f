//! Rests of a device that does not read: one behind a cable or a network may be back in a moment.

use std::sync::atomic::Ordering;

use super::Cx;

/// The first; each further one in a row is twice as long, 10 s together.
const FIRST_NS: u64 = 10_000_000;
/// So many in a row.
const MAX: u8 = 10;

/// Rests between reads of one kind.
#[derive(Debug, Default)]
pub(super) struct Rests {
    taken: u8,
    until: Option<u64>,
}

impl Rests {
    /// Begins one, unless there have been enough.
    pub(super) fn begin(&mut self, cx: Cx<'_>) -> bool {
        if self.taken == MAX {
            return false;
        }
        let until = cx.sh.now.load(Ordering::SeqCst) + (FIRST_NS << self.taken);
        self.taken += 1;
        self.until = Some(until);
        cx.sh.wake_at(until);
        true
    }

    /// The device has read something.
    pub(super) fn reset(&mut self) {
        self.taken = 0;
    }

    pub(super) fn is_resting(&self) -> bool {
        self.until.is_some()
    }

    /// Ends the one whose time has come; true if none is left.
    pub(super) fn end_if_due(&mut self, cx: Cx<'_>) -> bool {
        let now = cx.sh.now.load(Ordering::SeqCst);
        self.until = self.until.filter(|&until| now < until);
        self.until.is_none()
    }

    /// The timer has ended for another reason.
    pub(super) fn wake_again(&self, cx: Cx<'_>) {
        let now = cx.sh.now.load(Ordering::SeqCst);
        if let Some(until) = self.until.filter(|&until| now < until) {
            cx.sh.wake_at(until);
        }
    }
}
