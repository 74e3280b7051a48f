//! Power cuts: every image that a moment can leave behind, recovered with the real engine and judged.

use std::collections::{BTreeMap, HashSet};

use ftl::check::{self, Checked};
use ftl::device::sim::{CrashImage, CrashPlan, OpKind, SimImage, SimRng};
use ftl::format::{Header, RecordKind, Superblock};
use ftl::{Device, Ftl, Lba, RecoveryReport};

use super::options::Options;
use super::oracle::{Content, Oracle, Violation};
use super::rig::Rig;
use super::world::{Moment, View, World, read_out, unobserved};

/// One image in so many is also recovered by reading all headers (the judge reads all of each).
const REBUILT_ONE_IN: u64 = 6;
/// One recovery in so many of a cut one is cut in turn, at one of its moments in so many.
const DEEPER_ONE_IN: u64 = 6;
const DEEPER_MOMENT_ONE_IN: u64 = 4;
/// How often recovery is cut inside itself: the recovery of a crash, the recovery of that cut, and once more.
pub(crate) const DEPTH: usize = 3;

/// How much to look at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// Images of each moment at most.
    pub(crate) images: usize,
    /// One image in so many is also cut during its own recovery.
    pub(crate) nested_one_in: u64,
    /// Images of each moment of a recovery. Of deeper recoveries one image is taken, and of few moments.
    pub(crate) nested_images: usize,
    /// One moment in so many is looked at.
    pub(crate) moment_one_in: u64,
}

impl Effort {
    pub(crate) const USUAL: Self = Self {
        images: 6,
        nested_one_in: 50,
        nested_images: 3,
        moment_one_in: 1,
    };
}

/// What was looked at, and how often the rare places were hit.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    /// Images recovered and judged, those of cut recoveries included.
    pub(crate) states: u64,
    /// Those of recoveries that were cut once, of recoveries of these cut again, and so on.
    pub(crate) nested: [u64; DEPTH],
    /// Images that the engine also recovered by reading all headers.
    pub(crate) rebuilt: u64,
    /// Moments at which images were taken.
    pub(crate) moments: u64,
    /// Images left out because the same one was judged by the same promises before.
    pub(crate) repeated: u64,
    /// Largest number of changes at stake.
    pub(crate) changes_max: usize,
    /// Moments while relocated grains were not durable yet.
    pub(crate) relocating: u64,
    /// Moments shortly after a segment was freed.
    pub(crate) freed: u64,
    /// Moments with tombstones in the log.
    pub(crate) tombstones: u64,
    /// Moments with few free segments.
    pub(crate) scarce: u64,
    /// Recoveries that cut a tail.
    pub(crate) cut: u64,
    /// Recoveries that met torn headers.
    pub(crate) torn: u64,
    /// Engine counts: victims, relocated grains, freed segments, headers only to let a segment go.
    pub(crate) victims: u64,
    pub(crate) relocated: u64,
    pub(crate) segments_freed: u64,
    /// Most streams that had segments at the end of a life.
    pub(crate) streams_max: usize,
    pub(crate) nudges: u64,
    pub(crate) batches: u64,
    /// Those with which something that had been put went along.
    pub(crate) along: u64,
    pub(crate) trims: u64,
    pub(crate) remaps: u64,
    pub(crate) clones: u64,
    pub(crate) names_left: u64,
    pub(crate) clone_copies: u64,
    pub(crate) no_space: u64,
    /// Checkpoints taken, those that did not fit, and recoveries from one.
    pub(crate) checkpoints: u64,
    pub(crate) skipped: u64,
    pub(crate) from_checkpoint: u64,
    /// How often each crash point was passed by somebody who was cut at every media operation.
    pub(crate) points: Points,
}

/// Counts by the order of [`ftl::crash_point::ALL`].
pub(crate) type Points = [u64; ftl::crash_point::ALL.len()];

