//! The `flashnet` program.
//!
//! Exit status: 0 done, 1 failed, 2 wrong usage. Called as `mkfs.contigfs`, `fsck.contigfs`, `resize.contigfs`,
//! `mount.contigfs` or `umount.fuse.contigfs`, it is that command, with the exit status that mount(8) and fsck(8) expect.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use tools::called::Called;
use tools::cli::Cli;
use tools::unsaid;

fn main() -> ExitCode {
    // A file that is as large as this process may make one (`ulimit -f`) is an error of the write, and no end of a target.
    // SAFETY: no other thread exists yet.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let mut arguments: Vec<_> = std::env::args_os().collect();
    let called = Called::by(arguments.first().map(Path::new));
    if let Some(command) = called.command() {
        arguments.insert(1, command.into());
    }
    let written = arguments.first().map(Path::new).and_then(Path::file_name);
    let written = written.unwrap_or_default().to_string_lossy().into_owned();
    // What messages begin with.
    let name = match called {
        Called::Flashnet => "flashnet",
        _ => written.as_str(),
    };
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are asked for this way, too.
            let wrong = error.use_stderr();
            let said = match called.command() {
                None => error.print(),
                // Whoever calls a link has not said the command.
                Some(command) => {
                    let said = format!("{written} {command}");
                    let text = error.render().to_string().replace(&said, &written);
                    match wrong {
                        true => io::stderr().write_all(text.as_bytes()),
                        false => io::stdout().write_all(text.as_bytes()),
                    }
                }
            };
            return match said {
                _ if wrong => ExitCode::from(called.wrong_usage()),
                Ok(()) => ExitCode::SUCCESS,
                // As below: it has seen enough.
                Err(why) if why.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
                Err(why) => {
                    unsaid::complain(&format!("{name}: cannot write to stdout: {why}"));
                    ExitCode::from(called.failed(&why.into()))
                }
            };
        }
    };
    if !cli.command.outlives_its_reader() {
        // A reader that has seen enough (`flashnet ls ... | head`) ends the command quietly, as it does any other.
        // SAFETY: no other thread exists yet.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    }
    called.watch_signals();
    match unsaid::run(|| tools::commands::run(&cli)) {
        Ok(done) => ExitCode::from(called.done(done)),
        Err(error) => {
            unsaid::complain(&format!("{name}: {error:#}"));
            ExitCode::from(called.failed(&error))
        }
    }
}
