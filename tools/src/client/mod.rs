//! The client side, for the commands and for programs: [`Session`] is one connection to a target, [`Channel`] outlives its
//! connections.

mod backoff;
mod channel;
mod error;
mod identity;
mod session;
mod target;

pub use channel::{Acknowledged, Channel, ChannelOptions, FileNo, OpId, WINDOW_MAX};
pub use error::ClientError;
pub use identity::Identity;
pub use session::{RemoteFile, Session, SessionOptions};
pub use target::RemotePath;
