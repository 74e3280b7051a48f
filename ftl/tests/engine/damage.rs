//! Every byte of all metadata of a volume of 16 MiB, flipped one at a time (M5).
//!
//! Defends I7 (any single bad sector of metadata leaves the volume mountable) and I4 (never wrong bytes): whatever is
//! flipped, the volume opens, and comes either to the very same map, or says that something is damaged, and then shows
//! of each grain a version that was written there.
//!
//! `FLASHNET_DAMAGE` chooses the shard: `all`, or `INDEX/COUNT`.

use crate::common::{Rng, at, grain};
use crate::harness::memory;
use crate::harness::shard::Shard;
use ftl::device::sim::{CrashPlan, SimDevice};
use ftl::{
    Action, ActionId, Device, FormatOptions, Ftl, GRAIN_BYTES, Lba, LbaRange, MediaError, MediaOp,
    MemDevice, OpenOptions, Volume,
};
use std::collections::{BTreeMap, HashMap, VecDeque};

const DEVICE_BYTES: usize = 16 << 20;
const GRAINS: u64 = 1200;
const SEGMENT_GRAINS: usize = 64;
const AREA_GRAINS: usize = 64;
/// First grain of the pages of checkpoints: they lie behind the segments.
const AREA: usize =
    16 + (DEVICE_BYTES / GRAIN_BYTES - 16 - AREA_GRAINS) / SEGMENT_GRAINS * SEGMENT_GRAINS;
/// Shards of which one runs by default.
const SHARDS: u64 = 127;

/// An image that many devices share; each keeps what is written to it, and one damaged byte, to itself.
#[derive(Debug)]
struct Damaged<'a> {
    image: &'a [u8],
    changed: HashMap<u64, Box<[u8; GRAIN_BYTES]>>,
    done: VecDeque<(ActionId, Result<(), MediaError>)>,
}

impl<'a> Damaged<'a> {
    fn new(image: &'a [u8]) -> Self {
        Self {
            image,
            changed: HashMap::new(),
            done: VecDeque::new(),
        }
    }

    fn flip(&mut self, byte: usize, mask: u8) {
        let grain = byte / GRAIN_BYTES;
        let bytes = &self.image[grain * GRAIN_BYTES..][..GRAIN_BYTES];
        let mut bytes: Box<[u8; GRAIN_BYTES]> = Box::new(bytes.try_into().expect("a grain"));
        bytes[byte % GRAIN_BYTES] ^= mask;
        self.changed.insert(grain as u64, bytes);
    }

    fn carry_out(&mut self, op: MediaOp) {
        match op {
            MediaOp::Read { offset, mut buf } => {
                // SAFETY: the completion is queued only after this function has returned.
                let bytes = unsafe { buf.bytes_mut() };
                let first = offset / GRAIN_BYTES as u64;
                for (no, to) in (first..).zip(bytes.chunks_exact_mut(GRAIN_BYTES)) {
                    let from = no as usize * GRAIN_BYTES;
                    let old = &self.image[from..from + GRAIN_BYTES];
                    to.copy_from_slice(self.changed.get(&no).map_or(old, |b| &b[..]));
                }
            }
            MediaOp::Write { offset, buf, .. } => {
                // SAFETY: as above.
                let bytes = unsafe { buf.bytes() };
                let first = offset / GRAIN_BYTES as u64;
                for (no, from) in (first..).zip(bytes.chunks_exact(GRAIN_BYTES)) {
                    let from: [u8; GRAIN_BYTES] = from.try_into().expect("a grain");
                    self.changed.insert(no, Box::new(from));
                }
            }
            MediaOp::Flush | MediaOp::Discard { .. } => {}
        }
    }
}

impl Device for Damaged<'_> {
    fn len_bytes(&self) -> u64 {
        self.image.len() as u64
    }
    fn submit(&mut self, action: Action) {
        self.carry_out(action.op);
        self.done.push_back((action.id, Ok(())));
    }
    fn poll(&mut self, _wait: bool) -> Option<(ActionId, Result<(), MediaError>)> {
        self.done.pop_front()
    }
}

/// Everything that each grain has ever held but zeros: which version, under which name it was written.
type Written = BTreeMap<Lba, Vec<(Lba, u64)>>;

/// The image, and what may be found in it.
struct Subject {
    image: Vec<u8>,
    written: Written,
}

/// What `to` may hold from now on, because it was remapped or cloned.
fn rename(written: &mut Written, from: Lba, to: Lba, count: u64) {
    for n in 0..count {
        let held = written.get(&Lba(from.0 + n)).cloned().unwrap_or_default();
        written.entry(Lba(to.0 + n)).or_default().extend(held);
    }
}

