//! Collection: relocating what is live in a victim so that its segment can be reused.
//!
//! One victim at a time. It is read from front to back; headers say what each grain was, the map says what is still
//! live. Live grains are copied with their original version and checksum (a damaged grain stays damaged, it is not
//! laundered) and the map follows when the copy is on the media. A reader who already reads the old place keeps it:
//! the segment is not reused while reads are in flight.

use super::write_out::{Move, WriteOut};
use super::{Core, Cx};
use crate::addr::{GRAIN_BYTES, Lba, LbaRange, Pba, SegmentId};
use crate::crash_point::crash_point;
use crate::device::{MediaError, MediaOp};
use crate::format::{Header, HeaderNo, RECORDS_MAX, Record, RecordKind, Stream, Version};
use crate::geometry::RESERVED_SEGMENTS;
use crate::map::{Location, ZeroId};
use crate::planted::Bug;
use crate::port::Op;
use crate::records::Home;
use crate::segment::SegmentUse;
use crate::stats::count;

/// Times a victim that the device can not read is tried.
const COLLECT_TRIES: u8 = 4;

/// Relocations staged and not yet assembled.
#[derive(Debug)]
struct Batch {
    stage: usize,
    limit: usize,
    /// Data records, each with the place it comes from; copied to the stage in this order.
    grains: Vec<(Record, Pba)>,
    records: Vec<(Record, HeaderNo)>,
}

/// What happens to the victim's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scan {
    /// Nothing is being read.
    Idle,
    /// A read from this position on is in flight.
    Reading(u32),
    /// Grains from a position on are in the buffer.
    Loaded { from: u32, grains: u32 },
}

#[derive(Debug)]
struct Victim {
    id: SegmentId,
    /// Position of the next header, and the next record in it.
    position: u32,
    record: usize,
    scan: Scan,
    batch: Option<Batch>,
    /// Write-outs in flight, by stage.
    writing: Vec<usize>,
    /// Something has been relocated since the front.
    moved: bool,
    /// The device could not read it; it may next time.
    unread: bool,
}

/// The collector.
#[derive(Debug, Default)]
pub(super) struct Collector {
    victim: Option<Victim>,
    /// Old segments may be rewritten to let tombstones die: one for each segment the user stream opens.
    aging_credit: bool,
}

impl Collector {
    pub(super) fn segment_opened(&mut self) {
        self.aging_credit = true;
    }

    pub(super) fn is_idle(&self) -> bool {
        self.victim.is_none()
    }

    pub(super) fn write_out_done(&mut self, stage: usize) {
        if let Some(victim) = &mut self.victim {
            victim.writing.retain(|&s| s != stage);
        }
    }
}

impl Core {
    /// Goes on with the victim, or chooses one if segments run short.
    pub(super) fn collect(&mut self, cx: Cx<'_>) -> bool {
        if self.failed.is_some() || self.phase.is_sealed() || !self.cold.is_warm() {
            return false;
        }
        let Some(victim) = &self.collector.victim else {
            let Some(id) = self.choose_victim(cx) else {
                return false;
            };
            count(&cx.sh.counters.victims, 1);
            crash_point!("gc.victim");
            self.expire_tombstones(cx);
            self.collector.victim = Some(Victim {
                id,
                position: 0,
                record: 0,
                scan: Scan::Idle,
                batch: None,
                writing: Vec::new(),
                moved: false,
                unread: false,
            });
            return true;
        };
        let (id, position) = (victim.id, victim.position);
        let end = self.segments.get(id).used;
        match victim.scan {
            Scan::Reading(_) => false,
            Scan::Loaded { .. } => self.relocate(cx),
            Scan::Idle if position < end => {
                self.read_victim(cx, id, position, end);
                true
            }
            Scan::Idle if victim.batch.is_some() => self.assemble_relocation(cx),
            Scan::Idle if victim.writing.is_empty() => {
                let (moved, unread) = (victim.moved, victim.unread);
                self.collector.victim = None;
                if moved && self.segments.get(id).usage == SegmentUse::Closed {
                    // Pieces of zero records were left over; chosen again, it goes on.
                    return true;
                }
                let segment = self.segments.get_mut(id);
                if segment.usage == SegmentUse::Closed {
                    segment.failures += 1;
                    if !unread || segment.failures == COLLECT_TRIES {
                        // Something live that no readable header names: leave it alone for good.
                        tracing::warn!(%id, live = segment.live, "segment can not be collected");
                        segment.usage = SegmentUse::Retired;
                    }
                }
                true
            }
            Scan::Idle => false,
        }
    }

