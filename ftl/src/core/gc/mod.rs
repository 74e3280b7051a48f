//! Collection: relocating what is live in a victim so that its segment can be reused.
//!
//! A victim is read from front to back; what is live joins the write-outs that form (`core/forming`), each grain
//! where its stream is. Then the victim *drains*: it empties as those write-outs go out, and meanwhile the next
//! victims are read, so that write-outs are full although the grains of one victim go many ways. Live grains are
//! copied with their original version and checksum (a damaged grain stays damaged, it is not laundered) and the map
//! follows when the copy is on the media. A reader who already reads the old place keeps it: the segment is not
//! reused while reads are in flight.

mod records;
mod scan;
mod space;

pub(super) use records::Referrer;

use super::rest::Rests;
use super::{Core, Cx};
use crate::addr::SegmentId;
use crate::crash_point::crash_point;
use crate::geometry::RESERVED_SEGMENTS;
use crate::segment::{Life, SegmentUse};
use crate::stats::count;

/// Times a victim that the device can not read is tried.
const COLLECT_TRIES: u8 = 4;
/// Fewest segments above the reserve that are to be free or becoming free.
const COMING_MIN: usize = 3;
/// One more for each so many spare segments, up to `COMING_MORE_MAX`: with less room to breathe what drains has to be
/// pushed out in write-outs that are half full, and their headers cost more than the segments held back. Worse, when
/// users are refused a segment relocation falls back on one stream for all, and a volume that has begun to mix what it had
/// sorted takes long to find out of it.
const SPARE_PER_COMING: u64 = 20;
const COMING_MORE_MAX: u64 = 6;
/// Free segments that the devices of an array are to have left when one of them fails.
const AFTER_LOSS_MIN: u64 = RESERVED_SEGMENTS as u64 + 2;
/// But not more than so many for that: a device that holds nearly all can not be done without.
const AFTER_LOSS_MOST: u64 = 2 * AFTER_LOSS_MIN;
/// Of so many victims one may be chosen because its device is a little behind in wear; if it is far behind, every one.
const LEVEL_ONE_IN: u8 = 3;
/// Victims that drain at the same time; the oldest is pushed when there are more.
const DRAINING_MAX: usize = 12;

/// What happens to the victim's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scan {
    /// Nothing is being read.
    Idle,
    /// A read from this position on is in flight.
    Reading(u32),
    /// Grains from a position on are in the buffer.
    Loaded { from: u32, grains: u32 },
}

#[derive(Debug)]
struct Victim {
    id: SegmentId,
    life: Life,
    /// Position of the next header, and the next record in it.
    position: u32,
    record: usize,
    scan: Scan,
}

/// A victim whose grains are on their way.
#[derive(Debug)]
struct Draining {
    life: Life,
    /// Grains and records in forming write-outs or in flight.
    joined: u32,
    /// Something has been relocated.
    moved: bool,
    /// Some grain was left because a younger copy of it is forming.
    overtaken: bool,
    /// The device could not read it; it may next time.
    unread: bool,
}

/// The collector.
#[derive(Debug, Default)]
pub(super) struct Collector {
    victim: Option<Victim>,
    /// Oldest first; the victim being read is the last.
    draining: Vec<Draining>,
    /// Old segments may be rewritten to let tombstones die: one for each segment the user stream opens.
    aging_credit: bool,
    /// Victims since one was chosen for the wear of its device.
    since_levelled: u8,
    /// Victims in a row that were chosen while pages waited for space, without one of these getting its place.
    fruitless: usize,
    /// After victims that the device could not read.
    pub(super) rests: Rests,
}

impl Collector {
    /// A page has got its place.
    pub(super) fn page_placed(&mut self) {
        self.fruitless = 0;
    }

    pub(super) fn segment_opened(&mut self) {
        self.aging_credit = true;
    }

    pub(super) fn is_idle(&self) -> bool {
        self.victim.is_none()
    }

    /// Whether nothing of any victim is on its way.
    pub(super) fn is_at_rest(&self) -> bool {
        self.victim.is_none() && self.draining.is_empty()
    }

    pub(super) fn is_reading(&self) -> bool {
        let scan = self.victim.as_ref().map(|victim| victim.scan);
        matches!(scan, Some(Scan::Reading(_)))
    }

    /// The victim of which something is being read, or is in the buffer and has not joined yet.
    pub(super) fn buffered(&self) -> Option<SegmentId> {
        let victim = self.victim.as_ref()?;
        (victim.scan != Scan::Idle).then_some(victim.id)
    }

    fn entry(&mut self, life: Life) -> Option<&mut Draining> {
        self.draining.iter_mut().rev().find(|d| d.life == life)
    }

    /// Whether something of a victim has joined a write-out.
    fn has_joined(&mut self, life: Life) -> bool {
        self.entry(life).is_some_and(|draining| draining.moved)
    }

    /// Something of a victim has joined a write-out.
    fn joined(&mut self, life: Life) {
        if let Some(draining) = self.entry(life) {
            draining.joined += 1;
            draining.moved = true;
        }
    }

