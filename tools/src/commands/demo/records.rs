//! Acknowledged writes: a stream of records through a sync STag, and the judge of what must be there after the kill.
//!
//! A record fills one 4 KiB slot and says which slot it is and which version of it. A slot is written again and again;
//! after the crash it must hold a whole record of its own, not older than the last version that was acknowledged and
//! not newer than the last that was sent.

use std::collections::VecDeque;
use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Result, bail};
use softrdma::{Buffer, LocalSlice, Operation, Source, WorkRequest, WrId};

use super::Interrupt;
use super::report::Step;
use crate::client::{ClientError, Session, SessionOptions};
use crate::control::{FLAG_CREATE, FLAG_TRUNCATE, FLAG_WRITE, Op, Request};
use crate::perf::figures::latencies;

const PATH: &str = "/acknowledged.dat";
const RECORD: usize = 4096;
const SLOTS: u64 = 2048;
/// Writes on their way at any time.
const IN_FLIGHT: usize = 8;

/// What was sent and what was acknowledged, per slot.
#[derive(Debug)]
pub(super) struct Records {
    sent: Vec<u64>,
    acknowledged: Vec<u64>,
}

impl Records {
    /// Writes records until the target dies, which `killed` must confirm.
    pub(super) fn stream(address: SocketAddr, killed: &AtomicBool) -> Result<(Self, Step)> {
        let mut session = Session::connect(address, SessionOptions::default())?;
        let request = Request {
            flags: FLAG_WRITE | FLAG_CREATE | FLAG_TRUNCATE,
            length: SLOTS * RECORD as u64,
            ..Request::new(Op::Open, PATH)
        };
        let file = session.open(request)?;
        let mut this = Self {
            sent: vec![0; SLOTS as usize],
            acknowledged: vec![0; SLOTS as usize],
        };
        let nothing = Buffer::zeroed(0);
        let mut latencies = latencies();
        let mut in_flight: VecDeque<(usize, u64, Instant)> = VecDeque::new();
        let mut next: u64 = 0;
        let start = Instant::now();
        let end = loop {
            while in_flight.len() < IN_FLIGHT {
                // Slots in an order that revisits some soon and others late.
                let slot = (next.wrapping_mul(2_654_435_761) >> 7) % SLOTS;
                next += 1;
                let version = this.sent[slot as usize] + 1;
                this.sent[slot as usize] = version;
                let write = Operation::Write {
                    source: Source::Bytes(record(slot, version)),
                    remote: file.at_sync(slot * RECORD as u64),
                };
                let fence = Operation::Read {
                    sink: LocalSlice::whole(&nothing),
                    remote: file.at(0),
                };
                let posted = session
                    .post(WorkRequest {
                        signaled: false,
                        ..WorkRequest::new(WrId(next), write)
                    })
                    .and_then(|()| session.post(WorkRequest::new(WrId(next), fence)));
                in_flight.push_back((slot as usize, version, Instant::now()));
                if posted.is_err() {
                    break;
                }
            }
            match session.success("READ of no bytes") {
                Ok(_) => {
                    let (slot, version, at) = in_flight.pop_front().unwrap_or((0, 0, start));
                    this.acknowledged[slot] = this.acknowledged[slot].max(version);
                    latencies.saturating_record(at.elapsed().as_nanos() as u64);
                }
                Err(error) => break error,
            }
        };
        let time = start.elapsed();
        let lost = matches!(
            end,
            ClientError::Closed { .. } | ClientError::Operation { .. }
        );
        // The news of the broken connection may arrive before that of the kill.
        let patience = Instant::now();
        while !killed.load(Ordering::Relaxed) && patience.elapsed().as_secs() < 5 {
            std::thread::yield_now();
        }
        if !lost || !killed.load(Ordering::Relaxed) {
            return Err(end.into());
        }
        let acknowledged = latencies.len();
        if acknowledged == 0 {
            bail!("no write was acknowledged before the target was killed");
        }
        let step = Step {
            name: "sync writes until SIGKILL".into(),
            bytes: Some(acknowledged * RECORD as u64),
            time,
            remark: format!("{acknowledged} acknowledged"),
            latencies: Some(latencies),
        };
        Ok((this, step))
    }

