//! Giving the volume another size while it is open. See `docs/resize.md`.
//!
//! ```text
//!   Emptying ──nothing lives behind the new end──► Settling ──map loaded, no checkpoint under way──►
//!     (only to shrink)
//!   Switching (superblock: copy, flush, copy, flush) ──► Saving ──checkpoint in the new area──► done
//! ```
//!
//! # Invariants
//! - The engine uses the new sizes when both superblock copies say them, durably, and not before.
//! - No checkpoint is taken while the superblock is being switched.

use super::{Core, Cx};
use crate::addr::{LbaRange, SegmentId};
use crate::crash_point::crash_point;
use crate::device::{MediaError, MediaOp};
use crate::error::{DurableError, ResizeError};
use crate::format::has_heat;
use crate::geometry::{Geometry, RESERVED_SEGMENTS};
use crate::ids::{Port, Token};
use crate::planted::Bug;
use crate::port::Op;

/// How far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Emptying,
    Settling,
    /// So many of the four steps are done.
    Switching(u8),
    /// The first checkpoint of the new size is due, or (true) being taken.
    Saving(bool),
}

/// A change of size under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resize {
    asker: (Port, Token),
    to: Geometry,
    step: Step,
}

impl Core {
    /// The sizes of the volume.
    pub(crate) fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The smallest device that what is mapped fits on.
    pub(crate) fn device_grains_min(&self) -> Result<u64, ResizeError> {
        self.geometry.smallest_for(self.mapped)
    }

    /// Gives the volume the layout of a device of so many grains. The port is told when that is done.
    pub(crate) fn resize(
        &mut self,
        cx: Cx<'_>,
        device_grains: u64,
        token: Token,
    ) -> Result<(), ResizeError> {
        if self.failed.is_some() || !self.phase.is_running() {
            return Err(ResizeError::Closed);
        }
        if self.resize.is_some() {
            return Err(ResizeError::Busy);
        }
        let (from, to) = (self.geometry, self.geometry.resized(device_grains)?);
        let grows = to.segment_count > from.segment_count;
        if to.segment_count == from.segment_count {
            // What is more or less than before is not worth having.
            self.tell_durable(cx, cx.port, token, Ok(()));
            return Ok(());
        }
        if grows && to.capacity_grains < from.capacity_grains {
            return Err(ResizeError::Layout);
        }
        if grows && !self.can_note_growth() {
            return Err(ResizeError::TooOften);
        }
        self.drain_inbox(cx);
        if self.mapped > to.capacity_grains {
            return Err(ResizeError::Full {
                mapped: self.mapped,
                capacity: to.capacity_grains,
            });
        }
        let step = if grows {
            Step::Settling
        } else {
            Step::Emptying
        };
        self.resize = Some(Resize {
            asker: (cx.port, token),
            to,
            step,
        });
        if !grows {
            self.segments.leave(SegmentId(to.segment_count));
            // Nothing is to wait for a younger copy that nobody is in a hurry to write.
            self.dirty.urge(LbaRange::SPACE);
            self.formings.want(LbaRange::SPACE);
        }
        self.pump(cx);
        Ok(())
    }

    /// Whether what has been written since the volume has grown the last time leaves room to note that it has grown again.
    fn can_note_growth(&self) -> bool {
        let (segments, durable) = (&self.segments, self.log.durable());
        let end = SegmentId(self.geometry.segment_count);
        let mut fresh = self.superblock.fresh.clone();
        fresh.grow(end, self.log.last(), |id| segments.is_opened(id, durable))
    }

    /// Grains that may be mapped, as far as the size to come has to do with it.
    pub(super) fn capacity_to_come(&self) -> u64 {
        let now = self.geometry.capacity_grains;
        self.resize
            .map_or(now, |resize| now.min(resize.to.capacity_grains))
    }

    /// Whether a checkpoint would be of a layout that is about to change.
    pub(super) fn is_layout_changing(&self) -> bool {
        let step = self.resize.map(|resize| resize.step);
        matches!(step, Some(Step::Settling | Step::Switching(_)))
    }

    /// Whether a shutdown has to wait for the size to change.
    pub(super) fn is_switching(&self) -> bool {
        matches!(self.resize.map(|r| r.step), Some(Step::Switching(_)))
    }

    /// A segment to be emptied, if there is room to.
    pub(super) fn choose_leaving(&self) -> Option<SegmentId> {
        let next = self.segments.next_leaving()?;
        let room = self.segments.free_count() >= RESERVED_SEGMENTS
            && self.has_room_for(self.segments.get(next).cost());
        room.then_some(next)
    }

    /// Closes what is open behind the new end, if there is room to write elsewhere. True if there was something.
    pub(super) fn close_leaving(&mut self) -> bool {
        let is_emptying = matches!(self.resize, Some(r) if r.step == Step::Emptying);
        if !is_emptying || self.segments.free_count() < RESERVED_SEGMENTS {
            return false;
        }
        let freed_at = self.log.last();
        let closed = self.segments.close_leaving();
        for &id in &closed {
            self.segments.retire_if_empty(id, freed_at);
        }
        !closed.is_empty()
    }

