//! The segments that may be collected, filed so that a victim is found without looking at all of them.
//!
//! ```text
//!   live grains     0     1     2    ...   all
//!                  [ ]   [o]   [ ]         [o]     a heap for each number, the segment opened first on top
//!                        / \               / \
//!                       o   o             o   o
//! ```
//!
//! Of segments that cost the same to collect a policy prefers the one opened first, so the tops are all it has to
//! look at, whatever else it weighs.
//!
//! # Invariants
//! - A segment is filed at most once, under what was last said of it.
//! - The answer of every policy is the one that looking at all segments would give.

use super::Candidate;
use crate::addr::SegmentId;
use std::collections::BTreeSet;

/// Rank in a heap: opened first, then the lower number.
type Rank = (u64, SegmentId);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Candidates {
    /// By live grains.
    heaps: Vec<Vec<Rank>>,
    /// A bit for each heap that is not empty.
    filled: Vec<u64>,
    /// By segment.
    filed: Vec<Option<Filed>>,
    by_epoch: BTreeSet<(u64, SegmentId)>,
}

#[derive(Clone, Copy, Debug)]
struct Filed {
    candidate: Candidate,
    /// Place in its heap.
    at: usize,
}

impl Candidates {
    pub(crate) fn new(segments: usize, grains: u32) -> Self {
        let heaps = grains as usize + 1;
        Self {
            heaps: vec![Vec::new(); heaps],
            filled: vec![0; heaps.div_ceil(64)],
            filed: vec![None; segments],
            by_epoch: BTreeSet::new(),
        }
    }

    /// There are more segments now, or fewer; those that are gone are no candidates.
    pub(crate) fn resize(&mut self, segments: usize) {
        for gone in segments..self.filed.len() {
            self.file(SegmentId(gone as u32), None);
        }
        self.filed.resize(segments, None);
    }

    /// Says what a segment is now: a candidate or none.
    pub(crate) fn file(&mut self, id: SegmentId, now: Option<Candidate>) {
        let known = self.filed[id.0 as usize];
        if known.map(|k| k.candidate) == now {
            return;
        }
        // Only the live grains change while a segment stays a candidate.
        let epoch_before = known.map(|k| k.candidate.epoch);
        let epoch_now = now.map(|c| c.epoch);
        if epoch_before != epoch_now {
            if let Some(epoch) = epoch_before {
                self.by_epoch.remove(&(epoch, id));
            }
            if let Some(epoch) = epoch_now {
                self.by_epoch.insert((epoch, id));
            }
        }
        if let Some(known) = known {
            self.take_out(known);
        }
        self.filed[id.0 as usize] = None;
        if let Some(candidate) = now {
            self.put_in(candidate);
        }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.by_epoch.len()
    }

    /// What is filed of a segment.
    pub(crate) fn get(&self, id: SegmentId) -> Option<Candidate> {
        self.filed[id.0 as usize].map(|f| f.candidate)
    }

    /// For each number of live grains, ascending, the candidate opened first.
    pub(crate) fn tops(&self) -> impl Iterator<Item = Candidate> + '_ {
        let words = self.filled.iter().enumerate();
        let lives = words.flat_map(|(index, &word)| Ones(word).map(move |bit| index * 64 + bit));
        lives.filter_map(|live| self.get(self.heaps[live].first()?.1))
    }

    /// The one with the fewest live grains, of several the one opened first.
    pub(crate) fn emptiest(&self) -> Option<Candidate> {
        self.tops().next()
    }

    /// All, in the order in which their lives began.
    pub(crate) fn by_epoch(&self) -> impl Iterator<Item = Candidate> + '_ {
        self.by_epoch.iter().filter_map(|&(_, id)| self.get(id))
    }

    fn take_out(&mut self, known: Filed) {
        let live = known.candidate.live as usize;
        let last = self.heaps[live].pop().expect("filed in this heap");
        if known.at < self.heaps[live].len() {
            self.heaps[live][known.at] = last;
            let at = self.rise(live, known.at);
            self.sink(live, at);
        } else if self.heaps[live].is_empty() {
            self.filled[live / 64] &= !(1 << (live % 64));
        }
    }

    fn put_in(&mut self, candidate: Candidate) {
        let live = candidate.live as usize;
        let at = self.heaps[live].len();
        self.heaps[live].push((candidate.opened_at, candidate.id));
        self.filed[candidate.id.0 as usize] = Some(Filed { candidate, at });
        self.filled[live / 64] |= 1 << (live % 64);
        self.rise(live, at);
    }

    /// Moves an entry up to where it belongs; returns the place.
    fn rise(&mut self, live: usize, mut at: usize) -> usize {
        let heap = &mut self.heaps[live];
        let entry = heap[at];
        while at > 0 && entry < heap[(at - 1) / 2] {
            heap[at] = heap[(at - 1) / 2];
            set_place(&mut self.filed, heap[at], at);
            at = (at - 1) / 2;
        }
        heap[at] = entry;
        set_place(&mut self.filed, entry, at);
        at
    }

    /// Moves an entry down to where it belongs.
    fn sink(&mut self, live: usize, mut at: usize) {
        let heap = &mut self.heaps[live];
        let entry = heap[at];
        loop {
            let mut child = 2 * at + 1;
            if child + 1 < heap.len() && heap[child + 1] < heap[child] {
                child += 1;
            }
            if child >= heap.len() || entry < heap[child] {
                break;
            }
            heap[at] = heap[child];
            set_place(&mut self.filed, heap[at], at);
            at = child;
        }
        heap[at] = entry;
        set_place(&mut self.filed, entry, at);
    }
}

