//! Keeping what grains were at the newest snapshot, before they change. See `docs/snapshots.md`.
//!
//! Whoever wants to change a grain that is not kept is noted here and waits. All that is wanted is put into a batch of the
//! engine's own, which comes before the batches that wait; when it has taken effect, everybody asks again.

use super::pending::{Kept, PendingCommit};
use super::{Core, Cx};
use crate::addr::{Lba, LbaRange};
use crate::batch::AtomicBatch;
use crate::error::DurableError;
use crate::ids::{Port, Token};
use crate::map::{FrameId, Location, State};
use crate::page::{FrameUse, Waiter, WaiterKind};
use crate::planted::Bug;
use crate::remap::Remap;
use crate::snapshot::{MARKS_MAX, MARKS_PER_GRAIN, Marks, Slot, SnapshotChange, emit_mark};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

/// Most runs of grains that one batch keeps, and most grains of them together.
const RUNS_MAX: usize = 32;
const GRAINS_MAX: u64 = 4096;
/// Most marks that one batch makes: they lie in one grain, or two.
const MARKS_AT_ONCE: usize = 32;
/// Most runs of grains that a batch of users moves to their images instead of trimming them.
const MOVES_MAX: usize = 32;
/// Reserved grains that a mark passes over on each side.
const ZEROS_PASSED: u64 = 4096;
/// While something is kept, one grain in so many is held back for batches, but not more than so many.
const HELD_BACK_ONE_IN: u64 = 64;
const HELD_BACK_MAX: u64 = 1024;
/// A checkpoint that is due holds permissions up for so many headers of so many.
const PAUSE: (u64, u64) = (32, 256);

/// A snapshot that is there, or is being deleted.
#[derive(Debug)]
struct Chained {
    slot: Slot,
    marks: Marks,
    /// Marks that are on the media, or places for them that have been given away.
    used: u32,
    dying: bool,
}

/// Who wants something to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Wish {
    /// Who writes data.
    Page,
    /// A batch, for what it patches.
    Batch,
    /// The batch at the head, which does not ask for pages.
    Head,
}

/// What is known of snapshots, and who waits for something to be kept.
#[derive(Debug, Default)]
pub(super) struct Keeper {
    /// Oldest first.
    chain: Vec<Chained>,
    /// What is to be kept, and for whom.
    wanted: BTreeMap<Lba, Wish>,
    waiters: Vec<Waiter>,
    /// A batch of ours is in the queue.
    busy: bool,
    /// There was no space for much together: one by one.
    single: bool,
    /// Frames that were held when the newest snapshot came into being, and their lives.
    doubtful: Vec<(FrameId, u32)>,
    /// Shared grains that are to be kept before it is there.
    shared: Vec<Lba>,
    makers: Vec<(Port, Token)>,
}

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

impl Keeper {
    /// What is kept for: the newest snapshot that is not being deleted.
    fn target(&self) -> Option<usize> {
        self.chain.iter().rposition(|c| !c.dying)
    }

    /// Whether anything has to be kept.
    pub(super) fn is_on(&self) -> bool {
        self.target().is_some()
    }

    /// The newest one, and those behind it that are being deleted: what one of them has is kept.
    fn keeping(&self) -> &[Chained] {
        match self.target() {
            Some(first) => &self.chain[first..],
            None => &[],
        }
    }

    fn of(&mut self, slot: Slot) -> Option<&mut Chained> {
        self.chain.iter_mut().find(|c| c.slot == slot)
    }

    fn want(&mut self, lba: Lba, wish: Wish) {
        let known = self.wanted.entry(lba).or_insert(wish);
        *known = wish.max(*known);
    }

    /// Whether somebody has to say when a page is put.
    pub(super) fn awaits_pins(&self) -> bool {
        !self.doubtful.is_empty()
    }

    fn is_doubtful(&self, frame: FrameId) -> bool {
        self.doubtful.iter().any(|&(f, _)| f == frame)
    }
}

impl Core {
    /// A range, and those of its images that say what of it is kept.
    pub(super) fn with_images(&self, range: LbaRange) -> Vec<LbaRange> {
        let users = of_users(range);
        let keeping = self.keeper.keeping().iter();
        let images = keeping.map(|c| c.slot.images(users));
        images.filter(|r| r.count > 0).chain([range]).collect()
    }

