//! `serve`: runs a target until it is told to end, or there is nothing left that it serves.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use sd_notify::NotifyState;
use serde_json::json;
use signal_hook::iterator::{Handle, Signals};
use syslog_tracing::{Facility, Options, Syslog};
use tracing::{error, info, warn};
use tracing_subscriber::EnvFilter;

use super::interrupt;
use crate::cli;
use crate::target::{
    Predecessor, Prepared, Replacement, Settings, Target, check_devices, check_tenants,
};
use crate::{descriptors, devices, unsaid};

/// What is logged unless FLASHNET_LOG says otherwise.
const LOG: &str = "info";

/// Between two words about a target that takes long to make room for this one.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long a target of which a part has ended by itself may take to close the volume.
const LAST_PATIENCE: Duration = Duration::from_secs(15);

/// Why a target ends.
#[derive(Debug)]
enum End {
    Signal(i32),
    /// Another target takes over.
    Replaced(Replacement),
    /// Nobody can reach it any more.
    Unmounted,
    /// Because this has ended by itself, which should not be.
    Failed(&'static str),
}

/// Runs the command.
pub(super) fn run(options: &cli::Serve, json: bool) -> Result<()> {
    start_log(options.background);
    descriptors::raise_limit();
    let settings = Settings::new(options)?;
    // A mount is not left behind dead by a terminal that is closed.
    let mut signals = Signals::new(interrupt::ending())?;
    let opening = Opening::new()?;
    let names = devices::names(&settings.devices);
    tell_manager(&[NotifyState::Status(&format!("opening {names}"))]);
    let predecessor = match options.replace {
        true => {
            // It remembers what this target would fail on when the other has ended.
            check_tenants(&settings.devices, &settings.tenants)?;
            check_devices(&settings.devices, settings.degraded)?;
            Predecessor::find(&settings.devices)?
        }
        false => None,
    };
    let offered = predecessor.as_ref().map(Predecessor::sockets).transpose()?;
    let in_the_way = |error: anyhow::Error| match options.replace {
        false if matches!(Predecessor::find(&settings.devices), Ok(Some(_))) => {
            error.context(match options.background {
                false => format!("a target serves {names}, and --replace takes over from it"),
                true => format!("a target serves {names} already"),
            })
        }
        _ => error,
    };
    let prepared = Prepared::new(&settings, offered).map_err(in_the_way)?;
    if let Some(predecessor) = predecessor {
        make_room(predecessor, &mut signals, options.background)?;
    }
    let opening = opening.begins().context("cannot start a thread")?;
    let target = Target::start_on(&settings, prepared).map_err(in_the_way);
    drop(opening);
    let target = target?;
    announce(&target, &names, options.background, json)?;
    let end = wait(&mut signals, &target, options.background);
    finish(target, end, signals)
}

/// The target that served the volume so far closes it.
fn make_room(predecessor: Predecessor, signals: &mut Signals, in_background: bool) -> Result<()> {
    if signals.pending().next().is_some() {
        bail!("interrupted; the running target goes on");
    }
    let mut told = Duration::ZERO;
    predecessor.replace(|waited| {
        if waited >= told + PATIENCE {
            told = waited;
            if in_background {
                // The log is not where the caller looks.
                unsaid::complain("the running target is still closing the volume");
            }
            info!(
                seconds = waited.as_secs(),
                "the running target is still closing the volume"
            );
            tell_manager(&[
                NotifyState::ExtendTimeoutUsec(2 * PATIENCE.as_micros() as u32),
                NotifyState::Status("waiting for the running target to close the volume"),
            ]);
        }
        signals.pending().next().is_none()
    })
}

/// Says where the target can be reached, to whoever started it.
fn announce(target: &Target, names: &str, in_background: bool, json: bool) -> Result<()> {
    let address = target.address().map(|address| address.to_string());
    let tls_address = target.tls_address().map(|address| address.to_string());
    let place = match (&address, &tls_address) {
        (None, None) => "no address".to_owned(),
        (Some(at), None) => at.clone(),
        (None, Some(tls)) => format!("{tls} (TLS)"),
        (Some(at), Some(tls)) => format!("{at} and {tls} (TLS)"),
    };
    let line = match json {
        true => json!({
            "address": address,
            "tls_address": tls_address,
            "metrics_address": target.metrics_address().map(|address| address.to_string()),
        })
        .to_string(),
        false => format!("serving {names} on {place}"),
    };
    let mut output = match in_background {
        true => leave_caller().context("cannot go into the background")?,
        false => io::stdout().as_fd().try_clone_to_owned()?.into(),
    };
    // Nobody reads it if whoever waited has been interrupted, which then comes as a signal.
    let _ = writeln!(output, "{line}");
    drop(output);
    tell_manager(&[
        NotifyState::Ready,
        NotifyState::Status(&format!("serving {names} on {place}")),
    ]);
    Ok(())
}

/// Closes the volume, or leaves it to the target that takes over.
fn finish(target: Target, end: End, mut signals: Signals) -> Result<()> {
    let why = match &end {
        End::Signal(signal) => format!("signal {signal}"),
        End::Replaced(_) => "another target takes over".to_owned(),
        End::Unmounted => "unmounted".to_owned(),
        End::Failed(what) => format!("{what} has ended by itself"),
    };
    info!(
        why,
        "ending; a signal from now on ends at once, as a power cut would"
    );
    tell_manager(&[
        NotifyState::Stopping,
        NotifyState::Status("closing the volume"),
    ]);
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            std::process::exit(128 + signal);
        }
    });
    match end {
        End::Replaced(replacement) => target.hand_over(replacement),
        End::Failed(what) => {
            end_in_any_case(what);
            target.stop()?;
            bail!("the target ended: {what} had ended by itself")
        }
        End::Signal(_) | End::Unmounted => target.stop(),
    }
}

