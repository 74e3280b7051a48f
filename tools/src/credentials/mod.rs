//! Credentials: who may use the target, and the registrations that outlive its process.
//!
//! `tools/docs/credentials.md` is the design: what is stored, what a restart, a change of a file, revocation and expiry do to
//! it, and why that is safe.
//!
//! | module | what |
//! |---|---|
//! | [`token`] | what a tenant presents, and the keys that make it |
//! | [`greeting`] | the private data of a connection request |
//! | [`door`] | who is let in, and as whom |
//! | [`denial`] | why not, as the peer hears it |
//! | [`record`] | the structures on the volume |
//! | [`registry`] | the registrations that are stored with the volume |
//! | [`planted`] | bugs on request |
//!
//! # Invariants
//! - C1. An STag is handed out only when its record is durable.
//! - C2. A retirement is durable before what made it necessary takes effect, and for ever.
//! - C3. What is registered names bytes of the very inode it was issued for, below its end, in the domain of its tenant.
//! - C4. The index of a remembered registration is drawn for no other.
//! - C5. The lock of the registry is taken inside of those of the file system: under it only the store and the tables of
//!   regions are called.

pub mod denial;
pub mod door;
pub mod greeting;
mod media;
pub mod planted;
pub mod record;
pub mod registry;
mod slots;
pub mod token;

pub use denial::Denial;
pub use door::{ANONYMOUS, Admission, Door, Tenant};
pub use greeting::{Greeting, SessionBlock};
pub use registry::{Grant, Hooks, Registry, Standing, file_rights};
pub use token::{Claims, Key, TenantName, Unverified};

use std::time::{SystemTime, UNIX_EPOCH};

/// Directory of the target's own files on the volume, which remote clients cannot reach.
pub const SYSTEM_DIRECTORY: &str = "/.flashnet";

/// Unix time in seconds.
pub fn unix_now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}
