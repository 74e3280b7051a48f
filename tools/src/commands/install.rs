//! What a package of the program has beside it: manual pages, and what shells complete its command line by.

use std::fs::{create_dir_all, write};
use std::io::{self, Write, stdout};
use std::path::Path;

use anyhow::{Context, Result};
use clap::{Command, CommandFactory};

use crate::called::LINKS;
use crate::cli::Cli;
use crate::cli::install::{Completion, Man};

/// Prints what the shell wants to know.
pub(super) fn completion(options: &Completion) -> Result<()> {
    let program = Cli::command();
    // What is hidden from people would be offered all the same.
    let shown = program.get_subcommands().filter(|c| !c.is_hide_set());
    let mut shown = Command::new("flashnet")
        .args(program.get_arguments())
        .subcommands(shown);
    let mut text = Vec::new();
    clap_complete::generate(options.shell, &mut shown, "flashnet", &mut text);
    Ok(stdout().write_all(&text)?)
}

/// Writes the pages: `flashnet-mkfs.1` of `flashnet mkfs`, and `mkfs.contigfs.8`, which leads to it.
pub(super) fn man(options: &Man) -> Result<()> {
    let [users, administrators] = ["man1", "man8"].map(|name| options.directory.join(name));
    for directory in [&users, &administrators] {
        let cannot = || format!("cannot make {}", directory.display());
        create_dir_all(directory).with_context(cannot)?;
    }
    let mut program = Cli::command().disable_help_subcommand(true);
    program.build();
    pages(&program, &users).with_context(|| format!("cannot write to {}", users.display()))?;
    for (name, called) in LINKS {
        let command = called.command().unwrap_or_default();
        let page = administrators.join(format!("{name}.8"));
        let leads = format!(".so man1/flashnet-{command}.1\n");
        write(&page, leads).with_context(|| format!("cannot write {}", page.display()))?;
    }
    Ok(())
}

/// That of a command, and those of the commands below it.
fn pages(command: &Command, directory: &Path) -> io::Result<()> {
    let source = concat!("flashnet ", env!("CARGO_PKG_VERSION"));
    let page = clap_mangen::Man::new(command.clone()).source(source);
    page.generate_to(directory)?;
    let mut below = command.get_subcommands().filter(|c| !c.is_hide_set());
    below.try_for_each(|command| pages(command, directory))
}
