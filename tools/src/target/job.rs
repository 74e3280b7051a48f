//! What other threads ask of a reactor, and how they wait for it.

use std::fmt;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use contigfs::{GrowError, StoreError};
use flashnet_tls::Records;
use ftl::snapshot::SnapshotChange;
use ftl::{Action, AtomicBatch, DurableError, GetError, Intent, Lba, LbaRange, PageRef, Port};
use socket2::Socket;
use softrdma::{PageError, Ticket};

use super::pages::{Recalled, Wanted};
use super::regions::Owner;
use super::snapshots::Copied;
use super::stalls::Of;
use crate::reactor::{Inbox, LinkTag};

/// Where the answer to a job goes. Dropping it unanswered tells the waiter that the reactor has ended.
pub(super) type Waiter<T> = SyncSender<T>;

/// A place for one answer.
pub(super) fn waiter<T>() -> (Waiter<T>, Receiver<T>) {
    sync_channel(1)
}

/// Waits until no reactor is in the middle of a step of a connection that began before.
pub(super) fn barrier(inboxes: &[Arc<Inbox<Job>>]) {
    ask_all(inboxes, Job::Barrier);
}

/// Waits until every reactor has answered a job.
pub(super) fn ask_all(inboxes: &[Arc<Inbox<Job>>], job: impl Fn(Waiter<()>) -> Job) {
    let asked: Vec<_> = inboxes
        .iter()
        .filter_map(|inbox| {
            let (done, passed) = waiter();
            inbox.send(job(done)).ok().map(|()| passed)
        })
        .collect();
    for passed in asked {
        // A reactor that has ended takes no steps either.
        let _ = passed.recv();
    }
}

/// Has a connection accepted, if there is one that has waited for its predecessors.
pub(super) fn admit(inboxes: &[Arc<Inbox<Job>>], waiting: Option<Owner>) {
    if let Some((reactor, tag)) = waiting {
        // A reactor that has ended has no connections; one that is told by another must not wait.
        let _ = inboxes[reactor].push(Job::Admit(tag));
    }
}

/// Reads a page that has come, or is told that none will. It must not wait for anything. Dropped, it has its own way to say so.
pub(super) struct Reader(pub Box<dyn FnOnce(Result<PageRef, GetError>) + Send>);

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reader")
    }
}

/// A message to a reactor.
#[derive(Debug)]
pub(super) enum Job {
    /// Get pages.
    Pages(Arc<PagesJob>),
    /// Get a page for somebody who reads it, and does not wait.
    Read(Lba, Reader),
    /// Make a range durable.
    Sync(LbaRange, Waiter<Result<(), StoreError>>),
    /// Bring the map of a range into memory.
    Load(LbaRange, Waiter<Result<(), StoreError>>),
    /// Give the volume the size of a device of so many grains.
    Resize(u64, Waiter<Result<(), GrowError>>),
    /// Commit a batch.
    Commit(AtomicBatch, Waiter<Result<(), StoreError>>),
    /// The same of a batch of snapshots.
    CommitSnapshot(
        AtomicBatch,
        Option<SnapshotChange>,
        Waiter<Result<(), StoreError>>,
    ),
    /// There may be snapshots from now on.
    AdmitImages(Waiter<Result<(), StoreError>>),
    /// As `Commit`, answered when it has taken effect.
    CommitRelaxed(AtomicBatch, Waiter<Result<(), StoreError>>),
    /// Carry out an action that appeared on the port of a lane.
    Media(Port, Action),
    /// Accept connections from this listening socket on.
    Listen(Socket),
    /// Serve this connected socket, on which TLS may have been set up.
    Adopt(Socket, Option<Box<Records>>),
    /// Answer when no step of a connection is under way that began before.
    Barrier(Waiter<()>),
    /// Give back what connections hold of these backings if `renew`, and answer when nothing is outstanding of them.
    Drain {
        /// Whose files are about to move or to end, or must be left alone for a moment.
        of: Of,
        /// Whether pages must not be held until these files have settled.
        renew: bool,
        /// To be told.
        done: Waiter<()>,
    },
    /// What waits for the files of these backings may go on.
    Settled(Of),
    /// A page of a mapped file may be written.
    Recalled(Wanted, Box<Recalled>),
    /// The file of a page gives no privileges any more, or that could not be: then false.
    Unprivileged(Wanted, bool),
    /// A page of a file in a snapshot has been copied.
    Copied(Wanted, Result<Copied, PageError>),
    /// Mappings see what was written to a page.
    Told(Ticket),
    /// Send a control reply.
    Reply(LinkTag, Vec<u8>),
    /// End this connection: a later one of its session has arrived.
    Fence(LinkTag),
    /// Accept a connection whose predecessors are gone.
    Admit(LinkTag),
    /// End the connections, by force after this long, then hang up: nobody asks for anything any more, which drops the
    /// waiter. The volume is served on.
    HangUp(Duration, Waiter<()>),
    /// Close the volume: write everything out, and mark it clean.
    Close(Waiter<Result<(), DurableError>>),
    /// Return, when the device has carried out what it was asked for.
    End,
}

/// Whether who wants several pages asks for the next only when it has got the one before.
///
/// Nobody else can have a page that is to be overwritten as a whole before it has been put, so whoever waits for one while
/// holding others must do so in the same order as everybody: ascending. Pages for other purposes are shared, and asking
/// for all of them at once reads them side by side.
pub(super) fn one_by_one(intent: Intent) -> bool {
    intent == Intent::Overwrite
}

/// Several pages wanted by one thread at once; the reactor's side. When its last copy is dropped before all pages were
/// answered, which happens when the reactor ends, the waiting thread is told.
#[derive(Debug)]
pub(super) struct PagesJob {
    /// Which grains, ascending.
    pub lbas: Vec<Lba>,
    /// What for.
    pub intent: Intent,
    answers: Mutex<Answers>,
}

#[derive(Debug)]
struct Answers {
    pages: Vec<Option<Result<PageRef, GetError>>>,
    left: usize,
    done: Waiter<Vec<Result<PageRef, GetError>>>,
}

impl PagesJob {
    /// A job for `lbas`, at least one, with the place where the pages come, in the order asked for.
    pub(super) fn new(
        lbas: Vec<Lba>,
        intent: Intent,
    ) -> (Arc<Self>, Receiver<Vec<Result<PageRef, GetError>>>) {
        let (done, receiver) = waiter();
        let left = lbas.len();
        let answers = Answers {
            pages: (0..left).map(|_| None).collect(),
            left,
            done,
        };
        let job = Self {
            lbas,
            intent,
            answers: Mutex::new(answers),
        };
        (Arc::new(job), receiver)
    }

    /// Answers page `n`.
    pub(super) fn answer(&self, n: usize, page: Result<PageRef, GetError>) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(
            answers.pages[n].is_none(),
            "each page of a job is answered once"
        );
        answers.pages[n] = Some(page);
        answers.left -= 1;
        if answers.left == 0 {
            let pages = answers.pages.drain(..).flatten().collect();
            // Nobody waits any more: the pages are put.
            let _ = answers.done.send(pages);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread that waits for pages hears of it when the reactor ends, whether its job was queued or begun (I18).
    #[test]
    fn a_reactor_that_ends_leaves_nobody_waiting() {
        let (job, pages) = PagesJob::new(vec![Lba(1), Lba(2)], Intent::Read);
        let begun = Arc::clone(&job);
        begun.answer(0, Err(GetError::Shutdown));
        drop((job, begun));
        assert!(pages.recv().is_err());
    }
}
