//! Write-outs: a header and its data grains, put together in a staging buffer and written by one device write.
//!
//! Assembly happens under the lock in one go: numbers are given, pages are copied (holders may go on writing the
//! frames) and checksummed, the map is told. So the order of versions is the order of contents: an older copy of a
//! page never gets a higher version, and what is put later marks its page dirty again.

use super::stages::{StageUse, WriteOut};
use super::sync::DurableWaiter;
use super::{Core, Cx};
use crate::addr::{GRAIN_BYTES, Lba, Pba, SegmentId};
use crate::crash_point::crash_point;
use crate::device::MediaOp;
use crate::format::{Header, HeaderNo, RECORDS_MAX, Record, RecordKind, Stream, Version};
use crate::geometry::RESERVED_SEGMENTS;
use crate::map::{FrameId, Location, State};
use crate::page::Slot;
use crate::placement::StreamId;
use crate::planted::Bug;
use crate::port::Op;
use crate::records::{Fate, Home, Tombstone};
use crate::stats::count;
use std::sync::atomic::Ordering;

use super::group::GroupRecord;

/// Urgent pages up to this many go out together whatever their streams are: one device write, one header.
const URGENT_TOGETHER: usize = 32;
impl Core {
    /// Whether free segments are so few that relocation must use as little of them as it can.
    pub(super) fn is_tight(&self) -> bool {
        self.segments.free_count() + self.segments.pending_count() < RESERVED_SEGMENTS
    }

    /// Finds room for `need` grains in the open segment of `stream`, or of another one when no segment may be
    /// opened; returns how many there are. `for_users`: may not use the reserve.
    pub(super) fn room(
        &mut self,
        stream: StreamId,
        need: usize,
        for_users: bool,
    ) -> Option<(SegmentId, usize)> {
        let grains = self.geometry.segment_grains;
        let now = self.placement.now();
        self.segments.touch(stream, now);
        // Streams are shared: what relocation has opened out of the reserve is not for users.
        let group_frees = self.segments.wait_for_group();
        // Until a loss is recorded nothing more is set free, so what it takes comes out of the reserve.
        let reserved = match self.loss.is_whole() {
            true => RESERVED_SEGMENTS,
            false => 1,
        };
        // The recording waits for the group, so that takes what is left of open segments.
        let is_awaited = !self.loss.is_whole() && !self.group.is_empty();
        if for_users && !group_frees && !is_awaited && self.segments.free_count() < reserved {
            return None;
        }
        if let Some(id) = self.segments.open(stream) {
            let room = (grains - self.segments.get(id).used) as usize;
            if room >= need {
                return Some((id, room));
            }
            let freed_at = self.log.last();
            let id = self.segments.close(stream).expect("open segment");
            crash_point!("seal");
            self.segments.retire_if_empty(id, freed_at);
        }
        let keep = match for_users {
            // The forming group frees a segment once it is written: waiting for free segments would be waiting for
            // itself. It gives back what it takes.
            true if group_frees => 1,
            true => reserved,
            // The last one is for the header that lets pending segments go; until a loss is recorded none can.
            false if !self.loss.is_whole() => 1,
            false if need > 1 && self.segments.pending_count() > 0 => 1,
            false => 0,
        };
        let need = need as u32;
        let room = |core: &Self, id| (grains - core.segments.get(id).used) as usize;
        // Segments of streams that have fallen idle are used up, and when free ones are scarce all that are open.
        let idle_before = now.saturating_sub(self.geometry.capacity_grains / 4);
        let mut open = self.segments.adopt(stream, idle_before, need, grains);
        if open.is_none() && self.segments.free_count() <= keep.max(RESERVED_SEGMENTS) {
            open = self.segments.open_near(stream, need, grains);
        }
        if let Some(id) = open {
            return Some((id, room(self, id)));
        }
        let id = self.segments.open_next(stream, keep, now)?;
        if for_users {
            self.collector.segment_opened();
        }
        Some((id, grains as usize))
    }

