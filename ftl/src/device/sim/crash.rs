//! What a power cut can leave behind.
//!
//! A [`CrashPoint`] is the state of a simulated device at one moment: the content that is durable for certain, and
//! the writes and discards after it. A [`CrashChoice`] decides the fate of each of these; choice and point together
//! give one image. Fates are applied in the order of submission, sector by sector, so with two writes of one sector
//! any of old, first and second can be found there.

use std::sync::Arc;

use super::rng::SimRng;
use super::{SECTOR_BYTES, SimImage};

/// Bytes of a change that is not durable yet.
#[derive(Clone, Debug)]
pub(super) enum Bytes {
    Data(Arc<[u8]>),
    /// A discard, this many bytes long: what was discarded reads as zeros.
    Zeros(usize),
}

/// A write or discard that no successful flush covers.
#[derive(Clone, Debug)]
pub(super) struct Volatile {
    /// Order of submission.
    pub(super) no: u64,
    pub(super) offset: u64,
    pub(super) bytes: Bytes,
    /// Sectors that no newer durable write has replaced.
    pub(super) live: Vec<bool>,
    pub(super) stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Being written: a sector may also be left with garbage.
    InFlight,
    /// Reported as failed: likewise, for ever.
    Failed,
    /// Reported as done: the next successful flush makes it durable.
    Completed,
    /// Reported as done, but a flush has failed since: no later flush will make it durable.
    Abandoned,
}

impl Volatile {
    pub(super) fn sectors(&self) -> usize {
        self.live.len()
    }

    fn may_be_garbage(&self) -> bool {
        matches!(self.stage, Stage::InFlight | Stage::Failed)
    }

    fn sector(&self, n: usize) -> &[u8] {
        static ZEROS: [u8; SECTOR_BYTES] = [0; SECTOR_BYTES];
        match &self.bytes {
            Bytes::Data(data) => &data[n * SECTOR_BYTES..(n + 1) * SECTOR_BYTES],
            Bytes::Zeros(_) => &ZEROS,
        }
    }

    /// Puts the change into `image` as `fate` says, live sectors only.
    pub(super) fn apply(&self, fate: Fate, image: &mut SimImage) {
        let mut rng = match fate {
            Fate::Mixed { seed } | Fate::Cut { seed, .. } => SimRng::new(seed),
            Fate::Lost | Fate::Kept => SimRng::new(0),
        };
        for n in 0..self.sectors() {
            let result = match fate {
                Fate::Lost => Sector::Old,
                Fate::Kept => Sector::New,
                Fate::Cut { sectors, .. } if n < sectors as usize => Sector::New,
                Fate::Cut { sectors, .. } if n > sectors as usize => Sector::Old,
                Fate::Cut { .. } => Sector::Garbage,
                Fate::Mixed { .. } => match rng.below(5) {
                    0 | 1 => Sector::Old,
                    2 | 3 => Sector::New,
                    _ => Sector::Garbage,
                },
            };
            let start = self.offset as usize + n * SECTOR_BYTES;
            match result {
                _ if !self.live[n] => {}
                Sector::New => image.sector_mut(start).copy_from_slice(self.sector(n)),
                Sector::Garbage if self.may_be_garbage() => rng.fill(image.sector_mut(start)),
                Sector::Old | Sector::Garbage => {}
            }
        }
    }
}

enum Sector {
    Old,
    New,
    Garbage,
}

/// What became of one change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    /// Nothing of it is there.
    Lost,
    /// All of it is there.
    Kept,
    /// The first `sectors` sectors are there; the next one is garbage if it was being written.
    Cut {
        /// Whole sectors there.
        sectors: u32,
        /// Of the garbage.
        seed: u64,
    },
    /// Each sector is old, new, or (if it was being written) garbage, by chance.
    Mixed {
        /// Of the choice and the garbage.
        seed: u64,
    },
}

/// The fate of every change of a [`CrashPoint`], in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CrashChoice(pub Vec<Fate>);

/// How many of the possible images to look at.
#[derive(Clone, Copy, Debug)]
pub struct CrashPlan {
    /// Up to this many changes, every subset of them is kept.
    pub subsets_of: usize,
    /// With more changes: prefixes, one-missing, one-only, and this many choices by chance.
    pub random: usize,
    /// Torn variants of each change.
    pub tears: usize,
    /// If there are more choices than this, a random selection of that size is taken.
    pub limit: usize,
}

impl CrashPlan {
    /// The full enumeration of RELIABILITY M2.
    pub const FULL: Self = Self {
        subsets_of: 10,
        random: 1024,
        tears: 6,
        limit: usize::MAX,
    };

    /// At most `limit` choices, drawn from the full enumeration.
    pub const fn sampled(limit: usize) -> Self {
        Self {
            limit,
            ..Self::FULL
        }
    }
}

/// The state of a device at one moment, as a power cut finds it.
#[derive(Clone, Debug)]
pub struct CrashPoint {
    pub(super) durable: SimImage,
    pub(super) changes: Vec<Volatile>,
}

