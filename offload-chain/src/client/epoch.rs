//! A client in one epoch after the other.

use std::time::{Duration, Instant};

use rand::Rng;

use super::flights::Flights;
use super::image::Image;
use super::reads::READ_BYTES;
use super::records::Pending;
use super::{Client, ClientError};
use crate::clock::until;
use crate::epoch::Epoch;
use crate::group::tcp::{Place, StartError, TcpClient};
use crate::group::{Denied, Outcome, Primitive, Primitives};
use crate::host::{link_config, shape_of};
use crate::lock::{LockId, Word};
use crate::log::{
    Found, HEADER_BYTES, HEADER_SLOT_BYTES, HEADER_SLOTS, Header, Layout, Log, RECORD_HEADER_BYTES,
    RecoverError, find,
};
use crate::memory::MemoryError;

/// Between attempts to connect, as long as there were [`SOON`] at most; then it is a period.
const RETRY: Duration = Duration::from_millis(2);
/// So much of a log is read at first.
const FIRST_STEP: u64 = 1 << 20;
/// Members take longer than that only if something is wrong.
const SOON: u32 = 32;

/// The group of the present epoch.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) tcp: TcpClient,
    pub(super) epoch: Epoch,
    pub(super) flights: Flights,
}

/// An epoch that this client wants to be connected in, and is not yet. Nothing that changes anything was posted in it.
#[derive(Debug)]
pub(super) struct Attempt {
    /// Of each member.
    places: Vec<Place>,
    /// A number is used once in an epoch.
    number: u16,
    next: Instant,
}

impl Attempt {
    pub(super) fn new(places: Vec<Place>, number: u16) -> Self {
        Self {
            places,
            number,
            next: Instant::now(),
        }
    }
}

/// What a call waits for came to nothing in this epoch; the next may bring it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Broken;

/// Why a client is not connected in an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Failed {
    Broken,
    /// Its number was used before: this is the next.
    Number(u32),
}

impl From<Broken> for Failed {
    fn from(Broken: Broken) -> Self {
        Self::Broken
    }
}

impl Client {
    /// When to try to connect, if that is to be tried.
    pub(super) fn next_attempt(&self) -> Option<Duration> {
        let attempt = self.attempt.as_ref().filter(|_| self.group.is_none())?;
        Some(attempt.next.saturating_duration_since(Instant::now()))
    }

    /// Tries to connect, if it is time. Members open an epoch when they hear of it, maybe later than this client. When some of them can
    /// not be reached for long, the epoch is doubted, but more and more seldom, in the next epochs too: maybe only this client is cut
    /// off, and each epoch that it asks for interrupts all others.
    pub(super) fn try_attempt(&mut self) {
        let due = self.next_attempt().is_some_and(|due| due.is_zero());
        let Some(mut attempt) = self.attempt.take_if(|_| due) else {
            return;
        };
        let why = match self.establish(&attempt) {
            Ok(()) => {
                self.epochs += 1;
                self.tries = 0;
                return;
            }
            Err(why) => why,
        };
        self.group = None;
        self.log = None;
        let lanes = u32::from(self.lanes());
        let next = match why {
            Failed::Number(next) => next,
            Failed::Broken => {
                self.tries = self.tries.saturating_add(1);
                if self.tries.is_power_of_two() && self.tries > 1 {
                    self.doubt(self.config.epoch);
                }
                u32::from(attempt.number) + lanes
            }
        };
        if self.ended.is_some() {
            return;
        }
        let Ok(number) = u16::try_from(next) else {
            // The next epoch has numbers again.
            return self.doubt(self.config.epoch);
        };
        let pause = match self.tries {
            ..=SOON => RETRY,
            _ => self.settings.timing.period,
        };
        attempt.number = number;
        attempt.next = Instant::now() + pause;
        self.attempt = Some(attempt);
    }

    fn lanes(&self) -> u16 {
        shape_of(&self.config).map_or(1, |shape| shape.lanes)
    }

