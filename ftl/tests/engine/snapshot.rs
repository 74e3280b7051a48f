//! Snapshots (`docs/snapshots.md`): a random workload against an oracle, the power cut at its media operations, and bugs
//! that this must notice (I1-I6, I18, M1, M2, M12).

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::snapshot_life::{Life, Shape, Tally};
use ftl::device::MediaError;
use ftl::device::sim::{Effect, Fault, OpKind, SimDevice};
use ftl::planted::Bug;
use ftl::snapshot::{Host, Slot, SnapshotChange, SnapshotError, Snapshots};
use ftl::{
    AtomicBatch, Checked, Event, FormatOptions, Ftl, GRAIN_BYTES, Get, Intent, Lba, LbaRange,
    MemDevice, OpenOptions, Port, Token, Volume,
};

/// `FLASHNET_SEEDS=from..to` runs other seeds than the usual ones.
fn seeds_of(usual: u64) -> Range<u64> {
    let asked = std::env::var("FLASHNET_SEEDS").ok();
    let asked = asked.and_then(|asked| {
        let (from, to) = asked.split_once("..")?;
        Some(from.parse().ok()?..to.parse().ok()?)
    });
    asked.unwrap_or(0..usual)
}

/// Runs a life of `ops` operations for each seed, without cutting; every snapshot is compared in full now and then.
fn live(shape: Shape, seeds: u64, ops: u64) -> (Tally, Result<(), String>) {
    let mut tally = Tally::default();
    for seed in seeds_of(seeds) {
        let mut life = Life::begin(shape, seed);
        let result = (|| {
            for op in 0..ops {
                life.step()?;
                if op % 20 == 19 {
                    life.compare_all()?;
                }
                if op % 97 == 96 {
                    life = std::mem::replace(&mut life, Life::begin(shape, seed)).reopen()?;
                }
            }
            life.compare_all()?;
            life.clear()
        })();
        add(&mut tally, &life);
        if let Err(what) = result {
            return (tally, Err(format!("seed {seed}: {what}")));
        }
    }
    (tally, Ok(()))
}

/// The same with the power cut: at moments inside of operations, and every 40 operations for good.
fn crash(shape: Shape, seeds: u64, ops: u64, one_in: u64) -> (Tally, Result<(), String>) {
    let mut tally = Tally::default();
    for seed in seeds_of(seeds) {
        let mut life = Life::begin(shape, seed);
        let result = (|| {
            for op in 0..ops {
                life.step_and_cut(one_in, 2)?;
                if op % 40 == 39 {
                    life = std::mem::replace(&mut life, Life::begin(shape, seed)).crash()?;
                }
            }
            life.compare_all()
        })();
        add(&mut tally, &life);
        if let Err(what) = result {
            return (tally, Err(format!("seed {seed}: {what}")));
        }
    }
    (tally, Ok(()))
}

fn add(sum: &mut Tally, life: &Life) {
    let stats = life.volume.ftl().stats();
    sum.made += life.tally.made;
    sum.deleted += life.tally.deleted;
    sum.no_space += life.tally.no_space;
    sum.images += life.tally.images;
    sum.snapshots_compared += life.tally.snapshots_compared;
    sum.kept += life.tally.kept + stats.grains_kept;
    sum.relocated += life.tally.relocated + stats.relocated_grains;
    sum.checkpoints += life.tally.checkpoints + stats.checkpoints;
    for (sum, hits) in sum.points.iter_mut().zip(life.tally.points) {
        *sum += hits;
    }
}

/// M1: whatever happens to grains, every snapshot is what it was, and when all are deleted nothing is left of them.
#[test]
fn model() {
    let (tally, result) = live(Shape::TINY, 12, 400);
    println!("{tally:#?}");
    assert_eq!(result, Ok(()));
    assert!(tally.made > 100 && tally.deleted > 100 && tally.kept > 1000 && tally.relocated > 100);
}

/// The same on a volume that is full most of the time: what is refused changes nothing, and deleting always works.
#[test]
fn full() {
    let shape = Shape {
        capacity: 46,
        ..Shape::TINY
    };
    let (tally, result) = live(shape, 8, 300);
    println!("{tally:#?}");
    assert_eq!(result, Ok(()));
    assert!(tally.no_space > 50 && tally.kept > 200);
}

