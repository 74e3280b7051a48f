//! `soak`: a target under mixed load for hours, killed again and again, and everything it promised checked.
//!
//! A *life* is the time from the start of the target to its end. It begins with a check of everything that was
//! acknowledged in the lives before; then
//!
//! - writers send records over RDMA, plain and through sync STags, and read them back;
//! - one program makes, replaces, removes and reads files through the mount, and fills the volume to the last grain now
//!   and then;
//! - after a random time the target is killed, or told to end.
//!
//! Between lives the volume is checked by `fsck`. The memory of the target must not grow.

mod churn;
mod memory;
mod report;
mod writer;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use self::churn::Churn;
use self::memory::Memory;
use self::report::{Counts, Report};
use self::writer::Writer;
use super::interrupt::{Interrupt, Interrupted};
use super::mkfs;
use super::scratch;
use super::spawn::{self, Server};
use crate::cli;

/// Seconds of a life.
const LIFE: std::ops::Range<f64> = 2.0..30.0;
/// Of so many lives, this many end by SIGKILL.
const KILLS: (u32, u32) = (2, 3);
/// Every so many lives the volume is checked while nobody uses it.
const CHECK_EVERY: u64 = 4;
/// Share of the volume that writers have, all together: one in so many bytes.
const WRITERS_SHARE: u64 = 4;

/// Runs the command.
pub(super) fn run(options: &cli::Soak, json: bool) -> Result<()> {
    let interrupt = Interrupt::install()?;
    let seed = options.seed.unwrap_or_else(rand::random);
    let mut scratch = scratch::directory("soak", options.directory.as_deref())?;
    let mut soak = Soak::new(options, scratch.path(), seed, interrupt, json)?;
    let result = soak.run();
    let result = soak.interrupt.settle(result);
    soak.report.finish(&soak.memory, seed, result.is_ok());
    if let Err(error) = &result
        && !error.is::<Interrupted>()
    {
        scratch.disable_cleanup(true);
        eprintln!("the image is kept in {}", scratch.path().display());
    }
    result
}

/// What those who work during a life know of it.
struct Life {
    address: SocketAddr,
    /// The target is about to be killed or told to end, which may take a while.
    ending: AtomicBool,
    /// It has ended.
    ended: AtomicBool,
    /// Somebody has found something: others may wait for a target that does not answer any more.
    found: AtomicBool,
}

impl Life {
    fn is_over(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// Whether the target was about to end, and that explains that it was gone. This is known before the target is
    /// touched: whoever has lost it earlier has found something.
    fn is_ending(&self) -> bool {
        self.ending.load(Ordering::SeqCst)
    }
}

struct Soak {
    image: PathBuf,
    mount: Option<PathBuf>,
    end: Instant,
    writers: Vec<Writer>,
    churn: Option<Churn>,
    memory: Memory,
    rng: SmallRng,
    interrupt: Interrupt,
    report: Report,
}

impl Soak {
    fn new(
        options: &cli::Soak,
        scratch: &Path,
        seed: u64,
        interrupt: Interrupt,
        json: bool,
    ) -> Result<Self> {
        let end = Instant::now().checked_add(*options.duration);
        let end = end.context("--duration: no clock gets that far")?;
        let image = scratch.join("volume.img");
        let made = mkfs::format(&cli::Mkfs {
            devices: vec![image.clone()],
            size: Some(options.size),
            op: 20,
            prefill: false,
            segment_size: None,
            force: false,
        })?;
        let capacity = made["capacity_bytes"].as_u64().unwrap_or(0);
        let mut rng = SmallRng::seed_from_u64(seed);
        let count = u64::from(options.writers);
        let each = capacity / WRITERS_SHARE / count.max(1);
        let writers = (0..count).map(|no| Writer::new(no, each, rng.random()));
        let writers = writers.collect();
        let mut report = Report::new(json);
        let mount = match contigfs::fuse::available() {
            Ok(()) => Some(scratch.join("mnt")),
            Err(why) => {
                report.note(&format!("no mount here ({why}): no files"));
                None
            }
        };
        if let Some(dir) = &mount {
            std::fs::create_dir(dir)?;
        }
        let churn = mount.as_deref().map(|dir| {
            let bytes = capacity / 8;
            Churn::new(dir, bytes, rng.random())
        });
        Ok(Self {
            image,
            mount,
            end,
            writers,
            churn,
            memory: Memory::default(),
            rng,
            interrupt,
            report,
        })
    }

