//! What was asked of `perf`, and whether that can be measured: what can not is said before anything is made.

use anyhow::{Result, bail, ensure};
use bytesize::ByteSize;
use clap::ValueEnum;
use clap::builder::PossibleValue;
use softrdma::driver::Spin;

use super::nbd::Store;
use crate::cli::{self, Baseline, Measure, Place};
use crate::descriptors;
use crate::perf::shape::{Direction, Shape};
use crate::perf::socket::Cache;
use crate::target::POOL_PER_CONNECTION;

/// Largest file.
const FILE_MAX: ByteSize = ByteSize::tib(16);
/// Largest memory of a client for what is in flight.
const IN_FLIGHT_MAX: ByteSize = ByteSize::gib(4);
/// Direct I/O is in multiples of this.
const SECTOR: usize = 512;
/// Connections of `--baseline few`.
pub(super) const FEW: usize = 16;
/// So many times as large as the pool is a file of which most has to be read from the disk.
const COLD: u64 = 4;

/// What has no meaning for what is measured is refused: whoever has said it would take the figures for others.
pub(super) fn meaning(options: &cli::Perf) -> Result<()> {
    use Measure::{Disk, Lat, Raw, Reg, Write};
    let usual = cli::Perf::usual();
    let (measure, rival) = (options.measure, options.baseline);
    let loads = measure != Reg;
    let ours = only_ours(options) || measure == Lat;
    let served = matches!(rival, Some(Baseline::Socket | Baseline::Nbd));
    let plain = measure == Disk || served || rival == Some(Baseline::Disk);
    let raw = measure == Raw || rival == Some(Baseline::Raw);
    let writes = measure == Write || loads && options.direction == Direction::Write;
    let (file, starts) = (ours || plain, starts(options));
    let said = [
        ("--size", options.size != usual.size, loads),
        ("--depth", options.depth != usual.depth, loads),
        (
            "--connections",
            options.connections != usual.connections,
            loads,
        ),
        ("--idle", options.idle != usual.idle, loads),
        ("--seconds", options.seconds != usual.seconds, loads),
        ("--direction", options.direction != usual.direction, loads),
        ("--sync", options.sync, writes),
        ("--rounds", options.rounds != usual.rounds, rival.is_some()),
        ("--device", options.device != usual.device, ours),
        ("--resident", options.resident, ours || served),
        ("--baseline-buffered", options.baseline_buffered, served),
        ("--file-size", options.file_size.is_some(), file),
        ("--pattern", options.pattern != usual.pattern, file),
        ("--pool", options.pool.is_some(), starts),
        (
            "--directory",
            options.directory.is_some(),
            starts || plain || measure == Reg,
        ),
        ("--crc", options.crc, ours),
        ("--poll", options.poll, ours || raw),
        ("--spin", options.spin != usual.spin, ours),
    ];
    for (option, is_said, has_meaning) in said {
        ensure!(
            !is_said || has_meaning,
            "{option} has no meaning for {}",
            what(options)
        );
    }
    Ok(())
}

/// What is measured, as it was asked for.
fn what(options: &cli::Perf) -> String {
    let name = |value: Option<PossibleValue>| value.map_or("".into(), |v| v.get_name().to_owned());
    let mut what = format!("`{}`", name(options.measure.to_possible_value()));
    if options.target.is_some() {
        what += " of a running target";
    }
    match options.baseline {
        Some(rival) => what += &format!(" beside `{}`", name(rival.to_possible_value())),
        None => what += " alone",
    }
    what
}

/// The shape of the load.
pub(super) fn shape(options: &cli::Perf) -> Result<Shape> {
    target(options)?;
    rival(options)?;
    ensure!(
        options.measure != Measure::Read || options.direction == Direction::Read,
        "--direction: it is for `lat`, `raw` and `disk`; what writes is `write`"
    );
    let size = options.size.as_u64() as usize;
    let (depth, connections) = match options.measure {
        Measure::Lat => (1, 1),
        _ => (options.depth, options.connections),
    };
    if !(1..=16 << 20).contains(&size) {
        bail!("operations of {} bytes: 1 byte to 16MiB are possible", size);
    }
    if !(1..=1024).contains(&depth) || !(1..=16_384).contains(&connections) {
        bail!("{connections} connections x depth {depth}: up to 16384 x 1024 are possible");
    }
    let in_flight = (connections * depth * size) as u64;
    if in_flight > IN_FLIGHT_MAX.as_u64() {
        let in_flight = ByteSize::b(in_flight);
        bail!("{in_flight} in flight, all connections together: {IN_FLIGHT_MAX} are possible");
    }
    if options.idle > 16_384 - connections || options.idle > 0 && !only_ours(options) {
        bail!(
            "{} idle connections: `read` and `write` can have up to 16384 in all",
            options.idle
        );
    }
    if !(0.1..=86_400.0).contains(&options.seconds) {
        bail!("{} seconds: 0.1 to 86400 are possible", options.seconds);
    }
    ensure!(
        *options.spin <= Spin::LONGEST,
        "--spin {}: {:?} is the most; with --poll nobody sleeps",
        options.spin,
        Spin::LONGEST
    );
    let file = options.file_size.unwrap_or(if options.resident {
        ByteSize::mib(64)
    } else {
        ByteSize::gib(1)
    });
    if file.as_u64() < size as u64 {
        bail!("a file of {file} is smaller than one operation");
    }
    ensure!(
        file <= FILE_MAX,
        "a file of {file}: up to {FILE_MAX} are possible"
    );
    if is_direct(options) && !size.is_multiple_of(SECTOR) {
        bail!("operations of {size} bytes: direct I/O is in multiples of {SECTOR}");
    }
    Ok(Shape {
        direction: match options.measure {
            Measure::Read => Direction::Read,
            Measure::Write => Direction::Write,
            _ => options.direction,
        },
        size,
        depth,
        connections,
        idle: options.idle,
        seconds: options.seconds,
        file_bytes: file.as_u64(),
        sync: options.sync,
        poll: options.poll,
        spin_us: options.spin.as_micros() as u64,
        pattern: options.pattern,
        turn: 0,
    })
}

