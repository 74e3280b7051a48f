//! Streams by remaining lifetime, as learned from what happened to grains with a similar past.
//!
//! What is known of a grain is a *cell*: the average interval between its updates, and how the last interval compared
//! to it. From a sample of the space the policy learns how often grains of each cell are overwritten at each age, and
//! from that how long such a grain, having reached that age, will live on (the median). Grains with about the same
//! time to live share a stream, no matter whether a user or relocation writes them.
//!
//! The table makes nothing up: if the workload is uniform, all cells turn out alike and one stream is used; if the
//! hot set moves, cells of long averages and short last intervals turn out hot for a while, and old ones of short
//! averages turn out cold. So there is no weight, threshold or window to tune. Streams that would get too little to
//! pay for their open segment are merged with a neighbour.

mod model;
mod sample;

use super::{Candidates, Heat, HeatMeaning, Placement, StreamId, best, cost_benefit};
use crate::addr::{Lba, SegmentId};
use crate::geometry::Geometry;
use model::{Cell, Model, age_bucket};
use sample::Sample;

/// Remaining lifetimes, in powers of two.
pub(super) const CLASSES: usize = 13;
/// Ticks in the time it takes users to write the capacity once.
pub(super) const TICKS: u64 = 256;
/// The average follows each new interval by this share.
const WEIGHT: f32 = 0.15;
/// Time in a map entry wraps after so many ticks (32 capacities).
const WRAP: u64 = (1 << 13) - 1;
/// Grains older than this are kept at this age, so that they never look young again.
const AGE_MAX: u64 = 3 * WRAP / 4;
/// Age assumed of a grain of which nothing is known.
const AGE_UNKNOWN: u64 = TICKS;

/// The past of a grain as it fits into [`Heat`]: time of the last write, average interval, last interval compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Past {
    /// Tick of the last write modulo [`WRAP`], plus one; 0 when nothing is known.
    time: u64,
    /// Average interval in eighths of octaves from half a tick on, plus one; 0 before the second write.
    average: u32,
    /// See [`compare`].
    last: u32,
}

impl Past {
    fn of(heat: Heat) -> Self {
        let bits = heat.bits();
        Self {
            time: u64::from(bits & 0x1fff),
            average: bits >> 13 & 0x7f,
            last: bits >> 20,
        }
    }

    fn heat(self) -> Heat {
        Heat::new(self.time as u32 | self.average << 13 | self.last << 20)
    }

    fn age(self, tick: u64) -> u64 {
        if self.time == 0 {
            return AGE_UNKNOWN;
        }
        (tick % WRAP + WRAP - (self.time - 1)) % WRAP
    }

    fn cell(self) -> Cell {
        Cell::new(self.average, self.last)
    }

    /// The past after another write. `dither` in [0, 1) rounds the average without a bias.
    fn after_write(self, tick: u64, dither: f32) -> Self {
        let time = tick % WRAP + 1;
        if self.time == 0 {
            return Self {
                time,
                average: 0,
                last: 0,
            };
        }
        let interval = (self.age(tick) as f32).max(0.5);
        if self.average == 0 {
            return Self {
                time,
                average: encode(interval, dither),
                last: 1,
            };
        }
        let average = decode(self.average);
        Self {
            time,
            average: encode(average + WEIGHT * (interval - average), dither),
            last: compare(interval / average),
        }
    }
}

fn encode(ticks: f32, dither: f32) -> u32 {
    let eighths = 8.0 * (ticks * 2.0).log2() + dither;
    1 + eighths.clamp(0.0, 126.0) as u32
}

fn decode(code: u32) -> f32 {
    0.5 * ((code - 1) as f32 / 8.0).exp2()
}

/// How an interval compares to the average: far below, about equal, above, far above.
fn compare(ratio: f32) -> u32 {
    match ratio {
        r if r < 0.18 => 0,
        r if r < 2.0 => 1,
        r if r < 5.6 => 2,
        _ => 3,
    }
}

/// `lifetime`.
#[derive(Debug)]
pub(super) struct Lifetime {
    now: u64,
    tick_grains: u64,
    meaning: HeatMeaning,
    sample: Sample,
    model: Model,
    next_model: u64,
    dither: u32,
}

impl Lifetime {
    pub(super) fn new(geometry: &Geometry, now: u64) -> Self {
        let capacity = geometry.capacity_grains;
        let tick_grains = capacity.div_ceil(TICKS).max(1);
        // A tick of a volume of another size is another one.
        let meaning = HeatMeaning::of(format!("lifetime, ticks of {tick_grains}").as_bytes());
        Self {
            now,
            tick_grains,
            meaning,
            sample: Sample::new(capacity),
            model: Model::new(geometry.spare_segments()),
            next_model: 0,
            dither: 0x9e37_79b9,
        }
    }

