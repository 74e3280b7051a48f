//! What the devices were asked for, and how long they took.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ftl::{MediaOp, Meter};

use super::Operations;

/// Operations of one device.
#[derive(Debug, Default)]
struct DeviceMeters {
    read: Meter,
    write: Meter,
    flush: Meter,
    discard: Meter,
    silence: Silence,
}

/// For how long a device that was asked for something has answered nothing.
#[derive(Debug, Default)]
struct Silence {
    /// Operations that it was asked for and has not answered.
    pending: AtomicU64,
    /// When it answered last, or was asked with nothing pending: nanoseconds.
    since: AtomicU64,
}

impl Silence {
    /// It is asked for something.
    fn begin(&self, now: u64) {
        // Before it counts as pending: nobody takes the time since it had nothing to do for silence.
        if self.pending.load(Ordering::SeqCst) == 0 {
            self.since.store(now, Ordering::SeqCst);
        }
        self.pending.fetch_add(1, Ordering::SeqCst);
    }

    /// It has answered.
    fn end(&self, now: u64) {
        self.since.store(now, Ordering::SeqCst);
        self.pending.fetch_sub(1, Ordering::SeqCst);
    }

    fn lasts(&self, now: u64) -> Duration {
        if self.pending.load(Ordering::SeqCst) == 0 {
            return Duration::ZERO;
        }
        let since = self.since.load(Ordering::SeqCst);
        Duration::from_nanos(now.saturating_sub(since))
    }
}

/// Those of all devices of a volume. Clones are the same.
#[derive(Clone, Debug)]
pub(in crate::target) struct MediaMeters {
    devices: Arc<[DeviceMeters]>,
    epoch: Instant,
}

impl MediaMeters {
    /// For so many devices.
    pub(in crate::target) fn new(devices: usize) -> Self {
        Self {
            devices: (0..devices).map(|_| DeviceMeters::default()).collect(),
            epoch: Instant::now(),
        }
    }

    fn now(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    /// A device is asked for an operation; [`note`](Self::note) or [`note_read`](Self::note_read) follows.
    pub(in crate::target) fn begin(&self, device: usize) {
        self.devices[device].silence.begin(self.now());
    }

    /// An operation on a device is over, with the result of a system call.
    pub(in crate::target) fn note(&self, device: usize, op: &MediaOp, took: Duration, result: i32) {
        let meters = &self.devices[device];
        meters.silence.end(self.now());
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
        let meters = &self.devices[device];
        meters.silence.end(self.now());
        meters.read.note(took, bytes);
    }

    /// For how long a device has answered nothing of what it was asked for; zero if nothing is pending.
    pub(super) fn silence(&self, device: usize) -> Duration {
        self.devices[device].silence.lasts(self.now())
    }

    /// What a device has done, if it was asked for any of the kind.
    pub(super) fn of(&self, device: usize) -> impl Iterator<Item = (String, Operations)> {
        let meters = &self.devices[device];
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Silence begins when a device that has nothing to do is asked, and anew with each answer.
    #[test]
    fn silence() {
        let silence = Silence::default();
        let lasts = |now| silence.lasts(now).as_nanos();
        assert_eq!(lasts(100), 0);
        silence.begin(100);
        silence.begin(150);
        assert_eq!(lasts(190), 90);
        silence.end(200);
        assert_eq!(lasts(230), 30);
        silence.end(240);
        assert_eq!(lasts(1000), 0);
        silence.begin(1000);
        assert_eq!(lasts(1001), 1);
    }
}