    /// Connects in an epoch, and finds out what this client has in it.
    fn establish(&mut self, attempt: &Attempt) -> Result<(), Failed> {
        let shape = shape_of(&self.config).map_err(|_| Broken)?;
        let (link, seed) = (link_config(self.settings.tls.is_some()), rand::random());
        let patience = self.settings.timing.silence() * 2;
        let (number, places) = (attempt.number, &attempt.places);
        let connected = TcpClient::connect_to(shape, number, places, &link, seed, patience);
        let mut tcp = connected.map_err(|error| {
            tracing::debug!(%error, epoch = %self.config.epoch, "the group is not to be reached");
            match error {
                StartError::Denied(Denied::Client { next }) => Failed::Number(next),
                error => self.is_kept_out(error),
            }
        })?;
        tcp.spin(self.settings.spin);
        self.group = Some(Group {
            tcp,
            epoch: self.config.epoch,
            flights: Flights::default(),
        });
        let (at, locks) = (self.layout.lock_at(0), self.layout.locks() as usize);
        let words = self.read_now(at, locks * size_of::<Word>())?;
        let words = words.as_chunks::<8>().0.iter();
        let words: Vec<Word> = words.map(|word| Word(u64::from_le_bytes(*word))).collect();
        let kept = self.locks.adopt(&words);
        if let Some(&lost) = self.held.iter().find(|lock| !kept.contains(lock)) {
            self.end(ClientError::Lost(lost));
            return Err(Failed::Broken);
        }
        if self.held.contains(&LockId::LOG) {
            self.open_log()?;
        }
        // Of attempts whose outcome was lost.
        for lock in kept {
            if !self.held.contains(&lock) && self.wanted != Some(lock) {
                self.give_back(lock);
            }
        }
        Ok(())
    }

    /// Who has other files than the members, or speaks otherwise, is kept out until somebody has changed that. A new client ends with it, and the
    /// group hears nothing of it; one that was connected before goes on, as it does when members are gone: it may be one of them that was changed.
    fn is_kept_out(&mut self, error: StartError) -> Failed {
        let why = match error {
            StartError::Denied(Denied::NeedsTls) => ClientError::NeedsTls,
            StartError::Tls { address, cause } if !cause.passes() => {
                ClientError::Tls { address, cause }
            }
            _ => return Failed::Broken,
        };
        match self.epochs {
            0 => drop(self.end(why)),
            _ => tracing::warn!(%why, "the group is not to be reached"),
        }
        Failed::Broken
    }

    /// Any member.
    fn any_place(&self) -> usize {
        rand::rng().random_range(0..self.members())
    }

    /// Reads at any member, and does nothing else meanwhile.
    fn read_now(&mut self, offset: u64, length: usize) -> Result<Vec<u8>, Broken> {
        self.read_at(self.any_place(), offset, length)
    }

    fn read_at(&mut self, place: usize, offset: u64, length: usize) -> Result<Vec<u8>, Broken> {
        let patience = self.settings.timing.silence() * 4;
        let mut bytes = Vec::with_capacity(length);
        while bytes.len() < length {
            let read = Primitive::Read {
                member: place,
                offset: offset + bytes.len() as u64,
                length: (length - bytes.len()).min(READ_BYTES),
            };
            let group = self.group.as_mut().ok_or(Broken)?;
            let own = group.tcp.post(read).map_err(|_| Broken)?;
            let deadline = until(patience);
            loop {
                let group = self.group.as_mut().ok_or(Broken)?;
                let left = deadline.saturating_duration_since(Instant::now());
                match group.tcp.wait(left).map_err(|_| Broken)? {
                    Some((flight, Ok(Outcome::Read(read)))) if flight == own => {
                        bytes.extend(read);
                        break;
                    }
                    Some((_, Err(_))) | None => return Err(Broken),
                    Some((flight, result)) => self.outcome(flight, result),
                }
            }
        }
        Ok(bytes)
    }

