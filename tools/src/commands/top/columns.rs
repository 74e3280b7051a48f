//! Figures below one another.

use super::figure::{mebibytes, number, time};
use super::line::{Kind, Line, name};
use super::rates::Span;
use crate::target::status::Operations;

/// A table: a name in front of figures of the same width each.
#[derive(Clone, Copy, Debug)]
pub(super) struct Columns {
    /// Columns of the terminal for the name.
    pub(super) name: usize,
    /// For a figure, with what separates it from the one before.
    pub(super) figure: usize,
}

impl Columns {
    /// What stands above them.
    pub(super) fn heading(self, what: &str, labels: &[&str]) -> Line {
        let labels: Vec<String> = labels.iter().map(|&label| label.to_owned()).collect();
        self.line(Kind::Heading, what, &labels)
    }

    /// Figures.
    pub(super) fn row(self, what: &str, figures: &[String]) -> Line {
        self.line(Kind::Row, what, figures)
    }

    fn line(self, kind: Kind, what: &str, cells: &[String]) -> Line {
        let width = self.figure;
        let cells = cells.iter().map(|cell| format!("{cell:>width$}"));
        let cells: String = cells.collect();
        Line::new(kind, format!("{}{cells}", name(what, self.name)))
    }
}

/// What stands behind a count: it is one per second, unless all there was is counted.
pub(super) fn per(span: &Span<'_>) -> &'static str {
    if span.is_all { "" } else { "/s" }
}

/// A count in that span.
pub(super) fn rate(span: &Span<'_>, count: u64) -> String {
    number(span.rate(count))
}

/// How many, how much, and how long it took on average, and but for one in a hundred.
pub(super) fn operations(span: &Span<'_>, done: &Operations) -> [String; 4] {
    let mean = done.mean().map(|mean| mean.as_secs_f64());
    let p99 = done.quantile(0.99).map(|p99| p99.as_secs_f64());
    let p99 = match p99 {
        // Longer than the longest class.
        None if done.count > 0 => ">16.8s".to_owned(),
        p99 => time(p99),
    };
    let bytes = mebibytes(span.rate(done.bytes));
    [rate(span, done.count), bytes, time(mean), p99]
}
