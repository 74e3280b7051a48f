//! `flashnet ftl bench`: the engine against its bare device, with the ratio it must reach.

use std::path::Path;
use std::time::Duration;

use ::ftl::FileDevice;
use ::ftl::device::Allocation;
use anyhow::{Context, Result, bail, ensure};
use serde_json::json;

use crate::cli::ftl::Bench;
use crate::commands::perf::clean_up_when_ended;
use crate::commands::{scratch, show};
use crate::perf::figures::Figures;
use crate::perf::flash::{APPENDS, Access, BLOCK, Bare, CHUNK, Engine, Run, pairs_per_second};

/// A comparison.
struct Case {
    name: &'static str,
    access: Access,
    /// How much of the bare rate the engine must reach.
    bar: f64,
    /// Compared by bytes, not by operations.
    by_bytes: bool,
}

const CASES: [Case; 4] = [
    Case {
        name: "random read 4 KiB, depth 32",
        access: Access::Read { depth: 32 },
        bar: 0.95,
        by_bytes: false,
    },
    Case {
        name: "sequential append",
        access: Access::Append,
        bar: 0.9,
        by_bytes: true,
    },
    Case {
        name: "sync write 4 KiB, 16 writers",
        access: Access::Sync { writers: 16 },
        bar: 4.0,
        by_bytes: false,
    },
    Case {
        name: "sync write 4 KiB, 1 writer",
        access: Access::Sync { writers: 1 },
        bar: 0.8,
        by_bytes: false,
    },
];
/// Half of the smallest volume is read, fifty times the engine's memory.
const SIZE_MIN: u64 = 512 << 20;
const SIZE_MAX: u64 = 16 << 40;
/// Get-put pairs of resident pages that one core must reach, per second.
const PAIRS_BAR: f64 = 2e6;

/// A case that was measured.
struct Row {
    case: &'static Case,
    ours: Figures,
    bare: Figures,
}

impl Row {
    fn ratio(&self) -> f64 {
        if self.case.by_bytes {
            self.ours.mib_s / self.bare.mib_s
        } else {
            self.ours.iops / self.bare.iops
        }
    }
}

/// Runs the bench.
pub(super) fn run(options: &Bench, json: bool) -> Result<()> {
    ensure!(
        (1..=100).contains(&options.rounds),
        "{} rounds: 1 to 100 are possible",
        options.rounds
    );
    ensure!(
        (0.1..=3600.0).contains(&options.seconds),
        "{} seconds: 0.1 to 3600 are possible",
        options.seconds
    );
    let directory = scratch::directory("ftl-bench", options.directory.as_deref())?;
    clean_up_when_ended(directory.path())?;
    let wanted = |name: &str| options.only.as_ref().is_none_or(|o| name.contains(o));
    let mut rows = Vec::new();
    if CASES.iter().any(|case| wanted(case.name)) {
        let cases = CASES.iter().filter(|case| wanted(case.name));
        rows = on_file(directory.path(), options, cases)?;
    }
    let pairs = match wanted("resident get and put") {
        true => Some(pairs_per_second(Duration::from_secs_f64(options.seconds))?),
        false => None,
    };
    if rows.is_empty() && pairs.is_none() {
        bail!("no case has that in its name");
    }
    print(json, &rows, pairs);
    Ok(())
}

/// The cases that need a medium: engine and bare accesses in turns, on the same file.
fn on_file(
    directory: &Path,
    options: &Bench,
    cases: impl Iterator<Item = &'static Case>,
) -> Result<Vec<Row>> {
    let bytes = options.size.as_u64() - options.size.as_u64() % (1 << 20);
    ensure!(
        bytes >= SIZE_MIN,
        "--size: at least 512MiB, or much of what is read would be in the engine's memory"
    );
    ensure!(bytes <= SIZE_MAX, "--size: at most 16TiB");
    let path = directory.join("volume.img");
    // Neither side shall pay for blocks that the file system has yet to initialize.
    drop(FileDevice::create(&path, bytes, Allocation::Written).context("cannot make the file")?);
    let time = Duration::from_secs_f64(options.seconds / f64::from(options.rounds));
    let bare = Bare::new(&path);
    let mut rows = Vec::new();
    for case in cases {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for round in 0..options.rounds {
            let engine = Engine::create(&path, case.access.frames());
            let mut engine = engine.context("cannot make a volume")?;
            let mut run = Run {
                access: case.access,
                time,
                // Half of what users may write: collection is measured elsewhere.
                bytes: engine.capacity() / 2 / (1 << 20) * (1 << 20),
                seed: u64::from(round),
            };
            if case.access != Access::Append {
                let fill = Run {
                    access: Access::Append,
                    time: Duration::MAX,
                    ..run
                };
                engine.run(&fill).context("cannot fill the volume")?;
            }
            ours.push(engine.run(&run).context("the engine")?);
            // What is written now ends the volume.
            drop(engine);
            run.seed += u64::from(options.rounds);
            theirs.push(bare.run(&run).context("the bare file")?);
        }
        let sum = |runs| Figures::sum(runs).context("nothing was measured");
        rows.push(Row {
            case,
            ours: sum(ours)?,
            bare: sum(theirs)?,
        });
    }
    Ok(rows)
}

fn print(json: bool, rows: &[Row], pairs: Option<f64>) {
    if json {
        let rows: Vec<_> = rows
            .iter()
            .map(|row| {
                json!({
                    "name": row.case.name,
                    "engine": row.ours,
                    "bare": row.bare,
                    "ratio": row.ratio(),
                    "bar": row.case.bar,
                })
            })
            .collect();
        println!(
            "{}",
            json!({
                "block": BLOCK,
                "cases": rows,
                "resident_pairs_per_second": pairs,
                "resident_pairs_bar": PAIRS_BAR,
            })
        );
        return;
    }
    let mut table = show::table(&[
        "", "engine", "p50 µs", "p99 µs", "bare", "p50 µs", "p99 µs", "ratio", "bar",
    ]);
    for row in rows {
        let rate = |f: &Figures| match row.case.by_bytes {
            true => format!("{:.0} MiB/s", f.mib_s),
            false => format!("{:.0} op/s", f.iops),
        };
        let us = |value: f64| format!("{value:.1}");
        table.add_row([
            row.case.name.to_owned(),
            rate(&row.ours),
            us(row.ours.p50_us),
            us(row.ours.p99_us),
            rate(&row.bare),
            us(row.bare.p50_us),
            us(row.bare.p99_us),
            format!("{:.2}", row.ratio()),
            format!("{:.2}", row.case.bar),
        ]);
    }
    if let Some(pairs) = pairs {
        let mut cells = vec![
            "resident get and put, memory".to_owned(),
            format!("{:.2} M/s", pairs / 1e6),
        ];
        cells.extend(["-", "-", "-", "-", "-"].map(str::to_owned));
        cells.push(format!("{:.2}", pairs / PAIRS_BAR));
        cells.push("1.00".to_owned());
        table.add_row(cells);
    }
    println!("{table}");
    println!(
        "bare: reads with as many in flight; appends of {}, {APPENDS} in flight; sync writes one after the other, \
         O_DIRECT|O_DSYNC, as a program without a log makes them, however many writers the engine has",
        show::bytes(CHUNK as u64)
    );
}
