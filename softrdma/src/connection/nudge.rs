//! A segment for peers that have overlooked our first FPDU.
//!
//! Linux `siw` as a responder sends its Reply before it listens for FPDUs. One that arrives in between stays unread until
//! the next segment of ours comes. A Write of zero bytes is one that no program notices:
//!
//! - while nothing comes back, after 50 ms and then after three times as long again, up to [`TRIES`] times: the peer may be
//!   that slow, too;
//! - when something came back that may not be an answer (programs on both sides may speak first), once more. The peer
//!   listens by now, so that this one is the last; and anything else that we send serves as well.

use std::time::Duration;

use crate::addr::Time;

/// First wait.
const FIRST: Duration = Duration::from_millis(50);
/// Each further wait, in terms of the one before.
const GROWTH: u32 = 3;
/// Writes of zero bytes to a peer that stays silent.
const TRIES: u32 = 4;

/// When a nudge is due.
#[derive(Debug, Default)]
pub(super) struct Nudge {
    due: Option<Time>,
    wait: Duration,
    tried: u32,
    /// We have sent an FPDU.
    sent: bool,
    /// The peer has.
    heard: bool,
}

impl Nudge {
    /// A foreign responder has replied; `sent`: our ready-to-receive frame goes out at once.
    pub(super) fn start(now: Time, sent: bool) -> Self {
        Self {
            due: Some(now + FIRST),
            wait: FIRST,
            tried: 0,
            sent,
            heard: false,
        }
    }

    /// When `is_due` wants to be asked.
    pub(super) fn at(&self) -> Option<Time> {
        self.due
    }

    /// An FPDU goes out. One behind the first bytes of the peer is read.
    pub(super) fn note_sent(&mut self) {
        self.sent = true;
        if self.heard {
            self.due = None;
        }
    }

    /// Bytes of the peer arrived. What we have not sent yet it will read.
    pub(super) fn note_heard(&mut self) {
        self.heard = true;
        if !self.sent {
            self.due = None;
        }
    }

    /// Time passed: shall a Write of zero bytes go out, if that is possible now?
    pub(super) fn is_due(&mut self, now: Time) -> bool {
        if self.due.is_none_or(|at| at > now) {
            return false;
        }
        self.tried += 1;
        self.wait *= GROWTH;
        let again = self.sent && !self.heard && self.tried < TRIES;
        self.due = again.then(|| now + self.wait);
        self.sent
    }
}
