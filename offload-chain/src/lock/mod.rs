//! Locks that live in the members' memory, taken by gCAS.
//!
//! A writer takes the word of all members, and gives back what it got if it did not get all: undo by the inverse map. A
//! reader takes a bit of the word of one member. Words name the attempt (generation and slot), so whoever does not learn
//! an outcome reads the word, and nothing takes effect twice. The argument is in `docs/log.md`.
//!
//! # Invariants
//! - K1. A lock is free at a member only when everything done under it was answered by all members.
//! - K2. While a reader's bit is set at a member, no writer has the lock at all members.
//! - K3. The generation of a lock changes with each writer that had it.
//!
//! # Failure
//! After [`LockEvent::Broken`] nothing is known: the lock may be this slot's, and is not [idle](Locks::is_idle). In the next epoch,
//! [`Locks::adopt`] says from the words what this slot has: a write lock may have been kept; readers' locks are gone. Who does not wait
//! for that has to be fenced.

mod word;

use std::collections::BTreeMap;

pub use word::{SLOTS_MAX, Slot, Word};

use crate::group::{Durability, Flight, MemberMap, Outcome, Primitive, PrimitiveError, Primitives};
use crate::log::Layout;

/// Number of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockId(pub u32);

impl LockId {
    /// The log's: who has it is the only one to append.
    pub const LOG: Self = Self(0);
}

/// What became of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockEvent {
    /// This slot writes. The generation is the fencing token, with the epoch.
    WrLocked(LockId, u64),
    /// Somebody else has it somewhere; what was taken has been given back. Try again, after a while.
    WrRefused(LockId, Vec<Word>),
    /// This slot does not write any more.
    WrUnlocked(LockId),
    /// This slot reads, at that member.
    RdLocked(LockId, usize),
    /// A writer has it at that member.
    RdRefused(LockId, usize, Word),
    /// This slot does not read any more.
    RdUnlocked(LockId, usize),
    /// It was not this slot's: lost to a new epoch, or damaged. What was done under it did not count on it in vain only if
    /// it was answered before.
    Lost(LockId),
    /// The group is no more.
    Broken,
}

/// Why a lock was not asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LockError {
    /// Something is under way for this lock, or it is already held.
    #[error("lock {0} is busy here: wait for its event, or unlock it first")]
    Busy(u32),
    /// It is not held.
    #[error("lock {0} is not held by this client")]
    NotHeld(u32),
    /// There is no such lock.
    #[error("there is no lock {0} in this group")]
    NoLock(u32),
    /// The group does not take it.
    #[error(transparent)]
    Group(#[from] PrimitiveError),
}

/// The locks of a client.
#[derive(Debug)]
pub struct Locks {
    layout: Layout,
    slot: Slot,
    states: BTreeMap<LockId, State>,
    /// Last generation seen.
    seen: BTreeMap<LockId, u64>,
    /// What was found, where the group took no more when the next step was due.
    due: BTreeMap<LockId, Vec<Option<u64>>>,
}

#[derive(Debug)]
struct State {
    flight: Option<Flight>,
    step: Step,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Taking {
        generation: u64,
    },
    Undoing {
        found: Vec<Word>,
    },
    Written {
        generation: u64,
    },
    Freeing,
    /// Expecting this word at the member.
    TakingBit {
        member: usize,
        expect: Word,
    },
    Reading {
        member: usize,
        expect: Word,
    },
    FreeingBit {
        member: usize,
        expect: Word,
    },
}

impl Locks {
    /// No locks, yet.
    #[must_use]
    pub fn new(layout: Layout, slot: Slot) -> Self {
        Self {
            layout,
            slot,
            states: BTreeMap::new(),
            seen: BTreeMap::new(),
            due: BTreeMap::new(),
        }
    }

    /// What this slot has, by the words of any member in a new epoch, where they are alike. Whatever was thought before is
    /// forgotten. Locks that are not wanted any more are to be unlocked.
    pub fn adopt(&mut self, words: &[Word]) -> Vec<LockId> {
        self.states.clear();
        self.due.clear();
        for (lock, word) in words.iter().enumerate() {
            let lock = LockId(lock as u32);
            self.seen.insert(lock, word.generation());
            if word.writer() == Some(self.slot.number()) {
                let generation = word.generation();
                let step = Step::Written { generation };
                self.states.insert(lock, State { flight: None, step });
            }
        }
        self.states.keys().copied().collect()
    }

    /// The token, if this slot is known to write.
    #[must_use]
    pub fn token(&self, lock: LockId) -> Option<u64> {
        match self.states.get(&lock)?.step {
            Step::Written { generation } => Some(generation),
            _ => None,
        }
    }

