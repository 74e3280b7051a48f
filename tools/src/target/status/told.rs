//! What the reactors have told of themselves.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use softrdma::Served;

use crate::reactor::Inbox;
use crate::target::job::{Job, waiter};

/// What a reactor tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::target) struct ReactorCounts {
    /// What it has done for peers, those that have gone among them.
    pub served: Served,
    /// System calls for its ring.
    pub calls: u64,
}

/// What each has told last. One that does not answer, because a device keeps it or it has ended, has done what it had done: counts
/// never go back, which who watches them would take for a restart, and each stays in its place.
#[derive(Debug, Default)]
pub(in crate::target) struct Told(Mutex<Vec<ReactorCounts>>);

impl Told {
    /// Asks all of them, who may take so long to answer.
    pub(super) fn ask(
        &self,
        inboxes: &[Arc<Inbox<Job>>],
        patience: Duration,
    ) -> Vec<ReactorCounts> {
        let ask = |inbox: &Arc<Inbox<Job>>| {
            let (told, counts) = waiter();
            inbox.send(Job::Count(told)).ok().map(|()| counts)
        };
        let asked: Vec<_> = inboxes.iter().map(ask).collect();
        let until = Instant::now() + patience;
        let told: Vec<_> = asked
            .into_iter()
            .map(|counts| {
                let left = until.saturating_duration_since(Instant::now());
                counts?.recv_timeout(left).ok()
            })
            .collect();
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        last.resize(inboxes.len(), ReactorCounts::default());
        for (last, told) in last.iter_mut().zip(told) {
            // Somebody who asked later may have heard before.
            if let Some(told) = told.filter(|told| told.calls >= last.calls) {
                *last = told;
            }
        }
        last.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::thread;

    use super::*;

    /// Answers one question as a reactor that has made so many calls; who has asked before has given up.
    fn answer(inbox: &Inbox<Job>, calls: u64) {
        let mut jobs = VecDeque::new();
        loop {
            inbox.drain(&mut jobs);
            for job in jobs.drain(..) {
                let Job::Count(waiter) = job else {
                    panic!("{job:?}");
                };
                let counts = ReactorCounts {
                    calls,
                    ..ReactorCounts::default()
                };
                if waiter.send(counts).is_ok() {
                    return;
                }
            }
            thread::yield_now();
        }
    }

    /// A reactor that is late keeps its place and its counts.
    #[test]
    fn a_reactor_that_does_not_answer() {
        let inboxes = [(); 2].map(|()| Arc::new(Inbox::new().unwrap()));
        let told = Told::default();
        let look = |answers: [Option<u64>; 2], patience| {
            thread::scope(|scope| {
                for (inbox, calls) in inboxes.iter().zip(answers) {
                    if let Some(calls) = calls {
                        scope.spawn(move || answer(inbox, calls));
                    }
                }
                let counts = told.ask(&inboxes, patience);
                counts.iter().map(|counts| counts.calls).collect::<Vec<_>>()
            })
        };
        let (long, short) = (Duration::from_secs(60), Duration::from_millis(200));
        assert_eq!(look([Some(7), Some(8)], long), [7, 8]);
        assert_eq!(look([None, Some(9)], short), [7, 9]);
        assert_eq!(look([Some(10), Some(11)], long), [10, 11]);
        inboxes[1].close();
        assert_eq!(look([Some(12), None], long), [12, 11]);
    }
}
