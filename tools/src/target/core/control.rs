//! The way of messages from the reactors to the control threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use softrdma::ProtectionDomain;

use crate::reactor::LinkTag;

/// Bytes of messages that may wait for the control threads; no connections are adopted beyond it.
const WAITING_MAX: usize = 16 << 20;

/// A message of a client for the control threads, or the news that a client has gone.
#[derive(Debug)]
pub(in crate::target) enum ControlJob {
    /// A request arrived on a connection of this domain. It is carried out if that has not ended meanwhile.
    Request(usize, LinkTag, ProtectionDomain, Vec<u8>),
    /// The connection ended: its regions go with it.
    Gone(usize, LinkTag),
}

impl ControlJob {
    fn bytes(&self) -> usize {
        let message = match self {
            Self::Request(_, _, _, message) => message.len(),
            Self::Gone(..) => 0,
        };
        size_of::<Self>() + message
    }
}

/// The way to the control threads. All messages of a connection go to the same thread, so they are worked on in order,
/// its end last. Connections come and go while their messages stay, as in the [inboxes](crate::reactor::Inbox) of reactors: so
/// nobody adopts more of them as long as it is [crowded](Self::is_crowded).
#[derive(Clone, Debug)]
pub(in crate::target) struct ControlSenders {
    threads: Vec<Sender<ControlJob>>,
    /// Bytes of what none of them has taken yet.
    waiting: Arc<AtomicUsize>,
}

/// What a control thread has to do.
#[derive(Debug)]
pub(in crate::target) struct ControlJobs {
    jobs: Receiver<ControlJob>,
    waiting: Arc<AtomicUsize>,
}

impl ControlJobs {
    /// Waits for the next job; none when every copy of its sender has gone.
    pub(in crate::target) fn next(&self) -> Option<ControlJob> {
        let job = self.jobs.recv().ok()?;
        self.waiting.fetch_sub(job.bytes(), Ordering::Relaxed);
        Some(job)
    }
}

impl ControlSenders {
    /// Channels for `threads` control threads.
    pub(in crate::target) fn new(threads: usize) -> (Self, Vec<ControlJobs>) {
        let waiting = Arc::new(AtomicUsize::new(0));
        let (threads, jobs) = (0..threads)
            .map(|_| {
                let (sender, jobs) = channel();
                let waiting = Arc::clone(&waiting);
                (sender, ControlJobs { jobs, waiting })
            })
            .unzip();
        (Self { threads, waiting }, jobs)
    }

    pub(in crate::target) fn send(&self, tag: LinkTag, job: ControlJob) {
        let thread = (tag.0 as usize).checked_rem(self.threads.len());
        if let Some(sender) = thread.map(|thread| &self.threads[thread]) {
            self.waiting.fetch_add(job.bytes(), Ordering::Relaxed);
            // The threads outlive the senders.
            let _ = sender.send(job);
        }
    }

    /// Whether so much waits that nobody should give reason for more.
    pub(super) fn is_crowded(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) >= WAITING_MAX
    }

    /// Lets the threads end; what is sent from now on is lost.
    pub(super) fn hang_up(&mut self) {
        self.threads.clear();
    }
}
