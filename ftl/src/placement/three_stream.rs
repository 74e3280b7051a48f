//! Three streams as in the paper: hot user writes, cold user writes, relocated grains.
//!
//! A counter of four bits per grain goes up with each user write and down with each relocation; from 4 on a grain is
//! hot. The victim is the one with the most cost-benefit, which is the paper's circular collection with aging.

use super::{Candidates, Heat, HeatMeaning, Placement, StreamId, best, cost_benefit};
use crate::addr::{Lba, SegmentId};

const HOT_FROM: u32 = 4;
const COUNT_MAX: u32 = 15;

/// `three-stream`.
#[derive(Debug)]
pub(super) struct ThreeStream {
    now: u64,
}

impl ThreeStream {
    pub(super) fn new(now: u64) -> Self {
        Self { now }
    }
}

impl Placement for ThreeStream {
    fn streams(&self) -> usize {
        3
    }
    fn now(&self) -> u64 {
        self.now
    }
    fn meaning(&self) -> HeatMeaning {
        HeatMeaning::of(b"counter")
    }

    fn write(&mut self, _: Lba, heat: Heat) -> (StreamId, Heat) {
        self.now += 1;
        let count = (heat.bits() + 1).min(COUNT_MAX);
        (StreamId(u8::from(count < HOT_FROM)), Heat::new(count))
    }

    fn relocate(&mut self, _: Lba, heat: Heat) -> (StreamId, Heat) {
        (StreamId(2), Heat::new(heat.bits().saturating_sub(1)))
    }

    fn peek(&mut self, _: Lba, heat: Heat) -> StreamId {
        StreamId(u8::from(heat.bits() + 1 < HOT_FROM))
    }

    fn victim(&mut self, candidates: &Candidates) -> Option<SegmentId> {
        let now = self.now;
        best(candidates.tops(), |c| cost_benefit(c, now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four writes make a grain hot, a relocation cools it.
    #[test]
    fn counting() {
        let mut policy = ThreeStream::new(0);
        let mut heat = Heat::UNKNOWN;
        let mut streams = Vec::new();
        for _ in 0..5 {
            let (stream, after) = policy.write(Lba(1), heat);
            streams.push(stream.0);
            heat = after;
        }
        assert_eq!(streams, [1, 1, 1, 0, 0]);
        for _ in 0..3 {
            let (stream, after) = policy.relocate(Lba(1), heat);
            assert_eq!(stream, StreamId(2));
            heat = after;
        }
        assert_eq!(policy.write(Lba(1), heat).0, StreamId(1));
    }
}
