//! Losing a device of an array while the volume is in use. See `docs/array.md`.
//!
//! ```text
//!   Whole ──a device fails──► Rescuing ──rescued pages assembled──► Flushing ──durable──► Saving ──checkpoint──►
//!     ▲                                                            Recording (superblock: copy, flush, copy, flush)
//!     └──────────────────────────────────────────────────────────────┘
//! ```
//!
//! # Invariants
//! - From the failure until it is recorded nothing is acknowledged, and nothing behind the first header lost is called
//!   durable (hence no segment freed by it is reused): until then a crash may bring the device back, without what it
//!   had not flushed, and must find a log that ends before it.
//! - The checkpoint names what is lost. Behind it there is nothing that only the lost device knows.

use super::sync::{Marks, SyncWaiter};
use super::{Core, Cx};
use crate::addr::{Lba, LbaRange, Pba, SegmentId};
use crate::crash_point::crash_point;
use crate::device::{MediaError, MediaOp};
use crate::error::DurableError;
use crate::format::HeaderNo;
use crate::ids::{Port, Token};
use crate::map::{FrameId, Location, State, Unpinned};
use crate::page::FrameUse;
use crate::port::Op;
use crate::segment::SegmentUse;
use crate::stats::count;
use std::collections::{BTreeSet, VecDeque};

/// How far the volume has come in going on without a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Healing {
    /// No device has failed, or it is recorded.
    #[default]
    Whole,
    /// Pages that were on their way go out again: marks to wait for.
    Rescuing(Marks),
    /// They are assembled, up to this header.
    Flushing(HeaderNo),
    /// A checkpoint is being taken.
    Saving,
    /// The superblock is being written: so many of its four steps are done.
    Recording(u8),
}

/// Pages that were written and are not durable yet.
#[derive(Debug)]
struct Limbo {
    no: HeaderNo,
    segment: SegmentId,
    lbas: Vec<Lba>,
}

/// What is lost.
#[derive(Debug, Default)]
pub(super) struct Loss {
    /// Devices, one bit each.
    mask: u16,
    healing: Healing,
    /// An operation on the superblock is in flight.
    recording: bool,
    /// Of an array, by header.
    limbo: VecDeque<Limbo>,
    /// Grains whose last write was lost before it was durable: the next sync that includes one tells.
    orphans: BTreeSet<Lba>,
}

impl Loss {
    /// These devices have been missing since the volume was opened.
    pub(super) fn new(mask: u16) -> Self {
        Self {
            mask,
            ..Self::default()
        }
    }

    /// Whether any device is lost.
    pub(super) fn has_some(&self) -> bool {
        self.mask != 0
    }

    /// Whether the superblock is being written.
    pub(super) fn is_recording(&self) -> bool {
        self.recording
    }

    /// Whether no loss is waiting to be recorded.
    pub(super) fn is_whole(&self) -> bool {
        self.healing == Healing::Whole
    }
}

impl Core {
    /// A device of an array may have failed since the last time.
    pub(crate) fn notice_losses(&mut self, cx: Cx<'_>) {
        let Some(members) = &cx.sh.members else {
            return;
        };
        let lost = members.lost();
        let new = lost & !self.loss.mask;
        if new == 0 || self.failed.is_some() {
            return;
        }
        // A log that is closed can not take what would have to be written again.
        let none_left = lost.count_ones() as usize == members.list().len();
        if none_left || self.phase.is_sealed() {
            self.fail(cx, MediaError::Gone);
            return;
        }
        self.loss.mask = lost;
        for device in (0..members.list().len()).filter(|d| new >> d & 1 == 1) {
            self.lose_device(cx, device);
        }
    }

    fn lose_device(&mut self, cx: Cx<'_>, device: usize) {
        crash_point!("loss");
        count(&cx.sh.counters.devices_lost, 1);
        self.segments.lose(device);
        let places = self.geometry.places;
        let first = self.log.lose(|at| places.device_of(at) == Some(device));
        self.drain_inbox(cx);
        let limbo = std::mem::take(&mut self.loss.limbo);
        let (lost, kept) = limbo
            .into_iter()
            .partition(|l: &Limbo| places.device_of_segment(l.segment) == device);
        self.loss.limbo = kept;
        let lost: Vec<Limbo> = Vec::from(lost);
        self.rescue_pages(cx, device, &lost);
        self.note_orphans(cx, &lost);
        self.abort_checkpoint();
        let marks = self.sync_marks(cx, LbaRange::SPACE);
        self.loss.healing = Healing::Rescuing(marks);
        // Whoever waits for a header behind what was lost waits for what is written again.
        let waits = |&(no, ..): &(HeaderNo, Port, Token, bool)| first.is_some_and(|f| no >= f);
        let from = self.durable_waiters.iter().position(waits);
        let from = from.unwrap_or(self.durable_waiters.len());
        for (_, port, token, _) in self.durable_waiters.split_off(from).into_iter().rev() {
            self.syncs.push_front(SyncWaiter { port, token, marks });
        }
    }