/// M2: cut anywhere, with checkpoints all the time.
#[test]
fn crashes() {
    let (tally, result) = crash(Shape::TINY, 6, 120, 3);
    println!("{tally:#?}");
    assert_eq!(result, Ok(()));
    assert!(tally.images > 1000 && tally.checkpoints > 50 && tally.made > 20);
    for (name, hits) in ftl::crash_point::ALL.iter().zip(tally.points) {
        assert!(
            !name.starts_with("snapshot.") || hits >= 10,
            "{name}: {hits}"
        );
    }
}

/// M2: the same, recovered by reading all headers.
#[test]
fn crashes_scanned() {
    let shape = Shape {
        rebuild: true,
        ..Shape::TINY
    };
    let (tally, result) = crash(shape, 3, 120, 4);
    println!("{tally:#?}");
    assert_eq!(result, Ok(()));
    assert!(tally.images > 300);
}

/// What the same runs say of an engine with a bug.
fn must_be_caught(bug: Bug) {
    let shape = Shape {
        bug: Some(bug),
        ..Shape::TINY
    };
    let found = std::panic::catch_unwind(|| {
        let (_, result) = live(shape, 6, 200);
        result.and_then(|()| crash(shape, 6, 120, 2).1)
    });
    println!("{bug:?}: {found:?}");
    assert!(!matches!(found, Ok(Ok(()))), "{bug:?} was not noticed");
}

/// M12
#[test]
fn change_first() {
    must_be_caught(Bug::SnapshotChangeFirst);
}

/// M12
#[test]
fn trim_unkept() {
    must_be_caught(Bug::SnapshotTrimUnkept);
}

/// M12
#[test]
fn marks_forgotten() {
    must_be_caught(Bug::SnapshotMarksForgotten);
}

/// M12: a clone that does not wait for the page keeps what was there before.
#[test]
fn kept_before_page() {
    must_be_caught(Bug::CloneBeforePage);
}

/// Whoever holds a page for writing when a snapshot comes into being is waited for, and what it puts is in the snapshot; it
/// can not be changed any more when its maker is answered (S5, I2). Answers whether that is so.
fn waits_for_holders(bug: Option<Bug>) -> bool {
    let mut device = MemDevice::new(4 << 20).expect("memory");
    Ftl::format(&mut device, &FormatOptions::default()).expect("format");
    let options = OpenOptions {
        planted: bug,
        ..OpenOptions::default()
    };
    let (volume, _) = Volume::open(device, options).expect("open");
    volume.write(0, &[1; GRAIN_BYTES]).expect("write");
    volume.sync(LbaRange::ALL).expect("sync");
    let ftl = volume.ftl();
    ftl.admit_images(Port(0), Token(1 << 40));
    let held = volume.page(Lba(0), Intent::Write).expect("a page");
    let slot = Slot::new(0).expect("a slot");
    let made = Token(1 << 41);
    let change = Some(SnapshotChange::Make(slot));
    ftl.commit_snapshot(Port(0), AtomicBatch::new(), change, made)
        .expect("a batch");
    let mut answers = Vec::new();
    // Drives the device until nothing is left to do; notes who is answered.
    let mut drive = || {
        for _ in 0..50 {
            volume.with_device(|device| {
                while let Some(action) = ftl.poll_action(Port(0)) {
                    ftl::Device::submit(device, action);
                }
                while let Some((id, result)) = ftl::Device::poll(device, false) {
                    ftl.handle_done(Port(0), ftl::Time(1), id, result);
                }
            });
            while let Some(event) = ftl.poll_event(Port(0)) {
                if let Event::Durable { token, result } = event {
                    result.expect("done");
                    answers.push(token);
                }
            }
        }
        answers.contains(&made)
    };
    let is_early = drive();
    held.copy_in(0, &[2; GRAIN_BYTES]);
    drop(held);
    assert!(drive(), "the maker is answered when the page has been put");
    let mut before = [0; GRAIN_BYTES];
    Snapshots::read(&volume, slot, 0, &mut before).expect("read");
    volume.write(0, &[3; GRAIN_BYTES]).expect("write");
    let mut after = [0; GRAIN_BYTES];
    Snapshots::read(&volume, slot, 0, &mut after).expect("read");
    !is_early && before == [2; GRAIN_BYTES] && after == before
}

/// S5
#[test]
fn holders() {
    assert!(waits_for_holders(None));
}

/// M12
#[test]
fn holders_ignored() {
    assert!(!waits_for_holders(Some(Bug::SnapshotHoldersIgnored)));
}

