//! `flashnet bench fs`: the mounted file system against ext4 on the same disk, with the ratio it must reach.
//!
//! The same generator works on both sides in turns, with direct I/O. The file is several times as large as the memory of
//! the target, so most of what is read comes from the disk. What reads of pages in memory cost is measured against a
//! file system of zeros behind the same way through the kernel.
//!
//! A third side shows what the way through the kernel leaves of ext4: a file system behind `/dev/fuse` that passes requests on to it. That
//! is no proof of what can be had, but who is there has little left to save on a request; where ours is above it, ours gains by
//! what it does differently.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use contigfs::MetadataSync;
use serde_json::json;

use super::sides::{Ext4, Null, Ours, Passing};
use crate::cli::fs::BenchFs;
use crate::commands::interrupt::Interrupt;
use crate::commands::{scratch, show};
use crate::perf::figures::Figures;
use crate::perf::files::{self, Access, Run};
use crate::perf::{cpu, null};

/// Whom a row compares with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rival {
    Ext4,
    Null,
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
struct Row {
    name: &'static str,
    access: Access,
    rival: Rival,
    /// When changes of names are durable on our side.
    metadata_sync: MetadataSync,
    /// How much of the rival's rate must be reached.
    bar: f64,
}

const fn row(name: &'static str, access: Access, bar: f64) -> Row {
    Row {
        name,
        access,
        rival: Rival::Ext4,
        metadata_sync: MetadataSync::Strict,
        bar,
    }
}

impl Row {
    fn is_relaxed(&self) -> bool {
        self.metadata_sync == MetadataSync::Relaxed
    }
}

const ROWS: [Row; 13] = [
    row(
        "random read 4 KiB, 1 thread",
        Access::Read { threads: 1 },
        0.8,
    ),
    row(
        "random read 4 KiB, 4 threads",
        Access::Read { threads: 4 },
        0.8,
    ),
    row(
        "random read 4 KiB, io_uring depth 16",
        Access::ReadDeep { depth: 16 },
        0.8,
    ),
    row("sequential read 1 MiB", Access::ReadChunks, 0.9),
    row("sequential write 1 MiB", Access::WriteChunks, 0.9),
    row(
        "random write 4 KiB + fdatasync, 1 thread",
        Access::WriteDurably { threads: 1 },
        1.5,
    ),
    row(
        "random write 4 KiB + fdatasync, 8 threads",
        Access::WriteDurably { threads: 8 },
        1.5,
    ),
    row(
        "random write 4 KiB + fdatasync, 1 new file",
        Access::WriteNewDurably { threads: 1 },
        1.5,
    ),
    row(
        "random write 4 KiB + fdatasync, 8 new files",
        Access::WriteNewDurably { threads: 8 },
        1.5,
    ),
    row("create + fsync + unlink", Access::Names { files: 0 }, 1.0),
    // What is promised of names is what ext4 promises: durable with the next `fsync`.
    Row {
        metadata_sync: MetadataSync::Relaxed,
        ..row(
            "create + fsync + unlink, relaxed",
            Access::Names { files: 0 },
            1.0,
        )
    },
    Row {
        rival: Rival::Null,
        ..row(
            "resident read 4 KiB, 1 thread",
            Access::Read { threads: 1 },
            0.9,
        )
    },
    Row {
        rival: Rival::Null,
        ..row(
            "resident read 4 KiB, io_uring depth 16",
            Access::ReadDeep { depth: 16 },
            0.9,
        )
    },
];

/// Largest file.
const SIZE_MAX: u64 = 16 << 40;

/// The options with everything decided.
struct Plan {
    bytes: u64,
    pool: u64,
    time: Duration,
    rounds: u32,
    files: u32,
}

