//! The client's end of the log.

use std::collections::VecDeque;

use super::header::Header;
use super::layout::{Layout, RECORD_ALIGN};
use super::preset::Preset;
use super::record::{self, ENTRIES_MAX, Entry, Kind, RECORD_HEADER_BYTES, Record};
use super::recover::Found;
use crate::epoch::Epoch;
use crate::group::{Durability, Flight, Outcome, Primitive, PrimitiveError, Primitives};
use crate::planted::Bug;

/// Most bytes that [`initialize`] puts in one gWRITE.
const WRITE_BYTES: usize = 64 << 10;

/// Why a record was not appended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// There is no room until records have been carried out, or the rings of the members are full.
    #[error("the log is full: execute and advance, take outcomes, and append again")]
    Full,
    /// It never fits.
    #[error("a record of {bytes} bytes: at most {max}, half of the ring, fit")]
    Long {
        /// What it takes.
        bytes: u64,
        /// What there may be.
        max: u64,
    },
    /// An entry is outside of the data, or there are too many.
    #[error("{0}")]
    Entries(&'static str),
    /// The group does not take it.
    #[error(transparent)]
    Group(PrimitiveError),
}

/// What happened to a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogEvent {
    /// All members have this record and all before it.
    Appended(u64),
    /// All members have carried out this record and all before it.
    Executed(u64),
    /// The space of all records before this one can be used again.
    Truncated(u64),
    /// The group is no more. What was not acknowledged is unknown.
    Broken,
}

/// A log with the client that appends to it.
#[derive(Debug)]
pub struct Log {
    header: Header,
    durability: Durability,
    /// Copies of all records before this one are on media, in a group whose appends and copies are only visible.
    flushed: u64,
    sequence: u64,
    place: u64,
    flights: VecDeque<(Flight, Posted)>,
    kept: VecDeque<Kept>,
    rest: Option<Rest>,
    broken: bool,
    planted: Option<Bug>,
}

/// The record appended last, of which not all is posted: it is longer than a gWRITE can be. Nothing is appended before it is.
#[derive(Debug)]
struct Rest {
    sequence: u64,
    /// Where its first byte goes.
    at: u64,
    bytes: Vec<u8>,
    /// So many of them are posted.
    posted: usize,
}

/// A record that may be needed still.
#[derive(Debug)]
struct Kept {
    at: u64,
    end: u64,
    record: Record,
    state: State,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    Appending,
    Acknowledged,
    /// So many copies have been posted, so many answered.
    Copying {
        posted: usize,
        done: usize,
    },
    Executed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Posted {
    Skip,
    /// The beginning of a record, or its middle.
    Part,
    /// The end of a record, or all of it.
    Append(u64),
    Copy(u64),
    /// What has been copied of all records before this one becomes durable.
    Flush(u64),
    Mark(Header),
}

/// Posts a new life for all members: a header, free locks, no records. Their memory must be alike already.
/// It is done when the last of these flights is; nothing else may be under way.
///
/// # Errors
/// If the group does not take it. Then it has to be done again, all of it.
pub fn initialize(
    group: &mut impl Primitives,
    header: &Header,
) -> Result<Vec<Flight>, PrimitiveError> {
    let durability = Durability::Durable;
    let start = vec![0; header.layout.ring_at() as usize + RECORD_HEADER_BYTES];
    let mut flights = Vec::new();
    for (piece, bytes) in start.chunks(WRITE_BYTES).enumerate() {
        flights.push(group.post(Primitive::Write {
            offset: (piece * WRITE_BYTES) as u64,
            bytes: bytes.to_vec(),
            durability,
        })?);
    }
    flights.push(group.post(Primitive::Write {
        offset: header.at(),
        bytes: header.emit().to_vec(),
        durability,
    })?);
    Ok(flights)
}

impl Log {
    /// The log whose newest header this is. In each epoch the log starts empty, so it has to be read after the client
    /// connected; with the log's lock held, or nobody else may have it.
    #[must_use]
    pub fn open(header: Header, preset: Preset) -> Self {
        Self {
            header,
            durability: preset.durability,
            flushed: header.sequence,
            sequence: header.sequence,
            place: header.place,
            flights: VecDeque::new(),
            kept: VecDeque::new(),
            rest: None,
            broken: false,
            planted: None,
        }
    }

