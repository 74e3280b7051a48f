//! The tests.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use super::file::{PLACE_BYTES, SharedFile};
use super::party::{Party, Way};
use super::step::Step;

/// Two words that never share a page.
const X: u64 = 0;
const Y: u64 = 2 * 4096;
/// Parties of each way that share a page.
const SHARERS: usize = 2;
/// All four quarters of such a value are alike.
const QUARTERS: u64 = 0x0001_0001_0001_0001;

/// Whoever stores goes on, after its rounds, until the other has looked so often...
const LOOKS_MIN: u64 = 20;
/// ... or for so long: a store that never arrives must not keep the test for ever.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a test found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    /// Looks that could have shown it.
    pub looks: u64,
    /// Looks that did.
    pub seen: u64,
}

impl Outcome {
    fn look(&mut self, seen: bool) {
        self.looks += 1;
        self.seen += u64::from(seen);
    }
}

/// One stores as long as it is worth while, and the other looks meanwhile. On a busy machine all rounds may pass between
/// two looks, and a test that has not looked shows nothing.
#[derive(Debug)]
struct Show {
    rounds: u64,
    start: Instant,
    looks: AtomicU64,
    over: AtomicBool,
}

impl Show {
    fn new(rounds: u64) -> Self {
        Self {
            rounds,
            start: Instant::now(),
            looks: AtomicU64::new(0),
            over: AtomicBool::new(false),
        }
    }

    /// Runs the rounds, numbered from 1.
    fn play(&self, step: &Step, mut round: impl FnMut(u64) -> Result<()>) -> Result<()> {
        let mut number = 0;
        while (number < self.rounds || !self.was_looked_at()) && !step.is_off() {
            number += 1;
            round(number)?;
        }
        self.over.store(true, Ordering::SeqCst);
        Ok(())
    }

    fn was_looked_at(&self) -> bool {
        self.looks.load(Ordering::SeqCst) >= LOOKS_MIN || self.start.elapsed() > PATIENCE
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// Counts a look.
    fn look(&self, outcome: &mut Outcome, seen: bool) {
        outcome.look(seen);
        self.looks.store(outcome.looks, Ordering::SeqCst);
    }
}

/// A litmus test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// One stores, publishes, and says so by other means; the other does not see it.
    Stale,
    /// One stores, publishes, and says so by other means; the other, which opens the file anew each time, does not see it.
    FirstFault,
    /// One stores a message, publishes, stores a flag; the other sees the flag and not the message.
    MessagePassing,
    /// Both store, publish, and load what the other stored; neither sees it.
    StoreBuffering,
    /// Several store to words of their own in one page; somebody's store gets lost.
    FalseSharing,
    /// One stores a word; the other sees half of it.
    TornStore,
}

impl Shape {
    /// All tests.
    pub(super) const ALL: [Self; 6] = [
        Self::Stale,
        Self::FirstFault,
        Self::MessagePassing,
        Self::StoreBuffering,
        Self::FalseSharing,
        Self::TornStore,
    ];

    /// Its name.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Stale => "stale",
            Self::FirstFault => "first fault",
            Self::MessagePassing => "message passing",
            Self::StoreBuffering => "store buffering",
            Self::FalseSharing => "false sharing",
            Self::TornStore => "torn store",
        }
    }

    /// What must not be seen.
    pub(super) const fn outcome(self) -> &'static str {
        match self {
            Self::Stale | Self::FirstFault => "old bytes after the store was acknowledged",
            Self::MessagePassing => "the flag without the message",
            Self::StoreBuffering => "neither store",
            Self::FalseSharing => "a store lost",
            Self::TornStore => "half of eight bytes",
        }
    }

    /// Whether the parties do different things.
    pub(super) const fn is_directed(self) -> bool {
        !matches!(self, Self::StoreBuffering | Self::FalseSharing)
    }

    /// Runs it at the `place`th place of the file.
    pub(super) fn run(
        self,
        file: &SharedFile,
        (first, second): (Way, Way),
        place: u64,
        rounds: u64,
    ) -> Result<Outcome> {
        let at = place * PLACE_BYTES;
        match self {
            Self::Stale => stale(file, first, second, at, rounds),
            Self::FirstFault => first_fault(file, first, second, at, rounds),
            Self::MessagePassing => message_passing(file, first, second, at, rounds),
            Self::StoreBuffering => store_buffering(file, first, second, at, rounds),
            Self::FalseSharing => false_sharing(file, first, second, at, rounds),
            Self::TornStore => torn_store(file, first, second, at, rounds),
        }
    }
}