    fn run(&mut self) -> Result<()> {
        for number in 1.. {
            self.interrupt.check()?;
            let left = self.end.saturating_duration_since(Instant::now());
            let last = left.is_zero();
            let length = Duration::from_secs_f64(self.rng.random_range(LIFE)).min(left);
            let kill = !last && self.rng.random_ratio(KILLS.0, KILLS.1);
            let start = Instant::now();
            let (counts, resident) = self
                .live(length, kill, last)
                .with_context(|| format!("life {number}"))?;
            let checked = last || number % CHECK_EVERY == 0;
            if checked {
                self.fsck(!kill)?;
            }
            let end = match (kill, checked) {
                (true, false) => "killed",
                (true, true) => "killed, checked",
                (false, false) => "ended",
                (false, true) => "ended, checked",
            };
            self.report.add(start.elapsed(), counts, resident, end);
            if last {
                break;
            }
        }
        ensure!(self.report.shows_something(), "nothing was done");
        self.memory.judge()
    }

    /// One life of the target; of the last one only the check at the beginning. Returns what was done, and the most
    /// memory that was seen.
    fn live(&mut self, length: Duration, kill: bool, last: bool) -> Result<(Counts, u64)> {
        let mut server = Server::target(&self.image, self.mount.as_deref(), &[])?;
        let life = Life {
            address: server.address,
            ending: AtomicBool::new(false),
            ended: AtomicBool::new(last),
            found: AtomicBool::new(false),
        };
        let (writers, churn) = (&mut self.writers, &mut self.churn);
        let (interrupt, memory) = (&self.interrupt, &mut self.memory);
        let done = std::thread::scope(|scope| {
            let life = &life;
            let mut workers = Vec::new();
            for writer in writers {
                workers.push(scope.spawn(move || writer.live(life)));
            }
            if let Some(churn) = churn {
                workers.push(scope.spawn(move || churn.live(life)));
            }
            let start = Instant::now();
            let mut interrupted = Ok(());
            // Who finishes by himself has found something, or has checked all there is to check.
            let wait = |done: usize| {
                let all = if last { workers.len() } else { 1 };
                done < all && !life.found.load(Ordering::SeqCst)
            };
            while (last || start.elapsed() < length) && interrupted.is_ok() {
                if !wait(workers.iter().filter(|w| w.is_finished()).count()) {
                    break;
                }
                memory.sample(server.pid());
                std::thread::sleep(Duration::from_millis(100));
                interrupted = interrupt.check();
            }
            let resident = memory.end_life();
            life.ending.store(true, Ordering::SeqCst);
            let end = match kill || interrupted.is_err() {
                true => server.kill(),
                false => server.stop(),
            };
            life.ended.store(true, Ordering::Relaxed);
            let mut counts = Counts::default();
            let mut results = Ok(());
            for worker in workers {
                match worker.join() {
                    Ok(Ok(done)) => counts += done,
                    Ok(Err(error)) => results = results.and(Err(error)),
                    Err(_) => bail!("a worker panicked"),
                }
            }
            match (results, end) {
                // A target that had ended by itself is why others found it gone.
                (Err(found), Err(end)) => return Err(found.context(format!("{end:#}"))),
                (results, end) => results.and(end).and(interrupted)?,
            }
            Ok((counts, resident))
        })?;
        if !kill {
            self.writers.iter_mut().for_each(Writer::ended_in_order);
        }
        Ok(done)
    }

    /// Has the volume checked while nobody uses it. One whose target has ended in order was shut down.
    fn fsck(&self, in_order: bool) -> Result<()> {
        let arguments = ["--json".as_ref(), "fsck".as_ref(), self.image.as_os_str()];
        let mut fsck = spawn::command(&arguments)?;
        // It changes nothing, and ends with this process.
        let output = self.interrupt.wait_for(move || Ok(fsck.output()?))?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "fsck: {said}");
        let report: serde_json::Value = serde_json::from_slice(&output.stdout)?;
        ensure!(
            !in_order || report["clean"] == true,
            "the target ended in order, and the volume was not shut down: {said}"
        );
        Ok(())
    }
}