    /// Writes out what is due: the forming group and a few urgent pages at once, others by stream. True if something
    /// was started.
    pub(super) fn assemble_user(&mut self, cx: Cx<'_>) -> bool {
        self.space_wanted = false;
        if self.failed.is_some() || self.phase.is_sealed() {
            return false;
        }
        let few = self.dirty.has_urgent() && self.dirty.urgent_count() <= URGENT_TOGETHER;
        let prompt = few || self.is_group_due();
        // What forms may not overtake the group.
        if prompt && !self.assemble_prompt(cx) {
            return false;
        }
        self.form(cx) | prompt
    }

    /// One write-out with the forming group and a few urgent pages.
    fn assemble_prompt(&mut self, cx: Cx<'_>) -> bool {
        let due = self.group.pages.len() + self.dirty.urgent_count();
        if self.gathers() && due < self.geometry.write_out_data_max() {
            return false;
        }
        let Some(stage) = self.stages.take(StageUse::Prompt) else {
            return false;
        };
        let need = 1 + self
            .group
            .pages
            .len()
            .max(usize::from(self.group.records.is_empty()));
        let first = self
            .group
            .pages
            .first_key_value()
            .map(|(&lba, &frame)| (lba, frame));
        let first = first.or_else(|| {
            let lba = self.dirty.first_urgent()?;
            match cx.sh.map.state(lba) {
                State::Resident(r) => Some((lba, r.frame)),
                _ => None,
            }
        });
        let stream = match first {
            Some((lba, frame)) => self.placement.peek(lba, self.frames[frame.0 as usize].heat),
            None => self.last_stream(),
        };
        let Some((segment, room)) = self.room(stream, need, true) else {
            self.space_wanted = true;
            self.stages.give_back(stage);
            return false;
        };
        let atomic = !self.group.is_empty();
        let is_awaited =
            !self.group.waiters.is_empty() || !self.syncs.is_empty() || self.dirty.has_urgent();
        let slots = self.group.slots();
        let pages_max = (room - 1).min(self.geometry.write_out_data_max());
        let single = cx.sh.has_bug(Bug::BatchNotAtomic) && self.group.pages.len() > 1;
        let mut pages: Vec<(Lba, FrameId)> = Vec::with_capacity(pages_max);
        let records = std::mem::take(&mut self.group.records);
        if single {
            pages.extend(self.group.pages.pop_first());
        } else {
            pages.extend(std::mem::take(&mut self.group.pages));
            let limit = pages_max.min(RECORDS_MAX - slots);
            self.pick_urgent(cx, limit, &mut pages);
        }
        if pages.is_empty() && records.is_empty() {
            self.stages.give_back(stage);
            return true;
        }

        let at = self.place(segment);
        let no = self.log.assemble(at);
        let home = Home {
            header: no,
            segment,
        };
        let mut header = self.header(cx, no, at, Stream::User, atomic);
        self.settle_records(cx, &records, home, &mut header.records);
        let base = cx.sh.pool.stage(stage);
        let mut copied = Vec::with_capacity(pages.len());
        for (index, &(lba, frame)) in pages.iter().enumerate() {
            let to = Pba(at.0 + 1 + index as u64);
            let crc = self.stage_page(cx, lba, frame, base.plus(1 + index), to);
            header.records.push(Record {
                lba,
                version: Version::new(no, header.records.len()),
                kind: RecordKind::Data { crc },
            });
            copied.push((frame, self.frames[frame.0 as usize].life));
        }
        if atomic && !single {
            for (port, token) in self.group.take_waiters() {
                self.durable_waiters.push_back(DurableWaiter {
                    no,
                    port,
                    token,
                    sync: None,
                });
            }
            self.group.wanted = false;
            self.groups_done += 1;
            self.segments.group_assembled(no);
            // The batch's own pins end here; until now they kept the pages from being evicted.
            for index in 0..self.group.pins.len() {
                let (lba, frame) = self.group.pins[index];
                self.unpin_internal(cx, lba, frame);
            }
            self.group.pins.clear();
        }
        if cx.sh.has_bug(Bug::WriteThroughVouchesForAll) {
            self.log.write_through();
        } else if is_awaited {
            self.log.write_through_if_no_flush();
        }
        count(&cx.sh.counters.user_grains, copied.len() as u64);
        self.stages.list[stage] = WriteOut {
            no,
            segment: Some(segment),
            pages: copied,
            ..WriteOut::default()
        };
        self.emit(cx, stage, segment, &header);
        true
    }

