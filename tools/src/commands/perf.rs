//! `perf`: measures this stack, and its rivals in the same run.

mod asked;
mod nbd;

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use bytesize::ByteSize;
use serde_json::{Value, json};
use signal_hook::iterator::Signals;

use super::interrupt;
use super::mkfs;
use super::registration;
use super::scratch;
use super::show;
use super::spawn::Server;
use crate::cli::{self, Baseline, Measure, Place};
use crate::client::{Identity, RemoteFile, RemotePath, Session, SessionOptions};
use crate::control::{FLAG_CREATE, FLAG_TRUNCATE, FLAG_WRITE, Op, Request};
use crate::descriptors;
use crate::perf::figures::Figures;
use crate::perf::rdma::{self, Victim};
use crate::perf::shape::{Direction, Pattern, Shape};
use crate::perf::socket::Cache;
use crate::perf::{disk, hyperloop, lat, null, passing, raw, socket};
use crate::target::DRAM_PATH;

const FILE: &str = "/perf.data";
/// Name of the file of the servers that are compared with.
const BASELINE: &str = "baseline.data";

/// Runs the command.
pub(super) fn run(options: &cli::Perf, json: bool) -> Result<()> {
    if options.measure == Measure::Reg {
        asked::meaning(options)?;
        return registration::run(options, json);
    }
    let mut shape = asked::shape(options)?;
    asked::meaning(options)?;
    let pool = asked::pool_bytes(options, &shape)?;
    if options.baseline == Some(Baseline::Nbd) {
        nbd::installed()?;
    }
    descriptors::raise_limit();
    asked::connections(options, &shape)?;
    let directory = scratch::directory("perf", options.directory.as_deref())?;
    let dir = directory.path();
    clean_up_when_ended(dir)?;
    let subject = match (options.measure, &options.target) {
        (Measure::Raw, _) => Subject::raw(&shape)?,
        (Measure::Disk, _) => Subject::disk(dir, &shape)?,
        (_, Some(target)) => Subject::remote(target, options, &mut shape)?,
        (_, None) => Subject::target(dir, options, pool, &shape)?,
    };
    let rival = match options.baseline {
        None => None,
        Some(Baseline::Raw) => Some(Subject::raw(&shape)?),
        Some(Baseline::Disk) => Some(Subject::disk(dir, &shape)?),
        Some(Baseline::Alone) => Some(subject.again(Less::Idle)?),
        Some(Baseline::Few) => Some(subject.again(Less::Connections)?),
        Some(Baseline::Nbd) => Some(Subject::nbd(dir, options, &shape)?),
        Some(Baseline::Socket) => Some(Subject::socket(dir, asked::cache(options), &shape)?),
    };
    let (figures, other) = compare(&subject, rival.as_ref(), options, &shape)?;
    let other = rival.as_ref().zip(other.as_ref());
    print(json, &shape, (&subject, &figures), other)?;
    subject.end()
}

/// Removes what was made, a directory or a file, when a signal ends the command in the middle; the servers end with it by
/// themselves.
pub(super) fn clean_up_when_ended(made: &Path) -> Result<()> {
    let mut signals = Signals::new(interrupt::ending())?;
    let made = made.to_owned();
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            let _ = std::fs::remove_file(&made);
            // Again while the command makes files in it.
            while std::fs::remove_dir_all(&made)
                .is_err_and(|error| error.kind() == ErrorKind::DirectoryNotEmpty)
            {}
            std::process::exit(128 + signal);
        }
    });
    Ok(())
}

/// Measures both in turns, so that a machine that is slow for a while is slow for both.
fn compare(
    subject: &Subject,
    rival: Option<&Subject>,
    options: &cli::Perf,
    shape: &Shape,
) -> Result<(Figures, Option<Figures>)> {
    let rounds = if rival.is_some() { options.rounds } else { 1 };
    let seconds = shape.seconds / f64::from(rounds);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for turn in 0..rounds {
        let slice = Shape {
            seconds,
            turn,
            ..*shape
        };
        ours.push(subject.run(options, &slice)?);
        if let Some(rival) = rival {
            theirs.push(rival.run(options, &slice)?);
        }
    }
    let nothing = |whose: &Subject| {
        format!(
            "{}: no operation was over within {seconds} s (--seconds, --rounds, --size)",
            whose.label()
        )
    };
    let figures = Figures::sum(ours).with_context(|| nothing(subject))?;
    let other = rival.map(|rival| Figures::sum(theirs).with_context(|| nothing(rival)));
    Ok((figures, other.transpose()?))
}

