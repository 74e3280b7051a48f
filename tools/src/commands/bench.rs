//! `flashnet bench wa`: write amplification of the engine over workloads and policies.
//!
//! Each row is one workload at one hidden share, replayed through the engine as `flashnet ftl replay` does, with
//! traces made on the spot. Beside what was reached stands the target of the row and what an oracle that knows the
//! true update rates reaches in a model without headers, reserve and durability.

mod fs;
mod hyperloop;
mod remotelog;
mod sides;

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, IsTerminal, Write as _};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use ftl::GcPolicy;

use super::part::Part;
use super::show;
use crate::cli::ftl::{BenchCommand, BenchWa};
use crate::replay::workload::{Generator, Workload};
use crate::replay::{Measured, ReplayOptions, Replayer};

/// A row of the table.
#[derive(Clone, Copy, Debug)]
struct Row {
    workload: Workload,
    op: f64,
    oracle: f64,
    target: f64,
}

const fn row(workload: Workload, op: f64, oracle: f64, target: f64) -> Row {
    Row {
        workload,
        op,
        oracle,
        target,
    }
}

const fn zipf_share(share: f64) -> Workload {
    Workload::ZipfShare {
        share,
        fraction: 0.2,
    }
}

const fn two(share: f64) -> Workload {
    Workload::TwoPopulations {
        share,
        fraction: 0.2,
    }
}

const fn moving(share: f64, fraction: f64, every: f64) -> Workload {
    Workload::Moving {
        share,
        fraction,
        every,
    }
}

#[expect(clippy::approx_constant, reason = "an amplification that is not pi")]
const ROWS: [Row; 10] = [
    row(zipf_share(0.8), 7.0, 4.01, 4.4),
    row(zipf_share(0.8), 20.0, 1.93, 2.08),
    row(zipf_share(0.95), 7.0, 2.01, 2.2),
    row(zipf_share(0.95), 20.0, 1.30, 1.40),
    row(Workload::Zipf { theta: 0.99 }, 15.0, 1.92, 2.06),
    row(two(0.8), 20.0, 2.29, 2.40),
    row(two(0.95), 20.0, 1.72, 1.80),
    row(moving(0.9, 0.1, 2.0), 20.0, 1.73, 2.08),
    row(moving(0.8, 0.2, 0.5), 15.0, 2.93, 3.75),
    row(Workload::Uniform, 20.0, 3.14, 3.20),
];

/// Hidden shares of the curves.
const CURVE_OPS: [f64; 5] = [7.0, 10.0, 15.0, 20.0, 30.0];
/// Fewest writes that an amplification is said of, and most, in multiples of the space.
const SPACES_MIN: f64 = 0.01;
const SPACES_MAX: f64 = 10_000.0;
/// Grains of a segment.
const SEGMENT_GRAINS: u64 = 128;

/// Runs the bench that was asked for.
pub(super) fn run(command: &BenchCommand, json: bool) -> Result<()> {
    match command {
        BenchCommand::Wa(options) => wa(options, json),
        BenchCommand::Fs(options) => fs::run(options, json),
        BenchCommand::Remotelog(options) => remotelog::run(options, json),
        BenchCommand::Hyperloop(options) => hyperloop::run(options, json),
    }
}

fn wa(options: &BenchWa, json: bool) -> Result<()> {
    ensure!(
        options.grains >= 4096,
        "--grains: too small to say anything"
    );
    ensure!(
        (0.0..=SPACES_MAX).contains(&options.warm),
        "--warm {}: 0 to {SPACES_MAX} are possible",
        options.warm
    );
    ensure!(
        (SPACES_MIN..=SPACES_MAX).contains(&options.measure),
        "--measure {}: {SPACES_MIN} to {SPACES_MAX} are possible",
        options.measure
    );
    let wanted = |row: &&Row| {
        let only = options.only.as_deref().unwrap_or("");
        row.workload.to_string().contains(only)
    };
    let rows: Vec<&Row> = ROWS.iter().filter(wanted).collect();
    let drawn: &[f64] = match options.svg {
        Some(_) => &CURVE_OPS,
        None => &[],
    };
    for op in rows.iter().map(|row| row.op).chain(drawn.iter().copied()) {
        let tried = volume(options, op, GcPolicy::default()).try_out();
        tried.with_context(|| format!("--grains {}: too few to hide {op} %", options.grains))?;
    }
    let drawing = options.svg.as_deref().map(Drawing::begin).transpose()?;
    let policies = if options.policies.is_empty() {
        GcPolicy::ALL.to_vec()
    } else {
        options.policies.clone()
    };
    let names: Vec<&str> = policies.iter().map(|p| p.name()).collect();
    let headings = [
        &["workload", "OP %"],
        names.as_slice(),
        &["headers", "oracle", "target", ""],
    ];
    let mut table = show::table(&headings.concat());
    let mut results = Vec::new();
    let started = Instant::now();
    for row in rows {
        let mut cells = vec![row.workload.to_string(), row.op.to_string()];
        let mut last = None;
        for &policy in &policies {
            tell(&format!("{} at {} %: {policy}", row.workload, row.op));
            let measured = measure(options, row.workload, row.op, policy)?;
            cells.push(format!("{:.3}", measured.data_wa));
            results.push(serde_json::json!({
                "workload": row.workload.to_string(), "op": row.op, "target": row.target, "oracle": row.oracle,
                "result": measured,
            }));
            last = Some(measured);
        }
        let last = last.context("a policy")?;
        let verdict = if last.data_wa <= row.target {
            "reached"
        } else {
            ""
        };
        cells.extend([
            format!("{:.3}", last.metadata_wa),
            format!("{:.2}", row.oracle),
            format!("{:.2}", row.target),
            verdict.to_owned(),
        ]);
        table.add_row(cells);
    }
    ensure!(
        !results.is_empty() || options.svg.is_some(),
        "no workload has {:?} in its name",
        options.only.as_deref().unwrap_or("")
    );
    if json {
        println!("{}", serde_json::Value::from(results));
    } else {
        println!("{table}");
        println!(
            "`headers` and the verdict are those of {}; in {}",
            names[names.len() - 1],
            show::time(started.elapsed())
        );
    }
    if let Some(drawing) = drawing {
        let path = drawing.path;
        drawing.finish(&curves(options, &policies)?)?;
        tell(&format!("curves in {}", path.display()));
    }
    Ok(())
}

