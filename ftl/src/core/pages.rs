//! Getting and putting pages: hits, misses, exclusive overwrites, waiting for frames.

use super::account::Verdict;
use super::evict::BLOCK_FRAMES;
use super::stages::StageUse;
use super::{Core, Cx};
use crate::addr::{GRAIN_BYTES, Lba, LbaRange};
use crate::device::{MediaError, MediaOp};
use crate::error::{DurableError, GetError};
use crate::ids::{Intent, Port, Token};
use crate::map::{FrameId, Leaf, Location, Resident, State};
use crate::page::{FrameUse, Hold, PageRef, Waiter, WaiterKind};
use crate::planted::Bug;
use crate::port::{Event, Op};
use crate::shared::{NEVER, Shared};
use crate::stats::count;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What came of asking for a page.
#[derive(Debug)]
pub(super) enum Acquired {
    /// Pinned in the map.
    Pinned(Arc<Leaf>, FrameId),
    /// The caller alone holds the frame, to fill it.
    Exclusive(FrameId),
    /// Reads as zeros.
    Zeros,
    /// The waiter has been noted.
    Pending,
    /// Not to be had.
    Failed(GetError),
}

impl Core {
    /// Asks for a page for a user.
    pub(crate) fn get(
        &mut self,
        cx: Cx<'_>,
        lba: Lba,
        intent: Intent,
        token: Token,
    ) -> Option<Result<PageRef, GetError>> {
        let port = cx.port;
        let kind = WaiterKind::Get {
            port,
            token,
            intent,
        };
        let acquired = self.acquire(cx, lba, intent, kind, false);
        // What it set going besides waits until the driver asks for actions: many gets, one look around.
        cx.sh.owe(port);
        Self::page(cx, lba, intent, port, acquired)
    }

    /// So many pages are asked for next, or the last of them has been.
    pub(crate) fn expect_gets(&mut self, count: usize) {
        self.many_wanted = count >= BLOCK_FRAMES as usize;
    }

    fn page(
        cx: Cx<'_>,
        lba: Lba,
        intent: Intent,
        port: Port,
        acquired: Acquired,
    ) -> Option<Result<PageRef, GetError>> {
        let writable = intent != Intent::Read;
        let (hold, frame) = match acquired {
            Acquired::Pinned(leaf, frame) => (Hold::Shared { leaf, writable }, frame),
            Acquired::Exclusive(frame) => (Hold::Exclusive, frame),
            Acquired::Zeros => (Hold::Zeros, FrameId(0)),
            Acquired::Pending => return None,
            Acquired::Failed(error) => return Some(Err(error)),
        };
        Some(Ok(PageRef::new(cx.sh, hold, frame, lba, port)))
    }

