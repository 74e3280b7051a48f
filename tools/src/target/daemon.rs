//! The target as a program: assembles volume, file system, endpoint and mount, runs them, and takes them down in order.

use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, OnceLock, Weak};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow, bail};
use contigfs::fuse::{
    MountEntry, MountOptions, Mounted, SharePages, UnmountError, mount_with_cache,
    unmount_by_helper,
};
use contigfs::{Fs, FsOptions, InodeNo};
use ftl::device::FileDevice;
use ftl::{
    ArrayDevice, Device, Ftl, GRAIN_BYTES, MemberState, OpenOptions, OverlayDevice, Port, Volume,
    VolumeError,
};
use socket2::{Domain, Protocol, Socket, Type};
use softrdma::{Buffer, Config, RegionTable};
use tracing::{info, warn};

use super::core::{ControlSenders, Core, CoreParts};
use super::handover::{Handover, Replacement, Sockets};
use super::housekeeper::Housekeeper;
use super::job::{Job, ask_all, waiter};
use super::lane::Lanes;
use super::mapped::Mapped;
use super::media::Media;
use super::operator::Operator;
use super::pages::{FlashPages, POOL_PER_CONNECTION};
use super::places::Places;
use super::privileges::EnderThread;
use super::readahead::{self, Readahead};
use super::reception::{self, Reception};
use super::regions::{Follower, Regions};
use super::service::Service;
use super::sessions::Sessions;
use super::settings::Settings;
use super::store::TargetStore;
use super::tenancy::{Observers, TargetHooks, Tenancy};
use super::tls_door::TlsDoor;
use crate::client::WINDOW_MAX;
use crate::credentials::registry::View;
use crate::credentials::{ANONYMOUS, Registry, registry, unix_now};
use crate::descriptors;
use crate::devices::{self, Access, MediaPlaces};
use crate::reactor::Inbox;

/// Pages in memory while it is tried whether a volume can do without devices.
const TRIAL_FRAMES: usize = 4096;
/// Threads that answer control requests.
const CONTROL_THREADS: usize = 4;
/// Other threads that use the volume: the housekeeper, the one that starts and stops the target, the one that recalls
/// mapped pages, the one that ends privileges, the one that answers operators, those that read ahead.
const OTHER_THREADS: usize = 5 + readahead::THREADS;
/// Connections at once.
const CONNECTIONS_MAX: usize = 16_384;
/// Pages that a connection pins at most, to read ahead of what its socket takes.
const READ_WINDOW_PAGES: usize = 64;

/// How long a port that is taken is waited for.
const PORT_WAIT: Duration = Duration::from_secs(2);
/// How long connections may take to end in order.
const DRAIN: Duration = Duration::from_secs(2);
/// The same when another target goes on with them.
const DRAIN_FOR_ANOTHER: Duration = Duration::from_millis(300);

