//! Pages whose memory is a file's: what maps the file has the same frames as the engine.
//!
//! Whoever shares a range of grains brings a memory file for it. The file is laid under a *run* of frames, one for each
//! grain, and from then on a page of the range has its frame there, whoever asks for it and for whatever reason. Besides
//! that it is a page like any other, which is never evicted. `docs/sharing.md` has the argument.
//!
//! ```text
//!   free room ── share ──► run of a range ── unshare ──► leaving ── the last page has left ──► free room
//! ```
//!
//! # Invariants
//! - S1. A frame of the room is a page of the grain that its run names, or of none. Only a run that is leaving has pages
//!   whose grains it does not name.
//! - S2. The memory of a frame that is no page holds zeros, and what mappings have stored there since: so a page that
//!   begins as zeros takes it as it is.
//! - S3. The digest of a page is that of a content that is on the media, or is on its way there, or of zeros if it has
//!   never been written. A page that is clean and has another one has been stored to.

use super::{Core, Cx};
use crate::addr::{Lba, LbaRange};
use crate::error::ShareError;
use crate::map::{FrameId, State};
use crate::page::FrameUse;
use crate::stats::count;
use std::collections::BTreeMap;
use std::fs::File;
use std::sync::atomic::Ordering;

/// Fewest frames of a run, so that files that grow a little do not need another one each time.
const RUN_MIN: u32 = 16;

/// Frames of the room that belong together.
#[derive(Clone, Copy, Debug)]
struct Run {
    first: u32,
    /// Those that are in use, which come first.
    used: u32,
    room: u32,
}

/// Frames that are not a range's any more, and whose pages have not all left.
#[derive(Clone, Copy, Debug)]
struct Leaving {
    /// The grain of the first.
    lba: Lba,
    first: u32,
    count: u32,
    /// They are a whole run, to be given back.
    whole: bool,
    /// The memory file is not under them any more.
    off: bool,
}

/// Which frames of the room are whose.
#[derive(Debug)]
pub(super) struct Sharing {
    /// First frames of what is free, and how many there are; no two adjoin.
    free: BTreeMap<u32, u32>,
    /// By the first grain of their ranges, which do not overlap.
    runs: BTreeMap<Lba, Run>,
    leaving: Vec<Leaving>,
}

impl Sharing {
    /// Room for `count` frames, which follow the `frames` of the pool.
    pub(super) fn new(frames: usize, count: usize) -> Self {
        let all = (count > 0).then_some((frames as u32, count as u32));
        Self {
            free: all.into_iter().collect(),
            runs: BTreeMap::new(),
            leaving: Vec::new(),
        }
    }

    /// The frame that a page of `lba` must have, if that is shared.
    pub(super) fn frame_of(&self, lba: Lba) -> Option<FrameId> {
        let (start, run) = self.runs.range(..=lba).next_back()?;
        let n = lba.0 - start.0;
        (n < u64::from(run.used)).then(|| FrameId(run.first + n as u32))
    }

    /// Every grain that is shared.
    pub(super) fn grains(&self) -> impl Iterator<Item = Lba> + '_ {
        let runs = self.runs.iter();
        runs.flat_map(|(start, run)| (0..run.used).map(|n| start.offset(u64::from(n))))
    }

    fn take(&mut self, count: u32) -> Option<u32> {
        let (&first, &room) = self.free.iter().find(|&(_, &room)| room >= count)?;
        self.free.remove(&first);
        if room > count {
            self.free.insert(first + count, room - count);
        }
        Some(first)
    }

    fn give_back(&mut self, mut first: u32, mut count: u32) {
        if let Some((&before, &room)) = self.free.range(..first).next_back()
            && before + room == first
        {
            self.free.remove(&before);
            (first, count) = (before, room + count);
        }
        if let Some(room) = self.free.remove(&(first + count)) {
            count += room;
        }
        self.free.insert(first, count);
    }
}

