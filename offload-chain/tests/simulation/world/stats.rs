//! What happened, so that a run of nothing is noticed.

use std::ops::AddAssign;

/// Counts over a run, or many. None of them stays at nothing over many.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    pub epochs: u64,
    pub joins: u64,
    pub fenced: u64,
    pub kills: u64,
    /// Kills of clients.
    pub clients_killed: u64,
    pub power_cuts: u64,
    pub wipes: u64,
    pub pauses: u64,
    /// Times that a member became slow.
    pub slow: u64,
    pub partitions: u64,
    /// Partitions of one direction.
    pub one_way: u64,
    /// Connections reset.
    pub resets: u64,
    /// Requests that did not get to the store.
    pub requests_lost: u64,
    /// Answers of the store that did not get to who asked.
    pub answers_lost: u64,
    /// Times that a member was told that its media have failed.
    pub media: u64,
    /// Runs in a star.
    pub stars: u64,
    /// Runs of a log that is not carried out.
    pub replicated: u64,
    /// Truncations of such logs.
    pub truncated: u64,
    pub completed: u64,
    pub unknown: u64,
}

impl Stats {
    /// All of them by name, so that none is forgotten.
    pub fn counts(&mut self) -> [(&'static str, &mut u64); 20] {
        macro_rules! named {
            ($($name:ident),*) => {{
                let Self { $($name),* } = self;
                [$((stringify!($name), $name)),*]
            }};
        }
        named!(
            epochs,
            joins,
            fenced,
            kills,
            clients_killed,
            power_cuts,
            wipes,
            pauses,
            slow,
            partitions,
            one_way,
            resets,
            requests_lost,
            answers_lost,
            media,
            stars,
            replicated,
            truncated,
            completed,
            unknown
        )
    }
}

impl AddAssign for Stats {
    fn add_assign(&mut self, mut other: Self) {
        for ((_, sum), (_, more)) in self.counts().into_iter().zip(other.counts()) {
            *sum += *more;
        }
    }
}
