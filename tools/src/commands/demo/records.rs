//! Acknowledged writes: a stream of records through a sync STag until the kill, and what is there after it.

use std::collections::VecDeque;
use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use softrdma::{Buffer, LocalSlice, Operation, Source, WorkRequest, WrId};

use super::report::Step;
use crate::client::{ClientError, Session, SessionOptions};
use crate::commands::interrupt::Interrupt;
use crate::commands::ledger::{Ledger, RECORD};
use crate::control::{FLAG_CREATE, FLAG_TRUNCATE, FLAG_WRITE, Op, Request};
use crate::perf::figures::latencies;

/// Where they are.
pub(super) const PATH: &str = "/acknowledged.dat";
const SLOTS: u64 = 2048;
/// Writes on their way at any time.
const IN_FLIGHT: usize = 8;

/// What was sent and what was acknowledged.
#[derive(Debug)]
pub(super) struct Records(Ledger);

impl Records {
    /// Writes records until the target dies, before which `killed` is set.
    pub(super) fn stream(address: SocketAddr, killed: &AtomicBool) -> Result<(Self, Step)> {
        let mut session = Session::connect(address, SessionOptions::default())?;
        let request = Request {
            flags: FLAG_WRITE | FLAG_CREATE | FLAG_TRUNCATE,
            length: SLOTS * RECORD as u64,
            ..Request::new(Op::Open, PATH)
        };
        let file = session.open(request)?;
        let mut ledger = Ledger::new(0, SLOTS);
        let nothing = Buffer::zeroed(0);
        let mut latencies = latencies();
        let mut in_flight: VecDeque<(u64, u64, Instant)> = VecDeque::new();
        let mut next: u64 = 0;
        let start = Instant::now();
        let end = loop {
            while in_flight.len() < IN_FLIGHT {
                // Slots in an order that revisits some soon and others late.
                let slot = (next.wrapping_mul(2_654_435_761) >> 7) % SLOTS;
                next += 1;
                let (version, record) = ledger.send(slot);
                let write = Operation::Write {
                    source: Source::Bytes(record),
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
                in_flight.push_back((slot, version, Instant::now()));
                if posted.is_err() {
                    break;
                }
            }
            match session.success("READ of no bytes") {
                Ok(_) => {
                    let (slot, version, at) = in_flight.pop_front().unwrap_or((0, 0, start));
                    ledger.acknowledge(slot, version);
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
        if !lost || !killed.load(Ordering::SeqCst) {
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
        Ok((Self(ledger), step))
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
        self.0.judge_all(all).context(PATH)?;
        Ok(Step {
            name: name.into(),
            bytes: Some(all.len() as u64),
            time: start.elapsed(),
            remark: format!("{} acknowledged slots", self.0.acknowledged_slots()),
            ..Step::default()
        })
    }
}