    /// Whether who wants something durable now had better share the next write-out: enough are on their way, or a flush
    /// is due, and what is assembled before its end would want another.
    fn gathers(&self) -> bool {
        // Without a waiter whose pages have all been assembled no flush will come.
        let flushed = self.log.flushed();
        let is_awaited = self.durable_waiters.back().is_some_and(|w| w.no > flushed);
        let flush_is_due = is_awaited && self.log.needs_flush();
        self.log.is_flushing() || flush_is_due || self.log.is_going_through()
    }

    /// Adds urgent pages.
    fn pick_urgent(&mut self, cx: Cx<'_>, limit: usize, pages: &mut Vec<(Lba, FrameId)>) {
        let grouped = pages.len();
        while pages.len() < limit
            && let Some(lba) = self.dirty.pop_urgent()
        {
            if let State::Resident(r) = cx.sh.map.state(lba)
                && r.dirty
                && !pages[..grouped].iter().any(|&(l, _)| l == lba)
            {
                pages.push((lba, r.frame));
                self.mark_clean(lba, r.frame);
            }
        }
    }

    pub(super) fn mark_clean(&self, lba: Lba, frame: FrameId) {
        let leaf = self.frames[frame.0 as usize].leaf();
        leaf.entry(lba).clean(frame);
    }

    /// Copies a page to its place in the write-out and moves the grain there.
    fn stage_page(&mut self, cx: Cx<'_>, lba: Lba, frame: FrameId, slot: Slot, to: Pba) -> u32 {
        self.mark_clean(lba, frame);
        self.dirty.remove(lba);
        let crc = self.copy_page(cx, frame, slot);
        let copy = self.formings.next_copy();
        let known = &mut self.frames[frame.0 as usize];
        known.writing += 1;
        known.joined = copy;
        let (_, heat) = self.placement.write(lba, known.heat);
        self.frames[frame.0 as usize].heat = heat;
        self.arrive(frame, copy, to, crc);
        crc
    }

    /// Copies a page and returns its checksum. Clean first, copy second: a write put after this moment marks the page
    /// again.
    pub(super) fn copy_page(&self, cx: Cx<'_>, frame: FrameId, slot: Slot) -> u32 {
        if cx.sh.dataless {
            return 0;
        }
        let arena = &cx.sh.pool.arena;
        let copy = || arena.copy_slot(cx.sh.pool.frame(frame), slot);
        match cx.sh.has_bug(Bug::CopiedAmidChange) {
            true => copy(),
            false => cx.sh.pool.gate(frame).copy(copy),
        }
        if cx.sh.pool.is_shared(frame) {
            // Of the copy: what is stored later shows.
            let digest = arena.digest(slot);
            cx.sh.pool.seen(frame).store(digest, Ordering::Relaxed);
        }
        arena.crc(slot)
    }

    /// A copy of a page has got its place: the grain is there from now on. Returns its name.
    pub(super) fn arrive(&mut self, frame: FrameId, copy: u64, to: Pba, crc: u32) -> Lba {
        let known = &mut self.frames[frame.0 as usize];
        known.written = copy;
        let lba = known.lba;
        known.leaf().set_crc(lba, crc);
        let old = self.set_media(frame, Location::Media(to));
        self.checkpointer.changes.note(lba);
        let segment = self.geometry.segment_of(to);
        self.segments.get_mut(segment).live += 1;
        self.leave(old);
        self.collector.page_placed();
        lba
    }

