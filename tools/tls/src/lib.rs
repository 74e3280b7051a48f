//! TLS beneath the connections of flashnet targets, of members of replication groups, and of their clients.
//!
//! RDMA over TCP is readable, and can be changed, by whoever is on the way. TLS 1.3 keeps him out; it is an option of our own
//! clients, because no RDMA NIC and no kernel speaks MPA inside of TLS.
//!
//! ```text
//!   handshake, blocking or on a socket that does not      then, on the thread that drives the connection
//!   ClientTls::connect ─┐                               ┌─ open: received records ─► bytes of the stream
//!                       ├─► established ──► Records ────┤
//!   Handshake ──────────┘                               └─ seal: bytes of the stream ─► records to send
//! ```
//!
//! What costs a signature, and can be drawn out by a peer, is the handshake: it is done away from the reactors. What remains is
//! [`Records`], which does no I/O: the reactor keeps the socket, and a page goes from the device to the peer without a change of
//! thread, as without TLS (DESIGN D1). A relay on threads of its own, the other way to build this, costs two more copies,
//! two changes of thread and two descriptors for every connection, and hides from the reactor who the peer is.
//!
//! # What is chosen here
//! - TLS 1.3 only: both ends are ours. The cipher suites and groups are those of rustls with `ring`.
//! - No resumption, and no early data: a ticket would let a client in whose certificate has been withdrawn since, and early data
//!   can be replayed by whoever has recorded them.
//! - An end of the stream counts as one only behind a *close_notify*; otherwise somebody has cut it, which is an abort.
//! - Both ends name their protocol ([`PROTOCOL`], by ALPN), so that a server of something else under the same name and
//!   certificate cannot be put in the place of a target.

mod client;
mod error;
mod files;
mod handshake;
mod records;
mod server;
mod try_out;

pub use client::{ClientFiles, ClientTls};
pub use error::{HandshakeError, TlsError};
pub use files::TlsFileError;
pub use handshake::{Handshake, Progress};
pub use records::Records;
pub use server::{ServerFiles, ServerTls};
pub use try_out::try_out;

/// What both ends call what they speak inside of TLS (RFC 7301): MPA and everything on it.
pub const PROTOCOL: &[u8] = b"flashnet-mpa";
/// The same of members and clients of a replication group, which greet each other in other ways.
pub const GROUP_PROTOCOL: &[u8] = b"flashnet-chain";

/// The one provider of algorithms.
fn provider() -> std::sync::Arc<rustls::crypto::CryptoProvider> {
    std::sync::Arc::new(rustls::crypto::ring::default_provider())
}