/// What belongs to a running target is not asked of another, and the other way round.
fn target(options: &cli::Perf) -> Result<()> {
    if options.target.is_none() {
        ensure!(
            !options.tls.tls,
            "--tls: name a file of a running target that has a certificate"
        );
        return Ok(());
    }
    ensure!(
        !matches!(options.measure, Measure::Raw | Measure::Disk),
        "`raw` and `disk` are about this machine: they take no target"
    );
    ensure!(
        options.device == Place::Flash && options.pool.is_none(),
        "--device, --pool: they are for a target that is started, and the one that was named is running"
    );
    Ok(())
}

/// The rival can do the same.
fn rival(options: &cli::Perf) -> Result<()> {
    let has_idle = options.idle > 0;
    match options.baseline {
        Some(Baseline::Alone) if !has_idle => {
            bail!("--baseline alone: there are no idle connections to leave away (--idle N)")
        }
        Some(Baseline::Alone) | None => {}
        Some(Baseline::Few) if !only_ours(options) => {
            bail!("--baseline few: `read` and `write` have connections to do without")
        }
        Some(Baseline::Few) if options.connections <= FEW => {
            bail!(
                "--baseline few: {} connections are not more than the {FEW} that they are compared with (--connections N)",
                options.connections
            )
        }
        Some(_) if has_idle => {
            bail!("--idle: only the target has idle connections, compare it with --baseline alone")
        }
        Some(_) => {}
    }
    ensure!(
        !(options.sync && options.measure == Measure::Raw),
        "--sync: the bare program stores nothing"
    );
    Ok(())
}

/// Whether a target is started.
fn starts(options: &cli::Perf) -> bool {
    options.target.is_none() && (only_ours(options) || options.measure == Measure::Lat)
}

/// Whether only the target and its clients do that.
fn only_ours(options: &cli::Perf) -> bool {
    matches!(options.measure, Measure::Read | Measure::Write)
}

/// Whether what is measured is in the memory of whoever is measured.
fn is_in_memory(options: &cli::Perf) -> bool {
    options.resident || options.device == Place::Dram
}

/// Where the socket server reads: in memory where the target does.
pub(super) fn cache(options: &cli::Perf) -> Cache {
    match options.baseline_buffered || is_in_memory(options) {
        true => Cache::Buffered,
        false => Cache::Direct,
    }
}

/// Where network block servers have what they serve: in memory where the target does.
pub(super) fn store(options: &cli::Perf) -> Store {
    match cache(options) {
        Cache::Direct => Store::Direct,
        // Memory is not durable, whatever is asked of it.
        Cache::Buffered if is_in_memory(options) && !options.sync => Store::Memory,
        Cache::Buffered => Store::Buffered,
    }
}

/// Whether somebody uses the disk directly.
fn is_direct(options: &cli::Perf) -> bool {
    options.measure == Measure::Disk
        || match options.baseline {
            Some(Baseline::Disk) => true,
            Some(Baseline::Socket | Baseline::Nbd) => cache(options) == Cache::Direct,
            _ => false,
        }
}

/// A target that is started has descriptors for all connections.
pub(super) fn connections(options: &cli::Perf, shape: &Shape) -> Result<()> {
    let (busy, most) = (
        shape.connections + shape.idle,
        descriptors::connections_max(),
    );
    ensure!(
        !starts(options) || busy <= most,
        "{busy} connections: the open files that a process may have (ulimit -Hn) are enough for {most} at a target"
    );
    Ok(())
}

/// Memory for the pages of a target that is started.
pub(super) fn pool_bytes(options: &cli::Perf, shape: &Shape) -> Result<u64> {
    // Each connection takes its part of the pool; one more fills the file.
    let needed = (shape.connections + shape.idle + 1) as u64 * POOL_PER_CONNECTION;
    let usual = match options.resident {
        true => shape.file_bytes * 2,
        false => 32 << 20,
    };
    // Twice: those of one run may not be gone yet when those of the next come.
    let pool = options
        .pool
        .map_or(usual.max(needed * 2), |given| given.as_u64());
    let (size, file) = (ByteSize::b(pool), ByteSize::b(shape.file_bytes));
    if pool < needed {
        let needed = ByteSize::b(needed);
        bail!("--pool {size} is too small for so many connections: they take {needed}");
    }
    let ours = starts(options) && options.device == Place::Flash;
    if ours && options.resident && pool < shape.file_bytes + needed {
        bail!(
            "--pool {size} is too small for a file of {file} to stay in it beside the connections"
        );
    }
    if ours
        && !options.resident
        && is_direct(options)
        && shape.file_bytes < pool.saturating_mul(COLD)
    {
        bail!(
            "a file of {file} and a pool of {size}: beside a rival that always asks the disk the file is at least {COLD} times \
             as large (--file-size), or it is in memory on both sides (--resident)"
        );
    }
    Ok(pool)
}
