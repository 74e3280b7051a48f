//! `Ftl`: the engine's public face. All methods may be called from any thread.

use crate::account::{AccountId, AccountUse};
use crate::addr::{GRAIN_BYTES, Lba, LbaRange};
use crate::batch::AtomicBatch;
use crate::check::Checked;
use crate::core::{Core, Cx, Held, PendingCommit};
use crate::device::{Action, ActionId, MediaError, Member, MemberState};
use crate::error::{CommitError, GetError, ResizeError, ShareError};
use crate::fault::MediaFault;
use crate::format::Superblock;
use crate::geometry::Geometry;
use crate::ids::{GrainState, Intent, Port, Time, Token};
use crate::map::{FrameId, Location, State};
use crate::page::{Hold, PageRef};
use crate::planted::Bug;
use crate::port::{Event, Op, PortQueue};
use crate::segment::StreamUse;
use crate::shared::{NEVER, Shared};
use crate::snapshot::{Marks, Slot, SnapshotChange};
use crate::space::Space;
use crate::stats::Stats;
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The answer to [`Ftl::get`].
#[derive(Debug)]
pub enum Get {
    /// Here it is.
    Ready(PageRef),
    /// It comes as [`Event::Page`] on the port that asked.
    Pending,
    /// It can not be had.
    Failed(GetError),
}

impl From<Result<PageRef, GetError>> for Get {
    fn from(answer: Result<PageRef, GetError>) -> Self {
        answer.map_or_else(Self::Failed, Self::Ready)
    }
}

/// What a volume is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeInfo {
    /// Identity.
    pub uuid: [u8; 16],
    /// Sizes.
    pub geometry: Geometry,
    /// Present session.
    pub session: u64,
    /// Bytes of the layer above, from the format.
    pub owner: [u8; 16],
}

impl VolumeInfo {
    pub(crate) fn of(superblock: &Superblock) -> Self {
        Self {
            uuid: superblock.uuid,
            geometry: superblock.geometry,
            session: superblock.session,
            owner: superblock.owner,
        }
    }
}

/// A device of an array, and what is on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceUse {
    /// Its path.
    pub name: String,
    /// Its identity.
    pub uuid: [u8; 16],
    /// Whether it is in use.
    pub state: MemberState,
    /// Its segments.
    pub segments: usize,
    /// Those that are free.
    pub free: usize,
    /// How often one of them was opened since the volume was, hence erased.
    pub opened: u64,
}

/// A volume that is open.
///
/// # How to drive it
///
/// Each port has one driver. It takes [`Ftl::poll_action`] until there is nothing, carries the actions out, reports
/// each with [`Ftl::handle_done`], and takes [`Ftl::poll_event`] until there is nothing, in this order; it calls
/// [`Ftl::handle_timeout`] when [`Ftl::poll_timeout`] is due. Any call on the volume may give any port something to
/// do; the port's waker is called when that happens outside of calls of its own driver.
///
/// The memory of an action belongs to the engine: keep the volume until every action has been reported done, or will
/// certainly not be carried out any more.
///
/// Never wait for an event of one port without driving the ports that may hold the actions it depends on. Whoever
/// holds pages while waiting for more must leave enough of the pool to the others.
pub struct Ftl {
    shared: Arc<Shared>,
    info: VolumeInfo,
}

impl fmt::Debug for Ftl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ftl").field("info", &self.info).finish()
    }
}

impl Drop for Ftl {
    fn drop(&mut self) {
        // Pages in undelivered events hold the shared part alive, which holds the events.
        for port in &self.shared.ports {
            port.clear_events();
        }
    }
}

impl Ftl {
    pub(crate) fn assemble(shared: Arc<Shared>, info: VolumeInfo) -> Arc<Self> {
        Arc::new(Self { shared, info })
    }