impl Core {
    /// Grains of `range` get the pages of a memory file from page `at` on as their memory. What of them is in memory
    /// elsewhere stays there for now, see [`Core::gather`].
    pub(crate) fn share(
        &mut self,
        cx: Cx<'_>,
        memory: &File,
        at: u64,
        range: LbaRange,
    ) -> Result<(), ShareError> {
        let count = u32::try_from(range.count).map_err(|_| ShareError::NoRoom)?;
        if count == 0 {
            return Ok(());
        }
        let sharing = &mut self.sharing;
        let last = sharing.runs.range(..range.start).next_back();
        let goes_on = last.filter(|&(start, run)| {
            at > 0 && start.0 + u64::from(run.used) == range.start.0 && run.room - run.used >= count
        });
        let (start, run) = match goes_on {
            Some((&start, run)) => (start, *run),
            None => {
                // As much again as the file has: it grows in few steps.
                let roomy = count.max(RUN_MIN).max(at.min(1 << 24) as u32);
                let taken = sharing.take(roomy).map(|first| (first, roomy));
                let taken = taken.or_else(|| sharing.take(count).map(|first| (first, count)));
                let (first, room) = taken.ok_or(ShareError::NoRoom)?;
                let used = 0;
                (range.start, Run { first, used, room })
            }
        };
        let first = run.first + run.used;
        let is_leaving =
            |l: &Leaving| !l.off && l.first < first + count && first < l.first + l.count;
        let laid = match sharing.leaving.iter().any(is_leaving) {
            true => Err(ShareError::Busy),
            false => {
                let slot = cx.sh.pool.frame(FrameId(first));
                let laid = cx.sh.pool.arena.lay(slot, count as usize, memory, at);
                laid.map_err(|error| ShareError::Memory(error.raw_os_error().unwrap_or(0)))
            }
        };
        if let Err(error) = laid {
            if run.used == 0 {
                sharing.give_back(run.first, run.room);
            }
            return Err(error);
        }
        let used = run.used + count;
        sharing.runs.insert(start, Run { used, ..run });
        Ok(())
    }

    /// Pages of a shared range that lie elsewhere leave memory, so that they come back where they belong. False: some can
    /// not leave yet, because somebody holds them or they are not on the media.
    pub(crate) fn gather(&mut self, cx: Cx<'_>, range: LbaRange) -> bool {
        self.drain_inbox(cx);
        let pages: Vec<(Lba, State)> = self.index.mapped(range).collect();
        let mut all = true;
        for (lba, state) in pages {
            let frame = match state {
                State::Resident(page) => page.frame,
                State::InFlight(frame) => frame,
                State::Away(_) => continue,
            };
            if self.sharing.frame_of(lba) != Some(frame) {
                all &= self.evict_any(cx, frame, true);
            }
        }
        self.pump(cx);
        all
    }

    /// Looks for stores that nobody has told of, and marks their pages dirty. Returns how many there are. Everything stored
    /// before is found, or is in a page that is dirty already.
    pub(crate) fn find_stores(&mut self, cx: Cx<'_>, range: LbaRange) -> u64 {
        let mut found = 0;
        for lba in (range.start.0..range.end().0).map(Lba) {
            let Some(frame) = self.sharing.frame_of(lba) else {
                continue;
            };
            let known = &self.frames[frame.0 as usize];
            if known.usage != FrameUse::Resident || known.lba != lba {
                continue;
            }
            let entry = known.leaf().entry(lba);
            // One that is dirty is copied later than now.
            if !matches!(entry.state(), State::Resident(page) if !page.dirty) {
                continue;
            }
            let seen = cx.sh.pool.seen(frame).load(Ordering::Relaxed);
            let slot = cx.sh.pool.frame(frame);
            if cx.sh.pool.arena.digest(slot) != seen && entry.soil(frame) {
                self.dirty.insert(lba);
                found += 1;
            }
        }
        if found > 0 {
            count(&cx.sh.counters.stores_found, found);
            cx.sh.arm_timer();
        }
        found
    }