    /// Gives trims, zeros, remaps and clones of the group their versions, in the order they took effect.
    fn settle_records(
        &mut self,
        cx: Cx<'_>,
        records: &[GroupRecord],
        home: Home,
        out: &mut Vec<Record>,
    ) {
        for record in records {
            let version = Version::new(home.header, out.len());
            match *record {
                GroupRecord::Trim(range) => {
                    if cx.sh.has_bug(Bug::TrimResurrected) {
                        continue;
                    }
                    let fate = Fate::Trimmed(range);
                    self.records
                        .add_tombstone(version, Tombstone { fate, home });
                    out.push(Record {
                        lba: range.start,
                        version,
                        kind: RecordKind::Trim {
                            count: range.count as u32,
                        },
                    });
                }
                GroupRecord::Rename(renaming) => {
                    let fate = Fate::Renamed(renaming);
                    self.records
                        .add_tombstone(version, Tombstone { fate, home });
                    self.renamed = home.header;
                    out.push(Record {
                        lba: renaming.ranges().from,
                        version,
                        kind: RecordKind::of(renaming),
                    });
                }
                GroupRecord::Zero(id) => {
                    if self.records.zero(id).live == 0 {
                        self.records.remove_zero(id);
                        continue;
                    }
                    self.records.settle_zero(id, version, home);
                    let range = self.records.zero(id).range;
                    out.push(Record {
                        lba: range.start,
                        version,
                        kind: RecordKind::Zero {
                            count: range.count as u32,
                        },
                    });
                }
            }
            self.segments.get_mut(home.segment).records += 1;
        }
    }

    /// Where the next header of an open segment goes.
    pub(super) fn place(&self, segment: SegmentId) -> Pba {
        let start = self.geometry.segment_start(segment);
        Pba(start.0 + u64::from(self.segments.get(segment).used))
    }

    /// The header of a write-out at `at`, without records. `no` has just been assigned.
    pub(super) fn header(
        &mut self,
        cx: Cx<'_>,
        no: HeaderNo,
        at: Pba,
        stream: Stream,
        atomic: bool,
    ) -> Header {
        let (segment, position) = self.geometry.locate(at).expect("inside a segment");
        if position == 0 {
            self.segments.get_mut(segment).epoch = no;
        }
        let now = cx.sh.now.load(Ordering::Relaxed);
        Header {
            volume: self.superblock.volume_tag(),
            session: self.superblock.session,
            no,
            epoch: self.segments.get(segment).epoch,
            back: self.log.previous(),
            durable: self.log.durable(),
            time_ns: now.wrapping_add(cx.sh.wall_offset_ns),
            segment,
            position,
            stream,
            placement: Some(self.segments.get(segment).stream.0),
            atomic,
            records: Vec::with_capacity(RECORDS_MAX),
        }
    }

    /// Writes a staged write-out.
    pub(super) fn emit(&mut self, cx: Cx<'_>, stage: usize, segment: SegmentId, header: &Header) {
        let grains = header.grains();
        let known = self.segments.get_mut(segment);
        assert_eq!(known.used, header.position, "segments are appended to");
        known.used += grains;
        known.writing += 1;
        assert!(
            known.used <= self.geometry.segment_grains,
            "segment overrun"
        );
        let base = cx.sh.pool.stage(stage);
        cx.sh.pool.arena.copy_in(base, 0, &header.emit()[..]);
        let start = self.geometry.segment_start(segment).0 + u64::from(header.position);
        let offset = start * GRAIN_BYTES as u64;
        let mut count_now = grains as usize;
        if cx.sh.has_bug(Bug::MappingBeforeData) && grains > 1 {
            let data = (offset + GRAIN_BYTES as u64, base.plus(1), count_now - 1);
            self.stages.list[stage].late_data = Some(data);
            count_now = 1;
        }
        let buf = cx.sh.pool.lend(base, count_now);
        let durable = self.log.last_goes_through();
        let op = MediaOp::Write {
            offset,
            buf,
            durable,
        };
        self.act(cx, Op::WriteOut { stage }, op);
        count(&cx.sh.counters.header_grains, 1);
        count(&cx.sh.counters.write_outs, 1);
    }
}
