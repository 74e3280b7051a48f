//! A client with something to do: reads, writes and swaps objects, under the group's locks and through its log.
//!
//! It takes turns with others as the log's writer. What it has appended when its group breaks is unknown to it until
//! it has read the header of the next epoch with the log's lock still its own; then it knows. If it has lost the lock it never
//! will, and the operation stays open.

use std::time::Duration;

use offload_chain::Epoch;
use offload_chain::group::{Flight, Outcome, Primitive, PrimitiveError, Primitives, Topology};
use offload_chain::lock::{LockEvent, LockId, Locks, Slot, Word};
use offload_chain::log::{Entry, HEADER_BYTES, Header, Layout, Log, LogEvent, Preset, ReadMode};
use offload_chain::membership::Birth;
use offload_chain::planted::Bug;
use offload_chain::read::{Object, Read, ReadEvent};

use super::check::{Kind, Operation};
use super::grants::Grant;
use super::support::rng::Rng;

pub const OBJECTS: u32 = 3;
pub const OBJECT_BYTES: usize = 120;

/// Bugs of the client, for M12.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientBug {
    /// Gives a lock free before what was done under it was answered.
    UnlockEarly,
    /// Appends again what it does not know about.
    RetryUnknown,
    /// Reads the log without looking whether it was truncated meanwhile.
    HeaderReadOnce,
}

#[derive(Debug)]
pub struct App {
    pub index: usize,
    slot: Slot,
    layout: Layout,
    tail_is_last: bool,
    pub preset: Preset,
    rng: Rng,
    locks: Locks,
    log: Option<Log>,
    epoch: Epoch,
    step: Step,
    /// What it is doing: one or more operations on different objects.
    jobs: Vec<Job>,
    /// Generation of the log's lock under which jobs were appended, for when that is asked later.
    appended_under: Option<u64>,
    pub history: Vec<Operation>,
    pub grants: Vec<Grant>,
    pub completed: u64,
    values: u64,
    pub planted: (Option<Bug>, Option<ClientBug>),
    /// When to go on.
    pub wake: Option<Duration>,
    pub stop: bool,
    /// Only reads, and often.
    pub reader: bool,
    /// Reads without locks at this member only.
    pub reads_at: Option<usize>,
    /// What cannot be, but is.
    pub wrong: Option<String>,
}

#[derive(Debug, Clone)]
struct Job {
    object: u32,
    kind: Wanted,
    begin: Duration,
    locked: bool,
    found: Option<u64>,
    sequence: Option<u64>,
    done: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Read,
    LockedRead,
    Write(u64),
    /// Whatever is there becomes this, if it still is when this client looks again; by what was seen last.
    Swap(u64, u64),
}

#[derive(Debug)]
enum Step {
    /// No group.
    Away,
    /// Reading all lock words of a new epoch.
    Words(Flight),
    /// Giving up locks that are not wanted.
    Dropping,
    Idle,
    Reading(Box<Read>),
    ReadLocking,
    ReadLocked(Flight),
    ReadUnlocking(Option<u64>),
    TakingLog,
    Header([Option<Flight>; 2], [Vec<u8>; 2]),
    TakingObjects,
    Looking(Flight, usize),
    Writing,
    Unlocking,
}

impl App {
    pub fn new(index: usize, slot: Slot, birth: Birth, rng: Rng) -> Self {
        let layout = birth.layout().unwrap();
        Self {
            index,
            slot,
            layout,
            tail_is_last: birth.topology == Topology::Chain,
            preset: Preset::STRICT,
            rng,
            locks: Locks::new(layout, slot),
            log: None,
            epoch: Epoch(0),
            step: Step::Away,
            jobs: Vec::new(),
            appended_under: None,
            history: Vec::new(),
            grants: Vec::new(),
            completed: 0,
            values: 0,
            planted: (None, None),
            wake: None,
            stop: false,
            reader: false,
            reads_at: None,
            wrong: None,
        }
    }

    /// The group of a new epoch.
    pub fn connect(&mut self, epoch: Epoch, group: &mut impl Primitives) {
        self.epoch = epoch;
        self.log = None;
        let read = Primitive::Read {
            member: self.rng.below(group.members() as u64) as usize,
            offset: self.layout.lock_at(0),
            length: self.layout.locks() as usize * 8,
        };
        self.step = match group.post(read) {
            Ok(flight) => Step::Words(flight),
            Err(_) => Step::Away,
        };
    }

    /// The group is broken.
    pub fn disconnect(&mut self) {
        self.step = Step::Away;
        self.log = None;
        // Reads can be begun again; they have no effect.
        for job in &mut self.jobs {
            job.locked = false;
            if job.sequence.is_none() {
                job.found = None;
            }
        }
    }