    fn expire_tombstones(&mut self, cx: Cx<'_>) {
        let Some(oldest) = self.segments.oldest_life(self.log.durable()) else {
            return;
        };
        let oldest = oldest.min(self.tombstone_floor(cx).next());
        for gone in self.records.expire(oldest) {
            self.segments.get_mut(gone.home.segment).records -= 1;
            let freed_at = self.log.last();
            self.segments.retire_if_empty(gone.home.segment, freed_at);
        }
    }

    /// A victim if one is needed. When the user stream is stuck, whatever gains most; before that, only segments
    /// with much to gain; and an old one when there are too many tombstones.
    fn choose_victim(&mut self, cx: Cx<'_>) -> Option<SegmentId> {
        let grains = self.geometry.segment_grains;
        let coming = self.segments.free_count() + self.segments.pending_count();
        let closed = |s: &crate::segment::Segment| s.usage == SegmentUse::Closed && s.writing == 0;
        let all = self.segments.list.iter().enumerate();
        let candidates = all.filter(|(_, s)| closed(s));
        let bound = 198.max(self.geometry.capacity_grains as usize / 8);
        if self.records.trims.len() > bound && self.collector.aging_credit {
            self.expire_tombstones(cx);
            if self.records.trims.len() > bound {
                self.collector.aging_credit = false;
                let all = self.segments.list.iter().enumerate();
                let oldest = all.filter(|(_, s)| closed(s)).min_by_key(|(_, s)| s.epoch);
                return oldest.map(|(i, _)| SegmentId(i as u32));
            }
            return None;
        }
        let comfortable = RESERVED_SEGMENTS + (self.segments.list.len() / 32).max(2);
        let stuck = self.space_wanted && self.segments.pending_next().is_none();
        if coming >= comfortable && !stuck {
            return None;
        }
        let cost = |s: &crate::segment::Segment| s.live + s.records.div_ceil(RECORDS_MAX as u32);
        let (index, best) = candidates.min_by_key(|(i, s)| (cost(s), *i))?;
        let gain = grains.saturating_sub(cost(best) + 1);
        let worth = if stuck { 1 } else { grains / 4 };
        (gain >= worth).then_some(SegmentId(index as u32))
    }

    fn read_victim(&mut self, cx: Cx<'_>, id: SegmentId, position: u32, end: u32) {
        let (slot, buffer) = cx.sh.pool.scan();
        let grains = (end - position).min(buffer as u32);
        let start = self.geometry.segment_start(id).0 + u64::from(position);
        self.segments.get_mut(id).readers += 1;
        if let Some(victim) = &mut self.collector.victim {
            victim.scan = Scan::Reading(position);
        }
        let buf = cx.sh.pool.lend(slot, grains as usize);
        let offset = start * GRAIN_BYTES as u64;
        self.act(cx, Op::Scan { grains }, MediaOp::Read { offset, buf });
    }

    /// A part of the victim has been read.
    pub(crate) fn scan_done(&mut self, grains: u32, result: Result<(), MediaError>) {
        let victim = self
            .collector
            .victim
            .as_mut()
            .expect("a victim is being read");
        let id = victim.id;
        let Scan::Reading(from) = victim.scan else {
            unreachable!("completion of a read that is in flight");
        };
        self.segments.get_mut(id).readers -= 1;
        match result {
            _ if self.phase.is_sealed() => self.collector.victim = None,
            Ok(()) => victim.scan = Scan::Loaded { from, grains },
            Err(error) => {
                tracing::warn!(%id, %error, "victim can not be read");
                victim.unread = true;
                self.give_up_victim();
            }
        }
    }

    /// The rest of the victim can not be understood; what has been staged is still relocated.
    fn give_up_victim(&mut self) {
        let victim = self.collector.victim.as_mut().expect("a victim");
        victim.scan = Scan::Idle;
        victim.position = self.segments.get(victim.id).used;
    }

    /// Stages what is live in the buffer. False if it can not go on for now.
    fn relocate(&mut self, cx: Cx<'_>) -> bool {
        let Some(mut victim) = self.collector.victim.take() else {
            return false;
        };
        let progress = self.relocate_from(cx, &mut victim);
        self.collector.victim = Some(victim);
        if progress == Step::Full {
            return self.assemble_relocation(cx);
        }
        if progress == Step::Broken {
            self.give_up_victim();
        }
        progress != Step::Blocked
    }