    /// Asks for a page. A commit (`for_commit`) gets an exclusive frame where a user would get new space.
    pub(super) fn acquire(
        &mut self,
        cx: Cx<'_>,
        lba: Lba,
        intent: Intent,
        kind: WaiterKind,
        for_commit: bool,
    ) -> Acquired {
        if intent != Intent::Read
            && let Some(refused) = self.refusal()
        {
            return Acquired::Failed(refused);
        }
        let waiter = Waiter { lba, kind };
        if let Some(unit) = self.cold.cold_unit(lba) {
            if let Some(error) = self.failed {
                return Acquired::Failed(GetError::Failed(error));
            }
            self.loader.want(unit, waiter);
            self.run_loader(cx);
            return Acquired::Pending;
        }
        // Whoever maps a shared page stores to it without asking. On a volume that takes no changes that is lost in any case.
        let is_stored_to = || self.sharing.frame_of(lba).is_some() && self.refusal().is_none();
        let changes = self.keeper.is_on() && (intent != Intent::Read || is_stored_to());
        if changes && !self.may_change(cx, lba) {
            if !cx.sh.has_bug(Bug::SnapshotChangeFirst) {
                self.wait_for_keeping(waiter);
                return Acquired::Pending;
            }
            self.note_unkept(lba);
        }
        let known_leaf = cx.sh.map.leaf(lba);
        let state = known_leaf.as_ref();
        let state = state.map_or(State::UNMAPPED, |leaf| leaf.state(lba));
        let location = match state {
            State::Resident(_) => {
                let leaf = known_leaf.expect("leaf of a resident page");
                // Only the holder of the lock ends the residence, so the pin can not fail.
                let frame = leaf.entry(lba).pin().expect("resident page");
                return Acquired::Pinned(leaf, frame);
            }
            State::InFlight(frame) => {
                self.frames[frame.0 as usize].waiters.push(waiter);
                return Acquired::Pending;
            }
            State::Away(location) => location,
        };
        let on_media = matches!(location, Location::Media(_));
        let home = self.sharing.frame_of(lba);
        let is_new = location == Location::Nowhere;
        // Where the page is shared, a mapping may have stored to it already.
        if intent == Intent::Read && !on_media && (is_new || home.is_none()) {
            return Acquired::Zeros;
        }
        // What is lost takes space when it is written again.
        let takes_space = is_new || intent != Intent::Read && self.is_lost_at(location);
        let is_full = || self.mapped_now() + self.held_back() >= self.capacity_now();
        if takes_space && !for_commit && is_full() {
            // Counts are too high until all of the map has been read.
            if let Some(unit) = self.cold.first_cold(LbaRange::SPACE) {
                self.loader.want(unit, waiter);
                self.run_loader(cx);
                return Acquired::Pending;
            }
            return Acquired::Failed(GetError::NoSpace);
        }
        if is_new && !for_commit {
            match self.judge_grain(lba) {
                Verdict::Fits => {}
                Verdict::Exceeds => return Acquired::Failed(GetError::Quota),
                Verdict::Unknown => {
                    let unit = self.cold.first_cold(LbaRange::SPACE);
                    let unit = unit.expect("the map is not all in memory");
                    self.loader.want(unit, waiter);
                    self.run_loader(cx);
                    return Acquired::Pending;
                }
            }
        }
        if let Some(home) = home
            && self.frames[home.0 as usize].usage != FrameUse::Free
        {
            // Somebody holds what the grain was before.
            self.frames[home.0 as usize].waiters.push(waiter);
            return Acquired::Pending;
        }
        let Some(frame) = home.or_else(|| self.take_frame(cx)) else {
            // A failed volume cleans no page any more: an error now rather than waiting for ever.
            if let Some(error) = self.failed {
                return Acquired::Failed(GetError::Failed(error));
            }
            self.frame_waiters.push_back(waiter);
            return Acquired::Pending;
        };
        let leaf = known_leaf.unwrap_or_else(|| self.index.leaf_or_new(&cx.sh.map, lba));
        let entry = leaf.entry(lba);
        let slot = cx.sh.pool.frame(frame);
        let known = &mut self.frames[frame.0 as usize];
        known.lba = lba;
        known.leaf = Some(Arc::clone(&leaf));
        known.heat = entry.heat();
        self.set_media(frame, location);
        let known = &mut self.frames[frame.0 as usize];
        match location {
            Location::Media(pba) if intent != Intent::Overwrite => {
                known.usage = FrameUse::Reading;
                known.waiters.push(waiter);
                let life = known.life;
                entry.replace(State::InFlight(frame));
                let id = self.geometry.segment_of(pba);
                self.segments.get_mut(id).readers += 1;
                let crc = leaf.crc(lba);
                let purpose = Op::Fill {
                    frame,
                    life,
                    pba,
                    crc,
                };
                let offset = pba.0 * GRAIN_BYTES as u64;
                let buf = cx.sh.pool.lend(slot, 1);
                self.act(cx, purpose, MediaOp::Read { offset, buf });
                count(&cx.sh.counters.fills, 1);
                Acquired::Pending
            }
            Location::Nowhere | Location::Zero(_) if !for_commit => {
                known.usage = FrameUse::Resident;
                // Before anybody finds it.
                self.begins_as_zeros(cx, frame);
                entry.replace(State::resident(frame, 1, is_new));
                if is_new {
                    self.mapped += 1;
                    self.accounts.charge(lba);
                    self.dirty.insert(lba);
                    cx.sh.arm_timer();
                } else {
                    self.may_leave(cx, frame);
                }
                Acquired::Pinned(leaf, frame)
            }
            _ => {
                known.usage = FrameUse::Exclusive;
                // An overwrite that does not fill all of it is given up.
                if intent != Intent::Overwrite {
                    self.begins_as_zeros(cx, frame);
                }
                entry.replace(State::InFlight(frame));
                Acquired::Exclusive(frame)
            }
        }
    }

