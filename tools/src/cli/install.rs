//! Options of `completion` and `man`.

use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;

/// Options of `completion`.
#[derive(Clone, Debug, Args)]
pub struct Completion {
    /// The shell.
    pub shell: Shell,
}

/// Options of `man`.
#[derive(Clone, Debug, Args)]
pub struct Man {
    /// Directory of manual pages; `man1` and `man8` are made in it, and pages that are there are replaced.
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
}
