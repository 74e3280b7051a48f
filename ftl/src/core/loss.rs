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

use super::sync::{DurableWaiter, Marks, SyncWaiter};
use super::{Core, Cx};
use crate::addr::{Lba, LbaRange, Pba};
use crate::crash_point::crash_point;
use crate::device::{MediaError, MediaOp};
use crate::error::DurableError;
use crate::format::HeaderNo;
use crate::map::{FrameId, Location, State, Unpinned};
use crate::page::FrameUse;
use crate::port::Op;
use crate::remap::Renaming;
use crate::segment::SegmentUse;
use crate::stats::count;
use std::collections::{BTreeSet, VecDeque};

/// So many pages that are durable are remembered, as long as no sync has said so.
const LIMBO_PAGES: usize = 1 << 14;

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

/// Pages that were written of which no sync has said that they are durable.
#[derive(Debug)]
struct Limbo {
    no: HeaderNo,
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
    /// Pages in them.
    limbo_pages: usize,
    /// Grains whose last write was lost before it was durable, or before a sync said so: the next one of a range with a
    /// grain of them tells.
    orphans: BTreeSet<Lba>,
    /// No sync of everything has told of the latest of them. That is often one by which somebody looks after the volume, and what is
    /// said to him does not reach who wrote: it neither takes nor gives away what a sync of a range is to say.
    untold: bool,
    /// Frames whose grain is lost on the media. What is in memory may be written again, so each of them takes space.
    held: u64,
}

impl Loss {
    /// These devices have been missing since the volume was opened.
    pub(super) fn new(mask: u16) -> Self {
        Self {
            mask,
            ..Self::default()
        }
    }

    /// Grains have got other names, or more of them: what is not durable of them, or lost, is so under these. Of a volume
    /// on a single device there is nothing to rename.
    pub(super) fn rename(&mut self, renaming: Renaming) {
        for limbo in &mut self.limbo {
            renaming.follow(&mut limbo.lbas, 0, |lba| lba, |_, lba| lba);
        }
        self.tidy_limbo();
        if self.orphans.is_empty() {
            return;
        }
        let ranges = renaming.ranges();
        // What the target held is gone, and nobody's loss any more.
        self.take_orphans(ranges.target());
        for lba in self.take_orphans(ranges.source()) {
            self.orphans.insert(ranges.renamed(lba));
            if !renaming.empties_source() {
                self.orphans.insert(lba);
            }
        }
    }

    /// A sync has said that everything of a range up to a header is durable.
    pub(super) fn vouched(&mut self, range: LbaRange, no: HeaderNo) {
        if range.count == 0 || range == LbaRange::SPACE {
            return;
        }
        for limbo in self.limbo.iter_mut().filter(|limbo| limbo.no <= no) {
            limbo.lbas.retain(|&lba| !range.contains(lba));
        }
        self.tidy_limbo();
    }

    /// Some pages may not be in limbo any more.
    fn tidy_limbo(&mut self) {
        self.limbo.retain(|limbo| !limbo.lbas.is_empty());
        self.limbo_pages = self.limbo.iter().map(|limbo| limbo.lbas.len()).sum();
    }

