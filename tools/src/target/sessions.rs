//! Sessions of clients: of each, one connection is served, the latest, and what became of atomic operations on the one before is
//! remembered.
//!
//! A client that has lost a connection makes another and sends again what was not acknowledged. Bytes of the lost one may still
//! lie in a socket of the target; placed after what came over the new one, they would undo it. So the old connection is ended
//! before the new one is accepted (I12).
//!
//! What must not happen twice it does not send again before it has asked: how many atomic operations of a connection were
//! executed, and with what answers ([`AtomicOutcomes`]). They are taken when the connection can not execute any more, and before the
//! next one is accepted; `tools/docs/credentials.md` has the argument.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use softrdma::{AtomicOutcomes, ProtectionDomain};

use super::regions::Owner;
use crate::credentials::SessionBlock;

/// Sessions without a connection that are remembered.
const PAST_MAX: usize = 8192;
/// How long: longer than clients try to come back.
const PAST_TIME: Duration = Duration::from_secs(600);

type Key = (ProtectionDomain, [u8; 16]);

/// What is known of a session.
#[derive(Debug)]
struct Session {
    /// The first of its connections that this target has seen.
    since: u64,
    /// The latest of them.
    last: u64,
    /// The same, while it is there.
    latest: Option<Owner>,
    /// The last of its connections that executed atomic operations and has ended.
    atomics: Option<(u64, AtomicOutcomes)>,
    /// Its place among those without a connection.
    left: u64,
}

#[derive(Debug, Default)]
struct Table {
    sessions: HashMap<Key, Session>,
    /// Connections that have not ended, and their numbers.
    by_owner: HashMap<Owner, (Key, u64)>,
    /// Sessions without a connection, those that lost it longest ago first.
    past: BTreeMap<u64, (Instant, Key)>,
    next_left: u64,
}

impl Table {
    /// Forgets sessions that have been without a connection for too long, or are too many.
    fn forget(&mut self, now: Instant) {
        while let Some((&left, &(at, key))) = self.past.first_key_value()
            && (self.past.len() > PAST_MAX || now.duration_since(at) > PAST_TIME)
        {
            self.past.remove(&left);
            self.sessions.remove(&key);
        }
    }
}

/// What is to be done with a connection that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entered {
    /// Accept it.
    First,
    /// Accept it when this one has been ended.
    After(Owner),
    /// Refuse it: a later one is there.
    Late,
}

/// The sessions that have a connection, not more than there are connections, and some that had one.
#[derive(Debug, Default)]
pub(super) struct Sessions(Mutex<Table>);

impl Sessions {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection of a session has arrived.
    pub(super) fn enter(
        &self,
        domain: ProtectionDomain,
        block: SessionBlock,
        owner: Owner,
    ) -> Entered {
        let mut table = self.table();
        let table = &mut *table;
        table.forget(Instant::now());
        let key = (domain, block.id);
        let known = table.sessions.get(&key);
        if known.is_some_and(|session| session.last >= block.connection) {
            return Entered::Late;
        }
        let session = table.sessions.entry(key).or_insert(Session {
            since: block.connection,
            last: 0,
            latest: None,
            atomics: None,
            left: 0,
        });
        session.last = block.connection;
        let before = session.latest.replace(owner);
        table.past.remove(&session.left);
        table.by_owner.insert(owner, (key, block.connection));
        match before {
            None => Entered::First,
            Some(old) => Entered::After(old),
        }
    }

    /// A connection has ended, or will not execute anything any more; heard of once or twice.
    pub(super) fn leave(&self, owner: Owner, outcomes: &AtomicOutcomes) {
        let mut table = self.table();
        let table = &mut *table;
        let Some((key, connection)) = table.by_owner.remove(&owner) else {
            return;
        };
        let Some(session) = table.sessions.get_mut(&key) else {
            return;
        };
        if outcomes.executed > 0 {
            session.atomics = Some((connection, outcomes.clone()));
        }
        if session.latest == Some(owner) {
            session.latest = None;
            table.next_left += 1;
            session.left = table.next_left;
            let now = Instant::now();
            table.past.insert(session.left, (now, key));
            table.forget(now);
        }
    }

