//! Reads of objects, and of members' memory.

use std::time::{Duration, Instant};

use rand::Rng;

use super::{Client, ClientError};
use crate::clock::until;
use crate::group::{Outcome, Primitive, PrimitiveError, Primitives, Topology};
use crate::read::{Object, Read, ReadEvent, Source};

/// Longest READ of memory in one piece.
pub(super) const READ_BYTES: usize = 256 << 10;
/// Before something is asked again.
const PAUSE: Duration = Duration::from_millis(1);

impl Client {
    /// Reads an object at a member, by its place in the chain; any, if it is not said. The bytes, and where they are from.
    ///
    /// # Errors
    /// If it takes too long.
    pub fn read(
        &mut self,
        object: Object,
        place: Option<usize>,
    ) -> Result<(Vec<u8>, Source), ClientError> {
        let deadline = until(self.settings.timeout);
        loop {
            self.wait_for_group(deadline)?;
            let (layout, mode) = (self.layout, self.settings.preset.reads);
            let chain = self.topology == Topology::Chain;
            let Some(group) = &mut self.group else {
                continue;
            };
            let members = group.tcp.members();
            let place = place.map_or_else(
                || rand::rng().random_range(0..members),
                |at| at.min(members - 1),
            );
            match Read::start(&mut group.tcp, layout, object, place, mode, chain) {
                Ok(read) => {
                    if let Some(done) = self.finish_read(read, deadline)? {
                        return Ok(done);
                    }
                }
                Err(PrimitiveError::Broken(_)) => self.lost_group(),
                Err(PrimitiveError::Full) => {}
                Err(error) => return Err(ClientError::Group(error)),
            }
            self.turn(PAUSE)?;
            if Instant::now() >= deadline {
                return Err(ClientError::TimedOut("an object to be read"));
            }
        }
    }

    fn finish_read(
        &mut self,
        mut read: Read,
        deadline: Instant,
    ) -> Result<Option<(Vec<u8>, Source)>, ClientError> {
        while let Some(group) = &mut self.group {
            while let Some((flight, result)) = group.flights.take_read() {
                match read.handle(&mut group.tcp, flight, &result) {
                    Some(ReadEvent::Done(bytes, source)) => return Ok(Some((bytes, source))),
                    Some(_) => return Ok(None),
                    None => {}
                }
            }
            self.turn(self.settings.timing.period)?;
            if Instant::now() >= deadline {
                return Err(ClientError::TimedOut("an object to be read"));
            }
        }
        Ok(None)
    }

    /// Reads the memory of one member, by its place in the chain, as it is: headers, locks, ring and data.
    ///
    /// # Errors
    /// If there is no such place or range, or it takes too long.
    pub fn read_memory(
        &mut self,
        place: usize,
        offset: u64,
        length: usize,
    ) -> Result<Vec<u8>, ClientError> {
        let deadline = until(self.settings.timeout);
        loop {
            self.wait_for_group(deadline)?;
            match self.try_read(place, offset, length) {
                Ok(bytes) => return Ok(bytes),
                Err(Some(error)) => return Err(error),
                Err(None) => self.lost_group(),
            }
        }
    }

    /// Reads in pieces. `None`: the group is broken.
    fn try_read(
        &mut self,
        place: usize,
        offset: u64,
        length: usize,
    ) -> Result<Vec<u8>, Option<ClientError>> {
        let patience = self.settings.timing.silence() * 10;
        let mut bytes = Vec::with_capacity(length);
        while bytes.len() < length {
            let piece = (length - bytes.len()).min(READ_BYTES);
            let read = Primitive::Read {
                member: place,
                offset: offset + bytes.len() as u64,
                length: piece,
            };
            let group = self.group.as_mut().ok_or(None)?;
            let own = match group.tcp.post(read) {
                Ok(own) => own,
                Err(PrimitiveError::Broken(_)) => return Err(None),
                Err(PrimitiveError::Full) => {
                    self.turn(PAUSE).map_err(Some)?;
                    continue;
                }
                Err(error) => return Err(Some(ClientError::Group(error))),
            };
            let deadline = until(patience);
            loop {
                let group = self.group.as_mut().ok_or(None)?;
                match group.flights.take(own) {
                    Some(Ok(Outcome::Read(read))) => {
                        bytes.extend(read);
                        break;
                    }
                    Some(_) => return Err(None),
                    None if Instant::now() >= deadline => return Err(None),
                    None => self.turn(self.settings.timing.period).map_err(Some)?,
                }
            }
        }
        Ok(bytes)
    }
}
