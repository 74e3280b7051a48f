//! Write-outs that form: one for each stream, filled by pages that are due and by grains being relocated alike.
//!
//! A page is copied when it joins, and gets its number, its place and its version when the write-out is assembled:
//! until then the grain is where it was, so a crash loses nothing it had. A page may join again with younger content,
//! here or in another stream; a copy that is older than what has a place already is dropped.
//!
//! Pages may not use the reserved segments, and a write-out that holds some waits for space with them. So when space
//! is short all that is relocated goes to a write-out of its own, the *rescue*: it is what makes the space, and must
//! neither wait for pages nor be cut into pieces around them (I17).
//!
//! ```text
//!   due pages ─────┐  policy    ┌─► stream 0  [ page grain page ........ ]
//!                  ├──────────► ├─► stream 1  [ grain grain grain page . ] ── full, wanted ──► header + data, one
//!   live in victim ┘            └─► stream 2  [ grain .................. ]    or holding up     device write
//!                                                                             a victim
//! ```

use super::stages::{Move, StageUse, WriteOut};
use super::{Core, Cx};
use crate::addr::{Lba, LbaRange, Pba, SegmentId};
use crate::crash_point::crash_point;
use crate::format::{HeaderNo, RECORDS_MAX, Record, RecordKind, Stream, Version};
use crate::map::{FrameId, Location, State};
use crate::page::{FrameUse, Slot};
use crate::placement::{Heat, StreamId};
use crate::records::Home;
use crate::segment::Life;
use crate::stats::count;

/// A grain that has joined. Entry `i` lies in slot `1 + i` of the staging buffer.
#[derive(Clone, Copy, Debug)]
enum Entry {
    Page {
        lba: Lba,
        frame: FrameId,
        life: u32,
        /// Orders copies of pages by their content.
        copy: u64,
        crc: u32,
    },
    Grain {
        record: Record,
        from: Pba,
        victim: Life,
        heat: Heat,
    },
}

/// A trim or zero record that has joined: the header it was found in, and the victim.
#[derive(Clone, Copy, Debug)]
struct Joined {
    record: Record,
    header: HeaderNo,
    victim: Life,
}

#[derive(Debug)]
struct Forming {
    stage: usize,
    entries: Vec<Entry>,
    records: Vec<Joined>,
    pages: usize,
    /// The first sync that waits for it.
    wanted: Option<u64>,
}

/// All of them: one for each stream, and the rescue.
#[derive(Debug)]
pub(super) struct Formings {
    list: Vec<Option<Forming>>,
    copies: u64,
    syncs: u64,
    /// Pages in them.
    pub(super) pages: usize,
}

/// What of a forming write-out goes out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    All,
    /// Only what is relocated: it may use the reserved segments.
    Relocated,
}

impl Formings {
    pub(super) fn new(streams: usize) -> Self {
        Self {
            list: (0..=streams).map(|_| None).collect(),
            copies: 0,
            syncs: 0,
            pages: 0,
        }
    }

    /// A number for the next copy of a page.
    pub(super) fn next_copy(&mut self) -> u64 {
        self.copies += 1;
        self.copies
    }

    /// Wants everything that holds a page of `range` to go out; returns the number to wait for.
    pub(super) fn want(&mut self, range: LbaRange) -> u64 {
        self.syncs += 1;
        for forming in self.list.iter_mut().flatten() {
            let in_range = |e: &Entry| matches!(e, Entry::Page { lba, .. } if range.contains(*lba));
            if forming.pages > 0 && forming.entries.iter().any(in_range) {
                forming.wanted.get_or_insert(self.syncs);
            }
        }
        self.syncs
    }

    /// Whether everything wanted up to `number` has gone out.
    pub(super) fn reached(&self, number: u64) -> bool {
        let waits = |f: &Forming| f.wanted.is_some_and(|w| w <= number);
        !self.list.iter().flatten().any(waits)
    }

    fn streams(&self) -> impl Iterator<Item = StreamId> + use<> {
        (0..self.list.len() as u8).map(StreamId)
    }

