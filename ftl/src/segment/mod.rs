//! Segments: the unit in which the log is appended and reclaimed.
//!
//! ```text
//!   Discarding                                                                Cut, if the volume is to end before it
//!       ▲                                                                          ▲
//!       ▼                                                                          │
//!   Free ──open──► Open ──close──► Closed ──nothing live──► Pending ──recorded, no readers──► Free
//! ```
//!
//! A segment is *Pending* while a crash could still bring back something that only it holds, or while recovery would
//! miss its headers: until the log's `recorded` number reaches the header that freed it.
//!
//! # Invariants
//! - Exactly what the map and the live records say is counted in `live` and `records`.
//! - What collection may choose is filed in `candidates` when it is asked for: every change goes through
//!   [`Segments::get_mut`], which notes that the segment has to be looked at again.
//! - Free segments wait by device, and the next one opened comes from the device that has opened least for its size: so
//!   the flash of all devices is erased equally often (`docs/array.md`).
//! - `epoch` is the life that a scan would find: a free segment keeps its last one until the first header of
//!   the next life is durable.

mod leaving;

use crate::addr::SegmentId;
use crate::format::{HeaderNo, RECORDS_MAX};
use crate::placement::{Candidate, Candidates, StreamId};
use crate::places::Places;
use std::cmp::Ordering;
use std::collections::VecDeque;

/// What a segment serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SegmentUse {
    /// May be opened.
    Free,
    /// Appended to.
    Open(StreamId),
    /// Full, or never to be appended to.
    Closed,
    /// Nothing live; free as soon as this header is recorded as durable. `None`: the forming group frees it.
    Pending(Option<HeaderNo>),
    /// Free, and being discarded: may not be opened yet.
    Discarding,
    /// Free for the last time: the volume is about to end before it.
    Cut,
    /// Its headers can not be read: what is live stays, the rest is lost space.
    Retired,
    /// Its device is lost.
    Lost,
}

/// One life of a segment, from when it is opened until it is freed. Addresses come back, lives do not: whoever
/// remembers an address for longer than the lock is held remembers its life too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Life {
    pub(crate) segment: SegmentId,
    opened: u32,
}

/// What a stream holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamUse {
    /// Segments it wrote last, open and closed.
    pub segments: u64,
    /// Live grains in them, each as often as it has names.
    pub live: u64,
}

/// A segment.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) usage: SegmentUse,
    /// First header number of this life (of the last one, when free); 0 if it never had one.
    pub(crate) epoch: HeaderNo,
    /// The life before, as long as its headers may still be found.
    pub(crate) stale: HeaderNo,
    /// Grains appended.
    pub(crate) used: u32,
    /// Entries of the map that point here: a cloned grain counts under each of its names.
    pub(crate) live: u32,
    /// Trim, remap, clone and zero records at home here that must survive.
    pub(crate) records: u32,
    /// Reads in flight.
    pub(crate) readers: u32,
    /// Write-outs in flight.
    pub(crate) writing: u32,
    /// The forming group ends the life of something here.
    pub(crate) bound: bool,
    /// The stream that opened or adopted it last.
    pub(crate) stream: StreamId,
    /// How often it was opened since the volume was: each time its flash is erased once.
    pub(crate) opened: u32,
    /// When it was opened, in user grains.
    pub(crate) opened_at: u64,
    /// Its live grains have been staged; it empties when they are written.
    pub(crate) draining: bool,
    /// Waits in `Segments::stale` to be discarded, once it is free.
    queued: bool,
    /// It has been discarded while the volume was open, and not written since.
    discarded: bool,
    /// Times this life could not be collected.
    pub(crate) failures: u8,
    /// May not be filed as it is now.
    changed: bool,
}

