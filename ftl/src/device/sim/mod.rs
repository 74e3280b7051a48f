//! The simulated device: seeded faults, arbitrary order, power cuts.
//!
//! # Fault model
//! - **Order.** Each operation takes a random number of steps of device time; operations in flight complete in any
//!   order. A read that overlaps a write in flight sees each sector old or new.
//! - **Power cut** (see [`CrashPoint`]). Writes that completed before the start of a flush that succeeded are kept, and
//!   so are durable writes that have completed.
//!   Every other write is, per 512-byte sector and in any combination, old or new; sectors of writes in flight may
//!   also be garbage. Discards are kept or lost, likewise by sector.
//! - **Honest failures** (see [`Fault`]): any operation fails, once or for ever, by kind, range or number. A failed
//!   write leaves any mixture of old, new and garbage. After a failed flush the writes before it are never durable.
//! - **Lies**: writes that are lost or stored elsewhere, reads from elsewhere, flipped bits.
//!
//! The device also watches its user: writes in flight must not overlap, and nobody may touch the buffer of a write
//! until it has completed. Buffers of reads are filled with a pattern until the data arrives.

mod crash;
mod fault;
mod image;
mod rng;

pub use crash::{CrashChoice, CrashImage, CrashImages, CrashPlan, CrashPoint, Fate};
pub use fault::{Effect, Fault, OpKind};
pub use image::SimImage;
pub use rng::SimRng;

use std::ops::Range;
use std::sync::Arc;

use super::{Action, ActionId, Device, MediaError, MediaOp, check};
use crash::{Bytes, Stage, Volatile};

/// Unit of atomicity of the media.
pub const SECTOR_BYTES: usize = 512;

/// Content of a read's buffer before its data arrives.
const UNREAD: u8 = 0xA5;

/// Operations seen, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SimCounts {
    /// Reads submitted.
    pub reads: u64,
    /// Writes submitted.
    pub writes: u64,
    /// Flushes submitted.
    pub flushes: u64,
    /// Discards submitted.
    pub discards: u64,
    /// Operations that a fault has hit.
    pub faults: u64,
    /// Bytes of all writes.
    pub bytes_written: u64,
}

impl SimCounts {
    /// Operations of all kinds.
    pub const fn calls(&self) -> u64 {
        self.reads + self.writes + self.flushes + self.discards
    }
}

/// A device that exists only as a model.
#[derive(Debug)]
pub struct SimDevice {
    /// What is there after any power cut.
    durable: SimImage,
    /// What reads see.
    current: SimImage,
    /// Changes that `current` or an operation in flight has beyond `durable`, oldest first.
    changes: Vec<Volatile>,
    pending: Vec<Pending>,
    faults: Vec<Fault>,
    rng: SimRng,
    /// Device time, in steps.
    clock: u64,
    steps_max: u64,
    /// Submission order.
    next_no: u64,
    counts: SimCounts,
    recorder: Option<Recorder>,
}

#[derive(Debug)]
struct Pending {
    no: u64,
    due: u64,
    action: Action,
    effect: Option<Effect>,
    /// Of a write: the bytes at submission.
    data: Option<Arc<[u8]>>,
    /// Of a flush: the changes it covers.
    covers: Vec<u64>,
}

/// Crash points taken without the driver's help.
#[derive(Debug)]
struct Recorder {
    every: u64,
    points: Vec<(u64, CrashPoint)>,
}

impl SimDevice {
    /// A device of zeros.
    ///
    /// # Panics
    /// If the length is no multiple of a grain.
    pub fn new(len_bytes: usize, seed: u64) -> Self {
        Self::from_image(SimImage::zeros(len_bytes), seed)
    }

    /// A device with durable content.
    ///
    /// # Panics
    /// If the length is no multiple of a grain.
    pub fn from_image(image: impl Into<SimImage>, seed: u64) -> Self {
        let image = image.into();
        Self {
            current: image.clone(),
            durable: image,
            changes: Vec::new(),
            pending: Vec::new(),
            faults: Vec::new(),
            rng: SimRng::new(seed),
            clock: 0,
            steps_max: 8,
            next_no: 0,
            counts: SimCounts::default(),
            recorder: None,
        }
    }

