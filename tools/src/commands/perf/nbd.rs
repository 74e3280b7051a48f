//! The network block servers that people know: each is started, given what it serves, and the faster one is the rival.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use super::super::spawn::Server;
use super::{BASELINE, Cache, pattern, plain_file};
use crate::perf::figures::Figures;
use crate::perf::nbd;
use crate::perf::shape::{Pattern, Shape};

/// Turns of a trial, and the longest of them.
const TRIALS: usize = 2;
const TRIAL_SECONDS: f64 = 0.5;
/// Threads of `nbdkit` for each connection, unless more requests than that are in flight; its own default.
const THREADS: usize = 16;
/// But not more than so many in all, or one for each connection: on two processors 100, 300 and 600 connections do more with two
/// each than with 16, and 1000 with two each keep requests waiting for longer than clients have patience.
const THREADS_MAX: usize = 256;

/// Arguments of a program.
type Call = Vec<OsString>;

/// A program that serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program {
    QemuNbd,
    Nbdkit,
}

/// Where it has what it serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Store {
    /// In its own memory, or, if it can not, in the page cache; gone with it.
    Memory,
    /// In a file, through the page cache.
    Buffered,
    /// In a file, past the page cache.
    Direct,
}

/// One that runs.
#[derive(Debug)]
pub(super) struct Rival {
    program: Program,
    store: Store,
    server: Server,
    /// Operations per second of each that was tried.
    trial: Vec<(&'static str, f64)>,
}

/// What there is to compare with on this machine, and where; an error if there is nothing.
pub(super) fn installed() -> Result<Vec<(Program, PathBuf)>> {
    let all = Program::ALL.map(|program| Some((program, program.file()?)));
    let installed: Vec<_> = all.into_iter().flatten().collect();
    ensure!(
        !installed.is_empty(),
        "--baseline nbd: neither qemu-nbd nor nbdkit is installed (Debian: qemu-utils, nbdkit)"
    );
    Ok(installed)
}

impl Store {
    /// How the file is prepared for it.
    fn cache(self) -> Cache {
        match self {
            Self::Direct => Cache::Direct,
            Self::Memory | Self::Buffered => Cache::Buffered,
        }
    }
}

impl Program {
    const ALL: [Self; 2] = [Self::QemuNbd, Self::Nbdkit];

    /// What it is called, as a program.
    fn name(self) -> &'static str {
        match self {
            Self::QemuNbd => "qemu-nbd",
            Self::Nbdkit => "nbdkit",
        }
    }

    fn file(self) -> Option<PathBuf> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path)
            .map(|dir| dir.join(self.name()))
            .find(|file| file.is_file())
    }

    /// Where it has what is to be in `store`: `qemu-nbd` has no memory of its own.
    fn place(self, store: Store) -> Store {
        match (self, store) {
            (Self::QemuNbd, Store::Memory) => Store::Buffered,
            _ => store,
        }
    }

    /// How it is called, and how if it does not start like that: not every build, and not every kernel, has everything.
    fn calls(self, store: Store, file: &Path, shape: &Shape) -> (Call, Option<Call>) {
        match self {
            Self::QemuNbd => {
                let (cache, other) = match store {
                    Store::Direct => ("none", "native"),
                    _ => ("writeback", "threads"),
                };
                let call = |aio| qemu_nbd(cache, aio, file);
                (call("io_uring"), Some(call(other)))
            }
            Self::Nbdkit => (nbdkit(store, file, shape), None),
        }
    }
}

fn qemu_nbd(cache: &str, aio: &str, file: &Path) -> Call {
    let (cache, aio) = (format!("--cache={cache}"), format!("--aio={aio}"));
    // As many clients as come, and those of the next turn as well.
    let fixed = ["--persistent", "--shared=0", "--format=raw"];
    let mut call: Call = fixed.map(OsString::from).into();
    call.extend([&cache, &aio, "--"].map(OsString::from));
    call.push(file.into());
    call
}