    /// What became of the atomic operations of an earlier connection of the session that `owner` is a connection of. None: this
    /// target does not know.
    pub(super) fn outcomes(&self, owner: Owner, connection: u64) -> Option<AtomicOutcomes> {
        let table = self.table();
        let (key, asking) = table.by_owner.get(&owner)?;
        let session = table.sessions.get(key)?;
        if connection < session.since || connection >= *asking {
            return None;
        }
        match &session.atomics {
            Some((of, outcomes)) if *of == connection => Some(outcomes.clone()),
            // Those of an earlier one are gone.
            Some((of, _)) if *of > connection => None,
            _ => Some(AtomicOutcomes::default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reactor::LinkTag;

    /// Of each session the latest connection is served; an end that is heard of late ends nothing else (I12).
    #[test]
    fn the_latest_connection_counts() {
        let sessions = Sessions::default();
        let block = |connection| SessionBlock {
            id: [3; 16],
            connection,
        };
        let owner = |n| (0, LinkTag(n));
        let (a, b) = (ProtectionDomain(1), ProtectionDomain(2));
        assert_eq!(sessions.enter(a, block(1), owner(1)), Entered::First);
        assert_eq!(sessions.enter(b, block(1), owner(2)), Entered::First);
        let after = Entered::After(owner(1));
        assert_eq!(sessions.enter(a, block(3), owner(3)), after);
        assert_eq!(sessions.enter(a, block(2), owner(4)), Entered::Late);
        assert_eq!(sessions.enter(a, block(3), owner(5)), Entered::Late);
        let none = AtomicOutcomes::default();
        sessions.leave(owner(1), &none);
        assert_eq!(sessions.enter(a, block(3), owner(5)), Entered::Late);
        sessions.leave(owner(3), &none);
        assert_eq!(sessions.enter(a, block(1), owner(6)), Entered::Late);
        assert_eq!(sessions.enter(a, block(4), owner(6)), Entered::First);
        sessions.leave(owner(2), &none);
        sessions.leave(owner(6), &none);
        let table = sessions.table();
        assert!(table.by_owner.is_empty() && table.past.len() == 2);
    }

    fn outcomes(words: &[u64]) -> AtomicOutcomes {
        AtomicOutcomes {
            executed: words.len() as u64,
            last: words.iter().copied().collect(),
        }
    }

    /// A session hears what became of its earlier connection, also over some on which nothing happened, and nothing of what
    /// this target has not seen, of other sessions, or of itself (I13, I10).
    #[test]
    fn outcomes_are_those_of_an_earlier_connection() {
        let sessions = Sessions::default();
        let (a, b) = (ProtectionDomain(1), ProtectionDomain(2));
        let block = |connection| SessionBlock {
            id: [3; 16],
            connection,
        };
        let owner = |n| (0, LinkTag(n));
        let none = AtomicOutcomes::default();
        sessions.enter(a, block(5), owner(1));
        // Fenced: its outcomes are there before its successor is accepted, whatever is heard of it later.
        assert_eq!(
            sessions.enter(a, block(7), owner(2)),
            Entered::After(owner(1))
        );
        sessions.leave(owner(1), &outcomes(&[10, 11]));
        sessions.leave(owner(1), &none);
        let of = |asking, connection| sessions.outcomes(asking, connection);
        assert_eq!(of(owner(2), 5), Some(outcomes(&[10, 11])));
        assert_eq!(of(owner(2), 4), None);
        assert_eq!(of(owner(2), 6), Some(none.clone()));
        assert_eq!(of(owner(2), 7), None);
        // It ends by itself, and another does nothing.
        sessions.leave(owner(2), &none);
        sessions.enter(a, block(8), owner(3));
        sessions.leave(owner(3), &none);
        sessions.enter(a, block(9), owner(4));
        assert_eq!(of(owner(4), 5), Some(outcomes(&[10, 11])));
        assert_eq!(of(owner(4), 8), Some(none.clone()));
        sessions.leave(owner(4), &outcomes(&[20]));
        sessions.enter(a, block(10), owner(5));
        assert_eq!(of(owner(5), 9), Some(outcomes(&[20])));
        assert_eq!(of(owner(5), 5), None);
        sessions.enter(b, block(10), owner(6));
        assert_eq!(of(owner(6), 9), None);
        assert_eq!(of(owner(7), 9), None);
    }

    /// However many sessions come and go, so many are remembered (I16): the latest.
    #[test]
    fn few_sessions_are_remembered() {
        let sessions = Sessions::default();
        let domain = ProtectionDomain(1);
        let block = |n: usize, connection| SessionBlock {
            id: (n as u128).to_be_bytes(),
            connection,
        };
        let owner = |n: usize| (0, LinkTag(n as u32));
        for n in 0..PAST_MAX + 10 {
            sessions.enter(domain, block(n, 1), owner(n));
            sessions.leave(owner(n), &outcomes(&[7]));
        }
        assert_eq!(sessions.table().sessions.len(), PAST_MAX);
        for (n, known) in [(9, None), (10, Some(outcomes(&[7])))] {
            sessions.enter(domain, block(n, 2), owner(n));
            assert_eq!(sessions.outcomes(owner(n), 1), known);
        }
        let mut table = sessions.table();
        table.forget(Instant::now() + 2 * PAST_TIME);
        assert_eq!(table.sessions.len(), 2);
    }
}
