//! What was measured for one figure.

use comfy_table::Table;
use serde_json::{Value, json};

use crate::cli::hyperloop::Figure;
use crate::commands::show;
use crate::perf::figures::Latencies;
use crate::perf::hyperloop::{Side, Throughput};

impl Figure {
    /// All of them.
    pub(super) const ALL: [Self; 5] = [
        Self::Gwrite,
        Self::Gmemcpy,
        Self::Gcas,
        Self::Throughput,
        Self::Members,
    ];

    /// Of files and in JSON.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Gwrite => "gwrite",
            Self::Gmemcpy => "gmemcpy",
            Self::Gcas => "gcas",
            Self::Throughput => "throughput",
            Self::Members => "members",
        }
    }

    /// For people.
    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Gwrite => "latency of gWRITE",
            Self::Gmemcpy => "latency of gMEMCPY",
            Self::Gcas => "latency of gCAS",
            Self::Throughput => "throughput of gWRITE, 16 under way",
            Self::Members => "latency of gWRITE of 1 KiB by members",
        }
    }

    /// Hops of an operation, if x says how many: to each member, and back to the client.
    fn hops(self, x: usize) -> Option<f64> {
        (self == Self::Members).then_some((x + 1) as f64)
    }

    const fn x(self) -> &'static str {
        match self {
            Self::Members => "members",
            _ => "bytes",
        }
    }
}

/// A row: what was measured on each side.
#[derive(Debug)]
pub(super) struct Row<T> {
    /// Bytes, or members.
    pub x: usize,
    pub sides: Vec<(Side, T)>,
}

/// A latency, in microseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spread {
    pub count: u64,
    pub mean: f64,
    pub p95: f64,
    pub p99: f64,
    pub max: f64,
}

impl Spread {
    pub(super) fn of(latencies: &Latencies) -> Self {
        let us = |quantile| latencies.value_at_quantile(quantile) as f64 / 1e3;
        Self {
            count: latencies.len(),
            mean: latencies.mean() / 1e3,
            p95: us(0.95),
            p99: us(0.99),
            max: latencies.max() as f64 / 1e3,
        }
    }

    /// Fewer operations than a 99th percentile takes: what is called so is the longest.
    const fn is_few(&self) -> bool {
        self.count < 100
    }
}

/// A figure, measured.
#[derive(Debug)]
pub(super) enum Outcome {
    Latency(Figure, Vec<Row<Spread>>),
    Throughput(Vec<Row<Throughput>>),
}

impl Outcome {
    pub(super) const fn figure(&self) -> Figure {
        match self {
            Self::Latency(figure, _) => *figure,
            Self::Throughput(_) => Figure::Throughput,
        }
    }

    /// What a plot shows: for each side, (x, value).
    pub(super) fn lines(&self) -> Vec<(Side, Vec<(f64, f64)>)> {
        fn lines<T>(rows: &[Row<T>], value: impl Fn(&T) -> f64) -> Vec<(Side, Vec<(f64, f64)>)> {
            let of = |side| {
                let values = rows.iter().flat_map(|row| {
                    let mine = row.sides.iter().filter(move |(other, _)| *other == side);
                    mine.map(|(_, measured)| (row.x as f64, measured))
                });
                values.map(|(x, measured)| (x, value(measured))).collect()
            };
            Side::ALL.map(|side| (side, of(side))).to_vec()
        }
        match self {
            Self::Latency(_, rows) => lines(rows, |spread| spread.p99),
            Self::Throughput(rows) => lines(rows, |figure| figure.per_second),
        }
    }

    /// What must be known beside the table.
    pub(super) fn note(&self) -> Option<&'static str> {
        let Self::Latency(_, rows) = self else {
            return None;
        };
        let mut spreads = rows.iter().flat_map(|row| &row.sides);
        spreads
            .any(|(_, spread)| spread.is_few())
            .then_some("p99 of fewer than 100 operations is the longest of them")
    }

    /// For people.
    pub(super) fn table(&self) -> Table {
        let number = |value: f64| match value {
            small if small < 100.0 => format!("{small:.1}"),
            large => format!("{large:.0}"),
        };
        match self {
            Self::Latency(figure, rows) => {
                let mut headings =
                    vec![figure.x(), "", "operations", "mean µs", "p95 µs", "p99 µs"];
                headings.push("p99 / engine's");
                headings.extend(figure.hops(0).map(|_| "mean µs a hop"));
                let mut table = show::table(&headings);
                for row in rows {
                    let engine = row.sides.first().map_or(f64::NAN, |(_, spread)| spread.p99);
                    for (side, spread) in &row.sides {
                        let mut cells = vec![
                            row.x.to_string(),
                            side.name().to_owned(),
                            spread.count.to_string(),
                            number(spread.mean),
                            number(spread.p95),
                            number(spread.p99),
                            number(spread.p99 / engine),
                        ];
                        let hops = figure.hops(row.x);
                        cells.extend(hops.map(|hops| number(spread.mean / hops)));
                        table.add_row(cells);
                    }
                }
                table
            }
            Self::Throughput(rows) => {
                let mut table = show::table(&[
                    "bytes",
                    "",
                    "per second",
                    "MiB/s",
                    "cores endpoints",
                    "applications",
                    "engine's / this",
                ]);
                for row in rows {
                    let engine = row.sides.first().map_or(f64::NAN, |(_, f)| f.per_second);
                    for (side, figures) in &row.sides {
                        table.add_row([
                            row.x.to_string(),
                            side.name().to_owned(),
                            number(figures.per_second),
                            number(figures.per_second * row.x as f64 / f64::from(1 << 20)),
                            format!("{:.2}", figures.endpoints),
                            format!("{:.2}", figures.applications),
                            format!("{:.2}", engine / figures.per_second),
                        ]);
                    }
                }
                table
            }
        }
    }

    /// For machines.
    pub(super) fn json(&self, crowded: bool) -> Value {
        let figure = self.figure();
        let points: Vec<Value> = match self {
            Self::Latency(_, rows) => points(rows, |spread| {
                json!({
                    "operations": spread.count,
                    "mean_us": spread.mean,
                    "p95_us": spread.p95,
                    "p99_us": spread.p99,
                    "max_us": spread.max,
                })
            }),
            Self::Throughput(rows) => points(rows, |figures| {
                json!({
                    "per_second": figures.per_second,
                    "cores_endpoints": figures.endpoints,
                    "cores_applications": figures.applications,
                })
            }),
        };
        json!({ "figure": figure.name(), "crowded": crowded, "x": figure.x(), "points": points })
    }
}

fn points<T>(rows: &[Row<T>], show: impl Fn(&T) -> Value) -> Vec<Value> {
    let mut points = Vec::new();
    for row in rows {
        for (side, measured) in &row.sides {
            points.push(json!({ "x": row.x, "side": side.name(), "measured": show(measured) }));
        }
    }
    points
}