/// All segments.
#[derive(Debug)]
pub(crate) struct Segments {
    places: Places,
    list: Vec<Segment>,
    /// The volume is to end before this one; all of them stay if it is the one behind the last.
    end: SegmentId,
    /// That is decided: nothing behind it is opened any more, whatever happens.
    ends: bool,
    /// By device.
    free: Vec<VecDeque<SegmentId>>,
    /// Free segments that have been written since they were discarded, the last one freed at the end; some may have been
    /// opened since.
    stale: VecDeque<SegmentId>,
    discarding: bool,
    /// No scan will ever find what is lost.
    forget_lost: bool,
    /// How often segments of each device have been opened.
    opened: Vec<u64>,
    pending: Vec<SegmentId>,
    /// Some of them may be due whatever `released` says: new, or held up by a reader.
    unsettled: bool,
    /// Those recorded up to here have been freed.
    released: HeaderNo,
    /// Those that the forming group has to do with.
    bound: Vec<SegmentId>,
    /// By stream, with the time of the last write-out.
    open: Vec<(Option<SegmentId>, u64)>,
    candidates: Candidates,
    /// Those that may not be filed as they are now.
    changed: Vec<SegmentId>,
}

impl Segments {
    pub(crate) fn new(places: &Places) -> Self {
        Self {
            places: *places,
            list: vec![Segment::BLANK; places.segment_count() as usize],
            end: SegmentId(places.segment_count()),
            ends: false,
            free: vec![VecDeque::new(); places.count()],
            stale: VecDeque::new(),
            discarding: false,
            forget_lost: false,
            opened: vec![0; places.count()],
            pending: Vec::new(),
            unsettled: false,
            released: HeaderNo(0),
            bound: Vec::new(),
            open: vec![(None, 0)],
            candidates: Candidates::default(),
            changed: Vec::new(),
        }
    }

    pub(crate) fn get(&self, id: SegmentId) -> &Segment {
        &self.list[id.0 as usize]
    }
    pub(crate) fn get_mut(&mut self, id: SegmentId) -> &mut Segment {
        let segment = &mut self.list[id.0 as usize];
        if !segment.changed {
            segment.changed = true;
            self.changed.push(id);
        }
        segment
    }
    pub(crate) fn count(&self) -> usize {
        self.list.len()
    }
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Segment> {
        self.list.iter()
    }
    /// For recovery, before [`Segments::start`].
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Segment> {
        self.list.iter_mut()
    }
    /// The present life of a segment.
    pub(crate) fn life(&self, id: SegmentId) -> Life {
        Life {
            segment: id,
            opened: self.get(id).opened,
        }
    }
    pub(crate) fn free_count(&self) -> usize {
        self.free.iter().map(VecDeque::len).sum()
    }
    pub(crate) fn free_on(&self, device: usize) -> usize {
        self.free[device].len()
    }
    /// How often segments of a device were opened since the volume was.
    pub(crate) fn opened_on(&self, device: usize) -> u64 {
        self.opened[device]
    }
    /// Those that will be free; what is about to be cut off will not.
    pub(crate) fn pending_count(&self) -> usize {
        match self.are_leaving() {
            false => self.pending.len(),
            true => self.pending.iter().filter(|&&id| id < self.end).count(),
        }
    }
    /// Recovery is over and no segment is open: sets the number of streams, and files what there is.
    pub(crate) fn start(&mut self, streams: usize, grains: u32) {
        self.open = vec![(None, 0); streams];
        self.candidates = Candidates::new(self.list.len(), grains);
        self.changed.clear();
        for (index, segment) in self.list.iter_mut().enumerate() {
            segment.changed = true;
            self.changed.push(SegmentId(index as u32));
        }
    }

    /// What collection may choose from, as it is now.
    pub(crate) fn candidates(&mut self, grains: u32) -> &Candidates {
        for id in self.changed.drain(..) {
            let segment = &mut self.list[id.0 as usize];
            segment.changed = false;
            let stays = id < self.end;
            let candidate = segment.candidate(id, grains).filter(|_| stays);
            self.candidates.file(id, candidate);
        }
        &self.candidates
    }
    pub(crate) fn open(&self, stream: StreamId) -> Option<SegmentId> {
        self.open[stream.index()].0
    }

