//! A device that reads nothing for a while, as one behind a network that comes back, while a volume is opened.
//!
//! Defends I1 and M4 of the reads of recovery: what recovery does not get to see it gives up for good, so it has to be sure
//! that it is not there.

use crate::common::{at, grain, read};
use ftl::{
    Action, ActionId, Device, FormatOptions, Ftl, GRAIN_BYTES, Lba, LbaRange, MediaError, MediaOp,
    MemDevice, OpenError, OpenOptions, RecoveryReport, Volume,
};
use std::collections::VecDeque;

/// Reads fail from one on, until so much time has been given to it.
struct Away {
    inner: MemDevice,
    reads: u64,
    from: u64,
    rests: u32,
    /// However much that is.
    stays: bool,
    done: VecDeque<(ActionId, Result<(), MediaError>)>,
}

impl Device for Away {
    fn len_bytes(&self) -> u64 {
        self.inner.len_bytes()
    }
    fn submit(&mut self, action: Action) {
        if let MediaOp::Read { .. } = action.op {
            self.reads += 1;
            if self.reads > self.from && (self.stays || self.rests > 0) {
                self.done.push_back((action.id, Err(MediaError::Io)));
                return;
            }
        }
        self.inner.submit(action);
    }
    fn poll(&mut self, wait: bool) -> Option<(ActionId, Result<(), MediaError>)> {
        self.done.pop_front().or_else(|| self.inner.poll(wait))
    }
    fn rest(&mut self) -> bool {
        let rests = self.rests > 0 && !self.stays;
        self.rests -= u32::from(rests);
        rests
    }
}

const GRAINS: u64 = 200;

fn options() -> OpenOptions {
    OpenOptions {
        pool_frames: 64,
        checkpoint_headers: 40,
        ..OpenOptions::default()
    }
}

/// What was synced before a kill is there, and recovery finds the same, whenever the device goes away while it reads.
#[test]
fn what_was_synced_is_there_when_the_device_comes_back() {
    let mut device = MemDevice::new(2000 * GRAIN_BYTES).expect("memory");
    let format = FormatOptions {
        segment_bytes: Some(32 * GRAIN_BYTES as u64),
        ..FormatOptions::default()
    };
    Ftl::format(&mut device, &format).expect("format");
    // Each write is a header of its own. The first life ends in order, and all but the last are written over in
    // the second one, which is killed.
    for (version, grains) in [(1, GRAINS), (2, GRAINS - 1)] {
        let (volume, _) = Volume::open(device, options()).expect("open");
        for lba in (0..grains).map(Lba) {
            volume.write(at(lba), &grain(lba, version)).expect("write");
            volume.sync(LbaRange::ALL).expect("sync");
        }
        if version == 1 {
            volume.shutdown().expect("shutdown");
        }
        device = volume.into_device();
    }
    let killed = device;

    let open = |from: u64, rests: u32| -> (RecoveryReport, u64) {
        let device = Away {
            inner: MemDevice::from_image(killed.image()).expect("memory"),
            reads: 0,
            from,
            rests,
            stays: false,
            done: VecDeque::new(),
        };
        let (volume, report) = Volume::open(device, options()).expect("open");
        let reads = volume.with_device(|device| device.reads);
        for lba in (0..GRAINS).map(Lba) {
            let version = 1 + u64::from(lba.0 < GRAINS - 1);
            let found = read(&volume, lba);
            assert_eq!(found, grain(lba, version), "{lba:?}, away from {from} on");
        }
        (report, reads)
    };
    // One that stays away is not opened, and nothing of it changed: later it may read.
    for from in [4, 10, 100] {
        let mut device = Away {
            inner: MemDevice::from_image(killed.image()).expect("memory"),
            reads: 0,
            from,
            rests: 0,
            stays: true,
            done: VecDeque::new(),
        };
        let refused = Ftl::open(&mut device, options()).map(drop);
        assert!(
            matches!(refused, Err(OpenError::Unreadable(_))),
            "away from {from} on: {refused:?}"
        );
        assert!(device.inner.image() == killed.image());
    }
    let (found, reads) = open(0, 0);
    assert!(found.headers > 1);
    for from in 0..reads {
        let (again, _) = open(from, 3);
        assert_eq!(again, found, "away from {from} on");
    }
}
