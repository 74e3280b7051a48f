//! Durability: syncs, their waiters, and the flushes that answer them.

use super::{Core, Cx};
use crate::addr::LbaRange;
use crate::device::MediaOp;
use crate::error::DurableError;
use crate::format::HeaderNo;
use crate::ids::{Port, Token};
use crate::planted::Bug;
use crate::port::Op;
use crate::stats::count;

/// A sync whose pages have not all been assembled.
#[derive(Debug)]
pub(super) struct SyncWaiter {
    pub(super) port: Port,
    pub(super) token: Token,
    /// What it is about.
    pub(super) range: LbaRange,
    pub(super) marks: Marks,
}

/// Somebody who is told when a header is durable.
#[derive(Clone, Copy, Debug)]
pub(super) struct DurableWaiter {
    pub(super) no: HeaderNo,
    pub(super) port: Port,
    pub(super) token: Token,
    /// It is a sync, which vouches for everything before it, of this range.
    pub(super) sync: Option<LbaRange>,
}

/// What has to be assembled before something is in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Marks {
    /// Groups and urgent pages.
    groups: u64,
    urgent: u64,
    /// Write-outs that form and hold such pages.
    forming: u64,
}

impl Core {
    /// Everything put before in `range` becomes durable, then the port is told. The work is left to the moment when the
    /// driver asks for actions: all syncs that it brings until then share a write-out.
    pub(crate) fn sync(&mut self, cx: Cx<'_>, range: LbaRange, token: Token) {
        if let Some(error) = self.failed {
            self.tell_durable(cx, cx.port, token, Err(DurableError::Failed(error)));
            return;
        }
        if let Some(lba) = self.take_orphan(cx, range) {
            self.tell_durable(cx, cx.port, token, Err(DurableError::Lost { lba }));
            return;
        }
        self.drain_inbox(cx);
        let port = cx.port;
        if self.phase.is_sealed() && self.dirty.is_in(range) {
            // The log is closed: what was put too late does not go out any more.
            self.tell_durable(cx, port, token, Err(DurableError::Shutdown));
            return;
        }
        let marks = self.sync_marks(cx, range);
        self.syncs.push_back(SyncWaiter {
            port,
            token,
            range,
            marks,
        });
        cx.sh.owe(port);
    }

    /// Wants everything put in `range` to go out; returns what to wait for.
    pub(super) fn sync_marks(&mut self, cx: Cx<'_>, range: LbaRange) -> Marks {
        let forgotten = cx.sh.has_bug(Bug::RelaxedForgotten) && self.group.waiters.is_empty();
        let group = !self.group.is_empty() && !forgotten;
        Marks {
            groups: self.groups_done + u64::from(group),
            urgent: self.dirty.urge(range),
            forming: self.formings.want(range),
        }
    }

    /// Whether all of it has been assembled.
    pub(super) fn are_reached(&self, marks: Marks) -> bool {
        self.groups_done >= marks.groups
            && self.dirty.reached(marks.urgent)
            && self.formings.reached(marks.forming)
    }

    /// Syncs whose pages have all been assembled wait for the youngest header.
    pub(super) fn resolve_syncs(&mut self) {
        while let Some(first) = self.syncs.front() {
            if !self.are_reached(first.marks) {
                break;
            }
            let done = self.syncs.pop_front().expect("not empty");
            self.durable_waiters.push_back(DurableWaiter {
                no: self.log.last(),
                port: done.port,
                token: done.token,
                sync: Some(done.range),
            });
        }
    }

    /// Tells everybody whose header is durable.
    pub(super) fn answer_durable(&mut self, cx: Cx<'_>) {
        if !self.loss.is_whole() {
            return;
        }
        let reached = if cx.sh.has_bug(Bug::AckBeforeFlush) {
            self.log.written()
        } else {
            self.log.durable()
        };
        while let Some(first) = self.durable_waiters.pop_front_if(|w| w.no <= reached) {
            if let Some(range) = first.sync {
                self.loss.vouched(range, first.no);
            }
            self.tell_durable(cx, first.port, first.token, Ok(()));
        }
    }

    /// Starts a flush if somebody waits for one and the writes it is about have completed. One at a time: who comes
    /// during a flush shares the next.
    pub(super) fn start_flush(&mut self, cx: Cx<'_>) {
        if self.failed.is_some() || self.log.is_flushing() {
            return;
        }
        let (written, flushed) = (self.log.written(), self.log.flushed());
        let wanted = |no: HeaderNo| flushed < no && no <= written;
        // While a loss is being recorded those in front are durable, and not answered.
        let flushed_for = self.durable_waiters.partition_point(|w| w.no <= flushed);
        let waiting = self.durable_waiters.get(flushed_for);
        if waiting.is_some_and(|w| wanted(w.no)) || wanted(self.flush_wanted) {
            let covers = self.log.begin_flush();
            self.act(cx, Op::Flush { covers }, MediaOp::Flush);
            count(&cx.sh.counters.flushes, 1);
        }
    }
}