    /// The last of the streams.
    fn last(&self) -> StreamId {
        StreamId(self.list.len() as u8 - 2)
    }

    /// The one that no page joins.
    fn rescue(&self) -> StreamId {
        StreamId(self.list.len() as u8 - 1)
    }
}

impl Core {
    /// Whether the write-out of a stream can take no more.
    fn is_full(&self, stream: StreamId) -> bool {
        let Some(forming) = &self.formings.list[stream.index()] else {
            return false;
        };
        let grains = self.geometry.segment_grains;
        let open = self.segments.open(self.segments_of(stream));
        let room = open.map_or(grains, |id| match grains - self.segments.get(id).used {
            0 | 1 => grains,
            room => room,
        });
        // What is left of the segment is taken in equal parts.
        let parts = room.div_ceil(self.geometry.write_out_data_max() as u32 + 1);
        let limit = room.div_ceil(parts) as usize - 1;
        forming.entries.len() >= limit
            || forming.entries.len() + forming.records.len() >= RECORDS_MAX
    }

    fn forming(&mut self, stream: StreamId) -> Option<&mut Forming> {
        let place = &mut self.formings.list[stream.index()];
        if place.is_none() {
            *place = Some(Forming {
                stage: self.stages.take(StageUse::Forming)?,
                entries: Vec::with_capacity(self.geometry.write_out_data_max()),
                records: Vec::new(),
                pages: 0,
                wanted: None,
            });
        }
        place.as_mut()
    }

    /// Lets pages join that are urgent or due, and sends out what is full or wanted.
    pub(super) fn form(&mut self, cx: Cx<'_>) -> bool {
        let progress = self.emit_wanted(cx);
        let mut joined = false;
        let mut held = Vec::new();
        while !self.space_wanted {
            let urgent = self.dirty.has_urgent();
            // What is urgent would rather share a write-out with strangers than wait for a staging buffer.
            let room = self.stages.has(StageUse::Forming) || urgent && self.with_room().is_some();
            if !room {
                break;
            }
            let next = if urgent {
                self.dirty.pop_urgent()
            } else {
                self.dirty.pop_background()
            };
            let Some(lba) = next else {
                break;
            };
            let State::Resident(r) = cx.sh.map.state(lba) else {
                continue;
            };
            if !r.dirty {
                continue;
            }
            if r.pins > 0 && !urgent {
                held.push(lba);
                continue;
            }
            let stream = self.join_page(cx, lba, r.frame);
            joined = true;
            // What joins while the volume is being closed has nobody left to want it.
            let wanted = urgent || !self.phase.is_running();
            if wanted && let Some(forming) = &mut self.formings.list[stream.index()] {
                forming.wanted = Some(0);
            }
            if self.is_full(stream) && !self.emit_forming(cx, stream, Part::All) {
                self.space_wanted = true;
            }
        }
        for lba in held {
            self.dirty.insert(lba);
        }
        if joined {
            self.emit_wanted(cx);
        }
        progress | joined
    }

    /// A stream that pages join whose write-out has room.
    fn with_room(&self) -> Option<StreamId> {
        let rescue = self.formings.rescue();
        let mut streams = self.formings.streams().filter(|&s| s != rescue);
        streams.find(|&s| self.formings.list[s.index()].is_some() && !self.is_full(s))
    }

    /// Copies a page into the write-out of its stream, or into another one when there is no staging buffer left for it.
    /// It is among the dirty ones no more; there is room somewhere.
    fn join_page(&mut self, cx: Cx<'_>, lba: Lba, frame: FrameId) -> StreamId {
        let (stream, heat) = self
            .placement
            .write(lba, self.frames[frame.0 as usize].heat);
        let copy = self.formings.next_copy();
        let stream = match self.forming(stream) {
            Some(_) => stream,
            None => self.with_room().expect("there is room"),
        };
        let forming = self.forming(stream).expect("it exists");
        let slot = forming.entries.len();
        let slot = cx.sh.pool.stage(forming.stage).plus(1 + slot);
        self.mark_clean(lba, frame);
        let crc = self.copy_page(cx, frame, slot);
        let known = &mut self.frames[frame.0 as usize];
        known.writing += 1;
        known.joined = copy;
        known.heat = heat;
        let life = known.life;
        let forming = self.forming(stream).expect("it exists");
        forming.entries.push(Entry::Page {
            lba,
            frame,
            life,
            copy,
            crc,
        });
        forming.pages += 1;
        self.formings.pages += 1;
        stream
    }

