//! What it costs to register a file, and what it costs to pin memory instead.
//!
//! Registering is timed by the target, from the moment at which it knows the file to the moment at which its STags are known
//! to everybody; resolving, opening and closing are timed by the client, over the wire. They are different things: a program
//! resolves a path once, and a card pins memory without any path.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use memmap2::MmapOptions;
use serde::Serialize;

use super::figures::{Latencies, latencies};
use crate::client::Session;
use crate::control::{FLAG_WRITE, Op, Request};

/// A duration measured many times, in microseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Micros {
    /// Half of them took as long at most.
    pub p50_us: f64,
    /// All but one of a hundred did.
    pub p99_us: f64,
}

impl Micros {
    fn of(latencies: &Latencies) -> Self {
        let us = |quantile| latencies.value_at_quantile(quantile) as f64 / 1e3;
        Self {
            p50_us: us(0.5),
            p99_us: us(0.99),
        }
    }
}

/// The costs of one file.
#[derive(Clone, Debug, Serialize)]
pub struct Costs {
    /// Bytes registered.
    pub bytes: u64,
    /// Registering, in the target.
    pub register: Micros,
    /// Finding the file and its attributes by its path, over the wire.
    pub resolve: Micros,
    /// Finding, opening and registering, over the wire.
    pub open: Micros,
    /// Ending the region, over the wire.
    pub close: Micros,
}

#[derive(Debug)]
struct Measured {
    register: Latencies,
    resolve: Latencies,
    open: Latencies,
    close: Latencies,
}

/// Registers each of the files `rounds` times, in turns.
pub fn run(session: &mut Session, files: &[(String, u64)], rounds: usize) -> Result<Vec<Costs>> {
    let empty = || Measured {
        register: latencies(),
        resolve: latencies(),
        open: latencies(),
        close: latencies(),
    };
    let mut measured: Vec<Measured> = files.iter().map(|_| empty()).collect();
    for _ in 0..rounds {
        for ((path, bytes), into) in files.iter().zip(&mut measured) {
            let note = |latencies: &mut Latencies, took: Duration| {
                latencies.saturating_record(took.as_nanos() as u64);
            };
            let begun = Instant::now();
            session.call(Request::new(Op::Stat, path.as_str()))?;
            note(&mut into.resolve, begun.elapsed());
            let open = Request {
                flags: FLAG_WRITE,
                length: *bytes,
                ..Request::new(Op::Open, path.as_str())
            };
            let begun = Instant::now();
            let opened = session.call(open)?;
            note(&mut into.open, begun.elapsed());
            let register = Duration::from_nanos(opened.register_ns.into());
            note(&mut into.register, register);
            let close = Request {
                handle: opened.handle,
                ..Request::new(Op::Close, "")
            };
            let begun = Instant::now();
            session.call(close)?;
            note(&mut into.close, begun.elapsed());
        }
    }
    let costs = files.iter().zip(&measured).map(|((_, bytes), of)| Costs {
        bytes: *bytes,
        register: Micros::of(&of.register),
        resolve: Micros::of(&of.resolve),
        open: Micros::of(&of.open),
        close: Micros::of(&of.close),
    });
    Ok(costs.collect())
}

/// What pinning memory costs.
#[derive(Clone, Debug, Serialize)]
pub struct Pinned {
    /// How much.
    pub bytes: u64,
    /// mmap with `MAP_POPULATE`.
    pub populate_us: f64,
    /// mlock behind it.
    pub lock_us: f64,
}

/// Maps and pins `bytes` of memory, as a program does that registers it with a card.
pub fn pin(bytes: usize) -> Result<Pinned> {
    let begun = Instant::now();
    let map = MmapOptions::new()
        .len(bytes)
        .populate()
        .map_anon()
        .context("cannot map the memory to compare with")?;
    let populated = begun.elapsed();
    let begun = Instant::now();
    map.lock()
        .context("cannot lock the memory to compare with (ulimit -l says how much may be)")?;
    let locked = begun.elapsed();
    Ok(Pinned {
        bytes: bytes as u64,
        populate_us: populated.as_secs_f64() * 1e6,
        lock_us: locked.as_secs_f64() * 1e6,
    })
}
