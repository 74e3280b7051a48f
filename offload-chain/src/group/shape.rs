//! What all members and clients of a group have to agree on, and what they say to each other when they meet.

use serde::{Deserialize, Serialize};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::MEMBERS_MAX;
use super::block::{BLOCK_BYTES, SLOTS_MAX};
use crate::proof::{PROOF_BYTES, is_proven, prove};

/// How messages run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Topology {
    /// From member to member; the last one answers.
    Chain,
    /// From the head to all others at once, and back to the head, which answers.
    Star,
}

/// A group in one epoch. Alike on everybody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupShape {
    /// Who may take part: a secret of the group.
    pub token: [u8; 16],
    /// Number of this configuration; only grows.
    pub epoch: u64,
    /// How messages run.
    pub topology: Topology,
    /// 1 to 16.
    pub members: usize,
    /// Bytes of memory that each member has for the group.
    pub size: u64,
    /// What the members have survives a loss of power: durable primitives may be asked for.
    pub persistent: bool,
    /// Operations that the rings of a member hold.
    pub depth: u32,
    /// Clients at once.
    pub lanes: u16,
    /// Primitives that a client may have under way.
    pub slots: u8,
    /// Memory of each member that a client stages its WRITEs in; its longest WRITE is half of it.
    pub lane_bytes: u32,
}

/// A shape that can not be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum ShapeError {
    /// 1 to 16 members.
    #[error("a group has 1 to {MEMBERS_MAX} members")]
    Members,
    /// A number that is 0 or above its maximum: `.0`.
    #[error("{0} of a group is 0 or too large")]
    Range(&'static str),
}

impl GroupShape {
    /// A chain of so many members with so many bytes each, and usual numbers.
    #[must_use]
    pub const fn new(token: [u8; 16], epoch: u64, members: usize, size: u64) -> Self {
        Self {
            token,
            epoch,
            topology: Topology::Chain,
            members,
            size,
            persistent: true,
            depth: 128,
            lanes: 8,
            slots: 32,
            lane_bytes: 1 << 20,
        }
    }

    /// Can it be?
    ///
    /// # Errors
    /// If not.
    pub fn validate(&self) -> Result<(), ShapeError> {
        if self.members == 0 || self.members > MEMBERS_MAX {
            return Err(ShapeError::Members);
        }
        let ranges = [
            ("size", self.size, 1 << 47),
            ("depth", u64::from(self.depth), 1 << 14),
            ("lanes", u64::from(self.lanes), 1024),
            ("slots", u64::from(self.slots), SLOTS_MAX as u64),
            ("lane_bytes", u64::from(self.lane_bytes), 1 << 28),
        ];
        match ranges
            .iter()
            .find(|&&(_, value, max)| value == 0 || value > max)
        {
            Some(&(name, ..)) => Err(ShapeError::Range(name)),
            None => Ok(()),
        }
    }

    /// Bytes of a message.
    #[must_use]
    pub const fn message_bytes(&self) -> usize {
        self.members * BLOCK_BYTES
    }

    /// Bytes of staging memory of a member.
    #[must_use]
    pub const fn staging_bytes(&self) -> usize {
        self.lanes as usize * self.lane_bytes as usize
    }

    /// Who answers clients.
    #[must_use]
    pub const fn answerer(&self) -> usize {
        match self.topology {
            Topology::Chain => self.members - 1,
            Topology::Star => 0,
        }
    }

    /// Members that a member hands messages on to.
    #[must_use]
    pub fn next(&self, member: usize) -> std::ops::Range<usize> {
        match self.topology {
            Topology::Chain => member + 1..self.members.min(member + 2),
            Topology::Star if member == 0 => 1..self.members,
            Topology::Star => 0..0,
        }
    }

    /// Who hands messages to a member; none to the head.
    #[must_use]
    pub const fn previous(&self, member: usize) -> Option<usize> {
        match self.topology {
            _ if member == 0 => None,
            Topology::Chain => Some(member - 1),
            Topology::Star => Some(0),
        }
    }

    /// Bytes of every message of this epoch.
    #[must_use]
    pub const fn fence(&self) -> u32 {
        self.epoch as u32
    }

    fn raw(&self) -> RawShape {
        RawShape {
            epoch: self.epoch.into(),
            size: self.size.into(),
            depth: self.depth.into(),
            lane_bytes: self.lane_bytes.into(),
            lanes: self.lanes.into(),
            members: self.members as u8,
            slots: self.slots,
            topology: self.topology as u8,
            persistent: u8::from(self.persistent),
            reserved: [0; 2],
        }
    }
}

