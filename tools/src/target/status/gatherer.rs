//! Puts together what a running target tells of itself.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use contigfs::Fs;
use contigfs::fuse::Requests;
use ftl::{Ftl, GRAIN_BYTES, MemberState, Meter, Metered};
use softrdma::Served;
use uuid::Uuid;

use super::meters::MediaMeters;
use super::reactor::{ENDS, ReactorMeters};
use super::{Device, Mount, Operations, Process, Remote, Status, Stream, Volume};
use crate::credentials::{ANONYMOUS, Door, Registry};
use crate::measured;
use crate::target::reception::Arrivals;
use crate::target::sessions::Sessions;
use crate::target::store::TargetStore;

/// How those are called who have shown no token.
const STRANGERS: &str = "anonymous";

/// A number that can not always be had.
#[derive(Debug, Default)]
pub(in crate::target) struct Latest(AtomicU64);

impl Latest {
    /// What it is now, or was when that was known last.
    fn or_before(&self, now: Option<u64>) -> u64 {
        if let Some(now) = now {
            self.0.store(now, Ordering::Relaxed);
        }
        self.0.load(Ordering::Relaxed)
    }
}

/// Whom to ask. Asking disturbs nobody for more than a moment, and waits for no media: when these hang is when people look.
#[derive(Debug)]
pub(in crate::target) struct Gatherer {
    /// When the target was started.
    pub started: Instant,
    /// As they were named.
    pub devices: Vec<PathBuf>,
    /// Name of the policy of placement.
    pub gc_policy: String,
    /// The volume.
    pub ftl: Arc<Ftl>,
    /// The file system on it.
    pub fs: Arc<Fs<TargetStore>>,
    /// Inodes in use.
    pub inodes: Latest,
    /// What the devices were asked for.
    pub media: MediaMeters,
    /// What the kernel has asked for, and where it is mounted, once it is.
    pub mount: OnceLock<(PathBuf, Requests)>,
    /// Where clients connect.
    pub address: Option<String>,
    /// The same by TLS.
    pub tls_address: Option<String>,
    /// Connections of all reactors.
    pub connections: Arc<AtomicUsize>,
    /// Connections that there may be.
    pub connections_max: usize,
    /// Those that came.
    pub arrivals: Arc<Arrivals>,
    /// Whose they are.
    pub sessions: Arc<Sessions>,
    /// Who may come.
    pub door: Arc<OnceLock<Door>>,
    /// Stored registrations.
    pub registry: Arc<Registry<TargetStore>>,
    /// How many.
    pub registrations: Latest,
    /// Control requests.
    pub control: Arc<Meter>,
    /// What the reactors do.
    pub reactors: Vec<Arc<ReactorMeters>>,
}

impl Gatherer {
    /// How it is now.
    pub(in crate::target) fn status(&self) -> Status {
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            process: Process::since(self.started),
            reactor_calls: self.reactors.iter().map(|meters| meters.calls()).collect(),
            volume: self.volume(),
            mount: self.mount.get().map(mount),
            remote: self.remote(),
        }
    }

    fn volume(&self) -> Volume {
        let info = self.ftl.info();
        let stats = self.ftl.stats().described();
        let space = self.ftl.space();
        let bytes = |grains: u64| grains * GRAIN_BYTES as u64;
        let streams = self.ftl.streams().into_iter();
        Volume {
            uuid: Uuid::from_bytes(info.uuid).to_string(),
            session: info.session,
            gc_policy: self.gc_policy.clone(),
            suspect: self.ftl.is_suspect(),
            failure: self.ftl.failure().map(|error| error.to_string()),
            capacity: bytes(space.capacity),
            used: bytes(space.mapped),
            available: bytes(space.available),
            inodes: self.inodes.or_before(self.fs.inodes_now()),
            frames: self.ftl.pool_frames() as u64,
            shared_frames: self.ftl.shared_frames() as u64,
            log: (stats.iter().map(|stat| (stat.name.to_owned(), stat.value))).collect(),
            streams: streams
                .map(|stream| Stream {
                    segments: stream.segments,
                    live: stream.live,
                })
                .collect(),
            devices: self.devices(),
        }
    }

    fn devices(&self) -> Vec<Device> {
        let several = self.ftl.devices();
        let of_several = several
            .into_iter()
            .enumerate()
            .map(|(index, device)| Device {
                path: device.name,
                state: match device.state {
                    MemberState::Live => "live",
                    MemberState::Missing => "missing",
                    MemberState::Failed => "failed",
                }
                .to_owned(),
                segments: device.segments as u64,
                free: device.free as u64,
                erases: device.opened,
                silent: self.media.silence(index).as_secs_f64(),
                operations: self.media.of(index).collect(),
            });
        let devices: Vec<Device> = of_several.collect();
        match (devices.is_empty(), self.devices.first()) {
            (true, Some(path)) => vec![self.only_device(path)],
            _ => devices,
        }
    }

    fn only_device(&self, path: &Path) -> Device {
        let erases = self.ftl.erases();
        Device {
            path: path.display().to_string(),
            // What it has failed with, the volume has.
            state: match self.ftl.failure() {
                None => "live",
                Some(_) => "failed",
            }
            .to_owned(),
            segments: erases.len() as u64,
            free: self.ftl.stats().segments_free,
            erases: erases.into_iter().map(u64::from).sum(),
            silent: self.media.silence(0).as_secs_f64(),
            operations: self.media.of(0).collect(),
        }
    }

    fn remote(&self) -> Remote {
        let operations = Served::ALL.map(|what| {
            let mut all = Metered::default();
            let reactors = self.reactors.iter();
            reactors.for_each(|meters| all += meters.served(what));
            (measured::name(what).to_owned(), Operations::from(all))
        });
        let registrations = self.registry.count_now().map(|count| count as u64);
        Remote {
            address: self.address.clone(),
            tls_address: self.tls_address.clone(),
            connections: self.connections.load(Ordering::Relaxed) as u64,
            connections_max: self.connections_max as u64,
            accepted: self.arrivals.let_in(),
            refused: self.arrivals.refused(),
            ended: self.ended(),
            tenants: self.tenants(),
            registrations: self.registrations.or_before(registrations),
            operations: operations.into(),
            control: self.control.read().into(),
        }
    }

    /// How connections have ended.
    fn ended(&self) -> BTreeMap<String, u64> {
        let mut all = ENDS.map(|end| (end.to_owned(), 0));
        for meters in &self.reactors {
            for ((_, count), more) in all.iter_mut().zip(meters.ended()) {
                *count += more;
            }
        }
        all.into()
    }

    /// The connections of each that may come, and has none perhaps.
    fn tenants(&self) -> BTreeMap<String, u64> {
        let counts = self.sessions.of_tenants();
        let of = |domain| counts.get(&domain).copied().unwrap_or(0) as u64;
        let tenants = self.door.get().map_or(&[][..], Door::tenants).iter();
        let mut all: BTreeMap<String, u64> = tenants
            .map(|tenant| (tenant.name.as_str().to_owned(), of(tenant.domain)))
            .collect();
        if self.door.get().is_some_and(Door::lets_strangers_in) {
            all.insert(STRANGERS.to_owned(), of(ANONYMOUS));
        }
        all
    }
}

fn mount((path, requests): &(PathBuf, Requests)) -> Mount {
    let read = requests.read().into_iter();
    Mount {
        path: path.display().to_string(),
        requests: read
            .map(|(name, metered)| (name.to_ascii_lowercase(), metered.into()))
            .collect(),
    }
}
