//! What a queue pair, its completion queue and its transport share.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::completion_queue::{CompletionQueue, QueueOfPair};
use crate::addr::StreamId;
use crate::connection::Connection;
use crate::page::NoPages;

type Doorbell = Box<dyn Fn() + Send + Sync>;

/// A connection behind its lock. The lock is held for one call of the core, and none is taken under it.
pub(super) struct Shared {
    number: StreamId,
    connection: Mutex<Connection<NoPages>>,
    completions: QueueOfPair,
    doorbell: OnceLock<Doorbell>,
    /// The completion queue knows that there may be completions.
    pub(super) queued: AtomicBool,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Shared").field(&self.number).finish()
    }
}

impl Shared {
    pub(super) fn new(connection: Connection<NoPages>, completions: &CompletionQueue) -> Arc<Self> {
        Arc::new(Self {
            number: connection.stream(),
            connection: Mutex::new(connection),
            completions: completions.downgrade(),
            doorbell: OnceLock::new(),
            queued: AtomicBool::new(false),
        })
    }

    pub(super) fn number(&self) -> StreamId {
        self.number
    }

    pub(super) fn connection(&self) -> MutexGuard<'_, Connection<NoPages>> {
        self.connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_doorbell(&self, ring: Doorbell) -> bool {
        self.doorbell.set(ring).is_ok()
    }

    /// Tells who moves the bytes that there is something to do.
    pub(super) fn ring(&self) {
        if let Some(ring) = self.doorbell.get() {
            ring();
        }
    }

    /// Tells the completion queue that there may be completions.
    pub(super) fn note_completions(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::AcqRel) {
            self.completions.note(Arc::clone(self));
        } else {
            self.completions.note_more();
        }
    }
}

/// The queue pair's hold on it: when it goes, so does the connection (V3).
#[derive(Debug)]
pub(super) struct Owner(pub(super) Arc<Shared>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.connection().abort();
        self.0.note_completions();
        self.0.ring();
    }
}
