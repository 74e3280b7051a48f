//! What a peer has asked for and got, counted.

use std::ops::AddAssign;

use crate::connection::Connection;
use crate::mem::ATOMIC_BYTES;
use crate::page::PageStore;

/// Messages, and the bytes of memory that they moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Messages that have ended.
    pub messages: u64,
    /// Bytes, those of messages that have not ended or never will among them.
    pub bytes: u64,
}

impl Tally {
    /// A part of a message, perhaps the last.
    pub(super) fn note(&mut self, bytes: usize, last: bool) {
        self.bytes += bytes as u64;
        self.messages += u64::from(last);
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, more: Self) {
        self.messages += more.messages;
        self.bytes += more.bytes;
    }
}

/// What was done for the peer of a connection since that began; what was refused is not in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// RDMA WRITEs, placed. A connection may begin with one of no bytes (RFC 6581 §9).
    pub write: Tally,
    /// RDMA READs, answered.
    pub read: Tally,
    /// SENDs of all kinds that a receive took, and immediate data, which has no bytes here.
    pub send: Tally,
    /// Atomic operations, executed.
    pub atomic: Tally,
    /// FLUSHes, answered. They have no bytes.
    pub flush: Tally,
    /// VERIFYs, answered.
    pub verify: Tally,
}

impl AddAssign for Served {
    fn add_assign(&mut self, more: Self) {
        self.write += more.write;
        self.read += more.read;
        self.send += more.send;
        self.atomic += more.atomic;
        self.flush += more.flush;
        self.verify += more.verify;
    }
}

impl<S: PageStore> Connection<S> {
    /// What was done for the peer so far.
    #[must_use]
    pub fn served(&self) -> Served {
        let executed = self.outcomes.executed;
        let answered = self.responses.answered();
        Served {
            write: self.placed,
            send: self.received,
            read: answered.read,
            flush: answered.flush,
            verify: answered.verify,
            atomic: Tally {
                messages: executed,
                bytes: executed * ATOMIC_BYTES as u64,
            },
        }
    }
}
