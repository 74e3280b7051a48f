//! Completions of media operations.

use super::{Core, Cx};
use crate::addr::{Lba, Pba};
use crate::crash_point::crash_point;
use crate::device::{MediaError, MediaOp};
use crate::error::GetError;
use crate::fault::MediaFault;
use crate::format::HeaderNo;
use crate::map::{FrameId, Location, Resident, State};
use crate::placement::Heat;
use crate::planted::Bug;
use crate::port::Op;
use crate::segment::SegmentUse;
use crate::stats::count;

impl Core {
    /// A read for a get has ended; `intact` is what the checksum says.
    pub(crate) fn fill_done(
        &mut self,
        cx: Cx<'_>,
        (frame, life): (FrameId, u32),
        pba: Pba,
        result: Result<bool, MediaError>,
    ) {
        let id = self.geometry.segment_of(pba);
        self.segments.get_mut(id).readers -= 1;
        let lba = self.frames[frame.0 as usize].lba;
        if result != Ok(true) {
            self.media_faults.note(MediaFault {
                lba,
                place: pba,
                segment: id,
                error: result.err(),
            });
        }
        let result = match result {
            Ok(true) => Ok(()),
            Ok(false) => {
                count(&cx.sh.counters.damaged, 1);
                Err(GetError::Damaged { lba })
            }
            Err(error) => Err(GetError::Media { lba, error }),
        };
        if result.is_err() {
            count(&cx.sh.counters.fills_failed, 1);
        }
        self.filled(cx, frame, life, result);
    }

    /// A write-out has ended.
    pub(crate) fn write_out_done(
        &mut self,
        cx: Cx<'_>,
        stage: usize,
        result: Result<(), MediaError>,
    ) {
        let segment = self.stages.list[stage].segment;
        let segment = segment.expect("segment of a write-out");
        if self.segments.get(segment).usage == SegmentUse::Lost {
            self.write_out_lost(cx, stage);
            return;
        }
        if let Err(error) = result {
            // Its pages stay where they are: marked as being written, they are never evicted.
            self.fail(cx, error);
            return;
        }
        let late = self.stages.list[stage].late_data.take();
        let mut done = std::mem::take(&mut self.stages.list[stage]);
        self.log.complete(done.no);
        self.note_limbo(cx, done.no, &done.pages);
        for &(frame, life) in &done.pages {
            self.page_written(cx, frame, life);
        }
        for victim in done.records_from.drain(..) {
            self.collector.drained(victim);
        }
        if !done.moves.is_empty() {
            crash_point!("gc.moved");
        }
        let mut referrers = Vec::new();
        for moved in done.moves.drain(..) {
            self.collector.drained(moved.victim);
            let is_same_life = self.segments.life(moved.victim.segment) == moved.victim;
            if !is_same_life {
                continue;
            }
            // A remap or clone since the assembly takes the copy along, so whoever has a name by it is moved:
            // recovery prefers the copy, hence it must not be dead here.
            referrers.clear();
            self.referrers(cx, &moved.names, moved.from, &mut referrers);
            for referrer in &referrers {
                let is_new = moved.names.iter().all(|name| name.lba != referrer.now);
                if cx.sh.has_bug(Bug::RemapNotFollowed) && is_new {
                    continue;
                }
                self.relocate_entry(cx, referrer.now, Location::Media(moved.to), moved.heat);
                let target = self.geometry.segment_of(moved.to);
                self.segments.get_mut(target).live += 1;
                self.leave(Location::Media(moved.from));
            }
        }
        self.segments.get_mut(segment).writing -= 1;
        let freed_at = self.log.last();
        self.segments.retire_if_empty(segment, freed_at);
        if let Some((offset, slot, grains)) = late {
            let buf = cx.sh.pool.lend(slot, grains);
            self.act(
                cx,
                Op::LateData { stage },
                MediaOp::Write {
                    offset,
                    buf,
                    durable: false,
                },
            );
        } else {
            self.stages.give_back(stage);
        }
    }

    /// The same version of a grain is elsewhere now.
    pub(super) fn relocate_entry(&mut self, cx: Cx<'_>, lba: Lba, to: Location, heat: Heat) {
        if !cx.sh.has_bug(Bug::RelocationUnsaved) {
            self.checkpointer.changes.note(lba);
        }
        let frame = cx.sh.map.with(lba, |leaf| {
            let entry = leaf.entry(lba);
            match entry.state() {
                State::Away(_) => {
                    leaf.settle(lba, to, heat);
                    None
                }
                State::InFlight(frame) | State::Resident(Resident { frame, .. }) => Some(frame),
            }
        });
        if let Some(frame) = frame.expect("leaf of a mapped grain") {
            self.set_media(frame, to);
            self.frames[frame.0 as usize].heat = heat;
        }
    }

    /// Data that a planted bug wrote without waiting for it.
    pub(crate) fn late_data_done(&mut self, stage: usize) {
        self.stages.give_back(stage);
    }

    /// A flush has ended.
    pub(crate) fn flush_done(
        &mut self,
        cx: Cx<'_>,
        covers: HeaderNo,
        result: Result<(), MediaError>,
    ) {
        match result {
            Ok(()) => self.log.end_flush(covers),
            Err(error) => self.fail(cx, error),
        }
    }
}