impl Plan {
    fn new(options: &BenchFs) -> Result<Self> {
        let quick = options.quick;
        let default = |full: u64, short: u64| if quick { short } else { full };
        let size = |given: Option<bytesize::ByteSize>, full, short| {
            given.map_or(default(full, short), |size| size.as_u64())
        };
        let plan = Self {
            bytes: size(options.size, 1 << 30, 32 << 20) / files::CHUNK as u64
                * files::CHUNK as u64,
            pool: size(options.pool, 32 << 20, 4 << 20),
            time: Duration::try_from_secs_f64(options.seconds.unwrap_or(if quick {
                0.1
            } else {
                1.0
            }))
            .context("--seconds")?,
            rounds: options.rounds.unwrap_or(default(3, 1) as u32),
            files: options.files.unwrap_or(default(10_000, 50) as u32),
        };
        ensure!(
            (1..=100).contains(&plan.rounds),
            "{} rounds: 1 to 100 are possible",
            plan.rounds
        );
        ensure!(
            (0.05..=600.0).contains(&plan.time.as_secs_f64()),
            "{} seconds: 0.05 to 600 are possible",
            plan.time.as_secs_f64()
        );
        ensure!(
            (plan.rounds..=1_000_000).contains(&plan.files),
            "{} files: one for each round to 1000000 are possible",
            plan.files
        );
        ensure!(
            plan.pool >= 1 << 20 && plan.bytes / 4 >= plan.pool,
            "a file of {} and a pool of {}: the pool has at least 1 MiB, and the file is four times as large",
            show::bytes(plan.bytes),
            show::bytes(plan.pool)
        );
        ensure!(
            plan.bytes <= SIZE_MAX,
            "a file of {}: up to {} are possible",
            show::bytes(plan.bytes),
            show::bytes(SIZE_MAX)
        );
        Ok(plan)
    }

    /// Bytes of the file that stays in memory.
    fn resident_bytes(&self) -> u64 {
        self.pool / 4
    }

    /// Bytes of all files of a side together.
    fn all_bytes(&self) -> u64 {
        self.bytes + files::new_bytes(self.bytes) + self.resident_bytes()
    }
}

/// What was measured of a row.
struct Measured {
    row: Row,
    ours: Vec<Figures>,
    theirs: Vec<Figures>,
    /// What theirs is when a file system behind FUSE passes it on; of none for resident reads.
    passed: Vec<Figures>,
    /// Cores that the target kept busy.
    cpu_target: f64,
}

impl Measured {
    /// The median of a figure over the rounds.
    fn median(figures: &[Figures], figure: impl Fn(&Figures) -> f64) -> f64 {
        let mut values: Vec<f64> = figures.iter().map(figure).collect();
        values.sort_by(f64::total_cmp);
        let n = values.len();
        (values[(n - 1) / 2] + values[n / 2]) / 2.0
    }

    fn ratio(&self) -> f64 {
        Self::median(&self.ours, |f| f.iops) / Self::median(&self.theirs, |f| f.iops)
    }

    /// How much of theirs is left behind FUSE.
    fn limit(&self) -> Option<f64> {
        let figure = |f: &Figures| f.iops;
        (!self.passed.is_empty())
            .then(|| Self::median(&self.passed, figure) / Self::median(&self.theirs, figure))
    }

    fn is_reached(&self) -> bool {
        self.ratio() >= self.row.bar
    }
}

/// Runs the bench.
pub(super) fn run(options: &BenchFs, json: bool) -> Result<()> {
    let plan = Plan::new(options)?;
    let wanted = |row: &&Row| options.only.as_ref().is_none_or(|o| row.name.contains(o));
    let rows: Vec<Row> = ROWS.iter().filter(wanted).copied().collect();
    ensure!(!rows.is_empty(), "no row has that in its name");
    contigfs::fuse::available()?;
    let interrupt = Interrupt::install()?;
    let directory = scratch::directory("bench-fs", options.directory.as_deref())?;
    interrupt.settle(compare(directory.path(), &plan, rows, &interrupt, json))
}

fn compare(
    directory: &Path,
    plan: &Plan,
    rows: Vec<Row>,
    interrupt: &Interrupt,
    json: bool,
) -> Result<()> {
    let sides = Sides::start(directory, plan, &rows, interrupt)?;
    let mut results = Vec::new();
    for row in rows {
        results.push(sides.measure(row, plan, interrupt)?);
    }
    print(json, plan, &sides, &results);
    let Sides { ours, relaxed, .. } = sides;
    ours.stop()?;
    relaxed.map_or(Ok(()), Ours::stop)
}

