//! One stream, and the victim that frees most: of all segments, or of the oldest quarter.

use super::{Candidate, Candidates, Heat, Placement, StreamId, best};
use crate::addr::{Lba, SegmentId};

/// The oldest segments that are looked at, as a share of all.
const WINDOW: (usize, usize) = (1, 4);

/// `greedy` and `greedy-window`.
#[derive(Debug)]
pub(super) struct Greedy {
    window: bool,
    now: u64,
}

impl Greedy {
    pub(super) fn all(now: u64) -> Self {
        Self { window: false, now }
    }

    pub(super) fn window(now: u64) -> Self {
        Self { window: true, now }
    }
}

impl Placement for Greedy {
    fn streams(&self) -> usize {
        1
    }
    fn now(&self) -> u64 {
        self.now
    }
    fn write(&mut self, _: Lba, heat: Heat) -> (StreamId, Heat) {
        self.now += 1;
        (StreamId(0), heat)
    }
    fn relocate(&mut self, _: Lba, heat: Heat) -> (StreamId, Heat) {
        (StreamId(0), heat)
    }

    fn victim(&mut self, candidates: &Candidates) -> Option<SegmentId> {
        let emptiest = candidates.emptiest().map(|c| c.id);
        if !self.window {
            return emptiest;
        }
        let window = (candidates.len() * WINDOW.0).div_ceil(WINDOW.1);
        let oldest = candidates.by_epoch().take(window);
        let gains = oldest.filter(|c| c.live + 1 < c.grains);
        let emptiness = |c: &Candidate| c.grains as f32 - c.live as f32;
        // If all of the oldest are full: look further.
        best(gains, emptiness).or(emptiest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(id: u32, live: u32) -> Option<Candidate> {
        Some(Candidate {
            id: SegmentId(id),
            live,
            grains: 16,
            opened_at: u64::from(id),
            epoch: u64::from(id),
        })
    }

    /// Greedy takes the emptiest anywhere; the window only among the oldest quarter, unless those are full.
    #[test]
    fn windows() {
        let mut eight = Candidates::new(8, 16);
        let (mut greedy, mut window) = (Greedy::all(0), Greedy::window(0));
        assert_eq!(window.victim(&eight), None);
        for id in 0..8 {
            eight.file(SegmentId(id), candidate(id, 9 - id));
        }
        assert_eq!(greedy.victim(&eight), Some(SegmentId(7)));
        assert_eq!(window.victim(&eight), Some(SegmentId(1)));
        eight.file(SegmentId(0), candidate(0, 16));
        eight.file(SegmentId(1), candidate(1, 16));
        assert_eq!(window.victim(&eight), Some(SegmentId(7)));
    }
}
