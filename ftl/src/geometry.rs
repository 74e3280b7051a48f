//! Sizes of a volume, derived once and checked once.

use crate::addr::{GRAIN_BYTES, Pba, SegmentId};
use crate::error::{FormatError, ResizeError};
use crate::format::RECORDS_MAX;
use crate::map::PBA_BITS;
use crate::places::{DEVICES_MAX, Places};

/// First grain of segment 0; the superblock copies and room for their successors lie before it.
pub(crate) const FIRST_SEGMENT_GRAIN: u64 = 16;
/// Smallest segment.
pub(crate) const SEGMENT_GRAINS_MIN: u32 = 16;
/// Largest segment (512 MiB).
pub(crate) const SEGMENT_GRAINS_MAX: u32 = (512 << 20) / GRAIN_BYTES as u32;
/// Most data grains in one write-out: 768 KiB with its header, 21.4 bytes of header for each grain.
pub(crate) const WRITE_OUT_DATA_MAX: usize = 191;
/// Free segments that only relocation may open (I17).
pub(crate) const RESERVED_SEGMENTS: usize = 3;
/// Segments that the capacity does not count on: reserved, one open per stream, one on its way to freedom.
const UNCOUNTED_SEGMENTS: u64 = RESERVED_SEGMENTS as u64 + 3;
/// Fewest segments of a volume.
const SEGMENTS_MIN: u64 = UNCOUNTED_SEGMENTS + 2;

/// Smallest area for checkpoints; smaller devices than 16 MiB have none unless asked for.
const AREA_GRAINS_MIN: u64 = 24;

const _: () = assert!(WRITE_OUT_DATA_MAX <= RECORDS_MAX);

/// Devices that keep checkpoints: each has all of them.
pub(crate) const AREAS_MAX: usize = 2;

/// Where things lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Grains of all devices.
    pub device_grains: u64,
    /// Where each device begins.
    pub places: Places,
    /// Grains of a segment, a power of two.
    pub segment_grains: u32,
    /// Number of segments.
    pub segment_count: u32,
    /// Grains that may be mapped at the same time.
    pub capacity_grains: u64,
    /// Grains behind the segments that checkpoints are kept in; 0: none are taken. In an array the first two devices
    /// have as many each.
    pub area_grains: u64,
}

impl Geometry {
    /// Lays a volume out on devices of `sizes` grains. `overprovision_percent` of them stay hidden, or as much more as
    /// the reserves take; an explicit `capacity` must fit. `area` grains are for checkpoints: a 64th when not given.
    ///
    /// An array always has an area: what a device that is lost took along is known from checkpoints only.
    pub fn derive(
        sizes: &[u64],
        segment_bytes: Option<u64>,
        overprovision_percent: u8,
        capacity: Option<u64>,
        area: Option<u64>,
    ) -> Result<Self, FormatError> {
        if !(1..=DEVICES_MAX).contains(&sizes.len()) {
            return Err(FormatError::Devices {
                given: sizes.len(),
                most: DEVICES_MAX,
            });
        }
        let is_array = sizes.len() > 1;
        let device_grains = sizes.iter().fold(0, |sum: u64, &n| sum.saturating_add(n));
        let segment_grains = match segment_bytes {
            None => default_segment_grains(device_grains),
            Some(bytes) => bytes / GRAIN_BYTES as u64,
        };
        let legal = u64::from(SEGMENT_GRAINS_MIN)..=u64::from(SEGMENT_GRAINS_MAX);
        if !legal.contains(&segment_grains)
            || !segment_grains.is_power_of_two()
            || segment_bytes.is_some_and(|b| b % GRAIN_BYTES as u64 != 0)
        {
            return Err(FormatError::SegmentSize);
        }
        let area_grains = match area {
            None => default_area(device_grains, is_array),
            Some(0) if !is_array => 0,
            Some(grains) => grains.max(AREA_GRAINS_MIN),
        };
        let mut geometry = Self {
            device_grains,
            places: Places::new(sizes, |_| 0),
            segment_grains: segment_grains as u32,
            segment_count: 0,
            capacity_grains: 0,
            area_grains,
        };
        for (device, &grains) in sizes.iter().enumerate() {
            // What is worth having in an array is some segments, not a place for checkpoints.
            let needed = geometry.outside(device) + u64::from(is_array) * segment_grains;
            if grains < needed {
                return Err(FormatError::TooSmall { grains, needed });
            }
        }
        let places = geometry.lay_out(sizes);
        geometry.places = places;
        geometry.segment_count = places.segment_count();
        let count = u64::from(geometry.segment_count);
        if count < SEGMENTS_MIN {
            let missing = (SEGMENTS_MIN - count) * segment_grains;
            let used =
                |device| geometry.outside(device) + geometry.segments_on(device) * segment_grains;
            let used: u64 = (0..sizes.len()).map(used).sum();
            return Err(FormatError::TooSmall {
                grains: device_grains,
                needed: used + missing,
            });
        }
        let max = geometry.capacity_max();
        let share = u64::from(100 - overprovision_percent.min(99));
        let wanted = capacity.unwrap_or_else(|| {
            (device_grains / 100 * share + device_grains % 100 * share / 100).min(max)
        });
        if wanted > max || wanted == 0 {
            return Err(FormatError::Capacity { max });
        }
        geometry.capacity_grains = wanted;
        Ok(geometry)
    }