    /// Its locks are gone, and with them the way to learn what happened.
    pub fn fenced(&mut self) {
        self.disconnect();
        self.locks = Locks::new(self.layout, self.slot);
        self.give_up();
    }

    /// What was appended stays open for ever; the rest has not happened.
    fn give_up(&mut self) {
        self.appended_under = None;
        for job in std::mem::take(&mut self.jobs) {
            if job.sequence.is_some() && !job.done {
                self.record(&job, None);
            }
        }
    }

    fn granted(&mut self, at: Duration, lock: LockId, generation: u64) {
        self.grants.push(Grant {
            at,
            client: self.index,
            epoch: self.epoch,
            lock,
            generation,
        });
    }

    fn record(&mut self, job: &Job, end: Option<Duration>) {
        let kind = match (job.kind, job.found) {
            (Wanted::Write(value), _) => Kind::Write(value),
            (Wanted::Swap(old, new), Some(found)) if found == old => Kind::Swap(old, new),
            (_, Some(found)) => Kind::Read(found),
            (_, None) => return,
        };
        self.history.push(Operation {
            object: job.object as usize,
            client: self.index,
            kind,
            begin: job.begin,
            end,
        });
    }

    fn complete(&mut self, at: usize, now: Duration) {
        self.jobs[at].done = true;
        let job = self.jobs[at].clone();
        self.record(&job, Some(now));
        self.completed += 1;
    }

    fn value(&mut self) -> u64 {
        self.values += 1;
        (self.index as u64 + 1) << 32 | self.values
    }

    fn sleep(&mut self, now: Duration, most: u64) {
        let most = if self.reader { most / 8 } else { most };
        self.wake = Some(now + Duration::from_micros(self.rng.range(most / 4, most)));
    }

    /// Goes on, if it is time.
    pub fn wake(&mut self, now: Duration, group: &mut impl Primitives) {
        if self.wake.is_none_or(|wake| wake > now) {
            return;
        }
        self.wake = None;
        match self.step {
            Step::Idle => self.begin(now, group),
            Step::TakingLog if self.locks.token(LockId::LOG).is_none() => {
                self.take_log(now, group);
            }
            Step::TakingObjects => self.take_objects(now, group),
            Step::Writing => self.go_on_writing(now, group),
            Step::Unlocking | Step::Dropping => self.unlock(now, group),
            _ => {}
        }
    }

    fn begin(&mut self, now: Duration, group: &mut impl Primitives) {
        if self.jobs.is_empty() {
            if self.stop {
                if self.locks.token(LockId::LOG).is_some() {
                    self.step = Step::Unlocking;
                    self.unlock(now, group);
                }
                return;
            }
            self.choose(now);
        }
        let job = self.jobs[0].clone();
        match job.kind {
            Wanted::Read => {
                let member = self.rng.below(group.members() as u64) as usize;
                let member = self.reads_at.unwrap_or(member);
                let (object, mode) = (object(job.object), ReadMode::Clean);
                let last = self.tail_is_last;
                match Read::start(group, self.layout, object, member, mode, last) {
                    Ok(mut read) => {
                        read.plant(self.planted.0);
                        self.step = Step::Reading(Box::new(read));
                    }
                    Err(_) => self.sleep(now, 2000),
                }
            }
            Wanted::LockedRead => {
                let member = self.rng.below(group.members() as u64) as usize;
                match self.locks.rd_lock(group, LockId(job.object + 1), member) {
                    Ok(()) => self.step = Step::ReadLocking,
                    Err(_) => self.sleep(now, 2000),
                }
            }
            Wanted::Write(_) | Wanted::Swap(..) => {
                self.step = Step::TakingLog;
                match (&self.log, self.locks.token(LockId::LOG)) {
                    (Some(_), Some(_)) => self.have_log(now, group),
                    (None, Some(_)) => self.read_header(group),
                    (_, None) => {
                        self.log = None;
                        self.take_log(now, group);
                    }
                }
            }
        }
    }

    fn take_log(&mut self, now: Duration, group: &mut impl Primitives) {
        if self.locks.wr_lock(group, LockId::LOG).is_err() {
            self.sleep(now, 3000);
        }
    }

