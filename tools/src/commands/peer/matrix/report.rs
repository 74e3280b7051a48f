//! The matrix as a table for people and for machines.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Value, json};

use super::Outcome;
use super::cell::{Cell, Kernel, ROWS, Setup};
use crate::cli::peer::{Fpdu, Program};
use crate::commands::show;

/// All results.
#[derive(Debug)]
pub(super) struct Report {
    programs: Vec<Program>,
    outcomes: HashMap<Cell, Outcome>,
    pub(super) took: Duration,
}

impl Report {
    pub(super) fn new(programs: &[Program]) -> Self {
        Self {
            programs: programs.to_vec(),
            outcomes: HashMap::new(),
            took: Duration::ZERO,
        }
    }

    pub(super) fn add(&mut self, cell: Cell, outcome: Outcome) {
        self.outcomes.insert(cell, outcome);
    }

    pub(super) fn len(&self) -> usize {
        self.outcomes.len()
    }

    pub(super) fn failed(&self) -> usize {
        self.outcomes
            .values()
            .filter(|outcome| outcome.is_err())
            .count()
    }

    /// In the order of the table.
    fn cells(&self) -> impl Iterator<Item = (Cell, &Outcome)> {
        let rows = self
            .programs
            .iter()
            .flat_map(|&program| ROWS.map(|row| (program, row)));
        let columns = columns();
        rows.flat_map(move |(program, (kernel, fpdu))| {
            columns.clone().into_iter().map(move |(crc, setup)| Cell {
                program,
                kernel,
                fpdu,
                crc,
                setup,
            })
        })
        .filter_map(|cell| Some((cell, self.outcomes.get(&cell)?)))
    }

    /// For people, with what went wrong below.
    pub(super) fn table(&self) -> String {
        let mut header = vec![
            "program".to_owned(),
            "kernel is".to_owned(),
            "frames".to_owned(),
        ];
        let name = |(crc, setup): (bool, Setup)| {
            format!("{} CRC {}", setup.name(), if crc { "on" } else { "off" })
        };
        header.extend(columns().into_iter().map(name));
        let header: Vec<&str> = header.iter().map(String::as_str).collect();
        let mut table = show::table(&header);
        let cells: Vec<_> = self.cells().collect();
        for row in cells.chunk_by(|(a, _), (b, _)| {
            (a.program, a.kernel, a.fpdu) == (b.program, b.kernel, b.fpdu)
        }) {
            let first = row[0].0;
            let mut line = vec![
                first.program.to_string(),
                kernel(first.kernel).to_owned(),
                fpdu(first.fpdu).to_owned(),
            ];
            line.extend(
                row.iter()
                    .map(|(cell, outcome)| verdict(*cell, outcome).to_owned()),
            );
            table.add_row(line);
        }
        let mut text = table.to_string();
        let good = self.len() - self.failed();
        let seconds = self.took.as_secs_f64();
        let _ = write!(text, "\n{good} of {} good, {seconds:.0} s", self.len());
        let _ = write!(
            text,
            "\nno READs: a server over soft-iWARP has none with revision 1, and the program ends in an error, as it has to"
        );
        for (cell, outcome) in cells {
            if let Err(why) = outcome {
                let _ = write!(
                    text,
                    "\n{}, kernel is {}, {} frames, {}: {why}",
                    cell.program,
                    kernel(cell.kernel),
                    fpdu(cell.fpdu),
                    name((cell.crc, cell.setup)),
                );
            }
        }
        text
    }

    /// For machines.
    pub(super) fn json(&self) -> Value {
        let cell = |(cell, outcome): (Cell, &Outcome)| {
            json!({
                "program": cell.program.to_string(),
                "kernel": kernel(cell.kernel),
                "frames": fpdu(cell.fpdu),
                "crc": cell.crc,
                "setup": cell.setup.name(),
                "verdict": verdict(cell, outcome),
                "seconds": outcome.as_ref().ok().map(Duration::as_secs_f64),
                "error": outcome.as_ref().err(),
            })
        };
        json!({
            "cells": self.cells().map(cell).collect::<Vec<_>>(),
            "failed": self.failed(),
            "seconds": self.took.as_secs_f64(),
        })
    }
}

fn columns() -> Vec<(bool, Setup)> {
    let setups = |crc| Setup::ALL.map(|setup| (crc, setup));
    [setups(false), setups(true)].concat()
}

fn verdict(cell: Cell, outcome: &Outcome) -> &'static str {
    match outcome {
        Err(_) => "FAILED",
        Ok(_) if cell.must_fail() => "no READs",
        Ok(_) => "ok",
    }
}

fn kernel(kernel: Kernel) -> &'static str {
    match kernel {
        Kernel::Client => "client",
        Kernel::Server => "server",
    }
}

fn fpdu(fpdu: Fpdu) -> &'static str {
    match fpdu {
        Fpdu::Small => "small",
        Fpdu::Mss => "segment",
        Fpdu::Large => "large",
    }
}
