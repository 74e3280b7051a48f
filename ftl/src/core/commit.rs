//! Atomic batches: waiting for their pages, taking effect, and the group that carries them to the media.
//!
//! Batches take effect in the order of submission. The one at the head gets its pages (reading what is missing),
//! then takes effect as a whole under the lock and joins the *forming group*. The group travels in one header, so
//! all of it survives a crash or none; it is the first thing the next write-out takes. Batches that come before that
//! join it, and pages they share are written once. The group holds pins on its pages until they have been copied.

use super::account::Verdict;
use super::clone::Copies;
use super::group::GroupRecord;
use super::pages::Acquired;
use super::pending::{Got, PendingCommit, Wanted};
use super::remap::Seized;
use super::sync::DurableWaiter;
use super::{Core, Cx};
use crate::addr::{Lba, LbaRange};
use crate::batch::AtomicBatch;
use crate::crash_point::crash_point;
use crate::error::DurableError;
use crate::format::RECORDS_MAX;
use crate::ids::{Intent, Port, Token};
use crate::map::{FrameId, Location, State, ZeroId};
use crate::page::WaiterKind;
use crate::planted::Bug;
use crate::remap::{Remap, Renaming};
use crate::snapshot::SnapshotChange;
use crate::stats::count;
use std::collections::{BTreeMap, BTreeSet};

impl Core {
    /// Queues a batch; it takes effect at once if nothing is in the way.
    pub(crate) fn commit(&mut self, cx: Cx<'_>, commit: PendingCommit) {
        self.commits.push_back(commit);
        self.pump(cx);
    }

    /// Lets the batch at the head ask for `lba` again.
    pub(super) fn commit_may_ask_again(&mut self, lba: Lba) {
        self.commit_asking_for(lba);
    }

    /// The batch that has asked for `lba`, which it may do again: the one at the head, or the one behind it if that is the
    /// engine's own.
    fn commit_asking_for(&mut self, lba: Lba) -> Option<&mut PendingCommit> {
        for commit in self.commits.iter_mut().take(2) {
            let asked = |w: &&mut Wanted| w.lba == lba && w.got == Got::Asked;
            if let Some(wanted) = commit.wanted.iter_mut().find(asked) {
                wanted.got = Got::Nothing;
                return Some(commit);
            }
        }
        None
    }

    /// A page of the batch at the head can not be had.
    pub(super) fn commit_page_failed(&mut self, lba: Lba, error: DurableError) {
        if let Some(commit) = self.commit_asking_for(lba) {
            commit.failed = Some(error);
        }
    }

    /// Brings queued batches into effect as far as possible.
    pub(super) fn run_commits(&mut self, cx: Cx<'_>) -> bool {
        let mut progress = false;
        self.pins_awaited = false;
        // The checkpoint that records a loss waits for the group, and that may have to wait for the space that is there when
        // the loss has been recorded.
        if !self.loss.is_whole() && self.refusal_of_commit().is_none() {
            return false;
        }
        while !self.commits.is_empty() {
            let mut moves = Vec::new();
            if let Some(refused) = self.refusal_of_commit() {
                self.commits[0].failed = Some(refused);
            } else {
                self.want_pages(cx);
            }
            let head = &self.commits[0];
            if head.failed.is_none() {
                let missing = |w: &Wanted| matches!(w.got, Got::Nothing | Got::Asked);
                if head.wanted.iter().any(missing) {
                    break;
                }
                if !self.is_map_known(cx) {
                    break;
                }
                let Some(permitted) = self.permit(cx) else {
                    break;
                };
                moves = permitted;
                let head = &self.commits[0];
                if !self.fits_group(head, moves.len()) {
                    break;
                }
                let moved = moves.iter().map(|m| m.count).sum();
                if !self.has_space(cx, head, moved) {
                    if let Some(unit) = self.cold.first_cold(LbaRange::SPACE) {
                        // Counts are too high until all of the map has been read.
                        self.loader.urge(unit);
                        break;
                    }
                    self.commits[0].failed = Some(DurableError::NoSpace);
                } else {
                    match self.judge_batch(cx, head) {
                        Verdict::Fits => {}
                        Verdict::Exceeds => self.commits[0].failed = Some(DurableError::Quota),
                        Verdict::Unknown => {
                            let unit = self.cold.first_cold(LbaRange::SPACE);
                            self.loader
                                .urge(unit.expect("the map is not all in memory"));
                            break;
                        }
                    }
                }
            }
            let mut seized = None;
            if self.commits[0].failed.is_none() && self.commits[0].kept.is_some() {
                let clones = std::mem::take(&mut self.commits[0].batch.clones);
                let settled = self.settle_kept(cx, &clones);
                self.commits[0].batch.clones = clones;
                if !settled {
                    break;
                }
                seized = Some((Seized::default(), Copies::default()));
            } else if self.commits[0].failed.is_none() {
                let room = self.room_for_copies(&self.commits[0]);
                let batch = std::mem::take(&mut self.commits[0].batch);
                if let Some(moved) = self.seize_pages(cx, &batch.remaps) {
                    match self.settle_clones(cx, &batch.clones, room) {
                        Some(copies) => seized = Some((moved, copies)),
                        None => self.set_free(moved),
                    }
                }
                self.commits[0].batch = batch;
                if seized.is_none() {
                    break;
                }
            }
            let head = self.commits.pop_front().expect("not empty");
            match (head.failed, seized) {
                (None, Some((moved, copies))) => self.apply(cx, head, &moved, copies, &moves),
                (failed, _) => {
                    let error = failed.expect("why it did not get its pages");
                    self.release_commit(cx, &head);
                    match &head.kept {
                        Some(kept) => self.not_kept(cx, kept, error),
                        None => {
                            self.keeper.head_failed();
                            self.tell_durable(cx, head.port, head.token, Err(error));
                        }
                    }
                }
            }
            progress = true;
        }
        progress
    }