    fn choose(&mut self, now: Duration) {
        let job = |object, kind| Job {
            object,
            kind,
            begin: now,
            locked: false,
            found: None,
            sequence: None,
            done: false,
        };
        let object = self.rng.below(u64::from(OBJECTS)) as u32;
        match self.rng.below(10) {
            _ if self.reader => self.jobs.push(job(object, Wanted::Read)),
            0..4 => self.jobs.push(job(object, Wanted::Read)),
            4 => self.jobs.push(job(object, Wanted::LockedRead)),
            _ => {
                let objects = self.rng.range(1, u64::from(OBJECTS) + 1) as u32;
                for next in 0..objects {
                    let kind = match (self.rng.below(3), self.value()) {
                        (0, value) => Wanted::Swap(u64::MAX, value),
                        (_, value) => Wanted::Write(value),
                    };
                    self.jobs.push(job((object + next) % OBJECTS, kind));
                }
                // In one order, or two clients wait for each other.
                self.jobs.sort_by_key(|job| job.object);
            }
        }
    }

    fn read_header(&mut self, group: &mut impl Primitives) {
        let member = self.rng.below(group.members() as u64) as usize;
        let mut read = |slot| {
            let (offset, length) = (Layout::header_at(slot), HEADER_BYTES);
            let read = Primitive::Read {
                member,
                offset,
                length,
            };
            group.post(read).ok()
        };
        self.step = Step::Header([read(0), read(1)], [Vec::new(), Vec::new()]);
    }

    /// Has the lock and the header of the log: what was unknown is known, and it goes on.
    fn have_header(&mut self, now: Duration, group: &mut impl Primitives, header: Header) {
        let token = self.locks.token(LockId::LOG);
        if self.appended_under.is_some() && self.appended_under != token {
            self.give_up();
        }
        self.appended_under = None;
        for at in 0..self.jobs.len() {
            let happened =
                (self.jobs[at].sequence).is_some_and(|sequence| sequence < header.sequence);
            let trusting = self.planted.1 != Some(ClientBug::RetryUnknown);
            if self.jobs[at].sequence.is_none() || self.jobs[at].done {
                continue;
            }
            if happened && trusting {
                self.complete(at, now);
            } else {
                let job = &mut self.jobs[at];
                job.sequence = None;
                job.found = None;
                if let Wanted::Swap(_, new) = job.kind {
                    job.kind = Wanted::Swap(u64::MAX, new);
                }
            }
        }
        self.jobs.retain(|job| !job.done);
        let mut log = Log::open(header, self.preset);
        log.plant(self.planted.0);
        self.log = Some(log);
        match self.jobs.first().map(|job| job.kind) {
            Some(Wanted::Write(_) | Wanted::Swap(..)) => self.have_log(now, group),
            _ => {
                self.step = Step::Dropping;
                self.unlock(now, group);
            }
        }
    }

    fn have_log(&mut self, now: Duration, group: &mut impl Primitives) {
        self.step = Step::TakingObjects;
        self.take_objects(now, group);
    }

    fn take_objects(&mut self, now: Duration, group: &mut impl Primitives) {
        for job in &mut self.jobs {
            job.locked = self.locks.token(LockId(job.object + 1)).is_some();
        }
        let Some(job) = self.jobs.iter().find(|job| !job.locked) else {
            return self.look(now, group);
        };
        match self.locks.wr_lock(group, LockId(job.object + 1)) {
            Ok(()) | Err(offload_chain::lock::LockError::Busy(_)) => {}
            Err(_) => self.sleep(now, 2000),
        }
    }

    /// Reads what swaps compare with.
    fn look(&mut self, now: Duration, group: &mut impl Primitives) {
        let swaps = |job: &Job| matches!(job.kind, Wanted::Swap(..)) && job.found.is_none();
        let Some(at) = self.jobs.iter().position(swaps) else {
            self.step = Step::Writing;
            return self.append(now, group);
        };
        let object = object(self.jobs[at].object);
        let read = Primitive::Read {
            member: self.rng.below(group.members() as u64) as usize,
            offset: self.layout.data_at() + object.offset,
            length: object.length,
        };
        if let Ok(flight) = group.post(read) {
            self.step = Step::Looking(flight, at);
        }
    }

    fn append(&mut self, now: Duration, group: &mut impl Primitives) {
        for at in 0..self.jobs.len() {
            let job = self.jobs[at].clone();
            if job.done || job.sequence.is_some() {
                continue;
            }
            let value = match (job.kind, job.found) {
                (Wanted::Write(value), _) => value,
                (Wanted::Swap(_, new), Some(_)) => {
                    // One in four compares with what is not there, and so only reads.
                    if self.rng.permille(250) {
                        self.complete(at, now);
                        continue;
                    }
                    new
                }
                _ => continue,
            };
            let (Some(log), Some(token)) = (&mut self.log, self.locks.token(LockId::LOG)) else {
                return;
            };
            let entry = Entry {
                offset: object(job.object).offset,
                bytes: bytes_of(value),
            };
            match log.append(group, token, &[entry]) {
                Ok(sequence) => {
                    self.jobs[at].sequence = Some(sequence);
                    if let (Wanted::Swap(_, new), Some(found)) = (job.kind, job.found) {
                        self.jobs[at].kind = Wanted::Swap(found, new);
                    }
                    self.appended_under = Some(token);
                }
                Err(_) => break,
            }
        }
        self.go_on_writing(now, group);
    }

