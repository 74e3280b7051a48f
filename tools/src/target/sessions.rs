//! Sessions of clients: of each, one connection is served, the latest, and what became of atomic operations on the one before is
//! remembered. A tenant may have a share of all connections, in sessions or not.
//!
//! A client that has lost a connection makes another and sends again what was not acknowledged. Whatever is left of the lost
//! one would undo what comes over the new one, if it took effect behind that (I12): bytes that still lie in a socket of the
//! target, and control requests that one of the threads has, or has not reached yet. So a connection is accepted when all earlier
//! ones of its session are gone:
//!
//! ```text
//!            all earlier ones are gone         ended            no request of it is carried out
//!   arrived ───────────────────────────► served ─────► ended ─────────────────────────────────► gone
//!      └───────────────────────────────────────────────► ▲
//! ```
//!
//! * All of them, not just the one before: that may be waiting itself, and has perhaps ended while it was.
//! * *Ended*: its reactor executes nothing of it any more. For a later one, it is asked to see to that.
//! * Of a connection that has ended no request is begun; one that is being carried out can not be called back, and is waited for.
//!   Requests of others are not, whatever their number.
//! * It takes the place of the one before among those of its tenant, if that has not ended: who has lost a connection before the
//!   target has comes back also when there are as many as there may be.
//! * Nobody waits here. Who makes the last earlier connection go, its reactor or a control thread, hears who is to be accepted.
//!
//! What must not happen twice the client does not send again before it has asked: how many atomic operations of a connection were
//! executed, and with what answers ([`AtomicOutcomes`]). They are taken when the connection can not execute any more, and before the
//! next one is accepted; `tools/docs/credentials.md` has the argument.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use softrdma::{AtomicOutcomes, ProtectionDomain};

use super::regions::Owner;
use crate::credentials::SessionBlock;

/// Sessions without a connection that are remembered, of all tenants. Of more, the tenant with the most has its oldest forgotten: others
/// are told what became of their operations, however many connections it makes.
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
    /// Those that are not gone, by their numbers. All but the latest have been asked to end.
    present: BTreeMap<u64, Owner>,
    /// The last of its connections that executed atomic operations and has ended.
    atomics: Option<(u64, AtomicOutcomes)>,
    /// Its place among those without a connection.
    left: u64,
}

#[derive(Debug, Default)]
struct Table {
    sessions: HashMap<Key, Session>,
    /// Connections of sessions that are not gone, and their numbers.
    by_owner: HashMap<Owner, (Key, u64)>,
    /// Connections that have ended, of a session or not, until the control threads have reached their end.
    ended: HashSet<Owner>,
    /// Connections of which a request is being carried out: one for each control thread.
    busy: HashSet<Owner>,
    /// Connections that have come in and have not ended, and whose they are.
    inside: HashMap<Owner, ProtectionDomain>,
    /// So many of those has each tenant.
    of_tenant: HashMap<ProtectionDomain, usize>,
    /// Sessions without a connection of each tenant, those that lost it longest ago first.
    past: HashMap<ProtectionDomain, BTreeMap<u64, (Instant, Key)>>,
    next_left: u64,
}

impl Table {
    /// Forgets sessions that have been without a connection for too long, or are too many.
    fn forget(&mut self, now: Instant) {
        for past in self.past.values_mut() {
            while let Some(oldest) = past.first_entry()
                && now.duration_since(oldest.get().0) > PAST_TIME
            {
                let (_, key) = oldest.remove();
                self.sessions.remove(&key);
            }
        }
        while self.past.values().map(BTreeMap::len).sum::<usize>() > PAST_MAX
            && let Some(most) = self.past.values_mut().max_by_key(|past| past.len())
            && let Some((_, (_, key))) = most.pop_first()
        {
            self.sessions.remove(&key);
        }
    }

    /// A connection that has ended is gone, if no request of it is being carried out. Whom that lets in.
    fn go(&mut self, owner: Owner) -> Option<Owner> {
        if !self.ended.contains(&owner) || self.busy.contains(&owner) {
            return None;
        }
        let (key, number) = self.by_owner.remove(&owner)?;
        let session = self.sessions.get_mut(&key)?;
        session.present.remove(&number);
        if session.present.is_empty() {
            self.next_left += 1;
            session.left = self.next_left;
            let now = Instant::now();
            let past = self.past.entry(key.0).or_default();
            past.insert(session.left, (now, key));
            self.forget(now);
            return None;
        }
        // An earlier one has been asked to end, also when the latest is gone.
        let latest = session.present.get(&session.last)?;
        (session.present.len() == 1).then_some(*latest)
    }
}

