//! The file system over the real translation layer: the same answers as in memory, and I1, I9 through its recovery.

use std::sync::Arc;

use contigfs::{
    BlockStore, Care, CopyRange, FallocMode, FormatOptions, Fs, FsError, InodeNo, NewNode, SetAttr,
    WriteOptions, XattrMode, check_volume, check_with_data, repair_volume,
};
use contigfs::{FileKind, RenameMode};
use ftl::device::sim::CrashPlan;
use ftl::format::HeaderNo;
use ftl::inspect::Inspector;
use ftl::{Device, MemDevice, OpenOptions, Pba, SegmentId, SimDevice, Volume};
use support::oracle::{Picture, picture_of};
use support::{Dice, content, name, names, tight};

const ROOT: InodeNo = InodeNo::ROOT;
const DEVICE_BYTES: usize = 32 << 20;

fn formatted() -> MemDevice {
    let mut device = MemDevice::new(DEVICE_BYTES).unwrap();
    ftl::Ftl::format(&mut device, &ftl::FormatOptions::default()).unwrap();
    let volume = open(device);
    Fs::format(&volume, &FormatOptions::default()).unwrap();
    volume.into_device()
}

fn open<D: Device>(device: D) -> Volume<D> {
    Volume::open(
        device,
        OpenOptions {
            pool_frames: 1024,
            ..OpenOptions::default()
        },
    )
    .unwrap()
    .0
}

fn assert_clean(store: &impl BlockStore) {
    let report = check_with_data(store);
    assert!(report.is_clean(), "{:#?}", report.problems);
}

/// Everything that was acknowledged is there after the process is gone without a word, over several lives.
#[test]
fn acknowledged_changes_survive() {
    let mut device = formatted();
    let mut dice = Dice::new(3);
    let mut expected: Vec<(String, Vec<u8>)> = Vec::new();
    for life in 0..6 {
        let volume = Arc::new(open(device));
        let fs = Fs::mount(Arc::clone(&volume)).unwrap();
        assert_clean(&volume);
        let mut found: Vec<String> = names(&fs, ROOT)
            .unwrap()
            .into_iter()
            .map(|entry| entry.0)
            .collect();
        let mut wanted: Vec<String> = expected.iter().map(|entry| entry.0.clone()).collect();
        found.sort();
        wanted.sort();
        assert_eq!(found, wanted);
        for (label, bytes) in &expected {
            let ino = fs.lookup(ROOT, name(label)).unwrap().ino;
            assert!(
                content(&fs, ino).unwrap() == *bytes,
                "{label} in life {life}"
            );
        }
        for i in 0..60 {
            if !expected.is_empty() && dice.below(3) == 0 {
                let (label, _) = expected.swap_remove(dice.below(expected.len() as u64) as usize);
                fs.unlink(ROOT, name(&label)).unwrap();
                continue;
            }
            let label = format!("life{life}-{i}");
            let ino = fs.create(ROOT, name(&label), &NewNode::file()).unwrap().ino;
            let bytes: Vec<u8> = (0..dice.below(40_000)).map(|_| dice.roll() as u8).collect();
            fs.write(
                ino,
                0,
                &bytes,
                WriteOptions {
                    durable: true,
                    ..WriteOptions::default()
                },
            )
            .unwrap();
            expected.push((label, bytes));
        }
        drop(fs);
        device = Arc::into_inner(volume).unwrap().into_device();
    }
}

