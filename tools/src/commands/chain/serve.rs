//! `chain serve`: a member, until it is told to end.

use std::io::{self, IsTerminal, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use offload_chain::host::{Host, HostSettings, Timing};
use offload_chain::membership::{MemberId, SlowPolicy};
use sd_notify::NotifyState;
use serde_json::{Value, json};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use tracing::{info, warn};
use tracing_subscriber::EnvFilter;

use crate::cli::chain::ChainServe;
use crate::commands::interrupt;
use crate::descriptors;
use crate::exporter::Exporter;
use crate::perf::hyperloop::Priority;
use crate::target::listening::{address_of, listen_on};

use super::watched::{Looker, MemberMeters};

/// Longest lease for reads: nobody waits for the end of more.
const READ_LEASE_MAX: Duration = Duration::from_secs(24 * 3600);
/// Between looks whether the member has ended by itself.
const LOOK: Duration = Duration::from_millis(50);

pub(super) fn run(options: &ChainServe, json: bool) -> Result<()> {
    start_log();
    descriptors::raise_limit();
    let timing = timing(options)?;
    let tls = options.tls.read()?;
    let store = super::open(&options.store)?;
    // Before the group hears of the member: it has the port, or does not start.
    let metrics = listen_on(options.metrics, None, "--metrics")?;
    let metrics_address = address_of(metrics.as_ref())?;
    let started = Instant::now();
    let meters = Arc::new(MemberMeters::default());
    let settings = HostSettings {
        member: MemberId(options.member),
        listen: options.listen,
        advertise: options.advertise.clone(),
        memory: options.memory.clone(),
        timing,
        slow: SlowPolicy {
            factor: options.slow_factor,
            floor: options.slow_floor,
            remove: options.remove_slow,
            ..SlowPolicy::default()
        },
        spin: Duration::from_micros(options.poll),
        on_engine_thread: Some(Box::new(|| {
            // It stands for a NIC, which no other program can keep waiting.
            if let Err(error) = Priority::Endpoint.take() {
                info!(%error, "the engine has ordinary priority");
            }
        })),
        watcher: metrics.is_some().then(|| Arc::clone(&meters) as _),
        tls,
    };
    let mut host = Host::start(settings, store)?;
    let looker = Looker {
        started,
        member: options.member,
        address: host.address(),
        meters,
    };
    let state = host.state_handle();
    let tell = Arc::new(move || looker.status(state.get()));
    let exporter = metrics.map(|listener| Exporter::start(listener, tell));
    let exporter = exporter.transpose();
    let _exporter = exporter.context("cannot answer monitoring systems")?;
    // Not before: a store that a stopped process holds up answers nobody, and there is nothing yet to be ended in order.
    let mut signals = Signals::new(interrupt::ending())?;
    // Nobody reads it if whoever waited has been interrupted, which then comes as a signal.
    let _ = writeln!(
        io::stdout(),
        "{}",
        match json {
            true => as_json(options.member, host.address(), metrics_address).to_string(),
            false => in_words(options.member, host.address(), metrics_address),
        }
    );
    // Without a service manager there is nobody to tell.
    let _ = sd_notify::notify(&[NotifyState::Ready]);
    loop {
        if let Some(signal) = signals.pending().next() {
            info!(signal, "ending");
            break;
        }
        if let Some(why) = host.ended() {
            bail!("member {} has stopped: {why}", options.member);
        }
        std::thread::sleep(LOOK);
    }
    // It takes leave of a store that may not answer: a second signal ends it at once, like a crash.
    std::thread::Builder::new().spawn(move || {
        for signal in signals.forever() {
            let _ = emulate_default_handler(signal);
        }
    })?;
    host.stop();
    Ok(())
}

fn as_json(member: u32, listening: SocketAddr, metrics: Option<SocketAddr>) -> Value {
    json!({ "member": member, "listening": listening.to_string(), "metrics": metrics.map(|at| at.to_string()) })
}

fn in_words(member: u32, listening: SocketAddr, metrics: Option<SocketAddr>) -> String {
    let metrics = metrics.map_or_else(String::new, |at| format!(", metrics at {at}"));
    format!("member {member} listening on {listening}{metrics}")
}

fn timing(options: &ChainServe) -> Result<Timing> {
    let timing = Timing {
        patience: options.patience,
        media_patience: options.media_patience,
        read_lease: options.read_lease,
        ..options.timing.timing()?
    };
    if timing.patience < timing.period {
        bail!("--patience {:?}: not less than --period", timing.patience);
    }
    // It is extended with each heartbeat.
    if timing.read_lease < timing.period * 2 {
        bail!(
            "--read-lease {:?}: not less than two of --period",
            timing.read_lease
        );
    }
    if timing.read_lease > READ_LEASE_MAX {
        bail!("--read-lease {:?}: not more than a day", timing.read_lease);
    }
    Ok(timing)
}

fn start_log() {
    let filter = EnvFilter::try_from_env("FLASHNET_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        // A log that can not be written would be a panic otherwise.
        .log_internal_errors(false)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal());
    if log.try_init().is_err() {
        warn!("a log is kept already");
    }
}
