//! A client that opens its file once, and then goes on with what it was told, whatever becomes of the target.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::counters::{COUNTER, Counter};
use crate::client::{
    Atomic, Channel, ChannelOptions, FileNo, Identity, OpId, RemoteFile, SessionOptions,
};
use crate::commands::ledger::{Ledger, RECORD};
use crate::control::{FLAG_CREATE, FLAG_TRUNCATE, FLAG_WRITE, Op, Request};

/// Of a hundred operations, so many write through the sync STag.
const SYNC_PERCENT: u32 = 50;
/// The same, read.
const READ_PERCENT: u32 = 30;
/// The same, add to a counter.
const ADD_PERCENT: u32 = 10;
/// Counters, behind the slots.
const COUNTERS: usize = 8;
const ADD_ONE: Atomic = Atomic::FetchAdd { add: 1, mask: 0 };

/// What the clients and those who torture the target tell each other.
#[derive(Debug, Default)]
pub(super) struct Stage {
    /// Grows each time before something is done to the target; the last value tells to end.
    pub(super) act: AtomicU64,
    /// Grows each time before the target is killed.
    pub(super) kills: AtomicU64,
    /// Grows each time when it has been.
    pub(super) killed: AtomicU64,
    /// Grows each time before the target is killed or replaced.
    pub(super) restarts: AtomicU64,
    /// Grows each time when it has been.
    pub(super) restarted: AtomicU64,
}

impl Stage {
    /// No act comes any more.
    pub(super) const END: u64 = u64::MAX;
}

/// What a client has done.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts {
    pub(super) acknowledged: u64,
    pub(super) synced: u64,
    pub(super) read: u64,
    pub(super) judged: u64,
    /// Additions to counters that were answered.
    pub(super) added: u64,
    /// Those of which nobody knows.
    pub(super) unknown: u64,
    /// Connections beyond the first.
    pub(super) reconnections: u64,
    /// From the last acknowledgement before a loss to the first behind it.
    pub(super) pauses: Vec<Duration>,
}

#[derive(Clone, Copy, Debug)]
enum Under {
    Write {
        slot: u64,
        version: u64,
        sync: bool,
        killed: u64,
    },
    Read {
        slot: u64,
    },
    Add {
        counter: usize,
        killed: u64,
        /// Of the client, when it was posted.
        home: u64,
    },
    /// The whole file, behind everything that was posted again.
    Judge {
        slot: u64,
    },
    /// The same, counters.
    Count {
        killed: u64,
    },
}

/// The last version of a slot that was acknowledged, durable or not: a target that ends in order keeps it, a killed one may
/// lose it.
#[derive(Clone, Copy, Debug, Default)]
struct Visible {
    version: u64,
    /// As often the target had been killed before it was sent.
    killed: u64,
}

impl Visible {
    /// Whether a READ that has just ended may have found this version.
    fn allows(self, found: u64, stage: &Stage) -> bool {
        found >= self.version || stage.kills.load(Ordering::SeqCst) > self.killed
    }
}

/// A client.
#[derive(Debug)]
pub(super) struct Client {
    channel: Channel,
    file: FileNo,
    told: RemoteFile,
    ledger: Ledger,
    visible: Vec<Visible>,
    counters: [Counter; COUNTERS],
    rng: SmallRng,
    depth: usize,
    /// With the restarts that were over when it was posted.
    under: Vec<(OpId, u64, Under)>,
    counts: Counts,
    /// So many restarts, at least, were over when the target of the connection began: it has acknowledged what was posted behind
    /// them. What is posted behind the next one may still go to that target, as long as its end has not been noticed.
    home: u64,
}