/// What is to be done with a connection that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entered {
    /// Accept it.
    First,
    /// Have this one ended. It is accepted when [`Sessions::leave`] or [`Sessions::done`] says so.
    After(Owner),
    /// Refuse it: a later one is there.
    Late,
    /// Refuse it: its tenant has as many as it may.
    Crowded,
}

/// The sessions that have a connection, not more than there are connections, and some that had one.
#[derive(Debug, Default)]
pub(super) struct Sessions(Mutex<Table>);

impl Sessions {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection has arrived, perhaps of a session. Its tenant may have `share`.
    pub(super) fn enter(
        &self,
        domain: ProtectionDomain,
        block: Option<SessionBlock>,
        owner: Owner,
        share: usize,
    ) -> Entered {
        let mut table = self.table();
        let table = &mut *table;
        table.forget(Instant::now());
        let known = block.and_then(|block| table.sessions.get(&(domain, block.id)));
        if known
            .zip(block)
            .is_some_and(|(s, b)| s.last >= b.connection)
        {
            return Entered::Late;
        }
        let before = known.and_then(|session| session.present.last_key_value());
        let before = before.map(|(_, &old)| old);
        let of_tenant = table.of_tenant.entry(domain).or_default();
        // Each makes one other end at most, so there are more only until those have.
        if *of_tenant >= share && !before.is_some_and(|old| table.inside.contains_key(&old)) {
            return Entered::Crowded;
        }
        *of_tenant += 1;
        table.inside.insert(owner, domain);
        let Some(block) = block else {
            return Entered::First;
        };
        let key = (domain, block.id);
        let session = table.sessions.entry(key).or_insert(Session {
            since: block.connection,
            last: 0,
            present: BTreeMap::new(),
            atomics: None,
            left: 0,
        });
        session.last = block.connection;
        session.present.insert(block.connection, owner);
        if let Some(past) = table.past.get_mut(&domain) {
            past.remove(&session.left);
        }
        table.by_owner.insert(owner, (key, block.connection));
        match before {
            None => Entered::First,
            Some(old) => Entered::After(old),
        }
    }

    /// A connection, of a session or not, has ended: nothing of it is executed any more. To be told once, before the control
    /// threads hear of it. Who is to be accepted now.
    #[must_use]
    pub(super) fn leave(&self, owner: Owner, outcomes: &AtomicOutcomes) -> Option<Owner> {
        let mut table = self.table();
        let table = &mut *table;
        table.ended.insert(owner);
        if let Some(domain) = table.inside.remove(&owner)
            && let Some(of_tenant) = table.of_tenant.get_mut(&domain)
        {
            *of_tenant -= 1;
        }
        let (key, number) = table.by_owner.get(&owner)?;
        let session = table.sessions.get_mut(key)?;
        let later = |(of, _): &(u64, AtomicOutcomes)| of > number;
        if outcomes.executed > 0 && !session.atomics.as_ref().is_some_and(later) {
            session.atomics = Some((*number, outcomes.clone()));
        }
        table.go(owner)
    }

    /// Whether a request of a connection may be carried out; it is until [`done`](Self::done). Those of one that has ended may not:
    /// nobody hears the answer, and who has sent the request again has done so elsewhere.
    pub(super) fn begin(&self, owner: Owner) -> bool {
        let mut table = self.table();
        !table.ended.contains(&owner) && table.busy.insert(owner)
    }

    /// A request has been carried out. Who is to be accepted now.
    #[must_use]
    pub(super) fn done(&self, owner: Owner) -> Option<Owner> {
        let mut table = self.table();
        table.busy.remove(&owner);
        table.go(owner)
    }

    /// No more requests come of a connection that has ended.
    pub(super) fn forget(&self, owner: Owner) {
        self.table().ended.remove(&owner);
    }

