//! Counters that a client adds one to: what an addition finds tells whether each before it took effect once (I13).

use anyhow::{Result, ensure};

/// Bytes of a counter.
pub(super) const COUNTER: usize = 8;

/// What is known of a counter.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counter {
    /// Additions that are known to have taken effect.
    least: u64,
    /// The same, with those of which nobody knows.
    most: u64,
    /// Kills of the target that were over when that was asked for by which it is known.
    killed: u64,
}

impl Counter {
    /// An addition has found this; when it was sent, `killed` kills were over, and by now `kills` have begun.
    pub(super) fn added(&mut self, found: u64, killed: u64, kills: u64) -> Result<()> {
        self.seen(found, killed, kills)?;
        self.least += 1;
        self.most += 1;
        Ok(())
    }

    /// An addition was made, or not.
    pub(super) fn perhaps_added(&mut self) {
        self.most += 1;
    }

    /// This is what it says. A kill takes away what was not durable, and adds nothing.
    pub(super) fn seen(&mut self, found: u64, killed: u64, kills: u64) -> Result<()> {
        let Self { least, most, .. } = *self;
        ensure!(
            found <= most,
            "{most} additions were sent, and {found} have taken effect"
        );
        ensure!(
            found >= least || kills > self.killed,
            "{least} additions were acknowledged, {found} have taken effect, and the target was not killed"
        );
        *self = Self {
            least: found,
            most: found,
            killed,
        };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An addition that takes effect twice, or not although it was acknowledged, is found; one that a kill took is not.
    #[test]
    fn each_counts_once() {
        let mut counter = Counter::default();
        counter.added(0, 0, 0).unwrap();
        counter.added(1, 0, 0).unwrap();
        assert!(counter.clone().seen(3, 0, 0).is_err(), "twice");
        assert!(counter.clone().added(1, 0, 0).is_err(), "lost");
        counter.perhaps_added();
        for found in [2, 3] {
            counter.clone().added(found, 0, 0).unwrap();
        }
        assert!(counter.clone().seen(4, 0, 9).is_err(), "twice");
        // Of a kill that has begun since.
        counter.clone().seen(0, 0, 1).unwrap();
        counter.added(3, 1, 1).unwrap();
        assert!(counter.clone().seen(3, 1, 1).is_err(), "lost");
    }
}