    /// Is nothing held, nothing under way, and nothing left where the group broke? Only then may the slot be given back without being fenced.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.states.is_empty()
    }

    /// Has this slot nothing of this lock, and is nothing of it under way?
    #[must_use]
    pub fn is_free(&self, lock: LockId) -> bool {
        !self.states.contains_key(&lock)
    }

    /// Is something under way?
    #[must_use]
    pub fn is_busy(&self) -> bool {
        !self.due.is_empty() || self.states.values().any(|state| state.flight.is_some())
    }

    /// Is something under way for this lock, of which an event comes?
    #[must_use]
    pub fn is_under_way(&self, lock: LockId) -> bool {
        let state = self.states.get(&lock);
        self.due.contains_key(&lock) || state.is_some_and(|state| state.flight.is_some())
    }

    /// Asks for the lock of all members.
    ///
    /// # Errors
    /// If it is busy, does not exist, or the group does not take it.
    pub fn wr_lock(&mut self, group: &mut impl Primitives, lock: LockId) -> Result<(), LockError> {
        self.check_idle(lock)?;
        let generation = self.seen.get(&lock).copied().unwrap_or(0);
        let all = MemberMap::first(group.members());
        let (old, new) = (
            Word::free(generation),
            Word::written(generation + 1, self.slot),
        );
        let flight = self.cas(group, lock, (old, new), all)?;
        let generation = new.generation();
        self.put(lock, flight, Step::Taking { generation });
        Ok(())
    }

    /// Gives the lock free. Everything done under it must have been answered (K1).
    ///
    /// # Errors
    /// If it is not held, or the group does not take it.
    pub fn wr_unlock(
        &mut self,
        group: &mut impl Primitives,
        lock: LockId,
    ) -> Result<(), LockError> {
        let generation = self.token(lock).ok_or(LockError::NotHeld(lock.0))?;
        let all = MemberMap::first(group.members());
        let words = (Word::written(generation, self.slot), Word::free(generation));
        let flight = self.cas(group, lock, words, all)?;
        self.seen.insert(lock, generation);
        self.put(lock, flight, Step::Freeing);
        Ok(())
    }

    /// Asks for a reader's lock at one member.
    ///
    /// # Errors
    /// If the lock is busy, does not exist, or the group does not take it.
    pub fn rd_lock(
        &mut self,
        group: &mut impl Primitives,
        lock: LockId,
        member: usize,
    ) -> Result<(), LockError> {
        self.check_idle(lock)?;
        let expect = Word::free(self.seen.get(&lock).copied().unwrap_or(0));
        self.take_bit(group, lock, member, expect)
    }

    /// Gives a reader's lock back.
    ///
    /// # Errors
    /// If it is not held, or the group does not take it.
    pub fn rd_unlock(
        &mut self,
        group: &mut impl Primitives,
        lock: LockId,
    ) -> Result<(), LockError> {
        let step = self.states.get(&lock).map(|state| state.step.clone());
        let Some(Step::Reading { member, expect }) = step else {
            return Err(LockError::NotHeld(lock.0));
        };
        self.free_bit(group, lock, member, expect)
    }

    fn take_bit(
        &mut self,
        group: &mut impl Primitives,
        lock: LockId,
        member: usize,
        expect: Word,
    ) -> Result<(), LockError> {
        let words = (expect, expect.with_reader(self.slot));
        let flight = self.cas(group, lock, words, MemberMap::one(member))?;
        self.put(lock, flight, Step::TakingBit { member, expect });
        Ok(())
    }

    fn free_bit(
        &mut self,
        group: &mut impl Primitives,
        lock: LockId,
        member: usize,
        expect: Word,
    ) -> Result<(), LockError> {
        let words = (expect, expect.without_reader(self.slot));
        let flight = self.cas(group, lock, words, MemberMap::one(member))?;
        self.put(lock, flight, Step::FreeingBit { member, expect });
        Ok(())
    }

    fn check_idle(&self, lock: LockId) -> Result<(), LockError> {
        if lock.0 >= self.layout.locks() {
            return Err(LockError::NoLock(lock.0));
        }
        match self.states.contains_key(&lock) {
            true => Err(LockError::Busy(lock.0)),
            false => Ok(()),
        }
    }

    fn put(&mut self, lock: LockId, flight: Flight, step: Step) {
        let flight = Some(flight);
        self.states.insert(lock, State { flight, step });
    }

    fn cas(
        &self,
        group: &mut impl Primitives,
        lock: LockId,
        (old, new): (Word, Word),
        execute: MemberMap,
    ) -> Result<Flight, PrimitiveError> {
        group.post(Primitive::Cas {
            offset: self.layout.lock_at(lock.0),
            old: old.0,
            new: new.0,
            execute,
            durability: Durability::Visible,
        })
    }

    /// Takes an outcome, if it is of one of these locks. What follows may have to wait until the group takes more: see
    /// [`retry`](Self::retry).
    pub fn handle(
        &mut self,
        group: &mut impl Primitives,
        flight: Flight,
        result: &Result<Outcome, PrimitiveError>,
    ) -> Option<LockEvent> {
        let of = |(lock, state): (&LockId, &State)| (state.flight == Some(flight)).then_some(*lock);
        let lock = self.states.iter().find_map(of)?;
        let Ok(Outcome::Cas(before)) = result else {
            return Some(LockEvent::Broken);
        };
        self.go_on(group, lock, before)
    }

    /// Does what was due when the group took no more.
    pub fn retry(&mut self, group: &mut impl Primitives) -> Vec<LockEvent> {
        let due = std::mem::take(&mut self.due);
        due.into_iter()
            .filter_map(|(lock, before)| self.go_on(group, lock, &before))
            .collect()
    }

    /// The next step of a lock of which this was found.
    fn go_on(
        &mut self,
        group: &mut impl Primitives,
        lock: LockId,
        before: &[Option<u64>],
    ) -> Option<LockEvent> {
        let State { step, .. } = self.states.remove(&lock)?;
        match self.step(group, lock, step.clone(), before) {
            Ok(event) => event,
            Err(error) => {
                // Whatever was taken is not given back: it is this slot's still, and in the next epoch maybe at all members.
                self.states.insert(lock, State { flight: None, step });
                if error == LockError::Group(PrimitiveError::Full) {
                    self.due.insert(lock, before.to_vec());
                    return None;
                }
                Some(LockEvent::Broken)
            }
        }
    }

    fn step(
        &mut self,
        group: &mut impl Primitives,
        lock: LockId,
        step: Step,
        before: &[Option<u64>],
    ) -> Result<Option<LockEvent>, LockError> {
        let words: Vec<Word> = before.iter().map(|word| Word(word.unwrap_or(0))).collect();
        match step {
            Step::Taking { generation } => {
                let old = Word::free(generation.wrapping_sub(1));
                let got = map_of(&words, |word| word == old);
                if got.len() == words.len() {
                    let step = Step::Written { generation };
                    self.states.insert(lock, State { flight: None, step });
                    return Ok(Some(LockEvent::WrLocked(lock, generation)));
                }
                let other = words.iter().find(|word| **word != old);
                self.seen
                    .insert(lock, other.map_or(0, |word| word.generation()));
                if got.is_empty() {
                    return Ok(Some(LockEvent::WrRefused(lock, words)));
                }
                let back = (Word::written(generation, self.slot), old);
                let flight = self.cas(group, lock, back, got)?;
                self.put(lock, flight, Step::Undoing { found: words });
                Ok(None)
            }
            Step::Undoing { found } => Ok(Some(LockEvent::WrRefused(lock, found))),
            Step::Freeing => {
                let mine = |word: Word| word.writer() == Some(self.slot.number());
                match map_of(&words, mine).len() == words.len() {
                    true => Ok(Some(LockEvent::WrUnlocked(lock))),
                    false => Ok(Some(LockEvent::Lost(lock))),
                }
            }
            Step::TakingBit { member, expect } => {
                let found = words[member];
                self.seen.insert(lock, found.generation());
                if found == expect {
                    let expect = expect.with_reader(self.slot);
                    let step = Step::Reading { member, expect };
                    self.states.insert(lock, State { flight: None, step });
                    return Ok(Some(LockEvent::RdLocked(lock, member)));
                }
                if found.writer().is_some() {
                    return Ok(Some(LockEvent::RdRefused(lock, member, found)));
                }
                // Other readers, or a newer generation.
                self.take_bit(group, lock, member, found)?;
                Ok(None)
            }
            Step::FreeingBit { member, expect } => {
                let found = words[member];
                if found == expect {
                    return Ok(Some(LockEvent::RdUnlocked(lock, member)));
                }
                if found.readers() >> self.slot.number() & 1 == 0 {
                    return Ok(Some(LockEvent::Lost(lock)));
                }
                self.free_bit(group, lock, member, found)?;
                Ok(None)
            }
            Step::Written { .. } | Step::Reading { .. } => Ok(Some(LockEvent::Lost(lock))),
        }
    }
}

fn map_of(words: &[Word], is: impl Fn(Word) -> bool) -> MemberMap {
    let members = words.iter().enumerate().filter(|(_, word)| is(**word));
    members.fold(MemberMap::NONE, |map, (member, _)| {
        MemberMap(map.0 | MemberMap::one(member).0)
    })
}
