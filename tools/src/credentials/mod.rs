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

pub mod door;
mod media;
pub mod planted;
pub mod record;
pub mod registry;
mod slots;

pub use door::{ANONYMOUS, Admission, Door, Tenant};
pub use flashnet_client::credentials::{
    Claims, Denial, Greeting, Key, SessionBlock, TenantName, Unverified, denial, greeting, token,
    unix_now,
};
pub use registry::{Grant, Hooks, Registry, Standing, file_rights};
/// Directory of the target's own files on the volume, which remote clients cannot reach.
pub const SYSTEM_DIRECTORY: &str = "/.flashnet";
