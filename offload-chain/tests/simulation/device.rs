//! What a member keeps its memory on: the same bytes for its agent, and for its engine as pages that come late and are durable later.
//!
//! A request for durability takes time, and makes durable what had changed in its pages when it was made; what changes
//! meanwhile is as lost as before. Pages that come late are those that are there when they come.
//!
//! Media may fail ([`Trouble`]): a page cannot be read, or what was to become durable may not be. After a failure nothing is read or
//! written any more until the process starts again, as `group::MemberFile` has it (I8): of what was to become durable some is, and some
//! never will be, while the device takes all of it for done. What an agent is given with an error is not what was there.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use offload_chain::group::{Answer, Store};
use offload_chain::memory::{Memory, MemoryError};
use softrdma::{
    BackingId, GetPage, Intent, PAGE_BYTES, Page, PageError, PageRange, PageStore, Ticket,
};

use super::support::mem::Mem;
use super::support::rng::Rng;

/// What is wrong with media.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// This page cannot be read.
    Read(u64),
    /// Nothing can be made durable.
    Flush,
}

/// Bugs of what stands between media and their users, for M12.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediaBug {
    /// After a failed flush the next one is believed.
    FlushBelieved,
    /// A page that could not be read is taken for read, with what the buffer had.
    ReadTaken,
}

/// What a buffer has before anything is read into it.
const BUFFER: u8 = 0xee;

#[derive(Debug)]
struct Media {
    mem: Mem,
    rng: Rng,
    /// What is wrong, and whether it is for good.
    trouble: Option<(Trouble, bool)>,
    /// In this life of the process.
    failed: bool,
    failures: u64,
    planted: Option<MediaBug>,
}

impl Media {
    /// Whether this goes wrong now.
    fn fails(&mut self, now: Option<Trouble>) -> bool {
        let struck = now.is_some() && self.trouble.map(|(trouble, _)| trouble) == now;
        if struck {
            self.trouble = self.trouble.filter(|(_, lasts)| *lasts);
            self.failures += 1;
            self.failed |= match self.planted {
                Some(MediaBug::FlushBelieved) => now != Some(Trouble::Flush),
                Some(MediaBug::ReadTaken) => now == Some(Trouble::Flush),
                None => true,
            };
        }
        if let (true, Some(Trouble::Read(page)), Some(MediaBug::ReadTaken)) =
            (struck, now, self.planted)
        {
            self.mem.put(page as usize * PAGE_BYTES, &[BUFFER; 64]);
            return self.failed;
        }
        struck || self.failed
    }

    fn cannot_read(&mut self, offset: u64, length: usize) -> bool {
        let page = PAGE_BYTES as u64;
        let mut pages = offset / page..(offset + length as u64).div_ceil(page);
        let bad = self.trouble.map(|(trouble, _)| trouble).filter(
            |trouble| matches!(trouble, Trouble::Read(bad) if pages.any(|page| page == *bad)),
        );
        self.fails(bad)
    }
}

fn error() -> MemoryError {
    MemoryError::Device("by the seed".into())
}

/// Memory that an agent and an engine have in common.
#[derive(Clone, Debug)]
pub struct Device(Rc<RefCell<Media>>);

impl Device {
    pub fn new(size: u64, planted: Option<MediaBug>, rng: Rng) -> Self {
        Self(Rc::new(RefCell::new(Media {
            mem: Mem::new(size),
            rng,
            trouble: None,
            failed: false,
            failures: 0,
            planted,
        })))
    }

    /// Does something with the bytes, whatever is wrong.
    pub fn with<T>(&self, what: impl FnOnce(&mut Mem) -> T) -> T {
        what(&mut self.0.borrow_mut().mem)
    }

    /// Something is wrong from now on: the next time it matters, or until it is [`mended`](Self::mend).
    pub fn trouble(&self, trouble: Trouble, lasts: bool) {
        self.0.borrow_mut().trouble = Some((trouble, lasts));
    }

    pub fn mend(&self) {
        self.0.borrow_mut().trouble = None;
    }

    /// The process ends, and with it what it knew of failures.
    pub fn restart(&self) {
        self.0.borrow_mut().failed = false;
    }

    pub fn has_failed(&self) -> bool {
        self.0.borrow().failed
    }

    pub fn failures(&self) -> u64 {
        self.0.borrow().failures
    }

    /// Whether these bytes can be had.
    pub fn can_read(&self, offset: u64, length: usize) -> bool {
        !self.0.borrow_mut().cannot_read(offset, length)
    }

    /// Whether something can be made durable. These words are lost if not.
    pub fn can_flush(&self, words: &[usize]) -> bool {
        let media = &mut *self.0.borrow_mut();
        let fails = media.fails(Some(Trouble::Flush));
        if fails {
            media.mem.lose_words(words, &mut media.rng);
        }
        !fails
    }

    /// Makes words durable, if it can.
    pub fn keep(&self, words: &[usize]) -> bool {
        let can = self.can_flush(words);
        if can {
            self.with(|mem| mem.keep_words(words));
        }
        can
    }

