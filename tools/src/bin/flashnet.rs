//! The `flashnet` program.
//!
//! Exit status: 0 done, 1 failed, 2 wrong usage. Called as `mkfs.contigfs` or `fsck.contigfs`, it is that command.

use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use tools::cli::Cli;

fn main() -> ExitCode {
    let mut arguments: Vec<_> = std::env::args_os().collect();
    let called = arguments
        .first()
        .and_then(|name| Path::new(name).file_name())
        .and_then(|name| name.to_str());
    let command = match called {
        Some("mkfs.contigfs") => Some("mkfs"),
        Some("fsck.contigfs") => Some("fsck"),
        _ => None,
    };
    if let Some(command) = command {
        arguments.insert(1, command.into());
    }
    let cli = Cli::parse_from(arguments);
    if !cli.command.is_server() {
        // A reader that has seen enough (`flashnet ls ... | head`) ends the command quietly, as it does any other.
        // SAFETY: no other thread exists yet.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    }
    match tools::commands::run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("flashnet: {error:#}");
            ExitCode::FAILURE
        }
    }
}
