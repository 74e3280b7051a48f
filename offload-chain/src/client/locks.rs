//! Locks, over changes of epochs.

use std::time::{Duration, Instant};

use rand::Rng;

use super::{Client, ClientError};
use crate::epoch::Epoch;
use crate::group::{PrimitiveError, Primitives};
use crate::lock::{LockError, LockEvent, LockId};

/// Between attempts to get a lock, at most.
const LOCK_RETRY: Duration = Duration::from_millis(4);

impl Client {
    /// Takes a lock, waiting for others to give it free. Its fencing token: epoch and generation.
    ///
    /// # Errors
    /// If it is not to be had in time, or this client is no more.
    pub fn lock(&mut self, lock: LockId, timeout: Duration) -> Result<(Epoch, u64), ClientError> {
        let deadline = Instant::now() + timeout;
        self.wanted = Some(lock);
        let locked = self.try_lock(lock, deadline);
        self.wanted = None;
        if locked.is_err() {
            // What comes of an attempt that is under way is given back.
            self.held.remove(&lock);
            self.give_back(lock);
        }
        locked
    }

    fn try_lock(&mut self, lock: LockId, deadline: Instant) -> Result<(Epoch, u64), ClientError> {
        loop {
            self.wait_for_group(deadline)?;
            let Some(group) = &mut self.group else {
                continue;
            };
            // After a change of epochs, an attempt whose outcome was lost may have taken it.
            if let Some(generation) = self.locks.token(lock) {
                let epoch = group.epoch;
                if lock == LockId::LOG && self.log.is_none() && self.open_log().is_err() {
                    self.check()?;
                    self.lost_group();
                    continue;
                }
                self.held.insert(lock);
                return Ok((epoch, generation));
            }
            match self.locks.wr_lock(&mut group.tcp, lock) {
                // Given back, it may be on its way still.
                Ok(()) | Err(LockError::Busy(_)) => {}
                Err(LockError::Group(PrimitiveError::Full)) => {}
                Err(LockError::Group(PrimitiveError::Broken(_))) => {
                    self.lost_group();
                    continue;
                }
                Err(error) => return Err(ClientError::Lock(error)),
            }
            let refused = matches!(
                self.next_lock_event(lock, deadline)?,
                Some(LockEvent::WrRefused(..) | LockEvent::WrUnlocked(_))
            );
            if refused {
                let pause = rand::rng().random_range(LOCK_RETRY / 4..LOCK_RETRY);
                self.turn(pause)?;
            }
            if Instant::now() >= deadline && self.locks.token(lock).is_none() {
                return Err(ClientError::TimedOut("a lock"));
            }
        }
    }

    /// Gives a lock free that nobody asks for any more, if it is this client's.
    pub(super) fn give_back(&mut self, lock: LockId) {
        if let Some(group) = &mut self.group
            && self.locks.token(lock).is_some()
        {
            // If it can not be posted, the group is broken, and the next epoch tries again.
            let _ = self.locks.wr_unlock(&mut group.tcp, lock);
        }
    }

    /// Gives a lock free. With the log's, everything appended is carried out first.
    ///
    /// # Errors
    /// If it was lost, or this client is no more.
    pub fn unlock(&mut self, lock: LockId) -> Result<(), ClientError> {
        let deadline = Instant::now() + self.settings.timeout;
        if !self.held.contains(&lock) {
            return Err(ClientError::Lost(lock));
        }
        loop {
            if lock == LockId::LOG {
                self.drain()?;
            }
            self.wait_for_group(deadline)?;
            if !self.held.contains(&lock) {
                return Err(ClientError::Lost(lock));
            }
            let Some(group) = &mut self.group else {
                continue;
            };
            if self.locks.token(lock).is_none() {
                // A change of epochs came between, and it is free since.
                self.held.remove(&lock);
                return Ok(());
            }
            self.log = self.log.take().filter(|_| lock != LockId::LOG);
            match self.locks.wr_unlock(&mut group.tcp, lock) {
                Ok(()) => {}
                Err(LockError::Group(PrimitiveError::Broken(_))) => {
                    self.lost_group();
                    continue;
                }
                Err(LockError::Group(PrimitiveError::Full)) => {
                    self.turn(LOCK_RETRY)?;
                    continue;
                }
                Err(error) => return Err(ClientError::Lock(error)),
            }
            match self.next_lock_event(lock, deadline)? {
                Some(LockEvent::WrUnlocked(_)) => {
                    self.held.remove(&lock);
                    return Ok(());
                }
                Some(LockEvent::Lost(_)) => return Err(self.end(ClientError::Lost(lock))),
                _ => {}
            }
        }
    }

