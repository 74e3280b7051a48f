//! From the snapshot of a descriptor to a command whose every range has been checked.

use super::descriptor::{Opcode, RawDescriptor};
use super::planted::Flaw;
use super::program::Carrier;
use crate::addr::{Immediate, RemoteAddr, Stag, TaggedOffset};
use crate::mem::ATOMIC_BYTES;
use crate::mem::access::{AccessError, AccessKind, Accessor, Request, check};
use crate::mem::cache::RegionCache;
use crate::mem::region::Backing;
use crate::wqe::LocalSlice;

/// Length of a FLUSH that means the whole region.
pub const FLUSH_REGION: u32 = u32::MAX;

/// Why a message or a descriptor is not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refusal {
    /// A message of another length than the one posted for.
    #[error("a message of a wrong length")]
    Length,
    /// No scatter list is for this kind of message.
    #[error("a message of an unknown kind")]
    Kind,
    /// Bytes that identify group, epoch or sender are not what they have to be on this link.
    #[error("a message of another epoch or sender")]
    Check,
    /// The pieces of a message differ where they must not.
    #[error("a message that tells members different things")]
    Unlike,
    /// A descriptor that was granted is not marked so: somebody writes over it.
    #[error("a descriptor without its owner")]
    Owner,
    /// Neither the posted opcode nor NOP.
    #[error("an opcode that was not posted")]
    Opcode,
    /// The range of a region.
    #[error("range refused: {0}")]
    Access(#[from] AccessError),
    /// The source of a WRITE or SEND lies in pages.
    #[error("a source that is not in memory")]
    NotMemory,
    /// The address of a CAS is not a multiple of 8.
    #[error("an address that is not aligned")]
    Alignment,
    /// Source and target of a COPY.
    #[error("source and target overlap")]
    Overlap,
    /// Beyond what the destination has for us.
    #[error("a range beyond its destination")]
    Bounds,
}

/// Memory of the peer that a queue may write to, behind one link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// The link.
    pub link: super::LinkId,
    /// Region of the peer that WRITEs go to.
    pub stag: Stag,
    /// Its first byte that may be written.
    pub base: TaggedOffset,
    /// How many.
    pub len: u64,
    /// Bytes are copied and count as done at once: a peer that does not read holds up nobody, and loses its link.
    pub detached: bool,
}

/// What a link is to do.
#[derive(Clone, Debug)]
pub(super) enum Outbound {
    Write {
        source: LocalSlice,
        to: TaggedOffset,
    },
    WriteImmediate {
        source: LocalSlice,
        to: TaggedOffset,
        immediate: Immediate,
    },
    Send {
        source: LocalSlice,
    },
    /// Beyond what a detached destination has: its own loss.
    Astray,
}

/// What to do. Ranges are checked.
#[derive(Clone, Debug)]
pub(super) enum Command {
    Nop,
    Write {
        source: LocalSlice,
        target: RemoteAddr,
    },
    Copy {
        source: RemoteAddr,
        target: RemoteAddr,
        len: u32,
    },
    CompareSwap {
        target: RemoteAddr,
        compare: u64,
        swap: u64,
        sink: LocalSlice,
    },
    Flush {
        target: RemoteAddr,
        len: u32,
    },
    Link {
        destination: u16,
        what: Outbound,
    },
}

/// Who checks: the engine's own regions, under the domain of its local queue pair.
#[derive(Debug)]
pub(super) struct Guard<'a> {
    pub(super) regions: &'a mut RegionCache,
    pub(super) who: Accessor,
    pub(super) flaw: Option<Flaw>,
}