impl Tally {
    pub(crate) fn add(&mut self, other: &Self) {
        self.states += other.states;
        for (sum, more) in self.nested.iter_mut().zip(other.nested) {
            *sum += more;
        }
        self.rebuilt += other.rebuilt;
        self.moments += other.moments;
        self.repeated += other.repeated;
        self.changes_max = self.changes_max.max(other.changes_max);
        self.relocating += other.relocating;
        self.freed += other.freed;
        self.tombstones += other.tombstones;
        self.scarce += other.scarce;
        self.cut += other.cut;
        self.torn += other.torn;
        self.victims += other.victims;
        self.relocated += other.relocated;
        self.segments_freed += other.segments_freed;
        self.streams_max = self.streams_max.max(other.streams_max);
        self.nudges += other.nudges;
        self.batches += other.batches;
        self.along += other.along;
        self.trims += other.trims;
        self.remaps += other.remaps;
        self.clones += other.clones;
        self.names_left += other.names_left;
        self.clone_copies += other.clone_copies;
        self.no_space += other.no_space;
        self.checkpoints += other.checkpoints;
        self.skipped += other.skipped;
        self.from_checkpoint += other.from_checkpoint;
        for (sum, more) in self.points.iter_mut().zip(other.points) {
            *sum += more;
        }
    }
}

/// Judges crash images along a run.
pub(crate) struct Examiner {
    options: Options,
    effort: Effort,
    universe: Vec<u64>,
    rng: SimRng,
    seen: HashSet<(u32, u64)>,
    acknowledged: u64,
    relocated_durable: u64,
    relocated_at_flush: u64,
    freed_before: u64,
    pub(crate) tally: Tally,
}

impl Examiner {
    pub(crate) fn new(options: &Options, effort: Effort, seed: u64) -> Self {
        Self {
            options: options.clone(),
            effort,
            universe: options.universe(),
            rng: SimRng::new(seed),
            seen: HashSet::new(),
            acknowledged: 0,
            relocated_durable: 0,
            relocated_at_flush: 0,
            freed_before: 0,
            tally: Tally::default(),
        }
    }

    /// Takes the images of a moment and judges them.
    pub(crate) fn observe(&mut self, view: &View) -> Result<(), Violation> {
        self.note_points();
        let result = self.observe_images(view);
        // What the recoveries passed was not cut, except where that was noted.
        ftl::crash_point::take();
        result
    }

    fn note_points(&mut self) {
        let hits = ftl::crash_point::take();
        for (sum, name) in self.tally.points.iter_mut().zip(ftl::crash_point::ALL) {
            *sum += hits.get(name).copied().unwrap_or(0);
        }
    }

    fn observe_images(&mut self, view: &View) -> Result<(), Violation> {
        self.note_rare_places(view);
        self.acknowledged += u64::from(view.moment == Moment::Acknowledged);
        if self.effort.moment_one_in > 1 && !self.rng.one_in(self.effort.moment_one_in) {
            return Ok(());
        }
        self.tally.moments += 1;
        let point = view.device.crash_point();
        self.tally.changes_max = self.tally.changes_max.max(point.changes());
        let plan = CrashPlan::sampled(self.effort.images);
        for image in point.images(plan, self.rng.bits()) {
            self.examine(&image, view.oracle)
                .map_err(|Violation(what)| {
                    let moment = view.moment;
                    Violation(format!(
                        "{what}\n  after {moment:?}, fates {:?}",
                        image.choice
                    ))
                })?;
        }
        Ok(())
    }

    fn note_rare_places(&mut self, view: &View) {
        let stats = view.ftl.stats();
        self.tally.relocating += u64::from(stats.relocated_grains > self.relocated_durable);
        self.tally.tombstones += u64::from(stats.tombstones > 0);
        self.tally.scarce += u64::from(stats.segments_free <= 3);
        if view.moment == Moment::Submitted(OpKind::Flush) {
            self.relocated_durable = self.relocated_at_flush;
            self.relocated_at_flush = stats.relocated_grains;
            self.tally.freed += u64::from(stats.segments_freed > self.freed_before);
            self.freed_before = stats.segments_freed;
        }
    }

