//! Dumps of a shutdown: taken for the last word only if they are whole, of this volume, and of its last session.

use crate::common::{at, grain};
use ftl::{
    Device, FormatOptions, Ftl, GRAIN_BYTES, Lba, LbaRange, MemDevice, OpenOptions, RecoveryReport,
    Volume,
};

const GRAINS: usize = 16 + 40 * 16 + 32;
/// Where roots lie.
const ROOTS: std::ops::Range<usize> = 2..6;

fn format(uuid: [u8; 16]) -> MemDevice {
    let mut device = MemDevice::new(GRAINS * GRAIN_BYTES).expect("memory");
    let options = FormatOptions {
        segment_bytes: Some(16 * GRAIN_BYTES as u64),
        checkpoint_grains: Some(32),
        uuid: Some(uuid),
        ..FormatOptions::default()
    };
    Ftl::format(&mut device, &options).expect("format");
    device
}

fn open(device: MemDevice) -> (Volume<MemDevice>, RecoveryReport) {
    let options = OpenOptions {
        pool_frames: 64,
        checkpoint_headers: 0,
        ..OpenOptions::default()
    };
    Volume::open(device, options).expect("open")
}

fn write(volume: &Volume<MemDevice>, version: u64) {
    for lba in (0..60).map(Lba) {
        volume.write(at(lba), &grain(lba, version)).expect("write");
    }
    volume.sync(LbaRange::ALL).expect("sync");
}

fn holds(volume: &Volume<MemDevice>, version: u64) -> bool {
    let mut bytes = vec![0; GRAIN_BYTES];
    (0..60).map(Lba).all(|lba| {
        volume.read(at(lba), &mut bytes).expect("read");
        bytes == grain(lba, version)
    })
}

/// A volume that was shut down, holding version 1.
fn dumped(uuid: [u8; 16]) -> MemDevice {
    let (volume, _) = open(format(uuid));
    write(&volume, 1);
    volume.shutdown().expect("shutdown");
    volume.into_device()
}

/// With its dump a volume opens without reading a single header.
#[test]
fn accepted() {
    let (volume, report) = open(dumped([7; 16]));
    assert!(report.clean && report.checkpoint.is_some());
    assert_eq!((report.headers, report.mapped), (0, 60));
    assert!(holds(&volume, 1));
    volume.ftl().self_check();
}

/// A dump is stale as soon as a session has written after it: it is a checkpoint like any other then.
#[test]
fn stale() {
    let (volume, _) = open(dumped([7; 16]));
    write(&volume, 2);
    // No shutdown.
    let (volume, report) = open(volume.into_device());
    assert!(!report.clean && report.headers > 0);
    assert!(holds(&volume, 2));

    // A superblock that says clean does not make the dump of an earlier session fresh: both sessions end in one.
    let old = dumped([7; 16]);
    let roots = old.image()[ROOTS.start * GRAIN_BYTES..ROOTS.end * GRAIN_BYTES].to_vec();
    let (volume, _) = open(old);
    write(&volume, 3);
    volume.shutdown().expect("shutdown");
    let mut device = volume.into_device();
    device.image_mut()[ROOTS.start * GRAIN_BYTES..ROOTS.end * GRAIN_BYTES].copy_from_slice(&roots);
    let (volume, report) = open(device);
    assert!(report.clean && report.headers > 0, "{report:?}");
    assert!(holds(&volume, 3));
}

/// A root with any sector missing is none; neither is one whose pages are damaged. All headers are read then.
#[test]
fn torn() {
    let device = dumped([7; 16]);
    let image = device.image().to_vec();
    let mut torn = 0;
    let area = GRAINS - 32;
    for sector in (ROOTS.start * 8..ROOTS.end * 8).chain(area * 8..GRAINS * 8) {
        let mut bad = image.clone();
        let bytes = &mut bad[sector * 512..(sector + 1) * 512];
        if bytes.iter().all(|&b| b == 0) {
            continue;
        }
        bytes.fill(0);
        let (volume, report) = open(MemDevice::from_image(&bad).expect("memory"));
        torn += u64::from(report.checkpoint.is_none());
        assert!(holds(&volume, 1), "sector {sector}");
        volume.ftl().self_check();
    }
    assert!(torn >= 4, "{torn}");
}

/// Root and pages of another volume of the same shape are refused.
#[test]
fn foreign() {
    let mut other = dumped([8; 16]);
    let mine = format([7; 16]);
    let (volume, _) = open(mine);
    write(&volume, 5);
    volume.shutdown().expect("shutdown");
    let mut device = volume.into_device();
    let area = GRAINS - 32;
    for range in [ROOTS, area..GRAINS] {
        let bytes = range.start * GRAIN_BYTES..range.end * GRAIN_BYTES;
        let foreign = other.image_mut()[bytes.clone()].to_vec();
        device.image_mut()[bytes].copy_from_slice(&foreign);
    }
    assert_eq!(device.len_bytes(), other.len_bytes());
    let (volume, report) = open(device);
    assert_eq!(report.checkpoint, None);
    assert!(holds(&volume, 5));
}

/// Rebuilding comes to the same map, and checkpoints of before do not count any more.
#[test]
fn rebuilt() {
    let mut device = dumped([7; 16]);
    for rebuild in [true, false] {
        let options = OpenOptions {
            rebuild,
            checkpoint_headers: 0,
            ..OpenOptions::default()
        };
        let (volume, report) = Volume::open(device, options).expect("open");
        assert_eq!((report.checkpoint, report.mapped), (None, 60));
        assert!(holds(&volume, 1));
        device = volume.into_device();
    }
}
