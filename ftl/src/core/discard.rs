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

impl Core {
    /// Begins the next discard if there is one to do, and segments to spare.
    pub(super) fn run_discard(&mut self, cx: Cx<'_>) {
        let is_wanted = cx.sh.discard && self.failed.is_none() && self.phase.is_running();
        if !is_wanted || self.space_wanted || self.segments.is_discarding() {
            return;
        }
        let Some(id) = self.segments.begin_discard(RESERVED_SEGMENTS + 1) else {
            return;
        };
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