    /// Whether a change of this grain is permitted.
    pub(super) fn may_change(&self, cx: Cx<'_>, lba: Lba) -> bool {
        lba >= Lba::END || !self.keeper.is_on() || self.is_kept(cx, lba)
    }

    fn is_kept(&self, cx: Cx<'_>, lba: Lba) -> bool {
        let has = |c: &Chained| {
            let image = c.slot.image(lba);
            c.marks.covering(lba).is_some()
                || self.cold.cold_unit(image).is_none() && cx.sh.map.state(image) != State::UNMAPPED
        };
        self.keeper.keeping().iter().any(has)
    }

    /// A grain is to be kept.
    pub(super) fn note_unkept(&mut self, lba: Lba) {
        self.keeper.want(lba, Wish::Page);
    }

    /// Grains that nobody gets for data while something is kept: batches may need them for the metadata that they patch, to
    /// delete something, for example.
    pub(super) fn held_back(&self) -> u64 {
        match self.keeper.is_on() {
            true => (self.geometry.capacity_grains / HELD_BACK_ONE_IN).min(HELD_BACK_MAX),
            false => 0,
        }
    }

    /// Whoever asks waits until the grain is kept.
    pub(super) fn wait_for_keeping(&mut self, waiter: Waiter) {
        let wish = match waiter.kind {
            WaiterKind::Commit => Wish::Batch,
            WaiterKind::Get { .. } => Wish::Page,
        };
        self.keeper.want(waiter.lba, wish);
        self.keeper.waiters.push(waiter);
    }

    /// Everybody who waits for permission asks again, because the answer may be another now.
    pub(super) fn retry_keep_waiters(&mut self, cx: Cx<'_>) {
        self.keeper.wanted.clear();
        for waiter in std::mem::take(&mut self.keeper.waiters) {
            self.ask_again(cx, waiter);
        }
    }

    /// A snapshot's beginning or end takes effect.
    pub(super) fn change_snapshots(&mut self, cx: Cx<'_>, change: SnapshotChange) {
        let chain = &mut self.keeper.chain;
        match change {
            SnapshotChange::Make(slot) => {
                chain.push(Chained {
                    slot,
                    marks: Marks::default(),
                    used: 0,
                    dying: false,
                });
                self.begin_keeping(cx);
            }
            SnapshotChange::Delete(slot) => {
                if let Some(of) = self.keeper.of(slot) {
                    of.dying = true;
                }
                self.retry_keep_waiters(cx);
            }
            SnapshotChange::Forget(slot) => {
                if let Some(at) = chain.iter().position(|c| c.slot == slot) {
                    let gone = chain.remove(at);
                    if at > 0 && !cx.sh.has_bug(Bug::SnapshotMarksForgotten) {
                        chain[at - 1].marks.merge(&gone.marks);
                    }
                }
            }
        }
        let on = self.keeper.is_on();
        cx.sh.keeping.store(on, Ordering::SeqCst);
    }

    /// What was found on the media, oldest first: slot, marks, places given to marks, and whether it is being deleted.
    pub(crate) fn set_snapshots(&mut self, cx: Cx<'_>, found: Vec<(Slot, Marks, u32, bool)>) {
        let chained = found.into_iter().map(|(slot, marks, used, dying)| Chained {
            slot,
            marks,
            used,
            dying,
        });
        self.keeper.chain = chained.collect();
        if self.keeper.is_on() {
            self.begin_keeping(cx);
        } else {
            cx.sh.keeping.store(false, Ordering::SeqCst);
        }
    }

    /// From now on there is something to keep: notes who may change pages without having asked.
    fn begin_keeping(&mut self, cx: Cx<'_>) {
        // Before looking: whoever pins a page from now on without the lock gives it back.
        cx.sh.keeping.store(true, Ordering::SeqCst);
        if !cx.sh.has_bug(Bug::SnapshotHoldersIgnored) {
            let held = (0..self.frames.len() as u32).map(FrameId);
            let held = held.map(|frame| (frame, self.frames[frame.0 as usize].life));
            let held: Vec<(FrameId, u32)> =
                held.filter(|&(f, life)| self.is_held(f, life)).collect();
            self.keeper.doubtful = held;
        }
        if self.keeper.awaits_pins() {
            cx.sh.frames_wanted.store(true, Ordering::SeqCst);
            self.settle_doubts();
        }
        self.keeper.shared = self.sharing.grains().collect();
        for lba in self.keeper.shared.clone() {
            self.keeper.want(lba, Wish::Batch);
        }
    }