/// Something that can be measured, with the server it needs.
enum Subject {
    /// This stack, with the target if we started it.
    Flashnet(Victim, Option<Server>),
    /// This stack as well, with less to do.
    Again(Victim, Less),
    Socket(Server, Cache),
    Nbd(nbd::Rival),
    Raw(Server),
    Disk(PathBuf),
}

/// What a load is without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Less {
    /// Idle connections.
    Idle,
    /// More than a few connections.
    Connections,
}

impl Less {
    fn of(self, shape: &Shape) -> Shape {
        match self {
            Self::Idle => Shape { idle: 0, ..*shape },
            Self::Connections => Shape {
                connections: asked::FEW,
                ..*shape
            },
        }
    }
}

impl Subject {
    fn name(&self) -> &'static str {
        match self {
            Self::Flashnet(..) => "flashnet",
            Self::Again(_, Less::Idle) => "alone",
            Self::Again(_, Less::Connections) => "few",
            Self::Socket(..) => "socket",
            Self::Nbd(rival) => rival.name(),
            Self::Raw(_) => "raw",
            Self::Disk(_) => "disk",
        }
    }

    /// For people: what should not be forgotten beside the figures.
    fn label(&self) -> &'static str {
        match self {
            Self::Socket(_, Cache::Buffered) => "socket, page cache",
            Self::Nbd(rival) => rival.label(),
            Self::Again(_, Less::Connections) => "16 connections",
            _ => self.name(),
        }
    }

    /// For programs: the same, and what was tried.
    fn describe(&self, shape: &Shape, value: &mut Value) {
        match self {
            Self::Socket(_, cache) => value["cache"] = json!(cache),
            Self::Nbd(rival) => {
                value["cache"] = json!(rival.store());
                let trial = rival.trial().iter();
                value["trial"] = trial.map(|(name, rate)| (*name, *rate)).collect();
            }
            Self::Again(_, less) => value["connections"] = json!(less.of(shape).connections),
            _ => {}
        }
    }

    fn run(&self, options: &cli::Perf, shape: &Shape) -> Result<Figures> {
        match self {
            Self::Flashnet(victim, _) if options.measure == Measure::Lat => lat::run(victim, shape),
            Self::Flashnet(victim, _) => rdma::run(victim, shape),
            Self::Again(victim, less) => rdma::run(victim, &less.of(shape)),
            Self::Nbd(rival) => rival.run(shape),
            Self::Socket(server, _) => {
                socket::run(server.address, shape, Some(server.pid())).context("the socket server")
            }
            Self::Raw(server) => {
                raw::run(server.address, shape, Some(server.pid())).context("the bare program")
            }
            Self::Disk(path) => disk::run(path, shape).context("direct I/O on a plain file"),
        }
    }

    /// The same victim once more.
    fn again(&self, less: Less) -> Result<Self> {
        match self {
            Self::Flashnet(victim, _) => Ok(Self::Again(victim.clone(), less)),
            _ => bail!("idle and further connections are those of `read` and `write`"),
        }
    }

    /// Ends what was started, in order where there is an order: a target that cannot stop is news.
    fn end(self) -> Result<()> {
        if let Self::Flashnet(_, Some(server)) = self {
            server.stop()?;
        }
        Ok(())
    }

    /// A file of a target that runs; without a word all of it is used, as far as it is no larger than usual.
    fn remote(target: &str, options: &cli::Perf, shape: &mut Shape) -> Result<Self> {
        let remote = RemotePath::with_port(target, options.tls.port())?;
        let token = Identity::of_file(options.identity.token_file.as_deref())?.token();
        let how = SessionOptions {
            tls: options.tls.to(&remote.host)?,
            ..SessionOptions::default()
        };
        let tls = how.tls.clone();
        if tls.is_some() && options.measure == Measure::Lat {
            bail!(
                "--tls: `read` and `write` can be measured by TLS (--connections 1 --depth 1 for latency)"
            );
        }
        // The one that answers: a name may stand for addresses that nobody listens on.
        let mut answers = Session::connect_as(&remote.resolve()?, how, &token)?;
        let file = answers.open(Request::new(Op::Open, remote.path.as_str()))?;
        let (path, len) = (&remote.path, file.length);
        if options.file_size.is_none() {
            shape.file_bytes = shape.file_bytes.min(len);
        }
        if shape.file_bytes < shape.size as u64 {
            bail!("{path} has {len} bytes, fewer than one operation (--size)");
        }
        if len < shape.file_bytes {
            let needed = shape.file_bytes;
            bail!("{path} has {len} bytes, {needed} are needed (--file-size)");
        }
        if options.resident {
            bring_in(&mut answers, &file, shape)?;
        }
        let victim = Victim {
            address: answers.address(),
            tls,
            path: remote.path,
            pid: None,
            crc: options.crc,
            token,
        };
        Ok(Self::Flashnet(victim, None))
    }

    /// A target on a temporary image, with the file.
    fn target(
        directory: &Path,
        options: &cli::Perf,
        pool_bytes: u64,
        shape: &Shape,
    ) -> Result<Self> {
        let image = directory.join("perf.img");
        let dram = options.device == Place::Dram;
        let file = if dram { 0 } else { shape.file_bytes };
        mkfs::format(&cli::Mkfs {
            devices: vec![image.clone()],
            // Room for the file at 80 % of the space that users have.
            size: Some(ByteSize::b(
                (file * 3 / 2).max(256 << 20).next_multiple_of(1 << 20),
            )),
            op: 15,
            // Like the plain files it is compared with.
            prefill: true,
            segment_size: None,
            force: false,
        })?;
        let pool = format!("{pool_bytes}B");
        let memory = format!("{}B", shape.file_bytes);
        let mut more = vec!["--pool", pool.as_str()];
        let spin = format!("{}us", shape.spin_us);
        more.extend(["--spin", &spin]);
        if shape.poll {
            more.push("--poll");
        }
        if dram {
            more.extend(["--dram", memory.as_str()]);
        }
        let server = Server::target(&image, None, &more)?;
        if !dram {
            fill(&server, shape, options.resident)?;
        }
        let victim = Victim {
            address: server.address,
            path: if dram { DRAM_PATH } else { FILE }.to_owned(),
            pid: Some(server.pid()),
            tls: None,
            crc: options.crc,
            token: Vec::new(),
        };
        Ok(Self::Flashnet(victim, Some(server)))
    }

    fn socket(directory: &Path, cache: Cache, shape: &Shape) -> Result<Self> {
        let path = plain_file(directory, BASELINE, cache, shape)?;
        let mut arguments: Vec<&OsStr> = vec!["--file".as_ref(), path.as_os_str()];
        if cache == Cache::Buffered {
            arguments.push("--buffered".as_ref());
        }
        Ok(Self::Socket(Server::comparison(&arguments)?, cache))
    }

    fn nbd(directory: &Path, options: &cli::Perf, shape: &Shape) -> Result<Self> {
        let slice = Shape {
            seconds: shape.seconds / f64::from(options.rounds),
            ..*shape
        };
        let rival = nbd::Rival::start(directory, asked::store(options), &slice)?;
        for (name, rate) in rival.trial() {
            eprintln!("{name}: {rate:.0} op/s in a short trial");
        }
        Ok(Self::Nbd(rival))
    }

    fn raw(shape: &Shape) -> Result<Self> {
        let (request, response) = raw::message_bytes(shape.direction, shape.size);
        let (request, response) = (request.to_string(), response.to_string());
        let mut arguments = vec!["--request", &request, "--response", &response];
        if shape.poll {
            arguments.push("--poll");
        }
        let arguments: Vec<&OsStr> = arguments.into_iter().map(OsStr::new).collect();
        Ok(Self::Raw(Server::comparison(&arguments)?))
    }

    fn disk(directory: &Path, shape: &Shape) -> Result<Self> {
        // Its own: what a server has in the page cache is no business of who goes past that.
        let path = plain_file(directory, "disk.data", Cache::Direct, shape)?;
        Ok(Self::Disk(path))
    }
}