    /// Whether the map of what the batch at the head trims, zeros, moves and clones is in memory; if not, it is asked
    /// for.
    fn is_map_known(&mut self, cx: Cx<'_>) -> bool {
        if self.cold.is_warm() {
            return true;
        }
        let batch = &self.commits[0].batch;
        let moved = batch.renamed().flat_map(|r| [r.source(), r.target()]);
        let ranges = batch.trims.iter().chain(&batch.zeros).copied().chain(moved);
        let all: Vec<LbaRange> = ranges.flat_map(|r| self.with_images(r)).collect();
        let cold = all.into_iter().find_map(|r| self.cold.first_cold(r));
        if let Some(unit) = cold {
            self.loader.urge(unit);
            self.run_loader(cx);
        }
        cold.is_none()
    }

    fn refusal_of_commit(&self) -> Option<DurableError> {
        match (self.failed, self.phase.is_running()) {
            (Some(error), _) => Some(DurableError::Failed(error)),
            (None, false) => Some(DurableError::Shutdown),
            (None, true) => None,
        }
    }

    /// Asks for every page the head still lacks, all at the same time.
    fn want_pages(&mut self, cx: Cx<'_>) {
        for index in 0..self.commits[0].wanted.len() {
            let wanted = &mut self.commits[0].wanted[index];
            if wanted.got != Got::Nothing {
                continue;
            }
            // Marked before asking: the answer may come while asking.
            wanted.got = Got::Asked;
            let (lba, whole) = (wanted.lba, wanted.whole);
            let intent = if whole {
                Intent::Overwrite
            } else {
                Intent::Write
            };
            let got = match self.acquire(cx, lba, intent, WaiterKind::Commit, true) {
                Acquired::Pinned(_, frame) => Got::Pinned(frame),
                Acquired::Exclusive(frame) => Got::Exclusive(frame),
                Acquired::Pending => continue,
                Acquired::Zeros => unreachable!("zeros are for readers"),
                Acquired::Failed(_) => {
                    let failed = self
                        .failed
                        .map_or(DurableError::Shutdown, DurableError::Failed);
                    self.commits[0].failed = Some(failed);
                    Got::Nothing
                }
            };
            self.commits[0].wanted[index].got = got;
        }
    }

    /// Gives back what a batch holds that does not take effect.
    pub(super) fn release_commit(&mut self, cx: Cx<'_>, commit: &PendingCommit) {
        for wanted in &commit.wanted {
            match wanted.got {
                Got::Nothing | Got::Asked => {}
                Got::Pinned(frame) => self.unpin_internal(cx, wanted.lba, frame),
                Got::Exclusive(frame) => self.abandon(cx, frame),
            }
        }
    }