    fn go_on_writing(&mut self, now: Duration, group: &mut impl Primitives) {
        if let Some(log) = &mut self.log {
            log.execute_and_advance(group);
        }
        let early = self.planted.1 == Some(ClientBug::UnlockEarly);
        let over = |job: &Job| job.done || (early && job.sequence.is_some());
        if self.jobs.iter().all(over) {
            self.step = Step::Unlocking;
            return self.unlock(now, group);
        }
        if self
            .jobs
            .iter()
            .any(|job| job.sequence.is_none() && !job.done)
        {
            let waiting = self.wake.is_some();
            if !waiting {
                self.sleep(now, 1000);
            }
        }
    }

    /// Gives locks free, objects first; the log's only sometimes, and when nothing is under way.
    fn unlock(&mut self, now: Duration, group: &mut impl Primitives) {
        if self.locks.is_busy() {
            return;
        }
        let held = (1..=OBJECTS)
            .map(LockId)
            .find(|lock| self.locks.token(*lock).is_some());
        if let Some(lock) = held {
            let _ = self.locks.wr_unlock(group, lock);
            return;
        }
        if self.jobs.iter().any(|job| !job.done) && !matches!(self.step, Step::Dropping) {
            return;
        }
        if !matches!(self.step, Step::Dropping) {
            self.jobs.clear();
            self.appended_under = None;
        }
        let keeps = !self.stop && self.rng.permille(400);
        if self.locks.token(LockId::LOG).is_some() && !keeps {
            match &mut self.log {
                Some(log) if !log.is_idle() => {
                    log.execute_and_advance(group);
                    return self.sleep(now, 500);
                }
                _ => {}
            }
            if self.appended_under.is_none() {
                self.log = None;
                let _ = self.locks.wr_unlock(group, LockId::LOG);
                return;
            }
        }
        self.step = Step::Idle;
        self.sleep(now, 3000);
    }

    /// An outcome of the group.
    pub fn handle(
        &mut self,
        now: Duration,
        group: &mut impl Primitives,
        flight: Flight,
        result: &Result<Outcome, PrimitiveError>,
    ) {
        if result.is_err() {
            return;
        }
        for event in self.locks.retry(group) {
            self.locked(now, group, &event);
        }
        if let Some(log) = &mut self.log
            && let Some(event) = log.handle(group, flight, result)
        {
            return self.logged(now, group, &event);
        }
        if let Some(event) = self.locks.handle(group, flight, result) {
            return self.locked(now, group, &event);
        }
        let Ok(Outcome::Read(bytes)) = result else {
            return;
        };
        match &mut self.step {
            Step::Words(own) if *own == flight => {
                let words: Vec<Word> = bytes
                    .chunks_exact(8)
                    .map(|word| Word(u64::from_le_bytes(word.try_into().unwrap())))
                    .collect();
                for lock in self.locks.adopt(&words) {
                    self.granted(now, lock, words[lock.0 as usize].generation());
                }
                let token = self.locks.token(LockId::LOG);
                if self.appended_under.is_some() && self.appended_under != token {
                    self.give_up();
                }
                if self.appended_under.is_some() {
                    self.read_header(group);
                } else {
                    self.step = Step::Dropping;
                    self.unlock(now, group);
                }
            }
            Step::Header(flights, found) => {
                let Some(slot) = flights.iter().position(|own| *own == Some(flight)) else {
                    return;
                };
                flights[slot] = None;
                found[slot].clone_from(bytes);
                if flights.iter().all(Option::is_none)
                    && let Some(header) = Header::newest([&found[0], &found[1]])
                {
                    self.have_header(now, group, header);
                }
            }
            Step::Looking(own, at) if *own == flight => {
                let at = *at;
                self.jobs[at].found = Some(value_of(bytes));
                self.look(now, group);
            }
            Step::ReadLocked(own) if *own == flight => {
                let value = value_of(bytes);
                self.step = Step::ReadUnlocking(Some(value));
                let lock = LockId(self.jobs[0].object + 1);
                let _ = self.locks.rd_unlock(group, lock);
            }
            Step::Reading(read) => match read.handle(group, flight, result) {
                Some(ReadEvent::Done(bytes, _)) => {
                    self.jobs[0].found = Some(value_of(&bytes));
                    self.complete(0, now);
                    self.jobs.clear();
                    self.step = Step::Idle;
                    self.sleep(now, 2000);
                }
                Some(_) => {
                    self.step = Step::Idle;
                    self.sleep(now, 2000);
                }
                None => {}
            },
            _ => {}
        }
    }