    /// Whether somebody holds what is in a frame, or fills it.
    fn is_held(&self, frame: FrameId, life: u32) -> bool {
        let known = &self.frames[frame.0 as usize];
        if known.life != life {
            return false;
        }
        match known.usage {
            FrameUse::Exclusive => true,
            FrameUse::Resident => {
                let state = known.leaf().entry(known.lba).state();
                matches!(state, State::Resident(page) if page.pins > 0)
            }
            FrameUse::Free | FrameUse::Reading | FrameUse::Orphan => false,
        }
    }

    fn settle_doubts(&mut self) {
        let mut doubtful = std::mem::take(&mut self.keeper.doubtful);
        doubtful.retain(|&(frame, life)| self.is_held(frame, life));
        self.keeper.doubtful = doubtful;
    }

    /// The maker of a snapshot is answered when all is as the snapshot says it is.
    pub(super) fn await_makers(&mut self, port: Port, token: Token) -> bool {
        let waits = self.keeper.awaits_pins() || !self.keeper.shared.is_empty();
        if waits {
            self.keeper.makers.push((port, token));
            self.group.wanted = !self.group.is_empty();
        }
        waits
    }

    /// Those who wait for a snapshot and will not learn more.
    pub(super) fn take_makers(&mut self) -> Vec<(Port, Token)> {
        std::mem::take(&mut self.keeper.makers)
    }

    /// Puts what is wanted into a batch that comes next. True if there is one.
    pub(super) fn run_keeper(&mut self, cx: Cx<'_>) -> bool {
        if self.keeper.awaits_pins() {
            self.settle_doubts();
        }
        if !self.keeper.shared.is_empty() {
            let mut shared = std::mem::take(&mut self.keeper.shared);
            shared.retain(|&lba| !self.may_change(cx, lba) && self.sharing.frame_of(lba).is_some());
            self.keeper.shared = shared;
        }
        let is_made = !self.keeper.awaits_pins() && self.keeper.shared.is_empty();
        if is_made && !self.keeper.makers.is_empty() {
            for (port, token) in self.take_makers() {
                self.answer_with_group(port, token);
            }
        }
        if self.keeper.wanted.is_empty() || self.keeper.busy {
            return false;
        }
        if self.refusal().is_some() || !self.keeper.is_on() {
            self.retry_keep_waiters(cx);
            return false;
        }
        if self.is_checkpoint_waiting(cx, PAUSE) {
            // What it waits for may not be in a hurry.
            let hurries = !self.group.is_empty() && !self.group.wanted;
            self.group.wanted |= hurries;
            return hurries;
        }
        self.keep(cx)
    }

