//! Segments of a volume that is to become smaller, or has another size.

use super::{Segment, SegmentUse, Segments};
use crate::addr::SegmentId;
use crate::format::HeaderNo;
use crate::placement::StreamId;
use crate::places::Places;

impl Segments {
    /// The volume is to end before `end`: from now on nothing behind it is opened, unless nothing else is free.
    pub(crate) fn leave(&mut self, end: SegmentId) {
        self.end = end;
        for free in &mut self.free {
            free.retain(|&id| id < end);
        }
        for id in (end.0..self.list.len() as u32).map(SegmentId) {
            let segment = self.get_mut(id);
            if segment.usage == SegmentUse::Free {
                segment.usage = SegmentUse::Cut;
            }
        }
    }

    /// Closes what is open among those that are to be cut off.
    pub(crate) fn close_leaving(&mut self) -> Vec<SegmentId> {
        let end = self.end;
        let open = self.open.iter().enumerate();
        let streams: Vec<StreamId> = open
            .filter(|(_, (open, _))| open.is_some_and(|id| id >= end))
            .map(|(stream, _)| StreamId(stream as u8))
            .collect();
        let closed = streams.into_iter().filter_map(|stream| self.close(stream));
        closed.collect()
    }

    /// What has left will not be opened again.
    pub(crate) fn end(&mut self) {
        self.ends = true;
    }

    /// Nothing is to be cut off after all.
    pub(crate) fn stay(&mut self) {
        self.ends = false;
        let begin = std::mem::replace(&mut self.end, SegmentId(self.list.len() as u32));
        for id in (begin.0..self.end.0).map(SegmentId) {
            let segment = self.get_mut(id);
            if segment.usage == SegmentUse::Cut {
                segment.usage = SegmentUse::Free;
                self.free[self.places.device_of_segment(id)].push_back(id);
            }
        }
    }

    /// Whether some are to be cut off.
    pub(crate) fn are_leaving(&self) -> bool {
        (self.end.0 as usize) < self.list.len()
    }

    pub(super) fn leaving(&self) -> impl Iterator<Item = (SegmentId, &Segment)> {
        let ids = (self.end.0..self.list.len() as u32).map(SegmentId);
        ids.map(|id| (id, self.get(id)))
    }

    /// Whether nothing is needed any more of those that are to be cut off.
    pub(crate) fn have_left(&self) -> bool {
        self.leaving().all(|(_, s)| s.usage == SegmentUse::Cut)
    }

    /// One of them that has not been relocated yet.
    pub(crate) fn next_leaving(&self) -> Option<SegmentId> {
        let can = |&(_, s): &(SegmentId, &Segment)| {
            s.usage == SegmentUse::Closed && s.writing == 0 && !s.draining
        };
        self.leaving().find(can).map(|(id, _)| id)
    }

    /// One of them that can not be relocated.
    pub(crate) fn stuck_leaving(&self) -> Option<SegmentId> {
        let mut leaving = self.leaving();
        leaving
            .find(|(_, s)| s.usage == SegmentUse::Retired)
            .map(|(id, _)| id)
    }

    /// The volume has another size now: more segments, never written in this life, or fewer.
    pub(crate) fn resize(&mut self, places: &Places) {
        let (before, now) = (self.list.len() as u32, places.segment_count());
        self.places = *places;
        self.end = SegmentId(now);
        self.ends = false;
        self.list.resize(now as usize, Segment::BLANK);
        self.stale.retain(|id| id.0 < now);
        self.changed.retain(|id| id.0 < now);
        self.candidates.resize(now as usize);
        // In the order of the others that never were opened, but before those that will have to be discarded.
        let never = |&id: &SegmentId| self.list[id.0 as usize].epoch == HeaderNo(0);
        let ahead = self.free[0].iter().take_while(|id| never(id)).count();
        let behind = self.free[0].split_off(ahead);
        self.free[0].extend((before..now.max(before)).map(SegmentId));
        self.free[0].extend(behind);
    }
}