fn nbdkit(store: Store, file: &Path, shape: &Shape) -> Call {
    let share = (THREADS_MAX / shape.connections).max(1);
    let threads = shape.depth.max(THREADS).min(share);
    let mut call = vec![format!("--threads={threads}").into()];
    if store == Store::Memory {
        let size = format!("size={}", shape.file_bytes);
        call.extend(["memory", &size].map(OsString::from));
        return call;
    }
    let cache = match store {
        Store::Direct => "cache=none",
        _ => "cache=default",
    };
    let advice = match shape.pattern {
        Pattern::Random => "fadvise=random",
        Pattern::Sequential => "fadvise=sequential",
    };
    let mut path = OsString::from("file=");
    path.push(file);
    call.extend(["file", cache, advice].map(OsString::from));
    call.push(path);
    call
}

impl Rival {
    /// The faster of those that are installed, for this load.
    pub(super) fn start(directory: &Path, store: Store, shape: &Shape) -> Result<Self> {
        let installed = installed()?;
        let needs_file = |(program, _): &(Program, _)| program.place(store) != Store::Memory;
        let file = match installed.iter().any(needs_file) {
            true => plain_file(directory, BASELINE, store.cache(), shape)?,
            false => PathBuf::new(),
        };
        let mut rivals = Vec::new();
        for (program, path) in installed {
            let rival = Self::one(program, &path, store, &file, shape)
                .with_context(|| format!("cannot compare with {}", program.name()))?;
            rivals.push(rival);
        }
        faster(rivals, shape)
    }

    fn one(
        program: Program,
        path: &Path,
        store: Store,
        file: &Path,
        shape: &Shape,
    ) -> Result<Self> {
        let store = program.place(store);
        let start = |call: &Call| Server::foreign(path, call, nbd::greet);
        let (best, other) = program.calls(store, file, shape);
        let server = match start(&best) {
            Ok(server) => server,
            Err(error) => other.and_then(|call| start(&call).ok()).ok_or(error)?,
        };
        let rival = Self {
            program,
            store,
            server,
            trial: Vec::new(),
        };
        rival.fill(shape)?;
        Ok(rival)
    }

    /// Its memory gets the bytes that the file of the others has: what was never written is not read from anywhere.
    fn fill(&self, shape: &Shape) -> Result<()> {
        if self.store == Store::Memory {
            nbd::fill(self.server.address, shape.file_bytes, pattern)
                .context("cannot fill the memory of the server")?;
        }
        Ok(())
    }

    pub(super) fn run(&self, shape: &Shape) -> Result<Figures> {
        nbd::run(self.server.address, shape, Some(self.server.pid()))
            .with_context(|| self.name().to_owned())
    }

    /// Which one it is.
    pub(super) fn name(&self) -> &'static str {
        self.program.name()
    }

    pub(super) fn store(&self) -> Store {
        self.store
    }

    /// For people: what should not be forgotten beside the figures.
    pub(super) fn label(&self) -> &'static str {
        match (self.program, self.store) {
            (Program::QemuNbd, Store::Direct) => "qemu-nbd",
            (Program::QemuNbd, _) => "qemu-nbd, page cache",
            (Program::Nbdkit, Store::Direct) => "nbdkit, cache=none",
            (Program::Nbdkit, Store::Buffered) => "nbdkit, page cache",
            (Program::Nbdkit, Store::Memory) => "nbdkit, memory",
        }
    }

    /// Operations per second of each in the trial, if there was one.
    pub(super) fn trial(&self) -> &[(&'static str, f64)] {
        &self.trial
    }
}

/// Measures all for a short time, in turns, and ends all but the one that did most.
fn faster(mut rivals: Vec<Rival>, shape: &Shape) -> Result<Rival> {
    let mut rates = vec![0.0; rivals.len()];
    if rivals.len() > 1 {
        let slice = Shape {
            seconds: shape.seconds.min(TRIAL_SECONDS),
            // Other bytes than in the turns that count.
            turn: u32::MAX,
            ..*shape
        };
        for _ in 0..TRIALS {
            for (rate, rival) in rates.iter_mut().zip(&rivals) {
                *rate += rival.run(&slice)?.iops / TRIALS as f64;
            }
        }
    }
    let best = (0..rivals.len()).max_by(|a, b| rates[*a].total_cmp(&rates[*b]));
    let best = best.context("there is no server")?;
    let trial = match rivals.len() {
        1 => Vec::new(),
        _ => rivals.iter().map(Rival::name).zip(rates).collect(),
    };
    Ok(Rival {
        trial,
        ..rivals.swap_remove(best)
    })
}