/// A page of a grain is had without the lock until there is a snapshot, and again when there is none (S1).
#[test]
fn pages_without_the_lock() {
    let shape = Shape::TINY;
    let life = Life::begin(shape, 1);
    let (volume, snapshots) = (&life.volume, &life.snapshots);
    volume.write(0, b"resident").expect("write");
    let is_had = || volume.ftl().try_get(Lba(0), Intent::Write).is_some();
    assert!(is_had());
    snapshots.make(volume, b"one", 1).expect("a snapshot");
    assert!(!is_had());
    assert!(volume.ftl().try_get(Lba(0), Intent::Read).is_some());
    let got = volume
        .ftl()
        .get(Port(0), Lba(1 << 52), Intent::Write, Token(1 << 40));
    assert!(matches!(got, Get::Failed(_)), "nobody changes an image");
    snapshots.delete(volume, b"one").expect("deleted");
    assert!(is_had());
}

/// What making a snapshot writes does not depend on what there is: one batch, and nothing is kept before it changes.
#[test]
fn constant() {
    let written = |grains: u64| {
        let mut device = MemDevice::new(64 << 20).expect("memory");
        Ftl::format(&mut device, &FormatOptions::default()).expect("format");
        let (volume, _) = Volume::open(device, OpenOptions::default()).expect("open");
        let snapshots = Snapshots::open(&volume).expect("none");
        snapshots.make(&volume, b"first", 1).expect("a snapshot");
        for lba in 0..grains {
            let at = lba * GRAIN_BYTES as u64;
            volume.write(at, &[7; GRAIN_BYTES]).expect("write");
        }
        volume.sync(LbaRange::ALL).expect("sync");
        let before = volume.ftl().stats();
        snapshots.make(&volume, b"second", 2).expect("a snapshot");
        let after = volume.ftl().stats();
        (
            after.user_grains - before.user_grains,
            after.header_grains - before.header_grains,
            after.grains_kept - before.grains_kept,
        )
    };
    let few = written(10);
    assert_eq!(few, written(8_000));
    assert_eq!(few, (1, 1, 0));
}

/// A trim of more runs of grains than one header can say of that they have become images: all of them are in the snapshot and gone
/// from the volume, also after the power went (I1, I3).
#[test]
fn many_runs_at_once() {
    const RUNS: u64 = 300;
    let at = |run: u64| 2 * run * GRAIN_BYTES as u64;
    let mut device = MemDevice::new(64 << 20).expect("memory");
    Ftl::format(&mut device, &FormatOptions::default()).expect("format");
    let (volume, _) = Volume::open(device, OpenOptions::default()).expect("open");
    let snapshots = Snapshots::open(&volume).expect("none");
    for run in 0..RUNS {
        let bytes = [run as u8 | 1; GRAIN_BYTES];
        volume.write(at(run), &bytes).expect("write");
    }
    volume.sync(LbaRange::ALL).expect("sync");
    snapshots.make(&volume, b"all", 1).expect("a snapshot");
    let all = LbaRange::new(Lba(0), 2 * RUNS);
    volume.trim(all).expect("trim");
    // Nothing is shut down.
    let (volume, _) = Volume::open(volume.into_device(), OpenOptions::default()).expect("open");
    let snapshots = Snapshots::open(&volume).expect("one");
    let slot = snapshots.find(b"all").expect("it").slot;
    for run in 0..RUNS {
        let mut bytes = [0; GRAIN_BYTES];
        Snapshots::read(&volume, slot, at(run), &mut bytes).expect("read");
        assert_eq!(bytes, [run as u8 | 1; GRAIN_BYTES], "run {run}");
    }
    assert_eq!(volume.mapped_count(all), 0);
    volume.ftl().self_check();
}

/// A volume with three snapshots, each of which holds images and marks, shut down.
fn with_snapshots() -> MemDevice {
    let mut device = MemDevice::new(16 << 20).expect("memory");
    Ftl::format(&mut device, &FormatOptions::default()).expect("format");
    let (volume, _) = Volume::open(device, OpenOptions::default()).expect("open");
    let snapshots = Snapshots::open(&volume).expect("none");
    let write = |lba: u64, byte: u8| {
        let at = lba * GRAIN_BYTES as u64;
        volume.write(at, &[byte; GRAIN_BYTES]).expect("write");
    };
    (0..8).for_each(|lba| write(lba, 1));
    for (name, version) in [(b"a", 2), (b"b", 3), (b"c", 4)] {
        snapshots.make(&volume, name, 1).expect("a snapshot");
        write(0, version);
        write(u64::from(version) * 100, version);
    }
    volume.shutdown().expect("shutdown");
    volume.into_device()
}

