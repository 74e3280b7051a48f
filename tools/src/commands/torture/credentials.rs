//! `torture credentials`: the target is killed and replaced under clients that never open their files again.

use std::net::{Shutdown, SocketAddr};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use serde_json::json;
use socket2::SockRef;

use super::client::{Client, Counts, Stage};
use crate::cli::torture as options;
use crate::client::Identity;
use crate::commands::interrupt::{Interrupt, Interrupted};
use crate::commands::spawn::Server;
use crate::commands::{mkfs, scratch, show};
use crate::credentials::token::to_text;
use crate::credentials::{Claims, Key, unix_now};

/// Life of a target.
const LIFE: std::ops::Range<f64> = 0.1..1.0;

/// Runs the command.
pub(super) fn run(options: &options::Credentials, json: bool) -> Result<()> {
    let interrupt = Interrupt::install()?;
    let seed = options.seed.unwrap_or_else(rand::random);
    let mut scratch = scratch::directory("torture", options.directory.as_deref())?;
    let torture = Torture::new(options, scratch.path(), seed)?;
    match interrupt.settle(torture.run(&interrupt)) {
        Ok(report) => {
            report.print(options, seed, json);
            Ok(())
        }
        Err(error) => {
            if !error.is::<Interrupted>() {
                scratch.disable_cleanup(true);
                let kept = scratch.path().display();
                eprintln!("seed {seed}; the image is kept in {kept}");
            }
            Err(error)
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Kill,
    Replace,
    /// All connections end, and the target lives.
    Cut,
}

struct Torture<'a> {
    options: &'a options::Credentials,
    image: PathBuf,
    config: PathBuf,
    keys: Vec<(String, Key)>,
    rng: SmallRng,
}

#[derive(Debug, Default)]
struct Report {
    sum: Counts,
    restarts: Vec<Duration>,
    replacements: Vec<Duration>,
    cuts: u32,
    time: Duration,
}

impl<'a> Torture<'a> {
    fn new(options: &'a options::Credentials, scratch: &Path, seed: u64) -> Result<Self> {
        let image = scratch.join("volume.img");
        let made = mkfs::format(&crate::cli::Mkfs {
            devices: vec![image.clone()],
            size: Some(options.size),
            op: 20,
            prefill: false,
            segment_size: None,
            force: false,
        })?;
        let capacity = made["capacity_bytes"].as_u64().unwrap_or(0);
        let each = capacity / u64::from(options.clients);
        ensure!(
            options.file_size.as_u64() <= each,
            "--file-size {}: an image of {} has room for {} for each of {} clients",
            options.file_size,
            options.size,
            show::bytes(each),
            options.clients
        );
        let mut rng = SmallRng::seed_from_u64(seed);
        let (mut text, mut keys) = (String::new(), Vec::new());
        for n in 0..options.tenants {
            let name = format!("tenant-{n}");
            let file = scratch.join(format!("{name}.key"));
            let secret = to_text(&rng.random::<[u8; 32]>());
            std::fs::write(&file, &secret)?;
            let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
            std::fs::set_permissions(&file, private)?;
            text += &format!("[[tenant]]\nname = \"{name}\"\nkey_file = {file:?}\n");
            keys.push((name, Key::derive(secret.as_bytes())?));
        }
        let config = scratch.join("target.toml");
        std::fs::write(&config, text)?;
        Ok(Self {
            options,
            image,
            config,
            keys,
            rng,
        })
    }

    fn start(&self, address: Option<SocketAddr>, replace: bool) -> Result<Server> {
        let mut more = vec!["--config", self.config.to_str().context("odd directory")?];
        if replace {
            more.push("--replace");
        }
        Server::target_at(&self.image, address, &more)
    }

    fn identity(&mut self, no: u64) -> Result<Identity> {
        if self.keys.is_empty() {
            return Ok(Identity::Stranger);
        }
        let (name, key) = &self.keys[no as usize % self.keys.len()];
        // Both ways to say who one is.
        if no.is_multiple_of(2) {
            return Ok(Identity::Key {
                tenant: name.parse()?,
                epoch: 0,
                key: key.clone(),
            });
        }
        Ok(Identity::Token(key.sign(&Claims {
            tenant: name.parse()?,
            epoch: 0,
            expires: unix_now() + 24 * 3600,
            once: false,
            nonce: self.rng.random(),
        })))
    }

    fn run(mut self, interrupt: &Interrupt) -> Result<Report> {
        let start = Instant::now();
        let mut server = self.start(None, false)?;
        let address = server.address;
        let stage = Stage::default();
        let clients = 0..u64::from(self.options.clients);
        let clients = clients.map(|no| Ok((no, self.identity(no)?, self.rng.random())));
        let clients: Vec<(u64, Identity, u64)> = clients.collect::<Result<_>>()?;
        let (bytes, depth) = (self.options.file_size.as_u64(), self.options.depth);
        let mut acts = vec![Act::Kill; self.options.kills as usize];
        acts.resize(acts.len() + self.options.replaces as usize, Act::Replace);
        acts.resize(acts.len() + self.options.cuts as usize, Act::Cut);
        acts.shuffle(&mut self.rng);
        let mut report = Report::default();
        std::thread::scope(|scope| {
            let stage = &stage;
            let mut workers = Vec::new();
            let (ready, all) = std::sync::mpsc::channel();
            for (no, identity, seed) in clients {
                let ready = ready.clone();
                let work = move || {
                    let client = Client::new(no, address, identity, bytes, depth as usize, seed)?;
                    drop(ready);
                    client.work(stage)
                };
                let work = move || work().with_context(|| format!("client {no}"));
                workers.push(scope.spawn(work));
            }
            drop(ready);
            // Until everybody has opened his file, or given up.
            let _: Result<(), _> = all.recv();
            let mut tortured = Ok(());
            for act in acts {
                let life = Duration::from_secs_f64(self.rng.random_range(LIFE));
                std::thread::sleep(life);
                // Who finishes by himself has found something.
                if workers.iter().any(|worker| worker.is_finished()) {
                    break;
                }
                tortured = interrupt
                    .check()
                    .and_then(|()| self.act(act, &mut server, stage, &mut report));
                if tortured.is_err() {
                    break;
                }
            }
            // What was done last is survived, too.
            std::thread::sleep(Duration::from_millis(300));
            stage.act.store(Stage::END, Ordering::Relaxed);
            let mut result = Ok(());
            for worker in workers {
                match worker.join() {
                    Ok(Ok(counts)) => report.add(counts),
                    Ok(Err(error)) => result = result.and(Err(error)),
                    Err(_) => bail!("a client panicked"),
                }
            }
            match tortured {
                // What was found by then was found.
                Err(error) if error.is::<Interrupted>() => result.and(Err(error)),
                tortured => tortured.and(result),
            }
        })?;
        server.stop()?;
        ensure!(
            report.sum.acknowledged > 0 && report.sum.synced > 0,
            "nothing was done"
        );
        report.time = start.elapsed();
        Ok(report)
    }

    fn act(&self, act: Act, server: &mut Server, stage: &Stage, report: &mut Report) -> Result<()> {
        let address = Some(server.address);
        stage.act.fetch_add(1, Ordering::Relaxed);
        match act {
            Act::Kill => {
                stage.restarts.fetch_add(1, Ordering::SeqCst);
                stage.kills.fetch_add(1, Ordering::SeqCst);
                server.kill()?;
                stage.killed.fetch_add(1, Ordering::SeqCst);
                stage.restarted.fetch_add(1, Ordering::SeqCst);
                *server = self.start(address, false)?;
                report.restarts.push(server.started_in);
            }
            Act::Replace => {
                stage.restarts.fetch_add(1, Ordering::SeqCst);
                let new = self.start(address, true)?;
                report.replacements.push(new.started_in);
                std::mem::replace(server, new).ended()?;
                stage.restarted.fetch_add(1, Ordering::SeqCst);
            }
            Act::Cut => {
                cut(server.address)?;
                report.cuts += 1;
            }
        }
        Ok(())
    }
}

/// Ends all connections of this process with `address`, in the midst of whatever is under way on them.
fn cut(address: SocketAddr) -> Result<()> {
    for entry in std::fs::read_dir("/proc/self/fd").context("cannot look for connections")? {
        let name = entry?.file_name();
        let Some(fd) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // SAFETY: it is not used but for two system calls, which fail if it has been closed since.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let socket = SockRef::from(&fd);
        let peer = socket.peer_addr().ok().and_then(|peer| peer.as_socket());
        if peer == Some(address) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
    Ok(())
}

impl Report {
    fn add(&mut self, counts: Counts) {
        self.sum.acknowledged += counts.acknowledged;
        self.sum.synced += counts.synced;
        self.sum.read += counts.read;
        self.sum.judged += counts.judged;
        self.sum.added += counts.added;
        self.sum.unknown += counts.unknown;
        self.sum.reconnections += counts.reconnections;
        self.sum.pauses.extend(counts.pauses);
    }

    fn print(mut self, options: &options::Credentials, seed: u64, json: bool) {
        self.sum.pauses.sort();
        self.restarts.sort();
        self.replacements.sort();
        let figures = |sorted: &[Duration]| [50, 99, 100].map(|p| percentile(sorted, p));
        let pause = figures(&self.sum.pauses);
        let (restart, replacement) = (figures(&self.restarts), figures(&self.replacements));
        let counts = &self.sum;
        if json {
            let ms = |figures: [Duration; 3]| {
                let [p50, p99, max] = figures.map(|time| time.as_secs_f64() * 1e3);
                json!({ "p50": p50, "p99": p99, "max": max })
            };
            let said = json!({
                "ok": true,
                "seed": seed,
                "clients": options.clients,
                "kills": self.restarts.len(),
                "replaces": self.replacements.len(),
                "cuts": self.cuts,
                "seconds": self.time.as_secs_f64(),
                "acknowledged": counts.acknowledged,
                "synced": counts.synced,
                "read": counts.read,
                "judged": counts.judged,
                "added": counts.added,
                "unknown": counts.unknown,
                "reconnections": counts.reconnections,
                "pauses": counts.pauses.len(),
                "pause_ms": ms(pause),
                "restart_ms": ms(restart),
                "replacement_ms": ms(replacement),
            });
            println!("{said}");
            return;
        }
        println!(
            "{} clients, {} kills, {} replacements, {} cuts in {}: nothing lost, no wrong byte, nothing added twice",
            options.clients,
            self.restarts.len(),
            self.replacements.len(),
            self.cuts,
            show::time(self.time)
        );
        println!(
            "{} operations acknowledged, {} of them durable writes, {} additions; {} additions unknown; {} slots judged; {} connections made again",
            counts.acknowledged,
            counts.synced,
            counts.added,
            counts.unknown,
            counts.judged,
            counts.reconnections
        );
        println!("{:>24} {:>10} {:>10} {:>10}", "", "p50", "p99", "max");
        let line = |name: &str, figures: [Duration; 3]| {
            let [p50, p99, max] = figures.map(show::time);
            println!("{name:>24} {p50:>10} {p99:>10} {max:>10}");
        };
        line("pause of a client", pause);
        line("restart after a kill", restart);
        line("replacement", replacement);
        println!("seed {seed}");
    }
}

fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let at = (sorted.len() * percent).div_ceil(100).max(1) - 1;
    sorted.get(at).copied().unwrap_or_default()
}
