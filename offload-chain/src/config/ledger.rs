//! The state of a store: keys with revisions, and leases. Time is passed in.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Expect, Item, LeaseId, Reply, Request, Revision, StoreError, check};

/// Keys and leases, at a revision. It is also what [`super::FileStore`] has in its file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    revision: Revision,
    keys: BTreeMap<String, Kept>,
    leases: BTreeMap<i64, Lease>,
    leases_granted: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Kept {
    value: Vec<u8>,
    revision: Revision,
    lease: Option<LeaseId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Lease {
    ttl: Duration,
    until: Duration,
}

impl Ledger {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty one, in which no lease has a number up to this one.
    #[must_use]
    pub(super) fn granting_after(number: i64) -> Self {
        Self {
            leases_granted: number,
            ..Self::default()
        }
    }

    /// Number of the last change.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Revision of the last change of a key with that prefix that is still there, and how many there are: together they
    /// tell any change.
    #[must_use]
    pub fn digest(&self, prefix: &str) -> (Revision, usize) {
        self.with(prefix)
            .fold((Revision::ABSENT, 0), |(newest, count), (_, kept)| {
                (newest.max(kept.revision), count + 1)
            })
    }

    /// Number of keys.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "nobody asks")]
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Ends leases that are over. Returns whether there were any.
    pub fn expire(&mut self, now: Duration) -> bool {
        let over: Vec<i64> = self
            .leases
            .iter()
            .filter(|(_, lease)| lease.until <= now)
            .map(|(id, _)| *id)
            .collect();
        for id in &over {
            self.end(LeaseId(*id));
        }
        !over.is_empty()
    }

    /// Lets all leases last longer.
    pub fn prolong(&mut self, by: Duration) {
        for lease in self.leases.values_mut() {
            lease.until = lease.until.saturating_add(by);
        }
    }

    /// Ends all leases: the clock that they were counted in is gone.
    pub fn expire_all(&mut self) {
        self.expire(Duration::MAX);
    }

    /// Carries out a request.
    ///
    /// # Errors
    /// If it is not valid.
    pub fn apply(&mut self, now: Duration, request: &Request) -> Result<Reply, StoreError> {
        check(request)?;
        self.expire(now);
        Ok(match request {
            Request::List { prefix } => {
                let items = self.with(prefix).map(|(key, kept)| kept.item(key));
                Reply::Items(items.collect(), self.revision)
            }
            Request::Put {
                key,
                value,
                expect,
                lease,
            } => {
                if let Some(conflict) = self.conflict(key, *expect) {
                    return Ok(conflict);
                }
                if lease.is_some_and(|lease| !self.leases.contains_key(&lease.0)) {
                    return Ok(Reply::NoLease);
                }
                self.revision.0 += 1;
                let kept = Kept {
                    value: value.clone(),
                    revision: self.revision,
                    lease: *lease,
                };
                self.keys.insert(key.clone(), kept);
                Reply::Done(self.revision)
            }
            Request::Delete { key, expect } => {
                if let Some(conflict) = self.conflict(key, *expect) {
                    return Ok(conflict);
                }
                if self.keys.remove(key).is_some() {
                    self.revision.0 += 1;
                }
                Reply::Done(self.revision)
            }
            Request::Grant { ttl } => {
                self.leases_granted += 1;
                let (ttl, until) = (*ttl, now.saturating_add(*ttl));
                self.leases
                    .insert(self.leases_granted, Lease { ttl, until });
                Reply::Granted(LeaseId(self.leases_granted))
            }
            Request::KeepAlive { lease } => match self.leases.get_mut(&lease.0) {
                Some(lease) => {
                    lease.until = now.saturating_add(lease.ttl);
                    Reply::Alive
                }
                None => Reply::NoLease,
            },
            Request::Revoke { lease } => match self.end(*lease) {
                true => Reply::Alive,
                false => Reply::NoLease,
            },
            Request::Watch { .. } => Reply::Watching,
        })
    }

    /// What has to survive the machine: keys without a lease.
    #[must_use]
    pub fn durable(&self) -> Self {
        let keys = self.keys.iter().filter(|(_, kept)| kept.lease.is_none());
        let keys: BTreeMap<_, _> = keys
            .map(|(key, kept)| (key.clone(), kept.clone()))
            .collect();
        let newest = keys.values().map(|kept| kept.revision).max();
        Self {
            revision: newest.unwrap_or(Revision::ABSENT),
            keys,
            ..Self::default()
        }
    }

    /// What ends with the machine: leases, and keys that have one.
    #[must_use]
    pub fn fleeting(&self) -> Self {
        let mut fleeting = self.clone();
        fleeting.keys.retain(|_, kept| kept.lease.is_some());
        fleeting
    }

    /// Both together. A key that is in both is what was put last.
    #[must_use]
    pub fn joined(durable: Self, fleeting: Self) -> Self {
        let mut joined = Self {
            revision: durable.revision.max(fleeting.revision),
            ..fleeting
        };
        for (key, kept) in durable.keys {
            let newer = |other: &Kept| other.revision >= kept.revision;
            if !joined.keys.get(&key).is_some_and(newer) {
                joined.keys.insert(key, kept);
            }
        }
        joined
    }

    fn with<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a String, &'a Kept)> {
        self.keys
            .range(prefix.to_owned()..)
            .take_while(move |(key, _)| key.starts_with(prefix))
    }

    fn conflict(&self, key: &str, expect: Expect) -> Option<Reply> {
        let kept = self.keys.get(key);
        let revision = kept.map_or(Revision::ABSENT, |kept| kept.revision);
        match expect {
            Expect::Revision(expected) if expected != revision => {
                Some(Reply::Conflict(kept.map(|kept| kept.item(key))))
            }
            _ => None,
        }
    }

    fn end(&mut self, lease: LeaseId) -> bool {
        let there = self.leases.remove(&lease.0).is_some();
        let before = self.keys.len();
        self.keys.retain(|_, kept| kept.lease != Some(lease));
        if self.keys.len() != before {
            self.revision.0 += 1;
        }
        there
    }
}

impl Kept {
    fn item(&self, key: &str) -> Item {
        Item {
            key: key.to_owned(),
            value: self.value.clone(),
            revision: self.revision,
        }
    }
}
