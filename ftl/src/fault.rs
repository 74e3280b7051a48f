//! Grains that could not be read as they were written: remembered until somebody asks.

use crate::addr::{Lba, Pba, SegmentId};
use crate::device::MediaError;
use std::collections::VecDeque;
use std::fmt;

/// Faults remembered; older ones are only counted.
const FAULTS_MAX: usize = 256;

/// A grain whose read failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MediaFault {
    /// Which grain.
    pub lba: Lba,
    /// Where it lies on the device.
    pub place: Pba,
    /// In which segment.
    pub segment: SegmentId,
    /// What the device said; `None`: it said nothing, but the checksum does not fit.
    pub error: Option<MediaError>,
}

impl fmt::Display for MediaFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            lba,
            place,
            segment,
            error,
        } = self;
        write!(f, "{lba} in {segment}, {place}: ")?;
        match error {
            Some(error) => write!(f, "{error}"),
            None => write!(f, "the checksum does not fit"),
        }
    }
}

/// The latest faults.
#[derive(Debug, Default)]
pub(crate) struct MediaFaults {
    list: VecDeque<MediaFault>,
}

impl MediaFaults {
    /// Remembers a fault; one that is remembered already is not news.
    pub(crate) fn note(&mut self, fault: MediaFault) {
        if self.list.iter().rev().any(|known| *known == fault) {
            return;
        }
        if self.list.len() == FAULTS_MAX {
            self.list.pop_front();
        }
        self.list.push_back(fault);
    }

    pub(crate) fn take(&mut self) -> Vec<MediaFault> {
        self.list.drain(..).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(n: u64) -> MediaFault {
        MediaFault {
            lba: Lba(n),
            place: Pba(n + 7),
            segment: SegmentId(0),
            error: None,
        }
    }

    /// Each is told once, the latest if there are too many, and again when it is met again after that.
    #[test]
    fn each_once() {
        let mut faults = MediaFaults::default();
        let max = FAULTS_MAX as u64;
        for n in (0..max + 2).chain(max - 2..max + 2) {
            faults.note(fault(n));
            faults.note(fault(n));
        }
        let told: Vec<MediaFault> = (2..max + 2).map(fault).collect();
        assert_eq!(faults.take(), told);
        assert_eq!(faults.take(), []);
        faults.note(fault(5));
        assert_eq!(faults.take(), [fault(5)]);
    }
}
