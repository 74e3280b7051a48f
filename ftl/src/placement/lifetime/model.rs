//! The learned table: hazard by cell and age, and from it the stream.
//!
//! ```text
//!   cell x age bucket:  grains overwritten at this age (events)  /  time grains have spent at this age (exposure)
//!                       = hazard ──► median of the remaining life ──► class (power of two) ──► stream (merged)
//! ```
//!
//! Cells with few events lean on the younger bucket of the same average, and on the average alone.

use super::{CLASSES, StreamId, TICKS};

/// Octaves of the average, and one for grains without.
const AVERAGES: usize = 17;
const NO_AVERAGE: usize = AVERAGES - 1;
const LASTS: usize = 4;
/// Octaves of age; the last is open.
pub(super) const AGES: usize = 18;
/// The table is made anew so often.
pub(super) const EVERY_TICKS: u64 = TICKS / 8;
/// What was learned weighs half after two capacities: 2^(-1/16) for an eighth of one.
const DECAY: f32 = 0.957_603;
/// The prior counts as many events.
const PRIOR_AVERAGE: f32 = 4.0;
const PRIOR_CELL: f32 = 2.0;
/// Upper bound of the first class, in capacities.
const FIRST_CLASS: f32 = 0.011;
/// A stream with less than this share of all grains, divided by the number of spare segments, is merged with a
/// neighbour: its open segment would cost more than it brings.
const SHARE_MIN_BY_SPARE: f32 = 4.0;

/// What is known of a grain apart from its age.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell(u8);

impl Cell {
    pub(super) fn new(average: u32, last: u32) -> Self {
        let octave = match average {
            0 => NO_AVERAGE,
            code => ((code as usize - 1) / 8).min(NO_AVERAGE - 1),
        };
        Self((octave * LASTS + last as usize) as u8)
    }

    fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Octave of an age in ticks: below one tick, below two, below four, ...
pub(super) fn age_bucket(ticks: f32) -> usize {
    if ticks < 1.0 {
        return 0;
    }
    (ticks.log2() as usize + 1).min(AGES - 1)
}

fn bucket_start(bucket: usize) -> f32 {
    match bucket {
        0 => 0.0,
        b => (1_u64 << (b - 1)) as f32,
    }
}

fn bucket_end(bucket: usize) -> f32 {
    if bucket == AGES - 1 {
        return f32::INFINITY;
    }
    (1_u64 << bucket) as f32
}

type Ages = [f32; AGES];

/// The model. Times are in ticks.
#[derive(Debug)]
pub(super) struct Model {
    events: Vec<Ages>,
    exposure: Vec<Ages>,
    classes: Vec<[u8; AGES]>,
    /// Grains put into each class lately.
    traffic: [f32; CLASSES],
    /// Class to stream.
    merged: [u8; CLASSES],
    share_min: f32,
}

impl Model {
    pub(super) fn new(spare_segments: u64) -> Self {
        let cells = AVERAGES * LASTS;
        let spare = spare_segments.max(1) as f32;
        let mut model = Self {
            events: vec![[0.0; AGES]; cells],
            exposure: vec![[0.0; AGES]; cells],
            classes: vec![[0; AGES]; cells],
            traffic: [0.0; CLASSES],
            merged: std::array::from_fn(|class| class as u8),
            share_min: SHARE_MIN_BY_SPARE / spare,
        };
        model.learn();
        model
    }

    /// The stream of a grain about to be appended.
    pub(super) fn stream(&mut self, cell: Cell, bucket: usize) -> StreamId {
        let class = usize::from(self.classes[cell.index()][bucket]);
        self.traffic[class] += 1.0;
        StreamId(self.merged[class])
    }

    /// A grain of `cell` has been at ages `from` to `to`, and was overwritten then or not.
    pub(super) fn observe(&mut self, cell: Cell, from: f32, to: f32, overwritten: bool) {
        let mut at = from;
        let mut bucket = age_bucket(from);
        let exposure = &mut self.exposure[cell.index()];
        while at < to {
            let end = bucket_end(bucket).min(to);
            exposure[bucket] += end - at;
            at = end;
            bucket = (bucket + 1).min(AGES - 1);
        }
        if overwritten {
            self.events[cell.index()][age_bucket(to)] += 1.0;
        }
    }

