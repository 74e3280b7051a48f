//! A remote log, appended to by the recipes of `offload_chain::persist`: over TCP, between two endpoints of ours, into
//! emulated persistent memory whose power is cut after every acknowledgement.
//!
//! The record has 64 bytes. As a singleton it ends in a checksum, by which a reader finds the tail of the log; as a
//! compound update a pointer to the tail is moved behind it.

mod log;
mod responder;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use offload_chain::persist::{
    Change, Changes, Domain, Endpoint, Peer, Recipe, Recovery, offer, replay, run,
};
use offload_chain::persist::{EmulatedPm, Scenario};
use serde::Serialize;
use softrdma::driver::tcp::TcpClient;
use softrdma::{Config, RegionTable};

use super::figures::latencies;
use log::{LOG_BYTES, Record, TAIL_AT};
use responder::Running;

/// Appends before measuring starts.
const WARM: u64 = 20;
/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(20);

/// What appending took; the field names are those of `--json`.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Latency {
    /// Mean, microseconds.
    pub mean_us: f64,
    /// Median, microseconds.
    pub p50_us: f64,
    /// 99th percentile, microseconds.
    pub p99_us: f64,
    /// Appends measured; after each of them, and those before, the record was there after a cut.
    pub records: u64,
}

/// The responder that the bench has, with or without FLUSH and ATOMIC WRITE.
pub fn peer(private_profile: bool) -> Result<Peer> {
    let table = RegionTable::new(rand::random());
    let region = responder::register(&table)?;
    Ok(Peer::Endpoint(offer(&region, private_profile)))
}

/// Appends `records` records by the recipe, which is one for this peer, and cuts the power after each.
pub fn measure(scenario: Scenario, peer: Peer, recipe: &Recipe, records: u64) -> Result<Latency> {
    let domain = scenario.config.domain;
    let config = Config {
        private_profile: peer.has_flush(),
        ..Config::default()
    };
    let responder = Running::start(domain, recipe, config.clone())?;
    let client = TcpClient::connect(
        &responder.address.to_string(),
        config,
        &RegionTable::new(rand::random()),
        &[],
        PATIENCE,
    )?;
    let mut endpoint = Endpoint::new(client, responder.region)?;
    let mut histogram = latencies();
    for sequence in 1..=WARM + records {
        let record = Record::new(sequence);
        let (at, bytes, tail) = (record.at(), record.bytes(), record.tail());
        let changes = Changes {
            sequence,
            a: Change { at, bytes: &bytes },
            b: recipe.is_compound().then_some(Change {
                at: TAIL_AT,
                bytes: &tail,
            }),
        };
        let start = Instant::now();
        run(recipe, &changes, &mut endpoint).with_context(|| format!("{scenario}: {recipe}"))?;
        let time = start.elapsed();
        if sequence > WARM {
            histogram.saturating_record(time.as_nanos() as u64);
        }
        let image = after_restart(domain, recipe, &responder);
        let found = match recipe.is_compound() {
            true => log::find_by_tail(&image),
            false => log::find_by_checksum(&image),
        };
        ensure!(
            found == Some(sequence),
            "{scenario}: {recipe}: record {sequence} was acknowledged, and after a power cut {} is the last",
            found.map_or_else(|| "none".to_owned(), |last| last.to_string())
        );
    }
    endpoint.into_channel().disconnect()?;
    responder.join()?;
    let us = |ns: u64| ns as f64 / 1e3;
    Ok(Latency {
        mean_us: histogram.mean() / 1e3,
        p50_us: us(histogram.value_at_quantile(0.5)),
        p99_us: us(histogram.value_at_quantile(0.99)),
        records,
    })
}

/// The log as a restarted responder has it, if its power is cut now. It may be applying messages at this moment: one
/// that is no longer in the receive buffers, which are looked at first, is in the log.
fn after_restart(domain: Domain, recipe: &Recipe, responder: &Running) -> Vec<u8> {
    let messages = responder.buffers.contents();
    let left = responder.pm.after_cut(0, LOG_BYTES);
    if recipe.recovery == Recovery::Nothing {
        return left;
    }
    let mut restarted = EmulatedPm::holding(domain, left);
    replay(messages.iter().map(Vec::as_slice), &mut restarted);
    restarted.after_cut(0, LOG_BYTES)
}
