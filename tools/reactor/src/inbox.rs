//! The bounded queue by which other threads reach a reactor, with an eventfd that wakes it.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Messages that may wait for a reactor; senders block beyond it.
pub const INBOX_MAX: usize = 4096;

/// Wakes a reactor from any thread.
#[derive(Clone, Debug)]
pub struct Waker {
    event: Arc<OwnedFd>,
    armed: Arc<AtomicBool>,
}

impl Waker {
    fn new() -> io::Result<Self> {
        // SAFETY: eventfd has no memory arguments.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made and nobody else owns it.
        let event = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self {
            event: Arc::new(event),
            armed: Arc::new(AtomicBool::new(false)),
        })
    }

    /// Makes the reactor look at its queues soon. Cheap when a wake-up is already on its way.
    pub fn wake(&self) {
        if !self.armed.swap(true, Ordering::SeqCst) {
            let one = 1_u64;
            // SAFETY: eight readable bytes; a full counter (EAGAIN) has woken the reactor already.
            let _ = unsafe { libc::write(self.event.as_raw_fd(), (&raw const one).cast(), 8) };
        }
    }

    /// Called by the reactor before it looks at its queues: later wake-ups write again.
    pub fn acknowledge(&self) {
        let mut count = 0_u64;
        // SAFETY: eight writable bytes; an empty counter is no error here.
        let _ = unsafe { libc::read(self.event.as_raw_fd(), (&raw mut count).cast(), 8) };
        // SeqCst and a fence: what was queued before a wake-up that saw `true` is seen by the look that follows this.
        self.armed.store(false, Ordering::SeqCst);
        std::sync::atomic::fence(Ordering::SeqCst);
    }

    /// Descriptor that becomes readable.
    pub fn fd(&self) -> RawFd {
        self.event.as_raw_fd()
    }
}

/// Queue of messages to one reactor.
#[derive(Debug)]
pub struct Inbox<T> {
    queue: Mutex<VecDeque<T>>,
    room: Condvar,
    closed: AtomicBool,
    waker: Waker,
}

impl<T> Inbox<T> {
    /// An empty inbox.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            queue: Mutex::new(VecDeque::with_capacity(INBOX_MAX)),
            room: Condvar::new(),
            closed: AtomicBool::new(false),
            waker: Waker::new()?,
        })
    }

    /// The waker of the receiving reactor.
    pub fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Queues `message`, waiting for room; gives it back when the reactor has ended.
    pub fn send(&self, message: T) -> Result<(), T> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        while queue.len() >= INBOX_MAX && !self.closed.load(Ordering::Acquire) {
            queue = self
                .room
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
        }
        if self.closed.load(Ordering::Acquire) {
            return Err(message);
        }
        queue.push_back(message);
        drop(queue);
        self.waker.wake();
        Ok(())
    }

    /// Takes everything that waits, in order.
    pub fn drain(&self, into: &mut VecDeque<T>) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if !queue.is_empty() {
            into.extend(queue.drain(..));
            self.room.notify_all();
        }
    }

    /// Refuses further messages; what waits is dropped, which tells its senders.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.clear();
        self.room.notify_all();
    }
}