/// Signals while a volume is opened, which takes as long as its devices do. With the first one it is opened to be closed in order; a
/// second one ends the process at once: recovery may be cut off anywhere (I6).
struct Opening(Signals);

/// While this is there, they are heard.
struct Hearing(Handle);

impl Opening {
    fn new() -> io::Result<Self> {
        Signals::new(interrupt::ending()).map(Self)
    }

    fn begins(mut self) -> io::Result<Hearing> {
        let hearing = Hearing(self.0.handle());
        std::thread::Builder::new().spawn(move || {
            let mut signals = self.0.forever();
            if signals.next().is_none() {
                return;
            }
            info!("ending when the volume is open; another signal ends at once");
            tell_manager(&[NotifyState::Status("ending when the volume is open")]);
            if let Some(signal) = signals.next() {
                std::process::exit(128 + signal);
            }
        })?;
        Ok(hearing)
    }
}

impl Drop for Hearing {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Whoever waits for what `what` had under way waits for ever, and closing the volume may be among them. Without that nothing is lost that
/// was acknowledged, as in a power cut.
fn end_in_any_case(what: &'static str) {
    std::thread::spawn(move || {
        std::thread::sleep(LAST_PATIENCE);
        error!(
            "the volume can not be closed, as {what} has ended by itself: the target ends as in a power cut"
        );
        std::process::exit(1);
    });
}

/// Waits for a reason to end.
fn wait(signals: &mut Signals, target: &Target, background: bool) -> End {
    let mut mount_seen = true;
    loop {
        if let Some(signal) = signals.pending().next() {
            return End::Signal(signal);
        }
        if let Some(what) = target.failed() {
            return End::Failed(what);
        }
        if mount_seen && target.has_lost_mount() {
            if background || !target.is_reachable() {
                return End::Unmounted;
            }
            mount_seen = false;
            warn!("somebody has unmounted the volume; it is still served remotely");
        }
        if let Some(replacement) = target.asked_to_end(Duration::from_millis(50)) {
            return End::Replaced(replacement);
        }
    }
}

/// To standard error, or to syslog when there will be none.
fn start_log(background: bool) {
    let filter = EnvFilter::try_from_env("FLASHNET_LOG").unwrap_or_else(|_| EnvFilter::new(LOG));
    // Nobody hears of a log that can not be written, on a full disk or to a reader that is gone; to say so there as well is a panic.
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .log_internal_errors(false);
    let syslog = || Syslog::new(c"flashnet", Options::LOG_PID, Facility::Daemon);
    match background.then(syslog).flatten() {
        // syslog has levels and times of its own.
        Some(syslog) => log
            .with_writer(syslog)
            .with_ansi(false)
            .with_level(false)
            .without_time()
            .init(),
        None => log
            .with_writer(io::stderr)
            .with_ansi(io::stderr().is_terminal())
            .init(),
    }
}

/// From now on this process neither ends with its caller nor holds anything of it, but for its standard output, which
/// is returned: what is read from the standard streams is empty, and what is written to them is gone.
fn leave_caller() -> io::Result<File> {
    // SAFETY: prctl with this request takes a number.
    if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    std::env::set_current_dir("/")?;
    let output = io::stdout().as_fd().try_clone_to_owned()?;
    let null = File::options().read(true).write(true).open("/dev/null")?;
    for stream in 0..3 {
        // SAFETY: `null` is open, and the standard streams belong to nobody else here.
        if unsafe { libc::dup2(null.as_raw_fd(), stream) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(output.into())
}

/// Tells systemd, if it is what has started this process (sd_notify(3)).
fn tell_manager(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        warn!(%error, "cannot tell the service manager");
    }
}
