//! A client that writes records over RDMA, and knows what must be there.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use anyhow::{Context, Result, ensure};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use softrdma::{Buffer, CloseReason, LocalSlice, Operation, Source, Status, WorkRequest, WrId};

use super::Life;
use super::report::Counts;
use crate::client::{ClientError, RemoteFile, Session, SessionOptions};
use crate::commands::ledger::{Ledger, RECORD};
use crate::control::{FLAG_CREATE, FLAG_TRUNCATE, FLAG_WRITE, Op, Request};

/// Most writes on their way at any time.
const IN_FLIGHT: u64 = 16;
/// Of a hundred writes, so many go through the sync STag.
const SYNC_PERCENT: u32 = 60;

/// Whether the target was not there any more; what it has answered is another matter.
fn is_gone(error: &anyhow::Error) -> bool {
    match error.downcast_ref() {
        Some(ClientError::Closed { reason, .. }) => !matches!(
            reason,
            CloseReason::TerminateReceived(_)
                | CloseReason::TerminateSent(_)
                | CloseReason::Storage(_)
        ),
        Some(ClientError::Operation { status, .. }) => *status == Status::Flushed,
        Some(ClientError::Connect { .. }) => true,
        _ => false,
    }
}

/// A client with a file of its own.
#[derive(Debug)]
pub(super) struct Writer {
    path: String,
    /// The file is there.
    made: bool,
    ledger: Ledger,
    /// What a READ must return, slot by slot.
    current: Vec<u64>,
    /// And that was looked at in this life: of what was visible in one that was killed nobody knows.
    judged: bool,
    rng: SmallRng,
    counts: Counts,
}

impl Writer {
    /// Client `no`; its file has `bytes` bytes.
    pub(super) fn new(no: u64, bytes: u64, seed: u64) -> Self {
        let slots = (bytes / RECORD as u64).max(1);
        Self {
            path: format!("/records-{no}"),
            made: false,
            ledger: Ledger::new(no << 32, slots),
            current: vec![0; slots as usize],
            judged: false,
            rng: SmallRng::seed_from_u64(seed),
            counts: Counts::default(),
        }
    }

    /// Checks what was acknowledged, then works until the target ends.
    pub(super) fn live(&mut self, life: &Life) -> Result<Counts> {
        self.counts = Counts::default();
        self.judged = false;
        match self.work(life) {
            Err(error) if is_gone(&error) && life.is_ending() => Ok(self.counts),
            Err(error) => {
                life.found.store(true, Ordering::SeqCst);
                Err(error.context(self.path.clone()))
            }
            Ok(()) => Ok(self.counts),
        }
    }

    /// The target has ended in order: it keeps what was visible, durable or not.
    pub(super) fn ended_in_order(&mut self) {
        if !self.judged {
            return;
        }
        for (slot, &version) in (0..).zip(&self.current) {
            self.ledger.acknowledge(slot, version);
        }
    }

    fn work(&mut self, life: &Life) -> Result<()> {
        let mut session = Session::connect(life.address, SessionOptions::default())?;
        let make = if self.made {
            0
        } else {
            FLAG_CREATE | FLAG_TRUNCATE
        };
        let request = Request {
            flags: FLAG_WRITE | make,
            length: self.ledger.bytes(),
            ..Request::new(Op::Open, self.path.as_str())
        };
        let file = session.open(request)?;
        self.made = true;
        self.judge(&mut session, &file)?;
        // Every slot is written before somebody else may fill the volume.
        let first: Vec<u64> = (0..self.ledger.slots())
            .filter(|&slot| self.current[slot as usize] == 0)
            .collect();
        for slots in first.chunks(IN_FLIGHT as usize) {
            if life.is_over() {
                break;
            }
            self.write(&mut session, &file, slots)?;
        }
        while !life.is_over() {
            let count = self.rng.random_range(1..=IN_FLIGHT);
            let slots: Vec<u64> = (0..count).map(|_| self.draw()).collect();
            self.write(&mut session, &file, &slots)?;
            if self.rng.random_ratio(1, 4) {
                let slot = self.draw();
                self.read_back(&mut session, &file, slot)?;
            }
        }
        session.close();
        Ok(())
    }

