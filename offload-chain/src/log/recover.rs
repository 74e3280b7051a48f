//! Recovery of a member's log: what is found is carried out, then the mark moves to its end.
//!
//! The rows of the decision, for the record at the place where the next one is expected:
//!
//! | found | it is |
//! |---|---|
//! | no magic, length beyond the ring, wrong CRC, entry outside of the data | the end |
//! | another sequence number, or the term is not the header's | the end: bytes of an earlier lap, or of an earlier term |
//! | skip | a jump to the start of the ring |
//! | redo | to be carried out |
//!
//! Nothing is written before everything was read, and is durable. Until the header moves, all that was read is still there, so
//! recovery may be cut anywhere and started again (I6).

use super::header::{HEADER_BYTES, Header};
use super::layout::{HEADER_SLOTS, Layout};
use super::record::{self, Kind, RECORD_HEADER_BYTES, Record};
use crate::epoch::Epoch;
use crate::memory::{Memory, MemoryError};
use crate::planted::Bug;

/// Bytes of the ring.
const ERASED_AT_ONCE: u64 = 256 << 10;
/// Bytes that are written between flushes, where there are many: one flush of all would take longer than anybody waits for a step.
const FLUSHED_AT_ONCE: u64 = 16 << 20;

/// Why a log could not be recovered. The member cannot vouch for it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecoverError {
    /// There is none.
    #[error(
        "neither slot has a valid header: never initialised, or damaged; repair it from another member"
    )]
    NoHeader,
    /// It belongs to memory of another size.
    #[error(
        "the header is for {expected} bytes of memory, and there are {found}: another group's memory? repair it from another member"
    )]
    Size {
        /// What the header says.
        expected: u64,
        /// What there is.
        found: u64,
    },
    /// Records are missing that others have carried out.
    #[error("the log ends at {found}, before {expected}; repair it from another member")]
    Short {
        /// Where it should end, at least.
        expected: u64,
        /// Where it does.
        found: u64,
    },
    /// The memory failed.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

/// A log as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The newest header.
    pub header: Header,
    /// What is to be carried out: place and record.
    pub records: Vec<(u64, Record)>,
    /// Sequence number of the first record that is not there.
    pub sequence: u64,
    /// Where it would be.
    pub place: u64,
}

impl Found {
    /// Whether this is the beginning of a record that would follow, by what it says; who reads all of it knows.
    pub(crate) fn goes_on(&self, head: &[u8]) -> bool {
        let begins = record::begins(head);
        begins.is_some_and(|(sequence, term)| sequence == self.sequence && term <= self.header.term)
    }

    /// Drops records from this number on.
    fn cut(&mut self, end: u64) -> Result<(), RecoverError> {
        let first = self.header.sequence;
        let kept = end.checked_sub(first).map(|kept| kept as usize);
        let Some(kept) = kept.filter(|kept| *kept < self.records.len()) else {
            return Err(RecoverError::Short {
                expected: end,
                found: self.sequence,
            });
        };
        self.records.truncate(kept);
        let (mark, ring_bytes) = (self.header.place, self.header.layout.ring_bytes());
        self.place = self.records.last().map_or(mark, |(at, record)| {
            let at = at - self.header.layout.ring_at() + ring_bytes;
            mark + (at - mark % ring_bytes) % ring_bytes + record.extent
        });
        self.sequence = end;
        Ok(())
    }
}

/// Writes a new life: the first header, free locks, no records, data as they are.
///
/// # Errors
/// If the memory is too small, or fails.
pub fn format(memory: &mut impl Memory, header: &Header) -> Result<(), RecoverError> {
    check_size(memory, header)?;
    let start = vec![0; header.layout.ring_at() as usize];
    memory.write(0, &start)?;
    memory.write(header.layout.ring_at(), &[0; RECORD_HEADER_BYTES])?;
    memory.flush()?;
    memory.write(header.at(), &header.emit())?;
    memory.flush()?;
    Ok(())
}

/// The newest header.
///
/// # Errors
/// If there is none, or it is not for this memory.
pub fn find_header(memory: &impl Memory) -> Result<Header, RecoverError> {
    let mut slots = [[0; HEADER_BYTES]; HEADER_SLOTS as usize];
    for (slot, bytes) in slots.iter_mut().enumerate() {
        memory.read(Layout::header_at(slot as u64), bytes)?;
    }
    let header = Header::newest([&slots[0], &slots[1]]).ok_or(RecoverError::NoHeader)?;
    check_size(memory, &header)?;
    Ok(header)
}

