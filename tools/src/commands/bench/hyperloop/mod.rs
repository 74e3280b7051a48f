//! `flashnet bench hyperloop`: groups beside chains of applications, as the paper's figures have it.

mod figure;
mod plot;

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use self::figure::{Outcome, Row, Spread};
use super::tell;
use crate::cli::hyperloop::{BenchHyperloop, Figure, Where};
use crate::perf::hyperloop::{
    Chain, Placement, Priority, Side, Tenants, Work, latency, throughput,
};

const SIZES: [usize; 7] = [128, 256, 512, 1024, 2048, 4096, 8192];
const STREAMED: [usize; 4] = [1 << 10, 4 << 10, 16 << 10, 64 << 10];
const GROUPS: [usize; 3] = [3, 5, 7];
/// Bytes of a gWRITE where its size does not vary.
const USUAL: usize = 1024;

/// Runs the bench.
pub(super) fn run(options: &BenchHyperloop, json: bool) -> Result<()> {
    ensure!(
        (0.01..=600.0).contains(&options.seconds),
        "--seconds: 0.01 to 600 are possible"
    );
    if let Some(directory) = &options.plots {
        // Before minutes are spent on what could not be kept.
        fs::create_dir_all(directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
    }
    let started = Instant::now();
    let placement = match options.placement {
        Where::Apart => Placement::apart()?,
        Where::Free => Placement::Free,
    };
    let is_real_time = Priority::Client.take().is_ok();
    placement.take(Priority::Client)?;
    let mut halves = Vec::new();
    for crowded in [false, true] {
        let tenants = if crowded { options.tenants.into() } else { 0 };
        // They go when this half is over.
        let _tenants = Tenants::crowd(tenants, &placement)?;
        for figure in figures(options) {
            tell(&format!("{}, {}", figure.title(), crowd(crowded)));
            halves.push((crowded, measure(options, figure, &placement)?));
        }
    }
    if let Some(directory) = &options.plots {
        for (crowded, outcome) in &halves {
            let name = format!("{}-{}.svg", outcome.figure().name(), crowd(*crowded));
            plot::draw(&directory.join(name), outcome, crowd(*crowded))?;
        }
    }
    if json {
        let figures: Vec<Value> = halves
            .iter()
            .map(|(crowded, outcome)| outcome.json(*crowded))
            .collect();
        let report = json!({
            "members": options.members,
            "tenants": options.tenants,
            "real_time": is_real_time,
            "placement": placement.name(),
            "figures": figures,
        });
        println!("{report}");
        return Ok(());
    }
    for (crowded, outcome) in &halves {
        println!("{}, {}", outcome.figure().title(), crowd(*crowded));
        println!("{}", outcome.table());
        if let Some(note) = outcome.note() {
            println!("{note}");
        }
        println!();
    }
    println!(
        "{} members, {} tenants on each processor in the crowded half, {}, {}, {:.0} s",
        options.members,
        options.tenants,
        match is_real_time {
            true => "endpoints and client at real-time priority",
            false => "everybody at ordinary priority: the system allows no other",
        },
        match placement {
            Placement::Apart(_) => "with a processor of their own beside those of the applications",
            Placement::Free => "on the processors of the applications",
        },
        started.elapsed().as_secs_f64()
    );
    Ok(())
}

const fn crowd(crowded: bool) -> &'static str {
    match crowded {
        false => "quiet",
        true => "crowded",
    }
}

fn figures(options: &BenchHyperloop) -> Vec<Figure> {
    let mut figures = Figure::ALL.to_vec();
    figures.retain(|figure| options.only.is_none_or(|only| only == *figure));
    figures
}

fn measure(options: &BenchHyperloop, figure: Figure, placement: &Placement) -> Result<Outcome> {
    let members = usize::from(options.members);
    let time = Duration::from_secs_f64(options.seconds);
    let some = |all: &[usize]| match options.brief {
        true => vec![all[0], all[all.len() - 1]],
        false => all.to_vec(),
    };
    if figure == Figure::Throughput {
        let rows = rows(&some(&STREAMED), |side, size| {
            let mut chain = Chain::start(side, members, placement)?;
            throughput(&mut chain, Work::Write(size), time)
        })?;
        return Ok(Outcome::Throughput(rows));
    }
    let xs = match figure {
        Figure::Gwrite | Figure::Gmemcpy => some(&SIZES),
        Figure::Members => some(&GROUPS),
        _ => vec![8],
    };
    let rows = rows(&xs, |side, x| {
        let (members, work) = match figure {
            Figure::Gmemcpy => (members, Work::Memcpy(x)),
            Figure::Gcas => (members, Work::Cas),
            Figure::Members => (x, Work::Write(USUAL)),
            _ => (members, Work::Write(x)),
        };
        let mut chain = Chain::start(side, members, placement)?;
        Ok(Spread::of(&latency(&mut chain, work, time)?))
    })?;
    Ok(Outcome::Latency(figure, rows))
}

fn rows<T>(xs: &[usize], mut measure: impl FnMut(Side, usize) -> Result<T>) -> Result<Vec<Row<T>>> {
    let mut rows = Vec::new();
    for &x in xs {
        let mut sides = Vec::new();
        for side in Side::ALL {
            let what = || format!("{}, at {x}", side.name());
            sides.push((side, measure(side, x).with_context(what)?));
        }
        rows.push(Row { x, sides });
    }
    Ok(rows)
}