/// Runs two threads, each with a party of its own, and answers what each returns.
fn two<A: Send, B: Send>(
    file: &SharedFile,
    first: (Way, impl FnOnce(&mut dyn Party, &Step) -> Result<A> + Send),
    second: (Way, impl FnOnce(&mut dyn Party, &Step) -> Result<B> + Send),
) -> Result<(A, B)> {
    let step = &Step::new(2, &file.interrupt);
    thread::scope(|scope| {
        let one = scope.spawn(move || {
            step.run(|| {
                let mut party = first.0.open(file)?;
                step.meet()?;
                first.1(party.as_mut(), step)
            })
        });
        let other = step.run(|| {
            let mut party = second.0.open(file)?;
            step.meet()?;
            second.1(party.as_mut(), step)
        });
        let one = one.join().map_err(|_| anyhow!("a party panicked"))?;
        Ok((one?, other?))
    })
}

fn stale(file: &SharedFile, from: Way, to: Way, at: u64, rounds: u64) -> Result<Outcome> {
    let store = |party: &mut dyn Party, step: &Step| {
        for round in 1..=rounds {
            party.store(at + X, round)?;
            party.publish()?;
            step.meet()?;
            step.meet()?;
        }
        Ok(())
    };
    let look = |party: &mut dyn Party, step: &Step| {
        let mut outcome = Outcome::default();
        for round in 1..=rounds {
            step.meet()?;
            outcome.look(party.load(at + X)? != round);
            step.meet()?;
        }
        Ok(outcome)
    };
    Ok(two(file, (from, store), (to, look))?.1)
}

fn first_fault(file: &SharedFile, from: Way, to: Way, at: u64, rounds: u64) -> Result<Outcome> {
    let (acknowledged, show) = (&AtomicU64::new(0), &Show::new(rounds));
    let store = move |party: &mut dyn Party, step: &Step| {
        show.play(step, |round| {
            party.store(at, round)?;
            party.publish()?;
            acknowledged.store(round, Ordering::SeqCst);
            Ok(())
        })
    };
    let look = move |_: &mut dyn Party, step: &Step| {
        let mut outcome = Outcome::default();
        while !show.is_over() && !step.is_off() {
            let mut party = to.open(file)?;
            party.load(at)?;
            for _ in 0..3 {
                let round = acknowledged.load(Ordering::SeqCst);
                show.look(&mut outcome, party.load(at)? < round);
                party.rest();
            }
        }
        Ok(outcome)
    };
    // Whoever keeps the file mapped all the time would spoil it.
    Ok(two(file, (from, store), (Way::Calls, look))?.1)
}

fn message_passing(file: &SharedFile, from: Way, to: Way, at: u64, rounds: u64) -> Result<Outcome> {
    let show = &Show::new(rounds);
    let store = move |party: &mut dyn Party, step: &Step| {
        show.play(step, |round| {
            party.store(at + X, round)?;
            party.publish()?;
            party.store(at + Y, round)?;
            party.publish()?;
            party.rest();
            Ok(())
        })
    };
    let look = move |party: &mut dyn Party, step: &Step| {
        let (mut outcome, mut last) = (Outcome::default(), 0);
        while !step.is_off() {
            let over = show.is_over();
            let flag = party.load(at + Y)?;
            let message = party.load(at + X)?;
            // A flag that was seen before proves nothing new.
            if flag != last {
                last = flag;
                show.look(&mut outcome, message < flag);
            }
            if over {
                break;
            }
            party.rest();
        }
        Ok(outcome)
    };
    Ok(two(file, (from, store), (to, look))?.1)
}

