//! The target as a program: assembles volume, file system, endpoint and mount, runs them, and takes them down in order.

use std::fs::{self, File};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use contigfs::fuse::{MountOptions, Mounted, mount_with_cache};
use contigfs::{Fs, FsOptions, InodeNo, Sweeper};
use ftl::device::FileDevice;
use ftl::{ArrayDevice, Ftl, Port};
use socket2::Socket;
use softrdma::{Buffer, RegionTable};
use tracing::{info, warn};

use super::core::ControlSenders;
use super::handover::{Handover, Replacement, Sockets};
use super::housekeeper::Housekeeper;
use super::job::{Job, ask_all};
use super::lane::Lanes;
use super::listening::{
    address_of, listen_on, listen_unless_taken, listens_at, port_of, reachable,
};
use super::mapped::Mapped;
use super::media::Media;
use super::mounting;
use super::operator::Operator;
use super::pages::{FlashPages, POOL_PER_CONNECTION};
use super::places::Places;
use super::privileges::EnderThread;
use super::reactors::Reactors;
use super::readahead::{self, Readahead};
use super::reception::{Arrivals, Reception};
use super::regions::{Follower, Regions};
use super::service::Service;
use super::sessions::Sessions;
use super::settings::Settings;
use super::snapshots::{self, SnapshotFiles, SnapshotReaders};
use super::status::{Gatherer, Latest, ReactorMeters};
use super::store::TargetStore;
use super::tenancy::{Observers, TargetHooks, Tenancy};
use super::tls_door::TlsDoor;
use super::volume;
use crate::credentials::registry::View;
use crate::credentials::{Registry, registry, unix_now};
use crate::descriptors;
use crate::devices::MediaPlaces;
use crate::exporter::Exporter;
use crate::reactor::Inbox;

/// Threads that answer control requests.
const CONTROL_THREADS: usize = 4;
/// Other threads that use the volume: the housekeeper, the one that starts and stops the target, the one that recalls
/// mapped pages, the one that ends privileges, the one that answers operators, the one that answers monitoring systems, those that
/// read ahead, those that read snapshots for peers, and the one that gives back what deleted ones held.
const OTHER_THREADS: usize = 7 + readahead::THREADS + snapshots::THREADS;
/// Descriptors that a target takes beside those it has been prepared with, its devices, its reactors and the threads of its mount.
const DESCRIPTORS: usize = 16;
/// For each device: it is opened once more where it can be made larger.
const DESCRIPTORS_PER_DEVICE: usize = 2;
/// For each reactor: its ring, and what wakes it.
const DESCRIPTORS_PER_REACTOR: usize = 2;
/// Connections at once.
const CONNECTIONS_MAX: usize = 16_384;
/// What names the address for metrics.
const METRICS_OPTION: &str = "--metrics";
/// How long connections may take to end in order.
const DRAIN: Duration = Duration::from_secs(2);
/// The same when another target goes on with them.
const DRAIN_FOR_ANOTHER: Duration = Duration::from_millis(300);

/// What a target has of the system before it opens the volume.
#[derive(Debug)]
pub struct Prepared {
    sockets: Sockets,
    /// Where monitoring systems ask; none also if somebody had the port, and it may be whom this target replaces.
    metrics: Option<Socket>,
    /// In the place of those that it opens: out of descriptors it would fail when whom it replaces has ended.
    descriptors: Vec<File>,
}

/// A running target.
#[derive(Debug)]
pub struct Target {
    address: Option<SocketAddr>,
    tls_address: Option<SocketAddr>,
    metrics_address: Option<SocketAddr>,
    tls_door: Option<TlsDoor>,
    exporter: Option<Exporter>,
    mounted: Option<Mounted>,
    mapped: Arc<Mapped>,
    fs: Arc<Fs<TargetStore>>,
    reactors: Reactors,
    ftl: Arc<Ftl>,
    device: ArrayDevice<FileDevice>,
    /// For whoever makes the volume larger; gone before the device is closed.
    file: Option<Arc<File>>,
    lanes: Option<Arc<Lanes>>,
    readahead: Option<Arc<Readahead>>,
    snapshots: Option<SnapshotReaders>,
    sweeper: Option<Sweeper>,
    control: Vec<JoinHandle<()>>,
    housekeeper: Option<Housekeeper>,
    privileges: Option<EnderThread>,
    /// What is told to the next target, and where; nothing if there is what it could not vouch for.
    farewell: Option<(Arc<Registry<TargetStore>>, u64)>,
    handover: Option<Handover>,
    ready_file: Option<PathBuf>,
}

