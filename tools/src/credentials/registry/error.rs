//! Why something can not be registered, or nobody enrolled.

use contigfs::FsError;
use softrdma::RegisterError;
use thiserror::Error;

use super::super::SYSTEM_DIRECTORY;
use super::super::record::TENANTS_MAX;
use super::super::slots::{self, NoSlot};
use super::super::token::TenantName;

/// Why there is no registration.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum IssueError {
    /// The tenant has its share.
    #[error(
        "this tenant has {} persistent regions, which is the limit: revoke some, or let them expire",
        slots::LIVING_OF_TENANT_MAX
    )]
    TenantFull,
    /// All tenants together have theirs.
    #[error(
        "there are {} persistent regions, which is the limit: revoke some, or let them expire",
        slots::LIVING_MAX
    )]
    Full,
    /// As many files as can be have regions.
    #[error("too many files have regions: close some")]
    Crowded,
    /// The table of regions refuses.
    #[error(transparent)]
    Table(#[from] RegisterError),
    /// It cannot be stored.
    #[error("the region cannot be stored: {0}")]
    Store(#[from] FsError),
    /// The file is the target's own.
    #[error("the target's own files are not for clients")]
    Own,
    /// The file has just changed.
    #[error("the file has just changed")]
    Stale,
}

impl From<NoSlot> for IssueError {
    fn from(why: NoSlot) -> Self {
        match why {
            NoSlot::Tenant => Self::TenantFull,
            NoSlot::All => Self::Full,
        }
    }
}

impl IssueError {
    /// The errno that says it best.
    pub fn errno(&self) -> i32 {
        match self {
            Self::TenantFull | Self::Full => libc::EDQUOT,
            Self::Table(_) | Self::Crowded => libc::ENOMEM,
            Self::Store(error) => error.errno(),
            Self::Own => libc::EACCES,
            Self::Stale => libc::ESTALE,
        }
    }
}

/// Why tenants are not enrolled.
#[derive(Debug, Error)]
pub enum EnrolError {
    /// An epoch that is over.
    #[error(
        "tenant {name}: epoch {configured} is configured, but the volume has seen epoch {seen}: \
         set `epoch` to {seen} or more"
    )]
    Epoch {
        /// Who.
        name: TenantName,
        /// As configured.
        configured: u64,
        /// As remembered.
        seen: u64,
    },
    /// What the volume has seen is not to be known.
    #[error(
        "what the volume remembers of tenants is damaged, so nobody knows which of their tokens have been revoked: \
         raise the epoch of each, and remove {SYSTEM_DIRECTORY}/credentials on a mount without tenants"
    )]
    Unknown,
    /// Too many.
    #[error("{0} tenants: {TENANTS_MAX} are possible")]
    TooMany(usize),
    /// They cannot be stored.
    #[error("tenants cannot be stored on the volume: {0}")]
    Store(#[from] FsError),
}