    /// Operations take 1 to `steps` steps of device time; 1 means order of submission.
    ///
    /// # Panics
    /// If `steps` is 0.
    pub fn set_latency(&mut self, steps: u64) {
        assert!(steps > 0);
        self.steps_max = steps;
    }

    /// Adds a fault. If several hit an operation, the one added first counts.
    pub fn inject(&mut self, fault: Fault) {
        self.faults.push(fault);
    }

    /// Ends all faults; what they did stays.
    pub fn clear_faults(&mut self) {
        self.faults.clear();
    }

    /// Changes stored bytes for good, behind everybody's back.
    pub fn rot(&mut self, range: Range<u64>, change: impl Fn(&mut [u8])) {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        for image in [&mut self.current, &mut self.durable] {
            image.read(range.start as usize, &mut bytes);
            change(&mut bytes);
            image.write(range.start as usize, &bytes);
        }
    }

    /// What reads see: the content if the power stays on.
    pub const fn image(&self) -> &SimImage {
        &self.current
    }

    /// Operations seen so far.
    pub const fn counts(&self) -> SimCounts {
        self.counts
    }

    /// Operations in flight.
    pub fn in_flight(&self) -> usize {
        self.pending.len()
    }

    /// What a power cut finds now.
    pub fn crash_point(&self) -> CrashPoint {
        CrashPoint {
            durable: self.durable.clone(),
            changes: self.changes.clone(),
        }
    }

    /// The device after a power cut now, with the given fates and a new seed.
    pub fn crash(&self, choice: &CrashChoice, seed: u64) -> Self {
        Self::from_image(self.crash_point().image(choice), seed)
    }

    /// From now on takes a crash point after the submission of every `every`-th operation that is no read, for code
    /// that drives the device itself.
    pub fn record(&mut self, every: u64) {
        assert!(every > 0);
        self.recorder = Some(Recorder {
            every,
            points: Vec::new(),
        });
    }

    /// Ends [`SimDevice::record`]: (number of the operation, crash point just after its submission).
    pub fn recorded(&mut self) -> Vec<(u64, CrashPoint)> {
        self.recorder.take().map_or_else(Vec::new, |r| r.points)
    }

    fn count(&mut self, op: &MediaOp) -> (OpKind, Option<Range<u64>>) {
        let counts = &mut self.counts;
        match op {
            MediaOp::Read { offset, buf } => {
                counts.reads += 1;
                (OpKind::Read, Some(*offset..offset + buf.len() as u64))
            }
            MediaOp::Write { offset, buf, .. } => {
                counts.writes += 1;
                counts.bytes_written += buf.len() as u64;
                (OpKind::Write, Some(*offset..offset + buf.len() as u64))
            }
            MediaOp::Flush => {
                counts.flushes += 1;
                (OpKind::Flush, None)
            }
            MediaOp::Discard { offset, len } => {
                counts.discards += 1;
                (OpKind::Discard, Some(*offset..offset + len))
            }
        }
    }

    fn pick_effect(&mut self, kind: OpKind, touched: Option<&Range<u64>>) -> Option<Effect> {
        // Every fault counts every operation, whether or not another one hit it first.
        let mut effect = None;
        for fault in &mut self.faults {
            if fault.hits(kind, touched) && effect.is_none() {
                effect = Some(fault.effect);
            }
        }
        self.counts.faults += u64::from(effect.is_some());
        effect
    }

    /// Enters a write or discard into the list of changes, unless a fault says otherwise.
    fn begin_change(&mut self, no: u64, offset: u64, bytes: Bytes, effect: Option<Effect>) {
        let len = match &bytes {
            Bytes::Data(data) => data.len(),
            Bytes::Zeros(len) => *len,
        };
        let offset = match effect {
            Some(Effect::Lose) => return,
            Some(Effect::Misdirect(elsewhere)) => elsewhere.min(self.len_bytes() - len as u64),
            _ => offset,
        };
        let bytes = match (bytes, effect) {
            (Bytes::Data(data), Some(Effect::FlipBit(bit))) => {
                let mut data = data.to_vec();
                flip(&mut data, bit);
                Bytes::Data(data.into())
            }
            (bytes, _) => bytes,
        };
        self.changes.push(Volatile {
            no,
            offset,
            bytes,
            live: vec![true; len / SECTOR_BYTES],
            stage: Stage::InFlight,
        });
    }