    /// A read into a frame has ended.
    pub(super) fn filled(
        &mut self,
        cx: Cx<'_>,
        frame: FrameId,
        life: u32,
        result: Result<(), GetError>,
    ) {
        let known = &mut self.frames[frame.0 as usize];
        assert_eq!(known.life, life, "a frame lives while it is read");
        if known.usage == FrameUse::Orphan {
            self.ends_as_page(cx, frame);
            self.free_frame(cx, frame);
            return;
        }
        assert_eq!(known.usage, FrameUse::Reading, "frame being read");
        match result {
            Ok(()) => {
                if cx.sh.pool.is_shared(frame) {
                    let digest = cx.sh.pool.arena.digest(cx.sh.pool.frame(frame));
                    cx.sh.pool.seen(frame).store(digest, Ordering::Relaxed);
                }
                let saved = self.saves(frame);
                self.make_resident(cx, frame, saved);
            }
            Err(error) => {
                let (leaf, lba) = (Arc::clone(known.leaf()), known.lba);
                leaf.settle(lba, known.media, known.heat);
                let waiters = std::mem::take(&mut known.waiters);
                for waiter in waiters {
                    self.refuse(cx, waiter, error);
                }
                self.ends_as_page(cx, frame);
                self.free_frame(cx, frame);
            }
        }
    }

    /// A filled frame becomes a page of the map; everybody who waits gets it.
    pub(super) fn make_resident(&mut self, cx: Cx<'_>, frame: FrameId, dirty: bool) {
        let known = &mut self.frames[frame.0 as usize];
        known.usage = FrameUse::Resident;
        let (leaf, lba) = (Arc::clone(known.leaf()), known.lba);
        let mut waiters = std::mem::take(&mut known.waiters);
        if !waiters.is_empty() && !self.may_change(cx, lba) {
            // They began to wait when there was nothing to keep it for.
            let writes = |w: &mut Waiter| matches!(w.kind, WaiterKind::Get { intent, .. } if intent != Intent::Read);
            for waiter in waiters.extract_if(.., writes) {
                self.wait_for_keeping(waiter);
            }
            // Nothing else may make it go on.
            cx.sh.owe(cx.port);
        }
        let gets = waiters
            .iter()
            .filter(|w| matches!(w.kind, WaiterKind::Get { .. }))
            .count();
        leaf.entry(lba)
            .replace(State::resident(frame, gets as u32, dirty));
        if dirty {
            self.dirty.insert(lba);
            cx.sh.arm_timer();
        } else {
            self.may_leave(cx, frame);
        }
        for waiter in waiters.drain(..) {
            match waiter.kind {
                WaiterKind::Commit => self.commit_may_ask_again(lba),
                WaiterKind::Get {
                    port,
                    token,
                    intent,
                } => {
                    let pinned = Acquired::Pinned(Arc::clone(&leaf), frame);
                    let page = Self::page(cx, lba, intent, port, pinned);
                    let result = page.expect("pinned pages are had");
                    self.tell(cx, port, Event::Page { token, result });
                }
            }
        }
        self.frames[frame.0 as usize].waiters = waiters;
    }

    pub(super) fn refuse(&mut self, cx: Cx<'_>, waiter: Waiter, error: GetError) {
        match waiter.kind {
            WaiterKind::Get { port, token, .. } => {
                let result = Err(error);
                self.tell(cx, port, Event::Page { token, result });
            }
            WaiterKind::Commit => self.commit_page_failed(waiter.lba, durable_error(error)),
        }
    }

    /// Asks again for somebody whose reason to wait has gone.
    pub(super) fn ask_again(&mut self, cx: Cx<'_>, waiter: Waiter) {
        let WaiterKind::Get {
            port,
            token,
            intent,
        } = waiter.kind
        else {
            self.commit_may_ask_again(waiter.lba);
            return;
        };
        let acquired = self.acquire(cx, waiter.lba, intent, waiter.kind, false);
        if let Some(result) = Self::page(cx, waiter.lba, intent, port, acquired) {
            self.tell(cx, port, Event::Page { token, result });
        }
    }

