//! The bounded queue by which other threads, and other reactors, reach a reactor, with an eventfd that wakes it.
//!
//! A thread that asks for something [sends](Inbox::send), and waits while the queue is full: that is the back-pressure. A reactor
//! must not wait, for the room it waits for may be its own to make, or that of a reactor which waits for room here: it
//! [pushes](Inbox::push), as does whoever answers a reactor, which he may do on its own thread.
//!
//! What is pushed is bounded by the connections, each of which gives reason for a few messages: that it has arrived, that another
//! one is to end before it, that this has happened, and answers about the pages that it waits for. Connections come and go
//! while their messages stay, so nobody adopts more of them as long as some inbox is [crowded](Inbox::is_crowded). Of
//! messages of reactors there are hence never more than [`PUSHED_MAX`] and those of the connections that are there.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Messages that may wait for a reactor; senders block beyond it.
pub const INBOX_MAX: usize = 4096;
/// Messages of reactors that may wait beside these; no connections are adopted beyond it.
pub const PUSHED_MAX: usize = 4096;

thread_local! {
    /// This thread takes messages: it is a reactor.
    static IS_REACTOR: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is a reactor, which may not wait for room: of whichever inbox.
#[must_use]
pub fn is_reactor() -> bool {
    IS_REACTOR.get()
}

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

    fn queue(&self) -> MutexGuard<'_, VecDeque<T>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues `message`, waiting for room; gives it back when the reactor has ended. Not for reactors.
    pub fn send(&self, message: T) -> Result<(), T> {
        debug_assert!(!IS_REACTOR.get(), "a reactor waits for nobody");
        let mut queue = self.queue();
        while queue.len() >= INBOX_MAX && !self.closed.load(Ordering::Acquire) {
            queue = self
                .room
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
        }
        self.put(queue, message)
    }

    /// Queues `message` at once, however many wait; gives it back when the reactor has ended. For reactors, and for answers to them.
    pub fn push(&self, message: T) -> Result<(), T> {
        self.put(self.queue(), message)
    }

    fn put(&self, mut queue: MutexGuard<'_, VecDeque<T>>, message: T) -> Result<(), T> {
        if self.closed.load(Ordering::Acquire) {
            return Err(message);
        }
        queue.push_back(message);
        drop(queue);
        self.waker.wake();
        Ok(())
    }

    /// Whether so much has been pushed that nobody should give reason for more.
    pub fn is_crowded(&self) -> bool {
        self.queue().len() >= INBOX_MAX + PUSHED_MAX
    }

    /// Takes everything that waits, in order. The thread that calls this is a reactor from now on.
    pub fn drain(&self, into: &mut VecDeque<T>) {
        IS_REACTOR.set(true);
        let mut queue = self.queue();
        if !queue.is_empty() {
            into.extend(queue.drain(..));
            self.room.notify_all();
        }
    }

    /// Refuses further messages; what waits is given back. Dropped, it tells its senders, who may want to send more.
    pub fn close(&self) -> VecDeque<T> {
        self.closed.store(true, Ordering::Release);
        let waiting = std::mem::take(&mut *self.queue());
        self.room.notify_all();
        waiting
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Takes all that waits, on a thread of its own.
    fn taken(inbox: &Inbox<usize>) -> Vec<usize> {
        thread::scope(|scope| {
            let reactor = scope.spawn(|| {
                let mut messages = VecDeque::new();
                inbox.drain(&mut messages);
                messages.into()
            });
            reactor.join().unwrap()
        })
    }

    /// Two reactors whose inboxes are full push to each other, and to themselves, without waiting; what was sent and pushed comes
    /// in its order, and that there is too much shows (I16).
    #[test]
    fn reactors_do_not_wait_for_each_other() {
        let inboxes = [(); 2].map(|()| Inbox::new().unwrap());
        let mut expected: Vec<usize> = (0..INBOX_MAX).collect();
        for inbox in &inboxes {
            expected.iter().for_each(|&n| inbox.send(n).unwrap());
        }
        thread::scope(|scope| {
            for _ in &inboxes {
                scope.spawn(|| {
                    // It is a reactor, of an inbox that is not looked at here.
                    Inbox::<usize>::new().unwrap().drain(&mut VecDeque::new());
                    for inbox in &inboxes {
                        (0..PUSHED_MAX / 2).for_each(|_| inbox.push(INBOX_MAX).unwrap());
                    }
                });
            }
        });
        expected.extend([INBOX_MAX; PUSHED_MAX]);
        for inbox in &inboxes {
            assert!(inbox.is_crowded());
            assert_eq!(taken(inbox), expected);
            assert!(!inbox.is_crowded());
        }
    }

    /// Whoever is no reactor waits until there is room, also for what reactors have pushed, and is told when there never will be
    /// (I16, I18).
    #[test]
    fn others_wait_for_room() {
        const SENT: usize = 3 * INBOX_MAX;
        let inbox = Inbox::new().unwrap();
        (0..INBOX_MAX).for_each(|_| inbox.push(SENT).unwrap());
        let (most, got) = thread::scope(|scope| {
            scope.spawn(|| (0..SENT).for_each(|n| inbox.send(n).unwrap()));
            let (mut most, mut got) = (0, Vec::new());
            while got.len() < INBOX_MAX + SENT {
                let some = taken(&inbox);
                most = most.max(some.len());
                got.extend(some);
            }
            (most, got)
        });
        assert_eq!(most, INBOX_MAX);
        assert!(got.into_iter().filter(|&n| n < SENT).eq(0..SENT));
        (0..INBOX_MAX).for_each(|n| inbox.send(n).unwrap());
        thread::scope(|scope| {
            let refused = scope.spawn(|| inbox.send(SENT));
            inbox.close();
            assert_eq!(refused.join().unwrap(), Err(SENT));
        });
        assert_eq!(inbox.push(SENT), Err(SENT));
    }

    /// A reactor that would have to wait if it were busier is noticed when it is not.
    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "a reactor waits for nobody")]
    fn reactors_do_not_send() {
        let inbox = Inbox::new().unwrap();
        inbox.drain(&mut VecDeque::new());
        let _ = inbox.send(0);
    }
}
