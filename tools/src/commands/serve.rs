//! `serve`: runs a target until it is told to end.

use std::time::Duration;

use std::io::IsTerminal;

use anyhow::{Result, bail};
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tracing::{info, warn};
use tracing_subscriber::EnvFilter;

use crate::cli;
use crate::target::{Settings, Target};

/// What is logged unless FLASHNET_LOG says otherwise. The FUSE library warns of mounts that have gone before it removes
/// them, and of answers to requests that were interrupted; neither is news.
const LOG: &str = "info,fuser::mnt=error,fuser::reply=off";

/// Runs the command.
pub(super) fn run(options: &cli::Serve, json: bool) -> Result<()> {
    let filter = EnvFilter::try_from_env("FLASHNET_LOG").unwrap_or_else(|_| EnvFilter::new(LOG));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    let settings = Settings::new(options)?;
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let target = Target::start(&settings)?;
    if json {
        println!("{}", json!({ "address": target.address().to_string() }));
    } else {
        println!(
            "serving {} on {}",
            crate::devices::names(&settings.devices),
            target.address()
        );
    }
    let mut mount_seen = true;
    let signal = loop {
        if let Some(signal) = signals.pending().next() {
            break Some(signal);
        }
        if target.has_failed() {
            break None;
        }
        if mount_seen && target.has_lost_mount() {
            mount_seen = false;
            warn!("somebody has unmounted the volume; it is still served remotely");
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    info!(
        ?signal,
        "ending; another signal ends at once, as a power cut would"
    );
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            std::process::exit(128 + signal);
        }
    });
    target.stop()?;
    if signal.is_none() {
        bail!("the target ended by itself");
    }
    Ok(())
}