impl Target {
    /// Starts everything. When this returns, clients can connect and the mount is there.
    pub fn start(settings: &Settings) -> Result<Self> {
        Self::start_on(settings, Self::prepare(settings, None)?)
    }

    /// What a target with these settings needs of the system beside the volume, as far as it can be had while another one runs, whose
    /// sockets are `offered`: whoever is to be replaced goes on if this fails.
    ///
    /// The port for metrics is not handed over, and whether the one to be replaced has it or a stranger can not be told. So what is an
    /// error if nobody is replaced is left for later here: the port is free when the other has ended, and if it is not, that is no
    /// reason for not serving a volume that was served.
    pub fn prepare(settings: &Settings, offered: Option<Sockets>) -> Result<Prepared> {
        if let Some(dir) = &settings.mount {
            mounting::check(dir)?;
        }
        if let Some(path) = &settings.ready_file {
            check_ready(path).with_context(|| cannot_be_ready(path))?;
        }
        let tls_listen = settings.tls.as_ref().map(|tls| tls.listen);
        let is_fresh = offered.is_none();
        let Sockets { plain, tls } = offered.unwrap_or_default();
        let ports: Vec<u16> = [&plain, &tls]
            .into_iter()
            .flatten()
            .filter_map(port_of)
            .collect();
        let listen = |at: Option<SocketAddr>, socket: Option<Socket>, option| {
            match socket.filter(|socket| listens_at(socket, at)) {
                // Its own, for another address or the other kind: when that has ended.
                None if at.is_some_and(|at| ports.contains(&at.port())) => Ok(None),
                taken => listen_on(at, taken, option),
            }
        };
        let sockets = Sockets {
            plain: listen(settings.listen, plain, "--listen")?,
            tls: listen(tls_listen, tls, "--tls-listen")?,
        };
        let metrics = match settings.metrics {
            Some(at) if !is_fresh => listen_unless_taken(at, METRICS_OPTION)?,
            at => listen_on(at, None, METRICS_OPTION)?,
        };
        let descriptors = descriptors::set_aside(descriptors_of(settings))
            .context("a target needs more descriptors than it may have (`ulimit -n`)")?;
        Ok(Prepared {
            sockets,
            metrics,
            descriptors,
        })
    }

