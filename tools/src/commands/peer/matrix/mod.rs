//! `flashnet peer matrix`: every program in every manner against the kernel's soft-iWARP in a guest.
//!
//! One guest is booted for all of it. The driver's parameters are changed between groups of cells that share them; within a
//! group several programs run at the same time, each on its own port. Should the guest's network fail, by itself, another
//! guest is booted for what is left.

mod cell;
mod network;
mod report;

use std::collections::VecDeque;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tracing::warn;

use self::cell::{Cell, Kernel, Setup};
use self::report::Report;
use super::link::Unheard;
use super::program::{Place, Task};
use crate::cli::peer::{PeerMatrix, Program};
use crate::commands::interrupt::Interrupt;
use crate::siw::{self, Guest, GuestOptions, Ran};

/// First of the ports that programs in the guest listen on; each thread has its own.
const FIRST_PORT: u16 = 20_000;
/// Time for a program in the guest to end when its peer has.
const FAREWELL: Duration = Duration::from_secs(30);
/// A small command in the guest.
const SOON: Duration = Duration::from_secs(60);
/// Guests booted for one table, at most.
const GUESTS_MAX: u32 = 3;
/// Lines of the kernel's log that must not be there.
const KERNEL_TROUBLE: &str = "BUG|WARNING|Oops|Call Trace|general protection";

/// Runs the command.
pub(super) fn run(options: &PeerMatrix, json: bool) -> Result<()> {
    let interrupt = Interrupt::install()?;
    let rig = options.rig.clone().unwrap_or_else(siw::rig);
    let started = Instant::now();
    let mut guests = 1;
    let mut guest = start(&rig, options, guests)?;
    let programs = match options.programs.as_slice() {
        [] => &Program::ALL,
        chosen => chosen,
    };
    let mut report = Report::new(programs);
    let mut trouble = String::new();
    for crc in [false, true] {
        for setup in Setup::ALL {
            let mut cells = Cell::group(programs, crc, setup);
            loop {
                set_parameters(&guest, crc, setup)?;
                let played = run_group(&guest, options, &interrupt, cells)?;
                for (cell, outcome) in played.done {
                    report.add(cell, outcome);
                }
                cells = played.left;
                if cells.is_empty() {
                    break;
                }
                trouble += &kernel_trouble(&guest)?;
                ensure!(
                    guests < GUESTS_MAX,
                    "the network of {guests} guests has failed, one after the other: plain TCP does not get through"
                );
                guests += 1;
                warn!("plain TCP does not get through to the guest any more: another guest");
                drop(guest);
                guest = start(&rig, options, guests)?;
            }
        }
    }
    trouble += &kernel_trouble(&guest)?;
    report.took = started.elapsed();
    if json {
        println!("{}", report.json());
    } else {
        println!("{}", report.table());
    }
    ensure!(
        trouble.is_empty(),
        "the guest's kernel is in trouble: {trouble}"
    );
    match report.failed() {
        0 => Ok(()),
        n => bail!("{n} of {} failed", report.len()),
    }
}

/// Boots the `number`th guest, whose frames are recorded in a file of their own.
fn start(rig: &Path, options: &PeerMatrix, number: u32) -> Result<Guest> {
    let ports = (0..options.jobs as u16).map(|job| FIRST_PORT + job);
    let pcap = options.pcap.as_ref().map(|path| match number {
        1 => path.clone(),
        _ => path.with_extension(format!("{number}.pcap")),
    });
    let options = GuestOptions {
        ports: ports.collect(),
        pcap,
    };
    Ok(Guest::start(rig, &options)?)
}

fn kernel_trouble(guest: &Guest) -> Result<String> {
    let log = guest.run(&format!("dmesg | grep -E '{KERNEL_TROUBLE}'"), SOON)?;
    Ok(log.output)
}

/// How the driver sets up connections from now on.
fn set_parameters(guest: &Guest, crc: bool, setup: Setup) -> Result<()> {
    let mut command = String::from("cd /sys/module/siw/parameters");
    for (name, value) in setup.parameters(crc) {
        command += &format!(" && echo {value} >{name}");
    }
    let ran = guest.run(&command, SOON)?;
    ensure!(ran.status == 0, "{command}: {}", ran.output);
    Ok(())
}