    /// The layout of this volume on a device of another size: what formatting would choose, with the same segments and
    /// the same share hidden. See `docs/resize.md`.
    pub fn resized(&self, device_grains: u64) -> Result<Self, ResizeError> {
        if self.places.count() > 1 {
            return Err(ResizeError::Array);
        }
        let segment_bytes = u64::from(self.segment_grains) * GRAIN_BYTES as u64;
        let old = self.device_grains;
        let area = match default_area(old, false) == self.area_grains {
            true => default_area(device_grains, false),
            false => in_proportion(self.area_grains, device_grains, old),
        };
        let derive = |grains, percent, capacity, area| {
            Self::derive(
                &[grains],
                Some(segment_bytes),
                percent,
                capacity,
                Some(area),
            )
        };
        let gives_capacity = |percent: &u8| {
            derive(old, *percent, None, self.area_grains)
                .is_ok_and(|g| g.capacity_grains == self.capacity_grains)
        };
        let percents = [USUAL_PERCENT].into_iter().chain((0..100).rev());
        let resized = match percents.into_iter().find(gives_capacity) {
            Some(percent) => derive(device_grains, percent, None, area),
            None => derive(device_grains, 0, None, area).and_then(|most| {
                let capacity = in_proportion(self.capacity_grains, device_grains, old);
                let capacity = capacity.clamp(1, most.capacity_grains);
                derive(device_grains, 0, Some(capacity), area)
            }),
        };
        let resized = resized.map_err(|error| match error {
            FormatError::TooSmall { needed, .. } => ResizeError::TooSmall { needed },
            _ => ResizeError::Layout,
        })?;
        // What is read from the media later is judged like this, too.
        resized.sane().map_err(|_| ResizeError::Layout)?;
        Ok(resized)
    }

    /// The smallest device that this volume can be shrunk to with `mapped` grains in it.
    pub fn smallest_for(&self, mapped: u64) -> Result<u64, ResizeError> {
        if self.places.count() > 1 {
            return Err(ResizeError::Array);
        }
        let fits = |grains| {
            self.resized(grains)
                .is_ok_and(|g| g.capacity_grains >= mapped)
        };
        let (mut too_small, mut enough) = (0, self.device_grains);
        while enough - too_small > 1 {
            let middle = too_small + (enough - too_small) / 2;
            match fits(middle) {
                true => enough = middle,
                false => too_small = middle,
            }
        }
        Ok(enough)
    }

    /// Grains of a device that are in no segment for sure.
    fn outside(&self, device: usize) -> u64 {
        let area = if device < AREAS_MAX {
            self.area_grains
        } else {
            0
        };
        FIRST_SEGMENT_GRAIN.saturating_add(area)
    }