impl Client {
    /// Client `no`, with a file of `bytes` bytes; all of it is written, durably.
    pub(super) fn new(
        no: u64,
        address: SocketAddr,
        identity: Identity,
        bytes: u64,
        depth: usize,
        seed: u64,
    ) -> Result<Self> {
        let options = ChannelOptions {
            session: SessionOptions {
                // There are many, and none receives much.
                buffers: Some(8),
                ..SessionOptions::default()
            },
            identity,
            ..ChannelOptions::default()
        };
        let mut channel = Channel::connect(&[address], options)?;
        let ledger = Ledger::new(no << 32, (bytes / RECORD as u64).max(1));
        let file = channel.open(Request {
            flags: FLAG_WRITE | FLAG_CREATE | FLAG_TRUNCATE,
            length: ledger.bytes() + (COUNTERS * COUNTER) as u64,
            ..Request::new(Op::Open, format!("/client-{no}"))
        })?;
        let told = *channel.file(file);
        Ok(Self {
            home: 0,
            channel,
            file,
            told,
            visible: vec![Visible::default(); ledger.slots() as usize],
            counters: Default::default(),
            ledger,
            rng: SmallRng::seed_from_u64(seed),
            depth,
            under: Vec::new(),
            counts: Counts::default(),
        })
    }

    /// Works until the end; then everything is judged once more.
    pub(super) fn work(mut self, stage: &Stage) -> Result<Counts> {
        let mut connections = self.channel.connections();
        let mut act = 0;
        let mut last = Instant::now();
        loop {
            if stage.act.load(Ordering::Relaxed) == Stage::END {
                break;
            }
            while self.under.len() < self.depth {
                self.submit(stage)?;
            }
            self.acknowledge(stage)?;
            let arrived = Instant::now();
            if self.channel.connections() != connections {
                self.counts.reconnections += self.channel.connections() - connections;
                connections = self.channel.connections();
                self.counts.pauses.push(arrived - last);
                let now = stage.act.load(Ordering::Relaxed);
                ensure!(
                    now > 0,
                    "a connection was lost before anything was done to the target"
                );
                // Once for each thing that was done, everything is read again, by what was told before it.
                if act != now {
                    act = now;
                    self.judge(stage)?;
                }
            }
            last = Instant::now();
        }
        self.drain(stage)?;
        self.judge(stage)?;
        let told = self.channel.file(self.file);
        ensure!(
            (told.stag, told.stag_sync, told.to, told.length)
                == (
                    self.told.stag,
                    self.told.stag_sync,
                    self.told.to,
                    self.told.length
                ),
            "the region has changed"
        );
        self.channel.close();
        Ok(self.counts)
    }

    fn submit(&mut self, stage: &Stage) -> Result<()> {
        let slot = self.rng.random_range(0..self.ledger.slots());
        let offset = slot * RECORD as u64;
        let dice = self.rng.random_range(0..100);
        let restarted = stage.restarted.load(Ordering::SeqCst);
        let (id, under) = if dice < READ_PERCENT {
            let id = self.channel.read(self.file, offset, RECORD)?;
            (id, Under::Read { slot })
        } else if dice < READ_PERCENT + ADD_PERCENT {
            let counter = self.rng.random_range(0..COUNTERS);
            let offset = self.ledger.bytes() + (counter * COUNTER) as u64;
            let under = Under::Add {
                counter,
                killed: stage.killed.load(Ordering::SeqCst),
                home: self.home,
            };
            (self.channel.atomic(self.file, offset, ADD_ONE)?, under)
        } else {
            let sync = dice < READ_PERCENT + ADD_PERCENT + SYNC_PERCENT;
            let killed = stage.killed.load(Ordering::SeqCst);
            let (version, record) = self.ledger.send(slot);
            let id = self.channel.write(self.file, offset, &record, sync)?;
            let under = Under::Write {
                slot,
                version,
                sync,
                killed,
            };
            (id, under)
        };
        self.under.push((id, restarted, under));
        Ok(())
    }