#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
struct RawShape {
    epoch: U64,
    size: U64,
    depth: U32,
    lane_bytes: U32,
    lanes: U16,
    members: u8,
    slots: u8,
    topology: u8,
    persistent: u8,
    reserved: [u8; 2],
}

const MAGIC: [u8; 4] = *b"FNgs";
/// What is proven.
const HELLO: &[u8; 8] = b"FN hello";

/// Private data of a set-up request.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
struct RawHello {
    magic: [u8; 4],
    /// 0 for a client, 1 for a member.
    role: u8,
    /// Who is meant.
    receiver: u8,
    /// Of the client or member.
    number: U16,
    /// Region of a client that the answers go to.
    result_stag: U32,
    /// Of all the rest, by the token.
    proof: [u8; PROOF_BYTES],
    shape: RawShape,
}

impl RawHello {
    /// What is proven. A number is used once in an epoch: said again by who has listened, it is refused.
    fn said(&self) -> Vec<u8> {
        let unproven = Self {
            proof: [0; PROOF_BYTES],
            ..*self
        };
        unproven.as_bytes().to_vec()
    }
}

/// Private data of the answer.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
struct RawWelcome {
    magic: [u8; 4],
    memory_stag: U32,
    staging_stag: U32,
}

/// Private data of a refusal.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
struct RawSorry {
    magic: [u8; 4],
    reason: U32,
    number: U64,
}

const _: () = assert!(size_of::<RawShape>() == 32);
const _: () = assert!(size_of::<RawHello>() == 60);
const _: () = assert!(size_of::<RawWelcome>() == 12);
const _: () = assert!(size_of::<RawSorry>() == 16);

/// Who wants in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Caller {
    /// A client, and its region for answers.
    Client { number: u16, result_stag: u32 },
    /// The member before.
    Member(usize),
}

/// Why somebody was not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Denied {
    /// Not the hello of a group.
    #[error("not a member or client of a group")]
    Foreign,
    /// Another token.
    #[error("not of this group")]
    Token,
    /// The member is in this epoch.
    #[error("the group is in epoch {0}")]
    Epoch(u64),
    /// Another idea of the group in this epoch.
    #[error("the group has another shape in this epoch")]
    Shape,
    /// Meant for another member, or not from the member before.
    #[error("not expected here")]
    Place,
    /// The lane of this client is in use, or its number was used before.
    #[error("the number of the client is in use or was used in this epoch: {next} can be had")]
    Client {
        /// The next number of its lane.
        next: u32,
    },
    /// The member has stopped or is full.
    #[error("the member takes nobody")]
    Closed,
    /// The member has TLS, and the caller spoke without.
    #[error("the member wants TLS")]
    NeedsTls,
}

impl Denied {
    pub(crate) fn encode(self) -> Vec<u8> {
        let (reason, number) = match self {
            Self::Foreign => (0, 0),
            Self::Token => (1, 0),
            Self::Epoch(epoch) => (2, epoch),
            Self::Shape => (3, 0),
            Self::Place => (4, 0),
            Self::Client { next } => (5, u64::from(next)),
            Self::Closed => (6, 0),
            Self::NeedsTls => (7, 0),
        };
        let raw = RawSorry {
            magic: MAGIC,
            reason: U32::new(reason),
            number: U64::new(number),
        };
        raw.as_bytes().to_vec()
    }

    /// From the private data of a refusal.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let raw = RawSorry::read_from_bytes(bytes).ok()?;
        if raw.magic != MAGIC {
            return None;
        }
        Some(match raw.reason.get() {
            0 => Self::Foreign,
            1 => Self::Token,
            2 => Self::Epoch(raw.number.get()),
            3 => Self::Shape,
            4 => Self::Place,
            5 => Self::Client {
                next: u32::try_from(raw.number.get()).ok()?,
            },
            6 => Self::Closed,
            7 => Self::NeedsTls,
            _ => return None,
        })
    }
}

pub(super) fn hello(shape: &GroupShape, caller: Caller, receiver: usize) -> Vec<u8> {
    let (role, number, result_stag) = match caller {
        Caller::Client {
            number,
            result_stag,
        } => (0, number, result_stag),
        Caller::Member(member) => (1, member as u16, 0),
    };
    let mut raw = RawHello {
        magic: MAGIC,
        role,
        receiver: receiver as u8,
        number: number.into(),
        result_stag: result_stag.into(),
        proof: [0; PROOF_BYTES],
        shape: shape.raw(),
    };
    raw.proof = prove(shape.token, HELLO, &[&raw.said()]);
    raw.as_bytes().to_vec()
}

