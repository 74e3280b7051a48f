//! Making way: what has been emptied becomes free when a crash can not bring it back any more.

use super::super::stages::{StageUse, WriteOut};
use super::super::{Core, Cx};
use super::Scan;
use crate::crash_point::crash_point;
use crate::device::MediaError;
use crate::format::Stream;
use crate::geometry::RESERVED_SEGMENTS;
use crate::planted::Bug;
use crate::stats::count;

impl Core {
    /// Frees segments whose time has come.
    pub(in crate::core) fn release_segments(&mut self, cx: Cx<'_>) -> bool {
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
    pub(in crate::core) fn make_way(&mut self, cx: Cx<'_>) {
        if self.failed.is_some() || self.phase.is_sealed() || !self.loss.is_whole() {
            return;
        }
        let leaving = self.segments.are_leaving();
        let is_short = self.segments.free_count() <= RESERVED_SEGMENTS + 4;
        if !self.space_wanted && !leaving && !is_short {
            return;
        }
        let Some(target) = self.segments.pending_next() else {
            return;
        };
        if self.log.durable() < target {
            self.flush_wanted = self.flush_wanted.max(target);
        } else if self.log.recorded() < target {
            // Unless somebody waits, the next write-out will record it.
            if self.log.last_carries() < target {
                if !self.space_wanted && !leaving {
                    return;
                }
                self.nudge(cx);
            }
            self.flush_wanted = self.log.last();
        }
    }

    /// Space is wanted and can never come, because segments can not be read any more: an error for everybody who
    /// waits rather than waiting for ever (I18).
    pub(in crate::core) fn give_up_if_stuck(&mut self, cx: Cx<'_>) {
        if self.loss.has_some() && (self.is_at_rest() || self.is_in_vain()) {
            tracing::error!("no space to go on without the device that is lost");
            self.fail(cx, MediaError::NoSpace);
            return;
        }
        let is_quiet = self.space_wanted
            && self.cold.is_warm()
            && self.failed.is_none()
            && !self.collector.rests.is_resting()
            && !self.log.is_flushing()
            && self.segments.pending_next().is_none()
            && self.segments.some_lost_all_written();
        if !is_quiet {
            return;
        }
        let is_stuck = match &self.collector.victim {
            // Loaded and not going on: there is no segment to relocate to.
            Some(victim) => !matches!(victim.scan, Scan::Reading(_)) && !self.stages.are_writing(),
            None => self.collector.draining.is_empty() && self.choose_victim(cx).is_none(),
        };
        if is_stuck {
            tracing::error!("no segment left that can be collected");
            self.fail(cx, MediaError::Io);
        }
    }

    /// Whether all there is has been collected for pages that wait, without a place for a single one: more had to go out
    /// without the device that is lost than those left can hold.
    fn is_in_vain(&self) -> bool {
        self.space_wanted
            && self.failed.is_none()
            && self.collector.fruitless > self.segments.count()
            && self.mapped_now() > self.capacity_now()
    }

    /// Whether space is wanted and nothing is under way that could make some.
    fn is_at_rest(&self) -> bool {
        let is_reading = |scan| matches!(scan, Scan::Reading(_));
        let is_read = self.segments.iter().any(|s| s.readers > 0);
        self.space_wanted
            && self.failed.is_none()
            && self.cold.is_warm()
            && !self.collector.rests.is_resting()
            && !self.stages.are_writing()
            && !self.log.is_flushing()
            && self.is_checkpoint_done()
            && !self.loss.is_recording()
            && !self.segments.is_discarding()
            && !self
                .collector
                .victim
                .as_ref()
                .is_some_and(|v| is_reading(v.scan))
            && !is_read
    }

    /// Writes a header without records, so that the present `durable` is on the media.
    fn nudge(&mut self, cx: Cx<'_>) {
        let Some(stage) = self.stages.take(StageUse::Prompt) else {
            return;
        };
        let Some((id, _)) = self.room(self.last_stream(), 1, false) else {
            self.stages.give_back(stage);
            return;
        };
        let at = self.place(id);
        let no = self.log.assemble(at);
        let header = self.header(cx, no, at, Stream::Relocated, false);
        self.stages.list[stage] = WriteOut {
            no,
            segment: Some(id),
            ..WriteOut::default()
        };
        count(&cx.sh.counters.nudges, 1);
        self.emit(cx, stage, id, &header);
    }
}
