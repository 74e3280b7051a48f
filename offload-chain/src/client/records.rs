//! Records of the log: handed over, acknowledged, carried out.

use std::collections::VecDeque;
use std::time::Instant;

use super::epoch::Broken;
use super::{Client, ClientError, Submitted};
use crate::clock::until;
use crate::group::{Durability, PrimitiveError};
use crate::lock::LockId;
use crate::log::{Entry, Log};

/// A record that is not known to be in the log.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) entries: Vec<Entry>,
    /// Its number in the log of the present epoch, or of the last one.
    pub(super) sequence: Option<u64>,
    /// Bytes it takes in the ring.
    bytes: u64,
}

/// The records that are not known to be in the log, oldest first: as many as the ring could hold (I16).
#[derive(Debug, Default)]
pub(super) struct Waiting {
    records: VecDeque<Pending>,
    /// In the ring.
    bytes: u64,
}

impl Waiting {
    fn push(&mut self, record: Pending) {
        self.bytes += record.bytes;
        self.records.push_back(record);
    }

    pub(super) fn pop(&mut self) -> Option<Pending> {
        let record = self.records.pop_front()?;
        self.bytes -= record.bytes;
        Some(record)
    }

    pub(super) fn oldest(&self) -> Option<&Pending> {
        self.records.front()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Pending> {
        self.records.iter_mut()
    }

    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }
}

impl Client {
    /// Appends a record and waits until it is acknowledged. Needs the log's lock.
    ///
    /// # Errors
    /// If it can never be appended, or this client is no more.
    pub fn append(&mut self, entries: Vec<Entry>) -> Result<(), ClientError> {
        let own = self.submit(entries)?;
        self.wait_for(own)
    }

    /// Hands over a record. It is acknowledged when [`acknowledged`](Self::acknowledged) has come to this number. When those that are
    /// not take as many bytes as the ring has, this waits.
    ///
    /// # Errors
    /// If it can never be appended, there is no room for it in time, or this client is no more: then it is not handed over.
    pub fn submit(&mut self, entries: Vec<Entry>) -> Result<Submitted, ClientError> {
        self.check()?;
        if !self.held.contains(&LockId::LOG) {
            return Err(ClientError::Lost(LockId::LOG));
        }
        let bytes = Log::check(&self.layout, &entries).map_err(ClientError::Append)?;
        if self.settings.preset.durability == Durability::Durable && !self.config.birth.durable {
            let why = "the members do not persist: records can only be made visible";
            return Err(ClientError::Group(PrimitiveError::Invalid(why)));
        }
        self.wait_for_room(bytes)?;
        self.pending.push(Pending {
            entries,
            sequence: None,
            bytes,
        });
        self.submitted += 1;
        self.push();
        Ok(self.submitted)
    }

    fn wait_for_room(&mut self, bytes: u64) -> Result<(), ClientError> {
        let deadline = until(self.settings.timeout);
        while self.pending.bytes + bytes > self.layout.ring_bytes() {
            self.turn(self.settings.timing.period)?;
            if Instant::now() >= deadline {
                return Err(ClientError::TimedOut("the members"));
            }
        }
        Ok(())
    }

    /// Waits until this record, and all before it, are acknowledged.
    ///
    /// # Errors
    /// If that can not be, or takes too long.
    pub fn wait_for(&mut self, record: Submitted) -> Result<(), ClientError> {
        let mut deadline = until(self.settings.timeout);
        let mut seen = self.acknowledged;
        while self.acknowledged < record {
            self.turn(self.settings.timing.period)?;
            if self.acknowledged != seen {
                seen = self.acknowledged;
                deadline = until(self.settings.timeout);
            }
            if Instant::now() >= deadline {
                return Err(ClientError::TimedOut("the members"));
            }
        }
        Ok(())
    }

    /// Waits until everything appended is carried out by all members; of a log that is not carried out, until nothing is under way.
    ///
    /// # Errors
    /// If that can not be, or takes too long.
    pub fn drain(&mut self) -> Result<(), ClientError> {
        let deadline = until(self.settings.timeout);
        loop {
            self.wait_for(self.submitted)?;
            self.wait_for_group(deadline)?;
            let executes = self.config.birth.executes;
            let idle = |log: &Log| log.is_idle() || (!executes && log.is_quiet());
            let idle = self.log.as_ref().is_none_or(idle);
            if self.group.is_some() && idle {
                return Ok(());
            }
            self.turn(self.settings.timing.period)?;
            if Instant::now() >= deadline {
                return Err(ClientError::TimedOut("the members to carry out the log"));
            }
        }
    }

    /// The records of a log that is not carried out, as any member has them: numbers in the log, offsets and bytes. What is under
    /// way may be among them.
    ///
    /// # Errors
    /// If the group is not there in time, or this client is no more.
    pub fn records(&mut self) -> Result<Vec<(u64, Vec<Entry>)>, ClientError> {
        let deadline = until(self.settings.timeout);
        loop {
            self.wait_for_group(deadline)?;
            match self.find_log() {
                Ok(Some((found, image))) => return Ok(image.entries(&found)),
                Ok(None) if Instant::now() >= deadline => {
                    return Err(ClientError::TimedOut(
                        "the log to be read between two truncations",
                    ));
                }
                Ok(None) => {}
                Err(Broken) => self.lost_group(),
            }
        }
    }

    /// Gives up the records of a log that is not carried out, before this number in the log, and makes room for those that wait. Needs
    /// the log's lock, and waits until all members have given them up.
    ///
    /// # Errors
    /// If this client has not the lock, or it takes too long.
    pub fn truncate(&mut self, before: u64) -> Result<(), ClientError> {
        let deadline = until(self.settings.timeout);
        loop {
            self.wait_for_group(deadline)?;
            if !self.held.contains(&LockId::LOG) {
                return Err(ClientError::Lost(LockId::LOG));
            }
            let (Some(group), Some(log)) = (&mut self.group, &mut self.log) else {
                continue;
            };
            if log.begins() >= before.min(log.sequence()) {
                return Ok(());
            }
            log.truncate(&mut group.tcp, before);
            self.turn(self.settings.timing.period)?;
            if Instant::now() >= deadline {
                return Err(ClientError::TimedOut("the members"));
            }
        }
    }

    /// Posts what waits, and lets the members carry out what is acknowledged.
    pub(super) fn push(&mut self) {
        let (Some(group), Some(log)) = (&mut self.group, &mut self.log) else {
            return;
        };
        log.execute_and_advance(&mut group.tcp);
        let Some(token) = self.locks.token(LockId::LOG) else {
            return;
        };
        let waiting = |record: &&mut Pending| record.sequence.is_none();
        for record in self.pending.iter_mut().filter(waiting) {
            match log.append(&mut group.tcp, token, &record.entries) {
                Ok(sequence) => record.sequence = Some(sequence),
                // Full, or broken, which the next turn finds.
                Err(_) => break,
            }
        }
    }
}
