//! How many pages of the pool requests may hold at once.
//!
//! A thread waits for pages while it holds some, so all threads together must leave most of the pool to others. Each has a
//! small share of its own; half of what there is lies in common, so that a large request of few threads is one request of
//! the engine too.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Pages of the longest request of the kernel (1 MiB), which may begin inside of a grain.
const PAGES_MAX: usize = 257;

/// The shares of all threads.
#[derive(Debug)]
pub(super) struct Shares {
    /// Pages that every thread may hold at any time.
    own: usize,
    /// Pages that nobody holds of those in common.
    common: AtomicUsize,
}

impl Shares {
    /// Shares in `pages` for `threads` threads; at least a page for each.
    pub(super) fn new(pages: usize, threads: usize) -> Self {
        Self {
            own: (pages / 2 / threads).clamp(1, PAGES_MAX),
            common: AtomicUsize::new(pages / 2),
        }
    }

    /// A share of `wanted` pages, or fewer.
    pub(super) fn take(&self, wanted: usize) -> Share<'_> {
        let more = wanted.min(PAGES_MAX).saturating_sub(self.own);
        let mut common = 0;
        if more > 0 {
            let take = |left: usize| Some(left - left.min(more));
            let left = self
                .common
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
            common = left.map_or(0, |left| left.min(more));
        }
        Share {
            shares: self,
            common,
        }
    }
}

/// The share of one request.
#[derive(Debug)]
pub(super) struct Share<'a> {
    shares: &'a Shares,
    common: usize,
}

impl Share<'_> {
    /// Pages it may hold at once.
    pub(super) fn pages(&self) -> usize {
        self.shares.own + self.common
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        self.shares.common.fetch_add(self.common, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nobody gets more than there is, everybody gets something, and what is given back can be had again.
    #[test]
    fn shares_are_bounded() {
        let shares = Shares::new(1024, 8);
        assert_eq!(shares.take(1).pages(), 64);
        let (first, second) = (shares.take(257), shares.take(1000));
        assert_eq!((first.pages(), second.pages()), (257, 257));
        let third = shares.take(257);
        assert_eq!(third.pages(), 64 + 512 - 2 * 193);
        assert_eq!(shares.take(257).pages(), 64);
        drop((first, second, third));
        assert_eq!(shares.take(257).pages(), 257);
        assert_eq!(Shares::new(3, 8).take(9).pages(), 2); // One of its own, one in common.
    }
}