/// Everybody who is measured.
struct Sides {
    ours: Ours,
    /// Ours with `metadata_sync=relaxed`, for rows about names.
    relaxed: Option<Ours>,
    // Unmounted before what it passes on to.
    passing: Passing,
    ext4: Ext4,
    null: Option<Null>,
}

/// Name of the large file.
const FILE: &str = "bench.data";
/// Name of the file that stays in memory.
const RESIDENT: &str = "resident.data";

impl Sides {
    fn start(directory: &Path, plan: &Plan, rows: &[Row], interrupt: &Interrupt) -> Result<Self> {
        let ext4 = Ext4::start(directory, plan.all_bytes(), interrupt)?;
        let pool = format!("{}B", plan.pool);
        let strict = ["--pool", &pool];
        let ours = Ours::start(directory, "contigfs", plan.all_bytes(), &strict, interrupt)?;
        let relaxed = match rows.iter().any(Row::is_relaxed) {
            true => {
                let relaxed = [&strict[..], &["--metadata-sync", "relaxed"]].concat();
                Some(Ours::start(directory, "relaxed", 0, &relaxed, interrupt)?)
            }
            false => None,
        };
        interrupt.check()?;
        let on_file = |row: &Row| row.rival == Rival::Ext4 && !row.access.makes_files();
        if rows.iter().any(on_file) {
            for root in [&ours.root, &ext4.root] {
                let progress = show::progress(plan.bytes, "fill");
                let filled = files::fill(&root.join(FILE), plan.bytes, |bytes| {
                    progress.inc(bytes);
                    interrupt
                        .check()
                        .map_err(|_| io::ErrorKind::Interrupted.into())
                });
                progress.finish_and_clear();
                interrupt.check()?;
                filled.with_context(|| format!("cannot fill {}", root.join(FILE).display()))?;
            }
        }
        let resident = rows.iter().any(|r| r.rival == Rival::Null);
        let null = match resident {
            true => Some(Null::start(directory)?),
            false => None,
        };
        if resident {
            files::fill(&ours.root.join(RESIDENT), plan.resident_bytes(), |_bytes| {
                Ok(())
            })?;
        }
        let passing = Passing::start(directory, &ext4.root)?;
        Ok(Self {
            ours,
            relaxed,
            passing,
            ext4,
            null,
        })
    }

    /// Our side of a row.
    fn ours(&self, row: Row) -> &Ours {
        match &self.relaxed {
            Some(relaxed) if row.is_relaxed() => relaxed,
            _ => &self.ours,
        }
    }

    /// Where a row runs: on our side, on the other, and on what passes the other on.
    fn places(&self, row: Row) -> (PathBuf, PathBuf, Option<PathBuf>) {
        if let (Rival::Null, Some(null)) = (row.rival, &self.null) {
            return (self.ours.root.join(RESIDENT), null.file.clone(), None);
        }
        let place = |root: &PathBuf| match row.access.makes_files() {
            true => root.clone(),
            false => root.join(FILE),
        };
        let passed = place(&self.passing.root);
        (
            place(&self.ours(row).root),
            place(&self.ext4.root),
            Some(passed),
        )
    }