    /// Holders of exclusive pages put them: one that is wholly filled replaces its grain, else nothing happened.
    pub(crate) fn publish(&mut self, cx: Cx<'_>, pages: impl IntoIterator<Item = (FrameId, bool)>) {
        for (frame, filled) in pages {
            self.publish_one(cx, frame, filled);
        }
        self.pump_after_put(cx);
    }

    fn publish_one(&mut self, cx: Cx<'_>, frame: FrameId, filled: bool) {
        if self.frames[frame.0 as usize].usage == FrameUse::Orphan {
            self.free_frame(cx, frame);
        } else if filled {
            // On a failed volume too: it was granted before, is visible like any write, and no sync will vouch for it.
            self.make_resident(cx, frame, true);
        } else {
            self.abandon(cx, frame);
        }
    }

    /// An exclusive frame is given up: the grain is what it was.
    pub(super) fn abandon(&mut self, cx: Cx<'_>, frame: FrameId) {
        let known = &self.frames[frame.0 as usize];
        assert_eq!(known.usage, FrameUse::Exclusive, "exclusive frame");
        let (leaf, lba) = (Arc::clone(known.leaf()), known.lba);
        leaf.settle(lba, known.media, known.heat);
        self.ends_as_page(cx, frame);
        self.free_frame(cx, frame);
        self.index.prune(&cx.sh.map, lba);
    }

    /// Makes `lba` unmapped. Who holds the page keeps the old view until the put.
    pub(super) fn unmap(&mut self, cx: Cx<'_>, lba: Lba) {
        let Some(leaf) = self.index.leaf(lba).cloned() else {
            return;
        };
        let location = match leaf.entry(lba).replace(State::UNMAPPED) {
            State::Away(location) => {
                if location != Location::Nowhere {
                    self.count_unmapped(lba);
                }
                location
            }
            State::InFlight(frame) => {
                self.ends_as_page(cx, frame);
                self.frames[frame.0 as usize].usage = FrameUse::Orphan;
                let location = self.set_media(frame, Location::Nowhere);
                if location != Location::Nowhere {
                    self.count_unmapped(lba);
                }
                location
            }
            State::Resident(page) => {
                self.count_unmapped(lba);
                self.orphan(cx, lba, page)
            }
        };
        if location != Location::Nowhere {
            self.checkpointer.changes.note(lba);
        }
        self.placement.forget(lba);
        self.leave_with_group(location);
        self.index.prune(&cx.sh.map, lba);
    }

    /// A page is none any more; who holds it keeps its frame. Returns where the grain is besides.
    pub(super) fn orphan(&mut self, cx: Cx<'_>, lba: Lba, page: Resident) -> Location {
        let Resident { frame, pins, .. } = page;
        self.dirty.remove(lba);
        let grouped = u32::from(self.group.remove_page(lba));
        self.ends_as_page(cx, frame);
        let location = self.set_media(frame, Location::Nowhere);
        let known = &mut self.frames[frame.0 as usize];
        known.usage = FrameUse::Orphan;
        known.orphan_pins = pins - grouped;
        if known.orphan_pins == 0 {
            self.free_frame(cx, frame);
        }
        location
    }

    /// A holder of a page that was trimmed meanwhile puts it.
    pub(crate) fn orphan_unpinned(&mut self, cx: Cx<'_>, frame: FrameId) {
        let known = &mut self.frames[frame.0 as usize];
        assert_eq!(known.usage, FrameUse::Orphan, "detached page");
        known.orphan_pins -= 1;
        if known.orphan_pins == 0 {
            self.free_frame(cx, frame);
            self.pump(cx);
        }
    }

    /// The last pin of a page went while somebody waits for a frame.
    pub(crate) fn frame_unpinned(&mut self, cx: Cx<'_>, frame: FrameId, lba: Lba) {
        if self.frames[frame.0 as usize].lba == lba {
            self.evict(cx, frame, true);
        }
        self.drain_inbox(cx);
        if !self.frame_waiters.is_empty() {
            self.dirty.background = self.dirty.background.max(self.dirty.len());
        }
        self.pump(cx);
    }

