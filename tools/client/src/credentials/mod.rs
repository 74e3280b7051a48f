//! What a client presents at the door of a target, and what it hears there. `tools/docs/credentials.md` is the design.
//!
//! | module | what |
//! |---|---|
//! | [`token`] | what a tenant presents, and the keys that make it |
//! | [`greeting`] | the private data of a connection request |
//! | [`denial`] | why a connection was refused |

pub mod denial;
pub mod greeting;
pub mod token;

pub use denial::Denial;
pub use greeting::{Greeting, SessionBlock};
pub use token::{Claims, Key, TenantName, Unverified};

use std::time::{SystemTime, UNIX_EPOCH};

/// Unix time in seconds.
pub fn unix_now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}
