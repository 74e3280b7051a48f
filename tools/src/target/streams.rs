//! One who reads one range behind the other: how that is seen, and how far ahead it pays to read.

use ftl::{Lba, LbaRange};

/// A sequential reader.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    /// The grain behind the last one read.
    next: Lba,
    /// Grains read in a row.
    run: u64,
    /// The grain behind the last one brought in for it.
    ahead: Lba,
}

impl Stream {
    /// Of somebody who reads `range`.
    pub(super) fn new(range: LbaRange) -> Self {
        Self {
            next: range.end(),
            run: range.count,
            ahead: range.end(),
        }
    }

    /// Whether `range` is read next in order.
    pub(super) fn goes_on(&self, range: LbaRange) -> bool {
        goes_on(self.next, range)
    }

    /// `range` is read, which goes on. Answers how many grains behind it to have in memory, which grows with how much was
    /// read in a row up to `window`.
    pub(super) fn advance(&mut self, range: LbaRange, window: u64) -> u64 {
        self.run += range.end().0 - self.next.0;
        self.next = range.end();
        window.min(self.run * 2)
    }

    /// The grain behind the last one brought in for it.
    pub(super) fn ahead(&self) -> Lba {
        self.ahead
    }

    /// Everything before `end` has been brought in, or need not be.
    pub(super) fn brought(&mut self, end: Lba) {
        self.ahead = self.ahead.max(end);
    }
}

/// Whether a read of `range` goes on where another has ended. It may begin inside the grain that the other ended in.
pub(super) fn goes_on(end: Lba, range: LbaRange) -> bool {
    end == range.start || end == range.start.offset(1) && range.end() >= end
}
