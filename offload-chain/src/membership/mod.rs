//! Who belongs to a group, and what happens when that changes.
//!
//! A [`Member`] lives in the process of the engine, a [`Session`] with each client, [`Controller`]s anywhere. They meet in a
//! [`Store`](crate::config::Store) only; members also copy memory from each other. None of them does I/O or reads a clock. The argument is in
//! `docs/membership.md`.
//!
//! # Invariants
//! - E1. A client connects in an epoch only if its slot was its own after the epoch was active (I12).
//! - E2. A member reports `sealed`, and how far its log goes, only after its engine executes nothing of earlier epochs (I12, I1).
//! - E3. An epoch is active only after all of its chain have sealed, are alike and have recovered (I15), no member of the last
//!   active chain can answer a READ any more (I13), and no slot that it fences has the key of the client that had it (I12).
//! - E4. The source of an epoch was in the last active chain and has all that was acknowledged in it (I1, I14).
//!
//! # Failure
//! Each party may stop for ever, or go on minutes later, between any two calls. A group waits, and says for whom, when
//! nobody who can vouch is left.

use std::time::Duration;

mod configuration;
mod controller;
mod copy;
mod left_out;
mod member;
mod session;
mod slow;

pub use configuration::{
    BadValue, Birth, Boot, CLIENT, CONFIG, Configuration, DOUBT, Doubt, End, MEMBER, MemberId,
    Phase, Report, SLOT, Seat, decode, encode,
};
pub use controller::{Controller, ControllerSettings, Note, PutBack, View};
pub use copy::{Ask, BATCH_CHUNKS, Give, Message};
pub use member::{Action, Member, MemberSettings, Work};
pub use session::{Session, SessionEvent, SessionSettings};
pub use slow::SlowPolicy;

/// How long controllers and clients wait for an answer of the store. What they asked is asked again then, and what is said later does not
/// count.
pub(crate) fn store_patience(period: Duration) -> Duration {
    period * 8
}

/// What to say of a store that takes longer.
pub(crate) const STORE_IS_LATE: &str = "the store does not answer, and longer than eight periods is not waited for it: \
    one that is always so slow wants a longer --period, and a longer --read-lease with it";
