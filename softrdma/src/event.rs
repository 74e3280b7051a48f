//! What a connection tells the program above it.

use crate::page::PageError;
use crate::wire::terminate::{Terminate, TerminateCode};

/// Set-up and end of a connection. Completed work is reported apart, as [`Completion`](crate::Completion)s.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Responder: a valid Request arrived; answer with `accept` or `reject`.
    ConnectRequest(ConnectRequest),
    /// The connection carries work in both directions from here on.
    Established(Established),
    /// The peer sent FIN: it will send no more. What was posted here still goes out.
    PeerFinished,
    /// `IBV_EVENT_SRQ_LIMIT_REACHED`: by a message of this connection the shared receive queue fell below its limit.
    SharedReceivesLow,
    /// The end; the last event. All requests have completed.
    Closed(CloseReason),
}

/// What the initiator asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectRequest {
    /// Private data of the program (without enhanced block and hello).
    pub private_data: Vec<u8>,
    /// Revision of the Request.
    pub revision: u8,
    /// READs the peer can hold, if it said so.
    pub peer_ird: Option<u16>,
    /// READs the peer wants to have outstanding, if it said so.
    pub peer_ord: Option<u16>,
    /// The peer announced itself as one of our own endpoints.
    pub hello: bool,
}

/// What was agreed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Established {
    /// Initiator: private data of the Reply. Responder: empty.
    pub private_data: Vec<u8>,
    /// READs of the peer that we hold.
    pub ird: u16,
    /// Our READs outstanding.
    pub ord: u16,
    /// CRCs are on.
    pub crc: bool,
    /// We send markers.
    pub markers: bool,
    /// Largest ULPDU that we send.
    pub ulpdu_max: u16,
    /// Both sides speak the private profile.
    pub private_profile: bool,
}

/// Why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// Both sides finished in order.
    #[error("disconnected")]
    Graceful,
    /// The responder refused; its private data is enclosed.
    #[error("connection refused by the peer's program")]
    Rejected(Vec<u8>),
    /// We refused.
    #[error("connection refused by this program")]
    RejectedByUs,
    /// We found an error of the peer and said so.
    #[error("peer error: {0}")]
    TerminateSent(TerminateCode),
    /// A page or durability request of the store failed; the peer was told.
    #[error("storage: {0}")]
    Storage(PageError),
    /// The peer found an error of ours.
    #[error("terminated by the peer: {0}")]
    TerminateReceived(Terminate),
    /// The first frame was not a valid Request or Reply.
    #[error("set-up: {0}")]
    Setup(#[from] SetupError),
    /// The transport broke, or ended inside a message.
    #[error("transport connection lost")]
    Lost,
    /// `abort` was called.
    #[error("aborted")]
    Aborted,
    /// Set-up or close took too long.
    #[error("timed out")]
    TimedOut,
}

/// A first frame that cannot be used (code LLP/0/4 and its kin).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum SetupError {
    /// Wrong key: this is not MPA.
    #[error("not an MPA start frame")]
    BadKey,
    /// Both sides initiated.
    #[error("both sides sent a Request")]
    BothInitiated,
    /// Private data longer than 512 bytes, or too short for what the flags promise.
    #[error("bad private data length")]
    BadLength,
    /// A revision we do not know, or not the one we asked for.
    #[error("revision {0} not usable")]
    Revision(u8),
    /// Bytes behind the Request before it was answered.
    #[error("bytes follow the Request")]
    TrailingBytes,
    /// The peer wants more READs than we hold.
    #[error("peer needs an inbound read depth of {0}")]
    InsufficientIrd(u16),
    /// No kind of ready-to-receive frame in common.
    #[error("no ready-to-receive frame in common")]
    NoCommonRtr,
}