    /// The open segment whose stream is nearest to `stream` among those with room for `need` grains.
    pub(crate) fn open_near(&self, stream: StreamId, need: u32, grains: u32) -> Option<SegmentId> {
        let near = |&(index, _): &(usize, SegmentId)| index.abs_diff(stream.index());
        let all = self.open.iter().enumerate();
        all.filter_map(|(index, open)| Some((index, open.0?)))
            .filter(|&(_, id)| grains - self.get(id).used >= need)
            .min_by_key(near)
            .map(|(_, id)| id)
    }

    /// A write-out goes to the open segment of `stream` at `now`.
    pub(crate) fn touch(&mut self, stream: StreamId, now: u64) {
        self.open[stream.index()].1 = now;
    }

    /// Gives `stream` the open segment of one that has not been written to since `before`, if there is one.
    pub(crate) fn adopt(
        &mut self,
        stream: StreamId,
        before: u64,
        need: u32,
        grains: u32,
    ) -> Option<SegmentId> {
        let idle = self.open.iter().position(|&(open, used)| {
            used < before && open.is_some_and(|id| grains - self.list[id.0 as usize].used >= need)
        })?;
        let id = self.open[idle].0.take()?;
        let segment = self.get_mut(id);
        segment.usage = SegmentUse::Open(stream);
        segment.stream = stream;
        self.open[stream.index()].0 = Some(id);
        Some(id)
    }

    /// Whether everything that is filed is filed as it is. For tests.
    pub(crate) fn are_filed(&self, grains: u32) -> bool {
        let mut all = (0..self.list.len() as u32).map(SegmentId);
        all.all(|id| {
            let segment = self.get(id);
            let candidate = segment.candidate(id, grains).filter(|_| id < self.end);
            segment.changed || self.candidates.get(id) == candidate
        })
    }

    /// What each stream holds.
    pub(crate) fn by_stream(&self) -> Vec<StreamUse> {
        let mut streams = vec![StreamUse::default(); self.open.len()];
        for segment in &self.list {
            if matches!(segment.usage, SegmentUse::Open(_) | SegmentUse::Closed) {
                let stream = &mut streams[segment.stream.index()];
                stream.segments += 1;
                stream.live += u64::from(segment.live);
            }
        }
        streams
    }

    /// Builds the free list after recovery, oldest life first: reuse in this order lets tombstones die.
    pub(crate) fn rebuild_free(&mut self) {
        let mut free: Vec<SegmentId> = (0..self.list.len() as u32)
            .map(SegmentId)
            .filter(|&id| self.get(id).usage == SegmentUse::Free)
            .collect();
        free.sort_by_key(|&id| (self.get(id).epoch, id));
        self.free.iter_mut().for_each(VecDeque::clear);
        self.stale.clear();
        for id in free {
            let segment = &mut self.list[id.0 as usize];
            segment.queued = segment.epoch != HeaderNo(0);
            if segment.queued {
                self.stale.push_back(id);
            }
            self.free[self.places.device_of_segment(id)].push_back(id);
        }
    }

    /// Takes a segment off the free list to discard it, if more than `keep` are free.
    pub(crate) fn begin_discard(&mut self, keep: usize) -> Option<SegmentId> {
        if self.free_count() <= keep {
            return None;
        }
        while let Some(id) = self.stale.pop_back() {
            self.get_mut(id).queued = false;
            if self.get(id).usage != SegmentUse::Free {
                continue;
            }
            let free = &mut self.free[self.places.device_of_segment(id)];
            let at = free.iter().rposition(|&other| other == id);
            free.remove(at.expect("free segments are on the list"));
            self.get_mut(id).usage = SegmentUse::Discarding;
            self.discarding = true;
            return Some(id);
        }
        None
    }