fn set_place(filed: &mut [Option<Filed>], (_, id): Rank, at: usize) {
    if let Some(known) = &mut filed[id.0 as usize] {
        known.at = at;
    }
}

/// The bits that are set, lowest first.
struct Ones(u64);

impl Iterator for Ones {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let bit = self.0.trailing_zeros() as usize;
        self.0 &= self.0.checked_sub(1)?;
        Some(bit)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{best, cost_benefit, greedy::Greedy};
    use super::*;
    use crate::device::sim::SimRng;
    use crate::placement::Placement;

    const GRAINS: u32 = 100;

    /// Segments open, lose grains and go as in a volume, with many alike.
    fn change(rng: &mut SimRng, all: &mut [Option<Candidate>], now: u64) -> SegmentId {
        let id = SegmentId(rng.below(all.len() as u64) as u32);
        let place = &mut all[id.0 as usize];
        match place {
            Some(known) if !rng.one_in(5) => {
                known.live = known.live.saturating_sub(rng.below(8) as u32);
            }
            Some(_) => *place = None,
            None => {
                *place = Some(Candidate {
                    id,
                    live: rng.below(u64::from(GRAINS) + 1) as u32,
                    grains: GRAINS,
                    opened_at: now / 4,
                    epoch: now,
                });
            }
        }
        id
    }

    /// What is found among the tops is what looking at every segment finds: every policy gets the victim it would
    /// choose, not a similar one.
    #[test]
    fn as_the_full_scan() {
        for seed in 0..20 {
            let mut rng = SimRng::new(seed);
            let count = 1 + rng.below(200) as usize;
            let mut all: Vec<Option<Candidate>> = vec![None; count];
            let mut filed = Candidates::new(count, GRAINS);
            let (mut whole, mut window) = (Greedy::all(0), Greedy::window(0));
            for now in 1..4000 {
                let id = change(&mut rng, &mut all, now);
                filed.file(id, all[id.0 as usize]);
                let scan = || all.iter().copied().flatten();
                let id = |found: Option<Candidate>| found.map(|c| c.id);

                let benefit = |c: &Candidate| cost_benefit(c, now);
                assert_eq!(best(filed.tops(), benefit), best(scan(), benefit));

                let emptiest = scan().min_by_key(|c| (c.live, c.opened_at, c.id));
                assert_eq!(id(filed.emptiest()), id(emptiest));
                assert_eq!(whole.victim(&filed), id(emptiest));

                let mut aged: Vec<Candidate> = scan().collect();
                aged.sort_by_key(|c| c.epoch);
                aged.truncate(aged.len().div_ceil(4));
                let in_window = aged.into_iter().filter(|c| c.live + 1 < c.grains);
                let in_window = in_window.min_by_key(|c| (c.live, c.opened_at, c.id));
                assert_eq!(window.victim(&filed), id(in_window.or(emptiest)));
                assert_eq!(filed.len(), scan().count());
            }
        }
    }
}
