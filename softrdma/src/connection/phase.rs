//! The life of a connection.
//!
//! ```text
//!  responder: AwaitRequest -> AwaitAnswer -> AwaitFirst -> Rts
//!  initiator: AwaitReply ---------------------------------> Rts
//!
//!  Rts (Open -> Draining -> FinSent, and FIN of the peer) ----------> Closed
//!  any -> Finishing (Terminate goes out, FIN) ----------------------> Closed
//!  AwaitAnswer -> Finishing (refusal goes out, FIN of the peer) -----> Closed
//!  any -> Closed
//! ```

use crate::addr::Time;
use crate::connection::setup::Asked;
use crate::event::{CloseReason, Established};

/// Where the connection is.
#[derive(Debug)]
pub(super) enum Phase {
    /// Responder: no Request yet.
    AwaitRequest { deadline: Time },
    /// Responder: the program has not answered.
    AwaitAnswer(Asked),
    /// Initiator: no Reply yet.
    AwaitReply { deadline: Time },
    /// Responder: replied; nothing may be sent before the first FPDU of the peer (RFC 5044 §7.1.2).
    AwaitFirst {
        /// None until its time begins ([`Connection::start_clock`](super::Connection::start_clock)).
        deadline: Option<Time>,
        /// Told with the first FPDU, which has a deadline then; none if the program has heard of it.
        established: Option<Established>,
        /// Draining: what was posted goes out behind the first FPDU, which has a deadline then, too.
        local: Local,
    },
    /// Work goes both ways.
    Rts { local: Local, remote: Remote },
    /// Last words go out, received bytes are discarded.
    Finishing {
        reason: CloseReason,
        finish: Finish,
        /// For the driver to take them; for the peer's FIN once it has. None until that time begins
        /// ([`Connection::start_clock`](super::Connection::start_clock)).
        deadline: Option<Time>,
    },
    /// The end.
    Closed,
}

impl Phase {
    pub(super) fn rts() -> Self {
        Self::Rts {
            local: Local::Open,
            remote: Remote::Open,
        }
    }
}

/// Our direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Local {
    Open,
    /// Finishes what was posted and asked.
    Draining,
    /// FIN may be sent; the peer's is awaited.
    FinSent {
        deadline: Time,
    },
}

/// The peer's direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remote {
    Open,
    /// FIN arrived while bytes before it are still parked.
    FinBehind,
    /// FIN arrived, everything before it is done.
    Finished,
}

/// How far the last words are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finish {
    /// Not handed to the driver yet; it may not come to take them, as a peer that does not read holds it up.
    Pending,
    /// Handed over; the peer's FIN is awaited.
    Sent,
    /// Not handed over yet, and the peer's FIN is here.
    PendingAfterFin,
}
