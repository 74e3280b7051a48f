//! The client side: sessions with a target, for the commands and for programs.

mod error;
mod session;
mod target;

pub use error::ClientError;
pub use session::{RemoteFile, Session, SessionOptions};
pub use target::RemotePath;