    /// A log that was found in the ring of any member: for logs that are not carried out, whose records outlive epochs and holders
    /// of the log's lock. All members have what was found.
    #[must_use]
    pub fn resume(found: &Found, preset: Preset) -> Self {
        let mut log = Self::open(found.header, preset);
        let layout = found.header.layout;
        let (mark, ring) = (found.header.place, layout.ring_bytes());
        for (at, record) in &found.records {
            let from_mark = (at - layout.ring_at() + ring - mark % ring) % ring;
            log.kept.push_back(Kept {
                at: *at,
                end: mark + from_mark + record.extent,
                record: record.clone(),
                state: State::Acknowledged,
            });
        }
        log.sequence = found.sequence;
        log.place = found.place;
        log
    }

    /// Number of the oldest record that is not truncated.
    #[must_use]
    pub fn begins(&self) -> u64 {
        self.header.sequence
    }

    /// Is nothing under way?
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.flights.is_empty() && self.rest.is_none()
    }

    #[doc(hidden)]
    pub fn plant(&mut self, bug: Option<Bug>) {
        self.planted = bug;
    }

    /// The epoch it belongs to.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.header.term
    }

    /// Number of the next record.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Is nothing under way, and nothing left to carry out?
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.kept.is_empty() && self.is_quiet()
    }

    /// Whether such a record can ever be appended: the bytes it takes in the ring.
    ///
    /// # Errors
    /// If not.
    pub fn check(layout: &Layout, entries: &[Entry]) -> Result<u64, AppendError> {
        if entries.is_empty() || entries.len() > ENTRIES_MAX {
            return Err(AppendError::Entries("a record has 1 to 256 entries"));
        }
        for entry in entries {
            let end = entry.offset.checked_add(entry.bytes.len() as u64);
            if entry.bytes.is_empty() || end.is_none_or(|end| end > layout.data_bytes()) {
                return Err(AppendError::Entries(
                    "an entry is empty, or not within the data",
                ));
            }
        }
        let (bytes, max) = (record::extent(entries), layout.ring_bytes() / 2);
        match bytes > max {
            true => Err(AppendError::Long { bytes, max }),
            false => Ok(bytes),
        }
    }

    /// Appends a record; `token` is the generation of the log's lock. [`LogEvent::Appended`] acknowledges it. One that is longer than
    /// a gWRITE can be is posted in parts, by this call and by those that follow, also of
    /// [`execute_and_advance`](Self::execute_and_advance).
    ///
    /// # Errors
    /// If there is no room, it can never be appended, or the group is no more.
    pub fn append(
        &mut self,
        group: &mut impl Primitives,
        token: u64,
        entries: &[Entry],
    ) -> Result<u64, AppendError> {
        if self.broken {
            let why = "the log was open in an epoch that is over".into();
            return Err(AppendError::Group(PrimitiveError::Broken(why)));
        }
        self.post_rest(group)?;
        let layout = self.header.layout;
        let bytes = Self::check(&layout, entries)?;
        let ring = layout.ring_bytes();
        let room = ring - self.place % ring;
        let skipped = if room < bytes { room } else { 0 };
        if self.place + skipped + bytes - self.header.place > ring {
            return Err(AppendError::Full);
        }
        if skipped > 0 {
            let what = (Kind::Skip, self.sequence, self.header.term, token);
            let skip = record::emit(self.header.salt, what, &[]);
            let at = layout.ring_at() + self.place % ring;
            self.write(group, at, skip, Posted::Skip)?;
            self.place += skipped;
        }
        let sequence = self.sequence;
        let what = (Kind::Redo, sequence, self.header.term, token);
        let emitted = record::emit(self.header.salt, what, entries);
        let parsed = record::parse(self.header.salt, &emitted, layout.data_bytes());
        let record = parsed.expect("what was just emitted is a record");
        let at = layout.ring_at() + self.place % ring;
        debug_assert!((emitted.len() as u64).is_multiple_of(RECORD_ALIGN));
        let longest = longest_part(group);
        if emitted.len() <= longest {
            self.write(group, at, emitted, Posted::Append(sequence))?;
        } else {
            self.write(group, at, emitted[..longest].to_vec(), Posted::Part)?;
            self.rest = Some(Rest {
                sequence,
                at,
                bytes: emitted,
                posted: longest,
            });
        }
        self.sequence += 1;
        self.place += bytes;
        self.kept.push_back(Kept {
            at,
            end: self.place,
            record,
            state: State::Appending,
        });
        // It has been taken; what there is no room for yet follows.
        let _ = self.post_rest(group);
        Ok(sequence)
    }

    /// Posts what is left of the record appended last.
    fn post_rest(&mut self, group: &mut impl Primitives) -> Result<(), AppendError> {
        let longest = longest_part(group);
        while let Some(mut rest) = self.rest.take() {
            let end = rest.bytes.len().min(rest.posted + longest);
            let part = rest.bytes[rest.posted..end].to_vec();
            let posted = match end == rest.bytes.len() {
                true => Posted::Append(rest.sequence),
                false => Posted::Part,
            };
            let written = self.write(group, rest.at + rest.posted as u64, part, posted);
            if written.is_ok() {
                rest.posted = end;
            }
            self.rest = Some(rest).filter(|rest| rest.posted < rest.bytes.len());
            written?;
        }
        Ok(())
    }

    fn write(
        &mut self,
        group: &mut impl Primitives,
        offset: u64,
        bytes: Vec<u8>,
        posted: Posted,
    ) -> Result<(), AppendError> {
        let write = Primitive::Write {
            offset,
            bytes,
            durability: self.durability,
        };
        match group.post(write) {
            Ok(flight) => {
                self.flights.push_back((flight, posted));
                Ok(())
            }
            Err(PrimitiveError::Full) => Err(AppendError::Full),
            Err(error) => Err(AppendError::Group(error)),
        }
    }

    /// Lets the members carry out what was acknowledged, then moves the mark; in a log that is not carried out, only the mark, to where it
    /// was [truncated](Self::truncate). Posts as much as the group takes now: call it again when outcomes came.
    pub fn execute_and_advance(&mut self, group: &mut impl Primitives) {
        if self.broken {
            return;
        }
        // If the group takes no more of it now, it does when outcomes came.
        let _ = self.post_rest(group);
        if self.header.executes {
            self.copy(group);
        }
        self.advance(group);
    }

    /// Gives up all acknowledged records before `sequence`, in a log whose records are not carried out by the members. If the group does
    /// not take that now, it does when an outcome of the log comes, or with [`execute_and_advance`](Self::execute_and_advance).
    pub fn truncate(&mut self, group: &mut impl Primitives, sequence: u64) {
        if self.broken || self.header.executes {
            return;
        }
        for kept in &mut self.kept {
            if kept.record.sequence < sequence && kept.state == State::Acknowledged {
                kept.state = State::Executed;
            }
        }
        self.advance(group);
    }

    fn copy(&mut self, group: &mut impl Primitives) {
        let data_at = self.header.layout.data_at();
        for kept in &mut self.kept {
            if kept.state == State::Acknowledged {
                kept.state = State::Copying { posted: 0, done: 0 };
            }
            let State::Copying { posted, .. } = &mut kept.state else {
                if kept.state == State::Executed {
                    continue;
                }
                break;
            };
            while let Some(copy) = kept.record.copies.get(*posted) {
                let memcpy = Primitive::Memcpy {
                    source: kept.at + copy.from,
                    destination: data_at + copy.to,
                    length: copy.length,
                    durability: self.durability,
                };
                let Ok(flight) = group.post(memcpy) else {
                    return;
                };
                let sequence = kept.record.sequence;
                self.flights.push_back((flight, Posted::Copy(sequence)));
                *posted += 1;
            }
        }
    }

    fn advance(&mut self, group: &mut impl Primitives) {
        let marking =
            |(_, posted): &(Flight, Posted)| matches!(posted, Posted::Mark(_) | Posted::Flush(_));
        if self.flights.iter().any(marking) {
            return;
        }
        // Members that persist vouch by their header after a cut, and what is only visible gets to media in any order: the mark may not
        // get there before the copies it stands for, nor what is appended in the space that it frees before the mark.
        let durability = match group.persists() && self.planted != Some(Bug::MarkNotFlushed) {
            true => Durability::Durable,
            false => self.durability,
        };
        let flushes = self.header.executes && durability != self.durability;
        let early = self.planted == Some(Bug::AdvanceBeforeCopy);
        let ready = |kept: &&Kept| match kept.state {
            State::Executed => true,
            State::Copying { posted, .. } => early && posted == kept.record.copies.len(),
            _ => false,
        };
        let copied = self.kept.iter().take_while(ready);
        let Some(last) = copied.clone().last() else {
            return;
        };
        let on_media = |kept: &&Kept| !flushes || kept.record.sequence < self.flushed;
        let vouched = copied.take_while(on_media).last();
        let is_new = |last: &&Kept| last.record.sequence >= self.header.sequence;
        let Some(vouched) = vouched.filter(is_new) else {
            let before = last.record.sequence + 1;
            if flushes
                && before > self.flushed
                && let Ok(flight) = group.post(Primitive::Flush)
            {
                self.flights.push_back((flight, Posted::Flush(before)));
            }
            return;
        };
        let header = (self.header).advanced(vouched.record.sequence + 1, vouched.end);
        let write = Primitive::Write {
            offset: header.at(),
            bytes: header.emit().to_vec(),
            durability,
        };
        if let Ok(flight) = group.post(write) {
            self.flights.push_back((flight, Posted::Mark(header)));
        }
    }

    /// Takes an outcome, if it is of this log.
    pub fn handle(
        &mut self,
        group: &mut impl Primitives,
        flight: Flight,
        result: &Result<Outcome, PrimitiveError>,
    ) -> Option<LogEvent> {
        let at = self.flights.iter().position(|(own, _)| *own == flight)?;
        let (_, posted) = self.flights.remove(at)?;
        if result.is_err() {
            self.broken = true;
            return Some(LogEvent::Broken);
        }
        match posted {
            Posted::Skip | Posted::Part => None,
            Posted::Append(sequence) => {
                self.kept(sequence)?.state = State::Acknowledged;
                if !self.header.executes {
                    // There may have been no room for the mark before.
                    self.advance(group);
                }
                Some(LogEvent::Appended(sequence))
            }
            Posted::Copy(sequence) => {
                let kept = self.kept(sequence)?;
                let State::Copying { done, .. } = &mut kept.state else {
                    return None;
                };
                *done += 1;
                if *done < kept.record.copies.len() {
                    return None;
                }
                kept.state = State::Executed;
                self.advance(group);
                self.release();
                Some(LogEvent::Executed(sequence))
            }
            Posted::Flush(before) => {
                self.flushed = before;
                self.advance(group);
                None
            }
            Posted::Mark(header) => {
                self.header = header;
                self.release();
                self.advance(group);
                Some(LogEvent::Truncated(header.sequence))
            }
        }
    }

    /// Forgets what is before the mark.
    fn release(&mut self) {
        let mark = self.header.place;
        let over = |kept: &Kept| kept.end <= mark && kept.state == State::Executed;
        while self.kept.front().is_some_and(over) {
            self.kept.pop_front();
        }
    }

    fn kept(&mut self, sequence: u64) -> Option<&mut Kept> {
        let first = self.kept.front()?.record.sequence;
        let at = usize::try_from(sequence.checked_sub(first)?).ok()?;
        self.kept.get_mut(at)
    }
}

/// Most bytes of a record in one gWRITE. A skip is one in any case.
fn longest_part(group: &impl Primitives) -> usize {
    let longest = group.longest_write().max(RECORD_ALIGN);
    usize::try_from(longest).unwrap_or(usize::MAX)
}