/// The file that becomes the drawing: that it can be made is known before long measurements.
struct Drawing<'a> {
    path: &'a Path,
    part: Option<Part>,
    file: File,
}

impl<'a> Drawing<'a> {
    fn begin(path: &'a Path) -> Result<Self> {
        let begun = || -> io::Result<_> {
            Ok(match Part::beside(path)? {
                Some((part, file)) => (Some(part), file),
                // A device or a pipe.
                None => (None, File::create(path)?),
            })
        };
        let (part, file) = begun().with_context(|| cannot_write(path))?;
        Ok(Self { path, part, file })
    }

    fn finish(mut self, svg: &str) -> Result<()> {
        let written = self.file.write_all(svg.as_bytes());
        let finished = written.and_then(|()| self.part.map_or(Ok(()), Part::finish));
        finished.with_context(|| cannot_write(self.path))
    }
}

fn cannot_write(path: &Path) -> String {
    format!("cannot write {}", path.display())
}

fn tell(what: &str) {
    if std::io::stderr().is_terminal() {
        eprintln!("{what}");
    }
}

fn volume(options: &BenchWa, op: f64, policy: GcPolicy) -> ReplayOptions {
    ReplayOptions {
        grains: u64::from(options.grains),
        overprovision_percent: op,
        segment_grains: SEGMENT_GRAINS,
        policy,
        media: None,
        checkpoints: false,
    }
}

fn measure(options: &BenchWa, workload: Workload, op: f64, policy: GcPolicy) -> Result<Measured> {
    let grains = f64::from(options.grains);
    let (warm, measure) = (
        (options.warm * grains) as u64,
        (options.measure * grains) as u64,
    );
    let mut generator = Generator::new(workload, options.grains, options.seed);
    let mut replayer = Replayer::new(volume(options, op, policy))?;
    for _ in 0..warm {
        replayer.write(generator.next_lba())?;
    }
    replayer.start_measuring();
    for _ in 0..measure {
        replayer.write(generator.next_lba())?;
    }
    Ok(replayer.measured())
}

/// Write amplification against hidden share, Zipf 80/20, one curve for each policy.
fn curves(options: &BenchWa, policies: &[GcPolicy]) -> Result<String> {
    const COLOURS: [&str; 4] = ["#b0b0b0", "#808080", "#d08020", "#2060c0"];
    let (width, height, margin) = (640.0, 420.0, 50.0);
    let x = |op: f64| margin + op / 32.0 * (width - 2.0 * margin);
    let y = |wa: f64| height - margin - (wa - 1.0) / 11.0 * (height - 2.0 * margin);
    let mut svg = format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' font-family='sans-serif' font-size='12'>\n\
         <text x='{margin}' y='25'>Data write amplification against hidden share (%), Zipf 80/20</text>\n"
    );
    for wa in (1..=12).map(f64::from) {
        let (at, end) = (y(wa), width - margin);
        writeln!(
            svg,
            "<path d='M{margin} {at:.0}H{end}' stroke='#eee'/><text x='25' y='{at:.0}'>{wa}</text>"
        )?;
    }
    for op in CURVE_OPS {
        let (at, foot) = (x(op), height - margin + 18.0);
        writeln!(svg, "<text x='{at:.0}' y='{foot}'>{op}</text>")?;
    }
    for (index, &policy) in policies.iter().enumerate() {
        let mut points = String::new();
        for op in CURVE_OPS {
            let wa = measure(options, zipf_share(0.8), op, policy)?.data_wa;
            write!(points, "{:.0},{:.0} ", x(op), y(wa))?;
        }
        let (colour, at) = (COLOURS[index % COLOURS.len()], 60 + 18 * index);
        writeln!(
            svg,
            "<polyline fill='none' stroke='{colour}' stroke-width='2' points='{points}'/>"
        )?;
        writeln!(
            svg,
            "<text x='450' y='{at}' fill='{colour}'>{policy}</text>"
        )?;
    }
    svg.push_str("</svg>\n");
    Ok(svg)
}