    fn examine(&mut self, image: &CrashImage, oracle: &Oracle) -> Result<(), Violation> {
        if !self
            .seen
            .insert((fingerprint(&image.content), self.acknowledged))
        {
            self.tally.repeated += 1;
            return Ok(());
        }
        self.tally.states += 1;
        let nest = self.rng.one_in(self.effort.nested_one_in);
        let seed = self.rng.bits();
        let mut device = self.options.rig(image.content.clone(), seed)?;
        if nest {
            device.record();
            ftl::crash_point::take();
        }
        let (found, report) = recover(&mut device, &self.options, &self.universe)
            .and_then(|(found, report)| {
                oracle.judge(&found)?;
                judge_by_scan(&self.options, &image.content, &found)?;
                Ok((found, report))
            })
            .inspect_err(|_| keep_for_diagnosis(&image.content))?;
        self.tally.cut += u64::from(report.headers_cut > 0);
        self.tally.torn += u64::from(report.headers_damaged > 0);
        self.tally.from_checkpoint += u64::from(report.checkpoint.is_some());
        if nest {
            self.note_points();
            self.cut_recovery(&mut device, &found, 0)?;
        }
        if report.checkpoint.is_some() && self.rng.one_in(REBUILT_ONE_IN) {
            self.rebuild(image, &found)?;
        }
        Ok(())
    }

    /// The engine's own full scan reaches the same content as the checkpoint.
    fn rebuild(
        &mut self,
        image: &CrashImage,
        found: &BTreeMap<u64, Content>,
    ) -> Result<(), Violation> {
        self.tally.rebuilt += 1;
        let options = Options {
            rebuild: true,
            ..self.options.clone()
        };
        let mut device = self.options.rig(image.content.clone(), self.rng.bits())?;
        let again = recover(&mut device, &options, &self.universe)
            .and_then(|(again, _)| compare(found, &again));
        again.map_err(|Violation(what)| Violation(format!("I5: by scanning: {what}")))
    }

    /// Cuts the recovery that `device` has recorded: whatever is left must recover to the same content (I6). Some of
    /// these recoveries are cut in turn.
    fn cut_recovery(
        &mut self,
        device: &mut Rig,
        found: &BTreeMap<u64, Content>,
        depth: usize,
    ) -> Result<(), Violation> {
        let mut points = device.recorded();
        points.push((u64::MAX, device.crash_point()));
        let (images, moment_one_in) = match depth {
            0 => (self.effort.nested_images, 1),
            _ => (1, DEEPER_MOMENT_ONE_IN),
        };
        for (no, point) in points {
            if !self.rng.one_in(moment_one_in) {
                continue;
            }
            for image in point.images(CrashPlan::sampled(images), self.rng.bits()) {
                self.tally.states += 1;
                self.tally.nested[depth] += 1;
                let mut device = self.options.rig(image.content, self.rng.bits())?;
                let deeper = depth + 1 < DEPTH && self.rng.one_in(DEEPER_ONE_IN);
                if deeper {
                    device.record();
                }
                recover(&mut device, &self.options, &self.universe)
                    .and_then(|(again, _)| compare(found, &again))
                    .and_then(|()| match deeper {
                        true => self.cut_recovery(&mut device, found, depth + 1),
                        false => Ok(()),
                    })
                    .map_err(|Violation(what)| {
                        Violation(format!(
                            "I6: recovery cut after its operation {no}: {what}\n  inner fates {:?}",
                            image.choice
                        ))
                    })?;
            }
        }
        Ok(())
    }
}

/// Opens an image and reads everything.
pub(crate) fn recover(
    device: &mut dyn Device,
    options: &Options,
    universe: &[u64],
) -> Result<(BTreeMap<u64, Content>, RecoveryReport), Violation> {
    let opened = Ftl::open(device, options.open());
    let (ftl, report) = opened.map_err(|error| Violation(format!("recovery: {error}")))?;
    // A torn write into a segment that is used again looks much like a lost header, and costs nothing.
    if report.headers_lost > 0 {
        return Err(Violation(format!("said to have lost headers: {report:?}")));
    }
    let found = read_out(&ftl, device, universe)
        .map_err(|Violation(what)| Violation(format!("{what}\n  {report:?}")))?;
    ftl.self_check();
    Ok((found, report))
}

