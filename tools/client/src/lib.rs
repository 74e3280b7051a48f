//! Client of flashnet targets: files on another machine, read and written by one-sided operations.
//!
//! ```no_run
//! use flashnet_client::{Atomic, Client};
//!
//! let client = Client::connect("localhost")?;
//! let file = client.options().write(true).create(true).truncate(1 << 20).open("/log")?;
//! file.write_at(b"hello", 100)?; // visible to everybody
//! file.flush()?; // and durable
//!
//! let mut bytes = [0; 5];
//! file.read_at(&mut bytes, 100)?;
//! let (mut head, mut tail) = ([0; 16], [0; 16]);
//! file.read_at_many(&mut [(0, &mut head), (1024, &mut tail)])?; // together
//! let tickets = file.atomic(8, Atomic::FetchAdd { add: 1, mask: 0 })?;
//! # Ok::<(), flashnet_client::ClientError>(())
//! ```
//!
//! `tools/examples/remote_file.rs` is a whole program, and `tools/examples/remote_tasks.rs` its asynchronous sister.
//!
//! | level | what | for |
//! |---|---|---|
//! | [`Client`], [`File`]; [`aio`] | files; a thread of their own moves the bytes | programs |
//! | [`registration`] | memory of a program, which may be a mapped file of a volume, for its peers | programs on the machine of a target |
//! | [`Channel`] | a session that outlives its connections, on the caller's thread | programs that have a loop |
//! | [`Transfer`] | a copy of a whole file, which outlives its connections too and leaves no region behind | commands |
//! | [`Session`] | one connection: control requests and work requests | commands, tests |
//! | [`control`], [`credentials`] | the messages themselves | other endpoints |
//!
//! By TLS it is the same client; `tools/docs/tls.md` says what that protects:
//!
//! ```no_run
//! use flashnet_client::{Client, ClientFiles, ClientTls};
//!
//! let files = ClientFiles { ca: Some("authority.pem".into()), ..ClientFiles::default() };
//! let client = Client::builder().tls(ClientTls::new(&files)?).connect("flash.example")?;
//! # Ok::<(), flashnet_client::ClientError>(())
//! ```
//!
//! # What is guaranteed
//!
//! * Operations of one client take effect in the order of the calls, and each result is told once.
//! * A client outlives the loss of its connection, and a restart of the target: it connects again, with pauses that grow, and
//!   repeats what was not acknowledged, in order. Bytes that somebody else writes meanwhile may be overwritten by such a
//!   repetition: several writers of the same bytes have to agree by other means, as with any file.
//! * An operation that the target refuses, or can not carry out, fails alone. If its region has ended, because somebody has replaced or cut
//!   the file, so do all others of that file ([`ClientError::Refused`], `ESTALE`), until it is opened anew.
//! * A write or an atomic operation that has returned is visible; when [`File::flush`] has returned, it is durable. A flush does not
//!   claim so of those that were acknowledged before the target was started anew: it fails, once, as do those that had been asked
//!   for by then and, once, that of the file through which they were made. They are to be done again, if the target has lost them, which
//!   the words of atomic operations tell. Writes of files opened with [`OpenOptions::sync`] need no flush.
//! * Atomic operations take effect once, also when the connection is lost while they are under way: the target tells on the
//!   next one which of them it has executed, and with what answers. Only if it has been started anew meanwhile, it does not know;
//!   then they took effect once at most, the outcome is [`ClientError::Unknown`], and reading the word tells.
//!
//! # Limits
//!
//! A file is a region: the bytes that were there when it was opened. Each open file is a persistent region of the target, which
//! expires a day after its last use and counts for the limit of its tenant; opening the same range again is the same region.

pub mod aio;
mod backoff;
mod channel;
mod client;
pub mod control;
pub mod credentials;
mod engine;
mod error;
mod file;
pub mod fuzz;
mod identity;
mod listing;
mod operation;
mod promise;
pub mod registration;
mod remote_path;
mod session;
mod transfer;
mod unflushed;
mod waiting;

pub use channel::{Acknowledged, Channel, ChannelOptions, FileNo, WINDOW_MAX};
pub use client::{Attributes, Client, ClientBuilder};
pub use error::ClientError;
pub use file::{File, OpenOptions};
pub use flashnet_tls::{ClientFiles, ClientTls, TlsError, TlsFileError};
pub use identity::{Identity, TokenFileError};
pub use operation::OpId;
pub use promise::Pending;
pub use remote_path::RemotePath;
pub use session::{RemoteFile, Session, SessionOptions};
pub use softrdma::Atomic;
pub use transfer::Transfer;
pub use waiting::until_answered;