    fn relocate_from(&mut self, cx: Cx<'_>, victim: &mut Victim) -> Step {
        let Scan::Loaded { from, grains } = victim.scan else {
            unreachable!("called with a loaded buffer");
        };
        let (buffer, _) = cx.sh.pool.scan();
        let end = self.segments.get(victim.id).used;
        let segment_start = self.geometry.segment_start(victim.id);
        while victim.position < end {
            let offset = (victim.position - from) as usize;
            if offset >= grains as usize {
                break;
            }
            let bytes = cx.sh.pool.arena.bytes(buffer.plus(offset));
            let Ok(header) = Header::parse(&bytes) else {
                tracing::warn!(id = %victim.id, position = victim.position, "damaged header");
                return Step::Broken;
            };
            let known = self.segments.get(victim.id);
            if header.segment != victim.id
                || header.position != victim.position
                || header.epoch != known.epoch
                || header.volume != self.superblock.volume_tag()
            {
                return Step::Broken;
            }
            if offset + header.grains() as usize > grains as usize {
                if offset == 0 {
                    return Step::Broken;
                }
                break;
            }
            let mut data = header.records[..victim.record]
                .iter()
                .filter(|r| matches!(r.kind, RecordKind::Data { .. }))
                .count();
            while let Some(&record) = header.records.get(victim.record) {
                let at = Pba(segment_start.0 + u64::from(victim.position) + 1 + data as u64);
                let is_data = matches!(record.kind, RecordKind::Data { .. });
                let needed = if is_data {
                    self.location(cx, record.lba) == Location::Media(at)
                } else {
                    self.record_needed(&record, header.no)
                };
                if needed {
                    let Some(batch) = self.open_batch(victim) else {
                        return Step::Blocked;
                    };
                    if batch.grains.len() == batch.limit
                        || batch.grains.len() + batch.records.len() == RECORDS_MAX
                    {
                        return Step::Full;
                    }
                    if is_data {
                        let to = cx.sh.pool.stage(batch.stage).plus(1 + batch.grains.len());
                        let source = buffer.plus(offset + 1 + data);
                        cx.sh.pool.arena.copy_slot(source, to);
                        batch.grains.push((record, at));
                    } else {
                        batch.records.push((record, header.no));
                    }
                }
                data += usize::from(is_data);
                victim.record += 1;
            }
            victim.position += header.grains();
            victim.record = 0;
        }
        victim.scan = Scan::Idle;
        Step::Done
    }

    /// Whether a trim or zero record found in header `no` must survive its segment.
    fn record_needed(&self, record: &Record, no: HeaderNo) -> bool {
        match record.kind {
            RecordKind::Data { .. } => false,
            RecordKind::Trim { .. } => {
                let known = self.records.trims.get(&record.version);
                known.is_some_and(|t| t.home.header == no)
            }
            RecordKind::Zero { .. } => {
                let known = self.records.zero_at(record.version, record.lba, no);
                known.is_some()
            }
        }
    }

