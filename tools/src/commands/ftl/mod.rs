//! `flashnet ftl`: the translation layer alone.

mod bench;
mod replay;

use anyhow::Result;

use crate::cli::ftl::FtlCommand;

/// Runs the command that was asked for.
pub(super) fn run(command: &FtlCommand, json: bool) -> Result<()> {
    match command {
        FtlCommand::Bench(options) => bench::run(options, json),
        FtlCommand::Replay(options) => replay::run(options, json),
    }
}