/// A running target.
#[derive(Debug)]
pub struct Target {
    address: Option<SocketAddr>,
    tls_address: Option<SocketAddr>,
    tls_door: Option<TlsDoor>,
    mounted: Option<Mounted>,
    mapped: Arc<Mapped>,
    fs: Arc<Fs<TargetStore>>,
    ftl: Arc<Ftl>,
    device: ArrayDevice<FileDevice>,
    /// For whoever makes the volume larger; gone before the device is closed.
    file: Option<Arc<File>>,
    lanes: Option<Arc<Lanes>>,
    readahead: Option<Arc<Readahead>>,
    inboxes: Vec<Arc<Inbox<Job>>>,
    reactors: Vec<JoinHandle<io::Result<()>>>,
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
        Self::start_on(settings, Sockets::default())
    }

    /// What a target with these settings needs of the system beside the volume, as far as it can be had while another one runs, whose
    /// sockets are `offered`: whoever is to be replaced goes on if this fails.
    pub fn prepare(settings: &Settings, offered: Sockets) -> Result<Sockets> {
        if let Some(dir) = &settings.mount {
            if let Some(other) = seen_on(dir).filter(|seen| !seen.is_contigfs()) {
                bail!(
                    "cannot mount on {}: something else is mounted there ({}); unmount that first",
                    dir.display(),
                    String::from_utf8_lossy(&other.kind)
                );
            }
            match fs::metadata(dir) {
                Ok(found) if !found.is_dir() => {
                    bail!("cannot mount on {}: it is no directory", dir.display());
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    bail!(
                        "cannot mount on {}: there is no such directory; make it first",
                        dir.display()
                    );
                }
                // What a killed target left mounted there is removed.
                _ => {}
            }
        }
        let tls_listen = settings.tls.as_ref().map(|tls| tls.listen);
        let Sockets { plain, tls } = offered;
        let ports: Vec<u16> = [&plain, &tls]
            .into_iter()
            .flatten()
            .filter_map(port)
            .collect();
        let listen = |at: Option<SocketAddr>, socket: Option<Socket>, option| {
            match socket.filter(|socket| listens_at(socket, at)) {
                // Its own, for another address or the other kind: when that has ended.
                None if at.is_some_and(|at| ports.contains(&at.port())) => Ok(None),
                taken => listen_on(at, taken, option),
            }
        };
        Ok(Sockets {
            plain: listen(settings.listen, plain, "--listen")?,
            tls: listen(tls_listen, tls, "--tls-listen")?,
        })
    }

    /// The same as [`start`](Self::start), with the sockets that have been [prepared](Self::prepare).
    pub fn start_on(settings: &Settings, sockets: Sockets) -> Result<Self> {
        let tls_listen = settings.tls.as_ref().map(|tls| tls.listen);
        let sockets = Sockets {
            plain: listen_on(settings.listen, sockets.plain, "--listen")?,
            tls: listen_on(tls_listen, sockets.tls, "--tls-listen")?,
        };
        let address = address_of(sockets.plain.as_ref())?;
        let tls_address = address_of(sockets.tls.as_ref())?;
        let epoch = Instant::now();
        let threads = CONTROL_THREADS + settings.fuse.threads_max() + OTHER_THREADS;
        let (ftl, device, clean) = open_volume(settings, threads)?;

        let stags = RegionTable::new(rand::random());
        let inboxes = (0..settings.reactors)
            .map(|_| Inbox::new().map(Arc::new))
            .collect::<io::Result<Vec<_>>>()?;
        let places = Arc::new(Places::new());
        let regions = Regions::new(Arc::clone(&stags), Arc::clone(&places), inboxes.clone());
        let mapped = Mapped::new(inboxes.clone());
        let (control, control_jobs) = ControlSenders::new(CONTROL_THREADS);
        let pages = |index: usize| {
            let port = (Arc::clone(&ftl), Port(index as u16), settings.reactors);
            let files = (Arc::clone(&places), Arc::clone(&mapped));
            FlashPages::new(port, files, Arc::clone(&inboxes[index]))
        };
        let media = Media::of(&device);
        let ports = (settings.reactors, threads);
        let file = only_file(&device)?.map(Arc::new);
        let lanes = media
            .only_fd()
            .map(|fd| Lanes::new(&ftl, fd, &inboxes[0], epoch, ports));
        let sessions = Arc::new(Sessions::default());
        let door = Arc::new(OnceLock::new());
        let connections_max = CONNECTIONS_MAX
            .min((settings.pool_bytes / POOL_PER_CONNECTION) as usize)
            .min(descriptors::connections_max());
        let reception = |index| Reception {
            index,
            door: Arc::clone(&door),
            sessions: Arc::clone(&sessions),
            connections_max,
            inboxes: inboxes.clone(),
            control: control.clone(),
            warned: AtomicU64::new(0),
        };
        let reactors = start_reactors(
            settings,
            &pages,
            (&media, lanes.as_ref()),
            &stags,
            &inboxes,
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
        let verifier = rand::random();
        // Plain memory ends with the process, whatever is said of files.
        let speaks_for_others = settings.dram_bytes.is_none();
        let ended_in_order = clean && speaks_for_others && !has_lost_devices(&ftl);
        let before = registry.farewell(ftl.info().session);
        let verifier_before = before.filter(|_| ended_in_order);
        let service = Arc::new(Service {
            fs: Arc::clone(&fs),
            stags,
            regions,
            mapped: Arc::clone(&mapped),
            tenancy,
            registry: Arc::clone(&registry),
            sessions,
            dram: settings
                .dram_bytes
                .map(|bytes| Buffer::zeroed(bytes as usize)),
            verifier,
            verifier_before,
            inboxes: inboxes.clone(),
        });
        let is_written = |view: &&View| view.record.writable && view.registered.is_some();
        for view in registry.views().iter().filter(is_written) {
            let ino = InodeNo(view.record.inode);
            service
                .watch_privileges(ino)
                .with_context(|| format!("cannot look at inode {ino}, which has regions"))?;
        }
        let control = service.start(control_jobs)?;
        let operator = Operator::of(Arc::clone(&registry));
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
            tls_door: None,
            mounted: None,
            mapped,
            fs,
            ftl,
            device,
            file,
            lanes,
            readahead,
            inboxes,
            reactors,
            control,
            housekeeper: Some(housekeeper),
            privileges: Some(privileges),
            farewell: speaks_for_others.then_some((registry, verifier)),
            handover: None,
            ready_file: settings.ready_file.clone(),
        };
        if let Err(error) = target.open_doors(settings, sockets, operator) {
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
        operator: Operator,
    ) -> Result<()> {
        if let Some(dir) = &settings.mount {
            detach_stale(dir);
            let fs = Arc::clone(&self.fs);
            let cache = self.mapped.page_cache();
            let options = MountOptions {
                target: self.address.map(reachable),
                ..settings.fuse.clone()
            };
            let mounted = mount_with_cache(fs, dir, &options, cache)?;
            info!(dir = %dir.display(), "mounted");
            self.mounted = Some(mounted);
        }
        match Handover::offer(&settings.devices, sockets.try_clone()?, operator) {
            Ok(handover) => self.handover = Some(handover),
            Err(error) => warn!(%error, "this target can not be replaced while it runs"),
        }
        if let Some(listener) = sockets.plain {
            self.inboxes[0]
                .send(Job::Listen(listener))
                .map_err(|_| anyhow!("the reactor ended while starting"))?;
        }
        if let Some((listener, tls)) = sockets.tls.zip(settings.tls.as_ref()) {
            let door = TlsDoor::open(listener, tls.how.clone(), self.inboxes.clone());
            self.tls_door = Some(door.context("cannot listen for TLS")?);
        }
        let text = |at: Option<SocketAddr>| at.map_or("none".to_owned(), |at| at.to_string());
        let (address, tls_address) = (text(self.address), text(self.tls_address));
        if let Some(path) = &settings.ready_file {
            let line_of_tls = match self.tls_address {
                Some(at) => format!("{at}\n"),
                None => String::new(),
            };
            write_ready(path, &format!("{address}\n{line_of_tls}"))
                .with_context(|| format!("cannot write the ready file {}", path.display()))?;
        }
        info!(address, tls_address, "serving");
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

    /// What clients need and has ended by itself, if something has: only what is broken does.
    pub fn failed(&self) -> Option<&'static str> {
        if self.reactors.iter().any(JoinHandle::is_finished) {
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
        let mut first_error = None;
        let mut note = |result: Result<()>| {
            if let Err(error) = result {
                warn!("{error:#}");
                first_error.get_or_insert(error);
            }
        };
        if let Some(mounted) = self.mounted.take() {
            note(unmount(mounted));
        }
        drop(self.housekeeper.take());
        note(
            self.fs
                .sync_all()
                .context("cannot write out the file system"),
        );
        if let Some(readahead) = &self.readahead {
            readahead.stop();
        }
        ask_all(&self.inboxes, |hung_up| Job::HangUp(drain, hung_up));
        for thread in self.control.drain(..) {
            note(
                thread
                    .join()
                    .map_err(|_| anyhow!("a control thread panicked")),
            );
        }
        // Only connections and control threads ask for it.
        drop(self.privileges.take());
        // Files that connections had open for writing got their new times when these ended.
        let settled = self.fs.sync_all();
        if let Some((registry, verifier)) = self.farewell.take()
            && settled.is_ok()
            && !has_lost_devices(&self.ftl)
            && let Err(error) = registry.say_farewell(self.ftl.info().session, verifier)
        {
            // Clients will doubt more than they need to.
            warn!(%error, "cannot tell the next target that this one has ended in order");
        }
        note(settled.context("cannot write out the times of files that clients had open"));
        // Whoever is in the middle of using it keeps it for a moment longer.
        drop(self.file.take());
        // What threads of a mount or a client have set going without being waited for only the reactors carry out.
        let closed = close_volume(&self.inboxes[0]);
        // Whoever waits for the volume waits for them, so they are the last to end.
        for inbox in &self.inboxes {
            let _ = inbox.send(Job::End);
        }
        for reactor in self.reactors.drain(..) {
            let ended = reactor
                .join()
                .map_err(|_| anyhow!("a reactor panicked"))
                .and_then(|result| result.context("a reactor failed"));
            note(ended);
        }
        note(match closed {
            Some(closed) => closed.context("cannot close the volume"),
            None => close_alone(self.ftl, self.device, self.lanes.as_deref()),
        });
        if let Some(path) = &self.ready_file {
            let _ = fs::remove_file(path);
        }
        first_error.map_or(Ok(()), Err)
    }
}

/// Makes a file that holds all of `text` from the beginning. Until then it lies beside its place, under a name that no other
/// target and nobody else has.
fn write_ready(path: &Path, text: &str) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{:08x}.tmp", rand::random::<u32>()));
    let aside = PathBuf::from(name);
    let written = fs::write(&aside, text).and_then(|()| fs::rename(&aside, path));
    if written.is_err() {
        // If it was never made there is none.
        let _ = fs::remove_file(&aside);
    }
    written
}