    /// Something of a victim will be dead where it is as soon as its younger copy has a place.
    fn overtaken(&mut self, life: Life) {
        if let Some(draining) = self.entry(life) {
            draining.overtaken = true;
        }
    }

    /// Something that had joined has been written, or dropped.
    pub(super) fn drained(&mut self, life: Life) {
        if let Some(draining) = self.entry(life) {
            draining.joined = draining.joined.saturating_sub(1);
        }
    }
}

impl Core {
    /// Goes on with the victim, or chooses one if segments run short.
    pub(super) fn collect(&mut self, cx: Cx<'_>) -> bool {
        if self.failed.is_some() || self.phase.is_sealed() || !self.cold.is_warm() {
            return false;
        }
        self.settle_draining();
        let Some(victim) = &self.collector.victim else {
            // Another victim before a push: what goes out full costs one header less.
            return self.push_crowd(cx) || self.start_victim(cx) || self.push_wanted(cx);
        };
        let (id, position) = (victim.id, victim.position);
        let end = self.segments.get(id).used;
        match victim.scan {
            Scan::Reading(_) => false,
            // No room for more: what drains may be holding it.
            Scan::Loaded { .. } => {
                self.relocate(cx)
                    || self.push_crowd(cx)
                    || self.push_wanted(cx)
                    || self.leave_lost(id)
            }
            Scan::Idle if position < end => {
                self.read_victim(cx, id, position, end);
                true
            }
            Scan::Idle => {
                if !self.relocate_unread(cx, id) {
                    return self.push_crowd(cx) || self.push_wanted(cx);
                }
                self.collector.victim = None;
                true
            }
        }
    }

    /// Gives up a victim whose device is lost when there is no room for what it gave, and nothing under way that makes some: its
    /// segment will not become free, so it only holds up others.
    fn leave_lost(&mut self, id: SegmentId) -> bool {
        let is_lost = self.segments.get(id).usage == SegmentUse::Lost;
        if !is_lost || self.stages.are_writing() {
            return false;
        }
        self.give_up_victim();
        true
    }

    fn start_victim(&mut self, cx: Cx<'_>) -> bool {
        if !self.collector.rests.end_if_due(cx) {
            return false;
        }
        let id = self.choose_victim(cx).or_else(|| self.choose_leaving());
        let Some(id) = id else {
            return false;
        };
        count(&cx.sh.counters.victims, 1);
        self.collector.fruitless = match self.space_wanted {
            true => self.collector.fruitless + 1,
            false => 0,
        };
        crash_point!("gc.victim");
        self.expire_tombstones(cx);
        self.segments.get_mut(id).draining = true;
        let life = self.segments.life(id);
        self.collector.draining.push(Draining {
            life,
            joined: 0,
            moved: false,
            overtaken: false,
            unread: false,
        });
        self.collector.victim = Some(Victim {
            id,
            life,
            position: 0,
            record: 0,
            scan: Scan::Idle,
        });
        true
    }

    /// Ends the draining of victims of which nothing is on its way any more.
    fn settle_draining(&mut self) {
        let reading = self.collector.victim.as_ref().map(|v| v.life);
        // Pages that wait for space can not be waited for.
        let tight = self.is_tight() || self.space_wanted && self.segments.pending_count() == 0;
        let segments = &mut self.segments;
        self.collector.draining.retain(|draining| {
            let id = draining.life.segment;
            if reading == Some(draining.life) || draining.joined > 0 {
                return true;
            }
            if segments.life(id) != draining.life {
                return false;
            }
            let segment = segments.get_mut(id);
            if segment.usage == SegmentUse::Closed {
                if draining.overtaken && !tight {
                    return true;
                }
                // Pieces of zero records may be left over, and what was overtaken: chosen again, it goes on.
                if !draining.moved && !draining.overtaken {
                    segment.failures += 1;
                    let tries = match (draining.unread, segment.records) {
                        (true, _) => COLLECT_TRIES,
                        // The next time, memory says what is there (`relocate_unread`).
                        (false, 1..) => 2,
                        (false, 0) => 1,
                    };
                    if segment.failures >= tries {
                        // Something live that no readable header names: leave it alone for good.
                        let live = segment.live;
                        tracing::warn!(%id, live, "segment can not be collected");
                        segment.usage = SegmentUse::Retired;
                    }
                }
            }
            segment.draining = false;
            false
        });
    }

    /// Sends out what the oldest victims wait for when too many drain.
    fn push_crowd(&mut self, cx: Cx<'_>) -> bool {
        let crowd = self.collector.draining.len().saturating_sub(DRAINING_MAX);
        let mut progress = false;
        for index in 0..crowd {
            let life = self.collector.draining[index].life;
            progress |= self.emit_what_holds(cx, life);
        }
        progress
    }

    /// Sends out what the oldest victim waits for when somebody waits for its segment, and what any waits for when some
    /// are to be cut off.
    fn push_wanted(&mut self, cx: Cx<'_>) -> bool {
        if self.segments.are_leaving() {
            let lives: Vec<Life> = self.collector.draining.iter().map(|d| d.life).collect();
            return lives.into_iter().any(|life| self.emit_what_holds(cx, life));
        }
        let wanted = self.space_wanted && self.segments.pending_count() == 0;
        let oldest = self.collector.draining.first().map(|d| d.life);
        oldest.is_some_and(|life| wanted && self.emit_what_holds(cx, life))
    }

