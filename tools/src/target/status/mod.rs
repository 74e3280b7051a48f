//! What a running target tells of itself: how it is, and what it has done since it was started. `flashnet top` shows it, and
//! `tools/docs/watching.md` describes it.
//!
//! It is JSON on the way: programs of another version leave out what they do not know, and have nothing for what they miss.

mod gatherer;
mod health;
mod meters;
mod metrics;
mod reactor;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use crate::measured::{Operations, Process};

pub(super) use gatherer::{Gatherer, Latest};
pub(super) use health::is_up;
pub(super) use meters::MediaMeters;
pub(super) use reactor::ReactorMeters;

/// All of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// Version of the program.
    pub version: String,
    /// The process, and what it costs.
    pub process: Process,
    /// System calls of each reactor for its ring.
    pub reactor_calls: Vec<u64>,
    /// What is served.
    pub volume: Volume,
    /// Where it is mounted, if it is.
    pub mount: Option<Mount>,
    /// Clients and their operations.
    pub remote: Remote,
}

/// The volume.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Volume {
    /// Its identity.
    pub uuid: String,
    /// How often it was opened.
    pub session: u64,
    /// Name of the policy of placement and collection.
    pub gc_policy: String,
    /// Something is wrong with what it holds: fsck should look at it.
    pub suspect: bool,
    /// What it has failed with, if it has: nothing is changed any more until it is opened again.
    pub failure: Option<String>,
    /// Bytes that it can hold.
    pub capacity: u64,
    /// Bytes that it holds.
    pub used: u64,
    /// Bytes that can be added.
    pub available: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// Pages in memory, at most, of the pool.
    pub frames: u64,
    /// The same of the memory that is shared with mappings, now.
    pub shared_frames: u64,
    /// The counters of the translation layer, by the names of the fields of `ftl::Stats`.
    pub log: BTreeMap<String, u64>,
    /// The segments of each stream of the policy.
    pub streams: Vec<Stream>,
    /// The devices.
    pub devices: Vec<Device>,
}

impl Volume {
    /// What there is to say of it if it has failed.
    pub fn why_failed(&self) -> Option<String> {
        let failure = self.failure.as_ref()?;
        Some(format!(
            "the volume has failed ({failure}): nothing is changed any more until another target opens it"
        ))
    }
}

/// What a stream of the placement policy holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Stream {
    /// Segments that it wrote last.
    pub segments: u64,
    /// Live grains in them.
    pub live: u64,
}

/// A device of the volume.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Device {
    /// Its path.
    pub path: String,
    /// `live`, `missing` or `failed`.
    pub state: String,
    /// Its segments.
    pub segments: u64,
    /// Those that are free.
    pub free: u64,
    /// How often one of them was opened since the volume was, hence erased.
    pub erases: u64,
    /// For how many seconds it has answered nothing of what it was asked for; 0 if nothing is pending.
    pub silent: f64,
    /// What was asked of it: `read`, `write`, `flush`, `discard`.
    pub operations: BTreeMap<String, Operations>,
}

/// The mount.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Mount {
    /// Where it is.
    pub path: String,
    /// The requests of the kernel, by the names of their opcodes in small letters (`getattr`), as far as there were any.
    pub requests: BTreeMap<String, Operations>,
}

/// Clients, by RDMA.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Remote {
    /// Where they connect, if they can.
    pub address: Option<String>,
    /// The same by TLS.
    pub tls_address: Option<String>,
    /// Connections now.
    pub connections: u64,
    /// Connections that there may be.
    pub connections_max: u64,
    /// Connections that were let in.
    pub accepted: u64,
    /// Connections that were refused at the door.
    pub refused: u64,
    /// Connections that have ended: `disconnected` in order, `lost` with the network or the client, `timed_out` in set-up or at the end,
    /// `aborted` by this target, because of `storage` that failed, because of a `peer_error` that this side found, `terminated` by
    /// the peer, and in `setup`.
    pub ended: BTreeMap<String, u64>,
    /// Connections of each tenant now; those without a token are `anonymous`.
    pub tenants: BTreeMap<String, u64>,
    /// Registrations that are stored with the volume.
    pub registrations: u64,
    /// What peers have asked for and got: `read`, `write`, `atomic`, `send`, `flush`, `verify`. None has failed: what can not be
    /// done ends the connection.
    pub operations: BTreeMap<String, Operations>,
    /// Control requests, by how long they took.
    pub control: Operations,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A target that tells less, or more, is understood.
    #[test]
    fn other_versions() {
        let told = r#"{"process": {"pid": 7, "mood": "good"}, "remote": {"operations": {"read": {"count": 3}}}, "new": []}"#;
        let status: Status = serde_json::from_str(told).unwrap();
        assert_eq!(status.process.pid, 7);
        let read = &status.remote.operations["read"];
        assert_eq!((read.count, read.mean()), (3, Some(Duration::ZERO)));
        assert_eq!(read.quantile(0.99), None);
        let again: Status = serde_json::from_str(&serde_json::to_string(&status).unwrap()).unwrap();
        assert_eq!(again, status);
    }
}