    /// All free segments that are not known to be discarded wait for it from now on, the one that is opened next first; how
    /// many that are.
    pub(crate) fn want_discard(&mut self) -> usize {
        for id in std::mem::take(&mut self.stale) {
            self.get_mut(id).queued = false;
        }
        let free = self.free.iter().flat_map(|free| free.iter().rev());
        self.stale = free
            .copied()
            .filter(|&id| !self.get(id).discarded)
            .collect();
        for index in 0..self.stale.len() {
            self.get_mut(self.stale[index]).queued = true;
        }
        self.stale.len()
    }

    pub(crate) fn is_discarding(&self) -> bool {
        self.discarding
    }

    /// A segment has been discarded, and is free again.
    pub(crate) fn end_discard(&mut self, id: SegmentId) {
        self.discarding = false;
        let stays = id < self.end;
        let segment = self.get_mut(id);
        if segment.usage == SegmentUse::Lost {
            return;
        }
        assert_eq!(segment.usage, SegmentUse::Discarding, "being discarded");
        if !stays {
            segment.usage = SegmentUse::Cut;
            return;
        }
        segment.usage = SegmentUse::Free;
        segment.discarded = true;
        self.free[self.places.device_of_segment(id)].push_back(id);
    }

    /// A device is lost, and all of its segments with it.
    pub(crate) fn lose(&mut self, device: usize) {
        let lost = self.places.segments(device);
        for id in lost.clone().map(SegmentId) {
            self.get_mut(id).usage = SegmentUse::Lost;
        }
        self.free[device].clear();
        self.pending.retain(|id| !lost.contains(&id.0));
        for (open, _) in &mut self.open {
            *open = open.filter(|id| !lost.contains(&id.0));
        }
    }

    /// The loss is recorded: no scan will look there any more.
    pub(crate) fn forget_lost(&mut self) {
        self.forget_lost = true;
    }

    /// Live grains that are lost.
    pub(crate) fn lost_live(&self) -> u64 {
        let lost = self.list.iter().filter(|s| s.usage == SegmentUse::Lost);
        lost.map(|s| u64::from(s.live)).sum()
    }

    /// Whether no write-out is in flight to what is lost.
    pub(crate) fn lost_are_written(&self) -> bool {
        let mut lost = self.list.iter().filter(|s| s.usage == SegmentUse::Lost);
        lost.all(|s| s.writing == 0)
    }

    /// The device that will have opened least for its size once all that is free there, or becoming free, has been, if
    /// another one will have opened more by more than `percent`: it holds what nobody overwrites. `draining` are victims.
    pub(crate) fn behind(
        &self,
        percent: u128,
        draining: impl Iterator<Item = SegmentId>,
    ) -> Option<usize> {
        let mut soon: Vec<u128> = (0..self.free.len())
            .map(|device| u128::from(self.opened[device]) + self.free[device].len() as u128)
            .collect();
        let coming = self.pending.iter().copied().chain(draining);
        for id in coming {
            soon[self.places.device_of_segment(id)] += 1;
        }
        let size = |device| self.places.segments(device).len() as u128;
        let compare = |a: &usize, b: &usize| (soon[*a] * size(*b)).cmp(&(soon[*b] * size(*a)));
        let least = (0..soon.len()).min_by(compare)?;
        let most = (0..soon.len()).max_by(compare)?;
        // One segment more on the smallest device is no reason.
        let (mine, others) = ((soon[least] + 1) * size(most), soon[most] * size(least));
        (mine * (100 + percent) < others * 100).then_some(least)
    }

    /// Which of two devices has opened a smaller share of its segments.
    fn compare_wear(&self, a: usize, b: usize) -> Ordering {
        let size = |device| self.places.segments(device).len() as u128;
        let one = u128::from(self.opened[a]) * size(b);
        one.cmp(&(u128::from(self.opened[b]) * size(a)))
    }

