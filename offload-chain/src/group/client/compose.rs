//! From a primitive to what goes to the head.

use softrdma::offload::{FLUSH_REGION, Opcode};
use softrdma::{
    Buffer, LocalSlice, Operation, RemoteAddr, Source, Stag, TaggedOffset, WorkRequest, WrId,
};
use zerocopy::IntoBytes;

use super::{Client, READ_BIT, Read, UnderWay};
use crate::group::block::{
    BLOCK_BYTES, Kind, RawCas, RawCommon, RawFlush, RawMemcpy, RawWrite, slot_byte,
};
use crate::group::primitives::{Durability, Flight, MemberMap, PrimitiveError};

/// READs that a client has under way at one member.
const READS_MAX: usize = 64;
/// Longest READ.
const READ_BYTES_MAX: usize = 1 << 30;

impl Client {
    fn fits(&self, offset: u64, length: u64) -> Result<(), PrimitiveError> {
        match offset.checked_add(length) {
            Some(end) if end <= self.shape.size => Ok(()),
            _ => Err(PrimitiveError::Invalid("it reaches beyond the memory")),
        }
    }

    fn flush_code(&self, durability: Durability) -> Result<u8, PrimitiveError> {
        match durability {
            Durability::Visible => Ok(Opcode::Nop as u8),
            Durability::Durable if self.shape.persistent => Ok(Opcode::Flush as u8),
            Durability::Durable => Err(PrimitiveError::Invalid("the members do not persist")),
        }
    }

    fn next_flight(&mut self) -> Flight {
        self.flights += 1;
        Flight(self.flights)
    }

    /// Outcomes that were not taken count, or they would pile up.
    fn has_room(&self) -> bool {
        let used = self.under_way.len() + self.outcomes.len();
        self.is_ready() && used < usize::from(self.shape.slots)
    }

    pub(super) fn slot(&self) -> usize {
        (self.posted % u64::from(self.shape.slots)) as usize
    }

    pub(super) fn common(&self, kind: Kind) -> RawCommon {
        RawCommon {
            kind: kind as u8,
            execute: Opcode::Nop as u8,
            client: self.number.into(),
            fence: self.shape.fence().into(),
        }
    }

    fn note_changed(&mut self, offset: u64, length: u64, durability: Durability) {
        if durability == Durability::Durable || length == 0 {
            return;
        }
        let (first, end) = self.changed.unwrap_or((offset, offset));
        self.changed = Some((first.min(offset), end.max(offset + length)));
    }

    /// Sends a message of a block for each member.
    pub(super) fn send(
        &mut self,
        mut blocks: Vec<u8>,
        common: RawCommon,
        execute: Option<MemberMap>,
    ) -> Flight {
        if let Some(map) = execute {
            for member in map.iter().take_while(|&member| member < self.shape.members) {
                blocks[member * BLOCK_BYTES + 1] = Opcode::CompareSwap as u8;
            }
        }
        let send = Operation::Send {
            source: Source::Bytes(blocks),
            solicited: false,
            invalidate: None,
        };
        self.request(0, send);
        let flight = self.next_flight();
        self.under_way.push_back(UnderWay {
            flight: Some(flight),
            slot: self.slot(),
            common,
            execute,
            staged_until: self.staging.used(),
        });
        self.posted += 1;
        flight
    }

    /// An unsignaled request to a member.
    fn request(&mut self, member: usize, op: Operation) {
        let request = WorkRequest {
            signaled: false,
            ..WorkRequest::new(WrId(0), op)
        };
        if let Err(error) = self.lines[member].connection.post_send(request) {
            self.break_with(format!("member {member}: {error}"));
        }
    }

    pub(super) fn repeated(&self, block: &[u8]) -> Vec<u8> {
        block.repeat(self.shape.members)
    }

    pub(super) fn write(
        &mut self,
        offset: u64,
        bytes: Vec<u8>,
        durability: Durability,
    ) -> Result<Flight, PrimitiveError> {
        let length = bytes.len() as u64;
        self.fits(offset, length)?;
        let flush = self.flush_code(durability)?;
        if length > self.staging.longest() {
            return Err(PrimitiveError::Invalid("it is longer than half of a lane"));
        }
        if !self.has_room() {
            return Err(PrimitiveError::Full);
        }
        let staged = self.staging.take(length).ok_or(PrimitiveError::Full)?;
        let common = self.common(Kind::Write);
        let put = if bytes.is_empty() {
            Opcode::Nop
        } else {
            Opcode::Write
        };
        let block = RawWrite {
            common,
            offset: offset.into(),
            staging: staged.into(),
            length: (length as u32).into(),
            put: put as u8,
            flush,
            slot: slot_byte(self.slot()),
            reserved: 0,
        };
        let stag = self.lines[0].welcome.map_or(0, |welcome| welcome.staging);
        if !bytes.is_empty() {
            let write = Operation::Write {
                source: Source::Bytes(bytes),
                remote: remote(stag, staged),
            };
            self.request(0, write);
        }
        self.note_changed(offset, length, durability);
        let blocks = self.repeated(block.as_bytes());
        Ok(self.send(blocks, common, None))
    }

