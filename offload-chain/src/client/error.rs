//! Why a client's call failed.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::group::PrimitiveError;
use crate::lock::{LockError, LockId};
use crate::log::{AppendError, LayoutError};
use crate::tls::TlsError;

/// Why a client's call failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ClientError {
    /// The system.
    #[error("cannot start the client: {0}")]
    Io(Arc<std::io::Error>),
    /// Nor will there be one, as things are, with a member.
    #[error("{}: {cause}", address.map_or("a member".to_owned(), |at| format!("the member at {at}")))]
    Tls {
        /// Where it is.
        address: Option<SocketAddr>,
        /// Why there is no TLS connection.
        cause: TlsError,
    },
    /// The members have TLS, and this client spoke without.
    #[error("the members of the group want TLS")]
    NeedsTls,
    /// Others have them all, or the one that was asked for.
    #[error("no slot is free: other clients have them, or died less than a lease ago; try again")]
    NoSlot,
    /// Nothing happened for too long.
    #[error("waited too long for {0}; `flashnet chain status` shows what the group is doing")]
    TimedOut(&'static str),
    /// It was taken for dead.
    #[error(
        "this client was taken for dead: its locks are free, and what was not acknowledged is unknown"
    )]
    Fenced,
    /// A lock that it had, or needs, is not its own.
    #[error("lock {} is not this client's; what was not acknowledged under it is unknown", .0.0)]
    Lost(LockId),
    /// What was acknowledged is not there.
    #[error(
        "the log begins at record {found}, and record {acknowledged} was acknowledged: the members have lost data"
    )]
    Damaged {
        /// Last record that was acknowledged.
        acknowledged: u64,
        /// Where the log of the new epoch begins.
        found: u64,
    },
    /// A record that can not be.
    #[error(transparent)]
    Append(AppendError),
    /// A lock that can not be had.
    #[error(transparent)]
    Lock(LockError),
    /// A primitive that can not be.
    #[error(transparent)]
    Group(PrimitiveError),
    /// Memory that can not be.
    #[error(transparent)]
    Layout(LayoutError),
}

impl ClientError {
    /// It has not been in the group.
    pub(super) fn is_kept_out(&self) -> bool {
        matches!(self, Self::Tls { .. } | Self::NeedsTls)
    }
}

impl From<std::io::Error> for ClientError {
    fn from(error: std::io::Error) -> Self {
        Self::Io(Arc::new(error))
    }
}