    fn acknowledge(&mut self, stage: &Stage) -> Result<()> {
        let done = self
            .channel
            .acknowledged()?
            .context("nothing is under way")?;
        let (id, restarted, under) = self.under.remove(0);
        self.home = self.home.max(restarted);
        ensure!(
            id == done.id,
            "{:?} was acknowledged before {id:?}",
            done.id
        );
        self.counts.acknowledged += 1;
        let bytes = done.bytes.map(|buffer| buffer.to_vec(0, buffer.len()));
        match (under, bytes) {
            (
                Under::Write {
                    slot,
                    version,
                    sync,
                    killed,
                },
                _,
            ) => {
                self.visible[slot as usize] = Visible { version, killed };
                if sync {
                    self.ledger.acknowledge(slot, version);
                    self.counts.synced += 1;
                }
            }
            (Under::Read { slot }, Some(found)) => {
                self.judge_slot(slot, &found, stage)?;
                self.counts.read += 1;
            }
            (Under::Judge { slot }, Some(found)) => {
                self.judge_slot(slot, &found, stage)?;
                self.counts.judged += 1;
            }
            (
                Under::Add {
                    counter,
                    killed,
                    home,
                },
                _,
            ) => {
                let at = &mut self.counters[counter];
                match done.original {
                    Some(found) => {
                        let kills = stage.kills.load(Ordering::SeqCst);
                        let judged = at.added(found, killed, kills);
                        judged.with_context(|| format!("counter {counter}"))?;
                        self.counts.added += 1;
                    }
                    None => {
                        ensure!(
                            stage.restarts.load(Ordering::SeqCst) > home,
                            "counter {counter}: the target lives, and does not know what became of an addition"
                        );
                        at.perhaps_added();
                        self.counts.unknown += 1;
                    }
                }
            }
            (Under::Count { killed }, Some(found)) => {
                let kills = stage.kills.load(Ordering::SeqCst);
                let (words, _) = found.as_chunks::<COUNTER>();
                for (n, (counter, word)) in self.counters.iter_mut().zip(words).enumerate() {
                    let judged = counter.seen(u64::from_le_bytes(*word), killed, kills);
                    judged.with_context(|| format!("counter {n}"))?;
                }
            }
            (under, None) => anyhow::bail!("{under:?} has read nothing"),
        }
        Ok(())
    }

    /// What was acknowledged is there: what is durable always, the rest if the target was not killed since.
    fn judge_slot(&self, slot: u64, found: &[u8], stage: &Stage) -> Result<()> {
        let version = self.ledger.judge(slot, found)?;
        let visible = self.visible[slot as usize];
        ensure!(
            visible.allows(version, stage),
            "slot {slot}: version {} was acknowledged, {version} is there, and the target was not killed",
            visible.version
        );
        Ok(())
    }

    fn drain(&mut self, stage: &Stage) -> Result<()> {
        while !self.under.is_empty() {
            self.acknowledge(stage)?;
        }
        Ok(())
    }

    /// Reads every slot and all counters, and checks that what was acknowledged is there.
    fn judge(&mut self, stage: &Stage) -> Result<()> {
        self.drain(stage)?;
        let killed = stage.killed.load(Ordering::SeqCst);
        let restarted = stage.restarted.load(Ordering::SeqCst);
        let at = self.ledger.bytes();
        let id = self.channel.read(self.file, at, COUNTERS * COUNTER)?;
        self.under.push((id, restarted, Under::Count { killed }));
        for slot in 0..self.ledger.slots() {
            if self.under.len() >= self.depth {
                self.acknowledge(stage)?;
            }
            let offset = slot * RECORD as u64;
            let id = self.channel.read(self.file, offset, RECORD)?;
            self.under.push((id, restarted, Under::Judge { slot }));
        }
        self.drain(stage)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A version that was acknowledged, durable or not, is lost only if the target was killed since it was sent; a kill that
    /// is under way at that time may be later.
    #[test]
    fn only_a_kill_takes_away_what_was_visible() {
        let stage = Stage::default();
        let kill = || stage.kills.fetch_add(1, Ordering::SeqCst);
        let killed = || stage.killed.fetch_add(1, Ordering::SeqCst);
        let now = || Visible {
            version: 5,
            killed: stage.killed.load(Ordering::SeqCst),
        };
        let first = now();
        assert!(first.allows(5, &stage) && first.allows(6, &stage));
        assert!(!first.allows(4, &stage));
        kill();
        let under_way = now();
        assert!(first.allows(4, &stage) && under_way.allows(4, &stage));
        killed();
        assert!(under_way.allows(4, &stage) && !now().allows(4, &stage));
    }
}