    pub(super) fn cas(
        &mut self,
        offset: u64,
        [old, new]: [u64; 2],
        execute: MemberMap,
        durability: Durability,
    ) -> Result<Flight, PrimitiveError> {
        self.fits(offset, 8)?;
        if !offset.is_multiple_of(8) {
            return Err(PrimitiveError::Invalid("gCAS is not aligned"));
        }
        if !execute
            .without(MemberMap::first(self.shape.members))
            .is_empty()
        {
            return Err(PrimitiveError::Invalid(
                "the map names members that are not",
            ));
        }
        let flush = self.flush_code(durability)?;
        if !self.has_room() {
            return Err(PrimitiveError::Full);
        }
        let [a, b, c, d, e, f, ..] = offset.to_le_bytes();
        let common = self.common(Kind::Cas);
        let block = RawCas {
            common,
            offset: [a, b, c, d, e, f],
            slot: slot_byte(self.slot()),
            flush,
            old: old.into(),
            new: new.into(),
        };
        self.note_changed(offset, 8, durability);
        let blocks = self.repeated(block.as_bytes());
        Ok(self.send(blocks, common, Some(execute)))
    }

    pub(super) fn memcpy(
        &mut self,
        [source, destination]: [u64; 2],
        length: u64,
        durability: Durability,
    ) -> Result<Flight, PrimitiveError> {
        self.fits(source, length)?;
        self.fits(destination, length)?;
        if length >= u64::from(FLUSH_REGION) {
            return Err(PrimitiveError::Invalid("gMEMCPY is too long"));
        }
        if source.abs_diff(destination) < length {
            return Err(PrimitiveError::Invalid("source and destination overlap"));
        }
        let flush = self.flush_code(durability)?;
        if !self.has_room() {
            return Err(PrimitiveError::Full);
        }
        let copy = if length == 0 {
            Opcode::Nop
        } else {
            Opcode::Copy
        };
        let common = self.common(Kind::Memcpy);
        let block = RawMemcpy {
            common,
            destination: destination.into(),
            source: source.into(),
            length: (length as u32).into(),
            copy: copy as u8,
            flush,
            slot: slot_byte(self.slot()),
            reserved: 0,
        };
        self.note_changed(destination, length, durability);
        let blocks = self.repeated(block.as_bytes());
        Ok(self.send(blocks, common, None))
    }

    pub(super) fn flush(&mut self) -> Result<Flight, PrimitiveError> {
        let flush = self.flush_code(Durability::Durable)?;
        if !self.has_room() {
            return Err(PrimitiveError::Full);
        }
        let (first, end) = self.changed.take().unwrap_or((0, 0));
        let common = self.common(Kind::Flush);
        let length = u32::try_from(end - first).unwrap_or(FLUSH_REGION);
        let block = RawFlush {
            common,
            offset: if length == FLUSH_REGION { 0 } else { first }.into(),
            length: length.into(),
            flush,
            slot: slot_byte(self.slot()),
            ..RawFlush::default()
        };
        let blocks = self.repeated(block.as_bytes());
        Ok(self.send(blocks, common, None))
    }

    pub(super) fn read(
        &mut self,
        member: usize,
        offset: u64,
        length: usize,
    ) -> Result<Flight, PrimitiveError> {
        self.fits(offset, length as u64)?;
        if length > READ_BYTES_MAX {
            return Err(PrimitiveError::Invalid("READ is too long"));
        }
        if member >= self.shape.members {
            return Err(PrimitiveError::Invalid("there is no such member"));
        }
        let used = self.lines[member].reads.len() + self.outcomes.len();
        if !self.is_ready() || used >= READS_MAX {
            return Err(PrimitiveError::Full);
        }
        let flight = self.next_flight();
        let line = &mut self.lines[member];
        let sink = Buffer::zeroed(length);
        let stag = line.welcome.map_or(0, |welcome| welcome.memory);
        let op = Operation::Read {
            sink: LocalSlice::whole(&sink),
            remote: remote(stag, offset),
        };
        match line
            .connection
            .post_send(WorkRequest::new(WrId(READ_BIT), op))
        {
            Ok(()) => line.reads.push_back(Read { flight, sink }),
            Err(error) => {
                self.outcomes
                    .push_back((flight, Err(PrimitiveError::Broken(error.to_string()))));
                self.break_with(format!("member {member}: {error}"));
            }
        }
        Ok(flight)
    }
}

fn remote(stag: u32, to: u64) -> RemoteAddr {
    RemoteAddr {
        stag: Stag(stag),
        to: TaggedOffset(to),
    }
}
