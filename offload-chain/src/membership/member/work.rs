//! What takes as long as media take: done elsewhere, while the member goes on saying that it lives.
//!
//! A member has one piece of work under way, and does nothing else to its memory meanwhile. It does not seal before that has ended (R1):
//! what is found in its log then nobody changes any more.

use std::time::Duration;

use super::done::{Counted, Done};
use super::{Action, Member};
use crate::config::Store;
use crate::epoch::Epoch;
use crate::lock::{Slot, Word};
use crate::log::{
    HEADER_BYTES, HEADER_SLOTS, Header, Layout, RecoverError, adopt, find, find_header, format,
    recover,
};
use crate::membership::copy::Round;
use crate::memory::{Memory, MemoryError};
use crate::planted::Bug;

/// Something to be done with the memory of a member.
#[derive(Clone, Debug)]
pub struct Work {
    kind: Kind,
    done: Done,
}

/// The same is to be done.
impl PartialEq for Work {
    fn eq(&self, other: &Self) -> bool {
        self.kind == other.kind
    }
}

impl Eq for Work {}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A new life.
    Format(Header),
    /// From here on it vouches for nothing, whatever happens, until it has recovered.
    Forget,
    /// What was copied is durable.
    Flush,
    /// How far the log goes.
    Look(Looking),
    Recover(Recovery),
}

/// What is looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Looking {
    /// The group's first header: another group's log is none.
    pub(super) birth: Header,
    pub(super) active_epoch: Epoch,
    pub(super) planted: Option<Bug>,
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
    Look(Epoch),
    Seal(Epoch),
    Tell,
    Go,
    Copied(Round),
    Recovered(Epoch),
}

/// What is under way.
#[derive(Debug)]
pub(super) struct UnderWay {
    then: Then,
    done: Done,
    /// How much was done when that was last looked at and had changed.
    seen: (u64, Duration),
}

impl UnderWay {
    pub(super) fn recovers(&self) -> bool {
        matches!(self.then, Then::Recovered(_))
    }
}

impl Work {
    /// Does it. Nobody else may change the memory meanwhile. Term and end of the log, if it was looked at and there is one.
    ///
    /// # Errors
    /// If the memory fails, or has no log that can be recovered.
    pub fn run(&self, memory: &mut impl Memory) -> Result<Option<(Epoch, u64)>, RecoverError> {
        let done = &self.done;
        let memory = &mut Counted { memory, done };
        match &self.kind {
            Kind::Format(header) => format(memory, header)?,
            Kind::Forget => forget(memory)?,
            Kind::Flush => memory.flush()?,
            Kind::Look(looking) => return Ok(looking.run(memory)),
            Kind::Recover(recovery) => return recovery.run(memory).map(Some),
        }
        Ok(None)
    }
}

fn forget(memory: &mut impl Memory) -> Result<(), MemoryError> {
    for slot in 0..HEADER_SLOTS {
        memory.write(Layout::header_at(slot), &[0; HEADER_BYTES])?;
    }
    memory.flush()
}

impl Looking {
    /// Term and end of the log. Memory that fails has none.
    pub(super) fn run(&self, memory: &mut impl Memory) -> Option<(Epoch, u64)> {
        let found = find(memory, self.planted).ok();
        let found = found.filter(|found| found.header.salt == self.birth.salt);
        if self.planted == Some(Bug::BlankVouches) && found.is_none() {
            let header = Header {
                term: self.active_epoch,
                ..self.birth
            };
            let _ = format(memory, &header);
            return Some((header.term, 1));
        }
        found.map(|found| (found.header.term, found.sequence))
    }
}

impl Recovery {
    fn run(&self, memory: &mut impl Memory) -> Result<(Epoch, u64), RecoverError> {
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
        let found = recover(memory, self.epoch, self.end, self.planted)?;
        // As whoever looks would find it now.
        Ok((self.epoch, found.sequence))
    }
}

impl Member {
    pub(super) fn begin(&mut self, kind: Kind, then: Then) {
        let done = Done::default();
        self.work = Some(UnderWay {
            then,
            done: done.clone(),
            seen: (0, self.now),
        });
        self.actions.push_back(Action::Work(Work { kind, done }));
    }

    /// Others wait for media that are slow, as long as they are not too slow for any step; and for work that is long, as a large log is.
    pub(super) fn work_counts(&mut self, now: Duration) -> bool {
        let patience = self.settings.media_patience;
        let Some(under_way) = &mut self.work else {
            return false;
        };
        let done = under_way.done.count();
        if under_way.seen.0 != done {
            under_way.seen = (done, now);
        }
        now < under_way.seen.1 + patience
    }

    /// The work that [`Action::Work`] asked for has ended, with this result.
    pub fn done(
        &mut self,
        now: Duration,
        store: &mut impl Store,
        memory: &mut impl Memory,
        result: Result<Option<(Epoch, u64)>, RecoverError>,
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
            Then::Look(epoch) if self.closing == Some(epoch) => self.look_at_log(memory, epoch),
            Then::Seal(epoch) if self.closing == Some(epoch) => {
                self.tell_sealed(epoch, result.unwrap_or_default());
            }
            Then::Tell => {
                self.tell_log(result.unwrap_or_default());
                goes_on = false;
            }
            Then::Look(_) | Then::Seal(_) | Then::Go => {}
            Then::Copied(round) => {
                goes_on = result.is_ok() && !seals && self.copied(round);
            }
            Then::Recovered(epoch) => self.recovered(epoch, result),
        }
        if goes_on || seals {
            self.go_on(now, memory);
        }
        self.put_report(store);
    }
}