    /// A write-out of the page is on the media: it may be evicted, at once if somebody waits for a frame.
    pub(super) fn page_written(&mut self, cx: Cx<'_>, frame: FrameId, life: u32) {
        let known = &mut self.frames[frame.0 as usize];
        if known.life != life || known.usage != FrameUse::Resident {
            return;
        }
        known.writing -= 1;
        if known.writing > 0 {
            return;
        }
        if self.frame_waiters.is_empty() || !self.evict(cx, frame, true) {
            self.may_leave(cx, frame);
        }
    }

    /// Hands free frames to those who wait, in order.
    pub(super) fn serve_frame_waiters(&mut self, cx: Cx<'_>) -> bool {
        let mut progress = false;
        while !self.frames_free.is_empty()
            && let Some(waiter) = self.frame_waiters.pop_front()
        {
            progress = true;
            self.ask_again(cx, waiter);
            if waiter.kind == WaiterKind::Commit {
                // It asks when batches run. Whoever is behind it would have taken the frame by then, each time anew.
                break;
            }
        }
        if self.frame_waiters.is_empty() && !self.pins_awaited && !self.keeper.awaits_pins() {
            cx.sh.frames_wanted.store(false, Ordering::SeqCst);
        }
        progress
    }

    /// Lets everybody who waits for a frame ask again, because the answer may be another now.
    pub(super) fn retry_frame_waiters(&mut self, cx: Cx<'_>) {
        for waiter in std::mem::take(&mut self.frame_waiters) {
            self.ask_again(cx, waiter);
        }
    }

    /// What a put may have set going. It may be one of many that a sync follows, so nothing is written for it alone.
    fn pump_after_put(&mut self, cx: Cx<'_>) {
        let is_wanted = !self.commits.is_empty() || !self.frame_waiters.is_empty();
        if is_wanted || cx.sh.write_through || !self.phase.is_running() {
            self.pump(cx);
        } else if self.has_many_dirty() {
            self.write_out_many(cx);
        }
    }

    /// Pages have turned dirty without anybody looking at what is due.
    pub(crate) fn many_put(&mut self, cx: Cx<'_>) {
        if !cx.sh.write_out_apart {
            return self.pump(cx);
        }
        self.drain_inbox(cx);
        self.pump_after_put(cx);
    }

    /// Dirty pages are so many that some must go out: here, or where it keeps nobody waiting.
    fn write_out_many(&mut self, cx: Cx<'_>) {
        match self.writes_out_apart(cx) {
            true => self.call_for_write_out(cx),
            false => self.pump(cx),
        }
    }

    /// Whether what is due because there is much of it is left to the driver of the background's port. If that does not keep
    /// up, everybody helps.
    fn writes_out_apart(&self, cx: Cx<'_>) -> bool {
        cx.sh.write_out_apart && self.dirty.len() <= self.pool_frames / 4 * 3
    }

    /// Tells that driver, if there is a write-out to be had.
    pub(super) fn call_for_write_out(&mut self, cx: Cx<'_>) {
        if self.stages.has(StageUse::Forming)
            && !self.space_wanted
            && !cx.sh.write_out_due.swap(true, Ordering::SeqCst)
        {
            self.wakes.push(Shared::BACKGROUND);
        }
    }

    /// That driver has come: one write-out.
    pub(crate) fn write_out_some(&mut self, cx: Cx<'_>) {
        cx.sh.write_out_due.store(false, Ordering::SeqCst);
        self.drain_inbox(cx);
        let before = self.dirty.len();
        if self.has_many_dirty() {
            let share = self.excess().min(self.geometry.write_out_data_max());
            self.dirty.background = self.dirty.background.max(share);
        }
        self.pump(cx);
        // Pages that are held go out when they have been put: no use in coming again before.
        if self.dirty.len() >= before {
            cx.sh.write_out_due.store(false, Ordering::SeqCst);
        }
    }

    /// Dirty pages that go out when there are many.
    fn excess(&self) -> usize {
        self.dirty.len().saturating_sub(self.pool_frames / 8 * 3)
    }