    /// Words that are not durable.
    pub fn dirty(&self) -> Vec<usize> {
        self.with(|mem| mem.dirty_words(0, mem.bytes().len()))
    }
}

impl Memory for Device {
    fn size(&self) -> u64 {
        self.0.borrow().mem.size()
    }

    fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), MemoryError> {
        let mut media = self.0.borrow_mut();
        if media.cannot_read(offset, to.len()) {
            to.fill(BUFFER);
            return Err(error());
        }
        media.mem.read(offset, to)
    }

    fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), MemoryError> {
        let mut media = self.0.borrow_mut();
        match media.fails(None) {
            true => Err(error()),
            false => media.mem.write(offset, from),
        }
    }

    fn flush(&mut self) -> Result<(), MemoryError> {
        let kept = self.keep(&self.dirty());
        kept.then_some(()).ok_or_else(error)
    }

    fn generation(&self) -> u64 {
        self.0.borrow().mem.generation()
    }

    fn changed_since(&self, generation: u64) -> Vec<u64> {
        self.0.borrow().mem.changed_since(generation)
    }
}

/// Something that the device was asked for and that takes time.
#[derive(Debug)]
enum Asked {
    Page(u64, Ticket),
    /// Words that had changed.
    Durable(Vec<usize>, Ticket),
}

/// What takes time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    Page,
    Flush,
}

/// The pages of a device, for one engine.
#[derive(Debug)]
pub struct Pages {
    device: Device,
    rng: Rng,
    /// Of a thousand pages, how many come late.
    late: u64,
    numbers: u64,
    asked: BTreeMap<u64, Asked>,
    /// Asked for since this was last looked at.
    new: Vec<(u64, Work)>,
    answers: VecDeque<Answer<DevicePage>>,
}

#[derive(Debug)]
pub struct DevicePage {
    device: Device,
    first: usize,
}

impl Pages {
    pub fn new(device: &Device, late: u64, rng: Rng) -> Self {
        Self {
            device: device.clone(),
            rng,
            late,
            numbers: 0,
            asked: BTreeMap::new(),
            new: Vec::new(),
            answers: VecDeque::new(),
        }
    }

    /// What was asked for since the last call: [`done`](Self::done) is due for each.
    pub fn take_new(&mut self) -> Vec<(u64, Work)> {
        std::mem::take(&mut self.new)
    }

    /// The device has done it.
    pub fn done(&mut self, number: u64) {
        match self.asked.remove(&number) {
            Some(Asked::Page(page, ticket)) => {
                let page = self.page(page).ok_or(PageError::Media);
                self.answers.push_back(Answer::Page(ticket, page));
            }
            Some(Asked::Durable(words, ticket)) => {
                let kept = self.device.keep(&words);
                let result = kept.then_some(()).ok_or(PageError::Media);
                self.answers.push_back(Answer::Durable(ticket, result));
            }
            None => {}
        }
    }

    fn ask(&mut self, asked: Asked, work: Work) {
        self.numbers += 1;
        self.asked.insert(self.numbers, asked);
        self.new.push((self.numbers, work));
    }

    /// None, if it cannot be read.
    fn page(&self, page: u64) -> Option<DevicePage> {
        let first = page as usize * PAGE_BYTES;
        let device = self.device.clone();
        let there = self.device.can_read(first as u64, PAGE_BYTES);
        (there).then_some(DevicePage { device, first })
    }
}

impl PageStore for Pages {
    type Page = DevicePage;

    fn get(&mut self, _: BackingId, page: u64, _: Intent, ticket: Ticket) -> GetPage<DevicePage> {
        if page * PAGE_BYTES as u64 >= self.device.size() {
            return GetPage::Failed(PageError::Gone);
        }
        if self.rng.permille(self.late) {
            self.ask(Asked::Page(page, ticket), Work::Page);
            return GetPage::Pending;
        }
        match self.page(page) {
            Some(page) => GetPage::Ready(page),
            None => GetPage::Failed(PageError::Media),
        }
    }

    fn sync(&mut self, ranges: &[PageRange], ticket: Ticket) {
        let mut words = Vec::new();
        for range in ranges {
            let first = range.first as usize * PAGE_BYTES;
            let bytes = range.count as usize * PAGE_BYTES;
            words.extend(self.device.with(|mem| mem.dirty_words(first, bytes)));
        }
        self.ask(Asked::Durable(words, ticket), Work::Flush);
    }
}

impl Store for Pages {
    fn poll_answer(&mut self) -> Option<Answer<DevicePage>> {
        self.answers.pop_front()
    }
}

impl Page for DevicePage {
    fn copy_out(&self, offset: usize, to: &mut [u8]) {
        let at = self.first + offset;
        self.device
            .with(|mem| to.copy_from_slice(&mem.bytes()[at..at + to.len()]));
    }

    fn copy_in(&mut self, offset: usize, from: &[u8]) {
        let at = self.first + offset;
        self.device.with(|mem| mem.put(at, from));
    }
}