    /// Gives back a pin that the core itself holds.
    pub(super) fn unpin_internal(&mut self, cx: Cx<'_>, lba: Lba, frame: FrameId) {
        let leaf = cx.sh.map.leaf(lba).expect("leaf of a pinned page");
        let gone = leaf.entry(lba).unpin(frame, false);
        assert_ne!(
            gone,
            crate::map::Unpinned::Detached,
            "pins of the core follow trims"
        );
    }

    /// Whether the batch can join the forming group: one header must be able to carry all of it.
    /// `moves`: ranges that it moves to their images.
    fn fits_group(&self, commit: &PendingCommit, moves: usize) -> bool {
        if self.group.is_empty() {
            return true;
        }
        let new = commit.wanted.iter();
        let new = new
            .filter(|w| !self.group.pages.contains_key(&w.lba))
            .count();
        let pages = self.group.pages.len() + new;
        let batch = &commit.batch;
        let renamed = moves + batch.renamed().count();
        let ranges = batch.trims.len() + batch.zeros.len() + 2 * renamed;
        let records = self.group.slots() + ranges;
        let pages_max = self
            .batch_grains_max()
            .max(self.geometry.write_out_data_max() / 2);
        pages <= pages_max && pages + records <= RECORDS_MAX
    }

    /// Pages that may be copied for the clones of a batch: they go in the header of the group, too.
    fn room_for_copies(&self, commit: &PendingCommit) -> usize {
        let batch = &commit.batch;
        let ranges = batch.trims.len() + batch.zeros.len() + 2 * batch.renamed().count();
        let records = self.group.slots() + ranges;
        let pages = self.group.pages.len() + commit.wanted.len();
        self.batch_grains_max()
            .min(RECORDS_MAX.saturating_sub(records))
            .saturating_sub(pages)
    }

    /// Most grains one batch may patch here: one write-out must carry it, and the pool must hold it with ease.
    pub(crate) fn batch_grains_max(&self) -> usize {
        AtomicBatch::GRAINS_MAX
            .min(self.geometry.write_out_data_max())
            .min(self.pool_frames / 4)
    }

    /// Whether the volume can hold what the batch leaves behind. What it frees itself counts, apart from `moved` grains
    /// that get the names of their images.
    fn has_space(&self, cx: Cx<'_>, commit: &PendingCommit, moved: u64) -> bool {
        let patched: BTreeSet<Lba> = commit.wanted.iter().map(|w| w.lba).collect();
        let is_mapped = |lba| match cx.sh.map.state(lba) {
            State::Resident(_) => true,
            State::InFlight(frame) => self.frames[frame.0 as usize].media != Location::Nowhere,
            // What is lost takes space when it is written again.
            State::Away(Location::Nowhere) => false,
            State::Away(location) => !self.is_lost_at(location),
        };
        let new_patches = patched.iter().filter(|&&lba| !is_mapped(lba)).count() as u64;
        let trims = merged(&commit.batch.trims);
        let zeros = merged(&commit.batch.zeros);
        let clones = &commit.batch.clones;
        let makes_snapshot = matches!(commit.change, Some(SnapshotChange::Make(_)));
        if new_patches == 0 && zeros.is_empty() && clones.is_empty() && !makes_snapshot {
            return true;
        }
        let in_trims = |lba: Lba| trims.iter().any(|t| t.contains(lba));
        let goes = |lba: Lba| in_trims(lba) && !patched.contains(&lba);
        let mapped_in = |range| {
            let found = self.index.mapped(range).map(|(lba, _)| lba);
            found.filter(|&lba| is_mapped(lba))
        };
        let freed: u64 = trims
            .iter()
            .map(|&t| mapped_in(t).filter(|&lba| goes(lba)).count() as u64)
            .sum();
        let targets = commit.batch.renamed().map(|r| r.target());
        let freed = freed + targets.map(|t| mapped_in(t).count() as u64).sum::<u64>();
        // Each name of a grain counts, so that whoever writes to one of them later finds space for it.
        let cloned = clones.iter().map(|c| mapped_in(c.source()).count() as u64);
        let mut reserved: u64 = cloned.sum::<u64>() + moved;
        for &range in &zeros {
            let stay = mapped_in(range).filter(|&lba| !goes(lba)).count() as u64;
            let patched_new = patched
                .iter()
                .filter(|&&lba| range.contains(lba) && !is_mapped(lba))
                .count() as u64;
            reserved += range.count - stay - patched_new;
        }
        if makes_snapshot {
            // All of them are kept before it is there, and whoever makes it waits for that.
            reserved += self.sharing.grains().count() as u64;
        }
        let held_back = match &commit.kept {
            // Nobody could delete anything.
            None if makes_snapshot => self.held_back_for_snapshots(),
            None if new_patches + reserved <= freed => return true,
            None => self.held_back(),
            Some(kept) if kept.of_batches => 0,
            Some(_) => self.held_back(),
        };
        self.mapped_now() + new_patches + reserved + held_back <= self.capacity_now() + freed
    }

