//! What takes as long as media take: done elsewhere, while the member goes on saying that it lives.
//!
//! A member has one piece of work under way, and does nothing else to its memory meanwhile. It does not seal before that has ended (R1):
//! what is found in its log then nobody changes any more.

use std::time::Duration;

use super::{Action, Member};
use crate::config::Store;
use crate::epoch::Epoch;
use crate::lock::{Slot, Word};
use crate::log::{
    HEADER_BYTES, HEADER_SLOTS, Header, Layout, RecoverError, adopt, find_header, format, recover,
};
use crate::membership::copy::Round;
use crate::memory::{Memory, MemoryError};
use crate::planted::Bug;

/// Something to be done with the memory of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work(Kind);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A new life.
    Format(Header),
    /// From here on it vouches for nothing, whatever happens, until it has recovered.
    Forget,
    /// What was copied is durable.
    Flush,
    Recover(Recovery),
}

/// What a log becomes in an epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Recovery {
    pub(super) epoch: Epoch,
    /// The source's, if the memory is a copy of its.
    pub(super) header: Option<Header>,
    pub(super) vouching: bool,
    pub(super) executes: bool,
    pub(super) fenced: Vec<Slot>,
    pub(super) end: Option<u64>,
    pub(super) planted: Option<Bug>,
}

/// What comes after it.
#[derive(Debug)]
pub(super) enum Then {
    Seal(Epoch),
    Go,
    Copied(Round),
    Recovered(Epoch),
}

/// What is under way.
#[derive(Debug)]
pub(super) struct UnderWay {
    then: Then,
    since: Duration,
}

impl UnderWay {
    pub(super) fn recovers(&self) -> bool {
        matches!(self.then, Then::Recovered(_))
    }
}

impl Work {
    /// Does it. Nobody else may change the memory meanwhile.
    ///
    /// # Errors
    /// If the memory fails, or has no log that can be recovered.
    pub fn run(&self, memory: &mut impl Memory) -> Result<(), RecoverError> {
        match &self.0 {
            Kind::Format(header) => format(memory, header),
            Kind::Forget => Ok(forget(memory)?),
            Kind::Flush => Ok(memory.flush()?),
            Kind::Recover(recovery) => recovery.run(memory),
        }
    }
}

fn forget(memory: &mut impl Memory) -> Result<(), MemoryError> {
    for slot in 0..HEADER_SLOTS {
        memory.write(Layout::header_at(slot), &[0; HEADER_BYTES])?;
    }
    memory.flush()
}

impl Recovery {
    fn run(&self, memory: &mut impl Memory) -> Result<(), RecoverError> {
        // R3: a vouching member has its own header.
        match &self.header {
            Some(header) if !self.vouching => {
                // Recovery makes it durable, before it writes its own.
                memory.write(header.at(), &header.emit())?;
            }
            Some(header) if !self.executes => adopt(memory, header)?,
            _ => {}
        }
        let layout = find_header(memory)?.layout;
        for lock in 0..layout.locks() {
            let at = layout.lock_at(lock);
            let mut word = [0; 8];
            memory.read(at, &mut word)?;
            let word = Word(u64::from_le_bytes(word)).in_new_epoch(&self.fenced);
            memory.write(at, &word.0.to_le_bytes())?;
        }
        recover(memory, self.epoch, self.end, self.planted)?;
        Ok(())
    }
}

impl Member {
    pub(super) fn begin(&mut self, kind: Kind, then: Then) {
        self.work = Some(UnderWay {
            then,
            since: self.now,
        });
        self.actions.push_back(Action::Work(Work(kind)));
    }

    /// Others wait for media that are slow, as long as they are not too slow.
    pub(super) fn work_counts(&self, now: Duration) -> bool {
        let patience = self.settings.media_patience;
        (self.work.as_ref()).is_some_and(|under_way| now < under_way.since + patience)
    }

    /// The work that [`Action::Work`] asked for has ended.
    pub fn done(
        &mut self,
        now: Duration,
        store: &mut impl Store,
        memory: &mut impl Memory,
        result: Result<(), RecoverError>,
    ) {
        self.now = now;
        let Some(UnderWay { then, .. }) = self.work.take() else {
            return;
        };
        let seals = self.closing.is_some();
        // What failed is tried again with the next look, and a round is followed by another when it says so.
        let mut goes_on = result.is_ok();
        match then {
            // What cannot be formatted has no log to report.
            Then::Seal(epoch) if self.closing == Some(epoch) => self.tell_sealed(memory, epoch),
            Then::Seal(_) | Then::Go => {}
            Then::Copied(round) => {
                goes_on = result.is_ok() && !seals && self.copied(round);
            }
            Then::Recovered(epoch) => self.recovered(memory, epoch, result),
        }
        if goes_on || seals {
            self.go_on(now, memory);
        }
        self.put_report(store);
    }
}
