//! The result of an operation that another thread carries out: to be waited for, by a thread or by a task of any runtime.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::error::ClientError;

type Outcome<T> = Result<T, ClientError>;

enum State<T> {
    Waiting(Option<Waker>),
    Done(Outcome<T>),
    Taken,
}

struct Slot<T> {
    state: Mutex<State<T>>,
    done: Condvar,
}

impl<T> Slot<T> {
    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the other thread keeps: it says how the operation ended. Dropped, it says that the thread has.
pub(crate) struct Promise<T>(Option<Arc<Slot<T>>>);

impl<T> Promise<T> {
    /// Says how the operation ended.
    pub(crate) fn keep(mut self, outcome: Outcome<T>) {
        self.settle(outcome);
    }

    fn settle(&mut self, outcome: Outcome<T>) {
        let Some(slot) = self.0.take() else { return };
        let before = std::mem::replace(&mut *slot.state(), State::Done(outcome));
        slot.done.notify_all();
        if let State::Waiting(Some(waker)) = before {
            waker.wake();
        }
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        self.settle(Err(ClientError::Ended("its thread is gone".into())));
    }
}

impl<T> fmt::Debug for Promise<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Promise(..)")
    }
}

/// An operation under way. It goes on whether somebody waits for it or not; dropping this forgets only the result.
#[must_use = "how it ended is told to who waits or awaits"]
pub struct Pending<T>(Arc<Slot<T>>);

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pending(..)")
    }
}

impl<T> Pending<T> {
    /// An operation that somebody promises to carry out.
    pub(crate) fn new() -> (Promise<T>, Self) {
        let slot = Arc::new(Slot {
            state: Mutex::new(State::Waiting(None)),
            done: Condvar::new(),
        });
        (Promise(Some(Arc::clone(&slot))), Self(slot))
    }

    /// Waits for its end.
    pub(crate) fn wait(self) -> Outcome<T> {
        let mut state = self.0.state();
        loop {
            match std::mem::replace(&mut *state, State::Taken) {
                State::Done(outcome) => return outcome,
                waiting => *state = waiting,
            }
            let waited = self.0.done.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl<T> Future for Pending<T> {
    type Output = Outcome<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome<T>> {
        // Copies of a waker are made and dropped by code of its runtime, which may come back here.
        let waker = context.waker().clone();
        let mut state = self.0.state();
        let before = std::mem::replace(&mut *state, State::Taken);
        if matches!(before, State::Waiting(_)) {
            *state = State::Waiting(Some(waker));
        }
        drop(state);
        match before {
            State::Done(outcome) => Poll::Ready(outcome),
            State::Waiting(_) => Poll::Pending,
            State::Taken => panic!("polled after it was ready"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;
    use std::thread;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Whether the slot is free when a waker is dropped: what its runtime does then may lead back here.
    struct Probe(Arc<Slot<u8>>, Arc<AtomicUsize>);

    impl Wake for Probe {
        fn wake(self: Arc<Self>) {}
    }

    impl Drop for Probe {
        fn drop(&mut self) {
            if self.0.state.try_lock().is_ok() {
                self.1.fetch_add(1, Ordering::SeqCst);
            }
        }
    }

    #[test]
    fn no_waker_is_dropped_under_the_lock() {
        let (_promise, mut pending) = Pending::<u8>::new();
        let free = Arc::new(AtomicUsize::new(0));
        for _ in 0..3 {
            let probe = Probe(Arc::clone(&pending.0), Arc::clone(&free));
            let waker = Waker::from(Arc::new(probe));
            let polled = Pin::new(&mut pending).poll(&mut Context::from_waker(&waker));
            assert!(polled.is_pending());
        }
        assert_eq!(
            free.load(Ordering::SeqCst),
            2,
            "of those that were replaced"
        );
    }

    /// I18: each operation ends exactly once, for threads and tasks, also when the one who promised has gone.
    #[test]
    fn every_end_is_told_once() {
        let (promise, pending) = Pending::new();
        let waiter = thread::spawn(|| pending.wait());
        promise.keep(Ok(7));
        assert_eq!(waiter.join().unwrap().unwrap(), 7);

        let (promise, mut pending) = Pending::<u8>::new();
        let (old, new) = (Arc::new(Count::default()), Arc::new(Count::default()));
        for count in [&old, &new] {
            let waker = Waker::from(Arc::clone(count));
            let polled = Pin::new(&mut pending).poll(&mut Context::from_waker(&waker));
            assert!(polled.is_pending());
        }
        drop(promise);
        assert_eq!(old.0.load(Ordering::SeqCst), 0, "only who asked last");
        assert_eq!(new.0.load(Ordering::SeqCst), 1);
        let waker = Waker::from(new);
        match Pin::new(&mut pending).poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(Err(ClientError::Ended(_))) => {}
            other => panic!("{other:?}"),
        }
    }
}
