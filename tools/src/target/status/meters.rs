//! What the devices were asked for, and how long they took.

use std::sync::Arc;
use std::time::Duration;

use ftl::{MediaOp, Meter};

use super::Operations;

/// Operations of one device.
#[derive(Debug, Default)]
struct DeviceMeters {
    read: Meter,
    write: Meter,
    flush: Meter,
    discard: Meter,
}

/// Those of all devices of a volume. Clones are the same.
#[derive(Clone, Debug)]
pub(in crate::target) struct MediaMeters(Arc<[DeviceMeters]>);

impl MediaMeters {
    /// For so many devices.
    pub(in crate::target) fn new(devices: usize) -> Self {
        Self((0..devices).map(|_| DeviceMeters::default()).collect())
    }

    /// An operation on a device is over, with the result of a system call.
    pub(in crate::target) fn note(&self, device: usize, op: &MediaOp, took: Duration, result: i32) {
        let meters = &self.0[device];
        let (meter, bytes) = match op {
            MediaOp::Read { buf, .. } => (&meters.read, buf.len() as u64),
            MediaOp::Write { buf, .. } => (&meters.write, buf.len() as u64),
            MediaOp::Flush => (&meters.flush, 0),
            MediaOp::Discard { len, .. } => (&meters.discard, *len),
        };
        meter.note(took, (result >= 0).then_some(bytes));
    }

    /// Several reads were carried out as one.
    pub(in crate::target) fn note_read(&self, device: usize, took: Duration, bytes: Option<u64>) {
        self.0[device].read.note(took, bytes);
    }

    /// What a device has done, if it was asked for any of the kind.
    pub(super) fn of(&self, device: usize) -> impl Iterator<Item = (String, Operations)> {
        let meters = &self.0[device];
        let all = [
            ("read", &meters.read),
            ("write", &meters.write),
            ("flush", &meters.flush),
            ("discard", &meters.discard),
        ];
        all.into_iter()
            .map(|(name, meter)| (name.to_owned(), Operations::from(meter.read())))
            .filter(|(_, operations)| operations.count > 0)
    }
}
