//! What the owner of a queue posted, and which of it a message may rewrite. Kept outside of ring memory.

use zerocopy::IntoBytes;

use super::descriptor::{DESCRIPTOR_BYTES, Opcode, RawDescriptor, RawWait, field};
use super::planted::Flaw;
use super::program::Count;
use crate::addr::RemoteAddr;

bitflags::bitflags! {
    /// Fields of a descriptor that a message may rewrite. There is no bit for STags, nor for ownership.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Mask: u16 {
        /// Between the posted one and NOP.
        const OPCODE = 1;
        /// Which entry of the queue's table.
        const DESTINATION = 2;
        /// Number of bytes.
        const LENGTH = 4;
        /// Source.
        const LOCAL_TO = 8;
        /// Target.
        const REMOTE_TO = 16;
        /// Operand of CAS.
        const COMPARE = 32;
        /// Operand of CAS.
        const SWAP = 64;
        /// Immediate data.
        const IMMEDIATE = 128;
    }
}

const FIELDS: [(Mask, usize, usize); 8] = [
    (Mask::OPCODE, field::OPCODE, 1),
    (Mask::DESTINATION, field::DESTINATION, 2),
    (Mask::LENGTH, field::LENGTH, 4),
    (Mask::LOCAL_TO, field::LOCAL_TO, 8),
    (Mask::REMOTE_TO, field::REMOTE_TO, 8),
    (Mask::COMPARE, field::COMPARE, 8),
    (Mask::SWAP, field::SWAP, 8),
    (Mask::IMMEDIATE, field::IMMEDIATE, 8),
];

impl Mask {
    /// Do these bytes of a descriptor lie in one field that is masked writable?
    #[must_use]
    pub fn covers(self, at: usize, len: usize) -> bool {
        FIELDS.iter().any(|&(bit, start, size)| {
            self.contains(bit) && at >= start && at - start < size && len <= size - (at - start)
        })
    }

    /// `template` with the masked fields of `found`.
    pub(super) fn overlay(self, template: &RawDescriptor, found: &RawDescriptor) -> RawDescriptor {
        let mut out = *template;
        for (bit, start, size) in FIELDS {
            if self.contains(bit) {
                let end = start + size;
                out.as_mut_bytes()[start..end].copy_from_slice(&found.as_bytes()[start..end]);
            }
        }
        out
    }
}

/// One request of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Template {
    /// Holds its queue until `on` has counted `per_operation` more for each operation, then grants the next `releases`
    /// requests of queue `queue`. Needs no grant itself.
    Wait {
        /// What is counted.
        on: Count,
        /// How many of it an operation has.
        per_operation: u64,
        /// Whose requests are granted.
        queue: usize,
        /// How many.
        releases: u32,
    },
    /// Anything else. Runs when granted.
    Post(Post),
}

/// A posted request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Post {
    /// Not WAIT.
    pub opcode: Opcode,
    /// Fields a message may rewrite. With [`Mask::OPCODE`] it is NOP unless a message says otherwise.
    pub mask: Mask,
    /// Where it goes, in a queue of links.
    pub destination: u16,
    /// Number of bytes.
    pub length: u32,
    /// Source, or where the old value of CAS goes, for the first slot of the ring.
    pub local: RemoteAddr,
    /// From one slot of the ring to the next.
    pub local_stride: u64,
    /// Target; in a queue of links the STag comes from the destination.
    pub remote: RemoteAddr,
    /// WRITE with immediate: its data.
    pub immediate: [u8; 8],
}

impl Template {
    /// Bytes of slot `slot` in operation `operation`, unowned. What a message decides begins as NOP.
    pub(super) fn raw(&self, slot: u64, operation: u64) -> [u8; DESCRIPTOR_BYTES] {
        match self {
            Self::Wait {
                on,
                per_operation,
                queue,
                releases,
            } => zerocopy::transmute!(RawWait {
                opcode: Opcode::Wait as u8,
                queue: (*queue as u16).into(),
                releases: (*releases).into(),
                source: on.number().into(),
                count: ((operation + 1) * per_operation).into(),
                ..RawWait::default()
            }),
            Self::Post(post) => zerocopy::transmute!(post.raw(slot)),
        }
    }
}

