//! Shutting down: everything out, then both superblock copies with the clean mark.
//!
//! ```text
//!   Running ──shutdown──► Draining ──all assembled──► Settling ──all durable, dumped──► Writing (copy, flush, copy, flush) ──► Closed
//! ```

use super::{Core, Cx};
use crate::addr::{GRAIN_BYTES, LbaRange};
use crate::crash_point::crash_point;
use crate::device::{MediaError, MediaOp};
use crate::error::DurableError;
use crate::format::SessionEnd;
use crate::ids::{Port, Token};
use crate::port::Op;
use std::sync::atomic::Ordering;

/// Where the volume is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Running,
    /// No new changes; what is dirty goes out.
    Draining {
        asker: (Port, Token),
        groups: u64,
        urgent: u64,
    },
    /// Nothing is assembled any more; what is in flight ends.
    Settling {
        asker: (Port, Token),
    },
    /// The superblock is being written: so many of its four steps are done.
    Writing {
        asker: (Port, Token),
        steps: u8,
    },
    Closed,
}

impl Phase {
    pub(super) fn is_running(self) -> bool {
        self == Self::Running
    }

    /// Whether the log is closed.
    pub(super) fn is_sealed(self) -> bool {
        !matches!(self, Self::Running | Self::Draining { .. })
    }
}

impl Core {
    /// Begins the shutdown; the port is told when the volume is clean on the media.
    pub(crate) fn shutdown(&mut self, cx: Cx<'_>, token: Token) {
        let refused = match (self.failed, self.phase) {
            (Some(error), _) => Some(DurableError::Failed(error)),
            (None, Phase::Running) => None,
            (None, _) => Some(DurableError::Shutdown),
        };
        if let Some(error) = refused {
            self.tell_durable(cx, cx.port, token, Err(error));
            return;
        }
        // Batches and changes submitted before still take effect.
        self.pump(cx);
        cx.sh.closed.store(true, Ordering::SeqCst);
        self.drain_inbox(cx);
        let urgent = self.dirty.urge(LbaRange::SPACE);
        self.formings.want(LbaRange::SPACE);
        self.phase = Phase::Draining {
            asker: (cx.port, token),
            groups: self.groups_done + u64::from(!self.group.is_empty()),
            urgent,
        };
        self.retry_frame_waiters(cx);
        self.retry_keep_waiters(cx);
        for (port, token) in self.take_makers() {
            self.answer_with_group(port, token);
        }
        self.pump(cx);
    }

    /// What the superblock is to say when it is written next.
    pub(crate) fn set_suspect(&mut self, suspect: bool) {
        self.superblock.suspect = suspect;
    }

    pub(crate) const fn is_suspect(&self) -> bool {
        self.superblock.suspect
    }

    /// Goes on with the shutdown, at the end of each pump.
    pub(super) fn run_shutdown(&mut self, cx: Cx<'_>) {
        if let Some(error) = self.failed {
            if let Phase::Draining { asker, .. }
            | Phase::Settling { asker }
            | Phase::Writing { asker, .. } = self.phase
            {
                self.phase = Phase::Closed;
                let failed = Err(DurableError::Failed(error));
                self.tell_durable(cx, asker.0, asker.1, failed);
            }
            return;
        }
        if let Phase::Draining {
            asker,
            groups,
            urgent,
        } = self.phase
            && self.groups_done >= groups
            && self.dirty.reached(urgent)
            && self.formings.pages == 0
            && self.syncs.is_empty()
            && self.loss.is_whole()
            && !self.is_switching()
            && !self.raise.is_writing()
        {
            self.phase = Phase::Settling { asker };
            self.drop_victim();
            self.drop_formings();
            // What of the map is not there by now does not come any more.
            if self.loader.is_idle() {
                self.give_up_loading(cx);
            }
        }
        if let Phase::Settling { asker } = self.phase {
            let is_busy = !self.stages.are_idle()
                || !self.collector.is_idle()
                || !self.loader.is_idle()
                || self.segments.is_discarding();
            if is_busy {
                return;
            }
            if self.log.durable() < self.log.last() {
                self.flush_wanted = self.log.last();
                self.start_flush(cx);
                return;
            }
            if self.log.is_flushing() {
                return;
            }
            if !self.dump(cx) {
                return;
            }
            crash_point!("shutdown.settled");
            let end = SessionEnd {
                session: self.superblock.session,
                first: self.superblock.sessions.last().next(),
                end: self.log.last(),
            };
            self.superblock.sessions.push(end, |_| true);
            self.superblock.clean = true;
            self.forget_fresh();
            self.phase = Phase::Writing { asker, steps: 0 };
            self.write_superblock(cx);
        }
    }

    /// Writes the next generation over the older copy.
    pub(super) fn write_superblock(&mut self, cx: Cx<'_>) {
        self.write_superblock_for(cx, Op::Superblock);
    }

    pub(super) fn write_superblock_for(&mut self, cx: Cx<'_>, purpose: Op) {
        self.superblock.generation += 1;
        let slot = cx.sh.pool.superblock();
        cx.sh
            .pool
            .arena
            .copy_in(slot, 0, &self.superblock.emit()[..]);
        let buf = cx.sh.pool.lend(slot, 1);
        let offset = self.superblock.generation % 2 * GRAIN_BYTES as u64;
        self.act(
            cx,
            purpose,
            MediaOp::Write {
                offset,
                buf,
                durable: false,
            },
        );
    }

    /// A step of writing the superblock has ended.
    pub(crate) fn superblock_done(&mut self, cx: Cx<'_>, result: Result<(), MediaError>) {
        if self.is_switching() {
            self.switch_done(cx, result);
            return;
        }
        if self.raise.is_writing() {
            self.raise_done(cx, result);
            return;
        }
        let Phase::Writing { asker, steps } = self.phase else {
            self.record_done(cx, result);
            return;
        };
        if let Err(error) = result {
            self.fail(cx, error);
            return;
        }
        self.phase = Phase::Writing {
            asker,
            steps: steps + 1,
        };
        match steps {
            0 | 2 => {
                crash_point!("shutdown.clean");
                self.act(cx, Op::Superblock, MediaOp::Flush);
            }
            1 => self.write_superblock(cx),
            _ => {
                self.phase = Phase::Closed;
                self.tell_durable(cx, asker.0, asker.1, Ok(()));
            }
        }
    }
}