/// A volume with everything in it: several sessions, a dump, checkpoints, full headers and lone ones, relocations,
/// trims, reservations; killed after a sync. With remaps and clones, what they tie together is read while opening.
fn subject(renaming: bool) -> Subject {
    let mut device = MemDevice::new(DEVICE_BYTES).expect("memory");
    let format = FormatOptions {
        uuid: Some(*b"damage-test-uuid"),
        segment_bytes: Some((SEGMENT_GRAINS * GRAIN_BYTES) as u64),
        checkpoint_grains: Some(AREA_GRAINS as u64),
        capacity_grains: Some(GRAINS * 3 / 2),
        ..FormatOptions::default()
    };
    Ftl::format(&mut device, &format).expect("format");
    let mut written = Written::new();
    let mut rng = Rng::new(3);
    let mut version = 0;
    let mut last_map = None;
    for session in 0..3 {
        let options = OpenOptions {
            pool_frames: 256,
            checkpoint_headers: 12,
            ..OpenOptions::default()
        };
        let (volume, _) = Volume::open(device, options).expect("open");
        let mut write = |written: &mut Written, lba: u64| {
            version += 1;
            let lba = Lba(lba);
            volume.write(at(lba), &grain(lba, version)).expect("write");
            written.entry(lba).or_default().push((lba, version));
        };
        if session == 0 {
            (0..GRAINS).for_each(|lba| write(&mut written, lba));
            volume.sync(LbaRange::ALL).expect("sync");
        }
        for round in 0..30 {
            for _ in 0..60 {
                write(&mut written, rng.below(GRAINS));
            }
            volume.sync(LbaRange::ALL).expect("sync");
            write(&mut written, rng.below(GRAINS));
            volume.sync(LbaRange::ALL).expect("sync");
            if round % 6 == 5 {
                let lba = Lba(rng.below(GRAINS));
                volume.trim(LbaRange::new(lba, 5)).expect("trim");
                volume.zero(LbaRange::new(lba, 3)).expect("reserve");
                volume.sync(LbaRange::ALL).expect("sync");
            }
            if renaming && round % 6 == 5 {
                let (from, to) = (Lba(rng.below(GRAINS)), Lba(2 * GRAINS));
                volume.clone_range(from, to, 6).expect("clone");
                rename(&mut written, from, to, 6);
                let (from, to) = (to, Lba(3 * GRAINS + rng.below(GRAINS)));
                volume.remap(from, to, 4).expect("remap");
                rename(&mut written, from, to, 4);
                volume.sync(LbaRange::ALL).expect("sync");
            }
        }
        let stats = volume.ftl().stats();
        assert!(stats.checkpoints > 0, "{stats:?}");
        last_map = Some(volume.ftl().map_digest());
        if session == 1 {
            volume.shutdown().expect("shutdown");
        }
        device = volume.into_device();
    }
    let subject = Subject {
        image: device.image().to_vec(),
        written,
    };
    let (volume, report) = open(&subject, None, 64).expect("an intact image opens");
    assert!(report.checkpoint.is_some() && report.headers > 0);
    assert!(!is_said(&report), "{report:?}");
    assert_eq!(Some(volume.ftl().map_digest()), last_map);
    subject
}

/// Whether something is known to be wrong.
fn is_said(report: &ftl::RecoveryReport) -> bool {
    report.headers_damaged > 0 || report.headers_lost > 0
}

type Opened<'a> = Result<(Volume<Damaged<'a>>, ftl::RecoveryReport), ftl::OpenError>;

fn open(subject: &Subject, flip: Option<(usize, u8)>, map_pages_eager: usize) -> Opened<'_> {
    let mut device = Damaged::new(&subject.image);
    if let Some((byte, mask)) = flip {
        device.flip(byte, mask);
    }
    open_again(device, map_pages_eager)
}

