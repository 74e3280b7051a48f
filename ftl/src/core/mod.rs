//! The core: everything behind the lock, and the pump that turns what is wanted into media operations.
//!
//! Calls and completions change the core's books and then run the pump, which starts whatever can start: batches
//! that have their pages, write-outs that have staging and room, relocation, flushes. Nothing waits inside; what can
//! not go on now is tried again when something completes.
//!
//! # Invariants
//! - The number of mapped grains never exceeds the capacity, and equals what the map says; so does the number of those
//!   of each account, which never grows beyond its limit.
//! - Staging buffers, frames and segments are each owned by exactly one thing at a time.
//! - What frees a resource never waits for that resource (I17): write-outs do not need frames, relocation has its own
//!   staging and reserved segments, trims need neither frames nor capacity.

mod account;
mod along;
mod audit;
mod checkpoint;
mod clone;
mod commit;
mod discard;
mod done;
mod evict;
mod forming;
mod gc;
mod group;
mod held;
mod keeper;
mod listing;
mod load;
mod loss;
mod pages;
mod pending;
mod permit;
mod raise;
mod remap;
mod resize;
mod rest;
mod sharing;
mod shutdown;
mod stages;
mod sync;
mod write_out;

use crate::account::Accounts;
use crate::addr::Lba;
use crate::checkpoint::ColdMap;
use crate::device::{MediaError, MediaOp};
use crate::dirty::Dirty;
use crate::error::{DurableError, GetError};
use crate::fault::MediaFaults;
use crate::format::{HeaderNo, Root, Superblock};
use crate::geometry::Geometry;
use crate::ids::{Port, Token};
use crate::log::Log;
use crate::map::{FrameId, LeafIndex, Location, State};
use crate::page::{Candidates, Frame, Waiter};
use crate::placement::Placement;
use crate::port::{Event, Op};
use crate::records::LiveRecords;
use crate::segment::Segments;
use crate::shared::Shared;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub(crate) use clone::CLONE_URGES;
pub use held::Held;
pub(crate) use pending::PendingCommit;

use checkpoint::Checkpointer;
use forming::Formings;
use gc::Collector;
use group::Group;
use keeper::Keeper;
use load::Loader;
use loss::Loss;
use raise::Raise;
use resize::Resize;
use sharing::Sharing;
use shutdown::Phase;
use stages::Stages;
use sync::{DurableWaiter, SyncWaiter};

/// Who is calling: the shared part, and the port that media operations go to.
#[derive(Clone, Copy)]
pub(crate) struct Cx<'a> {
    pub(crate) sh: &'a Arc<Shared>,
    pub(crate) port: Port,
}

/// How far the live counts of segments and zero records can be relied on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counts {
    /// They were counted: one below zero is a mistake of ours.
    Counted,
    /// A checkpoint says so, of a map that was not all read.
    Saved,
    /// What it says was wrong.
    Wrong,
}

/// Everything behind the lock.
#[derive(Debug)]
pub(crate) struct Core {
    geometry: Geometry,
    superblock: Superblock,
    log: Log,
    segments: Segments,
    records: LiveRecords,
    index: LeafIndex,
    mapped: u64,
    counts: Counts,
    accounts: Accounts,

    /// Those of the pool, then those that lie in memory of files.
    frames: Vec<Frame>,
    pool_frames: usize,
    sharing: Sharing,
    keeper: Keeper,
    raise: Raise,
    frames_free: Vec<FrameId>,
    /// Frames are wanted that lie side by side.
    many_wanted: bool,
    candidates: Candidates,
    frame_waiters: VecDeque<Waiter>,

    dirty: Dirty,
    group: Group,
    groups_done: u64,
    /// Batches have taken effect that may not be durable, and that nobody waits for.
    relaxed: bool,
    commits: VecDeque<PendingCommit>,
    /// The batch at the head waits until nobody holds the pages it moves.
    pins_awaited: bool,
    /// Urgent pages and write-outs that its clones wait for.
    clones_await: (u64, u64),
    /// The youngest header with a remap or clone.
    renamed: HeaderNo,
    syncs: VecDeque<SyncWaiter>,
    /// Ascending by header.
    durable_waiters: VecDeque<DurableWaiter>,

    cold: ColdMap,
    loader: Loader,
    checkpointer: Checkpointer,

    stages: Stages,
    formings: Formings,
    placement: Box<dyn Placement>,
    collector: Collector,
    /// The user stream wants a segment and may not open one.
    space_wanted: bool,
    /// Segments that are still to be discarded because somebody asked for it.
    discards_wanted: usize,
    flush_wanted: HeaderNo,
    pub(crate) media_faults: MediaFaults,
    loss: Loss,
    resize: Option<Resize>,
    failed: Option<MediaError>,
    phase: Phase,
    wakes: Vec<Port>,
}

