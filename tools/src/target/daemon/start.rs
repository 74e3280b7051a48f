//! How a target starts: listeners, the volume and its reactors, the file system, what answers clients, and then the doors.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result, anyhow};
use contigfs::fuse::{MountOptions, mount_with_cache};
use contigfs::{InodeNo, Sweeper};
use softrdma::Buffer;
use tracing::{info, warn};

use super::Target;
use super::engine::Engine;
use super::files::Files;
use super::prepared::{Listeners, Prepared};
use crate::credentials::registry::View;
use crate::devices::MediaPlaces;
use crate::exporter::Exporter;
use crate::target::handover::Handover;
use crate::target::housekeeper::Housekeeper;
use crate::target::job::Job;
use crate::target::listening::reachable;
use crate::target::mounting;
use crate::target::operator::Operator;
use crate::target::service::Service;
use crate::target::settings::Settings;
use crate::target::snapshots::SnapshotReaders;
use crate::target::status::{Gatherer, Latest};
use crate::target::tls_door::TlsDoor;
use crate::target::volume;

impl Target {
    /// Starts everything. When this returns, clients can connect and the mount is there.
    pub fn start(settings: &Settings) -> Result<Self> {
        Self::start_on(settings, Prepared::new(settings, None)?)
    }

    /// The same as [`start`](Self::start), with what has been prepared.
    pub fn start_on(settings: &Settings, prepared: Prepared) -> Result<Self> {
        let (listeners, ready_file) = prepared.listen(settings)?;
        let engine = Engine::start(settings)?;
        let files = Files::open(settings, &engine)?;
        let gatherer = Arc::new(gatherer(settings, &listeners, &engine, &files));
        // While nobody else uses the volume: everything is known once.
        let _ = gatherer.status();
        let service = service(settings, &engine, &files, &gatherer)?;
        let snapshots = SnapshotReaders::start(&engine.snapshots);
        let snapshots = snapshots.context("cannot start a thread")?;
        let verifier = service.verifier;
        let control = service.start(engine.control_jobs)?;
        let housekeeper = Housekeeper::start(
            Arc::clone(&files.fs),
            Arc::clone(&engine.ftl),
            Arc::clone(&files.registry),
            MediaPlaces::of(&engine.ftl, &settings.devices),
        )?;
        let mut target = Self {
            address: listeners.address,
            tls_address: listeners.tls_address,
            metrics_address: listeners.metrics_address,
            tls_door: None,
            exporter: None,
            mounted: None,
            mapped: engine.mapped,
            fs: files.fs,
            reactors: engine.reactors,
            ftl: engine.ftl,
            device: engine.device,
            file: engine.file,
            lanes: engine.lanes,
            readahead: files.readahead,
            snapshots: Some(snapshots),
            sweeper: None,
            control,
            housekeeper: Some(housekeeper),
            privileges: Some(files.privileges),
            farewell: speaks_for_others(settings).then_some((files.registry, verifier)),
            handover: None,
            ready_file,
        };
        if let Err(error) = target.open_doors(settings, listeners, &gatherer) {
            // What was started must end: a half-started target would hold the device.
            if let Err(stop) = target.stop() {
                warn!(%stop, "while giving up");
            }
            return Err(error);
        }
        Ok(target)
    }

    /// Mounts and listens, in this order: who can connect finds everything in place.
    fn open_doors(
        &mut self,
        settings: &Settings,
        listeners: Listeners,
        gatherer: &Arc<Gatherer>,
    ) -> Result<()> {
        let Listeners {
            sockets, metrics, ..
        } = listeners;
        if let Some(dir) = &settings.mount {
            mounting::detach_stale(dir);
            let fs = Arc::clone(&self.fs);
            let cache = self.mapped.page_cache();
            let options = MountOptions {
                target: self.address.map(reachable),
                ..settings.fuse.clone()
            };
            let mounted = mount_with_cache(fs, dir, &options, cache)?;
            info!(dir = %dir.display(), "mounted");
            let dir = std::path::absolute(dir).unwrap_or_else(|_| dir.clone());
            let _ = gatherer.mount.set((dir, mounted.requests()));
            self.mounted = Some(mounted);
        } else if self.fs.has_snapshots() && !settings.fuse.read_only {
            // Else the mount has one.
            let sweeper = Sweeper::start(Arc::clone(&self.fs));
            self.sweeper = Some(sweeper.context("cannot start a thread")?);
        }
        let status = Arc::clone(gatherer);
        let fs = (Arc::clone(&self.fs), settings.fuse.read_only);
        let registry = Arc::clone(&gatherer.registry);
        let operator = Operator::of(fs, registry, move || status.status());
        match Handover::offer(&settings.devices, sockets.try_clone()?, operator) {
            Ok(handover) => self.handover = Some(handover),
            Err(error) => warn!(%error, "this target can not be replaced while it runs"),
        }
        if let Some(listener) = sockets.plain {
            self.reactors.inboxes()[0]
                .send(Job::Listen(listener))
                .map_err(|_| anyhow!("the reactor ended while starting"))?;
        }
        if let Some((listener, tls)) = sockets.tls.zip(settings.tls.as_ref()) {
            let door = TlsDoor::open(listener, tls.how.clone(), self.reactors.inboxes().to_vec());
            self.tls_door = Some(door.context("cannot listen for TLS")?);
        }
        if let Some(listener) = metrics {
            let status = Arc::clone(gatherer);
            let exporter = Exporter::start(listener, Arc::new(move || status.status()));
            self.exporter = Some(exporter.context("cannot answer monitoring systems")?);
        }
        self.say_where()
    }

