//! What a member tells monitoring systems of itself.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ftl::Meter;
use offload_chain::group::Watcher;
use offload_chain::host::HostState;
use serde::{Deserialize, Serialize};
use softrdma::Served;

use crate::exporter::Told;
use crate::exporter::families::{Families, NoLabels, one};
use crate::measured::{self, Operations, Process};

/// What a member does, counted.
#[derive(Debug, Default)]
pub(super) struct MemberMeters {
    /// Each at the number of what was asked for.
    served: [Meter; Served::ALL.len()],
    flushes: Meter,
}

impl Watcher for MemberMeters {
    fn served(&self, what: Served, bytes: u64, took: Duration) {
        self.served[what as usize].note(took, Some(bytes));
    }

    fn flushed(&self, took: Duration, is_good: bool) {
        self.flushes.note(took, is_good.then_some(0));
    }
}

/// A member, and what it has done since it was started.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct MemberStatus {
    /// Version of the program.
    version: String,
    /// The process, and what it costs.
    process: Process,
    /// Which member.
    member: u32,
    /// Where it listens.
    address: String,
    /// The latest epoch of the group that it has heard of.
    epoch: u64,
    /// The epoch whose primitives it executes; 0, if none.
    open_epoch: u64,
    /// Its place in the chain, if it has one; 0 is the head.
    place: Option<u64>,
    /// Members in the chain.
    chain: u64,
    /// Seconds for which its slowest link has had an answer outstanding.
    lag: f64,
    /// Chunks that it was behind in the last round of catching up.
    behind_chunks: u64,
    /// What others, and it itself in group primitives, have asked for and got.
    operations: BTreeMap<String, Operations>,
    /// Flushes of the file with its memory.
    flushes: Operations,
}

/// Looks at a member.
#[derive(Debug)]
pub(super) struct Looker {
    pub(super) started: Instant,
    pub(super) member: u32,
    pub(super) address: SocketAddr,
    pub(super) meters: Arc<MemberMeters>,
}

impl Looker {
    /// How it is, in this state.
    pub(super) fn status(&self, state: HostState) -> MemberStatus {
        let operations = Served::ALL.map(|what| {
            let meter = &self.meters.served[what as usize];
            (measured::name(what).to_owned(), meter.read().into())
        });
        MemberStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            process: Process::since(self.started),
            member: self.member,
            address: self.address.to_string(),
            epoch: state.epoch.0,
            open_epoch: state.open.0,
            place: state.position.map(|place| place as u64),
            chain: state.chain as u64,
            lag: state.lag.as_secs_f64(),
            behind_chunks: state.behind,
            operations: operations.into(),
            flushes: self.meters.flushes.read().into(),
        }
    }
}

impl Told for MemberStatus {
    fn version(&self) -> &str {
        &self.version
    }

    fn process(&self) -> &Process {
        &self.process
    }

    fn health(&self) -> Result<(), String> {
        match self.place {
            Some(_) => Ok(()),
            None => Err(format!(
                "member {} is not in the chain of an epoch that is open",
                self.member
            )),
        }
    }

    fn tell(&self, families: &mut Families<'_>) -> fmt::Result {
        let member = [
            ("member", self.member.to_string()),
            ("address", self.address.clone()),
        ];
        families.info("flashnet_chain_member", "The member.", member)?;
        families.gauge(
            "flashnet_chain_epoch",
            "The latest epoch of the group that the member has heard of.",
            one(self.epoch),
        )?;
        families.gauge(
            "flashnet_chain_open_epoch",
            "The epoch whose primitives the member executes; 0, if none.",
            one(self.open_epoch),
        )?;
        families.gauge(
            "flashnet_chain_place",
            "Place of the member in the chain, 0 for the head, if it has one.",
            self.place.map(|place| ([] as NoLabels, place)),
        )?;
        families.gauge(
            "flashnet_chain_members",
            "Members in the chain.",
            one(self.chain),
        )?;
        families.gauge(
            "flashnet_chain_lag_seconds",
            "For how long the slowest link of the member has had an answer outstanding.",
            one(self.lag),
        )?;
        families.gauge(
            "flashnet_chain_behind_chunks",
            "Chunks that the member was behind in the last round of catching up.",
            one(self.behind_chunks),
        )?;
        let operations = || {
            let operations = self.operations.iter();
            operations.map(|(op, operations)| ([("op", op.as_str())], operations))
        };
        families.good_operations(
            "flashnet_chain_operation",
            "operations of members and clients at this member",
            &operations,
        )?;
        let flushes = || std::iter::once(([] as NoLabels, &self.flushes));
        families.operations(
            "flashnet_chain_flush",
            "flushes of the memory of the member",
            flushes,
        )
    }
}

#[cfg(test)]
mod tests {
    use offload_chain::Epoch;

    use super::*;
    use crate::exporter::families::{Format, grammar::check, of};

    #[test]
    fn what_is_told() {
        let meters = Arc::new(MemberMeters::default());
        meters.served(Served::Write, 4096, Duration::from_micros(3));
        meters.flushed(Duration::from_millis(3), true);
        meters.flushed(Duration::from_millis(3), false);
        let looker = Looker {
            started: Instant::now(),
            member: 2,
            address: "127.0.0.1:7181".parse().unwrap(),
            meters,
        };
        let away = HostState {
            epoch: Epoch(7),
            chain: 3,
            ..HostState::default()
        };
        let serving = HostState {
            open: Epoch(7),
            position: Some(1),
            lag: Duration::from_millis(250),
            behind: 9,
            ..away
        };
        let [away, serving] = [away, serving].map(|state| looker.status(state));
        assert!(away.health().unwrap_err().contains("member 2"));
        assert_eq!(serving.health(), Ok(()));
        for format in [Format::OpenMetrics, Format::Prometheus] {
            check(&of(away.clone(), 1.0, format).unwrap(), format);
            check(&of(serving.clone(), 1.0, format).unwrap(), format);
        }
        let text = of(away, 1.0, Format::Prometheus).unwrap();
        assert!(!text.contains("flashnet_chain_place"), "{text}");
        let text = of(serving.clone(), 1.0, Format::Prometheus).unwrap();
        for line in [
            "flashnet_chain_member_info{member=\"2\",address=\"127.0.0.1:7181\"} 1",
            "flashnet_chain_epoch 7",
            "flashnet_chain_open_epoch 7",
            "flashnet_chain_place 1",
            "flashnet_chain_members 3",
            "flashnet_chain_lag_seconds 0.25",
            "flashnet_chain_behind_chunks 9",
            "flashnet_chain_operation_seconds_count{op=\"write\"} 1",
            "flashnet_chain_operation_bytes_total{op=\"write\"} 4096",
            "flashnet_chain_flush_seconds_count 2",
            "flashnet_chain_flush_failures_total 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        let json = serde_json::to_string(&serving).unwrap();
        assert_eq!(
            serde_json::from_str::<MemberStatus>(&json).unwrap(),
            serving
        );
    }
}
