//! Work requests: what the local program asks for.

use std::sync::Arc;

use crate::addr::{Immediate, RemoteAddr, Stag, WrId};
use crate::mem::{Atomic, Buffer, DomainBind, WindowBind};
use crate::wire::profile::{Placement, Selectivity};

/// Bytes of a local buffer.
#[derive(Clone, Debug)]
pub struct LocalSlice {
    /// The memory.
    pub buffer: Arc<Buffer>,
    /// First byte.
    pub offset: usize,
    /// Number of bytes.
    pub len: usize,
}

impl LocalSlice {
    /// All of a buffer.
    #[must_use]
    pub fn whole(buffer: &Arc<Buffer>) -> Self {
        Self {
            buffer: Arc::clone(buffer),
            offset: 0,
            len: buffer.len(),
        }
    }

    /// `len` bytes from `offset` on. Checked against the buffer when posted.
    #[must_use]
    pub fn new(buffer: &Arc<Buffer>, offset: usize, len: usize) -> Self {
        Self {
            buffer: Arc::clone(buffer),
            offset,
            len,
        }
    }

    pub(crate) fn is_inside(&self) -> bool {
        self.offset
            .checked_add(self.len)
            .is_some_and(|end| end <= self.buffer.len())
    }
}

/// Where outgoing bytes come from.
#[derive(Clone, Debug)]
pub enum Source {
    /// A registered or unregistered local buffer; must stay unchanged until the completion.
    Local(LocalSlice),
    /// Bytes given away.
    Bytes(Vec<u8>),
    /// A few bytes inside the request itself (`IBV_SEND_INLINE`); made by [`Source::inline`].
    Inline(InlineBytes),
}

/// Bytes that a request can hold itself.
pub const INLINE_BYTES_MAX: usize = 32;

/// Up to [`INLINE_BYTES_MAX`] bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InlineBytes {
    bytes: [u8; INLINE_BYTES_MAX],
    /// At most `INLINE_BYTES_MAX`.
    len: u8,
}

impl InlineBytes {
    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl Source {
    /// A copy of `bytes` inside the request; `None` if there are more than [`INLINE_BYTES_MAX`].
    #[must_use]
    pub fn inline(bytes: &[u8]) -> Option<Self> {
        let mut copy = [0; INLINE_BYTES_MAX];
        copy.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(Self::Inline(InlineBytes {
            bytes: copy,
            len: bytes.len() as u8,
        }))
    }

    /// Number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Local(slice) => slice.len,
            Self::Bytes(bytes) => bytes.len(),
            Self::Inline(bytes) => usize::from(bytes.len),
        }
    }

    pub(crate) fn local(&self) -> Option<&LocalSlice> {
        match self {
            Self::Local(slice) => Some(slice),
            Self::Bytes(_) | Self::Inline(_) => None,
        }
    }

    /// No bytes at all?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What to do.
#[derive(Clone, Debug)]
pub enum Operation {
    /// RDMA WRITE.
    Write {
        /// Bytes to write.
        source: Source,
        /// Where to.
        remote: RemoteAddr,
    },
    /// RDMA READ of `sink.len` bytes.
    Read {
        /// Where the bytes go.
        sink: LocalSlice,
        /// Where they come from.
        remote: RemoteAddr,
    },
    /// SEND, in all four forms.
    Send {
        /// Message.
        source: Source,
        /// Ask for a solicited event at the peer.
        solicited: bool,
        /// STag of the peer that it shall invalidate.
        invalidate: Option<Stag>,
    },
    /// RDMA WRITE, then immediate data: the peer's receive completes when the WRITE is placed.
    WriteImmediate {
        /// Bytes to write.
        source: Source,
        /// Where to.
        remote: RemoteAddr,
        /// What the peer's receive shall hold.
        immediate: Immediate,
        /// Ask for a solicited event at the peer.
        solicited: bool,
    },
    /// Immediate data alone.
    Immediate {
        /// What the peer's receive shall hold.
        immediate: Immediate,
        /// Ask for a solicited event at the peer.
        solicited: bool,
    },
    /// Atomic operation on eight bytes of the peer; the completion has their old value.
    Atomic {
        /// Where they are; a multiple of 8.
        remote: RemoteAddr,
        /// What becomes of them.
        op: Atomic,
    },
    /// FLUSH of the private profile: completes when what was placed by everything before it is visible or persistent.
    Flush {
        /// First byte, or any in the region.
        remote: RemoteAddr,
        /// Which bytes.
        selectivity: Selectivity,
        /// How far.
        placement: Placement,
    },
    /// ATOMIC WRITE of the private profile: takes effect after every earlier FLUSH, all eight bytes at once.
    AtomicWrite {
        /// Where to; a multiple of 8.
        remote: RemoteAddr,
        /// The new value, in the byte order of the peer's memory.
        value: u64,
    },
    /// VERIFY of the private profile: the completion has the CRC-32C of the peer's bytes. At most
    /// [`VERIFY_BYTES_MAX`](crate::wire::profile::VERIFY_BYTES_MAX).
    Verify {
        /// Where they are.
        remote: RemoteAddr,
        /// How many.
        len: u32,
    },
    /// Ends the remote access through a local STag, when everything before it in this queue has been sent.
    LocalInvalidate {
        /// Of a region or a bound window of type 2.
        stag: Stag,
    },
    /// Binds a memory window of type 2 for this connection's peer, when everything before it in this queue has been sent.
    BindWindow(WindowBind),
    /// Binds a memory window of type 1 for all peers of its domain, or to nothing, when everything before it in this queue
    /// has been sent. Its earlier STag is dead then.
    BindDomainWindow(DomainBind),
}