/// Reads the log, from the mark to its end. Changes nothing.
///
/// # Errors
/// If there is no header, or the memory fails. Damage of records is their end.
pub fn find(memory: &impl Memory, planted: Option<Bug>) -> Result<Found, RecoverError> {
    let header = find_header(memory)?;
    let (ring_at, ring_bytes) = (header.layout.ring_at(), header.layout.ring_bytes());
    let mut found = Found {
        header,
        records: Vec::new(),
        sequence: header.sequence,
        place: header.place,
    };
    // A skip that no record follows is not a part of the log: members would not agree on it.
    let mut place = header.place;
    while place - header.place < ring_bytes {
        let at = place % ring_bytes;
        let Some(record) = read_record(memory, &header, at, planted)? else {
            break;
        };
        // Of a log that is not carried out, records of earlier terms count too: recovery leaves no others.
        let current = record.term == header.term
            || (!header.executes && record.term < header.term)
            || (planted == Some(Bug::StaleRecordAccepted) && record.term < header.term);
        if record.sequence != found.sequence || !current {
            break;
        }
        match record.kind {
            Kind::Skip => place += ring_bytes - at,
            Kind::Redo => {
                let extent = record.extent;
                found.records.push((ring_at + at, record));
                found.sequence += 1;
                place += extent;
                found.place = place;
            }
        }
    }
    Ok(found)
}

/// Carries out what the log has, up to the record with number `end` if that is given, and starts the term of `epoch` with an empty log: both headers say so then, and are the
/// same on all members whose log ended alike.
///
/// A log that is not carried out keeps its records instead, and the mark where it was. All else of the ring is erased, so that nothing stale
/// is ever taken for a record of an earlier term.
///
/// # Errors
/// If there is no header, or the memory fails. It can be started again.
pub fn recover(
    memory: &mut impl Memory,
    epoch: Epoch,
    end: Option<u64>,
    planted: Option<Bug>,
) -> Result<Found, RecoverError> {
    let mut found = find(memory, planted)?;
    if let Some(end) = end.filter(|end| found.sequence != *end) {
        found.cut(end)?;
    }
    let data_at = found.header.layout.data_at();
    if found.header.executes {
        // A member that did not stop, or has copied its ring, may have found records that are only visible: data must not show
        // what a cut takes out of the log.
        if !found.records.is_empty() && planted != Some(Bug::RingNotFlushed) {
            memory.flush()?;
        }
        let mut written = Written::default();
        for (at, record) in &found.records {
            for copy in &record.copies {
                let mut bytes = vec![0; copy.length as usize];
                memory.read(at + copy.from, &mut bytes)?;
                written.write(memory, data_at + copy.to, &bytes)?;
            }
        }
    } else if planted != Some(Bug::FreeNotErased) {
        erase_free(memory, &found)?;
    }
    memory.flush()?;
    let (sequence, place) = match found.header.executes {
        true => (found.sequence, found.place),
        false => (found.header.sequence, found.header.place),
    };
    let header = Header {
        term: epoch,
        count: 0,
        sequence,
        place,
        ..found.header
    };
    put_headers(memory, &header)?;
    Ok(found)
}

/// Puts a header in both slots, the newest one last: at each moment one of the two is whole. Where that is has to be looked for: what was cut
/// while it did this left the first header of a term in either slot.
fn put_headers(memory: &mut impl Memory, header: &Header) -> Result<(), RecoverError> {
    let newest = find_header(memory)?;
    let mut first = 0;
    for slot in 0..HEADER_SLOTS {
        let mut bytes = [0; HEADER_BYTES];
        memory.read(Layout::header_at(slot), &mut bytes)?;
        if Header::parse(&bytes) != Some(newest) {
            first = slot;
        }
    }
    for slot in [first, first + 1] {
        memory.write(Layout::header_at(slot), &header.emit())?;
        memory.flush()?;
    }
    Ok(())
}

/// Erases what of the ring is not between mark and end. What is erased already, as nearly all of a large ring is each time, is only read: that takes
/// less of media, and is nothing that another member would have to copy.
fn erase_free(memory: &mut impl Memory, found: &Found) -> Result<(), MemoryError> {
    let (ring_at, ring) = (
        found.header.layout.ring_at(),
        found.header.layout.ring_bytes(),
    );
    let zeros = vec![0; ring.min(ERASED_AT_ONCE) as usize];
    let mut bytes = zeros.clone();
    let mut written = Written::default();
    let (mut place, end) = (found.place, found.header.place + ring);
    while place < end {
        let length = (end - place)
            .min(ring - place % ring)
            .min(zeros.len() as u64) as usize;
        let (piece, at) = (&mut bytes[..length], ring_at + place % ring);
        memory.read(at, piece)?;
        if *piece != zeros[..length] {
            written.write(memory, at, &zeros[..length])?;
        }
        place += length as u64;
    }
    Ok(())
}

/// What was written and not flushed. All of it may be flushed at any time, as a cut may keep all of it (I6).
#[derive(Debug, Default)]
struct Written(u64);

impl Written {
    fn write(
        &mut self,
        memory: &mut impl Memory,
        at: u64,
        bytes: &[u8],
    ) -> Result<(), MemoryError> {
        memory.write(at, bytes)?;
        self.0 += bytes.len() as u64;
        if self.0 >= FLUSHED_AT_ONCE {
            memory.flush()?;
            self.0 = 0;
        }
        Ok(())
    }
}

/// Makes the header of another member, whose ring this one has copied, its own: in a log that is not carried out, all have one mark.
///
/// # Errors
/// If the memory fails. It can be started again.
pub(crate) fn adopt(memory: &mut impl Memory, header: &Header) -> Result<(), RecoverError> {
    put_headers(memory, header)
}

