//! Syncs that nobody waits for: whoever asks leaves word of what is to be done when all is durable, and goes on.
//!
//! A thread of the mount that waits until others have made its pages durable sleeps, and when many sync at once, waking
//! all of them takes longer than the sync did. Here they share one port of the engine: a thread that has asked carries out what there is to be
//! done on it, and leaves when there is nothing. So one of them makes durable what all have asked for, and gives all the
//! answers; the others take further requests meanwhile, which are the next it makes durable.
//!
//! ```text
//!   thread ── sync ──► port ──► nothing to do: it leaves
//!   thread ── sync ──► port ──► write, flush: carried out ──► durable: answers of all whose pages were in it ──► next
//! ```
//!
//! # Invariants
//! - T1. Every answer is given once ([`Together::expect`] to [`Together::answer`]), by a thread that holds no lock.
//! - T2. What appears on the port is found by a thread that drives it, which looks once more after it has said that it ends, or
//!   by the reactor ([`Handshake`]).

use std::sync::{Mutex, PoisonError};

use contigfs::SyncDone;
use ftl::{Event, Ftl, Port, Token};
use slab::Slab;

use super::handshake::Handshake;
use super::store::durable_error;

/// The port, and who is to be answered.
pub(super) struct Together {
    pub(super) port: Port,
    pub(super) handshake: Handshake,
    waiting: Mutex<Slab<SyncDone>>,
}

impl std::fmt::Debug for Together {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Together")
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

impl Together {
    pub(super) fn new(port: Port) -> Self {
        Self {
            port,
            handshake: Handshake::new(),
            waiting: Mutex::default(),
        }
    }

    /// Remembers whom to answer; the token names the sync.
    pub(super) fn expect(&self, done: SyncDone) -> Token {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        Token(waiting.insert(done) as u64)
    }

    /// Gives the answers that have come; whether there were any.
    pub(super) fn answer(&self, ftl: &Ftl) -> bool {
        let mut any = false;
        while let Some(event) = ftl.poll_event(self.port) {
            let Event::Durable { token, result } = event else {
                unreachable!("{event:?} was not asked for");
            };
            let done = {
                let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
                waiting.remove(token.0 as usize)
            };
            done(result.map_err(|error| durable_error(&error)));
            any = true;
        }
        any
    }
}
