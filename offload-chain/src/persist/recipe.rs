//! A recipe: what requester and responder do until the requester may say "durable", as data.
//!
//! `a` and `b` are the changes; `&a` is where *a* was written. The requester's steps are posted one after the other
//! without waiting, but for [`Wait`](RequesterStep::Wait) and [`ReceiveAck`](RequesterStep::ReceiveAck). After the last
//! one the update is said to be durable.

use std::fmt;

use super::scenario::{Primary, Update};

/// A change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Item {
    /// The first, or the only one.
    A,
    /// The one that must not be persistent without the first.
    B,
}

/// Flavour of the STag that a WRITE goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tag {
    /// Of any region.
    Plain,
    /// Nothing behind it on the connection takes effect before it is durable.
    Sync,
}

/// What a message carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Payload {
    /// Where a change was written.
    AddressOf(Item),
    /// The first change itself.
    A,
    /// Both changes.
    Both,
}

impl Payload {
    /// The changes that travel in the message.
    #[must_use]
    pub const fn items(self) -> &'static [Item] {
        match self {
            Self::AddressOf(_) => &[],
            Self::A => &[Item::A],
            Self::Both => &[Item::A, Item::B],
        }
    }
}

/// A non-posted operation that starts after everything before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Barrier {
    /// READ of no byte: need not touch the bus.
    ReadNothing,
    /// READ of one byte.
    ReadByte,
    /// FLUSH, with persistence.
    Flush,
}

/// What the requester does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RequesterStep {
    /// Post WRITE.
    Write(Item, Tag),
    /// Post WRITE with immediate data that say where.
    WriteImm(Item, Tag),
    /// Post SEND.
    Send(Payload),
    /// Post ATOMIC WRITE.
    AtomicWrite(Item),
    /// Post FLUSH, or what takes its place.
    Barrier(Barrier),
    /// Wait until the operation posted last has completed.
    Wait,
    /// Wait for the next message of the responder.
    ReceiveAck,
}

/// What the responder's processor does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ResponderStep {
    /// Wait for the next message or immediate data.
    Receive,
    /// Write back the cache lines of a change, and wait until the memory controller has them.
    Flush(Item),
    /// Copy a change from the receive buffer to its place.
    Copy(Item),
    /// Give the receive buffer back: what was in it may be overwritten.
    Release,
    /// SEND ack.
    Ack,
}

/// What a restarted responder does before anybody reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Recovery {
    /// Nothing.
    Nothing,
    /// Applies each whole message found in the receive queue, as if it had come now.
    Replay,
}

/// Name of a recipe in the catalogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the catalogue says what each is")]
pub enum RecipeId {
    S1,
    S2,
    S3,
    S4,
    S5,
    S6,
    S7,
    S8,
    S9,
    S10,
    C1,
    C2,
    C3,
    C4,
    /// The form of C4 for a second change of more than 8 bytes.
    C4Wait,
    C5,
    C6,
    C7,
    C8,
    C9,
    C10,
    C11,
    C12,
}

/// A recipe.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Recipe {
    /// Where it stands in the catalogue.
    pub id: RecipeId,
    /// Steps of the requester.
    pub requester: Vec<RequesterStep>,
    /// Steps of the responder's processor; none if it has no part in it.
    pub responder: Vec<ResponderStep>,
    /// What follows a restart.
    pub recovery: Recovery,
}

/// What a recipe costs until the requester may go on, the dearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cost {
    /// Times the requester waits for something from the other side.
    pub round_trips: usize,
    /// Times the responder's processor has to run.
    pub responder_turns: usize,
    /// Operations that wait for everything before them.
    pub non_posted: usize,
    /// Steps of the responder's processor.
    pub responder_steps: usize,
    /// WRITEs that hold up everything behind them.
    pub sync_writes: usize,
    /// Operations in all.
    pub operations: usize,
    /// Bytes read where FLUSH is missing.
    pub read_bytes: usize,
}

impl Recipe {
    /// The same with another operation in the place of FLUSH, and WRITEs through STags of this flavour.
    #[must_use]
    pub fn in_form(mut self, barrier: Barrier, tag: Tag) -> Self {
        for step in &mut self.requester {
            match step {
                RequesterStep::Barrier(of) => *of = barrier,
                RequesterStep::Write(_, of) | RequesterStep::WriteImm(_, of) => *of = tag,
                _ => {}
            }
        }
        self
    }

    /// One change or two? A second one is as long as the recipe can carry.
    #[must_use]
    pub fn is_compound(&self) -> bool {
        self.id >= RecipeId::C1
    }

    /// The operation that carries the update.
    #[must_use]
    pub fn primary(&self) -> Primary {
        match self.requester.first() {
            Some(RequesterStep::WriteImm(..)) => Primary::WriteImm,
            Some(RequesterStep::Send(_)) => Primary::Send,
            _ => Primary::Write,
        }
    }

