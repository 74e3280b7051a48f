//! One stream, and the victim that frees most: of all segments, or of the oldest quarter.

use super::{Candidate, Heat, Placement, StreamId, best};
use crate::addr::{Lba, SegmentId};

/// The oldest segments that are looked at, as a share of all.
const WINDOW: (usize, usize) = (1, 4);

/// `greedy` and `greedy-window`.
#[derive(Debug)]
pub(super) struct Greedy {
    window: bool,
    now: u64,
    /// By age; kept for its memory.
    sorted: Vec<Candidate>,
}

impl Greedy {
    pub(super) fn all() -> Self {
        Self {
            window: false,
            now: 0,
            sorted: Vec::new(),
        }
    }

    pub(super) fn window() -> Self {
        Self {
            window: true,
            ..Self::all()
        }
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

    fn victim(&mut self, candidates: &mut dyn Iterator<Item = Candidate>) -> Option<SegmentId> {
        let emptiness = |c: &Candidate| c.grains as f32 - c.live as f32;
        if !self.window {
            return best(candidates, emptiness);
        }
        self.sorted.clear();
        self.sorted.extend(candidates);
        let window = (self.sorted.len() * WINDOW.0).div_ceil(WINDOW.1);
        if window == 0 {
            return None;
        }
        self.sorted
            .select_nth_unstable_by_key(window - 1, |c| c.epoch);
        let oldest = self.sorted[..window].iter().copied();
        let found = oldest.clone().filter(|c| c.live + 1 < c.grains);
        if found.clone().next().is_some() {
            return best(&mut { found }, emptiness);
        }
        // All of the oldest are full: look further.
        best(&mut self.sorted.iter().copied(), emptiness)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(id: u32, live: u32) -> Candidate {
        Candidate {
            id: SegmentId(id),
            live,
            grains: 16,
            opened_at: u64::from(id),
            epoch: u64::from(id),
        }
    }

    /// Greedy takes the emptiest anywhere; the window only among the oldest quarter, unless those are full.
    #[test]
    fn windows() {
        let mut eight: Vec<Candidate> = (0..8).map(|id| candidate(id, 9 - id)).collect();
        let mut greedy = Greedy::all();
        let victim = greedy.victim(&mut eight.iter().copied());
        assert_eq!(victim, Some(SegmentId(7)));
        let mut window = Greedy::window();
        let victim = window.victim(&mut eight.iter().copied());
        assert_eq!(victim, Some(SegmentId(1)));
        eight[0].live = 16;
        eight[1].live = 16;
        let victim = window.victim(&mut eight.iter().copied());
        assert_eq!(victim, Some(SegmentId(7)));
        assert_eq!(window.victim(&mut std::iter::empty()), None);
    }
}