    /// The batch takes effect.
    fn apply(
        &mut self,
        cx: Cx<'_>,
        commit: PendingCommit,
        seized: &Seized,
        mut copies: Copies,
        moves: &[Remap],
    ) {
        let PendingCommit {
            port,
            token,
            batch,
            wanted,
            relaxed,
            kept,
            change,
            ..
        } = commit;
        count(&cx.sh.counters.commits, 1);
        let arena = &cx.sh.pool.arena;
        let mut frames = BTreeMap::new();
        for page in &wanted {
            match page.got {
                Got::Pinned(frame) | Got::Exclusive(frame) => frames.insert(page.lba, frame),
                Got::Nothing | Got::Asked => unreachable!("all pages are there"),
            };
        }
        for (lba, offset, bytes) in &batch.patches {
            let slot = cx.sh.pool.frame(frames[lba]);
            arena.copy_in(slot, usize::from(*offset), bytes);
        }
        for page in &wanted {
            let frame = frames[&page.lba];
            if let Got::Exclusive(_) = page.got {
                if self.frames[frame.0 as usize].media == Location::Nowhere {
                    self.mapped += 1;
                    self.accounts.charge(page.lba);
                }
                self.make_resident(cx, frame, true);
                let leaf = cx.sh.map.leaf(page.lba).expect("leaf of a resident page");
                leaf.entry(page.lba).pin().expect("resident page");
            }
            if self.group.pages.insert(page.lba, frame).is_none() {
                self.group.pins.push((page.lba, frame));
            } else {
                self.unpin_internal(cx, page.lba, frame);
            }
        }
        // Names go before others come: for a moment there seems to be nothing where there always was something.
        let renames = batch.renamed().any(|r| r.count > 0);
        if renames {
            cx.sh.moves.begin();
        }
        for &moved in moves {
            let renaming = Renaming::Remap(moved);
            self.group.records.push(GroupRecord::Rename(renaming));
            self.loss.rename(renaming);
            for n in 0..moved.count {
                self.move_to_image(cx, moved.from.offset(n), moved.to.offset(n));
            }
            count(&cx.sh.counters.grains_kept, moved.count);
            crash_point!("snapshot.moved");
        }
        for &range in batch.trims.iter().filter(|r| r.count > 0) {
            count(&cx.sh.counters.trims, 1);
            self.group.records.push(GroupRecord::Trim(range));
            let gone: Vec<Lba> = self.index.mapped(range).map(|(lba, _)| lba).collect();
            for lba in gone {
                if !frames.contains_key(&lba) {
                    self.unmap(cx, lba);
                }
            }
        }
        for &range in batch.zeros.iter().filter(|r| r.count > 0) {
            let id = self.records.add_zero(range);
            self.group.records.push(GroupRecord::Zero(id));
            self.reserve(cx, range, id);
        }
        for &remap in batch.remaps.iter().filter(|r| r.count > 0) {
            count(&cx.sh.counters.remaps, 1);
            let renaming = Renaming::Remap(remap);
            self.group.records.push(GroupRecord::Rename(renaming));
            self.loss.rename(renaming);
            self.remap(cx, remap, seized);
            crash_point!("remap.applied");
        }
        for &clone in batch.clones.iter().filter(|c| c.count > 0) {
            count(&cx.sh.counters.clones, 1);
            let renaming = Renaming::Clone(clone);
            self.group.records.push(GroupRecord::Rename(renaming));
            self.loss.rename(renaming);
            self.clone_range(cx, clone, &mut copies);
            crash_point!("clone.applied");
        }
        if renames {
            cx.sh.moves.end();
        }
        if let Some(kept) = kept {
            let cloned = batch.clones.iter().map(|c| c.count).sum();
            count(&cx.sh.counters.grains_kept, cloned);
            crash_point!("snapshot.kept");
            self.kept(cx, &kept);
            return;
        }
        if let Some(change) = change {
            self.change_snapshots(cx, change);
            crash_point!("snapshot.changed");
            if self.await_makers(port, token) {
                return;
            }
        }
        if relaxed {
            self.relax(cx);
            self.tell_durable(cx, port, token, Ok(()));
        } else {
            self.answer_with_group(port, token);
        }
    }

