//! What other threads ask of a reactor, and how they wait for it.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use contigfs::StoreError;
use ftl::{AtomicBatch, GetError, Intent, Lba, LbaRange, PageRef};
use socket2::Socket;

use crate::reactor::LinkTag;

/// Where the answer to a job goes. Dropping it unanswered tells the waiter that the reactor has ended.
pub(super) type Waiter<T> = SyncSender<T>;

/// A place for one answer.
pub(super) fn waiter<T>() -> (Waiter<T>, Receiver<T>) {
    sync_channel(1)
}

/// A message to a reactor.
#[derive(Debug)]
pub(super) enum Job {
    /// Get pages.
    Pages(Arc<PagesJob>),
    /// Make a range durable.
    Sync(LbaRange, Waiter<Result<(), StoreError>>),
    /// Commit a batch.
    Commit(AtomicBatch, Waiter<Result<(), StoreError>>),
    /// Accept connections from this listening socket on.
    Listen(Socket),
    /// Serve this connected socket.
    Adopt(Socket),
    /// Answer when no step of a connection is under way that began before.
    Barrier(Waiter<()>),
    /// Send a control reply.
    Reply(LinkTag, Vec<u8>),
    /// Stop: end the connections, write out everything, return.
    Stop,
}

/// Several pages wanted by one thread at once.
#[derive(Debug)]
pub(super) struct PagesJob {
    /// Which grains.
    pub lbas: Vec<Lba>,
    /// What for.
    pub intent: Intent,
    state: Mutex<PagesState>,
}

#[derive(Debug)]
struct PagesState {
    pages: Vec<Option<Result<PageRef, GetError>>>,
    left: usize,
    done: Option<Waiter<()>>,
}

impl PagesJob {
    /// A job for `lbas`, with the place where its end is told.
    pub(super) fn new(lbas: Vec<Lba>, intent: Intent) -> (Arc<Self>, Receiver<()>) {
        let (done, receiver) = waiter();
        let left = lbas.len();
        let state = PagesState {
            pages: (0..left).map(|_| None).collect(),
            left,
            done: Some(done),
        };
        let job = Self {
            lbas,
            intent,
            state: Mutex::new(state),
        };
        (Arc::new(job), receiver)
    }

    /// Answers page `n`.
    pub(super) fn answer(&self, n: usize, page: Result<PageRef, GetError>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(
            state.pages[n].is_none(),
            "each page of a job is answered once"
        );
        state.pages[n] = Some(page);
        state.left -= 1;
        if state.left == 0
            && let Some(done) = state.done.take()
        {
            let _ = done.send(());
        }
    }

    /// All pages, in the order asked for; after the end was told.
    pub(super) fn take(&self) -> Vec<Result<PageRef, GetError>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state
            .pages
            .drain(..)
            .map(|page| page.unwrap_or(Err(GetError::Shutdown)))
            .collect()
    }
}