/// What recovery found and a core starts from.
#[derive(Debug)]
pub(crate) struct Recovered {
    pub(crate) superblock: Superblock,
    pub(crate) log: Log,
    pub(crate) segments: Segments,
    pub(crate) records: LiveRecords,
    pub(crate) index: LeafIndex,
    pub(crate) mapped: u64,
    /// The highest number of a root on the media.
    pub(crate) root_number: u64,
    /// Grains that users had written when its checkpoint was taken, if there is one.
    pub(crate) time: u64,
    /// The checkpoint it stands on, and the one before.
    pub(crate) root: Option<Root>,
    pub(crate) previous: Option<Root>,
    /// Grains of which that checkpoint does not say what they are now.
    pub(crate) changed: Vec<Lba>,
    /// What of the map is not in memory.
    pub(crate) cold: ColdMap,
}

impl Counts {
    /// One of them is too low.
    fn are_wrong(&mut self) {
        assert!(*self != Self::Counted, "a live count below zero");
        *self = Self::Wrong;
    }
}

impl Core {
    pub(crate) fn new(
        mut found: Recovered,
        (frames, shared): (usize, usize),
        placement: Box<dyn Placement>,
        checkpoint_headers: u64,
        sweep_entries: Option<u64>,
    ) -> Self {
        found.segments.forget_lost();
        let loss = Loss::new(found.superblock.failed);
        let checkpointer = Checkpointer::new(&found, checkpoint_headers, sweep_entries);
        let streams = placement.streams();
        let grains = found.superblock.geometry.segment_grains;
        found.segments.start(streams, grains);
        let counts = match found.cold.is_warm() {
            true => Counts::Counted,
            false => Counts::Saved,
        };
        Self {
            counts,
            cold: found.cold,
            loader: Loader::default(),
            checkpointer,
            geometry: found.superblock.geometry,
            superblock: found.superblock,
            log: found.log,
            segments: found.segments,
            records: found.records,
            index: found.index,
            mapped: found.mapped,
            accounts: Accounts::default(),
            frames: (0..frames + shared).map(|_| Frame::new()).collect(),
            pool_frames: frames,
            sharing: Sharing::new(frames, shared),
            keeper: Keeper::default(),
            raise: Raise::default(),
            frames_free: (0..frames as u32).rev().map(FrameId).collect(),
            many_wanted: false,
            candidates: Candidates::new(frames),
            frame_waiters: VecDeque::new(),
            dirty: Dirty::default(),
            group: Group::default(),
            groups_done: 0,
            relaxed: false,
            commits: VecDeque::new(),
            pins_awaited: false,
            clones_await: (0, 0),
            renamed: HeaderNo(0),
            syncs: VecDeque::new(),
            durable_waiters: VecDeque::new(),
            stages: Stages::new(streams),
            formings: Formings::new(streams),
            placement,
            collector: Collector::default(),
            space_wanted: false,
            discards_wanted: 0,
            flush_wanted: HeaderNo(0),
            media_faults: MediaFaults::default(),
            loss,
            resize: None,
            failed: None,
            phase: Phase::Running,
            wakes: Vec::new(),
        }
    }

    pub(crate) fn take_wakes(&mut self) -> Vec<Port> {
        std::mem::take(&mut self.wakes)
    }

    pub(crate) fn mapped(&self) -> u64 {
        self.mapped
    }

    pub(crate) fn free_segments(&self) -> usize {
        self.segments.free_count()
    }

    pub(crate) fn segments(&self) -> &Segments {
        &self.segments
    }

    pub(crate) fn tombstones(&self) -> usize {
        self.records.tombstones().len()
    }

    pub(crate) fn dirty_pages(&self) -> usize {
        self.dirty.len() + self.formings.pages
    }

    /// Does whatever can be done now.
    pub(crate) fn pump(&mut self, cx: Cx<'_>) {
        self.drain_inbox(cx);
        loop {
            let was_due = self.is_group_due();
            let mut progress = self.run_commits(cx);
            progress |= self.assemble_user(cx);
            progress |= self.release_segments(cx);
            progress |= self.close_leaving();
            progress |= self.collect(cx);
            progress |= self.serve_frame_waiters(cx);
            progress |= self.run_keeper(cx);
            // Something may have begun to wait for a group that nobody waited for.
            progress |= !was_due && self.is_group_due();
            if !progress {
                break;
            }
        }
        self.resolve_syncs();
        self.answer_durable(cx);
        self.run_loader(cx);
        self.make_way(cx);
        self.run_healing(cx);
        self.run_raise(cx);
        self.run_resize(cx);
        self.run_checkpoint(cx);
        self.start_flush(cx);
        self.doubt_counts(cx);
        self.run_discard(cx);
        self.give_up_if_stuck(cx);
        self.run_shutdown(cx);
    }

