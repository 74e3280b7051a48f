//! Clones taking effect: every grain of a range gets one more name.
//!
//! The new name leads to the place that the grain has in the log, so what is in memory only has to get there first:
//! the batch waits until every page of the source is clean and on the media (whoever wants the new name reads it
//! there), and is held by nobody (a copy that was made while a holder wrote is no version of the grain). It is enough
//! that this is so at the moment of the look: whatever is put later is a later version of the source, and only of the
//! source. A grain that is being read or overwritten has its place, too.
//!
//! What never gets there because somebody writes to it all the time is copied, and travels with the batch like a page
//! that was patched. See `docs/remap.md`.

use super::remap::Seized;
use super::{Core, Cx};
use crate::addr::Lba;
use crate::map::{FrameId, Location, State};
use crate::page::FrameUse;
use crate::planted::Bug;
use crate::remap::Remap;
use crate::stats::count;
use std::sync::atomic::Ordering;

/// Times that the pages of a source are made urgent before they are copied, if the options do not say.
pub(crate) const CLONE_URGES: u32 = 8;
/// Most pages that a batch copies.
const COPIES_MAX: usize = 16;

/// Pages of the sources that are copied, seized, and frames for the copies.
#[derive(Debug, Default)]
pub(super) struct Copies {
    pages: Seized,
    frames: Vec<FrameId>,
}

impl Core {
    /// Waits until everything in the sources of these clones of the batch at the head is on the media. None: it is not;
    /// it has been made urgent, and the batch is looked at again when that is out or a page is put. Where that leads
    /// nowhere because somebody writes to the source all the time, what is not settled is copied, if there is little
    /// enough of it: `room` pages at most.
    pub(super) fn settle_clones(
        &mut self,
        cx: Cx<'_>,
        clones: &[Remap],
        room: usize,
    ) -> Option<Copies> {
        if clones.is_empty() || cx.sh.has_bug(Bug::CloneBeforePage) {
            return Some(Copies::default());
        }
        // Before looking: an unpin from now on says so.
        self.pins_awaited = true;
        cx.sh.frames_wanted.store(true, Ordering::SeqCst);
        let is_patient = self.commits[0].urged < cx.sh.clone_urges;
        let most = if is_patient { 0 } else { room.min(COPIES_MAX) };
        let copies = self.seize_unsettled(cx, clones, most);
        if copies.is_some() {
            self.pins_awaited = false;
            return copies;
        }
        let (urgent, forming) = self.clones_await;
        if self.dirty.reached(urgent) && self.formings.reached(forming) {
            self.drain_inbox(cx);
            for clone in clones {
                let urgent = self.dirty.urge(clone.source());
                let forming = self.formings.want(clone.source());
                self.clones_await = (urgent, forming);
            }
            self.commits[0].urged += 1;
        }
        None
    }

    /// The same of a batch of the engine's own. Nobody can change what it clones, so nothing has to be seized, and readers may
    /// hold it.
    pub(super) fn settle_kept(&mut self, cx: Cx<'_>, clones: &[Remap]) -> bool {
        let sources = clones.iter().map(|clone| clone.source());
        let mapped = sources.flat_map(|source| self.index.mapped(source));
        let mut unsettled = mapped.filter(|&(_, state)| match state {
            State::Resident(page) => page.dirty || self.frames[page.frame.0 as usize].writing > 0,
            State::InFlight(_) | State::Away(_) => false,
        });
        let is_settled = unsettled.next().is_none();
        drop(unsettled);
        if is_settled || cx.sh.has_bug(Bug::CloneBeforePage) {
            return true;
        }
        let (urgent, forming) = self.clones_await;
        if self.dirty.reached(urgent) && self.formings.reached(forming) {
            self.drain_inbox(cx);
            for clone in clones {
                let urgent = self.dirty.urge(clone.source());
                let forming = self.formings.want(clone.source());
                self.clones_await = (urgent, forming);
            }
        }
        false
    }

    /// Seizes what is not settled, to be copied. None: that is more than `most` pages, one is held, or frames
    /// are missing.
    fn seize_unsettled(&mut self, cx: Cx<'_>, clones: &[Remap], most: usize) -> Option<Copies> {
        let mut pages = Seized::default();
        // Writers go on meanwhile, and what was settled may not be any more when the last page has been seized. When a
        // look finds nothing, the rest has not changed since then: a clone is what the source was at one moment.
        loop {
            let room = most - pages.0.len();
            let unsettled = self.unsettled(clones, room + 1);
            if unsettled.is_empty() {
                break;
            }
            if unsettled.len() > room || !self.seize_each(&unsettled, &mut pages) {
                self.set_free(pages);
                return None;
            }
        }
        let Some(frames) = self.take_free_frames(cx, pages.0.len()) else {
            self.set_free(pages);
            return None;
        };
        Some(Copies { pages, frames })
    }

