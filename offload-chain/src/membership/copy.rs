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
/// Answers to one question: while one is carried out the next is on its way.
const ANSWERS_MAX: usize = 8;
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
    /// What is said is said of the chunks from this one on. What changes while two answers are on their way may make them begin elsewhere.
    pub first: u64,
    /// What differs.
    pub chunks: Vec<(u64, ByteBuf)>,
    /// Where to go on; the end asked for, if that was all.
    pub next: u64,
    /// Another answer to the same question follows, which has the next number.
    pub more: bool,
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
        let fits = (give.number, give.first) == (self.number, self.first);
        if !fits || give.from != self.from || give.next <= self.first {
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

    /// A number that no answer to what was asked so far has.
    pub(super) fn fresh_number(&self) -> u64 {
        self.number + ANSWERS_MAX as u64
    }
}

/// Answers a question of another member; with several, if what changed takes more than one.
pub(super) fn answer(
    memory: &impl Memory,
    seat: Seat,
    ask: &Ask,
) -> Result<Vec<Give>, MemoryError> {
    let Ok(header) = find_header(memory) else {
        return Ok(Vec::new());
    };
    // Before anything is read.
    let generation = memory.generation();
    let header = header.emit().to_vec();
    let end = ask.end.min(memory.size().div_ceil(CHUNK_BYTES));
    let first = ask.first.max(FIRST_CHUNK);
    let numbers = ask.number.checked_add(ANSWERS_MAX as u64);
    if first > end || numbers.is_none() {
        return Ok(Vec::new());
    }
    let give = |nth: u64, chunks| Give {
        number: ask.number + nth,
        from: seat,
        generation,
        header: header.clone(),
        first,
        chunks,
        next: ask.end,
        more: false,
    };
    let read = |chunk| Ok((chunk, ByteBuf::from(read_chunk(memory, chunk)?)));
    match ask.since {
        Some((boot, since)) if boot == seat.boot => {
            let mut changed = memory.changed_since(since);
            changed.retain(|chunk| (first..end).contains(chunk));
            let batches = changed.chunks(BATCH_CHUNKS as usize);
            let mut gives = Vec::new();
            for (nth, batch) in batches.take(ANSWERS_MAX).enumerate() {
                let chunks: Result<_, _> = batch.iter().map(|chunk| read(*chunk)).collect();
                gives.push(give(nth as u64, chunks?));
            }
            if gives.is_empty() {
                gives.push(give(0, Vec::new()));
            }
            // Each ends where the next begins; behind the last, perhaps, is more to be asked for.
            let begin = |nth: usize| changed.get(nth * BATCH_CHUNKS as usize).copied();
            let count = gives.len();
            for (nth, give) in gives.iter_mut().enumerate() {
                if nth > 0 {
                    give.first = begin(nth).unwrap_or(first);
                }
                give.next = begin(nth + 1).unwrap_or(ask.end);
                give.more = nth + 1 < count;
            }
            Ok(gives)
        }
        Some(_) => Ok(Vec::new()),
        None => {
            let digests = ask.digests.iter().take(BATCH_CHUNKS as usize);
            let mut chunks = Vec::new();
            let mut chunk = first;
            for digest in digests {
                if chunk == end {
                    break;
                }
                let (_, bytes) = read(chunk)?;
                if crc32fast::hash(&bytes) != *digest {
                    chunks.push((chunk, bytes));
                }
                chunk += 1;
            }
            let mut give = give(0, chunks);
            if chunk < end {
                give.next = chunk;
            }
            Ok(vec![give])
        }
    }
}

