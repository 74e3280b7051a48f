//! `flashnet bench remotelog`: the 72 ways to make a remote log persistent, proven and measured.
//!
//! Each cell of the two tables names the recipe that RDMA hardware needs, as the paper prints it, and the one that this
//! endpoint carries out for the same responder, with what it took over TCP on this machine. A tick stands only where the
//! search was run and nothing spoke against the recipe.

use std::time::Instant;

use anyhow::{Context, Result, bail};
use offload_chain::persist::{
    Config, Peer, Primary, Proof, Prover, Recipe, Refusal, Scenario, Unproven, Update, printed,
};
use serde_json::{Value, json};

use super::tell;
use crate::cli::remotelog::BenchRemotelog;
use crate::commands::show;
use crate::perf::remotelog::{self, Latency};

/// A recipe of a cell.
struct Way {
    recipe: Recipe,
    proof: Option<Proof>,
}

/// A cell of the tables.
struct Cell {
    scenario: Scenario,
    hardware: Way,
    endpoint: Result<Way, Refusal>,
    latency: Option<Latency>,
}

/// Runs the bench.
pub(super) fn run(options: &BenchRemotelog, json: bool) -> Result<()> {
    let started = Instant::now();
    let peer = remotelog::peer(!options.plain)?;
    let mut prover = options.prove.then(Prover::new);
    let mut cells = Vec::new();
    for scenario in Scenario::all() {
        tell(&scenario.to_string());
        let hardware = way(scenario, Peer::Rdma, prover.as_mut())?
            .with_context(|| format!("{scenario}: no recipe for RDMA hardware"))?;
        if hardware.recipe.id != printed(scenario) {
            let (ours, theirs) = (hardware.recipe.id, printed(scenario));
            bail!("{scenario}: {ours} was planned, and the paper prints {theirs}");
        }
        let endpoint = way(scenario, peer, prover.as_mut())?;
        let latency = match &endpoint {
            Ok(way) if options.records > 0 => Some(remotelog::measure(
                scenario,
                peer,
                &way.recipe,
                options.records,
            )?),
            _ => None,
        };
        cells.push(Cell {
            scenario,
            hardware,
            endpoint,
            latency,
        });
    }
    if json {
        println!("{}", document(options, peer, &cells, prover.as_ref()));
        return Ok(());
    }
    if options.traces {
        for cell in &cells {
            let ours = cell.endpoint.as_ref().ok().and_then(|w| w.proof.as_ref());
            for proof in cell.hardware.proof.iter().chain(ours) {
                println!("{proof}");
            }
        }
    }
    for update in [Update::Singleton, Update::TAIL_POINTER] {
        print_table(update, &cells);
    }
    let measured = match options.records {
        0 => String::new(),
        records => format!(", and the median of {records} appends of 64 bytes"),
    };
    println!(
        "First line: RDMA hardware, as printed in \"Correct, Fast Remote Persistence\". Second line: {peer}{measured}."
    );
    match &prover {
        Some(prover) => {
            let evidence = prover.evidence();
            println!(
                "✓ {} of {} proven: {} power cuts, {} more in restarts, no loss, no reordering, and nothing cheaper survives; \
                 in {}",
                proven(&cells),
                cells.len(),
                evidence.cuts,
                evidence.restarts,
                show::time(started.elapsed())
            );
        }
        None => println!("Nothing is ticked without --prove."),
    }
    Ok(())
}

/// What to do with a peer, if anything, and the proof, if one is wanted.
fn way(
    scenario: Scenario,
    peer: Peer,
    prover: Option<&mut Prover>,
) -> Result<Result<Way, Refusal>> {
    let Some(prover) = prover else {
        let proof = None;
        return Ok(scenario.plan(peer).map(|recipe| Way { recipe, proof }));
    };
    match prover.prove(scenario, peer) {
        Ok(proof) => Ok(Ok(Way {
            recipe: proof.recipe.clone(),
            proof: Some(proof),
        })),
        Err(Unproven::Refused(refusal)) => Ok(Err(refusal)),
        Err(why) => Err(anyhow::Error::new(why).context(format!("{scenario}, {peer}: not proven"))),
    }
}