    /// Where the grain is besides the pool.
    fn location(&self, cx: Cx<'_>, lba: Lba) -> Location {
        self.place_of(cx.sh.map.state(lba))
    }

    /// Where a grain in this state is besides the pool.
    fn place_of(&self, state: State) -> Location {
        match state {
            State::Away(location) => location,
            State::InFlight(frame) => self.frames[frame.0 as usize].media,
            State::Resident(r) => self.frames[r.frame.0 as usize].media,
        }
    }

    /// A trim of the forming group takes a grain away from `location`.
    fn leave_with_group(&mut self, location: Location) {
        let segment = match location {
            Location::Nowhere => None,
            Location::Media(pba) => Some(self.geometry.segment_of(pba)),
            Location::Zero(id) => self.records.zero(id).home.map(|(_, home)| home.segment),
        };
        if let Some(segment) = segment {
            self.segments.bind_to_group(segment);
        }
        self.leave(location);
    }

    /// One grain less is mapped.
    fn count_unmapped(&mut self, lba: Lba) {
        self.accounts.credit(lba);
        match self.mapped.checked_sub(1) {
            Some(mapped) => self.mapped = mapped,
            None => self.counts.are_wrong(),
        }
    }

    /// A grain is no longer at `location`.
    fn leave(&mut self, location: Location) {
        let freed_at = self.log.last();
        match location {
            Location::Nowhere => {}
            Location::Media(pba) => {
                let id = self.geometry.segment_of(pba);
                let segment = self.segments.get_mut(id);
                let Some(live) = segment.live.checked_sub(1) else {
                    return self.counts.are_wrong();
                };
                segment.live = live;
                self.segments.retire_if_empty(id, freed_at);
            }
            Location::Zero(id) => {
                let zero = self.records.zero_mut(id);
                let Some(live) = zero.live.checked_sub(1) else {
                    return self.counts.are_wrong();
                };
                zero.live = live;
                if zero.live > 0 || zero.home.is_none() {
                    return;
                }
                let gone = self.records.remove_zero(id);
                if let Some((_, home)) = gone.home {
                    self.segments.get_mut(home.segment).records -= 1;
                    self.segments.retire_if_empty(home.segment, freed_at);
                }
            }
        }
    }

    fn act(&mut self, cx: Cx<'_>, purpose: Op, op: MediaOp) {
        cx.sh.ports[usize::from(cx.port.0)].push_action(purpose, op);
        self.wake(cx.port);
    }

    fn tell(&mut self, cx: Cx<'_>, port: Port, event: Event) {
        cx.sh.ports[usize::from(port.0)].push_event(event);
        self.wake(port);
    }

    fn tell_durable(
        &mut self,
        cx: Cx<'_>,
        port: Port,
        token: Token,
        result: Result<(), DurableError>,
    ) {
        self.tell(cx, port, Event::Durable { token, result });
    }

    fn wake(&mut self, port: Port) {
        if !self.wakes.contains(&port) {
            self.wakes.push(port);
        }
    }

    /// What the volume has failed with, if it has.
    pub(crate) const fn failure(&self) -> Option<MediaError> {
        self.failed
    }

    /// Why changes are refused, if they are.
    fn refusal(&self) -> Option<GetError> {
        match (self.failed, self.phase.is_running()) {
            (Some(error), _) => Some(GetError::Failed(error)),
            (None, false) => Some(GetError::Shutdown),
            (None, true) => None,
        }
    }

    /// A write or flush failed. Nothing written since the last good flush is known to be durable, and no later
    /// flush is believed (I8): every waiter is told, changes are refused from now on, reads go on.
    fn fail(&mut self, cx: Cx<'_>, error: MediaError) {
        if self.failed.is_some() {
            return;
        }
        tracing::error!(%error, "the volume has failed: nothing is changed any more until it is opened again");
        self.failed = Some(error);
        cx.sh.closed.store(true, Ordering::SeqCst);
        let error = DurableError::Failed(error);
        let mut waiting: Vec<(Port, Token)> = Vec::new();
        waiting.extend(self.durable_waiters.drain(..).map(|w| (w.port, w.token)));
        waiting.extend(self.group.take_waiters());
        waiting.extend(self.syncs.drain(..).map(|s| (s.port, s.token)));
        waiting.extend(self.take_makers());
        waiting.extend(self.raise.take_askers());
        for (port, token) in waiting {
            self.tell_durable(cx, port, token, Err(error));
        }
        while let Some(commit) = self.commits.pop_front() {
            self.release_commit(cx, &commit);
            if commit.kept.is_none() {
                self.tell_durable(cx, commit.port, commit.token, Err(error));
            }
        }
        self.retry_keep_waiters(cx);
        // Frames can not be cleaned any more; who waits to change something learns it, readers go on waiting.
        self.retry_frame_waiters(cx);
        if self.loader.is_idle() {
            self.give_up_loading(cx);
        }
    }
}
