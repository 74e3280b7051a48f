//! An operation of a channel: what it does, where it was posted, and what is known of it when its connection is lost.

use std::sync::Arc;

use softrdma::{
    Atomic, Buffer, CloseReason, LocalSlice, Operation, Placement, Selectivity, Source,
    WorkRequest, WrId,
};

use crate::channel::FileNo;
use crate::error::ClientError;
use crate::session::{RemoteFile, Session};

/// Bytes that an atomic operation is about.
const ATOMIC_BYTES: u64 = 8;

/// Number of an operation in its channel; grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u64);

/// An operation that is not acknowledged.
#[derive(Clone, Debug)]
pub(crate) struct Pending {
    pub(crate) id: OpId,
    pub(crate) file: FileNo,
    pub(crate) offset: u64,
    pub(crate) work: Work,
}

impl Pending {
    /// Behind the bytes that it is about.
    pub(crate) fn end(&self) -> u64 {
        let length = match &self.work {
            Work::Write(bytes, _) | Work::Read(bytes) => bytes.len() as u64,
            Work::Atomic(..) => ATOMIC_BYTES,
            Work::Flush | Work::Settled(_) | Work::Failed(_) => 0,
        };
        self.offset.saturating_add(length)
    }

    /// Notes where an atomic operation is about to be posted.
    pub(crate) fn note_posted(&mut self, connection: u64, atomics: &mut u64) {
        if let Work::Atomic(_, posted) = &mut self.work {
            *posted = Some(Posted {
                connection,
                n: *atomics,
            });
            *atomics += 1;
        }
    }

    /// Posts it so that it has exactly one completion, which acknowledges it: a WRITE's is that of a READ.
    pub(crate) fn post(&self, session: &mut Session, file: &RemoteFile) -> Result<(), ClientError> {
        let id = WrId(self.id.0);
        let answered = match &self.work {
            Work::Read(buffer) => Operation::Read {
                sink: LocalSlice::whole(buffer),
                remote: file.at(self.offset),
            },
            Work::Write(bytes, sync) => {
                let remote = match sync {
                    true => file.at_sync(self.offset),
                    false => file.at(self.offset),
                };
                let source = Source::Local(LocalSlice::whole(bytes));
                session.post(WorkRequest {
                    signaled: false,
                    ..WorkRequest::new(id, Operation::Write { source, remote })
                })?;
                Operation::Read {
                    sink: LocalSlice::whole(&Buffer::zeroed(0)),
                    remote: file.at(0),
                }
            }
            Work::Flush => Operation::Flush {
                remote: file.at(0),
                selectivity: Selectivity::Region,
                placement: Placement::Persistent,
            },
            Work::Atomic(op, _) => Operation::Atomic {
                remote: file.at(self.offset),
                op: *op,
            },
            Work::Settled(_) | Work::Failed(_) => return Ok(()),
        };
        session.post(WorkRequest::new(id, answered))
    }
}

/// What an operation does.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    /// Through the sync STag or not.
    Write(Arc<Buffer>, bool),
    Read(Arc<Buffer>),
    /// All of the region.
    Flush,
    /// And where it was posted, if it was.
    Atomic(Atomic, Option<Posted>),
    /// An operation of which is known what became of it on a connection that is lost.
    Settled(Settled),
    /// An operation that fails when its turn comes.
    Failed(Failure),
}

/// Why an operation fails.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// The target does not let its region be used.
    Refused(Refusal),
    /// The target has ended every connection because of it.
    Terminated(CloseReason),
}

/// What the target says of a region that it does not let be used: errno and words.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    pub(crate) status: i32,
    pub(crate) message: String,
}

impl From<Failure> for ClientError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused(Refusal { status, message }) => Self::Refused { status, message },
            Failure::Terminated(reason) => Self::Terminated { reason },
        }
    }
}

impl Work {
    /// Does it change bytes?
    pub(crate) fn changes(&self) -> bool {
        matches!(self, Self::Write(..) | Self::Atomic(..))
    }

    /// Is nothing left to be posted?
    pub(crate) fn is_settled(&self) -> bool {
        matches!(self, Self::Settled(_) | Self::Failed(_))
    }
}

/// What became of an operation on a connection that is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settled {
    /// Atomic operation: what the word was before, if anybody knows. A WRITE was made.
    pub(crate) original: Option<u64>,
    /// In this life the target has said so: it had the effect in its memory then. By the time this is acknowledged, that may be
    /// over.
    pub(crate) life: u64,
}

/// Where an atomic operation was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Posted {
    /// On this connection of the session.
    pub(crate) connection: u64,
    /// As the `n`th of them, from 0.
    pub(crate) n: u64,
}
