//! Reads of objects without locks: clean at any member, otherwise of the tail (CRAQ).
//!
//! An object is a range of the data with a lock of its own; whoever changes it holds the lock. Three READs are posted
//! together: word, bytes, word. Equal words without a writer say that the bytes are whole, and that all members have them (K1).
//! Otherwise the tail is asked, which has only what all have; there the bytes are taken if the object's own checksum
//! says that they are whole. The argument is in `docs/log.md`.

use crate::group::{Flight, Outcome, Primitive, PrimitiveError, Primitives};
use crate::lock::{LockId, Word};
use crate::log::{Layout, ReadMode};
use crate::planted::Bug;

/// What is read.
#[derive(Clone, Copy, Debug)]
pub struct Object {
    /// Where, from the start of the data.
    pub offset: u64,
    /// Bytes.
    pub length: usize,
    /// The lock under which it is changed.
    pub lock: LockId,
    /// Whether the bytes are whole, by what they say about themselves.
    pub whole: fn(&[u8]) -> bool,
}

/// Where an answer came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// The member that was asked: nobody was changing it.
    Clean(usize),
    /// The tail.
    Tail,
    /// The member that was asked, whatever was going on.
    Eventual(usize),
}

/// What came of a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadEvent {
    /// The bytes.
    Done(Vec<u8>, Source),
    /// They are just being changed, also at the tail. Read again.
    Again,
    /// The group is no more. Read again in the next epoch.
    Broken,
}

/// A read under way.
#[derive(Debug)]
pub struct Read {
    object: Object,
    layout: Layout,
    mode: ReadMode,
    /// Whether the last member is the last to carry anything out: a chain, not a star.
    tail_is_last: bool,
    member: usize,
    flights: [Option<Flight>; 3],
    found: (Option<Word>, Option<Vec<u8>>, Option<Word>),
    at_tail: bool,
    planted: Option<Bug>,
}

impl Read {
    /// Starts to read at a member.
    ///
    /// # Errors
    /// If the group does not take it.
    pub fn start(
        group: &mut impl Primitives,
        layout: Layout,
        object: Object,
        member: usize,
        mode: ReadMode,
        tail_is_last: bool,
    ) -> Result<Self, PrimitiveError> {
        let end = object.offset.checked_add(object.length as u64);
        if end.is_none_or(|end| end > layout.data_bytes()) || object.lock.0 >= layout.locks() {
            return Err(PrimitiveError::Invalid(
                "the object, or its lock, is outside of the group's memory",
            ));
        }
        let mut read = Self {
            object,
            layout,
            mode,
            tail_is_last,
            member,
            flights: [None; 3],
            found: (None, None, None),
            at_tail: tail_is_last && member + 1 == group.members(),
            planted: None,
        };
        read.post(group)?;
        Ok(read)
    }

    #[doc(hidden)]
    pub fn plant(&mut self, bug: Option<Bug>) {
        self.planted = bug;
    }

    fn post(&mut self, group: &mut impl Primitives) -> Result<(), PrimitiveError> {
        let (word_at, data_at) = (
            self.layout.lock_at(self.object.lock.0),
            self.layout.data_at() + self.object.offset,
        );
        self.found = (None, None, None);
        self.flights = [None; 3];
        let ranges = [
            (word_at, size_of::<Word>()),
            (data_at, self.object.length),
            (word_at, size_of::<Word>()),
        ];
        for (flight, (offset, length)) in self.flights.iter_mut().zip(ranges) {
            *flight = Some(group.post(Primitive::Read {
                member: self.member,
                offset,
                length,
            })?);
        }
        Ok(())
    }

    /// Takes an outcome, if it is of this read.
    pub fn handle(
        &mut self,
        group: &mut impl Primitives,
        flight: Flight,
        result: &Result<Outcome, PrimitiveError>,
    ) -> Option<ReadEvent> {
        let part = self.flights.iter().position(|own| *own == Some(flight))?;
        self.flights[part] = None;
        let Ok(Outcome::Read(bytes)) = result else {
            self.flights = [None; 3];
            return Some(ReadEvent::Broken);
        };
        let word = || {
            bytes
                .as_slice()
                .try_into()
                .ok()
                .map(u64::from_le_bytes)
                .map(Word)
        };
        match part {
            0 => self.found.0 = word(),
            1 => self.found.1 = Some(bytes.clone()),
            _ => self.found.2 = word(),
        }
        if self.flights.iter().any(Option::is_some) {
            return None;
        }
        let (Some(before), Some(bytes), Some(after)) =
            (self.found.0, self.found.1.take(), self.found.2)
        else {
            return Some(ReadEvent::Again);
        };
        self.judge(group, before, bytes, after)
    }

    fn judge(
        &mut self,
        group: &mut impl Primitives,
        before: Word,
        bytes: Vec<u8>,
        after: Word,
    ) -> Option<ReadEvent> {
        let whole = (self.object.whole)(&bytes);
        if self.mode == ReadMode::Eventual {
            return Some(match whole {
                true => ReadEvent::Done(bytes, Source::Eventual(self.member)),
                false => ReadEvent::Again,
            });
        }
        let quiet = before.writer().is_none()
            && after.writer().is_none()
            && before.generation() == after.generation();
        if quiet || (self.planted == Some(Bug::DirtyAnswered) && whole) {
            return Some(ReadEvent::Done(bytes, Source::Clean(self.member)));
        }
        if self.at_tail && whole {
            return Some(ReadEvent::Done(bytes, Source::Tail));
        }
        if self.at_tail || !self.tail_is_last {
            return Some(ReadEvent::Again);
        }
        self.at_tail = true;
        self.member = group.members() - 1;
        match self.post(group) {
            Ok(()) => None,
            Err(_) => Some(ReadEvent::Again),
        }
    }
}