    /// The candidate on a device with the fewest live grains.
    pub(crate) fn emptiest_on(&mut self, device: usize, grains: u32) -> Option<SegmentId> {
        let segments = self.places.segments(device);
        let candidates = self.candidates(grains);
        let here = segments.filter_map(|id| candidates.get(SegmentId(id)));
        here.min_by_key(|c| (c.live, c.opened_at)).map(|c| c.id)
    }

    /// Takes the segment to be opened next off the free list.
    fn take_free(&mut self) -> Option<SegmentId> {
        let has_one = |&device: &usize| !self.free[device].is_empty();
        let devices = (0..self.free.len()).filter(has_one);
        let least = devices.min_by(|&a, &b| self.compare_wear(a, b))?;
        self.opened[least] += 1;
        self.free[least].pop_front()
    }

    /// When nothing is free among what stays, collection there needs somewhere to begin. What is opened here has to be
    /// emptied again.
    fn take_cut(&mut self) -> Option<SegmentId> {
        let is_cut = |&(_, s): &(SegmentId, &Segment)| s.usage == SegmentUse::Cut;
        let cut = self.leaving().find(is_cut).filter(|_| !self.ends)?;
        Some(cut.0)
    }

    /// Opens a free segment for `stream` if more than `keep` are free.
    pub(crate) fn open_next(
        &mut self,
        stream: StreamId,
        keep: usize,
        now: u64,
    ) -> Option<SegmentId> {
        assert!(self.open(stream).is_none(), "one open segment per stream");
        let id = match self.free_count() > keep {
            true => self.take_free()?,
            false => self.take_cut()?,
        };
        let segment = self.get_mut(id);
        segment.usage = SegmentUse::Open(stream);
        segment.stale = segment.epoch;
        segment.epoch = HeaderNo(0);
        segment.used = 0;
        segment.failures = 0;
        segment.opened_at = now;
        segment.opened += 1;
        segment.discarded = false;
        segment.stream = stream;
        segment.draining = false;
        self.open[stream.index()] = (Some(id), now);
        Some(id)
    }

    /// Closes the open segment of `stream`.
    pub(crate) fn close(&mut self, stream: StreamId) -> Option<SegmentId> {
        let id = self.open[stream.index()].0.take()?;
        self.get_mut(id).usage = SegmentUse::Closed;
        Some(id)
    }

    /// The forming group ends the life of something here: until the group has its number, a crash brings it back.
    pub(crate) fn bind_to_group(&mut self, id: SegmentId) {
        let segment = self.get_mut(id);
        if !segment.bound {
            segment.bound = true;
            self.bound.push(id);
        }
    }

    /// If nothing in a closed segment is needed any more, it waits for `freed_at` (or the forming group's number).
    pub(crate) fn retire_if_empty(&mut self, id: SegmentId, freed_at: HeaderNo) {
        let segment = self.get_mut(id);
        if segment.usage == SegmentUse::Closed
            && segment.live == 0
            && segment.records == 0
            && segment.writing == 0
        {
            let freed_at = (!segment.bound).then_some(freed_at);
            segment.usage = SegmentUse::Pending(freed_at);
            self.pending.push(id);
            self.unsettled = true;
        }
    }

    /// The forming group got its number.
    pub(crate) fn group_assembled(&mut self, no: HeaderNo) {
        for id in self.bound.drain(..) {
            let segment = &mut self.list[id.0 as usize];
            segment.bound = false;
            if segment.usage == SegmentUse::Pending(None) {
                segment.usage = SegmentUse::Pending(Some(no));
            }
        }
    }