/// Ruins the grain of the media that holds this one.
fn ruin(device: &mut MemDevice, lba: Lba) {
    let report = ftl::check(device).expect("a volume");
    let Some(Checked::Data { pba, .. }) = report.map.get(&lba) else {
        panic!("{lba} is not on the media");
    };
    let at = pba.0 as usize * GRAIN_BYTES;
    device.image_mut()[at..at + GRAIN_BYTES].fill(0x5a);
}

/// What is left after the loss of a grain: these snapshots, also the next time, the data of now, and in the end the space of
/// the others.
fn survives(mut device: MemDevice, left: &[&[u8]]) {
    for _ in 0..2 {
        let (volume, _) = Volume::open(device, OpenOptions::default()).expect("open");
        let snapshots = Snapshots::open(&volume).expect("the volume can be used");
        let names: Vec<Vec<u8>> = snapshots.list().into_iter().map(|s| s.name).collect();
        assert_eq!(names, left);
        for (lba, byte) in [(0, 4), (1, 1), (200, 2), (300, 3), (400, 4)] {
            let mut bytes = [0; GRAIN_BYTES];
            volume
                .read(lba * GRAIN_BYTES as u64, &mut bytes)
                .expect("read");
            assert_eq!(bytes, [byte; GRAIN_BYTES], "LBA {lba}");
        }
        volume.shutdown().expect("shutdown");
        device = volume.into_device();
    }
    let (volume, _) = Volume::open(device, OpenOptions::default()).expect("open");
    let snapshots = Snapshots::open(&volume).expect("the volume can be used");
    if let Some(c) = snapshots.find(b"c") {
        for (lba, byte) in [(0, 3), (1, 1), (200, 2), (300, 3), (400, 0)] {
            let mut bytes = [0; GRAIN_BYTES];
            let at = lba * GRAIN_BYTES as u64;
            Snapshots::read(&volume, c.slot, at, &mut bytes).expect("read");
            assert_eq!(bytes, [byte; GRAIN_BYTES], "LBA {lba}");
        }
    }
    for name in left {
        snapshots.delete(&volume, name).expect("deleted");
    }
    while snapshots.sweep(&volume).expect("sweep") {}
    let users = volume.mapped_count(LbaRange::ALL);
    assert_eq!((users, volume.space().mapped), (11, 12), "with the table");
    snapshots.make(&volume, b"new", 2).expect("a snapshot");
    volume.ftl().self_check();
}

/// I7: without its grain nobody knows the snapshots any more. That costs them, and nothing else.
#[test]
fn the_table_is_lost() {
    let mut device = with_snapshots();
    ruin(&mut device, Lba(63 << 52));
    survives(device, &[]);
}

/// I7: a snapshot of which marks are lost can not be told any more, nor can those be that look through it. Younger ones can.
#[test]
fn marks_are_lost() {
    let cases: [(u64, &[&[u8]]); 3] = [(0, &[b"b", b"c"]), (1, &[b"c"]), (2, &[])];
    for (slot, left) in cases {
        let mut device = with_snapshots();
        ruin(&mut device, Lba(63 << 52 | (slot + 1) << 20));
        survives(device, left);
    }
}

/// A read that fails once loses nothing.
#[test]
fn a_read_that_fails_once() {
    let image = with_snapshots().image().to_vec();
    let mut device = SimDevice::from_image(image, 1);
    let report = ftl::check(&mut device).expect("a volume");
    for lba in [63 << 52, 63 << 52 | 1 << 20] {
        let Some(Checked::Data { pba, .. }) = report.map.get(&Lba(lba)) else {
            panic!("{lba} is not on the media");
        };
        let at = pba.0 * GRAIN_BYTES as u64;
        device.inject(Fault {
            range: Some(at..at + GRAIN_BYTES as u64),
            times: 1,
            ..Fault::every(OpKind::Read, Effect::Fail(MediaError::Io))
        });
    }
    let (volume, _) = Volume::open(device, OpenOptions::default()).expect("open");
    let snapshots = Snapshots::open(&volume).expect("the volume can be used");
    assert_eq!(snapshots.list().len(), 3);
    assert!(!snapshots.is_sweeping());
}