/// How a cell ended.
type Outcome = Result<Duration, String>;

/// What became of a group of cells.
#[derive(Default)]
struct Played {
    done: Vec<(Cell, Outcome)>,
    /// Those that nothing can be said of, because the guest's network has failed.
    left: VecDeque<Cell>,
}

fn run_group(
    guest: &Guest,
    options: &PeerMatrix,
    interrupt: &Interrupt,
    cells: VecDeque<Cell>,
) -> Result<Played> {
    let waiting = Mutex::new(cells);
    let done = Mutex::new(Played::default());
    let is_dead = AtomicBool::new(false);
    let work = |port: u16| -> Result<()> {
        loop {
            interrupt.check()?;
            let next = waiting
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .pop_front();
            let Some(cell) = next else {
                return Ok(());
            };
            let played = || done.lock().unwrap_or_else(PoisonError::into_inner);
            if is_dead.load(Ordering::Relaxed) {
                played().left.push_back(cell);
                continue;
            }
            let started = Instant::now();
            let mut outcome = run_cell(guest, cell, port, *options.timeout);
            // A program that serves one client takes a connection for it that the forwarding of ports has lost meanwhile,
            // and hears no other. Nothing was said, so nothing went wrong between the two.
            if outcome.as_ref().is_err_and(|error| error.is::<Unheard>()) {
                warn!(?cell, "nobody was heard: once more");
                outcome = run_cell(guest, cell, port, *options.timeout);
            }
            if outcome.is_err() && !network::is_alive(guest) {
                is_dead.store(true, Ordering::Relaxed);
                played().left.push_back(cell);
                continue;
            }
            let outcome = outcome
                .map(|()| started.elapsed())
                .map_err(|error| format!("{error:#}"));
            played().done.push((cell, outcome));
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..options.jobs as u16)
            .map(|job| scope.spawn(move || work(FIRST_PORT + job)))
            .collect();
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().unwrap_or_else(|_| bail!("a thread panicked")))
    })?;
    Ok(done.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// Plays one cell; good if both sides say that it ended as it must.
fn run_cell(guest: &Guest, cell: Cell, port: u16, patience: Duration) -> Result<()> {
    let manner = cell.manner(patience);
    let task = Task::new(cell.program, &manner, cell.count(), cell.size())
        .with_connections(cell.connections());
    let (played, ran) = match cell.kernel {
        Kernel::Client => {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            let port = listener.local_addr()?.port();
            let running = guest.spawn(&cell.command(port, patience))?;
            let played = task.run(&Place::Listen(&listener));
            (played, running.wait(FAREWELL)?)
        }
        Kernel::Server => {
            let address = guest
                .address(port)
                .context("a port that is not forwarded")?;
            let running = guest.spawn(&cell.command(port, patience))?;
            let played = task.run(&Place::Connect(address));
            (played, running.wait(FAREWELL)?)
        }
    };
    judge(cell, &task, played, &ran).with_context(|| {
        let said: Vec<&str> = ran.output.lines().collect();
        let last = said.len().saturating_sub(5);
        format!(
            "status {} in the guest, which said: {}",
            ran.status,
            said[last..].join(" | ")
        )
    })
}

fn judge(cell: Cell, task: &Task<'_>, played: Result<()>, ran: &Ran) -> Result<()> {
    let agreed = task.agreed();
    if agreed.is_empty() {
        let nothing = || anyhow::anyhow!("nothing ran");
        return Err(played
            .err()
            .unwrap_or_else(nothing)
            .context("no connection"));
    }
    for agreed in &agreed {
        ensure!(agreed.fits(task.manner), "set up as {agreed:?}");
    }
    if cell.must_fail() {
        ensure!(
            played.is_err(),
            "READs worked, of which soft-iWARP allows none here"
        );
        return Ok(());
    }
    played?;
    if let Some(complaint) = cell.complaint(ran) {
        bail!("the program in the guest complains: {complaint}");
    }
    Ok(())
}