    /// The same as [`start`](Self::start), with the sockets that have been [prepared](Self::prepare).
    pub fn start_on(settings: &Settings, prepared: Prepared) -> Result<Self> {
        let Prepared {
            sockets,
            metrics,
            descriptors,
        } = prepared;
        drop(descriptors);
        let tls_listen = settings.tls.as_ref().map(|tls| tls.listen);
        let sockets = Sockets {
            plain: listen_on(settings.listen, sockets.plain, "--listen")?,
            tls: listen_on(tls_listen, sockets.tls, "--tls-listen")?,
        };
        let metrics =
            listen_on(settings.metrics, metrics, METRICS_OPTION).unwrap_or_else(|error| {
                warn!("there are no metrics of this target: {error:#}");
                None
            });
        let address = address_of(sockets.plain.as_ref())?;
        let tls_address = address_of(sockets.tls.as_ref())?;
        let metrics_address = address_of(metrics.as_ref())?;
        let epoch = Instant::now();
        let threads = CONTROL_THREADS + settings.fuse.threads_max() + OTHER_THREADS;
        let (ftl, device, clean) = volume::open(settings, threads)?;

        let stags = RegionTable::new(rand::random());
        let inboxes = (0..settings.reactors)
            .map(|_| Inbox::new().map(Arc::new))
            .collect::<io::Result<Vec<_>>>()?;
        let places = Arc::new(Places::new());
        let regions = Regions::new(Arc::clone(&stags), Arc::clone(&places), inboxes.clone());
        let mapped = Mapped::new(inboxes.clone());
        let snapshots = Arc::new(SnapshotFiles::default());
        let (control, control_jobs) = ControlSenders::new(CONTROL_THREADS);
        let meters: Vec<Arc<ReactorMeters>> = inboxes.iter().map(|_| Arc::default()).collect();
        let pages = |index: usize| {
            let told = (Arc::clone(&inboxes[index]), Arc::clone(&meters[index]));
            let port = (Arc::clone(&ftl), Port(index as u16), settings.reactors);
            let places = Arc::clone(&places);
            let files = (places, Arc::clone(&mapped), Arc::clone(&snapshots));
            FlashPages::new(port, files, told)
        };
        let media = Media::of(&device);
        let ports = (settings.reactors, threads);
        let file = volume::only_file(&device)?.map(Arc::new);
        let lanes = media
            .only_fd()
            .map(|fd| Lanes::new(&ftl, (fd, media.meters()), &inboxes[0], epoch, ports));
        let sessions = Arc::new(Sessions::default());
        let door = Arc::new(OnceLock::new());
        let connections_max = CONNECTIONS_MAX
            .min((settings.pool_bytes / POOL_PER_CONNECTION) as usize)
            .min(descriptors::connections_max());
        let arrivals = Arc::new(Arrivals::default());
        let reception = |index| Reception {
            index,
            door: Arc::clone(&door),
            sessions: Arc::clone(&sessions),
            arrivals: Arc::clone(&arrivals),
            connections_max,
            inboxes: inboxes.clone(),
            control: control.clone(),
            warned: AtomicU64::new(0),
        };
        let reactors = Reactors::start(
            settings,
            &pages,
            (&media, lanes.as_ref()),
            &stags,
            inboxes.clone(),
            &reception,
            epoch,
        )?;
        // The reactors have the other senders.
        drop(control);

        let store = TargetStore::new(
            Arc::clone(&ftl),
            Arc::clone(&inboxes[0]),
            lanes.clone(),
            threads,
        )
        .beside(&regions)
        .growing_on(file.as_ref().map_or_else(Weak::new, Arc::downgrade))
        .reading_ahead()?;
        let readahead = store.readahead().cloned();
        let options = FsOptions {
            metadata_sync: settings.metadata_sync,
            ..FsOptions::default()
        };
        let fs =
            Fs::mount_with(store, &options).context("cannot read the file system of the volume")?;
        if fs.is_damaged() {
            tracing::warn!("the file system is damaged; fsck -y repairs it when it is not in use");
            // So that the next `fsck -p` looks, however this ends.
            ftl.set_suspect(true);
        }
        let fs = Arc::new(fs);
        let hooks = TargetHooks {
            mapped: Arc::clone(&mapped),
            regions: Arc::clone(&regions),
        };
        let registry = Registry::open(
            Arc::clone(&fs),
            Arc::clone(&stags),
            Box::new(hooks),
            registry::Options {
                lifetime: settings.credential_lifetime.as_secs(),
                bug: None,
            },
        )
        .context("cannot read the stored credentials")?;
        let registry = Arc::new(registry);
        fs.set_observer(Box::new(Observers {
            registry: Arc::downgrade(&registry),
            mapped: Arc::clone(&mapped),
            follower: Follower(Arc::clone(&regions)),
        }));
        let privileges = EnderThread::start(Arc::clone(&fs), &mapped)?;
        let strangers = settings.strangers.then_some(&settings.exports);
        let (tenancy, opened) = Tenancy::enrol(&settings.tenants, strangers, &registry)?;
        let restored = registry
            .restore(&tenancy.standings(), unix_now())
            .context("cannot restore the stored credentials")?;
        info!(?restored, "stored registrations");
        let _ = door.set(opened);
        let text = |at: Option<SocketAddr>| at.map(|at| at.to_string());
        let gatherer = Arc::new(Gatherer {
            started: epoch,
            devices: settings.devices.clone(),
            gc_policy: settings.gc_policy.to_string(),
            ftl: Arc::clone(&ftl),
            fs: Arc::clone(&fs),
            inodes: Latest::default(),
            media: media.meters().clone(),
            mount: OnceLock::new(),
            address: text(address),
            tls_address: text(tls_address),
            connections: Arc::clone(reactors.connections()),
            connections_max,
            arrivals,
            sessions: Arc::clone(&sessions),
            door,
            registry: Arc::clone(&registry),
            registrations: Latest::default(),
            control: Arc::default(),
            reactors: meters,
        });
        // While nobody else uses the volume: everything is known once.
        let _ = gatherer.status();
        let verifier = rand::random();
        // Plain memory ends with the process, whatever is said of files.
        let speaks_for_others = settings.dram_bytes.is_none();
        let ended_in_order = clean && speaks_for_others && !volume::has_lost_devices(&ftl);
        let before = registry.farewell(ftl.info().session);
        let verifier_before = before.filter(|_| ended_in_order);
        let service = Arc::new(Service {
            fs: Arc::clone(&fs),
            stags,
            regions,
            mapped: Arc::clone(&mapped),
            snapshots: Arc::clone(&snapshots),
            tenancy,
            registry: Arc::clone(&registry),
            sessions,
            dram: settings
                .dram_bytes
                .map(|bytes| Buffer::zeroed(bytes as usize)),
            verifier,
            verifier_before,
            meter: Arc::clone(&gatherer.control),
            inboxes,
        });
        let is_written = |view: &&View| view.record.writable && view.registered.is_some();
        for view in registry.views().iter().filter(is_written) {
            let ino = InodeNo(view.record.inode);
            service
                .watch_privileges(ino)
                .with_context(|| format!("cannot look at inode {ino}, which has regions"))?;
        }
        let snapshots = SnapshotReaders::start(&snapshots).context("cannot start a thread")?;
        let control = service.start(control_jobs)?;
        let media_places = MediaPlaces::of(&ftl, &settings.devices);
        let housekeeper = Housekeeper::start(
            Arc::clone(&fs),
            Arc::clone(&ftl),
            Arc::clone(&registry),
            media_places,
        )?;
        let mut target = Self {
            address,
            tls_address,
            metrics_address,
            tls_door: None,
            exporter: None,
            mounted: None,
            mapped,
            fs,
            reactors,
            ftl,
            device,
            file,
            lanes,
            readahead,
            snapshots: Some(snapshots),
            sweeper: None,
            control,
            housekeeper: Some(housekeeper),
            privileges: Some(privileges),
            farewell: speaks_for_others.then_some((registry, verifier)),
            handover: None,
            ready_file: settings.ready_file.clone(),
        };
        if let Err(error) = target.open_doors(settings, sockets, metrics, &gatherer) {
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
        sockets: Sockets,
        metrics: Option<Socket>,
        gatherer: &Arc<Gatherer>,
    ) -> Result<()> {
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
        let text = |at: Option<SocketAddr>| at.map_or("none".to_owned(), |at| at.to_string());
        let (address, tls_address) = (text(self.address), text(self.tls_address));
        let metrics = text(self.metrics_address);
        if let Some(path) = &settings.ready_file {
            let line = |name: &str, at: Option<SocketAddr>| {
                at.map_or_else(String::new, |at| format!("{name}{at}\n"))
            };
            let lines = [
                format!("{address}\n"),
                line("", self.tls_address),
                // By its name: there may be one for TLS before it, or not.
                line("metrics ", self.metrics_address),
            ];
            write_ready(path, &lines.concat()).with_context(|| cannot_be_ready(path))?;
        }
        info!(address, tls_address, metrics, "serving");
        Ok(())
    }

    /// Where clients connect, if they can.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Whether clients can connect.
    pub fn is_reachable(&self) -> bool {
        self.address.or(self.tls_address).is_some()
    }

    /// Where clients connect by TLS, if they can.
    pub fn tls_address(&self) -> Option<SocketAddr> {
        self.tls_address
    }

    /// Where monitoring systems ask, if they can.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics_address
    }