    /// As many segments on each device as fit.
    fn lay_out(&self, sizes: &[u64]) -> Places {
        Places::new(sizes, |device| {
            let room = sizes[device].saturating_sub(self.outside(device));
            (room / u64::from(self.segment_grains)).min(u64::from(u32::MAX)) as u32
        })
    }

    /// Segments of a device.
    pub(crate) fn segments_on(&self, device: usize) -> u64 {
        self.places.segments(device).len() as u64
    }

    /// Sizes that were read from the media, each for itself possible; [`Geometry::sane`] says whether they fit.
    pub(crate) fn read(
        sizes: &[u64],
        segment_grains: u32,
        segment_count: u32,
        capacity_grains: u64,
        area_grains: u64,
    ) -> Self {
        let mut geometry = Self {
            device_grains: sizes.iter().fold(0, |sum: u64, &n| sum.saturating_add(n)),
            places: Places::new(sizes, |_| segment_count),
            segment_grains,
            segment_count,
            capacity_grains,
            area_grains,
        };
        // Of one device the superblock says how many segments there are; they may be fewer than fit.
        if sizes.len() > 1 && segment_grains > 0 {
            geometry.places = geometry.lay_out(sizes);
        }
        geometry
    }

    /// Data grains in a segment that relocation has filled.
    pub(crate) fn data_per_segment(&self) -> u64 {
        let grains = u64::from(self.segment_grains);
        grains - grains.div_ceil(WRITE_OUT_DATA_MAX as u64 + 1)
    }

    /// The largest capacity with which collection always gains: were all of it live and spread evenly, some
    /// segment would still hold at least two grains less than relocation packs into one; 1/32 is left for
    /// tombstones and zero records.
    pub fn capacity_max(&self) -> u64 {
        self.capacity_of(u64::from(self.segment_count))
    }

    /// The same if there were so many segments.
    pub(crate) fn capacity_of(&self, segments: u64) -> u64 {
        let counted = segments.saturating_sub(UNCOUNTED_SEGMENTS);
        let grains = counted * (self.data_per_segment() - 1);
        grains - grains / 32
    }

    /// Segments that are not needed to hold the capacity.
    pub(crate) fn spare_segments(&self) -> u64 {
        let needed = self.capacity_grains.div_ceil(self.data_per_segment());
        u64::from(self.segment_count).saturating_sub(needed)
    }

    /// First grain of a segment.
    pub fn segment_start(&self, segment: SegmentId) -> Pba {
        let device = self.places.device_of_segment(segment);
        let index = segment.0 - self.places.segments(device).start;
        self.segment_place(device, index)
    }

    fn segment_place(&self, device: usize, index: u32) -> Pba {
        let start = self.places.start(device).0 + FIRST_SEGMENT_GRAIN;
        Pba(start + u64::from(index) * u64::from(self.segment_grains))
    }

    /// First grain of the area for checkpoints.
    pub(crate) fn area_start(&self) -> Pba {
        self.area_on(0)
    }

    /// Behind the segments of a device.
    pub(crate) fn area_on(&self, device: usize) -> Pba {
        self.segment_place(device, self.segments_on(device) as u32)
    }

    /// The segment a grain lies in, and its position there.
    pub fn locate(&self, pba: Pba) -> Option<(SegmentId, u32)> {
        let device = self.places.device_of(pba)?;
        let on_device = pba.0 - self.places.start(device).0;
        let index = on_device.checked_sub(FIRST_SEGMENT_GRAIN)?;
        let segment = index / u64::from(self.segment_grains);
        if segment >= self.segments_on(device) {
            return None;
        }
        Some((
            SegmentId(self.places.segments(device).start + segment as u32),
            (index % u64::from(self.segment_grains)) as u32,
        ))
    }

    /// The segment of a grain that is known to lie in one.
    pub(crate) fn segment_of(&self, pba: Pba) -> SegmentId {
        self.locate(pba).expect("address inside a segment").0
    }

