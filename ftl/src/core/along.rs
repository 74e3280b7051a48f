//! What has been put goes along with a batch: one device write and one flush instead of two of each.
//!
//! The pages that are dirty now become pages of the batch of which it changes nothing. So they travel in the header of its
//! group, which counts as a whole or not at all, and what was put before and is on its way already has a lower number:
//! whoever finds the batch after a crash finds all of it. What is put to these pages before the header is put together
//! goes along, too.
//!
//! Batches take effect in order, so none can take these pages away before this one, if it is the next.
//!
//! A page of a write-out that forms is not dirty, and its header may get a higher number than the group's. In an array a batch
//! does not vouch for pages that a device takes with it, as a sync does. Either is left to a sync.

use super::{Core, Cx};
use crate::addr::{Lba, LbaRange};
use crate::batch::AtomicBatch;
use crate::planted::Bug;

impl Core {
    /// Lets the dirty pages of a range join a batch of at most `grains_max`; false if they can not.
    pub(crate) fn take_along(
        &mut self,
        cx: Cx<'_>,
        range: LbaRange,
        batch: &mut AtomicBatch,
        grains_max: usize,
    ) -> bool {
        self.drain_inbox(cx);
        let is_next = self.commits.is_empty();
        if !is_next || self.geometry.places.count() > 1 || self.formings.have_page_in(range) {
            return false;
        }
        let room = grains_max.saturating_sub(batch.patches.len());
        let room = room.min(AtomicBatch::ALONG_MAX);
        if batch
            .renamed()
            .any(|r| r.source().meets(range) || r.target().meets(range))
        {
            return false;
        }
        // What the batch forgets has nothing to go along.
        let stays = |lba: &Lba| !batch.trims.iter().any(|trim| trim.contains(*lba));
        let dirty = self.dirty.within(range).filter(stays);
        let dirty: Vec<Lba> = dirty.take(room + 1).collect();
        if dirty.len() > room {
            return false;
        }
        if cx.sh.has_bug(Bug::AlongForgotten) {
            return true;
        }
        let unchanged = dirty.into_iter().map(|lba| (lba, 0, Vec::new()));
        batch.patches.extend(unchanged);
        true
    }
}
