//! What a client may ask of a group (HyperLoop, table 1), and how it learns of the result.
//!
//! Nothing here blocks and nothing does I/O: a client of the group hands over a primitive and takes the outcome later,
//! so that the log, the locks and whoever drives them run alike over TCP and in a simulation.

use std::fmt;

/// Members a group can have.
pub const MEMBERS_MAX: usize = 16;

/// A set of members, member 0 (the head) in the lowest bit.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct MemberMap(pub u16);

impl MemberMap {
    /// No member.
    pub const NONE: Self = Self(0);

    /// The first `members` members.
    pub fn first(members: usize) -> Self {
        assert!(
            members <= MEMBERS_MAX,
            "a group has at most {MEMBERS_MAX} members"
        );
        Self(((1u32 << members) - 1) as u16)
    }

    /// One member.
    pub fn one(member: usize) -> Self {
        assert!(
            member < MEMBERS_MAX,
            "a group has at most {MEMBERS_MAX} members"
        );
        Self(1 << member)
    }

    /// Is the member in it?
    pub fn contains(self, member: usize) -> bool {
        member < MEMBERS_MAX && self.0 >> member & 1 == 1
    }

    /// The members in it, head first.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..MEMBERS_MAX).filter(move |&member| self.contains(member))
    }

    /// How many there are.
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Is there none?
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The members of this that are not in `other`.
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

impl fmt::Debug for MemberMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemberMap({:#b})", self.0)
    }
}

/// What a primitive's outcome promises about a loss of power.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Durability {
    /// Every member has it where the next primitive and every reader see it.
    Visible,
    /// Every member has it on media; each member before it forwarded (gFLUSH interleaved).
    Durable,
}

/// A request to a group. Offsets count from the start of the members' memory, which is alike on all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Primitive {
    /// gWRITE: these bytes at `offset` of every member.
    Write {
        /// Where.
        offset: u64,
        /// What.
        bytes: Vec<u8>,
        /// What the outcome promises.
        durability: Durability,
    },
    /// gCAS: where a member of `execute` has `old` in the eight bytes at `offset` (little-endian, aligned), it has `new`
    /// afterwards. Others skip it.
    Cas {
        /// Where, a multiple of eight.
        offset: u64,
        /// Compared with.
        old: u64,
        /// Put in its place.
        new: u64,
        /// Who does it.
        execute: MemberMap,
        /// What the outcome promises.
        durability: Durability,
    },
    /// gMEMCPY: every member copies `length` bytes of its own from `source` to `destination`; they may not overlap.
    Memcpy {
        /// From.
        source: u64,
        /// To.
        destination: u64,
        /// Bytes.
        length: u64,
        /// What the outcome promises.
        durability: Durability,
    },
    /// gFLUSH: what this client's earlier primitives changed is on media of every member.
    Flush,
    /// A one-sided READ of one member: no member but this one takes part.
    Read {
        /// Whose memory.
        member: usize,
        /// Where.
        offset: u64,
        /// Bytes.
        length: usize,
    },
}

/// Names a primitive under way, for the client that posted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Flight(pub u64);

/// What came of a primitive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// gWRITE, gMEMCPY or gFLUSH is done on all members.
    Done,
    /// gCAS: what each member had before, by member; `None` where it was skipped.
    Cas(Vec<Option<u64>>),
    /// READ: the bytes.
    Read(Vec<u8>),
}

/// Why a primitive was not taken, or what came of it instead of an [`Outcome`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PrimitiveError {
    /// As many are under way as the rings of the members hold. Take outcomes, post again.
    #[error("the rings of the group are full: wait for outcomes before posting more")]
    Full,
    /// It reaches beyond the memory of the group, overlaps itself or is not aligned.
    #[error("the primitive does not fit the memory of the group: {0}")]
    Invalid(&'static str),
    /// The group of this epoch is no more. Whether the primitive took effect on some members is unknown; repair decides.
    #[error("the group is broken or has a newer epoch: {0}")]
    Broken(String),
}

/// A client's end of a group.
///
/// Primitives of one client take effect in the order they were posted, on each member; outcomes come in that order, too
/// (READs may come earlier or later than the rest, not than one another at one member). After
/// [`PrimitiveError::Broken`] everything under way is answered with it, and nothing is taken any more.
pub trait Primitives {
    /// How many members the group has.
    fn members(&self) -> usize;

    /// Bytes of memory each member has for the group.
    fn size(&self) -> u64;

    /// Most bytes of a gWRITE; not 0.
    fn longest_write(&self) -> u64;

    /// Whether the members persist: what is to be durable may be asked for.
    fn persists(&self) -> bool;

    /// Hands over a primitive.
    fn post(&mut self, primitive: Primitive) -> Result<Flight, PrimitiveError>;

    /// The next outcome, if there is one. Does no I/O: drive the group to make progress.
    fn poll(&mut self) -> Option<(Flight, Result<Outcome, PrimitiveError>)>;
}