    /// Makes the table anew, and lets the past fade.
    pub(super) fn learn(&mut self) {
        for octave in 0..AVERAGES {
            let cells = octave * LASTS..(octave + 1) * LASTS;
            let mut base: Ages = [0.0; AGES];
            // Before anything is known the average is believed, and of the rest nothing is expected soon.
            let mut prior = match octave {
                NO_AVERAGE => 0.5 / TICKS as f32,
                _ => 1.0 / (octave as f32 - 0.5).exp2(),
            };
            for (bucket, hazard) in base.iter_mut().enumerate() {
                let sum = |table: &[Ages]| cells.clone().map(|c| table[c][bucket]).sum::<f32>();
                let (events, exposure) = (sum(&self.events), sum(&self.exposure));
                *hazard = (events + PRIOR_AVERAGE) / (exposure + PRIOR_AVERAGE / prior);
                prior = *hazard;
            }
            for cell in cells {
                let hazards: Ages = std::array::from_fn(|bucket| {
                    let (events, exposure) =
                        (self.events[cell][bucket], self.exposure[cell][bucket]);
                    (events + PRIOR_CELL) / (exposure + PRIOR_CELL / base[bucket])
                });
                for bucket in 0..AGES {
                    let class = class_of(remaining_life(&hazards, bucket));
                    self.classes[cell][bucket] = class as u8;
                }
            }
        }
        self.merge();
        for table in [&mut self.events, &mut self.exposure] {
            table.iter_mut().flatten().for_each(|value| *value *= DECAY);
        }
        self.traffic.iter_mut().for_each(|value| *value *= DECAY);
    }

    /// Merges classes with too little traffic, smallest first, with the smaller of their neighbours.
    fn merge(&mut self) {
        let all: f32 = self.traffic.iter().sum();
        let mut groups: Vec<(usize, f32)> = self.traffic.iter().copied().enumerate().collect();
        while all >= 1.0 && groups.len() > 1 {
            let small = groups.iter().enumerate();
            let small = small.min_by(|a, b| a.1.1.total_cmp(&b.1.1));
            let (at, &(_, traffic)) = small.expect("not empty");
            if traffic >= self.share_min * all {
                break;
            }
            let left = match at {
                0 => 0,
                _ if at + 1 == groups.len() => at - 1,
                _ if groups[at - 1].1 > groups[at + 1].1 => at - 1,
                _ => at,
            };
            let (_, right) = groups.remove(left + 1);
            groups[left].1 += right;
        }
        let mut group = 0;
        for class in 0..CLASSES {
            if groups.get(group + 1).is_some_and(|g| g.0 <= class) {
                group += 1;
            }
            self.merged[class] = groups[group].0 as u8;
        }
    }
}

/// Median time until a grain of age `bucket` is overwritten, scaled to a mean.
fn remaining_life(hazards: &Ages, bucket: usize) -> f32 {
    let start = bucket_start(bucket) * std::f32::consts::SQRT_2;
    let (mut at, mut sum) = (start, 0.0);
    for (bucket, &hazard) in hazards.iter().enumerate().skip(bucket) {
        let more = (bucket_end(bucket) - at) * hazard;
        if sum + more >= std::f32::consts::LN_2 {
            at += (std::f32::consts::LN_2 - sum) / hazard;
            break;
        }
        sum += more;
        at = bucket_end(bucket);
    }
    (at - start) / std::f32::consts::LN_2
}

fn class_of(ticks: f32) -> usize {
    let octave = (ticks / (FIRST_CLASS * TICKS as f32)).log2();
    (octave.max(-1.0) + 1.0).min((CLASSES - 1) as f32) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A constant hazard gives its reciprocal at every age; a falling one gives more to the old.
    #[test]
    fn remaining_lives() {
        let constant = [0.01; AGES];
        for bucket in 0..AGES {
            let life = remaining_life(&constant, bucket);
            assert!((life - 100.0).abs() < 1.0, "{life} at {bucket}");
        }
        let falling: Ages = std::array::from_fn(|b| 1.0 / (1 << b) as f32);
        assert!(remaining_life(&falling, 9) > 50.0 * remaining_life(&falling, 0));
    }

    /// What is observed outweighs what the average alone would say.
    #[test]
    fn observation_wins() {
        let mut model = Model::new(100);
        let cell = Cell::new(1 + 8 * 4, 1);
        let before = model.classes[cell.index()][0];
        for _ in 0..400 {
            model.observe(cell, 0.0, 2000.0, true);
        }
        model.learn();
        assert!(model.classes[cell.index()][0] >= before + 4);
    }

    /// Classes without traffic have no stream of their own; every class has the stream of its group.
    #[test]
    fn merging() {
        let mut model = Model::new(100);
        model.traffic = [0.0; CLASSES];
        model.traffic[3] = 100.0;
        model.traffic[8] = 900.0;
        model.traffic[9] = 5.0;
        model.merge();
        assert_ne!(model.merged[3], model.merged[8]);
        assert_eq!(model.merged[8], model.merged[9]);
        let mut streams = model.merged.to_vec();
        streams.dedup();
        assert_eq!(streams.len(), 2);
    }
}