    /// Somebody waits for what has taken effect to be durable.
    pub(super) fn answer_with_group(&mut self, port: Port, token: Token) {
        if self.group.is_empty() {
            self.durable_waiters.push_back(DurableWaiter {
                no: self.log.last(),
                port,
                token,
                sync: None,
            });
        } else {
            self.group.waiters.push((port, token));
        }
    }

    /// Nobody waits for what has joined the group; the timer sees to it that it goes out.
    fn relax(&mut self, cx: Cx<'_>) {
        if !self.group.is_empty() {
            self.relaxed = true;
            cx.sh.arm_timer();
        }
    }

    /// Whether the forming group is to go out now. A group of relaxed batches alone gathers more of them, unless somebody
    /// waits for what it holds up.
    pub(super) fn is_group_due(&self) -> bool {
        let group = &self.group;
        if group.is_empty() {
            return false;
        }
        // What is written out may not overtake it.
        let writes = self.dirty.has_urgent() || self.dirty.background > 0;
        let holds_up = writes
            || !self.commits.is_empty()
            || !self.syncs.is_empty()
            || !self.frame_waiters.is_empty()
            || self.segments.wait_for_group() && self.is_tight();
        let is_odd = !self.phase.is_running() || !self.loss.is_whole() || self.resize.is_some();
        // A checkpoint and whoever relocates wait for names that change.
        let renames = group.renamings().next().is_some();
        !group.waiters.is_empty() || group.wanted || holds_up || is_odd || renames
    }

    /// Puts the unmapped grains of a range into the Zero state. A page that is mapped in memory only is reserved
    /// too: should it not reach the media, the reservation must.
    fn reserve(&mut self, cx: Cx<'_>, range: LbaRange, id: ZeroId) {
        for lba in (range.start.0..range.end().0).map(Lba) {
            let leaf = self.index.leaf_or_new(&cx.sh.map, lba);
            let entry = leaf.entry(lba);
            match entry.state() {
                State::Away(Location::Nowhere) => {
                    entry.replace(State::Away(Location::Zero(id)));
                    self.checkpointer.changes.note(lba);
                    self.mapped += 1;
                    self.accounts.charge(lba);
                }
                State::Resident(r) => {
                    let known = &self.frames[r.frame.0 as usize];
                    let dropped = cx.sh.has_bug(Bug::ReservationDropped);
                    if known.media != Location::Nowhere || dropped {
                        continue;
                    }
                    self.set_media(r.frame, Location::Zero(id));
                    self.checkpointer.changes.note(lba);
                }
                State::Away(_) | State::InFlight(_) => continue,
            }
            self.records.zero_mut(id).live += 1;
        }
    }
}

/// Ranges as disjoint ascending ones.
pub(super) fn merged(ranges: &[LbaRange]) -> Vec<LbaRange> {
    let mut sorted: Vec<LbaRange> = ranges.iter().copied().filter(|r| r.count > 0).collect();
    sorted.sort_by_key(|r| r.start);
    let mut out: Vec<LbaRange> = Vec::with_capacity(sorted.len());
    for range in sorted {
        match out.last_mut() {
            Some(last) if range.start <= last.end() => {
                let end = last.end().max(range.end());
                last.count = end.0 - last.start.0;
            }
            _ => out.push(range),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Overlapping, touching and empty ranges become disjoint ones, so that space is counted once (ENOSPC is exact).
    #[test]
    fn merging() {
        let r = |start, count| LbaRange::new(Lba(start), count);
        let got = merged(&[r(10, 5), r(0, 3), r(3, 2), r(12, 10), r(40, 0), r(50, 1)]);
        assert_eq!(got, [r(0, 5), r(10, 12), r(50, 1)]);
    }
}
