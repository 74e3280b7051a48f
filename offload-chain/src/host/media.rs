//! The thread that does what takes as long as media take, so that the agent does not.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use crate::group::{FileMemory, MemberFile};
use crate::membership::Work;

use super::agent::Inbox;

/// The thread.
#[derive(Debug)]
pub(super) struct Media {
    work: Option<Sender<Work>>,
    busy: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Media {
    pub(super) fn start(file: Arc<MemberFile>, inbox: Sender<Inbox>) -> io::Result<Self> {
        let (work, asked) = channel();
        let busy = Arc::new(AtomicBool::new(false));
        let mark = Arc::clone(&busy);
        let thread = std::thread::Builder::new()
            .name("chain-media".into())
            .spawn(move || run(FileMemory(file), &asked, &inbox, &mark))?;
        Ok(Self {
            work: Some(work),
            busy,
            thread: Some(thread),
        })
    }

    /// The agent hears when it is done.
    pub(super) fn begin(&self, work: Work) {
        self.busy.store(true, Ordering::Relaxed);
        if let Some(asked) = &self.work {
            // It fails after a panic of the thread, which was reported: then the member is late, and left out.
            let _ = asked.send(work);
        }
    }
}

fn run(mut memory: FileMemory, asked: &Receiver<Work>, inbox: &Sender<Inbox>, busy: &AtomicBool) {
    for work in asked {
        let result = work.run(&mut memory);
        busy.store(false, Ordering::Relaxed);
        // It fails when the agent has ended.
        let _ = inbox.send(Inbox::Worked(result));
    }
}

impl Drop for Media {
    fn drop(&mut self) {
        self.work = None;
        // Media may never answer; the process can end without.
        if !self.busy.load(Ordering::Relaxed)
            && let Some(thread) = self.thread.take()
        {
            // A panic was reported where it happened.
            let _ = thread.join();
        }
    }
}