    /// Whether dirty pages are so many that some must go out. Until then they wait for their age: what is written again
    /// meanwhile goes out once. The other half is for what is read, and for what is written while they go out.
    fn has_many_dirty(&self) -> bool {
        self.dirty.len() > self.pool_frames / 2
    }

    /// What a completed read may have set going. Reads complete often, so nothing else is looked at.
    pub(crate) fn pump_after_fill(&mut self, cx: Cx<'_>) {
        if !self.commits.is_empty() || !self.frame_waiters.is_empty() || self.space_wanted {
            self.pump(cx);
        } else if self.segments.pending_count() > 0 {
            self.release_segments(cx);
        }
    }

    /// The dirty pages are old enough: out with them.
    pub(crate) fn aged(&mut self, cx: Cx<'_>) {
        self.drain_inbox(cx);
        self.dirty.background = self.dirty.len();
        self.group.wanted = !self.group.is_empty();
        self.pump(cx);
        self.formings.want(LbaRange::SPACE);
        self.pump(cx);
        if self.relaxed && self.group.is_empty() {
            // Plain data wait for a sync, however long; what a batch has changed becomes durable by itself.
            self.relaxed = false;
            self.flush_wanted = self.flush_wanted.max(self.log.last());
            self.start_flush(cx);
        }
        cx.sh.deadline.store(NEVER, Ordering::SeqCst);
        let waits = self.dirty_pages() > 0 || !self.group.is_empty();
        if waits && self.failed.is_none() {
            cx.sh.arm_timer();
        }
        // A page that turned dirty in between has seen a timer that is gone now.
        if !cx.sh.inbox.is_empty() {
            cx.sh.arm_timer();
        }
        self.collector.rests.wake_again(cx);
        self.loader.rests.wake_again(cx);
    }

    /// First grain of `range` that counts as mapped.
    pub(crate) fn next_mapped(&self, cx: Cx<'_>, range: LbaRange) -> Option<Lba> {
        let found = self.index.mapped(range);
        let mut mapped = found.filter(|&(lba, state)| self.counts(cx, lba, state));
        mapped.next().map(|(lba, _)| lba)
    }

    /// Number of grains of `range` that count as mapped.
    pub(crate) fn mapped_count(&self, cx: Cx<'_>, range: LbaRange) -> u64 {
        self.mapped_in(cx, range).count() as u64
    }

    /// The grains of `range` that count as mapped.
    pub(super) fn mapped_in<'a>(
        &'a self,
        cx: Cx<'a>,
        range: LbaRange,
    ) -> impl Iterator<Item = Lba> + 'a {
        let found = self.index.mapped(range);
        let counted = found.filter(move |&(lba, state)| self.counts(cx, lba, state));
        counted.map(|(lba, _)| lba)
    }

    /// Whether a grain in this state is mapped: a frame being filled for a batch does not count yet.
    fn counts(&self, cx: Cx<'_>, lba: Lba, state: State) -> bool {
        matches!(state, State::Resident(_)) || self.location(cx, lba) != Location::Nowhere
    }

    /// Takes over what turned dirty since the last time.
    pub(super) fn drain_inbox(&mut self, cx: Cx<'_>) {
        cx.sh.inbox.drain(|lba| self.dirty.insert(lba));
        if cx.sh.write_through {
            self.dirty.background = self.dirty.len();
        } else if self.has_many_dirty() {
            match self.writes_out_apart(cx) {
                true => self.call_for_write_out(cx),
                false => self.dirty.background = self.dirty.background.max(self.excess()),
            }
        }
    }
}

/// The same failure in the words of a commit.
fn durable_error(error: GetError) -> DurableError {
    match error {
        GetError::NoSpace => DurableError::NoSpace,
        GetError::Quota => DurableError::Quota,
        GetError::Damaged { lba } => DurableError::Damaged { lba },
        GetError::Media { lba, error } => DurableError::Media { lba, error },
        GetError::Failed(error) => DurableError::Failed(error),
        GetError::Shutdown => DurableError::Shutdown,
        GetError::OutOfRange => DurableError::Failed(MediaError::Invalid),
    }
}
