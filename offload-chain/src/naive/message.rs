//! What goes from member to member: a header, then the bytes of a gWRITE or the results of a gCAS.

use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::group::{MEMBERS_MAX, MemberMap, Primitive};

/// Bytes of a gWRITE at most.
pub(super) const WRITE_MAX: usize = 1 << 20;
/// Bytes of a message at most.
pub(super) const MESSAGE_MAX: usize = size_of::<Header>() + WRITE_MAX;

const WRITE: u8 = 1;
const CAS: u8 = 2;
const MEMCPY: u8 = 3;
/// What a member had that did not skip.
const RESULT_BYTES: usize = 8;

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    kind: u8,
    reserved: u8,
    client: U16,
    /// Members of a gCAS that carry it out.
    execute: U16,
    members: U16,
    flight: U64,
    offset: U64,
    length: U64,
    /// gCAS: old. gMEMCPY: source.
    first: U64,
    /// gCAS: new.
    second: U64,
}

/// What a member is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    Write,
    Cas {
        old: u64,
        new: u64,
        execute: MemberMap,
    },
    Memcpy {
        source: u64,
    },
}

/// A message as it lies in memory.
#[derive(Clone, Debug)]
pub(super) struct Message {
    /// Of the client that waits for the answer.
    pub client: u16,
    /// Its name for it.
    pub flight: u64,
    pub task: Task,
    pub offset: u64,
    pub length: u64,
    /// As it was received, and will be sent on.
    pub bytes: Vec<u8>,
}

impl Message {
    /// The message for a primitive; none for what needs no message, or what this chain can not do.
    pub(super) fn encode(
        primitive: &Primitive,
        client: u16,
        flight: u64,
        members: usize,
    ) -> Option<Vec<u8>> {
        let mut header = Header {
            kind: WRITE,
            reserved: 0,
            client: client.into(),
            execute: 0.into(),
            members: (members as u16).into(),
            flight: flight.into(),
            offset: 0.into(),
            length: 0.into(),
            first: 0.into(),
            second: 0.into(),
        };
        let mut body = Vec::new();
        match primitive {
            Primitive::Write { offset, bytes, .. } => {
                header.offset = (*offset).into();
                header.length = (bytes.len() as u64).into();
                body.extend_from_slice(bytes);
            }
            Primitive::Cas {
                offset,
                old,
                new,
                execute,
                ..
            } => {
                header.kind = CAS;
                header.offset = (*offset).into();
                header.length = (RESULT_BYTES as u64).into();
                header.first = (*old).into();
                header.second = (*new).into();
                header.execute = execute.0.into();
                body.resize(members * RESULT_BYTES, 0);
            }
            Primitive::Memcpy {
                source,
                destination,
                length,
                ..
            } => {
                header.kind = MEMCPY;
                header.offset = (*destination).into();
                header.length = (*length).into();
                header.first = (*source).into();
            }
            Primitive::Flush | Primitive::Read { .. } => return None,
        }
        let mut bytes = header.as_bytes().to_vec();
        bytes.append(&mut body);
        Some(bytes)
    }

    /// Reads what was received; none if it makes no sense.
    pub(super) fn parse(bytes: Vec<u8>) -> Option<Self> {
        let (header, body) = Header::read_from_prefix(&bytes).ok()?;
        let members = usize::from(header.members.get());
        let task = match header.kind {
            WRITE if body.len() as u64 == header.length.get() => Task::Write,
            CAS if members <= MEMBERS_MAX && body.len() == members * RESULT_BYTES => Task::Cas {
                old: header.first.get(),
                new: header.second.get(),
                execute: MemberMap(header.execute.get()),
            },
            MEMCPY if body.is_empty() => Task::Memcpy {
                source: header.first.get(),
            },
            _ => return None,
        };
        Some(Self {
            client: header.client.get(),
            flight: header.flight.get(),
            task,
            offset: header.offset.get(),
            length: header.length.get(),
            bytes,
        })
    }

    /// The bytes of a gWRITE.
    pub(super) fn body(&self) -> &[u8] {
        &self.bytes[size_of::<Header>()..]
    }

    /// Notes what a member had.
    pub(super) fn set_result(&mut self, member: usize, had: u64) {
        let at = size_of::<Header>() + member * RESULT_BYTES;
        if let Some(result) = self.bytes.get_mut(at..at + RESULT_BYTES) {
            result.copy_from_slice(&had.to_le_bytes());
        }
    }

    /// What the members had, `None` for those that skipped.
    pub(super) fn results(&self, execute: MemberMap) -> Vec<Option<u64>> {
        let words = self.body().chunks_exact(RESULT_BYTES);
        let words = words.map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()));
        words
            .enumerate()
            .map(|(member, had)| execute.contains(member).then_some(had))
            .collect()
    }
}