    /// Takes a lock for reading at one member, by its place in the chain: no writer gets it meanwhile. It holds for this epoch,
    /// which is returned; a change of epochs ends it.
    ///
    /// # Errors
    /// If it is not to be had in time, or this client is no more.
    pub fn rd_lock(
        &mut self,
        lock: LockId,
        place: usize,
        timeout: Duration,
    ) -> Result<Epoch, ClientError> {
        let deadline = Instant::now() + timeout;
        loop {
            self.wait_for_group(deadline)?;
            let Some(group) = &mut self.group else {
                continue;
            };
            let (epoch, place) = (group.epoch, place.min(group.tcp.members() - 1));
            match self.locks.rd_lock(&mut group.tcp, lock, place) {
                Ok(()) => match self.next_lock_event(lock, deadline)? {
                    Some(LockEvent::RdLocked(..)) => return Ok(epoch),
                    _ => self.turn(LOCK_RETRY)?,
                },
                Err(LockError::Group(PrimitiveError::Full)) => self.turn(LOCK_RETRY)?,
                Err(LockError::Group(PrimitiveError::Broken(_))) => self.lost_group(),
                Err(error) => return Err(ClientError::Lock(error)),
            }
            if Instant::now() >= deadline {
                return Err(ClientError::TimedOut("a lock"));
            }
        }
    }

    /// Gives a lock for reading free.
    ///
    /// # Errors
    /// [`ClientError::Lost`] if it ended before, with its epoch: what was read under it since may have been changed.
    pub fn rd_unlock(&mut self, lock: LockId) -> Result<(), ClientError> {
        let deadline = Instant::now() + self.settings.timeout;
        let lost = ClientError::Lost(lock);
        loop {
            self.check()?;
            let Some(group) = &mut self.group else {
                return Err(lost);
            };
            match self.locks.rd_unlock(&mut group.tcp, lock) {
                Ok(()) => break,
                Err(LockError::Group(PrimitiveError::Full)) => self.turn(LOCK_RETRY)?,
                Err(_) => return Err(lost),
            }
        }
        match self.next_lock_event(lock, deadline)? {
            Some(LockEvent::RdUnlocked(..)) => Ok(()),
            _ => Err(lost),
        }
    }

    /// The next event of this lock; none, if the epoch ends before.
    fn next_lock_event(
        &mut self,
        lock: LockId,
        deadline: Instant,
    ) -> Result<Option<LockEvent>, ClientError> {
        while self.group.is_some() {
            while let Some(event) = self.lock_events.pop_front() {
                let of = match &event {
                    LockEvent::WrLocked(of, _)
                    | LockEvent::WrRefused(of, _)
                    | LockEvent::WrUnlocked(of)
                    | LockEvent::RdLocked(of, _)
                    | LockEvent::RdRefused(of, ..)
                    | LockEvent::RdUnlocked(of, _)
                    | LockEvent::Lost(of) => *of,
                    LockEvent::Broken => continue,
                };
                if of == lock {
                    return Ok(Some(event));
                }
            }
            self.turn(self.settings.timing.period)?;
            if Instant::now() >= deadline {
                return Err(ClientError::TimedOut("a lock"));
            }
        }
        Ok(None)
    }
}
