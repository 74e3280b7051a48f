//! What a reactor does.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ftl::{Meter, Metered};
use softrdma::{CloseReason, Served};

/// Counts it. The reactor is the only one that writes.
#[derive(Debug, Default)]
pub(in crate::target) struct ReactorMeters {
    /// Messages of peers, each at the number of what it asks for.
    served: [Meter; Served::ALL.len()],
    /// Connections that have ended, each at the number of its end.
    ended: [AtomicU64; ENDS.len()],
    calls: AtomicU64,
}

/// How connections end that were let in.
pub(super) const ENDS: [&str; 8] = [
    "disconnected",
    "lost",
    "timed_out",
    "aborted",
    "storage",
    "peer_error",
    "terminated",
    "setup",
];

/// None: it was never let in.
fn end(reason: &CloseReason) -> Option<&'static str> {
    match reason {
        CloseReason::Graceful => Some("disconnected"),
        CloseReason::Lost => Some("lost"),
        CloseReason::TimedOut => Some("timed_out"),
        CloseReason::Aborted => Some("aborted"),
        CloseReason::Storage(_) => Some("storage"),
        CloseReason::TerminateSent(_) => Some("peer_error"),
        CloseReason::TerminateReceived(_) => Some("terminated"),
        CloseReason::Setup(_) => Some("setup"),
        CloseReason::Rejected(_) | CloseReason::RejectedByUs => None,
    }
}

impl ReactorMeters {
    /// What a peer has asked for is done.
    pub(in crate::target) fn note(&self, what: Served, bytes: u64, took: Duration) {
        self.served[what as usize].note_alone(took, Some(bytes));
    }

    /// A connection has ended.
    pub(in crate::target) fn note_end(&self, reason: &CloseReason) {
        let number = ENDS.iter().position(|&known| end(reason) == Some(known));
        if let Some(number) = number {
            self.ended[number].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// So many ended in each way, in the order of [`ENDS`].
    pub(super) fn ended(&self) -> [u64; ENDS.len()] {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        self.ended.each_ref().map(load)
    }

    /// The reactor has made so many system calls for its ring.
    pub(in crate::target) fn set_calls(&self, calls: u64) {
        self.calls.store(calls, Ordering::Relaxed);
    }

    /// So many.
    pub(super) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// What was done for peers, those that have gone among them.
    pub(super) fn served(&self, what: Served) -> Metered {
        self.served[what as usize].read()
    }
}

#[cfg(test)]
mod tests {
    use softrdma::wire::terminate::{Terminate, TerminateCode};
    use softrdma::{PageError, SetupError};

    use super::*;

    /// Each end of a connection that was let in is counted once, each in a place of its own; a refusal is not.
    #[test]
    fn ends() {
        let meters = ReactorMeters::default();
        let code = TerminateCode::MpaCrc;
        let told = Terminate {
            layer: 2,
            etype: 0,
            ecode: 2,
        };
        let all = [
            CloseReason::Graceful,
            CloseReason::Lost,
            CloseReason::TimedOut,
            CloseReason::Aborted,
            CloseReason::Storage(PageError::Media),
            CloseReason::TerminateSent(code),
            CloseReason::TerminateReceived(told),
            CloseReason::Setup(SetupError::BadKey),
        ];
        for reason in &all {
            meters.note_end(reason);
        }
        assert_eq!(meters.ended(), [1; ENDS.len()]);
        meters.note_end(&CloseReason::RejectedByUs);
        meters.note_end(&CloseReason::Rejected(Vec::new()));
        assert_eq!(meters.ended(), [1; ENDS.len()]);
    }
}
