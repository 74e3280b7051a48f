//! A tiny volume with snapshots under a random workload, and what must be found on it after a power cut.

use std::collections::BTreeMap;
use std::sync::Arc;

use ftl::device::sim::{CrashPlan, SimDevice, SimImage, SimRng};
use ftl::planted::Bug;
use ftl::snapshot::{Slot, SnapshotError, Snapshots};
use ftl::{
    AtomicBatch, Checked, FormatOptions, Ftl, GRAIN_BYTES, Intent, Lba, LbaRange, OpenOptions,
    Volume, VolumeError,
};

/// What a grain holds; none: zeros.
pub(crate) type Content = Option<Arc<Vec<u8>>>;
/// What every grain of the universe holds.
pub(crate) type Image = BTreeMap<u64, Content>;

/// What a power cut may leave.
#[derive(Clone, Default)]
pub(crate) struct Expected {
    /// Of each grain what it may hold, the present content last.
    live: BTreeMap<u64, Vec<Content>>,
    /// Of each snapshot what it holds, and whether it must be there.
    snapshots: BTreeMap<Vec<u8>, (Image, bool)>,
}

/// How the volume is made and run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) capacity: u64,
    pub(crate) grains: u64,
    /// Grains for checkpoints.
    pub(crate) area: u64,
    pub(crate) rebuild: bool,
    pub(crate) bug: Option<Bug>,
}

impl Shape {
    pub(crate) const TINY: Self = Self {
        capacity: 96,
        grains: 30,
        area: 64,
        rebuild: false,
        bug: None,
    };

    pub(crate) fn universe(&self) -> Vec<u64> {
        let place = |n: u64| match n % 3 {
            0 => n / 3,
            1 => (5 << 24) + n / 3,
            _ => (1 << 52) - 24 + n / 3,
        };
        (0..self.grains).map(place).collect()
    }

    fn device_bytes(&self) -> usize {
        (16 + 14 * 16 + self.area) as usize * GRAIN_BYTES
    }

    fn options(&self) -> OpenOptions {
        OpenOptions {
            pool_frames: 64,
            planted: self.bug,
            checkpoint_headers: 3,
            map_pages_eager: 0,
            sweep_entries: Some(14),
            rebuild: self.rebuild,
            ..OpenOptions::default()
        }
    }
}

/// What went on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) made: u64,
    pub(crate) deleted: u64,
    pub(crate) no_space: u64,
    pub(crate) images: u64,
    pub(crate) snapshots_compared: u64,
    pub(crate) kept: u64,
    pub(crate) relocated: u64,
    pub(crate) checkpoints: u64,
    /// How often operations that were cut came past each named place.
    pub(crate) points: [u64; ftl::crash_point::ALL.len()],
}

pub(crate) struct Life {
    pub(crate) volume: Volume<SimDevice>,
    pub(crate) snapshots: Snapshots,
    pub(crate) expected: Expected,
    pub(crate) tally: Tally,
    shape: Shape,
    universe: Vec<u64>,
    rng: SimRng,
    version: u64,
    names: u64,
}

type Verdict<T> = Result<T, String>;

fn fail<T>(what: impl Into<String>) -> Verdict<T> {
    Err(what.into())
}

impl Life {
    pub(crate) fn begin(shape: Shape, seed: u64) -> Self {
        crate::harness::memory::keep();
        let mut rng = SimRng::new(seed);
        let mut device = SimDevice::new(shape.device_bytes(), rng.bits());
        let format = FormatOptions {
            segment_bytes: Some(16 * GRAIN_BYTES as u64),
            capacity_grains: Some(shape.capacity),
            checkpoint_grains: Some(shape.area),
            ..FormatOptions::default()
        };
        Ftl::format(&mut device, &format).expect("format");
        let (volume, snapshots) = open(device, &shape).expect("a fresh volume");
        let universe = shape.universe();
        let live = universe.iter().map(|&lba| (lba, vec![None])).collect();
        Self {
            volume,
            snapshots,
            expected: Expected {
                live,
                ..Expected::default()
            },
            tally: Tally::default(),
            shape,
            universe,
            rng,
            version: 0,
            names: 0,
        }
    }