    /// Most data grains in one write-out of this volume.
    pub(crate) fn write_out_data_max(&self) -> usize {
        WRITE_OUT_DATA_MAX.min(self.segment_grains as usize - 1)
    }

    /// Whether a full write-out fills a segment, so that its header is the first grain of one.
    pub(crate) fn writes_once_per_segment(&self) -> bool {
        self.segment_grains as usize <= WRITE_OUT_DATA_MAX + 1
    }

    /// Whether the numbers fit each other; they come from the media.
    pub(crate) fn sane(&self) -> Result<(), &'static str> {
        let legal = SEGMENT_GRAINS_MIN..=SEGMENT_GRAINS_MAX;
        if !legal.contains(&self.segment_grains) || !self.segment_grains.is_power_of_two() {
            return Err("segment size");
        }
        if u64::from(self.segment_count) < SEGMENTS_MIN || self.device_grains >= 1 << PBA_BITS {
            return Err("segment count");
        }
        let area = self.area_grains;
        if area > self.device_grains || (1..AREA_GRAINS_MIN).contains(&area) {
            return Err("area for checkpoints");
        }
        let count = self.places.count();
        if count > 1 && (area == 0 || self.places.segment_count() != self.segment_count) {
            return Err("segments of the devices");
        }
        for device in 0..count {
            let used = self.segments_on(device) * u64::from(self.segment_grains);
            if self.outside(device) + used > self.places.grains(device) {
                return Err("segments beyond the device");
            }
        }
        if self.capacity_grains == 0 || self.capacity_grains > self.capacity_max() {
            return Err("capacity");
        }
        Ok(())
    }
}

/// The share that is hidden unless somebody asks for another one.
pub(crate) const USUAL_PERCENT: u8 = 20;

/// Grains for checkpoints when nobody asks for another number.
fn default_area(device_grains: u64, is_array: bool) -> u64 {
    match device_grains < 4096 && !is_array {
        true => 0,
        false => (device_grains / 64).max(64),
    }
}

/// `part` of `old` as a part of `new`.
fn in_proportion(part: u64, new: u64, old: u64) -> u64 {
    (u128::from(part) * u128::from(new) / u128::from(old.max(1))) as u64
}

