//! Sessions of clients: of each, one connection is served, the latest.
//!
//! A client that has lost a connection makes another and sends again what was not acknowledged. Bytes of the lost one may still
//! lie in a socket of the target; placed after what came over the new one, they would undo it. So the old connection is ended
//! before the new one is accepted (I12).

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use softrdma::ProtectionDomain;

use super::regions::Owner;
use crate::credentials::SessionBlock;

type Key = (ProtectionDomain, [u8; 16]);

#[derive(Debug, Default)]
struct Table {
    latest: HashMap<Key, (u64, Owner)>,
    by_owner: HashMap<Owner, Key>,
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

/// The sessions that have a connection; not more than there are connections.
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
        let key = (domain, block.id);
        let before = table.latest.get(&key).copied();
        if before.is_some_and(|(connection, _)| connection >= block.connection) {
            return Entered::Late;
        }
        table.latest.insert(key, (block.connection, owner));
        table.by_owner.insert(owner, key);
        match before {
            None => Entered::First,
            Some((_, old)) => {
                table.by_owner.remove(&old);
                Entered::After(old)
            }
        }
    }

    /// A connection has ended.
    pub(super) fn leave(&self, owner: Owner) {
        let mut table = self.table();
        if let Some(key) = table.by_owner.remove(&owner) {
            table.latest.remove(&key);
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
        sessions.leave(owner(1));
        assert_eq!(sessions.enter(a, block(3), owner(5)), Entered::Late);
        sessions.leave(owner(3));
        assert_eq!(sessions.enter(a, block(1), owner(6)), Entered::First);
        sessions.leave(owner(2));
        sessions.leave(owner(6));
        let table = sessions.table();
        assert!(table.latest.is_empty() && table.by_owner.is_empty());
    }
}
