//! The coherence contract, I1 and I9 of the whole: programs on the mount and remote peers use the same files, and an oracle
//! in memory knows what each must be answered. Every byte, size, link count, list of names and error is compared, through
//! kills, shutdowns and restarts of the target.
//!
//! `MIXED_OPS` and `MIXED_SEED` choose more or others. A seed decides what is called, and in phases of turns also when;
//! what runs at once has the schedule of the moment.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::common::{Image, Target, can_mount, can_serve, good};
use crate::mixed::slots::Shared;
use crate::mixed::world::World;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Calls of a round in which all four clients take turns.
const TURNS: usize = 300;
/// Calls of a round in which two pairs do, at the same time.
const PAIR_TURNS: usize = 60;
/// Calls of each of four clients that work at once.
const AT_ONCE: usize = 40;
/// Calls after the last sync before a kill.
const LOOSE_MAX: usize = 60;

fn number(key: &str, default: u64) -> u64 {
    let chosen = std::env::var(key).ok();
    chosen.and_then(|n| n.parse().ok()).unwrap_or(default)
}

/// A volume with its target, and everybody who uses it.
struct Stage {
    image: Image,
    target: Option<Target>,
    rng: SmallRng,
    /// All four clients.
    all: World,
    /// A program and a peer each.
    pairs: [World; 2],
    shared: Shared,
    kills: usize,
    stops: usize,
}

impl Stage {
    fn new(seed: u64) -> Self {
        let image = Image::new("96MiB");
        let mount = image.beside("mnt");
        fs::create_dir(&mount).unwrap();
        let target = start(&image);
        for below in ["all", "pair0", "pair1"] {
            fs::create_dir(mount.join(below)).unwrap();
        }
        let mut stage = Self {
            rng: SmallRng::seed_from_u64(!seed),
            all: World::new(&mount, "all", (2, 2), seed),
            pairs: [0, 1].map(|n| World::new(&mount, &format!("pair{n}"), (1, 1), seed + 1 + n)),
            shared: Shared::new(&mount, seed),
            image,
            target: None,
            kills: 0,
            stops: 0,
        };
        stage.enter(target);
        stage
    }

    fn worlds(&mut self) -> impl Iterator<Item = &mut World> {
        self.pairs.iter_mut().chain([&mut self.all])
    }

    fn enter(&mut self, target: Target) {
        let address = target.address;
        self.worlds().for_each(|world| world.start(address));
        self.target = Some(target);
    }

    fn done(&self) -> usize {
        let pairs: usize = self.pairs.iter().map(|pair| pair.done).sum();
        self.all.done + pairs + self.shared.done
    }

    fn round(&mut self) {
        self.all.steps(TURNS);
        let address = self.target.as_ref().expect("it runs").address;
        let (pairs, shared) = (&mut self.pairs, &mut self.shared);
        thread::scope(|scope| {
            for pair in pairs {
                scope.spawn(|| pair.steps(PAIR_TURNS));
            }
            scope.spawn(|| shared.work(address, AT_ONCE, None));
        });
        self.shared.settle();
        self.shared.judge();
        match self.rng.random_range(0..6) {
            0 | 1 => self.kill(),
            2 => self.kill_at_work(),
            3 => self.stop(),
            _ => {}
        }
    }

    /// Kills the target a few calls after everything was synced.
    fn kill(&mut self) {
        self.shared.sync();
        let loose = self.rng.random_range(0..LOOSE_MAX);
        for world in self.worlds() {
            world.barrier(true);
            world.steps(loose);
        }
        self.target.as_mut().expect("it runs").halt();
        self.start_again();
    }

    /// Kills it while four clients are in the middle of something.
    fn kill_at_work(&mut self) {
        self.shared.sync();
        self.worlds().for_each(|world| world.barrier(true));
        let delay = Duration::from_micros(self.rng.random_range(500..30_000));
        let killed = &AtomicBool::new(false);
        let target = self.target.as_mut().expect("it runs");
        let (address, shared) = (target.address, &mut self.shared);
        thread::scope(|scope| {
            scope.spawn(move || shared.work(address, usize::MAX, Some(killed)));
            thread::sleep(delay);
            killed.store(true, Ordering::SeqCst);
            target.halt();
        });
        self.start_again();
    }

    fn start_again(&mut self) {
        self.kills += 1;
        self.worlds().for_each(World::bury);
        // The mount that was left behind goes with it.
        self.target = None;
        if self.rng.random_range(0..3) == 0 {
            self.fsck();
        }
        let target = start(&self.image);
        self.enter(target);
        self.judge();
    }

    /// Ends it in order: then nothing needs a sync. Programs may still have files open.
    fn stop(&mut self) {
        self.stops += 1;
        if self.rng.random_range(0..2) == 0 {
            self.worlds().for_each(World::let_go);
        }
        let target = self.target.take().expect("it runs");
        assert!(target.stop().success());
        self.worlds().for_each(World::bury);
        self.fsck();
        let target = start(&self.image);
        self.enter(target);
        self.judge();
    }

    fn judge(&mut self) {
        self.worlds().for_each(World::judge);
        self.shared.judge();
        self.shared.sync();
    }

    fn fsck(&self) {
        let report = good(&["fsck", self.image.path().to_str().unwrap()]);
        assert!(report.contains("0 problems"), "{report}");
    }

    fn end(mut self) {
        self.stop();
        let target = self.target.take().expect("it runs");
        self.worlds().for_each(World::let_go);
        assert!(target.stop().success());
        self.fsck();
        let (mut refused, mut ended) = (0, 0);
        for world in self.worlds() {
            refused += world.refused;
            ended += world.ended;
        }
        println!(
            "{} calls, {refused} of them refused, {} of four clients at once; {ended} regions used after their end; \
             {} kills, {} shutdowns",
            self.done(),
            self.shared.done,
            self.kills,
            self.stops
        );
    }
}

fn start(image: &Image) -> Target {
    let mount = image.beside("mnt");
    let mount: &Path = &mount;
    image.serve(&[
        "--mount",
        mount.to_str().unwrap(),
        "--pool",
        "4MiB",
        "--reactors",
        "2",
    ])
}

#[test]
fn programs_and_peers_share_files() {
    if !can_serve() || !can_mount() {
        return;
    }
    let (calls, seed) = (number("MIXED_OPS", 6_000), number("MIXED_SEED", 1));
    eprintln!("MIXED_OPS={calls} MIXED_SEED={seed}");
    let mut stage = Stage::new(seed);
    while stage.done() < calls as usize {
        stage.round();
    }
    stage.end();
}