fn read_record(
    memory: &impl Memory,
    header: &Header,
    at: u64,
    planted: Option<Bug>,
) -> Result<Option<Record>, MemoryError> {
    let layout = &header.layout;
    let (place, room) = (layout.ring_at() + at, layout.ring_bytes() - at);
    let mut head = [0; RECORD_HEADER_BYTES];
    memory.read(place, &mut head)?;
    let length = RECORD_HEADER_BYTES as u64 + u64::from(record::payload_bytes(&head));
    if length > room {
        return Ok(None);
    }
    let mut bytes = vec![0; length as usize];
    memory.read(place, &mut bytes)?;
    if planted == Some(Bug::TornRecordAccepted) {
        record::forge(header.salt, &mut bytes);
    }
    Ok(record::parse(header.salt, &bytes, layout.data_bytes()))
}

fn check_size(memory: &impl Memory, header: &Header) -> Result<(), RecoverError> {
    let (expected, found) = (header.layout.size(), memory.size());
    if expected > found {
        return Err(RecoverError::Size { expected, found });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory of which it is known how much was written and not flushed, at most.
    struct Counting {
        bytes: Vec<u8>,
        unflushed: u64,
        most: u64,
    }

    impl Memory for Counting {
        fn size(&self) -> u64 {
            self.bytes.len() as u64
        }

        fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), MemoryError> {
            to.copy_from_slice(&self.bytes[offset as usize..][..to.len()]);
            Ok(())
        }

        fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), MemoryError> {
            self.bytes[offset as usize..][..from.len()].copy_from_slice(from);
            self.unflushed += from.len() as u64;
            self.most = self.most.max(self.unflushed);
            Ok(())
        }

        fn flush(&mut self) -> Result<(), MemoryError> {
            self.unflushed = 0;
            Ok(())
        }

        fn generation(&self) -> u64 {
            0
        }

        fn changed_since(&self, _: u64) -> Vec<u64> {
            Vec::new()
        }
    }

    /// Memory that loses power in the middle of the write of a header, after so many that were whole.
    struct Torn {
        memory: Counting,
        headers: u32,
    }

    impl Memory for Torn {
        fn size(&self) -> u64 {
            self.memory.size()
        }

        fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), MemoryError> {
            self.memory.read(offset, to)
        }

        fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), MemoryError> {
            if offset < Layout::header_at(1) + HEADER_BYTES as u64 {
                if self.headers == 0 {
                    self.memory.write(offset, &from[..HEADER_BYTES / 2])?;
                    return Err(MemoryError::Device("no power".into()));
                }
                self.headers -= 1;
            }
            self.memory.write(offset, from)
        }

        fn flush(&mut self) -> Result<(), MemoryError> {
            self.memory.flush()
        }

        fn generation(&self) -> u64 {
            0
        }

        fn changed_since(&self, _: u64) -> Vec<u64> {
            Vec::new()
        }
    }

    /// I1, I6: recovery may be cut again and again while it writes its headers; whatever the slot of the newest one, that is there afterwards.
    #[test]
    fn headers_survive_cuts_of_each_recovery() {
        let layout = Layout::new(1, 256, 64).unwrap();
        let bytes = layout.size() as usize;
        for (marks, cuts) in (0..2).flat_map(|marks| (0..16).map(move |cuts| (marks, cuts))) {
            let mut torn = Torn {
                memory: Counting {
                    bytes: vec![0; bytes],
                    unflushed: 0,
                    most: 0,
                },
                headers: u32::MAX,
            };
            let mut header = Header::first(layout, 1, true);
            format(&mut torn, &header).unwrap();
            for _ in 0..marks {
                header = header.advanced(1, 0);
                torn.write(header.at(), &header.emit()).unwrap();
            }
            let mut newest = Epoch(0);
            for (epoch, bit) in (1..).zip(0..4) {
                torn.headers = cuts >> bit & 1;
                recover(&mut torn, Epoch(epoch), None, None).unwrap_err();
                let found = find_header(&torn).expect("a header is there").term;
                assert!(found >= newest, "{found} after {newest}");
                newest = found;
            }
            torn.headers = 2;
            recover(&mut torn, Epoch(9), None, None).unwrap();
        }
    }

    /// I16: no flush has so much to do that others would take the media for dead.
    #[test]
    fn much_is_flushed_in_pieces() {
        let layout = Layout::new(1, 3 * FLUSHED_AT_ONCE, 64).unwrap();
        let header = Header::first(layout, 1, false);
        let mut memory = Counting {
            bytes: vec![7; layout.size() as usize],
            unflushed: 0,
            most: 0,
        };
        format(&mut memory, &header).unwrap();
        recover(&mut memory, Epoch(1), None, None).unwrap();
        let ring = layout.ring_at() as usize..layout.data_at() as usize;
        assert!(memory.bytes[ring].iter().all(|byte| *byte == 0));
        assert_eq!(memory.unflushed, 0);
        assert!(memory.most <= FLUSHED_AT_ONCE + ERASED_AT_ONCE);
    }
}