fn read_chunk(memory: &impl Memory, chunk: u64) -> Result<Vec<u8>, MemoryError> {
    let at = chunk * CHUNK_BYTES;
    let length = memory.size().saturating_sub(at).min(CHUNK_BYTES);
    let mut bytes = vec![0; length as usize];
    memory.read(at, &mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::super::configuration::{Birth, MemberId};
    use super::*;
    use crate::group::{FileMemory, MemberFile, Topology};

    const SEAT: Seat = Seat {
        id: MemberId(1),
        boot: Boot(7),
    };

    /// A source and one that copies from it, and what they are made of.
    fn memories() -> (FileMemory, FileMemory, Header) {
        let birth = Birth {
            locks: 1,
            ring_bytes: 16 << 10,
            data_bytes: 4 << 20,
            salt: 1,
            token: [0; 16],
            topology: Topology::Chain,
            executes: true,
            durable: true,
        };
        let header = birth.header().unwrap();
        let [mut source, copy] = [0, 1].map(|_| {
            let file = tempfile::tempfile().unwrap();
            let size = header.layout.size();
            FileMemory(MemberFile::over(file, "memory".as_ref(), size).unwrap())
        });
        source.write(0, &header.emit()).unwrap();
        (source, copy, header)
    }

    fn alike(source: &FileMemory, copy: &FileMemory) -> bool {
        let end = source.size() / CHUNK_BYTES;
        (FIRST_CHUNK..end).all(|chunk| read_chunk(source, chunk) == read_chunk(copy, chunk))
    }

    /// I15: what is given in several answers is all that changed, though it changes between two that are asked for the same: what begins
    /// elsewhere than the last one ended is not taken.
    #[test]
    fn answers_leave_no_gaps() {
        let (mut source, mut copy, header) = memories();
        let since = source.generation();
        let end = source.size() / CHUNK_BYTES;
        let change = |source: &mut FileMemory, chunks: std::ops::Range<u64>, byte| {
            for chunk in chunks {
                source.write(chunk * CHUNK_BYTES, &[byte; 4096]).unwrap();
            }
        };
        change(&mut source, 200..end, 1);
        let size = (Part::All, &header);
        let mut round = Round::new(Epoch(1), SEAT, Some(since), size, 10);
        let ask = round.ask(&copy).unwrap();
        let before = answer(&source, SEAT, &ask).unwrap();
        assert!(before.len() > 4 && before[..before.len() - 1].iter().all(|give| give.more));
        change(&mut source, 20..100, 2);
        let after = answer(&source, SEAT, &ask).unwrap();

        assert_eq!(round.take(&mut copy, &before[0]), Ok(Some(false)));
        for give in &after[1..] {
            assert_eq!(round.take(&mut copy, give), Ok(None));
        }
        let mut over = false;
        while !over {
            let ask = round.ask(&copy).unwrap();
            for give in answer(&source, SEAT, &ask).unwrap() {
                assert!(give.number < round.fresh_number());
                over = round.take(&mut copy, &give).unwrap().unwrap();
            }
        }
        // What changed meanwhile, before where it had got to, is for the next round.
        let since = round.generation();
        let mut round = Round::new(Epoch(1), SEAT, since, size, round.fresh_number());
        assert!(!alike(&source, &copy));
        let ask = round.ask(&copy).unwrap();
        let [give] = &answer(&source, SEAT, &ask).unwrap()[..] else {
            panic!("more than 80 chunks")
        };
        assert_eq!(round.take(&mut copy, give), Ok(Some(true)));
        assert!(alike(&source, &copy));
    }

    /// I10: whatever another asks for is answered, or not.
    #[test]
    fn odd_questions_are_no_harm() {
        let (mut source, _, _) = memories();
        source.write(20 * CHUNK_BYTES, &[1; 2 << 20]).unwrap();
        let numbers = [
            0,
            1,
            20,
            source.size() / CHUNK_BYTES,
            u64::MAX - 1,
            u64::MAX,
        ];
        for (first, end) in numbers.iter().flat_map(|a| numbers.map(|b| (*a, b))) {
            for since in [None, Some((SEAT.boot, 0))] {
                let ask = Ask {
                    epoch: Epoch(1),
                    number: u64::MAX,
                    since,
                    first,
                    end,
                    digests: vec![0; 3],
                };
                for give in answer(&source, SEAT, &ask).into_iter().flatten() {
                    assert!(give.chunks.len() <= BATCH_CHUNKS as usize);
                }
            }
        }
    }
}
