//! What a policy remembers of grains goes into checkpoints where there is room for it, and never costs a checkpoint.

use crate::common::{at, grain, read};
use ftl::{
    FormatOptions, Ftl, GRAIN_BYTES, GcPolicy, Lba, LbaRange, MemDevice, OpenOptions, Volume,
};

const SEGMENT: usize = 16;
const SEGMENTS: usize = 120;
const LBAS: u64 = 1200;

/// The volume, and whether it stands on the dump of its shutdown.
fn open(device: MemDevice, gc_policy: GcPolicy) -> (Volume<MemDevice>, bool) {
    let options = OpenOptions {
        pool_frames: 64,
        checkpoint_headers: 16,
        gc_policy,
        ..OpenOptions::default()
    };
    let (volume, report) = Volume::open(device, options).expect("open");
    let is_dump = report.checkpoint.is_some() && report.headers == 0;
    (volume, is_dump)
}

/// A volume that has been written three times, with an area of so many grains, shut down.
fn written(area: usize, gc_policy: GcPolicy) -> MemDevice {
    let grains = 16 + SEGMENTS * SEGMENT + area;
    let mut device = MemDevice::new(grains * GRAIN_BYTES).expect("memory");
    let options = FormatOptions {
        segment_bytes: Some((SEGMENT * GRAIN_BYTES) as u64),
        checkpoint_grains: Some(area as u64),
        uuid: Some([7; 16]),
        ..FormatOptions::default()
    };
    Ftl::format(&mut device, &options).expect("format");
    let (volume, _) = open(device, gc_policy);
    for version in 1..4 {
        for n in 0..LBAS {
            let lba = Lba(n * 7 % LBAS);
            volume.write(at(lba), &grain(lba, version)).expect("write");
        }
        volume.sync(LbaRange::ALL).expect("sync");
    }
    volume.shutdown().expect("shutdown");
    volume.into_device()
}

/// A restart by checkpoint is had with the smallest area with which it is had without anything remembered (D8): what has
/// no room is left out. And whatever the next session's policy makes of it, the grains are what they were (I4).
#[test]
fn never_costs_a_checkpoint() {
    let mut with = 0;
    for area in (2..40).step_by(2) {
        let (plain, by) = open(written(area, GcPolicy::Greedy), GcPolicy::Greedy);
        drop(plain);
        let next = GcPolicy::ALL[area / 2 % GcPolicy::ALL.len()];
        let (volume, by_too) = open(written(area, GcPolicy::Lifetime), next);
        assert_eq!(by, by_too, "area of {area}");
        with += u32::from(by);
        for lba in (0..LBAS).map(Lba) {
            assert_eq!(read(&volume, lba), grain(lba, 3));
        }
        volume.ftl().self_check();
    }
    assert!((2..18).contains(&with), "both happen: {with}");
}

/// An engine that does not know heat is told of it before there is any, also where the area has come with another size.
#[test]
fn an_area_that_comes_later() {
    let mut small = MemDevice::new(2_000 * GRAIN_BYTES).expect("memory");
    let options = FormatOptions {
        segment_bytes: Some((SEGMENT * GRAIN_BYTES) as u64),
        ..FormatOptions::default()
    };
    Ftl::format(&mut small, &options).expect("format");
    let mut device = MemDevice::new(6_000 * GRAIN_BYTES).expect("memory");
    let image = small.image();
    device.image_mut()[..image.len()].copy_from_slice(image);
    let (volume, _) = open(device, GcPolicy::Lifetime);
    assert_eq!(volume.ftl().info().geometry.area_grains, 0);
    volume.resize(6_000).expect("grow");
    assert!(volume.ftl().info().geometry.area_grains > 0);
    for version in 1..4 {
        for lba in (0..LBAS).map(Lba) {
            volume.write(at(lba), &grain(lba, version)).expect("write");
        }
        volume.sync(LbaRange::ALL).expect("sync");
    }
    volume.shutdown().expect("shutdown");
    let device = volume.into_device();
    let versions = [0, 1].map(|copy| device.image()[copy * GRAIN_BYTES + 12]);
    assert_eq!(versions, [5, 5]);
}