    /// Measures a row in turns, so that a machine that is slow for a while is slow for both.
    fn measure(&self, row: Row, plan: &Plan, interrupt: &Interrupt) -> Result<Measured> {
        let (our_place, their_place, passed_place) = self.places(row);
        let bytes = match row.rival {
            Rival::Ext4 => plan.bytes,
            Rival::Null => plan.resident_bytes().min(null::BYTES),
        };
        let mut measured = Measured {
            row,
            ours: Vec::new(),
            theirs: Vec::new(),
            passed: Vec::new(),
            cpu_target: 0.0,
        };
        let used = || cpu::used(Some(self.ours(row).pid())).unwrap_or_default();
        let (mut busy, mut elapsed) = (Duration::ZERO, 0.0);
        for round in 0..plan.rounds {
            let access = match row.access {
                Access::Names { .. } => Access::Names {
                    files: (plan.files + round) / plan.rounds,
                },
                other => other,
            };
            let run = Run {
                access,
                time: plan.time,
                bytes,
                seed: 2 * u64::from(round),
                stop: interrupt.mark(),
            };
            let measure = |place: &Path, run: &Run<'_>, whose: &str| {
                let figures = files::run(place, run);
                // Before what came of it: whoever is told to end finds what he finds.
                interrupt.check()?;
                figures.with_context(|| format!("{}: {whose}", row.name))
            };
            if row.rival == Rival::Null {
                files::read_through(&our_place, bytes)?;
            }
            let before = used();
            let ours = measure(&our_place, &run, "ours")?;
            busy += used().saturating_sub(before);
            elapsed += ours.seconds;
            measured.ours.push(ours);
            measured.theirs.push(measure(&their_place, &run, "theirs")?);
            if let Some(place) = &passed_place {
                // Elsewhere in the same files: what has just been read may still be in a cache of the disk.
                let other = Run {
                    seed: run.seed + 1,
                    ..run
                };
                let passed = measure(place, &other, "theirs, passed on")?;
                measured.passed.push(passed);
            }
        }
        measured.cpu_target = busy.as_secs_f64() / elapsed;
        Ok(measured)
    }
}

fn print(json: bool, plan: &Plan, sides: &Sides, results: &[Measured]) {
    if json {
        let rows: Vec<_> = results
            .iter()
            .map(|m| {
                json!({
                    "name": m.row.name,
                    "rival": match m.row.rival { Rival::Ext4 => "ext4", Rival::Null => "null" },
                    "bar": m.row.bar,
                    "ratio": m.ratio(),
                    "limit": m.limit(),
                    "reached": m.is_reached(),
                    "cpu_target": m.cpu_target,
                    "ours": m.ours,
                    "theirs": m.theirs,
                    "passed": m.passed,
                })
            })
            .collect();
        println!(
            "{}",
            json!({
                "rows": rows,
                "ext4": sides.ext4.what,
                "file_bytes": plan.bytes,
                "pool_bytes": plan.pool,
                "rounds": plan.rounds,
            })
        );
        return;
    }
    let mut table = show::table(&[
        "", "ours", "p50 µs", "p99 µs", "theirs", "p50 µs", "p99 µs", "ratio", "limit", "bar", "",
        "cores",
    ]);
    for m in results {
        let side = |figures: &[Figures]| {
            let rate = match m.row.access {
                Access::ReadChunks | Access::WriteChunks => {
                    format!("{:.0} MiB/s", Measured::median(figures, |f| f.mib_s))
                }
                _ => format!("{:.0} /s", Measured::median(figures, |f| f.iops)),
            };
            let us =
                |figure: fn(&Figures) -> f64| format!("{:.0}", Measured::median(figures, figure));
            [rate, us(|f| f.p50_us), us(|f| f.p99_us)]
        };
        let mut cells = vec![m.row.name.to_owned()];
        cells.extend(side(&m.ours));
        cells.extend(side(&m.theirs));
        cells.extend([
            format!("{:.2}", m.ratio()),
            m.limit().map_or_else(String::new, |l| format!("{l:.2}")),
            format!("{:.1}", m.row.bar),
            if m.is_reached() { "reached" } else { "" }.to_owned(),
            format!("{:.2}", m.cpu_target),
        ]);
        table.add_row(cells);
    }
    println!("{table}");
    println!(
        "theirs: {}; of the resident reads, a file system of zeros through FUSE. File {}, pool {}, medians of {} x {:.1} s; \
         `limit` is the ratio of a file system behind FUSE that passes everything on to ext4; `cores` is the \
         processor time of the target.",
        sides.ext4.what,
        show::bytes(plan.bytes),
        show::bytes(plan.pool),
        plan.rounds,
        plan.time.as_secs_f64()
    );
}
