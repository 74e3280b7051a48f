//! Reads of the mount that no thread waits for.
//!
//! A thread that reads from the device itself ([`super::lane`]) sleeps until that is done. For a few readers nothing is quicker. When
//! many read, going to sleep and being woken up is most of what their requests cost; so as soon as some threads sleep, further reads of a
//! grain are left to the reactor. It has all of them under way on its ring and gives the answers, and the threads take requests meanwhile.
//!
//! ```text
//!   few:    thread ── preadv, asleep ──────────────► answer ──► next request
//!   many:   thread ── Job::Read ──► next request
//!                         └──► reactor: ring ──► pages, several at a time ──► answers
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// With so many threads asleep for pages, further reads are left to the reactor.
const ASLEEP_MIN: usize = 4;

/// The reads that are under way.
#[derive(Debug)]
pub(super) struct Later {
    under_way: AtomicUsize,
    most: usize,
}

/// One of them, until it is answered.
#[derive(Debug)]
pub(super) struct UnderWay(Arc<Later>);

impl Later {
    /// Of a pool of so many frames: each read takes one, and the rest is for others.
    pub(super) fn new(frames: usize) -> Arc<Self> {
        Arc::new(Self {
            under_way: AtomicUsize::new(0),
            most: frames / 8,
        })
    }

    /// Whether a read had better be left to the reactor, with so many threads asleep for theirs. It goes on with what it has begun
    /// until it is through: a thread that sleeps beside it takes longer.
    pub(super) fn is_better(&self, asleep: usize) -> bool {
        asleep >= ASLEEP_MIN || self.under_way.load(Ordering::Relaxed) > 0
    }

    /// One more, unless there are so many that somebody has to wait.
    pub(super) fn begin(self: &Arc<Self>) -> Option<UnderWay> {
        let more = |now| (now < self.most).then_some(now + 1);
        let begun = (self.under_way).fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        begun.ok().map(|_| UnderWay(Arc::clone(self)))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Few readers are left alone; what has begun goes on, with an eighth of the pool at most.
    #[test]
    fn reads_are_left_when_many_read() {
        let later = Later::new(16);
        assert!(!later.is_better(ASLEEP_MIN - 1));
        assert!(later.is_better(ASLEEP_MIN));
        let (first, second) = (later.begin(), later.begin());
        assert!(first.is_some() && second.is_some() && later.begin().is_none());
        assert!(later.is_better(0));
        drop(first);
        let third = later.begin();
        assert!(third.is_some());
        drop((second, third));
        assert!(!later.is_better(0));
    }
}