    /// Most writes go to a tenth of the file.
    fn draw(&mut self) -> u64 {
        let slots = self.ledger.slots();
        let hot = self.rng.random_ratio(9, 10);
        let among = if hot { slots.div_ceil(10) } else { slots };
        self.rng.random_range(0..among)
    }

    /// What is there after a start is there for good.
    fn judge(&mut self, session: &mut Session, file: &RemoteFile) -> Result<()> {
        let mut all = Vec::with_capacity(self.ledger.bytes() as usize);
        session.read(file, 0, self.ledger.bytes(), |_, bytes| {
            all.extend_from_slice(bytes);
            Ok(())
        })?;
        ensure!(
            all.len() as u64 == self.ledger.bytes(),
            "a READ of {} bytes gave {}",
            self.ledger.bytes(),
            all.len()
        );
        for (slot, found) in (0..).zip(all.chunks(RECORD)) {
            let version = self.ledger.judge(slot, found)?;
            self.ledger.acknowledge(slot, version);
            self.current[slot as usize] = version;
        }
        self.counts.judged += self.ledger.slots();
        self.judged = true;
        Ok(())
    }

    /// Writes the next version of each slot; on return all of them are visible, and some known to be durable.
    fn write(&mut self, session: &mut Session, file: &RemoteFile, slots: &[u64]) -> Result<()> {
        let nothing = Buffer::zeroed(0);
        let mut fences = VecDeque::new();
        for &slot in slots {
            let (version, record) = self.ledger.send(slot);
            self.counts.written += 1;
            let offset = slot * RECORD as u64;
            let sync = self.rng.random_ratio(SYNC_PERCENT, 100);
            let remote = if sync {
                file.at_sync(offset)
            } else {
                file.at(offset)
            };
            let source = Source::Bytes(record);
            let write = Operation::Write { source, remote };
            session.post(WorkRequest {
                signaled: false,
                ..WorkRequest::new(WrId(slot), write)
            })?;
            if sync {
                let fence = Operation::Read {
                    sink: LocalSlice::whole(&nothing),
                    remote: file.at(0),
                };
                session.post(WorkRequest::new(WrId(slot), fence))?;
                fences.push_back((slot, version));
            }
        }
        for (slot, version) in fences {
            session.success("READ of no bytes")?;
            self.ledger.acknowledge(slot, version);
            self.counts.acknowledged += 1;
        }
        session.fence(file)?;
        for &slot in slots {
            self.current[slot as usize] = self.ledger.last_sent(slot);
        }
        Ok(())
    }

    /// A READ returns what was written last (I2).
    fn read_back(&mut self, session: &mut Session, file: &RemoteFile, slot: u64) -> Result<()> {
        let mut found = Vec::with_capacity(RECORD);
        session.read(file, slot * RECORD as u64, RECORD as u64, |_, bytes| {
            found.extend_from_slice(bytes);
            Ok(())
        })?;
        let version = self.ledger.judge(slot, &found).context("while running")?;
        let current = self.current[slot as usize];
        ensure!(
            version == current,
            "slot {slot}: a READ returns version {version}, {current} was written"
        );
        self.counts.read += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use softrdma::PageError;

    /// Of a life in which nobody came to look at the file before it ended in order nothing is known but what was acknowledged.
    #[test]
    fn who_has_not_looked_knows_nothing() {
        let mut writer = Writer::new(0, 4 * RECORD as u64, 1);
        let (version, _) = writer.ledger.send(2);
        writer.current[2] = version;
        writer.ended_in_order();
        let nothing = vec![0; RECORD];
        assert_eq!(writer.ledger.judge(2, &nothing).unwrap(), 0);
        writer.judged = true;
        writer.ended_in_order();
        assert!(writer.ledger.judge(2, &nothing).is_err());
    }

    /// The end of a target explains a lost connection, and not what it has answered (I1).
    #[test]
    fn an_answer_is_no_lost_connection() {
        let address = "127.0.0.1:1".parse().expect("an address");
        let closed = |reason| ClientError::Closed { address, reason };
        let refused = ClientError::Refused {
            status: libc::ENOENT,
            message: "no such file".into(),
        };
        for (error, gone) in [
            (closed(CloseReason::Lost), true),
            (closed(CloseReason::Graceful), true),
            (closed(CloseReason::Storage(PageError::Media)), false),
            (refused, false),
        ] {
            let error = error.into();
            assert_eq!(is_gone(&error), gone, "{error}");
        }
    }
}
