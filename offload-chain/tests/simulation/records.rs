//! A client of a log that is not carried out: appends records, reads what there is, truncates.
//!
//! It appends and truncates with the log's lock, and reads with it or without. What it has appended when its group breaks is unknown to it
//! until it has read the log of the next epoch with the lock still its own; then it knows. If it has lost the lock it never will.

use std::time::Duration;

use offload_chain::Epoch;
use offload_chain::group::{Flight, Outcome, Primitive, PrimitiveError, Primitives};
use offload_chain::lock::{LockEvent, LockId, Locks, Slot, Word};
use offload_chain::log::{
    AppendError, Entry, Found, HEADER_BYTES, Header, Layout, Log, LogEvent, Preset, Record, find,
};
use offload_chain::planted::Bug;

use super::app::ClientBug;
use super::grants::Grant;
use super::order::{Account, Append, Reading, Truncation};
use super::support::mem::Mem;
use super::support::rng::Rng;

/// Bytes of records: from one that is nearly all header, to one that takes half of the smallest ring.
const LENGTHS: [usize; 4] = [8, 56, 120, 184];

#[derive(Debug)]
pub struct Recorder {
    pub index: usize,
    slot: Slot,
    layout: Layout,
    rng: Rng,
    locks: Locks,
    /// Open while it has the lock.
    log: Option<Log>,
    epoch: Epoch,
    step: Step,
    /// What it wants in the log, and does not know to be there.
    pending: Vec<Pending>,
    /// Generation of the log's lock under which records were posted, for when that is asked later.
    appended_under: Option<u64>,
    /// Where in the account the truncation under way is.
    truncating: Option<usize>,
    pub account: Account,
    pub grants: Vec<Grant>,
    pub completed: u64,
    values: u64,
    pub planted: (Option<Bug>, Option<ClientBug>),
    /// When to go on.
    pub wake: Option<Duration>,
    pub stop: bool,
    /// Only reads, and often.
    pub reader: bool,
    /// What cannot be, but is.
    pub wrong: Option<String>,
}

/// A record that is to be in the log.
#[derive(Debug)]
struct Pending {
    /// Where in the account.
    at: usize,
    /// In the log that is open.
    posted: bool,
}

#[derive(Debug)]
enum Step {
    /// No group.
    Away,
    /// Reading the lock words of a new epoch.
    Words(Flight),
    Idle,
    TakingLog,
    /// Has the lock, and is to read the log; or just reads.
    Opening,
    Looking(Look),
    Writing,
    Unlocking,
}

/// A reading of header, ring and header again, at one member.
#[derive(Debug)]
struct Look {
    begin: Duration,
    /// With the lock, to go on from there.
    opens: bool,
    /// Where each piece is in memory, and its bytes when they have come.
    pieces: Vec<(Flight, u64, Option<Vec<u8>>)>,
}

impl Look {
    /// Headers as they were before or after the ring.
    fn header(&self, pieces: std::ops::Range<usize>) -> Option<Header> {
        let slot = |at: usize| self.pieces[at].2.as_deref().unwrap_or_default();
        Header::newest([slot(pieces.start), slot(pieces.end - 1)])
    }

    fn image(&self, layout: &Layout) -> Mem {
        let mut image = Mem::new(layout.size());
        for (_, offset, bytes) in &self.pieces {
            image.put(*offset as usize, bytes.as_deref().unwrap_or_default());
        }
        image
    }
}