    /// Up to `most` pages of the sources that are not settled.
    fn unsettled(&self, clones: &[Remap], most: usize) -> Vec<Lba> {
        let sources = clones.iter().map(|clone| clone.source());
        let mapped = sources.flat_map(|source| self.index.mapped(source));
        let unsettled = mapped.filter(|&(_, state)| !self.is_settled(state));
        unsettled.map(|(lba, _)| lba).take(most).collect()
    }

    /// False: somebody holds one.
    fn seize_each(&self, lbas: &[Lba], seized: &mut Seized) -> bool {
        lbas.iter().all(|&lba| {
            let leaf = self.index.leaf(lba).expect("leaf of a page");
            let page = leaf.entry(lba).seize();
            seized.0.extend(page.map(|page| (lba, page)));
            page.is_some()
        })
    }

    /// Frames for the copies, taken at once: what the batch unmaps may let others ask for some.
    fn take_free_frames(&mut self, cx: Cx<'_>, count: usize) -> Option<Vec<FrameId>> {
        while self.frames_free.len() < count {
            if !self.evict_one(cx) {
                // There will be more when what is dirty has been written.
                self.dirty.background = self.dirty.background.max(self.dirty.len());
                return None;
            }
        }
        Some(self.frames_free.split_off(self.frames_free.len() - count))
    }

    /// Whether a page may be cloned where it is; one that has been seized is not asked any more.
    fn is_settled(&self, state: State) -> bool {
        let State::Resident(page) = state else {
            return true;
        };
        let known = &self.frames[page.frame.0 as usize];
        page.pins == 0 && !page.dirty && known.writing == 0
    }

    /// A clone takes effect; what the target held is gone as if trimmed.
    pub(super) fn clone_range(&mut self, cx: Cx<'_>, clone: Remap, copies: &mut Copies) {
        let lbas = |core: &Self, range| -> Vec<Lba> {
            core.index.mapped(range).map(|(lba, _)| lba).collect()
        };
        for lba in lbas(self, clone.target()) {
            self.unmap(cx, lba);
        }
        let mut copied = Vec::new();
        for lba in lbas(self, clone.source()) {
            let to = clone.renamed(lba);
            match copies.pages.0.remove(&lba) {
                Some(page) => {
                    let frame = copies.frames.pop().expect("one for each page");
                    self.copy_to(cx, page.frame, to, frame);
                    self.set_one_free(lba, page);
                    copied.push((to, frame));
                }
                None => self.add_name(cx, lba, to),
            }
        }
        // Pages can be had without the lock, so nobody sees one before all names are there.
        for (to, frame) in copied {
            self.add_to_group(cx, to, frame);
        }
    }

    /// The grain of a seized page gets into another frame, under its new name.
    fn copy_to(&mut self, cx: Cx<'_>, page: FrameId, to: Lba, frame: FrameId) {
        let pool = &cx.sh.pool;
        pool.arena.copy_slot(pool.frame(page), pool.frame(frame));
        let leaf = self.index.leaf_or_new(&cx.sh.map, to);
        let heat = self.frames[page.0 as usize].heat;
        let known = &mut self.frames[frame.0 as usize];
        known.usage = FrameUse::Exclusive;
        known.lba = to;
        known.leaf = Some(leaf.clone());
        known.heat = heat;
        leaf.entry(to).replace(State::InFlight(frame));
        self.mapped += 1;
        self.charge_clone(cx, to);
        count(&cx.sh.counters.clone_copies, 1);
    }

    /// A copy becomes a page of the group, as if the batch had patched all of it: the data record of the group's header
    /// comes after the clone.
    fn add_to_group(&mut self, cx: Cx<'_>, to: Lba, frame: FrameId) {
        self.make_resident(cx, frame, true);
        let leaf = self.index.leaf(to).expect("leaf of a page");
        leaf.entry(to).pin().expect("resident page");
        self.group.pages.insert(to, frame);
        self.group.pins.push((to, frame));
    }

    fn add_name(&mut self, cx: Cx<'_>, lba: Lba, to: Lba) {
        let old = self
            .index
            .leaf(lba)
            .cloned()
            .expect("leaf of a mapped grain");
        let (state, heat) = old.entry(lba).known();
        let heat = self.heat(state, heat);
        let location = self.place_of(state);
        match location {
            Location::Nowhere => return,
            Location::Media(pba) => {
                let id = self.geometry.segment_of(pba);
                self.segments.get_mut(id).live += 1;
            }
            Location::Zero(id) => self.records.zero_mut(id).live += 1,
        }
        let new = self.index.leaf_or_new(&cx.sh.map, to);
        new.put(to, location, heat, old.crc(lba));
        self.mapped += 1;
        self.charge_clone(cx, to);
        self.checkpointer.changes.note(to);
    }

    fn charge_clone(&mut self, cx: Cx<'_>, to: Lba) {
        if !cx.sh.has_bug(Bug::CloneUncharged) {
            self.accounts.charge(to);
        }
    }
}
