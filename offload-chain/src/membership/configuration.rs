//! What the store has about a group, and under which keys.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::config::Item;
use crate::epoch::Epoch;
use crate::group::Topology;
use crate::lock::Slot;
use crate::log::{Header, Layout, LayoutError};

/// Key of the [`Configuration`].
pub const CONFIG: &str = "config";
/// Keys of [`Report`]s: this and the member's number.
pub const MEMBER: &str = "member/";
/// Keys of living clients: this and the slot.
pub const CLIENT: &str = "client/";
/// Keys of slots that are taken: this and the slot.
pub const SLOT: &str = "slot/";
/// Keys of [`Doubt`]s: this and the epoch.
pub const DOUBT: &str = "doubt/";

/// Names a member, for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MemberId(pub u32);

/// Names one life of a process. Random.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Boot(pub u64);

impl Boot {
    /// Nobody's: no life draws it, but by a chance of 2^-64.
    pub const NOBODY: Self = Self(0);
}

/// A member in one of its lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Seat {
    /// Which member.
    pub id: MemberId,
    /// In which life.
    pub boot: Boot,
}

/// What never changes of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Birth {
    /// Locks of the layout.
    pub locks: u32,
    /// Bytes of the ring.
    pub ring_bytes: u64,
    /// Bytes of data.
    pub data_bytes: u64,
    /// Random. Tells the group's memory from others'.
    pub salt: u64,
    /// Random. Who knows it may take part in the group.
    pub token: [u8; 16],
    /// How primitives run.
    pub topology: Topology,
    /// Whether records are carried out.
    pub executes: bool,
    /// Whether what is acknowledged survives a restart of a member.
    pub durable: bool,
}

/// How far an epoch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Phase {
    /// Members stop executing for earlier epochs.
    Seal,
    /// Members make themselves like the source.
    Sync,
    /// Members carry out their logs.
    Recover,
    /// Clients may connect.
    Active,
}

/// Who belongs to a group, in which epoch, and how far that is. The key [`CONFIG`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Configuration {
    /// Its number.
    pub epoch: Epoch,
    /// How far it is.
    pub phase: Phase,
    /// What never changes.
    pub birth: Birth,
    /// Who may belong to the group: the operator's word.
    pub members: Vec<MemberId>,
    /// Who does in this epoch, head first.
    pub chain: Vec<Seat>,
    /// Those of the chain that have all that was acknowledged.
    pub vouching: Vec<MemberId>,
    /// Whom the others make themselves like.
    pub source: Option<MemberId>,
    /// Where the log of the last active epoch ends, once that is decided.
    pub end: Option<End>,
    /// Slots whose locks this epoch frees: of clients that died, and, once all have sealed, [`Boot::NOBODY`]'s, which have no key.
    pub fenced: Vec<(Slot, Boot)>,
    /// The last epoch that was active; 0 if none was.
    pub active_epoch: Epoch,
    /// Its chain.
    pub active_chain: Vec<Seat>,
}

/// Where the log of the last active epoch ends, for all who carry it out. Decided when a source is first named, and kept by
/// later epochs until one is active: members that recovered in an epoch that was given up have carried out just that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct End {
    /// The epoch that decided it.
    pub since: Epoch,
    /// Number of the first record that is not there.
    pub sequence: u64,
}

/// What a member says of itself. Under its lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// Which member, in which life.
    pub seat: Seat,
    /// Where it is reached.
    pub address: String,
    /// Term of its header and end of its log, if it has a log to vouch for.
    pub log: Option<(Epoch, u64)>,
    /// It executes nothing of epochs before this one.
    pub sealed: Epoch,
    /// It is like the source of this epoch.
    pub synced: Epoch,
    /// It has recovered for this epoch.
    pub recovered: Epoch,
    /// It has nearly caught up with this active epoch.
    pub ready: Option<Epoch>,
    /// Grows while it copies or carries out: it is at work.
    pub progress: u64,
    /// Chunks it was behind in the last round of catching up.
    pub behind: u64,
    /// For how long its slowest link has had an answer outstanding.
    pub lag_ms: u64,
}

/// Somebody's group is broken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Doubt {
    /// Who did not answer, if that is known.
    pub suspect: Option<MemberId>,
}

/// A value in the store that is not what its key says.
#[derive(Debug, thiserror::Error)]
#[error("the store has something else under {key}: {error}; correct or delete the key")]
pub struct BadValue {
    key: String,
    error: serde_json::Error,
}

impl Birth {
    /// The layout of the members' memory.
    ///
    /// # Errors
    /// If there is none like this.
    pub fn layout(&self) -> Result<Layout, LayoutError> {
        Layout::new(self.locks, self.ring_bytes, self.data_bytes)
    }

    /// The first header of the members' memory.
    ///
    /// # Errors
    /// If there is no such layout.
    pub fn header(&self) -> Result<Header, LayoutError> {
        Ok(Header::first(self.layout()?, self.salt, self.executes))
    }
}

impl Configuration {
    /// A group that has never been active. It becomes when all its members have reported.
    #[must_use]
    pub fn new(birth: Birth, members: Vec<MemberId>) -> Self {
        Self {
            epoch: Epoch(0),
            phase: Phase::Active,
            birth,
            members,
            chain: Vec::new(),
            vouching: Vec::new(),
            source: None,
            end: None,
            fenced: Vec::new(),
            active_epoch: Epoch(0),
            active_chain: Vec::new(),
        }
    }

    /// The place in the chain.
    #[must_use]
    pub fn position(&self, seat: Seat) -> Option<usize> {
        self.chain.iter().position(|other| *other == seat)
    }

    /// The members, and who is in the chain still.
    #[must_use]
    pub fn names(&self) -> BTreeSet<MemberId> {
        let in_chain = self.chain.iter().map(|seat| seat.id);
        self.members.iter().copied().chain(in_chain).collect()
    }

    /// Whether a member that reports this has all that was acknowledged (docs/membership.md): it was in the last active chain, and
    /// its log is as that epoch left it, or was carried out to the end that is decided.
    #[must_use]
    pub fn vouches(&self, report: &Report) -> bool {
        let Some((term, _)) = report.log else {
            return false;
        };
        let mut seats = self.active_chain.iter();
        let seat = seats.find(|seat| seat.id == report.seat.id);
        let recovered = self.end.is_some_and(|end| term >= end.since);
        (term == self.active_epoch || recovered)
            && seat.is_some_and(|seat| seat.boot == report.seat.boot || self.birth.durable)
    }

    /// Whether a member that reports this has the log up to the end that is decided.
    #[must_use]
    pub fn reaches_end(&self, report: &Report) -> bool {
        match (self.end, report.log) {
            (Some(end), Some((_, sequence))) => sequence >= end.sequence,
            _ => false,
        }
    }
}

/// The bytes of a value.
pub fn encode(value: &impl Serialize) -> Vec<u8> {
    // These types have no maps with odd keys, and nothing else that JSON refuses.
    serde_json::to_vec(value).unwrap_or_default()
}

/// A value of the store.
///
/// # Errors
/// If it is something else.
pub fn decode<T: DeserializeOwned>(item: &Item) -> Result<T, BadValue> {
    serde_json::from_slice(&item.value).map_err(|error| BadValue {
        key: item.key.clone(),
        error,
    })
}

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
