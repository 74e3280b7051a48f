//! How far a check is, in the two ways of `-C`: for people, and for the programs that e2fsck talks to.

use std::fs::{File, OpenOptions};
use std::io::{Write, stderr, stdout};

use anyhow::{Context, Result};
use contigfs::Stage;

/// Steps of which each is told once.
const STEPS: u64 = 1000;

/// Tells what it hears, at most a thousand times for each stage.
pub(super) struct Meter {
    to: To,
    names: String,
    last: Option<(Stage, u64)>,
}

enum To {
    Nobody,
    /// One line, written over and over.
    Reader(Box<dyn Write>),
    Program(File),
}

impl Meter {
    /// For the descriptor that `-C` names. Who wants JSON has nothing else on standard output: the line goes to standard error.
    ///
    /// # Errors
    /// If there is no such descriptor.
    pub(super) fn new(descriptor: Option<u16>, names: &str, json: bool) -> Result<Self> {
        let to = match descriptor {
            None => To::Nobody,
            Some(0) if json => To::Reader(Box::new(stderr())),
            Some(0) => To::Reader(Box::new(stdout())),
            Some(number) => {
                let path = format!("/proc/self/fd/{number}");
                let file = OpenOptions::new().append(true).open(path);
                To::Program(file.with_context(|| format!("-C {number}"))?)
            }
        };
        Ok(Self {
            to,
            names: names.to_owned(),
            last: None,
        })
    }

    /// So much of a stage is done. Nobody listening is no reason to stop.
    pub(super) fn tell(&mut self, stage: Stage, done: u64, all: u64) {
        if matches!(self.to, To::Nobody) {
            return;
        }
        let all = all.max(1);
        let step = done.min(all) * STEPS / all;
        if self.last == Some((stage, step)) {
            return;
        }
        self.last = Some((stage, step));
        let (pass, what) = match stage {
            Stage::Log => (1, "log"),
            Stage::Files => (2, "files"),
            Stage::Data => (3, "data"),
        };
        let _ = match &mut self.to {
            To::Nobody => Ok(()),
            To::Reader(out) => {
                let tenths = (step / 10, step % 10);
                write!(out, "\r{}: {what} {}.{}% ", self.names, tenths.0, tenths.1)
                    .and_then(|()| out.flush())
            }
            To::Program(file) => {
                let line = format!("{pass} {done} {all} {}\n", self.names);
                file.write_all(line.as_bytes())
            }
        };
    }

    /// Leaves a whole line behind.
    pub(super) fn end(&mut self) {
        if let To::Reader(out) = &mut self.to
            && self.last.is_some()
        {
            let _ = writeln!(out);
        }
    }
}