    /// Goes on with a change of size.
    pub(super) fn run_resize(&mut self, cx: Cx<'_>) {
        let Some(resize) = self.resize else {
            return;
        };
        if let Some(error) = self.failed {
            self.end_resize(cx, Err(DurableError::Failed(error)));
            return;
        }
        if !self.phase.is_running() && !matches!(resize.step, Step::Switching(_)) {
            // What is left of saving, the dump of the shutdown does.
            let result = match resize.step {
                Step::Saving(_) => Ok(()),
                _ => Err(DurableError::Shutdown),
            };
            self.end_resize(cx, result);
            return;
        }
        if resize.step == Step::Emptying {
            if let Some(segment) = self.segments.stuck_leaving() {
                self.end_resize(cx, Err(DurableError::Unreadable { segment }));
                return;
            }
            if self.segments.have_left() && self.has_collected() || cx.sh.has_bug(Bug::CutEarly) {
                crash_point!("resize.left");
                self.set_step(Step::Settling);
            } else if !self.segments.have_left() && self.is_emptying_stuck() {
                self.end_resize(cx, Err(DurableError::NoSpace));
                return;
            }
        }
        let step = self.resize.map(|resize| resize.step);
        if step == Some(Step::Settling) && self.is_ring_quiet() {
            let has_left = self.segments.have_left() && self.has_collected();
            if has_left || cx.sh.has_bug(Bug::CutEarly) {
                self.switch(cx, resize.to);
            } else {
                // Collection among what stays had to begin somewhere.
                self.set_step(Step::Emptying);
            }
        }
        if let Some(Step::Saving(begun)) = step {
            self.save_resized(cx, begun);
        }
    }

    fn set_step(&mut self, step: Step) {
        if let Some(resize) = &mut self.resize {
            resize.step = step;
        }
    }

    /// Whether emptying can not go on: whatever could has been begun, and nothing is under way.
    fn is_emptying_stuck(&self) -> bool {
        self.cold.is_warm()
            && !self.collector.is_reading()
            && !self.stages.are_writing()
            && !self.log.is_flushing()
            && !self.segments.is_discarding()
            && !self.segments.has_pending()
            && self.is_checkpoint_over()
            && self.choose_leaving().is_none()
    }

    /// Whether nothing of a segment that is to be cut off is on its way to another place, dead or alive.
    fn has_collected(&self) -> bool {
        !self.segments.are_leaving() || self.collector.is_at_rest()
    }

    /// Whether nothing reads or writes the area for checkpoints any more.
    fn is_ring_quiet(&self) -> bool {
        self.cold.is_warm()
            && self.loader_is_idle()
            && self.is_checkpoint_over()
            && !self.segments.is_discarding()
            && !self.raise.is_writing()
    }

    /// Begins to write the superblock of the new size.
    fn switch(&mut self, cx: Cx<'_>, to: Geometry) {
        let from = self.geometry;
        let (old_end, durable) = (SegmentId(from.segment_count), self.log.durable());
        let segments = &self.segments;
        let is_opened = |id| segments.is_opened(id, durable);
        let fresh = &mut self.superblock.fresh;
        if to.segment_count > from.segment_count {
            let known = cx.sh.has_bug(Bug::FreshForgotten)
                || fresh.grow(old_end, self.log.last(), is_opened);
            if !known {
                // It was possible when that was asked for; whoever asks again is told.
                self.end_resize(cx, Err(DurableError::Shutdown));
                return;
            }
        } else {
            fresh.forget(SegmentId(to.segment_count), is_opened);
        }
        self.segments.end();
        self.superblock.geometry = to;
        self.superblock.roots_from = self.last_root_number() + 1;
        // There may have been no area for checkpoints before.
        self.superblock.heat |= has_heat(self.placement.meaning(), &to);
        self.set_step(Step::Switching(0));
        self.write_superblock(cx);
        crash_point!("resize.copy");
    }

    /// A step of writing the superblock has ended.
    pub(super) fn switch_done(&mut self, cx: Cx<'_>, result: Result<(), MediaError>) {
        let Some(Resize {
            step: Step::Switching(done),
            to,
            ..
        }) = self.resize
        else {
            return;
        };
        if let Err(error) = result {
            self.fail(cx, error);
            return;
        }
        match done {
            0 | 2 => {
                crash_point!("resize.copy");
                self.set_step(Step::Switching(done + 1));
                self.act(cx, Op::Superblock, MediaOp::Flush);
            }
            1 => {
                self.set_step(Step::Switching(2));
                self.write_superblock(cx);
            }
            _ => {
                crash_point!("resize.switched");
                self.use_geometry(to);
                self.forget_roots(self.superblock.roots_from);
                self.set_step(Step::Saving(false));
            }
        }
    }

    /// Segments that have been opened since the volume has grown are like all others.
    pub(super) fn forget_fresh(&mut self) {
        let (segments, durable) = (&self.segments, self.log.durable());
        let end = SegmentId(self.geometry.segment_count);
        let is_opened = |id| segments.is_opened(id, durable);
        self.superblock.fresh.forget(end, is_opened);
    }

    fn use_geometry(&mut self, to: Geometry) {
        tracing::info!(
            from = self.geometry.device_grains,
            to = to.device_grains,
            "the volume has another size"
        );
        self.geometry = to;
        self.segments.resize(&to.places);
    }

    /// The old roots do not count any more, so the next opening would have to read all headers.
    fn save_resized(&mut self, cx: Cx<'_>, begun: bool) {
        if !begun && self.takes_checkpoints() {
            if self.capture_at_once(cx) {
                self.set_step(Step::Saving(true));
            }
            return;
        }
        if self.is_checkpoint_over() {
            self.end_resize(cx, Ok(()));
        }
    }

    fn end_resize(&mut self, cx: Cx<'_>, result: Result<(), DurableError>) {
        if let Some(resize) = self.resize.take() {
            self.segments.stay();
            self.tell_durable(cx, resize.asker.0, resize.asker.1, result);
        }
    }
}
