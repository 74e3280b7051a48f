//! Synthetic workloads: endless sequences of LBAs from a seed.
//!
//! Ranks (the hottest first) are mapped to LBAs by a random permutation, so that neighbours have nothing in common.

use std::fmt;

use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

/// A distribution of writes over the space.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Workload {
    /// Every grain alike.
    Uniform,
    /// The share of writes goes to a fraction of the grains, evenly in both parts.
    TwoPopulations {
        /// Of the writes.
        share: f64,
        /// Of the grains.
        fraction: f64,
    },
    /// Probability falls with the rank to the power of `theta`.
    Zipf {
        /// The exponent.
        theta: f64,
    },
    /// Zipf with the exponent for which the hottest fraction of the grains gets this share of the writes.
    ZipfShare {
        /// Of the writes.
        share: f64,
        /// Of the grains.
        fraction: f64,
    },
    /// Two populations of which the hot one moves on by its own size after `every` times the space written.
    Moving {
        /// Of the writes.
        share: f64,
        /// Of the grains.
        fraction: f64,
        /// In spaces.
        every: f64,
    },
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |x: f64| x * 100.0;
        match *self {
            Self::Uniform => write!(f, "uniform"),
            Self::TwoPopulations { share, fraction } => {
                write!(
                    f,
                    "two populations {}/{}",
                    percent(share),
                    percent(fraction)
                )
            }
            Self::Zipf { theta } => write!(f, "Zipf theta {theta}"),
            Self::ZipfShare { share, fraction } => {
                write!(f, "Zipf {}/{}", percent(share), percent(fraction))
            }
            Self::Moving {
                share,
                fraction,
                every,
            } => write!(
                f,
                "hot {} % take {} %, move every {every} N",
                percent(fraction),
                percent(share)
            ),
        }
    }
}

/// Writes of a workload.
#[derive(Clone, Debug)]
pub struct Generator {
    rng: SmallRng,
    /// Rank to LBA.
    permutation: Vec<u32>,
    draw: Draw,
    written: u64,
}

#[derive(Clone, Debug)]
enum Draw {
    Uniform,
    Two {
        share: f64,
        hot: u32,
        moves_every: u64,
    },
    Alias(Alias),
}

impl Generator {
    /// A generator over `grains` grains.
    pub fn new(workload: Workload, grains: u32, seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut permutation: Vec<u32> = (0..grains).collect();
        permutation.shuffle(&mut rng);
        let part = |fraction: f64| ((fraction * f64::from(grains)) as u32).clamp(1, grains - 1);
        let draw = match workload {
            Workload::Uniform => Draw::Uniform,
            Workload::TwoPopulations { share, fraction } => Draw::Two {
                share,
                hot: part(fraction),
                moves_every: u64::MAX,
            },
            Workload::Moving {
                share,
                fraction,
                every,
            } => Draw::Two {
                share,
                hot: part(fraction),
                moves_every: ((every * f64::from(grains)) as u64).max(1),
            },
            Workload::Zipf { theta } => Draw::Alias(Alias::zipf(grains, theta)),
            Workload::ZipfShare { share, fraction } => {
                let theta = theta_for(grains, share, part(fraction));
                Draw::Alias(Alias::zipf(grains, theta))
            }
        };
        Self {
            rng,
            permutation,
            draw,
            written: 0,
        }
    }

    /// The next LBA.
    pub fn next_lba(&mut self) -> u64 {
        let grains = self.permutation.len() as u32;
        let rank = match &self.draw {
            Draw::Uniform => self.rng.random_range(0..grains),
            Draw::Two {
                share,
                hot,
                moves_every,
            } => {
                let rank = if self.rng.random_bool(*share) {
                    self.rng.random_range(0..*hot)
                } else {
                    self.rng.random_range(*hot..grains)
                };
                let base = self.written / moves_every * u64::from(*hot);
                ((base + u64::from(rank)) % u64::from(grains)) as u32
            }
            Draw::Alias(alias) => alias.draw(&mut self.rng),
        };
        self.written += 1;
        u64::from(self.permutation[rank as usize])
    }
}