    fn logged(&mut self, now: Duration, group: &mut impl Primitives, event: &LogEvent) {
        match event {
            LogEvent::Appended(_) | LogEvent::Truncated(_) | LogEvent::Broken => {}
            LogEvent::Executed(sequence) => {
                let own = |job: &Job| job.sequence == Some(*sequence) && !job.done;
                if let Some(at) = self.jobs.iter().position(own) {
                    self.complete(at, now);
                }
            }
        }
        if matches!(self.step, Step::Writing) {
            self.append(now, group);
        } else if matches!(self.step, Step::Unlocking) {
            self.wake = Some(now);
            self.wake(now, group);
        } else if let Some(log) = &mut self.log {
            log.execute_and_advance(group);
        }
    }

    fn locked(&mut self, now: Duration, group: &mut impl Primitives, event: &LockEvent) {
        if let LockEvent::WrLocked(lock, generation) = event {
            self.granted(now, *lock, *generation);
        }
        match (event, &self.step) {
            (LockEvent::WrLocked(LockId::LOG, _), Step::TakingLog) => self.read_header(group),
            (LockEvent::WrLocked(..), Step::TakingObjects) => self.take_objects(now, group),
            (LockEvent::WrRefused(..), Step::TakingLog) => self.sleep(now, 6000),
            (LockEvent::WrRefused(..), Step::TakingObjects) => self.sleep(now, 3000),
            (LockEvent::WrUnlocked(_), Step::Unlocking | Step::Dropping) => {
                self.unlock(now, group);
            }
            (LockEvent::RdLocked(lock, member), Step::ReadLocking) => {
                let object = object(lock.0 - 1);
                let read = Primitive::Read {
                    member: *member,
                    offset: self.layout.data_at() + object.offset,
                    length: object.length,
                };
                if let Ok(flight) = group.post(read) {
                    self.step = Step::ReadLocked(flight);
                }
            }
            (LockEvent::RdRefused(..), Step::ReadLocking) => {
                self.step = Step::Idle;
                self.sleep(now, 3000);
            }
            (LockEvent::RdUnlocked(..), Step::ReadUnlocking(value)) => {
                self.jobs[0].found = *value;
                self.complete(0, now);
                self.jobs.clear();
                self.step = Step::Idle;
                self.sleep(now, 2000);
            }
            (LockEvent::Broken, _) => self.sleep(now, 3000),
            (LockEvent::Lost(lock), _) => {
                self.wrong = Some(format!(
                    "client {} lost {lock:?} within an epoch",
                    self.index
                ));
            }
            _ => {}
        }
    }

    /// At the end: what is not known stays open.
    pub fn end(&mut self) {
        self.give_up();
    }

    pub fn is_done(&self) -> bool {
        matches!(self.step, Step::Idle) && self.jobs.is_empty() && self.locks.is_idle()
    }

    /// Goes to sleep, if it is doing nothing.
    pub fn nap(&mut self, until: Duration) -> bool {
        let idle = self.is_done();
        if idle {
            self.wake = Some(until);
        }
        idle
    }

    pub fn describe(&self) -> String {
        format!(
            "{:?} {:?} {:?} wake {:?}",
            self.step, self.jobs, self.locks, self.wake
        )
    }
}

/// An object, which can tell whether it is whole.
pub fn object(number: u32) -> Object {
    Object {
        offset: u64::from(number) * 128,
        length: OBJECT_BYTES,
        lock: LockId(number + 1),
        whole: |bytes| bytes.iter().all(|byte| *byte == 0) || bytes == bytes_of(value_of(bytes)),
    }
}

/// The value, again and again, and a checksum.
pub fn bytes_of(value: u64) -> Vec<u8> {
    let mut bytes = value.to_le_bytes().repeat(OBJECT_BYTES / 8 - 1);
    bytes.extend(u64::from(crc(&bytes)).to_le_bytes());
    bytes
}

pub fn value_of(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().unwrap())
}

fn crc(bytes: &[u8]) -> u32 {
    bytes.iter().fold(7u32, |sum, byte| {
        (sum ^ u32::from(*byte)).wrapping_mul(16_777_619)
    })
}
