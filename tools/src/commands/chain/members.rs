//! `chain add`, `chain remove`: who may belong to a group.

use anyhow::{Result, bail};
use offload_chain::config::{Expect, Reply, Request, ask, list};
use offload_chain::group::MEMBERS_MAX;
use offload_chain::membership::{CONFIG, Configuration, MemberId, decode, encode};
use serde_json::json;

use crate::cli::chain::ChainMembers;

pub(super) fn add(options: &ChainMembers, json: bool) -> Result<()> {
    change(options, json, |config, id| {
        if config.members.contains(&id) {
            bail!("member {id} belongs to the group already");
        }
        if config.members.len() == MEMBERS_MAX {
            bail!("a group has at most {MEMBERS_MAX} members");
        }
        config.members.push(id);
        Ok(())
    })
}

pub(super) fn remove(options: &ChainMembers, json: bool) -> Result<()> {
    change(options, json, |config, id| {
        let Some(at) = config.members.iter().position(|member| *member == id) else {
            bail!("member {id} does not belong to the group");
        };
        config.members.remove(at);
        let stays = |id: &MemberId| config.members.contains(id);
        let mut active = config.active_chain.iter().map(|seat| seat.id);
        if !config.active_chain.is_empty() && !active.any(|id| stays(&id)) {
            bail!(
                "nobody would be left who has what was acknowledged: add others, and wait until they have joined"
            );
        }
        if config.members.is_empty() {
            bail!("a group has one member at least");
        }
        Ok(())
    })
}

fn change(
    options: &ChainMembers,
    json: bool,
    change: impl Fn(&mut Configuration, MemberId) -> Result<()>,
) -> Result<()> {
    let mut store = super::open(&options.store)?;
    let config = loop {
        let items = list(&mut *store, "")?;
        let Some(item) = items.iter().find(|item| item.key == CONFIG) else {
            bail!("there is no group in {}", options.store);
        };
        let mut config: Configuration = decode(item)?;
        for id in &options.members {
            change(&mut config, MemberId(*id))?;
        }
        let put = Request::Put {
            key: CONFIG.to_owned(),
            value: encode(&config),
            expect: Expect::Revision(item.revision),
            lease: None,
        };
        match ask(&mut *store, put)? {
            Reply::Done(_) => break config,
            // A controller was faster.
            Reply::Conflict(_) => {}
            other => bail!("the store answered a put with {other:?}"),
        }
    };
    if json {
        let members: Vec<u32> = config.members.iter().map(|id| id.0).collect();
        println!("{}", json!({ "members": members }));
    }
    Ok(())
}
