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
use crate::snapshot::{MARKS_MAX, MARKS_PER_GRAIN, Marks, Slot, SnapshotChange, emit_mark};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

/// Most runs of grains that one batch keeps, and most grains of them together.
const RUNS_MAX: usize = 32;
pub(super) const GRAINS_MAX: u64 = 4096;
/// Most marks that one batch makes: they lie in one grain, or two.
const MARKS_AT_ONCE: usize = 32;
/// Reserved grains that a mark passes over on each side.
const ZEROS_PASSED: u64 = 4096;
/// While something is kept, one grain in so many is held back for batches, but not more than so many.
const HELD_BACK_ONE_IN: u64 = 64;
const HELD_BACK_MAX: u64 = 1024;
/// A checkpoint that is due holds permissions up for so many headers of so many.
const PAUSE: (u64, u64) = (32, 256);

/// A snapshot that is there, or is being deleted.
#[derive(Debug)]
pub(super) struct Chained {
    pub(super) slot: Slot,
    pub(super) marks: Marks,
    /// Marks that are on the media, or places for them that have been given away.
    used: u32,
    dying: bool,
}

/// Who wants something to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Wish {
    /// Who writes data.
    Page,
    /// The batch at the head, for what it moves and trims, of which it has no pages.
    Head,
    /// A batch, for what it patches: it may use what is held back.
    Batch,
}

/// What is known of snapshots, and who waits for something to be kept.
#[derive(Debug, Default)]
pub(super) struct Keeper {
    /// Oldest first.
    pub(super) chain: Vec<Chained>,
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

impl Keeper {
    /// What is kept for: the newest snapshot that is not being deleted.
    pub(super) fn target(&self) -> Option<usize> {
        self.chain.iter().rposition(|c| !c.dying)
    }

    /// Whether anything has to be kept.
    pub(super) fn is_on(&self) -> bool {
        self.target().is_some()
    }

    /// The newest one, and those behind it that are being deleted: what one of them has is kept.
    pub(super) fn keeping(&self) -> &[Chained] {
        match self.target() {
            Some(first) => &self.chain[first..],
            None => &[],
        }
    }

    fn of(&mut self, slot: Slot) -> Option<&mut Chained> {
        self.chain.iter_mut().find(|c| c.slot == slot)
    }

    pub(super) fn want(&mut self, lba: Lba, wish: Wish) {
        let known = self.wanted.entry(lba).or_insert(wish);
        *known = wish.max(*known);
    }

    /// The batch at the head does not take effect: nothing has to be kept for it any more. What could not be kept would be
    /// laid at the door of the batch behind it.
    pub(super) fn head_failed(&mut self) {
        let waiters = &self.waiters;
        self.wanted.retain(|&lba, wish| {
            if *wish == Wish::Head {
                *wish = Wish::Page;
                return waiters.iter().any(|w| w.lba == lba);
            }
            true
        });
    }

    /// Whether somebody has to say when a page is put.
    pub(super) fn awaits_pins(&self) -> bool {
        !self.doubtful.is_empty()
    }

    pub(super) fn is_doubtful(&self, frame: FrameId) -> bool {
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

    pub(super) fn is_kept(&self, cx: Cx<'_>, lba: Lba) -> bool {
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

    /// Grains that nobody gets for anything new while something is kept: batches may need them to keep the metadata that they
    /// patch, to delete something, for example. Nor those for shared grains that a snapshot being made waits for.
    pub(super) fn held_back(&self) -> u64 {
        match self.keeper.is_on() {
            true => self.held_back_for_snapshots() + self.keeper.shared.len() as u64,
            false => 0,
        }
    }

    /// The same, whether there is a snapshot or not.
    pub(super) fn held_back_for_snapshots(&self) -> u64 {
        (self.geometry.capacity_grains / HELD_BACK_ONE_IN).min(HELD_BACK_MAX)
    }

    /// Grains that something new can have.
    pub(crate) fn available(&self) -> u64 {
        let taken = self.mapped_now() + self.held_back();
        self.capacity_now().saturating_sub(taken)
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
        let of_batches = wishes.into_iter().any(|&wish| wish == Wish::Batch);
        let wanted = self.keeper.wanted.iter();
        let wanted = wanted.filter(|&(_, &wish)| (wish == Wish::Batch) == of_batches);
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
        if let DurableError::Damaged { lba } | DurableError::Media { lba, .. } = error
            && kept.slot.marks().contains(lba)
            && let Some(of) = self.keeper.of(kept.slot)
        {
            // Nothing of those who wait is damaged: the grain of the last marks is. Further ones go to the next.
            of.used = of.used.next_multiple_of(MARKS_PER_GRAIN).min(MARKS_MAX);
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
}

/// What of a range users can address: images do not have images.
pub(super) fn of_users(range: LbaRange) -> LbaRange {
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
