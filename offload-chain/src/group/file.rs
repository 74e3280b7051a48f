//! Pages of an ordinary file as the memory of a member: durable when `fdatasync` has said so.
//!
//! Pages are read and written through the kernel's cache, so local readers of the file see what the group wrote. `fdatasync`
//! runs in a thread of its own: the loop goes on, and later operations with it.
//!
//! # Failure
//! After a failed `fdatasync` nobody knows what of the file is on media, and asking again would be answered "fine": every
//! later request for durability fails too (I8). After a failed write of a page nothing is handed out any more.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use softrdma::{
    BackingId, GetPage, Intent, PAGE_BYTES, Page, PageError, PageRange, PageStore, PutPage, Ticket,
};

use super::node::{Answer, Store};

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

/// A file.
#[derive(Debug)]
pub struct FilePages {
    file: File,
    pages: u64,
    /// A page that could not be written: nothing is acknowledged any more.
    failed: bool,
    asked: Option<Sender<Ticket>>,
    answers: Receiver<(Ticket, Result<(), PageError>)>,
    own: VecDeque<Answer<FilePage>>,
    thread: Option<JoinHandle<()>>,
}

impl FilePages {
    /// Opens or makes a file of `size` bytes, rounded up to pages.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(path: &Path, size: u64, wake: Wake) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        let pages = size.div_ceil(PAGE_BYTES as u64);
        if file.metadata()?.len() < pages * PAGE_BYTES as u64 {
            file.set_len(pages * PAGE_BYTES as u64)?;
            file.sync_all()?;
        }
        let (asked, requests) = channel::<Ticket>();
        let (done, answers) = channel();
        let synced = file.try_clone()?;
        let thread = std::thread::Builder::new()
            .name("group-fdatasync".to_owned())
            .spawn(move || sync_on_request(&synced, &requests, &done, &wake))?;
        Ok(Self {
            file,
            pages,
            failed: false,
            asked: Some(asked),
            answers,
            own: VecDeque::new(),
            thread: Some(thread),
        })
    }
}

/// Answers requests, all that wait by one `fdatasync`: they were written before.
fn sync_on_request(
    file: &File,
    requests: &Receiver<Ticket>,
    done: &Sender<(Ticket, Result<(), PageError>)>,
    wake: &Wake,
) {
    let mut failed = false;
    let mut tickets = Vec::new();
    while let Ok(first) = requests.recv() {
        tickets.push(first);
        tickets.extend(requests.try_iter());
        failed = failed || file.sync_data().is_err();
        for ticket in tickets.drain(..) {
            let result = if failed {
                Err(PageError::Media)
            } else {
                Ok(())
            };
            if done.send((ticket, result)).is_err() {
                return;
            }
        }
        wake();
    }
}

impl PageStore for FilePages {
    type Page = FilePage;

    fn get(&mut self, _: BackingId, page: u64, intent: Intent, _: Ticket) -> GetPage<FilePage> {
        if page >= self.pages {
            return GetPage::Failed(PageError::Gone);
        }
        if self.failed {
            return GetPage::Failed(PageError::Media);
        }
        let mut bytes = Box::new([0; PAGE_BYTES]);
        if intent != Intent::Overwrite {
            let read = self
                .file
                .read_exact_at(&mut bytes[..], page * PAGE_BYTES as u64);
            if read.is_err() {
                return GetPage::Failed(PageError::Media);
            }
        }
        GetPage::Ready(FilePage {
            number: page,
            bytes,
        })
    }

    fn put(&mut self, page: FilePage, _: Ticket) -> PutPage {
        let at = page.number * PAGE_BYTES as u64;
        self.failed |= self.file.write_all_at(&page.bytes[..], at).is_err();
        PutPage::Done
    }

    fn sync(&mut self, _: &[PageRange], ticket: Ticket) {
        let asked = self.asked.as_ref().filter(|_| !self.failed);
        if asked.is_none_or(|asked| asked.send(ticket).is_err()) {
            self.own
                .push_back(Answer::Durable(ticket, Err(PageError::Media)));
        }
    }
}

impl Store for FilePages {
    fn poll_answer(&mut self) -> Option<Answer<FilePage>> {
        self.own.pop_front().or_else(|| {
            let (ticket, result) = self.answers.try_recv().ok()?;
            Some(Answer::Durable(ticket, result))
        })
    }
}

impl Drop for FilePages {
    fn drop(&mut self) {
        self.asked = None;
        if let Some(thread) = self.thread.take() {
            // It ends by itself; a panic in it was reported where it happened.
            let _ = thread.join();
        }
    }
}
