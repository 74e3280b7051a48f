//! A device of an array goes while the volume is being collected.
//!
//! Defends: grains of the device that are in memory to be relocated are not lost with it, so what can not be read when the
//! loss has been recorded never comes back (I1); the loss is recorded whatever is asked for meanwhile, and with that there is
//! space again (I17, I18).

use crate::by_hand::{PORT, Rig};
use crate::common::{Rng, grain};
use ftl::{AtomicBatch, GRAIN_BYTES, Intent, Lba, LbaRange, Token};
use std::collections::BTreeMap;

const FILL: u64 = 6000;
/// Volumes that each test looks at.
const SEEDS: u64 = 20;
/// Writes until grains are on their way, at most.
const WRITES_MAX: u64 = 30_000;

/// A volume that is collected all the time, and what is in it.
struct Churn {
    rig: Rig,
    rng: Rng,
    versions: BTreeMap<Lba, u64>,
}

impl Churn {
    fn new(seed: u64) -> Self {
        let mut churn = Self {
            rig: Rig::new(256),
            rng: Rng::new(seed),
            versions: BTreeMap::new(),
        };
        let all: Vec<Lba> = (0..FILL).map(Lba).collect();
        for lba in &all {
            churn.write(*lba, 1);
        }
        assert!(churn.sync());
        for round in 0..400 {
            churn.overwrite(&all, 2 + round);
        }
        churn
    }

    fn write(&mut self, lba: Lba, version: u64) {
        self.rig.write(LbaRange::new(lba, 1), version);
        self.versions.insert(lba, version);
    }

    /// Some of these are overwritten, and durable.
    fn overwrite(&mut self, lbas: &[Lba], version: u64) {
        for _ in 0..16 {
            let lba = lbas[self.rng.below(lbas.len() as u64) as usize];
            self.write(lba, version);
        }
        assert!(self.sync());
    }

    fn sync(&mut self) -> bool {
        matches!(self.rig.sync(LbaRange::ALL, Token(1)), Some(Ok(())))
    }

    /// Overwrites until `found` finds something.
    fn until(&mut self, mut found: impl FnMut(&mut Rig) -> Vec<Lba>) -> Vec<Lba> {
        let all: Vec<Lba> = (0..FILL).map(Lba).collect();
        for round in 0..WRITES_MAX / 16 {
            self.overwrite(&all, 1000 + round);
            let found = found(&mut self.rig);
            if !found.is_empty() {
                return found;
            }
        }
        panic!("nothing was on its way in {WRITES_MAX} writes");
    }

    fn is_lost(&mut self, lba: Lba) -> bool {
        let Ok(page) = self.rig.get(lba, Intent::Read) else {
            return true;
        };
        let mut bytes = vec![0; GRAIN_BYTES];
        page.copy_out(0, &mut bytes);
        assert!(bytes == grain(lba, self.versions[&lba]), "{lba}");
        false
    }

    /// The loss is being recorded, or has been: what was in memory is there, and what is lost stays lost.
    fn judge(mut self, in_memory: &[Lba]) {
        self.rig.drain();
        self.rig.events.clear();
        // What of the last writes is lost is told once.
        self.sync();
        let gone = in_memory.iter().filter(|&&lba| self.is_lost(lba)).count();
        assert_eq!(gone, 0, "of {} grains that were in memory", in_memory.len());
        let (lost, others): (Vec<Lba>, Vec<Lba>) =
            (0..FILL).map(Lba).partition(|&lba| self.is_lost(lba));
        assert!(lost.len() as u64 > FILL / 3);
        // These fill up what forms.
        for round in 0..125 {
            self.overwrite(&others, 10_000 + round);
        }
        let back = lost.iter().filter(|&&lba| !self.is_lost(lba)).count();
        assert_eq!(back, 0, "of {} grains that were lost", lost.len());
        self.rig.ftl.self_check();
    }
}

/// Grains that had been read to be relocated when their device went, and wait in memory for others to be written with, are
/// not lost with it: they go out.
#[test]
fn relocated_in_time() {
    for seed in 1..SEEDS {
        let mut churn = Churn::new(seed);
        let waiting = churn.until(|rig| rig.read_to_be_relocated());
        println!("seed {seed}: {} grains wait", waiting.len());
        churn.rig.lose(LbaRange::new(Lba(0), FILL));
        churn.judge(&waiting);
    }
}

/// Nor are those that the device had been asked for, and gives when it is known to have gone.
#[test]
fn read_in_time() {
    for seed in 1..SEEDS {
        let mut churn = Churn::new(seed);
        let read = churn.until(|rig| {
            let read = rig.being_read();
            if read.is_empty() {
                rig.complete_scan();
                rig.keep_scan();
            }
            read
        });
        println!("seed {seed}: {} grains are being read", read.len());
        churn.rig.lose(LbaRange::new(Lba(0), FILL));
        churn.rig.complete_scan();
        churn.judge(&read);
    }
}

/// Batches that come while the loss is being recorded wait for that: it frees the segments that they need, so they may not take
/// those that it needs.
#[test]
fn batches_while_it_is_recorded() {
    const GRAINS: u64 = 60;
    for seed in 1..SEEDS {
        let mut churn = Churn::new(seed);
        churn.rig.lose(LbaRange::new(Lba(0), FILL));
        let mut tokens = (100..).map(Token);
        let mut sent = Vec::new();
        let mut turns = 0;
        while churn.rig.turn() {
            turns += 1;
            if sent.len() < 40 {
                let mut batch = AtomicBatch::new();
                for n in 0..GRAINS {
                    let lba = Lba((sent.len() as u64 * GRAINS + n) % FILL);
                    let version = 100_000 + sent.len() as u64;
                    batch.patch(lba, 0, grain(lba, version));
                    churn.versions.insert(lba, version);
                }
                let token = tokens.next().expect("tokens");
                let commit = churn.rig.ftl.commit(PORT, batch, token);
                commit.expect("accepted");
                sent.push(token);
            }
        }
        println!("seed {seed}: {turns} turns, {} batches", sent.len());
        for token in sent {
            assert_eq!(churn.rig.answer(token), Some(Ok(())), "seed {seed}");
        }
        churn.rig.ftl.self_check();
    }
}