impl Guard<'_> {
    fn permit(&mut self, kind: AccessKind, at: RemoteAddr, len: u32) -> Result<(), Refusal> {
        self.offset(kind, at, len).map(|_| ())
    }

    fn offset(&mut self, kind: AccessKind, at: RemoteAddr, len: u32) -> Result<u64, Refusal> {
        let region = self.regions.find(at.stag).ok_or(AccessError::InvalidStag)?;
        let what = Request {
            kind,
            stag: at.stag,
            to: at.to,
            len,
        };
        match check(region, self.who, what) {
            Ok(access) => Ok(access.offset),
            Err(_) if self.flaw == Some(Flaw::RangeUnchecked) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }

    /// Bytes of a region in memory.
    fn slice(&mut self, kind: AccessKind, at: RemoteAddr, len: u32) -> Result<LocalSlice, Refusal> {
        let offset = self.offset(kind, at, len)?;
        match self
            .regions
            .find(at.stag)
            .map(|region| &region.spec.backing)
        {
            Some(Backing::Memory(buffer)) => {
                let slice = LocalSlice::new(buffer, offset as usize, len as usize);
                if slice.is_inside() {
                    Ok(slice)
                } else {
                    Err(AccessError::Bounds.into())
                }
            }
            _ => Err(Refusal::NotMemory),
        }
    }

    /// Judges a snapshot.
    pub(super) fn command(
        &mut self,
        carrier: Carrier,
        opcode: Opcode,
        raw: &RawDescriptor,
        destination: impl Fn(u16) -> Option<Destination>,
    ) -> Result<Command, Refusal> {
        let local = RemoteAddr {
            stag: Stag(raw.local_stag.get()),
            to: TaggedOffset(raw.local_to.get()),
        };
        let target = RemoteAddr {
            stag: Stag(raw.remote_stag.get()),
            to: TaggedOffset(raw.remote_to.get()),
        };
        let len = raw.length.get();
        match (carrier, opcode) {
            (_, Opcode::Nop) => Ok(Command::Nop),
            (Carrier::Local, Opcode::Write) => {
                let source = self.slice(AccessKind::Read, local, len)?;
                self.permit(AccessKind::Write, target, len)?;
                Ok(Command::Write { source, target })
            }
            (Carrier::Local, Opcode::Copy) => {
                self.permit(AccessKind::Read, local, len)?;
                self.permit(AccessKind::Write, target, len)?;
                let apart = local.to.0.abs_diff(target.to.0) >= u64::from(len);
                if local.stag == target.stag && !apart {
                    return Err(Refusal::Overlap);
                }
                Ok(Command::Copy {
                    source: local,
                    target,
                    len,
                })
            }
            (Carrier::Local, Opcode::CompareSwap) => {
                let bytes = ATOMIC_BYTES as u32;
                let offset = self.offset(AccessKind::Atomic, target, bytes)?;
                if !offset.is_multiple_of(u64::from(bytes)) || !target.to.0.is_multiple_of(8) {
                    return Err(Refusal::Alignment);
                }
                let sink = self.slice(AccessKind::Write, local, bytes)?;
                Ok(Command::CompareSwap {
                    target,
                    compare: raw.compare.get(),
                    swap: raw.swap.get(),
                    sink,
                })
            }
            (Carrier::Local, Opcode::Flush) => {
                let checked = if len == FLUSH_REGION { 0 } else { len };
                self.permit(AccessKind::FlushPersistent, target, checked)?;
                Ok(Command::Flush { target, len })
            }
            (Carrier::Links, Opcode::Write | Opcode::WriteImmediate | Opcode::Send) => {
                self.outbound(opcode, raw, local, len, destination)
            }
            _ => Err(Refusal::Opcode),
        }
    }

    fn outbound(
        &mut self,
        opcode: Opcode,
        raw: &RawDescriptor,
        local: RemoteAddr,
        len: u32,
        destination: impl Fn(u16) -> Option<Destination>,
    ) -> Result<Command, Refusal> {
        let source = self.slice(AccessKind::Read, local, len)?;
        let number = raw.destination.get();
        let to = TaggedOffset(raw.remote_to.get());
        // A destination that is no more is no error of the message: its request is dropped when it runs.
        if opcode != Opcode::Send
            && let Some(known) = destination(number)
        {
            let end = to.checked_add(u64::from(len));
            let inside =
                to >= known.base && end.is_some_and(|end| end.0 - known.base.0 <= known.len);
            match inside || self.flaw == Some(Flaw::RangeUnchecked) {
                true => {}
                // Where an answer goes is the word of who gets it.
                false if known.detached => {
                    return Ok(Command::Link {
                        destination: number,
                        what: Outbound::Astray,
                    });
                }
                false => return Err(Refusal::Bounds),
            }
        }
        let immediate = Immediate(raw.immediate);
        let what = match opcode {
            Opcode::Write => Outbound::Write { source, to },
            Opcode::WriteImmediate => Outbound::WriteImmediate {
                source,
                to,
                immediate,
            },
            _ => Outbound::Send { source },
        };
        Ok(Command::Link {
            destination: number,
            what,
        })
    }
}
