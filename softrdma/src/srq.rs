//! Receive buffers that several connections share (SRQ of the verbs).
//!
//! A connection takes a buffer when a message begins, so many connections that are mostly silent need few buffers. The
//! completion appears at the connection that took it. Parties that do not trust each other should not share one: who
//! sends much leaves the others without buffers (RFC 5042 §6.4.2).

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::addr::WrId;
use crate::wqe::{PostError, RecvBuffer};

#[derive(Debug)]
struct Queue {
    buffers: VecDeque<(WrId, RecvBuffer)>,
    /// Armed limit; 0 when it is not.
    limit: usize,
}

/// A shared receive queue.
#[derive(Debug)]
pub struct SharedReceives {
    max: usize,
    queue: Mutex<Queue>,
}

impl SharedReceives {
    /// An empty queue of at most `max` buffers.
    #[must_use]
    pub fn new(max: usize) -> Arc<Self> {
        let queue = Queue {
            buffers: VecDeque::new(),
            limit: 0,
        };
        Arc::new(Self {
            max,
            queue: Mutex::new(queue),
        })
    }

    /// Queues a buffer.
    ///
    /// # Errors
    /// See [`PostError`]; nothing was queued.
    pub fn post(&self, wr_id: WrId, buffer: RecvBuffer) -> Result<(), PostError> {
        buffer.validate()?;
        let mut queue = self.queue();
        if queue.buffers.len() >= self.max {
            return Err(PostError::QueueFull);
        }
        queue.buffers.push_back((wr_id, buffer));
        Ok(())
    }

    /// Arms the limit: when fewer than `limit` buffers are left, the connection that took the last of them reports
    /// [`Event::SharedReceivesLow`](crate::Event::SharedReceivesLow), once; with the connection manager its channel tells
    /// [one of its own](crate::cm::Event::SharedReceivesLow).
    pub fn arm(&self, limit: usize) {
        self.queue().limit = limit;
    }

    /// Number of buffers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.queue().buffers.len()
    }

    /// No buffers?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The oldest buffer, and whether the limit was passed by taking it.
    pub(crate) fn take(&self) -> Option<(WrId, RecvBuffer, bool)> {
        let mut queue = self.queue();
        let (wr_id, buffer) = queue.buffers.pop_front()?;
        let is_low = queue.buffers.len() < queue.limit;
        if is_low {
            queue.limit = 0;
        }
        Some((wr_id, buffer, is_low))
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