impl CrashPoint {
    /// Changes that may be lost.
    pub fn changes(&self) -> usize {
        self.changes.len()
    }

    /// The image that `choice` leads to.
    ///
    /// # Panics
    /// If the choice belongs to a point with another number of changes.
    pub fn image(&self, choice: &CrashChoice) -> SimImage {
        assert_eq!(choice.0.len(), self.changes.len(), "choice of this point");
        let mut image = self.durable.clone();
        for (change, fate) in self.changes.iter().zip(&choice.0) {
            change.apply(*fate, &mut image);
        }
        image
    }

    /// The choices that [`CrashPoint::images`] makes, in its order.
    pub fn choices_of(&self, plan: CrashPlan, seed: u64) -> Vec<CrashChoice> {
        self.choices(plan, &mut SimRng::new(seed))
    }

    /// Enumerates images. The same seed gives the same images in the same order.
    pub fn images(&self, plan: CrashPlan, seed: u64) -> CrashImages<'_> {
        let mut choices = self.choices_of(plan, seed);
        // From the back: `next` pops.
        choices.reverse();
        CrashImages {
            point: self,
            choices,
        }
    }

    fn choices(&self, plan: CrashPlan, rng: &mut SimRng) -> Vec<CrashChoice> {
        let k = self.changes.len();
        let mut choices = vec![CrashChoice(vec![Fate::Kept; k])];
        if k == 0 {
            return choices;
        }
        choices.push(CrashChoice(vec![Fate::Lost; k]));
        if k <= plan.subsets_of {
            let all = (1_u64 << k) - 1;
            for set in 1..all {
                choices.push(choose(k, |n| kept_if(set >> n & 1 == 1)));
            }
        } else {
            for length in 1..k {
                choices.push(choose(k, |n| kept_if(n < length)));
            }
            for odd in 0..k {
                choices.push(choose(k, |n| kept_if(n != odd)));
                choices.push(choose(k, |n| kept_if(n == odd)));
            }
            for _ in 0..plan.random {
                choices.push(choose(k, |n| self.random_fate(n, rng)));
            }
        }
        for torn in 0..k {
            for variant in 0..plan.tears {
                choices.push(self.tear(torn, variant, rng));
            }
        }
        select(choices, plan.limit, rng)
    }

    /// One change torn: in the middle of the log, at its end, or among others that fare as they like.
    fn tear(&self, torn: usize, variant: usize, rng: &mut SimRng) -> CrashChoice {
        let sectors = self.changes[torn].sectors() as u64;
        let seed = rng.bits();
        let fate = if variant.is_multiple_of(2) {
            let sectors = rng.below(sectors) as u32;
            Fate::Cut { sectors, seed }
        } else {
            Fate::Mixed { seed }
        };
        let others = variant / 2 % 3;
        choose(self.changes.len(), |n| match others {
            _ if n == torn => fate,
            0 => kept_if(n < torn),
            1 => Fate::Kept,
            _ => self.random_fate(n, rng),
        })
    }

    fn random_fate(&self, n: usize, rng: &mut SimRng) -> Fate {
        let seed = rng.bits();
        match rng.below(6) {
            0 | 1 => Fate::Lost,
            2 | 3 => Fate::Kept,
            4 => Fate::Mixed { seed },
            _ => Fate::Cut {
                sectors: rng.below(self.changes[n].sectors() as u64) as u32,
                seed,
            },
        }
    }
}

fn kept_if(kept: bool) -> Fate {
    if kept { Fate::Kept } else { Fate::Lost }
}

fn choose(k: usize, fate: impl FnMut(usize) -> Fate) -> CrashChoice {
    CrashChoice((0..k).map(fate).collect())
}

/// A random selection that always has the two extremes, which come first.
fn select(mut choices: Vec<CrashChoice>, limit: usize, rng: &mut SimRng) -> Vec<CrashChoice> {
    let limit = limit.max(1);
    if choices.len() > limit {
        for place in 2..limit {
            let other = place + rng.below((choices.len() - place) as u64) as usize;
            choices.swap(place, other);
        }
        choices.truncate(limit);
    }
    choices
}

/// One image that a power cut can leave behind.
#[derive(Clone, Debug)]
pub struct CrashImage {
    /// How it came to be.
    pub choice: CrashChoice,
    /// The content of the device.
    pub content: SimImage,
}

/// Iterator of [`CrashPoint::images`].
#[derive(Debug)]
pub struct CrashImages<'a> {
    point: &'a CrashPoint,
    choices: Vec<CrashChoice>,
}

impl Iterator for CrashImages<'_> {
    type Item = CrashImage;

    fn next(&mut self) -> Option<CrashImage> {
        let choice = self.choices.pop()?;
        let content = self.point.image(&choice);
        Some(CrashImage { choice, content })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.choices.len(), Some(self.choices.len()))
    }
}

impl ExactSizeIterator for CrashImages<'_> {}