    /// Tells people, and who waits for the ready file, where this target listens.
    fn say_where(&self) -> Result<()> {
        let text = |at: Option<SocketAddr>| at.map_or("none".to_owned(), |at| at.to_string());
        let (address, tls_address) = (text(self.address), text(self.tls_address));
        let metrics = text(self.metrics_address);
        if let Some(file) = &self.ready_file {
            let line = |name: &str, at: Option<SocketAddr>| {
                at.map_or_else(String::new, |at| format!("{name}{at}\n"))
            };
            let lines = [
                format!("{address}\n"),
                line("", self.tls_address),
                // By its name: there may be one for TLS before it, or not.
                line("metrics ", self.metrics_address),
            ];
            file.write(&lines.concat())?;
        }
        info!(address, tls_address, metrics, "serving");
        Ok(())
    }
}

/// What operators and monitoring systems are told of the target.
fn gatherer(
    settings: &Settings,
    listeners: &Listeners,
    engine: &Engine,
    files: &Files,
) -> Gatherer {
    let text = |at: Option<SocketAddr>| at.map(|at| at.to_string());
    Gatherer {
        started: engine.epoch,
        devices: settings.devices.clone(),
        gc_policy: settings.gc_policy.to_string(),
        ftl: Arc::clone(&engine.ftl),
        fs: Arc::clone(&files.fs),
        inodes: Latest::default(),
        media: engine.media.meters().clone(),
        mount: OnceLock::new(),
        address: text(listeners.address),
        tls_address: text(listeners.tls_address),
        connections: Arc::clone(engine.reactors.connections()),
        connections_max: engine.connections_max,
        arrivals: Arc::clone(&engine.arrivals),
        sessions: Arc::clone(&engine.sessions),
        door: Arc::clone(&engine.door),
        registry: Arc::clone(&files.registry),
        registrations: Latest::default(),
        control: Arc::default(),
        reactors: engine.meters.clone(),
    }
}

/// What answers the requests of clients.
fn service(
    settings: &Settings,
    engine: &Engine,
    files: &Files,
    gatherer: &Gatherer,
) -> Result<Arc<Service>> {
    let has_lost_devices = volume::has_lost_devices(&engine.ftl);
    let ended_in_order = engine.was_clean && speaks_for_others(settings) && !has_lost_devices;
    let before = files.registry.farewell(engine.ftl.info().session);
    let service = Service {
        fs: Arc::clone(&files.fs),
        stags: Arc::clone(&engine.stags),
        regions: Arc::clone(&engine.regions),
        mapped: Arc::clone(&engine.mapped),
        snapshots: Arc::clone(&engine.snapshots),
        tenancy: Arc::clone(&files.tenancy),
        registry: Arc::clone(&files.registry),
        sessions: Arc::clone(&engine.sessions),
        dram: settings
            .dram_bytes
            .map(|bytes| Buffer::zeroed(bytes as usize)),
        verifier: rand::random(),
        verifier_before: before.filter(|_| ended_in_order),
        meter: Arc::clone(&gatherer.control),
        inboxes: engine.inboxes.clone(),
    };
    let is_written = |view: &&View| view.record.writable && view.registered.is_some();
    for view in files.registry.views().iter().filter(is_written) {
        let ino = InodeNo(view.record.inode);
        service
            .watch_privileges(ino)
            .with_context(|| format!("cannot look at inode {ino}, which has regions"))?;
    }
    Ok(Arc::new(service))
}

/// Whether this target can say of what is written to it that it was kept: plain memory ends with the process, whatever is said of files.
fn speaks_for_others(settings: &Settings) -> bool {
    settings.dram_bytes.is_none()
}