/// Whether something that was written may be gone with a device.
fn has_lost_devices(ftl: &Ftl) -> bool {
    let devices = ftl.devices();
    devices
        .iter()
        .any(|device| device.state != MemberState::Live)
}

/// Has the first reactor close the volume. None: it has ended by itself.
fn close_volume(reactor: &Inbox<Job>) -> Option<Result<(), VolumeError>> {
    let (done, closed) = waiter();
    reactor.send(Job::Close(done)).ok()?;
    let closed = closed.recv().ok()?;
    Some(closed.map_err(VolumeError::from))
}

/// Closes the volume when there are no reactors.
fn close_alone(
    ftl: Arc<Ftl>,
    mut device: ArrayDevice<FileDevice>,
    lanes: Option<&Lanes>,
) -> Result<()> {
    if let Some(lanes) = lanes {
        lanes.settle();
    }
    let measured = device.measure_again();
    let volume = Volume::new(ftl, device);
    volume.shutdown().context("cannot close the volume")?;
    measured.context("cannot find out how large the device is")
}

/// The file or device of a volume that has only one, open once more.
fn only_file(device: &ArrayDevice<FileDevice>) -> Result<Option<File>> {
    let files: Vec<_> = device.devices().flatten().collect();
    let again = match (device.members(), &files[..]) {
        (None, [file]) => Some(file.file().try_clone()),
        _ => None,
    };
    Ok(again.transpose()?)
}

