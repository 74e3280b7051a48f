//! How a member makes its memory like another's: checksums first, then only chunks that differ; or chunks that
//! changed since the last round.

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::epoch::Epoch;
use crate::log::{HEADER_SLOT_BYTES, HEADER_SLOTS, Header, find_header};
use crate::memory::{CHUNK_BYTES, Memory, MemoryError};

use super::configuration::{Boot, Seat};

/// Chunks of one question or answer.
pub const BATCH_CHUNKS: u64 = 128;
/// Headers are not copied with the rest.
const FIRST_CHUNK: u64 = HEADER_SLOTS * HEADER_SLOT_BYTES / CHUNK_BYTES;

/// What members say to each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Message {
    /// A question.
    Ask(Ask),
    /// Its answer.
    Give(Give),
}

/// Asks for what differs.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Ask {
    /// The epoch both have to be in.
    pub epoch: Epoch,
    /// Names the question.
    pub number: u64,
    /// Only chunks changed since the memory had this generation, in this life of the process.
    pub since: Option<(Boot, u64)>,
    /// From this chunk on.
    pub first: u64,
    /// Before this chunk.
    pub end: u64,
    /// Without `since`: CRC-32s of the asker's chunks from `first` on.
    pub digests: Vec<u32>,
}

/// Answers.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Give {
    /// Of the question.
    pub number: u64,
    /// Who answers, in which life.
    pub from: Seat,
    /// Of its memory, before it was read.
    pub generation: u64,
    /// Its newest header.
    pub header: Vec<u8>,
    /// What differs.
    pub chunks: Vec<(u64, ByteBuf)>,
    /// Where to go on; the end asked for, if that was all.
    pub next: u64,
}

/// Which part of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Locks and ring.
    Log,
    /// Everything but headers.
    All,
}

/// One pass over the memory.
#[derive(Debug)]
pub(super) struct Round {
    pub(super) from: Seat,
    epoch: Epoch,
    since: Option<u64>,
    number: u64,
    first: u64,
    end: u64,
    /// Generation at the start of this round, and header.
    generation: Option<u64>,
    pub(super) header: Option<Header>,
    /// Chunks that differed.
    pub(super) copied: u64,
}

impl Round {
    /// Starts one. `since`: generation of the same life of the same member at the start of the last round.
    pub(super) fn new(
        epoch: Epoch,
        from: Seat,
        since: Option<u64>,
        (part, size): (Part, &Header),
        number: u64,
    ) -> Self {
        let end = match part {
            Part::Log => size.layout.data_at(),
            Part::All => size.layout.size(),
        };
        Self {
            from,
            epoch,
            since,
            number,
            first: FIRST_CHUNK,
            end: end.div_ceil(CHUNK_BYTES),
            generation: None,
            header: None,
            copied: 0,
        }
    }

    /// What to ask now; the same again, if there was no answer.
    pub(super) fn ask(&self, memory: &impl Memory) -> Result<Ask, MemoryError> {
        let mut digests = Vec::new();
        if self.since.is_none() {
            for chunk in self.first..self.end.min(self.first + BATCH_CHUNKS) {
                digests.push(crc32fast::hash(&read_chunk(memory, chunk)?));
            }
        }
        Ok(Ask {
            epoch: self.epoch,
            number: self.number,
            since: self.since.map(|generation| (self.from.boot, generation)),
            first: self.first,
            end: self.end,
            digests,
        })
    }

    /// Takes an answer. Whether the round is over; nothing, if it is the answer to something else.
    pub(super) fn take(
        &mut self,
        memory: &mut impl Memory,
        give: &Give,
    ) -> Result<Option<bool>, MemoryError> {
        if give.number != self.number || give.from != self.from || give.next <= self.first {
            return Ok(None);
        }
        for (chunk, bytes) in &give.chunks {
            if (self.first..self.end).contains(chunk) && bytes.len() as u64 <= CHUNK_BYTES {
                memory.write(chunk * CHUNK_BYTES, bytes)?;
                self.copied += 1;
            }
        }
        self.generation.get_or_insert(give.generation);
        self.header = Header::parse(&give.header);
        self.first = give.next;
        self.number += 1;
        Ok(Some(self.first >= self.end))
    }

    /// Generation to ask for changes since.
    pub(super) fn generation(&self) -> Option<u64> {
        self.generation
    }

    /// Number for the next question.
    pub(super) fn number(&self) -> u64 {
        self.number + 1
    }
}

/// Answers a question of another member.
pub(super) fn answer(
    memory: &impl Memory,
    seat: Seat,
    ask: &Ask,
) -> Result<Option<Give>, MemoryError> {
    let Ok(header) = find_header(memory) else {
        return Ok(None);
    };
    let generation = memory.generation();
    let end = ask.end.min(memory.size().div_ceil(CHUNK_BYTES));
    let first = ask.first.max(FIRST_CHUNK);
    let mut give = Give {
        number: ask.number,
        from: seat,
        generation,
        header: header.emit().to_vec(),
        chunks: Vec::new(),
        next: ask.end,
    };
    match ask.since {
        Some((boot, since)) if boot == seat.boot => {
            let changed = memory.changed_since(since).into_iter();
            let mut changed = changed.filter(|chunk| (first..end).contains(chunk));
            for chunk in changed.by_ref().take(BATCH_CHUNKS as usize) {
                give.chunks
                    .push((chunk, ByteBuf::from(read_chunk(memory, chunk)?)));
            }
            if let Some(more) = changed.next() {
                give.next = more;
            }
        }
        Some(_) => return Ok(None),
        None => {
            let digests = ask.digests.iter().take(BATCH_CHUNKS as usize);
            let mut chunk = first;
            for digest in digests {
                if chunk == end {
                    break;
                }
                let bytes = read_chunk(memory, chunk)?;
                if crc32fast::hash(&bytes) != *digest {
                    give.chunks.push((chunk, ByteBuf::from(bytes)));
                }
                chunk += 1;
            }
            if chunk < end {
                give.next = chunk;
            }
        }
    }
    Ok(Some(give))
}

fn read_chunk(memory: &impl Memory, chunk: u64) -> Result<Vec<u8>, MemoryError> {
    let at = chunk * CHUNK_BYTES;
    let length = memory.size().saturating_sub(at).min(CHUNK_BYTES);
    let mut bytes = vec![0; length as usize];
    memory.read(at, &mut bytes)?;
    Ok(bytes)
}