impl Operation {
    /// `ATOMIC_FETCH_AND_ADD` of the verbs.
    #[must_use]
    pub const fn fetch_add(remote: RemoteAddr, add: u64) -> Self {
        let op = Atomic::FetchAdd { add, mask: 0 };
        Self::Atomic { remote, op }
    }

    /// `ATOMIC_CMP_AND_SWP` of the verbs.
    #[must_use]
    pub const fn compare_swap(remote: RemoteAddr, compare: u64, swap: u64) -> Self {
        let op = Atomic::CompareSwap {
            compare,
            compare_mask: u64::MAX,
            swap,
            swap_mask: u64::MAX,
        };
        Self::Atomic { remote, op }
    }

    /// Is it complete only when the peer has answered? Such requests count against ORD.
    pub(crate) const fn is_answered(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::Atomic { .. }) || self.is_private()
    }

    /// Is it of the private profile?
    pub(crate) const fn is_private(&self) -> bool {
        matches!(
            self,
            Self::Flush { .. } | Self::AtomicWrite { .. } | Self::Verify { .. }
        )
    }

    /// Immediate data that end it, and whether they ask for a solicited event.
    pub(crate) const fn immediate(&self) -> Option<(Immediate, bool)> {
        match self {
            Self::WriteImmediate {
                immediate,
                solicited,
                ..
            }
            | Self::Immediate {
                immediate,
                solicited,
            } => Some((*immediate, *solicited)),
            _ => None,
        }
    }

    /// Bytes of local memory it moves, and the slice they are in.
    pub(crate) fn local(&self) -> (usize, Option<&LocalSlice>) {
        match self {
            Self::Write { source, .. }
            | Self::Send { source, .. }
            | Self::WriteImmediate { source, .. } => (source.len(), source.local()),
            Self::Read { sink, .. } => (sink.len, Some(sink)),
            Self::Immediate { .. }
            | Self::Atomic { .. }
            | Self::Flush { .. }
            | Self::AtomicWrite { .. }
            | Self::Verify { .. }
            | Self::LocalInvalidate { .. }
            | Self::BindWindow(_)
            | Self::BindDomainWindow(_) => (0, None),
        }
    }
}

/// A request for the send queue.
#[derive(Clone, Debug)]
pub struct WorkRequest {
    /// Comes back in the completion.
    pub wr_id: WrId,
    /// Complete it visibly also on success. Errors are always reported.
    pub signaled: bool,
    /// Hold it, and all behind it, until all earlier READs and atomic operations have completed.
    pub fence: bool,
    /// What to do.
    pub op: Operation,
}

impl WorkRequest {
    /// A signaled request without fence.
    #[must_use]
    pub fn new(wr_id: WrId, op: Operation) -> Self {
        Self {
            wr_id,
            signaled: true,
            fence: false,
            op,
        }
    }
}

/// Where a message of the peer goes.
#[derive(Clone, Debug)]
pub enum RecvBuffer {
    /// Into a local buffer; at most `len` bytes.
    Local(LocalSlice),
    /// Into a vector that the completion hands over; at most this many bytes.
    Vec(usize),
}

impl RecvBuffer {
    /// Is it inside its buffer, and not longer than a message?
    pub(crate) fn validate(&self) -> Result<(), PostError> {
        let (len, inside) = match self {
            Self::Local(slice) => (slice.len, slice.is_inside()),
            Self::Vec(max) => (*max, true),
        };
        if !inside {
            return Err(PostError::OutOfBounds);
        }
        u32::try_from(len)
            .map(|_| ())
            .map_err(|_| PostError::TooLong)
    }
}

/// Why a request was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum PostError {
    /// The queue holds its maximum; take completions first.
    #[error("queue is full")]
    QueueFull,
    /// The connection takes its buffers from a shared queue: post them there.
    #[error("receive queue is shared")]
    SharedQueue,
    /// The connection is closing or closed.
    #[error("connection is not open")]
    NotOpen,
    /// The slice lies outside its buffer.
    #[error("slice lies outside its buffer")]
    OutOfBounds,
    /// A message is at most 2^32 - 1 bytes, the range of a VERIFY 1 MiB.
    #[error("message or range is too long")]
    TooLong,
    /// No READs or atomic operations were agreed on with this peer (ORD 0).
    #[error("peer accepts no READs")]
    NoReads,
    /// The private profile was not agreed on with this peer.
    #[error("peer does not speak the private profile")]
    NoProfile,
}
