//! Locks, over changes of epochs.

use std::time::{Duration, Instant};

use rand::Rng;

use super::{Client, ClientError};
use crate::clock::until;
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
        let deadline = until(timeout);
        let locked = self.about(lock, |client| client.try_lock(lock, deadline));
        if locked.is_err() && !self.held.contains(&lock) && self.locks.token(lock).is_some() {
            // What comes of an attempt that is under way is given back, too.
            self.give_back(lock);
        }
        locked
    }

    /// Does something about a lock, whose events are kept meanwhile.
    fn about<T>(&mut self, lock: LockId, act: impl FnOnce(&mut Self) -> T) -> T {
        self.lock_events.clear();
        self.wanted = Some(lock);
        let done = act(self);
        self.wanted = None;
        done
    }

    /// Something happened to a lock. What no call is waiting for is given back.
    pub(super) fn lock_event(&mut self, event: LockEvent) {
        let lock = match &event {
            LockEvent::WrLocked(lock, _)
            | LockEvent::WrRefused(lock, _)
            | LockEvent::WrUnlocked(lock)
            | LockEvent::RdLocked(lock, _)
            | LockEvent::RdRefused(lock, ..)
            | LockEvent::RdUnlocked(lock, _)
            | LockEvent::Lost(lock) => *lock,
            // The group is lost, which its turn finds.
            LockEvent::Broken => return,
        };
        if self.wanted == Some(lock) {
            return self.lock_events.push_back(event);
        }
        if let LockEvent::WrLocked(..) | LockEvent::RdLocked(..) = event {
            self.give_back(lock);
        }
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
                self.unwanted.remove(&lock);
                return Ok((epoch, generation));
            }
            match self.locks.wr_lock(&mut group.tcp, lock) {
                // Of an earlier attempt, something may be on its way still.
                Ok(()) => {}
                Err(LockError::Busy(_)) if self.unwanted.remove(&lock) => self.give_back(lock),
                Err(LockError::Busy(_)) => {}
                Err(LockError::Group(PrimitiveError::Full)) => {}
                Err(LockError::Group(PrimitiveError::Broken(_))) => {
                    self.lost_group();
                    continue;
                }
                Err(error) => return Err(ClientError::Lock(error)),
            }
            match self.next_lock_event(deadline)? {
                Some(LockEvent::WrRefused(..) | LockEvent::WrUnlocked(_)) => {
                    let pause = rand::rng().random_range(LOCK_RETRY / 4..LOCK_RETRY);
                    self.turn(pause)?;
                }
                // Nobody wants to read any more.
                Some(LockEvent::RdLocked(..)) => self.give_back(lock),
                _ => {}
            }
            if Instant::now() >= deadline && self.locks.token(lock).is_none() {
                return Err(ClientError::TimedOut("a lock"));
            }
        }
    }

    /// Gives a lock free that nobody asks for any more, if it is this client's.
    pub(super) fn give_back(&mut self, lock: LockId) {
        let Some(group) = &mut self.group else { return };
        let given = match self.locks.token(lock) {
            Some(_) => self.locks.wr_unlock(&mut group.tcp, lock),
            None => self.locks.rd_unlock(&mut group.tcp, lock),
        };
        // If it can not be posted for another reason, the group is broken: the next epoch tries again, and ends those of readers.
        if given == Err(LockError::Group(PrimitiveError::Full)) {
            self.unwanted.insert(lock);
        }
    }

    /// Does what the group had no room for.
    pub(super) fn retry_locks(&mut self) {
        if let Some(group) = &mut self.group {
            for event in self.locks.retry(&mut group.tcp) {
                self.lock_event(event);
            }
        }
        for lock in std::mem::take(&mut self.unwanted) {
            // What a call is about it may have come to have; if not, it is given back when there is room for that, or after the call.
            if self.wanted == Some(lock) {
                self.unwanted.insert(lock);
            } else if !self.held.contains(&lock) {
                self.give_back(lock);
            }
        }
    }

    /// Gives a lock free. Who has the log's lock, too, has everything appended carried out first: it may have been under this
    /// lock, and where this is free others take the bytes for those that all members have.
    ///
    /// # Errors
    /// If it was lost, or this client is no more.
    pub fn unlock(&mut self, lock: LockId) -> Result<(), ClientError> {
        if !self.held.contains(&lock) {
            return Err(ClientError::Lost(lock));
        }
        if self.held.contains(&LockId::LOG) {
            self.drain()?;
        }
        let deadline = until(self.settings.timeout);
        // From here on an epoch in which it is free is as good as any: this client does not count on it any more.
        self.held.remove(&lock);
        self.about(lock, |client| client.try_unlock(lock, deadline))
    }

    fn try_unlock(&mut self, lock: LockId, deadline: Instant) -> Result<(), ClientError> {
        loop {
            self.wait_for_group(deadline)?;
            let Some(group) = &mut self.group else {
                continue;
            };
            if self.locks.is_free(lock) {
                return Ok(());
            }
            self.log = self.log.take().filter(|_| lock != LockId::LOG);
            match self.locks.wr_unlock(&mut group.tcp, lock) {
                // On its way already.
                Ok(()) | Err(LockError::NotHeld(_)) => {}
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
            match self.next_lock_event(deadline)? {
                Some(LockEvent::WrUnlocked(_)) => return Ok(()),
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
        let deadline = until(timeout);
        self.about(lock, |client| client.try_rd_lock(lock, place, deadline))
    }

    fn try_rd_lock(
        &mut self,
        lock: LockId,
        place: usize,
        deadline: Instant,
    ) -> Result<Epoch, ClientError> {
        loop {
            self.wait_for_group(deadline)?;
            let Some(group) = &mut self.group else {
                continue;
            };
            let (epoch, place) = (group.epoch, place.min(group.tcp.members() - 1));
            match self.locks.rd_lock(&mut group.tcp, lock, place) {
                Ok(()) | Err(LockError::Group(PrimitiveError::Full)) => {}
                // Of an earlier attempt, something may be on its way still.
                Err(LockError::Busy(_)) if self.locks.is_under_way(lock) => {}
                Err(LockError::Busy(_)) if self.unwanted.remove(&lock) => self.give_back(lock),
                Err(LockError::Group(PrimitiveError::Broken(_))) => {
                    self.lost_group();
                    continue;
                }
                Err(error) => return Err(ClientError::Lock(error)),
            }
            let event = match self.locks.is_under_way(lock) {
                true => self.next_lock_event(deadline)?,
                false => None,
            };
            match event {
                Some(LockEvent::RdLocked(_, at)) if at == place => {
                    self.unwanted.remove(&lock);
                    return Ok(epoch);
                }
                // What was wanted earlier.
                Some(LockEvent::RdLocked(..) | LockEvent::WrLocked(..)) => self.give_back(lock),
                _ => self.turn(LOCK_RETRY)?,
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
        self.about(lock, |client| client.try_rd_unlock(lock))
    }

    fn try_rd_unlock(&mut self, lock: LockId) -> Result<(), ClientError> {
        let deadline = until(self.settings.timeout);
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
        match self.next_lock_event(deadline)? {
            Some(LockEvent::RdUnlocked(..)) => Ok(()),
            _ => Err(lost),
        }
    }

    /// The next event of the lock that this is about; none, if the epoch ends before.
    fn next_lock_event(&mut self, deadline: Instant) -> Result<Option<LockEvent>, ClientError> {
        while self.group.is_some() {
            if let Some(event) = self.lock_events.pop_front() {
                return Ok(Some(event));
            }
            self.turn(self.settings.timing.period)?;
            // Nobody would give back what has just come.
            let came = !self.lock_events.is_empty();
            if !came && Instant::now() >= deadline {
                return Err(ClientError::TimedOut("a lock"));
            }
        }
        Ok(None)
    }

    /// Waits for what is under way of locks that nobody asks for any more, so that it is given back; not for long. Whether this client has
    /// nothing of any lock then: what its slot had would be nobody's who is missed, and never free.
    pub(super) fn settle_locks(&mut self) -> bool {
        let deadline = until(self.settings.timing.silence());
        let is_busy = |client: &Self| client.locks.is_busy() || !client.unwanted.is_empty();
        while self.held.is_empty() && is_busy(self) && self.group.is_some() {
            if Instant::now() >= deadline || self.turn(self.settings.timing.period).is_err() {
                break;
            }
        }
        self.held.is_empty() && self.locks.is_idle()
    }
}