/// If devices are missing: whether the file system can be read without them. This is tried before anything is written, because
/// from the first write on what is on them is out of date for good, and a volume that can not be used without them is lost.
fn try_without_missing(settings: &Settings, names: &str) -> Result<()> {
    let device = devices::open(&settings.devices, Access::Degraded)?;
    let all = device.members().map_or(&[][..], |members| members.list());
    let gone = all.iter().filter(|member| !member.is_live());
    let gone: Vec<PathBuf> = gone.map(|member| member.name().into()).collect();
    if gone.is_empty() {
        return Ok(());
    }
    let options = OpenOptions {
        pool_frames: TRIAL_FRAMES,
        ..OpenOptions::default()
    };
    // What recovery writes stays in memory.
    let (volume, _) = Volume::open(OverlayDevice::new(device), options)
        .with_context(|| format!("cannot open the volume on {names}"))?;
    let options = FsOptions {
        read_only: true,
        ..FsOptions::default()
    };
    let tried = Fs::mount_with(volume, &options).map(drop);
    tried.with_context(|| {
        let gone = devices::names(&gone);
        format!(
            "cannot read the file system of the volume without {gone} (nothing was written: with that, all is as before)"
        )
    })
}

/// Opens it; also tells whether it was closed in order.
fn open_volume(
    settings: &Settings,
    lanes: usize,
) -> Result<(Arc<Ftl>, ArrayDevice<FileDevice>, bool)> {
    let names = devices::names(&settings.devices);
    let access = match settings.degraded {
        true => Access::Degraded,
        false => Access::Write,
    };
    if settings.degraded {
        try_without_missing(settings, &names)?;
    }
    let mut device = devices::open(&settings.devices, access)?;
    let options = OpenOptions {
        pool_frames: (settings.pool_bytes / GRAIN_BYTES as u64) as usize,
        shared_frames: match settings.fuse.share {
            SharePages::Never => 0,
            _ => (settings.share_bytes / GRAIN_BYTES as u64) as usize,
        },
        ports: (settings.reactors + Lanes::ports(lanes)) as u16,
        gc_policy: settings.gc_policy,
        discard: settings.discard,
        write_out_apart: true,
        now: ftl::Time(0),
        wall_clock_ns: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |t| t.as_nanos() as u64),
        ..OpenOptions::default()
    };
    let (ftl, report) = Ftl::open(&mut device, options)
        .with_context(|| format!("cannot open the volume on {names}"))?;
    info!(device = names, ?report, "volume open");
    if report.devices_lost > 0 {
        let (lost, unknown) = (report.devices_lost, report.headers_lost);
        warn!(
            device = names,
            lost, unknown, "devices of the volume are missing: what is on them is lost"
        );
    } else if report.headers_lost > 0 {
        let lost = report.headers_lost;
        warn!(
            device = names,
            lost, "headers of the log are lost: what they held may be gone, or as it was before"
        );
    }
    Ok((ftl, device, report.clean))
}