    /// The grains of a range whose last write was lost, which are none any more.
    fn take_orphans(&mut self, range: LbaRange) -> Vec<Lba> {
        let inside = self.orphans.range(range.start..range.end());
        let inside: Vec<Lba> = inside.copied().collect();
        for lba in &inside {
            self.orphans.remove(lba);
        }
        inside
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
    /// Whether a device of an array has failed since the last time: then there is much to do.
    pub(crate) fn notice_losses(&mut self, cx: Cx<'_>) -> bool {
        let Some(members) = &cx.sh.members else {
            return false;
        };
        let lost = members.lost();
        let new = lost & !self.loss.mask;
        if new == 0 || self.failed.is_some() {
            return false;
        }
        // A log that is closed can not take what would have to be written again.
        let none_left = lost.count_ones() as usize == members.list().len();
        if none_left || self.phase.is_sealed() {
            self.fail(cx, MediaError::Gone);
            return true;
        }
        self.loss.mask = lost;
        for device in (0..members.list().len()).filter(|d| new >> d & 1 == 1) {
            self.lose_device(cx, device);
        }
        true
    }

    fn lose_device(&mut self, cx: Cx<'_>, device: usize) {
        crash_point!("loss");
        count(&cx.sh.counters.devices_lost, 1);
        self.segments.lose(device);
        let durable = self.log.durable();
        let places = self.geometry.places;
        let first = self.log.lose(|at| places.device_of(at) == Some(device));
        self.drain_inbox(cx);
        let lost = self.take_lost(cx);
        let (recent, lost): (Vec<Limbo>, _) = lost.into_iter().partition(|l| l.no <= durable);
        // What has been read to be relocated is not lost, if it goes out now; what is in the buffer does when it joins.
        let is_here = |at| places.device_of(at) == Some(device);
        self.formings.want_from(is_here);
        let on_the_way = self.names_on_the_way(is_here);
        let taken = self.mapped_now() + on_the_way;
        let room = self.capacity_now().saturating_sub(taken);
        self.loss.held = self.count_held();
        self.rescue_pages(cx, device, &lost, room);
        self.note_orphans(cx, &recent, &lost);
        self.abort_checkpoint();
        let marks = self.sync_marks(cx, LbaRange::SPACE);
        self.loss.healing = Healing::Rescuing(marks);
        // Whoever waits for a header behind what was lost waits for what is written again.
        let waits = |w: &DurableWaiter| first.is_some_and(|f| w.no >= f);
        let from = self.durable_waiters.iter().position(waits);
        let from = from.unwrap_or(self.durable_waiters.len());
        for waiter in self.durable_waiters.split_off(from).into_iter().rev() {
            self.syncs.push_front(SyncWaiter {
                port: waiter.port,
                token: waiter.token,
                // A batch waits as for a sync from now on, but was about no more than itself.
                range: waiter.sync.unwrap_or(LbaRange::new(Lba(0), 0)),
                marks,
            });
        }
    }

    /// Under how many names grains of these places are mapped that are in memory to be relocated, or being read, at most.
    fn names_on_the_way(&self, is_here: impl Fn(Pba) -> bool) -> u64 {
        let geometry = &self.geometry;
        let buffered = self.collector.buffered();
        let buffered = buffered.filter(|&id| is_here(geometry.segment_start(id)));
        let is_joined = |at| is_here(at) && buffered != Some(geometry.segment_of(at));
        let joined = self.formings.names_from(is_joined);
        joined + buffered.map_or(0, |id| u64::from(self.segments.get(id).live))
    }

    /// What is in limbo and lost, which it is not any more then. Where a page was written says nothing: it may have been
    /// relocated since, from the device to another one or the other way.
    fn take_lost(&mut self, cx: Cx<'_>) -> Vec<Limbo> {
        let mut lost = Vec::new();
        let mut limbo = std::mem::take(&mut self.loss.limbo);
        for known in &mut limbo {
            let is_lost = |lba: &mut Lba| self.is_lost_at(self.place_of(cx.sh.map.state(*lba)));
            let lbas: Vec<Lba> = known.lbas.extract_if(.., is_lost).collect();
            if !lbas.is_empty() {
                lost.push(Limbo { no: known.no, lbas });
            }
        }
        self.loss.limbo = limbo;
        self.loss.tidy_limbo();
        lost
    }

    /// Pages in memory whose copy on the media is lost are written again: those that are not durable in any case, the
    /// others as long as there is space. Those for which there is none leave the memory, unless somebody holds them.
    fn rescue_pages(&mut self, cx: Cx<'_>, device: usize, limbo: &[Limbo], mut room: u64) {
        let unsynced: BTreeSet<Lba> = limbo.iter().flat_map(|l| l.lbas.iter().copied()).collect();
        let mut here: Vec<(bool, FrameId)> = Vec::new();
        for (index, frame) in self.frames.iter().enumerate() {
            let is_here = |pba| self.geometry.places.device_of(pba) == Some(device);
            if frame.usage == FrameUse::Resident
                && matches!(frame.media, Location::Media(pba) if is_here(pba))
            {
                let state = frame.leaf().entry(frame.lba).state();
                let is_dirty = matches!(state, State::Resident(r) if r.dirty);
                let goes_out = is_dirty || frame.writing > 0 || unsynced.contains(&frame.lba);
                here.push((!goes_out, FrameId(index as u32)));
            }
        }
        here.sort();
        for (durable, frame) in here {
            if room == 0 && durable {
                self.evict(cx, frame, true);
                continue;
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

    /// Whether a page whose read was under way when its device was lost is written again, like those that were in memory:
    /// in any case if its next sync is to tell that it is lost, for the page is here and the sync would find nothing wrong.
    pub(super) fn saves(&self, frame: FrameId) -> bool {
        let known = &self.frames[frame.0 as usize];
        let is_owed = || self.loss.orphans.contains(&known.lba);
        let has_room = || self.mapped_now() <= self.capacity_now();
        self.is_lost_at(known.media) && (is_owed() || has_room())
    }

    /// What was written, not durable, and is not in memory any more is lost: whoever waits for it is told, and so is
    /// the next sync. It tells also of what has become durable by itself lately, without a sync that said so.
    fn note_orphans(&mut self, cx: Cx<'_>, recent: &[Limbo], limbo: &[Limbo]) {
        let mut first: Option<(HeaderNo, Lba)> = None;
        let mut headers = BTreeSet::new();
        let recent = recent.iter().map(|lost| (true, lost));
        for (was_durable, lost) in recent.chain(limbo.iter().map(|lost| (false, lost))) {
            for &lba in &lost.lbas {
                if self.is_gone(cx, lba) {
                    self.loss.orphans.insert(lba);
                    self.loss.untold = true;
                    if was_durable {
                        continue;
                    }
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
            // A batch vouches for itself only, a sync for everything before it.
            if headers.contains(&waiter.no) || waiter.sync.is_some() && waiter.no >= no {
                self.tell_durable(cx, waiter.port, waiter.token, error);
            } else {
                kept.push_back(waiter);
            }
        }
        self.durable_waiters = kept;
        for sync in std::mem::take(&mut self.syncs) {
            self.tell_durable(cx, sync.port, sync.token, error);
        }
    }

    /// Whether a grain is lost, or will be when its page leaves the memory: there was no room to write it again.
    fn is_gone(&self, cx: Cx<'_>, lba: Lba) -> bool {
        let state = cx.sh.map.state(lba);
        let goes_out = match state {
            State::Resident(r) => r.dirty || self.frames[r.frame.0 as usize].writing > 0,
            _ => false,
        };
        !goes_out && self.is_lost_at(self.place_of(state))
    }

    /// A grain of the range whose last write was lost before it was durable, if there is one. All of them have been told
    /// of then, unless the range is everything.
    pub(super) fn take_orphan(&mut self, cx: Cx<'_>, range: LbaRange) -> Option<Lba> {
        if self.loss.orphans.is_empty() || range.count == 0 {
            return None;
        }
        let orphans = match range == LbaRange::SPACE {
            true if !std::mem::take(&mut self.loss.untold) => return None,
            true => self.loss.orphans.iter().copied().collect(),
            false => self.loss.take_orphans(range),
        };
        let mut found = None;
        for lba in orphans {
            // What has been overwritten since, or trimmed, is nobody's loss any more.
            if self.is_gone(cx, lba) {
                found = found.or(Some(lba));
            }
        }
        found
    }

    /// A write-out has completed that is not durable yet.
    pub(super) fn note_limbo(&mut self, cx: Cx<'_>, no: HeaderNo, pages: &[(FrameId, u32)]) {
        if cx.sh.members.is_none() {
            return;
        }
        let known = pages
            .iter()
            .map(|&(frame, life)| (&self.frames[frame.0 as usize], life));
        let lbas = known.filter(|(frame, life)| frame.life == *life);
        let lbas: Vec<Lba> = lbas.map(|(frame, _)| frame.lba).collect();
        if lbas.is_empty() {
            return;
        }
        let durable = self.log.durable();
        let loss = &mut self.loss;
        loss.limbo_pages += lbas.len();
        loss.limbo.push_back(Limbo { no, lbas });
        while loss.limbo_pages > LIMBO_PAGES
            && let Some(first) = loss.limbo.pop_front_if(|l| l.no <= durable)
        {
            loss.limbo_pages -= first.lbas.len();
        }
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
            && !self.lost_are_joining()
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

    /// Whether something that a lost device has given to be relocated, or may give, has not joined a write-out.
    fn lost_are_joining(&self) -> bool {
        let buffered = self.collector.buffered();
        buffered.is_some_and(|id| self.segments.get(id).usage == SegmentUse::Lost)
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

    /// Grains mapped that can be read: what is lost takes no space, unless it is in memory.
    pub(super) fn mapped_now(&self) -> u64 {
        if self.loss.mask == 0 {
            return self.mapped;
        }
        let gone = self.segments.lost_live().saturating_sub(self.loss.held);
        self.mapped.saturating_sub(gone)
    }

    /// The grain of a frame is there from now on, besides. Returns where it was.
    pub(super) fn set_media(&mut self, frame: FrameId, to: Location) -> Location {
        let old = std::mem::replace(&mut self.frames[frame.0 as usize].media, to);
        if self.loss.mask != 0 {
            self.loss.held += u64::from(self.is_lost_at(to));
            self.loss.held -= u64::from(self.is_lost_at(old));
        }
        old
    }

    fn count_held(&self) -> u64 {
        let lost = self.frames.iter().filter(|f| self.is_lost_at(f.media));
        lost.count() as u64
    }

    /// For tests.
    pub(super) fn audit_loss(&self) {
        assert_eq!(self.loss.held, self.count_held(), "frames of lost grains");
        let limbo = self.loss.limbo.iter().map(|limbo| limbo.lbas.len());
        assert!(limbo.clone().all(|pages| pages > 0), "limbo of nothing");
        assert_eq!(self.loss.limbo_pages, limbo.sum(), "pages in limbo");
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