/// Fill to the last grain, delete all, get all back: the count is the layer's own.
#[test]
fn space_is_exact() {
    let volume = open(formatted());
    let fs = Fs::mount(&volume).unwrap();
    let empty = fs.statfs().grains_free;
    let ino = fs.create(ROOT, name("f"), &NewNode::file()).unwrap().ino;
    let free = fs.statfs().grains_free;
    let mut written = 0;
    let error = loop {
        match fs.write(ino, written * 4096, &[3; 4096], WriteOptions::default()) {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
    };
    assert_eq!((error, written), (FsError::NoSpace, free));
    fs.sync_all().unwrap();
    assert_eq!(fs.attr(ino).unwrap().grains, free);
    assert_clean(&volume);
    fs.set_attr(
        ino,
        &SetAttr {
            size: Some(5),
            ..SetAttr::default()
        },
    )
    .unwrap();
    assert_eq!(fs.statfs().grains_free, free - 1);
    fs.unlink(ROOT, name("f")).unwrap();
    assert_eq!(fs.statfs().grains_free, empty);
    assert_clean(&volume);
}

/// Many times the capacity is written, so grains are collected and moved; the file stays what it is.
#[test]
fn overwriting_for_long() {
    let mut device = formatted();
    let mut dice = Dice::new(9);
    let size = 8 << 20;
    let mut expected = vec![0; size];
    for life in 0..3 {
        let volume = open(device);
        let fs = Fs::mount(&volume).unwrap();
        let ino = match life {
            0 => fs.create(ROOT, name("f"), &NewNode::file()).unwrap().ino,
            _ => fs.lookup_path("/f").unwrap(),
        };
        for _ in 0..3000 {
            let len = 1 + dice.below(20_000) as usize;
            let at = dice.below((size - len) as u64) as usize;
            let byte = dice.roll() as u8;
            expected[at..at + len].fill(byte);
            fs.write(ino, at as u64, &vec![byte; len], WriteOptions::default())
                .unwrap();
        }
        fs.set_attr(
            ino,
            &SetAttr {
                size: Some(size as u64),
                ..SetAttr::default()
            },
        )
        .unwrap();
        assert!(content(&fs, ino).unwrap() == expected, "life {life}");
        fs.sync_all().unwrap();
        assert_clean(&volume);
        drop(fs);
        device = volume.into_device();
    }
}

const SIM_BYTES: usize = 4 << 20;
const SIM_STEPS: usize = 30;
const SIM_SEEDS: u64 = 4;
const SIM_IMAGES: usize = 6;

/// One metadata operation by chance; it may fail.
fn metadata_step<S: BlockStore>(fs: &Fs<S>, dice: &mut Dice) -> Result<(), FsError> {
    let label = |dice: &mut Dice| format!("n{}", dice.below(6));
    let dirs: Vec<InodeNo> = names(fs, ROOT)?
        .into_iter()
        .map(|entry| entry.1)
        .filter(|&ino| {
            fs.attr(ino)
                .is_ok_and(|attr| attr.kind == FileKind::Directory)
        })
        .chain([ROOT])
        .collect();
    let (from, to) = (*dice.pick(&dirs), *dice.pick(&dirs));
    let (old, new) = (label(dice), label(dice));
    let (old, new) = (name(&old), name(&new));
    let ino = fs.lookup(from, old).map(|attr| attr.ino);
    match dice.below(15) {
        11 => {
            let mode = *dice.pick(&[
                FallocMode::PunchHole,
                FallocMode::ZeroRange { keep_size: false },
                FallocMode::Allocate { keep_size: false },
            ]);
            fs.fallocate(
                ino?,
                dice.below(3) * 4096,
                4096 + dice.below(2) * 4096,
                mode,
            )
        }
        12 => {
            let mode = *dice.pick(&[FallocMode::CollapseRange, FallocMode::InsertRange]);
            fs.fallocate(ino?, dice.below(3) * 4096, 4096, mode)
        }
        13 => fs
            .copy_range(&CopyRange {
                from: ino?,
                from_offset: dice.below(3) * 4096,
                to: fs.lookup(to, new)?.ino,
                to_offset: dice.below(4) * 4096,
                len: 3 * 4096,
            })
            .map(drop),
        0 => fs.create(from, old, &NewNode::directory()).map(drop),
        1 | 2 => fs.create(from, old, &NewNode::file()).map(drop),
        3 => fs.unlink(from, old),
        4 => fs.rmdir(from, old),
        5 => fs.rename(from, old, to, new, RenameMode::Replace),
        6 => fs.link(ino?, to, new).map(drop),
        7 => fs
            .set_attr(
                ino?,
                &SetAttr {
                    // Whole grains, so that a copy is a clone, and one step.
                    size: Some(dice.below(8) * 4096),
                    ..SetAttr::default()
                },
            )
            .map(drop),
        8 | 9 => {
            let value = vec![dice.roll() as u8; dice.below(20_000) as usize];
            fs.set_xattr(ino?, name("user.a"), &value, XattrMode::Set)
        }
        10 => fs.remove_xattr(ino?, name("user.a")),
        _ => fs
            .set_attr(
                ino?,
                &SetAttr {
                    perm: Some(dice.below(512) as u16),
                    ..SetAttr::default()
                },
            )
            .map(drop),
    }
}

/// I9 through the real recovery: power is cut after every operation of the device, and metadata operations are there
/// or not, in their order; none that was acknowledged is missing.
#[test]
fn metadata_survive_power_cuts_of_the_device() {
    let mut states = 0;
    for seed in 0..SIM_SEEDS {
        let mut device = SimDevice::new(SIM_BYTES, seed);
        ftl::Ftl::format(&mut device, &ftl::FormatOptions::default()).unwrap();
        let volume = Arc::new(open(device));
        Fs::format(&volume, &FormatOptions::default()).unwrap();
        let fs = Fs::mount_with(Arc::clone(&volume), &tight()).unwrap();
        let calls = || volume.with_device(|device| device.counts().calls());
        let mut dice = Dice::new(seed + 50);
        for n in 0..3u8 {
            let label = format!("n{n}");
            let ino = fs.create(ROOT, name(&label), &NewNode::file()).unwrap().ino;
            let grains: Vec<u8> = (1..=5).flat_map(|grain| [n * 16 + grain; 4096]).collect();
            fs.write(ino, 0, &grains, WriteOptions::default()).unwrap();
        }
        fs.sync_all().unwrap();
        let mut pictures: Vec<Picture> = vec![picture_of(&fs).unwrap()];
        let mut ends = vec![calls()];
        volume.with_device(|device| device.record(1));
        while pictures.len() <= SIM_STEPS {
            if metadata_step(&fs, &mut dice).is_ok() {
                pictures.push(picture_of(&fs).unwrap());
                ends.push(calls());
            }
        }
        for (number, point) in volume.with_device(SimDevice::recorded) {
            // Steps that had returned when this operation of the device was submitted.
            let done = ends.iter().filter(|&&end| end <= number).count() - 1;
            let possible = &pictures[done..pictures.len().min(done + 2)];
            for image in point.images(CrashPlan::sampled(SIM_IMAGES), number) {
                let volume = open(MemDevice::from_image(&image.content.to_vec()).unwrap());
                assert_clean(&volume);
                let fs = Fs::mount_with(&volume, &tight()).unwrap();
                let found = picture_of(&fs).unwrap();
                let at = format!("seed {seed}, device operation {number}, {done} steps done");
                assert!(
                    possible.contains(&found),
                    "{at}: {found:#?}\nnot one of {possible:#?}"
                );
                assert_clean(&volume);
                states += 1;
            }
        }
    }
    assert!(states > 500, "{states} crash states are too few");
}

/// A file that relocates in several batches is whole after a cut at any operation of the device, whether the mount finds
/// it at its old place, at its new one, or on its way.
#[test]
fn a_long_relocation_survives_power_cuts_of_the_device() {
    const SCATTERED: u64 = 60;
    const APART: u64 = 3000 * 4096;
    let mut device = SimDevice::new(SIM_BYTES, 5);
    ftl::Ftl::format(&mut device, &ftl::FormatOptions::default()).unwrap();
    let volume = Arc::new(open(device));
    Fs::format(&volume, &FormatOptions::default()).unwrap();
    let fs = Fs::mount_with(Arc::clone(&volume), &tight()).unwrap();
    let ino = fs.create(ROOT, name("f"), &NewNode::file()).unwrap().ino;
    for n in 0..SCATTERED {
        let bytes = [n as u8 + 1; 4096];
        fs.write(ino, n * APART, &bytes, WriteOptions::default())
            .unwrap();
    }
    fs.create(ROOT, name("behind"), &NewNode::file()).unwrap();
    fs.sync_all().unwrap();
    volume.with_device(|device| device.record(1));
    let grow = SetAttr {
        size: Some(1 << 36),
        ..SetAttr::default()
    };
    fs.set_attr(ino, &grow).unwrap();
    let (mut states, mut on_its_way) = (0, 0);
    for (number, point) in volume.with_device(SimDevice::recorded) {
        for image in point.images(CrashPlan::sampled(SIM_IMAGES), number) {
            let volume = open(MemDevice::from_image(&image.content.to_vec()).unwrap());
            let report = check_with_data(&volume);
            assert!(report.is_clean(), "{number}: {:?}", report.problems);
            on_its_way += report.relocating;
            let fs = Fs::mount_with(&volume, &tight()).unwrap();
            let report = check_with_data(&volume);
            assert!(report.is_clean(), "{number}: {:?}", report.problems);
            assert_eq!((report.relocating, report.ownerless_grains), (0, 0));
            assert_eq!(fs.attr(ino).unwrap().grains, SCATTERED, "{number}");
            for n in 0..SCATTERED {
                let mut found = [0; 4096];
                fs.read(ino, n * APART, &mut found).unwrap();
                assert!(found == [n as u8 + 1; 4096], "{number}: grain {n}");
            }
            states += 1;
        }
    }
    println!("{states} states, {on_its_way} of them on the way");
    assert!(states > 20 && on_its_way > 0, "{states}, {on_its_way}");
}

/// A header behind the last checkpoint rots, with durable ones behind it: whoever looks, and whoever repairs, is told that
/// acknowledged data are lost (I2, I7), and not again of the volume that has been repaired.
#[test]
fn a_lost_header_is_a_problem() {
    let volume = Arc::new(open(formatted()));
    let fs = Fs::mount(Arc::clone(&volume)).unwrap();
    let ino = fs.create(ROOT, name("f"), &NewNode::file()).unwrap().ino;
    fs.sync_all().unwrap();
    volume.shutdown().unwrap();
    drop(fs);
    let mut device = Arc::into_inner(volume).unwrap().into_device();
    let last = headers(&mut device).last().expect("some").1;
    let volume = Arc::new(open(device));
    let fs = Fs::mount(Arc::clone(&volume)).unwrap();
    for n in 0..100 {
        fs.write(ino, n * 4096, &[7; 4096], WriteOptions::default())
            .unwrap();
        fs.sync_all().unwrap();
    }
    drop(fs);
    let mut device = Arc::into_inner(volume).unwrap().into_device();
    let look = |device| {
        let looked = check_volume(device, &OpenOptions::default(), &mut |_, _, _| {});
        let (report, device) = looked.unwrap();
        (report.problems(), device)
    };
    let (problems, back) = look(device);
    assert_eq!(problems, Vec::<String>::new(), "not for a crash");
    device = back;
    let at = headers(&mut device).into_iter().find(|(_, no)| *no > last);
    let (at, _) = at.expect("written since");
    device.image_mut()[at.0 as usize * 4096..][..4096].fill(0x5a);
    let is_told = |problems: &[String]| problems.iter().any(|p| p.contains("lost: 1"));
    let (problems, device) = look(device);
    assert!(is_told(&problems), "{problems:?}");
    let options = OpenOptions::default();
    let done = repair_volume(device, &options, Care::Safe, false, &mut |_, _, _| {});
    let (done, device) = done.unwrap();
    let problems = done.after.expect("looked at").problems();
    assert!(is_told(&problems), "{problems:?}");
    let (problems, _) = look(device);
    assert_eq!(problems, Vec::<String>::new());
}

/// All headers, in order of number.
fn headers(device: &mut MemDevice) -> Vec<(Pba, HeaderNo)> {
    let mut inspector = Inspector::new(device).unwrap();
    let segments = 0..inspector.superblock().geometry.segment_count;
    let found = segments.flat_map(|id| inspector.headers(SegmentId(id)));
    let mut all: Vec<_> = found.map(|(at, header)| (at, header.no)).collect();
    all.sort_by_key(|&(_, no)| no);
    all
}

/// On the smallest volumes, too, whose batches hold few grains, an orderly end writes the sizes of all files.
#[test]
fn sizes_of_many_files_on_a_small_volume() {
    const FILES: usize = 800;
    let mut device = MemDevice::new(4 << 20).unwrap();
    ftl::Ftl::format(&mut device, &ftl::FormatOptions::default()).unwrap();
    let volume = Arc::new(open(device));
    Fs::format(&volume, &FormatOptions::default()).unwrap();
    let fs = Fs::mount(Arc::clone(&volume)).unwrap();
    let label = |n: usize| format!("f{n}");
    let make = |n| fs.create(ROOT, name(&label(n)), &NewNode::file()).unwrap();
    let inos: Vec<InodeNo> = (0..FILES).map(|n| make(n).ino).collect();
    fs.sync_all().unwrap();
    // Of each grain of records one.
    let few = || (0..FILES).step_by(32);
    for n in few() {
        let written = fs.write(inos[n], 0, b"x", WriteOptions::default());
        assert_eq!(written, Ok(1));
    }
    assert_eq!(fs.sync_all(), Ok(()));
    drop(fs);
    let fs = Fs::mount(volume).unwrap();
    for n in few() {
        assert_eq!(fs.lookup(ROOT, name(&label(n))).unwrap().size, 1, "{n}");
    }
}