impl Recorder {
    pub fn new(index: usize, slot: Slot, layout: Layout, rng: Rng) -> Self {
        Self {
            index,
            slot,
            layout,
            rng,
            locks: Locks::new(layout, slot),
            log: None,
            epoch: Epoch(0),
            step: Step::Away,
            pending: Vec::new(),
            appended_under: None,
            truncating: None,
            account: Account::default(),
            grants: Vec::new(),
            completed: 0,
            values: 0,
            planted: (None, None),
            wake: None,
            stop: false,
            reader: false,
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
        self.step = group.post(read).map_or(Step::Away, Step::Words);
    }

    /// The group is broken.
    pub fn disconnect(&mut self) {
        self.step = Step::Away;
        self.log = None;
        self.truncating = None;
    }

    /// Its lock is gone, and with it the way to learn what happened.
    pub fn fenced(&mut self) {
        self.disconnect();
        self.locks = Locks::new(self.layout, self.slot);
        self.give_up();
    }

    /// What was posted stays open for ever; the rest will never be.
    fn give_up(&mut self) {
        self.appended_under = None;
        self.pending.clear();
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

    fn sleep(&mut self, now: Duration, most: u64) {
        let most = if self.reader { most / 8 } else { most };
        self.wake = Some(now + Duration::from_micros(self.rng.range(most / 4, most)));
    }

    fn rest(&mut self, now: Duration) {
        self.step = Step::Idle;
        self.sleep(now, 3000);
    }

    fn has_lock(&self) -> bool {
        self.locks.token(LockId::LOG).is_some()
    }

    /// Goes on, if it is time.
    pub fn wake(&mut self, now: Duration, group: &mut impl Primitives) {
        if self.wake.is_none_or(|wake| wake > now) {
            return;
        }
        self.wake = None;
        match self.step {
            Step::Idle => self.begin(now, group),
            Step::TakingLog if !self.has_lock() => self.take_log(now, group),
            Step::Opening => self.look(now, group),
            Step::Writing => self.go_on(now, group),
            Step::Unlocking => self.unlock(now, group),
            _ => {}
        }
    }

    fn begin(&mut self, now: Duration, group: &mut impl Primitives) {
        if self.stop && self.pending.is_empty() {
            if self.has_lock() {
                self.step = Step::Unlocking;
                self.unlock(now, group);
            }
            return;
        }
        if self.pending.is_empty() {
            if self.reader || self.rng.permille(400) {
                self.step = Step::Opening;
                return self.look(now, group);
            }
            for _ in 0..self.rng.range(1, 5) {
                self.values += 1;
                self.pending.push(Pending {
                    at: self.account.appends.len(),
                    posted: false,
                });
                self.account.appends.push(Append {
                    value: (self.index as u64 + 1) << 32 | self.values,
                    begin: now,
                    posted: Vec::new(),
                    end: None,
                });
            }
        }
        match (self.has_lock(), &self.log) {
            (true, Some(_)) => self.write(now, group),
            (true, None) => {
                self.step = Step::Opening;
                self.look(now, group);
            }
            (false, _) => {
                self.log = None;
                self.step = Step::TakingLog;
                self.take_log(now, group);
            }
        }
    }

    fn take_log(&mut self, now: Duration, group: &mut impl Primitives) {
        if self.locks.wr_lock(group, LockId::LOG).is_err() {
            self.sleep(now, 3000);
        }
    }

    /// Asks a member for what it has of the log. READs at one member are taken in order.
    fn look(&mut self, now: Duration, group: &mut impl Primitives) {
        let member = self.rng.below(group.members() as u64) as usize;
        let ring = self.layout.ring_at();
        let middle = ring + self.rng.range(1, self.layout.ring_bytes());
        let end = ring + self.layout.ring_bytes();
        let headers = [0, 1].map(|slot| (Layout::header_at(slot), HEADER_BYTES as u64));
        let pieces = [(ring, middle - ring), (middle, end - middle)];
        let mut look = Look {
            begin: now,
            opens: self.has_lock(),
            pieces: Vec::new(),
        };
        for (offset, length) in headers.into_iter().chain(pieces).chain(headers) {
            let read = Primitive::Read {
                member,
                offset,
                length: length as usize,
            };
            match group.post(read) {
                Ok(flight) => look.pieces.push((flight, offset, None)),
                // What has been asked for is not missed.
                Err(_) => return self.sleep(now, 2000),
            }
        }
        self.step = Step::Looking(look);
    }

    /// All of it has come.
    fn looked(&mut self, now: Duration, group: &mut impl Primitives) {
        let Step::Looking(look) = std::mem::replace(&mut self.step, Step::Idle) else {
            return;
        };
        let once = self.planted.1 == Some(ClientBug::HeaderReadOnce);
        if look.header(0..2) != look.header(4..6) && !once {
            // It was truncated meanwhile, and what was read may be of a later lap.
            self.step = Step::Opening;
            return self.sleep(now, 500);
        }
        let mut image = look.image(&self.layout);
        if once {
            for (_, offset, bytes) in &look.pieces[..2] {
                image.put(*offset as usize, bytes.as_deref().unwrap_or_default());
            }
        }
        let Ok(found) = find(&image, self.planted.0) else {
            self.step = Step::Opening;
            return self.sleep(now, 500);
        };
        match values_of(&found, &image) {
            Ok(values) => self.account.readings.push(Reading {
                begin: look.begin,
                end: now,
                exact: look.opens,
                first: found.header.sequence,
                values,
            }),
            Err(wrong) => self.wrong = Some(wrong),
        }
        self.completed += 1;
        if look.opens && self.log.is_none() {
            self.open(now, group, &found);
        } else {
            self.rest(now);
        }
    }

    /// Has the lock and the log: what was unknown is known, and it goes on.
    fn open(&mut self, now: Duration, group: &mut impl Primitives, found: &Found) {
        let token = self.locks.token(LockId::LOG);
        if self.appended_under.is_some() && self.appended_under != token {
            self.give_up();
        }
        self.appended_under = None;
        let retries = self.planted.1 == Some(ClientBug::RetryUnknown);
        let appends = &mut self.account.appends;
        self.pending.retain_mut(|pending| {
            let one = &mut appends[pending.at];
            let number = one.posted.last().copied();
            let number = number.filter(|number| pending.posted && *number < found.sequence);
            if number.is_some() && !retries {
                one.end = number.map(|number| (now, number));
                return false;
            }
            pending.posted = false;
            true
        });
        let mut log = Log::resume(found, Preset::REPLICATED);
        log.plant(self.planted.0);
        self.log = Some(log);
        self.write(now, group);
    }

    fn write(&mut self, now: Duration, group: &mut impl Primitives) {
        self.step = Step::Writing;
        self.go_on(now, group);
    }

    /// Posts what is pending and was not posted in this log.
    fn append(&mut self, group: &mut impl Primitives) {
        let (Some(log), Some(token)) = (&mut self.log, self.locks.token(LockId::LOG)) else {
            return;
        };
        for pending in self.pending.iter_mut().filter(|pending| !pending.posted) {
            let one = &mut self.account.appends[pending.at];
            let bytes = bytes_of(one.value);
            match log.append(group, token, &[Entry { offset: 0, bytes }]) {
                Ok(number) => {
                    one.posted.push(number);
                    pending.posted = true;
                    self.appended_under = Some(token);
                }
                Err(AppendError::Full | AppendError::Group(_)) => return,
                Err(error) => {
                    self.wrong = Some(error.to_string());
                    return;
                }
            }
        }
    }

    fn go_on(&mut self, now: Duration, group: &mut impl Primitives) {
        self.append(group);
        let Some(log) = &mut self.log else {
            return;
        };
        if !log.is_quiet() {
            return;
        }
        if let Some(at) = self.truncating {
            // The group had no room for it.
            log.truncate(group, self.account.truncations[at].before);
            return self.sleep(now, 1000);
        }
        let all = self.pending.is_empty();
        if log.begins() < log.sequence() && (!all || self.rng.permille(300)) {
            // For room, or since nobody needs them.
            let before = self.rng.range(log.begins(), log.sequence()) + 1;
            self.truncating = Some(self.account.truncations.len());
            self.account.truncations.push(Truncation {
                before,
                begin: now,
                end: None,
            });
            log.truncate(group, before);
            return self.sleep(now, 1000);
        }
        if !all {
            return self.sleep(now, 1000);
        }
        self.appended_under = None;
        if !self.stop && self.rng.permille(400) {
            return self.rest(now);
        }
        self.step = Step::Unlocking;
        self.unlock(now, group);
    }

    fn unlock(&mut self, now: Duration, group: &mut impl Primitives) {
        if self.locks.is_busy() {
            return;
        }
        self.log = None;
        if self.locks.wr_unlock(group, LockId::LOG).is_err() {
            self.sleep(now, 1000);
        }
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
            self.locked(now, &event);
        }
        if let Some(log) = &mut self.log
            && let Some(event) = log.handle(group, flight, result)
        {
            return self.logged(now, group, &event);
        }
        if let Some(event) = self.locks.handle(group, flight, result) {
            return self.locked(now, &event);
        }
        let Ok(Outcome::Read(bytes)) = result else {
            return;
        };
        match &mut self.step {
            Step::Words(own) if *own == flight => {
                let words = bytes.as_chunks::<8>().0.iter();
                let words: Vec<Word> = words.map(|word| Word(u64::from_le_bytes(*word))).collect();
                for lock in self.locks.adopt(&words) {
                    self.granted(now, lock, words[lock.0 as usize].generation());
                }
                let token = self.locks.token(LockId::LOG);
                if self.appended_under.is_some() && self.appended_under != token {
                    self.give_up();
                }
                self.step = if token.is_some() {
                    Step::Opening
                } else {
                    Step::Idle
                };
                self.wake = Some(now);
                self.wake(now, group);
            }
            Step::Looking(look) => {
                let piece = look.pieces.iter_mut().find(|(own, ..)| *own == flight);
                if let Some((.., found)) = piece {
                    *found = Some(bytes.clone());
                }
                if look.pieces.iter().all(|(.., found)| found.is_some()) {
                    self.looked(now, group);
                }
            }
            _ => {}
        }
    }

    fn logged(&mut self, now: Duration, group: &mut impl Primitives, event: &LogEvent) {
        match event {
            LogEvent::Appended(number) => {
                let appends = &mut self.account.appends;
                self.pending.retain(|pending| {
                    let one = &mut appends[pending.at];
                    let own = pending.posted && one.posted.last() == Some(number);
                    if own {
                        one.end = Some((now, *number));
                        self.completed += 1;
                    }
                    !own
                });
            }
            LogEvent::Truncated(before) => {
                let asked = self.truncating.map(|at| &mut self.account.truncations[at]);
                if let Some(asked) = asked.filter(|asked| asked.before <= *before) {
                    asked.end = Some(now);
                    self.truncating = None;
                    self.completed += 1;
                }
            }
            LogEvent::Executed(number) => {
                self.wrong = Some(format!("record {number} was carried out"));
            }
            LogEvent::Broken => return,
        }
        if matches!(self.step, Step::Writing) {
            self.go_on(now, group);
        }
    }

    fn locked(&mut self, now: Duration, event: &LockEvent) {
        if let LockEvent::WrLocked(lock, generation) = event {
            self.granted(now, *lock, *generation);
        }
        match (event, &self.step) {
            (LockEvent::WrLocked(..), Step::TakingLog) => {
                self.step = Step::Opening;
                self.wake = Some(now);
            }
            (LockEvent::WrRefused(..), Step::TakingLog) => self.sleep(now, 6000),
            (LockEvent::WrUnlocked(_), Step::Unlocking) => self.rest(now),
            (LockEvent::Broken, _) => self.sleep(now, 3000),
            (LockEvent::Lost(lock), _) => {
                let client = self.index;
                self.wrong = Some(format!("client {client} lost {lock:?} within an epoch"));
            }
            _ => {}
        }
    }

    pub fn is_done(&self) -> bool {
        matches!(self.step, Step::Idle) && self.pending.is_empty() && self.locks.is_idle()
    }

    pub fn describe(&self) -> String {
        format!(
            "{:?} {:?} {:?} wake {:?}",
            self.step, self.pending, self.locks, self.wake
        )
    }
}

/// What the records of a log say, if each is whole.
pub fn values_of(found: &Found, memory: &Mem) -> Result<Vec<u64>, String> {
    let value = |(at, record): &(u64, Record)| {
        let [copy] = record.copies[..] else {
            return None;
        };
        let start = (at + copy.from) as usize;
        let bytes = memory.bytes().get(start..start + copy.length as usize)?;
        let value = u64::from_le_bytes(*bytes.first_chunk()?);
        (bytes == bytes_of(value)).then_some(value)
    };
    let records = found.records.iter();
    let values: Option<Vec<u64>> = records.map(value).collect();
    values.ok_or_else(|| format!("a record is torn: {found:?}"))
}

/// The value, again and again.
fn bytes_of(value: u64) -> Vec<u8> {
    let length = LENGTHS[value as usize % LENGTHS.len()];
    value.to_le_bytes().repeat(length / 8)
}