fn open_again(device: Damaged<'_>, map_pages_eager: usize) -> Opened<'_> {
    let options = OpenOptions {
        pool_frames: 16,
        checkpoint_headers: 0,
        map_pages_eager,
        ..OpenOptions::default()
    };
    Volume::open(device, options)
}

/// Grains of metadata: superblocks, roots, headers, and the pages of checkpoints.
fn metadata(image: &[u8]) -> Vec<usize> {
    let grains = image.chunks_exact(GRAIN_BYTES).enumerate();
    let is_metadata = |(no, bytes): &(usize, &[u8])| {
        let in_area = *no >= AREA && bytes.iter().any(|&b| b != 0);
        *no < 6 || bytes.starts_with(b"FTLHEAD1") || in_area
    };
    grains.filter(is_metadata).map(|(no, _)| no).collect()
}

/// Nothing that was not written there is read, and something is reported.
fn check_loss(subject: &Subject, volume: &Volume<Damaged<'_>>, what: &str) {
    let mut bytes = vec![0; GRAIN_BYTES];
    for (&lba, versions) in &subject.written {
        if volume.read(at(lba), &mut bytes).is_err() {
            continue;
        }
        let is_blank = bytes.iter().all(|&b| b == 0);
        let mut versions = versions.iter().rev();
        let known = versions.any(|&(name, version)| bytes == grain(name, version));
        assert!(is_blank || known, "{what}: {lba:?} reads wrong");
    }
}

#[test]
fn every_byte_of_metadata() {
    memory::keep();
    let subject = subject(true);
    let (volume, _) = open(&subject, None, 64).expect("an intact image");
    let intact = volume.ftl().map_digest();
    let grains = metadata(&subject.image);
    assert!(grains.len() > 150, "{} grains of metadata", grains.len());
    let shard = Shard::of_env("FLASHNET_DAMAGE", SHARDS);
    let mut rng = Rng::new(7);
    let (mut flips, mut lossy) = (0u64, 0u64);
    for (index, &no) in grains.iter().enumerate() {
        for byte in 0..GRAIN_BYTES {
            let mask = 1 << rng.below(8) | rng.below(256) as u8;
            // The offset within the grain is different in each shard, and so is that within the next grain.
            if !shard.has((index * 5 + byte) as u64) {
                continue;
            }
            flips += 1;
            let what = format!("grain {no}, byte {byte} ^ {mask:#04x}");
            let flip = Some((no * GRAIN_BYTES + byte, mask));
            let (volume, report) =
                open(&subject, flip, 64).unwrap_or_else(|error| panic!("{what}: {error}"));
            if volume.ftl().map_digest() == intact {
                continue;
            }
            lossy += 1;
            let is_header = subject.image[no * GRAIN_BYTES..].starts_with(b"FTLHEAD1");
            assert!(is_header, "{what}: something is lost, {report:?}");
            assert!(is_said(&report), "{what}: lost without a word, {report:?}");
            check_loss(&subject, &volume, &what);
        }
    }
    println!(
        "{flips} bytes of {} grains flipped, {lossy} cost something",
        grains.len()
    );
    assert!(flips > 1_000);
}

/// A map that is read later finds the damage later: the volume fails, says so, and opens whole the next time.
#[test]
fn pages_of_a_cold_map() {
    memory::keep();
    let subject = subject(false);
    let (volume, _) = open(&subject, None, 64).expect("an intact image");
    let intact = volume.ftl().map_digest();
    let mut failed = 0;
    let all = metadata(&subject.image);
    for no in all.into_iter().filter(|&no| no >= AREA) {
        for byte in [4, 40, 4000] {
            let what = format!("grain {no}, byte {byte}");
            let flip = Some((no * GRAIN_BYTES + byte, 0x11));
            let (mut volume, report) = open(&subject, flip, 0).expect("opens");
            if volume.load(LbaRange::ALL).is_err() {
                failed += 1;
                let refused = volume.write(0, &[1; GRAIN_BYTES]);
                assert!(refused.is_err(), "{what}: goes on");
                let reopened = open_again(volume.into_device(), 0);
                (volume, _) = reopened.unwrap_or_else(|error| panic!("{what}: {error}"));
                volume.load(LbaRange::ALL).expect("nothing is cold");
            }
            assert_eq!(volume.ftl().map_digest(), intact, "{what}, {report:?}");
        }
    }
    println!("{failed} volumes failed");
    assert!(failed >= 3, "{failed} volumes failed");
}

/// What was trimmed long ago.
const TRIMMED: u64 = 100;

/// A volume of which these grains were trimmed before the last two checkpoints, and of that no tombstone is left; and what its
/// map is.
fn trimmed_long_ago() -> (Subject, u32) {
    let mut device = MemDevice::new(DEVICE_BYTES).expect("memory");
    let format = FormatOptions {
        segment_bytes: Some((SEGMENT_GRAINS * GRAIN_BYTES) as u64),
        checkpoint_grains: Some(AREA_GRAINS as u64),
        capacity_grains: Some(GRAINS * 3 / 2),
        ..FormatOptions::default()
    };
    Ftl::format(&mut device, &format).expect("format");
    let options = OpenOptions {
        pool_frames: 256,
        // From one to the next all segments are used several times.
        checkpoint_headers: 800,
        // Each needs pages of those before it, as on a large volume.
        sweep_entries: Some(TRIMMED),
        ..OpenOptions::default()
    };
    let (volume, _) = Volume::open(device, options).expect("open");
    let stats = || volume.ftl().stats();
    let mut rng = Rng::new(5);
    let mut write = |lba: u64| {
        let bytes = grain(Lba(lba), stats().user_grains);
        volume.write(at(Lba(lba)), &bytes).expect("write");
    };
    (0..GRAINS).for_each(&mut write);
    let mut overwrite_until = |done: &dyn Fn() -> bool| {
        while !done() {
            for _ in 0..SEGMENT_GRAINS {
                write(TRIMMED + rng.below(GRAINS - TRIMMED));
            }
            volume.sync(LbaRange::ALL).expect("sync");
        }
    };
    overwrite_until(&|| stats().checkpoints == 4);
    let trimmed = LbaRange::new(Lba(0), TRIMMED);
    volume.trim(trimmed).expect("trim");
    overwrite_until(&|| stats().checkpoints == 6 && stats().tombstones == 0);
    // What has carried the tombstone is overwritten as well.
    let freed = stats().segments_freed;
    let segments = (DEVICE_BYTES / GRAIN_BYTES / SEGMENT_GRAINS) as u64;
    overwrite_until(&|| stats().segments_freed > freed + segments);
    assert_eq!(stats().checkpoints, 6);
    let intact = volume.ftl().map_digest();
    let subject = Subject {
        image: volume.into_device().image().to_vec(),
        written: Written::new(),
    };
    (subject, intact)
}

/// A page that the last two checkpoints need is damaged, and one before them does not need it: that one does not count any more,
/// because the tombstones that it would need have expired. What was trimmed since stays so (I3, I7).
#[test]
fn a_checkpoint_before_the_last_two() {
    memory::keep();
    let (subject, intact) = trimmed_long_ago();
    let trimmed = LbaRange::new(Lba(0), TRIMMED);
    let (mut by_checkpoint, mut scanned) = (0, 0);
    for no in metadata(&subject.image) {
        if no < AREA && !(2..6).contains(&no) {
            continue;
        }
        let flip = Some((no * GRAIN_BYTES + 40, 0x11));
        let (volume, report) = open(&subject, flip, 64).expect("opens");
        assert_eq!(volume.next_mapped(trimmed), None, "grain {no}, {report:?}");
        assert_eq!(volume.ftl().map_digest(), intact, "grain {no}, {report:?}");
        match report.checkpoint {
            Some(_) => by_checkpoint += 1,
            None => scanned += 1,
        }
    }
    println!("{by_checkpoint} opened by a checkpoint, {scanned} by a full scan");
    assert!(by_checkpoint > 0 && scanned > 0);
}

/// The volume finds such a page when it is in use, and gives up its checkpoints; the power is cut meanwhile. Whatever is left of
/// them, none before the last two counts (I3, I6).
#[test]
fn cut_while_checkpoints_are_given_up() {
    memory::keep();
    let (subject, intact) = trimmed_long_ago();
    let trimmed = LbaRange::new(Lba(0), TRIMMED);
    let options = |map_pages_eager| OpenOptions {
        pool_frames: 16,
        checkpoint_headers: 0,
        map_pages_eager,
        ..OpenOptions::default()
    };
    let (mut failed, mut images) = (0, 0);
    let pages = metadata(&subject.image);
    for no in pages.into_iter().filter(|&no| no >= AREA) {
        let mut image = subject.image.clone();
        image[no * GRAIN_BYTES + 40] ^= 0x11;
        let (volume, _) = Volume::open(SimDevice::from_image(image, 1), options(0)).expect("opens");
        if volume.load(LbaRange::ALL).is_ok() {
            continue;
        }
        failed += 1;
        let device = volume.into_device();
        for image in device.crash_point().images(CrashPlan::FULL, no as u64) {
            images += 1;
            let what = format!("grain {no}, {:?}", image.choice);
            let device = SimDevice::from_image(image.content, 1);
            let (volume, report) = Volume::open(device, options(64)).expect("opens");
            let back = volume.next_mapped(trimmed);
            assert_eq!(back, None, "{what}, {report:?}");
            assert_eq!(volume.ftl().map_digest(), intact, "{what}, {report:?}");
        }
    }
    println!("{failed} volumes failed, {images} images");
    assert!(failed >= 3 && images >= 10);
}