    /// Checks every slot by RDMA READ.
    pub(super) fn verify_by_rdma(
        &self,
        address: SocketAddr,
        interrupt: &Interrupt,
    ) -> Result<Step> {
        let start = Instant::now();
        let mut session = Session::connect(address, SessionOptions::default())?;
        let file = session.open(Request::new(Op::Open, PATH))?;
        let mut all = Vec::with_capacity((SLOTS as usize) * RECORD);
        session.read(&file, 0, file.length, |_, bytes| {
            all.extend_from_slice(bytes);
            Ok(())
        })?;
        session.close();
        interrupt.check()?;
        self.verify("verify them by RDMA READ", &all, start)
    }

    /// Checks every slot through the mount.
    pub(super) fn verify_by_posix(&self, dir: &Path) -> Result<Step> {
        let start = Instant::now();
        let file = File::open(dir.join(&PATH[1..]))?;
        let mut all = vec![0; (SLOTS as usize) * RECORD];
        file.read_exact_at(&mut all, 0)?;
        self.verify("verify them through the mount", &all, start)
    }

    fn verify(&self, name: &str, all: &[u8], start: Instant) -> Result<Step> {
        if all.len() != SLOTS as usize * RECORD {
            bail!("{PATH} has {} bytes", all.len());
        }
        let mut checked = 0;
        for (slot, found) in all.chunks(RECORD).enumerate() {
            let (sent, acknowledged) = (self.sent[slot], self.acknowledged[slot]);
            let version = u64::from_le_bytes(found[8..16].try_into()?);
            let whole = if version == 0 {
                found.iter().all(|&byte| byte == 0)
            } else {
                found == record(slot as u64, version)
            };
            if !whole {
                bail!("slot {slot} holds no record of its own");
            }
            if version < acknowledged {
                bail!("slot {slot}: version {acknowledged} was acknowledged, {version} is there");
            }
            if version > sent {
                bail!("slot {slot}: version {version} is there, {sent} was the last sent");
            }
            checked += u64::from(acknowledged > 0);
        }
        Ok(Step {
            name: name.into(),
            bytes: Some(all.len() as u64),
            time: start.elapsed(),
            remark: format!("{checked} acknowledged slots"),
            ..Step::default()
        })
    }
}

fn record(slot: u64, version: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(RECORD);
    bytes.extend_from_slice(&slot.to_le_bytes());
    bytes.extend_from_slice(&version.to_le_bytes());
    let mut state = slot << 32 ^ version;
    while bytes.len() < RECORD {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(versions: [u64; SLOTS as usize]) -> Vec<u8> {
        (0..SLOTS)
            .flat_map(|slot| match versions[slot as usize] {
                0 => vec![0; RECORD],
                version => record(slot, version),
            })
            .collect()
    }

    /// The judge must find what the demo claims cannot happen (I1, I2, I4): a lost version, an older one, a newer one than
    /// sent, a torn record, a record of another slot.
    #[test]
    fn the_judge_finds_every_kind_of_loss() {
        let mut records = Records {
            sent: vec![0; SLOTS as usize],
            acknowledged: vec![0; SLOTS as usize],
        };
        records.sent[3] = 5;
        records.acknowledged[3] = 4;
        let judge = |bytes: &[u8]| records.verify("", bytes, Instant::now()).is_ok();
        let with = |version| {
            let mut versions = [0; SLOTS as usize];
            versions[3] = version;
            volume(versions)
        };
        assert!(judge(&with(4)));
        assert!(judge(&with(5)));
        assert!(!judge(&with(0)));
        assert!(!judge(&with(3)));
        assert!(!judge(&with(6)));
        let mut torn = with(5);
        torn[3 * RECORD + 2048..4 * RECORD].fill(0);
        assert!(!judge(&torn));
        let mut elsewhere = with(5);
        let other = record(7, 5);
        elsewhere[3 * RECORD..4 * RECORD].copy_from_slice(&other);
        assert!(!judge(&elsewhere));
    }
}