fn start_reactors(
    settings: &Settings,
    pages: &dyn Fn(usize) -> FlashPages,
    (media, lanes): (&Media, Option<&Arc<Lanes>>),
    stags: &Arc<RegionTable>,
    inboxes: &[Arc<Inbox<Job>>],
    reception: &dyn Fn(usize) -> Reception,
    epoch: Instant,
) -> Result<Vec<JoinHandle<io::Result<()>>>> {
    let connections = Arc::new(AtomicUsize::new(0));
    let mut threads = Vec::new();
    for index in 0..settings.reactors {
        let pages = pages(index);
        let waker = inboxes[index].waker().clone();
        let wake = Box::new(move || waker.wake());
        pages.ftl.set_waker(pages.port, wake);
        let parts = CoreParts {
            index,
            pages,
            inbox: Arc::clone(&inboxes[index]),
            peers: inboxes.to_vec(),
            media: media.clone(),
            lanes: lanes.filter(|_| index == 0).cloned(),
            table: Arc::clone(stags),
            reception: reception(index),
            config: Config {
                protection_domain: ANONYMOUS,
                // CRCs are used when the peer asks; beyond loopback they always are.
                crc: settings.listen.is_some_and(|at| !at.ip().is_loopback()),
                read_window_pages: READ_WINDOW_PAGES,
                private_profile: true,
                atomics_kept: WINDOW_MAX,
                ..reception::config()
            },
            connections: Arc::clone(&connections),
            poll: settings.poll,
            spin: settings.spin,
            epoch,
        };
        // The ring belongs to the thread that made it, so the core is made there; its failure is told here.
        let (made, outcome) = sync_channel(1);
        let thread =
            Builder::new()
                .name(format!("reactor-{index}"))
                .spawn(move || match Core::new(parts) {
                    Ok(core) => {
                        let _ = made.send(Ok(()));
                        core.run()
                    }
                    Err(error) => {
                        let _ = made.send(Err(error));
                        Ok(())
                    }
                })?;
        outcome
            .recv()
            .context("a reactor ended while starting")?
            .context(
                "cannot set up io_uring (Linux 6.1 or later is needed, and it must be allowed)",
            )?;
        threads.push(thread);
    }
    Ok(threads)
}

/// The port that a socket listens on.
fn port(socket: &Socket) -> Option<u16> {
    let at = socket.local_addr().ok()?.as_socket()?;
    Some(at.port())
}

/// Whether a socket listens where a target shall.
fn listens_at(socket: &Socket, wanted: Option<SocketAddr>) -> bool {
    let at = socket.local_addr().ok().and_then(|at| at.as_socket());
    at.zip(wanted).is_some_and(|(at, wanted)| {
        at.ip() == wanted.ip() && (wanted.port() == 0 || at.port() == wanted.port())
    })
}

/// Where local programs find who listens at `address`.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(match address {
            SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    address
}