    /// How many connections each tenant has that has had any.
    pub(super) fn of_tenants(&self) -> HashMap<ProtectionDomain, usize> {
        self.table().of_tenant.clone()
    }

    /// What became of the atomic operations of an earlier connection of the session that `owner` is a connection of. None: this
    /// target does not know, or not yet.
    pub(super) fn outcomes(&self, owner: Owner, connection: u64) -> Option<AtomicOutcomes> {
        let table = self.table();
        let (key, asking) = table.by_owner.get(&owner)?;
        let session = table.sessions.get(key)?;
        if connection < session.since || connection >= *asking {
            return None;
        }
        if session.present.contains_key(&connection) {
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

    fn block(connection: u64) -> SessionBlock {
        SessionBlock {
            id: [3; 16],
            connection,
        }
    }

    fn owner(n: u32) -> Owner {
        (0, LinkTag(n))
    }

    fn enter(
        sessions: &Sessions,
        domain: ProtectionDomain,
        block: SessionBlock,
        owner: Owner,
    ) -> Entered {
        sessions.enter(domain, Some(block), owner, usize::MAX)
    }

    /// A tenant has its share of the connections, and no other's (I16), whether it names sessions or not. Who comes back before its
    /// lost connection has ended takes the place of that, and of none that had no place.
    #[test]
    fn a_tenant_keeps_to_its_share() {
        let sessions = Sessions::default();
        let (a, b) = (ProtectionDomain(1), ProtectionDomain(2));
        let none = AtomicOutcomes::default();
        let enter = |domain, block, n| sessions.enter(domain, block, owner(n), 2);
        assert_eq!(enter(a, Some(block(1)), 1), Entered::First);
        assert_eq!(enter(a, None, 2), Entered::First);
        assert_eq!(enter(a, None, 3), Entered::Crowded);
        assert_eq!(enter(b, None, 4), Entered::First);
        // It comes again; while it is waited for, once more.
        assert!(sessions.begin(owner(1)));
        assert_eq!(enter(a, Some(block(2)), 5), Entered::After(owner(1)));
        assert_eq!(enter(a, Some(block(3)), 6), Entered::After(owner(5)));
        assert_eq!(sessions.leave(owner(1), &none), None);
        assert_eq!(sessions.leave(owner(5), &none), None);
        assert_eq!(enter(a, None, 7), Entered::Crowded);
        // Its last connection has ended, and another has the place: then there is none, though the session waits for a request.
        assert_eq!(sessions.leave(owner(6), &none), None);
        assert_eq!(enter(a, None, 8), Entered::First);
        assert_eq!(enter(a, Some(block(4)), 9), Entered::Crowded);
        // Who is refused has changed nothing, and may end like any other.
        assert_eq!(sessions.leave(owner(9), &none), None);
        assert_eq!(sessions.done(owner(1)), None);
        assert_eq!(sessions.leave(owner(2), &none), None);
        assert_eq!(enter(a, Some(block(4)), 10), Entered::First);
        assert_eq!(enter(a, None, 11), Entered::Crowded);
    }

    /// Of each session the latest connection is served; an end that is heard of late ends nothing else (I12).
    #[test]
    fn the_latest_connection_counts() {
        let sessions = Sessions::default();
        let (a, b) = (ProtectionDomain(1), ProtectionDomain(2));
        assert_eq!(enter(&sessions, a, block(1), owner(1)), Entered::First);
        assert_eq!(enter(&sessions, b, block(1), owner(2)), Entered::First);
        let after = Entered::After(owner(1));
        assert_eq!(enter(&sessions, a, block(3), owner(3)), after);
        assert_eq!(enter(&sessions, a, block(2), owner(4)), Entered::Late);
        assert_eq!(enter(&sessions, a, block(3), owner(5)), Entered::Late);
        let none = AtomicOutcomes::default();
        assert_eq!(sessions.leave(owner(1), &none), Some(owner(3)));
        assert_eq!(enter(&sessions, a, block(3), owner(5)), Entered::Late);
        assert_eq!(sessions.leave(owner(3), &none), None);
        assert_eq!(enter(&sessions, a, block(1), owner(6)), Entered::Late);
        assert_eq!(enter(&sessions, a, block(4), owner(6)), Entered::First);
        assert_eq!(sessions.leave(owner(2), &none), None);
        assert_eq!(sessions.leave(owner(6), &none), None);
        let table = sessions.table();
        assert!(table.by_owner.is_empty() && table.past.values().all(|past| past.len() == 1));
    }

    /// A connection that ends while it waits leaves those behind that it has waited for: the next one waits for them, too, and
    /// hears of their atomic operations (I12, I13).
    #[test]
    fn all_earlier_connections_are_waited_for() {
        let sessions = Sessions::default();
        let domain = ProtectionDomain(1);
        let after = |n| Entered::After(owner(n));
        let none = AtomicOutcomes::default();
        assert_eq!(enter(&sessions, domain, block(1), owner(1)), Entered::First);
        assert_eq!(enter(&sessions, domain, block(2), owner(2)), after(1));
        // One that has ended before the next arrives, and one that ends behind it.
        assert_eq!(sessions.leave(owner(2), &none), None);
        assert_eq!(enter(&sessions, domain, block(3), owner(3)), after(1));
        assert_eq!(enter(&sessions, domain, block(4), owner(4)), after(3));
        assert_eq!(sessions.leave(owner(3), &none), None);
        assert_eq!(sessions.outcomes(owner(4), 1), None, "not yet");
        assert_eq!(
            sessions.leave(owner(1), &outcomes(&[10])),
            Some(owner(4)),
            "the last that is gone lets it in"
        );
        assert_eq!(sessions.outcomes(owner(4), 1), Some(outcomes(&[10])));
        assert_eq!(sessions.outcomes(owner(4), 2), Some(none.clone()));
        // The last earlier one is let in by nobody, though it is the only one left: it has been asked to end.
        assert_eq!(enter(&sessions, domain, block(5), owner(5)), after(4));
        assert_eq!(enter(&sessions, domain, block(6), owner(6)), after(5));
        assert_eq!(sessions.leave(owner(6), &none), None);
        assert_eq!(sessions.leave(owner(4), &none), None);
        assert_eq!(enter(&sessions, domain, block(7), owner(7)), after(5));
        assert_eq!(sessions.leave(owner(5), &none), Some(owner(7)));
    }

    /// What an earlier connection has done does not hide what a later one has, however late its end is heard of (I13).
    #[test]
    fn late_outcomes_hide_nothing() {
        let sessions = Sessions::default();
        let domain = ProtectionDomain(1);
        for n in 1..=3 {
            enter(&sessions, domain, block(u64::from(n)), owner(n));
        }
        assert_eq!(sessions.leave(owner(2), &outcomes(&[20])), None);
        assert_eq!(sessions.leave(owner(1), &outcomes(&[10])), Some(owner(3)));
        assert_eq!(sessions.outcomes(owner(3), 2), Some(outcomes(&[20])));
        assert_eq!(sessions.outcomes(owner(3), 1), None);
    }

    /// The next connection waits for a request that is being carried out, and no other of a connection that has ended is begun,
    /// whether there is a next one or not (I12, I13).
    #[test]
    fn requests_of_earlier_connections_are_over() {
        let sessions = Sessions::default();
        let domain = ProtectionDomain(1);
        let none = AtomicOutcomes::default();
        enter(&sessions, domain, block(1), owner(1));
        assert!(sessions.begin(owner(1)));
        assert_eq!(sessions.done(owner(1)), None);
        assert!(sessions.begin(owner(1)));
        // It ends, and another comes.
        assert_eq!(sessions.leave(owner(1), &outcomes(&[10])), None);
        let after = |n| Entered::After(owner(n));
        assert_eq!(enter(&sessions, domain, block(2), owner(2)), after(1));
        assert_eq!(sessions.done(owner(1)), Some(owner(2)));
        assert!(!sessions.begin(owner(1)), "what was queued");
        assert_eq!(sessions.outcomes(owner(2), 1), Some(outcomes(&[10])));
        // Another comes, and it ends.
        assert!(sessions.begin(owner(2)));
        assert_eq!(enter(&sessions, domain, block(3), owner(3)), after(2));
        assert_eq!(sessions.leave(owner(2), &none), None);
        assert_eq!(sessions.done(owner(2)), Some(owner(3)));
        // It ends while nobody waits.
        assert!(sessions.begin(owner(3)));
        assert_eq!(sessions.leave(owner(3), &none), None);
        assert_eq!(sessions.done(owner(3)), None);
        assert_eq!(enter(&sessions, domain, block(4), owner(4)), Entered::First);
        // One of no session.
        assert!(sessions.begin(owner(9)));
        assert_eq!(sessions.done(owner(9)), None);
        assert_eq!(sessions.leave(owner(9), &none), None);
        assert!(!sessions.begin(owner(9)));
        assert_eq!(sessions.leave(owner(4), &none), None);
        for n in [1, 2, 3, 4, 9] {
            sessions.forget(owner(n));
        }
        let table = sessions.table();
        assert!(table.by_owner.is_empty() && table.ended.is_empty() && table.busy.is_empty());
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
        let none = AtomicOutcomes::default();
        enter(&sessions, a, block(5), owner(1));
        // Fenced: its outcomes are there before its successor is accepted, whatever is heard of it later.
        assert_eq!(
            enter(&sessions, a, block(7), owner(2)),
            Entered::After(owner(1))
        );
        let admitted = sessions.leave(owner(1), &outcomes(&[10, 11]));
        assert_eq!(admitted, Some(owner(2)));
        assert_eq!(sessions.leave(owner(1), &none), None);
        let of = |asking, connection| sessions.outcomes(asking, connection);
        assert_eq!(of(owner(2), 5), Some(outcomes(&[10, 11])));
        assert_eq!(of(owner(2), 4), None);
        assert_eq!(of(owner(2), 6), Some(none.clone()));
        assert_eq!(of(owner(2), 7), None);
        // It ends by itself, and another does nothing.
        assert_eq!(sessions.leave(owner(2), &none), None);
        enter(&sessions, a, block(8), owner(3));
        assert_eq!(sessions.leave(owner(3), &none), None);
        enter(&sessions, a, block(9), owner(4));
        assert_eq!(of(owner(4), 5), Some(outcomes(&[10, 11])));
        assert_eq!(of(owner(4), 8), Some(none.clone()));
        assert_eq!(sessions.leave(owner(4), &outcomes(&[20])), None);
        enter(&sessions, a, block(10), owner(5));
        assert_eq!(of(owner(5), 9), Some(outcomes(&[20])));
        assert_eq!(of(owner(5), 5), None);
        enter(&sessions, b, block(10), owner(6));
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
            enter(&sessions, domain, block(n, 1), owner(n));
            assert_eq!(sessions.leave(owner(n), &outcomes(&[7])), None);
        }
        assert_eq!(sessions.table().sessions.len(), PAST_MAX);
        for (n, known) in [(9, None), (10, Some(outcomes(&[7])))] {
            enter(&sessions, domain, block(n, 2), owner(n));
            assert_eq!(sessions.outcomes(owner(n), 1), known);
        }
        let mut table = sessions.table();
        table.forget(Instant::now() + 2 * PAST_TIME);
        assert_eq!(table.sessions.len(), 2);
    }

    /// A tenant whose programs make one connection after the other takes nobody else's memory of what became of his operations (I13,
    /// I16).
    #[test]
    fn a_tenant_forgets_its_own_sessions() {
        let sessions = Sessions::default();
        let (a, b) = (ProtectionDomain(1), ProtectionDomain(2));
        let owner = |n: usize| (0, LinkTag(n as u32));
        enter(&sessions, a, block(1), owner(0));
        assert_eq!(sessions.leave(owner(0), &outcomes(&[7])), None);
        for n in 1..PAST_MAX + 10 {
            let block = SessionBlock {
                id: (n as u128).to_be_bytes(),
                connection: 1,
            };
            enter(&sessions, b, block, owner(n));
            assert_eq!(sessions.leave(owner(n), &outcomes(&[7])), None);
        }
        assert_eq!(sessions.table().sessions.len(), PAST_MAX);
        assert_eq!(enter(&sessions, a, block(1), owner(0)), Entered::Late);
        enter(&sessions, a, block(2), owner(0));
        assert_eq!(sessions.outcomes(owner(0), 1), Some(outcomes(&[7])));
    }
}
