//! Who wants to know what a member does.

use std::fmt::Debug;
use std::time::Duration;

use softrdma::Served;

/// Told by the threads of a member, which wait for it.
pub trait Watcher: Debug + Send + Sync {
    /// What a peer has asked for is done, or what the member had to do itself in a group primitive; so long it took from when its turn
    /// came.
    fn served(&self, what: Served, bytes: u64, took: Duration);

    /// The file with the member's memory was flushed, or that failed.
    fn flushed(&self, took: Duration, is_good: bool);
}
