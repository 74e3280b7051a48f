//! Discarding segments that have become free, one at a time. See `docs/array.md`.
//!
//! A segment is free when a durable header has recorded that whatever freed it is durable: nobody will look for its
//! headers any more, so they may be there or not. While it is being discarded it is not free, so no write can be
//! in flight in it.

use super::{Core, Cx};
use crate::addr::{GRAIN_BYTES, SegmentId};
use crate::crash_point::crash_point;
use crate::device::MediaOp;
use crate::geometry::RESERVED_SEGMENTS;
use crate::port::Op;
use crate::stats::count;

/// With no more free segments than this none is discarded: they are needed.
const KEPT: usize = RESERVED_SEGMENTS + 1;

impl Core {
    /// Begins to discard all free segments that are not known to be, if there are plenty, and returns how many that are.
    pub(crate) fn discard_free(&mut self) -> usize {
        self.discards_wanted = match self.segments.free_count() > KEPT {
            true => self.segments.want_discard(),
            false => 0,
        };
        self.discards_wanted
    }

    /// How many of them are left.
    pub(crate) fn discards_wanted(&self) -> usize {
        match self.failed.is_none() && self.phase.is_running() {
            true => self.discards_wanted,
            false => 0,
        }
    }

    /// Begins the next discard if there is one to do, and segments to spare.
    pub(super) fn run_discard(&mut self, cx: Cx<'_>) {
        let is_wanted = cx.sh.discard || self.discards_wanted > 0;
        let is_able = self.failed.is_none() && self.phase.is_running();
        if !is_wanted || !is_able || self.space_wanted || self.segments.is_discarding() {
            return;
        }
        let Some(id) = self.segments.begin_discard(KEPT) else {
            self.discards_wanted = 0;
            return;
        };
        self.discards_wanted = self.discards_wanted.saturating_sub(1);
        let grain = GRAIN_BYTES as u64;
        let offset = self.geometry.segment_start(id).0 * grain;
        let len = u64::from(self.geometry.segment_grains) * grain;
        self.act(
            cx,
            Op::Discard { segment: id },
            MediaOp::Discard { offset, len },
        );
        count(&cx.sh.counters.discards, 1);
        crash_point!("discard");
    }

    /// A discard has ended; whether it did anything does not matter.
    pub(crate) fn discard_done(&mut self, segment: SegmentId) {
        self.segments.end_discard(segment);
    }
}
