//! Formatting and opening volumes.

use crate::addr::{GRAIN_BYTES, Pba};
use crate::checkpoint::UNIT_PAGES;
use crate::core::{CLONE_URGES, Core};
use crate::device::{Device, MediaError, Members};
use crate::engine::{Ftl, VolumeInfo};
use crate::error::{FormatError, OpenError};
use crate::format::{Fresh, LABEL_GRAINS, Label, LabelledDevice, Sessions, Superblock};
use crate::geometry::Geometry;
use crate::ids::{Port, Time};
use crate::inbox::Inbox;
use crate::map::{FRAME_BITS, MapTable, Moves};
use crate::page::Pool;
use crate::placement::GcPolicy;
use crate::planted::Bug;
use crate::port::PortQueue;
use crate::recover::io::MediaIo;
use crate::recover::{How, RecoveryReport, read_superblock, recover, write_superblock};
use crate::shared::{NEVER, Shared};
use crate::stats::Counters;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};

/// How to format a device.
#[derive(Clone, Debug)]
pub struct FormatOptions {
    /// Share of the device that stays hidden, in percent.
    pub overprovision_percent: u8,
    /// Segment size; chosen by the size of the device when not given.
    pub segment_bytes: Option<u64>,
    /// Logical capacity; what the device and the hidden share allow when not given.
    pub capacity_grains: Option<u64>,
    /// Identity; random when not given.
    pub uuid: Option<[u8; 16]>,
    /// Bytes for the layer above.
    pub owner: [u8; 16],
    /// Unix time in nanoseconds, information only.
    pub created_ns: u64,
    /// Grains for checkpoints; a 64th of the device when not given, 0 for none (then every opening reads all
    /// headers).
    pub checkpoint_grains: Option<u64>,
}

impl Default for FormatOptions {
    fn default() -> Self {
        Self {
            overprovision_percent: 20,
            segment_bytes: None,
            capacity_grains: None,
            uuid: None,
            owner: [0; 16],
            created_ns: 0,
            checkpoint_grains: None,
        }
    }
}

/// How to open a volume.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Pages held in memory, at least 16.
    pub pool_frames: usize,
    /// Most grains that may be [shared](Ftl::share) at once, beside those of the pool.
    pub shared_frames: usize,
    /// Number of drivers.
    pub ports: u16,
    /// Time now, on the drivers' clock.
    pub now: Time,
    /// Unix time now in nanoseconds; only goes into headers.
    pub wall_clock_ns: u64,
    /// Dirty pages are written out after this long at the latest.
    pub dirty_age_ns: u64,
    /// How grains are placed and victims chosen.
    pub gc_policy: GcPolicy,
    /// Pages are due for write-out as soon as they are put, instead of when they are old or many: every put of a
    /// changed page is a write.
    pub write_through: bool,
    /// What is due for write-out because many pages are dirty is left to the driver of port 0, who is woken, and whoever put
    /// the last of them goes on: only where a thread drives that port all the time.
    pub write_out_apart: bool,
    /// Segments that have become free are discarded, one at a time. Of an image file that gives back the space it
    /// reserved, and later durable writes wait for the file system to find it again.
    pub discard: bool,
    /// The device keeps headers only: data is neither copied nor checked. For replaying traces.
    #[doc(hidden)]
    pub dataless: bool,
    /// Bug to have, in tests.
    #[doc(hidden)]
    pub planted: Option<Bug>,
    /// Read all headers, whatever checkpoints say: the repair path.
    pub rebuild: bool,
    /// With more grains that the device can not read, other than by their checksums, nothing is opened ([`OpenError::Unreadable`]): what is
    /// lost then is given up for good, and a device that has gone for a while reads again later. Repairs go on with what there is.
    pub unreadable_max: u64,
    /// A checkpoint is due after this many headers, where each of them is the first grain of a segment, which opening
    /// reads anyway; where segments hold several, after two thirds as many. 0: none is taken, except by a shutdown.
    pub checkpoint_headers: u64,
    /// Maps of up to this many pages of 4 KiB are read while opening; larger ones when they are needed.
    pub map_pages_eager: usize,
    /// Entries of each share of the sweep, and the map read page by page: small volumes behave like large ones.
    #[doc(hidden)]
    pub sweep_entries: Option<u64>,
    /// Records that the copy of one grain takes at most; none: what its header has room for.
    #[doc(hidden)]
    pub names_max: Option<usize>,
    /// Times that pages to be cloned are made urgent before they are copied.
    #[doc(hidden)]
    pub clone_urges: Option<u32>,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            pool_frames: 4096,
            shared_frames: 0,
            ports: 1,
            now: Time(0),
            wall_clock_ns: 0,
            dirty_age_ns: 1_000_000_000,
            gc_policy: GcPolicy::default(),
            write_through: false,
            write_out_apart: false,
            discard: false,
            dataless: false,
            planted: None,
            rebuild: false,
            unreadable_max: 8,
            checkpoint_headers: 1536,
            map_pages_eager: 64,
            sweep_entries: None,
            names_max: None,
            clone_urges: None,
        }
    }
}

/// Grains at the beginning of a device that say what is on it: superblock, roots, label.
const FRONT_GRAINS: u64 = 8;

