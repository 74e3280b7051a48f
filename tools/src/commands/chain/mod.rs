//! `chain`: replication groups.

mod bench;
mod create;
mod members;
mod serve;
mod status;
mod verify;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use offload_chain::config::{self, Event, Item, Reply, Request, Store};
use offload_chain::host::Timing;

use crate::cli::chain::{ChainCommand, StoreOption, TimingOptions};

/// How long a store may take to answer.
const STORE_PATIENCE: Duration = Duration::from_secs(10);

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

fn open(store: &StoreOption) -> Result<Box<dyn Store + Send>> {
    config::open(&store.store).with_context(|| format!("cannot use the store {}", store.store))
}

fn ask(store: &mut dyn Store, request: Request) -> Result<Reply> {
    let own = store.submit(request);
    let deadline = Instant::now() + STORE_PATIENCE;
    loop {
        match store.poll() {
            Some(Event::Answer(ticket, answer)) if ticket == own => return Ok(answer?),
            Some(_) => {}
            None if Instant::now() >= deadline => {
                bail!("the store did not answer within {STORE_PATIENCE:?}: is it there?")
            }
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    }
}

fn list(store: &mut dyn Store) -> Result<Vec<Item>> {
    let prefix = String::new();
    match ask(store, Request::List { prefix })? {
        Reply::Items(items, _) => Ok(items),
        other => bail!("the store answered a list with {other:?}"),
    }
}

impl TimingOptions {
    fn timing(&self) -> Timing {
        Timing {
            period: self.period.max(Duration::from_millis(1)),
            misses: self.misses,
            ..Timing::default()
        }
    }
}