impl Cell {
    /// Both recipes are proven, as far as there are two.
    fn is_proven(&self) -> bool {
        let ours = self.endpoint.as_ref();
        self.hardware.proof.is_some() && ours.is_ok_and(|w| w.proof.is_some()) | ours.is_err()
    }

    fn text(&self) -> String {
        let ours = match (&self.endpoint, self.latency) {
            (Ok(way), Some(latency)) => format!("{} {:.0} µs", way.text(), latency.p50_us),
            (Ok(way), None) => way.text(),
            (Err(_), _) => "refused".to_owned(),
        };
        format!("{}\n{ours}", self.hardware.text())
    }
}

impl Way {
    fn text(&self) -> String {
        let tick = if self.proof.is_some() { "✓ " } else { "" };
        format!("{tick}{}", self.recipe.name())
    }

    fn json(&self, traces: bool) -> Value {
        let mut value = json!({
            "recipe": self.recipe.name(),
            "steps": self.recipe.to_string(),
            "proven": self.proof.is_some(),
        });
        if let Some(proof) = &self.proof {
            value["cuts"] = proof.evidence.cuts.into();
            value["restarts"] = proof.evidence.restarts.into();
            value["weaker"] = proof
                .weaker
                .iter()
                .map(|(recipe, refusal, counterexample)| {
                    let mut weaker = json!({
                        "recipe": recipe.name(),
                        "refused": refusal.to_string(),
                        "harm": counterexample.harm.to_string(),
                    });
                    if traces {
                        weaker["trace"] = counterexample.steps.clone().into();
                    }
                    weaker
                })
                .collect();
            let names = proof.others.iter().map(|(recipe, _)| recipe.name());
            value["right_too"] = names.collect();
        }
        value
    }
}

fn proven(cells: &[Cell]) -> usize {
    cells.iter().filter(|cell| cell.is_proven()).count()
}

fn print_table(update: Update, cells: &[Cell]) {
    let what = match update {
        Update::Singleton => "Singleton: a record with its checksum",
        Update::Compound { .. } => "Compound: a record, then the pointer to the tail",
    };
    println!("{what}");
    let mut table = show::table(&["domain", "DDIO", "receives", "WRITE", "WRITE_IMM", "SEND"]);
    for config in Config::all() {
        let Config {
            domain,
            ddio,
            receive_queue,
        } = config;
        let mut row = vec![
            domain.to_string(),
            ddio.to_string(),
            receive_queue.to_string(),
        ];
        row.extend(Primary::ALL.iter().filter_map(|&primary| {
            let scenario = Scenario {
                update,
                config,
                primary,
            };
            let cell = cells.iter().find(|cell| cell.scenario == scenario)?;
            Some(cell.text())
        }));
        table.add_row(row);
    }
    println!("{table}");
}

fn document(
    options: &BenchRemotelog,
    peer: Peer,
    cells: &[Cell],
    prover: Option<&Prover>,
) -> Value {
    let rows: Vec<Value> = cells
        .iter()
        .map(|cell| {
            let Scenario {
                update,
                config,
                primary,
            } = cell.scenario;
            json!({
                "update": update.to_string(),
                "domain": config.domain.to_string(),
                "ddio": config.ddio.to_string(),
                "receive_queue": config.receive_queue.to_string(),
                "primary": primary.to_string(),
                "proven": cell.is_proven(),
                "rdma": cell.hardware.json(options.traces),
                "endpoint": match &cell.endpoint {
                    Ok(way) => way.json(options.traces),
                    Err(refusal) => json!({ "refused": refusal.to_string() }),
                },
                "latency": cell.latency,
            })
        })
        .collect();
    let evidence = prover.map(Prover::evidence).unwrap_or_default();
    json!({
        "proven": proven(cells),
        "cells": rows,
        "peer": peer.to_string(),
        "cuts": evidence.cuts,
        "restarts": evidence.restarts,
    })
}