    /// A live grain of a victim joins; its bytes are at `slot`. False: no room for now.
    pub(super) fn join_grain(
        &mut self,
        cx: Cx<'_>,
        record: Record,
        old: Heat,
        from: Pba,
        victim: Life,
        slot: Slot,
    ) -> bool {
        if !self.stages.has(StageUse::Forming) {
            return false;
        }
        let (stream, heat) = self.placement.relocate(record.lba, old);
        let Some(forming) = self.forming_with_room(cx, stream) else {
            return false;
        };
        let at = forming.entries.len();
        forming.entries.push(Entry::Grain {
            record,
            from,
            victim,
            heat,
        });
        if !cx.sh.dataless {
            let to = cx.sh.pool.stage(forming.stage).plus(1 + at);
            cx.sh.pool.arena.copy_slot(slot, to);
        }
        true
    }

    /// A trim or zero record of a victim joins. False: no room for now.
    pub(super) fn join_record(
        &mut self,
        cx: Cx<'_>,
        record: Record,
        header: HeaderNo,
        victim: Life,
    ) -> bool {
        let Some(forming) = self.forming_with_room(cx, self.last_stream()) else {
            return false;
        };
        forming.records.push(Joined {
            record,
            header,
            victim,
        });
        true
    }

    /// A write-out for something relocated: that of its stream, or the rescue when space is short or pages hold the
    /// other up.
    fn forming_with_room(&mut self, cx: Cx<'_>, stream: StreamId) -> Option<&mut Forming> {
        let rescue = self.formings.rescue();
        let short = self.is_tight() || self.space_wanted;
        let fits = |core: &mut Self, stream| {
            !core.is_full(stream) || core.emit_forming(cx, stream, Part::All)
        };
        if !short && fits(self, stream) {
            return self.forming(stream);
        }
        if fits(self, rescue) {
            return self.forming(rescue);
        }
        None
    }

    fn emit_wanted(&mut self, cx: Cx<'_>) -> bool {
        let mut progress = false;
        // Whoever waits for a frame waits for pages to become clean.
        let pressed =
            !self.frame_waiters.is_empty() && self.formings.pages > 0 && !self.stages.carry_pages();
        for stream in self.formings.streams() {
            let forming = &self.formings.list[stream.index()];
            let due = |f: &Forming| f.wanted.is_some() || f.pages > 0 && pressed;
            if forming.as_ref().is_some_and(due) || self.is_full(stream) {
                let gone = self.emit_forming(cx, stream, Part::All);
                progress |= gone;
                self.space_wanted |= !gone && self.group.is_empty();
            }
        }
        progress
    }

    /// Sends out everything that a victim waits for: its own grains, and younger copies of them.
    pub(super) fn emit_what_holds(&mut self, cx: Cx<'_>, victim: Life) -> bool {
        let mut progress = false;
        for stream in self.formings.streams() {
            let Some(forming) = &self.formings.list[stream.index()] else {
                continue;
            };
            let of_victim = |pba: Pba| self.geometry.segment_of(pba) == victim.segment;
            let holds = |e: &Entry| match *e {
                Entry::Grain { victim: from, .. } => from == victim,
                Entry::Page { frame, .. } => {
                    let media = self.frames[frame.0 as usize].media;
                    matches!(media, Location::Media(pba) if of_victim(pba))
                }
            };
            if forming.records.iter().any(|j| j.victim == victim)
                || forming.entries.iter().any(holds)
            {
                progress |= self.emit_forming(cx, stream, Part::All)
                    || self.emit_forming(cx, stream, Part::Relocated);
            }
        }
        progress
    }

