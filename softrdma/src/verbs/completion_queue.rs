//! Completion queues: where the results of work requests are taken.
//!
//! The completions themselves stay with their connections, which refuse to take more work than they have room to report
//! on. This queue only knows which of them to ask, so it cannot overflow, and has no size to choose.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::shared::Shared;
use crate::addr::StreamId;
use crate::cq::Completion;

/// What `ibv_poll_cq` tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkCompletion {
    /// Whose request it was; [`QueuePair::number`](super::QueuePair::number).
    pub queue_pair: StreamId,
    /// How it ended.
    pub result: Completion,
}

#[derive(Debug, Default)]
struct Inner {
    /// Queue pairs that may have completions, each once.
    ready: Mutex<VecDeque<Arc<Shared>>>,
    more: Condvar,
    /// Threads in `wait_solicited`.
    choosy: AtomicUsize,
}

impl Inner {
    /// Wakes who waits. Who waits for a solicited event may not be content with what has come, which then is for another one.
    /// Under the lock, so that nobody looks and falls asleep between the count and the call.
    fn wake(&self, _ready: &MutexGuard<'_, VecDeque<Arc<Shared>>>) {
        match self.choosy.load(Ordering::Relaxed) {
            0 => self.more.notify_one(),
            _ => self.more.notify_all(),
        }
    }
}

/// A completion queue, shared by any number of queue pairs and threads. A handle: copies are the same queue.
#[derive(Clone, Debug, Default)]
pub struct CompletionQueue {
    inner: Arc<Inner>,
}

impl CompletionQueue {
    /// `ibv_create_cq`.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The next completion that is there. Those of one queue pair come in order, and the queue pairs in turn.
    #[must_use]
    pub fn poll(&self) -> Option<WorkCompletion> {
        loop {
            let shared = self.ready().pop_front()?;
            // Before the look: what completes behind it is announced anew.
            shared.queued.store(false, Ordering::Release);
            let completion = shared.connection().poll_completion();
            if let Some(result) = completion {
                shared.note_completions();
                let queue_pair = shared.number();
                return Some(WorkCompletion { queue_pair, result });
            }
        }
    }

    /// The next completion, waiting for it; none when the time is over. Somebody else has to move the bytes meanwhile.
    #[must_use]
    pub fn wait(&self, patience: Duration) -> Option<WorkCompletion> {
        let start = Instant::now();
        loop {
            if let Some(completion) = self.poll() {
                return Some(completion);
            }
            let left = patience.checked_sub(start.elapsed())?;
            let ready = self.ready();
            if ready.is_empty() {
                let waited = self.inner.more.wait_timeout(ready, left);
                drop(waited.unwrap_or_else(PoisonError::into_inner));
            }
        }
    }

    /// Waits until there is a completion of a message that the peer sent with a solicited event, or of a request that failed;
    /// false when the time is over. Takes none: [`poll`](Self::poll) gives it, behind those that came before. It stands for
    /// `ibv_req_notify_cq` for solicited completions only and `ibv_get_cq_event`, and has nothing to arm.
    #[must_use]
    pub fn wait_solicited(&self, patience: Duration) -> bool {
        let start = Instant::now();
        // Before the look: what completes behind it wakes us.
        self.inner.choosy.fetch_add(1, Ordering::Relaxed);
        let mut ready = self.ready();
        let found = loop {
            if ready
                .iter()
                .any(|shared| shared.connection().has_solicited_event())
            {
                break true;
            }
            let Some(left) = patience.checked_sub(start.elapsed()) else {
                break false;
            };
            let waited = self.inner.more.wait_timeout(ready, left);
            ready = waited.unwrap_or_else(PoisonError::into_inner).0;
        };
        drop(ready);
        self.inner.choosy.fetch_sub(1, Ordering::Relaxed);
        found
    }

    pub(super) fn downgrade(&self) -> QueueOfPair {
        let inner = Arc::downgrade(&self.inner);
        QueueOfPair { inner }
    }

    fn ready(&self) -> MutexGuard<'_, VecDeque<Arc<Shared>>> {
        self.inner
            .ready
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// The queue as its queue pairs know it. It keeps those that have completions; if they kept it as well, nothing of either
/// would ever go, nor the memory that their requests are about.
#[derive(Debug)]
pub(super) struct QueueOfPair {
    inner: Weak<Inner>,
}

impl QueueOfPair {
    /// `shared` may have completions; nothing happens if nobody is left who could take them.
    pub(super) fn note(&self, shared: Arc<Shared>) {
        if let Some(inner) = self.inner.upgrade() {
            let queue = CompletionQueue { inner };
            let mut ready = queue.ready();
            ready.push_back(shared);
            queue.inner.wake(&ready);
        }
    }

    /// A queue pair that has been noted may have more.
    pub(super) fn note_more(&self) {
        if let Some(inner) = self.inner.upgrade()
            && inner.choosy.load(Ordering::Relaxed) > 0
        {
            let queue = CompletionQueue { inner };
            let ready = queue.ready();
            queue.inner.wake(&ready);
        }
    }
}
