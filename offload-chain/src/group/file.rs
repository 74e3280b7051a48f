//! Pages of an ordinary file as the memory of a member: durable when `fdatasync` has said so.
//!
//! Pages are read and written through the kernel's cache, so local readers of the file see what the group wrote. `fdatasync`
//! runs in a thread of its own: the loop goes on, and later operations with it.
//!
//! # Failure
//! After a failed `fdatasync` nobody knows what of the file is on media, and asking again would be answered "fine": every
//! later request for durability fails too (I8). After a failed write of a page nothing is handed out any more.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use softrdma::{
    BackingId, GetPage, Intent, PAGE_BYTES, Page, PageError, PageRange, PageStore, PutPage, Served,
    Ticket, Time,
};

use super::member_file::MemberFile;
use super::node::{Answer, Store};
use super::watcher::Watcher;
use crate::clock::since_boot;

/// Called when a request for durability was carried out, from another thread.
pub type Wake = Box<dyn Fn() + Send>;

/// A page in hand.
#[derive(Debug)]
pub struct FilePage {
    number: u64,
    bytes: Box<[u8; PAGE_BYTES]>,
}

impl Page for FilePage {
    fn copy_out(&self, offset: usize, to: &mut [u8]) {
        to.copy_from_slice(&self.bytes[offset..offset + to.len()]);
    }

    fn copy_in(&mut self, offset: usize, from: &[u8]) {
        self.bytes[offset..offset + from.len()].copy_from_slice(from);
    }
}

/// The pages of a member's file, for its engine in one epoch.
#[derive(Debug)]
pub struct FilePages {
    file: Arc<MemberFile>,
    asked: Option<Sender<Ticket>>,
    answers: Receiver<(Ticket, Result<(), PageError>)>,
    own: VecDeque<Answer<FilePage>>,
    /// Requests for durability that were not answered.
    unanswered: usize,
    thread: Option<JoinHandle<()>>,
    watcher: Option<Arc<dyn Watcher>>,
}

impl FilePages {
    /// Opens or makes a file of `size` bytes, rounded up to pages.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(path: &Path, size: u64, wake: Wake) -> io::Result<Self> {
        Self::new(MemberFile::open(path, size)?, wake, None)
    }

    /// The pages of a file that others use, too. Tickets are of one engine: each epoch has an object of its own. `watcher` is told
    /// what is done.
    ///
    /// # Errors
    /// If there can be no thread.
    pub fn new(
        file: Arc<MemberFile>,
        wake: Wake,
        watcher: Option<Arc<dyn Watcher>>,
    ) -> io::Result<Self> {
        let (asked, requests) = channel::<Ticket>();
        let (done, answers) = channel();
        let synced = (Arc::clone(&file), watcher.clone());
        let thread = std::thread::Builder::new()
            .name("group-fdatasync".to_owned())
            .spawn(move || sync_on_request(synced, &requests, &done, &wake))?;
        Ok(Self {
            file,
            asked: Some(asked),
            answers,
            own: VecDeque::new(),
            unanswered: 0,
            thread: Some(thread),
            watcher,
        })
    }
}

/// Answers requests, all that wait by one `fdatasync`: they were written before.
fn sync_on_request(
    (file, watcher): (Arc<MemberFile>, Option<Arc<dyn Watcher>>),
    requests: &Receiver<Ticket>,
    done: &Sender<(Ticket, Result<(), PageError>)>,
    wake: &Wake,
) {
    let mut tickets = Vec::new();
    while let Ok(first) = requests.recv() {
        tickets.push(first);
        tickets.extend(requests.try_iter());
        let begun = Instant::now();
        let flushed = file.flush().map_err(|_| PageError::Media);
        if let Some(watcher) = &watcher {
            watcher.flushed(begun.elapsed(), flushed.is_ok());
        }
        for ticket in tickets.drain(..) {
            if done.send((ticket, flushed)).is_err() {
                return;
            }
        }
        wake();
    }
}

impl PageStore for FilePages {
    type Page = FilePage;

    fn get(&mut self, _: BackingId, page: u64, intent: Intent, _: Ticket) -> GetPage<FilePage> {
        if page >= self.file.pages() {
            return GetPage::Failed(PageError::Gone);
        }
        if self.file.has_failed() {
            return GetPage::Failed(PageError::Media);
        }
        let mut bytes = Box::new([0; PAGE_BYTES]);
        let at = page * PAGE_BYTES as u64;
        if intent != Intent::Overwrite && self.file.read_at(at, &mut bytes[..]).is_err() {
            return GetPage::Failed(PageError::Media);
        }
        GetPage::Ready(FilePage {
            number: page,
            bytes,
        })
    }

    fn now(&self) -> Time {
        // Nobody else asks.
        self.watcher
            .as_ref()
            .map_or(Time(0), |_| Time(0) + since_boot())
    }

    fn served(&mut self, what: Served, bytes: u64, since: Time) {
        if let Some(watcher) = &self.watcher {
            let took = self.now().0.saturating_sub(since.0);
            watcher.served(what, bytes, Duration::from_nanos(took));
        }
    }

    fn put(&mut self, page: FilePage, _: Ticket) -> PutPage {
        let at = page.number * PAGE_BYTES as u64;
        // The file remembers a failure: whoever asks for durability is told.
        let _ = self.file.write_at(at, &page.bytes[..]);
        PutPage::Done
    }

    fn sync(&mut self, _: &[PageRange], ticket: Ticket) {
        let asked = self.asked.as_ref().filter(|_| !self.file.has_failed());
        if asked.is_some_and(|asked| asked.send(ticket).is_ok()) {
            self.unanswered += 1;
        } else {
            self.own
                .push_back(Answer::Durable(ticket, Err(PageError::Media)));
        }
    }
}

impl Store for FilePages {
    fn poll_answer(&mut self) -> Option<Answer<FilePage>> {
        self.own.pop_front().or_else(|| {
            let (ticket, result) = self.answers.try_recv().ok()?;
            self.unanswered -= 1;
            Some(Answer::Durable(ticket, result))
        })
    }
}

impl Drop for FilePages {
    fn drop(&mut self) {
        self.asked = None;
        // It ends by itself: nobody waits for a flush whose answer nobody wants.
        if let (0, Some(thread)) = (self.unanswered, self.thread.take()) {
            // A panic in it was reported where it happened.
            let _ = thread.join();
        }
    }
}
