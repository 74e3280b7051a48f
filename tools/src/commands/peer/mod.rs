//! `flashnet peer`: the other side of the programs that people try an RDMA network with.
//!
//! Each program is played as the client or as the server, over this endpoint, with whatever is at the other end: a kernel
//! driver, a card, or this program again. Data are checked where the original checks them, and where it can be done.

mod cmatose;
mod link;
mod manner;
mod matrix;
mod perftest;
mod program;
mod rdma;
mod rping;
mod rsocket;
mod rstream;

use std::net::{SocketAddr, TcpListener, ToSocketAddrs};

use anyhow::{Context, Result, bail};
use serde_json::json;

use self::manner::{Agreed, Manner};
use self::program::{Place, Task};
use crate::cli::peer::{PeerCommand, PeerOptions, Program};

/// Runs the command.
pub(super) fn run(command: &PeerCommand, json: bool) -> Result<()> {
    match command {
        PeerCommand::Rping(options) => play(Program::Rping, options, json),
        PeerCommand::Cmatose(options) => play(Program::Cmatose, options, json),
        PeerCommand::Rdma(options) => play(Program::Rdma, options, json),
        PeerCommand::WriteBw(options) => play(Program::WriteBw, options, json),
        PeerCommand::ReadBw(options) => play(Program::ReadBw, options, json),
        PeerCommand::SendBw(options) => play(Program::SendBw, options, json),
        PeerCommand::Perftest { test, options } => play(test.program(), options, json),
        PeerCommand::Rstream(options) => play(Program::Rstream, options, json),
        PeerCommand::Matrix(options) => matrix::run(options, json),
    }
}

fn play(program: Program, options: &PeerOptions, json: bool) -> Result<()> {
    if program == Program::SendBw && options.count > perftest::SENDS_MAX {
        bail!(
            "ib_send_bw works without credits here, so --count is at most {}",
            perftest::SENDS_MAX
        );
    }
    let manner = Manner::of(options);
    let task = Task::new(program, &manner, options.count, options.size)
        .with_connections(options.connections);
    match (&options.connect, &options.listen) {
        (Some(address), _) => task.run(&Place::Connect(resolve(address)?))?,
        (None, Some(address)) => {
            let listener = TcpListener::bind(address)
                .with_context(|| format!("cannot listen at {address}"))?;
            let address = listener.local_addr()?;
            match json {
                true => println!("{}", json!({ "address": address.to_string() })),
                false => println!("{program} listens at {address}"),
            }
            task.run(&Place::Listen(&listener))?;
        }
        (None, None) => bail!("--connect or --listen is needed"),
    }
    let agreed = task.agreed();
    if json {
        println!(
            "{}",
            json!({ "program": program.to_string(), "connections": agreed.len() })
        );
    } else {
        let last = agreed.last().map(describe).unwrap_or_default();
        println!("{program}: done, {} connections ({last})", agreed.len());
    }
    Ok(())
}

fn describe(agreed: &Agreed) -> String {
    let rtr = match agreed.offered {
        None => "no ready-to-receive frame",
        Some(kinds) => match (kinds.write, kinds.read) {
            (true, true) => "ready-to-receive by WRITE or READ",
            (true, false) => "ready-to-receive by WRITE",
            (false, true) => "ready-to-receive by READ",
            (false, false) => "ready-to-receive by SEND",
        },
    };
    let crc = if agreed.crc { "on" } else { "off" };
    format!("MPA revision {}, CRC {crc}, {rtr}", agreed.revision)
}

fn resolve(address: &str) -> Result<SocketAddr> {
    let mut found = address
        .to_socket_addrs()
        .with_context(|| format!("{address} is no HOST:PORT"))?;
    found
        .next()
        .with_context(|| format!("{address} has no address"))
}
