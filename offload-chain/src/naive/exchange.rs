//! Between the endpoint of a member and its application.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use mio::Waker;

/// Whom a message is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum To {
    Next,
    Client(u16),
}

/// Messages that arrived, and messages to send.
#[derive(Debug, Default)]
pub(super) struct Exchange {
    received: Mutex<VecDeque<Vec<u8>>>,
    news: Condvar,
    /// Messages that ever arrived, for who looks without taking a lock.
    arrived: AtomicU64,
    to_send: Mutex<VecDeque<(To, Vec<u8>)>>,
    waker: OnceLock<Arc<Waker>>,
    ended: AtomicBool,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Exchange {
    /// How the endpoint is woken when there is something to send.
    pub(super) fn set_waker(&self, waker: Arc<Waker>) {
        // Set once, when the server is made.
        let _ = self.waker.set(waker);
    }

    pub(super) fn deliver(&self, message: Vec<u8>) {
        locked(&self.received).push_back(message);
        self.arrived.fetch_add(1, Ordering::Release);
        self.news.notify_one();
    }

    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        // Nobody goes to sleep between looking and waiting.
        drop(locked(&self.received));
        self.news.notify_all();
    }

    /// The next message, sleeping until there is one. None at the end.
    pub(super) fn sleep_for(&self) -> Option<Vec<u8>> {
        let mut received = locked(&self.received);
        loop {
            if self.ended.load(Ordering::Acquire) {
                return None;
            }
            if let Some(message) = received.pop_front() {
                return Some(message);
            }
            received = self
                .news
                .wait(received)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The next message, looking for it all the time; `taken` were had before. None at the end.
    pub(super) fn look_for(&self, taken: u64) -> Option<Vec<u8>> {
        while self.arrived.load(Ordering::Acquire) == taken {
            if self.ended.load(Ordering::Acquire) {
                return None;
            }
            std::hint::spin_loop();
        }
        locked(&self.received).pop_front()
    }

    pub(super) fn post(&self, to: To, message: Vec<u8>) {
        locked(&self.to_send).push_back((to, message));
        if let Some(waker) = self.waker.get() {
            // It fails only if the endpoint is gone, and then nobody waits for the message.
            let _ = waker.wake();
        }
    }

    pub(super) fn next_to_send(&self) -> Option<(To, Vec<u8>)> {
        locked(&self.to_send).pop_front()
    }
}
