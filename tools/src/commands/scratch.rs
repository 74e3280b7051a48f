//! Where commands put what they make for the time that they run.

use std::path::Path;

use anyhow::{Context, Result};
use tempfile::TempDir;

/// A directory of `command`, whose name says so to who finds what a kill has left; in the temporary directory of the system, unless it
/// is to be elsewhere.
pub(super) fn directory(command: &str, within: Option<&Path>) -> Result<TempDir> {
    let prefix = format!("flashnet-{command}-");
    let made = match within {
        Some(within) => TempDir::with_prefix_in(prefix, within),
        None => TempDir::with_prefix(prefix),
    };
    made.context("cannot make a temporary directory")
}
