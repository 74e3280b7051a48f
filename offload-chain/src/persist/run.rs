//! The requester's half of a recipe, executed over a transport.

use std::error::Error;

use super::message::{Message, MessageError, Part, immediate};
use super::recipe::{Barrier, Item, Payload, Recipe, RequesterStep, Tag};
use super::scenario::ATOMIC_WRITE_BYTES;

/// Bytes, and where they belong.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// First byte, in the region of the responder.
    pub at: u64,
    /// The bytes.
    pub bytes: &'a [u8],
}

/// The changes of an update.
#[derive(Clone, Copy, Debug)]
pub struct Changes<'a> {
    /// Number of the update: each is greater than the one before it on the same responder.
    pub sequence: u64,
    /// The first, or only one.
    pub a: Change<'a>,
    /// The one that must not be persistent without the first.
    pub b: Option<Change<'a>>,
}

/// An operation that a transport is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "fields are what their types and names say")]
pub enum Request<'a> {
    /// RDMA WRITE of a copy of `bytes`.
    Write { at: u64, bytes: &'a [u8], tag: Tag },
    /// The same, with immediate data.
    WriteImm {
        at: u64,
        bytes: &'a [u8],
        tag: Tag,
        immediate: u64,
    },
    /// SEND of a copy of `message`.
    Send { message: &'a [u8] },
    /// ATOMIC WRITE to an address that is a multiple of 8.
    AtomicWrite { at: u64, bytes: [u8; 8] },
    /// FLUSH, with persistence, of everything before it.
    Flush,
    /// READ of this many bytes, at most one, from anywhere in the region. They are not wanted.
    Read { bytes: u32 },
}

/// A posted operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Posted(pub u64);

/// An operation that a transport does not have, or has not with this peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Missing {
    /// WRITE with immediate data.
    #[error("the transport has no immediate data; plan for a peer without")]
    Immediate,
    /// FLUSH.
    #[error("the connection has no FLUSH; plan for a peer without")]
    Flush,
    /// ATOMIC WRITE.
    #[error("the connection has no ATOMIC WRITE; plan for a peer without")]
    AtomicWrite,
    /// A sync STag.
    #[error("the region has no sync STag: only regions over pages have one")]
    SyncStag,
}

/// Why a transport failed.
#[derive(Debug, thiserror::Error)]
pub enum TransportError<E: Error> {
    /// It cannot do that.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// The connection failed. Whether the update became durable is unknown.
    #[error(transparent)]
    Failed(E),
}

/// A connection to a responder, and its region.
pub trait Transport {
    /// How it fails.
    type Error: Error + 'static;

