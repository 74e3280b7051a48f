//! Where configurations, epochs and leases are kept: a store with compare-and-put, leases and watches.
//!
//! A [`Store`] is asked by [`Store::submit`] and answers by [`Store::poll`], in order, without blocking and whenever it can; so the
//! machines of [`crate::membership`] run alike over a file, over etcd and in a simulation.
//!
//! | implementation | for |
//! |---|---|
//! | [`Ledger`] | the state itself, in memory; what the others are compared with |
//! | [`FileStore`] | the processes of one machine |
//! | [`EtcdStore`] | several machines |
//!
//! [`open`] chooses by a URL.
//!
//! # Invariants
//! - S1. Revisions only grow, over all keys; a compare-and-put wins at most once per revision of its key.
//! - S2. What was answered is durable, and every later request of anybody sees it.
//! - S3. A key put under a lease is gone when the lease is; a lease lasts at least its time to live after the last answered
//!   keep-alive was *sent*, in the clock of the store, and never comes back.
//!
//! # Failure
//! [`StoreError::Unavailable`] says that it is unknown whether a request was carried out. Ask what is there before asking
//! for it again.

mod ask;
mod etcd;
mod file;
mod ledger;
mod notice;
mod open;
mod wake;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use ask::{AskError, ask, list};
pub use etcd::{EtcdOpenError, EtcdStore, EtcdTls, EtcdTlsError};
pub use file::{FileStore, FileStoreError};
pub use ledger::Ledger;
pub use open::{OpenError, file_of, open};
pub(crate) use wake::Knock;
pub use wake::Wake;

/// Longest key.
pub const KEY_BYTES_MAX: usize = 256;
/// Longest value.
pub const VALUE_BYTES_MAX: usize = 64 << 10;
/// Requests that a store holds unanswered; more are answered with [`StoreError::Busy`].
pub const REQUESTS_MAX: usize = 1024;

/// Number of a change of the store. 0 is: the key is absent.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub struct Revision(pub u64);

impl Revision {
    /// Of a key that is not there.
    pub const ABSENT: Self = Self(0);
}

/// Names a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LeaseId(pub i64);

/// Names a request, for whoever made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// A key with what it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The key.
    pub key: String,
    /// What was put last.
    pub value: Vec<u8>,
    /// When.
    pub revision: Revision,
}

/// What a put or delete depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// Nothing.
    Anything,
    /// The key has this revision; [`Revision::ABSENT`]: it is not there.
    Revision(Revision),
}

/// What a store can be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// All keys with this prefix; all there are, if it is empty.
    List {
        /// The prefix.
        prefix: String,
    },
    /// Puts a key.
    Put {
        /// The key.
        key: String,
        /// What it has then.
        value: Vec<u8>,
        /// If this holds.
        expect: Expect,
        /// Gone with this lease.
        lease: Option<LeaseId>,
    },
    /// Deletes a key.
    Delete {
        /// The key.
        key: String,
        /// If this holds.
        expect: Expect,
    },
    /// A lease.
    Grant {
        /// How long it lasts without keep-alive.
        ttl: Duration,
    },
    /// Lets a lease last its whole time again.
    KeepAlive {
        /// The lease.
        lease: LeaseId,
    },
    /// Ends a lease, and its keys.
    Revoke {
        /// The lease.
        lease: LeaseId,
    },
    /// From now on, [`Event::Changed`] for changes of keys with this prefix. Tells that something changed, not each change.
    Watch {
        /// The prefix.
        prefix: String,
    },
}

/// What a store answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// To a list: by key; and the revision of the store then.
    Items(Vec<Item>, Revision),
    /// To a put or delete: done; the store's revision then.
    Done(Revision),
    /// To a put or delete: what was expected does not hold; this does.
    Conflict(Option<Item>),
    /// To a grant.
    Granted(LeaseId),
    /// To a keep-alive or revoke.
    Alive,
    /// To a keep-alive, revoke, or put: there is no such lease any more.
    NoLease,
    /// To a watch: it is on.
    Watching,
}

/// Why a request was not answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Too long, empty, or not a time.
    #[error("the store does not take the request: {0}")]
    Invalid(&'static str),
    /// Too many are under way.
    #[error("{REQUESTS_MAX} requests wait for the store: take answers first")]
    Busy,
    /// Whether it was carried out is unknown.
    #[error("the store did not answer: {0}")]
    Unavailable(String),
}

/// What a store says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// An answer.
    Answer(Ticket, Result<Reply, StoreError>),
    /// Something with a watched prefix changed; or may have.
    Changed {
        /// The prefix that is watched.
        prefix: String,
    },
}

/// A store.
pub trait Store {
    /// Asks. Answers come by [`poll`](Self::poll), in the order of asking.
    fn submit(&mut self, request: Request) -> Ticket;

    /// What there is to say.
    fn poll(&mut self) -> Option<Event>;

    /// Has `wake` called from now on whenever there may be something to say. Whether it can: who is not woken looks now and then.
    fn wake_by(&mut self, wake: Wake) -> bool {
        drop(wake);
        false
    }
}

impl<S: Store + ?Sized> Store for Box<S> {
    fn submit(&mut self, request: Request) -> Ticket {
        (**self).submit(request)
    }

    fn poll(&mut self) -> Option<Event> {
        (**self).poll()
    }

    fn wake_by(&mut self, wake: Wake) -> bool {
        (**self).wake_by(wake)
    }
}

/// Refuses what no store has to take.
pub(crate) fn check(request: &Request) -> Result<(), StoreError> {
    let (key, value, least) = match request {
        Request::List { prefix } | Request::Watch { prefix } => (Some(prefix), None, 0),
        Request::Put { key, value, .. } => (Some(key), Some(value), 1),
        Request::Delete { key, .. } => (Some(key), None, 1),
        Request::Grant { ttl } if ttl.is_zero() || *ttl > Duration::from_secs(86_400) => {
            return Err(StoreError::Invalid(
                "a lease lasts more than 0 s, at most a day",
            ));
        }
        _ => (None, None, 0),
    };
    if key.is_some_and(|key| key.len() < least || key.len() > KEY_BYTES_MAX) {
        return Err(StoreError::Invalid("a key has 1 to 256 bytes"));
    }
    if value.is_some_and(|value| value.len() > VALUE_BYTES_MAX) {
        return Err(StoreError::Invalid("a value has at most 64 KiB"));
    }
    Ok(())
}
