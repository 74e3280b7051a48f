//! `chain`: replication groups.

mod bench;
mod create;
mod members;
mod serve;
mod status;
mod verify;

use std::time::Duration;

use anyhow::{Context, Result, bail};
use offload_chain::config::{self, Store};
use offload_chain::host::Timing;

use crate::cli::chain::{ChainCommand, StoreOption, TimingOptions};

/// Between heartbeats.
const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_secs(10);

/// Runs the command.
pub(super) fn run(command: &ChainCommand, json: bool) -> Result<()> {
    match command {
        ChainCommand::Create(options) => create::run(options, json),
        ChainCommand::Status(options) => status::run(options, json),
        ChainCommand::Add(options) => members::add(options, json),
        ChainCommand::Remove(options) => members::remove(options, json),
        ChainCommand::Serve(options) => serve::run(options, json),
        ChainCommand::Bench(options) => bench::run(options, json),
        ChainCommand::Verify(options) => verify::run(options, json),
    }
}

/// Opens a store that is there.
fn open(store: &StoreOption) -> Result<Box<dyn Store + Send>> {
    // Opening a file makes what is missing, which is nobody's wish but of those who make a group.
    if config::file_of(&store.store).is_some_and(|path| !path.exists()) {
        bail!(
            "there is no group in {}: create one first, by `flashnet chain create`",
            store.store
        );
    }
    open_or_make(store)
}

fn open_or_make(store: &StoreOption) -> Result<Box<dyn Store + Send>> {
    config::open(&store.store).with_context(|| format!("cannot use the store {}", store.store))
}

impl TimingOptions {
    fn timing(&self) -> Result<Timing> {
        if !(SHORTEST..=LONGEST).contains(&self.period) {
            bail!(
                "--period {:?}: {SHORTEST:?} to {LONGEST:?} are possible",
                self.period
            );
        }
        Ok(Timing {
            period: self.period,
            misses: self.misses,
            ..Timing::default()
        })
    }
}