    fn core<R>(&self, port: Port, f: impl FnOnce(&mut Core, Cx<'_>) -> R) -> R {
        self.shared.with_core(port, true, f)
    }

    /// The same for whoever is no driver: that of the port is told of what there is to do.
    fn aside<R>(&self, f: impl FnOnce(&mut Core, Cx<'_>) -> R) -> R {
        self.shared.with_core(Shared::BACKGROUND, false, f)
    }

    fn port(&self, port: Port) -> &PortQueue {
        &self.shared.ports[usize::from(port.0)]
    }

    /// Pins a page if that takes no lock: a resident page, or zeros for reading what is not written. `None` means:
    /// use [`Ftl::get`].
    pub fn try_get(&self, lba: Lba, intent: Intent) -> Option<PageRef> {
        self.pin(Shared::BACKGROUND, lba, intent)
    }

    fn pin(&self, port: Port, lba: Lba, intent: Intent) -> Option<PageRef> {
        if lba >= Self::end(intent) {
            return None;
        }
        let shared = &self.shared;
        let writable = intent != Intent::Read;
        if writable
            && (shared.closed.load(Ordering::Relaxed) || shared.keeping.load(Ordering::Relaxed))
        {
            return None;
        }
        // Before looking. A map that is warm is whole; of one that is not a leaf may be missing, or be filled just now.
        let is_cold = shared.map_cold.load(Ordering::SeqCst);
        let seen = shared.moves.look();
        if let Some(leaf) = shared.map.leaf(lba) {
            if let Some(frame) = leaf.entry(lba).pin() {
                // A snapshot that has come into being in between has seen the pin, or is seen here.
                if writable && shared.keeping.load(Ordering::SeqCst) {
                    shared.unpin(leaf.entry(lba), lba, frame, false, port);
                    return None;
                }
                let hold = Hold::Shared { leaf, writable };
                return Some(PageRef::new(shared, hold, frame, lba, port));
            }
            let state = leaf.entry(lba).state();
            let is_blank = matches!(state, State::Away(Location::Nowhere | Location::Zero(_)));
            if !is_blank {
                return None;
            }
        }
        // Nothing was found. That may be so for a moment only; the core knows.
        if is_cold || !shared.moves.is_still(seen) {
            return None;
        }
        (intent == Intent::Read).then(|| PageRef::new(shared, Hold::Zeros, FrameId(0), lba, port))
    }

    /// Pins a page, reading it if need be. See [`Intent`] for what may be done with it.
    pub fn get(&self, port: Port, lba: Lba, intent: Intent, token: Token) -> Get {
        if lba >= Self::end(intent) {
            return Get::Failed(GetError::OutOfRange);
        }
        if let Some(page) = self.pin(port, lba, intent) {
            return Get::Ready(page);
        }
        let got = self.core(port, |core, cx| core.get(cx, lba, intent, token));
        got.map_or(Get::Pending, Get::from)
    }

    /// Images of snapshots can be looked at.
    fn end(intent: Intent) -> Lba {
        match intent {
            Intent::Read => Lba::SPACE_END,
            Intent::Write | Intent::Overwrite => Lba::END,
        }
    }

    /// As [`get`](Self::get) for several pages, with one look at what all share; `token` gives the `n`-th its token. Whoever
    /// holds pages to be overwritten waits for others one by one, so of these it ends behind the first that is pending.
    pub fn get_all(
        &self,
        port: Port,
        lbas: &[Lba],
        intent: Intent,
        token: impl Fn(usize) -> Token,
    ) -> Vec<Get> {
        let in_turn = intent == Intent::Overwrite;
        let mut got: Vec<Option<Get>> = Vec::with_capacity(lbas.len());
        for &lba in lbas {
            let page = self.pin(port, lba, intent);
            let ends = in_turn && page.is_none();
            got.push(page.map(Get::Ready));
            if ends {
                break;
            }
        }
        if got.iter().any(Option::is_none) {
            got.resize_with(lbas.len(), || None);
            let missing = (0..lbas.len()).filter(|&n| got[n].is_none());
            let missing: Vec<usize> = missing.collect();
            self.core(port, |core, cx| {
                core.expect_gets(missing.len());
                for n in missing {
                    let answer = match lbas[n] < Self::end(intent) {
                        true => core.get(cx, lbas[n], intent, token(n)),
                        false => Some(Err(GetError::OutOfRange)),
                    };
                    let is_pending = answer.is_none();
                    got[n] = Some(answer.map_or(Get::Pending, Get::from));
                    if in_turn && is_pending {
                        break;
                    }
                }
                core.expect_gets(0);
            });
        }
        got.into_iter().flatten().collect()
    }

    /// Puts several pages of this volume.
    pub fn put_all(&self, pages: Vec<PageRef>) {
        PageRef::put_all(pages);
    }

    /// Where [`OpenOptions::write_out_apart`](crate::OpenOptions::write_out_apart) holds: whether there is something to be
    /// written out because many pages are dirty. The driver of port 0 asks before it sleeps.
    pub fn has_write_out_due(&self) -> bool {
        self.shared.write_out_due.load(Ordering::SeqCst)
    }

    /// Begins a write-out if there is one due, for the driver of port 0; others get at the volume before the next.
    pub fn write_out_some(&self) {
        if self.has_write_out_due() {
            self.core(Shared::BACKGROUND, |core, cx| core.write_out_some(cx));
        }
    }

    /// Puts a page and asks to be told when what was written to it is durable.
    pub fn put_durable(&self, port: Port, page: PageRef, token: Token) {
        let range = LbaRange::new(page.lba(), 1);
        drop(page);
        self.sync(port, range, token);
    }

    /// Everything that was put in `range` before becomes durable; then [`Event::Durable`].
    pub fn sync(&self, port: Port, range: LbaRange, token: Token) {
        self.core(port, |core, cx| core.sync(cx, all_of(range), token));
    }

    /// As [`commit`](Self::commit), of a batch that may name images and tables of snapshots, and with which something may
    /// become of one. Whoever makes one has synced everything, and its slot is not in use; whoever forgets one has left
    /// nothing of it. See `docs/snapshots.md`.
    pub fn commit_snapshot(
        &self,
        port: Port,
        batch: AtomicBatch,
        change: Option<SnapshotChange>,
        token: Token,
    ) -> Result<(), CommitError> {
        let grains_max = self.batch_grains_max();
        let commit = PendingCommit::of_images((port, token), batch, grains_max)?;
        let commit = match change {
            Some(change) => commit.changing(change),
            None => commit,
        };
        self.core(port, |core, cx| core.commit(cx, commit));
        Ok(())
    }

    /// The superblock says that there may be snapshots; [`Event::Durable`] when it does. Before, no batch may name an image.
    pub fn admit_images(&self, port: Port, token: Token) {
        self.core(port, |core, cx| core.admit_images(cx, token));
    }

    /// Whether there may be snapshots.
    pub fn admits_images(&self) -> bool {
        self.core(Shared::BACKGROUND, |core, _| core.admits_images())
    }

    /// The snapshots that have been found on the media, oldest first: slot, marks, places given to marks, and whether it is
    /// being deleted. Before anybody changes anything.
    pub fn set_snapshots(&self, found: Vec<(Slot, Marks, u32, bool)>) {
        self.core(Shared::BACKGROUND, |core, cx| core.set_snapshots(cx, found));
    }

    /// What a grain was at a snapshot. The answer holds until the grain changes: whoever reads what it names asks again
    /// afterwards.
    pub fn held(&self, slot: Slot, lba: Lba) -> Held {
        self.core(Shared::BACKGROUND, |core, cx| core.held(cx, slot, lba))
    }

    /// As [`held`](Self::held), of several grains.
    pub fn held_all(&self, slot: Slot, lbas: &[Lba]) -> Vec<Held> {
        self.core(Shared::BACKGROUND, |core, cx| {
            lbas.iter().map(|&lba| core.held(cx, slot, lba)).collect()
        })
    }

    /// First grain of a range that was mapped at a snapshot, of what is in memory of the range and its images.
    pub fn next_held(&self, slot: Slot, range: LbaRange) -> Option<Lba> {
        self.core(Shared::BACKGROUND, |core, cx| {
            core.next_held(cx, slot, range)
        })
    }

    /// Number of grains at the beginning of a range that were mapped at a snapshot, and what is left of the range to be asked
    /// for; of what is in memory of the range and its images.
    pub fn held_count(&self, slot: Slot, range: LbaRange) -> (u64, LbaRange) {
        self.core(Shared::BACKGROUND, |core, cx| {
            core.held_count(cx, slot, range)
        })
    }

    /// Whether a snapshot has an image or a mark of its own for a grain.
    pub(crate) fn has_own(&self, slot: Slot, lba: Lba) -> bool {
        self.core(Shared::BACKGROUND, |core, cx| core.has_own(cx, slot, lba))
    }

    /// A grain for marks of a slot in which there are none.
    pub(crate) fn give_mark_grain(&self, slot: Slot) -> Option<Lba> {
        self.core(Shared::BACKGROUND, |core, _| core.give_mark_grain(slot))
    }

    /// Carries out a batch: visible as a whole to everybody (at once, unless pages must be read or room be made
    /// first), on the media all or nothing. [`Event::Durable`] when durable, or with the reason why nothing of it
    /// took effect. Batches take effect in the order of submission.
    ///
    /// # Errors
    /// The caller's mistakes, and [`CommitError::ManyAlong`]. Nothing took effect.
    pub fn commit(
        &self,
        port: Port,
        mut batch: AtomicBatch,
        token: Token,
    ) -> Result<(), CommitError> {
        let grains_max = self.batch_grains_max();
        if let Some(range) = batch.along {
            return self.core(port, |core, cx| {
                if !core.take_along(cx, range, &mut batch, grains_max) {
                    return Err(CommitError::ManyAlong);
                }
                core.commit(cx, PendingCommit::new(port, token, batch, grains_max)?);
                Ok(())
            });
        }
        let commit = PendingCommit::new(port, token, batch, grains_max)?;
        self.core(port, |core, cx| core.commit(cx, commit));
        Ok(())
    }

    /// As [`commit`](Self::commit), but [`Event::Durable`] comes when the batch has taken effect, and is no promise: the
    /// batch will be durable together with the next sync of any range, or two times `dirty_age_ns` later. What a crash
    /// before leaves is a prefix of the batches: those that took effect earlier are there if it is.
    pub fn commit_relaxed(
        &self,
        port: Port,
        batch: AtomicBatch,
        token: Token,
    ) -> Result<(), CommitError> {
        let grains_max = self.batch_grains_max();
        let commit = PendingCommit::new(port, token, batch, grains_max)?.relaxed();
        self.core(port, |core, cx| core.commit(cx, commit));
        Ok(())
    }

    /// Forgets a range (at most 2^32 - 1 grains): it reads as zeros at once, unless a batch submitted before waits for
    /// its pages (then after it, and a write put in between is forgotten too); [`Event::Durable`] when durable.
    /// Who holds a page of it keeps the old view until the put. Needs no space and never fails for want of it.
    pub fn trim(&self, port: Port, range: LbaRange, token: Token) -> Result<(), CommitError> {
        let mut batch = AtomicBatch::new();
        batch.trim(range);
        self.commit(port, batch, token)
    }

    /// Moves the `count` (at most [`AtomicBatch::MOVED_MAX`]) grains from `from` to `to` without writing their data;
    /// what `to` held is gone. [`Event::Durable`] when durable. It takes effect as soon as nobody holds a page of the
    /// source, and batches submitted later wait for it. What was put and not synced moves along, and is as durable as
    /// before.
    pub fn remap(
        &self,
        port: Port,
        from: Lba,
        to: Lba,
        count: u64,
        token: Token,
    ) -> Result<(), CommitError> {
        let mut batch = AtomicBatch::new();
        batch.remap(from, to, count);
        self.commit(port, batch, token)
    }

    /// Clones the `count` (at most [`AtomicBatch::MOVED_MAX`]) grains from `from` to `to` without writing their data:
    /// both ranges have them until one of the two is written to. What `to` held is gone. [`Event::Durable`] when the
    /// new names are durable. It takes effect once everything put in the source has been written out and nobody holds
    /// a page of it (a few pages that somebody writes to all the time are copied instead); batches submitted later
    /// wait for it. Every grain counts against the capacity under each of its names.
    pub fn clone_range(
        &self,
        port: Port,
        from: Lba,
        to: Lba,
        count: u64,
        token: Token,
    ) -> Result<(), CommitError> {
        let mut batch = AtomicBatch::new();
        batch.clone_range(from, to, count);
        self.commit(port, batch, token)
    }

    /// Most grains the patches of one batch may touch on this volume.
    pub fn batch_grains_max(&self) -> usize {
        AtomicBatch::GRAINS_MAX
            .min(self.shared.write_out_data_max)
            .min(self.shared.pool.frames() / 4)
    }

    /// Brings the map of a range into memory; [`Event::Durable`] when it is there. After opening a large volume the
    /// map is read as it is needed, and in the background.
    pub fn load(&self, port: Port, range: LbaRange, token: Token) {
        self.core(port, |core, cx| core.load(cx, all_of(range), token));
    }

    /// Grains of a range get the pages of a memory file, from page `at` on, as the memory of their pages: whoever maps the
    /// file sees and makes changes at once, as if holding the page. The file must be long enough, and may get shorter only
    /// when the grains are not shared any more and [`Ftl::let_leave`] has said so. The ranges of one file follow one
    /// another; whoever shares [gathers](Ftl::gather) the pages, then gets each of them, before anybody maps the file.
    ///
    /// # Errors
    /// [`ShareError`], and nothing has been changed.
    pub fn share(&self, memory: &File, at: u64, range: LbaRange) -> Result<(), ShareError> {
        let needed = (at + range.count) * GRAIN_BYTES as u64;
        let has = memory.metadata().map_or(0, |file| file.len());
        if has < needed {
            return Err(ShareError::Memory(libc::EINVAL));
        }
        self.core(Shared::BACKGROUND, |core, cx| {
            core.share(cx, memory, at, range)
        })
    }

    /// Pages of a shared range that lie elsewhere leave memory. False: some can not leave yet, because somebody holds them
    /// or they are not on the media. The map of the range must be in memory, see [`Ftl::load`].
    pub fn gather(&self, range: LbaRange) -> bool {
        self.aside(|core, cx| core.gather(cx, range))
    }

    /// Looks for stores to shared pages of a range that mappings have made, which tell nobody: what was stored before is
    /// put when this returns. Returns how many pages it has found.
    pub fn find_stores(&self, range: LbaRange) -> u64 {
        /// Grains that are looked at under the lock in one go: about 20 microseconds.
        const PIECE: u64 = 32;
        let mut found = 0;
        let mut from = range.start;
        while from < range.end() {
            let piece = LbaRange::new(from, PIECE.min(range.end().0 - from.0));
            found += self.core(Shared::BACKGROUND, |core, cx| core.find_stores(cx, piece));
            from = piece.end();
        }
        found
    }

    /// The grains of a range, which is what is shared of a file or its end, are not shared any more: pages got from now on
    /// lie elsewhere. Those that there are leave by [`Ftl::let_leave`].
    pub fn unshare(&self, range: LbaRange) {
        self.core(Shared::BACKGROUND, |core, _| core.unshare(range));
    }

    /// Pages that are not shared any more leave their memory, as far as they are on the media and nobody holds them. True:
    /// nothing is left of `range` there.
    pub fn let_leave(&self, range: LbaRange) -> bool {
        self.aside(|core, cx| core.let_leave(cx, range))
    }

    /// Most grains that may be shared at once.
    pub fn shared_frames(&self) -> usize {
        self.shared.pool.shared_frames()
    }

    /// Whether all of the map is in memory.
    pub fn is_map_loaded(&self) -> bool {
        !self.shared.map_cold.load(Ordering::SeqCst)
    }

    /// What a grain holds. The map of it must be in memory, see [`Ftl::load`]; else it seems unmapped.
    pub fn state(&self, lba: Lba) -> GrainState {
        match self.shared.map.state(lba) {
            State::Away(Location::Nowhere) => GrainState::Unmapped,
            State::Away(Location::Zero(_)) => GrainState::Zero,
            State::Away(Location::Media(_)) | State::Resident(_) => GrainState::Data,
            State::InFlight(_) => {
                let (range, core) = (LbaRange::new(lba, 1), Shared::BACKGROUND);
                let mapped = self.core(core, |core, cx| core.next_mapped(cx, range));
                mapped.map_or(GrainState::Unmapped, |_| GrainState::Data)
            }
        }
    }

    /// First mapped grain of a range, of what is in memory (see [`Ftl::load`]).
    pub fn next_mapped(&self, range: LbaRange) -> Option<Lba> {
        self.core(Shared::BACKGROUND, |core, cx| core.next_mapped(cx, range))
    }

    /// Number of mapped grains in a range, of what is in memory (see [`Ftl::load`]).
    pub fn mapped_count(&self, range: LbaRange) -> u64 {
        self.core(Shared::BACKGROUND, |core, cx| core.mapped_count(cx, range))
    }

    /// Capacity and use; too much use at most, as long as not all of the map is in memory.
    pub fn space(&self) -> Space {
        self.core(Shared::BACKGROUND, |core, _| Space {
            capacity: core.geometry().capacity_grains,
            mapped: core.mapped(),
            available: core.available(),
        })
    }

    /// These ranges belong to an account, or to none, from now on, with everything that is and gets mapped in them. Such
    /// notes live as long as the volume is open. Takes time by the grains that are mapped in the ranges. See
    /// `docs/accounts.md`.
    pub fn assign(&self, ranges: &[LbaRange], account: Option<AccountId>) {
        self.core(Shared::BACKGROUND, |core, cx| {
            core.assign(cx, ranges, account);
        });
    }

    /// As [`assign`](Self::assign), if the account does not grow beyond its limit; whether it was done. All of the map
    /// must be in memory (see [`Ftl::load`]), else too little is counted.
    pub fn assign_if_room(&self, ranges: &[LbaRange], account: AccountId) -> bool {
        self.core(Shared::BACKGROUND, |core, cx| {
            core.assign_if_room(cx, ranges, account)
        })
    }

    /// Sets or removes the limit of an account, in grains. What is mapped stays, also beyond the limit; nothing more
    /// gets mapped then ([`GetError::Quota`], [`DurableError::Quota`](crate::DurableError::Quota)), and what adds nothing
    /// is never refused.
    pub fn limit_account(&self, account: AccountId, limit: Option<u64>) {
        self.core(Shared::BACKGROUND, |core, _| {
            core.limit_account(account, limit);
        });
    }

    /// How full an account is, of what is in memory of the map (see [`Ftl::load`]).
    pub fn account(&self, account: AccountId) -> AccountUse {
        self.core(Shared::BACKGROUND, |core, _| core.account_use(account))
    }

    /// What the volume is, with the sizes it has now.
    pub fn info(&self) -> VolumeInfo {
        VolumeInfo {
            geometry: self.core(Shared::BACKGROUND, |core, _| core.geometry()),
            ..self.info
        }
    }

    /// Gives the volume the size of a device of so many grains, which the device must have already: more of it while
    /// everything goes on, or less, when what is on it fits. [`Event::Durable`] when that is so; an error there leaves the
    /// volume as it was, unless it has failed. See `docs/resize.md`.
    ///
    /// # Errors
    /// [`ResizeError`], and nothing has been changed.
    pub fn resize(&self, port: Port, device_grains: u64, token: Token) -> Result<(), ResizeError> {
        self.core(port, |core, cx| core.resize(cx, device_grains, token))
    }

    /// Begins to discard all free segments that have not been discarded since the volume was opened, whether or not
    /// [`OpenOptions::discard`](crate::OpenOptions::discard) says so, unless only a few are free at all. Returns how many bytes
    /// that are.
    pub fn discard_free(&self) -> u64 {
        let segment = u64::from(self.info.geometry.segment_grains) * GRAIN_BYTES as u64;
        self.aside(|core, _| core.discard_free()) as u64 * segment
    }

    /// Whether something of what [`discard_free`](Self::discard_free) has begun waits for its turn.
    pub fn is_discarding_free(&self) -> bool {
        self.core(Shared::BACKGROUND, |core, _| core.discards_wanted() > 0)
    }

    /// Grains of the smallest device that the volume can be shrunk to as it is now. All of the map must be in memory (see
    /// [`Ftl::load`]), else it may be too large.
    ///
    /// # Errors
    /// [`ResizeError::Array`]
    pub fn device_grains_min(&self) -> Result<u64, ResizeError> {
        self.core(Shared::BACKGROUND, |core, _| core.device_grains_min())
    }

    /// Counters.
    pub fn stats(&self) -> Stats {
        let mut stats = self.shared.counters.snapshot();
        self.core(Shared::BACKGROUND, |core, _| {
            stats.segments_free = core.free_segments() as u64;
            stats.tombstones = core.tombstones() as u64;
            stats.dirty_pages = core.dirty_pages() as u64;
        });
        stats
    }

    /// What each stream of the placement policy holds.
    pub fn streams(&self) -> Vec<StreamUse> {
        self.core(Shared::BACKGROUND, |core, _| core.segments().by_stream())
    }

    /// How often each segment was opened since the volume was, hence its flash erased.
    pub fn erases(&self) -> Vec<u32> {
        self.core(Shared::BACKGROUND, |core, _| {
            core.segments().iter().map(|s| s.opened).collect()
        })
    }

    /// The devices of the volume, if they are several, and what is on each.
    pub fn devices(&self) -> Vec<DeviceUse> {
        let Some(members) = &self.shared.members else {
            return Vec::new();
        };
        self.core(Shared::BACKGROUND, |core, _| {
            let places = core.geometry().places;
            let list = members.list().iter().enumerate();
            let device = |(index, member): (usize, &Member)| DeviceUse {
                name: member.name().to_owned(),
                uuid: member.uuid(),
                state: member.state(),
                segments: places.segments(index).len(),
                free: core.segments().free_on(index),
                opened: core.segments().opened_on(index),
            };
            list.map(device).collect()
        })
    }

    /// The reads from the media that have failed since the last call, the latest 256 at most. All are counted in
    /// [`Stats`].
    pub fn take_media_faults(&self) -> Vec<MediaFault> {
        self.core(Shared::BACKGROUND, |core, _| core.media_faults.take())
    }

    /// Start and length of the memory that every media operation and page lies in, for registration with a ring.
    pub fn memory(&self) -> (*mut u8, usize) {
        self.shared.pool.arena.region()
    }

    /// Frames of the page pool.
    pub fn pool_frames(&self) -> usize {
        self.shared.pool.frames()
    }

    /// The next media operation for the driver of `port`. Asking may bring forth answers.
    pub fn poll_action(&self, port: Port) -> Option<Action> {
        let queue = self.port(port);
        queue.pop_action().or_else(|| {
            if queue.take_owed() {
                self.core(port, |core, cx| core.pump(cx));
            }
            queue.pop_action()
        })
    }

    /// The next answer on `port`.
    pub fn poll_event(&self, port: Port) -> Option<Event> {
        self.port(port).pop_event()
    }

    /// A media operation of `port` has ended.
    ///
    /// # Panics
    /// If the action is not in flight.
    pub fn handle_done(&self, port: Port, now: Time, id: ActionId, result: Result<(), MediaError>) {
        self.shared.now.fetch_max(now.0, Ordering::SeqCst);
        debug_assert_eq!(PortQueue::of(id), port, "actions end where they began");
        match self.port(PortQueue::of(id)).finish(id) {
            fill @ Op::Fill { .. } => self.filled(port, &[(fill, self.is_intact(fill, result))]),
            op => self.core(port, |core, cx| {
                core.notice_losses(cx);
                match op {
                    Op::Fill { .. } => unreachable!("handled above"),
                    Op::WriteOut { stage } => core.write_out_done(cx, stage, result),
                    Op::LateData { stage } => core.late_data_done(stage),
                    Op::Flush { covers } => core.flush_done(cx, covers, result),
                    Op::Scan { grains } => core.scan_done(grains, result),
                    Op::Superblock => core.superblock_done(cx, result),
                    Op::SavePages { grains } => core.save_pages_done(cx, grains, result),
                    Op::SaveFlush => core.save_flush_done(cx, result),
                    Op::Disown => {}
                    Op::Discard { segment } => core.discard_done(segment),
                    Op::SaveRoot => core.save_root_done(cx, result),
                    Op::LoadPage { slot } => core.load_page_done(cx, slot, result),
                }
                core.pump(cx);
            }),
        }
    }

    /// Several media operations of `port` have ended, as [`Ftl::handle_done`] for each. Those who wait for pages of several
    /// reads are woken once.
    ///
    /// # Panics
    /// If an action is not in flight.
    pub fn handle_done_all(
        &self,
        port: Port,
        now: Time,
        ended: impl IntoIterator<Item = (ActionId, Result<(), MediaError>)>,
    ) {
        self.shared.now.fetch_max(now.0, Ordering::SeqCst);
        let mut fills = Vec::new();
        for (id, result) in ended {
            if self.port(PortQueue::of(id)).is_fill(id) {
                let fill = self.port(PortQueue::of(id)).finish(id);
                fills.push((fill, self.is_intact(fill, result)));
            } else {
                self.handle_done(port, now, id, result);
            }
        }
        if !fills.is_empty() {
            self.filled(port, &fills);
        }
    }

    /// Whether a frame holds what it should. The checksum is computed outside of the lock: nobody else knows the frame
    /// yet.
    fn is_intact(&self, fill: Op, result: Result<(), MediaError>) -> Result<bool, MediaError> {
        let Op::Fill { frame, crc, .. } = fill else {
            unreachable!("{fill:?} fills no frame");
        };
        result.map(|()| {
            let slot = self.shared.pool.frame(frame);
            self.shared.has_bug(Bug::ChecksumIgnored)
                || self.shared.dataless
                || self.shared.pool.arena.crc(slot) == crc
        })
    }

    /// Frames have been filled.
    fn filled(&self, port: Port, fills: &[(Op, Result<bool, MediaError>)]) {
        self.core(port, |core, cx| {
            core.notice_losses(cx);
            for &(fill, intact) in fills {
                let Op::Fill {
                    frame, life, pba, ..
                } = fill
                else {
                    unreachable!("{fill:?} fills no frame");
                };
                core.fill_done(cx, (frame, life), pba, intact);
            }
            core.pump_after_fill(cx);
        });
    }

    /// When [`Ftl::handle_timeout`] is due, if ever.
    pub fn poll_timeout(&self) -> Option<Time> {
        let due = self.shared.deadline.load(Ordering::SeqCst);
        (due != NEVER).then_some(Time(due))
    }

    /// Time has passed: starts what is due. May be called at any time, by any driver.
    pub fn handle_timeout(&self, port: Port, now: Time) {
        self.shared.now.fetch_max(now.0, Ordering::SeqCst);
        let due = self.shared.deadline.load(Ordering::SeqCst);
        if now.0 >= due {
            self.core(port, |core, cx| core.aged(cx));
        }
    }

    /// Sets who is called when the port gets something to do outside of its own driver's calls. The waker must not
    /// call the volume.
    pub fn set_waker(&self, port: Port, waker: Box<dyn Fn() + Send + Sync>) {
        self.port(port).set_waker(waker);
    }

    /// Tells the wall clock (Unix nanoseconds at `now`); it only goes into headers, as information.
    pub fn set_wall_clock(&self, now: Time, unix_ns: u64) {
        let offset = unix_ns.wrapping_sub(now.0);
        self.shared.wall_offset_ns.store(offset, Ordering::Relaxed);
    }

    /// Writes everything out and marks the volume clean; then [`Event::Durable`]. No change is accepted from now on;
    /// pages held for writing should have been put: what is put later may not go out any more, and a sync of it says so.
    pub fn shutdown(&self, port: Port, token: Token) {
        self.core(port, |core, cx| core.shutdown(cx, token));
    }

    /// A checksum of the map on the media. For tests; all of the map must be in memory, see [`Ftl::load`].
    #[doc(hidden)]
    pub fn map_digest(&self) -> u32 {
        self.core(Shared::BACKGROUND, |core, cx| core.map_digest(cx))
    }

    /// What the media hold of each grain that is mapped: where, and with which checksum. All of the map must be in memory,
    /// see [`Ftl::load`]; what has not been written out yet is not in the answer.
    pub fn listing(&self) -> BTreeMap<Lba, Checked> {
        self.core(Shared::BACKGROUND, |core, cx| core.listing(cx))
    }

    /// Notes, or takes back, that something is wrong with what the volume holds: see
    /// [`Superblock`](crate::format::Superblock). On the media from the shutdown on.
    pub fn set_suspect(&self, suspect: bool) {
        self.core(Shared::BACKGROUND, |core, _| {
            core.set_suspect(suspect);
        });
    }

    /// Whether something is wrong with what the volume holds: as [noted](Self::set_suspect), or because headers of the log are
    /// lost, so that some of it may be as it was before.
    pub fn is_suspect(&self) -> bool {
        self.core(Shared::BACKGROUND, |core, _| core.is_suspect())
    }

    /// Counts everything again and compares (I5). For tests.
    ///
    /// # Panics
    /// If a count is wrong.
    #[doc(hidden)]
    pub fn self_check(&self) {
        self.core(Shared::BACKGROUND, |core, cx| core.audit(cx));
    }
}

/// Whoever means every byte means what lies beyond as well.
fn all_of(range: LbaRange) -> LbaRange {
    match range == LbaRange::ALL {
        true => LbaRange::SPACE,
        false => range,
    }
}
