//! Remaps taking effect: every grain of a range changes its name, wherever it is.
//!
//! All of it happens under the lock in one go. A page moves with its frame: holders know a page by its LBA, so nobody
//! may hold one of the source; whoever looks for one while it moves waits for the lock. What knows pages by frame
//! (copies in flight, dirty marks) needs nothing, what knows them by LBA is renamed.

use super::{Core, Cx};
use crate::addr::Lba;
use crate::map::{Location, Resident, State};
use crate::remap::Remap;
use std::collections::HashMap;
use std::sync::atomic::Ordering;

/// Pages that nobody can pin for the moment.
#[derive(Debug, Default)]
pub(super) struct Seized(pub(super) HashMap<Lba, Resident>);

impl Core {
    /// Seizes the pages of what the batch at the head moves. None: somebody holds one, or fills one; the batch is
    /// looked at again when that ends.
    pub(super) fn seize_pages(&mut self, cx: Cx<'_>, remaps: &[Remap]) -> Option<Seized> {
        let mut seized = Seized::default();
        if remaps.is_empty() {
            return Some(seized);
        }
        // Before looking: an unpin from now on says so.
        self.pins_awaited = true;
        cx.sh.frames_wanted.store(true, Ordering::SeqCst);
        for remap in remaps {
            for (lba, state) in self.index.mapped(remap.source()) {
                let leaf = self.index.leaf(lba).expect("leaf of a mapped grain");
                match state {
                    State::Away(_) => continue,
                    State::Resident(_) => {
                        if let Some(page) = leaf.entry(lba).seize() {
                            seized.0.insert(lba, page);
                            continue;
                        }
                    }
                    State::InFlight(_) => {}
                }
                self.set_free(seized);
                return None;
            }
        }
        self.pins_awaited = false;
        Some(seized)
    }

    pub(super) fn set_free(&self, seized: Seized) {
        for (lba, page) in seized.0 {
            self.set_one_free(lba, page);
        }
    }

    pub(super) fn set_one_free(&self, lba: Lba, page: Resident) {
        let leaf = self.index.leaf(lba).expect("leaf of a page");
        leaf.entry(lba).replace(State::Resident(page));
    }

    /// A remap takes effect; what the target held is gone as if trimmed.
    pub(super) fn remap(&mut self, cx: Cx<'_>, remap: Remap, seized: &Seized) {
        let lbas = |core: &Self, range| -> Vec<Lba> {
            core.index.mapped(range).map(|(lba, _)| lba).collect()
        };
        for lba in lbas(self, remap.target()) {
            self.unmap(cx, lba);
        }
        let moved = lbas(self, remap.source());
        for &lba in &moved {
            self.rename(cx, lba, remap.renamed(lba), seized);
        }
        self.dirty.rename(remap);
        self.formings.rename(remap);
        let mut last = None;
        for &lba in &moved {
            let leaf = lba.0 / crate::map::LEAF_GRAINS;
            if last.replace(leaf) != Some(leaf) {
                self.index.prune(&cx.sh.map, lba);
            }
        }
    }

    fn rename(&mut self, cx: Cx<'_>, lba: Lba, to: Lba, seized: &Seized) {
        let old = self
            .index
            .leaf(lba)
            .cloned()
            .expect("leaf of a mapped grain");
        let new = self.index.leaf_or_new(&cx.sh.map, to);
        let crc = old.crc(lba);
        let heat = old.entry(lba).heat();
        let location = match old.entry(lba).replace(State::UNMAPPED) {
            State::Away(location) => {
                new.put(to, location, heat, crc);
                location
            }
            State::InFlight(frame) => {
                let page = seized.0[&lba];
                assert_eq!(page.frame, frame, "a seized page");
                let known = &mut self.frames[frame.0 as usize];
                known.lba = to;
                known.leaf = Some(new.clone());
                let location = known.media;
                new.entry(to).replace(State::Resident(page));
                new.set_crc(to, crc);
                if page.dirty {
                    self.dirty.remove(lba);
                    self.dirty.insert(to);
                }
                location
            }
            State::Resident(_) => unreachable!("pages have been seized"),
        };
        self.accounts.credit(lba);
        self.accounts.charge(to);
        self.placement.forget(lba);
        if location != Location::Nowhere {
            self.checkpointer.changes.note(lba);
            self.checkpointer.changes.note(to);
        }
    }
}
