//! The client side, for the commands and for programs: [`Session`] is one connection to a target, [`Channel`] outlives its
//! connections.

mod backoff;
mod channel;
pub mod control;
pub mod credentials;
mod error;
mod identity;
mod remote_path;
mod session;

pub use channel::{Acknowledged, Channel, ChannelOptions, FileNo, OpId, WINDOW_MAX};
pub use error::ClientError;
pub use identity::{Identity, TokenFileError};
pub use remote_path::RemotePath;
pub use session::{RemoteFile, Session, SessionOptions};
