//! Sizes of a test volume: as small as possible, so that collection, sealing and reuse of segments never stop.

use ftl::device::sim::SimImage;
use ftl::planted::Bug;
use ftl::{FormatOptions, GRAIN_BYTES, OpenOptions, Time};

use super::oracle::Violation;
use super::rig::Rig;

/// Geometry and workload.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) segment_grains: u64,
    pub(crate) segments: u64,
    /// Grains that may be mapped.
    pub(crate) capacity: u64,
    pub(crate) pool_frames: usize,
    pub(crate) ports: u16,
    /// Operations that wait for an answer at the same time.
    pub(crate) outstanding: usize,
    /// Pages kept pinned at the same time.
    pub(crate) held_max: usize,
    /// Grains in use, in percent of the capacity; above 100 the volume fills up now and then.
    pub(crate) universe_percent: u64,
    /// Hardly any syncs, so that much is at stake at the same time.
    pub(crate) lazy: bool,
    /// What is due because there is much of it is left to the driver of the first port.
    pub(crate) apart: bool,
    /// Every batch reserves a range.
    pub(crate) reserving: bool,
    /// Every fifth operation is a remap.
    pub(crate) remapping: bool,
    /// Every fifth operation is a clone.
    pub(crate) cloning: bool,
    /// Times that pages to be cloned are made urgent before they are copied.
    pub(crate) clone_urges: Option<u32>,
    /// Names that a copy carries at most.
    pub(crate) names_max: Option<usize>,
    /// Grains for checkpoints.
    pub(crate) area: u64,
    /// Headers between checkpoints.
    pub(crate) checkpoint_headers: u64,
    /// Pages of the map that are read while opening, at most.
    pub(crate) eager: usize,
    /// Entries of a share of the sweep; none: small maps are written whole.
    pub(crate) sweep: Option<u64>,
    /// Openings read all headers.
    pub(crate) rebuild: bool,
    /// Free segments are discarded.
    pub(crate) discard: bool,
    /// Grains of the device behind the volume, with something in them.
    pub(crate) spare: u64,
    /// Segments of each device of an array; none: one device with all of them.
    pub(crate) array: Vec<u64>,
    pub(crate) bug: Option<Bug>,
}

impl Options {
    /// A dozen segments of 64 KiB.
    pub(crate) fn tiny() -> Self {
        Self {
            segment_grains: 16,
            segments: 12,
            capacity: 76,
            pool_frames: 48,
            ports: 2,
            outstanding: 24,
            held_max: 3,
            universe_percent: 90,
            lazy: false,
            apart: false,
            reserving: false,
            remapping: false,
            cloning: false,
            clone_urges: None,
            names_max: None,
            area: 32,
            checkpoint_headers: 1,
            eager: 0,
            sweep: None,
            rebuild: false,
            discard: false,
            spare: 0,
            array: Vec::new(),
            bug: None,
        }
    }

    /// The same, most of the time with more to write than there is room for.
    pub(crate) fn scarce() -> Self {
        Self {
            universe_percent: 260,
            ..Self::tiny()
        }
    }

    pub(crate) fn device_bytes(&self) -> usize {
        (16 + self.segments * self.segment_grains + self.area) as usize * GRAIN_BYTES
    }

    /// Grains of a volume on one device, as it is formatted.
    pub(crate) fn volume_grains(&self) -> u64 {
        (self.device_bytes() / GRAIN_BYTES) as u64
    }

    /// Grains of each device.
    pub(crate) fn sizes(&self) -> Vec<u64> {
        if self.array.is_empty() {
            return vec![self.volume_grains() + self.spare];
        }
        let devices = self.array.iter().enumerate();
        let size = |(index, segments): (usize, &u64)| {
            let area = if index < 2 { self.area } else { 0 };
            16 + segments * self.segment_grains + area
        };
        devices.map(size).collect()
    }

    /// An image taken of these devices, ready to be opened.
    pub(crate) fn rig(&self, image: impl Into<SimImage>, seed: u64) -> Result<Rig, Violation> {
        Rig::assemble(image.into(), &self.sizes(), seed, &[])
    }

    pub(crate) fn format(&self) -> FormatOptions {
        FormatOptions {
            segment_bytes: Some(self.segment_grains * GRAIN_BYTES as u64),
            capacity_grains: Some(self.capacity),
            uuid: Some(*b"crash-test-image"),
            checkpoint_grains: Some(self.area),
            ..FormatOptions::default()
        }
    }

    pub(crate) fn open(&self) -> OpenOptions {
        OpenOptions {
            pool_frames: self.pool_frames,
            ports: self.ports,
            now: Time(1),
            write_out_apart: self.apart,
            planted: self.bug,
            checkpoint_headers: self.checkpoint_headers,
            map_pages_eager: self.eager,
            rebuild: self.rebuild,
            discard: self.discard,
            sweep_entries: self.sweep,
            clone_urges: self.clone_urges,
            names_max: self.names_max,
            ..OpenOptions::default()
        }
    }

    /// The same without a device, which is lost.
    pub(crate) fn rig_without(
        &self,
        lost: usize,
        image: impl Into<SimImage>,
    ) -> Result<Rig, Violation> {
        Rig::assemble(image.into(), &self.sizes(), 1, &[lost])
    }

    /// The grains that are ever touched: three clusters far apart, like three files.
    pub(crate) fn universe(&self) -> Vec<u64> {
        let count = self.capacity * self.universe_percent / 100;
        let place = |n: u64| match n % 3 {
            0 => n / 3,
            1 => (5 << 24) + n / 3,
            _ => (1 << 52) - 1 - n / 3,
        };
        (0..count).map(place).collect()
    }
}