    /// Posts an operation behind all posted before. What is posted goes out at the latest with the next call that
    /// waits.
    ///
    /// # Errors
    /// See [`TransportError`]; nothing was posted.
    fn post(&mut self, request: Request<'_>) -> Result<Posted, TransportError<Self::Error>>;

    /// Waits until the operation has completed.
    ///
    /// # Errors
    /// The operation or the connection failed.
    fn wait(&mut self, posted: Posted) -> Result<(), Self::Error>;

    /// Waits for the next message of the responder.
    ///
    /// # Errors
    /// The connection failed.
    fn receive(&mut self) -> Result<Vec<u8>, Self::Error>;
}

/// Why a recipe was not carried out to its end. Whether the update became durable is unknown.
#[derive(Debug, thiserror::Error)]
pub enum RunError<E: Error> {
    /// A compound recipe without a second change.
    #[error("the recipe wants a second change, and there is none")]
    NoSecondChange,
    /// A singleton recipe with a second change.
    #[error("the recipe makes one change durable, and there are two")]
    SecondChange,
    /// Not what an ATOMIC WRITE can carry.
    #[error(
        "{len} bytes at {at:#x} are no ATOMIC WRITE, which has {ATOMIC_WRITE_BYTES} at a multiple of 8"
    )]
    NotAtomic {
        /// First byte.
        at: u64,
        /// Number of bytes.
        len: usize,
    },
    /// Not what immediate data can say.
    #[error(
        "{len} bytes at {at:#x} do not fit immediate data (below 2^47, at most 65535); use WRITE"
    )]
    NotImmediate {
        /// First byte.
        at: u64,
        /// Number of bytes.
        len: usize,
    },
    /// A change of 4 GiB or more.
    #[error("{0} bytes are too many for a message")]
    TooLong(usize),
    /// Not an acknowledgement.
    #[error("instead of an acknowledgement: {0}")]
    BadAcknowledgement(#[from] MessageError),
    /// The acknowledgement of something else.
    #[error("not the acknowledgement of {expected}, but a message about {got}")]
    WrongAcknowledgement {
        /// What was to be acknowledged.
        expected: u64,
        /// What was.
        got: u64,
    },
    /// The transport failed.
    #[error(transparent)]
    Transport(#[from] TransportError<E>),
}

/// Carries out the requester's steps. When it returns, the changes are durable, if the recipe is one that
/// [`plan`](super::plan) gave for the responder.
///
/// # Errors
/// See [`RunError`].
pub fn run<T: Transport>(
    recipe: &Recipe,
    changes: &Changes<'_>,
    transport: &mut T,
) -> Result<(), RunError<T::Error>> {
    // Everything that can be wrong with the changes is found before the first step.
    if recipe.is_compound() != changes.b.is_some() {
        return Err(match changes.b {
            Some(_) => RunError::SecondChange,
            None => RunError::NoSecondChange,
        });
    }
    let steps: Vec<Prepared<'_>> = recipe
        .requester
        .iter()
        .map(|&step| prepare(step, changes))
        .collect::<Result<_, _>>()?;
    let mut last = None;
    // What the responder acknowledges: the update, or the immediate data.
    let mut expected = changes.sequence;
    for step in &steps {
        match step {
            Prepared::Post(request) => {
                if let Request::WriteImm { immediate, .. } = request {
                    expected = *immediate;
                }
                last = Some(transport.post(*request)?);
            }
            Prepared::Send(message) => last = Some(transport.post(Request::Send { message })?),
            Prepared::Wait => {
                if let Some(posted) = last {
                    transport.wait(posted).map_err(TransportError::Failed)?;
                }
            }
            Prepared::ReceiveAck => {
                let bytes = transport.receive().map_err(TransportError::Failed)?;
                let ack = Message::parse(&bytes)?;
                if ack != Message::acknowledgement(expected) {
                    let got = ack.sequence;
                    return Err(RunError::WrongAcknowledgement { expected, got });
                }
            }
        }
    }
    Ok(())
}

enum Prepared<'a> {
    Post(Request<'a>),
    Send(Vec<u8>),
    Wait,
    ReceiveAck,
}

fn prepare<'a, E: Error>(
    step: RequesterStep,
    changes: &Changes<'a>,
) -> Result<Prepared<'a>, RunError<E>> {
    let change = |item| match item {
        Item::A => Ok(changes.a),
        Item::B => changes.b.ok_or(RunError::NoSecondChange),
    };
    let request = match step {
        RequesterStep::Write(item, tag) => {
            let Change { at, bytes } = change(item)?;
            Request::Write { at, bytes, tag }
        }
        RequesterStep::WriteImm(item, tag) => {
            let Change { at, bytes } = change(item)?;
            let len = bytes.len();
            let immediate = immediate(item, at, len).ok_or(RunError::NotImmediate { at, len })?;
            Request::WriteImm {
                at,
                bytes,
                tag,
                immediate,
            }
        }
        RequesterStep::AtomicWrite(item) => {
            let Change { at, bytes } = change(item)?;
            let len = bytes.len();
            let bytes = bytes
                .try_into()
                .ok()
                .filter(|_| at.is_multiple_of(u64::from(ATOMIC_WRITE_BYTES)))
                .ok_or(RunError::NotAtomic { at, len })?;
            Request::AtomicWrite { at, bytes }
        }
        RequesterStep::Barrier(Barrier::Flush) => Request::Flush,
        RequesterStep::Barrier(Barrier::ReadNothing) => Request::Read { bytes: 0 },
        RequesterStep::Barrier(Barrier::ReadByte) => Request::Read { bytes: 1 },
        RequesterStep::Wait => return Ok(Prepared::Wait),
        RequesterStep::ReceiveAck => return Ok(Prepared::ReceiveAck),
        RequesterStep::Send(payload) => {
            let (items, carried): (&[Item], bool) = match payload {
                Payload::AddressOf(Item::A) => (&[Item::A], false),
                Payload::AddressOf(Item::B) => (&[Item::B], false),
                Payload::A | Payload::Both => (payload.items(), true),
            };
            let mut parts = Vec::with_capacity(items.len());
            for &item in items {
                let Change { at, bytes } = change(item)?;
                let len = bytes.len();
                parts.push(Part {
                    item,
                    at,
                    len: u32::try_from(len).map_err(|_| RunError::TooLong(len))?,
                    bytes: carried.then_some(bytes),
                });
            }
            let sequence = changes.sequence;
            return Ok(Prepared::Send(Message { sequence, parts }.emit()));
        }
    };
    Ok(Prepared::Post(request))
}