/// The socket that listens at an address: one that does already, or a new one. `option` is that which names the address.
fn listen_on(
    at: Option<SocketAddr>,
    taken: Option<Socket>,
    option: &str,
) -> Result<Option<Socket>> {
    match taken {
        Some(socket) => Ok(Some(socket)),
        None => at.map(|at| listen(at, option)).transpose(),
    }
}

/// Where a socket listens.
fn address_of(socket: Option<&Socket>) -> Result<Option<SocketAddr>> {
    let Some(socket) = socket else {
        return Ok(None);
    };
    let at = socket.local_addr()?.as_socket();
    at.context("the listening socket has no IP address")
        .map(Some)
}

/// Listens. A target that was killed has the port until the kernel has taken its ring apart, which is waited for.
fn listen(address: SocketAddr, option: &str) -> Result<Socket> {
    let since = Instant::now();
    loop {
        match try_listen(address) {
            Err(error)
                if error.kind() == io::ErrorKind::AddrInUse && since.elapsed() < PORT_WAIT =>
            {
                std::thread::sleep(Duration::from_millis(2));
            }
            result => {
                let is_taken =
                    matches!(&result, Err(error) if error.kind() == io::ErrorKind::AddrInUse);
                return result.with_context(|| match is_taken {
                    false => format!("cannot listen on {address}"),
                    true => format!(
                        "cannot listen on {address}: is port {} taken? ({option} chooses another)",
                        address.port()
                    ),
                });
            }
        }
    }
}

fn try_listen(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    // A target that was killed leaves connections in TIME_WAIT; its successor must be able to start at once.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(1024)?;
    Ok(socket)
}

/// Unmounts; a mount that somebody uses is taken away from under them rather than left behind dead.
fn unmount(mut mounted: Mounted) -> Result<()> {
    match mounted.unmount() {
        Err(UnmountError::Busy(dir)) => {
            warn!(dir = %dir.display(), "the mount is in use; it is taken away from its users");
            let taken = mounted.take_away(detach);
            taken.with_context(|| format!("cannot unmount {}", dir.display()))
        }
        Err(error @ UnmountError::Covered(_)) => {
            warn!("{error}; what is beneath it is dead from now on");
            mounted.refuse();
            Ok(())
        }
        Err(error @ UnmountError::Elsewhere(_)) => {
            warn!("{error}; it is taken away from there");
            // It may be there for ever, and what is in memory has to be written.
            mounted.refuse();
            Ok(())
        }
        result => result.context("cannot unmount"),
    }
}

/// What is seen on `dir`, if something is mounted there and the mount table can be read.
fn seen_on(dir: &Path) -> Option<MountEntry> {
    // What is dead can not be looked at.
    let dir = dir.canonicalize().or_else(|_| std::path::absolute(dir));
    MountEntry::on(&dir.ok()?).ok()?
}

/// Removes what a killed target left mounted at `dir`.
fn detach_stale(dir: &Path) {
    let stale = |error: io::Error| {
        // The latter for a request that was on its way when the target died.
        matches!(
            error.raw_os_error(),
            Some(libc::ENOTCONN | libc::ECONNABORTED)
        )
    };
    // Not what others have left.
    let is_ours = seen_on(dir).is_none_or(|seen| seen.is_contigfs());
    if is_ours && fs::metadata(dir).is_err_and(stale) {
        match detach(dir) {
            Ok(()) => info!(dir = %dir.display(), "removed the mount of a target that has died"),
            Err(error) => warn!(dir = %dir.display(), %error, "cannot remove a dead mount"),
        }
    }
}

/// Unmounts `dir` even if it is in use.
pub fn detach(dir: &Path) -> io::Result<()> {
    take_down(dir, libc::MNT_DETACH)
}

/// Unmounts what somebody else has mounted on `dir`, with `flags` of umount(2), or with the help that ordinary users
/// need.
pub fn take_down(dir: &Path, flags: libc::c_int) -> io::Result<()> {
    let path = std::ffi::CString::new(dir.as_os_str().as_encoded_bytes())?;
    // SAFETY: a NUL-terminated path that lives over the call.
    if unsafe { libc::umount2(path.as_ptr(), flags) } == 0 {
        return Ok(());
    }
    let denied = io::Error::last_os_error();
    if denied.raw_os_error() != Some(libc::EPERM) {
        return Err(denied);
    }
    match unmount_by_helper(dir, flags & libc::MNT_DETACH != 0) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(denied),
        helped => helped,
    }
}