    fn data(&mut self, lba: u64) -> Vec<u8> {
        self.version += 1;
        let mut bytes = Vec::with_capacity(GRAIN_BYTES);
        for word in 0..GRAIN_BYTES as u64 / 8 {
            let mixed = (lba << 40 ^ self.version << 9 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            bytes.extend_from_slice(&(mixed ^ mixed >> 31).to_le_bytes());
        }
        bytes
    }

    fn lba(&mut self) -> u64 {
        self.universe[self.rng.below(self.universe.len() as u64) as usize]
    }

    fn now(&self, lba: u64) -> Content {
        self.expected.live[&lba]
            .last()
            .expect("some content")
            .clone()
    }

    fn present(&self) -> Image {
        let all = self.universe.iter();
        all.map(|&lba| (lba, self.now(lba))).collect()
    }

    /// A run of neighbours.
    fn range(&mut self) -> LbaRange {
        let start = self.lba();
        LbaRange::new(Lba(start), 1 + self.rng.below(6))
    }

    fn in_range(&self, range: LbaRange) -> Vec<u64> {
        let all = self.universe.iter().copied();
        all.filter(|&lba| range.contains(Lba(lba))).collect()
    }

    /// It holds exactly this now, durably.
    fn settle(&mut self, lba: u64, content: Content) {
        self.expected.live.insert(lba, vec![content]);
    }

    fn settle_all(&mut self) {
        for versions in self.expected.live.values_mut() {
            versions.drain(..versions.len() - 1);
        }
    }

    /// Whether it was done; refusal for want of space changes nothing.
    fn done(&mut self, result: Result<(), VolumeError>) -> Verdict<bool> {
        match result {
            Ok(()) => Ok(true),
            Err(VolumeError::NoSpace) => {
                self.tally.no_space += 1;
                Ok(false)
            }
            Err(error) => fail(format!("refused: {error}")),
        }
    }

    /// A random operation.
    pub(crate) fn step(&mut self) -> Verdict<()> {
        match self.rng.below(100) {
            0..34 => self.write(),
            34..42 => self.trim(),
            42..54 => self.batch(),
            54..58 => self.zero(),
            58..63 => self.rename(true),
            63..68 => self.rename(false),
            68..76 => self.sync(),
            76..83 => self.make(),
            83..87 => self.delete(),
            87..97 => self.sweep(),
            _ => {
                self.volume.tick();
                Ok(())
            }
        }
    }

    fn write(&mut self) -> Verdict<()> {
        let lba = self.lba();
        let data = self.data(lba);
        let (offset, len) = match self.rng.one_in(2) {
            true => (0, GRAIN_BYTES),
            false => (self.rng.below(2000) as usize, 700),
        };
        let at = lba * GRAIN_BYTES as u64 + offset as u64;
        let bytes = &data[offset..offset + len];
        let result = self.volume.write(at, bytes);
        if self.done(result)? {
            let old = self.now(lba);
            let mut whole = old.map_or_else(|| vec![0; GRAIN_BYTES], |old| (*old).clone());
            whole[offset..offset + len].copy_from_slice(bytes);
            let versions = self.expected.live.get_mut(&lba).expect("of the universe");
            versions.push(Some(Arc::new(whole)));
        }
        Ok(())
    }

    fn trim(&mut self) -> Verdict<()> {
        let range = self.range();
        // Also on a volume that is full.
        let result = self.volume.trim(range);
        result.map_err(|error| format!("trim: {error}"))?;
        for lba in self.in_range(range) {
            self.settle(lba, None);
        }
        Ok(())
    }

    fn zero(&mut self) -> Verdict<()> {
        let range = self.range();
        let all_ours = self.in_range(range).len() as u64 == range.count;
        if all_ours {
            // What is mapped keeps its content; a page that is only in memory may be lost, and reads as zeros then.
            let result = self.volume.zero(range);
            self.done(result)?;
        }
        Ok(())
    }

    fn batch(&mut self) -> Verdict<()> {
        let mut batch = AtomicBatch::new();
        let mut patched = BTreeMap::new();
        for _ in 0..1 + self.rng.below(3) {
            let lba = self.lba();
            let data = self.data(lba);
            batch.patch(Lba(lba), 0, data.clone());
            patched.insert(lba, data);
        }
        let trim = self.rng.one_in(2).then(|| self.range());
        if let Some(range) = trim {
            batch.trim(range);
        }
        let result = self.volume.commit(batch);
        if self.done(result)? {
            for lba in trim.map(|range| self.in_range(range)).unwrap_or_default() {
                self.settle(lba, None);
            }
            for (lba, data) in patched {
                self.settle(lba, Some(Arc::new(data)));
            }
        }
        Ok(())
    }

    fn rename(&mut self, clones: bool) -> Verdict<()> {
        let (from, to) = (self.range(), self.lba());
        let target = LbaRange::new(Lba(to), from.count);
        let apart = from.end() <= target.start || target.end() <= from.start;
        let ours = |range: LbaRange| self.in_range(range).len() as u64 == range.count;
        if !apart || !ours(from) || !ours(target) {
            return Ok(());
        }
        let result = match clones {
            true => self
                .volume
                .clone_range(from.start, target.start, from.count),
            false => self.volume.remap(from.start, target.start, from.count),
        };
        if self.done(result)? {
            for n in 0..from.count {
                let (old, new) = (from.start.0 + n, to + n);
                if clones {
                    let content = self.now(old);
                    self.settle(new, content);
                } else {
                    let versions = self.expected.live[&old].clone();
                    self.expected.live.insert(new, versions);
                    self.settle(old, None);
                }
            }
        }
        Ok(())
    }

    fn sync(&mut self) -> Verdict<()> {
        let result = self.volume.sync(LbaRange::ALL);
        if self.done(result)? {
            self.settle_all();
        }
        Ok(())
    }

    fn make(&mut self) -> Verdict<()> {
        if self.expected.snapshots.len() >= 4 {
            return self.delete();
        }
        self.names += 1;
        let name = format!("s{}", self.names).into_bytes();
        match self.snapshots.make(&self.volume, &name, self.names) {
            Ok(made) => {
                self.tally.made += 1;
                self.settle_all();
                let image = self.present();
                self.expected.snapshots.insert(name.clone(), (image, true));
                self.compare_snapshot(&made.name)
            }
            Err(SnapshotError::NoSpace) => {
                self.tally.no_space += 1;
                Ok(())
            }
            Err(error) => fail(format!("make: {error}")),
        }
    }

    fn delete(&mut self) -> Verdict<()> {
        let names: Vec<Vec<u8>> = self.expected.snapshots.keys().cloned().collect();
        if names.is_empty() {
            return Ok(());
        }
        let name = &names[self.rng.below(names.len() as u64) as usize];
        let deleted = self.snapshots.delete(&self.volume, name);
        deleted.map_err(|error| format!("delete: {error}"))?;
        self.expected.snapshots.remove(name);
        self.tally.deleted += 1;
        Ok(())
    }

    fn sweep(&mut self) -> Verdict<()> {
        let swept = self.snapshots.sweep(&self.volume);
        swept.map(drop).map_err(|error| format!("sweep: {error}"))
    }

    /// What a snapshot holds is what it held when it was made.
    pub(crate) fn compare_snapshot(&mut self, name: &[u8]) -> Verdict<()> {
        self.tally.snapshots_compared += 1;
        let want = &self.expected.snapshots[name].0;
        compare(&self.volume, &self.snapshots, name, want)
    }

    pub(crate) fn compare_all(&mut self) -> Verdict<()> {
        let names: Vec<Vec<u8>> = self.expected.snapshots.keys().cloned().collect();
        for name in names {
            self.compare_snapshot(&name)?;
        }
        for &lba in &self.universe {
            let mut bytes = vec![0; GRAIN_BYTES];
            let read = self.volume.read(lba * GRAIN_BYTES as u64, &mut bytes);
            read.map_err(|error| format!("LBA {lba}: {error}"))?;
            if !is(&self.now(lba), &bytes) {
                return fail(format!("LBA {lba} is not what was written last"));
            }
        }
        self.volume.ftl().self_check();
        Ok(())
    }

    /// Deletes everything and lets the sweep end: nothing but the table is left of any snapshot.
    pub(crate) fn clear(&mut self) -> Verdict<()> {
        while !self.expected.snapshots.is_empty() {
            self.delete()?;
            self.compare_all()?;
        }
        clear(&self.volume, &self.snapshots)
    }

    /// An operation with the power cut at moments inside it: `one_in` of them, `images` of each.
    pub(crate) fn step_and_cut(&mut self, one_in: u64, images: usize) -> Verdict<()> {
        let before = self.expected.clone();
        self.volume.with_device(|device| device.record(1));
        ftl::crash_point::watch();
        ftl::crash_point::take();
        self.step()?;
        let hits = ftl::crash_point::take();
        for (sum, name) in self.tally.points.iter_mut().zip(ftl::crash_point::ALL) {
            *sum += hits.get(name).copied().unwrap_or(0);
        }
        let points = self.volume.with_device(SimDevice::recorded);
        let mid = between(&before, &self.expected);
        for (no, point) in points {
            if !self.rng.one_in(one_in) {
                continue;
            }
            for image in point.images(CrashPlan::sampled(images), self.rng.bits()) {
                self.judge(image.content, &mid)
                    .map_err(|what| format!("cut at {no}: {what}\n  fates {:?}", image.choice))?;
            }
        }
        if self.rng.one_in(one_in) {
            let point = self.volume.with_device(|device| device.crash_point());
            for image in point.images(CrashPlan::sampled(images), self.rng.bits()) {
                let expected = self.expected.clone();
                self.judge(image.content, &expected)
                    .map_err(|what| format!("cut behind: {what}\n  fates {:?}", image.choice))?;
            }
        }
        Ok(())
    }

    /// Recovers an image; it must hold what is expected, and the judge must say the same of it.
    fn judge(&mut self, image: SimImage, expected: &Expected) -> Verdict<()> {
        self.tally.images += 1;
        let mut device = SimDevice::from_image(image.clone(), self.rng.bits());
        let judged = ftl::check(&mut device).map_err(|error| format!("judge: {error}"))?;
        if !judged.damaged.is_empty() || !judged.faults.is_empty() {
            return fail(format!(
                "I5: {:?} damaged, {:?}",
                judged.damaged, judged.faults
            ));
        }
        let (volume, snapshots) = open(device, &self.shape)?;
        let loaded = volume.load(LbaRange::ALL);
        loaded.map_err(|error| format!("load: {error}"))?;
        let mapped = volume.space().mapped;
        if judged.map.len() as u64 != mapped {
            let judged = judged.map.len();
            return fail(format!("I5: {mapped} grains, the judge says {judged}"));
        }
        // Images and all.
        for (&lba, held) in &judged.map {
            let page = volume.page(lba, Intent::Read);
            let page = page.map_err(|error| format!("{lba}: {error}"))?;
            let mut found = vec![0; GRAIN_BYTES];
            page.copy_out(0, &mut found);
            let same = match held {
                Checked::Zero => found.iter().all(|&byte| byte == 0),
                Checked::Data { pba, .. } => found[..] == image.grain(pba.0 as usize)[..],
            };
            if !same {
                return fail(format!("I5: the judge says something else of {lba}"));
            }
        }
        volume.ftl().self_check();
        for (&lba, versions) in &expected.live {
            let mut bytes = vec![0; GRAIN_BYTES];
            let read = volume.read(lba * GRAIN_BYTES as u64, &mut bytes);
            read.map_err(|error| format!("LBA {lba}: {error}"))?;
            // What was mapped and never written out may be reserved, and read as zeros.
            if !versions.iter().any(|version| is(version, &bytes)) {
                return fail(format!(
                    "I1: LBA {lba} is none of {} versions",
                    versions.len()
                ));
            }
        }
        let found: Vec<Vec<u8>> = snapshots.list().into_iter().map(|s| s.name).collect();
        for name in &found {
            let Some((want, _)) = expected.snapshots.get(name) else {
                return fail(format!(
                    "a snapshot {name:?} that was deleted, or never made"
                ));
            };
            self.tally.snapshots_compared += 1;
            compare(&volume, &snapshots, name, want)?;
        }
        for (name, (_, must)) in &expected.snapshots {
            if *must && !found.contains(name) {
                return fail(format!("I1: the snapshot {name:?} is gone"));
            }
        }
        if self.rng.one_in(6) {
            self.go_on(&volume, &snapshots, expected)?;
        }
        Ok(())
    }

    /// Life goes on after a crash: everything changes, and snapshots do not; then they go.
    fn go_on(
        &mut self,
        volume: &Volume<SimDevice>,
        snapshots: &Snapshots,
        expected: &Expected,
    ) -> Verdict<()> {
        let trimmed = LbaRange::new(Lba(0), 5);
        match volume.trim(trimmed) {
            Ok(()) | Err(VolumeError::NoSpace) => {}
            Err(error) => return fail(format!("trim: {error}")),
        }
        for lba in self.universe.clone() {
            let data = self.data(lba);
            match volume.write(lba * GRAIN_BYTES as u64, &data) {
                Ok(()) | Err(VolumeError::NoSpace) => {}
                Err(error) => return fail(format!("write: {error}")),
            }
        }
        let mut found: Vec<Vec<u8>> = snapshots.list().into_iter().map(|s| s.name).collect();
        while !found.is_empty() {
            for name in &found {
                compare(volume, snapshots, name, &expected.snapshots[name].0)
                    .map_err(|what| format!("gone on: {what}"))?;
            }
            let name = found.swap_remove(self.rng.below(found.len() as u64) as usize);
            let deleted = snapshots.delete(volume, &name);
            deleted.map_err(|error| format!("delete: {error}"))?;
            if self.rng.one_in(2) {
                let swept = snapshots.sweep(volume);
                swept.map_err(|error| format!("sweep: {error}"))?;
            }
        }
        clear(volume, snapshots)
    }

    /// Cuts the power, and goes on with what is there.
    pub(crate) fn crash(mut self) -> Verdict<Self> {
        let point = self.volume.with_device(|device| device.crash_point());
        let image = point.images(CrashPlan::sampled(4), self.rng.bits()).last();
        let image = image.expect("at least one image");
        let expected = self.expected.clone();
        self.judge(image.content.clone(), &expected)?;
        self.note();
        let device = SimDevice::from_image(image.content, self.rng.bits());
        let (volume, snapshots) = open(device, &self.shape)?;
        for (&lba, versions) in &mut self.expected.live {
            let mut bytes = vec![0; GRAIN_BYTES];
            let read = volume.read(lba * GRAIN_BYTES as u64, &mut bytes);
            read.map_err(|error| format!("LBA {lba}: {error}"))?;
            let found = versions.iter().rev().find(|version| is(version, &bytes));
            *versions = vec![found.cloned().ok_or("no version")?];
        }
        self.volume = volume;
        self.snapshots = snapshots;
        Ok(self)
    }

    /// Shuts down and opens again.
    pub(crate) fn reopen(mut self) -> Verdict<Self> {
        let down = self.volume.shutdown();
        down.map_err(|error| format!("shutdown: {error}"))?;
        self.settle_all();
        self.note();
        let image = self.volume.with_device(|device| device.image().clone());
        let device = SimDevice::from_image(image, self.rng.bits());
        let (volume, snapshots) = open(device, &self.shape)?;
        self.volume = volume;
        self.snapshots = snapshots;
        Ok(self)
    }

    fn note(&mut self) {
        let stats = self.volume.ftl().stats();
        self.tally.kept += stats.grains_kept;
        self.tally.relocated += stats.relocated_grains;
        self.tally.checkpoints += stats.checkpoints;
    }
}

fn is(content: &Content, bytes: &[u8]) -> bool {
    match content {
        Some(data) => data[..] == *bytes,
        None => bytes.iter().all(|&byte| byte == 0),
    }
}

/// What may be found when the power is cut between two moments.
fn between(before: &Expected, after: &Expected) -> Expected {
    let mut all = before.clone();
    for (lba, versions) in &after.live {
        let known = all.live.entry(*lba).or_default();
        known.extend(versions.iter().cloned());
    }
    for (name, (_, must)) in &mut all.snapshots {
        *must &= after.snapshots.contains_key(name);
    }
    for (name, (image, _)) in &after.snapshots {
        let known = all.snapshots.entry(name.clone());
        known.or_insert((image.clone(), false));
    }
    all
}

fn open(device: SimDevice, shape: &Shape) -> Verdict<(Volume<SimDevice>, Snapshots)> {
    let opened = Volume::open(device, shape.options());
    let (volume, _) = opened.map_err(|error| format!("open: {error}"))?;
    let snapshots = Snapshots::open(&volume).map_err(|error| format!("snapshots: {error}"))?;
    Ok((volume, snapshots))
}

fn compare(
    volume: &Volume<SimDevice>,
    snapshots: &Snapshots,
    name: &[u8],
    want: &Image,
) -> Verdict<()> {
    let found = snapshots.find(name).ok_or("the snapshot is not there")?;
    for (&lba, content) in want {
        let mut bytes = vec![0; GRAIN_BYTES];
        let read = Snapshots::read(volume, found.slot, lba * GRAIN_BYTES as u64, &mut bytes);
        read.map_err(|error| format!("{name:?}: LBA {lba}: {error}"))?;
        if !is(content, &bytes) {
            let name = String::from_utf8_lossy(name);
            return fail(format!("the snapshot {name} has changed: LBA {lba}"));
        }
        let next = snapshots.next_mapped(volume, found.slot, LbaRange::new(Lba(lba), 1));
        let next = next.map_err(|error| format!("{name:?}: {error}"))?;
        if content.is_some() && next.is_none() {
            return fail(format!("the snapshot {name:?} does not list LBA {lba}"));
        }
    }
    counts(volume, snapshots, found.slot)
}

/// Grains are counted as they are listed.
fn counts(volume: &Volume<SimDevice>, snapshots: &Snapshots, slot: Slot) -> Verdict<()> {
    for range in [LbaRange::ALL, LbaRange::new(Lba(3), 6)] {
        let (mut listed, mut from) = (0, range.start);
        loop {
            let rest = LbaRange::new(from, range.end().0 - from.0);
            let next = snapshots.next_mapped(volume, slot, rest);
            let Some(lba) = next.map_err(|error| format!("listing: {error}"))? else {
                break;
            };
            listed += 1;
            from = lba.offset(1);
        }
        let counted = snapshots.mapped_count(volume, slot, range);
        let counted = counted.map_err(|error| format!("counting: {error}"))?;
        if counted != listed {
            return fail(format!("{counted} grains counted, {listed} listed"));
        }
    }
    Ok(())
}

/// Lets the sweep end, after which nothing but the table is left of any snapshot.
fn clear(volume: &Volume<SimDevice>, snapshots: &Snapshots) -> Verdict<()> {
    let mut pieces = 0;
    while snapshots
        .sweep(volume)
        .map_err(|error| format!("sweep: {error}"))?
    {
        pieces += 1;
        if pieces > 1000 {
            return fail("I18: the sweep does not end");
        }
    }
    volume.ftl().self_check();
    let (all, users) = (volume.space().mapped, volume.mapped_count(LbaRange::ALL));
    if all > users + 1 {
        return fail(format!("{all} grains are mapped, {users} of them users'"));
    }
    Ok(())
}