/// The judge, which shares with recovery only how grains are read and parsed and what a remap names, finds in the image
/// exactly what the engine found (I5).
fn judge_by_scan(
    options: &Options,
    image: &SimImage,
    found: &BTreeMap<u64, Content>,
) -> Result<(), Violation> {
    let mut device = options.rig(image.clone(), 0)?;
    let report = check::check(&mut device);
    let report = report.map_err(|error| Violation(format!("I5: judge: {error}")))?;
    if !report.damaged.is_empty() || !report.faults.is_empty() {
        let (damaged, faults) = (report.damaged, report.faults);
        return Err(Violation(format!(
            "I5: judge: {damaged:?} damaged, {faults:?}"
        )));
    }
    for (lba, content) in found {
        let same = match (content, report.map.get(&Lba(*lba))) {
            (Content::Unmapped, None) | (Content::Zero, Some(Checked::Zero)) => true,
            (Content::Data(data), Some(Checked::Data { pba, .. })) => {
                image.grain(pba.0 as usize)[..] == data[..]
            }
            _ => false,
        };
        if !same {
            let judged = report.map.get(&Lba(*lba));
            return Err(Violation(format!(
                "I5: LBA {lba} is {content:?}, the judge says {judged:?}"
            )));
        }
    }
    let mapped = found.values().filter(|content| content.is_mapped()).count();
    if report.map.len() != mapped {
        let judged = report.map.len();
        return Err(Violation(format!(
            "I5: {mapped} grains, the judge says {judged}"
        )));
    }
    Ok(())
}

fn fingerprint(image: &SimImage) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    image.grains().for_each(|grain| hasher.update(grain));
    hasher.finalize()
}

fn compare(
    first: &BTreeMap<u64, Content>,
    second: &BTreeMap<u64, Content>,
) -> Result<(), Violation> {
    for (lba, content) in first {
        if second.get(lba) != Some(content) {
            let second = second.get(lba);
            return Err(Violation(format!(
                "LBA {lba} was {content:?}, is now {second:?}"
            )));
        }
    }
    if first.len() != second.len() {
        return Err(Violation(format!(
            "{} grains, now {}",
            first.len(),
            second.len()
        )));
    }
    Ok(())
}

/// One life after the other on the same device, with a power cut or a shutdown between them.
pub(crate) fn run_lives(
    options: &Options,
    effort: Effort,
    seed: u64,
    lives: usize,
    ops: usize,
) -> (Tally, Result<(), Violation>) {
    let mut examiner = Examiner::new(options, effort, seed);
    ftl::crash_point::watch();
    ftl::crash_point::take();
    let result = lives_of(options, &mut examiner, seed, lives, ops);
    (examiner.tally, result)
}

fn lives_of(
    options: &Options,
    examiner: &mut Examiner,
    seed: u64,
    lives: usize,
    ops: usize,
) -> Result<(), Violation> {
    let mut rng = SimRng::new(seed);
    let mut world = World::create(options, rng.bits())?;
    // Fill the device first: what is interesting happens in a volume that is in use.
    world.run(ops, &mut unobserved)?;
    for life in 0..lives {
        ftl::crash_point::take();
        world.run(ops, &mut |view| examiner.observe(view))?;
        let image = if rng.one_in(4) {
            world.shutdown(&mut |view| examiner.observe(view))?;
            let point = world.device.crash_point();
            point.images(CrashPlan::sampled(1), rng.bits()).next()
        } else {
            if rng.one_in(2) {
                world.sync_all(&mut |view| examiner.observe(view))?;
            }
            let point = world.device.crash_point();
            let images = point.images(CrashPlan::FULL, rng.bits());
            let nth = rng.below(images.len() as u64) as usize;
            point.images(CrashPlan::FULL, rng.bits()).nth(nth)
        };
        let image = image.expect("at least one image");
        note_engine(&mut examiner.tally, &world);
        let mut device = options.rig(image.content.clone(), rng.bits())?;
        let (found, _) = recover(&mut device, options, &examiner.universe)?;
        world.oracle.judge(&found).map_err(|Violation(what)| {
            Violation(format!(
                "{what}\n  at the end of life {life}, fates {:?}",
                image.choice
            ))
        })?;
        // The next life starts from the very image, so that its recovery is part of the history.
        let device = options.rig(image.content, rng.bits())?;
        world = World::open(device, Oracle::new(&found), options, rng.fork())?;
    }
    Ok(())
}