    fn assert_no_overlap(&self, kind: OpKind, touched: &Range<u64>) {
        if !matches!(kind, OpKind::Write | OpKind::Discard) {
            return;
        }
        for other in &self.pending {
            let range = match &other.action.op {
                MediaOp::Write { offset, buf, .. } => *offset..offset + buf.len() as u64,
                MediaOp::Discard { offset, len } => *offset..offset + len,
                MediaOp::Read { .. } | MediaOp::Flush => continue,
            };
            assert!(
                touched.end <= range.start || range.end <= touched.start,
                "{kind:?} of bytes {touched:?} while {:?} of {range:?} is in flight",
                other.action
            );
        }
    }

    /// Carries out what has become due.
    fn complete(&mut self, mut op: Pending) -> (ActionId, Result<(), MediaError>) {
        let id = op.action.id;
        if let (MediaOp::Write { buf, .. }, Some(data)) = (&op.action.op, &op.data) {
            // SAFETY: the completion is reported only after this function has returned.
            let bytes = unsafe { buf.bytes() };
            assert!(bytes == &data[..], "buffer of {id} changed while in flight");
        }
        let result = match op.effect {
            Some(Effect::Fail(error)) => self.fail(&op, error),
            _ => {
                self.succeed(&mut op);
                Ok(())
            }
        };
        (id, result)
    }

    fn succeed(&mut self, op: &mut Pending) {
        match &mut op.action.op {
            MediaOp::Read { offset, buf } => {
                // SAFETY: the completion is reported only after this function has returned.
                let bytes = unsafe { buf.bytes_mut() };
                let from = match op.effect {
                    Some(Effect::Misdirect(elsewhere)) => {
                        elsewhere.min(self.len_bytes() - bytes.len() as u64)
                    }
                    Some(Effect::Lose) => return,
                    _ => *offset,
                };
                read_racing(&self.current, &self.changes, from, bytes, &mut self.rng);
                if let Some(Effect::FlipBit(bit)) = op.effect {
                    flip(bytes, bit);
                }
            }
            MediaOp::Write { .. } | MediaOp::Discard { .. } => {
                if let Some(change) = self.changes.iter_mut().find(|change| change.no == op.no) {
                    change.stage = Stage::Completed;
                    change.apply(Fate::Kept, &mut self.current);
                }
                if matches!(op.action.op, MediaOp::Write { durable: true, .. }) {
                    self.harden(&[op.no]);
                }
            }
            MediaOp::Flush => {
                if op.effect != Some(Effect::Lose) {
                    self.harden(&op.covers);
                }
            }
        }
    }

    fn fail(&mut self, op: &Pending, error: MediaError) -> Result<(), MediaError> {
        match &op.action.op {
            MediaOp::Read { .. } => {}
            MediaOp::Discard { .. } => {
                self.changes.retain(|change| change.no != op.no);
                // Advice is not refused, unless it is nonsense.
                if error != MediaError::Invalid {
                    return Ok(());
                }
            }
            MediaOp::Write { .. } => {
                let seed = self.rng.bits();
                if let Some(change) = self.changes.iter_mut().find(|change| change.no == op.no) {
                    change.stage = Stage::Failed;
                    change.apply(Fate::Mixed { seed }, &mut self.current);
                }
            }
            MediaOp::Flush => {
                for change in &mut self.changes {
                    if op.covers.contains(&change.no) {
                        change.stage = Stage::Abandoned;
                    }
                }
            }
        }
        Err(error)
    }

    /// Makes completed changes durable; older changes of the same sectors no longer matter.
    fn harden(&mut self, covers: &[u64]) {
        let mut n = 0;
        while n < self.changes.len() {
            let change = &self.changes[n];
            if change.stage != Stage::Completed || !covers.contains(&change.no) {
                n += 1;
                continue;
            }
            let change = self.changes.remove(n);
            change.apply(Fate::Kept, &mut self.durable);
            for older in &mut self.changes[..n] {
                supersede(older, &change);
            }
        }
        self.changes.retain(|change| change.live.contains(&true));
    }