    fn keep(&mut self, cx: Cx<'_>) -> bool {
        let target = self.keeper.target().expect("something is kept for");
        let slot = self.keeper.chain[target].slot;
        // What batches want comes first, and by itself: it may use what is held back.
        let wishes = self.keeper.wanted.values();
        let of_batches = wishes.into_iter().any(|&wish| wish > Wish::Page);
        let wanted = self.keeper.wanted.iter();
        let wanted = wanted.filter(|&(_, &wish)| (wish > Wish::Page) == of_batches);
        let wanted: Vec<Lba> = wanted.map(|(&lba, _)| lba).collect();
        let most = if self.keeper.single { 1 } else { GRAINS_MAX };
        let mut kept = Kept {
            slot,
            lbas: Vec::new(),
            marks: Marks::default(),
            of_batches,
        };
        let mut batch = AtomicBatch::new();
        let (mut grains, mut marks) = (0, Vec::new());
        for lba in wanted {
            if grains >= most || batch.clones.len() > RUNS_MAX || marks.len() >= MARKS_AT_ONCE {
                break;
            }
            if kept.marks.covering(lba).is_some() {
                kept.lbas.push(lba);
                continue;
            }
            if !self.is_known(cx, lba) {
                continue;
            }
            if self.is_kept(cx, lba) {
                kept.lbas.push(lba);
                continue;
            }
            let state = cx.sh.map.state(lba);
            let frame = match state {
                State::Away(Location::Nowhere | Location::Zero(_)) => {
                    let range = self.nothing_around(lba);
                    kept.marks.add(range);
                    marks.push(range);
                    kept.lbas.push(lba);
                    grains += 1;
                    continue;
                }
                State::Away(Location::Media(_)) => None,
                State::InFlight(frame) => Some(frame),
                State::Resident(page) => Some(page.frame),
            };
            if frame.is_some_and(|frame| self.keeper.is_doubtful(frame)) {
                continue;
            }
            let image = slot.image(lba);
            let is_full = batch.clones.len() == RUNS_MAX;
            match batch.clones.last_mut() {
                Some(run) if run.source().end() == lba => run.count += 1,
                _ if is_full => break,
                _ => {
                    batch.clone_range(lba, image, 1);
                }
            }
            kept.lbas.push(lba);
            grains += 1;
        }
        if kept.lbas.is_empty() {
            return false;
        }
        for range in marks {
            let index = &mut self.keeper.chain[target].used;
            let (lba, offset) = slot.mark(*index);
            // Nobody changes that many places; what is beyond overwrites the last one, and is wrong for a crash only.
            *index = (*index + 1).min(MARKS_MAX);
            batch.patch(lba, offset, emit_mark(range));
        }
        if cx.sh.has_bug(Bug::SnapshotMarksForgotten) {
            batch.patches.clear();
        }
        self.keeper.busy = true;
        self.commits.push_front(PendingCommit::keeping(batch, kept));
        true
    }

    /// Whether the map of a grain and its images is in memory; if not, it is asked for.
    fn is_known(&mut self, cx: Cx<'_>, lba: Lba) -> bool {
        let images = self.keeper.keeping().iter().map(|c| c.slot.image(lba));
        let mut all = images.chain([lba]);
        let cold = all.find_map(|lba| self.cold.cold_unit(lba));
        if let Some(unit) = cold {
            self.loader.urge(unit);
            self.run_loader(cx);
        }
        cold.is_none()
    }

    /// The longest range around a grain, within limits, in which nothing is mapped, nor any image of it.
    fn nothing_around(&self, lba: Lba) -> LbaRange {
        let mut spaces = vec![LbaRange::ALL];
        let keeping = self.keeper.keeping().iter();
        spaces.extend(keeping.map(|c| c.slot.images(LbaRange::ALL)));
        let (mut start, mut end) = (Lba(0), Lba::END);
        for space in spaces {
            let at = space.start.offset(lba.0);
            // What is not in memory may be anything.
            let warm = self.cold.warm_around(at);
            start = start.max(Lba(warm.start.0.saturating_sub(space.start.0)));
            end = end.min(Lba(warm.end().0.min(space.end().0) - space.start.0));
            let is_image = space.start.0 > 0;
            let mut passed = 0;
            let mut is_something = |state: State| {
                passed += 1;
                let is_zero = !is_image && matches!(state, State::Away(Location::Zero(_)));
                !is_zero || passed > ZEROS_PASSED
            };
            let above = LbaRange::new(at.offset(1), space.end().0 - at.0 - 1);
            let next = self.index.mapped(above).find(|&(_, s)| is_something(s));
            if let Some((next, _)) = next {
                end = end.min(Lba(next.0 - space.start.0));
            }
            passed = 0;
            let mut is_something = |state: State| {
                passed += 1;
                let is_zero = !is_image && matches!(state, State::Away(Location::Zero(_)));
                !is_zero || passed > ZEROS_PASSED
            };
            let below = LbaRange::new(space.start, at.0 - space.start.0);
            let before = self
                .index
                .mapped_back(below)
                .find(|&(_, s)| is_something(s));
            if let Some((before, _)) = before {
                start = start.max(Lba(before.0 + 1 - space.start.0));
            }
        }
        LbaRange::new(start, end.0 - start.0)
    }