/// A volume that changes its size again and again, each time with another power cut or shutdown between; `sizes` are the
/// segments that it is to have. It grows while it is used, and shrinks while it is not.
pub(crate) fn run_resizes(
    options: &Options,
    effort: Effort,
    seed: u64,
    sizes: &[u64],
    ops: usize,
) -> (Tally, Result<(), Violation>) {
    let mut examiner = Examiner::new(options, effort, seed);
    ftl::crash_point::watch();
    ftl::crash_point::take();
    let result = resizes_of(options, &mut examiner, seed, sizes, ops);
    (examiner.tally, result)
}

fn resizes_of(
    options: &Options,
    examiner: &mut Examiner,
    seed: u64,
    sizes: &[u64],
    ops: usize,
) -> Result<(), Violation> {
    let mut rng = SimRng::new(seed);
    let mut world = World::create(options, rng.bits())?;
    world.run(ops, &mut unobserved)?;
    for &segments in sizes {
        ftl::crash_point::take();
        let now = world.ftl.info().geometry;
        let per_segment = options.segment_grains + options.area / options.segments;
        let grains = 16 + segments * per_segment + options.area % options.segments;
        let grows = segments > u64::from(now.segment_count);
        if grows {
            world.resize(grains)?;
            world.run(ops, &mut |view| examiner.observe(view))?;
        } else {
            // What is in its way goes, until the rest fits.
            world.load()?;
            while !world.resize(grains)? {
                world.forget_some(&mut unobserved)?;
            }
        }
        world.settle(&mut |view| examiner.observe(view))?;
        world.ftl.self_check();
        let geometry = world.ftl.info().geometry;
        if u64::from(geometry.segment_count) != segments {
            return Err(Violation(format!(
                "{segments} segments asked for: {geometry:?}"
            )));
        }
        // In the new size life goes on.
        world.run(ops, &mut |view| examiner.observe(view))?;
        let image = if rng.one_in(3) {
            world.shutdown(&mut |view| examiner.observe(view))?;
            let point = world.device.crash_point();
            point.images(CrashPlan::sampled(1), rng.bits()).next()
        } else {
            let point = world.device.crash_point();
            let images = point.images(CrashPlan::FULL, rng.bits());
            let nth = rng.below(images.len() as u64) as usize;
            point.images(CrashPlan::FULL, rng.bits()).nth(nth)
        };
        let image = image.expect("at least one image");
        note_engine(&mut examiner.tally, &world);
        let mut device = options.rig(image.content.clone(), rng.bits())?;
        let (found, _) = recover(&mut device, options, &examiner.universe)?;
        world.oracle.judge(&found)?;
        let device = options.rig(image.content, rng.bits())?;
        world = World::open(device, Oracle::new(&found), options, rng.fork())?;
        let again = world.ftl.info().geometry;
        if again != geometry {
            return Err(Violation(format!("{geometry:?} has become {again:?}")));
        }
    }
    Ok(())
}

fn note_engine(tally: &mut Tally, world: &World) {
    let stats = world.ftl.stats();
    tally.victims += stats.victims;
    tally.relocated += stats.relocated_grains;
    tally.names_left += stats.names_left;
    tally.clone_copies += stats.clone_copies;
    tally.segments_freed += stats.segments_freed;
    let streams = world.ftl.streams();
    let used = streams.iter().filter(|s| s.segments > 0).count();
    tally.streams_max = tally.streams_max.max(used);
    tally.nudges += stats.nudges;
    tally.batches += world.stats.batches;
    tally.along += world.stats.along;
    tally.trims += world.stats.trims;
    tally.remaps += world.stats.remaps;
    tally.clones += world.stats.clones;
    tally.no_space += world.stats.no_space;
    tally.checkpoints += stats.checkpoints;
    tally.skipped += stats.checkpoints_skipped;
}

