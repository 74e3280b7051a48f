//! Batches while there is a snapshot: what they change must have been kept, and what they trim is moved to its images instead
//! of being unmapped. See S1 and S7 of `docs/snapshots.md`.

use super::keeper::{GRAINS_MAX, Wish, of_users};
use super::{Core, Cx};
use crate::addr::{Lba, LbaRange};
use crate::map::{Location, State};
use crate::page::FrameUse;
use crate::planted::Bug;
use crate::remap::Remap;

/// Most runs of grains that a batch of users moves to their images instead of trimming them.
const MOVES_MAX: usize = 32;

impl Core {
    /// Whether the batch at the head may take effect: what it moves, unmaps or maps is kept. Of what it trims, the ranges
    /// that move to their images instead are the answer. None: something has to be kept first.
    pub(super) fn permit(&mut self, cx: Cx<'_>) -> Option<Vec<Remap>> {
        let Some(target) = self.keeper.target() else {
            return Some(Vec::new());
        };
        if self.commits[0].kept.is_some() || cx.sh.has_bug(Bug::SnapshotTrimUnkept) {
            return Some(Vec::new());
        }
        let slot = self.keeper.chain[target].slot;
        let head = &self.commits[0];
        let (mut moves, mut missing): (Vec<Remap>, Vec<Lba>) = (Vec::new(), Vec::new());
        let mut unsettled = Vec::new();
        for range in super::commit::merged(&head.batch.trims) {
            for (lba, state) in self.index.mapped(of_users(range)) {
                if head.wanted.iter().any(|w| w.lba == lba) || self.is_kept(cx, lba) {
                    continue;
                }
                let is_full = moves.len() == MOVES_MAX;
                match self.movable(state) {
                    None => continue,
                    Some(false) => unsettled.push(lba),
                    Some(true) => match moves.last_mut() {
                        Some(run) if run.source().end() == lba => run.count += 1,
                        _ if is_full => missing.push(lba),
                        _ => moves.push(Remap {
                            from: lba,
                            to: slot.image(lba),
                            count: 1,
                        }),
                    },
                }
                if (missing.len() + unsettled.len()) as u64 == GRAINS_MAX {
                    break;
                }
            }
        }
        let sources = head.batch.remaps.iter().map(|r| r.source());
        let targets: Vec<LbaRange> = head.batch.renamed().map(|r| r.target()).collect();
        for range in sources.chain(targets.iter().copied()) {
            let mapped = self.index.mapped(of_users(range)).map(|(lba, _)| lba);
            let changed = mapped.filter(|&lba| !self.is_kept(cx, lba));
            missing.extend(changed.take(GRAINS_MAX as usize));
        }
        for range in targets {
            missing.extend(self.first_unkept(cx, of_users(range)));
        }
        let is_ready = missing.is_empty() && unsettled.is_empty();
        if is_ready {
            return Some(moves);
        }
        let (urgent, forming) = self.clones_await;
        if self.dirty.reached(urgent) && self.formings.reached(forming) {
            self.drain_inbox(cx);
            for lba in unsettled {
                let range = LbaRange::new(lba, 1);
                self.clones_await = (self.dirty.urge(range), self.formings.want(range));
            }
        }
        for lba in missing {
            self.keeper.want(lba, Wish::Head);
        }
        None
    }

    /// Whether a grain in this state can get the name of its image at once. None: there is nothing to keep.
    fn movable(&self, state: State) -> Option<bool> {
        let frame = match state {
            State::Away(Location::Media(_)) => return Some(true),
            State::Away(_) => return None,
            State::InFlight(frame) => {
                let known = &self.frames[frame.0 as usize];
                let is_settled = known.usage == FrameUse::Reading;
                return Some(is_settled && !self.keeper.is_doubtful(frame));
            }
            State::Resident(page) if page.dirty => return Some(false),
            State::Resident(page) => page.frame,
        };
        let known = &self.frames[frame.0 as usize];
        let is_settled = matches!(known.media, Location::Media(_)) && known.writing == 0;
        Some(is_settled && !self.keeper.is_doubtful(frame))
    }

    /// The first grain of a range that is not kept, mapped or not.
    fn first_unkept(&self, cx: Cx<'_>, range: LbaRange) -> Option<Lba> {
        let mut lba = range.start;
        while lba < range.end() {
            let marks = self.keeper.keeping().iter();
            let mark = marks
                .filter_map(|c| c.marks.covering(lba))
                .max_by_key(|m| m.end());
            match mark {
                Some(mark) => lba = mark.end(),
                None if self.is_kept(cx, lba) => lba = lba.offset(1),
                None => return Some(lba),
            }
        }
        None
    }

    /// A grain that is trimmed gets the name of its image instead. Who holds the page keeps the old view until the put.
    pub(super) fn move_to_image(&mut self, cx: Cx<'_>, lba: Lba, image: Lba) {
        let Some(leaf) = self.index.leaf(lba).cloned() else {
            return;
        };
        let crc = leaf.crc(lba);
        let (state, heat) = leaf.known(lba);
        let heat = self.heat(state, heat);
        let location = match leaf.entry(lba).replace(State::UNMAPPED) {
            State::Away(location) => location,
            State::InFlight(frame) => {
                self.ends_as_page(cx, frame);
                self.frames[frame.0 as usize].usage = FrameUse::Orphan;
                self.set_media(frame, Location::Nowhere)
            }
            State::Resident(page) => self.orphan(cx, lba, page),
        };
        assert!(matches!(location, Location::Media(_)), "{lba} is settled");
        let to = self.index.leaf_or_new(&cx.sh.map, image);
        to.put(image, location, heat, crc);
        self.accounts.credit(lba);
        self.placement.forget(lba);
        self.checkpointer.changes.note(lba);
        self.checkpointer.changes.note(image);
        self.index.prune(&cx.sh.map, lba);
    }
}
