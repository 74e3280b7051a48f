//! Places: where each device of a volume begins in the space of addresses, and which segments are its own.
//!
//! The devices lie one behind the other; each has the same front, then its segments. A volume on one device is the
//! simplest case, and the one that must cost nothing.

use crate::addr::{Pba, SegmentId};
use std::ops::Range;

/// Most devices of a volume.
pub const DEVICES_MAX: usize = 16;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    count: u8,
    /// First grain of each device, and the one behind the last.
    starts: [u64; DEVICES_MAX + 1],
    /// First segment of each device, and the one behind the last.
    firsts: [u32; DEVICES_MAX + 1],
}

impl Places {
    /// Devices of `grains` each, with `segments` each.
    ///
    /// # Panics
    /// If there is no device, or more than [`DEVICES_MAX`].
    pub(crate) fn new(grains: &[u64], segments: impl Fn(usize) -> u32) -> Self {
        assert!(
            (1..=DEVICES_MAX).contains(&grains.len()),
            "number of devices"
        );
        let mut places = Self {
            count: grains.len() as u8,
            starts: [0; DEVICES_MAX + 1],
            firsts: [0; DEVICES_MAX + 1],
        };
        for (device, &size) in grains.iter().enumerate() {
            places.starts[device + 1] = places.starts[device].saturating_add(size);
            places.firsts[device + 1] = places.firsts[device].saturating_add(segments(device));
        }
        places
    }

    /// Number of devices.
    pub fn count(&self) -> usize {
        usize::from(self.count)
    }

    /// Grains of a device.
    pub fn grains(&self, device: usize) -> u64 {
        self.starts[device + 1] - self.starts[device]
    }

    /// First grain of a device.
    pub fn start(&self, device: usize) -> Pba {
        Pba(self.starts[device])
    }

    /// Segments of a device.
    pub fn segments(&self, device: usize) -> Range<u32> {
        self.firsts[device]..self.firsts[device + 1]
    }

    /// All segments.
    pub(crate) fn segment_count(&self) -> u32 {
        self.firsts[self.count()]
    }

    /// The device that a grain lies on.
    pub fn device_of(&self, pba: Pba) -> Option<usize> {
        (0..self.count()).find(|&device| pba.0 < self.starts[device + 1])
    }

    /// The device that a segment lies on.
    pub fn device_of_segment(&self, segment: SegmentId) -> usize {
        let behind = |device: &usize| segment.0 < self.firsts[device + 1];
        (0..self.count()).find(behind).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every grain and every segment belongs to one device, also at the borders (I4).
    #[test]
    fn borders() {
        let places = Places::new(&[100, 50, 300], |device| [4, 2, 11][device]);
        assert_eq!(places.count(), 3);
        assert_eq!(places.device_of(Pba(0)), Some(0));
        assert_eq!(places.device_of(Pba(99)), Some(0));
        assert_eq!(places.device_of(Pba(100)), Some(1));
        assert_eq!(places.device_of(Pba(449)), Some(2));
        assert_eq!(places.device_of(Pba(450)), None);
        assert_eq!(places.segments(1), 4..6);
        assert_eq!(places.device_of_segment(SegmentId(3)), 0);
        assert_eq!(places.device_of_segment(SegmentId(4)), 1);
        assert_eq!(places.device_of_segment(SegmentId(6)), 2);
        assert_eq!(places.segment_count(), 17);
        assert_eq!((places.start(2), places.grains(2)), (Pba(150), 300));
    }
}