/// Runs the hidden server side of a comparison.
pub(super) fn serve(options: &cli::PerfServer) -> Result<()> {
    if options.tenant {
        hyperloop::spin();
        return Ok(());
    }
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    if let Some(dir) = &options.mount {
        let threads = contigfs::fuse::MountOptions::default().threads;
        let mounted = match &options.file {
            Some(directory) => passing::mount(directory, dir, threads),
            None => null::mount(dir, threads),
        };
        let session = mounted.with_context(|| format!("cannot mount on {}", dir.display()))?;
        println!("{}", listener.local_addr()?);
        std::io::stdout().flush()?;
        return Ok(session.join()?);
    }
    println!("{}", listener.local_addr()?);
    std::io::stdout().flush()?;
    match &options.file {
        Some(file) => {
            let cache = if options.buffered {
                Cache::Buffered
            } else {
                Cache::Direct
            };
            socket::serve(&listener, file, cache)
                .with_context(|| format!("cannot serve {}", file.display()))
        }
        None => {
            listener.set_nonblocking(true)?;
            let listener = mio::net::TcpListener::from_std(listener);
            Ok(raw::serve(
                listener,
                (options.request, options.response),
                options.poll,
            )?)
        }
    }
}

/// Writes the file, and reads it once if it shall be in memory.
fn fill(server: &Server, shape: &Shape, resident: bool) -> Result<()> {
    let mut session = Session::connect(server.address, SessionOptions::default())?;
    let request = Request {
        flags: FLAG_WRITE | FLAG_CREATE | FLAG_TRUNCATE,
        length: shape.file_bytes,
        ..Request::new(Op::Open, FILE)
    };
    let file = session.open(request)?;
    let progress = show::progress(shape.file_bytes, "fill");
    session.write(&file, 0, shape.file_bytes, false, |offset, bytes| {
        pattern(offset, bytes);
        progress.inc(bytes.len() as u64);
        Ok(())
    })?;
    progress.finish_and_clear();
    let sync = Request {
        handle: file.handle,
        ..Request::new(Op::Sync, "")
    };
    session.call(sync)?;
    if resident {
        bring_in(&mut session, &file, shape)?;
    }
    session.close();
    Ok(())
}