    fn expire_tombstones(&mut self, cx: Cx<'_>) {
        if self.records.tombstones().len() == 0 || !self.loss.is_whole() {
            return;
        }
        let Some(oldest) = self.segments.oldest_life(self.log.durable()) else {
            return;
        };
        let oldest = oldest.min(self.tombstone_floor(cx).next());
        for gone in self.records.expire(oldest) {
            self.segments.get_mut(gone.home.segment).records -= 1;
            let freed_at = self.log.last();
            self.segments.retire_if_empty(gone.home.segment, freed_at);
        }
    }

    /// A victim if one is needed. When the user stream is stuck, whatever gains most; before that, what the policy
    /// says if it gains at all; and an old one when there are too many tombstones.
    fn choose_victim(&mut self, cx: Cx<'_>) -> Option<SegmentId> {
        let grains = self.geometry.segment_grains;
        let draining = self.collector.draining.len();
        let coming = self.segments.free_count() + self.segments.pending_count();
        let bound = 198.max(self.geometry.capacity_grains as usize / 8);
        if self.records.tombstones().len() > bound && self.collector.aging_credit {
            self.expire_tombstones(cx);
            if self.records.tombstones().len() > bound {
                self.collector.aging_credit = false;
                let oldest = self.segments.candidates(grains).by_epoch().next();
                return oldest.map(|c| c.id);
            }
            return None;
        }
        let short = self.space_wanted && self.segments.pending_next().is_none();
        let stuck = short && draining == 0;
        if coming >= self.coming_wanted() && !stuck || !self.has_room_for(1) {
            return None;
        }
        let worth = if stuck { 1 } else { 2 };
        let tight = self.is_tight();
        // This may take as much as it gives: all of the segment may be live.
        let spare = coming > RESERVED_SEGMENTS && !short;
        let is_due = self.collector.since_levelled >= LEVEL_ONE_IN - 1;
        let behind = match spare {
            true => {
                let draining = self.collector.draining.iter().map(|d| d.life.segment);
                self.segments.behind(if is_due { 1 } else { 2 }, draining)
            }
            false => None,
        };
        let behind = behind.and_then(|device| self.segments.emptiest_on(device, grains));
        let candidates = self.segments.candidates(grains);
        let gains = |id: &SegmentId| {
            let cost = candidates.get(*id).map_or(grains, |c| c.live);
            grains >= cost + 1 + worth
        };
        let mut best = behind;
        let levels = best.is_some();
        if !tight && best.is_none() {
            best = self.placement.victim(candidates).filter(gains);
        }
        // What the policy would rather wait for may be all there is to be had.
        if best.is_none() && (tight || short) {
            let emptiest = candidates.emptiest().map(|c| c.id);
            best = emptiest.filter(gains);
        }
        let best = best.filter(|&id| self.has_room_for(self.segments.get(id).live));
        if best.is_some() {
            let since = &mut self.collector.since_levelled;
            *since = if levels { 0 } else { since.saturating_add(1) };
        }
        best
    }

    /// Segments that are to be free or becoming free; below, victims are collected.
    fn coming_wanted(&self) -> usize {
        let spare = self.geometry.spare_segments();
        let more = (spare / SPARE_PER_COMING).min(COMING_MORE_MAX);
        let usual = RESERVED_SEGMENTS + COMING_MIN + more as usize;
        // Whichever device of an array fails, those left have to go on with what is free there.
        let places = &self.geometry.places;
        let sizes = (0..places.count()).map(|device| self.geometry.segments_on(device));
        let largest = sizes.max().unwrap_or(0);
        let all = u64::from(self.geometry.segment_count);
        let needed = (AFTER_LOSS_MIN * all).div_ceil((all - largest).max(1));
        match places.count() {
            1 => usual,
            _ => usual.max(needed.min(AFTER_LOSS_MOST).min(spare / 2) as usize),
        }
    }

    /// Whether there is room to write what drains and `live` grains of another victim, with a segment left over: the
    /// last one may be needed for the header that lets pending segments go.
    pub(super) fn has_room_for(&self, live: u32) -> bool {
        let joined: u32 = self.collector.draining.iter().map(|d| d.joined).sum();
        if self.collector.draining.is_empty() {
            return self.segments.free_count() >= RESERVED_SEGMENTS
                || self.segments.pending_count() == 0;
        }
        let coming = self.segments.free_count() + self.segments.pending_count();
        let room = coming.saturating_sub(1) as u64 * self.geometry.data_per_segment();
        room >= u64::from(joined + live)
    }

    /// The log closes: the victim stays as it is. A read in flight ends first.
    pub(super) fn drop_victim(&mut self) {
        self.collector.draining.clear();
        let Some(victim) = &self.collector.victim else {
            return;
        };
        if !matches!(victim.scan, Scan::Reading(_)) {
            self.collector.victim = None;
        }
    }
}
