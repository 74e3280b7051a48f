//! A device that reads nothing for a while, as one behind a network that comes back, while a volume is opened.
//!
//! Defends I1 and M4 of the reads of recovery: what recovery does not get to see it gives up for good, so it has to be sure
//! that it is not there. A volume that is in use stays so (M4).

use crate::common::{Rng, at, grain, read};
use ftl::{
    Action, ActionId, ArrayDevice, Device, FormatOptions, Ftl, GRAIN_BYTES, Lba, LbaRange,
    MediaError, MediaOp, MemDevice, OpenError, OpenOptions, RecoveryReport, Volume,
};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Reads fail from one on, until so much time has been given to it.
struct Away {
    inner: MemDevice,
    reads: u64,
    from: u64,
    rests: u32,
    /// However much that is.
    stays: bool,
    /// What they fail with.
    error: MediaError,
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
                self.done.push_back((action.id, Err(self.error)));
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

/// Goes on with what there is.
fn repair() -> OpenOptions {
    OpenOptions {
        unreadable_max: u64::MAX,
        ..options()
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
    let errors = [
        MediaError::Io,
        MediaError::Short,
        MediaError::Invalid,
        MediaError::NoSpace,
        MediaError::ReadOnly,
    ];

    let open = |from: u64, rests: u32| -> (RecoveryReport, u64) {
        let device = Away {
            inner: MemDevice::from_image(killed.image()).expect("memory"),
            reads: 0,
            from,
            rests,
            stays: false,
            error: errors[from as usize % errors.len()],
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
    let (found, reads) = open(0, 0);
    assert!(found.headers > 1);
    // One that stays away is not opened, whatever may be given up, and nothing of it changed: later it may read.
    for from in [4, 10, 100, reads - 1] {
        let mut device = Away {
            inner: MemDevice::from_image(killed.image()).expect("memory"),
            reads: 0,
            from,
            rests: 0,
            stays: true,
            error: errors[from as usize % errors.len()],
            done: VecDeque::new(),
        };
        let refused = Ftl::open(&mut device, repair()).map(drop);
        assert!(
            matches!(refused, Err(OpenError::Unreadable(_))),
            "away from {from} on: {refused:?}"
        );
        assert!(device.inner.image() == killed.image());
    }
    for from in 0..reads {
        let (again, _) = open(from, 3);
        assert_eq!(again, found, "away from {from} on");
    }
}

/// What an operation fails with, if it does.
type Fails = Box<dyn FnMut(&MediaOp) -> Option<MediaError> + Send>;

/// Fails what it is told to.
struct Flaky {
    inner: MemDevice,
    fails: Fails,
    done: VecDeque<(ActionId, Result<(), MediaError>)>,
}

impl Flaky {
    fn new(inner: MemDevice) -> Self {
        Self {
            inner,
            fails: Box::new(|_| None),
            done: VecDeque::new(),
        }
    }

    /// Reads nothing for some time.
    fn goes_away(&mut self, time: Duration) {
        let back = Instant::now() + time;
        self.fails = Box::new(move |op| {
            let is_read = matches!(op, MediaOp::Read { .. });
            (is_read && Instant::now() < back).then_some(MediaError::Io)
        });
    }
}

impl Device for Flaky {
    fn len_bytes(&self) -> u64 {
        self.inner.len_bytes()
    }
    fn submit(&mut self, action: Action) {
        match (self.fails)(&action.op) {
            Some(error) => self.done.push_back((action.id, Err(error))),
            None => self.inner.submit(action),
        }
    }
    fn poll(&mut self, wait: bool) -> Option<(ActionId, Result<(), MediaError>)> {
        self.done.pop_front().or_else(|| self.inner.poll(wait))
    }
}

fn named(devices: Vec<Flaky>) -> Vec<(String, Flaky)> {
    let numbered = devices.into_iter().enumerate();
    numbered.map(|(n, d)| (format!("disk{n}"), d)).collect()
}

fn format() -> FormatOptions {
    FormatOptions {
        segment_bytes: Some(32 * GRAIN_BYTES as u64),
        ..FormatOptions::default()
    }
}

/// Images of two devices of a volume that was killed.
fn killed_array() -> Vec<Vec<u8>> {
    let blank = || Flaky::new(MemDevice::new(1000 * GRAIN_BYTES).expect("memory"));
    let mut array = ArrayDevice::blank(named(vec![blank(), blank()]));
    Ftl::format(&mut array, &format()).expect("format");
    let (volume, _) = Volume::open(array, options()).expect("open");
    for lba in (0..GRAINS).map(Lba) {
        volume.write(at(lba), &grain(lba, 1)).expect("write");
        volume.sync(LbaRange::ALL).expect("sync");
    }
    let array = volume.into_device();
    let devices = array
        .devices()
        .map(|d| d.expect("live").inner.image().to_vec());
    devices.collect()
}

fn assembled(images: &[Vec<u8>]) -> ArrayDevice<Flaky> {
    let devices = images.iter().map(|image| {
        let device = MemDevice::from_image(image).expect("memory");
        Flaky::new(device)
    });
    ArrayDevice::assemble(named(devices.collect()), false).expect("assembly")
}

fn images(array: &ArrayDevice<Flaky>) -> Vec<Vec<u8>> {
    let devices = array
        .devices()
        .map(|d| d.expect("named").inner.image().to_vec());
    devices.collect()
}

fn assert_all_there(images: &[Vec<u8>], what: &str) {
    let (volume, _) = Volume::open(assembled(images), options()).expect(what);
    for lba in (0..GRAINS).map(Lba) {
        assert_eq!(read(&volume, lba), grain(lba, 1), "{lba:?}, {what}");
    }
}

/// A device of an array that goes at any read of recovery is not given up, as with `degraded`: the volume is refused and
/// nothing changed (I1).
#[test]
fn a_device_that_goes_while_its_array_is_opened() {
    let killed = killed_array();
    for n in 0.. {
        let mut array = assembled(&killed);
        let second = array.devices_mut().nth(1).flatten().expect("live");
        let mut reads = 0;
        second.fails = Box::new(move |op| {
            reads += u64::from(matches!(op, MediaOp::Read { .. }));
            (reads == n + 1).then_some(MediaError::Gone)
        });
        match Ftl::open(&mut array, options()).map(drop) {
            Err(OpenError::DeviceLost(_)) => {}
            Ok(()) if n > 20 => break,
            other => panic!("{other:?}, gone at {n}"),
        }
        assert!(images(&array) == killed, "changed, gone at {n}");
        assert_all_there(&killed, &format!("gone at {n}"));
    }
}

/// A device of an array that takes no writes is none that is out of date, however often somebody tries (I1).
#[test]
fn openings_of_an_array_a_device_of_which_does_not_write() {
    let mut now = killed_array();
    for kind in ["write", "flush"] {
        for _ in 0..20 {
            let mut array = assembled(&now);
            let second = array.devices_mut().nth(1).flatten().expect("live");
            second.fails = Box::new(move |op| {
                let fails = match op {
                    MediaOp::Write { .. } => kind == "write",
                    MediaOp::Flush => kind == "flush",
                    _ => false,
                };
                fails.then_some(MediaError::Io)
            });
            let refused = Ftl::open(&mut array, options()).map(drop);
            assert!(
                matches!(refused, Err(OpenError::DeviceLost(_))),
                "{refused:?}"
            );
            now = images(&array);
        }
        assert_all_there(&now, kind);
    }
}

/// What collection can not read for a moment it does not leave alone for good: afterwards there is as much space as
/// before, and the volume has not failed (I17).
#[test]
fn collection_waits_for_a_device_that_does_not_read() {
    let device = MemDevice::new(2000 * GRAIN_BYTES).expect("memory");
    let mut device = Flaky::new(device);
    Ftl::format(&mut device, &format()).expect("format");
    let (volume, _) = Volume::open(device, options()).expect("open");
    let capacity = volume.space().capacity;
    let mut rng = Rng::new(3);
    let mut versions = vec![0; capacity as usize];
    let mut change = |version: u64| {
        for _ in 0..capacity {
            let lba = Lba(rng.below(capacity));
            volume.write(at(lba), &grain(lba, version)).expect("write");
            versions[lba.0 as usize] = version;
        }
    };
    (1..4).for_each(&mut change);
    volume.with_device(|device| device.goes_away(Duration::from_millis(300)));
    let begun = Instant::now();
    // Grains that are not in memory are overwritten as a whole.
    (4..8).for_each(&mut change);
    assert!(
        begun.elapsed() > Duration::from_millis(300),
        "nobody waited"
    );
    volume.sync(LbaRange::ALL).expect("sync");
    for (lba, &version) in (0..).map(Lba).zip(&versions) {
        if version > 0 {
            assert_eq!(read(&volume, lba), grain(lba, version), "{lba:?}");
        }
    }
}

/// A map that can not be read for a moment, behind a checkpoint, is read afterwards: nobody hears of it, and the
/// checkpoint goes on to count (M4).
#[test]
fn the_map_waits_for_a_device_that_does_not_read() {
    let device = MemDevice::new(2000 * GRAIN_BYTES).expect("memory");
    let mut device = Flaky::new(device);
    let with_area = FormatOptions {
        checkpoint_grains: Some(96),
        ..format()
    };
    Ftl::format(&mut device, &with_area).expect("format");
    let (volume, _) = Volume::open(device, options()).expect("open");
    for lba in (0..GRAINS).map(Lba) {
        volume.write(at(lba), &grain(lba, 1)).expect("write");
    }
    volume.shutdown().expect("shutdown");
    let cold = OpenOptions {
        map_pages_eager: 0,
        ..options()
    };
    let (volume, report) = Volume::open(volume.into_device(), cold).expect("open");
    assert!(report.map_pages_cold > 0, "{report:?}");
    volume.with_device(|device| device.goes_away(Duration::from_millis(100)));
    let begun = Instant::now();
    volume.load(LbaRange::ALL).expect("the map");
    assert!(
        begun.elapsed() > Duration::from_millis(100),
        "nobody waited"
    );
    for lba in (0..GRAINS).map(Lba) {
        assert_eq!(read(&volume, lba), grain(lba, 1), "{lba:?}");
    }
    volume.write(at(Lba(0)), &grain(Lba(0), 2)).expect("write");
    volume.sync(LbaRange::ALL).expect("sync");
}
