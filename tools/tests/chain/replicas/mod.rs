//! What the tests of `flashnet chain` share: groups of real processes, a bench as the load, and networks to cut.
#![allow(
    unreachable_pub,
    dead_code,
    unused_imports,
    reason = "each test program uses a part of it"
)]

mod group;
mod load;
mod network;
mod place;

pub use group::{Group, Status};
pub use load::{Load, signal};
pub use network::Network;
pub use place::Place;

use std::time::{Duration, Instant};

/// How long anything may take. Nothing is expected to: a test that is right never waits so long.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// Between looks.
const LOOK: Duration = Duration::from_millis(50);

/// Waits until something is so; `None` is asked again.
pub fn until<T>(mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return Some(found);
        }
        if Instant::now() > deadline {
            return None;
        }
        std::thread::sleep(LOOK);
    }
}
