//! Clones taking effect: every grain of a range gets one more name.
//!
//! The new name leads to the place that the grain has in the log, so what is in memory only has to get there first: the
//! batch waits until every page of the source is clean and on the media (whoever wants the new name reads it there),
//! and is held by nobody (a copy that was made while a holder wrote is no version of the grain). It is enough that this is so at the moment of the look: whatever is put
//! later is a later version of the source, and only of the source. A grain that is being read or overwritten has its
//! place, too.

use super::{Core, Cx};
use crate::addr::Lba;
use crate::map::{Location, State};
use crate::planted::Bug;
use crate::remap::Remap;
use std::sync::atomic::Ordering;

impl Core {
    /// Whether everything in the sources of these clones of the batch at the head is on the media; if not, it is made
    /// urgent, and the batch is looked at again when that is out or a page is put.
    pub(super) fn are_settled(&mut self, cx: Cx<'_>, clones: &[Remap]) -> bool {
        if clones.is_empty() || cx.sh.has_bug(Bug::CloneBeforePage) {
            return true;
        }
        // Before looking: an unpin from now on says so.
        self.pins_awaited = true;
        cx.sh.frames_wanted.store(true, Ordering::SeqCst);
        let sources = clones.iter().map(|clone| clone.source());
        let states = sources.flat_map(|source| self.index.mapped(source));
        let are_settled = { states }.all(|(_, state)| self.is_settled(state));
        if are_settled {
            self.pins_awaited = false;
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

    fn is_settled(&self, state: State) -> bool {
        let State::Resident(page) = state else {
            return true;
        };
        let known = &self.frames[page.frame.0 as usize];
        page.pins == 0 && !page.dirty && known.writing == 0
    }

    /// A clone takes effect; what the target held is gone as if trimmed.
    pub(super) fn clone_range(&mut self, cx: Cx<'_>, clone: Remap) {
        let lbas = |core: &Self, range| -> Vec<Lba> {
            core.index.mapped(range).map(|(lba, _)| lba).collect()
        };
        for lba in lbas(self, clone.target()) {
            self.unmap(cx, lba);
        }
        for lba in lbas(self, clone.source()) {
            self.add_name(cx, lba, clone.renamed(lba));
        }
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
        new.set_crc(to, old.crc(lba));
        new.entry(to).settle(location, heat);
        self.mapped += 1;
        self.checkpointer.changes.note(to);
    }
}