    /// What clients need and has ended by itself, if something has: only what is broken does.
    pub fn failed(&self) -> Option<&'static str> {
        if self.reactors.has_ended() {
            return Some("a reactor");
        }
        if self.control.iter().any(JoinHandle::is_finished) {
            return Some("a thread that answers clients");
        }
        let door = self.tls_door.as_ref();
        door.filter(|door| door.has_ended())
            .map(|_| "the door for TLS")
    }

    /// Whether the mount has been removed from outside.
    pub fn has_lost_mount(&self) -> bool {
        self.mounted.as_ref().is_some_and(Mounted::is_finished)
    }

    /// Waits that long for another target that wants to take over.
    pub fn asked_to_end(&self, patience: Duration) -> Option<Replacement> {
        match &self.handover {
            Some(handover) => handover.asked(patience),
            None => {
                std::thread::sleep(patience);
                None
            }
        }
    }

    /// Ends in order, and lets another target go on.
    pub fn hand_over(self, to: Replacement) -> Result<()> {
        let result = self.end(DRAIN_FOR_ANOTHER);
        drop(to);
        result
    }

    /// Ends in order: mount, connections, file system, log. Afterwards the volume is clean.
    pub fn stop(mut self) -> Result<()> {
        // One that asks to take over just now waits for the end of this, too.
        let successor = self.handover.take().and_then(Handover::end);
        let result = self.end(DRAIN);
        drop(successor);
        result
    }

    /// Ends; connections may take so long to do so in order.
    fn end(mut self, drain: Duration) -> Result<()> {
        // First: a target that takes over wants this name.
        drop(self.handover.take());
        // Before the reactors: they get no more connections.
        drop(self.tls_door.take());
        // It knows what is closed below, and a target that takes over wants its port.
        drop(self.exporter.take());
        let mut first_error = None;
        let mut note = |result: Result<()>| {
            if let Err(error) = result {
                warn!("{error:#}");
                first_error.get_or_insert(error);
            }
        };
        if let Some(mounted) = self.mounted.take() {
            note(mounting::unmount(mounted));
        }
        drop(self.sweeper.take());
        drop(self.housekeeper.take());
        note(
            self.fs
                .sync_all()
                .context("cannot write out the file system"),
        );
        if let Some(readahead) = &self.readahead {
            readahead.stop();
        }
        ask_all(self.reactors.inboxes(), |hung_up| {
            Job::HangUp(drain, hung_up)
        });
        for thread in self.control.drain(..) {
            note(
                thread
                    .join()
                    .map_err(|_| anyhow!("a control thread panicked")),
            );
        }
        // Only connections and control threads ask for these.
        drop(self.privileges.take());
        drop(self.snapshots.take());
        // Files that connections had open for writing got their new times when these ended.
        let settled = self.fs.sync_all();
        if let Some((registry, verifier)) = self.farewell.take()
            && settled.is_ok()
            && !volume::has_lost_devices(&self.ftl)
            && let Err(error) = registry.say_farewell(self.ftl.info().session, verifier)
        {
            // Clients will doubt more than they need to.
            warn!(%error, "cannot tell the next target that this one has ended in order");
        }
        note(settled.context("cannot write out the times of files that clients had open"));
        // Whoever is in the middle of using it keeps it for a moment longer.
        drop(self.file.take());
        // What threads of a mount or a client have set going without being waited for only the reactors carry out.
        let closed = volume::close(&self.reactors.inboxes()[0]);
        // Whoever waits for the volume waits for them, so they are the last to end.
        self.reactors.end().into_iter().for_each(&mut note);
        note(match closed {
            Some(closed) => closed.context("cannot close the volume"),
            None => volume::close_alone(self.ftl, self.device, self.lanes.as_deref()),
        });
        if let Some(path) = &self.ready_file {
            let _ = fs::remove_file(path);
        }
        first_error.map_or(Ok(()), Err)
    }
}

/// Descriptors that a target opens when it starts, at most.
fn descriptors_of(settings: &Settings) -> usize {
    let threads = (settings.mount.as_ref()).map_or(0, |_| settings.fuse.threads_max());
    DESCRIPTORS
        + settings.devices.len() * DESCRIPTORS_PER_DEVICE
        + settings.reactors * DESCRIPTORS_PER_REACTOR
        + threads
}

fn cannot_be_ready(path: &Path) -> String {
    format!("cannot write the ready file {}", path.display())
}

/// Whether a file can be made there later.
fn check_ready(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    let aside = aside(path);
    File::create_new(&aside)?;
    fs::remove_file(&aside)
}

/// A place beside this one, under a name that no other target and nobody else has.
fn aside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{:08x}.tmp", rand::random::<u32>()));
    PathBuf::from(name)
}

/// Makes a file that holds all of `text` from the beginning. Until then it lies beside its place.
fn write_ready(path: &Path, text: &str) -> io::Result<()> {
    let aside = aside(path);
    let written = fs::write(&aside, text).and_then(|()| fs::rename(&aside, path));
    if written.is_err() {
        // If it was never made there is none.
        let _ = fs::remove_file(&aside);
    }
    written
}
