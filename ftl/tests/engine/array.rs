//! Several devices as one volume, from the outside: wear, and real files.
//!
//! The crash suite runs over arrays too, see `crash.rs`; what can be wrong with the devices that are named is tested
//! beside the assembly.

use crate::common::{Rng, at, grain};
use ftl::device::Allocation;
use ftl::{
    ArrayDevice, Device, DeviceUse, FileDevice, FormatOptions, Ftl, GRAIN_BYTES, GcPolicy, Lba,
    LbaRange, MemDevice, MemberState, OpenOptions, Volume, check,
};
use std::collections::BTreeMap;

fn named<D>(devices: Vec<D>) -> Vec<(String, D)> {
    let numbered = devices.into_iter().enumerate();
    numbered.map(|(n, d)| (format!("disk{n}"), d)).collect()
}

/// A volume with segments of 64 grains on memory devices of so many grains.
fn volume(sizes: &[u64], policy: GcPolicy) -> Volume<ArrayDevice<MemDevice>> {
    let devices = sizes
        .iter()
        .map(|&grains| MemDevice::new(grains as usize * GRAIN_BYTES).expect("memory"));
    let mut array = ArrayDevice::blank(named(devices.collect()));
    let format = FormatOptions {
        segment_bytes: Some(64 * GRAIN_BYTES as u64),
        ..FormatOptions::default()
    };
    Ftl::format(&mut array, &format).expect("format");
    let options = OpenOptions {
        pool_frames: 512,
        gc_policy: policy,
        ..OpenOptions::default()
    };
    Volume::open(array, options).expect("open").0
}

/// Erases of a segment of each device, on average.
fn erases(devices: &[DeviceUse]) -> Vec<f64> {
    let each = devices.iter().map(|d| d.opened as f64 / d.segments as f64);
    each.collect()
}

/// Devices of very different sizes are erased equally often, whatever is written and collected: within 5 %.
#[test]
fn even_wear() {
    let workloads = [
        (&[3000, 9000, 5000][..], 90, 1),
        (&[3000, 9000, 5000], 60, 4),
        (&[20_000, 1200], 85, 1),
        (&[2000, 2000, 2000, 8000], 85, 8),
        // Nothing is left: what evens out wear must not take the space that collection needs (I17).
        (&[3000, 5000], 100, 2),
    ];
    for policy in [GcPolicy::Greedy, GcPolicy::default()] {
        for (sizes, percent, skew) in workloads {
            let volume = volume(sizes, policy);
            let used = volume.space().capacity * percent / 100;
            let mut rng = Rng::new(percent);
            for step in 0..used * 16 {
                // The more skew, the smaller the part that most writes go to.
                let hot = used / skew;
                let lba = match (step < used, rng.below(10)) {
                    (true, _) => step,
                    (false, 0) => rng.below(used),
                    (false, _) => rng.below(hot),
                };
                let lba = Lba(lba);
                volume.write(at(lba), &grain(lba, step)).expect("write");
            }
            volume.sync(LbaRange::ALL).expect("sync");
            let devices = volume.ftl().devices();
            let each = erases(&devices);
            println!("{policy} {sizes:?} {percent} % 1/{skew}: {each:.2?}");
            let least = each.iter().copied().fold(f64::MAX, f64::min);
            let most = each.iter().copied().fold(0.0, f64::max);
            assert!(least > 5.0, "hardly anything was collected");
            assert!(most <= least * 1.05, "{policy} {sizes:?}: {each:?}");
            volume.ftl().self_check();
        }
    }
}

/// The log is striped: what is written in one go lies on all devices, by their sizes.
#[test]
fn striped() {
    let volume = volume(&[4000, 8000], GcPolicy::default());
    for lba in (0..3000).map(Lba) {
        volume.write(at(lba), &grain(lba, 1)).expect("write");
    }
    volume.sync(LbaRange::ALL).expect("sync");
    let devices = volume.ftl().devices();
    assert!(devices.iter().all(|d| d.state == MemberState::Live));
    let each = erases(&devices);
    assert!(
        each[0] > 0.2 && (each[0] - each[1]).abs() < 0.05,
        "{each:?}"
    );
    let (opened, free): (Vec<_>, Vec<_>) = devices.iter().map(|d| (d.opened, d.free)).unzip();
    assert!(opened[1] > opened[0], "{opened:?}");
    assert_eq!(devices[0].segments - free[0], opened[0] as usize);
}

/// A volume on three files of different sizes, in any order, over restarts; and the independent judge agrees (I1, I5).
#[test]
fn on_files() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |n: usize| dir.path().join(format!("disk{n}.img"));
    let create = |n: usize| {
        let bytes = [5 << 20, 12 << 20, 7 << 20][n];
        let device = FileDevice::create(path(n), bytes, Allocation::Sparse).expect("create");
        (path(n).display().to_string(), device)
    };
    let mut array = ArrayDevice::blank((0..3).map(create).collect());
    Ftl::format(&mut array, &FormatOptions::default()).expect("format");
    drop(array);
    let open = |order: [usize; 3]| {
        let devices = order.map(|n| {
            let device = FileDevice::open(path(n)).expect("open");
            (path(n).display().to_string(), device)
        });
        ArrayDevice::assemble(devices.into(), false).expect("assembly")
    };
    let mut rng = Rng::new(7);
    let mut versions = BTreeMap::new();
    for (round, order) in [[2, 0, 1], [1, 2, 0], [0, 1, 2], [2, 1, 0]]
        .into_iter()
        .enumerate()
    {
        let mut device = open(order);
        let report = check(&mut device).expect("check");
        assert!(
            report.is_sound(),
            "{:?} {:?}",
            report.damaged,
            report.faults
        );
        assert_eq!(report.map.len(), versions.len());
        let (volume, _) = Volume::open(device, OpenOptions::default()).expect("open");
        let used = volume.space().capacity / 2;
        let mut got = vec![0; GRAIN_BYTES];
        for (&lba, &version) in &versions {
            volume.read(at(lba), &mut got).expect("read");
            assert!(got == grain(lba, version), "{lba}: not version {version}");
        }
        for step in 0..used * 3 {
            let lba = Lba(rng.below(used));
            let version = (round as u64) << 32 | step;
            volume.write(at(lba), &grain(lba, version)).expect("write");
            versions.insert(lba, version);
            if rng.below(100) == 0 {
                volume.sync(LbaRange::new(lba, 1)).expect("sync");
            }
        }
        volume.sync(LbaRange::ALL).expect("sync");
        volume.ftl().self_check();
        // Every other time it is not shut down.
        if round % 2 == 0 {
            volume.shutdown().expect("shutdown");
        }
    }
    let device = open([0, 1, 2]);
    assert_eq!(device.len_bytes(), 24 << 20);
}