    /// Frees what may be freed once everything up to `recorded` is recorded as durable.
    pub(crate) fn release(&mut self, recorded: HeaderNo) -> usize {
        // Asked after every call, and seldom is there something new.
        if recorded == self.released && !self.unsettled {
            return 0;
        }
        self.released = recorded;
        self.unsettled = false;
        let before = self.pending.len();
        let (list, free, places) = (&mut self.list, &mut self.free, &self.places);
        let stale = &mut self.stale;
        let (unsettled, end) = (&mut self.unsettled, self.end);
        self.pending.retain(|&id| {
            let segment = &mut list[id.0 as usize];
            let due = matches!(segment.usage, SegmentUse::Pending(Some(at)) if at <= recorded);
            if due && segment.readers == 0 {
                segment.used = 0;
                if id >= end {
                    segment.usage = SegmentUse::Cut;
                    return false;
                }
                segment.usage = SegmentUse::Free;
                free[places.device_of_segment(id)].push_back(id);
                if !std::mem::replace(&mut segment.queued, true) {
                    stale.push_back(id);
                }
                return false;
            }
            *unsettled |= due;
            true
        });
        before - self.pending.len()
    }

    /// Whether anything waits to become free.
    pub(crate) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Whether all that a scan can find in a segment is its present life.
    pub(crate) fn is_opened(&self, id: SegmentId, durable: HeaderNo) -> bool {
        let epoch = self.get(id).epoch;
        epoch != HeaderNo(0) && epoch <= durable
    }

    /// Whether a segment has been given up, and no write-out is in flight.
    pub(crate) fn some_lost_all_written(&self) -> bool {
        let retired = |s: &Segment| matches!(s.usage, SegmentUse::Retired | SegmentUse::Lost);
        self.list.iter().any(retired) && self.list.iter().all(|s| s.writing == 0)
    }

    /// Whether a segment will be free only after the forming group is written.
    pub(crate) fn wait_for_group(&self) -> bool {
        let waits = |id: &SegmentId| self.get(*id).usage == SegmentUse::Pending(None);
        self.pending.iter().any(waits)
    }

    /// The lowest header number whose recording would free a pending segment.
    pub(crate) fn pending_next(&self) -> Option<HeaderNo> {
        self.pending
            .iter()
            .filter_map(|&id| match self.get(id).usage {
                SegmentUse::Pending(at) => at,
                _ => None,
            })
            .min()
    }

    /// The oldest life that a scan of the media could still find.
    pub(crate) fn oldest_life(&self, durable: HeaderNo) -> Option<HeaderNo> {
        let is_found = |s: &&Segment| !(self.forget_lost && s.usage == SegmentUse::Lost);
        self.list
            .iter()
            .filter(is_found)
            .map(|s| s.visible_epoch(durable))
            .filter(|&e| e != HeaderNo(0))
            .min()
    }
}

impl Segment {
    /// Never written.
    const BLANK: Self = Self {
        usage: SegmentUse::Free,
        epoch: HeaderNo(0),
        stale: HeaderNo(0),
        used: 0,
        live: 0,
        records: 0,
        readers: 0,
        writing: 0,
        bound: false,
        stream: StreamId(0),
        opened: 0,
        opened_at: 0,
        draining: false,
        queued: false,
        discarded: false,
        failures: 0,
        changed: false,
    };

    /// Grains that relocating what is needed here takes.
    pub(crate) fn cost(&self) -> u32 {
        self.live + self.records.div_ceil(RECORDS_MAX as u32)
    }

    fn candidate(&self, id: SegmentId, grains: u32) -> Option<Candidate> {
        let is_one = self.usage == SegmentUse::Closed && self.writing == 0 && !self.draining;
        is_one.then(|| Candidate {
            id,
            live: self.cost().min(grains),
            grains,
            opened_at: self.opened_at,
            epoch: self.epoch.0,
        })
    }

    /// The oldest life of this segment that a scan could find: the one before counts until the new first header is
    /// durable.
    pub(crate) fn visible_epoch(&self, durable: HeaderNo) -> HeaderNo {
        let replaced = self.epoch != HeaderNo(0) && self.epoch <= durable;
        if self.stale != HeaderNo(0) && !replaced {
            self.stale
        } else {
            self.epoch
        }
    }
}