fn store_buffering(
    file: &SharedFile,
    first: Way,
    second: Way,
    at: u64,
    rounds: u64,
) -> Result<Outcome> {
    let side = move |mine: u64, theirs: u64| {
        move |party: &mut dyn Party, step: &Step| {
            let mut seen = Vec::new();
            for round in 1..=rounds {
                step.meet()?;
                party.store(at + mine, round)?;
                party.publish()?;
                seen.push(party.load(at + theirs)? == round);
                step.meet()?;
            }
            Ok(seen)
        }
    };
    let (one, other) = two(file, (first, side(X, Y)), (second, side(Y, X)))?;
    let mut outcome = Outcome::default();
    for (one, other) in one.into_iter().zip(other) {
        outcome.look(!one && !other);
    }
    Ok(outcome)
}

fn false_sharing(
    file: &SharedFile,
    first: Way,
    second: Way,
    at: u64,
    rounds: u64,
) -> Result<Outcome> {
    let ways: Vec<Way> = [[first; SHARERS], [second; SHARERS]].concat();
    let step = &Step::new(ways.len(), &file.interrupt);
    let finished = &AtomicU64::new(0);
    thread::scope(|scope| {
        let threads: Vec<_> = (0u64..)
            .zip(&ways)
            .map(|(n, way)| {
                let share = move || share(file, *way, step, finished, at + n * 8, rounds);
                scope.spawn(move || step.run(share))
            })
            .collect();
        let mut outcome = Outcome::default();
        let mut last = Vec::new();
        for thread in threads {
            let (part, stored) = thread.join().map_err(|_| anyhow!("a party panicked"))??;
            outcome.looks += part.looks;
            outcome.seen += part.seen;
            last.push(stored);
        }
        // Everybody has published: whoever looks now must find the last stores, whichever way.
        for way in [first, second] {
            let mut party = way.open(file)?;
            for (n, &stored) in (0u64..).zip(&last) {
                outcome.look(party.load(at + n * 8)? != stored);
            }
        }
        Ok(outcome)
    })
}

/// One of those who share a page: its word must be what it stored last. Answers that, too.
fn share(
    file: &SharedFile,
    way: Way,
    step: &Step,
    finished: &AtomicU64,
    at: u64,
    rounds: u64,
) -> Result<(Outcome, u64)> {
    let mut party = way.open(file)?;
    let (mut outcome, mut last) = (Outcome::default(), 0);
    step.meet()?;
    // Whoever has done its rounds goes on until the others have: the fast must not leave the slow alone.
    while last < rounds || finished.load(Ordering::SeqCst) < 2 * SHARERS as u64 {
        outcome.look(party.load(at)? != last);
        last += 1;
        party.store(at, last)?;
        if last == rounds {
            finished.fetch_add(1, Ordering::SeqCst);
        }
        if step.is_off() {
            break;
        }
        party.rest();
    }
    party.publish()?;
    Ok((outcome, last))
}

fn torn_store(file: &SharedFile, from: Way, to: Way, at: u64, rounds: u64) -> Result<Outcome> {
    let show = &Show::new(rounds);
    let store = move |party: &mut dyn Party, step: &Step| {
        show.play(step, |round| {
            party.store(at, (round & 0xffff) * QUARTERS)?;
            party.publish()?;
            party.rest();
            Ok(())
        })
    };
    let look = move |party: &mut dyn Party, step: &Step| {
        let mut outcome = Outcome::default();
        while !show.is_over() && !step.is_off() {
            let value = party.load(at)?;
            show.look(&mut outcome, value != (value & 0xffff) * QUARTERS);
            party.rest();
        }
        Ok(outcome)
    };
    Ok(two(file, (from, store), (to, look))?.1)
}
