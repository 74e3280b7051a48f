//! `chain status`: what a group is doing.

use std::time::Duration;

use anyhow::{Result, bail};
use comfy_table::Table;
use offload_chain::config::list;
use offload_chain::group::Topology;
use offload_chain::membership::{Configuration, MemberId, Phase, Report, View};
use serde_json::{Value, json};

use crate::cli::chain::ChainStatus;
use crate::commands::show;

const AGAIN: Duration = Duration::from_secs(1);

pub(super) fn run(options: &ChainStatus, json: bool) -> Result<()> {
    // Signals just end it, also while it waits for a store that does not answer: there is nothing to leave in order.
    let mut store = super::open(&options.store)?;
    loop {
        let view = View::of(&list(&mut *store, "")?);
        let Some(config) = &view.configuration else {
            bail!("there is no group in {}", options.store);
        };
        match json {
            true => println!("{}", as_json(config, &view)),
            false => tell(config, &view),
        }
        if !options.watch {
            return Ok(());
        }
        std::thread::sleep(AGAIN);
    }
}

/// What a member is, in words.
fn state(config: &Configuration, id: MemberId, report: Option<&Report>) -> String {
    let Some(report) = report else {
        return match config.chain.iter().any(|seat| seat.id == id) {
            true => "gone".to_owned(),
            false => "not serving".to_owned(),
        };
    };
    if !config.members.contains(&id) {
        return "removed".to_owned();
    }
    let in_chain = config.chain.contains(&report.seat);
    let epoch = config.epoch;
    match (in_chain, config.phase) {
        (true, Phase::Active) => "serving".to_owned(),
        (true, _) if report.recovered == epoch => "recovered".to_owned(),
        (true, _) if report.synced == epoch => "synced".to_owned(),
        (true, _) if report.sealed == epoch => "sealed".to_owned(),
        (true, _) => "to be sealed".to_owned(),
        (false, _) if report.ready == Some(epoch) => "ready to join".to_owned(),
        (false, Phase::Active) => {
            format!("catching up, {} chunks in the last round", report.behind)
        }
        (false, _) => "waits".to_owned(),
    }
}

fn place(config: &Configuration, id: MemberId) -> String {
    let at = config.chain.iter().position(|seat| seat.id == id);
    match (at, config.chain.len()) {
        (None, _) => "-".to_owned(),
        (Some(0), 1) => "alone".to_owned(),
        (Some(0), _) => "head".to_owned(),
        (Some(at), members) if at + 1 == members && config.birth.topology == Topology::Chain => {
            "tail".to_owned()
        }
        (Some(at), _) => at.to_string(),
    }
}

/// Those of the chain, in order, then the others.
fn everybody(config: &Configuration, view: &View) -> Vec<MemberId> {
    let mut ids: Vec<MemberId> = config.chain.iter().map(|seat| seat.id).collect();
    let others = config.members.iter().chain(view.reports.keys());
    for id in others {
        if !ids.contains(id) {
            ids.push(*id);
        }
    }
    ids
}

/// Those of whom one has to come back, if nobody who lives has all that was acknowledged.
fn waits_for(config: &Configuration, view: &View) -> Vec<u32> {
    let vouches =
        |report: &Report| config.members.contains(&report.seat.id) && config.vouches(report);
    match view.reports.values().any(vouches) || view.put_back().is_some() {
        true => Vec::new(),
        false => config.active_chain.iter().map(|seat| seat.id.0).collect(),
    }
}

fn tell(config: &Configuration, view: &View) {
    let birth = &config.birth;
    let phase = match (config.epoch.0, config.phase) {
        (0, _) => "waiting for all members to serve".to_owned(),
        (_, Phase::Active) => "active".to_owned(),
        (_, phase) => format!("{phase:?}").to_lowercase(),
    };
    println!(
        "epoch {}, {phase}; {}, {}, {} of data, {} ring, {} locks",
        config.epoch,
        match birth.topology {
            Topology::Chain => "chain",
            Topology::Star => "star",
        },
        match (birth.durable, birth.executes) {
            (true, true) => "durable",
            (false, true) => "volatile",
            (true, false) => "durable, log only",
            (false, false) => "volatile, log only",
        },
        show::bytes(birth.data_bytes),
        show::bytes(birth.ring_bytes),
        birth.locks,
    );
    let mut table: Table = show::table(&["member", "place", "state", "log", "lag", "address"]);
    for id in everybody(config, view) {
        let report = view.reports.get(&id);
        let log = report.and_then(|report| report.log);
        table.add_row([
            id.to_string(),
            place(config, id),
            state(config, id, report),
            log.map_or("-".into(), |(term, at)| format!("{term}:{at}")),
            report.map_or("-".into(), |report| {
                show::time(Duration::from_millis(report.lag_ms))
            }),
            report.map_or("-".into(), |report| report.address.clone()),
        ]);
    }
    println!("{table}");
    let waits_for = waits_for(config, view);
    if !waits_for.is_empty() {
        let lost = match config.birth.durable {
            true => "",
            // With it that ends.
            false => {
                "; if their processes have ended it is lost, and the group has to be made again"
            }
        };
        println!(
            "waits for one of members {waits_for:?}: nobody else has all that was acknowledged{lost}"
        );
    }
    if let Some(put_back) = view.put_back() {
        println!("{put_back}");
    }
    if !view.slots.is_empty() {
        let clients: Vec<String> = (view.slots.iter())
            .map(|(slot, (boot, _))| match view.clients.get(slot) {
                Some(living) if living == boot => slot.number().to_string(),
                _ => format!("{} (gone)", slot.number()),
            })
            .collect();
        println!("clients, by their slots: {}", clients.join(", "));
    }
    for bad in &view.bad {
        println!("in the store: {bad}");
    }
}

fn as_json(config: &Configuration, view: &View) -> Value {
    let members: Vec<Value> = (everybody(config, view).into_iter())
        .map(|id| {
            let report = view.reports.get(&id);
            json!({
                "member": id.0,
                "place": config.chain.iter().position(|seat| seat.id == id),
                "state": state(config, id, report),
                "address": report.map(|report| &report.address),
                "log": report.and_then(|report| report.log).map(|(term, at)| json!({ "term": term.0, "sequence": at })),
                "lag_ms": report.map(|report| report.lag_ms),
                "behind_chunks": report.map(|report| report.behind),
            })
        })
        .collect();
    let clients: Vec<Value> = (view.slots.iter())
        .map(|(slot, (boot, _))| json!({ "slot": slot.number(), "alive": view.clients.get(slot) == Some(boot) }))
        .collect();
    let phase = match config.epoch.0 {
        // It has never been active.
        0 => "waiting".to_owned(),
        _ => format!("{:?}", config.phase).to_lowercase(),
    };
    json!({
        "epoch": config.epoch.0,
        "phase": phase,
        "active": config.epoch.0 > 0 && config.phase == Phase::Active,
        "topology": format!("{:?}", config.birth.topology).to_lowercase(),
        "durable": config.birth.durable,
        "log_only": !config.birth.executes,
        "data_bytes": config.birth.data_bytes,
        "ring_bytes": config.birth.ring_bytes,
        "locks": config.birth.locks,
        "members": members,
        "waits_for": waits_for(config, view),
        "put_back": view.put_back().map(|found| json!({ "member": found.member.0, "epoch": found.been.0 })),
        "clients": clients,
        "bad": view.bad,
    })
}
