//! Placement: which stream a grain is appended to, and which segment is collected next.
//!
//! Write amplification is decided here. Grains that die at the same time should share a segment, so that a victim is
//! nearly empty when it is collected. A policy sees every grain that is written or relocated, in order, and no
//! future; what it wants to remember about a grain it keeps in the 22 bits of [`Heat`] that the map entry has room
//! for. `docs/placement.md` explains each policy with a picture.
//!
//! # Invariants
//! - A policy decides about efficiency only: any answer it may give leaves the volume correct. When free segments run
//!   out the engine overrules it (one stream for all that is relocated, the emptiest segment as victim).
//! - Time is the number of grains users have written; policies read no clock.

mod candidates;
mod greedy;
mod heat;
mod lifetime;
mod three_stream;

pub(crate) use candidates::Candidates;
pub use heat::{Heat, HeatMeaning};

use crate::addr::{Lba, SegmentId};
use crate::geometry::Geometry;
use std::fmt;
use std::str::FromStr;

/// A class of writes that share an open segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StreamId(pub(crate) u8);

impl StreamId {
    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A closed segment, as a policy sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) id: SegmentId,
    /// Grains that relocation would have to write, at most all; and grains of a segment.
    pub(crate) live: u32,
    pub(crate) grains: u32,
    /// When it was opened, by [`Placement::now`].
    pub(crate) opened_at: u64,
    /// Orders segments by when they were opened.
    pub(crate) epoch: u64,
}

/// A placement policy.
pub(crate) trait Placement: fmt::Debug + Send {
    /// Number of streams.
    fn streams(&self) -> usize;
    /// User grains seen so far, of sessions before this one as well.
    fn now(&self) -> u64;
    /// What it keeps in the bits of a heat.
    fn meaning(&self) -> HeatMeaning {
        HeatMeaning::NONE
    }
    /// Whether this says enough to be worth its room in a checkpoint, when all else that was learned has been forgotten.
    fn outlives_restart(&self, _heat: Heat) -> bool {
        self.meaning() != HeatMeaning::NONE
    }
    /// A user grain is about to be appended: where to, and what to remember of it.
    fn write(&mut self, lba: Lba, heat: Heat) -> (StreamId, Heat);
    /// A live grain is about to be relocated.
    fn relocate(&mut self, lba: Lba, heat: Heat) -> (StreamId, Heat);
    /// The stream a grain would go to if it were written or relocated now.
    fn peek(&mut self, lba: Lba, heat: Heat) -> StreamId {
        self.relocate(lba, heat).0
    }
    /// A grain was trimmed.
    fn forget(&mut self, _lba: Lba) {}
    /// The segment to collect next.
    fn victim(&mut self, candidates: &Candidates) -> Option<SegmentId>;
}

/// Policies by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GcPolicy {
    /// One stream, emptiest segment.
    Greedy,
    /// One stream, emptiest of the oldest quarter: a circular buffer that looks a little ahead.
    GreedyWindow,
    /// Hot writes, cold writes, relocated grains; emptiness plus age.
    ThreeStream,
    /// Streams by learned remaining lifetime, cost-benefit.
    #[default]
    Lifetime,
}

impl GcPolicy {
    /// All of them, in the order of the documentation.
    pub const ALL: [Self; 4] = [
        Self::Greedy,
        Self::GreedyWindow,
        Self::ThreeStream,
        Self::Lifetime,
    ];

    /// The name on command lines.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Greedy => "greedy",
            Self::GreedyWindow => "greedy-window",
            Self::ThreeStream => "three-stream",
            Self::Lifetime => "lifetime",
        }
    }

    /// The policy for a volume on which users have written `now` grains so far. Streams cost open segments, so how many
    /// there are depends on the spare ones.
    pub(crate) fn build(self, geometry: &Geometry, now: u64) -> Box<dyn Placement> {
        let spare = geometry.spare_segments();
        let wide = spare >= SPARE_FOR_STREAMS;
        match self {
            Self::ThreeStream if wide => Box::new(three_stream::ThreeStream::new(now)),
            Self::Lifetime if wide => Box::new(lifetime::Lifetime::new(geometry, now)),
            Self::GreedyWindow => Box::new(greedy::Greedy::window(now)),
            // Nothing to win with more streams when there are no segments for them.
            Self::Greedy | Self::ThreeStream | Self::Lifetime => Box::new(greedy::Greedy::all(now)),
        }
    }
}

/// Fewest spare segments with which more than one stream pays.
const SPARE_FOR_STREAMS: u64 = 12;

impl fmt::Display for GcPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for GcPolicy {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|p| p.name() == name);
        known.ok_or_else(|| {
            let all = Self::ALL.map(Self::name).join(", ");
            format!("no policy is called {name:?}; there are {all}")
        })
    }
}

/// The candidate with the highest score; of several the one opened first, then the one with the lowest number.
fn best(
    candidates: impl Iterator<Item = Candidate>,
    score: impl Fn(&Candidate) -> f32,
) -> Option<SegmentId> {
    let mut best: Option<(f32, Candidate)> = None;
    for candidate in candidates {
        let score = score(&candidate);
        let rank = |c: &Candidate| (c.opened_at, c.id);
        let wins =
            |&(b, ref c): &(f32, Candidate)| score > b || score == b && rank(&candidate) < rank(c);
        if best.as_ref().is_none_or(wins) {
            best = Some((score, candidate));
        }
    }
    best.map(|(_, c)| c.id)
}

/// Cost-benefit of Sprite LFS: what is gained, over what it costs, weighted with how long it will last.
fn cost_benefit(c: &Candidate, now: u64) -> f32 {
    if c.live == 0 {
        return f32::MAX;
    }
    let age = (now + 1).saturating_sub(c.opened_at) as f32;
    c.grains.saturating_sub(c.live) as f32 / c.live as f32 * age
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names and policies go both ways; a wrong name says which there are.
    #[test]
    fn names() {
        for policy in GcPolicy::ALL {
            assert_eq!(policy.name().parse(), Ok(policy));
        }
        let error = "lru".parse::<GcPolicy>().expect_err("no such policy");
        assert!(error.contains("three-stream"));
    }
}