    fn tick(&self) -> u64 {
        self.now / self.tick_grains
    }

    fn dither(&mut self) -> f32 {
        // xorshift32: plain, and good enough to round with.
        self.dither ^= self.dither << 13;
        self.dither ^= self.dither >> 17;
        self.dither ^= self.dither << 5;
        (self.dither >> 8) as f32 / (1 << 24) as f32
    }
}

impl Placement for Lifetime {
    fn streams(&self) -> usize {
        CLASSES
    }
    fn now(&self) -> u64 {
        self.now
    }
    fn meaning(&self) -> HeatMeaning {
        self.meaning
    }
    fn outlives_restart(&self, heat: Heat) -> bool {
        // Of grains that have been written once only the age is known, and what that means has to be learned anew.
        Past::of(heat).average != 0
    }

    fn write(&mut self, lba: Lba, heat: Heat) -> (StreamId, Heat) {
        self.now += 1;
        if self.now >= self.next_model {
            self.sample.sweep(self.now, &mut self.model);
            self.model.learn();
            let every = (self.tick_grains * model::EVERY_TICKS).max(1024);
            self.next_model = self.now + every;
        }
        let dither = self.dither();
        let past = Past::of(heat).after_write(self.tick(), dither);
        if self.sample.takes(lba) {
            self.sample
                .written(lba, self.now, past.cell(), &mut self.model);
        }
        (self.model.stream(past.cell(), 0), past.heat())
    }

    fn relocate(&mut self, _: Lba, heat: Heat) -> (StreamId, Heat) {
        let mut past = Past::of(heat);
        let age = past.age(self.tick()).min(AGE_MAX);
        past.time = (self.tick() % WRAP + WRAP - age) % WRAP + 1;
        let bucket = age_bucket(age as f32);
        (self.model.stream(past.cell(), bucket), past.heat())
    }

    fn forget(&mut self, lba: Lba) {
        self.sample.forget(lba);
    }

    fn victim(&mut self, candidates: &Candidates) -> Option<SegmentId> {
        let now = self.now;
        best(candidates.tops(), |c| cost_benefit(c, now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(capacity: u64) -> Lifetime {
        let device = capacity * 4096 / 3;
        let geometry = Geometry::derive(&[device], Some(64 << 12), 20, Some(capacity), Some(0));
        Lifetime::new(&geometry.expect("geometry"), 0)
    }

    /// Every past fits into the bits and comes back.
    #[test]
    fn pasts_fit() {
        for time in [0, 1, WRAP] {
            for average in [0, 1, 127] {
                for last in 0..4 {
                    let past = Past {
                        time,
                        average,
                        last,
                    };
                    assert_eq!(Past::of(past.heat()), past);
                }
            }
        }
    }

    /// The average of a steady interval settles there, through the wrap of the clock.
    #[test]
    fn averages() {
        let mut past = Past::of(Heat::UNKNOWN);
        for round in 0..2000_u64 {
            past = past.after_write(round * 40, (round % 8) as f32 / 8.0);
        }
        let average = decode(past.average);
        assert!((36.0..45.0).contains(&average), "{average}");
        assert_eq!(past.last, 1);
    }

    /// Hot and cold part ways, relocated cold grains join the cold, and equal heat means one stream.
    #[test]
    fn learns() {
        let spread = |hot_share: u64| {
            let n = 1 << 14;
            let mut policy = policy(n);
            let mut heats = vec![Heat::UNKNOWN; n as usize];
            let mut x = 1_u64;
            let mut used = [[0_u32; CLASSES]; 2];
            for round in 0..24 * n {
                x = x
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                let hot = (x >> 40) % 100 < hot_share;
                let lba = if hot {
                    (x >> 20) % (n / 10)
                } else {
                    (x >> 20) % n
                };
                let (stream, heat) = policy.write(Lba(lba), heats[lba as usize]);
                heats[lba as usize] = heat;
                if round > 16 * n {
                    used[usize::from(lba >= n / 10)][stream.index()] += 1;
                }
            }
            used
        };
        // A population near the border of two classes is in both; the pair that holds most, and its share.
        let top = |counts: [u32; CLASSES]| {
            let all: u32 = counts.iter().sum();
            let pair = |c: usize| counts[c] + counts[c + 1];
            let most = (0..CLASSES - 1).max_by_key(|&c| pair(c)).expect("classes");
            (most, f64::from(pair(most)) / f64::from(all))
        };
        let [hot, cold] = spread(90);
        assert!(top(hot).0 + 2 <= top(cold).0, "{hot:?} {cold:?}");
        assert!(top(hot).1 > 0.95, "{hot:?}");
        let [one, other] = spread(0);
        assert!(top(one).0.abs_diff(top(other).0) <= 1, "{one:?} {other:?}");
        assert!(top(other).1 > 0.95, "{other:?}");
    }
}