    fn open_batch<'v>(&mut self, victim: &'v mut Victim) -> Option<&'v mut Batch> {
        if victim.batch.is_none() {
            let stage = self.stages.take(Stream::Relocated)?;
            let Some((_, room)) = self.room(Stream::Relocated, 2) else {
                self.stages.give_back(stage);
                return None;
            };
            victim.batch = Some(Batch {
                stage,
                limit: (room - 1).min(self.geometry.write_out_data_max()),
                grains: Vec::new(),
                records: Vec::new(),
            });
        }
        victim.batch.as_mut()
    }

    /// Writes what has been staged. Whether it is still live is asked again here: a relocated copy never gets a
    /// higher header number than the trim that killed it.
    fn assemble_relocation(&mut self, cx: Cx<'_>) -> bool {
        let Some(victim) = &mut self.collector.victim else {
            return false;
        };
        let Some(batch) = victim.batch.take() else {
            return false;
        };
        let base = cx.sh.pool.stage(batch.stage);
        let mut kept: Vec<(Record, Pba)> = Vec::with_capacity(batch.grains.len());
        for (index, &(record, from)) in batch.grains.iter().enumerate() {
            if self.location(cx, record.lba) == Location::Media(from) {
                if kept.len() != index {
                    let arena = &cx.sh.pool.arena;
                    arena.copy_slot(base.plus(1 + index), base.plus(1 + kept.len()));
                }
                kept.push((record, from));
            }
        }
        let mut records = batch.records;
        records.retain(|(record, no)| self.record_needed(record, *no));
        if kept.is_empty() && records.is_empty() {
            self.stages.give_back(batch.stage);
            return true;
        }
        // `limit` was the room when the batch was opened, and nothing else uses the stream meanwhile.
        let id = self.segments.open(Stream::Relocated);
        let id = id.expect("open segment of the relocation stream");
        let at = self.place(id);
        let no = self.log.assemble(at);
        let mut header = self.header(cx, no, at, Stream::Relocated, false);
        let home = Home {
            header: no,
            segment: id,
        };
        for (record, from) in records {
            let limit = RECORDS_MAX - kept.len() - header.records.len();
            self.rehome(cx, &record, from, home, limit, &mut header.records);
        }
        let mut moves = Vec::with_capacity(kept.len());
        for (index, &(record, from)) in kept.iter().enumerate() {
            header.records.push(record);
            moves.push(Move {
                lba: record.lba,
                from,
                to: Pba(at.0 + 1 + index as u64),
            });
        }
        count(&cx.sh.counters.relocated_grains, moves.len() as u64);
        crash_point!("gc.assembled");
        self.stages.list[batch.stage] = WriteOut {
            no,
            segment: Some(id),
            pages: Vec::new(),
            moves,
            late_data: None,
        };
        if let Some(victim) = &mut self.collector.victim {
            victim.writing.push(batch.stage);
            victim.moved = true;
        }
        self.emit(cx, batch.stage, id, &header);
        true
    }

    /// A trim or zero record of header `from` gets a younger copy. Of a zero record only what still reads as zeros
    /// because of it is taken along, in at most `limit` pieces; the rest stays where it is for another round.
    fn rehome(
        &mut self,
        cx: Cx<'_>,
        record: &Record,
        from: HeaderNo,
        home: Home,
        limit: usize,
        out: &mut Vec<Record>,
    ) {
        let old = match record.kind {
            RecordKind::Data { .. } => return,
            RecordKind::Trim { .. } => {
                out.push(*record);
                let known = self.records.trims.get_mut(&record.version);
                let old = std::mem::replace(&mut known.expect("live tombstone").home, home);
                self.segments.get_mut(home.segment).records += 1;
                old
            }
            RecordKind::Zero { .. } => {
                let id = self.records.zero_at(record.version, record.lba, from);
                let id = id.expect("live zero record");
                let zero = *self.records.zero(id);
                if zero.live == zero.range.count {
                    out.push(*record);
                    self.segments.get_mut(home.segment).records += 1;
                    let old = self.records.settle_zero(id, record.version, home);
                    old.expect("settled zero record")
                } else {
                    self.split_zero(cx, id, record.version, home, limit, out);
                    if self.records.zero(id).live > 0 {
                        return;
                    }
                    let gone = self.records.remove_zero(id);
                    gone.home.expect("settled zero record").1
                }
            }
        };
        self.segments.get_mut(old.segment).records -= 1;
        let freed_at = self.log.last();
        self.segments.retire_if_empty(old.segment, freed_at);
    }

    /// Moves the live runs of a zero record into records of their own, of the same version.
    fn split_zero(
        &mut self,
        cx: Cx<'_>,
        id: ZeroId,
        version: Version,
        home: Home,
        limit: usize,
        out: &mut Vec<Record>,
    ) {
        let mut runs: Vec<LbaRange> = Vec::new();
        for (lba, _) in self.index.mapped(self.records.zero(id).range) {
            if self.location(cx, lba) != Location::Zero(id) {
                continue;
            }
            let full = runs.len() == limit;
            match runs.last_mut() {
                Some(run) if run.end() == lba => run.count += 1,
                _ if full => break,
                _ => runs.push(LbaRange::new(lba, 1)),
            }
        }
        for run in runs {
            let piece = self.records.add_zero(run);
            self.records.zero_mut(piece).live = run.count;
            self.records.zero_mut(id).live -= run.count;
            self.records.settle_zero(piece, version, home);
            self.segments.get_mut(home.segment).records += 1;
            for lba in (run.start.0..run.end().0).map(Lba) {
                self.relocate_entry(cx, lba, Location::Zero(piece));
            }
            out.push(Record {
                lba: run.start,
                version,
                kind: RecordKind::Zero {
                    count: run.count as u32,
                },
            });
        }
    }

    /// Frees segments whose time has come.
    pub(super) fn release_segments(&mut self, cx: Cx<'_>) -> bool {
        let reached = if cx.sh.has_bug(Bug::GcFreesEarly) {
            self.log.last()
        } else {
            self.log.recorded()
        };
        let freed = self.segments.release(reached);
        count(&cx.sh.counters.segments_freed, freed as u64);
        if freed > 0 {
            crash_point!("gc.freed");
        }
        freed > 0
    }

    /// When the user stream is stuck, or nearly, sees to it that pending segments become free: a flush makes the
    /// header that freed them durable, one more header records that, and another flush makes the record durable.
    pub(super) fn make_way(&mut self, cx: Cx<'_>) {
        if self.failed.is_some() || self.phase.is_sealed() {
            return;
        }
        if !self.space_wanted && self.segments.free_count() > RESERVED_SEGMENTS + 1 {
            return;
        }
        let Some(target) = self.segments.pending_next() else {
            return;
        };
        if self.log.durable() < target {
            self.flush_wanted = self.flush_wanted.max(target);
        } else if self.log.recorded() < target {
            if self.log.last_carries() < target {
                self.nudge(cx);
            }
            self.flush_wanted = self.log.last();
        }
    }

    /// Space is wanted and can never come, because segments can not be read any more: an error for everybody who
    /// waits rather than waiting for ever (I18).
    pub(super) fn give_up_if_stuck(&mut self, cx: Cx<'_>) {
        let is_quiet = self.space_wanted
            && self.cold.is_warm()
            && self.failed.is_none()
            && !self.log.is_flushing()
            && self.segments.pending_next().is_none()
            && self.segments.some_lost_all_written();
        if !is_quiet {
            return;
        }
        let is_stuck = match &self.collector.victim {
            // Loaded and not going on: there is no segment to relocate to.
            Some(victim) => !matches!(victim.scan, Scan::Reading(_)),
            None => self.choose_victim(cx).is_none(),
        };
        if is_stuck {
            tracing::error!("no segment left that can be collected");
            self.fail(cx, MediaError::Io);
        }
    }

    /// Writes a header without records, so that the present `durable` is on the media.
    fn nudge(&mut self, cx: Cx<'_>) {
        let batch_open = self
            .collector
            .victim
            .as_ref()
            .is_some_and(|v| v.batch.is_some());
        if batch_open
            && self.assemble_relocation(cx)
            && self.log.last_carries() == self.log.durable()
        {
            return;
        }
        let Some(stage) = self.stages.take(Stream::Relocated) else {
            return;
        };
        // A batch that took the last free segment left room there.
        let streams = [Stream::Relocated, Stream::User].into_iter();
        let rooms = streams.filter_map(|stream| Some((stream, self.room(stream, 1)?.0)));
        let Some((stream, id)) = { rooms }.next() else {
            self.stages.give_back(stage);
            return;
        };
        let at = self.place(id);
        let no = self.log.assemble(at);
        let header = self.header(cx, no, at, stream, false);
        self.stages.list[stage] = WriteOut {
            no,
            segment: Some(id),
            ..WriteOut::default()
        };
        count(&cx.sh.counters.nudges, 1);
        self.emit(cx, stage, id, &header);
    }

    /// The log closes: what is staged and not assembled is dropped, the victim stays as it is. A read in flight
    /// ends first.
    pub(super) fn drop_victim(&mut self) {
        let Some(victim) = &mut self.collector.victim else {
            return;
        };
        if let Some(batch) = victim.batch.take() {
            self.stages.give_back(batch.stage);
        }
        if !matches!(victim.scan, Scan::Reading(_)) {
            self.collector.victim = None;
        }
    }

    /// The tombstones' LBA ranges, for the audit.
    pub(super) fn tombstone_homes(&self) -> impl Iterator<Item = (Lba, SegmentId)> + '_ {
        let all = self.records.trims.values();
        all.map(|t| (t.range.start, t.home.segment))
    }
}

/// How far the staging of a buffer got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The buffer is used up.
    Done,
    /// The write-out is full.
    Full,
    /// No staging or no segment for now.
    Blocked,
    /// The victim makes no sense from here on.
    Broken,
}