    /// Pages in memory whose copy on the media is lost are written again: those that are not durable in any case, the
    /// others as long as there is space.
    fn rescue_pages(&mut self, cx: Cx<'_>, device: usize, limbo: &[Limbo]) {
        let unsynced: BTreeSet<Lba> = limbo.iter().flat_map(|l| l.lbas.iter().copied()).collect();
        let mut room = self.capacity_now().saturating_sub(self.mapped_now());
        let mut rescued: Vec<(bool, FrameId)> = Vec::new();
        for (index, frame) in self.frames.iter().enumerate() {
            let is_here = |pba| self.geometry.places.device_of(pba) == Some(device);
            if frame.usage == FrameUse::Resident
                && matches!(frame.media, Location::Media(pba) if is_here(pba))
            {
                let durable = frame.writing == 0 && !unsynced.contains(&frame.lba);
                rescued.push((durable, FrameId(index as u32)));
            }
        }
        rescued.sort();
        for (durable, frame) in rescued {
            if room == 0 && durable {
                break;
            }
            room = room.saturating_sub(1);
            let known = &self.frames[frame.0 as usize];
            let (lba, leaf) = (known.lba, known.leaf().clone());
            let entry = leaf.entry(lba);
            if entry.pin() == Some(frame) {
                let unpinned = entry.unpin(frame, true);
                if matches!(
                    unpinned,
                    Unpinned::Done {
                        now_dirty: true,
                        ..
                    }
                ) {
                    self.dirty.insert(lba);
                }
            }
        }
        cx.sh.arm_timer();
    }

    /// What was written, not durable, and is not in memory any more is lost: whoever waits for it is told, and so is
    /// the next sync.
    fn note_orphans(&mut self, cx: Cx<'_>, limbo: &[Limbo]) {
        let mut first: Option<(HeaderNo, Lba)> = None;
        let mut headers = BTreeSet::new();
        for lost in limbo {
            for &lba in &lost.lbas {
                let gone = match cx.sh.map.state(lba) {
                    State::Resident(_) => false,
                    state => self.is_lost_at(self.place_of(state)),
                };
                if gone {
                    self.loss.orphans.insert(lba);
                    headers.insert(lost.no);
                    first = first.or(Some((lost.no, lba)));
                }
            }
        }
        let Some((no, lba)) = first else {
            return;
        };
        let error = Err(DurableError::Lost { lba });
        let mut kept = VecDeque::new();
        for waiter in std::mem::take(&mut self.durable_waiters) {
            let (at, port, token, is_sync) = waiter;
            // A batch vouches for itself only, a sync for everything before it.
            if headers.contains(&at) || is_sync && at >= no {
                self.tell_durable(cx, port, token, error);
            } else {
                kept.push_back(waiter);
            }
        }
        self.durable_waiters = kept;
        for sync in std::mem::take(&mut self.syncs) {
            self.tell_durable(cx, sync.port, sync.token, error);
        }
    }

    /// A grain of the range whose last write was lost before it was durable, if there is one. All of them have been told
    /// of then.
    pub(super) fn take_orphan(&mut self, cx: Cx<'_>, range: LbaRange) -> Option<Lba> {
        if self.loss.orphans.is_empty() || range.count == 0 {
            return None;
        }
        let inside = self.loss.orphans.range(range.start..range.end());
        let inside: Vec<Lba> = inside.copied().collect();
        let mut found = None;
        for lba in inside {
            self.loss.orphans.remove(&lba);
            // What has been overwritten since, or trimmed, is nobody's loss any more.
            let state = cx.sh.map.state(lba);
            if !matches!(state, State::Resident(_)) && self.is_lost_at(self.place_of(state)) {
                found = found.or(Some(lba));
            }
        }
        found
    }