/// Tells every device of an array who it is.
fn write_labels(
    io: &mut MediaIo<'_>,
    members: &Members,
    volume: [u8; 16],
) -> Result<(), MediaError> {
    let devices = members.list().iter().map(|member| LabelledDevice {
        uuid: member.uuid(),
        grains: member.grains(),
        path: member.name().to_owned(),
    });
    let devices: Vec<LabelledDevice> = devices.collect();
    for (index, front) in io.fronts().into_iter().enumerate() {
        let label = Label {
            volume,
            index,
            devices: devices.clone(),
        };
        for at in LABEL_GRAINS {
            io.write(Pba(front.0 + at.0), &label.emit())?;
        }
    }
    io.flush()
}

/// Fewest frames a pool works with.
const FRAMES_MIN: usize = 16;
/// Most frames of a pool, and most of them that are shared beside those.
const FRAMES_MAX: usize = 1 << 28;
const _: () = assert!(2 * FRAMES_MAX < 1 << FRAME_BITS);

impl Ftl {
    /// Makes a volume of a device. Everything on it is lost: the old superblock goes first, the new one comes last.
    pub fn format(
        device: &mut dyn Device,
        options: &FormatOptions,
    ) -> Result<VolumeInfo, FormatError> {
        let no_memory = |_| MediaError::NoSpace;
        let mut io = MediaIo::new(device).map_err(no_memory)?;
        let sizes = io.sizes();
        let geometry = Geometry::derive(
            &sizes,
            options.segment_bytes,
            options.overprovision_percent,
            options.capacity_grains,
            options.checkpoint_grains,
        )?;
        let uuid = options
            .uuid
            .unwrap_or_else(|| *uuid::Uuid::new_v4().as_bytes());
        // Roots and labels of an earlier format of the device go with the superblocks.
        for front in io.fronts() {
            for at in 0..FRONT_GRAINS {
                io.write(Pba(front.0 + at), &[0; GRAIN_BYTES])?;
            }
        }
        io.flush()?;
        if let Some(members) = io.members().cloned() {
            write_labels(&mut io, &members, uuid)?;
            members.lay_out(geometry);
        }
        let mut superblock = Superblock {
            uuid,
            generation: 0,
            session: 0,
            geometry,
            clean: true,
            suspect: false,
            owner: options.owner,
            created_ns: options.created_ns,
            roots_from: 0,
            failed: 0,
            fresh: Fresh::default(),
            images: false,
            heat: false,
            sessions: Sessions::default(),
        };
        // Headers of an earlier volume carry another UUID and are not ours.
        write_superblock(&mut io, &mut superblock)?;
        match io.lost() {
            None => Ok(VolumeInfo::of(&superblock)),
            Some(_) => Err(FormatError::Media(MediaError::Gone)),
        }
    }

    /// What volume lies on a device, by its superblock alone. Nothing is written.
    pub fn probe(device: &mut dyn Device) -> Result<VolumeInfo, OpenError> {
        let mut io = MediaIo::new(device).map_err(OpenError::Memory)?;
        let (superblock, _) = read_superblock(&mut io)?;
        Ok(VolumeInfo::of(&superblock))
    }

    /// Opens a volume, recovering whatever the last session left, and begins a new session.
    pub fn open(
        device: &mut dyn Device,
        options: OpenOptions,
    ) -> Result<(Arc<Self>, RecoveryReport), OpenError> {
        if options.pool_frames < FRAMES_MIN {
            return Err(OpenError::Options("a pool has at least 16 frames"));
        }
        if options.pool_frames > FRAMES_MAX {
            return Err(OpenError::Options("a pool has at most 2^28 frames"));
        }
        if options.shared_frames > FRAMES_MAX {
            return Err(OpenError::Options("at most 2^28 frames are shared"));
        }
        if options.ports == 0 {
            return Err(OpenError::Options("a volume has at least one port"));
        }
        let map = MapTable::default();
        let how = How {
            rebuild: options.rebuild,
            unreadable_max: options.unreadable_max,
            pages_eager: options.map_pages_eager,
            unit_pages: options.sweep_entries.map_or(UNIT_PAGES, |_| 1),
            policy: options.gc_policy,
            planted: options.planted,
        };
        let (found, report) = recover(device, &map, how)?;
        let geometry = found.superblock.geometry;
        let info = VolumeInfo::of(&found.superblock);
        let placement = options.gc_policy.build(&geometry, found.time);
        let frames = (options.pool_frames, options.shared_frames);
        let pool = Pool::new(frames.0, frames.1, &geometry, placement.streams())
            .map_err(OpenError::Memory)?;
        let shared = Shared {
            pool,
            map,
            write_out_data_max: geometry.write_out_data_max(),
            counters: Counters::default(),
            ports: (0..options.ports)
                .map(|p| PortQueue::new(Port(p)))
                .collect(),
            map_cold: AtomicBool::new(!found.cold.is_warm()),
            moves: Moves::default(),
            keeping: AtomicBool::new(false),
            core: Mutex::new(Core::new(
                found,
                frames,
                placement,
                options.checkpoint_headers,
                options.sweep_entries,
            )),
            inbox: Inbox::default(),
            frames_wanted: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            now: AtomicU64::new(options.now.0),
            deadline: AtomicU64::new(NEVER),
            wall_offset_ns: options.wall_clock_ns.wrapping_sub(options.now.0),
            age_ns: options.dirty_age_ns,
            write_through: options.write_through,
            write_out_apart: options.write_out_apart,
            write_out_due: AtomicBool::new(false),
            dataless: options.dataless,
            names_max: options.names_max.unwrap_or(usize::MAX).max(1),
            discard: options.discard,
            members: device.members().cloned(),
            clone_urges: options.clone_urges.unwrap_or(CLONE_URGES),
            planted: options.planted,
        };
        Ok((Self::assemble(Arc::new(shared), info), report))
    }
}