/// With `FLASHNET_DUMP` set, writes down what a failing image holds.
fn keep_for_diagnosis(image: &SimImage) {
    if let Ok(path) = std::env::var("FLASHNET_DUMP") {
        std::fs::write(&path, describe(image)).unwrap_or_else(|error| panic!("{path}: {error}"));
    }
}

/// Everything that looks like a header of an image, for diagnosis.
pub(crate) fn describe(image: &SimImage) -> String {
    use std::fmt::Write;
    let mut text = String::new();
    let grains: Vec<_> = image.grains().collect();
    for (n, &bytes) in grains.iter().enumerate() {
        if let Ok(found) = Superblock::parse(bytes) {
            let _ = writeln!(text, "{n}: {found:?}");
        }
        let Ok(header) = Header::parse(bytes) else {
            continue;
        };
        let _ = writeln!(
            text,
            "{n}: {:?} session {} epoch {:?} durable {:?} {:?}+{} back {:?} {:?}",
            header.no,
            header.session,
            header.epoch,
            header.durable,
            header.segment,
            header.position,
            header.back,
            header.stream
        );
        let mut data = n;
        for record in header.records {
            let mut fits = String::new();
            if let RecordKind::Data { crc } = record.kind {
                data += 1;
                fits = match grains.get(data) {
                    Some(bytes) if crc32fast::hash(*bytes) == crc => " fits".to_string(),
                    _ => " DOES NOT FIT".to_string(),
                };
            }
            let _ = writeln!(
                text,
                "    {:?} {:?} {:?}{fits}",
                record.lba, record.version, record.kind
            );
        }
    }
    text
}

/// With this one, of the first two hundred, tombstones of a checkpoint have no home any more when they come back from it, because
/// segments are reused so soon.
pub(crate) const SCARCE_SEED: u64 = 63;

/// Lives that end in the middle of a relocation, often when hardly a segment is free. Nothing is examined but that each life gets its answers, and
/// that the next one finds what it must.
pub(crate) fn run_scarce_lives(
    options: &Options,
    seed: u64,
    lives: usize,
    scarcest: &mut u64,
) -> Result<(), Violation> {
    let mut rng = SimRng::new(seed);
    let mut world = World::create(options, rng.bits())?;
    world.run(3 * options.capacity as usize, &mut unobserved)?;
    for life in 0..lives {
        let bound = if rng.one_in(2) {
            rng.below(3)
        } else {
            u64::MAX
        };
        let mut cut = None;
        let result = world.run(60, &mut |view: &View| {
            let stats = view.ftl.stats();
            let free = stats.segments_free;
            // In the middle of a relocation: what it has used is lost, what it was to free is not free.
            if free > bound || stats.relocated_grains == 0 || rng.one_in(3) {
                return Ok(());
            }
            cut = Some(view.device.crash_point());
            Err(Violation("cut here".to_string()))
        });
        if cut.is_none() {
            result?;
            // Everybody must get an answer in every life.
            world.sync_all(&mut unobserved)?;
        }
        let point = cut.unwrap_or_else(|| world.device.crash_point());
        let image = point.images(CrashPlan::sampled(4), rng.bits());
        let image = image.last().expect("at least one image");
        let mut device = options.rig(image.content.clone(), rng.bits())?;
        let (found, _) = recover(&mut device, options, &options.universe())?;
        world.oracle.judge(&found).map_err(|Violation(what)| {
            Violation(format!("{what}\n  life {life}, fates {:?}", image.choice))
        })?;
        let device = options.rig(image.content, rng.bits())?;
        world = World::open(device, Oracle::new(&found), options, rng.fork())?;
        *scarcest = (*scarcest).min(world.ftl.stats().segments_free);
        if life % 4 == 3 {
            world
                .run(20, &mut unobserved)
                .and_then(|()| world.sync_all(&mut unobserved))
                .map_err(|Violation(what)| Violation(format!("{what}\n  after life {life}")))?;
        }
    }
    Ok(())
}
