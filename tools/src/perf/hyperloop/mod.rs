//! Groups whose members run by themselves, beside chains in which the application of each member takes part: the figures of
//! the HyperLoop paper.
//!
//! What stands for the NIC of a member is its endpoint's thread, at real-time priority where the system allows it, on both
//! sides of the comparison; what stands for the member's processor is a thread at ordinary priority, which a group does not
//! need. The client is at real-time priority, too, as if it were on a machine of its own. Endpoints and client have one processor of
//! this machine, applications the others ([`Placement`]; `offload-chain/docs/experiments.md` says what stands for what).

mod chain;
mod placement;
mod priority;
mod tenants;

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use offload_chain::group::{Durability, MemberMap, Outcome, Primitive, PrimitiveError};

use super::figures::{Latencies, latencies};

pub use chain::{Chain, Side, Used};
pub use placement::Placement;
pub use priority::Priority;
pub use tenants::{Tenants, spin};

/// Bytes of memory of each member.
const SIZE: u64 = 1 << 20;
/// Longest wait for an outcome.
const PATIENCE: Duration = Duration::from_secs(60);
/// Operations that a latency is said of, at least.
const OPERATIONS_MIN: u64 = 100;
/// For those a measurement may take so many times as long as it was to.
const PATIENT: u32 = 10;
/// Not measured at the beginning: this part of the time, until caches, connections and clocks are as they stay.
const WARM: u32 = 10;
/// Primitives under way when throughput is measured.
const DEPTH: usize = 16;

/// What is asked of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// gWRITE of so many bytes.
    Write(usize),
    /// gMEMCPY of so many bytes.
    Memcpy(usize),
    /// gCAS on all members, which succeeds.
    Cas,
}

impl Work {
    /// The `n`th one.
    fn primitive(self, n: u64, members: usize) -> Primitive {
        let durability = Durability::Visible;
        match self {
            Self::Write(len) => Primitive::Write {
                offset: n * len as u64 % (SIZE / 2 - len as u64),
                bytes: vec![n as u8; len],
                durability,
            },
            Self::Memcpy(len) => Primitive::Memcpy {
                source: n * len as u64 % (SIZE / 2 - len as u64),
                destination: SIZE / 2,
                length: len as u64,
                durability,
            },
            Self::Cas => Primitive::Cas {
                offset: SIZE - 8,
                old: n,
                new: n + 1,
                execute: MemberMap::first(members),
                durability,
            },
        }
    }

    fn check(self, n: u64, outcome: &Outcome) -> Result<()> {
        let is_right = match (self, outcome) {
            (Self::Cas, Outcome::Cas(had)) => had.iter().all(|&had| had == Some(n)),
            (Self::Write(_) | Self::Memcpy(_), Outcome::Done) => true,
            _ => false,
        };
        if !is_right {
            bail!("operation {n} of {self:?} was answered with {outcome:?}");
        }
        Ok(())
    }
}

/// One primitive after the other, for so long after those that warm up: how long each took.
pub fn latency(chain: &mut Chain, work: Work, time: Duration) -> Result<Latencies> {
    let mut histogram = latencies();
    let members = chain.members();
    let begun = Instant::now();
    let mut start = None;
    for n in 0.. {
        let posted = Instant::now();
        let flight = chain.client().post(work.primitive(n, members))?;
        let (of, outcome) = chain.wait(PATIENCE)?;
        if of != flight {
            bail!("{of:?} was answered before {flight:?}");
        }
        work.check(n, &outcome)?;
        if posted.duration_since(begun) < time / WARM {
            continue;
        }
        let start = *start.get_or_insert(posted);
        histogram.saturating_record(posted.elapsed().as_nanos() as u64);
        let enough = histogram.len() >= OPERATIONS_MIN;
        if start.elapsed() >= time * if enough { 1 } else { PATIENT } {
            break;
        }
    }
    Ok(histogram)
}

/// What a group did for a while.
#[derive(Clone, Copy, Debug)]
pub struct Throughput {
    /// Primitives per second.
    pub per_second: f64,
    /// Processors that all endpoints took.
    pub endpoints: f64,
    /// Processors that all applications took.
    pub applications: f64,
}

/// Several primitives at a time, for so long after those that warm up.
pub fn throughput(chain: &mut Chain, work: Work, time: Duration) -> Result<Throughput> {
    let members = chain.members();
    let (mut posted, mut done) = (0u64, 0u64);
    let begun = Instant::now();
    let mut from: Option<(Instant, u64, Used)> = None;
    let mut ends = false;
    while !ends || done < posted {
        while !ends && posted - done < DEPTH as u64 {
            match chain.client().post(work.primitive(posted, members)) {
                Ok(_) => posted += 1,
                Err(PrimitiveError::Full) => break,
                Err(error) => return Err(error.into()),
            }
        }
        let (_, outcome) = chain.wait(PATIENCE)?;
        work.check(done, &outcome)?;
        done += 1;
        match from {
            None if begun.elapsed() >= time / WARM => {
                from = Some((Instant::now(), done, chain.used()?));
            }
            None => {}
            // Behind the first of them: there is something to count, however late it has become.
            Some((start, ..)) => ends |= start.elapsed() >= time,
        }
    }
    let (start, warm, before) = from.expect("it has ended behind that");
    let seconds = start.elapsed().as_secs_f64();
    let after = chain.used()?;
    Ok(Throughput {
        per_second: (done - warm) as f64 / seconds,
        endpoints: (after.endpoints - before.endpoints).as_secs_f64() / seconds,
        applications: (after.applications - before.applications).as_secs_f64() / seconds,
    })
}