    /// A batch of ours has taken effect.
    pub(super) fn kept(&mut self, cx: Cx<'_>, kept: &Kept) {
        let keeper = &mut self.keeper;
        keeper.busy = false;
        keeper.single = false;
        if let Some(of) = keeper.of(kept.slot) {
            of.marks.merge(&kept.marks);
        }
        self.kept_or_not(cx, kept);
    }

    fn kept_or_not(&mut self, cx: Cx<'_>, kept: &Kept) {
        for lba in &kept.lbas {
            self.keeper.wanted.remove(lba);
        }
        let waiters = std::mem::take(&mut self.keeper.waiters);
        let (done, rest) = waiters
            .into_iter()
            .partition(|w| !self.keeper.wanted.contains_key(&w.lba));
        self.keeper.waiters = rest;
        let done: Vec<Waiter> = done;
        for waiter in done {
            self.ask_again(cx, waiter);
        }
    }

    /// A batch of ours could not take effect.
    pub(super) fn not_kept(&mut self, cx: Cx<'_>, kept: &Kept, error: DurableError) {
        self.keeper.busy = false;
        if kept.lbas.len() > 1 && error == DurableError::NoSpace && !self.keeper.single {
            // For some of it there may be.
            self.keeper.single = true;
            return;
        }
        self.keeper.single = false;
        let refused = kept.lbas.iter();
        let for_head = refused.filter_map(|lba| self.keeper.wanted.get(lba));
        if for_head.copied().any(|wish| wish == Wish::Head)
            && let Some(head) = self.commits.front_mut()
        {
            head.failed.get_or_insert(error);
        }
        let refused = self
            .keeper
            .waiters
            .extract_if(.., |w| kept.lbas.contains(&w.lba));
        let refused: Vec<Waiter> = refused.collect();
        for lba in &kept.lbas {
            self.keeper.wanted.remove(lba);
        }
        for waiter in refused {
            self.refuse(cx, waiter, get_error(error));
        }
    }

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
        let (state, heat) = leaf.entry(lba).known();
        let heat = self.heat(state, heat);
        let location = match leaf.entry(lba).replace(State::UNMAPPED) {
            State::Away(location) => location,
            State::InFlight(frame) => {
                self.ends_as_page(cx, frame);
                let known = &mut self.frames[frame.0 as usize];
                known.usage = FrameUse::Orphan;
                std::mem::replace(&mut known.media, Location::Nowhere)
            }
            State::Resident(page) => self.orphan(cx, lba, page),
        };
        assert!(matches!(location, Location::Media(_)), "{lba} is settled");
        let to = self.index.leaf_or_new(&cx.sh.map, image);
        to.set_crc(image, leaf.crc(lba));
        to.entry(image).settle(location, heat);
        self.accounts.credit(lba);
        self.placement.forget(lba);
        self.checkpointer.changes.note(lba);
        self.checkpointer.changes.note(image);
        self.index.prune(&cx.sh.map, lba);
    }

    /// A grain for marks of a slot in which there are none. None: they are all used up.
    pub(crate) fn give_mark_grain(&mut self, slot: Slot) -> Option<Lba> {
        let of = self.keeper.of(slot)?;
        let first = of.used.next_multiple_of(MARKS_PER_GRAIN);
        let used = first + MARKS_PER_GRAIN;
        if used > MARKS_MAX {
            return None;
        }
        of.used = used;
        Some(slot.mark(first).0)
    }

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
                next.map(|(image, _)| crate::snapshot::imaged(image))
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
}

/// What of a range users can address: images do not have images.
fn of_users(range: LbaRange) -> LbaRange {
    let end = range.end().min(Lba::END);
    LbaRange::new(range.start, end.0.saturating_sub(range.start.0))
}

/// The same failure in the words of a page.
fn get_error(error: DurableError) -> crate::error::GetError {
    use crate::error::GetError;
    match error {
        DurableError::NoSpace => GetError::NoSpace,
        DurableError::Quota => GetError::Quota,
        DurableError::Damaged { lba } => GetError::Damaged { lba },
        DurableError::Media { lba, error } => GetError::Media { lba, error },
        DurableError::Lost { lba } => GetError::Damaged { lba },
        DurableError::Unreadable { .. } => GetError::NoSpace,
        DurableError::Failed(error) => GetError::Failed(error),
        DurableError::Shutdown => GetError::Shutdown,
    }
}
