//! What a member keeps its memory on: the same bytes for its agent, and for its engine as pages that come late and are durable later.
//!
//! A request for durability takes time, and makes durable what had changed in its pages when it was made; what changes
//! meanwhile is as lost as before. Pages that come late are those that are there when they come.

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

/// Memory that an agent and an engine have in common.
#[derive(Clone, Debug)]
pub struct Device(Rc<RefCell<Mem>>);

impl Device {
    pub fn new(size: u64) -> Self {
        Self(Rc::new(RefCell::new(Mem::new(size))))
    }

    /// Does something with the bytes.
    pub fn with<T>(&self, what: impl FnOnce(&mut Mem) -> T) -> T {
        what(&mut self.0.borrow_mut())
    }
}

impl Memory for Device {
    fn size(&self) -> u64 {
        self.0.borrow().size()
    }

    fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), MemoryError> {
        self.0.borrow().read(offset, to)
    }

    fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), MemoryError> {
        self.0.borrow_mut().write(offset, from)
    }

    fn flush(&mut self) -> Result<(), MemoryError> {
        self.0.borrow_mut().flush()
    }

    fn generation(&self) -> u64 {
        self.0.borrow().generation()
    }

    fn changed_since(&self, generation: u64) -> Vec<u64> {
        self.0.borrow().changed_since(generation)
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
                let page = self.page(page);
                self.answers.push_back(Answer::Page(ticket, Ok(page)));
            }
            Some(Asked::Durable(words, ticket)) => {
                self.device.with(|mem| mem.keep_words(&words));
                self.answers.push_back(Answer::Durable(ticket, Ok(())));
            }
            None => {}
        }
    }

    fn ask(&mut self, asked: Asked, work: Work) {
        self.numbers += 1;
        self.asked.insert(self.numbers, asked);
        self.new.push((self.numbers, work));
    }

    fn page(&self, page: u64) -> DevicePage {
        DevicePage {
            device: self.device.clone(),
            first: page as usize * PAGE_BYTES,
        }
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
        GetPage::Ready(self.page(page))
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
