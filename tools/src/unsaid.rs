//! What a command wants to say and nobody takes: standard output on a full disk, or to a reader that is gone.

use std::any::Any;
use std::io::{self, Write};
use std::panic::{self, AssertUnwindSafe};

use anyhow::{Result, anyhow};

use crate::control::printable;

/// Runs a command. That its words could not be written is an error of it like any other.
///
/// # Errors
/// Those of the command, and that one.
pub fn run<T>(command: impl FnOnce() -> Result<T>) -> Result<T> {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if unsaid(info.payload()).is_none() {
            usual(info);
        }
    }));
    // What the command used is dropped on the way out, as with an error.
    panic::catch_unwind(AssertUnwindSafe(command)).unwrap_or_else(|panic| match unsaid(&*panic) {
        Some(why) => Err(anyhow!("cannot write to {why}")),
        None => panic::resume_unwind(panic),
    })
}

/// Says it to whoever still reads standard error. Names in it may be anybody's choice, and command no terminal.
pub fn complain(text: &str) {
    let lines: Vec<String> = text
        .split('\n')
        .map(|line| printable(line.as_bytes()))
        .collect();
    let _ = writeln!(io::stderr(), "{}", lines.join("\n"));
}

/// Why, if this is what `println!` panics with, which is known by its text only.
fn unsaid(panic: &(dyn Any + Send)) -> Option<&str> {
    let text = panic.downcast_ref::<String>()?;
    text.strip_prefix("failed printing to ")
}