    /// Takes what is not worth writing any more out of a write-out: what was trimmed, relocated or overtaken.
    fn sift(&mut self, cx: Cx<'_>, forming: &mut Forming) {
        let base = cx.sh.pool.stage(forming.stage);
        let mut kept = 0;
        for index in 0..forming.entries.len() {
            let entry = forming.entries[index];
            let live = match entry {
                Entry::Page {
                    frame, life, copy, ..
                } => {
                    let known = &self.frames[frame.0 as usize];
                    let live = known.life == life
                        && known.usage == FrameUse::Resident
                        && copy > known.written;
                    if !live {
                        forming.pages -= 1;
                        self.formings.pages -= 1;
                        count(&cx.sh.counters.overtaken_grains, 1);
                        self.page_written(cx, frame, life);
                    }
                    live
                }
                Entry::Grain {
                    record,
                    from,
                    victim,
                    ..
                } => {
                    let live = self.is_still_at(cx, record.lba, from, victim);
                    if !live {
                        self.collector.drained(victim);
                    }
                    live
                }
            };
            if live {
                if kept != index && !cx.sh.dataless {
                    let arena = &cx.sh.pool.arena;
                    arena.copy_slot(base.plus(1 + index), base.plus(1 + kept));
                }
                forming.entries[kept] = entry;
                kept += 1;
            }
        }
        forming.entries.truncate(kept);
        let records = std::mem::take(&mut forming.records);
        for joined in records {
            if self.record_needed(&joined.record, joined.header) {
                forming.records.push(joined);
            } else {
                self.collector.drained(joined.victim);
            }
        }
    }

    /// Assembles and writes what has joined, or as much as the segment has room for; the rest goes on forming.
    /// False: not possible for now.
    pub(super) fn emit_forming(&mut self, cx: Cx<'_>, stream: StreamId, part: Part) -> bool {
        if self.failed.is_some() {
            return false;
        }
        let Some(mut forming) = self.formings.list[stream.index()].take() else {
            return false;
        };
        self.sift(cx, &mut forming);
        if forming.entries.is_empty() && forming.records.is_empty() {
            self.stages.give_back(forming.stage);
            return true;
        }
        let goes = |e: &Entry| part == Part::All || matches!(e, Entry::Grain { .. });
        let going = forming.entries.iter().filter(|e| goes(e)).count();
        let has_pages = part == Part::All && forming.pages > 0;
        // Pages must not overtake trims that have taken effect.
        let room =
            if going == 0 && forming.records.is_empty() || has_pages && !self.group.is_empty() {
                None
            } else {
                self.room(self.segments_of(stream), 1 + going.min(1), has_pages)
            };
        let Some((segment, room)) = room else {
            self.formings.list[stream.index()] = Some(forming);
            return false;
        };
        let most = (room - 1).min(RECORDS_MAX - forming.records.len());
        if going.min(most) < forming.entries.len() {
            let Some(rest) = self.split(cx, &mut forming, most, goes) else {
                self.formings.list[stream.index()] = Some(forming);
                return false;
            };
            self.formings.list[stream.index()] = Some(rest);
        }
        self.formings.pages -= forming.pages;
        self.assemble_forming(cx, forming, segment);
        true
    }

