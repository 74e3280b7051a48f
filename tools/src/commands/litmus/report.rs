//! What the tests found, as a table for people, for documents and for machines.

use std::fmt::Write as _;

use comfy_table::Table;
use serde_json::{Value, json};

use super::party::Way;
use super::shape::{Outcome, Shape};
use crate::commands::show;

#[derive(Debug)]
struct Line {
    shape: Shape,
    pair: (Way, Way),
    outcome: Outcome,
}

impl Line {
    fn pair(&self) -> String {
        let (first, second) = (self.pair.0.name(), self.pair.1.name());
        if self.shape.is_directed() {
            format!("{first} → {second}")
        } else {
            format!("{first}, {second}")
        }
    }

    fn found(&self) -> String {
        match self.outcome {
            Outcome { looks: 0, .. } => "nothing arrived".into(),
            Outcome { looks, seen: 0 } => format!("never in {looks}"),
            Outcome { looks, seen } => format!("seen {seen} of {looks}"),
        }
    }

    /// What is wrong, if anything: the outcome was seen, or the test could not have seen it.
    fn fault(&self) -> Option<String> {
        let (test, pair) = (self.shape.name(), self.pair());
        match self.outcome {
            Outcome { looks: 0, .. } => Some(format!("{test}, {pair}: never saw a store arrive")),
            Outcome { seen: 0, .. } => None,
            Outcome { looks, seen } => Some(format!(
                "{test}, {pair}: {} in {seen} of {looks} looks",
                self.shape.outcome()
            )),
        }
    }
}

/// All results.
#[derive(Debug, Default)]
pub(super) struct Report(Vec<Line>);

impl Report {
    /// Adds the result of a test.
    pub(super) fn add(&mut self, shape: Shape, pair: (Way, Way), outcome: Outcome) {
        self.0.push(Line {
            shape,
            pair,
            outcome,
        });
    }

    /// Tests whose outcome the contract rules out and that saw it, or saw nothing at all.
    pub(super) fn faults(&self) -> Vec<String> {
        self.0.iter().filter_map(Line::fault).collect()
    }

    /// For people.
    pub(super) fn table(&self) -> Table {
        let mut table = show::table(&["test", "parties", "must not be seen", "found"]);
        for line in &self.0 {
            let shape = line.shape;
            table.add_row([
                shape.name().to_owned(),
                line.pair(),
                shape.outcome().to_owned(),
                line.found(),
            ]);
        }
        table
    }

    /// For documents.
    pub(super) fn markdown(&self) -> String {
        let mut text =
            String::from("| test | must not be seen | parties | found |\n|---|---|---|---|\n");
        for line in &self.0 {
            let (test, must_not) = (line.shape.name(), line.shape.outcome());
            let (pair, found) = (line.pair(), line.found());
            let _ = writeln!(text, "| {test} | {must_not} | {pair} | {found} |");
        }
        text
    }

    /// For machines.
    pub(super) fn json(&self) -> Value {
        let lines: Vec<Value> = self
            .0
            .iter()
            .map(|line| {
                json!({
                    "test": line.shape.name(),
                    "first": line.pair.0.name(),
                    "second": line.pair.1.name(),
                    "looks": line.outcome.looks,
                    "seen": line.outcome.seen,
                })
            })
            .collect();
        json!({ "ok": self.faults().is_empty(), "tests": lines })
    }
}