    /// Has the log's lock: what was unknown is known, and it goes on.
    pub(super) fn open_log(&mut self) -> Result<(), Broken> {
        let header = self.newest_header()?;
        let log = match header.executes {
            // It starts empty in each epoch, and with each holder of the lock.
            true => Log::open(header, self.settings.preset),
            false => Log::resume(&self.longest_log(&header)?, self.settings.preset),
        };
        let end = log.sequence();
        if self.acknowledged > 0 && self.last_sequence >= end {
            self.end(ClientError::Damaged {
                acknowledged: self.last_sequence,
                found: end,
            });
            return Err(Broken);
        }
        let happened = |record: &Pending| record.sequence.is_some_and(|at| at < end);
        while self.pending.oldest().is_some_and(happened) {
            let record = self.pending.pop();
            self.acknowledged += 1;
            self.last_sequence = record
                .and_then(|record| record.sequence)
                .unwrap_or_default();
        }
        for record in self.pending.iter_mut() {
            record.sequence = None;
        }
        self.log = Some(log);
        Ok(())
    }

    /// The newest header of all members. With the log's lock its own they are alike, but where one is damaged: the one before it, which is
    /// left there, has numbers and space that have been used since.
    fn newest_header(&mut self) -> Result<Header, Broken> {
        let mut newest: Option<Header> = None;
        for place in 0..self.members() {
            let mut slots = Vec::new();
            for slot in 0..HEADER_SLOTS {
                slots.push(self.read_at(place, Layout::header_at(slot), HEADER_BYTES)?);
            }
            let found = Header::newest([&slots[0], &slots[1]]);
            newest =
                (newest.into_iter().chain(found)).max_by_key(|header| (header.term, header.count));
        }
        newest.ok_or(Broken)
    }

    /// The longest log of all members that have this header, for who has the log's lock: nobody appends or truncates meanwhile. Damage at one
    /// of them looks like the end; what is appended there would be written over what others have behind it.
    fn longest_log(&mut self, header: &Header) -> Result<Found, Broken> {
        let mut longest: Option<Found> = None;
        let (members, first) = (self.members(), self.any_place());
        for place in (first..members).chain(0..first) {
            if let Some(found) = &longest
                && !self.goes_on(place, found)?
            {
                continue;
            }
            let found = self.find_log_at(place)?.map(|(found, _)| found);
            let found = found.filter(|found| found.header == *header);
            longest = (longest.into_iter().chain(found)).max_by_key(|found| found.sequence);
        }
        longest.ok_or(Broken)
    }

    /// Whether a member seems to have more than was found elsewhere.
    fn goes_on(&mut self, place: usize, found: &Found) -> Result<bool, Broken> {
        let at = self.layout.ring_at() + found.place % self.layout.ring_bytes();
        let head = self.read_at(place, at, RECORD_HEADER_BYTES)?;
        Ok(found.goes_on(&head))
    }

    fn members(&self) -> usize {
        self.group.as_ref().map_or(1, |group| group.tcp.members())
    }

    /// The log as it is in the ring of a member; nothing, if it was truncated while it was read: the ring may be that of a later
    /// lap then, and show no record from the mark on.
    pub(super) fn find_log(&mut self) -> Result<Option<(Found, Image)>, Broken> {
        self.find_log_at(self.any_place())
    }

    fn find_log_at(&mut self, place: usize) -> Result<Option<(Found, Image)>, Broken> {
        let headers = (HEADER_SLOTS * HEADER_SLOT_BYTES) as usize;
        let before = self.read_at(place, 0, headers)?;
        let mut image = Image::new(self.layout, &before).ok_or(Broken)?;
        // The log may be a small part of the ring. What was read is looked through again with each step, so steps get longer.
        let mut step = FIRST_STEP;
        let found = loop {
            let mut read = 0;
            while read < step && !image.is_whole() {
                let next = image.next(step - read);
                let length = usize::try_from(next.end - next.start).map_err(|_| Broken)?;
                image.add(&self.read_at(place, next.start, length)?);
                read += length as u64;
            }
            match find(&image, None) {
                Ok(found) => break found,
                Err(RecoverError::Memory(MemoryError::Range { .. })) if !image.is_whole() => {}
                Err(_) => return Err(Broken),
            }
            step *= 2;
        };
        let after = self.read_at(place, 0, headers)?;
        Ok((after == before).then_some((found, image)))
    }
}