/// A 2048th of the device, as a power of two between 512 KiB and 512 MiB, but at least 64 segments when the device is
/// that small.
fn default_segment_grains(device_grains: u64) -> u64 {
    let ideal = (device_grains / 2048).clamp(128, u64::from(SEGMENT_GRAINS_MAX));
    let mut grains = 1 << ideal.ilog2();
    while grains > u64::from(SEGMENT_GRAINS_MIN) && device_grains / grains < 64 {
        grains /= 2;
    }
    grains
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Default layouts: segment sizes of the design, 20 % hidden when the reserves allow it.
    #[test]
    fn defaults() {
        let gib = (1u64 << 30) / GRAIN_BYTES as u64;
        let g = Geometry::derive(&[16 * gib], None, 20, None, None).expect("16 GiB");
        assert_eq!(u64::from(g.segment_grains) * GRAIN_BYTES as u64, 8 << 20);
        assert_eq!(
            g.capacity_grains,
            16 * gib / 100 * 80 + 16 * gib % 100 * 80 / 100
        );
        let g = Geometry::derive(&[1024 * gib], None, 20, None, None).expect("1 TiB");
        assert_eq!(u64::from(g.segment_grains) * GRAIN_BYTES as u64, 512 << 20);
        let tiny = Geometry::derive(&[16 + 8 * 16], Some(16 * 4096), 20, None, None).expect("tiny");
        assert_eq!(tiny.capacity_grains, tiny.capacity_max());
        assert!(tiny.sane().is_ok());
    }

    /// Another size is what formatting would have made of it; back again it is as it was (resize.md).
    #[test]
    fn other_sizes() {
        // Of a smaller share than the reserves take nobody can tell afterwards how small it was.
        for percent in [20, 27, 35] {
            for (old, new) in [(5000, 40_000), (100_000, 333_333), (1 << 22, 3 << 22)] {
                let segment = Some(16 * 4096);
                let layout = |size| Geometry::derive(&[size], segment, percent, None, None);
                let (from, to) = (layout(old).expect("old"), layout(new).expect("new"));
                assert_eq!(from.resized(new), Ok(to), "{percent} % of {old} to {new}");
                assert_eq!(to.resized(old), Ok(from), "{percent} % of {new} to {old}");
                let least = to.smallest_for(to.capacity_grains / 3).expect("a size");
                let capacity = |size| to.resized(size).map(|g| g.capacity_grains);
                assert!(capacity(least).expect("fits") >= to.capacity_grains / 3);
                assert!(capacity(least - 1).is_ok_and(|c| c < to.capacity_grains / 3));
            }
        }
        // Numbers that no share explains grow in proportion, and what was left out stays out.
        let odd = Geometry::derive(&[1 << 14], Some(16 * 4096), 20, Some(1234), Some(0));
        let odd = odd.expect("an odd one");
        let twice = odd.resized(1 << 15).expect("twice as large");
        assert_eq!((twice.capacity_grains, twice.area_grains), (2468, 0));
        assert_eq!(twice.segment_count, (1 << 11) - 1);
        assert_eq!(odd.resized(100), Err(ResizeError::TooSmall { needed: 144 }));
        let array = Geometry::derive(&[1000, 1000], Some(16 * 4096), 20, None, None);
        let array = array.expect("an array");
        assert_eq!(array.resized(5000), Err(ResizeError::Array));
    }

    /// What can not work is refused with the reason.
    #[test]
    fn refusals() {
        assert_eq!(
            Geometry::derive(&[100], Some(16 * 4096), 20, None, None),
            Err(FormatError::TooSmall {
                grains: 100,
                needed: 144
            })
        );
        assert_eq!(
            Geometry::derive(&[1 << 20], Some(5000), 20, None, None),
            Err(FormatError::SegmentSize)
        );
        assert!(matches!(
            Geometry::derive(&[1 << 12], Some(16 * 4096), 20, Some(1 << 12), Some(0)),
            Err(FormatError::Capacity { .. })
        ));
    }
    /// An array has no segment that crosses devices, and every grain of a segment is found to be in it (I4); the first
    /// two devices have an area behind their segments.
    #[test]
    fn arrays() {
        let sizes = [300, 1000, 55];
        let g = Geometry::derive(&sizes, Some(16 * 4096), 20, None, Some(24)).expect("array");
        assert_eq!((g.device_grains, g.area_grains), (1355, 24));
        let counts: Vec<u64> = (0..3).map(|device| g.segments_on(device)).collect();
        assert_eq!(counts, [16, 60, 2]);
        assert_eq!(g.segment_count, 78);
        assert!(g.sane().is_ok());
        for segment in (0..78).map(SegmentId) {
            let start = g.segment_start(segment);
            let device = g.places.device_of_segment(segment);
            for position in 0..16 {
                let at = Pba(start.0 + u64::from(position));
                assert_eq!(g.locate(at), Some((segment, position)));
                assert_eq!(g.places.device_of(at), Some(device));
            }
        }
        for device in 0..2 {
            let area = g.area_on(device);
            assert_eq!(g.locate(area), None);
            assert_eq!(g.places.device_of(Pba(area.0 + 23)), Some(device));
        }
        assert_eq!(g.locate(Pba(300)), None, "the front of device 1");
        let read = Geometry::read(&sizes, 16, 78, g.capacity_grains, 24);
        assert_eq!(read, g);
        let too_many = [1000; DEVICES_MAX + 1];
        assert!(matches!(
            Geometry::derive(&too_many, None, 20, None, None),
            Err(FormatError::Devices { .. })
        ));
        assert!(matches!(
            Geometry::derive(&[1000, 30], Some(16 * 4096), 20, None, None),
            Err(FormatError::TooSmall { grains: 30, .. })
        ));
    }
}
