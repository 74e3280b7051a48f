//! The volume, and the reactors that serve it.

use std::fs::File;
use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use anyhow::Result;
use ftl::device::FileDevice;
use ftl::{ArrayDevice, Ftl, Port};
use softrdma::RegionTable;

use crate::credentials::Door;
use crate::descriptors;
use crate::reactor::Inbox;
use crate::target::core::{ControlJobs, ControlSenders};
use crate::target::job::Job;
use crate::target::lane::Lanes;
use crate::target::mapped::Mapped;
use crate::target::media::Media;
use crate::target::pages::{FlashPages, POOL_PER_CONNECTION};
use crate::target::places::Places;
use crate::target::reactors::Reactors;
use crate::target::readahead;
use crate::target::reception::{Arrivals, Reception};
use crate::target::regions::Regions;
use crate::target::sessions::Sessions;
use crate::target::settings::Settings;
use crate::target::snapshots::{self, SnapshotFiles};
use crate::target::status::ReactorMeters;
use crate::target::volume;

/// Threads that answer control requests.
const CONTROL_THREADS: usize = 4;
/// Other threads that use the volume: the housekeeper, the one that starts and stops the target, the one that recalls
/// mapped pages, the one that ends privileges, the one that answers operators, the one that answers monitoring systems, those that
/// read ahead, those that read snapshots for peers, and the one that gives back what deleted ones held.
const OTHER_THREADS: usize = 7 + readahead::THREADS + snapshots::THREADS;
/// Connections at once.
const CONNECTIONS_MAX: usize = 16_384;

/// An open volume, and the reactors that serve it. Nobody can connect yet, and nobody would be let in.
#[derive(Debug)]
pub(super) struct Engine {
    /// When the target was started; what its threads count time from.
    pub epoch: Instant,
    pub ftl: Arc<Ftl>,
    pub device: ArrayDevice<FileDevice>,
    /// Whether the volume had been closed in order.
    pub was_clean: bool,
    /// For whoever makes the volume larger.
    pub file: Option<Arc<File>>,
    pub media: Media,
    /// For threads that make the system calls of their requests themselves.
    pub lanes: Option<Arc<Lanes>>,
    /// Threads that use the volume beside the reactors.
    pub threads: usize,
    pub stags: Arc<RegionTable>,
    pub regions: Arc<Regions>,
    pub mapped: Arc<Mapped>,
    pub snapshots: Arc<SnapshotFiles>,
    pub sessions: Arc<Sessions>,
    /// Who is let in: nobody until that is known.
    pub door: Arc<OnceLock<Door>>,
    pub arrivals: Arc<Arrivals>,
    pub connections_max: usize,
    pub inboxes: Vec<Arc<Inbox<Job>>>,
    pub meters: Vec<Arc<ReactorMeters>>,
    /// What the reactors leave to threads.
    pub control_jobs: Vec<ControlJobs>,
    pub reactors: Reactors,
}

impl Engine {
    /// Opens the volume and starts the reactors.
    pub(super) fn start(settings: &Settings) -> Result<Self> {
        let epoch = Instant::now();
        let threads = CONTROL_THREADS + settings.fuse.threads_max() + OTHER_THREADS;
        let (ftl, device, was_clean) = volume::open(settings, threads)?;
        let stags = RegionTable::new(rand::random());
        let inboxes = (0..settings.reactors)
            .map(|_| Inbox::new().map(Arc::new))
            .collect::<io::Result<Vec<_>>>()?;
        let places = Arc::new(Places::new());
        let regions = Regions::new(Arc::clone(&stags), Arc::clone(&places), inboxes.clone());
        let mapped = Mapped::new(inboxes.clone());
        let snapshots = Arc::new(SnapshotFiles::default());
        // The reactors get all the senders, so control threads end after them.
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
        Ok(Self {
            epoch,
            ftl,
            device,
            was_clean,
            file,
            media,
            lanes,
            threads,
            stags,
            regions,
            mapped,
            snapshots,
            sessions,
            door,
            arrivals,
            connections_max,
            inboxes,
            meters,
            control_jobs,
            reactors,
        })
    }
}
