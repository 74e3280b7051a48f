//! What can go wrong for a client, said so that its user knows what to do.

use std::io;
use std::net::SocketAddr;

use flashnet_tls::{TlsError, TlsFileError};
use softrdma::{CloseReason, Status};
use thiserror::Error;

use crate::control::Malformed;
use crate::credentials::Denial;

/// Why a remote operation failed.
#[derive(Debug, Error)]
pub enum ClientError {
    /// Not `HOST[:PORT]/PATH`.
    #[error("{0:?} is not of the form HOST[:PORT]/PATH")]
    Syntax(String),
    /// The name does not resolve.
    #[error("unknown host {host}: {cause}")]
    UnknownHost {
        /// The name.
        host: String,
        /// What the resolver said.
        cause: String,
    },
    /// No TCP connection.
    #[error("cannot connect to {address}: {cause} (is `flashnet serve` running there?)")]
    Connect {
        /// Where.
        address: SocketAddr,
        /// Why not.
        cause: io::Error,
    },
    /// The RDMA connection could not be made or has ended.
    #[error("connection to {address} ended: {reason}")]
    Closed {
        /// Where.
        address: SocketAddr,
        /// Why.
        reason: CloseReason,
    },
    /// The target does not let this client in.
    #[error("{address}: {denial}")]
    Denied {
        /// Where.
        address: SocketAddr,
        /// Why not.
        denial: Denial,
    },
    /// No TLS with the target.
    #[error("{address}: {cause} ({})", cause.way_out())]
    Tls {
        /// Where.
        address: SocketAddr,
        /// Why not.
        cause: TlsError,
    },
    /// The options of TLS cannot be used.
    #[error(transparent)]
    TlsFile(#[from] TlsFileError),
    /// A channel has lost its connection for good.
    #[error("the connection to {address} is lost and cannot be made again: {cause}")]
    Lost {
        /// Where.
        address: SocketAddr,
        /// What happened last.
        cause: String,
    },
    /// The file has been closed.
    #[error("the file has been closed")]
    FileClosed,
    /// An atomic operation was under way when its connection was lost, and the target does not know what became of it: it has
    /// been started anew since.
    #[error(
        "the target was started anew before the answer came: the operation took effect once, or not at all (read the word)"
    )]
    Unknown,
    /// A flush, in another life of the target than what it was to make durable.
    #[error(
        "the target was started anew after writes or atomic operations had been acknowledged that were not durable: they may be \
         gone (write again; of an atomic operation, the word tells)"
    )]
    WritesLost,
    /// Not inside the region.
    #[error(
        "{length} bytes at {offset} do not lie inside the {region} bytes of the region; one does not grow, open another"
    )]
    OutOfBounds {
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
        /// Bytes of the region.
        region: u64,
    },
    /// An atomic operation on what is no word.
    #[error("atomic operations work on eight bytes at a multiple of eight, not at {0}")]
    Misaligned(u64),
    /// The file was opened for reading only.
    #[error("the file was not opened for writing")]
    ReadOnly,
    /// The thread that moves the bytes has ended.
    #[error("the client has ended: {0}")]
    Ended(String),
    /// A channel has as many operations under way as it may.
    #[error("too many operations are not acknowledged yet")]
    WindowFull,
    /// The target answered with an error.
    #[error("{message}")]
    Refused {
        /// errno.
        status: i32,
        /// The target's words.
        message: String,
    },
    /// A listing goes on and on.
    #[error(
        "the listing of the directory has no end: the target was asked {replies} times and has named {entries} entries"
    )]
    Endless {
        /// Replies that came.
        replies: u64,
        /// Entries in them.
        entries: u64,
    },
    /// A copy can not go on with another file.
    #[error(
        "it is not the file that it was when the copy began: it has been replaced or changed meanwhile (copy it again)"
    )]
    Changed,
    /// A one-sided operation failed.
    #[error("{what}: {status}")]
    Operation {
        /// Which.
        what: &'static str,
        /// How it ended.
        status: Status,
    },
    /// The target has ended connection after connection because of an operation that was the only one on them; whether it has had
    /// an effect is not known.
    #[error("the target does not carry out the operation: {reason}")]
    Terminated {
        /// How it has ended the last of them.
        reason: CloseReason,
    },
    /// Nothing came for a long time.
    #[error("{address} did not answer for {seconds} s")]
    TimedOut {
        /// Where.
        address: SocketAddr,
        /// How long.
        seconds: u64,
    },
    /// The answer is not of the control protocol.
    #[error("{address} does not speak the control protocol: {cause}")]
    Protocol {
        /// Where.
        address: SocketAddr,
        /// What is wrong with its answer.
        cause: Malformed,
    },
    /// The local system refused something.
    #[error(transparent)]
    Local(#[from] io::Error),
}

impl ClientError {
    /// Whether another connection may help.
    pub(crate) fn passes(&self) -> bool {
        match self {
            Self::Closed { .. }
            | Self::Connect { .. }
            | Self::Operation { .. }
            | Self::TimedOut { .. } => true,
            Self::Denied { denial, .. } => denial.passes(),
            Self::Tls { cause, .. } => cause.passes(),
            _ => false,
        }
    }

    /// Whether the target has ended the connection because of something that was asked of it.
    #[must_use]
    pub fn is_terminated(&self) -> bool {
        matches!(
            self,
            Self::Closed {
                reason: CloseReason::TerminateReceived(_),
                ..
            }
        )
    }

    /// Whether it is about one operation or one request, and others go on.
    #[must_use]
    pub fn is_of_operation(&self) -> bool {
        matches!(self, Self::Refused { .. } | Self::Terminated { .. })
    }
}
