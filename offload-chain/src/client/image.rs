//! The log in a member's memory, as far as it was read.

use std::ops::Range;

use crate::log::{Copy, Entry, Found, HEADER_SLOT_BYTES, HEADER_SLOTS, Header, Layout};
use crate::memory::{Memory, MemoryError};

/// Headers, and the ring from the mark on. Nothing can be changed.
#[derive(Debug)]
pub(super) struct Image {
    layout: Layout,
    /// Of the memory, up to the end of the ring.
    bytes: Vec<u8>,
    /// Place of the mark in the ring.
    mark: u64,
    /// So much of the ring was read, from the mark on and around its end.
    known: u64,
}

impl Image {
    /// Of memory that begins with these bytes, its headers; nothing, if there is none for this layout.
    pub(super) fn new(layout: Layout, headers: &[u8]) -> Option<Self> {
        let slot = HEADER_SLOT_BYTES as usize;
        let newest = Header::newest([headers, headers.get(slot..)?])?;
        if newest.layout != layout {
            return None;
        }
        let mut bytes = vec![0; usize::try_from(layout.data_at()).ok()?];
        bytes.get_mut(..headers.len())?.copy_from_slice(headers);
        let mark = newest.place % layout.ring_bytes();
        Some(Self {
            layout,
            bytes,
            mark,
            known: 0,
        })
    }

    /// Whether all of the ring was read.
    pub(super) fn is_whole(&self) -> bool {
        self.known == self.layout.ring_bytes()
    }

    /// What is to be read next, at most so many bytes of it.
    pub(super) fn next(&self, most: u64) -> Range<u64> {
        let (at, ring) = (self.layout.ring_at(), self.layout.ring_bytes());
        let from = (self.mark + self.known) % ring;
        let length = most.min(ring - self.known).min(ring - from);
        at + from..at + from + length
    }

    /// These were the next.
    pub(super) fn add(&mut self, bytes: &[u8]) {
        let next = self.next(bytes.len() as u64);
        self.bytes[next.start as usize..next.end as usize].copy_from_slice(bytes);
        self.known += bytes.len() as u64;
    }

    fn is_known(&self, offset: u64, length: u64) -> bool {
        let ring = self.layout.ring_bytes();
        let behind = |at: u64| (at + ring - self.mark) % ring + length <= self.known;
        match offset.checked_sub(self.layout.ring_at()) {
            None => offset + length <= HEADER_SLOTS * HEADER_SLOT_BYTES,
            Some(at) => at + length <= ring && (behind(at) || self.is_whole()),
        }
    }

    /// The entries of records that were found in it.
    pub(super) fn entries(&self, found: &Found) -> Vec<(u64, Vec<Entry>)> {
        let entry = |at: u64, copy: &Copy| {
            let start = (at + copy.from) as usize;
            Entry {
                offset: copy.to,
                bytes: self.bytes[start..start + copy.length as usize].to_vec(),
            }
        };
        let records = found.records.iter();
        let records = records.map(|(at, record)| {
            let entries = record.copies.iter().map(|copy| entry(*at, copy));
            (record.sequence, entries.collect())
        });
        records.collect()
    }
}

impl Memory for Image {
    fn size(&self) -> u64 {
        self.layout.size()
    }

    fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), MemoryError> {
        let length = to.len() as u64;
        if !self.is_known(offset, length) {
            let size = self.size();
            return Err(MemoryError::Range {
                offset,
                length,
                size,
            });
        }
        let start = offset as usize;
        to.copy_from_slice(&self.bytes[start..start + to.len()]);
        Ok(())
    }

    fn write(&mut self, _: u64, _: &[u8]) -> Result<(), MemoryError> {
        Err(MemoryError::Device("it was only read".into()))
    }

    fn flush(&mut self) -> Result<(), MemoryError> {
        Ok(())
    }

    fn generation(&self) -> u64 {
        0
    }

    fn changed_since(&self, _: u64) -> Vec<u64> {
        Vec::new()
    }
}