/// While it is in use, too: whoever changes what was nothing at a snapshot has nothing to do with where that is written down
/// (I7).
#[test]
fn marks_that_can_not_be_added_to() {
    let mut device = SimDevice::new(16 << 20, 1);
    Ftl::format(&mut device, &FormatOptions::default()).expect("format");
    let options = OpenOptions {
        pool_frames: 64,
        ..OpenOptions::default()
    };
    let (volume, _) = Volume::open(device, options).expect("open");
    let snapshots = Snapshots::open(&volume).expect("none");
    let write = |lba: u64| volume.write(lba * GRAIN_BYTES as u64, &[7; GRAIN_BYTES]);
    // With holes between them.
    let before: Vec<u64> = (0..200).map(|n| 10 * n).collect();
    before.iter().for_each(|&lba| write(lba).expect("write"));
    let slot = snapshots.make(&volume, b"s", 1).expect("a snapshot").slot;
    write(5).expect("write");
    volume.sync(LbaRange::ALL).expect("sync");
    let mut bytes = [0; GRAIN_BYTES];
    for &lba in &before {
        let at = lba * GRAIN_BYTES as u64;
        volume.read(at, &mut bytes).expect("read");
    }
    let marks = Lba(63 << 52 | 1 << 20);
    let Some(&Checked::Data { pba, .. }) = volume.ftl().listing().get(&marks) else {
        panic!("the marks are not on the media");
    };
    let at = pba.0 * GRAIN_BYTES as u64;
    volume.with_device(|device| device.rot(at..at + GRAIN_BYTES as u64, |bytes| bytes.fill(9)));
    for lba in [15, 25, 35] {
        write(lba).expect("nothing of this is damaged");
    }
    for lba in [5, 15, 25, 35] {
        let at = lba * GRAIN_BYTES as u64;
        Snapshots::read(&volume, slot, at, &mut bytes).expect("read");
        assert_eq!(bytes, [0; GRAIN_BYTES], "LBA {lba}");
    }
    let damaged = volume.ftl().stats().damaged;
    assert_eq!(damaged, 1, "the marks have left memory");
}

/// A volume on which the second sync fails, and maybe each batch after it.
struct Unsynced {
    volume: Volume<MemDevice>,
    syncs: AtomicU32,
    takes_changes: bool,
}

impl Unsynced {
    fn has_failed(&self) -> bool {
        self.syncs.load(Relaxed) > 1
    }
}

impl Host for Unsynced {
    fn engine(&self) -> &Ftl {
        self.volume.ftl()
    }

    fn read_grains(&self, lbas: &[Lba], into: &mut [&mut [u8]]) -> Result<(), SnapshotError> {
        self.volume.read_grains(lbas, into)
    }

    fn commit_images(
        &self,
        batch: AtomicBatch,
        change: Option<SnapshotChange>,
    ) -> Result<(), SnapshotError> {
        match self.takes_changes || !self.has_failed() {
            true => self.volume.commit_images(batch, change),
            false => Err(SnapshotError::Failed),
        }
    }

    fn admit_images(&self) -> Result<(), SnapshotError> {
        Host::admit_images(&self.volume)
    }

    fn load_map(&self, range: LbaRange) -> Result<(), SnapshotError> {
        self.volume.load_map(range)
    }

    fn sync_all(&self) -> Result<(), SnapshotError> {
        self.syncs.fetch_add(1, Relaxed);
        match self.has_failed() {
            true => Err(SnapshotError::Failed),
            false => self.volume.sync_all(),
        }
    }
}

/// Whoever makes a snapshot is told what is so, now and when the volume is opened again: an error, and there is none; or it is
/// there, if a volume that has failed since does not let go of it.
#[test]
fn an_error_says_that_there_is_none() {
    for takes_changes in [true, false] {
        let mut device = MemDevice::new(16 << 20).expect("memory");
        Ftl::format(&mut device, &FormatOptions::default()).expect("format");
        let (volume, _) = Volume::open(device, OpenOptions::default()).expect("open");
        let host = Unsynced {
            volume,
            syncs: AtomicU32::new(0),
            takes_changes,
        };
        let snapshots = Snapshots::open(&host).expect("none");
        let made = snapshots.make(&host, b"s", 1);
        assert_eq!(made.is_err(), takes_changes);
        assert_eq!(snapshots.find(b"s"), made.clone().ok());
        host.volume.shutdown().expect("shutdown");
        let device = host.volume.into_device();
        let (volume, _) = Volume::open(device, OpenOptions::default()).expect("open");
        let snapshots = Snapshots::open(&volume).expect("as before");
        assert_eq!(snapshots.find(b"s"), made.ok());
        while snapshots.sweep(&volume).expect("sweep") {}
        volume.ftl().self_check();
    }
}
