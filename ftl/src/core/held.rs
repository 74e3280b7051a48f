//! What grains were at a snapshot: images, marks, and what has not changed since. See `docs/snapshots.md`.

use super::keeper::Chained;
use super::{Core, Cx};
use crate::addr::{Lba, LbaRange};
use crate::map::State;
use crate::snapshot::{Slot, imaged};

/// Grains that are counted under the lock in one go.
const COUNTED_MAX: u64 = 1 << 14;

/// What a grain was at a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// What this grain is.
    Grain(Lba),
    /// Nothing: zeros.
    Zeros,
    /// It can not be told before the map of this grain is in memory.
    Cold(Lba),
}

impl Core {
    fn since(&self, slot: Slot) -> &[Chained] {
        let chain = &self.keeper.chain;
        match chain.iter().position(|c| c.slot == slot) {
            Some(at) => &chain[at..],
            None => &[],
        }
    }

    /// What a grain was at a snapshot.
    pub(crate) fn held(&self, cx: Cx<'_>, slot: Slot, lba: Lba) -> Held {
        for of in self.since(slot) {
            let image = of.slot.image(lba);
            if self.cold.cold_unit(image).is_some() {
                return Held::Cold(image);
            }
            if cx.sh.map.state(image) != State::UNMAPPED {
                return Held::Grain(image);
            }
            if of.marks.covering(lba).is_some() {
                return Held::Zeros;
            }
        }
        match self.cold.cold_unit(lba) {
            Some(_) => Held::Cold(lba),
            None => Held::Grain(lba),
        }
    }

    /// Whether a snapshot has something of its own for a grain.
    pub(crate) fn has_own(&self, cx: Cx<'_>, slot: Slot, lba: Lba) -> bool {
        let of = self.keeper.chain.iter().find(|c| c.slot == slot);
        of.is_some_and(|c| {
            let image = c.slot.image(lba);
            cx.sh.map.state(image) != State::UNMAPPED || c.marks.covering(lba).is_some()
        })
    }

    /// First grain of a range that was mapped at a snapshot. The map of the range and its images must be in memory.
    pub(crate) fn next_held(&self, cx: Cx<'_>, slot: Slot, range: LbaRange) -> Option<Lba> {
        let chain = self.since(slot);
        let end = range.end();
        let mut from = range.start;
        while from < end {
            let rest = LbaRange::new(from, end.0 - from.0);
            let images = chain.iter().filter_map(|c| {
                let next = self.index.mapped(c.slot.images(rest)).next();
                next.map(|(image, _)| imaged(image))
            });
            let image = images.min();
            // What a mark covers is zeros, or has its image.
            let mut next = rest;
            let user = loop {
                let found = self.next_mapped(cx, next);
                let mark = found.and_then(|lba| {
                    let marks = chain.iter().filter_map(|c| c.marks.covering(lba));
                    marks.map(|mark| mark.end()).max()
                });
                match mark {
                    Some(behind) if behind < end => next = LbaRange::new(behind, end.0 - behind.0),
                    Some(_) => break None,
                    None => break found,
                }
            };
            let found = match (image, user) {
                (Some(a), Some(b)) => a.min(b),
                (Some(one), None) | (None, Some(one)) => one,
                (None, None) => return None,
            };
            if matches!(self.held(cx, slot, found), Held::Grain(_)) {
                return Some(found);
            }
            from = found.offset(1);
        }
        None
    }

    /// Grains at the beginning of a range that were mapped at a snapshot, [`COUNTED_MAX`] about, and what is left of the range.
    /// The map of the range and its images must be in memory.
    pub(crate) fn held_count(&self, cx: Cx<'_>, slot: Slot, range: LbaRange) -> (u64, LbaRange) {
        let chain = self.since(slot);
        let end = range.end();
        let (mut from, mut count, mut looks) = (range.start, 0, 0);
        while from < end && count + looks < COUNTED_MAX {
            looks += 1;
            let rest = LbaRange::new(from, end.0 - from.0);
            let images = chain.iter().filter_map(|c| {
                let next = self.index.mapped(c.slot.images(rest)).next();
                next.map(|(image, _)| imaged(image))
            });
            let image = images.min().unwrap_or(end);
            if image == from {
                count += u64::from(matches!(self.held(cx, slot, from), Held::Grain(_)));
                from = from.offset(1);
                continue;
            }
            let marks = chain.iter().filter_map(|c| c.marks.at_or_behind(from));
            let (mut marked, mut begins) = (from, image);
            for mark in marks {
                match mark.start <= from {
                    true => marked = marked.max(mark.end()),
                    false => begins = begins.min(mark.start),
                }
            }
            if marked > from {
                // Nothing, up to where there is an image.
                from = marked.min(image);
                continue;
            }
            // As it is now, up to where it is not.
            let same = LbaRange::new(from, begins.0 - from.0);
            from = begins;
            for lba in self.mapped_in(cx, same) {
                count += 1;
                if count >= COUNTED_MAX {
                    from = lba.offset(1);
                    break;
                }
            }
        }
        let from = from.min(end);
        (count, LbaRange::new(from, end.0 - from.0))
    }
}
