//! Open files that this process may have: one for each connection.

use std::fs::File;
use std::io;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tracing::debug;

/// Asks for as many as the system allows without special rights. What it refuses shows when connections come.
pub fn raise_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        debug!(%error, "the number of open files stays as it is");
    }
}

/// Connections that there are descriptors for, when a quarter of these is for everything else; as far as that can be found out.
pub fn connections_max() -> usize {
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft);
    usize::try_from(limit - limit / 4).unwrap_or(usize::MAX)
}

/// So many descriptors, which nobody else gets until they are dropped.
///
/// # Errors
/// If there are not so many.
pub fn set_aside(count: usize) -> io::Result<Vec<File>> {
    (0..count).map(|_| File::open("/dev/null")).collect()
}