/// Reads what is measured once.
fn bring_in(session: &mut Session, file: &RemoteFile, shape: &Shape) -> Result<()> {
    session.read(file, 0, shape.file_bytes, |_, _| Ok(()))?;
    Ok(())
}

/// Bytes that no device compresses away.
fn pattern(offset: u64, bytes: &mut [u8]) {
    for (n, word) in bytes.chunks_mut(8).enumerate() {
        let mix = (offset + n as u64 * 8)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29);
        word.copy_from_slice(&mix.to_le_bytes()[..word.len()]);
    }
}

/// Makes an ordinary file like the one of the volume, durable, and in the page cache or not.
fn plain_file(directory: &Path, name: &str, cache: Cache, shape: &Shape) -> Result<PathBuf> {
    let path = directory.join(name);
    write_plain(&path, cache, shape).with_context(|| format!("cannot make {}", path.display()))?;
    Ok(path)
}

fn write_plain(path: &Path, cache: Cache, shape: &Shape) -> io::Result<()> {
    let mut file = File::create(path)?;
    let mut chunk = vec![0; 1 << 20];
    let progress = show::progress(shape.file_bytes, "baseline");
    for offset in (0..shape.file_bytes).step_by(chunk.len()) {
        let len = chunk.len().min((shape.file_bytes - offset) as usize);
        pattern(offset, &mut chunk[..len]);
        file.write_all(&chunk[..len])?;
        progress.inc(len as u64);
    }
    progress.finish_and_clear();
    file.sync_all()?;
    if cache == Cache::Direct {
        // SAFETY: advice about an open file; no memory is involved.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    }
    Ok(())
}

fn print(
    json: bool,
    shape: &Shape,
    (subject, figures): (&Subject, &Figures),
    baseline: Option<(&Subject, &Figures)>,
) -> Result<()> {
    let ratio = baseline.map(|(_, other)| figures.iops / other.iops);
    if json {
        let mut out = serde_json::to_value(figures)?;
        out["name"] = json!(subject.name());
        out["shape"] = serde_json::to_value(shape)?;
        out["baseline"] = match baseline {
            Some((rival, other)) => {
                let mut value = serde_json::to_value(other)?;
                value["name"] = json!(rival.name());
                rival.describe(shape, &mut value);
                value
            }
            None => Value::Null,
        };
        out["ratio"] = json!(ratio);
        println!("{out}");
        return Ok(());
    }
    let verb = match shape.direction {
        Direction::Read => "reads",
        Direction::Write if shape.sync => "sync writes",
        Direction::Write => "writes",
    };
    println!(
        "{} {}{verb}, {} connections x depth {}, {:.1} s",
        show::bytes(shape.size as u64),
        match shape.pattern {
            Pattern::Random => "",
            Pattern::Sequential => "sequential ",
        },
        shape.connections,
        shape.depth,
        figures.seconds
    );
    let mut table = show::table(&[
        "",
        "op/s",
        "MiB/s",
        "mean µs",
        "p50 µs",
        "p99 µs",
        "p99.9 µs",
        "cores client",
        "server",
        "client's calls/op",
    ]);
    for (whose, f) in [Some((subject, figures)), baseline].into_iter().flatten() {
        table.add_row([
            whose.label().to_owned(),
            format!("{:.0}", f.iops),
            format!("{:.1}", f.mib_s),
            format!("{:.1}", f.mean_us),
            format!("{:.1}", f.p50_us),
            format!("{:.1}", f.p99_us),
            f.p999_us.map_or("-".into(), |us| format!("{us:.1}")),
            format!("{:.2}", f.cpu_client),
            f.cpu_server.map_or("-".into(), |c| format!("{c:.2}")),
            (f.client_calls_per_op).map_or("-".into(), |calls| format!("{calls:.2}")),
        ]);
    }
    println!("{table}");
    if let Some(ratio) = ratio {
        println!("ratio {ratio:.3}");
    }
    Ok(())
}