    /// Grains from `from` on, up to `end`, are not shared any more: pages got from now on lie elsewhere. Those that there
    /// are leave by [`Core::let_leave`].
    pub(crate) fn unshare(&mut self, range: LbaRange) {
        let sharing = &mut self.sharing;
        let starts = sharing.runs.range(..range.end());
        let touched: Vec<(Lba, Run)> = starts
            .map(|(&start, &run)| (start, run))
            .filter(|&(start, run)| start.0 + u64::from(run.used) > range.start.0)
            .collect();
        for (start, run) in touched {
            let kept = range.start.0.saturating_sub(start.0) as u32;
            if kept > 0 {
                let used = kept;
                sharing.runs.insert(start, Run { used, ..run });
            } else {
                sharing.runs.remove(&start);
            }
            sharing.leaving.push(Leaving {
                lba: start.offset(u64::from(kept)),
                off: false,
                first: run.first + kept,
                count: if kept > 0 { run.used - kept } else { run.room },
                whole: kept == 0,
            });
        }
    }

    /// Pages of what is not shared any more leave, as far as they can. True: all of `range` have, and nothing of its memory
    /// file is in use any more.
    pub(crate) fn let_leave(&mut self, cx: Cx<'_>, range: LbaRange) -> bool {
        self.drain_inbox(cx);
        for mut leaving in std::mem::take(&mut self.sharing.leaving) {
            if !self.leaves(cx, &mut leaving) {
                self.sharing.leaving.push(leaving);
            }
        }
        self.pump(cx);
        let uses_memory = |l: &Leaving| {
            let end = l.lba.offset(u64::from(l.count));
            !l.off && l.lba < range.end() && range.start < end
        };
        !self.sharing.leaving.iter().any(uses_memory)
    }

    /// Whether nothing is left of them.
    fn leaves(&mut self, cx: Cx<'_>, leaving: &mut Leaving) -> bool {
        let frames = leaving.first..leaving.first + leaving.count;
        let mut held = false;
        for frame in frames.map(FrameId) {
            let usage = self.frames[frame.0 as usize].usage;
            match usage {
                FrameUse::Free => {}
                // Who holds it puts it one day; until then it keeps its frame, but not the memory.
                FrameUse::Orphan => held = true,
                FrameUse::Resident if self.evict_any(cx, frame, true) => {}
                FrameUse::Resident | FrameUse::Reading | FrameUse::Exclusive => return false,
            }
        }
        if !leaving.off {
            let slot = cx.sh.pool.frame(FrameId(leaving.first));
            let off = cx.sh.pool.arena.take_off(slot, leaving.count as usize);
            if let Err(error) = off {
                tracing::error!(%error, "memory of a file that is not shared any more stays in use");
                return false;
            }
            leaving.off = true;
        }
        if leaving.whole && !held {
            self.sharing.give_back(leaving.first, leaving.count);
        }
        !(leaving.whole && held)
    }

    /// The page of a frame begins as zeros, and with what mappings have stored there (S2).
    pub(super) fn begins_as_zeros(&self, cx: Cx<'_>, frame: FrameId) {
        let pool = &cx.sh.pool;
        match pool.is_shared(frame) {
            true => pool
                .seen(frame)
                .store(pool.zero_digest(), Ordering::Relaxed),
            false => pool.arena.zero(pool.frame(frame)),
        }
    }

    /// A frame is no page any more (S2).
    pub(super) fn ends_as_page(&self, cx: Cx<'_>, frame: FrameId) {
        if cx.sh.pool.is_shared(frame) {
            cx.sh.pool.arena.zero(cx.sh.pool.frame(frame));
        }
    }

    /// A clean page may be evicted from now on, unless its place is there.
    pub(super) fn may_leave(&mut self, cx: Cx<'_>, frame: FrameId) {
        if !cx.sh.pool.is_shared(frame) {
            self.candidates.push(frame);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is taken is disjoint, and when everything has come back it is one piece again (I16: no room is ever lost).
    #[test]
    fn room_comes_back() {
        let mut sharing = Sharing::new(100, 64);
        let taken: Vec<u32> = (0..4).map(|_| sharing.take(16).unwrap()).collect();
        assert_eq!(taken, [100, 116, 132, 148]);
        assert_eq!(sharing.take(1), None);
        for first in [132, 100, 148, 116] {
            sharing.give_back(first, 16);
        }
        assert_eq!(sharing.free, BTreeMap::from([(100, 64)]));
        assert!(Sharing::new(100, 0).take(1).is_none());
    }
}