/// Walker's alias table: a draw costs two random numbers whatever the distribution.
#[derive(Clone, Debug)]
struct Alias {
    probability: Vec<f32>,
    alias: Vec<u32>,
}

impl Alias {
    fn zipf(grains: u32, theta: f64) -> Self {
        let mut weights: Vec<f64> = (1..=grains).map(|i| f64::from(i).powf(-theta)).collect();
        let mean = weights.iter().sum::<f64>() / f64::from(grains);
        weights.iter_mut().for_each(|w| *w /= mean);
        let mut table = Self {
            probability: vec![1.0; grains as usize],
            alias: (0..grains).collect(),
        };
        let (mut small, mut large): (Vec<u32>, Vec<u32>) =
            (0..grains).partition(|&i| weights[i as usize] < 1.0);
        while let (Some(&s), Some(&l)) = (small.last(), large.last()) {
            small.pop();
            table.probability[s as usize] = weights[s as usize] as f32;
            table.alias[s as usize] = l;
            weights[l as usize] -= 1.0 - weights[s as usize];
            if weights[l as usize] < 1.0 {
                large.pop();
                small.push(l);
            }
        }
        table
    }

    fn draw(&self, rng: &mut SmallRng) -> u32 {
        let at = rng.random_range(0..self.alias.len());
        if rng.random::<f32>() < self.probability[at] {
            at as u32
        } else {
            self.alias[at]
        }
    }
}

/// The exponent for which the first `hot` of `grains` ranks get `share`, by bisection.
fn theta_for(grains: u32, share: f64, hot: u32) -> f64 {
    let (mut low, mut high) = (0.0, 3.0);
    for _ in 0..40 {
        let theta = (low + high) / 2.0;
        let weight = |i: u32| f64::from(i).powf(-theta);
        let head: f64 = (1..=hot).map(weight).sum();
        let tail: f64 = (hot + 1..=grains).map(weight).sum();
        if head / (head + tail) < share {
            low = theta;
        } else {
            high = theta;
        }
    }
    (low + high) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share_of_hottest(workload: Workload, fraction: f64) -> f64 {
        let n = 4096;
        let mut generator = Generator::new(workload, n, 1);
        let mut counts = vec![0_u32; n as usize];
        for _ in 0..400_000 {
            counts[generator.next_lba() as usize] += 1;
        }
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let hot = (fraction * f64::from(n)) as usize;
        f64::from(counts[..hot].iter().sum::<u32>()) / 400_000.0
    }

    /// The hot part gets its share, the same seed gives the same writes, another seed others.
    #[test]
    fn shares() {
        let zipf = Workload::ZipfShare {
            share: 0.8,
            fraction: 0.2,
        };
        assert!((share_of_hottest(zipf, 0.2) - 0.8).abs() < 0.02);
        let two = Workload::TwoPopulations {
            share: 0.95,
            fraction: 0.2,
        };
        assert!((share_of_hottest(two, 0.2) - 0.95).abs() < 0.01);
        let first = |seed| {
            let mut generator = Generator::new(zipf, 4096, seed);
            [(); 8].map(|()| generator.next_lba())
        };
        assert_eq!(first(3), first(3));
        assert_ne!(first(3), first(4));
    }

    /// After a move the old hot set is written to no more than the rest.
    #[test]
    fn moves() {
        let moving = Workload::Moving {
            share: 1.0,
            fraction: 0.1,
            every: 1.0,
        };
        let mut generator = Generator::new(moving, 1000, 1);
        let before: std::collections::HashSet<u64> =
            (0..1000).map(|_| generator.next_lba()).collect();
        assert!((0..1000).all(|_| !before.contains(&generator.next_lba())));
    }
}
