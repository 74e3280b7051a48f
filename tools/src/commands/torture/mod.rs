//! `torture`: what should not happen, again and again.

mod client;
mod counters;
mod credentials;

use anyhow::Result;

use crate::cli::torture::TortureCommand;

/// Runs the command.
pub(super) fn run(command: &TortureCommand, json: bool) -> Result<()> {
    match command {
        TortureCommand::Credentials(options) => credentials::run(options, json),
    }
}
