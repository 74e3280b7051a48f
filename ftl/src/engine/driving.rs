//! For who drives a port: actions out, completions and time in, answers out.

use super::Ftl;
use crate::device::{Action, ActionId, MediaError};
use crate::ids::{Port, Time};
use crate::planted::Bug;
use crate::port::{Event, Op, PortQueue};
use crate::shared::NEVER;
use std::sync::atomic::Ordering;

impl Ftl {
    /// The next media operation for the driver of `port`. Asking may bring forth answers.
    pub fn poll_action(&self, port: Port) -> Option<Action> {
        let queue = self.port(port);
        queue.pop_action().or_else(|| {
            if queue.take_owed() {
                self.core(port, |core, cx| core.pump(cx));
            }
            queue.pop_action()
        })
    }

    /// The next answer on `port`.
    pub fn poll_event(&self, port: Port) -> Option<Event> {
        self.port(port).pop_event()
    }

    /// A media operation of `port` has ended.
    ///
    /// # Panics
    /// If the action is not in flight.
    pub fn handle_done(&self, port: Port, now: Time, id: ActionId, result: Result<(), MediaError>) {
        self.shared.now.fetch_max(now.0, Ordering::SeqCst);
        debug_assert_eq!(PortQueue::of(id), port, "actions end where they began");
        match self.port(PortQueue::of(id)).finish(id) {
            fill @ Op::Fill { .. } => self.filled(port, &[(fill, self.is_intact(fill, result))]),
            op => self.core(port, |core, cx| {
                core.notice_losses(cx);
                match op {
                    Op::Fill { .. } => unreachable!("handled above"),
                    Op::WriteOut { stage } => core.write_out_done(cx, stage, result),
                    Op::LateData { stage } => core.late_data_done(stage),
                    Op::Flush { covers } => core.flush_done(cx, covers, result),
                    Op::Scan { grains } => core.scan_done(cx, grains, result),
                    Op::Superblock => core.superblock_done(cx, result),
                    Op::SavePages { grains } => core.save_pages_done(cx, grains, result),
                    Op::SaveFlush => core.save_flush_done(cx, result),
                    Op::Disown => {}
                    Op::Discard { segment } => core.discard_done(segment),
                    Op::SaveRoot => core.save_root_done(cx, result),
                    Op::LoadPage { slot } => core.load_page_done(cx, slot, result),
                }
                core.pump(cx);
            }),
        }
    }

    /// Several media operations of `port` have ended, as [`Ftl::handle_done`] for each. Those who wait for pages of several
    /// reads are woken once.
    ///
    /// # Panics
    /// If an action is not in flight.
    pub fn handle_done_all(
        &self,
        port: Port,
        now: Time,
        ended: impl IntoIterator<Item = (ActionId, Result<(), MediaError>)>,
    ) {
        self.shared.now.fetch_max(now.0, Ordering::SeqCst);
        let mut fills = Vec::new();
        for (id, result) in ended {
            if self.port(PortQueue::of(id)).is_fill(id) {
                let fill = self.port(PortQueue::of(id)).finish(id);
                fills.push((fill, self.is_intact(fill, result)));
            } else {
                self.handle_done(port, now, id, result);
            }
        }
        if !fills.is_empty() {
            self.filled(port, &fills);
        }
    }

    /// Whether a frame holds what it should. The checksum is computed outside of the lock: nobody else knows the frame
    /// yet.
    fn is_intact(&self, fill: Op, result: Result<(), MediaError>) -> Result<bool, MediaError> {
        let Op::Fill { frame, crc, .. } = fill else {
            unreachable!("{fill:?} fills no frame");
        };
        result.map(|()| {
            let slot = self.shared.pool.frame(frame);
            self.shared.has_bug(Bug::ChecksumIgnored)
                || self.shared.dataless
                || self.shared.pool.arena.crc(slot) == crc
        })
    }

    /// Frames have been filled.
    fn filled(&self, port: Port, fills: &[(Op, Result<bool, MediaError>)]) {
        self.core(port, |core, cx| {
            let has_lost = core.notice_losses(cx);
            for &(fill, intact) in fills {
                let Op::Fill {
                    frame, life, pba, ..
                } = fill
                else {
                    unreachable!("{fill:?} fills no frame");
                };
                core.fill_done(cx, (frame, life), pba, intact);
            }
            if has_lost {
                core.pump(cx);
            } else {
                core.pump_after_fill(cx);
            }
        });
    }

    /// When [`Ftl::handle_timeout`] is due, if ever.
    pub fn poll_timeout(&self) -> Option<Time> {
        let due = self.shared.deadline.load(Ordering::SeqCst);
        (due != NEVER).then_some(Time(due))
    }

    /// Time has passed: starts what is due. May be called at any time, by any driver.
    pub fn handle_timeout(&self, port: Port, now: Time) {
        self.shared.now.fetch_max(now.0, Ordering::SeqCst);
        let due = self.shared.deadline.load(Ordering::SeqCst);
        if now.0 >= due {
            self.core(port, |core, cx| core.aged(cx));
        }
    }

    /// Sets who is called when the port gets something to do outside of its own driver's calls. The waker must not
    /// call the volume.
    pub fn set_waker(&self, port: Port, waker: Box<dyn Fn() + Send + Sync>) {
        self.port(port).set_waker(waker);
    }
}
