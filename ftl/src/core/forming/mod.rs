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

mod assemble;

pub(super) use assemble::Part;

use super::gc::Referrer;
use super::stages::StageUse;
use super::{Core, Cx};
use crate::addr::{Lba, LbaRange, Pba};
use crate::format::{HeaderNo, RECORDS_MAX, Record};
use crate::map::{FrameId, Location, State};
use crate::page::Slot;
use crate::placement::{Heat, StreamId};
use crate::remap::Remap;
use crate::segment::{Life, SegmentUse};

/// A grain that has joined. Entry `i` lies in slot `1 + i` of the staging buffer.
#[derive(Debug)]
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
        /// What the victim's header says, and what it says of further names.
        record: Record,
        aliases: Box<[Record]>,
        /// Names when it joined.
        names: usize,
        from: Pba,
        victim: Life,
        heat: Heat,
    },
}

impl Entry {
    /// Records it takes, unless it has got more names since it joined.
    fn slots(&self) -> usize {
        match self {
            Self::Page { .. } => 1,
            Self::Grain { names, .. } => *names,
        }
    }
}

/// A trim, remap, clone or zero record that has joined: the header it was found in, and the victim.
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
    /// Records that the entries take.
    names: usize,
    /// The first sync that waits for it.
    wanted: Option<u64>,
}

impl Forming {
    /// Places its trims, remaps, clones and zero records take in a header.
    fn slots(&self) -> usize {
        self.records.iter().map(|j| j.record.kind.slots()).sum()
    }
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

    /// Wants everything that holds a grain of one of these places to go out; whoever waits next waits for that as well.
    pub(super) fn want_from(&mut self, is_there: impl Fn(Pba) -> bool) {
        for forming in self.list.iter_mut().flatten() {
            let is_of_place = |e: &Entry| matches!(*e, Entry::Grain { from, .. } if is_there(from));
            if forming.entries.iter().any(is_of_place) {
                forming.wanted.get_or_insert(self.syncs);
            }
        }
    }

    /// Under how many names the grains of these places that have joined are mapped.
    pub(super) fn names_from(&self, is_there: impl Fn(Pba) -> bool) -> u64 {
        let entries = self.list.iter().flatten().flat_map(|f| &f.entries);
        let of_place =
            entries.filter(|e| matches!(**e, Entry::Grain { from, .. } if is_there(from)));
        of_place.map(|e| e.slots() as u64).sum()
    }

    /// Whether a page of `range` is in one of them.
    pub(super) fn have_page_in(&self, range: LbaRange) -> bool {
        let in_range = |e: &Entry| matches!(e, Entry::Page { lba, .. } if range.contains(*lba));
        let mut forming = self.list.iter().flatten();
        forming.any(|f| f.pages > 0 && f.entries.iter().any(in_range))
    }

    /// Pages have another name.
    pub(super) fn rename(&mut self, remap: Remap) {
        for forming in self.list.iter_mut().flatten() {
            for entry in &mut forming.entries {
                if let Entry::Page { lba, .. } = entry
                    && remap.source().contains(*lba)
                {
                    *lba = remap.renamed(*lba);
                }
            }
        }
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
        // Room for one more, even if that is a pair.
        !self.takes(stream, 2)
    }

    /// Whether the write-out of a stream can take one more, with so many records.
    fn takes(&self, stream: StreamId, records: usize) -> bool {
        let Some(forming) = &self.formings.list[stream.index()] else {
            return true;
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
        let taken = forming.names + forming.slots();
        // What has more names than a header has room for goes in rounds.
        let is_alone = forming.entries.is_empty() && forming.records.is_empty();
        forming.entries.len() < limit && (taken + records <= RECORDS_MAX || is_alone)
    }

    fn forming(&mut self, stream: StreamId) -> Option<&mut Forming> {
        let place = &mut self.formings.list[stream.index()];
        if place.is_none() {
            *place = Some(Forming {
                stage: self.stages.take(StageUse::Forming)?,
                entries: Vec::with_capacity(self.geometry.write_out_data_max()),
                records: Vec::new(),
                pages: 0,
                names: 0,
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
        forming.names += 1;
        self.formings.pages += 1;
        stream
    }

    /// A live grain of a victim joins, with what its header says and those who refer to it; its bytes are at `slot`.
    /// False: no room for now.
    pub(super) fn join_grain(
        &mut self,
        cx: Cx<'_>,
        records: &[Record],
        referrers: &[Referrer],
        from: Pba,
        victim: Life,
        slot: Slot,
    ) -> bool {
        if !self.stages.has(StageUse::Forming) {
            return false;
        }
        let first = &referrers[0];
        let old = self.heat(first.state, first.heat);
        let (stream, heat) = self.placement.relocate(first.now, old);
        let names = referrers.len().min(RECORDS_MAX);
        let is_lost = self.segments.get(victim.segment).usage == SegmentUse::Lost;
        let Some(forming) = self.forming_with_room(cx, stream, names.max(2)) else {
            return false;
        };
        let at = forming.entries.len();
        forming.entries.push(Entry::Grain {
            record: records[0],
            aliases: records[1..].into(),
            names,
            from,
            victim,
            heat,
        });
        forming.names += names;
        if is_lost {
            // It is nowhere else any more, so it does not wait for others.
            forming.wanted = Some(0);
        }
        if !cx.sh.dataless {
            let to = cx.sh.pool.stage(forming.stage).plus(1 + at);
            cx.sh.pool.arena.copy_slot(slot, to);
        }
        true
    }

    /// A trim, remap, clone or zero record of a victim joins. False: no room for now.
    pub(super) fn join_record(
        &mut self,
        cx: Cx<'_>,
        record: Record,
        header: HeaderNo,
        victim: Life,
    ) -> bool {
        let Some(forming) = self.forming_with_room(cx, self.last_stream(), 2) else {
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
    fn forming_with_room(
        &mut self,
        cx: Cx<'_>,
        stream: StreamId,
        records: usize,
    ) -> Option<&mut Forming> {
        let rescue = self.formings.rescue();
        let short = self.is_tight() || self.space_wanted;
        let fits = |core: &mut Self, stream| {
            core.takes(stream, records) || core.emit_forming(cx, stream, Part::All)
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
