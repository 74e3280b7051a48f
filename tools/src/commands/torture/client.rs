//! A client that opens its file once, and then goes on with what it was told, whatever becomes of the target.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::client::{Channel, ChannelOptions, FileNo, Identity, OpId, RemoteFile, SessionOptions};
use crate::commands::ledger::{Ledger, RECORD};
use crate::control::{FLAG_CREATE, FLAG_TRUNCATE, FLAG_WRITE, Op, Request};

/// Of a hundred operations, so many write through the sync STag.
const SYNC_PERCENT: u32 = 50;
/// The same, read.
const READ_PERCENT: u32 = 30;

/// What the clients and those who torture the target tell each other.
#[derive(Debug, Default)]
pub(super) struct Stage {
    /// Grows each time before something is done to the target; the last value tells to end.
    pub(super) act: AtomicU64,
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
    },
    Read {
        slot: u64,
    },
    /// The whole file, behind everything that was posted again.
    Judge {
        slot: u64,
    },
}

/// A client.
#[derive(Debug)]
pub(super) struct Client {
    channel: Channel,
    file: FileNo,
    told: RemoteFile,
    ledger: Ledger,
    rng: SmallRng,
    depth: usize,
    under: Vec<(OpId, Under)>,
    counts: Counts,
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
            length: ledger.bytes(),
            ..Request::new(Op::Open, format!("/client-{no}"))
        })?;
        let told = *channel.file(file);
        Ok(Self {
            channel,
            file,
            told,
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
                self.submit()?;
            }
            self.acknowledge()?;
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
                    self.judge()?;
                }
            }
            last = Instant::now();
        }
        self.drain()?;
        self.judge()?;
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

    fn submit(&mut self) -> Result<()> {
        let slot = self.rng.random_range(0..self.ledger.slots());
        let offset = slot * RECORD as u64;
        let dice = self.rng.random_range(0..100);
        let (id, under) = if dice < READ_PERCENT {
            let id = self.channel.read(self.file, offset, RECORD)?;
            (id, Under::Read { slot })
        } else {
            let sync = dice < READ_PERCENT + SYNC_PERCENT;
            let (version, record) = self.ledger.send(slot);
            let id = self.channel.write(self.file, offset, &record, sync)?;
            let under = Under::Write {
                slot,
                version,
                sync,
            };
            (id, under)
        };
        self.under.push((id, under));
        Ok(())
    }

    fn acknowledge(&mut self) -> Result<()> {
        let done = self
            .channel
            .acknowledged()?
            .context("nothing is under way")?;
        let (id, under) = self.under.remove(0);
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
                },
                _,
            ) => {
                if sync {
                    self.ledger.acknowledge(slot, version);
                    self.counts.synced += 1;
                }
            }
            (Under::Read { slot }, Some(found)) => {
                self.ledger.judge(slot, &found)?;
                self.counts.read += 1;
            }
            (Under::Judge { slot }, Some(found)) => {
                self.ledger.judge(slot, &found)?;
                self.counts.judged += 1;
            }
            (under, None) => anyhow::bail!("{under:?} has read nothing"),
        }
        Ok(())
    }

    fn drain(&mut self) -> Result<()> {
        while !self.under.is_empty() {
            self.acknowledge()?;
        }
        Ok(())
    }

    /// Reads every slot, and checks that what was acknowledged is there.
    fn judge(&mut self) -> Result<()> {
        for slot in 0..self.ledger.slots() {
            if self.under.len() >= self.depth {
                self.acknowledge()?;
            }
            let offset = slot * RECORD as u64;
            let id = self.channel.read(self.file, offset, RECORD)?;
            self.under.push((id, Under::Judge { slot }));
        }
        self.drain()
    }
}
