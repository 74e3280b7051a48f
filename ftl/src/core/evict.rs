//! Frames: taken, set free, and pages evicted from them.

use super::{Core, Cx};
use crate::map::{FrameId, Location, State};
use crate::page::FrameUse;
use crate::placement::Heat;
use crate::stats::count;
use std::cmp::Reverse;
use std::sync::atomic::Ordering;

/// Frames side by side that are set free together for who wants many: a MiB is read into 16 pieces of memory then.
pub(super) const BLOCK_FRAMES: u32 = 16;

impl Core {
    /// A frame is free; who waited for its content asks again.
    pub(super) fn free_frame(&mut self, cx: Cx<'_>, frame: FrameId) {
        self.set_media(frame, Location::Nowhere);
        let known = &mut self.frames[frame.0 as usize];
        known.usage = FrameUse::Free;
        known.leaf = None;
        known.writing = 0;
        known.joined = 0;
        known.written = 0;
        known.heat = Heat::UNKNOWN;
        known.life = known.life.wrapping_add(1);
        let waiters = std::mem::take(&mut known.waiters);
        if !cx.sh.pool.is_shared(frame) {
            self.candidates.remove(frame);
            self.frames_free.push(frame);
        }
        for waiter in waiters {
            self.ask_again(cx, waiter);
        }
    }

    pub(super) fn take_frame(&mut self, cx: Cx<'_>) -> Option<FrameId> {
        if let Some(frame) = self.frames_free.pop() {
            return Some(frame);
        }
        // Once somebody waits, frames are found by those who free them, not by scanning again and again.
        if self.frame_waiters.is_empty() && self.evict_one(cx) {
            return self.frames_free.pop();
        }
        count(&cx.sh.counters.frame_waits, 1);
        cx.sh.frames_wanted.store(true, Ordering::SeqCst);
        // An unpin between the scan and the store above has told nobody: look once more.
        if self.evict_one(cx) {
            return self.frames_free.pop();
        }
        self.dirty.background = self.dirty.background.max(self.dirty.len());
        None
    }

    /// Second chance: frees one clean page that nobody holds. Two rounds see every page unused. If many are wanted, those
    /// beside it in memory go along that nobody has used.
    pub(super) fn evict_one(&mut self, cx: Cx<'_>) -> bool {
        for _ in 0..2 * self.candidates.len() {
            let Some(frame) = self.candidates.pop() else {
                break;
            };
            if self.evict(cx, frame, false) {
                if self.many_wanted {
                    self.evict_beside(cx, frame);
                }
                return true;
            }
            if self.is_candidate(frame) {
                self.candidates.spare(frame);
            }
        }
        false
    }

    /// Frees what is in the block of a frame that has just been freed and would go when its turn came, so that what takes the
    /// frames one after the other has them side by side: one piece of memory for the device instead of many. Pages that were
    /// used, or have been spared for it, stay.
    fn evict_beside(&mut self, cx: Cx<'_>, frame: FrameId) {
        let start = frame.0 / BLOCK_FRAMES * BLOCK_FRAMES;
        let end = (start + BLOCK_FRAMES).min(self.pool_frames as u32);
        for beside in (start..end).map(FrameId) {
            if self.candidates.is_due(beside) && !self.is_used(beside) {
                self.evict(cx, beside, false);
            }
        }
        // The last is taken first. Before there was none: a frame is evicted when none is free.
        self.frames_free
            .sort_unstable_by_key(|frame| Reverse(frame.0));
    }

    fn is_used(&self, frame: FrameId) -> bool {
        let known = &self.frames[frame.0 as usize];
        known.usage == FrameUse::Resident
            && matches!(known.leaf().entry(known.lba).state(), State::Resident(r) if r.used)
    }

    /// Whether a frame holds a page that could be evicted if nobody held it. What is dirty comes back by itself.
    pub(super) fn is_candidate(&self, frame: FrameId) -> bool {
        let known = &self.frames[frame.0 as usize];
        if known.usage != FrameUse::Resident || known.writing > 0 {
            return false;
        }
        match known.leaf().entry(known.lba).state() {
            State::Resident(r) => r.frame == frame && !r.dirty,
            // It has been seized, and will be set free.
            State::InFlight(seized) => seized == frame,
            State::Away(_) => false,
        }
    }

    /// Evicts a page, unless it is shared.
    pub(super) fn evict(&mut self, cx: Cx<'_>, frame: FrameId, force: bool) -> bool {
        !cx.sh.pool.is_shared(frame) && self.evict_any(cx, frame, force)
    }

    /// Evicts a page if it is clean and nobody holds it.
    pub(super) fn evict_any(&mut self, cx: Cx<'_>, frame: FrameId, force: bool) -> bool {
        let known = &self.frames[frame.0 as usize];
        if known.usage != FrameUse::Resident || known.writing > 0 {
            return false;
        }
        if known.media == Location::Nowhere
            || !known
                .leaf()
                .evict(known.lba, frame, known.media, known.heat, force)
        {
            return false;
        }
        count(&cx.sh.counters.evictions, 1);
        self.free_frame(cx, frame);
        true
    }
}
