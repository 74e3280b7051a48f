//! The commands, one file each.

mod bench;
mod chain;
mod copy;
mod demo;
mod fsck;
mod fsck_meter;
mod ftl;
mod inspect;
mod install;
mod interrupt;
mod ledger;
mod litmus;
mod mkfs;
mod mount;
mod mounted;
mod names;
mod part;
mod peer;
mod perf;
mod quota;
mod region;
mod registration;
mod remote;
mod remount;
mod resize;
mod scratch;
mod scrub;
mod serve;
mod show;
mod snapshot;
mod soak;
mod spawn;
mod token;
mod top;
mod torture;
mod tree;
mod umount;
mod utab;
mod volume;

use anyhow::Result;

use crate::cli::{Cli, Command};

pub use fsck::Damaged;

/// What came of a command that has not failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// What was asked for.
    AllWell,
    /// The volume was damaged, and is not any more.
    Repaired,
}

/// Runs the command that was asked for.
pub fn run(cli: &Cli) -> Result<Done> {
    let json = cli.json;
    let done = match &cli.command {
        Command::Demo(options) => demo::run(options, json),
        Command::Mkfs(options) => mkfs::run(options, json),
        Command::Serve(options) => serve::run(options, json),
        Command::Mount(options) => mount::run(options),
        Command::Umount(options) => umount::run(options),
        Command::Fsck(options) => return fsck::run(options, json),
        Command::Quota(command) => quota::run(command, json),
        Command::Snapshot(command) => snapshot::run(command, json),
        Command::Resize(options) => resize::run(options, json),
        Command::Ls(options) => remote::ls(options, json),
        Command::Stat(options) => remote::stat(options, json),
        Command::Get(options) => copy::get(options, json),
        Command::Put(options) => copy::put(options, json),
        Command::Rm(options) => names::rm(options, json),
        Command::Mkdir(options) => names::mkdir(options, json),
        Command::Mv(options) => names::mv(options, json),
        Command::Inspect(options) => inspect::run(options, json),
        Command::Scrub(options) => scrub::run(options, json),
        Command::Ftl(command) => ftl::run(command, json),
        Command::Perf(options) => perf::run(options, json),
        Command::Bench(command) => bench::run(command, json),
        Command::Soak(options) => soak::run(options, json),
        Command::Litmus(options) => litmus::run(options, json),
        Command::Peer(command) => peer::run(command, json),
        Command::Chain(command) => chain::run(command, json),
        Command::Token(command) => token::run(command, json),
        Command::Region(command) => region::run(command, json),
        Command::Top(options) => top::run(options, json),
        Command::Torture(command) => torture::run(command, json),
        Command::Completion(options) => install::completion(options),
        Command::Man(options) => install::man(options),
        Command::PerfServer(options) => perf::serve(options),
    };
    done.map(|()| Done::AllWell)
}
