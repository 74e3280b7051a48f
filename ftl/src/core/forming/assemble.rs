//! Sending a forming write-out out: what is still worth writing gets its number, its place and its names.

use super::{Entry, Forming};
use crate::addr::{Lba, Pba, SegmentId};
use crate::core::stages::{Move, StageUse, WriteOut};
use crate::core::{Core, Cx};
use crate::crash_point::crash_point;
use crate::format::{RECORDS_MAX, Record, RecordKind, Stream, Version};
use crate::page::FrameUse;
use crate::placement::StreamId;
use crate::planted::Bug;
use crate::records::Home;
use crate::stats::count;
use std::collections::HashSet;

/// What of a forming write-out goes out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::core) enum Part {
    All,
    /// Only what is relocated: it may use the reserved segments.
    Relocated,
}

impl Core {
    /// Takes what is not worth writing any more out of a write-out: what was trimmed, relocated or overtaken.
    fn sift(&mut self, cx: Cx<'_>, forming: &mut Forming, part: Part) {
        let base = cx.sh.pool.stage(forming.stage);
        let mut kept = 0;
        let mut referrers = Vec::new();
        // Names that will have left for a page of this very write-out when a grain behind it is assembled.
        let mut leaving: HashSet<Lba> = HashSet::new();
        for index in 0..forming.entries.len() {
            let live = match forming.entries[index] {
                Entry::Page {
                    lba,
                    frame,
                    life,
                    copy,
                    ..
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
                    } else if part == Part::All {
                        leaving.insert(lba);
                    }
                    live
                }
                Entry::Grain {
                    record,
                    ref aliases,
                    from,
                    victim,
                    ..
                } => {
                    referrers.clear();
                    let records = [&record].into_iter().chain(aliases);
                    self.referrers(cx, records, from, &mut referrers);
                    let stays = referrers.iter().any(|r| !leaving.contains(&r.now));
                    let live = self.segments.life(victim.segment) == victim && stays;
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
                forming.entries.swap(kept, index);
                kept += 1;
            }
        }
        forming.entries.truncate(kept);
        forming.names = forming.entries.iter().map(Entry::slots).sum();
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
    pub(in crate::core) fn emit_forming(
        &mut self,
        cx: Cx<'_>,
        stream: StreamId,
        part: Part,
    ) -> bool {
        if self.failed.is_some() {
            return false;
        }
        let Some(mut forming) = self.formings.list[stream.index()].take() else {
            return false;
        };
        self.sift(cx, &mut forming, part);
        if forming.entries.is_empty() && forming.records.is_empty() {
            self.stages.give_back(forming.stage);
            return true;
        }
        let goes = |e: &Entry| part == Part::All || matches!(e, Entry::Grain { .. });
        let going = forming.entries.iter().filter(|e| goes(e)).count();
        let has_pages = part == Part::All && forming.pages > 0;
        // Pages must not overtake trims that have taken effect.
        self.group.wanted |= has_pages && !self.group.is_empty();
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
        let most = (room - 1).min(RECORDS_MAX - forming.slots());
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
            names: 0,
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
        let entries = std::mem::take(&mut forming.entries);
        for (index, entry) in entries.into_iter().enumerate() {
            let source = from.plus(1 + index);
            let kept = forming.entries.len();
            if goes(&entry) && kept < most {
                if kept != index {
                    copy(source, from.plus(1 + kept));
                }
                forming.entries.push(entry);
            } else {
                copy(source, to.plus(1 + rest.entries.len()));
                rest.pages += usize::from(matches!(entry, Entry::Page { .. }));
                rest.entries.push(entry);
            }
        }
        forming.pages -= rest.pages;
        for part in [&mut *forming, &mut rest] {
            part.names = part.entries.iter().map(Entry::slots).sum();
        }
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
        let mut behind = forming.slots();
        for joined in forming.records {
            // A zero record may fall into pieces: those that come behind it, and the entries, keep their room.
            behind -= joined.record.kind.slots();
            let limit = RECORDS_MAX - forming.entries.len() - header.slots() - behind;
            let out = &mut header.records;
            self.rehome(cx, &joined.record, joined.header, home, limit, out);
            records_from.push(joined.victim);
        }
        // What has got more names than there is room for keeps its place under the others, for another round.
        let mut spare = RECORDS_MAX - header.slots() - forming.entries.len();
        let mut pages = Vec::with_capacity(forming.pages);
        let mut moves = Vec::with_capacity(forming.entries.len() - forming.pages);
        for (index, entry) in forming.entries.into_iter().enumerate() {
            let to = Pba(at.0 + 1 + index as u64);
            match entry {
                Entry::Page {
                    frame,
                    life,
                    copy,
                    crc,
                    ..
                } => {
                    // Its name is that of the frame: it may have been remapped since it joined.
                    let lba = self.arrive(frame, copy, to, crc);
                    pages.push((frame, life));
                    header.records.push(Record {
                        lba,
                        version: Version::new(no, header.records.len()),
                        kind: RecordKind::Data { crc },
                    });
                }
                Entry::Grain {
                    record,
                    aliases,
                    from,
                    victim,
                    heat,
                    ..
                } => {
                    let records = [&record].into_iter().chain(&aliases);
                    let grain = index as u32;
                    let names = self.names_at(cx, records, from, grain, 1 + spare);
                    spare -= names.len() - 1;
                    if names.len() > 1 {
                        crash_point!("gc.aliased");
                    }
                    let forgets = cx.sh.has_bug(Bug::AliasesForgotten);
                    let written = if forgets { 1 } else { names.len() };
                    header.records.extend(&names[..written]);
                    moves.push(Move {
                        names,
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

    /// What the header of a copy says of those who refer to the place it is a copy of: the data record, and aliases up
    /// to `limit` records together. Any of the names may be left out: none is made of another by a remap or clone that
    /// recovery has not heard of yet.
    fn names_at<'r>(
        &self,
        cx: Cx<'_>,
        records: impl IntoIterator<Item = &'r Record>,
        at: Pba,
        grain: u32,
        limit: usize,
    ) -> Vec<Record> {
        let mut records = records.into_iter().peekable();
        let old = **records.peek().expect("a data record");
        let RecordKind::Data { crc } = old.kind else {
            unreachable!("aliases come behind their data record");
        };
        if cx.sh.has_bug(Bug::RemapOldName) {
            return vec![old];
        }
        let mut referrers = Vec::new();
        self.referrers(cx, records, at, &mut referrers);
        assert!(!referrers.is_empty(), "sifted a moment ago");
        let mut names: Vec<Record> = Vec::with_capacity(referrers.len());
        for referrer in referrers {
            let (lba, mut version) = (referrer.lba, referrer.version);
            if cx.sh.has_bug(Bug::CloneOldVersion) && lba == old.lba {
                version = old.version;
            }
            // Those that the forming group clones share a name.
            let is_known = names.iter().any(|n| n.lba == lba && n.version == version);
            if is_known {
                continue;
            }
            if names.len() == limit.min(cx.sh.names_max) {
                count(&cx.sh.counters.names_left, 1);
                continue;
            }
            let kind = match names.is_empty() {
                true => RecordKind::Data { crc },
                false => RecordKind::Alias { grain, crc },
            };
            names.push(Record { lba, version, kind });
        }
        names
    }
}
