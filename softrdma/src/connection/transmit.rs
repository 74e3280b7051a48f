//! What goes out: last words first, then responses and requests in turn, never one inside the other.

use crate::addr::Time;
use crate::connection::inbound::Inbound;
use crate::connection::phase::{Finish, Local, Phase, Remote};
use crate::connection::requests::Limits;
use crate::connection::{Connection, SocketState};
use crate::event::CloseReason;
use crate::page::PageStore;

/// Whose message comes next, when both have one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Response,
    Request,
}

impl<S: PageStore> Connection<S> {
    /// Appends bytes to send, whole FPDUs, until `limit` bytes were appended or nothing more is ready. Returns how
    /// many were appended. They count as taken by the transport: the driver sends all of them, in order.
    pub fn poll_transmit(
        &mut self,
        now: Time,
        pages: &mut S,
        out: &mut Vec<u8>,
        limit: usize,
    ) -> usize {
        self.now = now;
        let start = out.len();
        let mut digested = 0;
        self.emit_control(out);
        while matches!(self.phase, Phase::Rts { .. }) {
            // Also asks for the pages of READs that came in since.
            self.responses.fill_window(pages, &mut self.tickets);
            // What a VERIFY reads counts like what a READ sends. Who appended nothing is not asked again, so it goes on
            // to the end of the first answer.
            let is_enough = out.len() - start + digested >= limit && out.len() > start;
            if limit == 0 || is_enough || !self.emit_segment(pages, out) {
                break;
            }
            digested += self.responses.take_digested();
            // A READ whose source failed has left a Terminate.
            self.emit_control(out);
        }
        self.start_clock();
        self.advance_close();
        self.responses.tell_done(pages);
        out.len() - start
    }

    fn emit_control(&mut self, out: &mut Vec<u8>) {
        if !self.control_out.is_empty() {
            out.append(&mut self.control_out);
        }
    }

    /// One segment. False if there is none.
    fn emit_segment(&mut self, pages: &mut S, out: &mut Vec<u8>) -> bool {
        let request_ready = self.requests.is_ready(self.ord);
        let response = if self.responses.is_mid_message() {
            true
        } else if self.requests.is_mid_message() {
            false
        } else {
            self.responses.is_ready() && (self.turn == Turn::Response || !request_ready)
        };
        if response {
            if !self.responses.is_ready() {
                return false;
            }
            self.turn = Turn::Request;
            let who = self.accessor();
            let (max, framer) = (self.ulpdu_max, &mut self.framer);
            if let Err(fault) = self.responses.emit(pages, who, max, framer, out) {
                let ulpdu = self.responses.offending_ulpdu();
                self.fail(fault, ulpdu.as_deref());
            }
        } else {
            if !request_ready {
                return false;
            }
            self.turn = Turn::Response;
            let limits = Limits {
                ord: self.ord,
                profile: self.profile,
                ulpdu_max: self.ulpdu_max,
                who: self.accessor(),
                table: self.regions.table(),
            };
            self.requests
                .emit(&limits, &mut self.framer, out, &mut self.completions);
        }
        self.nudge.note_sent();
        true
    }

    /// Moves the close along, now that everything ready is in the driver's hands.
    fn advance_close(&mut self) {
        if !self.control_out.is_empty() {
            return;
        }
        let deadline = self.now + self.config.close_timeout;
        match &mut self.phase {
            Phase::Finishing {
                finish: finish @ Finish::Pending,
                deadline: until,
                ..
            } => (*finish, *until) = (Finish::Sent, Some(deadline)),
            Phase::Finishing {
                finish: Finish::PendingAfterFin,
                ..
            } => self.close_finishing(),
            Phase::Rts {
                local: local @ Local::Draining,
                remote,
            } => {
                if !self.requests.is_empty()
                    || !self.responses.is_empty()
                    || self.inbound != Inbound::Open
                {
                    return;
                }
                match remote {
                    Remote::Finished => self.close(CloseReason::Graceful),
                    Remote::Open | Remote::FinBehind => *local = Local::FinSent { deadline },
                }
            }
            _ => {}
        }
    }

    /// What to do with the socket when all bytes are sent.
    #[must_use]
    pub fn socket_state(&self) -> SocketState {
        match &self.phase {
            Phase::Closed => SocketState::Close,
            // Who is refused closes first: a kernel's siw that finds FIN right behind the Reply often reports the end alone, and
            // its program is not told why.
            Phase::Finishing {
                reason: CloseReason::RejectedByUs,
                ..
            } => SocketState::Open,
            Phase::Rts {
                local: Local::FinSent { .. },
                ..
            }
            | Phase::Finishing {
                finish: Finish::Sent,
                ..
            } => SocketState::ShutdownWrite,
            _ => SocketState::Open,
        }
    }
}