    fn record_point(&mut self) {
        let changing = self.counts.calls() - self.counts.reads;
        let no = self.next_no - 1;
        let due = match &self.recorder {
            Some(recorder) => changing.is_multiple_of(recorder.every),
            None => return,
        };
        if due {
            let point = self.crash_point();
            if let Some(recorder) = &mut self.recorder {
                recorder.points.push((no, point));
            }
        }
    }
}

impl Device for SimDevice {
    fn len_bytes(&self) -> u64 {
        self.current.len_bytes() as u64
    }

    fn submit(&mut self, mut action: Action) {
        let invalid = check(&action.op, self.len_bytes()).err();
        let (kind, touched) = self.count(&action.op);
        let no = self.next_no;
        self.next_no += 1;
        let effect = match invalid {
            Some(error) => Some(Effect::Fail(error)),
            None => self.pick_effect(kind, touched.as_ref()),
        };
        let mut data = None;
        let mut covers = Vec::new();
        if invalid.is_none() {
            if let Some(touched) = &touched {
                self.assert_no_overlap(kind, touched);
            }
            match &mut action.op {
                // SAFETY: the operation is reported as complete only by a later `poll`.
                MediaOp::Read { buf, .. } => unsafe { buf.bytes_mut() }.fill(UNREAD),
                MediaOp::Write { offset, buf, .. } => {
                    // SAFETY: the operation is reported as complete only by a later `poll`.
                    let bytes: Arc<[u8]> = Arc::from(unsafe { buf.bytes() });
                    self.begin_change(no, *offset, Bytes::Data(Arc::clone(&bytes)), effect);
                    data = Some(bytes);
                }
                MediaOp::Discard { offset, len } => {
                    self.begin_change(no, *offset, Bytes::Zeros(*len as usize), effect);
                }
                MediaOp::Flush => covers.extend(
                    self.changes
                        .iter()
                        .filter(|change| change.stage == Stage::Completed)
                        .map(|change| change.no),
                ),
            }
        }
        let delay = match effect {
            Some(Effect::Delay(steps)) => steps,
            _ => 0,
        };
        let due = self.clock + 1 + self.rng.below(self.steps_max) + delay;
        self.pending.push(Pending {
            no,
            due,
            action,
            effect,
            data,
            covers,
        });
        if kind != OpKind::Read {
            self.record_point();
        }
    }

    /// Without `wait`, lets one step of device time pass; with it, as many as it takes.
    fn poll(&mut self, wait: bool) -> Option<(ActionId, Result<(), MediaError>)> {
        let (place, due) = self
            .pending
            .iter()
            .enumerate()
            .map(|(place, op)| (place, op.due))
            .min_by_key(|(_, due)| *due)?;
        self.clock = if wait {
            self.clock.max(due)
        } else {
            self.clock + 1
        };
        if due > self.clock {
            return None;
        }
        let op = self.pending.remove(place);
        Some(self.complete(op))
    }
}

/// Reads what is stored; a sector that is just being written may show the new bytes.
fn read_racing(
    current: &SimImage,
    changes: &[Volatile],
    from: u64,
    bytes: &mut [u8],
    rng: &mut SimRng,
) {
    let end = from + bytes.len() as u64;
    let racing = |change: &&Volatile| {
        change.stage == Stage::InFlight
            && change.offset < end
            && from < change.offset + (change.sectors() * SECTOR_BYTES) as u64
    };
    if !changes.iter().any(|change| racing(&change)) {
        current.read(from as usize, bytes);
        return;
    }
    let mut mixed = current.clone();
    for change in changes.iter().filter(racing) {
        let seed = rng.bits();
        change.apply(Fate::Mixed { seed }, &mut mixed);
    }
    mixed.read(from as usize, bytes);
}

/// Marks the sectors of `older` that `newer` has replaced for good.
fn supersede(older: &mut Volatile, newer: &Volatile) {
    let first = (newer.offset / SECTOR_BYTES as u64) as usize;
    let start = (older.offset / SECTOR_BYTES as u64) as usize;
    for n in 0..newer.live.len() {
        let sector = first + n;
        if newer.live[n] && sector >= start && sector - start < older.live.len() {
            older.live[sector - start] = false;
        }
    }
}

fn flip(bytes: &mut [u8], bit: u64) {
    let bit = bit as usize % (bytes.len() * 8);
    bytes[bit / 8] ^= 1 << (bit % 8);
}

#[cfg(test)]
mod tests;
