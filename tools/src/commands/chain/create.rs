//! `chain create`: a group that has never been active.

use anyhow::{Context, Result, bail};
use offload_chain::config::{Expect, Reply, Request, Revision, ask};
use offload_chain::group::{MEMBERS_MAX, Topology};
use offload_chain::membership::{Birth, CONFIG, Configuration, MemberId, encode};
use serde_json::json;

use crate::cli::chain::{ChainCreate, TopologyOption};
use crate::commands::show;

pub(super) fn run(options: &ChainCreate, json: bool) -> Result<()> {
    let mut members: Vec<MemberId> = options.members.iter().copied().map(MemberId).collect();
    members.sort_unstable();
    members.dedup();
    if members.len() != options.members.len() {
        bail!("--members names one of them twice");
    }
    if members.len() > MEMBERS_MAX {
        bail!("a group has at most {MEMBERS_MAX} members");
    }
    let birth = Birth {
        locks: options.locks,
        ring_bytes: options.ring.as_u64(),
        data_bytes: options.data.as_u64(),
        salt: rand::random(),
        token: rand::random(),
        topology: match options.topology {
            TopologyOption::Chain => Topology::Chain,
            TopologyOption::Star => Topology::Star,
        },
        executes: !options.log_only,
        durable: !options.volatile,
    };
    let layout = birth.layout().context("such a group can not be")?;
    let mut store = super::open_or_make(&options.store)?;
    let config = Configuration::new(birth, members);
    let put = Request::Put {
        key: CONFIG.to_owned(),
        value: encode(&config),
        expect: Expect::Revision(Revision::ABSENT),
        lease: None,
    };
    match ask(&mut *store, put)? {
        Reply::Done(_) => {}
        Reply::Conflict(_) => bail!(
            "there is a group in {} already: `flashnet chain status` shows it; take another path or prefix",
            options.store
        ),
        other => bail!("the store answered a put with {other:?}"),
    }
    if json {
        let members: Vec<u32> = config.members.iter().map(|id| id.0).collect();
        println!("{}", json!({ "members": members, "bytes": layout.size() }));
    } else {
        println!(
            "a group of {} members, {} each; it becomes active when all of them serve:\n  flashnet chain serve --store {} --member {} --listen ADDR{}",
            config.members.len(),
            show::bytes(layout.size()),
            options.store.quoted(),
            config.members.first().map_or(0, |id| id.0),
            if birth.durable { " --memory PATH" } else { "" },
        );
    }
    Ok(())
}