    /// Leaves the first `most` entries that go in `forming`; the others move to another staging buffer.
    fn split(
        &mut self,
        cx: Cx<'_>,
        forming: &mut Forming,
        most: usize,
        goes: impl Fn(&Entry) -> bool,
    ) -> Option<Forming> {
        let mut rest = Forming {
            stage: self.stages.take(StageUse::Forming)?,
            entries: Vec::new(),
            records: Vec::new(),
            pages: 0,
            wanted: forming.wanted,
        };
        let (from, to) = (
            cx.sh.pool.stage(forming.stage),
            cx.sh.pool.stage(rest.stage),
        );
        let copy = |source, target| {
            if !cx.sh.dataless {
                cx.sh.pool.arena.copy_slot(source, target);
            }
        };
        let mut kept = 0;
        for index in 0..forming.entries.len() {
            let entry = forming.entries[index];
            let source = from.plus(1 + index);
            if goes(&entry) && kept < most {
                if kept != index {
                    copy(source, from.plus(1 + kept));
                }
                forming.entries[kept] = entry;
                kept += 1;
            } else {
                copy(source, to.plus(1 + rest.entries.len()));
                rest.pages += usize::from(matches!(entry, Entry::Page { .. }));
                rest.entries.push(entry);
            }
        }
        forming.entries.truncate(kept);
        forming.pages -= rest.pages;
        Some(rest)
    }

    fn assemble_forming(&mut self, cx: Cx<'_>, forming: Forming, segment: SegmentId) {
        let at = self.place(segment);
        let no = self.log.assemble(at);
        let kind = if forming.pages > 0 {
            Stream::User
        } else {
            Stream::Relocated
        };
        let mut header = self.header(cx, no, at, kind, false);
        let home = Home {
            header: no,
            segment,
        };
        let mut records_from = Vec::with_capacity(forming.records.len());
        let mut behind = forming.records.len();
        for joined in forming.records {
            // A zero record may fall into pieces: those that come behind it, and the entries, keep their room.
            behind -= 1;
            let limit = RECORDS_MAX - forming.entries.len() - header.records.len() - behind;
            let out = &mut header.records;
            self.rehome(cx, &joined.record, joined.header, home, limit, out);
            records_from.push(joined.victim);
        }
        let mut pages = Vec::with_capacity(forming.pages);
        let mut moves = Vec::with_capacity(forming.entries.len() - forming.pages);
        for (index, entry) in forming.entries.into_iter().enumerate() {
            let to = Pba(at.0 + 1 + index as u64);
            match entry {
                Entry::Page {
                    lba,
                    frame,
                    life,
                    copy,
                    crc,
                } => {
                    self.arrive(frame, copy, to, crc);
                    pages.push((frame, life));
                    header.records.push(Record {
                        lba,
                        version: Version::new(no, header.records.len()),
                        kind: RecordKind::Data { crc },
                    });
                }
                Entry::Grain {
                    record,
                    from,
                    victim,
                    heat,
                } => {
                    header.records.push(record);
                    moves.push(Move {
                        lba: record.lba,
                        from,
                        victim,
                        to,
                        heat,
                    });
                }
            }
        }
        count(&cx.sh.counters.user_grains, pages.len() as u64);
        count(&cx.sh.counters.relocated_grains, moves.len() as u64);
        if !moves.is_empty() {
            crash_point!("gc.assembled");
        }
        self.stages.list[forming.stage] = WriteOut {
            no,
            segment: Some(segment),
            pages,
            moves,
            records_from,
            late_data: None,
        };
        self.emit(cx, forming.stage, segment, &header);
    }

    /// The log closes: what has joined and is not assembled is dropped, the grains stay where they are.
    pub(super) fn drop_formings(&mut self) {
        for place in &mut self.formings.list {
            if let Some(forming) = place.take() {
                assert_eq!(forming.pages, 0, "pages go out before the log closes");
                self.stages.give_back(forming.stage);
            }
        }
    }

    /// What is remembered of a grain whose entry says this.
    pub(super) fn heat(&self, state: State, heat: Heat) -> Heat {
        match state {
            State::Away(_) => heat,
            State::InFlight(frame) => self.frames[frame.0 as usize].heat,
            State::Resident(r) => self.frames[r.frame.0 as usize].heat,
        }
    }

    /// The stream that a write-out is appended to.
    fn segments_of(&self, stream: StreamId) -> StreamId {
        stream.min(self.last_stream())
    }

    /// Where everything goes when there is no space for more streams.
    pub(super) fn last_stream(&self) -> StreamId {
        self.formings.last()
    }
}