    /// A write-out has completed that is not durable yet.
    pub(super) fn note_limbo(
        &mut self,
        cx: Cx<'_>,
        no: HeaderNo,
        segment: SegmentId,
        pages: &[(FrameId, u32)],
    ) {
        if cx.sh.members.is_none() {
            return;
        }
        let durable = self.log.durable();
        while self.loss.limbo.front().is_some_and(|l| l.no <= durable) {
            self.loss.limbo.pop_front();
        }
        if no <= durable {
            return;
        }
        let known = pages
            .iter()
            .map(|&(frame, life)| (&self.frames[frame.0 as usize], life));
        let lbas = known.filter(|(frame, life)| frame.life == *life);
        let lbas = lbas.map(|(frame, _)| frame.lba).collect();
        self.loss.limbo.push_back(Limbo { no, segment, lbas });
    }

    /// A write-out to a device that is lost has ended, whatever came of it. Its pages have been marked as dirty again,
    /// and what it was to relocate stays where it is.
    pub(super) fn write_out_lost(&mut self, cx: Cx<'_>, stage: usize) {
        let done = std::mem::take(&mut self.stages.list[stage]);
        for (frame, life) in done.pages {
            self.page_written(cx, frame, life);
        }
        let moved = done.moves.iter().map(|m| m.victim);
        for victim in moved.chain(done.records_from) {
            self.collector.drained(victim);
        }
        let segment = done.segment.expect("segment of a write-out");
        self.segments.get_mut(segment).writing -= 1;
        self.stages.give_back(stage);
    }

    /// Goes on with going on without a device.
    pub(super) fn run_healing(&mut self, cx: Cx<'_>) {
        if self.failed.is_some() {
            return;
        }
        // If there is no space for them now, there may be when the loss is recorded.
        if let Healing::Rescuing(marks) = self.loss.healing
            && (self.are_reached(marks) || self.space_wanted)
            && self.segments.lost_are_written()
        {
            self.loss.healing = Healing::Flushing(self.log.last());
        }
        if let Healing::Flushing(target) = self.loss.healing {
            if self.log.flushed() < target {
                self.flush_wanted = self.flush_wanted.max(target);
                self.start_flush(cx);
                return;
            }
            if !self.capture_loss(cx) {
                return;
            }
            self.loss.healing = Healing::Saving;
            self.run_checkpoint(cx);
        }
        if self.loss.healing == Healing::Saving
            && self.is_checkpoint_done()
            && !self.loss.recording
            && !self.raise.is_writing()
        {
            self.superblock.failed |= self.loss.mask;
            self.loss.healing = Healing::Recording(0);
            self.loss.recording = true;
            self.write_superblock(cx);
        }
    }

    /// A step of recording a loss has ended.
    pub(super) fn record_done(&mut self, cx: Cx<'_>, result: Result<(), MediaError>) {
        self.loss.recording = false;
        if let Err(error) = result {
            self.fail(cx, error);
            return;
        }
        let Healing::Recording(step) = self.loss.healing else {
            return;
        };
        self.loss.healing = Healing::Recording(step + 1);
        self.loss.recording = step < 3;
        match step {
            0 | 2 => {
                crash_point!("loss.record");
                self.act(cx, Op::Superblock, MediaOp::Flush);
            }
            1 => self.write_superblock(cx),
            _ => {
                self.loss.healing = Healing::Whole;
                self.log.let_go();
                self.segments.forget_lost();
                tracing::warn!("the volume goes on without the device that has failed");
            }
        }
    }

    /// Whether the superblock is being written because of a loss.
    pub(super) fn is_recording_loss(&self) -> bool {
        self.loss.recording
    }

    /// Whether a place is on a device that is lost.
    pub(super) fn is_lost_at(&self, location: Location) -> bool {
        let lost = |pba: Pba| {
            let id = self.geometry.segment_of(pba);
            self.segments.get(id).usage == SegmentUse::Lost
        };
        self.loss.mask != 0 && matches!(location, Location::Media(pba) if lost(pba))
    }

    /// Grains mapped that can be read: what is lost takes no space.
    pub(super) fn mapped_now(&self) -> u64 {
        if self.loss.mask == 0 {
            return self.mapped;
        }
        self.mapped.saturating_sub(self.segments.lost_live())
    }

    /// Grains that may be mapped, and read, on the devices that are left.
    pub(super) fn capacity_now(&self) -> u64 {
        if self.loss.mask == 0 {
            return self.capacity_to_come();
        }
        let live = |device: &usize| self.loss.mask >> device & 1 == 0;
        let devices = (0..self.geometry.places.count()).filter(live);
        let segments = devices
            .map(|device| self.geometry.segments_on(device))
            .sum();
        let most = self.geometry.capacity_of(segments);
        self.geometry.capacity_grains.min(most)
    }
}