/// Whether who says this knows the group's token, in whichever epoch: the rest is for [`judge`].
pub(crate) fn is_of_group(token: [u8; 16], bytes: &[u8]) -> bool {
    RawHello::read_from_bytes(bytes)
        .is_ok_and(|raw| raw.magic == MAGIC && is_proven(token, HELLO, &[&raw.said()], raw.proof))
}

/// Who is it, and may it come in?
pub(super) fn judge(shape: &GroupShape, member: usize, bytes: &[u8]) -> Result<Caller, Denied> {
    let raw = RawHello::read_from_bytes(bytes).map_err(|_| Denied::Foreign)?;
    if raw.magic != MAGIC || raw.role > 1 {
        return Err(Denied::Foreign);
    }
    if !is_proven(shape.token, HELLO, &[&raw.said()], raw.proof) {
        return Err(Denied::Token);
    }
    if raw.shape.epoch.get() != shape.epoch {
        return Err(Denied::Epoch(shape.epoch));
    }
    if raw.shape != shape.raw() {
        return Err(Denied::Shape);
    }
    if usize::from(raw.receiver) != member {
        return Err(Denied::Place);
    }
    let number = raw.number.get();
    match raw.role {
        0 => Ok(Caller::Client {
            number,
            result_stag: raw.result_stag.get(),
        }),
        _ if shape.previous(member) == Some(usize::from(number)) => {
            Ok(Caller::Member(usize::from(number)))
        }
        _ => Err(Denied::Place),
    }
}

/// What a member lets its caller use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Welcome {
    /// READ.
    pub(super) memory: u32,
    /// WRITE.
    pub(super) staging: u32,
}

impl Welcome {
    pub(super) fn encode(self) -> Vec<u8> {
        let raw = RawWelcome {
            magic: MAGIC,
            memory_stag: self.memory.into(),
            staging_stag: self.staging.into(),
        };
        raw.as_bytes().to_vec()
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let raw = RawWelcome::read_from_bytes(bytes).ok()?;
        (raw.magic == MAGIC).then(|| Self {
            memory: raw.memory_stag.get(),
            staging: raw.staging_stag.get(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_in() {
        let shape = GroupShape::new([7; 16], 5, 3, 4096);
        let client = Caller::Client {
            number: 9,
            result_stag: 11,
        };
        assert_eq!(judge(&shape, 1, &hello(&shape, client, 1)), Ok(client));
        assert_eq!(
            judge(&shape, 2, &hello(&shape, client, 1)),
            Err(Denied::Place)
        );
        let before = Caller::Member(0);
        assert_eq!(judge(&shape, 1, &hello(&shape, before, 1)), Ok(before));
        assert_eq!(
            judge(&shape, 2, &hello(&shape, before, 2)),
            Err(Denied::Place)
        );
        let denied = |change: fn(&mut GroupShape)| {
            let mut other = shape;
            change(&mut other);
            judge(&shape, 1, &hello(&other, client, 1)).unwrap_err()
        };
        // I12: neither a lower nor a higher epoch is taken.
        assert_eq!(denied(|other| other.epoch = 4), Denied::Epoch(5));
        assert_eq!(denied(|other| other.epoch = 6), Denied::Epoch(5));
        assert_eq!(denied(|other| other.token[3] = 0), Denied::Token);
        assert_eq!(denied(|other| other.size += 1), Denied::Shape);
        assert_eq!(judge(&shape, 1, b"hello"), Err(Denied::Foreign));
        // Another epoch, or somebody else that is meant, is of the group all the same.
        let other = GroupShape { epoch: 4, ..shape };
        let token = shape.token;
        assert!(is_of_group(token, &hello(&shape, client, 1)));
        assert!(is_of_group(token, &hello(&other, before, 2)));
        assert!(!is_of_group([8; 16], &hello(&shape, client, 1)));
        assert!(!is_of_group(token, b"hello"));
        // The token is not said, and nothing that is said can be changed.
        let said = hello(&shape, client, 1);
        assert!(said.windows(16).all(|bytes| *bytes != shape.token));
        for at in 4..said.len() {
            let mut other = said.clone();
            other[at] ^= 0x10;
            assert!(judge(&shape, 1, &other).is_err(), "byte {at}");
            assert!(!is_of_group(token, &other), "byte {at}");
        }
        for reason in [
            Denied::Epoch(77),
            Denied::Client { next: 96 },
            Denied::Closed,
            Denied::NeedsTls,
        ] {
            assert_eq!(Denied::parse(&reason.encode()), Some(reason));
        }
    }
}