impl Post {
    pub(super) fn raw(&self, slot: u64) -> RawDescriptor {
        let opcode = if self.mask.contains(Mask::OPCODE) {
            Opcode::Nop
        } else {
            self.opcode
        };
        RawDescriptor {
            opcode: opcode as u8,
            destination: self.destination.into(),
            length: self.length.into(),
            local_stag: self.local.stag.0.into(),
            local_to: (self.local.to.0 + slot * self.local_stride).into(),
            remote_stag: self.remote.stag.0.into(),
            remote_to: self.remote.to.0.into(),
            immediate: self.immediate,
            ..RawDescriptor::default()
        }
    }

    /// The snapshot of a descriptor in slot `slot`, with everything that no message may touch as posted. `None` if its
    /// opcode is neither the posted one nor NOP.
    pub(super) fn effective(
        &self,
        slot: u64,
        found: &RawDescriptor,
        flaw: Option<Flaw>,
    ) -> Option<(Opcode, RawDescriptor)> {
        let raw = match flaw {
            Some(Flaw::MaskIgnored) => *found,
            _ => self.mask.overlay(&self.raw(slot), found),
        };
        let opcode = Opcode::from_byte(raw.opcode)?;
        let allowed = opcode == self.opcode || opcode == Opcode::Nop;
        (allowed || flaw == Some(Flaw::AnyOpcode)).then_some((opcode, raw))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::{Stag, TaggedOffset};

    fn post(mask: Mask) -> Post {
        let address = |stag, to| RemoteAddr {
            stag: Stag(stag),
            to: TaggedOffset(to),
        };
        Post {
            opcode: Opcode::Write,
            mask,
            destination: 3,
            length: 4,
            local: address(5, 6),
            local_stride: 32,
            remote: address(7, 8),
            immediate: [9; 8],
        }
    }

    /// Only what the mask names is taken from ring memory, whatever is there (RELIABILITY §4.9).
    #[test]
    fn a_mask_lets_through_its_fields_only() {
        let mut hostile = RawDescriptor::default();
        hostile.as_mut_bytes().fill(0xee);
        for bit in Mask::all().iter() {
            let post = post(bit);
            hostile.opcode = Opcode::Write as u8;
            let (_, raw) = post.effective(2, &hostile, None).unwrap();
            let plain = post.raw(2);
            for at in 0..DESCRIPTOR_BYTES {
                let expected = if bit.covers(at, 1) {
                    hostile.as_bytes()[at]
                } else {
                    plain.as_bytes()[at]
                };
                assert_eq!(raw.as_bytes()[at], expected, "{bit:?} byte {at}");
            }
        }
        assert_eq!(post(Mask::empty()).raw(2).local_to.get(), 6 + 64);
    }

    #[test]
    fn an_opcode_is_the_posted_one_or_nop() {
        let post = post(Mask::OPCODE);
        assert_eq!(post.raw(0).opcode, Opcode::Nop as u8);
        for byte in 0..=u8::MAX {
            let found = RawDescriptor {
                opcode: byte,
                ..RawDescriptor::default()
            };
            let opcode = post.effective(0, &found, None).map(|(opcode, _)| opcode);
            assert_eq!(opcode.is_some(), [0, 2].contains(&byte), "{byte}");
        }
    }

    #[test]
    fn no_field_is_crossed() {
        assert!(Mask::LENGTH.covers(8, 4) && Mask::LENGTH.covers(10, 2));
        assert!(!Mask::LENGTH.covers(8, 5) && !Mask::LENGTH.covers(7, 2));
        assert!(!Mask::all().covers(field::LOCAL_STAG, 1));
        assert!(!Mask::all().covers(field::REMOTE_STAG, 4));
        assert!(!Mask::all().covers(field::OWNER, 4));
        assert!(!(Mask::LENGTH | Mask::LOCAL_TO).covers(8, 16));
    }
}