    /// Is it one for such an update?
    #[must_use]
    pub fn is_for(&self, update: Update) -> bool {
        self.is_compound() == update.is_compound()
    }

    /// The operation in the place of FLUSH, if there is one.
    #[must_use]
    pub fn barrier(&self) -> Option<Barrier> {
        self.requester.iter().find_map(|step| match step {
            RequesterStep::Barrier(barrier) => Some(*barrier),
            _ => None,
        })
    }

    /// Does it write through sync STags?
    #[must_use]
    pub fn is_sync(&self) -> bool {
        self.requester.iter().any(|step| {
            matches!(
                step,
                RequesterStep::Write(_, Tag::Sync) | RequesterStep::WriteImm(_, Tag::Sync)
            )
        })
    }

    /// Does the requester wait for the responder's processor?
    #[must_use]
    pub fn is_acknowledged(&self) -> bool {
        self.responder.contains(&ResponderStep::Ack)
    }

    /// What it costs.
    #[must_use]
    pub fn cost(&self) -> Cost {
        let count =
            |what: fn(&RequesterStep) -> bool| self.requester.iter().filter(|s| what(s)).count();
        let waits =
            |step: &RequesterStep| matches!(step, RequesterStep::Wait | RequesterStep::ReceiveAck);
        let acks = |step: &&ResponderStep| **step == ResponderStep::Ack;
        let round_trips = count(waits);
        Cost {
            round_trips,
            responder_turns: self.responder.iter().filter(acks).count(),
            non_posted: count(|step| {
                matches!(
                    step,
                    RequesterStep::Barrier(_) | RequesterStep::AtomicWrite(_)
                )
            }),
            responder_steps: self.responder.len(),
            sync_writes: count(|step| {
                matches!(
                    step,
                    RequesterStep::Write(_, Tag::Sync) | RequesterStep::WriteImm(_, Tag::Sync)
                )
            }),
            operations: self.requester.len() - round_trips,
            read_bytes: count(|step| matches!(step, RequesterStep::Barrier(Barrier::ReadByte))),
        }
    }

    /// Its name, with what distinguishes its form: `S4[sync READ(0)]`.
    #[must_use]
    pub fn name(&self) -> String {
        let mut form = Vec::new();
        if self.is_sync() {
            form.push("sync".to_owned());
        }
        form.extend(
            self.barrier()
                .filter(|&b| b != Barrier::Flush)
                .map(|b| b.to_string()),
        );
        if form.is_empty() {
            return self.id.to_string();
        }
        format!("{}[{}]", self.id, form.join(" "))
    }
}

impl fmt::Display for RecipeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::C4Wait => f.write_str("C4w"),
            id => write!(f, "{id:?}"),
        }
    }
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::A => "a",
            Self::B => "b",
        })
    }
}

impl fmt::Display for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AddressOf(item) => write!(f, "(&{item})"),
            Self::A => f.write_str(" a"),
            Self::Both => f.write_str(" (a,b)"),
        }
    }
}

impl fmt::Display for Barrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ReadNothing => "READ(0)",
            Self::ReadByte => "READ(1)",
            Self::Flush => "FLUSH",
        })
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain => "",
            Self::Sync => " (sync STag)",
        })
    }
}

impl fmt::Display for RequesterStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Write(item, tag) => write!(f, "WRITE {item}{tag}"),
            Self::WriteImm(item, tag) => write!(f, "WRITE_IMM {item}{tag}"),
            Self::Send(payload) => write!(f, "SEND{payload}"),
            Self::AtomicWrite(item) => write!(f, "ATOMIC_WRITE {item}"),
            Self::Barrier(barrier) => write!(f, "{barrier}"),
            Self::Wait => f.write_str("wait"),
            Self::ReceiveAck => f.write_str("receive ack"),
        }
    }
}

impl fmt::Display for ResponderStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Receive => f.write_str("receive"),
            Self::Flush(item) => write!(f, "flush {item}"),
            Self::Copy(item) => write!(f, "copy {item}"),
            Self::Release => f.write_str("release buffer"),
            Self::Ack => f.write_str("SEND ack"),
        }
    }
}

/// `S1: Rq WRITE a, SEND(&a), receive ack; Rsp receive, flush a, SEND ack`
impl fmt::Display for Recipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn list(steps: impl Iterator<Item = impl fmt::Display>) -> String {
            steps
                .map(|step| step.to_string())
                .collect::<Vec<_>>()
                .join(", ")
        }
        write!(f, "{}: Rq {}", self.name(), list(self.requester.iter()))?;
        if !self.responder.is_empty() {
            let when = if self.is_acknowledged() {
                "Rsp"
            } else {
                "Rsp later"
            };
            write!(f, "; {when} {}", list(self.responder.iter()))?;
        }
        match self.recovery {
            Recovery::Nothing => Ok(()),
            Recovery::Replay => f.write_str("; recovery replays the receive queue"),
        }
    }
}
